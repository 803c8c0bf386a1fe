"""Every kind of X, seen as blocks of numeric columns.

Binning and prediction read a table a few columns or a few rows at a time, so that a data frame or
a sparse matrix is never copied whole. Categories become codes here: the k-th known category is
k, and what is missing or unknown is NaN.
"""

from __future__ import annotations

import datetime as dt
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from functools import wraps
from numbers import Number
from typing import Any, Protocol, TypeVar, cast

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.intp] | None
"""Chosen rows, by position; None for all of them."""

Method = TypeVar("Method", bound=Callable[..., Any])

Categories = dict[int, NDArray[Any]]
"""The known categories of each categorical column, sorted, by position of the column."""

# What the prediction kernels can read as it is.
PLAIN_DTYPES = (np.dtype(np.float64), np.dtype(np.float32))

# So few rows of a frame are turned into an array at once: a call per column would take longer.
FEW_ROWS = 64

# So many rows are turned into columns at a time: they stay in the cache until the last column.
ROWS_TURNED = 1024

# Smaller integers are all different as floats.
EXACT_INTEGERS = 2**53


class Table(Protocol):
    """A matrix that gives out float64 blocks."""

    n_rows: int
    n_columns: int
    categories: Categories

    def columns(self, wanted: Sequence[int], rows: Rows) -> NDArray[np.float64]:
        """Chosen rows of the wanted columns, as a C-ordered array (columns, rows)."""

    def rows(self, start: int, stop: int, wanted: Sequence[int]) -> NDArray[np.floating]:
        """Rows ``start:stop``, as an array (rows, columns); only ``wanted`` columns are filled."""

    def take(self, rows: Rows) -> Any:
        """Chosen rows as the user would pass them, categories and all."""


class Parted(ABC):
    """X that lies in parts, elsewhere."""

    # Of the whole.
    shape: tuple[int, int]
    # A data frame without rows that has the same columns; None where X is no frame.
    head: Any = None

    @abstractmethod
    def table(self, categories: Categories) -> Any:
        """The same, as a table (``binning.PartedTable``)."""

    @abstractmethod
    def distinct(self, columns: Sequence[int], rows: Rows) -> list[NDArray[Any]]:
        """Distinct labels of some columns (``distinct_labels``) in the chosen rows."""


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
        block = np.empty((len(wanted), self.n_rows if rows is None else len(rows)))
        for start in range(0, block.shape[1], ROWS_TURNED):
            some = slice(start, start + ROWS_TURNED)
            block[:, some] = (part[some] if rows is None else part[rows[some]]).T
        for i, column in enumerate(wanted):
            if column in self.categories:
                block[i] = codes_of_labels(block[i], self.categories[column])
        return block

    def rows(self, start: int, stop: int, wanted: Sequence[int]) -> NDArray[np.floating]:
        block = self.array[start:stop]
        if block.dtype not in PLAIN_DTYPES or self.categories:
            block = block.astype(np.float64)
        # One layout, so that the prediction kernels are compiled for few types.
        if not block.flags.carray:
            block = np.array(block, order="C")
        for column in wanted if self.categories else ():
            if column in self.categories:
                block[:, column] = codes_of_labels(block[:, column], self.categories[column])
        return block

    @property
    def is_plain(self) -> bool:
        """Whether ``rows`` gives out parts of the array, and converts nothing."""
        plain = self.array.dtype in PLAIN_DTYPES and not self.categories
        return plain and bool(self.array.flags.carray)

    def take(self, rows: Rows) -> NDArray[Any]:
        return self.array if rows is None else self.array[rows]


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
        dense = self._rowwise()[start:stop].toarray()
        return ArrayTable(dense, self.categories).rows(0, len(dense), wanted)

    def take(self, rows: Rows) -> Any:
        return self.matrix if rows is None else self._rowwise()[rows]

    def _rowwise(self) -> Any:
        if self._by_row is None:
            self._by_row = self.matrix.tocsr()
        return self._by_row


class FrameTable:
    """A pandas, polars or pyarrow table, read column by column.

    Columns are counted as they come, or as in ``names``: then they may be in any order, and those
    that nobody asks for need not be there.
    """

    def __init__(
        self,
        frame: Any,
        categories: Categories | None = None,
        names: Sequence[str] | None = None,
    ):
        self.frame = opened(frame)
        self.n_rows, self.n_columns = self.frame.shape
        self.categories = categories or {}
        # Categorical columns whose labels were compared with the known ones.
        self._compared: set[int] = set()
        # Asked for once: a frame makes the list of its names anew each time.
        self.names: Sequence[Any] = self.frame.columns
        self._as_it_is = names is None or list(names) == self.names
        if names is not None and not self._as_it_is:
            self.names, self.n_columns = names, len(names)

    def _column(self, index: int, start: int, stop: int) -> NDArray[np.float64]:
        # By name, which a frame looks up in a table; to take a column by its number, narwhals looks
        # at all of them.
        series = self.frame.get_column(self.names[index])
        if index in self.categories and index not in self._compared:
            _refuse_other_labels(series, self.categories[index])  # of all rows: a part may be odd
            self._compared.add(index)
        if stop - start < self.n_rows:
            series = series[start:stop]
        if index in self.categories:
            return codes_of_labels(_labels_of_series(series), self.categories[index])
        return _numbers_of_series(series)

    def columns(self, wanted: Sequence[int], rows: Rows) -> NDArray[np.float64]:
        whole = [self._column(index, 0, self.n_rows) for index in wanted]
        return np.stack(whole if rows is None else [column[rows] for column in whole])

    def rows(self, start: int, stop: int, wanted: Sequence[int]) -> NDArray[np.floating]:
        if stop - start <= FEW_ROWS and not self.categories and self._as_it_is:
            part = self.frame if stop - start == self.n_rows else self.frame[start:stop]
            whole = part.to_numpy()
            if whole.dtype.kind in "biuf":
                return np.require(whole, np.float64, ["C", "W"])
        block = np.full((stop - start, self.n_columns), np.nan)
        for index in wanted:
            block[:, index] = self._column(index, start, stop)
        return block

    def take(self, rows: Rows) -> Any:
        return (self.frame if rows is None else self.frame[rows]).to_native()


def is_frame(X: Any) -> bool:
    """Whether X is a data frame that narwhals can read."""
    return not isinstance(X, np.ndarray) and (
        nw.dependencies.is_into_dataframe(X) and not isinstance(X, dict)
    )


def opened(frame: Any) -> Any:
    """A data frame as narwhals reads it; raises if two of its columns have one name."""
    try:
        return nw.from_native(frame, eager_only=True)
    except nw.exceptions.DuplicateError:
        names = getattr(frame, "column_names", None) or list(frame.columns)
        name, n = Counter(names).most_common(1)[0]
        times = "twice" if n == 2 else f"{n} times"
        raise ValueError(f"X has the column {name!r} {times}; rename or drop one of them") from None


def unmasked(X: Any) -> Any:
    """X with NaN where a masked array hides what it holds; anything else as it is."""
    if not isinstance(X, np.ma.MaskedArray):
        return X
    return np.where(np.ma.getmaskarray(X), np.nan, np.ma.getdata(X).astype(np.float64))


def refuse_dates(X: Any) -> None:
    """Raise if an array holds dates: as numbers they would depend on their unit."""
    kind = getattr(X.dtype, "kind", "")
    if kind in ("m", "M"):
        such = "days since a date" if kind == "M" else "a number of days"
        raise ValueError(
            f"X holds {X.dtype}, which is not numeric; turn it into numbers first, such as {such}"
        )


def is_lazy(X: Any) -> bool:
    """Whether X is a Dask collection."""
    return hasattr(type(X), "__dask_graph__")


def or_lazily(method: Method) -> Method:
    """Make a method of a model return a Dask collection where it is given one."""

    @wraps(method)
    def answer(self: Any, X: Any, *args: Any, **kwargs: Any) -> Any:
        if is_lazy(X):
            from greedymiser.data.lazy import lazily

            return lazily(self, method.__name__, X)
        return method(self, X, *args, **kwargs)

    return cast(Method, answer)


def refuse_lazy(X: Any) -> None:
    """Raise if X is a frame that has not been computed yet."""
    if hasattr(X, "collect"):
        raise TypeError(f"X is a lazy {type(X).__name__}; call its collect() first")


def readable(X: Any) -> Any:
    """X as tables hold it: a data frame, a sparse matrix or an array of numbers, (rows, columns).

    What is already one of them is not copied; its columns are not looked at.
    """
    if type(X) is np.ndarray and X.ndim == 2 and X.dtype.kind in "biuf":
        return X
    if is_frame(X):
        return X
    if _is_sparse(X):
        if X.dtype.kind not in "biuf":
            raise ValueError(f"X must be numeric, got a sparse matrix of {X.dtype}")
        return _in_two_dimensions(X)
    refuse_lazy(X)
    return _in_two_dimensions(_as_numbers(X))


def _is_sparse(X: Any) -> bool:
    """Whether X is a sparse matrix. Who has one has loaded SciPy, which takes a while."""
    sparse = sys.modules.get("scipy.sparse")
    return sparse is not None and bool(sparse.issparse(X))


def _as_numbers(X: Any) -> NDArray[np.float64]:
    try:
        array = np.asarray(unmasked(X))
        refuse_dates(array)
        if array.dtype.kind in "cSU":
            raise TypeError(f"got {array.dtype}")
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"X must be numeric: {error}") from None


def _in_two_dimensions(X: Any) -> Any:
    if X.ndim != 2:
        raise ValueError(
            f"X must have two dimensions, got shape {X.shape}; "
            "for a single row pass X.reshape(1, -1)"
        )
    return X


def as_table(X: Any, categories: Categories | None = None) -> Table:
    """Wrap a checked X (array, sparse matrix or data frame)."""
    if isinstance(X, Parted):
        return X.table(categories or {})
    if _is_sparse(X):
        return SparseTable(X, categories)
    if is_frame(X):
        return FrameTable(X, categories)
    return ArrayTable(X, categories)


def chosen(table: Table, rows: Rows) -> Table:
    """Some rows of a table, as a table."""
    if isinstance(table, FrameTable):
        return FrameTable(table.take(rows), table.categories, table.names)
    return as_table(table.take(rows), table.categories)


def categorical_columns(X: Any) -> list[int]:
    """Positions of the columns of a frame whose type says that they are categorical."""
    frame = X.head if isinstance(X, Parted) else X
    if not is_frame(frame):
        return []
    kinds = opened(frame).schema.dtypes()
    return [i for i, kind in enumerate(kinds) if isinstance(kind, nw.Categorical | nw.Enum)]


def learn_categories(X: Any, columns: Sequence[int], rows: Rows, most: int) -> Categories:
    """Sorted distinct values of the categorical columns, at most ``most`` of them each."""
    if isinstance(X, Parted):
        distinct, frame = X.distinct(columns, rows), X.head
    else:
        distinct, frame = distinct_labels(as_table(X), columns, rows), X
    for index, labels in zip(columns, distinct, strict=True):
        if len(labels) > most:
            name = index if not is_frame(frame) else FrameTable(frame).names[index]
            raise ValueError(
                f"categorical feature {name!r} has {len(labels)} categories, "
                f"but max_bins={most} allows at most {most}; leave the column out (--drop does on "
                "the command line), or turn it into numbers or into fewer categories"
            )
    return dict(zip(columns, distinct, strict=True))


def distinct_labels(table: Table, columns: Sequence[int], rows: Rows) -> list[NDArray[Any]]:
    """Sorted distinct values of some columns, as they are before they become codes."""
    distinct = []
    for index in columns:
        if isinstance(table, FrameTable):
            labels = _labels_of_series(table.frame.get_column(table.names[index]))
        else:
            labels = table.columns([index], None)[0]
        distinct.append(_present_labels(labels if rows is None else labels[rows]))
    return distinct


def joined_labels(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """What ``distinct_labels`` says of a column, given what it says of its parts."""
    if any(part.dtype == object for part in parts):
        parts = [part.astype(object) for part in parts]
    return _present_labels(np.concatenate(parts))


def codes_of_labels(labels: NDArray[Any], known: NDArray[Any]) -> NDArray[np.float64]:
    """Position of each label among the known categories, NaN where it is missing or unknown."""
    if labels.dtype == object or known.dtype == object or not _comparable(labels, known):
        position = {label: float(i) for i, label in enumerate(known.tolist())}
        return np.array([position.get(label, np.nan) for label in labels.tolist()])
    codes = np.full(len(labels), np.nan)
    if len(known) > 0:
        places = np.minimum(np.searchsorted(known, labels), len(known) - 1)
        is_known = known[places] == labels
        codes[is_known] = places[is_known]
    return codes


def _comparable(labels: NDArray[Any], known: NDArray[Any]) -> bool:
    """Whether NumPy's == says of these numbers what Python's does."""
    return labels.dtype.kind == known.dtype.kind or not _has_large(known)


def _has_large(numbers: NDArray[Any]) -> bool:
    """Whether some that differ would be equal as floats."""
    if len(numbers) == 0 or numbers.dtype.kind not in "iuf":
        return False
    return bool(numbers.max() >= EXACT_INTEGERS or numbers.min() <= -EXACT_INTEGERS)


def _present_labels(labels: NDArray[Any]) -> NDArray[Any]:
    if labels.dtype != object:
        return np.unique(labels[labels == labels])
    present = {label for label in set(labels.tolist()) if not is_missing(label)}
    try:
        ordered = sorted(present)
    except TypeError:  # a mixture, such as strings and numbers
        ordered = sorted(present, key=lambda label: (type(label).__name__, str(label)))
    result = np.empty(len(ordered), dtype=object)
    result[:] = ordered
    return result


def is_missing(value: Any) -> bool:
    """None, NaN, and pandas' NA, which does not say whether it differs from itself."""
    if value is None or type(value).__name__ == "NAType":
        return True
    differs = value != value
    return bool(differs) if isinstance(differs, bool | np.bool_) else False  # an array is no NaN


def _dates(labels: NDArray[Any]) -> NDArray[Any]:
    """Dates and durations as objects; NumPy would make integers of those in nanoseconds."""
    if np.datetime_data(labels.dtype)[0] != "ns":
        return labels.astype(object)
    in_microseconds = labels.astype(f"{labels.dtype.kind}8[us]")
    if np.array_equal(in_microseconds, labels, equal_nan=True):
        return in_microseconds.astype(object)
    objects = np.empty(len(labels), dtype=object)
    objects[:] = list(labels)  # Python has none that are finer
    return objects


def _labels_of_series(series: Any) -> NDArray[Any]:
    """Values of a categorical column: numbers if it holds numbers, else Python objects.

    Integers that a float cannot hold are objects too where some are missing.
    """
    labels: NDArray[Any] = series.to_numpy()
    if labels.dtype.kind in "mM":
        labels = _dates(labels)
    is_number = labels.dtype.kind in "biuf"
    if series.null_count() == 0:
        return labels if is_number else labels.astype(object)
    missing = series.is_null().to_numpy()
    if is_number:
        present = series.filter(~series.is_null()).to_numpy()
        if present.dtype.kind in "iu" and _has_large(present):
            labels = np.full(len(missing), None, dtype=object)
            labels[~missing] = present.tolist()
            return labels
    labels = labels.astype(np.float64 if is_number else object)
    # Set again: pyarrow gives some category to the missing entries of a dictionary.
    labels[missing] = np.nan if is_number else None
    return labels


def _refuse_other_labels(series: Any, known: NDArray[Any]) -> None:
    """Raise if no label of a column is of a kind that any known category is of.

    A file whose labels happen to be digits is read as numbers, and none of them is the text that
    the model knows: every row would be unknown, and nobody would notice.
    """
    here, there = _kinds_in_series(series), _label_kinds(known)
    # True is 1 in Python.
    if {0, 1}.intersection(known.tolist()) and here & {"numbers", "truth values"}:
        return
    if not here or not there or here & there:
        return
    raise ValueError(
        f"column {series.name!r} has type {series.dtype} and holds {' and '.join(sorted(here))}, "
        f"but its categories in training were {' and '.join(sorted(there))}, such as "
        f"{known.tolist()[0]!r}: none of them can match; give the column the type that it had in "
        "training"
    )


def _kinds_in_series(series: Any) -> set[str]:
    """What kinds of things a column holds; by its type where that says it."""
    if series.null_count() == len(series):
        return set()
    if series.dtype.is_integer():
        return {"numbers"}
    if series.dtype == nw.Boolean:
        return {"truth values"}
    return {"text"} if series.dtype == nw.String else _label_kinds(_labels_of_series(series))


def _label_kinds(labels: NDArray[Any]) -> set[str]:
    """What kinds of things the labels are; labels of two kinds are never equal."""
    if labels.dtype.kind in "iuf":
        return {"numbers"} if (labels == labels).any() else set()
    types = {type(label) for label in labels.tolist() if not is_missing(label)}
    return {_kind_of_type(kind) for kind in types}


def _kind_of_type(kind: type) -> str:
    if issubclass(kind, str):
        return "text"
    if issubclass(kind, bool | np.bool_):
        return "truth values"
    if issubclass(kind, Number | np.number):
        return "numbers"
    return kind.__name__


def _numbers_of_series(series: Any) -> NDArray[np.float64]:
    """Values of a numeric column as float64; what is missing is NaN."""
    if series.dtype.is_float():
        values = series.to_numpy()
        if values.dtype.kind == "f":  # the short way for what there is most of
            return values.astype(np.float64, copy=False)
    n_missing = series.null_count()
    if n_missing == len(series):  # whatever its type: that of a column of None is anyone's guess
        return np.full(len(series), np.nan)
    if not (series.dtype.is_numeric() or series.dtype == nw.Boolean):
        floats = _try_floats(series)
        if floats is None:
            raise ValueError(
                f"column {series.name!r} has type {series.dtype}, which is not numeric; "
                f"{_way_to_numbers(series)}"
            )
        return floats
    if n_missing == 0:
        return series.to_numpy().astype(np.float64, copy=False)
    # By way of 0: some pandas types take NaN for missing, and would not be filled with it. Integers
    # become floats in NumPy: Arrow refuses those that a float rounds.
    whole = series if series.dtype.is_integer() else series.cast(nw.Float64)
    values = np.array(whole.fill_null(0).to_numpy(), dtype=np.float64)
    values[series.is_null().to_numpy()] = np.nan
    return values


def _way_to_numbers(series: Any) -> str:
    """What to do with a column that is not numeric. Each date as a category would learn nothing."""
    kind, first = series.dtype, series.drop_nulls()[0]
    if kind == nw.Duration or isinstance(first, dt.timedelta):
        return "turn it into a number, such as its length in days, or drop it"
    if kind == nw.Time or isinstance(first, dt.time):
        return "turn it into a number, such as hours since midnight, or drop it"
    if kind.is_temporal() or isinstance(first, dt.date):
        return "turn it into a number, such as days since a date, or drop it"
    return "make it a categorical column, encode it or drop it"


def _try_floats(series: Any) -> NDArray[np.float64] | None:
    """Numbers in a column of objects or of an unknown type; None where there is anything else."""
    if series.dtype == nw.Unknown and series.to_numpy().dtype.kind in "biuf":  # pandas' sparse type
        return series.to_numpy().astype(np.float64)
    if series.dtype != nw.Object:
        return None
    try:
        return np.array([np.nan if is_missing(v) else float(v) for v in series.to_list()])
    except (TypeError, ValueError):
        return None
