"""Trees per second on a GPU, and the same model on the CPU.

Shapes are those of the paper's Yahoo experiment (with its cost table), and 10,000,000 x 100. Time
is given after placement: rows are binned and sent once, also for a path of trade-offs.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from benchmarks._common import machine, regression_data
from greedymiser import MiserClassifier, MiserRanker, MiserRegressor
from greedymiser.datasets import load_yahoo_costs


def timed(model: Any, *data: Any, **more: Any) -> tuple[float, float, Any]:
    """Seconds until the first tree, seconds per tree after it, and the model."""
    stamps: list[float] = []
    start = time.perf_counter()
    model.fit(*data, callbacks=[lambda progress: stamps.append(time.perf_counter())], **more)
    per_tree = (stamps[-1] - stamps[0]) / max(1, len(stamps) - 1)
    return stamps[0] - start, per_tree, model


def same(one: Any, other: Any) -> bool:
    """Whether two models agree to the last bit, as far as both go."""
    n = min(len(one.ensemble_.nodes), len(other.ensemble_.nodes))
    return one.ensemble_.nodes[:n].tobytes() == other.ensemble_.nodes[:n].tobytes()


def report(name: str, make: Any, data: tuple[Any, ...], args: Any, **more: Any) -> None:
    """One line: set-up, time per tree, and whether the CPU grows the same trees."""
    setup, per_tree, model = timed(make(engine="cuda", max_iter=args.trees), *data, **more)
    line = f"{name}: set-up {setup:.2f} s, {1e3 * per_tree:.2f} ms a tree"
    if args.check:
        _, cpu, other = timed(make(engine="cpu", max_iter=args.check), *data, **more)
        line += f", CPU {1e3 * cpu:.1f} ms, {'equal' if same(model, other) else 'NOT EQUAL'}"
    print(f"{line}, {len(model.features_used_)} features", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=473_134)
    parser.add_argument("--trees", type=int, default=3000)
    parser.add_argument("--check", type=int, default=10, help="trees to grow on the CPU as well")
    parser.add_argument("--tradeoff", type=float, default=1e-5)
    parser.add_argument("--cases", nargs="*", default=["squared", "costs", "log-loss", "ranking"])
    args = parser.parse_args()
    print(machine())
    costs = load_yahoo_costs()
    X, y = regression_data(args.rows, len(costs))
    plain = dict(costs=costs, early_stopping=False)
    print(f"{args.rows} x {len(costs)}, depth 4, {args.trees} trees")
    for engine in ("cuda", "cpu"):  # compile first
        for make in (MiserRegressor, MiserClassifier):
            make(max_iter=2, engine=engine).fit(X[:2000], y[:2000] > 0)
    if "squared" in args.cases:
        report("squared error", lambda **p: MiserRegressor(**plain, **p), (X, y), args)
    if "costs" in args.cases:
        dear = dict(plain, tradeoff=args.tradeoff)
        name = f"squared error, tradeoff {args.tradeoff:g}"
        report(name, lambda **p: MiserRegressor(**dear, **p), (X, y), args)
    if "log-loss" in args.cases:
        report("log-loss", lambda **p: MiserClassifier(**plain, **p), (X, y > 0), args)
    if "ranking" in args.cases:
        qid = np.arange(len(X)) // 24
        grades = np.clip(np.round(y + 1), 0, 4)
        report("LambdaMART", lambda **p: MiserRanker(**plain, **p), (X, grades), args, qid=qid)
    if "large" in args.cases:
        rng = np.random.default_rng(0)
        X = rng.standard_normal((10_000_000, 100), dtype=np.float32)
        y = X[:, 0] * X[:, 1] + X[:, 2] + rng.standard_normal(len(X))
        free = dict(early_stopping=False)
        report("10,000,000 x 100", lambda **p: MiserRegressor(**free, **p), (X, y), args)


if __name__ == "__main__":
    main()
