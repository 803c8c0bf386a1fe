"""Models that charge every row for what its own paths ask (``charge="row"``)."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone

from greedymiser import (
    BudgetWarning,
    CostModel,
    MiserClassifier,
    MiserRanker,
    MiserRegressor,
    load,
    save,
    to_lightgbm,
    tradeoff_curve,
)

COSTS = CostModel(
    [1.0, 4.0, 3.0, 0.0, 2.5],
    groups={"lab": [1, 2]},
    group_costs={"lab": 2.0},
)


def table(n=600, seed=0):
    """Feature 0 tells for whom features 1 and 2 matter."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 5))
    X[rng.random(X.shape) < 0.05] = np.nan
    known = np.nan_to_num(X)
    y = np.where(known[:, 0] > 1.0, 3 * known[:, 1] + 2 * known[:, 2], 0.5 * known[:, 0])
    return X, y + 0.3 * known[:, 3] + 0.1 * rng.standard_normal(n)


X, Y = table()


def regressor(**more):
    given = {"costs": COSTS, "charge": "row", "max_iter": 20, "early_stopping": False}
    return MiserRegressor(**given | {"tradeoff": 0.01} | more)


def same_trees(one, other):
    return one.ensemble_.nodes.tobytes() == other.ensemble_.nodes.tobytes()


# -- prices ---------------------------------------------------------------------------------------


def test_only_rows_that_need_it_pay():
    """A cheap test for all, a dear one for those in whom it is high."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1000, 2))
    high = X[:, 0] > 1
    y = np.where(high, 5 + 5 * X[:, 1], 0.0)
    model = MiserRegressor(costs=[1.0, 5.0], charge="row", tradeoff=0.02, max_iter=20).fit(X, y)
    paid = model.prediction_costs(X)
    assert set(paid[~high & (X[:, 0] < 0.9)]) == {1.0}
    assert set(paid[high & (X[:, 0] > 1.1)]) == {6.0}
    assert model.cost_ == pytest.approx(paid.mean(), rel=1e-12)
    assert model.cost_max_ == 6.0
    assert model.score(X, y) > 0.9


def test_stumps_charge_everybody_as_the_model_does():
    """Whatever a root asks, all rows are asked."""
    for tradeoff in (0.0, 0.01, 0.1):
        rows = regressor(max_depth=1, tradeoff=tradeoff).fit(X, Y)
        model = regressor(max_depth=1, tradeoff=tradeoff, charge="model").fit(X, Y)
        assert same_trees(rows, model)
        assert rows.cost_ == model.cost_
        # What is free is not written down where rows pay.
        assert list(rows.receipt()) == [line for line in model.receipt() if line.price > 0]


def test_the_cost_is_the_mean_of_what_rows_pay():
    model = regressor(max_iter=30).fit(X, Y)
    for n in (0, 1, 7, 30):
        shorter = model.truncate(n)
        assert shorter.cost_ == pytest.approx(shorter.prediction_costs(X).mean(), rel=1e-12)
    assert model.receipt().total == model.cost_
    assert sum(line.price for line in model.receipt()) == pytest.approx(model.cost_)


def test_trees_have_their_price_too():
    costs = CostModel([1.0] * 5, tree_cost=0.25)
    model = regressor(costs=costs, max_iter=6).fit(X, Y)
    assert model.cost_ == pytest.approx(model.prediction_costs(X).mean(), rel=1e-12)
    assert model.prediction_costs(X).min() >= 6 * 0.25


def test_repeated_rows_and_weights_are_the_same():
    once = regressor(min_samples_leaf=20).fit(X, Y)
    often = regressor(min_samples_leaf=80).fit(np.tile(X, (4, 1)), np.tile(Y, 4))
    assert once.ensemble_.nodes["feature"].tolist() == often.ensemble_.nodes["feature"].tolist()
    assert once.cost_ == often.cost_
    # Weights count where costs are shared out as well.
    weight = np.where(X[:, 0] > 1, 3.0, 1.0)
    model = regressor().fit(X, Y, weight)
    expected = np.average(model.prediction_costs(X), weights=weight)
    assert model.cost_ == pytest.approx(expected, rel=1e-8)


def test_weights_of_classes_are_not_about_costs():
    y = (Y > 1.5).astype(int)
    model = MiserClassifier(
        costs=COSTS, charge="row", max_iter=10, tradeoff=0.002, class_weight="balanced"
    ).fit(X, y)
    assert model.cost_ == pytest.approx(model.prediction_costs(X).mean(), rel=1e-12)


def test_where_all_is_free_it_is_the_same_model():
    rows = regressor(costs=np.zeros(5)).fit(X, Y)
    assert same_trees(rows, regressor(costs=np.zeros(5), charge="model").fit(X, Y))
    assert rows.cost_ == 0.0
    assert rows.prediction_costs(X).tolist() == [0.0] * len(X)


def test_resources_without_price_are_never_charged():
    costs = CostModel.from_resources(
        {"free": 0.0, "dear": 5.0}, [["free"], ["free", "dear"], ["dear"], [], ["free"]]
    )
    model = regressor(costs=costs, tradeoff=0.005).fit(X, Y)
    assert set(np.unique(model.prediction_costs(X))) <= {0.0, 5.0}
    assert model.cost_ == pytest.approx(model.prediction_costs(X).mean(), rel=1e-12)


@pytest.mark.parametrize("n_jobs", [2, 5])
def test_threads_do_not_matter(n_jobs):
    many, target = table(40_000, seed=3)
    weight = np.random.default_rng(0).uniform(0.5, 2.0, len(many))
    for given in (None, weight):
        one = regressor(n_jobs=1, max_iter=4, budget=4.0).fit(many, target, given)
        other = regressor(n_jobs=n_jobs, max_iter=4, budget=4.0).fit(many, target, given)
        assert same_trees(one, other)
        assert one.cost_ == other.cost_


# -- budgets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [0.5, 1.0, 2.0, 3.3, 7.0])
@pytest.mark.parametrize("more", [{}, {"subsample": 0.5, "random_state": 1}, {"tradeoff": 0.0}])
@pytest.mark.filterwarnings("ignore::greedymiser.BudgetWarning")
def test_the_mean_keeps_to_the_budget(budget, more):
    model = regressor(budget=budget, **more).fit(X, Y)
    assert model.cost_ <= budget
    assert model.prediction_costs(X).mean() <= budget * (1 + 1e-12)


def test_a_mean_may_be_less_than_any_price():
    costs = np.array([0.0, 5.0, 5.0, 5.0, 5.0])
    model = regressor(costs=costs, budget=1.5, tradeoff=0.0).fit(X, Y)
    assert 0 < model.cost_ <= 1.5
    assert model.prediction_costs(X).max() >= 5.0


@pytest.mark.parametrize("row_budget", [1.0, 3.5, 7.0, 9.5])
@pytest.mark.parametrize("more", [{}, {"subsample": 0.5, "random_state": 1}, {"tradeoff": 0.0}])
def test_no_row_is_driven_beyond_its_budget(row_budget, more):
    model = regressor(row_budget=row_budget, **more).fit(X, Y)
    assert model.prediction_costs(X).max() <= row_budget


def test_a_budget_of_rows_that_is_not_reached_changes_nothing():
    assert same_trees(regressor(row_budget=12.5).fit(X, Y), regressor().fit(X, Y))


def test_trees_count_against_the_budget_of_rows():
    costs = CostModel([1.0] * 5, tree_cost=0.5)
    model = regressor(costs=costs, row_budget=4.0, tradeoff=0.0).fit(X, Y)
    assert model.n_iter_ > 0
    assert model.prediction_costs(X).max() <= 4.0
    assert model.stopped_ == "budget"


def test_a_budget_of_rows_below_the_cheapest_feature_is_named():
    given = {"costs": np.full(5, 2.0), "row_budget": 1.5}
    with pytest.warns(BudgetWarning, match=r"row_budget=1\.5 buys no useful feature.* costs 2"):
        model = regressor(**given).fit(X, Y)
    assert model.n_iter_ == 0
    assert model.cost_ == 0.0
    assert model.stopped_ == "budget"


@pytest.mark.parametrize("limit", ["budget", "row_budget"])
def test_a_budget_is_not_to_blame_where_nothing_would_have_paid(limit):
    """Also without a trade-off, where nothing is known of gains before they are counted."""
    for tradeoff in (0.0, 0.01):
        model = regressor(tradeoff=tradeoff, costs=[1.0] * 5, **{limit: 0.5})
        assert model.fit(np.ones_like(X), Y).stopped_ == "nothing pays"
        with pytest.warns(BudgetWarning):
            assert model.fit(X, Y).stopped_ == "budget"


# -- everything else ------------------------------------------------------------------------------


def test_continued_fits_know_what_rows_own():
    whole = regressor(max_iter=12).fit(X, Y)
    model = regressor(max_iter=5, warm_start=True).fit(X, Y)
    model.set_params(max_iter=12).fit(X, Y)
    assert model.cost_ == whole.cost_
    assert model.ensemble_.nodes["feature"].tolist() == whole.ensemble_.nodes["feature"].tolist()
    assert [line.price for line in model.receipt()] == [line.price for line in whole.receipt()]


def test_continued_fits_stay_within_a_smaller_row_budget():
    model = regressor(max_iter=5, warm_start=True, row_budget=6.0).fit(X, Y)
    dearest = model.prediction_costs(X).max()
    assert 1.0 < dearest <= 6.0
    with pytest.raises(ValueError, match=rf"row_budget=1 is less than the {dearest:g} that the"):
        model.set_params(max_iter=8, row_budget=1.0).fit(X, Y)
    # What they cost now is no reason to refuse.
    assert model.set_params(max_iter=8, row_budget=dearest).fit(X, Y).n_iter_ >= 5
    assert model.prediction_costs(X).max() <= dearest


def test_who_pays_cannot_change_in_between():
    model = regressor(max_iter=2, warm_start=True).fit(X, Y)
    with pytest.raises(ValueError, match="charge has changed since the model was begun"):
        model.set_params(charge="model", max_iter=4).fit(X, Y)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"charge": "patient"}, "charge"),
        ({"charge": None}, "charge"),
        ({"row_budget": -1.0}, "row_budget"),
        ({"row_budget": np.nan}, "row_budget"),
        ({"row_budget": "10"}, "row_budget"),
        ({"charge": "model", "row_budget": 3.0}, "row_budget=3 needs charge='row'"),
    ],
)
def test_bad_parameters_are_named(given, message):
    with pytest.raises(ValueError, match=message):
        regressor(**given).fit(X, Y)


def test_several_classes_share_what_rows_own():
    y = np.digitize(Y, [-0.5, 0.5, 2.0])
    model = MiserClassifier(costs=COSTS, charge="row", max_iter=8, tradeoff=0.001).fit(X, y)
    assert len(model.classes_) == 4
    assert model.cost_ == pytest.approx(model.prediction_costs(X).mean(), rel=1e-12)


def test_rankers_pay_by_document():
    qid = np.arange(len(X)) // 10
    y = np.clip(np.digitize(Y, [0.0, 1.0, 2.0]), 0, 3)
    model = MiserRanker(costs=COSTS, charge="row", max_iter=8, tradeoff=0.001, subsample=0.7)
    model.fit(X, y, qid=qid)
    assert model.cost_ == pytest.approx(model.prediction_costs(X).mean(), rel=1e-12)


def test_constraints_hold_where_rows_pay():
    model = regressor(monotonic_cst=[0, 1, 0, 0, 0], interaction_cst=[[0, 1, 2], [3, 4]])
    model.fit(X, Y)
    grid = np.repeat(np.nan_to_num(X[:40]), 9, axis=0)
    grid[:, 1] = np.tile(np.linspace(-3, 3, 9), 40)
    assert (np.diff(model.predict(grid).reshape(40, 9), axis=1) >= -1e-12).all()


def test_files_and_copies_charge_the_same(tmp_path):
    model = regressor().fit(X, Y)
    save(model, tmp_path / "model.miser")
    for copy in (load(tmp_path / "model.miser"), pickle.loads(pickle.dumps(model))):
        assert copy.cost_ == model.cost_
        assert copy.cost_max_ == model.cost_max_
        assert copy.prediction_costs(X).tolist() == model.prediction_costs(X).tolist()
    assert clone(model).charge == "row"


def test_exported_models_predict_the_same():
    lightgbm = pytest.importorskip("lightgbm")
    model = regressor().fit(X, Y)
    exported = lightgbm.Booster(model_str=to_lightgbm(model))
    np.testing.assert_allclose(exported.predict(X), model.predict(X), rtol=1e-12, atol=1e-12)


# -- curves ---------------------------------------------------------------------------------------


X_VAL, Y_VAL = table(300, seed=1)
X_TEST, Y_TEST = table(200, seed=2)


def curve(**more):
    valid = {"X_val": X_VAL, "y_val": Y_VAL, "X_test": X_TEST, "y_test": Y_TEST}
    return tradeoff_curve(regressor(max_iter=15), X, Y, **valid, tradeoffs=3, effort=0.02, **more)


@pytest.fixture(scope="module")
def traced():
    return curve()


def test_curves_show_the_mean_cost_of_validation_rows(traced):
    for position, model in enumerate(traced.models):
        for _, row in traced.trace(position).iloc[::5].iterrows():
            shorter = model.truncate(int(row["n_iter"]))
            assert row["cost"] == pytest.approx(shorter.prediction_costs(X_VAL).mean())
            assert row["test_cost"] == pytest.approx(shorter.prediction_costs(X_TEST).mean())
            assert row["test_score"] == pytest.approx(
                -0.5 * np.mean((shorter.predict(X_TEST) - Y_TEST) ** 2)
            )


def test_a_curve_chooses_within_a_mean_cost(traced):
    for budget in (0.0, 1.0, 3.0, 6.0, 12.0):
        model = traced.best(budget=budget, train=False)
        assert model.prediction_costs(X_VAL).mean() <= budget * (1 + 1e-12)
    assert set(traced.points["found_by"]) <= {"path", "search", "gates"}


def test_a_curve_has_what_is_free(traced):
    free = traced.best(budget=0.0, train=False)
    assert free.features_used_ == [3]
    assert free.prediction_costs(X_VAL).max() == 0.0


@pytest.mark.slow
def test_a_curve_goes_on_from_a_checkpoint(traced, tmp_path):
    first = curve(checkpoint=tmp_path)
    again = curve(checkpoint=tmp_path)
    for other in (first, again):
        assert other.traces.equals(traced.traces)
