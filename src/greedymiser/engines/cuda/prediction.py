"""Prediction on the device: one thread to a row, which adds tree after tree as the CPU does."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from greedymiser.data.tables import Table
from greedymiser.engines.cuda.device import SIMULATED, cuda, from_bits, kernel, room_for, sent
from greedymiser.engines.cuda.engine import check_available
from greedymiser.engines.cuda.stream import Stream
from greedymiser.model.trees import Ensemble, Steps

THREADS = 4 if SIMULATED else 256

# What goes to the device at a time.
BATCH_BYTES = 2**28

# A node is two words: its threshold, and where to go. Of the latter 32 bits are the left child, 24
# the column; then whether missing values go right, and whether a set of categories goes left, whose
# number is in the place of the threshold.
COLUMN_AT, MISSING_AT, SET_AT = 32, 56, 57


def raw_predict(ensemble: Ensemble, table: Table, first: int, last: int) -> NDArray[np.float64]:
    """Baseline plus rounds ``first:last``, shape (n_outputs, n)."""
    check_available()
    out = np.empty((ensemble.n_outputs, table.n_rows))
    out[:] = ensemble.baseline[:, None]
    trees = first * ensemble.n_outputs, last * ensemble.n_outputs
    features = np.array(ensemble.features, dtype=np.int64)
    if len(features) == 0 or table.n_rows == 0:
        # Trees without a split are values for everybody; it is not worth a journey.
        for t in range(*trees):
            out[t % ensemble.n_outputs] += ensemble.serving.steps.value[ensemble.tree_starts[t]]
        return out
    model = tuple(map(sent, _described(ensemble.serving.steps, features)))
    wanted = sent(features)
    step = max(THREADS, BATCH_BYTES // (8 * ensemble.n_features))
    stream = Stream()
    for begin in range(0, table.n_rows, step):
        end = min(begin + step, table.n_rows)
        rows = sent(np.ascontiguousarray(table.rows(begin, end, ensemble.features)))
        columns = room_for((len(features), end - begin), dtype=rows.dtype)
        sums = sent(np.ascontiguousarray(out[:, begin:end]))
        # A grid has no room for more columns.
        grid = -(-(end - begin) // THREADS), min(len(features), 65535)
        stream.launch(turn, grid, THREADS, (rows, wanted, columns))
        stream.launch(add_trees, (grid[0], 1), THREADS, (columns, *model, sums), *trees)
        stream.wait()
        out[:, begin:end] = sums.copy_to_host()
        stream.forget()  # a stream holds on to what it was given
    return out


def _described(steps: Steps, features: NDArray[np.int64]) -> tuple[NDArray[Any], ...]:
    """Nodes, their values, the root and the depth of each tree, and sets of categories."""
    column = np.searchsorted(features, steps.nodes["feature"]).clip(max=len(features) - 1)
    category_set = steps.nodes["category_set"].astype(np.int64)
    where = steps.nodes["left"].astype(np.int64) | (column.astype(np.int64) << COLUMN_AT)
    where |= steps.nodes["missing_right"].astype(np.int64) << MISSING_AT
    where |= (category_set >= 0).astype(np.int64) << SET_AT
    thresholds = steps.nodes["threshold"].copy().view(np.int64)
    nodes = np.stack([np.where(category_set >= 0, category_set, thresholds), where], axis=1)
    trees = np.stack([steps.root, steps.depth], axis=1).astype(np.int64)
    sets = steps.category_sets
    if len(sets) == 0:
        sets = np.zeros((1, sets.shape[1]), dtype=np.uint64)
    return nodes, steps.value, trees, np.ascontiguousarray(sets)


@kernel
def turn(rows, wanted, columns):
    """Lay the columns that are wanted (y) behind each other: neighbours ask for the same one."""
    i, j = cuda.grid(1), cuda.blockIdx.y
    while i < rows.shape[0] and j < wanted.size:
        columns[j, i] = rows[i, wanted[j]]
        j += cuda.gridDim.y


@kernel
def add_trees(columns, nodes, values, trees, sets, out, first, last):
    """Walk each row down each tree; add the leaf's value to the tree's output."""
    i = cuda.grid(1)
    if i >= columns.shape[1]:
        return
    n_outputs = out.shape[0]
    for t in range(first, last):
        node = trees[t, 0]
        for _ in range(trees[t, 1]):
            what, where = nodes[node, 0], nodes[node, 1]
            x = columns[(where >> COLUMN_AT) & 0xFFFFFF, i]
            missing_right = (where >> MISSING_AT) & 1 != 0
            if (where >> SET_AT) & 1 == 0:
                right = x > from_bits(what) or (missing_right and x != x)
            elif x != x:
                right = missing_right
            else:
                code = np.int64(x)
                word = sets[what, code >> 6]
                right = (word >> np.uint64(code & 63)) & np.uint64(1) == np.uint64(0)
            node = (where & 0xFFFFFFFF) + (1 if right else 0)
        out[t % n_outputs, i] += values[node]
