"""The best small tree: against all trees, and as a model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from greedymiser import (
    MiserClassifier,
    MiserSearchCV,
    load,
    save,
    total_cost,
    tradeoff_curve,
)
from greedymiser.cascades.gates import GateInputs
from greedymiser.curve.small_tree import (
    LEAST_ROWS,
    Leaf,
    Questions,
    Split,
    Stops,
    TreeSearch,
    chosen_tree,
    ensemble_of,
    walk,
)


def least_of_all_trees(search, needs, prices, holds, rows, penalty, owned, depth):
    """Try every question first, and every tree behind its answers."""
    weight = search.weight[rows]
    best = (search.stakes[rows] * weight[:, None]).sum(axis=0).min()
    for model, values in enumerate(search.stops.values):
        price = prices[search.stops.needs[model] & ~owned].sum()
        best = min(best, ((values[rows] + price) * weight).sum())
    for question in range(holds.shape[1]) if depth else ():
        yes, no = rows[holds[rows, question]], rows[~holds[rows, question]]
        if min(search.weight[yes].sum(), search.weight[no].sum()) < (
            LEAST_ROWS * search.weight.mean()
        ):
            continue
        price = prices[needs[question] & ~owned].sum() * weight.sum()
        parts = [
            least_of_all_trees(
                search, needs, prices, holds, part, penalty, owned | needs[question], depth - 1
            )
            for part in (yes, no)
        ]
        best = min(best, price + penalty + sum(parts))
    return best


def n_splits(tree):
    return sum(isinstance(node, Split) for _, node in walk(tree))


@settings(deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.integers(2, 3),
    st.booleans(),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_no_tree_is_better(seed, n_questions, n_answers, is_weighed, n_models, depth):
    rng = np.random.default_rng(seed)
    n = 40
    holds = rng.random((n, n_questions)) < rng.random(n_questions)
    needs = rng.random((n_questions, 3)) < 0.5
    prices, stakes = rng.random(3).round(2) / 5, rng.random((n, n_answers)).round(2) * 2
    weight = rng.integers(1, 4, n).astype(float) if is_weighed else np.ones(n)
    values = rng.random((n_models, n)).round(2)
    stops = Stops(rng.random((n_models, 3)) < 0.5, values, values)
    search = TreeSearch(holds, needs, prices, stakes, weight, stops)
    rows, penalties = np.flatnonzero(rng.random(n) < 0.9), np.array([0.7, 0.0])
    owned = rng.random(3) < 0.3
    costs, questions = search.found(rows, penalties, owned, depth)
    for cost, question, penalty in zip(costs, questions, penalties, strict=True):
        args = search, needs, prices, holds
        assert cost == pytest.approx(least_of_all_trees(*args, rows, penalty, owned, depth))
        if question >= 0:
            yes, paid = holds[rows, question], owned | needs[question]
            price = prices[needs[question] & ~owned].sum() * weight[rows].sum()
            sides = [
                least_of_all_trees(*args, rows[side], penalty, paid, depth - 1)
                for side in (yes, ~yes)
            ]
            assert cost == pytest.approx(price + penalty + sum(sides))


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 2))
def test_a_tree_of_depth_two_makes_of_its_rows_what_was_found(seed, n_models):
    rng = np.random.default_rng(seed)
    n = 60
    holds, needs = rng.random((n, 4)) < 0.5, rng.random((4, 3)) < 0.5
    prices, stakes = rng.random(3) / 5, rng.random((n, 2)) * 2
    stops = Stops(rng.random((n_models, 3)) < 0.5, *(rng.random((2, n_models, n))))
    search = TreeSearch(holds, needs, prices, stakes, np.ones(n), stops)
    rows, penalties = np.arange(n), np.array([0.7, 0.0])
    costs, _ = search.found(rows, penalties, np.zeros(3, dtype=bool))
    trees = search.grown(rows, penalties, depth=2)
    for cost, tree, penalty in zip(costs, trees, penalties, strict=True):
        paid, value, model, said = search.applied(tree, rows, rows)
        assert cost == pytest.approx((paid + value).sum() + penalty * n_splits(tree))
        assert ((model >= 0) != (said >= 0)).all()


def inputs_of(columns, categorical=None):
    n = columns.shape[1]
    return GateInputs(columns, tuple(range(n)), n, n, categorical=categorical or {})


def test_questions_are_thresholds_and_categories():
    columns = np.array([[0.0, 2.0], [1.0, 0.0], [3.0, 1.0], [np.nan, 2.0]] * 3)
    questions = Questions.of(inputs_of(columns, {1: 3}), np.ones((12, 2)), np.ones(12))
    asked = [tuple(row) for row in questions.holds[:4].T.astype(int).tolist()]
    # At most 0.5, at most 2: what is missing says no. Then one of each category.
    assert asked == [(1, 0, 0, 0), (1, 1, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (1, 0, 0, 1)]
    assert questions.features() == [0, 0, 1, 1, 1]


def test_of_many_questions_those_stay_that_tell_most(monkeypatch):
    monkeypatch.setattr("greedymiser.curve.small_tree.WORK", 1.0)
    rng = np.random.default_rng(0)
    columns = rng.random((200, 30))
    truth = (columns[:, 17] > 0.5).astype(float)
    questions = Questions.of(inputs_of(columns), np.stack([truth, 1 - truth], axis=1), np.ones(200))
    assert len(questions.column) == 8
    assert 17 in questions.features()


def test_deeper_trees_find_what_three_questions_miss():
    rng = np.random.default_rng(0)
    holds = rng.random((400, 4)) < 0.8
    truth = holds.all(axis=1).astype(float)
    stakes = 10.0 * np.stack([truth, 1 - truth], axis=1)
    search = TreeSearch(holds, np.eye(4, dtype=bool), np.full(4, 0.1), stakes, np.ones(400))
    folds = np.arange(400) % 5
    found = chosen_tree([search], [folds, folds[::-1].copy()], worst_error=10.0)
    asked = [node.question for _, node in walk(found.tree) if isinstance(node, Split)]
    assert sorted(asked) == [0, 1, 2, 3]
    assert found.paid.shape == found.said.shape == (2, 400)
    assert (found.said == truth).all()


def test_a_tree_is_a_model():
    columns = np.array([[0.0, 2.0], [1.0, 0.0], [3.0, 1.0], [np.nan, 2.0]] * 3)
    questions = Questions.of(inputs_of(columns, {1: 3}), np.ones((12, 3)), np.ones(12))
    classes = np.eye(3)[[0, 1, 2, 1] * 3]
    tree = Split(4, yes=Split(0))  # category 2 of the second column, then at most 0.5
    ensemble = ensemble_of(tree, questions, classes, np.ones(12))
    assert (ensemble.n_outputs, ensemble.n_trees) == (3, 3)
    raw = np.repeat(ensemble.baseline[:, None], 12, axis=1)
    ensemble.serving.add(columns, raw, 0, 3)
    shares = np.exp(raw[:, :4]) / np.exp(raw[:, :4]).sum(axis=0)
    expected = np.array([[1, 0, 0], [0, 0.5, 0.5], [0, 0.5, 0.5], [0, 1, 0]])
    np.testing.assert_allclose(shares.T, expected, atol=1e-6)
    # The root: shares 1, 2 and 1 of 4; the node below it: one of each of two.
    entropy = -(0.5 * np.log(0.5) + 0.5 * np.log(0.25))
    below = 0.5 * np.log(2)
    gains = ensemble.tree(0).nodes["gain"][:2]
    assert gains.tolist() == pytest.approx([entropy - 2 * below, below], abs=1e-6)
    assert ensemble_of(Leaf(), questions, classes, np.ones(12)).n_trees == 0


@pytest.mark.parametrize("n_classes", [2, 3])
def test_models_follow_the_questions(n_classes):
    rng = np.random.default_rng(0)
    columns = np.stack([rng.integers(0, 2, 300), rng.integers(0, 3, 300), rng.random(300)], axis=1)
    y = (columns[:, 1] + (columns[:, 2] > 0.5) * columns[:, 0]).astype(int) % n_classes
    frame = pd.DataFrame(columns).astype({1: "category"})
    model = MiserClassifier(max_iter=4, min_samples_leaf=3, n_jobs=1).fit(frame, y)
    other = MiserClassifier(max_iter=2, min_samples_leaf=3, n_jobs=1).fit(frame[[2]], y)
    moved = other.model_.ensemble
    moved.nodes["feature"][moved.nodes["feature"] >= 0] = 2
    models = {7: model.model_.ensemble, 2: replace(moved, n_features=3)}
    questions = Questions.of(inputs_of(columns, {1: 3}), np.ones((300, n_classes)), np.ones(300))
    # The first column; then, for those with 0, whether it is the first category of the second.
    tree = Split(0, yes=Split(1, yes=Leaf(2), no=Leaf()), no=Leaf(7))
    ensemble = ensemble_of(tree, questions, np.eye(n_classes)[y], np.ones(300), models)
    assert ensemble.n_iter == 4
    raw = raw_of(ensemble, columns)
    is_one, is_first = columns[:, 0] == 1, columns[:, 1] == 0
    for rows, which in ((is_one, 7), (~is_one & is_first, 2)):
        np.testing.assert_allclose(raw[:, rows], raw_of(models[which], columns)[:, rows])
    rest = ~is_one & ~is_first
    assert (np.ptp(raw[:, rest], axis=1) < 1e-12).all()


def raw_of(ensemble, columns):
    raw = np.repeat(ensemble.baseline[:, None], len(columns), axis=1)
    ensemble.serving.add(columns, raw, 0, ensemble.n_trees)
    return raw


@pytest.fixture(scope="module")
def forked():
    """The first column (1) tells which of the others (5 each) tells the class."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.integers(0, 2, (300, 3)), columns=["which", "left", "right"])
    y = np.where(X["which"] == 1, X["left"], X["right"])
    return X, np.where(y == 1, "ill", "well")


def searched(X, y, **settings):
    model = MiserClassifier(
        costs={"which": 1.0, "left": 5.0, "right": 5.0},
        charge="row",
        error_costs={"ill": {"well": 40}, "well": {"ill": 30}},
        n_jobs=1,
    )
    settings = {"cv": 3, "random_state": 0} | settings
    return MiserSearchCV(model, scoring="total_cost", **settings).fit(X, y)


def test_what_is_asked_next_depends_on_the_answer(forked, tmp_path):
    X, y = forked
    search = searched(X, y)
    assert isinstance(search.best_estimator_, MiserClassifier)
    assert search.best_params_ == {"resources": [["which"], ["left", "right"]]}
    assert (search.prediction_costs(X) == 6).all()
    assert search.cost_ == -search.best_score_ == 6
    assert total_cost(search, X, y).errors == 0
    assert [line.depth for line in search.receipt()] == [0, 1, 1]
    told = str(search.protocol(X))
    assert "first, of all: which (1)" in told
    assert "then, of the" in told
    save(search, tmp_path / "model.miser")
    again = load(tmp_path / "model.miser")
    assert (again.predict(X) == y).all()
    assert (again.prediction_costs(X) == 6).all()


def test_weights_count(forked):
    X, y = forked
    # Those who are asked for the right one count for nothing: they say what others mostly are.
    weight = np.where(X["which"] == 1, 1.0, 1e-6)
    search = searched(X, y, cv=5).fit(X, y, sample_weight=weight)
    assert "left" in search.features_used_
    assert search.cost_ == pytest.approx(5.0, abs=1.1)


def test_a_curve_takes_a_tree(forked):
    X, y = forked
    model = MiserClassifier(
        costs={"which": 1.0, "left": 5.0, "right": 5.0},
        charge="row",
        error_costs={"ill": {"well": 40}, "well": {"ill": 30}},
        scoring="total_cost",
        max_iter=5,
        n_jobs=1,
    )
    curve = tradeoff_curve(
        model, X[:200], y[:200], X_val=X[200:], y_val=y[200:], tradeoffs=2, effort=0.1
    )
    found = curve.points[curve.points["found_by"] == "total cost"]
    assert found[["cost", "errors", "score"]].iloc[0].tolist() == [6.0, 0.0, -6.0]


def test_what_is_free_is_not_bought(forked):
    X, y = forked
    model = MiserClassifier(
        costs={"which": 0.0, "left": 5.0, "right": 5.0},
        charge="row",
        error_costs={"ill": {"well": 40}, "well": {"ill": 30}},
        n_jobs=1,
    )
    search = MiserSearchCV(model, scoring="total_cost", cv=3, random_state=0).fit(X, y)
    assert search.best_params_ == {"resources": [["left", "right"]]}
    assert search.cost_ == 5
