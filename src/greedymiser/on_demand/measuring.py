"""What sources cost, by the clock."""

from __future__ import annotations

import gc
import math
import statistics
import time
from asyncio import CancelledError
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, NamedTuple

import numpy as np

from greedymiser._core.text_tables import LineTable
from greedymiser.costs.cost_model import CostModel
from greedymiser.model.predictor import as_predictor
from greedymiser.on_demand.fetcher import FailureLog, each_object, running_backend
from greedymiser.on_demand.policies import whole_number
from greedymiser.on_demand.request import Request, describe
from greedymiser.on_demand.sources import AcquisitionError, Source, Sources

# A fast function is repeated until it takes this long, or so many ticks of the clock.
LEAST_SECONDS = 5e-4
LEAST_TICKS = 50


@dataclass(frozen=True)
class Timing:
    """What one source or intermediate takes, without what it needs. All times are in seconds.

    Examples
    --------
    >>> from greedymiser import Sources, measure_costs
    >>> sources = Sources(raw="text")
    >>> _ = sources.add(len, ["n_letters"], name="letters", needs=["text"])
    >>> line = measure_costs(sources, ["a word"]).table["letters"]
    >>> line.kind, line.clock, line.n_columns, line.cost > 0
    ('source', 'cpu', 1, True)
    """

    name: str
    # "source" or "intermediate".
    kind: str
    # Names of what it needs, without the object itself.
    needs: tuple[str, ...]
    n_columns: int
    # What it is charged for: one of the times below.
    cost: float
    # The clock by which it is charged: "cpu" or "wall".
    clock: str
    # Over the samples, by that clock.
    mean: float
    median: float
    lower_quartile: float
    upper_quartile: float
    # Medians of both clocks.
    cpu: float
    wall: float
    # Samples that it succeeded on, and calls in a row that were timed as one.
    n_samples: int
    loops: int


class CostTable(LineTable[Timing]):
    """Measured times, one line per source. Prints as a table; ``to_frame()`` for pandas.

    Examples
    --------
    >>> from greedymiser import Sources, measure_costs
    >>> sources = Sources(raw="text")
    >>> _ = sources.add(len, ["n_letters"], name="letters", needs=["text"])
    >>> table = measure_costs(sources, ["a word"]).table
    >>> len(table), table[0].name, "upper_quartile" in table.to_frame()
    (1, 'letters', True)
    """

    def __getitem__(self, index: Any) -> Any:
        """A line by position or by name, or a table of some lines by a slice."""
        if isinstance(index, str):
            for timing in self:
                if timing.name == index:
                    return timing
            raise KeyError(index)
        return super().__getitem__(index)

    def to_frame(self) -> Any:
        """Return the table as a pandas DataFrame, times in seconds."""
        import pandas as pd

        names = list(Timing.__dataclass_fields__)
        rows = [[getattr(timing, name) for name in names] for timing in self]
        return pd.DataFrame(rows, columns=names)

    def __repr__(self) -> str:
        whole = pretty_seconds(sum(timing.cost for timing in self))
        return f"<CostTable of {len(self)} sources and intermediates, {whole} in all>"

    _heads = ("name", "needs", "columns", "cost", "quartiles", "cpu", "wall", "clock", "samples")
    _left = frozenset({0, 1, 7})

    def _rows(self, lines: Sequence[Timing]) -> list[tuple[str, ...]]:
        return [
            (
                timing.name,
                ", ".join(timing.needs),
                str(timing.n_columns or "-"),
                pretty_seconds(timing.cost),
                f"{pretty_seconds(timing.lower_quartile)} to "
                f"{pretty_seconds(timing.upper_quartile)}",
                pretty_seconds(timing.cpu),
                pretty_seconds(timing.wall),
                timing.clock,
                str(timing.n_samples),
            )
            for timing in lines
        ]


class MeasuredCosts(NamedTuple):
    """What ``measure_costs`` found.

    Examples
    --------
    >>> from greedymiser import Sources, measure_costs
    >>> sources = Sources(raw="text")
    >>> _ = sources.add(len, ["n_letters"], name="letters", needs=["text"])
    >>> costs, table = measure_costs(sources, ["a word"])
    >>> costs.feature_names
    ['n_letters']
    """

    costs: CostModel
    table: CostTable


def measure_costs(
    sources: Sources,
    samples: Any,
    *,
    repeats: int = 5,
    warm_up: int = 1,
    clock: Literal["cpu", "wall"] = "cpu",
    statistic: Literal["median", "mean"] = "median",
    tree_cost: Any = 0.0,
    on_error: Literal["raise", "skip"] = "raise",
) -> MeasuredCosts:
    """Time every source and intermediate on some objects.

    The clock runs only while a function does, not while what it needs is made, so shared
    intermediates count once. It is the process' CPU time (all threads of a BLAS included) or wall
    time. Per object the median over the repeats counts; the cost is the median (or mean) over the
    objects. Fast functions are called several times in a row, so that the clock can tell. The
    garbage collector is off while the clock runs. Coroutines wait for others, so they are charged
    by wall time. For functions with a cache only the lookup is measured: pass them unwrapped.

    Parameters
    ----------
    sources : Sources
    samples : iterable of objects
        A few dozen that are like those that will be served.
    repeats : int
        How often every object is gone through.
    warm_up : int
        How often before that, without the clock. With 0 the first calls count, and fast functions
        are not called several times in a row.
    clock : {"cpu", "wall"}
    statistic : {"median", "mean"}
        What a source is charged for: a typical object, or all of them on average.
    tree_cost : float or fitted model
        Seconds that a tree takes, or a model whose trees are timed.
    on_error : {"raise", "skip"}
        Raise if a source fails on an object, or leave the object out for that source and warn.

    Returns
    -------
    MeasuredCosts
        A pair: ``costs``, a CostModel in seconds whose resources are the sources and
        intermediates, and ``table``, which says how they were measured.

    Examples
    --------
    >>> from greedymiser import Sources, measure_costs
    >>> sources = Sources(raw="text")
    >>> @sources.columns("n_words")
    ... def n_words(text):
    ...     return len(text.split())
    >>> costs, table = measure_costs(sources, ["a word", "two more words"])
    >>> costs.total(["n_words"]) == table["n_words"].cost
    True
    """
    sources.check()
    _check_choice("clock", clock, ("cpu", "wall"))
    _check_choice("statistic", statistic, ("median", "mean"))
    _check_choice("on_error", on_error, ("raise", "skip"))
    repeats, warm_up = whole_number("repeats", repeats, 1), whole_number("warm_up", warm_up, 0)
    objects = list(each_object(samples))
    if not objects:
        raise ValueError("measure_costs needs at least one sample")
    seconds_per_tree = _read_tree_cost(tree_cost)
    stopwatch = Stopwatch(sources, clock, skip=on_error == "skip")
    stopwatch.measure(objects, repeats, warm_up)
    stopwatch.log.add((), len(objects))
    stopwatch.log.tell(stacklevel=2, effect="these objects are left out")
    table = CostTable(stopwatch.timings(statistic))
    prices = {timing.name: timing.cost for timing in table}
    costs = CostModel.from_resources(prices, sources.needs(), tree_cost=seconds_per_tree)
    return MeasuredCosts(costs, table)


class Stopwatch:
    """Goes through objects and times every function."""

    def __init__(self, sources: Sources, clock: str, *, skip: bool):
        self.plan = sources.plan()
        self.log = FailureLog()
        self._raw = sources.raw
        self._labelled = frozenset(sources.categorical_names)
        self._skip = skip
        self._clock = {
            source.name: "wall" if source.is_coroutine else clock for source in self.plan
        }
        self._has_coroutines = any(source.is_coroutine for source in self.plan)
        self._loops = {source.name: 1 for source in self.plan}
        # Per source and object: (CPU, wall) of each repeat.
        self._times: dict[str, dict[int, list[tuple[float, float]]]] = {}
        self._failed: dict[str, set[int]] = {source.name: set() for source in self.plan}
        # Has a coroutine function called on an event loop, the same for all calls.
        self._on_loop: Callable[..., Any] | None = None

    def measure(self, objects: Sequence[Any], repeats: int, warm_up: int) -> None:
        with ExitStack() as stack:
            if self._has_coroutines:
                from greedymiser.on_demand.event_loop import Portal

                portal = Portal(running_backend() or "asyncio")
                stack.callback(portal.close)
                self._on_loop = portal.call
            self._measure(objects, repeats, warm_up)

    def _measure(self, objects: Sequence[Any], repeats: int, warm_up: int) -> None:
        # Only the last passes before the repeats tell how long functions take once they are warm.
        for _ in range(warm_up):
            self._pass(objects)
        if warm_up:
            self._calibrate()
        passes = [self._pass(objects) for _ in range(repeats)]
        self._times = {
            source.name: {
                i: [times[source.name, i] for times in passes]
                for i in range(len(objects))
                if i not in self._failed[source.name]
            }
            for source in self.plan
        }

    def _pass(self, objects: Sequence[Any]) -> dict[tuple[str, int], tuple[float, float]]:
        """Go through all objects once: (CPU, wall) by source and object."""
        times: dict[tuple[str, int], tuple[float, float]] = {}
        for i, raw in enumerate(objects):
            request = Request(i, raw)
            for source in self.plan:
                if i in self._failed[source.name]:
                    request.unavailable.add(source.name)
                elif request.is_blocked(source):
                    self._failed[source.name].add(i)
                else:
                    times[source.name, i] = self._timed(request, source)
        self._last_pass = times
        return times

    def _timed(self, request: Request, source: Source) -> tuple[float, float]:
        """CPU and wall time of one call; a failure is noted or raised."""
        arguments = request.arguments(source, self._raw)
        loops = self._loops[source.name]
        try:
            if source.is_coroutine:
                assert self._on_loop is not None
                value, cpu, wall = self._on_loop(_time_coroutine, source, arguments, loops)
            else:
                value, cpu, wall = _time_function(source, arguments, loops)
            request.keep(source, value, self._labelled)
        # Something that it waited for may have been cancelled.
        except (Exception, CancelledError) as error:
            failure = AcquisitionError(source.name, request.index, describe(error))
            if not self._skip:
                raise failure from error
            self.log.add([failure], n_objects=0)
            self._failed[source.name].add(request.index)
            request.unavailable.add(source.name)
            return math.nan, math.nan
        return cpu, wall

    def _calibrate(self) -> None:
        """Choose how often to call each function in a row, by the last pass."""
        ticks = {"cpu": tick(time.process_time), "wall": tick(time.perf_counter)}
        for source in self.plan:
            walls = [
                wall
                for (name, _), (_, wall) in self._last_pass.items()
                if name == source.name and not math.isnan(wall)
            ]
            if walls:
                enough = max(LEAST_SECONDS, LEAST_TICKS * ticks[self._clock[source.name]])
                # By the wall, whatever the clock: one that sleeps is not called more often.
                fastest = max(statistics.median(walls), 1e-8)
                self._loops[source.name] = max(1, math.ceil(enough / fastest))

    def timings(self, statistic: str) -> list[Timing]:
        return [self._timing(source, statistic) for source in self.plan]

    def _timing(self, source: Source, statistic: str) -> Timing:
        times = self._times[source.name]
        if not times:
            raise ValueError(f"{source.kind} {source.name!r} failed on every sample")
        per_object = np.array([np.median(pairs, axis=0) for pairs in times.values()])
        clock = self._clock[source.name]
        charged = per_object[:, 0 if clock == "cpu" else 1]
        lower, median, upper = np.quantile(charged, [0.25, 0.5, 0.75]).tolist()
        mean = float(charged.mean())
        return Timing(
            name=source.name,
            kind=source.kind,
            needs=tuple(need for need in source.needs if need != self._raw),
            n_columns=len(source.columns),
            cost=median if statistic == "median" else mean,
            clock=clock,
            mean=mean,
            median=median,
            lower_quartile=lower,
            upper_quartile=upper,
            cpu=float(np.median(per_object[:, 0])),
            wall=float(np.median(per_object[:, 1])),
            n_samples=len(times),
            loops=self._loops[source.name],
        )


class _QuietCollector:
    """A context without garbage collection."""

    def __enter__(self) -> None:
        self._was_on = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was_on:
            gc.enable()


def _time_function(
    source: Source, arguments: Sequence[Any], loops: int
) -> tuple[Any, float, float]:
    """What a function returns, and CPU and wall time of a call."""
    with _QuietCollector():
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(loops):
            value = source.call(arguments)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return value, cpu / loops, wall / loops


async def _time_coroutine(
    source: Source, arguments: Sequence[Any], loops: int
) -> tuple[Any, float, float]:
    """The same for a coroutine function; the loop is already running when the clock starts."""
    with _QuietCollector():
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(loops):
            value = await source.call(arguments)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return value, cpu / loops, wall / loops


def tick(clock: Callable[[], float]) -> float:
    """Smallest step of a clock that is seen when it is read again and again."""
    smallest = math.inf
    for _ in range(5):
        start = now = clock()
        while now == start:
            now = clock()
        smallest = min(smallest, now - start)
    return smallest


def seconds_per_tree(model: Any) -> float:
    """CPU time that one tree takes for one row, the mean over all trees of a model."""
    predictor = as_predictor(model)
    n_trees = predictor.stages[-1].n_trees
    if not n_trees:
        raise ValueError("tree_cost is a model without trees: there is nothing to time")
    row, raw = np.zeros((1, predictor.n_features)), predictor.begin(1)

    def walk() -> None:
        for k in range(len(predictor.stages)):
            predictor.advance(k, row, raw)

    walk()  # compiles
    timings: list[float] = []
    loops = 1
    while len(timings) < 5:
        with _QuietCollector():
            start = time.process_time()
            for _ in range(loops):
                walk()
            taken = time.process_time() - start
        if taken < 20 * LEAST_SECONDS:
            loops *= 2
        else:
            timings.append(taken / loops / n_trees)
    return statistics.median(timings)


def _read_tree_cost(tree_cost: Any) -> float:
    if isinstance(tree_cost, Real):
        return float(tree_cost)
    return seconds_per_tree(tree_cost)


def _check_choice(argument: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{argument} must be one of {list(choices)}, got {value!r}")


def pretty_seconds(seconds: float) -> str:
    """Seconds in a unit that people read, to three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
