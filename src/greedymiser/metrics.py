"""Scores that scikit-learn lacks: NDCG over many queries."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def query_order(qid: ArrayLike) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Order that brings the rows of each query together, and where each query starts.

    The rows of a query keep their order; ``starts`` has one entry per query, and one for the end.
    """
    query: NDArray[Any] = np.asarray(qid)
    if query.ndim != 1:
        raise ValueError(f"qid must have one dimension, got shape {query.shape}")
    order = np.argsort(query, kind="stable").astype(np.intp)
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
    """
    # Here, because serving a ranker needs queries, but nothing of scikit-learn.
    from sklearn.utils.validation import check_consistent_length, column_or_1d

    check_consistent_length(y_true, y_score, qid, sample_weight)
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    order, starts = query_order(qid)
    labels = column_or_1d(y_true).astype(np.float64)[order]
    scores = column_or_1d(y_score).astype(np.float64)[order]
    per_query = ndcg_per_query(labels, scores, starts, k, no_relevant)
    if sample_weight is None:
        return float(per_query.mean())
    weight = column_or_1d(sample_weight).astype(np.float64)[order]
    return float(np.average(per_query, weights=query_weights(weight, starts)))


def query_weights(weight: NDArray[np.float64], starts: NDArray[np.intp]) -> NDArray[np.float64]:
    """Mean weight of each query's rows."""
    return np.add.reduceat(weight, starts[:-1]) / np.diff(starts)


def ndcg_depth(scoring: Any) -> int | None:
    """The k of ``"ndcg@k"``; None if it is something else."""
    asked = re.fullmatch(r"ndcg@(\d+)", scoring) if isinstance(scoring, str) else None
    return int(asked[1]) if asked else None
