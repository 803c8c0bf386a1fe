"""Gated cascades: what estimators promise, kept by chains of models and gates."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from greedymiser import (
    BudgetWarning,
    CostModel,
    GatedClassifier,
    GatedRegressor,
    MiserClassifier,
    MiserRegressor,
    MiserSearchCV,
    OnDemandPredictor,
    Sources,
    load,
    save,
    tradeoff_curve,
)
from greedymiser.cascades.candidates import (
    CascadeFamily,
    Levels,
    common_round,
    layers,
    most_valuable,
)

QUICK = {"max_iter": 20, "learning_rate": 0.3, "n_jobs": 1}


@pytest.mark.slow
@parametrize_with_checks(
    [
        GatedClassifier(MiserClassifier(max_iter=5)),
        GatedRegressor(MiserRegressor(max_iter=5)),
    ]
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def rows_of(n=1500, seed=0):
    """The second feature matters where the first is large; the third does not, but costs."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 6, (n, 3)).astype(np.float64)
    y = np.where(X[:, 0] == 5, X[:, 1] > 2, X[:, 0] > 2)
    return X, y


@pytest.fixture(scope="module")
def learned():
    X, y = rows_of()
    base = MiserClassifier(costs=[1.0, 10.0, 5.0], **QUICK)
    return GatedClassifier(base, tradeoff=1e-3, gate="tree").fit(X, y), X, y


def test_only_those_are_asked_who_gain(learned):
    model, X, y = learned
    assert model.n_iter_ == 2
    assert model.kinds_ == ("tree",)
    asked = model.prediction_costs(X) > 1
    assert np.array_equal(asked, X[:, 0] == 5)
    assert model.score(X, y) == 1.0
    assert sorted(set(model.prediction_costs(X))) == [1.0, 11.0]


@pytest.mark.parametrize("weighted", [False, True])
def test_what_cascades_promise_is_what_their_rows_add_up_to(weighted, monkeypatch):
    """Bands are judged by sums over cells of rows, the others row by row: both the same way."""
    families = []
    best = CascadeFamily.best
    monkeypatch.setattr(CascadeFamily, "best", lambda self: families.append(self) or best(self))
    X, y = rows_of(1200)
    weight = np.arange(900) % 4 * 0.5 if weighted else None  # a quarter of the rows has none
    model = MiserClassifier(costs=[1.0, 10.0, 5.0], charge="row", **QUICK)
    held_out = {"X_val": X[900:], "y_val": y[900:], "tradeoffs": 3}
    tradeoff_curve(model, X[:900], y[:900], sample_weight=weight, **held_out)
    (family,) = families
    states, kinds = family.known, set()
    rows, prices = np.arange(states.n_rows), states.prices
    for cascade in family.cascades():
        stops = cascade.stops()
        at = [family.states.index(bits) for bits in cascade.resources]
        assert set(np.unique(stops)) <= set(at)
        # The first state's set is part of the second's, or is paid beside it.
        paid = {s: family._sets.price(cascade.resources[0] | family.states[s]) for s in at}
        bills = np.array([paid[s] if s != at[0] else prices[s] for s in stops])
        assert cascade.mean_price == pytest.approx(np.average(bills, weights=states.weight))
        values = states.values[stops, rows]
        assert cascade.loss == pytest.approx(np.average(values, weights=states.weight))
        kinds.update(cascade.kinds)
    assert kinds == {"band", "score", "paid"}


def test_accounts(learned):
    model = learned[0]
    assert model.cost_max_ == 11.0
    assert 2.0 < model.cost_ < 4.0
    assert model.features_used_ == [0, 1]
    assert model.resources_used_ == ["0", "1"]
    lines = list(model.receipt())
    assert [(line.iteration, line.feature, line.price, line.spent) for line in lines] == [
        (0, 0, 1.0, 1.0),
        (1, 1, 10.0, 11.0),
    ]


def test_answers_agree_with_each_other(learned):
    model, X, _ = learned
    probability = model.predict_proba(X)
    assert np.allclose(probability.sum(axis=1), 1.0)
    assert np.array_equal(model.classes_[probability.argmax(axis=1)], model.predict(X))
    assert np.array_equal(model.decision_function(X) > 0, model.predict(X))


def test_what_is_not_paid_is_not_looked_at(learned):
    """Rows that stop early predict the same without what they did not pay for."""
    model, X, _ = learned
    stops = model.prediction_costs(X) == 1.0
    bare = X.copy()
    bare[stops, 1:] = np.nan
    assert np.array_equal(model.predict_proba(bare), model.predict_proba(X))


def test_the_protocol_adds_up_and_can_be_read(learned):
    model, X, _ = learned
    protocol = model.protocol(X)
    text = str(protocol)
    assert "first, of all: feature 0 (1)" in text
    assert "with feature 0 > 4.5: feature 1 (10)" in text
    assert protocol.mean_cost == pytest.approx(model.prediction_costs(X).mean())
    assert protocol.mean_cost == pytest.approx(sum(line.mean_cost for line in protocol.lines))
    first = protocol.start.steps[0]
    assert first.n_done + first.steps[0].n_rows == len(X)
    assert len(protocol.table) == 2


def test_files_bring_the_same_back(learned, tmp_path):
    model, X, _ = learned
    save(model, tmp_path / "gated.miser")
    again = load(tmp_path / "gated.miser")
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))
    assert np.array_equal(again.prediction_costs(X), model.prediction_costs(X))
    assert again.cost_ == model.cost_
    assert str(again.protocol(X)) == str(model.protocol(X))
    assert list(again.receipt()) == list(model.receipt())


def test_files_hold_gates_over_infinite_and_missing_values(tmp_path):
    """A threshold between -inf and a number could not be written."""
    X, y = rows_of()
    X[X[:, 0] == 0, 0] = -np.inf
    X[X[:, 0] == 1, 0] = np.nan
    X[X[:, 0] == 5, 0] = np.inf
    base = MiserClassifier(costs=[1.0, 10.0, 5.0], **QUICK)
    model = GatedClassifier(base, tradeoff=1e-3, gate="tree").fit(X, y)
    assert model.n_iter_ == 2
    assert set(model.predictor_.rule.features(0)) == {0}
    save(model, tmp_path / "gated.miser")
    again = load(tmp_path / "gated.miser")
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))
    assert np.array_equal(again.prediction_costs(X) > 1.0, X[:, 0] == np.inf)


def test_objects_fetch_a_state_at_a_time(learned):
    model, X, _ = learned
    calls = []
    sources = Sources()

    @sources.columns("f0")
    def cheap(raw):
        calls.append("cheap")
        return raw[0]

    @sources.columns("f1")
    def dear(raw):
        calls.append("dear")
        return raw[1]

    @sources.columns("f2")
    def useless(raw):
        calls.append("useless")
        return raw[2]

    served = OnDemandPredictor(model, sources)
    few = X[:40]
    assert np.array_equal(served.predict([row.tolist() for row in few]), model.predict(few))
    assert calls.count("cheap") == 40
    assert calls.count("dear") == np.count_nonzero(few[:, 0] == 5)
    assert "useless" not in calls


def test_no_row_pays_more_than_the_row_budget():
    X, y = rows_of()
    base = MiserClassifier(costs=[1.0, 10.0, 5.0], **QUICK)
    model = GatedClassifier(base, tradeoff=1e-6, row_budget=6.0).fit(X, y)
    assert model.cost_max_ <= 6.0
    strange = np.random.default_rng(1).normal(0, 1e6, (500, 3))
    strange[::7] = np.nan
    assert model.prediction_costs(strange).max() <= 6.0


@pytest.mark.slow
def test_a_tighter_tradeoff_never_costs_more():
    X, y = rows_of(800)
    base = MiserClassifier(costs=[1.0, 10.0, 5.0], **QUICK)
    costs = [
        GatedClassifier(base, tradeoff=tradeoff).fit(X, y).cost_
        for tradeoff in (0.0, 1e-4, 1e-2, 0.05, 0.2, 10.0)
    ]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == 0.0 < costs[0]


def test_a_mean_budget_holds():
    X, y = rows_of()
    base = MiserClassifier(costs=[1.0, 10.0, 5.0], **QUICK)
    model = GatedClassifier(base, budget=3.5).fit(X, y)
    assert 1.0 < model.cost_ <= 3.5
    assert model.n_iter_ > 1


def test_truncation_keeps_the_first_states(learned):
    model, X, _ = learned
    first = model.truncate(1)
    assert first.cost_ == first.cost_max_ == 1.0
    assert set(first.prediction_costs(X)) == {1.0}
    assert model.truncate(2).cost_max_ == 11.0
    with pytest.raises(ValueError, match="n_iter must lie between 1 and 2, got 3"):
        model.truncate(3)


def test_frames_categories_missing_values_groups_and_weights():
    rng = np.random.default_rng(2)
    n = 1200
    frame = pd.DataFrame(
        {
            "kind": pd.Categorical(rng.choice(["a", "b", "c"], n)),
            "x": rng.random(n),
            "z": rng.random(n),
        }
    )
    frame.loc[rng.random(n) < 0.1, "x"] = np.nan
    y = np.where(frame["kind"] == "c", frame["z"] > 0.5, frame["kind"] == "a")
    labels = np.where(y, "yes", "no")
    costs = CostModel(
        {"kind": 1.0, "x": 2.0, "z": 4.0}, groups={"lab": ["x", "z"]}, group_costs={"lab": 3.0}
    )
    model = GatedClassifier(MiserClassifier(costs=costs, **QUICK), tradeoff=1e-3, gate="tree")
    model.fit(frame, labels, sample_weight=rng.uniform(0.5, 2.0, n))
    assert set(model.prediction_costs(frame)) == {1.0, 8.0}
    assert "with kind = c: z" in str(model.protocol(frame))
    assert model.score(frame, labels) > 0.97


def test_several_classes():
    X, _ = rows_of()
    y = np.where(X[:, 0] == 5, 1 + (X[:, 1] > 2), (X[:, 0] > 2) * 3)
    model = GatedClassifier(MiserClassifier(costs=[1.0, 10.0, 5.0], **QUICK), tradeoff=1e-3)
    model.fit(X, y)
    assert model.predict_proba(X).shape == (len(X), 4)
    assert model.score(X, y) > 0.99
    assert 1.0 < model.prediction_costs(X).mean() < 4.0


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["squared_error", "absolute_error", "poisson"])
def test_regression_by_any_loss(loss):
    X, _ = rows_of()
    y = np.where(X[:, 0] == 5, X[:, 1], 1.0)
    model = GatedRegressor(MiserRegressor(costs=[1.0, 10.0, 5.0], loss=loss, **QUICK))
    model.set_params(tradeoff=1e-3).fit(X, y)
    assert model.score(X, y) > 0.9
    assert set(model.prediction_costs(X)) == {1.0, 11.0}


# -- data from which there is nothing to learn ----------------------------------------------------


def test_few_rows_make_a_plain_model_with_a_word():
    X, y = rows_of(60)
    model = GatedClassifier(MiserClassifier(min_samples_leaf=2, max_iter=5)).fit(X, y)
    assert model.n_iter_ == 1
    assert model.notes_ == ("gates need at least 100 rows, got 60",)


def test_a_class_of_one_row():
    X, y = rows_of(300)
    labels = y.astype(int)
    labels[7] = 2
    model = GatedClassifier(MiserClassifier(**QUICK)).fit(X, labels)
    assert model.predict(X).shape == (300,)
    assert model.classes_.tolist() == [0, 1, 2]


def test_nothing_to_know():
    rng = np.random.default_rng(3)
    X, y = np.zeros((200, 2)), rng.integers(0, 2, 200)
    model = GatedClassifier(MiserClassifier(**QUICK)).fit(X, y)
    assert model.cost_ == 0.0
    assert model.features_used_ == []


def test_a_loss_that_is_no_number():
    X, _ = rows_of(300)
    y = np.where(X[:, 0] > 2, 1e150, -1e150)
    model = GatedRegressor(MiserRegressor(costs=[1.0, 10.0, 5.0], **QUICK)).fit(X, y)
    assert np.isfinite(model.predict(X)).all()


def test_free_features_and_prices_of_trees():
    X, y = rows_of(600)
    costs = CostModel([0.0, 10.0, 5.0], tree_cost=0.01)
    model = GatedClassifier(MiserClassifier(costs=costs, **QUICK), tradeoff=1e-3).fit(X, y)
    paid = model.prediction_costs(X)
    assert paid.max() <= model.cost_max_
    assert model.score(X, y) > 0.95


def test_those_are_kept_that_budgets_would_miss_most():
    # The fifth is hardly dearer than the fourth, and the third hardly better than the second.
    costs, scores = [1.0, 10.0, 20.0, 100.0, 101.0], [0.5, 0.8, 0.801, 0.9, 0.95]
    assert most_valuable(costs, scores, 4) == [0, 1, 2, 4]
    assert most_valuable(costs, scores, 3) == [0, 1, 4]
    assert most_valuable([], [], 3) == []


def test_frontiers_lie_one_behind_the_other():
    points = [(1.0, 0.5), (2.0, 0.4), (2.0, 0.6), (0.5, 0.1), (3.0, np.nan), (3.0, 0.55)]
    assert layers(points, 2) == [[3, 0, 2], [1, 5]]
    assert layers(points, 1) == [[3, 0, 2]]
    assert layers([], 2) == []


def test_a_cut_is_between_values():
    levels = Levels.of(np.repeat([1.0, 3.0, 7.0], [50, 30, 20]))
    assert levels.nearest_cut(0.22) == pytest.approx((5.0, 0.2))
    assert levels.nearest_cut(0.4) == pytest.approx((2.0, 0.5))
    assert levels.nearest_cut(0.0) == pytest.approx((5.0, 0.2))  # somebody goes on
    assert Levels.of(np.ones(9)).nearest_cut(0.5) == (1.0, 0.0)


def test_all_folds_have_the_same_number_of_rounds():
    # The first alone would end after one round, the second after three; in the mean it is two.
    traces = [np.array([0.0, 0.9, 0.8, 0.1]), np.array([0.0, 0.1, 0.6, 0.7])]
    assert common_round(traces) == 2
    # One that ended early stays at its last score.
    assert common_round([np.array([0.0, 0.5]), np.array([0.0, 0.1, 0.2, 0.3])]) == 3


# -- on the curve ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def curve():
    X, y = rows_of(1200)
    model = MiserClassifier(costs=[1.0, 10.0, 5.0], charge="row", **QUICK)
    return tradeoff_curve(model, X[:800], y[:800], X_val=X[800:], y_val=y[800:], tradeoffs=4)


def test_cascades_are_candidates_of_the_row_curve(curve):
    X, _ = rows_of(1200)
    points = curve.points
    assert "gates" in set(points["found_by"])
    for i in np.flatnonzero(points["found_by"] == "gates").tolist():
        model, point = curve.models[i], points.iloc[i]
        assert isinstance(model, GatedClassifier)
        assert model.prediction_costs(X[800:]).mean() == pytest.approx(point["cost"])
        assert model.n_iter_ == point["n_iter"]
    assert curve.best(4.0, train=False).prediction_costs(X[800:]).mean() <= 4.0


def test_points_of_cascades_tell_what_trees_cost():
    X, y = rows_of(900)
    costs = CostModel([1.0, 10.0, 5.0], tree_cost=0.01)
    model = MiserClassifier(costs=costs, charge="row", **QUICK)
    curve = tradeoff_curve(model, X[:600], y[:600], X_val=X[600:], y_val=y[600:], tradeoffs=3)
    gated = curve.points[curve.points["found_by"] == "gates"]
    assert len(gated)
    for i, point in gated.iterrows():
        cascade = curve.models[i]
        stages = cascade.predictor_.stages
        _, left = cascade.predictor_.run(cascade.predictor_.table_of(X[600:]))
        trees = 0.01 * np.array([stages[k].n_trees for k in left])
        assert 0 < point["tree_cost"] == pytest.approx(trees.mean())
        assert point["feature_cost"] + point["tree_cost"] == pytest.approx(point["cost"])


def test_cascades_are_chosen_by_rows_of_training_too(curve):
    """Their shift is that of their own folds, not the usual one."""
    points = curve.points
    gated = points[points["found_by"] == "gates"]
    shifts = (gated["choice_score"] - gated["score"]).round(12)
    usual = points[points["found_by"] == "path"]
    assert set(shifts) - set((usual["choice_score"] - usual["score"]).round(12))


def test_all_models_of_a_row_curve_tell_what_rows_pay(curve):
    X, _ = rows_of(1200)
    assert set(curve.points["found_by"]) == {"path", "search", "gates"}
    for model, (_, point) in zip(curve.models, curve.points.iterrows(), strict=True):
        if point["found_by"] != "gates":
            model = model.truncate(int(point["n_iter"]))
            assert model.cost_ == pytest.approx(model.prediction_costs(X[:800]).mean())
        assert model.prediction_costs(X[800:]).mean() == pytest.approx(point["cost"])
        assert model.protocol(X).mean_cost == pytest.approx(model.prediction_costs(X).mean())


@pytest.mark.parametrize("limits", [{"row_budget": 6.5}, {"row_budget": 8.0, "budget": 4.0}])
def test_a_row_curve_keeps_the_limits_of_rows(limits):
    X, y = rows_of(500)
    model = MiserClassifier(costs=[1.0, 10.0, 5.0], charge="row", **limits, **QUICK)
    rows = {"X_val": X[300:], "y_val": y[300:]}
    curve = tradeoff_curve(model, X[:300], y[:300], **rows, tradeoffs=3, effort=0.1)
    for each in curve.models:
        assert each.prediction_costs(X[:300]).max() <= limits["row_budget"]
        assert each.prediction_costs(X[:300]).mean() <= limits.get("budget", np.inf) * 1.1


def test_the_row_curve_has_the_flat_one(curve):
    """No budget has a worse choice by what both go by."""
    X, y = rows_of(1200)
    model = MiserClassifier(costs=[1.0, 10.0, 5.0], **QUICK)
    rows = {"X_val": X[800:], "y_val": y[800:]}
    flat = tradeoff_curve(model, X[:800], y[:800], **rows, tradeoffs=4)
    assert not flat.pareto().empty
    for _, point in flat.pareto().iterrows():
        found = curve.best_row(point["cost"])
        assert found["choice_score"] >= point["choice_score"] - 1e-12


def test_a_search_by_cross_validation_has_cascades():
    X, y = rows_of(900)
    base = MiserClassifier(costs=[1.0, 10.0, 5.0], charge="row", **QUICK)
    search = MiserSearchCV(base, budget=2.5, tradeoffs=2, cv=2, effort=0.2, random_state=0)
    search.fit(X, y)
    (line,) = search.cv_results_.query("resources == 'gates'").to_dict("records")
    assert line["cost"] <= 2.8  # in the mean of rows that nobody has seen
    assert line["score"] == search.cv_results_["score"].max() == search.best_score_
    assert search.best_params_ == {"gate": "auto"}
    assert isinstance(search.best_estimator_, GatedClassifier)
    assert search.cost_ <= 2.5
    assert search.prediction_costs(X).mean() <= 2.8


def test_a_search_has_no_cascades_where_the_model_pays():
    X, y = rows_of(400)
    base = MiserClassifier(costs=[1.0, 10.0, 5.0], **QUICK)
    search = MiserSearchCV(base, budget=4.0, tradeoffs=2, cv=2, effort=0.1, random_state=0)
    assert "gates" not in set(search.fit(X, y).cv_results_["resources"])


def test_estimators_can_be_cloned_and_refuse_strangers():
    X, y = rows_of(50)
    model = GatedClassifier(MiserClassifier(), tradeoff=0.5, gate="band")
    assert clone(model).get_params()["gate"] == "band"
    with pytest.raises(TypeError, match="needs a MiserClassifier"):
        GatedClassifier(MiserRegressor()).fit(X, y)
    with pytest.raises(ValueError, match="given together, but y_val is missing"):
        GatedClassifier().fit(X, y, X_val=X)


@pytest.mark.parametrize("limits", [{"budget": 0.5}, {"row_budget": 4.0}, {"row_budget": 0.5}])
@pytest.mark.parametrize("tree_cost", [0.1, 1.0])
def test_trees_on_free_features_are_within_the_budget(limits, tree_cost):
    X, y = rows_of(500)
    base = MiserClassifier(costs=CostModel([0.0, 5.0, 3.0], tree_cost=tree_cost), **QUICK)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BudgetWarning)
        model = GatedClassifier(base, **limits).fit(X, y)
    assert model.cost_ <= limits.get("budget", np.inf)
    assert model.cost_max_ <= limits.get("row_budget", np.inf)
    assert np.isfinite(model.predict_proba(X)).all()


def test_a_budget_is_kept_where_gates_have_few_levels():
    """Gates of the folds may send few rows on, where the one that is served sends many or none."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 3, (1500, 5)).astype(float)
    y = np.where(X[:, 0] == 2, X[:, 1] + X[:, 2] > 2, X[:, 0] > 0) ^ (rng.random(1500) < 0.05)
    base = MiserClassifier(costs=[1, 10, 10, 5, 5], max_iter=10, learning_rate=0.3, n_jobs=1)
    model = GatedClassifier(base, budget=3.0, gate="tree", random_state=0, effort=0.1).fit(X, y)
    assert model.prediction_costs(X).mean() <= 3.3  # in the mean of the rows that were set aside: 3
    assert model.cost_ == pytest.approx(model.prediction_costs(X).mean(), rel=0.2)
