"""How much may go on at once, whoever asks for it."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from contextvars import ContextVar, Token


class Limit:
    """A context that ``most`` may be in at once, of all threads and event loops together.

    Others wait in line, threads in ``with`` and tasks in ``loops.enter``. The limiters of anyio
    are for the tasks of one event loop only.
    """

    def __init__(self, most: int):
        self._lock = threading.Lock()
        self.most = self._free = most
        self._line: deque[Future[None]] = deque()

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

    def ask(self) -> Future[None] | None:
        """Come in (None), or get a ticket that is called when it is one's turn."""
        with self._lock:
            if self._free:
                self._free -= 1
                return None
            ticket: Future[None] = Future()
            self._line.append(ticket)
            return ticket

    def leave(self) -> None:
        """Give the place to the next in line who still waits."""
        with self._lock:
            while self._line:
                ticket = self._line.popleft()
                if ticket.set_running_or_notify_cancel():
                    break
            else:
                self._free += 1
                return
        ticket.set_result(None)

    def hand_back(self, ticket: Future[None]) -> None:
        """Do not wait any longer; the turn may have come in the meantime."""
        if not ticket.cancel():
            self.leave()


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
