"""Threads over kernels that release the GIL.

Kernels are compiled with ``nogil=True`` and write to disjoint parts of caller-owned buffers, so
plain Python threads are enough to run them side by side. Compared with Numba's own parallel loops
this compiles faster, may be called from any thread, and survives a fork.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any

import joblib
import numba


def thread_count(n_jobs: int | None) -> int:
    """Threads to use: all that Numba may use for None, joblib's reading of the number otherwise.

    ``NUMBA_NUM_THREADS`` (which joblib's workers set) and the CPU affinity are respected.
    """
    if n_jobs is None:
        return int(numba.config.NUMBA_NUM_THREADS)
    return int(joblib.effective_n_jobs(n_jobs))


class Threads:
    """A context in which ``run`` calls a function once per task, on up to ``n_threads`` threads.

    >>> with Threads(2) as threads:
    ...     threads.run(lambda start, stop: stop - start, [(0, 10), (10, 25)])
    [10, 15]
    """

    def __init__(self, n_threads: int):
        self.n_threads = n_threads
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Threads:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=kind is None, cancel_futures=True)
            self._pool = None

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
