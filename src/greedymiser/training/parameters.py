"""The parameters of an estimator, for those who do not know scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

from greedymiser.model.predictor import Charge


@dataclass(frozen=True)
class Parameters:
    """What a user may choose. ``greedymiser.estimators.Miser`` says what each means."""

    costs: Any = None
    tradeoff: float = 0.0
    budget: float | None = None
    loss: Any = "auto"
    step: str = "newton"
    init: str = "prior"
    learning_rate: float = 0.1
    max_iter: int = 300
    max_depth: int | None = 4
    max_leaf_nodes: int | None = None
    min_samples_leaf: int = 20
    l2_regularization: float = 0.0
    max_bins: int = 255
    categorical_features: Any = "from_dtype"
    monotonic_cst: Any = None
    early_stopping: Any = "auto"
    n_iter_no_change: int = 10
    validation_fraction: float | int | None = 0.1
    shopping_interval: int = 1
    subsample: float = 1.0
    max_features: float | int = 1.0
    interaction_cst: Any = None
    charge: Charge = "model"
    row_budget: float | None = None
    class_weight: Any = None
    error_costs: Any = None

    @classmethod
    def of(cls, estimator: Any) -> Self:
        """Take the parameters of an estimator that has checked them."""
        given = estimator.get_params(deep=False)
        return cls(
            **{field.name: given[field.name] for field in fields(cls) if field.name in given}
        )
