"""How long does a round take on small, wide and long data, on few and many threads?

Depth 4, 16 leaves, 255 bins, rate 0.1; squared error, log-loss, LambdaMART. Ours and LightGBM (the
better of col-wise and row-wise) take turns of several rounds on the same data and threads, and the
best turn of each counts. On small data HistGradientBoosting runs as well, as whole fits from which
the time of a short fit is taken away.

    python -m benchmarks.scaling --threads 1 2 --shapes small
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lightgbm
import numpy as np

from benchmarks._common import lightgbm_params, machine, regression_data
from greedymiser import MiserClassifier, MiserRanker, MiserRegressor

SHAPES = {
    "small": [(1_000, 10), (7_000, 10), (7_000, 100), (50_000, 20)],
    "large": [(200_000, 512), (1_000_000, 28)],
}

# A turn is so many seconds long, or at least one round.
TURN = 0.05


@dataclass
class Problem:
    """Rows and what is to be learned from them."""

    name: str
    X: np.ndarray
    y: np.ndarray
    objective: str
    sizes: np.ndarray | None = None

    @property
    def qid(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    def ours(self, threads: int, rounds: int) -> Any:
        kind = {"binary": MiserClassifier, "lambdarank": MiserRanker}
        estimator = kind.get(self.objective, MiserRegressor)
        return estimator(max_iter=rounds, early_stopping=False, n_jobs=threads)

    def fit(self, model: Any, **more: Any) -> None:
        queries = {} if self.sizes is None else {"qid": self.qid}
        model.fit(self.X, self.y, **queries, **more)

    def dataset(self, threads: int) -> lightgbm.Dataset:
        params = lightgbm_params(threads, objective=self.objective)
        return lightgbm.Dataset(self.X, self.y, group=self.sizes, params=params).construct()


class Turns:
    """A callback that lets every rival have a turn after each turn of ours.

    The first round of a turn is not counted, neither ours nor theirs: it finds the caches full of
    the others' data, and its threads asleep.
    """

    def __init__(self, rivals: dict[str, Callable[[], object]], rounds: int):
        self.rivals, self.rounds = rivals, rounds
        self.seconds = {"ours": [], **{name: [] for name in rivals}}
        self._since = 0.0

    def __call__(self, progress: Any) -> None:
        done = progress.done % (self.rounds + 1)
        if done == 1:
            self._since = time.perf_counter()
        if done != 0:
            return
        self.seconds["ours"].append((time.perf_counter() - self._since) / self.rounds)
        for name, update in self.rivals.items():
            update()
            start = time.perf_counter()
            for _ in range(self.rounds):
                update()
            self.seconds[name].append((time.perf_counter() - start) / self.rounds)


def hist_gradient_boosting(problem: Problem, threads: int) -> float | None:
    """Milliseconds a round of HistGradientBoosting; None where it has no such loss."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    if problem.objective == "lambdarank":
        return None
    is_binary = problem.objective == "binary"
    kind = HistGradientBoostingClassifier if is_binary else HistGradientBoostingRegressor
    # The best of each length: the least difference would be that of an unlucky short fit.
    best = {10: math.inf, 110: math.inf}
    with threadpool_limits(threads):
        for rounds in 5 * (10, 110):
            model = kind(max_iter=rounds, max_depth=4, max_leaf_nodes=16, early_stopping=False)
            start = time.perf_counter()
            model.fit(problem.X, problem.y)
            best[rounds] = min(best[rounds], time.perf_counter() - start)
    return 1e3 * (best[110] - best[10]) / 100


def compare(problem: Problem, threads: int, seconds: float, with_sklearn: bool) -> None:
    data = problem.dataset(threads)
    rivals = {}
    for mode in ("force_col_wise", "force_row_wise"):
        params = lightgbm_params(threads, objective=problem.objective, **{mode: True})
        rivals[mode] = lightgbm.Booster(params, data).update
    start = time.perf_counter()
    for _ in range(3):
        rivals["force_col_wise"]()
    each = (time.perf_counter() - start) / 3
    rounds = max(2, round(TURN / each))
    turns = max(6, round(seconds / (3 * (rounds + 1) * each)))
    clock = Turns(rivals, rounds)
    problem.fit(problem.ours(threads, (rounds + 1) * turns), callbacks=[clock])
    best = {name: 1e3 * min(times) for name, times in clock.seconds.items()}
    rival = min(best["force_col_wise"], best["force_row_wise"])
    line = (
        f"{problem.name:34s} {threads:3d} threads  ours {best['ours']:8.3f} ms  "
        f"LightGBM {rival:8.3f} ms  {rival / best['ours']:5.2f} x"
    )
    if with_sklearn:
        other = hist_gradient_boosting(problem, threads)
        line += "" if other is None else f"  HistGradientBoosting {other:8.3f} ms"
    print(line, flush=True)


def problems(kind: str) -> list[Problem]:
    found = []
    for n, d in SHAPES[kind]:
        if kind == "small":
            rng = np.random.default_rng(0)
            X = rng.standard_normal((n, d))
            y = X[:, 0] + X[:, 1] * X[:, 2] + rng.standard_normal(n)
        else:
            X, y = regression_data(n, d)
        found.append(Problem(f"{n} x {d}, squared error", X, y, "regression"))
        if kind == "small" or d < 100:
            binary = (y > np.median(y)).astype(int)
            found.append(Problem(f"{n} x {d}, log-loss", X, binary, "binary"))
    if kind == "large":
        X, y = regression_data(100_000, 100, seed=3)
        stars = np.digitize(y, np.quantile(y, [0.5, 0.75, 0.9, 0.97])).astype(float)
        found.append(
            Problem("100000 x 100, LambdaMART", X, stars, "lambdarank", np.full(1000, 100))
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--seconds", type=float, default=4.0, help="for each line, roughly")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", module="lightgbm")
    print(machine(), flush=True)
    for shapes in args.shapes:
        for problem in problems(shapes):
            few = Problem(
                "", problem.X[:1000], problem.y[:1000], problem.objective,
                None if problem.sizes is None else problem.sizes[:10],
            )  # fmt: skip
            for n_jobs in {1, max(args.threads)}:
                few.fit(few.ours(n_jobs, 2))  # compile first
            for threads in args.threads:
                compare(problem, threads, args.seconds, with_sklearn=shapes == "small")


if __name__ == "__main__":
    main()
