"""Targets: what y means, as numbers, classes or degrees of relevance.

A loss sees float64 arrays. A target knows how to get there and back, which losses suit it, and
what to keep in proportion when rows are set aside.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite

from greedymiser._core.arithmetic import exact_sum
from greedymiser.data.tables import codes_of_labels, is_missing
from greedymiser.losses import (
    RANKING_LOSSES,
    REGRESSION_LOSSES,
    BinaryLogLoss,
    Loss,
    MultinomialLogLoss,
    Quantile,
    as_loss,
)
from greedymiser.model.links import gives_probabilities, probabilities

Floats = NDArray[np.float64]


class Target(Protocol):
    """What the values of y are, learned from them once."""

    def encode(self, y: NDArray[Any]) -> Floats:
        """Check y and turn it into numbers that the loss understands."""

    def decode(self, y: Floats) -> NDArray[Any]:
        """Do the inverse of ``encode``."""

    def factors(self, y: Floats, weight: Floats | None, class_weight: Any) -> Floats | None:
        """What the weights of rows are multiplied with, given encoded targets; None for 1."""

    def strata(self, y: Floats) -> Floats:
        """Labels to keep in proportion when rows are set aside."""

    def loss(self, setting: Any, quantile: float | None = None) -> Loss:
        """Make the loss that a user names, or check the one that a user made."""


@dataclass(frozen=True)
class Numbers:
    """Targets that are numbers: of a regression, or degrees of relevance."""

    estimator: str
    is_ranking: bool = False

    def encode(self, y: NDArray[Any]) -> Floats:
        _refuse_missing(y)
        try:
            # NumPy would read strings, drop imaginary parts and count days.
            if y.dtype.kind in "UScmM":
                raise TypeError
            numbers = np.array(y, dtype=np.float64)
        except (TypeError, ValueError):
            first = str(y[0]) if y.dtype.kind in "mM" else y[:1].tolist()[0]
            raise ValueError(f"{self.estimator} needs a numeric y, got {first!r}") from None
        assert_all_finite(numbers, input_name="y")
        return numbers

    def decode(self, y: Floats) -> NDArray[Any]:
        return y

    def factors(self, y: Floats, weight: Floats | None, class_weight: Any) -> None:
        return None

    def strata(self, y: Floats) -> Floats:
        return np.zeros(len(y))

    def loss(self, setting: Any, quantile: float | None = None) -> Loss:
        losses = RANKING_LOSSES if self.is_ranking else REGRESSION_LOSSES
        default = "lambdamart" if self.is_ranking else "squared_error"
        loss = as_loss(setting) if not isinstance(setting, str) else None
        if loss is None:
            name = default if setting == "auto" else setting
            if name not in losses:
                raise _unknown_loss(setting, list(losses))
            loss = Quantile(quantile) if name == "quantile" and quantile else losses[name]()
        if loss.n_outputs != 1:
            raise ValueError(f"{self.estimator} needs a loss with one output, got {loss.n_outputs}")
        return loss


@dataclass(frozen=True, eq=False)
class Classes:
    """Targets that are class labels."""

    estimator: str
    labels: NDArray[Any]

    @classmethod
    def learn(cls, estimator: str, y: NDArray[Any]) -> Classes:
        """Find the classes."""
        _refuse_missing(y)
        if y.dtype.kind in "fO":
            assert_all_finite(y, input_name="y")
        labels = _class_labels(y)
        check_classification_targets(y)
        if len(labels) < 2:
            raise ValueError(
                f"{estimator} needs at least two classes, but y has only one class: "
                f"{labels.tolist()[0]!r}"
            )
        return cls(estimator, labels)

    def encode(self, y: NDArray[Any]) -> Floats:
        _refuse_missing(y)
        kinds = {y.dtype.kind, self.labels.dtype.kind}
        # NumPy would find the number 1 among words, as "1".
        same = len(kinds) == 1 or kinds <= set("biuf")
        codes = codes_of_labels(y if same else y.astype(object), self.labels)
        unknown = np.isnan(codes)
        if unknown.any():
            raise ValueError(
                f"y has a class that the model does not know: {y[np.argmax(unknown)]} is not one "
                f"of {self.labels.tolist()}"
            )
        return codes

    def decode(self, y: Floats) -> NDArray[Any]:
        return self.labels[y.astype(np.intp)]

    def factors(self, y: Floats, weight: Floats | None, class_weight: Any) -> Floats | None:
        if class_weight is None:
            return None
        codes = y.astype(np.intp)
        if isinstance(class_weight, str):  # "balanced": every class weighs the same
            mass = np.ones(len(y)) if weight is None else weight
            # Exact sums, so that the order of the rows does not matter.
            masses = np.array([exact_sum(mass[codes == k]) for k in range(len(self.labels))])
            return (exact_sum(mass) / (len(masses) * masses))[codes]
        factors = compute_class_weight(class_weight, classes=self.labels, y=self.decode(y))
        if not (factors > 0).all() or not np.isfinite(factors).all():
            raise ValueError(f"class_weight must be positive, got {class_weight}")
        return factors[codes]

    def strata(self, y: Floats) -> Floats:
        return y

    def loss(self, setting: Any, quantile: float | None = None) -> Loss:
        n_classes = len(self.labels)
        needed = 1 if n_classes == 2 else n_classes
        if isinstance(setting, str):
            if setting not in ("auto", "log_loss"):
                raise _unknown_loss(setting, ["log_loss"])
            return BinaryLogLoss() if n_classes == 2 else MultinomialLogLoss(n_classes)
        loss = as_loss(setting)
        if loss.n_outputs != needed:
            raise ValueError(
                f"{n_classes} classes need a loss with n_outputs={needed}, got {loss.n_outputs}"
            )
        if gives_probabilities(loss):  # asked for now, and not when everything is trained
            probabilities(np.zeros((needed, 1)), loss, n_classes)
        return loss


def learn_target(
    kind: Literal["regressor", "classifier", "ranker"], estimator: str, y: NDArray[Any]
) -> Target:
    """What y means to an estimator of this kind (and name, for messages)."""
    if kind == "classifier":
        return Classes.learn(estimator, y)
    return Numbers(estimator, is_ranking=kind == "ranker")


def _refuse_missing(y: NDArray[Any]) -> None:
    """Raise if targets are missing, in scikit-learn's words, and say how many."""
    n_missing = _count_missing(y)
    if n_missing:
        what, these = ("value", "this row") if n_missing == 1 else ("values", "these rows")
        raise ValueError(
            f"Input y contains NaN: y has {n_missing} missing {what} in {len(y)} rows; "
            f"remove {these}"
        )


def _count_missing(y: NDArray[Any]) -> int:
    if y.dtype.kind == "f":
        return int(np.isnan(y).sum())
    if y.dtype.kind in "mM":
        return int(np.isnat(y).sum())
    if y.dtype.kind != "O":
        return 0
    try:
        counts = Counter(y.tolist())  # few labels are looked at, however many rows there are
    except TypeError:  # lists and the like, which are refused for what they are
        return 0
    return sum(n for label, n in counts.items() if is_missing(label))


def _class_labels(y: NDArray[Any]) -> NDArray[Any]:
    try:
        return np.unique(y)
    except TypeError:
        kinds = sorted({type(label).__name__ for label in y.tolist()})
        raise TypeError(
            f"y mixes labels of different types, which have no order: {kinds}"
        ) from None


def _unknown_loss(loss: str, losses: list[str]) -> ValueError:
    return ValueError(f"loss={loss!r} is unknown; choose from {losses} or pass a loss object")
