"""How long does a tree take, with and without costs, beside LightGBM's?

200,000 x 512 floats, depth 4, squared error. Inside one fit, after each of our trees every rival
grows one of its own, so all meet the same noise of the machine.
"""

from __future__ import annotations

import argparse
import time

import lightgbm
import numpy as np

from benchmarks._common import (
    COLUMNS,
    ROWS,
    best_and_median,
    lightgbm_params,
    machine,
    regression_data,
)
from greedymiser import MiserRegressor
from greedymiser.datasets import load_yahoo_costs


class Interleaved:
    """A callback that times our tree, then lets every rival grow one."""

    def __init__(self, rivals: dict[str, lightgbm.Booster]):
        self.rivals = rivals
        self.seconds: dict[str, list[float]] = {"ours": [], **{name: [] for name in rivals}}
        self._resumed: float | None = None

    def __call__(self, progress: object) -> None:
        now = time.perf_counter()
        if self._resumed is not None:  # the first tree shares its time with binning
            self.seconds["ours"].append(now - self._resumed)
        for name, booster in self.rivals.items():
            start = time.perf_counter()
            booster.update()
            self.seconds[name].append(time.perf_counter() - start)
        self._resumed = time.perf_counter()


def n_features(booster: lightgbm.Booster) -> int:
    return int((booster.feature_importance() > 0).sum())


def compare(X, y, costs, tradeoff, threads, trees, modes):
    """Fit ours with the rivals in between; print a line each, with the ratio of best times."""
    data = lightgbm.Dataset(X, y, params=lightgbm_params(threads)).construct()
    rivals = {
        name: lightgbm.Booster(lightgbm_params(threads, **mode), data)
        for name, mode in modes.items()
    }
    clock = Interleaved(rivals)
    model = MiserRegressor(
        costs=costs, tradeoff=tradeoff, max_iter=trees, early_stopping=False, n_jobs=threads
    ).fit(X, y, callbacks=[clock])
    ours, _ = best_and_median(clock.seconds["ours"])
    for name, seconds in clock.seconds.items():
        best, median = best_and_median(seconds)
        features = len(model.features_used_) if name == "ours" else n_features(rivals[name])
        print(
            f"  {name:28s} best {best:7.1f} ms  median {median:7.1f} ms  "
            f"{features:4d} features  {best / ours:5.2f} x ours"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--columns", type=int, default=COLUMNS)
    parser.add_argument("--trees", type=int, default=25)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    print(machine())
    X, y = regression_data(args.rows, args.columns)
    MiserRegressor(max_iter=2).fit(X[:2000], y[:2000])  # compile first
    costs = np.resize(load_yahoo_costs(), args.columns)
    for threads in args.threads:
        print(f"per tree, {args.rows} x {args.columns}, {threads} thread(s), costs ignored")
        modes = {
            "LightGBM col-wise": {"force_col_wise": True},
            "LightGBM row-wise": {"force_row_wise": True},
            "LightGBM quantised col-wise": {"force_col_wise": True, "use_quantized_grad": True},
        }
        compare(X, y, costs, 0.0, threads, args.trees, modes)
        # LightGBM's gains are twice ours, and sums where ours are means.
        tradeoff = 1e-5
        print(f"per tree, {threads} thread(s), Yahoo's costs, tradeoff {tradeoff:g}")
        coupled = {
            "cegb_tradeoff": 2.0 * args.rows * tradeoff,
            "cegb_penalty_feature_coupled": costs.tolist(),
        }
        modes = {
            "LightGBM CEGB col-wise": {"force_col_wise": True, **coupled},
            "LightGBM CEGB row-wise": {"force_row_wise": True, **coupled},
        }
        compare(X, y, costs, tradeoff, threads, args.trees, modes)


if __name__ == "__main__":
    main()
