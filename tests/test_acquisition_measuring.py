"""What sources cost by the clock. No test asserts a time, only large ratios."""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections import Counter

import numpy as np
import pytest

from greedymiser import CostModel, MiserRegressor
from greedymiser.acquisition import (
    AcquisitionError,
    AcquisitionWarning,
    CostTable,
    Sources,
    measure_costs,
)
from greedymiser.acquisition.measuring import pretty_seconds, tick


def burn(n):
    total = 0
    for i in range(n):
        total += i
    return total


def burning_sources():
    """Two sources that share an intermediate; each is ten times as dear as the next."""
    sources = Sources()
    sources.add(lambda raw: burn(100_000), name="decode")
    sources.add(lambda decode: (burn(10_000), 1), ["a", "b"], name="slow")
    sources.add(lambda decode: burn(1_000), ["c"], name="fast")
    return sources


def test_ratios_are_right_and_shared_work_counts_once():
    costs, table = measure_costs(burning_sources(), range(4), repeats=3)
    assert [timing.name for timing in table] == ["decode", "slow", "fast"]
    decode, slow, fast = (timing.cost for timing in table)
    assert 4 < decode / slow < 25
    assert 4 < slow / fast < 25
    # All of it is computing: both clocks agree, on any machine that does little else.
    assert table["decode"].cpu <= 2 * table["decode"].wall
    assert costs.feature_names == ["a", "b", "c"]
    assert costs.resource_names == ["decode", "slow", "fast"]
    assert costs.total(["a", "b"]) == pytest.approx(decode + slow)
    assert costs.prices(bought=["a"])[2] == fast


def test_the_pair_has_names():
    measured = measure_costs(burning_sources(), [0], repeats=1, tree_cost=2e-8)
    assert isinstance(measured.costs, CostModel)
    assert isinstance(measured.table, CostTable)
    assert measured.costs.tree_cost == 2e-8


def test_sleep_costs_wall_time_but_no_cpu():
    sources = Sources()
    sources.add(lambda raw: time.sleep(0.02) or 1.0, ["a"], name="sleepy")
    table = measure_costs(sources, [1, 2], repeats=2, clock="wall").table
    assert table["sleepy"].cost == table["sleepy"].wall >= 0.019
    assert table["sleepy"].clock == "wall"
    cpu = measure_costs(sources, [1, 2], repeats=2, clock="cpu")
    assert cpu.table["sleepy"].cost == cpu.table["sleepy"].cpu < 0.01
    assert cpu.table["sleepy"].loops == 1


def test_coroutines_are_charged_by_the_wall():
    sources = Sources()

    @sources.intermediate
    async def page(raw):
        await asyncio.sleep(0.01)
        return raw

    @sources.columns
    def size(page):
        return page

    costs, table = measure_costs(sources, [1, 2], repeats=2)
    assert [(timing.name, timing.clock) for timing in table] == [("page", "wall"), ("size", "cpu")]
    assert table["page"].cost >= 0.009
    assert costs.total(["size"]) >= 0.009

    async def notebook():
        return measure_costs(sources, [1], repeats=1)

    assert asyncio.run(notebook()).table["page"].cost >= 0.009


def test_fast_functions_are_called_often_enough_for_the_clock():
    calls = Counter()

    def instant(raw):
        calls[raw] += 1
        return raw

    sources = Sources()
    sources.add(instant, ["a"])
    timing = measure_costs(sources, [7], repeats=3, warm_up=1).table[0]
    assert timing.loops > 50
    assert calls[7] == 1 + 3 * timing.loops
    assert 0 < timing.cost < 1e-4


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


def test_median_and_mean_over_objects():
    """One object in five takes a hundred times as long."""
    sources = Sources()
    sources.add(lambda raw: burn(raw), ["a"], name="a")
    samples = [1_000, 1_000, 1_000, 1_000, 100_000]
    table = measure_costs(sources, samples, repeats=3).table
    line = table["a"]
    assert line.cost == line.median
    assert line.lower_quartile <= line.median <= line.upper_quartile < line.mean
    mean = measure_costs(sources, samples, repeats=3, statistic="mean").table["a"]
    assert mean.cost == mean.mean > 5 * mean.median


def test_blas_threads_count():
    """CPU time is that of the process: work on another thread is not lost."""
    import threading

    def on_another_thread(raw):
        thread = threading.Thread(target=burn, args=(200_000,))
        thread.start()
        thread.join()
        return 1.0

    sources = Sources()
    sources.add(on_another_thread, ["a"], name="helper")
    sources.add(lambda raw: float(burn(200_000) > 0), ["b"], name="here")
    table = measure_costs(sources, [1, 2], repeats=3).table
    assert 0.3 < table["helper"].cost / table["here"].cost < 3


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
    with pytest.warns(AcquisitionWarning, match=r"'picky' on 1 of 3 objects \(first on object 1"):
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


def test_trees_can_be_timed():
    X = np.random.default_rng(0).standard_normal((200, 3))
    model = MiserRegressor(max_iter=20, n_jobs=1).fit(X, X[:, 0])
    costs = measure_costs(burning_sources(), [0], repeats=1, tree_cost=model).costs
    assert 1e-10 < costs.tree_cost < 1e-3
    with pytest.raises(ValueError, match="a model without trees"):
        measure_costs(burning_sources(), [0], tree_cost=model.truncate(0))


def test_tables_print_and_become_frames():
    table = measure_costs(burning_sources(), [0], repeats=1).table
    frame = table.to_frame()
    assert frame["name"].tolist() == ["decode", "slow", "fast"]
    assert frame["kind"].tolist() == ["intermediate", "source", "source"]
    assert frame["needs"].tolist() == [(), ("decode",), ("decode",)]
    assert (frame["cost"] == frame["cpu"]).all()
    shown = repr(table).splitlines()
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


@pytest.mark.parametrize("clock", [time.process_time, time.perf_counter])
def test_a_tick_is_positive(clock):
    assert 0 < tick(clock) < 0.1


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
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        measure_costs(burning_sources(), [0], **arguments)


def test_bad_samples():
    with pytest.raises(ValueError, match="at least one sample"):
        measure_costs(burning_sources(), [])
    with pytest.raises(TypeError, match="put a single object into a list"):
        measure_costs(burning_sources(), "text")
    with pytest.raises(TypeError, match="not a fitted model"):
        measure_costs(burning_sources(), [0], tree_cost="dear")
    with pytest.raises(ValueError, match="make no columns"):
        measure_costs(Sources(), [0])
