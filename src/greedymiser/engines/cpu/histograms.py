"""The histograms of a growing tree: what is kept, what is counted, who does it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.threads import Threads
from greedymiser.data.binning import LANES
from greedymiser.engines.cpu.kernels import counting
from greedymiser.engines.cpu.state import (
    AskedLevel,
    CountingPieces,
    Data,
    Kept,
    TreeState,
    Tuning,
)
from greedymiser.engines.interface import CANDIDATE_DTYPE, SPLIT_DTYPE, Columns, SplitTable
from greedymiser.engines.scanning import BINS
from greedymiser.model.trees import CATEGORY_WORDS

NO_PAIRS = np.empty(0, dtype=counting.PAIR_DTYPE)
NO_SPLITS = np.empty(0, dtype=SPLIT_DTYPE)


class Histograms:
    """Counts, subtracts and scans; keeps what the next level can subtract from."""

    def __init__(self, data: Data, threads: Threads, tuning: Tuning):
        self._data, self._plain_data = data, tuple(data)
        self._threads = threads
        self._tuning = tuning
        self._n_rows = data.codes.shape[1]
        self._n_categorical = int(np.count_nonzero(data.features["categorical"] >= 0))
        self._active = np.empty(len(data.codes), dtype=np.bool_)
        self._make_room(1)
        self.begin(1, is_bounded=False)

    def begin(self, bin_words: int, is_bounded: bool) -> None:
        """Forget the tree before; values of the next are bounded, or are not."""
        # Whether there is nothing but numeric features without bounds; see ``scanning.scan``.
        self._is_plain = self._n_categorical == 0 and not is_bounded
        if self._partial.shape[1] != LANES * BINS * bin_words:
            self._make_room(bin_words)
        self._n_free = len(self._kept.slots)
        self._free = np.arange(self._n_free)
        self._pairs, self._splits = NO_PAIRS, NO_SPLITS

    def _make_room(self, bin_words: int) -> None:
        n_blocks, size = len(self._data.codes), LANES * BINS * bin_words
        none = np.empty((0, n_blocks, size), dtype=np.int64)
        self._kept = Kept(none, np.empty((0, n_blocks), dtype=np.bool_))
        self._partial = np.empty((0, size), dtype=np.int64)

    def find(
        self, state: TreeState, nodes: NDArray[np.void], columns: Columns, last: bool
    ) -> SplitTable:
        """Best split of each node on each feature in play."""
        data, n_threads, n_nodes = self._data, self._threads.n_threads, len(nodes)
        candidates = np.empty((n_nodes, len(data.features)), dtype=CANDIDATE_DTYPE)
        sets = np.zeros((n_nodes, self._n_categorical or 1, CATEGORY_WORDS), dtype=np.uint64)
        # Where there may be too few blocks for all threads, rows are cut as well.
        few = n_threads > 1 and self._n_rows >= 2 * self._tuning.rows
        if few and last:
            few = np.count_nonzero(columns.any(axis=0)) < 2 * n_threads * LANES
        keep = few or not last
        # One for each pair of siblings: the larger takes that of their parent.
        wanted = max(1, len(self._splits))
        if keep and self._n_free < wanted:
            self._grow_slots(wanted)
        pairs = np.empty(n_nodes, dtype=counting.PAIR_DTYPE)
        given = (self._plain_data, tuple(state), tuple(self._kept))
        before = (keep, self._free, self._n_free, self._pairs, self._splits)
        found = (candidates, None if self._is_plain else sets)
        # What is to be done at most decides whether anybody is woken up.
        most = len(data.codes) * LANES * (self._n_rows + BINS * n_nodes)
        least = 2 * self._tuning.cells
        teams = self._threads.alone, self._threads.team(most, least)
        limits = least, 2 * n_threads if few else 0, 2 * self._tuning.rows
        n_pairs, self._n_free, cells = counting.find_splits(
            teams, limits, *given, before, (nodes, pairs, columns, self._active), *found
        )
        self._pairs = pairs[:n_pairs]
        if cells >= 0:
            level = (nodes, self._pairs, columns, self._active)
            pieces = self._cut_rows(state, AskedLevel(*level), cells)
            counting.count_and_find(teams[1], *given, level, tuple(pieces), *found)
        return SplitTable(candidates, sets)

    def divided(self, splits: NDArray[np.void]) -> None:
        """Learn which nodes were split: the histograms of the others are given up."""
        self._splits = splits

    def _cut_rows(self, state: TreeState, level: AskedLevel, cells: int) -> CountingPieces:
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
        return CountingPieces(pieces[:n_pieces], firsts, self._partial)

    def _grow_slots(self, wanted: int) -> None:
        have, (n_blocks, size) = len(self._kept.slots), self._kept.slots.shape[1:]
        room = max(0, self._tuning.histogram_bytes // (8 * n_blocks * size) - have)
        more = min(wanted - self._n_free, room)
        if more <= 0:
            return
        slots, valid = self._kept
        self._kept = Kept(
            np.concatenate([slots, np.empty((more, n_blocks, size), dtype=np.int64)]),
            np.concatenate([valid, np.zeros((more, n_blocks), dtype=np.bool_)]),
        )
        free = np.empty(have + more, dtype=np.int64)
        free[: self._n_free] = self._free[: self._n_free]
        free[self._n_free : self._n_free + more] = np.arange(have, have + more)
        self._free, self._n_free = free, self._n_free + more
