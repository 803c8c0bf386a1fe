"""Who pays: the model, once for everybody, or every row for what its own paths ask.

An account tells the grower what features cost at the nodes of a level, and keeps what was paid.
``ModelAccount`` has one price for all nodes. ``RowAccount`` has prices per node: a split charges
those rows of its node that lack what its feature needs,

    price(node, f) = sum over r in needs(f) of cost(r) * (weight of the node's rows without r) / W.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from greedymiser.costs.cost_model import CostModel, Ledger
from greedymiser.engines.interface import Columns, Floats, PlacedRows
from greedymiser.engines.marks import Marks
from greedymiser.training import splitting

# Sums of costs closer than this to a limit, as a share of it, are summed again without rounding.
CLOSE = 1e-9

# Sets of resources that are priced together.
TOGETHER = 1024


class Account(Protocol):
    """What a grower pays from. Arrays of a level have one row for all nodes, or one per node."""

    costs: CostModel
    # Whether a split that would have paid was beyond the budget.
    is_held_back: bool

    @property
    def spent(self) -> float:
        """What the resources bought so far cost."""

    def check_start(self, n_trees: int) -> None:
        """Raise if a row has paid too much for a model with so many trees that is continued."""

    def plant(self, is_whole: bool) -> None:
        """A tree begins, which grows on all rows or on some; its rows are those of node 0."""

    def price(self, nodes: NDArray[np.void], n_trees: int) -> tuple[Floats, Columns]:
        """Prices of features at the open nodes of a level, and whether nothing must be bought."""

    def payable(self, within: Columns, bounds: Floats | None, tradeoff: float) -> Columns:
        """Features that can be afforded, and are worth it if gains reach the nodes' bounds."""

    def can_afford(self, row: int, feature: int) -> bool:
        """Whether the split of one node of the level on a feature is within all limits."""

    def refuse(self, row: int, feature: int, gains: Floats) -> None:
        """Take what cannot be afforded out of a level's gains."""

    def buy(self, feature: int, row: int) -> tuple[tuple[str, ...], float]:
        """Pay for a split; the resources that some rows lacked, and the price."""

    def settle_round(self, is_whole: bool) -> None:
        """A round is over, which has looked at all rows or at some."""

    def total(self, n_trees: int = 0) -> float:
        """What the model costs with so many trees."""

    def is_within(self, n_trees: int) -> bool:
        """Whether the model with so many trees is within all limits."""


class ModelAccount:
    """The paper's: a feature is bought once, for everybody."""

    def __init__(self, ledger: Ledger, budget: float | None = None):
        self.ledger = ledger
        self.costs = ledger.costs
        self.is_held_back = False
        self._budget = budget
        # Features that the budget has ruled out. What is owned only grows, so this is final.
        self._reachable = np.ones((1, ledger.costs.n_features), dtype=bool)
        self._n_trees = 0
        # What the ledger keeps up to date, as one row for all nodes.
        self._level = ledger.prices[None], ledger.owned_features[None]
        # Whether a purchase can make another feature cheaper.
        needs = [resource for some in marks_of(self.costs).of_feature for resource in some]
        self.shares_costs = len(set(needs)) < len(needs)
        # The bill, where it is the same for any number of trees; None until somebody asks.
        self._bill: float | None = None

    @property
    def spent(self) -> float:
        return self.ledger.spent

    def check_start(self, n_trees: int) -> None:
        pass

    def plant(self, is_whole: bool) -> None:
        pass

    def price(self, nodes: NDArray[np.void], n_trees: int) -> tuple[Floats, Columns]:
        self._n_trees = n_trees
        return self._level

    def payable(self, within: Columns, bounds: Floats | None, tradeoff: float) -> Columns:
        """Prices fall for all nodes when one buys, so that the largest bound counts for all."""
        reachable = self.reachable(within)
        if bounds is None:
            return reachable
        most = max(bounds.tolist())
        payable = reachable & (most > tradeoff * self.ledger.prices)
        # More and more of what is reachable: so many are the same ones.
        n_payable = np.count_nonzero(payable)
        while self.shares_costs and len(bounds) > 1 and n_payable < np.count_nonzero(reachable):
            prices = self.ledger.prices_if(payable[0])
            wider = reachable & (most > tradeoff * prices * (1 - 1e-12))
            n_wider = np.count_nonzero(wider)
            if n_wider == n_payable:
                break
            payable, n_payable = wider, n_wider
        return payable

    def reachable(self, within: Columns) -> Columns:
        """Features that the budget has not ruled out."""
        return within & self._reachable

    def can_afford(self, row: int, feature: int) -> bool:
        if self._budget is None:
            return True
        return self.ledger.total(self._n_trees, with_feature=feature) <= self._budget

    def refuse(self, row: int, feature: int, gains: Floats) -> None:
        self.is_held_back = True
        self._reachable[0, feature] = False
        gains[:, feature] = -math.inf

    def buy(self, feature: int, row: int) -> tuple[tuple[str, ...], float]:
        price = float(self.ledger.prices[feature])
        self._bill = None
        return self.ledger.buy(feature), price

    def settle_round(self, is_whole: bool) -> None:
        pass

    def total(self, n_trees: int = 0) -> float:
        if self.costs.tree_cost > 0:
            return self.ledger.total(n_trees)
        if self._bill is None:
            self._bill = self.ledger.total()
        return self._bill

    def is_within(self, n_trees: int) -> bool:
        return self._budget is None or self.total(n_trees) <= self._budget


class RowAccount:
    """Every row pays for what its own paths ask.

    Parameters
    ----------
    costs : CostModel
    rows : PlacedRows
        Started with ``marks_of(costs)``.
    budget : float, optional
        Most that rows may cost on average.
    row_budget : float, optional
        Most that any of the rows may cost.
    sunk : array of bool, optional
        Resources that count as paid where gains are weighed, whoever asks for them. They are
        charged to the rows that are asked for them, as all others are.
    """

    def __init__(
        self,
        costs: CostModel,
        rows: PlacedRows,
        budget: float | None = None,
        row_budget: float | None = None,
        sunk: NDArray[np.bool_] | None = None,
    ):
        self.costs = costs
        self.is_held_back = False
        # What resources cost where gains are weighed.
        self._weighed = costs.resource_costs if sunk is None else costs.resource_costs * ~sunk
        self._rows = rows
        self._budget, self._row_budget = budget, row_budget
        # (feature, resource) pairs of what has a price.
        self._needs = marks_of(costs).of_feature
        sizes = [len(some) for some in self._needs]
        feature = np.repeat(np.arange(costs.n_features), sizes)
        resource = [r for some in self._needs for r in some]
        self._pairs = np.array([feature, resource], dtype=np.int64)
        # Resources that some row may own.
        self._begun = np.zeros(len(costs.resource_names), dtype=bool)
        self._n_trees, self._is_whole = 0, True
        self._count()
        self._root_weight = self._weight
        self._dearest = self._dearest_row()

    # -- the account ------------------------------------------------------------------------------

    @property
    def spent(self) -> float:
        """Mean cost of the resources that rows own."""
        return self.total()

    def total(self, n_trees: int = 0) -> float:
        return self._mean(self._charged, n_trees)

    def _mean(self, charged: NDArray[np.int64], n_trees: int) -> float:
        # Where all rows own what some own, this is the model's bill to the last bit.
        return mean_bill(self.costs, charged, self._weight, n_trees)

    def is_within(self, n_trees: int) -> bool:
        if self._budget is not None and self.total(n_trees) > self._budget:
            return False
        return self._row_budget is None or self._highest_bill(n_trees) <= self._row_budget

    def check_start(self, n_trees: int) -> None:
        if self._row_budget is None or n_trees == 0:
            return
        highest = self._highest_bill(n_trees)
        if highest > self._row_budget:
            raise ValueError(
                f"row_budget={self._row_budget:g} is less than the {highest:g} that the most "
                "expensive row costs before the model is continued (warm_start=True); truncate it "
                "first"
            )

    def settle_round(self, is_whole: bool) -> None:
        if not is_whole:  # rows that no tree was grown on have been asked as well
            self._count()
        if self._row_budget is not None:
            self._dearest = self._dearest_row()

    def _count(self) -> None:
        """Ask what all rows weigh, and those that own each resource."""
        weights = self._rows.marked(None, range(len(self._begun)))[0]
        self._weight, self._charged = int(weights[0]), weights[1:].copy()
        self._begun |= self._charged > 0

    # -- a tree, and a level of it ----------------------------------------------------------------

    def plant(self, is_whole: bool) -> None:
        self._is_whole, self._root_weight = is_whole, self._weight
        if not is_whole:
            self._count()  # what was added for rows that were drawn is an estimate
            root = self._rows.marked(np.zeros(1, dtype=np.int64), ())
            self._root_weight = max(int(root[0, 0]), 1)

    def price(self, nodes: NDArray[np.void], n_trees: int) -> tuple[Floats, Columns]:
        self._n_trees, self._nodes = n_trees, nodes["node"]
        shape = len(nodes), self.costs.n_features
        self._lacking = np.empty((len(nodes), len(self._begun)), dtype=np.int64)
        self._dues, self._prices = np.empty(shape), np.empty(shape)
        self._owned = np.empty(shape, dtype=np.bool_)
        begun, weights = self._weigh(self._nodes)
        splitting.price(
            weights, begun, self._pairs, self.costs.resource_costs, self._weighed,
            self._root_weight, self._lacking, self._dues, self._prices, self._owned,
        )  # fmt: skip
        self._reachable = self._within_budgets()
        return self._prices, self._owned

    def _weigh(self, nodes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Resources that some rows may own; weights of nodes, and of the owners of each."""
        begun = np.flatnonzero(self._begun)
        if self._is_whole and len(nodes) == 1 and nodes[0] == 0:  # as the account has it
            return begun, np.append(self._weight, self._charged[begun])[None]
        return begun, self._rows.marked(nodes, begun.tolist())

    def _within_budgets(self) -> Columns:
        """Leave out what is surely beyond a budget; what single rows would pay is exact."""
        reachable = np.ones(self._prices.shape, dtype=bool)
        if self._budget is not None:
            spent, slack = self.total(self._n_trees), CLOSE * max(self._budget, 1e-300)
            reachable &= self._owned | (spent + self._dues <= self._budget + slack)
        if self._row_budget is not None:
            for row, node in enumerate(self._nodes.tolist()):
                reachable[row] &= ~self._drives_beyond(self._rows.patterns(node))
        return reachable

    def payable(self, within: Columns, bounds: Floats | None, tradeoff: float) -> Columns:
        """A split charges the rows of its node alone, so that every node has its own bound."""
        if bounds is not None:
            within = within & (bounds[:, None] > tradeoff * self._prices)
        # Only its gain says whether what is beyond the budget would have paid. So it is counted
        # until something that would have is refused.
        return within & self._reachable if self.is_held_back else within

    def can_afford(self, row: int, feature: int) -> bool:
        if not self._reachable[row, feature]:
            return False
        if self._budget is None:
            return True
        charged = self._charged_with(row, feature)
        return self._mean(charged, self._n_trees) <= self._budget

    def refuse(self, row: int, feature: int, gains: Floats) -> None:
        self.is_held_back = True
        gains[row, feature] = -math.inf

    def buy(self, feature: int, row: int) -> tuple[tuple[str, ...], float]:
        needs = self._needs[feature]
        lacked = [r for r in needs if self._lacking[row, r] > 0]
        self._charged = self._charged_with(row, feature)
        self._begun[list(needs)] = True
        names = tuple(self.costs.resource_names[r] for r in lacked)
        return names, float(self._dues[row, feature])

    def _charged_with(self, row: int, feature: int) -> NDArray[np.int64]:
        """Weights of the owners of each resource after one more split."""
        charged = self._charged.copy()
        for r in self._needs[feature]:
            # Rows that were drawn stand for all; without lots the weights are the same.
            new = int(self._lacking[row, r])
            if self._root_weight != self._weight:
                new = round(new * self._weight / self._root_weight)
            charged[r] = min(charged[r] + new, self._weight)
        return charged

    # -- single rows ------------------------------------------------------------------------------

    def _highest_bill(self, n_trees: int) -> float:
        """What the row pays that has paid most."""
        return self.costs.bill(self._dearest, n_trees)

    def _dearest_row(self) -> NDArray[np.bool_]:
        """What the row owns that has paid most."""
        if self._row_budget is None:
            return np.zeros(len(self._begun), dtype=bool)
        patterns = self._rows.patterns(None)
        bills = [self.costs.bill(owned, 0) for owned in patterns]
        dearest: NDArray[np.bool_] = patterns[int(np.argmax(bills))]
        return dearest

    def _drives_beyond(self, patterns: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Features that would cost a row with any of some sets of resources too much."""
        assert self._row_budget is not None
        costs, limit = self.costs.resource_costs, self._row_budget
        beyond = np.zeros(self.costs.n_features, dtype=bool)
        needed = np.zeros((len(costs), self.costs.n_features))
        needed[self._pairs[1], self._pairs[0]] = costs[self._pairs[1]]
        rest = self.costs.tree_cost * self._n_trees
        for first in range(0, len(patterns), TOGETHER):
            some = patterns[first : first + TOGETHER]
            bills = (some * costs).sum(axis=1)[:, None] + (~some) @ needed + rest
            is_close = np.abs(bills - limit) <= CLOSE * max(limit, 1e-300)
            bills[is_close] = 0.0
            beyond |= (bills > limit).any(axis=0)
            for i, feature in zip(*np.nonzero(is_close), strict=True):
                owned = some[i].copy()
                owned[list(self._needs[feature])] = True
                beyond[feature] |= self.costs.bill(owned, self._n_trees) > limit
        return beyond


def marks_of(costs: CostModel) -> Marks:
    """A mark for every resource that has a price, numbered as resources are."""
    has_price = costs.resource_costs > 0
    needs = tuple(tuple(r for r in wanted if has_price[r]) for wanted in costs.needs)
    return Marks(len(costs.resource_names), needs)


def mean_bill(costs: CostModel, charged: NDArray[np.int64], weight: int, n_trees: int = 0) -> float:
    """Mean cost of rows, by the weight of those that own each resource and the weight of all."""
    paid = np.flatnonzero(charged)
    shares = charged[paid] / max(weight, 1)
    parts = costs.resource_costs[paid] * shares, costs.remainders[paid] * shares
    return math.fsum([*parts[0], *parts[1], *costs.trees_bill(n_trees)])
