"""How long would the paper's full Yahoo experiment take? (There: 80 minutes on 12 cores.)

473,134 x 519 synthetic floats of the same shape with the real cost table; depth 4, 3000 trees by
extrapolation.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from benchmarks._common import machine, regression_data
from greedymiser import MiserRegressor
from greedymiser.datasets import load_yahoo_costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=473_134)
    parser.add_argument("--trees", type=int, default=20)
    parser.add_argument("--tradeoff", type=float, default=1e-5)
    args = parser.parse_args()
    print(machine())
    costs = load_yahoo_costs()
    X, y = regression_data(args.rows, len(costs))
    MiserRegressor(max_iter=2).fit(X[:2000], y[:2000])  # compile first
    for tradeoff in (0.0, args.tradeoff):
        stamps: list[float] = []
        start = time.perf_counter()
        model = MiserRegressor(
            costs=costs, tradeoff=tradeoff, max_iter=args.trees, early_stopping=False
        ).fit(X, y, callbacks=[lambda progress, s=stamps: s.append(time.perf_counter())])
        per_tree = float(np.median(np.diff(stamps)))
        setup = stamps[0] - start - per_tree
        print(
            f"{args.rows} x {len(costs)}, tradeoff {tradeoff:g}: set-up {setup:.1f} s, "
            f"{per_tree:.3f} s per tree, 3000 trees {(setup + 3000 * per_tree) / 60:.1f} minutes, "
            f"{len(model.features_used_)} features after {model.n_iter_} trees"
        )


if __name__ == "__main__":
    main()
