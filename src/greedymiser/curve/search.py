"""The best model for a budget, found by cross-validation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import MetaEstimatorMixin, clone, is_classifier
from sklearn.utils import _safe_indexing, indexable
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.metadata_routing import get_routing_for_object
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, check_random_state

from greedymiser._core.progress import PATIENCE, Bar, somebody_looks
from greedymiser._core.threads import Threads, thread_count
from greedymiser.cascades.gated import Gated, cost_and_score, gated_like
from greedymiser.costs.cost_model import Receipt
from greedymiser.curve.curve import (
    best_first,
    check_takes_queries,
    checked_tradeoffs,
    configured,
    require_pandas,
)
from greedymiser.curve.frontier import Frontier
from greedymiser.curve.models import CurveModels, trace_of
from greedymiser.curve.path import TradeoffPath, highest_tradeoff, tradeoff_in_money
from greedymiser.curve.total_cost import REPEATS, least_total, members
from greedymiser.data.tables import Parted, Table
from greedymiser.estimators import (
    BudgetWarning,
    Miser,
    ModelBacked,
    fitted_like,
    tags_like,
    validation_of,
)
from greedymiser.losses.ndcg import ndcg_depth
from greedymiser.model.links import Floats
from greedymiser.model.predictor import Predictor
from greedymiser.model.protocols import Protocol
from greedymiser.scoring import TOTAL_COST
from greedymiser.scoring.total_cost import total_cost
from greedymiser.training.parameters import BUDGET, Parameters
from greedymiser.training.preparation import NO_INPUTS, Inputs, brought, is_elsewhere
from greedymiser.training.train import blank_model, open_engine, train

if TYPE_CHECKING:
    import pandas as pd

# A search tries trade-offs from the highest that pays down to this fraction of it, and 0; where the
# total counts, those between this fraction and this multiple of what money is worth.
GRID_SPAN, MONEY_SPAN = 1e4, 16.0

# Stands for gated cascades where sets have the names of their resources, in brackets.
GATES = "gates"


def _has_method(method: str) -> Callable[[Any], bool]:
    def check(search: Any) -> bool:
        getattr(getattr(search, "best_estimator_", search.estimator), method)
        return True

    return check


class BestModel(MetaEstimatorMixin, ModelBacked):
    """What a fitted search says: what its best model says."""

    estimator: Any
    scoring: Any
    best_estimator_: Miser

    @property
    def n_features_in_(self) -> int:
        return self.best_estimator_.n_features_in_

    @property
    def feature_names_in_(self) -> Any:
        return self.best_estimator_.feature_names_in_

    @property
    def classes_(self) -> Any:
        return self.best_estimator_.classes_

    @property
    def predictor_(self) -> Predictor:  # type: ignore[override]  # it follows the model
        return self.best_estimator_.predictor_

    def receipt(self) -> Receipt:
        """What the best model bought, when, at what price."""
        check_is_fitted(self)
        return self.best_estimator_.receipt()

    def _table(self, X: Any) -> Table:
        check_is_fitted(self)
        return self.best_estimator_._table(X)

    def _raw_predict(self, X: Any) -> Floats:
        check_is_fitted(self)
        return self.best_estimator_._raw_predict(X)

    @available_if(_has_method("predict_proba"))
    def predict_proba(self, X: Any) -> Any:
        """Class probabilities of the best model."""
        check_is_fitted(self)
        return self.best_estimator_.predict_proba(X)

    @available_if(_has_method("expected_costs"))
    def expected_costs(self, X: Any) -> Any:
        """What each answer of the best model is expected to cost."""
        check_is_fitted(self)
        return self.best_estimator_.expected_costs(X)

    @available_if(_has_method("decision_function"))
    def decision_function(self, X: Any) -> Any:
        """Raw predictions of the best model."""
        check_is_fitted(self)
        return self.best_estimator_.decision_function(X)

    def prediction_costs(self, X: Any) -> Any:
        """What each row's prediction costs."""
        check_is_fitted(self)
        return self.best_estimator_.prediction_costs(X)

    def protocol(self, X: Any, *, min_share: float = 0.01) -> Protocol:
        """Tell what the best model asks of which rows; see ``MiserRegressor.protocol``."""
        check_is_fitted(self)
        return self.best_estimator_.protocol(X, min_share=min_share)

    def score(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        qid: ArrayLike | None = None,
        **params: Any,
    ) -> float:
        """Score of the best model by ``scoring``; without one, as its own ``score`` has it.

        ``qid``, and what else ``params`` may hold (``k``, ``no_relevant``), is for rankers.
        """
        check_is_fitted(self)
        model = self.best_estimator_
        check_takes_queries(model, qid)
        scoring = self.estimator.scoring if self.scoring is None else self.scoring
        if scoring == TOTAL_COST:
            return -total_cost(model, X, y, sample_weight=sample_weight).total
        depth = ndcg_depth(scoring)
        if scoring in (None, "loss") or depth is not None:
            queries = {} if qid is None else {"qid": qid}
            asked = params if depth is None else {"k": depth} | params
            return model.score(X, y, sample_weight, **queries, **asked)
        from sklearn.metrics import check_scoring

        weight = {} if sample_weight is None else {"sample_weight": sample_weight}
        return float(check_scoring(model, scoring)(model, X, y, **weight, **params))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "best_estimator_")

    def __sklearn_tags__(self) -> Any:
        return tags_like(super().__sklearn_tags__(), self.estimator)


class MiserSearchCV(BestModel):
    """The best model for a budget, found by cross-validation.

    Every fold trains a path of trade-offs under the budget, and searches for sets of resources that
    do better (see ``tradeoff_curve``). Sets that any fold has found are then tried in all folds.
    The trade-off, or the set, and the number of rounds with the best mean score are trained anew on
    all data, within the budget as well. A fitted search is a model like any other: it predicts,
    tells its costs, and can be saved and exported.

    Where rows pay for themselves (``charge="row"``), a gated cascade is fitted in every fold as
    well, without the rows that it is scored by (see ``GatedClassifier``); where that is best, the
    best model is one.

    With ``scoring="total_cost"`` and an estimator that has ``error_costs`` and ``charge="row"``, no
    budget is needed: a row gets more features as long as the expected saving exceeds their price.
    The search then learns which rows pay for what (see ``greedymiser.curve.total_cost``), and the
    best model is a ``GatedClassifier``, a chain of models with gates between them or a constant
    answer where no feature pays; or a ``MiserClassifier`` with one small tree, which asks rows for
    different features. Parameters of the estimator that have their default become those that suit
    few rows. It chooses among small sets, so it takes seconds on some hundred rows. Where a budget
    or a list of trade-offs is given, trade-offs and sets are searched as without error costs.

    Parameters
    ----------
    estimator : MiserRegressor, MiserClassifier or MiserRanker
    budget : float or None
        Most that one prediction of the final model may cost.
    tradeoffs : int or sequence of float
        How many trade-offs to try: spaced evenly, in logarithm, from the one at which nothing pays,
        and 0. A sequence asks for exactly these: no sets are searched.
    search : {"frontier", "path"}
        "path" for trade-offs only.
    effort : float
        How long each fold searches; see ``tradeoff_curve``.
    cv : int or splitter
        As in scikit-learn. Where it is a number, rows of one group stay together, and so do those
        of one query; other rows are shuffled. Where the least total is learned row by row, every
        row must be checked equally often (``StratifiedKFold``, ``RepeatedStratifiedKFold``).
    scoring : scorer name or callable, optional
        As the estimator's ``scoring``, which it replaces.
    random_state : int, RandomState or None
        Only used to shuffle the folds where ``cv`` is a number.

    Attributes
    ----------
    best_estimator_ : estimator
        Fitted on all data; its ``cost_`` is within the budget.
    best_params_ : dict
        ``tradeoff`` and ``max_iter`` of the best model; ``resources``, what it may use, if the
        search has found it. ``gate`` alone, if it is a gated cascade. Where the least total was
        learned row by row, ``resources`` alone: what is bought one after another, a list for each
        state of a chain or each depth of a tree.
    best_score_ : float
        Its mean validation score.
    cv_results_ : DataFrame
        Mean and spread over folds of cost and score, for every trade-off, every set that was tried
        in all folds (``resources``, empty for a trade-off), and every round; "gates" for gated
        cascades, whose trees are counted among what is bought. Where the least total
        was learned row by row: a line for each set, with its ``cost``, its ``errors`` and its
        ``score`` if all rows bought it.
    n_splits_ : int
        Number of folds.
    predictor_ : Predictor
        The best model, finished: for serving and saving.
    cost_, features_used_, resources_used_
        Of the best model.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from greedymiser import MiserRegressor, MiserSearchCV
    >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
    >>> model = MiserRegressor(costs={name: 1.0 for name in X}, max_iter=10)
    >>> search = MiserSearchCV(model, budget=3.0, tradeoffs=2, search="path", cv=2).fit(X, y)
    >>> search.cost_ <= 3.0
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "estimator": [HasMethods(["fit", "predict", "prediction_costs"])],
        "budget": [BUDGET, None],
        "tradeoffs": [Interval(Integral, 1, None, closed="left"), "array-like"],
        "search": [StrOptions({"frontier", "path"})],
        "effort": [Interval(Real, 0, None, closed="neither")],
        "cv": ["cv_object"],
        "scoring": [str, callable, None],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        estimator: Any,
        *,
        budget: float | None = None,
        tradeoffs: int | Sequence[float] = 8,
        search: str = "frontier",
        effort: float = 1.0,
        cv: Any = 5,
        scoring: Any = None,
        random_state: Any = None,
    ):
        self.estimator = estimator
        self.budget = budget
        self.tradeoffs = tradeoffs
        self.search = search
        self.effort = effort
        self.cv = cv
        self.scoring = scoring
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        qid: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Search by cross-validation, then fit the best model on all data.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n, n_features)
        y : array-like of shape (n,)
        sample_weight : array-like of shape (n,), optional
        qid : array-like of shape (n,), optional
            For a ranker: the query of each row. Without it, all rows are one query.
        groups : array-like of shape (n,), optional
            Rows that belong together, for the folds; without it, those of one query do.
        """
        self._validate_params()
        require_pandas()
        base = configured(self.estimator, self.scoring, None)
        # Both are limits: that of the search, and the estimator's own.
        budgets = [budget for budget in (self.budget, base.budget) if budget is not None]
        base.set_params(budget=min(budgets, default=None))
        check_takes_queries(base, qid)
        with Threads(thread_count(base.n_jobs)) as threads:
            inputs = Inputs(X, y, sample_weight, qid)
            if is_elsewhere(inputs):
                inputs = brought(open_engine(base.engine, [inputs], threads), inputs)
            whole = _Whole(inputs, groups)
            # What is wrong with all of the data must not be blamed on a fold.
            clone(base).look_at(whole.inputs)
            if self._asks_row_by_row(base, whole):
                return self._fit_least_total(base, whole, threads)
            folds = self._folds(base, whole)
            self.n_splits_ = len(folds)
            # Every fold has a path, a search, the sets that any of them has found, and a cascade.
            with Bar(4 * len(folds), "steps", is_shown=somebody_looks(), delay=PATIENCE) as bar:
                traces, paths = self._train_folds(base, whole, folds, threads, bar)
                sets = self._search_folds(paths, bar)
                for path in paths:
                    for allowed, (name, _) in sets.items():
                        features = np.frombuffer(allowed, dtype=bool)
                        traces.append(_trace_with(path, features).assign(resources=name))
                    bar.advance()
                for path, fold in zip(paths, folds, strict=False):
                    traces += self._gated(base, whole, path.models, *fold)
                    bar.advance()
            self.cv_results_ = _mean_over_folds(traces, self.n_splits_)
            best = best_first(self.cv_results_).iloc[0]
            self.best_score_ = float(best["score"])
            self.best_params_: dict[str, Any] = {}
            if best["resources"] == GATES:
                gated = self._cascade(base, self.effort)
                assert gated is not None
                inputs = whole.inputs
                self.best_params_ = {"gate": gated.gate}
                self.best_estimator_ = gated.fit(inputs.X, inputs.y, inputs.weight)
                return self
            self.best_params_ = {
                "tradeoff": float(best["tradeoff"]),
                "max_iter": int(best["n_iter"]),
            }
            chosen = {name: features for features, (name, _) in sets.items()}.get(best["resources"])
            if chosen is not None:
                self.best_params_["resources"] = sets[chosen][1]
            self.best_estimator_ = self._refit(base, whole, chosen, threads)
        return self

    def _asks_row_by_row(self, base: Miser, whole: _Whole) -> bool:
        """Whether the least total is looked for, and every row pays for what it is asked."""
        return (
            base.scoring == TOTAL_COST
            and base.charge == "row"
            and base.budget is None
            and base.row_budget is None
            and self.search == "frontier"
            and isinstance(self.tradeoffs, Integral)
            and not isinstance(whole.inputs.X, Parted)
        )

    def _fit_least_total(self, base: Any, whole: _Whole, threads: Threads) -> Self:
        """Learn whom to ask for what, with models and gates that are judged by folds."""
        whole = whole.weighing()
        folds, more = self._folds(base, whole), list[tuple[Any, Any]]()
        if self.cv is None or isinstance(self.cv, Integral):
            for repeat in range(1, REPEATS):
                more += self._folds(base, whole, repeat)
        least = least_total(base, whole.inputs, folds, threads, more)
        names = least.prepared.schema.costs.resource_names
        self.n_splits_ = len(folds)
        self.cv_results_ = least.table(names)
        self.best_score_ = -(least.mean_cost + least.mean_error)
        self.best_params_ = {
            "resources": [[names[r] for r in members(some)] for some in least.bought]
        }
        self.best_estimator_ = least.classifier()
        return self

    def _train_folds(
        self, base: Miser, whole: _Whole, folds: list[tuple[Any, Any]], threads: Threads, bar: Bar
    ) -> tuple[list[pd.DataFrame], list[TradeoffPath]]:
        """The trace of each fold's path; and the paths, if anyone is to search along them."""
        tradeoffs = self._grid(base, whole, threads)
        traces: list[pd.DataFrame] = []
        paths: list[TradeoffPath] = []
        for learn, check in folds:
            parts = (whole.take(learn), whole.take(check), NO_INPUTS)
            try:
                models = CurveModels(clone(base), *parts, threads)
            except ValueError as error:
                error.add_note(f"This is about fold {len(traces)} of the cross-validation.")
                raise
            path = TradeoffPath(models, may_skip=False)
            for _ in path.train(*tradeoffs):
                pass
            traces.append(models.tables()[0].assign(resources=""))
            if self.search == "frontier" and isinstance(self.tradeoffs, Integral):
                paths.append(path)  # and its rows: without a search, one fold's are enough
            bar.advance()
        return traces, paths

    def _search_folds(
        self, paths: Sequence[TradeoffPath], bar: Bar
    ) -> dict[bytes, tuple[str, list[str]]]:
        """Sets that the search has found in any fold, by the features that they pay for.

        Each has a name of its own, and the names of its resources.

        What is best in one fold by luck is not in the others: the mean over all folds decides.
        """
        by_features: dict[bytes, tuple[str, list[str]]] = {}
        for path in paths:
            # All folds together search as long as one curve does.
            frontier = Frontier(path, self.effort / len(paths))
            for candidate in frontier.find():
                sets = frontier.sets
                names = sets.names(candidate.resources)
                if names:
                    # Names may hold anything: only their list, as Python writes it, is unique.
                    by_features[sets.features(candidate.resources).tobytes()] = repr(names), names
            bar.advance()
        return by_features

    def _cascade(self, base: Miser, effort: float) -> Gated | None:
        """A cascade within the budget, not fitted; None where rows do not pay for themselves."""
        return gated_like(base, base.budget, effort) if base.charge == "row" else None

    def _gated(
        self, base: Miser, whole: _Whole, models: CurveModels, learn: Any, check: Any
    ) -> list[pd.DataFrame]:
        """What a cascade costs and scores that has not seen the rows of a fold."""
        import pandas as pd

        gated = self._cascade(base, self.effort / self.n_splits_)
        if gated is None or isinstance(whole.inputs.X, Parted):
            return []
        known = whole.take(learn)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BudgetWarning)
            gated.fit(known.X, known.y, known.weight)
        cost, score = cost_and_score(gated, models, whole.take(check).X)
        predictor = gated.predictor_
        n_trees, n_features = predictor.stages[-1].n_trees, len(predictor.features)
        row = {"tradeoff": 0.0, "n_iter": 0, "n_trees": n_trees, "feature_cost": cost}
        row |= {"tree_cost": 0.0, "cost": cost, "score": score, "n_features": n_features}
        return [pd.DataFrame([row]).assign(resources=GATES)]

    def _grid(self, base: Miser, whole: _Whole, threads: Threads) -> list[float]:
        tradeoffs = checked_tradeoffs(self.tradeoffs)
        if not isinstance(tradeoffs, int):
            return tradeoffs
        blank = clone(base).set_params(early_stopping=False)  # no row is set aside
        prepared, params = blank.prepare(whole.inputs, NO_INPUTS, threads), Parameters.of(blank)
        highest = highest_tradeoff(prepared, params, blank_model(prepared, params))
        if tradeoffs == 1 or highest == 0:
            return [0.0]
        # From the highest down: where few are asked for, they are the high ones.
        lowest = highest / GRID_SPAN
        if base.scoring == TOTAL_COST and (middle := tradeoff_in_money(prepared)) > 0:
            # The least total is not far from there.
            lowest = min(highest, middle) / MONEY_SPAN
            highest = min(highest, middle * MONEY_SPAN)
        return [0.0, *np.geomspace(highest, lowest, tradeoffs - 1)]

    def _folds(self, base: Miser, whole: _Whole, repeat: int = 0) -> list[tuple[Any, Any]]:
        """Rows to learn from and to check with; a number of folds has others in each repetition."""
        from sklearn.model_selection import check_cv

        X, y, groups = whole.rows, whole.inputs.y, whole.groups
        splitter = 5 if self.cv is None else self.cv
        if isinstance(splitter, Integral):
            together = groups is not None or whole.inputs.qid is not None
            splitter = self._splitter(int(splitter), is_classifier(base), together, repeat)
        splitter = check_cv(splitter, y, classifier=is_classifier(base))
        if groups is not None:
            return list(splitter.split(X, y, groups))
        with warnings.catch_warnings():
            # Nobody has asked a splitter that does without groups to heed the queries.
            warnings.filterwarnings("ignore", message="The groups parameter is ignored")
            return list(splitter.split(X, y, whole.inputs.qid))

    def _splitter(self, n: int, classifies: bool, together: bool, repeat: int) -> Any:
        """Folds for a number of them: by group, by class, or at random."""
        from sklearn.model_selection import (
            GroupKFold,
            KFold,
            StratifiedGroupKFold,
            StratifiedKFold,
        )

        if together and not classifies:
            return GroupKFold(n)
        seed = check_random_state(self.random_state).randint(2**31, size=repeat + 1)[repeat]
        if together:
            return StratifiedGroupKFold(n, shuffle=True, random_state=seed)
        kind = StratifiedKFold if classifies else KFold
        return kind(n, shuffle=True, random_state=seed)

    def _refit(self, base: Miser, whole: _Whole, allowed: bytes | None, threads: Threads) -> Miser:
        n_iter = self.best_params_["max_iter"]
        model = clone(base).set_params(
            tradeoff=self.best_params_["tradeoff"], max_iter=max(n_iter, 1), early_stopping=False
        )
        inputs = whole.inputs
        qid = {} if inputs.qid is None else {"qid": inputs.qid}
        with warnings.catch_warnings():
            if n_iter == 0:  # the search has chosen the constant: nothing to warn of
                warnings.simplefilter("ignore", BudgetWarning)
            if allowed is None:
                model.fit(inputs.X, inputs.y, inputs.weight, **qid)
                return model.truncate(min(n_iter, model.n_iter_))
        fitted = _fitted_with(model, inputs, np.frombuffer(allowed, dtype=bool), threads)
        return fitted.truncate(min(n_iter, fitted.n_iter_))

    # -- what scikit-learn asks -------------------------------------------------------------------

    def get_metadata_routing(self) -> Any:
        """Say which metadata the search asks for: what it or its estimator was told to ask for.

        Groups are asked for unless ``cv`` is a splitter that has no use for them.
        """
        requests = self._get_metadata_request()
        inner = get_routing_for_object(self.estimator)
        for method in ("fit", "score"):
            mine, theirs = getattr(requests, method), getattr(inner, method).requests
            for name, request in mine.requests.items():
                if request is None and theirs.get(name) is not None:
                    mine.add_request(param=name, alias=theirs[name])
        if requests.fit.requests["groups"] is None:
            splits = get_routing_for_object(self.cv).split.requests
            by_number = self.cv is None or isinstance(self.cv, Integral)
            requests.fit.add_request(param="groups", alias=by_number or bool(splits.get("groups")))
        return requests


def _fitted_with(
    estimator: Miser, inputs: Inputs, allowed: NDArray[np.bool_], threads: Threads
) -> Miser:
    """A fitted estimator that uses only some features."""
    prepared, params = estimator.prepare(inputs, NO_INPUTS, threads), Parameters.of(estimator)
    watch = validation_of(estimator, prepared.schema)
    model = train(prepared, params, blank_model(prepared, params), watch, allowed=allowed)
    model.raise_if_cut_short()
    return fitted_like(estimator, prepared.schema, model)


def _trace_with(path: TradeoffPath, allowed: NDArray[np.bool_]) -> pd.DataFrame:
    """The trace of a model that pays no prices, but may use only some features."""
    models = path.models
    model = models.trainer.train(path.params(0.0), allowed)
    return trace_of(fitted_like(models.blank, models.schema, model))


class _Whole:
    """All data of a search, and parts of it."""

    def __init__(self, inputs: Inputs, groups: Any):
        # What splitters may look at: rows that are elsewhere have only their numbers here.
        self.rows = np.arange(inputs.X.shape[0]) if isinstance(inputs.X, Parted) else inputs.X
        others = (inputs.y, inputs.weight, inputs.qid, groups)
        # As scikit-learn's searches do it: what has no rows to choose from gets some.
        self.rows, *parts, self.groups = indexable(self.rows, *others)
        X = inputs.X if isinstance(inputs.X, Parted) else self.rows
        self.inputs = Inputs(X, *parts)

    def take(self, rows: Any) -> Inputs:
        if isinstance(self.inputs.X, Parted):
            return self._weighed(rows)
        values = (self.inputs.X, self.inputs.y, self.inputs.weight, self.inputs.qid)
        parts = [None if value is None else _safe_indexing(value, rows) for value in values]
        return Inputs(*parts)

    def weighing(self) -> _Whole:
        """The rows that weigh anything."""
        weight = self.inputs.weight
        if weight is None or np.all(weight):
            return self
        kept = np.flatnonzero(weight)
        groups = None if self.groups is None else _safe_indexing(self.groups, kept)
        return _Whole(self.take(kept), groups)

    def _weighed(self, rows: Any) -> Inputs:
        """Rows that stay where they are: the others weigh nothing, and are as good as not there."""
        if len(np.unique(rows)) < len(rows):
            raise ValueError("a fold has rows twice, which Dask collections do not allow")
        inputs, n = self.inputs, len(self.rows)
        weight = np.ones(n) if inputs.weight is None else np.array(inputs.weight, dtype=np.float64)
        left_out = np.ones(n, dtype=bool)
        left_out[rows] = False
        return Inputs(inputs.X, inputs.y, np.where(left_out, 0.0, weight), inputs.qid)


def _mean_over_folds(traces: Sequence[pd.DataFrame], n_folds: int) -> pd.DataFrame:
    """Mean cost and score of the rounds that every fold has reached."""
    import pandas as pd

    rows = pd.concat(traces, ignore_index=True)
    by_round = rows.groupby(["tradeoff", "resources", "n_iter"])
    means = by_round[["n_trees", "feature_cost", "tree_cost", "cost", "score", "n_features"]].mean()
    means["score_std"] = by_round["score"].std(ddof=0)
    means["cost_max"] = by_round["cost"].max()
    return means[by_round.size() == n_folds].reset_index()
