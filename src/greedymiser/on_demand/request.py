"""One object on its way through a model: what is known of it, and how its calls ended."""

from __future__ import annotations

import inspect
import math
import traceback
from asyncio import CancelledError
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser.data.tables import Categories
from greedymiser.on_demand.sources import (
    AcquisitionError,
    Source,
    SourceTimeoutError,
    Values,
    read_values,
    split_batch,
)

# Longest error message that is repeated in one of ours.
MESSAGE_LENGTH = 300

Plan = Sequence[Source]
"""All that must be called for something, what others need first."""


class Outcome(NamedTuple):
    """How a call ended."""

    value: Any
    error: BaseException | None
    seconds: float
    # Why it was given up, where it did not fail of itself.
    given_up: str = ""
    # Whether it was given up since the caller had no more time, which says nothing of the source.
    is_callers_fault: bool = False
    # Whether there was a call at all, and if not, whether the value was in a cache.
    was_made: bool = True
    from_cache: bool = False
    # The key under which the value is to be kept in a cache, once it was read.
    cache_key: Any = None


def refusal(reason: str) -> Outcome:
    """How a call ended that was not made."""
    return Outcome(None, TimeoutError(reason), 0.0, given_up=reason, was_made=False)


class Exit(Exception):  # noqa: N818 - not an error
    """Carries SystemExit and the like out of the tasks of an event loop."""

    def __init__(self, reason: BaseException):
        super().__init__(reason)
        self.reason = reason


class Request:
    """One object, and what is known of it so far."""

    __slots__ = (
        "cached",
        "columns",
        "failures",
        "index",
        "later",
        "open",
        "raw",
        "seconds",
        "unavailable",
        "values",
    )

    def __init__(self, index: int, raw: Any):
        self.index = index
        self.raw = locked(raw)
        # What functions returned, by their names.
        self.values: dict[str, Any] = {}
        # Columns, by the name of their source.
        self.columns: dict[str, Values] = {}
        # Wall time of every call, failed ones too, in the order in which they ended.
        self.seconds: dict[str, float] = {}
        # What was in a cache, and not called.
        self.cached: list[str] = []
        self.failures: dict[str, AcquisitionError] = {}
        # What failed, and what was not called because it needs something that failed.
        self.unavailable: set[str] = set()
        # Of the present plan: what waits for others, and the names of all that is not known yet.
        self.later: list[Source] = []
        self.open: set[str] = set()

    def knows(self, source: Source) -> bool:
        return source.name in self.values or source.name in self.unavailable

    def begin(self, plan: Plan) -> None:
        """Set out to call what is not known of a plan."""
        self.later = [source for source in plan if not self.knows(source)]
        self.open = {source.name for source in self.later}

    def ready(self) -> list[Source]:
        """Sources of the plan that can be called now and could not before."""
        ready, later = [], []
        for source in self.later:
            if not self.open.isdisjoint(source.needs):
                later.append(source)
            elif self.is_blocked(source):
                self.open.discard(source.name)
            else:
                ready.append(source)
        self.later = later
        return ready

    def is_blocked(self, source: Source) -> bool:
        """Whether something that a source needs is not to be had; notes it down."""
        if not self.unavailable or self.unavailable.isdisjoint(source.needs):
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

    def fail(self, source: Source, failure: AcquisitionError, error: BaseException) -> None:
        """Note that a source has failed on this object."""
        failure.__cause__ = error
        # Tracebacks are worth keeping, the pictures in their local variables are not.
        traceback.clear_frames(error.__traceback__)
        self.failures[source.name] = failure
        self.unavailable.add(source.name)

    def forget(self) -> None:
        """Let go of everything but accounts."""
        self.raw = None
        self.values.clear()
        self.columns.clear()


def locked(value: Any) -> Any:
    """A read-only view of an array: a source that changed it would change what others see."""
    if type(value) is not np.ndarray or not value.flags.writeable:
        return value
    view = value.view()
    view.flags.writeable = False
    return view


# -- how calls end --------------------------------------------------------------------------------


class Settlement(NamedTuple):
    """Writes down how calls ended."""

    # Columns that may hold labels.
    labelled: frozenset[str]
    # Whether failures are raised, or the columns of a source that failed are missing.
    is_strict: bool

    def settle(self, source: Source, requests: Sequence[Request], outcome: Outcome) -> None:
        """Write down how a call ended; raise if it failed and that is the policy."""
        if not source.is_batch:
            self._settle(source, requests[0], outcome)
            return
        # Those who were asked for together share the time of the call.
        results: Sequence[Any] = [None] * len(requests)
        share = outcome._replace(seconds=outcome.seconds / len(requests))
        if outcome.error is None:
            try:
                results = split_batch(outcome.value, len(requests))
            except (TypeError, ValueError) as fault:
                share = share._replace(error=fault)
        for request, result in zip(requests, results, strict=True):
            self._settle(source, request, share._replace(value=result))

    def _settle(self, source: Source, request: Request, outcome: Outcome) -> None:
        if outcome.was_made:
            request.seconds[source.name] = outcome.seconds
        elif outcome.from_cache:
            request.cached.append(source.name)
        error = outcome.error
        if error is None:
            try:
                request.keep(source, outcome.value, self.labelled)
            except Exception as fault:
                error = fault
            else:
                return
        if not isinstance(error, Exception | CancelledError):
            raise Exit(error)
        if outcome.given_up:
            failure: AcquisitionError = SourceTimeoutError(
                source.name, request.index, outcome.given_up
            )
        else:
            failure = AcquisitionError(source.name, request.index, describe(error))
        if self.is_strict:
            raise failure from error
        request.fail(source, failure, error)


def describe(error: BaseException) -> str:
    """Type and message of an error, not too long."""
    try:
        message = str(error)
    except Exception:  # an error whose message is itself an error
        message = ""
    if len(message) > MESSAGE_LENGTH:
        message = message[:MESSAGE_LENGTH] + " ..."
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


# -- from columns to a row of X -------------------------------------------------------------------


class Placement(NamedTuple):
    """Where the values of a source go in a row of X."""

    source: str
    # Positions among the source's columns, and the features that they are.
    taken: NDArray[np.intp]
    features: NDArray[np.intp]
    # Codes of labels, by feature; None where a feature is a number.
    codes: tuple[dict[Any, float] | None, ...]

    @classmethod
    def of(cls, source: Source, names: Mapping[int, str], categories: Categories) -> Placement:
        """For the features that a model looks at, by the names of their columns."""
        position = {column: i for i, column in enumerate(source.columns)}
        features = [feature for feature, name in names.items() if name in position]
        categorical = [categories.get(feature) for feature in features]
        taken = [position[names[feature]] for feature in features]
        return cls(
            source.name,
            np.array(taken, dtype=np.intp),
            np.array(features, dtype=np.intp),
            tuple(None if labels is None else _codes(labels) for labels in categorical),
        )

    def fill(self, row: NDArray[np.float64], columns: Mapping[str, Values]) -> None:
        """Put a source's values into a row; it stays as it is where there are none."""
        values = columns.get(self.source)
        if values is None:
            return
        if isinstance(values, np.ndarray):
            row[self.features] = values[self.taken]
            return
        for i, feature, codes in zip(self.taken, self.features, self.codes, strict=True):
            value = values[i]
            # An unknown label is missing, as in a matrix.
            row[feature] = value if codes is None else codes.get(value, math.nan)


def _codes(labels: NDArray[Any]) -> dict[Any, float]:
    return {label: float(i) for i, label in enumerate(labels.tolist())}
