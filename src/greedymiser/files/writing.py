"""From a model to arrays and a text."""

from __future__ import annotations

import inspect
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.amounts import check_unit
from greedymiser._core.files import check_place, write_atomically
from greedymiser._core.version import __version__
from greedymiser.costs.cost_model import CostModel, Purchase
from greedymiser.files.container import ContentError, to_safetensors
from greedymiser.files.model_format import (
    DEEPEST_ABOUT,
    MOST_DIGITS,
    NUMBERS,
    OWN_LOSS,
    RESPONSES,
    WIDEST_SPARE_TEXT,
    format_of,
)
from greedymiser.files.reading import decode
from greedymiser.losses import KNOWN_LOSSES, Loss
from greedymiser.model.exit_rules import Above, Confident, ExitRule, FirstOfQuery, Proximity
from greedymiser.model.family import ModelFamily, as_family
from greedymiser.model.gating import Gates
from greedymiser.model.predictor import Predictor, as_predictor
from greedymiser.model.trees import NODE_DTYPE, Ensemble

Tensors = dict[str, NDArray[Any]]

# Parameters that say nothing about the model itself.
LEFT_OUT = {"costs", "estimator", "n_jobs", "verbose"}

# Of a parameter that is a longer list, only the length is kept.
LONGEST_LIST = 1000


def save(
    model: Any,
    path: str | os.PathLike[str],
    *,
    response: str | None = None,
    cost_unit: str | None = None,
) -> None:
    """Write a fitted model to a file that holds no code.

    The file is for serving: ``load`` gives a ``Predictor`` with the same predictions, bit for bit,
    and the same costs and receipt. It does not hold what training could be continued from.

    Parameters
    ----------
    model : fitted estimator, search, early exit, cascade, Predictor, or TradeoffCurve
        Of a curve, the models of its front are kept: ``load`` gives a ``ModelFamily``.
    path : str or Path
        By custom it ends in ``.miser``. An existing file is replaced at once or not at all.
    response : {"identity", "exp", "sigmoid", "two_classes", "softmax"} or None
        For a loss of your own that has a ``response`` of its own: which of these it is. Its code
        cannot be stored. "two_classes" are the probabilities that belong to a log-odds, "softmax"
        those of several classes.
    cost_unit : str or None
        What the costs are counted in, such as "dollars", to be told by ``about["cost_unit"]``. None
        keeps what a Predictor knows of it.

    Raises
    ------
    ValueError
        If the model holds something that cannot be saved, such as categories that are neither text
        nor numbers.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from greedymiser import MiserRegressor, load, save
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = MiserRegressor(max_iter=10).fit(X, y)
    >>> save(model, "diabetes.miser")
    >>> bool((load("diabetes.miser").predict(X) == model.predict(X)).all())
    True
    """
    predictor = _finished(model)
    place = check_place(os.path.expanduser(path))
    try:
        check_unit(cost_unit or "")
        unit = {"cost_unit": cost_unit} if cost_unit else {}
        data = encode(predictor, {**predictor.about, **unit}, response)
        decode(data)  # what is written can be read
    except ContentError as fault:
        raise ValueError(f"cannot save the model: {fault}") from None
    write_atomically(place, data)


def _finished(model: Any) -> Predictor:
    """A model for serving, or a family of them, that knows how it came about."""
    if hasattr(model, "pareto") and hasattr(model, "best"):  # a curve
        return as_family(model, _finished)
    return replace(as_predictor(model), about=about(model))


def encode(predictor: Predictor, about: Mapping[str, Any], response: str | None = None) -> bytes:
    """Turn a model into the bytes of a model file."""
    arrays: Tensors = {}
    text = _shared(predictor, response, arrays)
    if isinstance(predictor, ModelFamily):
        text |= _family(predictor, arrays) | {"about": about}
    else:
        ensembles = _ensembles_of(predictor)
        for i, ensemble in enumerate(ensembles):
            write_ensemble(ensemble, f"ensemble.{i}", arrays)
        text |= _own(predictor, about, arrays, range(len(ensembles)))
    text |= {"format": format_of(text), "version": __version__}
    # One spelling: equal models make equal files.
    return to_safetensors(
        arrays,
        json.dumps(text, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False),
    )


def _shared(predictor: Predictor, response: str | None, arrays: Tensors) -> dict[str, Any]:
    """What all models of a family have in common."""
    classes = None
    if predictor.classes is not None:
        classes = _labels(predictor.classes, "classes", "the classes", arrays)
    errors = {}
    if predictor.error_costs is not None:
        decisions = predictor.error_costs.said
        arrays["error_costs.matrix"] = np.ascontiguousarray(predictor.error_costs.matrix)
        errors["error_costs"] = _labels(decisions, "error_costs.said", "the answers", arrays)
    return errors | {
        "kind": predictor.kind,
        "feature_names": _names(predictor.feature_names),
        "costs": _costs(predictor.costs, arrays),
        "loss": _loss(predictor, response),
        "classes": classes,
        "categories": [
            _categories(predictor, feature, arrays) for feature in sorted(predictor.categories)
        ],
    }


def _own(
    predictor: Predictor, about: Mapping[str, Any], arrays: Tensors, numbers: Sequence[int]
) -> dict[str, Any]:
    """What a model has to itself; its ensembles are known by these numbers."""
    text = {
        "rule": _rule(predictor.rule, arrays),
        "purchases": [_purchase(line) for line in predictor.purchases],
        "about": about,
    }
    if predictor.charge == "row" or predictor.mean_cost is not None:
        text["charge"] = {"by": predictor.charge, "mean_cost": predictor.mean_cost}
    number = {
        id(ensemble): k for ensemble, k in zip(_ensembles_of(predictor), numbers, strict=True)
    }
    rows = [
        [number[id(stage.ensemble)], stage.first, stage.last, stage.n_trees]
        for stage in predictor.stages
    ]
    arrays["stages"] = np.array(rows, dtype=np.int64).reshape(-1, 4)
    return text


def _family(family: ModelFamily, arrays: Tensors) -> dict[str, Any]:
    pool, numbers = _pooled([_cut_ensembles(model) for model in family.models])
    for i, ensemble in enumerate(pool):
        write_ensemble(ensemble, f"ensemble.{i}", arrays)
    models = []
    for i, model in enumerate(family.models):
        mine: Tensors = {}
        own = _own(model, model.about, mine, numbers[i])
        models.append(
            {"cost": _float(family.model_costs[i]), "score": _float(family.scores[i]), **own}
        )
        arrays |= {f"models.{i}.{name}": array for name, array in mine.items()}
    return {"scoring": family.scoring, "models": models}


# -- trees --------------------------------------------------------------------------------------


def _ensembles_of(predictor: Predictor) -> list[Ensemble]:
    """Every ensemble once, however many stages share it, in the order of the stages."""
    return list({id(stage.ensemble): stage.ensemble for stage in predictor.stages}.values())


def _cut_ensembles(predictor: Predictor) -> list[Ensemble]:
    """The ensembles without rounds that no stage asks for."""
    ends = {id(stage.ensemble): stage.last for stage in predictor.stages}
    return [ensemble.truncated(ends[id(ensemble)]) for ensemble in _ensembles_of(predictor)]


def _pooled(models: Sequence[Sequence[Ensemble]]) -> tuple[list[Ensemble], list[list[int]]]:
    """Of ensembles that begin alike the longest, and which of them stands for each model's own.

    The models of a path's front are beginnings of few ensembles. No model has one of them twice.
    """
    pool: list[Ensemble] = []
    numbers: list[list[int]] = [[-1] * len(ensembles) for ensembles in models]
    every = [(i, k) for i, ensembles in enumerate(models) for k in range(len(ensembles))]
    for i, k in sorted(every, key=lambda at: -models[at[0]][at[1]].n_trees):
        mine = models[i][k]
        free = (
            j for j, whole in enumerate(pool) if j not in numbers[i] and _begins_with(whole, mine)
        )
        number = next(free, len(pool))
        if number == len(pool):
            pool.append(mine)
        numbers[i][k] = number
    return pool, numbers


def _begins_with(whole: Ensemble, start: Ensemble) -> bool:
    same = [
        (whole.baseline, start.baseline),
        (whole.tree_starts[: len(start.tree_starts)], start.tree_starts),
        (whole.category_sets[: len(start.category_sets)], start.category_sets),
        (whole.nodes[: len(start.nodes)], start.nodes),
    ]
    return all(mine.tobytes() == other.tobytes() for mine, other in same)


def write_ensemble(ensemble: Ensemble, name: str, arrays: Tensors) -> None:
    """Add the arrays of an ensemble, under names that begin with this one."""
    for field in NODE_DTYPE.names or ():
        arrays[f"{name}.nodes.{field}"] = ensemble.nodes[field]
    arrays[f"{name}.category_sets"] = ensemble.category_sets
    arrays[f"{name}.tree_starts"] = ensemble.tree_starts
    arrays[f"{name}.baseline"] = ensemble.baseline


def _rule(rule: ExitRule | Gates | None, arrays: Tensors) -> dict[str, Any] | None:
    match rule:
        case None:
            return None
        case Confident(threshold):
            return {"name": "confident", "threshold": _float(threshold)}
        case Proximity(slack, n_exits, place):
            return {
                "name": "proximity",
                "slack": _float(slack),
                "n_exits": int(n_exits),
                "place": int(place),
            }
        case Above(thresholds):
            arrays["rule.thresholds"] = np.array(thresholds, dtype=np.float64)
            return {"name": "above"}
        case Gates(gates):
            arrays["rule.thresholds"] = np.array([gate.threshold for gate in gates])
            for k, gate in enumerate(gates):
                write_ensemble(gate.ensemble, f"gate.{k}", arrays)
            return {"name": "gates"}
        case FirstOfQuery(places, stay_ahead):
            arrays["rule.places"] = np.array(places, dtype=np.int64)
            return {"name": "first_of_query", "stay_ahead": bool(stay_ahead)}
    raise ContentError(f"its exit rule {type(rule).__name__} is not one of this library")


def _loss(predictor: Predictor, response: str | None) -> dict[str, Any]:
    loss = predictor.loss
    if response is not None:
        _check_response(loss, response)
    for name, loss_class in KNOWN_LOSSES.items():
        if type(loss) is loss_class.make and "response" not in vars(loss):
            parameters = {
                key: kind(getattr(loss, key)) for key, kind in loss_class.parameters.items()
            }
            return {"name": name, **parameters}
    if response is None:
        response = "identity" if predictor.kind == "ranker" else _response_of(loss)
    return {"name": OWN_LOSS, "response": response}


def _response_of(loss: Loss) -> str:
    """Recognise the response that a user's loss has inherited."""
    function = getattr(loss.response, "__func__", None)
    for name, own in RESPONSES.items():
        if function is own.response:
            return name
    raise ContentError(
        f"its loss {_type_name(loss)} has a response of its own, and code is not stored; "
        f"if it is one of {list(RESPONSES)}, say so: save(model, path, response=...)"
    )


def _type_name(loss: Loss) -> str:
    return type(getattr(loss, "_loss", loss)).__name__


def _check_response(loss: Loss, response: str) -> None:
    if response not in RESPONSES:
        raise ValueError(f"response={response!r} is unknown; choose from {list(RESPONSES)}")
    k = loss.n_outputs
    raw = 3.0 * np.sin(np.arange(7.0 * k)).reshape(k, 7)
    seen = raw if k > 1 else raw[0]
    own, named = loss.response(seen), RESPONSES[response](k).response(seen)
    if np.shape(own) != named.shape or not np.allclose(own, named, rtol=1e-6, atol=1e-12):
        raise ValueError(f"response={response!r} is not how the loss {_type_name(loss)} answers")


# -- costs --------------------------------------------------------------------------------------


def _costs(costs: CostModel, arrays: Tensors) -> dict[str, Any]:
    sizes = [len(wanted) for wanted in costs.needs]
    arrays["costs.resource_costs"] = costs.resource_costs
    arrays["costs.need_starts"] = np.append(0, np.cumsum(sizes)).astype(np.int64)
    arrays["costs.needs"] = np.array([r for wanted in costs.needs for r in wanted], dtype=np.int64)
    return {
        "feature_names": _names(costs.feature_names),
        "resource_names": _names(costs.resource_names),
        "tree_cost": costs.tree_cost,
    }


def _purchase(line: Purchase) -> list[Any]:
    return [
        int(line.iteration),
        int(line.output),
        int(line.depth),
        str(line.feature) if isinstance(line.feature, str) else int(line.feature),
        _names(line.resources),
        float(line.price),
        float(line.spent),
        float(line.gain),
    ]


def _names(names: Sequence[str] | None) -> list[str] | None:
    if names is None:
        return None
    for name in names:
        if not isinstance(name, str):
            raise ContentError(f"it has the name {name!r}, which is not a string")
    return [str(name) for name in names]


# -- labels -------------------------------------------------------------------------------------


def _categories(predictor: Predictor, feature: int, arrays: Tensors) -> dict[str, Any]:
    names = predictor.names
    what = f"the categories of feature {feature if names is None else names[feature]!r}"
    labels = predictor.categories[feature]
    if labels.dtype.kind == "U":
        labels = labels.astype(object)  # as they come from data frames
    return {"feature": int(feature), **_labels(labels, f"categories.{feature}", what, arrays)}


def _labels(labels: NDArray[Any], name: str, what: str, arrays: Tensors) -> dict[str, Any]:
    """Numbers become a tensor, text and Python objects JSON."""
    native = labels.dtype.newbyteorder("=")
    if native in NUMBERS.values():
        arrays[name] = labels.astype(native)
        return {"dtype": native.name}
    if native.kind == "U":
        values = labels.tolist()
        width = native.itemsize // 4
        if width > WIDEST_SPARE_TEXT:
            width = max((len(value) for value in values), default=1)
        return {"dtype": f"<U{width}", "values": values}
    if native.kind == "O":
        return {"dtype": "object", "values": [_label(value, what) for value in labels.tolist()]}
    raise ContentError(f"{what} have type {labels.dtype}, which has no place in a model file")


def _label(value: Any, what: str) -> Any:
    if isinstance(value, np.bool_ | np.integer | np.float16 | np.float32 | np.float64 | np.str_):
        value = value.item()
    if type(value) in (str, bool):
        return value
    if type(value) is int and abs(value) < 10**MOST_DIGITS:
        return value
    if type(value) is float and value == value:
        return value if math.isfinite(value) else {"float": repr(value)}
    raise ContentError(
        f"{what} have {value!r} of type {type(value).__name__}, which has no place in a model "
        "file; turn them into strings or numbers before you fit"
    )


def _float(value: float) -> float | str:
    """JSON has no infinity."""
    value = float(value)
    return value if math.isfinite(value) else repr(value)


# -- information --------------------------------------------------------------------------------


def about(model: Any) -> dict[str, Any]:
    """What to tell of a model: which estimator made it, and how."""
    if isinstance(model, Predictor):
        return dict(model.about)
    parameters = {
        name: value
        for name, value in sorted(model.get_params(deep=False).items())
        if name not in LEFT_OUT
    }
    usual = inspect.signature(type(model)).parameters
    changed = [
        name for name, value in parameters.items() if repr(usual[name].default) != repr(value)
    ]
    entries = {
        "estimator": type(model).__name__,
        "parameters": {name: _plain_json(value) for name, value in parameters.items()},
        "changed": changed,
        **_outcome(model),
    }
    # What exits were put over, or what a search has found.
    for inside in ("estimator_", "best_estimator_"):
        if hasattr(model, inside):
            entries["base"] = about(getattr(model, inside))
    return entries


def _outcome(model: Any) -> dict[str, Any]:
    """How training ended."""
    entries: dict[str, Any] = {}
    for name in ("stopped_", "threshold_"):
        if hasattr(model, name):
            entries[name.rstrip("_")] = _plain_json(getattr(model, name))
    scores = getattr(model, "validation_score_", ())
    n_iter = getattr(model, "n_iter_", 0)
    if len(scores) > n_iter:
        # Not above: to load a model needs no score, and scores need scikit-learn.
        from greedymiser.scoring.names import score_name

        entries["validation_score"] = _plain_json(float(scores[n_iter]))
        entries["score"] = score_name(model.scoring, as_predictor(model).loss)
    return entries


def _plain_json(value: Any, depth: int = 2) -> Any:
    """A parameter in plain JSON; objects by the name of their type."""
    if isinstance(value, np.generic | np.ndarray) and np.ndim(value) == 0:
        value = value.item()
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return _float(value)
    if depth < DEEPEST_ABOUT // 2 and isinstance(value, list | tuple | np.ndarray):
        if len(value) > LONGEST_LIST:
            return f"{len(value)} entries"
        return [_plain_json(entry, depth + 1) for entry in value]
    if depth < DEEPEST_ABOUT // 2 and isinstance(value, Mapping):
        return {str(key): _plain_json(entry, depth + 1) for key, entry in value.items()}
    return getattr(value, "__qualname__", None) or type(value).__name__
