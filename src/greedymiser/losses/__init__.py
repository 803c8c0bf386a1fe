"""Loss objects: value, gradients, prior, link.

A loss sees ``y`` and the raw predictions ``raw``: arrays of shape (n,), or (n_outputs, n) for
``raw`` where there are several outputs. It knows nothing of weights, trees or costs; the booster
multiplies by the weights.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from greedymiser._core.arithmetic import add_exactly, exact_sum
from greedymiser._core.quantiles import weighted_quantile
from greedymiser._core.threads import Team
from greedymiser.losses import formulas, ranking
from greedymiser.losses.formulas import Formula
from greedymiser.losses.ndcg import GainRange, Judged, judge, mean_of_queries, query_weights

Floats = NDArray[np.float64]

Kind = Literal["regressor", "classifier", "ranker"]
"""What a model is for: scores, files and baselines go by it."""


class Loss:
    """Base of all losses, also of those that a user writes.

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
    # Whether ``value`` is the weighted mean of ``values``.
    is_additive: bool = True

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

    def adapted(self, y: Floats, weight: Floats | None) -> Loss:
        """Return the loss with parameters taken from the training data, once per fit."""
        return self

    @property
    def formula(self) -> Formula | None:
        """The loss for compiled code; None for one that is written in Python."""
        return None

    def leaf_value(self, residuals: Floats, weight: Floats | None) -> float:
        """Best constant for one leaf, given y - raw; asked for if ``renews_leaves``."""
        raise NotImplementedError

    def value(self, y: Any, raw: Floats, weight: Floats | None = None) -> float:
        """Mean loss; does not depend on the order of the rows."""
        return exact_mean(self.values(y, raw), weight)

    @property
    def leaf_quantile(self) -> float | None:
        """The quantile of the residuals that ``leaf_value`` is; None if it is something else."""
        return None


class _Known(Loss):
    """A loss that every engine knows by its formula."""

    @property
    def formula(self) -> Formula | None:
        return self._formula if self._is_ours else None

    @property
    def _is_ours(self) -> bool:
        # Whoever derives from a known loss may compute something else.
        return type(self).__module__ == __name__

    @property
    def _formula(self) -> Formula:
        raise NotImplementedError

    def prior(self, y: Any, weight: Floats | None) -> Floats:
        terms = [*self._terms(np.asarray(y)), np.ones(len(y))]
        *sums, total = (exact_sum(term if weight is None else term * weight) for term in terms)
        return np.array(self._prior_of(sums, total))

    def _terms(self, y: Floats) -> list[Floats]:
        """Numbers whose weighted sums the prior depends on."""
        return [y]

    def _prior_of(self, sums: list[float], total: float) -> list[float]:
        """The prior, given those sums and the total weight."""
        return [sums[0] / total]

    def values(self, y: Any, raw: Floats) -> Floats:
        y, raw = self._rows(y, raw)
        out = np.empty(len(y))
        formulas.find_values(self._formula, y, raw, out)
        return out

    def gradients(self, y: Any, raw: Floats) -> tuple[Floats, Floats | None]:
        shape = np.shape(raw)
        y, raw = self._rows(y, raw)
        is_flat = self._formula.is_flat
        gradients, hessians = np.empty_like(raw), np.empty_like(raw[:0] if is_flat else raw)
        formulas.find_gradients(self._formula, y, raw, gradients, hessians)
        return gradients.reshape(shape), None if is_flat else hessians.reshape(shape)

    def _rows(self, y: Any, raw: Any) -> tuple[Floats, Floats]:
        y = np.ascontiguousarray(y, dtype=np.float64)
        raw = np.broadcast_to(np.atleast_2d(raw), (self.n_outputs, len(y)))
        return y, np.ascontiguousarray(raw, dtype=np.float64)


class SquaredError(_Known):
    """Half the squared error, equation 2 of the paper.

    Examples
    --------
    >>> SquaredError().values(np.array([1.0]), np.array([3.0])).tolist()
    [2.0]
    """

    _formula = formulas.SquaredFormula(formulas.SQUARED)


class Quantile(_Known):
    """Pinball loss of one quantile. Trees follow the sign, leaves take the exact quantile.

    Examples
    --------
    >>> y = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    >>> Quantile(0.9).prior(y, None).tolist()
    [5.0]
    """

    renews_leaves = True

    def __init__(self, quantile: float = 0.5):
        if not 0 < quantile < 1:
            raise ValueError(f"quantile must lie between 0 and 1, got {quantile}")
        self.quantile = quantile

    @property
    def _formula(self) -> Formula:
        return formulas.QuantileFormula(formulas.QUANTILE, float(self.quantile))

    def prior(self, y: Floats, weight: Floats | None) -> Floats:
        return np.array([weighted_quantile(y, weight, self.quantile)])

    @property
    def leaf_quantile(self) -> float | None:
        return self.quantile if self._is_ours else None

    def leaf_value(self, residuals: Floats, weight: Floats | None) -> float:
        return weighted_quantile(residuals, weight, self.quantile)


class AbsoluteError(Quantile):
    """Absolute error. Trees follow the sign of the residuals, leaves take their exact median.

    Examples
    --------
    >>> AbsoluteError().prior(np.array([1.0, 2.0, 30.0]), None).tolist()
    [2.0]
    """

    def __init__(self) -> None:
        super().__init__(0.5)

    @property
    def _formula(self) -> Formula:
        return formulas.AbsoluteFormula(formulas.ABSOLUTE)


class Huber(_Known):
    """Squared error near zero, absolute error beyond ``delta``.

    Parameters
    ----------
    delta : float or None
        In units of y. None takes it from the data: nine tenths of the targets are closer to their
        median.

    Examples
    --------
    >>> Huber(1.0).values(np.zeros(2), np.array([0.5, 3.0])).tolist()
    [0.125, 2.5]
    """

    def __init__(self, delta: float | None = None):
        if delta is not None and not delta > 0:
            raise ValueError(f"delta must be positive, got {delta}")
        self.delta = delta

    def adapted(self, y: Floats, weight: Floats | None) -> Huber:
        if self.delta is not None:
            return self
        distances = np.abs(y - self.prior(y, weight))
        near, far = weighted_quantile(distances, weight, 0.9), float(distances.max())
        adapted = copy.copy(self)
        # Where most targets are equal, the others say what is far.
        adapted.delta = near or far or 1.0
        return adapted

    @property
    def _formula(self) -> Formula:
        if self.delta is None:
            raise ValueError("Huber needs a delta, or data to take it from (see adapted)")
        return formulas.HuberFormula(formulas.HUBER, float(self.delta))

    def prior(self, y: Floats, weight: Floats | None) -> Floats:
        return np.array([weighted_quantile(y, weight, 0.5)])


class Poisson(_Known):
    """Half the Poisson deviance, with a logarithmic link.

    Examples
    --------
    >>> Poisson().response(np.array([0.0])).tolist()
    [1.0]
    """

    _formula = formulas.PoissonFormula(formulas.POISSON, is_flat=False)

    def _prior_of(self, sums: list[float], total: float) -> list[float]:
        return [math.log(sums[0] / total)]

    def response(self, raw: Floats) -> Floats:
        return np.exp(raw)

    def check_target(self, y: Floats) -> None:
        if y.min() < 0:
            raise ValueError(f"loss='poisson' needs y >= 0, got {y.min():g}")
        if y.max() == 0:
            raise ValueError("loss='poisson' needs a positive y somewhere; all of y is 0")


class Gamma(_Known):
    """Half the gamma deviance, with a logarithmic link.

    Examples
    --------
    >>> Gamma().response(np.array([0.0])).tolist()
    [1.0]
    """

    _formula = formulas.GammaFormula(formulas.GAMMA, is_flat=False)

    def _prior_of(self, sums: list[float], total: float) -> list[float]:
        return [math.log(sums[0] / total)]

    def response(self, raw: Floats) -> Floats:
        return np.exp(raw)

    def check_target(self, y: Floats) -> None:
        if y.min() <= 0:
            raise ValueError(f"loss='gamma' needs y > 0, got {y.min():g}")


class BinaryLogLoss(_Known):
    """Log-loss of two classes; y is 0 or 1 and raw the log-odds of 1.

    Examples
    --------
    >>> BinaryLogLoss().gradients(np.array([1.0]), np.array([0.0]))
    (array([-0.5]), array([0.25]))
    """

    _formula = formulas.LogisticFormula(formulas.LOGISTIC, is_flat=False)

    def _terms(self, y: Floats) -> list[Floats]:
        return [y, 1.0 - y]

    def _prior_of(self, sums: list[float], total: float) -> list[float]:
        return [math.log(sums[0]) - math.log(sums[1])]

    def response(self, raw: Floats) -> Floats:
        """Probabilities, one row per class: shape (2, n)."""
        p = expit(raw)
        return np.stack([1.0 - p, p])


class TiesToSecond(BinaryLogLoss):
    """The same, but of equally likely classes ``predict`` says the second.

    As scikit-learn's GradientBoostingClassifier does; for models that are read from there.

    Examples
    --------
    >>> TiesToSecond().response(np.zeros(1)).ravel().tolist()
    [0.5, 0.5]
    """


class MultinomialLogLoss(_Known):
    """Log-loss of several classes; y holds class numbers, raw has one row per class.

    Examples
    --------
    >>> MultinomialLogLoss(3).response(np.zeros((3, 1))).ravel().round(2).tolist()
    [0.33, 0.33, 0.33]
    """

    _formula = formulas.MultinomialFormula(formulas.MULTINOMIAL, is_flat=False)

    def __init__(self, n_outputs: int):
        self.n_outputs = n_outputs

    def _terms(self, y: Floats) -> list[Floats]:
        return [(y == k).astype(np.float64) for k in range(self.n_outputs)]

    def _prior_of(self, sums: list[float], total: float) -> list[float]:
        return np.log([mass / total for mass in sums]).tolist()

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

    Examples
    --------
    >>> from greedymiser import MiserRanker
    >>> ranker = MiserRanker(loss=LambdaMART())  # as loss="lambdamart"
    """

    is_additive = False

    def __init__(self, truncation: int = 30, sigma: float = 1.0):
        if truncation < 1:
            raise ValueError(f"truncation must be at least 1, got {truncation}")
        if not sigma > 0:
            raise ValueError(f"sigma must be positive, got {sigma}")
        self.truncation = truncation
        self.sigma = sigma
        self.starts: NDArray[np.intp] | None = None
        self._seen: tuple[Floats, Floats | None, Judged, Floats | None] | None = None
        # Of all queries, where these are only some of them.
        self._range: GainRange | None = None

    def over(self, starts: NDArray[np.intp]) -> LambdaMART:
        """Return this loss for rows ``starts[q]:starts[q + 1]`` that belong to query q."""
        bound = copy.copy(self)
        bound.starts, bound._seen = starts, None
        return bound

    def over_part(self, starts: NDArray[np.intp], y: Floats) -> LambdaMART:
        """Return this loss for some of the queries of rows with targets ``y``.

        Their scores are what they would be among all queries, to the last bit.
        """
        bound = self.over(starts)
        longest = int(np.diff(self.query_starts(y)).max(initial=0))
        bound._range = GainRange(float(y.max(initial=0.0)), longest)
        return bound

    def check_target(self, y: Floats) -> None:
        if y.min() < 0:
            raise ValueError(f"relevance labels must not be negative, got {y.min():g}")
        if y.max() > 30:
            raise ValueError(f"relevance labels above 30 overflow 2**label, got {y.max():g}")

    def value(self, y: Any, raw: Floats, weight: Floats | None = None) -> float:
        """One minus the mean NDCG at the truncation."""
        return self.value_by(None, y, raw, weight)

    def value_by(self, team: Team | None, y: Any, raw: Floats, weight: Floats | None) -> float:
        """``value``, on the threads of a team."""
        judged, weights = self.judge_labels(y, weight)
        return 1.0 - mean_of_queries(judged.ndcg(raw, team=team), weights)

    def judge_labels(self, y: Floats, weight: Floats | None) -> tuple[Judged, Floats | None]:
        """What labels and weights say of each query; the same rows come round after round."""
        if self._seen is None or self._seen[0] is not y or self._seen[1] is not weight:
            starts = self.query_starts(y)
            weights = None if weight is None else query_weights(weight, starts)
            self._seen = y, weight, judge(y, starts, self.truncation, self._range), weights
        return self._seen[2:]

    def add_scores(
        self,
        team: Team | None,
        y: Any,
        raw: Floats,
        weight: Floats | None,
        total: NDArray[np.int64],
    ) -> None:
        """Add the NDCG of all queries, times their weights, to an exact sum."""
        judged, weights = self.judge_labels(y, weight)
        values = judged.ndcg(raw, team=team)
        add_exactly(total, values if weights is None else values * weights)

    def gradients(self, y: Any, raw: Floats) -> tuple[Floats, Floats]:
        gradient, hessian = np.zeros_like(raw), np.zeros_like(raw)
        queries = ranking.Queries.of(y, self.query_starts(y), self.truncation)
        last = len(queries.starts) - 1
        ranking.add_lambdas(0, 0, last, queries, raw, self.sigma, gradient, hessian)
        return gradient, hessian

    def query_starts(self, y: Floats) -> NDArray[np.intp]:
        """Where each query starts, and the end; all rows are one query by default."""
        return np.array([0, len(y)], dtype=np.intp) if self.starts is None else self.starts


@dataclass(frozen=True)
class KnownLoss:
    """A loss of this library, and what it is called elsewhere."""

    make: type[Loss]
    # The mean over the rows in words; halves are those of the formulas.
    title: str
    # What LightGBM calls it.
    objective: str
    # The parameters that it is made from.
    parameters: dict[str, type] = field(default_factory=dict)


KNOWN_LOSSES = {
    "squared_error": KnownLoss(SquaredError, "half the squared error", "regression"),
    "absolute_error": KnownLoss(AbsoluteError, "absolute error", "regression_l1"),
    "huber": KnownLoss(Huber, "Huber loss", "huber", {"delta": float}),
    "quantile": KnownLoss(Quantile, "quantile loss", "quantile", {"quantile": float}),
    "poisson": KnownLoss(Poisson, "half the Poisson deviance", "poisson"),
    "gamma": KnownLoss(Gamma, "half the gamma deviance", "gamma"),
    "binary_log_loss": KnownLoss(BinaryLogLoss, "log-loss", "binary"),
    "log_loss_ties_to_second": KnownLoss(TiesToSecond, "log-loss", "binary"),
    "multinomial_log_loss": KnownLoss(
        MultinomialLogLoss, "log-loss", "multiclass", {"n_outputs": int}
    ),
    "lambdamart": KnownLoss(
        LambdaMART, "1 minus NDCG", "lambdarank", {"truncation": int, "sigma": float}
    ),
}
"""By the names that model files know; those below are also what ``loss=`` takes."""

REGRESSION_LOSSES = {
    name: KNOWN_LOSSES[name].make
    for name in ("squared_error", "absolute_error", "huber", "quantile", "poisson", "gamma")
}

RANKING_LOSSES = {name: KNOWN_LOSSES[name].make for name in ("lambdamart", "squared_error")}


def exact_mean(y: Floats, weight: Floats | None) -> float:
    """Weighted mean that does not depend on the order of the rows: sums are rounded once."""
    if weight is None:
        return exact_sum(y) / len(y)
    return exact_sum(y * weight) / exact_sum(weight)


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
        self.is_additive = not hasattr(loss, "value")
        for name in dir(loss):
            if not name.startswith("_") and name != "prior":
                setattr(self, name, getattr(loss, name))

    def prior(self, y: Any, weight: Floats | None) -> Floats:
        prior = getattr(self._loss, "prior", super().prior)
        return np.atleast_1d(prior(y, weight)).astype(np.float64)  # a number will do
