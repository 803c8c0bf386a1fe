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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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


def call(source: Source, arguments: Sequence[Any]) -> Outcome:
    """Call a function; what it raises is caught."""
    start = time.perf_counter()
    try:
        value = source.call(arguments)
    except Exception as error:
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
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Nobody cancelled us: something that the source waited for was cancelled.
        return Outcome(None, error, time.perf_counter() - start)
    return Outcome(value, None, time.perf_counter() - start)


def in_own_loop(function: Callable[[asyncio.Runner], T]) -> T:
    """Call a function with an event loop to run coroutines on.

    Where one is already running (a notebook's), on a thread of its own.
    """

    def with_runner() -> T:
        with asyncio.Runner() as runner:
            return function(runner)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return with_runner()
    with ThreadPoolExecutor(1) as helper:
        return helper.submit(contextvars.copy_context().run, with_runner).result()


class WorkerPool:
    """Threads that call functions for event loops.

    There are as many as there are calls at once: who calls sees to it that there are not too many.
    A thread cannot be stopped; one that does not return after a time-out is left behind, takes
    nobody's place, and does not keep the interpreter from ending.
    """

    def __init__(self) -> None:
        self._crew: _Crew | None = None

    async def call(self, source: Source, arguments: Sequence[Any]) -> Outcome:
        """Call a function on a thread and wait for its outcome."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Outcome] = loop.create_future()
        context = contextvars.copy_context()

        def deliver(outcome: Outcome) -> None:
            if not answer.done():  # else nobody waits any more
                answer.set_result(outcome)

        def work() -> None:
            try:
                outcome = context.run(call, source, arguments)
            except BaseException as error:  # to end a thread quietly is no answer
                outcome = Outcome(None, error, math.nan)
            with contextlib.suppress(RuntimeError):  # the loop is closed: this comes too late
                loop.call_soon_threadsafe(deliver, outcome)

        self._own_crew().send(work)
        return await answer

    def _own_crew(self) -> _Crew:
        crew = self._crew
        if crew is None or crew.process != os.getpid():  # threads do not survive a fork
            crew = self._crew = _Crew()
            weakref.finalize(self, crew.dismiss)
        return crew

    def close(self) -> None:
        """End the threads; the next call starts new ones."""
        if self._crew is not None:
            self._crew.dismiss()
        self._crew = None

    def __reduce__(self) -> tuple[type[WorkerPool], tuple[()]]:
        return WorkerPool, ()


class _Crew:
    """Daemon threads, and the work that waits for the idle ones."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._lock = threading.Lock()
        self._idle = 0
        self._dismissed = False
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def send(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._idle:
                self._idle -= 1
                self._work.put(work)
                return
        threading.Thread(
            target=self._serve, args=(work,), daemon=True, name="greedymiser-source"
        ).start()

    def _serve(self, work: Callable[[], None] | None) -> None:
        while work is not None:
            work()
            work = None  # a thread that waits keeps no object alive
            with self._lock:
                if self._dismissed:
                    return
                self._idle += 1
            work = self._work.get()

    def dismiss(self) -> None:
        """End the idle threads now, and those at work when they are done."""
        with self._lock:
            self._dismissed = True
            for _ in range(self._idle):
                self._work.put(None)
            self._idle = 0
