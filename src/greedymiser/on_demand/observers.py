"""Who is told what happens while objects are answered: metrics, traces, logs.

An observer has any of the methods of ``Observer``. What it raises is logged, and does not harm an
answer. ``metrics`` has ready ones for Prometheus and OpenTelemetry.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

from greedymiser.on_demand.request import Outcome

logger = logging.getLogger("greedymiser.on_demand")


class AnsweredObject(NamedTuple):
    """What came of one object, as observers are told.

    Examples
    --------
    >>> from greedymiser.on_demand import AnsweredObject
    >>> AnsweredObject(cost=1.5, model="fallback 0", asked=("age",)).in_vain
    ()
    """

    # What it cost by the model's prices.
    cost: float
    # "model", or "fallback 0" and so on.
    model: str
    # Sources that were called, and those of them that the answer did not need.
    asked: tuple[str, ...]
    in_vain: tuple[str, ...] = ()


class Observer:
    """What observers may be told. Take what you need; all methods do nothing here.

    Examples
    --------
    >>> from greedymiser.on_demand import Observer
    >>> class Counts(Observer):
    ...     def __init__(self):
    ...         self.calls = 0
    ...     def source_called(self, source, n_objects):
    ...         self.calls += n_objects
    """

    def source_called(self, source: str, n_objects: int) -> None:
        """A call begins."""

    def source_answered(self, source: str, n_objects: int, seconds: float) -> None:
        """A call has returned something."""

    def source_failed(
        self, source: str, n_objects: int, seconds: float, error: BaseException, was_called: bool
    ) -> None:
        """A call has failed, was given up, or was not made (``was_called`` is False)."""

    def source_cached(self, source: str) -> None:
        """A value was in the cache."""

    def source_waited(self, source: str, seconds: float, queue_length: int) -> None:
        """A call had to wait for its turn, behind so many others."""

    def object_answered(self, answered: AnsweredObject) -> None:
        """An object has its prediction."""

    def request_answered(self, n_objects: int, seconds: float) -> None:
        """All objects of a call of ``predict`` have their predictions."""


class Observers:
    """Tells all observers, and does not let one of them do harm."""

    def __init__(self, observers: Iterable[Any] = ()):
        self._observers = tuple(observers)
        self._broken: set[tuple[int, str]] = set()

    def __bool__(self) -> bool:
        return bool(self._observers)

    def tell(self, event: str, *arguments: Any) -> None:
        for i, observer in enumerate(self._observers):
            method = getattr(observer, event, None)
            if method is None:
                continue
            try:
                method(*arguments)
            except Exception:
                if (i, event) not in self._broken:  # once: it may fail a thousand times a second
                    self._broken.add((i, event))
                    logger.exception("observer %r failed in %s; it is ignored", observer, event)

    def source_called(self, source: str, n_objects: int) -> None:
        if self._observers:
            self.tell("source_called", source, n_objects)

    def ended(self, source: str, n_objects: int, outcome: Outcome) -> None:
        """Tell how a call ended."""
        if not self._observers:
            return
        if outcome.from_cache:
            self.tell("source_cached", source)
        elif outcome.error is None:
            self.tell("source_answered", source, n_objects, outcome.seconds)
        else:
            error, was_made = outcome.error, outcome.was_made
            self.tell("source_failed", source, n_objects, outcome.seconds, error, was_made)
