"""MiserRegressor, MiserClassifier, MiserRanker: validate, delegate, take over.

The parameters follow scikit-learn's HistGradientBoosting, so a user can swap the class name.
"""

from __future__ import annotations

import copy
import inspect
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval, RealNotInt, StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _num_samples, check_is_fitted, validate_data

from greedymiser.binning import MAX_BINS
from greedymiser.boosting import Callback, ProgressBar, Validation
from greedymiser.costs import CostModel, Feature, Ledger, Receipt
from greedymiser.engines import Floats
from greedymiser.losses import LambdaMART, Loss
from greedymiser.metrics import ndcg_depth, ndcg_score, queries_or_one
from greedymiser.parameters import Parameters
from greedymiser.preparation import (
    Checked,
    Given,
    HeldOut,
    Part,
    Prepared,
    Schema,
    check,
    learn_schema,
    note_part,
    prepare,
    read_categorical_features,
    read_costs,
    read_interaction_cst,
    read_monotonic_cst,
)
from greedymiser.serving import (
    Kind,
    Predictor,
    Stage,
    decisions,
    gives_probabilities,
    labels,
    probabilities,
)
from greedymiser.tables import (
    PLAIN_DTYPES,
    ArrayTable,
    Categories,
    Table,
    as_table,
    is_frame,
    refuse_dates,
    refuse_lazy,
    unmasked,
)
from greedymiser.targets import Classes
from greedymiser.threads import Threads, thread_count
from greedymiser.training import ENGINES, Model, Watch, blank_model, cheapest_useful, train
from greedymiser.trees import Ensemble, GrowingEnsemble

_Class = TypeVar("_Class", bound=type)


class BudgetWarning(UserWarning):
    """A budget is too small to buy anything useful."""


class Miser(BaseEstimator):
    """What the three estimators share. Subclasses say what the target means.

    Parameters
    ----------
    costs : CostModel, mapping from column name to cost, array of costs, or None
        What features cost. None means 1 for each, so that the cost of a model is the number of
        its features.
    tradeoff : float
        The paper's lambda: the drop in mean loss that a unit of cost must bring. 0 ignores costs.
    budget : float or None
        A hard limit on ``cost_``, trees included.
    loss : str or object
        See the estimator; or an object with ``values`` and ``gradients``, like those of
        ``greedymiser.losses``.
    step : {"newton", "gradient"}
        Trees fit the Newton step, or the negative gradient with plain means as in the paper.
    init : {"prior", "zero"}
        Start from the best constant, or from 0 as in the paper.
    learning_rate, max_iter, max_depth, max_leaf_nodes, min_samples_leaf, l2_regularization : \
            as in HistGradientBoosting
    max_bins : int
        Most bins of values per feature, at most 255.
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
    scoring : "loss", scorer name or callable
        What the validation data is scored with. A callable takes the model so far, X and y, and
        perhaps ``sample_weight``.
    warm_start : bool
        Continue from the previous fit. What was bought is not charged again.
    random_state : int, RandomState or None
        Sets validation data aside and draws the rows and features of each round. It is asked once,
        by the first fit: a continued fit draws as one longer fit would have drawn.
    verbose : int
        1 shows a progress bar.
    n_jobs : int or None
        Threads; None for all cores. The model does not depend on it.
    engine : {"auto", "cpu", "cuda"}
        Where training runs: on the cores of this machine, or on its GPU. The model is the same to
        the last bit. "auto" is "cpu".
    shopping_interval : int
        Features that are not owned yet are looked at, and bought, in rounds 0, k, 2k, ... only;
        the rounds between make do with what is owned, which is quicker. 1 is Algorithm 1. A
        round in which nothing that is owned pays goes shopping all the same.
    subsample : float
        Share of the rows that each round learns from, drawn anew; where there are queries, whole
        queries are drawn.
    max_features : float or int
        Share (float) or number (int) of the features not owned yet that each node may choose from,
        drawn anew for every node. Owned features are always in play.
    interaction_cst : {"pairwise", "no_interactions"}, sequence of sets of int or str, or None
        Features that may meet on the way from a root to a leaf: those of one set, by position or
        name. Features in no set may meet each other.

    Attributes
    ----------
    cost_ : float
        What one prediction costs (eq. 3): resources of all splits, and ``tree_cost`` per tree.
    features_used_ : list
        Features that the model needs, by name where there are names.
    resources_used_ : list of str
    n_iter_ : int
    feature_importances_ : array of shape (n_features,)
        Share of the total raw gain.
    train_score_, validation_score_ : arrays
        Entry i is the score after i rounds, entry 0 that of the constant model; rounds that were
        tried and not kept are there too. Training scores are negative losses. Without validation
        data, ``validation_score_`` is empty.
    stopped_ : str
        Why there are no more rounds: "max_iter", "early stopping", "budget", "nothing pays",
        "callback" or "interrupted".
    ensemble_ : Ensemble
    schema_ : Schema
        What was learned of the columns and the target.
    model_ : Model
        The trees and how they came about.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "costs": "no_validation",
        "tradeoff": [Interval(Real, 0, None, closed="left")],
        "budget": [Interval(Real, 0, np.inf, closed="both"), None],
        "loss": [str, HasMethods(["gradients"])],
        "step": [StrOptions({"newton", "gradient"})],
        "init": [StrOptions({"prior", "zero"})],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "max_depth": [Interval(Integral, 1, None, closed="left"), None],
        "max_leaf_nodes": [Interval(Integral, 2, None, closed="left"), None],
        "min_samples_leaf": [Interval(Integral, 1, None, closed="left")],
        "l2_regularization": [Interval(Real, 0, None, closed="left")],
        "max_bins": [Interval(Integral, 2, MAX_BINS, closed="both")],
        "categorical_features": ["array-like", StrOptions({"from_dtype"}), None],
        "monotonic_cst": ["array-like", dict, None],
        "early_stopping": [StrOptions({"auto"}), "boolean"],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
        "validation_fraction": [
            Interval(Real, 0, 1, closed="neither"),
            Interval(Integral, 1, None, closed="left"),
            None,
        ],
        "scoring": [str, callable, None],
        "warm_start": ["boolean"],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
        "n_jobs": [Integral, None],
        "engine": [StrOptions(set(ENGINES))],
        "shopping_interval": [Interval(Integral, 1, None, closed="left")],
        "subsample": [Interval(Real, 0, 1, closed="right")],
        "max_features": [
            Interval(RealNotInt, 0, 1, closed="right"),
            Interval(Integral, 1, None, closed="left"),
        ],
        "interaction_cst": [list, tuple, StrOptions({"pairwise", "no_interactions"}), None],
    }

    def __init__(
        self,
        costs: Any = None,
        tradeoff: float = 0.0,
        budget: float | None = None,
        loss: Any = "auto",
        step: str = "newton",
        init: str = "prior",
        learning_rate: float = 0.1,
        max_iter: int = 300,
        max_depth: int | None = 4,
        max_leaf_nodes: int | None = None,
        min_samples_leaf: int = 20,
        l2_regularization: float = 0.0,
        max_bins: int = MAX_BINS,
        categorical_features: Any = "from_dtype",
        monotonic_cst: Any = None,
        early_stopping: Any = "auto",
        n_iter_no_change: int = 10,
        validation_fraction: float | int | None = 0.1,
        scoring: Any = "loss",
        warm_start: bool = False,
        random_state: Any = None,
        verbose: int = 0,
        n_jobs: int | None = None,
        engine: str = "auto",
        shopping_interval: int = 1,
        subsample: float = 1.0,
        max_features: float | int = 1.0,
        interaction_cst: Any = None,
    ):
        self.costs = costs
        self.tradeoff = tradeoff
        self.budget = budget
        self.loss = loss
        self.step = step
        self.init = init
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.max_depth = max_depth
        self.max_leaf_nodes = max_leaf_nodes
        self.min_samples_leaf = min_samples_leaf
        self.l2_regularization = l2_regularization
        self.max_bins = max_bins
        self.categorical_features = categorical_features
        self.monotonic_cst = monotonic_cst
        self.early_stopping = early_stopping
        self.n_iter_no_change = n_iter_no_change
        self.validation_fraction = validation_fraction
        self.scoring = scoring
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose
        self.n_jobs = n_jobs
        self.engine = engine
        self.shopping_interval = shopping_interval
        self.subsample = subsample
        self.max_features = max_features
        self.interaction_cst = interaction_cst

    # -- fitting --------------------------------------------------------------------------------

    _kind: ClassVar[Kind]

    def _fit(self, given: Given, given_val: Given, callbacks: Sequence[Callback]) -> Self:
        """Work on a copy, and take it over in one step: a fit that fails leaves no trace."""
        callbacks = _checked_callbacks(callbacks)
        draft = copy.copy(self)
        with Threads(thread_count(self.n_jobs)) as threads:
            prepared = draft.prepare(given, given_val, threads)
            params = Parameters.of(self)
            start = draft.model_ if draft._is_continued() else blank_model(prepared, params)
            with _shown(self.verbose) as bar:
                watch = watch_with(draft, prepared.schema)
                model = train(prepared, params, start, watch, [*callbacks, *bar])
        fitted = fitted_like(draft, prepared.schema, model.truncated(model.best_iter))
        self.__dict__ = fitted.__dict__
        if model.stopped == "interrupted":
            raise KeyboardInterrupt
        if model.n_iter == 0:
            warn_of_budget(prepared, params, start)
        return self

    def prepare(self, given: Given, given_val: Given, threads: Threads) -> Prepared:
        """Check everything, learn what y and the columns mean, and place the rows to learn from.

        For those who train several models on the same data. The estimator learns the number and the
        names of the columns.
        """
        self._validate_params()
        _check_scoring(self)
        is_continued = self._is_continued()
        given = self.check_features(given, reset=not is_continued)
        given_val = self.check_features(given_val, reset=False, part="val")
        params, columns = Parameters.of(self), self._columns()
        if is_continued:
            learn = self._continuation(params)
        else:
            seed = check_random_state(self.random_state).randint(2**31)
            learn = learn_schema(params, self._kind, type(self).__name__, columns, seed)
        engine = ENGINES[self.engine](threads)
        prepared = prepare(params, learn, given, given_val, engine, threads)
        if is_continued:
            self._check_budget()
        return prepared

    def look_at(self, given: Given) -> None:
        """Raise what is wrong with some data, and learn nothing from it."""
        given = copy.copy(self).check_features(given, reset=True)
        names = None if not is_frame(given.X) else tuple(map(str, given.X.columns))
        learn_schema(Parameters.of(self), self._kind, type(self).__name__, names, 0)(check(given))

    def check_features(self, given: Given, reset: bool, part: Part | None = None) -> Given:
        """Check X as scikit-learn does; with ``reset``, learn the names of its columns."""
        if given.X is None and part is not None:
            return given
        try:
            X = self._check_features(given.X, reset)
            if given.y is None and part is None:
                raise ValueError(
                    f"This {type(self).__name__} estimator requires y to be passed, "
                    "but the target y is None."
                )
        except ValueError as error:
            if part is not None:
                note_part(error, part)
            raise
        return Given(X, given.y, given.weight, given.qid)

    def _check_features(self, X: Any, reset: bool) -> Any:
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

    # -- continued fits -------------------------------------------------------------------------

    def _is_continued(self) -> bool:
        return self.warm_start and "model_" in self.__dict__

    def _continuation(self, params: Parameters) -> Callable[[Checked], Schema]:
        """What is known stays; parameters that would change its meaning are refused."""
        known = self.schema_
        if params.max_iter < self.n_iter_:
            raise ValueError(
                f"max_iter={params.max_iter} must not be less than n_iter_={self.n_iter_} "
                "when warm_start=True"
            )

        def learn(checked: Checked) -> Schema:
            if read_costs(params, known.n_features, known.columns) != known.costs:
                raise _changed("costs", "its accounts are kept in the old ones")
            given = params.categorical_features
            found = read_categorical_features(given, checked.X, known.n_features, known.columns)
            if sorted(found) != sorted(known.categories):
                raise _changed("categorical_features", "its trees know other categories")
            if not _same_loss(known.target.loss(params.loss), known.loss):
                raise _changed("loss", "its trees were grown for another one")
            if read_monotonic_cst(params.monotonic_cst, known) != known.monotonic_cst:
                raise _changed("monotonic_cst", "its trees follow the old one")
            if read_interaction_cst(params.interaction_cst, known) != known.interactions:
                raise _changed("interaction_cst", "its trees follow the old one")
            return known

        return learn

    def _check_budget(self) -> None:
        if self.budget is not None and self.cost_ > self.budget:
            raise ValueError(
                f"budget={self.budget:g} is less than the {self.cost_:g} that the model costs "
                "before it is continued (warm_start=True); truncate it first"
            )

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

    def prediction_costs(self, X: Any) -> Floats:
        """What each row's prediction costs (eq. 3): here the same for all, ``cost_``."""
        return np.full(table_for(self, X).n_rows, self.cost_)

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
        )

    def truncate(self, n_iter: int) -> Self:
        """Return a copy that stops after ``n_iter`` rounds, and costs accordingly."""
        check_is_fitted(self, "model_")
        if not 0 <= operator.index(n_iter) <= self.n_iter_:
            raise ValueError(f"n_iter must lie between 0 and {self.n_iter_}, got {n_iter}")
        shorter = copy.copy(self)
        shorter.model_ = self.model_.truncated(n_iter)
        return shorter

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.target_tags.required = True
        return tags


def table_for(estimator: Miser, X: Any) -> Table:
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


def fitted_like(estimator: Miser, schema: Schema, model: Model) -> Miser:
    """A copy of an estimator that has this model, all rounds of it."""
    fitted = copy.copy(estimator)
    fitted.schema_, fitted.model_ = schema, model
    fitted.n_features_in_ = schema.n_features
    return fitted


# -- scores while training ------------------------------------------------------------------------


def watch_with(estimator: Miser, schema: Schema) -> Watch:
    """How an estimator's ``scoring`` scores rows that are held out."""
    if _scores_by_loss(estimator):
        return lambda held_out: Validation(held_out.rows, lambda: -held_out.rows.loss())
    known = _known_score(estimator, schema)

    def watch(held_out: HeldOut) -> Validation:
        rows, cases = held_out.rows, held_out.cases
        if known is None:
            return _recital(estimator, schema, held_out)
        score = known.bind(cases.y, cases.weight, cases.starts)
        return Validation(rows, lambda: score(rows.raw()))

    return watch


def works_in_kernels(estimator: Miser, schema: Schema) -> bool:
    """Whether an estimator trains and scores without calling anything of the user's."""
    loss = schema.loss
    if loss.formula is None and type(loss) is not LambdaMART:
        return False
    return _scores_by_loss(estimator) or _known_score(estimator, schema) is not None


def _scores_by_loss(estimator: Miser) -> bool:
    return estimator.scoring is None or estimator.scoring == "loss"


def _known_score(estimator: Miser, schema: Schema) -> Any:
    """The built-in score of an estimator's ``scoring``; None if only scikit-learn knows it."""
    # Here, since most programs that import the estimators never need them.
    from greedymiser.scores import known_score

    classes = schema.target.labels if isinstance(schema.target, Classes) else None
    return known_score(estimator.scoring, schema.kind, schema.loss, classes)


def _check_scoring(estimator: Miser) -> None:
    if _scores_by_loss(estimator):
        return
    scoring = estimator.scoring
    if estimator._kind == "ranker" and ndcg_depth(scoring) is not None:
        return
    from sklearn.metrics import check_scoring

    check_scoring(estimator, scoring)


def _recital(estimator: Miser, schema: Schema, held_out: HeldOut) -> Validation:
    """Scores by scikit-learn: it meets an ordinary estimator that knows these rows by heart."""
    from sklearn.metrics import check_scoring

    scorer = check_scoring(estimator, estimator.scoring)
    rows, cases = held_out.rows, held_out.cases
    X, y = cases.table.take(cases.rows), schema.target.decode(cases.y)
    weight = {}
    if cases.weight is not None and _accepts(scorer, "sample_weight"):
        weight = {"sample_weight": cases.weight}
    start = estimator.model_ if estimator._is_continued() else None
    baseline = rows.raw()[:, 0].copy() if start is None else start.ensemble.baseline
    grown = GrowingEnsemble(
        Ensemble.empty(baseline, schema.n_features) if start is None else start.ensemble
    )
    model = fitted_like(estimator, schema, start or Model(grown.ensemble()))

    def recite(asked: Any) -> Floats:
        return rows.raw().copy() if asked is X else type(estimator)._raw_predict(model, asked)

    def score() -> float:
        model.model_ = Model(grown.ensemble())
        return float(scorer(model, X, y, **weight))

    model.__dict__["_raw_predict"] = recite
    return Validation(rows, score, grown.add)


def _accepts(function: Callable[..., Any], argument: str) -> bool:
    parameters = inspect.signature(function).parameters
    return argument in parameters or any(p.kind == p.VAR_KEYWORD for p in parameters.values())


# -- checks and messages --------------------------------------------------------------------------


def _changed(parameter: str, why: str) -> ValueError:
    return ValueError(
        f"{parameter} has changed since the model was begun, and {why}; continue it "
        f"(warm_start=True) with the same {parameter}, or fit anew with warm_start=False"
    )


def _same_loss(new: Loss, known: Loss) -> bool:
    """Whether two losses mean the same; what one of them took from its data counts for both."""
    if new is known:
        return True
    if type(new) is not type(known):
        return False
    taken = {name for name, value in vars(new).items() if value is None}
    mine, theirs = (
        {name: value for name, value in vars(loss).items() if name not in taken}
        for loss in (new, known)
    )
    return bool(mine == theirs)


def warn_of_budget(prepared: Prepared, params: Parameters, start: Model) -> None:
    """If it was the budget that left a model without trees, say what it would have had to be."""
    found = None if params.budget is None else cheapest_useful(prepared, params, start)
    if found is None:
        return
    feature, price, bill = found
    trees = f" (with its trees, {bill:g})" if bill != price else ""
    warnings.warn(
        f"budget={params.budget:g} buys no useful feature, so the model is a constant; the "
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
    given = list(callbacks)
    for callback in given:
        if not callable(callback):
            raise TypeError(f"callbacks must be callables, got {callback!r}")
    return given


@contextmanager
def _shown(verbose: int) -> Iterator[list[Callback]]:
    """A progress bar, where one is wanted."""
    bar = ProgressBar() if verbose else None
    try:
        yield [] if bar is None else [bar]
    finally:
        if bar is not None:
            bar.close()


# -- the estimators -------------------------------------------------------------------------------


def documented_like(base: type) -> Callable[[_Class], _Class]:
    """Put what a base class says of parameters and attributes into a docstring."""

    def document(estimator: _Class) -> _Class:
        shared = (base.__doc__ or "").partition("\n\n")[2].rstrip()
        own, heading, examples = (estimator.__doc__ or "").partition("    Examples\n")
        text = f"{own.rstrip()}\n\n{shared}\n\n{heading}{examples}"
        estimator.__doc__ = text.rstrip() + "\n    "
        return estimator

    return document


@documented_like(Miser)
class MiserRegressor(RegressorMixin, Miser):
    """Boosted regression trees that pay for their features.

    ``loss`` is "squared_error" (the default), "absolute_error", "huber", "quantile", "poisson",
    "gamma", or a loss object such as ``greedymiser.losses.Huber(delta=2.0)``.

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
        sample_weight : array-like of shape (n,), optional
        X_val, y_val, sample_weight_val : optional
            Validation data; the round with the best score on it is kept.
        callbacks : sequence of callables
            Each is told of every round, and may stop the fit (see ``greedymiser.boosting``).
        """
        return self._fit(
            Given(X, y, sample_weight), Given(X_val, y_val, sample_weight_val), callbacks
        )

    def predict(self, X: Any) -> Floats:
        """Predict the target."""
        raw = self._raw_predict(X)
        return self.schema_.loss.response(raw[0])

    def staged_predict(self, X: Any) -> Iterator[Floats]:
        """Predictions after each round."""
        for raw in self._staged_raw_predict(X):
            yield self.schema_.loss.response(raw[0])


def _has_probabilities(classifier: Any) -> bool:
    """Whether the loss is one of ours, or has a response of its own."""
    return isinstance(classifier.loss, str) or gives_probabilities(classifier.loss)


@documented_like(Miser)
class MiserClassifier(ClassifierMixin, Miser):
    """Boosted classification trees that pay for their features.

    Two classes share one tree per round; with more, each class has its own, and a feature that one
    of them has bought is free for the others. ``loss`` is "log_loss" (the default) or a loss
    object of your own with ``n_outputs`` raw outputs and a ``response`` that gives probabilities:
    ``predict`` is the class that is likeliest by them. Without a ``response`` there is no
    ``predict_proba``, and ``predict`` is the class with the largest raw prediction (of two classes,
    the second if it is positive). Of equals it is the first class.

    ``class_weight`` (a dict, "balanced" or None) multiplies the weights of the rows to learn from,
    before any of them are set aside. "balanced" makes every class weigh the same.

    Examples
    --------
    >>> from greedymiser import MiserClassifier
    >>> from greedymiser.datasets import load_thyroid
    >>> data = load_thyroid()
    >>> model = MiserClassifier(costs=data.costs, tradeoff=1e-4, max_iter=50)
    >>> model.fit(data.X_train, data.y_train).cost_ < 60
    True
    """

    _kind = "classifier"

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **Miser._parameter_constraints,
        "class_weight": [dict, StrOptions({"balanced"}), None],
    }

    def __init__(
        self,
        costs: Any = None,
        tradeoff: float = 0.0,
        budget: float | None = None,
        loss: Any = "auto",
        step: str = "newton",
        init: str = "prior",
        learning_rate: float = 0.1,
        max_iter: int = 300,
        max_depth: int | None = 4,
        max_leaf_nodes: int | None = None,
        min_samples_leaf: int = 20,
        l2_regularization: float = 0.0,
        max_bins: int = MAX_BINS,
        categorical_features: Any = "from_dtype",
        monotonic_cst: Any = None,
        early_stopping: Any = "auto",
        n_iter_no_change: int = 10,
        validation_fraction: float | int | None = 0.1,
        scoring: Any = "loss",
        warm_start: bool = False,
        random_state: Any = None,
        verbose: int = 0,
        n_jobs: int | None = None,
        engine: str = "auto",
        class_weight: Any = None,
        shopping_interval: int = 1,
        subsample: float = 1.0,
        max_features: float | int = 1.0,
        interaction_cst: Any = None,
    ):
        super().__init__(
            costs, tradeoff, budget, loss, step, init, learning_rate, max_iter, max_depth,
            max_leaf_nodes, min_samples_leaf, l2_regularization, max_bins, categorical_features,
            monotonic_cst, early_stopping, n_iter_no_change, validation_fraction, scoring,
            warm_start, random_state, verbose, n_jobs, engine, shopping_interval, subsample,
            max_features, interaction_cst,
        )  # fmt: skip
        self.class_weight = class_weight

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
            Class labels, of any kind.
        sample_weight : array-like of shape (n,), optional
        X_val, y_val, sample_weight_val : optional
            Validation data; the round with the best score on it is kept.
        callbacks : sequence of callables
            Each is told of every round, and may stop the fit (see ``greedymiser.boosting``).
        """
        return self._fit(
            Given(X, y, sample_weight), Given(X_val, y_val, sample_weight_val), callbacks
        )

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict class labels."""
        return self._labels(self._raw_predict(X))

    @available_if(_has_probabilities)
    def predict_proba(self, X: Any) -> Floats:
        """Class probabilities, shape (n, n_classes)."""
        return self._probabilities(self._raw_predict(X))

    def decision_function(self, X: Any) -> Floats:
        """Raw predictions: log-odds of the second class (n,), or one column per class."""
        return decisions(self._raw_predict(X))

    def staged_predict(self, X: Any) -> Iterator[NDArray[Any]]:
        """Class labels after each round."""
        yield from map(self._labels, self._staged_raw_predict(X))

    @available_if(_has_probabilities)
    def staged_predict_proba(self, X: Any) -> Iterator[Floats]:
        """Class probabilities after each round."""
        yield from map(self._probabilities, self._staged_raw_predict(X))

    def staged_decision_function(self, X: Any) -> Iterator[Floats]:
        """Raw predictions after each round."""
        yield from map(decisions, self._staged_raw_predict(X))

    @property
    def classes_(self) -> NDArray[Any]:
        """Class labels, ascending."""
        target = self.schema_.target
        assert isinstance(target, Classes)
        return target.labels

    def _probabilities(self, raw: Floats) -> Floats:
        return probabilities(raw, self.schema_.loss, len(self.classes_))

    def _labels(self, raw: Floats) -> NDArray[Any]:
        return labels(raw, self.classes_, self.schema_.loss)


@documented_like(Miser)
class MiserRanker(Miser):
    """Boosted trees that rank the documents of a query and pay for their features.

    ``loss`` is "lambdamart" (the default), "squared_error" as in the paper, or a loss object such
    as ``greedymiser.losses.LambdaMART(truncation=10)``. ``scoring`` may also be "ndcg@5", or any
    other k; a query without any relevant document counts as 1 in it.
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
            Each is told of every round, and may stop the fit (see ``greedymiser.boosting``).
        """
        return self._fit(
            Given(X, y, sample_weight, qid),
            Given(X_val, y_val, sample_weight_val, qid_val),
            callbacks,
        )

    def predict(self, X: Any) -> Floats:
        """Scores; within a query, higher comes first."""
        return self._raw_predict(X)[0]

    def staged_predict(self, X: Any) -> Iterator[Floats]:
        """Scores after each round."""
        for raw in self._staged_raw_predict(X):
            yield raw[0]

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
