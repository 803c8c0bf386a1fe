"""Dask arrays and data frames, as users pass them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from dask import delayed
from distributed import Client
from numpy.typing import NDArray

from greedymiser.engines.dask.partitions import Parts
from greedymiser.engines.dask.session import Session


def parts_of(session: Session, X: Any) -> Parts:
    """X as partitions. Where nobody knows how long they are, they are read to be counted.

    Of a data frame, one column is read for that: files that are stored by column need not be read
    whole.
    """
    shape: tuple[Any, ...] = getattr(X, "shape", ())
    if len(shape) != 2:
        raise ValueError(f"X must have two dimensions, got a {type(X).__name__} with {len(shape)}")
    is_frame = hasattr(X, "columns")
    head = _frame_without_rows(X) if is_frame else None
    if not is_frame and len(X.chunks[1]) > 1:
        X = X.rechunk({1: -1})
    made = list(X.to_delayed()) if is_frame else list(X.to_delayed().ravel())
    if is_frame:
        lengths = _lengths(session.client, X[X.columns[:1]].to_delayed())
    elif np.isnan(X.chunks[0]).any():
        lengths = _lengths(session.client, made)
    else:
        lengths = np.array(X.chunks[0], dtype=np.int64)
    return Parts(session, made, lengths, len(X.columns) if is_frame else int(shape[1]), head)


def _frame_without_rows(X: Any) -> Any:
    """A data frame without rows that has the columns of X."""
    from dask.dataframe.dispatch import make_meta

    return make_meta(X)


def gathered(client: Client, values: Any) -> NDArray[Any]:
    """A collection with an entry per row, brought here."""
    if not hasattr(values, "to_delayed"):
        raise TypeError(f"expected a Dask array, series or data frame, got {values!r}")
    made = np.asarray(values.to_delayed(), dtype=object)
    if made.ndim > 1 and made.shape[1:] != (1,):
        raise ValueError(f"expected one column, got {values!r}")
    parts = _computed(client, np.asarray, made.ravel().tolist())
    filled = [part for part in parts if len(part)] or parts[:1]
    if any(part.dtype == object for part in filled):
        filled = [part.astype(object) for part in filled]
    return np.concatenate(filled)


def _lengths(client: Client, made: Sequence[Any]) -> NDArray[np.int64]:
    return np.array(_computed(client, _length, made), dtype=np.int64)


def _length(part: Any) -> int:
    return int(part.shape[0])


def _computed(client: Client, function: Callable[[Any], Any], made: Sequence[Any]) -> list[Any]:
    """What a function says of each partition, brought here."""
    futures = client.compute([delayed(function)(part) for part in made])
    try:
        return list(client.gather(futures))
    except BaseException:  # an interruption leaves no work behind
        client.cancel(futures)
        raise
