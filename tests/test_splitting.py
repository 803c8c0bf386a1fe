"""The arithmetic of one level, kernel by kernel; ``test_grower`` has whole trees."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import naive
from calling import compiled
from greedymiser import CostModel
from greedymiser.costs.cost_model import Ledger
from greedymiser.engines.interface import CANDIDATE_DTYPE, OPEN_DTYPE, SPLIT_DTYPE
from greedymiser.model.trees import CATEGORY_WORDS, NODE_DTYPE
from greedymiser.training.accounts import ModelAccount
from greedymiser.training.splitting import (
    DRAFT_DTYPE,
    SETTINGS_DTYPE,
    bound_gains,
    choose_columns,
    finish,
    plant,
    price,
    settle,
    split_level,
    write_children,
    write_open,
)
from random_examples import examples

patient = examples(50)
seeds = st.integers(0, 2**32 - 1)
INF = math.inf


def planted(draft, settings, root, fewest=2):
    """Open nodes of a tree that begins with this root."""
    nodes = np.zeros(1, dtype=OPEN_DTYPE)
    steps, total_weight = (settings["gradient"][0], settings["hessian"][0]), 10.0
    return nodes[: plant(draft, settings, steps, total_weight, root, fewest, nodes)]


def constants(gradient=1.0, hessian=1.0, l2=0.0, learning_rate=0.5, total_weight=10.0):
    return np.array([(gradient, hessian, l2, learning_rate, total_weight)], dtype=SETTINGS_DTYPE)


@patient
@given(seed=seeds)
def test_rows_that_lack_a_resource_pay_for_it(seed):
    rng = np.random.default_rng(seed)
    n_nodes, n_resources, n_features = 3, 5, 4
    begun = np.flatnonzero(rng.random(n_resources) < 0.6)
    weight = rng.integers(1, 50, n_nodes)
    found = np.zeros((n_nodes, 1 + len(begun)), dtype=np.int64)
    found[:, 0] = weight
    found[:, 1:] = rng.integers(0, weight[:, None] + 1, (n_nodes, len(begun)))
    needs = [np.flatnonzero(rng.random(n_resources) < 0.5).tolist() for _ in range(n_features)]
    pairs = np.array([[f, r] for f, some in enumerate(needs) for r in some]).reshape(-1, 2).T.copy()
    costs, weighed = rng.integers(0, 9, n_resources) / 4, rng.integers(0, 9, n_resources) / 8
    lacking = np.empty((n_nodes, n_resources), dtype=np.int64)
    dues, prices = np.empty((n_nodes, n_features)), np.empty((n_nodes, n_features))
    owned = np.empty((n_nodes, n_features), dtype=np.bool_)
    price(found, begun, pairs, costs, weighed, 64, lacking, dues, prices, owned)
    for v in range(n_nodes):
        have = dict(zip(begun.tolist(), found[v, 1:].tolist(), strict=True))
        without = [int(weight[v]) - have.get(r, 0) for r in range(n_resources)]
        assert lacking[v].tolist() == without
        for f, some in enumerate(needs):
            assert dues[v, f] == sum(costs[r] * without[r] / 64 for r in some)
            assert prices[v, f] == sum(weighed[r] * without[r] / 64 for r in some)
            assert owned[v, f] == all(without[r] == 0 for r in some)


@patient
@given(seed=seeds, tradeoff=st.sampled_from([0.0, 0.5, 2.0]), room=st.integers(0, 4))
def test_what_is_owned_is_settled_best_first(seed, tradeoff, room):
    rng = np.random.default_rng(seed)
    gains = rng.choice([-INF, -1.0, 0.0, 1.0, 2.0, 3.0], (4, 3))
    prices = rng.choice([0.0, 1.0, 4.0], 3)
    candidates = np.zeros((4, 3), dtype=CANDIDATE_DTYPE)
    candidates["gain"] = 8.0 * gains
    chosen = np.full(4, -1, dtype=np.int64)
    everything = np.ones((1, 3), dtype=np.bool_)
    found = compiled(settle)(candidates, prices[None], everything, tradeoff, 8.0, room, chosen)
    # Every node takes its best feature, and the best nodes come first; the lower one of equals.
    picked = []
    for v, row in enumerate(gains):
        net, f = max((gain - tradeoff * prices[f], -f) for f, gain in enumerate(row))
        if net > 0:
            picked.append((net, -v, f))
    picked = sorted(picked, reverse=True)[:room]
    expected = [-1] * 4
    for _, v, f in picked:
        expected[-v] = -f
    assert chosen.tolist() == expected
    assert found == (-1, -1, len(picked))


def test_settling_stops_at_what_must_be_bought():
    candidates = np.zeros((3, 2), dtype=CANDIDATE_DTYPE)
    candidates["gain"] = [[3.0, 1.0], [5.0, 4.5], [1.0, 4.0]]
    owned = np.array([[True, False]])
    chosen = np.full(3, -1, dtype=np.int64)
    given = candidates, np.array([[0.0, 1.0]]), owned, 0.5, 1.0, 9
    assert compiled(settle)(*given, chosen) == (2, 1, 1)  # 5, then 4 - 0.5, which is not paid for
    assert chosen.tolist() == [-1, 0, -1]
    owned[0, 1] = True  # prices and what is owned may have changed since
    assert compiled(settle)(*given, chosen) == (-1, -1, 3)
    assert chosen.tolist() == [0, 0, 1]


def test_a_level_is_written_once_everything_is_paid_for():
    draft, settings = np.zeros(3, dtype=DRAFT_DTYPE), constants()
    nodes = planted(draft, settings, (6, 8, 100, 9.0))
    candidates = np.zeros((1, 2), dtype=CANDIDATE_DTYPE)
    candidates["gain"], candidates["count"], candidates["bin"] = [[20.0, 30.0]], 40, 3
    owned, chosen = np.array([[True, False]]), np.full(1, -1, dtype=np.int64)
    splits, children = np.zeros(1, dtype=SPLIT_DTYPE), np.zeros(2, dtype=OPEN_DTYPE)
    words = np.zeros((1, 1, CATEGORY_WORDS), dtype=np.uint64)
    given = (
        draft, settings, nodes, candidates, words, np.zeros((1, 2)), owned, 0.5, 9, chosen, 1,
        np.array([-1, -1]), np.zeros(0, dtype=np.int64), 0, splits, words[0].copy(),
        np.zeros(2, dtype=np.bool_), 41, children,
    )  # fmt: skip
    assert split_level(*given) == (0, 1, 0, 0, 0)  # feature 1 is better, and must be bought
    assert draft["left"][0] == -1
    owned[0, 1] = True
    assert split_level(*given) == (-1, -1, 1, 0, 1)  # the left child has too few rows for two
    assert draft["feature"][0] == 1
    assert draft["gain"][0] == 3.0
    assert splits[["left", "feature", "count"]].tolist() == [(1, 1, 40)]
    assert children[["node", "count"]][:1].tolist() == [(2, 60)]


@patient
@given(seed=seeds, l2=st.sampled_from([0.0, 1.5]))
def test_no_division_of_rows_gains_more_than_its_bound(seed, l2):
    rng = np.random.default_rng(seed)
    g, h = rng.integers(-8, 9, 6), rng.integers(1, 5, 6)
    draft = np.zeros(1, dtype=DRAFT_DTYPE)
    energy, settings = (
        naive.energy((0.5 * g).tolist(), (0.25 * h).tolist()),
        constants(0.5, 0.25, l2),
    )
    open_nodes, bounds = planted(draft, settings, (g.sum(), h.sum(), 6, energy)), np.empty(1)
    bound_gains(draft, open_nodes, settings, 6, bounds)

    def score(rows):
        return (0.5 * g[rows].sum()) ** 2 / (0.25 * h[rows].sum() + l2) if rows else 0.0

    whole = score(list(range(6)))
    gains = []
    for mask in range(64):
        left = [i for i in range(6) if mask >> i & 1]
        right = [i for i in range(6) if not mask >> i & 1]
        gains.append(score(left) + score(right) - whole)
    bound = 2 * 10.0 * bounds[0]  # gains are half of a difference of scores, per unit of weight
    slack = 1e-8 * energy
    assert bound * (1 + 1e-12) >= max(gains)
    assert bound <= energy - whole + slack  # and no more than it has to be


@patient
@given(seed=seeds)
def test_columns_in_play_are_those_that_the_account_would_choose(seed):
    """Where no purchase makes another feature cheaper."""
    rng = np.random.default_rng(seed)
    n_nodes, n_features = int(rng.integers(1, 5)), 6
    draft = np.zeros(n_nodes, dtype=DRAFT_DTYPE)
    open_nodes = np.zeros(n_nodes, dtype=OPEN_DTYPE)
    open_nodes["node"] = rng.permutation(n_nodes)
    draft["gradient"] = rng.integers(-50, 51, n_nodes)
    draft["hessian"] = rng.integers(0, 30, n_nodes)
    draft["energy"] = rng.exponential(200.0, n_nodes)
    settings = constants(gradient=0.5, l2=float(rng.integers(2)))
    prices = rng.integers(0, 20, n_features) / 4
    account = ModelAccount(Ledger(CostModel(prices), rng.choice(n_features, 2, replace=False)))
    within, tradeoff = rng.random((1, n_features)) < 0.8, float(rng.integers(0, 9)) / 4
    bounds, columns = np.empty(n_nodes), np.empty((1, n_features), dtype=np.bool_)
    bound_gains(draft, open_nodes, settings, 100, bounds)
    arguments = account.price(open_nodes, 0)[0], tradeoff, account.reachable(within), columns
    compiled(choose_columns)(draft, open_nodes, settings, 100, *arguments)
    assert np.array_equal(columns, account.payable(within, bounds, tradeoff))


def test_nodes_with_rows_enough_for_two_are_open():
    draft = np.zeros(4, dtype=DRAFT_DTYPE)
    draft["count"] = [50, 10, 9, 11]
    draft["gradient"], draft["lower"] = [1, 2, 3, 4], [-INF, -1.0, 0.0, 1.0]
    out = np.zeros(3, dtype=OPEN_DTYPE)
    assert compiled(write_open)(draft, 1, 4, 10, out) == 2
    assert out["node"][:2].tolist() == [1, 3]
    assert out["count"][:2].tolist() == [10, 11]
    assert out["gradient"][:2].tolist() == [2, 4]
    assert out["lower"][:2].tolist() == [-1.0, 1.0]


@pytest.mark.parametrize("direction", [0, 1, -1])
def test_children_are_what_is_left_of_their_parent(direction):
    """A numeric and a categorical split, as a draft, as told to the engine, as a finished tree."""
    draft = np.zeros(7, dtype=DRAFT_DTYPE)
    assert planted(draft, constants(), (6, 8, 100, 9.0), 101).size == 0  # too few rows for two
    assert planted(draft, constants(), (6, 8, 100, 9.0), 100)["count"].tolist() == [100]
    open_nodes = np.zeros(2, dtype=OPEN_DTYPE)
    sets, used = np.zeros((2, CATEGORY_WORDS), dtype=np.uint64), np.zeros(2, dtype=np.bool_)
    splits, children = np.zeros(2, dtype=SPLIT_DTYPE), np.zeros(4, dtype=OPEN_DTYPE)
    set_of_feature, monotone = np.array([-1, 0]), np.array([direction, 0], dtype=np.int8)

    def divided(nodes, cells, category_sets, chosen, first_child, n_sets):
        open_nodes["node"][: len(nodes)] = nodes
        return compiled(write_children)(
            draft, open_nodes[: len(nodes)], np.array(cells, dtype=CANDIDATE_DTYPE), category_sets,
            np.array(chosen), first_child, set_of_feature, monotone, constants(), n_sets,
            splits, sets, used, 30, children,
        )  # fmt: skip

    blank = np.zeros(2, dtype=CANDIDATE_DTYPE)
    cells = blank.copy()
    for name, value in {"gain": 20.0, "gradient": 4, "hessian": 2, "count": 60, "bin": 3}.items():
        cells[name][0] = value
    cells["missing_left"][0] = True
    words = np.zeros((1, 1, CATEGORY_WORDS), dtype=np.uint64)
    assert divided([0], [cells], words, [0], 1, 0) == (0, 2)
    assert draft["gain"][0] == 2.0  # per unit of weight
    assert draft["gradient"][1:3].tolist() == [4, 2]
    assert draft["hessian"][1:3].tolist() == [2, 6]
    assert draft["count"][1:3].tolist() == [60, 40]
    assert tuple(splits[0][["node", "left", "feature", "bin", "count"]]) == (0, 1, 0, 3, 60)
    # The best values are -2 on the left and -1/3 on the right.
    middle = 0.5 * (-2.0 + -2.0 / 6.0)
    bounds = {0: [(-INF, INF)] * 2, 1: [(-INF, middle), (middle, INF)]}
    bounds[-1] = [(middle, INF), (-INF, middle)]
    assert draft[["lower", "upper"]][1:3].tolist() == bounds[direction]

    cells = blank.copy()
    cells["gain"][1], cells["count"][1], cells["hessian"][1] = 5.0, 31, 1
    words[0, 0] = [5, 0, 0, 1]
    assert divided([1], [cells], words, [1], 3, 0) == (1, 1)  # the other child is too small
    assert children["node"][0] == 3
    assert sets[0].tolist() == [5, 0, 0, 1]
    assert splits["bin"][0] == draft["bin"][1] == -1
    assert used.tolist() == [True, True]
    assert draft[["lower", "upper"]][3:5].tolist() == [bounds[direction][0]] * 2

    nodes, leaves = np.zeros(5, dtype=NODE_DTYPE), np.zeros(3, dtype=np.int64)
    limits = np.empty((3, 2))
    thresholds = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0, 4])
    finish(draft, constants(), thresholds, nodes, leaves, limits)
    assert leaves.tolist() == [2, 3, 4]
    assert nodes["threshold"].tolist() == [0.4, 0.0, 0.0, 0.0, 0.0]
    assert nodes["depth"].tolist() == [0, 1, 1, 2, 2]
    assert nodes["category_set"].tolist() == [-1, 0, -1, -1, -1]
    assert limits.tolist() == [list(bounds[direction][1]), *[list(bounds[direction][0])] * 2]
    low, high = bounds[direction][1]
    assert nodes["value"][2] == 0.5 * min(max(-2.0 / 6.0, low), high)
