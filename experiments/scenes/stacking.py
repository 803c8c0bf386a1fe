"""All that we have over cross-fitted machines: what each budget buys, by one meter.

Trees see what machines say of images that they have not seen: the machines of single descriptors,
or of averaged kernels of growing sets. The sets are those that misers buy, so that prices decide
what is looked at and a machine what it means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.methods import whole_curve
from experiments.scenes.images import Floats, Indices
from experiments.scenes.methods import ImageSplit, LabelledImages, result_row
from greedymiser.cascades import EarlyExitClassifier
from greedymiser.costs.cost_model import CostModel
from greedymiser.estimators import MiserClassifier

# How the methods are called in tables and figures.
CROSS_MISER = "miser, cross-fitted machines"
FRONTIER = "frontier"
GATES = "rows pay, with gates"
STAGED = "staged early exits"

# Milliseconds that an image may cost, on average where images pay for themselves.
BUDGETS = (
    1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 11.0, 15.0, 20.0, 25.0, 29.0, 40.0, 55.0, 75.0, 110.0, 150.0
)  # fmt: skip

# Trees over leads need few rounds: an argmax is one split of each class.
RATE, ROUNDS = 0.3, 30
# Rounds that each set of staged exits has, and thresholds between exits.
STAGE_ROUNDS = 4
THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 0.995, 1.0)


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
        parts = (LabelledImages(X[i], labels[i]) for i in (split.known, split.valid, split.test))
        return cls(*parts, costs, split, scale)

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
    estimator = seen.estimator(charge=charge, max_iter=ROUNDS, learning_rate=RATE)
    curve = whole_curve(
        estimator, seen.train.X, seen.train.y, X_val=seen.valid.X, y_val=seen.valid.y,
        search="frontier", effort=effort, scoring="neg_log_loss",
    )  # fmt: skip
    return [
        seen.row(method, budget, curve.best(budget, train=False))
        for budget in budgets
        if curve.best_row(budget)["cost"] > 0
    ]


# -- early exits between growing sets -------------------------------------------------------------


def staged_exits(seen: Opinions, n_sets: int, budgets: Sequence[float]) -> list[dict[str, Any]]:
    """Boosting that may look at a larger set every few rounds, and images that leave in between.

    One chain of sets begins with each of them. Validation log-loss chooses a chain and a threshold
    for each budget.
    """
    offers = [
        offer for first in range(n_sets) for offer in exits_of_chain(seen, range(first, n_sets))
    ]
    rows = []
    for budget in budgets:
        within = [offer for offer in offers if offer["valid_cost"] <= budget]
        if within:
            best = min(within, key=lambda offer: (offer["valid_loss"], offer["valid_cost"]))
            rows.append(best | {"method": STAGED, "parameter": budget})
    return rows


def exits_of_chain(seen: Opinions, chain: Sequence[int]) -> Iterator[dict[str, Any]]:
    """What each threshold of a chain of sets costs and scores, validation log-loss included."""
    model = grown_in_stages(seen, chain)
    early = EarlyExitClassifier(model, every=STAGE_ROUNDS, n_jobs=1)
    early.fit(seen.valid.X, seen.valid.y)
    whole = seen.row(STAGED, 0.0, model)
    swept = (early.sweep(part.X, thresholds=THRESHOLDS) for part in (seen.valid, seen.test))
    for on_valid, on_test in zip(*swept, strict=True):
        yield whole | {
            "valid_loss": log_loss(seen.valid.y, on_valid.raw),
            "valid_cost": float(on_valid.costs.mean()),
            "valid_score": float(np.mean(on_valid.raw.argmax(axis=0) == seen.valid.y)),
            "cost": float(on_test.costs.mean()),
            "score": float(np.mean(on_test.raw.argmax(axis=0) == seen.test.y)),
        }


def grown_in_stages(seen: Opinions, chain: Sequence[int]) -> MiserClassifier:
    """A model whose first rounds may spend what the first set of a chain costs, and so on."""
    n_classes = len(np.unique(seen.train.y))
    model = seen.estimator(learning_rate=RATE, max_iter=0, warm_start=True)
    n_rounds, may_look = 0, list[int]()
    for number in chain:
        n_rounds += STAGE_ROUNDS
        may_look += range(number * n_classes, (number + 1) * n_classes)
        budget = seen.costs.total(may_look) + seen.costs.tree_cost * n_rounds * n_classes
        # Sums of floats: a budget must not fail by their last digit.
        model.set_params(max_iter=n_rounds, budget=budget * (1 + 1e-9))
        model.fit(seen.train.X, seen.train.y)
    return model


def log_loss(labels: Indices, raw: Floats) -> float:
    """Mean log-loss of raw predictions, one row of them per class."""
    highest = raw.max(axis=0)
    total = highest + np.log(np.exp(raw - highest).sum(axis=0))
    return float(np.mean(total - raw[labels, np.arange(len(labels))]))
