"""The least total: whom to ask for what where errors have a price, too."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import (
    KFold,
    RepeatedStratifiedKFold,
    ShuffleSplit,
    StratifiedKFold,
    TimeSeriesSplit,
)

from greedymiser import (
    CostModel,
    GatedClassifier,
    MiserClassifier,
    MiserSearchCV,
    load,
    save,
    total_cost,
    tradeoff_curve,
)
from greedymiser._core.threads import Threads
from greedymiser.curve.path import tradeoff_in_money
from greedymiser.curve.total_cost import SetPrices, _tree_is_better, least_total, members
from greedymiser.training.preparation import NO_INPUTS, Inputs

ERRORS = [[0.0, 20.0], [20.0, 0.0]]


@pytest.fixture(scope="module")
def doubtful():
    """The first column (1) tells who is in doubt; for those the second (5) tells the class.

    The third (1) is noise. All others are of class 0.
    """
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (300, 3)).astype(float)
    y = np.where(X[:, 0] == 1, X[:, 1], 0.0).astype(int)
    return X, y


def searched(X, y, errors=ERRORS, costs=(1.0, 5.0, 1.0), **settings):
    model = MiserClassifier(costs=costs, charge="row", error_costs=errors, n_jobs=1)
    settings = {"cv": 3, "random_state": 0} | settings
    return MiserSearchCV(model, scoring="total_cost", **settings).fit(X, y)


def test_only_rows_in_doubt_are_asked_for_more(doubtful):
    X, y = doubtful
    search = searched(X, y)
    assert isinstance(search.best_estimator_, GatedClassifier)
    assert search.best_params_ == {"resources": [["0"], ["1"]]}
    assert (search.prediction_costs(X) == np.where(X[:, 0] == 1, 6.0, 1.0)).all()
    assert (search.predict(X) == y).all()
    # Out of fold: what is paid, and nothing for errors.
    assert -search.best_score_ == pytest.approx(np.where(X[:, 0] == 1, 6.0, 1.0).mean())
    assert search.cost_ == pytest.approx(search.prediction_costs(X).mean())


def test_the_answer_is_a_constant_where_nothing_pays(doubtful):
    X, y = doubtful
    search = searched(X, y, costs=(9.0, 19.0, 9.0))
    assert search.best_params_ == {"resources": [[]]}
    assert search.cost_ == 0
    assert set(search.predict(X)) == {0}
    cost = total_cost(search, X, y)
    assert (cost.bill, cost.errors) == (0, pytest.approx(20 * y.mean()))


def test_a_set_is_bought_for_all_where_all_need_it(doubtful):
    X, _ = doubtful
    y = (X[:, 0] == X[:, 1]).astype(int)  # neither says anything alone
    search = searched(X, y, costs=(1.0, 2.0, 1.0))
    assert search.best_params_ == {"resources": [["0", "1"]]}
    assert (search.prediction_costs(X) == 3).all()
    assert (search.predict(X) == y).all()


def test_a_chain_is_judged_by_rows_that_it_was_not_learned_from():
    """Nothing helps, and whoever answers 1 for all pays 8.67; what rows chose looks like 6.4."""
    rng = np.random.default_rng(2)
    X = rng.integers(0, 2, (120, 10)).astype(float)
    search = searched(X, rng.integers(0, 2, 120), costs=[0.1] * 10)
    assert isinstance(search.best_estimator_, GatedClassifier)
    assert 8 < -search.best_score_ < 10


def test_what_is_free_is_always_there(doubtful):
    X, y = doubtful
    search = searched(X, y, costs=(0.0, 5.0, 1.0))
    assert (search.prediction_costs(X) == np.where(X[:, 0] == 1, 5.0, 0.0)).all()
    assert (search.predict(X) == y).all()


def test_groups_pay_their_entry_once(doubtful):
    X, y = doubtful
    costs = CostModel.from_resources(
        {"draw": 2.0, "a": 0.5, "b": 1.0, "c": 1.0}, [["draw", "a"], ["draw", "b"], ["c"]]
    )
    search = searched(X, y, costs=costs)
    assert (search.prediction_costs(X) == np.where(X[:, 0] == 1, 3.5, 2.5)).all()


def test_trees_are_paid_for(doubtful):
    X, y = doubtful
    for price in (0.02, 0.2):
        costs = CostModel([0.0, 5.0, 1.0], tree_cost=price)
        search = searched(X, y, costs=costs)
        assert search.cost_ == pytest.approx(search.prediction_costs(X).mean(), rel=0.05)
        assert -search.best_score_ >= search.cost_
        table = search.cv_results_.set_index("resources")
        assert table.loc["['1']", "cost"] == pytest.approx(
            5.0 + price * table.loc["['1']", "n_iter"]
        )


def test_a_referral_is_worth_its_price(doubtful):
    X, y = doubtful
    errors = {0: {1: 20.0, "refer": 3.0}, 1: {0: 20.0, "refer": 3.0}}
    search = searched(X, y, errors=errors)
    # To refer those in doubt is cheaper than to ask them.
    assert search.predict(X).tolist() == ["refer" if doubt else 0 for doubt in X[:, 0]]
    assert (search.prediction_costs(X) == 1).all()


def test_frames_words_weights_and_splitters(doubtful):
    X, y = doubtful
    frame = pd.DataFrame(X, columns=["doubt", "test", "noise"])
    frame["doubt"] = pd.Categorical(np.where(X[:, 0] == 1, "yes", "no"))
    words = np.where(y == 1, "ill", "well")
    model = MiserClassifier(
        costs={"doubt": 1.0, "test": 5.0, "noise": 1.0},
        charge="row",
        error_costs={"ill": {"well": 20}, "well": {"ill": 20}},
        n_jobs=1,
    )
    search = MiserSearchCV(model, scoring="total_cost", cv=KFold(3))
    search.fit(frame, words, sample_weight=np.ones(len(y)))
    assert (search.predict(frame) == words).all()
    assert (search.prediction_costs(frame) == np.where(X[:, 0] == 1, 6.0, 1.0)).all()


@pytest.mark.parametrize(
    "cv",
    [
        ShuffleSplit(3, test_size=0.3, random_state=0),
        TimeSeriesSplit(3),
    ],
)
def test_every_row_is_checked_once(doubtful, cv):
    with pytest.raises(ValueError, match="needs a cv with folds in which every row"):
        searched(*doubtful, cv=cv)


def test_folds_may_be_repeated(doubtful):
    X, y = doubtful
    search = searched(X, y, cv=RepeatedStratifiedKFold(n_splits=3, n_repeats=2, random_state=0))
    assert search.n_splits_ == 6
    assert search.best_params_ == {"resources": [["0"], ["1"]]}
    # The mean over repetitions of what is said of rows that were not learned from.
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 2, 300)
    splitter = RepeatedStratifiedKFold(n_splits=3, n_repeats=2, random_state=0)
    table = searched(X, noise, costs=(0.0, 0.0, 0.0), cv=splitter).cv_results_
    assert table["errors"].iloc[0] == pytest.approx(np.mean([
        searched(X, noise, costs=(0.0, 0.0, 0.0), cv=list(splitter.split(X, noise))[part])
        .cv_results_["errors"].iloc[0]
        for part in (slice(3), slice(3, 6))
    ]), rel=0.1)  # fmt: skip


def test_rows_without_weight_are_as_good_as_not_there(doubtful):
    X, y = doubtful
    weight = (np.arange(len(y)) % 3 > 0).astype(float)
    model = MiserClassifier(costs=[1.0, 5.0, 1.0], charge="row", error_costs=ERRORS, n_jobs=1)
    search = MiserSearchCV(model, scoring="total_cost", cv=3, random_state=0)
    kept = weight > 0
    some = clone(search).fit(X[kept], y[kept])
    assert (search.fit(X, y, sample_weight=weight).predict_proba(X) == some.predict_proba(X)).all()


def test_a_class_may_be_missing_in_a_fold(doubtful):
    X, y = doubtful[0][:60], doubtful[1][:60].copy()
    y[0] = 2
    folds = KFold(3)  # warns of nothing
    errors = [[0.0, 20.0, 20.0], [20.0, 0.0, 20.0], [9.0, 9.0, 0.0]]
    search = searched(X, y, errors=errors, cv=folds)
    assert np.isfinite(search.predict_proba(X)).all()
    assert search.best_params_ == {"resources": [["0"], ["1"]]}


def test_the_table_heeds_weights(doubtful):
    X, y = doubtful
    model = MiserClassifier(costs=[30.0] * 3, charge="row", error_costs=ERRORS, n_jobs=1)
    search = MiserSearchCV(model, scoring="total_cost", cv=3, random_state=0)
    table = search.fit(X, y, sample_weight=np.where(y == 1, 0.5, 1.0)).cv_results_
    assert table["score"].tolist() == pytest.approx([search.best_score_])


def test_several_threads_find_the_same(doubtful):
    X, y = doubtful
    alone = searched(X, y)
    model = MiserClassifier(costs=[1.0, 5.0, 1.0], charge="row", error_costs=ERRORS, n_jobs=2)
    team = MiserSearchCV(model, scoring="total_cost", cv=3, random_state=0).fit(X, y)
    assert team.best_score_ == alone.best_score_
    assert (team.predict_proba(X) == alone.predict_proba(X)).all()


def test_a_found_model_is_saved(doubtful, tmp_path):
    X, y = doubtful
    search = searched(X, y)
    save(search, tmp_path / "model.miser")
    again = load(tmp_path / "model.miser")
    assert (again.predict(X) == search.predict(X)).all()
    assert (again.prediction_costs(X) == search.prediction_costs(X)).all()
    assert (again.expected_costs(X) == search.expected_costs(X)).all()


@pytest.mark.slow
def test_a_budget_is_searched_for_as_ever(doubtful):
    X, y = doubtful
    search = searched(X, y, budget=2.0, tradeoffs=2)
    assert "max_iter" in search.best_params_
    assert search.cost_ <= 2.0


def test_the_table_has_every_set(doubtful):
    X, y = doubtful
    table = searched(X, y).cv_results_
    assert set(table["resources"]) == {
        "[]", "['0']", "['1']", "['2']", "['0', '1']", "['0', '2']", "['1', '2']",
        "['0', '1', '2']",
    }  # fmt: skip
    both = table.set_index("resources").loc["['0', '1']"]
    assert (both["cost"], both["errors"], both["score"]) == (6.0, 0.0, -6.0)


def test_probabilities_are_those_of_plain_weights():
    """Models learn with what is at stake as weights, and are corrected for it afterwards."""
    rng = np.random.default_rng(1)
    X = rng.integers(0, 2, (4000, 1)).astype(float)
    y = (rng.random(4000) < 0.1 + 0.3 * X[:, 0]).astype(int)
    search = searched(X, y, errors=[[0.0, 1.0], [9.0, 0.0]], costs=[0.0])
    for value in (0.0, 1.0):
        share = y[X[:, 0] == value].mean()
        told = search.predict_proba([[value]])[0, 1]
        assert told == pytest.approx(share, abs=0.01)


def test_sets_and_their_prices():
    costs = CostModel.from_resources(
        {"draw": 2.0, "a": 0.5, "b": 1.0, "free": 0.0},
        [["draw", "a"], ["draw", "b"], ["free"], ["b"]],
    )
    sets = SetPrices(costs)
    assert [members(bundle) for bundle in sets.bundles] == [[2], [0, 1], [0, 2]]
    assert sets.price(0b111) == 3.5
    assert sets.features(0b101).tolist() == [False, True, True, True]


def test_states_are_few_where_rows_are_many(monkeypatch, doubtful):
    X, y = doubtful
    monkeypatch.setattr("greedymiser.curve.total_cost.FEWEST", 4)
    monkeypatch.setattr("greedymiser.curve.total_cost.WORK", 1)
    model = MiserClassifier(costs=[1.0, 5.0, 1.0], charge="row", error_costs=ERRORS)
    model.set_params(scoring="total_cost")
    folds = list(StratifiedKFold(3).split(X, y))
    with Threads(1) as threads:
        found = least_total(model, Inputs(X, y), folds, threads)
    assert len(found.states) == 4


def test_what_is_worth_its_price_only_as_a_whole_is_found_from_larger_sets(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (600, 7)).astype(float)
    y = (X[:, 1] + X[:, 3] + X[:, 6]).astype(int) % 2  # no two of them say anything
    monkeypatch.setattr("greedymiser.curve.total_cost.FEWEST", 20)  # of 128 sets
    monkeypatch.setattr("greedymiser.curve.total_cost.MOST", 20)
    search = searched(X, y, costs=[1.0] * 7)
    assert search.best_params_ == {"resources": [["1", "3", "6"]]}
    assert len(search.cv_results_) == 20


def test_money_is_worth_the_loss_of_the_constant_for_what_its_errors_cost():
    y = np.repeat([0, 1], [30, 10])
    model = MiserClassifier(error_costs=[[0.0, 1.0], [8.0, 0.0]])
    with Threads(1) as threads:
        prepared = model.prepare(Inputs(np.zeros((40, 1)), y), NO_INPUTS, threads)
    entropy = -0.75 * np.log(0.75) - 0.25 * np.log(0.25)
    # To say 1 of all costs .75, to say 0 costs 2.
    assert tradeoff_in_money(prepared) == pytest.approx(entropy / 0.75)


def test_a_path_is_centred_where_money_is_worth_most(doubtful):
    X, y = doubtful
    model = MiserClassifier(
        costs=[0.01, 0.05, 0.01], error_costs=ERRORS, scoring="total_cost", max_iter=5, n_jobs=1
    )
    with Threads(1) as threads:
        prepared = clone(model).prepare(Inputs(X[:200], y[:200]), NO_INPUTS, threads)
        middle = tradeoff_in_money(prepared)
    curve = tradeoff_curve(
        model, X[:200], y[:200], X_val=X[200:], y_val=y[200:], tradeoffs=4, search="path"
    )
    assert {middle, middle / 4} <= set(curve.points["tradeoff"])


@pytest.mark.parametrize("row_budget", [None, 2.0])
def test_a_curve_keeps_to_the_budget_of_rows(doubtful, row_budget):
    X, y = doubtful
    model = MiserClassifier(
        costs=[1.0, 5.0, 1.0],
        charge="row",
        error_costs=ERRORS,
        scoring="total_cost",
        row_budget=row_budget,
        max_iter=10,
        n_jobs=1,
    )
    curve = tradeoff_curve(
        model, X[:200], y[:200], X_val=X[200:], y_val=y[200:], tradeoffs=2, effort=0.1
    )
    assert ("total cost" in set(curve.points["found_by"])) == (row_budget is None)


@pytest.mark.parametrize("weight", [None, 2.0])
def test_with_few_rows_a_tree_must_be_better_by_a_standard_error(weight):
    def is_better(n, saved):
        chain = np.full(n, 10.0)
        weights = None if weight is None else np.full(n, weight)
        return _tree_is_better(chain, chain - saved, weights, worst=50.0)

    def noisy(n):  # 1 in the mean, give or take 1.6 (250 rows) or 1.3 (400 rows)
        return 1.0 + 25.0 * (-1.0) ** np.arange(n)

    assert not is_better(250, noisy(250))
    assert is_better(400, noisy(400))
    assert is_better(250, np.ones(250))
    assert not is_better(400, np.full(400, 1e-13))
    assert not is_better(400, -np.ones(400))
