"""How long is it until the first tree is there, beside LightGBM and XGBoost?

Depth 4, 255 bins, squared error, float32. From the array in memory to a model of one tree: reading,
sorting and binning, placing, and the tree itself; LightGBM's Dataset and XGBoost's
QuantileDMatrix count as well. All take turns; the best of each counts. Ours is also given in CPU
seconds.

    python -m benchmarks.first_tree --threads 2 --shapes 1000000x28 200000x512
"""

from __future__ import annotations

import argparse
import time
import warnings
from functools import partial

import lightgbm
import numpy as np
import xgboost

from benchmarks._common import lightgbm_params, machine, regression_data, seconds
from greedymiser import MiserRegressor


def ours(X: np.ndarray, y: np.ndarray, threads: int) -> None:
    MiserRegressor(max_iter=1, early_stopping=False, n_jobs=threads).fit(X, y)


def of_lightgbm(X: np.ndarray, y: np.ndarray, threads: int) -> None:
    lightgbm.train(lightgbm_params(threads), lightgbm.Dataset(X, y), 1)


def of_xgboost(X: np.ndarray, y: np.ndarray, threads: int) -> None:
    data = xgboost.QuantileDMatrix(X, y, max_bin=255, nthread=threads)
    params = {"tree_method": "hist", "max_depth": 4, "max_bin": 255, "nthread": threads}
    xgboost.train(params, data, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[2])
    parser.add_argument("--shapes", nargs="+", default=["1000000x28", "200000x512"])
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    warnings.filterwarnings("ignore", module="lightgbm")
    print(machine())
    print("| until the first tree, s | threads | ours | of that CPU | LightGBM | XGBoost |")
    print("|---|---|---|---|---|---|")
    for shape in args.shapes:
        data = regression_data(*map(int, shape.split("x")))
        for threads in args.threads:
            ours(*(part[:2000] for part in data), threads)  # compile first
            turns = []
            for _ in range(args.turns):
                begun = time.process_time()
                mine = seconds(partial(ours, *data, threads))
                turn = [mine, time.process_time() - begun]
                turn += [seconds(partial(run, *data, threads)) for run in (of_lightgbm, of_xgboost)]
                turns.append(turn)
            cells = " | ".join(f"{best:.2f}" for best in np.min(turns, axis=0))
            print(f"| {shape.replace('x', ' x ')} | {threads} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
