"""How all pictures look: colours, ink and words."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

# Okabe and Ito's colours, without those that vanish on white or black.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")


def number(value: float, digits: int = 4) -> str:
    """A short number: 0.0001, 1e-05 and 1000, but 1e6 rather than 1e+06."""
    rounded = f"{value:.{digits}g}"
    if "e+" in rounded and abs(value) < 10 ** max(digits + 2, 4):
        rounded = f"{float(rounded):.0f}"
    return rounded.replace("e+0", "e").replace("e+", "e")


def short(name: Any, most: int) -> str:
    """A name without its middle if it is long: columns often differ at their ends."""
    words = " ".join(str(name).split())
    if len(words) <= most:
        return words
    return f"{words[: most // 2].rstrip()}…{words[len(words) - (most - 1) // 2 :].lstrip()}"


def without_math(text: Any) -> Any:
    """Keep dollar signs from being read as mathematics."""
    text.set_parse_math(False)
    return text


def figure_of(ax: Axes) -> Any:
    """The whole figure, also if the Axes is in a subfigure."""
    return ax.figure.figure


def ink_of(ax: Axes) -> Any:
    """The colour of text, which can be read on whatever the background is."""
    return ax.xaxis.label.get_color()


def is_dark(ax: Axes) -> bool:
    """Whether the background is dark."""
    return bool(np.dot(to_rgb(ax.get_facecolor()), (0.3, 0.59, 0.11)) < 0.5)


def main_colour(ax: Axes) -> str:
    """The colour of what a picture is about."""
    return COLOURS[5] if is_dark(ax) else COLOURS[0]
