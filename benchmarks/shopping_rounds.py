"""What does it cost in score, and save in time, to shop only every k-th round?

Thyroid (embedded, balanced accuracy, three splits), and where a folder with them is given MQ2008
(NDCG@5, squared error, five folds; costs derived from a published cost table of MSLR) and mfeat
(accuracy, three splits; every column costs 1, and the first of a family a tenth of all of them
more). The same trade-offs for every interval; validation data picks trade-off and rounds for each
budget, the table shows scores on test data. Times are CPU times of the fits alone, interleaved.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import train_test_split

from benchmarks._common import machine
from greedymiser import CostModel, MiserClassifier, MiserRanker, tradeoff_curve
from greedymiser.datasets import load_letor, load_thyroid

INTERVALS = (1, 2, 4, 8)
FAMILIES = ("fac", "fou", "kar", "mor", "pix", "zer")


def thyroid() -> tuple[Any, list[float], list[dict[str, Any]]]:
    data = load_thyroid()
    test = {"X_test": data.X_test, "y_test": data.y_test}
    splits = []
    for seed in range(3):
        X, X_val, y, y_val = train_test_split(
            data.X_train, data.y_train, test_size=0.25, stratify=data.y_train, random_state=seed
        )
        splits.append({"X": X, "y": y, "X_val": X_val, "y_val": y_val, **test})
    model = MiserClassifier(costs=data.costs, max_iter=100, scoring="balanced_accuracy")
    return model, [0.0, *np.geomspace(1e-4, 1e-2, 7)], splits


def mq2008(folder: Path) -> tuple[Any, list[float], list[dict[str, Any]]]:
    with open(folder / "features.csv") as lines:
        prices = [float(row["derived_cost_from_mslr_table"]) for row in csv.DictReader(lines)]
    parts = [load_letor(folder / f"S{i}.txt") for i in range(1, 6)]
    splits = []
    for fold in range(5):
        learn = zip(*(parts[(fold + i) % 5] for i in range(3)), strict=True)
        X, y, qid = (np.concatenate(arrays) for arrays in learn)
        split = {"X": X, "y": y, "qid": qid}
        for name, part in (("val", parts[(fold + 3) % 5]), ("test", parts[(fold + 4) % 5])):
            split |= {f"X_{name}": part[0], f"y_{name}": part[1], f"qid_{name}": part[2]}
        splits.append(split)
    model = MiserRanker(
        costs=CostModel(prices), loss="squared_error", max_iter=150, scoring="ndcg@5"
    )
    return model, [0.0, *np.geomspace(1e-6, 3e-4, 5)], splits


def mfeat(folder: Path) -> tuple[Any, list[float], list[dict[str, Any]]]:
    tables = [
        np.loadtxt(folder / f"mfeat-{name}.csv", delimiter=",", skiprows=1) for name in FAMILIES
    ]
    X, y = np.hstack([table[:, :-1] for table in tables]), tables[0][:, -1]
    edges = np.cumsum([0, *(table.shape[1] - 1 for table in tables)])
    groups = {name: range(edges[i], edges[i + 1]) for i, name in enumerate(FAMILIES)}
    entry = {name: len(columns) / 10 for name, columns in groups.items()}
    costs = CostModel(np.ones(X.shape[1]), groups=groups, group_costs=entry)
    splits = []
    for seed in range(3):
        X_rest, X_test, y_rest, y_test = train_test_split(
            X, y, test_size=0.25, stratify=y, random_state=seed
        )
        X_learn, X_val, y_learn, y_val = train_test_split(
            X_rest, y_rest, test_size=0.33, stratify=y_rest, random_state=seed
        )
        own = {"X": X_learn, "y": y_learn, "X_val": X_val, "y_val": y_val}
        splits.append({**own, "X_test": X_test, "y_test": y_test})
    return (
        MiserClassifier(costs=costs, max_iter=30, scoring="accuracy"),
        [0.0, *np.geomspace(1e-4, 1e-2, 4)],
        splits,
    )


def seconds(model: Any, tradeoffs: list[float], split: dict[str, Any]) -> float:
    """CPU time of one fit per trade-off, on one thread and without validation data."""
    given = {name: split[name] for name in ("X", "y", "qid") if name in split}
    start = time.process_time()
    for tradeoff in tradeoffs:
        settings = {"tradeoff": tradeoff, "early_stopping": False, "n_jobs": 1}
        clone(model).set_params(**settings).fit(**given)
    return time.process_time() - start


def scores(traces: Any, budgets: list[float]) -> Iterator[float]:
    """Test score of what validation picks for each budget."""
    for budget in budgets:
        affordable = traces[traces["cost"] <= budget]
        yield affordable.loc[affordable["score"].idxmax(), "test_score"]


def show(name: str, model: Any, tradeoffs: list[float], splits: list[dict[str, Any]]) -> None:
    total = model.costs.total(range(splits[0]["X"].shape[1]))
    budgets = [float(b) for b in np.geomspace(total / 40, total, 6)]
    print(f"\n{name}; everything costs {total:g}")
    print("k  time  " + "  ".join(f"{budget:9.3g}" for budget in budgets))
    models = {k: clone(model).set_params(shopping_interval=k) for k in INTERVALS}
    rounds = [{k: seconds(m, tradeoffs, splits[0]) for k, m in models.items()} for _ in range(2)]
    best = {k: min(times[k] for times in rounds) for k in INTERVALS}
    first = np.zeros(0)
    for k, candidate in models.items():
        found = []
        for split in splits:
            curve = tradeoff_curve(candidate, **split, tradeoffs=tradeoffs)
            found.append(list(scores(curve.traces, budgets)))
        table = np.array(found)
        first = table if k == 1 else first
        error = (table - first).std(axis=0, ddof=1) / np.sqrt(len(splits))
        print(
            f"{k}  {best[k] / best[1]:.2f}  " + "  ".join(f"{s:9.4f}" for s in table.mean(axis=0))
        )
        if k > 1:
            gaps = zip((table - first).mean(axis=0), error, strict=True)
            print("   change " + " ".join(f"{gap:+.3f}±{e:.3f}" for gap, e in gaps), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with mq2008 and mfeat")
    args = parser.parse_args()
    print(machine())
    show("thyroid (balanced accuracy)", *thyroid())
    if args.data is not None:
        show("MQ2008 (NDCG@5, derived costs)", *mq2008(args.data / "mq2008"))
        show("mfeat (accuracy)", *mfeat(args.data / "mfeat"))


if __name__ == "__main__":
    main()
