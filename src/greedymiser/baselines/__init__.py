"""Models that people have already, on our meter: what they cost, and what a budget would save."""

from greedymiser.baselines.estimators import (
    Baseline,
    BaselineClassifier,
    BaselineRanker,
    BaselineRegressor,
    baseline,
)
from greedymiser.baselines.foreign_models import UnreadableModelError

__all__ = [
    "Baseline",
    "BaselineClassifier",
    "BaselineRanker",
    "BaselineRegressor",
    "UnreadableModelError",
    "baseline",
]
