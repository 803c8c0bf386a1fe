"""Marks of rows on the device: bits that finished trees leave, and the weights of bits."""

from __future__ import annotations

import numpy as np

from greedymiser._core.bits import WORD_BITS
from greedymiser.engines.cuda.device import SIMULATED, cuda, device, kernel
from greedymiser.engines.cuda.kernels.rows import THREADS, goes_left
from greedymiser.engines.cuda.layout import CHILD, SIDE, START, STOP, TILE, TREE_NODE, WEIGHED

# Rows that a block of threads weighs.
PER_TILE = THREADS * (2 if SIMULATED else 8)

# Threads that have the bits of a word between them, and how many bits each of them has.
GROUP = min(THREADS, WORD_BITS)
OWN = WORD_BITS // GROUP


@device
def find_node(plan, first, n_nodes, tile):
    """Where the words of the node begin that a tile of rows is of."""
    at = first
    while at + WEIGHED < first + n_nodes * WEIGHED and plan[at + WEIGHED + TILE] <= tile:
        at += WEIGHED
    return at


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
def weigh(rows, plan, bits, weights, nodes_at, n_nodes):
    """Weight of nodes, and of those of their rows that have each bit. Words of bits in y.

    It is added to ``plan`` behind the nodes, 1 + 64 x words entries for each. The threads of a
    block read a row each, and then each adds up its own bits of some of these rows. If it added all
    bits of its own row to sums that are shared, it would wait for all others, whose rows have the
    same bits.
    """
    word_of = cuda.shared.array(THREADS, np.int64)
    weight_of = cuda.shared.array(THREADS, np.int64)
    total = cuda.shared.array(1, np.int64)
    sums = cuda.local.array(OWN, np.int64)
    tid, tile, word = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockIdx.y
    group, bit = tid // GROUP, tid % GROUP
    for k in range(OWN):
        sums[k] = 0
    if tid == 0:
        total[0] = 0
    at = find_node(plan, nodes_at, n_nodes, tile)
    start = plan[at + START] + (tile - plan[at + TILE]) * PER_TILE
    stop = min(start + PER_TILE, plan[at + STOP])
    mine = np.int64(0)
    while start < stop:
        i = start + tid
        word_of[tid], weight_of[tid] = 0, 0
        if i < stop:
            # Without a buffer, it is all rows.
            row = i if plan[at + SIDE] < 0 else np.int64(rows[plan[at + SIDE], i])
            weight_of[tid] = weights[row] if weights.size > 0 else np.int64(1)
            word_of[tid] = bits[word, row] if word < bits.shape[0] else np.int64(0)
        mine += weight_of[tid]
        cuda.syncthreads()
        for r in range(group, THREADS, THREADS // GROUP):
            marked, weight = word_of[r], weight_of[r]
            for k in range(OWN):
                if (marked >> np.int64(bit + k * GROUP)) & np.int64(1) != 0:
                    sums[k] += weight
        cuda.syncthreads()
        start += THREADS
    cuda.syncthreads()
    cuda.atomic.add(total, 0, mine)
    cuda.syncthreads()
    to = nodes_at + n_nodes * WEIGHED
    to += (at - nodes_at) // WEIGHED * (1 + WORD_BITS * bits.shape[0])
    for k in range(OWN):
        if sums[k] != 0:
            cuda.atomic.add(plan, to + 1 + WORD_BITS * word + bit + k * GROUP, sums[k])
    if tid == 0 and word == 0:
        cuda.atomic.add(plan, to, total[0])
