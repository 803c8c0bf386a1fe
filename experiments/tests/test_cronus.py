"""Cronus: its objective against a slow twin, its optimisation, and the cascade that comes out."""

import functools
import pickle
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import clone, is_regressor
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import estimator_checks_generator

import greedymiser
import naive
from experiments.cronus import objective
from experiments.cronus.cronus import (
    CascadeRows,
    Cronus,
    Solver,
    best_cut,
    best_thresholds,
    leaving,
    settle,
    stagewise,
    with_trees,
    without_tiny,
)
from experiments.cronus.objective import (
    Cascade,
    Charges,
    Objective,
    Relaxation,
    Tolls,
    TreeOutputs,
    leave_softly,
    relaxed_bills,
)
from greedymiser import CostModel, MiserClassifier, MiserRanker, MiserRegressor, ndcg_score
from greedymiser._core.threads import Threads
from greedymiser.estimators import table_for
from greedymiser.model.exit_rules import Above
from greedymiser.model.predictor import as_predictor
from random_examples import examples

NEEDS = [["a"], ["b", "shared"], ["shared"], ["a", "c"], ["c"], []]
PRICES = {"a": 1.0, "b": 2.0, "shared": 4.0, "c": 0.1}
COSTS = CostModel.from_resources(PRICES, NEEDS, tree_cost=0.05)
FREE_TREES = CostModel.from_resources(PRICES, NEEDS)


def make(seed=0, n=400):
    """Relevance that most rows have none of; cheap features see much of it, dear ones the rest."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 6))
    signal = 1.5 * X[:, 0] + X[:, 3] + 0.8 * X[:, 1] * (X[:, 0] > 0) + X[:, 2] * (X[:, 3] > 0)
    X[rng.random(X.shape) < 0.03] = np.nan
    return X, np.clip(np.round(signal), 0, 4), rng.integers(0, n // 10, n)


@functools.cache
def regressor(tradeoff=0.0, free_trees=False):
    X, y, _ = make()
    costs = FREE_TREES if free_trees else COSTS
    return MiserRegressor(
        costs=costs, max_iter=40, max_depth=2, min_samples_leaf=5, tradeoff=tradeoff
    ).fit(X, y)


@functools.cache
def ranker():
    X, y, qid = make()
    return MiserRanker(
        costs=COSTS, loss="squared_error", max_iter=40, max_depth=2, min_samples_leaf=5
    ).fit(X, y, qid=qid)


def fitted(tradeoff=0.01, base=None, l1=0.2, **params):
    X, y, _ = make()
    base = regressor() if base is None else base
    return Cronus(base, tradeoff=tradeoff, l1=l1, **params).fit(X, y)


# -- a small problem, for fast and slow ways to compute the same --------------------------------


@st.composite
def problems(draw):
    """Arrays that look like an ensemble, its costs and a cascade."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, n_trees, n_stages = draw(st.integers(2, 9)), draw(st.integers(1, 5)), draw(st.integers(1, 4))
    n_resources = draw(st.integers(0, 4))
    needs = [set(np.flatnonzero(rng.random(n_resources) < 0.5)) for _ in range(n_trees)]
    tree_cost = draw(st.sampled_from([0.0, 0.3]))
    weights = rng.exponential(size=(n_stages, n_trees)) * (rng.random((n_stages, n_trees)) < 0.8)
    weight = rng.exponential(size=n)
    return Problem(
        H=rng.standard_normal((n, n_trees)),
        y=rng.standard_normal(n),
        weight=weight / weight.sum(),
        needs=needs,
        tolls=tolls(tree_cost, rng.exponential(size=n_resources), needs),
        cascade=Cascade(weights, rng.standard_normal(n_stages), rng.standard_normal(n_stages - 1)),
        relaxation=Relaxation(
            draw(st.sampled_from([1.0, 0.5, 0.1])), draw(st.sampled_from([0.01, 0.3, 1.0]))
        ),
        steepness=draw(st.sampled_from([0.5, 4.0])),
        tradeoff=draw(st.sampled_from([0.0, 0.7])),
        l1=draw(st.sampled_from([0.0, 0.2])),
        rng=rng,
    )


class Problem:
    def __init__(self, **parts):
        self.__dict__.update(parts)

    def objective(self, at):
        """The bounded objective that touches the relaxed one at these weights."""
        charges = Charges.touching(at.weights, self.tolls, self.relaxation)
        outputs = TreeOutputs(self.H, Threads(1))
        return Objective(
            outputs, self.y, self.weight, charges, self.tradeoff, self.l1, self.steepness
        )

    def naive_objective(self, cascade):
        """The relaxed objective, with costs as each stage adds them."""
        weights = cascade.weights.tolist()
        terms = (self.tolls.tree_cost, self.tolls.resource_costs.tolist(), self.needs)
        powers = (self.relaxation.power, self.relaxation.softness)
        bills = [naive.soft_bill(weights, k, *terms, *powers) for k in range(len(weights))]
        added = np.diff([0.0, *bills]).tolist()
        return naive.soft_cascade(
            self.H.tolist(), self.y.tolist(), self.weight.tolist(), weights,
            cascade.intercepts.tolist(), cascade.thresholds.tolist(), self.steepness, added,
            self.tradeoff, self.l1,
        )  # fmt: skip

    def another(self):
        flat = self.cascade.flat() + self.rng.standard_normal(len(self.cascade.flat()))
        moved = self.cascade.like(flat)
        return replace(moved, weights=np.abs(moved.weights))


def tolls(tree_cost, prices, needs):
    matrix = [[float(r in wanted) for wanted in needs] for r in range(len(prices))]
    matrix = np.array(matrix).reshape(len(prices), len(needs))
    return Tolls(tree_cost, np.asarray(prices, dtype=float), sparse.csr_array(matrix))


@examples(40)
@given(problems())
def test_the_objective_is_the_published_one(problem):
    """Telescoped costs are those that each stage adds, and the tangents touch."""
    cascade = problem.cascade
    assert problem.objective(cascade)(cascade).value == pytest.approx(
        problem.naive_objective(cascade), rel=1e-10
    )


@examples(40)
@given(problems())
def test_the_bound_is_a_bound(problem):
    elsewhere = problem.another()
    bound = problem.objective(problem.cascade)(elsewhere).value
    truth = problem.naive_objective(elsewhere)
    assert bound >= truth - 1e-10 * abs(truth)


@examples(40)
@given(problems())
def test_gradient(problem):
    """Against central differences, in every direction."""
    cascade = problem.another()
    objective = problem.objective(problem.cascade)
    flat, step = cascade.flat(), 1e-5
    slopes = objective(cascade).gradient.flat()
    for i, unit in enumerate(np.eye(len(flat))):
        up, down = (objective(cascade.like(flat + sign * step * unit)).value for sign in (1, -1))
        assert slopes[i] == pytest.approx((up - down) / (2 * step), rel=1e-5, abs=1e-7)


@examples(40)
@given(problems())
def test_mass_is_what_leaves(problem):
    mass = problem.objective(problem.cascade)(problem.cascade).mass
    assert mass.sum() == pytest.approx(1.0)
    assert (mass >= 0).all()


def test_soft_exits_do_not_overflow():
    scores, totals = np.array([[1e5, -1e5, 0.0], [-1e5, 1e5, 0.0]]), np.zeros((4, 3))
    leave_softly(scores, np.zeros(2), np.ones(2), np.zeros(2), 1e5, np.zeros(3), totals)
    assert totals[1].tolist() == [1.0, 1.0, 0.0]
    assert np.isfinite(totals).all()


@examples(40)
@given(problems())
def test_relaxation_counts_between_none_and_all(problem):
    relaxation = problem.relaxation
    assert relaxation.value(np.zeros(1)) == 0
    assert relaxation.value(np.ones(1)) == pytest.approx(1.0)
    squares = np.geomspace(1e-6, 1e3, 50)
    step = 1e-4 * (squares + relaxation.softness**2)
    rise = relaxation.value(squares + step) - relaxation.value(squares - step)
    np.testing.assert_allclose(relaxation.slope(squares), rise / (2 * step), rtol=1e-4)
    assert (np.diff(relaxation.slope(squares)) < 0).all()  # concave: tangents lie above


def test_published_relaxation_is_a_mixed_norm():
    weights = np.array([[3.0, 0.0], [4.0, 2.0]])
    prices = tolls(0.5, [10.0], [{0}, {0}])
    bills = relaxed_bills(weights, prices, Relaxation(1.0, 1e-9))
    expected = [0.5 * 3 + 10 * 3, 0.5 * (5 + 2) + 10 * np.sqrt(29)]
    assert bills.tolist() == pytest.approx(expected)


@examples(40)
@given(problems())
def test_small_powers_count(problem):
    weights, prices = problem.cascade.weights, problem.tolls
    nearly = relaxed_bills(weights, prices, Relaxation(1e-6, 1e-150))
    # Near p = 0 it is 1 + ln(z) / 2 ln(1/ε) where 1 is paid: a small weight costs a little less.
    squares = np.cumsum(weights**2, axis=0)
    paid = np.append(squares, squares @ prices.needs.T)
    furthest = np.abs(np.log(paid[paid > 0])).max(initial=0.0) / (2 * np.log(1e150))
    assert furthest < 0.1
    expected = prices.bills(weights).tolist()
    assert nearly.tolist() == pytest.approx(expected, rel=1.001 * furthest + 1e-6)


@examples(40)
@given(problems())
def test_bills_and_free_trees(problem):
    weights, prices = problem.cascade.weights, problem.tolls
    bills, free = prices.bills(weights), prices.free(weights)
    for k in range(len(weights)):
        used = {t for t in range(weights.shape[1]) if (weights[: k + 1, t] > 0).any()}
        resources = {r for t in used for r in problem.needs[t]}
        bill = prices.tree_cost * len(used) + sum(prices.resource_costs[r] for r in resources)
        assert bills[k] == pytest.approx(bill)
        for t in range(weights.shape[1]):
            more = weights.copy()
            more[k, t] = 1.0
            assert free[k, t] == (prices.bills(more)[k] <= bills[k] + 1e-12)


def test_tolls_of_an_ensemble():
    model = regressor()
    prices = Tolls.of(model.ensemble_, COSTS)
    everything = np.ones((1, model.n_iter_))
    assert prices.bills(everything)[0] == pytest.approx(model.cost_)
    for t in range(model.n_iter_):
        alone = np.eye(model.n_iter_)[[t]]
        features = model.ensemble_.tree(t).features
        assert prices.bills(alone)[0] == pytest.approx(COSTS.total(features, 1))


@pytest.mark.parametrize("kind", ["array", "frame", "sparse", "categories"])
def test_tree_outputs_add_up(kind, monkeypatch):
    monkeypatch.setattr(objective, "BLOCK_BYTES", 2**12)  # several blocks
    X, y, _ = make()
    X = np.nan_to_num(X)
    if kind == "sparse":
        X = sparse.csr_array(np.where(np.abs(X) > 1, X, 0.0))
    if kind in ("frame", "categories"):
        X = pd.DataFrame(X, columns=list("abcdef"))
    if kind == "categories":
        X["a"] = pd.Categorical(np.round(X["a"]).astype(int).astype(str))
    model = MiserRegressor(max_iter=12, min_samples_leaf=5).fit(X, y)
    with Threads(2) as threads:
        outputs = TreeOutputs.of(model.ensemble_, table_for(model, X), threads)
        assert len(outputs.blocks) > 2
        whole = Cascade(np.ones((1, 12)), model.ensemble_.baseline, np.empty(0))
        np.testing.assert_allclose(outputs.scores(whole)[:, 0], model.predict(X), rtol=1e-12)
        weight = np.random.default_rng(0).random(len(y))
        squares = outputs.mean_squares(weight)
    np.testing.assert_allclose(squares, weight @ outputs.matrix**2)


# -- optimisation ---------------------------------------------------------------------------------


def training_rows(model, threads):
    X, y, _ = make()
    outputs = TreeOutputs.of(model.ensemble_, table_for(model, X), threads)
    return CascadeRows(outputs, y, np.full(len(y), 1 / len(y)))


@pytest.mark.parametrize("power", [1.0, 0.1])
@pytest.mark.parametrize("tradeoff", [0.0, 0.02])
def test_every_sweep_lowers_the_relaxed_objective(power, tradeoff):
    model = regressor()
    with Threads(1) as threads:
        rows = training_rows(model, threads)
        cascade = stagewise(rows, float(model.ensemble_.baseline[0]), 3)
        prices = Tolls.of(model.ensemble_, COSTS)
        fixed = Charges.fixed(np.zeros(3), model.n_iter_)
        objective = Objective(rows.outputs, rows.y, rows.weight, fixed, tradeoff, 1e-4, 6.0)
        relaxation = Relaxation(power, 0.1)

        def relaxed(at):
            charges = Charges.touching(at.weights, prices, relaxation)
            return replace(objective, charges=charges)(at).value

        values = [relaxed(cascade)]
        for _ in range(6):
            cascade, before, after = Solver(rows).sweep(objective, cascade, prices, relaxation)
            assert before == pytest.approx(values[-1], rel=1e-12)
            values.append(relaxed(cascade))
            assert values[-1] <= after * (1 + 1e-12)
            assert after <= before
        assert values[-1] < values[0]
        assert (cascade.weights >= 0).all()


def test_history_falls_in_every_sweep():
    model = fitted(max_sweeps=7)
    assert model.history_.shape == (7, 2)
    assert (model.history_[:, 1] <= model.history_[:, 0]).all()


def test_sweeps_end_when_there_is_nothing_to_bound():
    assert len(fitted(tradeoff=0.0, max_sweeps=200).history_) < 150


def test_one_stage_without_costs_does_not_lose_training_accuracy():
    X, y, _ = make()
    model = fitted(tradeoff=0.0, n_stages=1, l1=0.0)
    assert model.n_stages_ == 1
    better, start = (np.mean((m.predict(X) - y) ** 2) for m in (model, regressor()))
    assert better < start
    # The penalty holds the weights where boosting left them, about.
    held = fitted(tradeoff=0.0, n_stages=1, l1=1.0)
    assert held.weights_.sum() < model.weights_.sum()


def test_the_start_lets_known_shares_pass():
    model = regressor()
    with Threads(1) as threads:
        rows = training_rows(model, threads)
        cascade = stagewise(rows, float(model.ensemble_.baseline[0]), 4)
        scores = rows.outputs.scores(cascade)
    passing = (scores[:, :-1] > cascade.thresholds).mean(axis=0)
    assert passing.tolist() == pytest.approx([0.6, 0.36, 0.216], abs=0.03)


def test_last_fit_uses_only_what_is_paid_for():
    for free_trees in (False, True):
        model = regressor(free_trees=free_trees)
        with Threads(1) as threads:
            rows = training_rows(model, threads)
            cascade = stagewise(rows, float(model.ensemble_.baseline[0]), 2)
            weights = cascade.weights.copy()
            weights[0, 3:] = 0.005  # about to be dropped
            cascade = replace(cascade, weights=weights)
            prices = Tolls.of(model.ensemble_, model.costs_)
            fixed = Charges.fixed(np.zeros(2), model.n_iter_)
            objective = Objective(rows.outputs, rows.y, rows.weight, fixed, 0.01, 0.0, 6.0)
            polished = Solver(rows).last_fit(objective, cascade, prices)
        bills = prices.bills(without_tiny(cascade).weights)
        assert (prices.bills(polished.weights) <= bills + 1e-12).all()
        assert not np.array_equal(polished.weights, cascade.weights)


# -- hard thresholds ------------------------------------------------------------------------------


@examples(40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_best_cut(seed, n):
    rng = np.random.default_rng(seed)
    scores, values = rng.integers(0, 5, n).astype(float), rng.standard_normal(n)
    cut = best_cut(scores, values)
    tried = [values[scores <= t].sum() for t in [-np.inf, *np.unique(scores), np.inf]]
    assert values[scores <= cut].sum() == pytest.approx(min(tried))


@examples(40)
@given(st.integers(0, 2**32 - 1))
def test_best_thresholds(seed):
    """Never worse than before, and no single threshold could be better."""
    rng = np.random.default_rng(seed)
    n, n_stages = 12, 3
    scores, y = rng.standard_normal((n, n_stages)), rng.standard_normal(n)
    weight, bills = rng.random(n), np.cumsum(rng.random(n_stages))
    rows = CascadeRows(TreeOutputs(np.zeros((n, 1)), Threads(1)), y, weight)
    start = rng.standard_normal(n_stages - 1)

    def cost(thresholds):
        return naive.cascade_cost(
            scores.tolist(), y.tolist(), weight.tolist(), bills.tolist(), thresholds
        )

    best = best_thresholds(scores, rows, bills, start)
    assert cost(best) <= cost(start) + 1e-12
    for k in range(n_stages - 1):
        for threshold in [-np.inf, *scores[:, k], np.inf]:
            other = best.copy()
            other[k] = threshold
            assert cost(best) <= cost(other) + 1e-12


def test_leaving():
    scores = np.array([[0.0, 5.0, 1.0], [2.0, -1.0, 1.0], [2.0, 2.0, 1.0], [1.0, 9.0, 1.0]])
    assert leaving(scores, np.array([1.0, 0.0])).tolist() == [0, 1, 2, 0]
    assert leaving(scores[:, :1], np.empty(0)).tolist() == [0, 0, 0, 0]
    assert leaving(scores, np.array([-np.inf, -np.inf])).tolist() == [2] * 4


def test_stages_without_trees_are_taken_out():
    cascade = Cascade(np.array([[0.0], [2.0], [0.005]]), np.arange(3.0), np.array([0.1, 0.2]))
    left = with_trees(without_tiny(cascade))
    assert left.weights.tolist() == [[2.0]]
    assert left.intercepts.tolist() == [1.0]
    assert left.thresholds.tolist() == []
    silent = with_trees(replace(cascade, weights=np.zeros((3, 1))))
    assert silent.intercepts.tolist() == [0.0]


def test_stages_after_which_nobody_leaves_are_taken_out():
    H = np.array([[0.0], [1.0], [2.0], [3.0]])
    rows = CascadeRows(TreeOutputs(H, Threads(1)), np.zeros(4), np.full(4, 0.25))
    cascade = Cascade(np.arange(1.0, 5.0)[:, None], np.zeros(4), np.array([-1.0, 2.5, -1.0]))
    settled = settle(cascade, rows, None, tolls(0.0, [1.0], [{0}]), 0.0)
    assert settled.weights.ravel().tolist() == [2.0, 4.0]
    assert settled.thresholds.tolist() == [2.5]
    # Nobody goes on after the second stage: it is the last.
    cascade = replace(cascade, thresholds=np.array([1.5, 100.0, 0.0]))
    settled = settle(cascade, rows, None, tolls(0.0, [1.0], [{0}]), 0.0)
    assert settled.weights.ravel().tolist() == [1.0, 2.0]
    assert settled.thresholds.tolist() == [1.5]


def test_validation_data_chooses_the_thresholds():
    (X, y, _), (X_val, y_val, _) = make(), make(1)
    plain = fitted(tradeoff=0.01)
    chosen = Cronus(regressor(), tradeoff=0.01, l1=0.2).fit(X, y, X_val=X_val, y_val=y_val)

    def cost(model):
        error = 0.5 * (model.predict(X_val) - y_val) ** 2
        return np.mean(error + 0.01 * model.prediction_costs(X_val))

    assert cost(chosen) <= cost(plain)


# -- the cascade ----------------------------------------------------------------------------------


def recount(model, X):
    """Scores, stages and costs of rows, by hand."""
    ensemble = model.estimator_.ensemble_
    trees = [(ensemble.tree(t).nodes, ensemble.category_sets) for t in range(ensemble.n_trees)]
    raw, left, met = naive.hard_cascade(
        trees, X, model.weights_.tolist(), model.intercepts_.tolist(), model.thresholds_.tolist()
    )
    costs = model.estimator_.costs_
    resource_costs = dict(enumerate(costs.resource_costs.tolist()))
    bills = [
        naive.total(
            resource_costs,
            costs.needs,
            naive.features_of([trees[t] for t in seen]),
            costs.tree_cost * len(seen),
        )
        for seen in met
    ]
    return raw, left, bills


@pytest.mark.parametrize("tradeoff", [0.0, 0.003, 0.01, 0.03])
@pytest.mark.parametrize("free_trees", [False, True])
def test_scores_and_costs_are_those_of_a_walk(tradeoff, free_trees):
    model = fitted(tradeoff, regressor(free_trees=free_trees))
    X, _, _ = make(5, n=120)
    raw, left, bills = recount(model, X)
    np.testing.assert_allclose(model.predict(X), raw, rtol=1e-10)
    np.testing.assert_allclose(model.prediction_costs(X), bills, rtol=1e-12)
    assert model.predictor_.leaving_stages(X).tolist() == left
    assert model.stage_costs_[-1] == model.cost_ == pytest.approx(max([*bills, model.cost_]))
    assert (np.diff(model.stage_costs_) >= 0).all()


def test_rows_do_leave_early():
    """What the tests above walk is a cascade, not a single stage."""
    model = fitted()
    X, _, _ = make(5)
    assert model.n_stages_ > 1
    shares = np.bincount(model.predictor_.leaving_stages(X)) / len(X)
    assert (shares > 0.02).all()
    assert model.prediction_costs(X).mean() < model.cost_ < regressor().cost_


def test_cost_falls_with_the_tradeoff():
    X, y, _ = make()
    models = [fitted(tradeoff) for tradeoff in (0.0, 0.003, 0.01, 0.03, 100.0)]
    costs = [model.prediction_costs(X).mean() for model in models]
    assert costs == sorted(costs, reverse=True)
    assert costs[2] < 0.6 * regressor().cost_
    assert costs[-1] == 0.0
    # Nothing pays: a constant is left, the mean.
    np.testing.assert_allclose(models[-1].predict(X), y.mean(), atol=0.05)


def test_without_thresholds_only_the_last_stage_speaks():
    model = fitted()
    X, _, _ = make(5)
    stages = model.predictor_.stages
    open_ = replace(model.predictor_, rule=Above((-np.inf,) * (len(stages) - 1)))
    alone = replace(model.predictor_, stages=(stages[-1],), rule=None)
    np.testing.assert_array_equal(open_.predict(X), alone.predict(X))
    assert (open_.prediction_costs(X) == model.cost_).all()


def test_rankers_move_documents_that_leave_below_the_others():
    X, y, qid = make()
    model = Cronus(ranker(), tradeoff=0.01, l1=0.2).fit(X, y, qid=qid)
    X, y, qid = make(5)
    left, scores = model.predictor_.leaving_stages(X, qid), model.predict(X, qid)
    assert len(np.unique(left)) > 1
    for query in np.unique(qid):
        here = qid == query
        order = np.argsort(-scores[here])
        assert (np.diff(left[here][order]) <= 0).all()
    assert model.score(X, y, qid=qid) == ndcg_score(y, scores, qid, k=5)
    assert model.score(X, y, qid=qid, k=2) == ndcg_score(y, scores, qid, k=2)
    np.testing.assert_array_equal(
        model.prediction_costs(X, qid), model.predictor_.stage_costs[left]
    )


def test_a_miser_is_re_weighted_too():
    base = regressor(tradeoff=0.01)
    model = fitted(base=base)
    X, _, _ = make()
    assert base.cost_ < regressor().cost_
    assert model.prediction_costs(X).mean() < base.cost_
    assert set(model.features_used_) <= set(base.features_used_)


@pytest.mark.parametrize("n_jobs", [2, None])
def test_the_model_does_not_depend_on_threads(n_jobs, monkeypatch):
    monkeypatch.setattr(objective, "BLOCK_BYTES", 2**12)
    one, more = fitted(n_jobs=1), fitted(n_jobs=n_jobs)
    for name in ("weights_", "intercepts_", "thresholds_", "history_"):
        np.testing.assert_array_equal(getattr(one, name), getattr(more, name))


def test_single_precision_is_enough(monkeypatch):
    precise = fitted()
    monkeypatch.setattr(objective, "MOST_DOUBLES", 0)
    single = fitted()
    assert single.history_[0, 0] == pytest.approx(precise.history_[0, 0], rel=1e-5)
    assert single.history_[-1, 1] == pytest.approx(precise.history_[-1, 1], rel=0.02)


def test_weights_of_rows():
    """Rows of weight 0 are not there, and whole weights are repetitions."""
    X, y, _ = make()
    weight = np.random.default_rng(0).integers(0, 3, len(y)).astype(float)
    base = regressor()
    weighted = Cronus(base, tradeoff=0.02).fit(X, y, weight)
    repeated = np.repeat(np.arange(len(y)), weight.astype(int))
    other = Cronus(base, tradeoff=0.02).fit(X[repeated], y[repeated])
    assert weighted.history_[0, 0] == pytest.approx(other.history_[0, 0], rel=1e-10)
    np.testing.assert_allclose(weighted.stage_costs_, other.stage_costs_)
    np.testing.assert_allclose(weighted.predict(X), other.predict(X), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("scale", [1e-6, 1e4])
def test_the_scale_of_the_target_does_not_matter(scale):
    """A unit of loss is a squared unit of y, and so is what a unit of cost may bring."""
    X, y, _ = make()
    base = MiserRegressor(costs=COSTS, max_iter=10, max_depth=2, min_samples_leaf=5)
    plain = Cronus(base, tradeoff=0.02).fit(X, y)
    scaled = Cronus(base, tradeoff=0.02 * scale**2).fit(X, scale * y)
    np.testing.assert_allclose(scaled.stage_costs_, plain.stage_costs_)
    np.testing.assert_allclose(scaled.predict(X) / scale, plain.predict(X), rtol=1e-2, atol=1e-2)


# -- an estimator like others ---------------------------------------------------------------------


def test_fitted_unfitted_and_frozen_estimators():
    X, y, _ = make()
    base = regressor()
    models = [Cronus(kind, tradeoff=0.02).fit(X, y) for kind in (base, FrozenEstimator(base))]
    for model in models:
        assert model.estimator_.ensemble_ is base.ensemble_
    blank = clone(base)
    models.append(Cronus(blank, tradeoff=0.02).fit(X, y))
    assert not hasattr(blank, "ensemble_")
    for model in models[1:]:
        np.testing.assert_array_equal(model.predict(X), models[0].predict(X))


def test_unfitted_estimators_see_validation_data():
    (X, y, qid), (X_val, y_val, qid_val) = make(), make(1)
    data = {"X_val": X_val, "y_val": y_val, "qid": qid, "qid_val": qid_val}
    blank = clone(ranker()).set_params(max_iter=300)
    model = Cronus(blank).fit(X, y, **data)
    assert model.estimator_.n_iter_ == clone(blank).fit(X, y, **data).n_iter_ < 300


def test_clone_params_and_pickle():
    X, y, _ = make()
    model = Cronus(FrozenEstimator(regressor()), tradeoff=0.02, n_stages=3).fit(X, y)
    twin = clone(model)
    assert twin.get_params()["n_stages"] == 3
    assert not hasattr(twin, "predictor_")
    np.testing.assert_array_equal(twin.fit(X, y).predict(X), model.predict(X))
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(again.prediction_costs(X), model.prediction_costs(X))
    assert as_predictor(model) is model.predictor_


def test_kinds_and_cross_validation():
    X, y, _ = make()
    blank = clone(regressor())
    assert is_regressor(Cronus(blank))
    assert not is_regressor(Cronus(MiserRanker()))
    assert cross_val_score(Cronus(blank, tradeoff=1e-3), X, y, cv=3).min() > 0.3


def test_names_of_columns():
    X, y, _ = make()
    frame = pd.DataFrame(X, columns=list("uvwxyz"))
    model = Cronus(clone(regressor()), tradeoff=0.01, l1=0.2).fit(frame, y)
    assert set(model.features_used_) <= set("uvwxyz")
    assert model.feature_names_in_.tolist() == list("uvwxyz")
    np.testing.assert_array_equal(model.predict(frame), fitted().predict(X))


def test_verbose_says_what_happens(capsys):
    fitted(verbose=1, max_sweeps=2)
    shown = capsys.readouterr().err
    assert "2/2" in shown
    assert "objective" in shown


def small():
    return Cronus(MiserRegressor(max_iter=5, max_depth=2, min_samples_leaf=1, early_stopping=False))


@pytest.mark.parametrize(
    ("estimator", "check"),
    [
        pytest.param(estimator, check, id=getattr(check, "func", check).__name__)
        for estimator, check in estimator_checks_generator(small())
        if not getattr(check, "func", check).__name__.startswith("check_array_api")
    ],
)
def test_estimator_check(estimator, check):
    check(estimator)


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"n_stages": 0}, "'n_stages' parameter of Cronus must be an int in the range"),
        ({"n_stages": 2.5}, "'n_stages' parameter of Cronus must be an int in the range"),
        ({"tradeoff": -1.0}, "'tradeoff' parameter of Cronus must be a float in the range"),
        ({"l1": -0.1}, "'l1' parameter of Cronus must be a float in the range"),
        ({"power": 0.0}, "'power' parameter of Cronus must be a float in the range"),
        ({"power": 1.5}, "'power' parameter of Cronus must be a float in the range"),
        ({"steepness": 0.0}, "'steepness' parameter of Cronus must be a float in the range"),
        ({"max_sweeps": 0}, "'max_sweeps' parameter of Cronus must be an int in the range"),
    ],
)
def test_bad_parameters(params, said):
    X, y, _ = make()
    with pytest.raises(ValueError, match=re.escape(said)):
        Cronus(regressor(), **params).fit(X, y)


def test_bad_estimators():
    X, y, qid = make()
    with pytest.raises(TypeError, match=r"needs a MiserRegressor or a MiserRanker .* got Miser"):
        Cronus(MiserClassifier()).fit(X, y)
    with pytest.raises(ValueError, match="squared error, but its estimator has loss='huber'"):
        Cronus(MiserRegressor(loss="huber", max_iter=2)).fit(X, y)
    with pytest.raises(ValueError, match="squared error, but its estimator has loss='auto'"):
        Cronus(MiserRanker(max_iter=2)).fit(X, y, qid=qid)
    with pytest.raises(ValueError, match="Cronus needs trees to weigh"):
        Cronus(regressor().truncate(0)).fit(X, y)
    with pytest.raises(ValueError, match="qid is for rankers"):
        Cronus(regressor()).fit(X, y, qid=qid)


def test_bad_data():
    X, y, qid = make()
    model = Cronus(regressor())
    with pytest.raises(ValueError, match="Input y contains NaN"):
        model.fit(X, np.append(y[:-1], np.nan))
    with pytest.raises(ValueError, match="X has 3 features, but MiserRegressor is expecting 6"):
        model.fit(X[:, :3], y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(X, y[:-1])
    with pytest.raises(ValueError, match="at least 2 rows with a weight, got n_samples=1"):
        model.fit(X[:1], y[:1])
    with pytest.raises(ValueError, match="at least 2 rows with a weight, got n_samples=1"):
        model.fit(X[:5], y[:5], [0, 0, 1, 0, 0])
    with pytest.raises(ValueError, match="y_val is missing"):
        model.fit(X, y, X_val=X)
    with pytest.raises(ValueError, match="qid has shape"):
        Cronus(ranker()).fit(X, y, qid=qid[:-1])
    with pytest.raises(ValueError, match="both sides need queries"):
        Cronus(ranker()).fit(X, y, qid=qid, X_val=X, y_val=y)
    assert not hasattr(model, "predictor_")


def test_rows_that_all_look_the_same():
    X, y, _ = make()
    same = np.repeat(X[:1], 50, axis=0)
    model = Cronus(regressor(), tradeoff=0.02).fit(same, y[:50])
    assert np.ptp(model.predict(same)) == 0
    np.testing.assert_allclose(model.predict(same), y[:50].mean(), atol=0.15)


def test_what_happens_to_the_estimator_later_does_not_matter():
    X, y, _ = make()
    base = clone(regressor()).fit(X, y)
    cascade = Cronus(base, tradeoff=0.02).fit(X, y)
    before = cascade.predict(X)
    base.set_params(costs=None).fit(X[:, :2], y)
    assert np.array_equal(cascade.predict(X), before)
    with pytest.raises(ValueError, match="2 features"):
        cascade.predict(X[:, :2])


def test_the_package_says_where_it_went():
    with pytest.raises(AttributeError, match=r"no 'Cronus' any more: .* experiments/cronus"):
        greedymiser.Cronus  # noqa: B018
    assert "Cronus" not in dir(greedymiser)
