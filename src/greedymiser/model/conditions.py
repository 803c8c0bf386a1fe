"""What the splits on the way to a node say, in words."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.bits import unpacked
from greedymiser.data.tables import Categories
from greedymiser.model.trees import Ensemble

# Labels that are told; of longer lists, how many there are.
MOST_LABELS = 4


@dataclass
class _KnownRange:
    """What is known of a feature on the way: values in (low, high], or one of some labels."""

    low: float = -math.inf
    high: float = math.inf
    # Codes of the labels that are possible; None for numbers.
    codes: set[int] | None = None
    # Whether any value takes this way; else only a missing one does.
    may_be_there: bool = True
    # Whether a missing one does.
    may_be_missing: bool = True

    def say(self, name: str, labels: NDArray[Any] | None, is_ever_missing: bool) -> str:
        if not self.may_be_there:
            return f"{name} missing"
        text = self._say_values(name, labels)
        return f"{text} (or missing)" if is_ever_missing and self.may_be_missing else text

    def _say_values(self, name: str, labels: NDArray[Any] | None) -> str:
        if self.codes is not None and labels is not None:
            return _one_of(name, self.codes, labels)
        if math.isinf(self.low) and math.isinf(self.high):
            return f"{name} known"
        if math.isinf(self.low):
            return f"{name} ≤ {self.high:.4g}"
        if math.isinf(self.high):
            return f"{name} > {self.low:.4g}"
        return f"{self.low:.4g} < {name} ≤ {self.high:.4g}"


def _one_of(name: str, codes: set[int], labels: NDArray[Any]) -> str:
    others = [str(label) for code, label in enumerate(labels.tolist()) if code not in codes]
    mine = [str(label) for code, label in enumerate(labels.tolist()) if code in codes]
    if len(mine) <= min(MOST_LABELS, max(1, len(others))):
        return f"{name} = {' or '.join(mine)}"
    if len(others) <= MOST_LABELS:
        return f"{name} not {' or '.join(others)}"
    return f"{name} one of {len(mine)} labels"


class Conditions:
    """The conditions under which rows come to the nodes of an ensemble.

    Parameters
    ----------
    ensemble : Ensemble
    name_of : callable
        The name of a feature, by its position; None where it has none.
    categories : dict from feature to labels
    missing : collection of int
        Features that some of the rows lack: where such rows take the same way, that is said.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        name_of: Callable[[int], str | None],
        categories: Categories,
        missing: Collection[int] = (),
    ):
        self._ensemble, self._categories = ensemble, categories
        self._name_or_none, self._missing = name_of, frozenset(missing)
        # By node: what is said of each feature.
        self._texts: dict[int, dict[int, str]] = {}

    def of(self, node: int, row: NDArray[np.floating] | None = None) -> tuple[str, ...]:
        """One condition per feature on the way from the root, which has none.

        Of a row that has come there, what it lacks is told as missing.
        """
        if node not in self._texts:
            self._texts[node] = self._say(node)
        texts = self._texts[node]
        if row is None:
            return tuple(texts.values())
        return tuple(
            f"{self._name_of(feature)} missing" if np.isnan(row[feature]) else text
            for feature, text in texts.items()
        )

    def _name_of(self, feature: int) -> str:
        return self._name_or_none(feature) or f"feature {feature}"

    @cached_property
    def _parents(self) -> NDArray[np.int64]:
        """Parent of each node, -1 for roots."""
        nodes, starts = self._ensemble.nodes, self._ensemble.tree_starts
        parents = np.full(len(nodes), -1, dtype=np.int64)
        inner = np.flatnonzero(nodes["left"] >= 0)
        first = np.repeat(starts[:-1], np.diff(starts))[inner] + nodes["left"][inner]
        parents[first] = parents[first + 1] = inner
        return parents

    def _say(self, node: int) -> dict[int, str]:
        way, nodes, starts = [node], self._ensemble.nodes, self._ensemble.tree_starts
        while (parent := int(self._parents[way[0]])) >= 0:
            way.insert(0, parent)
        start = int(starts[np.searchsorted(starts, node, side="right") - 1])
        ranges: dict[int, _KnownRange] = {}
        for parent, child in itertools.pairwise(way):
            split = nodes[parent]
            known = ranges.setdefault(int(split["feature"]), _KnownRange())
            self._narrow(known, split, went_left=child == start + int(split["left"]))
        return {
            feature: known.say(
                self._name_of(feature), self._categories.get(feature), feature in self._missing
            )
            for feature, known in ranges.items()
        }

    def _narrow(self, known: _KnownRange, split: np.void, went_left: bool) -> None:
        threshold, which = float(split["threshold"]), int(split["category_set"])
        known.may_be_missing &= bool(split["missing_left"]) == went_left
        if which >= 0:
            labels = self._categories.get(int(split["feature"]), np.empty(0))
            inside = unpacked(self._ensemble.category_sets[which], len(labels))
            chosen = set(np.flatnonzero(inside).tolist())
            here = chosen if went_left else set(range(len(labels))) - chosen
            known.codes = here if known.codes is None else known.codes & here
            known.may_be_there = bool(known.codes)
        elif went_left:
            known.high = min(known.high, threshold)
        elif threshold == math.inf:
            known.may_be_there = False
        else:
            known.low = max(known.low, threshold)
