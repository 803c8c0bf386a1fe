"""What all predictors over a fitted ensemble share: the ensemble, the way a row takes, the bill."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Self

from numpy.typing import ArrayLike, NDArray
from sklearn.base import MetaEstimatorMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.utils.validation import check_is_fitted

from greedymiser.data.tables import Table, or_lazily
from greedymiser.estimators import Miser, MiserRanker, ModelBacked, table_for, tags_like
from greedymiser.losses.ndcg import ndcg_score, queries_or_one
from greedymiser.model.links import Floats
from greedymiser.model.protocols import Protocol
from greedymiser.training.preparation import Inputs


class OverEnsemble(MetaEstimatorMixin, ModelBacked):
    """Rows go through the stages of ``predictor_``, made of the trees of ``estimator_``."""

    # Estimators that it can be put over, and how they are asked for.
    _bases: ClassVar[tuple[type[Miser], ...]]
    _wants: ClassVar[str]

    estimator: Any
    estimator_: Any
    n_jobs: int | None

    def _inner(self) -> Miser:
        """What the user gave, without a FrozenEstimator around it; of a fitted search, its best."""
        estimator = self.estimator
        if isinstance(estimator, FrozenEstimator):
            estimator = estimator.estimator
        estimator = getattr(estimator, "best_estimator_", estimator)
        if not isinstance(estimator, self._bases):
            raise TypeError(f"{type(self).__name__} needs {self._wants}, got {estimator!r}")
        return estimator

    def set_params(self, **params: Any) -> Self:
        """Set parameters. ``n_jobs`` holds at once, all others from the next fit on."""
        super().set_params(**params)
        if "n_jobs" in params and hasattr(self, "predictor_"):
            self.predictor_ = replace(self.predictor_, n_jobs=self.n_jobs)
        return self

    def _table(self, X: Any) -> Table:
        check_is_fitted(self)
        return table_for(self.estimator_, X)

    def _raw_predict(self, X: Any, qid: ArrayLike | None = None) -> Floats:
        """Raw predictions with which rows leave; all answers about rows are made of them."""
        table = self._table(X)
        return self.predictor_.raw_predict(table, qid)

    def _costs_of(self, X: Any, qid: ArrayLike | None = None) -> Floats:
        table = self._table(X)
        return self.predictor_.prediction_costs(table, qid)

    def protocol(
        self, X: Any, qid: ArrayLike | None = None, *, min_share: float = 0.01
    ) -> Protocol:
        """Tell what is asked of which rows, in which order, at what mean cost (``charge="row"``).

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n, n_features)
        qid : array-like of shape (n,), optional
            For rankers: the query of each row.
        min_share : float
            Questions to a smaller share of the rows are left out of the steps, not of the table.
        """
        table = self._table(X)
        return self.predictor_.protocol(table, qid, min_share=min_share)

    @property
    def n_features_in_(self) -> int:
        return int(self.estimator_.n_features_in_)

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        return self.estimator_.feature_names_in_

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "predictor_")

    def __sklearn_tags__(self) -> Any:
        return tags_like(super().__sklearn_tags__(), self.estimator)


class RankerAnswers:
    """What a ranker over an ensemble answers; documents are compared with those of their query."""

    _raw_predict: Callable[..., Floats]
    _costs_of: Callable[..., Floats]

    @or_lazily
    def predict(self, X: Any, qid: ArrayLike | None = None) -> Floats:
        """Scores; within a query, higher comes first."""
        return self._raw_predict(X, qid)[0]

    @or_lazily
    def prediction_costs(self, X: Any, qid: ArrayLike | None = None) -> Floats:
        """What each row pays: the trees that it meets, and the resources that those trees need."""
        return self._costs_of(X, qid)

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
        """Mean NDCG@k over queries; one without any relevant document scores ``no_relevant``."""
        scores = self._raw_predict(X, qid)[0]
        query = queries_or_one(qid, len(scores))
        return ndcg_score(
            y, scores, query, k=k, sample_weight=sample_weight, no_relevant=no_relevant
        )


def taken_or_fitted(estimator: Miser, inputs: Inputs, inputs_val: Inputs) -> Any:
    """A fitted estimator as it is now, whatever becomes of it later; else a fitted clone."""
    if hasattr(estimator, "ensemble_"):
        return copy.copy(estimator)
    validation = {
        "X_val": inputs_val.X,
        "y_val": inputs_val.y,
        "sample_weight_val": inputs_val.weight,
    }
    queries = {}
    if isinstance(estimator, MiserRanker):
        queries = {"qid": inputs.qid, "qid_val": inputs_val.qid}
    return clone(estimator).fit(inputs.X, inputs.y, inputs.weight, **validation, **queries)
