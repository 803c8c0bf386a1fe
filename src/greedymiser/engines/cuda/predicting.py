"""Prediction on the device: one thread to a row, which adds tree after tree as the CPU does."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from greedymiser.engines.cuda.device import SIMULATED, cuda, kernel
from greedymiser.engines.cuda.door import check_available
from greedymiser.engines.cuda.line import Line
from greedymiser.tables import Table
from greedymiser.trees import Ensemble, Steps

THREADS = 4 if SIMULATED else 256

# What goes to the device at a time.
BATCH_BYTES = 2**28


def raw_predict(ensemble: Ensemble, table: Table, first: int, last: int) -> NDArray[np.float64]:
    """Baseline plus rounds ``first:last``, shape (n_outputs, n)."""
    check_available()
    out = np.empty((ensemble.n_outputs, table.n_rows))
    out[:] = ensemble.baseline[:, None]
    features = np.array(ensemble.features, dtype=np.intp)
    if len(features) == 0 or table.n_rows == 0:
        # Trees without a split are values for everybody; it is not worth a journey.
        for t in range(first * ensemble.n_outputs, last * ensemble.n_outputs):
            out[t % ensemble.n_outputs] += ensemble.serving.steps.value[ensemble.tree_starts[t]]
        return out
    trees = tuple(map(cuda.to_device, _described(ensemble.serving.steps, features)))
    step = max(THREADS, BATCH_BYTES // (8 * len(features)))
    line = Line()
    for begin in range(0, table.n_rows, step):
        end = min(begin + step, table.n_rows)
        rows = table.rows(begin, end, ensemble.features)
        values = cuda.to_device(np.ascontiguousarray(rows[:, features], dtype=np.float64))
        sums = cuda.to_device(np.ascontiguousarray(out[:, begin:end]))
        grid = -(-(end - begin) // THREADS), 1
        bounds = first * ensemble.n_outputs, last * ensemble.n_outputs
        line.launch(add_trees, grid, THREADS, (values, *trees, sums), *bounds)
        line.wait()
        out[:, begin:end] = sums.copy_to_host()
    return out


def _described(steps: Steps, features: NDArray[np.intp]) -> tuple[NDArray[Any], ...]:
    """Nodes as integers (column, left child, set of categories, whether missing goes right), ..."""
    nodes = np.empty((len(steps.nodes), 4), dtype=np.int32)
    nodes[:, 0] = np.searchsorted(features, steps.nodes["feature"]).clip(max=len(features) - 1)
    nodes[:, 1], nodes[:, 2] = steps.nodes["left"], steps.nodes["category_set"]
    nodes[:, 3] = steps.nodes["missing_right"]
    trees = np.stack([steps.root, steps.depth], axis=1).astype(np.int64)
    sets = steps.category_sets
    if len(sets) == 0:
        sets = np.zeros((1, sets.shape[1]), dtype=np.uint64)
    # Copies: the device takes nothing that is only a view of records.
    return nodes, steps.nodes["threshold"].copy(), steps.value, trees, np.ascontiguousarray(sets)


@kernel
def add_trees(rows, nodes, thresholds, values, trees, sets, out, first, last):
    """Walk each row down each tree; add the leaf's value to the tree's output."""
    i = cuda.grid(1)
    if i >= rows.shape[0]:
        return
    n_outputs = out.shape[0]
    for t in range(first, last):
        node = trees[t, 0]
        for _ in range(trees[t, 1]):
            x, at = rows[i, nodes[node, 0]], nodes[node, 2]
            missing_right = nodes[node, 3] != 0
            if at < 0:
                right = x > thresholds[node] or (missing_right and x != x)
            elif x != x:
                right = missing_right
            else:
                code = np.int64(x)
                right = (sets[at, code >> 6] >> np.uint64(code & 63)) & np.uint64(1) == np.uint64(0)
            node = np.int64(nodes[node, 1]) + (1 if right else 0)
        out[t % n_outputs, i] += values[node]
