"""Which source is called for which object, and when: one scheduler, whoever makes the calls.

A *walk* says what each object needs next. The scheduler turns that into calls: a source is ready
once what it needs is known; one that takes many objects at once is ready when all that wait for it
have come. Who makes the calls (``run_here`` in this thread, ``event_loop`` side by side) takes one
after the other, and hands back how each ended. Functions run in the calling thread where there is
one job and nothing to wait for. Otherwise an event loop watches over all calls: coroutines run on
it, functions on threads.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import time
import warnings
from asyncio import CancelledError, get_running_loop
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

import narwhals as nw

from greedymiser._core.threads import thread_count
from greedymiser.data.tables import is_frame
from greedymiser.on_demand.metrics import Observers
from greedymiser.on_demand.policies import (
    Deadline,
    Health,
    SourcePolicy,
    read_policies,
    whole_number,
)
from greedymiser.on_demand.request import Outcome, Plan, Request, Settlement, describe, refusal
from greedymiser.on_demand.sources import AcquisitionError, AcquisitionWarning, Source, Sources

logger = logging.getLogger("greedymiser.on_demand")


class FetchingWalk(Protocol):
    """Objects on their way, which need sources to go on.

    To serve a model of another shape, write a walk: what it returns is fetched, and no more.
    """

    # Whether all objects that will ever wait for a source say so before anything is fetched, so
    # that a source that takes many objects need not wait for all others.
    in_step: bool

    def release(self) -> Iterable[tuple[Request, Plan]]:
        """Those that go on, with what they need. Nothing is being fetched; none: it is over."""

    def follow(self, request: Request) -> Plan:
        """What an object needs next, now that its plan is known; nothing where it waits or ends."""


class Call(NamedTuple):
    """A source, and the object that it is called for; several if it takes many at once."""

    source: Source
    requests: list[Request]

    def arguments(self, raw: str) -> list[Any]:
        """What to call it with; ``raw`` is what sources call the object."""
        if not self.source.is_batch:
            return self.requests[0].arguments(self.source, raw)
        each = [request.arguments(self.source, raw) for request in self.requests]
        return [list(column) for column in zip(*each, strict=True)]


class Scheduler:
    """The calls that the objects of a walk need, each source at most once per object.

    Parameters
    ----------
    walk : FetchingWalk
    settlement : Settlement
        Writes down how calls ended.
    most_objects : int
        Objects of which something is fetched at once.
    refused : function, optional
        Says why a source would not be called now, if so. Where one is given an object whose plan
        has such a source is asked at once what it needs instead, before anything is called.
    policies : mapping from source to SourcePolicy
        Their ``max_batch`` is the most objects of a call.
    """

    def __init__(
        self,
        walk: FetchingWalk,
        settlement: Settlement,
        most_objects: float,
        refused: Callable[[Source], Outcome | None] | None = None,
        policies: Mapping[str, SourcePolicy] | None = None,
    ):
        self._walk = walk
        self._policies = policies or {}
        self._settlement = settlement
        self._most_objects = most_objects
        self._refused = refused
        self._ready: deque[Call] = deque()
        # Objects that were released and have not begun, and how many of the others fetch something.
        self._queue: deque[tuple[Request, Plan]] = deque()
        self._n_objects = 0
        self._n_calls = 0
        # Who waits for a source that takes many objects, and how many more will.
        self._batches: dict[str, Call] = {}
        self._n_joining: Counter[str] = Counter()

    def take(self) -> Call | None:
        """The next call to make; None if there is none before others have ended, or at the end."""
        while not self._ready:
            if self._n_calls:
                return None
            if self._batches:
                self._send(list(self._batches))
                continue
            self._queue.extend(self._walk.release())
            if not self._queue:
                return None
            self._begin_more()
        self._n_calls += 1
        return self._ready.popleft()

    def done(self, call: Call, outcome: Outcome) -> None:
        """Take how a call ended; others may be ready now."""
        self._n_calls -= 1
        self._settlement.settle(call.source, call.requests, outcome)
        for request in call.requests:
            request.open.discard(call.source.name)
            self._go_on(request)
        self._begin_more()

    def _begin_more(self) -> None:
        while self._queue and self._n_objects < self._most_objects:
            request, plan = self._queue.popleft()
            self._n_objects += 1
            self._begin(request, plan)
            self._go_on(request)
        if self._batches and self._walk.in_step and not self._queue:
            self._send([name for name in self._batches if not self._n_joining[name]])

    def _begin(self, request: Request, plan: Plan) -> None:
        request.begin(plan)
        if self._refused is not None and self._refuse(request, self._refused):
            request.begin(())
        for source in request.later:
            if source.is_batch:
                self._n_joining[source.name] += 1

    def _refuse(self, request: Request, refused: Callable[[Source], Outcome | None]) -> bool:
        """Whether something of the plan would not be called now; it then counts as failed."""
        is_refused = False
        for source in request.later:
            if (outcome := refused(source)) is not None:
                self._settlement.settle(source, [request], outcome)
                is_refused = True
        return is_refused

    def _go_on(self, request: Request) -> None:
        """Line up what can be called for an object; ask what it needs next if all is known."""
        while True:
            before = request.later
            for source in request.ready():
                if not source.is_batch:
                    self._ready.append(Call(source, [request]))
                    continue
                call = self._batches.setdefault(source.name, Call(source, []))
                call.requests.append(request)
            if self._n_joining:
                later = {source.name for source in request.later}
                for source in before:  # those that wait now, or are out of reach
                    if source.is_batch and source.name not in later:
                        self._n_joining[source.name] -= 1
            if request.open:
                return
            plan = self._walk.follow(request)
            if not plan:
                self._n_objects -= 1
                return
            self._begin(request, plan)

    def _send(self, names: Iterable[str]) -> None:
        """Call sources for all that wait for them."""
        for name in names:
            source, requests = self._batches.pop(name)
            policy = self._policies.get(name)
            most = (policy and policy.max_batch) or len(requests)
            for first in range(0, len(requests), most):
                self._ready.append(Call(source, requests[first : first + most]))


def run_here(scheduler: Scheduler, raw: str, observers: Observers) -> None:
    """Make all calls in this thread, one after the other."""
    while (call := scheduler.take()) is not None:
        observers.source_called(call.source.name, len(call.requests))
        outcome = call_here(call.source, call.arguments(raw))
        observers.ended(call.source.name, len(call.requests), outcome)
        scheduler.done(call, outcome)


def call_here(source: Source, arguments: Sequence[Any]) -> Outcome:
    """Call a function; what it raises is caught."""
    start = time.perf_counter()
    try:
        value = source.apply(arguments)
    # A function cannot be cancelled: something that it waited for was.
    except (Exception, CancelledError) as error:
        return Outcome(None, error, time.perf_counter() - start)
    return Outcome(value, None, time.perf_counter() - start)


# -- what users give ------------------------------------------------------------------------------


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


# -- who makes the calls --------------------------------------------------------------------------


POLICIES = ("raise", "missing")

# Calls of a source that are left behind after time-outs and still hang, per job: with more, the
# source is not called again.
MOST_ABANDONED = 4

# Objects of one call of predict that are fetched at once, where no limit is given.
OBJECTS_AT_ONCE = 64

# The predictors whose calls we are in.
_inside: ContextVar[frozenset[int]] = ContextVar("inside", default=frozenset())


def running_backend() -> str | None:
    """What runs the event loop that waits for this thread to return, in anyio's words.

    Does not load anyio, which takes a while and which plain calls can do without.
    """
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        return "trio"
    try:
        get_running_loop()
    except RuntimeError:
        return None
    return "asyncio"


class Workplace:
    """What the calls of a predictor share, in one process: threads, event loops, health."""

    def __init__(
        self,
        raw: str,
        plan: Plan,
        policies: Mapping[str, SourcePolicy],
        n_jobs: int,
        concurrency: int | None,
        observers: Observers,
    ):
        self._arguments = raw, plan, policies, n_jobs, concurrency, observers
        self._process = os.getpid()
        self.raw = raw
        self.policies = policies
        self.observers = observers
        self._n_jobs, self._concurrency = n_jobs, concurrency
        self.health = {s.name: Health(policies.get(s.name, SourcePolicy())) for s in plan}
        self._pool: Any = None
        self.cache_lock = threading.Lock()
        self._portals: dict[str, Any] = {}
        self._portal_lock = threading.Lock()
        self._told: set[str] = set()

    def here(self) -> Workplace:
        """The same in this process: calls that run while it is forked end in the parent only."""
        return self if self._process == os.getpid() else Workplace(*self._arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return Workplace, self._arguments

    def limit_of(self, source: Source) -> tuple[str, int | None]:
        """What a source counts as, and how many calls of that may run at once on an event loop."""
        policy = self.policies.get(source.name)
        if policy is not None and policy.limit is not None:
            return source.name, policy.limit
        if source.is_coroutine:
            return source.name, self._concurrency
        return "", self._n_jobs

    @property
    def pool(self) -> Any:
        """The threads that call functions for event loops, a ``WorkerPool``."""
        if self._pool is None:
            from greedymiser.on_demand.event_loop import WorkerPool

            with self._portal_lock:
                if self._pool is None:
                    self._pool = WorkerPool(MOST_ABANDONED * self._n_jobs)
        return self._pool

    def is_stuck(self, source: Source) -> bool:
        """Whether so many calls of a source hang that it is not called any more."""
        return self._pool is not None and self._pool.is_stuck(source)

    def portal(self) -> Any:
        """An event loop on a thread, of the kind that runs here if one does."""
        from greedymiser.on_demand.event_loop import Portal

        backend = running_backend() or "asyncio"
        with self._portal_lock:
            portal = self._portals.get(backend)
            if portal is None or portal.is_broken:
                portal = self._portals[backend] = Portal(backend)
            return portal

    def tell_of_cache(self, name: str, error: Exception) -> None:
        if name not in self._told:
            self._told.add(name)
            logger.warning(
                "the cache of source %r failed, and is ignored: %s", name, describe(error)
            )

    def close(self) -> None:
        """End the threads and event loops that wait for work."""
        with self._portal_lock:
            if self._pool is not None:
                self._pool.close()
            for portal in self._portals.values():
                portal.close()
            self._portals.clear()


class Fetcher:
    """Calls what walks need, each source at most once per object.

    Parameters
    ----------
    sources : Sources
    plan : sequence of Source
        All that may ever be asked for.
    labelled : frozenset of str
        Columns that may hold labels.
    on_error : {"raise", "missing"}
        Raise an AcquisitionError, or go on without the columns.
    timeout : float, mapping from source to float, or None
        Seconds that a call may take, from its start.
    policies : mapping from source to SourcePolicy, optional
    n_jobs : int or None
        Functions that may run at once, on threads.
    concurrency : int or None
        Coroutines of a source that may run at once, on each event loop.
    observers : Observers, optional
    has_fallbacks : bool
        Whether objects go on in another way where a source fails.
    """

    def __init__(
        self,
        sources: Sources,
        plan: Plan,
        *,
        labelled: frozenset[str] = frozenset(),
        on_error: str = "raise",
        timeout: float | Mapping[str, float] | None = None,
        policies: Mapping[str, SourcePolicy] | None = None,
        n_jobs: int | None = 1,
        concurrency: int | None = None,
        observers: Observers | None = None,
        has_fallbacks: bool = False,
    ):
        if on_error not in POLICIES:
            raise ValueError(f"on_error must be one of {list(POLICIES)}, got {on_error!r}")
        by_source = read_policies(policies, timeout, sources, plan)
        threads = thread_count(n_jobs)
        if concurrency is not None:
            concurrency = whole_number("concurrency", concurrency, 1)
        has_coroutines = any(source.is_coroutine for source in plan)
        # Objects whose intermediates are held in memory: as many as keep everyone busy. Sources
        # that take many objects wait for all.
        at_once = concurrency or OBJECTS_AT_ONCE
        self._most_objects: float = max(threads, at_once if has_coroutines else 1)
        if any(source.is_batch for source in plan):
            self._most_objects = math.inf
        self._is_plain = threads == 1 and not has_coroutines and not by_source
        self._settlement = Settlement(labelled, on_error == "raise" and not has_fallbacks)
        self._has_fallbacks = has_fallbacks
        self._tell = Observers() if observers is None else observers
        self._workplace = Workplace(sources.raw, plan, by_source, threads, concurrency, self._tell)

    def close(self) -> None:
        """End the threads that wait for work."""
        self._workplace.here().close()

    def run(self, walks: Iterator[FetchingWalk], deadline: Deadline | None = None) -> None:
        """Fetch what walks need, one walk after the other."""
        place = self._workplace = self._workplace.here()
        if self._is_plain and deadline is None:
            inside = _inside.get()
            token = _inside.set(inside | {id(self)})
            try:
                for walk in walks:
                    run_here(self._scheduler(walk, None), place.raw, self._tell)
            finally:
                _inside.reset(token)
            return
        # An event loop that waits for us might have calls that need it to get on.
        is_limited = running_backend() is None and id(self) not in _inside.get()
        place.portal().call(self._on_loop, walks, deadline, is_limited)

    async def arun(self, walks: Iterator[FetchingWalk], deadline: Deadline | None = None) -> None:
        """Fetch what walks need on the running event loop."""
        self._workplace = self._workplace.here()
        await self._on_loop(walks, deadline, id(self) not in _inside.get())

    async def _on_loop(
        self, walks: Iterator[FetchingWalk], deadline: Deadline | None, is_limited: bool
    ) -> None:
        from greedymiser.on_demand.event_loop import LoopCaller, run_on_loop

        token = _inside.set(_inside.get() | {id(self)})
        try:
            for walk in walks:
                reserve = getattr(walk, "time_to_fall_back", None) if deadline else None
                caller = LoopCaller(self._workplace, deadline, is_limited, reserve)
                await run_on_loop(self._scheduler(walk, deadline), caller)
        finally:
            _inside.reset(token)

    def _scheduler(self, walk: FetchingWalk, deadline: Deadline | None) -> Scheduler:
        refused = None
        if self._has_fallbacks:

            def refused(source: Source) -> Outcome | None:
                return self.refusal(source, deadline)

        policies = self._workplace.policies
        return Scheduler(walk, self._settlement, self._most_objects, refused, policies)

    def refusal(self, source: Source, deadline: Deadline | None) -> Outcome | None:
        """Why a source would not be called now, if so."""
        place = self._workplace
        if place.is_stuck(source):
            return refusal("it was not called, since too many earlier calls still hang")
        return place.health[source.name].refusal(deadline)

    def slowest(self, source: Source) -> float | None:
        """The longest time that a source took of late; None where nothing is known."""
        return self._workplace.health[source.name].slowest()
