"""What one round of boosting may look at: drawn rows and features, and new ones or only owned ones.

Lots are hashes of a seed and of what they are drawn for (a round, a row, a node), not the next
numbers of a generator: they do not depend on threads, on how rows are spread, or on where a fit
was interrupted and continued.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.arithmetic import mix

# What lots are drawn for.
ROWS, FEATURES = 1, 2

# Lots are compared by their first bits, so many that every share of rows is a whole number of them.
LOT_BITS = 53


def mixed(*numbers: int) -> int:
    """One number of 64 bits from several; their order matters."""
    hashes = np.zeros(1, dtype=np.uint64)
    for number in numbers:
        hashes = mix(hashes + np.uint64(number))
    return int(hashes[0])


class RowLot(NamedTuple):
    """Rows are in if the lot of their unit is below a limit; units are rows, or queries."""

    seed: int
    limit: int

    def falls_on(self, units: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each of some units is in."""
        lots = mix(units.astype(np.uint64) + np.uint64(self.seed))
        is_drawn: NDArray[np.bool_] = lots >> np.uint64(64 - LOT_BITS) < np.uint64(self.limit)
        return is_drawn


class FeatureLot(NamedTuple):
    """Of some features, those with the least lots are in, anew at every node."""

    seed: int
    # How many: a number (int), or a share (float) that is rounded, but not to none.
    most: float

    def falls_on(self, among: NDArray[np.bool_], output: int, node: int) -> NDArray[np.bool_]:
        """Draw among the marked features for a node of an output's tree."""
        marked = np.flatnonzero(among)
        n = self.most if isinstance(self.most, int) else max(1, round(self.most * len(marked)))
        lots = mix(marked.astype(np.uint64) + np.uint64(mixed(self.seed, output, node)))
        drawn = np.zeros(len(among), dtype=bool)
        drawn[marked[np.argsort(lots, kind="stable")[:n]]] = True
        return drawn


class Round(NamedTuple):
    """What is in play in a round."""

    # Whether features may be looked at that are not owned.
    shops: bool = True
    # None for all.
    rows: RowLot | None = None
    features: FeatureLot | None = None


EVERYTHING = Round()


@dataclass(frozen=True)
class RoundRule:
    """How rounds differ. The default is Algorithm 1: everything is in play in all of them."""

    seed: int = 0
    # Every so many rounds, what is not owned is looked at.
    shopping_interval: int = 1
    # Share of rows.
    subsample: float = 1.0
    # Number (int) or share (float) of features that are not owned.
    max_features: float = 1.0

    @cached_property
    def differ(self) -> bool:
        """Whether there are rounds in which not everything is in play."""
        return self.shopping_interval > 1 or self.subsample < 1 or self._draws_features

    @property
    def _draws_features(self) -> bool:
        # One feature is not all of them, though 1 == 1.0.
        return isinstance(self.max_features, int) or self.max_features < 1

    def round(self, number: int) -> Round:
        """What is in play in a round; the first is round 0."""
        rows, features = None, None
        if self.subsample < 1:
            limit = math.ceil(self.subsample * 2**LOT_BITS)
            rows = RowLot(mixed(self.seed, ROWS, number), limit)
        if self._draws_features:
            features = FeatureLot(mixed(self.seed, FEATURES, number), self.max_features)
        return Round(number % self.shopping_interval == 0, rows, features)


ALGORITHM_1 = RoundRule()
