"""What sources return is taken here, and what they raise."""

from __future__ import annotations

import traceback
from asyncio import CancelledError
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from greedymiser.on_demand.calls import Outcome
from greedymiser.on_demand.sources import (
    AcquisitionError,
    Source,
    SourceTimeoutError,
    split_batch,
)
from greedymiser.on_demand.visits import Visit

# Longest error message that is repeated in one of ours.
MESSAGE_LENGTH = 300


class Leaving(Exception):  # noqa: N818 - not an error
    """Carries SystemExit and the like out of the tasks of an event loop."""

    def __init__(self, reason: BaseException):
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Reception:
    """Prepares the calls for objects, and writes down how they ended."""

    # What sources call the object.
    raw: str
    # Columns that may hold labels.
    labelled: frozenset[str]
    # Whether failures are raised, or the columns of a source that failed are missing.
    is_strict: bool
    # Seconds that each source may take; those without a limit are left out.
    timeouts: dict[str, float]

    def arguments(self, visit: Visit, source: Source) -> list[Any]:
        return visit.arguments(source, self.raw)

    def lists(self, visits: Sequence[Visit], source: Source) -> list[list[Any]]:
        """What a source needs of some objects, a list per parameter."""
        each = [visit.arguments(source, self.raw) for visit in visits]
        return [list(column) for column in zip(*each, strict=True)]

    def settle_all(self, visits: Sequence[Visit], source: Source, outcome: Outcome) -> None:
        """Write down how a call for many objects ended, which share its time."""
        results: Sequence[Any] = [None] * len(visits)
        share = outcome._replace(seconds=outcome.seconds / len(visits))
        if outcome.error is None:
            try:
                results = split_batch(outcome.value, len(visits))
            except (TypeError, ValueError) as fault:
                share = share._replace(error=fault)
        for visit, result in zip(visits, results, strict=True):
            self.settle(visit, source, share._replace(value=result))

    def settle(self, visit: Visit, source: Source, outcome: Outcome) -> None:
        """Write down how a call ended; raise if it failed and that is the policy."""
        if outcome.was_made:
            visit.seconds[source.name] = outcome.seconds
        error = outcome.error
        if error is None:
            error = self._fault(visit, source, outcome.value)
        if error is None:
            return
        if not isinstance(error, Exception | CancelledError):
            raise Leaving(error)
        failure = self._failure(visit, source, outcome, error)
        if self.is_strict:
            raise failure from error
        failure.__cause__ = error
        # Tracebacks are worth keeping, the pictures in their local variables are not.
        traceback.clear_frames(error.__traceback__)
        visit.failures[source.name] = failure
        visit.unavailable.add(source.name)

    def _failure(
        self, visit: Visit, source: Source, outcome: Outcome, error: BaseException
    ) -> AcquisitionError:
        if not outcome.timed_out:
            return AcquisitionError(source.name, visit.index, describe(error))
        reason = str(error)
        if outcome.was_made:
            reason = f"it did not answer within {self.timeouts[source.name]:g} s"
        return SourceTimeoutError(source.name, visit.index, reason)

    def _fault(self, visit: Visit, source: Source, value: Any) -> Exception | None:
        """Take what a source returned; return what is wrong with it."""
        try:
            visit.keep(source, value, self.labelled)
        except Exception as fault:
            return fault
        return None


def in_need(visits: Sequence[Visit], source: Source) -> list[Visit]:
    """Those of whom a source is to be called."""
    return [visit for visit in visits if not visit.knows(source) and not visit.is_blocked(source)]


def describe(error: BaseException) -> str:
    """Type and message of an error, not too long."""
    try:
        message = str(error)
    except Exception:  # an error whose message is itself an error
        message = ""
    if len(message) > MESSAGE_LENGTH:
        message = message[:MESSAGE_LENGTH] + " ..."
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
