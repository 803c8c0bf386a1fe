"""The parameters of the estimators: name, type, default and allowed values, each declared once.

The estimators are dataclasses over these, so that their signatures and checks are made from them;
what training reads is ``Parameters``, which knows nothing of scikit-learn's estimators.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from sklearn.utils._param_validation import HasMethods, Interval, RealNotInt, StrOptions

from greedymiser.data.binning import MAX_BINS


def parameter(default: Any, *constraints: Any) -> Any:
    """A parameter, and what values it may have in scikit-learn's terms; none for any."""
    allowed = list(constraints) or "no_validation"
    return field(default=default, metadata={"constraints": allowed})


def constraints_of(kind: Any) -> dict[str, Any]:
    """What values the parameters of a class, or of an object of it, may have."""
    return {f.name: f.metadata["constraints"] for f in fields(kind) if "constraints" in f.metadata}


def at_least(number: int) -> Interval:
    """Integers from a number on."""
    return Interval(Integral, number, None, closed="left")


BUDGET = Interval(Real, 0, np.inf, closed="both")
NOT_NEGATIVE = Interval(Real, 0, None, closed="left")


@dataclass(eq=False, repr=False)
class TrainingParameters:
    """What a user may choose of every training. ``estimators.Miser`` says what each means."""

    costs: Any = parameter(None)
    tradeoff: float = parameter(0.0, NOT_NEGATIVE)
    budget: float | None = parameter(None, BUDGET, None)
    loss: Any = parameter("auto", str, HasMethods(["gradients"]))
    step: str = parameter("newton", StrOptions({"newton", "gradient"}))
    init: str = parameter("prior", StrOptions({"prior", "zero"}))
    learning_rate: float = parameter(0.1, Interval(Real, 0, None, closed="neither"))
    max_iter: int = parameter(300, at_least(1))
    max_depth: int | None = parameter(4, at_least(1), None)
    max_leaf_nodes: int | None = parameter(None, at_least(2), None)
    min_samples_leaf: int = parameter(20, at_least(1))
    l2_regularization: float = parameter(0.0, NOT_NEGATIVE)
    max_bins: int = parameter(MAX_BINS, Interval(Integral, 2, MAX_BINS, closed="both"))
    categorical_features: Any = parameter(
        "from_dtype", "array-like", StrOptions({"from_dtype"}), None
    )
    monotonic_cst: Any = parameter(None, "array-like", dict, None)
    early_stopping: Any = parameter("auto", StrOptions({"auto"}), "boolean")
    n_iter_no_change: int = parameter(10, at_least(1))
    validation_fraction: float | int | None = parameter(
        0.1, Interval(Real, 0, 1, closed="neither"), at_least(1), None
    )
    tol: float = parameter(1e-7, NOT_NEGATIVE)
    shopping_interval: int = parameter(1, at_least(1))
    subsample: float = parameter(1.0, Interval(Real, 0, 1, closed="right"))
    max_features: float | int = parameter(
        1.0, Interval(RealNotInt, 0, 1, closed="right"), at_least(1)
    )
    interaction_cst: Any = parameter(
        None, list, tuple, StrOptions({"pairwise", "no_interactions"}), None
    )
    charge: Any = parameter("model", StrOptions({"model", "row"}))
    row_budget: float | None = parameter(None, BUDGET, None)


@dataclass(eq=False, repr=False)
class RegressorParameters:
    """What only regressors have."""

    quantile: float | None = parameter(None, Interval(Real, 0, 1, closed="neither"), None)


@dataclass(eq=False, repr=False)
class ClassifierParameters:
    """What only classifiers have."""

    class_weight: Any = parameter(None, dict, StrOptions({"balanced"}), None)
    error_costs: Any = parameter(None)


@dataclass(eq=False)
class Parameters(ClassifierParameters, RegressorParameters, TrainingParameters):
    """What training reads; parameters that an estimator does not have are the defaults."""

    @classmethod
    def of(cls, estimator: Any) -> Self:
        """Take the parameters of an estimator that has checked them."""
        chosen = estimator.get_params(deep=False)
        return cls(**{f.name: chosen[f.name] for f in fields(cls) if f.name in chosen})
