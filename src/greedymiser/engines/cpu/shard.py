"""Rows in the memory of this machine, and all that belongs to them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.arithmetic import SUM_TABLE, add_exactly, new_sums
from greedymiser._core.threads import Team, Threads
from greedymiser.data.binning import LANES
from greedymiser.engines.cpu.derivatives import NOTHING, Derivatives, derivatives_of
from greedymiser.engines.cpu.kernels import counting, rows
from greedymiser.engines.cpu.marks import CpuMarks
from greedymiser.engines.cpu.partition import ALL_ROWS, Partition
from greedymiser.engines.cpu.state import Data, Tuning
from greedymiser.engines.grid import Extremes, Grid
from greedymiser.engines.interface import Floats, Root, Sample, SplitRules
from greedymiser.engines.marks import Marks
from greedymiser.engines.sampling import RowLot
from greedymiser.engines.scanning import BINS, describe_features
from greedymiser.losses import LambdaMART
from greedymiser.model.trees import Tree


class CpuShard:
    """A shard that works with Numba kernels on some threads."""

    grid: Grid

    def __init__(self, sample: Sample, threads: Threads, tuning: Tuning):
        binned = sample.binned
        self.sample = sample
        self._formula = sample.loss.formula
        self.n_rows = binned.n_rows
        self._threads = threads
        self._tuning = tuning
        second_half = binned.lane_feature.reshape(-1, LANES)[:, LANES // 2 :]
        is_half = np.max(second_half, axis=1) < 0
        features = describe_features(binned)
        self._data = Data(binned.codes, binned.lane_feature, binned.feature_lane, features, is_half)
        self._raw = np.empty((sample.loss.n_outputs, self.n_rows))
        self._weight = NOTHING if sample.weight is None else sample.weight
        self._tables = np.zeros((threads.n_threads, SUM_TABLE), dtype=np.int64)
        # What only training needs: rows that only validate do without it.
        self._derivatives: Derivatives | None = None
        self._partition: Partition | None = None
        self._marks: CpuMarks | None = None

    # -- a model ----------------------------------------------------------------------------------

    def start(
        self, raw: Floats, marks: Marks | None = None, had: NDArray[np.bool_] | None = None
    ) -> None:
        self._raw[:] = raw if raw.ndim == 2 else raw[:, None]
        self._marks = None
        if marks is not None:
            self._marks = CpuMarks(marks, self.sample, self._threads, self._tuning, had)

    def raw(self) -> Floats:
        return self._raw

    def loss_sum(self) -> NDArray[np.int64]:
        sample, formula = self.sample, self._formula
        totals = new_sums(self._threads.n_threads)
        if type(sample.loss) is LambdaMART:
            arguments = sample.y, self._raw[0], sample.weight
            sample.loss.add_scores(self._team(), *arguments, totals[0])
        elif formula is not None:
            rows.sum_loss(
                self._team(), formula, sample.y, self._raw, self._weight, totals, self._tables
            )
        else:
            seen = self._raw if sample.loss.n_outputs > 1 else self._raw[0]
            values = np.asarray(sample.loss.values(sample.y, seen), dtype=np.float64)
            weighted = values if sample.weight is None else values * sample.weight
            add_exactly(totals[0], np.ascontiguousarray(weighted))
        return totals[0]

    def add_tree(self, tree: Tree, output: int) -> None:
        needed = int(tree.nodes["feature"].max()) + 1
        if needed > len(self._data.features):
            raise ValueError(
                f"the tree asks for {needed} features, but the rows have {len(self._data.features)}"
            )
        raw, sets = self._raw[output], tree.category_sets
        rows.add_tree(self._team(), tuple(self._data), tree.nodes, sets, raw)
        if self._marks is not None:
            self._marks.walk(self._data, tree)

    # -- a tree -----------------------------------------------------------------------------------

    def derive(self, step: str) -> None:
        if self._derivatives is None:
            self._derivatives = derivatives_of(self.sample)
        self._derivatives.derive(self._raw, step, self._team())

    def extremes(self, output: int) -> Extremes:
        assert self._derivatives is not None
        return self._derivatives.extremes(output)

    def begin(self, output: int, grid: Grid, rules: SplitRules, lot: RowLot | None = None) -> Root:
        assert self._derivatives is not None
        if self._partition is None:
            self._partition = Partition(self._data, self._threads, self._tuning)
        if rules.monotonic_cst is not None:
            self._data.features["monotone"] = rules.monotonic_cst
        self.grid, self._output, self._rules = grid, output, rules
        gradients, hessians = self._derivatives.of_output(output)
        if lot is not None:
            units = ALL_ROWS if self.sample.units is None else self.sample.units
            units_of_lot = (lot, units, self.sample.first_row)
            gradients, hessians = self._partition.draw(gradients, hessians, *units_of_lot)
        return self._partition.begin(gradients, hessians, grid, rules, lot is None)

    def count(self, nodes: NDArray[np.int64], blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        assert self._partition is not None
        shape = (len(nodes), len(blocks), LANES * BINS * self.grid.bin_words)
        histograms = np.empty(shape, dtype=np.int64)
        team = self._threads.team()
        state = self._partition.state
        counting.count_nodes(team, tuple(self._data), tuple(state), nodes, blocks, histograms)
        return histograms

    def partition(
        self, splits: NDArray[np.void], category_sets: NDArray[np.uint64], last: bool
    ) -> Floats:
        assert self._partition is not None
        if self._marks is not None:
            self._marks.mark(self._partition.state, splits)
        if last and not self.sample.loss.renews_leaves:
            self._partition.note(splits, category_sets)
            return NOTHING
        bound_gains = self._rules.bound_gains and not last
        return self._partition.divide(splits, category_sets, not last, bound_gains)

    def marked(self, nodes: NDArray[np.int64] | None, marks: Sequence[int]) -> NDArray[np.int64]:
        assert self._marks is not None
        if nodes is None:
            return self._marks.weigh_all(marks)
        assert self._partition is not None
        return self._marks.weigh(self._partition.state, nodes, marks)

    def patterns(self, node: int | None) -> NDArray[np.bool_]:
        assert self._marks is not None
        if node is None:
            return self._marks.patterns(None)
        assert self._partition is not None
        return self._marks.patterns(self._partition.leaf_rows(node))

    def residuals(self, leaf: int) -> tuple[Floats, Floats | None]:
        """Targets minus raw predictions of the rows of a leaf, and their weights."""
        sample, mine = self.sample, self.leaf_rows(leaf)
        weight = None if sample.weight is None else sample.weight[mine]
        return sample.y[mine] - self._raw[self._output][mine], weight

    def leaf_rows(self, leaf: int) -> NDArray[np.uint32]:
        """Rows of a leaf, ascending."""
        assert self._partition is not None
        return self._partition.leaf_rows(leaf)

    def add_leaves(self, leaves: NDArray[np.int64], values: Floats) -> None:
        assert self._partition is not None
        self._partition.add_leaves(leaves, values, self._raw[self._output])

    def _team(self) -> Team:
        return self._threads.team(self.n_rows, 2 * self._tuning.rows)
