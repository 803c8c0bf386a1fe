"""Score against cost: what each budget buys on one curve, or those of several methods."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from greedymiser._core.amounts import amount, currency, money, rounded_score, shortlist
from greedymiser.curve.summary import (
    FrontStep,
    front_steps,
    is_by_row,
    model_at,
    named_purchases,
    recommendation,
    recommended,
    total_in_words,
)
from greedymiser.plotting.axes import (
    DASHES,
    MARKERS,
    Floats,
    add_legend,
    cost_axis,
    drawn_axes,
    found_by_search,
    label_score,
    note_below,
    score_limits,
    set_title,
    shades,
    spread_over,
    tick_label,
)
from greedymiser.plotting.labels import LabelPlacer
from greedymiser.plotting.style import COLOURS, ink_of, main_colour, short, without_math
from greedymiser.scoring import TOTAL_COST

if TYPE_CHECKING:
    from greedymiser.curve.curve import TradeoffCurve

MOST_LEGEND_ENTRIES = 8

# Models that are compared by what they cost in all.
MOST_BARS = 8

# Letters of a label in the picture.
LONGEST_LABEL = 34

PRICES_IGNORED = "prices ignored"

# What costs less than this part of the most expensive change of a step is not in its label, and a
# step that gains less than this part of all that can be gained has none.
CHEAP, LITTLE = 0.2, 0.02

# Room above and below the scores, as a part of the axis.
PAD = 0.09

# Beyond so many times the cost of the best model, a reference is told in words only.
FAR = 1.5


def plot_curve(
    curve: TradeoffCurve,
    ax: Axes | None = None,
    *,
    paths: bool = False,
    baselines: Mapping[str, Any] | None = None,
) -> Axes:
    """Draw what each budget buys: a line of steps that never goes down, labelled.

    Each step is the best model of the curve for budgets from its cost on, chosen by the validation
    score, with a band of one standard error. Labels say what it buys beyond the step before
    ("+ TSH", "\N{MINUS SIGN} T3, + TT4"), as far as there is room: without what is cheap
    beside the rest, and not where next to nothing is gained. A ring marks the recommended
    model: the cheapest that is nearly as good as the best. Where the curve has test scores, those
    of the same models are diamonds. A cross is a model that ignores prices.

    With ``scoring="total_cost"`` bars show what models with larger and larger bills cost: the
    features and the errors on top of each other, with the recommended model framed.

    Parameters
    ----------
    curve : TradeoffCurve
    ax : matplotlib Axes, optional
    paths : bool
        Draw the models of every trade-off λ, too, as they grow: Figure 1 (left) of the paper.
    baselines : mapping from name to (cost, score) or to fitted model, optional
        Other models to compare with, such as the one in use; the score is that of the validation
        rows. Of a fitted model, ``cost_`` and ``score_`` are read.

    Returns
    -------
    matplotlib Axes
    """
    ax = drawn_axes(ax)
    if curve.scoring == TOTAL_COST:
        return _plot_totals(curve, ax)
    steps = front_steps(curve)
    if not steps:
        raise ValueError("no model of the curve has a score, so there is nothing to draw")
    costs, scores = staircase(curve)
    others = reference_models(curve, baselines or {})
    last = _right_end(curve, costs[-1], list(others.values()), paths)
    cost_axis(
        ax,
        [[step.cost for step in steps], [last]],
        curve.cost_unit,
        "mean cost of one prediction" if is_by_row(curve) else "cost of one prediction",
    )
    handles = _draw_paths(ax, curve) if paths else []
    handles += _draw_steps(ax, curve, steps, costs, scores, last)
    handles += _draw_baselines(ax, others, curve.cost_unit)
    reached = [step.test_score for step in steps if step.test_score is not None]
    ax.set_ylim(*score_range(scores, steps, [score for _, score in others.values()]))
    note_below(ax, scores[0], "what is free" if steps[0].n_features else "a constant")
    label_score(ax, curve.scoring, "" if reached else "validation")
    set_title(ax, recommendation(curve, steps))
    add_legend(ax, handles, below=True)
    _write_labels(ax, steps, (costs, scores), others.values(), step_labels(curve, steps))
    return ax


def _plot_totals(curve: TradeoffCurve, ax: Axes) -> Axes:
    """Draw bills and errors on top of each other, of models that err less than all cheaper ones.

    The recommended one is always among them: it need not be the least on these rows alone.
    """
    rows = curve.points[curve.points["score"].notna()].sort_values(["cost", "errors"])
    errors = rows["errors"].to_numpy(float)
    errs_less = errors < np.append(np.inf, np.minimum.accumulate(errors)[:-1])
    best = curve.best_row()
    is_best = ((rows["cost"] == best["cost"]) & (rows["errors"] == best["errors"])).to_numpy()
    rows = rows[errs_less | is_best].drop_duplicates(["cost", "errors"])
    chosen = rows[["cost", "errors"]].to_numpy().tolist().index([best["cost"], best["errors"]])
    kept = sorted({*spread_over(len(rows), MOST_BARS), chosen})
    rows, chosen = rows.iloc[kept], kept.index(chosen)
    bills, errors = rows["cost"].to_numpy(float), rows["errors"].to_numpy(float)
    at, unit = np.arange(len(rows)), curve.cost_unit
    ax.bar(at, bills, 0.7, color=main_colour(ax), label="features")
    on_top = ax.bar(at, errors, 0.7, bottom=bills, color=COLOURS[1], label="errors", hatch="//",
                    edgecolor=ax.get_facecolor(), linewidth=0)  # fmt: skip
    totals = [money(total, unit) for total in bills + errors]
    ax.bar_label(on_top, totals, fontsize="small", padding=2)
    ax.texts[chosen].set_fontweight("bold")
    ax.bar([chosen], [-best["score"]], 0.7, fill=False, edgecolor=ink_of(ax), linewidth=1.8,
           label="recommended")  # fmt: skip
    names = [_bought_in_words(curve, row) for _, row in rows.iterrows()]
    names = [short(name, 18 if len(rows) < 6 else 12) for name in names]
    slant: dict[str, Any] = {}
    if len(rows) > 3:
        slant = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    ax.set_xticks(at, names, fontsize="small", **slant)
    ax.grid(axis="x", visible=False)
    ax.set_xlabel("what the model buys")
    ax.margins(y=0.12)
    ax.set_ylim(bottom=min(0.0, *(bills + errors)))
    ax.yaxis.set_major_formatter(lambda value, _: tick_label(value, unit))
    named = f" ({unit})" if unit and not currency(unit) else ""
    without_math(ax.set_ylabel(f"mean cost of a row{named}"))
    for text in (*ax.texts, *ax.get_xticklabels()):
        without_math(text)
    set_title(ax, total_in_words(curve))
    add_legend(ax, ax.get_legend_handles_labels()[0], below=True)
    return ax


def _bought_in_words(curve: TradeoffCurve, row: Any) -> str:
    """What a model buys, in a few words; what it pays where the model is gone."""
    if not curve.models:
        return money(row["cost"], curve.cost_unit)
    model = model_at(curve, curve.position(row), int(row["n_iter"]))
    names = named_purchases(model.costs_, map(str, model.resources_used_))
    return shortlist(names, 1) if names else "nothing"


def staircase(curve: TradeoffCurve) -> tuple[Floats, Floats]:
    """Costs and scores of the line of a curve, which never goes down.

    A model may be a little worse on the validation rows than a cheaper one, where cross-fitting has
    a say as well: then its point is below the line.
    """
    front = curve.pareto().sort_values(["cost", "score"])
    return front["cost"].to_numpy(float), np.maximum.accumulate(front["score"].to_numpy(float))


def reference_models(
    curve: TradeoffCurve, baselines: Mapping[str, Any]
) -> dict[str, tuple[float, float]]:
    """Cost and score of models to compare with: the user's, and the one that ignores prices."""
    others = {str(name): _cost_and_score(name, reference) for name, reference in baselines.items()}
    free, front = _without_prices(curve), curve.pareto()
    if free is None:
        return others
    # Where a model of the line is the same to the eye, the line tells it.
    cost, score = free
    costs, scores = front["cost"].to_numpy(float), front["score"].to_numpy(float)
    near = np.abs(scores - score) <= LITTLE * np.ptp(scores)
    if not (np.isclose(costs, cost) & near).any():
        others[PRICES_IGNORED] = free
    return others


def _cost_and_score(name: str, reference: Any) -> tuple[float, float]:
    if hasattr(reference, "cost_"):
        score = getattr(reference, "score_", None)
        if score is None:
            raise ValueError(
                f"baselines[{name!r}] is a model without score_; give its cost and score as a pair"
            )
        return float(reference.cost_), float(score)
    try:
        cost, score = reference
        return float(cost), float(score)
    except (TypeError, ValueError):
        raise ValueError(
            f"baselines[{name!r}] must be a pair of cost and score, or a fitted model, "
            f"got {reference!r}"
        ) from None


def _without_prices(curve: TradeoffCurve) -> tuple[float, float] | None:
    """Cost and score of the model of trade-off 0, which buys whatever helps."""
    points = curve.points[~found_by_search(curve.points)]
    points = points[(points["tradeoff"] == 0) & points["score"].notna()]
    if not len(points):
        return None
    return float(points["cost"].iloc[0]), float(points["score"].iloc[0])


def _right_end(
    curve: TradeoffCurve, best: float, others: Sequence[tuple[float, float]], paths: bool
) -> float:
    """Where the picture ends: what costs many times the best model is written, not drawn."""
    if paths:
        return float(curve.traces["cost"].max())
    near = [cost for cost, _ in others if cost <= FAR * best]
    return max([best, *near])


def score_range(
    line: Floats, steps: Sequence[FrontStep], others: Sequence[float]
) -> tuple[float, float]:
    """The ends of the axis of scores, for a line, its models and others to compare with.

    What is free is often far below the rest; where it is shown, its standard error is, too.
    """
    reached = [step.test_score for step in steps if step.test_score is not None]
    beside = np.array([line[0], *reached, *others, *_band(steps[1:])])
    bottom, top = score_limits(line[1:] if len(line) > 1 else line, beside, PAD)
    ends = _band(steps[:1])
    if not ends or steps[0].score < bottom:
        return bottom, top
    pad = PAD * (top - bottom)
    return min(bottom, ends[0] - pad), max(top, ends[1] + pad)


def _band(steps: Sequence[FrontStep]) -> list[float]:
    """The ends of the standard errors."""
    known = [(step.score, step.error) for step in steps if step.error is not None]
    return [score + sign * error for score, error in known for sign in (-1, 1)]


def _draw_paths(ax: Axes, curve: TradeoffCurve) -> list[Line2D]:
    """Draw each model of the path as it grows; lines for the legend."""
    on_path = np.flatnonzero(~found_by_search(curve.points)).tolist()
    colours = shades(len(on_path), ax)
    lines = []
    for i, position in enumerate(on_path):
        chosen, rows = curve.points.iloc[position], curve.trace(position)
        look: dict[str, Any] = {
            "color": colours[i],
            "dashes": DASHES[i % len(DASHES)],
            "linewidth": 1.1,
            "drawstyle": "steps-post",
        }
        ax.plot(rows["cost"], rows["score"], **look)
        mark: dict[str, Any] = {"marker": MARKERS[i % len(MARKERS)], "markersize": 4.5}
        ax.plot(
            chosen["cost"], chosen["score"], color=colours[i], linestyle="none", zorder=4, **mark
        )
        lines.append(Line2D([], [], label=f"λ = {amount(chosen['tradeoff'], 2)}", **look, **mark))
    return [lines[i] for i in spread_over(len(lines), MOST_LEGEND_ENTRIES)]


def _draw_steps(
    ax: Axes,
    curve: TradeoffCurve,
    steps: Sequence[FrontStep],
    costs: Floats,
    scores: Floats,
    last: float,
) -> list[Any]:
    """Draw the best score for each budget; handles for the legend."""
    colour = main_colour(ax)
    look: dict[str, Any] = {"color": colour, "linewidth": 2.2, "drawstyle": "steps-post"}
    # The last step goes on to the end of the picture: a larger budget buys nothing more.
    end = max(last, ax.get_xlim()[1])
    ax.plot([*costs, end], [*scores, scores[-1]], zorder=3.5, **look)
    ax.plot(
        [step.cost for step in steps], [step.score for step in steps], linestyle="none",
        marker="o", markersize=5, color=colour, zorder=4,
    )  # fmt: skip
    named = "best for each budget"
    tested = [step for step in steps if step.test_score is not None]
    handles: list[Any] = [
        Line2D([], [], marker="o", markersize=5, label=f"{named} (validation rows)"
               if tested else named, **look)
    ]  # fmt: skip
    if all(step.error is not None for step in steps):
        # Between two of the steps, that of the cheaper one.
        last_step = np.searchsorted([step.cost for step in steps], costs, side="right") - 1
        errors = np.array([step.error for step in steps])[last_step]
        lower, upper = scores - errors, scores + errors
        ax.fill_between(
            [*costs, end], [*lower, lower[-1]], [*upper, upper[-1]], step="post",
            color=colour, alpha=0.2, linewidth=0, zorder=1,
        )  # fmt: skip
        handles.append(Patch(color=colour, alpha=0.3, label="± 1 standard error"))
    if tested:
        mark: dict[str, Any] = {"marker": "D", "markersize": 5, "markerfacecolor": "none",
                                "markeredgecolor": COLOURS[1], "linestyle": "none"}  # fmt: skip
        ax.plot(
            [s.cost for s in tested], np.array([s.test_score for s in tested]), zorder=4.5, **mark
        )
        handles.append(Line2D([], [], label="the same models, test rows", **mark))
    chosen = steps[recommended(steps)]
    ring: dict[str, Any] = {"marker": "o", "markersize": 13, "markerfacecolor": "none",
                            "markeredgecolor": ink_of(ax), "markeredgewidth": 1.6,
                            "linestyle": "none", "label": "recommended"}  # fmt: skip
    ax.plot([chosen.cost], [chosen.score], zorder=5, **ring)
    handles.append(Line2D([], [], **{**ring, "markersize": 9}))
    return handles


def _write_labels(
    ax: Axes,
    steps: Sequence[FrontStep],
    line: tuple[Floats, Floats],
    others: Collection[tuple[float, float]],
    labels: Sequence[Sequence[str]],
) -> None:
    """Say what steps add, those that matter most first."""
    placer = LabelPlacer(ax)
    costs, scores = line
    end = ax.get_xlim()[1]
    placer.avoid_line([*costs, end], [*scores, scores[-1]])
    placer.avoid_points([s.cost for s in steps], [s.score for s in steps], are_labelled=True)
    tested = [step for step in steps if step.test_score is not None]
    placer.avoid_points([s.cost for s in tested], [s.test_score or 0.0 for s in tested])
    placer.avoid_points([cost for cost, _ in others], [score for _, score in others], 11.0)
    placer.avoid_text(ax.texts)
    chosen = recommended(steps)
    gains = [0.0, *np.diff([step.score for step in steps]).tolist()]
    for i in sorted(range(1, len(steps)), key=lambda i: (i != chosen, -gains[i])):
        step, bold = steps[i], {"fontweight": "bold"} if i == chosen else {}
        for words in labels[i]:
            if placer.place(words, step.cost, step.score, **bold) is not None:
                break


def step_labels(curve: TradeoffCurve, steps: Sequence[FrontStep]) -> list[list[str]]:
    """What each step adds, in fewer and fewer words; none for those that gain next to nothing.

    The recommended one is called that where it has nothing else to be called by.
    """
    if not curve.models:  # traces that were read from a file know of no resources
        return [[] for _ in steps]
    costs = curve.models[0].costs_
    prices = dict(zip(map(str, costs.resource_names), costs.resource_costs.tolist(), strict=True))
    chosen = recommended(steps)
    gains = [0.0, *np.diff([step.score for step in steps]).tolist()]
    least = LITTLE * (max(step.score for step in steps) - steps[0].score)
    # Where rows pay for themselves, a step that only drops something asks more rows for the rest.
    by_row = is_by_row(curve)
    labels = [
        _phrases(step, prices) if i and not gains[i] < least and (step.adds or not by_row) else []
        for i, step in enumerate(steps)
    ]
    # What it adds may be little; that it is the one to take is not.
    labels[chosen] = labels[chosen] or ["recommended"]
    return labels


def _phrases(step: FrontStep, prices: Mapping[str, float]) -> list[str]:
    """What a step adds, without what is cheap beside the rest: tables have it."""
    changed = [prices.get(name, 0.0) for name in (*step.adds, *step.drops)]
    least = CHEAP * max(changed, default=0.0)
    adds, drops = (
        tuple(name for name in names if prices.get(name, 0.0) >= least)
        for names in (step.adds, step.drops)
    )
    step = replace(step, adds=adds, drops=drops)
    shortest = replace(step, drops=()).change(1) or step.change(1)
    phrases = [words for words in (step.change(2), step.change(1)) if len(words) <= LONGEST_LABEL]
    return list(dict.fromkeys([*phrases, short(shortest, LONGEST_LABEL)])) if shortest else []


def _draw_baselines(ax: Axes, others: Mapping[str, tuple[float, float]], unit: str) -> list[Line2D]:
    """Mark other models, or the height of those that cost far more; lines for the legend."""
    end = ax.get_xlim()[1]
    handles = []
    for i, (name, (cost, score)) in enumerate(others.items()):
        words = f"{short(name, 30)}: {rounded_score(score)} for {money(cost, unit)}"
        colour = ink_of(ax) if name == PRICES_IGNORED else COLOURS[2 + i % 3]
        look: dict[str, Any] = {"marker": "X", "markersize": 9, "linestyle": "none"}
        if cost <= end:  # below the points of the line, which are smaller
            ax.plot([cost], [score], color=colour, zorder=3.8, **look)
        else:
            look = {"linewidth": 0.9, "dashes": (1, 2)}
            ax.axhline(score, color=colour, zorder=1, **look)
        handles.append(Line2D([], [], color=colour, label=words, **look))
    return handles


def compare_curves(curves: Mapping[str, Any], ax: Axes | None = None) -> Axes:
    """Draw the curves of several methods, whose costs are computed by the same rules.

    Parameters
    ----------
    curves : mapping from name to TradeoffCurve, or to DataFrame with columns cost and score
        Of a TradeoffCurve, the chosen iterations are drawn. Test scores are used if all have them
        (a column test_score).
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes
    """
    if not curves:
        raise ValueError("curves must have at least one entry")
    tables = {name: getattr(curve, "points", curve) for name, curve in curves.items()}
    tested = all("test_score" in table for table in tables.values())
    score = "test_score" if tested else "score"
    for name, table in tables.items():
        missing = [column for column in ("cost", score) if column not in table]
        if missing:
            raise ValueError(f"curve {name!r} has no column {missing[0]!r}")
    ax = drawn_axes(ax)
    lines = []
    for i, (name, table) in enumerate(tables.items()):
        rows = table.sort_values("cost", kind="stable")
        lines += ax.plot(
            rows["cost"].to_numpy(float),
            rows[score].to_numpy(float),
            color=COLOURS[i % len(COLOURS)],
            marker=MARKERS[i % len(MARKERS)],
            dashes=DASHES[i % len(DASHES)] if i else (),
            markersize=5,
            linewidth=1.4,
            label=str(name),
        )
    cost_axis(ax, [table["cost"] for table in tables.values()], _shared(curves, "cost_unit"))
    label_score(ax, _shared(curves, "scoring") or "score", "test" if tested else "")
    add_legend(ax, lines)
    return ax


def _shared(curves: Mapping[str, Any], attribute: str) -> str:
    """What all curves that tell it agree on."""
    said = {getattr(curve, attribute, None) for curve in curves.values()} - {None}
    return str(said.pop()) if len(said) == 1 else ""
