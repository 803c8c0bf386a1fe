"""Codes of rows on a worker, once: what a shard has is read there."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.uint64]
RowNumbers = NDArray[Any]
CodeColumns = int | NDArray[np.uint32]
"""Columns of codes: one after the other from the first, or one by one."""


class _CodePlace(NamedTuple):
    """Where some rows of a chunk are."""

    # By their number in the chunk, ascending; None for all of them.
    rows: NDArray[np.uint32] | None
    codes: Codes
    columns: CodeColumns
    # Whether nobody else has these codes.
    is_own: bool

    def find(self, wanted: RowNumbers) -> tuple[RowNumbers, RowNumbers]:
        """Positions here of the rows that are wanted, and positions of those among the wanted."""
        if self.rows is None:
            return wanted, np.arange(len(wanted))
        if len(self.rows) == 0:
            return np.empty(0, dtype=np.intp), np.empty(0, dtype=np.intp)
        at = np.minimum(np.searchsorted(self.rows, wanted), len(self.rows) - 1)
        positions = np.flatnonzero(self.rows[at] == wanted)
        return at[positions], positions

    def taken(self, at: RowNumbers) -> Codes:
        columns = self.columns + at if isinstance(self.columns, int) else self.columns[at]
        return self.codes[:, columns]


class Chunk:
    """A chunk of rows, whose codes may lie in several places."""

    def __init__(self, codes: Codes):
        self._n_blocks, self._n_rows = codes.shape
        self._places = [_CodePlace(None, codes, 0, True)]

    def take(self, rows: RowNumbers | None) -> Codes:
        """Codes of some rows, in their order; None for all."""
        whole = self._places[0]
        if rows is None and whole.rows is None and isinstance(whole.columns, int):
            return whole.codes[:, whole.columns : whole.columns + self._n_rows]
        rows = np.arange(self._n_rows) if rows is None else rows
        taken = np.empty((self._n_blocks, len(rows)), dtype=np.uint64)
        for place in self._places:
            at, positions = place.find(rows)
            taken[:, positions] = place.taken(at)
        return taken

    def move(self, rows: RowNumbers | None, codes: Codes, columns: CodeColumns) -> None:
        """Some rows (None for all) are in these columns of a shard from now on.

        Their own codes are let go. Rows that another shard has stay there.
        """
        if rows is None and self._places[0].rows is None:
            if self._places[0].is_own:
                self._places = [_CodePlace(None, codes, columns, False)]
            return
        moved = np.arange(self._n_rows) if rows is None else rows
        order = np.argsort(moved)
        there = columns + order if isinstance(columns, int) else columns[order]
        self._places = [
            part for place in self._places for part in _divided(place, moved[order], codes, there)
        ]


def _divided(
    place: _CodePlace, moved: RowNumbers, codes: Codes, columns: RowNumbers
) -> list[_CodePlace]:
    """What becomes of a place when some rows have moved."""
    at, positions = place.find(moved)
    if not place.is_own or len(at) == 0:
        return [place]
    numbers = np.arange(place.codes.shape[1]) if place.rows is None else place.rows
    rows, there = numbers[at].astype(np.uint32), columns[positions].astype(np.uint32)
    gone = _CodePlace(rows, codes, there, False)
    rest = np.delete(np.arange(len(numbers)), at)
    if len(rest) == 0:
        return [gone]
    own = np.ascontiguousarray(place.taken(rest))
    return [gone, _CodePlace(numbers[rest].astype(np.uint32), own, 0, True)]
