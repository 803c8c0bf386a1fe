"""From an integer histogram to the best split: shared by all engines that have no twin of it.

The histogram of one feature at one node has 256 bins of one to three words (see ``grid``). What it
is worth to cut it somewhere is arithmetic on sums: products, quotients and sums of floats in a
fixed order, so that the bits are the same everywhere.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.compiling import inner, njit
from greedymiser._core.intrinsics import bits_of, from_bits
from greedymiser.data.binning import BinnedMatrix
from greedymiser.engines.grid import PACKED_ONE, PACKED_TWO, WIDE_ONE, Grid
from greedymiser.engines.interface import Columns, SplitRules, SplitTable, blank_table
from greedymiser.model.trees import CATEGORY_WORDS

BINS = 256

# What the scan must know of a feature.
FEATURE_DTYPE = np.dtype(
    [
        ("n_bins", np.int64),
        # Position among the categorical features; -1 for a numeric one.
        ("categorical", np.int64),
        ("monotone", np.int64),
        ("has_missing", np.bool_),
    ],
    align=True,
)

# The constants of a tree.
SCALE_DTYPE = np.dtype(
    [
        ("layout", np.int64),
        # Bits of the count in a packed word.
        ("shift", np.int64),
        # One step of the integer grids, in units of the loss.
        ("gradient", np.float64),
        ("hessian", np.float64),
        ("l2", np.float64),
        ("min_hessian", np.float64),
        ("min_count", np.int64),
        # Whether any feature is monotone: then values are bounded, and gains with them.
        ("bounded", np.bool_),
    ],
    align=True,
)

# A gain below this share of the score is rounding noise: a pure node must not be split.
NOISE = 2.0**-40

# Share of the node's weight (its Hessian) that every category borrows, at the node's mean, when
# categories are put in order. A share and no number of rows: repeated rows and rescaled weights
# leave the order as it is.
CATEGORY_SMOOTHING = 1.0 / 16.0

# Rows of the scratch that ``scan`` wants: up to three words of each bin, and scores.
SCRATCH = 4


def describe_features(binned: BinnedMatrix) -> NDArray[np.void]:
    """Records of FEATURE_DTYPE; nothing is monotone yet."""
    features = np.zeros(binned.n_features, dtype=FEATURE_DTYPE)
    features["n_bins"] = binned.n_bins
    features["has_missing"] = binned.has_missing
    positions = np.cumsum(binned.is_categorical) - 1
    features["categorical"] = np.where(binned.is_categorical, positions, -1)
    return features


def describe_scale(grid: Grid, rules: SplitRules) -> NDArray[np.void]:
    """One record of SCALE_DTYPE."""
    scale = np.zeros(1, dtype=SCALE_DTYPE)
    scale["layout"], scale["shift"] = grid.layout, grid.shift
    scale["gradient"], scale["hessian"] = grid.gradient, grid.hessian
    scale["l2"] = rules.l2_regularization
    scale["min_hessian"] = rules.min_hessian
    scale["min_count"] = rules.min_samples_leaf
    scale["bounded"] = rules.monotonic_cst is not None
    return scale


def scan_table(
    histograms: NDArray[np.int64],
    lane_feature: NDArray[np.int32],
    features: NDArray[np.void],
    nodes: NDArray[np.void],
    columns: Columns,
    scale: NDArray[np.void],
) -> SplitTable:
    """Best split of some nodes on the features of some blocks.

    Parameters
    ----------
    histograms : array of shape (n_nodes, n_blocks, lanes x bins x words)
    lane_feature : array of shape (n_blocks, lanes)
        The feature of each lane, -1 for none.
    features, nodes, scale
        Records of FEATURE_DTYPE, OPEN_DTYPE and SCALE_DTYPE.
    columns : array of shape (1 or n_nodes, n_features)
        Features in play.
    """
    n_categorical = int(np.count_nonzero(features["categorical"] >= 0))
    table = blank_table(len(nodes), len(features), n_categorical)
    scan_blocks(histograms, lane_feature, features, nodes, columns, scale, *table)
    return table


@njit
def scan_blocks(
    histograms, lane_feature, features, nodes, columns, scale, candidates, category_sets
):
    """Fill a split table."""
    scratch = np.empty((SCRATCH, BINS), dtype=np.int64)
    n_blocks, n_lanes = lane_feature.shape
    size = histograms.shape[2] // n_lanes
    for row in range(nodes.size):
        for block in range(n_blocks):
            for lane in range(n_lanes):
                f = lane_feature[block, lane]
                if f < 0 or not columns[row % columns.shape[0], f]:
                    continue
                hist = histograms[row, block, lane * size : (lane + 1) * size]
                left_set = category_sets[row, max(features[f].categorical, 0)]
                cell = candidates[row, f : f + 1]
                scan(hist, features[f], nodes[row], scale[0], cell, left_set, scratch)


@inner
def scan(hist, feature, node, scale, cell, left_set, scratch):
    """Best split of one node on one feature; ``cell`` has one entry, ``left_set`` four words.

    With None for ``left_set``, nothing is compiled but what most data needs: numeric features
    without bounds.
    """
    cell[0].gain = -np.inf
    if left_set is None:
        scan_bins(hist, feature, node, scale, cell, scratch)
    elif feature.categorical >= 0:
        scan_categories(hist, feature, node, scale, cell, left_set, scratch)
    elif scale.bounded:
        scan_bounded(hist, feature, node, scale, cell, scratch)
    else:
        scan_bins(hist, feature, node, scale, cell, scratch)


@inner(forceinline=True)
def unpack(words, b, layout, shift):
    """Gradient, Hessian and count of (a sum of) bins; ``words[i, b]`` is the i-th word of bin b."""
    zero, one, two = np.uint64(0), np.uint64(1), np.uint64(2)
    mask = (np.int64(1) << shift) - np.int64(1)
    if layout == PACKED_ONE:
        count = words[zero, b] & mask
        return words[zero, b] >> shift, count, count
    if layout == PACKED_TWO:
        return words[zero, b], words[one, b] >> shift, words[one, b] & mask
    if layout == WIDE_ONE:
        return words[zero, b], words[one, b], words[one, b]
    return words[zero, b], words[one, b], words[two, b]


@inner
def spread_words(hist, first, last, words):
    """Copy the words of bins first:last to where they belong, the first word of all bins first."""
    n_words = np.uint64(hist.size // BINS)
    for i in range(n_words):
        for b in range(np.uint64(first), np.uint64(last)):
            words[i, b] = hist[b * n_words + i]


@inner
def cumulate(hist, n, words):
    """Do as ``spread_words`` does with the sums of words up to each of the first n bins."""
    n_words, zero, one, two = np.uint64(hist.size // BINS), np.uint64(0), np.uint64(1), np.uint64(2)
    if n_words == two:  # what most losses have: neither sum waits for the other
        first, second = np.int64(0), np.int64(0)
        for b in range(n):
            first += hist[two * b]
            second += hist[two * b + one]
            words[zero, b], words[one, b] = first, second
        return
    for i in range(n_words):
        total = np.int64(0)
        for b in range(n):
            total += hist[b * n_words + i]
            words[i, b] = total


@inner
def scan_bins(hist, feature, node, scale, cell, scratch):
    """Best cut of a numeric feature. Ties: the lowest cut, then missing values left."""
    n_bins, layout, shift = np.uint64(feature.n_bins), scale.layout, scale.shift
    gm, hm, cm = np.int64(0), np.int64(0), np.int64(0)
    if feature.has_missing:
        spread_words(hist, feature.n_bins, feature.n_bins + 1, scratch)
        gm, hm, cm = unpack(scratch, n_bins, layout, shift)
    # Behind the last bin there is still one cut: values left, missing right.
    n_cuts = n_bins if cm > 0 else n_bins - np.uint64(1)
    cumulate(hist, n_cuts, scratch)
    best, at = best_cut(scratch, n_cuts, np.int64(0), np.int64(0), np.int64(0), node, scale)
    missing_left = False
    if cm > 0:
        other, other_at = best_cut(scratch, n_cuts, gm, hm, cm, node, scale)
        if other > best or (other == best and other_at <= at):
            best, at, missing_left = other, other_at, True
    if best < 0:
        return
    g, h, c = unpack(scratch, at, layout, shift)
    if missing_left:
        g, h, c = g + gm, h + hm, c + cm
    take(cell, at, g, h, c, missing_left)
    cell[0].gain = gain_of_best(from_bits(best), node, scale)
    if cm == 0:  # what the node has never seen follows the larger child
        cell[0].missing_left = 2 * h >= node.hessian


@inner
def best_cut(words, n_cuts, gm, hm, cm, node, scale):
    """The best score of all cuts, as bits, and its place; (gm, hm, cm) goes left in any case.

    The loops have no branches: LLVM makes vectors of them.
    """
    scores, shift, zero, one = words[SCRATCH - 1], scale.shift, np.uint64(0), np.uint64(1)
    # Counts rise from cut to cut, so those with enough rows on both sides are neighbours.
    first = first_with(words, n_cuts, scale, scale.min_count - cm)
    last = first_with(words, n_cuts, scale, node.count - scale.min_count + 1 - cm)
    whole = node.gradient, node.hessian
    grid = scale.gradient, scale.hessian, scale.l2, scale.min_hessian
    if scale.layout == PACKED_ONE:
        mask = (np.int64(1) << shift) - np.int64(1)
        for b in range(first, last):
            word = words[zero, b]
            scores[b] = score_cut((word >> shift) + gm, (word & mask) + hm, whole, grid)
    else:
        behind = shift if scale.layout == PACKED_TWO else np.int64(0)
        for b in range(first, last):
            scores[b] = score_cut(words[zero, b] + gm, (words[one, b] >> behind) + hm, whole, grid)
    return largest(scores, first, last)


@inner
def first_with(words, n_cuts, scale, count):
    """The first cut that has so many rows on its left; n_cuts if none has."""
    low, high = np.uint64(0), n_cuts
    while low < high:
        middle = (low + high) >> np.uint64(1)
        if unpack(words, middle, scale.layout, scale.shift)[2] < count:
            low = middle + np.uint64(1)
        else:
            high = middle
    return low


@inner(forceinline=True)
def score_cut(g, h, whole, grid):
    """G^2/(H + l2) of both children of a cut, as bits; -1 where one has too little H.

    Bits of floats that are not negative are ordered as the floats are, and a vector of integers
    has a largest one without further ado.
    """
    (total_g, total_h), (g_step, h_step, l2, least) = whole, grid
    gl, gr = float(g) * g_step, float(total_g - g) * g_step
    left, right = float(h) * h_step, float(total_h - h) * h_step
    score = gl * gl / (left + l2) + gr * gr / (right + l2)
    allowed = (h > 0) & (total_h - h > 0) & (left >= least) & (right >= least)
    return bits_of(score) if allowed else np.int64(-1)


@inner
def largest(scores, first, last):
    """The largest of some integers, and where it stands first; -1 if there are none."""
    best, at = np.int64(-1), last
    for b in range(first, last):
        best = max(best, scores[b])
    for b in range(first, last):
        at = min(at, b if scores[b] == best else last)
    return best, at


@inner
def score(gradient, hessian, scale, lower, upper):
    """Twice the drop of the quadratic model if rows with these sums get their best value.

    G^2/(H + l2), or what is left of it where the value -G/(H + l2) is out of bounds.
    """
    g = gradient * scale.gradient
    h = hessian * scale.hessian + scale.l2
    if not scale.bounded:
        return g * g / h
    value = min(max(-g / h, lower), upper)
    return -(2.0 * g * value + h * value * value)


@inner
def gain_of_best(best, node, scale):
    """Raw gain (eq. 5 before W and price) of the best pair of children; -inf if it is noise."""
    gain = 0.5 * (best - score(node.gradient, node.hessian, scale, node.lower, node.upper))
    return gain if gain > NOISE * abs(best) else -np.inf


# -- where values are bounded ---------------------------------------------------------------------


@inner
def scan_bounded(hist, feature, node, scale, cell, scratch):
    """Do as ``scan_bins`` does where monotone features bound the values of nodes."""
    n_bins = np.uint64(feature.n_bins)
    spread_words(hist, 0, feature.n_bins + 1, scratch)
    gm, hm, cm = np.int64(0), np.int64(0), np.int64(0)
    if feature.has_missing:
        gm, hm, cm = unpack(scratch, n_bins, scale.layout, scale.shift)
    best = -np.inf
    g, h, c = np.int64(0), np.int64(0), np.int64(0)
    for b in range(n_bins if cm > 0 else n_bins - np.uint64(1)):
        more_g, more_h, more_c = unpack(scratch, b, scale.layout, scale.shift)
        g, h, c = g + more_g, h + more_h, c + more_c
        if cm > 0:
            found = admissible_score(g + gm, h + hm, c + cm, node, scale, feature.monotone)
            if found > best:
                best = found
                take(cell, b, g + gm, h + hm, c + cm, True)
        found = admissible_score(g, h, c, node, scale, feature.monotone)
        if found > best:
            best = found
            take(cell, b, g, h, c, False)
    if best > -np.inf:
        cell[0].gain = gain_of_best(best, node, scale)
        if cm == 0:  # what the node has never seen follows the larger child
            cell[0].missing_left = 2 * cell[0].hessian >= node.hessian


@inner
def take(cell, b, g, h, c, missing_left):
    """Note a split."""
    cell[0].bin = b
    cell[0].gradient, cell[0].hessian, cell[0].count = g, h, c
    cell[0].missing_left = missing_left


@inner
def admissible_score(g, h, c, node, scale, monotone):
    """Score of both children if (g, h, c) goes left; -inf if the split is not allowed."""
    gr, hr, cr = node.gradient - g, node.hessian - h, node.count - c
    if c < scale.min_count or cr < scale.min_count:
        return -np.inf
    least = scale.min_hessian
    if h <= 0 or hr <= 0 or h * scale.hessian < least or hr * scale.hessian < least:
        return -np.inf
    if monotone != 0 and not keeps_order(g, h, gr, hr, scale, node, monotone):
        return -np.inf
    lower, upper = node.lower, node.upper
    return score(g, h, scale, lower, upper) + score(gr, hr, scale, lower, upper)


@inner
def keeps_order(gl, hl, gr, hr, scale, node, monotone):
    """Whether the children's values rise (or fall) as the feature must."""
    left = -(gl * scale.gradient) / (hl * scale.hessian + scale.l2)
    right = -(gr * scale.gradient) / (hr * scale.hessian + scale.l2)
    left = min(max(left, node.lower), node.upper)
    right = min(max(right, node.lower), node.upper)
    return (right - left) * monotone >= 0.0


# -- categories -----------------------------------------------------------------------------------


@inner
def scan_categories(hist, feature, node, scale, cell, left_set, scratch):
    """Best cut of the categories in the order of their mean gradients; missing is one of them.

    Ordered by plain means, the best two sets would be neighbours (Fisher 1958). The means are
    shrunk here, so that rare categories do not lead the order by chance.
    """
    if node.hessian <= 0:
        return
    n_codes = feature.n_bins + (1 if feature.has_missing else 0)
    spread_words(hist, 0, n_codes, scratch)
    layout, shift = scale.layout, scale.shift
    borrowed = CATEGORY_SMOOTHING * (node.hessian * scale.hessian)
    present = np.empty(n_codes, dtype=np.int64)
    key = np.empty(n_codes, dtype=np.float64)
    m = 0
    for code in range(n_codes):
        g, h, c = unpack(scratch, np.uint64(code), layout, shift)
        if c > 0:
            present[m] = code
            key[m] = g * scale.gradient / (h * scale.hessian + borrowed)
            m += 1
    order = order_of(key[:m])

    best, best_cut = -np.inf, 0
    g, h, c = np.int64(0), np.int64(0), np.int64(0)
    for cut in range(m - 1):
        code = np.uint64(present[order[cut]])
        more_g, more_h, more_c = unpack(scratch, code, layout, shift)
        g, h, c = g + more_g, h + more_h, c + more_c
        found = admissible_score(g, h, c, node, scale, 0)
        if found > best:
            best, best_cut = found, cut
            take(cell, -1, g, h, c, False)
    if best > -np.inf:
        cell[0].gain = gain_of_best(best, node, scale)
        by_cut = present[:m][order]
        # What the node has never seen follows the larger child.
        otherwise = 2 * cell[0].hessian >= node.hessian
        cell[0].missing_left = fill_left_set(
            by_cut, best_cut + 1, feature.n_bins, otherwise, left_set
        )


@inner
def order_of(key):
    """Positions of some keys in ascending order, equal ones as they come: a few hundred at most."""
    order = np.empty(key.size, dtype=np.int64)
    for i in range(key.size):
        at = i
        while at > 0 and key[order[at - 1]] > key[i]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = i
    return order


@inner
def fill_left_set(by_cut, n_left, n_bins, otherwise, left_set):
    """Write the codes that go left; return whether missing does."""
    goes_left = np.full(n_bins + 1, otherwise)
    for i in range(by_cut.size):
        goes_left[by_cut[i]] = i < n_left
    for word in range(CATEGORY_WORDS):
        left_set[word] = 0
    for code in range(n_bins):
        if goes_left[code]:
            left_set[code >> 6] |= np.uint64(1) << np.uint64(code & 63)
    return goes_left[n_bins]
