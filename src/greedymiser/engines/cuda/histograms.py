"""The histograms of a growing tree on the device, and the split tables that come of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from greedymiser.data.binning import LANES, BinnedMatrix
from greedymiser.engines.cpu.kernels import counting as cpu_counting
from greedymiser.engines.cuda.device import SIMULATED, cuda, room_for, sent
from greedymiser.engines.cuda.kernels import counting, planning, scanning
from greedymiser.engines.cuda.layout import COUNTED, IN_BLOCK, IN_PLAY, OPEN
from greedymiser.engines.cuda.stream import Stream
from greedymiser.engines.cuda.transfer import TransferBuffer
from greedymiser.engines.grid import Grid
from greedymiser.engines.interface import (
    CANDIDATE_DTYPE,
    SPLIT_DTYPE,
    Columns,
    SplitRules,
    SplitTable,
    blank_table,
)
from greedymiser.model.trees import CATEGORY_WORDS

NO_PAIRS = np.empty(0, dtype=cpu_counting.PAIR_DTYPE)
NO_SPLITS = np.empty(0, dtype=SPLIT_DTYPE)

# Blocks of threads that a level is cut into, and the fewest rows of one of them.
MOST_BLOCKS, SHORTEST = (4, 16) if SIMULATED else (3200, 2048)

# Histograms that are kept at most, and the share of the device's memory that they may take.
MOST_SLOTS, SHARE = 256, 8


def slots_of(n_blocks: int, bin_words: int, memory: float) -> int:
    """How many histograms fit a device with so much memory; a level needs at least a few."""
    size = 8 * n_blocks * counting.CELLS * bin_words
    return int(max(4, min(MOST_SLOTS, memory / SHARE / size)))


class Histograms:
    """Counts, subtracts and scans; keeps what the next level can subtract from."""

    def __init__(self, binned: BinnedMatrix, codes: Any, stream: Stream):
        self._codes, self._stream = codes, stream
        self._lane_feature, self._feature_lane = binned.lane_feature, binned.feature_lane
        self._n_features = binned.n_features
        self._buffer = TransferBuffer(stream)
        self._active = np.empty(len(binned.codes), dtype=np.bool_)
        self._columns = _ColumnsInPlay(stream, binned.feature_lane)
        self._constants_here = cuda.pinned_array(6, dtype=np.float64)
        self._constants = room_for(6, dtype=np.float64)
        self._known: NDArray[np.int64] | None = None
        self._planes = 0
        shape = binned.n_features, int(np.count_nonzero(binned.is_categorical))
        self._answer = _TableBuffers(stream, *shape)

    def begin(self, grid: Grid, rules: SplitRules, features: NDArray[np.int64]) -> None:
        """Forget the tree before."""
        planes = grid.row_words + 1
        if planes != self._planes:
            self._make_room(planes)
        self._grid = grid
        scale = (grid.gradient, grid.hessian, rules.l2_regularization, rules.min_hessian,
                 float(rules.min_samples_leaf), float(rules.monotonic_cst is not None))  # fmt: skip
        if self._known is None or not np.array_equal(self._known, features):
            self._known = features.copy()
            self._features = sent(self._known)
        self._constants_here[:] = scale
        self._stream.send(self._constants_here, self._constants, 48)
        self._forget()

    def _make_room(self, planes: int) -> None:
        n_blocks, memory = len(self._active), cuda.current_context().get_memory_info().total
        n_slots = slots_of(n_blocks, planes, memory)
        self._planes = planes
        self._stream.forget()
        self._slots: Any = None  # so that there is room for other ones
        self._slots = room_for((n_slots, planes * n_blocks * counting.CELLS), np.int64)
        self._valid = np.zeros((n_blocks, n_slots), dtype=np.bool_)  # as on the CPU

    def _forget(self) -> None:
        self._n_free = self._valid.shape[1]
        self._free = np.arange(self._n_free)
        self._pairs, self._splits = NO_PAIRS, NO_SPLITS

    def divided(self, splits: NDArray[np.void]) -> None:
        """Learn which nodes were split: the histograms of the others are given up."""
        self._splits = splits

    def find(self, tree: Any, nodes: NDArray[np.void], columns: Columns) -> SplitTable:
        """Best split of each node on each feature in play."""
        n_nodes = len(nodes)
        pairs = np.empty(n_nodes, dtype=cpu_counting.PAIR_DTYPE)
        _, n_pairs, self._n_free, n_missing = planning.plan_histograms(
            nodes, columns, self._lane_feature, tree.nodes, self._free, self._n_free,
            self._valid, self._pairs, self._splits, self._active, pairs,
        )  # fmt: skip
        self._pairs = pairs[:n_pairs]
        if n_missing == 0:
            return self._ask(tree, nodes, columns, self._pairs)
        # Too many to keep: every node by itself, a few at a time.
        tree.nodes["slot"] = -1
        self._forget()
        parts = []
        n_slots = self._valid.shape[1]
        for first in range(0, n_nodes, n_slots):
            some = slice(first, first + n_slots)
            own = columns if len(columns) == 1 else columns[some]
            parts.append(self._ask(tree, nodes[some], own, None))
        return SplitTable(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _ask(
        self, tree: Any, nodes: NDArray[np.void], columns: Columns, pairs: NDArray[np.void] | None
    ) -> SplitTable:
        """Count, subtract and scan; with pairs, what the next level needs is kept."""
        n_nodes, n_words = len(nodes), self._grid.row_words
        plan = self._buffer.room(2 * n_nodes * (COUNTED + 1) + len(self._active) + n_nodes * OPEN)
        given = (self._active, MOST_BLOCKS, SHORTEST, plan)
        if pairs is None:
            told = planning.plan_alone(nodes, tree.nodes, tree.is_whole, *given)
        else:
            active, *rest = given
            told = planning.plan_counting(
                nodes, pairs, tree.nodes, tree.is_whole, active, self._valid, *rest
            )
        n_counted, n_pieces, longest, blocks_at, open_at = told
        there, stream, n_blocks = self._buffer.there, self._stream, open_at - blocks_at
        if n_blocks == 0:
            return blank_table(n_nodes, self._n_features, self._answer.n_sets)
        self._buffer.send(open_at + n_nodes * OPEN)
        n_clear = min(MOST_BLOCKS, -(-n_counted * self._slots.shape[1] // counting.THREADS))
        stream.launch(
            counting.clear, (n_clear, 1), counting.THREADS, (self._slots, there),
            n_counted * COUNTED, n_counted,
        )  # fmt: skip
        stream.launch(
            counting.count_one if n_words == 1 else counting.count_two,
            (n_blocks, n_pieces), counting.THREADS,
            (self._codes, tree.rows, tree.words, there, self._slots),
            n_counted, blocks_at, longest, *tree.coding,
        )  # fmt: skip
        in_play, n_masks = self._columns.send(columns, self._active)
        answer = self._answer.room(n_nodes)
        stream.launch(
            scanning.scan, (self._n_features, n_nodes), scanning.THREADS,
            (self._slots, there, self._features, in_play, self._constants, *answer),
            self._planes, open_at, n_masks,
        )  # fmt: skip
        return self._answer.fetch(n_nodes)


class _ColumnsInPlay:
    """Which features are in play, and which only share a block with one; sent when that changes."""

    def __init__(self, stream: Stream, feature_lane: NDArray[np.int32]):
        self._stream = stream
        self._block = feature_lane // LANES
        self._told = b""
        self._make_room(16)

    def _make_room(self, n_masks: int) -> None:
        self._stream.forget()
        shape = n_masks, len(self._block)
        self._here = cuda.pinned_array(shape, dtype=np.uint8)
        self._there = room_for(shape, dtype=np.uint8)

    def send(self, columns: Columns, active: NDArray[np.bool_]) -> tuple[Any, int]:
        """The device's side, and how many rows of it count."""
        n_masks, told = len(columns), columns.tobytes()
        if told != self._told:
            if n_masks > len(self._here):
                self._make_room(2 * n_masks)
            # Nobody reads it now: whoever asked before has had an answer.
            here = self._here[:n_masks]
            np.multiply(active[self._block], np.uint8(IN_BLOCK), out=here, casting="unsafe")
            here += columns.astype(np.uint8) * np.uint8(IN_PLAY)
            self._stream.send(self._here, self._there, here.nbytes)
            self._told = told
        return self._there, n_masks


class _TableBuffers:
    """Where split tables are written on the device, and where they are copied to here."""

    def __init__(self, stream: Stream, n_features: int, n_sets: int):
        self._stream = stream
        self._n_features, self.n_sets = n_features, n_sets
        self._make_room(16)

    def _make_room(self, n_nodes: int) -> None:
        self._stream.forget()
        cells = n_nodes, self._n_features, CANDIDATE_DTYPE.itemsize // 8
        sets = n_nodes, max(1, self.n_sets), CATEGORY_WORDS
        self._cells = room_for(cells, dtype=np.int64)
        self._floats = self._cells.view(np.float64)
        self._sets = room_for(sets, dtype=np.uint64)
        self._cells_here = cuda.pinned_array(cells, dtype=np.int64)
        self._sets_here = cuda.pinned_array(sets, dtype=np.uint64)
        self._sets_here[:] = 0

    def room(self, n_nodes: int) -> tuple[Any, Any, Any]:
        """The device's side: cells as integers and as floats, and sets of categories."""
        if n_nodes > len(self._cells_here):
            self._make_room(2 * n_nodes)
        return self._cells, self._floats, self._sets

    def fetch(self, n_nodes: int) -> SplitTable:
        """Wait for the device, and copy the table."""
        cells, sets = self._cells_here[:n_nodes], self._sets_here[:n_nodes]
        self._stream.fetch(self._cells, self._cells_here, cells.nbytes)
        if self.n_sets > 0:
            self._stream.fetch(self._sets, self._sets_here, sets.nbytes)
        self._stream.wait()
        return SplitTable(cells.copy().view(CANDIDATE_DTYPE)[:, :, 0], sets.copy())
