"""What rows are asked, and what that costs them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import naive
from experiments.cronus import Cronus
from greedymiser import (
    CostModel,
    EarlyExitClassifier,
    EarlyExitRanker,
    MiserClassifier,
    MiserRanker,
    MiserRegressor,
)
from greedymiser._core.threads import Threads
from greedymiser.data.tables import ArrayTable
from greedymiser.model.row_costs import Accounts, Meter, Notes, add_up, mean_cost, note_questions
from greedymiser.model.trees import stages_every
from random_examples import examples
from test_trees import ensemble_of, plain_trees, random_rows, random_tree

patient = examples(40)


def random_costs(rng, n_features, n_resources, tree_cost):
    """Resources that features share, and features that need nothing."""
    prices = rng.choice([0.0, 0.1, 0.2, 0.3, 1.0, 1e16], n_resources)
    needs = [
        [f"r{r}" for r in range(n_resources) if rng.random() < 3.0 / n_resources]
        for _ in range(n_features)
    ]
    named = {f"r{r}": float(price) for r, price in enumerate(prices)}
    return CostModel.from_resources(named, needs, tree_cost=tree_cost)


def walked(ensemble, costs, X, n_threads=1, upto=None):
    meter = Meter.of(costs, ensemble.features)
    owned = meter.nothing(len(X))
    with Threads(n_threads) as threads:
        meter.over(ensemble).rounds(ArrayTable(X), threads, owned, 0, upto)
    return meter, owned


@pytest.mark.parametrize("categorical", [(), (0, 3)], ids=["numeric", "categories"])
@patient
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.sampled_from([0, 1, 9, 70]),
    n_outputs=st.integers(1, 3),
    n_rounds=st.sampled_from([0, 1, 5]),
    depth=st.integers(0, 4),
    n_resources=st.sampled_from([0, 1, 5, 64, 65, 200]),
    tree_cost=st.sampled_from([0.0, 0.1]),
)
def test_rows_pay_for_what_their_paths_ask(
    categorical, seed, n, n_outputs, n_rounds, depth, n_resources, tree_cost
):
    rng = np.random.default_rng(seed)
    trees = [random_tree(rng, 6, depth, categorical) for _ in range(n_rounds * n_outputs)]
    ensemble = ensemble_of(trees, [0.0] * n_outputs, 6)
    costs = random_costs(rng, 6, n_resources, tree_cost)
    X = random_rows(rng, n, 6, categorical)
    meter, owned = walked(ensemble, costs, X)
    bills = meter.bills(owned, ensemble.n_trees)
    marks = meter.marks(owned)
    prices, plain = costs.resource_costs.tolist(), plain_trees(ensemble)
    for i, row in enumerate(X):
        asked, bill = naive.row_bill(plain, row, prices, costs.needs, tree_cost)
        assert {meter.resources[j] for j in np.flatnonzero(marks[i])} == asked
        assert bills[i] == bill


def some_rows(seed=0, n=3000):
    rng = np.random.default_rng(seed)
    trees = [random_tree(rng, 8, 4) for _ in range(24)]
    costs = random_costs(rng, 8, 90, 0.01)
    return ensemble_of(trees, [0.0, 0.0], 8), costs, random_rows(rng, n, 8)


def test_threads_and_order_do_not_matter():
    ensemble, costs, X = some_rows()
    alone = walked(ensemble, costs, X)[1]
    together = walked(ensemble, costs, X, n_threads=3)[1]
    backwards = walked(ensemble, costs, X[::-1].copy())[1]
    one_by_one = np.concatenate([walked(ensemble, costs, row[None])[1] for row in X[:50]])
    np.testing.assert_array_equal(alone, together)
    np.testing.assert_array_equal(alone, backwards[::-1])
    np.testing.assert_array_equal(alone[:50], one_by_one)
    np.testing.assert_array_equal(alone, walked(ensemble, costs, X.astype(np.float32))[1])


def test_bills_round_by_round():
    ensemble, costs, X = some_rows(n=200)
    with Threads(2) as threads:
        staged, by_fives, whole = (
            Accounts(costs, stages_every(ensemble, every)).staged(ArrayTable(X), threads)
            for every in (1, 5, 12)
        )
    for k, bills in enumerate(staged):
        meter, owned = walked(ensemble, costs, X, upto=k + 1)
        np.testing.assert_array_equal(bills, meter.bills(owned, 2 * (k + 1)))
    assert len(staged) == 12
    assert len(by_fives) == 3
    for k, bills in zip((4, 9, 11), by_fives, strict=True):
        np.testing.assert_array_equal(bills, staged[k])
    np.testing.assert_array_equal(whole[0], staged[-1])
    assert (np.diff(staged, axis=0) >= 0).all()


def test_who_asks_for_everything_pays_the_whole_model():
    ensemble, costs, _ = some_rows(n=1)
    meter = Meter.of(costs, ensemble.features)
    bills = meter.bills(meter.owning([ensemble.features]), ensemble.n_trees)
    assert bills.tolist() == [costs.total(ensemble.features, ensemble.n_trees)]


def test_rows_that_do_not_fit_are_refused():
    ensemble, costs, X = some_rows(n=4)
    meter = Meter.of(costs, ensemble.features)
    with pytest.raises(ValueError, match=r"rows of shape \(4, 3\)"):
        meter.over(ensemble).trees(X[:, :3].copy(), meter.nothing(4), 0, 1)
    with pytest.raises(ValueError, match=r"accounts of shape \(3, \d\)"):
        meter.over(ensemble).trees(X, meter.nothing(3), 0, 1)


def test_means_are_exact():
    assert mean_cost([1e16, 1.0, -1e16, 1.0]) == 0.5
    assert mean_cost([1.0, 3.0], [3.0, 1.0]) == 1.5
    assert math.isnan(mean_cost([]))
    assert math.isnan(mean_cost([1.0], [0.0]))


# -- kernels --------------------------------------------------------------------------------------


def some_trees(seed, categorical=(1,), n_resources=70):
    rng = np.random.default_rng(seed)
    trees = [random_tree(rng, 5, int(rng.integers(0, 4)), categorical) for _ in range(6)]
    costs = random_costs(rng, 5, n_resources, 0.0)
    return rng, ensemble_of(trees, [0.0, 0.0], 5), costs, random_rows(rng, 20, 5, categorical)


@patient
@given(seed=st.integers(0, 2**32 - 1))
def test_trees_know_what_those_behind_them_may_ask_for(seed):
    _, ensemble, costs, _ = some_trees(seed)
    meter = Meter.of(costs, ensemble.features)
    ahead = meter.marks(meter.over(ensemble).asking.ahead)
    for t in range(ensemble.n_trees + 1):
        later = {f for k in range(t, ensemble.n_trees) for f in ensemble.tree(k).nodes["feature"]}
        expected = {r for f in later - {-1} for r in costs.needs[f]}
        assert {meter.resources[j] for j in np.flatnonzero(ahead[t])} == expected


@patient
@given(seed=st.integers(0, 2**32 - 1), first=st.integers(0, 3), longest=st.sampled_from([0, 2, 99]))
def test_questions_are_noted_in_their_order(seed, first, longest):
    _, ensemble, costs, X = some_trees(seed)
    meter = Meter.of(costs, ensemble.features)
    place = np.full((len(X), longest), -1, dtype=np.int64)
    counts = [np.zeros(n, dtype=np.int64) for n in (len(X), *[len(meter.resources)] * 2)]
    notes = Notes(place, counts[0], meter.nothing(len(X)), counts[1], counts[2])
    asking, last = meter.over(ensemble).asking, ensemble.n_trees
    note_questions(X, ensemble.serving.steps, asking, first, last, 1000, notes)
    times, order = [0] * len(meter.resources), [0] * len(meter.resources)
    for i, row in enumerate(X):
        asked = naive.questions(plain_trees(ensemble)[first:], row, costs.needs)
        nodes = [1000 + int(ensemble.tree_starts[first + t]) + at for t, at, _ in asked]
        assert notes.number[i] == len(nodes)
        assert [node for node in place[i].tolist() if node >= 0] == nodes[:longest]
        owned = set().union(*(new for _, _, new in asked))
        assert {meter.resources[j] for j in np.flatnonzero(meter.marks(notes.owned)[i])} == owned
        for number, (_, _, new) in enumerate(asked, start=1):
            for j in (meter.resources.index(r) for r in new):
                times[j] += 1
                order[j] += number
    assert (notes.times.tolist(), notes.order.tolist()) == (times, order)


@patient
@given(seed=st.integers(0, 2**32 - 1))
def test_objects_walk_until_they_are_asked_what_is_not_known(seed):
    rng, ensemble, costs, X = some_trees(seed)
    meter = Meter.of(costs, ensemble.features)
    walk, way = meter.over(ensemble), meter.start_positions(len(X), 5)
    known = (rng.random(X.shape) < 0.6).astype(np.uint8)
    raw, trees = np.zeros((2, len(X))), plain_trees(ensemble)
    index = rng.permutation(len(X))[:15]
    for _ in range(6):  # each time, all that somebody has waited for becomes known
        walk.on(index, X, known, way, raw, ensemble.n_trees)
        for i in index:
            wanted, done = unknown_of(trees, X[i], known[i])
            assert way.wanted[i] == (-1 if wanted is None else wanted)
            assert way.tree[i] == done
        known[np.arange(len(X)), way.wanted] |= (way.wanted >= 0).astype(np.uint8)
    assert (way.wanted == -1).all()
    expected = naive.raw_predict([0.0, 0.0], trees, X[index])
    np.testing.assert_array_equal(raw[:, index], expected)
    for i in index:
        asked, _ = naive.row_bill(trees, X[i], costs.resource_costs, costs.needs, 0.0)
        assert {meter.resources[j] for j in np.flatnonzero(meter.marks(way.owned)[i])} == asked
        features = {f for tree in trees for f in naive.features_asked(*tree, X[i])}
        assert set(np.flatnonzero(way.asked[i])) == features
    elsewhere = np.setdiff1d(np.arange(len(X)), index)
    assert not raw[:, elsewhere].any()
    assert not way.owned[elsewhere].any()


def unknown_of(trees, row, known):
    """The first feature on a row's way that is not known, and how many trees it has behind it."""
    for t, tree in enumerate(trees):
        for f in naive.features_asked(*tree, row):
            if not known[f]:
                return f, t
    return None, len(trees)


@patient
@given(
    prices=st.lists(st.floats(0.0, 1e18), max_size=130),
    rest=st.floats(0.0, 1e6),
    seed=st.integers(0, 2**32 - 1),
)
def test_bills_are_rounded_once(prices, rest, seed):
    rng = np.random.default_rng(seed)
    owned = np.zeros((7, max(1, -(-len(prices) // 64))), dtype=np.uint64)
    has = np.repeat(rng.random((4, len(prices))) < 0.5, 2, axis=0)[:7]  # neighbours are equal
    for i, j in np.argwhere(has):
        owned[i, j // 64] |= np.uint64(1 << (j % 64))
    out = np.empty(7)
    parts = np.array([prices, np.multiply(prices, 1e-17)], dtype=np.float64)
    add_up(owned, parts, np.array([rest, -1e-20 * rest]), out)
    paid = [parts[:, mine].ravel() for mine in has]
    assert out.tolist() == [math.fsum([*some, rest, -1e-20 * rest]) for some in paid]


# -- models in stages -----------------------------------------------------------------------------


def shared_costs():
    needs = [["blood", "a"], ["blood", "b"], ["c"], ["c", "d"], []]
    prices = {"blood": 2.1, "a": 0.3, "b": 0.7, "c": 1.1, "d": 5.0}
    return CostModel.from_resources(prices, needs, tree_cost=0.01)


def training_rows(n=1200):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((n, 5))
    X[rng.random(X.shape) < 0.05] = math.nan
    filled = np.nan_to_num(X)
    return X, filled[:, 0] + np.where(filled[:, 0] > 0.5, filled[:, 1], filled[:, 2] * filled[:, 3])


def by_row(model):
    """A fitted model whose rows pay for themselves."""
    model.predictor_ = replace(model.predictor_, charge="row")
    return model


def plain_bill(predictor, row, left):
    """What a row pays that leaves after a stage, by single steps."""
    costs, owned = predictor.costs, set()
    for stage in predictor.stages[: left + 1]:
        k = stage.ensemble.n_outputs
        trees = plain_trees(stage.ensemble)[stage.first * k : stage.last * k]
        owned |= naive.row_bill(trees, row, costs.resource_costs, costs.needs, 0.0)[0]
    trees = naive.cost_of_trees(costs.tree_cost, predictor.stages[left].n_trees)
    return naive.sum_of_prices([*costs.resource_costs[sorted(owned)], trees])


def staged_model(kind):
    X, y = training_rows()
    few = {"costs": shared_costs(), "max_iter": 12, "max_depth": 3}
    three = np.digitize(y, [-0.5, 0.5])
    if kind is EarlyExitClassifier:
        classifier = MiserClassifier(**few).fit(X, three)
        return by_row(kind(classifier, threshold=0.7, every=2).fit(X, three))
    if kind is EarlyExitRanker:
        ranker = MiserRanker(**few).fit(X, three, qid=np.arange(len(X)) // 12)
        return by_row(kind(ranker, threshold=0.3, every=3).fit(X, three))
    regressor = MiserRegressor(**few).fit(X, y)
    return by_row(kind(regressor, n_stages=3, tradeoff=0.02, max_sweeps=2).fit(X, y))


@pytest.mark.parametrize("kind", [EarlyExitClassifier, EarlyExitRanker, Cronus])
def test_rows_of_models_in_stages_pay_for_their_own_paths(kind):
    X, _ = training_rows(300)
    model = staged_model(kind)
    predictor = model.predictor_
    left = predictor.leaving_stages(X)
    bills = model.prediction_costs(X)
    expected = [plain_bill(predictor, row, k) for row, k in zip(X, left, strict=True)]
    assert bills.tolist() == expected
    assert (bills <= predictor.stage_costs[left]).all()
    assert bills.sum() < predictor.stage_costs[left].sum()
    staged = predictor.staged_bills(predictor.table(X))
    np.testing.assert_array_equal(staged[left, np.arange(len(X))], bills)
    assert predictor.prediction_costs(X[:0]).shape == (0,)


def test_sweeps_count_by_row():
    X, y = training_rows(300)
    three = np.digitize(y, [-0.5, 0.5])
    model = staged_model(EarlyExitClassifier)
    for exits in model.sweep(X, thresholds=[0.5, 0.7, 1.0]):
        at = EarlyExitClassifier(model.estimator_, threshold=exits.threshold, every=2)
        expected = by_row(at.fit(X, three)).prediction_costs(X)
        np.testing.assert_array_equal(exits.costs, expected)


def test_charge_is_one_of_two():
    predictor = staged_model(EarlyExitClassifier).predictor_
    with pytest.raises(ValueError, match="charge must be 'model' or 'row', got 'patient'"):
        replace(predictor, charge="patient")
