"""Models for one task of which one is to be chosen: the front of a trade-off curve."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any

from greedymiser.model.predictor import Predictor, as_predictor

# What the models of a family have in common, so that one can answer in place of another.
SHARED = ("kind", "n_features", "feature_names", "costs")

# What a curve has and a family has not: the rows that it was measured on, and what it trained.
ONLY_CURVES = {
    "best_row", "pareto", "plot", "plot_features", "points", "report", "to_csv", "to_frame", "trace"
}  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class ModelFamily(Predictor):
    """Models for one task, from the cheapest to the best; it predicts as the best one does.

    ``greedymiser.load`` gives one back where a curve was saved.

    Attributes
    ----------
    models : tuple of Predictor
        The cheapest first; each is better than those before it.
    model_costs, scores : tuple of float
        What each model costs and scores, by the rows that the curve was measured on. Higher scores
        are better.
    scoring : str
        Name of the score.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from greedymiser import MiserRegressor, load, save, tradeoff_curve
    >>> X, y = load_diabetes(return_X_y=True)
    >>> curve = tradeoff_curve(
    ...     MiserRegressor(max_iter=10), X[:300], y[:300], X_val=X[300:], y_val=y[300:],
    ...     tradeoffs=[0.0, 100.0])
    >>> save(curve, "diabetes.miser")
    >>> family = load("diabetes.miser")
    >>> bool((family.best(2).predict(X) == curve.best(2, train=False).predict(X)).all())
    True
    """

    models: tuple[Predictor, ...] = ()
    model_costs: tuple[float, ...] = ()
    scores: tuple[float, ...] = ()
    scoring: str = ""

    @classmethod
    def of(
        cls,
        models: Sequence[Predictor],
        costs: Sequence[float],
        scores: Sequence[float],
        scoring: str,
        about: Mapping[str, Any] | None = None,
    ) -> ModelFamily:
        """A family of models in this order, the best one last; ``about`` is its, or is given."""
        if not models:
            raise ValueError("a family needs at least one model, got none")
        for model in models[:-1]:
            _check_alike(model, models[-1])
        best = {field.name: getattr(models[-1], field.name) for field in fields(Predictor)}
        return cls(
            **{**best, "about": best["about"] if about is None else about},
            models=tuple(models),
            model_costs=tuple(map(float, costs)),
            scores=tuple(map(float, scores)),
            scoring=scoring,
        )

    def best(self, budget: float | None = None) -> Predictor:
        """The best model that costs at most this; without a budget, the best of all."""
        if budget is None:
            return self.models[-1]
        if not isinstance(budget, Real):
            raise TypeError(f"budget must be a number, got {budget!r}")
        if not budget >= 0:
            raise ValueError(f"budget must not be negative, got {budget}")
        affordable = [i for i, cost in enumerate(self.model_costs) if cost <= budget]
        if not affordable:
            raise ValueError(
                f"no model costs at most {budget}; the cheapest costs {min(self.model_costs):g}"
            )
        return self.models[affordable[-1]]

    def __getattr__(self, name: str) -> Any:
        if name in ONLY_CURVES:
            raise AttributeError(
                f"a family of models, as load gives it back of a saved curve, has no {name!r}: it "
                "has the models of the curve's front (models, model_costs, scores, best); a curve "
                "is kept whole by pickle"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        costs, scores = self.model_costs, self.scores
        return (
            f"<ModelFamily of {len(self.models)} {self.kind}s, cost {costs[0]:g} to "
            f"{costs[-1]:g}, {self.scoring} {scores[0]:.4g} to {scores[-1]:.4g}>"
        )


def _check_alike(model: Predictor, other: Predictor) -> None:
    alike = all(
        getattr(model, name) is getattr(other, name) or getattr(model, name) == getattr(other, name)
        for name in SHARED
    )
    same_labels = all(
        getattr(model, name) is getattr(other, name)
        for name in ("classes", "categories", "error_costs")
    )
    if not alike or not (same_labels or _labels(model) == _labels(other)):
        raise ValueError(
            "models of a family must have the same features, costs, classes, categories and "
            "error costs"
        )


def _labels(model: Predictor) -> Any:
    known = {feature: labels.tolist() for feature, labels in model.categories.items()}
    errors = model.error_costs
    return (
        None if model.classes is None else model.classes.tolist(),
        None if errors is None else (errors.matrix.tolist(), errors.said.tolist()),
        known,
    )


def as_family(curve: Any, finish: Callable[[Any], Predictor] = as_predictor) -> ModelFamily:
    """The models of a curve's front, the cheapest first.

    Parameters
    ----------
    curve : TradeoffCurve or ModelFamily
    finish : callable
        Turns a fitted estimator into a Predictor.
    """
    if isinstance(curve, ModelFamily):
        return curve
    front = curve.pareto().sort_values("cost", ignore_index=True)
    if front.empty:
        raise ValueError("no model of the curve has a score, so there is none to keep")
    # A constant that is all that a small budget buys is a model, too.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = [finish(curve.best(cost, train=False)) for cost in front["cost"].tolist()]
    unit = {"cost_unit": curve.cost_unit} if curve.cost_unit else {}
    costs, scores = front["cost"].tolist(), front["score"].tolist()
    return ModelFamily.of(models, costs, scores, curve.scoring, {**models[-1].about, **unit})
