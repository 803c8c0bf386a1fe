"""Numbers in their order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.compiling import njit

# Numbers from which on they are sorted by their digits, whose counts take time to clear.
MANY = 1000


def sort_floats(values: NDArray[np.float64], many: int = MANY) -> None:
    """Sort in place, the lowest first, by the digits if there are many; NaN come first or last."""
    if len(values) < many:
        values.sort()
    else:
        sort_digits(values)


# Bits that numbers are sorted by at a time, from the lowest on, and how often.
DIGIT_BITS, DIGITS = 11, 6


@njit
def sort_digits(values):  # type: ignore[no-untyped-def]
    """Sort in place, the lowest first, NaN at the ends: by the bits, digit by digit.

    NumPy's sort compares, and on some processors takes several times as long.
    """
    n = np.uint64(values.size)
    size = 1 << DIGIT_BITS
    mask, sign = np.uint64(size - 1), np.uint64(1) << np.uint64(63)
    counts = np.zeros((DIGITS, size), dtype=np.uint32)
    now = values.view(np.uint64)
    after = np.empty(values.size, dtype=np.uint64)
    for i in range(n):
        # As whole numbers in the same order: the negative ones the other way round, and below.
        key = now[i]
        key = ~key if key & sign else key | sign
        now[i] = key
        for digit in range(DIGITS):
            counts[digit, (key >> np.uint64(DIGIT_BITS * digit)) & mask] += 1
    for digit in range(DIGITS):
        shift = np.uint64(DIGIT_BITS * digit)
        if n == 0 or counts[digit, (now[0] >> shift) & mask] == values.size:
            continue  # all have the same
        start = np.uint32(0)
        for k in range(size):
            count = counts[digit, k]
            counts[digit, k] = start
            start += count
        for i in range(n):
            k = (now[i] >> shift) & mask
            after[counts[digit, k]] = now[i]
            counts[digit, k] += 1
        now, after = after, now
    out = values.view(np.uint64)
    for i in range(n):
        key = now[i]
        out[i] = key ^ sign if key & sign else ~key
