"""The web service, asked by a real client through a real server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import anyio
import httpx
import numpy as np
import pandas as pd
import pytest
import uvicorn
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from greedymiser import MiserClassifier, MiserRegressor, as_predictor, save
from greedymiser.cli.commands.serve import _sources_of
from greedymiser.cli.errors import InputError
from greedymiser.on_demand import AnsweredObject, OnDemandPredictor, SourcePolicy
from greedymiser.on_demand import service as service_module
from greedymiser.on_demand.metrics import AskedDrift, OpenTelemetryObserver, PrometheusObserver
from greedymiser.on_demand.service import app_for, kinds_of, schema_of
from test_on_demand import PATIENCE
from test_on_demand_serving import (
    NAMES,
    PRICES,
    Service,
    classifier,
    gated_cascade,
    quietly,
    sources_with,
)


@contextlib.contextmanager
def running(app):
    """A client of the app, which uvicorn serves on a thread."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_level="warning", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [free]}, daemon=True)
        thread.start()
        end = time.monotonic() + PATIENCE
        while not server.started and time.monotonic() < end:
            time.sleep(0.005)
        try:
            address = f"http://127.0.0.1:{free.getsockname()[1]}"
            with httpx.Client(base_url=address, timeout=PATIENCE, trust_env=False) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive()


@pytest.fixture(scope="module", name="X")
def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame(rng.standard_normal((200, 4)), columns=NAMES)


@pytest.fixture(scope="module")
def objects(X):
    return X.to_dict("records")


@pytest.fixture(scope="module")
def model(X):
    return classifier(X, NAMES)


def test_predictions_and_receipts(X, objects, model):
    with running(app_for(model, Service(is_async=True).sources)) as client:
        answer = client.post("/predict", json={"objects": objects[:3], "receipts": True})
        assert answer.status_code == 200
        told = answer.json()
        assert told["predictions"] == model.predict(X[:3]).tolist()
        assert told["probabilities"] == model.predict_proba(X[:3]).tolist()
        assert told["classes"] == [False, True]
        assert [receipt["cost"] for receipt in told["receipts"]] == [sum(PRICES.values())] * 3
        assert sorted(told["receipts"][0]["fetched"]) == NAMES
        assert client.post("/predict", json={"objects": []}).json()["predictions"] == []
        assert client.get("/healthz").json()["status"] == "ok"
        assert client.get("/metrics").status_code == 200
        assert "receipts" not in client.post("/predict", json={"objects": objects[:1]}).json()


def test_objects_that_hold_the_features(X, objects, model):
    app = app_for(model)
    with running(app) as client:
        told = client.post("/predict", json={"objects": objects[:3], "receipts": True}).json()
        assert told["predictions"] == model.predict(X[:3]).tolist()
        assert [receipt["cost"] for receipt in told["receipts"]] == [sum(PRICES.values())] * 3
        yes = client.post("/predict", json={"objects": [{**objects[0], "age": True}]})
        assert yes.json()["probabilities"] == model.predict_proba(X[:1].assign(age=1.0)).tolist()
        blank = client.post("/predict", json={"objects": [{**objects[0], "age": None}]})
        expected = model.predict_proba(X[:1].assign(age=np.nan)).tolist()
        assert blank.json()["probabilities"] == expected
        for objects_sent, sentence in [
            ([{"age": 1.0}], "object 0 has no feature 'bureau'; null is a missing value"),
            ([3], "object 0 must be a mapping from features to values"),
            ([{**objects[0], "age": "old"}], "feature 'age' of object 0 must be a number or null"),
            ([{**objects[0], "age": [1]}], "feature 'age' of object 0 must be a number or null"),
            ([{**objects[0], "age": 10**400}], "feature 'age' of object 0 is beyond all floats"),
            (
                [objects[0], {**objects[1], "burau": 1}],
                "object 1 has features that the model does not know: 'burau'",
            ),
            (
                [{"age": 1.0, "Burau": 1.0, "x": 1.0}],
                "object 0 has features that the model does not know: 'Burau', 'x'; did you mean "
                "'bureau'?",
            ),
        ]:
            answer = client.post("/predict", json={"objects": objects_sent})
            assert (answer.status_code, answer.json()) == (400, {"error": sentence})
        schema = client.get("/schema").json()
        assert schema == schema_of(model, True)
        one = schema["properties"]["objects"]["items"]
        assert one["required"] == NAMES
        assert one["properties"]["age"] == {"type": ["number", "boolean", "null"]}
        assert one["additionalProperties"] is False


def test_objects_with_labels_and_features_that_the_model_does_not_look_at(X):
    town = pd.Categorical(np.where(X["age"] > 0, "Ulm", "Bonn"))
    data = pd.DataFrame({"noise": 0.0, "town": town})
    model = as_predictor(MiserClassifier(max_iter=3).fit(data, X["age"] > 0))
    assert model.features_used_ == ["town"]
    with running(app_for(model)) as client:
        told = client.post("/predict", json={"objects": [{"town": "Ulm"}, {"town": "Rom"}]})
        assert told.json()["predictions"][0] is True
        sent = {"town": "Bonn", "noise": [1]}  # known, and not looked at
        assert client.post("/predict", json={"objects": [sent]}).json()["predictions"] == [False]
        one = client.get("/schema").json()["properties"]["objects"]["items"]
        assert one["properties"]["town"] == {"type": ["string", "null"]}
        assert one["required"] == ["town"]
        for odd in (5, True, ["Ulm"]):
            answer = client.post("/predict", json={"objects": [{"town": odd}]})
            sentence = "feature 'town' of object 0 must be text or null"
            assert (answer.status_code, answer.json()) == (400, {"error": sentence})


@pytest.mark.parametrize(
    ("labels", "kinds"),
    [
        ([1, 2], ["number", "boolean"]),
        (["a", "b"], ["string"]),
        ([1, "a"], ["number", "boolean", "string"]),
        ([], ["number", "boolean", "string"]),
    ],
)
def test_labels_in_json_are_of_the_kinds_that_are_known(labels, kinds):
    data = pd.DataFrame({"odd": pd.Categorical((labels * 20)[:20] or [None] * 20)})
    model = MiserClassifier(max_iter=1).fit(data, np.arange(20) % 2)
    assert kinds_of(as_predictor(model), 0) == kinds


def test_a_decision_that_is_no_class(X, objects):
    costs = {False: {False: 0, True: 5, "refer": 1}, True: {False: 5, True: 0, "refer": 1}}
    y = X["age"] + 0.3 * X["bureau"] > 0
    model = MiserClassifier(max_iter=5, learning_rate=0.5, error_costs=costs).fit(X, y)
    expected = model.predict(X).tolist()
    assert "refer" in expected
    assert True in expected
    served = OnDemandPredictor(model, Service().sources)
    assert served.said_.tolist() == [False, True, "refer"]
    assert served.classes_.tolist() == [False, True]
    assert served.predict(objects).tolist() == expected
    with running(app_for(model)) as client:
        told = client.post("/predict", json={"objects": objects}).json()
        assert told["predictions"] == expected
        assert told["classes"] == [False, True]
        assert told["answers"] == [False, True, "refer"]
        assert told["expected_costs"] == model.expected_costs(X).tolist()


@quietly
def test_receipts_say_why_a_fallback_answered(X, objects, model):
    """Without what the source raised, which is nobody else's business."""
    plain = classifier(X, ["age", "income"])
    service = Service(["bureau"], is_async=True)
    with running(app_for(model, service.sources, fallbacks=[plain])) as client:
        ask = {"objects": objects[:1], "receipts": True}
        receipt = client.post("/predict", json=ask).json()["receipts"][0]
        assert receipt["fallback"] == 0
        assert receipt["why_fallback"] == "source 'bureau' failed"
        called = {"age", "bureau", "fraud", "income"}
        assert receipt["cost"] == sum(PRICES[name] for name in called)
        service.failing.clear()
        service.hanging.add("bureau")
        late = client.post("/predict", json={**ask, "deadline": 1.0}).json()["receipts"][0]
        assert late["why_fallback"].startswith("source 'bureau': it did not answer within")


@quietly
def test_a_gated_cascade_falls_back_by_itself(X, objects):
    cascade, states = gated_cascade(X)
    with running(app_for(cascade, Service(["income"], is_async=True).sources)) as client:
        told = client.post("/predict", json={"objects": objects, "receipts": True}).json()
    assert told["probabilities"] == states[0].predict_proba(X).tolist()
    reasons = {receipt["why_fallback"] for receipt in told["receipts"]}
    assert reasons == {"", "source 'income' failed"}


def test_a_constant_needs_no_features(X, objects):
    model = as_predictor(MiserClassifier(tradeoff=1e9, max_iter=3).fit(X, X["age"] > 0))
    assert model.features_used_ == []
    with running(app_for(model)) as client:
        told = client.post("/predict", json={"objects": [{}, objects[0]]}).json()
    assert told["predictions"] == model.predict(X[:2]).tolist()


def test_a_predictor_with_sources_can_be_mounted(X, objects, model):
    """Its objects are what its sources take, whatever they hold."""
    served = OnDemandPredictor(model, Service(is_async=True).sources)
    with running(app_for(served)) as client:
        told = client.post("/predict", json={"objects": [{**objects[0], "name": "Ann"}]})
        assert told.json()["predictions"] == model.predict(X[:1]).tolist()
        assert client.get("/schema").json()["properties"]["objects"]["items"] == {}


def test_requests_that_cannot_be_answered(objects, model):
    service = Service(["bureau"], hanging=["fraud"], is_async=True)
    with running(app_for(model, service.sources, max_body=1000, max_objects=2)) as client:
        for body, status, sentence in [
            (b"{", 400, "the body is not JSON"),
            (b"[" * 999, 400, "the body is not JSON"),
            (b"[]", 400, 'the body must be {"objects": [...]}'),
            (b'{"objects": [1], "what": 1}', 400, "unknown entry 'what'; known: objects, receipts"),
            (b'{"objects": [1, 2, 3]}', 413, "more than 2 objects"),
            (b'{"objects": [1], "deadline": -1}', 400, "deadline must be a positive number"),
            (b'{"objects": [1], "deadline": true}', 400, "deadline must be a positive number"),
            (
                b'{"objects": [1], "deadline": 1%s}' % (b"0" * 400),
                400,
                "deadline must be a positive",
            ),
            (b'{"objects": [1], "receipts": "yes"}', 400, "receipts must be true or false"),
            (b'{"objects": ["' + b"x" * 1000 + b'"]}', 413, "the body is longer than 1000 bytes"),
        ]:
            answer = client.post("/predict", content=body)
            assert answer.status_code == status
            assert sentence in answer.json()["error"]
        answer = client.post("/predict", json={"objects": objects[:1]})
        assert (answer.status_code, answer.json()) == (502, {"error": "source 'bureau' failed"})
        service.failing.clear()
        answer = client.post("/predict", json={"objects": objects[:1], "deadline": 0.05})
        assert answer.status_code == 504
        assert answer.json() == {"error": "source 'fraud' did not answer in time"}
        assert client.get("/predict").status_code == 405
        endless = (b"x" * 500 for _ in range(10))
        assert client.post("/predict", content=endless).status_code == 413


def test_a_client_that_has_gone_cancels_its_sources(objects, model):
    began, cancelled = threading.Event(), threading.Event()

    async def hang(customer):
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    sources = sources_with(hang)
    with running(app_for(model, sources)) as client:
        with socket.create_connection((client.base_url.host, client.base_url.port)) as raw:
            body = json.dumps({"objects": objects[:1]}).encode()
            head = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            raw.sendall(head.encode() + body)
            assert began.wait(PATIENCE)
            assert not cancelled.is_set()
        assert cancelled.wait(PATIENCE)
        assert client.get("/healthz").status_code == 200


def test_a_replaced_file_is_read_again(tmp_path, X, objects, monkeypatch):
    monkeypatch.setattr(service_module, "RELOAD_INTERVAL", 0.0)
    path = tmp_path / "model.miser"
    old = MiserRegressor(max_iter=3, min_samples_leaf=5).fit(X, X["age"])
    new = MiserRegressor(max_iter=3, min_samples_leaf=5).fit(X, -X["age"])
    save(old, path)
    with running(app_for(path)) as client:

        def ask():
            answer = client.post("/predict", json={"objects": objects[:1]})
            assert answer.status_code == 200
            return answer.json()["predictions"]

        assert ask() == old.predict(X[:1]).tolist()
        path.with_suffix(".new").write_bytes(b"half a file")
        os.replace(path.with_suffix(".new"), path)
        assert ask() == old.predict(X[:1]).tolist()
        save(new, path.with_suffix(".new"))
        os.replace(path.with_suffix(".new"), path)
        end = time.monotonic() + PATIENCE
        while (answer := ask()) != new.predict(X[:1]).tolist() and time.monotonic() < end:
            assert answer == old.predict(X[:1]).tolist()
        assert ask() == new.predict(X[:1]).tolist()


@quietly
@pytest.mark.slow
def test_many_clients_of_sources_that_fail_and_hang(X, objects, model):
    """Each answer is that of the model, or of the fallback that its receipt names."""
    rng = np.random.default_rng(0)
    fates = rng.random(400)

    async def bureau(customer):
        i = int(customer["number"])
        if fates[i] < 0.05:
            raise OSError("down")
        if fates[i] < 0.06:
            await anyio.sleep_forever()
        return customer["bureau"]

    sources = sources_with(bureau)
    plain = classifier(X, ["age", "fraud", "income"])
    app = app_for(model, sources, fallbacks=[plain], deadline=1.0)
    expected = [m.predict_proba(X).tolist() for m in (plain, model)]
    found = {}
    with running(app) as client:

        def ask(numbers):
            for i in numbers:
                one = {**objects[i % 200], "number": i}
                answer = client.post("/predict", json={"objects": [one], "receipts": True})
                found[i] = answer.json()

        threads = [threading.Thread(target=ask, args=(range(k, 400, 8),)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(3 * PATIENCE)
    assert len(found) == 400
    assert any(told["receipts"][0]["fallback"] is None for told in found.values())
    for i, told in found.items():
        is_model = told["receipts"][0]["fallback"] is None
        assert not (is_model and fates[i] < 0.06)
        assert told["probabilities"][0] == expected[is_model][i % 200]


# Metrics


@quietly
def test_prometheus(X, objects, model):
    registry = CollectorRegistry()
    plain = classifier(X, ["age", "fraud", "income"])
    shares = {"age": 0.5, "bureau": 1.0}
    watch = PrometheusObserver(registry, expected=shares)
    service = Service(["bureau"], is_async=True)
    served = OnDemandPredictor(model, service.sources, fallbacks=[plain], observers=[watch])
    _, receipts = served.predict(objects[:5], return_receipts=True)

    def value(name, **labels):
        return registry.get_sample_value(f"greedymiser_{name}", labels)

    assert value("source_calls_total", source="age") == 5
    assert value("source_failures_total", source="bureau", kind="OSError") == 5
    assert value("source_seconds_count", source="age") == 5
    assert value("objects_total", model="fallback 0") == 5
    assert value("cost_total") == pytest.approx(receipts.costs.sum())
    assert value("request_seconds_count") == 1
    assert value("asked_share_drift", source="age") == pytest.approx(0.5)
    assert value("asked_share_drift", source="bureau") == pytest.approx(0.0)


def test_what_a_cache_answers_is_needed_and_what_is_prefetched_may_not_be(X, objects, model):
    registry = CollectorRegistry()
    watch = PrometheusObserver(registry, expected={"bureau": 1.0})
    policies = {"bureau": SourcePolicy(cache={}, cache_key=lambda customer: 1)}
    service = Service(is_async=True)
    served = OnDemandPredictor(model, service.sources, policies=policies, observers=[watch])
    for _ in range(3):
        served.predict(objects[:1])
    assert service.calls["bureau"] == 1
    labels = {"source": "bureau"}
    drift = registry.get_sample_value("greedymiser_asked_share_drift", labels)
    assert drift == pytest.approx(0.0)
    answered = AnsweredObject(1.0, "model", ("age", "fraud"), in_vain=("fraud",), cached=("x",))
    assert answered.needed == ("age", "x")


def test_drift_forgets():
    drift = AskedDrift({"age": 0.5})
    for _ in range(20_000):
        drift.note(("age",))
    for _ in range(20_000):
        found = drift.note(())
    assert found["age"] == pytest.approx(-0.5, abs=0.01)


@quietly
def test_opentelemetry(X, objects, model):
    spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    watch = OpenTelemetryObserver(tracers, MeterProvider([reader]), {"age": 1.0})
    service = Service(["bureau"], is_async=True)
    served = OnDemandPredictor(model, service.sources, on_error="missing", observers=[watch])
    tracer = trace.get_tracer("test", tracer_provider=tracers)

    async def main():
        with tracer.start_as_current_span("request"):
            await served.apredict(objects[:2])

    anyio.run(main)
    found = spans.get_finished_spans()
    (parent,) = [span for span in found if span.name == "request"]
    calls = [span for span in found if span is not parent]
    assert sorted(span.name for span in calls) == sorted(f"source {name}" for name in NAMES * 2)
    for span in calls:
        assert span.parent.span_id == parent.context.span_id
        assert span.status.is_ok == (span.name != "source bureau")
        assert parent.start_time <= span.end_time <= parent.end_time
    metrics = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    by_name = {metric.name: metric.data.data_points for metric in metrics}
    assert sum(point.value for point in by_name["greedymiser.source.failures"]) == 2
    assert sum(point.value for point in by_name["greedymiser.objects"]) == 2
    assert by_name["greedymiser.source.asked_share_drift"][0].value == pytest.approx(0.0)


def test_a_saved_curve_falls_back_by_itself(tmp_path, X, objects):
    from greedymiser import load, tradeoff_curve

    y = X["age"] + 2 * X["bureau"] + X["fraud"] > 0
    base = MiserClassifier(costs=PRICES, max_iter=10, min_samples_leaf=5, n_jobs=1)
    curve = tradeoff_curve(
        base, X[:120], y[:120], X_val=X[120:], y_val=y[120:], tradeoffs=4, search="path"
    )
    save(curve, tmp_path / "curve.miser")
    family = load(tmp_path / "curve.miser")
    app = app_for(tmp_path / "curve.miser", Service(["bureau"]).sources)
    with running(app) as client, pytest.warns(match="'bureau' failed"):
        answer = client.post("/predict", json={"objects": objects[:1], "receipts": True})
    assert answer.status_code == 200
    told = answer.json()
    without = [m for m in reversed(family.models) if "bureau" not in m.features_used_]
    assert told["probabilities"] == without[0].predict_proba(X[:1]).tolist()
    assert told["receipts"][0]["failed"] == ["bureau"]


@pytest.mark.subprocess
@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_the_command(tmp_path, X, objects):
    """A process of its own, which ends in good order when it is told to."""
    path, source_file = tmp_path / "model.miser", tmp_path / "sources.py"
    model = classifier(X, NAMES)
    save(model, path)
    lines = ["from greedymiser.on_demand import Sources", "sources = Sources(raw='customer')"]
    lines += ["options = {'timeout': 5.0}"]
    for name in NAMES:
        lines.append(f"sources.add(lambda customer: customer['{name}'], ['{name}'], name='{name}')")
    source_file.write_text("\n".join(lines))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "greedymiser", "serve", str(path), "--port", str(port)]
    process = subprocess.Popen([*command, "--sources", str(source_file)], stderr=subprocess.PIPE)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            end = time.monotonic() + 3 * PATIENCE
            while time.monotonic() < end and process.poll() is None:
                with contextlib.suppress(httpx.TransportError):
                    if client.get("/healthz").status_code == 200:
                        break
                time.sleep(0.05)
            answer = client.post("/predict", json={"objects": objects[:2]}, timeout=PATIENCE)
        assert answer.json()["predictions"] == model.predict(X[:2]).tolist()
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert b"Traceback" not in told


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "has no Sources in the name sources"),
        ("1 / 0", "cannot be run: ZeroDivisionError: division by zero"),
        (
            "from greedymiser import Sources\nsources = Sources()\noptions = 3",
            "must be a dict for OnDemandPredictor",
        ),
    ],
)
def test_source_files_that_cannot_be(tmp_path, text, message):
    file = tmp_path / "sources.py"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        _sources_of(file)
