"""Models for Vespa: LightGBM's JSON, and a rank profile with the cheap model first."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.bits import unpacked
from greedymiser.files.exports import (
    ExportedTrees,
    finite_single,
    nested,
    single_above,
    whole_ensemble,
)
from greedymiser.files.lightgbm_format import objective_of
from greedymiser.model.predictor import Predictor, as_predictor
from greedymiser.model.trees import Ensemble

# A rank feature or function, such as bm25(title), attribute(price) or fieldMatch(title).proximity.
RANK_FEATURE = re.compile(r"[A-Za-z_]\w*(\([^\"\\\s{};]*\))?(\.\w+)*")

NAME = re.compile(r"[A-Za-z_][\w-]*")


def to_vespa(
    model: Any,
    first: Any = None,
    *,
    schema: str,
    name: str = "greedymiser",
    rerank_count: int = 100,
) -> dict[str, str]:
    """Write a model for Vespa, and a rank profile that ranks by it.

    Parameters
    ----------
    model : fitted MiserRanker, MiserRegressor, or MiserClassifier of two classes
        Or a search of these, or a Predictor of one stage. The names of its columns are what Vespa
        computes them by: ``bm25(title)``, ``attribute(price)``, or functions of the profile.
    first : model, optional
        A cheaper one for the first phase, such as ``curve.best(budget=1)``: all matching documents
        are ranked by it, and the best of them by ``model``. Without it, ``model`` ranks all.
    schema : str
        The schema that the rank profile belongs to.
    name : str
        Name of the rank profile; the files of the models begin with it.
    rerank_count : int
        How many documents of each content node go to the second phase.

    Returns
    -------
    dict of str to str
        The text of each file, by its place in the application package.

    Raises
    ------
    ValueError
        If the format cannot express something in a model: several classes, categories that are not
        text, early exits, columns without names.

    Examples
    --------
    >>> import pandas as pd
    >>> import numpy as np
    >>> from greedymiser import MiserRanker, to_vespa
    >>> rng = np.random.default_rng(0)
    >>> X = pd.DataFrame(rng.random((60, 2)), columns=["bm25(title)", "attribute(price)"])
    >>> y, qid = (3 * X["bm25(title)"]).round(), np.repeat(range(6), 10)
    >>> model = MiserRanker(max_iter=5).fit(X, y, qid=qid)
    >>> sorted(to_vespa(model, model.truncate(2), schema="shop"))
    ['models/greedymiser-first.json', 'models/greedymiser.json', 'schemas/shop/greedymiser.profile']
    """
    for what, word in {"schema": schema, "name": name}.items():
        if not isinstance(word, str) or not NAME.fullmatch(word):
            raise ValueError(f"{what} must be a name of letters, digits, - and _, got {word!r}")
    if isinstance(rerank_count, bool) or not isinstance(rerank_count, int) or rerank_count < 1:
        raise ValueError(f"rerank_count must be a whole number from 1 on, got {rerank_count!r}")
    files = {f"models/{name}.json": _model(as_predictor(model))}
    phases = f'    first-phase {{\n        expression: lightgbm("{name}.json")\n    }}\n'
    if first is not None:
        files[f"models/{name}-first.json"] = _model(as_predictor(first))
        phases = (
            f'    first-phase {{\n        expression: lightgbm("{name}-first.json")\n    }}\n'
            f"    second-phase {{\n        rerank-count: {rerank_count}\n"
            f'        expression: lightgbm("{name}.json")\n    }}\n'
        )
    profile = f"rank-profile {name} inherits default {{\n{phases}}}\n"
    return {**files, f"schemas/{schema}/{name}.profile": profile}


def _model(predictor: Predictor) -> str:
    """The parts of what ``lightgbm.Booster.dump_model`` gives that Vespa reads."""
    ensemble = whole_ensemble(predictor, "Vespa")
    names = _checked_names(predictor)
    used = sorted(predictor.categories.keys() & predictor.features)
    categories = {feature: predictor.categories[feature].tolist() for feature in used}
    trees = ExportedTrees.of(ensemble)
    sizes = {feature: len(labels) for feature, labels in categories.items()}
    dump = {
        "name": "tree",
        "version": "v4",
        "num_class": 1,
        "num_tree_per_iteration": 1,
        "label_index": 0,
        "max_feature_idx": predictor.n_features - 1,
        "objective": objective_of(predictor),
        "average_output": False,
        "feature_names": names,
        "feature_infos": {
            names[f]: {"min_value": 0, "max_value": n - 1, "values": list(range(n))}
            for f, n in sizes.items()
        },
        "pandas_categorical": list(categories.values()),
        "tree_info": [
            {
                "tree_index": i,
                "tree_structure": _tree(trees.nodes_of(i), ensemble, sizes),
            }
            for i in range(len(trees.starts) - 1)
        ],
    }
    return json.dumps(dump, separators=(",", ":"), allow_nan=False)


def _checked_names(predictor: Predictor) -> list[str]:
    if predictor.loss.n_outputs > 1:
        raise ValueError(
            f"the model tells {len(predictor.classes_)} classes apart, and Vespa ranks by one score"
        )
    if predictor.names is None:
        raise ValueError(
            "the columns of the model have no names, and Vespa computes features by their names: "
            "fit on a data frame whose columns are called bm25(title) and so on"
        )
    for feature in predictor.features:
        name = predictor.names[feature]
        if not RANK_FEATURE.fullmatch(name):
            raise ValueError(
                f"{name!r} is no rank feature of Vespa, such as bm25(title), nor a function"
            )
        labels = predictor.categories.get(feature, np.empty(0)).tolist()
        if not all(isinstance(label, str) and '"' not in label for label in labels):
            raise ValueError(f"the categories of {name!r} must be text, without quotes, for Vespa")
    return list(predictor.names)


def _tree(nodes: NDArray[np.void], ensemble: Ensemble, sizes: dict[int, int]) -> Any:
    # Vespa asks x < threshold where LightGBM asks x <= threshold, in double or in float.
    thresholds = finite_single(single_above(nodes["threshold"])).tolist()

    def node(i: int, children: tuple[Any, Any] | None) -> dict[str, Any]:
        if children is None:
            return {"leaf_index": i, "leaf_value": float(nodes["value"][i])}
        feature, missing_left = int(nodes["feature"][i]), bool(nodes["missing_left"][i])
        left, right = children
        split: dict[str, Any] = {
            "split_index": i,
            "split_feature": feature,
            "default_left": missing_left,
        }
        if nodes["category_set"][i] < 0:
            split |= {"threshold": thresholds[i], "decision_type": "<="}
        else:
            is_left = unpacked(ensemble.category_sets[nodes["category_set"][i]], sizes[feature])
            # What is missing or unknown goes right there. Where ours goes left, the children change
            # places, and the set holds the known categories that went right.
            chosen = np.flatnonzero(is_left != missing_left).tolist()
            if missing_left:
                left, right = right, left
            if not chosen:
                return dict(right)
            split |= {
                "threshold": "||".join(map(str, chosen)),
                "decision_type": "==",
                "default_left": False,
            }
        return {**split, "missing_type": "NaN", "left_child": left, "right_child": right}

    return nested(nodes, node)
