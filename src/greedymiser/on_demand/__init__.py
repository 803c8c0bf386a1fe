"""Features on demand: sources of columns, what they cost, and prediction that fetches few of them.

``Sources`` registers functions, ``measure_costs`` times them, ``build_matrix`` makes the data to
train on, and ``OnDemandPredictor`` serves a model from raw objects.
"""

from greedymiser.on_demand.matrix import build_matrix
from greedymiser.on_demand.measuring import CostTable, MeasuredCosts, Timing, measure_costs
from greedymiser.on_demand.metrics import AnsweredObject, Observer
from greedymiser.on_demand.policies import SourcePolicy
from greedymiser.on_demand.predictor import OnDemandPredictor
from greedymiser.on_demand.receipts import ObjectReceipt, Question, Receipts
from greedymiser.on_demand.sources import (
    AcquisitionError,
    AcquisitionWarning,
    Source,
    Sources,
    SourceTimeoutError,
)

__all__ = [
    "AcquisitionError",
    "AcquisitionWarning",
    "AnsweredObject",
    "CostTable",
    "MeasuredCosts",
    "ObjectReceipt",
    "Observer",
    "OnDemandPredictor",
    "Question",
    "Receipts",
    "Source",
    "SourcePolicy",
    "SourceTimeoutError",
    "Sources",
    "Timing",
    "build_matrix",
    "measure_costs",
]
