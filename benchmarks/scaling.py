"""How long does a round take on small, wide and long data, on few and many threads, beside peers?

Depth 4, 16 leaves, 255 bins, rate 0.1, 20 rows a leaf (XGBoost: a Hessian of 5); squared error,
log-loss, LambdaMART. Ours with and without costs, LightGBM (the better of col-wise and row-wise;
with quantised gradients; with CEGB, its penalty for costs) and XGBoost take turns of several rounds
on the same data and threads, and the best turn of each counts. Prices are Yahoo's. The tables of
docs/benchmarks.md are its output.

    python -m benchmarks.scaling --threads 1 2 --shapes small
"""

from __future__ import annotations

import argparse
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import lightgbm
import numpy as np
import xgboost

from benchmarks._common import lightgbm_params, machine, regression_data
from greedymiser import MiserClassifier, MiserRanker, MiserRegressor
from greedymiser.datasets import load_yahoo_costs

SHAPES = {
    "small": [(1_000, 10), (7_000, 10), (7_000, 100), (50_000, 20)],
    "wide": [(200_000, 512)],
    "long": [(1_000_000, 28)],
    "ranking": [(100_000, 100)],
}

# A turn is so many seconds long, or at least two rounds; before it, threads of the one before come
# to rest (OpenMP's look for work for some ten milliseconds).
TURN, REST = 0.05, 0.02

# Drop of the mean loss that a unit of cost must bring.
TRADEOFF = 1e-5

KINDS = {"binary": MiserClassifier, "lambdarank": MiserRanker, "regression": MiserRegressor}
OBJECTIVES = {
    "binary": "binary:logistic", "lambdarank": "rank:ndcg", "regression": "reg:squarederror",
}  # fmt: skip


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

    @property
    def costs(self) -> np.ndarray:
        """Yahoo's prices, in an order that has nothing to do with the worth of features."""
        return np.random.default_rng(3).permutation(np.resize(load_yahoo_costs(), self.X.shape[1]))

    def fit(self, threads: int, rounds: int, **more: Any) -> None:
        """Train ours; what is no parameter is passed to ``fit``."""
        callbacks = more.pop("callbacks", ())
        model = KINDS[self.objective](max_iter=rounds, early_stopping=False, n_jobs=threads, **more)
        queries = {} if self.sizes is None else {"qid": self.qid}
        model.fit(self.X, self.y, **queries, callbacks=callbacks)


class Ours:
    """A fit in a thread of its own, which goes on when it is its turn."""

    def __init__(self, problem: Problem, threads: int, **more: Any):
        self._turns: SimpleQueue[int] = SimpleQueue()
        self._ends: SimpleQueue[float] = SimpleQueue()
        self._left = 0
        self._begun = 0.0
        # The first round waits for a turn as well: binning belongs to none.
        self._fit = threading.Thread(target=self._train, args=(problem, threads, more))
        self._fit.start()
        self._ends.get()

    def _train(self, problem: Problem, threads: int, more: dict[str, Any]) -> None:
        try:
            problem.fit(threads, 10**6, callbacks=[self._look], **more)
        finally:
            self._ends.put(np.nan)  # whoever waits for a turn of a fit that has failed

    def _look(self, progress: Any) -> Any:
        from greedymiser import Action

        self._left -= 1
        if self._left > 0:
            return Action.CONTINUE
        self._ends.put(time.perf_counter() - self._begun)
        self._left = self._turns.get()
        self._begun = time.perf_counter()
        return Action.CONTINUE if self._left > 0 else Action.STOP

    def __call__(self, rounds: int) -> float:
        self._turns.put(rounds)
        return self._ends.get()

    def end(self) -> None:
        self._turns.put(0)
        self._fit.join()


class Theirs:
    """A booster of another library."""

    def __init__(self, update: Callable[[], object]):
        self._update = update

    def __call__(self, rounds: int) -> float:
        begun = time.perf_counter()
        for _ in range(rounds):
            self._update()
        return time.perf_counter() - begun

    def end(self) -> None:
        pass


def lightgbms(problem: Problem, threads: int) -> dict[str, Theirs]:
    """LightGBM in its modes, on one Dataset."""
    base = lightgbm_params(threads, objective=problem.objective)
    data = lightgbm.Dataset(problem.X, problem.y, group=problem.sizes, params=base).construct()
    # Its gains are twice ours, and sums where ours are means.
    coupled = {
        "cegb_tradeoff": 2.0 * len(problem.X) * TRADEOFF,
        "cegb_penalty_feature_coupled": problem.costs.tolist(),
    }
    found = {}
    for mode in ("force_col_wise", "force_row_wise"):
        for name, more in (("LightGBM", {}), ("CEGB", coupled)):
            booster = lightgbm.Booster({**base, mode: True, **more}, data)
            found[f"{name} {mode}"] = Theirs(booster.update)
    quantised = {**base, "force_col_wise": True, "use_quantized_grad": True}
    found["quantised"] = Theirs(lightgbm.Booster(quantised, data).update)
    return found


def xgboosts(problem: Problem, threads: int) -> dict[str, Theirs]:
    """XGBoost's hist."""
    data = xgboost.QuantileDMatrix(problem.X, problem.y, max_bin=255, nthread=threads)
    if problem.sizes is not None:
        data.set_group(problem.sizes)
    params = {
        "objective": OBJECTIVES[problem.objective], "tree_method": "hist", "max_depth": 4,
        "max_bin": 255, "eta": 0.1, "nthread": threads, "min_child_weight": 5,
    }  # fmt: skip
    booster = xgboost.Booster(params, [data])
    rounds = iter(range(10**6))
    return {"XGBoost": Theirs(lambda: booster.update(data, next(rounds)))}


COLUMNS = ("ours", "with costs", "LightGBM", "quantised", "CEGB", "XGBoost")
# Whose time is given in terms of whose.
RATIOS = (("LightGBM", "ours"), ("XGBoost", "ours"), ("CEGB", "with costs"))


def compare(problem: Problem, threads: int, seconds: float) -> None:
    """Print a line of the table: milliseconds a round, and how many times ours others take."""
    contestants: dict[str, Any] = {
        "ours": Ours(problem, threads),
        "with costs": Ours(problem, threads, costs=problem.costs, tradeoff=TRADEOFF),
        **lightgbms(problem, threads),
        **xgboosts(problem, threads),
    }
    each = {name: min(run(2) for _ in range(2)) / 2 for name, run in contestants.items()}
    best = dict.fromkeys(contestants, np.inf)
    spent = time.perf_counter()
    turns = 0
    while turns < 3 or time.perf_counter() - spent < seconds:
        for name, run in contestants.items():
            time.sleep(REST)
            # The first round of a turn finds the caches full of others' data, and threads asleep.
            run(1)
            rounds = max(2, round(TURN / each[name]))
            best[name] = min(best[name], run(rounds) / rounds)
        turns += 1
    for run in contestants.values():
        run.end()
    table = {}
    for column in COLUMNS:
        table[column] = 1e3 * min(time for name, time in best.items() if name.startswith(column))
    cells = [f"{table[column]:.3g}" for column in COLUMNS]
    cells += [f"{table[rival] / table[own]:.2f}" for rival, own in RATIOS]
    print(f"| {problem.name} | {threads} | {' | '.join(cells)} |", flush=True)


def problems(kind: str) -> list[Problem]:
    """All that is to be learned from data of one kind."""
    found = []
    for n, d in SHAPES[kind]:
        name = f"{n:,} x {d}"
        if kind == "ranking":
            X, y = regression_data(n, d, seed=3)
            stars = np.digitize(y, np.quantile(y, [0.5, 0.75, 0.9, 0.97])).astype(float)
            sizes = np.full(n // 100, 100)
            found.append(Problem(f"{name}, LambdaMART", X, stars, "lambdarank", sizes))
            continue
        if kind == "small":
            rng = np.random.default_rng(0)
            X = rng.standard_normal((n, d))
            y = X[:, 0] + X[:, 1] * X[:, 2] + rng.standard_normal(n)
        else:
            X, y = regression_data(n, d)
        found.append(Problem(name, X, y, "regression"))
        if kind != "wide":
            binary = (y > np.median(y)).astype(int)
            found.append(Problem(f"{name}, log-loss", X, binary, "binary"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--seconds", type=float, default=6.0, help="for each line, roughly")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", module="lightgbm")
    print(machine())
    heads = ["ms a round", "threads", *COLUMNS, *(f"{rival} / {own}" for rival, own in RATIOS)]
    print("| " + " | ".join(heads) + " |")
    print("|" + "---|" * len(heads), flush=True)
    for shapes in args.shapes:
        for problem in problems(shapes):
            few = Problem(
                "", problem.X[:1000], problem.y[:1000], problem.objective,
                None if problem.sizes is None else problem.sizes[:10],
            )  # fmt: skip
            for threads in {1, max(args.threads)}:  # compile first
                few.fit(threads, 2)
                few.fit(threads, 2, costs=problem.costs, tradeoff=TRADEOFF)
            for threads in args.threads:
                compare(problem, threads, args.seconds)


if __name__ == "__main__":
    main()
