"""The arithmetic of one level: who is split on what (eq. 5), and what the children are.

Loops over nodes and features, never over rows.
"""

from __future__ import annotations

import numpy as np

from greedymiser._core.compiling import inner, njit

# A node while its tree grows; becomes a record of trees.NODE_DTYPE.
DRAFT_DTYPE = np.dtype(
    [
        # What its rows sum up to, in units of the grid; the sum of g^2/h in units of the loss.
        ("gradient", np.int64),
        ("hessian", np.int64),
        ("count", np.int64),
        ("energy", np.float64),
        # Bounds of its value, from monotone ancestors.
        ("lower", np.float64),
        ("upper", np.float64),
        # Drop in mean loss that its split promises.
        ("gain", np.float64),
        # As in trees.NODE_DTYPE; -1 where there is none.
        ("feature", np.int32),
        ("left", np.int32),
        ("category_set", np.int32),
        ("bin", np.int32),
        ("missing_left", np.bool_),
        ("depth", np.uint16),
    ],
    align=True,
)

# The constants of a tree: its grid, and what values are made of.
SETTINGS_DTYPE = np.dtype(
    [
        ("gradient", np.float64),
        ("hessian", np.float64),
        ("l2", np.float64),
        ("learning_rate", np.float64),
        ("total_weight", np.float64),
    ],
    align=True,
)


@njit
def plant(draft, settings, steps, total_weight, root, fewest, nodes):
    """Begin a tree: its constants and its root. See ``write_open``."""
    settings[0].gradient, settings[0].hessian = steps
    settings[0].total_weight = total_weight
    gradient, hessian, count, energy = root
    write_node(draft[0], gradient, hessian, count, 0)
    draft[0].energy = energy
    return write_open(draft, 0, 1, fewest, nodes)


@inner
def write_node(node, gradient, hessian, count, depth):
    """Write a node that has no split and no bounds."""
    node.gradient, node.hessian, node.count = gradient, hessian, count
    node.lower, node.upper = -np.inf, np.inf
    node.gain = 0.0
    node.feature, node.left, node.category_set, node.bin = -1, -1, -1, -1
    node.missing_left = False
    node.depth = depth


@inner
def write_open(draft, first, last, fewest, out):
    """Tell an engine of those nodes first:last that have rows enough for two; return how many."""
    n = 0
    for i in range(first, last):
        node = draft[i]
        if node.count < fewest:
            continue
        out[n].node = i
        out[n].gradient, out[n].hessian, out[n].count = node.gradient, node.hessian, node.count
        out[n].lower, out[n].upper = node.lower, node.upper
        n += 1
    return n


@njit
def bound_gains(draft, open_nodes, settings, n_rows, bounds):
    """Upper bounds of the gain per unit of weight that splits of each node, or below it, can have.

    By Cauchy and Schwarz, half of the sum of g^2/h minus G^2/(H + l2), if values are not bounded.
    """
    for row in range(open_nodes.size):
        bounds[row] = bound_gain(draft[open_nodes[row].node], settings[0], n_rows)


@inner
def bound_gain(node, settings, n_rows):
    """See ``bound_gains``."""
    # Energies are sums of n floats: the slack covers what rounding may have taken from them.
    slack = 1e-9 + n_rows * 2.0**-52
    g = node.gradient * settings.gradient
    full = node.hessian * settings.hessian + settings.l2
    bound = node.energy * (1.0 + slack) - (g * g / full if full > 0 else 0.0)
    return 0.5 * max(0.0, bound) / settings.total_weight


@inner
def choose_columns(draft, open_nodes, settings, n_rows, prices, tradeoff, within, columns):
    """Leave in play what could pay at some node, where no purchase makes another one cheaper."""
    most = 0.0
    for row in range(open_nodes.size):
        most = max(most, bound_gain(draft[open_nodes[row].node], settings[0], n_rows))
    for f in range(columns.shape[1]):
        columns[0, f] = within[0, f] and most > tradeoff * prices[0, f]


@njit
def price(
    weights, begun, pairs, resource_costs, weighed, root_weight, lacking, dues, prices, owned
):
    """Price features at the nodes of a level, where rows pay.

    ``weights`` are the weights of nodes and of their rows that own each of the ``begun`` resources;
    nobody owns any other. ``lacking[row, r]`` becomes the weight of the rows without r, ``dues``
    what a split costs, ``prices`` the same by the costs that gains are weighed against, and
    ``owned`` whether nobody lacks anything. Sums are in the order of ``pairs`` (features and what
    they need), which is part of the definition of a model.
    """
    for row in range(weights.shape[0]):
        lacking[row] = weights[row, 0]
        for k in range(begun.size):
            lacking[row, begun[k]] -= weights[row, 1 + k]
        dues[row], prices[row], owned[row] = 0.0, 0.0, True
        for p in range(pairs.shape[1]):
            f, r = pairs[0, p], pairs[1, p]
            if lacking[row, r] > 0:
                share = lacking[row, r] / root_weight
                owned[row, f] = False
                dues[row, f] += resource_costs[r] * share
                prices[row, f] += weighed[r] * share


@njit
def split_level(
    draft, settings, open_nodes, candidates, category_sets, prices, owned, tradeoff, room, chosen,
    first_child, set_of_feature, monotone, n_sets, splits, sets, used, fewest, children,
):  # fmt: skip
    """Choose the splits of a level; see ``split_nodes``. For Python."""
    return split_nodes(
        draft, settings, open_nodes, candidates, category_sets, prices, owned, tradeoff, room,
        chosen, first_child, set_of_feature, monotone, n_sets, splits, sets, used, fewest, children,
    )  # fmt: skip


@inner
def split_nodes(
    draft, settings, open_nodes, candidates, category_sets, prices, owned, tradeoff, room, chosen,
    first_child, set_of_feature, monotone, n_sets, splits, sets, used, fewest, children,
):  # fmt: skip
    """Choose splits (``settle``) and, once nothing must be bought, write them (``write_children``).

    Returns the node and feature that must be paid for (-1 where nothing must), and the number of
    splits, of category sets and of children.
    """
    total_weight = settings[0].total_weight
    row, feature, n_chosen = settle(candidates, prices, owned, tradeoff, total_weight, room, chosen)
    n_children = np.int64(0)
    if row < 0:
        n_sets, n_children = write_children(
            draft, open_nodes, candidates, category_sets, chosen, first_child, set_of_feature,
            monotone, settings, n_sets, splits, sets, used, fewest, children,
        )  # fmt: skip
    return row, feature, n_chosen, n_sets, n_children


@inner
def settle(candidates, prices, owned, tradeoff, total_weight, room, chosen):
    """Choose splits best first, as long as they pay and nothing must be bought for them.

    eq. 5: net = gain / W - lambda * price, from raw gains, so prices may have changed since the
    last call. ``prices`` and ``owned`` have one row, or one per node. ``chosen[row]`` is the
    feature of a node, -1 while it is open; at most ``room`` nodes get one. Ties: lower node, then
    lower feature. Returns the node and feature that are next and must be paid for (-1 where nothing
    is), and how many nodes have a feature.
    """
    n_nodes, n_features = candidates.shape
    best = np.empty(n_nodes, dtype=np.int64)
    net = np.empty(n_nodes, dtype=np.float64)
    n_chosen = 0
    for row in range(n_nodes):
        best[row], net[row] = -1, 0.0
        n_chosen += chosen[row] >= 0
        if chosen[row] >= 0:
            continue
        price = prices[row % prices.shape[0]]
        for f in range(n_features):
            gain = candidates[row, f].gain
            if gain > 0.0:
                worth = gain / total_weight - tradeoff * price[f]
                if worth > net[row]:
                    best[row], net[row] = f, worth
    while n_chosen < room:
        top = -1
        for row in range(n_nodes):
            if best[row] >= 0 and (top < 0 or net[row] > net[top]):
                top = row
        if top < 0:
            break
        if not owned[top % owned.shape[0], best[top]]:
            return top, best[top], n_chosen
        chosen[top] = best[top]
        best[top] = -1
        n_chosen += 1
    return -1, -1, n_chosen


@inner
def write_children(
    draft, open_nodes, candidates, category_sets, chosen, first_child, set_of_feature, monotone,
    settings, n_sets, splits, sets, used, fewest, children,
):  # fmt: skip
    """Write the chosen splits into their nodes, and their children behind the last node.

    ``splits`` and ``sets`` tell the engine, ``used`` which features the model needs, ``children``
    (see ``write_open``) what comes next. Returns the number of category sets, and of children.
    """
    s = 0
    for row in range(open_nodes.size):
        f = chosen[row]
        if f < 0:
            continue
        at = open_nodes[row].node
        node, cell, split = draft[at], candidates[row, f], splits[s]
        left = first_child + 2 * s
        node.feature, node.left, node.bin = f, left, cell.bin
        node.gain = cell.gain / settings[0].total_weight
        used[f] = True
        node.missing_left = cell.missing_left
        if set_of_feature[f] >= 0:
            node.bin = -1
            node.category_set = n_sets
            n_sets += 1
            for word in range(sets.shape[1]):
                sets[s, word] = category_sets[row, set_of_feature[f], word]
        split.node, split.left, split.feature = at, left, f
        split.bin, split.count, split.missing_left = node.bin, cell.count, cell.missing_left
        small, large = draft[left], draft[left + 1]
        write_node(small, cell.gradient, cell.hessian, cell.count, node.depth + 1)
        write_node(
            large,
            node.gradient - cell.gradient,
            node.hessian - cell.hessian,
            node.count - cell.count,
            node.depth + 1,
        )
        for child in (small, large):
            child.lower, child.upper = node.lower, node.upper
        if monotone.size > 0 and monotone[f] != 0:
            # Everything below a monotone split stays on its side of the middle.
            middle = 0.5 * (value_of(small, settings[0]) + value_of(large, settings[0]))
            low, high = (small, large) if monotone[f] > 0 else (large, small)
            low.upper = middle
            high.lower = middle
        s += 1
    return n_sets, write_open(draft, first_child, first_child + 2 * s, fewest, children)


@inner
def value_of(node, settings):
    """Best value of a node, -G / (H + l2), inside its bounds."""
    stiffness = node.hessian * settings.hessian + settings.l2
    value = -(node.gradient * settings.gradient) / stiffness if stiffness > 0 else 0.0
    return min(max(value, node.lower), node.upper)


@njit
def finish(draft, settings, thresholds, nodes, leaves, bounds):
    """Turn a draft into the nodes of a tree (trees.NODE_DTYPE), and tell its leaves apart."""
    values, starts = thresholds
    n_leaves = 0
    for i in range(nodes.size):
        node, out = draft[i], nodes[i]
        out.value = settings[0].learning_rate * value_of(node, settings[0])
        out.threshold = 0.0
        out.gain = node.gain
        out.hessian = node.hessian * settings[0].hessian
        out.count = node.count
        out.feature, out.left, out.category_set = node.feature, node.left, node.category_set
        out.bin = node.bin
        out.missing_left = node.missing_left
        out.depth = node.depth
        if node.left >= 0 and node.category_set < 0:
            out.threshold = values[starts[node.feature] + node.bin]
        if node.left < 0:
            leaves[n_leaves] = i
            bounds[n_leaves, 0], bounds[n_leaves, 1] = node.lower, node.upper
            n_leaves += 1
