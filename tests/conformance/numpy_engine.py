"""The smallest engine that passes: NumPy alone, and nothing done twice that could be done plainly.

It is the example of docs/engines.md. A shard keeps the node of every row; everything that is
decided once (grid, subtraction, scan) is done by ``ShardedRows``.
"""

import numpy as np

from greedymiser._core.arithmetic import add_exactly, exact_sum, new_sums
from greedymiser.data.binning import LANES
from greedymiser.engines.grid import PACKED_ONE, PACKED_TWO, WIDE_ONE, Extremes
from greedymiser.engines.interface import Root
from greedymiser.engines.scanning import BINS
from greedymiser.engines.sharded import ShardedRows


class NumpyEngine:
    """One shard of all rows."""

    def place(self, sample):
        weight = sample.weight
        total = float(len(sample.y)) if weight is None else exact_sum(weight)
        return ShardedRows([NumpyShard(sample)], sample, total)


class NumpyShard:
    def __init__(self, sample):
        self.sample = sample
        self.n_rows = sample.binned.n_rows
        # (blocks, rows, lanes): the bin of each row in each lane.
        self.codes = sample.binned.codes.view(np.uint8).reshape(-1, self.n_rows, LANES)

    def start(self, raw, marks=None, had=None):
        self.raw_ = np.empty((self.sample.loss.n_outputs, self.n_rows))
        self.raw_[:] = raw if raw.ndim == 2 else raw[:, None]
        self.marks = marks
        if marks is not None:
            self.has = np.zeros((self.n_rows, marks.n_marks), dtype=bool) if had is None else had
            self.has = self.has.copy()

    def mark(self, rows, feature):
        if self.marks is not None:
            self.has[np.ix_(rows, list(self.marks.of_feature[feature]))] = True

    def marked(self, nodes, marks):
        shares = self.sample.whole_shares()
        weight = shares if len(shares) else np.ones(self.n_rows, dtype=np.int64)
        found = []
        for node in [None] if nodes is None else nodes:
            mine = slice(None) if node is None else self.node == node
            has = self.has[mine][:, list(marks)]
            found.append([weight[mine].sum(), *(weight[mine, None] * has).sum(axis=0)])
        return np.array(found, dtype=np.int64)

    def patterns(self, node):
        return np.unique(self.has if node is None else self.has[self.node == node], axis=0)

    def raw(self):
        return self.raw_

    def derive(self, step):
        sample = self.sample
        several = sample.loss.n_outputs > 1
        found = sample.loss.gradients(sample.y, self.raw_ if several else self.raw_[0])
        weight = 1.0 if sample.weight is None else sample.weight
        self.gradients = np.reshape(found[0], self.raw_.shape) * weight
        self.is_flat = (found[1] is None or step == "gradient") and sample.weight is None
        ones = np.ones(self.raw_.shape)
        hessians = ones if found[1] is None or step == "gradient" else found[1]
        self.hessians = np.reshape(hessians, self.raw_.shape) * weight

    def extremes(self, output):
        gradient = np.abs(self.gradients[output]).max(initial=0.0)
        return Extremes(gradient, self.hessians[output].max(initial=0.0), self.is_flat)

    def begin(self, output, grid, rules, lot=None):
        self.output, self.grid = output, grid
        # Rows that are not drawn are in no node.
        self.node = np.zeros(self.n_rows, dtype=np.int64)
        if lot is not None:
            units = self.sample.units
            if units is None:
                units = self.sample.first_row + np.arange(self.n_rows)
            self.node[~lot.falls_on(units)] = -1
        mine = self.node == 0
        self.g = np.rint(self.gradients[output] / grid.gradient).astype(np.int64)
        self.h = np.rint(self.hessians[output] / grid.hessian).astype(np.int64)
        with np.errstate(divide="ignore", invalid="ignore"):
            g, h = self.g * grid.gradient, self.h * grid.hessian
            self.energy = np.where(g == 0, 0.0, np.where(h > 0, g * g / h, 1e300))
        self.bound_gains = rules.bound_gains
        energy = self.energy[mine].sum() if rules.bound_gains else np.inf
        return Root(
            int(self.g[mine].sum()), int(self.h[mine].sum()), int(mine.sum()), float(energy)
        )

    def count(self, nodes, blocks):
        words = self.words()
        found = np.zeros((len(nodes), len(blocks), LANES, BINS, len(words)), dtype=np.int64)
        for i, node in enumerate(nodes):
            mine = np.flatnonzero(self.node == node)
            for j, block in enumerate(blocks):
                for lane in range(LANES):
                    for w, word in enumerate(words):
                        np.add.at(
                            found[i, j, lane, :, w], self.codes[block, mine, lane], word[mine]
                        )
        return found.reshape(len(nodes), len(blocks), -1)

    def words(self):
        """What each row adds to a histogram (see ``greedymiser.engines.grid``)."""
        one, shift = np.ones(self.n_rows, dtype=np.int64), self.grid.shift
        if self.grid.layout == PACKED_ONE:
            return [(self.g << shift) + 1]
        if self.grid.layout == PACKED_TWO:
            return [self.g, (self.h << shift) + 1]
        return [self.g, one] if self.grid.layout == WIDE_ONE else [self.g, self.h, one]

    def partition(self, splits, category_sets, last):
        energies = np.zeros((len(splits), 2))
        before = self.node.copy()
        for i, split in enumerate(splits):
            mine = np.flatnonzero(before == split["node"])
            self.mark(mine, split["feature"])
            left = self.goes_left(split, category_sets[i], mine)
            self.node[mine] = np.where(left, split["left"], split["left"] + 1)
            energies[i] = self.energy[mine[left]].sum(), self.energy[mine[~left]].sum()
        return energies if self.bound_gains and not last else np.empty(0)

    def goes_left(self, split, categories, mine):
        lane = self.sample.binned.feature_lane[split["feature"]]
        codes = self.codes[lane // LANES, mine, lane % LANES]
        if split["bin"] >= 0:
            left = codes <= split["bin"]
        else:
            left = (categories[codes // 64] >> (codes % 64).astype(np.uint64)) & np.uint64(1) == 1
        missing = codes == self.sample.binned.n_bins[split["feature"]]
        return np.where(missing, split["missing_left"], left)

    def residuals(self, leaf):
        mine, weight = self.node == leaf, self.sample.weight
        rest = self.sample.y[mine] - self.raw_[self.output][mine]
        return rest, None if weight is None else weight[mine]

    def add_leaves(self, leaves, values):
        for leaf, value in zip(leaves, values, strict=True):
            self.raw_[self.output][self.node == leaf] += value

    def add_tree(self, tree, output):
        node = np.zeros(self.n_rows, dtype=np.int64)
        for at, split in enumerate(tree.nodes):  # children come after their parents
            if split["left"] >= 0:
                mine = np.flatnonzero(node == at)
                self.mark(mine, split["feature"])
                categories = (
                    tree.category_sets[split["category_set"] % max(1, len(tree.category_sets))]
                    if len(tree.category_sets)
                    else np.zeros(4, dtype=np.uint64)
                )
                left = self.goes_left(split, categories, mine)
                node[mine] = np.where(left, split["left"], split["left"] + 1)
        self.raw_[output] += tree.nodes["value"][node]

    def loss_sum(self):
        several = self.sample.loss.n_outputs > 1
        values = self.sample.loss.values(self.sample.y, self.raw_ if several else self.raw_[0])
        total = new_sums()[0]
        add_exactly(total, values if self.sample.weight is None else values * self.sample.weight)
        return total
