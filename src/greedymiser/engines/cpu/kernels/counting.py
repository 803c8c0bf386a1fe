"""Histograms: rows are counted, smaller siblings subtracted, and the sums scanned.

A histogram of one block has 8 lanes of 256 bins: bin b of lane k is at ``(256 k + b) * words``.
Indices are unsigned: a signed index makes Numba emit wrap-around checks, which cost more than the
work itself.
"""

from __future__ import annotations

import numpy as np

from greedymiser._core.compiling import inner, njit
from greedymiser._core.intrinsics import add_pair_to_eight, add_pair_to_four, prefetch
from greedymiser._core.threads import TEAM_SIZE, share
from greedymiser.data.binning import LANES
from greedymiser.engines.cpu.state import (
    AskedLevel,
    CountingPieces,
    CuttingRoom,
    Data,
    Kept,
    TreeState,
)
from greedymiser.engines.grid import PACKED_ONE, PACKED_TWO, WIDE_ONE
from greedymiser.engines.scanning import BINS, scan

# What an engine keeps of a node: where its rows are, and its histogram.
NODE_DTYPE = np.dtype(
    [
        ("start", np.int64),
        ("stop", np.int64),
        # Which of the two buffers the rows are in.
        ("side", np.int64),
        ("parent", np.int64),
        # The histogram that is kept for this node; -1 if there is none.
        ("slot", np.int64),
    ],
    align=True,
)

# One unit of work at one level: a node whose histogram is counted from its rows ("small"), and
# perhaps its sibling ("large"), whose histogram is what is left of their parent's.
PAIR_DTYPE = np.dtype(
    [
        ("small", np.int64),
        # -1 where the sibling is not asked for.
        ("large", np.int64),
        # Where the histograms are kept; -1 for a scratch buffer.
        ("small_slot", np.int64),
        # Holds the parent's histogram before, and the large node's after.
        ("large_slot", np.int64),
        # Row of the split table; -1 where the node is not asked for.
        ("small_row", np.int64),
        ("large_row", np.int64),
    ],
    align=True,
)

# A part of the rows of a pair's small node that is counted by itself.
PIECE_DTYPE = np.dtype(
    [
        ("pair", np.int64),
        ("block", np.int64),
        ("start", np.int64),
        ("stop", np.int64),
        # Where its histogram goes; -1 straight into the small node's slot.
        ("partial", np.int64),
    ],
    align=True,
)

# Words of all bins of a block for rows that have two of them.
RUN_WORDS = 2 * LANES * BINS

# Parts of the pairs of a level that threads take by themselves, block by block.
PARTS = 4

# How many rows ahead of its use a row's codes are asked for.
AHEAD = 32


# -- plans ----------------------------------------------------------------------------------------


@inner
def plan_level(
    open_nodes, columns, lane_feature, nodes, keep, free, n_free, valid, before, splits, active,
    pairs,
):  # fmt: skip
    """Plan what is counted at a level; fills ``active`` and ``pairs``.

    ``before`` and ``splits`` are the pairs of the level above and what became of them. Returns the
    number of active blocks, of pairs, of free slots, and of slots that were missing.
    """
    n_free = release_slots(before, splits, nodes, free, n_free)
    n_active = mark_active(columns, lane_feature, active)
    n_pairs, n_free, n_missing = plan_pairs(open_nodes, nodes, keep, free, n_free, valid, pairs)
    return n_active, n_pairs, n_free, n_missing


@inner
def mark_active(columns, lane_feature, active):
    """Mark the blocks in which any feature is in play; return how many there are."""
    n_active = 0
    for b in range(active.size):
        active[b] = False
        for lane in range(b * LANES, (b + 1) * LANES):
            f = lane_feature[lane]
            for row in range(columns.shape[0]):
                active[b] |= f >= 0 and columns[row, max(f, 0)]
        n_active += active[b]
    return n_active


@inner
def plan_pairs(open_nodes, nodes, keep, free, n_free, valid, pairs):
    """Pair siblings: the smaller is counted, the larger is the parent minus the smaller.

    ``free[:n_free]`` are slots that nobody uses; histograms get one if they are to be kept and if
    there is one. Returns the number of pairs, of free slots, and of slots that were missing.
    """
    row_of = filled(nodes.size + 1, -1)
    for row in range(open_nodes.size):
        row_of[open_nodes[row].node] = row
    n_pairs, n_missing = 0, 0
    for row in range(open_nodes.size):
        node = open_nodes[row].node
        # Children are numbered in pairs: 1 and 2, 3 and 4, ...
        left = node if node % 2 == 1 else node - 1
        if node > 0 and node != left and row_of[left] >= 0:
            continue  # came with its sibling
        small, large = node, np.int64(-1)
        if node > 0:
            small, large = left, left + 1
            if size(nodes[large]) < size(nodes[small]):
                small, large = large, small
            if row_of[large] < 0:
                large = -1
        pair = pairs[n_pairs]
        n_pairs += 1
        pair.small, pair.large = small, large
        pair.small_row = row_of[small]
        pair.large_row, pair.large_slot = -1, -1
        if large >= 0:
            parent = nodes[large].parent
            nodes[large].slot, nodes[parent].slot = nodes[parent].slot, -1
            pair.large_row = row_of[large]
        for child in (small, large):
            if child < 0 or not keep or nodes[child].slot >= 0:
                continue
            if n_free == 0:
                n_missing += 1
                continue
            n_free -= 1
            nodes[child].slot = free[n_free]
            for b in range(valid.shape[0]):
                valid[b, free[n_free]] = False
        pair.small_slot = nodes[small].slot
        if large >= 0:
            pair.large_slot = nodes[large].slot
    return n_pairs, n_free, n_missing


@inner
def release_slots(pairs, splits, nodes, free, n_free):
    """Take back the histograms of nodes that were not split; return the number of free slots."""
    if pairs.size == 0:
        return n_free
    is_split = filled(nodes.size, 0)
    for s in range(splits.size):
        is_split[splits[s].node] = 1
    for p in range(pairs.size):
        for node in (pairs[p].small, pairs[p].large):
            if node >= 0 and is_split[node] == 0 and nodes[node].slot >= 0:
                free[n_free] = nodes[node].slot
                nodes[node].slot = -1
                n_free += 1
    return n_free


@inner
def filled(n, value):
    """So many integers, all of them the same."""
    numbers = np.empty(n, dtype=np.int64)
    for i in range(n):
        numbers[i] = value
    return numbers


@inner
def size(node):
    """Rows of a node."""
    return node.stop - node.start


@inner
def counts_small(pair, valid, block):
    """Whether the small node's histogram is of use: asked for, or to be subtracted."""
    return pair.small_row >= 0 or (pair.large_slot >= 0 and valid[block, pair.large_slot])


@inner
def cut_rows(level, nodes, valid, room, n_rows):
    """Cut the rows to count, so many in each block, into pieces that keep all threads busy.

    There are at most as many histograms in ``room.partial`` as are needed.
    """
    n_blocks, n_active = level.active.size, np.int64(0)
    for b in range(n_blocks):
        n_active += level.active[b]
    cells, most = n_rows * n_active, level.pairs.size * n_blocks
    longest = max(room.least_rows, -(-cells // room.partial.shape[0]))
    pieces = np.empty(most + cells // longest, dtype=PIECE_DTYPE)
    firsts = np.empty(most + 1, dtype=np.int64)
    n, n_partial = 0, 0
    for p in range(level.pairs.size):
        start, stop = nodes[level.pairs[p].small].start, nodes[level.pairs[p].small].stop
        parts = max(1, -(-(stop - start) // longest))
        for b in range(n_blocks):
            firsts[p * n_blocks + b] = n
            if not level.active[b] or not counts_small(level.pairs[p], valid, b):
                continue
            for part in range(parts):
                piece = pieces[n]
                piece.pair, piece.block = p, b
                piece.start = start + (stop - start) * part // parts
                piece.stop = start + (stop - start) * (part + 1) // parts
                piece.partial = -1 if part == 0 else n_partial
                n += 1
                n_partial += part > 0
    firsts[most] = n
    return CountingPieces(pieces[:n], firsts, room.partial)


# -- a level --------------------------------------------------------------------------------------


@njit
def find_splits(
    teams, least, data, tree, kept, room, before, level, candidates, category_sets
):  # fmt: skip
    """Plan, count, subtract and scan; see ``find_level``. For Python."""
    # Plain tuples are quicker to hand over, and named ones easier to read.
    data, tree, kept, level = Data(*data), TreeState(*tree), Kept(*kept), AskedLevel(*level)
    pieces = None if room is None else CuttingRoom(*room)
    return find_level(
        teams, least, data, tree, kept, pieces, before, level, candidates, category_sets
    )


@inner
def find_level(teams, least, data, tree, kept, room, before, level, candidates, category_sets):
    """Best split of each node of a level on each feature in play.

    The blocks are the outer loop: a block's codes are fetched once and serve every node. See
    ``scanning.scan`` for ``category_sets``. ``teams`` are one thread and all threads, ``least`` is
    how much work all of them are for. With ``room``, rows are cut where there is too little else to
    share out. Returns the number of pairs and of free slots.
    """
    keep, free, n_free, pairs_before, splits = before
    n_active, n_pairs, n_free, n_missing = plan_level(
        level.open_nodes, level.columns, data.lane_feature, tree.nodes, keep, free, n_free,
        kept.valid, pairs_before, splits, level.active, level.pairs,
    )  # fmt: skip
    leave_out(level.columns, candidates)
    n_rows = np.int64(0)
    for row in range(level.open_nodes.size):
        n_rows += level.open_nodes[row].count
    cells = n_active * LANES * (n_rows + BINS * level.open_nodes.size)
    alone, together = teams
    team = together if cells >= least else alone
    planned = AskedLevel(level.open_nodes, level.pairs[:n_pairs], level.columns, level.active)
    can_cut = keep and n_missing == 0 and cells >= least
    if room is not None and can_cut and is_lopsided(planned, tree.nodes, n_active, team):
        cut = cut_rows(planned, tree.nodes, kept.valid, room, n_rows)
        count_and_find(team, data, tree, kept, planned, cut, candidates, category_sets)
        return n_pairs, n_free
    # Few threads have few blocks each: the last of them should not be what all wait for.
    parts = min(n_pairs, PARTS) if team[TEAM_SIZE] > 1 else np.int64(1)
    arguments = (data, tree, kept, planned, parts, candidates, category_sets)
    share(team, find_in_blocks, arguments, level.active.size * parts, 1)
    return n_pairs, n_free


@inner
def is_lopsided(level, nodes, n_active, team):
    """Whether the largest pair in one block is more than half of what a thread should do."""
    total, most = np.int64(0), np.int64(0)
    for p in range(level.pairs.size):
        # To subtract and to scan is as much as to count so many rows.
        work = size(nodes[level.pairs[p].small]) + 4 * BINS
        total += work
        most = max(most, work)
    return n_active * total < 2 * team[TEAM_SIZE] * most


@inner
def leave_out(columns, candidates):
    """Features that are not in play have no split."""
    for row in range(candidates.shape[0]):
        in_play = columns[row % columns.shape[0]]
        for f in range(candidates.shape[1]):
            if not in_play[f]:
                candidates[row, f].gain = -np.inf


@inner
def find_in_blocks(worker, first, last, data, tree, kept, level, parts, candidates, category_sets):
    """Do as ``find_splits`` does for items first:last: blocks, times parts of the pairs."""
    counted, run, scratch = kept.own[worker], kept.runs[worker], kept.scratch[worker]
    n_pairs = level.pairs.size
    for item in range(first, last):
        b, part = item // parts, item % parts
        for p in range(n_pairs * part // parts, n_pairs * (part + 1) // parts):
            pair = level.pairs[p]
            if not level.active[b]:
                forget_block(pair, kept.valid, b)
                continue
            small = kept.slots[pair.small_slot, b] if pair.small_slot >= 0 else counted[0]
            large = kept.slots[pair.large_slot, b] if pair.large_slot >= 0 else counted[1]
            if counts_small(pair, kept.valid, b):
                node = tree.nodes[pair.small]
                count_rows(data, b, tree, node, node.start, node.stop, run, small)
            subtract(data, tree, kept, pair, b, small, run, large)
            for lane in range(b * LANES, (b + 1) * LANES):
                hists = (small, large)
                scan_lane(lane, pair, hists, data, tree, level, candidates, category_sets, scratch)


@inner
def count_and_find(team, data, tree, kept, level, cut, candidates, category_sets):
    """Do as ``find_level`` does where there are too few blocks for all threads: rows are cut.

    All histograms have slots. Integer sums do not depend on how rows are cut.
    """
    n_blocks = level.active.size
    for b in range(n_blocks):
        if not level.active[b]:
            for p in range(level.pairs.size):
                forget_block(level.pairs[p], kept.valid, b)
    share(team, count_pieces, (data, tree, kept, level, cut), cut.pieces.size, 1)
    share(team, join_pieces, (data, tree, kept, level, cut), level.pairs.size * n_blocks, 1)
    n_items = level.pairs.size * n_blocks * LANES
    arguments = (data, tree, kept, level, candidates, category_sets)
    share(team, find_in_lanes, arguments, n_items, LANES // 2)


@inner
def count_pieces(worker, first, last, data, tree, kept, level, cut):
    """Count the rows of pieces first:last."""
    run = kept.runs[worker]
    for i in range(first, last):
        piece = cut.pieces[i]
        pair = level.pairs[piece.pair]
        node = tree.nodes[pair.small]
        hist = kept.slots[pair.small_slot, piece.block]
        if piece.partial >= 0:
            hist = cut.partial[piece.partial]
        count_rows(data, piece.block, tree, node, piece.start, piece.stop, run, hist)


@inner
def join_pieces(worker, first, last, data, tree, kept, level, cut):
    """Add up the pieces of each pair and block, and subtract from the parent."""
    run = kept.runs[worker]
    n_blocks = level.active.size
    for item in range(first, last):
        pair, b = level.pairs[item // n_blocks], item % n_blocks
        if not level.active[b]:
            continue
        small = kept.slots[pair.small_slot, b]
        for i in range(cut.firsts[item] + 1, cut.firsts[item + 1]):
            part = cut.partial[cut.pieces[i].partial]
            for lane in range(b * LANES, (b + 1) * LANES):
                first_word, end = used_words(data, lane, small)
                for j in range(first_word, end):
                    small[j] += part[j]
        large = kept.slots[max(pair.large_slot, 0), b]
        subtract(data, tree, kept, pair, b, small, run, large)


@inner
def find_in_lanes(worker, first, last, data, tree, kept, level, candidates, category_sets):
    """Scan lanes first:last of the pairs, whose histograms are all in their slots."""
    scratch = kept.scratch[worker]
    n_lanes = level.active.size * LANES
    for item in range(first, last):
        pair, lane = level.pairs[item // n_lanes], item % n_lanes
        b = lane // LANES
        if level.active[b]:
            hists = kept.slots[pair.small_slot, b], kept.slots[max(pair.large_slot, 0), b]
            scan_lane(lane, pair, hists, data, tree, level, candidates, category_sets, scratch)


@njit
def count_nodes(team, data, tree, nodes, blocks, found):
    """Count some nodes on some blocks, and nothing else."""
    data, tree = Data(*data), TreeState(*tree)
    share(team, count_some_nodes, (data, tree, nodes, blocks, found), nodes.size * blocks.size, 1)


@inner
def count_some_nodes(worker, first, last, data, tree, nodes, blocks, found):
    """Count items first:last of nodes times blocks."""
    run = np.empty(RUN_WORDS, dtype=np.int64)
    for item in range(first, last):
        i, j = item // blocks.size, item % blocks.size
        node, hist = tree.nodes[nodes[i]], found[i, j]
        hist[:] = 0  # others add up all of it
        count_rows(data, blocks[j], tree, node, node.start, node.stop, run, hist)


@inner
def forget_block(pair, valid, block):
    """Note that nobody counts a block for the nodes of a pair."""
    if pair.small_slot >= 0:
        valid[block, pair.small_slot] = False
    if pair.large_slot >= 0:
        valid[block, pair.large_slot] = False


@inner
def subtract(data, tree, kept, pair, block, small, run, large):
    """Make the large node's histogram, from its parent's where that was counted."""
    if pair.large_row >= 0:
        if pair.large_slot >= 0 and kept.valid[block, pair.large_slot]:
            for lane in range(block * LANES, (block + 1) * LANES):
                first, end = used_words(data, lane, large)
                for j in range(first, end):
                    large[j] -= small[j]
        else:
            node = tree.nodes[pair.large]
            count_rows(data, block, tree, node, node.start, node.stop, run, large)
            if pair.large_slot >= 0:
                kept.valid[block, pair.large_slot] = True
    if pair.small_slot >= 0:
        kept.valid[block, pair.small_slot] = True


@inner
def scan_lane(lane, pair, hists, data, tree, level, candidates, category_sets, scratch):
    """Best splits of a pair of nodes on the feature of one lane."""
    small, large = hists
    f = data.lane_feature[lane]
    if f < 0:
        return
    size = BINS * (small.size // (LANES * BINS))
    at = (lane % LANES) * size
    for is_large in range(2):
        row = pair.large_row if is_large else pair.small_row
        if row < 0 or not level.columns[row % level.columns.shape[0], f]:
            continue
        hist = large[at : at + size] if is_large else small[at : at + size]
        feature = data.features[f]
        node, cell = level.open_nodes[row], candidates[row, f : f + 1]
        if category_sets is None:
            scan(hist, feature, node, tree.scale[0], cell, None, scratch)
        else:
            left_set = category_sets[row, max(feature.categorical, 0)]
            scan(hist, feature, node, tree.scale[0], cell, left_set, scratch)


# -- rows -----------------------------------------------------------------------------------------


@inner
def used_words(data, lane, hist):
    """First and last word that the feature of a lane uses in the histogram of its block.

    Many features have few values: what lies behind their bins is neither cleared nor subtracted.
    """
    size, f = hist.size // LANES, data.lane_feature[lane]
    first = lane % LANES * size
    n_bins = 0 if f < 0 else data.features[f].n_bins + 1  # the last for missing values
    return np.uint64(first), np.uint64(first + n_bins * (size // BINS))


@inner
def count_rows(data, block, tree, node, start, stop, run, hist):
    """Fill the histograms of one block with (a part of) the rows of one node."""
    layout, longest = tree.scale[0].layout, tree.run
    codes, is_half = data.codes[block], data.is_half[block]
    rows, words = tree.rows[node.side], tree.words[node.side]
    # All rows, in their order: nobody needs to look them up.
    is_all = node.parent < 0 and tree.is_whole
    for lane in range(block * LANES, (block + 1) * LANES):
        first, end = used_words(data, lane, hist)
        for i in range(first, end):
            hist[i] = 0
    if layout == PACKED_ONE:
        count_one(codes, rows, words, start, stop, is_all, is_half, hist)
        return
    if layout == PACKED_TWO:
        count_two(codes, rows, words, start, stop, is_half, hist)
        return
    packed = run[: LANES * BINS] if layout == WIDE_ONE else run
    for begin in range(start, stop, longest):
        last = min(begin + longest, stop)
        for i in range(np.uint64(packed.size)):
            packed[i] = 0
        if layout == WIDE_ONE:
            count_one(codes, rows, words, begin, last, is_all, is_half, packed)
            widen_one(packed, tree.scale[0].shift, hist)
        else:
            count_two(codes, rows, words, begin, last, is_half, packed)
            widen_two(packed, tree.scale[0].shift, hist)


@inner
def count_one(codes, rows, words, start, stop, is_all, is_half, hist):
    """Add rows that have one word each; ``words`` lie in the order of ``rows``."""
    ahead, last = np.uint64(AHEAD), np.uint64(rows.size - 1)
    first, end, zero = np.uint64(start), np.uint64(stop), np.uint64(0)
    if is_all and is_half:
        for i in range(first, end):
            add_to_four(hist, codes[i], words[i, zero])
    elif is_all:
        for i in range(first, end):
            add_to_eight(hist, codes[i], words[i, zero])
    elif is_half:
        for i in range(first, end):
            # The rows of a node are scattered: without this, most of the time is waiting for
            # memory.
            prefetch(codes, np.uint64(rows[min(i + ahead, last)]))
            add_to_four(hist, codes[np.uint64(rows[i])], words[i, zero])
    else:
        for i in range(first, end):
            prefetch(codes, np.uint64(rows[min(i + ahead, last)]))
            add_to_eight(hist, codes[np.uint64(rows[i])], words[i, zero])


@inner(forceinline=True)
def add_to_four(hist, c, w):
    """Add a word to the bins of the first four lanes of a code."""
    byte = np.uint64(255)
    hist[c & byte] += w
    hist[np.uint64(256) + ((c >> np.uint64(8)) & byte)] += w
    hist[np.uint64(512) + ((c >> np.uint64(16)) & byte)] += w
    hist[np.uint64(768) + ((c >> np.uint64(24)) & byte)] += w


@inner(forceinline=True)
def add_to_eight(hist, c, w):
    """Add a word to the bins of all eight lanes of a code."""
    byte = np.uint64(255)
    add_to_four(hist, c, w)
    hist[np.uint64(1024) + ((c >> np.uint64(32)) & byte)] += w
    hist[np.uint64(1280) + ((c >> np.uint64(40)) & byte)] += w
    hist[np.uint64(1536) + ((c >> np.uint64(48)) & byte)] += w
    hist[np.uint64(1792) + (c >> np.uint64(56))] += w


@inner
def count_two(codes, rows, words, start, stop, is_half, hist):
    """Add rows that have two words each, one for gradients and one for Hessians."""
    ahead, last = np.uint64(AHEAD), np.uint64(rows.size - 1)
    if is_half:
        for i in range(np.uint64(start), np.uint64(stop)):
            prefetch(codes, np.uint64(rows[min(i + ahead, last)]))
            add_pair_to_four(hist, codes[np.uint64(rows[i])], words, i)
    else:
        for i in range(np.uint64(start), np.uint64(stop)):
            prefetch(codes, np.uint64(rows[min(i + ahead, last)]))
            add_pair_to_eight(hist, codes[np.uint64(rows[i])], words, i)


@inner
def widen_one(packed, shift, hist):
    """Add sums of words to gradients and counts."""
    mask = (np.int64(1) << shift) - np.int64(1)
    two, one = np.uint64(2), np.uint64(1)
    for i in range(np.uint64(packed.size)):
        hist[two * i] += packed[i] >> shift
        hist[two * i + one] += packed[i] & mask


@inner
def widen_two(packed, shift, hist):
    """Add sums of pairs of words to gradients, Hessians and counts."""
    mask = (np.int64(1) << shift) - np.int64(1)
    three, two, one = np.uint64(3), np.uint64(2), np.uint64(1)
    for i in range(np.uint64(packed.size // 2)):
        word = packed[two * i + one]
        hist[three * i] += packed[two * i]
        hist[three * i + one] += word >> shift
        hist[three * i + two] += word & mask
