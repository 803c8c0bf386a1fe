"""Codes of rows on a worker, once: what a shard has is read there."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.uint64]
Numbers = NDArray[np.uint32]


class _Place(NamedTuple):
    """Where some rows of a chunk are."""

    # By their number in the chunk, ascending.
    rows: Numbers
    codes: Codes
    # Column of each.
    columns: Numbers
    # Whether nobody else has these codes.
    is_own: bool


class Chunk:
    """A chunk of rows, whose codes may lie in several places."""

    def __init__(self, codes: Codes):
        every = np.arange(codes.shape[1], dtype=np.uint32)
        self._places = [_Place(every, codes, every, True)]
        self._n_blocks = len(codes)

    def take(self, rows: NDArray[np.integer] | None) -> Codes:
        """Codes of some rows, in their order; None for all."""
        if rows is None:
            rows = np.arange(sum(len(place.rows) for place in self._places))
        taken = np.empty((self._n_blocks, len(rows)), dtype=np.uint64)
        for place in self._places:
            at, found = _find(place.rows, rows)
            taken[:, found] = place.codes[:, place.columns[at]]
        return taken

    def move(self, rows: NDArray[np.integer] | None, codes: Codes, columns: Numbers) -> None:
        """Some rows are in these columns of a shard from now on: their own codes are let go.

        Rows that another shard has stay there.
        """
        if rows is None:
            rows = np.arange(len(columns))
        order = np.argsort(rows)
        moved, columns = rows[order].astype(np.uint32), columns[order]
        kept = []
        for place in self._places:
            at, found = _find(place.rows, moved)
            if not place.is_own or len(at) == 0:
                kept.append(place)
                continue
            kept.append(_Place(place.rows[at], codes, columns[found], False))
            rest = np.delete(np.arange(len(place.rows)), at)
            if len(rest):
                own = np.ascontiguousarray(place.codes[:, place.columns[rest]])
                every = np.arange(len(rest), dtype=np.uint32)
                kept.append(_Place(place.rows[rest], own, every, True))
        self._places = kept


def _find(known: Numbers, wanted: NDArray[np.integer]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Places of what is wanted among what is known (ascending), and which of it is there."""
    at = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))
    found = np.flatnonzero(known[at] == wanted) if len(known) else np.empty(0, dtype=np.intp)
    return at[found], found
