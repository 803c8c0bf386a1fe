"""Every training loop that runs over rows or bins.

Kernels are plain functions over arrays; the caller owns the buffers. Indices are unsigned: a
signed index makes Numba emit wrap-around checks, which cost more than the work itself.

Sums of gradients and Hessians are integers (see ``quantise``), so they are exact in any order:

    one word   | gradient            | count |     all Hessians are equal, Hessian = count
    two words  | gradient                    |     Hessians differ
               | Hessian             | count |

A histogram of one block has 8 lanes of 256 bins: bin b of lane k is at ``(256 k + b) * words``.
"""

from __future__ import annotations

import numpy as np

from greedymiser._intrinsics import add_pair_to_lanes, prefetch
from greedymiser.compiling import njit
from greedymiser.trees import CATEGORY_WORDS

BINS = 256

# One unit of work at one level: a node whose histogram is counted from its rows ("small"), and
# perhaps its sibling ("large"), whose histogram is what is left of their parent's.
WORK_DTYPE = np.dtype(
    [
        ("small_start", np.int64),
        ("small_stop", np.int64),
        ("large_start", np.int64),
        ("large_stop", np.int64),
        # Where the histograms are kept; -1 for a scratch buffer.
        ("small_slot", np.int64),
        # Holds the parent's histogram before, and the large node's after.
        ("large_slot", np.int64),
        # Row of the split table; -1 where the node is not asked for.
        ("small_row", np.int64),
        ("large_row", np.int64),
        # Whether the small node is the root, whose rows are 0, 1, 2, ...
        ("is_root", np.bool_),
        # Whether the small node's histogram is already in its slot.
        ("is_counted", np.bool_),
    ]
)

# What the scan must know of a node: one record per row of the split table.
TOTALS_DTYPE = np.dtype(
    [
        ("gradient", np.int64),
        ("hessian", np.int64),
        ("count", np.int64),
        # Bounds of the node's value, from monotone ancestors.
        ("lower", np.float64),
        ("upper", np.float64),
    ]
)

# What the scan must know of a lane of a block.
LANE_DTYPE = np.dtype(
    [
        # Column of the split table; -1 for padding.
        ("feature", np.int64),
        ("n_bins", np.int64),
        ("has_missing", np.bool_),
        # Position among the categorical features; -1 for a numeric one.
        ("categorical", np.int64),
        ("monotone", np.int64),
    ]
)

# The constants of a tree.
SCALE_DTYPE = np.dtype(
    [
        # One step of the integer grids, in units of the loss.
        ("gradient", np.float64),
        ("hessian", np.float64),
        # Bits of the count field.
        ("shift", np.int64),
        ("l2", np.float64),
        ("min_hessian", np.float64),
        ("min_count", np.int64),
        # Whether any feature is monotone: then values are bounded, and gains with them.
        ("bounded", np.bool_),
    ]
)

# How many rows ahead of its use a row's codes are asked for.
AHEAD = 32

# Stands for infinity where 0 times it must be 0.
HUGE = 1e300

# A gain below this share of the score is rounding noise: a pure node must not be split.
NOISE = 2.0**-40

# Rows that a category borrows from the node's mean when categories are put in order.
CATEGORY_SMOOTHING = 10.0


@njit(cache=True, nogil=True)
def quantise_one(gradients, scale, shift, start, stop, words):
    """Round gradients onto the grid, with a count of 1 below; return the sum of the words."""
    total = np.int64(0)
    for i in range(np.uint64(start), np.uint64(stop)):
        word = (np.int64(np.rint(gradients[i] * scale)) << shift) + 1
        words[i, np.uint64(0)] = word
        total += word
    return total


@njit(cache=True, nogil=True)
def quantise_two(gradients, hessians, g_scale, h_scale, shift, start, stop, words):
    """Round gradients and Hessians onto their grids; return the sums of both words."""
    total = np.int64(0)
    total_h = np.int64(0)
    for i in range(np.uint64(start), np.uint64(stop)):
        g = np.int64(np.rint(gradients[i] * g_scale))
        h = (np.int64(np.rint(hessians[i] * h_scale)) << shift) + 1
        words[i, np.uint64(0)] = g
        words[i, np.uint64(1)] = h
        total += g
        total_h += h
    return total, total_h


@njit(cache=True, nogil=True)
def energy(words, scale, start, stop):
    """Sum of g^2/h over some rows; huge where a row has a gradient but no Hessian."""
    total = 0.0
    for i in range(np.uint64(start), np.uint64(stop)):
        total += energy_of_row(words, i, scale)
    return total


@njit(cache=True, nogil=True)
def energy_of_row(words, i, scale):
    """g^2/h of one row."""
    if words.shape[1] == 1:
        g = (words[i, np.uint64(0)] >> scale.shift) * scale.gradient
        return g * g / scale.hessian
    g = words[i, np.uint64(0)] * scale.gradient
    h = (words[i, np.uint64(1)] >> scale.shift) * scale.hessian
    if g == 0.0:
        return 0.0
    return g * g / h if h > 0.0 else HUGE


@njit(cache=True, nogil=True)
def count_all_one(codes, words, hist):
    """Add every row to the histograms of one block's eight lanes."""
    byte = np.uint64(255)
    for i in range(np.uint64(codes.size)):
        c, w = codes[i], words[i, np.uint64(0)]
        hist[c & byte] += w
        hist[np.uint64(256) + ((c >> np.uint64(8)) & byte)] += w
        hist[np.uint64(512) + ((c >> np.uint64(16)) & byte)] += w
        hist[np.uint64(768) + ((c >> np.uint64(24)) & byte)] += w
        hist[np.uint64(1024) + ((c >> np.uint64(32)) & byte)] += w
        hist[np.uint64(1280) + ((c >> np.uint64(40)) & byte)] += w
        hist[np.uint64(1536) + ((c >> np.uint64(48)) & byte)] += w
        hist[np.uint64(1792) + (c >> np.uint64(56))] += w


@njit(cache=True, nogil=True)
def count_some_one(codes, rows, words, start, stop, hist):
    """Add the rows of one node; ``words`` lie in the order of ``rows``."""
    byte = np.uint64(255)
    ahead = np.uint64(AHEAD)
    last = np.uint64(rows.size - 1)
    for i in range(np.uint64(start), np.uint64(stop)):
        # The rows of a node are scattered: without this, most of the time is waiting for memory.
        prefetch(codes, np.uint64(rows[min(i + ahead, last)]))
        c, w = codes[np.uint64(rows[i])], words[i, np.uint64(0)]
        hist[c & byte] += w
        hist[np.uint64(256) + ((c >> np.uint64(8)) & byte)] += w
        hist[np.uint64(512) + ((c >> np.uint64(16)) & byte)] += w
        hist[np.uint64(768) + ((c >> np.uint64(24)) & byte)] += w
        hist[np.uint64(1024) + ((c >> np.uint64(32)) & byte)] += w
        hist[np.uint64(1280) + ((c >> np.uint64(40)) & byte)] += w
        hist[np.uint64(1536) + ((c >> np.uint64(48)) & byte)] += w
        hist[np.uint64(1792) + (c >> np.uint64(56))] += w


@njit(cache=True, nogil=True)
def count_some_two(codes, rows, words, start, stop, hist):
    """Add the rows of one node where gradients and Hessians have a word each."""
    ahead = np.uint64(AHEAD)
    last = np.uint64(rows.size - 1)
    for i in range(np.uint64(start), np.uint64(stop)):
        prefetch(codes, np.uint64(rows[min(i + ahead, last)]))
        add_pair_to_lanes(hist, codes[np.uint64(rows[i])], words, i)


@njit(cache=True, nogil=True)
def count_rows(codes, rows, words, start, stop, is_root, hist):
    """Fill the histograms of one block for one node."""
    for i in range(np.uint64(hist.size)):
        hist[i] = 0
    if words.shape[1] == 2:
        count_some_two(codes, rows, words, start, stop, hist)
    elif is_root:
        count_all_one(codes, words, hist)
    else:
        count_some_one(codes, rows, words, start, stop, hist)


@njit(cache=True, nogil=True)
def find_splits(
    first_block,
    last_block,
    active,
    codes,
    rows,
    words,
    work,
    totals,
    lanes,
    scale,
    slots,
    valid,
    candidates,
    category_sets,
):
    """Count, subtract and scan some blocks for all nodes of a level.

    The blocks are the outer loop: a block's codes are fetched once and serve every node.
    ``slots[s, b]`` is the histogram of block b in slot s, ``valid[s, b]`` whether it was counted.
    """
    scratch = np.empty((2, slots.shape[2]), dtype=np.int64)
    for b in range(first_block, last_block):
        if not active[b]:
            for i in range(work.size):
                if work[i].small_slot >= 0:
                    valid[work[i].small_slot, b] = False
                if work[i].large_slot >= 0:
                    valid[work[i].large_slot, b] = False
            continue
        for i in range(work.size):
            w = work[i]
            small = slots[w.small_slot, b] if w.small_slot >= 0 else scratch[0]
            if not w.is_counted and (w.small_row >= 0 or w.large_slot >= 0):
                count_rows(codes[b], rows, words, w.small_start, w.small_stop, w.is_root, small)
            if w.small_slot >= 0:
                valid[w.small_slot, b] = True
            if w.small_row >= 0:
                scan_block(
                    small, lanes, b, totals[w.small_row], scale,
                    candidates[w.small_row], category_sets[w.small_row],
                )  # fmt: skip
            if w.large_row < 0:
                continue
            large = slots[w.large_slot, b] if w.large_slot >= 0 else scratch[1]
            if w.large_slot >= 0 and valid[w.large_slot, b]:
                for j in range(np.uint64(large.size)):
                    large[j] -= small[j]
            else:
                count_rows(codes[b], rows, words, w.large_start, w.large_stop, False, large)
                if w.large_slot >= 0:
                    valid[w.large_slot, b] = True
            scan_block(
                large, lanes, b, totals[w.large_row], scale,
                candidates[w.large_row], category_sets[w.large_row],
            )  # fmt: skip


@njit(cache=True, nogil=True)
def scan_block(hist, lanes, block, total, scale, candidates, category_sets):
    """Best split of one node on each feature of a block."""
    n_words = hist.size // (8 * BINS)
    for k in range(8):
        lane = lanes[block * 8 + k]
        if lane.feature < 0:
            continue
        part = hist[k * BINS * n_words : (k + 1) * BINS * n_words]
        cell = candidates[lane.feature : lane.feature + 1]
        if lane.categorical >= 0:
            scan_categories(part, lane, total, scale, cell, category_sets[lane.categorical])
        elif n_words == 1 and not lane.has_missing and not scale.bounded:
            scan_plain_bins(part, lane, total, scale, cell)
        else:
            scan_bins(part, lane, total, scale, cell)


@njit(cache=True, nogil=True)
def unpack(first, second, n_words, shift):
    """Gradient, Hessian and count of a sum of words, on their integer grids."""
    mask = (np.int64(1) << shift) - 1
    if n_words == 1:
        count = first & mask
        return first >> shift, count, count
    return first, second >> shift, second & mask


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def keeps_order(gl, hl, gr, hr, scale, total, monotone):
    """Whether the children's values rise (or fall) as the feature must."""
    left = -(gl * scale.gradient) / (hl * scale.hessian + scale.l2)
    right = -(gr * scale.gradient) / (hr * scale.hessian + scale.l2)
    left = min(max(left, total.lower), total.upper)
    right = min(max(right, total.lower), total.upper)
    return (right - left) * monotone >= 0.0


@njit(cache=True, nogil=True)
def admissible_score(g, h, c, total, scale, monotone):
    """Score of both children if (g, h, c) goes left; -inf if the split is not allowed."""
    gr, hr, cr = total.gradient - g, total.hessian - h, total.count - c
    if c < scale.min_count or cr < scale.min_count:
        return -np.inf
    least = scale.min_hessian
    if h <= 0 or hr <= 0 or h * scale.hessian < least or hr * scale.hessian < least:
        return -np.inf
    if monotone != 0 and not keeps_order(g, h, gr, hr, scale, total, monotone):
        return -np.inf
    lower, upper = total.lower, total.upper
    return score(g, h, scale, lower, upper) + score(gr, hr, scale, lower, upper)


@njit(cache=True, nogil=True)
def finish(best, total, scale):
    """Raw gain (eq. 5 before W and price) of the best pair of children; -inf if it is noise."""
    gain = 0.5 * (best - score(total.gradient, total.hessian, scale, total.lower, total.upper))
    return gain if gain > NOISE * abs(best) else -np.inf


@njit(cache=True, nogil=True)
def scan_bins(hist, lane, total, scale, cell):
    """Best cut of a numeric feature. Ties: the lowest cut, then missing values left."""
    n_words = hist.size // BINS
    last = np.uint64(n_words - 1)
    step = np.uint64(n_words)
    n_bins = np.uint64(lane.n_bins)
    gm, hm, cm = np.int64(0), np.int64(0), np.int64(0)
    if lane.has_missing:
        at = n_bins * step
        gm, hm, cm = unpack(hist[at], hist[at + last], n_words, scale.shift)

    best, best_bin, best_left, best_h = -np.inf, np.uint64(0), False, np.int64(0)
    first, second = np.int64(0), np.int64(0)
    # Behind the last bin there is still one cut: values left, missing right.
    n_cuts = n_bins if cm > 0 else n_bins - np.uint64(1)
    for b in range(n_cuts):
        at = b * step
        first += hist[at]
        second += hist[at + last]
        g, h, c = unpack(first, second, n_words, scale.shift)
        if cm > 0:
            found = admissible_score(g + gm, h + hm, c + cm, total, scale, lane.monotone)
            if found > best:
                best, best_bin, best_left = found, b, True
        if c < scale.min_count:
            continue
        if total.count - c < scale.min_count:
            break
        found = admissible_score(g, h, c, total, scale, lane.monotone)
        if found > best:
            best, best_bin, best_left, best_h = found, b, False, h
    if best > -np.inf:
        cell[0].gain = finish(best, total, scale)
        cell[0].bin = best_bin
        # What the node has never seen follows the larger child.
        cell[0].missing_left = best_left if cm > 0 else 2 * best_h >= total.hessian


@njit(cache=True, nogil=True)
def scan_plain_bins(hist, lane, total, scale, cell):
    """Do as ``scan_bins`` does, in the common case: one word, nothing missing, no bounds."""
    shift, g_step, h_step, l2 = scale.shift, scale.gradient, scale.hessian, scale.l2
    mask = (np.int64(1) << shift) - 1
    total_g, total_c = total.gradient, total.count
    # Hessian and count are the same number here, so both rules are a rule for the count.
    fewest = max(scale.min_count, np.int64(np.ceil(scale.min_hessian / h_step)), 1)
    best, best_bin, best_count = -1.0, np.uint64(0), np.int64(0)
    packed = np.int64(0)
    for b in range(np.uint64(lane.n_bins - 1)):
        packed += hist[b]
        c = packed & mask
        if c < fewest:
            continue
        if total_c - c < fewest:
            break
        g = (packed >> shift) * g_step
        gr = (total_g - (packed >> shift)) * g_step
        h = c * h_step + l2
        hr = (total_c - c) * h_step + l2
        # Divisions are slow. Cross-multiplied, and with room for rounding, the comparison rules
        # out most cuts without one.
        if g * g * hr + gr * gr * h >= best * (h * hr) * (1.0 - 1e-14):
            found = g * g / h + gr * gr / hr
            if found > best:
                best, best_bin, best_count = found, b, c
    if best >= 0.0:
        cell[0].gain = finish(best, total, scale)
        cell[0].bin = best_bin
        cell[0].missing_left = 2 * best_count >= total.count


@njit(cache=True, nogil=True)
def scan_categories(hist, lane, total, scale, cell, left_set):
    """Best cut of the categories in the order of their mean gradients; missing is one of them.

    Ordered by plain means, the best two sets would be neighbours (Fisher 1958). The means are
    shrunk here, so that rare categories do not lead the order by chance.
    """
    if total.hessian <= 0:
        return
    n_words = hist.size // BINS
    last = n_words - 1
    n_codes = lane.n_bins + (1 if lane.has_missing else 0)
    per_row = total.hessian * scale.hessian / total.count
    present = np.empty(n_codes, dtype=np.int64)
    key = np.empty(n_codes, dtype=np.float64)
    m = 0
    for code in range(n_codes):
        g, h, c = unpack(hist[code * n_words], hist[code * n_words + last], n_words, scale.shift)
        if c > 0:
            present[m] = code
            key[m] = g * scale.gradient / (h * scale.hessian + CATEGORY_SMOOTHING * per_row)
            m += 1
    order = np.argsort(key[:m], kind="mergesort")

    best, best_cut = -np.inf, 0
    first, second = np.int64(0), np.int64(0)
    for cut in range(m - 1):
        at = present[order[cut]] * n_words
        first += hist[at]
        second += hist[at + last]
        g, h, c = unpack(first, second, n_words, scale.shift)
        found = admissible_score(g, h, c, total, scale, 0)
        if found > best:
            best, best_cut = found, cut
    if best > -np.inf:
        cell[0].gain = finish(best, total, scale)
        cell[0].bin = -1
        by_cut = present[:m][order]
        cell[0].missing_left = fill_left_set(
            hist, by_cut, best_cut + 1, lane, total, scale, left_set
        )


@njit(cache=True, nogil=True)
def fill_left_set(hist, by_cut, n_left, lane, total, scale, left_set):
    """Write the codes that go left; return whether missing does.

    What the node has never seen follows the larger child.
    """
    n_words = hist.size // BINS
    left_h = np.int64(0)
    for code in by_cut[:n_left]:
        at = code * n_words
        left_h += unpack(hist[at], hist[at + n_words - 1], n_words, scale.shift)[1]
    goes_left = np.full(lane.n_bins + 1, 2 * left_h >= total.hessian)
    for i in range(by_cut.size):
        goes_left[by_cut[i]] = i < n_left
    for word in range(CATEGORY_WORDS):
        left_set[word] = 0
    for code in range(lane.n_bins):
        if goes_left[code]:
            left_set[code >> 6] |= np.uint64(1) << np.uint64(code & 63)
    return goes_left[lane.n_bins]


@njit(cache=True, nogil=True)
def mark_left(codes, lane, rows, start, stop, left_codes, goes_left):
    """Look up for each row of (a part of) a node whether its code goes left; return how many do."""
    move = np.uint64(8 * lane)
    count = np.int64(0)
    for i in range(np.uint64(start), np.uint64(stop)):
        left = left_codes[(codes[np.uint64(rows[i])] >> move) & np.uint64(255)]
        goes_left[i] = left
        count += left
    return count


@njit(cache=True, nogil=True)
def sum_left(goes_left, words, start, stop):
    """Sums of both words over the rows that go left.

    Products instead of branches: which way a row goes cannot be predicted.
    """
    last = np.uint64(words.shape[1] - 1)
    first, second = np.int64(0), np.int64(0)
    for i in range(np.uint64(start), np.uint64(stop)):
        one = np.int64(goes_left[i])
        first += one * words[i, np.uint64(0)]
        second += one * words[i, last]
    return first, second


@njit(cache=True, nogil=True)
def energy_of_sides(goes_left, words, scale, start, stop):
    """Sums of g^2/h over the rows that go left, and over those that go right."""
    left_energy, right_energy = 0.0, 0.0
    for i in range(np.uint64(start), np.uint64(stop)):
        part = energy_of_row(words, i, scale)
        left_energy += goes_left[i] * part
        right_energy += (1 - goes_left[i]) * part
    return left_energy, right_energy


@njit(cache=True, nogil=True)
def scatter(goes_left, values, start, stop, left_at, right_at, out):
    """Copy (a part of) a node's rows, or their words, to their side of the node, in order.

    values  |a b c d e f g|      goes_left   |1 0 0 1 1 0 1|
    out     |a d e g b c f|
             ^left_at ^right_at
    """
    left, right = np.uint64(left_at), np.uint64(right_at)
    one = np.uint64(1)
    for i in range(np.uint64(start), np.uint64(stop)):
        go = np.uint64(goes_left[i])
        out[left if goes_left[i] else right] = values[i]
        left += go
        right += one - go


@njit(cache=True, nogil=True)
def add_to_rows(raw, rows, value):
    """Add a leaf's value to the raw predictions of its rows."""
    for i in range(np.uint64(rows.size)):
        raw[np.uint64(rows[i])] += value
