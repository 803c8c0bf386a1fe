"""What writing and reading agree on: the format, by names.

The JSON text of a model file (arrays in brackets are tensors of the container):

    format           the lowest number that has all that is there: see ``SINCE``
    version          the greedymiser that wrote the file
    kind             "regressor", "classifier" or "ranker"
    feature_names    list, or null
    costs            {feature_names, resource_names, tree_cost} [costs.resource_costs]
                     [costs.need_starts] [costs.needs]: feature f needs the resources
                     needs[need_starts[f]:need_starts[f + 1]]
    loss             {name, parameters}
    rule             null, or {name, parameters} [rule.thresholds]; for gates also, like an ensemble
                     over the features and what the model says, [gate.<k>...]; for the first of a
                     query [rule.places] instead of thresholds
    classes          null, or {dtype} [classes], or {dtype, values}
    error_costs      optional: {dtype} [error_costs.said], or {dtype, values}: what may be said
                     [error_costs.matrix]: its cost, by the true class
    categories       list of {feature, dtype} [categories.<feature>], or {feature, dtype, values}
    purchases        list of lists, in the order of the fields of ``Purchase``
    about            information only: the estimator and its parameters
    charge           optional: {by, mean_cost}: "row" (from format 3 on also "model"), and the mean
                     over the training rows or null

    [stages]         one row (ensemble, first round, last round, number of trees) each
    [ensemble.<i>.tree_starts] [ensemble.<i>.category_sets] [ensemble.<i>.baseline]
    [ensemble.<i>.nodes.<field>]: the fields of ``NODE_DTYPE``

A family of models has what they share, and a list of what is each one's own:

    scoring          name of the score that they were compared by
    models           the cheapest first: {cost, score} and rule, purchases, about, charge

    [models.<i>.stages], [models.<i>.rule.thresholds] ...
    [ensemble.<i>...]                of models that begin with the same trees the longest; a model
                     has as many rounds of it as its stages say
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import expit

from greedymiser.losses import BinaryLogLoss, Floats, Loss, MultinomialLogLoss, Poisson

# Raised when a file of the new form would be misread by the old code. Files of all earlier
# numbers stay readable: one of each kind is kept in tests/files. What the old code can read is
# still written in its number.
FORMAT = 3

# The format that brought each entry which not every file has.
SINCE = {"charge": 2, "models": 3, "error_costs": 3}

# What models of a family share, and what is each model's own. All of it is always there.
SHARED = {"kind", "feature_names", "costs", "loss", "classes", "categories"}
OWN = {"rule", "purchases", "about"}

# Ranking exits look at so many places at most.
MOST_PLACES = 2**16

# Fields of text labels may be wider than the longest label needs, up to this width.
WIDEST_SPARE_TEXT = 256

# NumPy's fields are all as wide as the longest label. One long label among many short ones must
# not take much more memory than it takes of the file: so many letters are always granted (16 MiB),
# ...
SPARE_LETTERS = 2**22

# ... and so many for each letter that is in the file.
SPACE_PER_LETTER = 4

# Labels that are integers beyond NumPy's have so many digits at most.
MOST_DIGITS = 100

# How deep the information about a model may be nested.
DEEPEST_ABOUT = 12

# Losses of a user are code, and not stored. What serving needs of them is how they answer.
OWN_LOSS = "own"


def format_of(text: Mapping[str, Any]) -> int:
    """The lowest format that has all that is in a description."""
    numbers = [since for name, since in SINCE.items() if name in text]
    if text.get("charge", {}).get("by") == "model":
        numbers.append(FORMAT)
    if (text.get("rule") or {}).get("name") in ("gates", "first_of_query"):
        numbers.append(FORMAT)
    return max(numbers, default=1)


class OwnLoss(Loss):
    """What is left of a user's loss in a file: from raw predictions to predictions."""

    def __init__(self, n_outputs: int):
        self.n_outputs = n_outputs


class _OwnExp(OwnLoss):
    response = Poisson.response


class _OwnSigmoid(OwnLoss):
    def response(self, raw: Floats) -> Floats:
        return expit(raw)


class _OwnTwoClasses(OwnLoss):
    response = BinaryLogLoss.response


class _OwnClasses(OwnLoss):
    response = MultinomialLogLoss.response


RESPONSES: dict[str, type[OwnLoss]] = {
    "identity": OwnLoss,
    "exp": _OwnExp,
    "sigmoid": _OwnSigmoid,
    "two_classes": _OwnTwoClasses,
    "softmax": _OwnClasses,
}

RULES = {
    "confident": {"threshold"},
    "proximity": {"slack", "n_exits", "place"},
    "above": set[str](),
    "gates": set[str](),
    "first_of_query": {"stay_ahead"},
}

NUMBERS = {dtype.name: dtype for dtype in map(np.dtype, "?bBhHiIqQefd")}
"""Labels of these types are stored as tensors, by name."""
