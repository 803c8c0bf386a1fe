"""LambdaMART's gradients: how far each document of a query should go up or down."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.arithmetic import exp, log
from greedymiser._core.compiling import inner, njit

Floats = NDArray[np.float64]

# What is known of a group of documents: their number, label, gain, score and the mean discount of
# their places; then what is computed of it, and two rows to compute in.
GROUP_FIELDS, GRADIENT, HESSIAN = 9, 5, 6


class Queries(NamedTuple):
    """What the labels say of each query: all that does not change from round to round."""

    # Query q has rows starts[q]:starts[q + 1].
    starts: NDArray[np.intp]
    labels: Floats
    # The documents of each query by label, counted from the first of the query.
    by_label: NDArray[np.intp]
    # 2^label - 1, and the best DCG that a query can have (0 where nothing is relevant).
    gains: Floats
    ideals: Floats
    # What a place is worth, 1 / log2(place + 1) with places from 1.
    discounts: Floats
    # Pairs count if one of them is among so many best.
    truncation: int

    @classmethod
    def of(cls, labels: Floats, starts: NDArray[np.intp], truncation: int) -> Queries:
        longest = int(np.max(np.diff(starts), initial=1))
        discounts = np.empty(longest)
        write_discounts(discounts)
        gains, ideals = np.exp2(labels) - 1.0, np.empty(len(starts) - 1)
        write_ideals(gains, starts, truncation, discounts, ideals)
        query = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        by_label = np.lexsort((labels, query)) - starts[query]
        return cls(starts, labels, by_label, gains, ideals, discounts, truncation)


@njit
def write_discounts(out):
    """Write 1 / log2(rank + 2) for ranks from 0."""
    for rank in range(out.size):
        out[rank] = log(2.0) / log(rank + 2.0)


@njit
def write_ideals(gains, starts, truncation, discounts, out):
    """DCG at the truncation of each query in its best order."""
    for q in range(starts.size - 1):
        ordered = np.sort(gains[starts[q] : starts[q + 1]])
        out[q] = 0.0
        for rank in range(min(ordered.size, truncation)):
            out[q] += ordered[ordered.size - 1 - rank] * discounts[rank]


@njit
def add_lambdas(worker, first, last, queries, raw, sigma, gradient, hessian):
    """Write the lambdas of queries first:last.

    Documents alike in score and label share their places and so their lambdas: they are a *group*,
    and pairs are pairs of groups. A group counts if it begins before the truncation, so there
    are at most truncation times the number of groups such pairs, however many ties there are.
    """
    longest = queries.discounts.size
    edges = np.empty(longest + 1, dtype=np.int64)
    groups = np.empty((GROUP_FIELDS, longest))
    for q in range(first, last):
        start, stop = queries.starts[q], queries.starts[q + 1]
        if queries.ideals[q] == 0.0:
            gradient[start:stop] = 0.0
            hessian[start:stop] = 0.0
            continue
        # Best score first; among equal scores the least relevant first.
        score, by_label = raw[start:stop], queries.by_label[start:stop]
        order = by_label[np.argsort(-score[by_label], kind="mergesort")]
        n_groups, n_top = form_groups(q, order, score, queries, edges, groups)
        add_pairs(n_groups, n_top, sigma, queries.ideals[q], groups)
        for a in range(n_groups):
            for k in range(edges[a], edges[a + 1]):
                gradient[start + order[k]] = groups[GRADIENT, a]
                hessian[start + order[k]] = groups[HESSIAN, a]


@inner
def add_pairs(n_groups, n_top, sigma, ideal, groups):
    """Sum up for every group what the groups that it is compared with say.

    One group of a pair must be near the top, and those near the top come first. The inner loops
    are without branches, so that LLVM makes vectors of them: equal labels have a swing of 0.
    """
    size, label, gain, score, value = groups[0], groups[1], groups[2], groups[3], groups[4]
    gradient, hessian, push, bend = groups[GRADIENT], groups[HESSIAN], groups[7], groups[8]
    end = np.uint64(n_groups)
    for b in range(end):
        gradient[b], hessian[b] = 0.0, 0.0
    for top in range(np.uint64(n_top)):
        a, after = top, top + np.uint64(1)
        label_a, gain_a, score_a, value_a, size_a = label[a], gain[a], score[a], value[a], size[a]
        for b in range(after, end):
            weight, sign, doubt = compare_groups(
                label_a, gain_a, score_a, value_a, label[b], gain[b], score[b], value[b], sigma,
                ideal,
            )  # fmt: skip
            push[b] = slope_of(weight, size[b], sign, doubt)
            bend[b] = curvature_of(weight, size[b], doubt, sigma)
            gradient[b] += slope_of(weight, size_a, sign, doubt)
            hessian[b] += curvature_of(weight, size_a, doubt, sigma)
        g, h = gradient[a], hessian[a]
        for b in range(after, end):
            g -= push[b]
            h += bend[b]
        gradient[a], hessian[a] = g, h


@inner(forceinline=True)
def compare_groups(
    label_a, gain_a, score_a, value_a, label_b, gain_b, score_b, value_b, sigma, ideal
):
    """Compare two groups, the better ranked one first.

    Returns what swapping two of their documents would change, which of them should be first (1 or
    -1), and how much it is in doubt that the score says so.
    """
    swing = abs(gain_a - gain_b) * abs(value_a - value_b)
    sign = 1.0 if label_a > label_b else -1.0
    doubt = 1.0 / (1.0 + exp(sigma * sign * (score_a - score_b)))
    return sigma * swing / ideal, sign, doubt


@inner(forceinline=True)
def slope_of(weight, size, sign, doubt):
    """What a group of so many documents adds to the gradient of the lower one of a pair."""
    return sign * (weight * size) * doubt


@inner(forceinline=True)
def curvature_of(weight, size, doubt, sigma):
    """What a group of so many documents adds to the Hessian of the other one of a pair."""
    return sigma * (weight * size) * doubt * (1.0 - doubt)


@inner
def form_groups(q, order, score, queries, edges, groups):
    """Cut the ranking of a query into groups that are alike in score and label.

    Write where they begin, and what ``add_pairs`` must know of them; return how many there are,
    and how many begin before the truncation.
    """
    label = queries.labels[queries.starts[q] : queries.starts[q + 1]]
    gain = queries.gains[queries.starts[q] : queries.starts[q + 1]]
    n_groups, n_top, start = 0, 0, 0
    while start < order.size:
        document = order[start]
        # Its first document is in it, also one whose score is no number and equals nothing.
        stop, total = start + 1, queries.discounts[start]
        while (
            stop < order.size
            and score[order[stop]] == score[document]
            and label[order[stop]] == label[document]
        ):
            total += queries.discounts[stop]
            stop += 1
        edges[n_groups] = start
        groups[0, n_groups] = float(stop - start)
        groups[1, n_groups], groups[2, n_groups] = label[document], gain[document]
        groups[3, n_groups], groups[4, n_groups] = score[document], total / (stop - start)
        n_groups += 1
        if start < queries.truncation:
            n_top = n_groups
        start = stop
    edges[n_groups] = order.size
    return n_groups, n_top
