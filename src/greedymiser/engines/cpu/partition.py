"""Which rows are in which node of a growing tree."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.threads import Team, Threads
from greedymiser.engines.cpu.kernels import counting, rows
from greedymiser.engines.cpu.state import Data, TreeState, Tuning
from greedymiser.engines.grid import Grid
from greedymiser.engines.interface import SPLIT_DTYPE, Floats, Root, SplitRules
from greedymiser.engines.sampling import RowLot
from greedymiser.engines.scanning import SCALE_DTYPE
from greedymiser.model.trees import CATEGORY_WORDS

# Nodes of a tree of depth 4; there is more room where it is asked for.
NODES = 31


# In place of the queries of rows where each row is drawn for itself.
ALL_ROWS = np.empty(0, dtype=np.int64)


class _Noted(NamedTuple):
    """The splits of the last level. Their rows were not moved: codes say which leaf a row is in."""

    splits: NDArray[np.void]
    category_sets: NDArray[np.uint64]


NOBODY = _Noted(np.empty(0, dtype=SPLIT_DTYPE), np.empty((0, CATEGORY_WORDS), dtype=np.uint64))


class Partition:
    """Rows and their words, node by node, in ascending order within each node."""

    def __init__(self, data: Data, threads: Threads, tuning: Tuning):
        n = data.codes.shape[1]
        self._plain_data = tuple(data)
        self._threads = threads
        self._flags = np.empty(n, dtype=np.bool_)
        self._noted = NOBODY
        # Work of so many rows is shared out, in pieces of so many.
        self._least = 2 * tuning.rows
        self._longest = max(tuning.rows, n // (4 * threads.n_threads))
        self._rules: SplitRules | None = None
        # Gradients and Hessians of rows that were drawn, side by side; empty if none ever were.
        self._drawn = np.empty((2, 0))
        self.state = TreeState(
            nodes=np.empty(NODES, dtype=counting.NODE_DTYPE),
            rows=np.empty((2, n), dtype=np.uint32),
            words=np.empty((2, n, 1), dtype=np.int64),
            scale=np.zeros(1, dtype=SCALE_DTYPE),
            run=0,
            is_whole=True,
        )

    def draw(
        self,
        gradients: Floats,
        hessians: Floats,
        lot: RowLot,
        units: NDArray[np.int64],
        first_row: int,
    ) -> tuple[Floats, Floats]:
        """Put rows into the root that a lot falls on; return their gradients and Hessians."""
        n = len(gradients)
        if self._drawn.shape[1] == 0:
            self._drawn = np.empty((2, n))
        drawn = (np.uint64(lot.seed), np.uint64(lot.limit), units, first_row)
        n_drawn = rows.draw_lots(
            self._team(n), drawn, gradients, hessians, self.state.rows, self._drawn
        )
        return self._drawn[0, :n_drawn], self._drawn[1, : min(n_drawn, len(hessians))]

    def begin(
        self, gradients: Floats, hessians: Floats, grid: Grid, rules: SplitRules, is_whole: bool
    ) -> Root:
        """Give the rows of the root their words; all rows, unless some were drawn."""
        n, state = len(gradients), self.state
        self._noted = NOBODY
        if state.words.shape[2] != grid.row_words or state.run != grid.run:
            words = np.empty((2, len(self._flags), grid.row_words), dtype=np.int64)
            self.state = state = state._replace(words=words, run=grid.run)
        if state.is_whole != is_whole:
            self.state = state = state._replace(is_whole=is_whole)
        if rules is not self._rules:
            self._rules = rules
            state.scale["l2"] = rules.l2_regularization
            state.scale["min_hessian"] = rules.min_hessian
            state.scale["min_count"] = rules.min_samples_leaf
            state.scale["bounded"] = rules.monotonic_cst is not None
        self._n_nodes = 1
        sums = rows.quantise(
            self._team(n), gradients, hessians, tuple(grid), rules.bound_gains, tuple(state)
        )
        return Root(sums[0], sums[1], n, sums[2])

    def divide(
        self,
        splits: NDArray[np.void],
        category_sets: NDArray[np.uint64],
        with_words: bool,
        with_energies: bool,
    ) -> Floats:
        """Move rows into children; return the energies of left and right children, if asked."""
        self._n_nodes += 2 * len(splits)
        if self._n_nodes > len(self.state.nodes):
            self._make_room()
        energies = np.empty((len(splits) if with_energies else 0, 2))
        team, state = self._team(len(self._flags)), tuple(self.state)
        rows.divide_rows(
            team, self._plain_data, state, splits, category_sets, self._longest, self._flags,
            with_words, energies,
        )  # fmt: skip
        return energies

    def lend(self, n_nodes: int) -> tuple[Team, int, NDArray[np.bool_]]:
        """What ``rows.divide_level`` is given where a tree of so many nodes grows in compiled code.

        A team, the longest piece of rows, and room for flags.
        """
        if len(self.state.nodes) < n_nodes:
            self._n_nodes = n_nodes
            self._make_room()
        return self._team(len(self._flags)), self._longest, self._flags

    def note(self, splits: NDArray[np.void], category_sets: NDArray[np.uint64]) -> None:
        """Remember splits whose children are leaves."""
        self._noted = _Noted(splits, category_sets)

    def leaf_rows(self, leaf: int) -> NDArray[np.uint32]:
        """Rows of a leaf that was not only noted."""
        node = self.state.nodes[leaf]
        return self.state.rows[node["side"], node["start"] : node["stop"]]

    def add_leaves(self, leaves: NDArray[np.int64], values: Floats, raw: Floats) -> None:
        """Add the values of all leaves to the raw predictions of their rows."""
        rows.add_leaves(
            self._team(len(raw)), self._plain_data, tuple(self.state), leaves, values, *self._noted,
            self._longest, raw,
        )  # fmt: skip

    def _make_room(self) -> None:
        nodes = self.state.nodes
        bigger = np.empty(2 * self._n_nodes, dtype=nodes.dtype)
        bigger[: len(nodes)] = nodes
        self.state = self.state._replace(nodes=bigger)

    def _team(self, n_rows: int) -> Team:
        return self._threads.team(n_rows, self._least)
