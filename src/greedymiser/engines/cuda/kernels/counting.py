"""Histograms on the device.

A block of threads counts some rows of one node on eight features, in shared memory, and adds what
it has found to the node's histogram. Shared memory is quick to add to in 32 bits and slow in 64, so
a number is added in two parts (see ``Coding``), and before any part can overflow, all are joined
and kept in 64 bits, in registers.

Each thread begins with another of the eight features, and the bins of the features take turns in
memory: at any moment at most four threads of a warp of 32 add to the same feature, and the others
are in other banks. So it does not cost much if most rows are in the same bin.

Histograms are kept as planes of 64-bit words: gradients, counts, and Hessians where they differ;
bin b of lane k is word 256 k + b of its plane.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from greedymiser.data.binning import LANES
from greedymiser.engines.cuda.device import SIMULATED, cuda, device, kernel
from greedymiser.engines.cuda.layout import COUNTED, PIECE, SIDE, SLOT, START, STOP
from greedymiser.engines.grid import Grid
from greedymiser.engines.scanning import BINS

THREADS = 2 if SIMULATED else 512
CELLS = LANES * BINS
# Bins of a block that each thread looks after.
OWN = CELLS // THREADS

INT32, UINT32, INT64 = np.int32, np.uint32, np.int64
LOW = np.int64(0xFFFFFFFF)


class Coding(NamedTuple):
    """How the integers of a row are cut into parts of 32 bits, whose sums fit.

    A word has a low and a high half. With ``run = 2^r`` rows to a sum, an integer x of b bits
    beside its sign, and a count:

        low half    | count: r + 1 bits | lowest a bits of x, and r for their sum |
        high half   | x >> a, with r bits for its sum                             |

    so a + 2 r + 1 <= 32 and b - a + r <= 30. Where Hessians differ, a row has a word for its
    Hessian and count, and one for its gradient alone.
    """

    # r, and a of the word with the count and of the one without it.
    run_bits: int
    low_bits: int
    alone_bits: int

    @classmethod
    def of(cls, grid: Grid, beside_bits: int, alone_bits: int) -> Coding:
        """The coding for numbers of so many bits; the latter are those without a count."""
        r = min(15, (61 - beside_bits) // 3)
        if grid.row_words == 2:
            r = min(r, (62 - alone_bits) // 2)
        return cls(r, 31 - 2 * r, min(31, 32 - r))


@kernel
def clear(slots, plan, first, n):
    """Set histograms ``plan[first : first + n]`` to 0."""
    size = slots.shape[1]
    i = cuda.grid(1)
    step = cuda.gridsize(1)
    while i < n * size:
        slots[plan[first + i // size], i % size] = 0
        i += step


def _make_count(n_words, name):
    """The kernel for rows of one word, or of two."""
    cells, own = n_words * CELLS, n_words * OWN

    def count(codes, rows, words, plan, slots, n_nodes, blocks_at, longest, run_bits, low_bits,
              alone_bits):  # fmt: skip
        """Count pieces of nodes (y) on blocks of eight features (x)."""
        low = cuda.shared.array(cells, UINT32)
        high = cuda.shared.array(cells, INT32)
        total = cuda.local.array(own, INT64)
        counted = cuda.local.array(OWN, INT64)
        tid = cuda.threadIdx.x
        block, piece = plan[blocks_at + cuda.blockIdx.x], cuda.blockIdx.y
        at = node_of_piece(plan, n_nodes, piece)
        side, slot = plan[at + SIDE], plan[at + SLOT]
        start = plan[at + START] + (piece - plan[at + PIECE]) * longest
        stop = min(start + longest, plan[at + STOP])
        begin(low, high, total, counted, tid, n_words)
        turn = np.uint64(8) * (np.uint64(tid) & np.uint64(7))
        back = (np.uint64(64) - turn) & np.uint64(63)
        buffer = np.uint64(max(side, 0))
        while start < stop:
            end = min(start + (1 << run_bits), stop)
            i = start + tid
            while i < end:
                row = np.uint64(i)
                if side >= 0:
                    row = np.uint64(rows[np.uint64(side), np.uint64(i)])
                code = codes[np.uint64(block), row]
                # Byte j becomes that of lane (tid + j) % 8.
                code = (code >> turn) | (code << back)
                word = words[buffer, np.uint64(i) * np.uint64(n_words)]
                other = word
                if n_words == 2:
                    other = words[buffer, np.uint64(i) * np.uint64(2) + np.uint64(1)]
                for j in range(8):
                    lane = (np.uint64(tid) + np.uint64(j)) & np.uint64(7)
                    cell = (code >> np.uint64(8 * j)) & np.uint64(255)
                    cell = (cell << np.uint64(3)) | lane
                    cuda.atomic.add(low, cell, UINT32(word & LOW))
                    cuda.atomic.add(high, cell, INT32(word >> 32))
                    if n_words == 2:
                        cuda.atomic.add(low, cell + np.uint64(CELLS), UINT32(other & LOW))
                        cuda.atomic.add(high, cell + np.uint64(CELLS), INT32(other >> 32))
                i += THREADS
            cuda.syncthreads()
            widen_sums(low, high, total, counted, tid, n_words, run_bits, low_bits, alone_bits)
            start = end
        add_to(slots, slot, block, total, counted, tid, n_words)

    count.__name__ = name
    return kernel(count)


@device
def node_of_piece(plan, n_nodes, piece):
    """Where the words of the node begin that a piece is of."""
    k = 0
    while k + 1 < n_nodes and plan[(k + 1) * COUNTED + PIECE] <= piece:
        k += 1
    return k * COUNTED


@device
def begin(low, high, total, counted, tid, n_words):
    """Set everything to 0."""
    for k in range(OWN):
        counted[k] = 0
        for w in range(n_words):
            total[w * OWN + k] = 0
            low[w * CELLS + k * THREADS + tid] = 0
            high[w * CELLS + k * THREADS + tid] = 0
    cuda.syncthreads()


@device
def widen_sums(low, high, total, counted, tid, n_words, run_bits, low_bits, alone_bits):
    """Take the sums of a run over into 64 bits, each thread those of its own cells."""
    for k in range(OWN):
        cell = np.uint64(k * THREADS + tid)
        mine = np.int64(low[cell])
        if mine != 0:  # there is a count in it
            number = mine & ((1 << (low_bits + run_bits)) - 1)
            counted[k] += mine >> (low_bits + run_bits)
            total[k] += number + (np.int64(high[cell]) << low_bits)
            low[cell] = 0
            high[cell] = 0
            if n_words == 2:
                cell += np.uint64(CELLS)
                total[OWN + k] += np.int64(low[cell]) + (np.int64(high[cell]) << alone_bits)
                low[cell] = 0
                high[cell] = 0
    cuda.syncthreads()


@device
def add_to(slots, slot, block, total, counted, tid, n_words):
    """Add what this thread has found to the node's histogram."""
    plane = slots.shape[1] // (n_words + 1)
    for k in range(OWN):
        if counted[k] != 0:
            cell = k * THREADS + tid
            bin = block * CELLS + (cell & 7) * BINS + (cell >> 3)
            # The word with the count has the Hessian, where there is one.
            if n_words == 2:
                cuda.atomic.add(slots, (slot, bin), total[OWN + k])
                cuda.atomic.add(slots, (slot, 2 * plane + bin), total[k])
            else:
                cuda.atomic.add(slots, (slot, bin), total[k])
            cuda.atomic.add(slots, (slot, plane + bin), counted[k])


count_one, count_two = _make_count(1, "count_one"), _make_count(2, "count_two")
