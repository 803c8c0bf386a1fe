"""Boosted trees that pay for their features.

An implementation of "The Greedy Miser: Learning under Test-time Budgets" (Xu, Weinberger and
Chapelle, ICML 2012).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from greedymiser._core.version import __version__

if TYPE_CHECKING:
    from greedymiser._core.compiling import CacheWarning
    from greedymiser.cascades import (
        EarlyExitClassifier,
        EarlyExitRanker,
        GatedClassifier,
        GatedRanker,
        GatedRegressor,
    )
    from greedymiser.costs.cost_model import CostModel, Ledger, Receipt
    from greedymiser.curve.curve import TradeoffCurve, tradeoff_curve
    from greedymiser.curve.search import MiserSearchCV
    from greedymiser.estimators import BudgetWarning, MiserClassifier, MiserRanker, MiserRegressor
    from greedymiser.estimators.baselines import UnreadableModelError, baseline
    from greedymiser.files import (
        ModelFileError,
        encode_for_lightgbm,
        load,
        save,
        to_lightgbm,
        to_ltr,
        to_vespa,
        to_xgboost,
    )
    from greedymiser.losses.ndcg import ndcg_score
    from greedymiser.model.family import ModelFamily
    from greedymiser.model.predictor import Predictor, as_predictor
    from greedymiser.model.protocols import Protocol
    from greedymiser.on_demand import (
        AcquisitionError,
        AcquisitionWarning,
        OnDemandPredictor,
        Sources,
        SourceTimeoutError,
        build_matrix,
        measure_costs,
    )
    from greedymiser.plotting import ProtocolDisplay
    from greedymiser.scoring.total_cost import TotalCost, total_cost
    from greedymiser.training.boosting import Action, Progress

# Where each public name lives. A package is loaded when somebody asks for one of its names: to load
# and serve a model needs none of those that train.
_PACKAGE_OF = {
    name: package
    for package, names in {
        "on_demand": (
            "AcquisitionError",
            "AcquisitionWarning",
            "OnDemandPredictor",
            "SourceTimeoutError",
            "Sources",
            "build_matrix",
            "measure_costs",
        ),
        "estimators.baselines": ("UnreadableModelError", "baseline"),
        "training.boosting": ("Action", "Progress"),
        "cascades": (
            "EarlyExitClassifier",
            "EarlyExitRanker",
            "GatedClassifier",
            "GatedRanker",
            "GatedRegressor",
        ),
        "_core.compiling": ("CacheWarning",),
        "costs.cost_model": ("CostModel", "Ledger", "Receipt"),
        "estimators": ("BudgetWarning", "MiserClassifier", "MiserRanker", "MiserRegressor"),
        "losses.ndcg": ("ndcg_score",),
        "files": (
            "ModelFileError",
            "encode_for_lightgbm",
            "load",
            "save",
            "to_lightgbm",
            "to_ltr",
            "to_vespa",
            "to_xgboost",
        ),
        "plotting": ("ProtocolDisplay",),
        "model.protocols": ("Protocol",),
        "model.family": ("ModelFamily",),
        "model.predictor": ("Predictor", "as_predictor"),
        "scoring.total_cost": ("TotalCost", "total_cost"),
        "curve.search": ("MiserSearchCV",),
        "curve.curve": ("TradeoffCurve", "tradeoff_curve"),
    }.items()
    for name in names
}

__all__ = [
    "AcquisitionError",
    "AcquisitionWarning",
    "Action",
    "BudgetWarning",
    "CacheWarning",
    "CostModel",
    "EarlyExitClassifier",
    "EarlyExitRanker",
    "GatedClassifier",
    "GatedRanker",
    "GatedRegressor",
    "Ledger",
    "MiserClassifier",
    "MiserRanker",
    "MiserRegressor",
    "MiserSearchCV",
    "ModelFamily",
    "ModelFileError",
    "OnDemandPredictor",
    "Predictor",
    "Progress",
    "Protocol",
    "ProtocolDisplay",
    "Receipt",
    "SourceTimeoutError",
    "Sources",
    "TotalCost",
    "TradeoffCurve",
    "UnreadableModelError",
    "__version__",
    "as_predictor",
    "baseline",
    "build_matrix",
    "encode_for_lightgbm",
    "load",
    "measure_costs",
    "ndcg_score",
    "save",
    "to_lightgbm",
    "to_ltr",
    "to_vespa",
    "to_xgboost",
    "total_cost",
    "tradeoff_curve",
]


# Names that were here once, and where they went.
_MOVED = {
    "Cronus": (
        "it is part of the experiments of the paper now: experiments/cronus in the source "
        "repository. Cascades that were saved are loaded by greedymiser.load as before"
    ),
}


def __getattr__(name: str) -> Any:
    if name in _MOVED:
        raise AttributeError(f"module {__name__!r} has no {name!r} any more: {_MOVED[name]}")
    if name not in _PACKAGE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_PACKAGE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
