"""Small trade-off curves with real models, for the tests of plots and of the report."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from greedymiser import CostModel, MiserClassifier, MiserRegressor
from greedymiser.curve.curve import TradeoffCurve, tradeoff_curve
from greedymiser.datasets import load_thyroid

TRADEOFFS = (0.0, 1e-4, 1e-3, 5e-3, 1e-2, 3e-2)


def trace(model: Any) -> pd.DataFrame:
    """Account of every prefix of a model, the constant one included."""
    rows = []
    for n_iter in range(model.n_iter_ + 1):
        short = model.truncate(n_iter)
        n_trees, features = short.ensemble_.n_trees, short.ensemble_.features
        rows.append(
            {
                "tradeoff": float(model.tradeoff),
                "n_iter": n_iter,
                "n_trees": n_trees,
                "feature_cost": short.costs_.total(features),
                "tree_cost": short.costs_.tree_cost * n_trees,
                "cost": short.cost_,
                "score": model.validation_score_[n_iter],
                "n_features": len(features),
            }
        )
    return pd.DataFrame(rows)


def curve_of(
    models: list[Any], scoring: str = "neg_log_loss", cost_unit: str = "dollars"
) -> TradeoffCurve:
    """Put fitted models with validation scores on a curve."""
    traces = pd.concat([trace(model) for model in models], ignore_index=True)
    return TradeoffCurve(traces, models, scoring, cost_unit)


def keep(curve: TradeoffCurve, chosen: list[int]) -> TradeoffCurve:
    """The same curve with some of its tradeoffs."""
    return curve_of([curve.models[i] for i in chosen], curve.scoring, curve.cost_unit)


@cache
def thyroid_curve(
    tradeoffs: tuple[float, ...] = TRADEOFFS, *, names: bool = True, tree_cost: float = 0.0
) -> TradeoffCurve:
    data = load_thyroid()
    costs: Any = data.costs
    if not names:
        costs = CostModel(data.costs.prices(), tree_cost=tree_cost)
    models = []
    for tradeoff in tradeoffs:
        model = MiserClassifier(costs=costs, tradeoff=tradeoff, max_iter=40, n_jobs=1)
        X, y = data.X_train, data.y_train
        models.append(model.fit(X[::2], y[::2], X_val=X[1::2], y_val=y[1::2]))
    return curve_of(models)


@cache
def wide_curve(n_features: int = 40, n_tradeoffs: int = 3) -> TradeoffCurve:
    """Every feature has its own price and counts for something; names are long."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1500, n_features))
    y = X @ np.linspace(2, 0.3, n_features) + rng.standard_normal(len(X))
    prices = {f"a rather long name of feature {i}": 1.5**i for i in range(n_features)}
    frame = pd.DataFrame(X, columns=list(prices))
    models = []
    for tradeoff in np.append(0.0, np.geomspace(1e-7, 0.5, n_tradeoffs - 1)):
        model = MiserRegressor(costs=prices, tradeoff=tradeoff, max_iter=40, n_jobs=1)
        models.append(model.fit(frame[:1000], y[:1000], X_val=frame[1000:], y_val=y[1000:]))
    return curve_of(models, scoring="neg_mean_squared_error", cost_unit="")


def with_test_scores(curve: TradeoffCurve) -> TradeoffCurve:
    """The same curve, as if test data had been given."""
    traces = curve.traces.assign(test_score=curve.traces.score - 0.01)
    return TradeoffCurve(traces, curve.models, curve.scoring, curve.cost_unit)


def searched_curve() -> TradeoffCurve:
    """As if a search had found the third and the fourth model."""
    curve = thyroid_curve()
    position = curve.traces["tradeoff"].map(TRADEOFFS.index)
    found = position.isin([2, 3]).map({True: "search", False: "path"})
    traces = curve.traces.assign(found_by=found, model=position)
    return TradeoffCurve(traces, curve.models, curve.scoring, curve.cost_unit)


def constant_curve() -> TradeoffCurve:
    """One model that found nothing worth its price."""
    curve = thyroid_curve((1e3,))
    assert curve.points.cost.tolist() == [0.0]
    return curve


@cache
def total_curve() -> TradeoffCurve:
    """Bills and errors in one unit."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 3))
    y = (X[:, 0] + X[:, 1] + 0.3 * rng.standard_normal(400) > 0).astype(int)
    model = MiserClassifier(
        costs=[0.5, 1.0, 3.0], max_iter=10, error_costs=[[0.0, 10.0], [20.0, 0.0]]
    )
    return tradeoff_curve(
        model, X[:200], y[:200], X_val=X[200:], y_val=y[200:], tradeoffs=3, effort=0.1,
        scoring="total_cost", cost_unit="dollars",
    )  # fmt: skip
