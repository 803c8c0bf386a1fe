"""Words beside points: each where it covers nothing else, or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from greedymiser.plotting.style import figure_of, ink_of, without_math

Floats = NDArray[np.float64]

# Points between a label and what it is about, and how many lines it may be moved away.
GAP, MOST_LINES_AWAY = 6.0, 5


class LabelPlacer:
    """Puts labels into an Axes whose limits are settled, clear of lines, marks and one another.

    Parameters
    ----------
    ax : matplotlib Axes
    """

    def __init__(self, ax: Axes):
        self.ax = ax
        figure_of(ax).draw_without_rendering()
        self._scale = figure_of(ax).dpi / 72.0
        self._room = ax.get_window_extent()
        self._taken: list[Bbox] = []
        self._words: list[Bbox] = []
        self._labelled: list[tuple[float, float]] = []

    def avoid_line(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        """Keep labels off a line of steps."""
        corners = self.ax.transData.transform(np.column_stack([xs, ys]))
        for (x0, y0), (x1, y1) in pairwise(corners):
            # First along the tread, then up the riser.
            self._taken.append(_box(x0, y0 - 1.5, x1, y0 + 1.5))
            self._taken.append(_box(x1 - 1.5, y0, x1 + 1.5, y1))

    def avoid_points(
        self,
        xs: Iterable[float],
        ys: Iterable[float],
        size: float = 8.0,
        are_labelled: bool = False,
    ) -> None:
        """Keep labels off marks of so many points; a label is nearest to the mark that it names."""
        half = size * self._scale / 2
        places = np.column_stack([list(xs), list(ys)]).reshape(-1, 2)
        for x, y in self.ax.transData.transform(places):
            if np.isfinite(x) and np.isfinite(y):
                self._taken.append(_box(x - half, y - half, x + half, y + half))
                if are_labelled:
                    self._labelled.append((x, y))

    def avoid_text(self, texts: Iterable[Any]) -> None:
        """Keep labels off other words."""
        self._words += [text.get_window_extent() for text in texts]
        self._taken += self._words

    def place(self, words: str, x: float, y: float, **look: Any) -> Any:
        """Write words near a point: under its tread, or left above it. None if there is no room.

        A label that had to be moved away has a line to its point.
        """
        ax, scale = self.ax, self._scale
        text = without_math(ax.annotate(words, (x, y), **{"fontsize": "small", **look}))
        size = text.get_window_extent()
        at_x, at_y = ax.transData.transform((x, y))
        gap, line = GAP * scale, size.height * 1.05
        for lines in range(MOST_LINES_AWAY):
            shift = gap + lines * line
            for side, left, bottom in (
                ("right", at_x + gap, at_y - shift - size.height),
                ("left", at_x - gap - size.width, at_y + shift - gap / 2),
                ("right", at_x + gap, at_y + shift - gap / 2),
                ("left", at_x - gap - size.width, at_y - shift - size.height),
            ):
                # Words that follow one another on a line must not read as one sentence.
                side_by_side = _box(left - gap, bottom, left + size.width + gap, bottom + 1)
                if any(_overlap(side_by_side, other) for other in self._words):
                    continue
                box = _box(left - 1, bottom - 1, left + size.width + 1, bottom + size.height + 1)
                # Words that are nearer to another mark would be read as about that one.
                if lines and self._is_nearer_to_another(box, (at_x, at_y)):
                    continue
                leader = self._leader(box, side, (at_x, at_y)) if lines else []
                if self._is_free(box) and not self._crosses_words(leader):
                    self._taken += [box, *leader]
                    self._words.append(box)
                    text.remove()
                    return self._write(words, (x, y), side, box, lines > 0, look)
        text.remove()
        return None

    def _write(
        self,
        words: str,
        at: tuple[float, float],
        side: str,
        box: Bbox,
        is_far: bool,
        look: dict[str, Any],
    ) -> Any:
        at_x, at_y = self.ax.transData.transform(at)
        left = side == "left"
        corner = (box.x1 - 1 if left else box.x0 + 1, box.y0 + 1)
        offset = ((corner[0] - at_x) / self._scale, (corner[1] - at_y) / self._scale)
        arrow = {"arrowstyle": "-", "color": ink_of(self.ax), "alpha": 0.35, "linewidth": 0.7,
                 "shrinkA": 0, "shrinkB": 3, "relpos": (1.0 if left else 0.0, 0.5)}  # fmt: skip
        return without_math(
            self.ax.annotate(
                words, at, xytext=offset, textcoords="offset points", va="bottom",
                ha="right" if left else "left", arrowprops=arrow if is_far else None, zorder=6,
                **{"fontsize": "small", **look},
            )
        )  # fmt: skip

    def _leader(self, box: Bbox, side: str, at: tuple[float, float]) -> list[Bbox]:
        """The line from a label to its point, as small boxes."""
        start = (box.x1 if side == "left" else box.x0, (box.y0 + box.y1) / 2)
        shares = np.linspace(0.05, 0.95, 12)
        places = [tuple(np.asarray(start) + share * np.subtract(at, start)) for share in shares]
        return [_box(x - 1, y - 1, x + 1, y + 1) for x, y in places]

    def _is_nearer_to_another(self, box: Bbox, at: tuple[float, float]) -> bool:
        own = _distance(box, at)
        return any(_distance(box, other) < own - 1 for other in self._labelled)

    def _crosses_words(self, leader: Sequence[Bbox]) -> bool:
        return any(_overlap(part, words) for part in leader for words in self._words)

    def _is_free(self, box: Bbox) -> bool:
        room = self._room
        if box.x0 < room.x0 or box.x1 > room.x1 or box.y0 < room.y0 or box.y1 > room.y1:
            return False
        return not any(_overlap(box, other) for other in self._taken)


def _box(x0: float, y0: float, x1: float, y1: float) -> Bbox:
    return Bbox([[min(x0, x1), min(y0, y1)], [max(x0, x1), max(y0, y1)]])


def _distance(box: Bbox, at: tuple[float, float]) -> float:
    x, y = at
    return float(np.hypot(max(box.x0 - x, 0.0, x - box.x1), max(box.y0 - y, 0.0, y - box.y1)))


def _overlap(one: Bbox, other: Bbox) -> bool:
    return bool(
        min(one.x1, other.x1) > max(one.x0, other.x0)
        and min(one.y1, other.y1) > max(one.y0, other.y0)
    )
