"""Marks that splits leave on rows, and what those weigh that have them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.cases import Case, Split, by_chance, cases, seeds, tell
from greedymiser.engines.interface import SplitRules
from greedymiser.engines.marks import Marks, share_unit
from greedymiser.model.trees import CATEGORY_WORDS, NODE_DTYPE, Tree

slowly = by_chance(60)


@st.composite
def marks_for(draw, d):
    """Some marks, shared by features; now and then more than a word has bits."""
    rng = np.random.default_rng(draw(seeds))
    n = draw(st.sampled_from([1, 3, 70]))
    most = draw(st.sampled_from([0, 1, min(n, 3), n]))
    of_feature = (np.sort(rng.choice(n, most, replace=False)) for _ in range(d))
    return Marks(n, tuple(tuple(some.tolist()) for some in of_feature))


class PlainMarks:
    """A set of marks for each row."""

    def __init__(self, marks, weights):
        self.marks, self.weights = marks, weights
        self.has = [set() for _ in weights]

    def leave(self, feature, rows):
        for i in rows:
            self.has[i] |= set(self.marks.of_feature[feature])

    def weigh(self, rows, marks):
        by_mark = (sum(self.weights[i] for i in rows if mark in self.has[i]) for mark in marks)
        return [sum(self.weights[i] for i in rows), *by_mark]

    def patterns(self, rows):
        return {frozenset(self.has[i]) for i in rows}


def as_sets(patterns):
    return {frozenset(np.flatnonzero(row).tolist()) for row in patterns}


def random_splits(case, rng, level, plain, n_nodes):
    """A split of each node of a level, on numbers, and the rows that go left."""
    splits, moves = [], []
    for node in level:
        f = int(rng.integers(case.d))
        cut, missing_left = int(rng.integers(case.n_bins[f])), bool(rng.random() < 0.5)
        left = [
            i
            for i in plain.rows[node]
            if (missing_left if case.codes[i][f] == case.n_bins[f] else case.codes[i][f] <= cut)
        ]
        splits.append(Split(node, n_nodes + 2 * len(splits), f, cut, missing_left))
        moves.append(left)
    return splits, moves


@slowly
@given(case=cases(), data=st.data(), seed=seeds, is_weighted=st.booleans(), last=st.booleans())
def test_splits_leave_marks_on_all_rows_of_their_nodes(engine, case, data, seed, is_weighted, last):
    rng = np.random.default_rng(seed)
    case.categorical = []
    marks = data.draw(marks_for(case.d))
    weights = [1] * case.n
    if is_weighted:
        case.shares = rng.uniform(0.1, 9.0, case.n)
        unit = share_unit(case.n, case.shares.max())
        weights = [round(share / unit) for share in case.shares.tolist()]
    rows, ours = case.placed(engine, marks), PlainMarks(marks, weights)
    every = list(range(marks.n_marks))
    assert rows.marked(None, every).tolist() == [ours.weigh(range(case.n), every)]
    for _ in range(2):
        plain = case.plain()
        rows.begin_tree(0, case.rules, lot=case.lot)
        level, n_nodes = [0], 1
        for depth in range(3):
            asked = np.array(level, dtype=np.int64)
            some = rng.permutation(every)[: rng.integers(marks.n_marks + 1)].tolist()
            expected = [ours.weigh(plain.rows[node], some) for node in level]
            assert rows.marked(asked, some).tolist() == expected
            for node in level:
                if plain.rows[node]:
                    assert as_sets(rows.patterns(node)) == ours.patterns(plain.rows[node])
            splits, moves = random_splits(case, rng, level, plain, n_nodes)
            for split in splits:
                ours.leave(split.feature, plain.rows[split.node])
            tell(rows, plain, splits, moves, last and depth == 2)
            n_nodes += 2 * len(splits)
            level = [s.left + side for s in splits for side in (0, 1) if plain.rows[s.left + side]]
        assert rows.marked(None, every).tolist() == [ours.weigh(range(case.n), every)]
        assert as_sets(rows.patterns(None)) == ours.patterns(range(case.n))


def stump(feature, cut):
    nodes = np.zeros(3, dtype=NODE_DTYPE)
    nodes["feature"], nodes["left"], nodes["bin"] = [feature, -1, -1], [1, -1, -1], [cut, -1, -1]
    nodes["category_set"] = -1
    return Tree(nodes, np.zeros((0, CATEGORY_WORDS), dtype=np.uint64))


def simple_case(n):
    codes = np.random.default_rng(0).integers(0, 5, (n, 2))
    rules = SplitRules(min_samples_leaf=1)
    return Case(codes.tolist(), [5, 5], [], [0, 1], np.ones(n), None, rules), codes


@pytest.mark.parametrize("n", [1, 7, 8, 9, 250, 20_000])
def test_finished_trees_leave_marks_on_those_who_come_by(engine, n):
    case, codes = simple_case(n)
    rows = case.placed(engine, Marks(3, ((0, 2), (1,))))
    tree = stump(0, 2)
    tree.nodes["feature"][1], tree.nodes["left"][1] = 1, 3
    tree = Tree(np.append(tree.nodes, stump(0, 0).nodes[1:]), tree.category_sets)
    rows.add_tree(tree, 0)
    below = int((codes[:, 0] <= 2).sum())
    assert rows.marked(None, [0, 1, 2]).tolist() == [[n, n, below, n]]


def test_rows_may_begin_with_marks(engine):
    case, _ = simple_case(300)
    rows = case.placed(engine)
    had = np.zeros((300, 2), dtype=bool)
    had[:100, 1] = True
    rows.start(np.zeros(1), Marks(2, ((0,), (1,))), had)
    assert rows.marked(None, [1, 0]).tolist() == [[300, 100, 0]]
    rows.add_tree(stump(1, 2), 0)
    assert rows.marked(None, [1, 0]).tolist() == [[300, 300, 0]]
    # A new model begins without any.
    rows.start(np.zeros(1), Marks(2, ((0,), (1,))))
    assert rows.marked(None, [1, 0]).tolist() == [[300, 0, 0]]
