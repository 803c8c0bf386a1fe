"""What a user writes, for ``mypy --strict``: `make lint` checks it, and the tests run it.

Where a mistake is made on purpose, mypy has to see it: an ignore that is not needed is an error.
"""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import numpy as np
import numpy.typing as npt

from greedymiser import (
    CostModel,
    EarlyExitClassifier,
    MiserClassifier,
    Predictor,
    Receipt,
    Sources,
    TradeoffCurve,
    load,
    save,
    tradeoff_curve,
)
from greedymiser.costs.cost_model import Purchase


def use_the_library(X: npt.NDArray[np.float64], y: npt.NDArray[np.int64], folder: Path) -> float:
    """Prices, a curve, a model for a budget, a file, and what predictions cost."""
    costs = CostModel({"age": 1.0, "TSH": 20.68}, tree_cost=0.1)
    model = MiserClassifier(costs=costs, tradeoff=1e-3, max_iter=5).fit(X, y)
    assert_type(model, MiserClassifier)
    assert_type(model.cost_, float)
    assert_type(model.prediction_costs(X), npt.NDArray[np.float64])
    assert_type(model.receipt(), Receipt)
    assert_type(model.receipt()[:1], Receipt)
    assert_type([line for line in model.receipt()], list[Purchase])
    curve = tradeoff_curve(model, X, y, X_val=X, y_val=y, tradeoffs=2, search="path")
    assert_type(curve, TradeoffCurve)
    save(model, folder / "m.miser", cost_unit="dollars")
    served = load(folder / "m.miser")
    assert_type(served, Predictor)
    assert_type(served.cost_, float)
    hasty = EarlyExitClassifier(model, threshold=0.9).fit(X, y)
    return float(hasty.prediction_costs(X).mean())


sources = Sources(raw="text")


@sources.columns("n_words")
def words(text: str) -> int:
    """A decorated function keeps its type."""
    return len(text.split())


assert_type(words("one two"), int)


def make_mistakes() -> None:
    """Mypy has to see every one of them."""
    CostModel([1.0], tree_cost="dear")  # type: ignore[arg-type]
    CostModel([1.0]).totals([0])  # type: ignore[attr-defined]
    tradeoff_curve(MiserClassifier(), [[0.0]], [0])  # type: ignore[call-arg]
    words(1)  # type: ignore[arg-type]
