"""The histograms of a growing tree: what is kept, what is counted, who does it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.threads import LINE_WORDS, Team, Threads, cache_aligned
from greedymiser.data.binning import LANES
from greedymiser.engines.cpu.kernels import counting
from greedymiser.engines.cpu.state import Data, Kept, TreeState, Tuning
from greedymiser.engines.interface import CANDIDATE_DTYPE, SPLIT_DTYPE, Columns, SplitTable
from greedymiser.engines.scanning import BINS, SCRATCH
from greedymiser.model.trees import CATEGORY_WORDS

NO_PAIRS = np.empty(0, dtype=counting.PAIR_DTYPE)
NO_SPLITS = np.empty(0, dtype=SPLIT_DTYPE)


class Lent(NamedTuple):
    """What ``counting.find_level`` is given where a tree grows without coming back."""

    # One thread and all of them, and the work that all are for.
    teams: tuple[Team, Team]
    least: int
    # ``Kept``, the slots that nobody uses, and room for ``active``.
    kept: tuple[Any, ...]
    # ``CuttingRoom``, where rows may be cut.
    room: tuple[NDArray[np.int64], int] | None
    n_free: int
    # Whether histograms of the last level are kept, so that its rows may be cut.
    keeps_last: bool
    # Whether there is nothing but numeric features without bounds.
    is_plain: bool


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
        none = cache_aligned((0, n_blocks, size)), cache_aligned((n_blocks, 0)).view(np.bool_)
        n = self._threads.n_threads
        shapes = (n, 2, size), (n, counting.RUN_WORDS), (n, SCRATCH, BINS)
        self._kept = Kept(*none, *(cache_aligned(shape) for shape in shapes))
        self._partial = cache_aligned((0, size))

    def find(
        self, state: TreeState, nodes: NDArray[np.void], columns: Columns, last: bool
    ) -> SplitTable:
        """Best split of each node on each feature in play."""
        data, threads, n_nodes = self._data, self._threads, len(nodes)
        candidates = np.empty((n_nodes, len(data.features)), dtype=CANDIDATE_DTYPE)
        sets = np.zeros((n_nodes, self._n_categorical or 1, CATEGORY_WORDS), dtype=np.uint64)
        # Where there may be too few blocks for all threads, rows are cut as well.
        cuts = threads.n_threads > 1 and self._n_rows >= 2 * self._tuning.rows
        if cuts and last:
            cuts = np.count_nonzero(columns.any(axis=0)) < 2 * threads.n_threads * LANES
        keep = cuts or not last
        # One for each pair of siblings: the larger takes that of their parent.
        wanted = max(1, len(self._splits))
        if keep and self._n_free < wanted:
            self._grow_slots(wanted)
        pairs = np.empty(n_nodes, dtype=counting.PAIR_DTYPE)
        given = (self._plain_data, tuple(state), tuple(self._kept))
        before = (keep, self._free, self._n_free, self._pairs, self._splits)
        # What is to be done at most decides whether anybody is woken up.
        most = len(data.codes) * LANES * (self._n_rows + BINS * n_nodes)
        least = 2 * self._tuning.cells
        n_pairs, self._n_free = counting.find_splits(
            (threads.alone, threads.team(most, least)), least, *given, self._room(cuts), before,
            (nodes, pairs, columns, self._active), candidates, None if self._is_plain else sets,
        )  # fmt: skip
        self._pairs = pairs[:n_pairs]
        return SplitTable(candidates, sets)

    def lend(self, depth: int, n_columns: int) -> Lent:
        """What a kernel wants that grows a whole tree of so many levels."""
        threads, n_open = self._threads, 2 ** (depth - 1)
        cuts = threads.n_threads > 1 and self._n_rows >= 2 * self._tuning.rows
        keeps_last = cuts and n_columns < 2 * threads.n_threads * LANES
        wanted = n_open if keeps_last else max(1, n_open // 2)
        if self._n_free < wanted:
            self._grow_slots(wanted)
        most = len(self._data.codes) * LANES * (self._n_rows + BINS * n_open)
        least = 2 * self._tuning.cells
        kept = tuple(self._kept), self._free, self._active
        teams = threads.alone, threads.team(most, least)
        return Lent(teams, least, kept, self._room(cuts), self._n_free, keeps_last, self._is_plain)

    def _room(self, cuts: bool) -> tuple[NDArray[np.int64], int] | None:
        """``CuttingRoom``, where rows may be cut."""
        if not cuts:
            return None
        if len(self._partial) == 0:
            shape = 4 * self._threads.n_threads, self._partial.shape[1]
            self._partial = cache_aligned(shape)
        return self._partial, self._tuning.rows

    def divided(self, splits: NDArray[np.void]) -> None:
        """Learn which nodes were split: the histograms of the others are given up."""
        self._splits = splits

    def _grow_slots(self, wanted: int) -> None:
        have, (n_blocks, size) = len(self._kept.slots), self._kept.slots.shape[1:]
        room = max(0, self._tuning.histogram_bytes // (8 * n_blocks * size) - have)
        more = min(wanted - self._n_free, room)
        if more <= 0:
            return
        slots = cache_aligned((have + more, n_blocks, size))
        slots[:have] = self._kept.slots
        lines = -(-(have + more) // (8 * LINE_WORDS))
        valid = cache_aligned((n_blocks, lines * LINE_WORDS)).view(np.bool_)
        valid[:, :have] = self._kept.valid[:, :have]
        self._kept = self._kept._replace(slots=slots, valid=valid)
        free = np.empty(have + more, dtype=np.int64)
        free[: self._n_free] = self._free[: self._n_free]
        free[self._n_free : self._n_free + more] = np.arange(have, have + more)
        self._free, self._n_free = free, self._n_free + more
