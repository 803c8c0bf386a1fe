"""Scores of predicted numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import xlogy

from greedymiser.scoring._kernels import sort_equal
from greedymiser.scoring.rows import EPS, Floats, ScoreOf, Truth, undefined

ErrorsOf = Callable[[Floats], Floats]
"""From predictions to what is averaged over rows; not finite where the score is not defined."""


def squared(y: Floats) -> ErrorsOf:
    """Squared errors."""
    return lambda predicted: (y - predicted) ** 2


def absolute(y: Floats) -> ErrorsOf:
    """Absolute errors."""
    return lambda predicted: np.abs(predicted - y)


def percentage(y: Floats) -> ErrorsOf:
    """Absolute errors, relative to y."""
    size = np.maximum(np.abs(y), EPS)
    return lambda predicted: np.abs(predicted - y) / size


def squared_log(y: Floats) -> ErrorsOf:
    """Squared errors of logarithms."""
    log_y = np.log1p(y)
    return lambda predicted: (log_y - np.log1p(predicted)) ** 2


def poisson(y: Floats) -> ErrorsOf:
    """Poisson deviances."""
    return _where_positive(lambda mean: 2.0 * (xlogy(y, y / mean) - y + mean))


def gamma(y: Floats) -> ErrorsOf:
    """Gamma deviances."""
    return _where_positive(lambda mean: 2.0 * (np.log(mean / y) + y / mean - 1.0))


def _where_positive(terms: ErrorsOf) -> ErrorsOf:
    return lambda predicted: np.where(predicted > 0.0, terms(predicted), np.nan)


def mean_error(terms_of: Callable[[Floats], ErrorsOf], rows: Truth) -> ScoreOf:
    """Mean of some errors, as a score."""
    terms = terms_of(rows.y)
    return lambda raw: -rows.mean(terms(rows.predictions(raw)))


def root_mean_error(terms_of: Callable[[Floats], ErrorsOf], rows: Truth) -> ScoreOf:
    """Root of the mean of some errors, as a score."""
    terms = terms_of(rows.y)
    return lambda raw: -math.sqrt(rows.mean(terms(rows.predictions(raw))))


def r2(rows: Truth) -> ScoreOf:
    """Share of the squares about the mean that predictions explain."""
    if rows.is_constant:
        return undefined
    terms = squared(rows.y)
    spread = rows.total((rows.y - rows.mean(rows.y)) ** 2)
    return lambda raw: _one_minus(rows.total(terms(rows.predictions(raw))), spread)


def explained_variance(rows: Truth) -> ScoreOf:
    """As ``r2``, and errors may all be too large by the same."""
    if rows.is_constant:
        return undefined
    spread = rows.mean((rows.y - rows.mean(rows.y)) ** 2)

    def score(raw: Floats) -> float:
        residual = rows.y - rows.predictions(raw)
        return _one_minus(rows.mean((residual - rows.mean(residual)) ** 2), spread)

    return score


def d2_absolute_error(rows: Truth) -> ScoreOf:
    """Share of the distances from the median that predictions explain."""
    if rows.is_constant:
        return undefined
    terms = absolute(rows.y)
    # Every median is as far from all rows, so it does not matter which scikit-learn takes.
    spread = rows.total(terms(np.asarray(_median(rows.y, rows.weight, middle=False))))
    return lambda raw: _one_minus(rows.total(terms(rows.predictions(raw))), spread)


def _one_minus(error: float, spread: float) -> float:
    return 1.0 - error / spread if spread > 0.0 else math.nan


def max_error(rows: Truth) -> ScoreOf:
    """Largest absolute error, as a score."""
    return lambda raw: -float(np.abs(rows.y - rows.predictions(raw)).max())


def median_absolute_error(rows: Truth) -> ScoreOf:
    """Median of the absolute errors, as a score."""
    terms = absolute(rows.y)
    middle = rows.weight is not None and _weighted_medians_lie_in_the_middle()

    def score(raw: Floats) -> float:
        errors = terms(rows.predictions(raw))
        if not math.isfinite(errors.max()):
            return math.nan
        return -_median(errors, rows.weight, middle)

    return score


def _weighted_medians_lie_in_the_middle() -> bool:
    """Whether scikit-learn goes half-way to the next value where half of the weight is reached.

    Until 1.7 it did not. Asked, not looked up: it may not be the last change.
    """
    from sklearn.metrics import median_absolute_error

    return float(median_absolute_error([0.0, 0.0], [1.0, 3.0], sample_weight=[1.0, 1.0])) == 2.0


def _median(values: Floats, weight: Floats | None, middle: bool) -> float:
    """Value at half of the weight; in the ``middle``, half-way to the next if a half ends there.

    Sums of weights are rounded as they go, as in scikit-learn: that decides whether a half ends.
    """
    if weight is None:
        return float(np.median(values))
    order = np.argsort(values)
    ordered, shares = values[order], weight[order]
    sort_equal(ordered, shares)  # for sums that do not depend on the order of rows
    below = np.cumsum(shares)
    half = 0.5 * below[-1]
    at = min(int(np.searchsorted(below, half)), len(values) - 1)
    if not middle or below[at] - half > EPS:
        return float(ordered[at])
    return float((ordered[at] + ordered[min(at + 1, len(values) - 1)]) / 2.0)
