"""Where rows go: partitions, leaves, and what is added to raw predictions."""

import numpy as np
from hypothesis import HealthCheck, given, settings

import naive
from conformance.cases import as_words, cases, check_stats, pack, seeds, walk
from greedymiser.engines import OpenNode, Split, SplitRules

slowly = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


@slowly
@given(case=cases(), seed=seeds)
def test_leaves_add_their_values_to_their_rows(engine, case, seed):
    plain, parents = walk(engine, case, seed)
    leaves = sorted(set(plain.rows) - set(parents.values()))
    rng = np.random.default_rng(seed)
    raw = rng.standard_normal(case.n)
    values = {leaf: float(rng.standard_normal()) for leaf in leaves}
    expected = raw.copy()
    for leaf in leaves:
        for i in plain.rows[leaf]:
            expected[i] += values[leaf]
    engine.add_leaves(raw, values)
    assert raw.tobytes() == expected.tobytes()
    # Every row is in exactly one leaf.
    rows = [i for leaf in leaves for i in engine.leaf_rows(leaf).tolist()]
    assert sorted(rows) == list(range(case.n))


@slowly
@given(case=cases(), seed=seeds)
def test_any_split_is_carried_out(engine, case, seed):
    """Also one that no table would propose: rows go where bin, category or missing side say."""
    engine.place(case.binned(), case.rules)
    engine.begin(case.gradients, case.hessians)
    plain = case.plain()
    rng = np.random.default_rng(seed)
    level, n_nodes = [0], 1
    for _ in range(3):
        splits, moves = [], []
        for node in level:
            f = int(rng.integers(case.d))
            cut = int(rng.integers(case.n_bins[f]))
            missing_left = bool(rng.random() < 0.5)
            codes = None
            if f in case.categorical:
                codes = set(np.flatnonzero(rng.random(case.n_bins[f]) < 0.5).tolist())
            left_rows = []
            for i in plain.rows[node]:
                code = case.codes[i][f]
                if code == case.n_bins[f]:
                    goes_left = missing_left
                else:
                    goes_left = code <= cut if codes is None else code in codes
                if goes_left:
                    left_rows.append(i)
            categories = None if codes is None else as_words(codes)
            left = n_nodes + 2 * len(splits)
            splits.append(Split(node, left, f, cut, missing_left, categories))
            moves.append(left_rows)
        answers = engine.partition(splits)
        level = []
        for split, left_rows, answer in zip(splits, moves, answers, strict=True):
            plain.divide(split.node, split.left, left_rows)
            for child, stats in zip((split.left, split.left + 1), answer, strict=True):
                check_stats(stats, plain, child)
                # The order of rows is kept: ascending in every node.
                assert engine.leaf_rows(child).tolist() == plain.rows[child]
                if plain.rows[child]:
                    level.append(child)
        n_nodes += 2 * len(splits)


def test_rows_stay_in_ascending_order(engine):
    rng = np.random.default_rng(0)
    n = 5000
    codes = rng.integers(0, 7, (n, 3))
    engine.place(pack(codes.tolist(), [7] * 3), SplitRules(1))
    engine.begin(rng.standard_normal(n), None)
    engine.partition([Split(0, 1, 0, 3, True)])
    engine.partition([Split(2, 3, 1, 1, True), Split(1, 5, 2, 5, True)])
    left = codes[:, 0] <= 3
    expected = {
        0: np.full(n, True),
        1: left,
        2: ~left,
        3: ~left & (codes[:, 1] <= 1),
        4: ~left & (codes[:, 1] > 1),
        5: left & (codes[:, 2] <= 5),
        6: left & (codes[:, 2] > 5),
    }
    for node in (3, 4, 5, 6):
        assert engine.leaf_rows(node).tolist() == np.flatnonzero(expected[node]).tolist()


@slowly
@given(case=cases())
def test_last_is_only_a_promise(engine, case):
    """The table of a last level is the same as if more would follow."""
    columns = np.ones(case.d, dtype=bool)
    tables = []
    for last in (False, True):
        engine.place(case.binned(), case.rules)
        engine.begin(case.gradients, case.hessians)
        root = engine.split_table([OpenNode(0)], columns, last=False)
        options = np.flatnonzero(root.candidates["gain"][0] > -np.inf)
        if len(options) == 0:
            return
        cell = root.candidates[0, options[0]]
        categories = None
        if options[0] in case.categorical:
            categories = root.category_sets[0, sorted(case.categorical).index(options[0])]
        engine.partition(
            [Split(0, 1, options[0], cell["bin"], bool(cell["missing_left"]), categories)]
        )
        tables.append(engine.split_table([OpenNode(1), OpenNode(2)], columns, last))
    assert tables[0].candidates.tobytes() == tables[1].candidates.tobytes()
    assert tables[0].category_sets.tobytes() == tables[1].category_sets.tobytes()


@slowly
@given(first=cases(), second=cases(), seed=seeds)
def test_an_engine_forgets_the_tree_before(engine, first, second, seed):
    """Trees with and without Hessians follow each other on the same data, and new data comes."""
    walk(engine, first, seed, depth=3)
    case = second
    plain = case.plain()
    engine.place(case.binned(), case.rules)
    everything = np.ones(case.d, dtype=bool)
    tables = []
    for hessians in (case.hessians, None, np.ones(case.n) * 0.3, case.hessians):
        stats = engine.begin(case.gradients, hessians)
        plain.begin(case.gradients, hessians)
        check_stats(stats, plain, 0)
        tables.append(engine.split_table([OpenNode(0)], everything, last=False).candidates)
    assert tables[0].tobytes() == tables[3].tobytes()


def test_packed_codes_are_those_that_were_given():
    codes = np.random.default_rng(1).integers(0, 256, (9, 11)).tolist()
    order = list(range(11))[::-1]
    matrix = pack(codes, [255] * 11, order=order)
    for i in range(9):
        for f in range(11):
            assert naive.code(matrix.codes, matrix.feature_lane, i, f) == codes[i][f]
