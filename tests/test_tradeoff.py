"""The path of trade-offs, the choice by budget, and the search."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GroupKFold, cross_val_score

from greedymiser import (
    CostModel,
    MiserClassifier,
    MiserRanker,
    MiserRegressor,
    MiserSearchCV,
    TradeoffCurve,
    ndcg_score,
    tradeoff_curve,
)
from greedymiser.losses import SquaredError

COSTS = CostModel(
    [4.0, 1.0, 2.0, 0.5, 8.0, 1.0],
    groups={"shared": [1, 2]},
    group_costs={"shared": 3.0},
    tree_cost=0.01,
)


def data(n=400, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 6))
    y = X[:, 0] + 0.7 * X[:, 1] + 0.5 * X[:, 2] + 0.3 * X[:, 3] + 0.2 * rng.standard_normal(n)
    return X, y


@pytest.fixture(scope="module")
def curve():
    (X, y), (X_val, y_val), (X_test, y_test) = data(), data(200, 1), data(200, 2)
    return tradeoff_curve(
        MiserRegressor(costs=COSTS, max_iter=25), X, y, X_val=X_val, y_val=y_val, X_test=X_test,
        y_test=y_test, tradeoffs=7, cost_unit="cents",
    )  # fmt: skip


def test_points_and_traces_have_what_they_promise(curve):
    columns = ["tradeoff", "n_iter", "n_trees", "feature_cost", "tree_cost", "cost", "score"]
    assert list(curve.points.columns) == [*columns, "n_features", "test_score"]
    assert list(curve.traces.columns) == list(curve.points.columns)
    assert curve.points["tradeoff"].is_monotonic_increasing
    assert len(curve.models) == len(curve.points)
    assert curve.points["tradeoff"].iloc[0] == 0.0
    # The largest trade-off is the one at which nothing pays.
    assert curve.points["cost"].iloc[-1] == 0.0
    assert curve.points["cost"].nunique() >= 4


def test_every_row_of_the_traces_is_a_model(curve):
    X_val, y_val = data(200, 1)
    X_test, y_test = data(200, 2)
    models = dict(zip(curve.points["tradeoff"], curve.models, strict=True))
    for row in curve.traces.iloc[::9].itertuples():
        model = models[row.tradeoff].truncate(row.n_iter)
        assert model.cost_ == row.cost
        assert len(model.features_used_) == row.n_features
        assert model.ensemble_.n_trees == row.n_trees
        assert row.feature_cost + row.tree_cost == pytest.approx(row.cost)
        loss = SquaredError()
        assert row.score == pytest.approx(-loss.value(y_val, model.predict(X_val)), rel=1e-9)
        assert row.test_score == pytest.approx(-loss.value(y_test, model.predict(X_test)), rel=1e-9)


def test_points_are_the_best_rounds(curve):
    best = curve.traces.groupby("tradeoff")["score"].max()
    np.testing.assert_array_equal(curve.points["score"], best.to_numpy())


def test_a_shared_path_gives_the_models_of_separate_fits(curve):
    (X, y), (X_val, y_val) = data(), data(200, 1)
    for tradeoff, shared in zip(curve.points["tradeoff"], curve.models, strict=True):
        alone = MiserRegressor(costs=COSTS, max_iter=25, tradeoff=tradeoff, early_stopping=False)
        alone.fit(X, y, X_val=X_val, y_val=y_val)
        best = shared.truncate(alone.n_iter_)
        assert best.ensemble_.nodes.tobytes() == alone.ensemble_.nodes.tobytes()
        assert best.receipt() == alone.receipt()


@settings(max_examples=60, deadline=None)
@given(st.floats(0.0, 25.0))
def test_best_is_within_the_budget_and_grows_with_it(curve, budget):
    model, row = curve.best(budget), curve.best_row(budget)
    assert model.cost_ <= budget
    assert model.cost_ == row["cost"]
    more = curve.best_row(budget * 1.5 + 0.1)
    assert more["score"] >= row["score"]
    affordable = curve.traces[curve.traces["cost"] <= budget]
    assert row["score"] == affordable["score"].max()


def test_best_for_every_price_on_the_way(curve):
    total = COSTS.total(range(6), 25)
    scores = [curve.best_row(budget)["score"] for budget in np.linspace(0, total, 40)]
    assert scores == sorted(scores)
    assert curve.best().cost_ == curve.best(total).cost_
    with pytest.raises(ValueError, match="budget must not be negative, got -1"):
        curve.best(-1)


def test_pareto_rows_are_not_beaten(curve):
    front = curve.pareto()
    assert front["cost"].is_monotonic_increasing
    assert front["score"].is_monotonic_increasing
    for row in front.itertuples():
        cheaper = curve.traces[curve.traces["cost"] <= row.cost]
        assert row.score == cheaper["score"].max()


def test_csv_and_frame(curve, tmp_path):
    curve.to_csv(tmp_path / "curve.csv")
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "curve.csv"), curve.points)
    frame = curve.to_frame()
    frame.loc[0, "cost"] = -1.0
    assert curve.points.loc[0, "cost"] != -1.0
    assert "7 trade-offs" in repr(curve)
    assert (curve.scoring, curve.cost_unit) == ("negative half the squared error", "cents")


def test_given_tradeoffs_are_trained_once_each_and_callbacks_count():
    (X, y), (X_val, y_val) = data(), data(200, 1)
    heard = []
    curve = tradeoff_curve(
        MiserRegressor(costs=COSTS, max_iter=3), X, y, X_val=X_val, y_val=y_val,
        tradeoffs=[0.1, 0.0, 0.1], callback=lambda done, total: heard.append((done, total)),
    )  # fmt: skip
    assert curve.points["tradeoff"].tolist() == [0.0, 0.1]
    assert heard == [(1, 3), (2, 3)]


def test_the_estimator_is_left_alone():
    (X, y), (X_val, y_val) = data(), data(200, 1)
    estimator = MiserRegressor(costs=COSTS, max_iter=2, tradeoff=7.0)
    before = estimator.get_params()
    tradeoff_curve(estimator, X, y, X_val=X_val, y_val=y_val, tradeoffs=2, n_jobs=1)
    assert estimator.get_params() == before
    assert not hasattr(estimator, "ensemble_")


def test_an_interruption_keeps_what_is_done():
    (X, y), (X_val, y_val) = data(), data(200, 1)

    def interrupt(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="2 of 5 trade-offs done"):
        curve = tradeoff_curve(
            MiserRegressor(costs=COSTS, max_iter=3), X, y, X_val=X_val, y_val=y_val, tradeoffs=5,
            callback=interrupt,
        )  # fmt: skip
    assert isinstance(curve, TradeoffCurve)
    assert len(curve.models) == 2
    assert curve.best(5.0).cost_ <= 5.0


def test_an_interruption_of_the_first_model_is_an_interruption():
    (X, y), (X_val, y_val) = data(), data(200, 1)

    class UnfinishedError(SquaredError):
        def gradients(self, y, raw):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tradeoff_curve(
            MiserRegressor(costs=COSTS, loss=UnfinishedError()), X, y, X_val=X_val, y_val=y_val,
            tradeoffs=[0.0],
        )  # fmt: skip


def test_free_features_leave_nothing_to_trade():
    (X, y), (X_val, y_val) = data(), data(200, 1)
    free = MiserRegressor(costs=[0.0] * 6, max_iter=3)
    curve = tradeoff_curve(free, X, y, X_val=X_val, y_val=y_val, tradeoffs=5)
    assert curve.points["tradeoff"].tolist() == [0.0]
    assert curve.best(0.0).n_iter_ == curve.points["n_iter"].iloc[0]


def test_classification_and_ranking_curves():
    (X, y), (X_val, y_val) = data(), data(200, 1)
    classes, classes_val = np.digitize(y, [-1, 1]), np.digitize(y_val, [-1, 1])
    curve = tradeoff_curve(
        MiserClassifier(costs=COSTS, max_iter=5), X, classes, X_val=X_val, y_val=classes_val,
        tradeoffs=[0.0, 0.01], scoring="accuracy",
    )  # fmt: skip
    assert curve.scoring == "accuracy"
    row = curve.best_row(10.0)
    predicted = curve.best(10.0).predict(X_val)
    assert row["score"] == pytest.approx(accuracy_score(classes_val, predicted))
    qid, qid_val = np.repeat(np.arange(40), 10), np.repeat(np.arange(20), 10)
    curve = tradeoff_curve(
        MiserRanker(costs=COSTS, max_iter=5), X, classes, qid=qid, X_val=X_val, y_val=classes_val,
        qid_val=qid_val, tradeoffs=[0.0, 1e-4], scoring="ndcg@5",
    )  # fmt: skip
    score = ndcg_score(classes_val, curve.best().predict(X_val), qid_val, k=5)
    assert curve.best_row()["score"] == pytest.approx(score)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"tradeoffs": 0}, ValueError, "tradeoffs must be at least 1, got 0"),
        ({"tradeoffs": [-1.0]}, ValueError, "not negative, got -1.0"),
        ({"tradeoffs": [np.nan]}, ValueError, "finite and not negative, got nan"),
        ({"X_val": None}, ValueError, "needs X_val and y_val"),
        ({"estimator": SquaredError()}, TypeError, "must be one of the Miser estimators"),
    ],
)
def test_bad_input(changes, error, message):
    (X, y), (X_val, y_val) = data(50), data(50, 1)
    given = dict(estimator=MiserRegressor(max_iter=2), X=X, y=y, X_val=X_val, y_val=y_val)
    with pytest.raises(error, match=message):
        tradeoff_curve(**{**given, **changes})


# -- the search -----------------------------------------------------------------------------------


def test_search_finds_a_model_within_the_budget():
    X, y = data()
    search = MiserSearchCV(
        MiserRegressor(costs=COSTS, max_iter=15), budget=9.0, tradeoffs=4, cv=3, random_state=0
    )
    search.fit(X, y)
    assert 0 < search.cost_ <= 9.0
    assert search.best_estimator_.n_iter_ <= search.best_params_["max_iter"]
    assert search.best_score_ == search.cv_results_["score"].max()
    assert (search.cv_results_["cost_max"] <= 9.0).all()
    assert search.score(X, y) > 0.5
    np.testing.assert_array_equal(search.prediction_costs(X[:2]), [search.cost_] * 2)
    poorer = clone(search).set_params(budget=4.0).fit(X, y)
    assert poorer.cost_ <= 4.0
    assert poorer.best_score_ < search.best_score_


def test_search_of_a_classifier_and_a_ranker():
    X, y = data()
    labels = np.array(["low", "mid", "high"])[np.digitize(y, [-1, 1])]
    search = MiserSearchCV(MiserClassifier(costs=COSTS, max_iter=5), tradeoffs=2, cv=2)
    search.fit(X, labels)
    assert set(search.predict(X)) <= set(labels)
    assert search.predict_proba(X).shape == (len(X), 3)
    assert cross_val_score(search, X, labels, cv=2).shape == (2,)
    qid = np.repeat(np.arange(40), 10)
    ranker = MiserSearchCV(
        MiserRanker(costs=COSTS, max_iter=5), tradeoffs=[0.0, 1e-5], cv=GroupKFold(2),
        scoring="ndcg@5", budget=10.0,
    )  # fmt: skip
    ranker.fit(X, np.digitize(y, [-1, 1]), qid=qid)
    assert ranker.cost_ <= 10.0
    assert not hasattr(ranker, "predict_proba")


def test_search_that_can_afford_nothing_is_a_constant():
    X, y = data(100)
    search = MiserSearchCV(MiserRegressor(costs=[5.0] * 6, max_iter=3), budget=1.0, cv=2)
    with pytest.warns(UserWarning, match="buys no useful feature"):
        search.fit(X, y)
    assert search.cost_ == 0.0
    np.testing.assert_allclose(search.predict(X), y.mean())
