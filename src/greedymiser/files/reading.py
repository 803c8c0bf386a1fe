"""From arrays and a text to a model, with every number looked at.

Nothing is taken on trust: whatever passes is a model that can be served.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.version import __version__
from greedymiser.costs.cost_model import CostModel, Purchase
from greedymiser.costs.errors import ErrorCosts
from greedymiser.data.tables import Categories
from greedymiser.files.checking import (
    MOST,
    Arrays,
    Entries,
    brief,
    distinct_names,
    integer,
    is_ascending,
    parse,
    require,
    strings,
    unbounded_number,
)
from greedymiser.files.container import (
    ContentError,
    ModelFileError,
    from_safetensors,
    read_bytes,
)
from greedymiser.files.model_format import (
    DEEPEST_ABOUT,
    FORMAT,
    MOST_DIGITS,
    MOST_PLACES,
    NUMBERS,
    OWN,
    OWN_LOSS,
    RESPONSES,
    RULES,
    SHARED,
    SINCE,
    SPACE_PER_LETTER,
    SPARE_LETTERS,
    WIDEST_SPARE_TEXT,
)
from greedymiser.files.reading_trees import (
    FLOAT,
    INTEGER,
    read_ensemble,
    read_ensembles,
    read_stages,
)
from greedymiser.losses import KNOWN_LOSSES, Kind, Loss
from greedymiser.model.exit_rules import Above, Confident, ExitRule, FirstOfQuery, Proximity
from greedymiser.model.family import ModelFamily
from greedymiser.model.gating import Gate, Gates, n_output_features
from greedymiser.model.links import gives_probabilities
from greedymiser.model.predictor import Charge, Predictor, Stage
from greedymiser.model.trees import CATEGORY_WORDS, Ensemble


def load(path: str | os.PathLike[str], *, n_jobs: int | None = None) -> Predictor:
    """Read a model that ``save`` has written.

    No code from the file is ever run, and scikit-learn is not needed.

    Parameters
    ----------
    path : str or Path
    n_jobs : int or None
        Threads for predictions; None for all cores.

    Returns
    -------
    Predictor
        It predicts as the model did, bit for bit, and knows its costs and its receipt. ``about``
        tells the estimator's name and parameters. Where a curve was saved, it is a ``ModelFamily``.

    Raises
    ------
    ModelFileError
        If it is not a model file, or anything in it is wrong.

    Examples
    --------
    >>> import numpy as np
    >>> from greedymiser import MiserRegressor, load, save
    >>> X = np.arange(100.0).reshape(50, 2)
    >>> save(MiserRegressor(max_iter=3, min_samples_leaf=5).fit(X, X[:, 0]), "model.miser")
    >>> load("model.miser").predict(X).shape
    (50,)
    """
    path = Path(os.path.expanduser(path))
    try:
        return _with_threads(decode(read_bytes(path)), n_jobs)
    except ContentError as fault:
        raise ModelFileError(f"{str(path)!r} is not a model of greedymiser: {fault}") from None
    except MemoryError as error:
        raise ModelFileError(f"{str(path)!r} needs more memory than there is") from error


def _with_threads(model: Predictor, n_jobs: int | None) -> Predictor:
    if isinstance(model, ModelFamily):
        models = tuple(_with_threads(each, n_jobs) for each in model.models)
        return replace(model, n_jobs=n_jobs, models=models)
    return replace(model, n_jobs=n_jobs)


def decode(data: bytes) -> Predictor:
    """Turn the bytes of a model file into a model; raises ContentError where anything is wrong."""
    tensors, text = from_safetensors(data)
    model, arrays = Entries(parse(text), "the model"), Arrays(tensors)
    number = _format(model)
    optional = _optional(model, number)
    is_family = "models" in optional
    own = {"models", "scoring", "about"} if is_family else OWN | optional
    own |= optional & {"error_costs"}
    model.only({"format", "version", *SHARED, *own})
    shared, ensembles = _shared(model, arrays)
    if is_family:
        predictor: Predictor = _family(model, arrays, shared, ensembles, number)
    else:
        stages = read_stages(arrays, ensembles, is_family=False)
        predictor = _model(model, arrays, shared, stages, number)
    arrays.check_all_used()
    return predictor


def _format(model: Entries) -> int:
    number, version = model.integer("format", 1), model.text("version")
    if number > FORMAT:
        raise ContentError(
            f"it has format {number}, written by greedymiser {brief(version)}, and greedymiser "
            f"{__version__} reads up to format {FORMAT}; install that version or a newer one"
        )
    return number


def _optional(model: Entries, number: int) -> set[str]:
    """Entries that a model of a format may have; all models of format 2 charge by row."""
    names = {name for name, since in SINCE.items() if since <= number}
    return names & (model.values.keys() if number > SINCE["charge"] else names)


def _shared(model: Entries, arrays: Arrays) -> tuple[dict[str, Any], list[Ensemble]]:
    """What models of a family have in common, as arguments of ``Predictor``; and all ensembles."""
    costs = _costs(model.entries("costs"), arrays)
    categories = _all_categories(model.listed("categories"), costs.n_features, arrays)
    ensembles = read_ensembles(arrays, costs.n_features, categories)
    n_outputs = ensembles[0].n_outputs
    kind = _kind(model)
    shared: dict[str, Any] = {
        "kind": kind,
        "costs": costs,
        "n_features": costs.n_features,
        "categories": categories,
        "loss": _loss(model.entries("loss"), kind, n_outputs),
        "classes": _classes(model, kind, n_outputs, arrays),
        "feature_names": _feature_names(model, costs),
    }
    if "error_costs" in model.values:
        shared["error_costs"] = _error_costs(model.entries("error_costs"), shared, arrays)
    return shared, ensembles


def _error_costs(entries: Entries, shared: Mapping[str, Any], arrays: Arrays) -> ErrorCosts:
    """What errors cost, checked as those that a user gives."""
    classes = shared["classes"]
    require(classes is not None, f"a {shared['kind']} has no errors that cost anything")
    require(gives_probabilities(shared["loss"]), "errors cost, but its loss has no probabilities")
    decisions = _labels(
        entries, "error_costs.said", arrays, lambda n: require(n >= 2, "it says nothing")
    )
    matrix = arrays.take("error_costs.matrix", FLOAT, (len(classes), len(decisions)))
    answers = decisions.tolist()
    require(len(set(answers)) == len(answers), "it says the same in two ways")
    require(bool(np.isfinite(matrix).all()), "an error costs more than a float can hold")
    require(
        bool((matrix.max(axis=1) > matrix.min(axis=1)).all()),
        "the errors of a class cost the same whatever is said",
    )
    return ErrorCosts(matrix, decisions)


def _model(
    model: Entries,
    arrays: Arrays,
    shared: Mapping[str, Any],
    stages: tuple[Stage, ...],
    number: int,
) -> Predictor:
    costs, n_outputs = shared["costs"], stages[0].ensemble.n_outputs
    charge, mean_cost = _charge(model, number)
    predictor = Predictor(
        **shared,
        stages=stages,
        rule=_rule(model, shared, stages, arrays),
        purchases=_purchases(model.listed("purchases"), costs, n_outputs, charge),
        charge=charge,
        mean_cost=mean_cost,
        about=_about(model),
    )
    _check_bill(predictor)
    return predictor


def _family(
    family: Entries,
    arrays: Arrays,
    shared: Mapping[str, Any],
    ensembles: Sequence[Ensemble],
    number: int,
) -> ModelFamily:
    models, costs, scores = [], [], []
    for i, entry in enumerate(family.listed("models")):
        model, mine = Entries(entry, f"model {i}"), arrays.inside(f"models.{i}.")
        model.only({"cost", "score", *OWN, *(_optional(model, number) & {"charge"})})
        stages = read_stages(mine, ensembles, is_family=True)
        models.append(_model(model, mine, shared, stages, number))
        mine.check_all_used()
        costs.append(_not_negative(model, "cost"))
        scores.append(model.number("score"))
    require(len(models) > 0, "it is a family without models")
    require(costs == sorted(costs), "its models are not in the order of their costs")
    return ModelFamily.of(models, costs, scores, family.text("scoring"), _about(family))


def _charge(model: Entries, number: int) -> tuple[Charge, float | None]:
    """Who pays for a feature, and what the training rows paid on average."""
    if "charge" not in model.values:
        return "model", None
    entries = model.entries("charge")
    entries.only({"by", "mean_cost"})
    by = entries.text("by")
    if number == SINCE["charge"]:
        require(by == "row", f"'by' of {entries.what} is not 'row'")
    require(by in get_args(Charge), f"'by' of {entries.what} is neither 'row' nor 'model'")
    if entries.any("mean_cost") is None:
        return cast(Charge, by), None
    mean_cost = entries.number("mean_cost")
    require(0 <= mean_cost < math.inf, f"'mean_cost' of {entries.what} is negative, or infinite")
    return cast(Charge, by), mean_cost


def _kind(model: Entries) -> Kind:
    kind = model.text("kind")
    if kind not in get_args(Kind):
        raise ContentError(
            f"'kind' of the model is {brief(kind)}, not one of {list(get_args(Kind))}"
        )
    return cast(Kind, kind)


def _about(model: Entries) -> dict[str, Any]:
    about = model.entries("about").values
    level: list[Any] = [about]
    for _ in range(DEEPEST_ABOUT):
        level = [inside for value in level for inside in _inside(value)]
    if level:
        raise ContentError("'about' of the model is nested too deeply")
    return about


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


# -- costs ----------------------------------------------------------------------------------------


def _costs(entries: Entries, arrays: Arrays) -> CostModel:
    entries.only({"feature_names", "resource_names", "tree_cost"})
    prices = arrays.take("costs.resource_costs", FLOAT, (None,))
    require(
        np.isfinite(prices).all() and (prices >= 0).all(),
        "a cost is negative, or not a number",
    )
    starts = arrays.take("costs.need_starts", INTEGER, (None,))
    needs = arrays.take("costs.needs", INTEGER, (None,))
    n_features = len(starts) - 1
    require(1 <= n_features <= MOST, "it has no features")
    require(is_ascending(starts, len(needs), strictly=False), "'costs.need_starts' is not in order")
    require(((needs >= 0) & (needs < len(prices))).all(), "a feature needs an unknown resource")
    # Inside each feature the resources ascend; between features they may fall.
    rising = np.diff(needs) > 0
    borders = starts[1:-1]
    rising[borders[(borders > 0) & (borders < len(needs))] - 1] = True
    require(rising.all(), "a feature needs a resource twice")
    resources = entries.names("resource_names")
    require(len(resources) == len(prices), "the resources and their costs differ in number")
    names = None
    if entries.any("feature_names") is not None:
        names = entries.names("feature_names")
        distinct_names(names, "'feature_names' of the costs", n_features)
    flat, edges = needs.tolist(), itertools.pairwise(starts.tolist())
    tree_cost = entries.number("tree_cost")
    try:
        return CostModel.from_parts(
            names, resources, prices, [flat[a:b] for a, b in edges], tree_cost
        )
    except (ValueError, OverflowError) as error:
        raise ContentError(str(error)) from None


def _feature_names(model: Entries, costs: CostModel) -> tuple[str, ...] | None:
    if model.any("feature_names") is None:
        return None
    names = model.names("feature_names")
    return tuple(distinct_names(names, "'feature_names' of the model", costs.n_features))


def _purchases(
    lines: list[Any], costs: CostModel, n_outputs: int, charge: Charge
) -> tuple[Purchase, ...]:
    positions = {name: i for i, name in enumerate(costs.feature_names or ())}
    whole = [line for line in lines if type(line) is list and len(line) == 8]
    bought = [line[3] for line in whole if type(line[3]) in (str, int)]
    if charge == "model":  # rows that pay for themselves buy a feature at several nodes
        require(len(set(bought)) == len(bought), "a feature is bought twice")

    # Once per feature: a thousand purchases of a feature that needs a thousand things are many.
    @cache
    def needed(position: int) -> frozenset[str]:
        return frozenset(costs.resource_names[r] for r in costs.needs[position])

    return tuple(_purchase(line, costs, positions, n_outputs, needed) for line in lines)


def _purchase(
    line: Any,
    costs: CostModel,
    positions: Mapping[str, int],
    n_outputs: int,
    needed: Callable[[int], frozenset[str]],
) -> Purchase:
    what = "a purchase"
    if type(line) is not list or len(line) != 8:
        raise ContentError(f"{what} is not a list of eight entries")
    iteration, output, depth, feature, resources, price, spent, gain = line
    if type(feature) is str and feature in positions:
        position = positions[feature]
    elif type(feature) is int and not positions:
        position = integer(feature, f"the feature of {what}", 0, costs.n_features - 1)
    else:
        raise ContentError(f"{what} has the unknown feature {brief(feature)}")
    bought = strings(resources, f"the resources of {what}")
    require(
        needed(position).issuperset(bought), f"{what} has a resource that its feature does not need"
    )
    amounts = [unbounded_number(value, f"an amount of {what}") for value in (price, spent, gain)]
    require(all(0 <= amount < math.inf for amount in amounts), f"{what} has a negative amount")
    return Purchase(
        integer(iteration, f"the round of {what}", 0),
        integer(output, f"the output of {what}", 0, n_outputs - 1),
        integer(depth, f"the depth of {what}", 0, 2**16 - 1),
        feature,
        tuple(bought),
        *amounts,
    )


def _check_bill(predictor: Predictor) -> None:
    """See that no row's bill can overflow."""
    costs = predictor.costs
    try:
        most = costs.bill(
            np.ones(len(costs.resource_names), dtype=bool), predictor.stages[-1].n_trees
        )
    except OverflowError:
        most = math.inf
    require(math.isfinite(most), "the costs add up to more than a float can hold")


# -- rules, losses, labels ------------------------------------------------------------------------


def _rule(
    model: Entries, shared: Mapping[str, Any], stages: Sequence[Stage], arrays: Arrays
) -> ExitRule | Gates | None:
    kind, n_stages = shared["kind"], len(stages)
    if model.any("rule") is None:
        require(
            n_stages == 1, "it has several stages, but no rule that says who leaves between them"
        )
        return None
    entries = model.entries("rule")
    name = entries.text("name")
    require(name in RULES, f"the exit rule {brief(name)} is unknown")
    entries.only({"name", *RULES[name]})
    if name == "above":
        thresholds = arrays.take("rule.thresholds", FLOAT, (None,))
        require(not np.isnan(thresholds).any(), "an exit threshold is not a number")
        require(
            n_stages - 1 <= len(thresholds) <= n_stages,
            f"it has {len(thresholds)} exit thresholds for {n_stages} stages",
        )
        return Above(tuple(thresholds.tolist()))
    if name == "gates":
        return _gates(shared, stages, arrays)
    if name == "confident":
        require(kind == "classifier", f"a {kind} has no classes to be confident of")
        return Confident(_not_negative(entries, "threshold"))
    require(kind == "ranker", f"a {kind} has no queries to compare rows of")
    if name == "first_of_query":
        return _first_of_query(entries, stages, arrays)
    slack = _not_negative(entries, "slack")
    return Proximity(slack, entries.integer("n_exits", 1), entries.integer("place", 1, MOST_PLACES))


def _gates(shared: Mapping[str, Any], stages: Sequence[Stage], arrays: Arrays) -> Gates:
    require(shared["kind"] != "ranker", "a ranker has no gates")
    n_features, loss = shared["n_features"], shared["loss"]
    _require_states(stages)
    categorical = np.zeros(n_features + n_output_features(stages[0].ensemble.n_outputs), dtype=bool)
    categorical[list(shared["categories"])] = True
    thresholds = arrays.take("rule.thresholds", FLOAT, (len(stages) - 1,))
    require(np.isfinite(thresholds).all(), "the threshold of a gate is not a number")
    gates = []
    for k, threshold in enumerate(thresholds.tolist()):
        ensemble = read_ensemble(f"gate.{k}", arrays, categorical)
        require(ensemble.n_outputs == 1, "a gate has several outputs")
        gates.append(Gate(ensemble, threshold))
    return Gates(tuple(gates), n_features, loss)


def _first_of_query(entries: Entries, stages: Sequence[Stage], arrays: Arrays) -> FirstOfQuery:
    _require_states(stages)
    places = arrays.take("rule.places", INTEGER, (len(stages) - 1,))
    require((places >= 1).all(), "fewer than one document of a query goes on")
    return FirstOfQuery(tuple(places.tolist()), entries.flag("stay_ahead"))


def _require_states(stages: Sequence[Stage]) -> None:
    """Each stage must be a model of its own."""
    require(all(stage.first == 0 for stage in stages), "a gate leads into the middle of a model")


def _not_negative(entries: Entries, name: str) -> float:
    value = entries.number(name)
    require(value >= 0, f"{name!r} of {entries.what} is negative")
    return value


def _loss(entries: Entries, kind: Kind, n_outputs: int) -> Loss:
    loss = _any_loss(entries, n_outputs)
    if kind == "regressor":  # whose predictions are what the loss answers
        answer = loss.response(np.zeros(3))
        require(answer.shape == (3,), "the loss of a regressor answers with classes")
    return loss


def _any_loss(entries: Entries, n_outputs: int) -> Loss:
    name = entries.text("name")
    if name == OWN_LOSS:
        entries.only({"name", "response"})
        response = entries.text("response")
        require(response in RESPONSES, f"the response {brief(response)} is unknown")
        return RESPONSES[response](n_outputs)
    require(name in KNOWN_LOSSES, f"the loss {brief(name)} is unknown")
    loss_class = KNOWN_LOSSES[name]
    entries.only({"name", *loss_class.parameters})
    parameters = {
        key: entries.integer(key, 1) if kind is int else entries.number(key)
        for key, kind in loss_class.parameters.items()
    }
    try:
        loss = loss_class.make(**parameters)
    except ValueError as error:
        raise ContentError(f"its loss {name!r} is wrong: {error}") from None
    require(loss.n_outputs == n_outputs, f"its loss has {loss.n_outputs} outputs, not {n_outputs}")
    return loss


def _classes(model: Entries, kind: Kind, n_outputs: int, arrays: Arrays) -> NDArray[Any] | None:
    if kind != "classifier":
        require(model.any("classes") is None, f"a {kind} has no classes")
        require(n_outputs == 1, f"a {kind} has one output, not {n_outputs}")
        return None

    def check_number(n: int) -> None:
        require(n >= 2, "it has fewer than two classes")
        needed = 1 if n == 2 else n
        require(n_outputs == needed, f"{n} classes need {needed} outputs, not {n_outputs}")

    classes = _labels(model.entries("classes"), "classes", arrays, check_number)
    require(_is_sorted(classes), "its classes are not in order")
    return classes


def _all_categories(lists: list[Any], n_features: int, arrays: Arrays) -> Categories:
    categories: Categories = {}

    def check_number(n: int) -> None:  # codes are looked up in sets of so many bits
        require(n <= 64 * CATEGORY_WORDS, f"a feature has too many categories: {n}")

    for entry in lists:
        entries = Entries(entry, "an entry of 'categories'")
        feature = entries.integer("feature", 0, n_features - 1)
        require(feature not in categories, f"feature {feature} has its categories twice")
        labels = _labels(
            entries, f"categories.{feature}", arrays, check_number, frozenset({"feature"})
        )
        if labels.dtype == object:
            distinct = len(set(labels.tolist())) == len(labels)
        else:
            distinct = labels.dtype.kind != "U" and _is_sorted(labels)
        require(distinct, f"the categories of feature {feature} are not distinct, or not in order")
        categories[feature] = labels
    return categories


def _labels(
    entries: Entries,
    name: str,
    arrays: Arrays,
    check_number: Callable[[int], None],
    others: frozenset[str] = frozenset(),
) -> NDArray[Any]:
    """Read labels; their number is checked before they take any memory."""
    dtype = entries.text("dtype")
    if dtype in NUMBERS:
        entries.only({"dtype", *others})
        numbers = arrays.take(name, NUMBERS[dtype], (None,))
        check_number(len(numbers))
        return numbers
    entries.only({"dtype", "values", *others})
    values = entries.listed("values")
    check_number(len(values))
    if dtype == "object":
        labels = np.empty(len(values), dtype=object)
        labels[:] = [_label(value) for value in values]
        return labels
    return _text_labels(dtype, strings(values, f"{name!r} of the model"))


def _label(value: Any) -> Any:
    if type(value) is dict:
        what = Entries(value, "a label")
        what.only({"float"})
        require(what.any("float") in ("inf", "-inf"), "a label is not a number")
        return float(what.text("float"))
    if type(value) is int:
        require(abs(value) < 10**MOST_DIGITS, "a label has too many digits")
    elif type(value) not in (str, float, bool):
        raise ContentError(f"a label is {brief(value)}, neither text nor a number")
    return value


def _text_labels(dtype: str, values: list[str]) -> NDArray[np.str_]:
    """Text in fields of one width, as NumPy has it; a wide field for short text is refused."""
    longest = max(map(len, values), default=0)
    digits = dtype.removeprefix("<U")
    is_width = dtype.startswith("<U") and digits.isdecimal() and digits.isascii()
    if not is_width or len(digits) > 9 or str(int(digits)) != digits:
        raise ContentError(f"labels have the unknown type {brief(dtype)}")
    width = int(digits)
    require(
        max(1, longest) <= width <= max(longest, WIDEST_SPARE_TEXT),
        f"labels of {longest} letters have type {dtype}",
    )
    spare = max(SPARE_LETTERS, WIDEST_SPARE_TEXT * len(values))
    require(
        width * len(values) <= spare + SPACE_PER_LETTER * sum(map(len, values)),
        f"{len(values)} labels have type {dtype}, and most of them are far shorter",
    )
    labels = np.array(values, dtype=dtype)
    require(labels.tolist() == values, "a label ends in a zero byte")
    return labels


def _is_sorted(labels: NDArray[Any]) -> bool:
    """Whether labels ascend, with none twice and none missing."""
    try:
        rises: Sequence[bool] = [a < b for a, b in itertools.pairwise(labels.tolist())]
    except TypeError:
        return False  # a mixture has no order
    return all(rises) and all(label == label for label in labels.tolist()[:1])
