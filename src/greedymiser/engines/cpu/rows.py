"""All rows in the memory of this machine, as a grower asks them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.arithmetic import exact_sum, rounded
from greedymiser._core.threads import Threads
from greedymiser.engines.cpu.histograms import Histograms
from greedymiser.engines.cpu.shard import CpuShard
from greedymiser.engines.cpu.state import Tuning
from greedymiser.engines.interface import Columns, Floats, Root, Sample, SplitRules, SplitTable
from greedymiser.engines.sampling import RowLot
from greedymiser.losses import LambdaMART


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
