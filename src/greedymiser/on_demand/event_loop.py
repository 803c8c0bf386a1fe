"""Calls side by side: coroutines on an event loop of asyncio or trio, functions on threads.

All that needs anyio is here. Loading it takes a while, so others import this module when there is
something to wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import os
import queue
import sys
import threading
import time
from asyncio import CancelledError
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping, Sequence
from concurrent.futures import Future
from contextvars import Context, copy_context
from functools import cached_property, partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import EventLoopToken, RunVar, current_token

from greedymiser.on_demand.fetcher import Call, Scheduler, Workplace, call_here, running_backend
from greedymiser.on_demand.policies import Deadline, SourcePolicy, retry_wait
from greedymiser.on_demand.request import Exit, Outcome, Request, refusal
from greedymiser.on_demand.sources import Source, split_batch

try:
    import sniffio
except ImportError:  # it comes with trio; without it nobody uses it
    sniffio = None  # type: ignore[assignment, unused-ignore]

T = TypeVar("T")

# What ends a program. An event loop would fall over it, so it is carried around the loop.
LEAVING = (SystemExit, KeyboardInterrupt)


async def run_on_loop(scheduler: Scheduler, caller: LoopCaller) -> None:
    """Make all calls of a scheduler, side by side."""
    # Not in this task: who cancels it does not mean a source, and a source may cancel its own.
    if running_backend() == "trio":
        try:
            async with anyio.create_task_group() as group:
                _Tasks(scheduler, caller, group).start()
            return
        except BaseExceptionGroup as errors:
            # The first failure cancelled all others; it says more than the group.
            error = first_error(errors)
    else:
        tasks = _AsyncioTasks(caller)
        _Tasks(scheduler, caller, tasks).start()
        failure = await tasks.join()
        if failure is None:
            return
        error = failure
    if isinstance(error, Exit):
        raise error.reason from None
    raise error from error.__cause__


class _AsyncioTasks:
    """Tasks of which all end if one fails. Those of anyio take three times as long to start."""

    def __init__(self, caller: LoopCaller):
        self._loop = asyncio.get_running_loop()
        self._caller = caller
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None
        self._all_done: asyncio.Future[None] | None = None

    def start_soon(self, function: Callable[..., Coroutine[Any, Any, None]], call: Call) -> None:
        task = self._loop.create_task(function(call))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            error = task.exception()
        else:  # by us, or by someone else, who means us all
            error = None if self._caller.is_ending else CancelledError()
        if error is not None:
            self._error = self._error or error
            self._end()
        if not self._tasks and self._all_done is not None and not self._all_done.done():
            self._all_done.set_result(None)

    def _end(self) -> None:
        """Cancel all, once: what a source shields from it is waited for."""
        if not self._caller.is_ending:
            self._caller.is_ending = True
            for task in self._tasks:
                task.cancel()

    async def join(self) -> BaseException | None:
        """Wait for all; the first error, if there is one."""
        cancelled: CancelledError | None = None
        while self._tasks:
            self._all_done = self._loop.create_future()
            try:
                await self._all_done
            except CancelledError as raised:  # we are
                cancelled = raised
                self._end()
        return self._error or cancelled


class _Tasks:
    """Makes calls, each in a task of its own."""

    def __init__(self, scheduler: Scheduler, caller: LoopCaller, group: TaskGroup | _AsyncioTasks):
        self._scheduler, self._caller, self._group = scheduler, caller, group
        # That of all calls; what they change in it is not for others.
        self._context = copy_context()

    def start(self) -> None:
        """Start all calls that can be made now."""
        while not self._caller.is_ending and (call := self._scheduler.take()) is not None:
            self._context.copy().run(self._group.start_soon, self._make, call)

    async def _make(self, call: Call) -> None:
        outcome = await self._caller.make(call)
        self._scheduler.done(call, outcome)
        self.start()
        # Only now: an answer that cannot be read must not come back from the cache.
        if outcome.cache_key is not None and call.source.name not in call.requests[0].failures:
            await self._caller.keep(call.source.name, outcome)


def first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of nested groups; on trio, cancellations are in them, too."""
    error: BaseException = errors.split(anyio.get_cancelled_exc_class())[1] or errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


# -- one call -------------------------------------------------------------------------------------


class _LoopState:
    """What the calls of one predictor share on one event loop."""

    def __init__(self) -> None:
        self.limiters: dict[str, anyio.CapacityLimiter] = {}
        # Calls that others may still join, by source; and tasks, which asyncio would forget.
        self.open: dict[str, _SharedCall] = {}
        self.tasks: set[asyncio.Task[None]] = set()


_states: RunVar[WeakKeyDictionary[Workplace, _LoopState]] = RunVar("greedymiser on demand")


class _SharedCall:
    """A call of a source that takes many objects, for those that came together.

    It belongs to none of them: it runs as long as one of them waits, in a task of its own.
    """

    def __init__(self) -> None:
        # Calls of those who wait, each with the one that wants it made.
        self.members: list[tuple[Call, LoopCaller]] = []
        self.is_full, self.is_done = anyio.Event(), anyio.Event()
        self.scope = anyio.CancelScope()
        # What is called once nobody may join any more, and how it ended.
        self.requests: list[Request] = []
        self.outcome: Outcome | None = None

    @property
    def n_objects(self) -> int:
        return sum(len(call.requests) for call, _ in self.members)

    def leave(self, call: Call) -> None:
        """Someone does not wait any longer; what was begun goes on for the others."""
        self.members = [member for member in self.members if member[0] is not call]
        if not self.members:
            self.scope.cancel()

    def share(self, call: Call) -> Outcome:
        """What the call has brought for one of those who waited."""
        outcome, n, n_all = self.outcome, len(call.requests), len(self.requests)
        assert outcome is not None
        share = outcome._replace(seconds=outcome.seconds * n / max(n_all, 1))
        if outcome.error is not None:
            return share
        first = next(i for i, one in enumerate(self.requests) if one is call.requests[0])
        try:
            return share._replace(value=split_batch(outcome.value, n_all)[first : first + n])
        except (TypeError, ValueError) as fault:
            return share._replace(value=None, error=fault)


class LoopCaller:
    """Makes calls from an event loop, each as its policy wants it.

    Parameters
    ----------
    workplace : Workplace
    deadline : Deadline, optional
        When the answer must be there.
    is_limited : bool
        Whether calls wait for others to end where there is a limit. A prediction that a source
        makes with the very predictor that called it must not: it would wait for itself.
    reserve : function, optional
        Seconds before the deadline that must be left if a call fails; None if nobody knows, then
        half of what is left is kept.
    """

    def __init__(
        self,
        workplace: Workplace,
        deadline: Deadline | None,
        is_limited: bool,
        reserve: Callable[[Request, Source], float | None] | None = None,
    ):
        self._reserve = reserve
        self._place = workplace
        self._deadline = deadline
        self._is_limited = is_limited
        self._tell = workplace.observers
        # Whether its tasks are cancelled.
        self.is_ending = False

    @cached_property
    def _state(self) -> _LoopState:
        """What all calls share on this event loop; most need nothing of it."""
        try:
            states = _states.get()
        except LookupError:
            states = WeakKeyDictionary()
            _states.set(states)
        return states.setdefault(self._place, _LoopState())

    async def make(self, call: Call) -> Outcome:
        """Make a call, when limits allow it."""
        policy = self._place.policies.get(call.source.name)
        if policy is None:
            return await self._attempt(call, None)
        if policy.cache is not None:
            return await self._cached(call, policy)
        if policy.max_batch is not None:
            return await self._together(call, policy)
        return await self._try(call, policy)

    # -- cache, batches, retries ------------------------------------------------------------------

    async def _cached(self, call: Call, policy: SourcePolicy) -> Outcome:
        assert policy.cache_key is not None
        name = call.source.name
        try:
            key = policy.cache_key(call.requests[0].raw)
        except Exception as error:
            return Outcome(None, error, 0.0, was_made=False)
        if key is None:
            return await self._try(call, policy)
        value = await self._read(policy.cache, name, key)
        if value is not None:
            outcome = Outcome(value, None, 0.0, was_made=False, from_cache=True)
            self._tell.ended(name, 1, outcome)
            return outcome
        outcome = await self._try(call, policy)
        is_answer = outcome.error is None and outcome.value is not None
        return outcome._replace(cache_key=key) if is_answer else outcome

    async def _read(self, cache: Any, name: str, key: Any) -> Any:
        """What is in a cache, if anything; one that fails is as good as an empty one."""
        try:
            if isinstance(cache, MutableMapping):
                with self._place.cache_lock:
                    return cache.get((name, key))
            value = cache.get(f"{name}:{key}")
            return await value if inspect.isawaitable(value) else value
        except Exception as error:
            self._place.tell_of_cache(name, error)
            return None

    async def keep(self, name: str, outcome: Outcome) -> None:
        """Write what a source has answered into its cache."""
        cache, key = self._place.policies[name].cache, outcome.cache_key
        try:
            if isinstance(cache, MutableMapping):
                with self._place.cache_lock:
                    cache[name, key] = outcome.value
                return
            stored = cache.set(f"{name}:{key}", outcome.value)
            if inspect.isawaitable(stored):
                await stored
        except Exception as error:
            self._place.tell_of_cache(name, error)

    async def _together(self, call: Call, policy: SourcePolicy) -> Outcome:
        """Share a call with other requests for the same source; each waits as long as it may."""
        source, deadline = call.source, self._deadline
        refused = self._place.health[source.name].refusal(deadline)
        if refused is not None:
            self._tell.ended(source.name, len(call.requests), refused)
            return refused
        shared = self._join(call, policy)
        limit = None if deadline is None else self._time_for(call, deadline)
        start = time.perf_counter()
        try:
            with anyio.move_on_after(limit):
                await shared.is_done.wait()
        finally:
            if not (is_done := shared.is_done.is_set()):
                shared.leave(call)
        if is_done:
            return shared.share(call)
        assert limit is not None
        return self._late(start, limit) if shared.requests else _too_late(deadline)

    def _join(self, call: Call, policy: SourcePolicy) -> _SharedCall:
        """The call to share: one that others wait for, if there is room, or a new one."""
        name, most = call.source.name, policy.max_batch or 1
        shared = self._state.open.get(name)
        is_left = shared is not None and not shared.members  # and about to be cancelled
        if shared is not None and (is_left or shared.n_objects + len(call.requests) > most):
            del self._state.open[name]
            shared.is_full.set()
            shared = None
        if shared is None:
            shared = self._state.open[name] = _SharedCall()
            self._start(self._make_shared, shared, call.source, policy)
        shared.members.append((call, self))
        if shared.n_objects == most:
            del self._state.open[name]
            shared.is_full.set()
        return shared

    def _start(self, function: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        """Start a task that belongs to nobody who waits for it; anyio has none of that kind."""
        if running_backend() == "trio":
            system: Any = sys.modules["trio"]
            system.lowlevel.spawn_system_task(function, *arguments, context=copy_context())
            return
        task = asyncio.get_running_loop().create_task(function(*arguments))
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    async def _make_shared(self, shared: _SharedCall, source: Source, policy: SourcePolicy) -> None:
        try:
            with shared.scope:
                with anyio.move_on_after(policy.max_wait):
                    await shared.is_full.wait()
                if self._state.open.get(source.name) is shared:
                    del self._state.open[source.name]
                if not shared.members:
                    return
                shared.requests = [one for call, _ in shared.members for one in call.requests]
                # As long as the last of them can wait.
                callers = [caller for _, caller in shared.members]
                deadlines = [caller._deadline for caller in callers]
                limits = [deadline for deadline in deadlines if deadline is not None]
                last = max(limits, key=lambda d: d.left) if len(limits) == len(callers) else None
                is_limited = all(caller._is_limited for caller in callers)
                caller = LoopCaller(self._place, last, is_limited)
                shared.outcome = await caller._try(Call(source, shared.requests), policy)
        except Exception as error:  # a task that nobody waits for must not fail
            shared.outcome = Outcome(None, error, 0.0)
        finally:
            if self._state.open.get(source.name) is shared:
                del self._state.open[source.name]
            if shared.outcome is None:
                shared.outcome = refusal("it was not called, since the event loop ends")
            shared.is_done.set()

    async def _try(self, call: Call, policy: SourcePolicy) -> Outcome:
        """Make a call, and make it again if it fails and there is time.

        Where a breaker is open, or opens meanwhile, nobody waits, and the last failure is told.
        """
        outcome = await self._attempt(call, policy)
        health = self._place.health[call.source.name]
        for attempt in range(policy.retries):
            if outcome.error is None or isinstance(outcome.error, LEAVING):
                break
            if not outcome.was_made or health.refusal(self._deadline) is not None:
                break
            wait = retry_wait(policy, attempt)
            if self._deadline is not None and self._deadline.left <= wait:
                break
            await anyio.sleep(wait)
            again = await self._attempt(call, policy)
            if not again.was_made:
                break
            outcome = again
        return outcome

    # -- one attempt ------------------------------------------------------------------------------

    async def _attempt(self, call: Call, policy: SourcePolicy | None) -> Outcome:
        if policy is None and self._deadline is None:
            return await self._admitted(call, None)
        source = call.source
        health = self._place.health[source.name]
        refused = health.refusal(self._deadline, call)
        if refused is not None:
            self._tell.ended(source.name, len(call.requests), refused)
            return refused
        outcome: Outcome | None = None
        try:
            outcome = await self._admitted(call, policy)
        finally:
            if outcome is None or outcome.is_callers_fault:
                health.release(call)
            else:
                health.note(call, outcome)
        return outcome

    async def _admitted(self, call: Call, policy: SourcePolicy | None) -> Outcome:
        """Make a call that nothing speaks against, once there is a place for it."""
        source, deadline = call.source, self._deadline
        limiter = self._limiter(source) if self._is_limited else None
        ticket = object()
        if limiter is not None and not await self._enter(limiter, ticket, source):
            outcome = _too_late(deadline)
            self._tell.ended(source.name, len(call.requests), outcome)
            return outcome
        try:
            # The clock of a time-out starts here: waiting for others is not the source's fault.
            limit = None if policy is None else policy.timeout
            is_callers = False
            if deadline is not None:
                left = self._time_for(call, deadline)
                is_callers = limit is None or left < limit
                limit = left if is_callers else limit
            self._tell.source_called(source.name, len(call.requests))
            arguments = call.arguments(self._place.raw)
            if source.is_coroutine:
                outcome = await self._await(source, arguments, limit)
            else:
                outcome = await self._call_on_thread(source, arguments, limit)
        finally:
            if limiter is not None:
                limiter.release_on_behalf_of(ticket)
        if is_callers and outcome.given_up and outcome.was_made:
            outcome = outcome._replace(is_callers_fault=True)
        self._tell.ended(source.name, len(call.requests), outcome)
        return outcome

    def _time_for(self, call: Call, deadline: Deadline) -> float:
        """Seconds that a call may take, so that there is time for what is done if it fails."""
        left = max(deadline.left, 0.0)
        if self._reserve is None:
            return left
        reserves = [self._reserve(request, call.source) for request in call.requests]
        reserve = max((seconds for seconds in reserves if seconds is not None), default=0.0)
        if None in reserves or reserve > left / 2:
            return left / 2
        return left - reserve

    def _limiter(self, source: Source) -> anyio.CapacityLimiter | None:
        """What counts the calls of a source on this event loop; functions share the threads."""
        name, limit = self._place.limit_of(source)
        if limit is None:
            return None
        limiter = self._state.limiters.get(name)
        if limiter is None:
            limiter = self._state.limiters[name] = anyio.CapacityLimiter(limit)
        return limiter

    async def _enter(self, limiter: anyio.CapacityLimiter, ticket: object, source: Source) -> bool:
        """Wait for a place; False if the deadline came first."""
        try:
            limiter.acquire_on_behalf_of_nowait(ticket)
        except anyio.WouldBlock:
            start, n_before = time.perf_counter(), limiter.statistics().tasks_waiting
            limit = None if self._deadline is None else max(self._deadline.left, 0.0)
            with anyio.move_on_after(limit) as scope:
                await limiter.acquire_on_behalf_of(ticket)
            waited = time.perf_counter() - start
            self._tell.tell("source_waited", source.name, waited, n_before)
            return not scope.cancelled_caught
        return True

    async def _await(
        self, source: Source, arguments: Sequence[Any], limit: float | None
    ) -> Outcome:
        """Call a coroutine function, and cancel it when its time is over."""
        if limit is None:
            return await self._await_call(source, arguments)
        outcome: Outcome | None = None
        error: BaseException = TimeoutError()
        start = time.perf_counter()
        try:
            with anyio.move_on_after(limit) as scope:
                outcome = await self._await_call(source, arguments)
        except Exception as beside:  # tasks of a source may fail while they are cancelled
            error = beside
        if outcome is None:
            outcome = Outcome(None, error, time.perf_counter() - start)
        # An answer that is there counts: an event loop that lags notices it and the end of the
        # time-out together. A coroutine may turn its cancellation into something else.
        if outcome.error is not None and scope.cancel_called:
            return outcome._replace(given_up=_given_up(limit))
        return outcome

    async def _await_call(self, source: Source, arguments: Sequence[Any]) -> Outcome:
        """Call a coroutine function; what it raises is caught, but for a cancellation of ours."""
        start = time.perf_counter()
        value: Any = None
        error: BaseException | None = None
        try:
            value = await source.apply(arguments)
        except (Exception, *LEAVING) as raised:
            error = raised
        except CancelledError as raised:
            # Has someone cancelled this task, or something that the source waited for?
            if self.is_ending or anyio.get_current_task().has_pending_cancellation():
                raise
            error = raised
        return Outcome(value, error, time.perf_counter() - start)

    async def _call_on_thread(
        self, source: Source, arguments: Sequence[Any], limit: float | None
    ) -> Outcome:
        """Call a function. An answer that is there counts, even if the event loop was blocked."""
        pool, start = self._place.pool, time.perf_counter()
        answer = pool.send(source, arguments)
        try:
            with anyio.move_on_after(limit):
                await _until_done(answer)
        finally:
            if not (is_done := answer.done()):
                pool.abandon(source, answer)
        if is_done:
            return answer.result()
        assert limit is not None
        return self._late(start, limit)

    def _late(self, start: float, limit: float) -> Outcome:
        seconds = time.perf_counter() - start
        return Outcome(None, TimeoutError(), seconds, given_up=_given_up(limit))


def _given_up(limit: float) -> str:
    return f"it did not answer within {limit:.4g} s"


def _too_late(deadline: Deadline | None) -> Outcome:
    assert deadline is not None
    return refusal(f"it was not called, since {deadline.seconds:g} s have passed")


async def _until_done(future: Future[T]) -> T:
    """Wait for something that happens on a thread."""
    event, token = anyio.Event(), current_token()
    future.add_done_callback(lambda _: _soon(token, event.set))
    await event.wait()
    return future.result()


def _soon(token: EventLoopToken, function: Callable[[], object]) -> None:
    """Have a function called on an event loop, and do not wait for it, as anyio's doors would."""
    loop: Any = token.native_token
    soon = loop.run_sync_soon if hasattr(loop, "run_sync_soon") else loop.call_soon_threadsafe
    with contextlib.suppress(RuntimeError):  # the loop has ended: this comes too late
        soon(function)


# -- a loop of our own ----------------------------------------------------------------------------


# Seconds after which a thread that waits for an answer looks whether it was interrupted.
SIGNAL_INTERVAL = 1.0


class Portal:
    """An event loop on a thread of its own, for plain calls.

    (Those of anyio keep the interpreter from ending.) It runs until it is closed, so that what
    sources have opened on it, such as connections, outlives a call.
    """

    def __init__(self, backend: str):
        self._backend = backend
        begun: Future[tuple[EventLoopToken, TaskGroup]] = Future()
        self._begun = begun

        # These know nothing of the portal, so that it can be collected, and is then closed.
        async def serve() -> None:
            async with anyio.create_task_group() as group:
                begun.set_result((current_token(), group))
                await anyio.sleep_forever()

        def work() -> None:
            try:
                _run(serve, backend)
            except BaseException as error:
                if not begun.done():  # else it was closed
                    begun.set_exception(error)

        name = "greedymiser-loop"
        thread = threading.Thread(target=Context().run, args=(work,), daemon=True, name=name)
        thread.start()

    def call(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Call a coroutine function. Who is interrupted cancels it, and does not wait for it."""
        answer: Future[T] = Future()
        scopes: list[anyio.CancelScope] = []

        async def task() -> None:
            try:
                with anyio.CancelScope() as scope:
                    scopes.append(scope)
                    answer.set_result(await function(*arguments))
            except BaseException as error:
                answer.set_exception(error)
            if not answer.done():
                answer.cancel()

        token, group = self._begun.result()
        _soon(token, partial(context_for(self._backend).run, group.start_soon, task))
        try:
            # A signal that comes just before the wait begins is noticed when it ends: Ctrl-C must
            # not be lost to it.
            while True:
                try:
                    return answer.result(SIGNAL_INTERVAL)
                except TimeoutError:
                    if answer.done():
                        raise
        finally:
            if not answer.done():
                _soon(token, lambda: scopes[0].cancel() if scopes else None)

    @property
    def is_broken(self) -> bool:
        """Whether there is no event loop to be had."""
        return self._begun.done() and self._begun.exception() is not None

    def close(self) -> None:
        """End the loop and its thread; what runs on it is cancelled."""

        def end(ready: Future[tuple[EventLoopToken, TaskGroup]]) -> None:
            if ready.exception() is None:
                token, group = ready.result()
                _soon(token, group.cancel_scope.cancel)

        self._begun.add_done_callback(end)

    def __del__(self) -> None:
        self.close()


def _run(main: Callable[[], Awaitable[T]], backend: str) -> T:
    # With a factory, asyncio leaves the loop alone that others get from it.
    options = {"loop_factory": asyncio.new_event_loop} if backend == "asyncio" else {}
    return anyio.run(main, backend=backend, backend_options=options)


# -- threads --------------------------------------------------------------------------------------


def context_for(backend: str | None) -> Context:
    """The context of here, for a thread with that event loop.

    anyio notes in it, with sniffio, which one runs, and believes what it finds there.
    """
    context = copy_context()
    if sniffio is not None:
        context.run(sniffio.current_async_library_cvar.set, backend)
    return context


class WorkerPool:
    """Threads that call functions for event loops.

    There are as many as there are calls at once: who calls sees to it that there are not too many.
    A thread cannot be stopped; one that does not return after a time-out is left behind, takes
    nobody's place, and does not keep the interpreter from ending. (That is why anyio's are not
    used: on asyncio they are no daemons.) If ``most_abandoned`` calls of a source are, it is not
    called again before one of them returns.
    """

    def __init__(self, most_abandoned: int) -> None:
        self._most_abandoned = most_abandoned
        self._threads = _DaemonThreads()
        # Calls that run and for which nobody waits any more, by the name of their source.
        self._abandoned: defaultdict[str, set[Future[Outcome]]] = defaultdict(set)

    def send(self, source: Source, arguments: Sequence[Any]) -> Future[Outcome]:
        """Call a function on a thread."""
        answer: Future[Outcome] = Future()
        n_abandoned = len(self._abandoned[source.name])
        if n_abandoned >= self._most_abandoned:
            reason = f"it was not called, since {n_abandoned} earlier calls still hang"
            answer.set_result(refusal(reason))
            return answer
        context = context_for(None)

        def work() -> None:
            try:
                outcome = context.run(call_here, source, arguments)
            except BaseException as error:  # to end a thread quietly is no answer
                outcome = Outcome(None, error, math.nan)
            answer.set_result(outcome)

        self._threads.send(work)
        return answer

    def is_stuck(self, source: Source) -> bool:
        """Whether so many calls of a source hang that it is not called any more."""
        return len(self._abandoned[source.name]) >= self._most_abandoned

    def abandon(self, source: Source, answer: Future[Outcome]) -> None:
        """Do not wait any longer for a call."""
        abandoned = self._abandoned[source.name]
        abandoned.add(answer)
        answer.add_done_callback(abandoned.discard)  # at once, if it has just come

    def close(self) -> None:
        """End the threads; the next call starts new ones."""
        self._threads.dismiss()
        self._threads = _DaemonThreads()

    def __del__(self) -> None:
        self._threads.dismiss()


class _DaemonThreads:
    """Daemon threads, and the work that waits for the idle ones."""

    def __init__(self) -> None:
        # Garbage may be collected, and us be dismissed, while we hold it.
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._idle = 0
        self._dismissed = False
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def send(self, work: Callable[[], None]) -> None:
        self._work.put(work)
        with self._lock:
            if self._idle:
                self._idle -= 1
                return
        threading.Thread(target=self._serve, daemon=True, name="greedymiser-source").start()

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # a thread that waits keeps no object alive
            with self._lock:
                if self._dismissed:
                    return
                self._idle += 1

    def dismiss(self) -> None:
        """End the idle threads now, and those at work when they are done."""
        if self._process != os.getpid():  # threads do not survive a fork, but locks that they hold
            return
        with self._lock:
            self._dismissed = True
            for _ in range(self._idle):
                self._work.put(None)
            self._idle = 0
