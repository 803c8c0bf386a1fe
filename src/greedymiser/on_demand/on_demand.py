"""Prediction from raw objects, fetching only what the model looks at."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from greedymiser.losses.ndcg import query_order
from greedymiser.model.exit_rules import query_starts
from greedymiser.model.links import decisions
from greedymiser.model.predictor import Predictor, as_predictor
from greedymiser.on_demand.billing import Cashier
from greedymiser.on_demand.fetching import (
    FailureLog,
    Fetcher,
    check_timeout_names,
    each_object,
    whole_number,
)
from greedymiser.on_demand.filling import Filling
from greedymiser.on_demand.journeys import Journeys, Supply
from greedymiser.on_demand.receipts import ObjectReceipt, Receipts
from greedymiser.on_demand.sources import Source, Sources
from greedymiser.on_demand.visits import Request, Visit

Floats = NDArray[np.float64]


class OnDemandPredictor:
    """Predicts from raw objects and fetches only what the model looks at.

    Each source and intermediate is called at most once per object. A model with early exits or a
    cascade fetches what a stage looks at when an object gets there, and nothing for an object that
    has left. Predictions are those that the model makes of ``build_matrix(sources, objects)``, to
    the last bit. The objects of a batch go through the stages together, so one that is waited for
    holds up the others of its batch; ``batch_size=1`` lets each go at its own pace.

    A model with ``charge="row"`` goes tree by tree, each object at its own pace, and calls a source
    only when the object's own path asks for one of its columns. Receipts then read as a protocol:
    ``receipts[0].protocol()``.

    It may be used from several threads and event loops at once. ``n_jobs`` and ``concurrency`` are
    limits for all of them together, so that a service behind a source is never asked more than it
    can take. There are two exceptions, which would otherwise wait for themselves: a plain
    ``predict`` in a coroutine (a notebook's), and a prediction that a source makes with the very
    predictor that called it, have limits of their own.

    Columns are matched by name: those of the model's data frame, or else of its costs. A model
    without any names takes ``sources.column_names`` in their order. Receipts price by the model's
    costs, whose resources need not be those of the sources.

    Parameters
    ----------
    model : fitted estimator, early exit, cascade or Predictor
    sources : Sources
        What is registered later is not seen.
    on_error : {"raise", "missing"}
        If a source fails on an object: raise an AcquisitionError that names both, or take its
        columns as missing, go on, log it (to the logger ``greedymiser.on_demand``), and warn the
        first time.
    timeout : float, mapping from source to float, or None
        Seconds that a call may take, from its start. A coroutine is cancelled, as by a cancel
        scope of anyio; one that does not let itself be cancelled is waited for. An answer that is
        there is taken, even if the event loop hears of it too late. A function cannot be
        cancelled: it is left alone on its thread, takes nobody's place, and its answer is ignored.
        Once 4 * n_jobs calls of a source are left behind and still hang, it fails at once, without
        a call, until one of them returns.
    n_jobs : int or None
        Functions that may run at once, on threads: of several objects, and independent ones of the
        same object. With 1 (and no time-outs or coroutines) they are called in the calling thread,
        one after the other; None is for all cores. Functions that wait deserve more than there
        are cores, and so do several threads that predict.
    concurrency : int
        Coroutines that may run at once.
    batch_size : int
        Objects that are looked at together; their intermediates are in memory at the same time.
        Larger by what a ranker needs to see queries whole.

    Examples
    --------
    >>> import numpy as np
    >>> from greedymiser import MiserRegressor
    >>> sources = Sources(raw="text")
    >>> @sources.columns
    ... def length(text):
    ...     return len(text)
    >>> @sources.columns
    ... def n_words(text):
    ...     return len(text.split())
    >>> texts = ["to be", "or", "not to be that is", "the question"] * 20
    >>> X = np.array([[length(text), n_words(text)] for text in texts], dtype=float)
    >>> model = MiserRegressor(costs=[5.0, 1.0], tradeoff=0.1, max_iter=5).fit(X, X[:, 1])
    >>> served = OnDemandPredictor(model, sources)
    >>> prediction, receipts = served.predict(["whether tis nobler"], return_receipts=True)
    >>> receipts[0].fetched
    ('n_words',)
    """

    def __init__(
        self,
        model: Any,
        sources: Sources,
        *,
        on_error: Literal["raise", "missing"] = "raise",
        timeout: float | Mapping[str, float] | None = None,
        n_jobs: int | None = 1,
        concurrency: int = 64,
        batch_size: int = 256,
    ):
        sources.check()
        check_timeout_names(timeout, sources)
        self.predictor = as_predictor(model)
        self.batch_size = whole_number("batch_size", batch_size, 1)
        # Sources of whose failures was warned.
        self._warned: set[str] = set()
        self._names = _names_of_features(self.predictor, sources)
        self._stages = _stage_plans(self.predictor, sources, self._names)
        self._supplies = _supplies(self.predictor, sources, self._names)
        maker = {name: sources.maker(name).name for name in self._names.values()}
        self._cashier = Cashier(self.predictor, self._names, maker, self.fetches)
        labels = {self._names[f] for f in self.predictor.categories if f in self._names}
        self._fetcher = Fetcher(
            sources.raw,
            sources.plan(self._names.values()),
            labelled=frozenset(labels.union(sources.categorical_names)),
            on_error=on_error,
            timeout=timeout,
            n_jobs=n_jobs,
            concurrency=concurrency,
        )

    @property
    def fetches(self) -> list[str]:
        """Sources and intermediates that the model may need, in an order in which they can run."""
        return list(dict.fromkeys(source.name for stage in self._stages for source in stage.plan))

    # -- predictions ----------------------------------------------------------------------------

    def predict(
        self, objects: Any, *, qid: ArrayLike | None = None, return_receipts: bool = False
    ) -> Any:
        """Targets, class labels or scores of objects.

        Parameters
        ----------
        objects : iterable of objects
            Of a data frame, each row is an object: a frame of one row.
        qid : array-like, optional
            For rankers: the query of each object. Without it, all are one query.
        return_receipts : bool
            Return a pair: predictions, and ``Receipts`` of what was fetched and paid.
        """
        return self._run(self.predictor.respond, objects, qid, return_receipts)

    def predict_proba(self, objects: Any, *, return_receipts: bool = False) -> Any:
        """Class probabilities of objects, shape (n, n_classes)."""
        self._check_classifier()
        return self._run(self.predictor.probabilities, objects, None, return_receipts)

    def decision_function(self, objects: Any, *, return_receipts: bool = False) -> Any:
        """Raw predictions of objects."""
        return self._run(decisions, objects, None, return_receipts)

    async def apredict(
        self, objects: Any, *, qid: ArrayLike | None = None, return_receipts: bool = False
    ) -> Any:
        """As ``predict``, on the running event loop, of asyncio or trio.

        Everything that is known to be needed runs side by side, functions on threads.
        """
        return await self._arun(self.predictor.respond, objects, qid, return_receipts)

    async def adecision_function(self, objects: Any, *, return_receipts: bool = False) -> Any:
        """As ``decision_function``, on the running event loop."""
        return await self._arun(decisions, objects, None, return_receipts)

    async def apredict_proba(self, objects: Any, *, return_receipts: bool = False) -> Any:
        """As ``predict_proba``, on the running event loop."""
        self._check_classifier()
        return await self._arun(self.predictor.probabilities, objects, None, return_receipts)

    def _run(
        self, respond: Callable[[Floats], Any], objects: Any, qid: Any, return_receipts: bool
    ) -> Any:
        result = self._fetcher.run(_Prediction(self, objects, qid, return_receipts))
        return self._answer(result, respond, return_receipts)

    async def _arun(
        self, respond: Callable[[Floats], Any], objects: Any, qid: Any, return_receipts: bool
    ) -> Any:
        result = await self._fetcher.arun(_Prediction(self, objects, qid, return_receipts))
        return self._answer(result, respond, return_receipts)

    def _answer(
        self, result: _Result, respond: Callable[[Floats], Any], return_receipts: bool
    ) -> Any:
        result.log.tell(stacklevel=4, warned=self._warned)
        answer = respond(result.raw)
        return (answer, Receipts(result.receipts)) if return_receipts else answer

    def _check_classifier(self) -> None:
        """Before anything is fetched."""
        if self.predictor.kind != "classifier":
            raise AttributeError(f"a {self.predictor.kind} has no class probabilities")

    # -- life -----------------------------------------------------------------------------------

    def close(self) -> None:
        """End the threads that wait for work. They are started again when they are needed."""
        self._fetcher.close()

    def __enter__(self) -> OnDemandPredictor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<OnDemandPredictor of a {self.predictor.kind}, "
            f"{len(self._names)} columns from {len(self.fetches)} sources and intermediates>"
        )


# -- how a model and its sources fit together ---------------------------------------------------


class _StagePlan(NamedTuple):
    """What an object needs to get through a stage."""

    plan: tuple[Source, ...]
    fillings: tuple[Filling, ...]


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
    known, categorical = set(columns), set(sources.categorical_names)
    missing = [name for name in used.values() if name not in known]
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
) -> list[_StagePlan]:
    stages: list[_StagePlan] = []
    planned: set[str] = set()
    for k in range(len(predictor.stages)):
        asked = [names[feature] for feature in predictor.stage_features(k)]
        new = [source for source in sources.plan(asked) if source.name not in planned]
        planned.update(source.name for source in new)
        fillings = [_filling(source, predictor, names) for source in new if source.columns]
        stages.append(_StagePlan(tuple(new), tuple(fillings)))
    return stages


def _supplies(
    predictor: Predictor, sources: Sources, names: Mapping[int, str]
) -> dict[int, Supply]:
    """Where each feature comes from that the model looks at."""
    makers = {sources.maker(name).name: sources.maker(name) for name in names.values()}
    made = {
        name: Supply(tuple(sources.plan(source.columns[:1])), _filling(source, predictor, names))
        for name, source in makers.items()
    }
    return {feature: made[sources.maker(name).name] for feature, name in names.items()}


def _filling(source: Source, predictor: Predictor, names: Mapping[int, str]) -> Filling:
    return Filling.of(source, names, predictor.categories)


# -- a call ---------------------------------------------------------------------------------------


class _Result(NamedTuple):
    """What came of all objects, in the order in which they were given."""

    # Raw predictions, shape (n_outputs, n).
    raw: Floats
    # None are written where nobody asked for them.
    receipts: list[ObjectReceipt]
    log: FailureLog


class _Batch(NamedTuple):
    visits: list[Visit]
    # Query of each object, ascending; None where objects are not compared.
    query: NDArray[np.intp] | None


class _Prediction:
    """Sends objects through the stages, and asks for what each stage looks at."""

    def __init__(self, served: OnDemandPredictor, objects: Any, qid: Any, with_receipts: bool):
        self._served = served
        self._predictor = served.predictor
        self._batches = self._cut(each_object(objects), qid)
        self._with_receipts = with_receipts
        # Of the batches so far: position of each object, raw predictions, and accounts.
        self._index: list[NDArray[np.intp]] = []
        self._raw: list[Floats] = []
        self._receipts: list[ObjectReceipt] = []
        self._log = FailureLog()

    def _cut(self, objects: Iterator[Any], qid: Any) -> Iterator[_Batch]:
        """Cut objects into batches, those of a query together where they are compared."""
        predictor, size = self._predictor, self._served.batch_size
        if qid is not None:
            if predictor.kind != "ranker":
                raise ValueError(f"qid is for rankers, and this model is a {predictor.kind}")
            return self._cut_queries(list(objects), qid, size)
        if predictor.compares_rows:
            all_objects = list(objects)
            return self._cut_queries(all_objects, np.zeros(len(all_objects), dtype=np.intp), size)
        return self._cut_evenly(objects, size)

    def _cut_evenly(self, objects: Iterator[Any], size: int) -> Iterator[_Batch]:
        numbered = itertools.starmap(Visit, enumerate(objects))
        while visits := list(itertools.islice(numbered, size)):
            yield _Batch(visits, None)

    def _cut_queries(self, objects: list[Any], qid: Any, size: int) -> Iterator[_Batch]:
        qid = np.asarray(qid)
        if qid.shape != (len(objects),):
            raise ValueError(f"qid has shape {qid.shape}, but there are {len(objects)} objects")
        return self._whole_queries(objects, qid, size) if objects else iter(())

    def _whole_queries(self, objects: list[Any], qid: NDArray[Any], size: int) -> Iterator[_Batch]:
        order, starts = query_order(qid)
        query = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        first = 0
        for end in starts[1:].tolist():
            if end - first >= size or end == len(objects):
                places = order[first:end].tolist()
                yield _Batch([Visit(i, objects[i]) for i in places], query[first:end])
                first = end

    def requests(self) -> Iterator[Sequence[Request]]:
        by_row = self._predictor.charge == "row"
        for batch in self._batches:
            yield from self._journeys(batch) if by_row else self._stages(batch)

    def _journeys(self, batch: _Batch) -> Iterator[Sequence[Request]]:
        """Each object walks by itself, and asks for what its own paths need."""
        served = self._served
        journeys = Journeys(self._predictor, served._supplies, batch.visits, batch.query)
        while requests := journeys.requests():
            yield requests
            journeys.take_in()
        self._write_down(batch.visits, journeys.finish())
        if self._with_receipts:
            self._receipts += served._cashier.by_row(journeys)

    def _stages(self, batch: _Batch) -> Iterator[Sequence[Request]]:
        """All objects that are left go through the stages together."""
        predictor, visits = self._predictor, batch.visits
        n, last = len(visits), len(predictor.stages) - 1
        rows = np.full((n, predictor.n_features), np.nan)
        raw, left = predictor.begin(n), np.full(n, last, dtype=np.intp)
        going = np.arange(n)
        for k, (plan, fillings) in enumerate(self._served._stages):
            yield [Request([visits[i] for i in going], plan, is_last=k == last)]
            _fill(rows, visits, going, fillings)
            scores = np.ascontiguousarray(raw[:, going])
            predictor.advance(k, rows[going], scores)
            raw[:, going] = scores
            query = None if batch.query is None else query_starts(batch.query[going])
            stays = predictor.stays(k, scores, query)
            left[going[~stays]] = k
            for i in going[~stays]:
                visits[i].forget()
            going = going[stays]
            if not len(going):
                break
        query = None if batch.query is None else query_starts(batch.query)
        self._write_down(visits, predictor.finish(raw, left, query))
        if self._with_receipts:
            receipt = self._served._cashier.by_stage
            self._receipts += [receipt(*pair) for pair in zip(visits, left.tolist(), strict=True)]

    def _write_down(self, visits: Sequence[Visit], raw: Floats) -> None:
        """Keep what came of a batch, and no more: there may be millions of objects."""
        self._index.append(np.array([visit.index for visit in visits], dtype=np.intp))
        self._raw.append(raw)
        for visit in visits:
            self._log.add(visit.failures.values())

    def answer(self) -> _Result:
        if not self._raw:
            return _Result(self._predictor.begin(0), [], self._log)
        back = np.argsort(np.concatenate(self._index))
        raw = np.ascontiguousarray(np.concatenate(self._raw, axis=1)[:, back])
        receipts = [self._receipts[i] for i in back] if self._with_receipts else []
        return _Result(raw, receipts, self._log)


def _fill(
    rows: Floats,
    visits: Sequence[Visit],
    going: NDArray[np.intp],
    fillings: Sequence[Filling],
) -> None:
    """Put what was fetched into the rows of the objects that are still on their way."""
    for i in going:
        columns = visits[i].columns
        for filling in fillings:
            if filling.source in columns:
                filling.fill(rows[i], columns[filling.source])
        columns.clear()
