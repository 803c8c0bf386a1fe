"""Costs by row (``charge="row"``): which features the trees ask of each row, and what it pays.

A row owns the resources that its own paths have asked for, each paid once whatever asks again. The
set is kept as bits, 64 resources to a word, and set bits do not depend on the order of trees, rows
or threads. Bills are sums that are rounded once, so that they are those of ``CostModel.bill``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from greedymiser._core.arithmetic import SUM_WORDS, add_number, exact_sum, rounded
from greedymiser._core.bits import WORD_BITS, set_of, unpacked
from greedymiser._core.compiling import inner, njit
from greedymiser._core.threads import Threads
from greedymiser.costs.cost_model import CostModel
from greedymiser.data.tables import Table
from greedymiser.model.trees import Ensemble, Stage, next_node, row_blocks

Floats = NDArray[np.float64]
Owned = NDArray[np.uint64]
"""Resources that rows own, as bits: (n, n_words)."""


class Needs(NamedTuple):
    """Which resources the features and the trees of an ensemble need."""

    # Resources that each feature needs, (n_features, n_words).
    needs: Owned
    # All that tree t and those after it may ask for, (n_trees + 1, n_words).
    ahead: Owned


class RowPositions(NamedTuple):
    """Where each of some objects is in an ensemble, and what it was asked."""

    # The tree and the node in which it is.
    tree: NDArray[np.uint32]
    node: NDArray[np.uint32]
    # The feature that it has to know before it can go on; -1 where there are no more trees.
    wanted: NDArray[np.int32]
    owned: Owned
    # (n, n_features): 1 where it was asked.
    asked: NDArray[np.uint8]


class Notes(NamedTuple):
    """Which nodes asked rows for resources that they did not own, in the order of asking."""

    # (n, longest): the nodes; -1 behind the last. Questions beyond the longest are only counted.
    place: NDArray[np.int64]
    number: NDArray[np.int64]
    owned: Owned
    # Per resource of the meter: how many rows were asked, and the sum of the numbers (from 1) that
    # their questions had.
    times: NDArray[np.int64]
    order: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Meter:
    """Which resources rows own, as bits, and what they pay for them.

    Only resources that some feature in play needs have a bit: bit j of a row, which is bit j % 64
    of word j // 64, is that of resource ``resources[j]``.

    Examples
    --------
    >>> meter = Meter.of(CostModel([3.0, 1.0, 2.0]), [0, 2])
    >>> meter.bills(meter.owning([[0], [0, 2], []]), n_trees=4).tolist()
    [3.0, 5.0, 0.0]
    """

    costs: CostModel
    # Features that may be asked for, and positions of the resources that they need, ascending.
    features: tuple[int, ...]
    resources: tuple[int, ...]

    @classmethod
    def of(cls, costs: CostModel, features: Iterable[int]) -> Meter:
        """A meter for trees that ask for no other features than these."""
        asked = tuple(sorted(set(features)))
        return cls(costs, asked, tuple(sorted({r for f in asked for r in costs.needs[f]})))

    @property
    def n_words(self) -> int:
        return max(1, -(-len(self.resources) // WORD_BITS))

    def nothing(self, n: int) -> Owned:
        """The accounts of n rows that own nothing yet."""
        return np.zeros((n, self.n_words), dtype=np.uint64)

    def start_positions(self, n: int, n_features: int) -> RowPositions:
        """The way of n objects that are asked nothing yet, before the first tree."""
        return RowPositions(
            tree=np.zeros(n, dtype=np.uint32),
            node=np.zeros(n, dtype=np.uint32),
            wanted=np.full(n, -1, dtype=np.int32),
            owned=self.nothing(n),
            asked=np.zeros((n, n_features), dtype=np.uint8),
        )

    def owning(self, features: Iterable[Iterable[int]]) -> Owned:
        """The accounts of rows that have asked for these features, one row after the other."""
        place = {resource: j for j, resource in enumerate(self.resources)}
        rows = [{place[r] for f in asked for r in self.costs.needs[f]} for asked in features]
        return np.array([set_of(row, self.n_words) for row in rows]).reshape(-1, self.n_words)

    def over(self, ensemble: Ensemble) -> MeteredTrees:
        """The meter put over an ensemble's trees."""
        needs = self.nothing(ensemble.n_features)
        needs[list(self.features)] = self.owning([f] for f in self.features)
        ahead = self.nothing(ensemble.n_trees + 1)
        # Copies: arrays of a file cannot be written to, which is another type to compile for.
        starts = ensemble.tree_starts.copy()
        look_ahead(ensemble.nodes["feature"].copy(), starts, needs, ahead)
        return MeteredTrees(self, ensemble, Needs(needs, ahead))

    def bills(self, owned: Owned, n_trees: int) -> Floats:
        """What each row pays for its resources and this many trees (eq. 3, for the row alone)."""
        resources = list(self.resources)
        prices = np.stack([self.costs.resource_costs[resources], self.costs.remainders[resources]])
        out = np.empty(len(owned))
        add_up(owned, prices, np.array(self.costs.trees_bill(n_trees)), out)
        return out

    def marks(self, owned: Owned) -> NDArray[np.bool_]:
        """Whether each row owns each of ``resources``, shape (n, n_resources)."""
        return unpacked(owned, len(self.resources))


@dataclass(frozen=True, eq=False)
class MeteredTrees:
    """The trees of an ensemble, and a meter that notes which resources rows ask for in them."""

    meter: Meter
    ensemble: Ensemble
    asking: Needs

    def trees(self, rows: NDArray[np.floating], owned: Owned, first: int, last: int) -> None:
        """Let rows walk down trees ``first:last``; marks what they ask for in ``owned``.

        ``rows`` is a C-ordered array (n, n_features), categories as codes.
        """
        serving, n_words = self.ensemble.serving, self.meter.n_words
        # Checked here: the kernel reads whatever lies where a column should be.
        if rows.shape[1] < serving.n_columns or owned.shape != (len(rows), n_words):
            raise ValueError(
                f"rows of shape {rows.shape} and accounts of shape {owned.shape} do not fit "
                f"{serving.n_columns} columns and {n_words} words of resources"
            )
        walk_asking(rows, serving.steps, self.asking, first, last, owned)

    def on(
        self,
        index: NDArray[np.intp],
        rows: Floats,
        known: NDArray[np.uint8],
        way: RowPositions,
        raw: Floats,
        last: int,
    ) -> None:
        """Let the objects of ``index`` walk on up to tree ``last``; see ``walk_known``."""
        walk_known(index, rows, known, self.ensemble.serving.steps, self.asking, last, way, raw)

    def rounds(
        self, table: Table, threads: Threads, owned: Owned, first: int = 0, last: int | None = None
    ) -> None:
        """Let all rows of a table walk through rounds ``first:last``."""
        ensemble = self.ensemble
        end = ensemble.n_iter if last is None else last
        trees = first * ensemble.n_outputs, end * ensemble.n_outputs

        def walk(start: int, stop: int) -> None:
            rows = table.rows(start, stop, ensemble.features)
            self.trees(rows, owned[start:stop], *trees)

        threads.run(walk, row_blocks(table.n_rows, ensemble.n_features))


def mean_cost(bills: ArrayLike, weight: ArrayLike | None = None) -> float:
    """The mean over rows, by exact sums: it does not depend on their order; NaN without rows."""
    paid: Any = np.asarray(bills, dtype=np.float64)
    if weight is None:
        return exact_sum(paid) / len(paid) if len(paid) else math.nan
    share: Any = np.asarray(weight, dtype=np.float64)
    total = exact_sum(share)
    return exact_sum(paid * share) / total if total > 0 else math.nan


# -- models in stages -----------------------------------------------------------------------------


class Accounts:
    """The accounts of rows that walk through the stages of a model, and may leave after each."""

    def __init__(self, costs: CostModel, stages: Sequence[Stage]):
        ensembles = {id(stage.ensemble): stage.ensemble for stage in stages}
        features = {f for ensemble in ensembles.values() for f in ensemble.features}
        self.meter = Meter.of(costs, features)
        self._stages = stages
        walks = {key: self.meter.over(ensemble) for key, ensemble in ensembles.items()}
        self._walks = [walks[id(stage.ensemble)] for stage in stages]

    def walk(self, k: int) -> MeteredTrees:
        """The walk through the ensemble of stage k."""
        return self._walks[k]

    def ask(self, k: int, rows: NDArray[np.floating], owned: Owned) -> None:
        """Let rows walk through stage k; marks what they ask for in ``owned``."""
        stage = self._stages[k]
        n_outputs = stage.ensemble.n_outputs
        self._walks[k].trees(rows, owned, stage.first * n_outputs, stage.last * n_outputs)

    def bills(self, owned: Owned, left: NDArray[np.intp]) -> Floats:
        """What rows pay that own this and left after these stages."""
        out = np.empty(len(owned))
        for k, stage in enumerate(self._stages):
            here = left == k
            out[here] = self.meter.bills(owned[here], stage.n_trees)
        return out

    def asked(self, table: Table, threads: Threads, left: NDArray[np.intp]) -> Owned:
        """What the rows of a table ask for that leave after these stages."""
        owned = self.meter.nothing(table.n_rows)

        def walk(start: int, stop: int) -> None:
            rows = table.rows(start, stop, list(self.meter.features))
            going = np.arange(start, stop)
            for k in range(len(self._stages)):
                stays = left[going] >= k
                going, rows = going[stays], rows[stays]
                mine = owned[going]
                self.ask(k, rows, mine)
                owned[going] = mine

        threads.run(walk, row_blocks(table.n_rows, self._stages[0].ensemble.n_features))
        return owned

    def staged(self, table: Table, threads: Threads) -> Floats:
        """What each row would pay that left after each stage, shape (n_stages, n)."""
        out = np.empty((len(self._stages), table.n_rows))

        def walk(start: int, stop: int) -> None:
            rows = table.rows(start, stop, list(self.meter.features))
            owned = self.meter.nothing(stop - start)
            for k, stage in enumerate(self._stages):
                self.ask(k, rows, owned)
                out[k, start:stop] = self.meter.bills(owned, stage.n_trees)

        threads.run(walk, row_blocks(table.n_rows, self._stages[0].ensemble.n_features))
        return out


# -- kernels --------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def walk_asking(rows, steps, asking, first, last, owned):  # type: ignore[no-untyped-def]
    """Walk each row down each tree, and mark the resources of the features it is asked for."""
    for i in range(np.uint64(rows.shape[0])):
        for t in range(np.uint64(first), np.uint64(last)):
            if owns_all(owned, i, asking.ahead, t):
                break  # no tree can ask for anything new
            node = np.uint64(steps.root[t])
            while np.uint64(steps.nodes[node].left) != node:  # a leaf is its own left child
                feature = np.uint64(steps.nodes[node].feature)
                for w in range(np.uint64(owned.shape[1])):
                    owned[i, w] |= asking.needs[feature, w]
                node = next_node(rows, i, steps, node)


@njit(cache=True, nogil=True)
def walk_known(index, rows, known, steps, asking, last, way, raw):  # type: ignore[no-untyped-def]
    """Walk objects on, tree by tree up to ``last``, each until it is asked what is not known.

    Leaves are added to ``raw`` in the order of the trees, as prediction does it.
    """
    n_outputs, end = np.uint64(raw.shape[0]), np.uint64(last)
    for j in range(np.uint64(index.size)):
        i = np.uint64(index[j])
        t, node = np.uint64(way.tree[i]), np.uint64(way.node[i])
        wanted = np.int32(-1)
        while t < end:
            step = steps.nodes[node]
            if np.uint64(step.left) == node:  # a leaf is its own left child
                raw[t % n_outputs, i] += steps.value[node]
                t += np.uint64(1)
                if t < end:
                    node = np.uint64(steps.root[t])
                continue
            feature = np.uint64(step.feature)
            if known[i, feature] == 0:
                wanted = np.int32(feature)
                break
            way.asked[i, feature] = 1
            for w in range(np.uint64(way.owned.shape[1])):
                way.owned[i, w] |= asking.needs[feature, w]
            node = next_node(rows, i, steps, node)
        way.tree[i], way.node[i], way.wanted[i] = t, node, wanted


@njit(cache=True, nogil=True)
def note_questions(rows, steps, asking, first, last, offset, notes):  # type: ignore[no-untyped-def]
    """Walk each row down each tree, and note the nodes that ask for resources it does not own."""
    for i in range(np.uint64(rows.shape[0])):
        for t in range(np.uint64(first), np.uint64(last)):
            if owns_all(notes.owned, i, asking.ahead, t):
                break  # no tree can ask for anything new
            node = np.uint64(steps.root[t])
            while np.uint64(steps.nodes[node].left) != node:  # a leaf is its own left child
                feature = np.uint64(steps.nodes[node].feature)
                if not owns_all(notes.owned, i, asking.needs, feature):
                    at = notes.number[i]
                    if at < notes.place.shape[1]:
                        notes.place[i, np.uint64(at)] = np.int64(node) + offset
                    notes.number[i] += 1
                    take_note(notes, i, asking.needs, feature)
                node = next_node(rows, i, steps, node)


@inner
def take_note(notes, i, needs, feature):  # type: ignore[no-untyped-def]
    """Count the resources that are new to a row, which owns them from now on."""
    for j in range(np.uint64(notes.times.size)):
        at, bit = j >> np.uint64(6), np.uint64(1) << (j & np.uint64(63))
        if (needs[feature, at] & ~notes.owned[i, at]) & bit != np.uint64(0):
            notes.times[j] += 1
            notes.order[j] += notes.number[i]
    for w in range(np.uint64(notes.owned.shape[1])):
        notes.owned[i, w] |= needs[feature, w]


@inner
def owns_all(owned, i, wanted, k):  # type: ignore[no-untyped-def]
    """Whether row i owns all that is in row k of ``wanted``."""
    for w in range(np.uint64(owned.shape[1])):
        if wanted[k, w] & ~owned[i, w] != np.uint64(0):
            return False
    return True


@njit(cache=True, nogil=True)
def look_ahead(feature, starts, needs, ahead):  # type: ignore[no-untyped-def]
    """Fill ``Needs.ahead``, from the last tree to the first."""
    for t in range(starts.size - 2, -1, -1):
        ahead[t] = ahead[t + 1]
        for node in range(starts[t], starts[t + 1]):
            if feature[node] >= 0:
                ahead[t] |= needs[feature[node]]


@njit(cache=True, nogil=True)
def add_up(owned, prices, rest, out):  # type: ignore[no-untyped-def]
    """Add up the prices of what each row owns, and ``rest``; rounded once.

    A price is the sum of a column of ``prices``.
    """
    total = np.zeros(SUM_WORDS, dtype=np.int64)
    for i in range(owned.shape[0]):
        if i > 0 and owns_all(owned, i - 1, owned, i) and owns_all(owned, i, owned, i - 1):
            out[i] = out[i - 1]
            continue
        total[:] = 0
        for part in rest:
            add_number(total, part)
        for j in range(np.uint64(prices.shape[1])):
            if (owned[i, j >> np.uint64(6)] >> (j & np.uint64(63))) & np.uint64(1):
                for part in prices[:, j]:
                    add_number(total, part)
        out[i] = rounded(total)
