"""Boosted trees that pay for their features.

An implementation of "The Greedy Miser: Learning under Test-time Budgets" (Xu, Weinberger and
Chapelle, ICML 2012).
"""

from greedymiser._version import __version__
from greedymiser.boosting import Action, Progress
from greedymiser.costs import CostModel, Ledger, Receipt
from greedymiser.estimators import BudgetWarning, MiserClassifier, MiserRanker, MiserRegressor
from greedymiser.metrics import ndcg_score
from greedymiser.tradeoff import MiserSearchCV, TradeoffCurve, tradeoff_curve

__all__ = [
    "Action",
    "BudgetWarning",
    "CostModel",
    "Ledger",
    "MiserClassifier",
    "MiserRanker",
    "MiserRegressor",
    "MiserSearchCV",
    "Progress",
    "Receipt",
    "TradeoffCurve",
    "__version__",
    "ndcg_score",
    "tradeoff_curve",
]
