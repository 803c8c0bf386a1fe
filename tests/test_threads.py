"""Threads over kernels that release the GIL."""

import doctest
import itertools
import threading
import time

import numba
import pytest
from hypothesis import given
from hypothesis import strategies as st

import greedymiser.threads
from greedymiser.threads import Threads, thread_count

counts = pytest.mark.parametrize("n_threads", [1, 2, 5])


def test_doctests():
    result = doctest.testmod(greedymiser.threads)
    assert result.attempted > 0
    assert result.failed == 0


@counts
def test_results_come_in_the_order_of_the_tasks(n_threads):
    def slow_at_first(i):
        time.sleep(0.002 * (20 - i))
        return i * i

    with Threads(n_threads) as threads:
        assert threads.run(slow_at_first, [(i,) for i in range(20)]) == [i * i for i in range(20)]


@counts
def test_tasks_are_arguments(n_threads):
    with Threads(n_threads) as threads:
        assert threads.run(lambda a, b: a - b, [(5, 2), (1, 1)]) == [3, 0]
        assert threads.run(lambda: 7, [(), ()]) == [7, 7]
        assert threads.run(lambda a: a, iter([(1,), (2,)])) == [1, 2]
        assert threads.run(lambda a: a, []) == []


@counts
def test_every_task_is_done_once(n_threads):
    done = []
    with Threads(n_threads) as threads:
        threads.run(done.append, [(i,) for i in range(500)])
        threads.run(done.append, [(i,) for i in range(500, 700)])
    assert sorted(done) == list(range(700))


@counts
def test_exceptions_propagate(n_threads):
    def fail_at_3(i):
        if i == 3:
            raise KeyError("three")
        return i

    with Threads(n_threads) as threads:
        with pytest.raises(KeyError, match="three"):
            threads.run(fail_at_3, [(i,) for i in range(10)])
        # And the threads are still good.
        assert threads.run(fail_at_3, [(4,), (5,)]) == [4, 5]


@counts
def test_after_an_exception_nobody_starts_another_task(n_threads):
    here, done = threading.get_ident(), []

    def fail_here(i):
        if threading.get_ident() == here:
            raise RuntimeError("stop")
        time.sleep(0.001)
        done.append(i)

    with Threads(n_threads) as threads:
        with pytest.raises(RuntimeError, match="stop"):
            threads.run(fail_here, [(i,) for i in range(1000)])
        finished = len(done)
        assert finished < 999
        time.sleep(0.01)
        assert len(done) == finished  # nor is anyone left at work


@counts
def test_an_exception_inside_leaves_the_context(n_threads):
    before = threading.active_count()

    def work():
        with Threads(n_threads) as threads:
            threads.run(time.sleep, [(0.0,)] * 10)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        work()
    deadline = time.monotonic() + 5.0
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_leaving_ends_the_threads():
    before = threading.active_count()
    with Threads(3) as threads:
        threads.run(time.sleep, [(0.001,)] * 10)
        assert threading.active_count() > before
    assert threading.active_count() == before


def test_one_thread_or_one_task_stays_on_the_callers_thread():
    here = threading.get_ident()
    with Threads(1) as threads:
        assert threads.run(threading.get_ident, [()] * 3) == [here] * 3
    with Threads(4) as threads:
        assert threads.run(threading.get_ident, [()]) == [here]


def test_several_threads_run_side_by_side():
    # Each task waits for the other: one thread alone would never get past the barrier.
    barrier = threading.Barrier(2, timeout=10.0)
    with Threads(2) as threads:
        assert sorted(threads.run(barrier.wait, [(), ()])) == [0, 1]


@given(st.integers(0, 10_000), st.integers(0, 300), st.integers(1, 9), st.integers(1, 6))
def test_slices_cover_the_range(n, smallest, n_threads, per_thread):
    pieces = Threads(n_threads).slices(n, smallest, per_thread)
    assert pieces[0][0] == 0
    assert pieces[-1][1] == n
    assert all(before[1] == after[0] for before, after in itertools.pairwise(pieces))
    sizes = [stop - start for start, stop in pieces]
    assert max(sizes) - min(sizes) <= 1
    assert len(pieces) <= max(1, n_threads * per_thread)
    if len(pieces) > 1:
        assert min(sizes) >= max(1, smallest)


def test_slices_by_hand():
    assert Threads(2).slices(10, 1) == [(0, 5), (5, 10)]
    assert Threads(2).slices(10, 1, per_thread=2) == [(0, 2), (2, 5), (5, 7), (7, 10)]
    assert Threads(2).slices(10, 6) == [(0, 10)]
    assert Threads(2).slices(3, 0, per_thread=4) == [(0, 1), (1, 2), (2, 3)]
    assert Threads(2).slices(0, 1) == [(0, 0)]
    assert Threads(1).slices(10, 1, per_thread=4) == [(0, 10)]


def test_thread_count_reads_n_jobs():
    assert thread_count(None) == numba.config.NUMBA_NUM_THREADS
    assert thread_count(1) == 1
    assert thread_count(3) == 3
    assert thread_count(-1) >= 1
    with pytest.raises(ValueError, match="n_jobs"):
        thread_count(0)
