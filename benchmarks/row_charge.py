"""What it takes to let every row pay for itself: training with charge="row" beside charge="model".

200,000 x 512 with prices drawn from Yahoo's cost table. The trade-off of the model's charge is
searched so that both cost about the same in the mean; then both train, in turns.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from benchmarks._common import COLUMNS, ROWS, machine, regression_data
from greedymiser import MiserRegressor
from greedymiser.datasets import load_yahoo_costs


def prices(d: int) -> np.ndarray:
    """Yahoo's prices, in an order that has nothing to do with the worth of features."""
    return np.random.default_rng(3).permutation(np.resize(load_yahoo_costs(), d))


def per_tree(model: MiserRegressor, X: Any, y: Any) -> float:
    """Seconds a tree, after the first."""
    stamps: list[float] = []
    model.fit(X, y, callbacks=[lambda progress: stamps.append(time.perf_counter())])
    return (stamps[-1] - stamps[0]) / max(1, len(stamps) - 1)


def with_cost(make: Any, X: Any, y: Any, cost: float) -> float:
    """The trade-off at which a model costs about so much, within a tenth if that is to be had."""
    low, high, best = 1e-8, 1e-2, (np.inf, 1e-4)
    for _ in range(14):
        middle = float(np.sqrt(low * high))
        found = make(tradeoff=middle).fit(X, y).cost_
        best = min(best, (abs(found - cost), middle))
        if best[0] < 0.1 * cost:
            break
        low, high = (middle, high) if found > cost else (low, middle)
    return best[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--columns", type=int, default=COLUMNS)
    parser.add_argument("--trees", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tradeoff", type=float, default=1e-5)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--engine", default="cpu")
    args = parser.parse_args()
    print(machine())
    X, y = regression_data(args.rows, args.columns)
    costs = prices(args.columns)

    def make(**more: Any) -> MiserRegressor:
        shared = dict(max_iter=args.trees, early_stopping=False, n_jobs=args.threads)
        return MiserRegressor(costs=costs, engine=args.engine, **(shared | more))

    for charge in ("model", "row"):
        make(charge=charge, max_iter=2, tradeoff=args.tradeoff).fit(X[:3000], y[:3000])  # compile
    by_row = make(charge="row", tradeoff=args.tradeoff)
    mean_cost = by_row.fit(X, y).cost_
    by_model = make(tradeoff=with_cost(make, X, y, mean_cost))
    free = make()
    names = {"tradeoff 0": free, 'charge="model"': by_model, 'charge="row"': by_row}
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(args.repeats):
        for name, model in names.items():
            times[name].append(per_tree(model, X, y))
    for name, model in names.items():
        print(
            f"{name}: {1e3 * min(times[name]):.1f} ms a tree; mean cost {model.cost_:.1f}, "
            f"{len(model.features_used_)} features, R2 {model.score(X, y):.3f}"
        )
    ratio = min(times['charge="row"']) / min(times['charge="model"'])
    print(f'{args.rows} x {args.columns}, {args.engine}: charge="row" takes {ratio:.2f} times')


if __name__ == "__main__":
    main()
