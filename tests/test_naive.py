"""The fast model against the slow, plain reading of Algorithm 1."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.tree import DecisionTreeRegressor

import naive
from greedymiser import CostModel, MiserClassifier, MiserRegressor
from greedymiser.losses import BinaryLogLoss, MultinomialLogLoss, Poisson, SquaredError
from random_examples import examples


@st.composite
def problems(draw):
    """Small data with ties, missing values, weights, shared costs, budgets and depths."""
    n = draw(st.integers(2, 40))
    # Beyond 8 features there are several blocks, laid out by price.
    d = draw(st.one_of(st.integers(1, 5), st.integers(9, 18)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    levels = draw(st.integers(2, 8))
    X = rng.integers(0, levels, size=(n, d)).astype(float)
    if draw(st.booleans()):
        X[rng.random((n, d)) < 0.2] = np.nan
    y = rng.integers(0, 6, size=n).astype(float)
    if draw(st.booleans()):
        y += rng.standard_normal(n).round(2)
    weight = rng.integers(1, 5, size=n).astype(float) if draw(st.booleans()) else None
    grouped = draw(st.booleans())
    if grouped:  # an own price, and for some an entry price that is shared
        group_of = rng.integers(-1, 2, size=d)
        groups = {g: np.flatnonzero(group_of == g).tolist() for g in set(group_of.tolist()) - {-1}}
        place = {g: d + i for i, g in enumerate(groups)}
        resource_costs = rng.integers(0, 4, size=d + len(groups)) / 2.0
        needs = [[f] if group_of[f] < 0 else [f, place[group_of[f]]] for f in range(d)]
    else:
        groups = None
        r = draw(st.integers(1, 6))
        resource_costs = rng.integers(0, 4, size=r) / 2.0
        sizes = rng.integers(0, r + 1, size=d)
        needs = [sorted(rng.choice(r, size=size, replace=False)) for size in sizes]
    categorical = [f for f in range(d) if draw(st.integers(0, 3)) == 0]
    charge = draw(st.sampled_from(["model", "row"]))
    row_budget = draw(st.sampled_from([None, None, 0.0, 1.5, 3.0])) if charge == "row" else None
    return dict(
        X=X,
        y=y,
        weight=weight,
        resource_costs=[float(c) for c in resource_costs],
        needs=[[int(r) for r in wanted] for wanted in needs],
        groups=groups,
        n_jobs=draw(st.sampled_from([1, 3])),
        tree_cost=draw(st.sampled_from([0.0, 0.0, 0.25])),
        max_iter=draw(st.integers(1, 4)),
        charge=charge,
        settings=naive.Settings(
            row_budget=row_budget,
            tradeoff=draw(st.sampled_from([0.0, 0.001, 0.05, 0.3, 10.0])),
            budget=draw(st.sampled_from([None, None, 0.0, 1.0, 2.5])),
            max_depth=draw(st.integers(1, 4)),
            max_leaf_nodes=draw(st.sampled_from([None, None, 2, 5])),
            min_samples_leaf=draw(st.integers(1, 4)),
            l2=draw(st.sampled_from([0.0, 0.0, 1.5])),
            categorical=frozenset(categorical),
            **draw(st.one_of(st.just({}), limits(d))),
        ),
    )


@st.composite
def limits(draw, d):
    """What rounds and paths may look at."""
    sets = st.lists(st.sets(st.integers(0, d - 1), min_size=1), min_size=1, max_size=3)
    few = st.sampled_from([None, None, "pairwise", "no_interactions"])
    return dict(
        shopping_interval=draw(st.sampled_from([1, 1, 2, 3])),
        subsample=draw(st.sampled_from([1.0, 1.0, 0.8, 0.4])),
        max_features=draw(st.sampled_from([1.0, 1.0, 0.5, 0.1, 1, 2])),
        interaction_cst=draw(st.one_of(few, sets)),
        seed=draw(st.integers(0, 99)),
    )


def cost_model(problem):
    if problem["groups"] is not None:
        d = problem["X"].shape[1]
        entry = dict(zip(problem["groups"], problem["resource_costs"][d:], strict=True))
        return CostModel(
            problem["resource_costs"][:d],
            groups=problem["groups"],
            group_costs=entry,
            tree_cost=problem["tree_cost"],
        )
    names = [f"r{i}" for i in range(len(problem["resource_costs"]))]
    return CostModel.from_resources(
        dict(zip(names, problem["resource_costs"], strict=True)),
        [[names[r] for r in wanted] for wanted in problem["needs"]],
        tree_cost=problem["tree_cost"],
    )


def edges_of(X, categorical):
    """Half-way between all distinct values; codes of categories are 0, 1, ... of what is there."""
    edges = []
    for f in range(X.shape[1]):
        values = sorted({x for x in X[:, f] if not math.isnan(x)})
        if f in categorical:
            edges.append([k + 0.5 for k in range(len(values) - 1)])
        else:
            edges.append([(a + b) / 2 for a, b in itertools.pairwise(values)])
    return edges


def encoded(X, categorical):
    """Categories as positions among the sorted distinct values."""
    X = X.copy()
    for f in categorical:
        known = np.unique(X[~np.isnan(X[:, f]), f])
        for i in range(len(X)):
            if not math.isnan(X[i, f]):
                X[i, f] = np.flatnonzero(known == X[i, f])[0]
    return X


def fitted(estimator, problem, y):
    s = problem["settings"]
    model = estimator.set_params(
        costs=cost_model(problem),
        tradeoff=s.tradeoff,
        budget=s.budget,
        max_depth=s.max_depth,
        max_leaf_nodes=s.max_leaf_nodes,
        min_samples_leaf=s.min_samples_leaf,
        l2_regularization=s.l2,
        max_iter=problem["max_iter"],
        categorical_features=sorted(s.categorical),
        early_stopping=False,
        n_jobs=problem["n_jobs"],
        shopping_interval=s.shopping_interval,
        subsample=s.subsample,
        max_features=s.max_features,
        interaction_cst=s.interaction_cst,
        random_state=s.seed,
        charge=problem["charge"],
        row_budget=s.row_budget,
    )
    return model.fit(problem["X"], y, sample_weight=problem["weight"])


def slow(problem, y, loss):
    if problem["charge"] == "row":
        n, weight = len(y), problem["weight"]
        weights = [1] * n if weight is None else naive.on_grid(weight, 30)[0]
        shop = naive.RowShop(problem["resource_costs"], problem["needs"], weights)
    else:
        shop = naive.Shop(problem["resource_costs"], problem["needs"])
    s = problem["settings"]
    s = replace(s, seed=np.random.RandomState(s.seed).randint(2**31))  # as estimators draw theirs
    return naive.boost(
        encoded(problem["X"], s.categorical),
        y,
        problem["weight"],
        edges_of(problem["X"], s.categorical),
        loss,
        s,
        shop,
        problem["max_iter"],
        problem["tree_cost"],
    )


def assert_same_tree(node, tree, index=0):
    """The same splits, side by side, down to the leaves."""
    record = tree.nodes[index]
    assert record["count"] == len(node.rows)
    assert record["value"] == pytest.approx(node.value, abs=1e-12, rel=1e-12)
    if node.left is None:
        assert record["feature"] == -1
        return
    assert record["feature"] == node.feature
    assert record["missing_left"] == node.missing_left
    assert record["gain"] == pytest.approx(node.gain, rel=1e-12)
    if node.left_codes is None:
        assert record["bin"] == node.cut
    else:
        words = tree.category_sets[record["category_set"]]
        codes = {c for c in range(256) if int(words[c // 64]) >> (c % 64) & 1}
        assert codes == node.left_codes
    assert_same_tree(node.left, tree, record["left"])
    assert_same_tree(node.right, tree, record["left"] + 1)


def assert_same_model(fast, plain, problem):
    ensemble = fast.ensemble_
    assert ensemble.n_iter == len(plain.rounds)
    K = ensemble.n_outputs
    for t, trees in enumerate(plain.rounds):
        for k, tree in enumerate(trees):
            assert_same_tree(tree.root, ensemble.tree(t * K + k))
    receipt = [(line.iteration, line.output, line.feature, line.price) for line in fast.receipt()]
    assert receipt == plain.bought
    assert fast.cost_ == plain.costs[-1]
    X = problem["X"]
    expected = plain.raw_predict(encoded(X, problem["settings"].categorical))
    np.testing.assert_allclose(fast._raw_predict(X), expected, rtol=1e-6, atol=1e-6)


slowly = examples(150)


@slowly
@given(problems())
@pytest.mark.filterwarnings("ignore::greedymiser.BudgetWarning")
def test_regression_is_algorithm_1(problem):
    fast = fitted(MiserRegressor(), problem, problem["y"])
    assert_same_model(fast, slow(problem, problem["y"], SquaredError()), problem)


@slowly
@given(problems())
@pytest.mark.filterwarnings("ignore::greedymiser.BudgetWarning")
def test_poisson_is_algorithm_1(problem):
    y = np.abs(problem["y"]) + 0.5
    fast = fitted(MiserRegressor(loss="poisson"), problem, y)
    assert_same_model(fast, slow(problem, y, Poisson()), problem)


@slowly
@given(problems(), st.integers(2, 4))
@pytest.mark.filterwarnings("ignore::greedymiser.BudgetWarning")
def test_classification_is_algorithm_1(problem, n_classes):
    y = np.floor(problem["y"]) % n_classes
    y[0], y[1] = 0, 1
    y = np.unique(y, return_inverse=True)[1].astype(float)
    fast = fitted(MiserClassifier(), problem, y)
    K = int(y.max()) + 1
    loss = BinaryLogLoss() if K == 2 else MultinomialLogLoss(K)
    assert_same_model(fast, slow(problem, y, loss), problem)


# -- others who should agree ----------------------------------------------------------------------


def few_values(seed):
    """Columns with few distinct values: binning loses nothing. No ties in the target."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 20, size=(300, 4)).astype(float)
    return X, np.sin(X[:, 0]) + 0.1 * X[:, 1] * (X[:, 2] > 8) + 0.1 * rng.standard_normal(300)


@pytest.mark.parametrize("seed", range(5))
def test_one_tree_on_few_values_is_exact_cart(seed):
    X, y = few_values(seed)
    ours = MiserRegressor(max_iter=1, learning_rate=1.0, max_depth=4, min_samples_leaf=5).fit(X, y)
    cart = DecisionTreeRegressor(max_depth=4, min_samples_leaf=5).fit(X, y)
    np.testing.assert_allclose(ours.predict(X), cart.predict(X), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_without_costs_it_is_stage_wise_regression(seed):
    X, y = few_values(seed)
    ours = MiserRegressor(max_iter=30, max_depth=3, min_samples_leaf=5, early_stopping=False)
    plain = GradientBoostingRegressor(n_estimators=30, max_depth=3, min_samples_leaf=5)
    difference = ours.fit(X, y).predict(X) - plain.fit(X, y).predict(X)
    np.testing.assert_allclose(difference, 0.0, atol=1e-6)
