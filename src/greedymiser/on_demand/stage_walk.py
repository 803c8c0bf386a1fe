"""Objects that go through the stages of a model together.

What a stage looks at is fetched, then its trees are met, then some leave. A plain model has one
stage; early exits, cascades and gates have several, each with a set of sources of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from greedymiser.model.exit_rules import query_starts
from greedymiser.model.predictor import Predictor
from greedymiser.on_demand.request import Plan, Request
from greedymiser.on_demand.served_model import ServedModel

Floats = NDArray[np.float64]
Places = NDArray[np.intp]


class StageWalk:
    """A batch of objects on their way through the stages."""

    in_step = True

    def __init__(
        self,
        served: ServedModel,
        requests: Sequence[Request],
        query: Places | None = None,
        prefetch: Plan = (),
    ):
        n = len(requests)
        self.served = served
        self.requests = requests
        self._predictor: Predictor = served.predictor
        self._query = query
        self._prefetch = prefetch
        self._place = {request.index: i for i, request in enumerate(requests)}
        self.rows = np.full((n, self._predictor.n_features), np.nan)
        self.raw = self._predictor.begin(n)
        # The stage after which an object left, or in which it went another way.
        self.left = np.full(n, len(self._predictor.stages) - 1, dtype=np.intp)
        # The stage for which something is fetched, and the objects that are still here.
        self._stage = -1
        self._going: Places = np.arange(n)

    def release(self) -> list[tuple[Request, Plan]]:
        """Let all meet the trees of the stage; those that stay need what the next looks at."""
        if self._stage >= 0:
            self._meet()
        while len(self._going) and self._stage < len(self._predictor.stages) - 1:
            self._stage += 1
            plan = self.served.stages[self._stage].plan
            if self._stage == 0 and self._prefetch:
                plan = tuple({source.name: source for source in (*plan, *self._prefetch)}.values())
            if plan:
                return [(self.requests[i], plan) for i in self._going.tolist()]
            self._meet()
        return []

    def follow(self, request: Request) -> Plan:
        """All is known that the stage needs of an object: it waits for the others."""
        i = self._place[request.index]
        for placement in self.served.stages[self._stage].placements:
            placement.fill(self.rows[i], request.columns)
        if self._stage == len(self._predictor.stages) - 1:
            request.forget()
        return ()

    def leave(self, request: Request) -> None:
        """An object goes another way."""
        i = self._place[request.index]
        self.left[i] = self._stage
        self._going = self._going[self._going != i]

    def features_asked(self, request: Request) -> list[int]:
        """Features that an object was to be asked for, up to the stage in which it is, or was."""
        last = min(int(self.left[self._place[request.index]]), self._stage)
        return [f for k in range(last + 1) for f in self._predictor.stage_features(k)]

    def n_trees_met(self, request: Request) -> int:
        """Trees that an object has met that went another way."""
        k = int(self.left[self._place[request.index]])
        return self._predictor.stages[k - 1].n_trees if k > 0 else 0

    def finish(self) -> Floats:
        """Raw predictions as they are compared with each other, once it is over."""
        query = None if self._query is None else query_starts(self._query)
        return self._predictor.finish(self.raw, self.left, query)

    def _meet(self) -> None:
        """Let the objects meet the trees of the stage, and some of them leave."""
        k, going = self._stage, self._going
        if not len(going):
            return
        scores = np.ascontiguousarray(self.raw[:, going])
        self._predictor.advance(k, self.rows[going], scores)
        self.raw[:, going] = scores
        query = None if self._query is None else query_starts(self._query[going])
        stays = self._predictor.stays(k, scores, query, self.rows[going])
        self.left[going[~stays]] = k
        for i in going[~stays].tolist():
            self.requests[i].forget()
        self._going = going[stays]
