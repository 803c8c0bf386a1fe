"""Whole trees on every engine, against a tree that is grown row by row."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import naive
from conformance.cases import by_chance, cases, numbers, seeds
from greedymiser._core.threads import Threads
from greedymiser.costs.cost_model import CostModel, Ledger
from greedymiser.data.binning import Thresholds
from greedymiser.engines.cpu.engine import CpuEngine
from greedymiser.engines.sampling import RoundRule
from greedymiser.training.accounts import ModelAccount, RowAccount, marks_of
from greedymiser.training.grower import Grower, GrowerParams

slowly = by_chance(100)


def grower_of(engine, case, ledger, budget=None, **params):
    categorical = np.array(sorted(case.categorical), dtype=np.intp)
    thresholds = Thresholds(np.tile(np.arange(256) + 0.5, case.d), 256 * np.arange(case.d + 1))
    params = GrowerParams(case.rules, **params)
    account = ModelAccount(ledger, budget)
    return Grower(case.placed(engine), account, thresholds, categorical, params)


def grow(engine, case, ledger, **params):
    return grower_of(engine, case, ledger, **params).grow(0, n_trees=1)


@st.composite
def shops(draw, d):
    """Resources with costs, some shared by many features."""
    rng = np.random.default_rng(draw(seeds))
    r = draw(st.integers(1, 5))
    costs = [float(c) for c in rng.integers(0, 5, r)]
    sizes = rng.integers(0, r + 1, d)
    return costs, [sorted(rng.choice(r, size, replace=False).tolist()) for size in sizes]


def cost_model(costs, needs):
    names = [f"r{i}" for i in range(len(costs))]
    return CostModel.from_resources(
        dict(zip(names, costs, strict=True)), [[names[r] for r in wanted] for wanted in needs]
    )


def check_tree(node, tree, index=0):
    record = tree.nodes[index]
    assert record["count"] == len(node.rows)
    assert record["value"] == pytest.approx(node.value, rel=1e-12, abs=1e-300)
    assert record["depth"] == node.depth
    if node.left is None:
        assert record["feature"] == -1
        return
    assert record["feature"] == node.feature
    assert record["missing_left"] == node.missing_left
    if node.left_codes is None:
        assert record["bin"] == node.cut
    else:
        assert numbers(tree.category_sets[record["category_set"]]) == node.left_codes
    check_tree(node.left, tree, record["left"])
    check_tree(node.right, tree, record["left"] + 1)


@slowly
@given(
    case=cases(most_features=10),
    data=st.data(),
    stinginess=st.sampled_from([0.0, 0.01, 0.1, 0.5]),
    budget=st.sampled_from([None, None, 0.0, 3.0, 6.0]),
    max_leaf_nodes=st.sampled_from([None, None, 2, 3, 6]),
)
def test_trees_are_grown_row_by_row(engine, case, data, stinginess, budget, max_leaf_nodes):
    costs, needs = data.draw(shops(case.d))
    n = case.n
    case.rules = replace(case.rules, min_hessian=1e-3)  # that of NaiveTree
    # Prices in the range of the gains, or nothing is ever weighed.
    energy = float((case.gradients**2).mean())
    tradeoff = stinginess * energy / max(1.0, np.mean(costs))
    wishes = naive.Settings(
        tradeoff=tradeoff,
        budget=budget,
        max_depth=4,
        max_leaf_nodes=max_leaf_nodes,
        min_samples_leaf=case.rules.min_samples_leaf,
        l2=case.rules.l2_regularization,
        learning_rate=0.5,
        categorical=frozenset(case.categorical),
    )
    plain = naive.NaiveTree(
        case.codes, case.n_bins, case.gradients, case.hessians, float(n), wishes,
        naive.Shop(costs, needs), 0.0,
    )  # fmt: skip
    ledger = Ledger(cost_model(costs, needs))
    growth = grow(
        engine,
        case,
        ledger,
        tradeoff=tradeoff,
        budget=budget,
        total_weight=float(n),
        learning_rate=0.5,
        max_depth=4,
        max_leaf_nodes=max_leaf_nodes,
    )
    check_tree(plain.root, growth.tree)
    assert [(line.feature, line.price) for line in growth.bought] == plain.bought
    assert budget is None or ledger.spent <= budget
    if max_leaf_nodes is not None:
        assert len(growth.leaves) <= max_leaf_nodes


@slowly
@given(
    case=cases(),
    data=st.data(),
    tradeoff=st.sampled_from([0.0, 0.001, 0.1]),
    rule=st.builds(
        RoundRule,
        seed=seeds,
        shopping_interval=st.sampled_from([1, 2]),
        subsample=st.sampled_from([1.0, 0.3, 0.9]),
        max_features=st.sampled_from([1.0, 0.4, 2]),
    ),
)
def test_every_engine_grows_the_same_trees_bit_for_bit(engine, case, data, tradeoff, rule):
    model = cost_model(*data.draw(shops(case.d)))
    reference = CpuEngine(Threads(1))
    ours, theirs = (
        grower_of(e, case, Ledger(model), tradeoff=tradeoff, max_depth=4)
        for e in (engine, reference)
    )
    for t in range(3):
        mine, other = ours.grow(0, 1, rule.round(t)), theirs.grow(0, 1, rule.round(t))
        assert mine.tree.nodes.tobytes() == other.tree.nodes.tobytes()
        assert mine.tree.category_sets.tobytes() == other.tree.category_sets.tobytes()
        assert mine.bought == other.bought


def row_grower(engine, case, costs, budget=None, row_budget=None, **params):
    rows = case.placed(engine, marks_of(costs))
    categorical = np.array(sorted(case.categorical), dtype=np.intp)
    thresholds = Thresholds(np.tile(np.arange(256) + 0.5, case.d), 256 * np.arange(case.d + 1))
    account = RowAccount(costs, rows, budget, row_budget)
    return Grower(rows, account, thresholds, categorical, GrowerParams(case.rules, **params))


@slowly
@given(
    case=cases(most_features=10),
    data=st.data(),
    stinginess=st.sampled_from([0.0, 0.01, 0.1, 0.5]),
    limits=st.sampled_from([(None, None), (0.0, None), (3.0, None), (None, 4.0), (5.0, 6.0)]),
    max_leaf_nodes=st.sampled_from([None, None, 3, 6]),
    is_weighted=st.booleans(),
)
def test_rows_pay_for_what_they_are_asked(
    engine, case, data, stinginess, limits, max_leaf_nodes, is_weighted
):
    """Three trees: what a row owns, it owns in all of them."""
    costs, needs = data.draw(shops(case.d))
    n, weights = case.n, [1] * case.n
    if is_weighted:
        case.shares = np.random.default_rng(data.draw(seeds)).uniform(0.5, 4.0, n).round(3)
        weights = naive.on_grid(case.shares, 30)[0]
    case.rules = replace(case.rules, min_hessian=1e-3)  # that of NaiveTree
    energy = float((case.gradients**2).mean())
    tradeoff = stinginess * energy / max(1.0, np.mean(costs))
    both = {"tradeoff": tradeoff, "max_depth": 3, "max_leaf_nodes": max_leaf_nodes}
    wishes = naive.Settings(
        **both,
        budget=limits[0],
        row_budget=limits[1],
        min_samples_leaf=case.rules.min_samples_leaf,
        l2=case.rules.l2_regularization,
        learning_rate=0.5,
        categorical=frozenset(case.categorical),
    )
    shop = naive.RowShop(costs, needs, weights)
    model = cost_model(costs, needs)
    grower = row_grower(
        engine, case, model, *limits, total_weight=float(n), learning_rate=0.5, **both
    )
    for _ in range(3):
        given = (case.codes, case.n_bins, case.gradients, case.hessians, float(n))
        plain = naive.NaiveTree(*given, wishes, shop, 0.0)
        growth = grower.grow(0, n_trees=1)
        grower.account.settle_round(True)
        check_tree(plain.root, growth.tree)
        assert [(line.feature, line.price) for line in growth.bought] == plain.bought
        assert grower.account.spent == shop.total(0.0)
        assert limits[0] is None or grower.account.spent <= limits[0]
        assert grower.account.is_within(0)


@slowly
@given(
    case=cases(),
    data=st.data(),
    tradeoff=st.sampled_from([0.0, 0.001, 0.1]),
    rule=st.builds(
        RoundRule,
        seed=seeds,
        shopping_interval=st.sampled_from([1, 2]),
        subsample=st.sampled_from([1.0, 0.3]),
        max_features=st.sampled_from([1.0, 2]),
    ),
    row_budget=st.sampled_from([None, 6.0]),
)
def test_every_engine_charges_rows_the_same_bit_for_bit(
    engine, case, data, tradeoff, rule, row_budget
):
    model = cost_model(*data.draw(shops(case.d)))
    limits = {"row_budget": row_budget, "tradeoff": tradeoff, "max_depth": 4}
    ours, theirs = (row_grower(e, case, model, **limits) for e in (engine, CpuEngine(Threads(1))))
    for t in range(3):
        for grower in (ours, theirs):
            growth = grower.grow(0, 1, rule.round(t))
            if rule.subsample < 1:
                grower.rows.add_tree(growth.tree, 0)
            grower.account.settle_round(rule.subsample == 1)
            grower.last = growth
        assert ours.last.tree.nodes.tobytes() == theirs.last.tree.nodes.tobytes()
        assert ours.last.bought == theirs.last.bought
        assert ours.account.spent == theirs.account.spent


@slowly
@given(case=cases(), seed=seeds)
def test_the_order_of_rows_does_not_matter(engine, case, seed):
    ledger = Ledger(CostModel(np.zeros(case.d)))
    one = grow(engine, case, ledger, max_depth=4).tree
    order = np.random.default_rng(seed).permutation(case.n)
    case.codes = [case.codes[i] for i in order]
    case.gradients = case.gradients[order]
    case.hessians = None if case.hessians is None else case.hessians[order]
    other = grow(engine, case, ledger, max_depth=4).tree
    assert one.nodes.tobytes() == other.nodes.tobytes()
    assert one.category_sets.tobytes() == other.category_sets.tobytes()


@slowly
@given(case=cases(monotone=True, most_features=4))
def test_predictions_keep_the_order_of_monotone_features(engine, case):
    ledger = Ledger(CostModel(np.zeros(case.d)))
    tree = grow(engine, case, ledger, max_depth=5, learning_rate=1.0).tree
    assert (tree.nodes["category_set"] == -1).all()

    def predict(codes):
        at = naive.leaf_of_codes(tree.nodes, tree.category_sets, codes, case.n_bins)
        return tree.nodes["value"][at]

    for row, f in itertools.product(case.codes[:15], range(case.d)):
        direction = case.rules.monotonic_cst[f]
        values = [predict([*row[:f], b, *row[f + 1 :]]) for b in range(case.n_bins[f])]
        steps = np.diff(values) * direction
        assert (steps >= -1e-12 * (1 + np.abs(values).max())).all()
