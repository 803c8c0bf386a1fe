"""All that we have over cross-fitted machines: what each budget buys, by one meter.

Trees see what machines say of images that they have not seen: the machines of single descriptors,
or of averaged kernels of growing sets. The sets are those that misers buy, so that prices decide
what is looked at and a machine what it means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.methods import whole_curve
from experiments.scenes.images import Floats, Indices
from experiments.scenes.methods import ImageSplit, LabelledImages, result_row
from greedymiser.costs.cost_model import CostModel
from greedymiser.estimators import MiserClassifier

# How the methods are called in tables and figures.
CROSS_MISER = "miser, cross-fitted machines"
FRONTIER = "frontier"
GATES = "rows pay"

# Milliseconds that an image may cost, on average where images pay for themselves.
BUDGETS = (
    1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 11.0, 15.0, 20.0, 25.0, 29.0, 40.0, 55.0, 75.0, 110.0, 150.0
)  # fmt: skip

# Trees over the leads of joint machines are stumps, and few: an argmax is one split of each class.
STUMPS: dict[str, Any] = {"learning_rate": 0.3, "max_iter": 30, "max_depth": 1, "max_bins": 255}


@dataclass(frozen=True, eq=False)
class Opinions:
    """What machines say of the images of a split, and what that costs."""

    train: LabelledImages
    valid: LabelledImages
    test: LabelledImages
    costs: CostModel
    split: ImageSplit
    # Settings of the trees.
    scale: Mapping[str, Any]

    @classmethod
    def of(
        cls, X: Floats, labels: Indices, split: ImageSplit, costs: CostModel,
        scale: Mapping[str, Any],
    ) -> Opinions:  # fmt: skip
        train, valid, test = (
            LabelledImages(X[i], labels[i]) for i in (split.known, split.valid, split.test)
        )
        return cls(train, valid, test, costs, split, scale)

    def estimator(self, **settings: Any) -> MiserClassifier:
        """Trees of the experiment's depth and leaves."""
        kept = {name: self.scale[name] for name in ("max_depth", "min_samples_leaf", "max_bins")}
        return MiserClassifier(costs=self.costs, n_jobs=1, **(kept | settings))

    def row(self, method: str, parameter: float, model: Any) -> dict[str, Any]:
        """A row of the table of curves."""
        return result_row(method, self.split, parameter, model, self.valid, self.test, self.costs)


def plain_misers(seen: Opinions, tradeoffs: Sequence[float]) -> list[dict[str, Any]]:
    """Algorithm 1 as written, with the rounds and the rate of the experiment."""
    estimator = seen.estimator(
        max_iter=seen.scale["max_iter"], learning_rate=seen.scale["learning_rate"]
    )
    curve = whole_curve(
        estimator, seen.train.X, seen.train.y, X_val=seen.valid.X, y_val=seen.valid.y,
        tradeoffs=tradeoffs, scoring="accuracy",
    )  # fmt: skip
    chosen = zip(curve.points.itertuples(), curve.models, strict=True)
    return [
        seen.row(CROSS_MISER, point.tradeoff, model.truncate(int(point.n_iter)))
        for point, model in chosen
    ]


def searched(
    seen: Opinions, method: str, charge: str, budgets: Sequence[float], effort: float
) -> list[dict[str, Any]]:
    """What a curve names for each budget: the frontier, or rows that pay for themselves.

    Validation log-loss chooses: it tells 300 images apart where accuracy does not.
    """
    estimator = seen.estimator(charge=charge, **STUMPS)
    curve = whole_curve(
        estimator, seen.train.X, seen.train.y, X_val=seen.valid.X, y_val=seen.valid.y,
        search="frontier", effort=effort, scoring="neg_log_loss",
    )  # fmt: skip
    return [
        seen.row(method, budget, curve.best(budget, train=False))
        for budget in budgets
        if curve.best_row(budget)["cost"] > 0
    ]
