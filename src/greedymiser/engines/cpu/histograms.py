"""The histograms of a growing tree: what is kept, what is counted, who does it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser.binning import LANES
from greedymiser.engines import Columns, SplitTable, blank_table
from greedymiser.engines.cpu import counting
from greedymiser.engines.cpu.state import Data, TreeState, Tuning
from greedymiser.engines.scanning import BINS
from greedymiser.threads import Threads


class _Kept(NamedTuple):
    """Histograms (slots, blocks, bins of all lanes), and whether each of them was counted."""

    slots: NDArray[np.int64]
    valid: NDArray[np.bool_]


class _Level(NamedTuple):
    """What kernels must know of the nodes that are asked for."""

    open_nodes: NDArray[np.void]
    pairs: NDArray[np.void]
    columns: Columns
    # Blocks in which any feature is in play.
    active: NDArray[np.bool_]


class _Cut(NamedTuple):
    """Rows to count, cut into pieces; histograms for those that are not the first of theirs."""

    pieces: NDArray[np.void]
    firsts: NDArray[np.int64]
    partial: NDArray[np.int64]


class Histograms:
    """Counts, subtracts and scans; keeps what the next level can subtract from."""

    def __init__(self, data: Data, threads: Threads, tuning: Tuning):
        self._data = data
        self._threads = threads
        self._tuning = tuning
        self._make_room(1)
        self.begin(1)

    def begin(self, bin_words: int) -> None:
        """Forget the tree before."""
        if self._partial.shape[1] != LANES * BINS * bin_words:
            self._make_room(bin_words)
        self._n_free = len(self._kept.slots)
        self._free = np.arange(self._n_free)
        self._pairs = np.empty(0, dtype=counting.PAIR_DTYPE)

    def _make_room(self, bin_words: int) -> None:
        n_blocks, size = len(self._data.codes), LANES * BINS * bin_words
        none = np.empty((0, n_blocks, size), dtype=np.int64)
        self._kept = _Kept(none, np.empty((0, n_blocks), dtype=np.bool_))
        self._partial = np.empty((0, size), dtype=np.int64)

    def find(
        self, state: TreeState, nodes: NDArray[np.void], columns: Columns, last: bool
    ) -> SplitTable:
        """Best split of each node on each feature in play."""
        answer = blank_table(len(nodes), self._data.features["categorical"])
        measured = counting.measure_level(nodes, columns, self._data.lane_feature)
        active, n_active, n_rows = measured
        n_threads = self._threads.n_threads
        # Where there are too few blocks for all threads, rows are cut as well.
        few = n_threads > 1 and n_active < 2 * n_threads and n_rows >= 2 * self._tuning.rows
        n_missing = self._pair_up(state, nodes, keep=few or not last)
        level = _Level(nodes, self._pairs, columns, active)
        if few and n_missing == 0:
            cut = self._cut_rows(state, level, n_rows * n_active)
            team = self._threads.team()
            counting.count_and_find(team, self._data, state, self._kept, level, cut, answer)
        else:
            cells = n_active * LANES * (n_rows + BINS * len(nodes))
            team = self._threads.team(cells, 2 * self._tuning.cells)
            counting.find_splits(team, self._data, state, self._kept, level, answer)
        return answer

    def release(self, state: TreeState, splits: NDArray[np.void]) -> None:
        """Give up the histograms of nodes that were not split."""
        self._n_free = counting.release_slots(
            self._pairs, splits, state.nodes, self._free, self._n_free
        )

    def _pair_up(self, state: TreeState, nodes: NDArray[np.void], keep: bool) -> int:
        """Plan which nodes are counted; return how many histograms could not be kept."""
        if keep and self._n_free <= len(nodes):
            self._grow_slots(len(nodes) + 1)
        self._pairs, self._n_free, n_missing = counting.plan_pairs(
            nodes, state.nodes, keep, self._free, self._n_free, self._kept.valid
        )
        return int(n_missing)

    def _cut_rows(self, state: TreeState, level: _Level, cells: int) -> _Cut:
        """Cut the rows to count into pieces that keep all threads busy."""
        n_tasks = 4 * self._threads.n_threads
        longest = max(self._tuning.rows, cells // n_tasks)
        most = len(level.pairs) * len(level.active)
        firsts = np.empty(most + 1, dtype=np.int64)
        pieces = np.empty(most + cells // longest + 1, dtype=counting.PIECE_DTYPE)
        n_pieces, n_partial = counting.plan_pieces(
            level.pairs, state.nodes, level.active, self._kept.valid, longest, pieces, firsts
        )
        if len(self._partial) < n_partial:
            self._partial = np.empty((n_partial, self._partial.shape[1]), dtype=np.int64)
        return _Cut(pieces[:n_pieces], firsts, self._partial)

    def _grow_slots(self, wanted: int) -> None:
        have, (n_blocks, size) = len(self._kept.slots), self._kept.slots.shape[1:]
        room = max(0, self._tuning.histogram_bytes // (8 * n_blocks * size) - have)
        more = min(wanted - self._n_free, room)
        if more <= 0:
            return
        slots, valid = self._kept
        self._kept = _Kept(
            np.concatenate([slots, np.empty((more, n_blocks, size), dtype=np.int64)]),
            np.concatenate([valid, np.zeros((more, n_blocks), dtype=np.bool_)]),
        )
        free = np.empty(have + more, dtype=np.int64)
        free[: self._n_free] = self._free[: self._n_free]
        free[self._n_free : self._n_free + more] = np.arange(have, have + more)
        self._free, self._n_free = free, self._n_free + more
