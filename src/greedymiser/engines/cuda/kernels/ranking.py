"""LambdaMART and NDCG on the device: one block of threads for each query.

Documents are not sorted. A thread that looks at all documents of the query knows the place of its
own: how many are ranked above it. Documents alike in score and label are a *group*
(``losses.ranking``), which is written at its first place:

    ranking       7a  5b  5b  3c | 3d        (a score, and a letter for the label)
    place          0   1   2   3   4
    SIZE           1   2   0   1   1         0 where no group begins

Every sum is that of one thread, in the order in which the CPU adds. Nothing here depends on how
many threads a block has.
"""

from __future__ import annotations

import math

import numpy as np

from greedymiser.engines.cuda.device import cuda, device, kernel, mul, twin
from greedymiser.engines.cuda.kernels.formulas import exp
from greedymiser.losses import ranking

# What is known of a group, and what is computed of it.
SIZE, LABEL, GAIN, SCORE, VALUE, GRADIENT, HESSIAN, GROUP_FIELDS = range(8)

compare_groups = twin(ranking.compare_groups, exp=exp)
slope_of = twin(ranking.slope_of)
curvature_of = twin(ranking.curvature_of)


@kernel
def write_lambdas(order, starts, labels, gains, ideals, discounts, raw, places, groups, gradients,
                  hessians, first, truncation, sigma):  # fmt: skip
    """Write the lambdas of queries ``order[first:]``, as many as there are blocks.

    ``places`` and ``groups`` are room to compute in: the first place of each document's group, and
    the groups, both counted from the first document of the query.
    """
    q = order[first + cuda.blockIdx.x]
    start, stop = np.uint64(starts[q]), np.uint64(starts[q + 1])
    tid, step = np.uint64(cuda.threadIdx.x), np.uint64(cuda.blockDim.x)
    ideal = ideals[q]
    if ideal == 0.0:  # for the whole block: nothing is relevant
        i = start + tid
        while i < stop:
            gradients[0, i], hessians[0, i] = 0.0, 0.0
            i += step
        return
    i = start + tid
    while i < stop:
        place_document(i, start, stop, raw, labels, gains, discounts, places, groups)
        i += step
    cuda.syncthreads()
    i = start + tid
    while i < stop:
        if groups[SIZE, i] > 0.0:
            add_pairs(i, start, stop, groups, np.uint64(truncation), sigma, ideal)
        i += step
    cuda.syncthreads()
    i = start + tid
    while i < stop:
        at = start + np.uint64(places[i])
        gradients[0, i], hessians[0, i] = groups[GRADIENT, at], groups[HESSIAN, at]
        i += step


@device
def place_document(i, start, stop, raw, labels, gains, discounts, places, groups):
    """Find the place of a document; the first of a group writes what is known of the group.

    Best score first; among equal scores the least relevant first; what is no number last.
    """
    score, label = raw[0, i], labels[i]
    above, size, turn = 0, 0, 0
    for j in range(start, stop):
        other, its_label = raw[0, j], labels[j]
        is_worse_alike = other == score and its_label < label
        if other > score or is_worse_alike or (score != score and other == other):
            above += 1
        elif j == i or (other == score and its_label == label):
            size += 1
            turn += j < i
    places[i] = above
    at = start + np.uint64(above)
    if turn > 0:
        groups[SIZE, at + np.uint64(turn)] = 0.0
        return
    total = discounts[above]
    for place in range(above + 1, above + size):
        total += discounts[place]
    groups[SIZE, at], groups[LABEL, at], groups[GAIN, at] = float(size), label, gains[i]
    groups[SCORE, at], groups[VALUE, at] = score, total / float(size)


@device
def add_pairs(i, start, stop, groups, truncation, sigma, ideal):
    """Sum up for a group what the groups that it is compared with say, the best ranked first.

    One group of a pair must be near the top. What a pair says to one of its groups it says to the
    other with the opposite sign; where labels are equal it says 0 to both. So it does not matter
    here which of them is ranked above the other.
    """
    label, gain, score, value = (
        groups[LABEL, i], groups[GAIN, i], groups[SCORE, i], groups[VALUE, i],
    )  # fmt: skip
    gradient, hessian = 0.0, 0.0
    last = stop if i < start + truncation else start + truncation
    for j in range(start, last):
        size = groups[SIZE, j]
        if size > 0.0 and j != i:
            weight, sign, doubt = compare_groups(
                label, gain, score, value, groups[LABEL, j], groups[GAIN, j], groups[SCORE, j],
                groups[VALUE, j], sigma, ideal,
            )  # fmt: skip
            gradient -= slope_of(weight, size, sign, doubt)
            hessian += curvature_of(weight, size, doubt, sigma)
    groups[GRADIENT, i], groups[HESSIAN, i] = gradient, hessian


@kernel
def score_queries(order, starts, gains, ideals, discounts, raw, terms, values, first):
    """Write the NDCG of queries ``order[first:]``, as many as there are blocks.

    See ``losses.ndcg.ndcg_of_queries``: documents with equal scores share their places. ``terms``
    is room for what each place adds.
    """
    q = order[first + cuda.blockIdx.x]
    start, stop = np.uint64(starts[q]), np.uint64(starts[q + 1])
    tid, step = np.uint64(cuda.threadIdx.x), np.uint64(cuda.blockDim.x)
    ideal = ideals[q]
    if ideal <= 0.0:  # for the whole block
        if tid == 0:
            values[q] = 1.0
        return
    n_places = min(np.int64(discounts.size), np.int64(stop - start))
    i = start + tid
    while i < stop:
        weigh_document(i, start, stop, n_places, raw, gains, discounts, terms)
        i += step
    cuda.syncthreads()
    if tid == 0:
        total = 0.0
        for place in range(start, start + np.uint64(n_places)):
            total += terms[place]
        values[q] = total / ideal


@device
def weigh_document(i, start, stop, n_places, raw, gains, discounts, terms):
    """Write what a place adds to the NDCG: the first of a run of equal scores writes it for all.

    Places behind the first of a run add 0.
    """
    score = number_or_last(raw[0, i])
    place, count, turn, gained = 0, 0, 0, np.int64(0)
    for j in range(start, stop):
        other = number_or_last(raw[0, j])
        if other > score:
            place += 1
        elif other == score:
            count += 1
            gained += gains[j]
            turn += j < i
    if place + turn >= n_places:
        return
    at = start + np.uint64(place + turn)
    if turn > 0:
        terms[at] = 0.0
        return
    worth = discounts[place]
    for end in range(place + 1, min(place + count, n_places)):
        worth += discounts[end]
    terms[at] = mul(gained, worth / float(count))


@device
def number_or_last(score):
    """The score, or what comes behind all others where it is no number."""
    return score if score == score else -math.inf
