"""What a model bought, when, at what price."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from greedymiser._core.amounts import plain_score_name
from greedymiser.model.predictor import as_predictor
from greedymiser.plotting.axes import (
    DASHES,
    Floats,
    drawn_axes,
    panel_below,
    shrink,
)
from greedymiser.plotting.style import (
    COLOURS,
    figure_of,
    ink_of,
    number,
    short,
    without_math,
)
from greedymiser.scoring.names import score_name

if TYPE_CHECKING:
    from greedymiser.curve.curve import TradeoffCurve

MOST_LABELS = 15
LONGEST_NAME = 24
# Letters of a line beside the panel of scores, which is a third as high as the picture.
LONGEST_LABEL = 20


def plot_receipt(
    model: Any, curve_or_scores: TradeoffCurve | ArrayLike | None = None, ax: Axes | None = None
) -> Axes:
    """Draw what a model bought, when, at what price, and the score that it had after each round.

    The most expensive purchases are named beside the line of costs. Where scores are known, a
    second panel below shows them.

    Parameters
    ----------
    model : fitted estimator
    curve_or_scores : TradeoffCurve or array-like of shape (n_iter + 1,), optional
        Scores by round, entry 0 that of the constant model; a curve has those of its models. By
        default ``model.validation_score_``, if the model was fitted with validation data.
    ax : matplotlib Axes, optional
        Part of its area is used for the scores.

    Returns
    -------
    matplotlib Axes
        The one with the costs.
    """
    ax = drawn_axes(ax)
    ink, n_iter, lines = ink_of(ax), model.n_iter_, list(model.receipt())
    scores, name, unit = _scores_by_round(model, curve_or_scores)
    # A purchase of iteration t is there after t + 1 rounds.
    rounds = [0, *(line.iteration + 1 for line in lines), n_iter]
    spent = [0.0, *(line.spent for line in lines), lines[-1].spent if lines else 0.0]
    ax.step(rounds, spent, where="post", color=ink, linewidth=1.4, label="features")
    ax.plot(rounds[1:-1], spent[1:-1], "o", color=COLOURS[1], markersize=4, zorder=3)
    if model.costs_.tree_cost:
        _draw_with_trees(ax, model, rounds, spent)
    ax.set_xlim(-0.02 * max(n_iter, 1), 1.01 * max(n_iter, 1))
    top = 1.06 * ax.dataLim.y1 or 1.0
    ax.set_ylim(-0.02 * top, top)  # the stairs begin at 0, and are seen to
    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    ax.yaxis.set_major_formatter(lambda value, _: number(value))
    without_math(ax.set_ylabel("spent" + (f" ({unit})" if unit else "")))
    bottom = ax
    if len(scores):
        bottom = panel_below(ax)
        bottom.plot(np.arange(len(scores)), scores, color=COLOURS[0], linewidth=1.4,
                    marker="o" if len(scores) == 1 else None)  # fmt: skip
        for when in {*rounds[1:-1]}:
            bottom.axvline(when, color=ink, alpha=0.25, linewidth=0.7)
        _label_panel(bottom, name)
    bottom.set_xlabel("rounds")
    if lines:
        _name_purchases(ax, [ax, bottom] if bottom is not ax else [ax], lines)
    else:
        ax.text(0.5, 0.5, "nothing bought", transform=ax.transAxes, ha="center", va="center")
    return ax


def _label_panel(panel: Axes, name: str) -> None:
    """Name a score in lines that are no longer than the panel is high."""
    lines: list[str] = []
    for line in name.splitlines():
        lines += wrap(line, LONGEST_LABEL, break_long_words=False)
    size = "small" if len(lines) > 2 else rcParams["axes.labelsize"]
    without_math(panel.set_ylabel("\n".join(lines), fontsize=size))


def _scores_by_round(model: Any, curve_or_scores: Any) -> tuple[Floats, str, str]:
    """Scores after 0, 1, ... rounds, what they are called, and the unit of cost."""
    if curve_or_scores is None:
        scores = np.asarray(getattr(model, "validation_score_", ()), dtype=float)
        name = score_name(model.scoring, as_predictor(model).loss)
        return scores[: model.n_iter_ + 1], f"validation\n{plain_score_name(name)}", ""
    if not hasattr(curve_or_scores, "traces"):
        return np.asarray(curve_or_scores, dtype=float)[: model.n_iter_ + 1], "score", ""
    traces = curve_or_scores.trace(_position_of(model, curve_or_scores))
    column = "test_score" if "test_score" in traces else "score"
    scores = np.full(model.n_iter_ + 1, np.nan)
    rows = traces[traces["n_iter"] <= model.n_iter_]
    scores[rows["n_iter"].to_numpy(int)] = rows[column]
    kind = "test" if column == "test_score" else "validation"
    return scores, f"{kind}\n{plain_score_name(curve_or_scores.scoring)}", curve_or_scores.cost_unit


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


def _draw_with_trees(ax: Axes, model: Any, rounds: list[int], spent: list[float]) -> None:
    """Draw the whole cost, trees included, above what features cost."""
    every = np.arange(model.n_iter_ + 1)
    features = np.asarray(spent)[np.searchsorted(rounds, every, side="right") - 1]
    trees = model.costs_.tree_cost * model.ensemble_.n_outputs * every
    look = {"color": COLOURS[0], "dashes": DASHES[0], "linewidth": 1.2}
    ax.step(every, features + trees, where="post", label="features and trees", **look)
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, ncols=2, frameon=False)


def _name_purchases(ax: Axes, axes: Sequence[Axes], lines: Sequence[Any]) -> None:
    """Name the most expensive purchases in a column beside the staircase, one under the other.

    The staircase only rises, so a line from a step to the right meets nothing on its way.
    """
    figure, ink = figure_of(ax), ink_of(ax)
    longest = int(np.clip(3.4 * ax.get_window_extent().width / figure.dpi, 8, LONGEST_NAME))
    costliest = sorted(lines, key=lambda line: -line.price)[:MOST_LABELS]
    named = sorted(costliest, key=lambda line: line.spent)
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
        shrink(axes, right=(widest - ax.get_window_extent().x1) / figure.bbox.width)
    figure.draw_without_rendering()  # only now the layout is settled, and heights are known

    height = ax.get_window_extent().height
    line_height = 1.1 * max(Text.get_window_extent(label).height for label in labels)
    fitting = max(1, int(height / line_height))
    kept = {id(line) for line in costliest[:fitting]}
    shown = [i for i, line in enumerate(named) if id(line) in kept]
    for i, label in enumerate(labels):
        if i not in shown:
            label.remove()
    low, high = ax.get_ylim()
    wanted = np.array([(named[i].spent - low) / (high - low) * height for i in shown])
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
