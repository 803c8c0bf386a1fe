"""How a source is treated that waits, fails or costs: time-outs, retries, breakers, caches.

Retries and breakers are a few lines each and have to know the deadline of the answer that waits for
them, which decorators (tenacity) cannot: a source that is decorated by one is still a source. A
cache is whatever the user has: a mapping such as ``cachetools.TTLCache``, or an object with ``get``
and ``set``, which may be coroutines (Redis).
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from greedymiser.on_demand.request import Outcome, Plan, refusal
from greedymiser.on_demand.sources import Sources

# Answers that say how fast a source can be: the last few, of the last minute.
REMEMBERED_ANSWERS = 32
REMEMBERED_SECONDS = 60.0

# A source that of late was too slow for a deadline is called all the same every so many seconds:
# it may have been the event loop that was slow, and nobody would ever know.
PROBE_INTERVAL = 1.0

# Share of a deadline, and seconds at most, that are kept for what comes after the last answer.
RESERVED_SHARE = 0.1
RESERVED_SECONDS = 0.02


@dataclass(frozen=True)
class SourcePolicy:
    """How one source is called.

    Parameters
    ----------
    timeout : float, optional
        Seconds that a call may take, from its start.
    limit : int, optional
        Calls at once, on each event loop. Others wait, and observers are told for how long.
    retries : int
        How often a call is repeated that failed, if there is time before the deadline.
    retry_wait : float
        The longest wait before the first retry, in seconds; it doubles with each. The wait is drawn
        between 0 and that, so that those who failed together do not come back together.
    breaker : int, optional
        After so many failures in a row the source is not called any more: it fails at once. That it
        does not answer within its ``timeout`` is a failure; that a caller's own deadline is shorter
        is none, so a source with a breaker should have a ``timeout``.
    breaker_reset : float
        Seconds after which one call is tried again; if it succeeds, all are made again.
    cache : mapping, or object with ``get(key)`` and ``set(key, value)``, optional
        Where answers are kept across requests, under the pair of the source's name and the key, or
        of its name and the key joined by a colon where there is a ``set`` (Redis).
    cache_key : function, optional
        The key of an object; None for one that is not to be cached.
    max_batch : int, optional
        For a source with ``batch=True``: no call has more objects than this, and requests that come
        together, on one event loop, share calls. Each keeps its own deadline.
    max_wait : float
        Seconds that a request waits for others.

    Examples
    --------
    >>> from greedymiser.on_demand import SourcePolicy
    >>> SourcePolicy(timeout=0.5, retries=2, breaker=5).breaker_reset
    30.0
    """

    timeout: float | None = None
    limit: int | None = None
    retries: int = 0
    retry_wait: float = 0.05
    breaker: int | None = None
    breaker_reset: float = 30.0
    cache: Any = None
    cache_key: Callable[[Any], Any] | None = None
    max_batch: int | None = None
    max_wait: float = 0.002

    def __post_init__(self) -> None:
        whole_number("retries", self.retries, 0)
        for name in ("limit", "breaker", "max_batch"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), 1)
        if self.timeout is not None:
            check_seconds("timeout", self.timeout)
        for name in ("retry_wait", "breaker_reset", "max_wait"):
            check_seconds(name, getattr(self, name))
        if (self.cache is None) != (self.cache_key is None):
            raise ValueError(
                "cache and cache_key go together: one says where, the other under what"
            )
        if self.cache is not None and not isinstance(self.cache, MutableMapping):
            missing = [name for name in ("get", "set") if not hasattr(self.cache, name)]
            if missing:
                raise TypeError(
                    f"cache must be a mapping or have get and set, got {type(self.cache).__name__}"
                )

    @property
    def is_plain(self) -> bool:
        """Whether a call is no more than a call."""
        return self == _PLAIN


def read_policies(
    policies: Mapping[str, SourcePolicy] | None, timeout: Any, sources: Sources, plan: Plan
) -> dict[str, SourcePolicy]:
    """The policy of each source that has one; raise if one names what is not a source."""
    by_source = dict(policies or {})
    for name, policy in by_source.items():
        if name not in sources:
            raise ValueError(f"policies names {name!r}, which is not a source")
        if not isinstance(policy, SourcePolicy):
            raise TypeError(f"policy of {name!r} must be a SourcePolicy, got {policy!r}")
        if policy.max_batch is not None and not sources[name].is_batch:
            raise ValueError(f"policy of {name!r} has max_batch, but the source has not batch=True")
        if policy.cache is not None and sources[name].is_batch:
            raise ValueError(
                f"policy of {name!r} has a cache, but the source has batch=True: its answers are "
                "for many objects at once; cache inside the source, or register it without batch"
            )
    for name, seconds in read_timeouts(timeout, sources, plan).items():
        policy = by_source.get(name, _PLAIN)
        if policy.timeout is None:
            by_source[name] = SourcePolicy(**{**vars(policy), "timeout": seconds})
    return {name: policy for name, policy in by_source.items() if not policy.is_plain}


def read_timeouts(timeout: Any, sources: Sources, plan: Plan) -> dict[str, float]:
    """Seconds that each source may take; those without a limit are left out."""
    if timeout is None:
        return {}
    if isinstance(timeout, Mapping):
        unknown = [name for name in timeout if name not in sources]
        if unknown:
            raise ValueError(f"timeout names {unknown[0]!r}, which is not a source")
        timeouts = dict(timeout)
    else:
        timeouts = {source.name: timeout for source in plan}
    return {name: check_seconds(f"timeout of {name!r}", value) for name, value in timeouts.items()}


def check_seconds(argument: str, seconds: Any) -> float:
    """Check an argument that is a positive number of seconds."""
    if isinstance(seconds, bool) or not isinstance(seconds, Real):
        raise TypeError(f"{argument} must be a number of seconds, got {seconds!r}")
    try:
        checked = float(seconds)
    except OverflowError:  # an integer of hundreds of digits
        checked = math.inf
    if not (checked > 0 and math.isfinite(checked)):
        raise ValueError(f"{argument} must be positive and finite, got {seconds}")
    return checked


def whole_number(argument: str, value: Any, least: int) -> int:
    """Check an argument that counts something."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{argument} must be an integer of at least {least}, got {value!r}")
    return int(value)


_PLAIN = SourcePolicy()


# -- time -----------------------------------------------------------------------------------------


class Deadline:
    """When an answer must be there. A part of the time is kept for what follows the last call."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        reserve = min(RESERVED_SHARE * seconds, RESERVED_SECONDS)
        self._end = time.perf_counter() + seconds - reserve

    @property
    def left(self) -> float:
        """Seconds that calls may still take."""
        return self._end - time.perf_counter()


class Health:
    """How a source has done of late: how fast it can be, and whether it is worth a call.

    All threads and event loops share it.
    """

    def __init__(self, policy: SourcePolicy):
        self._policy = policy
        self._lock = threading.Lock()
        self._answers: deque[tuple[float, float]] = deque(maxlen=REMEMBERED_ANSWERS)
        self._n_failures = 0
        # When a call began the last time.
        self._began = 0.0
        # When the breaker was opened; None while it is closed.
        self._opened: float | None = None
        # The call that is tried although the breaker is open, and when it began; None if there is
        # none.
        self._trial: tuple[object, float] | None = None

    def refusal(self, deadline: Deadline | None, call: object | None = None) -> Outcome | None:
        """Why the source is not called now, if so.

        Who begins a call names it, and says later what came of it: ``note``, or ``release`` if
        nothing did.
        """
        if deadline is not None:
            left = deadline.left
            if left <= 0:
                return refusal(f"it was not called, since {deadline.seconds:g} s have passed")
            fastest = self._fastest()
            if fastest > left and time.perf_counter() - self._began < PROBE_INTERVAL:
                return refusal(
                    f"it was not called: of late it took at least {fastest:.3g} s, and "
                    f"{left:.3g} s are left"
                )
        # Last, since a call that is admitted here as the trial must be made.
        if self._opened is not None and not self._may_try(call):
            return refusal(
                f"it was not called, since its last {self._n_failures} calls failed; one is tried "
                f"every {self._policy.breaker_reset:g} s"
            )
        if call is not None:
            self._began = time.perf_counter()
        return None

    def _may_try(self, call: object | None) -> bool:
        with self._lock:
            if self._opened is None:
                return True
            now = time.perf_counter()
            since = self._opened if self._trial is None else self._trial[1]
            if now - since < self._policy.breaker_reset:
                return False
            if call is not None:
                self._trial = call, now  # nobody else tries before this one has ended, or hangs
            return True

    def release(self, call: object) -> None:
        """A call says nothing about the source: it was not made, or its caller has gone.

        If it was the trial, the next call is.
        """
        with self._lock:
            self._end_trial(call)

    def _end_trial(self, call: object) -> bool:
        """End the trial if this call is it, and say whether it was. The caller has the lock."""
        is_trial = self._trial is not None and self._trial[0] is call
        if is_trial:
            self._trial = None
        return is_trial

    def _fastest(self) -> float:
        """The least time that an answer took of late; 0 where nothing is known."""
        return min(self._of_late(), default=0.0)

    def slowest(self) -> float | None:
        """The longest time that an answer took of late; None where nothing is known."""
        return max(self._of_late(), default=None)

    def _of_late(self) -> list[float]:
        since = time.perf_counter() - REMEMBERED_SECONDS
        with self._lock:
            return [seconds for when, seconds in self._answers if when >= since]

    def note(self, call: object, outcome: Outcome) -> None:
        """Take how a call ended."""
        with self._lock:
            was_trial = self._end_trial(call)
            if not outcome.was_made:
                return
            now = time.perf_counter()
            if outcome.error is None:
                self._answers.append((now, outcome.seconds))
                self._n_failures, self._opened, self._trial = 0, None, None
                return
            self._n_failures += 1
            if self._policy.breaker is None or self._n_failures < self._policy.breaker:
                return
            # Calls that began before the breaker opened, and fail now, put no trial off.
            if self._opened is None or was_trial:
                self._opened = now


def retry_wait(policy: SourcePolicy, attempt: int) -> float:
    """Seconds to wait before retry number ``attempt`` (from 0), with full jitter."""
    longest: float = policy.retry_wait * 2.0**attempt
    return random.random() * longest
