"""Gates between machines: an image is described further only where that is worth its price.

The states are growing sets of descriptors, each with the machine of their averaged kernel, and what
the machine says is turned into probabilities. Who goes on is learned as in the package's gated
cascades (``greedymiser.cascades.policy``): from the dearest set backwards, by what machines say of
training images that they have not seen. No tree says what an image shows; trees say whether to look
further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.scenes.crossfit import fold_of
from experiments.scenes.images import Floats, Indices
from experiments.scenes.stacking import Opinions
from greedymiser.cascades.gates import GateInputs
from greedymiser.cascades.policy import States, induce
from greedymiser.model.gating import Gate

GATED_MACHINES = "gates between machines"
EXITS = "early exits between machines"

# What leads are multiplied by before they become probabilities: the best on training images.
SHARPNESS = np.geomspace(1.0, 30.0, 18)
# The drop in mean log-loss that a millisecond must bring: from much to nothing.
TRADEOFFS = np.geomspace(0.3, 3e-4, 16)
# Probabilities of the likeliest class beyond which an image leaves.
THRESHOLDS = (0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99)


def probabilities(ahead: Floats, sharpness: float) -> Floats:
    """Probabilities of classes by leads; the one that is ahead is likeliest."""
    raw = np.exp(sharpness * np.minimum(ahead, 0.0).astype(np.float64))
    return raw / raw.sum(axis=1, keepdims=True)


def said_of(chances: Floats) -> Floats:
    """What a gate is told: the two largest probabilities, the first of them last."""
    return np.partition(chances, -2, axis=1)[:, -2:]


Rule = Callable[[Floats], NDArray[np.bool_]]
"""Says which images go on, by their probabilities."""


@dataclass(frozen=True, eq=False)
class Leaving:
    """Machines in the order in which images meet them, and who goes on behind each but the last."""

    chain: tuple[int, ...]
    rules: tuple[Rule, ...]


@dataclass(frozen=True, eq=False)
class Offer:
    """What could be served: mean cost and log-loss of training images that nothing has seen."""

    leaving: Leaving
    cost: float
    loss: float


@dataclass(frozen=True, eq=False)
class Outcome:
    """Probabilities with which images leave, and what they pay."""

    chances: Floats
    paid: NDArray[np.float64]

    @property
    def cost(self) -> float:
        return float(self.paid.mean())

    def accuracy(self, labels: Indices) -> float:
        return float(np.mean(self.chances.argmax(axis=1) == labels))


@dataclass(frozen=True, eq=False)
class MachineStates:
    """Machines of growing sets: what they say of some images, and what they cost."""

    opinions: Opinions
    sets: Sequence[Sequence[str]]

    @property
    def n_sets(self) -> int:
        return len(self.sets)

    @property
    def n_classes(self) -> int:
        return self.opinions.train.X.shape[1] // self.n_sets

    @cached_property
    def sharpness(self) -> list[float]:
        """Of each machine, by the training images that it has not seen."""
        y = self.opinions.train.y
        return [
            min(SHARPNESS.tolist(), key=lambda s: float(losses(probabilities(X, s), y).mean()))
            for X in self.columns(self.opinions.train.X)
        ]

    def columns(self, X: Floats) -> list[Floats]:
        """Leads by each machine."""
        return np.split(X, self.n_sets, axis=1)

    def chances(self, X: Floats) -> list[Floats]:
        """Probabilities by each machine."""
        return [
            probabilities(ahead, sharp)
            for ahead, sharp in zip(self.columns(X), self.sharpness, strict=True)
        ]

    @cached_property
    def prices(self) -> NDArray[np.float64]:
        """What each set costs by itself, less its machine."""
        costs, n = self.opinions.costs, self.n_classes
        totals = [costs.total(range(i * n, (i + 1) * n)) for i in range(self.n_sets)]
        return np.array(totals) - self.entry

    @cached_property
    def entry(self) -> float:
        """What a machine costs whose set is paid, and a gate behind it."""
        costs = self.opinions.costs
        machine = dict(zip(costs.resource_names, costs.resource_costs, strict=True))
        return float(machine["set 0: machine"]) + 4 * costs.tree_cost

    @cached_property
    def known(self) -> States:
        """What is known of training images that machines have not seen."""
        y = self.opinions.train.y
        chances = self.chances(self.opinions.train.X)
        said = [said_of(chance).astype(np.float64) for chance in chances]
        order = np.arange(self.n_sets)
        return States(
            prices=self.prices,
            within=order[:, None] < order,
            values=np.array([losses(chance, y) for chance in chances]),
            inputs=lambda state: GateInputs(said[state], (0, 1), n_features=0, n_columns=2),
            folds=fold_of(y),
            entry=np.full(self.n_sets, self.entry),
        )

    def policies(self) -> Iterator[Offer]:
        """Gated cascades for a range of trade-offs, and each machine for everybody."""
        for state in range(self.n_sets):
            yield self._judged(Leaving((state,), ()))
        known = self.known
        for tradeoff in TRADEOFFS.tolist():
            policy = induce(known, tradeoff)
            gates = [stage.gate for stage in policy.stages if stage.gate is not None]
            chain = tuple(stage.state for stage in policy.stages)
            loss = np.take_along_axis(known.values, policy.stopped[None], axis=0).mean()
            # By gates that have not seen the image, as the machines have not.
            cost = float((policy.price + known.prices[0]).mean())
            yield Offer(Leaving(chain, tuple(map(gate_rule, gates))), cost, float(loss))

    def exits(self) -> Iterator[Offer]:
        """Images that leave when a class is likely enough; chains begin with each set."""
        for first in range(self.n_sets):
            chain = tuple(range(first, self.n_sets))
            for threshold in THRESHOLDS:
                rules = (partial(is_unsure, threshold),) * (len(chain) - 1)
                yield self._judged(Leaving(chain, rules))

    def _judged(self, leaving: Leaving) -> Offer:
        train = self.opinions.train
        outcome = self.run(leaving, train.X)
        return Offer(leaving, outcome.cost, float(losses(outcome.chances, train.y).mean()))

    def run(self, leaving: Leaving, X: Floats) -> Outcome:
        """What becomes of images: their probabilities where they leave, and what they pay."""
        chances = self.chances(X)
        last = np.empty((len(X), self.n_classes))
        paid, here = np.zeros(len(X)), np.arange(len(X))
        for position, state in enumerate(leaving.chain):
            said = chances[state][here]
            last[here] = said
            paid[here] += self.entry
            goes_on = np.zeros(len(here), dtype=bool)
            if position < len(leaving.rules):
                goes_on = leaving.rules[position](said)
            paid[here[~goes_on]] += self.prices[state]
            here = here[goes_on]
        return Outcome(last, paid)


def chosen_for_budgets(
    states: MachineStates, method: str, offers: Iterable[Offer], budgets: Sequence[float]
) -> list[dict[str, Any]]:
    """For each budget, what has the least log-loss on training images that no machine has seen."""
    seen = states.opinions
    found, rows = list(offers), list[dict[str, Any]]()
    for budget in budgets:
        within = [offer for offer in found if offer.cost <= budget]
        if not within:
            continue
        leaving = min(within, key=lambda offer: (offer.loss, offer.cost)).leaving
        on_valid, on_test = (states.run(leaving, part.X) for part in (seen.valid, seen.test))
        used = leaving.chain[-1]
        rows.append(
            {
                "method": method,
                "split": seen.split.number,
                "parameter": budget,
                "valid_cost": on_valid.cost,
                "valid_score": on_valid.accuracy(seen.valid.y),
                "cost": on_test.cost,
                "score": on_test.accuracy(seen.test.y),
                "n_trees": 0,
                "n_features": len(leaving.chain) * states.n_classes,
                "n_descriptors": len(states.sets[used]),
            }
        )
    return rows


def gate_rule(gate: Gate) -> Rule:
    """A learned gate, as a rule."""

    def goes_on(chances: Floats) -> NDArray[np.bool_]:
        return np.asarray(gate.estimates(said_of(chances)) > gate.threshold)

    return goes_on


def is_unsure(threshold: float, chances: Floats) -> NDArray[np.bool_]:
    """Images whose likeliest class is no likelier than this."""
    return np.asarray(chances.max(axis=1) <= threshold)


def losses(chances: Floats, labels: Indices) -> NDArray[np.float64]:
    """Log-loss of each image."""
    return -np.log(np.maximum(chances[np.arange(len(labels)), labels], 1e-9))
