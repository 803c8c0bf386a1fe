"""The requests of a job, answered with everything side by side that can be."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextvars import Context, copy_context
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from greedymiser.on_demand.calls import Outcome, WorkerPool
from greedymiser.on_demand.limits import Lanes, Limit
from greedymiser.on_demand.loops import await_call, enter, until_done
from greedymiser.on_demand.reception import Leaving, Reception, in_need
from greedymiser.on_demand.sources import Source
from greedymiser.on_demand.visits import Job, Request, Visit

T = TypeVar("T")


class SideBySide(NamedTuple):
    """Watches over a job from an event loop: coroutines run on it, functions on threads."""

    reception: Reception
    pool: WorkerPool
    # The limits of this job, which may be those of others as well.
    lanes: Lanes
    # Objects whose intermediates are held in memory.
    n_objects: int

    async def answer(self, job: Job[T]) -> T:
        """Answer the requests of a job."""
        for requests in job.requests():
            try:
                await self._answer_all(requests)
            except BaseExceptionGroup as errors:
                # The first failure cancelled all others; it says more than the group.
                error = first_error(errors)
                if isinstance(error, Leaving):
                    raise error.reason from None
                raise error from error.__cause__
        return job.answer()

    async def _answer_all(self, requests: Sequence[Request]) -> None:
        async with anyio.create_task_group() as group:
            for request in requests:
                if request.is_batch:
                    group.start_soon(self._fetch_in_step, request)
            alone = [request for request in requests if not request.is_batch]
            trips = (_Trip(visit, request) for request in alone for visit in request.visits)
            fetching = _Trips(self, group, trips)
            for trip in islice(trips, self.n_objects):
                fetching.go_on(trip)

    async def _fetch_in_step(self, request: Request) -> None:
        """Answer a request source by source, since some take many objects at once."""
        self.lanes.note()
        for source in request.plan:
            visits = in_need(request.visits, source)
            if not source.is_batch:
                async with anyio.create_task_group() as group:
                    for visit in visits:
                        group.start_soon(self.call_for, visit, source)
            elif visits:
                lists = self.reception.lists(visits, source)
                outcome = await self._call(source.gathered(), lists)
                self.reception.settle_all(visits, source, outcome)
        for visit in request.visits:
            request.finish(visit)

    async def call_for(self, visit: Visit, source: Source) -> None:
        """Call a source for an object, as soon as limits allow it."""
        outcome = await self._call(source, self.reception.arguments(visit, source))
        self.reception.settle(visit, source, outcome)

    async def _call(self, source: Source, arguments: Sequence[Any]) -> Outcome:
        lane = self.lanes.coroutines if source.is_coroutine else self.lanes.functions
        loop = await enter(lane)
        try:
            # The clock of a time-out starts here: waiting for a lane is not the source's fault.
            limit = self.reception.timeouts.get(source.name)
            if limit is None:
                return await self._call_now(source, arguments)
            if source.is_coroutine:
                return await self._await_in_time(source, arguments, limit)
            return await self._call_in_time(source, arguments, limit)
        finally:
            lane.leave(loop)

    async def _call_in_time(
        self, source: Source, arguments: Sequence[Any], limit: float
    ) -> Outcome:
        """Call a function. An answer that is there counts, even if the event loop was blocked."""
        answer, start = self.pool.send(source, arguments), time.perf_counter()
        try:
            with anyio.move_on_after(limit):
                await until_done(answer)
        finally:
            if not (is_done := answer.done()):
                self.pool.abandon(source, answer)
        if not is_done:
            seconds = time.perf_counter() - start
            return Outcome(None, TimeoutError(), seconds, timed_out=True)
        return answer.result()

    async def _await_in_time(
        self, source: Source, arguments: Sequence[Any], limit: float
    ) -> Outcome:
        outcome: Outcome | None = None
        error: Exception = TimeoutError()
        start = time.perf_counter()
        try:
            with anyio.move_on_after(limit) as clock:
                outcome = await await_call(source, arguments)
        except Exception as beside:  # tasks of a source may fail while they are cancelled
            error = beside
        if outcome is None:
            outcome = Outcome(None, error, time.perf_counter() - start)
        # An answer that is there counts: an event loop that lags notices it and the end of the
        # time-out together. A coroutine may turn its cancellation into something else.
        if outcome.error is not None and clock.cancel_called:
            return outcome._replace(timed_out=True)
        return outcome

    async def _call_now(self, source: Source, arguments: Sequence[Any]) -> Outcome:
        if source.is_coroutine:
            return await await_call(source, arguments)
        answer = self.pool.send(source, arguments)
        try:
            return await until_done(answer)
        except BaseException:
            self.pool.abandon(source, answer)
            raise


class _Trip:
    """An object on its way through the plans of a request."""

    def __init__(self, visit: Visit, request: Request):
        self.visit = visit
        self.request = request
        self._begin(request.plan)

    def _begin(self, plan: Sequence[Source]) -> None:
        # What waits for others, and all that was not called yet, or is being called.
        self._later = [source for source in plan if not self.visit.knows(source)]
        self._open = {source.name for source in self._later}

    def called(self, source: Source) -> None:
        self._open.discard(source.name)

    def calls(self) -> list[Source] | None:
        """What can be called now and could not before; None if all is known of the object."""
        while not (ready := self._ready()) and not self._open:
            plan = () if self.request.then is None else self.request.then(self.visit)
            if not plan:
                return None
            self._begin(plan)
        return ready

    def _ready(self) -> list[Source]:
        ready, later = [], []
        for source in self._later:
            if not self._open.isdisjoint(source.needs):
                later.append(source)
            elif self.visit.is_blocked(source):
                self._open.discard(source.name)
            else:
                ready.append(source)
        self._later = later
        return ready


class _WaitingCalls:
    """Calls of one kind that can be made, and the tasks that make them, one after the other.

    A task takes four times as long to start with anyio as with asyncio, hence not one per call.
    """

    def __init__(self, limit: Limit):
        self.calls: deque[tuple[_Trip, Source]] = deque()
        self.n_tasks = 0
        self.most_tasks = limit.most


class _Trips:
    """Objects that go at their own pace, each source called as soon as what it needs is there."""

    def __init__(self, job: SideBySide, group: TaskGroup, trips: Iterator[_Trip]):
        self._job = job
        self._group = group
        self._trips = trips
        # That of all calls; what they change in it is not for others.
        self._context = copy_context()
        self._context.run(job.lanes.note)
        self._functions, self._coroutines = (
            _WaitingCalls(job.lanes.functions),
            _WaitingCalls(job.lanes.coroutines),
        )

    def go_on(self, trip: _Trip | None) -> None:
        """Line up what an object needs now; if that is nothing, what the next one does."""
        while trip is not None:
            calls = trip.calls()
            if calls is not None:
                for source in calls:
                    self._line_up(trip, source)
                return
            trip.request.finish(trip.visit)
            trip = next(self._trips, None)

    def _line_up(self, trip: _Trip, source: Source) -> None:
        line = self._coroutines if source.is_coroutine else self._functions
        line.calls.append((trip, source))
        if line.n_tasks < line.most_tasks:
            line.n_tasks += 1
            self._start(line)

    def _start(self, line: _WaitingCalls) -> None:
        self._context.copy().run(self._group.start_soon, self._work, line)

    async def _work(self, line: _WaitingCalls) -> None:
        while line.calls:
            trip, source = line.calls.popleft()
            await self._job.call_for(trip.visit, source)
            trip.called(source)
            self.go_on(trip)
            if _differs_from(self._context):
                self._start(line)
                return
            if source.is_coroutine:  # which need not have waited for anything
                await checkpoint()
        line.n_tasks -= 1


def _differs_from(context: Context) -> bool:
    """Whether something was set in the context of here, which is a copy of another."""
    return any(context.get(variable) is not value for variable, value in copy_context().items())


def first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of nested groups; on trio, cancellations are in them, too."""
    error: BaseException = errors.split(anyio.get_cancelled_exc_class())[1] or errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
