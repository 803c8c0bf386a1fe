"""Sets of resources, and which of them are worth a fit.

What could be bought is judged before anything is trained, by the gains of all features at the root
of one more tree on the residuals of the set's model: the best for each price that one might pay
(that contains Greedy + Max), and the best per unit of cost (that contains the ratio-greedy chain).
What could be left out is judged by what each resource gave to the set's own model.

The guarantees for submodular functions under a knapsack constraint do not carry over: a refitted
model's score is not submodular. They are why the neighbours are these.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from greedymiser.costs.cost_model import CostModel

Floats = NDArray[np.float64]
ResourceBits = int
"""A set of resources: bit r is set where resource r is in it."""

# All pairs are tried where there are at most so many of them.
MOST_PAIRS = 300
# Prices that one might pay are this far apart; so many of the least useful resources are left out,
# one at a time.
PRICE_STEP, MOST_DROPS = 1.6, 4
# What is kept where many are left out at once. A model ranks neighbours that say the same next to
# each other, so that half would often lose all of them.
KEPT = 0.7
# Packages that are tried beside single purchases, and sizes of each.
MOST_PACKAGES, MOST_SIZES = 4, 3


class ResourceSets:
    """Sets of resources of a cost model: what they cost, and what they are good for.

    A *bundle* is what some feature needs. Where bundles share a resource, all that use it are a
    *package*: together they may be worth a price that none of them is worth alone.
    """

    def __init__(self, costs: CostModel):
        self.costs = costs
        free = _set(np.flatnonzero(costs.resource_costs == 0).tolist())
        self.needs = [_set(wanted) & ~free for wanted in costs.needs]
        bundles = dict.fromkeys(need for need in self.needs if need)
        users: dict[int, list[ResourceBits]] = {}
        for bundle in bundles:
            for resource in members(bundle):
                users.setdefault(resource, []).append(bundle)
        packages = {union(some) for some in users.values() if len(some) > 1}
        self.bundles = sorted(bundles, key=self.price)
        self.packages = sorted(packages - bundles.keys(), key=lambda some: (self.price(some), some))

    def price(self, resources: ResourceBits) -> float:
        """What a set costs."""
        return self.costs.bill(members(resources), 0)

    def features(self, resources: ResourceBits) -> NDArray[np.bool_]:
        """Features that a set of resources pays for."""
        return np.array([need & ~resources == 0 for need in self.needs])

    def marked(self, resources: ResourceBits) -> NDArray[np.bool_]:
        """A set as one flag per resource."""
        flags = np.zeros(len(self.costs.resource_names), dtype=bool)
        flags[members(resources)] = True
        return flags

    def names(self, resources: ResourceBits) -> list[str]:
        """Names of the resources of a set."""
        return [self.costs.resource_names[r] for r in members(resources)]

    def owned(self, features: Iterable[int]) -> ResourceBits:
        """Resources that some features need, as far as they cost anything."""
        return union(self.needs[f] for f in features)

    def without(self, resources: ResourceBits, left_out: ResourceBits) -> ResourceBits:
        """A set without some resources, and without what is useless then."""
        rest = resources & ~left_out
        return union(need for need in self.needs if need & ~rest == 0)


class Neighbourhood:
    """Sets that are worth a try.

    Parameters
    ----------
    sets : ResourceSets
    effort : float
        More than 1 to try more pairs, less to try fewer.
    """

    def __init__(self, sets: ResourceSets, effort: float):
        self.sets = sets
        self._effort = effort
        # By package: smaller and smaller parts of it, as its own models leave them over.
        self.chains: dict[ResourceBits, list[ResourceBits]] = {}

    def singles(self, gains: Floats, most: int) -> list[ResourceBits]:
        """Every single purchase, or the most promising ones."""
        bundles = self.sets.bundles
        if len(bundles) <= most:
            return list(bundles)
        best = self._best_of_missing(0, gains)
        worth = {bundle: self._gain_of(bundle, 0, best) for bundle in bundles}
        ratio = {bundle: worth[bundle] / self.sets.price(bundle) for bundle in bundles}
        half = most // 2
        return [
            *sorted(bundles, key=worth.__getitem__, reverse=True)[:half],
            *sorted(bundles, key=ratio.__getitem__, reverse=True)[:half],
        ]

    def pairs(self) -> list[ResourceBits]:
        """All pairs, where they are few: two features may be useless alone, and not together."""
        bundles = self.sets.bundles
        if len(bundles) * (len(bundles) - 1) // 2 > MOST_PAIRS * self._effort:
            return []
        return [a | b for a, b in combinations(bundles, 2)]

    def smaller(self, have: ResourceBits, importances: Floats) -> ResourceBits:
        """What is left if the bundles that bring least per unit of cost go, many at once.

        ``importances`` are what each feature gave to the model of the set. A bundle costs what
        nothing else in the set needs: an entry price that it shares counts for nothing.
        """
        worth: dict[ResourceBits, float] = {}
        for f in np.flatnonzero(importances).tolist():
            need = self.sets.needs[f]
            worth[need] = worth.get(need, 0.0) + float(importances[f])
        worth.pop(0, None)
        once, twice = 0, 0
        for need in worth:
            twice |= once & need
            once |= need
        price = {need: self.sets.price(need & ~twice) for need in worth}
        most_first = sorted(worth, key=lambda need: -worth[need] / max(price[need], 1e-300))
        n_kept = min(len(most_first) - 1, math.ceil(KEPT * len(most_first)))
        # What one bundle needs may be what the others need anyway.
        while n_kept > 0 and union(most_first[:n_kept]) == once:
            n_kept -= 1
        return union(most_first[: max(n_kept, 0)])

    def drops(self, have: ResourceBits, importances: Floats) -> list[ResourceBits]:
        """A set without one of the resources that bring least per unit of cost."""
        least = self._least_first(have, importances)
        return [self.sets.without(have, 1 << resource) for resource in least[:MOST_DROPS]]

    def neighbours(
        self, have: ResourceBits, importances: Floats, gains: Floats
    ) -> list[ResourceBits]:
        """What could be bought in addition, left out, exchanged.

        ``importances`` are what each feature gave to the model of the set, ``gains`` what it could
        bring at the root of one more tree.
        """
        least = self._least_first(have, importances)
        additions = self._additions(have, gains)
        around = [have | purchase for purchase in additions]
        around += self.drops(have, importances)
        if len(least) > MOST_DROPS:
            around.append(self.smaller(have, importances))
        around += [self._exchanged(have, purchase, least) for purchase in additions]
        return around

    def _additions(self, have: ResourceBits, gains: Floats) -> list[ResourceBits]:
        """Purchases worth a fit: the best for every price, the best per unit of cost, packages."""
        best = self._best_of_missing(have, gains)
        purchases = [b for b in self.sets.bundles if b & ~have]
        if not purchases:
            return []
        worth = np.array([self._gain_of(purchase, have, best) for purchase in purchases])
        price = np.array([self.sets.price(purchase & ~have) for purchase in purchases])
        chosen: dict[ResourceBits, None] = {}
        by_ratio = np.argsort(-worth / np.maximum(price, 1e-300), kind="stable")
        for i in by_ratio[:3]:
            if worth[i] > 0:
                chosen[purchases[i]] = None
        limit = float(price.min())
        while True:
            for i in np.argsort(-np.where(price <= limit, worth, -np.inf), kind="stable")[:2]:
                if price[i] <= limit and worth[i] > 0:
                    chosen[purchases[i]] = None
            if limit >= price.max():
                break
            limit = max(limit * PRICE_STEP, float(price[price > limit].min()))
        for package in self._packages(have, best):
            chosen[package] = None
        return list(chosen)

    def _packages(self, have: ResourceBits, best: dict[ResourceBits, float]) -> list[ResourceBits]:
        """Parts of the most promising packages, those first that bring most per unit of cost."""
        offers: list[tuple[float, list[ResourceBits]]] = []
        for package in self.sets.packages:
            parts = [part for part in self.chains.get(package, [package]) if part & ~have]
            parts = [part for part in parts if not self._is_single(part & ~have, have)]
            if not parts:
                continue
            worth = self._gain_of(package, have, best)
            ratio = worth / self.sets.price(parts[-1] & ~have)
            places = np.linspace(0, len(parts) - 1, min(MOST_SIZES, len(parts)))
            offers.append((ratio, [parts[round(place)] for place in places]))
        offers.sort(key=lambda offer: -offer[0])
        return [part for ratio, parts in offers[:MOST_PACKAGES] if ratio > 0 for part in parts]

    def _is_single(self, missing: ResourceBits, have: ResourceBits) -> bool:
        """Whether one bundle is all that is missing."""
        return any(bundle & ~have == missing for bundle in self.sets.bundles)

    def _best_of_missing(self, have: ResourceBits, gains: Floats) -> dict[ResourceBits, float]:
        """For every set of resources that some features lack, the best gain among them."""
        best: dict[ResourceBits, float] = {}
        for gain, need in zip(gains.tolist(), self.sets.needs, strict=True):
            missing = need & ~have
            if missing:
                best[missing] = max(best.get(missing, 0.0), gain)
        return best

    def _gain_of(
        self, purchase: ResourceBits, have: ResourceBits, best: dict[ResourceBits, float]
    ) -> float:
        """Best gain among the features that a purchase makes usable."""
        new = purchase & ~have
        if not self.sets.packages:  # nothing is shared, so no other feature lacks a part of it
            return best.get(new, 0.0)
        return max((gain for missing, gain in best.items() if missing & ~new == 0), default=0.0)

    def _least_first(self, have: ResourceBits, importances: Floats) -> list[int]:
        """Resources in use, those first whose features bring least per unit of cost."""
        worth = dict.fromkeys(members(have), 0.0)
        for f in np.flatnonzero(importances).tolist():
            for r in members(self.sets.needs[f]):
                worth[r] += importances[f]
        return sorted(worth, key=lambda r: worth[r] / self.sets.price(1 << r))

    def _exchanged(
        self, have: ResourceBits, purchase: ResourceBits, least: list[int]
    ) -> ResourceBits:
        """Take a purchase in, throw out what brings least per cost until it costs no more."""
        together, limit = have | purchase, self.sets.price(have)
        for r in least:
            if self.sets.price(together) <= limit:
                break
            if not purchase >> r & 1:
                together = self.sets.without(together, 1 << r)
        return together


def union(sets: Iterable[ResourceBits]) -> ResourceBits:
    """All that is in any of some sets."""
    whole = 0
    for some in sets:
        whole |= some
    return whole


def members(resources: ResourceBits) -> list[int]:
    """Members of a set, in ascending order."""
    positions = []
    while resources:
        lowest = resources & -resources
        positions.append(lowest.bit_length() - 1)
        resources ^= lowest
    return positions


def _set(some: Iterable[int]) -> ResourceBits:
    return union(1 << member for member in some)
