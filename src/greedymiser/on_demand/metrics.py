"""Observers of what happens while objects are answered: metrics, traces, logs.

An observer has any of the methods of ``Observer``. What it raises is logged, and does not harm an
answer. There are ready ones for Prometheus (``prometheus_client``) and OpenTelemetry
(``opentelemetry-sdk``), which are imported when one is made; the extra ``metrics`` has both.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from greedymiser.on_demand.request import Outcome

logger = logging.getLogger("greedymiser.on_demand")


class AnsweredObject(NamedTuple):
    """What came of one object, as observers receive it.

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
    # Sources whose answer was in a cache.
    cached: tuple[str, ...] = ()

    @property
    def needed(self) -> tuple[str, ...]:
        """Sources that the answer needed, be it from a call or from a cache."""
        return tuple(name for name in (*self.asked, *self.cached) if name not in self.in_vain)


class Observer:
    """What observers are called with. Override what you need; all methods do nothing here.

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


# -- Prometheus and OpenTelemetry -----------------------------------------------------------------


# Objects over which asked shares are averaged, the last ones most.
REMEMBERED_OBJECTS = 1000


class AskedDrift:
    """How the share of objects that need a source departs from what was expected.

    Parameters
    ----------
    expected : mapping from source to share
        As in ``OnDemandPredictor(..., sample=X).asked_shares``.
    """

    def __init__(self, expected: Mapping[str, float]):
        self._expected = dict(expected)
        self._lock = threading.Lock()
        self._n = 0.0
        self._asked = dict.fromkeys(self._expected, 0.0)

    def note(self, needed: tuple[str, ...]) -> dict[str, float]:
        """Take what an object needed; the share now less the one expected, by source."""
        keep = 1.0 - 1.0 / REMEMBERED_OBJECTS
        with self._lock:
            self._n = self._n * keep + 1.0
            for name in self._asked:
                self._asked[name] = self._asked[name] * keep + (name in needed)
            return {name: n / self._n - self._expected[name] for name, n in self._asked.items()}


class PrometheusObserver(Observer):
    """Counts and times in a registry of ``prometheus_client``.

    Parameters
    ----------
    registry : CollectorRegistry, optional
        That of ``prometheus_client`` by default. One observer per registry and prefix.
    prefix : str
    expected : mapping from source to share, optional
        Shares of rows for which sources are called, as ``asked_shares`` of a predictor has them;
        how far recent shares differ from them is then a gauge.

    Examples
    --------
    >>> from prometheus_client import CollectorRegistry
    >>> from greedymiser.on_demand.metrics import PrometheusObserver
    >>> registry = CollectorRegistry()
    >>> PrometheusObserver(registry).source_called("bureau", 1)
    >>> registry.get_sample_value("greedymiser_source_calls_total", {"source": "bureau"})
    1.0
    """

    def __init__(
        self,
        registry: Any = None,
        prefix: str = "greedymiser",
        expected: Mapping[str, float] | None = None,
    ):
        import prometheus_client as client

        options: dict[str, Any] = {"namespace": prefix, "registry": registry or client.REGISTRY}
        counter, by_source = client.Counter, ["source"]
        self._calls = counter("source_calls", "Calls that were begun", by_source, **options)
        self._cached = counter("source_cached", "Answers from the cache", by_source, **options)
        self._failures = counter(
            "source_failures",
            "Calls that failed, or were refused",
            ["source", "kind"],
            **options,
        )
        self._seconds = client.Histogram(
            "source_seconds", "Seconds that answers took", by_source, **options
        )
        self._waits = client.Histogram(
            "source_wait_seconds", "Seconds that calls waited for their turn", by_source, **options
        )
        self._queue = client.Gauge(
            "source_queue_length",
            "Calls that waited before the last that did",
            by_source,
            **options,
        )
        self._objects = counter("objects", "Objects that were answered", ["model"], **options)
        self._cost = counter("cost", "What answers cost by the model's prices", **options)
        self._vain = counter("in_vain", "Calls that were not needed", by_source, **options)
        self._requests = client.Histogram(
            "request_seconds", "Seconds from the request to the answer", **options
        )
        self._drift = None if expected is None else AskedDrift(expected)
        self._drifts = client.Gauge(
            "asked_share_drift",
            "Share of objects that needed it, less expected",
            by_source,
            **options,
        )

    def source_called(self, source: str, n_objects: int) -> None:
        self._calls.labels(source).inc()

    def source_answered(self, source: str, n_objects: int, seconds: float) -> None:
        self._seconds.labels(source).observe(seconds)

    def source_failed(
        self, source: str, n_objects: int, seconds: float, error: BaseException, was_called: bool
    ) -> None:
        kind = type(error).__name__ if was_called else "refused"
        self._failures.labels(source, kind).inc()

    def source_cached(self, source: str) -> None:
        self._cached.labels(source).inc()

    def source_waited(self, source: str, seconds: float, queue_length: int) -> None:
        self._waits.labels(source).observe(seconds)
        self._queue.labels(source).set(queue_length)

    def object_answered(self, answered: AnsweredObject) -> None:
        self._objects.labels(answered.model).inc()
        self._cost.inc(answered.cost)
        for source in answered.in_vain:
            self._vain.labels(source).inc()
        if self._drift is not None:
            for source, drift in self._drift.note(answered.needed).items():
                self._drifts.labels(source).set(drift)

    def request_answered(self, n_objects: int, seconds: float) -> None:
        self._requests.observe(seconds)


class OpenTelemetryObserver(Observer):
    """A span per call of a source, below the span that is current, and metrics.

    Parameters
    ----------
    tracer_provider, meter_provider : optional
        The global ones by default.
    expected : mapping from source to share, optional
        As for ``PrometheusObserver``.

    Examples
    --------
    >>> from opentelemetry.sdk.trace import TracerProvider
    >>> from greedymiser.on_demand.metrics import OpenTelemetryObserver
    >>> OpenTelemetryObserver(TracerProvider()).source_answered("bureau", 1, 0.02)
    """

    def __init__(
        self,
        tracer_provider: Any = None,
        meter_provider: Any = None,
        expected: Mapping[str, float] | None = None,
    ):
        from opentelemetry import metrics, trace
        from opentelemetry.trace import Status, StatusCode

        self._error = Status, StatusCode.ERROR
        self._tracer = trace.get_tracer("greedymiser.on_demand", tracer_provider=tracer_provider)
        meter = metrics.get_meter("greedymiser.on_demand", meter_provider=meter_provider)
        self._seconds = meter.create_histogram("greedymiser.source.duration", "s")
        self._waits = meter.create_histogram("greedymiser.source.wait", "s")
        self._queue = meter.create_histogram("greedymiser.source.queue_length")
        self._failures = meter.create_counter("greedymiser.source.failures")
        self._cached = meter.create_counter("greedymiser.source.cached")
        self._objects = meter.create_counter("greedymiser.objects")
        self._vain = meter.create_counter("greedymiser.source.in_vain")
        self._cost = meter.create_histogram("greedymiser.object.cost")
        self._requests = meter.create_histogram("greedymiser.request.duration", "s")
        self._drift = None if expected is None else AskedDrift(expected)
        self._drifts = meter.create_gauge("greedymiser.source.asked_share_drift")

    def source_answered(self, source: str, n_objects: int, seconds: float) -> None:
        self._seconds.record(seconds, {"source": source})
        self._span(source, n_objects, seconds, None)

    def source_failed(
        self, source: str, n_objects: int, seconds: float, error: BaseException, was_called: bool
    ) -> None:
        kind = type(error).__name__ if was_called else "refused"
        self._failures.add(1, {"source": source, "kind": kind})
        self._span(source, n_objects, seconds, error)

    def _span(
        self, source: str, n_objects: int, seconds: float, error: BaseException | None
    ) -> None:
        # Written when the call has ended: spans may begin in the past.
        now = time.time_ns()
        attributes: dict[str, Any] = {
            "greedymiser.source": source,
            "greedymiser.n_objects": n_objects,
        }
        span = self._tracer.start_span(
            f"source {source}", start_time=now - int(seconds * 1e9), attributes=attributes
        )
        if error is not None:
            status, code = self._error
            span.set_status(status(code, type(error).__name__))
        span.end(now)

    def source_cached(self, source: str) -> None:
        self._cached.add(1, {"source": source})

    def source_waited(self, source: str, seconds: float, queue_length: int) -> None:
        self._waits.record(seconds, {"source": source})
        self._queue.record(queue_length, {"source": source})

    def object_answered(self, answered: AnsweredObject) -> None:
        self._objects.add(1, {"model": answered.model})
        self._cost.record(answered.cost)
        for source in answered.in_vain:
            self._vain.add(1, {"source": source})
        if self._drift is not None:
            for source, drift in self._drift.note(answered.needed).items():
                self._drifts.set(drift, {"source": source})

    def request_answered(self, n_objects: int, seconds: float) -> None:
        self._requests.record(seconds)
