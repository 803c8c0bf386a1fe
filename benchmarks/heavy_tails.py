"""Are means right on many rows with heavy tails, where a grid of integers has least room?

2^24 rows x 1 column that tells two groups apart, a lognormal target, 60 rounds of depth 2 of
squared error. The predictions of a group should be close to the mean of its targets.
HistGradientBoosting, which sums floats, runs beside.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from benchmarks._common import machine
from greedymiser import MiserRegressor


def main() -> None:
    from sklearn.ensemble import HistGradientBoostingRegressor

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2**24)
    parser.add_argument("--rounds", type=int, default=60)
    args = parser.parse_args()
    print(machine())
    rng = np.random.default_rng(0)
    X = rng.random((args.rows, 1), dtype=np.float32)
    high = X[:, 0] > 0.5
    y = np.exp(high + 2.5 * rng.standard_normal(args.rows))
    print(f"{args.rows} rows, means of the groups: {y[~high].mean():.1f}, {y[high].mean():.1f}")
    settings = {"max_iter": args.rounds, "max_depth": 2, "early_stopping": False}
    for kind in (MiserRegressor, HistGradientBoostingRegressor):
        kind(**settings).fit(X[:1000], y[:1000])  # compile first
        start = time.perf_counter()
        predicted = kind(**settings).fit(X, y).predict(X)
        took = time.perf_counter() - start
        means = f"{predicted[~high].mean():.1f}, {predicted[high].mean():.1f}"
        print(f"  {kind.__name__:30s} {means}   {took:.1f} s")


if __name__ == "__main__":
    main()
