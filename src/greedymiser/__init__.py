"""Boosted trees that pay for their features.

An implementation of "The Greedy Miser: Learning under Test-time Budgets" (Xu, Weinberger and
Chapelle, ICML 2012).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from greedymiser._version import __version__

if TYPE_CHECKING:
    from greedymiser.boosting import Action, Progress
    from greedymiser.cascades import EarlyExitClassifier, EarlyExitRanker
    from greedymiser.costs import CostModel, Ledger, Receipt
    from greedymiser.estimators import BudgetWarning, MiserClassifier, MiserRanker, MiserRegressor
    from greedymiser.metrics import ndcg_score
    from greedymiser.serving import Predictor, as_predictor
    from greedymiser.tradeoff import MiserSearchCV, TradeoffCurve, tradeoff_curve

# Where each public name lives. A room is entered when somebody asks for one of its names: to load
# and serve a model needs none of those that train.
_ROOM_OF = {
    name: room
    for room, names in {
        "boosting": ("Action", "Progress"),
        "cascades": ("EarlyExitClassifier", "EarlyExitRanker"),
        "costs": ("CostModel", "Ledger", "Receipt"),
        "estimators": ("BudgetWarning", "MiserClassifier", "MiserRanker", "MiserRegressor"),
        "metrics": ("ndcg_score",),
        "serving": ("Predictor", "as_predictor"),
        "tradeoff": ("MiserSearchCV", "TradeoffCurve", "tradeoff_curve"),
    }.items()
    for name in names
}

__all__ = [
    "Action",
    "BudgetWarning",
    "CostModel",
    "EarlyExitClassifier",
    "EarlyExitRanker",
    "Ledger",
    "MiserClassifier",
    "MiserRanker",
    "MiserRegressor",
    "MiserSearchCV",
    "Predictor",
    "Progress",
    "Receipt",
    "TradeoffCurve",
    "__version__",
    "as_predictor",
    "ndcg_score",
    "tradeoff_curve",
]


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_ROOM_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
