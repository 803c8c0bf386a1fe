"""The training matrix: all columns of all objects."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import joblib
import numpy as np
from numpy.typing import NDArray

from greedymiser._core.progress import Bar
from greedymiser._core.threads import thread_count
from greedymiser.data.tables import EXACT_INTEGERS
from greedymiser.on_demand.fetcher import FailureLog, Fetcher, each_object
from greedymiser.on_demand.policies import read_timeouts
from greedymiser.on_demand.request import Plan, Request
from greedymiser.on_demand.sources import AcquisitionError, Source, Sources

# Objects that are looked at together; a process is sent fewer at a time.
BATCH = 256
SENT_TOGETHER = 16


def build_matrix(
    sources: Sources,
    objects: Any,
    *,
    n_jobs: int | None = 1,
    prefer: Literal["threads", "processes"] = "threads",
    concurrency: int | None = None,
    timeout: float | Mapping[str, float] | None = None,
    on_error: Literal["raise", "missing"] = "raise",
    as_frame: bool | None = None,
    verbose: int = 0,
) -> Any:
    """Make all columns of all objects: what a model is trained on.

    Parameters
    ----------
    sources : Sources
    objects : iterable of objects
        Of a data frame, each row is an object: a frame of one row.
    n_jobs : int or None
        Functions that run at once; None for all cores.
    prefer : {"threads", "processes"}
        Where they run. Threads suit functions that wait, and arrays so large that NumPy lets other
        threads run; processes suit Python code that computes, if functions and objects can be sent
        there.
    concurrency : int or None
        Coroutines of a source that run at once. None: no limit, but no more than 64 objects are
        looked at together.
    timeout : float, mapping from source to float, or None
        Seconds that a call may take.
    on_error : {"raise", "missing"}
        Raise an AcquisitionError that names the source and the object, or let the columns of the
        source be missing in that row, log it and warn, once per source.
    as_frame : bool, optional
        Return a pandas DataFrame, or a NumPy array whose columns are ``sources.column_names``.
        None: a DataFrame where pandas is installed.
    verbose : int
        1 shows a progress bar, in a terminal or a notebook.

    Returns
    -------
    DataFrame or array of shape (n, n_columns)
        Columns that hold labels are of a DataFrame's categorical type.

    Examples
    --------
    >>> from greedymiser import Sources, build_matrix
    >>> sources = Sources(raw="text")
    >>> @sources.columns("n_letters", "n_words")
    ... def sizes(text):
    ...     return len(text), len(text.split())
    >>> build_matrix(sources, ["a word", "two more words"])["n_words"].tolist()
    [2.0, 3.0]
    """
    sources.check()
    if prefer not in ("threads", "processes"):
        raise ValueError(f"prefer must be 'threads' or 'processes', got {prefer!r}")
    read_timeouts(timeout, sources, sources.plan())
    pandas = _import_pandas(as_frame)
    if sources.categorical_names and pandas is None:
        raise ValueError(
            f"column {sources.categorical_names[0]!r} holds labels, which only a data frame can; "
            "install pandas, and do not pass as_frame=False"
        )
    options = {"concurrency": concurrency, "timeout": timeout, "on_error": on_error}
    total = len(objects) if hasattr(objects, "__len__") else None
    with Bar(total, "objects", is_shown=bool(verbose)) as bar:
        if prefer == "processes" and thread_count(n_jobs) > 1:
            blocks = _in_processes(sources, objects, n_jobs, options, bar.advance)
        else:
            blocks = [_block(sources, objects, 0, bar.advance, n_jobs=n_jobs, **options)]
    whole = Block.joined(blocks, sources)
    log = FailureLog()
    log.add(whole.failures, len(whole.numbers))
    log.tell(stacklevel=2)
    return whole.numbers if pandas is None else _frame(whole, sources, pandas)


@dataclass
class Block:
    """Some rows of the matrix."""

    numbers: NDArray[np.float64]
    # Columns that hold labels, by position.
    labels: dict[int, list[Any]]
    failures: list[AcquisitionError] = field(default_factory=list)

    @classmethod
    def blank(cls, n: int, sources: Sources) -> Block:
        names, categorical = sources.column_names, set(sources.categorical_names)
        labels: dict[int, list[Any]] = {
            i: [None] * n for i, name in enumerate(names) if name in categorical
        }
        return cls(np.full((n, len(names)), np.nan), labels)

    @classmethod
    def joined(cls, blocks: Sequence[Block], sources: Sources) -> Block:
        whole = cls.blank(0, sources)
        for block in blocks:
            for column, labels in block.labels.items():
                whole.labels[column] += labels
            whole.failures += block.failures
        whole.numbers = np.concatenate([whole.numbers, *(block.numbers for block in blocks)])
        return whole


class MatrixWalk:
    """Some objects, of which all columns are fetched."""

    in_step = True

    def __init__(self, requests: Sequence[Request], plan: Plan, done: Callable[[], object] | None):
        self._waiting = [(request, plan) for request in requests]
        self._done = done

    def release(self) -> list[tuple[Request, Plan]]:
        waiting, self._waiting = self._waiting, []
        return waiting

    def follow(self, request: Request) -> Plan:
        request.raw = None  # an object that is done is let go
        request.values.clear()
        if self._done is not None:
            self._done()
        return ()


class _Matrix:
    """All columns of all objects, a batch at a time."""

    def __init__(
        self, sources: Sources, objects: Any, first: int, done: Callable[[], object] | None
    ):
        self.plan = sources.plan()
        self._sources = sources
        self._objects = each_object(objects)
        self._first = first
        self._done = done
        self._blocks: list[Block] = []
        position = {name: i for i, name in enumerate(sources.column_names)}
        self._places = [
            (source, [position[column] for column in source.columns])
            for source in self.plan
            if source.columns
        ]

    def walks(self) -> Iterator[MatrixWalk]:
        first = self._first
        while batch := list(itertools.islice(self._objects, BATCH)):
            requests = [Request(first + i, raw) for i, raw in enumerate(batch)]
            del batch
            yield MatrixWalk(requests, self.plan, self._done)
            self._blocks.append(self._block(requests))
            first += len(requests)

    def _block(self, requests: Sequence[Request]) -> Block:
        block = Block.blank(len(requests), self._sources)
        for i, request in enumerate(requests):
            for source, places in self._places:
                self._fill(block, i, request, source, places)
            block.failures += request.failures.values()
        return block

    def _fill(
        self, block: Block, i: int, request: Request, source: Source, places: Sequence[int]
    ) -> None:
        values = request.columns.get(source.name)
        if isinstance(values, np.ndarray):
            block.numbers[i, places] = values
        elif values is not None:
            for place, value in zip(places, values, strict=True):
                if place in block.labels:
                    block.labels[place][i] = value
                else:
                    block.numbers[i, place] = value

    def answer(self) -> Block:
        return Block.joined(self._blocks, self._sources)


def _block(
    sources: Sources,
    objects: Any,
    first: int,
    done: Callable[[], object] | None = None,
    **options: Any,
) -> Block:
    """Rows of some objects, the first of which is number ``first``."""
    matrix = _Matrix(sources, objects, first, done)
    labelled = frozenset(sources.categorical_names)
    fetcher = Fetcher(sources, matrix.plan, labelled=labelled, **options)
    try:
        fetcher.run(matrix.walks())
        return matrix.answer()
    finally:
        fetcher.close()


def _in_processes(
    sources: Sources,
    objects: Any,
    n_jobs: int | None,
    options: dict[str, Any],
    done: Callable[[int], object],
) -> list[Block]:
    parallel = joblib.Parallel(thread_count(n_jobs), backend="loky", return_as="generator")
    blocks = []
    for block in parallel(
        joblib.delayed(_block)(sources, part, first, **options) for first, part in _parts(objects)
    ):
        done(len(block.numbers))
        blocks.append(block)
    return blocks


def _parts(objects: Any) -> Iterator[tuple[int, list[Any]]]:
    """Position of the first object, and some objects from there on."""
    first, each = 0, each_object(objects)
    while part := list(itertools.islice(each, SENT_TOGETHER)):
        yield first, part
        first += len(part)


def _frame(whole: Block, sources: Sources, pandas: Any) -> Any:
    columns: dict[str, Any] = {}
    for place, name in enumerate(sources.column_names):
        labels = whole.labels.get(place)
        columns[name] = whole.numbers[:, place] if labels is None else _categorical(labels, pandas)
    return pandas.DataFrame(columns)


def _categorical(labels: list[Any], pandas: Any) -> Any:
    """Labels as they are: pandas would make floats of integers that are next to a float."""
    if any(isinstance(label, int) and abs(label) >= EXACT_INTEGERS for label in labels):
        values = pandas.Series(labels, dtype=object)
        distinct = pandas.Index(values.dropna().unique(), dtype=object)
        return pandas.Categorical(values, distinct)
    return pandas.Categorical(labels)


def _import_pandas(as_frame: bool | None) -> Any:
    """Pandas if a frame is wanted and can be had, else None."""
    if as_frame is False:
        return None
    try:
        import pandas
    except ImportError:
        if as_frame:
            raise ImportError(
                "as_frame=True needs pandas: pip install 'greedymiser[frames]'"
            ) from None
        return None
    return pandas
