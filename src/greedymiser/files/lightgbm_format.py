"""LightGBM's text format, which LightGBM, treelite, ONNX Runtime and SHAP can read.

Raw predictions of what is written here equal ours bit for bit where the reader adds up float64 in
the order of the trees, as LightGBM does: the baseline is folded into the first tree of each output.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.bits import unpacked
from greedymiser.files.exports import (
    ExportedTrees,
    known_objective,
    readable_names,
    responds_as,
    single_below,
    whole_ensemble,
)
from greedymiser.losses import KNOWN_LOSSES, LambdaMART, MultinomialLogLoss
from greedymiser.model.predictor import Predictor, as_predictor
from greedymiser.model.trees import Ensemble

# Losses of one output that LightGBM knows as well, by its names.
OBJECTIVES = {
    known.make: known.objective
    for known in KNOWN_LOSSES.values()
    if known.make is not MultinomialLogLoss
}

# Bits of LightGBM's decision_type. The two bits of the kind of missing values always say NaN:
# neither is there nothing missing, nor is zero.
CATEGORICAL, DEFAULT_LEFT, MISSING_IS_NAN = 1, 2, 2 << 2

# What LightGBM's feature names must not contain: blanks, control characters (a text ends at the
# first zero byte), halves of characters, and signs of JSON. With "=", some readers of the format
# mistake the line.
FORBIDDEN = re.compile(r'[\s\x00-\x1f\x7f-\x9f\ud800-\udfff\\",:\[\]{}=]+')

# LightGBM reads values that are no further from 0 than this as 0.
ZERO = float(np.float32(1e-35))

# Readers in C refuse numbers that are smaller than these and not 0.
TINY, TINY_SINGLE = np.finfo(np.float64).tiny, np.finfo(np.float32).tiny
HUGE_SINGLE = np.finfo(np.float32).max


def to_lightgbm(model: Any, *, dtype: Literal["float64", "float32"] = "float64") -> str:
    """Write a model in LightGBM's text format.

    Parameters
    ----------
    model : fitted MiserRegressor, MiserClassifier, MiserRanker or MiserSearchCV, or a Predictor \
            of one stage
    dtype : {"float64", "float32"}
        Type of the X that the exported model will see. For "float32", thresholds are rounded down
        to the next float32. That changes nothing for such an X, and readers that round thresholds
        to the nearest float32 themselves, as converters to ONNX do, then send every row the right
        way.

    Returns
    -------
    str
        For ``lightgbm.Booster(model_str=...)``, or a file that other tools read. LightGBM's
        predictions are those of ``predict``, or of ``predict_proba`` for classifiers (of two
        classes: the probability of the second). A loss of your own with a ``response`` of its own
        is written as LightGBM's "custom" objective, which predicts raw scores.

    Notes
    -----
    Categories are read as codes: see ``encode_for_lightgbm``. A warning says which feature names
    had to change. LightGBM reads values within 1e-35 of 0 as 0; a warning says which features have
    splits so close to 0.

    Examples
    --------
    >>> import lightgbm
    >>> from greedymiser import MiserRegressor, to_lightgbm
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = MiserRegressor(max_iter=10).fit(X, y)
    >>> booster = lightgbm.Booster(model_str=to_lightgbm(model))
    >>> bool((booster.predict(X) == model.predict(X)).all())
    True
    """
    if dtype not in ("float64", "float32"):
        raise ValueError(f"dtype must be 'float64' or 'float32', got {dtype!r}")
    predictor = as_predictor(model)
    whole = whole_ensemble(predictor, "LightGBM's format")
    _warn_of_splits_near_zero(whole, predictor.names)
    ensemble = _readable(whole, dtype)
    sizes = {feature: len(labels) for feature, labels in predictor.categories.items()}
    rate = _learning_rate(model)
    trees = [
        f"Tree={i}\n{_as_lines(tree)}\n\n"
        for i, tree in enumerate(_lines_of_trees(ExportedTrees.of(ensemble), sizes, rate))
    ]
    objective = _objective_name(predictor)
    header = _header(predictor, ensemble, _objective(objective, ensemble.n_outputs))
    # Bytes of each tree, so that LightGBM can read them side by side. Trees are plain ASCII.
    header["tree_sizes"] = _spaced(len(tree) for tree in trees)
    return (
        f"tree\n{_as_lines(header)}\n{''.join(trees)}end of trees\n\n"
        f"parameters:\n{_parameters(objective, ensemble, rate)}\nend of parameters\n\n"
        f"pandas_categorical:{_frame_categories(predictor)}\n"
    )


def encode_for_lightgbm(model: Any, X: Any) -> NDArray[np.floating]:
    """Turn X into what an exported model reads: numbers, with categories as codes.

    A category's code is its position among the sorted categories that the model knows; what is
    missing or unknown is NaN. An array that has no categorical columns is returned as it is.

    Parameters
    ----------
    model : the model that was exported
    X : array, sparse matrix or data frame of shape (n, n_features)

    Returns
    -------
    array of shape (n, n_features)
        Of a data frame, columns that the model does not use are NaN.

    Examples
    --------
    >>> import pandas as pd
    >>> from greedymiser import MiserRegressor
    >>> X = pd.DataFrame({"colour": pd.Categorical(["red", "blue"] * 30)})
    >>> model = MiserRegressor(max_iter=1).fit(X, [1.0, 2.0] * 30)
    >>> encode_for_lightgbm(model, X.head(2)).tolist()
    [[1.0], [0.0]]
    """
    predictor = as_predictor(model)
    table = predictor.table(X)
    return table.rows(0, table.n_rows, predictor.features)


def _learning_rate(model: Any) -> float:
    """The learning rate of an estimator, or the one that a file tells of; 1 if nobody knows."""
    if not isinstance(model, Predictor):
        for inside in ("estimator_", "best_estimator_"):
            model = getattr(model, inside, model)
        return float(getattr(model, "learning_rate", 1.0))
    about: Any = model.about
    while isinstance(about, Mapping) and "base" in about:  # what exits were made from
        about = about["base"]
    parameters = about.get("parameters") if isinstance(about, Mapping) else None
    rate: Any = parameters.get("learning_rate") if isinstance(parameters, Mapping) else None
    # Nobody has checked what a file tells.
    if type(rate) in (int, float) and 0 < rate <= sys.float_info.max:
        return float(rate)
    return 1.0


def _warn_of_splits_near_zero(ensemble: Ensemble, names: Sequence[str] | None) -> None:
    nodes = ensemble.nodes
    size = np.abs(nodes["threshold"])
    numeric = (nodes["feature"] >= 0) & (nodes["category_set"] < 0)
    near = np.unique(nodes["feature"][numeric & (size > 0) & (size <= ZERO)])
    if len(near):
        listed = ", ".join(repr(names[f]) if names else f"feature {f}" for f in near.tolist())
        warnings.warn(
            f"LightGBM reads values within 1e-35 of 0 as 0, and the model tells such values of "
            f"{listed} apart: scale them up before you fit, or predictions may differ",
            stacklevel=3,
        )


# -- the header ------------------------------------------------------------------------------


def _header(predictor: Predictor, ensemble: Ensemble, objective: str) -> dict[str, str]:
    return {
        "version": "v4",
        "num_class": str(ensemble.n_outputs),
        "num_tree_per_iteration": str(ensemble.n_outputs),
        "label_index": "0",
        "max_feature_idx": str(ensemble.n_features - 1),
        "objective": objective,
        "feature_names": " ".join(
            readable_names(predictor.names, FORBIDDEN, "LightGBM")
            or (f"Column_{i}" for i in range(ensemble.n_features))
        ),
        "feature_infos": " ".join(_feature_infos(predictor, ensemble)),
    }


def _objective_name(predictor: Predictor) -> str:
    """Name of the objective whose link is ours: that is all that it means in a finished model."""
    loss = predictor.loss
    if predictor.kind == "ranker":  # which predicts raw scores, whatever the loss
        return "lambdarank" if isinstance(loss, LambdaMART) else "regression"
    if loss.n_outputs > 1:
        return "multiclass" if responds_as(loss, MultinomialLogLoss) else "custom"
    return known_objective(loss, OBJECTIVES) or "custom"


def objective_of(predictor: Predictor) -> str:
    """LightGBM's objective of a model, with its parameters."""
    return _objective(_objective_name(predictor), predictor.loss.n_outputs)


def _objective(name: str, n_outputs: int) -> str:
    more = {"binary": " sigmoid:1", "multiclass": f" num_class:{n_outputs}"}
    return name + more.get(name, "")


def _parameters(objective: str, ensemble: Ensemble, rate: float) -> str:
    """Parameters as LightGBM writes them; some readers look up the objective here."""
    parameters = {
        "boosting": "gbdt",
        "objective": objective,
        "num_class": ensemble.n_outputs,
        "num_iterations": max(1, ensemble.n_iter),
        "learning_rate": rate,
    }
    return "".join(f"[{name}: {value}]\n" for name, value in parameters.items())


def _feature_infos(predictor: Predictor, ensemble: Ensemble) -> list[str]:
    """Codes of a categorical feature, range of a numeric one's thresholds; "none" if unused."""
    nodes = ensemble.nodes
    numeric = nodes[(nodes["feature"] >= 0) & (nodes["category_set"] < 0)]
    low, high = np.full(ensemble.n_features, np.inf), np.full(ensemble.n_features, -np.inf)
    finite = numeric[np.isfinite(numeric["threshold"])]
    np.minimum.at(low, finite["feature"], finite["threshold"])
    np.maximum.at(high, finite["feature"], finite["threshold"])
    infos = ["none"] * ensemble.n_features
    for feature in np.unique(numeric["feature"]).tolist():
        ends = (low[feature], high[feature]) if low[feature] <= high[feature] else (0.0, 0.0)
        infos[feature] = f"[{float(ends[0])!r}:{float(ends[1])!r}]"
    for feature, labels in predictor.categories.items():
        infos[feature] = ":".join(map(str, range(len(labels)))) or "none"
    return infos


def _frame_categories(predictor: Predictor) -> str:
    """Categories of the categorical columns of a data frame, with which LightGBM encodes them.

    An empty list where they cannot be written: LightGBM then refuses frames with categories
    instead of making codes of its own.
    """
    if predictor.feature_names is None:
        return "[]"
    categories = [
        predictor.categories[feature].tolist() for feature in sorted(predictor.categories)
    ]
    if not all(isinstance(label, str | int | float) for labels in categories for label in labels):
        return "[]"
    return json.dumps(categories)


# -- trees ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _InnerNodes:
    """Inner nodes of a tree in LightGBM's terms."""

    # A number, or for categories the position among ``category_words``.
    threshold: NDArray[np.float64]
    decision_type: NDArray[np.int64]
    # Where left and right have changed places.
    turned: NDArray[np.bool_]
    # One bitset of 32-bit words for each categorical split.
    category_words: list[NDArray[np.uint32]]


def _lines_of_trees(
    trees: ExportedTrees, sizes: dict[int, int], rate: float
) -> Iterable[dict[str, str]]:
    """The lines of each tree."""
    for i in range(len(trees.starts) - 1):
        # LightGBM says 1 as well where it has added a bias to leaves that were scaled before.
        shown = 1.0 if i < trees.n_outputs else rate
        yield _lines_of_tree(trees.nodes_of(i), trees.category_sets, sizes, shown)


def _lines_of_tree(
    nodes: NDArray[np.void],
    sets: NDArray[np.uint64],
    sizes: dict[int, int],
    rate: float,
) -> dict[str, str]:
    is_inner = nodes["left"] >= 0
    inner, leaves = nodes[is_inner], nodes[~is_inner]
    splits = _splits(inner, sets, sizes)
    # Inner nodes and leaves are counted apart; leaf i is known as ~i, which is -1 - i.
    number = np.where(is_inner, np.cumsum(is_inner) - 1, ~(np.cumsum(~is_inner) - 1))
    left, right = number[inner["left"]], number[inner["left"] + 1]
    words = splits.category_words
    categories = {}
    if words:
        categories["cat_boundaries"] = _spaced(np.cumsum([0, *map(len, words)]))
        categories["cat_threshold"] = _spaced(np.concatenate(words))
    return {
        "num_leaves": str(len(leaves)),
        "num_cat": str(len(words)),
        "split_feature": _spaced(inner["feature"]),
        "split_gain": _floats(_single(inner["gain"])),
        "threshold": _floats(splits.threshold),
        "decision_type": _spaced(splits.decision_type),
        "left_child": _spaced(np.where(splits.turned, right, left)),
        "right_child": _spaced(np.where(splits.turned, left, right)),
        **categories,
        "leaf_value": _floats(_normal(leaves["value"])),
        "leaf_weight": _floats(_normal(leaves["hessian"])),
        "leaf_count": _spaced(leaves["count"]),
        "internal_value": _floats(_normal(inner["value"])),
        "internal_weight": _floats(_normal(inner["hessian"])),
        "internal_count": _spaced(inner["count"]),
        "is_linear": "0",
        "shrinkage": repr(rate),
    }


def _splits(
    inner: NDArray[np.void], sets: NDArray[np.uint64], sizes: dict[int, int]
) -> _InnerNodes:
    is_categorical = inner["category_set"] >= 0
    threshold = inner["threshold"].copy()
    threshold[is_categorical] = np.arange(np.count_nonzero(is_categorical))
    numeric_type = MISSING_IS_NAN | (DEFAULT_LEFT * inner["missing_left"].astype(np.int64))
    words = [
        _bitset(sets[node["category_set"]], sizes[int(node["feature"])], bool(node["missing_left"]))
        for node in inner[is_categorical]
    ]
    return _InnerNodes(
        threshold=threshold,
        decision_type=np.where(is_categorical, CATEGORICAL | MISSING_IS_NAN, numeric_type),
        turned=is_categorical & inner["missing_left"],
        category_words=words,
    )


def _bitset(
    category_set: NDArray[np.uint64], n_known: int, missing_left: bool
) -> NDArray[np.uint32]:
    """The categories that LightGBM sends left, as 32-bit words.

    It sends all others right, and with them what is missing or unknown. Where ours go left, the
    children change places, and the set holds the known categories that went right.
    """
    chosen = np.flatnonzero(unpacked(category_set, n_known) != missing_left)
    if len(chosen) == 0:  # some readers cannot read an empty set: take a code that nobody has
        chosen = np.array([n_known])
    marks = np.zeros(32 * (chosen[-1] // 32 + 1), dtype=np.uint8)
    marks[chosen] = 1
    return np.packbits(marks, bitorder="little").view("<u4").astype(np.uint32)


# -- numbers ----------------------------------------------------------------------------------


def _readable(ensemble: Ensemble, dtype: str) -> Ensemble:
    """The same trees with thresholds that all readers can read."""
    nodes = ensemble.nodes.copy()
    if dtype == "float32":
        nodes["threshold"] = single_below(nodes["threshold"])
    # Only values that are smaller still may change sides. LightGBM never writes 0 as a threshold,
    # so that lleaves takes it for a mistake.
    least = TINY if dtype == "float64" else TINY_SINGLE
    small = np.abs(nodes["threshold"]) < least
    nodes["threshold"][small] = np.where(nodes["threshold"][small] < 0, -least, least)
    return replace(ensemble, nodes=nodes)


def _normal(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values without those that are so small that C calls reading them an error."""
    return np.where(np.abs(values) < TINY, 0.0, values)


def _single(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values that can be read as single precision."""
    return np.where(np.abs(values) < TINY_SINGLE, 0.0, np.clip(values, -HUGE_SINGLE, HUGE_SINGLE))


def _floats(values: NDArray[np.float64]) -> str:
    """The shortest digits from which each float64 can be read back."""
    return " ".join(map(repr, values.tolist()))


def _spaced(numbers: Iterable[Any]) -> str:
    return " ".join(map(str, numbers))


def _as_lines(pairs: dict[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in pairs.items())
