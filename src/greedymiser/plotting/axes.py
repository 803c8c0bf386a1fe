"""Axes, scales and legends: what the pictures of curves and receipts share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation
from numpy.typing import ArrayLike, NDArray

from greedymiser.plotting.looks import figure_of, number, without_math

Floats = NDArray[np.float64]

# Told apart without colour. Their numbers have no common divisor, so pairs rarely repeat.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
DASHES = ((4, 1.6), (1.2, 1.4), (7, 1.6), (4, 1.4, 1.2, 1.4))

# Inches of a figure of our own.
SIZE = (7.5, 4.5)


def score_column(table: Any) -> str:
    """The column of scores to draw: of test data where there are some."""
    return "test_score" if "test_score" in table else "score"


def found_by_search(points: Any) -> NDArray[np.bool_]:
    """Which points of a curve are not of its path."""
    if "found_by" not in points:
        return np.zeros(len(points), dtype=bool)
    return np.asarray(points["found_by"] == "search")


def spread_over(n: int, most: int) -> list[int]:
    """Positions of at most ``most`` out of n, evenly, with the first and the last."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int)).tolist()


def drawn_axes(ax: Axes | None) -> Axes:
    """The Axes to draw into, with a grid; in a figure of their own if there are none."""
    if ax is None:
        ax = Figure(figsize=SIZE, layout="constrained").add_subplot()
    ax.grid(alpha=0.25, linewidth=0.6)
    ax.set_axisbelow(True)
    return ax


def is_narrow(ax: Axes) -> bool:
    """Whether there is no room for a legend beside the axes."""
    return bool(ax.get_window_extent().width / figure_of(ax).dpi < 4.5)


def shades(n: int, ax: Axes) -> Floats:
    """Colours from the first to the last of n that stand out from the background."""
    dark = np.dot(to_rgb(ax.get_facecolor()), (0.3, 0.59, 0.11)) < 0.5
    ends = (0.3, 1.0) if dark else (0.0, 0.78)
    return matplotlib.colormaps["viridis"](np.linspace(*ends, max(n, 2))[:n])


def cost_axis(ax: Axes, costs: Iterable[ArrayLike], unit: str) -> None:
    """Label the axis, and make it logarithmic where costs span more than a decade."""
    values = np.concatenate([np.asarray(cost, dtype=float) for cost in costs])
    positive = values[values > 0]
    without_math(ax.set_xlabel("cost of one prediction" + (f" ({unit})" if unit else "")))
    if not len(positive):
        ax.set_xlim(-0.05, 1)
    if not len(positive) or positive.max() <= 10 * positive.min():
        return
    low, high = positive.min(), positive.max()
    ticks = _log_ticks(low, high)
    # Room for the marks of the cheapest and the dearest, however many decades there are.
    beside = max(1.15, (high / low) ** 0.03)
    if len(positive) == len(values):
        ax.set_xscale("log")
        ax.set_xlim(low / beside, high * beside)
    else:  # zero has no logarithm: a short linear stretch leads to the cheapest
        ax.set_xscale("symlog", linthresh=low, linscale=0.35)
        # Matplotlib draws the stretch from 0 as long as so many decades.
        stretch = 0.35 / 0.9
        width = stretch + np.log10(high * beside / low)
        ax.set_xlim(-min(1.0, 0.035 * width / stretch) * low, high * beside)
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


def label_score(ax: Axes, scoring: str, column: str) -> None:
    """Name the score, and the data that it is of."""
    kind = {"test_score": "test", "score": "validation"}.get(column)
    words = [kind, scoring] if kind else [scoring]
    narrow = is_narrow(ax)
    size = "small" if narrow else matplotlib.rcParams["axes.labelsize"]
    without_math(ax.set_ylabel(("\n" if narrow else " ").join(words), fontsize=size))


def focus(ax: Axes, chosen: Floats, all_scores: Floats) -> None:
    """Show the chosen scores in full, and as much of what is far below them as fits."""
    chosen, all_scores = chosen[np.isfinite(chosen)], all_scores[np.isfinite(all_scores)]
    if not len(chosen) or np.ptp(chosen) == 0:
        return
    low = max(all_scores.min(), chosen.min() - np.ptp(chosen))
    high = max(all_scores.max(), chosen.max())
    pad = 0.06 * (high - low)
    ax.set_ylim(low - pad, high + pad)


def note_below(ax: Axes, score: float, what: str) -> None:
    """Tell a score that the picture has no room for: without it, nobody knows how low traces go."""
    if np.isfinite(score) and score < ax.get_ylim()[0]:
        note = ax.text(
            0.5, 0.015, f"{what} is below, at {number(score)}",
            transform=ax.transAxes, ha="center", va="bottom", fontsize="small", zorder=6,
        )  # fmt: skip
        # Traces that go down there pass behind it.
        note.set_bbox({"facecolor": ax.get_facecolor(), "edgecolor": "none", "pad": 1.5})
        without_math(note)


def add_legend(ax: Axes, handles: Sequence[Any], title: str | None) -> None:
    """Put a legend where it covers no data: beside the axes, or below them if they are narrow."""
    figure, box = figure_of(ax), ax.get_window_extent()
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.015, 1), "handlelength": 2.8}
    columns, size = [1], matplotlib.rcParams["legend.fontsize"]
    narrow = is_narrow(ax)
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
            without_math(text)
        room = legend.get_window_extent()
        if room.width <= box.width:
            break
    if figure.get_layout_engine() is None:
        if narrow:
            shrink([ax], bottom=max(room.height, figure.bbox.y0 - room.y0) / figure.bbox.height)
        else:
            shrink([ax], right=(room.x1 - box.x1) / figure.bbox.width)


def shrink(axes: Iterable[Axes], right: float = 0.0, bottom: float = 0.0) -> None:
    """Take room, in parts of the figure, from axes that no layout engine looks after."""
    for ax in axes:
        box = ax.get_position()
        width, height = max(box.width - right, 0.05), max(box.height - bottom, 0.05)
        ax.set_position((box.x0, box.y1 - height, width, height))


def panel_below(ax: Axes) -> Axes:
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
