"""Objects that walk through the trees, and fetch what their own paths ask for.

Each object goes as far as what is known of it takes it. There it asks for a feature, and its source
is called: at once where objects go at their own pace, else for all that wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser.model.exit_rules import query_starts
from greedymiser.model.predictor import Predictor
from greedymiser.on_demand.filling import Filling
from greedymiser.on_demand.sources import Source
from greedymiser.on_demand.visits import Request, Visit

Floats = NDArray[np.float64]
Places = NDArray[np.intp]


class Supply(NamedTuple):
    """Where a feature comes from."""

    # All that must be called for it, what others need first.
    plan: tuple[Source, ...]
    # The one of them that makes it, with all that it makes.
    filling: Filling


class Journeys:
    """A batch of objects on their way, each with its visit to the sources."""

    def __init__(
        self,
        predictor: Predictor,
        supplies: dict[int, Supply],
        visits: Sequence[Visit],
        query: Places | None,
    ):
        n, n_features = len(visits), predictor.n_features
        self.visits = visits
        self._predictor, self._supplies, self._query = predictor, supplies, query
        self._fillings = {supply.filling.source: supply.filling for supply in supplies.values()}
        self._place = {visit.index: i for i, visit in enumerate(visits)}
        # What is known of the objects: values, and whether a value (or its absence) is known.
        self.rows = np.full((n, n_features), np.nan)
        self._known = np.zeros((n, n_features), dtype=np.uint8)
        self.way = predictor.accounts.meter.setting_out(n, n_features)
        # Raw predictions, the stage in which an object is, and the one after which it left.
        self.raw = predictor.begin(n)
        self._stage = np.zeros(n, dtype=np.intp)
        self.left = np.full(n, -1, dtype=np.intp)
        # Objects for which something is being fetched, in step with others.
        self._fetched: set[int] = set()
        self._enter(np.arange(n), 0)

    # -- all that wait ----------------------------------------------------------------------------

    def requests(self) -> list[Request]:
        """Let everyone walk as far as possible; what is needed then, one request per source."""
        going = np.flatnonzero(self.left < 0)
        while len(going):
            self._walk(going)
            ended = going[self.way.wanted[going] < 0]
            if self._predictor.compares_rows and len(ended) < len(going):
                break  # who has come to the end of the stage waits for the others of the query
            going = self._settle(ended)
        waiting: dict[str, list[int]] = {}
        for i in np.flatnonzero(self.way.wanted >= 0).tolist():
            waiting.setdefault(self._supply(i).filling.source, []).append(i)
        self._fetched = {i for places in waiting.values() for i in places}
        return [
            Request(
                [self.visits[i] for i in places],
                self._supply(places[0]).plan,
                is_last=False,
                then=self._follow,
            )
            for places in waiting.values()
        ]

    def take_in(self) -> None:
        """Take what was fetched for those that went in step with the others."""
        for i in self._fetched:
            self._take(i)

    def finish(self) -> Floats:
        """Raw predictions as they are compared with each other, once there are no more requests."""
        query = None if self._query is None else query_starts(self._query)
        return self._predictor.finish(self.raw, self.left, query)

    def questions(self) -> list[list[tuple[int, int]]]:
        """Per object, the stage and the node of every question, in the order of asking.

        Nobody stops for a column that a source has brought along with another one. Hence the
        objects, once they have left, walk again, and stop for each column that is new to them.
        """
        asked: list[list[tuple[int, int]]] = [[] for _ in self.visits]
        again = Journeys(self._predictor, self._supplies, self.visits, self._query)
        again.rows = self.rows
        for k in range(len(self._predictor.stages)):
            going = np.flatnonzero(self.left >= k)
            again._enter(going, k)
            while len(going):
                again._walk(going)
                going = going[again.way.wanted[going] >= 0]
                again._known[going, again.way.wanted[going]] = 1
                for i, node in zip(going.tolist(), again.way.node[going].tolist(), strict=True):
                    asked[i].append((k, node))
        return asked

    # -- one object at its own pace ---------------------------------------------------------------

    def _follow(self, visit: Visit) -> tuple[Source, ...]:
        """Take what was fetched for one object, and let it walk on; what it needs next."""
        i = self._place[visit.index]
        self._fetched.discard(i)
        self._take(i)
        alone = np.array([i])
        while True:
            self._walk(alone)
            if self.way.wanted[i] >= 0:
                plan = self._supply(i).plan
                # It waits for others where a source takes many objects at once.
                return () if any(source.is_batch for source in plan) else plan
            if self._predictor.compares_rows or not len(self._settle(alone)):
                return ()

    # -- steps ------------------------------------------------------------------------------------

    def _walk(self, going: Places) -> None:
        stages, accounts = self._predictor.stages, self._predictor.accounts
        for k in np.unique(self._stage[going]).tolist():
            here = going[self._stage[going] == k]
            last = stages[k].last * stages[k].ensemble.n_outputs
            accounts.walk(k).on(here, self.rows, self._known, self.way, self.raw, last)

    def _settle(self, ended: Places) -> Places:
        """Decide who goes on after its stage; those enter the next one."""
        on = []
        # As they are now: who enters the next stage must not be settled there as well.
        stages = self._stage[ended]
        for k in np.unique(stages).tolist():
            here = ended[stages == k]
            query = None if self._query is None else query_starts(self._query[here])
            raw = np.ascontiguousarray(self.raw[:, here])
            stays = self._predictor.stays(k, raw, query)
            self.left[here[~stays]] = k
            for i in here[~stays].tolist():
                self.visits[i].forget()
            if stays.any():
                self._enter(here[stays], k + 1)
                on.append(here[stays])
        return np.concatenate(on) if on else ended[:0]

    def _enter(self, places: Places, k: int) -> None:
        stage = self._predictor.stages[k]
        first = stage.first * stage.ensemble.n_outputs
        self._stage[places] = k
        self.way.tree[places] = first
        if stage.first < stage.last:
            self.way.node[places] = stage.ensemble.tree_starts[first]
        if stage.first == 0:  # the stage scores rows anew
            self.raw[:, places] = stage.ensemble.baseline[:, None]

    def _supply(self, i: int) -> Supply:
        return self._supplies[int(self.way.wanted[i])]

    def _take(self, i: int) -> None:
        """What was fetched for an object, or is not to be had, is known from now on."""
        columns = self.visits[i].columns
        for source, values in columns.items():
            filling = self._fillings.get(source)
            if filling is not None:
                filling.fill(self.rows[i], values)
                self._known[i, filling.features] = 1
        columns.clear()
        self._known[i, self._supply(i).filling.features] = 1
        self.way.wanted[i] = -1
