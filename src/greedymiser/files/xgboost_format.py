"""XGBoost's JSON format: a model for ``xgboost.Booster``, and for what reads its files.

XGBoost compares and adds up in float32. Where it sees float32 values, every row takes the branches
that it takes here; sums are good for about seven digits.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.bits import unpacked
from greedymiser.files.exports import (
    ExportedTrees,
    known_objective,
    readable_names,
    shortest_single,
    single_above,
    whole_ensemble,
)
from greedymiser.losses import (
    AbsoluteError,
    BinaryLogLoss,
    Gamma,
    Huber,
    LambdaMART,
    Loss,
    MultinomialLogLoss,
    Poisson,
    Quantile,
    SquaredError,
)
from greedymiser.model.predictor import Predictor, as_predictor

# Objectives by the losses that have their link. What a finished model keeps of an objective is the
# link; Huber's loss is pseudo-Huber there, which would show if training went on.
OBJECTIVES: dict[type[Loss], str] = {
    SquaredError: "reg:squarederror",
    AbsoluteError: "reg:absoluteerror",
    Huber: "reg:pseudohubererror",
    Quantile: "reg:quantileerror",
    Poisson: "count:poisson",
    Gamma: "reg:gamma",
    BinaryLogLoss: "binary:logistic",
    LambdaMART: "rank:ndcg",
}

# The prediction whose raw score is 0: XGBoost writes its intercept as a prediction. Ours is in the
# first trees.
NO_INTERCEPT = {"binary:logistic": 0.5, "count:poisson": 1.0, "reg:gamma": 1.0}

# What XGBoost's feature names must not contain.
FORBIDDEN = re.compile(r"[\[\]<]+")

# XGBoost's mark for the parent of a root.
NO_PARENT = 2**31 - 1

# XGBoost's number for an array of 64-bit integers.
INTEGERS = 15


def to_xgboost(model: Any) -> str:
    """Write a model in XGBoost's JSON format.

    Parameters
    ----------
    model : fitted MiserRegressor, MiserClassifier, MiserRanker or MiserSearchCV, or a Predictor \
            of one stage

    Returns
    -------
    str
        For ``xgboost.Booster(model_file=bytearray(text, "utf-8"))``, or a file that ends in
        ``.json``. XGBoost's predictions are those of ``predict``, or of ``predict_proba`` for
        classifiers (of two classes: the probability of the second).

    Raises
    ------
    ValueError
        If the format cannot express something in the model: early exits, or a loss with a
        ``response`` that none of XGBoost's objectives has.

    Notes
    -----
    XGBoost looks at float32: of an X that is not float32 it sees the nearest one, which may lie on
    the other side of a threshold. Infinite values are refused by XGBoost. Categories are read as
    codes (see ``encode_for_lightgbm``); from a data frame by XGBoost itself where all of them are
    text or whole numbers. A warning says which feature names had to change.

    Examples
    --------
    >>> import numpy as np
    >>> import xgboost
    >>> from greedymiser import MiserRegressor, to_xgboost
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> X = X.astype(np.float32)
    >>> model = MiserRegressor(max_iter=10).fit(X, y)
    >>> booster = xgboost.Booster(model_file=bytearray(to_xgboost(model), "utf-8"))
    >>> bool(np.allclose(booster.predict(xgboost.DMatrix(X)), model.predict(X), rtol=1e-5))
    True
    """
    predictor = as_predictor(model)
    trees = ExportedTrees.of(whole_ensemble(predictor, "XGBoost's format"))
    objective = _objective(predictor)
    names = readable_names(predictor.names, FORBIDDEN, "XGBoost")
    n_features, n_outputs = predictor.n_features, trees.n_outputs
    learner = {
        "attributes": {},
        "feature_names": names or [],
        "feature_types": _feature_types(predictor) if names or predictor.categories else [],
        "gradient_booster": {"model": _booster(predictor, trees), "name": "gbtree"},
        "learner_model_param": {
            "base_score": f"{NO_INTERCEPT.get(str(objective['name']), 0.0):E}",
            "boost_from_average": "0",
            "num_class": str(n_outputs if n_outputs > 1 else 0),
            "num_feature": str(n_features),
            "num_target": "1",
        },
        "objective": objective,
    }
    return json.dumps({"learner": learner, "version": [3, 0, 0]}, separators=(",", ":"))


def _objective(predictor: Predictor) -> dict[str, Any]:
    loss = predictor.loss
    if predictor.kind == "ranker":  # which predicts raw scores, whatever the loss
        name: str | None = OBJECTIVES[LambdaMART if isinstance(loss, LambdaMART) else SquaredError]
    elif loss.n_outputs > 1:
        name = known_objective(loss, {MultinomialLogLoss: "multi:softprob"})
    else:
        name = known_objective(loss, OBJECTIVES)
    if name is None:
        raise ValueError(
            f"the loss {type(loss).__name__} has a response of its own, and none of XGBoost's "
            "objectives has the same: its predictions would be others"
        )
    # XGBoost refuses files in which the parameters of an objective are missing.
    parameters: dict[str, Any] = {"reg_loss_param": {"scale_pos_weight": "1"}}
    if name == "multi:softprob":
        parameters = {"softmax_multiclass_param": {"num_class": str(loss.n_outputs)}}
    elif name == "reg:pseudohubererror":
        parameters = {"pseudo_huber_param": {"huber_slope": str(getattr(loss, "delta", 1.0))}}
    elif name == "reg:quantileerror":
        alpha = getattr(loss, "quantile", 0.5)
        parameters = {"quantile_loss_param": {"quantile_alpha": f"[{alpha}]"}}
    elif name == "count:poisson":
        parameters = {"poisson_regression_param": {"max_delta_step": "0.7"}}
    elif name == "rank:ndcg":
        parameters = {"lambdarank_param": {}}
    elif name == "reg:absoluteerror":
        parameters = {}
    return {"name": name, **parameters}


def _feature_types(predictor: Predictor) -> list[str]:
    return ["c" if f in predictor.categories else "float" for f in range(predictor.n_features)]


def _booster(predictor: Predictor, trees: ExportedTrees) -> dict[str, Any]:
    n_trees, k = len(trees.starts) - 1, trees.n_outputs
    sizes = {feature: len(labels) for feature, labels in predictor.categories.items()}
    return {
        "cats": _frame_categories(predictor),
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(n_trees)},
        "iteration_indptr": list(range(0, n_trees + 1, k)),
        "tree_info": [i % k for i in range(n_trees)],
        "trees": [
            _tree(trees.nodes_of(i), trees.category_sets, sizes, i, predictor.n_features)
            for i in range(n_trees)
        ],
    }


def _tree(
    nodes: NDArray[np.void],
    sets: NDArray[np.uint64],
    sizes: dict[int, int],
    number: int,
    n_features: int,
) -> dict[str, Any]:
    is_inner = nodes["left"] >= 0
    left = nodes["left"].astype(np.int64)
    parents = np.full(len(nodes), NO_PARENT)
    parents[left[is_inner]] = parents[left[is_inner] + 1] = np.flatnonzero(is_inner)
    by_category = np.flatnonzero(nodes["category_set"] >= 0)
    chosen = [
        _right_codes(sets[nodes["category_set"][i]], sizes[int(nodes["feature"][i])])
        for i in by_category.tolist()
    ]
    threshold = np.where(nodes["category_set"] >= 0, 0.0, single_above(nodes["threshold"]))
    return {
        "base_weights": shortest_single(nodes["value"]),
        "categories": [code for codes in chosen for code in codes],
        "categories_nodes": by_category.tolist(),
        "categories_segments": np.cumsum([0, *map(len, chosen)])[:-1].tolist(),
        "categories_sizes": list(map(len, chosen)),
        "default_left": nodes["missing_left"].astype(int).tolist(),
        "id": number,
        "left_children": left.tolist(),
        "loss_changes": shortest_single(np.where(is_inner, nodes["gain"], 0.0)),
        "parents": parents.tolist(),
        "right_children": np.where(is_inner, left + 1, -1).tolist(),
        # In a leaf, the condition is its value.
        "split_conditions": shortest_single(np.where(is_inner, threshold, nodes["value"])),
        "split_indices": np.where(is_inner, nodes["feature"], 0).tolist(),
        "split_type": (nodes["category_set"] >= 0).astype(int).tolist(),
        "sum_hessian": shortest_single(nodes["hessian"]),
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(n_features),
            "num_nodes": str(len(nodes)),
            "size_leaf_vector": "1",
        },
    }


def _right_codes(category_set: NDArray[np.uint64], n_known: int) -> list[int]:
    """The codes that go right: XGBoost's sets hold those, ours the ones that go left."""
    right = np.flatnonzero(~unpacked(category_set, n_known)).tolist()
    return right or [n_known]  # a set must not be empty: a code that nobody has


def _frame_categories(predictor: Predictor) -> dict[str, Any]:
    """Categories of a data frame's columns, with which XGBoost finds their codes.

    Empty where the model knows no frame, or has others than text and whole numbers: XGBoost has no
    place for those.
    """
    categories = predictor.categories
    texts = {f: labels for f, labels in categories.items() if _all_are(labels, str)}
    numbers = {f: labels for f, labels in categories.items() if _all_are(labels, int)}
    if (
        predictor.feature_names is None
        or not categories
        or len(texts) + len(numbers) < len(categories)
    ):
        return {"enc": [], "feature_segments": [], "sorted_idx": []}
    encoded: list[dict[str, Any]] = []
    order: list[int] = []
    segments = [0]
    for feature in range(predictor.n_features):
        labels = categories[feature].tolist() if feature in categories else []
        if feature in numbers:
            encoded.append({"type": INTEGERS, "values": labels})
        else:
            parts = [label.encode() for label in labels]
            offsets = np.cumsum([0, *map(len, parts)]).tolist() if labels else []
            values = np.frombuffer(b"".join(parts), dtype=np.int8).tolist()
            encoded.append({"offsets": offsets, "values": values})
            labels = parts
        order += sorted(range(len(labels)), key=labels.__getitem__)
        segments.append(segments[-1] + len(labels))
    return {"enc": encoded, "feature_segments": segments, "sorted_idx": order}


def _all_are(labels: NDArray[Any], kind: type) -> bool:
    return all(type(label) is kind for label in labels.tolist())
