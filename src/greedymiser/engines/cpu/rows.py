"""All rows in the memory of this machine, as a grower asks them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.arithmetic import exact_sum, rounded
from greedymiser._core.threads import Team, Threads
from greedymiser.engines.cpu.histograms import Histograms, Lent
from greedymiser.engines.cpu.shard import CpuShard
from greedymiser.engines.cpu.state import Tuning
from greedymiser.engines.interface import Columns, Floats, Root, Sample, SplitRules, SplitTable
from greedymiser.engines.sampling import RowLot
from greedymiser.losses import LambdaMART


class Memory(NamedTuple):
    """Rows and the tree that grows on them, for a kernel that grows all of it."""

    # ``Data`` and ``TreeState``, as plain tuples.
    data: tuple[Any, ...]
    state: tuple[Any, ...]
    counted: Lent
    # A team, the longest piece of rows, and flags; see ``rows.divide_level``.
    divided: tuple[Team, int, NDArray[np.bool_]]
    # Whether the rows of the last level are moved as well.
    moves_last: bool


class CpuRows(CpuShard):
    """All rows in one shard: a histogram is scanned while it is still in the cache."""

    def __init__(self, sample: Sample, threads: Threads, tuning: Tuning):
        super().__init__(sample, threads, tuning)
        self._total = float(self.n_rows) if sample.weight is None else exact_sum(sample.weight)
        self._histograms: Histograms | None = None

    def begin_tree(
        self, output: int, rules: SplitRules, step: str = "newton", lot: RowLot | None = None
    ) -> Root:
        if output == 0:
            self.derive(step)
        grid = self.sample.grids.choose(self.n_rows, self.extremes(output))
        if self._histograms is None:
            self._histograms = Histograms(self._data, self._threads, self._tuning)
        self._histograms.begin(grid.bin_words, rules.monotonic_cst is not None)
        return self.begin(output, grid, rules, lot)

    def lend(self, depth: int, n_columns: int) -> Memory | None:
        """What a kernel wants that grows a tree of so many levels at most, on so many features.

        None where rows are marked between the levels.
        """
        if self._marks is not None:
            return None
        assert self._histograms is not None
        assert self._partition is not None
        divided = self._partition.lend(2 ** (depth + 1) - 1)
        lent = self._histograms.lend(depth, n_columns)
        state = tuple(self._partition.state)
        return Memory(tuple(self._data), state, lent, divided, self.sample.loss.renews_leaves)

    def note(self, splits: NDArray[np.void], category_sets: NDArray[np.uint64]) -> None:
        """Remember splits whose children are leaves, and whose rows were not moved."""
        assert self._partition is not None
        self._partition.note(splits, category_sets)

    def split_table(self, nodes: NDArray[np.void], columns: Columns, last: bool) -> SplitTable:
        assert self._histograms is not None
        assert self._partition is not None
        return self._histograms.find(self._partition.state, nodes, columns, last)

    def partition(
        self, splits: NDArray[np.void], category_sets: NDArray[np.uint64], last: bool
    ) -> Floats:
        assert self._histograms is not None
        self._histograms.divided(splits)
        return super().partition(splits, category_sets, last)

    def best_constants(self, leaves: NDArray[np.int64]) -> Floats:
        def best(leaf: int) -> float:
            return self.sample.loss.leaf_value(*self.residuals(leaf))

        return np.array(self._threads.run(best, [(leaf,) for leaf in leaves.tolist()]))

    def loss(self) -> float:
        loss = self.sample.loss
        if loss.is_additive:
            return float(rounded(self.loss_sum())) / self._total
        if type(loss) is LambdaMART:
            return loss.value_by(self._team(), self.sample.y, self._raw[0], self.sample.weight)
        seen = self._raw if loss.n_outputs > 1 else self._raw[0]
        return float(loss.value(self.sample.y, seen, self.sample.weight))
