"""LightGBM's models, read from its text format."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from greedymiser.data.tables import Categories
from greedymiser.estimators.baselines.foreign_models import (
    Floats,
    ForeignModel,
    UnreadableModelError,
    check_number_of_categories,
    log_loss_of,
    make_ensemble,
    make_tree,
    sorted_labels,
    with_scaled_values,
)
from greedymiser.losses import Kind, LambdaMART, Loss, Poisson, SquaredError
from greedymiser.model.trees import Tree

# Bits of decision_type: categorical, default left, and in the next two how missing values look.
CATEGORICAL, DEFAULT_LEFT = 1, 2
MISSING_IS_ZERO, MISSING_IS_NAN = 1, 2

# Objectives whose predictions are raw scores, or their exponentials.
IDENTITY = {
    "regression",
    "regression_l1",
    "huber",
    "fair",
    "quantile",
    "mape",
    "custom",
    "none",
    "",
}
EXPONENTIAL = {"poisson", "gamma", "tweedie"}
RANKING = {"lambdarank", "rank_xendcg"}


def read_lightgbm(model: Any) -> ForeignModel:
    """Read a Booster, or an estimator of LightGBM's."""
    import lightgbm

    # Not by getattr's default: what is not fitted raises an AttributeError of its own.
    booster = model if isinstance(model, lightgbm.Booster) else model.booster_
    text = booster.model_to_string(num_iteration=booster.best_iteration)
    head, *blocks = re.split(r"\n\nTree=\d+\n", text.partition("\nend of trees")[0])
    about = _entries(head)
    n_features = int(about["max_feature_idx"]) + 1
    parts = about["objective"].split() if "objective" in about else [""]
    options = dict(part.split(":") for part in parts[1:] if ":" in part)
    n_outputs = int(about["num_tree_per_iteration"])
    kind, loss, n_classes = _meaning(parts[0], parts[1:], n_outputs)
    categories, codes = _known_categories(text, about, blocks)
    trees = [_tree(_entries(block), codes) for block in blocks]
    ensemble = make_ensemble(trees, np.zeros(n_outputs), n_features)
    factor = float(options.get("sigmoid", 1)) if parts[0] == "binary" else 1.0
    is_mean = "average_output" in about  # a random forest
    if is_mean:
        factor /= max(1, ensemble.n_iter)
    classes = getattr(model, "classes_", np.arange(n_classes)) if kind == "classifier" else None

    def answer(rows: Floats) -> Floats:
        raw = booster.predict(rows, raw_score=True, num_iteration=booster.best_iteration)
        return np.asarray(raw).T * factor  # which LightGBM applies later

    names = booster.feature_name()
    is_named = names != [f"Column_{i}" for i in range(n_features)]
    return ForeignModel(
        library=f"LightGBM {lightgbm.__version__}",
        kind=kind,
        ensemble=ensemble if factor == 1.0 else with_scaled_values(ensemble, factor),
        loss=loss,
        classes=classes,
        names=tuple(names) if is_named else None,
        answer=answer,
        categories=categories,
        codes=codes,
        is_mean=is_mean,
    )


def _entries(block: str) -> dict[str, str]:
    """The lines of a block, name=value; a name alone has no value."""
    pairs = (line.partition("=") for line in block.splitlines() if line)
    return {name: value for name, _, value in pairs}


def _meaning(objective: str, options: list[str], n_outputs: int) -> tuple[Kind, Loss, int]:
    """What the raw predictions of an objective are, and of how many classes."""
    if objective == "binary":
        return "classifier", log_loss_of(2), 2
    if objective == "multiclass":
        return "classifier", log_loss_of(n_outputs), n_outputs
    if objective in RANKING:
        return "ranker", LambdaMART(), 0
    if n_outputs == 1 and "sqrt" not in options:
        if objective in IDENTITY:
            return "regressor", SquaredError(), 0
        if objective in EXPONENTIAL:
            return "regressor", Poisson(), 0
    text = " ".join([objective, *options])
    raise UnreadableModelError(
        f"predictions of LightGBM's objective {text!r} are none of ours: it must be binary, "
        "multiclass, a ranking or a regression without sqrt"
    )


def _numbers_in(text: str, dtype: Any) -> NDArray[Any]:
    return np.array(text.split(), dtype=dtype)


def _tree(entries: Mapping[str, str], codes: Mapping[int, Floats]) -> Tree:
    if entries.get("is_linear", "0") != "0":
        raise UnreadableModelError("its trees are linear in the leaves (linear_tree), ours are not")
    leaf_value = _numbers_in(entries["leaf_value"], np.float64)
    if entries["num_leaves"] == "1":
        one = np.zeros(1)
        return make_tree(one, one, np.array([-1]), np.array([-1]), leaf_value, one)
    feature = _numbers_in(entries["split_feature"], np.int64)
    threshold = _numbers_in(entries["threshold"], np.float64)
    decision = _numbers_in(entries["decision_type"], np.int64)
    # Leaf i is written ~i; here leaves follow the inner nodes.
    n_inner, n_leaves = len(feature), len(leaf_value)
    left, right = (
        np.where(child < 0, n_inner + ~child, child)
        for child in (_numbers_in(entries[f"{side}_child"], np.int64) for side in ("left", "right"))
    )
    looks = (decision >> 2) & 3
    if (looks == MISSING_IS_ZERO).any():
        raise UnreadableModelError(
            "it takes 0 for a missing value (zero_as_missing), which our trees do not"
        )
    # Where nothing was missing in training, NaN counts as 0.
    missing_left = np.where(looks == MISSING_IS_NAN, (decision & DEFAULT_LEFT) > 0, threshold >= 0)
    is_categorical = (decision & CATEGORICAL) > 0
    sets = {
        int(node): _codes_in(entries, int(threshold[node]), codes[int(feature[node])])
        for node in np.flatnonzero(is_categorical)
    }
    pad = np.zeros(n_leaves)
    return make_tree(
        feature=np.append(feature, pad),
        threshold=np.append(np.where(is_categorical, 0.0, threshold), pad),
        left=np.append(left, np.full(n_leaves, -1)),
        right=np.append(right, np.full(n_leaves, -1)),
        value=np.append(_numbers_in(entries["internal_value"], np.float64), leaf_value),
        missing_left=np.append(missing_left & ~is_categorical, pad),
        gain=np.append(_numbers_in(entries["split_gain"], np.float64), pad),
        sets=sets,
    )


# -- categories -----------------------------------------------------------------------------------


def _known_categories(
    text: str, about: Mapping[str, str], blocks: Iterable[str]
) -> tuple[Categories, dict[int, Floats]]:
    """Known categories of each feature, and LightGBM's numbers for them."""
    # "-1:4:2" are categories, "[0:1]" is a range.
    infos = about["feature_infos"].split()
    numbers = {
        feature: {int(part) for part in info.split(":")} - {-1}
        for feature, info in enumerate(infos)
        if info != "none" and not info.startswith("[")
    }
    labels = json.loads(text.rpartition("pandas_categorical:")[2] or "null") or []
    listed = re.search(r"^\[categorical_feature: ([\d,]*)\]$", text, re.MULTILINE)
    columns = [int(part) for part in (listed[1].split(",") if listed and listed[1] else [])]
    if labels and len(labels) != len(columns):
        raise UnreadableModelError(
            f"it knows {len(labels)} lists of categories for {len(columns)} categorical columns"
        )
    categories: Categories = {}
    codes: dict[int, Floats] = {}
    for feature in sorted({*numbers, *columns}):
        if labels:
            order, categories[feature] = sorted_labels(labels[columns.index(feature)])
            codes[feature] = order.astype(np.float64)
        else:
            categories[feature] = np.array(sorted(numbers.get(feature, ())), dtype=np.float64)
            codes[feature] = categories[feature]
        check_number_of_categories(feature, len(categories[feature]))
    return categories, codes


def _codes_in(entries: Mapping[str, str], which: int, values: Floats) -> list[int]:
    """Our codes of the categories in a set of LightGBM's."""
    bounds = _numbers_in(entries["cat_boundaries"], np.int64)
    words = _numbers_in(entries["cat_threshold"], np.uint32)[bounds[which] : bounds[which + 1]]
    return [
        code
        for code, value in enumerate(values.astype(np.int64).tolist())
        if value // 32 < len(words) and int(words[value // 32]) >> (value % 32) & 1
    ]
