"""Which model buys what: a matrix of purchases and of the models on the front."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from greedymiser._core.amounts import money
from greedymiser.curve.summary import front_steps, recommended, resource_groups
from greedymiser.plotting.axes import new_figure
from greedymiser.plotting.style import COLOURS, figure_of, ink_of, short, without_math

if TYPE_CHECKING:
    from greedymiser.curve.curve import TradeoffCurve

# Lines of the matrix; what few models buy is left out first.
MOST_LINES = 40

# Inches of a line, of a column, of the names and of the prices.
LINE, COLUMN, NAMES, HEAD = 0.24, 0.52, 2.6, 1.1


def plot_features(curve: TradeoffCurve, ax: Axes | None = None) -> Axes:
    """Draw which models buy what: purchases by resource, models by cost, filled where bought.

    Columns are the models that no other beats, with their costs; the recommended one is framed.
    What is shared (a blood draw, a report) comes before what needs it. What no model buys is not
    shown, nor is what is free.

    Parameters
    ----------
    curve : TradeoffCurve
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes
    """
    steps = [step for step in front_steps(curve) if step.cost > 0]
    costs = curve.models[0].costs_
    bought = {name for step in steps for name in step.resources}
    lines = [
        line for group in resource_groups(costs, bought) for line in group.lines if line.price > 0
    ]
    uses = {line.name: sum(line.name in step.resources for step in steps) for line in lines}
    hidden = sorted(lines, key=lambda line: -uses[line.name])[MOST_LINES:]
    lines = [line for line in lines if line not in hidden]
    if ax is None:
        size = (NAMES + COLUMN * max(len(steps), 3), HEAD + LINE * max(len(lines), 3))
        ax = new_figure(size).add_subplot()
    if not lines:
        ax.set_axis_off()
        ax.text(0.5, 0.5, "nothing is bought", transform=ax.transAxes, ha="center", va="center")
        return ax
    for y, line in enumerate(lines):
        for x, step in enumerate(steps):
            if line.name in step.resources:
                ax.add_patch(
                    Rectangle((x + 0.06, y + 0.08), 0.88, 0.84, color=COLOURS[0], linewidth=0)
                )
    _name_lines(ax, lines, curve.cost_unit)
    _name_columns(ax, [money(step.cost, curve.cost_unit) for step in steps])
    chosen = recommended(steps)
    frame: dict[str, Any] = {"fill": False, "edgecolor": ink_of(ax), "linewidth": 1.6}
    ax.add_patch(Rectangle((chosen, 0), 1, len(lines), clip_on=False, zorder=4, **frame))
    more = f"; {len(hidden)} more that few models buy" if hidden else ""
    ax.set_xlabel(f"cost of the model (framed: recommended){more}", fontsize="small")
    return ax


def _name_lines(ax: Axes, lines: Sequence[Any], unit: str) -> None:
    names = [
        f"{'└ ' if line.is_part else ''}{short(line.name, 26)}  {money(line.price, unit)}"
        for line in lines
    ]
    ax.set_yticks(np.arange(len(lines)) + 0.5, names, fontsize="small")
    ax.set_ylim(len(lines), 0)
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.hlines(range(len(lines) + 1), 0, 1, transform=ax.get_yaxis_transform(), alpha=0.2,
              color=ink_of(ax), linewidth=0.5)  # fmt: skip
    for label in ax.get_yticklabels():
        without_math(label)


def _name_columns(ax: Axes, names: Sequence[str]) -> None:
    wide = max(map(len, names)) * len(names) > 11 * ax.get_window_extent().width / figure_of(ax).dpi
    slant: dict[str, Any] = (
        {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if wide else {}
    )
    ax.set_xticks(np.arange(len(names)) + 0.5, names, fontsize="small", **slant)
    ax.set_xlim(0, len(names))
    for label in ax.get_xticklabels():
        without_math(label)
