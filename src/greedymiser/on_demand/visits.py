"""Objects on their way, and what is asked of them."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from greedymiser.on_demand.sources import AcquisitionError, Source, Values, read_values

Answer = TypeVar("Answer", covariant=True)


@dataclass(slots=True, eq=False)
class Visit:
    """One object, and what is known of it so far."""

    index: int
    raw: Any
    # What functions returned, by their names.
    values: dict[str, Any] = field(default_factory=dict)
    # Columns, by the name of their source.
    columns: dict[str, Values] = field(default_factory=dict)
    # Wall time of every call, failed ones too, in the order in which they ended.
    seconds: dict[str, float] = field(default_factory=dict)
    failures: dict[str, AcquisitionError] = field(default_factory=dict)
    # What failed, and what was not called because it needs something that failed.
    unavailable: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.raw = locked(self.raw)

    def knows(self, source: Source) -> bool:
        return source.name in self.values or source.name in self.unavailable

    def is_blocked(self, source: Source) -> bool:
        """Whether something that a source needs is not to be had; notes it down."""
        if self.unavailable.isdisjoint(source.needs):
            return False
        self.unavailable.add(source.name)
        return True

    def arguments(self, source: Source, raw: str) -> list[Any]:
        return [self.raw if need == raw else self.values[need] for need in source.needs]

    def keep(self, source: Source, value: Any, labelled: frozenset[str]) -> None:
        """Take what a source returned; raise if it is not what was promised."""
        if inspect.iscoroutine(value):
            value.close()
            raise TypeError("it returned a coroutine; make it a function with async def")
        # What can be rewound, such as a file, is the business of those who read it.
        if isinstance(value, Iterator | AsyncIterator) and not hasattr(value, "seek"):
            raise TypeError(
                "it returned an iterator, which only one source could read; return a list"
            )
        if source.columns:
            self.columns[source.name] = read_values(source, value, labelled)
        self.values[source.name] = locked(value)

    def forget(self) -> None:
        """Let go of everything but columns and accounts."""
        self.raw = None
        self.values.clear()


def locked(value: Any) -> Any:
    """A read-only view of an array: a source that changed it would change what others see."""
    if type(value) is not np.ndarray or not value.flags.writeable:
        return value
    view = value.view()
    view.flags.writeable = False
    return view


class Request(NamedTuple):
    """Objects, and all that must be called for what is needed of them, in a possible order."""

    visits: Sequence[Visit]
    plan: Sequence[Source]
    # Whether nothing will be asked of these objects again.
    is_last: bool
    # Called when all is known of one of the objects.
    done: Callable[[], object] | None = None
    # What one of the objects needs next, given what was fetched; nothing where it has to wait for
    # others. For those who need not go in step.
    then: Callable[[Visit], Sequence[Source]] | None = None

    @property
    def is_batch(self) -> bool:
        """Whether something in the plan takes many objects at once."""
        return any(source.is_batch for source in self.plan)

    def finish(self, visit: Visit) -> None:
        """Note that all is known of an object."""
        if self.is_last:
            visit.forget()
        if self.done is not None:
            self.done()


class Job(Protocol[Answer]):
    """Something that needs columns of objects."""

    def requests(self) -> Iterator[Sequence[Request]]:
        """What is needed, for different objects; all is answered before more is asked."""

    def answer(self) -> Answer:
        """The result, once all requests are answered."""
