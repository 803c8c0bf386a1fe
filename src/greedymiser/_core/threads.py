"""Threads over kernels that release the GIL.

Two ways to use the cores of this machine:

``run`` calls a Python function once per task. It suits work that is mostly outside the
interpreter and long beside the microseconds that a call takes.

A *team* works inside compiled code: a kernel that is given the team's words calls ``share``, and
every thread of the team takes items of the work by atomic counters, without touching Python. Each
begins with its own part of them, the same in every phase, since what it has written before is still
in the caches of its own core, and goes on with what others have not begun. The helpers wait inside
compiled code for the next kernel, so that entering one costs a microsecond or two; when nothing
comes they take naps, and after a while they go to sleep.

Compared with Numba's own parallel loops this may be called from several threads at once and
survives a fork, compiles no faster and no slower, and needs no thread library.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from numbers import Real
from queue import SimpleQueue
from types import TracebackType
from typing import Any

import joblib
import numba
import numpy as np
from numpy.typing import NDArray

from greedymiser._core.compiling import inner, njit
from greedymiser._core.intrinsics import (
    call_shared,
    fetch_add,
    load_word,
    nap,
    publish,
    relax,
    store_word,
    yield_core,
)

Team = NDArray[np.int64]
"""What the threads of a team agree on: words that are written by one and read by the others."""

# Two cache lines, which processors fetch together. What several threads write to lies so far apart.
LINE_WORDS = 16

# Where each word is.
TEAM_SIZE = 0
# The function and its arguments, as ``publish`` leaves them; the number of items, how many of them
# to take at a time, and among how many threads they are divided.
_FUNCTION, _ITEMS, _STEP, _CREW = 1, 3, 4, 5
# Set by a thread whose function failed.
_FAILED = 6
# Odd while there is work that a helper may join; goes up by one when work begins and when it ends.
_EPOCH = LINE_WORDS
# Helpers that may be at work.
_ACTIVE = 2 * LINE_WORDS
# The next item to take of each thread's part.
_NEXT = 3 * LINE_WORDS

# The epoch that sends the helpers home.
_OVER = -1

# How often a helper looks for work, a few tenths of a millisecond long, before it takes naps; and
# how many naps it takes, about ten milliseconds long, before it leaves compiled code and sleeps.
_PATIENCE, _NAPS = 6000, 100
# How often to look before letting somebody else have the core.
_LOOKS = 100


# More are a mistake, and would be asked for memory.
MOST_THREADS = 4096


def thread_count(n_jobs: int | None) -> int:
    """Threads to use: all that Numba may use for None, joblib's reading of the number otherwise.

    ``NUMBA_NUM_THREADS`` (which joblib's workers set) and the CPU affinity are respected.
    """
    if n_jobs is None:
        return int(numba.config.NUMBA_NUM_THREADS)
    if not isinstance(n_jobs, Real):
        raise TypeError(f"n_jobs must be an integer or None, got {n_jobs!r}")
    if n_jobs == 0 or n_jobs > MOST_THREADS:
        raise ValueError(
            f"n_jobs must be a number of threads up to {MOST_THREADS}, a negative one (-1: all "
            f"cores), or None, got {n_jobs!r}"
        )
    return int(joblib.effective_n_jobs(n_jobs))


class Threads:
    """A context in which work is done on up to ``n_threads`` threads.

    >>> with Threads(2) as threads:
    ...     threads.run(lambda start, stop: stop - start, [(0, 10), (10, 25)])
    [10, 15]
    """

    def __init__(self, n_threads: int):
        self.n_threads = n_threads
        self._pool: ThreadPoolExecutor | None = None
        self._team = new_team(n_threads)
        # This thread alone.
        self.alone = new_team(1)
        self._helpers: list[_Helper] = []
        self._endings: list[Callable[[], None]] = []

    def at_exit(self, ending: Callable[[], None]) -> None:
        """Do something when this context ends, whichever way it does."""
        self._endings.append(ending)

    def __enter__(self) -> Threads:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self._endings:
            self._endings.pop()()
        if self._pool is not None:
            self._pool.shutdown(wait=kind is None, cancel_futures=True)
            self._pool = None
        if self._helpers:
            dismiss(self._team)
            for helper in self._helpers:
                helper.go_home()
            self._helpers = []
            self._team = new_team(self.n_threads)

    def team(self, work: float = np.inf, least: float = 0.0) -> Team:
        """All threads, awake; or this one alone where there is less work than ``least``."""
        if self.n_threads == 1 or work < least:
            return self.alone
        if not self._helpers:
            self._helpers = [_Helper(self._team, k) for k in range(1, self.n_threads)]
        for helper in self._helpers:
            helper.wake()
        return self._team

    def run(self, function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Call ``function(*task)`` for every task; results come in the order of the tasks.

        Threads take the next task when they are done with one, and the caller is one of them: it
        is at work while the others wake up.
        """
        tasks = list(tasks)
        results: list[Any] = [None] * len(tasks)
        waiting = deque(enumerate(tasks))

        def work() -> None:
            while True:
                try:
                    i, task = waiting.popleft()  # atomic
                except IndexError:
                    return
                results[i] = function(*task)

        n_helpers = min(self.n_threads, len(tasks)) - 1
        if n_helpers > 0 and self._pool is None:
            self._pool = ThreadPoolExecutor(self.n_threads - 1, thread_name_prefix="greedymiser")
        helpers = [self._pool.submit(work) for _ in range(n_helpers) if self._pool is not None]
        try:
            work()
            for helper in helpers:
                helper.result()
        except BaseException:
            waiting.clear()  # nobody starts another task, and nobody is left at work
            wait(helpers)
            raise
        return results

    def slices(self, n: int, smallest: int, per_thread: int = 1) -> list[tuple[int, int]]:
        """Cut ``range(n)`` into even (start, stop) pieces of at least ``smallest`` items."""
        pieces = max(1, min(self.n_threads * per_thread, n // max(1, smallest)))
        if self.n_threads == 1:
            pieces = 1
        edges = [n * i // pieces for i in range(pieces + 1)]
        return list(itertools.pairwise(edges))


class _Helper(threading.Thread):
    """A thread of a team: waits for work in compiled code, and after a while on a queue."""

    def __init__(self, team: Team, worker: int):
        super().__init__(name=f"greedymiser-{worker}", daemon=True)
        self._words = team
        self._worker = worker
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._asleep = False
        self.start()

    def run(self) -> None:
        seen = 0
        while (seen := serve(self._words, self._worker, seen)) != _OVER:
            self._asleep = True
            # Work that began before anyone could see that this thread sleeps rang no bell. (A bell
            # that rings for nobody later costs one more look.)
            if not is_open(self._words, seen):
                self._bell.get()
            self._asleep = False

    def wake(self) -> None:
        if self._asleep:
            self._asleep = False
            self._bell.put(None)

    def go_home(self) -> None:
        """End the thread, after ``dismiss``."""
        self._bell.put(None)
        self.join()


def new_team(size: int) -> Team:
    """Words for a team of so many threads, the caller included."""
    team = cache_aligned((_NEXT + size * LINE_WORDS,))
    team[:] = 0
    team[TEAM_SIZE] = size
    return team


def cache_aligned(shape: tuple[int, ...]) -> NDArray[np.int64]:
    """An array that begins with a cache line: what is a multiple of it apart shares none."""
    size = math.prod(shape)
    numbers = np.empty(size + LINE_WORDS, dtype=np.int64)
    skipped = -(numbers.ctypes.data // 8) % LINE_WORDS
    return numbers[skipped : skipped + size].reshape(shape)


@inner
def share(team, function, arguments, n_items, step):
    """Call ``function(worker, first, last, *arguments)`` until 0:n_items is done, on all threads.

    For kernels. ``step`` items are taken at a time; ``worker`` tells the threads apart, from 0 to
    the size of the team. What items write must not overlap. The k-th thread begins with the k-th
    part of the items, so that it finds what it wrote in another phase if items are in the order of
    what they work on. Where there is only one step of work, or only one thread, nobody else is
    asked. The function is called by its address: it is compiled once, and not once more into every
    kernel.
    """
    publish(team, _FUNCTION, function, arguments)
    # Not as constants, for each of which Numba would compile another version.
    lead(team, np.int64(n_items), np.int64(step))


@inner
def lead(team, n_items, step):
    """Open the work that was published, take part in it, and wait for those who joined."""
    if team[TEAM_SIZE] == 1 or n_items <= step:
        if call_shared(team, _FUNCTION, 0, 0, n_items) != 0:
            raise MemoryError("a kernel failed")
        return
    crew = min(team[TEAM_SIZE], (n_items + step - 1) // step)
    team[_ITEMS], team[_STEP], team[_CREW] = n_items, step, crew
    for worker in range(crew):
        team[_NEXT + worker * LINE_WORDS] = n_items * worker // crew
    epoch = load_word(team, _EPOCH)
    store_word(team, _EPOCH, epoch + 1)
    take_items(team, np.int64(0))
    # A helper says that it is active and then looks whether the work is still open; here it is
    # closed first, and then it is seen whether anyone is active. One of the two sees the other.
    store_word(team, _EPOCH, epoch + 2)
    looks = np.int64(0)
    while load_word(team, _ACTIVE) > 0:
        looks = wait_a_little(looks)
    if team[_FAILED] != 0:
        team[_FAILED] = 0
        raise MemoryError("a kernel failed on one of several threads")


@inner
def take_items(team, worker):
    """Do the work that is open until nothing is left to take, one's own part first."""
    n_items, step, crew = team[_ITEMS], team[_STEP], team[_CREW]
    for k in range(crew):
        part = (worker + k) % crew
        at, stop = _NEXT + part * LINE_WORDS, n_items * (part + 1) // crew
        while load_word(team, at) < stop:
            first = fetch_add(team, at, step)
            if first >= stop:
                break
            if call_shared(team, _FUNCTION, worker, first, min(first + step, stop)) != 0:
                store_word(team, _FAILED, 1)


@njit
def serve(team, worker, seen):
    """Join work as it opens; return its last epoch when nothing has come for a while."""
    looks, naps = np.int64(0), np.int64(0)
    while naps < _NAPS:
        epoch = load_word(team, _EPOCH)
        if epoch == _OVER:
            return epoch
        if epoch % 2 == 1 and epoch != seen:
            if worker < load_word(team, _CREW):
                fetch_add(team, _ACTIVE, 1)
                if load_word(team, _EPOCH) == epoch:
                    take_items(team, worker)
                fetch_add(team, _ACTIVE, -1)
            seen = epoch
            looks, naps = np.int64(0), np.int64(0)
        elif looks < _PATIENCE:
            looks = wait_a_little(looks)
        else:
            nap()
            naps += 1
    return seen


@inner
def wait_a_little(looks):
    """Wait, and now and then let somebody else have the core; count how often."""
    relax()
    if looks % _LOOKS == _LOOKS - 1:
        yield_core()
    return looks + 1


@njit
def is_open(team, seen):
    """Whether there is work that began after the epoch ``seen``, or nothing more to come."""
    epoch = load_word(team, _EPOCH)
    return epoch == _OVER or (epoch % 2 == 1 and epoch != seen)


@njit
def dismiss(team):
    """Send the helpers home."""
    store_word(team, _EPOCH, _OVER)
