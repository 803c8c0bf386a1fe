"""Answers about Dask collections, which are collections themselves: nothing is computed here.

What a task takes along is a ``Predictor``, so workers need nothing of what training needs. Rows
stay in their partitions: an array gives an array with the same chunks of rows, known or not, and a
data frame a series, or a frame with a column per class, with the same index.

Dask is imported only where one of its collections is passed, so that it is loaded already.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Answering(Protocol):
    """A finished model: a ``Predictor``."""

    @property
    def compares_rows(self) -> bool: ...

    @property
    def classes(self) -> NDArray[Any] | None: ...


class Served(Protocol):
    """A model that can be sent to Dask's workers."""

    def served_for(self, sample: Any) -> Answering:
        """The finished model, once it is known that it can read rows like these."""


def lazily(model: Served, method: str, X: Any) -> Any:
    """What a model's method says of a Dask array or data frame.

    Parameters
    ----------
    model : Predictor or fitted estimator
    method : str
        Of the ``Predictor``: "predict", "predict_proba", "decision_function", "prediction_costs".
    X : dask.array.Array or dask.dataframe.DataFrame
    """
    is_array = hasattr(X, "chunks")
    sample = _sample_of_array(X) if is_array else _sample_of_frame(X)
    predictor = model.served_for(sample)
    if predictor.compares_rows:
        raise ValueError(
            "this model compares the rows of a query, which Dask's partitions may divide; bring "
            "each query into one partition, and call the model there with map_partitions"
        )
    # How an answer looks; what is wrong with the question is also said here, and not by a worker.
    like = getattr(predictor, method)(sample)[:0]
    return (_of_array if is_array else _of_frame)(predictor, method, X, like)


def _sample_of_array(X: Any) -> NDArray[Any]:
    """One row like those of a Dask array."""
    if X.ndim != 2:
        raise ValueError(f"X must have two dimensions, got a Dask array of shape {X.shape}")
    if np.isnan(X.shape[1]):
        raise ValueError("X has an unknown number of columns; call X.compute_chunk_sizes() first")
    return np.zeros((1, X.shape[1]), dtype=X.dtype)


def _sample_of_frame(X: Any) -> Any:
    """A few rows like those of a Dask data frame."""
    if not hasattr(X, "columns") or not hasattr(X, "map_partitions"):
        raise TypeError(f"X must be a Dask array or data frame, got a Dask {type(X).__name__}")
    from dask.dataframe.dispatch import make_meta, meta_nonempty

    return meta_nonempty(make_meta(X))


def _of_array(predictor: Answering, method: str, X: Any, like: NDArray[Any]) -> Any:
    from dask import delayed

    X = X.rechunk({1: -1})  # a row is needed whole
    # One task makes the model, however many ask it.
    arguments = {"predictor": delayed(predictor, pure=True), "method": method, "like": like}
    if like.ndim == 1:
        return X.map_blocks(_ask_block, **arguments, drop_axis=1, meta=like)
    chunks = (X.chunks[0], (like.shape[1],))
    return X.map_blocks(_ask_block, **arguments, chunks=chunks, meta=like)


def _ask_block(rows: Any, *, predictor: Any, method: str, like: NDArray[Any]) -> NDArray[Any]:
    return like if len(rows) == 0 else getattr(predictor, method)(rows)


def _of_frame(predictor: Answering, method: str, X: Any, like: NDArray[Any]) -> Any:
    from dask import delayed
    from dask.dataframe.dispatch import make_meta
    from pandas import DataFrame, Series

    index = make_meta(X).index
    if like.ndim == 1:
        meta = Series(like, index=index)
    else:
        columns = range(like.shape[1]) if predictor.classes is None else predictor.classes
        meta = DataFrame(like, index=index, columns=list(columns))
    answering = delayed(predictor, pure=True)
    return X.map_partitions(_ask_partition, answering, method, meta, meta=meta)


def _ask_partition(rows: Any, predictor: Any, method: str, meta: Any) -> Any:
    if len(rows) == 0:
        return meta
    values = getattr(predictor, method)(rows)
    if values.ndim == 1:
        return type(meta)(values, index=rows.index, dtype=meta.dtype)
    return type(meta)(values, index=rows.index, columns=meta.columns)
