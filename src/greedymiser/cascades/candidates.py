"""Gated cascades over the models of a flat frontier: what the row curve may choose from.

The states are sets of the frontier and their unions. Cross-fitted models tell what stopping in each
of them is worth, policies are learned for a range of trade-offs, and pairs of states with one gate
between them for a range of thresholds: a family of cascades that does not depend on what is asked
of it later. Only those that no other beats on rows that nobody has learned from are kept.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from greedymiser.cascades.gates import (
    BAND,
    KINDS,
    Band,
    GateInputs,
    Limits,
    ScoreCells,
    band_gate,
    bands_between,
    bands_of_shares,
    cross_fitted,
    estimates_of,
    fit_gate,
)
from greedymiser.cascades.policy import States, induce
from greedymiser.data.binning import midpoints
from greedymiser.data.tables import ArrayTable, FrameTable, SparseTable
from greedymiser.model.exit_rules import FirstOfQuery
from greedymiser.model.gating import Gate, n_output_features, output_features
from greedymiser.training.boosting import Validation
from greedymiser.training.parameters import Parameters
from greedymiser.training.preparation import Cases, HeldOut, Prepared, Schema
from greedymiser.training.train import Model, start_rows

Floats = NDArray[np.float64]
Bits = int
"""A set of resources: bit r is set where resource r is in it."""

# Sets of the frontier that unions are made of, and states at most; fewer from so many rows on,
# where each of them takes long.
MOST_SETS, MOST_STATES, FEWER_STATES, ENOUGH_ROWS = 14, 40, 28, 6_000
# Trade-offs of the policies, from the one at which nothing pays, and how far down they go.
N_TRADEOFFS, SPAN = 4, 100.0
# Shares of the rows that the gate of a pair sends on; pairs whose gates are more than bands.
SHARES = (
    0.03, 0.06, 0.09, 0.12, 0.16, 0.2, 0.24, 0.28, 0.33, 0.38, 0.44, 0.5, 0.57, 0.64, 0.72, 0.8,
    0.9,
)  # fmt: skip
MOST_TREED = 12
# Parts of the rows between which bands may begin and end.
N_PARTS = 12
# States of longer chains.
MOST_CHAINED = 12
# Rows that gates learn from at most; columns beside what the model says.
MOST_ROWS, MOST_COLUMNS = 20_000, 12
# Parts that rows are divided into; fewer where there are many rows.
FOLDS, FEW_FOLDS = 5, 2
# Fewer rows teach gates nothing.
LEAST_ROWS = 100
# Cascades whose scores are looked at, by their losses, and those that validation rows judge:
# frontiers, one behind the other, and how many at most. Other rows may like those better that are a
# little behind.
LOSS_LAYERS, MOST_SCORED = 6, 1000
SCORE_LAYERS, MOST_JUDGED = 5, 150
# Learning rate of models that are only compared; rounds without improvement after which those end,
# and those that are served.
HURRY, PATIENCE, LONG_PATIENCE = 0.3, 6, 50
# By how much the rows that go on may be more or fewer than was thought, to be made up for.
MOST_ASTRAY = 0.3


class ResourceSets(Protocol):
    """What sets of resources cost, and what they pay for."""

    def price(self, resources: Bits) -> float: ...

    def features(self, resources: Bits) -> NDArray[np.bool_]: ...

    def owned(self, features: Any) -> Bits: ...


class FlatModel(Protocol):
    """A model of the flat frontier."""

    @property
    def resources(self) -> Bits: ...

    @property
    def model(self) -> Model: ...

    @property
    def cost(self) -> float: ...

    @property
    def score(self) -> float: ...


class CurveModels(Protocol):
    """Those who train and score the models of a curve."""

    # The estimator, not fitted.
    blank: Any
    params: Parameters

    @property
    def trainer(self) -> Any: ...

    @property
    def pool(self) -> Any: ...

    @property
    def schema(self) -> Schema: ...

    def corrected(self, model: Model) -> Model: ...


@dataclass(frozen=True, eq=False)
class Cascade:
    """Models of growing sets of resources, and a gate between every two neighbours."""

    resources: tuple[Bits, ...]
    models: tuple[Model, ...]
    # Gates, or the limits of bands; and what is known of rows that come to each.
    drafts: tuple[tuple[Gate | Limits, GateInputs], ...]
    kinds: tuple[str, ...]
    # The drop in mean loss that a unit of mean cost must bring.
    tradeoff: float
    # Of training rows, by models and gates that have not seen them: what says in which state each
    # stops (of thousands of cascades it is asked for few), mean price and mean loss.
    stops: Callable[[], NDArray[np.uint8]]
    mean_price: float
    loss: float
    # Of rankers, instead of gates: how many documents of each query go on.
    first: FirstOfQuery | None = None

    @cached_property
    def gates(self) -> tuple[Gate, ...]:
        """As they are served: of thousands of cascades, few are."""
        return tuple(
            draft if isinstance(draft, Gate) else band_gate(inputs, draft)
            for draft, inputs in self.drafts
        )


class PairGate(NamedTuple):
    """A gate between two states, and what comes of it."""

    gate: Gate | Limits
    kind: str
    # The share of rows that go on, and what that brings in the mean of all rows.
    share: float
    gained: float
    # What says in which of the two states each row stops.
    stops: Callable[[], NDArray[np.uint8]]


class FoldModels(NamedTuple):
    """Models of some sets that were trained without the rows of each fold."""

    # Those who train on the rest of the rows, one a fold.
    trainers: Sequence[Any]
    models: Mapping[Bits, Sequence[Model]]


class Best(NamedTuple):
    """Cascades and the plain models of states, with their scores of rows that nobody has seen.

    There is one for each fold.
    """

    cascades: list[tuple[Cascade, Floats]]
    plain: dict[Bits, Floats]


class StateFamily:
    """States over some sets of resources: their models, and what those say of rows unseen.

    Parameters
    ----------
    models : CurveModels
        Trains models; has the data.
    sets : ResourceSets
    flat : sequence of FlatModel
        Models of the flat frontier, the cheapest first.
    more : sequence of sets
        Further sets that states are made of, the most important first.
    folds : FoldModels, optional
        What was cross-fitted already.
    """

    def __init__(
        self,
        models: CurveModels,
        sets: ResourceSets,
        flat: Sequence[FlatModel],
        more: Iterable[Bits] = (),
        folds: FoldModels | None = None,
    ):
        self._folds = folds
        self.curve_models, self._sets = models, sets
        self._prepared: Prepared = models.trainer.prepared
        # Why there are no cascades, or not as many as there could be.
        self.notes: list[str] = []
        self._finished: dict[Bits, Model] = {}
        for candidate in flat:
            self._finished.setdefault(candidate.resources, replace(candidate.model, charge="model"))
        best = most_valuable([f.cost for f in flat], [f.score for f in flat], MOST_SETS - 1)
        # Sets of the frontier; their unions are states as well.
        self._flat = list(dict.fromkeys([0, *(flat[i].resources for i in best), *more]))[:MOST_SETS]
        self.states = self._chosen_sets(self._flat) if self._can_learn() else []

    def _can_learn(self) -> bool:
        """Whether there is anything that gates could learn from."""
        train = self._prepared.train
        if len(train.y) < LEAST_ROWS:
            self.notes.append(f"gates need at least {LEAST_ROWS} rows, got {len(train.y)}")
        elif not isinstance(train.table, ArrayTable | FrameTable | SparseTable):
            self.notes.append("gates learn from rows in memory, not from those of a cluster")
        return not self.notes

    def _chosen_sets(self, flat: Sequence[Bits]) -> list[Bits]:
        """Sets of the frontier, nothing, and unions of two of them, evenly over their prices."""
        sets = sorted(flat, key=lambda bits: (self._sets.price(bits), bits))
        limit = self.curve_models.params.row_budget
        unions = {a | b for a in sets for b in sets} - set(sets)
        more = sorted(unions, key=lambda bits: (self._sets.price(bits), bits))
        is_large = len(self._prepared.train.y) >= ENOUGH_ROWS
        most = max(0, (FEWER_STATES if is_large else MOST_STATES) - len(sets))
        if len(more) > most:
            place = np.linspace(0, len(more) - 1, most)
            more = [more[i] for i in np.unique(place.round().astype(int)).tolist()]
        states = sorted({*sets, *more}, key=lambda bits: (self._sets.price(bits), bits))
        if limit is None:
            return states
        return [bits for bits in states if self._sets.price(bits) <= limit]

    # -- models -----------------------------------------------------------------------------------

    @cached_property
    def _params(self) -> Parameters:
        """Of models for everybody: sets are bought, prices are paid already."""
        params = self.curve_models.params
        changes: dict[str, Any] = {"charge": "model", "row_budget": None, "budget": None}
        return replace(params, tradeoff=0.0, n_iter_no_change=LONG_PATIENCE, **changes)

    @cached_property
    def models(self) -> dict[Bits, Model]:
        """The model of each state, up to its best round, as it is served."""
        new = [bits for bits in self.states if bits not in self._finished]
        tasks = [(self._params, self._sets.features(bits), True) for bits in new]
        trained = self.curve_models.pool.run(type(self.curve_models.trainer).train, tasks)
        models = {**self._finished, **dict(zip(new, trained, strict=True))}
        return {
            bits: self.curve_models.corrected(models[bits].truncated(models[bits].best_iter))
            for bits in self.states
        }

    @cached_property
    def _shift(self) -> Floats:
        """What correcting for the frequencies of classes takes from raw predictions."""
        start: Model = self.curve_models.trainer.start
        return start.ensemble.baseline - self.curve_models.corrected(start).ensemble.baseline

    @cached_property
    def _cross_fitted(self) -> tuple[Floats, NDArray[np.intp]] | None:
        """Raw predictions by models that have not seen the rows, and the part of each row.

        (n_states, n_outputs, n) and (n,); None where the rows cannot be divided.
        """
        n, schema = len(self._prepared.train.y), self.curve_models.schema
        place_of = _places(self._prepared)
        is_learned = np.zeros(n, dtype=bool)
        is_learned[self._rows] = True

        trainers, models = self._fold_models()
        if not trainers:
            return None
        place = np.full(n, -1, dtype=np.intp)
        place[self._rows] = np.arange(len(self._rows))
        raw = np.empty((len(self.states), schema.loss.n_outputs, len(self._rows)))
        folds = np.empty(len(self._rows), dtype=np.intp)
        for k, trainer in enumerate(trainers):
            prepared, held_out = trainer.prepared, trainer.prepared.validation
            assert held_out is not None
            rows = place_of[np.asarray(held_out.cases.rows)]
            wanted = is_learned[rows]
            folds[place[rows[wanted]]] = k
            for state, bits in enumerate(self.states):
                part = raw_of(prepared, held_out, models[bits][k])
                raw[state][:, place[rows[wanted]]] = part[:, wanted]
        return raw - self._shift[:, None], folds

    def _fold_models(self) -> FoldModels:
        """A model of every state for each fold; those are trained that nobody has."""
        pool, known = self.curve_models.pool, self._folds
        params = _hurried(self._params, self.curve_models.schema.costs.tree_cost)
        if known is None:
            n_folds = FOLDS if len(self._prepared.train.y) < MOST_ROWS else FEW_FOLDS
            known = FoldModels(pool.folds(n_folds, params), {})
        new = [bits for bits in self.states if bits not in known.models]

        def fold(trainer: Any) -> list[Model]:
            return [trainer.train(params, self._sets.features(b), is_patient=True) for b in new]

        by_set = dict(known.models)
        for bits, *models in zip(new, *pool.run_on(fold, known.trainers), strict=False):
            if not models:  # the rows cannot be divided
                break
            # As many rounds in all folds: those that a fold likes best would flatter its rows.
            n_iter = common_round([model.validation_score for model in models])
            by_set[bits] = [model.truncated(min(n_iter, model.n_iter)) for model in models]
        return FoldModels(known.trainers, by_set)

    @cached_property
    def _rows(self) -> NDArray[np.intp]:
        """Training rows that gates learn from, by their position."""
        n = len(self._prepared.train.y)
        return np.unique(np.linspace(0, n - 1, min(n, MOST_ROWS)).astype(np.intp))

    @cached_property
    def held_out(self) -> HeldOut:
        """The same rows, as models are scored on them."""
        return self._prepared.hold_out(self._prepared.train.take(self._rows))

    # -- prices -----------------------------------------------------------------------------------

    def plain_price(self, state: int) -> float:
        """What the model of a state costs everybody."""
        bits = self.states[state]
        n_trees = self.models[bits].ensemble.n_trees
        return self._sets.price(bits) + self.curve_models.schema.costs.tree_cost * n_trees

    @property
    def constant(self) -> Model:
        """The model of no trees, which costs nothing."""
        start: Model = self.curve_models.trainer.start
        return replace(self.curve_models.corrected(start), charge="model")

    def _within_limit(self, cascades: Iterable[Cascade]) -> list[Cascade]:
        limit = self.curve_models.params.row_budget
        return [c for c in cascades if limit is None or self._dearest(c) <= limit]

    def _dearest(self, cascade: Cascade) -> float:
        n_trees = sum(model.ensemble.n_trees for model in cascade.models)
        costs = self.curve_models.schema.costs
        paid = reduce(operator.or_, cascade.resources)
        return self._sets.price(paid) + costs.tree_cost * n_trees

    def score_at(self, best: Best, cascade: Cascade, scores: Floats, cost: float) -> Floats | None:
        """What a cascade would score on rows that nobody has seen, if it cost so much there.

        Rows that it is served to may go on a little more or less often than those did. What going
        on brings is in proportion to how many do. None where it is quite another share.
        """
        start = cascade.resources[0]
        if start not in best.plain:
            return None
        price = self.plain_price(self.states.index(start))
        more = (cost - price) / max(cascade.mean_price - price, 1e-300)
        if abs(more - 1.0) > MOST_ASTRAY:
            return None
        return best.plain[start] + more * (scores - best.plain[start])


class CascadeFamily(StateFamily):
    """Cascades over some sets of resources, learned once and for all trade-offs.

    Parameters
    ----------
    models, sets, flat, more, folds
        As those of ``StateFamily``.
    kinds : sequence of str
        Kinds of gates that are tried.
    """

    def __init__(
        self,
        models: CurveModels,
        sets: ResourceSets,
        flat: Sequence[FlatModel],
        more: Iterable[Bits] = (),
        kinds: Sequence[str] = ("score", "paid", "band"),
        folds: FoldModels | None = None,
    ):
        super().__init__(models, sets, flat, more, folds)
        self._kinds = tuple(kinds)
        self._promising: list[tuple[int, int]] = []
        # What is known in a state of the rows that gates learn from, and of the validation rows.
        self._known_of: dict[int, GateInputs] = {}
        self._known_of_served: dict[int, GateInputs] = {}

    def _can_learn(self) -> bool:
        schema = self.curve_models.schema
        if super()._can_learn() and (schema.kind == "ranker" or not schema.loss.is_additive):
            self.notes.append("gates need the loss of single rows, which this loss does not have")
        return not self.notes

    # -- what is known ----------------------------------------------------------------------------

    @cached_property
    def known(self) -> States | None:
        """What stopping in each state is worth; None where nothing can be said."""
        if len(self.states) < 2:
            return None
        cross_fitted = self._cross_fitted
        if cross_fitted is None:
            self.notes.append("the rows cannot be divided so that each part has all classes")
            return None
        raw, folds = cross_fitted
        self.raw, train = raw, self.held_out.cases
        values = np.array([self._values(train.y, said) for said in raw])
        if not np.isfinite(values).all(axis=1).any():
            self.notes.append("the loss of the rows is not a number")
            return None
        costs = self.curve_models.schema.costs
        within = np.array([[a != b and a & ~b == 0 for b in self.states] for a in self.states])
        return States(
            prices=np.array([self._sets.price(bits) for bits in self.states]),
            within=within,
            values=values,
            inputs=self._inputs,
            folds=folds,
            weight=train.weight,
            entry=np.array(
                [costs.tree_cost * self.models[bits].ensemble.n_trees for bits in self.states]
            ),
        )

    def _values(self, y: Floats, raw: Floats) -> Floats:
        """The loss of each row; where classes are corrected for frequency, so is their weight."""
        loss = self.curve_models.schema.loss
        with np.errstate(all="ignore"):
            values = np.asarray(loss.values(y, raw if len(raw) > 1 else raw[0]))
        if not self._shift.any():
            return values
        weights = np.exp(-self._shift)
        if len(weights) == 1:  # the log-odds of the second of two classes
            weights = np.array([1.0, weights[0]])
        factor = weights[y.astype(np.intp)]
        return values * factor / factor.mean()

    def _inputs(self, state: int) -> GateInputs:
        if state not in self._known_of:
            cases = self.held_out.cases
            self._known_of[state] = self._inputs_of(state, cases, self._said_as_served(state))
        return self._known_of[state]

    def _served_inputs(self, state: int) -> GateInputs:
        """What is known of the validation rows."""
        if state not in self._known_of_served:
            held_out = self._prepared.validation
            assert held_out is not None
            features = self._served(state)
            self._known_of_served[state] = self._inputs_of(state, held_out.cases, features)
        return self._known_of_served[state]

    def _inputs_of(self, state: int, cases: Cases, said: Floats) -> GateInputs:
        schema, columns = self.curve_models.schema, self._columns(state)
        n, values = schema.n_features, np.empty((0, len(cases.y)))
        if columns:
            values = cases.table.columns(columns, cases.rows)
        return GateInputs(
            np.concatenate([values, said]).T,
            (*columns, *range(n, n + len(said))),
            n_features=n,
            n_columns=n + n_output_features(schema.loss.n_outputs),
            categorical={
                j: len(schema.categories[column])
                for j, column in enumerate(columns)
                if column in schema.categories
            },
        )

    def _served(self, state: int) -> Floats:
        """What the model of a state says of the validation rows; nothing if it is a constant."""
        model, held_out = self.models[self.states[state]], self._prepared.validation
        assert held_out is not None
        if not model.ensemble.features:
            return np.empty((0, len(held_out.cases.y)))
        return np.array(
            output_features(raw_of(self._prepared, held_out, model), self.curve_models.schema.loss)
        )

    def _said_as_served(self, state: int) -> Floats:
        """What is said of rows that a model has not seen, on the scale of the model that is served.

        Models of folds learn from fewer rows and in longer steps, and each has a scale of its own.
        What they say is translated by its rank in the fold: to what the state's model says of the
        validation row of that rank.
        """
        served = np.sort(self._served(state), axis=1)
        loss = self.curve_models.schema.loss
        features = np.array(output_features(self.raw[state], loss))[: len(served)]
        assert self.known is not None
        for fold in np.unique(self.known.folds):
            rows = np.flatnonzero(self.known.folds == fold)
            for column, values in zip(features, served, strict=True):
                rank = (rankdata(column[rows]) - 0.5) / len(rows)
                column[rows] = np.interp(rank * (len(values) - 1), np.arange(len(values)), values)
        return features

    def _columns(self, state: int) -> list[int]:
        """Features that are paid in a state: those that matter most to its model."""
        bits = self.states[state]
        gains = self.models[bits].ensemble.importances()
        used = np.flatnonzero(gains > 0)
        best = used[np.argsort(-gains[used], kind="stable")][:MOST_COLUMNS]
        return sorted(best.tolist())

    # -- cascades ---------------------------------------------------------------------------------

    def cascades(self) -> list[Cascade]:
        """All that were learned; those of one family are always the same."""
        states = self.known
        if states is None:
            return []
        phases = self.curve_models.trainer.phases
        phases.begin(0.7)
        cascades = self._pairs(states)
        phases.reached(0.4)
        cascades += self._policies(states, cascades)
        phases.reached(0.75)
        return self._within_limit(cascades)

    def _tradeoffs(self, states: States) -> list[float]:
        """From the one at which nothing pays for everybody down to a small share of it."""
        gains = [states.mean(states.values[0] - value) for value in states.values[1:]]
        prices = states.prices[1:] - states.prices[0]
        rates = [g / p for g, p in zip(gains, prices.tolist(), strict=True) if p > 0 and g > 0]
        if not rates:
            return []
        return np.geomspace(2.0 * max(rates), 2.0 * max(rates) / SPAN, N_TRADEOFFS).tolist()

    def _policies(self, states: States, pairs: Sequence[Cascade]) -> Iterator[Cascade]:
        """Chains of any length over the states of the best pairs."""
        best = layers([(pair.mean_price, -pair.loss) for pair in pairs], 1)
        used = [bits for layer in best for i in layer for bits in pairs[i].resources]
        ranked = [bits for bits, _ in Counter([0, *used]).most_common() if bits]
        chained = sorted([0, *map(self.states.index, ranked[: MOST_CHAINED - 1])])
        for tradeoff in self._tradeoffs(states):
            policy = induce(states.part(chained), tradeoff, kinds=self._kinds)
            if len(policy.stages) > 1:
                stages = [(chained[one.state], one.gate, one.kind) for one in policy.stages]
                stopped = np.array(chained, dtype=np.uint8)[policy.stopped]
                loss = states.mean(states.values[stopped, np.arange(states.n_rows)])
                price = states.mean(policy.price)
                yield self._cascade(states, stages, stopped.copy, price, loss, tradeoff)

    def _cascade(
        self,
        states: States,
        stages: Sequence[tuple[int, Gate | Limits | None, str]],
        stops: Callable[[], NDArray[np.uint8]],
        price: float,
        loss: float,
        tradeoff: float,
    ) -> Cascade:
        """``price`` is the mean beyond the set that all begin with."""
        return Cascade(
            resources=tuple(self.states[state] for state, *_ in stages),
            models=tuple(self.models[self.states[state]] for state, *_ in stages),
            drafts=tuple((gate, states.inputs(s)) for s, gate, _ in stages if gate is not None),
            kinds=tuple(kind for *_, kind in stages if kind),
            tradeoff=tradeoff,
            stops=stops,
            mean_price=price + float(states.prices[0]),
            loss=loss,
        )

    def _pairs(self, states: States) -> list[Cascade]:
        """Two states and a gate between them, for shares of the rows from few to most.

        Where several kinds are tried, all pairs have bands, which take little time, and those that
        come out best the other gates. A band of one number says little of several classes: there
        all pairs have gates of one tree as well.
        """
        pairs = list(self._worth_a_gate(states))
        kinds = [kind for kind in KINDS if kind in self._kinds]
        if BAND not in self._kinds:
            return [c for pair in pairs for kind in kinds for c in self._gated(states, pair, kind)]
        of_shares = partial(bands_of_shares, shares=SHARES)
        cascades = [c for pair in pairs for c in self._banded(states, pair, of_shares)]
        has_classes = self.curve_models.schema.loss.n_outputs > 1
        quick = [kind for kind in kinds if has_classes and KINDS[kind].n_trees == 1]
        cascades += [c for kind in quick for pair in pairs for c in self._gated(states, pair, kind)]
        best = layers([(c.mean_price, -c.loss) for c in cascades], LOSS_LAYERS)
        ranked = dict.fromkeys(cascades[i].resources for layer in best for i in layer)
        pairs = [(self.states.index(a), self.states.index(b)) for a, b in ranked][:MOST_TREED]
        self._promising = pairs
        rest = [kind for kind in kinds if kind not in quick]
        return cascades + [c for k in rest for pair in pairs for c in self._gated(states, pair, k)]

    def _worth_a_gate(self, states: States) -> Iterator[tuple[int, int]]:
        """Pairs of states the second of which costs more and is better for all rows together.

        Where the first is no part of the second, rows that go on have paid for it all the same;
        the model of both is better then, but there are not all of those.
        """
        known, flat = set(self.states), set(self._flat)
        means = [states.mean(values) for values in states.values]
        for first, a in enumerate(self.states):
            for second, b in enumerate(self.states):
                is_flat = a in flat and b in flat and a | b not in known
                if not (states.within[first, second] or is_flat):
                    continue
                is_better = means[second] < means[first] and states.is_usable(first, second)
                if is_better and self._price_beyond(states, first, second) > 0:
                    yield first, second

    def _price_beyond(self, states: States, first: int, second: int) -> float:
        """What rows pay that go on from the first state to the second."""
        both = self._sets.price(self.states[first] | self.states[second])
        return float(both - states.prices[first]) + states.entered(second)

    def _banded(
        self,
        states: States,
        pair: tuple[int, int],
        bands_of: Callable[[ScoreCells, Floats], list[Band]],
    ) -> Iterator[Cascade]:
        """A pair with bands of scores between its states: rows need not be looked at one by one."""
        cells = states.cells(pair[0])
        if cells is None:
            return
        gain = self._gain(states, pair)
        gains = cells.sums(gain if states.weight is None else gain * states.weight)
        everywhere = cells.weight > 0
        for band in bands_of(cells, gains):
            on = band.inside & everywhere
            if on.any() and (on < everywhere).any():
                total = cells.weight.sum()
                share, gained = cells.weight[on].sum() / total, gains[on].sum() / total
                stops = partial(stops_of, pair, band.inside.ravel(), cells.of_row)
                gate = PairGate(band.limits, BAND, float(share), float(gained), stops)
                yield self._pair(states, pair, gate)

    def _everywhere(self, states: States) -> Iterator[Cascade]:
        """The pairs that promise most, with bands of any width anywhere.

        A score need not be won where the loss is: they are for whoever goes by scores.
        """
        for pair in self._promising:
            yield from self._banded(states, pair, lambda cells, _: bands_between(cells, N_PARTS))

    def _gain(self, states: States, pair: tuple[int, int]) -> Floats:
        """What each row gains that goes on from the first to the second of two states."""
        return np.asarray(states.values[pair[0]] - states.values[pair[1]])

    def _gated(self, states: States, pair: tuple[int, int], kind: str) -> Iterator[Cascade]:
        first, gain = pair[0], self._gain(states, pair)
        inputs = states.inputs(first)
        gate = fit_gate(kind, inputs, gain, states.weight)
        if gate is None or gate.ensemble.n_trees == 0:
            return
        estimate = cross_fitted(kind, inputs, gain, states.weight, states.folds)
        # What the gate says of rows that neither it nor the model has seen.
        served = Levels.of(estimates_of(gate, self._served_inputs(first)))
        for quantile in np.quantile(estimate, 1.0 - np.array(SHARES)).tolist():
            least = max(quantile, 0.0)
            on = estimate > least
            share_on = float(on.mean())
            cut, share_served = served.nearest_cut(share_on)
            # The gate that is served may have too few levels for what those of the folds did.
            is_astray = abs(share_served - share_on) > MOST_ASTRAY * share_on
            if on.any() and not on.all() and not is_astray:
                between = PairGate(
                    Gate(gate.ensemble, cut), kind, states.mean(on), states.mean(gain * on),
                    partial(stops_of, pair, on),
                )  # fmt: skip
                yield self._pair(states, pair, between, least)
            if least == 0.0:
                break

    def _pair(
        self,
        states: States,
        pair: tuple[int, int],
        gate: PairGate,
        least: float | None = None,
    ) -> Cascade:
        """``least`` is what a row gains at least that goes on; the mean of those if not given."""
        first, second = pair
        beyond = self._price_beyond(states, first, second)
        if least is None:
            least = max(gate.gained / gate.share, 0.0)
        price = states.price(0, first) + beyond * gate.share
        loss = states.mean(states.values[first]) - gate.gained
        stages = [(first, gate.gate, gate.kind), (second, None, "")]
        return self._cascade(states, stages, gate.stops, price, loss, least / beyond)

    # -- the best of them -------------------------------------------------------------------------

    @cached_property
    def _parts(self) -> list[tuple[NDArray[np.intp], Validation]]:
        """The rows of each fold, as models are scored on them."""
        assert self.known is not None
        train, watch, parts = self._prepared.train, self.curve_models.trainer.watch, []
        for fold in np.unique(self.known.folds):
            rows = np.flatnonzero(self.known.folds == fold)
            parts.append((rows, watch(self._prepared.hold_out(train.take(self._rows[rows])))))
        return parts

    def fold_scores(self, stopped: NDArray[np.integer]) -> Floats:
        """Score of each fold, if rows stop in these states; higher is better."""
        scores = []
        for rows, part in self._parts:
            raw = self.raw[stopped[rows], :, rows].T + self._shift[:, None]
            part.rows.start(np.ascontiguousarray(raw))
            scores.append(float(part.score()))
        return np.array(scores)

    def constant_loss(self, states: States) -> float:
        """Its mean loss on the rows that gates learn from."""
        y, baseline = self.held_out.cases.y, self.constant.ensemble.baseline
        return states.mean(self._values(y, np.repeat(baseline[:, None], len(y), axis=1)))

    def best(self) -> Best:
        """Cascades that none beats by the score of rows that nobody has seen.

        The plain models of the states take part: a cascade has to be better than they are. Those
        that are best without the first ones are kept, too: other rows may like them better.
        """
        states, cascades = self.known, self.cascades()
        if states is None or not cascades:
            return Best([], {})
        by_loss = layers([(c.mean_price, -c.loss) for c in cascades], LOSS_LAYERS)
        tried = [cascades[i] for layer in by_loss for i in layer][:MOST_SCORED]
        if self.curve_models.trainer.in_kernels:  # where a score takes no time
            tried += self._within_limit(self._everywhere(states))
        usable = [i for i in range(len(self.states)) if states.is_usable(i)]
        ends = [np.full(states.n_rows, i, dtype=np.uint8) for i in usable]
        scores = [self.fold_scores(stopped) for stopped in (*ends, *(c.stops() for c in tried))]
        prices = [*map(self.plain_price, usable), *(cascade.mean_price for cascade in tried)]
        points = list(zip(prices, (float(score.mean()) for score in scores), strict=True))
        candidates = [
            (tried[i - len(usable)], scores[i])
            for layer in layers(points, SCORE_LAYERS)
            for i in layer
            if i >= len(usable)
        ][:MOST_JUDGED]
        return Best(
            candidates, {self.states[i]: score for i, score in zip(usable, scores, strict=False)}
        )


def stops_of(
    pair: tuple[int, int], on: NDArray[np.bool_], of_row: NDArray[np.intp] | slice = slice(None)
) -> NDArray[np.uint8]:
    """In which of two states rows stop; ``on`` says who goes on, row by row or cell by cell."""
    first, second = pair
    return np.where(on, np.uint8(second), np.uint8(first))[of_row]


def front(costs: Sequence[float], scores: Sequence[float]) -> list[int]:
    """Positions of those that no other beats (as cheap, and better), the cheapest first."""
    best: list[int] = []
    for i in sorted(range(len(costs)), key=lambda i: (costs[i], -scores[i])):
        if not best or scores[i] > scores[best[-1]]:
            best.append(i)
    return best


def layers(points: Sequence[tuple[float, float]], most: int) -> list[list[int]]:
    """Positions of points (cost, score) that no other beats, of the best of the rest, and so on.

    In each, the cheapest come first. What is not a number is left out.
    """
    left = [i for i, point in enumerate(points) if np.isfinite(point).all()]
    fronts: list[list[int]] = []
    while left and len(fronts) < most:
        layer = [left[k] for k in front(*zip(*(points[i] for i in left), strict=True))]
        fronts.append(layer)
        taken = set(layer)
        left = [i for i in left if i not in taken]
    return fronts


class Levels(NamedTuple):
    """Different values, ascending, and between which of them there are how many above.

    Examples
    --------
    >>> Levels.of(np.array([1.0, 1.0, 3.0, 7.0])).nearest_cut(0.3)
    (5.0, 0.25)
    """

    values: Floats
    # The share of all that is larger than each value but the last.
    above: Floats

    @classmethod
    def of(cls, values: Floats) -> Levels:
        levels, counts = np.unique(values, return_counts=True)
        return cls(levels, 1.0 - np.cumsum(counts)[:-1] / len(values))

    def nearest_cut(self, share: float) -> tuple[float, float]:
        """A number between two of the values, above which is about such a share; and that share."""
        if len(self.values) == 1:
            return float(self.values[0]), 0.0
        k = int(np.argmin(np.abs(self.above - share)))
        cut = midpoints(self.values[k : k + 1], self.values[k + 1 : k + 2])
        return float(cut[0]), float(self.above[k])


def common_round(traces: Sequence[Floats]) -> int:
    """The round that is best for all of some traces; one that ended early stays as it is."""
    n = max(map(len, traces))
    longer = [np.append(trace, np.full(n - len(trace), trace[-1])) for trace in traces]
    return int(np.argmax(np.nan_to_num(np.mean(longer, axis=0), nan=-np.inf)))


def most_valuable(costs: Sequence[float], scores: Sequence[float], most: int) -> list[int]:
    """Positions of so many of some ascending costs and scores that budgets would miss most.

    One after the other goes whose absence costs least: by how much the one before is worse, over
    the budgets (in their logarithm) up to the next.
    """
    left = list(range(len(costs)))
    place = np.log(np.maximum(costs, max(1e-3 * max(costs, default=1.0), 1e-300)))
    while len(left) > most:
        at, worth = place[left], np.array([scores[i] for i in left])
        # Without the cheapest there would be nothing: as much worse again as the cheapest is.
        before = np.append(worth[0] - np.ptp(worth), worth[:-1])
        after = np.append(at[1:], at[-1] + 1.0)
        missed = np.maximum(worth - before, 0.0) * (after - at)
        del left[int(np.argmin(missed))]
    return left


def raw_of(prepared: Prepared, held_out: HeldOut, model: Model) -> Floats:
    """What a model says of rows, (n_outputs, n)."""
    start_rows(prepared, held_out.rows, held_out.cases, model)
    return np.array(held_out.rows.raw())


def _places(prepared: Prepared) -> NDArray[np.intp]:
    """Where the rows of the table are among those that are learned from."""
    rows = prepared.train.rows
    if rows is None:
        return np.arange(len(prepared.train.y))
    place = np.full(int(np.max(rows)) + 1, -1, dtype=np.intp)
    place[rows] = np.arange(len(rows))
    return place


def _hurried(params: Parameters, tree_cost: float) -> Parameters:
    """Longer steps, and fewer: enough to tell who gains."""
    params = replace(params, n_iter_no_change=PATIENCE)
    if tree_cost > 0 or params.learning_rate >= HURRY:
        return params
    n_iter = math.ceil(params.max_iter * params.learning_rate / HURRY)
    return replace(params, learning_rate=HURRY, max_iter=max(n_iter, 30))
