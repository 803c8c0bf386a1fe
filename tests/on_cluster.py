"""A real cluster of two processes, and the engine on it, for tests."""

import contextlib
from dataclasses import replace

import numpy as np
from distributed import Client, LocalCluster, get_client

from greedymiser.engines.dask.engine import DaskEngine
from greedymiser.losses import Loss


@contextlib.contextmanager
def two_workers():
    """A client of two worker processes, with a thread each."""
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        yield client


class ByRow(Loss):
    """A loss whose derivatives are known beforehand; y is the number of the row."""

    def __init__(self, derivatives, targets):
        self.derivatives, self.targets = derivatives, targets

    def gradients(self, y, raw):
        rows = y.astype(int)
        return tuple(None if found is None else found[rows] for found in self.derivatives)

    def values(self, y, raw):
        return (self.targets[y.astype(int)] - raw) ** 2


class OnCluster:
    """The engine, for the conformance tests: their losses know all rows by heart."""

    def __init__(self, threads):
        self.engine = DaskEngine(get_client())

    def place(self, sample):
        if hasattr(sample.loss, "derivatives"):
            loss = ByRow(sample.loss.derivatives, sample.y)
            sample = replace(sample, y=np.arange(len(sample.y), dtype=np.float64), loss=loss)
        return self.engine.place(sample)
