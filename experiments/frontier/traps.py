"""Made problems that greed falls for: what promises most at the first split is the wrong purchase.

All are regression by squared error, the target has variance 1 up to chance, and the right set is
known because the data was made so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from greedymiser import CostModel

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Trap:
    """Data, prices, a budget, and the features that it should be spent on."""

    X: Floats
    y: Floats
    costs: CostModel
    budget: float
    # Without them no model is good; what the budget has left may go to anything.
    right: frozenset[int]

    def split(self, *shares: float) -> list[tuple[Floats, Floats]]:
        """Rows in parts, by default two halves: the rows are in no order."""
        ends = np.cumsum(shares or (0.5, 0.5)) * len(self.y)
        parts = np.split(np.arange(len(self.y)), np.rint(ends).astype(int)[:-1])
        return [(self.X[rows], self.y[rows]) for rows in parts]


def dear_against_decoys(n: int = 4000, seed: int = 0) -> Trap:
    """One feature for 30 that tells nearly everything, ten for 1 that tell half of it together.

    The target flips from one of 16 steps of the dear feature to the next, so a single split by it
    brings less than one by a good decoy; a few trees of it alone bring nearly all. The decoys are
    noisy copies of the target, two of them better than the others. Whoever owns two decoys cannot
    pay for the dear feature any more.
    """
    rng = np.random.default_rng(seed)
    dear = rng.random(n)
    signal = np.where(np.floor(16 * dear) % 2 == 0, 1.0, -1.0)
    decoys = noisy_copies(signal, [0.2] * 2 + [0.06] * 8, rng)
    y = signal + 0.2 * rng.standard_normal(n)
    costs = CostModel([30.0] + [1.0] * 10)
    return Trap(np.column_stack([dear, decoys]), y, costs, 31.0, frozenset({0}))


def xor_pair(n: int = 4000, seed: int = 0) -> Trap:
    """Two features for 5 that are useless alone and tell most together, twelve weak ones for 1.

    Any split by one of the pair gains nothing, so greed buys weak ones, and with three of them
    the pair is out of reach. All twelve weak ones tell less than a quarter.
    """
    rng = np.random.default_rng(seed)
    pair = rng.uniform(-1.0, 1.0, (n, 2))
    weak = rng.standard_normal((n, 12))
    y = (
        np.sqrt(0.7) * np.sign(pair[:, 0] * pair[:, 1])
        + np.sqrt(0.02) * weak.sum(axis=1)
        + np.sqrt(0.06) * rng.standard_normal(n)
    )
    costs = CostModel([5.0, 5.0] + [1.0] * 12)
    return Trap(np.column_stack([pair, weak]), y, costs, 12.0, frozenset({0, 1}))


def shared_entry(n: int = 4000, seed: int = 0) -> Trap:
    """Fifteen weak features for 0.1 each behind an entry of 20, against eight others for 3 each.

    The entry has no feature of its own. One feature behind it does not pay for it; all together
    tell nearly everything. Each of the others tells more than any of them, but all eight less than
    half, and whoever owns two of them cannot pay for the entry any more.
    """
    rng = np.random.default_rng(seed)
    behind = rng.standard_normal((n, 15))
    signal = behind.sum(axis=1) / np.sqrt(15)
    others = noisy_copies(signal, [0.1] * 8, rng)
    y = np.sqrt(0.95) * signal + np.sqrt(0.05) * rng.standard_normal(n)
    names = [f"behind_{i}" for i in range(15)], [f"other_{i}" for i in range(8)]
    resources = dict.fromkeys(names[0], 0.1) | dict.fromkeys(names[1], 3.0) | {"entry": 20.0}
    needs = {name: [name, "entry"] for name in names[0]} | {name: [name] for name in names[1]}
    costs = CostModel.from_resources(resources, needs)
    return Trap(np.column_stack([behind, others]), y, costs, 24.0, frozenset(range(15)))


def noisy_copies(signal: Floats, shares: Sequence[float], rng: np.random.Generator) -> Floats:
    """A column for each share of the signal's variance to explain, with noise of its own.

    Together they explain R / (1 + R) of it, where R is the sum of share / (1 - share).
    """
    noise = rng.standard_normal((len(signal), len(shares)))
    return np.sqrt(shares) * signal[:, None] + np.sqrt(1 - np.asarray(shares)) * noise


TRAPS = {
    "dear_against_decoys": dear_against_decoys,
    "xor_pair": xor_pair,
    "shared_entry": shared_entry,
}
