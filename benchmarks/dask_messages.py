"""What does a tree cost on a cluster besides the counting: messages, bytes, seconds of CPU?

Few rows, so that little is counted, with histograms as large as those of many rows: what is left is
talk, and it can be counted on a machine with two cores. Depth 4, 16 leaves, 255 bins, squared
error; workers of one thread. Seconds of CPU are those of whole processes: that of the client has
the scheduler and the nannies in it.

    python -m benchmarks.dask_messages --workers 1,2,4,8
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster

from benchmarks._common import machine
from greedymiser import MiserRegressor
from greedymiser.engines.dask.session import Session

FIRST = 2


def count_here() -> None:
    """Count what this process sends from now on, and give bins as many words as 2^20 rows have."""
    from distributed.comm.tcp import TCP

    from greedymiser.engines.grid import GridRule

    write, choose = TCP.write, GridRule.choose

    async def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        n_bytes = await write(self, *args, **kwargs)
        TCP.sent += [n_bytes]
        return n_bytes

    def wide(self: Any, *args: Any) -> Any:
        object.__setattr__(self, "packed_rows", 0)
        return choose(self, *args)

    TCP.sent, TCP.write, GridRule.choose = [], counted, wide


def spent_here() -> list[float]:
    """Messages and kB that this process has sent, and its milliseconds of CPU and of shards."""
    from distributed.comm.tcp import TCP

    worker: Any = sys.modules.get("greedymiser.engines.dask.worker")
    busy = worker.busy_seconds() if worker else 0.0
    return [len(TCP.sent), sum(TCP.sent) / 1e3, 1e3 * time.process_time(), 1e3 * busy]


def measured(client: Client, given: argparse.Namespace) -> tuple[list[float], ...]:
    """Round trips and milliseconds of a tree; what the client and a worker have spent on it."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((given.rows, given.columns))
    y = X[:, 0] + np.sin(2 * X[:, 1]) + X[:, 2] * (X[:, 3] > 0) + rng.standard_normal(len(X))
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    parts = [
        da.from_delayed(dask.delayed(future), shape=part.shape, dtype=part.dtype)
        for part, worker in zip(np.array_split(X, len(workers)), workers, strict=True)
        for future in [client.scatter(part, workers=[worker], hash=False)]
    ]
    ask, asked, states, ends = Session.ask, [0], [], []

    def counted(self: Any, name: str, args: Any) -> Any:
        asked[0] += 1
        return ask(self, name, args)

    def look(progress: Any) -> None:
        if progress.done in (FIRST, given.rounds):
            by_worker = list(client.run(spent_here).values())
            states.append((asked[0], spent_here(), np.mean(by_worker, axis=0)))
        ends.append(time.perf_counter())

    settings: dict[str, Any] = {"max_depth": 4, "max_leaf_nodes": 16, "early_stopping": False}
    if given.tradeoff:
        settings |= {"tradeoff": given.tradeoff, "costs": np.linspace(1, 3, given.columns).tolist()}
    Session.ask = counted  # type: ignore[method-assign]
    MiserRegressor(max_iter=given.rounds, **settings).fit(
        da.concatenate(parts), y, callbacks=[look]
    )
    Session.ask = ask  # type: ignore[method-assign]
    n = given.rounds - FIRST
    trips, here, there = (np.subtract(b, a) / n for a, b in zip(*states, strict=True))
    between = 1e3 * float(np.median(np.diff(ends[FIRST:-1])))
    return [float(trips), between], here.tolist(), there.tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=16_000)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--workers", default="1,2,4,8")
    parser.add_argument("--rounds", type=int, default=42)
    parser.add_argument("--tradeoff", type=float, default=0.0)
    given = parser.parse_args()
    print(f"{machine()}; {given.rows} x {given.columns}; of a tree, the client's and a worker's:")
    print("workers  round trips    ms   messages      kB         ms of CPU   ms of shards")
    count_here()
    for count in map(int, given.workers.split(",")):
        options = {"n_workers": count, "threads_per_worker": 1, "dashboard_address": ":0"}
        with LocalCluster(**options, memory_limit=0) as cluster, Client(cluster) as client:
            client.run(count_here)
            (trips, between), here, there = measured(client, given)
        print(
            f"{count:7d}  {trips:11.1f} {between:5.0f}  {here[0]:4.0f} {there[0]:4.0f}  "
            f"{here[1]:5.0f} {there[1]:5.0f}  {here[2]:7.1f} {there[2]:7.1f}  {there[3]:9.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
