"""The accuracy that each budget buys: a path of trade-offs, and the choice of a model.

One call trains a model per trade-off on data that is binned once, and keeps the whole trace of
each: what it costs and how well it scores after every round. A budget then picks among all of them.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_classifier
from sklearn.utils import _safe_indexing
from sklearn.utils._param_validation import HasMethods, Interval
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, check_random_state

from greedymiser.costs import CostModel
from greedymiser.estimators import BudgetWarning, Checked, Miser, Sample, check_same_queries
from greedymiser.scores import score_name
from greedymiser.threads import Threads, thread_count

if TYPE_CHECKING:
    import pandas as pd

# Between the smallest positive trade-off and 0 there is always room; this is how far to jump.
STEP_TOWARDS_ZERO = 10.0

# Neighbours whose ratio is below this have nothing worth a model between them.
CLOSE = 1.2

# A search tries trade-offs from the highest that pays down to this fraction of it, and 0.
GRID_SPAN = 1e4


class TradeoffCurve:
    """What each trade-off costs and scores, after every round.

    Attributes
    ----------
    points : DataFrame
        One row per trade-off, ascending: the round with the best validation score. Columns
        ``tradeoff, n_iter, n_trees, feature_cost, tree_cost, cost, score, n_features``, and
        ``test_score`` where test data was given.
    traces : DataFrame
        The same columns for every trade-off and every round, from round 0, the constant model.
    models : list of estimators
        One per row of ``points``, with all its rounds.
    scoring : str
        Name of the score. Higher is better.
    cost_unit : str
        What costs are counted in, for labels.
    """

    def __init__(
        self, traces: pd.DataFrame, models: Sequence[Miser], scoring: str, cost_unit: str = ""
    ):
        self.traces = traces
        self.models = list(models)
        self.scoring = scoring
        self.cost_unit = cost_unit
        chosen = _best_first(traces).drop_duplicates("tradeoff")
        self.points = chosen.sort_values("tradeoff", ignore_index=True)

    def best(self, budget: float | None = None) -> Miser:
        """Best validation score among all models and all their prefixes that cost at most this.

        The estimator that is returned is fitted, and its ``cost_`` is within the budget.
        """
        row = self.best_row(budget)
        model = self.models[int(np.flatnonzero(self.points["tradeoff"] == row["tradeoff"])[0])]
        return model.truncate(int(row["n_iter"]))

    def best_row(self, budget: float | None = None) -> pd.Series:
        """The row of ``traces`` that ``best`` returns the model of."""
        affordable = self.traces
        if budget is not None:
            if not budget >= 0:
                raise ValueError(f"budget must not be negative, got {budget}")
            affordable = affordable[affordable["cost"] <= budget]
        if affordable.empty:
            raise ValueError(
                f"no model costs at most {budget}; the cheapest costs {self.traces['cost'].min():g}"
            )
        return _best_first(affordable).iloc[0]

    def pareto(self) -> pd.DataFrame:
        """Rows of ``traces`` that no other row beats: none is as cheap and scores better."""
        scored = self.traces[self.traces["score"].notna()]
        ordered = scored.sort_values(["cost", "score"], ascending=[True, False])
        record = ordered["score"].cummax()
        is_new = record > record.shift(fill_value=-np.inf)
        return ordered[is_new].reset_index(drop=True)

    def to_frame(self) -> pd.DataFrame:
        """Return a copy of ``points``."""
        return self.points.copy()

    def to_csv(self, path: str | Path) -> None:
        """Write ``points`` as CSV."""
        self.points.to_csv(path, index=False)

    def plot(self, ax: Any = None) -> Any:
        """Draw score against cost: a trace per trade-off, the chosen rounds circled (Figure 1)."""
        from greedymiser.plotting import plot_curve

        return plot_curve(self, ax)

    def plot_features(self, ax: Any = None) -> Any:
        """Draw the share of features bought, by price, against the trade-off (Figure 2)."""
        from greedymiser.plotting import plot_features

        return plot_features(self, ax)

    def report(self, path: str | Path, title: str | None = None) -> None:
        """Write a page that shows the curve, and the model that a budget buys."""
        from greedymiser.report import write_report

        write_report(self, path, title)

    def __repr__(self) -> str:
        return f"<TradeoffCurve of {len(self.models)} trade-offs>\n{self.points}"


def tradeoff_curve(
    estimator: Miser,
    X: Any,
    y: ArrayLike,
    *,
    X_val: Any,
    y_val: ArrayLike,
    sample_weight: ArrayLike | None = None,
    sample_weight_val: ArrayLike | None = None,
    qid: ArrayLike | None = None,
    qid_val: ArrayLike | None = None,
    X_test: Any = None,
    y_test: ArrayLike | None = None,
    sample_weight_test: ArrayLike | None = None,
    qid_test: ArrayLike | None = None,
    tradeoffs: int | Sequence[float] = 8,
    scoring: Any = None,
    n_jobs: int | None = None,
    verbose: int = 0,
    callback: Callable[[int, int], object] | None = None,
    cost_unit: str = "",
) -> TradeoffCurve:
    """Train a model per trade-off and keep what each costs and scores after every round.

    Parameters
    ----------
    estimator : MiserRegressor, MiserClassifier or MiserRanker
        Its ``tradeoff`` is ignored; everything else is kept, but that early stopping is off unless
        it is True: the traces run to ``max_iter``. It is not fitted itself.
    X, y, sample_weight, qid
        Training data.
    X_val, y_val, sample_weight_val, qid_val
        Validation data, which rounds and models are chosen by.
    X_test, y_test, sample_weight_test, qid_test : optional
        Test data, which is only scored.
    tradeoffs : int or sequence of float
        Trade-offs to train, or how many to choose: from the one at which nothing pays down to 0,
        each new one where the curve has its widest gap in cost.
    scoring : scorer name or callable, optional
        As the estimator's ``scoring``, which it replaces.
    n_jobs : int, optional
        Threads, as the estimator's ``n_jobs``, which it replaces.
    verbose : int
        1 says after each model how far things are.
    callback : callable, optional
        Called with the number of models that are done, and how many there will be.
    cost_unit : str
        What costs are counted in, for labels.

    Returns
    -------
    TradeoffCurve
        An interruption returns the models that were finished.
    """
    _require_pandas()
    blank = _configured(estimator, scoring, n_jobs)
    total = int(tradeoffs) if isinstance(tradeoffs, int | Integral) else len(tradeoffs)
    with Threads(thread_count(blank.n_jobs)) as threads:
        path = _Path(
            blank,
            Sample(X, y, sample_weight, qid),
            Sample(X_val, y_val, sample_weight_val, qid_val),
            Sample(X_test, y_test, sample_weight_test, qid_test),
            threads,
        )
        try:
            for tradeoff in path.choose(tradeoffs):
                path.train(tradeoff)
                if verbose:
                    sys.stderr.write(f"{path.last_line()}  ({len(path.models)}/{total})\n")
                if callback is not None:
                    callback(len(path.models), total)
        except KeyboardInterrupt:
            if not path.models:
                raise
            done = len(path.models)
            warnings.warn(f"interrupted: {done} of {total} trade-offs done", stacklevel=2)
        return path.curve(cost_unit)


class _Path:
    """Models for one trade-off after the other, on data that is checked and binned once."""

    def __init__(
        self, estimator: Miser, train: Sample, valid: Sample, test: Sample, threads: Threads
    ):
        if valid.X is None or valid.y is None:
            raise ValueError("tradeoff_curve needs X_val and y_val: rounds are chosen by them")
        self.models: dict[float, Miser] = {}
        self._traces: list[pd.DataFrame] = []
        self._blank = estimator
        self._threads = threads
        self._prepared = estimator._prepare(train, valid, self._threads)
        check_same_queries(train, test)
        data = estimator._held_out(test, estimator._loss)
        self._test = None
        if data is not None:
            binned = self._prepared.mapper.transform(data.table, data.rows, self._threads)
            self._test = Checked(data, binned)

    def choose(self, tradeoffs: int | Sequence[float]) -> Iterator[float]:
        """Yield the trade-offs that are asked for, or find good ones as the models come in."""
        if not isinstance(tradeoffs, int | Integral):
            yield from dict.fromkeys(_checked_tradeoff(value) for value in tradeoffs)
            return
        n = int(tradeoffs)
        if n < 1:
            raise ValueError(f"tradeoffs must be at least 1, got {n}")
        yield 0.0
        highest = self.highest()
        if n > 1 and highest > 0:
            yield highest
        while 1 < len(self.models) < n:
            following = self._widest_gap()
            if following is None:
                return
            yield following

    def highest(self) -> float:
        """Least trade-off at which no feature that costs anything pays at the first root."""
        model = self._untrained(0.0)
        grower = model._grower(self._prepared, self._threads)
        gains = model._root_gains(grower, model._training_set(self._prepared.train, self._threads))
        prices = grower.ledger.prices
        dear = (prices > 0) & (gains > 0)
        highest = np.max(gains[dear] / prices[dear], initial=0.0)
        return float(np.nextafter(highest, np.inf)) if highest > 0 else 0.0

    def _widest_gap(self) -> float | None:
        """A trade-off between the two neighbours whose costs differ most; None if none differ."""
        known = sorted(self.models)
        costs = [self._cost(tradeoff) for tradeoff in known]
        gaps = np.abs(np.diff(costs))
        # Some gaps cannot be filled: what is sold in one piece has no price in between.
        low, high = np.array(known[:-1]), np.array(known[1:])
        gaps[(low > 0) & (high < low * CLOSE)] = 0.0
        if not gaps.max() > 0:
            return None
        i = int(np.argmax(gaps))
        return (
            high[i] / STEP_TOWARDS_ZERO
            if low[i] == 0
            else float(np.sqrt(low[i]) * np.sqrt(high[i]))
        )

    def _cost(self, tradeoff: float) -> float:
        model = self.models[tradeoff]
        return model.truncate(model._best_iter).cost_

    def _untrained(self, tradeoff: float) -> Miser:
        model = copy.copy(self._blank)
        model.tradeoff = tradeoff
        return model

    def train(self, tradeoff: float) -> None:
        """Train one model and write its trace down."""
        model = self._untrained(tradeoff)
        model.costs_ = model._read_costs()
        model._boost(self._prepared, self._threads)
        trace = _trace(model)
        if self._test is not None:
            trace["test_score"] = self._test_scores(model)
        self.models[tradeoff] = model
        self._traces.append(trace)

    def _test_scores(self, model: Miser) -> list[float]:
        """Score of the test rows after every round."""
        assert self._test is not None
        start = copy.copy(model)
        start._shorten(0)
        validation = start._validation(self._test, self._threads)
        scores = [validation.score()]
        ensemble = model.ensemble_
        for round_ in range(ensemble.n_iter):
            for k in range(ensemble.n_outputs):
                validation.add_tree(ensemble.tree(round_ * ensemble.n_outputs + k), k)
            scores.append(validation.score())
        return scores

    def last_line(self) -> str:
        """How the last model came out, in a line."""
        tradeoff, model = list(self.models.items())[-1]
        best = model._best_iter
        score = model.validation_score_[best]
        return f"tradeoff {tradeoff:.3g}: cost {self._cost(tradeoff):g}, score {score:.5g}"

    def curve(self, cost_unit: str) -> TradeoffCurve:
        import pandas as pd

        traces = pd.concat(self._traces, ignore_index=True)
        traces = traces.sort_values(["tradeoff", "n_iter"], ignore_index=True)
        models = [self.models[tradeoff] for tradeoff in sorted(self.models)]
        return TradeoffCurve(traces, models, _score_name(self._blank), cost_unit)


def _require_pandas() -> None:
    """Say what is missing before anything is trained."""
    try:
        import pandas  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "a trade-off curve is a table and needs pandas, which is not installed; "
            "the extra greedymiser[frames] brings it"
        ) from error


def _configured(estimator: Miser, scoring: Any, n_jobs: int | None) -> Miser:
    """A copy to work with; the user's estimator stays as it is."""
    if not isinstance(estimator, Miser):
        raise TypeError(f"estimator must be one of the Miser estimators, got {estimator!r}")
    changes: dict[str, Any] = {"warm_start": False, "verbose": 0}
    if estimator.early_stopping == "auto":  # a curve wants whole traces, as in the paper
        changes["early_stopping"] = False
    if scoring is not None:
        changes["scoring"] = scoring
    if n_jobs is not None:
        changes["n_jobs"] = n_jobs
    return clone(estimator).set_params(**changes)


def _checked_tradeoff(value: float) -> float:
    if not 0 <= value < np.inf:
        raise ValueError(f"tradeoffs must be finite and not negative, got {value}")
    return float(value)


def _score_name(estimator: Miser) -> str:
    return score_name(estimator.scoring, estimator._loss)


def _trace(model: Miser) -> pd.DataFrame:
    """What a model costs and scores after every round, from the constant on."""
    import pandas as pd

    rounds = np.arange(model.n_iter_ + 1)
    n_trees = rounds * model.ensemble_.n_outputs
    first_use = model.ensemble_.first_uses()
    bills = _bills(model.costs_, first_use, len(rounds))
    per_tree = model.costs_.tree_cost
    return pd.DataFrame(
        {
            "tradeoff": model.tradeoff,
            "n_iter": rounds,
            "n_trees": n_trees,
            "feature_cost": bills,
            "tree_cost": per_tree * n_trees,
            # The same rounding as cost_: one sum of all resources and all trees.
            "cost": _bills(model.costs_, first_use, len(rounds), n_trees),
            "score": model.validation_score_,
            "n_features": [sum(use < n for use in first_use.values()) for n in rounds],
        }
    )


def _bills(
    costs: CostModel, first_use: dict[int, int], n: int, n_trees: NDArray[np.intp] | None = None
) -> list[float]:
    """Bill of the features in use after each round, with the trees where those are given."""
    by_round: dict[int, list[int]] = {}
    for feature, use in first_use.items():
        by_round.setdefault(use, []).append(feature)
    owned = np.zeros(len(costs.resource_names), dtype=bool)
    bills = []
    for i in range(n):
        for feature in by_round.get(i - 1, []):
            owned[list(costs.needs[feature])] = True
        bills.append(costs.bill(owned, 0 if n_trees is None else int(n_trees[i])))
    return bills


def _has(method: str) -> Callable[[Any], bool]:
    def check(search: Any) -> bool:
        getattr(getattr(search, "best_estimator_", search.estimator), method)
        return True

    return check


class MiserSearchCV(MetaEstimatorMixin, BaseEstimator):
    """The best model for a budget, found by cross-validation.

    Every fold trains a path of trade-offs under the budget. The trade-off and the number of rounds
    with the best mean score are trained anew on all data, under the budget as well.

    Parameters
    ----------
    estimator : MiserRegressor, MiserClassifier or MiserRanker
    budget : float or None
        Most that one prediction of the final model may cost.
    tradeoffs : int or sequence of float
        Trade-offs to try, or how many: spaced evenly, in logarithm, from the one at which nothing
        pays, and 0.
    cv : int or splitter
        As in scikit-learn; for a ranker, ``qid`` are the groups.
    scoring : scorer name or callable, optional
        As the estimator's ``scoring``, which it replaces.
    random_state : int, RandomState or None
        Only used to shuffle the folds where ``cv`` is a number.

    Attributes
    ----------
    best_estimator_ : estimator
        Fitted on all data; its ``cost_`` is within the budget.
    best_params_ : dict
        ``tradeoff`` and ``max_iter`` of the best model.
    best_score_ : float
        Its mean validation score.
    cv_results_ : DataFrame
        Mean and spread over folds of cost and score, for every trade-off and round.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "estimator": [HasMethods(["fit", "predict", "prediction_costs"])],
        "budget": [Interval(Real, 0, None, closed="left"), None],
        "tradeoffs": [Interval(Integral, 1, None, closed="left"), "array-like"],
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
        cv: Any = 5,
        scoring: Any = None,
        random_state: Any = None,
    ):
        self.estimator = estimator
        self.budget = budget
        self.tradeoffs = tradeoffs
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
    ) -> Self:
        """Search by cross-validation, then fit the best model on all data."""
        self._validate_params()
        _require_pandas()
        base = _configured(self.estimator, self.scoring, None).set_params(budget=self.budget)
        whole = _Whole(X, y, sample_weight, qid)
        nothing = Sample(None, None, None)
        traces = []
        with Threads(thread_count(base.n_jobs)) as threads:
            tradeoffs = self._grid(base, whole, threads)
            for learn, check in self._folds(base, whole):
                parts = (whole.take(learn), whole.take(check), nothing)
                path = _Path(clone(base), *parts, threads)
                for tradeoff in tradeoffs:
                    path.train(tradeoff)
                traces.append(path.curve("").traces)
        self.cv_results_ = _mean_over_folds(traces)
        best = _best_first(self.cv_results_).iloc[0]
        self.best_score_ = float(best["score"])
        self.best_params_ = {"tradeoff": float(best["tradeoff"]), "max_iter": int(best["n_iter"])}
        self.best_estimator_ = self._refit(base, whole)
        return self

    def _grid(self, base: Miser, whole: _Whole, threads: Threads) -> list[float]:
        if not isinstance(self.tradeoffs, int | Integral):
            return list(dict.fromkeys(_checked_tradeoff(value) for value in self.tradeoffs))
        nothing = Sample(None, None, None)
        highest = _Path(clone(base), whole.sample, whole.sample, nothing, threads).highest()
        if self.tradeoffs == 1 or highest == 0:
            return [0.0]
        # From the highest down, so that few are high ones.
        return [0.0, *np.geomspace(highest, highest / GRID_SPAN, int(self.tradeoffs) - 1)]

    def _folds(self, base: Miser, whole: _Whole) -> Iterator[tuple[Any, Any]]:
        from sklearn.model_selection import GroupKFold, KFold, StratifiedKFold, check_cv

        splitter = self.cv
        if isinstance(splitter, Integral):
            seed = check_random_state(self.random_state).randint(2**31)
            if whole.sample.qid is not None:
                splitter = GroupKFold(splitter)
            elif is_classifier(base):
                splitter = StratifiedKFold(splitter, shuffle=True, random_state=seed)
            else:
                splitter = KFold(splitter, shuffle=True, random_state=seed)
        splitter = check_cv(splitter, whole.sample.y, classifier=is_classifier(base))
        yield from splitter.split(whole.sample.X, whole.sample.y, whole.sample.qid)

    def _refit(self, base: Miser, whole: _Whole) -> Miser:
        n_iter = self.best_params_["max_iter"]
        model = clone(base).set_params(
            tradeoff=self.best_params_["tradeoff"], max_iter=max(n_iter, 1), early_stopping=False
        )
        sample = whole.sample
        qid = {} if sample.qid is None else {"qid": sample.qid}
        with warnings.catch_warnings():
            if n_iter == 0:  # the search has chosen the constant: nothing to warn of
                warnings.simplefilter("ignore", BudgetWarning)
            model.fit(sample.X, sample.y, sample.weight, **qid)
        return model.truncate(min(n_iter, model.n_iter_))

    @property
    def cost_(self) -> float:
        """What one prediction of the best model costs."""
        return self.best_estimator_.cost_

    @property
    def n_features_in_(self) -> int:
        return self.best_estimator_.n_features_in_

    @property
    def classes_(self) -> Any:
        return self.best_estimator_.classes_

    def predict(self, X: Any) -> Any:
        """Predict with the best model."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict(X)

    @available_if(_has("predict_proba"))
    def predict_proba(self, X: Any) -> Any:
        """Class probabilities of the best model."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict_proba(X)

    @available_if(_has("decision_function"))
    def decision_function(self, X: Any) -> Any:
        """Raw predictions of the best model."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.decision_function(X)

    def prediction_costs(self, X: Any) -> Any:
        """What each row's prediction costs."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.prediction_costs(X)

    def score(self, X: Any, y: ArrayLike, **params: Any) -> float:
        """Score of the best model, as its own ``score`` has it."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.score(X, y, **params)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = self.estimator.__sklearn_tags__()
        tags.estimator_type = inner.estimator_type
        tags.classifier_tags, tags.regressor_tags = inner.classifier_tags, inner.regressor_tags
        tags.input_tags, tags.target_tags = inner.input_tags, inner.target_tags
        return tags


class _Whole:
    """All data of a search, and parts of it."""

    def __init__(self, X: Any, y: Any, weight: Any, qid: Any):
        self.sample = Sample(X, y, weight, qid)

    def take(self, rows: Any) -> Sample:
        values = (self.sample.X, self.sample.y, self.sample.weight, self.sample.qid)
        parts = [None if value is None else _safe_indexing(value, rows) for value in values]
        return Sample(*parts)


def _best_first(rows: pd.DataFrame) -> pd.DataFrame:
    """Best score first; of equals the cheapest, then the shortest."""
    return rows.sort_values(["score", "cost", "n_trees"], ascending=[False, True, True])


def _mean_over_folds(traces: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Mean cost and score of the rounds that every fold has reached."""
    import pandas as pd

    rows = pd.concat(traces, ignore_index=True)
    by_round = rows.groupby(["tradeoff", "n_iter"])
    means = by_round[["n_trees", "feature_cost", "tree_cost", "cost", "score", "n_features"]].mean()
    means["score_std"] = by_round["score"].std(ddof=0)
    means["cost_max"] = by_round["cost"].max()
    return means[by_round.size() == len(traces)].reset_index()
