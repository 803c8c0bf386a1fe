"""How many requests a second does a service answer, with sources on demand and by hand?

Three coroutines of 5 to 50 ms and many clients. uvicorn runs in a process of its own, on loopback
only; clients are coroutines here. ``--soak SECONDS`` has 5% of the calls of one source fail and
0.5% hang, with a fallback and a deadline, and watches the memory of the service.

Without a service: ``--overhead`` is the CPU time of an object whose sources answer at once, and
``--prefetch`` what it buys to fetch ahead, in milliseconds and in money.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import multiprocessing
import random
import socket
import time
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pandas as pd
import psutil
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from greedymiser import MiserClassifier, MiserRegressor, as_predictor
from greedymiser.model.gating import Gate, Gates
from greedymiser.on_demand import Observer, OnDemandPredictor, Sources

SECONDS = {"age": 0.005, "bureau": 0.05, "income": 0.02}
KINDS = ("by hand", "model", "row", "gated")
RAW = {"age": 0.3, "bureau": -0.2, "income": 0.9}


@functools.cache
def trained() -> tuple[Any, Any, Any]:
    """A model of all sources, one that needs no bureau, and a gated cascade of three states."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.standard_normal((4000, 3)), columns=list(SECONDS))
    y = X["age"] + X["bureau"] * X["income"] > 0
    fit = MiserClassifier(max_iter=50, n_jobs=1).fit
    sets = (["age"], ["age", "income"], list(SECONDS))
    everyone = [1.0 + X["age"] ** 2] * 2
    cascade = cascade_of(X, y, sets, everyone)
    return as_predictor(fit(X, y)), as_predictor(fit(X[["age", "income"]], y)), cascade


def cascade_of(X: Any, y: Any, sets: Any, gains: Any, **options: Any) -> Any:
    """Models of growing sets of columns; rows go on where their gain is more than 0."""
    stages, gates, n_trees = [], [], 0
    for k, names in enumerate(sets):
        seen = X * X.columns.isin(names)
        model = as_predictor(MiserClassifier(max_iter=50, n_jobs=1, **options).fit(seen, y))
        n_trees += model.stages[0].n_trees
        stages.append(replace(model.stages[0], n_trees=n_trees))
        if k < len(gains):
            extended = np.column_stack([seen, model.predict_proba(X)[:, 1]])
            gate = MiserRegressor(max_iter=3, learning_rate=1.0, n_jobs=1).fit(extended, gains[k])
            gates.append(Gate(as_predictor(gate).stages[0].ensemble, 0.0))
    rule = Gates(tuple(gates), X.shape[1], model.loss)
    return replace(model, stages=tuple(stages), rule=rule)


def fetchers(is_soak: bool) -> dict[str, Any]:
    def fetcher(name: str, seconds: float) -> Any:
        async def fetch(raw: Any) -> float:
            await asyncio.sleep(seconds)
            if is_soak and name == "bureau":
                fate = random.random()
                if fate < 0.05:
                    raise ConnectionError("down")
                if fate < 0.055:
                    await asyncio.Event().wait()
            return raw[name]

        return fetch

    return {name: fetcher(name, seconds) for name, seconds in SECONDS.items()}


def predictors(functions: dict[str, Any], **options: Any) -> list[OnDemandPredictor]:
    """Those that pay for all, for their own path, and state by state."""
    model, _, cascade = trained()
    sources = Sources()
    for name, function in functions.items():
        sources.add(function, [name], name=name, needs=["raw"])
    by_row = replace(model, charge="row")
    models = [model, by_row] if "fallbacks" in options else [model, by_row, cascade]
    return [OnDemandPredictor(each, sources, **options) for each in models]


def service(is_soak: bool) -> Starlette:
    model, plain, _ = trained()
    functions = fetchers(is_soak)
    options = {"fallbacks": [plain], "deadline": 0.3} if is_soak else {}

    async def hand(request: Any) -> JSONResponse:
        raw = await request.json()
        values = await asyncio.gather(*[function(raw) for function in functions.values()])
        return JSONResponse({"risk": float(model.predict_proba(np.array([values]))[0, 1])})

    def on_demand(predictor: OnDemandPredictor) -> Any:
        async def answer(request: Any) -> JSONResponse:
            proba = await predictor.apredict_proba([await request.json()])
            return JSONResponse({"risk": float(proba[0, 1])})

        return answer

    served = map(on_demand, predictors(functions, **options))
    handlers = dict(zip(KINDS, (hand, *served), strict=False))
    return Starlette(
        routes=[
            Route("/" + kind.replace(" ", "-"), handler, methods=["POST"])
            for kind, handler in handlers.items()
        ]
    )


def serve(port: int, is_soak: bool) -> None:
    import logging
    import warnings

    warnings.simplefilter("ignore")
    logging.getLogger("greedymiser.on_demand").setLevel(logging.ERROR)
    uvicorn.run(service(is_soak), port=port, log_level="critical", timeout_keep_alive=300)


async def load(
    port: int, kind: str, n_clients: int, seconds: float
) -> tuple[int, int, list[float]]:
    """Requests that were answered and that were not, and the seconds of each."""
    times: list[float] = []
    n_failed = 0
    end = time.perf_counter() + seconds
    limits = httpx.Limits(max_connections=n_clients, max_keepalive_connections=n_clients)
    async with httpx.AsyncClient(limits=limits, timeout=10.0, trust_env=False) as client:

        async def one() -> None:
            nonlocal n_failed
            while time.perf_counter() < end:
                start = time.perf_counter()
                try:
                    answer = await client.post(
                        f"http://127.0.0.1:{port}/{kind.replace(' ', '-')}", json=RAW
                    )
                except httpx.TransportError:
                    n_failed += 1
                    continue
                if answer.status_code == 200:
                    times.append(time.perf_counter() - start)
                else:
                    n_failed += 1

        await asyncio.gather(*[one() for _ in range(n_clients)])
    return len(times), n_failed, times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=5.0, help="per measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--soak", type=float, default=0.0, help="seconds with failing sources")
    parser.add_argument("--overhead", action="store_true", help="CPU time of an object")
    parser.add_argument("--prefetch", action="store_true", help="latency and money of prefetch")
    options = parser.parse_args()
    if options.overhead or options.prefetch:
        (overhead if options.overhead else prefetch)(options)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=serve, args=(port, options.soak > 0), daemon=True)
    process.start()
    try:
        wait_for(port)
        if options.soak:
            soak(port, options, process.pid)
        else:
            compare(port, options, process.pid)
    finally:
        process.terminate()
        process.join()


def wait_for(port: int) -> None:
    end = time.monotonic() + 300  # a busy machine compiles slowly
    while time.monotonic() < end:
        try:
            httpx.post(f"http://127.0.0.1:{port}/model", json=dict.fromkeys(SECONDS, 0.0))
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError("the service did not start")


def compare(port: int, options: argparse.Namespace, pid: int | None) -> None:
    """Requests a second, and CPU time of the service for each, which a busy machine alters less."""
    service = psutil.Process(pid)
    best: dict[str, float] = {}
    least: dict[str, float] = {}
    for _ in range(options.repeats):  # they take turns
        for kind in KINDS:
            before = sum(service.cpu_times()[:2])
            n, _, _ = asyncio.run(load(port, kind, options.clients, options.seconds))
            cpu = (sum(service.cpu_times()[:2]) - before) / max(n, 1)
            best[kind] = max(best.get(kind, 0.0), n / options.seconds)
            least[kind] = min(least.get(kind, cpu), cpu)
    for kind, rate in best.items():
        share = rate / best["by hand"]
        print(
            f"{kind:8} {rate:5.0f} requests a second, {share:.2f} of by hand; "
            f"{1e3 * least[kind]:.2f} ms of CPU each"
        )


def soak(port: int, options: argparse.Namespace, pid: int | None) -> None:
    process = psutil.Process(pid)
    parts = 6
    for _ in range(parts):
        n, failed, times = asyncio.run(load(port, "model", options.clients, options.soak / parts))
        memory = process.memory_info().rss / 1e6
        slowest = max(times, default=0.0)
        print(f"{n} answered, {failed} not, slowest {slowest:.3f} s, memory {memory:.0f} MB")


def overhead(options: argparse.Namespace) -> None:
    """CPU time of an object whose sources answer at the next turn of the event loop."""
    model = trained()[0]

    def fetcher(name: str) -> Any:
        async def fetch(raw: Any) -> float:
            await asyncio.sleep(0)
            return raw[name]

        return fetch

    functions = {name: fetcher(name) for name in SECONDS}

    async def hand(_: Any) -> None:
        values = await asyncio.gather(*[function(RAW) for function in functions.values()])
        model.predict_proba(np.array([values]))

    ways = dict(zip(KINDS, (hand, *(s.apredict_proba for s in predictors(functions))), strict=True))
    ways["model, observed"] = predictors(functions, observers=[Observer()])[0].apredict_proba

    async def many(way: Any) -> None:
        for _ in range(500):
            await way([RAW])

    best: dict[str, float] = {}
    for turn in range(options.repeats + 1):  # the first compiles
        for name, way in ways.items():
            start = time.process_time()
            asyncio.run(many(way))
            seconds = (time.process_time() - start) / 500
            if turn:
                best[name] = min(best.get(name, seconds), seconds)
    for name, seconds in best.items():
        print(f"{name:16} {1e3 * seconds:.3f} ms of CPU for an object")


def prefetch(options: argparse.Namespace) -> None:
    """Mean latency and what was bought, for rows of which fewer and fewer need the next source."""
    prices = {"age": 0.0, "income": 1.0, "fraud": 2.0, "bureau": 5.0}
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.standard_normal((6000, 4)), columns=list(prices))
    y, is_open, gains = np.zeros(len(X), dtype=bool), np.ones(len(X), dtype=bool), []
    for name in prices:  # whoever is near 0 is decided by the next one
        y[is_open] = X[name][is_open] > 0
        gains.append(np.where(X[name].abs() < 1, 1.0, -1.0))
        is_open &= X[name].abs() < 1
    sets = [list(prices)[: k + 1] for k in range(len(prices))]
    model = cascade_of(X, y, sets, gains[:-1], costs=prices)
    sources = Sources()

    def add(name: str) -> None:
        async def fetch(raw: Any) -> float:
            await asyncio.sleep(0.02)
            return raw[name]

        sources.add(fetch, [name], name=name, needs=["raw"])

    for name in prices:
        add(name)
    objects, sample = X[5000:5200].to_dict("records"), X[4000:5000]
    shares = OnDemandPredictor(model, sources, sample=sample).asked_shares
    assert shares is not None
    print("needed by:", {name: round(share, 2) for name, share in shares.items()})

    async def run(served: OnDemandPredictor) -> None:
        waits, bought = [], []
        for each in objects:
            start = time.perf_counter()
            _, receipts = await served.apredict([each], return_receipts=True)
            waits.append(time.perf_counter() - start)
            bought.append(sum(prices[name] for name in receipts[0].fetched))
        cost = np.mean(bought)
        print(f"{name:14} {1e3 * np.mean(waits):6.1f} ms, {cost:.2f} bought per object")

    for share in (None, 0.8, 0.6, 0.4, 0.2):
        name = "no prefetch" if share is None else f"prefetch={share}"
        given = {} if share is None else {"prefetch": share, "sample": sample}
        asyncio.run(run(OnDemandPredictor(model, sources, **given)))


if __name__ == "__main__":
    main()
