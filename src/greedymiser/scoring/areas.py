"""Scores of rankings: areas under the ROC curve and under the precision-recall curve."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.arithmetic import exact_sum
from greedymiser._core.sorting import sort_floats
from greedymiser.scoring._kernels import pairs_in_order, precision_steps
from greedymiser.scoring.truth import Floats, ScoreOf, Truth, undefined

# Bits of the integers that weights become, all of them together.
MASS_BITS = 61


class Side:
    """Some of the rows, to be compared with others: where they are and what they weigh.

    Weights become integers, so that those of equal predictions add up to the same in any order.
    What is lost by rounding them is less than what a sum of floats would lose.
    """

    def __init__(self, rows: Truth, chosen: NDArray[np.bool_]):
        self.at = np.flatnonzero(chosen)
        # Empty if every row weighs 1.
        self.mass = np.empty(0, dtype=np.int64)
        self.total = len(self.at)
        # A mass of 1 stands for a weight of 2**unit.
        self.unit = 0
        if rows.weight is not None and len(self.at):
            weight = rows.weight[self.at]
            self.unit = math.frexp(exact_sum(weight))[1] - MASS_BITS
            self.mass = np.maximum(1, np.rint(np.ldexp(weight, -self.unit)).astype(np.int64))
            self.total = int(self.mass.sum())

    def sort(self, values: Floats) -> Sorted:
        """Predictions of these rows in their order, given those of all."""
        mine = values.take(self.at)
        if not len(self.mass):
            sort_floats(mine)
            return Sorted(mine, self.mass, self)
        order = np.argsort(mine)
        return Sorted(mine[order], self.mass[order], self)


class Sorted(NamedTuple):
    """Predictions of one side, the lowest first, and what they weigh."""

    values: Floats
    mass: NDArray[np.int64]
    side: Side

    @property
    def is_finite(self) -> bool:
        values = self.values
        return len(values) == 0 or (math.isfinite(values[0]) and math.isfinite(values[-1]))


def roc_auc(rows: Truth) -> ScoreOf:
    """Two classes by their raw predictions."""
    if not rows.has_all_classes:
        return undefined
    low, high = _sides(rows, 1)
    return lambda raw: _roc_area(low.sort(raw[0]), high.sort(raw[0]))


def roc_auc_ovr(rows: Truth) -> ScoreOf:
    """Mean over classes, each against all others, by its own probability.

    Probabilities can be equal where raw predictions are not.
    """
    if not rows.has_all_classes:
        return undefined
    codes = [1] if rows.n_classes == 2 else range(rows.n_classes)
    sides = [(code, *_sides(rows, code)) for code in codes]

    def score(raw: Floats) -> float:
        probabilities = rows.probabilities(raw)
        by_class = [
            _roc_area(low.sort(probabilities[code]), high.sort(probabilities[code]))
            for code, low, high in sides
        ]
        return float(np.average(by_class))

    return score


def average_precision(rows: Truth) -> ScoreOf:
    """By raw predictions; of several classes, the mean."""
    if rows.n_classes == 2:
        return _average_precision_of_positive(rows)
    if not rows.has_all_classes:
        return undefined
    sides = [_sides(rows, code) for code in range(rows.n_classes)]

    def score(raw: Floats) -> float:
        by_class = [
            _precision_area(low.sort(values), high.sort(values))
            for values, (low, high) in zip(raw, sides, strict=True)
        ]
        return float(np.mean(by_class))

    return score


def _average_precision_of_positive(rows: Truth) -> ScoreOf:
    low, high = _sides(rows, rows.positive)
    if not len(high.at):
        return undefined
    # The class labelled 1 may be the first, and raw predictions speak for the second.
    sign = 1.0 if rows.positive == 1 else -1.0
    return lambda raw: _precision_area(low.sort(sign * raw[0]), high.sort(sign * raw[0]))


def _sides(rows: Truth, code: int) -> tuple[Side, Side]:
    """All other classes, and one."""
    return Side(rows, rows.codes != code), Side(rows, rows.codes == code)


def _roc_area(low: Sorted, high: Sorted) -> float:
    """How often a row of ``high`` is above one of ``low``; half where they are equal."""
    if not (low.is_finite and high.is_finite):
        return math.nan
    upper, lower = pairs_in_order(low.values, low.mass, high.values, high.mass)
    return ((int(upper) << 64) + int(lower)) / (2 * high.side.total * low.side.total)


def _precision_area(low: Sorted, high: Sorted) -> float:
    """Mean over ``high``, the rows to be found, of the precision down to each of them."""
    if not (low.is_finite and high.is_finite):
        return math.nan
    if not len(low.values) or low.values[-1] < high.values[0]:
        return 1.0  # to the last bit
    unit = float(np.ldexp(1.0, low.side.unit - high.side.unit))
    terms = np.empty(len(high.values))
    n = precision_steps(low.values, low.mass, unit, high.values, high.mass, terms)
    return min(1.0, exact_sum(terms[:n]) / high.side.total)
