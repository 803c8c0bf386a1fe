"""A protocol as a tree of questions: who is asked what, after what, and at which cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from greedymiser.model.protocols import MOST_QUESTIONS, Step, conditions_text
from greedymiser.plotting.style import COLOURS, figure_of, ink_of, number, short, without_math

if TYPE_CHECKING:
    from greedymiser.model.protocols import Protocol

# Inches: a question with its condition under it, what is above and below all of them, and how far
# questions are moved to the right of the one before.
LINE, MARGIN, INDENT = 0.46, 0.95, 0.24
# Inches of the Axes that no question can have.
HEAD = 0.5
WIDTH, MOST_LINES = 8.5, 24

# Inches that a letter takes, in the larger and in the smaller print (9 and 7.5 points).
LETTER, SMALL_LETTER = 0.079, 0.062

# Share of the width that the bars take, and inches for the numbers behind them.
BARS, NUMBERS = 0.11, 1.0


SMALL: dict[str, Any] = {"fontsize": 7.5, "va": "top", "alpha": 0.75}


class _BoxPlace(NamedTuple):
    step: Step
    depth: int
    # The line of the question, and that of the one before it; from 0 at the top.
    line: int
    parent: int | None


def plot_protocol(protocol: Protocol, ax: Axes | None = None) -> Axes:
    """Draw a protocol as a tree of questions.

    Each line is a question: what is asked for and its price, under it the main conditions. A bar
    tells the share of rows that are asked; the dark part of it ends there and is asked nothing
    more. The number behind it is what the question adds to the mean cost of a row. Where there is
    no room for all questions, those to most rows are drawn.

    Parameters
    ----------
    protocol : Protocol
        From ``model.protocol(X)``.
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import numpy as np
    >>> from greedymiser import MiserRegressor
    >>> from greedymiser.plotting import plot_protocol
    >>> X = np.random.default_rng(0).integers(0, 10, (1000, 2))
    >>> y = np.where(X[:, 0] == 9, X[:, 1], 0.0)
    >>> model = MiserRegressor(costs=[1.0, 5.0], charge="row", max_depth=2, max_iter=3)
    >>> plot_protocol(model.fit(X, y).protocol(X)).get_title(loc="left")
    '1000 rows: mean cost 1.54, most 6'
    """
    ax = axes_for(protocol, Figure) if ax is None else ax
    most = max(1, int((_inches(ax)[1] - HEAD) / LINE))
    _Picture(protocol, ax).draw(_laid_out(protocol.start, most))
    return ax


def axes_for(protocol: Protocol, make_figure: Callable[..., Any]) -> Axes:
    """New Axes as high as the protocol needs; ``make_figure`` is that of pyplot, or ``Figure``."""
    n_lines = max(1, len(_laid_out(protocol.start, MOST_LINES)))
    height = MARGIN + LINE * n_lines
    figure = make_figure(figsize=(WIDTH, height))
    axes: Axes = figure.add_axes((0.02, 0.01, 0.96, 1.0 - 0.4 / height))
    return axes


class _Picture:
    """A protocol on its way into the Axes."""

    def __init__(self, protocol: Protocol, ax: Axes):
        self.protocol, self.ax, self.ink = protocol, ax, ink_of(ax)

    def draw(self, places: list[_BoxPlace]) -> None:
        self.ax.set_axis_off()
        width, _ = _inches(self.ax)
        self.ax.set_xlim(0.0, width)
        self.ax.set_ylim(max(1, len(places)) + 0.3, -0.8)
        for place in places:
            self._draw_link(place, places)
        for place in places:
            self._draw_words(place, width)
            self._draw_bar(place, width)
        self._draw_frame(len(places), width)

    def _draw_link(self, place: _BoxPlace, places: list[_BoxPlace]) -> None:
        """A band from the question before, as wide as the share of rows."""
        x = INDENT * (place.depth - 0.5)
        share = place.step.n_rows / self.protocol.n_rows
        band: dict[str, Any] = {
            "color": COLOURS[0],
            "alpha": 0.55,
            "linewidth": 1.0 + 7.0 * share,
            "solid_capstyle": "butt",
            "solid_joinstyle": "round",
        }
        if place.parent is not None:
            above = INDENT * (places[place.parent].depth - 0.5)
            self.ax.plot([above, above, x], [place.parent, place.line, place.line], **band)
        self.ax.plot(x, place.line, "o", color=COLOURS[0], markersize=5 + 4 * share, zorder=3)

    def _draw_words(self, place: _BoxPlace, width: float) -> None:
        x, step = INDENT * place.depth, place.step
        room = (1.0 - BARS) * width - NUMBERS - x - 0.1
        conditions = _fitting(step, int(room / SMALL_LETTER))
        price = f"  ({number(step.price)})"
        words = short(step.name, max(8, int(room / LETTER) - len(price))) + price
        up = 0.02 if conditions else 0.12
        without_math(
            self.ax.text(x, place.line + up, words, fontsize=9, va="bottom", color=self.ink)
        )
        if conditions:
            without_math(self.ax.text(x, place.line + 0.08, conditions, color=self.ink, **SMALL))

    def _draw_bar(self, place: _BoxPlace, width: float) -> None:
        step, n = place.step, self.protocol.n_rows
        left, longest = (1.0 - BARS) * width - NUMBERS, BARS * width
        share = step.n_rows / n
        self.ax.barh(place.line, longest * share, 0.42, left=left, color=COLOURS[5])
        ends = longest * step.n_done / n
        self.ax.barh(place.line, ends, 0.42, left=left, color=COLOURS[0])
        said = f"{100 * share:.3g}%: {number(step.price * share, 3)}"
        at = left + longest + 0.06
        without_math(self.ax.text(at, place.line, said, fontsize=8, va="center", color=self.ink))

    def _draw_frame(self, n_lines: int, width: float) -> None:
        protocol = self.protocol
        costs = f"mean cost {number(protocol.mean_cost)}, most {number(protocol.max_cost)}"
        title = f"{protocol.n_rows} rows: {costs}"
        without_math(self.ax.set_title(title, loc="left", fontsize=10, color=self.ink))
        if n_lines == 0:
            more = "" if protocol.shows_free else " that costs"
            said = f"no row is asked for anything{more}"
            self.ax.text(0.5 * width, 0.2, said, ha="center", va="center", color=self.ink)
            return
        patches = [
            Patch(color=COLOURS[5], label="asked more later"),
            Patch(color=COLOURS[0], label="asked nothing more"),
        ]
        self.ax.legend(
            handles=patches, loc="lower right", ncols=2, frameon=False, fontsize=7.5,
            labelcolor=self.ink, borderaxespad=0.0,
        )  # fmt: skip
        hidden = sum(1 for depth, _ in protocol.start.each() if depth) - n_lines
        rare = sum(step.n_rare for _, step in protocol.start.each())
        left_out = [f"{hidden} question{'s' if hidden > 1 else ''}"] if hidden else []
        left_out += [f"rare ones to {protocol.share(rare)} of the rows"] if rare else []
        if far := sum(step.n_far for _, step in protocol.start.each()):
            left_out.append(f"those after the first {MOST_QUESTIONS}, to {protocol.share(far)}")
        if left_out:
            said = f"left out: {', '.join(left_out)}"
            self.ax.text(0.0, n_lines - 0.45, said, color=self.ink, **SMALL)
        head = "share: mean cost"
        self.ax.text(width, -0.72, head, color=self.ink, ha="right", **SMALL)


def _fitting(step: Step, letters: int) -> str:
    """The conditions of a question, as many as there is room for."""
    for most in (3, 2, 1):
        said = conditions_text(step, most)
        if said and len(said) + 5 <= letters:
            return f"with {said}"
    said = conditions_text(step, 1)
    return f"with {said}"[: letters - 1].rstrip() + "…" if said else ""


def _inches(ax: Axes) -> tuple[float, float]:
    extent, dpi = ax.get_window_extent(), figure_of(ax).dpi
    return extent.width / dpi, extent.height / dpi


def _laid_out(start: Step, most: int) -> list[_BoxPlace]:
    """Questions line by line; only those to most rows where there is little room."""
    steps = [step for depth, step in start.each() if depth]
    # A question comes before those that follow from it, which go to no more rows than it does.
    shown = {id(step) for step in sorted(steps, key=lambda step: -step.n_rows)[:most]}
    places: list[_BoxPlace] = []

    def add(step: Step, depth: int, parent: int | None) -> None:
        line = len(places)
        places.append(_BoxPlace(step, depth, line, parent))
        for child in step.steps:
            if id(child) in shown:
                add(child, depth + 1, line)

    for step in start.steps:
        if id(step) in shown:
            add(step, 1, None)
    return places
