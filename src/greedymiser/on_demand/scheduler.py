"""Which source is called for which object, and when: one scheduler, whoever makes the calls.

A *walk* says what each object needs next. The scheduler turns that into calls: a source is ready
once what it needs is known; one that takes many objects at once is ready when all that wait for it
have come. Who makes the calls (``run_here`` in this thread, ``event_loop`` side by side) takes one
after the other, and hands back how each ended.
"""

from __future__ import annotations

import logging
import time
import warnings
from asyncio import CancelledError
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any, NamedTuple, Protocol

import narwhals as nw

from greedymiser.data.tables import is_frame
from greedymiser.on_demand.observers import Observers
from greedymiser.on_demand.request import Outcome, Plan, Request, Settlement
from greedymiser.on_demand.sources import AcquisitionError, AcquisitionWarning, Source

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
    """

    def __init__(
        self,
        walk: FetchingWalk,
        settlement: Settlement,
        most_objects: float,
        refused: Callable[[Source], Outcome | None] | None = None,
    ):
        self._walk = walk
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
            self._ready.append(self._batches.pop(name))


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


def whole_number(argument: str, value: Any, least: int) -> int:
    """Check an argument that counts something."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{argument} must be an integer of at least {least}, got {value!r}")
    return int(value)


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
