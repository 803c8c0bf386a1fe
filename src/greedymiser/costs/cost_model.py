"""What things cost, and what is bought.

The world is a set of *resources* with costs. A feature *needs* some resources, and its price is the
sum of those that are not bought yet. The paper's two cases are special: one resource per feature
(Yahoo), and a descriptor plus an evaluation of its own (Scene-15).

Sums of costs are those of the decimal numbers that were written, rounded once to a float: what
costs 0.1 three times costs 0.3, and is within a budget of 0.3. A float is read as the decimal that
it is printed as if that has at most 15 digits; other floats were computed and count as they are.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from greedymiser._core.amounts import quoted
from greedymiser._core.text_tables import LineTable, html_table
from greedymiser.costs.prices import (
    checked_price,
    labels_of,
    merged_group_prices,
    own_resources,
    positions,
    read_feature_costs,
    read_group_costs,
    read_groups,
    read_price_list,
)

# Decimals of so many digits come back unchanged from a float.
DECIMAL_DIGITS = 15

Feature = int | str
"""A feature, by position or by column name."""


class CostModel:
    """Prices of features, with what they share.

    Parameters
    ----------
    feature_costs : array-like of shape (n_features,) or mapping from column name to cost
        What each feature costs by itself. By name, a model finds its columns whatever their order.
    groups : mapping from group to features, or sequence with one group (or None) per feature
        Features that share an entry price. A feature belongs to at most one group.
    group_costs : mapping from group to entry price
        Paid once, with the first feature of the group.
    tree_cost : float
        The paper's *e*: what evaluating one tree costs.

    Examples
    --------
    >>> costs = CostModel({"age": 1.0, "TSH": 20.68, "T3": 9.31},
    ...                   groups={"blood": ["TSH", "T3"]}, group_costs={"blood": 2.10})
    >>> costs.total(["TSH", "T3"])
    32.09
    >>> costs.prices(bought=["TSH"]).round(2).tolist()
    [1.0, 0.0, 9.31]
    """

    def __init__(
        self,
        feature_costs: ArrayLike | Mapping[str, float],
        *,
        groups: Mapping[Hashable, Sequence[Feature]] | Sequence[Hashable] | None = None,
        group_costs: Mapping[Hashable, float] | None = None,
        tree_cost: float = 0.0,
    ):
        names, own = read_feature_costs(feature_costs)
        group_of = read_groups(groups, names, len(own))
        prices = read_group_costs(group_costs, group_of)
        resources = own_resources(labels_of(names, len(own)), {str(group) for group in prices})
        entry = {group: len(own) + i for i, group in enumerate(prices)}
        needs = [
            [feature] if group is None else [feature, entry[group]]
            for feature, group in enumerate(group_of)
        ]
        resources += [str(group) for group in prices]
        self._set(names, resources, np.append(own, list(prices.values())), needs, tree_cost)

    @classmethod
    def from_resources(
        cls,
        resource_costs: Mapping[str, float],
        needs: Mapping[str, Sequence[str]] | Sequence[Sequence[str]],
        *,
        tree_cost: float = 0.0,
    ) -> CostModel:
        """Build the general case: every feature needs some resources, resources may be shared.

        Parameters
        ----------
        resource_costs : mapping from resource to cost
        needs : mapping from column name to resources, or a sequence of resources per feature
            An empty sequence makes a feature free.
        tree_cost : float
            The paper's *e*: what evaluating one tree costs.

        Examples
        --------
        >>> costs = CostModel.from_resources(
        ...     {"decode": 3.0, "hog": 2.0, "lbp": 1.0},
        ...     {"hog_0": ["decode", "hog"], "hog_1": ["decode", "hog"], "lbp": ["decode", "lbp"]})
        >>> costs.prices(bought=["hog_0"]).tolist()
        [0.0, 0.0, 1.0]
        """
        resources = list(resource_costs)
        position = {resource: i for i, resource in enumerate(resources)}
        names = list(needs) if isinstance(needs, Mapping) else None
        per_feature = list(needs.values()) if isinstance(needs, Mapping) else list(needs)
        labels = labels_of(names, len(per_feature))
        indices: list[list[int]] = []
        for label, wanted in zip(labels, per_feature, strict=True):
            if isinstance(wanted, str):
                raise TypeError(
                    f"needs[{label!r}] must be a sequence of resources, got the string {wanted!r}"
                )
            for resource in wanted:
                if resource not in position:
                    raise ValueError(
                        f"feature {label!r} needs resource {resource!r}, which has no cost"
                    )
            indices.append(sorted({position[resource] for resource in wanted}))
        values = [
            checked_price(f"the cost of resource {name!r}", cost)
            for name, cost in resource_costs.items()
        ]
        return cls.from_parts(
            names, [str(r) for r in resources], np.array(values), indices, tree_cost
        )

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        feature: str = "feature",
        price: str = "price",
        group: str = "group",
        group_price: str = "group_price",
        group_costs: Mapping[str, float] | None = None,
        tree_cost: float = 0.0,
    ) -> CostModel:
        """Read the costs from a table with a row per feature.

        Parameters
        ----------
        frame : data frame of pandas, polars or pyarrow
        feature, price : str
            Columns with the features' names and with what each costs by itself.
        group, group_price : str
            Columns with the group (or a list of groups) that a feature shares an entry price
            with, and with that price. Either may be missing, and so may their cells.
        group_costs : mapping from group to entry price, optional
            For groups without a price in the table.
        tree_cost : float
            The paper's *e*: what evaluating one tree costs.

        Examples
        --------
        >>> import pandas as pd
        >>> table = pd.DataFrame({"feature": ["age", "TSH", "T3"], "price": [1.0, 20.68, 9.31],
        ...                       "group": [None, "blood", "blood"]})
        >>> CostModel.from_frame(table, group_costs={"blood": 2.10}).total(["TSH", "T3"])
        32.09
        """
        listed = read_price_list(frame, feature, price, group, group_price)
        prices = merged_group_prices(listed, group_costs)
        own = dict(zip(listed.prices, own_resources(list(listed.prices), prices), strict=True))
        resources = {own[name]: cost for name, cost in listed.prices.items()} | prices
        needs = {name: [own[name], *listed.groups.get(name, ())] for name in listed.prices}
        return cls.from_resources(resources, needs, tree_cost=tree_cost)

    @classmethod
    def from_parts(
        cls,
        feature_names: list[str] | None,
        resource_names: list[str],
        resource_costs: NDArray[np.float64],
        needs: list[list[int]],
        tree_cost: float,
    ) -> CostModel:
        """Put a model together from parts that were checked before.

        ``needs`` has the positions of the resources of each feature, ascending.
        """
        model = cls.__new__(cls)
        model._set(feature_names, resource_names, resource_costs, needs, tree_cost)
        return model

    @classmethod
    def uniform(cls, n_features: int) -> CostModel:
        """Every feature costs 1: the cost of a model is the number of features that it uses."""
        return cls(np.ones(n_features))

    def _set(
        self,
        names: list[str] | None,
        resources: list[str],
        resource_costs: NDArray[np.float64],
        needs: list[list[int]],
        tree_cost: float,
    ) -> None:
        self.feature_names = names
        self.resource_names = resources
        self.resource_costs = np.asarray(resource_costs, dtype=np.float64)
        self.needs = [tuple(wanted) for wanted in needs]
        self.tree_cost = checked_price("tree_cost", tree_cost)
        if math.isinf(sum(self.resource_costs.tolist())):
            raise ValueError("the costs add up to more than a float can hold")

    @property
    def n_features(self) -> int:
        return len(self.needs)

    def total(self, features: Iterable[Feature], n_trees: int = 0) -> float:
        """Cost of a model that uses these features and this many trees (eq. 3)."""
        if isinstance(features, str):
            raise TypeError(f"features must be a sequence of features, got {features!r}")
        owned = np.zeros(len(self.resource_names), dtype=bool)
        for feature in features:
            owned[list(self.needs[self.position(feature)])] = True
        return self.bill(owned, n_trees)

    def bill(self, owned: NDArray[np.bool_] | Sequence[int], n_trees: int) -> float:
        """Cost of some resources (marked, or by position) and this many trees (eq. 3)."""
        # fsum rounds once, so the bill does not depend on the order of the purchases.
        return math.fsum(
            [*self.resource_costs[owned], *self.remainders[owned], *self.trees_bill(n_trees)]
        )

    def trees_bill(self, n_trees: int) -> tuple[float, float]:
        """What so many trees cost, and what that differs by from the decimal that was written."""
        return _times(self.tree_cost, n_trees)

    @cached_property
    def remainders(self) -> NDArray[np.float64]:
        """What costs of resources differ by from the decimals that were written."""
        remainders = np.zeros(len(self.resource_costs))
        for i in np.flatnonzero(self.resource_costs % 1).tolist():
            remainders[i] = decimal_remainder(float(self.resource_costs[i]))
        return remainders

    def prices(self, bought: Iterable[Feature] = ()) -> NDArray[np.float64]:
        """What each feature would cost now, if the features in ``bought`` are already paid for."""
        return Ledger(self, bought).prices.copy()

    def position(self, feature: Feature) -> int:
        """Position of a feature given by position or by name."""
        if isinstance(feature, str):
            if self.feature_names is None:
                raise ValueError(f"feature {feature!r} is unknown: these costs have no names")
            if feature not in self._positions:
                raise ValueError(f"feature {feature!r} is unknown to these costs")
            return self._positions[feature]
        index = int(feature)
        if not 0 <= index < self.n_features:
            raise ValueError(f"feature {index} is out of range: there are {self.n_features}")
        return index

    @cached_property
    def _positions(self) -> dict[str, int]:
        return positions(self.feature_names or ())

    def __getstate__(self) -> dict[str, Any]:
        """Leave what is only cached out of copies and pickles."""
        cached = {"_positions", "remainders"}
        return {name: value for name, value in vars(self).items() if name not in cached}

    def align(self, n_features: int, columns: Sequence[str] | None = None) -> CostModel:
        """Return these costs in the order of a table's columns; raise if the two do not match."""
        if self.feature_names is None:
            if self.n_features != n_features:
                raise ValueError(
                    f"costs has {self.n_features} entries, but X has {n_features} features"
                )
            if columns is None:
                return self
            named = copy.copy(self)
            named.feature_names = list(columns)  # so that a receipt tells names
            return named
        if columns is None:
            if self.n_features != n_features:
                raise ValueError(
                    f"costs names {self.n_features} features, but X has {n_features} columns "
                    "without names"
                )
            return self
        missing = [name for name in columns if name not in self._positions]
        present = set(columns)
        unknown = [name for name in self.feature_names if name not in present]
        if missing:
            stray = f"; it names {quoted(unknown)}, which X does not have" if unknown else ""
            raise ValueError(f"costs has no entry for feature {quoted(missing)}{stray}")
        if unknown:
            raise ValueError(f"costs names a feature that X does not have: {quoted(unknown)}")
        return CostModel.from_parts(
            list(columns),
            self.resource_names,
            self.resource_costs,
            [list(self.needs[self._positions[name]]) for name in columns],
            self.tree_cost,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CostModel) and (
            self.feature_names == other.feature_names
            and self.resource_names == other.resource_names
            and bool(np.array_equal(self.resource_costs, other.resource_costs))
            and self.needs == other.needs
            and self.tree_cost == other.tree_cost
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"<CostModel of {self.n_features} features, {len(self.resource_names)} resources, "
            f"total {self.total(range(self.n_features)):g}, tree_cost {self.tree_cost:g}>"
        )

    def _repr_html_(self) -> str:
        alone = self.prices()
        rows = [
            (
                label,
                f"{alone[feature]:.6g}",
                " + ".join(
                    f"{self.resource_names[r]} {self.resource_costs[r]:.6g}" for r in wanted
                ),
            )
            for feature, (label, wanted) in enumerate(
                zip(labels_of(self.feature_names, self.n_features), self.needs, strict=True)
            )
        ]
        heads = ("feature", "price at first", "needs")
        return html_table(repr(self).strip("<>"), heads, rows, left={0, 2})


@dataclass(frozen=True)
class Purchase:
    """One line of a receipt: a split that made the model buy something.

    Examples
    --------
    >>> line = Purchase(0, 0, 0, "TSH", ("draw", "TSH"), price=22.78, spent=22.78, gain=0.1)
    >>> line.feature, line.resources
    ('TSH', ('draw', 'TSH'))
    """

    # Boosting round, from 0, and the output (class) whose tree made the split.
    iteration: int
    output: int
    # Depth of the split in its tree; the root has depth 0.
    depth: int
    # The feature, by name where there are names, else by position.
    feature: Feature
    # The resources that became available with it.
    resources: tuple[str, ...]
    # What was paid for them, and the cost of all resources after it.
    price: float
    spent: float
    # Drop in mean loss that the split promised (gain / W, before the price).
    gain: float


class Receipt(LineTable[Purchase]):
    """What a model bought, when, at what price. Prints as a table; ``to_frame()`` for pandas.

    Examples
    --------
    >>> bought = Purchase(0, 0, 0, "TSH", ("draw", "TSH"), price=22.78, spent=22.78, gain=0.1)
    >>> receipt = Receipt([bought])
    >>> receipt.total, [line.feature for line in receipt]
    (22.78, ['TSH'])
    """

    columns = ("iteration", "output", "depth", "feature", "resources", "price", "spent", "gain")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Receipt) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def total(self) -> float:
        """What all the purchases together cost."""
        return self._lines[-1].spent if self._lines else 0.0

    def to_frame(self) -> Any:
        """Return the receipt as a pandas DataFrame, one row per purchase."""
        import pandas as pd

        return pd.DataFrame(
            [[getattr(line, name) for name in self.columns] for line in self],
            columns=list(self.columns),
        )

    def __repr__(self) -> str:
        n = len(self)
        return f"<Receipt of {n} purchase{'s' if n != 1 else ''}, {self.total:g} in all>"

    _heads = ("round", "feature", "pays for", "price", "spent", "gain")
    _left = frozenset({1, 2})

    def _rows(self, lines: Sequence[Purchase]) -> list[tuple[str, ...]]:
        return [
            (
                str(line.iteration),
                str(line.feature),
                ", ".join(line.resources),
                f"{line.price:.6g}",
                f"{line.spent:.6g}",
                f"{line.gain:.3g}",
            )
            for line in lines
        ]


class Ledger:
    """What is bought, and therefore what everything costs now. Prices only fall.

    Examples
    --------
    >>> costs = CostModel([5.0, 1.0], groups=["draw", "draw"], group_costs={"draw": 2.0})
    >>> ledger = Ledger(costs)
    >>> ledger.prices.tolist(), ledger.buy(0), ledger.prices.tolist(), ledger.spent
    ([7.0, 3.0], ('0', 'draw'), [0.0, 1.0], 7.0)
    """

    def __init__(self, costs: CostModel, bought: Iterable[Feature] = ()):
        self.costs = costs
        self._owned = np.zeros(len(costs.resource_names), dtype=bool)
        # Costs of what is owned, as few numbers with the same exact sum.
        self._paid: list[float] = []
        self._users: list[list[int]] = [[] for _ in costs.resource_names]
        for feature, wanted in enumerate(costs.needs):
            for resource in wanted:
                self._users[resource].append(feature)
        # The same as flat (feature, resource) pairs, to price all features at once.
        self._pair_feature = np.repeat(np.arange(costs.n_features), [len(w) for w in costs.needs])
        self._pair_resource = np.array([r for w in costs.needs for r in w], dtype=np.intp)
        self.prices = np.array([self._price(feature) for feature in range(costs.n_features)])
        # Features that need nothing that is not bought; not the same as a price of 0.
        self.owned_features = np.array([len(wanted) == 0 for wanted in costs.needs])
        for owned in bought:
            self.buy(costs.position(owned))

    def _price(self, feature: int) -> float:
        # Summed anew, never subtracted from: a paid feature costs exactly 0, not 1e-17.
        wanted = self.costs.needs[feature]
        return self.costs.bill([r for r in wanted if not self._owned[r]], 0)

    @property
    def spent(self) -> float:
        """Cost of all resources bought so far."""
        return self.total()

    @property
    def resources(self) -> list[str]:
        """Names of the resources bought so far."""
        return [self.costs.resource_names[r] for r in np.flatnonzero(self._owned)]

    def total(self, n_trees: int = 0, *, with_feature: int | None = None) -> float:
        """Cost of a model that owns this, as eq. 3 has it, perhaps with one more feature."""
        wanted = () if with_feature is None else self.costs.needs[with_feature]
        new = [r for r in wanted if not self._owned[r]]
        prices = [*self.costs.resource_costs[new], *self.costs.remainders[new]] if new else []
        # Rounded once, as CostModel.bill does it.
        return math.fsum([*self._paid, *prices, *self.costs.trees_bill(n_trees)])

    def buy(self, feature: int) -> tuple[str, ...]:
        """Pay for what a feature needs; return the names of the resources that were new."""
        new = [r for r in self.costs.needs[feature] if not self._owned[r]]
        self._owned[new] = True
        for resource in new:
            for parts in (self.costs.resource_costs, self.costs.remainders):
                _add_to_partials(self._paid, float(parts[resource]))
            for user in self._users[resource]:
                self.prices[user] = self._price(user)
                self.owned_features[user] = self._owned[list(self.costs.needs[user])].all()
        return tuple(self.costs.resource_names[r] for r in new)

    def prices_if(self, features: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Prices, to rounding, as they would be if all the marked features were bought."""
        owned = self._owned.copy()
        owned[self._pair_resource[features[self._pair_feature]]] = True
        dues = np.where(owned, 0.0, self.costs.resource_costs)[self._pair_resource]
        due = np.bincount(self._pair_feature, weights=dues, minlength=self.costs.n_features)
        return due.astype(np.float64)  # bincount counts in integers where there is nothing


def decimal_remainder(number: float) -> float:
    """What a float differs by from the decimal number that a person wrote for it.

    A float of at most 15 digits is read as that decimal, so that three times 0.1 is 0.3 and within
    a budget of 0.3. What has more digits was computed, and is taken as it is: its remainder is 0.
    """
    if number.is_integer() and abs(number) < 2**53:
        return 0.0  # as it would be found below, in a hundredth of the time
    shortest = Decimal(repr(number))
    if len(shortest.as_tuple().digits) > DECIMAL_DIGITS:
        return 0.0
    return float(Fraction(shortest) - Fraction(number))


def sum_of_prices(prices: Iterable[float]) -> float:
    """The sum of the decimals that were written, rounded once.

    Examples
    --------
    >>> sum_of_prices([0.1, 0.2]), 0.1 + 0.2
    (0.3, 0.30000000000000004)
    """
    return math.fsum(part for price in prices for part in (price, decimal_remainder(price)))


@lru_cache(4096)
def _times(number: float, n: int) -> tuple[float, float]:
    """A product, and what it differs by from that of the decimal that was written."""
    remainder = decimal_remainder(number)
    product = number * n
    if remainder == 0.0:
        return product, 0.0
    exact = Fraction(Decimal(repr(number))) * n
    return product, float(exact - Fraction(product))


def _add_to_partials(parts: list[float], number: float) -> None:
    """Add a number to an exact sum, which is kept in parts that do not overlap (Shewchuk 1997)."""
    rest = []
    for part in parts:
        if abs(number) < abs(part):
            number, part = part, number
        total = number + part
        error = part - (total - number)
        if error:
            rest.append(error)
        number = total
    parts[:] = [*rest, number]


def as_cost_model(costs: Any, n_features: int, columns: Sequence[str] | None) -> CostModel:
    """Read an estimator's ``costs``: None, a CostModel, or what CostModel itself accepts."""
    if isinstance(costs, CostModel):
        return costs.align(n_features, columns)
    model = CostModel.uniform(n_features) if costs is None else CostModel(costs)
    if model.feature_names is not None and columns is None:
        raise ValueError(
            "costs are given by name, but X has no column names; pass a data frame, "
            "costs by position, or a CostModel whose features are in the order of the columns"
        )
    if model.feature_names is None and columns is not None:
        model.resource_names = list(columns)  # one resource per feature: they share a name
    return model.align(n_features, columns)
