"""How one function or coroutine is called: here, on a thread, or on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import os
import queue
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any, NamedTuple, TypeVar

from greedymiser.acquisition.sources import Source

T = TypeVar("T")

# What ends a program. An event loop would fall over it, so it is carried around the loop.
LEAVING = (SystemExit, KeyboardInterrupt)


class Outcome(NamedTuple):
    """How a call ended."""

    value: Any
    error: BaseException | None
    seconds: float
    # Whether it was given up, rather than failed.
    timed_out: bool = False
    # Whether there was a call at all.
    was_made: bool = True


def call(source: Source, arguments: Sequence[Any]) -> Outcome:
    """Call a function; what it raises is caught."""
    start = time.perf_counter()
    try:
        value = source.call(arguments)
    # A function cannot be cancelled: something that it waited for was.
    except (Exception, asyncio.CancelledError) as error:
        return Outcome(None, error, time.perf_counter() - start)
    return Outcome(value, None, time.perf_counter() - start)


async def await_call(source: Source, arguments: Sequence[Any]) -> Outcome:
    """Call a coroutine function; what it raises is caught, but for a cancellation from outside."""
    start = time.perf_counter()
    try:
        value = await source.call(arguments)
    except (Exception, *LEAVING) as error:
        return Outcome(None, error, time.perf_counter() - start)
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        return Outcome(None, error, time.perf_counter() - start)
    return Outcome(value, None, time.perf_counter() - start)


def is_cancelled() -> bool:
    """Whether someone cancelled this task; else it was something that a source waited for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def loop_is_running() -> bool:
    """Whether this thread belongs to an event loop that waits for us to return."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def in_own_loop(function: Callable[[asyncio.Runner], T]) -> T:
    """Call a function with an event loop to run coroutines on.

    Where one is already running (a notebook's), on a thread of its own.
    """
    if loop_is_running():
        return _on_own_thread(function)
    with _new_runner() as runner:
        return function(runner)


def _new_runner() -> asyncio.Runner:
    # With a factory, the runner leaves the loop alone that others get from asyncio.
    return asyncio.Runner(loop_factory=asyncio.new_event_loop)


def _on_own_thread(function: Callable[[asyncio.Runner], T]) -> T:
    """Call a function on a thread with an event loop; who is interrupted does not wait for it."""
    result: Future[T] = Future()
    runner = _new_runner()
    loop = runner.get_loop()

    def work() -> None:
        try:
            with runner:
                answer = function(runner)
        except BaseException as error:
            result.set_exception(error)
        else:
            result.set_result(answer)

    context = contextvars.copy_context()
    name = "greedymiser-loop"
    threading.Thread(target=context.run, args=(work,), daemon=True, name=name).start()
    try:
        wait([result])
    except BaseException:  # Ctrl-C
        with contextlib.suppress(RuntimeError):  # it has just come to its end
            loop.call_soon_threadsafe(_cancel_all, loop)
        raise
    return result.result()


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()


class WorkerPool:
    """Threads that call functions for event loops.

    There are as many as there are calls at once: who calls sees to it that there are not too many.
    A thread cannot be stopped; one that does not return after a time-out is left behind, takes
    nobody's place, and does not keep the interpreter from ending. If ``most_abandoned`` calls of a
    source are, it is not called again before one of them returns.
    """

    def __init__(self, most_abandoned: int) -> None:
        self.most_abandoned = most_abandoned
        self._crew: _Crew | None = None
        self._roll = _Roll()

    async def call(self, source: Source, arguments: Sequence[Any]) -> Outcome:
        """Call a function on a thread and wait for its outcome."""
        crew, roll = self._own_crew(), self._roll
        n_abandoned = roll.n_abandoned(source)
        if n_abandoned >= self.most_abandoned:
            error = TimeoutError(f"it was not called, since {n_abandoned} earlier calls still hang")
            return Outcome(None, error, 0.0, timed_out=True, was_made=False)
        errand = _Errand(source, arguments)
        roll.begin(errand)

        def work() -> None:
            outcome = errand.run()
            roll.end(errand)
            errand.deliver(outcome)

        crew.send(work)
        try:
            return await errand.answer
        except BaseException:
            roll.abandon(errand)
            raise

    def _own_crew(self) -> _Crew:
        if self._roll.process != os.getpid():  # threads do not survive a fork
            self._crew, self._roll = None, _Roll()
        if self._crew is None:
            self._crew = _Crew()
            weakref.finalize(self, self._crew.dismiss)
        return self._crew

    def close(self) -> None:
        """End the threads; the next call starts new ones."""
        if self._crew is not None:
            self._crew.dismiss()
        self._crew = None

    def __reduce__(self) -> tuple[type[WorkerPool], tuple[int]]:
        return WorkerPool, (self.most_abandoned,)


class _Errand:
    """A call that a thread makes for an event loop."""

    def __init__(self, source: Source, arguments: Sequence[Any]):
        self.source = source
        self.answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._arguments: Sequence[Any] = arguments
        self._context = contextvars.copy_context()

    def run(self) -> Outcome:
        try:
            return self._context.run(call, self.source, self._arguments)
        except BaseException as error:  # to end a thread quietly is no answer
            return Outcome(None, error, math.nan)

    def deliver(self, outcome: Outcome) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: this comes too late
            self.answer.get_loop().call_soon_threadsafe(self._tell, outcome)

    def _tell(self, outcome: Outcome) -> None:
        if not self.answer.done():  # else nobody waits any more
            self.answer.set_result(outcome)


class _Roll:
    """Which calls run, and for which of them nobody waits any more."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._lock = threading.Lock()
        self._running: set[_Errand] = set()
        # Those of the running that were given up, by the name of their source.
        self._abandoned: defaultdict[str, set[_Errand]] = defaultdict(set)

    def n_abandoned(self, source: Source) -> int:
        with self._lock:
            return len(self._abandoned[source.name])

    def begin(self, errand: _Errand) -> None:
        with self._lock:
            self._running.add(errand)

    def abandon(self, errand: _Errand) -> None:
        with self._lock:
            if errand in self._running:
                self._abandoned[errand.source.name].add(errand)

    def end(self, errand: _Errand) -> None:
        with self._lock:
            self._running.discard(errand)
            self._abandoned[errand.source.name].discard(errand)


class _Crew:
    """Daemon threads, and the work that waits for the idle ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
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
        with self._lock:
            self._dismissed = True
            for _ in range(self._idle):
                self._work.put(None)
            self._idle = 0
