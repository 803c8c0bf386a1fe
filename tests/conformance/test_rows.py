"""Where rows go: partitions, leaves, and what is added to raw predictions."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import naive
from conformance.cases import (
    Case,
    OpenNode,
    Split,
    as_words,
    ask,
    by_chance,
    cases,
    check_leaves,
    check_root,
    pack,
    seeds,
    tell,
    walk,
)
from greedymiser.data.binning import BinnedMatrix
from greedymiser.engines.grid import GridRule
from greedymiser.engines.interface import Sample, SplitRules
from greedymiser.engines.sampling import RowLot
from greedymiser.losses import (
    AbsoluteError,
    BinaryLogLoss,
    MultinomialLogLoss,
    Quantile,
    SquaredError,
)
from greedymiser.model.trees import CATEGORY_WORDS, NODE_DTYPE, Tree

slowly = by_chance(100)


@slowly
@given(case=cases(), seed=seeds, last=st.booleans())
def test_any_split_is_carried_out(engine, case, seed, last):
    """Also one that no table would propose: rows go where bin, category or missing side say."""
    rows, plain = case.placed(engine), case.plain()
    rows.begin_tree(0, case.rules)
    rng = np.random.default_rng(seed)
    level, n_nodes, parents = [0], 1, {}
    for depth in range(3):
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
        tell(rows, plain, splits, moves, last and depth == 2)
        level = []
        for split in splits:
            for child in (split.left, split.left + 1):
                parents[child] = split.node
                if plain.rows[child]:
                    level.append(child)
        n_nodes += 2 * len(splits)
    check_leaves(rows, plain, parents, rng)


def test_many_rows_go_where_they_belong(engine):
    rng = np.random.default_rng(0)
    n = 5000
    codes = rng.integers(0, 7, (n, 3))
    case = Case(codes.tolist(), [7] * 3, [], [0, 1, 2], rng.standard_normal(n), None, SplitRules(1))
    rows, plain = case.placed(engine), case.plain()
    rows.begin_tree(0, case.rules)
    left = codes[:, 0] <= 3
    expected = {
        1: left,
        2: ~left,
        3: ~left & (codes[:, 1] <= 1),
        4: ~left & (codes[:, 1] > 1),
        5: left & (codes[:, 2] <= 5),
        6: left & (codes[:, 2] > 5),
    }
    numbers = {node: np.flatnonzero(mine).tolist() for node, mine in expected.items()}
    tell(rows, plain, [Split(0, 1, 0, 3, True)], [numbers[1]])
    splits = [Split(2, 3, 1, 1, True), Split(1, 5, 2, 5, True)]
    tell(rows, plain, splits, [numbers[3], numbers[5]])
    rows.add_leaves(np.array([3, 4, 5, 6]), np.array([3.0, 4.0, 5.0, 6.0]))
    for node in (3, 4, 5, 6):
        assert np.flatnonzero(rows.raw()[0] == node).tolist() == numbers[node]


@slowly
@given(case=cases())
def test_last_is_only_a_promise(engine, case):
    """The table of a last level is the same as if more would follow."""
    columns = np.ones(case.d, dtype=bool)
    tables = []
    for last in (False, True):
        rows, plain = case.placed(engine), case.plain()
        rows.begin_tree(0, case.rules)
        root = ask(rows, plain, [OpenNode(0)], columns)
        options = np.flatnonzero(root.candidates["gain"][0] > -np.inf)
        if len(options) == 0:
            return
        f = int(options[0])
        _, left_rows, _, cut, codes, missing_left = plain.best(0, f)
        categories = None if codes is None else as_words(codes)
        cut = -1 if cut is None else cut
        tell(rows, plain, [Split(0, 1, f, cut, missing_left, categories)], [left_rows])
        tables.append(ask(rows, plain, [OpenNode(1), OpenNode(2)], columns, last))
    same = tables[0].candidates["gain"] > -np.inf
    for name in tables[0].candidates.dtype.names:
        one, other = (table.candidates[name] for table in tables)
        assert np.array_equal(one[same], other[same]), name
    assert np.array_equal(tables[0].candidates["gain"], tables[1].candidates["gain"])
    assert np.array_equal(tables[0].category_sets, tables[1].category_sets)


@slowly
@given(case=cases(), seed=seeds)
def test_trees_follow_each_other_on_the_same_rows(engine, case, seed):
    """With and without Hessians, with other rules: nothing of the tree before is left."""
    rows = case.placed(engine)
    walk(engine, case, seed, depth=3, rows=rows)
    walk(engine, case, seed + 1, depth=2, rows=rows)
    case.rules = replace(case.rules, min_samples_leaf=2, l2_regularization=0.7)
    walk(engine, case, seed, depth=3, rows=rows)


@slowly
@given(case=cases(), seed=seeds)
def test_derivatives_may_change_their_kind(engine, case, seed):
    """A loss may return Hessians in one round and none in the next."""
    rows = case.placed(engine)
    kinds = [case.hessians, None, np.full(case.n, 0.3), case.hessians]
    for hessians in kinds:
        case.hessians = hessians
        losses = [shard.sample.loss for shard in getattr(rows, "shards", [rows])]
        starts = np.append(0, np.cumsum([len(loss.derivatives[0]) for loss in losses]))
        for loss, first, last in zip(losses, starts[:-1], starts[1:], strict=True):
            part = None if hessians is None else hessians[first:last]
            loss.derivatives = case.gradients[first:last], part
        plain = case.plain()
        check_root(rows.begin_tree(0, case.rules), plain)
        walk(engine, case, seed, depth=2, rows=rows)


# -- models ---------------------------------------------------------------------------------------


def some_rows(loss, seed, weighted):
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(3, 60)), int(rng.integers(1, 12))
    codes = rng.integers(0, 6, (n, d)).tolist()
    k = loss.n_outputs
    y = rng.integers(0, max(2, k), n).astype(float) if k > 1 else rng.random(n).round()
    weight = rng.uniform(0.5, 2.0, n) if weighted else None
    return Sample(pack(codes, [6] * d), y, weight, loss), rng


LOSSES = [SquaredError(), BinaryLogLoss(), MultinomialLogLoss(3), Quantile(0.3), AbsoluteError()]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
@by_chance(25)
@given(seed=seeds, weighted=st.booleans())
def test_the_loss_is_exact(engine, loss, seed, weighted):
    sample, rng = some_rows(loss, seed, weighted)
    rows = engine.place(sample)
    raw = rng.standard_normal((loss.n_outputs, len(sample.y)))
    rows.start(raw)
    seen = raw if loss.n_outputs > 1 else raw[0]
    assert rows.loss() == loss.value(sample.y, seen, sample.weight)
    assert rows.raw().tobytes() == raw.tobytes()
    rows.start(np.arange(loss.n_outputs, dtype=float))
    assert (rows.raw() == np.arange(loss.n_outputs)[:, None]).all()


@pytest.mark.parametrize("loss", LOSSES[-2:], ids=lambda loss: type(loss).__name__)
@by_chance(25)
@given(seed=seeds, weighted=st.booleans())
def test_leaves_take_the_best_constant_of_the_loss(engine, loss, seed, weighted):
    sample, rng = some_rows(loss, seed, weighted)
    rows = engine.place(sample)
    raw = rng.standard_normal((1, len(sample.y)))
    rows.start(raw)
    rows.begin_tree(0, SplitRules(1))
    plain = naive.PlainEngine(
        codes_of(sample.binned), [6] * sample.binned.n_features, SplitRules(1), [], sample.grids
    )
    plain.begin(np.ones(len(sample.y)), None)
    left = [i for i in plain.rows[0] if plain.codes[i][0] <= 2]
    tell(rows, plain, [Split(0, 1, 0, 2, True)], [left], last=True)
    leaves = [leaf for leaf in (1, 2) if plain.rows[leaf]]
    for leaf, best in zip(leaves, rows.best_constants(np.array(leaves)), strict=True):
        mine = plain.rows[leaf]
        weight = None if sample.weight is None else sample.weight[mine]
        assert best == loss.leaf_value(sample.y[mine] - raw[0][mine], weight)


def codes_of(binned: BinnedMatrix):
    return [
        [naive.code(binned.codes, binned.feature_lane, i, f) for f in range(binned.n_features)]
        for i in range(binned.n_rows)
    ]


@slowly
@given(case=cases(), seed=seeds)
def test_rows_walk_down_a_finished_tree(engine, case, seed):
    rng = np.random.default_rng(seed)
    nodes = np.zeros(7, dtype=NODE_DTYPE)
    nodes["left"], nodes["category_set"] = -1, -1
    nodes["value"] = rng.standard_normal(7)
    sets = rng.integers(0, 2**63, (3, CATEGORY_WORDS), dtype=np.uint64)
    for at, left in ((0, 1), (1, 3), (2, 5)):
        f = int(rng.integers(case.d))
        nodes["left"][at], nodes["feature"][at] = left, f
        nodes["missing_left"][at] = rng.random() < 0.5
        nodes["bin"][at] = -1 if f in case.categorical else rng.integers(case.n_bins[f])
        nodes["category_set"][at] = at if f in case.categorical else -1
    rows = case.placed(engine)
    rows.add_tree(Tree(nodes, sets), 0)
    for i, codes in enumerate(case.codes):
        leaf = naive.leaf_of_codes(nodes, sets, codes, case.n_bins)
        assert rows.raw()[0, i] == nodes["value"][leaf]


def test_packed_codes_are_those_that_were_given():
    codes = np.random.default_rng(1).integers(0, 256, (9, 11)).tolist()
    order = list(range(11))[::-1]
    matrix = pack(codes, [255] * 11, order=order)
    for i in range(9):
        for f in range(11):
            assert naive.code(matrix.codes, matrix.feature_lane, i, f) == codes[i][f]


# -- some of the rows -----------------------------------------------------------------------------


def with_lot(case, seed, by_query):
    """The same case, of which a tree sees only some rows, perhaps none; or whole queries."""
    rng = np.random.default_rng(seed)
    share = float(rng.choice([0.02, 0.3, 0.8]))
    case.lot = RowLot(int(rng.integers(2**63)) * 2 + 1, int(share * 2**53))
    case.units = np.sort(rng.integers(0, 8, case.n)) if by_query else None
    if rng.random() < 0.3:
        case.grids = GridRule(packed_rows=0, run=4)  # as if there were many rows
    return case


@slowly
@given(case=cases(), seed=seeds, by_query=st.booleans())
def test_trees_grow_on_rows_that_are_drawn(engine, case, seed, by_query):
    walk(engine, with_lot(case, seed, by_query), seed)


@slowly
@given(case=cases(), seed=seeds)
def test_trees_on_some_rows_and_on_all_take_turns(engine, case, seed):
    drawn = with_lot(case, seed, False).lot
    rows = case.placed(engine)
    for case.lot in (None, drawn, None):
        walk(engine, case, seed, depth=2, rows=rows)


def test_a_lot_may_fall_on_nobody(engine):
    codes, gradients = [[0], [1], [1]], np.array([1.0, -2.0, 3.0])
    for hessians in (None, np.array([1.0, 2.0, 3.0])):
        case = Case(codes, [2], [], [0], gradients, hessians, SplitRules(1), lot=RowLot(7, 0))
        assert walk(engine, case, 0).rows == {0: []}


def test_more_rows_than_a_thread_takes_at_a_time(engine):
    """Drawn in chunks, which must close ranks."""
    n = 10_000
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 3, (n, 1))
    gradients, hessians = rng.integers(-9, 10, n).astype(float), rng.integers(1, 5, n).astype(float)
    case = Case(codes, [3], [], [0], gradients, hessians, SplitRules(1), lot=RowLot(7, 2**51))
    binned = BinnedMatrix(
        codes=codes.astype(np.uint64).T.copy(),
        lane_feature=np.array([0, *[-1] * 7], dtype=np.int32),
        feature_lane=np.zeros(1, dtype=np.int32),
        n_bins=np.array([3], dtype=np.int32),
        has_missing=np.array([False]),
        is_categorical=np.array([False]),
    )
    case.binned = lambda: binned
    plain, rows = case.plain(), case.placed(engine)
    assert 2300 < len(plain.rows[0]) < 2700
    check_root(rows.begin_tree(0, case.rules, lot=case.lot), plain)
    table = ask(rows, plain, [OpenNode(0)], [True])
    left = [i for i in plain.rows[0] if codes[i, 0] <= table.candidates["bin"][0, 0]]
    assert table.candidates["count"][0, 0] == len(left)
    split = Split(0, 1, 0, int(table.candidates["bin"][0, 0]), False)
    tell(rows, plain, [split], [left], last=True)
    check_leaves(rows, plain, {1: 0, 2: 0}, rng)


@pytest.mark.parametrize(("by_query", "first_row"), [(False, 0), (False, 9), (True, 0)])
def test_leaves_are_renewed_from_rows_that_are_drawn(engine, by_query, first_row):
    y = np.arange(12.0) ** 2
    numbers = [i // 3 if by_query else first_row + i for i in range(12)]
    units = np.array(numbers) if by_query else None
    lot = RowLot(3, 2**52)
    drawn = [i for i in range(12) if naive.lot_falls_on(numbers[i], *lot)]
    assert 0 < len(drawn) < 12
    binned = pack([[int(i >= 6)] for i in range(12)], [2])
    rows = engine.place(Sample(binned, y, None, AbsoluteError(), units=units, first_row=first_row))
    rows.start(np.zeros(1))
    rows.begin_tree(0, SplitRules(1), lot=lot)
    assert rows.best_constants(np.array([0])).tolist() == [np.median(y[drawn])]
