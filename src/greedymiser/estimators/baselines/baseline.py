"""Finished models of other libraries as estimators: they predict as before, and have a bill."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from typing import Any, Literal, Self, cast

import numpy as np

from greedymiser.costs.cost_model import CostModel, as_cost_model
from greedymiser.estimators import (
    Miser,
    MiserClassifier,
    MiserRanker,
    MiserRegressor,
)
from greedymiser.estimators.baselines.foreign_models import (
    Floats,
    ForeignModel,
    UnreadableModelError,
    purchases_of,
    with_scaled_values,
)
from greedymiser.losses import Kind
from greedymiser.model.predictor import Charge
from greedymiser.training.parameters import constraints_of
from greedymiser.training.preparation import Schema, read_error_costs
from greedymiser.training.targets import Classes, Numbers, Target
from greedymiser.training.train import Model


class Baseline(Miser):
    """What the three baselines share.

    Parameters
    ----------
    model : fitted model of LightGBM, XGBoost or scikit-learn
    costs : CostModel, mapping from column name to cost, array of costs, or None
        What features cost. None means 1 for each.
    charge : {"model", "row"}
        Every row pays for all features of the model, or only for those on its own paths.
    n_jobs : int or None
        Threads; None for all cores.
    error_costs : matrix, data frame, mapping or None
        For classifiers: what errors cost, as in ``MiserClassifier``; answers are then those that
        are expected to cost least.

    Attributes
    ----------
    cost_ : float
        What a prediction costs at most: all trees, and all resources that any of them needs.
    features_used_, resources_used_ : list
    n_iter_ : int
    ensemble_ : Ensemble
        The trees.
    predictor_ : Predictor
        The model without its library, for serving and saving.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.ensemble import RandomForestRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> forest = RandomForestRegressor(2, max_depth=2, random_state=0).fit(X, y)
    >>> isinstance(baseline(forest), Baseline)
    True
    """

    @property
    def _parameter_constraints(self) -> dict[str, Any]:
        return {name: constraints_of(Miser)[name] for name in ("costs", "charge", "n_jobs")}

    def __init__(
        self,
        model: Any,
        costs: Any = None,
        charge: str = "model",
        n_jobs: int | None = None,
        error_costs: Any = None,
    ):
        self.model = model
        self.costs = costs
        self.charge = charge
        self.n_jobs = n_jobs
        self.error_costs = error_costs

    def __sklearn_clone__(self) -> Self:
        # The model is what a baseline is made of: a copy that has forgotten it would be nothing.
        return type(self)(self.model, self.costs, self.charge, self.n_jobs, self.error_costs)

    def fit(self, X: Any = None, y: Any = None, *_: Any, **__: Any) -> Self:
        """Read the trees. The data is ignored: the model is trained already."""
        return self.fit_to(read_model(self.model))

    def fit_to(self, foreign: ForeignModel) -> Self:
        """Become a model that was read."""
        self._validate_params()
        if foreign.kind != self._kind:
            raise TypeError(
                f"{type(self).__name__} needs a {self._kind}, and this model of {foreign.library} "
                f"is a {foreign.kind}; greedymiser.baseline chooses by itself"
            )
        foreign.check()
        n_features = foreign.ensemble.n_features
        names = _true_names(foreign.names, self.costs)
        costs = as_cost_model(self.costs, n_features, None if names is None else list(names))
        target = _target(type(self).__name__, foreign)
        if self.error_costs is not None and foreign.kind != "classifier":
            raise ValueError(f"error_costs are for classifiers, and this model is a {foreign.kind}")
        self.schema_ = Schema(
            foreign.kind, n_features, names, foreign.categories, target, costs, foreign.loss,
            seed=0,
            error_costs=read_error_costs(self.error_costs, target, foreign.loss),
        )  # fmt: skip
        purchases = purchases_of(foreign.ensemble, costs, self.schema_.name)
        charge = cast(Charge, self.charge)
        n_iter = foreign.ensemble.n_iter
        self.model_ = Model(
            foreign.ensemble,
            purchases,
            best_iter=n_iter,
            charge=charge,
            has_copies=foreign.has_copies,
        )
        self.n_features_in_ = n_features
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        self.is_mean_ = foreign.is_mean
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({"error_costs": None, **state})
        # Older pickles have it here and not in the model, which would pay for each copy of a tree.
        if self.__dict__.pop("has_copies_", False):
            self.model_ = replace(self.model_, has_copies=True)

    def truncate(self, n_iter: int) -> Self:
        """Return a copy that stops after ``n_iter`` rounds: of a forest, the mean of so many."""
        shorter = super().truncate(n_iter)
        if self.is_mean_:
            if n_iter == 0:
                raise ValueError(
                    f"n_iter must be at least 1, got {n_iter}: a forest without trees has no mean"
                )
            whole = with_scaled_values(shorter.ensemble_, self.n_iter_ / n_iter)
            ensemble = replace(whole, baseline=self.ensemble_.baseline)
            shorter.model_ = replace(shorter.model_, ensemble=ensemble)
        return shorter

    def _staged_raw_predict(self, X: Any) -> Iterator[Floats]:
        raw = super()._staged_raw_predict(X)
        return self._means(raw) if self.is_mean_ else raw

    def _means(self, staged: Iterator[Floats]) -> Iterator[Floats]:
        """Of a forest's predictions round by round: the means of so many trees."""
        start = self.ensemble_.baseline[:, None]
        for done, raw in enumerate(staged, start=1):
            yield start + (raw - start) * (self.n_iter_ / done)


class BaselineRegressor(Baseline, MiserRegressor):
    """A finished regression model; see ``baseline``.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.ensemble import RandomForestRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> forest = RandomForestRegressor(2, max_depth=2, random_state=0).fit(X, y)
    >>> bool(np.allclose(baseline(forest).predict(X), forest.predict(X)))
    True
    """


class BaselineClassifier(Baseline, MiserClassifier):
    """A finished classification model; see ``baseline``.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.ensemble import RandomForestClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> metered = baseline(RandomForestClassifier(2, random_state=0).fit(X, y))
    >>> metered.predict_proba(X).shape
    (150, 3)
    """


class BaselineRanker(Baseline, MiserRanker):
    """A finished ranking model; see ``baseline``.

    Examples
    --------
    >>> from lightgbm import LGBMRanker
    >>> X, y = np.arange(80.0).reshape(40, 2), np.arange(40) % 4
    >>> ranker = LGBMRanker(n_estimators=2, min_child_samples=5, verbose=-1, n_jobs=1)
    >>> baseline(ranker.fit(X, y, group=[20, 20])).predict(X).shape
    (40,)
    """


# Each has a module of this package.
LIBRARIES = ("lightgbm", "xgboost", "sklearn")

BASELINES: dict[Kind, type[Baseline]] = {
    "regressor": BaselineRegressor,
    "classifier": BaselineClassifier,
    "ranker": BaselineRanker,
}


def baseline(
    model: Any,
    costs: Any = None,
    *,
    charge: Literal["model", "row"] = "model",
    n_jobs: int | None = None,
    error_costs: Any = None,
) -> Any:
    """Compute what a finished model of another library costs.

    Its trees are read, and predict what they predicted before: to the last bit for LightGBM and
    HistGradientBoosting, to the precision of float32 for XGBoost. Features are paid for as in eq.
    3 of the paper, so that costs can be compared with those of the models of this library.

    Parameters
    ----------
    model : fitted model
        Of LightGBM or XGBoost (estimators or a ``Booster``), or scikit-learn's
        HistGradientBoosting, GradientBoosting, RandomForest or ExtraTrees.
    costs : CostModel, mapping from column name to cost, array of costs, or None
        What features cost. None means 1 for each.
    charge : {"model", "row"}
        Every row pays for all features of the model, or only for those on its own paths.
    n_jobs : int or None
        Threads; None for all cores.
    error_costs : matrix, data frame, mapping or None
        For classifiers: what errors cost, as in ``MiserClassifier``; answers are then those that
        are expected to cost least.

    Returns
    -------
    BaselineRegressor, BaselineClassifier or BaselineRanker
        Estimators with ``predict``, ``prediction_costs``, ``cost_``, ``features_used_``,
        ``receipt()`` and ``truncate``, over which early exits can be put.

    Examples
    --------
    >>> from sklearn.ensemble import HistGradientBoostingClassifier
    >>> from greedymiser import baseline
    >>> from greedymiser.datasets import load_thyroid
    >>> data = load_thyroid()
    >>> X, y = data.X_train, data.y_train
    >>> present = HistGradientBoostingClassifier(max_iter=20).fit(X, y)
    >>> metered = baseline(present, data.costs)
    >>> bool((metered.predict(X) == present.predict(X)).all())
    True
    >>> metered.cost_ > 50
    True
    """
    foreign = read_model(model)
    return BASELINES[foreign.kind](model, costs, charge, n_jobs, error_costs).fit_to(foreign)


def read_model(model: Any) -> ForeignModel:
    """Read a model, whichever library it is of."""
    model = getattr(model, "best_estimator_", model)
    for kind in type(model).__mro__:
        library = kind.__module__.partition(".")[0]
        if library in LIBRARIES:
            # Imported where somebody has a model of the library.
            reader = import_module(f"greedymiser.estimators.baselines.{library}_trees")
            return _of_several_classes(getattr(reader, f"read_{library}")(model))
    raise UnreadableModelError(
        "model must be a fitted booster or forest of LightGBM, XGBoost or scikit-learn, got "
        f"{type(model).__name__}"
    )


def _of_several_classes(foreign: ForeignModel) -> ForeignModel:
    if foreign.classes is not None and len(foreign.classes) < 2:
        raise UnreadableModelError(
            f"it knows one class only, {foreign.classes.tolist()}, and our classifiers need "
            "at least two"
        )
    return foreign


def _target(estimator: str, foreign: ForeignModel) -> Target:
    if foreign.classes is not None:
        return Classes(estimator, np.asarray(foreign.classes))
    return Numbers(estimator, is_ranking=foreign.kind == "ranker")


def _true_names(names: tuple[str, ...] | None, costs: Any) -> tuple[str, ...] | None:
    """Names of columns as the costs spell them: LightGBM writes "_" for a blank."""
    own_names = costs.feature_names if isinstance(costs, CostModel) else costs
    if names is None or not isinstance(own_names, list | dict):
        return names
    spelled = {re.sub(r"\s", "_", name): name for name in own_names if isinstance(name, str)}
    if set(names) <= set(own_names) or not set(names) <= set(spelled):
        return names
    return tuple(spelled[name] for name in names)
