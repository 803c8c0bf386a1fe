"""Calling sources: one after the other, on threads, or as coroutines side by side.

Whoever needs something of objects asks for it in *requests* (see ``Job``); a ``Fetcher`` answers
them. Functions run in the calling thread where there is one job and no time-out. Otherwise one
event loop watches over all of them: coroutines run on it, functions on threads.
"""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, TypeVar

import narwhals as nw

from greedymiser._core.threads import thread_count
from greedymiser.data.tables import is_frame
from greedymiser.on_demand.calls import Outcome, WorkerPool, call, running_backend
from greedymiser.on_demand.limits import Lanes
from greedymiser.on_demand.reception import Reception, in_need
from greedymiser.on_demand.sources import AcquisitionError, AcquisitionWarning, Source, Sources
from greedymiser.on_demand.visits import Job, Request, Visit

T = TypeVar("T")

logger = logging.getLogger("greedymiser.on_demand")

POLICIES = ("raise", "missing")

# Calls of a source that are left behind after time-outs and still hang, per job: with more, the
# source is not called again.
MOST_ABANDONED = 4


class _Workplace:
    """What jobs share, in one process: calls that run while it is forked end in the parent only."""

    def __init__(self, n_jobs: int, concurrency: int):
        self._sizes = n_jobs, concurrency
        self.process = os.getpid()
        self.lanes = Lanes(n_jobs, concurrency)
        self.pool = WorkerPool(MOST_ABANDONED * n_jobs)

    def here(self) -> _Workplace:
        """The same in this process."""
        return self if self.process == os.getpid() else _Workplace(*self._sizes)

    def __reduce__(self) -> tuple[type[_Workplace], tuple[int, int]]:
        return _Workplace, self._sizes


class Fetcher:
    """Calls what is needed of objects, each source at most once per object.

    Parameters
    ----------
    raw : str
        What sources call the object.
    plan : sequence of Source
        All that may ever be asked for.
    labelled : frozenset of str
        Columns that may hold labels.
    on_error : {"raise", "missing"}
        Raise an AcquisitionError, or go on without the columns.
    timeout : float, mapping from source to float, or None
        Seconds that a call may take, from its start.
    n_jobs : int or None
        Functions that may run at once, on threads.
    concurrency : int
        Coroutines that may run at once.

    Both limits hold for all jobs together, on whatever threads and event loops they run. A job has
    limits of its own where it might wait forever for the others: if a function or coroutine that
    we called starts it, or if it makes an event loop wait that others need to get on.
    """

    def __init__(
        self,
        raw: str,
        plan: Sequence[Source],
        *,
        labelled: frozenset[str] = frozenset(),
        on_error: str = "raise",
        timeout: float | Mapping[str, float] | None = None,
        n_jobs: int | None = 1,
        concurrency: int = 64,
    ):
        if on_error not in POLICIES:
            raise ValueError(f"on_error must be one of {list(POLICIES)}, got {on_error!r}")
        timeouts = read_timeouts(timeout, plan)
        self.n_jobs = thread_count(n_jobs)
        self.concurrency = whole_number("concurrency", concurrency, 1)
        has_coroutines = any(source.is_coroutine for source in plan)
        # Objects whose intermediates are held in memory: as many as keep everyone busy.
        self._n_objects = max(self.n_jobs, self.concurrency if has_coroutines else 1)
        self._is_plain = self.n_jobs == 1 and not has_coroutines and not timeouts
        self._reception = Reception(raw, labelled, on_error == "raise", timeouts)
        self._workplace = _Workplace(self.n_jobs, self.concurrency)

    def close(self) -> None:
        """End the threads that wait for work."""
        self._workplace.here().pool.close()

    def run(self, job: Job[T]) -> T:
        """Answer the requests of a job."""
        lanes = self._lanes(is_waited_for=running_backend() is not None)
        if self._is_plain:
            return self._one_by_one(job, lanes)
        from greedymiser.on_demand import loops

        return loops.run(lambda: self._side_by_side(job, lanes))

    async def arun(self, job: Job[T]) -> T:
        """Answer the requests of a job on the running event loop."""
        return await self._side_by_side(job, self._lanes(is_waited_for=False))

    def _lanes(self, is_waited_for: bool) -> Lanes:
        """The limits for a job: those that hold for all, unless it might wait for itself."""
        self._workplace = self._workplace.here()
        lanes = self._workplace.lanes
        return lanes.apart() if is_waited_for or lanes.count_us() else lanes

    async def _side_by_side(self, job: Job[T], lanes: Lanes) -> T:
        from greedymiser.on_demand.side_by_side import SideBySide

        pool = self._workplace.pool
        return await SideBySide(self._reception, pool, lanes, self._n_objects).answer(job)

    def _one_by_one(self, job: Job[T], lanes: Lanes) -> T:
        """Answer the requests of a job in this thread, one call after the other."""
        for requests in job.requests():
            for request in requests:
                if request.is_batch:
                    self._in_step(request, lanes)
                else:
                    self._in_turn(request, lanes)
        return job.answer()

    def _in_turn(self, request: Request, lanes: Lanes) -> None:
        for visit in request.visits:
            for source in request.plan:
                self._visit(visit, source, lanes)
            request.finish(visit)

    def _in_step(self, request: Request, lanes: Lanes) -> None:
        """Answer a request source by source, since some take many objects at once."""
        for source in request.plan:
            if not source.is_batch:
                for visit in request.visits:
                    self._visit(visit, source, lanes)
            elif visits := in_need(request.visits, source):
                lists = self._reception.lists(visits, source)
                outcome = _call_here(source.gathered(), lists, lanes)
                self._reception.settle_all(visits, source, outcome)
        for visit in request.visits:
            request.finish(visit)

    def _visit(self, visit: Visit, source: Source, lanes: Lanes) -> None:
        if not visit.knows(source) and not visit.is_blocked(source):
            arguments = self._reception.arguments(visit, source)
            self._reception.settle(visit, source, _call_here(source, arguments, lanes))


def _call_here(source: Source, arguments: Sequence[Any], lanes: Lanes) -> Outcome:
    with lanes.functions:
        noted = lanes.note()
        try:
            return call(source, arguments)
        finally:
            lanes.forget(noted)


def whole_number(argument: str, value: Any, least: int) -> int:
    """Check an argument that counts something."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{argument} must be an integer of at least {least}, got {value!r}")
    return int(value)


def read_timeouts(
    timeout: float | Mapping[str, float] | None, plan: Sequence[Source]
) -> dict[str, float]:
    """Seconds that each source may take; those without a limit are left out."""
    if timeout is None:
        return {}
    names = [source.name for source in plan]
    given = timeout if isinstance(timeout, Mapping) else dict.fromkeys(names, timeout)
    limits: dict[str, float] = {}
    seconds: Any
    for name, seconds in given.items():
        if isinstance(seconds, bool) or not isinstance(seconds, Real):
            raise TypeError(f"timeout of {name!r} must be a number of seconds, got {seconds!r}")
        limits[name] = float(seconds)
        if not (limits[name] > 0 and math.isfinite(limits[name])):
            raise ValueError(f"timeout of {name!r} must be positive and finite, got {seconds}")
    return limits


def check_timeout_names(timeout: Any, sources: Sources) -> None:
    """Raise if a time-out is about a source that does not exist."""
    if isinstance(timeout, Mapping):
        unknown = [name for name in timeout if name not in sources]
        if unknown:
            raise ValueError(f"timeout names {unknown[0]!r}, which is not a source")


def each_object(objects: Any) -> Iterator[Any]:
    """The objects of a batch; a data frame gives frames of one row, an array gives its rows."""
    if isinstance(objects, list | tuple):
        return iter(objects)
    if isinstance(objects, str | bytes | bytearray | Mapping):
        raise TypeError(
            f"objects must be a sequence of objects, got a {type(objects).__name__}; "
            "put a single object into a list"
        )
    if is_frame(objects):
        frame = nw.from_native(objects, eager_only=True)
        return (frame[i : i + 1].to_native() for i in range(len(frame)))
    try:
        return iter(objects)
    except TypeError:
        raise TypeError(
            f"objects must be a sequence of objects, got {type(objects).__name__}; "
            "put a single object into a list"
        ) from None


class FailureLog:
    """Counts the failures of a call, which are logged together, source by source.

    ``warnings`` remembers every text that it has seen, so what sources raised is only logged; a
    warning says no more than which source fails, and once.
    """

    def __init__(self) -> None:
        self.n_objects = 0
        # Per source: how many objects it failed on, and the failure on the first of them.
        self._failures: dict[str, tuple[int, AcquisitionError]] = {}

    def add(self, failures: Iterable[AcquisitionError], n_objects: int = 1) -> None:
        """Note the failures of one or more objects."""
        self.n_objects += n_objects
        for failure in failures:
            n, first = self._failures.get(failure.source, (0, failure))
            # Objects do not come in their order where queries are kept together.
            self._failures[failure.source] = n + 1, min(first, failure, key=lambda f: f.index)

    def tell(
        self,
        stacklevel: int,
        effect: str = "its columns count as missing",
        warned: set[str] | None = None,
    ) -> None:
        """Log what failed, and warn of sources that are not in ``warned``, which then are.

        ``effect`` says what came of it.
        """
        for name, (n, first) in self._failures.items():
            logger.warning(
                "source %r failed on %d of %d objects, and %s (first on object %d: %s)",
                *(name, n, self.n_objects, effect, first.index, first.reason),
            )
            if warned is None or name not in warned:
                if warned is not None:
                    warned.add(name)
                warnings.warn(
                    f"source {name!r} failed, and {effect}; the logger {logger.name!r} is told "
                    "each time, with the reason",
                    AcquisitionWarning,
                    stacklevel=stacklevel + 1,
                )
