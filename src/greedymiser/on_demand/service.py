"""A model as a web service: an ASGI app for uvicorn, or to mount in one's own (FastAPI).

Needs Starlette: ``pip install greedymiser[serve]``. Paths:

    POST /predict   {"objects": [...], "receipts": false, "deadline": 0.2}
    GET  /schema    what an object looks like
    GET  /healthz   whether it runs, and which model
    GET  /metrics   for Prometheus, where prometheus_client is installed
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from greedymiser._core.amounts import quoted
from greedymiser.costs.prices import did_you_mean
from greedymiser.files import load as load_model
from greedymiser.model.predictor import Predictor, as_predictor
from greedymiser.on_demand.policies import check_seconds
from greedymiser.on_demand.predictor import OnDemandPredictor
from greedymiser.on_demand.receipts import ObjectReceipt
from greedymiser.on_demand.sources import AcquisitionError, Sources, SourceTimeoutError

logger = logging.getLogger("greedymiser.on_demand")

MAX_BODY = 1 << 20
MAX_OBJECTS = 1000

# The file of a model is looked at again at most so often, in seconds.
RELOAD_INTERVAL = 1.0


def app_for(
    model: Any,
    sources: Sources | None = None,
    *,
    max_body: int = MAX_BODY,
    max_objects: int = MAX_OBJECTS,
    reload: bool = True,
    load: Callable[[Path], Any] | None = None,
    **options: Any,
) -> Starlette:
    """An ASGI app that answers objects over HTTP.

    Parameters
    ----------
    model : fitted estimator, Predictor, OnDemandPredictor, or path of a model file
        A file that is replaced is read again; requests that are under way keep the old model.
    sources : Sources, optional
        Where features come from. None: objects hold the features themselves, by name.
    max_body : int
        Bytes of a request at most.
    max_objects : int
        Objects of a request at most.
    reload : bool
        Whether a replaced file is read again.
    load : function, optional
        Reads a model file; ``greedymiser.load`` by default.
    **options
        For ``OnDemandPredictor``. A family of models (a saved curve) is its own ``fallbacks``, and
        so are the states of a gated cascade.

    Examples
    --------
    >>> import numpy as np
    >>> from greedymiser import CostModel, MiserRegressor
    >>> from greedymiser.on_demand.service import app_for
    >>> X = np.arange(100.0).reshape(50, 2)
    >>> costs = CostModel({"a": 1.0, "b": 2.0})
    >>> model = MiserRegressor(costs=costs, max_iter=3, min_samples_leaf=5).fit(X, X[:, 0])
    >>> app = app_for(model)
    >>> [route.path for route in app.routes]
    ['/predict', '/schema', '/healthz', '/metrics']
    """
    service = _Service(model, sources, max_body, max_objects, reload, load, options)
    routes = [
        Route("/predict", service.predict, methods=["POST"]),
        Route("/schema", service.schema, methods=["GET"]),
        Route("/healthz", service.healthz, methods=["GET"]),
        Route("/metrics", service.metrics, methods=["GET"]),
    ]
    return Starlette(routes=routes)


class BadRequestError(Exception):
    """Something that the client can put right, in one sentence."""

    def __init__(self, sentence: str, status: int = 400):
        super().__init__(sentence)
        self.status = status


class _Service:
    def __init__(
        self,
        model: Any,
        sources: Sources | None,
        max_body: int,
        max_objects: int,
        reload: bool,
        load: Callable[[Path], Any] | None,
        options: Mapping[str, Any],
    ):
        self._sources, self._options = sources, dict(options)
        # Whether objects hold the features themselves.
        self._holds_features = sources is None and not isinstance(model, OnDemandPredictor)
        self._max_body, self._max_objects = max_body, max_objects
        self._path = Path(model) if isinstance(model, str | os.PathLike) else None
        self._load, self._reload = load, reload
        self._stamp: tuple[int, int, int] | None = None
        self._looked = time.monotonic()
        self._is_loading = False
        if self._path is None:
            self._served = self._serve(model)
        else:
            self._stamp, self._served = self._read(self._path)

    # -- the model --------------------------------------------------------------------------------

    def _serve(self, model: Any) -> OnDemandPredictor:
        if isinstance(model, OnDemandPredictor):
            return model
        predictor = as_predictor(model)
        sources = feature_sources(predictor) if self._sources is None else self._sources
        options = dict(self._options)
        if self._sources is not None:  # a curve and a gated cascade are their own
            if getattr(predictor, "models", None):
                options.setdefault("fallbacks", predictor)
            elif predictor.has_states:
                options.setdefault("fallbacks", "states")
        return OnDemandPredictor(predictor, sources, **options)

    def _read(self, path: Path) -> tuple[tuple[int, int, int], OnDemandPredictor]:
        stamp = _stamp_of(path)
        return stamp, self._serve((self._load or load_model)(path))

    async def _current(self) -> OnDemandPredictor:
        """The model to answer with; a file that was replaced is read on a thread, meanwhile."""
        path, now = self._path, time.monotonic()
        is_due = path is not None and self._reload and now - self._looked >= RELOAD_INTERVAL
        if path is None or not is_due or self._is_loading:
            return self._served
        self._looked, self._is_loading = now, True
        try:
            if _stamp_of(path) != self._stamp:
                self._stamp, self._served = await anyio.to_thread.run_sync(self._read, path)
                logger.info("model file %s was read again", path)
        except Exception:  # a file that is half written: the old model goes on
            logger.exception("model file %s cannot be read; the old model goes on", path)
        finally:
            self._is_loading = False
        return self._served

    # -- paths ------------------------------------------------------------------------------------

    async def predict(self, request: HTTPRequest) -> Response:
        try:
            objects, wants_receipts, deadline = self._checked(await self._body(request))
            served = await self._current()
            if self._holds_features:
                check_features(served.predictor, objects)
            answer = await _unless_disconnected(request, served, objects, deadline, wants_receipts)
        except BadRequestError as error:
            return _sentence(str(error), error.status)
        except SourceTimeoutError as error:
            return _sentence(f"source {error.source!r} did not answer in time", 504)
        except AcquisitionError as error:
            return _sentence(f"source {error.source!r} failed", 502)
        except Exception:
            logger.exception("a request could not be answered")
            return _sentence("the request could not be answered", 500)
        if answer is None:  # nobody is there to read it
            return Response(status_code=499)
        return JSONResponse(answer)

    async def _body(self, request: HTTPRequest) -> Any:
        too_long = BadRequestError(f"the body is longer than {self._max_body} bytes", 413)
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > self._max_body:
            raise too_long
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self._max_body:
                raise too_long
        try:
            return json.loads(bytes(body))
        except (ValueError, RecursionError):
            raise BadRequestError("the body is not JSON") from None

    def _checked(self, body: Any) -> tuple[list[Any], bool, float | None]:
        if not isinstance(body, dict) or not isinstance(body.get("objects"), list):
            raise BadRequestError('the body must be {"objects": [...]}')
        unknown = sorted(set(body) - {"objects", "receipts", "deadline"})
        if unknown:
            raise BadRequestError(
                f"unknown entry {unknown[0]!r}; known: objects, receipts, deadline"
            )
        objects = body["objects"]
        if len(objects) > self._max_objects:
            raise BadRequestError(f"more than {self._max_objects} objects", 413)
        receipts, deadline = body.get("receipts"), body.get("deadline")
        if not isinstance(receipts, bool | None):
            raise BadRequestError("receipts must be true or false")
        try:
            deadline = None if deadline is None else check_seconds("deadline", deadline)
        except (TypeError, ValueError):
            raise BadRequestError("deadline must be a positive number of seconds") from None
        return objects, bool(receipts), deadline

    async def schema(self, request: HTTPRequest) -> Response:
        return JSONResponse(schema_of(self._served.predictor, self._holds_features))

    async def healthz(self, request: HTTPRequest) -> Response:
        predictor = self._served.predictor
        return JSONResponse(
            {"status": "ok", "model": predictor.kind, "sources": self._served.fetches}
        )

    async def metrics(self, request: HTTPRequest) -> Response:
        try:
            from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
        except ImportError:
            return _sentence("prometheus_client is not installed", 501)
        return Response(generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _sentence(error: str, status: int) -> JSONResponse:
    return JSONResponse({"error": error}, status_code=status)


def _stamp_of(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


async def _unless_disconnected(
    request: HTTPRequest,
    served: OnDemandPredictor,
    objects: list[Any],
    deadline: float | None,
    wants_receipts: bool,
) -> dict[str, Any] | None:
    """The answer; None if the client has gone, whose sources are cancelled then."""
    answer: dict[str, Any] | None = None
    failure: Exception | None = None
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        group.start_soon(watch)
        try:
            answer = await _answer(served, objects, deadline, wants_receipts)
        except Exception as error:
            failure = error
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return answer


async def _answer(
    served: OnDemandPredictor, objects: list[Any], deadline: float | None, wants_receipts: bool
) -> dict[str, Any]:
    predictor = served.predictor

    def say(raw: Any) -> dict[str, Any]:
        answer = {"predictions": predictor.respond(raw).tolist()}
        if predictor.kind == "classifier":
            answer["classes"] = predictor.classes_.tolist()
            answer["probabilities"] = predictor.probabilities(raw).tolist()
        if predictor.error_costs is not None:  # a prediction may be no class, such as "refer"
            answer["answers"] = predictor.said_.tolist()
            answer["expected_costs"] = predictor.expected_errors(raw).tolist()
        return answer

    result = await served._arun(say, objects, None, wants_receipts, deadline)
    if not wants_receipts:
        return dict(result)
    answer, receipts = result
    return {**answer, "receipts": [receipt_as_json(receipt) for receipt in receipts]}


def receipt_as_json(receipt: ObjectReceipt) -> dict[str, Any]:
    """A receipt for others to read: what failed by name, without what was raised."""
    return {
        "cost": receipt.cost,
        "resources": receipt.resources,
        "n_trees": receipt.n_trees,
        "tree_cost": receipt.tree_cost,
        "fetched": list(receipt.fetched),
        "cached": list(receipt.cached),
        "in_vain": list(receipt.in_vain),
        "failed": list(receipt.failures),
        "not_called": list(receipt.not_called),
        "missing": list(receipt.missing),
        "fallback": receipt.fallback,
        "why_fallback": _reason(receipt) if receipt.why_fallback else "",
        "stopped": receipt.stopped,
        "seconds": receipt.total_seconds,
    }


def _reason(receipt: ObjectReceipt) -> str:
    """Why a fallback has answered, without what a source raised."""
    failure = next(f for f in receipt.failures.values() if str(f) == receipt.why_fallback)
    if isinstance(failure, SourceTimeoutError):  # the reason is in our words
        return f"source {failure.source!r}: {failure.reason}"
    return f"source {failure.source!r} failed"


# -- objects that hold the features ---------------------------------------------------------------


def feature_sources(predictor: Predictor) -> Sources:
    """One source that reads all features that the model looks at, of all objects at once."""
    if predictor.names is None:
        raise ValueError("the model's features have no names; give sources")
    names = [predictor.names[feature] for feature in predictor.features]
    labelled = [predictor.names[f] for f in predictor.features if f in predictor.categories]

    async def request(raw: list[dict[str, Any]]) -> list[list[Any]]:
        return [[one[name] for name in names] for one in raw]

    sources = Sources()
    if names:
        sources.add(request, names, categorical=labelled, batch=True)
    else:  # a constant, which looks at nothing
        sources.add(lambda raw: None, predictor.names, name="request", needs=["raw"])
    return sources


def check_features(predictor: Predictor, objects: list[Any]) -> None:
    """Raise if objects do not hold the features that a model looks at, or hold unknown ones."""
    names = set(predictor.names or ())
    used = [
        (str(name), kinds_of(predictor, feature))
        for feature, name in zip(predictor.features, predictor.features_used_, strict=True)
    ]
    for i, one in enumerate(objects):
        if not isinstance(one, dict):
            raise BadRequestError(f"object {i} must be a mapping from features to values")
        if not names.issuperset(one):
            unknown = [name for name in one if name not in names]
            raise BadRequestError(
                f"object {i} has features that the model does not know: {quoted(unknown)}"
                + did_you_mean(unknown[0], names.difference(one))
            )
        for name, kinds in used:
            if name not in one:
                raise BadRequestError(
                    f"object {i} has no feature {name!r}; null is a missing value"
                )
            value = one[name]
            if isinstance(value, int) and abs(value) > sys.float_info.max:
                raise BadRequestError(f"feature {name!r} of object {i} is beyond all floats")
            if value is not None and JSON_KINDS.get(type(value)) not in kinds:
                known = "text" if "number" not in kinds else "a number"
                known = "text, a number" if len(kinds) == 3 else known
                raise BadRequestError(f"feature {name!r} of object {i} must be {known} or null")


# What JSON calls the values that a feature may have.
JSON_KINDS: dict[type, str] = {int: "number", float: "number", bool: "boolean", str: "string"}


def kinds_of(predictor: Predictor, feature: int) -> list[str]:
    """What a feature may be in JSON, beside null: what its labels are."""
    labels = predictor.categories.get(feature)
    if labels is None:
        return ["number", "boolean"]
    # They are sorted, text behind all else.
    has_numbers = len(labels) == 0 or not isinstance(labels[0], str)
    has_text = len(labels) == 0 or isinstance(labels[-1], str)
    return [*(["number", "boolean"] if has_numbers else []), *(["string"] if has_text else [])]


def schema_of(predictor: Predictor, holds_features: bool) -> dict[str, Any]:
    """A JSON schema of the body of a request."""
    one: dict[str, Any] = {}
    if holds_features:
        used = set(map(str, predictor.features_used_))
        # What is known but not used may be sent, and is not looked at.
        kinds = {
            name: [*kinds_of(predictor, i), "null"] for i, name in enumerate(predictor.names or ())
        }
        one = {
            "type": "object",
            "properties": {
                name: {"type": kind} if name in used else {} for name, kind in kinds.items()
            },
            "required": [name for name in kinds if name in used],
            "additionalProperties": False,
        }
    return {
        "type": "object",
        "properties": {
            "objects": {"type": "array", "items": one},
            "receipts": {"type": "boolean"},
            "deadline": {"type": "number", "exclusiveMinimum": 0},
        },
        "required": ["objects"],
        "additionalProperties": False,
    }
