"""The engine for the cores of this machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser.binning import LANES, BinnedMatrix
from greedymiser.engines import Floats, NodeStats, OpenNode, Split, SplitRules, SplitTable, _kernels
from greedymiser.engines._kernels import (
    BINS,
    LANE_DTYPE,
    SCALE_DTYPE,
    TOTALS_DTYPE,
    WORK_DTYPE,
)
from greedymiser.threads import Threads
from greedymiser.trees import CANDIDATE_DTYPE, CATEGORY_WORDS

# Histograms that are kept for subtraction take at most this much memory; what does not fit is
# counted again from its rows.
HISTOGRAM_BYTES = 128 * 2**20

# Finest grid for a gradient or Hessian: more would not change a tree, and below 2^16 rows the
# grid then depends on the largest value alone, not on n.
MOST_BITS = 30
# With fewer bits than this for a gradient, it gets a word to itself.
FEWEST_BITS = 12

# With fewer bits than this for a Hessian (beyond 2^27 rows), sums would be too coarse.
FEWEST_HESSIAN_BITS = 8

# Gradients below this have squares that underflow: they count as 0.
SMALLEST = 1e-150

# Less work than this is not worth a thread: rows to move, and bins to count or scan.
ROWS_PER_TASK = 8192
CELLS_PER_TASK = 100_000


@dataclass
class _Node:
    """Where a node's rows are, and what they sum up to on the integer grids."""

    start: int
    stop: int
    gradient: int
    hessian: int
    parent: int = -1
    # The histogram that is kept for this node; -1 if there is none.
    slot: int = -1

    @property
    def count(self) -> int:
        return self.stop - self.start


class _Mark(NamedTuple):
    """What dividing one piece of a node found."""

    n_left: int
    # Sums of both words over the rows that go left.
    first: int
    second: int
    left_energy: float
    right_energy: float


class CpuEngine:
    """Histograms in Numba kernels, over blocks of eight features, on several threads."""

    def __init__(self, threads: Threads):
        self.threads = threads
        self._alone = Threads(1)

    def place(self, binned: BinnedMatrix, rules: SplitRules) -> None:
        n = binned.n_rows
        self.binned = binned
        self.rules = rules
        self._rows = np.empty(n, dtype=np.uint32)
        self._rows_out = np.empty(n, dtype=np.uint32)
        self._goes_left = np.empty(n, dtype=np.bool_)
        self._words = np.empty((0, 1), dtype=np.int64)
        self._lanes = self._describe_lanes()
        self._n_categorical = int(binned.is_categorical.sum())
        self._slots = np.empty((0, len(binned.codes), LANES * BINS), dtype=np.int64)
        self._valid = np.empty((0, len(binned.codes)), dtype=np.bool_)

    def _describe_lanes(self) -> NDArray[np.void]:
        binned = self.binned
        lanes = np.zeros(len(binned.lane_feature), dtype=LANE_DTYPE)
        feature = binned.lane_feature
        lanes["feature"] = feature
        lanes["n_bins"] = binned.n_bins[feature]
        lanes["has_missing"] = binned.has_missing[feature]
        position = np.where(binned.is_categorical, np.cumsum(binned.is_categorical) - 1, -1)
        lanes["categorical"] = position[feature]
        if self.rules.monotonic_cst is not None:
            lanes["monotone"] = np.asarray(self.rules.monotonic_cst)[feature]
        return lanes

    # -- one tree -------------------------------------------------------------------------------

    def begin(self, gradients: Floats, hessians: Floats | None) -> NodeStats:
        n = len(gradients)
        shift = n.bit_length()
        one_word = hessians is None and 63 - 2 * shift >= FEWEST_BITS
        if not one_word and hessians is None:
            hessians = np.ones(n)
        self._resize(n, 1 if one_word else 2)
        # Sums of n numbers of b bits need b + shift bits beside a sign; the field below a gradient
        # (or Hessian) takes shift bits more.
        beside_count = min(MOST_BITS, 63 - 2 * shift)
        if 63 - 2 * shift < FEWEST_HESSIAN_BITS:
            raise ValueError(f"{n} rows are too many for sums of 64 bits")
        alone = min(MOST_BITS, 62 - shift)
        g_step = _grid_step(gradients, beside_count if one_word else alone)
        h_step = 1.0 if hessians is None else _grid_step(hessians, beside_count)
        self._scale = self._describe_scale(g_step, h_step, shift)

        pieces = self.threads.slices(n, ROWS_PER_TASK)
        if hessians is None:
            totals = self.threads.run(
                lambda start, stop: (
                    _kernels.quantise_one(gradients, 1.0 / g_step, shift, start, stop, self._words),
                    0,
                ),
                pieces,
            )
        else:
            steps = (1.0 / g_step, 1.0 / h_step)
            totals = self.threads.run(
                lambda start, stop: _kernels.quantise_two(
                    gradients, hessians, *steps, shift, start, stop, self._words
                ),
                pieces,
            )
        self._rows[:] = np.arange(n, dtype=np.uint32)
        first, second = (sum(parts) for parts in zip(*totals, strict=True))
        self.nodes = {0: self._node(0, n, first, second)}
        self._free = list(range(len(self._slots)))
        # Whether the children of the present level will be leaves.
        self._last = False
        energies = [math.inf]
        if self.rules.bound_gains:
            energies = self.threads.run(
                lambda start, stop: _kernels.energy(self._words, self._scale[0], start, stop),
                pieces,
            )
        return self._stats(self.nodes[0], sum(energies))

    def _resize(self, n: int, n_words: int) -> None:
        if self._words.shape != (n, n_words):
            self._words = np.empty((n, n_words), dtype=np.int64)
            self._words_out = np.empty((n, n_words), dtype=np.int64)
        size = LANES * BINS * n_words
        if self._slots.shape[2] != size:
            self._slots = np.empty((0, len(self.binned.codes), size), dtype=np.int64)
            self._valid = np.empty((0, len(self.binned.codes)), dtype=np.bool_)

    def _describe_scale(self, g_step: float, h_step: float, shift: int) -> NDArray[np.void]:
        scale = np.zeros(1, dtype=SCALE_DTYPE)
        scale["gradient"], scale["hessian"], scale["shift"] = g_step, h_step, shift
        scale["l2"] = self.rules.l2_regularization
        scale["min_hessian"] = self.rules.min_hessian
        scale["min_count"] = self.rules.min_samples_leaf
        scale["bounded"] = self.rules.monotonic_cst is not None
        return scale

    def _node(self, start: int, stop: int, first: int, second: int, parent: int = -1) -> _Node:
        shift = int(self._scale["shift"][0])
        if self._words.shape[1] == 1:
            return _Node(start, stop, int(first) >> shift, stop - start, parent)
        return _Node(start, stop, int(first), int(second) >> shift, parent)

    def _stats(self, node: _Node, energy: float) -> NodeStats:
        g = node.gradient * float(self._scale["gradient"][0])
        h = node.hessian * float(self._scale["hessian"][0])
        full = h + self.rules.l2_regularization
        # Energies are sums of floats: the slack covers what rounding may have taken from them.
        bound = energy * (1.0 + 1e-9) - (g * g / full if full > 0 else 0.0)
        if self.rules.monotonic_cst is not None:
            bound = math.inf  # bounded values make the parent worse, and the gain larger
        return NodeStats(g, h, node.count, bound)

    # -- splits ---------------------------------------------------------------------------------

    def split_table(
        self, nodes: Sequence[OpenNode], columns: NDArray[np.bool_], last: bool
    ) -> SplitTable:
        n_features = self.binned.n_features
        candidates = np.zeros((len(nodes), n_features), dtype=CANDIDATE_DTYPE)
        candidates["gain"] = -np.inf
        sets = np.zeros((len(nodes), self._n_categorical, CATEGORY_WORDS), dtype=np.uint64)
        totals = np.zeros(len(nodes), dtype=TOTALS_DTYPE)
        for row, node in zip(totals, nodes, strict=True):
            mine = self.nodes[node.id]
            row["gradient"], row["hessian"], row["count"] = mine.gradient, mine.hessian, mine.count
            row["lower"], row["upper"] = node.lower, node.upper
        self._last = last
        work = self._plan(nodes, last)
        lanes = self._lanes.copy()
        lanes["feature"][~np.append(columns, False)[self.binned.lane_feature]] = -1
        active = np.any(lanes["feature"].reshape(-1, LANES) >= 0, axis=1)

        def find(first: int, stop: int) -> None:
            _kernels.find_splits(
                first, stop, active, self.binned.codes, self._rows, self._words, work, totals,
                lanes, self._scale[0], self._slots, self._valid, candidates, sets,
            )  # fmt: skip

        rows = int((work["small_stop"] - work["small_start"]).sum())
        if active.sum() < 4 * self.threads.n_threads and rows >= 2 * ROWS_PER_TASK:
            self._count_in_pieces(work, active)
        per_block = LANES * (rows + BINS * len(nodes))
        smallest = -(-CELLS_PER_TASK // per_block)
        self.threads.run(find, self.threads.slices(len(active), smallest, per_thread=4))
        return SplitTable(candidates, sets)

    def _count_in_pieces(self, work: NDArray[np.void], active: NDArray[np.bool_]) -> None:
        """Where there are too few blocks for all threads, let several of them count one block.

        Integer sums do not depend on how the rows are cut.
        """
        if self.threads.n_threads == 1:
            return

        def count(item: int, block: int, start: int, stop: int) -> NDArray[np.int64]:
            part = np.empty(self._slots.shape[2], dtype=np.int64)
            codes = self.binned.codes[block]
            _kernels.count_rows(codes, self._rows, self._words, start, stop, False, part)
            return part

        items = [i for i, w in enumerate(work) if w["small_slot"] >= 0]
        tasks = [
            (i, int(block), int(work["small_start"][i]) + start, int(work["small_start"][i]) + stop)
            for i in items
            for block in np.flatnonzero(active)
            for start, stop in self.threads.slices(
                int(work["small_stop"][i] - work["small_start"][i]), ROWS_PER_TASK, per_thread=2
            )
        ]
        self._slots[work["small_slot"][items]] = 0
        for (i, block, _, _), part in zip(tasks, self.threads.run(count, tasks), strict=True):
            self._slots[work["small_slot"][i], block] += part
        work["is_counted"][items] = True

    def _plan(self, nodes: Sequence[OpenNode], last: bool) -> NDArray[np.void]:
        """Pair siblings: the smaller is counted, the larger is the parent minus the smaller."""
        row_of = {node.id: row for row, node in enumerate(nodes)}
        pairs: list[tuple[int, int]] = []
        for node in row_of:
            if node == 0:
                pairs.append((0, -1))
                continue
            # Children are numbered in pairs: 1 and 2, 3 and 4, ...
            left = node if node % 2 == 1 else node - 1
            if node != left and left in row_of:
                continue
            small, large = sorted((left, left + 1), key=lambda child: self.nodes[child].count)
            pairs.append((small, large) if large in row_of else (small, -1))
        work = np.zeros(len(pairs), dtype=WORK_DTYPE)
        wanted = 0 if last else len(pairs)
        self._grow_slots(wanted)
        for item, (small, large) in zip(work, pairs, strict=True):
            mine = self.nodes[small]
            item["small_start"], item["small_stop"] = mine.start, mine.stop
            item["small_row"] = row_of.get(small, -1)
            item["is_root"] = small == 0
            if not last and self._free and small in row_of:
                mine.slot = self._free.pop()
            item["small_slot"] = mine.slot
            item["large_row"], item["large_slot"] = -1, -1
            if large >= 0:
                other = self.nodes[large]
                other.slot = self.nodes[other.parent].slot
                self.nodes[other.parent].slot = -1
                if other.slot < 0 and not last and self._free:
                    other.slot = self._free.pop()
                    self._valid[other.slot] = False
                item["large_start"], item["large_stop"] = other.start, other.stop
                item["large_row"], item["large_slot"] = row_of[large], other.slot
        return work

    def _grow_slots(self, wanted: int) -> None:
        missing = wanted - len(self._free)
        bytes_each = max(1, self._slots[:1].nbytes or 8 * math.prod(self._slots.shape[1:]))
        room = max(0, HISTOGRAM_BYTES // bytes_each - len(self._slots))
        more = min(missing, room)
        if more <= 0:
            return
        have = len(self._slots)
        shape = self._slots.shape[1:]
        self._slots = np.concatenate([self._slots, np.empty((more, *shape), dtype=np.int64)])
        self._valid = np.concatenate([self._valid, np.zeros((more, shape[0]), dtype=np.bool_)])
        self._free += range(have, have + more)

    # -- rows -----------------------------------------------------------------------------------

    def partition(self, splits: Sequence[Split]) -> list[tuple[NodeStats, NodeStats]]:
        # All nodes of the level are cut into pieces, so that two runs of threads serve them all.
        pieces = [
            (which, self.nodes[split.node].start + start, self.nodes[split.node].start + stop)
            for which, split in enumerate(splits)
            for start, stop in self.threads.slices(self.nodes[split.node].count, ROWS_PER_TASK)
        ]
        sides = [self._side_of_codes(split) for split in splits]
        threads = self._threads_for(sum(stop - start for _, start, stop in pieces))
        marks = threads.run(
            lambda which, start, stop: self._mark(splits[which], sides[which], start, stop), pieces
        )
        threads.run(self._move, self._destinations(splits, pieces, marks))
        self._swap({split.node for split in splits})
        by_split: list[list[_Mark]] = [[] for _ in splits]
        for (which, _, _), mark in zip(pieces, marks, strict=True):
            by_split[which].append(mark)
        children = [
            self._settle_children(split, mine) for split, mine in zip(splits, by_split, strict=True)
        ]
        split_nodes = {split.node for split in splits}
        for name, node in self.nodes.items():  # nodes that were not split need no histogram
            if node.slot >= 0 and name not in split_nodes:
                self._free.append(node.slot)
                node.slot = -1
        return children

    def _side_of_codes(self, split: Split) -> NDArray[np.bool_]:
        """For each of the 256 codes of a feature, whether it goes left."""
        codes = np.arange(BINS)
        if split.categories is None:
            left = codes <= split.bin
        else:
            bits = split.categories[codes // 64] >> (codes % 64).astype(np.uint64)
            left = (bits & np.uint64(1)).astype(bool)
        left[self.binned.n_bins[split.feature]] = split.missing_left
        return left

    def _mark(self, split: Split, left_codes: NDArray[np.bool_], start: int, stop: int) -> _Mark:
        lane = int(self.binned.feature_lane[split.feature])
        codes = self.binned.codes[lane // LANES]
        n_left = _kernels.mark_left(
            codes, lane % LANES, self._rows, start, stop, left_codes, self._goes_left
        )
        first, second = _kernels.sum_left(self._goes_left, self._words, start, stop)
        energies = (math.inf, math.inf)
        if self.rules.bound_gains:
            energies = _kernels.energy_of_sides(
                self._goes_left, self._words, self._scale[0], start, stop
            )
        return _Mark(n_left, first, second, *energies)

    def _destinations(
        self, splits: Sequence[Split], pieces: list[tuple[int, int, int]], marks: list[_Mark]
    ) -> list[tuple[int, int, int, int]]:
        """Where the left and the right rows of each piece begin in their node: a running count."""
        n_left = [0] * len(splits)
        for (which, _, _), mark in zip(pieces, marks, strict=True):
            n_left[which] += mark.n_left
        left = [self.nodes[split.node].start for split in splits]
        right = [start + n for start, n in zip(left, n_left, strict=True)]
        moves = []
        for (which, start, stop), mark in zip(pieces, marks, strict=True):
            moves.append((start, stop, left[which], right[which]))
            left[which] += mark.n_left
            right[which] += stop - start - mark.n_left
        return moves

    def _move(self, start: int, stop: int, left_at: int, right_at: int) -> None:
        where = (start, stop, left_at, right_at)
        _kernels.scatter(self._goes_left, self._rows, *where, self._rows_out)
        if self._last:
            return  # nobody will count the children
        for word, out in zip(self._words.T, self._words_out.T, strict=True):
            _kernels.scatter(self._goes_left, word, *where, out)

    def _swap(self, split: set[int]) -> None:
        """Make the new order of rows the present one; nodes that were not split stay in place."""
        parents = split | {node.parent for node in self.nodes.values()}
        for name, node in self.nodes.items():
            if name not in parents:
                self._rows_out[node.start : node.stop] = self._rows[node.start : node.stop]
        self._rows, self._rows_out = self._rows_out, self._rows
        if not self._last:
            self._words, self._words_out = self._words_out, self._words

    def _settle_children(self, split: Split, marks: list[_Mark]) -> tuple[NodeStats, NodeStats]:
        node = self.nodes[split.node]
        middle = node.start + sum(mark.n_left for mark in marks)
        first, second = sum(mark.first for mark in marks), sum(mark.second for mark in marks)
        left = self._node(node.start, middle, first, second, split.node)
        right = _Node(
            middle,
            node.stop,
            node.gradient - left.gradient,
            node.hessian - left.hessian,
            split.node,
        )
        self.nodes[split.left], self.nodes[split.left + 1] = left, right
        return (
            self._stats(left, sum(mark.left_energy for mark in marks)),
            self._stats(right, sum(mark.right_energy for mark in marks)),
        )

    def _threads_for(self, n_rows: int) -> Threads:
        """All threads, or only this one where waking the others would take longer."""
        return self.threads if n_rows >= 2 * ROWS_PER_TASK else self._alone

    def leaf_rows(self, node: int) -> NDArray[np.uint32]:
        mine = self.nodes[node]
        return self._rows[mine.start : mine.stop]

    def add_leaves(self, raw: Floats, values: dict[int, float]) -> None:
        self._threads_for(len(raw)).run(
            lambda node, value: _kernels.add_to_rows(raw, self.leaf_rows(node), value),
            values.items(),
        )


def _grid_step(values: Floats, bits: int) -> float:
    """Power of two such that the largest value needs at most ``bits`` bits beside its sign."""
    largest = max(float(values.max()), -float(values.min()))
    if largest < SMALLEST:
        return 1.0  # everything rounds to 0
    _, exponent = math.frexp(largest)  # largest < 2^exponent
    return math.ldexp(1.0, exponent - bits)
