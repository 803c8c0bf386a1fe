"""Who decides: each takes training rows, and says what test rows cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import GridSearchCV

from experiments.total_cost.problems import TotalCostProblem
from greedymiser import MiserClassifier, MiserSearchCV, baseline, total_cost

Rows = NDArray[np.intp]
Method = Callable[[TotalCostProblem, Rows, Rows, int], float]
"""From a problem, rows to learn from, test rows and threads to the mean total of the test rows."""


def ours(problem: TotalCostProblem, learn: Rows, test: Rows, n_jobs: int) -> float:
    """Whom to ask for what, learned by cross-validation."""
    model = MiserClassifier(
        costs=problem.costs, charge="row", error_costs=problem.errors, n_jobs=n_jobs
    )
    search = MiserSearchCV(model, scoring="total_cost", cv=5, random_state=0)
    search.fit(problem.X[learn], problem.y[learn])
    return _total(problem, search, test)


def nothing(problem: TotalCostProblem, learn: Rows, test: Rows, n_jobs: int) -> float:
    """Say the same of all rows."""
    shares = np.bincount(problem.y[learn], minlength=len(problem.errors)) / len(learn)
    said = int(np.argmin(shares @ problem.errors))
    return float(problem.errors[problem.y[test], said].mean())


def everything(problem: TotalCostProblem, learn: Rows, test: Rows, n_jobs: int) -> float:
    """A tuned LightGBM with class weights that buys all that it looks at."""
    from lightgbm import LGBMClassifier

    stakes = problem.errors.max(axis=1)
    weights = dict(enumerate((stakes / stakes.mean()).tolist()))
    grid = {"n_estimators": [20, 60, 180], "num_leaves": [4, 15], "learning_rate": [0.05, 0.1]}
    booster = LGBMClassifier(
        class_weight=weights, min_child_samples=5, verbose=-1, n_jobs=n_jobs, random_state=0
    )
    search = GridSearchCV(booster, grid, scoring="neg_log_loss", cv=5)
    search.fit(problem.X[learn], problem.y[learn])
    # Weights are in the probabilities already: of the answers, the likeliest.
    plain = np.ones_like(problem.errors) - np.eye(len(problem.errors))
    bought = baseline(search.best_estimator_, problem.costs, error_costs=plain)
    return _total(problem, bought, test)


def streed(problem: TotalCostProblem, learn: Rows, test: Rows, n_jobs: int) -> float:
    """Optimal trees of depth 4, tuned; needs ``pystreed``."""
    from pystreed import STreeDCostSensitiveClassifier
    from pystreed.data import CostSpecifier

    prices = CostSpecifier(str(problem.file), len(problem.errors))
    model = STreeDCostSensitiveClassifier(max_depth=4, hyper_tune=True)
    model.fit(problem.X[learn], problem.y[learn], prices)
    # Its own score is scaled to be below 1: what rows cost is counted along the tree.
    ledger, totals = problem.costs, []
    for row, label in zip(problem.X[test], problem.y[test], strict=True):
        node, asked = model.get_tree(), set()
        while not node.is_leaf_node():
            asked.update(ledger.needs[node.feature])
            node = node.right_child if row[node.feature] else node.left_child
        totals.append(ledger.bill(sorted(asked), 0) + problem.errors[label, node.label])
    return float(np.mean(totals))


def _total(problem: TotalCostProblem, model: Any, test: Rows) -> float:
    X, y = problem.X[test], problem.y[test]
    return total_cost(model, X, y, error_costs=problem.errors).total


METHODS: dict[str, Method] = {
    "ours": ours,
    "nothing": nothing,
    "everything": everything,
    "streed": streed,
}
