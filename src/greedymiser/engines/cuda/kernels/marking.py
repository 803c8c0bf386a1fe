"""Marks of rows on the device: bits are set, and their weights counted."""

from __future__ import annotations

import numpy as np

from greedymiser.engines.cuda.device import SIMULATED, cuda, device, kernel
from greedymiser.engines.cuda.kernels.rows import THREADS, goes_left
from greedymiser.engines.cuda.layout import CHILD, TREE_NODE

# What kernels are told of a node; behind it, for those that leave marks, the bits that it leaves.
FIRST_ROW, LAST_ROW, IN_BUFFER, FIRST_TILE, MARKED = 0, 1, 2, 3, 4

# Rows that a block of threads weighs.
PER_TILE = THREADS * (2 if SIMULATED else 8)

# Sums of a block: of its rows with each bit of a word, and of all its rows.
N_SUMS = 65


@device
def find_node(plan, n_nodes, width, tile):
    """Where the words of the node begin that a tile of rows is of."""
    at = 0
    while at + width < n_nodes * width and plan[at + width + FIRST_TILE] <= tile:
        at += width
    return at


@kernel
def mark(rows, plan, bits, n_nodes):
    """Set the bits of nodes for all their rows, each of which is in one of them only."""
    tid, tile = cuda.threadIdx.x, cuda.blockIdx.x
    at = find_node(plan, n_nodes, MARKED + bits.shape[0], tile)
    i = plan[at + FIRST_ROW] + (tile - plan[at + FIRST_TILE]) * THREADS + tid
    if i < plan[at + LAST_ROW]:
        row = np.int64(rows[plan[at + IN_BUFFER], i])
        for w in range(bits.shape[0]):
            bits[w, row] |= plan[at + MARKED + w]


@kernel
def mark_walking(codes, plan, masks, bits):
    """Walk all rows down a finished tree; ``masks`` are the bits that each node leaves."""
    n_words = bits.shape[0]
    i, step = cuda.grid(1), cuda.gridsize(1)
    while i < bits.shape[1]:
        at = np.int64(0)
        while plan[at + CHILD] >= 0:
            for w in range(n_words):
                bits[w, i] |= masks[at // TREE_NODE * n_words + w]
            left = goes_left(codes, i, plan, at)
            at = (plan[at + CHILD] + (0 if left else 1)) * TREE_NODE
        i += step


@kernel
def weigh(rows, plan, bits, weights, found, n_nodes):
    """Weight of nodes, and of those of their rows that have each bit. Words of bits in y.

    ``found`` has 1 + 64 x words entries for each node.
    """
    sums = cuda.shared.array(N_SUMS, np.int64)
    tid, tile, word = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockIdx.y
    for k in range(tid, N_SUMS, THREADS):
        sums[k] = 0
    cuda.syncthreads()
    at = find_node(plan, n_nodes, MARKED, tile)
    first = plan[at + FIRST_ROW] + (tile - plan[at + FIRST_TILE]) * PER_TILE
    stop = min(first + PER_TILE, plan[at + LAST_ROW])
    total = np.int64(0)
    i = first + tid
    while i < stop:
        # Without a buffer, it is all rows.
        row = i if plan[at + IN_BUFFER] < 0 else np.int64(rows[plan[at + IN_BUFFER], i])
        weight = weights[row] if weights.size > 0 else np.int64(1)
        total += weight
        left = bits[word, row] if word < bits.shape[0] else np.int64(0)
        while left != 0:
            cuda.atomic.add(sums, np.int64(cuda.ffs(left)) - 1, weight)
            left &= left - np.int64(1)
        i += THREADS
    cuda.atomic.add(sums, N_SUMS - 1, total)
    cuda.syncthreads()
    row_at = at // MARKED * (1 + (N_SUMS - 1) * bits.shape[0])
    for k in range(tid, N_SUMS - 1, THREADS):
        if sums[k] != 0:
            cuda.atomic.add(found, row_at + 1 + (N_SUMS - 1) * word + k, sums[k])
    if tid == 0 and word == 0:
        cuda.atomic.add(found, row_at, sums[N_SUMS - 1])
