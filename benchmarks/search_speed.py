"""How long does a curve with its search take, and what is it worth, beside LightGBM's penalties?

Made data of 12,000 rows, with 4,000 to choose by and 8,000 to report on: columns are noisy copies
of a third as many hidden ones, prices are drawn from a lognormal distribution, and every third
column shares a purchase with two others. With GREEDYMISER_DATA, real data as well, with the splits
of ``experiments.frontier``. Seconds are CPU seconds of one thread; the score is the mean over eight
budgets (those of the experiment for real data) on test rows, without and with filled gaps.
LightGBM's are those of twelve fits with its penalty that everybody pays (with ``row`` that rows
pay) and of choosing among them, over a grid of trade-offs as the experiments have it.

    python -m benchmarks.search_speed --problems made-23 thyroid --charges model row

An earlier version is measured with PYTHONPATH=its/src and --alone.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._common import machine
from experiments.frontier.problems import (
    PROBLEMS,
    Problem,
    ProblemRows,
    ProblemSplit,
)
from experiments.frontier.rivals import N_TRADEOFFS, cegb, choose, full_prices, tested
from experiments.rows.methods import lazy
from greedymiser import CostModel, MiserClassifier, MiserRanker, as_predictor, tradeoff_curve

# Columns of made problems, and classes of the widest.
MADE = {20: 2, 23: 2, 35: 2, 87: 2, 149: 2, 313: 10}
REAL = ("thyroid", "heart", "nhanes", "mfeat", "mq2008")
TRAIN, VALID, TEST = 12_000, 4_000, 8_000


def made(n_columns: int) -> Problem:
    """Columns that say the same as others, at other prices."""
    n_classes = MADE[n_columns]
    rng = np.random.default_rng(n_columns)
    n_hidden = -(-n_columns // 3)
    prices = np.round(np.exp(rng.standard_normal(n_columns)), 2) + 0.01
    trios = [
        list(range(i, min(i + 3, n_columns)))
        for i in range(0, n_columns, 9)  # the first three columns of every nine
    ]
    groups = dict(enumerate(trios))
    costs = CostModel(prices, groups=groups, group_costs=dict.fromkeys(groups, 1.0))

    def split(i: int) -> ProblemSplit:
        rng = np.random.default_rng([n_columns, i])
        hidden = rng.standard_normal((TRAIN + VALID + TEST, n_hidden))
        noise = rng.standard_normal((len(hidden), n_columns))
        # Which copies are good is the same in all splits.
        worth = np.random.default_rng(n_columns + 1).uniform(0.2, 2.0, n_columns)
        X = hidden[:, np.arange(n_columns) % n_hidden] + worth * noise
        weights = np.random.default_rng(n_columns + 2).standard_normal((n_hidden, n_classes))
        weights /= np.sqrt(1.0 + np.arange(n_hidden))[:, None]
        pairs = hidden * np.roll(hidden, 1, axis=1)
        logits = hidden @ weights + 0.5 * pairs @ weights[::-1]
        if n_classes == 2:
            y = (logits[:, 0] + 0.5 * rng.standard_normal(len(X)) > 0.5).astype(np.int64)
        else:
            y = (logits + 0.5 * rng.standard_normal(logits.shape)).argmax(axis=1)
        whole = ProblemRows(X, y)
        parts = np.split(np.arange(len(X)), [TRAIN, TRAIN + VALID])
        return ProblemSplit(str(i), *(whole.take(rows) for rows in parts))

    scoring = "roc_auc" if n_classes == 2 else "accuracy"
    rounds = 200 if n_classes == 2 else 30
    budgets = np.geomspace(prices.min() + 1.0, costs.total(range(n_columns)), 8)
    return Problem(
        f"made-{n_columns}", costs, n_classes, scoring, tuple(budgets.tolist()), split,
        rounds=rounds,
    )  # fmt: skip


def problem_of(name: str) -> Problem:
    if name.startswith("made-"):
        return made(int(name.removeprefix("made-")))
    folder = os.environ.get("GREEDYMISER_DATA")
    return PROBLEMS[name](Path(folder) if folder else None)


def curve_of(problem: Problem, split: ProblemSplit, charge: str, rounds: int) -> Any:
    train, valid = split.train, split.valid
    more: dict[str, Any] = {}
    make: Any = MiserClassifier
    if not problem.n_classes:
        make = partial(MiserRanker, loss="squared_error")
        more = {"qid": train.qid, "qid_val": valid.qid}
    model = make(
        costs=problem.costs, max_iter=rounds, min_samples_leaf=problem.min_samples_leaf,
        max_bins=problem.max_bins, charge=charge, n_jobs=1, random_state=0,
    )  # fmt: skip
    return tradeoff_curve(
        model, train.X, train.y, X_val=valid.X, y_val=valid.y, scoring=problem.scoring,
        tradeoffs=8, n_jobs=1, **more,
    )  # fmt: skip


def served(problem: Problem, model: Any, rows: ProblemRows) -> float:
    """Test score of a model."""
    if problem.n_classes == 2:
        raw = model.predict_proba(rows.X)[:, 1]
    elif problem.n_classes:
        # By the classes that it says, which for balanced accuracy are not the most probable.
        raw = model.predict(rows.X)[:, None] == model.classes_
    elif as_predictor(model).compares_rows:
        raw = model.predict(rows.X, rows.qid)
    else:
        raw = model.predict(rows.X)
    return problem.score(rows, np.asarray(raw, dtype=np.float64))


def ours(problem: Problem, i: int, charge: str) -> str:
    """CPU seconds of a curve and of filling its gaps, and the scores before and after."""
    split = problem.split(i)
    curve_of(problem, split, charge, 2)  # compiles
    start = time.process_time()
    curve = curve_of(problem, split, charge, problem.rounds)
    seconds = time.process_time() - start
    scores = []
    for train in (False, True):
        start = time.process_time()
        models = [curve.best(budget, train=train) for budget in problem.budgets]
        filled = time.process_time() - start
        scores.append(np.mean([served(problem, model, split.test) for model in models]))
    return f"{seconds:7.2f} s  {scores[0]:.4f}   gaps filled {filled:6.2f} s  {scores[1]:.4f}"


def twelve(problem: Problem, i: int, charge: str) -> str:
    """CPU seconds and score of twelve fits of LightGBM with the penalty of the same kind."""
    split = problem.split(i)
    start = time.process_time()
    if charge == "model":
        found = cegb(full_prices, problem, split)
        served = [tested(problem, split.test, choose(found, budget)) for budget in problem.budgets]
    else:
        offers = lazy(problem, split, 1, N_TRADEOFFS).values()
        served = [problem.score(split.test, offer.predict(split.test)) for offer in offers]
    return f"{time.process_time() - start:7.2f} s  {np.mean(served):.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    names = [*(f"made-{n}" for n in MADE), *REAL]
    parser.add_argument("--problems", nargs="+", default=names)
    parser.add_argument("--charges", nargs="+", default=["model", "row"])
    parser.add_argument("--splits", type=int, nargs="+", default=[0])
    parser.add_argument("--alone", action="store_true", help="without LightGBM")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    print(machine())
    for name in args.problems:
        if name in REAL and name != "thyroid" and "GREEDYMISER_DATA" not in os.environ:
            print(f"{name}: needs GREEDYMISER_DATA")
            continue
        problem = problem_of(name)
        for i in args.splits:
            for charge in args.charges:
                line = ours(problem, i, charge)
                print(f"{name:9s} split {i}  {charge:5s}  {line}", flush=True)
                if not args.alone:
                    line = twelve(problem, i, charge)
                    print(f"{name:9s} split {i}  {charge:5s}  LightGBM {line}", flush=True)


if __name__ == "__main__":
    main()
