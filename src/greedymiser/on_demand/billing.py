"""What objects pay for their predictions, and what their receipts say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from greedymiser.model.conditions import Conditions
from greedymiser.model.predictor import Predictor
from greedymiser.model.row_costs import Owned
from greedymiser.on_demand.journeys import Journeys
from greedymiser.on_demand.receipts import ObjectReceipt, Question
from greedymiser.on_demand.visits import Visit


class Bill(NamedTuple):
    """What an object pays."""

    cost: float
    resources: dict[str, float]
    # Features that it was asked for, ascending.
    features: list[int]


class Cashier:
    """Writes the receipts of a model's predictions."""

    def __init__(
        self,
        predictor: Predictor,
        columns: Mapping[int, str],
        maker: Mapping[str, str],
        fetches: Sequence[str],
    ):
        self._predictor = predictor
        # The column of each feature, and the source of each column.
        self._columns, self._maker = columns, maker
        # All that may be called, in a possible order.
        self._fetches = fetches
        # Texts are made once per node, however many objects pass it.
        self._conditions = {
            id(stage.ensemble): Conditions(stage.ensemble, columns.get, predictor.categories)
            for stage in predictor.stages
        }

    def by_stage(self, visit: Visit, k: int) -> ObjectReceipt:
        """The receipt of an object that pays for all that is in the stages it met."""
        return self._receipt(visit, k, self._stage_bills[k], ())

    @cached_property
    def _stage_bills(self) -> list[Bill]:
        predictor, costs = self._predictor, self._predictor.costs
        features: set[int] = set()
        bills = []
        for k in range(len(predictor.stages)):
            features.update(predictor.stage_features(k))
            owned = sorted({resource for feature in features for resource in costs.needs[feature]})
            cost = float(predictor.stage_costs[k])
            bills.append(Bill(cost, self._prices(owned), sorted(features)))
        return bills

    def by_row(self, journeys: Journeys) -> list[ObjectReceipt]:
        """Receipts of objects that pay for what their own paths asked for."""
        accounts, left, owned = self._predictor.accounts, journeys.left, journeys.way.owned
        costs = accounts.bills(owned, left).tolist()
        questions = journeys.questions()
        receipts = []
        for i, visit in enumerate(journeys.visits):
            features = np.flatnonzero(journeys.way.asked[i]).tolist()
            bill = Bill(costs[i], self._resources(owned[i]), features)
            asked = self._questions(journeys, i, questions[i])
            receipts.append(self._receipt(visit, int(left[i]), bill, asked))
        return receipts

    def _resources(self, owned: Owned) -> dict[str, float]:
        meter = self._predictor.accounts.meter
        marked = np.flatnonzero(meter.marks(owned[None])[0])
        return self._prices([meter.resources[j] for j in marked])

    def _prices(self, resources: list[int]) -> dict[str, float]:
        costs = self._predictor.costs
        return {costs.resource_names[r]: float(costs.resource_costs[r]) for r in resources}

    def _questions(
        self, journeys: Journeys, i: int, places: Sequence[tuple[int, int]]
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
            asked.append(self._question(journeys, i, k, node, feature, price))
        return tuple(asked)

    def _question(
        self, journeys: Journeys, i: int, k: int, node: int, feature: int, cost: float
    ) -> Question:
        name = self._columns[feature]
        source = self._maker[name]
        answer: Any = float(journeys.rows[i, feature])
        labels = self._predictor.categories.get(feature)
        if source in journeys.visits[i].unavailable or answer != answer:
            answer = None
        elif labels is not None:
            answer = labels[int(answer)]
        conditions = self._conditions[id(self._predictor.stages[k].ensemble)]
        return Question(name, source, answer, conditions.of(node, journeys.rows[i]), cost)

    def _receipt(
        self, visit: Visit, k: int, bill: Bill, questions: tuple[Question, ...]
    ) -> ObjectReceipt:
        missing: tuple[str, ...] = ()
        not_called: tuple[str, ...] = ()
        if visit.unavailable:
            asked = [self._columns[f] for f in bill.features]
            missing = tuple(name for name in asked if self._maker[name] in visit.unavailable)
            uncalled = visit.unavailable.difference(visit.seconds)
            not_called = tuple(name for name in self._fetches if name in uncalled)
        n_trees = self._predictor.stages[k].n_trees
        why = self._predictor.why_stopped(k)
        is_last = k == len(self._predictor.stages) - 1
        return ObjectReceipt(
            index=visit.index,
            cost=bill.cost,
            resources=dict(bill.resources),
            n_trees=n_trees,
            tree_cost=self._predictor.costs.bill([], n_trees),
            seconds=visit.seconds,
            failures=visit.failures,
            missing=missing,
            not_called=not_called,
            stopped=why if is_last else f"after {n_trees} trees: {why}",
            questions=questions,
        )
