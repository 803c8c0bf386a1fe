"""Trees per second on a GPU, and whether the CPU grows the same ones.

The shape is that of the paper's Yahoo experiment, with its cost table, unless a case says
otherwise. Times are given after placement: rows are binned and sent once, also for a path of
trade-offs.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from benchmarks._common import machine, regression_data
from greedymiser import (
    MiserClassifier,
    MiserRanker,
    MiserRegressor,
    as_predictor,
    tradeoff_curve,
)
from greedymiser.datasets import load_yahoo_costs

FREE = dict(early_stopping=False)


def timed(model: Any, *data: Any, **more: Any) -> tuple[float, float, Any]:
    """Seconds until the first tree, seconds per tree after it, and the model."""
    stamps: list[float] = []
    start = time.perf_counter()
    model.fit(*data, callbacks=[lambda progress: stamps.append(time.perf_counter())], **more)
    per_tree = (stamps[-1] - stamps[0]) / max(1, len(stamps) - 1)
    return stamps[0] - start, per_tree, model


def same(one: Any, other: Any) -> str:
    """Whether two models agree to the last bit, as far as both go."""
    n = min(len(one.ensemble_.nodes), len(other.ensemble_.nodes))
    is_same = one.ensemble_.nodes[:n].tobytes() == other.ensemble_.nodes[:n].tobytes()
    return "equal" if is_same else "NOT EQUAL"


def report(name: str, make: Any, data: tuple[Any, ...], trees: int, check: int, **more: Any) -> Any:
    """One line: set-up, time per tree, and whether the CPU grows the same trees."""
    setup, per_tree, model = timed(make(engine="cuda", max_iter=trees), *data, **more)
    line = f"{name}: set-up {setup:.2f} s, {trees} trees {per_tree * trees:.2f} s"
    line += f", {1e3 * per_tree:.2f} ms a tree"
    if check:
        _, cpu, other = timed(make(engine="cpu", max_iter=check), *data, **more)
        line += f"; CPU {1e3 * cpu:.1f} ms; first {check} {same(model, other)}"
    print(f"{line}; {len(model.features_used_)} features", flush=True)
    return model


def by_size(check: int) -> None:
    """From which size on the GPU pays."""
    for n, d in [
        (1000, 10),
        (10_000, 20),
        (30_000, 30),
        (100_000, 30),
        (300_000, 30),
        (50_000, 300),
    ]:
        X, y = regression_data(n, d)
        report(f"{n} x {d}", lambda **p: MiserRegressor(**FREE, **p), (X, y), 200, check)


def path(X: Any, y: Any, costs: Any) -> None:
    """Eight trade-offs on rows that are placed once."""
    start = time.perf_counter()
    n = len(X) // 10
    model = MiserRegressor(costs=costs, max_iter=100, early_stopping=False, engine="cuda")
    curve = tradeoff_curve(model, X[n:], y[n:], X_val=X[:n], y_val=y[:n], tradeoffs=8)
    seconds = time.perf_counter() - start
    print(f"a path of 8 trade-offs, 100 trees each: {seconds:.1f} s, {len(curve.points)} points")


def predict(model: Any, X: Any) -> None:
    """A large batch on both."""
    seconds, found = {}, {}
    for engine in ("cuda", "cpu"):
        predictor = as_predictor(model, engine=engine)
        predictor.raw_predict(X[:3000])
        start = time.perf_counter()
        found[engine] = predictor.raw_predict(X)
        seconds[engine] = time.perf_counter() - start
    equal = "equal" if found["cuda"].tobytes() == found["cpu"].tobytes() else "NOT EQUAL"
    print(
        f"prediction, {len(X)} rows, {model.n_iter_} trees: GPU {seconds['cuda']:.2f} s, "
        f"CPU {seconds['cpu']:.2f} s; {equal}",
        flush=True,
    )


CASES = ["squared", "predict", "costs", "row", "log-loss", "ranking", "path", "sizes", "large"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=473_134)
    parser.add_argument("--trees", type=int, default=3000)
    parser.add_argument("--check", type=int, default=5, help="trees to grow on the CPU as well")
    parser.add_argument("--tradeoff", type=float, default=1e-5)
    parser.add_argument("--cases", nargs="*", default=CASES, choices=CASES)
    args = parser.parse_args()
    print(machine())
    costs = load_yahoo_costs()
    X, y = regression_data(args.rows, len(costs))
    plain, run = dict(costs=costs, **FREE), (args.trees, args.check)
    for engine in ("cuda", "cpu"):  # compile first
        for make in (MiserRegressor, MiserClassifier):
            make(max_iter=2, engine=engine).fit(X[:2000], y[:2000] > 0)
    print(f"{args.rows} x {len(costs)}, depth 4", flush=True)
    if "squared" in args.cases:
        model = report("squared error", lambda **p: MiserRegressor(**plain, **p), (X, y), *run)
        if "predict" in args.cases:
            predict(model, X[:200_000])
    if "costs" in args.cases:
        dear = dict(plain, tradeoff=args.tradeoff)
        name = f"squared error, tradeoff {args.tradeoff:g}"
        report(name, lambda **p: MiserRegressor(**dear, **p), (X, y), *run)
    if "row" in args.cases:
        by_row = dict(plain, tradeoff=args.tradeoff, charge="row")
        few = args.trees // 10, args.check
        report('charge="row"', lambda **p: MiserRegressor(**by_row, **p), (X, y), *few)
    if "log-loss" in args.cases:
        report("log-loss", lambda **p: MiserClassifier(**plain, **p), (X, y > 0), *run)
    if "ranking" in args.cases:
        grades, qid = np.clip(np.round(y + 1), 0, 4), np.arange(len(X)) // 24
        few = args.trees // 10, args.check
        report("LambdaMART", lambda **p: MiserRanker(**plain, **p), (X, grades), *few, qid=qid)
    if "path" in args.cases:
        path(X, y, costs)
    if "sizes" in args.cases:
        by_size(50)
    if "large" in args.cases:
        del X
        rng = np.random.default_rng(0)
        X = rng.standard_normal((10_000_000, 100), dtype=np.float32)
        y = X[:, 0] * X[:, 1] + np.sin(2 * X[:, 2]) + rng.standard_normal(len(X))
        few = args.trees // 10, args.check
        report("10,000,000 x 100", lambda **p: MiserRegressor(**FREE, **p), (X, y), *few)


if __name__ == "__main__":
    main()
