"""Models of other libraries: what they cost, and what a budget would save."""

from greedymiser.estimators.baselines.baseline import (
    Baseline,
    BaselineClassifier,
    BaselineRanker,
    BaselineRegressor,
    baseline,
)
from greedymiser.estimators.baselines.foreign_models import UnreadableModelError

__all__ = [
    "Baseline",
    "BaselineClassifier",
    "BaselineRanker",
    "BaselineRegressor",
    "UnreadableModelError",
    "baseline",
]
