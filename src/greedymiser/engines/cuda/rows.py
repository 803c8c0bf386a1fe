"""Rows in the memory of a GPU, and all that belongs to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.arithmetic import SUM_WORDS, add_exactly, exact_sum, new_sums, rounded
from greedymiser._core.threads import Threads
from greedymiser.data.binning import BinnedMatrix
from greedymiser.engines.cpu.derivatives import Derivatives, derivatives_of
from greedymiser.engines.cpu.kernels import counting as cpu_counting
from greedymiser.engines.cpu.partition import NODES
from greedymiser.engines.cuda.device import cuda, room_for, sent
from greedymiser.engines.cuda.histograms import Histograms, slots_of
from greedymiser.engines.cuda.kernels import counting, planning, rows, scanning
from greedymiser.engines.cuda.layout import (
    DIVIDED,
    F_CATEGORICAL,
    F_HAS_MISSING,
    F_LANE,
    F_MONOTONE,
    F_N_BINS,
    FEATURE,
    LEFT_FLOAT,
    RIGHT_FLOAT,
    TREE_NODE,
)
from greedymiser.engines.cuda.marks import CudaMarks
from greedymiser.engines.cuda.queries import CudaQueries, are_computed_here, query_bytes
from greedymiser.engines.cuda.stream import Stream
from greedymiser.engines.cuda.transfer import TransferBuffer
from greedymiser.engines.grid import SMALLEST, Extremes, Grid
from greedymiser.engines.interface import (
    SPLIT_DTYPE,
    Columns,
    Floats,
    Root,
    Sample,
    SplitRules,
    SplitTable,
)
from greedymiser.engines.marks import Marks
from greedymiser.engines.sampling import RowLot
from greedymiser.losses import LambdaMART
from greedymiser.model.trees import CATEGORY_WORDS, Tree

NOTHING = np.empty(0)
NO_WORDS, NO_MASKS = np.empty(0, dtype=np.int64), np.empty((0, 0), dtype=np.int64)
NO_SPLITS = np.empty(0, dtype=SPLIT_DTYPE), np.empty((0, CATEGORY_WORDS), dtype=np.uint64)

# Kernels that nearly every fit launches, the largest first.
USUAL = (
    rows.evaluate, scanning.scan, counting.count_one, counting.count_two, rows.divide_rows,
    rows.quantise_all, rows.measure_derivatives, counting.clear, rows.add_leaves,
)  # fmt: skip

# The digit of an exact sum from which on those lie that are of the size of 1 (``arithmetic``).
NEAR_ONE = (1022 >> 5) - 1


class CudaRows:
    """All rows in one shard, on one device.

    Losses with a formula are computed there, and LambdaMART. Those that only Python knows, and
    LambdaMART of very long queries, are computed here by all threads, and their derivatives sent;
    every number is the same either way.
    """

    grid: Grid

    def __init__(self, sample: Sample, threads: Threads):
        self.sample = sample
        self.n_rows = sample.binned.n_rows
        self._threads = threads
        self._stream = Stream()
        self._buffer, self._leaves = TransferBuffer(self._stream), TransferBuffer(self._stream)
        self._verdict = TransferBuffer(self._stream)
        self._features = describe_features(sample.binned)
        self._codes = sent(sample.binned.codes)
        n, k = self.n_rows, sample.loss.n_outputs
        self._raw = room_for((k, n), dtype=np.float64)
        # What came back of it when somebody looked.
        self._raw_here: Floats | None = None
        self._nothing = sent(np.empty((0, 0)))
        self._no_bits = sent(np.empty((0, 0), dtype=np.int64))
        no_weight = np.empty(0)
        self._y = sent(np.ascontiguousarray(sample.y, dtype=np.float64))
        self._weight = sent(no_weight if sample.weight is None else sample.weight)
        self._heaviest = 1.0 if sample.weight is None else float(sample.weight.max())
        self._weight_row = self._weight.reshape(min(1, self._weight.size), self._weight.size)
        self._total = float(n) if sample.weight is None else exact_sum(sample.weight)
        self._grid_of_rows = rows.blocks_for(n), 1
        self._queries: CudaQueries | None = None
        if are_computed_here(sample):
            self._queries = CudaQueries(sample, self._stream)
            self._total = self._queries.total
        # What only training needs: rows that only validate do without it.
        self._tree: _Trees | None = None
        self._on_host: Derivatives | None = None
        self._near = NEAR_ONE
        self._marks: CudaMarks | None = None
        # What the loss said of the raw predictions as they are; None if they have changed.
        self._said: NDArray[np.int64] | None = None

    # -- a model ----------------------------------------------------------------------------------

    def start(
        self, raw: Floats, marks: Marks | None = None, had: NDArray[np.bool_] | None = None
    ) -> None:
        full = np.empty(self._raw.shape)
        full[:] = raw if raw.ndim == 2 else raw[:, None]
        self._stream.send(full, self._raw, full.nbytes)
        self._stream.wait()
        self._said = None
        self._marks = None
        if marks is not None:
            self._marks = CudaMarks(marks, self.sample, self._stream, had)

    def raw(self) -> Floats:
        if self._raw_here is None:
            self._raw_here = cuda.pinned_array(tuple(self._raw.shape), dtype=np.float64)
        self._stream.fetch(self._raw, self._raw_here, self._raw_here.nbytes)
        self._stream.wait()
        return self._raw_here

    def loss(self) -> float:
        sample, loss = self.sample, self.sample.loss
        if self._is_known:
            mean = float(rounded(self._evaluated()[:SUM_WORDS])) / self._total
            return mean if self._queries is None else 1.0 - mean
        raw = self.raw()
        seen = raw if loss.n_outputs > 1 else raw[0]
        if loss.is_additive:
            values = np.asarray(loss.values(sample.y, seen), dtype=np.float64)
            weighted = values if sample.weight is None else values * sample.weight
            total = new_sums()[0]
            add_exactly(total, np.ascontiguousarray(weighted))
            return float(rounded(total)) / self._total
        if type(loss) is LambdaMART:
            return loss.value_by(self._threads.team(), sample.y, raw[0], sample.weight)
        return float(loss.value(sample.y, seen, sample.weight))

    def add_tree(self, tree: Tree, output: int) -> None:
        needed = int(tree.nodes["feature"].max()) + 1
        if needed > len(self._features):
            raise ValueError(
                f"the tree asks for {needed} features, but the rows have {len(self._features)}"
            )
        n_words = len(tree.nodes) * TREE_NODE
        plan = self._buffer.room(n_words)
        planning.plan_walk(tree.nodes, tree.category_sets, self._features, plan)
        self._buffer.send(n_words)
        arrays = self._codes, self._buffer.there, self._buffer.floats, self._raw
        self._launch(rows.add_tree, self._grid_of_rows, arrays, output)
        self._said = None
        if self._marks is not None:
            self._marks.walk(self._codes, self._buffer.there, tree, self._grid_of_rows)

    # -- derivatives ------------------------------------------------------------------------------

    @property
    def _is_known(self) -> bool:
        """Whether the device computes the loss."""
        return self.sample.loss.formula is not None or self._queries is not None

    def _evaluated(self) -> NDArray[np.int64]:
        """What the loss says of the raw predictions: digits of its sum, and extremes as bits.

        For LambdaMART it is the sum of the NDCG; and rows that only validate have no derivatives.
        """
        if self._said is not None:
            return self._said
        n_words = SUM_WORDS + 2 * len(self._raw)
        self._verdict.room(n_words)[:n_words] = 0
        self._verdict.send(n_words)
        if self._queries is None:
            self._evaluate_formula()
        else:
            self._queries.add_scores(self._raw, self._verdict.there, self._near)
            if self._tree is not None:
                tree = self._tree
                self._queries.write_lambdas(self._raw, self._y, tree.gradients, tree.hessians)
                self._measure(tree.gradients, tree.hessians)
        self._said = self._verdict.fetch(n_words)[:n_words].copy()
        self._near = near_digits(self._said, self._near)
        return self._said

    def _evaluate_formula(self) -> None:
        formula, tree = self.sample.loss.formula, self._trees()
        assert formula is not None
        arrays = self._y, self._raw, self._weight, tree.gradients, tree.hessians
        self._launch(
            rows.evaluate, self._grid_of_rows, (*arrays, self._verdict.there), formula.kind,
            float(formula.parameter), self._near,
        )  # fmt: skip
        self._measure(tree.gradients, self._nothing if formula.is_flat else tree.hessians)

    def _measure(self, gradients: Any, hessians: Any) -> None:
        """Multiply derivatives by their weights; find the largest."""
        grid = self._grid_of_rows[0], len(self._raw)
        arrays = gradients, hessians, self._weight, self._verdict.there
        self._launch(rows.measure_derivatives, grid, arrays, SUM_WORDS)

    def _launch(self, kernel: Any, grid: tuple[int, int], arrays: Any, *scalars: Any) -> None:
        self._stream.launch(kernel, grid, rows.THREADS, arrays, *scalars)

    def _trees(self) -> _Trees:
        if self._tree is None:
            self._tree = _Trees(self)
            self._said = None  # without a place for them, nothing was said of derivatives
        return self._tree

    def _derive(self, step: str) -> None:
        """Bring the derivatives up to date, at the beginning of a round."""
        loss, tree = self.sample.loss, self._trees()
        if not self._is_known:
            if self._on_host is None:
                # In memory that the device can read from by itself.
                self._on_host = derivatives_of(self.sample, cuda.pinned_array)
            self._on_host.derive(self.raw(), step, self._threads.team())
            return
        extremes = self._evaluated()[SUM_WORDS:].view(np.float64).reshape(-1, 2)
        is_flat = loss.formula is not None and loss.formula.is_flat
        tree.is_flat = is_flat or step == "gradient"
        if not np.isfinite(extremes[:, 0]).all():
            raise ValueError("the loss returned gradients that are not finite")
        if not tree.is_flat and not np.isfinite(extremes[:, 1]).all():
            raise ValueError("the loss returned hessians that are not finite")
        tree.extremes = extremes.copy()

    def _extremes(self, output: int) -> tuple[Extremes, Any, Any, int]:
        """What a grid is chosen from; where gradients and Hessians are, and in which row."""
        tree, sample = self._trees(), self.sample
        if self._on_host is not None:
            gradients, hessians = self._on_host.of_output(output)
            self._stream.send(gradients, tree.gradients, gradients.nbytes)
            there = self._nothing
            if len(hessians) > 0:
                there = tree.hessians
                self._stream.send(hessians, there, hessians.nbytes)
            self._stream.wait()
            return self._on_host.extremes(output), tree.gradients, there, 0
        gradient, hessian = tree.extremes[output].tolist()
        if not tree.is_flat:
            return Extremes(gradient, hessian, False), tree.gradients, tree.hessians, output
        if sample.weight is None:
            return Extremes(gradient, 1.0, True), tree.gradients, self._nothing, output
        return Extremes(gradient, self._heaviest, False), tree.gradients, self._weight_row, output

    # -- a tree -----------------------------------------------------------------------------------

    def begin_tree(
        self, output: int, rules: SplitRules, step: str = "newton", lot: RowLot | None = None
    ) -> Root:
        if output == 0:
            self._derive(step)
        tree = self._trees()
        extremes, gradients, hessians, at = self._extremes(output)
        grid = self.sample.grids.choose(self.n_rows, extremes)
        self.grid, self._output, self._rules = grid, output, rules
        tree.begin(grid, coding_of(grid, extremes), rules)
        n_rows = self.n_rows if lot is None else tree.draw(lot, self.sample)
        if rules.monotonic_cst is not None:
            self._features[:, F_MONOTONE] = rules.monotonic_cst
        tree.histograms.begin(grid, rules, self._features)
        self._buffer.room(3)[:3] = 0
        self._buffer.send(3)
        buffer = self._buffer.there, self._buffer.floats
        self._launch(
            rows.quantise_all if lot is None else rows.quantise_listed, self._grid_of_rows,
            (gradients, hessians, tree.rows, tree.words, *buffer),
            at, grid.gradient, grid.hessian, *tree.coding, int(rules.bound_gains),
            n_rows,
        )  # fmt: skip
        said = self._buffer.fetch(3)
        energy = float(said[2:3].view(np.float64)[0]) if rules.bound_gains else math.inf
        return Root(int(said[0]), int(said[1]), n_rows, energy)

    def split_table(self, nodes: NDArray[np.void], columns: Columns, last: bool) -> SplitTable:
        return self._trees().histograms.find(self._trees(), nodes, columns)

    def partition(
        self, splits: NDArray[np.void], category_sets: NDArray[np.uint64], last: bool
    ) -> Floats:
        tree, marks = self._trees(), self._marks
        tree.histograms.divided(splits)
        tree.weighed = 0, NO_WORDS
        if last and marks is None and not self.sample.loss.renews_leaves:
            tree.noted = splits, category_sets
            return NOTHING
        n_splits, n_divided = len(splits), len(splits) * DIVIDED
        tree.make_room(2 * n_splits)
        # Behind the nodes are the bits that they leave on their rows, and the children to weigh.
        masks, bits = NO_MASKS, self._no_bits
        n_weighed, n_found, weigh_tiles = 0, 0, 0
        if marks is not None:
            masks, bits = marks.masks_of(splits["feature"]), marks.bits
            n_weighed = 0 if last else 2 * n_splits
            n_found = marks.words_to_weigh(n_weighed)
        weighed_at = n_divided + masks.size
        plan = self._buffer.room(weighed_at + n_found)
        n_tiles = planning.plan_dividing(
            splits, category_sets, tree.nodes, self._features, rows.THREADS, plan
        )
        plan[n_divided:weighed_at] = masks.ravel()
        first = int(splits["left"][0])
        if marks is not None and n_weighed > 0:
            weigh_tiles = marks.plan(tree.nodes[first : first + n_weighed], plan[weighed_at:])
        self._buffer.send(weighed_at + n_found)
        bounded, grid = self._rules.bound_gains and not last, self.grid
        self._launch(
            rows.divide_rows, (n_tiles, 1),
            (self._codes, tree.rows, tree.words, self._buffer.there, self._buffer.floats, bits),
            n_splits, grid.row_words, grid.gradient, grid.hessian, *tree.coding, int(bounded),
        )  # fmt: skip
        if marks is not None and n_weighed > 0:
            marks.launch(tree.rows, self._buffer, weighed_at, n_weighed, weigh_tiles)
        elif not bounded:
            return NOTHING
        said = self._buffer.fetch(weighed_at + n_found)
        tree.weighed = first, said[weighed_at:].copy()
        if not bounded:
            return NOTHING
        divided = said[:n_divided].view(np.float64).reshape(-1, DIVIDED)
        return divided[:, [LEFT_FLOAT, RIGHT_FLOAT]]

    def marked(self, nodes: NDArray[np.int64] | None, marks: Sequence[int]) -> NDArray[np.int64]:
        assert self._marks is not None
        tree = self._trees()
        if nodes is None:
            every = np.zeros(1, dtype=tree.nodes.dtype)
            every["stop"], every["side"] = self.n_rows, -1
            return self._marks.weigh(tree.rows, every, marks)
        first, found = tree.weighed
        if len(found) > 0 and len(nodes) > 0 and nodes.min() >= first:
            return self._marks.chosen(found, marks)[nodes - first]
        return self._marks.weigh(tree.rows, tree.nodes[nodes], marks)

    def patterns(self, node: int | None) -> NDArray[np.bool_]:
        assert self._marks is not None
        return self._marks.patterns(None if node is None else self._trees().rows_of(node))

    def best_constants(self, leaves: NDArray[np.int64]) -> Floats:
        tree, sample = self._trees(), self.sample
        raw, ids = self.raw()[self._output], tree.rows.copy_to_host()

        def best(leaf: int) -> float:
            mine = np.sort(tree.rows_of(leaf, ids))
            weight = None if sample.weight is None else sample.weight[mine]
            return sample.loss.leaf_value(sample.y[mine] - raw[mine], weight)

        return np.array(self._threads.run(best, [(leaf,) for leaf in leaves.tolist()]))

    def add_leaves(self, leaves: NDArray[np.int64], values: Floats) -> None:
        tree = self._trees()
        plan = self._leaves.room(len(leaves) * DIVIDED)
        n_nodes, n_tiles = planning.plan_leaves(
            leaves, values, *tree.noted, tree.nodes, self._features, rows.THREADS, plan
        )
        self._leaves.send(n_nodes * DIVIDED)
        buffer = self._leaves.there, self._leaves.floats
        arrays = self._codes, tree.rows, *buffer, self._raw
        self._launch(rows.add_leaves, (n_tiles, 1), arrays, n_nodes, self._output)
        self._said = None


class _Trees:
    """What a growing tree needs on the device."""

    def __init__(self, placed: CudaRows):
        n, k = placed.n_rows, placed.sample.loss.n_outputs
        self._stream = placed._stream
        self.gradients = room_for((k, n), dtype=np.float64)
        self.hessians = room_for((k, n), dtype=np.float64)
        # Two buffers between which rows move, and their words.
        self.rows = room_for((2, n), dtype=np.uint32)
        self.words = room_for((2, n), dtype=np.int64)
        # Whether the root holds all rows, in their order.
        self.is_whole = True
        # Rows that were drawn, and the lot that fell on them: trees of a round share them.
        self._drawn: NDArray[np.uint32] | None = None
        self._lot: RowLot | None = None
        self._n_drawn = 0
        self.nodes = np.zeros(NODES, dtype=cpu_counting.NODE_DTYPE)
        self.histograms = Histograms(placed.sample.binned, placed._codes, placed._stream)
        self.extremes = np.zeros((k, 2))
        self.is_flat = True
        self.coding: tuple[int, ...] = (0, 0, 0)
        # The splits of the last level. Their rows were not moved: leaves can be told by codes.
        self.noted = NO_SPLITS
        # The first of the children whose rows were weighed, and what they weigh.
        self.weighed = 0, NO_WORDS

    def begin(self, grid: Grid, coding: counting.Coding, rules: SplitRules) -> None:
        """Put all rows into the root."""
        n = self.rows.shape[1]
        if self.words.shape[1] != n * grid.row_words:
            self._stream.forget()
            self.words = room_for((2, n * grid.row_words), dtype=np.int64)
        self.coding, self.noted = tuple(coding), NO_SPLITS
        self.weighed = 0, NO_WORDS
        self._n_nodes = 1
        self.nodes[0] = 0, n, 0, -1, -1
        self.is_whole = True

    def draw(self, lot: RowLot, sample: Sample) -> int:
        """Leave only rows in the root that a lot falls on; return how many they are."""
        if self._drawn is None:
            self._drawn = cuda.pinned_array(self.rows.shape[1], dtype=np.uint32)
        if lot != self._lot:
            units, first = sample.units, sample.first_row
            if units is None:
                units = np.arange(first, first + sample.binned.n_rows)
            found = np.flatnonzero(lot.falls_on(units))
            # The device has read those before: whoever began a tree has waited for its root.
            self._drawn[: len(found)] = found
            self._lot, self._n_drawn = lot, len(found)
        if self._n_drawn > 0:
            self._stream.send(self._drawn, self.rows, 4 * self._n_drawn)
        self.nodes[0] = 0, self._n_drawn, 0, -1, -1
        self.is_whole = False
        return self._n_drawn

    def rows_of(self, node: int, ids: NDArray[np.uint32] | None = None) -> NDArray[np.uint32]:
        """The rows of a node, in any order; ``ids`` are both buffers, if somebody has them here."""
        if ids is None:
            self._stream.wait()
            ids = self.rows.copy_to_host()
        at = self.nodes[node]
        found: NDArray[np.uint32] = ids[at["side"], at["start"] : at["stop"]]
        return found

    def make_room(self, n_nodes: int) -> None:
        """Make room for so many more nodes."""
        self._n_nodes += n_nodes
        if self._n_nodes > len(self.nodes):
            bigger = np.zeros(2 * self._n_nodes, dtype=self.nodes.dtype)
            bigger[: len(self.nodes)] = self.nodes
            self.nodes = bigger


def bytes_needed(sample: Sample, memory: float) -> float:
    """What rows take of a device with so much memory, at most."""
    n, k, codes = sample.binned.n_rows, sample.loss.n_outputs, sample.binned.codes
    # Targets, weights; raw predictions and derivatives; two buffers of rows with their words.
    per_row = 8 * 2 + 8 * 3 * k + 2 * (4 + 8 * 2)
    histograms = 8 * 3 * counting.CELLS * len(codes) * slots_of(len(codes), 3, memory)
    return codes.nbytes + n * per_row + histograms + query_bytes(sample)


def describe_features(binned: BinnedMatrix) -> NDArray[np.int64]:
    """What kernels must know of features (``words``); nothing is monotone yet."""
    features = np.zeros((binned.n_features, FEATURE), dtype=np.int64)
    features[:, F_LANE] = binned.feature_lane
    features[:, F_N_BINS] = binned.n_bins
    positions = np.cumsum(binned.is_categorical) - 1
    features[:, F_CATEGORICAL] = np.where(binned.is_categorical, positions, -1)
    features[:, F_HAS_MISSING] = binned.has_missing
    return features


def coding_of(grid: Grid, extremes: Extremes) -> counting.Coding:
    """How a row's integers are cut into parts."""
    gradient_bits = bits_on(grid.gradient, extremes.gradient)
    if grid.row_words == 1:
        return counting.Coding.of(grid, gradient_bits, 0)
    return counting.Coding.of(grid, bits_on(grid.hessian, extremes.hessian), gradient_bits)


def bits_on(step: float, largest: float) -> int:
    """Bits, beside a sign, of the largest number on a grid with this step."""
    if largest < SMALLEST:
        return 1
    return max(1, math.frexp(largest)[1] - math.frexp(step)[1] + 1)


def near_digits(said: NDArray[np.int64], before: int) -> int:
    """The digits that most values of a loss have, by the leading one of their sum."""
    used = np.flatnonzero(said[: SUM_WORDS - 3])
    if len(used) == 0:
        return before
    # A sum of many is up to 2^32 times as large as one of them.
    return int(np.clip(used[-1] - 3, 0, SUM_WORDS - 3 - rows.NEAR))
