"""scikit-learn's boosters and forests, read from their fitted attributes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import sklearn
from numpy.typing import NDArray
from sklearn.base import is_classifier
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.utils.validation import check_is_fitted

from greedymiser.data.tables import Categories
from greedymiser.estimators.baselines.foreign_models import (
    Floats,
    ForeignModel,
    UnreadableModelError,
    below_in_single,
    log_loss_of,
    make_ensemble,
    make_tree,
    with_scaled_values,
)
from greedymiser.losses import Kind, Loss, Poisson, SquaredError, TiesToSecond
from greedymiser.model.trees import Ensemble, Tree

LIBRARY = f"scikit-learn {sklearn.__version__}"


class Shares(Loss):
    """What a forest says: probabilities as they are."""

    def __init__(self, n_outputs: int):
        self.n_outputs = n_outputs

    def response(self, raw: Floats) -> Floats:
        return np.clip(raw, 0.0, 1.0)


def read_sklearn(model: Any) -> ForeignModel:
    """Read a booster or a forest of scikit-learn."""
    for types, read in READERS:
        if isinstance(model, types):
            check_is_fitted(model)
            return read(model)
    raise UnreadableModelError(
        f"{type(model).__name__} is not one of the boosters and forests that are read: "
        f"{', '.join(sorted(kind.__name__ for kinds, _ in READERS for kind in kinds))}"
    )


def _column_names(model: Any) -> tuple[str, ...] | None:
    names = getattr(model, "feature_names_in_", None)
    return None if names is None else tuple(names.tolist())


def _quietly(function: Callable[[Floats], Any]) -> Callable[[Floats], Floats]:
    """Call a method with an array, also of a model that knows the names of columns."""

    def answer(rows: Floats) -> Floats:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return np.asarray(function(rows), dtype=np.float64).T

    return answer


def _kind_of(model: Any) -> Kind:
    return "classifier" if is_classifier(model) else "regressor"


# -- histogram boosting ---------------------------------------------------------------------------


def _read_histogram_boosting(model: Any) -> ForeignModel:
    # Categorical columns are encoded and come first.
    categories, place = _encoded_columns(model)
    predictors = [tree for together in model._predictors for tree in together]
    trees = [_histogram_tree(tree, place, categories) for tree in predictors]
    n_classes = len(model.classes_) if is_classifier(model) else 0
    loss: Loss = Poisson() if model.loss in ("poisson", "gamma") else SquaredError()
    return ForeignModel(
        library=LIBRARY,
        kind=_kind_of(model),
        ensemble=make_ensemble(trees, np.ravel(model._baseline_prediction), model.n_features_in_),
        loss=log_loss_of(n_classes) if n_classes else loss,
        classes=model.classes_ if n_classes else None,
        names=_column_names(model),
        answer=_histogram_answer(model, place),
        categories=categories,
        codes={column: np.arange(float(len(labels))) for column, labels in categories.items()},
    )


def _encoded_columns(model: Any) -> tuple[Categories, NDArray[np.intp]]:
    """Known categories, and the column of the data that each feature of the trees is."""
    mask = model.is_categorical_
    if mask is None or not mask.any():
        return {}, np.arange(model.n_features_in_)
    columns = np.flatnonzero(mask)
    encoder = model._preprocessor.named_transformers_["encoder"]
    known: Categories = {}
    for column, categories in zip(columns.tolist(), encoder.categories_, strict=True):
        labels = np.asarray(categories)
        if labels.dtype.kind not in "biuf":
            labels = labels.astype(object)
        known[column] = labels[[label == label and label is not None for label in labels.tolist()]]
    return known, np.concatenate([columns, np.flatnonzero(~mask)])


def _histogram_answer(model: Any, place: NDArray[np.intp]) -> Callable[[Floats], Floats]:
    """Raw predictions of rows whose categories are codes already."""
    bitsets = model._bin_mapper.make_known_categories_bitsets()

    def answer(rows: Floats) -> Floats:
        encoded = np.ascontiguousarray(rows[:, place])
        raw = np.repeat(np.reshape(model._baseline_prediction, (-1, 1)), len(rows), axis=1)
        for together in model._predictors:
            for k, tree in enumerate(together):
                raw[k] += tree.predict(encoded, *bitsets, 1)
        return raw

    return answer


def _histogram_tree(tree: Any, place: NDArray[np.intp], categories: Categories) -> Tree:
    nodes, bits = tree.nodes, tree.raw_left_cat_bitsets
    is_leaf = nodes["is_leaf"].astype(bool)
    sets = {
        int(node): [
            code
            for code in range(len(categories[int(place[nodes["feature_idx"][node]])]))
            if int(bits[nodes["bitset_idx"][node], code // 32]) >> (code % 32) & 1
        ]
        for node in np.flatnonzero(nodes["is_categorical"].astype(bool) & ~is_leaf)
    }
    return make_tree(
        feature=place[nodes["feature_idx"]],
        threshold=nodes["num_threshold"],
        left=np.where(is_leaf, -1, nodes["left"].astype(np.int64)),
        right=nodes["right"].astype(np.int64),
        value=nodes["value"],
        missing_left=nodes["missing_go_to_left"],
        gain=nodes["gain"],
        sets=sets,
    )


# -- boosting and forests of decision trees -------------------------------------------------------


def _decision_tree(tree: Any, output: int = 0, values: Floats | None = None) -> Tree:
    left = tree.children_left
    missing = getattr(tree, "missing_go_to_left", np.zeros(len(left), dtype=bool))
    return make_tree(
        feature=tree.feature,
        # Rows with x <= threshold go left, and x is float32.
        threshold=below_in_single(tree.threshold, strictly=False),
        left=left,
        right=tree.children_right,
        value=tree.value[:, 0, output] if values is None else values[:, output],
        missing_left=missing.astype(bool),
        gain=_impurity_drops(tree),
    )


def _impurity_drops(tree: Any) -> Floats:
    """Drop in impurity of each split, as a share of all training rows."""
    mass = tree.weighted_n_node_samples * tree.impurity
    inner = tree.children_left >= 0
    drops = np.zeros(len(mass))
    children = mass[tree.children_left[inner]] + mass[tree.children_right[inner]]
    drops[inner] = (mass[inner] - children) / tree.weighted_n_node_samples[0]
    return drops


def _read_gradient_boosting(model: Any) -> ForeignModel:
    if not isinstance(model.init_, str | DummyClassifier | DummyRegressor):
        raise UnreadableModelError(f"it starts from another model, init={model.init!r}")
    row = np.zeros((1, model.n_features_in_))
    baseline = np.ravel(model._raw_predict_init(row.astype(np.float32)))
    trees = [_decision_tree(tree.tree_) for tree in model.estimators_.ravel()]
    ensemble = with_scaled_values(make_ensemble(trees, baseline * 0.0, model.n_features_in_),
                      model.learning_rate)  # fmt: skip
    ensemble.baseline[:] = baseline
    n_classes = len(model.classes_) if is_classifier(model) else 0
    factor = 2.0 if model.loss == "exponential" else 1.0  # whose probabilities are expit(2 raw)
    function = model.decision_function if n_classes else model.predict
    return ForeignModel(
        library=LIBRARY,
        kind=_kind_of(model),
        ensemble=with_scaled_values(ensemble, factor),
        loss=_boosting_loss(n_classes),
        classes=model.classes_ if n_classes else None,
        names=_column_names(model),
        answer=_quietly(lambda rows: factor * function(rows)),
        allows_missing=False,
    )


def _boosting_loss(n_classes: int) -> Loss:
    """The loss of GradientBoosting, which says the second class where the log-odds are 0."""
    if n_classes == 0:
        return SquaredError()
    return TiesToSecond() if n_classes == 2 else log_loss_of(n_classes)


def _read_forest(model: Any) -> ForeignModel:
    if model.n_outputs_ > 1:
        raise UnreadableModelError(f"it predicts {model.n_outputs_} targets, our models have one")
    grown = [tree.tree_ for tree in model.estimators_]
    if is_classifier(model):
        return _read_voting_forest(model, grown)
    trees = [_decision_tree(tree) for tree in grown]
    return ForeignModel(
        library=LIBRARY,
        kind="regressor",
        ensemble=_mean_of_trees(trees, 1, model.n_features_in_),
        loss=SquaredError(),
        classes=None,
        names=_column_names(model),
        answer=_quietly(model.predict),
        is_mean=True,
        allows_missing=bool(model.__sklearn_tags__().input_tags.allow_nan),
    )


def _read_voting_forest(model: Any, grown: Sequence[Any]) -> ForeignModel:
    """Two classes share a tree; of more, each has a copy of every tree."""
    n_classes = len(model.classes_)
    outputs = [1] if n_classes == 2 else list(range(n_classes))
    shares = [tree.value[:, 0] / tree.value[:, 0].sum(axis=1, keepdims=True) for tree in grown]
    trees = [
        _decision_tree(tree, output, values)
        for tree, values in zip(grown, shares, strict=True)
        for output in outputs
    ]
    return ForeignModel(
        library=LIBRARY,
        kind="classifier",
        ensemble=_mean_of_trees(trees, len(outputs), model.n_features_in_),
        loss=Shares(len(outputs)),
        classes=model.classes_,
        names=_column_names(model),
        answer=_quietly(lambda rows: model.predict_proba(rows)[:, outputs]),
        has_copies=len(outputs) > 1,
        is_mean=True,
        allows_missing=bool(model.__sklearn_tags__().input_tags.allow_nan),
    )


def _mean_of_trees(trees: Sequence[Tree], n_outputs: int, n_features: int) -> Ensemble:
    ensemble = make_ensemble(trees, np.zeros(n_outputs), n_features)
    return with_scaled_values(ensemble, 1 / max(1, ensemble.n_iter))


READERS: tuple[tuple[tuple[type, ...], Callable[[Any], ForeignModel]], ...] = (
    ((HistGradientBoostingRegressor, HistGradientBoostingClassifier), _read_histogram_boosting),
    ((GradientBoostingRegressor, GradientBoostingClassifier), _read_gradient_boosting),
    (
        (
            RandomForestRegressor,
            RandomForestClassifier,
            ExtraTreesRegressor,
            ExtraTreesClassifier,
        ),
        _read_forest,
    ),
)
