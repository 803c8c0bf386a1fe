"""Does a Parquet set that is larger than the memory of all workers train to the end?

Writes a set of so many GB of float64, file by file, fits on two workers with a limit of 2 GiB each,
and reports the peak memory of the workers. A worker that goes over its limit is killed by its
nanny, so that a fit which ends has kept to it.

    python -m benchmarks.out_of_core --gigabytes 8 --folder /tmp/out-of-core
"""

from __future__ import annotations

import argparse
import resource
import shutil
import time
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster

from benchmarks._common import machine
from greedymiser import MiserRegressor

COLUMNS, ROWS_PER_FILE = 100, 62_500


def write(folder: Path, gigabytes: float) -> int:
    """Write files of 50 MB of floats each; return how many rows there are."""
    n_files = max(2, round(gigabytes * 1e9 / (8 * COLUMNS * ROWS_PER_FILE)))
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"x{i}" for i in range(COLUMNS)]
    for k in range(n_files):
        path = folder / f"part-{k:05d}.parquet"
        if path.exists():
            continue
        rng = np.random.default_rng(k)
        X = rng.standard_normal((ROWS_PER_FILE, COLUMNS))
        frame = pd.DataFrame(X, columns=names)
        frame["y"] = X[:, 0] + np.sin(2 * X[:, 1]) + X[:, 2] * (X[:, 3] > 0)
        frame["y"] += rng.standard_normal(ROWS_PER_FILE)
        frame.to_parquet(path, index=False)
    return n_files * ROWS_PER_FILE


def peak() -> float:
    """Largest resident size of this process so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=8.0)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--limit", default="2GiB", help="memory of a worker")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--keep", action="store_true", help="leave the files where they are")
    given = parser.parse_args()
    begun = time.perf_counter()
    n = write(given.folder, given.gigabytes)
    print(f"{machine()}; {n} x {COLUMNS} float64, {n * COLUMNS * 8 / 1e9:.1f} GB", flush=True)
    print(f"written after {time.perf_counter() - begun:.0f} s", flush=True)
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(**options, memory_limit=given.limit) as cluster, Client(cluster) as client:
        frame = dd.read_parquet(str(given.folder))
        begun, ends = time.perf_counter(), []
        model = MiserRegressor(max_iter=given.rounds, early_stopping=False)
        model.fit(
            frame.drop(columns="y"),
            frame["y"],
            callbacks=[lambda _: ends.append(time.perf_counter())],
        )
        by_worker = client.run(peak)
        print(f"first round after {ends[0] - begun:.0f} s, then "
              f"{1e3 * np.median(np.diff(ends)):.0f} ms a round")  # fmt: skip
    print("peak of workers: " + ", ".join(f"{gib:.2f} GiB" for gib in by_worker.values()))
    print(f"peak of the client: {peak():.2f} GiB; loss {-model.train_score_[-1]:.4f}")
    if not given.keep:
        shutil.rmtree(given.folder)


if __name__ == "__main__":
    main()
