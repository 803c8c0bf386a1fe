"""Loss objects: value, gradients, prior, link.

A loss sees ``y`` and the raw predictions ``raw``: arrays of shape (n,), or (n_outputs, n) for
``raw`` where there are several outputs. It knows nothing of weights, trees or costs; the booster
multiplies by the weights.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logsumexp, softmax, xlogy

from greedymiser.compiling import njit
from greedymiser.metrics import ndcg_per_query, query_weights

Floats = NDArray[np.float64]


class Loss:
    """Base of all losses, and the door for a user's own.

    A loss of your own needs ``values`` and ``gradients``; the other methods have defaults.

    Examples
    --------
    Errors in log space, for targets that span orders of magnitude:

    >>> class LogCosh(Loss):
    ...     def values(self, y, raw):
    ...         return np.logaddexp(raw - y, y - raw) - np.log(2.0)
    ...     def gradients(self, y, raw):
    ...         slope = np.tanh(raw - y)
    ...         return slope, 1.0 - slope**2
    >>> MiserRegressor(loss=LogCosh())  # doctest: +SKIP
    """

    n_outputs: int = 1
    # Whether leaves take ``leaf_value`` instead of the Newton step.
    renews_leaves: bool = False

    def values(self, y: Any, raw: Floats) -> Floats:
        """Loss of each row, shape (n,)."""
        raise NotImplementedError

    def gradients(self, y: Any, raw: Floats) -> tuple[Floats, Floats | None]:
        """First and second derivatives with respect to ``raw``, each of the shape of ``raw``.

        None for the second means that it is 1 everywhere; it must not be negative.
        """
        raise NotImplementedError

    def prior(self, y: Any, weight: Floats | None) -> Floats:
        """Good constant raw prediction, shape (n_outputs,); zero if a loss does not say."""
        return np.zeros(self.n_outputs)

    def response(self, raw: Floats) -> Floats:
        """Inverse link: from raw predictions to predictions on the scale of y."""
        return raw

    def check_target(self, y: Floats) -> None:
        """Raise ValueError if the loss is not defined for this target."""

    def leaf_value(self, residuals: Floats, weight: Floats | None) -> float:
        """Best constant for one leaf, given y - raw; asked for if ``renews_leaves``."""
        raise NotImplementedError

    def value(self, y: Any, raw: Floats, weight: Floats | None = None) -> float:
        """Mean loss."""
        return float(np.average(self.values(y, raw), weights=weight))


class SquaredError(Loss):
    """Half the squared error (eq. 2)."""

    def values(self, y: Floats, raw: Floats) -> Floats:
        return 0.5 * (raw - y) ** 2

    def gradients(self, y: Floats, raw: Floats) -> tuple[Floats, None]:
        return raw - y, None

    def prior(self, y: Floats, weight: Floats | None) -> Floats:
        return np.array([exact_mean(y, weight)])


class Quantile(Loss):
    """Pinball loss of one quantile. Trees follow the sign, leaves take the exact quantile."""

    renews_leaves = True

    def __init__(self, quantile: float = 0.5):
        if not 0 < quantile < 1:
            raise ValueError(f"quantile must lie between 0 and 1, got {quantile}")
        self.quantile = quantile

    def values(self, y: Floats, raw: Floats) -> Floats:
        residual = y - raw
        return np.maximum(self.quantile * residual, (self.quantile - 1.0) * residual)

    def gradients(self, y: Floats, raw: Floats) -> tuple[Floats, None]:
        return np.where(y > raw, -self.quantile, np.where(y < raw, 1.0 - self.quantile, 0.0)), None

    def prior(self, y: Floats, weight: Floats | None) -> Floats:
        return np.array([weighted_quantile(y, weight, self.quantile)])

    def leaf_value(self, residuals: Floats, weight: Floats | None) -> float:
        return weighted_quantile(residuals, weight, self.quantile)


class AbsoluteError(Quantile):
    """Absolute error. Trees follow the sign of the residuals, leaves take their exact median."""

    def __init__(self) -> None:
        super().__init__(0.5)

    def values(self, y: Floats, raw: Floats) -> Floats:
        return np.abs(y - raw)

    def gradients(self, y: Floats, raw: Floats) -> tuple[Floats, None]:
        return np.sign(raw - y), None


class Huber(Loss):
    """Squared error near zero, absolute error beyond ``delta``."""

    def __init__(self, delta: float = 1.0):
        if not delta > 0:
            raise ValueError(f"delta must be positive, got {delta}")
        self.delta = delta

    def values(self, y: Floats, raw: Floats) -> Floats:
        size = np.abs(raw - y)
        near = np.minimum(size, self.delta)
        return near * (size - 0.5 * near)

    def gradients(self, y: Floats, raw: Floats) -> tuple[Floats, None]:
        return np.clip(raw - y, -self.delta, self.delta), None

    def prior(self, y: Floats, weight: Floats | None) -> Floats:
        return np.array([weighted_quantile(y, weight, 0.5)])


class Poisson(Loss):
    """Half the Poisson deviance, with a logarithmic link."""

    def values(self, y: Floats, raw: Floats) -> Floats:
        return np.exp(raw) - y * raw + xlogy(y, y) - y

    def gradients(self, y: Floats, raw: Floats) -> tuple[Floats, Floats]:
        mean = np.exp(raw)
        return mean - y, mean

    def prior(self, y: Floats, weight: Floats | None) -> Floats:
        return np.array([math.log(exact_mean(y, weight))])

    def response(self, raw: Floats) -> Floats:
        return np.exp(raw)

    def check_target(self, y: Floats) -> None:
        if y.min() < 0:
            raise ValueError(f"loss='poisson' needs y >= 0, got {y.min():g}")
        if y.max() == 0:
            raise ValueError("loss='poisson' needs a positive y somewhere; all of y is 0")


class Gamma(Loss):
    """Half the gamma deviance, with a logarithmic link."""

    def values(self, y: Floats, raw: Floats) -> Floats:
        return raw + y * np.exp(-raw) - np.log(y) - 1.0

    def gradients(self, y: Floats, raw: Floats) -> tuple[Floats, Floats]:
        ratio = y * np.exp(-raw)
        return 1.0 - ratio, ratio

    def prior(self, y: Floats, weight: Floats | None) -> Floats:
        return np.array([math.log(exact_mean(y, weight))])

    def response(self, raw: Floats) -> Floats:
        return np.exp(raw)

    def check_target(self, y: Floats) -> None:
        if y.min() <= 0:
            raise ValueError(f"loss='gamma' needs y > 0, got {y.min():g}")


class BinaryLogLoss(Loss):
    """Log-loss of two classes; y is 0 or 1 and raw the log-odds of 1."""

    def values(self, y: Floats, raw: Floats) -> Floats:
        return np.logaddexp(0.0, raw) - y * raw

    def gradients(self, y: Floats, raw: Floats) -> tuple[Floats, Floats]:
        p = expit(raw)
        return p - y, p * (1.0 - p)

    def prior(self, y: Floats, weight: Floats | None) -> Floats:
        positive = y if weight is None else y * weight
        negative = 1.0 - y if weight is None else (1.0 - y) * weight
        return np.array([math.log(math.fsum(positive)) - math.log(math.fsum(negative))])

    def response(self, raw: Floats) -> Floats:
        """Probabilities, one row per class: shape (2, n)."""
        p = expit(raw)
        return np.stack([1.0 - p, p])


class MultinomialLogLoss(Loss):
    """Log-loss of several classes; y holds class numbers, raw has one row per class."""

    def __init__(self, n_outputs: int):
        self.n_outputs = n_outputs

    def values(self, y: Any, raw: Floats) -> Floats:
        return logsumexp(raw, axis=0) - raw[y.astype(np.intp), np.arange(len(y))]

    def gradients(self, y: Any, raw: Floats) -> tuple[Floats, Floats]:
        p = softmax(raw, axis=0)
        # Friedman's factor: K outputs say what K - 1 could, and share the step between them.
        hessian = p * (1.0 - p) * (self.n_outputs / (self.n_outputs - 1.0))
        p[y.astype(np.intp), np.arange(len(y))] -= 1.0
        return p, hessian

    def prior(self, y: Any, weight: Floats | None) -> Floats:
        shares = [exact_mean((y == k).astype(np.float64), weight) for k in range(self.n_outputs)]
        return np.log(shares)

    def response(self, raw: Floats) -> Floats:
        """Probabilities, one row per class: shape (n_classes, n)."""
        return softmax(raw, axis=0)


class LambdaMART(Loss):
    """Pairwise logistic loss whose pairs weigh what swapping them would change in NDCG.

    Parameters
    ----------
    truncation : int
        Only pairs with a document among the first ``truncation`` places count.
    sigma : float
        Steepness of the logistic function.

    Notes
    -----
    Documents with equal scores are ranked as badly as possible (less relevant ones first), and
    those with equal labels as well share their places. So the gradients do not depend on the
    order of the rows, and boosting can start from equal scores.
    """

    def __init__(self, truncation: int = 30, sigma: float = 1.0):
        if truncation < 1:
            raise ValueError(f"truncation must be at least 1, got {truncation}")
        if not sigma > 0:
            raise ValueError(f"sigma must be positive, got {sigma}")
        self.truncation = truncation
        self.sigma = sigma
        self.starts: NDArray[np.intp] | None = None

    def over(self, starts: NDArray[np.intp]) -> LambdaMART:
        """Return this loss for rows ``starts[q]:starts[q + 1]`` that belong to query q."""
        bound = copy.copy(self)
        bound.starts = starts
        return bound

    def check_target(self, y: Floats) -> None:
        if y.min() < 0:
            raise ValueError(f"relevance labels must not be negative, got {y.min():g}")
        if y.max() > 30:
            raise ValueError(f"relevance labels above 30 overflow 2**label, got {y.max():g}")

    def value(self, y: Any, raw: Floats, weight: Floats | None = None) -> float:
        """One minus the mean NDCG at the truncation."""
        starts = self._starts(y)
        ndcg = ndcg_per_query(y, raw, starts, self.truncation)
        weights = None if weight is None else query_weights(weight, starts)
        return 1.0 - float(np.average(ndcg, weights=weights))

    def gradients(self, y: Any, raw: Floats) -> tuple[Floats, Floats]:
        gradient, hessian = np.zeros_like(raw), np.zeros_like(raw)
        starts = self._starts(y)
        lambda_gradients(y, raw, starts, self.truncation, self.sigma, gradient, hessian)
        return gradient, hessian

    def _starts(self, y: Floats) -> NDArray[np.intp]:
        return np.array([0, len(y)], dtype=np.intp) if self.starts is None else self.starts


@njit(cache=True, nogil=True)
def lambda_gradients(  # type: ignore[no-untyped-def]
    y, raw, starts, truncation, sigma, gradient, hessian
):
    """Add up the lambdas of every pair of differently relevant documents of each query."""
    for q in range(starts.size - 1):
        first, n = starts[q], starts[q + 1] - starts[q]
        label, score = y[first : first + n], raw[first : first + n]
        # Best score first; among equal scores the least relevant first.
        by_label = np.argsort(label, kind="mergesort")
        order = by_label[np.argsort(-score[by_label], kind="mergesort")]

        ideal = 0.0
        for rank in range(min(n, truncation)):
            ideal += (2.0 ** label[by_label[n - 1 - rank]] - 1.0) / np.log2(rank + 2.0)
        if ideal == 0.0:
            continue

        discount = 1.0 / np.log2(np.arange(n) + 2.0)
        n_top = 0
        start = 0
        while start < n:  # documents alike in score and label share their places
            stop = start + 1
            while (
                stop < n
                and score[order[stop]] == score[order[start]]
                and label[order[stop]] == label[order[start]]
            ):
                stop += 1
            discount[start:stop] = discount[start:stop].mean()
            if start < truncation:
                n_top = stop
            start = stop

        for a in range(n):
            i = order[a]
            # One document of a pair must be near the top, and those near the top come first.
            for b in range(n if a < n_top else n_top):
                j = order[b]
                if label[i] == label[j]:
                    continue
                swing = abs(2.0 ** label[i] - 2.0 ** label[j]) * abs(discount[a] - discount[b])
                sign = 1.0 if label[i] > label[j] else -1.0
                doubt = 1.0 / (1.0 + np.exp(sigma * sign * (score[i] - score[j])))
                weight = sigma * swing / ideal
                gradient[first + i] -= sign * weight * doubt
                hessian[first + i] += sigma * weight * doubt * (1.0 - doubt)


REGRESSION_LOSSES: dict[str, type[Loss]] = {
    "squared_error": SquaredError,
    "absolute_error": AbsoluteError,
    "huber": Huber,
    "quantile": Quantile,
    "poisson": Poisson,
    "gamma": Gamma,
}


def exact_mean(y: Floats, weight: Floats | None) -> float:
    """Weighted mean that does not depend on the order of the rows: sums are rounded once."""
    if weight is None:
        return math.fsum(y) / len(y)
    return math.fsum(y * weight) / math.fsum(weight)


def weighted_quantile(values: Floats, weight: Floats | None, quantile: float) -> float:
    """Smallest minimiser of the pinball loss, or the middle where a whole interval minimises it."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    share = np.cumsum(np.ones(len(values)) if weight is None else weight[order])
    target = quantile * share[-1]
    low = int(np.searchsorted(share, target * (1.0 - 1e-12)))
    high = int(np.searchsorted(share, target * (1.0 + 1e-12), side="right"))
    last = len(values) - 1
    return float(0.5 * (ordered[min(low, last)] + ordered[min(high, last)]))


def as_loss(loss: Any) -> Loss:
    """Accept any object with ``gradients`` and ``values`` (of rows) or ``value`` (their mean)."""
    if isinstance(loss, Loss):
        return loss
    has = {name: callable(getattr(loss, name, None)) for name in ("gradients", "values", "value")}
    if not (has["gradients"] and (has["values"] or has["value"])):
        raise TypeError(f"loss must have the methods gradients and values; got {loss!r}")
    return _Adapted(loss)


class _Adapted(Loss):
    """A user's loss that does not derive from Loss: what it does not say comes from Loss."""

    def __init__(self, loss: Any):
        self._loss = loss
        for name in dir(loss):
            if not name.startswith("_") and name != "prior":
                setattr(self, name, getattr(loss, name))

    def prior(self, y: Any, weight: Floats | None) -> Floats:
        given = getattr(self._loss, "prior", super().prior)
        return np.atleast_1d(given(y, weight)).astype(np.float64)  # a number will do
