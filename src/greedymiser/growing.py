"""One tree: the only place where gain meets price.

Growth is level by level. Inside a level the open nodes are settled best first: take the node and
feature with the largest net gain, buy, re-price every other open node from its stored raw gains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from greedymiser.costs import Ledger
from greedymiser.engines import Engine, Floats, NodeStats, OpenNode, Split, SplitRules, SplitTable
from greedymiser.trees import CATEGORY_WORDS, NODE_DTYPE, Tree

Threshold = Callable[[int, int], float]
"""From a feature and its bin to the value that separates it from the next bin."""


@dataclass(frozen=True)
class GrowerParams:
    """How large trees may become, and what a unit of cost must bring."""

    rules: SplitRules
    # The paper's lambda, per unit of mean loss.
    tradeoff: float = 0.0
    # What resources and trees may cost together; None for no limit.
    budget: float | None = None
    # W in eq. 5: gains are divided by it, so that they are drops in mean loss.
    total_weight: float = 1.0
    learning_rate: float = 0.1
    max_depth: int | None = 4
    max_leaf_nodes: int | None = None


@dataclass(frozen=True)
class Bought:
    """A purchase that a split made: what the receipt is written from."""

    depth: int
    feature: int
    resources: tuple[str, ...]
    price: float
    spent: float
    gain: float


@dataclass(frozen=True)
class Growth:
    """What growing one tree brought."""

    tree: Tree
    # Leaves by node, with the bounds that monotone ancestors put on their values.
    leaves: dict[int, tuple[float, float]]
    bought: list[Bought]


@dataclass
class _Node:
    """A node while its tree grows; becomes a row of NODE_DTYPE."""

    id: int
    depth: int
    stats: NodeStats
    lower: float = -np.inf
    upper: float = np.inf
    split: Split | None = None
    gain: float = 0.0


class Grower:
    """Grows trees on an engine, paying from a ledger.

    Parameters
    ----------
    engine : Engine
        Holds the data; asked for tables of raw gains.
    ledger : Ledger
        What is bought. Growing a tree buys what its splits need.
    threshold : callable
        Value behind a bin of a feature.
    categorical : sequence of int
        Categorical features, in ascending order.
    params : GrowerParams
    """

    def __init__(
        self,
        engine: Engine,
        ledger: Ledger,
        threshold: Threshold,
        categorical: NDArray[np.intp],
        params: GrowerParams,
    ):
        self.engine = engine
        self.ledger = ledger
        self.threshold = threshold
        self.set_of_feature = {int(f): i for i, f in enumerate(categorical)}
        self.params = params
        # Features that the budget has ruled out. What is owned only grows, so this is final.
        self.out_of_reach = np.zeros(ledger.costs.n_features, dtype=bool)

    def grow(self, gradients: Floats, hessians: Floats | None, n_trees: int) -> Growth:
        """Grow one tree, the ``n_trees``-th of the model."""
        nodes = [_Node(0, 0, self.engine.begin(gradients, hessians))]
        bought: list[Bought] = []
        level = nodes[:]
        while level and (self.params.max_depth is None or level[0].depth < self.params.max_depth):
            n_leaves = (len(nodes) + 1) // 2
            split = self._settle(level, n_leaves, n_trees, bought)
            level = self._divide(nodes, split)
        leaves = {node.id: (node.lower, node.upper) for node in nodes if node.split is None}
        return Growth(self._finish(nodes), leaves, bought)

    def root_gains(self, gradients: Floats, hessians: Floats | None) -> Floats:
        """Raw gain of the best root split on each feature, per unit of weight."""
        self.engine.begin(gradients, hessians)
        every = np.ones(self.ledger.costs.n_features, dtype=bool)
        table = self.engine.split_table([OpenNode(0)], every, last=True)
        return table.candidates["gain"][0] / self.params.total_weight

    # -- one level ------------------------------------------------------------------------------

    def _settle(
        self, level: list[_Node], n_leaves: int, n_trees: int, bought: list[Bought]
    ) -> list[_Node]:
        """Choose splits best first while they pay; return the nodes that got one, in order."""
        fewest = 2 * self.params.rules.min_samples_leaf
        level = [node for node in level if node.stats.count >= fewest]
        columns = self._columns_in_play(level)
        if not columns.any():
            return []
        table = self._ask(level, columns)
        gains = table.candidates["gain"] / self.params.total_weight
        chosen: list[_Node] = []
        features, net = self._best_of_each(gains)
        while n_leaves + len(chosen) < (self.params.max_leaf_nodes or np.inf):
            # argmax takes the first of equals: the lower node (and above, the lower feature).
            row = int(np.argmax(net))
            feature = int(features[row])
            if not net[row] > 0:
                break
            if not self._affordable(feature, n_trees):
                self.out_of_reach[feature] = True
                gains[:, feature] = -np.inf
                features, net = self._best_of_each(gains)
                continue
            node = level[row]
            node.gain = float(gains[row, feature])
            node.split = self._split_of(node, table, row, feature)
            chosen.append(node)
            gains[row] = net[row] = -np.inf
            if self._buy(node, bought):
                features, net = self._best_of_each(gains)
        return sorted(chosen, key=lambda node: node.id)

    def _best_of_each(self, gains: Floats) -> tuple[NDArray[np.intp], Floats]:
        """Best feature of each node and its net gain, at today's prices.

        eq. 5: net = gain / W - lambda * price. Raw gains are kept, so prices may change.
        """
        net = gains - self.params.tradeoff * self.ledger.prices
        features = np.argmax(net, axis=1)
        return features, net[np.arange(len(net)), features]

    def _columns_in_play(self, level: list[_Node]) -> NDArray[np.bool_]:
        """Features that could pay at some node of the level; the others need not be counted.

        A node's impurity bounds the raw gain of all its splits, so a feature whose price exceeds
        the largest bound cannot be chosen, unless another node of the level makes it cheaper.
        """
        reachable = ~self.out_of_reach
        most = max((node.stats.twice_impurity for node in level), default=0.0)
        bound = 0.5 * most / self.params.total_weight
        payable = reachable & (bound > self.params.tradeoff * self.ledger.prices)
        while len(level) > 1 and not (payable == reachable).all():
            prices = self.ledger.prices_if(payable)
            wider = reachable & (bound > self.params.tradeoff * prices * (1 - 1e-12))
            if (wider == payable).all():
                break
            payable = wider
        return payable

    def _ask(self, level: list[_Node], columns: NDArray[np.bool_]) -> SplitTable:
        last = level[0].depth + 1 == self.params.max_depth
        open_nodes = [OpenNode(node.id, node.lower, node.upper) for node in level]
        return self.engine.split_table(open_nodes, columns, last)

    def _affordable(self, feature: int, n_trees: int) -> bool:
        if self.params.budget is None:
            return True
        return self.ledger.total(n_trees, with_feature=feature) <= self.params.budget

    def _split_of(self, node: _Node, table: SplitTable, row: int, feature: int) -> Split:
        cell = table.candidates[row, feature]
        position = self.set_of_feature.get(feature)
        categories = None if position is None else table.category_sets[row, position]
        # The children's numbers are known once the level is settled.
        return Split(node.id, -1, feature, int(cell["bin"]), bool(cell["missing_left"]), categories)

    def _buy(self, node: _Node, bought: list[Bought]) -> bool:
        """Pay for a node's split; return whether anything was new."""
        assert node.split is not None
        feature = node.split.feature
        price = float(self.ledger.prices[feature])
        resources = self.ledger.buy(feature)
        if resources:
            bought.append(
                Bought(node.depth, feature, resources, price, self.ledger.spent, node.gain)
            )
        return bool(resources)

    def _divide(self, nodes: list[_Node], split: list[_Node]) -> list[_Node]:
        """Give the split nodes their children; return those as the next level."""
        if not split:
            return []
        for i, node in enumerate(split):
            assert node.split is not None
            node.split = replace(node.split, left=len(nodes) + 2 * i)
        stats = self.engine.partition([node.split for node in split if node.split is not None])
        level: list[_Node] = []
        for node, (left_stats, right_stats) in zip(split, stats, strict=True):
            assert node.split is not None
            left = _Node(node.split.left, node.depth + 1, left_stats, node.lower, node.upper)
            right = _Node(node.split.left + 1, node.depth + 1, right_stats, node.lower, node.upper)
            self._bound(node.split.feature, left, right)
            level += [left, right]
        nodes += level
        return level

    def _bound(self, feature: int, left: _Node, right: _Node) -> None:
        """Keep everything below a monotone split on its side of the middle."""
        monotone = self.params.rules.monotonic_cst
        direction = 0 if monotone is None else monotone[feature]
        if direction == 0:
            return
        middle = 0.5 * (self._value(left) + self._value(right))
        low, high = (left, right) if direction > 0 else (right, left)
        low.upper = high.lower = middle

    # -- the finished tree ----------------------------------------------------------------------

    def _value(self, node: _Node) -> float:
        """Best value of a node, -G / (H + l2), inside its bounds."""
        stiffness = node.stats.hessian + self.params.rules.l2_regularization
        value = -node.stats.gradient / stiffness if stiffness > 0 else 0.0
        return min(max(value, node.lower), node.upper)

    def _finish(self, nodes: list[_Node]) -> Tree:
        rows = np.zeros(len(nodes), dtype=NODE_DTYPE)
        sets: list[NDArray[np.uint64]] = []
        for row, node in zip(rows, nodes, strict=True):
            row["value"] = self.params.learning_rate * self._value(node)
            row["hessian"], row["count"] = node.stats.hessian, node.stats.count
            row["depth"] = node.depth
            row["feature"] = row["left"] = row["category_set"] = row["bin"] = -1
            split = node.split
            if split is None:
                continue
            row["gain"], row["feature"], row["left"] = node.gain, split.feature, split.left
            row["missing_left"] = split.missing_left
            if split.categories is not None:
                row["category_set"] = len(sets)
                sets.append(split.categories)
            else:
                row["bin"] = split.bin
                row["threshold"] = self.threshold(split.feature, split.bin)
        return Tree(rows, np.array(sets, dtype=np.uint64).reshape(-1, CATEGORY_WORDS))
