"""Predictors that stop early: a row pays only for the trees that it meets."""

from greedymiser.cascades.early_exit import EarlyExitClassifier, EarlyExitRanker
from greedymiser.cascades.gated import GatedClassifier, GatedRanker, GatedRegressor

__all__ = [
    "EarlyExitClassifier",
    "EarlyExitRanker",
    "GatedClassifier",
    "GatedRanker",
    "GatedRegressor",
]
