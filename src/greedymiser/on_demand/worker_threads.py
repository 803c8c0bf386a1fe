"""Threads that call functions for event loops."""

from __future__ import annotations

import asyncio
import contextvars
import math
import os
import queue
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from greedymiser.on_demand.request import Outcome, refusal
from greedymiser.on_demand.scheduler import call_here
from greedymiser.on_demand.sources import Source

try:
    import sniffio
except ImportError:  # it comes with trio; without it nobody uses it
    sniffio = None  # type: ignore[assignment, unused-ignore]


def running_backend() -> str | None:
    """What runs the event loop that waits for this thread to return, in anyio's words.

    Does not load anyio, which takes a while and which plain calls can do without.
    """
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        return "trio"
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return None
    return "asyncio"


def context_for(backend: str | None) -> contextvars.Context:
    """The context of here, for a thread with that event loop.

    anyio notes in it, with sniffio, which one runs, and believes what it finds there.
    """
    context = contextvars.copy_context()
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
