"""Every engine, by one fixture."""

import pytest

from greedymiser.engines import cpu
from greedymiser.threads import Threads

ENGINES = {"cpu, 1 thread": (cpu.CpuEngine, 1), "cpu, 3 threads": (cpu.CpuEngine, 3)}


@pytest.fixture(scope="module", params=ENGINES)
def engine(request):
    """An engine without data; every example places its own."""
    kind, n_threads = ENGINES[request.param]
    with pytest.MonkeyPatch.context() as patch, Threads(n_threads) as threads:
        # So that also a handful of rows is shared out among the threads.
        patch.setattr(cpu, "ROWS_PER_TASK", 4)
        patch.setattr(cpu, "CELLS_PER_TASK", 1)
        yield kind(threads)
