"""Cascades for ranking: the first documents of each query go on to a larger set of resources.

What a document is worth depends on the others of its query, so there is no loss of single rows that
a gate could learn from. What is known of a document is its place in the query, by the model of its
state. All pairs of states with so many places between them are judged as a whole, by the NDCG of
training queries that no model has seen. Places mean the same whatever the scale of the scores, so
those of the folds' models are those of the models that are served.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser.cascades.candidates import (
    MOST_JUDGED,
    MOST_ROWS,
    SCORE_LAYERS,
    Best,
    Bits,
    Cascade,
    Floats,
    StateFamily,
    layers,
    stops_of,
)
from greedymiser.losses import LambdaMART
from greedymiser.losses.ndcg import Judged, judge, mean_of_queries, ndcg_depth, query_weights
from greedymiser.model.exit_rules import FirstOfQuery, places_of, rank_leavers
from greedymiser.model.row_costs import mean_cost
from greedymiser.training.preparation import HeldOut

# How many documents of a query may go on.
PLACES = (1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000)
# Places that NDCG looks at where the estimator's own score says nothing else.
USUAL_DEPTH = 5


class _RankedPair(NamedTuple):
    """Two states, how many documents of a query go on, and what comes of it."""

    first: int
    second: int
    n_on: int
    # Whether those that go on stay ahead of the others.
    stay_ahead: bool
    # Mean price, and mean NDCG.
    price: float = 0.0
    ndcg: float = 0.0


class RankedFamily(StateFamily):
    """Pairs of states, and how many documents of each query go on from one to the other.

    The parameters are those of ``StateFamily``.
    """

    def _can_learn(self) -> bool:
        if super()._can_learn() and not self._is_of_ranks():
            self.notes.append(
                "cascades of rankers are compared by a score of the order within queries, such as "
                'scoring="ndcg@5"'
            )
        return not self.notes

    def _is_of_ranks(self) -> bool:
        """Whether the score looks at the order alone: documents that stop are moved as one."""
        scoring = self.curve_models.blank.scoring
        if scoring is None or scoring == "loss":
            return isinstance(self.curve_models.schema.loss, LambdaMART)
        return not isinstance(scoring, str) or ndcg_depth(scoring) is not None

    # -- queries that nobody has seen -------------------------------------------------------------

    @cached_property
    def _queries(self) -> NDArray[np.intp]:
        """Training queries that cascades are judged by; not all where there are very many rows."""
        n, starts = len(self._prepared.train.y), self._starts_of_train
        every = max(1, -(-n // MOST_ROWS))
        return np.arange(0, len(starts) - 1, every, dtype=np.intp)

    @property
    def _starts_of_train(self) -> NDArray[np.intp]:
        train = self._prepared.train
        return np.array([0, len(train.y)]) if train.starts is None else train.starts

    @cached_property
    def _rows(self) -> NDArray[np.intp]:
        starts = self._starts_of_train
        return np.concatenate([np.arange(*starts[q : q + 2]) for q in self._queries.tolist()])

    @cached_property
    def held_out(self) -> HeldOut:
        """The same queries, as models are scored on them."""
        return self._prepared.hold_out(self._prepared.train.take_queries(self._queries))

    @cached_property
    def _raw(self) -> Floats | None:
        """What the model of each state says of documents that it has not seen, (n_states, n)."""
        if len(self.states) < 2:
            return None
        raw = None if self._prepared.train.starts is None else self._cross_fitted
        if raw is None:
            self.notes.append("there are too few queries to be divided")
            return None
        return raw[0][:, 0]

    @cached_property
    def _judged(self) -> tuple[Judged, Floats | None]:
        """The labels of these queries, and the weight of each."""
        cases, scoring = self.held_out.cases, self.curve_models.blank.scoring
        loss, depth = self.curve_models.schema.loss, ndcg_depth(scoring)
        if depth is None:
            by_loss = scoring is None or scoring == "loss"
            depth = loss.truncation if by_loss and isinstance(loss, LambdaMART) else USUAL_DEPTH
        weight = None if cases.weight is None else query_weights(cases.weight, self._starts)
        return judge(cases.y, self._starts, depth), weight

    @property
    def _starts(self) -> NDArray[np.intp]:
        starts = self.held_out.cases.starts
        assert starts is not None
        return starts

    @cached_property
    def _parts(self) -> list[tuple[NDArray[np.intp], HeldOut]]:
        """The documents of each fold, and its queries as models are scored on them."""
        assert self._cross_fitted is not None
        folds, train = self._cross_fitted[1], self._prepared.train
        of_query = folds[self._starts[:-1]]
        return [
            (
                np.flatnonzero(folds == fold),
                self._prepared.hold_out(train.take_queries(self._queries[of_query == fold])),
            )
            for fold in np.unique(folds)
        ]

    # -- cascades ---------------------------------------------------------------------------------

    def best(self) -> Best:
        """Cascades that none beats by the NDCG of queries that nobody has seen.

        As in ``CascadeFamily.best``, the plain models of the states take part, and those that are
        best without the first ones are kept, too.
        """
        plain, pairs = self._plain(), list(self._pairs())
        if not pairs:
            return Best([], {})
        points = [(self.plain_price(state), ndcg) for state, ndcg in plain.items()]
        n_plain = len(points)
        points += [(pair.price, pair.ndcg) for pair in pairs]
        candidates = [
            pairs[i - n_plain]
            for layer in layers(points, SCORE_LAYERS)
            for i in layer
            if i >= n_plain
        ]
        scored = [
            (self._cascade(pair), self._fold_scores(self._said(pair)))
            for pair in candidates[:MOST_JUDGED]
        ]
        assert self._raw is not None
        alone = {self.states[state]: self._fold_scores(self._raw[state]) for state in plain}
        return Best([one for one in scored if np.isfinite(one[1]).all()], alone)

    def _plain(self) -> dict[int, float]:
        """NDCG of the states whose models have numbers to say."""
        if self._raw is None:
            return {}
        usable = np.flatnonzero(np.isfinite(self._raw).all(axis=1)).tolist()
        return {state: self._ndcg(self._raw[state]) for state in usable}

    def _pairs(self) -> Iterator[_RankedPair]:
        """Pairs of states the second of which is better by itself, with all numbers of places."""
        limit, plain = self.curve_models.params.row_budget, self._plain()
        for first in plain:
            price, shares = self.plain_price(first), self._shares_on(first)
            for second in plain:
                beyond = self._price_beyond(first, second)
                is_affordable = limit is None or price + beyond <= limit
                if plain[second] > plain[first] and is_affordable and self._is_pair(first, second):
                    for (n_on, share), ahead in itertools.product(shares.items(), (True, False)):
                        pair = _RankedPair(first, second, n_on, ahead, price + share * beyond)
                        yield pair._replace(ndcg=self._ndcg(self._said(pair)))

    def _shares_on(self, first: int) -> dict[int, float]:
        """The share of all documents that goes on from a state, by the number of places."""
        longest, cases = int(np.diff(self._starts).max()), self.held_out.cases
        return {
            n_on: mean_cost((self._places[first] <= n_on).astype(np.float64), cases.shares)
            for n_on in PLACES
            if n_on < longest
        }

    def _is_pair(self, first: int, second: int) -> bool:
        """Whether the second costs more; where a state has both, it is that one that follows."""
        a, b = self.states[first], self.states[second]
        return self._price_beyond(first, second) > 0 and (not a & ~b or a | b not in self._known)

    @cached_property
    def _known(self) -> set[Bits]:
        return set(self.states)

    def _price_beyond(self, first: int, second: int) -> float:
        """What a document pays that goes on: for the rest of the second set, and for its trees."""
        a, b = self.states[first], self.states[second]
        n_trees = self.models[b].ensemble.n_trees
        more = self._sets.price(a | b) - self._sets.price(a)
        return more + self.curve_models.schema.costs.tree_cost * n_trees

    @cached_property
    def _places(self) -> NDArray[np.intp]:
        """The place of each document, by the model of each state."""
        assert self._raw is not None
        return np.array([places_of(said, self._starts) for said in self._raw])

    def _said(self, pair: _RankedPair) -> Floats:
        """Scores as they are served."""
        assert self._raw is not None
        on = self._places[pair.first] <= pair.n_on
        scores = np.where(on, self._raw[pair.second], self._raw[pair.first])
        if pair.stay_ahead:
            rank_leavers(scores, on.astype(np.intp), self._starts, 2)
        return scores

    def _ndcg(self, scores: Floats) -> float:
        judged, weight = self._judged
        return mean_of_queries(judged.ndcg(scores), weight)

    def _fold_scores(self, raw: Floats) -> Floats:
        """Score of each fold by the estimator's own score; higher is better."""
        scores = []
        for rows, held_out in self._parts:
            held_out.rows.start(np.ascontiguousarray(raw[None, rows]))
            scores.append(float(self.curve_models.trainer.watch(held_out).score()))
        return np.array(scores)

    def score_at(self, best: Best, cascade: Cascade, scores: Floats, cost: float) -> Floats | None:
        """The scores as they are: other queries cost more or less by how long they are."""
        return scores

    def constant_score(self) -> float:
        """The score of the model that costs nothing."""
        baseline = self.constant.ensemble.baseline
        return float(self._fold_scores(np.repeat(baseline, len(self.held_out.cases.y))).mean())

    def _cascade(self, pair: _RankedPair) -> Cascade:
        goes_on = self._places[pair.first] <= pair.n_on
        resources = self.states[pair.first], self.states[pair.second]
        return Cascade(
            resources=resources,
            models=(self.models[resources[0]], self.models[resources[1]]),
            drafts=(),
            kinds=("place",),
            tradeoff=0.0,
            stops=partial(stops_of, (pair.first, pair.second), goes_on),
            mean_price=pair.price,
            loss=1.0 - pair.ndcg,
            first=FirstOfQuery((pair.n_on,), pair.stay_ahead),
        )
