"""What sources cost by the clock: one that the tests turn themselves."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
from collections import Counter

import anyio
import numpy as np
import pytest
import trio  # noqa: F401 - reads the clock that it finds when it is loaded

from greedymiser import CostModel, MiserRegressor
from greedymiser.model.predictor import Stage
from greedymiser.on_demand import (
    AcquisitionError,
    AcquisitionWarning,
    CostTable,
    Sources,
    measure_costs,
)
from greedymiser.on_demand.measuring import LEAST_SECONDS, pretty_seconds, tick
from test_on_demand import told_of_failures


class FakeTime:
    """Stands for the module ``time``: clocks that move only by what functions say they take."""

    # One reading of a clock takes this long: clocks tick.
    TICK = 1e-9

    def __init__(self):
        self.cpu = self.wall = 0.0

    def process_time(self):
        self.burn(self.TICK)
        return self.cpu

    def perf_counter(self):
        self.burn(self.TICK)
        return self.wall

    def burn(self, seconds, value=1.0):
        self.cpu += seconds
        return self.sleep(seconds, value)

    def sleep(self, seconds, value=1.0):
        self.wall += seconds
        return value


def about(seconds):
    return pytest.approx(seconds, rel=1e-3)


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    fake = FakeTime()
    monkeypatch.setattr("greedymiser.on_demand.measuring.time", fake)
    return fake


def burning_sources(clock):
    """Two sources that share an intermediate."""
    sources = Sources()
    sources.add(lambda raw: clock.burn(3e-2), name="decode")
    sources.add(lambda decode: (clock.burn(2e-3), 1), ["a", "b"], name="slow")
    sources.add(lambda decode: clock.burn(1e-5), ["c"], name="fast")
    return sources


def test_every_function_is_charged_for_itself_and_shared_work_once(clock):
    costs, table = measure_costs(burning_sources(clock), range(4), repeats=3)
    assert [timing.name for timing in table] == ["decode", "slow", "fast"]
    assert [timing.cost for timing in table] == [about(3e-2), about(2e-3), about(1e-5)]
    assert [timing.wall for timing in table] == [about(3e-2), about(2e-3), about(1e-5)]
    assert costs.feature_names == ["a", "b", "c"]
    assert costs.resource_names == ["decode", "slow", "fast"]
    assert costs.total(["a", "b"]) == about(3e-2 + 2e-3)
    assert costs.prices(bought=["a"])[2] == table["fast"].cost


def test_the_pair_has_names(clock):
    measured = measure_costs(burning_sources(clock), [0], repeats=1, tree_cost=2e-8)
    assert isinstance(measured.costs, CostModel)
    assert isinstance(measured.table, CostTable)
    assert measured.costs.tree_cost == 2e-8


def test_sleep_costs_wall_time_but_no_cpu(clock):
    sources = Sources()
    sources.add(lambda raw: clock.sleep(0.25), ["a"], name="sleepy")
    line = measure_costs(sources, [1, 2], repeats=2, clock="wall").table["sleepy"]
    assert (line.cost, line.clock) == (about(0.25), "wall")
    line = measure_costs(sources, [1, 2], repeats=2, clock="cpu").table["sleepy"]
    assert (line.cost, line.clock) == (line.cpu, "cpu")
    assert line.cpu < 1e-6
    assert line.wall == about(0.25)
    assert line.loops == 1, "what sleeps is not called again and again"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_coroutines_are_charged_by_the_wall(clock, backend):
    sources = Sources()

    @sources.intermediate
    async def page(raw):
        await anyio.sleep(0)
        return clock.sleep(0.25, raw)

    @sources.columns
    def size(page):
        return clock.burn(0.125, page)

    costs, table = measure_costs(sources, [1, 2], repeats=2)
    assert [(timing.name, timing.clock) for timing in table] == [("page", "wall"), ("size", "cpu")]
    assert table["page"].cost == about(0.25)
    assert costs.total(["size"]) == about(0.375)

    async def notebook():
        return measure_costs(sources, [1], repeats=1)

    found = anyio.run(notebook, backend=backend)
    assert found.table["page"].cost == about(0.25)


def test_coroutines_are_measured_on_one_event_loop():
    """What the first call opened (a session, a connection) is still alive in the others."""
    loops = set()

    async def page(raw):
        loops.add(asyncio.get_running_loop())
        return 1.0

    sources = Sources()
    sources.add(page, ["page"])
    sources.add(lambda raw: asyncio.run(page(raw)), ["own"], name="own")
    measure_costs(sources, [1, 2], repeats=2, warm_up=0)
    assert len(loops) == 1 + 4  # functions may still have theirs


@pytest.mark.parametrize("is_coroutine", [False, True])
def test_leaving_the_program_is_not_a_failure(is_coroutine):
    def leave(raw):
        raise SystemExit(3)

    async def leave_later(raw):
        leave(raw)

    sources = Sources()
    sources.add(leave_later if is_coroutine else leave, ["a"], name="call")
    with pytest.raises(SystemExit):
        measure_costs(sources, [1], on_error="skip")


def test_fast_functions_are_called_often_enough_for_the_clock(clock):
    calls = Counter()

    def instant(raw):
        calls[raw] += 1
        return clock.burn(1e-7, raw)

    sources = Sources()
    sources.add(instant, ["a"])
    timing = measure_costs(sources, [7], repeats=3, warm_up=1).table[0]
    assert 0.9 * LEAST_SECONDS < timing.loops * 1e-7 < 1.1 * LEAST_SECONDS
    assert calls[7] == 1 + 3 * timing.loops
    assert timing.cost == about(1e-7)


def test_a_cold_measurement_calls_once():
    calls = Counter()
    sources = Sources()

    @sources.columns
    def a(raw):
        calls[raw] += 1
        return raw

    timing = measure_costs(sources, [1, 2], repeats=1, warm_up=0).table[0]
    assert timing.loops == 1
    assert calls == {1: 1, 2: 1}


def test_the_garbage_collector_rests_while_the_clock_runs():
    seen = set()
    sources = Sources()

    @sources.columns
    def a(raw):
        seen.add(gc.isenabled())
        return 1.0

    @sources.columns
    async def b(raw):
        seen.add(gc.isenabled())
        return 1.0

    assert gc.isenabled()
    measure_costs(sources, [1], repeats=2)
    assert seen == {False}
    assert gc.isenabled()
    gc.disable()
    try:
        measure_costs(sources, [1], repeats=1)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_median_and_mean_over_objects(clock):
    """One object in five takes a hundred times as long."""
    sources = Sources()
    sources.add(lambda raw: clock.burn(raw), ["a"], name="a")
    samples = [0.01, 0.01, 0.02, 0.03, 1.0]
    line = measure_costs(sources, samples, repeats=3).table["a"]
    assert line.cost == line.median == about(0.02)
    assert (line.lower_quartile, line.upper_quartile) == (about(0.01), about(0.03))
    mean = measure_costs(sources, samples, repeats=3, statistic="mean").table["a"]
    assert mean.cost == mean.mean == about(1.07 / 5)


def test_the_median_of_the_repeats_counts(clock):
    """One repeat in three is disturbed."""
    calls = Counter()

    def disturbed(raw):
        calls[raw] += 1
        return clock.burn(5.0 if calls[raw] == 3 else 0.5)

    sources = Sources()
    sources.add(disturbed, ["a"])
    assert measure_costs(sources, [1, 2], repeats=3).table[0].cost == about(0.5)


def test_the_threads_of_a_blas_count(clock):
    """CPU time is that of the process: work on another thread is not lost."""

    def on_another_thread(raw):
        thread = threading.Thread(target=clock.burn, args=(0.5,))
        thread.start()
        thread.join()
        return 1.0

    sources = Sources()
    sources.add(on_another_thread, ["a"])
    assert measure_costs(sources, [1, 2], repeats=3).table[0].cost == about(0.5)


def test_failures_name_source_and_sample():
    def picky(raw):
        return {"x": 1 / raw}["x"]

    sources = Sources()
    sources.add(picky, ["a"])
    sources.add(lambda picky: picky + 1, ["b"], name="next")
    sources.add(lambda raw: 1.0, ["c"], name="easy")
    with pytest.raises(AcquisitionError, match=r"'picky' failed on object 1: ZeroDiv") as caught:
        measure_costs(sources, [1, 0])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with told_of_failures(r"'picky' failed on 1 of 3 objects, .* \(first on object 1"):
        table = measure_costs(sources, [1, 0, 2], repeats=2, on_error="skip").table
    assert [timing.n_samples for timing in table] == [2, 2, 3]
    assert all(math.isfinite(timing.cost) for timing in table)
    with (
        pytest.warns(AcquisitionWarning),
        pytest.raises(ValueError, match="source 'picky' failed on every sample"),
    ):
        measure_costs(sources, [0, 0], on_error="skip")


def test_what_is_returned_is_checked():
    sources = Sources()
    sources.add(lambda raw: [1, 2, 3], ["a", "b"], name="long")
    with pytest.raises(AcquisitionError, match=r"'long' failed on object 0: .*3 values for 2 col"):
        measure_costs(sources, [1])


def test_trees_can_be_timed(clock, monkeypatch):
    X = np.random.default_rng(0).standard_normal((200, 3))
    model = MiserRegressor(max_iter=20, n_jobs=1).fit(X, X[:, 0])
    monkeypatch.setattr(Stage, "add", lambda stage, rows, raw: clock.burn(2e-4))
    costs = measure_costs(burning_sources(clock), [0], repeats=1, tree_cost=model).costs
    assert costs.tree_cost == about(2e-4 / 20)
    with pytest.raises(ValueError, match="a model without trees"):
        measure_costs(burning_sources(clock), [0], tree_cost=model.truncate(0))


@pytest.mark.parametrize("is_coroutine", [False, True])
def test_a_function_that_was_cancelled_from_within(is_coroutine):
    def cancelled(raw):
        raise asyncio.CancelledError("inner")

    async def cancelled_later(raw):
        cancelled(raw)

    sources = Sources()
    sources.add(cancelled_later if is_coroutine else cancelled, ["a"], name="call")
    with pytest.raises(AcquisitionError, match=r"'call' failed .*CancelledError: inner"):
        measure_costs(sources, [1])


def test_tables_print_and_become_frames(clock):
    table = measure_costs(burning_sources(clock), [0], repeats=1).table
    frame = table.to_frame()
    assert frame["name"].tolist() == ["decode", "slow", "fast"]
    assert frame["kind"].tolist() == ["intermediate", "source", "source"]
    assert frame["needs"].tolist() == [(), ("decode",), ("decode",)]
    assert (frame["cost"] == frame["cpu"]).all()
    assert repr(table).startswith("<CostTable of 3 sources and intermediates, ")
    assert table._repr_html_().count("<tr>") == 4
    shown = str(table).splitlines()
    assert len(shown) == 4
    assert shown[2].split()[:3] == ["slow", "decode", "2"]
    assert len(table[1:]) == 2
    assert table[-1].name == "fast"
    with pytest.raises(KeyError):
        table["nothing"]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0, "0 ns"), (2.5e-9, "2.5 ns"), (1.234e-5, "12.3 us"), (0.25, "250 ms"), (61.0, "61 s")],
)
def test_seconds_for_people(seconds, shown):
    assert pretty_seconds(seconds) == shown


def test_a_coarse_clock_is_seen():
    now = 0

    def coarse():
        nonlocal now
        now += 1
        return now // 10 * 0.25

    assert tick(coarse) == 0.25


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"repeats": 0}, "repeats must be an integer of at least 1, got 0"),
        ({"warm_up": -1}, "warm_up must be an integer of at least 0, got -1"),
        ({"repeats": 2.0}, "repeats must be an integer"),
        ({"clock": "sun"}, r"clock must be one of \['cpu', 'wall'\], got 'sun'"),
        ({"statistic": "mode"}, "statistic must be one of"),
        ({"on_error": "missing"}, r"on_error must be one of \['raise', 'skip'\]"),
        ({"tree_cost": -1.0}, "tree_cost must not be negative"),
    ],
)
def test_bad_arguments(clock, arguments, message):
    with pytest.raises(ValueError, match=message):
        measure_costs(burning_sources(clock), [0], **arguments)


def test_bad_samples(clock):
    with pytest.raises(ValueError, match="at least one sample"):
        measure_costs(burning_sources(clock), [])
    with pytest.raises(TypeError, match="put a single object into a list"):
        measure_costs(burning_sources(clock), "text")
    with pytest.raises(TypeError, match="not a fitted model"):
        measure_costs(burning_sources(clock), [0], tree_cost="dear")
    with pytest.raises(ValueError, match="make no columns"):
        measure_costs(Sources(), [0])
