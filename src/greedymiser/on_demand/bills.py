"""What objects pay for their predictions, and what their receipts say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from greedymiser.model.conditions import Conditions
from greedymiser.model.row_costs import Owned
from greedymiser.on_demand.fallbacks import FallbackWalk, ObjectWalk, Taken
from greedymiser.on_demand.receipts import ObjectReceipt, Question
from greedymiser.on_demand.request import Request
from greedymiser.on_demand.row_walk import RowWalk
from greedymiser.on_demand.served_model import ServedModel
from greedymiser.on_demand.stage_walk import StageWalk


class Bill(NamedTuple):
    """What an object pays."""

    cost: float
    resources: dict[str, float]
    # Features that it was asked for, ascending.
    features: list[int]
    n_trees: int
    tree_cost: float
    stopped: str


class Billing:
    """Writes the receipts of a model's predictions."""

    def __init__(self, served: ServedModel):
        self.served = served
        self._predictor = served.predictor
        # Texts are made once per node, however many objects pass it.
        self._conditions = {
            id(stage.ensemble): Conditions(
                stage.ensemble, served.names.get, served.predictor.categories
            )
            for stage in served.predictor.stages
        }

    def receipts(self, walk: ObjectWalk) -> list[ObjectReceipt]:
        """Receipts of all objects that went through the model."""
        if isinstance(walk, RowWalk):
            return self._by_row(walk)
        pairs = zip(walk.requests, walk.left.tolist(), strict=True)
        return [self._receipt(request, self.stage_bills[k], ()) for request, k in pairs]

    @cached_property
    def stage_bills(self) -> list[Bill]:
        """The bill of an object that leaves after each stage, if all pay alike."""
        predictor, costs = self._predictor, self._predictor.costs
        features: set[int] = set()
        bills = []
        for k in range(len(predictor.stages)):
            features.update(predictor.stage_features(k))
            owned = sorted({resource for feature in features for resource in costs.needs[feature]})
            cost = float(predictor.stage_costs[k])
            bills.append(self._bill(cost, self._prices(owned), sorted(features), k))
        return bills

    def _by_row(self, walk: RowWalk) -> list[ObjectReceipt]:
        """Receipts of objects that pay for what their own paths asked for."""
        accounts, left, owned = self._predictor.accounts, walk.left, walk.way.owned
        costs = accounts.bills(owned, left).tolist()
        questions = walk.questions()
        receipts = []
        for i, request in enumerate(walk.requests):
            features = np.flatnonzero(walk.way.asked[i]).tolist()
            bill = self._bill(costs[i], self._resources(owned[i]), features, int(left[i]))
            asked = self._questions(walk, i, questions[i])
            receipts.append(self._receipt(request, bill, asked))
        return receipts

    def _bill(self, cost: float, resources: dict[str, float], features: list[int], k: int) -> Bill:
        n_trees, why = self._predictor.stages[k].n_trees, self._predictor.why_stopped(k)
        is_last = k == len(self._predictor.stages) - 1
        stopped = why if is_last else f"after {n_trees} trees: {why}"
        tree_cost = self._predictor.costs.bill([], n_trees)
        return Bill(cost, resources, features, n_trees, tree_cost, stopped)

    def _resources(self, owned: Owned) -> dict[str, float]:
        meter = self._predictor.accounts.meter
        marked = np.flatnonzero(meter.marks(owned[None])[0])
        return self._prices([meter.resources[j] for j in marked])

    def _prices(self, resources: list[int]) -> dict[str, float]:
        costs = self._predictor.costs
        return {costs.resource_names[r]: float(costs.resource_costs[r]) for r in resources}

    def prices_of(self, features: Sequence[int]) -> dict[str, float]:
        """Prices of all resources that these features need."""
        needs = self._predictor.costs.needs
        return self._prices(sorted({resource for f in features for resource in needs[f]}))

    def _questions(
        self, walk: RowWalk, i: int, places: Sequence[tuple[int, int]]
    ) -> tuple[Question, ...]:
        """The questions to an object at these nodes, each with what was not paid before it."""
        costs = self._predictor.costs
        paid: set[int] = set()
        asked = []
        for k, node in places:
            feature = int(self._predictor.stages[k].ensemble.nodes["feature"][node])
            new = [resource for resource in costs.needs[feature] if resource not in paid]
            paid.update(new)
            price = costs.bill(new, 0) if new else 0.0
            asked.append(self._question(walk, i, k, node, feature, price))
        return tuple(asked)

    def _question(
        self, walk: RowWalk, i: int, k: int, node: int, feature: int, cost: float
    ) -> Question:
        name = self.served.names[feature]
        source = self.served.maker[name]
        answer: Any = float(walk.rows[i, feature])
        labels = self._predictor.categories.get(feature)
        if source in walk.requests[i].unavailable or answer != answer:
            answer = None
        elif labels is not None:
            answer = labels[int(answer)]
        conditions = self._conditions[id(self._predictor.stages[k].ensemble)]
        return Question(name, source, answer, conditions.of(node, walk.rows[i]), cost)

    def _receipt(
        self, request: Request, bill: Bill, questions: tuple[Question, ...]
    ) -> ObjectReceipt:
        missing: tuple[str, ...] = ()
        not_called: tuple[str, ...] = ()
        asked = [self.served.names[f] for f in bill.features]
        if request.unavailable:
            missing = tuple(name for name in asked if self._makes(name) in request.unavailable)
            uncalled = request.unavailable.difference(request.seconds)
            not_called = tuple(s.name for s in self.served.plan if s.name in uncalled)
        return ObjectReceipt(
            index=request.index,
            cost=bill.cost,
            resources=dict(bill.resources),
            n_trees=bill.n_trees,
            tree_cost=bill.tree_cost,
            seconds=request.seconds,
            failures=request.failures,
            missing=missing,
            not_called=not_called,
            stopped=bill.stopped,
            questions=questions,
            cached=tuple(request.cached),
            in_vain=self._in_vain(request, bill.features),
        )

    def _makes(self, column: str) -> str:
        return self.served.maker[column]

    def _in_vain(self, request: Request, features: Sequence[int]) -> tuple[str, ...]:
        """Sources that were called and that nothing on the object's path has needed."""
        needed = {source.name for f in features for source in self.served.supplies[f].plan}
        return tuple(name for name in request.seconds if name not in needed)


class Bills:
    """Receipts of a model and of those that it falls back to."""

    def __init__(self, model: ServedModel, fallbacks: Sequence[ServedModel]):
        self._main = Billing(model)
        self._model = model
        self._fallbacks = [Billing(served) for served in fallbacks]

    def receipts(self, walk: ObjectWalk | FallbackWalk) -> list[ObjectReceipt]:
        if not isinstance(walk, FallbackWalk):
            return self._main.receipts(walk)
        found = self._main.receipts(walk.main)
        for i, request in enumerate(walk.main.requests):
            taken = walk.taken.get(request.index)
            if taken is not None:
                found[i] = self._fallback(walk.main, request, taken)
        return found

    def _fallback(self, main: StageWalk | RowWalk, request: Request, taken: Taken) -> ObjectReceipt:
        """An object pays for what was called for the model before, and for the fallback's path."""
        billing = self._fallbacks[taken.number]
        receipt = billing.receipts(taken.walk)[0]
        names, maker = self._model.names, self._model.maker
        called = [f for f in main.features_asked(request) if maker[names[f]] in request.seconds]
        resources = {**self._main.prices_of(called), **receipt.resources}
        n_trees = main.n_trees_met(request)
        tree_cost = receipt.tree_cost + n_trees * self._model.predictor.costs.tree_cost
        needed = {s.name for f in called for s in self._model.supplies[f].plan}
        for walk in taken.before:  # fallbacks that failed, too
            served = walk.served
            asked = [
                f
                for f in walk.features_asked(request)
                if served.maker[served.names[f]] in request.seconds
            ]
            billing = next(b for b in self._fallbacks if b.served is served)
            resources.update(billing.prices_of(asked))
            needed.update(s.name for f in asked for s in served.supplies[f].plan)
        return replace(
            receipt,
            cost=math.fsum([*resources.values(), tree_cost]),
            resources=resources,
            n_trees=receipt.n_trees + n_trees,
            tree_cost=tree_cost,
            not_called=tuple(
                s.name
                for s in self._model.plan
                if s.name in request.unavailable and s.name not in request.seconds
            ),
            in_vain=tuple(name for name in receipt.in_vain if name not in needed),
            fallback=taken.number,
            why_fallback=taken.why,
        )
