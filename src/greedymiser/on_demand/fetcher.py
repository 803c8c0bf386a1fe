"""What walks need is fetched: in this thread, or on an event loop.

Functions run in the calling thread where there is one job and nothing to wait for. Otherwise an
event loop watches over all calls: coroutines run on it, functions on threads.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from greedymiser._core.threads import thread_count
from greedymiser.on_demand.observers import Observers
from greedymiser.on_demand.policies import (
    Deadline,
    Health,
    SourcePolicy,
    read_policies,
)
from greedymiser.on_demand.request import Outcome, Plan, Settlement, describe, refusal
from greedymiser.on_demand.scheduler import FetchingWalk, Scheduler, logger, run_here, whole_number
from greedymiser.on_demand.sources import Source, Sources
from greedymiser.on_demand.worker_threads import WorkerPool, running_backend

POLICIES = ("raise", "missing")

# Calls of a source that are left behind after time-outs and still hang, per job: with more, the
# source is not called again.
MOST_ABANDONED = 4

# Objects of one call of predict that are fetched at once, where no limit is given.
OBJECTS_AT_ONCE = 64

# The predictors whose calls we are in.
_inside: ContextVar[frozenset[int]] = ContextVar("inside", default=frozenset())


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
        self.pool = WorkerPool(MOST_ABANDONED * n_jobs)
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
        self.pool.close()
        with self._portal_lock:
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
        found = read_policies(policies, timeout, sources, plan)
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
        self._is_plain = threads == 1 and not has_coroutines and not found
        self._settlement = Settlement(labelled, on_error == "raise" and not has_fallbacks)
        self._has_fallbacks = has_fallbacks
        self._tell = Observers() if observers is None else observers
        self._workplace = Workplace(sources.raw, plan, found, threads, concurrency, self._tell)

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

        return Scheduler(walk, self._settlement, self._most_objects, refused)

    def refusal(self, source: Source, deadline: Deadline | None) -> Outcome | None:
        """Why a source would not be called now, if so."""
        place = self._workplace
        if not source.is_coroutine and place.pool.is_stuck(source):
            return refusal("it was not called, since too many earlier calls still hang")
        return place.health[source.name].refusal(source, deadline, reserve=False)

    def slowest(self, source: Source) -> float | None:
        """The longest time that a source took of late; None where nothing is known."""
        return self._workplace.health[source.name].slowest()
