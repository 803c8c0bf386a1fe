"""Scores of predicted classes, which need to know only what is predicted how often."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.arithmetic import exact_sum
from greedymiser.scoring._kernels import count_classes, weigh_classes
from greedymiser.scoring.truth import Floats, ScoreOf, Truth


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
    seen = counts.seen
    if np.count_nonzero(seen) == 1:
        return math.nan
    return float(np.mean(counts.correct[seen] / counts.true[seen]))


# A class that is not there, or not predicted, has a share of 0 / 0, which is NaN: there is
# something to warn of.


def f1(rows: Truth, counts: Counts) -> float:
    """Harmonic mean of precision and recall, of the class labelled 1."""
    return float(_f1_by_class(counts)[rows.positive])


def f1_macro(rows: Truth, counts: Counts) -> float:
    """The same for each class, and the mean over them."""
    return float(np.mean(_f1_by_class(counts)[counts.seen]))


def _f1_by_class(counts: Counts) -> Floats:
    return 2.0 * counts.correct / (counts.true + counts.named)
