"""Calling sources: one after the other, on threads, or as coroutines side by side.

Whoever needs something of objects asks for it in *requests* (see ``Job``); a ``Fetcher`` answers
them. Functions run in the calling thread where there is one job and no time-out. Otherwise one
event loop watches over all of them: coroutines run on it, functions on threads.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import time
import traceback
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, NamedTuple, Protocol, TypeVar

import narwhals as nw
import numpy as np

from greedymiser.acquisition.calls import (
    Outcome,
    WorkerPool,
    await_call,
    call,
    in_own_loop,
    loop_is_running,
)
from greedymiser.acquisition.limits import Lanes
from greedymiser.acquisition.sources import (
    AcquisitionError,
    AcquisitionWarning,
    Source,
    Sources,
    SourceTimeoutError,
    Values,
    read_values,
    split_batch,
)
from greedymiser.tables import is_frame
from greedymiser.threads import thread_count

T = TypeVar("T")
Answer = TypeVar("Answer", covariant=True)

POLICIES = ("raise", "missing")

# Calls of a source that are left behind after time-outs and still hang, per job: with more, the
# source is not called again.
MOST_ABANDONED = 4

# Longest error message that is repeated in one of ours.
MESSAGE_LENGTH = 300


@dataclass(slots=True, eq=False)
class Visit:
    """One object, and what is known of it so far."""

    index: int
    raw: Any
    # What functions returned, by their names.
    values: dict[str, Any] = field(default_factory=dict)
    # Columns, by the name of their source.
    columns: dict[str, Values] = field(default_factory=dict)
    # Wall time of every call, failed ones too, in the order in which they ended.
    seconds: dict[str, float] = field(default_factory=dict)
    failures: dict[str, AcquisitionError] = field(default_factory=dict)
    # What failed, and what was not called because it needs something that failed.
    unavailable: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.raw = locked(self.raw)

    def knows(self, source: Source) -> bool:
        return source.name in self.values or source.name in self.unavailable

    def is_blocked(self, source: Source) -> bool:
        """Whether something that a source needs is not to be had; notes it down."""
        if self.unavailable.isdisjoint(source.needs):
            return False
        self.unavailable.add(source.name)
        return True

    def arguments(self, source: Source, raw: str) -> list[Any]:
        return [self.raw if need == raw else self.values[need] for need in source.needs]

    def keep(self, source: Source, value: Any, labelled: frozenset[str]) -> None:
        """Take what a source returned; raise if it is not what was promised."""
        if inspect.iscoroutine(value):
            value.close()
            raise TypeError("it returned a coroutine; make it a function with async def")
        # What can be rewound, such as a file, is the business of those who read it.
        if isinstance(value, Iterator | AsyncIterator) and not hasattr(value, "seek"):
            raise TypeError(
                "it returned an iterator, which only one source could read; return a list"
            )
        if source.columns:
            self.columns[source.name] = read_values(source, value, labelled)
        self.values[source.name] = locked(value)

    def forget(self) -> None:
        """Let go of everything but columns and accounts."""
        self.raw = None
        self.values.clear()


def locked(value: Any) -> Any:
    """A read-only view of an array: a source that changed it would change what others see."""
    if type(value) is not np.ndarray or not value.flags.writeable:
        return value
    view = value.view()
    view.flags.writeable = False
    return view


class Request(NamedTuple):
    """Objects, and all that must be called for what is needed of them, in a possible order."""

    visits: Sequence[Visit]
    plan: Sequence[Source]
    # Whether nothing will be asked of these objects again.
    is_last: bool
    # Called when all is known of one of the objects.
    done: Callable[[], object] | None = None
    # What one of the objects needs next, given what was fetched; nothing where it has to wait for
    # others. For those who need not go in step.
    then: Callable[[Visit], Sequence[Source]] | None = None

    @property
    def is_batch(self) -> bool:
        """Whether something in the plan takes many objects at once."""
        return any(source.is_batch for source in self.plan)

    def finish(self, visit: Visit) -> None:
        """Note that all is known of an object."""
        if self.is_last:
            visit.forget()
        if self.done is not None:
            self.done()


class Job(Protocol[Answer]):
    """Something that needs columns of objects."""

    def requests(self) -> Iterator[Sequence[Request]]:
        """What is needed, for different objects; all is answered before more is asked."""

    def answer(self) -> Answer:
        """The result, once all requests are answered."""


class _Leaving(Exception):  # noqa: N818 - not an error
    """Carries SystemExit and the like out of the tasks of an event loop."""

    def __init__(self, reason: BaseException):
        super().__init__(reason)
        self.reason = reason


# The limits under which the calls run in which we are.
_inside: ContextVar[frozenset[Lanes]] = ContextVar("inside", default=frozenset())


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
        self.raw = raw
        self.labelled = labelled
        self.on_error = on_error
        self.timeouts = read_timeouts(timeout, plan)
        self.n_jobs = thread_count(n_jobs)
        self.concurrency = whole_number("concurrency", concurrency, 1)
        has_coroutines = any(source.is_coroutine for source in plan)
        # Objects whose intermediates are held in memory: as many as keep everyone busy.
        self._n_objects = max(self.n_jobs, self.concurrency if has_coroutines else 1)
        self._is_plain = self.n_jobs == 1 and not has_coroutines and not self.timeouts
        self._pool = WorkerPool(MOST_ABANDONED * self.n_jobs)
        self._lanes = self._new_lanes()

    def close(self) -> None:
        """End the threads that wait for work."""
        self._pool.close()

    def _new_lanes(self) -> Lanes:
        return Lanes(self.n_jobs, self.concurrency)

    def _shared_lanes(self) -> Lanes:
        """The limits that hold for all jobs together, unless we are in a call that they count."""
        if self._lanes.process != os.getpid():
            self._lanes = self._new_lanes()
        return self._new_lanes() if self._lanes in _inside.get() else self._lanes

    def run(self, job: Job[T]) -> T:
        """Answer the requests of a job."""
        lanes = self._new_lanes() if loop_is_running() else self._shared_lanes()
        if not self._is_plain:
            return in_own_loop(lambda runner: runner.run(self._side_by_side(job, lanes)))
        for requests in job.requests():
            for request in requests:
                self._in_turn(request, lanes)
        return job.answer()

    def _in_turn(self, request: Request, lanes: Lanes) -> None:
        """Answer a request in this thread, one call after the other."""
        if request.is_batch:
            self._in_step(request, lanes)
            return
        for visit in request.visits:
            for source in request.plan:
                self._visit_here(visit, source, lanes)
            request.finish(visit)

    def _in_step(self, request: Request, lanes: Lanes) -> None:
        """Answer a request source by source, since some take many objects at once."""
        for source in request.plan:
            if not source.is_batch:
                for visit in request.visits:
                    self._visit_here(visit, source, lanes)
            elif visits := _in_need(request.visits, source):
                with lanes.functions:
                    outcome = self._call_here(source.gathered(), self._lists(visits, source))
                self._settle_all(visits, source, outcome)
        for visit in request.visits:
            request.finish(visit)

    def _visit_here(self, visit: Visit, source: Source, lanes: Lanes) -> None:
        if visit.knows(source) or visit.is_blocked(source):
            return
        with lanes.functions:
            outcome = self._call_here(source, visit.arguments(source, self.raw))
        self._settle(visit, source, outcome)

    def _lists(self, visits: Sequence[Visit], source: Source) -> list[list[Any]]:
        """What a source needs of some objects, a list per parameter."""
        each = [visit.arguments(source, self.raw) for visit in visits]
        return [list(column) for column in zip(*each, strict=True)]

    async def arun(self, job: Job[T]) -> T:
        """Answer the requests of a job on the running event loop."""
        return await self._side_by_side(job, self._shared_lanes())

    def _call_here(self, source: Source, arguments: Sequence[Any]) -> Outcome:
        token = _inside.set(_inside.get() | {self._lanes})
        try:
            return call(source, arguments)
        finally:
            _inside.reset(token)

    async def _side_by_side(self, job: Job[T], lanes: Lanes) -> T:
        """Answer the requests of a job, with everything side by side that can be."""
        held = asyncio.Semaphore(self._n_objects)
        for requests in job.requests():
            try:
                async with asyncio.TaskGroup() as group:
                    for request in requests:
                        if request.is_batch:
                            group.create_task(self._fetch_in_step(request, lanes))
                            continue
                        for visit in request.visits:
                            group.create_task(self._fetch(visit, request, lanes, held))
            except BaseExceptionGroup as errors:
                # The first failure cancelled all others; it says more than the group.
                error = first_error(errors)
                if isinstance(error, _Leaving):
                    raise error.reason from None
                raise error from error.__cause__
        return job.answer()

    async def _fetch_in_step(self, request: Request, lanes: Lanes) -> None:
        """Answer a request source by source, since some take many objects at once."""
        for source in request.plan:
            visits = _in_need(request.visits, source)
            if not source.is_batch:
                async with asyncio.TaskGroup() as group:
                    for visit in visits:
                        group.create_task(self._step(visit, source, [], lanes))
            elif visits:
                lists = self._lists(visits, source)
                outcome = await self._in_lane(source.gathered(), lists, lanes)
                self._settle_all(visits, source, outcome)
        for visit in request.visits:
            request.finish(visit)

    async def _fetch(
        self, visit: Visit, request: Request, lanes: Lanes, held: asyncio.Semaphore
    ) -> None:
        """Call all that is needed of one object, until nothing is."""
        async with held:
            plan = request.plan
            while plan:
                await self._fetch_plan(visit, plan, lanes)
                plan = () if request.then is None else request.then(visit)
            request.finish(visit)

    async def _fetch_plan(self, visit: Visit, plan: Sequence[Source], lanes: Lanes) -> None:
        """Call what is in a plan, each as soon as what it needs is there."""
        tasks: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            for source in plan:
                if not visit.knows(source):
                    before = [tasks[need] for need in source.needs if need in tasks]
                    step = self._step(visit, source, before, lanes)
                    tasks[source.name] = group.create_task(step)

    async def _step(
        self, visit: Visit, source: Source, before: list[asyncio.Task[None]], lanes: Lanes
    ) -> None:
        if before:
            await asyncio.wait(before)
        if visit.is_blocked(source):
            return
        outcome = await self._in_lane(source, visit.arguments(source, self.raw), lanes)
        self._settle(visit, source, outcome)

    async def _in_lane(self, source: Source, arguments: Sequence[Any], lanes: Lanes) -> Outcome:
        async with lanes.coroutines if source.is_coroutine else lanes.functions:
            _inside.set(_inside.get() | {self._lanes})  # until the end of this task
            # The clock of a time-out starts here: waiting for a lane is not the source's fault.
            return await self._limited(source, arguments)

    async def _limited(self, source: Source, arguments: Sequence[Any]) -> Outcome:
        limit = self.timeouts.get(source.name)
        start = time.perf_counter()
        try:
            async with asyncio.timeout(limit) as clock:
                if source.is_coroutine:
                    outcome = await await_call(source, arguments)
                else:
                    outcome = await self._pool.call(source, arguments)
        except TimeoutError as error:
            return Outcome(None, error, time.perf_counter() - start, timed_out=True)
        # A coroutine may turn its cancellation into something else, or block the event loop so that
        # nobody can cancel it.
        if clock.expired() or (limit is not None and outcome.seconds > limit):
            return outcome._replace(error=outcome.error or TimeoutError(), timed_out=True)
        return outcome

    def _settle_all(self, visits: Sequence[Visit], source: Source, outcome: Outcome) -> None:
        """Write down how a call for many objects ended, which share its time."""
        results: Sequence[Any] = [None] * len(visits)
        share = outcome._replace(seconds=outcome.seconds / len(visits))
        if outcome.error is None:
            try:
                results = split_batch(outcome.value, len(visits))
            except (TypeError, ValueError) as fault:
                share = share._replace(error=fault)
        for visit, result in zip(visits, results, strict=True):
            self._settle(visit, source, share._replace(value=result))

    def _settle(self, visit: Visit, source: Source, outcome: Outcome) -> None:
        """Write down how a call ended; raise if it failed and that is the policy."""
        if outcome.was_made:
            visit.seconds[source.name] = outcome.seconds
        error = outcome.error
        if error is None:
            error = self._fault(visit, source, outcome.value)
        if error is None:
            return
        if not isinstance(error, Exception | asyncio.CancelledError):
            raise _Leaving(error)
        failure = self._failure(visit, source, outcome, error)
        if self.on_error == "raise":
            raise failure from error
        failure.__cause__ = error
        # Tracebacks are worth keeping, the pictures in their local variables are not.
        traceback.clear_frames(error.__traceback__)
        visit.failures[source.name] = failure
        visit.unavailable.add(source.name)

    def _failure(
        self, visit: Visit, source: Source, outcome: Outcome, error: BaseException
    ) -> AcquisitionError:
        if not outcome.timed_out:
            return AcquisitionError(source.name, visit.index, describe(error))
        reason = str(error)
        if outcome.was_made:
            reason = f"it did not answer within {self.timeouts[source.name]:g} s"
        return SourceTimeoutError(source.name, visit.index, reason)

    def _fault(self, visit: Visit, source: Source, value: Any) -> Exception | None:
        """Take what a source returned; return what is wrong with it."""
        try:
            visit.keep(source, value, self.labelled)
        except Exception as fault:
            return fault
        return None


def _in_need(visits: Sequence[Visit], source: Source) -> list[Visit]:
    """Those of whom a source is to be called."""
    return [visit for visit in visits if not visit.knows(source) and not visit.is_blocked(source)]


def whole_number(argument: str, value: Any, least: int) -> int:
    """Check an argument that counts something."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{argument} must be an integer of at least {least}, got {value!r}")
    return int(value)


def describe(error: BaseException) -> str:
    """Type and message of an error, not too long."""
    try:
        message = str(error)
    except Exception:  # an error whose message is itself an error
        message = ""
    if len(message) > MESSAGE_LENGTH:
        message = message[:MESSAGE_LENGTH] + " ..."
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of nested groups."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


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
    """Counts failures, for one warning about all of them."""

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

    def warn(self, stacklevel: int, effect: str = "their columns count as missing") -> None:
        """Warn once, if anything failed; ``effect`` says what came of it."""
        if not self._failures:
            return
        lines = [
            f"{name!r} on {n} of {self.n_objects} objects (first on object {first.index}: "
            f"{first.reason})"
            for name, (n, first) in self._failures.items()
        ]
        warnings.warn(
            f"sources failed, and {effect}: {'; '.join(lines)}",
            AcquisitionWarning,
            stacklevel=stacklevel + 1,
        )
