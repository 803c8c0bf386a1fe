"""Trees as flat arrays, and prediction."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import naive
from greedymiser import MiserClassifier, MiserRegressor
from greedymiser._core.threads import Threads
from greedymiser.data.binning import BinMapper
from greedymiser.data.tables import ArrayTable
from greedymiser.engines.cpu.engine import CpuEngine
from greedymiser.engines.interface import Sample
from greedymiser.losses import SquaredError
from greedymiser.model.trees import (
    CATEGORY_WORDS,
    NODE_DTYPE,
    ROW_BLOCK,
    Ensemble,
    Tree,
    in_set,
)
from random_examples import examples

INF = math.inf
patient = examples(40)


# -- random trees and rows ------------------------------------------------------------------------


def random_tree(rng, n_features, depth, categorical=(), edges=None, pruned=0.25):
    """A tree with nodes of every kind; children lie behind their parents, siblings together."""
    nodes, sets, level = [leaf(rng, 0)], [], [0]
    for level_depth in range(depth):
        parents, level = level, []
        for at in parents:
            if rng.random() < pruned and at > 0:
                continue
            f = int(rng.integers(n_features))
            node = nodes[at]
            node["feature"], node["left"] = f, len(nodes)
            node["missing_left"] = rng.random() < 0.5
            node["gain"] = rng.random()
            if f in categorical:
                node["category_set"] = len(sets)
                sets.append(rng.integers(0, 2**64, CATEGORY_WORDS, dtype=np.uint64))
            elif edges is not None:  # as the grower does it; +inf behind the last bin
                node["bin"] = int(rng.integers(len(edges[f]) + 1))
                node["threshold"] = [*edges[f], INF][int(node["bin"])]
            else:
                node["threshold"] = rng.choice([-INF, -1.0, 0.0, 0.1, 0.5, 2.0, INF])
            level += [len(nodes), len(nodes) + 1]
            nodes += [leaf(rng, level_depth + 1), leaf(rng, level_depth + 1)]
    return Tree(
        np.array(nodes, dtype=NODE_DTYPE).reshape(-1),
        np.array(sets, dtype=np.uint64).reshape(-1, CATEGORY_WORDS),
    )


def leaf(rng, depth):
    node = np.zeros((), dtype=NODE_DTYPE)
    node["value"], node["depth"] = rng.standard_normal(), depth
    node["feature"] = node["left"] = node["category_set"] = node["bin"] = -1
    return node


def random_rows(rng, n, n_features, categorical=(), dtype=np.float64):
    """Rows full of values that equal thresholds, or are odd."""
    pool = np.array([-INF, -1.0, -0.0, 0.0, 0.1, 0.3, 0.5, 2.0, 7.5, INF, math.nan])
    X = rng.choice(pool, (n, n_features))
    for f in categorical:
        X[:, f] = np.where(rng.random(n) < 0.2, math.nan, rng.integers(0, 256, n))
    return X.astype(dtype)


def ensemble_of(trees, baseline, n_features):
    return Ensemble.empty(np.array(baseline), n_features).extended(trees)


def plain_trees(ensemble):
    trees = [ensemble.tree(t) for t in range(ensemble.n_trees)]
    return [(tree.nodes, tree.category_sets) for tree in trees]


def raw_predict(ensemble, X, n_threads=1, **rounds):
    with Threads(n_threads) as threads:
        return ensemble.raw_predict(ArrayTable(X), threads, **rounds)


# -- prediction -----------------------------------------------------------------------------------

# Few and many rows and trees take different ways; so do rows in whole and in broken blocks.
sizes = st.sampled_from([0, 1, 3, 7, 8, 9, ROW_BLOCK - 1, ROW_BLOCK, ROW_BLOCK + 1])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("categorical", [(), (0, 3)], ids=["numeric", "categories"])
@patient
@given(
    seed=st.integers(0, 2**32 - 1),
    n=sizes,
    n_outputs=st.integers(1, 3),
    n_rounds=st.sampled_from([1, 3, 12]),
    depth=st.integers(0, 5),
)
def test_predictions_are_a_plain_walk(dtype, categorical, seed, n, n_outputs, n_rounds, depth):
    rng = np.random.default_rng(seed)
    trees = [random_tree(rng, 5, depth, categorical) for _ in range(n_rounds * n_outputs)]
    ensemble = ensemble_of(trees, rng.standard_normal(n_outputs), 5)
    X = random_rows(rng, n, 5, categorical, dtype)
    expected = naive.raw_predict(ensemble.baseline, plain_trees(ensemble), X)
    assert raw_predict(ensemble, X).tobytes() == expected.tobytes()


@pytest.mark.parametrize("categorical", [(), (0, 3)], ids=["numeric", "categories"])
@pytest.mark.parametrize("depth", [0, 1, 5, 6, 7, 8])
def test_trees_of_any_size_may_be_mixed(depth, categorical):
    """Full trees of up to 256 leaves among small ones: 64 is the number of bits in a word."""
    rng = np.random.default_rng(depth)
    trees = [random_tree(rng, 5, depth, categorical, pruned=0.0)]
    assert len(trees[0].nodes) == 2 ** (depth + 1) - 1
    trees += [random_tree(rng, 5, 3, categorical) for _ in range(5)]
    trees += [random_tree(rng, 5, depth, categorical, pruned=0.02) for _ in range(4)]
    ensemble = ensemble_of(trees, [0.5, -0.5], 5)
    X = random_rows(rng, 70, 5, categorical)
    expected = naive.raw_predict(ensemble.baseline, plain_trees(ensemble), X)
    assert raw_predict(ensemble, X).tobytes() == expected.tobytes()


@pytest.mark.parametrize("side", ["left", "right", "by turns"])
@pytest.mark.parametrize("n_leaves", [2, 63, 64, 65, 100])
def test_trees_may_be_chains(n_leaves, side):
    """One leaf at every depth, down to the last."""
    rng = np.random.default_rng(n_leaves)
    nodes = np.zeros(2 * n_leaves - 1, dtype=NODE_DTYPE)
    for name in ("feature", "left", "category_set", "bin"):
        nodes[name] = -1
    nodes["value"] = rng.standard_normal(len(nodes))
    at = 0
    for depth in range(n_leaves - 1):
        left = 2 * depth + 1
        nodes[at]["feature"], nodes[at]["left"] = depth % 3, left
        nodes[at]["threshold"], nodes[at]["missing_left"] = rng.standard_normal(), depth % 2
        nodes["depth"][left : left + 2] = depth + 1
        goes_on_left = {"left": True, "right": False, "by turns": depth % 2 == 0}[side]
        at = left if goes_on_left else left + 1
    tree = Tree(nodes, np.zeros((0, CATEGORY_WORDS), dtype=np.uint64))
    ensemble = ensemble_of([tree] * 9, [0.0], 3)
    X = np.where(rng.random((70, 3)) < 0.1, math.nan, 2 * rng.standard_normal((70, 3)))
    X[:8] = [[9.0] * 3, [-9.0] * 3, [math.nan] * 3, [9.0, -9.0, 9.0]] * 2
    expected = naive.raw_predict(ensemble.baseline, plain_trees(ensemble), X)
    assert raw_predict(ensemble, X).tobytes() == expected.tobytes()
    assert raw_predict(ensemble, X[:1]).tobytes() == expected[:, :1].tobytes()


def stump(threshold, missing_left):
    nodes = np.zeros(3, dtype=NODE_DTYPE)
    nodes["feature"], nodes["left"], nodes["category_set"] = [0, -1, -1], [1, -1, -1], -1
    nodes["depth"], nodes["value"] = [0, 1, 1], [0.0, -1.0, 1.0]
    nodes["threshold"][0], nodes["missing_left"][0] = threshold, missing_left
    return Tree(nodes, np.zeros((0, CATEGORY_WORDS), dtype=np.uint64))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_stump_by_hand(dtype):
    X = np.array([[-INF], [0.0], [0.5], [0.75], [INF], [math.nan]], dtype=dtype)
    for missing_left in (True, False):
        missing = -1.0 if missing_left else 1.0
        found = raw_predict(ensemble_of([stump(0.5, missing_left)], [0.0], 1), X)[0].tolist()
        assert found == [-1.0, -1.0, -1.0, 1.0, 1.0, missing]
        # Behind the last bin: every value left, also +inf, and missing where it belongs.
        found = raw_predict(ensemble_of([stump(INF, missing_left)], [0.0], 1), X)[0].tolist()
        assert found == [-1.0] * 5 + [missing]


def test_float32_values_are_compared_as_they_are():
    # float32(0.1) is more than 0.1.
    ensemble = ensemble_of([stump(0.1, True)], [0.0], 1)
    assert raw_predict(ensemble, np.array([[0.1]]))[0, 0] == -1.0
    assert raw_predict(ensemble, np.array([[0.1]], dtype=np.float32))[0, 0] == 1.0


def test_integers_and_other_layouts_are_rows_too():
    ensemble = ensemble_of([stump(0.5, True)], [0.0], 1)
    assert raw_predict(ensemble, np.array([[0], [1]]))[0].tolist() == [-1.0, 1.0]
    assert raw_predict(ensemble, np.array([[False], [True]]))[0].tolist() == [-1.0, 1.0]
    assert raw_predict(ensemble, np.array([[0.0, 1.0, 9.0]]).T[::2])[0].tolist() == [-1.0, 1.0]


@pytest.mark.parametrize("categorical", [(), (1,)], ids=["numeric", "categories"])
def test_single_rows_equal_the_batch_bit_for_bit(categorical):
    rng = np.random.default_rng(0)
    trees = [random_tree(rng, 6, 5, categorical) for _ in range(40)]
    ensemble = ensemble_of(trees, [0.1, 0.2], 6)
    X = random_rows(rng, 131, 6, categorical)
    batch = raw_predict(ensemble, X)
    alone = np.hstack([raw_predict(ensemble, X[i : i + 1]) for i in range(len(X))])
    assert batch.tobytes() == alone.tobytes()


def test_threads_do_not_matter():
    rng = np.random.default_rng(1)
    ensemble = ensemble_of([random_tree(rng, 6, 5) for _ in range(10)], [0.0], 6)
    X = random_rows(rng, 9000, 6)  # more than one piece of 4096 rows
    expected = raw_predict(ensemble, X)
    assert raw_predict(ensemble, X, n_threads=3).tobytes() == expected.tobytes()


def test_some_rounds_only():
    rng = np.random.default_rng(2)
    trees = [random_tree(rng, 3, 3) for _ in range(8)]
    ensemble = ensemble_of(trees, [1.0, -1.0], 3)
    X = random_rows(rng, 10, 3)
    middle = ensemble_of(trees[2:6], [1.0, -1.0], 3)
    found = raw_predict(ensemble, X, first=1, last=3)
    assert found.tobytes() == raw_predict(middle, X).tobytes()
    nothing = raw_predict(ensemble, X, first=2, last=2)
    assert nothing.tolist() == [[1.0] * 10, [-1.0] * 10]


def test_category_sets_have_256_bits():
    sets = np.zeros((2, CATEGORY_WORDS), dtype=np.uint64)
    for code in (0, 63, 64, 200, 255):
        sets[1, code // 64] |= np.uint64(1) << np.uint64(code % 64)
    members = [code for code in range(256) if in_set.py_func(sets, 1, np.uint64(code))]
    assert members == [0, 63, 64, 200, 255]
    assert members == [code for code in range(256) if naive.in_set(sets[1], code)]
    assert not any(in_set.py_func(sets, 0, np.uint64(code)) for code in range(256))


@pytest.mark.parametrize("categorical", [(), (0, 2)], ids=["numeric", "categories"])
@patient
@given(st.integers(0, 2**32 - 1), st.integers(1, 70), st.integers(0, 4))
def test_bins_walk_the_way_of_the_values(categorical, seed, n, depth):
    rng = np.random.default_rng(seed)
    X = random_rows(rng, n, 10, categorical)
    X[:, categorical] %= 255
    mapper = BinMapper(max_bins=6, categorical=categorical, order=rng.permutation(10))
    binned = mapper.fit_transform(ArrayTable(X), None, None, Threads(1))
    tree = random_tree(rng, 10, depth, categorical, mapper.cuts.edges)
    start = rng.standard_normal((1, n))
    rows = CpuEngine(Threads(1)).place(Sample(binned, np.zeros(n), None, SquaredError()))
    rows.start(start)
    rows.add_tree(tree, 0)
    by_codes, by_values = [], []
    for i in range(n):
        codes = [naive.code(binned.codes, binned.feature_lane, i, f) for f in range(10)]
        by_codes.append(naive.leaf_of_codes(tree.nodes, tree.category_sets, codes, binned.n_bins))
        by_values.append(naive.leaf_of(tree.nodes, tree.category_sets, X[i]))
    assert by_codes == by_values
    assert rows.raw().tobytes() == (start + tree.nodes["value"][by_codes]).tobytes()


# -- the ensemble ---------------------------------------------------------------------------------


def test_an_empty_ensemble_predicts_its_baseline():
    ensemble = Ensemble.empty(np.array([0.5, 2.0]), n_features=3)
    assert (ensemble.n_outputs, ensemble.n_trees, ensemble.n_iter) == (2, 0, 0)
    assert ensemble.features == []
    assert ensemble.importances().tolist() == [0.0, 0.0, 0.0]
    X = np.zeros((4, 3))
    assert raw_predict(ensemble, X).tolist() == [[0.5] * 4, [2.0] * 4]
    assert list(ensemble.staged_raw_predict(ArrayTable(X), Threads(1))) == []
    assert ensemble.extended([]) is ensemble
    assert ensemble.truncated(0).n_trees == 0


def test_extending_keeps_the_trees_and_their_categories():
    rng = np.random.default_rng(3)
    trees = [random_tree(rng, 4, 4, categorical=(0, 1)) for _ in range(6)]
    before = [tree.nodes.tobytes() for tree in trees]
    at_once = ensemble_of(trees, [0.0, 0.0], 4)
    step_by_step = ensemble_of(trees[:2], [0.0, 0.0], 4).extended(trees[2:4]).extended(trees[4:])
    assert at_once.nodes.tobytes() == step_by_step.nodes.tobytes()
    assert at_once.category_sets.tobytes() == step_by_step.category_sets.tobytes()
    assert at_once.tree_starts.tolist() == step_by_step.tree_starts.tolist()
    assert (at_once.n_trees, at_once.n_iter, at_once.n_outputs) == (6, 3, 2)
    assert [tree.nodes.tobytes() for tree in trees] == before  # the caller's trees are untouched
    X = random_rows(rng, 20, 4, categorical=(0, 1))
    for t, tree in enumerate(trees):
        taken = at_once.tree(t)
        assert len(taken.nodes) == len(tree.nodes)
        for row in X:
            mine = naive.leaf_of(taken.nodes, taken.category_sets, row)
            assert mine == naive.leaf_of(tree.nodes, tree.category_sets, row)


def test_truncating_keeps_whole_rounds():
    rng = np.random.default_rng(4)
    trees = [random_tree(rng, 4, 3, categorical=(2,)) for _ in range(8)]
    ensemble = ensemble_of(trees, [0.0, 1.0], 4)
    X = random_rows(rng, 30, 4, categorical=(2,))
    for n_iter in range(5):
        shorter = ensemble.truncated(n_iter)
        assert (shorter.n_iter, shorter.n_trees) == (n_iter, 2 * n_iter)
        assert len(shorter.category_sets) == sum(len(t.category_sets) for t in trees[: 2 * n_iter])
        expected = raw_predict(ensemble, X, last=n_iter)
        assert raw_predict(shorter, X).tobytes() == expected.tobytes()
    again = ensemble.truncated(2).extended(trees[4:])
    assert raw_predict(again, X).tobytes() == raw_predict(ensemble, X).tobytes()


def test_stages_end_in_the_prediction():
    rng = np.random.default_rng(5)
    ensemble = ensemble_of([random_tree(rng, 4, 3) for _ in range(8)], [0.0, 1.0], 4)
    X = random_rows(rng, 30, 4)
    stages = list(ensemble.staged_raw_predict(ArrayTable(X), Threads(1)))
    assert len(stages) == 4
    for i, stage in enumerate(stages):
        assert stage.tobytes() == raw_predict(ensemble, X, last=i + 1).tobytes()
    assert stages[-1].tobytes() == raw_predict(ensemble, X).tobytes()


def test_features_and_importances_are_those_of_the_splits():
    rng = np.random.default_rng(6)
    trees = [random_tree(rng, 9, 3) for _ in range(4)]
    ensemble = ensemble_of(trees, [0.0], 9)
    used, gains = set(), [0.0] * 9
    for tree in trees:
        assert tree.features == {int(node["feature"]) for node in tree.nodes if node["left"] >= 0}
        used |= tree.features
        for node in tree.nodes:
            if node["left"] >= 0:
                gains[node["feature"]] += node["gain"]
    assert ensemble.features == sorted(used)
    np.testing.assert_allclose(ensemble.importances(), gains, rtol=1e-14)
    one = random_tree(rng, 9, 0)
    assert one.is_leaf
    assert one.features == set()
    assert not trees[0].is_leaf


# -- trees of fitted models -----------------------------------------------------------------------


def check_nodes(tree, n_rows, max_depth, min_samples_leaf):
    """Assert what must hold at every node of a grown tree."""
    nodes = tree.nodes
    reached = [0] * len(nodes)
    reached[0] += 1
    assert nodes[0]["depth"] == 0
    assert nodes[0]["count"] == n_rows
    lefts = [int(node["left"]) for node in nodes if node["left"] >= 0]
    assert lefts == sorted(lefts)  # children are numbered in the order of their parents
    for at, node in enumerate(nodes):
        assert node["count"] >= (min_samples_leaf if at > 0 else 1)
        assert node["depth"] <= max_depth
        assert math.isfinite(node["value"])
        if node["left"] < 0:
            assert node["left"] == node["feature"] == node["category_set"] == node["bin"] == -1
            assert node["gain"] == 0.0
            continue
        left, right = nodes[node["left"]], nodes[node["left"] + 1]
        assert node["left"] > at  # children lie behind their parents
        assert node["left"] % 2 == 1  # and in pairs: 1 and 2, 3 and 4, ...
        reached[node["left"]] += 1
        reached[node["left"] + 1] += 1
        assert left["depth"] == right["depth"] == node["depth"] + 1
        assert left["count"] + right["count"] == node["count"]
        assert left["hessian"] + right["hessian"] == node["hessian"]  # sums of integers: exact
        assert left["hessian"] > 0
        assert right["hessian"] > 0
        assert node["gain"] > 0
        assert node["feature"] >= 0
        # Either a set of categories or a threshold.
        assert (node["category_set"] >= 0) != (node["bin"] >= 0)
        assert node["category_set"] < len(tree.category_sets)
    assert reached == [1] * len(nodes)


def training_data(n=400):
    rng = np.random.default_rng(8)
    X = rng.standard_normal((n, 10)).round(1)
    X[rng.random((n, 10)) < 0.1] = math.nan
    X[:, 9] = rng.integers(0, 12, n)
    signal = np.nan_to_num(X[:, 0]) * 2 + np.nan_to_num(X[:, 1]) ** 2 + np.sin(X[:, 9])
    return X, signal + 0.3 * rng.standard_normal(n), rng.uniform(0.5, 2.0, n)


MODELS = {
    "plain": (MiserRegressor, {}),
    "deep": (MiserRegressor, dict(max_depth=8, min_samples_leaf=1)),
    "few leaves": (MiserRegressor, dict(max_depth=6, max_leaf_nodes=7)),
    "poisson": (MiserRegressor, dict(loss="poisson")),
    "median": (MiserRegressor, dict(loss="absolute_error")),
    "miserly": (MiserRegressor, dict(tradeoff=0.01, budget=4.0)),
    "monotone": (MiserRegressor, dict(monotonic_cst=[1, 0, -1] + [0] * 7, max_depth=5)),
    "two classes": (MiserClassifier, {}),
    "three classes": (MiserClassifier, dict(l2_regularization=1.0)),
}


@pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore::greedymiser.BudgetWarning")
def test_every_node_of_fitted_models(name, weighted):
    kind, options = MODELS[name]
    X, y, weight = training_data()
    if name == "poisson":
        y = np.floor(np.abs(y))
    elif kind is MiserClassifier:
        y = np.digitize(y, [0.5] if name == "two classes" else [0.0, 1.0])
    options = dict(max_iter=8, min_samples_leaf=5, categorical_features=[9], n_jobs=1) | options
    model = kind(**options).fit(X, y, sample_weight=weight if weighted else None)
    ensemble = model.ensemble_
    assert ensemble.n_iter == 8
    for t in range(ensemble.n_trees):
        check_nodes(ensemble.tree(t), len(X), model.max_depth, model.min_samples_leaf)
    if model.max_leaf_nodes is not None:
        starts = ensemble.tree_starts
        assert ((np.diff(starts) + 1) // 2 <= model.max_leaf_nodes).all()
    expected = naive.raw_predict(ensemble.baseline, plain_trees(ensemble), X)
    assert model._raw_predict(X).tobytes() == expected.tobytes()


def test_counts_of_fitted_trees_are_the_rows_that_reach_a_node():
    X, y, _ = training_data()
    options = dict(max_iter=2, min_samples_leaf=5, categorical_features=[9], n_jobs=1)
    ensemble = MiserRegressor(**options).fit(X, y).ensemble_
    for t in range(ensemble.n_trees):
        tree = ensemble.tree(t)
        reached = np.bincount(
            [naive.leaf_of(tree.nodes, tree.category_sets, row) for row in X],
            minlength=len(tree.nodes),
        )
        leaves = tree.nodes["left"] < 0
        assert reached[leaves].tolist() == tree.nodes["count"][leaves].tolist()
        assert not reached[~leaves].any()
