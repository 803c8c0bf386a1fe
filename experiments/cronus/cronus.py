"""Cronus: a cascade whose stages weigh the trees of a fitted ensemble anew.

Chen, Xu, Weinberger, Chapelle and Kedem, "Classifier cascade for minimizing feature evaluation
cost" (AISTATS 2012). Every stage of the cascade is a weighted sum of the same trees. A row
whose score is not above the threshold of a stage leaves with that score; the others go on, and pay
for what the next stage needs beyond what they have paid for. Weights and thresholds of all stages
are learned together, from the stage-wise weights on:

1. The cascade is made soft and the cost smooth (``objective``). The cost is replaced by a
   quadratic that touches it from above, the rest is minimised by L-BFGS-B with weights >= 0, and
   the quadratic is made anew: a *sweep*. No sweep can raise the objective.
2. Weights near zero become zero. What each stage has paid for is now settled, and with true costs
   in the place of smooth ones, the stages are fitted again, with all trees that are free to them.
3. Thresholds become hard, and are chosen anew on validation data where there is any. Stages after
   which no row leaves are taken out.

Time is O(n T K) for each of the some 150 evaluations of the objective, memory O(n T).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import Bounds, minimize
from sklearn.metrics import r2_score
from sklearn.utils._param_validation import HasMethods, Interval
from sklearn.utils.parallel import _get_threadpool_controller

from experiments.cronus.objective import (
    Cascade,
    Charges,
    Floats,
    Objective,
    Relaxation,
    Tolls,
    TreeOutputs,
)
from greedymiser._core.progress import Bar
from greedymiser._core.threads import Threads, thread_count
from greedymiser.cascades._ensemble_based import OverEnsemble, RankerAnswers, taken_or_fitted
from greedymiser.data.tables import chosen
from greedymiser.estimators import Miser, MiserRanker, MiserRegressor
from greedymiser.losses import SquaredError
from greedymiser.model.exit_rules import Above
from greedymiser.model.predictor import Stage
from greedymiser.model.trees import Ensemble
from greedymiser.training.preparation import (
    Cases,
    Inputs,
    check,
    check_same_queries,
    encode_held_out,
)

# At the start, so large a share of the rows that reach a stage goes on.
SHARE_PASSING = 0.6

# Softness of the relaxation in the first sweep, where all weights count for what they are, and in
# the last, where all but tiny ones count as used. A weight of 1 is that of boosting.
SOFTEST, HARDEST = 1.0, 0.01

# Weights up to this are dropped after the last sweep.
TINY = 0.01

# Steps of L-BFGS: a sweep's bound is not worth more, and the last fit should not learn noise.
STEPS_PER_SWEEP = 10
STEPS_OF_LAST_FIT = 30

# A sweep that lowers the objective by a smaller share is the last if there are no costs to bound.
SETTLED = 1e-5


class Cronus(RankerAnswers, OverEnsemble):
    """A cascade of re-weighted trees: rows that do not look promising leave early and pay less.

    Over a stage-wise ensemble (``tradeoff=0`` in the estimator) this is the published method, over
    a miser the combination that the paper leaves to future work.

    Parameters
    ----------
    estimator : MiserRegressor or MiserRanker, with ``loss="squared_error"``
        A fitted one is taken as it is (also within scikit-learn's ``FrozenEstimator``, which
        protects it from being cloned); an unfitted one is cloned and fitted.
    n_stages : int
        Most stages; those after which no row leaves are taken out.
    tradeoff : float
        The drop in mean loss that a unit of mean cost must bring. 0 ignores costs.
    l1 : float
        Strength of the l1 penalty on the weights. 1 is the mean slope of the loss in the weights
        with which boosting ended: with it, a single stage keeps about their sum. Where rows are
        few, 1 to 4 is better than the default, since the trees know the rows they were fitted to.
    power : float in (0, 1]
        How the cost of a stage is made smooth. 1 is the published mixed norm, which grows with the
        weights; near 0, it hardly asks more than whether a weight is zero, as the true cost does.
    steepness : float
        How sharply the chance to pass a stage rises at its threshold, per standard deviation of
        the ensemble's scores. Lower, and the soft cascade is far from the hard one that is
        served; higher, and it learns by heart which rows should leave.
    max_sweeps : int
        Most sweeps of the optimisation.
    n_jobs : int or None
        Threads; None for all cores. The model does not depend on it.
    verbose : int
        1 shows a progress bar, in a terminal or a notebook.

    Attributes
    ----------
    estimator_ : the fitted ensemble
    weights_ : array of shape (stages, n_trees)
        What each stage multiplies each tree of the ensemble with.
    intercepts_ : array of shape (stages,)
        What the scores of each stage begin with.
    thresholds_ : array of shape (stages - 1,)
        A row goes on after a stage while its score there is above.
    n_stages_ : int
    history_ : array of shape (n_sweeps, 2)
        The smooth objective before each sweep, and a bound of it after.
    predictor_ : Predictor
        The finished model, for serving and saving.
    stage_costs_ : array of shape (stages,)
        What a row pays that leaves after each stage.
    cost_, cost_max_ : float
        The most that a prediction can cost.
    features_used_, resources_used_ : list

    Examples
    --------
    >>> from sklearn.datasets import make_regression
    >>> from greedymiser import Cronus, MiserRegressor
    >>> X, y = make_regression(1000, 20, n_informative=10, random_state=0)
    >>> base = MiserRegressor(max_iter=100).fit(X, y)
    >>> cascade = Cronus(base, tradeoff=200.0).fit(X, y)
    >>> bool(cascade.prediction_costs(X).mean() < base.cost_)
    True
    """

    _bases = (MiserRegressor, MiserRanker)
    _wants = "a MiserRegressor or a MiserRanker with loss='squared_error'"

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "estimator": [HasMethods(["fit", "predict"])],
        "n_stages": [Interval(Integral, 1, None, closed="left")],
        "tradeoff": [Interval(Real, 0, None, closed="left")],
        "l1": [Interval(Real, 0, None, closed="left")],
        "power": [Interval(Real, 0, 1, closed="right")],
        "steepness": [Interval(Real, 0, None, closed="neither")],
        "max_sweeps": [Interval(Integral, 1, None, closed="left")],
        "n_jobs": [Integral, None],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        estimator: Any,
        *,
        n_stages: int = 4,
        tradeoff: float = 0.0,
        l1: float = 0.5,
        power: float = 0.1,
        steepness: float = 6.0,
        max_sweeps: int = 10,
        n_jobs: int | None = None,
        verbose: int = 0,
    ):
        self.estimator = estimator
        self.n_stages = n_stages
        self.tradeoff = tradeoff
        self.l1 = l1
        self.power = power
        self.steepness = steepness
        self.max_sweeps = max_sweeps
        self.n_jobs = n_jobs
        self.verbose = verbose

    # -- fitting ----------------------------------------------------------------------------------

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
    ) -> Self:
        """Fit the ensemble if it is not fitted, and then the cascade.

        Parameters
        ----------
        X : array, sparse matrix or data frame of shape (n, n_features)
            Rows to fit the cascade to: those of the ensemble where they are many, others where
            they are few.
        y : array-like of shape (n,)
        sample_weight : array-like of shape (n,), optional
        qid : array-like of shape (n,), optional
            For rankers, the query of each row; only an unfitted ensemble learns from it.
        X_val, y_val, sample_weight_val, qid_val : optional
            Validation data: the thresholds are those with the least loss and cost on it.
        """
        self._validate_params()
        inner = self._inner()
        if qid is not None and not isinstance(inner, MiserRanker):
            raise ValueError(f"qid is for rankers, but the estimator is {inner!r}")
        inputs = Inputs(X, y, sample_weight, qid)
        inputs_val = Inputs(X_val, y_val, sample_weight_val, qid_val)
        fitted = taken_or_fitted(inner, inputs, inputs_val)
        _check_loss(fitted)
        # Blocks of rows are multiplied side by side, each by one thread.
        single = _get_threadpool_controller().limit(limits=1, user_api="blas")
        with Threads(thread_count(self.n_jobs)) as threads, single:
            train, valid = _read(fitted, inputs, inputs_val, threads)
            tolls = Tolls.of(fitted.ensemble_, fitted.costs_)
            cascade, history = self._learn(train, tolls, float(fitted.ensemble_.baseline[0]))
            cascade = settle(cascade, train, valid, tolls, self.tradeoff)
        self.estimator_, self.history_ = fitted, history
        self.weights_, self.intercepts_ = cascade.weights, cascade.intercepts
        self.thresholds_ = cascade.thresholds
        self.predictor_ = replace(
            fitted.predictor_,
            stages=stages_of(fitted.ensemble_, cascade),
            rule=Above(tuple(cascade.thresholds.tolist())) if cascade.n_stages > 1 else None,
            purchases=(),
            mean_cost=None,
            n_jobs=self.n_jobs,
        )
        return self

    def _learn(self, rows: CascadeRows, tolls: Tolls, baseline: float) -> tuple[Cascade, Floats]:
        """Optimise the soft cascade; the history comes with it."""
        cascade = stagewise(rows, baseline, self.n_stages)
        objective = self._objective(rows, baseline)
        solver = Solver(rows)
        history: list[tuple[float, float]] = []
        with Bar(self.max_sweeps, "sweeps", is_shown=bool(self.verbose)) as bar:
            for softness in np.geomspace(HARDEST, SOFTEST, self.max_sweeps)[::-1]:
                relaxation = Relaxation(float(self.power), float(softness))
                cascade, *values = solver.sweep(objective, cascade, tolls, relaxation)
                history.append((values[0], values[1]))
                bar.move_to(len(history), f"objective {values[1]:.6g}")
                if self.tradeoff == 0 and values[0] - values[1] <= SETTLED * values[0]:
                    break
        cascade = solver.last_fit(objective, cascade, tolls)
        return cascade, np.array(history)

    def _objective(self, rows: CascadeRows, baseline: float) -> Objective:
        """The objective without costs, with penalty and steepness in units of the data."""
        start = boosted(rows.outputs, baseline)
        plain = Objective(
            outputs=rows.outputs,
            y=rows.y,
            weight=rows.weight,
            charges=Charges.fixed(np.zeros(1), start.weights.shape[1]),
            tradeoff=float(self.tradeoff),
            l1=0.0,
            steepness=self.steepness / rows.spread(start),
        )
        # Where boosting ends, all trees have about the same slope, as on the path of an l1
        # penalty of that strength (Rosset et al. 2004).
        slopes = plain(start).gradient.weights
        return replace(plain, l1=self.l1 * float(np.abs(slopes).mean()))

    # -- prediction -------------------------------------------------------------------------------

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
        """R² of a regressor, mean NDCG@k over queries of a ranker.

        A query without any relevant document scores ``no_relevant``.
        """
        if self.predictor_.kind == "regressor":
            return float(r2_score(y, self._raw_predict(X)[0], sample_weight=sample_weight))
        return super().score(X, y, sample_weight, qid=qid, k=k, no_relevant=no_relevant)

    # -- accounts ---------------------------------------------------------------------------------

    @property
    def n_stages_(self) -> int:
        return len(self.weights_)

    @property
    def stage_costs_(self) -> Floats:
        return self.predictor_.stage_costs


# -- data -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CascadeRows:
    """Rows as the cascade sees them."""

    outputs: TreeOutputs
    y: Floats
    # Sum to 1.
    weight: Floats

    def spread(self, cascade: Cascade) -> float:
        """Standard deviation of the first stage's scores; 1 where they are all the same."""
        scores = self.outputs.scores(cascade)[:, 0]
        deviation = scores - self.weight @ scores
        return float(np.sqrt(self.weight @ deviation**2)) or 1.0


def _check_loss(estimator: Miser) -> None:
    if not isinstance(estimator.schema_.loss, SquaredError):
        raise ValueError(
            "Cronus minimises the squared error, but its estimator has "
            f"loss={estimator.loss!r}; use loss='squared_error'"
        )


def _read(
    estimator: Miser, inputs: Inputs, inputs_val: Inputs, threads: Threads
) -> tuple[CascadeRows, CascadeRows | None]:
    """Check the data and let every tree speak about every row."""
    checked = check(estimator.check_features(inputs, reset=False))
    check_same_queries(inputs, inputs_val)
    n = len(checked.y)
    if n < 2:
        raise ValueError(f"Cronus needs at least 2 rows with a weight, got n_samples={n}")
    if estimator.ensemble_.n_trees == 0:
        raise ValueError(f"Cronus needs trees to weigh, but its estimator {estimator!r} has none")
    # The squared error does not ask for queries.
    cases = estimator.schema_.encode(replace(checked, qid=None))
    inputs_val = estimator.check_features(inputs_val, reset=False, part="val")
    held_out = encode_held_out(estimator.schema_, inputs_val)
    valid = None if held_out is None else _rows(estimator, held_out, threads)
    return _rows(estimator, cases, threads), valid


def _rows(estimator: Miser, cases: Cases, threads: Threads) -> CascadeRows:
    table = cases.table
    if cases.rows is not None:
        table = chosen(table, cases.rows)
    weight = np.ones(len(cases.y)) if cases.weight is None else cases.weight
    outputs = TreeOutputs.of(estimator.ensemble_, table, threads)
    return CascadeRows(outputs, cases.y, weight / weight.sum())


# -- optimisation ---------------------------------------------------------------------------------


def boosted(outputs: TreeOutputs, baseline: float) -> Cascade:
    """One stage with the weights of boosting."""
    n_trees = outputs.matrix.shape[1]
    return Cascade(np.ones((1, n_trees)), np.array([baseline]), np.empty(0))


def stagewise(rows: CascadeRows, baseline: float, n_stages: int) -> Cascade:
    """The start: all stages have the weights of boosting, and each lets the same share pass."""
    one = boosted(rows.outputs, baseline)
    scores = rows.outputs.scores(one)[:, 0]
    shares = 1.0 - SHARE_PASSING ** np.arange(1.0, n_stages)
    order = np.argsort(scores, kind="stable")
    reached = np.searchsorted(np.cumsum(rows.weight[order]), shares)
    thresholds = scores[order][np.minimum(reached, len(order) - 1)]
    weights, intercepts = np.repeat(one.weights, n_stages, axis=0), np.full(n_stages, baseline)
    return Cascade(weights, intercepts, thresholds)


def without_tiny(cascade: Cascade) -> Cascade:
    """The same, with weights near zero dropped."""
    return replace(cascade, weights=np.where(cascade.weights > TINY, cascade.weights, 0.0))


def with_trees(cascade: Cascade) -> Cascade:
    """The same without stages that weigh no tree; the first stays if none does.

    They say the same of all rows, however different these were until then: no way to rank them.
    """
    return cascade.only(np.flatnonzero(cascade.weights.any(axis=1)).tolist() or [0])


class Solver:
    """L-BFGS-B over all stages at once, in variables that are scaled to equal curvature.

    A pass over the tree outputs costs little more for all stages than for one of them, so stages
    are not taken in turns.
    """

    def __init__(self, rows: CascadeRows):
        self.squares = rows.outputs.mean_squares(rows.weight)
        mean = rows.weight @ rows.y
        # The objective is divided by the loss of a constant, so that tolerances have a meaning.
        self.unit = float(0.5 * rows.weight @ (rows.y - mean) ** 2) or 1.0

    def sweep(
        self, objective: Objective, cascade: Cascade, tolls: Tolls, relaxation: Relaxation
    ) -> tuple[Cascade, float, float]:
        """Bound the cost, minimise: the new cascade, the objective before, its bound after."""
        charges = Charges.touching(cascade.weights, tolls, relaxation)
        bounded = replace(objective, charges=charges)
        everything = np.ones(cascade.weights.shape, dtype=bool)
        return self.minimise(bounded, cascade, everything, STEPS_PER_SWEEP)

    def last_fit(self, objective: Objective, cascade: Cascade, tolls: Tolls) -> Cascade:
        """Fit anew with true costs: the smooth ones have made the weights too small."""
        cascade = with_trees(without_tiny(cascade))
        bills = tolls.bills(cascade.weights)
        paid = replace(objective, charges=Charges.fixed(bills, cascade.weights.shape[1]))
        allowed = tolls.free(cascade.weights)
        found = without_tiny(self.minimise(paid, cascade, allowed, STEPS_OF_LAST_FIT)[0])
        if with_trees(found).n_stages == found.n_stages:
            return found
        return self.last_fit(objective, found, tolls)

    def minimise(
        self, objective: Objective, cascade: Cascade, allowed: NDArray[np.bool_], max_iter: int
    ) -> tuple[Cascade, float, float]:
        """The best of ``max_iter`` steps, and the objective before and after."""
        at_start = objective(cascade)
        scale = self._scale(objective, at_start.mass)
        free = np.full(len(scale) - allowed.size, np.inf)
        bounds = Bounds(
            np.concatenate([np.zeros(allowed.size), -free]),
            np.concatenate([np.where(allowed.ravel(), np.inf, 0.0), free]),
        )

        def scaled(point: Floats) -> tuple[float, Floats]:
            expected = objective(cascade.like(point * scale))
            return expected.value / self.unit, expected.gradient.flat() * scale / self.unit

        found = minimize(
            scaled, cascade.flat() / scale, jac=True, method="L-BFGS-B", bounds=bounds,
            options={"maxiter": max_iter, "maxcor": 20},
        )  # fmt: skip
        return cascade.like(found.x * scale), at_start.value, float(found.fun) * self.unit

    def _scale(self, objective: Objective, mass: Floats) -> Floats:
        """One over the root of the curvature, floored where no row leaves."""
        curvature = mass[:, None] * self.squares + objective.tradeoff * objective.charges.curvature(
            mass
        )
        floor = 1e-3 * self.squares.mean()
        # A tree that says 0 of every row may have no curvature at all.
        weights = 1.0 / np.sqrt(np.maximum(curvature + floor, np.finfo(float).tiny))
        intercepts = 1.0 / np.sqrt(mass + 1e-3)
        rest = np.concatenate([intercepts, np.ones(len(mass) - 1)])
        return np.concatenate([weights.ravel(), rest]) * np.sqrt(self.unit)


# -- hard thresholds ------------------------------------------------------------------------------


def settle(
    cascade: Cascade, train: CascadeRows, valid: CascadeRows | None, tolls: Tolls, tradeoff: float
) -> Cascade:
    """Make the thresholds hard, and take out the stages after which nobody leaves.

    Without them, later stages are cheaper: the trees that only they use need not be met.
    """
    rows = train if valid is None else valid
    scores = rows.outputs.scores(cascade)
    while True:
        if valid is not None:
            charges = tradeoff * tolls.bills(cascade.weights)
            thresholds = best_thresholds(scores, rows, charges, cascade.thresholds)
            cascade = replace(cascade, thresholds=thresholds)
        used = np.unique(leaving(scores, cascade.thresholds))
        if len(used) == cascade.n_stages:
            return cascade
        cascade, scores = cascade.only(used.tolist()), scores[:, used]


def leaving(scores: Floats, thresholds: Floats) -> NDArray[np.intp]:
    """Stage after which each row leaves, given its scores (n, K)."""
    gone = scores[:, :-1] <= thresholds
    first = np.argmax(gone, axis=1) if gone.shape[1] else np.zeros(len(scores), dtype=np.intp)
    return np.where(gone.any(axis=1), first, scores.shape[1] - 1)


def best_thresholds(
    scores: Floats, rows: CascadeRows, charges: Floats, thresholds: Floats
) -> Floats:
    """Hard thresholds with less loss and cost, from given ones on.

    One threshold after the other, from the last, is set to its best value given the others. That
    value is found exactly: sorted by score, the rows that leave are the first ones.
    """
    thresholds = thresholds.copy()
    if_left = 0.5 * (scores - rows.y[:, None]) ** 2 + charges
    for _ in range(2 * len(thresholds)):
        before = thresholds.copy()
        for k in reversed(range(len(thresholds))):
            later = leaving(scores[:, k + 1 :], thresholds[k + 1 :]) + k + 1
            if_passed = np.take_along_axis(if_left, later[:, None], axis=1)[:, 0]
            here = (scores[:, :k] > thresholds[:k]).all(axis=1)
            gain = (rows.weight * (if_left[:, k] - if_passed))[here]
            thresholds[k] = best_cut(scores[here, k], gain)
        if np.array_equal(thresholds, before):
            break
    return thresholds


def best_cut(scores: Floats, values: Floats) -> float:
    """The threshold with the least sum of values of the scores that are not above it."""
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    sums = np.append(0.0, np.cumsum(values[order]))
    # No cut goes through equal scores.
    between = np.concatenate([[True], ordered[1:] > ordered[:-1], [len(ordered) > 0]])
    best = int(np.argmin(np.where(between, sums, np.inf)))
    if best == 0:
        return -np.inf
    if best == len(ordered):
        return np.inf
    return float(0.5 * (ordered[best - 1] + ordered[best]))


# -- the finished model ---------------------------------------------------------------------------


def stages_of(ensemble: Ensemble, cascade: Cascade) -> tuple[Stage, ...]:
    """A cascade for serving: an ensemble per stage, without the trees that it does not use."""
    n_paid = np.logical_or.accumulate(cascade.weights > 0, axis=0).sum(axis=1).tolist()
    stages = []
    for weights, intercept, n_trees in zip(
        cascade.weights, cascade.intercepts, n_paid, strict=True
    ):
        own = reweighted(ensemble, weights, float(intercept))
        stages.append(Stage(own, 0, own.n_iter, n_trees))
    return tuple(stages)


def reweighted(ensemble: Ensemble, weights: Floats, baseline: float) -> Ensemble:
    """Trees times their weights; those of weight 0 are left out."""
    sizes = np.diff(ensemble.tree_starts)
    factors = np.repeat(weights, sizes)
    nodes = ensemble.nodes[factors > 0].copy()
    nodes["value"] *= factors[factors > 0]
    ends = np.cumsum(sizes[weights > 0])
    return replace(
        ensemble,
        nodes=nodes,
        tree_starts=np.append(0, ends).astype(np.int64),
        baseline=np.array([baseline]),
    )
