"""A whole tree in compiled code, where its rows are in the memory of this machine.

What ``Grower`` asks an engine level by level is done here by one kernel, which comes back only when
something must be bought, or when columns must be chosen anew: on small data most of a round would
be Python between kernels. The functions are the same ones, and so is the tree.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.compiling import njit
from greedymiser.engines.cpu.kernels import counting
from greedymiser.engines.cpu.kernels.counting import find_level
from greedymiser.engines.cpu.kernels.rows import divide_level
from greedymiser.engines.cpu.rows import CpuRows
from greedymiser.engines.cpu.state import AskedLevel, CuttingRoom, Data, Kept, TreeState
from greedymiser.engines.interface import (
    CANDIDATE_DTYPE,
    OPEN_DTYPE,
    SPLIT_DTYPE,
    Columns,
    Floats,
    SplitTable,
)
from greedymiser.model.trees import CATEGORY_WORDS
from greedymiser.training.splitting import choose_columns, split_nodes

# Deeper trees grow level by level: room is made beforehand for all nodes that there might be.
DEEPEST = 6

# Where a tree is.
PROGRESS_DTYPE = np.dtype(
    [
        ("depth", np.int64),
        # Nodes and category sets so far, and nodes of this depth that may be split.
        ("n_nodes", np.int64),
        ("n_sets", np.int64),
        ("n_open", np.int64),
        # What the last level left to the next one: pairs, splits, and slots that nobody uses.
        ("n_pairs", np.int64),
        ("n_splits", np.int64),
        ("n_free", np.int64),
        # Whether the splits of this level are known, and are being chosen from.
        ("is_known", np.bool_),
        # Whether the rows of the last splits were left where they are.
        ("is_noted", np.bool_),
    ],
    align=True,
)

# Why the kernel comes back, where it is not the row of what must be paid for.
FINISHED, COLUMNS = -1, -2


class LevelLoop:
    """The levels of a tree that is growing on rows of this machine.

    Parameters
    ----------
    rows : CpuRows
    depth : int
        The most levels, up to ``DEEPEST``.
    n_categorical : int
        How many features are categorical.
    """

    def __init__(self, rows: CpuRows, depth: int, n_features: int, n_categorical: int):
        self._rows, self._depth = rows, depth
        most = 2 ** (depth - 1)
        self._nodes = np.empty(2 * most, dtype=OPEN_DTYPE)
        self._table = SplitTable(
            np.empty((most, n_features), dtype=CANDIDATE_DTYPE),
            np.zeros((most, n_categorical or 1, CATEGORY_WORDS), dtype=np.uint64),
        )
        self._pairs = np.empty(most, dtype=counting.PAIR_DTYPE)
        self._splits = np.empty(most, dtype=SPLIT_DTYPE)
        self._chosen = np.empty(most, dtype=np.int64)
        # Category sets of the splits of a level, and those of the tree.
        self._sets = np.zeros((2, 2 * most, CATEGORY_WORDS), dtype=np.uint64)
        self._progress = np.zeros(1, dtype=PROGRESS_DTYPE)

    def begin(self, root: np.void, n_columns: int) -> bool:
        """Begin with an open root; return whether this tree can be grown here."""
        self._memory = self._rows.lend(self._depth, n_columns)
        if self._memory is None:
            return False
        self._nodes[0] = root  # a record: to assign an array of them takes a microsecond
        self._progress[0] = (0, 1, 0, 1, 0, 0, self._memory.counted.n_free, False, False)
        return True

    def go_on(
        self,
        draft: NDArray[np.void],
        settings: NDArray[np.void],
        columns: tuple[Columns, Columns, bool],
        prices: tuple[Floats, Columns, float],
        features: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]],
        limits: tuple[int, int],
        bounded: bool,
    ) -> tuple[int, int]:
        """Grow until something must be bought, for a node (by its row) and a feature.

        ``columns`` are those in play, those that may be, and whether features share costs: then the
        caller chooses them anew for every level.
        """
        memory = self._memory
        assert memory is not None
        counted = memory.counted
        scanned = None if counted.is_plain else self._table.category_sets
        buffers = (self._nodes, self._pairs, self._splits, self._chosen, self._sets)
        levels = (self._depth, counted.keeps_last, memory.moves_last, bounded, self._rows.n_rows)
        row, feature = grow_levels(
            counted.teams, counted.least, memory.data, memory.state, counted.kept, counted.room,
            memory.divided, levels, buffers, columns, *self._table, scanned, draft,
            settings, prices, features, limits, self._progress,
        )  # fmt: skip
        return row, feature

    @property
    def depth(self) -> int:
        """How deep the open nodes are."""
        return int(self._progress["depth"][0])

    @property
    def nodes(self) -> NDArray[np.void]:
        """The open nodes."""
        return self._nodes[: self._progress["n_open"][0]]

    @property
    def gains(self) -> Floats:
        """Raw gains of the open nodes, by feature."""
        gains: Floats = self._table.candidates["gain"][: self._progress["n_open"][0]]
        return gains

    @property
    def chosen(self) -> NDArray[np.int64]:
        """The features of the open nodes, -1 for none so far."""
        return self._chosen

    def finish(self) -> tuple[int, NDArray[np.uint64]]:
        """End the tree; return how many nodes and which category sets it has."""
        _, n_nodes, n_sets, _, _, n_splits, _, _, is_noted = self._progress.item()
        if is_noted:
            self._rows.note(self._splits[:n_splits], self._sets[0, :n_splits])
        return n_nodes, self._sets[1, :n_sets].copy()


@njit
def grow_levels(
    teams, least, data, tree, kept, room, divided, levels, buffers, columns, candidates,
    category_sets, scanned_sets, draft, settings, prices, features, limits, progress,
):  # fmt: skip
    """Find splits, choose them and move rows, level by level, until somebody must be asked.

    Returns the row and the feature of what must be bought; FINISHED or COLUMNS, and nothing, where
    the tree is done, or where columns must be chosen for another level. When it is called again it
    goes on where it was.
    """
    data, tree = Data(*data), TreeState(*tree)
    histograms, free, active = kept
    kept = Kept(*histograms)
    room = None if room is None else CuttingRoom(*room)
    max_depth, keeps_last, moves_last, is_bounded, n_rows = levels
    columns, within, shares_costs = columns
    open_nodes, pairs, splits, chosen, sets = buffers
    prices, owned, tradeoff = prices
    set_of_feature, monotone, used = features
    max_leaves, fewest = limits
    team, longest, flags = divided
    at = progress[0]
    while True:
        last = at.depth + 1 == max_depth
        nodes = open_nodes[: at.n_open]
        table, table_sets = candidates[: at.n_open], category_sets[: at.n_open]
        if not at.is_known:
            if at.n_open == 0 or at.depth == max_depth:
                return FINISHED, FINISHED
            keep = keeps_last or not last
            before = (keep, free, at.n_free, pairs[: at.n_pairs], splits[: at.n_splits])
            level = AskedLevel(nodes, pairs, columns, active)
            at.n_pairs, at.n_free = find_level(
                teams, least, data, tree, kept, room, before, level, table, scanned_sets
            )
            for row in range(at.n_open):
                chosen[row] = -1
            at.is_known = True
        first, n_sets = at.n_nodes, at.n_sets
        row, feature, n_splits, at.n_sets, n_children = split_nodes(
            draft, settings, nodes, table, table_sets, prices, owned, tradeoff,
            max_leaves - (first + 1) // 2, chosen[: at.n_open], first, set_of_feature, monotone,
            n_sets, splits, sets[0], used, fewest, open_nodes,
        )  # fmt: skip
        if row >= 0:
            return row, feature
        if n_splits == 0:
            return FINISHED, FINISHED
        for s in range(n_splits):
            if splits[s].bin < 0:
                for word in range(sets.shape[2]):
                    sets[1, n_sets, word] = sets[0, s, word]
                n_sets += 1
        at.n_splits, at.n_open, at.n_nodes = n_splits, n_children, first + 2 * n_splits
        at.depth += 1
        at.is_known = False
        at.is_noted = last and not moves_last
        if at.is_noted:
            return FINISHED, FINISHED
        weighs = is_bounded and not last
        energies = np.empty((n_splits if weighs else 0, 2))
        divide_level(
            team, data, tree, splits[:n_splits], sets[0], longest, flags, not last, energies
        )
        for s in range(energies.shape[0]):
            for side in range(2):
                draft[splits[s].left + side].energy = energies[s, side]
        if weighs and at.n_open > 0:
            if shares_costs:
                return COLUMNS, COLUMNS
            nodes = open_nodes[: at.n_open]
            choose_columns(draft, nodes, settings, n_rows, prices, tradeoff, within, columns)
