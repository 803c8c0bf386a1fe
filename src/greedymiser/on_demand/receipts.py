"""Receipts: what objects pay for their predictions, and what predictions took."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.text_tables import LineTable
from greedymiser.model.conditions import Conditions
from greedymiser.model.row_costs import Owned
from greedymiser.on_demand.fallbacks import Detour, FallbackWalk
from greedymiser.on_demand.measuring import pretty_seconds
from greedymiser.on_demand.request import Request
from greedymiser.on_demand.sources import AcquisitionError
from greedymiser.on_demand.walks import ObjectWalk, RowWalk, ServedModel

# Receipts that are printed on a terminal.
MOST_SHOWN = 20


@dataclass(frozen=True)
class Question:
    """Something that the path of an object asked for.

    Examples
    --------
    >>> print(Question("TSH", "laboratory", 4.25, since=("age > 60",)))
    TSH: 4.25
    """

    # The column that was asked for, and the source that makes it.
    feature: str
    source: str
    # What it was: a number or a label; None where it is missing.
    answer: Any
    # The splits on the way to the question; none where everyone is asked.
    since: tuple[str, ...]
    # What it added to the cost: the price of resources that no question before it had needed.
    cost: float = 0.0

    def __str__(self) -> str:
        answer = f"{self.answer:.6g}" if isinstance(self.answer, float) else self.answer
        text = "missing" if self.answer is None else answer
        return f"{self.feature}: {text}"


@dataclass(frozen=True)
class ObjectReceipt:
    """What the prediction for one object took.

    The cost is the price of the object's path through the model, so that the sum over objects is
    that of ``prediction_costs``. It includes resources of sources that failed, and of those in
    ``not_called``, which need not be paid.

    Examples
    --------
    >>> receipt = ObjectReceipt(
    ...     0, 1.5, {"report": 1.5}, 10, 0.0, {"report": 0.02}, {}, (), (), "after all 10 trees")
    >>> receipt.fetched, receipt.total_seconds
    (('report',), 0.02)
    """

    # Position of the object among those that were given.
    index: int
    # What it cost by the model's prices: the resources and the trees below.
    cost: float
    # Prices of the resources of the cost model that are on its path.
    resources: dict[str, float]
    # Trees that the object met, and what they cost together.
    n_trees: int
    tree_cost: float
    # Measured wall time of every source and intermediate that was called, in order.
    seconds: dict[str, float]
    # What failed, and the columns that the model therefore took as missing.
    failures: dict[str, AcquisitionError]
    missing: tuple[str, ...]
    # Sources and intermediates on its path that were never called: something that they need
    # failed, or too many earlier calls still hang.
    not_called: tuple[str, ...]
    # Why there were no more trees.
    stopped: str
    # For charge="row": all columns that were asked for, in order. Each question follows from the
    # answers before it.
    questions: tuple[Question, ...] = ()
    # What was in a cache (it is in the cost as if it had been called), and what was fetched ahead
    # and not needed (it is not).
    cached: tuple[str, ...] = ()
    in_vain: tuple[str, ...] = ()
    # Which of the fallbacks answered, from 0; None where the model itself did. And why: not empty
    # where a fallback answered, or a gated cascade in an earlier state than its gates wanted.
    fallback: int | None = None
    why_fallback: str = ""

    @property
    def fetched(self) -> tuple[str, ...]:
        """Sources and intermediates that were called."""
        return tuple(self.seconds)

    @property
    def total_seconds(self) -> float:
        """Measured wall time of all calls; some may have run concurrently."""
        return math.fsum(self.seconds.values())

    def protocol(self) -> str:
        """What was asked, what the answer was, and what was therefore asked next.

        Behind each answer is its cost, 0 where all was paid before; with the trees, they add up to
        the cost of the object. Only models with ``charge="row"`` ask each object for itself.

        Examples
        --------
        >>> asked = Question("TSH", "laboratory", 4.25, since=(), cost=22.5)
        >>> receipt = ObjectReceipt(0, 23.0, {"laboratory": 22.5}, 10, 0.5, {}, {}, (), (),
        ...     "it has met all trees", (asked,))
        >>> print(receipt.protocol())
        object 0: 23
          asked TSH: 4.25 (22.5)
          then it has met all trees (trees: 0.5)
        """
        lines = [f"object {self.index}: {self.cost:.6g}"]
        if self.fallback is not None:
            lines.append(f"  fallback {self.fallback}, since {self.why_fallback}")
        for question in self.questions:
            hence = f"since {' and '.join(question.since)}, asked" if question.since else "asked"
            lines.append(f"  {hence} {question} ({question.cost:.6g})")
        trees = f" (trees: {self.tree_cost:.6g})" if self.tree_cost else ""
        return "\n".join([*lines, f"  then {self.stopped}{trees}"])


class Receipts(LineTable[ObjectReceipt]):
    """A receipt per object. Prints as a table; ``to_frame()`` for pandas.

    Examples
    --------
    >>> paid = ObjectReceipt(0, 1.5, {"report": 1.5}, 10, 0.0, {}, {}, (), (), "after all 10 trees")
    >>> free = ObjectReceipt(1, 0.0, {}, 10, 0.0, {}, {}, (), (), "after all 10 trees")
    >>> Receipts([paid, free]).costs.tolist()
    [1.5, 0.0]
    """

    @property
    def costs(self) -> NDArray[np.float64]:
        """What each prediction cost, as ``prediction_costs`` says."""
        return np.array([receipt.cost for receipt in self], dtype=np.float64)

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Measured seconds of each object's calls."""
        return np.array([receipt.total_seconds for receipt in self], dtype=np.float64)

    def to_frame(self) -> Any:
        """Return a pandas DataFrame, one row per object."""
        import pandas as pd

        rows = [
            (
                receipt.index,
                receipt.cost,
                receipt.n_trees,
                receipt.tree_cost,
                receipt.total_seconds,
                receipt.fetched,
                tuple(receipt.failures),
                receipt.missing,
                receipt.not_called,
                receipt.stopped,
                receipt.fallback,
                receipt.why_fallback,
                receipt.cached,
                receipt.in_vain,
            )
            for receipt in self
        ]
        names = ["index", "cost", "n_trees", "tree_cost", "seconds", "fetched", "failed", "missing"]
        names += ["not_called", "stopped", "fallback", "why_fallback", "cached", "in_vain"]
        return pd.DataFrame(rows, columns=names)

    def __repr__(self) -> str:
        costs = f", {self.costs.mean():g} each on average" if len(self) else ""
        return f"<Receipts of {len(self)} predictions{costs}>"

    def __str__(self) -> str:
        table, more = super(Receipts, self[:MOST_SHOWN]).__str__(), len(self) - MOST_SHOWN
        return f"{table}\n... and {more} more" if more > 0 else table

    _heads = ("object", "cost", "trees", "measured", "fetched", "stopped")
    _left = frozenset({4, 5})

    def _rows(self, receipts: Sequence[ObjectReceipt]) -> list[tuple[str, ...]]:
        return [
            (
                str(receipt.index),
                f"{receipt.cost:.6g}",
                str(receipt.n_trees),
                pretty_seconds(receipt.total_seconds),
                ", ".join(
                    f"{name} (failed)" if name in receipt.failures else name
                    for name in receipt.fetched
                ),
                receipt.stopped,
            )
            for receipt in receipts
        ]


# -- what objects pay -----------------------------------------------------------------------------


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
        questions = []
        for k, node in places:
            feature = int(self._predictor.stages[k].ensemble.nodes["feature"][node])
            new = [resource for resource in costs.needs[feature] if resource not in paid]
            paid.update(new)
            price = costs.bill(new, 0) if new else 0.0
            questions.append(self._question(walk, i, k, node, feature, price))
        return tuple(questions)

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
        columns = [self.served.names[f] for f in bill.features]
        if request.unavailable:
            missing = tuple(name for name in columns if self._makes(name) in request.unavailable)
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
        self._billing = {id(each.served): each for each in (self._main, *self._fallbacks)}

    def receipts(self, walk: ObjectWalk | FallbackWalk) -> list[ObjectReceipt]:
        if not isinstance(walk, FallbackWalk):
            return self._main.receipts(walk)
        receipts = self._main.receipts(walk.main)
        for i, request in enumerate(walk.main.requests):
            detour = walk.detours.get(request.index)
            if detour is not None:
                if detour.fallback is not None:
                    receipts[i] = self._fallbacks[detour.fallback].receipts(detour.walk)[0]
                receipts[i] = self._with_detour(receipts[i], request, detour)
        return receipts

    def _with_detour(
        self, receipt: ObjectReceipt, request: Request, detour: Detour
    ) -> ObjectReceipt:
        """An object also pays for what was called before, or for a state that it did not reach."""
        resources = dict(receipt.resources)
        needed: set[str] = set()
        for walk in (*detour.before, detour.walk) if detour.is_over else detour.before:
            served = walk.served
            called = [
                f
                for f in walk.features_asked(request)
                if served.maker[served.names[f]] in request.seconds
            ]
            resources.update(self._billing[id(served)].prices_of(called))
            needed.update(s.name for f in called for s in served.supplies[f].plan)
        n_trees = [walk.n_trees_met(request) for walk in detour.before]
        prices = [walk.served.predictor.costs.tree_cost for walk in detour.before]
        tree_cost = receipt.tree_cost + sum(map(operator.mul, n_trees, prices))
        stopped = receipt.stopped
        if detour.is_over:
            stopped = f"after {receipt.n_trees} trees: more is not to be had"
        return replace(
            receipt,
            cost=math.fsum([*resources.values(), tree_cost]),
            resources=resources,
            n_trees=receipt.n_trees + sum(n_trees),
            tree_cost=tree_cost,
            not_called=tuple(
                s.name
                for s in self._model.plan
                if s.name in request.unavailable and s.name not in request.seconds
            ),
            in_vain=tuple(name for name in receipt.in_vain if name not in needed),
            stopped=stopped,
            fallback=detour.fallback,
            why_fallback=detour.why,
        )
