"""How fast are predictions, in bulk and one row at a time, beside LightGBM's?"""

from __future__ import annotations

import argparse
import time
from functools import partial

import lightgbm
import numpy as np

from benchmarks._common import (
    COLUMNS,
    best_and_median,
    lightgbm_params,
    machine,
    regression_data,
)
from greedymiser import MiserRegressor


def interleaved(functions, repeats):
    """Seconds of each function, called in turn."""
    seconds = {name: [] for name in functions}
    for function in functions.values():
        function()
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=COLUMNS)
    parser.add_argument("--trees", type=int, default=300)
    args = parser.parse_args()
    print(machine())
    X, y = regression_data(args.rows, args.columns)
    learn = slice(0, 20_000)
    ours = MiserRegressor(max_iter=args.trees, early_stopping=False).fit(X[learn], y[learn])
    theirs = lightgbm.train(
        lightgbm_params(2), lightgbm.Dataset(X[learn], y[learn]), num_boost_round=args.trees
    )
    wrapped = lightgbm.LGBMRegressor(n_estimators=args.trees, **lightgbm_params(1))
    wrapped.fit(X[learn], y[learn])
    for dtype in (np.float32, np.float64):
        data = X.astype(dtype)
        for threads in (1, 2):
            ours.set_params(n_jobs=threads)
            seconds = interleaved(
                {
                    "ours": partial(ours.predict, data),
                    "LightGBM": partial(theirs.predict, data, num_threads=threads),
                },
                5,
            )
            best, _ = best_and_median(seconds["ours"])
            rival, _ = best_and_median(seconds["LightGBM"])
            print(
                f"{args.rows} rows of {np.dtype(dtype)}, {args.trees} trees, {threads} thread(s): "
                f"ours {best:.0f} ms, LightGBM {rival:.0f} ms, {rival / best:.2f} x ours"
            )
    row = X[:1].astype(np.float64)
    ours.set_params(n_jobs=1)
    seconds = interleaved(
        {
            "ours": lambda: ours.predict(row),
            "LightGBM Booster": lambda: theirs.predict(row, num_threads=1),
            "LightGBM LGBMRegressor": lambda: wrapped.predict(row),
        },
        2000,
    )
    for name, times in seconds.items():
        p50, p99 = 1e6 * np.percentile(times, [50, 99])
        print(f"one row, {name:24s} p50 {p50:7.1f} us  p99 {p99:7.1f} us")


if __name__ == "__main__":
    main()
