"""Early exits: rows leave between the rounds of any fitted ensemble.

Over an ensemble without costs (tradeoff 0) these are the paper's baselines, over a miser the
combination that it leaves to future work.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.metrics import check_scoring
from sklearn.utils._param_validation import HasMethods, Interval
from sklearn.utils.validation import check_is_fitted

from greedymiser.cascades._ensemble_based import OverEnsemble, RankerAnswers, taken_or_fitted
from greedymiser.data.tables import is_lazy, or_lazily
from greedymiser.estimators import (
    ClassifierAnswers,
    MiserClassifier,
    MiserRanker,
    documented_like,
)
from greedymiser.losses.ndcg import ndcg_depth, ndcg_score, queries_or_one, query_order
from greedymiser.model.exit_rules import Confident, ExitRule, Proximity, check_queries, place_scores
from greedymiser.model.links import (
    Floats,
    has_log_link,
    largest_probability,
)
from greedymiser.model.predictor import Predictor
from greedymiser.model.trees import stages_every
from greedymiser.scoring import TOTAL_COST
from greedymiser.scoring.names import refuse_misspelt_score
from greedymiser.scoring.total_cost import total_cost
from greedymiser.training.preparation import Inputs

if TYPE_CHECKING:
    import pandas as pd

# Thresholds that are tried to find the best.
TRIED = 50

# Scores that are looked at to find thresholds worth trying: a sample is enough.
MOST_LOOKED_AT = 200_000


@dataclass(frozen=True)
class Exits:
    """What one threshold does to some rows."""

    threshold: float
    # Raw predictions with which rows leave, (n_outputs, n), as they are compared with each other.
    raw: Floats
    # Stage after which each row leaves, and what it pays.
    left: NDArray[np.intp]
    costs: Floats


class EarlyExit(OverEnsemble):
    """What both early exits share. Subclasses say who leaves.

    Parameters
    ----------
    estimator : fitted or unfitted estimator of this library
        A fitted one is taken as it is (also within scikit-learn's ``FrozenEstimator``, which
        protects it from being cloned); an unfitted one is cloned and fitted.
    threshold : float or None
        The paper's s. None: chosen for the budget, or by the total cost, on the data that ``fit``
        is given; without either, rows never leave.
    budget : float or None
        What a prediction may cost on average, on the data that the threshold is chosen on. Of the
        thresholds within it, the one with the best score is taken.
    every : int
        Rounds between exits.
    scoring : scorer name, callable or None
        What thresholds are chosen by. "total_cost" (a classifier with ``error_costs``) needs no
        budget: the threshold is that of the least sum of bills and errors.
    n_jobs : int or None
        Threads; None for all cores.

    Attributes
    ----------
    estimator_ : the fitted ensemble
    threshold_ : float
    exits_ : array
        Rounds after which rows may leave.
    predictor_ : Predictor
        The finished model, for serving and saving.
    cost_, cost_max_ : float
        The most that a prediction can cost: that of a row that never leaves early.
    features_used_, resources_used_ : list
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "estimator": [HasMethods(["fit", "predict"])],
        "threshold": [Interval(Real, 0, np.inf, closed="both"), None],
        "budget": [Interval(Real, 0, np.inf, closed="both"), None],
        "every": [Interval(Integral, 1, None, closed="left")],
        "scoring": [str, callable, None],
        "n_jobs": [Integral, None],
    }

    # A threshold with which no row ever leaves.
    _never: ClassVar[float]

    def __init__(
        self,
        estimator: Any,
        *,
        threshold: float | None = None,
        budget: float | None = None,
        every: int = 10,
        scoring: Any = None,
        n_jobs: int | None = None,
    ):
        self.estimator = estimator
        self.threshold = threshold
        self.budget = budget
        self.every = every
        self.scoring = scoring
        self.n_jobs = n_jobs

    # -- what subclasses say ----------------------------------------------------------------------

    def _rule(self, threshold: float) -> ExitRule:
        """Who leaves, at a threshold."""
        raise NotImplementedError

    def _tempting(self, staged: Sequence[Floats], starts: NDArray[np.intp]) -> Floats:
        """Thresholds at which single rows would change their mind, in any order."""
        raise NotImplementedError

    def _lowest(self) -> float:
        """The threshold at which most rows leave as soon as they can."""
        return 0.0

    # -- fitting ----------------------------------------------------------------------------------

    def _fit(
        self, X: Any, y: Any, weight: Any, qid: Any, X_val: Any, y_val: Any, qid_val: Any
    ) -> Self:
        self._validate_params()
        if self.threshold is not None and self.budget is not None:
            raise ValueError(
                f"threshold={self.threshold} and budget={self.budget} were given; "
                "a budget is for choosing the threshold"
            )
        if (X_val is None) != (y_val is None):
            missing = "X_val" if X_val is None else "y_val"
            raise ValueError(f"X_val and y_val must be given together, but {missing} is missing")
        inputs, inputs_val = Inputs(X, y, weight, qid), Inputs(X_val, y_val, None, qid_val)
        self.estimator_ = taken_or_fitted(self._inner(), inputs, inputs_val)
        self._check_loss()
        never = self._never if self.threshold is None else float(self.threshold)
        self._set_threshold(never)
        if self.budget is not None or (self.threshold is None and self.scoring == TOTAL_COST):
            if X_val is not None:
                X, y, weight, qid = X_val, y_val, None, qid_val
            self._set_threshold(self._chosen(X, y, weight, qid))
        else:
            self.estimator_.check_features(Inputs(X, y), reset=False)
        return self

    def _check_loss(self) -> None:
        """Raise if the rule has no meaning for the raw predictions of the ensemble."""
        if self.estimator_.is_mean_:
            raise ValueError(
                "early exits need trees that are added up, as those of boosting are, but "
                f"estimator={self.estimator_!r} is a forest, which predicts the mean of all of "
                "them; estimator.truncate(n) is the forest of its first n trees"
            )

    def _set_threshold(self, threshold: float) -> None:
        base: Predictor = self.estimator_.predictor_
        stages = stages_every(self.estimator_.ensemble_, self.every)
        self.predictor_ = replace(
            base, stages=stages, rule=None, mean_cost=None, n_jobs=self.n_jobs
        )
        self.threshold_ = threshold
        rule = self._rule(threshold) if len(stages) > 1 else None
        self.predictor_ = replace(self.predictor_, rule=rule)

    def _chosen(self, X: Any, y: Any, weight: Any, qid: Any) -> float:
        """Threshold with the best score of those that fit the budget, if there is one."""
        points = self._points(X, y, weight, qid, TRIED)
        limit = np.inf if self.budget is None else self.budget
        affordable = [point for point in points if point[1] <= limit]
        if not affordable:
            least = min(cost for _, cost, _ in points)
            raise ValueError(
                f"budget={limit:g} is not reached by early exits: a prediction costs at "
                f"least {least:g} on average, since every row meets the first {self.every} rounds"
            )
        # Of equal scores the cheapest, of equal costs the most cautious.
        return max(affordable, key=lambda point: (point[2], -point[1], point[0]))[0]

    # -- sweeping ---------------------------------------------------------------------------------

    def sweep(
        self, X: Any, *, qid: ArrayLike | None = None, thresholds: int | Sequence[float] = 20
    ) -> Iterator[Exits]:
        """Say what each of several thresholds does to some rows, from low to high.

        The trees are evaluated once for all of them.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n, n_features)
        qid : array-like of shape (n,), optional
            For rankers: the query of each row.
        thresholds : int or sequence of float
            Thresholds, or how many to choose at most: from the one at which every row leaves as
            soon as it can to the one at which none ever does.
        """
        table = self._table(X)
        order, starts = _by_query(qid, table.n_rows)
        stops = [stage.last for stage in self.predictor_.stages]
        staged = [raw[:, order] for raw in self.predictor_.staged_raw_predict(table, stops)]
        back, bills = np.argsort(order), self.predictor_.staged_bills(table)
        each = np.arange(table.n_rows)
        for threshold in self._thresholds(staged, starts, thresholds):
            rule = self._rule(threshold)
            raw, left = _leave(staged, starts, rule)
            raw, left = self.predictor_.finish(raw, left, starts)[:, back], left[back]
            yield Exits(threshold, raw, left, bills[left, each])

    def curve(
        self,
        X: Any,
        y: ArrayLike,
        *,
        sample_weight: ArrayLike | None = None,
        qid: ArrayLike | None = None,
        thresholds: int | Sequence[float] = 20,
    ) -> pd.DataFrame:
        """Mean cost and score at several thresholds; see ``sweep``.

        Returns
        -------
        DataFrame with columns threshold, cost and score
        """
        import pandas as pd

        check_is_fitted(self, "predictor_")
        points = self._points(X, y, sample_weight, qid, thresholds)
        return pd.DataFrame(points, columns=["threshold", "cost", "score"])

    def _points(
        self, X: Any, y: Any, weight: Any, qid: Any, thresholds: int | Sequence[float]
    ) -> list[tuple[float, float, float]]:
        """Threshold, mean cost and score."""
        if weight is not None and not np.any(weight):
            raise ValueError("sample_weight must not be 0 for every row")
        X = X.compute() if is_lazy(X) else X  # once, for all thresholds
        return [
            (
                exits.threshold,
                float(np.average(exits.costs, weights=weight)),
                self._score_of(exits, X, y, weight, qid),
            )
            for exits in self.sweep(X, qid=qid, thresholds=thresholds)
        ]

    def _score_of(self, exits: Exits, X: Any, y: Any, weight: Any, qid: Any) -> float:
        """Score at a threshold, given what it does to the rows."""
        # The scorer meets an ordinary estimator that happens to know these rows by heart.
        model = copy.copy(self)
        model._set_threshold(exits.threshold)

        def recite(some: Any, qid: Any = None) -> Floats:
            return exits.raw if some is X else type(self)._raw_predict(model, some, qid)

        model.__dict__["_raw_predict"] = recite
        if self.scoring == TOTAL_COST:
            model.__dict__["_costs_of"] = lambda asked: exits.costs  # of X, which alone is asked
            return -total_cost(model, X, y, sample_weight=weight).total
        weights = {} if weight is None else {"sample_weight": weight}
        ours = [] if self.predictor_.error_costs is None else [TOTAL_COST]
        refuse_misspelt_score(self.scoring, ours)
        return float(check_scoring(self, self.scoring)(model, X, y, **weights))

    def _thresholds(
        self, staged: Sequence[Floats], starts: NDArray[np.intp], wanted: int | Sequence[float]
    ) -> Sequence[float]:
        if not isinstance(wanted, int | Integral):
            for threshold in wanted:
                if not float(threshold) >= 0:
                    raise ValueError(f"thresholds must not be negative, got {threshold}")
            return sorted({float(threshold) for threshold in wanted})
        if wanted < 2:
            raise ValueError(f"thresholds must be at least 2, got {wanted}")
        tempting = self._tempting(staged[:-1], starts)
        inner = np.array([])
        if len(tempting):
            inner = np.quantile(tempting, np.linspace(0, 1, wanted), method="higher")[1:-1]
        return sorted({self._lowest(), *inner.tolist(), self._never})

    # -- accounts ---------------------------------------------------------------------------------

    @property
    def exits_(self) -> NDArray[np.intp]:
        return np.array([stage.last for stage in self.predictor_.stages[:-1]], dtype=np.intp)


@documented_like(EarlyExit)
class EarlyExitClassifier(ClassifierMixin, ClassifierAnswers, EarlyExit):
    """A row leaves when its most likely class is likely enough.

    An exit after every ``every`` rounds; a row leaves when its largest class probability exceeds
    the threshold. The default score is accuracy.

    Examples
    --------
    >>> from greedymiser import EarlyExitClassifier, MiserClassifier
    >>> from greedymiser.datasets import load_thyroid
    >>> data = load_thyroid()
    >>> model = MiserClassifier(costs=data.costs, max_iter=60).fit(data.X_train, data.y_train)
    >>> hasty = EarlyExitClassifier(model, threshold=0.99).fit(data.X_test, data.y_test)
    >>> bool(hasty.prediction_costs(data.X_test).mean() < model.cost_)
    True
    """

    _never = 1.0
    _bases = (MiserClassifier,)
    _wants = "an estimator of type MiserClassifier"

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **EarlyExit._parameter_constraints,
        "threshold": [Interval(Real, 0, 1, closed="both"), None],
    }

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        X_val: Any = None,
        y_val: ArrayLike | None = None,
    ) -> Self:
        """Fit the ensemble if it is not fitted, and choose the threshold if there is a budget.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n, n_features)
        y : array-like of shape (n,)
        sample_weight : array-like of shape (n,), optional
        X_val, y_val : optional
            Data to choose the threshold on; without it, X and y. On rows that the ensemble was
            fitted to, the chosen threshold would let rows leave too early.
        """
        return self._fit(X, y, sample_weight, None, X_val, y_val, None)

    def _learner(self) -> Any:
        inner = getattr(self, "estimator_", self.estimator)
        return getattr(inner, "best_estimator_", inner)

    @or_lazily
    def prediction_costs(self, X: Any) -> Floats:
        """What each row pays: the trees that it meets, and the resources that those trees need."""
        return self._costs_of(X)

    def _check_loss(self) -> None:
        super()._check_loss()
        if not has_log_link(self.estimator_.schema_.loss):
            raise ValueError(
                "early exits read class probabilities by the link of the log-loss, but the "
                f"estimator has loss={self.estimator_.loss!r}"
            )

    def _rule(self, threshold: float) -> ExitRule:
        return Confident(threshold)

    def _tempting(self, staged: Sequence[Floats], starts: NDArray[np.intp]) -> Floats:
        return _sample([largest_probability(raw) for raw in staged])


@documented_like(EarlyExit)
class EarlyExitRanker(RankerAnswers, EarlyExit):
    """A document leaves when it is too far below the best of its query.

    The proximity threshold of Cambazoglu et al. (2010): at the i-th of E exits, one after every
    ``every`` rounds, a document leaves if it scores at least (E-i)/(E-1) times the threshold below
    the fifth best of its query. Documents that leave are ranked below those that stay. The default
    score is NDCG@5.

    Examples
    --------
    >>> import numpy as np
    >>> from greedymiser import EarlyExitRanker, MiserRanker
    >>> rng = np.random.default_rng(0)
    >>> X, qid = rng.standard_normal((400, 3)), np.repeat(np.arange(40), 10)
    >>> y = np.clip(np.round(X[:, 0] + X[:, 1] + 1), 0, 4)
    >>> ranker = MiserRanker(max_iter=30).fit(X, y, qid=qid)
    >>> hasty = EarlyExitRanker(ranker, threshold=0.1).fit(X, y, qid=qid)
    >>> bool(hasty.prediction_costs(X, qid).mean() <= ranker.cost_)
    True
    """

    _never = np.inf
    _bases = (MiserRanker,)
    _wants = "an estimator of type MiserRanker"

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        qid: ArrayLike | None = None,
        X_val: Any = None,
        y_val: ArrayLike | None = None,
        qid_val: ArrayLike | None = None,
    ) -> Self:
        """Fit the ensemble if it is not fitted, and choose the threshold if there is a budget.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n, n_features)
        y : array-like of shape (n,)
        sample_weight : array-like of shape (n,), optional
        qid : array-like of shape (n,), optional
            The query of each row, in any order. Without it, all rows are one query.
        X_val, y_val, qid_val : optional
            Data to choose the threshold on; without it, X, y and qid.
        """
        return self._fit(X, y, sample_weight, qid, X_val, y_val, qid_val)

    def _score_of(self, exits: Exits, X: Any, y: Any, weight: Any, qid: Any) -> float:
        k = 5 if self.scoring is None else ndcg_depth(self.scoring)
        if k is None:
            return super()._score_of(exits, X, y, weight, qid)
        query = queries_or_one(qid, exits.raw.shape[1])
        return ndcg_score(y, exits.raw[0], query, k=k, sample_weight=weight)

    def _rule(self, threshold: float) -> ExitRule:
        return Proximity(threshold, n_exits=len(self.predictor_.stages))

    def _tempting(self, staged: Sequence[Floats], starts: NDArray[np.intp]) -> Floats:
        rule = self._rule(1.0)
        assert isinstance(rule, Proximity)
        margins = []
        for stage, raw in enumerate(staged):
            bar = np.empty(raw.shape[1])
            place_scores(raw[0], starts, rule.place, bar)
            below = (bar - raw[0]) / rule.margin(stage)
            margins.append(below[np.isfinite(below) & (below > 0)])
        return _sample(margins)


def _by_query(qid: Any, n: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Order that brings the rows of each query together, and where each query starts."""
    check_queries(qid, n)
    return query_order(queries_or_one(qid, n))


def _leave(
    staged: Sequence[Floats], starts: NDArray[np.intp], rule: ExitRule
) -> tuple[Floats, NDArray[np.intp]]:
    """Raw predictions with which rows leave and the stage after which they do."""
    raw = staged[-1].copy()
    left = np.full(raw.shape[1], len(staged) - 1, dtype=np.intp)
    query = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    going = np.arange(raw.shape[1])
    for k, scores in enumerate(staged[:-1]):
        edges = np.append(0, np.cumsum(np.bincount(query[going], minlength=len(starts) - 1)))
        stays = rule.stays(scores[:, going], k, edges.astype(np.intp))
        gone = going[~stays]
        raw[:, gone], left[gone] = scores[:, gone], k
        going = going[stays]
    return raw, left


def _sample(parts: Sequence[Floats]) -> Floats:
    """All values, or evenly spaced ones where there are very many."""
    if not parts:
        return np.array([])
    values = np.concatenate(parts)
    return values[:: max(1, len(values) // MOST_LOOKED_AT)]
