"""Every kind of X, seen as blocks of numeric columns.

Binning and prediction read a table a few columns or a few rows at a time, so that a data frame or
a sparse matrix is never copied whole. Categories become codes here: the k-th known category is
k, and what is missing or unknown is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import narwhals as nw
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Rows = NDArray[np.intp] | None
"""Chosen rows, by position; None for all of them."""

Categories = dict[int, NDArray[Any]]
"""The known categories of each categorical column, sorted, by position of the column."""


class Table(Protocol):
    """A matrix that gives out float64 blocks."""

    n_rows: int
    n_columns: int

    def columns(self, wanted: Sequence[int], rows: Rows) -> NDArray[np.float64]:
        """Chosen rows of the wanted columns, as a C-ordered array (columns, rows)."""

    def rows(self, start: int, stop: int, wanted: Sequence[int]) -> NDArray[np.floating]:
        """Rows ``start:stop``, as an array (rows, columns); only ``wanted`` columns are filled."""


class ArrayTable:
    """A dense NumPy array."""

    def __init__(self, array: NDArray[Any], categories: Categories | None = None):
        self.array = array
        self.n_rows, self.n_columns = array.shape
        self.categories = categories or {}

    def columns(self, wanted: Sequence[int], rows: Rows) -> NDArray[np.float64]:
        first, last = wanted[0], wanted[-1]
        if list(wanted) == list(range(first, last + 1)):
            part = self.array[:, first : last + 1]  # a view: neighbours are not copied twice
        else:
            part = self.array[:, wanted]
        block = np.array(part.T if rows is None else part[rows].T, dtype=np.float64, order="C")
        for i, column in enumerate(wanted):
            if column in self.categories:
                block[i] = encode(block[i], self.categories[column])
        return block

    def rows(self, start: int, stop: int, wanted: Sequence[int]) -> NDArray[np.floating]:
        block = self.array[start:stop]
        if block.dtype not in (np.float32, np.float64) or self.categories:
            block = block.astype(np.float64)
        # One layout, so that the prediction kernels are compiled for few types.
        block = np.require(block, requirements=["C", "W"])
        if self.categories:
            for column, known in self.categories.items():
                block[:, column] = encode(block[:, column], known)
        return block


class SparseTable:
    """A SciPy sparse matrix; what is not stored is zero, as in scikit-learn."""

    def __init__(self, matrix: Any, categories: Categories | None = None):
        self.matrix = matrix
        self.n_rows, self.n_columns = matrix.shape
        self.categories = categories or {}
        self._by_column: Any = None
        self._by_row: Any = None

    def columns(self, wanted: Sequence[int], rows: Rows) -> NDArray[np.float64]:
        if self._by_column is None:
            self._by_column = self.matrix.tocsc()
        dense = self._by_column[:, wanted].toarray()
        known = {i: self.categories[c] for i, c in enumerate(wanted) if c in self.categories}
        return ArrayTable(dense, known).columns(range(len(wanted)), rows)

    def rows(self, start: int, stop: int, wanted: Sequence[int]) -> NDArray[np.floating]:
        if self._by_row is None:
            self._by_row = self.matrix.tocsr()
        dense = self._by_row[start:stop].toarray()
        return ArrayTable(dense, self.categories).rows(0, len(dense), wanted)


class FrameTable:
    """A pandas, polars or pyarrow table, read column by column."""

    def __init__(self, frame: Any, categories: Categories | None = None):
        self.frame = nw.from_native(frame, eager_only=True)
        self.n_rows, self.n_columns = self.frame.shape
        self.categories = categories or {}

    def _column(self, index: int, rows: slice | None = None) -> NDArray[np.float64]:
        series = self.frame[:, index] if rows is None else self.frame[rows, index]
        if index in self.categories:
            return encode(_objects(series), self.categories[index])
        return _numbers(series)

    def columns(self, wanted: Sequence[int], rows: Rows) -> NDArray[np.float64]:
        whole = [self._column(index) for index in wanted]
        return np.stack(whole if rows is None else [column[rows] for column in whole])

    def rows(self, start: int, stop: int, wanted: Sequence[int]) -> NDArray[np.floating]:
        block = np.full((stop - start, self.n_columns), np.nan)
        for index in wanted:
            block[:, index] = self._column(index, slice(start, stop))
        return block


def is_frame(X: Any) -> bool:
    """Whether X is a data frame that narwhals can read."""
    return not isinstance(X, np.ndarray) and (
        nw.dependencies.is_into_dataframe(X) and not isinstance(X, dict)
    )


def as_table(X: Any, categories: Categories | None = None) -> Table:
    """Wrap a checked X (array, sparse matrix or data frame)."""
    if sparse.issparse(X):
        return SparseTable(X, categories)
    if is_frame(X):
        return FrameTable(X, categories)
    return ArrayTable(X, categories)


def categorical_columns(frame: Any) -> list[int]:
    """Positions of the columns whose type says that they are categorical."""
    kinds = nw.from_native(frame, eager_only=True).schema.dtypes()
    return [i for i, kind in enumerate(kinds) if isinstance(kind, nw.Categorical | nw.Enum)]


def learn_categories(X: Any, columns: Sequence[int], rows: Rows, most: int) -> Categories:
    """Sorted distinct values of the categorical columns, at most ``most`` of them each."""
    known: Categories = {}
    for index in columns:
        if is_frame(X):
            values = _objects(nw.from_native(X, eager_only=True)[:, index])
        else:
            values = as_table(X).columns([index], None)[0]
        distinct = _distinct(values if rows is None else values[rows])
        if len(distinct) > most:
            raise ValueError(
                f"categorical feature {index} has {len(distinct)} categories, "
                f"but max_bins allows at most {most}"
            )
        known[index] = distinct
    return known


def encode(values: NDArray[Any], known: NDArray[Any]) -> NDArray[np.float64]:
    """Position of each value among the known categories, NaN where it is missing or unknown."""
    codes = np.full(len(values), np.nan)
    if len(known) == 0:
        return codes
    if values.dtype == object or known.dtype == object:
        position = {value: float(i) for i, value in enumerate(known.tolist())}
        distinct, inverse = _factorize(values)
        return np.array([position.get(value, np.nan) for value in distinct] or [np.nan])[inverse]
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    found = known[places] == values
    codes[found] = places[found]
    return codes


def _factorize(values: NDArray[Any]) -> tuple[list[Any], NDArray[np.intp]]:
    position: dict[Any, int] = {}
    inverse = np.array([position.setdefault(v, len(position)) for v in values.tolist()], np.intp)
    return list(position), inverse


def _distinct(values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype != object:
        return np.unique(values[~np.isnan(values)])
    present = {value for value in values.tolist() if not _is_missing(value)}
    try:
        ordered = sorted(present)
    except TypeError:  # a mixture, such as strings and numbers
        ordered = sorted(present, key=lambda value: (type(value).__name__, str(value)))
    result = np.empty(len(ordered), dtype=object)
    result[:] = ordered
    return result


def _is_missing(value: Any) -> bool:
    return value is None or value != value


def _objects(series: Any) -> NDArray[Any]:
    """Values of a categorical column as Python objects; what is missing is None."""
    values = series.to_list()
    result = np.empty(len(values), dtype=object)
    result[:] = [None if _is_missing(value) else value for value in values]
    return result


def _numbers(series: Any) -> NDArray[np.float64]:
    """Values of a numeric column as float64; what is missing is NaN."""
    if not (series.dtype.is_numeric() or series.dtype == nw.Boolean):
        values = _try_floats(series)
        if values is None:
            raise ValueError(
                f"column {series.name!r} has type {series.dtype}, which is not numeric; "
                "make it a categorical column, encode it or drop it"
            )
        return values
    if series.null_count():
        return series.cast(nw.Float64).fill_null(float("nan")).to_numpy().astype(np.float64)
    return series.to_numpy().astype(np.float64, copy=False)


def _try_floats(series: Any) -> NDArray[np.float64] | None:
    """Numbers that live in a column of objects, or None where there is anything else."""
    if series.dtype != nw.Object:
        return None
    try:
        return np.array([np.nan if v is None else v for v in series.to_list()], dtype=np.float64)
    except (TypeError, ValueError):
        return None
