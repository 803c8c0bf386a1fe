"""Which features are bought, by their price."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes

from greedymiser.plotting.axes import (
    DASHES,
    MARKERS,
    Floats,
    add_legend,
    drawn_axes,
    found_by_search,
    shades,
    spread_over,
)
from greedymiser.plotting.looks import (
    number,
)

if TYPE_CHECKING:
    from greedymiser.curve.curve import TradeoffCurve

MOST_COST_GROUPS = 8


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
    ax = drawn_axes(ax)
    on_path = np.flatnonzero(~found_by_search(curve.points)).tolist()
    points = curve.points.iloc[on_path]
    used = [
        curve.models[i].truncate(int(n_iter)).ensemble_.features
        for i, n_iter in zip(on_path, points["n_iter"], strict=True)
    ]
    groups = _price_groups(curve.models[0].costs_.prices())
    place = np.arange(len(points))
    colours = shades(len(groups), ax)
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
    shown = spread_over(len(points), 8)
    labels = [number(points["tradeoff"].iloc[i], 3) for i in shown]
    slant: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
    ax.set_xticks(place[shown], labels, **(slant if sum(map(len, labels)) > 24 else {}))
    ax.set_xlim(-0.5, len(points) - 0.5)
    ax.set_ylim(-0.04, 1.04)
    ax.set_xlabel("tradeoff λ")
    ax.set_ylabel("share bought")
    add_legend(ax, lines, "price" + (f" in {curve.cost_unit}" if curve.cost_unit else ""))
    return ax


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
