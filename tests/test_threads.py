"""Threads over kernels that release the GIL."""

import itertools
import os
import signal
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from greedymiser._core.compiling import inner, njit
from greedymiser._core.intrinsics import fetch_add, load_word, relax, yield_core
from greedymiser._core.threads import (
    LINE_WORDS,
    TEAM_SIZE,
    Threads,
    cache_aligned,
    share,
    thread_count,
)

counts = pytest.mark.parametrize("n_threads", [1, 2, 5])


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
    deadline = time.monotonic() + 60.0
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
    assert thread_count(np.int64(2)) == 2
    with pytest.raises(TypeError, match="n_jobs must be an integer or None, got 'all'"):
        thread_count("all")
    assert thread_count(-1) >= 1
    with pytest.raises(ValueError, match="n_jobs"):
        thread_count(0)


# -- teams inside compiled code -------------------------------------------------------------------

SEEN_BY = 8  # words between the counters of two workers: a cache line each


@inner
def mark_items(worker, first, last, marks, done_by):
    for i in range(first, last):
        marks[i] += 1
    done_by[worker * SEEN_BY] += last - first


@njit(cache=False)
def mark(team, marks, done_by, step, times):
    """Mark every item so many times, each time as work of its own."""
    for _ in range(times):
        share(team, mark_items, (marks, done_by), marks.size, step)


@inner
def await_all(worker, first, last, arrived, met):
    for i in range(first, last):
        fetch_add(arrived, 0, 1)
        looks = 0
        while load_word(arrived, 0) < met.size and looks < 1_000_000:
            relax()
            if looks % 100 == 0:
                yield_core()
            looks += 1
        met[i] = load_word(arrived, 0)


@njit(cache=False)
def meet(team, arrived, met):
    """Every item waits for all others, so that each needs a thread of its own."""
    share(team, await_all, (arrived, met), met.size, 1)


@inner
def fail_at_item(worker, first, last, bad, marks):
    for i in range(first, last):
        if i == bad:
            raise ValueError("a bad item")
        marks[i] += 1


@njit(cache=False)
def fail(team, bad, marks):
    share(team, fail_at_item, (bad, marks), marks.size, 1)


def marked(threads, n, step, times=1):
    """How often each item was done, and how many items each worker did."""
    marks = np.zeros(n, dtype=np.int64)
    done_by = np.zeros(threads.n_threads * SEEN_BY, dtype=np.int64)
    mark(threads.team(), marks, done_by, step, times)
    return marks, done_by[::SEEN_BY]


@inner
def note_worker(worker, first, last, done, by):
    fetch_add(done, 0, last - first)
    for i in range(first, last):
        by[i] = worker
    looks = 0
    while load_word(done, 0) < by.size // 2 and looks < 10_000:  # until others have begun, too
        yield_core()
        looks += 1


@njit(cache=False)
def note(team, done, by):
    """Who does which item, in steps of half of a thread's part."""
    share(team, note_worker, (done, by), by.size, by.size // 4)


def all_meet(threads):
    """Whether as many items as there are threads are sooner or later at work at the same time."""
    deadline = time.monotonic() + 120.0
    while time.monotonic() < deadline:  # helpers may still be compiling, or have no core
        met = np.zeros(threads.n_threads, dtype=np.int64)
        meet(threads.team(), np.zeros(1, dtype=np.int64), met)
        if (met == threads.n_threads).all():
            return True
    return False


@counts
def test_every_item_is_done_exactly_once_in_each_of_many_small_shares(n_threads):
    with Threads(n_threads) as threads:
        for n, step in itertools.product([0, 1, 2, 7, 64, 333], [1, 3, 64]):
            marks, done_by = marked(threads, n, step, times=300)
            assert (marks == 300).all()
            assert done_by.sum() == 300 * n
            marks, _ = marked(threads, n, step)  # and with Python in between
            assert (marks == 1).all()


@pytest.mark.parametrize("n_threads", [2, 3])
def test_all_threads_of_a_team_work_side_by_side_also_after_they_slept(n_threads):
    with Threads(n_threads) as threads:
        assert all_meet(threads)
        time.sleep(0.3)  # many times what helpers wait for before they leave compiled code
        assert all_meet(threads)
        assert (marked(threads, 50, 1)[0] == 1).all()


def test_threads_begin_with_their_own_part_of_the_items():
    with Threads(2) as threads:
        assert all_meet(threads)
        deadline = time.monotonic() + 60.0
        by = np.full(40, -1)
        while by.tolist() != 20 * [0] + 20 * [1] and time.monotonic() < deadline:
            by[:] = -1
            note(threads.team(), np.zeros(1, dtype=np.int64), by)
        assert by.tolist() == 20 * [0] + 20 * [1]


def test_aligned_arrays_begin_with_a_cache_line():
    for shape in [(1,), (3, 5), (0, 7), (2, 3, 16)]:
        some = [cache_aligned(shape) for _ in range(5)]
        assert all(a.shape == shape and a.dtype == np.int64 for a in some)
        assert all(a.flags.c_contiguous for a in some)
        assert all(a.ctypes.data % (8 * LINE_WORDS) == 0 for a in some if a.size > 0)


def test_two_teams_at_once():
    """Two fits in two threads of Python's: neither takes the other's work."""

    def work(n):
        with Threads(2) as threads:
            return [(marked(threads, n, 1, 50)[0] == 50).all() for _ in range(40)]

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(work, [100, 133]))
    assert all(map(all, found))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_that_was_forked_works_without_the_helpers_of_its_parent():
    with Threads(2) as threads:
        assert all_meet(threads)
        with warnings.catch_warnings():
            # Python warns of forks beside threads since 3.12; here that is the point.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            signal.alarm(60)  # ends a child that waits for ever
            good = False
            try:
                good = (marked(threads, 100, 1)[0] == 1).all()
                with Threads(2) as own:
                    good = good and all_meet(own)
            finally:
                os._exit(0 if good else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert all_meet(threads)


@counts
@pytest.mark.parametrize("bad", [0, 7, 19])
def test_a_function_that_fails_is_an_error_and_the_team_lives_on(n_threads, bad):
    with Threads(n_threads) as threads:
        marks = np.zeros(20, dtype=np.int64)
        with pytest.raises(MemoryError, match="a kernel failed"):
            fail(threads.team(), bad, marks)
        assert marks[bad] == 0
        assert marks.max() <= 1
        fail(threads.team(), -1, marks)
        assert (marked(threads, 20, 1)[0] == 1).all()


def test_little_work_is_done_by_one_thread():
    with Threads(3) as threads:
        assert threads.team(99, 100)[TEAM_SIZE] == 1
        assert threads.team(100, 100)[TEAM_SIZE] == 3
        assert threads.team()[TEAM_SIZE] == 3


def test_leaving_ends_a_team_and_another_one_can_be_had():
    before = threading.active_count()
    threads = Threads(3)
    for _ in range(2):
        with threads:
            assert all_meet(threads)
            assert threading.active_count() == before + 2
        assert threading.active_count() == before
