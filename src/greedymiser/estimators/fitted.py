"""What a fitted estimator knows, answers and costs."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from greedymiser.costs import CostModel, Feature, Ledger, Receipt
from greedymiser.engines import Floats
from greedymiser.lazy import or_lazily
from greedymiser.losses import Kind
from greedymiser.meter import row_costs
from greedymiser.preparation import Schema
from greedymiser.protocols import Protocol
from greedymiser.serving import Predictor, Stage
from greedymiser.tables import (
    PLAIN_DTYPES,
    ArrayTable,
    Categories,
    Parted,
    Table,
    as_table,
    is_frame,
    refuse_dates,
    refuse_lazy,
    unmasked,
)
from greedymiser.threads import Threads, thread_count
from greedymiser.training import Model
from greedymiser.trees import Ensemble

_Estimator = TypeVar("_Estimator", bound="Fitted")


class Fitted(BaseEstimator):
    """A model, what it says of rows, and its accounts. ``Miser`` says what the attributes mean."""

    _kind: ClassVar[Kind]
    schema_: Schema
    model_: Model
    # Whether predictions are means over the rounds, so that a sum of some of them says nothing.
    is_mean_: bool = False
    # Parameters that prediction needs.
    n_jobs: int | None

    # -- prediction -----------------------------------------------------------------------------

    def _raw_predict(self, X: Any) -> Floats:
        """Raw predictions, shape (n_outputs, n)."""
        table = table_for(self, X)
        with Threads(thread_count(self.n_jobs)) as threads:
            return self.ensemble_.raw_predict(table, threads)

    def _staged_raw_predict(self, X: Any) -> Iterator[Floats]:
        table = table_for(self, X)
        with Threads(thread_count(self.n_jobs)) as threads:
            yield from self.ensemble_.staged_raw_predict(table, threads)

    def served_for(self, sample: Any) -> Predictor:
        """The finished model for parts of rows like these, once they are checked."""
        table_for(self, sample)
        return self.predictor_.served_for(sample)

    @or_lazily
    def prediction_costs(self, X: Any) -> Floats:
        """What each row's prediction costs (eq. 3).

        The same for all rows, ``cost_``; with ``charge="row"``, the trees and the resources that
        the row's own paths ask for.
        """
        table = table_for(self, X)
        if self.model_.charge != "row":
            return np.full(table.n_rows, self.cost_)
        with Threads(thread_count(self.n_jobs)) as threads:
            return row_costs(self.ensemble_, self.costs_, table, threads)

    def _check_features(self, X: Any, reset: bool) -> Any:
        if isinstance(X, Parted):
            stand_in = np.empty((1, X.shape[1])) if X.head is None else X.head
            validate_data(self, X=stand_in, reset=reset, skip_check_array=True)
            if min(X.shape) == 0:
                raise ValueError(f"X must have at least one row and one column, got {X.shape}")
            return X
        if is_frame(X):
            validate_data(self, X=X, reset=reset, skip_check_array=True)
            if min(X.shape) == 0:
                raise ValueError(f"X must have at least one row and one column, got {X.shape}")
            return X
        refuse_lazy(X)
        checked = validate_data(
            self,
            X=unmasked(X),
            reset=reset,
            dtype="numeric",
            accept_sparse=("csr", "csc"),
            ensure_all_finite=False,
        )
        refuse_dates(checked)
        return checked

    # -- accounts -------------------------------------------------------------------------------

    @property
    def ensemble_(self) -> Ensemble:
        return self.model_.ensemble

    @property
    def costs_(self) -> CostModel:
        return self.schema_.costs

    @property
    def categories_(self) -> Categories:
        return self.schema_.categories

    @property
    def train_score_(self) -> Floats:
        return self.model_.train_score

    @property
    def validation_score_(self) -> Floats:
        return self.model_.validation_score

    @property
    def stopped_(self) -> str:
        return self.model_.stopped

    @property
    def n_iter_(self) -> int:
        return self.model_.n_iter

    @property
    def cost_(self) -> float:
        if self.model_.charge == "row":
            return float(self.model_.train_cost[self.n_iter_])
        return self.cost_max_

    @property
    def cost_max_(self) -> float:
        return self.costs_.total(self.ensemble_.features, self.ensemble_.n_trees)

    @property
    def features_used_(self) -> list[Feature]:
        names = self.schema_.names
        return [feature if names is None else names[feature] for feature in self.ensemble_.features]

    @property
    def resources_used_(self) -> list[str]:
        return Ledger(self.costs_, self.ensemble_.features).resources

    @property
    def feature_importances_(self) -> Floats:
        gains = self.ensemble_.importances()
        return gains / gains.sum() if gains.any() else np.zeros(self.n_features_in_)

    def _columns(self) -> tuple[str, ...] | None:
        names = getattr(self, "feature_names_in_", None)
        return None if names is None else tuple(names)

    def receipt(self) -> Receipt:
        """What was bought, when, at what price."""
        check_is_fitted(self, "model_")
        return Receipt(self.model_.purchases)

    @property
    def predictor_(self) -> Predictor:
        """The finished model, for serving: it knows nothing of training."""
        ensemble, schema = self.ensemble_, self.schema_
        return Predictor(
            kind=self._kind,
            stages=(Stage(ensemble, 0, ensemble.n_iter, ensemble.n_trees),),
            rule=None,
            costs=schema.costs,
            loss=schema.loss,
            n_features=schema.n_features,
            classes=getattr(self, "classes_", None),
            categories=schema.categories,
            feature_names=schema.columns,
            purchases=self.model_.purchases,
            n_jobs=self.n_jobs,
            charge=self.model_.charge,
            mean_cost=self.cost_ if self.model_.charge == "row" else None,
        )

    def protocol(self, X: Any, *, min_share: float = 0.01) -> Protocol:
        """Tell what is asked of which rows, in which order, at what mean cost (``charge="row"``).

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n, n_features)
        min_share : float
            Questions to a smaller share of the rows are left out of the steps, not of the table.
        """
        check_is_fitted(self, "model_")
        return self.predictor_.protocol(X, min_share=min_share)

    def truncate(self, n_iter: int) -> Self:
        """Return a copy that stops after ``n_iter`` rounds, and costs accordingly."""
        check_is_fitted(self, "model_")
        if not 0 <= operator.index(n_iter) <= self.n_iter_:
            raise ValueError(f"n_iter must lie between 0 and {self.n_iter_}, got {n_iter}")
        shorter = copy.copy(self)
        shorter.model_ = self.model_.truncated(n_iter)
        return shorter


def table_for(estimator: Fitted, X: Any) -> Table:
    """Rows as a fitted estimator reads them, checked."""
    known = estimator.__dict__
    if (
        type(X) is np.ndarray
        and X.dtype in PLAIN_DTYPES
        and X.ndim == 2
        and len(X) > 0
        and "model_" in known
        and "feature_names_in_" not in known
        and X.shape[1] == estimator.n_features_in_
    ):
        return ArrayTable(X, estimator.categories_)  # nothing to check: the way for single rows
    check_is_fitted(estimator, "model_")
    return as_table(estimator._check_features(X, reset=False), estimator.categories_)


def fitted_like(estimator: _Estimator, schema: Schema, model: Model) -> _Estimator:
    """A copy of an estimator that has this model, all rounds of it."""
    fitted = copy.copy(estimator)
    fitted.schema_, fitted.model_ = schema, model
    fitted.n_features_in_ = schema.n_features
    return fitted
