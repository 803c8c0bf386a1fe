"""Dask collections as tables: read partition by partition, where the partitions are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask import delayed
from distributed import KilledWorker, get_worker
from distributed.client import FutureCancelledError
from numpy.typing import NDArray

from greedymiser._core.threads import Threads
from greedymiser.data.binning import BinMapper, BinnedMatrix, PartedTable
from greedymiser.data.tables import (
    Categories,
    FrameTable,
    Parted,
    Rows,
    Table,
    as_table,
    distinct_labels,
    is_frame,
    joined_labels,
    refuse_dates,
    unmasked,
)
from greedymiser.engines.dask.session import Session
from greedymiser.engines.dask.stores import Store
from greedymiser.engines.dask.worker import open_session

# Columns that are read at a time.
BLOCK = 8

# How often a pass over all partitions is begun again when what was sent for it is lost.
ATTEMPTS = 3


@dataclass(frozen=True)
class PartReader:
    """How a worker reads one partition."""

    part: int
    n_rows: int
    n_columns: int
    # Of a data frame; None for an array.
    names: list[Any] | None
    categories: Categories

    def table(self, part: Any) -> Table:
        """A partition, checked. Columns of a data frame go by name, in whatever order they are."""
        if not is_frame(part) and not hasattr(part, "tocsr"):
            part = np.asarray(unmasked(part))
            if part.dtype.kind not in "biuf":
                refuse_dates(part)
                part = part.astype(np.float64)
        if part.shape != (self.n_rows, self.n_columns):
            raise ValueError(
                f"partition {self.part} of X has shape {part.shape}, but it should be "
                f"{(self.n_rows, self.n_columns)}: it is not the same each time it is made"
            )
        if self.names is None or not is_frame(part):
            return as_table(part, self.categories)
        missing = set(self.names).difference(FrameTable(part).names)
        if missing:
            name = next(name for name in self.names if name in missing)
            raise ValueError(f"partition {self.part} of X lacks the column {name!r}")
        return FrameTable(part, self.categories, self.names)


class Parts(Parted):
    """X as partitions that a cluster makes when they are asked for.

    Parameters
    ----------
    session : Session
    made : sequence of Delayed
        One per partition.
    lengths : array of int
        Rows of each partition.
    n_columns : int
    head : data frame without rows, or None
    """

    def __init__(
        self,
        session: Session,
        made: Sequence[Any],
        lengths: NDArray[np.int64],
        n_columns: int,
        head: Any,
    ):
        self.session = session
        self.lengths = lengths
        self.offsets = np.append(0, np.cumsum(lengths)).astype(np.int64)
        self.shape = int(self.offsets[-1]), n_columns
        self.head = head
        self._made = list(made)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def n_parts(self) -> int:
        return len(self._made)

    def table(self, categories: Categories) -> DaskTable:
        return DaskTable(self, categories)

    def distinct(self, columns: Sequence[int], rows: Rows) -> list[NDArray[Any]]:
        if not columns:
            return []
        distinct = self.table({}).map(_labels_of_part, list(columns), each=self.chosen(rows))
        parts = [part for part in distinct if part is not None]
        return [joined_labels(labels) for labels in zip(*parts, strict=True)]

    def chosen(self, rows: Rows) -> list[NDArray[np.int64] | None]:
        """The chosen rows of each partition, by their number there, ascending."""
        if rows is None:
            return [None] * self.n_parts
        ordered = np.sort(rows)
        edges = np.searchsorted(ordered, self.offsets)
        return [ordered[edges[i] : edges[i + 1]] - self.offsets[i] for i in range(self.n_parts)]

    def map(
        self,
        function: Callable[..., Any],
        shared: Any,
        each: Sequence[tuple[int, Any]],
        which: Sequence[int] | None = None,
    ) -> list[Any]:
        """What a function says of each partition, given what all share and what is its own."""
        which = range(self.n_parts) if which is None else which
        for _ in range(ATTEMPTS):
            try:
                return self._mapped(function, shared, each, which)
            except FutureCancelledError as error:  # what was sent was on a worker that is gone
                lost = error
        raise lost

    def _mapped(
        self,
        function: Callable[..., Any],
        shared: Any,
        each: Sequence[tuple[int, Any]],
        which: Sequence[int],
    ) -> list[Any]:
        client = self.session.client
        common = client.scatter([shared], broadcast=True, hash=False)[0]
        own = [each[i] for i in which]
        if any(mine is not None for _, mine in own):
            own = client.scatter(own, hash=False)
        tasks = [
            delayed(function, pure=False)(self._made[i], common, mine)
            for i, mine in zip(which, own, strict=True)
        ]
        futures = client.compute(tasks)
        try:
            return list(client.gather(futures))
        except KilledWorker as error:
            raise self._too_large(which) from error
        except BaseException:  # an interruption leaves no work behind
            client.cancel(futures)
            raise

    def _too_large(self, which: Sequence[int]) -> MemoryError:
        largest = max(which, key=self.lengths.__getitem__)
        n, d = int(self.lengths[largest]), self.shape[1]
        return MemoryError(
            f"workers died again and again over partitions of X: the largest, number {largest}, "
            f"has {n} rows x {d} columns, {n * d * 8 / 2**30:.2f} GiB as floats. If that is more "
            "than a worker can hold besides the codes of its rows, make partitions smaller "
            "(repartition, rechunk) or give workers more memory"
        )


class DaskTable(PartedTable):
    """A table in the partitions of a Dask collection."""

    def __init__(self, parts: Parts, categories: Categories):
        self.parts = parts
        self.categories = categories
        self.n_rows, self.n_columns = parts.shape
        self._store: PartStore | None = None

    def map(
        self,
        function: Callable[..., Any],
        *shared: Any,
        each: Sequence[Any] | None = None,
        which: Sequence[int] | None = None,
    ) -> list[Any]:
        """What a function of (table, *shared, own, number) says of each partition."""
        head = self.parts.head
        names = None if head is None else list(FrameTable(head).names)
        readings = [
            PartReader(i, n, self.n_columns, names, self.categories)
            for i, n in enumerate(self.parts.lengths.tolist())
        ]
        arguments = (function, readings, shared)
        numbered = list(enumerate([None] * len(readings) if each is None else each))
        return self.parts.map(_of_part, arguments, numbered, which)

    def sample(self, rows: Rows, sampled: Rows) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Bring some rows here, 8 bytes a value: up to 1.6 MB a column. All partitions are read."""
        own = zip(self.parts.chosen(rows), self.parts.chosen(sampled), strict=True)
        samples = self.map(_sampled, each=list(own))
        has_missing = np.logical_or.reduce([missing for _, missing in samples])
        return np.concatenate([values for values, _ in samples], axis=1), has_missing

    def bin(self, mapper: BinMapper, rows: Rows) -> BinnedParts:
        if self._store is None or self._store.mapper is not mapper:
            self._store = PartStore(self, mapper)
        return BinnedParts(**vars(self._store.head), store=self._store, chosen=rows)

    def of_parts(self, function: Callable[[Table], Any]) -> list[Any]:
        filled = np.flatnonzero(self.parts.lengths).tolist()
        return self.map(_applied, function, which=filled)

    def columns(self, wanted: Sequence[int], rows: Rows) -> NDArray[np.float64]:
        block = np.concatenate(self.map(_columns_of_part, list(wanted)), axis=1)
        return block if rows is None else np.ascontiguousarray(block[:, rows])

    def take(self, rows: Rows) -> Any:
        """Chosen rows as the user would pass them, brought here."""
        parts = self.map(_taken, each=self.parts.chosen(rows))
        if is_frame(self.parts.head):
            import pandas as pd

            whole = pd.concat([part for part in parts if len(part)])[list(self.parts.head.columns)]
            place = None if rows is None else np.argsort(np.argsort(rows, kind="stable"))
            return whole if place is None else whole.iloc[place]
        whole = np.concatenate(parts)
        return whole if rows is None else whole[np.argsort(np.argsort(rows, kind="stable"))]


@dataclass(frozen=True)
class BinnedParts(BinnedMatrix):
    """Binned rows that are on workers; there are no codes here."""

    store: Store
    chosen: Rows

    @property
    def n_rows(self) -> int:
        return self.store.n_rows if self.chosen is None else len(self.chosen)


class PartStore(Store):
    """Codes that workers make of partitions. The floats are let go."""

    def __init__(self, table: DaskTable, mapper: BinMapper):
        super().__init__(table.parts.session, mapper.without_rows(), table.parts.offsets)
        self.mapper = mapper
        self._table = table

    def _make(self, chunks: Sequence[int], alive: Sequence[str]) -> None:
        arguments = (self.mapper, self.session.id, self.name)
        found = self._table.map(_keep_codes, *arguments, which=chunks)
        for chunk, worker in zip(chunks, found, strict=True):
            self.where[chunk] = worker


# -- on workers -----------------------------------------------------------------------------------


def _of_part(part: Any, arguments: Any, own: tuple[int, Any]) -> Any:
    function, readings, shared = arguments
    number, mine = own
    return function(readings[number].table(part), *shared, own=mine, number=number)


def _sampled(table: Table, own: tuple[Rows, Rows], number: int) -> Any:
    """Sampled rows, and which columns have missing values in any of the chosen rows."""
    rows, sampled = own
    n = table.n_rows if sampled is None else len(sampled)
    values, has_missing = np.empty((table.n_columns, n)), np.zeros(table.n_columns, dtype=bool)
    for first in range(0, table.n_columns, BLOCK):
        block = slice(first, min(first + BLOCK, table.n_columns))
        read = table.columns(range(block.start, block.stop), None)
        values[block] = read if sampled is None else read[:, sampled]
        has_missing[block] = np.isnan(read if rows is None else read[:, rows]).any(axis=1)
    return values, has_missing


def _labels_of_part(table: Table, columns: list[int], own: Rows, number: int) -> Any:
    if table.n_rows == 0 or (own is not None and len(own) == 0):
        return None
    return distinct_labels(table, columns, own)


def _columns_of_part(table: Table, wanted: list[int], own: Any, number: int) -> Any:
    return table.columns(wanted, None)


def _taken(table: Table, own: Rows, number: int) -> Any:
    return table.take(own)


def _applied(table: Table, function: Callable[[Table], Any], own: Any, number: int) -> Any:
    return function(table)


def _keep_codes(
    table: Table, mapper: BinMapper, session: str, store: str, own: Any, number: int
) -> str:
    worker = get_worker()
    with Threads(1) as threads:
        codes = mapper.transform(table, None, threads).codes
    open_session(session, worker).put(store, number, codes)
    return worker.address
