"""Score against cost: one curve, or those of several methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from greedymiser.plotting.axes import (
    DASHES,
    MARKERS,
    add_legend,
    cost_axis,
    drawn_axes,
    focus,
    found_by_search,
    is_narrow,
    label_score,
    note_below,
    score_column,
    shades,
    spread_over,
)
from greedymiser.plotting.looks import (
    COLOURS,
    ink_of,
    number,
)

if TYPE_CHECKING:
    from greedymiser.curve.curve import TradeoffCurve

MOST_LEGEND_ENTRIES = 10


def plot_curve(curve: TradeoffCurve, ax: Axes | None = None) -> Axes:
    """Draw the score that each cost buys, as in Figure 1 (left) of the paper.

    One dashed trace per tradeoff shows the model as trees are added. The iterations with the best
    validation score are circled and joined. Where there was a search, what it has found are stars,
    and a line of steps shows the model that validation picks for each budget. Test scores are drawn
    where the curve has them. Traces begin with a constant; where its score is so low that the
    models could not be told apart any more, it is told in words.

    Parameters
    ----------
    curve : TradeoffCurve
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes
    """
    ax = drawn_axes(ax)
    points, traces = curve.points, curve.traces
    score = score_column(points)
    found = found_by_search(points)
    path = np.flatnonzero(~found)
    colours = shades(len(path), ax)
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
    cost_axis(ax, [traces["cost"], points["cost"]], curve.cost_unit)
    focus(ax, points[score].to_numpy(float), traces[score].to_numpy(float))
    note_below(ax, traces.loc[traces["n_iter"] == 0, score].min(), "a constant")
    label_score(ax, curve.scoring, score)
    shown = spread_over(len(lines), MOST_LEGEND_ENTRIES - 2 * is_narrow(ax))
    title = "tradeoff λ" + (f" ({len(shown)} of {len(lines)})" if len(shown) < len(lines) else "")
    add_legend(ax, [*(lines[i] for i in shown), *bests], title)
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
    label_score(ax, _shared(curves, "scoring") or "score", score if tested else "")
    add_legend(ax, lines, None)
    return ax


def _shared(curves: Mapping[str, Any], attribute: str) -> str:
    """What all curves that tell it agree on."""
    said = {getattr(curve, attribute, None) for curve in curves.values()} - {None}
    return str(said.pop()) if len(said) == 1 else ""
