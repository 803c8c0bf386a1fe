"""What is asked for ahead is what would have been asked for later."""

import numpy as np

from greedymiser.engines.dask.foresight import Guesses, KnownTable, children_of
from greedymiser.engines.interface import (
    CANDIDATE_DTYPE,
    OPEN_DTYPE,
    SPLIT_DTYPE,
    SplitRules,
    SplitTable,
)


def open_nodes(*numbers, count=100):
    nodes = np.zeros(len(numbers), dtype=OPEN_DTYPE)
    nodes["node"], nodes["count"] = numbers, count
    nodes["lower"], nodes["upper"] = -np.inf, np.inf
    return nodes


def table(n_nodes, n_features):
    candidates = np.zeros((n_nodes, n_features), dtype=CANDIDATE_DTYPE)
    candidates["gain"] = np.arange(n_nodes * n_features).reshape(n_nodes, n_features)
    return SplitTable(candidates, np.arange(4 * n_nodes, dtype=np.uint64).reshape(n_nodes, 1, 4))


def test_a_part_of_a_known_table():
    known = KnownTable(open_nodes(1, 2, 4), np.array([True, True, False]), table(3, 3))
    found = known.of(open_nodes(1, 4), np.array([[True, False, False]]))
    assert found.candidates["gain"].tolist() == [[0, -np.inf, -np.inf], [6, -np.inf, -np.inf]]
    assert found.category_sets[:, 0, 0].tolist() == [0, 8]
    by_node = known.of(open_nodes(1, 4), np.array([[True, False, False], [False, True, False]]))
    assert by_node.candidates["gain"].tolist() == [[0, -np.inf, -np.inf], [-np.inf, 7, -np.inf]]
    assert known.table.candidates["gain"][0, 1] == 1  # is not changed


def test_what_a_known_table_does_not_know():
    known = KnownTable(open_nodes(1, 2), np.array([True, False]), table(2, 2))
    every, first = np.ones((1, 2), dtype=bool), np.array([[True, False]])
    assert known.of(open_nodes(1), every) is None
    assert known.of(open_nodes(3), first) is None
    assert known.of(open_nodes(1, count=99), first) is None
    assert known.of(open_nodes(1), first) is not None


def test_guesses():
    guesses, every = Guesses(), np.ones(10, dtype=bool)
    few = np.arange(10) < 5
    guesses.plant()
    assert guesses.columns() is None  # nothing is known of the first tree
    guesses.compare(every, last=False)
    assert guesses.columns().all()
    guesses.compare(few, last=True)
    guesses.plant()
    assert guesses.columns().all()
    assert guesses.keeps()
    guesses.compare(every, last=False)
    assert guesses.columns() is None  # the last time it would have been too much
    assert not guesses.keeps()
    guesses.compare(every, last=True)
    guesses.plant()
    guesses.compare(few, last=False)
    guesses.plant()
    assert guesses.columns() is None  # the last tree wanted half of those before it
    guesses.compare(few, last=False)
    guesses.plant()
    assert guesses.columns().tolist() == few.tolist()


def test_children():
    nodes, splits = open_nodes(1, 2), np.zeros(2, dtype=SPLIT_DTYPE)
    nodes["gradient"], nodes["hessian"] = [10, 20], [30, 40]
    splits["node"], splits["left"], splits["feature"] = [2, 1], [3, 5], [1, 0]
    known = table(2, 2)
    for name, value in (("gradient", 3), ("hessian", 4), ("count", 45)):
        known.candidates[name] = value
    children = children_of(nodes, known, splits, SplitRules(min_samples_leaf=25))
    assert children[["node", "gradient", "hessian", "count"]].tolist() == [
        (4, 17, 36, 55),
        (6, 7, 26, 55),
    ]
    monotone = SplitRules(monotonic_cst=(1, 0))
    assert len(children_of(nodes, known, splits, monotone)) == 0
    splits["node"] = [7, 1]  # of another level
    assert len(children_of(nodes, known, splits, SplitRules())) == 0
