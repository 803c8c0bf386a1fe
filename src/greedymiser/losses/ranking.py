"""LambdaMART's gradients: how much each document of a query wants to go up or down."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser.arithmetic import exp, log
from greedymiser.compiling import inner, njit

Floats = NDArray[np.float64]


class Queries(NamedTuple):
    """What the labels say of each query: all that does not change from round to round."""

    # Query q has rows starts[q]:starts[q + 1].
    starts: NDArray[np.intp]
    labels: Floats
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
        return cls(starts, labels, gains, ideals, discounts, truncation)


@njit(error_model="numpy")
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


@njit(error_model="numpy")
def add_lambdas(worker, first, last, queries, raw, sigma, gradient, hessian):
    """Write the lambdas of queries first:last.

    Documents alike in score and label share their places and so their lambdas: they are a *group*,
    and pairs are pairs of groups. A group counts if it begins before the truncation, so there
    are at most truncation times the number of groups such pairs, however many ties there are.
    """
    for q in range(first, last):
        start, stop = queries.starts[q], queries.starts[q + 1]
        gradient[start:stop] = 0.0
        hessian[start:stop] = 0.0
        if queries.ideals[q] == 0.0:
            continue
        label, gain, score = queries.labels[start:stop], queries.gains[start:stop], raw[start:stop]
        # Best score first; among equal scores the least relevant first.
        by_label = np.argsort(label, kind="mergesort")
        order = by_label[np.argsort(-score[by_label], kind="mergesort")]
        edges = np.empty(order.size + 1, dtype=np.int64)
        value = np.empty(order.size)
        n_groups, n_top = form_groups(order, label, score, queries, edges, value)
        for a in range(n_groups):
            i = order[edges[a]]
            g, h = 0.0, 0.0
            # One group of a pair must be near the top, and those near the top come first.
            for b in range(n_groups if a < n_top else n_top):
                j = order[edges[b]]
                if label[i] == label[j]:
                    continue
                swing = abs(gain[i] - gain[j]) * abs(value[a] - value[b])
                sign = 1.0 if label[i] > label[j] else -1.0
                doubt = 1.0 / (1.0 + exp(sigma * sign * (score[i] - score[j])))
                weight = sigma * swing / queries.ideals[q] * float(edges[b + 1] - edges[b])
                g -= sign * weight * doubt
                h += sigma * weight * doubt * (1.0 - doubt)
            for k in range(edges[a], edges[a + 1]):
                gradient[start + order[k]] = g
                hessian[start + order[k]] = h


@inner
def form_groups(order, label, score, queries, edges, value):
    """Cut the ranking into groups that are alike in score and label.

    Write where they begin and the mean discount of their places; return how many there are, and
    how many begin before the truncation.
    """
    n_groups, n_top, start = 0, 0, 0
    while start < order.size:
        stop, total = start, 0.0
        while (
            stop < order.size
            and score[order[stop]] == score[order[start]]
            and label[order[stop]] == label[order[start]]
        ):
            total += queries.discounts[stop]
            stop += 1
        edges[n_groups] = start
        value[n_groups] = total / (stop - start)
        n_groups += 1
        if start < queries.truncation:
            n_top = n_groups
        start = stop
    edges[n_groups] = order.size
    return n_groups, n_top
