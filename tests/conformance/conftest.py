"""Every engine, by one fixture."""

import contextlib
import itertools
import os
from dataclasses import replace

import numpy as np
import pytest

from conformance.numpy_engine import NumpyEngine
from greedymiser._core.arithmetic import exact_sum
from greedymiser._core.threads import Threads
from greedymiser.engines.cpu.engine import CpuEngine
from greedymiser.engines.cpu.shard import CpuShard
from greedymiser.engines.cpu.state import Tuning
from greedymiser.engines.sharded import ShardedRows

# So that also a handful of rows is shared out among the threads.
FINE = Tuning(rows=4, cells=1)


class InPieces:
    """The rows in three shards of different sizes, one of which may be empty."""

    def __init__(self, threads):
        self.threads = threads

    def place(self, sample):
        n = len(sample.y)
        edges = [0, n // 2, n // 2 + n // 3, n]
        shards = []
        for first, last in itertools.pairwise(edges):
            if first < last:
                shards.append(CpuShard(part(sample, first, last), self.threads, FINE))
        total = float(n) if sample.weight is None else exact_sum(sample.weight)
        return ShardedRows(shards, sample, total)


def part(sample, first, last):
    """Rows first:last; has the loss of these rows."""
    binned = replace(sample.binned, codes=np.ascontiguousarray(sample.binned.codes[:, first:last]))
    weight = None if sample.weight is None else sample.weight[first:last]
    loss = sample.loss
    if hasattr(loss, "derivatives"):
        parts = [None if d is None else d[first:last] for d in loss.derivatives]
        loss = type(loss)(*parts)
    units = None if sample.units is None else sample.units[first:last]
    shares = None if sample.shares is None else sample.shares[first:last]
    own = {"y": sample.y[first:last], "weight": weight, "loss": loss, "units": units}
    own["shares"] = shares
    return replace(sample, binned=binned, **own, first_row=sample.first_row + first)


ENGINES = {
    "cpu, 1 thread": (lambda threads: CpuEngine(threads, FINE), 1),
    "cpu, 2 threads": (lambda threads: CpuEngine(threads, FINE), 2),
    "cpu, 5 threads": (lambda threads: CpuEngine(threads, FINE), 5),
    "cpu, in pieces": (InPieces, 2),
    "NumPy": (lambda threads: NumpyEngine(), 1),
}

if os.environ.get("GREEDYMISER_TEST_ENGINE") == "cuda":  # see tests/test_cuda.py
    from greedymiser.engines.cuda.engine import CudaEngine

    if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
        import simulated  # noqa: F401

    ENGINES = {"cuda": (CudaEngine, 2)}

if os.environ.get("GREEDYMISER_TEST_ENGINE") == "dask":  # see tests/test_dask.py
    from on_cluster import OnCluster, two_workers

    ENGINES = {"dask": (OnCluster, 1)}
else:
    two_workers = contextlib.nullcontext


@pytest.fixture(scope="session")
def cluster():
    """Workers, where there are to be any."""
    with two_workers() as client:
        yield client


# Left out of ``make test-quick``: others with the same code are in it, or no code of ours.
SLOW = {"cpu, 5 threads", "cpu, in pieces", "NumPy"}
PARAMS = [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in ENGINES]


@pytest.fixture(scope="module", params=PARAMS)
def engine(request, cluster):
    """An engine without data; every example places its own."""
    make, n_threads = ENGINES[request.param]
    with Threads(n_threads) as threads:
        yield make(threads)
