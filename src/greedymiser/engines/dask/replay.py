"""The commands that rows have had, for workers that come later."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from greedymiser.engines.dask.messages import Command
from greedymiser.engines.grid import Grid
from greedymiser.engines.interface import Floats, SplitRules
from greedymiser.engines.marks import Marks
from greedymiser.engines.sampling import RowLot
from greedymiser.model.trees import CATEGORY_WORDS, NODE_DTYPE, Tree


class Replay:
    """Finished trees since the start of a model, and the tree that is growing.

    Every method returns the command for workers that know all commands so far.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        """A new model: nothing has happened yet."""
        self._start: list[Command] = []
        # Trees before the last derivatives, and after: one output's tree does not change the
        # derivatives of the others.
        self._before: list[Command] = []
        self._derive: list[Command] = []
        self._after: list[Command] = []
        self._growing: list[Command] = []

    def commands(self) -> list[Command]:
        """All of them, in order."""
        return [*self._start, *self._before, *self._derive, *self._after, *self._growing]

    def start(self, raw: Floats, marks: Marks | None, had: NDArray[np.bool_] | None) -> Command:
        self._clear()
        self._start = [("start", raw, marks, had)]
        return self._start[0]

    def derive(self, step: str) -> Command:
        self._before += self._after
        self._derive, self._after, self._growing = [("derive", step)], [], []
        return self._derive[0]

    def begin(self, output: int, grid: Grid, rules: SplitRules, lot: RowLot | None) -> Command:
        self._output = output
        self._growing = [("begin", output, grid, rules, lot)]
        return self._growing[0]

    def partition(
        self, splits: NDArray[np.void], category_sets: NDArray[np.uint64], last: bool
    ) -> Command:
        self._growing.append(("partition", splits, category_sets, last))
        return self._growing[-1]

    def add_tree(self, tree: Tree, output: int) -> Command:
        self._growing = []
        self._after.append(("add_tree", tree, output))
        return self._after[-1]

    def add_leaves(self, leaves: NDArray[np.int64], values: Floats) -> Command:
        """End the tree. Workers that come later get it as a finished tree, with the same values."""
        splits = [command[1:3] for command in self._growing[1:]]
        self.add_tree(_way_as_tree(splits, leaves, values), self._output)
        return "add_leaves", leaves, values


def _way_as_tree(
    levels: list[tuple[NDArray[np.void], NDArray[np.uint64]]],
    leaves: NDArray[np.int64],
    values: Floats,
) -> Tree:
    """A tree of which only the way and the values are known."""
    nodes = np.zeros(1 + 2 * sum(len(splits) for splits, _ in levels), dtype=NODE_DTYPE)
    nodes["feature"], nodes["left"], nodes["category_set"] = -1, -1, -1
    sets = [np.empty((0, CATEGORY_WORDS), dtype=np.uint64)]
    for splits, category_sets in levels:
        at = splits["node"]
        for name in ("feature", "left", "bin", "missing_left"):
            nodes[name][at] = splits[name]
        by_category = splits["bin"] < 0
        first = sum(map(len, sets))
        nodes["category_set"][at[by_category]] = first + np.arange(by_category.sum())
        sets.append(category_sets[by_category])
    nodes["value"][leaves] = values
    return Tree(nodes, np.concatenate(sets))
