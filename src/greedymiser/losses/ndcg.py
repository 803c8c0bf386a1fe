"""NDCG over many queries, which scikit-learn lacks."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from greedymiser._core.arithmetic import exact_sum
from greedymiser._core.compiling import inner, njit
from greedymiser._core.threads import Team, new_team, share

# Gains of 2**label add up to a float as long as labels do not exceed this.
MOST_RELEVANT = 1000.0

# So many places are filled by insertion; for more of them it is faster to sort all scores.
FEW_PLACES = 64


def query_order(qid: ArrayLike) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Order that brings the rows of each query together, and where each query starts.

    The rows of a query keep their order; ``starts`` has one entry per query, and one for the end.
    """
    query: NDArray[Any] = np.asarray(qid)
    if query.ndim != 1:
        raise ValueError(f"qid must have one dimension, got shape {query.shape}")
    try:
        order = np.argsort(query, kind="stable").astype(np.intp)
    except TypeError:
        kinds = sorted({type(value).__name__ for value in query.tolist()})
        raise TypeError(f"qid mixes values that have no order: {kinds}") from None
    sorted_qid = query[order]
    first = np.flatnonzero(np.append(True, sorted_qid[1:] != sorted_qid[:-1]))
    return order, np.append(first, len(query)).astype(np.intp)


def queries_or_one(qid: ArrayLike | None, n: int) -> ArrayLike:
    """The query of each of n rows; without ``qid``, all of them are one query."""
    return np.zeros(n, dtype=np.intp) if qid is None else qid


@dataclass(frozen=True, eq=False)
class Judged:
    """Relevance of the documents of many queries, with all that does not depend on their scores.

    Rows ``starts[q]:starts[q + 1]`` belong to query q. Made by ``judge``.
    """

    starts: NDArray[np.intp]
    # 2**label - 1 on an integer grid, so that sums over equal scores are exact in any order. The
    # unit of the grid cancels in the NDCG.
    gain: NDArray[np.int64]
    # Of the places that count: as many as k, or as the longest query has documents.
    discount: NDArray[np.float64]
    # Discounted gain of each query in the best order.
    ideal: NDArray[np.float64]

    def ndcg(
        self,
        score: NDArray[np.float64],
        no_relevant: float = 1.0,
        team: Team | None = None,
    ) -> NDArray[np.float64]:
        """NDCG@k of each query, on the threads of a team; a score that is no number comes last."""
        score = np.ascontiguousarray(score, dtype=np.float64)
        if score.shape != self.gain.shape:
            raise ValueError(f"score must have shape {self.gain.shape}, got {score.shape}")
        unknown = np.isnan(score)
        if unknown.any():
            score = np.where(unknown, -np.inf, score)
        values = np.empty(len(self.ideal))
        arguments = (score, self.gain, self.starts, self.discount, self.ideal, no_relevant, values)
        share_queries(new_team(1) if team is None else team, arguments)
        return values


class GainRange(NamedTuple):
    """What the grid of gains depends on."""

    # The highest label, and how many documents the longest query has.
    highest: float
    longest: int


def judge(
    y_true: NDArray[np.float64],
    starts: NDArray[np.intp],
    k: int,
    among: GainRange | None = None,
) -> Judged:
    """Prepare relevance labels for ``Judged.ndcg``: what is left is to look at the scores.

    ``among`` tells of all queries where these are only some of them.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    starts = np.ascontiguousarray(starts, dtype=np.intp)
    sizes = np.diff(starts)
    if starts[0] != 0 or starts[-1] != len(y_true) or sizes.min(initial=0) < 0:
        raise ValueError(f"starts must rise from 0 to {len(y_true)}, got {starts}")
    longest = int(sizes.max(initial=0))
    with np.errstate(over="ignore"):
        gain = np.exp2(y_true) - 1.0
    most = float(np.abs(gain).max(initial=0.0))
    if among is not None:
        most, longest = float(np.exp2(among.highest) - 1.0), among.longest
    if not math.isfinite(most):
        worst = y_true[np.argmin(np.isfinite(gain))]
        raise ValueError(f"relevance labels must be finite and below 1024, got {worst:g}")
    # A power of two keeps whole gains exact as long as they fit, and sums stay below 2**62.
    unit = 62 - math.frexp(most)[1] - longest.bit_length()
    on_grid = np.rint(np.ldexp(gain, unit)).astype(np.int64)
    discount = 1.0 / np.log2(np.arange(min(k, longest)) + 2.0)
    ideal = np.empty(len(starts) - 1)
    ideal_of_queries(on_grid, starts, discount, ideal)
    return Judged(starts, on_grid, discount, ideal)


def ndcg_per_query(
    y_true: NDArray[np.float64],
    y_score: NDArray[np.float64],
    starts: NDArray[np.intp],
    k: int,
    no_relevant: float = 1.0,
) -> NDArray[np.float64]:
    """NDCG@k of each query, where rows ``starts[q]:starts[q + 1]`` belong to query q."""
    return judge(y_true, starts, k).ndcg(y_score, no_relevant)


def mean_of_queries(
    per_query: NDArray[np.float64], weight: NDArray[np.float64] | None = None
) -> float:
    """Mean over queries, weighted or not; their order does not matter."""
    if weight is None:
        return exact_sum(per_query) / len(per_query)
    return exact_sum(per_query * weight) / exact_sum(weight)


@njit
def share_queries(team, arguments):
    """NDCG of all queries."""
    share(team, ndcg_of_queries, arguments, arguments[2].size - 1, 16)


@inner
def ndcg_of_queries(worker, first, last, score, gain, starts, discount, ideal, no_relevant, out):
    """NDCG of queries first:last.

    Documents with equal scores share their places: each gets the mean discount of the run, so the
    score does not depend on the order of the rows. Places from k on have no discount, but a run
    may begin before them:

    best scores     9   7   7   7 | 7   7   3       k = 4
    discount       d0  d1  d2  d3 | 0   0   0
    the run of 7 gets (d1 + d2 + d3) / 5 for each document.
    """
    best = np.empty(discount.size)
    # What the documents of a run gain together, and how many they are; kept at its first place.
    gained = np.zeros(discount.size, dtype=np.int64)
    count = np.zeros(discount.size, dtype=np.int64)
    for q in range(first, last):
        if ideal[q] <= 0.0:
            out[q] = no_relevant
            continue
        start, stop = starts[q], starts[q + 1]
        places = fill_best(score, start, stop, best)
        for i in range(start, stop):
            if score[i] >= best[places - 1]:
                place = first_place(best, places, score[i])
                gained[place] += gain[i]
                count[place] += 1
        total = 0.0
        place = 0
        while place < places:
            worth = discount[place]
            end = place + 1
            while end < places and best[end] == best[place]:
                worth += discount[end]
                end += 1
            total += gained[place] * (worth / count[place])
            gained[place], count[place] = 0, 0
            place = end
        out[q] = total / ideal[q]


@njit
def ideal_of_queries(gain, starts, discount, out):
    """Discounted gain of each query whose documents are in the best order."""
    best = np.empty(discount.size, dtype=np.int64)
    for q in range(starts.size - 1):
        places = fill_best(gain, starts[q], starts[q + 1], best)
        out[q] = 0.0
        for place in range(places):
            out[q] += best[place] * discount[place]


@inner
def fill_best(values, start, stop, best):
    """Write the best of ``values[start:stop]``, the highest first; return how many there are."""
    places = min(best.size, stop - start)
    if places > FEW_PLACES:
        ordered = np.sort(values[start:stop])
        for place in range(places):
            best[place] = ordered[ordered.size - 1 - place]
        return places
    filled = 0
    for i in range(start, stop):
        if filled < places:
            filled += 1
        elif not values[i] > best[places - 1]:
            continue
        # The lowest falls out, and those below the new one move down.
        place = filled - 1
        while place > 0 and values[i] > best[place - 1]:
            best[place] = best[place - 1]
            place -= 1
        best[place] = values[i]
    return places


@inner
def first_place(best, places, value):
    """First place of a value in ``best``, which is sorted, the highest first."""
    low, high = 0, places - 1
    while low < high:
        middle = (low + high) // 2
        if best[middle] > value:
            low = middle + 1
        else:
            high = middle
    return low


def ndcg_score(
    y_true: ArrayLike,
    y_score: ArrayLike,
    qid: ArrayLike,
    *,
    k: int = 5,
    sample_weight: ArrayLike | None = None,
    no_relevant: float = 1.0,
) -> float:
    """Mean over queries of the normalised discounted cumulative gain at k.

    Gains are ``2**label - 1``, discounts ``1 / log2(rank + 1)``; equal scores share their places.

    Parameters
    ----------
    y_true : array-like of shape (n,)
        Relevance labels, not negative.
    y_score : array-like of shape (n,)
        Predicted scores.
    qid : array-like of shape (n,)
        The query of each row. Rows of a query need not be adjacent.
    k : int
        How many places count.
    sample_weight : array-like of shape (n,), optional
        The mean weight of a query's rows is the weight of the query.
    no_relevant : float
        What a query without any relevant document scores; 1 as in LightGBM, 0 as in LETOR's tool.

    Examples
    --------
    >>> labels, scores, qid = [2, 0, 1, 0, 0], [0.9, 0.5, 0.1, 0.3, 0.2], [1, 1, 1, 2, 2]
    >>> round(ndcg_score(labels, scores, qid), 3)
    0.982
    >>> round(ndcg_score(labels, scores, qid, no_relevant=0.0), 3)
    0.482
    """
    # Here, because serving a ranker needs queries, but nothing of scikit-learn.
    from sklearn.utils.validation import check_consistent_length

    check_consistent_length(y_true, y_score, qid, sample_weight)
    if not k >= 1:
        raise ValueError(f"k must be at least 1, got {k}")
    query: NDArray[Any] = np.asarray(qid)
    if query.dtype.kind == "f" and np.isnan(query).any():
        raise ValueError("qid must not be NaN: each would be a query of its own")
    order, starts = query_order(query)
    labels = _numbers_by_row("y_true", y_true, least=0.0, most=MOST_RELEVANT)[order]
    scores = _numbers_by_row("y_score", y_score)[order]
    per_query = ndcg_per_query(labels, scores, starts, k, no_relevant)
    if sample_weight is None:
        return mean_of_queries(per_query)
    weight = _numbers_by_row(
        "sample_weight", sample_weight, least=0.0, most=np.finfo(np.float64).max
    )
    if not weight.any():
        raise ValueError("sample_weight must not be 0 for every row")
    return mean_of_queries(per_query, query_weights(weight[order], starts))


def _numbers_by_row(
    argument: str, values: ArrayLike, least: float = -np.inf, most: float = np.inf
) -> NDArray[np.float64]:
    """Check numbers, one per row, and return them as floats."""
    from sklearn.utils.validation import column_or_1d

    numbers = column_or_1d(values).astype(np.float64)
    if len(numbers) == 0:
        raise ValueError(f"{argument} must have at least one row")
    # NaN is on no side of anything.
    bad = np.flatnonzero(~((numbers >= least) & (numbers <= most)))
    if len(bad):
        limits = "a number" if least == -np.inf else f"between {least:g} and {most:g}"
        raise ValueError(f"{argument} must be {limits}, got {numbers[bad[0]]:g} in row {bad[0]}")
    return numbers


def query_weights(weight: NDArray[np.float64], starts: NDArray[np.intp]) -> NDArray[np.float64]:
    """Mean weight of each query's rows, whatever their order."""
    sums = [math.fsum(weight[a:b]) for a, b in pairwise(starts.tolist())]
    return np.array(sums) / np.diff(starts)


def ndcg_depth(scoring: Any) -> int | None:
    """The k of ``"ndcg@k"``; None if it is something else."""
    asked = re.fullmatch(r"ndcg@(\d+)", scoring) if isinstance(scoring, str) else None
    return int(asked[1]) if asked else None
