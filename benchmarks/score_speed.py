"""How long does a score of raw predictions take, beside scikit-learn's scorer of that name?

7,500 and 200,000 rows, with and without weights; regression, two classes, three classes. The rival
is the scorer itself over a model that knows its predictions by heart, so that nobody predicts.
Turns are taken call by call. NDCG@10 of queries of 20 documents is timed beside ``ndcg_score``,
which has to sort the queries first.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from benchmarks._common import machine
from greedymiser.losses import BinaryLogLoss, LambdaMART, MultinomialLogLoss, Poisson
from greedymiser.losses.ndcg import ndcg_score
from greedymiser.scoring.scores import KNOWN_SCORES, known_score
from greedymiser.scoring.truth import Truth, ask_scikit_learn

SIZES = (7_500, 200_000)


def in_turns(first: Callable[[], object], second: Callable[[], object], repeats: int) -> str:
    """Best milliseconds of both, and how many times the first the second takes."""
    best = [np.inf, np.inf]
    for turn in range(repeats + 1):
        for k, function in enumerate((first, second)):
            start = time.perf_counter()
            function()
            if turn:  # the first compiles
                best[k] = min(best[k], 1e3 * (time.perf_counter() - start))
    return f"{best[0]:8.3f} {best[1]:8.2f} {best[1] / best[0]:5.0f} x"


def problem(n_classes: int, n: int):
    """Kind, loss, labels, target and raw predictions."""
    rng = np.random.default_rng(0)
    if n_classes == 0:
        y = rng.gamma(2.0, size=n) + 0.1
        raw = 0.7 * np.log(y)[None] + rng.normal(scale=0.3, size=(1, n))
        return "regressor", Poisson(), None, y, raw
    loss = BinaryLogLoss() if n_classes == 2 else MultinomialLogLoss(n_classes)
    raw = rng.standard_normal((loss.n_outputs, n))
    odds = np.vstack([np.zeros(n), raw]) if n_classes == 2 else raw
    y = np.argmax(odds + rng.gumbel(size=odds.shape), axis=0).astype(np.float64)
    return "classifier", loss, np.arange(n_classes), y, raw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    print(machine())
    print("ours and scikit-learn's, ms; columns:", ", ".join(f"{n} rows (weighted)" for n in SIZES))
    for n_classes in (0, 2, 3):
        print(f"{n_classes} classes" if n_classes else "regression")
        for name in KNOWN_SCORES["classifier" if n_classes else "regressor"]:
            cells = []
            for n in SIZES:
                kind, loss, classes, y, raw = problem(n_classes, n)
                score = known_score(name, kind, loss, classes)
                for weight in (None, np.random.default_rng(1).uniform(0.5, 2.0, n)):
                    if score is None or ("ovo" in name and n_classes > 2 and weight is not None):
                        cells.append(f"{'-':>25s}")
                        continue
                    bound = score.bind(y, weight)
                    labels = np.empty(0) if classes is None else classes
                    rows = Truth(kind, loss, labels, y, weight)
                    cells.append(
                        in_turns(
                            lambda bound=bound, raw=raw: bound(raw),
                            lambda rows=rows, raw=raw, name=name: ask_scikit_learn(name, rows, raw),
                            args.repeats,
                        )
                    )
            print(f"  {name:36s} {' | '.join(cells)}", flush=True)
    print("ndcg@10, ours and ndcg_score")
    for n in SIZES:
        rng = np.random.default_rng(0)
        y, raw = rng.integers(0, 5, n).astype(np.float64), rng.standard_normal((1, n))
        qid, starts = np.arange(n) // 20, np.arange(0, n + 1, 20)
        bound = known_score("ndcg@10", "ranker", LambdaMART()).bind(y, None, starts)
        print(
            f"  {n} rows",
            in_turns(
                lambda bound=bound, raw=raw: bound(raw),
                lambda y=y, raw=raw, qid=qid: ndcg_score(y, raw[0], qid, k=10),
                args.repeats,
            ),
        )


if __name__ == "__main__":
    main()
