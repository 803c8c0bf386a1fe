"""What the three estimators share: parameters and fit."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Self

from numpy.typing import ArrayLike
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions

from greedymiser._core.threads import Threads, thread_count
from greedymiser.data.tables import Parted, is_frame
from greedymiser.estimators.fitted import Fitted, fitted_like
from greedymiser.estimators.validation_scores import check_scoring_of, validation_of
from greedymiser.estimators.warm_start import continuation
from greedymiser.training.boosting import Callback, ProgressBar
from greedymiser.training.parameters import (
    Parameters,
    TrainingParameters,
    constraints_of,
    parameter,
)
from greedymiser.training.preparation import (
    Inputs,
    Part,
    Prepared,
    brought,
    check,
    learn_schema,
    note_part,
    prepare,
)
from greedymiser.training.train import (
    ENGINES,
    Model,
    blank_model,
    cheapest_useful,
    open_engine,
    train,
)


class BudgetWarning(UserWarning):
    """A budget is too small to buy anything useful."""


@dataclass(eq=False, repr=False)
class Miser(Fitted, TrainingParameters):
    """What the three estimators share. Subclasses say what the target means.

    Parameters
    ----------
    costs : CostModel, mapping from column name to cost, array of costs, or None
        What features cost. None means 1 for each, so that the cost of a model is the number of
        its features.
    tradeoff : float
        The paper's lambda: the drop in mean loss that a unit of cost must bring. 0 ignores costs.
    budget : float or None
        A hard limit on ``cost_``, trees included; with ``charge="row"``, on the mean cost of the
        training rows.
    step : {"newton", "gradient"}
        Trees fit the Newton step, or the negative gradient with plain means as in the paper.
    init : {"prior", "zero"}
        Start from the best constant, or from 0 as in the paper.
    learning_rate : float
        What the values of every tree are multiplied by: a smaller one needs more rounds.
    max_iter : int
        Maximum number of rounds. A round has one tree, or one for each class where there are more
        than two.
    max_depth : int or None
        Maximum number of splits on a path from the root to a leaf; None for no limit.
    max_leaf_nodes : int or None
        Maximum number of leaves of a tree; None for no limit.
    min_samples_leaf : int
        Minimum number of training rows in a leaf.
    l2_regularization : float
        Added to the sum of Hessians of a leaf, so that leaves with few rows get smaller values.
    max_bins : int
        Maximum number of bins per feature, at most 255.
    categorical_features : "from_dtype", array-like of bool, int or str, or None
        Which columns hold categories; by default those whose type in a data frame says so.
    monotonic_cst : array-like of {-1, 0, 1}, mapping from column name, or None
        1: predictions must not fall as the feature grows; -1: they must not rise.
    early_stopping : "auto" or bool
        Stop when the validation score no longer improves. "auto": if validation data is given, or
        if there are more than 10,000 rows. Whether stopped or not, the round that scores best on
        validation data is kept: none at all if nothing beats the constant.
    n_iter_no_change : int
        How many rounds to wait for an improvement.
    validation_fraction : float, int or None
        Share (or number) of rows to set aside if early stopping has no validation data; None stops
        on the training loss.
    tol : float
        What a round must add to the score to count as an improvement.
    shopping_interval : int
        Features that are not bought yet are considered in rounds 0, k, 2k, ... only; the rounds
        between use features that are bought or free, which is quicker. 1 is Algorithm 1. A round
        that finds no split among these considers the others as well.
    subsample : float
        Share of the rows that each round learns from, drawn anew; where there are queries, whole
        queries are drawn.
    max_features : float or int
        Share (float) or number (int) of the features not bought yet that each node may choose from,
        drawn anew for every node. Features that are bought are always available.
    interaction_cst : {"pairwise", "no_interactions"}, sequence of sets of int or str, or None
        Features that may be on one path from a root to a leaf: those of one set, by position or
        name. Features in no set form one more set.
    charge : {"model", "row"}
        Who pays: the model, once for all rows, or each row for the features on its own paths. With
        "row", ``tradeoff`` is the drop in mean loss that a unit of mean cost per row must bring.
        Rows count by their ``sample_weight``; ``class_weight`` is about errors, not about costs.
    row_budget : float or None
        With ``charge="row"``, a hard limit on what each of the training rows costs.
    scoring : "loss", scorer name, callable or None
        What the validation data is scored with; None is "loss". A callable takes the model so far,
        X and y, and perhaps ``sample_weight``.
    warm_start : bool
        Continue from the previous fit. What was bought is not charged again.
    random_state : int, RandomState or None
        Draws validation rows, and the rows and features of each round. It is read once, by the
        first fit: a continued fit draws as one longer fit would have drawn.
    verbose : int
        1 shows a progress bar.
    n_jobs : int or None
        Threads; None for all cores. The model does not depend on it.
    engine : {"auto", "cpu", "cuda", "dask"}
        Where training runs: on the cores of this machine, on its GPU, or on the workers of a Dask
        cluster. The model is the same to the last bit. "auto" is "dask" where X, y or another
        argument is a Dask collection, and otherwise "cpu".

    Attributes
    ----------
    cost_ : float
        What one prediction costs (eq. 3): resources of all splits, and ``tree_cost`` per tree.
        With ``charge="row"``, the mean over the training rows.
    cost_max_ : float
        The most that any prediction can cost.
    features_used_ : list
        Features that the model needs, by name where there are names.
    resources_used_ : list of str
        Resources that these features need.
    n_iter_ : int
        Number of rounds of the model.
    feature_importances_ : array of shape (n_features,)
        Share of the total raw gain.
    train_score_, validation_score_ : arrays
        Entry i is the score after i rounds, entry 0 that of the constant model; rounds that were
        tried and not kept are there too. Training scores are negative losses. Without validation
        data, ``validation_score_`` is empty.
    stopped_ : str
        Why there are no more rounds: "max_iter", "early stopping", "budget", "nothing pays",
        "callback", "interrupted", or "cluster lost" (all workers were).
    is_categorical_ : array of bool of shape (n_features,), or None
        Which features are categorical; None if none is.
    do_early_stopping_ : bool
        Whether training was to stop when the score no longer improved.
    n_trees_per_iteration_ : int
        1, or the number of classes where there are more than two.
    ensemble_ : Ensemble
        The trees.
    schema_ : Schema
        What was learned of the columns and the target.
    model_ : Model
        The trees and how they came about.
    predictor_ : Predictor
        The finished model, for serving: made once, and again for a new model or ``n_jobs``.
    """

    scoring: Any = parameter("loss", str, callable, None)
    warm_start: bool = parameter(False, "boolean")
    random_state: Any = parameter(None, "random_state")
    verbose: int = parameter(0, "verbose")
    n_jobs: int | None = parameter(None, Integral, None)
    engine: str = parameter("auto", StrOptions(set(ENGINES)))

    @property
    def _parameter_constraints(self) -> dict[str, Any]:
        return constraints_of(self)

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        X_val: Any = None,
        y_val: ArrayLike | None = None,
        sample_weight_val: ArrayLike | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n, n_features)
            NaN is allowed and means missing.
        y : array-like of shape (n,)
            Numbers, or class labels of any kind.
        sample_weight : array-like of shape (n,), optional
        X_val, y_val, sample_weight_val : optional
            Validation data; the round with the best score on it is kept.
        callbacks : sequence of callables
            Each is told of every round, and may stop the fit (``greedymiser.training.boosting``).
        """
        return self._fit(
            Inputs(X, y, sample_weight), Inputs(X_val, y_val, sample_weight_val), callbacks
        )

    def _fit(self, data: Inputs, data_val: Inputs, callbacks: Sequence[Callback]) -> Self:
        """Work on a copy, and take it over in one step: a fit that fails leaves no trace."""
        callbacks = _checked_callbacks(callbacks)
        draft = copy.copy(self)
        with Threads(thread_count(self.n_jobs)) as threads:
            prepared = draft.prepare(data, data_val, threads)
            params = prepared.params
            start = draft.model_ if draft._is_continued() else blank_model(prepared, params)
            with _progress_bar(self.verbose) as bar:
                watch = validation_of(draft, prepared.schema)
                model = train(prepared, params, start, watch, [*callbacks, *bar])
            fitted = fitted_like(draft, prepared.schema, model.truncated(model.best_iter))
            self.__dict__ = fitted.__dict__
            model.raise_if_cut_short()
            if model.n_iter == 0:
                warn_of_budget(prepared, params, start)
        return self

    def prepare(self, data: Inputs, data_val: Inputs, threads: Threads) -> Prepared:
        """Check everything, learn what y and the columns mean, and place the rows to learn from.

        For curves and searches, which train several models on the same data. It sets the number and
        the names of the columns.
        """
        self._validate_params()
        if self.row_budget is not None and self.charge != "row":
            raise ValueError(
                f"row_budget={self.row_budget:g} needs charge='row', got charge={self.charge!r}: "
                "all rows of such a model cost the same, which budget is for"
            )
        check_scoring_of(self)
        is_continued = self._is_continued()
        engine = open_engine(self.engine, [data, data_val], threads)
        data, data_val = brought(engine, data), brought(engine, data_val)
        data = self.check_features(data, reset=not is_continued)
        data_val = self.check_features(data_val, reset=False, part="val")
        params, columns = Parameters.of(self), self._columns()
        if is_continued:
            learn = continuation(self, params)
        else:
            seed = check_random_state(self.random_state).randint(2**31)
            learn = learn_schema(params, self._kind, type(self).__name__, columns, seed)
        prepared = prepare(params, learn, data, data_val, engine, threads)
        self.do_early_stopping_ = prepared.is_patient
        return prepared

    def look_at(self, data: Inputs) -> None:
        """Raise what is wrong with some data, and learn nothing from it."""
        data = copy.copy(self).check_features(data, reset=True)
        head = data.X.head if isinstance(data.X, Parted) else data.X
        names = None if not is_frame(head) else tuple(map(str, head.columns))
        learn_schema(Parameters.of(self), self._kind, type(self).__name__, names, 0)(check(data))

    def check_features(self, data: Inputs, reset: bool, part: Part | None = None) -> Inputs:
        """Check X as scikit-learn does; with ``reset``, learn the names of its columns."""
        if data.X is None and part is not None:
            return data
        try:
            X = self._check_features(data.X, reset)
            if data.y is None and part is None:
                raise ValueError(
                    f"This {type(self).__name__} estimator requires y to be passed, "
                    "but the target y is None."
                )
        except ValueError as error:
            if part is not None:
                note_part(error, part)
            raise
        return Inputs(X, data.y, data.weight, data.qid)

    def _is_continued(self) -> bool:
        return self.warm_start and "model_" in self.__dict__

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.target_tags.required = True
        return tags


def warn_of_budget(prepared: Prepared, params: Parameters, start: Model) -> None:
    """If it was the budget that left a model without trees, say what it would have had to be."""
    row_budget = params.row_budget if params.charge == "row" else None
    budgets = {"budget": params.budget, "row_budget": row_budget}
    limits = {name: budget for name, budget in budgets.items() if budget is not None}
    cheapest = cheapest_useful(prepared, params, start) if limits else None
    if cheapest is None:
        return
    name = min(limits, key=limits.__getitem__)
    feature, price, bill = cheapest
    trees = f" (with its trees, {bill:g})" if bill != price else ""
    warnings.warn(
        f"{name}={limits[name]:g} buys no useful feature, so the model is a constant; the "
        f"cheapest useful feature is {prepared.schema.name(feature)!r} and costs {price:g}{trees}",
        BudgetWarning,
        stacklevel=4,
    )


def _checked_callbacks(callbacks: Any) -> list[Callback]:
    """Callbacks as a list. What is wrong is said before anything is trained."""
    if callbacks is None:
        return []
    if not isinstance(callbacks, Iterable):
        hint = "; for a single one, pass callbacks=[f]" if callable(callbacks) else ""
        raise TypeError(f"callbacks must be a sequence of callables, got {callbacks!r}{hint}")
    functions = list(callbacks)
    for callback in functions:
        if not callable(callback):
            raise TypeError(f"callbacks must be callables, got {callback!r}")
    return functions


@contextmanager
def _progress_bar(verbose: int) -> Iterator[list[Callback]]:
    """A progress bar, where one is wanted."""
    bar = ProgressBar() if verbose else None
    try:
        yield [] if bar is None else [bar]
    finally:
        if bar is not None:
            bar.close()
