"""How much of the full cost buys 99% and 95% of the full score, beside LightGBM's CEGB?

Thyroid (embedded, balanced accuracy) and MQ2008 (five folds, NDCG@5, squared error, where a folder
with it is given). Both methods have the same depth and rate, equally dense trade-offs, rounds
chosen by the same validation data, and one meter: our cost model, applied to the features in use.
MQ2008's costs are derived from a published cost table of MSLR, not measured.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import lightgbm
import numpy as np
import pandas as pd
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import train_test_split

from benchmarks._common import machine
from experiments.methods import choices_by_budget, cost_to_reach
from greedymiser import (
    CostModel,
    MiserClassifier,
    MiserRanker,
    ndcg_score,
    tradeoff_curve,
)
from greedymiser.datasets import load_letor, load_thyroid

N_TRADEOFFS = 12
DEPTH = 4


def lightgbm_traces(params, train, valid, test, costs, score, tradeoffs, rounds):
    """One row per trade-off and round, with the same columns as ours."""
    (X, y), (X_val, y_val), (X_test, y_test) = train, valid, test
    rows = []
    for tradeoff in tradeoffs:
        # LightGBM's gains are twice ours, and sums where ours are means; it knows no groups.
        penalty = {
            "cegb_tradeoff": 2.0 * len(y) * tradeoff,
            "cegb_penalty_feature_coupled": costs.prices().tolist(),
        }
        settings = {"verbose": -1, "max_depth": DEPTH, "num_leaves": 2**DEPTH, "num_threads": 2}
        booster = lightgbm.train(
            {**settings, **params, **penalty}, lightgbm.Dataset(X, y), num_boost_round=rounds
        )
        trees = booster.trees_to_dataframe()
        used = trees[trees["split_feature"].notna()]
        per_round = params.get("num_class", 1)
        prior = np.bincount(y.astype(int)) if per_round > 1 else 0.0
        raw_val = np.zeros(len(y_val)) if per_round == 1 else np.tile(prior, (len(y_val), 1))
        raw_test = np.zeros(len(y_test)) if per_round == 1 else np.tile(prior, (len(y_test), 1))
        rows.append(
            {
                "tradeoff": tradeoff,
                "n_trees": 0,
                "cost": 0.0,
                "score": score(y_val, raw_val, "valid"),
                "test_score": score(y_test, raw_test, "test"),
            }
        )
        raw_val, raw_test = 0.0 * raw_val, 0.0 * raw_test
        bought: set[int] = set()
        for i in range(booster.current_iteration()):
            here = used[used["tree_index"] // per_round == i]["split_feature"]
            bought |= {int(name.removeprefix("Column_")) for name in here}
            one = {"start_iteration": i, "num_iteration": 1, "raw_score": True}
            raw_val = raw_val + booster.predict(X_val, **one)
            raw_test = raw_test + booster.predict(X_test, **one)
            rows.append(
                {
                    "tradeoff": tradeoff,
                    "n_trees": (i + 1) * per_round,
                    "cost": costs.total(bought),
                    "score": score(y_val, raw_val, "valid"),
                    "test_score": score(y_test, raw_test, "test"),
                }
            )
    return pd.DataFrame(rows)


def candidates(traces):
    """The rounds of a method as the experiments have them: chosen by validation, then tested."""
    return traces.assign(
        valid_cost=traces["cost"], valid_score=traces["score"], score=traces["test_score"]
    )


def thyroid():
    data = load_thyroid()
    X, X_val, y, y_val = train_test_split(
        data.X_train, data.y_train, test_size=0.25, stratify=data.y_train, random_state=0
    )
    ours = tradeoff_curve(
        MiserClassifier(costs=data.costs, max_iter=100, max_depth=DEPTH), X, y, X_val=X_val,
        y_val=y_val, X_test=data.X_test, y_test=data.y_test, tradeoffs=N_TRADEOFFS,
        search="path", scoring="balanced_accuracy",
    )  # fmt: skip
    params = {"objective": "multiclass", "num_class": 3}

    def score(y, raw, _):
        return balanced_accuracy_score(y, raw.argmax(axis=1))

    theirs = lightgbm_traces(
        params, (X, y - 1), (X_val, y_val - 1), (data.X_test, data.y_test - 1), data.costs, score,
        sorted(ours.points["tradeoff"]), 100,
    )  # fmt: skip
    print(ours.points.to_string(index=False))
    return data.costs.total(range(21)), [(ours.traces, theirs)]


def mq2008(folder):
    with open(folder / "features.csv") as lines:
        prices = [float(row["derived_cost_from_mslr_table"]) for row in csv.DictReader(lines)]
    costs = CostModel(prices)
    parts = [load_letor(folder / f"S{i}.txt") for i in range(1, 6)]
    pairs = []
    for fold in range(5):
        X, y, _ = (
            np.concatenate(a) for a in zip(*(parts[(fold + i) % 5] for i in range(3)), strict=True)
        )
        valid, test = parts[(fold + 3) % 5], parts[(fold + 4) % 5]
        queries = {"valid": valid[2], "test": test[2]}

        def score(y, raw, which, queries=queries):
            return ndcg_score(y, raw, queries[which], k=5)

        ours = tradeoff_curve(
            MiserRanker(costs=costs, loss="squared_error", max_iter=150, max_depth=DEPTH), X, y,
            qid=np.zeros(len(y)), X_val=valid[0], y_val=valid[1], qid_val=valid[2],
            X_test=test[0], y_test=test[1], qid_test=test[2], tradeoffs=N_TRADEOFFS,
            search="path", scoring="ndcg@5",
        )  # fmt: skip
        theirs = lightgbm_traces(
            {"objective": "regression"}, (X, y), valid[:2], test[:2], costs, score,
            sorted(ours.points["tradeoff"]), 150,
        )  # fmt: skip
        pairs.append((ours.traces, theirs))
        if fold == 0:
            print(ours.points.to_string(index=False))
    return costs.total(range(46)), pairs


def show(name, total, pairs):
    """Print, for both methods, what reaches a share of the full score, and scores by budget."""
    labels = ("ours", "LightGBM CEGB")
    fronts = [[choices_by_budget(candidates(pair[method])) for pair in pairs] for method in (0, 1)]
    print(f"\n{name}: all features cost {total:g}")
    print("share of the full cost that reaches a share of the method's own unconstrained score")
    for share in (0.95, 0.99):
        for label, method in zip(labels, (0, 1), strict=True):
            reached = []
            for pair, curve in zip(pairs, fronts[method], strict=True):
                rounds = candidates(pair[method])
                full = choices_by_budget(rounds[rounds["tradeoff"] == 0])["score"].iloc[-1]
                reached.append(cost_to_reach(curve, share * full, to_stay=False) / total)
            done = np.isfinite(reached)
            spread = (
                f"{np.mean(np.array(reached)[done]):.3f} +- {np.std(np.array(reached)[done]):.3f}"
            )
            print(f"  {share:.0%}  {label:14s} {spread}  reached in {done.sum()} of {len(done)}")
    print("test score at a share of the full cost")
    for share in (0.05, 0.1, 0.2, 0.5, 1.0):
        ours, theirs = (
            np.array([c[c["budget"] <= share * total]["score"].iloc[-1] for c in curves])
            for curves in fronts
        )
        gap = ours - theirs
        print(
            f"  {share:4.0%}  ours {ours.mean():.4f}  LightGBM CEGB {theirs.mean():.4f}  "
            f"difference {gap.mean():+.4f} +- {gap.std():.4f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with mq2008")
    args = parser.parse_args()
    print(machine())
    show("thyroid (balanced accuracy)", *thyroid())
    if args.data is not None:
        show("MQ2008 (NDCG@5, five folds, derived costs)", *mq2008(args.data / "mq2008"))


if __name__ == "__main__":
    main()
