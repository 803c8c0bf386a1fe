"""How much may go on at once, whoever asks for it."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from contextvars import ContextVar, Token
from typing import Any


class Limit:
    """A context that ``most`` may be in at once, of all threads and event loops together.

    Others wait in line, threads in ``with`` and tasks in ``loops.enter``. The limiters of anyio
    are for the tasks of one event loop only.
    """

    def __init__(self, most: int):
        self._lock = threading.Lock()
        self.most = most
        # The event loop of each who is inside, and of each who waits; None for a thread.
        self._inside: list[Any] = []
        self._line: deque[tuple[Future[None], Any]] = deque()

    def __enter__(self) -> None:
        ticket = self.ask()
        if ticket is not None:
            try:
                ticket.result()
            except BaseException:
                self.hand_back(ticket)
                raise

    def __exit__(self, *_: object) -> None:
        self.leave()

    def ask(self, loop: Any = None) -> Future[None] | None:
        """Come in (None), or get a ticket that is called when it is one's turn."""
        with self._lock:
            if len(self._inside) < self.most:  # then nobody waits
                self._inside.append(loop)
                return None
            # A loop that was closed while tasks were on their way never lets them leave.
            self._inside = [held for held in self._inside if not _is_closed(held)]
            ticket: Future[None] = Future()
            self._line.append((ticket, loop))
            called = self._next_in_line()
        for one in called:
            one.set_result(None)
        return None if ticket in called else ticket

    def leave(self, loop: Any = None) -> None:
        """Give the place to the next in line who still waits."""
        with self._lock:
            if loop in self._inside:  # else it was taken back
                self._inside.remove(loop)
            called = self._next_in_line()
        for one in called:
            one.set_result(None)

    def hand_back(self, ticket: Future[None], loop: Any = None) -> None:
        """Do not wait any longer; the turn may have come in the meantime."""
        if not ticket.cancel():
            self.leave(loop)

    def _next_in_line(self) -> list[Future[None]]:
        """Those whose turn it is, of those who still wait."""
        called = []
        while self._line and len(self._inside) < self.most:
            ticket, loop = self._line.popleft()
            if not _is_closed(loop) and ticket.set_running_or_notify_cancel():
                self._inside.append(loop)
                called.append(ticket)
        return called


def _is_closed(loop: Any) -> bool:
    """Whether an event loop has ended; one of trio does not before all of its tasks have."""
    return hasattr(loop, "is_closed") and bool(loop.is_closed())


# The lanes that count the calls in which we are.
_inside: ContextVar[frozenset[object]] = ContextVar("inside", default=frozenset())


class Lanes:
    """How many functions, and how many coroutines, may run at once."""

    def __init__(self, n_functions: int, n_coroutines: int, family: object = None):
        self._sizes = n_functions, n_coroutines
        self._family = family or object()
        self.functions = Limit(n_functions)
        self.coroutines = Limit(n_coroutines)

    def apart(self) -> Lanes:
        """Others of the same size, for a job that might wait forever for a place in these."""
        return Lanes(*self._sizes, self._family)

    def note(self) -> Token[frozenset[object]]:
        """Note in the context that a call is on its way."""
        return _inside.set(_inside.get() | {self._family})

    def forget(self, noted: Token[frozenset[object]]) -> None:
        _inside.reset(noted)

    def count_us(self) -> bool:
        """Whether we are in a call that has a place in these, or in others of the family."""
        return self._family in _inside.get()
