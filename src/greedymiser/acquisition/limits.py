"""How much may go on at once, whoever asks for it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from concurrent.futures import Future


class Limit:
    """A context that ``most`` may be in at once, of all threads and event loops together.

    Others wait in line, threads in ``with`` and tasks in ``async with``.
    """

    def __init__(self, most: int):
        self._lock = threading.Lock()
        self._free = most
        self._line: deque[Future[None]] = deque()

    def __enter__(self) -> None:
        ticket = self._ask()
        if ticket is not None:
            try:
                ticket.result()
            except BaseException:
                self._hand_back(ticket)
                raise

    def __exit__(self, *_: object) -> None:
        self._leave()

    async def __aenter__(self) -> None:
        ticket = self._ask()
        if ticket is not None:
            try:
                await asyncio.wrap_future(ticket)
            except BaseException:
                self._hand_back(ticket)
                raise

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    def _ask(self) -> Future[None] | None:
        """Come in (None), or get a ticket that is called when it is one's turn."""
        with self._lock:
            if self._free:
                self._free -= 1
                return None
            ticket: Future[None] = Future()
            self._line.append(ticket)
            return ticket

    def _leave(self) -> None:
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

    def _hand_back(self, ticket: Future[None]) -> None:
        """Do not wait any longer; the turn may have come in the meantime."""
        if not ticket.cancel():
            self._leave()


class Lanes:
    """How many functions, and how many coroutines, may run at once."""

    def __init__(self, n_functions: int, n_coroutines: int):
        self._sizes = n_functions, n_coroutines
        self.functions = Limit(n_functions)
        self.coroutines = Limit(n_coroutines)
        # Calls that run while a process is forked end in the parent only.
        self.process = os.getpid()

    def __reduce__(self) -> tuple[type[Lanes], tuple[int, int]]:
        return Lanes, self._sizes
