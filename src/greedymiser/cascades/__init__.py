"""Predictors that stop early: a row pays only for the trees that it meets."""

from greedymiser.cascades.early_exit import EarlyExitClassifier, EarlyExitRanker

__all__ = ["EarlyExitClassifier", "EarlyExitRanker"]
