"""The best splits of a level, on the device: one block of threads for each node and feature.

A twin of ``engines.scanning``: every thread has some neighbouring bins; sums up to each of them are
made from the sums of all threads before, and every thread finds the best of its own cuts. Of equal
cuts the lowest is taken, as if they had been looked at one after the other.
"""

from __future__ import annotations

import math

import numpy as np

from greedymiser.engines.cuda.device import SIMULATED, cuda, device, from_bits, kernel, mul
from greedymiser.engines.cuda.kernels.formulas import (
    OpenNode,
    TreeScale,
    admissible_score,
    gain_of_best,
)
from greedymiser.engines.cuda.layout import (
    COUNT,
    F_CATEGORICAL,
    F_HAS_MISSING,
    F_LANE,
    F_MONOTONE,
    F_N_BINS,
    GRADIENT,
    HESSIAN,
    IN_PLAY,
    LOWER,
    MINUS,
    OPEN,
    SLOT,
    UPPER,
)
from greedymiser.engines.scanning import BINS, CATEGORY_SMOOTHING
from greedymiser.model.trees import CATEGORY_WORDS

THREADS = 2 if SIMULATED else 32
OWN = BINS // THREADS

NOTHING_FOUND = -math.inf


@kernel
def scan(slots, plan, features, columns, constants, found, found_floats, sets, n_planes, nodes_at,
         n_masks):  # fmt: skip
    """Fill a split table: features in x, nodes in y."""
    tid = cuda.threadIdx.x
    f, row = cuda.blockIdx.x, cuda.blockIdx.y
    state = columns[row % n_masks, f]
    if tid == 0:
        found_floats[row, f, 0] = NOTHING_FOUND
        if features[f, F_CATEGORICAL] >= 0:
            for word in range(CATEGORY_WORDS):
                sets[row, features[f, F_CATEGORICAL], word] = np.uint64(0)
    if state == 0:
        return
    at = nodes_at + row * OPEN
    slot = plan[at + SLOT]
    plane = slots.shape[1] // n_planes
    first = features[f, F_LANE] * BINS
    if plan[at + MINUS] >= 0:
        own_last = min((tid + 1) * OWN, features[f, F_N_BINS] + 1)
        own = first + tid * OWN, first + own_last
        subtract(slots, slot, plan[at + MINUS], own, plane, n_planes)
        cuda.syncthreads()
    if state & IN_PLAY == 0:
        return
    node = OpenNode(
        plan[at + GRADIENT],
        plan[at + HESSIAN],
        plan[at + COUNT],
        from_bits(plan[at + LOWER]),
        from_bits(plan[at + UPPER]),
    )
    scale = TreeScale(
        constants[0],
        constants[1],
        constants[2],
        constants[3],
        np.int64(constants[4]),
        constants[5] != 0.0,
    )
    hist = slots[slot]
    if features[f, F_CATEGORICAL] >= 0:
        scan_categories(hist, first, plane, n_planes, features[f], node, scale, found, found_floats,
                        sets, row, f, tid)  # fmt: skip
        return
    scan_bins(hist, first, plane, n_planes, features[f], node, scale, found, found_floats, row, f,
              tid)  # fmt: skip


@device
def scan_bins(hist, first, plane, n_planes, feature, node, scale, found, found_floats, row, f,
              tid):  # fmt: skip
    """Best cut of a numeric feature. Ties: the lowest cut, then missing values left."""
    best_of = cuda.shared.array(THREADS, np.float64)
    at_of = cuda.shared.array(THREADS, np.int64)
    n_bins, monotone = feature[F_N_BINS], feature[F_MONOTONE]
    gm, hm, cm = np.int64(0), np.int64(0), np.int64(0)
    if feature[F_HAS_MISSING] != 0:
        gm, hm, cm = read_bin(hist, first + n_bins, plane, n_planes)
    # Behind the last bin there is still one cut: values left, missing right.
    last = min((tid + 1) * OWN, n_bins if cm > 0 else n_bins - 1)
    g, h, c = sums_before(hist, first, last, plane, n_planes, tid)
    best, best_at, missing_left = NOTHING_FOUND, np.int64(BINS), False
    best_g, best_h, best_c = np.int64(0), np.int64(0), np.int64(0)
    for b in range(tid * OWN, last):
        more_g, more_h, more_c = read_bin(hist, first + b, plane, n_planes)
        g, h, c = g + more_g, h + more_h, c + more_c
        if cm > 0:
            worth = admissible_score(g + gm, h + hm, c + cm, node, scale, monotone)
            if worth > best:
                best, best_at, missing_left = worth, np.int64(b), True
                best_g, best_h, best_c = g + gm, h + hm, c + cm
        worth = admissible_score(g, h, c, node, scale, monotone)
        if worth > best:
            best, best_at, missing_left = worth, np.int64(b), False
            best_g, best_h, best_c = g, h, c
    best_of[tid], at_of[tid] = best, best_at
    lead_with_best(best_of, at_of, tid)
    if best > NOTHING_FOUND and at_of[0] == best_at:
        if cm == 0:  # what the node has never seen follows the larger child
            missing_left = 2 * best_h >= node.hessian
        found_floats[row, f, 0] = gain_of_best(best, node, scale)
        write_sums(found, row, f, best_g, best_h, best_c)
        found[row, f, 4] = best_at + (np.int64(missing_left) << 32)


@device
def lead_with_best(best_of, at_of, tid):
    """Bring the best cut of all threads to the first, the lowest of equals."""
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if tid < half:
            other, other_at = best_of[tid + half], at_of[tid + half]
            if other > best_of[tid] or (other == best_of[tid] and other_at < at_of[tid]):
                best_of[tid], at_of[tid] = other, other_at
        cuda.syncthreads()
        half //= 2


@device
def read_bin(hist, at, plane, n_planes):
    """Gradient, Hessian and count of a bin."""
    count = hist[plane + at]
    return hist[at], (hist[2 * plane + at] if n_planes == 3 else count), count


@device
def subtract(slots, slot, minus, own, plane, n_planes):
    """Take a sibling's histogram from that of their parent, which becomes the other child's."""
    first, last = own
    for p in range(n_planes):
        for b in range(p * plane + first, p * plane + last):
            slots[slot, b] -= slots[minus, b]


@device
def sums_before(hist, first, last, plane, n_planes, tid):
    """What the bins of the threads before this one sum up to; its own end with ``last``."""
    sums = cuda.shared.array((3, THREADS), np.int64)
    g, h, c = np.int64(0), np.int64(0), np.int64(0)
    for b in range(tid * OWN, last):
        more_g, more_h, more_c = read_bin(hist, first + b, plane, n_planes)
        g, h, c = g + more_g, h + more_h, c + more_c
    sums[0, tid], sums[1, tid], sums[2, tid] = g, h, c
    cuda.syncthreads()
    reach = 1
    while reach < THREADS:
        more_g, more_h, more_c = np.int64(0), np.int64(0), np.int64(0)
        if tid >= reach:
            before = tid - reach
            more_g, more_h, more_c = sums[0, before], sums[1, before], sums[2, before]
        cuda.syncthreads()
        sums[0, tid] += more_g
        sums[1, tid] += more_h
        sums[2, tid] += more_c
        cuda.syncthreads()
        reach *= 2
    return sums[0, tid] - g, sums[1, tid] - h, sums[2, tid] - c


@device
def write_sums(found, row, f, g, h, c):
    """Note what goes left."""
    found[row, f, 1] = g
    found[row, f, 2] = h
    found[row, f, 3] = c


@device
def scan_categories(hist, first, plane, n_planes, feature, node, scale, found, found_floats, sets,
                    row, f, tid):  # fmt: skip
    """Best cut of the categories in the order of their shrunk mean gradients."""
    present = cuda.shared.array(BINS, np.int64)
    key = cuda.shared.array(BINS, np.float64)
    order = cuda.shared.array(BINS, np.int64)
    n_present = cuda.shared.array(1, np.int64)
    if node.hessian <= 0:
        return
    n_bins = feature[F_N_BINS]
    n_codes = n_bins + (1 if feature[F_HAS_MISSING] != 0 else 0)
    borrowed = mul(CATEGORY_SMOOTHING, mul(node.hessian, scale.hessian))
    if tid == 0:
        m = 0
        for code in range(n_codes):
            g, h, c = read_bin(hist, first + code, plane, n_planes)
            if c > 0:
                present[m] = code
                key[m] = mul(g, scale.gradient) / (mul(h, scale.hessian) + borrowed)
                m += 1
        n_present[0] = m
    cuda.syncthreads()
    m = n_present[0]
    for i in range(tid, m, THREADS):
        rank = 0
        for j in range(m):
            rank += key[j] < key[i] or (key[j] == key[i] and j < i)
        order[rank] = present[i]
    cuda.syncthreads()
    if tid > 0:
        return
    best, best_cut = NOTHING_FOUND, 0
    g, h, c = np.int64(0), np.int64(0), np.int64(0)
    best_h = np.int64(0)
    for cut in range(m - 1):
        more_g, more_h, more_c = read_bin(hist, first + order[cut], plane, n_planes)
        g, h, c = g + more_g, h + more_h, c + more_c
        worth = admissible_score(g, h, c, node, scale, 0)
        if worth > best:
            best, best_cut, best_h = worth, cut, h
            write_sums(found, row, f, g, h, c)
    if best == NOTHING_FOUND:
        return
    found_floats[row, f, 0] = gain_of_best(best, node, scale)
    # What the node has never seen follows the larger child.
    otherwise = 2 * best_h >= node.hessian
    left_set = sets[row, feature[F_CATEGORICAL]]
    missing_left = fill_left_set(order, m, best_cut + 1, n_bins, otherwise, left_set)
    found[row, f, 4] = np.int64(0xFFFFFFFF) + (np.int64(missing_left) << 32)


@device
def fill_left_set(order, m, n_left, n_bins, otherwise, left_set):
    """Write the codes that go left, into a set that is empty; return whether missing does."""
    missing_left = otherwise
    if otherwise:
        for code in range(n_bins):
            left_set[code >> 6] |= np.uint64(1) << np.uint64(code & 63)
    for i in range(m):
        code = order[i]
        bit = np.uint64(1) << np.uint64(code & 63)
        if code == n_bins:
            missing_left = i < n_left
        elif i < n_left:
            left_set[code >> 6] |= bit
        else:
            left_set[code >> 6] &= ~bit
    return missing_left
