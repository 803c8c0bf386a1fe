"""Rows that predictions are compared with, and what scikit-learn says of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from greedymiser._core.arithmetic import exact_sum
from greedymiser.losses import Kind, Loss

Floats = NDArray[np.float64]

ScoreOf = Callable[[Floats], float]
"""From raw predictions (n_outputs, n) to a score; NaN where scikit-learn has to be asked."""

EPS = float(np.finfo(np.float64).eps)


def undefined(raw: Floats) -> float:
    """For rows that no score can be computed of here, whatever is predicted."""
    return math.nan


@dataclass(frozen=True, eq=False)
class Truth:
    """What raw predictions are compared with, and what they mean."""

    kind: Kind
    loss: Loss
    # Labels of the classes, in the order of their codes.
    classes: NDArray[Any]
    # In the loss's terms; the codes of classes.
    y: Floats
    weight: Floats | None
    # Where each query starts, and the end.
    starts: NDArray[np.intp] | None = None

    @cached_property
    def mass(self) -> float:
        """Sum of the weights."""
        return float(len(self.y)) if self.weight is None else exact_sum(self.weight)

    def total(self, terms: Floats) -> float:
        """Sum over rows, weighted; NaN if any is not finite."""
        total = exact_sum(terms if self.weight is None else terms * self.weight)
        return total if math.isfinite(total) else math.nan

    def mean(self, terms: Floats) -> float:
        """Mean over rows, weighted."""
        return self.total(terms) / self.mass

    @property
    def is_constant(self) -> bool:
        return bool(self.y.min() == self.y.max())

    @cached_property
    def codes(self) -> NDArray[np.intp]:
        """Class of each row."""
        return self.y.astype(np.intp)

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @cached_property
    def has_all_classes(self) -> bool:
        return bool((np.bincount(self.codes, minlength=self.n_classes) > 0).all())

    @cached_property
    def positive(self) -> int:
        """Code of the class labelled 1: the one that scikit-learn takes by default."""
        return self.classes.tolist().index(1)

    def predictions(self, raw: Floats) -> Floats:
        """What ``predict`` says, of a number."""
        return raw[0] if self.kind == "ranker" else self.loss.response(raw[0])

    def probabilities(self, raw: Floats) -> Floats:
        """Class probabilities, shape (n_classes, n)."""
        return np.ascontiguousarray(self.loss.response(raw[0] if len(raw) == 1 else raw))


def ask_scikit_learn(name: str, rows: Truth, raw: Floats) -> float:
    """What the scorer of that name says of a model with these raw predictions."""
    from sklearn.metrics import get_scorer

    weights = {}
    if rows.weight is not None:
        weights["sample_weight"] = rows.weight
    scorer = get_scorer(name)
    if rows.kind == "classifier":
        labels = rows.classes[rows.codes]
        return float(scorer(_FixedClasses(rows, raw), None, labels, **weights))
    return float(scorer(_FixedNumbers(rows, raw), None, rows.y, **weights))


class _FixedNumbers(RegressorMixin, BaseEstimator):
    """A regressor or ranker, for scikit-learn's scorers, that predicts what it was made with."""

    def __init__(self, rows: Truth, raw: Floats):
        self.rows, self.raw = rows, raw

    def predict(self, X: None) -> Floats:
        return self.rows.predictions(self.raw)


class _FixedClasses(ClassifierMixin, BaseEstimator):
    """A classifier, for scikit-learn's scorers, that predicts what it was made with."""

    def __init__(self, rows: Truth, raw: Floats):
        self.rows, self.raw, self.classes_ = rows, raw, rows.classes

    def predict(self, X: None) -> NDArray[Any]:
        if len(self.raw) == 1:
            return self.classes_[(self.raw[0] > 0).astype(np.intp)]
        return self.classes_[np.argmax(self.raw, axis=0)]

    def predict_proba(self, X: None) -> Floats:
        raw = self.raw[0] if len(self.raw) == 1 else self.raw
        return np.ascontiguousarray(self.rows.loss.response(raw).T)

    def decision_function(self, X: None) -> Floats:
        return self.raw[0].copy() if len(self.raw) == 1 else np.ascontiguousarray(self.raw.T)
