from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, make_scorer

from greedymiser import MiserClassifier, MiserRegressor, load, save, tradeoff_curve
from greedymiser.losses import (
    AbsoluteError,
    BinaryLogLoss,
    LambdaMART,
    MultinomialLogLoss,
    Quantile,
    SquaredError,
)
from greedymiser.plotting import plot_curve, plot_receipt
from greedymiser.scoring.names import score_name


class OwnLoss(SquaredError):  # noqa: N818
    """Nobody knows what it is called."""


def named(model, X, y) -> float:
    return 0.0


@pytest.mark.parametrize(
    ("scoring", "loss", "name"),
    [
        ("loss", SquaredError(), "negative half the squared error"),
        (None, SquaredError(), "negative half the squared error"),
        ("loss", AbsoluteError(), "negative absolute error"),
        ("loss", Quantile(0.5), "negative quantile loss"),
        ("loss", BinaryLogLoss(), "negative log-loss"),
        ("loss", MultinomialLogLoss(3), "negative log-loss"),
        ("loss", LambdaMART(truncation=7), "NDCG@7 minus 1"),
        ("loss", OwnLoss(), "negative loss"),
        ("ndcg@5", LambdaMART(), "ndcg@5"),
        (named, SquaredError(), "named"),
    ],
)
def test_names(scoring, loss, name):
    assert score_name(scoring, loss) == name


@pytest.mark.parametrize("scoring", ["loss", None, "accuracy", named, make_scorer(accuracy_score)])
def test_one_name_everywhere(tmp_path, scoring):
    """On the curve, in plots, in reports and in files."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.standard_normal((90, 2)), columns=["a", "b"])
    y = np.arange(90) % 3
    model = MiserClassifier([1, 2], max_iter=2, n_jobs=1, scoring=scoring)
    name = score_name(scoring, MultinomialLogLoss(3))
    curve = tradeoff_curve(model, X, y, X_val=X, y_val=y, tradeoffs=[0.0])
    assert curve.scoring == name
    assert plot_curve(curve).get_ylabel() == f"validation {name}"
    fitted = curve.best()
    panel = plot_receipt(fitted).figure.axes[-1]
    assert panel.get_ylabel().split() == ["validation", *name.split()]  # over several lines
    save(fitted, tmp_path / "m.miser")
    assert load(tmp_path / "m.miser").about["score"] == name


def test_a_model_without_validation_has_no_score(tmp_path):
    X = np.random.default_rng(0).standard_normal((50, 2))
    model = MiserRegressor(max_iter=2, early_stopping=False, n_jobs=1).fit(X, X[:, 0])
    save(model, tmp_path / "m.miser")
    assert "score" not in load(tmp_path / "m.miser").about
