"""The path of trade-offs, the choice by budget, and the search."""

import copy
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GroupKFold, KFold, cross_val_score
from sklearn.utils.validation import check_is_fitted

from greedymiser import (
    BudgetWarning,
    CostModel,
    EarlyExitClassifier,
    MiserClassifier,
    MiserRanker,
    MiserRegressor,
    MiserSearchCV,
    OnDemandPredictor,
    Sources,
    TradeoffCurve,
    as_predictor,
    load,
    ndcg_score,
    save,
    to_lightgbm,
    tradeoff_curve,
)
from greedymiser._core.amounts import money, rounded_score
from greedymiser.curve import path
from greedymiser.curve.search import _Whole
from greedymiser.curve.trainer import Trainer
from greedymiser.data.binning import BinMapper
from greedymiser.losses import SquaredError
from greedymiser.training.preparation import Inputs
from random_examples import examples

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
        y_test=y_test, tradeoffs=7, search="path", cost_unit="cents",
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


@pytest.mark.filterwarnings("ignore::greedymiser.BudgetWarning")
@examples(60)
@given(st.floats(0.0, 25.0))
def test_best_is_within_the_budget_and_grows_with_it(curve, budget):
    model, row = curve.best(budget), curve.best_row(budget)
    assert model.cost_ <= budget
    assert model.cost_ == row["cost"]
    more = curve.best_row(budget * 1.5 + 0.1)
    assert more["score"] >= row["score"]
    affordable = curve.traces[curve.traces["cost"] <= budget]
    assert row["score"] == affordable["score"].max()


def test_a_budget_of_nothing_is_told_to_buy_a_constant(curve):
    with pytest.warns(BudgetWarning, match="budget=0 buys no useful feature") as caught:
        model = curve.best(0)
    assert caught[0].filename == __file__
    better = curve.traces[curve.traces["score"] > curve.best_row(0)["score"]]
    assert str(caught[0].message).endswith(f"costs {better['cost'].min():g}")
    assert (model.cost_, model.features_used_) == (0.0, [])


def test_no_budget_is_blamed_where_nothing_is_better_than_a_constant():
    (X, y), (X_val, _) = data(), data(200, 1)
    estimator = MiserRegressor(costs=COSTS, max_iter=3)
    flat = np.full(len(X_val), y.mean())
    curve = tradeoff_curve(estimator, X, y, X_val=X_val, y_val=flat, tradeoffs=[0.0, 1e9])
    assert curve.best(0).features_used_ == []


def test_best_for_every_price_on_the_way(curve):
    total = COSTS.total(range(6), 25)
    scores = [curve.best_row(budget)["score"] for budget in np.linspace(0, total, 40)]
    assert scores == sorted(scores)
    assert curve.best().cost_ == curve.best(total).cost_
    with pytest.raises(ValueError, match="budget must be an amount, or None for any; got nan"):
        curve.best(float("nan"))
    with pytest.raises(ValueError, match="budget must not be negative, got -1"):
        curve.best(-1)
    with pytest.raises(TypeError, match="budget must be a number, got 'cheap'"):
        curve.best("cheap")
    assert curve.best(np.float32(total)).cost_ == curve.best().cost_


def test_copies_of_a_curve(curve):
    X, _ = data(200, 2)
    for copied in (pickle.loads(pickle.dumps(curve)), copy.deepcopy(curve)):
        pd.testing.assert_frame_equal(copied.points, curve.points)
        np.testing.assert_array_equal(copied.best(9.0).predict(X), curve.best(9.0).predict(X))


def test_pareto_rows_are_not_beaten(curve):
    front = curve.pareto()
    assert front["cost"].is_monotonic_increasing
    assert front["score"].is_monotonic_increasing
    for row in front.itertuples():
        cheaper = curve.traces[curve.traces["cost"] <= row.cost]
        assert row.score == cheaper["score"].max()


def test_str_shows_what_each_budget_buys_in_80_columns(curve):
    head, *lines = str(curve).splitlines()[1:]
    assert head.split() == ["cost", "score", "test", "score", "what", "it", "adds"]
    assert 2 <= len(lines) <= 12
    assert max(map(len, lines)) <= 80
    costs = [float(line.split()[0]) for line in lines]
    assert costs == sorted(costs)
    assert sum("<- recommended" in line for line in lines) == 1


def test_csv_and_frame(curve, tmp_path):
    curve.to_csv(tmp_path / "curve.csv")
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "curve.csv"), curve.points)
    frame = curve.to_frame()
    frame.loc[0, "cost"] = -1.0
    assert curve.points.loc[0, "cost"] != -1.0
    front = curve.pareto()
    first, last = (
        f"{rounded_score(front['score'].iloc[i])} for {money(front['cost'].iloc[i], 'cents')}"
        for i in (0, -1)
    )
    said = f"TradeoffCurve of 7 models, negative half the squared error from {first} to {last}"
    assert repr(curve) == f"<{said}>"
    page = curve._repr_html_()
    assert page.count("<tr>") == len(str(curve).splitlines()) - 1
    assert "recommended" in page
    assert (curve.scoring, curve.cost_unit) == ("negative half the squared error", "cents")


def test_trade_offs_are_where_models_differ():
    """One feature for a cent must not take half of them."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 4))
    y = X @ [1.0, 0.6, 0.5, 0.4]
    curve = tradeoff_curve(
        MiserRegressor(costs=[0.01, 0.5, 1.0, 2.0], max_iter=30, n_jobs=1), X[:300], y[:300],
        X_val=X[300:], y_val=y[300:], search="path", tradeoffs=8,
    )  # fmt: skip
    assert len(curve.points) == 8
    assert len(curve.points.drop_duplicates(["cost", "score"])) >= 6


def test_trade_offs_reach_both_ends_where_prices_span_decades():
    rng = np.random.default_rng(0)
    signal = rng.standard_normal((1200, 30))
    X, y = signal + 0.5 * rng.standard_normal((1200, 30)), signal @ np.r_[1, 2, 9, np.ones(27)]
    costs = CostModel(np.r_[0.01, 0.1, 1.0, np.full(27, 100.0)])
    curve = tradeoff_curve(
        MiserRegressor(costs=costs, max_iter=60), X[:800], y[:800], X_val=X[800:], y_val=y[800:],
        search="path", tradeoffs=7,
    )  # fmt: skip
    shares = curve.points["cost"] / curve.points["cost"].max()
    assert ((shares > 0.02) & (shares < 0.98)).sum() >= 2  # between the two ends
    assert ((shares > 0) & (shares < 0.01)).any()


def test_given_tradeoffs_are_trained_once_each_and_callbacks_count():
    (X, y), (X_val, y_val) = data(), data(200, 1)
    heard = []
    curve = tradeoff_curve(
        MiserRegressor(costs=COSTS, max_iter=3), X, y, X_val=X_val, y_val=y_val,
        tradeoffs=[0.1, 0.0, 0.1], callback=lambda done, total: heard.append((done, total)),
    )  # fmt: skip
    assert curve.points["tradeoff"].tolist() == [0.0, 0.1]
    assert heard == [(1, 2), (2, 2)]


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


@pytest.mark.filterwarnings("ignore::greedymiser.BudgetWarning")
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
        ({"tradeoffs": []}, ValueError, "tradeoffs must name at least one trade-off, got an empty"),
        ({"tradeoffs": 2.5}, TypeError, "tradeoffs must be a number of them, .* got 2.5"),
        ({"tradeoffs": None}, TypeError, "tradeoffs must be a number of them, .* got None"),
        ({"tradeoffs": "0.1"}, TypeError, "tradeoffs must be a number of them, .* got '0.1'"),
        ({"tradeoffs": [0.1, "x"]}, TypeError, "tradeoffs must be numbers, got 'x'"),
        ({"callback": [print]}, TypeError, r"callback must be callable, got \[<built-in"),
        ({"X_test": np.zeros((2, 6))}, ValueError, "X_test and y_test .* but y_test is missing"),
        ({"y_test": [1.0]}, ValueError, "X_test and y_test must be .* but X_test is missing"),
        ({"sample_weight_test": [1.0]}, ValueError, "and qid_test need X_test and y_test"),
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


def test_errors_are_about_the_data_that_is_wrong():
    (X, y), (X_val, y_val) = data(50), data(50, 1)
    classifier = MiserClassifier(max_iter=2)
    given = dict(X=X, y=y > 0, X_val=X_val, y_val=y_val > 0, tradeoffs=[0.0])
    with pytest.raises(ValueError, match="a class that the model does not know") as caught:
        tradeoff_curve(classifier, **given, X_test=X, y_test=np.arange(50))
    assert caught.value.__notes__ == ["This is about the test data (X_test, y_test, ...)."]
    with pytest.raises(ValueError, match="a class that the model does not know") as caught:
        tradeoff_curve(classifier, **{**given, "y_val": np.arange(50)})
    assert caught.value.__notes__ == ["This is about the validation data (X_val, y_val, ...)."]
    qid = np.zeros(50)
    given = dict(X=X, y=y > 0, X_val=X_val, y_val=y_val > 0, qid=qid, qid_val=qid)
    with pytest.raises(ValueError, match="there is only qid: qid_test is missing"):
        tradeoff_curve(MiserRanker(max_iter=2), **given, X_test=X, y_test=y > 0)
    with pytest.raises(ValueError, match="there is only qid: qid_val is missing"):
        tradeoff_curve(MiserRanker(max_iter=2), **{**given, "qid_val": None})
    with pytest.raises(ValueError, match="there is only qid_val: qid is missing"):
        tradeoff_curve(MiserRanker(max_iter=2), **{**given, "qid": None})


def test_tradeoffs_may_be_any_numbers_in_a_row():
    (X, y), (X_val, y_val) = data(50), data(50, 1)
    for row in ((0, 1), np.array([0.0, 1.0]), (value for value in (0.0, 1.0)), pd.Series([0, 1])):
        curve = tradeoff_curve(
            MiserRegressor(max_iter=1), X, y, X_val=X_val, y_val=y_val, tradeoffs=row
        )
        assert curve.points["tradeoff"].tolist() == [0.0, 1.0]


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


def names_of(X):
    return [f"x{i}" for i in range(X.shape[1])]


@pytest.fixture(scope="module")
def named_search():
    X, y = data(200)
    frame = pd.DataFrame(X, columns=names_of(X))
    search = MiserSearchCV(
        MiserRegressor(costs=COSTS, max_iter=8, learning_rate=0.3), tradeoffs=[0.0, 0.01], cv=2
    )
    return search.fit(frame, y), frame


def test_a_search_bins_nothing_that_it_does_not_use(monkeypatch):
    X, y = np.arange(240.0).reshape(60, 4) % 17, np.arange(60.0) % 5
    binned = []

    def counting(real):
        def count(self, table, rows, *rest):
            binned.append(table.n_rows if rows is None else len(rows))
            return real(self, table, rows, *rest)

        return count

    for name in ("fit_transform", "transform"):
        monkeypatch.setattr(BinMapper, name, counting(getattr(BinMapper, name)))
    search = MiserSearchCV(MiserRegressor(max_iter=2), tradeoffs=3, cv=2, search="path")
    search.fit(X, y)
    # All for the highest trade-off, each fold's two parts, and all for the last fit.
    assert binned == [60, 30, 30, 30, 30, 60]


def test_a_search_is_a_model(named_search, tmp_path):
    search, frame = named_search
    best = search.best_estimator_
    assert search.n_splits_ == 2
    assert search.feature_names_in_.tolist() == names_of(frame)
    assert (search.n_features_in_, search.cost_) == (6, best.cost_)
    assert search.features_used_ == best.features_used_
    assert search.resources_used_ == best.resources_used_
    assert search.receipt() == best.receipt()
    assert as_predictor(search).cost_ == search.cost_
    save(search, tmp_path / "search.miser")
    served = load(tmp_path / "search.miser")
    np.testing.assert_array_equal(served.predict(frame), search.predict(frame))
    assert served.about["estimator"] == "MiserSearchCV"
    assert served.about["base"]["parameters"]["learning_rate"] == 0.3
    assert to_lightgbm(search) == to_lightgbm(best) == to_lightgbm(served)
    assert not hasattr(search, "classes_")
    with pytest.raises(ValueError, match="feature names should match"):
        search.predict(frame.rename(columns={"x0": "stranger"}))


def test_copies_of_a_search(named_search):
    search, frame = named_search
    for copied in (pickle.loads(pickle.dumps(search)), copy.deepcopy(search), copy.copy(search)):
        np.testing.assert_array_equal(copied.predict(frame), search.predict(frame))
    check_is_fitted(search)
    twin = clone(search)
    with pytest.raises(NotFittedError):
        check_is_fitted(twin)
    for ask in (twin.predict, twin.prediction_costs):
        with pytest.raises(NotFittedError):
            ask(frame)
    for method in ("receipt", "score"):
        with pytest.raises(NotFittedError):
            getattr(twin, method)(*(() if method == "receipt" else (frame, frame["x0"])))
    for name in ("predictor_", "feature_names_in_", "n_features_in_", "cost_"):
        assert not hasattr(twin, name)
    with pytest.raises(TypeError, match="MiserSearchCV is not a fitted model"):
        as_predictor(twin)


class Spy:
    """A splitter that notes which groups it is given."""

    def __init__(self, splitter):
        self.splitter = splitter

    def get_n_splits(self, X=None, y=None, groups=None):
        return self.splitter.get_n_splits(X, y, groups)

    def split(self, X, y=None, groups=None):
        self.groups = groups
        for learn, check in self.splitter.split(X, y, groups):
            assert not set(groups[learn]) & set(groups[check])
            yield learn, check


def test_groups_stay_together():
    X, y = data(200)
    groups = np.arange(200) % 7
    for cv in (3, GroupKFold(3), Spy(GroupKFold(3))):
        for model, target in ((MiserRegressor, y), (MiserClassifier, y > 0), (MiserRanker, y > 0)):
            search = MiserSearchCV(model(max_iter=2), tradeoffs=[0.0], cv=cv)
            assert search.fit(X, target, groups=groups).n_splits_ == 3
    assert cv.groups is groups


@pytest.mark.parametrize(
    ("kind", "together"),
    [(MiserClassifier, "groups"), (MiserRegressor, "groups"), (MiserRanker, "groups"),
     (MiserRanker, "qid")],
)  # fmt: skip
def test_a_number_of_folds_heeds_groups_and_queries(kind, together):
    X, y = data(120)
    groups = np.arange(120) % 7
    qid, by_group = (groups, None) if together == "qid" else (None, groups)
    whole = _Whole(Inputs(X, y > 0, None, qid), by_group)
    folds = MiserSearchCV(kind(), cv=3)._folds(kind(), whole)
    assert len(folds) == 3
    for learn, check in folds:
        assert not set(groups[learn]) & set(groups[check])


def test_groups_that_a_splitter_ignores_are_told_and_queries_are_not():
    X, y = data(100)
    search = MiserSearchCV(MiserRanker(max_iter=2), tradeoffs=[0.0], cv=KFold(2))
    search.fit(X, y > 0, qid=np.arange(100) // 10)
    with pytest.warns(UserWarning, match="groups parameter is ignored by KFold"):
        search.fit(X, y > 0, qid=np.arange(100) // 10, groups=np.arange(100) // 10)


def test_queries_are_for_rankers():
    X, y = data(60)
    qid = np.arange(60) // 6
    search = MiserSearchCV(MiserRegressor(max_iter=2), tradeoffs=[0.0], cv=2)
    with pytest.raises(TypeError, match="qid is for rankers, but the estimator is a MiserReg"):
        search.fit(X, y, qid=qid)
    with pytest.raises(TypeError, match="qid is for rankers, but the estimator is a MiserReg"):
        search.fit(X, y).score(X, y, qid=qid)
    with pytest.raises(TypeError, match="qid is for rankers, but the estimator is a MiserReg"):
        tradeoff_curve(MiserRegressor(), X, y, X_val=X, y_val=y, qid=qid, qid_val=qid)
    ranker = MiserSearchCV(MiserRanker(max_iter=2), tradeoffs=[0.0], cv=2).fit(X, y > 0, qid=qid)
    direct = ranker.best_estimator_.score(X, y > 0, qid=qid, k=3, no_relevant=0.0)
    assert ranker.score(X, y > 0, qid=qid, k=3, no_relevant=0.0) == direct


def test_bad_input_of_a_search():
    X, y = data(60)
    search = MiserSearchCV(MiserRegressor(max_iter=2), tradeoffs=[], cv=2)
    with pytest.raises(ValueError, match="tradeoffs must name at least one"):
        search.fit(X, y)
    search.set_params(tradeoffs=[0.0])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        search.fit(X, y[:-1])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        search.fit(X, y, groups=[1, 2])
    with pytest.raises(TypeError, match="must be one of the Miser estimators"):
        MiserSearchCV(EarlyExitClassifier(MiserClassifier())).fit(X, y > 0)
    labels = np.where(np.arange(60) == 30, "rare", np.where(y > 0, "a", "b"))
    folds = [(np.arange(20), np.arange(20, 60)), (np.arange(20, 60), np.arange(20))]
    with pytest.raises(ValueError, match="a class that the model does not know: rare") as caught:
        MiserSearchCV(MiserClassifier(max_iter=2), tradeoffs=[0.0], cv=folds).fit(X, labels)
    assert caught.value.__notes__[-1] == "This is about fold 0 of the cross-validation."


@pytest.mark.parametrize("kind", ["lists", "pandas", "polars", "pyarrow", "sparse", "read-only"])
def test_a_search_takes_every_kind_of_data(kind):
    X, y = data(80)
    X = np.round(X)
    names = names_of(X)
    made = {
        "lists": lambda: X.tolist(),
        "pandas": lambda: pd.DataFrame(X, columns=names, index=np.arange(80)[::-1]),
        "polars": lambda: pl.DataFrame(X, schema=names),
        "pyarrow": lambda: pa.table(dict(zip(names, X.T, strict=True))),
        "sparse": lambda: sparse.coo_matrix(X),
        "read-only": lambda: np.broadcast_to(X, (1, 80, 6))[0],
    }[kind]()
    search = MiserSearchCV(MiserRegressor(max_iter=3), tradeoffs=[0.0], cv=2, random_state=0)
    expected = clone(search).fit(X, y)
    search.fit(made, y.tolist() if kind == "lists" else y)
    assert search.best_score_ == expected.best_score_
    np.testing.assert_array_equal(search.predict(made), expected.predict(X))


def test_exits_and_sources_over_a_search():
    X, y = data(200)
    frame = pd.DataFrame(X, columns=names_of(X))
    search = MiserSearchCV(MiserClassifier(max_iter=6), tradeoffs=[0.0], cv=2).fit(frame, y > 0)
    hasty = EarlyExitClassifier(search, threshold=0.8, every=2).fit(frame, y > 0)
    direct = EarlyExitClassifier(search.best_estimator_, threshold=0.8, every=2)
    direct.fit(frame, y > 0)
    np.testing.assert_array_equal(hasty.predict(frame), direct.predict(frame))
    sources = Sources(raw="row")
    sources.columns(*names_of(X), name="all")(lambda row: tuple(row.values()))
    served = OnDemandPredictor(search, sources)
    rows = frame.head(3).to_dict("records")
    assert served.predict(rows).tolist() == search.predict(frame.head(3)).tolist()
    with pytest.raises(TypeError, match="needs an estimator of type MiserClassifier"):
        EarlyExitClassifier(clone(search)).fit(frame, y > 0)


def test_models_of_a_path_look_at_new_features_seldom_where_rounds_take_long(monkeypatch):
    seen, train = [], Trainer.train

    def watched(self, params, *args, **options):
        seen.append((params.tradeoff > 0, params.shopping_interval))
        return train(self, params, *args, **options)

    monkeypatch.setattr(Trainer, "train", watched)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 4))
    y = np.digitize(X[:, 0] + 0.5 * X[:, 1], [-0.5, 0.5])
    model = MiserClassifier(costs=[1.0, 2.0, 3.0, 4.0], max_iter=4, n_jobs=1)
    data = {"X_val": X[200:], "y_val": y[200:], "tradeoffs": 3, "search": "path"}
    cells = 200 * 4 * 3  # rows, features, and trees of a round
    for large, interval, expected in [
        (cells, 1, {(False, 1), (True, 8)}),
        (cells + 1, 1, {(False, 1), (True, 1)}),
        (cells, 3, {(False, 3), (True, 3)}),  # somebody has said how often
    ]:
        monkeypatch.setattr(path, "LARGE", large)
        seen.clear()
        tradeoff_curve(model.set_params(shopping_interval=interval), X[:200], y[:200], **data)
        assert set(seen) == expected


def test_models_with_the_same_tradeoff_are_told_apart():
    """With so few rows the search finds no set: models for all and by row are all there is."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((90, 4))
    y = (X[:, 0] + X[:, 1] + rng.standard_normal(90) > 1.5).astype(int)
    model = MiserClassifier(charge="row", max_iter=10)
    curve = tradeoff_curve(model, X[:45], y[:45], X_val=X[45:], y_val=y[45:])
    assert len(curve.models) == len(curve.points)
    best = curve.best(budget=1)
    assert best.prediction_costs(X[45:]).mean() == curve.best_row(1)["cost"] <= 1


def test_folds_count_though_they_change_nothing_in_the_median():
    rng = np.random.default_rng(2)
    X = rng.standard_normal((300, 6))
    y = (X[:, 0] + X[:, 1] + 0.5 * rng.standard_normal(300) > 0).astype(int)
    model = MiserClassifier(costs=[1.0] * 6)
    curve = tradeoff_curve(model, X[:200], y[:200], X_val=X[200:], y_val=y[200:], scoring="roc_auc")
    assert "choice_score" in curve.points


@pytest.mark.parametrize(("own", "of_search"), [(1.0, None), (1.0, 2.0), (2.0, 1.0)])
def test_a_search_keeps_to_the_budget_of_its_estimator(own, of_search):
    rng = np.random.default_rng(2)
    X = rng.standard_normal((200, 4))
    y = X[:, 0] + X[:, 1] > 0
    model = MiserClassifier(costs=[1.0] * 4, budget=own, max_iter=10)
    search = MiserSearchCV(model, budget=of_search, tradeoffs=2, cv=2).fit(X, y)
    assert search.best_estimator_.cost_ == 1.0
