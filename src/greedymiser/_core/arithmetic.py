"""Exact sums, and functions that give the same bits on every machine.

A mathematical library may round exp and log differently on another processor, in its next version,
or in a vectorised loop. The functions here are spelled out, so a model that was trained with them
is the same wherever numbers follow IEEE 754. They are within three units in the last place.

They are meant to be called in loops of kernels, which LLVM then makes vectors of; there are no
branches in them but choices between two values.

The sums at the end are exact: they are rounded once, at the end, and so depend on the numbers alone
and not on their order, on threads or on partitions.
"""

from __future__ import annotations

import math

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from greedymiser._core.compiling import inner, njit
from greedymiser._core.intrinsics import bits_of, from_bits

# Adding it moves the binary point behind the last bit of a number below 2^51 in size.
_ROUNDER = 6755399441055744.0
_LOG2_E = 1.4426950408889634
# ln 2 in two parts: the first has so many zeros at its end that products with exponents are exact.
_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10

# exp is 0 below and infinite above.
_LOWEST, _HIGHEST = -745.2, 709.782712893384

_MANTISSA = np.int64((1 << 52) - 1)
_ONE = np.int64(1023 << 52)


@inner(forceinline=True)
def exp(x):
    """e^x, by e^x = 2^k e^r with r between -ln(2)/2 and ln(2)/2."""
    inside = min(max(x, _LOWEST), _HIGHEST)
    shifted = inside * _LOG2_E + _ROUNDER
    k = shifted - _ROUNDER
    r = (inside - k * _LN2_HIGH) - k * _LN2_LOW
    # The Taylor series: what is left out is below a fifth of a unit in the last place.
    p = 1.6059043836821613e-10
    p = p * r + 2.08767569878681e-09
    p = p * r + 2.505210838544172e-08
    p = p * r + 2.755731922398589e-07
    p = p * r + 2.7557319223985893e-06
    p = p * r + 2.48015873015873e-05
    p = p * r + 0.0001984126984126984
    p = p * r + 0.001388888888888889
    p = p * r + 0.008333333333333333
    p = p * r + 0.041666666666666664
    p = p * r + 0.16666666666666666
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    # 2^k in two factors, as one may be too small for a float.
    exponent = bits_of(shifted) - bits_of(_ROUNDER)
    half = exponent >> np.int64(1)
    p = p * from_bits((half << np.int64(52)) + _ONE)
    p = p * from_bits(((exponent - half) << np.int64(52)) + _ONE)
    p = math.inf if x > _HIGHEST else p
    return p if x == x else x


@inner(forceinline=True)
def log(x):
    """Natural logarithm of a positive, finite number.

    By x = 2^k (1 + f) with 1 + f between sqrt(1/2) and sqrt(2), and
    log(1 + f) = 2 atanh(f / (2 + f)).
    """
    # Numbers below 2^-1022 have fewer bits: they borrow 54 powers of two.
    is_tiny = x < 2.2250738585072014e-308
    bits = bits_of(x * 18014398509481984.0 if is_tiny else x)
    # Numbers from sqrt(1/2) on count as of the next power of two.
    bits += np.int64(0x3FF0000000000000 - 0x3FE6A09E667F3BCD)
    k = (bits >> np.int64(52)) - np.int64(1077 if is_tiny else 1023)
    f = from_bits((bits & _MANTISSA) + np.int64(0x3FE6A09E667F3BCD)) - 1.0
    s = f / (2.0 + f)
    z = s * s
    p = 0.047619047619047616
    p = p * z + 0.05263157894736842
    p = p * z + 0.058823529411764705
    p = p * z + 0.06666666666666667
    p = p * z + 0.07692307692307693
    p = p * z + 0.09090909090909091
    p = p * z + 0.1111111111111111
    p = p * z + 0.14285714285714285
    p = p * z + 0.2
    p = p * z + 0.3333333333333333
    p = p * z
    # 2 s = f - f s, and so 2 s (1 + p) = f - s (f - 2 p): the largest term is exact.
    small = s * (f - 2.0 * p)
    return float(k) * _LN2_HIGH + (f - (small - float(k) * _LN2_LOW))


@inner(forceinline=True)
def log_of_one_plus(u):
    """log(1 + u) for u between 0 and 1; as good for small u."""
    w = 1.0 + u
    return log(w) + (u - (w - 1.0)) / w


@inner(forceinline=True)
def sigmoid(x):
    """1 / (1 + e^-x)."""
    return 1.0 / (1.0 + exp(-x))


@inner(forceinline=True)
def softplus(x):
    """log(1 + e^x)."""
    negative = -x if x > 0.0 else x
    return (x if x > 0.0 else 0.0) + log_of_one_plus(exp(negative))


# -- exact sums -----------------------------------------------------------------------------------

# A sum of floats as one long integer in units of 2^-1074, the smallest float: 32 bits to a word,
# so that a long while passes before any carry must be passed on. Behind it, how often
# infinity, minus infinity and NaN were met.
_DIGITS = 67
SUM_WORDS = _DIGITS + 3
_LOW = np.int64(0xFFFFFFFF)


def exact_sum(values: NDArray[np.float64]) -> float:
    """The sum of some numbers, rounded once: ``math.fsum`` for arrays."""
    total = new_sums()[0]
    add_exactly(total, np.ascontiguousarray(values, dtype=np.float64))
    return float(rounded(total))


def new_sums(n: int = 1) -> NDArray[np.int64]:
    """Space for some exact sums; sums of parts are added by adding these words."""
    return np.zeros((n, SUM_WORDS), dtype=np.int64)


# Numbers that are added before they are passed on to the long integer.
_BLOCK = 1024
# Four tables of sums by sign and exponent.
SUM_TABLE = 4 << 12
_EXPONENT = np.uint64(0x7FF)


@njit
def add_exactly(total, values):
    """Add numbers to an exact sum."""
    table = np.empty(SUM_TABLE, dtype=np.int64)
    for i in range(table.size):
        table[i] = 0
    add_with_table(total, values, table)


@inner
def add_with_table(total, values, table):
    """Do as ``add_exactly`` does, with a table that is 0 before and after.

    Mantissas (53 bits) are added by sign and exponent first, up to 1024 at a time: 63 bits, and one
    addition per number. Four tables take turns, since neighbours often have the same exponent, and
    an addition to memory would have to wait for the one before.
    """
    for first in range(0, values.size, _BLOCK):
        start, stop = np.uint64(first), np.uint64(min(first + _BLOCK, values.size))
        lowest, highest = np.int64(0x7FF), np.int64(0)
        for i in range(start, stop):
            exponent = (bits_of(values[i]) >> np.int64(52)) & np.int64(0x7FF)
            lowest, highest = min(lowest, exponent), max(highest, exponent)
        if highest == 0x7FF:
            count_strange(total, values[first : first + _BLOCK])
            continue
        for i in range(start, stop):
            bits = bits_of(values[i])
            kind = np.uint64(bits) >> np.uint64(52)
            mantissa = (bits & _MANTISSA) | (np.int64(kind & _EXPONENT > 0) << np.int64(52))
            table[((i & np.uint64(3)) << np.uint64(12)) | kind] += mantissa
        for exponent in range(lowest, highest + 1):
            for sign in range(2):
                number = np.int64(0)
                for turn in range(4):
                    at = (turn << 12) | (sign << 11) | exponent
                    number += table[at]
                    table[at] = 0
                if number != 0:
                    add_shifted(total, -number if sign else number, max(exponent - 1, 0))


@inner
def count_strange(total, values):
    """Count infinities and NaN. What is finite beside them does not show in the sum."""
    for i in range(values.size):
        if not np.isfinite(values[i]):
            total[_DIGITS + (2 if np.isnan(values[i]) else (1 if values[i] < 0 else 0))] += 1


@inner
def add_number(total, x):
    """Add a single number to an exact sum."""
    bits = bits_of(x)
    exponent = (bits >> np.int64(52)) & np.int64(0x7FF)
    mantissa = bits & _MANTISSA
    if exponent == np.int64(0x7FF):
        total[_DIGITS + (2 if mantissa != 0 else (1 if bits < 0 else 0))] += 1
        return
    mantissa |= np.int64(exponent > 0) << np.int64(52)
    add_shifted(total, -mantissa if bits < 0 else mantissa, max(exponent - 1, 0))


@inner
def add_shifted(total, number, exponent):
    """Add ``number * 2^exponent``, in units of 2^-1074."""
    at, shift = exponent >> np.int64(5), exponent & np.int64(31)
    sign = np.int64(-1) if number < 0 else np.int64(1)
    size = sign * number
    low = (size & _LOW) << shift
    high = (size >> np.int64(32)) << shift
    total[at] += sign * (low & _LOW)
    total[at + 1] += sign * ((low >> np.int64(32)) + (high & _LOW))
    total[at + 2] += sign * (high >> np.int64(32))


@njit
def rounded(words):
    """The float that is nearest to an exact sum; ties to even, as ``math.fsum`` has it."""
    if words[_DIGITS + 2] > 0 or (words[_DIGITS] > 0 and words[_DIGITS + 1] > 0):
        return np.nan
    if words[_DIGITS] > 0 or words[_DIGITS + 1] > 0:
        return np.inf if words[_DIGITS] > 0 else -np.inf
    digits = words[:_DIGITS].copy()
    negative = carry(digits) < 0
    if negative:
        for i in range(_DIGITS):
            digits[i] = -digits[i]
        carry(digits)
    top = _DIGITS - 1
    while top > 0 and digits[top] == 0:
        top -= 1
    # The highest 64 bits, and in the last of them whether anything follows.
    kept = np.uint64(0)
    for i in range(3):
        digit = np.uint64(digits[top - i]) if top >= i else np.uint64(0)
        if i == 0:
            kept = digit << np.uint64(32)
            free = np.uint64(0)
            while kept >> np.uint64(63) == 0 and kept != 0:
                kept <<= np.uint64(1)
                free += np.uint64(1)
        elif i == 1:
            kept |= digit << free
        else:
            kept |= digit >> (np.uint64(32) - free)
            if free < np.uint64(32) and digit << (np.uint64(32) + free) != 0:
                kept |= np.uint64(1)
    for i in range(top - 2):
        if digits[i] != 0:
            kept |= np.uint64(1)
    result = scaled(kept, 32 * (top - 1) - np.int64(free) - 1074)
    return -result if negative else result


@inner
def carry(digits):
    """Bring all digits but the last into 0 .. 2^32 - 1; return the last, which has the sign."""
    over = np.int64(0)
    for i in range(digits.size - 1):
        digit = digits[i] + over
        digits[i] = digit & _LOW
        over = digit >> np.int64(32)
    digits[digits.size - 1] += over
    return digits[digits.size - 1]


@inner
def pass_carries(total):
    """Pass on all carries of an exact sum: as many numbers as before can then be added to it."""
    carry(total[:_DIGITS])


@inner
def scaled(mantissa, exponent):
    """Float nearest to mantissa * 2^exponent; the mantissa has 64 bits or is 0."""
    if exponent < -1074:
        # Too small for 53 bits: drop the bits below 2^-1074 here, where they round once.
        drop = np.uint64(min(-1074 - exponent, 64))
        if drop == np.uint64(64):
            return 0.0
        rest = mantissa & ((np.uint64(1) << drop) - np.uint64(1))
        half = np.uint64(1) << (drop - np.uint64(1))
        mantissa >>= drop
        if rest > half or (rest == half and mantissa & np.uint64(1) == np.uint64(1)):
            mantissa += np.uint64(1)
        exponent = -1074
    return math.ldexp(float(mantissa), exponent)


# -- hashes ---------------------------------------------------------------------------------------

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


@register_jitable
def mix(z):
    """Scramble 64 bits: the step of SplitMix64 (Steele, Lea and Flood 2014).

    For arrays of unsigned numbers, and for single ones in kernels.
    """
    z = z + _GAMMA
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))
