"""What the errors of a classifier cost, as a score."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from greedymiser._core.arithmetic import exact_sum
from greedymiser.costs.errors import ErrorCosts, as_error_costs
from greedymiser.losses import Loss
from greedymiser.scoring.truth import Floats


def error_score(
    errors: ErrorCosts, loss: Loss, y: Floats, weight: Floats | None
) -> Callable[[Floats], float]:
    """Minus the mean cost of the errors, given raw predictions (n_outputs, n).

    Parameters
    ----------
    errors : ErrorCosts
    loss : Loss
        Its ``response`` gives class probabilities.
    y : array of shape (n,)
        Codes of the true classes.
    weight : array of shape (n,), optional
    """
    codes, mass = y.astype(np.intp), float(len(y)) if weight is None else exact_sum(weight)

    def score(raw: Floats) -> float:
        chances = np.asarray(loss.response(raw[0] if len(raw) == 1 else raw))
        if chances.ndim == 1:  # of the second class
            chances = np.stack([1.0 - chances, chances])
        paid = errors.realised(codes, np.ascontiguousarray(chances.T))
        return -exact_sum(paid if weight is None else paid * weight) / mass

    return score


class TotalCost(NamedTuple):
    """What rows cost in the mean: what is paid for their predictions, and for errors.

    Examples
    --------
    >>> TotalCost(bill=2.5, errors=4.25).total
    6.75
    """

    bill: float
    errors: float

    @property
    def total(self) -> float:
        """Bill and errors together."""
        return self.bill + self.errors

    def __str__(self) -> str:
        return (
            f"asks for {self.bill:.4g}, errs for {self.errors:.4g}, together {self.total:.4g} a row"
        )


def total_cost(
    model: Any,
    X: Any,
    y: ArrayLike,
    *,
    error_costs: Any = None,
    sample_weight: ArrayLike | None = None,
) -> TotalCost:
    """What a model costs on some rows: the mean cost of features, and the mean cost of errors.

    Parameters
    ----------
    model : fitted classifier
        Anything with ``predict`` and ``prediction_costs``: estimators, early exits, cascades,
        searches, baselines and what ``load`` returns.
    X : array, sparse matrix or data frame of shape (n, n_features)
    y : array-like of shape (n,)
        The true classes.
    error_costs : matrix, data frame or mapping, optional
        As in ``MiserClassifier``, which need not have been trained with them: without them, those
        of the model.
    sample_weight : array-like of shape (n,), optional

    Examples
    --------
    >>> from greedymiser import MiserClassifier, total_cost
    >>> from greedymiser.datasets import load_thyroid
    >>> data = load_thyroid()
    >>> errors = {1: {3: 50}, 2: {3: 50}, 3: {1: 10, 2: 10}}
    >>> model = MiserClassifier(costs=data.costs, error_costs=errors, max_iter=5)
    >>> cost = total_cost(model.fit(data.X_train, data.y_train), data.X_test, data.y_test)
    >>> cost.total > cost.bill > 0
    True
    """
    predictor = getattr(model, "predictor_", model)
    errors = predictor.error_costs
    if error_costs is not None:
        errors = as_error_costs(error_costs, predictor.classes_)
    if errors is None:
        raise ValueError("error_costs must be given for a model that was trained without them")
    said = np.asarray(model.predict(X)).tolist()
    true = np.asarray(y).tolist()
    if len(said) != len(true):
        raise ValueError(f"X has {len(said)} rows, but y has {len(true)}")
    rows = {label: i for i, label in enumerate(predictor.classes_.tolist())}
    columns = {label: i for i, label in enumerate(errors.said.tolist())}
    for label in set(true) - rows.keys():
        raise ValueError(f"y has {label!r}, which is none of the classes {list(rows)}")
    for label in set(said) - columns.keys():
        raise ValueError(f"the model says {label!r}, and error_costs have no column for it")
    paid = errors.matrix[[rows[label] for label in true], [columns[label] for label in said]]
    bills = np.asarray(model.prediction_costs(X), dtype=np.float64)
    weight = np.ones(len(paid)) if sample_weight is None else np.asarray(sample_weight, dtype=float)
    mass = exact_sum(weight)
    return TotalCost(exact_sum(bills * weight) / mass, exact_sum(paid * weight) / mass)
