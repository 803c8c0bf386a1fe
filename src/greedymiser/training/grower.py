"""One tree: the only place where gain meets price.

Growth is level by level. Inside a level the open nodes are settled best first: take the node and
feature with the largest net gain, buy, re-price every other open node from its stored raw gains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser.data.binning import Thresholds
from greedymiser.engines.cpu.rows import CpuRows
from greedymiser.engines.interface import (
    OPEN_DTYPE,
    SPLIT_DTYPE,
    Columns,
    Floats,
    PlacedRows,
    SplitRules,
    SplitTable,
)
from greedymiser.engines.sampling import EVERYTHING, Round
from greedymiser.model.trees import CATEGORY_WORDS, NODE_DTYPE, Tree
from greedymiser.training import splitting
from greedymiser.training.accounts import Account, ModelAccount
from greedymiser.training.levels import DEEPEST, FINISHED, LevelLoop
from greedymiser.training.splitting import DRAFT_DTYPE, SETTINGS_DTYPE

# More leaves than any tree has.
MANY_LEAVES = 2**62

NO_SETS = np.zeros((0, CATEGORY_WORDS), dtype=np.uint64)


@dataclass(frozen=True)
class Interactions:
    """Which features may meet on the way from a root to a leaf."""

    # Sets of features that may: a path stays inside one of them. Empty for any.
    sets: tuple[frozenset[int], ...] = ()
    # How many different features may; None for any number.
    most: int | None = None

    def allowed(self, path: frozenset[int], n_features: int) -> NDArray[np.bool_]:
        """Features that the next split may be on, after splits on those of a path."""
        may = np.zeros(n_features, dtype=bool)
        if self.most is not None and len(path) >= self.most:
            may[list(path)] = True
        elif self.sets:
            for together in self.sets:
                if path <= together:
                    may[list(together)] = True
        else:
            may[:] = True
        return may


@dataclass(frozen=True)
class GrowerParams:
    """How large trees may become, and what a unit of cost must bring."""

    rules: SplitRules
    # The paper's lambda, per unit of mean loss.
    tradeoff: float = 0.0
    # W in eq. 5: gains are divided by it, so that they are drops in mean loss.
    total_weight: float = 1.0
    learning_rate: float = 0.1
    max_depth: int | None = 4
    max_leaf_nodes: int | None = None
    # Newton steps, or plain means of the negative gradient.
    step: str = "newton"
    # None for any.
    interactions: Interactions | None = None


@dataclass(frozen=True)
class Bought:
    """A purchase that a split made: what the receipt is written from."""

    depth: int
    feature: int
    resources: tuple[str, ...]
    price: float
    spent: float
    gain: float


class Growth(NamedTuple):
    """What growing one tree brought."""

    tree: Tree
    # Leaves by node, and the bounds that monotone ancestors put on their values (n_leaves, 2).
    leaves: NDArray[np.int64]
    bounds: Floats
    bought: list[Bought]

    @property
    def is_leaf(self) -> bool:
        """Whether the tree never split."""
        return len(self.leaves) == 1


class _OpenLevel(NamedTuple):
    """Nodes of a tree that may be split, all of one depth."""

    # OPEN_DTYPE: those that have rows enough for two.
    nodes: NDArray[np.void]
    depth: int


class Grower:
    """Grows trees on placed rows, paying from an account.

    Parameters
    ----------
    rows : PlacedRows
        Asked for tables of raw gains.
    account : Account
        What is bought, and by whom. Growing a tree buys what its splits need.
    thresholds : Thresholds
        Values behind the bins of features.
    categorical : sequence of int
        Categorical features, in ascending order.
    params : GrowerParams
    allowed : array of bool, optional
        Features that may be used; by default all of them.
    """

    def __init__(
        self,
        rows: PlacedRows,
        account: Account,
        thresholds: Thresholds,
        categorical: NDArray[np.intp],
        params: GrowerParams,
        allowed: NDArray[np.bool_] | None = None,
    ):
        n_features = account.costs.n_features
        self.rows = rows
        self.account = account
        self.thresholds = thresholds
        self.params = params
        # Features that any tree splits on.
        self.used = np.zeros(n_features, dtype=bool)
        # Where a feature's category sets are in a split table; -1 for numeric features.
        self._set_of_feature = np.full(n_features, -1, dtype=np.int64)
        self._set_of_feature[categorical] = np.arange(len(categorical))
        self._settings = _settings_record(params)
        # Nodes with fewer rows than two leaves are not asked for.
        self._fewest = 2 * params.rules.min_samples_leaf
        monotone = params.rules.monotonic_cst
        self._monotone = np.array(() if monotone is None else monotone, dtype=np.int64)
        # Bounded values make the parent worse and the gain larger: nothing is known of it then.
        self._can_bound = params.rules.bound_gains and monotone is None
        self._unbounded = replace(params.rules, bound_gains=False)
        # Whether there was anything to buy, and what had been spent then; most a split can gain.
        self._last_offer = False, -1.0
        self._most = math.inf
        # The tree that grows, one record of splitting.DRAFT_DTYPE per node; its root, for engines.
        self._draft = np.zeros(2 ** (DEEPEST + 1) - 1, dtype=DRAFT_DTYPE)
        self._root = np.empty(1, dtype=OPEN_DTYPE)
        self._sets = NO_SETS
        # Grows whole trees in compiled code, where that can be done.
        self._levels: LevelLoop | None = None
        if isinstance(rows, CpuRows) and self._is_plain():
            self._levels = LevelLoop(rows, params.max_depth or 0, n_features, len(categorical))
        self._allowed = (np.ones(n_features, dtype=bool) if allowed is None else allowed)[None]

    def grow(self, output: int, n_trees: int, round_: Round = EVERYTHING) -> Growth:
        """Grow one tree, the ``n_trees``-th of the model, for one of its outputs."""
        root = self._plant(output, round_)
        bought: list[Bought] = []
        if self._grow_at_once(root, n_trees, bought):
            return self._finish(bought)
        level: _OpenLevel | None = root
        while level is not None and level.depth != self.params.max_depth:
            level = self._next_level(level, n_trees, bought)
        return self._finish(bought)

    def root_gains(self, output: int) -> Floats:
        """Raw gain of the best root split on each feature, per unit of weight."""
        root, every = self._plant(output).nodes, np.ones((1, len(self.used)), dtype=bool)
        if len(root) == 0:  # too few rows for two
            return np.full(len(self.used), -math.inf)
        table = self.rows.split_table(root, every, last=True)
        return table.candidates["gain"][0] / self.params.total_weight

    def root_prices(self) -> Floats:
        """What each feature costs now at the root of the tree that was begun last."""
        return self.account.price(np.zeros(1, dtype=OPEN_DTYPE), 0)[0][0]

    def _plant(self, output: int, round_: Round = EVERYTHING) -> _OpenLevel:
        """Begin a tree; return its root."""
        # Energies of nodes are only of use while there is something to buy.
        self._knows_bounds = self._can_bound and (self._levels is None or self._sells(round_))
        rules = self.params.rules if self._knows_bounds else self._unbounded
        root = self.rows.begin_tree(output, rules, self.params.step, round_.rows)
        self._output, self._round = output, round_
        # A mean over the rows that were drawn stands for the mean over all.
        share = 1.0 if round_.rows is None else root.n_rows / self.rows.n_rows
        self._total_weight = self.params.total_weight * share
        # Features that splits on the way to a node were on; only kept where they matter.
        self._paths: dict[int, frozenset[int]] = {0: frozenset()}
        self._n_nodes = 1
        self._sets = NO_SETS
        self.account.plant(round_.rows is None)
        grid = self.rows.grid
        n_open = splitting.plant(
            self._draft, self._settings, (grid.gradient, grid.hessian), self._total_weight,
            tuple(root), self._fewest, self._root,
        )  # fmt: skip
        return _OpenLevel(self._root[:n_open], 0)

    # -- all levels at once ---------------------------------------------------------------------

    def _is_plain(self) -> bool:
        """Whether prices and columns are those of all nodes alike, and trees are not too deep."""
        depth, interactions = self.params.max_depth, self.params.interactions
        is_shallow = depth is not None and 0 < depth <= DEEPEST
        return is_shallow and interactions is None and isinstance(self.account, ModelAccount)

    def _grow_at_once(self, root: _OpenLevel, n_trees: int, bought: list[Bought]) -> bool:
        """Grow the tree in compiled code, as far as nothing must be bought; or return False."""
        levels, account = self._levels, self.account
        if levels is None or self._round.features is not None or len(root.nodes) == 0:
            return False
        assert isinstance(account, ModelAccount)
        self._prices, self._owned = account.price(root.nodes, n_trees)
        columns = self._columns_in_play(root.nodes)
        if not levels.begin(root.nodes[0], int(np.count_nonzero(columns))):
            return False
        features = self._set_of_feature, self._monotone, self.used
        limits = self.params.max_leaf_nodes or MANY_LEAVES, self._fewest
        prices = self._prices, self._owned, self.params.tradeoff
        self._knows_bounds = self._knows_bounds and self._may_exclude(columns)
        while True:
            within = account.reachable(self._within), account.shares_costs
            row, feature = levels.go_on(
                self._draft, self._settings, (columns, *within), prices, features, limits,
                self._knows_bounds,
            )  # fmt: skip
            if row == FINISHED:
                break
            if row >= 0:
                self._pay(levels.depth, levels.gains, levels.chosen, (row, feature), bought)
            if row < 0:
                columns = self._columns_in_play(levels.nodes)
            elif not self._knows_bounds:
                columns = columns & account.reachable(self._within)
        self._n_nodes, self._sets = levels.finish()
        return True

    def _sells(self, round_: Round) -> bool:
        """Whether anything might be bought in a round."""
        assert isinstance(self.account, ModelAccount)
        if self._last_offer[1] != self.account.spent:
            priced = self.account.reachable(self._allowed) & (self.account.ledger.prices > 0)
            self._last_offer = bool(priced.any()), self.account.spent
        return round_.shops and self._last_offer[0]

    def _may_exclude(self, columns: Columns) -> bool:
        """Whether bounds of the nodes below a root can be expected to exclude any column.

        Some node of a level has at least its share of what there is to be gained, which falls
        little from level to level. Where features share costs, it depends on what is bought.
        """
        assert isinstance(self.account, ModelAccount)
        dearest = (columns * self._prices).max(initial=0.0)
        share = self._most / 2 ** (self.params.max_depth or 0)
        return self.account.shares_costs or bool(self.params.tradeoff * dearest > share)

    # -- one level ------------------------------------------------------------------------------

    def _next_level(
        self, level: _OpenLevel, n_trees: int, bought: list[Bought]
    ) -> _OpenLevel | None:
        """Split what pays; return the children, None if there are none."""
        if len(level.nodes) == 0:
            return None
        self._prices, self._owned = self.account.price(level.nodes, n_trees)
        columns = self._columns_in_play(level.nodes)
        if np.count_nonzero(columns) == 0:
            return None
        last = level.depth + 1 == self.params.max_depth
        table = self.rows.split_table(level.nodes, columns, last)
        return self._divide(level, table, last, bought)

    def _columns_in_play(self, nodes: NDArray[np.void]) -> Columns:
        """Features that could pay at the nodes of a level.

        A node's impurity bounds the raw gain of all its splits, so a feature whose price exceeds
        the bound cannot be chosen, unless another node of the level makes it cheaper.
        """
        bounds = None
        if self._knows_bounds:
            bounds = np.empty(len(nodes))
            n_rows = self.rows.n_rows
            splitting.bound_gains(self._draft, nodes, self._settings, n_rows, bounds)
            self._most = max(bounds.tolist())
        payable = self.account.payable(self._within, bounds, self.params.tradeoff)
        if self._round.features is not None or self.params.interactions is not None:
            payable = self._narrowed(payable, nodes["node"])
        return payable

    @property
    def _within(self) -> Columns:
        """Features that this round may look at."""
        return self._allowed if self._round.shops else self._allowed & self._free

    @property
    def _free(self) -> Columns:
        """Features that cost nothing now, because they are owned or never cost anything."""
        return self._owned | (self._prices == 0)

    def _narrowed(self, payable: Columns, nodes: NDArray[np.int64]) -> Columns:
        """Leave to each node what is drawn for it, and what may meet the features of its path.

        Owned features are not drawn but always there.
        """
        shape = len(nodes), payable.shape[1]
        columns = np.broadcast_to(payable, shape).copy()
        free = np.broadcast_to(self._free, shape)
        interactions, lot = self.params.interactions, self._round.features
        for row, owned, node in zip(columns, free, nodes.tolist(), strict=True):
            may = self._allowed[0]
            if interactions is not None:
                may = may & interactions.allowed(self._paths[node], len(row))
            if lot is not None:
                # Not among those that could pay or be afforded: a lot must not depend on what the
                # grower happens to know of prices.
                may = (may & owned) | lot.falls_on(may & ~owned, self._output, node)
            row &= may
        return columns

    def _divide(
        self, level: _OpenLevel, table: SplitTable, last: bool, bought: list[Bought]
    ) -> _OpenLevel | None:
        """Choose splits best first while they pay; return the children as the next level.

        ``splitting.split_level`` goes on by itself while what it chooses is paid for (eq. 5, from
        raw gains), and comes back when something must be bought.
        """
        first, most = self._n_nodes, len(level.nodes)
        if first + 2 * most > len(self._draft):
            self._draft = np.append(self._draft, np.zeros(first + 2 * most, dtype=DRAFT_DTYPE))
        room = (self.params.max_leaf_nodes or MANY_LEAVES) - (first + 1) // 2
        chosen = np.empty(most, dtype=np.int64)
        chosen.fill(-1)
        splits = np.empty(most, dtype=SPLIT_DTYPE)
        sets = np.zeros((most, CATEGORY_WORDS), dtype=np.uint64)
        children = np.empty(2 * most, dtype=OPEN_DTYPE)
        while True:
            row, feature, n_splits, n_sets, n_children = splitting.split_level(
                self._draft, self._settings, level.nodes, *table, self._prices, self._owned,
                self.params.tradeoff, room, chosen, first, self._set_of_feature, self._monotone,
                len(self._sets), splits, sets, self.used, self._fewest, children,
            )  # fmt: skip
            if row < 0:
                break
            gains = table.candidates["gain"]
            self._pay(level.depth, gains, chosen, (row, feature), bought)
        if n_splits == 0:
            return None
        self._n_nodes += 2 * n_splits
        splits, sets = splits[:n_splits], sets[:n_splits]
        if n_sets > len(self._sets):
            self._sets = np.concatenate([self._sets, sets[splits["bin"] < 0]])
        if self.params.interactions is not None:
            for node, left, feature in splits[["node", "left", "feature"]].tolist():
                path = self._paths[node] | {feature}
                self._paths |= {left: path, left + 1: path}
        energies = self.rows.partition(splits, sets, last)
        if self._knows_bounds and not last:
            self._draft["energy"][first : self._n_nodes] = energies.ravel()
        return _OpenLevel(children[:n_children], level.depth + 1)

    def _pay(
        self,
        depth: int,
        gains: Floats,
        chosen: NDArray[np.int64],
        split: tuple[int, int],
        bought: list[Bought],
    ) -> None:
        """Buy what a split needs and let its node have it, or take it out of the level's gains."""
        row, feature = split
        if not self.account.can_afford(row, feature):
            self.account.refuse(row, feature, gains)
            return
        chosen[row] = feature
        gain = float(gains[row, feature]) / self._total_weight
        resources, price = self.account.buy(feature, row)
        bought.append(Bought(depth, feature, resources, price, self.account.spent, gain))

    # -- the finished tree ----------------------------------------------------------------------

    def _finish(self, bought: list[Bought]) -> Growth:
        nodes = np.empty(self._n_nodes, dtype=NODE_DTYPE)
        n_leaves = (self._n_nodes + 1) // 2
        leaves, bounds = np.empty(n_leaves, dtype=np.int64), np.empty((n_leaves, 2))
        thresholds = tuple(self.thresholds)
        splitting.finish(self._draft, self._settings, thresholds, nodes, leaves, bounds)
        return Growth(Tree(nodes, self._sets), leaves, bounds, bought)


def _settings_record(params: GrowerParams) -> NDArray[np.void]:
    settings = np.zeros(1, dtype=SETTINGS_DTYPE)
    settings["l2"] = params.rules.l2_regularization
    settings["learning_rate"] = params.learning_rate
    settings["total_weight"] = params.total_weight
    return settings
