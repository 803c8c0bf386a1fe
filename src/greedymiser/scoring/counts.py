"""Scores of predicted classes, which need to know only what is predicted how often."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.arithmetic import exact_sum
from greedymiser.scoring._kernels import count_classes, weigh_classes
from greedymiser.scoring.rows import Floats, ScoreOf, Truth


class Counts(NamedTuple):
    """How many rows, or how much weight, by class."""

    # Rows of the class of which it is predicted.
    correct: Floats
    # Rows of which the class is predicted.
    named: Floats
    # Rows of the class.
    true: Floats

    @property
    def seen(self) -> NDArray[np.bool_]:
        """Classes that there are, or that are predicted."""
        return (self.named > 0) | (self.true > 0)


CountFormula = Callable[[Truth, Counts], float]
ShareOf = Callable[[Counts], tuple[Floats, Floats]]
"""Numerator and denominator of each class."""


def counted(formula: CountFormula, rows: Truth) -> ScoreOf:
    """Score that a formula makes of the counts."""
    codes, n, weight = rows.codes, rows.n_classes, rows.weight
    if weight is None:
        true = np.bincount(codes, minlength=n).astype(np.float64)
    else:
        true = np.array([exact_sum(weight[codes == code]) for code in range(n)])

    def score(raw: Floats) -> float:
        correct, named = np.zeros(n), np.zeros(n)
        if weight is None:
            count_classes(raw, codes, correct, named)
        else:
            weigh_classes(raw, codes, weight, correct, named)
        return formula(rows, Counts(correct, named, true))

    return score


def accuracy(rows: Truth, counts: Counts) -> float:
    """Share of rows that are predicted rightly."""
    return math.fsum(counts.correct) / rows.mass


def balanced_accuracy(rows: Truth, counts: Counts) -> float:
    """Mean over classes of the share that is predicted rightly."""
    if np.count_nonzero(counts.seen) == 1:
        return math.nan
    return macro(recall, rows, counts)


def matthews(rows: Truth, counts: Counts) -> float:
    """Correlation of what is predicted and what is."""
    correct, named, true = counts
    if np.count_nonzero(true) == 1:
        return math.nan
    total = named.sum()
    both = correct.sum() * total - np.dot(true, named)
    product = (total**2 - np.dot(named, named)) * (total**2 - np.dot(true, true))
    return 0.0 if product == 0 else float(both / np.sqrt(product))


def precision(counts: Counts) -> tuple[Floats, Floats]:
    """Of what is predicted, how much is right."""
    return counts.correct, counts.named


def recall(counts: Counts) -> tuple[Floats, Floats]:
    """Of what there is, how much is found."""
    return counts.correct, counts.true


def f1(counts: Counts) -> tuple[Floats, Floats]:
    """Harmonic mean of precision and recall."""
    return 2.0 * counts.correct, counts.true + counts.named


def jaccard(counts: Counts) -> tuple[Floats, Floats]:
    """What is right, of all that is predicted or there."""
    correct, named, true = counts
    return correct, correct + (named - correct) + (true - correct)


# A class that is not there, or not predicted, has a share of 0 / 0, which is NaN: there is
# something to warn of.


def of_positive(parts: ShareOf, rows: Truth, counts: Counts) -> float:
    """Share of the class labelled 1."""
    above, below = parts(counts)
    return float(above[rows.positive] / below[rows.positive])


def micro(parts: ShareOf, rows: Truth, counts: Counts) -> float:
    """One share of all classes together."""
    above, below = parts(counts)
    return float(above.sum() / below.sum())


def macro(parts: ShareOf, rows: Truth, counts: Counts) -> float:
    """Mean over classes, each as good as the other."""
    above, below = parts(counts)
    return float(np.mean(above[counts.seen] / below[counts.seen]))


def weighted(parts: ShareOf, rows: Truth, counts: Counts) -> float:
    """Mean over classes by how many rows they have."""
    above, below = parts(counts)
    seen = counts.seen
    return float(np.average(above[seen] / below[seen], weights=counts.true[seen]))
