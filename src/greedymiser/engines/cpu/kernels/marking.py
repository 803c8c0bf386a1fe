"""Marks of rows: bits are set, and their weights counted."""

from __future__ import annotations

import numpy as np

from greedymiser._core.compiling import inner, njit
from greedymiser._core.intrinsics import first_bit, prefetch
from greedymiser._core.threads import share
from greedymiser.engines.cpu.kernels.counting import AHEAD
from greedymiser.engines.cpu.kernels.rows import CHUNK, plan_cuts
from greedymiser.engines.cpu.kernels.walking import BLOCK, find_leaves, questions_of
from greedymiser.engines.cpu.state import Data, TreeState

# Groups of eight rows whose bits five planes can count.
GROUPS = 31


@njit
def mark(team, tree, splits, masks, longest, bits):
    """Set the bits of each split's mask for all rows of its node."""
    tree = TreeState(*tree)
    cuts = plan_cuts(splits, tree.nodes, longest)
    share(team, mark_pieces, (tree, splits, masks, cuts, bits), cuts.size, 1)


@inner
def mark_pieces(worker, first, last, tree, splits, masks, cuts, bits):
    """Mark the rows of pieces first:last."""
    for c in range(first, last):
        cut = cuts[c]
        rows = tree.rows[tree.nodes[splits[cut.split].node].side]
        ahead, end = np.uint64(AHEAD), np.uint64(rows.size - 1)
        for w in range(bits.shape[0]):
            mask, words = masks[cut.split, w], bits[w]
            if mask == np.uint64(0):
                continue
            for i in range(np.uint64(cut.start), np.uint64(cut.stop)):
                prefetch(words, np.uint64(rows[min(i + ahead, end)]))
                words[np.uint64(rows[i])] |= mask


@njit
def mark_walking(team, data, nodes, category_sets, masks, bits):
    """Let all rows walk down a finished tree; ``masks`` are the bits that each node leaves."""
    data = Data(*data)
    # What a row has that has come to a node.
    paths = np.zeros_like(masks)
    for at in range(nodes.size):
        if nodes[at].left >= 0:
            for w in range(masks.shape[1]):
                paths[nodes[at].left, w] = paths[at, w] | masks[at, w]
                paths[nodes[at].left + 1, w] = paths[at, w] | masks[at, w]
    questions, leaves = questions_of(data, nodes)
    tree = (data, nodes, category_sets, questions, leaves)
    share(team, mark_found, (tree, paths, bits), -(-bits.shape[1] // CHUNK), 1)


@inner
def mark_found(worker, first, last, tree, paths, bits):
    """Mark chunks first:last of the rows."""
    possible, found = np.empty(BLOCK, dtype=np.uint64), np.empty(BLOCK, dtype=np.int64)
    stop = min(last * CHUNK, bits.shape[1])
    for start in range(first * CHUNK, stop, BLOCK):
        n = min(BLOCK, stop - start)
        find_leaves(*tree, start, n, possible, found)
        for w in range(np.uint64(bits.shape[0])):
            for i in range(np.uint64(n)):
                bits[w, np.uint64(start) + i] |= paths[np.uint64(found[i]), w]


@njit
def weigh(team, tree, asked, weights, longest, bits, found):
    """Weight of some nodes (``found[:, 0]``), and of those of their rows that have each bit.

    ``asked`` are records like those of splits, of which only the node matters.
    """
    tree = TreeState(*tree)
    cuts = plan_cuts(asked, tree.nodes, longest)
    parts = np.zeros((cuts.size, found.shape[1]), dtype=np.int64)
    share(team, weigh_cuts, (tree, asked, cuts, weights, bits, parts), cuts.size, 1)
    found[:] = 0
    for c in range(cuts.size):
        for k in range(found.shape[1]):
            found[cuts[c].split, k] += parts[c, k]


@inner
def weigh_cuts(worker, first, last, tree, asked, cuts, weights, bits, parts):
    """Weigh the rows of pieces first:last."""
    for c in range(first, last):
        rows = tree.rows[tree.nodes[asked[cuts[c].split].node].side]
        weigh_rows(rows, cuts[c].start, cuts[c].stop, weights, bits, parts[c])


@njit
def weigh_all(team, rows, weights, bits, found):
    """Weight of all rows (``found[0]``), and of those that have each bit; ``rows`` is empty."""
    n_chunks = -(-bits.shape[1] // CHUNK)
    parts = np.zeros((n_chunks, found.size), dtype=np.int64)
    share(team, weigh_chunks, (rows, weights, bits, parts), n_chunks, 1)
    found[:] = 0
    for c in range(n_chunks):
        for k in range(found.size):
            found[k] += parts[c, k]


@inner
def weigh_chunks(worker, first, last, rows, weights, bits, parts):
    """Weigh chunks first:last of all rows."""
    for c in range(first, last):
        stop = min((c + 1) * CHUNK, bits.shape[1])
        weigh_rows(rows, c * CHUNK, stop, weights, bits, parts[c])


@inner
def weigh_rows(rows, start, stop, weights, bits, found):
    """Add up rows start:stop of a list, or of all where the list is empty."""
    start, stop = np.uint64(start), np.uint64(stop)
    if weights.size == 0:
        found[0] += np.int64(stop - start)
        for w in range(bits.shape[0]):
            count_bits(rows, start, stop, bits[w], found[1 + 64 * w : 65 + 64 * w])
        return
    for i in range(start, stop):
        row = np.uint64(rows[i]) if rows.size > 0 else i
        found[0] += weights[row]
        for w in range(bits.shape[0]):
            left = bits[w, row]
            while left != np.uint64(0):
                found[1 + 64 * w + np.int64(first_bit(left))] += weights[row]
                left &= left - np.uint64(1)


@inner
def count_bits(rows, start, stop, words, found):
    """Add to ``found[b]`` how many of rows start:stop have bit b.

    64 counters at a time: bit b of ``ones``, ``twos``, ``fours`` and the planes is a digit of
    counter b, and a carry-save adder takes three words to two (Harley and Seal).
    """
    zero = np.uint64(0)
    ones, twos, fours = zero, zero, zero
    p0, p1, p2, p3, p4 = zero, zero, zero, zero, zero
    groups, i = 0, start
    while i + np.uint64(8) <= stop:
        a, ones = add_bits(ones, word_of(words, rows, i, 0), word_of(words, rows, i, 1))
        b, ones = add_bits(ones, word_of(words, rows, i, 2), word_of(words, rows, i, 3))
        c, twos = add_bits(twos, a, b)
        a, ones = add_bits(ones, word_of(words, rows, i, 4), word_of(words, rows, i, 5))
        b, ones = add_bits(ones, word_of(words, rows, i, 6), word_of(words, rows, i, 7))
        d, twos = add_bits(twos, a, b)
        e, fours = add_bits(fours, c, d)
        p0, e = p0 ^ e, p0 & e
        p1, e = p1 ^ e, p1 & e
        p2, e = p2 ^ e, p2 & e
        p3, e = p3 ^ e, p3 & e
        p4 ^= e
        i += np.uint64(8)
        groups += 1
        if groups == GROUPS:
            add_planes((p0, p1, p2, p3, p4), 8, found)
            p0, p1, p2, p3, p4 = zero, zero, zero, zero, zero
            groups = 0
    add_planes((p0, p1, p2, p3, p4), 8, found)
    add_planes((ones, twos, fours), 1, found)
    while i < stop:
        add_planes((word_of(words, rows, i, 0),), 1, found)
        i += np.uint64(1)


@inner
def word_of(words, rows, i, k):
    """Bits of row i + k of a list, or of all rows where the list is empty."""
    at = i + np.uint64(k)
    return words[np.uint64(rows[at]) if rows.size > 0 else at]


@inner
def add_bits(a, b, c):
    """64 sums of three bits each: their high and their low digits."""
    either = a ^ b
    return (a & b) | (either & c), either ^ c


@inner
def add_planes(planes, unit, found):
    """Add counters whose lowest digits mean ``unit``."""
    for k in range(len(planes)):
        plane = planes[k]
        while plane != np.uint64(0):
            found[np.int64(first_bit(plane))] += unit << k
            plane &= plane - np.uint64(1)
