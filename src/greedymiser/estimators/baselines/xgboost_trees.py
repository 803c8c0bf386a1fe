"""XGBoost's models, read from its JSON format."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import logit

from greedymiser.data.tables import Categories
from greedymiser.estimators.baselines.foreign_models import (
    Floats,
    ForeignModel,
    UnreadableModelError,
    below_in_single,
    check_number_of_categories,
    log_loss_of,
    make_ensemble,
    make_tree,
    sorted_labels,
)
from greedymiser.losses import Kind, LambdaMART, Loss, Poisson, SquaredError
from greedymiser.model.trees import Tree

# Objectives whose predictions are raw scores, or their exponentials.
IDENTITY = {
    "reg:squarederror", "reg:linear", "reg:absoluteerror", "reg:pseudohubererror",
    "reg:quantileerror", "reg:squaredlogerror",
}  # fmt: skip
EXPONENTIAL = {"count:poisson", "reg:gamma", "reg:tweedie"}
TWO_CLASSES = {"binary:logistic"}
CLASSES = {"multi:softprob", "multi:softmax"}


def read_xgboost(model: Any) -> ForeignModel:
    """Read a Booster, or an estimator of XGBoost's."""
    import xgboost

    is_estimator = hasattr(model, "get_booster")
    booster = model.get_booster() if is_estimator else model
    _check_missing(getattr(model, "missing", None))
    if is_estimator and booster.attr("best_iteration") is not None:
        booster = booster[: int(booster.attr("best_iteration")) + 1]  # as it predicts itself
    learner = json.loads(bytes(booster.save_raw("json")).decode())["learner"]
    about, objective = learner["learner_model_param"], learner["objective"]["name"]
    n_classes, n_features = int(about["num_class"]), int(about["num_feature"])
    if int(about.get("num_target", 1)) > 1:
        raise UnreadableModelError("it predicts several targets, our models have one")
    kind, loss = _meaning(objective, n_classes)
    categories, codes = _known_categories(learner["gradient_booster"])
    trees, info = _trees(learner["gradient_booster"], codes)
    n_outputs = max(1, n_classes)
    # Trees of a round may lie class by class, several of each.
    of_output = [[tree for tree, k in zip(trees, info, strict=True) if k == c]
                 for c in range(n_outputs)]  # fmt: skip
    rounds = [tree for together in zip(*of_output, strict=True) for tree in together]
    baseline = np.broadcast_to(_prior(about["base_score"], objective), n_outputs)
    n_labels = 2 if objective in TWO_CLASSES else n_classes
    classes = getattr(model, "classes_", np.arange(n_labels)) if kind == "classifier" else None
    names = booster.feature_names

    def answer(rows: Floats) -> Floats:
        types = booster.feature_types
        table = xgboost.DMatrix(
            rows, feature_names=names, feature_types=types, enable_categorical=True
        )
        return np.asarray(booster.predict(table, output_margin=True), dtype=np.float64).T

    return ForeignModel(
        library=f"XGBoost {xgboost.__version__}",
        kind=kind,
        ensemble=make_ensemble(rounds, baseline, n_features),
        loss=loss,
        classes=None if classes is None else np.asarray(classes),
        names=None if names is None else tuple(names),
        answer=answer,
        categories=categories,
        codes=codes,
        is_mean=_is_forest(learner["gradient_booster"]),
    )


def _check_missing(marker: float | None) -> None:
    """Raise if an estimator takes a number for a missing value: its trees do not tell."""
    if marker is not None and not np.isnan(marker):
        raise UnreadableModelError(
            f"it takes {marker:g} for a missing value (missing={marker:g}), and ours only NaN: "
            f"train it with NaN for {marker:g} and without missing="
        )


def _meaning(objective: str, n_classes: int) -> tuple[Kind, Loss]:
    """What the raw predictions of an objective are."""
    if objective in TWO_CLASSES:
        return "classifier", log_loss_of(2)
    if objective in CLASSES:
        return "classifier", log_loss_of(n_classes)
    if objective.startswith("rank:"):
        return "ranker", LambdaMART()
    if objective in IDENTITY:
        return "regressor", SquaredError()
    if objective in EXPONENTIAL:
        return "regressor", Poisson()
    raise UnreadableModelError(
        f"predictions of XGBoost's objective {objective!r} are none of ours: it must be "
        "binary:logistic, multi:softprob, a ranking or a regression"
    )


def _prior(base_score: str, objective: str) -> Floats:
    """The raw prediction before the first tree; files have it as a prediction."""
    prior = np.array(json.loads(base_score), dtype=np.float64).ravel()
    if objective in TWO_CLASSES:
        prior = logit(prior)
    elif objective in EXPONENTIAL:
        prior = np.log(prior)
    # XGBoost adds it up in float32.
    return prior.astype(np.float32).astype(np.float64)


def _trees(booster: Mapping[str, Any], codes: Mapping[int, Floats]) -> tuple[list[Tree], list[int]]:
    """All trees, and the output of each."""
    if booster["name"] == "gblinear":
        raise UnreadableModelError("it is linear (gblinear) and has no trees")
    model = _model_of(booster)
    # Of DART; from XGBoost 3.4 on all boosters of trees may have them, beside the trees.
    weights = booster.get("weight_drop") or model.get("weight_drop")
    factors = weights or [1.0] * len(model["trees"])
    trees = [
        _tree(entries, factor, codes)
        for entries, factor in zip(model["trees"], factors, strict=True)
    ]
    return trees, model["tree_info"]


def _model_of(booster: Mapping[str, Any]) -> Mapping[str, Any]:
    trees: Mapping[str, Any] = booster.get("gbtree", booster)["model"]  # the first of an older DART
    return trees


def _is_forest(booster: Mapping[str, Any]) -> bool:
    """Whether all trees were grown at once, each for its share of one round (XGBRF...)."""
    model = _model_of(booster)
    at_once = int(model["gbtree_model_param"]["num_parallel_tree"])
    return at_once > 1 and model["tree_info"].count(0) == at_once


def _known_categories(booster: Mapping[str, Any]) -> tuple[Categories, dict[int, Floats]]:
    """Known categories of each feature, and XGBoost's codes of them, in the order of ours."""
    categories: Categories = {}
    codes: dict[int, Floats] = {}
    if booster["name"] == "gblinear":
        return categories, codes
    for feature, column in enumerate(_model_of(booster).get("cats", {}).get("enc", [])):
        labels = column["values"]
        if "offsets" in column:
            text = np.array(labels, dtype=np.int8).tobytes()
            labels = [text[a:b].decode() for a, b in itertools.pairwise(column["offsets"])]
        if labels:
            order, categories[feature] = sorted_labels(labels)
            codes[feature] = order.astype(np.float64)
            check_number_of_categories(feature, len(labels))
    return categories, codes


def _left_codes(entries: Mapping[str, Any], codes: Mapping[int, Floats]) -> dict[int, list[int]]:
    """Our codes of the categories that go left, by node; XGBoost has those that go right."""
    ends = np.add(entries["categories_segments"], entries["categories_sizes"]).tolist()
    parts = zip(entries["categories_nodes"], entries["categories_segments"], ends, strict=True)
    left = {}
    for node, start, end in parts:
        feature = entries["split_indices"][node]
        if feature not in codes:
            raise UnreadableModelError(
                "it splits by category, and its file does not say which categories there are; "
                "train it on a data frame (XGBoost from 3.1 on), or encode them as numbers"
            )
        right = set(entries["categories"][start:end])
        left[node] = [code for code, theirs in enumerate(codes[feature]) if theirs not in right]
    return left


def _tree(entries: Mapping[str, Any], factor: float, codes: Mapping[int, Floats]) -> Tree:
    if int(entries["tree_param"]["size_leaf_vector"]) > 1:
        raise UnreadableModelError("its leaves are vectors (multi_output_tree), ours are numbers")
    left, right = np.array(entries["left_children"]), np.array(entries["right_children"])
    conditions = np.array(entries["split_conditions"], dtype=np.float32)
    return make_tree(
        feature=np.array(entries["split_indices"]),
        # Rows with x < condition go left, and both are float32.
        threshold=below_in_single(conditions, strictly=True),
        left=left,
        right=right,
        # In a leaf, the condition is its value.
        value=np.where(left < 0, conditions, 0.0).astype(np.float64) * factor,
        missing_left=np.array(entries["default_left"], dtype=bool),
        gain=np.array(entries["loss_changes"], dtype=np.float64),
        sets=_left_codes(entries, codes),
    )
