"""MiserRegressor, MiserClassifier, MiserRanker: validate, encode, delegate.

The parameters follow scikit-learn's HistGradientBoosting, so a user can swap the class name.
"""

from __future__ import annotations

import copy
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    assert_all_finite,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from greedymiser.binning import MAX_BINS, BinMapper
from greedymiser.boosting import (
    Callback,
    History,
    Patience,
    ProgressBar,
    TrainingSet,
    Validation,
    boost,
)
from greedymiser.costs import Feature, Ledger, Purchase, Receipt, as_cost_model
from greedymiser.engines import Engine, Floats, SplitRules
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
from greedymiser.metrics import ndcg_score, query_order
from greedymiser.tables import (
    ArrayTable,
    Rows,
    Table,
    as_table,
    categorical_columns,
    is_frame,
    learn_categories,
)
from greedymiser.threads import Threads, thread_count
from greedymiser.trees import Ensemble, Tree, walk_binned

# HistGradientBoosting's floor for the Hessian of a child, per unit of mean weight.
MIN_HESSIAN = 1e-3


class BudgetWarning(UserWarning):
    """A budget is too small to buy anything useful."""


@dataclass
class _Data:
    """Some rows of a table, with what belongs to them."""

    table: Table
    # None for all rows, in their order.
    rows: Rows
    y: Floats
    weight: Floats | None
    # Where each query starts, for ranking.
    starts: NDArray[np.intp] | None = None

    def loss(self, loss: Loss) -> Loss:
        """The loss, told where the queries are if it asks."""
        return (
            loss.over(self.starts)
            if isinstance(loss, LambdaMART) and self.starts is not None
            else loss
        )


class _Miser(BaseEstimator):
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
        if there are more than 10,000 rows.
    n_iter_no_change : int
        How many rounds to wait for an improvement.
    validation_fraction : float, int or None
        Share (or number) of rows to set aside if early stopping has no validation data; None stops
        on the training loss.
    scoring : "loss", scorer name or callable
        What the validation data is scored with.
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
        Negative training loss, and validation score, of each round that was tried.
    ensemble_ : Ensemble
    """

    _parameter_constraints: dict[str, Any] = {
        "costs": "no_validation",
        "tradeoff": [Interval(Real, 0, None, closed="left")],
        "budget": [Interval(Real, 0, None, closed="left"), None],
        "loss": [str, HasMethods(["values", "gradients"])],
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
        "engine": [StrOptions({"auto", "cpu"})],
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

    def _encode_target(self, y: Any) -> Floats:
        """Check y and turn it into numbers that the loss understands."""
        return _finite_target(self, y)

    def _make_loss(self, y: Floats) -> Loss:
        raise NotImplementedError

    def _stratify(self, y: Floats) -> Floats | None:
        """Labels to keep in proportion when validation data is set aside."""
        return None

    # -- fitting --------------------------------------------------------------------------------

    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        qid: Any,
        X_val: Any,
        y_val: Any,
        sample_weight_val: Any,
        qid_val: Any,
        callbacks: Sequence[Callback],
    ) -> Self:
        self._validate_params()
        continued = self.warm_start and hasattr(self, "ensemble_")
        X = self._check_X(X, reset=not continued)
        y, weight, positive = self._check_target(X, y, sample_weight, learn=not continued)
        categorical = self._categorical_columns(X)
        monotonic = self._monotonic_constraints(categorical)
        if not continued:
            self.categories_ = learn_categories(X, categorical, positive, self.max_bins)
        self.costs_ = as_cost_model(self.costs, self.n_features_in_, self._columns())
        train = _arrange(as_table(X, self.categories_), positive, y, weight, qid)
        held_out = self._held_out(X_val, y_val, sample_weight_val, qid_val)
        if held_out is None and self._stops_early(len(train.y), given=False):
            train, held_out = self._set_aside(train)
        loss = self._make_loss(train.y)
        loss.check_target(train.y)
        if not continued:
            baseline = np.zeros(loss.n_outputs)
            if self.init == "prior":
                baseline = loss.prior(train.y, train.weight)
            self.ensemble_ = Ensemble.empty(baseline, self.n_features_in_)
            self._purchases: list[Purchase] = []
            self.train_score_ = np.empty(0)
            self.validation_score_ = np.empty(0)
        elif self.max_iter < self.n_iter_:
            raise ValueError(
                f"max_iter={self.max_iter} must not be less than n_iter_={self.n_iter_} "
                "when warm_start=True"
            )
        elif loss.n_outputs != self.ensemble_.n_outputs:
            raise ValueError(
                f"warm_start=True needs the same outputs as before: {self.ensemble_.n_outputs}, "
                f"got {loss.n_outputs}"
            )
        self._loss = loss
        with Threads(thread_count(self.n_jobs)) as threads:
            self._boost(loss, train, held_out, categorical, monotonic, threads, callbacks)
        return self

    def _boost(
        self,
        loss: Loss,
        train: _Data,
        held_out: _Data | None,
        categorical: list[int],
        monotonic: tuple[int, ...] | None,
        threads: Threads,
        callbacks: Sequence[Callback],
    ) -> None:
        # Features that are skipped together lie together: the dear ones behind the cheap ones.
        order = np.argsort(self.costs_.prices(), kind="stable")
        mapper = BinMapper(self.max_bins, categorical, order.tolist())
        binned = mapper.fit_transform(train.table, train.rows, train.weight, threads)
        params = self._grower_params(train, monotonic)
        engine: Engine = CpuEngine(threads)
        engine.place(binned, params.rules)
        ledger = Ledger(self.costs_, self.ensemble_.features)
        grower = Grower(engine, ledger, mapper.threshold, np.array(sorted(categorical)), params)
        raw = self._raw_of(train, threads)
        training = TrainingSet(train.y, train.weight, train.loss(loss), raw)
        validation = None
        if held_out is not None:
            validation = self._validation(held_out, loss, mapper, threads)
        history = History(features=set(self.ensemble_.features))
        bar = [ProgressBar()] if self.verbose else []
        patient = self._stops_early(len(train.y), given=held_out is not None)
        first = self.n_iter_
        try:
            boost(
                grower,
                training,
                validation,
                history,
                first=first,
                max_iter=self.max_iter,
                patience=Patience(self.n_iter_no_change if patient else None),
                step=self.step,
                callbacks=[*callbacks, *bar],
            )
        finally:  # an interruption keeps the rounds that were finished
            for shown in bar:
                shown.close()
            self._keep(history, first)
        if self.n_iter_ == 0 and self.budget is not None:
            self._warn_of_budget(grower, training)

    def _keep(self, history: History, first: int) -> None:
        """Take over what boosting made, up to its best round."""
        trees = [tree for trees in history.rounds for tree in trees]
        self.ensemble_ = self.ensemble_.extended(trees)
        self._purchases += history.purchases
        self.train_score_ = np.append(self.train_score_, -np.array(history.train_loss))
        self.validation_score_ = np.append(self.validation_score_, history.validation_score)
        self.stopped_ = history.stopped
        if history.validation_score:
            self._shorten(first + 1 + int(np.argmax(history.validation_score)))

    def _shorten(self, n_iter: int) -> None:
        self.ensemble_ = self.ensemble_.truncated(n_iter)
        self._purchases = [line for line in self._purchases if line.iteration < n_iter]

    def _grower_params(self, train: _Data, monotonic: tuple[int, ...] | None) -> GrowerParams:
        n = len(train.y)
        # fsum, so that the order of the rows does not matter.
        total = float(n) if train.weight is None else math.fsum(train.weight)
        rules = SplitRules(
            min_samples_leaf=self.min_samples_leaf,
            min_hessian=MIN_HESSIAN * total / n,
            l2_regularization=float(self.l2_regularization),
            monotonic_cst=monotonic,
        )
        return GrowerParams(
            rules=rules,
            tradeoff=float(self.tradeoff),
            budget=self.budget,
            total_weight=total,
            learning_rate=float(self.learning_rate),
            max_depth=self.max_depth,
            max_leaf_nodes=self.max_leaf_nodes,
        )

    def _warn_of_budget(self, grower: Grower, training: TrainingSet) -> None:
        """Say what the cheapest useful feature would have cost."""
        gains = np.full(self.n_features_in_, -np.inf)
        for k in range(training.loss.n_outputs):
            raw = training.raw if training.loss.n_outputs > 1 else training.raw[0]
            gradients, _ = training.loss.gradients(training.y, raw)
            gains = np.maximum(gains, grower.root_gains(np.atleast_2d(gradients)[k].copy(), None))
        useful = np.flatnonzero(gains > grower.params.tradeoff * grower.ledger.prices)
        if len(useful) == 0:
            return
        n_trees = training.loss.n_outputs
        bills = {int(f): grower.ledger.total(n_trees, with_feature=int(f)) for f in useful}
        cheapest = min(bills, key=lambda f: bills[f])
        if self.budget is not None and bills[cheapest] > self.budget:
            warnings.warn(
                f"budget={self.budget:g} buys no useful feature; the cheapest is "
                f"{self._name(cheapest)!r}, and a model with it costs {bills[cheapest]:g}. "
                "The model is a constant.",
                BudgetWarning,
                stacklevel=5,
            )

    # -- data -----------------------------------------------------------------------------------

    def _check_X(self, X: Any, reset: bool) -> Any:
        if is_frame(X):
            validate_data(self, X=X, reset=reset, skip_check_array=True)
            if min(X.shape) == 0:
                raise ValueError(f"X must have at least one row and one column, got {X.shape}")
            return X
        return validate_data(
            self,
            X=X,
            reset=reset,
            dtype="numeric",
            accept_sparse=("csr", "csc"),
            ensure_all_finite=False,
        )

    def _check_target(
        self, X: Any, y: Any, sample_weight: Any, learn: bool
    ) -> tuple[Floats, Floats | None, Rows]:
        """Target and weights of the rows that count, and which those are (None for all)."""
        if y is None:
            raise ValueError(
                f"This {type(self).__name__} estimator requires y to be passed, "
                "but the target y is None."
            )
        y = column_or_1d(y, warn=True)
        check_consistent_length(X, y)
        weight = _check_weight(sample_weight, X)
        # A row of weight 0 is a row that is not there.
        rows = None
        if weight is not None and not weight.all():
            rows = np.flatnonzero(weight)
            y, weight = y[rows], weight[rows]
        return self._encode_target(y), weight, rows

    def _held_out(self, X_val: Any, y_val: Any, weight: Any, qid: Any) -> _Data | None:
        """Validation data that the user gave."""
        if X_val is None and y_val is None:
            if weight is not None or qid is not None:
                raise ValueError("sample_weight_val and qid_val need X_val and y_val")
            return None
        if X_val is None or y_val is None:
            raise ValueError("X_val and y_val must be given together")
        X_val = self._check_X(X_val, reset=False)
        y_val, weight, rows = self._check_target(X_val, y_val, weight, learn=False)
        return _arrange(as_table(X_val, self.categories_), rows, y_val, weight, qid)

    def _stops_early(self, n: int, given: bool) -> bool:
        if self.early_stopping == "auto":
            return given or n > 10_000
        return bool(self.early_stopping)

    def _set_aside(self, data: _Data) -> tuple[_Data, _Data | None]:
        """Divide data into a part to learn from and a part to validate with."""
        if self.validation_fraction is None:
            return data, None
        from sklearn.model_selection import train_test_split

        share = self.validation_fraction
        seed = check_random_state(self.random_state)
        if data.starts is None:
            learn, check = train_test_split(
                np.arange(len(data.y)),
                test_size=share,
                random_state=seed,
                stratify=self._stratify(data.y),
            )
            return _take(data, np.sort(learn)), _take(data, np.sort(check))
        queries = np.arange(len(data.starts) - 1)
        learn, check = train_test_split(queries, test_size=share, random_state=seed)
        return _take_queries(data, np.sort(learn)), _take_queries(data, np.sort(check))

    def _categorical_columns(self, X: Any) -> list[int]:
        given = self.categorical_features
        if given is None:
            return []
        if isinstance(given, str):  # "from_dtype"
            return categorical_columns(X) if is_frame(X) else []
        given = np.asarray(given)
        if given.size == 0:
            return []
        if given.dtype == bool:
            if given.shape != (self.n_features_in_,):
                raise ValueError(
                    f"categorical_features has shape {given.shape}, "
                    f"but X has {self.n_features_in_} features"
                )
            return np.flatnonzero(given).tolist()
        return sorted({self._position(f, "categorical_features") for f in given.tolist()})

    def _monotonic_constraints(self, categorical: list[int]) -> tuple[int, ...] | None:
        given = self.monotonic_cst
        if given is None:
            return None
        values = np.zeros(self.n_features_in_)
        if isinstance(given, dict):
            for name, direction in given.items():
                values[self._position(name, "monotonic_cst")] = direction
        else:
            values = np.asarray(given)
            if values.shape != (self.n_features_in_,):
                raise ValueError(
                    f"monotonic_cst has shape {values.shape}, "
                    f"but X has {self.n_features_in_} features"
                )
        if not np.isin(values, (-1, 0, 1)).all():
            bad = values[~np.isin(values, (-1, 0, 1))][0]
            raise ValueError(f"monotonic_cst must hold only -1, 0 and 1, got {bad}")
        both = [f for f in categorical if values[f] != 0]
        if both:
            raise ValueError(f"feature {self._name(both[0])!r} is categorical and monotonic")
        return tuple(int(v) for v in values) if values.any() else None

    def _columns(self) -> list[str] | None:
        names = getattr(self, "feature_names_in_", None)
        return None if names is None else list(names)

    def _name(self, feature: int) -> Feature:
        names = self._columns()
        return int(feature) if names is None else str(names[feature])

    def _position(self, feature: Any, argument: str) -> int:
        if isinstance(feature, str):
            names = self._columns()
            if names is None or feature not in names:
                raise ValueError(f"{argument} names {feature!r}, which is not a column of X")
            return names.index(feature)
        if not 0 <= int(feature) < self.n_features_in_:
            raise ValueError(
                f"{argument} has {feature!r}, but X has {self.n_features_in_} features"
            )
        return int(feature)

    def _raw_of(self, data: _Data, threads: Threads) -> Floats:
        """Raw predictions of the model so far, for the chosen rows."""
        if self.n_iter_ == 0:
            return np.repeat(self.ensemble_.baseline[:, None], len(data.y), axis=1)
        raw = self.ensemble_.raw_predict(data.table, threads)
        return raw if data.rows is None else np.ascontiguousarray(raw[:, data.rows])

    # -- validation -----------------------------------------------------------------------------

    def _validation(
        self, data: _Data, loss: Loss, mapper: BinMapper, threads: Threads
    ) -> Validation:
        binned = mapper.transform(data.table, data.rows, threads)
        raw = self._raw_of(data, threads)

        def add_tree(tree: Tree, output: int) -> None:
            walk_binned(tree, binned.codes, binned.feature_lane, binned.n_bins, raw[output])

        return Validation(add_tree, self._scorer(data, loss, raw))

    def _scorer(self, data: _Data, loss: Loss, raw: Floats) -> Callable[[], float]:
        """Score of the validation rows at their present raw predictions; higher is better."""
        if self.scoring in ("loss", None):
            own = data.loss(loss)
            seen = raw if loss.n_outputs > 1 else raw[0]
            return lambda: -own.value(data.y, seen, data.weight)
        from sklearn.metrics import check_scoring

        scorer = check_scoring(self, self.scoring)
        snapshot = copy.copy(self)
        # The scorer meets an ordinary estimator that happens to know these rows by heart.
        snapshot._raw_predict = lambda X: raw  # type: ignore[method-assign]
        stand_in = np.zeros((len(data.y), self.n_features_in_), dtype=np.int8)
        y = self._decode_target(data.y)
        weight = {} if data.weight is None else {"sample_weight": data.weight}
        return lambda: float(scorer(snapshot, stand_in, y, **weight))

    def _decode_target(self, y: Floats) -> Any:
        return y

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
        check_is_fitted(self, "ensemble_")
        if (
            type(X) is np.ndarray
            and X.dtype in (np.float64, np.float32)
            and X.ndim == 2
            and X.shape[1] == self.n_features_in_
            and len(X) > 0
            and not hasattr(self, "feature_names_in_")
        ):
            return ArrayTable(X, self.categories_)  # nothing to check: the way for single rows
        return as_table(self._check_X(X, reset=False), self.categories_)

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
        return [self._name(feature) for feature in self.ensemble_.features]

    @property
    def resources_used_(self) -> list[str]:
        return Ledger(self.costs_, self.ensemble_.features).resources

    @property
    def feature_importances_(self) -> Floats:
        gains = self.ensemble_.importances()
        return gains / gains.sum() if gains.sum() > 0 else gains

    def receipt(self) -> Receipt:
        """What was bought, when, at what price."""
        check_is_fitted(self, "ensemble_")
        return Receipt(self._purchases)

    def truncate(self, n_iter: int) -> Self:
        """Return a copy that stops after ``n_iter`` rounds, and costs accordingly."""
        check_is_fitted(self, "ensemble_")
        if not 0 <= n_iter <= self.n_iter_:
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


class MiserRegressor(RegressorMixin, _Miser):
    __doc__ = """Boosted regression trees that pay for their features.

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

    """ + (_Miser.__doc__ or "").split("\n\n", 1)[1]

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
            X, y, sample_weight, None, X_val, y_val, sample_weight_val, None, callbacks
        )

    def predict(self, X: Any) -> Floats:
        """Predict the target."""
        return self._loss.response(self._raw_predict(X)[0])

    def staged_predict(self, X: Any) -> Iterator[Floats]:
        """Predictions after each round."""
        for raw in self._staged_raw_predict(X):
            yield self._loss.response(raw[0])

    def _make_loss(self, y: Floats) -> Loss:
        return _named_loss(self.loss, REGRESSION_LOSSES, "squared_error")


class MiserClassifier(ClassifierMixin, _Miser):
    __doc__ = """Boosted classification trees that pay for their features.

    Two classes share one tree per round; with more, each class has its own, and a feature that one
    of them has bought is free for the others. ``loss`` is "log_loss" (the default) or a loss
    object of your own with ``n_outputs`` raw outputs and a ``response`` that gives probabilities.

    ``class_weight`` (a dict, "balanced" or None) multiplies the sample weights.

    Examples
    --------
    >>> from greedymiser import MiserClassifier
    >>> from greedymiser.datasets import load_thyroid
    >>> data = load_thyroid()
    >>> model = MiserClassifier(costs=data.costs, tradeoff=1e-4, max_iter=50)
    >>> model.fit(data.X_train, data.y_train).cost_ < 60
    True

    """ + (_Miser.__doc__ or "").split("\n\n", 1)[1]

    _parameter_constraints = {
        **_Miser._parameter_constraints,
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
            X, y, sample_weight, None, X_val, y_val, sample_weight_val, None, callbacks
        )

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict class labels."""
        return self._labels(self._raw_predict(X))

    def predict_proba(self, X: Any) -> Floats:
        """Class probabilities, shape (n, n_classes)."""
        return self._probabilities(self._raw_predict(X))

    def decision_function(self, X: Any) -> Floats:
        """Raw predictions: log-odds of the second class (n,), or one column per class."""
        return self._decision(self._raw_predict(X))

    def staged_predict(self, X: Any) -> Iterator[NDArray[Any]]:
        """Class labels after each round."""
        yield from map(self._labels, self._staged_raw_predict(X))

    def staged_predict_proba(self, X: Any) -> Iterator[Floats]:
        """Class probabilities after each round."""
        yield from map(self._probabilities, self._staged_raw_predict(X))

    def staged_decision_function(self, X: Any) -> Iterator[Floats]:
        """Raw predictions after each round."""
        yield from map(self._decision, self._staged_raw_predict(X))

    def _decision(self, raw: Floats) -> Floats:
        return raw[0] if len(raw) == 1 else np.ascontiguousarray(raw.T)

    def _probabilities(self, raw: Floats) -> Floats:
        return np.ascontiguousarray(self._loss.response(raw[0] if len(raw) == 1 else raw).T)

    def _labels(self, raw: Floats) -> NDArray[Any]:
        if len(raw) == 1:
            return self.classes_[(raw[0] > 0).astype(np.intp)]
        return self.classes_[np.argmax(raw, axis=0)]

    def _check_target(
        self, X: Any, y: Any, sample_weight: Any, learn: bool
    ) -> tuple[Floats, Floats | None, Rows]:
        if y is not None:
            check_classification_targets(y)
        if y is not None and self.class_weight is not None and learn:
            by_class = compute_sample_weight(self.class_weight, y)
            given = _check_weight(sample_weight, X)
            sample_weight = by_class if given is None else given * by_class
        self._learn_classes = learn
        return super()._check_target(X, y, sample_weight, learn)

    def _encode_target(self, y: Any) -> Floats:
        if self.__dict__.pop("_learn_classes", False):
            if y.dtype.kind == "f":
                assert_all_finite(y, input_name="y")
            self.classes_, codes = np.unique(y, return_inverse=True)
            if len(self.classes_) < 2:
                raise ValueError(
                    f"{type(self).__name__} needs at least two classes, but y has only one class: "
                    f"{self.classes_[0]!r}"
                )
            return codes.astype(np.float64)
        known = {label: code for code, label in enumerate(self.classes_.tolist())}
        unknown = [label for label in np.unique(y).tolist() if label not in known]
        if unknown:
            raise ValueError(f"y has a class that the model does not know: {unknown[0]!r}")
        return np.array([known[label] for label in y.tolist()], dtype=np.float64)

    def _decode_target(self, y: Floats) -> Any:
        return self.classes_[y.astype(np.intp)]

    def _stratify(self, y: Floats) -> Floats:
        return y

    def _make_loss(self, y: Floats) -> Loss:
        if not isinstance(self.loss, str):
            return as_loss(self.loss)
        if self.loss not in ("auto", "log_loss"):
            raise _unknown_loss(self.loss, ["log_loss"])
        n_classes = len(self.classes_)
        return BinaryLogLoss() if n_classes == 2 else MultinomialLogLoss(n_classes)


class MiserRanker(_Miser):
    __doc__ = """Boosted trees that rank the documents of a query and pay for their features.

    ``loss`` is "lambdamart" (the default), "squared_error" as in the paper, or a loss object such
    as ``greedymiser.losses.LambdaMART(truncation=10)``. ``scoring`` may also be "ndcg@5", or any
    other k.

    """ + (_Miser.__doc__ or "").split("\n\n", 1)[1]

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
        qid = _every_row_one_query(X) if qid is None else qid
        if X_val is not None and qid_val is None:
            qid_val = _every_row_one_query(X_val)
        return self._fit(
            X, y, sample_weight, qid, X_val, y_val, sample_weight_val, qid_val, callbacks
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
    ) -> float:
        """Mean NDCG@k over queries."""
        qid = _every_row_one_query(X) if qid is None else qid
        return ndcg_score(y, self.predict(X), qid, k=k, sample_weight=sample_weight)

    def _make_loss(self, y: Floats) -> Loss:
        known: dict[str, type[Loss]] = {"lambdamart": LambdaMART, "squared_error": SquaredError}
        return _named_loss(self.loss, known, "lambdamart")

    def _scorer(self, data: _Data, loss: Loss, raw: Floats) -> Callable[[], float]:
        asked = re.fullmatch(r"ndcg@(\d+)", self.scoring) if isinstance(self.scoring, str) else None
        if asked is None or data.starts is None:
            return super()._scorer(data, loss, raw)
        sizes = np.diff(data.starts)
        qid, k = np.repeat(np.arange(len(sizes)), sizes), int(asked[1])
        return lambda: ndcg_score(data.y, raw[0], qid, k=k, sample_weight=data.weight)


def _every_row_one_query(X: Any) -> NDArray[np.intp]:
    return np.zeros(X.shape[0] if hasattr(X, "shape") else len(X), dtype=np.intp)


def _named_loss(loss: Any, known: dict[str, type[Loss]], default: str) -> Loss:
    if not isinstance(loss, str):
        return as_loss(loss)
    name = default if loss == "auto" else loss
    if name not in known:
        raise _unknown_loss(loss, list(known))
    return known[name]()


def _unknown_loss(loss: str, known: list[str]) -> ValueError:
    return ValueError(f"loss={loss!r} is unknown; choose from {known} or pass a loss object")


def _finite_target(estimator: _Miser, y: Any) -> Floats:
    try:
        y = np.array(y, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{type(estimator).__name__} needs a numeric y, got {y[:1]!r}") from None
    assert_all_finite(y, input_name="y")
    return y


def _check_weight(sample_weight: Any, X: Any) -> Floats | None:
    if sample_weight is None:
        return None
    weight = _check_sample_weight(sample_weight, X, dtype=np.float64, copy=True)
    if weight.min() < 0:
        raise ValueError(f"sample_weight must not be negative, got {weight.min():g}")
    if not weight.any():
        raise ValueError("sample_weight must not be 0 for every row")
    return weight


def _arrange(table: Table, rows: Rows, y: Floats, weight: Floats | None, qid: Any) -> _Data:
    """Put the rows of each query together; without queries, leave them as they are."""
    if qid is None:
        return _Data(table, rows, y, weight)
    qid = column_or_1d(qid)
    if len(qid) != table.n_rows:
        raise ValueError(f"qid has {len(qid)} entries, but X has {table.n_rows} rows")
    order, starts = query_order(qid if rows is None else qid[rows])
    data = _take(_Data(table, rows, y, weight), order)
    return replace(data, starts=starts)


def _take(data: _Data, chosen: NDArray[np.intp]) -> _Data:
    rows = chosen if data.rows is None else data.rows[chosen]
    weight = None if data.weight is None else data.weight[chosen]
    return _Data(data.table, rows, data.y[chosen], weight)


def _take_queries(data: _Data, queries: NDArray[np.intp]) -> _Data:
    assert data.starts is not None
    sizes = np.diff(data.starts)[queries]
    chosen = np.concatenate([np.arange(*data.starts[q : q + 2]) for q in queries])
    return replace(_take(data, chosen), starts=np.append(0, np.cumsum(sizes)))
