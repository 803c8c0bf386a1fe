"""The estimators: MiserRegressor, MiserClassifier and MiserRanker.

The parameters follow scikit-learn's HistGradientBoosting, so a user can swap the class name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _num_samples

from greedymiser.engines.interface import Floats
from greedymiser.estimators.base import BudgetWarning, Miser, warn_of_budget
from greedymiser.estimators.fitted import (
    ClassifierAnswers,
    ModelBacked,
    fitted_like,
    has_probabilities,
    table_for,
    tags_like,
)
from greedymiser.estimators.validation_scores import validation_of, works_in_kernels
from greedymiser.losses.ndcg import ndcg_score, queries_or_one
from greedymiser.model.links import decisions
from greedymiser.training.boosting import Callback
from greedymiser.training.parameters import ClassifierParameters, RegressorParameters
from greedymiser.training.preparation import Inputs

__all__ = [
    "BudgetWarning",
    "ClassifierAnswers",
    "Miser",
    "MiserClassifier",
    "MiserRanker",
    "MiserRegressor",
    "ModelBacked",
    "documented_like",
    "fitted_like",
    "table_for",
    "tags_like",
    "validation_of",
    "warn_of_budget",
    "works_in_kernels",
]

_Class = TypeVar("_Class", bound=type)


def documented_like(base: type) -> Callable[[_Class], _Class]:
    """Put what a base class says of parameters and attributes into a docstring.

    Parameters that the class describes itself follow those of the base class.
    """
    parameters, attributes = "    Parameters\n    ----------\n", "\n\n    Attributes\n"

    def document(estimator: _Class) -> _Class:
        shared = (base.__doc__ or "").partition("\n\n")[2].rstrip()
        own, heading, examples = (estimator.__doc__ or "").partition("    Examples\n")
        own, _, described = own.partition(parameters)
        if described:
            described = f"\n{described.rstrip()}{attributes}"
            shared = shared.replace(attributes, described, 1)
        text = f"{own.rstrip()}\n\n{shared}\n\n{heading}{examples}"
        estimator.__doc__ = text.rstrip() + "\n    "
        return estimator

    return document


@documented_like(Miser)
@dataclass(eq=False, repr=False)
class MiserRegressor(RegressorMixin, RegressorParameters, Miser):
    """Boosted regression trees that pay for their features.

    Parameters
    ----------
    loss : str or object
        What is minimised: "squared_error" (which "auto" stands for), "absolute_error", "huber",
        "quantile", "poisson" or "gamma". Or a loss object, such as
        ``greedymiser.losses.Huber(delta=2.0)`` or one of your own with ``values`` and
        ``gradients``.
    quantile : float between 0 and 1, or None
        The quantile that ``loss="quantile"`` predicts; None is 0.5. Other losses ignore it.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from greedymiser import MiserRegressor
    >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
    >>> prices = {name: 1.0 for name in X} | {"s5": 20.0, "s6": 20.0}
    >>> thrifty = MiserRegressor(costs=prices, tradeoff=20.0, max_iter=50).fit(X, y)
    >>> thrifty.cost_ < MiserRegressor(costs=prices, max_iter=50).fit(X, y).cost_
    True
    """

    _kind = "regressor"


@documented_like(Miser)
@dataclass(eq=False, repr=False)
class MiserClassifier(ClassifierMixin, ClassifierParameters, ClassifierAnswers, Miser):
    """Boosted classification trees that pay for their features.

    With two classes there is one tree per round; with more, each class has its own, and a feature
    that one of them has bought is free for the others. ``predict`` returns the most probable class,
    and of equally probable ones the first.

    Parameters
    ----------
    loss : str or object
        What is minimised: "log_loss", which "auto" stands for. Or a loss object of your own with
        ``n_outputs`` raw outputs and a ``response`` that gives probabilities. Without a
        ``response`` there is no ``predict_proba``, and ``predict`` is the class with the largest
        raw prediction (of two classes, the second if it is positive).
    class_weight : dict, "balanced" or None
        Multiplies the weights of the rows to learn from, before any of them are set aside.
        "balanced" makes every class weigh the same.
    error_costs : matrix, data frame, mapping or None
        What errors cost, in the unit of ``costs``: a matrix in the order of ``classes_`` (rows: the
        true class, columns: what is said), a data frame with the true classes as index and what is
        said as columns, or ``{true: {said: cost}}``, 0 where nothing is written. ``predict`` is
        then what is expected to cost least, and ``expected_costs`` tells what each answer would
        cost. An answer need not be a class ("refer" to a person), and a negative cost is a gain.
        ``predict_proba`` stays what it is. ``scoring="total_cost"`` scores by what rows cost in
        all: minus the mean of their bills and of their errors.

    Examples
    --------
    >>> from greedymiser import MiserClassifier
    >>> from greedymiser.datasets import load_thyroid
    >>> data = load_thyroid()
    >>> model = MiserClassifier(costs=data.costs, tradeoff=1e-4, max_iter=50)
    >>> model.fit(data.X_train, data.y_train).cost_ < 60
    True

    To say that somebody is well (class 3) who is not costs 50, a false alarm 10:

    >>> errors = {1: {3: 50}, 2: {3: 50}, 3: {1: 10, 2: 10}}
    >>> careful = MiserClassifier(costs=data.costs, error_costs=errors, max_iter=20)
    >>> careful.fit(data.X_train, data.y_train).expected_costs(data.X_train[:1]).shape
    (1, 3)
    """

    _kind = "classifier"

    @available_if(has_probabilities)
    def staged_predict_proba(self, X: Any) -> Iterator[Floats]:
        """Class probabilities after each round."""
        yield from map(self.predictor_.probabilities, self._staged_raw_predict(X))

    def staged_decision_function(self, X: Any) -> Iterator[Floats]:
        """Raw predictions after each round."""
        yield from map(decisions, self._staged_raw_predict(X))


@documented_like(Miser)
@dataclass(eq=False, repr=False)
class MiserRanker(Miser):
    """Boosted trees that rank the documents of a query and pay for their features.

    ``scoring`` may also be "ndcg@5", or any other k; a query without any relevant document counts
    as 1 in it.

    Parameters
    ----------
    loss : str or object
        What is minimised: "lambdamart" (which "auto" stands for), or "squared_error" as in the
        paper. Or a loss object, such as ``greedymiser.losses.LambdaMART(truncation=10)``.

    Examples
    --------
    >>> import numpy as np
    >>> from greedymiser import MiserRanker
    >>> rng = np.random.default_rng(0)
    >>> X, qid = rng.standard_normal((400, 3)), np.repeat(np.arange(40), 10)
    >>> y = np.clip(np.round(X[:, 0] + X[:, 1] + 1), 0, 4)
    >>> ranker = MiserRanker(costs=[1, 1, 50], tradeoff=1e-3, max_iter=20).fit(X, y, qid=qid)
    >>> ranker.features_used_, ranker.cost_
    ([0, 1], 2.0)
    """

    _kind = "ranker"

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        qid: ArrayLike | None = None,
        X_val: Any = None,
        y_val: ArrayLike | None = None,
        sample_weight_val: ArrayLike | None = None,
        qid_val: ArrayLike | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n, n_features)
            NaN is allowed and means missing.
        y : array-like of shape (n,)
            Relevance labels, not negative.
        sample_weight : array-like of shape (n,), optional
        qid : array-like of shape (n,), optional
            The query of each row, in any order. Without it, all rows are one query.
        X_val, y_val, sample_weight_val, qid_val : optional
            Validation data; the round with the best score on it is kept.
        callbacks : sequence of callables
            Each is told of every round, and may stop the fit (``greedymiser.training.boosting``).
        """
        return self._fit(
            Inputs(X, y, sample_weight, qid),
            Inputs(X_val, y_val, sample_weight_val, qid_val),
            callbacks,
        )

    def score(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        qid: ArrayLike | None = None,
        k: int = 5,
        no_relevant: float = 1.0,
    ) -> float:
        """Mean NDCG@k over queries.

        A query without any relevant document scores ``no_relevant``: 1 unless something else is
        said (as in LightGBM, and in the ``scoring`` of a fit), 0 in LETOR's tool.
        """
        query = queries_or_one(qid, _num_samples(X))
        return ndcg_score(
            y, self.predict(X), query, k=k, sample_weight=sample_weight, no_relevant=no_relevant
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags
