"""MiserRegressor, MiserClassifier, MiserRanker: validate, encode, delegate.

The parameters follow scikit-learn's HistGradientBoosting, so a user can swap the class name.
"""

from __future__ import annotations

import copy
import inspect
import math
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    _num_samples,
    assert_all_finite,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from greedymiser.binning import MAX_BINS, BinMapper, BinnedMatrix
from greedymiser.boosting import (
    Callback,
    History,
    Patience,
    ProgressBar,
    Validation,
    boost,
)
from greedymiser.costs import (
    CostModel,
    Feature,
    Ledger,
    Purchase,
    Receipt,
    as_cost_model,
    positions,
)
from greedymiser.engines import Engine, Floats, PlacedRows, SplitRules
from greedymiser.engines import Sample as EngineSample
from greedymiser.engines.cpu import CpuEngine
from greedymiser.growing import Grower, GrowerParams
from greedymiser.losses import (
    REGRESSION_LOSSES,
    BinaryLogLoss,
    LambdaMART,
    Loss,
    MultinomialLogLoss,
    SquaredError,
    as_loss,
)
from greedymiser.metrics import ndcg_depth, ndcg_score, queries_or_one, query_order
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
    Rows,
    Table,
    as_table,
    categorical_columns,
    is_frame,
    learn_categories,
    refuse_dates,
    refuse_lazy,
    unmasked,
)
from greedymiser.threads import Threads, thread_count
from greedymiser.trees import Ensemble, Tree, stack_trees

_Class = TypeVar("_Class", bound=type)

ENGINES: dict[str, Callable[[Threads], Engine]] = {"auto": CpuEngine, "cpu": CpuEngine}

# HistGradientBoosting's floor for the Hessian of a child, per unit of mean weight.
MIN_HESSIAN = 1e-3


Part = Literal["val", "test"]
"""Data beside that which is learned from, as arguments are named after it: ``X_val``."""


class BudgetWarning(UserWarning):
    """A budget is too small to buy anything useful."""


@dataclass(frozen=True)
class Sample:
    """X, y and what goes with them, in the user's terms."""

    X: Any
    y: Any
    weight: Any
    qid: Any = None
    # Once checked: the rows of X that y, weight and qid are about.
    rows: Rows = None


@dataclass(frozen=True)
class _Data:
    """Some rows of a table and what goes with them, in the loss's terms."""

    table: Table
    # None for all rows, in their order.
    rows: Rows
    y: Floats
    weight: Floats | None
    # Where each query starts; None if all rows are one query.
    starts: NDArray[np.intp] | None = None

    def take(self, chosen: NDArray[np.intp]) -> _Data:
        rows = chosen if self.rows is None else self.rows[chosen]
        weight = None if self.weight is None else self.weight[chosen]
        return _Data(self.table, rows, self.y[chosen], weight)

    def by_query(self, qid: NDArray[Any]) -> _Data:
        """The same rows, those of each query together."""
        order, starts = query_order(qid)
        return replace(self.take(order), starts=starts)

    def take_queries(self, queries: NDArray[np.intp]) -> _Data:
        assert self.starts is not None
        sizes = np.diff(self.starts)[queries]
        chosen = np.concatenate([np.arange(*self.starts[q : q + 2]) for q in queries])
        return replace(self.take(chosen), starts=np.append(0, np.cumsum(sizes)))

    def told(self, loss: Loss) -> Loss:
        """The loss, told where the queries are if it asks."""
        if self.starts is None or not hasattr(loss, "over"):
            return loss
        return loss.over(self.starts)

    @property
    def qid(self) -> NDArray[np.intp]:
        if self.starts is None:
            return np.zeros(len(self.y), dtype=np.intp)
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))


@dataclass(frozen=True)
class Checked:
    """Data to score models with, and its bins."""

    data: _Data
    binned: BinnedMatrix


@dataclass(frozen=True)
class Prepared:
    """Data that is ready to learn from: models that differ in their trade-off can share it."""

    train: _Data
    binned: BinnedMatrix
    held_out: Checked | None
    # Whether to stop when the score no longer improves.
    patient: bool
    mapper: BinMapper


class _Scores(NamedTuple):
    """Scores of a model before boosting goes on; higher is better."""

    train: float
    # None without validation data.
    validation: float | None

    @classmethod
    def at_start(cls, rows: PlacedRows, y: Floats, validation: Validation | None) -> _Scores:
        with np.errstate(over="ignore"):
            loss = rows.loss()
        if not math.isfinite(loss):
            most = np.abs(y).max()
            raise ValueError(
                f"the loss of the first model is {loss}; y reaches {most:g} and may need rescaling"
            )
        return cls(-loss, None if validation is None else validation.score())


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
        Only used to set validation data aside.
    verbose : int
        1 shows a progress bar.
    n_jobs : int or None
        Threads; None for all cores. The model does not depend on it.
    engine : {"auto", "cpu"}
        Where training runs.

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

    # -- what subclasses say --------------------------------------------------------------------

    _kind: ClassVar[Kind]

    def _learn(self, sample: Sample) -> None:
        """Learn from the rows that count what their entries mean."""
        columns = self._categorical_columns(sample.X)
        self.categories_ = learn_categories(sample.X, columns, sample.rows, self.max_bins)
        # Kept, so that a continued fit sets the same rows aside.
        self._seed = check_random_state(self.random_state).randint(2**31)

    def _encode_target(self, y: NDArray[Any]) -> Floats:
        """Check y and turn it into numbers that the loss understands."""
        return _finite_target(self, y)

    def _decode_target(self, y: Floats) -> NDArray[Any]:
        """Do the inverse of ``_encode_target``."""
        return y

    def _weigh(self, train: _Data) -> _Data:
        """Give the training rows the weight that their targets deserve."""
        return train

    def _strata(self, y: Floats) -> Floats:
        """Labels to keep in proportion when validation data is set aside."""
        return np.zeros(len(y))

    def _make_loss(self) -> Loss:
        raise NotImplementedError

    # -- fitting --------------------------------------------------------------------------------

    def _fit(self, sample: Sample, sample_val: Sample, callbacks: Sequence[Callback]) -> Self:
        callbacks = _checked_callbacks(callbacks)
        with Threads(thread_count(self.n_jobs)) as threads:
            prepared = self._prepare(sample, sample_val, threads)
            self._best_iter = self.n_iter_
            try:
                self._boost(prepared, threads, callbacks)
            finally:  # an interruption keeps the best of the rounds that were finished
                self._shorten(self._best_iter)
        return self

    def _prepare(self, sample: Sample, sample_val: Sample, threads: Threads) -> Prepared:
        """Check everything, learn what y and the columns mean, and bin the rows to learn from."""
        self._validate_params()
        self._check_scoring()
        continued = self.warm_start and hasattr(self, "ensemble_")
        sample = self._check(sample, reset=not continued)
        if not continued:
            self._learn(sample)
        loss = self._make_loss()
        self._check_outputs(loss)
        if continued:
            self._check_continuation()
        train = self._weigh(self._encode(sample, loss))
        _check_scale(train.weight)
        held_out = self._held_out(sample_val, loss)
        check_same_queries(sample, sample_val)
        patient = self._is_patient(train, held_out)
        if patient and held_out is None and self.validation_fraction is not None:
            train, held_out = self._set_aside(train)
            loss.check_target(train.y)
        self.costs_, self._loss = self._read_costs(), loss
        self._monotonic_constraints()
        if continued:
            self._check_budget()
        mapper = self._mapper()
        binned = mapper.fit_transform(train.table, train.rows, train.weight, threads)
        checked = None
        if held_out is not None:
            checked = Checked(held_out, mapper.transform(held_out.table, held_out.rows, threads))
        if not continued:
            self._start(train)  # last: a fit that fails before leaves no model behind
        return Prepared(train, binned, checked, patient, mapper)

    def _read_costs(self) -> CostModel:
        costs = as_cost_model(self.costs, self.n_features_in_, self._columns())
        dearest = float(costs.prices().max())
        if math.isinf(self.tradeoff * dearest):
            raise ValueError(f"tradeoff={self.tradeoff} times a price of {dearest} overflows")
        return costs

    def _check_continuation(self) -> None:
        if self.max_iter < self.n_iter_:
            raise ValueError(
                f"max_iter={self.max_iter} must not be less than n_iter_={self.n_iter_} "
                "when warm_start=True"
            )

    def _check_outputs(self, loss: Loss) -> None:
        """One raw prediction per row is what most targets need."""
        if loss.n_outputs != 1:
            raise ValueError(
                f"{type(self).__name__} needs a loss with one output, got {loss.n_outputs}"
            )

    def _check_budget(self) -> None:
        if self.budget is not None and self.cost_ > self.budget:
            raise ValueError(
                f"budget={self.budget:g} is less than the {self.cost_:g} that the model costs "
                "before it is continued (warm_start=True); truncate it first"
            )

    def _start(self, train: _Data) -> None:
        """Begin with a model that has no trees."""
        baseline = np.zeros(self._loss.n_outputs)
        if self.init == "prior":
            baseline = self._loss.prior(train.y, train.weight)
        self.ensemble_ = Ensemble.empty(baseline, self.n_features_in_)
        self._purchases: list[Purchase] = []
        self.train_score_ = self.validation_score_ = np.empty(0)

    def _boost(
        self, prepared: Prepared, threads: Threads, callbacks: Sequence[Callback] = ()
    ) -> None:
        """Add rounds to the model, all of them; ``_best_iter`` says how many are worth keeping."""
        grower = self._grower(prepared, threads)
        validation = None
        if prepared.held_out is not None:
            validation = self._validation(prepared.held_out, threads)
        scores = _Scores.at_start(grower.rows, prepared.train.y, validation)
        history = History(features=set(self.ensemble_.features))
        bar = [ProgressBar()] if self.verbose else []
        try:
            boost(
                grower,
                self._loss,
                validation,
                history,
                first=self.n_iter_,
                max_iter=self.max_iter,
                patience=Patience(self.n_iter_no_change if prepared.patient else None),
                callbacks=[*callbacks, *bar],
            )
        except BaseException:
            history.stopped = "interrupted"
            raise
        finally:  # an interruption keeps the rounds that were finished
            for shown in bar:
                shown.close()
            self._keep(history, scores)
        if self.budget is not None and self.n_iter_ == 0:
            self._warn_of_budget(self.budget, grower)

    def _mapper(self) -> BinMapper:
        # Features that are skipped together lie together: the dear ones behind the cheap ones.
        order = np.argsort(self.costs_.prices(), kind="stable")
        sizes = {column: len(known) for column, known in self.categories_.items()}
        return BinMapper(self.max_bins, sizes, order.tolist())

    def _grower(self, prepared: Prepared, threads: Threads) -> Grower:
        params = self._grower_params(prepared.train)
        rows = self._placed(Checked(prepared.train, prepared.binned), threads)
        ledger = Ledger(self.costs_, self.ensemble_.features)
        categorical = np.array(list(self.categories_), dtype=np.intp)
        return Grower(rows, ledger, prepared.mapper.cuts.thresholds, categorical, params)

    def _placed(self, checked: Checked, threads: Threads) -> PlacedRows:
        data = checked.data
        sample = EngineSample(checked.binned, data.y, data.weight, data.told(self._loss))
        rows = ENGINES[self.engine](threads).place(sample)
        rows.start(self._raw_of(data, threads))
        return rows

    def _grower_params(self, train: _Data) -> GrowerParams:
        n = len(train.y)
        # fsum, so that the order of the rows does not matter.
        total = float(n) if train.weight is None else math.fsum(train.weight)
        rules = SplitRules(
            min_samples_leaf=self.min_samples_leaf,
            min_hessian=MIN_HESSIAN * total / n,
            l2_regularization=float(self.l2_regularization),
            bound_gains=self.tradeoff > 0,
            monotonic_cst=self._monotonic_constraints(),
        )
        return GrowerParams(
            rules=rules,
            tradeoff=float(self.tradeoff),
            budget=self.budget,
            total_weight=total,
            learning_rate=float(self.learning_rate),
            max_depth=self.max_depth,
            max_leaf_nodes=self.max_leaf_nodes,
            step=self.step,
        )

    def _raw_of(self, data: _Data, threads: Threads) -> Floats:
        """Raw predictions of the model so far, for the chosen rows."""
        if self.n_iter_ == 0:
            return np.repeat(self.ensemble_.baseline[:, None], len(data.y), axis=1)
        raw = self.ensemble_.raw_predict(data.table, threads)
        return raw if data.rows is None else np.ascontiguousarray(raw[:, data.rows])

    def _keep(self, history: History, scores: _Scores) -> None:
        """Take over what boosting made, and see which of its rounds is the best."""
        first, n = self.n_iter_, len(history.rounds)
        self.ensemble_ = self.ensemble_.extended(stack_trees(history.rounds))
        # An interruption may have left half a round behind.
        bought = [line for line in history.purchases if line.iteration < first + n]
        self._purchases = [*self._purchases, *bought]
        losses = [scores.train, *(-loss for loss in history.train_loss[:n])]
        self.train_score_ = _spliced(self.train_score_, first, losses)
        self.stopped_ = history.stopped
        self._best_iter = self.n_iter_
        if scores.validation is None:
            self.validation_score_ = np.empty(0)
            return
        tried = [scores.validation, *history.validation_score[:n]]
        self.validation_score_ = _spliced(self.validation_score_, first, tried)
        # A score that is not a number is no reason to buy anything.
        self._best_iter = first + int(np.argmax(np.nan_to_num(tried, nan=-np.inf)))

    def _shorten(self, n_iter: int) -> None:
        self.ensemble_ = self.ensemble_.truncated(n_iter)
        self._purchases = [line for line in self._purchases if line.iteration < n_iter]

    def _root_gains(self, grower: Grower) -> Floats:
        """Raw gain of each feature's best split of all rows, of the output where it is largest."""
        return np.max([grower.root_gains(k) for k in range(self._loss.n_outputs)], axis=0)

    def _warn_of_budget(self, budget: float, grower: Grower) -> None:
        """Say what the cheapest useful feature would have cost."""
        gains = self._root_gains(grower)
        useful = np.flatnonzero(gains > grower.params.tradeoff * grower.ledger.prices).tolist()
        n_trees = self._loss.n_outputs
        bills = {f: grower.ledger.total(n_trees, with_feature=f) for f in useful}
        cheapest = min(useful, key=bills.__getitem__, default=None)
        if cheapest is None or bills[cheapest] <= budget:
            return  # the budget is not to blame
        price = grower.ledger.prices[cheapest]
        trees = f" (with its trees, {bills[cheapest]:g})" if bills[cheapest] != price else ""
        warnings.warn(
            f"budget={budget:g} buys no useful feature, so the model is a constant; "
            f"the cheapest useful feature is {self._name(cheapest)!r} and costs {price:g}{trees}",
            BudgetWarning,
            stacklevel=5,
        )

    # -- data -----------------------------------------------------------------------------------

    def _check(self, sample: Sample, reset: bool) -> Sample:
        """Check the shapes, and leave out the rows of weight 0: they are as good as not there."""
        X = self._check_features(sample.X, reset)
        if sample.y is None:
            raise ValueError(
                f"This {type(self).__name__} estimator requires y to be passed, "
                "but the target y is None."
            )
        y = column_or_1d(sample.y, warn=True)
        check_consistent_length(X, y)
        weight = _check_weight(sample.weight, X)
        qid = _check_qid(sample.qid, X)
        rows = None
        if weight is not None and not weight.all():
            rows = np.flatnonzero(weight)
            y, weight, qid = y[rows], weight[rows], None if qid is None else qid[rows]
        if weight is not None and (weight == 1).all():
            weight = None  # which is faster
        return Sample(X, y, weight, qid, rows)

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

    def _encode(self, sample: Sample, loss: Loss) -> _Data:
        """From the user's terms to the loss's: categories and labels become numbers."""
        table = as_table(sample.X, self.categories_)
        data = _Data(table, sample.rows, self._encode_target(sample.y), sample.weight)
        loss.check_target(data.y)
        return data if sample.qid is None else data.by_query(sample.qid)

    def _held_out(self, sample: Sample, loss: Loss, part: Part = "val") -> _Data | None:
        """Validation or test data that the user gave."""
        if sample.X is None and sample.y is None:
            if sample.weight is not None or sample.qid is not None:
                raise ValueError(f"sample_weight_{part} and qid_{part} need X_{part} and y_{part}")
            return None
        if sample.X is None or sample.y is None:
            missing = "X" if sample.X is None else "y"
            raise ValueError(
                f"X_{part} and y_{part} must be given together, but {missing}_{part} is missing"
            )
        try:
            return self._encode(self._check(sample, reset=False), loss)
        except ValueError as error:
            what = "validation" if part == "val" else part
            error.add_note(f"This is about the {what} data (X_{part}, y_{part}, ...).")
            raise

    def _is_patient(self, train: _Data, held_out: _Data | None) -> bool:
        """Whether to stop when the score no longer improves."""
        if isinstance(self.early_stopping, str):  # "auto"
            return held_out is not None or len(train.y) > 10_000
        return bool(self.early_stopping)

    def _set_aside(self, data: _Data) -> tuple[_Data, _Data]:
        """Divide data into a part to learn from and a part to validate with: rows, or queries."""
        share, seed = self.validation_fraction, np.random.RandomState(self._seed)
        assert share is not None
        if data.starts is None:
            learn, check = _divide(self._strata(data.y), share, seed, "rows")
            return data.take(learn), data.take(check)
        learn, check = _divide(np.zeros(len(data.starts) - 1), share, seed, "queries")
        return data.take_queries(learn), data.take_queries(check)

    def _categorical_columns(self, X: Any) -> list[int]:
        given = self.categorical_features
        if given is None:
            return []
        if isinstance(given, str):  # "from_dtype"
            return categorical_columns(X) if is_frame(X) else []
        given = np.asarray(given)
        if given.dtype == bool or given.ndim != 1:
            self._check_one_per_feature("categorical_features", given)
            return np.flatnonzero(given).tolist()
        named = positions(self._columns() or ())
        return sorted({self._position(f, "categorical_features", named) for f in given.tolist()})

    def _monotonic_constraints(self) -> tuple[int, ...] | None:
        given = self.monotonic_cst
        if given is None:
            return None
        values = np.zeros(self.n_features_in_, dtype=object)
        if isinstance(given, dict):
            named = positions(self._columns() or ())
            for feature, direction in given.items():
                values[self._position(feature, "monotonic_cst", named)] = direction
        else:
            self._check_one_per_feature("monotonic_cst", np.asarray(given))
            values[:] = np.asarray(given).tolist()
        bad = [value for value in values if value not in (-1, 0, 1)]
        if bad:
            raise ValueError(f"monotonic_cst must hold only -1, 0 and 1, got {bad[0]!r}")
        both = [f for f in self.categories_ if values[f] != 0]
        if both:
            raise ValueError(
                f"monotonic_cst has {values[both[0]]} for {self._name(both[0])!r}, "
                "which is a categorical feature"
            )
        if any(values) and self._loss.n_outputs > 1:
            raise ValueError(
                "monotonic_cst is not supported for more than two classes: "
                "their probabilities compete"
            )
        return tuple(int(v) for v in values) if any(values) else None

    def _check_one_per_feature(self, argument: str, values: NDArray[Any]) -> None:
        if values.shape != (self.n_features_in_,):
            raise ValueError(
                f"{argument} has shape {values.shape}, but X has {self.n_features_in_} features"
            )

    def _columns(self) -> list[str] | None:
        names = getattr(self, "feature_names_in_", None)
        return None if names is None else list(names)

    def _position(self, feature: Any, argument: str, named: dict[str, int]) -> int:
        if isinstance(feature, str):
            if feature not in named:
                raise ValueError(f"{argument} names {feature!r}, which is not a column of X")
            return named[feature]
        position = int(feature) if isinstance(feature, Integral) else -1
        if not 0 <= position < self.n_features_in_:
            raise ValueError(
                f"{argument} has {feature!r}, but X has {self.n_features_in_} features"
            )
        return position

    # -- validation -----------------------------------------------------------------------------

    def _check_scoring(self) -> None:
        if self.scoring is not None and self.scoring != "loss":
            from sklearn.metrics import check_scoring

            check_scoring(self, self.scoring)

    def _validation(self, checked: Checked, threads: Threads) -> Validation:
        rows = self._placed(checked, threads)
        grown: list[Tree] = []
        return Validation(rows, self._scorer(checked.data, rows.raw(), grown), grown.append)

    def _scorer(self, data: _Data, raw: Floats, grown: list[Tree]) -> Callable[[], float]:
        """Score of the validation rows at their present raw predictions; higher is better."""
        if self.scoring is None or self.scoring == "loss":
            loss = data.told(self._loss)
            seen = raw if loss.n_outputs > 1 else raw[0]
            return lambda: -loss.value(data.y, seen, data.weight)
        return self._sklearn_scorer(data, raw, grown)

    def _sklearn_scorer(self, data: _Data, raw: Floats, grown: list[Tree]) -> Callable[[], float]:
        from sklearn.metrics import check_scoring

        scorer = check_scoring(self, self.scoring)
        X, y = data.table.take(data.rows), self._decode_target(data.y)
        weight = {}
        if data.weight is not None and _accepts(scorer, "sample_weight"):
            weight = {"sample_weight": data.weight}
        # The scorer meets an ordinary estimator that happens to know these rows by heart.
        model = copy.copy(self)

        def recite(asked: Any) -> Floats:
            return raw.copy() if asked is X else type(self)._raw_predict(model, asked)

        def score() -> float:
            model.ensemble_ = model.ensemble_.extended(grown)
            grown.clear()
            return float(scorer(model, X, y, **weight))

        model.__dict__["_raw_predict"] = recite
        return score

    # -- prediction -----------------------------------------------------------------------------

    def _raw_predict(self, X: Any) -> Floats:
        """Raw predictions, shape (n_outputs, n)."""
        table = self._table(X)
        with Threads(thread_count(self.n_jobs)) as threads:
            return self.ensemble_.raw_predict(table, threads)

    def _staged_raw_predict(self, X: Any) -> Iterator[Floats]:
        table = self._table(X)
        with Threads(thread_count(self.n_jobs)) as threads:
            yield from self.ensemble_.staged_raw_predict(table, threads)

    def _table(self, X: Any) -> Table:
        if (
            type(X) is np.ndarray
            and X.dtype in PLAIN_DTYPES
            and X.ndim == 2
            and len(X) > 0
            and "ensemble_" in self.__dict__
            and "feature_names_in_" not in self.__dict__
            and X.shape[1] == self.n_features_in_
        ):
            return ArrayTable(X, self.categories_)  # nothing to check: the way for single rows
        check_is_fitted(self, "ensemble_")
        return as_table(self._check_features(X, reset=False), self.categories_)

    def prediction_costs(self, X: Any) -> Floats:
        """What each row's prediction costs (eq. 3): here the same for all, ``cost_``."""
        return np.full(self._table(X).n_rows, self.cost_)

    # -- accounts -------------------------------------------------------------------------------

    @property
    def n_iter_(self) -> int:
        return self.ensemble_.n_iter

    @property
    def cost_(self) -> float:
        return self.costs_.total(self.ensemble_.features, self.ensemble_.n_trees)

    @property
    def features_used_(self) -> list[Feature]:
        names = self._names()
        return [feature if names is None else names[feature] for feature in self.ensemble_.features]

    @property
    def resources_used_(self) -> list[str]:
        return Ledger(self.costs_, self.ensemble_.features).resources

    @property
    def feature_importances_(self) -> Floats:
        gains = self.ensemble_.importances()
        return gains / gains.sum() if gains.any() else np.zeros(self.n_features_in_)

    def _names(self) -> list[str] | None:
        """Names of the features where X or the costs have names."""
        names = self._columns()
        if names is None and hasattr(self, "costs_"):
            names = self.costs_.feature_names
        return names

    def _name(self, feature: int) -> Feature:
        """Name of a feature where there are names, else its position."""
        names = self._names()
        return feature if names is None else names[feature]

    def receipt(self) -> Receipt:
        """What was bought, when, at what price."""
        check_is_fitted(self, "ensemble_")
        return Receipt(self._purchases)

    @property
    def predictor_(self) -> Predictor:
        """The finished model, for serving: it knows nothing of training."""
        ensemble = self.ensemble_
        names = self._columns()
        return Predictor(
            kind=self._kind,
            stages=(Stage(ensemble, 0, ensemble.n_iter, ensemble.n_trees),),
            rule=None,
            costs=self.costs_,
            loss=self._loss,
            n_features=self.n_features_in_,
            classes=getattr(self, "classes_", None),
            categories=self.categories_,
            feature_names=None if names is None else tuple(names),
            purchases=tuple(self._purchases),
            n_jobs=self.n_jobs,
        )

    def truncate(self, n_iter: int) -> Self:
        """Return a copy that stops after ``n_iter`` rounds, and costs accordingly."""
        check_is_fitted(self, "ensemble_")
        if not 0 <= operator.index(n_iter) <= self.n_iter_:
            raise ValueError(f"n_iter must lie between 0 and {self.n_iter_}, got {n_iter}")
        shorter = copy.copy(self)
        shorter._shorten(n_iter)
        return shorter

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.target_tags.required = True
        return tags


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
            Sample(X, y, sample_weight), Sample(X_val, y_val, sample_weight_val), callbacks
        )

    def predict(self, X: Any) -> Floats:
        """Predict the target."""
        raw = self._raw_predict(X)
        return self._loss.response(raw[0])

    def staged_predict(self, X: Any) -> Iterator[Floats]:
        """Predictions after each round."""
        for raw in self._staged_raw_predict(X):
            yield self._loss.response(raw[0])

    def _make_loss(self) -> Loss:
        return _named_loss(self.loss, REGRESSION_LOSSES, "squared_error")


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
    ):
        super().__init__(
            costs, tradeoff, budget, loss, step, init, learning_rate, max_iter, max_depth,
            max_leaf_nodes, min_samples_leaf, l2_regularization, max_bins, categorical_features,
            monotonic_cst, early_stopping, n_iter_no_change, validation_fraction, scoring,
            warm_start, random_state, verbose, n_jobs, engine,
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
            Sample(X, y, sample_weight), Sample(X_val, y_val, sample_weight_val), callbacks
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

    def _probabilities(self, raw: Floats) -> Floats:
        return probabilities(raw, self._loss, len(self.classes_))

    def _labels(self, raw: Floats) -> NDArray[Any]:
        return labels(raw, self.classes_, self._loss)

    def _learn(self, sample: Sample) -> None:
        if sample.y.dtype.kind in "fO":
            assert_all_finite(sample.y, input_name="y")
        self.classes_ = _sorted_labels(sample.y)
        check_classification_targets(sample.y)
        if len(self.classes_) < 2:
            raise ValueError(
                f"{type(self).__name__} needs at least two classes, but y has only one class: "
                f"{self.classes_.tolist()[0]!r}"
            )
        super()._learn(sample)

    def _encode_target(self, y: NDArray[Any]) -> Floats:
        code_of = {label: code for code, label in enumerate(self.classes_.tolist())}
        codes = np.array([code_of.get(label, -1) for label in y.tolist()], dtype=np.float64)
        if codes.min() < 0:
            unknown = y[np.argmin(codes)]
            raise ValueError(
                f"y has a class that the model does not know: {unknown} is not one of "
                f"{list(code_of)}"
            )
        return codes

    def _decode_target(self, y: Floats) -> NDArray[Any]:
        return self.classes_[y.astype(np.intp)]

    def _weigh(self, train: _Data) -> _Data:
        if self.class_weight is None:
            return train
        factor = self._class_factors(train)[train.y.astype(np.intp)]
        return replace(train, weight=factor if train.weight is None else factor * train.weight)

    def _class_factors(self, train: _Data) -> Floats:
        """What the weights of each class are multiplied with."""
        if isinstance(self.class_weight, str):  # "balanced": every class weighs the same
            weight = np.ones(len(train.y)) if train.weight is None else train.weight
            # fsum, so that the order of the rows does not matter.
            masses = np.array([math.fsum(weight[train.y == k]) for k in range(len(self.classes_))])
            return math.fsum(weight) / (len(masses) * masses)
        labels = self._decode_target(train.y)
        factors = compute_class_weight(self.class_weight, classes=self.classes_, y=labels)
        if not (factors > 0).all() or not np.isfinite(factors).all():
            raise ValueError(f"class_weight must be positive, got {self.class_weight}")
        return factors

    def _strata(self, y: Floats) -> Floats:
        return y

    def _check_outputs(self, loss: Loss) -> None:
        needed = 1 if len(self.classes_) == 2 else len(self.classes_)
        if loss.n_outputs != needed:
            raise ValueError(
                f"{len(self.classes_)} classes need a loss with n_outputs={needed}, "
                f"got {loss.n_outputs}"
            )
        if gives_probabilities(loss):  # asked for now, and not when everything is trained
            probabilities(np.zeros((needed, 1)), loss, len(self.classes_))

    def _make_loss(self) -> Loss:
        if not isinstance(self.loss, str):
            return as_loss(self.loss)
        if self.loss not in ("auto", "log_loss"):
            raise _unknown_loss(self.loss, ["log_loss"])
        n_classes = len(self.classes_)
        return BinaryLogLoss() if n_classes == 2 else MultinomialLogLoss(n_classes)


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
            Sample(X, y, sample_weight, qid),
            Sample(X_val, y_val, sample_weight_val, qid_val),
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

    def _make_loss(self) -> Loss:
        known: dict[str, type[Loss]] = {"lambdamart": LambdaMART, "squared_error": SquaredError}
        return _named_loss(self.loss, known, "lambdamart")

    def _check_scoring(self) -> None:
        if ndcg_depth(self.scoring) is None:
            super()._check_scoring()

    def _scorer(self, data: _Data, raw: Floats, grown: list[Tree]) -> Callable[[], float]:
        k = ndcg_depth(self.scoring)
        if k is None:
            return super()._scorer(data, raw, grown)
        return lambda: ndcg_score(data.y, raw[0], data.qid, k=k, sample_weight=data.weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


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


def check_same_queries(sample: Sample, other: Sample, part: Part = "val") -> None:
    """Queries on one side only would make the other side one giant query."""
    if other.X is not None and (sample.qid is None) != (other.qid is None):
        there, missing = f"qid_{part}", "qid"
        if sample.qid is not None:
            there, missing = missing, there
        raise ValueError(
            f"both sides need queries, but there is only {there}: {missing} is missing"
        )


def _named_loss(loss: Any, known: dict[str, type[Loss]], default: str) -> Loss:
    if not isinstance(loss, str):
        return as_loss(loss)
    name = default if loss == "auto" else loss
    if name not in known:
        raise _unknown_loss(loss, list(known))
    return known[name]()


def _unknown_loss(loss: str, known: list[str]) -> ValueError:
    return ValueError(f"loss={loss!r} is unknown; choose from {known} or pass a loss object")


def _finite_target(estimator: Miser, y: NDArray[Any]) -> Floats:
    try:
        if y.dtype.kind in "USc":  # NumPy would read strings, and drop imaginary parts
            raise TypeError
        numbers = np.array(y, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            f"{type(estimator).__name__} needs a numeric y, got {y[:1].tolist()[0]!r}"
        ) from None
    assert_all_finite(numbers, input_name="y")
    return numbers


def _sorted_labels(y: NDArray[Any]) -> NDArray[Any]:
    try:
        return np.unique(y)
    except TypeError:
        kinds = sorted({type(label).__name__ for label in y.tolist()})
        raise TypeError(
            f"y mixes labels of different types, which have no order: {kinds}"
        ) from None


def _check_weight(sample_weight: Any, X: Any) -> Floats | None:
    if sample_weight is None:
        return None
    weight = _check_sample_weight(sample_weight, X, dtype=np.float64, copy=True)
    if weight.min() < 0:
        raise ValueError(f"sample_weight must not be negative, got {weight.min():g}")
    if not weight.any():
        raise ValueError("sample_weight must not be 0 for every row")
    return weight


def _check_scale(weight: Floats | None) -> None:
    """Refuse weights whose squares would overflow, or vanish."""
    if weight is not None and not 1e-100 < weight.max() < 1e100:
        raise ValueError(
            f"the largest weight is {weight.max():g}, and must lie between 1e-100 and 1e100; "
            "scale sample_weight: only ratios of weights matter"
        )


def _check_qid(qid: Any, X: Any) -> NDArray[Any] | None:
    if qid is None:
        return None
    qid = np.asarray(qid)
    if qid.shape != (_num_samples(X),):
        raise ValueError(f"qid has shape {qid.shape}, but X has {_num_samples(X)} rows")
    if qid.dtype.kind == "f":
        assert_all_finite(qid, input_name="qid")
    return qid


def _divide(
    strata: Floats, share: float | int, rng: np.random.RandomState, what: str
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Positions to learn from, and a random share of all to check with, even over the strata."""
    n = len(strata)
    shuffled = rng.permutation(n)
    ordered = shuffled[np.argsort(strata[shuffled], kind="stable")]
    # One of each stratum is kept to learn from: there must be no class that nobody has seen.
    spare = ordered[np.append(False, np.diff(strata[ordered]) == 0)]
    size = int(share) if isinstance(share, Integral) else math.ceil(share * n)
    if size > len(spare):
        raise ValueError(
            f"validation_fraction={share} asks to set {size} of {n} {what} aside for early "
            f"stopping, but only {len(spare)} can be spared; pass X_val and y_val instead, or set "
            "early_stopping=False or validation_fraction=None"
        )
    every = (np.arange(size) + rng.uniform()) * len(spare) / size
    check = spare[every.astype(np.intp)]
    return np.setdiff1d(np.arange(n), check), np.sort(check)


def _spliced(scores: Floats, first: int, new: Sequence[float]) -> Floats:
    """Scores by round, with new ones from round ``first`` on; NaN for rounds without any."""
    before = np.full(first, np.nan)
    before[: len(scores[:first])] = scores[:first]
    return np.append(before, new)


def _accepts(function: Callable[..., Any], argument: str) -> bool:
    parameters = inspect.signature(function).parameters
    return argument in parameters or any(p.kind == p.VAR_KEYWORD for p in parameters.values())
