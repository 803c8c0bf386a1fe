"""Dask arrays and data frames, as users pass them."""

from __future__ import annotations

from typing import Any

import numpy as np
from dask import delayed
from distributed import Client
from numpy.typing import NDArray

from greedymiser.engines.dask.parts import Parts
from greedymiser.engines.dask.session import Session

Lengths = NDArray[np.int64]


def parts_of(session: Session, X: Any, lengths: Lengths | None) -> Parts:
    """X as partitions. ``lengths`` are those of y, which has the same rows.

    Where the lengths of X are not known and y has as many partitions, they are taken to be the
    same: every partition is checked when it is read.
    """
    shape: tuple[Any, ...] = getattr(X, "shape", ())
    if len(shape) != 2:
        raise ValueError(f"X must have two dimensions, got a {type(X).__name__} with {len(shape)}")
    is_frame = hasattr(X, "columns")
    head = _head(X) if is_frame else None
    if not is_frame and len(X.chunks[1]) > 1:
        X = X.rechunk({1: -1})
    made = list(X.to_delayed()) if is_frame else list(X.to_delayed().ravel())
    known = np.array([np.nan]) if is_frame else np.array(X.chunks[0], dtype=np.float64)
    if not np.isnan(known).any():
        lengths = known.astype(np.int64)
    elif lengths is None or len(lengths) != len(made):
        found = session.client.compute([delayed(_length)(part) for part in made])
        lengths = np.array(session.client.gather(found), dtype=np.int64)
    return Parts(session, made, lengths, len(X.columns) if is_frame else int(shape[1]), head)


def _head(X: Any) -> Any:
    """A data frame without rows that has the columns of X."""
    from dask.dataframe.dispatch import make_meta

    return make_meta(X)


def brought(client: Client, values: Any) -> tuple[Lengths, NDArray[Any]]:
    """A collection with an entry per row, and the lengths of its partitions."""
    if not hasattr(values, "to_delayed"):
        raise TypeError(f"expected a Dask array, series or data frame, got {values!r}")
    made = np.asarray(values.to_delayed(), dtype=object)
    if made.ndim > 1 and made.shape[1:] != (1,):
        raise ValueError(f"expected one column, got {values!r}")
    futures = client.compute([delayed(np.asarray)(part) for part in made.ravel().tolist()])
    try:
        parts = client.gather(futures)
    except BaseException:  # an interruption leaves no work behind
        client.cancel(futures)
        raise
    lengths = np.array([len(part) for part in parts], dtype=np.int64)
    filled = [part for part in parts if len(part)] or parts[:1]
    if any(part.dtype == object for part in filled):
        filled = [part.astype(object) for part in filled]
    return lengths, np.concatenate(filled)


def _length(part: Any) -> int:
    return int(part.shape[0])
