"""Fits that continue a model (``warm_start=True``), and parameters that must not change then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from greedymiser.losses import Loss
from greedymiser.training.parameters import Parameters
from greedymiser.training.preparation import (
    Checked,
    Schema,
    costs_of_columns,
    read_categorical_features,
    read_error_costs,
    read_interaction_cst,
    read_monotonic_cst,
)

if TYPE_CHECKING:
    from greedymiser.estimators.base import Miser


def continuation(estimator: Miser, params: Parameters) -> Callable[[Checked], Schema]:
    """What is known stays; parameters that would change its meaning are refused."""
    schema = estimator.schema_
    if params.max_iter < estimator.n_iter_:
        raise ValueError(
            f"max_iter={params.max_iter} must not be less than n_iter_={estimator.n_iter_} "
            "when warm_start=True"
        )
    if params.charge != estimator.model_.charge:
        raise _changed("charge", "its accounts are kept the old way")
    if params.budget is not None and estimator.cost_ > params.budget:
        raise ValueError(
            f"budget={params.budget:g} is less than the {estimator.cost_:g} that the model costs "
            "before it is continued (warm_start=True); truncate it first"
        )

    def learn(checked: Checked) -> Schema:
        if costs_of_columns(params, schema.n_features, schema.columns) != schema.costs:
            raise _changed("costs", "its accounts are kept in the old ones")
        categorical = read_categorical_features(
            params.categorical_features, checked.X, schema.n_features, schema.columns
        )
        if sorted(categorical) != sorted(schema.categories):
            raise _changed("categorical_features", "its trees know other categories")
        if not _same_loss(schema.target.loss(params.loss, params.quantile), schema.loss):
            raise _changed("loss", "its trees were grown for another one")
        if read_monotonic_cst(params.monotonic_cst, schema) != schema.monotonic_cst:
            raise _changed("monotonic_cst", "its trees follow the old one")
        if read_interaction_cst(params.interaction_cst, schema) != schema.interactions:
            raise _changed("interaction_cst", "its trees follow the old one")
        # Trees do not depend on what errors cost: a continued model may decide anew.
        errors = read_error_costs(params.error_costs, schema.target, schema.loss)
        return replace(schema, error_costs=errors)

    return learn


def _changed(parameter: str, why: str) -> ValueError:
    return ValueError(
        f"{parameter} has changed since the model was begun, and {why}; continue it "
        f"(warm_start=True) with the same {parameter}, or fit anew with warm_start=False"
    )


def _same_loss(new: Loss, old: Loss) -> bool:
    """Whether two losses mean the same; what one of them learned from its data counts for both."""
    if new is old:
        return True
    if type(new) is not type(old):
        return False
    unset = {name for name, value in vars(new).items() if value is None}
    mine, theirs = (
        {name: value for name, value in vars(loss).items() if name not in unset}
        for loss in (new, old)
    )
    return bool(mine == theirs)
