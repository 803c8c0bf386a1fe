"""Which rows to learn from, and which to check with."""

from __future__ import annotations

import math
from numbers import Integral

import numpy as np
from numpy.typing import NDArray


def divide(
    strata: NDArray[np.float64], share: float | int, rng: np.random.RandomState, what: str
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Positions to learn from, and a random share of all to check with, even over the strata."""
    n = len(strata)
    shuffled = rng.permutation(n)
    ordered = shuffled[np.argsort(strata[shuffled], kind="stable")]
    # One of each stratum is kept to learn from: there must be no class that nobody has seen.
    spare = ordered[np.append(False, np.diff(strata[ordered]) == 0)]
    size = int(share) if isinstance(share, Integral) else math.ceil(share * n)
    if size > len(spare):
        raise ValueError(
            f"validation_fraction={share} asks to set {size} of {n} {what} aside for early "
            f"stopping, but only {len(spare)} can be spared; pass X_val and y_val instead, or set "
            "early_stopping=False or validation_fraction=None"
        )
    every = (np.arange(size) + rng.uniform()) * len(spare) / size
    chosen = spare[every.astype(np.intp)]
    return np.setdiff1d(np.arange(n), chosen), np.sort(chosen)
