"""The way to a node, in words."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import naive
from greedymiser.model.conditions import Conditions
from greedymiser.model.trees import CATEGORY_WORDS, Tree
from random_examples import examples
from test_trees import ensemble_of, leaf, random_rows, random_tree

NAMES = ["TSH", "colour", "age"]
COLOURS = np.array(["red", "green", "blue", "grey"], dtype=object)


def tree_of(*splits):
    """A chain: each split is (feature, threshold or set of codes, whether the chain goes left)."""
    rng = np.random.default_rng(0)
    nodes, sets, at = [leaf(rng, 0)], [], 0
    for depth, (feature, cut, goes_left) in enumerate(splits):
        node = nodes[at]
        node["feature"], node["left"] = feature, len(nodes)
        if isinstance(cut, set):
            node["category_set"] = len(sets)
            sets.append([sum(1 << code for code in cut), 0, 0, 0])
        else:
            node["threshold"] = cut
        at = len(nodes) + (0 if goes_left else 1)
        nodes += [leaf(rng, depth + 1), leaf(rng, depth + 1)]
    words = np.array(sets, dtype=np.uint64).reshape(-1, CATEGORY_WORDS)
    return Tree(np.array(nodes).reshape(-1), words), at


def said(*splits, before=(), missing=(), row=None):
    tree, at = tree_of(*splits)
    trees = [tree_of(split)[0] for split in before]
    ensemble = ensemble_of([*trees, tree], [0.0], 3)
    conditions = Conditions(ensemble, dict(enumerate(NAMES)).get, {1: COLOURS}, missing)
    return conditions.of(at + sum(len(tree.nodes) for tree in trees), row)


def test_ways_by_hand():
    assert said() == ()
    assert said((0, 6.05, True)) == ("TSH ≤ 6.05",)
    assert said((0, 6.05, False)) == ("TSH > 6.05",)
    assert said((0, 6.05, False), (2, 41.5, True)) == ("TSH > 6.05", "age ≤ 41.5")
    # Of several splits on a feature, what follows from them together.
    assert said((0, 6.0, False), (2, 41.5, True), (0, 7.0, False)) == ("TSH > 7", "age ≤ 41.5")
    assert said((0, 6.0, False), (0, 9.0, True)) == ("6 < TSH ≤ 9",)
    assert said((0, math.inf, True)) == ("TSH known",)
    assert said((0, math.inf, False)) == ("TSH missing",)
    assert said((0, 6.0, False), before=[(2, 1.0, True)]) == ("TSH > 6",)


def test_ways_of_labels():
    assert said((1, {0}, True)) == ("colour = red",)
    assert said((1, {0}, False)) == ("colour not red",)
    assert said((1, {0, 1, 2}, True), (1, {1, 3}, False)) == ("colour = red or blue",)


def test_missing_values_are_told_where_they_go():
    """Here to the right, and only where some row has none."""
    assert said((0, 6.0, False), missing={0}) == ("TSH > 6 (or missing)",)
    assert said((0, 6.0, False), missing={2}) == ("TSH > 6",)
    assert said((0, 6.0, True), missing={0}) == ("TSH ≤ 6",)
    assert said((0, 6.0, False), (0, 9.0, True), missing={0}) == ("6 < TSH ≤ 9",)
    assert said((1, {0}, False), missing={1}) == ("colour not red (or missing)",)
    assert said((1, {0}, True), missing={1}) == ("colour = red",)
    assert said((0, math.inf, True), missing={0}) == ("TSH known",)
    assert said((0, math.inf, False), missing={0}) == ("TSH missing",)


def test_what_a_row_lacks_is_told_as_missing():
    way = (0, 6.0, False), (2, 41.5, True), (1, {0}, False)
    row = np.array([math.nan, 2.0, 30.0])
    assert said(*way, row=row) == ("TSH missing", "age ≤ 41.5", "colour not red")
    row = np.array([7.0, math.nan, 30.0])
    assert said(*way, row=row) == ("TSH > 6", "age ≤ 41.5", "colour missing")


def test_features_without_names():
    tree, at = tree_of((2, 1.0, True))
    conditions = Conditions(ensemble_of([tree], [0.0], 3), lambda feature: None, {})
    assert conditions.of(at) == ("feature 2 ≤ 1",)


@examples(30)
@given(seed=st.integers(0, 2**32 - 1))
def test_rows_meet_the_conditions_of_their_leaf(seed):
    rng = np.random.default_rng(seed)
    ensemble = ensemble_of([random_tree(rng, 3, 4) for _ in range(3)], [0.0], 3)
    conditions = Conditions(ensemble, "abc".__getitem__, {}, range(3))
    for row in random_rows(rng, 20, 3):
        for t in range(3):
            tree = ensemble.tree(t)
            at = naive.leaf_of(tree.nodes, tree.category_sets, row) + ensemble.tree_starts[t]
            for condition in conditions.of(int(at)):
                check(condition, dict(zip("abc", row, strict=True)))


def check(condition, values):
    """A condition, as Python reads it, is true of a value, or says that it may be missing."""
    told = condition.removesuffix(" (or missing)")
    name = next(name for name in "abc" if name in told.split())
    if math.isnan(values[name]):
        assert condition.endswith(("missing", "(or missing)"))
        return
    assert not told.endswith("missing")
    if told.endswith("known"):
        return
    told = told.replace("≤", "<=").replace("inf", "math.inf")
    assert eval(told, {"math": math}, values), condition
