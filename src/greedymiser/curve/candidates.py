"""What can be bought: sets of resources, and sets that are worth a try beside them.

What could be bought is judged before anything is trained, by the gains of all features at the root
of one more tree on the residuals of the set's model: the best for each price that one might pay
(that contains Greedy + Max), and the best per unit of cost (that contains the ratio-greedy chain).

The guarantees for submodular functions under a knapsack constraint do not carry over: a refitted
model's score is not submodular. They are why the neighbours are these.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from greedymiser.costs.cost_model import CostModel

Floats = NDArray[np.float64]
ResourceBits = int
"""A set of resources: bit r is set where resource r is in it."""

# All single purchases and all pairs are tried where there are at most so many of them.
MOST_SINGLES, MOST_PAIRS = 64, 300
# Prices that one might pay are this far apart; so many of the least useful resources are left out.
PRICE_STEP, MOST_DROPS = 1.6, 4


class Shop:
    """What can be bought: resources, in the bundles that features need them in."""

    def __init__(self, costs: CostModel):
        self.costs = costs
        free = _set(np.flatnonzero(costs.resource_costs == 0).tolist())
        self.needs = [_set(wanted) & ~free for wanted in costs.needs]
        bundles = dict.fromkeys(need for need in self.needs if need)
        # Where several bundles share a resource, all that use it may pay together for its price.
        users: dict[int, list[ResourceBits]] = {}
        for bundle in bundles:
            for resource in _members(bundle):
                users.setdefault(resource, []).append(bundle)
        packages = {_union(some) for some in users.values() if len(some) > 1}
        self.bundles = sorted(bundles, key=self.price)
        self.packages = sorted(packages - bundles.keys(), key=lambda some: (self.price(some), some))

    def price(self, resources: ResourceBits) -> float:
        """What a set costs."""
        return self.costs.bill(_members(resources), 0)

    def features(self, resources: ResourceBits) -> NDArray[np.bool_]:
        """Features that a set of resources pays for."""
        return np.array([need & ~resources == 0 for need in self.needs])

    def marked(self, resources: ResourceBits) -> NDArray[np.bool_]:
        """A set as one flag per resource."""
        found = np.zeros(len(self.costs.resource_names), dtype=bool)
        found[_members(resources)] = True
        return found

    def names(self, resources: ResourceBits) -> list[str]:
        """Names of the resources of a set."""
        return [self.costs.resource_names[r] for r in _members(resources)]

    def owned(self, features: Iterable[int]) -> ResourceBits:
        """Resources that some features need, as far as they cost anything."""
        return _union(self.needs[f] for f in features)


class Neighbourhood:
    """Sets that are worth a try.

    Parameters
    ----------
    shop : Shop
    effort : float
        More than 1 to try more pairs, less to try fewer.
    """

    def __init__(self, shop: Shop, effort: float):
        self.shop = shop
        self._effort = effort

    def singles(self, gains: Floats) -> list[ResourceBits]:
        """Every single purchase, or the most promising ones."""
        bundles = self.shop.bundles
        best = self._best_of_missing(0, gains)
        if len(bundles) > MOST_SINGLES:
            worth = {bundle: self._gain_of(bundle, 0, best) for bundle in bundles}
            ratio = {bundle: worth[bundle] / self.shop.price(bundle) for bundle in bundles}
            half = MOST_SINGLES // 2
            bundles = (
                sorted(bundles, key=worth.__getitem__, reverse=True)[:half]
                + sorted(bundles, key=ratio.__getitem__, reverse=True)[:half]
            )
        return [*bundles, *self._packages(0, best)]

    def pairs(self) -> list[ResourceBits]:
        """All pairs, where they are few: two features may be useless alone, and not together."""
        bundles = self.shop.bundles
        if len(bundles) * (len(bundles) - 1) // 2 > MOST_PAIRS * self._effort:
            return []
        return [a | b for a, b in combinations(bundles, 2)]

    def neighbours(self, have: ResourceBits, given: Floats, gains: Floats) -> list[ResourceBits]:
        """What could be bought in addition, left out, exchanged.

        ``given`` is what each feature gave to the model of the set, ``gains`` what it could bring
        at the root of one more tree.
        """
        least = self._least_first(have, given)
        additions = self._additions(have, gains)
        found = [have | purchase for purchase in additions]
        found += [self._without(have, resource) for resource in least[:MOST_DROPS]]
        found += [self._exchanged(have, purchase, least) for purchase in additions]
        return found

    def _additions(self, have: ResourceBits, gains: Floats) -> list[ResourceBits]:
        """Purchases worth a fit: the best for every price, and the best per unit of cost."""
        best = self._best_of_missing(have, gains)
        purchases = [b for b in self.shop.bundles if b & ~have]
        purchases += self._packages(have, best)
        if not purchases:
            return []
        worth = np.array([self._gain_of(purchase, have, best) for purchase in purchases])
        price = np.array([self.shop.price(purchase & ~have) for purchase in purchases])
        chosen: dict[int, None] = {}
        for i in np.argsort(-worth / np.maximum(price, 1e-300), kind="stable")[:3]:
            chosen[int(i)] = None
        limit = float(price.min())
        while True:
            for i in np.argsort(-np.where(price <= limit, worth, -np.inf), kind="stable")[:2]:
                if price[i] <= limit:
                    chosen[int(i)] = None
            if limit >= price.max():
                break
            limit = max(limit * PRICE_STEP, float(price[price > limit].min()))
        return [purchases[i] for i in chosen if worth[i] > 0]

    def _packages(self, have: ResourceBits, best: dict[ResourceBits, float]) -> list[ResourceBits]:
        """Purchases that share a price: the best two, four, ... of them, and all."""
        found: list[ResourceBits] = []
        for package in self.shop.packages:
            inside = [b for b in self.shop.bundles if b & ~have and b & ~package == 0]
            inside.sort(key=lambda bundle: -self._gain_of(bundle, have, best))
            size = 2
            while size < len(inside):
                found.append(_union(inside[:size]))
                size *= 2
            found.append(package)
        return found

    def _best_of_missing(self, have: ResourceBits, gains: Floats) -> dict[ResourceBits, float]:
        """For every set of resources that some features lack, the best gain among them."""
        best: dict[ResourceBits, float] = {}
        for gain, need in zip(gains.tolist(), self.shop.needs, strict=True):
            missing = need & ~have
            if missing:
                best[missing] = max(best.get(missing, 0.0), gain)
        return best

    def _gain_of(
        self, purchase: ResourceBits, have: ResourceBits, best: dict[ResourceBits, float]
    ) -> float:
        """Best gain among the features that a purchase makes usable."""
        new = purchase & ~have
        if not self.shop.packages:  # nothing is shared, so no other feature lacks a part of it
            return best.get(new, 0.0)
        return max((gain for missing, gain in best.items() if missing & ~new == 0), default=0.0)

    def _least_first(self, have: ResourceBits, given: Floats) -> list[int]:
        """Resources in use, those first whose features bring least per unit of cost."""
        worth = dict.fromkeys(_members(have), 0.0)
        for f in np.flatnonzero(given).tolist():
            for r in _members(self.shop.needs[f]):
                worth[r] += given[f]
        return sorted(worth, key=lambda r: worth[r] / self.shop.price(1 << r))

    def _exchanged(
        self, have: ResourceBits, purchase: ResourceBits, least: list[int]
    ) -> ResourceBits:
        """Take a purchase in, throw out what brings least per cost until it costs no more."""
        together, limit = have | purchase, self.shop.price(have)
        for r in least:
            if self.shop.price(together) <= limit:
                break
            if not purchase >> r & 1:
                together = self._without(together, r)
        return together

    def _without(self, resources: ResourceBits, resource: int) -> ResourceBits:
        """A set without a resource, and without what is useless then."""
        rest = resources & ~(1 << resource)
        return _union(need for need in self.shop.needs if need & ~rest == 0)


def _set(members: Iterable[int]) -> ResourceBits:
    return _union(1 << member for member in members)


def _union(sets: Iterable[ResourceBits]) -> ResourceBits:
    union = 0
    for some in sets:
        union |= some
    return union


def _members(resources: ResourceBits) -> list[int]:
    """Members of a set, in ascending order."""
    found = []
    while resources:
        lowest = resources & -resources
        found.append(lowest.bit_length() - 1)
        resources ^= lowest
    return found
