"""Exact quantiles: of an array, and of arrays whose entries are spread over several places.

A weighted quantile looks at sums of weights from the smallest value up. They are exact and rounded
once, so the order of rows and their places do not matter, however many decimals weights have.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.arithmetic import (
    SUM_WORDS,
    add_exactly,
    add_number,
    exact_sum,
    new_sums,
    pass_carries,
    rounded,
)
from greedymiser._core.compiling import njit

Floats = NDArray[np.float64]
ArraysPart = Sequence[tuple[Floats, Floats | None]]
"""What a part has of each array: values, and their weights or None."""

# Sums this close to the quantile are on it: weights of 0.1 do not add up to 1.
_SLACK = 1e-12

# A question divides the floats in question into so many ranges, a power of two.
_BITS = 12
# So many numbers are asked for one by one.
FEW = 4096


def weighted_quantile(values: Floats, weight: Floats | None, quantile: float) -> float:
    """Smallest minimiser of the pinball loss, or the middle where a whole interval minimises it."""
    if weight is None:
        ordered, weights = np.sort(values), None
        total = float(len(values))
    else:
        order = np.argsort(values, kind="stable")
        ordered, weights = values[order], np.ascontiguousarray(weight[order], dtype=np.float64)
        total = exact_sum(weights)
    low, high = _bounds(quantile, total)
    first = _first_above(weights, len(ordered), low, strictly=False)
    second = _first_above(weights, len(ordered), high, strictly=True)
    return _middle(ordered[first], ordered[second])


def _bounds(quantile: float, total: float) -> tuple[float, float]:
    target = quantile * total
    return target * (1.0 - _SLACK), target * (1.0 + _SLACK)


def _middle(low: float, high: float) -> float:
    return (
        float(0.5 * (low + high)) + 0.0
    )  # -0.0 and 0.0 are equal, and which comes first is chance


def _first_above(weights: Floats | None, n: int, bound: float, strictly: bool) -> int:
    """First entry up to which the weights reach a bound, or exceed it; the last if none does."""
    before = new_sums()[0]
    low, high = 0, n - 1  # what is looked for is not below ``low``; ``before`` is the sum up to it
    while low < high:
        middle = (low + high) // 2
        total = before.copy()
        if weights is not None:
            add_exactly(total, weights[low : middle + 1])
        share = float(middle + 1) if weights is None else float(rounded(total))
        if share > bound or (share == bound and not strictly):
            high = middle
        else:
            low, before = middle + 1, total
    return low


# -- in several places ----------------------------------------------------------------------------


class FloatRange(NamedTuple):
    """Some of the floats, in their order, cut into ranges of 2^shift floats."""

    array: int
    # The first of them, as its place in the order of all floats, and how many: 2^size.
    start: int
    size: int
    shift: int


class Tally(NamedTuple):
    """What lies in the ranges of floats in which anything lies."""

    # Numbers of the ranges, ascending.
    ranges: NDArray[np.uint64]
    # Which columns are kept: the number of values is column 0, the words of the exact sum of
    # weights follow. Most words are 0 everywhere and left out.
    columns: NDArray[np.int64]
    # (ranges, columns)
    table: NDArray[np.int64]


@dataclass(frozen=True)
class Tallies:
    """Asks how many values, of which weight, lie in which ranges of floats.

    A part is a sequence with a pair (values, weights or None) for each array. Answers are small,
    and adding them up is exact: what is found does not depend on the parts.
    """

    asked: tuple[FloatRange, ...]

    def answer(self, part: ArraysPart) -> list[Tally]:
        keys: dict[int, NDArray[np.uint64]] = {}
        tallies = []
        for asked in self.asked:
            values, weight = part[asked.array]
            if asked.array not in keys:
                keys[asked.array] = places(values)
            tallies.append(_tally(asked, keys[asked.array], weight))
        return tallies

    def merge(self, one: list[Tally], other: list[Tally]) -> list[Tally]:
        return [_added(*pair) for pair in zip(one, other, strict=True)]


@dataclass(frozen=True)
class _Cursor:
    """Where one bound is looked for: the values below ``range`` weigh less."""

    range: FloatRange
    strictly: bool
    # Number and words of what is below.
    below: NDArray[np.int64]


def quantiles_of_parts(
    quantile: float, sizes: Sequence[int | None], ask: Callable[[Tallies], list[Tally]]
) -> Floats:
    """``weighted_quantile`` of several arrays at once, all of them with weights or all without.

    ``sizes`` says how many entries an array has; None where nobody knows. ``ask`` returns what all
    parts say together: ``reduce(question.merge, map(question.answer, parts))``. Up to ``FEW``
    entries take one question, and more take two to six.
    """
    width = 1 + SUM_WORDS
    everything = [_narrowed(FloatRange(i, 0, 64, 0), size) for i, size in enumerate(sizes)]
    cursors = {
        (i, strictly): _Cursor(whole, strictly, np.zeros(width, dtype=np.int64))
        for i, whole in enumerate(everything)
        for strictly in (False, True)
    }
    totals: dict[int, float] = {}
    values: dict[tuple[int, bool], float] = {}
    while cursors:
        asked = tuple(dict.fromkeys(cursor.range for cursor in cursors.values()))
        tallies = dict(zip(asked, ask(Tallies(asked)), strict=True))
        for name, cursor in list(cursors.items()):
            tally = tallies[cursor.range]
            if name[0] not in totals:  # the first question was about all values
                totals[name[0]] = _weight_of(_widened(tally).sum(axis=0))
            bound = _bounds(quantile, totals[name[0]])[cursor.strictly]
            moved = _moved(cursor, tally, bound)
            if isinstance(moved, float):
                values[name] = moved
                del cursors[name]
            else:
                cursors[name] = moved
    return np.array([_middle(values[i, False], values[i, True]) for i in range(len(sizes))])


def _moved(cursor: _Cursor, tally: Tally, bound: float) -> _Cursor | float:
    """The range in which the bound is reached; or the value itself, once ranges are floats."""
    sums = cursor.below + np.cumsum(_widened(tally), axis=0)

    def is_above(row: int) -> bool:
        share = _weight_of(sums[row])
        return share > bound or (share == bound and not cursor.strictly)

    row = bisect_left(range(len(sums) - 1), True, key=is_above)  # the last one if none is above
    asked = cursor.range
    start = asked.start + (int(tally.ranges[row]) << asked.shift)
    if asked.shift == 0:
        return float(from_places(np.array([start], dtype=np.uint64))[0])
    count = int(tally.table[row, 0])
    inside = _narrowed(FloatRange(asked.array, start, asked.shift, 0), count)
    below = cursor.below if row == 0 else sums[row - 1]
    return replace(cursor, range=inside, below=below)


def _narrowed(asked: FloatRange, count: int | None) -> FloatRange:
    """How finely to ask, when so many values lie there."""
    few = count is not None and count <= FEW
    return asked._replace(shift=0 if few else max(0, asked.size - _BITS))


def _weight_of(sums: NDArray[np.int64]) -> float:
    """Weight of some values; how many they are, if nobody has weights."""
    return float(rounded(sums[1:])) if sums[1:].any() else float(sums[0])


def _tally(asked: FloatRange, keys: NDArray[np.uint64], weight: Floats | None) -> Tally:
    low, high = np.uint64(asked.start), np.uint64(asked.start + (1 << asked.size) - 1)
    inside = np.flatnonzero((keys >= low) & (keys <= high))
    at = (keys[inside] - low) >> np.uint64(asked.shift)
    weights = np.empty(0) if weight is None else weight[inside].astype(np.float64)
    if asked.size - asked.shift > _BITS:  # single floats: there are few
        ranges, at = np.unique(at, return_inverse=True)
    else:
        ranges = np.arange(1 << (asked.size - asked.shift), dtype=np.uint64)
    table = np.zeros((len(ranges), 1 if weight is None else 1 + SUM_WORDS), dtype=np.int64)
    tally_weights(at.astype(np.int64), weights, table)
    kept, columns = np.flatnonzero(table[:, 0]), np.flatnonzero(table.any(axis=0))
    columns = columns if len(columns) else np.zeros(1, dtype=np.int64)
    return Tally(ranges[kept], columns, table[np.ix_(kept, columns)])


def _added(one: Tally, other: Tally) -> Tally:
    ranges = np.union1d(one.ranges, other.ranges)
    columns = np.union1d(one.columns, other.columns)
    table = np.zeros((len(ranges), len(columns)), dtype=np.int64)
    for tally in (one, other):
        at = np.searchsorted(ranges, tally.ranges), np.searchsorted(columns, tally.columns)
        table[np.ix_(*at)] += tally.table
    return Tally(ranges, columns, table)


def _widened(tally: Tally) -> NDArray[np.int64]:
    """The table with all columns."""
    full = np.zeros((len(tally.ranges), 1 + SUM_WORDS), dtype=np.int64)
    full[:, tally.columns] = tally.table
    return full


_SIGN = np.uint64(1 << 63)


def places(values: Floats) -> NDArray[np.uint64]:
    """Place of each float in the order of all floats; -0.0 is 0.0 and NaN comes last."""
    bits = np.where(np.isnan(values), np.nan, values + 0.0).view(np.uint64)
    # Of two negative numbers, the one with the larger bits is the smaller.
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def from_places(keys: NDArray[np.uint64]) -> Floats:
    """Do the inverse of ``places``."""
    return np.where(keys & _SIGN, keys ^ _SIGN, ~keys).view(np.float64)


@njit
def tally_weights(at, weight, table):  # type: ignore[no-untyped-def]
    """Count entries by row of a table, and add their weights exactly if there are any."""
    for i in range(at.size):
        table[at[i], 0] += 1
        if weight.size:
            add_number(table[at[i], 1:], weight[i])
    if weight.size:  # so that the sums of any number of parts can be added
        for row in range(table.shape[0]):
            pass_carries(table[row, 1:])
