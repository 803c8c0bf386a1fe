"""Rows in several shards: what is decided once, and adding integers.

The plainest way to make an engine: anything that answers as ``Shard`` does becomes rows that a
model can be trained on, and the model is the same to the last bit however rows are spread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import product

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.arithmetic import exact_sum, rounded
from greedymiser.data.binning import LANES
from greedymiser.engines.grid import Extremes, Grid
from greedymiser.engines.interface import (
    Columns,
    Floats,
    Root,
    Sample,
    Shard,
    SplitRules,
    SplitTable,
)
from greedymiser.engines.marks import Marks, distinct_patterns
from greedymiser.engines.sampling import RowLot
from greedymiser.engines.scanning import BINS, describe_features, describe_scale, scan_table
from greedymiser.losses import LambdaMART, Loss
from greedymiser.losses.ndcg import query_weights
from greedymiser.model.trees import Tree


class ShardedRows:
    """Placed rows whose histograms are added up here.

    Parameters
    ----------
    shards : sequence of Shard
        In the order of their rows.
    sample : Sample
        What is common to all of them; its rows do not matter.
    total_weight : float
        Of all rows, or queries: what ``total_of`` says.
    """

    grid: Grid

    def __init__(self, shards: Sequence[Shard], sample: Sample, total_weight: float):
        self.shards = list(shards)
        self.n_rows = sum(shard.n_rows for shard in shards)
        self._sample = sample
        self._total = total_weight
        self._features = describe_features(sample.binned)
        self._lane_feature = sample.binned.lane_feature.reshape(-1, LANES)

    # -- a model ----------------------------------------------------------------------------------

    def start(
        self, raw: Floats, marks: Marks | None = None, had: NDArray[np.bool_] | None = None
    ) -> None:
        first = 0
        for shard in self.shards:
            last = first + shard.n_rows
            mine = raw if raw.ndim == 1 else raw[:, first:last]
            shard.start(mine, marks, None if had is None else had[first:last])
            first = last

    def raw(self) -> Floats:
        return np.concatenate([shard.raw() for shard in self.shards], axis=1)

    def loss(self) -> float:
        total = np.sum([shard.loss_sum() for shard in self.shards], axis=0)
        return mean_loss(self._sample.loss, total, self._total)

    def add_tree(self, tree: Tree, output: int) -> None:
        for shard in self.shards:
            shard.add_tree(tree, output)

    # -- a tree -----------------------------------------------------------------------------------

    def begin_tree(
        self, output: int, rules: SplitRules, step: str = "newton", lot: RowLot | None = None
    ) -> Root:
        if output == 0:
            for shard in self.shards:
                shard.derive(step)
        extremes = reduce(Extremes.joined, (shard.extremes(output) for shard in self.shards))
        self.grid = self._sample.grids.choose(self.n_rows, extremes)
        self._scale = describe_scale(self.grid, rules)
        if rules.monotonic_cst is not None:
            self._features["monotone"] = rules.monotonic_cst
        # Histograms of nodes by block, as long as a child may be made from them.
        self._kept: dict[tuple[int, int], NDArray[np.int64]] = {}
        roots = [shard.begin(output, self.grid, rules, lot) for shard in self.shards]
        root = Root(*(sum(parts) for parts in zip(*roots, strict=True)))
        self._family = Family(root.n_rows)
        return root

    def split_table(self, nodes: NDArray[np.void], columns: Columns, last: bool) -> SplitTable:
        blocks = blocks_in_play(columns, self._lane_feature)
        histograms = self._histograms(nodes["node"].tolist(), blocks.tolist())
        lanes = self._lane_feature[blocks]
        return scan_table(histograms, lanes, self._features, nodes, columns, self._scale)

    def _histograms(self, nodes: list[int], blocks: list[int]) -> NDArray[np.int64]:
        """Histograms (nodes, blocks, ...): small siblings counted, large ones by subtraction."""
        small, large = self._family.by_size(nodes)
        counted = self._counted(small, blocks)
        again = set()
        for node, block in product(large, blocks):
            parent = self._kept.get((self._family.parent[node], block))
            if parent is None:  # nobody asked for this block at the level above
                again.add(node)
            else:
                counted[node, block] = parent - counted[sibling(node), block]
        counted |= self._counted(sorted(again), blocks)
        self._kept = counted
        size = LANES * BINS * self.grid.bin_words
        histograms = np.empty((len(nodes), len(blocks), size), dtype=np.int64)
        for (i, node), (j, block) in product(enumerate(nodes), enumerate(blocks)):
            histograms[i, j] = counted[node, block]
        return histograms

    def _counted(
        self, nodes: list[int], blocks: list[int]
    ) -> dict[tuple[int, int], NDArray[np.int64]]:
        """Histograms by node and block, of all rows."""
        if not nodes or not blocks:
            return {}
        ids = np.array(nodes, dtype=np.int64), np.array(blocks, dtype=np.int64)
        counts = np.sum([shard.count(*ids) for shard in self.shards], axis=0)
        return dict(zip(product(nodes, blocks), counts.reshape(-1, counts.shape[2]), strict=True))

    def partition(
        self, splits: NDArray[np.void], category_sets: NDArray[np.uint64], last: bool
    ) -> Floats:
        self._family.divide(splits)
        parts = [shard.partition(splits, category_sets, last) for shard in self.shards]
        return np.sum(parts, axis=0)

    def marked(self, nodes: NDArray[np.int64] | None, marks: Sequence[int]) -> NDArray[np.int64]:
        return np.sum([shard.marked(nodes, marks) for shard in self.shards], axis=0)

    def patterns(self, node: int | None) -> NDArray[np.bool_]:
        return distinct_patterns(np.concatenate([shard.patterns(node) for shard in self.shards]))

    def best_constants(self, leaves: NDArray[np.int64]) -> Floats:
        best = []
        for leaf in leaves.tolist():
            parts = [shard.residuals(leaf) for shard in self.shards]
            residuals = np.concatenate([part[0] for part in parts])
            weights = [part[1] for part in parts if part[1] is not None]
            weight = np.concatenate(weights) if weights else None
            best.append(self._sample.loss.leaf_value(residuals, weight))
        return np.array(best)

    def add_leaves(self, leaves: NDArray[np.int64], values: Floats) -> None:
        for shard in self.shards:
            shard.add_leaves(leaves, values)


class Family:
    """How many rows the nodes of a growing tree have, and whose children they are."""

    def __init__(self, n_rows: int):
        self.count = {0: n_rows}
        self.parent = {0: -1}

    def divide(self, splits: NDArray[np.void]) -> None:
        """Nodes get two children each."""
        for node, left, count in splits[["node", "left", "count"]].tolist():
            self.count |= {left: count, left + 1: self.count[node] - count}
            self.parent |= {left: node, left + 1: node}

    def by_size(self, nodes: Iterable[int]) -> tuple[list[int], list[int]]:
        """Nodes to count, and larger siblings, which are what is left of their parents."""
        wanted = set(nodes)
        small = {min(node, sibling(node), key=self._size) for node in wanted}
        return sorted(small), sorted(wanted - small)

    def _size(self, node: int) -> tuple[int, int]:
        return self.count[node], node


def blocks_in_play(columns: Columns, lane_feature: NDArray[np.int32]) -> NDArray[np.intp]:
    """Blocks with any feature in play; ``lane_feature`` is (n_blocks, lanes), -1 for no feature."""
    in_play = np.append(columns.any(axis=0), False)[lane_feature]
    return np.flatnonzero(in_play.any(axis=1))


def total_of(loss: Loss, y: Floats, weight: Floats | None) -> float | None:
    """What sums of a loss are divided by; None if its mean is no quotient of sums."""
    if loss.is_additive:
        return float(len(y)) if weight is None else exact_sum(weight)
    if type(loss) is LambdaMART:
        starts = loss.query_starts(y)
        return (
            float(len(starts) - 1) if weight is None else exact_sum(query_weights(weight, starts))
        )
    return None


def mean_loss(loss: Loss, total: NDArray[np.int64], divisor: float) -> float:
    """Mean of a loss, given its exact sum over all rows (over queries: of their NDCG)."""
    mean = float(rounded(total)) / divisor
    return mean if loss.is_additive else 1.0 - mean


def sibling(node: int) -> int:
    """The other child of the same parent; the root has none but itself."""
    if node == 0:
        return 0
    return node + 1 if node % 2 == 1 else node - 1
