"""How long does a tree take on 1, 2, 4, 8 workers, and how much of it is talk?

Floats are made on the workers and kept there. Depth 4, 16 leaves, 255 bins, rate 0.1, squared
error. A worker is busy while its shard works; what is left of a round, on the busiest worker, is
communication and waiting. LightGBM's Dask estimator has the same data and settings; its time is
that of a long fit less that of a short one. With its penalty it runs in a process of its own that
is ended after a while, since it may crash or wait for ever.

    python -m benchmarks.dask_scaling --rows 4000000 --workers 1,2,4,8
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster, wait

from benchmarks._common import lightgbm_params, machine
from greedymiser import MiserRegressor
from greedymiser.engines.dask.worker import busy_seconds

# Rounds of a fit, and of the short one of LightGBM; those before the first do not count.
ROUNDS, FEW, FIRST = 32, 2, 2


@contextmanager
def cluster_of(workers: int, threads: int) -> Iterator[Client]:
    options = {"n_workers": workers, "threads_per_worker": threads, "dashboard_address": ":0"}
    with LocalCluster(**options, memory_limit=0) as cluster, Client(cluster) as client:
        yield client


def made(rows: int, columns: int, parts: int) -> tuple[da.Array, da.Array]:
    """Features and a target, on the workers."""
    rng = da.random.default_rng(0)
    X = rng.standard_normal((rows, columns), chunks=(-(-rows // parts), columns))
    X = X.astype(np.float32).persist()
    noise = rng.standard_normal(rows, chunks=X.chunks[0])
    y = (X[:, 0] + da.sin(2 * X[:, 1]) + X[:, 2] * (X[:, 3] > 0) + noise).persist()
    wait([X, y])
    return X, y


class Clock:
    """A callback: when rounds end, and how busy workers are then."""

    def __init__(self, client: Client):
        self.client = client
        self.ends: list[float] = []
        self.busy: list[list[float]] = []

    def __call__(self, progress: Any) -> None:
        if progress.done in (FIRST, ROUNDS):
            self.busy.append(list(self.client.run(busy_seconds).values()))
        self.ends.append(time.perf_counter())

    def seconds(self) -> float:
        """Of a round, the median."""
        return float(np.median(np.diff(self.ends[FIRST:])))

    def talk(self) -> float:
        """Share of the time in which the busiest worker did not work."""
        worked = np.subtract(self.busy[-1], self.busy[0]).max()
        return 1.0 - worked / (self.ends[-1] - self.ends[FIRST - 1])


def ours(client: Client, X: da.Array, y: da.Array) -> tuple[float, float, float]:
    """Seconds until the first round, seconds per tree, and the share of talk."""
    settings = {"max_depth": 4, "max_leaf_nodes": 16, "early_stopping": False}
    MiserRegressor(max_iter=1, **settings).fit(X[: X.chunks[0][0]], y[: X.chunks[0][0]])  # compiles
    clock, begun = Clock(client), time.perf_counter()
    MiserRegressor(max_iter=ROUNDS, **settings).fit(X, y, callbacks=[clock])
    return clock.ends[0] - begun, clock.seconds(), clock.talk()


def theirs(client: Client, X: da.Array, y: da.Array, threads: int, **more: Any) -> float:
    """Seconds per tree of LightGBM's Dask estimator."""
    from lightgbm import DaskLGBMRegressor

    settings = {**lightgbm_params(threads), **more}
    settings.pop("objective")
    spent: dict[int, list[float]] = {FEW: [], ROUNDS: []}
    for rounds in (FEW, ROUNDS, FEW, ROUNDS):
        begun = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of its own parameters
            DaskLGBMRegressor(client=client, n_estimators=rounds, **settings).fit(X, y)
        spent[rounds].append(time.perf_counter() - begun)
    # The best of two each: on small data the rest of a fit varies more than trees take.
    return (min(spent[ROUNDS]) - min(spent[FEW])) / (ROUNDS - FEW)


def with_penalty(rows: int, columns: int, workers: int, threads: int, patience: float) -> str:
    """What becomes of LightGBM's penalty on a cluster."""
    given = [f"--rows={rows}", f"--columns={columns}", f"--workers={workers}"]
    command = [sys.executable, "-m", "benchmarks.dask_scaling", "--penalty", *given]
    try:
        done = subprocess.run(
            [*command, f"--threads={threads}"], capture_output=True, text=True, timeout=patience
        )
    except subprocess.TimeoutExpired:
        return f"not done after {patience:g} s"
    if done.returncode == 0:
        return done.stdout.strip().splitlines()[-1]
    said = [line for line in done.stderr.strip().splitlines() if "rror" in line] or ["nothing"]
    return f"failed ({done.returncode}): {said[-1][:90]}"


def run_penalty(rows: int, columns: int, workers: int, threads: int) -> None:
    with cluster_of(workers, threads) as client:
        X, y = made(rows, columns, 2 * workers)
        penalty = [0.001] * columns
        spent = theirs(client, X, y, threads, cegb_penalty_feature_coupled=penalty)
        print(f"{1e3 * spent:.0f} ms a tree")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--workers", default="1,2,4,8")
    parser.add_argument("--threads", type=int, default=2, help="of each worker")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds, for the penalty")
    parser.add_argument("--alone", action="store_true", help="without LightGBM")
    parser.add_argument("--penalty", action="store_true", help="only LightGBM with its penalty")
    given = parser.parse_args()
    counts = [int(count) for count in given.workers.split(",")]
    if given.penalty:
        run_penalty(given.rows, given.columns, counts[0], given.threads)
        return
    print(f"{machine()}; {given.rows} x {given.columns}, {given.threads} threads a worker")
    print(
        "workers  until round 1 (s)  ms a tree  talk  LightGBM ms a tree  ratio  with its penalty"
    )
    for count in counts:
        with cluster_of(count, given.threads) as client:
            X, y = made(given.rows, given.columns, max(8, 2 * count))
            start, spent, talk = ours(client, X, y)
            rival = np.nan if given.alone else theirs(client, X, y, given.threads)
        told = "-"
        if not given.alone:
            told = with_penalty(given.rows, given.columns, count, given.threads, given.patience)
        print(
            f"{count:7d}  {start:17.1f}  {1e3 * spent:9.1f}  {talk:4.0%}  {1e3 * rival:18.1f}  "
            f"{spent / rival:5.2f}  {told}"
        )


if __name__ == "__main__":
    main()
