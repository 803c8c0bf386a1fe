"""Raw gains of every node on every feature, against all splits there are."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.cases import Case, cases, check_table, pack, seeds, walk
from greedymiser.engines import OpenNode, Split, SplitRules, cpu

slowly = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@slowly
@given(case=cases(), seed=seeds)
def test_tables_are_those_of_a_plain_count(engine, case, seed):
    walk(engine, case, seed)


@slowly
@given(case=cases(monotone=True), seed=seeds)
def test_tables_of_monotone_features_and_bounded_nodes(engine, case, seed):
    walk(engine, case, seed, bounds=True)


@slowly
@given(case=cases(), seed=seeds, slots=st.integers(0, 4))
def test_tables_when_memory_for_histograms_runs_out(engine, case, seed, slots):
    """What cannot be subtracted from is counted again."""
    words = 1 if case.hessians is None else 2
    one_histogram = 8 * 8 * 256 * words * -(-case.d // 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "HISTOGRAM_BYTES", slots * one_histogram)
        walk(engine, case, seed)


def test_memory_that_another_node_left_behind(engine):
    """With room for one histogram: the root's, then the large child's, then a grandchild's."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 4, (60, 3))
    codes[:, 0] = np.arange(60) >= 25
    codes[:, 1] = np.arange(60) >= 10
    gradients = rng.standard_normal(60)
    case = Case(codes.tolist(), [4] * 3, [], [0, 1, 2], gradients, None, SplitRules(1))
    plain, columns = case.plain(), np.ones(3, dtype=bool)

    def check(ids):
        nodes = [OpenNode(id) for id in ids]
        check_table(engine.split_table(nodes, columns, last=False), case, plain, nodes, columns)

    def divide(node, left, f):
        engine.partition([Split(node, left, f, 0, True)])
        plain.divide(node, left, [i for i in plain.rows[node] if case.codes[i][f] == 0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "HISTOGRAM_BYTES", 8 * 8 * 256)
        engine.place(case.binned(), case.rules)
        engine.begin(gradients, None)
        check([0])
        divide(0, 1, 0)  # 25 and 35 rows
        check([1, 2])
        divide(1, 3, 1)  # 10 and 15 rows; their parent had no room, and node 2 leaves its own
        check([4])


def root_table(engine, codes, n_bins, gradients, hessians=None, columns=None, **rules):
    codes = np.asarray(codes).reshape(len(gradients), -1).tolist()
    engine.place(pack(codes, n_bins), SplitRules(**{"min_samples_leaf": 1} | rules))
    engine.begin(np.asarray(gradients, dtype=float), hessians)
    columns = np.ones(len(n_bins), dtype=bool) if columns is None else columns
    return engine.split_table([OpenNode(0)], columns, last=True).candidates[0]


def test_a_split_by_hand(engine):
    # Values 0, 0, 1, 1 want -3, -1, 2, 2: means -2 and 2, so half of 4 * 2^2 is gained.
    cell = root_table(engine, [0, 0, 1, 1], [2], [3, 1, -2, -2])[0]
    assert cell["gain"] == 8.0
    assert cell["bin"] == 0
    assert cell["missing_left"]  # never seen: follows the larger child, left if they are equal
    # With l2 = 2 each child keeps half of its 8: G^2 / (H + 2) = 16 / 4.
    cell = root_table(engine, [0, 0, 1, 1], [2], [3, 1, -2, -2], l2_regularization=2.0)[0]
    assert cell["gain"] == 4.0


def test_missing_values_go_where_they_fit(engine):
    # Code 2 is missing, and like the values on the right.
    cell = root_table(engine, [0, 0, 1, 2], [2], [1, 1, -1, -1])[0]
    assert (cell["gain"], cell["bin"], cell["missing_left"]) == (2.0, 0, False)
    # Like those on the left.
    cell = root_table(engine, [0, 2, 1, 1], [2], [1, 1, -1, -1])[0]
    assert (cell["gain"], cell["bin"], cell["missing_left"]) == (2.0, 0, True)
    # Unlike all values: behind the last bin there is one more cut.
    cell = root_table(engine, [0, 1, 2, 2], [2], [1, 1, -1, -1])[0]
    assert (cell["gain"], cell["bin"], cell["missing_left"]) == (2.0, 1, False)


def test_ties_go_to_the_lowest_cut(engine):
    # Cutting off the first or the last row gains the same.
    cell = root_table(engine, [0, 1, 2], [3], [1, 0, 1])[0]
    assert (cell["gain"] > 0, cell["bin"], cell["missing_left"]) == (True, 0, False)


def test_nothing_to_gain_is_no_split(engine):
    assert root_table(engine, [0, 0, 0, 0], [1], [1, 2, 3, 4])[0]["gain"] == -math.inf
    assert root_table(engine, [0, 1, 2, 3], [4], [2, 2, 2, 2])[0]["gain"] == -math.inf
    assert root_table(engine, [0, 1, 2, 3], [4], [0, 0, 0, 0])[0]["gain"] == -math.inf
    # 0.1 is not on the grid, and still there is only noise to gain.
    assert root_table(engine, [0, 1, 2], [3], [0.1, 0.1, 0.1])[0]["gain"] == -math.inf


def test_children_have_enough_rows(engine):
    codes, gradients = [0, 1, 2, 3, 4, 5], [9, 0, 0, 0, 0, 0]
    cuts = [
        int(root_table(engine, codes, [6], gradients, min_samples_leaf=k)["bin"][0])
        for k in (1, 2, 3)
    ]
    assert cuts == [0, 1, 2]
    cell = root_table(engine, codes, [6], gradients, min_samples_leaf=4)[0]
    assert cell["gain"] == -math.inf


@pytest.mark.parametrize("constant", [False, True])
def test_children_have_enough_hessian(engine, constant):
    codes, gradients = [0, 1, 2, 3], [9, 0, 0, 0]
    hessians = None if constant else np.array([0.5, 0.5, 1.0, 2.0])
    cuts = []
    for least in (0.0, 0.5, 0.75, 1.0):
        least = least * 2 if constant else least
        cell = root_table(engine, codes, [4], gradients, hessians, min_hessian=least)[0]
        cuts.append(int(cell["bin"]))
    assert cuts == [0, 0, 1, 1]
    cell = root_table(engine, codes, [4], gradients, hessians, min_hessian=2.001)[0]
    assert cell["gain"] == -math.inf


def test_columns_out_of_play_are_not_answered(engine):
    codes = [[0] * 10, [0] * 10, [1] * 10, [1] * 10]
    for chosen in ([0], [7, 8], [9], list(range(10))):
        columns = np.zeros(10, dtype=bool)
        columns[chosen] = True
        found = root_table(engine, codes, [2] * 10, [1, 1, -1, -1], columns=columns)
        assert np.flatnonzero(found["gain"] > -math.inf).tolist() == chosen
        assert (found["gain"][chosen] == 2.0).all()


def test_a_column_may_come_into_play_at_a_deeper_level(engine):
    """Its histogram was never counted for the parent, so there is nothing to subtract from."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 4, (60, 16)).tolist()
    case = Case(codes, [4] * 16, [], list(range(16)), rng.standard_normal(60), None, SplitRules(5))
    for at_root, below in [(range(8), range(16)), (range(16), range(8)), ([0], [0, 15])]:
        plain = case.plain()
        engine.place(case.binned(), case.rules)
        engine.begin(case.gradients, None)
        first, second = np.isin(np.arange(16), at_root), np.isin(np.arange(16), below)
        table = engine.split_table([OpenNode(0)], first, last=False)
        check_table(table, case, plain, [OpenNode(0)], first)
        nodes, next_id = [OpenNode(0)], 1
        for columns in (second, first, second):
            splits = []
            for node in nodes:
                _, left_rows, _, cut, _, missing_left = plain.best(node.id, 0)
                splits.append(Split(node.id, next_id, 0, cut, missing_left))
                plain.divide(node.id, next_id, left_rows)
                next_id += 2
            engine.partition(splits)
            nodes = [OpenNode(s.left + side) for s in splits for side in (0, 1)]
            table = engine.split_table(nodes, columns, last=False)
            check_table(table, case, plain, nodes, columns)
            nodes = [node for node in nodes if plain.best(node.id, 0) is not None]


# -- the bound that lets a grower skip columns ----------------------------------------------------


def exact_gain(plain, left, right, l2):
    """Twice the raw gain of any two sets of rows, in exact arithmetic."""

    def score(rows):
        g, h = plain.sums(rows)
        g, h = Fraction(g) * Fraction(plain.g_step), Fraction(h) * Fraction(plain.h_step)
        return g * g / (h + Fraction(l2)) if h > 0 else None

    scores = [score(rows) for rows in (left, right, [*left, *right])]
    return None if None in scores else float(scores[0] + scores[1] - scores[2])


@slowly
@given(case=cases(most_features=1), data=st.data())
def test_impurity_bounds_the_gain_of_any_two_sets_of_rows(engine, case, data):
    plain = case.plain()
    engine.place(case.binned(), case.rules)
    stats = engine.begin(case.gradients, case.hessians)
    sides = data.draw(st.lists(st.booleans(), min_size=case.n, max_size=case.n))
    left = [i for i in range(case.n) if sides[i]]
    right = [i for i in range(case.n) if not sides[i]]
    gain = exact_gain(plain, left, right, case.rules.l2_regularization)
    if gain is not None:
        assert gain <= stats.twice_impurity
    # One row against all others, and the rows sorted by what they want: the best there can be.
    by_slope = sorted(range(case.n), key=lambda i: plain.g[i] / max(plain.h[i], 0.5))
    for k in range(1, case.n):
        gain = exact_gain(plain, by_slope[:k], by_slope[k:], case.rules.l2_regularization)
        assert gain is None or gain <= stats.twice_impurity


def test_impurity_by_hand(engine):
    # Pure rows: nothing can be gained. Otherwise: sum of g^2 minus G^2/n, here 4 - 0.
    engine.place(pack([[0], [0], [1], [1]], [2]), SplitRules(1))
    assert engine.begin(np.full(4, 0.3), None).twice_impurity == pytest.approx(0.0, abs=1e-8)
    stats = engine.begin(np.array([1.0, 1.0, -1.0, -1.0]), None)
    assert stats.twice_impurity == pytest.approx(4.0)
    assert stats.twice_impurity >= 4.0
    left, right = engine.partition([Split(0, 1, 0, 0, True)])[0]
    assert left.twice_impurity == pytest.approx(0.0, abs=1e-8)
    assert right.twice_impurity == pytest.approx(0.0, abs=1e-8)


@slowly
@given(case=cases(), seed=seeds)
def test_bounds_that_nobody_asks_for_are_infinite(engine, case, seed):
    case.rules = replace(case.rules, bound_gains=False)
    walk(engine, case, seed)
    engine.place(case.binned(), case.rules)
    assert engine.begin(case.gradients, case.hessians).twice_impurity == math.inf
    children = engine.partition([Split(0, 1, 0, 0, True)])[0]
    assert [child.twice_impurity for child in children] == [math.inf, math.inf]


def test_impurity_of_rows_without_hessian_bounds_nothing(engine):
    engine.place(pack([[0], [0], [1], [1]], [2]), SplitRules(1))
    stats = engine.begin(np.ones(4), np.array([0.0, 1.0, 1.0, 1.0]))
    assert stats.twice_impurity > 1e100
    # A row with neither gradient nor Hessian is harmless.
    stats = engine.begin(np.array([0.0, 1.0, 1.0, 1.0]), np.array([0.0, 1.0, 1.0, 1.0]))
    assert stats.twice_impurity == pytest.approx(0.0, abs=1e-8)


def test_bounded_nodes_with_negative_scores_may_be_split(engine):
    # Wants -20 and 4, must not go below 3: apart they lose 129 - 16, together 114.
    engine.place(pack([[0], [1]], [2]), SplitRules(1, monotonic_cst=(0,)))
    engine.begin(np.array([20.0, -4.0]), None)
    table = engine.split_table([OpenNode(0, 3.0, np.inf)], np.ones(1, dtype=bool), last=True)
    assert table.candidates["gain"][0, 0] == pytest.approx(0.5)


def test_categories_of_rows_without_hessian(engine):
    engine.place(pack([[0], [1]], [2], categorical=[0]), SplitRules(1))
    engine.begin(np.array([1.0, -1.0]), np.zeros(2))
    table = engine.split_table([OpenNode(0)], np.ones(1, dtype=bool), last=True)
    assert table.candidates["gain"][0, 0] == -np.inf
