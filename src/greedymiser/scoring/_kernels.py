"""Kernels of the scores: counts by class, and areas under sorted predictions."""

from __future__ import annotations

import numpy as np

from greedymiser._core.arithmetic import SUM_WORDS, add_number, rounded
from greedymiser._core.compiling import inner, njit


@inner
def likeliest(raw, i):
    """Class that is predicted of row i: the first of the highest, or the first that is NaN."""
    if raw.shape[0] == 1:
        return 1 if raw[0, i] > 0.0 else 0
    best = 0
    for k in range(1, raw.shape[0]):
        value = raw[k, i]
        if value > raw[best, i] or (value != value and raw[best, i] == raw[best, i]):
            best = k
    return best


@njit
def count_classes(raw, codes, correct, named):
    """Count how often each class is predicted, and how often rightly."""
    for i in range(np.uint64(codes.size)):
        k = likeliest(raw, i)
        named[k] += 1
        correct[k] += k == codes[i]


@njit
def weigh_classes(raw, codes, weight, correct, named):
    """Add up the weights of rows of which each class is predicted, and of those rightly."""
    n = correct.size
    words = np.zeros((2 * n, SUM_WORDS), dtype=np.int64)
    for i in range(np.uint64(codes.size)):
        k = likeliest(raw, i)
        add_number(words[k if k == codes[i] else n + k], weight[i])
    for k in range(n):
        correct[k] = rounded(words[k])
        words[n + k] += words[k]
        named[k] = rounded(words[n + k])


@njit
def pairs_in_order(low, low_mass, high, high_mass):
    """Twice the mass of pairs in which ``high`` is above ``low``, and once where they are equal.

    Both are sorted, the lowest first; without masses (length 0) every entry weighs 1. Returns an
    integer of 128 bits: its high and its low half.
    """
    i, j = 0, 0
    below = np.int64(0)
    upper, lower = np.uint64(0), np.uint64(0)
    while i < high.size:
        value = high[i]
        own, equal = np.int64(0), np.int64(0)
        while i < high.size and high[i] == value:
            own += high_mass[i] if high_mass.size else 1
            i += 1
        while j < low.size and low[j] < value:
            below += low_mass[j] if low_mass.size else 1
            j += 1
        while j < low.size and low[j] == value:
            equal += low_mass[j] if low_mass.size else 1
            j += 1
        product_upper, product_lower = multiply(np.uint64(own), np.uint64(2 * below + equal))
        lower += product_lower
        upper += product_upper + np.uint64(lower < product_lower)
        below += equal
    return upper, lower


@inner
def multiply(a, b):
    """Both halves of the product of two integers of up to 63 bits, as one does it on paper."""
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    a1, a0 = a >> half, a & mask
    b1, b0 = b >> half, b & mask
    last = a0 * b0
    middle = a1 * b0 + (last >> half)
    other = a0 * b1 + (middle & mask)
    return a1 * b1 + (middle >> half) + (other >> half), (other << half) | (last & mask)


@njit
def precision_steps(low, low_mass, low_unit, high, high_mass, out):
    """Mass of ``high`` at each of its values, the highest first, times the precision down to there.

    Takes what ``pairs_in_order`` takes; ``low_unit`` says what a unit of ``low_mass`` is in units
    of ``high_mass``. Returns how many values there are.
    """
    i, j, n = high.size - 1, low.size - 1, 0
    above, others = np.int64(0), np.int64(0)
    while i >= 0:
        value = high[i]
        own = np.int64(0)
        while i >= 0 and high[i] == value:
            own += high_mass[i] if high_mass.size else 1
            i -= 1
        while j >= 0 and low[j] >= value:
            others += low_mass[j] if low_mass.size else 1
            j -= 1
        above += own
        out[n] = own * (above / (above + low_unit * others))
        n += 1
    return n
