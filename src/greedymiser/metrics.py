"""Scores that scikit-learn lacks: NDCG over many queries."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Gains of 2**label add up to a float as long as labels do not exceed this.
MOST_RELEVANT = 1000.0


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
    """The query of each of n rows; all of them are one query where nobody says."""
    return np.zeros(n, dtype=np.intp) if qid is None else qid


def ndcg_per_query(
    y_true: NDArray[np.float64],
    y_score: NDArray[np.float64],
    starts: NDArray[np.intp],
    k: int,
    no_relevant: float = 1.0,
) -> NDArray[np.float64]:
    """NDCG@k of each query, where rows ``starts[q]:starts[q + 1]`` belong to query q."""
    query = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    rank = np.arange(len(query)) - starts[query]
    discount = np.where(rank < k, 1.0 / np.log2(rank + 2.0), 0.0)
    gain = np.exp2(y_true) - 1.0

    by_score = np.lexsort((-y_score, query))
    # Documents with equal scores share their places: each gets the mean discount of the run, so
    # the score does not depend on the order of the rows.
    ordered = y_score[by_score]
    new_run = np.append(True, (ordered[1:] != ordered[:-1]) | (np.diff(query) != 0))
    run = np.cumsum(new_run) - 1
    shared = (np.bincount(run, weights=discount) / np.bincount(run))[run]
    dcg = np.bincount(query, weights=gain[by_score] * shared, minlength=len(starts) - 1)

    by_label = np.lexsort((-y_true, query))
    ideal = np.bincount(query, weights=gain[by_label] * discount, minlength=len(starts) - 1)
    return np.divide(dcg, ideal, out=np.full(len(ideal), no_relevant), where=ideal > 0)


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
    labels = _numbers("y_true", y_true, least=0.0, most=MOST_RELEVANT)[order]
    scores = _numbers("y_score", y_score)[order]
    per_query = ndcg_per_query(labels, scores, starts, k, no_relevant)
    if sample_weight is None:
        return float(per_query.mean())
    weight = _numbers("sample_weight", sample_weight, least=0.0, most=np.finfo(np.float64).max)
    if not weight.any():
        raise ValueError("sample_weight must not be 0 for every row")
    return float(np.average(per_query, weights=query_weights(weight[order], starts)))


def _numbers(
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
    """Mean weight of each query's rows."""
    return np.add.reduceat(weight, starts[:-1]) / np.diff(starts)


def ndcg_depth(scoring: Any) -> int | None:
    """The k of ``"ndcg@k"``; None if it is something else."""
    asked = re.fullmatch(r"ndcg@(\d+)", scoring) if isinstance(scoring, str) else None
    return int(asked[1]) if asked else None
