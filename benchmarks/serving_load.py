"""How many requests a second does a service answer, with sources on demand and by hand?

Three coroutines of 5 to 50 ms and many clients. uvicorn runs in a process of its own, on loopback
only; clients are coroutines here. ``--soak SECONDS`` has 5% of the calls of one source fail and
0.5% hang, with a fallback and a deadline, and watches the memory of the service.
"""

from __future__ import annotations

import argparse
import asyncio
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

from greedymiser import MiserClassifier, as_predictor
from greedymiser.on_demand import OnDemandPredictor, Sources

SECONDS = {"age": 0.005, "bureau": 0.05, "income": 0.02}
KINDS = ("by hand", "model", "row")


def trained() -> tuple[Any, Any]:
    """A model of all sources, and one that needs no bureau."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.standard_normal((4000, 3)), columns=list(SECONDS))
    y = X["age"] + X["bureau"] * X["income"] > 0
    fit = MiserClassifier(max_iter=50, n_jobs=1).fit
    return as_predictor(fit(X, y)), as_predictor(fit(X[["age", "income"]], y))


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


def service(is_soak: bool) -> Starlette:
    model, plain = trained()
    functions = fetchers(is_soak)
    sources = Sources()
    for name, function in functions.items():
        sources.add(function, [name], name=name, needs=["raw"])
    options = {"fallbacks": [plain], "deadline": 0.3} if is_soak else {}
    served = OnDemandPredictor(model, sources, **options)
    by_row = OnDemandPredictor(replace(model, charge="row"), sources, **options)

    async def hand(request: Any) -> JSONResponse:
        raw = await request.json()
        values = await asyncio.gather(*[function(raw) for function in functions.values()])
        return JSONResponse({"risk": float(model.predict_proba(np.array([values]))[0, 1])})

    def on_demand(predictor: OnDemandPredictor) -> Any:
        async def answer(request: Any) -> JSONResponse:
            proba = await predictor.apredict_proba([await request.json()])
            return JSONResponse({"risk": float(proba[0, 1])})

        return answer

    handlers = dict(zip(KINDS, (hand, on_demand(served), on_demand(by_row)), strict=True))
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
    uvicorn.run(service(is_soak), port=port, log_level="error")


async def load(
    port: int, kind: str, n_clients: int, seconds: float
) -> tuple[int, int, list[float]]:
    """Requests that were answered and that were not, and the seconds of each."""
    times: list[float] = []
    n_failed = 0
    end = time.perf_counter() + seconds
    raw = {"age": 0.3, "bureau": -0.2, "income": 0.9}
    limits = httpx.Limits(max_connections=n_clients, max_keepalive_connections=n_clients)
    async with httpx.AsyncClient(limits=limits, timeout=10.0, trust_env=False) as client:

        async def one() -> None:
            nonlocal n_failed
            while time.perf_counter() < end:
                start = time.perf_counter()
                answer = await client.post(
                    f"http://127.0.0.1:{port}/{kind.replace(' ', '-')}", json=raw
                )
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
    options = parser.parse_args()
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
            compare(port, options)
    finally:
        process.terminate()
        process.join()


def wait_for(port: int) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            httpx.post(f"http://127.0.0.1:{port}/model", json=dict.fromkeys(SECONDS, 0.0))
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError("the service did not start")


def compare(port: int, options: argparse.Namespace) -> None:
    best: dict[str, float] = {}
    for _ in range(options.repeats):  # they take turns
        for kind in KINDS:
            n, _, _ = asyncio.run(load(port, kind, options.clients, options.seconds))
            best[kind] = max(best.get(kind, 0.0), n / options.seconds)
    for kind, rate in best.items():
        print(f"{kind:8} {rate:7.0f} requests a second, {rate / best['by hand']:.2f} of by hand")


def soak(port: int, options: argparse.Namespace, pid: int | None) -> None:
    process = psutil.Process(pid)
    parts = 6
    for _ in range(parts):
        n, failed, times = asyncio.run(load(port, "model", options.clients, options.soak / parts))
        memory = process.memory_info().rss / 1e6
        slowest = max(times, default=0.0)
        print(f"{n} answered, {failed} not, slowest {slowest:.3f} s, memory {memory:.0f} MB")


if __name__ == "__main__":
    main()
