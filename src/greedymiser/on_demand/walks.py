"""How objects go through a model that is served, and what they need on their way.

Stage by stage, together: what a stage looks at is fetched, then its trees are met, then some leave.
A plain model has one stage; early exits, cascades and gates have several, each with a set of
sources of its own.

Tree by tree, where rows pay for themselves: each object goes as far as what is known of it takes
it. There it needs a feature, and its source is called: at once, or together with others where the
source takes many objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser.model.exit_rules import Starts, query_starts
from greedymiser.model.predictor import Predictor
from greedymiser.on_demand.request import Placement, Plan, Request
from greedymiser.on_demand.sources import Source, Sources

Floats = NDArray[np.float64]
Places = NDArray[np.intp]


class StagePlan(NamedTuple):
    """What an object needs to get through a stage, beside what earlier ones have fetched."""

    plan: tuple[Source, ...]
    placements: tuple[Placement, ...]


class Supply(NamedTuple):
    """Where a feature comes from."""

    # All that must be called for it, what others need first.
    plan: tuple[Source, ...]
    # The one of them that makes it, and where all that it makes goes.
    source: Source
    placement: Placement


class ServedModel:
    """A finished model, and the sources of what it looks at."""

    def __init__(self, predictor: Predictor, sources: Sources):
        self.predictor = predictor
        # The column of each feature that the model looks at, and the source of each column.
        self.names = _names_of_features(predictor, sources)
        self.maker = {name: sources.maker(name).name for name in self.names.values()}
        self.stages = _stage_plans(predictor, sources, self.names)
        self.supplies = _supplies(predictor, sources, self.names)
        # All that may be called, in a possible order.
        self.plan = tuple(source for stage in self.stages for source in stage.plan)
        self.source_names = frozenset(source.name for source in self.plan)
        # The states of a gated cascade are models of their own: where something fails, the state
        # that was reached answers. So only what the first one needs must be had.
        self.is_gated = predictor.has_states and predictor.charge == "model"
        first = self.stages[:1] if self.is_gated else self.stages
        self.vital = frozenset(source.name for stage in first for source in stage.plan)
        labels = {self.names[f] for f in predictor.categories if f in self.names}
        self.labelled = frozenset(labels.union(sources.categorical_names))


def _names_of_features(predictor: Predictor, sources: Sources) -> dict[int, str]:
    """Column of each feature that the model looks at; raise if one has no source."""
    names = predictor.names
    columns = sources.column_names
    if names is None:
        if len(columns) != predictor.n_features:
            raise ValueError(
                f"the model has {predictor.n_features} features without names, but the sources "
                f"make {len(columns)} columns"
            )
        names = columns
    used = {feature: names[feature] for feature in predictor.features}
    in_sources, categorical = set(columns), set(sources.categorical_names)
    missing = [name for name in used.values() if name not in in_sources]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ValueError(f"no source makes column {missing[0]!r}{more}, which the model looks at")
    for feature, name in used.items():
        if name in categorical and feature not in predictor.categories:
            raise ValueError(
                f"column {name!r} holds labels by its source {sources.maker(name).name!r}, but "
                "numbers by the model"
            )
    return used


def _stage_plans(
    predictor: Predictor, sources: Sources, names: Mapping[int, str]
) -> list[StagePlan]:
    stages: list[StagePlan] = []
    planned: set[str] = set()
    for k in range(len(predictor.stages)):
        wanted = [names[feature] for feature in predictor.stage_features(k)]
        new = [source for source in sources.plan(wanted) if source.name not in planned]
        planned.update(source.name for source in new)
        placements = [
            Placement.of(source, names, predictor.categories) for source in new if source.columns
        ]
        stages.append(StagePlan(tuple(new), tuple(placements)))
    return stages


def _supplies(
    predictor: Predictor, sources: Sources, names: Mapping[int, str]
) -> dict[int, Supply]:
    """Where each feature comes from that the model looks at."""
    makers = {sources.maker(name).name: sources.maker(name) for name in names.values()}
    made = {
        name: Supply(
            tuple(sources.plan(source.columns[:1])),
            source,
            Placement.of(source, names, predictor.categories),
        )
        for name, source in makers.items()
    }
    return {feature: made[sources.maker(name).name] for feature, name in names.items()}


class BatchWalk:
    """A batch of objects on their way through a model."""

    # The stage after which each object left.
    left: Places

    def __init__(
        self,
        served: ServedModel,
        requests: Sequence[Request],
        query: Places | None = None,
        prefetch: Plan = (),
    ):
        n = len(requests)
        self.served, self.requests = served, requests
        self._predictor: Predictor = served.predictor
        self._query, self._prefetch = query, prefetch
        self._place = {request.index: i for i, request in enumerate(requests)}
        # What is known of the objects, and their raw predictions.
        self.rows = np.full((n, self._predictor.n_features), np.nan)
        self.raw = self._predictor.begin(n)

    def finish(self) -> Floats:
        """Raw predictions as they are compared with each other, once it is over."""
        return self._predictor.finish(self.raw, self.left, self._starts(slice(None)))

    def _starts(self, places: Places | slice) -> Starts:
        """Where the query of each of some objects starts."""
        return None if self._query is None else query_starts(self._query[places])

    def _end(self, places: Places, k: int) -> None:
        """Objects end after a stage."""
        self.left[places] = k
        for i in places.tolist():
            self.requests[i].forget()


# -- stage by stage -------------------------------------------------------------------------------


class StageWalk(BatchWalk):
    """Goes through the stages, all objects together."""

    in_step = True

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        n = len(self.requests)
        # The stage after which an object left, and the last for which something was fetched.
        self.left = np.full(n, len(self._predictor.stages) - 1, dtype=np.intp)
        self._began = self.left.copy()
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
        self._began[i] = self._stage
        self._going = self._going[self._going != i]

    @property
    def has_states(self) -> bool:
        """Whether all that are still here have reached a state whose model can answer them."""
        return self.served.is_gated and self._stage > 0

    def stop(self, request: Request) -> None:
        """Let the model of the state answer that an object has reached."""
        self.leave(request)
        self.left[self._place[request.index]] = self._stage - 1
        request.forget()

    def features_asked(self, request: Request) -> list[int]:
        """Features that an object was to be asked for, up to the stage in which it is, or was."""
        last = min(int(self._began[self._place[request.index]]), self._stage)
        return [f for k in range(last + 1) for f in self._predictor.stage_features(k)]

    def n_trees_met(self, request: Request) -> int:
        """Trees that an object has met that went another way."""
        k = int(self._began[self._place[request.index]])
        return self._predictor.stages[k - 1].n_trees if k > 0 else 0

    def _meet(self) -> None:
        """Let the objects meet the trees of the stage, and some of them leave."""
        k, going = self._stage, self._going
        if not len(going):
            return
        scores = np.ascontiguousarray(self.raw[:, going])
        self._predictor.advance(k, self.rows[going], scores)
        self.raw[:, going] = scores
        stays = self._predictor.stays(k, scores, self._starts(going), self.rows[going])
        self._began[going[~stays]] = k
        self._end(going[~stays], k)
        self._going = going[stays]


# -- tree by tree ---------------------------------------------------------------------------------


class RowWalk(BatchWalk):
    """Goes through the trees, each object at its own pace."""

    in_step = False

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        n, n_features = self.rows.shape
        # Whether a value (or its absence) is known.
        self._known = np.zeros((n, n_features), dtype=np.uint8)
        self.way = self._predictor.accounts.meter.start_positions(n, n_features)
        # The stage in which an object is; -1 as the one after which it left where it did not.
        self._stage = np.zeros(n, dtype=np.intp)
        self.left = np.full(n, -1, dtype=np.intp)
        # Objects that go on without what is not to be had; None: all of them.
        self.may_miss: set[int] | None = None
        # Those that went another way.
        self._gone = np.zeros(n, dtype=bool)
        self._alone = np.zeros(1, dtype=np.intp)
        self._enter(np.arange(n), 0)

    def release(self) -> list[tuple[Request, Plan]]:
        """Let everyone walk as far as possible, and then fetch what it needs."""
        if self._prefetch:
            plan, self._prefetch = self._prefetch, ()
            return [(request, plan) for request in self.requests]
        active = going = self._active()
        while len(going):
            self._walk(going)
            wants = self.way.wanted[going] >= 0
            ended = going[~wants]
            again = np.array([i for i in going[wants].tolist() if self._take(i)], dtype=np.intp)
            if not self._predictor.compares_rows:
                going = np.concatenate([again, self._settle(ended)])
            elif len(again):
                going = again
            elif (self.way.wanted[active] >= 0).any():
                break  # who has come to the end of the stage waits for the others of the query
            else:
                active = going = self._settle(active)
        waiting = [i for i in self._active().tolist() if self.way.wanted[i] >= 0]
        return [(self.requests[i], self._supply(i).plan) for i in waiting]

    def follow(self, request: Request) -> Plan:
        """Let one object walk on with what was fetched for it; what it needs next."""
        i = self._place[request.index]
        alone = np.array([i])
        while True:
            if self.way.wanted[i] < 0 or self._take(i):
                self._walk(alone)
            if self.way.wanted[i] >= 0:
                if self._take(i):
                    continue
                supply = self._supply(i)
                # It waits for others where a source takes many objects at once, or for good.
                is_stuck = request.knows(supply.source)
                return () if is_stuck or any(s.is_batch for s in supply.plan) else supply.plan
            if self._predictor.compares_rows or not len(self._settle(alone)):
                return ()

    def tell_all(self, rows: Floats) -> None:
        """All columns of all objects are known from the beginning."""
        self.rows = rows
        self._known[:] = 1

    def leave(self, request: Request) -> None:
        """An object goes another way."""
        self._gone[self._place[request.index]] = True

    def features_asked(self, request: Request) -> list[int]:
        """Features that an object was asked for, the one included for which it waits."""
        i = self._place[request.index]
        features: list[int] = np.flatnonzero(self.way.asked[i]).tolist()
        return features if self.way.wanted[i] < 0 else sorted({*features, int(self.way.wanted[i])})

    def n_trees_met(self, request: Request) -> int:
        """Trees that an object has met that went another way; the one in which it is counts."""
        i = self._place[request.index]
        k = int(self._stage[i])
        before = self._predictor.stages[k - 1].n_trees if k else 0
        stage = self._predictor.stages[k]
        return before + int(self.way.tree[i]) - stage.first * stage.ensemble.n_outputs + 1

    def questions(self) -> list[list[tuple[int, int]]]:
        """Per object, the stage and the node of every question, in the order of asking.

        Nobody stops for a column that a source has brought along with another one. Hence the
        objects, once they have left, walk again, and stop for each column that is new to them.
        """
        questions: list[list[tuple[int, int]]] = [[] for _ in self.requests]
        again = RowWalk(self.served, self.requests, self._query)
        again.rows = self.rows
        for k in range(len(self._predictor.stages)):
            going = np.flatnonzero(self.left >= k)
            again._enter(going, k)
            while len(going):
                again._walk(going)
                going = going[again.way.wanted[going] >= 0]
                again._known[going, again.way.wanted[going]] = 1
                for i, node in zip(going.tolist(), again.way.node[going].tolist(), strict=True):
                    questions[i].append((k, node))
        return questions

    # -- steps ------------------------------------------------------------------------------------

    def _active(self) -> Places:
        if len(self.left) == 1:  # NumPy would take longer to find out
            return self._alone if self.left[0] < 0 and not self._gone[0] else self._alone[:0]
        return np.flatnonzero((self.left < 0) & ~self._gone)

    def _walk(self, going: Places) -> None:
        stages, accounts = self._predictor.stages, self._predictor.accounts
        for k in self._stages_of(going):
            here = going if len(stages) == 1 else going[self._stage[going] == k]
            last = stages[k].last * stages[k].ensemble.n_outputs
            accounts.walk(k).on(here, self.rows, self._known, self.way, self.raw, last)

    def _stages_of(self, places: Places) -> list[int]:
        if len(self._predictor.stages) == 1:
            return [0] if len(places) else []
        stages: list[int] = np.unique(self._stage[places]).tolist()
        return stages

    def _settle(self, ended: Places) -> Places:
        """Decide who goes on after its stage; those enter the next one."""
        if len(self._predictor.stages) == 1:
            self._end(ended, 0)
            return ended[:0]
        on = []
        # As they are now: who enters the next stage must not be settled there as well.
        stages = self._stage[ended]
        for k in self._stages_of(ended):
            here = ended[stages == k]
            raw = np.ascontiguousarray(self.raw[:, here])
            stays = self._predictor.stays(k, raw, self._starts(here), self.rows[here])
            self._end(here[~stays], k)
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
        return self.served.supplies[int(self.way.wanted[i])]

    def _take(self, i: int) -> bool:
        """Whether what an object waits for was fetched, or is not to be had; it is known then."""
        request, supply = self.requests[i], self._supply(i)
        if not request.knows(supply.source):
            return False
        if supply.source.name in request.unavailable and self.may_miss is not None:
            is_left_out = request.index in self.may_miss
            if not is_left_out:
                return False
        supply.placement.fill(self.rows[i], request.columns)
        self._known[i, supply.placement.features] = 1
        self.way.wanted[i] = -1
        return True


ObjectWalk = StageWalk | RowWalk


def walk_of(
    served: ServedModel,
    requests: Sequence[Request],
    query: NDArray[np.intp] | None = None,
    prefetch: Plan = (),
) -> ObjectWalk:
    """The walk of objects through a model."""
    kind = RowWalk if served.predictor.charge == "row" else StageWalk
    return kind(served, requests, query, prefetch)


# -- which share of the rows needs which source ---------------------------------------------------


def asked_shares(served: ServedModel, X: Any) -> dict[str, float]:
    """The share of the rows of X for which each source or intermediate is called.

    With ``charge="row"`` a source is called if the path of a row asks for one of its columns, else
    if the row gets to a stage that does.
    """
    predictor = served.predictor
    table = predictor.table(X)
    if not table.n_rows:
        raise ValueError("sample must have at least one row")
    if predictor.charge == "row":
        shares = _asked_by_paths(served, table.rows(0, table.n_rows, predictor.features))
    else:
        left = predictor.leaving_stages(table)
        shares = np.zeros((table.n_rows, predictor.n_features), dtype=bool)
        for k in range(len(predictor.stages)):
            for feature in predictor.stage_features(k):
                shares[left >= k, feature] = True
    called = {source.name: np.zeros(table.n_rows, dtype=bool) for source in served.plan}
    for feature, supply in served.supplies.items():
        for source in supply.plan:
            called[source.name] |= shares[:, feature]
    return {name: float(rows.mean()) for name, rows in called.items()}


def _asked_by_paths(served: ServedModel, rows: Any) -> Any:
    requests = [Request(i, None) for i in range(len(rows))]
    walk = RowWalk(served, requests)
    walk.tell_all(np.ascontiguousarray(rows, dtype=np.float64))
    walk.release()
    return walk.way.asked.astype(bool)
