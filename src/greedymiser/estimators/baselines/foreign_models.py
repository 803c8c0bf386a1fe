"""Trees that another library has grown, as ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.bits import set_of
from greedymiser.costs.cost_model import CostModel, Feature, Ledger, Purchase
from greedymiser.data.tables import Categories
from greedymiser.losses import BinaryLogLoss, Kind, Loss, MultinomialLogLoss
from greedymiser.model.trees import CATEGORY_WORDS, NODE_DTYPE, Ensemble, Tree

Floats = NDArray[np.float64]

# Codes of categories that a set of ours has room for.
MOST_CATEGORIES = 64 * CATEGORY_WORDS

# Rows on which both ways to evaluate the trees are compared.
N_PROBES = 64

# Libraries that add up float32 differ from us by so much at most, of the largest prediction.
TOLERANCE = 1e-5


class UnreadableModelError(ValueError):
    """A model of another library has something that our trees cannot express."""


@dataclass(frozen=True)
class ForeignModel:
    """A model of another library, in our terms."""

    # The library and its version, for messages.
    library: str
    kind: Kind
    ensemble: Ensemble
    loss: Loss
    classes: NDArray[Any] | None
    # Names of the columns, where it was trained on a data frame.
    names: tuple[str, ...] | None
    # Raw predictions (n_outputs, n) of rows in its own terms, by the library itself.
    answer: Callable[[Floats], Floats]
    categories: Categories = field(default_factory=dict)
    # How the library itself writes the categories of a feature, in the order of our codes.
    codes: Mapping[int, Floats] = field(default_factory=dict)
    # Whether the trees of a round are copies of one tree that has several outputs.
    has_copies: bool = False
    # Whether predictions are the baseline and a mean over the rounds, as those of forests are;
    # values in the trees are divided by their number already.
    is_mean: bool = False
    allows_missing: bool = True

    def check(self) -> None:
        """Raise unless our trees and the library say the same of some rows."""
        rows = self._probes()
        ours = np.repeat(self.ensemble.baseline[:, None], len(rows), axis=1)
        self.ensemble.serving.add(rows, ours, 0, self.ensemble.n_trees)
        theirs = rows.copy()
        for feature, values in self.codes.items():
            is_present = ~np.isnan(rows[:, feature])
            theirs[is_present, feature] = values[rows[is_present, feature].astype(np.intp)]
        expected = self.answer(theirs).reshape(ours.shape)
        slack = TOLERANCE * max(1.0, float(np.abs(expected).max()))
        if not np.allclose(ours, expected, rtol=0, atol=slack):
            raise UnreadableModelError(
                f"the trees of this model, of {self.library}, were not read as that library "
                f"evaluates them: predictions differ by {np.abs(ours - expected).max():g}"
            )

    def _probes(self) -> Floats:
        """Rows around the thresholds of the trees, some values missing."""
        rng = np.random.default_rng(0)
        rows = rng.standard_normal((N_PROBES, self.ensemble.n_features))
        nodes = self.ensemble.nodes
        for feature in self.ensemble.features:
            if feature in self.codes:
                rows[:, feature] = rng.integers(0, len(self.codes[feature]), N_PROBES)
                continue
            near = nodes["threshold"][nodes["feature"] == feature]
            near = near[np.isfinite(near)]
            if len(near):
                # Not closer to a threshold than a float32 can tell.
                step = rng.choice([-1.0, 1e-6, 1.0], N_PROBES)
                drawn = rng.choice(near, N_PROBES)
                rows[:, feature] = drawn + step * np.maximum(np.abs(drawn), 1e-3)
        if self.allows_missing:
            rows[rng.random(rows.shape) < 0.1] = np.nan
        return rows


def log_loss_of(n_classes: int) -> Loss:
    """The loss whose response gives the probabilities of so many classes."""
    return BinaryLogLoss() if n_classes == 2 else MultinomialLogLoss(n_classes)


def make_tree(
    feature: NDArray[Any], threshold: NDArray[Any], left: NDArray[Any], right: NDArray[Any],
    value: NDArray[Any], missing_left: NDArray[Any], gain: NDArray[Any] | None = None,
    sets: Mapping[int, Iterable[int]] | None = None,
) -> Tree:  # fmt: skip
    """A tree of ours from arrays over nodes; ``left`` is negative in leaves, the root is node 0.

    ``sets`` has the codes that go left at the nodes that split by category.
    """
    order, first, depth = _in_pairs(left, right)
    nodes = np.zeros(len(order), dtype=NODE_DTYPE)
    is_leaf = first < 0
    nodes["value"] = value[order]
    nodes["threshold"] = np.where(is_leaf, 0.0, threshold[order])
    nodes["feature"] = np.where(is_leaf, -1, feature[order])
    nodes["left"], nodes["depth"] = first, depth
    nodes["missing_left"] = np.where(is_leaf, False, missing_left[order])
    nodes["category_set"] = -1
    if gain is not None:
        nodes["gain"] = np.where(is_leaf, 0.0, gain[order])
    place = {int(node): i for i, node in enumerate(order)}
    bits = [set_of(codes, CATEGORY_WORDS) for codes in (sets or {}).values()]
    for i, node in enumerate(sets or ()):
        nodes["category_set"][place[node]] = i
    return Tree(nodes, np.array(bits, dtype=np.uint64).reshape(-1, CATEGORY_WORDS))


def _in_pairs(
    left: NDArray[Any], right: NDArray[Any]
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """Nodes in an order in which siblings lie side by side, their first child, and their depth."""
    lefts, rights = left.tolist(), right.tolist()
    order, first, depth = [0], [], [0]
    for place, node in enumerate(order):  # which grows while it is gone through
        if lefts[node] < 0:
            first.append(-1)
            continue
        first.append(len(order))
        order += [lefts[node], rights[node]]
        depth += [depth[place] + 1] * 2
    return (np.array(order, dtype=np.intp), np.array(first, dtype=np.intp),
            np.array(depth, dtype=np.intp))  # fmt: skip


def sorted_labels(labels: list[Any]) -> tuple[NDArray[np.intp], NDArray[Any]]:
    """Labels in our order, and where each was."""
    if all(isinstance(label, int | float) and not isinstance(label, bool) for label in labels):
        numbers = np.array(labels, dtype=np.float64)
        order = np.argsort(numbers)
        return order, numbers[order]
    objects = np.empty(len(labels), dtype=object)
    objects[:] = labels
    return np.arange(len(labels)), objects


def check_number_of_categories(feature: int, n: int) -> None:
    """Raise if a feature has more categories than our sets have room for."""
    if n > MOST_CATEGORIES:
        raise UnreadableModelError(
            f"feature {feature} has {n} categories, and our trees know at most {MOST_CATEGORIES}"
        )


def make_ensemble(
    trees: Sequence[Tree], baseline: Floats | Sequence[float], n_features: int
) -> Ensemble:
    """Trees of one output after the other, round by round."""
    return Ensemble.empty(np.asarray(baseline, dtype=np.float64), n_features).extended(trees)


def below_in_single(threshold: NDArray[Any], *, strictly: bool) -> Floats:
    """Largest float64 that, rounded to float32, is at most (or below) each threshold.

    What libraries that look at float32 ask becomes a question about the numbers themselves.
    """
    wanted = np.asarray(threshold, dtype=np.float64)
    with np.errstate(over="ignore"):
        single = wanted.astype(np.float32)
        too_large = single >= wanted if strictly else single > wanted
        last = np.where(too_large, np.nextafter(single, np.float32(-np.inf)), single)
        beyond = np.nextafter(last, np.float32(np.inf))
        # As if the numbers of float32 went on where they end.
        ends = [np.clip(edge.astype(np.float64), -(2.0**128), 2.0**128) for edge in (last, beyond)]
        middle = (ends[0] + ends[1]) / 2
        # A number in the middle of two is rounded to the even one.
        stays = middle.astype(np.float32) <= last
    threshold_below = np.where(stays, middle, np.nextafter(middle, -np.inf))
    return np.where(np.isfinite(wanted), threshold_below, wanted)


def purchases_of(
    ensemble: Ensemble, costs: CostModel, name: Callable[[int], Feature]
) -> tuple[Purchase, ...]:
    """What the trees would have bought, had each feature been paid for at its first split."""
    ledger = Ledger(costs)
    purchases = []
    for t in range(ensemble.n_trees):
        for node in ensemble.tree(t).nodes:
            feature = int(node["feature"])
            if feature < 0 or ledger.owned_features[feature]:
                continue
            price = float(ledger.prices[feature])
            resources = ledger.buy(feature)
            terms = (resources, price, ledger.spent, float(node["gain"]))
            iteration, output = divmod(t, ensemble.n_outputs)
            purchases.append(Purchase(iteration, output, int(node["depth"]), name(feature), *terms))
    return tuple(purchases)


def with_scaled_values(ensemble: Ensemble, factor: float) -> Ensemble:
    """The same trees with all values multiplied."""
    nodes = ensemble.nodes.copy()
    nodes["value"] *= factor
    return replace(ensemble, nodes=nodes, baseline=ensemble.baseline * factor)
