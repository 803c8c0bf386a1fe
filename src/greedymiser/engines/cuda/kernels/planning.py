"""What the device is told of a level, written on the host: loops over nodes, never over rows."""

from __future__ import annotations

import numpy as np

from greedymiser._core.compiling import inner, njit
from greedymiser._core.intrinsics import bits_of
from greedymiser.engines.cpu.kernels.counting import filled, plan_level, size
from greedymiser.engines.cuda.layout import (
    BIN,
    CHILD,
    COUNT,
    COUNTED,
    DIVIDED,
    F_LANE,
    F_N_BINS,
    GRADIENT,
    HESSIAN,
    LANE,
    LEAF_VALUE,
    LEFT,
    LEFT_FLOAT,
    LOWER,
    MINUS,
    MISSING_LEFT,
    N_BINS,
    N_LEFT,
    OPEN,
    PIECE,
    RIGHT_FLOAT,
    SET,
    SIDE,
    SLOT,
    START,
    STOP,
    TILE,
    TREE_NODE,
    UPPER,
    WEIGHED,
)
from greedymiser.model.trees import CATEGORY_WORDS


@njit
def plan_histograms(
    open_nodes, columns, lane_feature, nodes, free, n_free, valid, before, splits, active, pairs
):
    """Plan which histograms of a level are counted and which kept; see ``plan_level``."""
    return plan_level(
        open_nodes, columns, lane_feature, nodes, True, free, n_free, valid, before, splits,
        active, pairs,
    )  # fmt: skip


@njit
def plan_counting(open_nodes, pairs, nodes, is_whole, active, valid, most_blocks, shortest, plan):
    """Write which nodes are counted, on which blocks, and which are scanned.

    Nodes that are counted come first (COUNTED words each), then the histograms to clear, the
    blocks, and the open nodes (OPEN words each). ``is_whole`` says that the root holds all rows, in
    their order. Returns the number of nodes that are counted, of pieces, the length of a piece, and
    where blocks and open nodes begin.
    """
    # Not 0, which is of another type: what is called with it would be compiled for both.
    n_counted, n_rows = np.int64(0), np.int64(0)
    minus = filled(open_nodes.size, -1)
    slots = np.empty(open_nodes.size, dtype=np.int64)
    for p in range(pairs.size):
        pair = pairs[p]
        follows = pair.large_row >= 0 and covers(valid, pair.large_slot, active)
        if pair.small_row >= 0 or follows:
            small = nodes[pair.small]
            n_rows += write_counted(plan, n_counted, small, pair.small_slot, is_whole)
            n_counted += 1
        if pair.small_row >= 0:
            slots[pair.small_row] = pair.small_slot
        if pair.large_row >= 0:
            slots[pair.large_row] = pair.large_slot
            if follows:
                minus[pair.large_row] = pair.small_slot
            else:
                large = nodes[pair.large]
                n_rows += write_counted(plan, n_counted, large, pair.large_slot, is_whole)
                n_counted += 1
        for b in range(active.size):
            valid[b, pair.small_slot] = active[b] and (pair.small_row >= 0 or follows)
            if pair.large_slot >= 0:
                valid[b, pair.large_slot] = active[b]
    return write_level(open_nodes, slots, minus, active, n_counted, n_rows, most_blocks, shortest,
                       plan)  # fmt: skip


@njit
def plan_alone(open_nodes, nodes, is_whole, active, most_blocks, shortest, plan):
    """Do as ``plan_counting`` does where histograms are not kept: every node is counted."""
    n_rows = np.int64(0)
    minus = filled(open_nodes.size, -1)
    slots = np.arange(open_nodes.size)
    for row in range(open_nodes.size):
        n_rows += write_counted(plan, row, nodes[open_nodes[row].node], row, is_whole)
    return write_level(open_nodes, slots, minus, active, open_nodes.size, n_rows, most_blocks,
                       shortest, plan)  # fmt: skip


@inner
def covers(valid, slot, active):
    """Whether all active blocks of a slot were counted."""
    n_missing = 0
    for b in range(active.size):
        n_missing += active[b] and not valid[b, slot]
    return n_missing == 0


@inner
def write_counted(plan, k, node, slot, is_whole):
    """Write a node that is counted; return its rows."""
    at = k * COUNTED
    plan[at + START], plan[at + STOP] = node.start, node.stop
    # Rows that are all there, in their order, need not be looked up.
    plan[at + SIDE] = -1 if node.parent < 0 and is_whole else node.side
    plan[at + SLOT] = slot
    return node.stop - node.start


@inner
def write_level(open_nodes, slots, minus, active, n_counted, n_rows, most_blocks, shortest, plan):
    """Write pieces, histograms to clear, blocks and open nodes."""
    n_active = 0
    for b in range(active.size):
        n_active += active[b]
    longest = max(shortest, n_rows * n_active // most_blocks + 1)
    n_pieces = 0
    cleared_at = n_counted * COUNTED
    for k in range(n_counted):
        at = k * COUNTED
        plan[at + PIECE] = n_pieces
        n_pieces += max(1, -(-(plan[at + STOP] - plan[at + START]) // longest))
        plan[cleared_at + k] = plan[at + SLOT]
    blocks_at = cleared_at + n_counted
    n_active = 0
    for b in range(active.size):
        if active[b]:
            plan[blocks_at + n_active] = b
            n_active += 1
    open_at = blocks_at + n_active
    for row in range(open_nodes.size):
        at, node = open_at + row * OPEN, open_nodes[row]
        plan[at + SLOT], plan[at + MINUS] = slots[row], minus[row]
        plan[at + GRADIENT], plan[at + HESSIAN] = node.gradient, node.hessian
        plan[at + COUNT] = node.count
        plan[at + LOWER], plan[at + UPPER] = bits_of(node.lower), bits_of(node.upper)
    return n_counted, n_pieces, longest, blocks_at, open_at


@njit
def plan_dividing(splits, category_sets, nodes, features, tile, plan):
    """Write the nodes that are divided, DIVIDED words each; return the number of tiles.

    There is always one, as no grid is empty: where no row was drawn, it has no rows.
    """
    n_tiles = np.int64(0)
    for s in range(splits.size):
        parent = nodes[splits[s].node]
        n_tiles = write_divided(
            plan, s, parent, splits[s], category_sets[s], features, tile, n_tiles
        )
        middle = parent.start + splits[s].count
        for side in range(2):
            child = nodes[splits[s].left + side]
            child.start = middle if side else parent.start
            child.stop = parent.stop if side else middle
            child.side, child.parent, child.slot = 1 - parent.side, splits[s].node, -1
    return max(1, n_tiles)


@inner
def write_divided(plan, k, node, split, category_set, features, tile, n_tiles):
    """Write a node and its split; return the number of tiles so far."""
    at = k * DIVIDED
    write_rows(plan, at, node, n_tiles)
    plan[at + N_LEFT] = split.count
    plan[at + LANE] = features[split.feature, F_LANE]
    plan[at + N_BINS] = features[split.feature, F_N_BINS]
    plan[at + BIN], plan[at + MISSING_LEFT] = split.bin, split.missing_left
    for word in range(CATEGORY_WORDS):
        plan[at + SET + word] = np.int64(category_set[word])
    return n_tiles - (-size(node) // tile)


@inner
def write_rows(plan, at, node, n_tiles):
    """Write where a node's rows are; what is to be counted is 0."""
    plan[at + START], plan[at + STOP], plan[at + SIDE] = node.start, node.stop, node.side
    plan[at + TILE] = n_tiles
    for word in range(LEFT, DIVIDED):
        plan[at + word] = 0


@njit
def plan_weighing(nodes, tile, n_found, plan):
    """Write nodes whose rows are weighed, WEIGHED words each, and room for ``n_found`` words.

    Returns the number of tiles, at least one.
    """
    n_tiles = 0
    for k in range(nodes.size):
        node, at = nodes[k], k * WEIGHED
        plan[at + START], plan[at + STOP], plan[at + SIDE] = node.start, node.stop, node.side
        plan[at + TILE] = n_tiles
        n_tiles -= -size(node) // tile
    for word in range(nodes.size * WEIGHED, nodes.size * WEIGHED + n_found):
        plan[word] = 0
    return max(1, n_tiles)


@njit
def plan_leaves(leaves, values, splits, category_sets, nodes, features, tile, plan):
    """Write where leaves are, and their values.

    The last splits were only noted: their rows are with the parent. Returns the number of nodes
    that are written, and of tiles, at least one.
    """
    last = np.int64(0)
    for k in range(leaves.size):
        last = max(last, leaves[k])
    side_of = filled(last + 2, -1)
    n, n_tiles = np.int64(0), np.int64(0)
    for s in range(splits.size):
        node = nodes[splits[s].node]
        n_tiles = write_divided(plan, n, node, splits[s], category_sets[s], features, tile, n_tiles)
        side_of[splits[s].left] = n * DIVIDED + LEFT_FLOAT
        side_of[splits[s].left + 1] = n * DIVIDED + RIGHT_FLOAT
        n += 1
    for k in range(leaves.size):
        if side_of[leaves[k]] >= 0:
            plan[side_of[leaves[k]]] = bits_of(values[k])
            continue
        node, at = nodes[leaves[k]], n * DIVIDED
        write_rows(plan, at, node, n_tiles)
        plan[at + LANE] = -1
        plan[at + LEFT_FLOAT] = bits_of(values[k])
        n_tiles -= -size(node) // tile
        n += 1
    return n, max(1, n_tiles)


@njit
def plan_walk(nodes, category_sets, features, plan):
    """Write the nodes of a finished tree (trees.NODE_DTYPE), TREE_NODE words each."""
    for i in range(nodes.size):
        node, at = nodes[i], i * TREE_NODE
        plan[at + CHILD] = node.left
        plan[at + LEAF_VALUE] = bits_of(node.value)
        if node.left < 0:
            continue
        plan[at + LANE] = features[node.feature, F_LANE]
        plan[at + N_BINS] = features[node.feature, F_N_BINS]
        plan[at + BIN] = -1 if node.category_set >= 0 else node.bin
        plan[at + MISSING_LEFT] = node.missing_left
        if node.category_set >= 0:
            for word in range(CATEGORY_WORDS):
                plan[at + SET + word] = np.int64(category_sets[node.category_set, word])
