"""Axes, scales and legends: what the pictures of curves and receipts share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation
from numpy.typing import ArrayLike, NDArray

from greedymiser._core.amounts import amount, currency, money, plain_score_name, rounded_score
from greedymiser.plotting.style import figure_of, is_dark, without_math

Floats = NDArray[np.float64]

# Told apart without colour. Their numbers have no common divisor, so pairs rarely repeat.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
DASHES = ((4, 1.6), (1.2, 1.4), (7, 1.6), (4, 1.4, 1.2, 1.4))

# Inches of a figure of our own.
SIZE = (7.5, 4.5)


def found_by_search(points: Any) -> NDArray[np.bool_]:
    """Which points of a curve are not of its path."""
    if "found_by" not in points:
        return np.zeros(len(points), dtype=bool)
    return np.asarray(points["found_by"] != "path")


def spread_over(n: int, most: int) -> list[int]:
    """Positions of at most ``most`` out of n, evenly, with the first and the last."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int)).tolist()


def new_figure(size: tuple[float, float]) -> Figure:
    """A figure with some room around what is drawn, so that words on a page do not touch it."""
    return Figure(figsize=size, layout=ConstrainedLayoutEngine(h_pad=0.1))


def drawn_axes(ax: Axes | None) -> Axes:
    """The Axes to draw into, with a grid; in a figure of their own if there are none."""
    if ax is None:
        ax = new_figure(SIZE).add_subplot()
    if not isinstance(ax, Axes):
        raise TypeError(f"ax must be axes of matplotlib, got {ax!r}")
    ax.grid(alpha=0.25, linewidth=0.6)
    ax.set_axisbelow(True)
    return ax


def is_narrow(ax: Axes) -> bool:
    """Whether there is no room for a legend beside the axes."""
    return bool(ax.get_window_extent().width / figure_of(ax).dpi < 4.5)


def shades(n: int, ax: Axes) -> Floats:
    """Colours from the first to the last of n that stand out from the background."""
    ends = (0.3, 1.0) if is_dark(ax) else (0.0, 0.78)
    return matplotlib.colormaps["viridis"](np.linspace(*ends, max(n, 2))[:n])


# Steps that are closer than this share of the axis cannot be told apart.
LEGIBLE = 0.025


def cost_axis(
    ax: Axes, costs: Iterable[ArrayLike], unit: str, what: str = "cost of one prediction"
) -> None:
    """Label the axis, and choose its scale: linear, unless another one shows clearly more.

    What counts is how many of the costs can be told apart from their neighbours, so that neither
    one cheap feature nor one expensive one takes all the room.
    """
    values = np.unique(np.concatenate([np.asarray(cost, dtype=float) for cost in costs]))
    values = values[np.isfinite(values)]
    named = f" ({unit})" if unit and not currency(unit) else ""
    without_math(ax.set_xlabel(f"{what}{named}"))
    if not len(values) or values[-1] <= 0:
        ax.set_xlim(-0.05, 1)
        return
    low, high, power = cost_scale(values)
    if power != 1.0:
        scale = _power_scale(power, low)
        ax.set_xscale("function", functions=scale)
        ends = np.array(scale[0](np.array([low, high])))
        pad = 0.03 * (ends[1] - ends[0])
        ax.set_xlim(*scale[1](ends + np.array([-pad, pad])))
    else:
        pad = 0.03 * (high - low)
        ax.set_xlim(low - pad, high + pad)
    ticks = _cost_ticks(ax, values, low, high, power)
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_major_formatter(FixedFormatter([tick_label(tick, unit) for tick in ticks]))
    ax.xaxis.set_minor_locator(NullLocator())


def cost_scale(values: Floats) -> tuple[float, float, float]:
    """The ends of an axis of costs, and the power that it is bent by; 1 for a linear one."""
    if values[-1] <= 0:
        return 0.0, 1.0, 1.0
    low = min(float(values[0]), 0.0) if values[0] < 0.5 * values[-1] else float(values[0])
    high = float(values[-1]) if values[-1] > low else low + 1.0
    return low, high, _best_power(values, low, high)


def tick_label(value: float, unit: str) -> str:
    """A cost at an axis, with the sign of its currency."""
    return money(value, unit) if currency(unit) else amount(value)


def _best_power(values: Floats, low: float, high: float) -> float:
    """1 for a linear axis; less where clearly more costs can be distinguished on a bent one."""
    if low < 0:
        return 1.0
    shown = {power: _n_legible(values, low, high, power) for power in (1.0, 0.5, 0.25, 0.1)}
    enough = max(shown.values())
    if shown[1.0] >= 0.75 * enough or shown[1.0] >= enough - 1:
        return 1.0
    # Of those that show most, the least bent.
    return next(power for power, n in shown.items() if n >= 0.9 * enough)


def _n_legible(values: Floats, low: float, high: float, power: float) -> float:
    """How many costs can be distinguished from the one before; half of one that nearly can."""
    place = ((values - low) / (high - low)) ** power
    return 1.0 + float(np.minimum(np.diff(place) / LEGIBLE, 1.0).sum())


def _power_scale(power: float, low: float) -> tuple[Any, Any]:
    """Functions of a scale that gives cheap things more room; zero stays zero."""

    def forward(x: Any) -> Any:
        x = np.asarray(x, dtype=float) - low
        return np.sign(x) * np.abs(x) ** power

    def backward(x: Any) -> Any:
        x = np.asarray(x, dtype=float)
        return np.sign(x) * np.abs(x) ** (1 / power) + low

    return forward, backward


def nice_costs(values: Floats, low: float, high: float, power: float) -> list[float]:
    """Round numbers along an axis of costs, more than there may be room for."""
    if power == 1.0:
        ticks = MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
        return [float(tick) for tick in ticks if low - 1e-9 <= tick <= high * (1 + 1e-9)]
    decades = range(int(np.floor(np.log10(high))) - 12, int(np.floor(np.log10(high))) + 1)
    wanted = [0.0, *(step * 10.0**decade for decade in decades for step in (1, 2, 5))]
    # Between nothing and the cheapest there is nothing to read off.
    cheapest = values[values > 0].min()
    return [tick for tick in wanted if low <= tick <= high and not 0 < tick < cheapest / 2]


def _cost_ticks(ax: Axes, values: Floats, low: float, high: float, power: float) -> list[float]:
    """Round numbers that are far enough apart on the axis for their labels."""
    wanted = nice_costs(values, low, high, power)
    if power == 1.0:
        return wanted[:: 2 if is_narrow(ax) and len(wanted) > 5 else 1]
    to_axes = ax.transData + ax.transAxes.inverted()
    gap = 0.14 if is_narrow(ax) else 0.085
    kept: list[float] = []
    first, at = to_axes.transform((wanted[0], 0.0))[0], np.inf
    # From the right, where round numbers are far apart; the first one always has its place.
    for tick in sorted(wanted[1:], reverse=True):
        x = to_axes.transform((tick, 0.0))[0]
        if at - x >= gap and x - first >= gap:
            kept.append(tick)
            at = x
    return [wanted[0], *kept[::-1]]


def set_title(ax: Axes, sentence: str) -> None:
    """Write a sentence above the axes, in as many lines as it needs."""
    words = sentence[:1].upper() + sentence[1:]
    title = without_math(ax.set_title(words, loc="left", fontsize="medium"))
    width, room = title.get_window_extent().width, ax.get_window_extent().width
    if width > room:
        title.set_text("\n".join(wrap(words, max(int(len(words) * room / width), 12))))


def label_score(ax: Axes, scoring: str, kind: str = "") -> None:
    """Name the score, and the data that it is of."""
    words = [kind, plain_score_name(scoring)] if kind else [plain_score_name(scoring)]
    narrow = is_narrow(ax)
    size = "small" if narrow else matplotlib.rcParams["axes.labelsize"]
    without_math(ax.set_ylabel(("\n" if narrow else " ").join(words), fontsize=size))


def score_limits(chosen: Floats, others: Floats, pad: float) -> tuple[float, float]:
    """The ends of an axis that has all chosen scores, and others unless they are far below."""
    chosen, others = chosen[np.isfinite(chosen)], others[np.isfinite(others)]
    every = np.concatenate([chosen, others])
    if not len(chosen) or np.ptp(every) == 0:
        middle = float(every[0]) if len(every) else 0.0
        return middle - 0.5 * (abs(middle) or 1.0), middle + 0.5 * (abs(middle) or 1.0)
    spread = np.ptp(chosen) or np.ptp(every)
    low, high = float(every.min()), float(every.max())
    if low < chosen.min() - 3 * spread:
        low = max(low, float(chosen.min() - spread))
    pad *= high - low
    return low - pad, high + pad


def note_below(ax: Axes, score: float, what: str) -> None:
    """Tell a score that the picture has no room for."""
    if np.isfinite(score) and score < ax.get_ylim()[0]:
        note = ax.text(
            0.5, 0.015, f"{what} scores {rounded_score(score)}, below the picture",
            transform=ax.transAxes, ha="center", va="bottom", fontsize="small", zorder=6,
        )  # fmt: skip
        note.set_bbox({"facecolor": ax.get_facecolor(), "edgecolor": "none", "pad": 1.5})
        without_math(note)


def add_legend(ax: Axes, handles: Sequence[Any], *, below: bool = False) -> None:
    """Put a legend where it covers no data: beside the axes, or below them if they are narrow."""
    figure, box = figure_of(ax), ax.get_window_extent()
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.015, 1), "handlelength": 2.8}
    columns, size = [1], matplotlib.rcParams["legend.fontsize"]
    narrow = below or is_narrow(ax)
    if narrow:
        # Below the tick labels and the label of the axis, however high the axes are.
        shown = ax.xaxis.get_tightbbox()  # None if the axis is hidden
        labels = 0.0 if shown is None else shown.y0 - box.y0
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
            handles=handles, ncols=ncols, fontsize=size,
            frameon=False, borderaxespad=0, **place,
        )  # fmt: skip
        for text in legend.get_texts():
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
