"""Pictures of the trade-off: the curve, the features behind it, a receipt, a comparison.

The only importer of matplotlib. Every function draws into ``ax``, or into a figure of its own that
pyplot does not know of, and returns the Axes: ``plot_curve(curve).figure.savefig("curve.png")``.
What a colour says is also said by a marker and a line style, and the colours suit light and dark
backgrounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation
from numpy.typing import ArrayLike, NDArray

from greedymiser.plotting.looks import COLOURS, figure_of, ink_of, number, plain, short
from greedymiser.plotting.protocols import ProtocolDisplay
from greedymiser.score_names import score_name
from greedymiser.serving import as_predictor

if TYPE_CHECKING:
    from greedymiser.tradeoff import TradeoffCurve

__all__ = ["ProtocolDisplay", "compare_curves", "plot_curve", "plot_features", "plot_receipt"]

Floats = NDArray[np.float64]

# Told apart without colour. Their numbers have no common divisor, so pairs rarely repeat.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
DASHES = ((4, 1.6), (1.2, 1.4), (7, 1.6), (4, 1.4, 1.2, 1.4))

MOST_LEGEND_ENTRIES = 10
MOST_COST_GROUPS = 8
MOST_LABELS = 15
LONGEST_NAME = 24


def plot_curve(curve: TradeoffCurve, ax: Axes | None = None) -> Axes:
    """Draw the score that each cost buys, as in Figure 1 (left) of the paper.

    One dashed trace per tradeoff shows the model as trees are added. The iterations with the best
    validation score are circled and joined. Where there was a search, what it has found are stars,
    and a line of steps shows the model that validation picks for each budget. Test scores are drawn
    where the curve has them.

    Parameters
    ----------
    curve : TradeoffCurve
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes
    """
    ax = _axes(ax)
    points, traces = curve.points, curve.traces
    score = _score_column(points)
    found = _found_by_search(points)
    path = np.flatnonzero(~found)
    colours = _scale(len(path), ax)
    lines = []
    for i, position in enumerate(path.tolist()):
        chosen, rows = points.iloc[position], curve.trace(position)
        look: dict[str, Any] = {
            "color": colours[i],
            "dashes": DASHES[i % len(DASHES)],
            "linewidth": 1.3,
        }
        ax.plot(rows["cost"], rows[score], **look)
        mark: dict[str, Any] = {"marker": MARKERS[i % len(MARKERS)], "markersize": 4.5}
        ax.plot(chosen["cost"], chosen[score], color=colours[i], linestyle="none", zorder=4, **mark)
        lines.append(Line2D([], [], label=number(chosen["tradeoff"], 3), **look, **mark))
    bests = _add_bests(ax, curve, score, found)
    _cost_axis(ax, [traces["cost"], points["cost"]], curve.cost_unit)
    _focus(ax, points[score].to_numpy(float), traces[score].to_numpy(float))
    _label_score(ax, curve.scoring, score)
    shown = _spread_over(len(lines), MOST_LEGEND_ENTRIES - 2 * _is_narrow(ax))
    title = "tradeoff λ" + (f" ({len(shown)} of {len(lines)})" if len(shown) < len(lines) else "")
    _legend(ax, [*(lines[i] for i in shown), *bests], title)
    return ax


def _add_bests(
    ax: Axes, curve: TradeoffCurve, score: str, found: NDArray[np.bool_]
) -> list[Line2D]:
    """Draw the best iterations, and what a search has found; lines for the legend."""
    ink, on_path = ink_of(ax), curve.points[~found]
    circle: dict[str, Any] = {
        "color": ink,
        "marker": "o",
        "markersize": 9.5,
        "markerfacecolor": "none",
        "linewidth": 1.1,
        "linestyle": "none" if found.any() else "-",
        "label": "best iteration",
    }
    ax.plot(on_path["cost"], on_path[score], markeredgewidth=1.2, zorder=3, **circle)
    bests = [Line2D([], [], **circle)]
    if not found.any():
        return bests
    star: dict[str, Any] = {
        "color": COLOURS[1],
        "marker": "*",
        "markersize": 11,
        "markeredgecolor": ink,
        "markeredgewidth": 0.6,
        "linestyle": "none",
        "label": "found by search",
    }
    sets, front = curve.points[found], curve.pareto()
    ax.plot(sets["cost"], sets[score], zorder=5, **star)
    # A model is there for every budget up to the next one's cost.
    steps: dict[str, Any] = {"color": ink, "linewidth": 1.6, "label": "best for each budget"}
    costs = [*front["cost"], curve.traces["cost"].max()]
    scores = [*front[score], front[score].iloc[-1]]
    ax.plot(costs, scores, drawstyle="steps-post", zorder=3.5, **steps)
    return [*bests, Line2D([], [], **star), Line2D([], [], **steps)]


def _found_by_search(points: Any) -> NDArray[np.bool_]:
    """Which points of a curve are not of its path."""
    if "found_by" not in points:
        return np.zeros(len(points), dtype=bool)
    return np.asarray(points["found_by"] == "search")


def plot_features(curve: TradeoffCurve, ax: Axes | None = None) -> Axes:
    """Draw which share of the features of each price is bought, as in Figure 2 of the paper.

    Only models of the path are drawn. Features are grouped by what they cost at first, before
    anything is bought. Where there are too many prices, neighbours share a group. The legend tells
    how many features a group has.

    Parameters
    ----------
    curve : TradeoffCurve
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes
    """
    ax = _axes(ax)
    on_path = np.flatnonzero(~_found_by_search(curve.points)).tolist()
    points = curve.points.iloc[on_path]
    used = [
        curve.models[i].truncate(int(n_iter)).ensemble_.features
        for i, n_iter in zip(on_path, points["n_iter"], strict=True)
    ]
    groups = _price_groups(curve.models[0].costs_.prices())
    place = np.arange(len(points))
    colours = _scale(len(groups), ax)
    lines = []
    for i, (label, members) in enumerate(groups.items()):
        shares = [len(members.intersection(features)) / len(members) for features in used]
        # Side by side, so that groups with the same share do not hide each other.
        shift = 0.4 * (i - (len(groups) - 1) / 2) / MOST_COST_GROUPS
        lines += ax.plot(
            place + shift,
            shares,
            color=colours[i],
            dashes=DASHES[i % len(DASHES)] if i else (),
            linewidth=1.2,
            marker=MARKERS[i],
            markersize=5,
            label=f"{label} ({len(members)})",
        )
    shown = _spread_over(len(points), 8)
    labels = [number(points["tradeoff"].iloc[i], 3) for i in shown]
    slant: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
    ax.set_xticks(place[shown], labels, **(slant if sum(map(len, labels)) > 24 else {}))
    ax.set_xlim(-0.5, len(points) - 0.5)
    ax.set_ylim(-0.04, 1.04)
    ax.set_xlabel("tradeoff λ")
    ax.set_ylabel("share bought")
    _legend(ax, lines, "price" + (f" in {curve.cost_unit}" if curve.cost_unit else ""))
    return ax


def plot_receipt(
    model: Any, curve_or_scores: TradeoffCurve | ArrayLike | None = None, ax: Axes | None = None
) -> Axes:
    """Draw what a model bought, when, at what price, and the score that it had after each round.

    The dearest purchases are named beside the staircase. Where scores are known, a second panel
    under it shows them.

    Parameters
    ----------
    model : fitted estimator
    curve_or_scores : TradeoffCurve or array-like of shape (n_iter + 1,), optional
        Scores by round, entry 0 that of the constant model; a curve has those of its models. By
        default ``model.validation_score_``, if the model was fitted with validation data.
    ax : matplotlib Axes, optional
        It gives part of its room to the scores.

    Returns
    -------
    matplotlib Axes
        The one with the staircase.
    """
    ax = _axes(ax)
    ink, n_iter, lines = ink_of(ax), model.n_iter_, list(model.receipt())
    scores, name, unit = _scores_by_round(model, curve_or_scores)
    # A purchase of iteration t is there after t + 1 rounds.
    rounds = [0, *(line.iteration + 1 for line in lines), n_iter]
    spent = [0.0, *(line.spent for line in lines), lines[-1].spent if lines else 0.0]
    ax.step(rounds, spent, where="post", color=ink, linewidth=1.4, label="features")
    ax.plot(rounds[1:-1], spent[1:-1], "o", color=COLOURS[1], markersize=4, zorder=3)
    if model.costs_.tree_cost:
        _add_trees(ax, model, rounds, spent)
    ax.set_xlim(-0.02 * max(n_iter, 1), 1.01 * max(n_iter, 1))
    ax.set_ylim(0, 1.06 * ax.dataLim.y1 or 1.0)
    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    ax.yaxis.set_major_formatter(lambda value, _: number(value))
    plain(ax.set_ylabel("spent" + (f" ({unit})" if unit else "")))
    bottom = ax
    if len(scores):
        bottom = _panel_below(ax)
        bottom.plot(np.arange(len(scores)), scores, color=COLOURS[0], linewidth=1.4,
                    marker="o" if len(scores) == 1 else None)  # fmt: skip
        for when in {*rounds[1:-1]}:
            bottom.axvline(when, color=ink, alpha=0.25, linewidth=0.7)
        plain(bottom.set_ylabel(name))
    bottom.set_xlabel("rounds")
    if lines:
        _name_purchases(ax, [ax, bottom] if bottom is not ax else [ax], lines)
    else:
        ax.text(0.5, 0.5, "nothing bought", transform=ax.transAxes, ha="center", va="center")
    return ax


def compare_curves(curves: Mapping[str, Any], ax: Axes | None = None) -> Axes:
    """Draw the curves of several methods, measured with one meter.

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
    ax = _axes(ax)
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
    _cost_axis(ax, [table["cost"] for table in tables.values()], _shared(curves, "cost_unit"))
    _label_score(ax, _shared(curves, "scoring") or "score", score if tested else "")
    _legend(ax, lines, None)
    return ax


# -- words and numbers ------------------------------------------------------------------------


def _score_column(table: Any) -> str:
    return "test_score" if "test_score" in table else "score"


def _shared(curves: Mapping[str, Any], attribute: str) -> str:
    """What all curves that tell it agree on."""
    said = {getattr(curve, attribute, None) for curve in curves.values()} - {None}
    return str(said.pop()) if len(said) == 1 else ""


def _spread_over(n: int, most: int) -> list[int]:
    """Positions of at most ``most`` out of n, evenly, with the first and the last."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int)).tolist()


def _price_groups(prices: Floats) -> dict[str, set[int]]:
    """Features by initial price, cheapest first; prices that are many share groups."""
    found, group = np.unique(prices.round(9), return_inverse=True)
    groups: dict[str, set[int]] = {}
    if len(found) <= MOST_COST_GROUPS:
        for i, price in enumerate(found):
            # Prices that read the same are the same to the reader.
            groups.setdefault(number(price), set()).update(np.flatnonzero(group == i).tolist())
        return groups
    edges = np.quantile(prices, np.linspace(0, 1, MOST_COST_GROUPS + 1)[1:-1])
    group = np.searchsorted(np.unique(edges), prices, side="left")
    for i in np.unique(group):
        members = np.flatnonzero(group == i)
        ends = [number(prices[members].min()), number(prices[members].max())]
        label = "–".join(dict.fromkeys(ends))  # noqa: RUF001
        groups.setdefault(label, set()).update(members.tolist())
    return groups


def _scores_by_round(model: Any, given: Any) -> tuple[Floats, str, str]:
    """Scores after 0, 1, ... rounds, what they are called, and the unit of cost."""
    if given is None:
        scores = np.asarray(getattr(model, "validation_score_", ()), dtype=float)
        name = score_name(model.scoring, as_predictor(model).loss)
        return scores[: model.n_iter_ + 1], f"validation\n{name}", ""
    if not hasattr(given, "traces"):
        return np.asarray(given, dtype=float)[: model.n_iter_ + 1], "score", ""
    traces = given.trace(_position_of(model, given))
    column = _score_column(traces)
    scores = np.full(model.n_iter_ + 1, np.nan)
    rows = traces[traces["n_iter"] <= model.n_iter_]
    scores[rows["n_iter"].to_numpy(int)] = rows[column]
    kind = "test" if column == "test_score" else "validation"
    return scores, f"{kind}\n{given.scoring}", given.cost_unit


def _position_of(model: Any, curve: TradeoffCurve) -> int:
    """Which of a curve's models a model was cut from."""
    same = np.flatnonzero(curve.points["tradeoff"] == model.tradeoff).tolist()
    if not same:
        raise ValueError(f"the curve has no model with tradeoff={model.tradeoff}")
    nodes = model.ensemble_.nodes
    for i in same if len(same) > 1 else ():
        ensemble = curve.models[i].ensemble_
        if np.array_equal(ensemble.nodes[: len(nodes)]["value"], nodes["value"]):
            return int(i)
    return int(same[0])


# -- axes -------------------------------------------------------------------------------------


def _axes(ax: Axes | None) -> Axes:
    if ax is None:
        ax = Figure(figsize=(7.5, 4.5), layout="constrained").add_subplot()
    ax.grid(alpha=0.25, linewidth=0.6)
    ax.set_axisbelow(True)
    return ax


def _is_narrow(ax: Axes) -> bool:
    """Whether there is no room for a legend beside the axes."""
    return bool(ax.get_window_extent().width / figure_of(ax).dpi < 4.5)


def _scale(n: int, ax: Axes) -> Floats:
    """Colours from the first to the last of n, that stand out from the background."""
    dark = np.dot(to_rgb(ax.get_facecolor()), (0.3, 0.59, 0.11)) < 0.5
    ends = (0.3, 1.0) if dark else (0.0, 0.78)
    return matplotlib.colormaps["viridis"](np.linspace(*ends, max(n, 2))[:n])


def _cost_axis(ax: Axes, costs: Iterable[ArrayLike], unit: str) -> None:
    """Label the axis, and make it logarithmic where costs span more than a decade."""
    values = np.concatenate([np.asarray(cost, dtype=float) for cost in costs])
    positive = values[values > 0]
    plain(ax.set_xlabel("cost of one prediction" + (f" ({unit})" if unit else "")))
    if not len(positive):
        ax.set_xlim(-0.05, 1)
    if not len(positive) or positive.max() <= 10 * positive.min():
        return
    low, high = positive.min(), positive.max()
    ticks = _log_ticks(low, high)
    if len(positive) == len(values):
        ax.set_xscale("log")
        ax.set_xlim(low / 1.15, high * 1.15)
    else:  # zero has no logarithm: a short linear stretch leads to the cheapest
        ax.set_xscale("symlog", linthresh=low, linscale=0.35)
        ax.set_xlim(-0.12 * low, high * 1.15)
        ticks = [0.0, *ticks]
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_major_formatter(FixedFormatter([number(tick, 1) for tick in ticks]))
    ax.xaxis.set_minor_locator(NullLocator())


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, with 2 and 5 times them where there is room."""
    first, last = int(np.floor(np.log10(low))), int(np.floor(np.log10(high)))
    decades = range(first, last + 1, -(-(last - first) // 6) or 1)
    steps = (1, 2, 5) if np.log10(high / low) < 2.5 else (1,)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    return [tick for tick in ticks if low <= tick * (1 + 1e-9) and tick <= high * 1.15]


def _label_score(ax: Axes, scoring: str, column: str) -> None:
    kind = {"test_score": "test", "score": "validation"}.get(column)
    words = [kind, scoring] if kind else [scoring]
    narrow = _is_narrow(ax)
    size = "small" if narrow else matplotlib.rcParams["axes.labelsize"]
    plain(ax.set_ylabel(("\n" if narrow else " ").join(words), fontsize=size))


def _focus(ax: Axes, chosen: Floats, all_scores: Floats) -> None:
    """Show the chosen scores in full, and as much of what is far below them as fits."""
    chosen, all_scores = chosen[np.isfinite(chosen)], all_scores[np.isfinite(all_scores)]
    if not len(chosen) or np.ptp(chosen) == 0:
        return
    low = max(all_scores.min(), chosen.min() - 0.5 * np.ptp(chosen))
    high = max(all_scores.max(), chosen.max())
    pad = 0.06 * (high - low)
    ax.set_ylim(low - pad, high + pad)


def _legend(ax: Axes, handles: Sequence[Any], title: str | None) -> None:
    """Put a legend where it covers no data: beside the axes, or below them if they are narrow."""
    figure, box = figure_of(ax), ax.get_window_extent()
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.015, 1), "handlelength": 2.8}
    columns, size = [1], matplotlib.rcParams["legend.fontsize"]
    narrow = _is_narrow(ax)
    if narrow:
        # Below the tick labels and the label of the axis, however high the axes are.
        told = ax.xaxis.get_tightbbox()  # None if the axis is hidden
        labels = 0.0 if told is None else told.y0 - box.y0
        drop = ScaledTranslation(0, labels / figure.dpi - 0.06, figure.dpi_scale_trans)
        place = {
            "loc": "upper center",
            "bbox_to_anchor": (0.5, 0),
            "bbox_transform": ax.transAxes + drop,
            "handlelength": 2.3,
            "handletextpad": 0.5,
            "columnspacing": 0.8,
            "borderpad": 0,
        }
        columns, size = [4, 3, 2, 1], "small"
    for ncols in columns:
        legend = ax.legend(
            handles=handles, title=title, ncols=ncols, fontsize=size, title_fontsize=size,
            frameon=False, borderaxespad=0, **place,
        )  # fmt: skip
        for text in (*legend.get_texts(), legend.get_title()):
            plain(text)
        room = legend.get_window_extent()
        if room.width <= box.width:
            break
    if figure.get_layout_engine() is None:
        if narrow:
            _shrink([ax], bottom=max(room.height, figure.bbox.y0 - room.y0) / figure.bbox.height)
        else:
            _shrink([ax], right=(room.x1 - box.x1) / figure.bbox.width)


def _shrink(axes: Iterable[Axes], right: float = 0.0, bottom: float = 0.0) -> None:
    """Take room, in parts of the figure, from axes that no layout engine cares for."""
    for ax in axes:
        box = ax.get_position()
        width, height = max(box.width - right, 0.05), max(box.height - bottom, 0.05)
        ax.set_position((box.x0, box.y1 - height, width, height))


def _panel_below(ax: Axes) -> Axes:
    """Give the lower third of an Axes to a new one that shares its rounds."""
    spec, figure = ax.get_subplotspec(), ax.figure
    if spec is not None:
        grid = spec.subgridspec(2, 1, height_ratios=(2, 1), hspace=0.08)
        ax.set_subplotspec(grid[0])
        panel = figure.add_subplot(grid[1], sharex=ax, facecolor=ax.get_facecolor())
    else:
        box = ax.get_position()
        ax.set_position((box.x0, box.y0 + 0.37 * box.height, box.width, 0.63 * box.height))
        lower = (box.x0, box.y0, box.width, 0.32 * box.height)
        panel = figure.add_axes(lower, sharex=ax, facecolor=ax.get_facecolor())
    ax.tick_params(labelbottom=False)
    panel.grid(alpha=0.25, linewidth=0.6)
    panel.yaxis.set_major_locator(MaxNLocator(4))
    return panel


# -- the receipt ------------------------------------------------------------------------------


def _add_trees(ax: Axes, model: Any, rounds: list[int], spent: list[float]) -> None:
    """Draw the whole cost, trees included, above what features cost."""
    every = np.arange(model.n_iter_ + 1)
    features = np.asarray(spent)[np.searchsorted(rounds, every, side="right") - 1]
    trees = model.costs_.tree_cost * model.ensemble_.n_outputs * every
    look = {"color": COLOURS[0], "dashes": DASHES[0], "linewidth": 1.2}
    ax.step(every, features + trees, where="post", label="features and trees", **look)
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, ncols=2, frameon=False)


def _name_purchases(ax: Axes, axes: Sequence[Axes], lines: Sequence[Any]) -> None:
    """Name the dearest purchases in a column beside the staircase, one under the other.

    The staircase only rises, so a line from a step to the right meets nothing on its way.
    """
    figure, ink = figure_of(ax), ink_of(ax)
    longest = int(np.clip(3.4 * ax.get_window_extent().width / figure.dpi, 8, LONGEST_NAME))
    dearest = sorted(lines, key=lambda line: -line.price)[:MOST_LABELS]
    named = sorted(dearest, key=lambda line: line.spent)
    labels = [
        ax.annotate(
            f"{short(line.feature, longest)}  +{number(line.price)}",
            xy=(1, line.spent),
            xycoords=ax.get_yaxis_transform(),
            xytext=(1.04, 0.5),
            textcoords="axes fraction",
            va="center",
            fontsize="small",
            annotation_clip=False,
            parse_math=False,
            arrowprops={"arrowstyle": "-", "color": ink, "alpha": 0.4, "linewidth": 0.6,
                        "shrinkA": 1, "shrinkB": 0, "relpos": (0, 0.5)},
        )
        for line in named
    ]  # fmt: skip
    if figure.get_layout_engine() is None:
        widest = max(label.get_window_extent().x1 for label in labels)
        _shrink(axes, right=(widest - ax.get_window_extent().x1) / figure.bbox.width)
    figure.draw_without_rendering()  # only now the layout is settled, and heights are known

    height = ax.get_window_extent().height
    line_height = 1.1 * max(Text.get_window_extent(label).height for label in labels)
    fitting = max(1, int(height / line_height))
    kept = {id(line) for line in dearest[:fitting]}
    shown = [i for i, line in enumerate(named) if id(line) in kept]
    for i, label in enumerate(labels):
        if i not in shown:
            label.remove()
    heights = ax.get_ylim()[1]
    wanted = np.array([named[i].spent / heights * height for i in shown])
    for i, y in zip(shown, _spread_out(wanted, line_height, height), strict=True):
        labels[i].set_position((1.04, y / height))
        ax.hlines(
            named[i].spent, named[i].iteration + 1, ax.get_xlim()[1],
            color=ink, alpha=0.4, linewidth=0.6, zorder=1,
        )  # fmt: skip


def _spread_out(wanted: Floats, gap: float, top: float) -> Floats:
    """Move ascending heights apart until each has its gap, and all lie between 0 and top."""
    placed = np.maximum(wanted, gap / 2)
    for i in range(1, len(placed)):
        placed[i] = max(placed[i], placed[i - 1] + gap)
    placed[-1] = min(placed[-1], top - gap / 2)
    for i in range(len(placed) - 2, -1, -1):
        placed[i] = min(placed[i], placed[i + 1] - gap)
    return placed
