"""Data, clocks and tables that the benchmark scripts share."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable

import numpy as np

ROWS, COLUMNS = 200_000, 512


def machine() -> str:
    """The machine in a line."""
    model = platform.processor() or "unknown processor"
    try:
        with open("/proc/cpuinfo") as lines:
            model = next(line.split(":")[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        pass
    return (
        f"{model}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    )


def regression_data(n: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Correlated float32 features of uneven worth; a target with curves, steps and interactions."""
    rng = np.random.default_rng(seed)
    X = np.empty((n, d), dtype=np.float32)
    shared = rng.standard_normal((n, 16), dtype=np.float32)
    for start in range(0, n, 20_000):  # in pieces: the peak of memory is X itself
        part = slice(start, min(start + 20_000, n))
        X[part] = rng.standard_normal((len(shared[part]), d), dtype=np.float32)
        X[part] += 0.5 * shared[part] @ rng.standard_normal((16, d), dtype=np.float32) / 4
    worth = 1.0 / (1.0 + np.arange(60))
    useful = np.random.default_rng(1).permutation(d)[:60]
    y = rng.standard_normal(n)
    for i, f in enumerate(useful):
        x = X[:, f]
        y += worth[i] * (np.sin(2 * x) if i % 3 == 0 else x if i % 3 == 1 else (x > 0.5))
        y += 0.5 * worth[i] * x * (X[:, useful[(i + 7) % len(useful)]] > 0)
    return X, y


def best_and_median(seconds: list[float]) -> tuple[float, float]:
    """Least and median, in milliseconds."""
    return 1e3 * min(seconds), 1e3 * float(np.median(seconds))


def seconds(function: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def clock(function: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of each call, after one that does not count."""
    function()
    return [seconds(function) for _ in range(repeats)]


def lightgbm_params(threads: int, **more: object) -> dict[str, object]:
    """LightGBM's names for our settings: depth 4, 16 leaves, 255 bins, rate 0.1, 20 rows a leaf."""
    return {
        "objective": "regression",
        "num_leaves": 16,
        "max_depth": 4,
        "learning_rate": 0.1,
        "min_data_in_leaf": 20,
        "max_bin": 255,
        "num_threads": threads,
        "verbose": -1,
        **more,
    }
