"""The protocol of a gated cascade: states, who goes on from each, and what that costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.amounts import shortlist
from greedymiser.data.tables import Table, chosen
from greedymiser.model.conditions import Conditions
from greedymiser.model.exit_rules import FirstOfQuery
from greedymiser.model.gating import Gate, Gates, output_feature_names
from greedymiser.model.protocols import Line, Protocol, Reason, Step
from greedymiser.model.row_costs import mean_cost
from greedymiser.model.trees import Ensemble, row_blocks

if TYPE_CHECKING:
    from greedymiser.model.predictor import Predictor

# Features that are named where a gate has more trees than one can read.
MOST_NAMED = 4


def gated_protocol(
    model: Predictor, table: Table, left: NDArray[np.intp], min_share: float
) -> Protocol:
    """What is asked of which rows, which left after these stages."""
    n = table.n_rows
    bills = model.stage_costs[left]
    n_trees = np.array([stage.n_trees for stage in model.stages])
    return Protocol(
        n_rows=n,
        mean_cost=mean_cost(bills),
        max_cost=float(bills.max()),
        tree_cost=mean_cost(model.costs.tree_cost * n_trees[left]),
        start=_GatedCount(model, table, left, min_share).start(),
        lines=tuple(_lines(model, left)),
        min_share=min_share,
    )


def _resources_by_stage(model: Predictor) -> list[tuple[int, ...]]:
    """Resources that become available with each stage."""
    owned, resources = set[int](), []
    for k in range(len(model.stages)):
        wanted = {r for f in model.stage_features(k) for r in model.costs.needs[f]}
        resources.append(tuple(sorted(wanted - owned)))
        owned |= wanted
    return resources


def _lines(model: Predictor, left: NDArray[np.intp]) -> list[Line]:
    costs, lines = model.costs, []
    for k, resources in enumerate(_resources_by_stage(model)):
        share = float(np.mean(left >= k))
        for resource in resources:
            users = [f for f in model.features if resource in costs.needs[f]]
            price = float(costs.resource_costs[resource])
            lines.append(
                Line(
                    resource=costs.resource_names[resource],
                    features=tuple(_name(model, f) for f in users),
                    share=share,
                    order=float(k + 1) if share else float("nan"),
                    price=price,
                    mean_cost=price * share,
                )
            )
    return lines


def _name(model: Predictor, feature: int) -> str:
    return f"feature {feature}" if model.names is None else model.names[feature]


class _GatedCount:
    """Counts who goes on from each state, and why."""

    def __init__(self, model: Predictor, table: Table, left: NDArray[np.intp], min_share: float):
        self._model, self._table, self._left = model, table, left
        self._least = min_share * table.n_rows
        said = output_feature_names(model.stages[0].ensemble.n_outputs, model.classes)
        self._names = [*(_name(model, f) for f in range(model.n_features)), *said]

    def start(self) -> Step:
        """Rows before anything is asked."""
        bought = _resources_by_stage(self._model)
        rest = self._step(0, bought) if bought[0] else self._step(1, bought)
        n = self._table.n_rows
        asked = 0 if rest is None else rest.n_rows
        rare = n - asked - self._n_done(0) if not bought[0] and rest is None else 0
        return Step(
            resources=(),
            price=0.0,
            features=(),
            reasons=(),
            n_rows=n,
            steps=() if rest is None else (rest,),
            n_done=n - asked - rare,
            n_rare=rare,
        )

    def _n_done(self, k: int) -> int:
        return int(np.count_nonzero(self._left == k))

    def _step(self, k: int, bought: list[tuple[int, ...]]) -> Step | None:
        """What is asked in state k, and after it; None where too few come there."""
        n = int(np.count_nonzero(self._left >= k))
        if k == len(self._model.stages) or n == 0 or n < self._least:
            return None
        costs = self._model.costs
        after = self._step(k + 1, bought)
        asked = n - self._n_done(k)
        features = [f for f in self._model.stage_features(k) if costs.needs[f]]
        return Step(
            resources=tuple(costs.resource_names[r] for r in bought[k]),
            price=costs.bill(list(bought[k]), 0),
            features=tuple(_name(self._model, f) for f in features),
            reasons=self._reasons(k - 1, n),
            n_rows=n,
            steps=() if after is None else (after,),
            n_done=self._n_done(k),
            n_rare=asked if after is None else 0,
        )

    def _reasons(self, k: int, n: int) -> tuple[Reason, ...]:
        """Why rows went on from state k."""
        if k < 0:
            return (Reason((), n),)
        rule = self._model.rule
        if isinstance(rule, FirstOfQuery):
            return (Reason((f"a place among the first {rule.places[k]} of the query",), n),)
        assert isinstance(rule, Gates)
        gate = rule.gates[k]
        if gate.ensemble.n_trees != 1:
            return (Reason((f"a gate on {self._main_features(gate)} open",), n),)
        ways: Counter[tuple[str, ...]] = Counter()
        where = np.flatnonzero(self._left > k)
        ensemble, stage = gate.ensemble, self._model.stages[k]
        counts: Counter[int] = Counter()
        missing = set[int]()
        going = chosen(self._table, where)
        for start, stop in row_blocks(len(where), ensemble.n_features):
            rows = going.rows(start, stop, self._model.features)
            raw = self._model.begin(stop - start)
            stage.add(rows, raw)
            extended = rule.extended(raw, rows)
            seen = ensemble.features
            missing.update(f for f in seen if np.isnan(extended[:, f]).any())
            counts.update(leaves_of(ensemble, extended).tolist())
        names: Callable[[int], str] = self._names.__getitem__
        conditions = Conditions(ensemble, names, self._model.categories, missing)
        for leaf, number in counts.items():
            ways[conditions.of(leaf)] += number
        return tuple(Reason(*way) for way in ways.most_common())

    def _main_features(self, gate: Gate) -> str:
        """What matters most to a gate, in words."""
        gains = gate.ensemble.importances()
        best = np.argsort(-gains, kind="stable")[: np.count_nonzero(gains)]
        return shortlist([self._names[f] for f in best.tolist()], MOST_NAMED)


def leaves_of(ensemble: Ensemble, rows: NDArray[np.floating]) -> NDArray[np.intp]:
    """The leaf of the first tree in which each row ends."""
    nodes, at = ensemble.nodes, np.zeros(len(rows), dtype=np.intp)
    for _ in range(int(nodes["depth"].max(initial=0))):
        inner = np.flatnonzero(nodes["left"][at] >= 0)
        node = nodes[at[inner]]
        value = rows[inner, node["feature"]]
        with np.errstate(invalid="ignore"):
            left = value <= node["threshold"]
        in_set = node["category_set"] >= 0
        if in_set.any():
            codes = np.nan_to_num(value[in_set]).astype(np.int64)
            words = ensemble.category_sets[node["category_set"][in_set], codes // 64]
            left[in_set] = (words >> (codes % 64).astype(np.uint64)) & np.uint64(1) == 1
        left = np.where(np.isnan(value), node["missing_left"], left)
        at[inner] = node["left"] + ~left
    return at
