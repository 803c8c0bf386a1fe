"""What the three estimators share once they are fitted: predictions, costs and attributes."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from greedymiser.costs.cost_model import CostModel, Feature, Receipt
from greedymiser.data.tables import (
    Categories,
    Parted,
    Table,
    is_frame,
    opened,
    or_lazily,
    readable,
    refuse_dates,
    refuse_lazy,
    unmasked,
)
from greedymiser.engines.interface import Floats
from greedymiser.losses import Kind
from greedymiser.model.links import decisions, gives_probabilities
from greedymiser.model.predictor import Predictor
from greedymiser.model.protocols import Protocol
from greedymiser.model.trees import Ensemble
from greedymiser.training.preparation import Schema
from greedymiser.training.train import Model

_Estimator = TypeVar("_Estimator", bound="Fitted")


class ModelBacked(BaseEstimator):
    """An estimator whose predictions and costs are those of a finished model, ``predictor_``."""

    predictor_: Predictor

    def _table(self, X: Any) -> Table:
        """Rows as the finished model reads them, if scikit-learn has nothing against them."""
        raise NotImplementedError

    def _raw_predict(self, X: Any) -> Floats:
        """Raw predictions, shape (n_outputs, n); all answers about rows are made of them."""
        raise NotImplementedError

    @or_lazily
    def predict(self, X: Any) -> NDArray[Any]:
        """Predict targets, class labels, or scores: within a query, higher comes first."""
        raw = self._raw_predict(X)  # first, since it says what is not fitted
        return self.predictor_.respond(raw)

    def served_for(self, sample: Any) -> Predictor:
        """The finished model for parts of rows like these, once they are checked."""
        self._table(sample)
        return self.predictor_.served_for(sample)

    @property
    def cost_(self) -> float:
        return self.predictor_.cost_

    @property
    def cost_max_(self) -> float:
        return self.predictor_.cost_max_

    @property
    def features_used_(self) -> list[Feature]:
        return self.predictor_.features_used_

    @property
    def resources_used_(self) -> list[str]:
        return self.predictor_.resources_used_


def has_probabilities(classifier: Any) -> bool:
    """Whether the loss is one of ours, or has a response of its own."""
    loss = getattr(classifier._learner(), "loss", "auto")
    return isinstance(loss, str) or gives_probabilities(loss)


def _has_error_costs(classifier: Any) -> bool:
    return getattr(classifier._learner(), "error_costs", None) is not None


class ClassifierAnswers(ModelBacked):
    """What a classifier answers besides classes, by the trees that each row meets."""

    def _learner(self) -> Any:
        """The estimator whose ``loss`` and ``error_costs`` say which answers there are."""
        return self

    @available_if(has_probabilities)
    @or_lazily
    def predict_proba(self, X: Any) -> Floats:
        """Class probabilities, shape (n, n_classes), by the trees that each row meets."""
        raw = self._raw_predict(X)
        return self.predictor_.probabilities(raw)

    @available_if(_has_error_costs)
    @or_lazily
    def expected_costs(self, X: Any) -> Floats:
        """What each answer is expected to cost, shape (n, n_said), in the order of ``said_``."""
        raw = self._raw_predict(X)
        return self.predictor_.expected_errors(raw)

    @or_lazily
    def decision_function(self, X: Any) -> Floats:
        """Raw predictions: log-odds of the second class (n,), or one column per class."""
        return decisions(self._raw_predict(X))

    @property
    def classes_(self) -> NDArray[Any]:
        """Class labels, ascending."""
        return self.predictor_.classes_

    @property
    def said_(self) -> NDArray[Any]:
        """What ``predict`` may say: the classes, or the columns of ``error_costs``."""
        errors = self.predictor_.error_costs
        return self.classes_ if errors is None else errors.said


class Fitted(ModelBacked):
    """A model, what it says of rows, and its accounts. ``Miser`` says what the attributes mean."""

    _kind: ClassVar[Kind]
    schema_: Schema
    model_: Model
    # Whether predictions are means over the rounds, so that a sum of some of them says nothing.
    is_mean_: bool = False
    # Parameters that prediction needs.
    n_jobs: int | None

    # -- prediction -----------------------------------------------------------------------------

    @property
    def predictor_(self) -> Predictor:  # type: ignore[override]  # it follows the model
        """The finished model, for serving: it knows nothing of training."""
        if "model_" not in self.__dict__:
            check_is_fitted(self, "model_")
        return self.model_.predictor(self.schema_, self.n_jobs)

    def staged_predict(self, X: Any) -> Iterator[NDArray[Any]]:
        """What ``predict`` would say after each round."""
        yield from map(self.predictor_.respond, self._staged_raw_predict(X))

    def _table(self, X: Any) -> Table:
        return table_for(self, X)

    def _raw_predict(self, X: Any) -> Floats:
        return self.predictor_.run(self._table(X))[0]

    def _staged_raw_predict(self, X: Any) -> Iterator[Floats]:
        """The same after each round."""
        return self.predictor_.staged_raw_predict(self._table(X))

    @or_lazily
    def prediction_costs(self, X: Any) -> Floats:
        """What each row's prediction costs (eq. 3).

        The same for all rows, ``cost_``; with ``charge="row"``, the trees and the resources that
        the row's own paths ask for.
        """
        return self.predictor_.prediction_costs(self._table(X))

    def _check_features(self, X: Any, reset: bool) -> Any:
        """X, checked in every way that scikit-learn knows."""
        if isinstance(X, Parted) or is_frame(X):
            shown = X
            if isinstance(X, Parted):
                shown = np.empty((1, X.shape[1])) if X.head is None else X.head
            if is_frame(shown):
                opened(shown)  # before scikit-learn looks at its names
            validate_data(self, X=shown, reset=reset, skip_check_array=True)
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
    def is_categorical_(self) -> NDArray[np.bool_] | None:
        if not self.categories_:
            return None
        mask = np.zeros(self.n_features_in_, dtype=bool)
        mask[list(self.categories_)] = True
        return mask

    @property
    def n_trees_per_iteration_(self) -> int:
        return self.ensemble_.n_outputs

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
    def feature_importances_(self) -> Floats:
        gains = self.ensemble_.importances()
        return gains / gains.sum() if gains.any() else np.zeros(self.n_features_in_)

    def _columns(self) -> tuple[str, ...] | None:
        names = getattr(self, "feature_names_in_", None)
        return None if names is None else tuple(names)

    def receipt(self) -> Receipt:
        """What was bought, when, at what price."""
        return self.predictor_.receipt()

    def protocol(self, X: Any, *, min_share: float = 0.01) -> Protocol:
        """Tell what is asked of which rows, in which order, at what mean cost (``charge="row"``).

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n, n_features)
        min_share : float
            Questions to a smaller share of the rows are left out of the steps, not of the table.
        """
        return self.predictor_.protocol(self._table(X), min_share=min_share)

    def truncate(self, n_iter: int) -> Self:
        """Return a copy that stops after ``n_iter`` rounds, and costs accordingly."""
        check_is_fitted(self, "model_")
        if not 0 <= operator.index(n_iter) <= self.n_iter_:
            raise ValueError(f"n_iter must lie between 0 and {self.n_iter_}, got {n_iter}")
        shorter = copy.copy(self)
        shorter.model_ = self.model_.truncated(n_iter)
        return shorter


def tags_like(tags: Any, estimator: Any) -> Any:
    """The tags of what works as this estimator does, as far as that has any."""
    if isinstance(estimator, BaseEstimator):
        inner = estimator.__sklearn_tags__()
        tags.estimator_type = inner.estimator_type
        tags.classifier_tags, tags.regressor_tags = inner.classifier_tags, inner.regressor_tags
        tags.input_tags, tags.target_tags = inner.input_tags, inner.target_tags
    return tags


def table_for(estimator: Fitted, X: Any) -> Table:
    """Rows as a fitted estimator's model reads them: the columns of fit, in their order."""
    predictor = estimator.predictor_
    return predictor.table_of(_with_known_columns(estimator, X), in_order=True)


def _with_known_columns(estimator: Fitted, X: Any) -> Any:
    """X, if it has a row, and the number and the names of columns that the estimator has seen."""
    if (
        type(X) is np.ndarray
        and X.dtype.kind in "biuf"
        and X.ndim == 2
        and len(X) > 0
        and X.shape[1] == estimator.n_features_in_
        and "feature_names_in_" not in estimator.__dict__
    ):
        return X  # nothing to check: the way for single rows
    try:
        rows = readable(X)
    except (TypeError, ValueError):
        _refuse(estimator, X)
        raise
    if min(rows.shape) == 0 or isinstance(X, np.matrix):  # neither of which fit takes
        estimator._check_features(X, reset=False)
    try:
        validate_data(estimator, X=rows, reset=False, skip_check_array=True)
    except ValueError:
        if is_frame(rows):
            opened(rows)  # has plain words for two columns of one name
        raise
    return rows


def _refuse(estimator: Fitted, X: Any) -> None:
    """Raise what is wrong with X: scikit-learn has its own words for most of it."""
    try:
        estimator._check_features(X, reset=False)
    except ValueError as error:
        why = str(error).rstrip(".")
        # NumPy and scikit-learn both speak of strings where an array holds words.
        if "feature_names_in_" in estimator.__dict__ and "string" in why:
            raise ValueError(f"{why}; give a data frame with the columns of fit") from None
        raise


def fitted_like(estimator: _Estimator, schema: Schema, model: Model) -> _Estimator:
    """A copy of an estimator that has this model, all rounds of it."""
    fitted = copy.copy(estimator)
    fitted.schema_, fitted.model_ = schema, model
    fitted.n_features_in_ = schema.n_features
    return fitted
