"""Prediction from raw objects, fetching only what the model looks at."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from greedymiser.losses.ndcg import query_order
from greedymiser.model.links import decisions
from greedymiser.model.predictor import as_predictor
from greedymiser.on_demand.fallbacks import FallbackWalk, read_fallbacks
from greedymiser.on_demand.fetcher import (
    FailureLog,
    Fetcher,
    FetchingWalk,
    each_object,
)
from greedymiser.on_demand.metrics import AnsweredObject, Observers
from greedymiser.on_demand.policies import Deadline, SourcePolicy, check_seconds, whole_number
from greedymiser.on_demand.receipts import Bills, ObjectReceipt, Receipts
from greedymiser.on_demand.request import Plan, Request
from greedymiser.on_demand.sources import Sources
from greedymiser.on_demand.walks import ObjectWalk, ServedModel, asked_shares, walk_of

Floats = NDArray[np.float64]


class OnDemandPredictor:
    """Predicts from raw objects and fetches only the features that the model needs.

    Each source and intermediate is called at most once per object. A model with early exits or a
    cascade fetches what a stage looks at when an object gets there, and nothing for an object that
    has left. Predictions are those that the model makes of ``build_matrix(sources, objects)``, to
    the last bit. The objects of a batch go through the stages together, so a slow one delays the
    others of its batch; with ``batch_size=1`` they do not wait for each other.

    A model with ``charge="row"`` goes tree by tree, each object at its own pace, and calls a source
    only when the object's own path asks for one of its columns. Receipts then read as a protocol:
    ``receipts[0].protocol()``.

    It may be used from several threads and event loops at once. ``n_jobs``, ``concurrency`` and
    the limits of policies hold for all that runs on one event loop; plain calls share one. Calls
    in the calling thread have no limit, nor has a prediction that a source makes with the very
    predictor that called it, which would wait for itself.

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
        scope of anyio; one that ignores its cancellation is waited for. An answer that arrived in
        time counts, even if the event loop notices it late. A function cannot be cancelled: it
        keeps running on its thread, no longer counts in ``n_jobs``, and its answer is ignored.
        Once 4 * n_jobs calls of a source are left behind and still hang, it fails at once, without
        a call, until one of them returns.
    n_jobs : int or None
        Functions that may run at once, on threads: of several objects, and independent ones of the
        same object. With 1 (and no time-outs or coroutines) they are called in the calling thread,
        one after the other; None is for all cores. Functions that wait deserve more than there
        are cores, and so do several threads that predict.
    concurrency : int or None
        Coroutines of each source that may run at once on an event loop. None: no limit, but a call
        looks at no more than 64 objects at once. ``SourcePolicy(limit=...)`` is for single sources.
    batch_size : int
        Objects that are looked at together; their intermediates are in memory at the same time.
        Larger by what a ranker needs to see queries whole.
    fallbacks : curve, family of models, list of models, or "states", optional
        What answers an object where a source fails, is too slow, or is not called by its policy:
        the best model that needs only what is there or can still be had. Of a curve (or a family
        that ``load`` has read) the best is the one with the best score, of a list the first. A
        gated cascade itself answers in the best state that can be reached, and others are asked
        only where it is none; ``"states"`` stands for no others. If none can answer, ``on_error``
        says what happens. Receipts tell which model it was, and why.
    deadline : float, optional
        Seconds after which the answer must be there, for each call of ``predict`` and the like,
        which may have their own. A tenth of it (at most 20 ms) is kept for the model. If the recent
        calls of a source all took longer than the time that is left, it is not called (except for
        one call a second, to see whether it is still slow). A call is given up early enough for a
        fallback to fetch what it needs.
    prefetch : float, optional
        Fetch at once what at least this share of the rows of ``sample`` needs, instead of when an
        object gets there: faster, and more expensive. Receipts list what was not needed after all.
    sample : array or data frame, optional
        Rows like those that will be served, with the columns of the model.
    policies : mapping from source to SourcePolicy, optional
        Time-outs, limits, retries, breakers, caches and batches of single sources.
    observers : sequence of Observer, optional
        Objects that are told of calls and answers, for metrics and traces.

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
        concurrency: int | None = None,
        batch_size: int = 256,
        fallbacks: Any = None,
        deadline: float | None = None,
        prefetch: float | None = None,
        sample: Any = None,
        policies: Mapping[str, SourcePolicy] | None = None,
        observers: Sequence[Any] = (),
    ):
        if not isinstance(sources, Sources):
            raise TypeError(f"sources must be Sources, got {sources!r}")
        sources.check()
        self.predictor = as_predictor(model)
        self.batch_size = whole_number("batch_size", batch_size, 1)
        self.deadline = None if deadline is None else check_seconds("deadline", deadline)
        # Sources of whose failures was warned.
        self._warned: set[str] = set()
        self._model = ServedModel(self.predictor, sources)
        self._fallbacks = read_fallbacks(fallbacks, self._model, sources)
        self._falls_back = bool(self._fallbacks) or (fallbacks is not None and self._model.is_gated)
        self._is_strict = on_error == "raise"
        self._bills = Bills(self._model, self._fallbacks)
        models = [self._model, *self._fallbacks]
        self.asked_shares = None if sample is None else asked_shares(self._model, sample)
        self._prefetch = self._read_prefetch(prefetch, sources)
        self._observers = Observers(observers)
        self._fetcher = Fetcher(
            sources,
            sources.upstream({name for served in models for name in served.source_names}),
            labelled=frozenset().union(*(served.labelled for served in models)),
            on_error=on_error,
            timeout=timeout,
            policies=policies,
            n_jobs=n_jobs,
            concurrency=concurrency,
            observers=self._observers,
            has_fallbacks=self._falls_back,
        )

    def _read_prefetch(self, prefetch: float | None, sources: Sources) -> Plan:
        """What is fetched at once, whatever the object."""
        if prefetch is None:
            return ()
        if isinstance(prefetch, bool) or not 0 < prefetch <= 1:
            raise ValueError(f"prefetch must be a share between 0 and 1, got {prefetch!r}")
        if self.asked_shares is None:
            raise ValueError("prefetch needs sample=X, rows that tell which share needs what")
        likely = [name for name, share in self.asked_shares.items() if share >= prefetch]
        return tuple(sources.upstream(likely))

    @property
    def fallbacks(self) -> list[Any]:
        """The models that answer where a source fails, the best first."""
        return [served.predictor for served in self._fallbacks]

    @property
    def classes_(self) -> NDArray[Any]:
        """Class labels, in the order of the columns of ``predict_proba``."""
        return self.predictor.classes_

    @property
    def said_(self) -> NDArray[Any]:
        """What ``predict`` may say: the classes, or the columns of ``error_costs``."""
        return self.predictor.said_

    @property
    def fetches(self) -> list[str]:
        """Sources and intermediates that the model may need, in an order in which they can run."""
        return [source.name for source in self._model.plan]

    # -- predictions ----------------------------------------------------------------------------

    def predict(
        self,
        objects: Any,
        *,
        qid: ArrayLike | None = None,
        return_receipts: bool = False,
        deadline: float | None = None,
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
        deadline : float, optional
            Seconds after which the answer must be there; by default that of the predictor.
        """
        return self._run(self.predictor.respond, objects, qid, return_receipts, deadline)

    def predict_proba(
        self, objects: Any, *, return_receipts: bool = False, deadline: float | None = None
    ) -> Any:
        """Class probabilities of objects, shape (n, n_classes)."""
        self._check_classifier()
        return self._run(self.predictor.probabilities, objects, None, return_receipts, deadline)

    def decision_function(
        self, objects: Any, *, return_receipts: bool = False, deadline: float | None = None
    ) -> Any:
        """Raw predictions of objects."""
        return self._run(decisions, objects, None, return_receipts, deadline)

    async def apredict(
        self,
        objects: Any,
        *,
        qid: ArrayLike | None = None,
        return_receipts: bool = False,
        deadline: float | None = None,
    ) -> Any:
        """As ``predict``, on the running event loop, of asyncio or trio.

        Everything that is known to be needed runs concurrently, functions on threads.
        """
        return await self._arun(self.predictor.respond, objects, qid, return_receipts, deadline)

    async def adecision_function(
        self, objects: Any, *, return_receipts: bool = False, deadline: float | None = None
    ) -> Any:
        """As ``decision_function``, on the running event loop."""
        return await self._arun(decisions, objects, None, return_receipts, deadline)

    async def apredict_proba(
        self, objects: Any, *, return_receipts: bool = False, deadline: float | None = None
    ) -> Any:
        """As ``predict_proba``, on the running event loop."""
        self._check_classifier()
        return await self._arun(
            self.predictor.probabilities, objects, None, return_receipts, deadline
        )

    def _run(
        self,
        respond: Callable[[Floats], Any],
        objects: Any,
        qid: Any,
        return_receipts: bool,
        deadline: float | None,
    ) -> Any:
        until = self._until(deadline)
        prediction = _Prediction(self, objects, qid, return_receipts, until)
        self._fetcher.run(prediction.walks(), until)
        return self._answer(prediction, respond)

    async def _arun(
        self,
        respond: Callable[[Floats], Any],
        objects: Any,
        qid: Any,
        return_receipts: bool,
        deadline: float | None,
    ) -> Any:
        until = self._until(deadline)
        prediction = _Prediction(self, objects, qid, return_receipts, until)
        await self._fetcher.arun(prediction.walks(), until)
        return self._answer(prediction, respond)

    def _until(self, deadline: float | None) -> Deadline | None:
        if deadline is None:
            return None if self.deadline is None else Deadline(self.deadline)
        return Deadline(check_seconds("deadline", deadline))

    def _answer(self, prediction: _Prediction, respond: Callable[[Floats], Any]) -> Any:
        result = prediction.result()
        effect = "its columns count as missing"
        if self._falls_back:
            effect = "a fallback answers where one can"
        result.log.tell(stacklevel=4, effect=effect, warned=self._warned)
        answer = respond(result.raw)
        if self._observers:
            self._observers.tell("request_answered", result.raw.shape[1], prediction.seconds)
        return (answer, Receipts(result.receipts)) if prediction.with_receipts else answer

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
            f"{len(self._model.names)} columns from {len(self.fetches)} sources and intermediates>"
        )


# -- a call ---------------------------------------------------------------------------------------


class _Result(NamedTuple):
    """What came of all objects, in the order in which they were given."""

    # Raw predictions, shape (n_outputs, n).
    raw: Floats
    # None are written where nobody asked for them.
    receipts: list[ObjectReceipt]
    log: FailureLog


class _Batch(NamedTuple):
    requests: list[Request]
    # Query of each object, ascending; None where objects are not compared.
    query: NDArray[np.intp] | None


class _Prediction:
    """Objects in batches, each a walk through the model, and what came of them."""

    def __init__(
        self,
        served: OnDemandPredictor,
        objects: Any,
        qid: Any,
        with_receipts: bool,
        deadline: Deadline | None,
    ):
        self._served = served
        self._predictor = served.predictor
        self._batches = self._cut(each_object(objects), qid)
        self._deadline = deadline
        self.with_receipts = with_receipts
        self._start = time.perf_counter()
        # Of the batches so far: position of each object, raw predictions, and accounts.
        self._index: list[NDArray[np.intp]] = []
        self._raw: list[Floats] = []
        self._receipts: list[ObjectReceipt] = []
        self._log = FailureLog()

    @property
    def seconds(self) -> float:
        """Since the call."""
        return time.perf_counter() - self._start

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
        numbered = itertools.starmap(Request, enumerate(objects))
        while requests := list(itertools.islice(numbered, size)):
            yield _Batch(requests, None)

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
                yield _Batch([Request(i, objects[i]) for i in places], query[first:end])
                first = end

    def walks(self) -> Iterator[FetchingWalk]:
        """A walk per batch; what came of it is kept once all that it needs is fetched."""
        served = self._served
        for batch in self._batches:
            main = walk_of(served._model, batch.requests, batch.query, served._prefetch)
            walk: ObjectWalk | FallbackWalk = main
            if served._falls_back:
                walk = FallbackWalk(
                    main,
                    served._fallbacks,
                    lambda source: served._fetcher.refusal(source, self._deadline),
                    served._fetcher.slowest,
                    served._is_strict,
                )
            yield walk
            self._keep(batch.requests, walk)

    def _keep(self, requests: Sequence[Request], walk: ObjectWalk | FallbackWalk) -> None:
        """Keep what came of a batch, and no more: there may be millions of objects."""
        self._index.append(np.array([request.index for request in requests], dtype=np.intp))
        self._raw.append(walk.finish())
        for request in requests:
            self._log.add(request.failures.values())
        if not self.with_receipts and not self._served._observers:
            return
        receipts = self._served._bills.receipts(walk)
        if self.with_receipts:
            self._receipts += receipts
        for receipt in receipts if self._served._observers else ():
            model = "model" if receipt.fallback is None else f"fallback {receipt.fallback}"
            sources = receipt.fetched, receipt.in_vain, receipt.cached
            answered = AnsweredObject(receipt.cost, model, *sources)
            self._served._observers.tell("object_answered", answered)

    def result(self) -> _Result:
        if not self._raw:
            return _Result(self._predictor.begin(0), [], self._log)
        if len(self._raw) == 1 and self._predictor.kind != "ranker":  # in their order
            return _Result(self._raw[0], self._receipts, self._log)
        back = np.argsort(np.concatenate(self._index))
        raw = np.ascontiguousarray(np.concatenate(self._raw, axis=1)[:, back])
        receipts = [self._receipts[i] for i in back] if self.with_receipts else []
        return _Result(raw, receipts, self._log)
