"""Models for the learning-to-rank plugins of OpenSearch and Elasticsearch.

Both take what XGBoost calls a dump (``model/xgboost+json``): nested trees that name their features.
They compute every feature of the feature set that a model was made from, used or not, so the set is
cut down to what the model uses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser.files.exports import (
    ExportedTrees,
    finite_single,
    nested,
    shortest_single,
    single_above,
    whole_ensemble,
)
from greedymiser.model.predictor import Predictor, as_predictor

# Templates in these languages may name other features of the set.
DERIVED = {"derived_expression", "script_feature"}


class LtrBodies(NamedTuple):
    """What is posted to a search engine, as JSON objects."""

    # POST _ltr/_featureset/<name>
    feature_set: dict[str, Any]
    # POST _ltr/_featureset/<name>/_createmodel
    model: dict[str, Any]


def to_ltr(model: Any, features: Any, *, name: str = "greedymiser") -> LtrBodies:
    """Write a model for the learning-to-rank plugin of OpenSearch or Elasticsearch.

    Parameters
    ----------
    model : fitted MiserRanker, MiserRegressor, or MiserClassifier of two classes
        Or a search of these, or a Predictor of one stage.
    features : list of dict, or dict
        The features of the search engine, each with a ``name`` and a ``template``; or the body
        ``{"featureset": {"features": [...]}}`` that they were created with. They are found by the
        names of the model's columns; where it has none, they are those of the columns in order.
    name : str
        Name of the model.

    Returns
    -------
    LtrBodies
        ``feature_set`` holds the features that the model uses, and those that they are derived
        from, as they were given and in their order. ``model`` is the body that creates the model.
        Its scores are those of ``decision_function``, or of ``predict`` of a ranker.

    Raises
    ------
    ValueError
        If a feature is missing, or the format cannot express something in the model: several
        classes, categories, early exits.

    Notes
    -----
    A feature whose query does not match a document is 0 to Elasticsearch's plugin, never missing:
    train on zeros there. OpenSearch sends missing values where the model says.

    Examples
    --------
    >>> import numpy as np
    >>> from greedymiser import MiserRanker, to_ltr
    >>> X = np.random.default_rng(0).random((60, 2))
    >>> model = MiserRanker(costs=[1.0, 5.0], tradeoff=1e-3, max_iter=5)
    >>> model = model.fit(X, (3 * X[:, 0]).round(), qid=np.repeat(range(6), 10))
    >>> features = [
    ...     {"name": field, "params": ["words"], "template": {"match": {field: "{{words}}"}}}
    ...     for field in ("title", "body")]
    >>> bodies = to_ltr(model, features)
    >>> [feature["name"] for feature in bodies.feature_set["featureset"]["features"]]
    ['title']
    """
    predictor = as_predictor(model)
    _check_ranks(predictor)
    if not isinstance(name, str) or not name:
        raise ValueError(f"name must be a string that is not empty, got {name!r}")
    features = _checked(features)
    names = _names_of_columns(predictor, [feature["name"] for feature in features])
    trees = ExportedTrees.of(whole_ensemble(predictor, "the plugin"))
    dump = [_tree(trees.nodes_of(i), names) for i in range(len(trees.starts) - 1)]
    used = _with_origins({names[feature] for feature in predictor.features}, features)
    used_features = [feature for feature in features if feature["name"] in used]
    if not used_features:
        raise ValueError("the model uses no feature, so there is nothing to rank by")
    return LtrBodies(
        feature_set={"featureset": {"features": used_features}},
        model={
            "model": {
                "name": name,
                "model": {
                    "type": "model/xgboost+json",
                    "definition": json.dumps(dump, separators=(",", ":"), allow_nan=False),
                },
            }
        },
    )


def _check_ranks(predictor: Predictor) -> None:
    if predictor.loss.n_outputs > 1:
        raise ValueError(
            f"the model tells {len(predictor.classes_)} classes apart, and a search engine ranks "
            "by one score"
        )
    categorical = sorted(set(predictor.features) & predictor.categories.keys())
    if categorical:
        names = predictor.names
        first = categorical[0] if names is None else names[categorical[0]]
        raise ValueError(
            f"feature {first!r} has categories, and features of the plugin are numbers: encode "
            "them as numbers before you fit"
        )


def _checked(features: Any) -> list[dict[str, Any]]:
    if isinstance(features, Mapping):
        inside = features.get("featureset", features)
        features = inside.get("features") if isinstance(inside, Mapping) else None
    if not isinstance(features, Sequence) or isinstance(features, str):
        raise TypeError(
            "features must be a list of features, or a dict with a featureset, got "
            f"{type(features).__name__}"
        )
    for feature in features:
        if not isinstance(feature, Mapping) or not isinstance(feature.get("name"), str):
            raise ValueError(f"a feature must be a dict with a name, got {feature!r}")
    names = [feature["name"] for feature in features]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"features has {twice[0]!r} twice")
    return [dict(feature) for feature in features]


def _names_of_columns(predictor: Predictor, names: list[str]) -> Sequence[str]:
    if predictor.names is None:
        if len(names) != predictor.n_features:
            raise ValueError(
                f"the model has {predictor.n_features} columns without names, and features has "
                f"{len(names)} entries: give one for each column, or fit on a data frame"
            )
        return names
    missing = [name for name in predictor.features_used_ if name not in names]
    if missing:
        raise ValueError(f"features has no {missing[0]!r}, which the model uses")
    return predictor.names


def _with_origins(used: set[str], features: Iterable[Mapping[str, Any]]) -> set[str]:
    """Features, and those that they are derived from, and so on."""
    templates = {
        feature["name"]: json.dumps(feature.get("template"))
        for feature in features
        if feature.get("template_language") in DERIVED
    }
    names = {feature["name"] for feature in features}
    new = used
    while new:
        words = {
            word for name in new & templates.keys() for word in re.findall(r"\w+", templates[name])
        }
        new = (names & words) - used
        used = used | new
    return used


def _tree(nodes: NDArray[np.void], names: Sequence[str]) -> Any:
    conditions = shortest_single(finite_single(single_above(nodes["threshold"])))
    values = shortest_single(nodes["value"])

    def node(i: int, children: tuple[Any, Any] | None) -> dict[str, Any]:
        if children is None:
            return {"nodeid": i, "leaf": values[i]}
        left = int(nodes["left"][i])
        return {
            "nodeid": i,
            "depth": int(nodes["depth"][i]),
            "split": names[int(nodes["feature"][i])],
            "split_condition": conditions[i],
            "yes": left,
            "no": left + 1,
            "missing": left if nodes["missing_left"][i] else left + 1,
            "children": list(children),
        }

    return nested(nodes, node)
