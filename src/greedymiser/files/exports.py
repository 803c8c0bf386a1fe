"""What all exported formats need: one ensemble, names and numbers that others can read."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.amounts import shortlist
from greedymiser.losses import Loss
from greedymiser.model.predictor import Predictor
from greedymiser.model.trees import NODE_DTYPE, Ensemble

Floats = NDArray[np.float64]

# A warning names so many of the names that had to change.
MOST_NAMED = 20


def whole_ensemble(predictor: Predictor, reader: str) -> Ensemble:
    """The trees of a model that all rows go through to the end."""
    if len(predictor.stages) > 1:
        raise ValueError(
            f"the model has {len(predictor.stages)} stages between which rows may leave, and "
            f"{reader} has no early exits; export the model inside instead (such as "
            "early_exit.estimator_), which all rows go through to the end"
        )
    if predictor.error_costs is not None:
        warnings.warn(
            f"error_costs are left out: {reader} has class probabilities, and no costs of errors; "
            "take the answer of the least expected cost yourself, as expected_costs has it",
            stacklevel=3,
        )
    (stage,) = predictor.stages
    return stage.ensemble.truncated(stage.last)


@dataclass(frozen=True)
class ExportedTrees:
    """Trees that say it all: the baseline is part of the first tree of each output."""

    nodes: NDArray[np.void]
    starts: NDArray[np.int64]
    category_sets: NDArray[np.uint64]
    n_outputs: int

    @classmethod
    def of(cls, ensemble: Ensemble) -> ExportedTrees:
        """A model without trees becomes trees of a single leaf."""
        nodes, starts, k = ensemble.nodes.copy(), ensemble.tree_starts, ensemble.n_outputs
        if ensemble.n_trees == 0:
            nodes, starts = np.zeros(k, dtype=NODE_DTYPE), np.arange(k + 1)
            nodes["feature"] = nodes["left"] = nodes["category_set"] = -1
        for i, baseline in enumerate(ensemble.baseline.tolist()):
            nodes["value"][starts[i] : starts[i + 1]] += baseline
        return cls(nodes, starts, ensemble.category_sets, k)

    def nodes_of(self, i: int) -> NDArray[np.void]:
        """The nodes of tree i."""
        return self.nodes[self.starts[i] : self.starts[i + 1]]


def nested(nodes: NDArray[np.void], make: Callable[[int, tuple[Any, Any] | None], Any]) -> Any:
    """A tree as one object: ``make`` is given a node's number, and its children unless a leaf."""
    made: list[Any] = [None] * len(nodes)
    for i in range(len(nodes) - 1, -1, -1):  # children come after their parents
        left = int(nodes["left"][i])
        made[i] = make(i, None if left < 0 else (made[left], made[left + 1]))
    return made[0]


# -- losses -----------------------------------------------------------------------------------


def known_objective(loss: Loss, objectives: Mapping[type[Loss], str]) -> str | None:
    """Name of the objective whose link is that of a loss: a finished model needs no more of it."""
    # The class of the loss, those that it derives from, and those from which it has its link.
    for kind in (*type(loss).__mro__, *objectives):
        if kind in objectives and responds_as(loss, kind):
            return objectives[kind]
    return None


def responds_as(loss: Loss, kind: type[Loss]) -> bool:
    """Whether the response of a loss is that of a class, and was not replaced."""
    return getattr(loss.response, "__func__", None) is kind.response


# -- names ------------------------------------------------------------------------------------


def readable_names(
    names: Sequence[str] | None, forbidden: re.Pattern[str], reader: str
) -> list[str] | None:
    """Feature names that a library can read, all different; warns of changes."""
    if names is None:
        return None
    readable = {name for name in names if name and not forbidden.search(name)}
    changed: dict[str, str] = {}
    # The number to try next for each stem: thousands of names may have the same one.
    numbers: dict[str, int] = {}
    for i, name in enumerate(names):
        if name in readable:
            continue
        stem = forbidden.sub("_", name) or f"Column_{i}"
        new, number = stem, numbers.get(stem, 2)
        while new in readable:
            new, number = f"{stem}_{number}", number + 1
        numbers[stem] = number
        readable.add(new)
        changed[name] = new
    if changed:
        listed = shortlist([f"{old!r} is {new!r}" for old, new in changed.items()], MOST_NAMED)
        warnings.warn(f"{reader} cannot read these feature names: {listed}", stacklevel=4)
    return [changed.get(name, name) for name in names]


# -- numbers ----------------------------------------------------------------------------------


def single_below(thresholds: Floats) -> NDArray[np.float32]:
    """The largest float32 that is not above: x <= threshold means the same for a float32 x."""
    with np.errstate(over="ignore"):
        nearest = thresholds.astype(np.float32)
        down = np.nextafter(nearest, np.float32(-np.inf))
    return np.where(nearest > thresholds, down, nearest)


def single_above(thresholds: Floats) -> Floats:
    """The smallest float32 that is above: x < it means x <= threshold for a float32 x."""
    with np.errstate(over="ignore"):
        return np.nextafter(single_below(thresholds), np.float32(np.inf)).astype(np.float64)


def finite_single(values: Floats) -> Floats:
    """Values with infinity replaced by the largest float32: JSON has no other."""
    largest = float(np.finfo(np.float32).max)
    return np.clip(values, -largest, largest)


def shortest_single(values: Floats) -> list[float]:
    """Numbers whose digits are the shortest from which each float32 can be read back."""
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    return [float(str(value)) for value in single]
