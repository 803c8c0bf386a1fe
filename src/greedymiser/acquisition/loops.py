"""Event loops of asyncio or trio: one of our own, and what tasks wait for on any of them.

All that needs anyio is here and in ``side_by_side``. Loading it takes a while, so others import
these two when there is something to wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import Any, TypeVar

import anyio
from anyio.from_thread import start_blocking_portal
from anyio.lowlevel import EventLoopToken, current_token

from greedymiser.acquisition.calls import Outcome, context_without_loop, running_backend
from greedymiser.acquisition.limits import Limit
from greedymiser.acquisition.sources import Source

T = TypeVar("T")

# What ends a program. An event loop would fall over it, so it is carried around the loop.
LEAVING = (SystemExit, KeyboardInterrupt)


# -- waiting --------------------------------------------------------------------------------------


async def await_call(source: Source, arguments: Sequence[Any]) -> Outcome:
    """Call a coroutine function; what it raises is caught, but for a cancellation from outside."""
    start = time.perf_counter()
    value, error = await _caught(source.call, arguments)
    return Outcome(value, error, time.perf_counter() - start)


async def _caught(
    function: Callable[..., Awaitable[T]], *arguments: Any
) -> tuple[T | None, BaseException | None]:
    """What a coroutine function returns, or raises."""
    try:
        return await function(*arguments), None
    except (Exception, *LEAVING) as error:
        return None, error
    except CancelledError as error:
        # Has someone cancelled this task, or something that the function waited for?
        if anyio.get_current_task().has_pending_cancellation():
            raise
        return None, error


async def enter(limit: Limit) -> None:
    """Wait for a place; who got it has to ``leave``."""
    ticket = limit.ask()
    if ticket is not None:
        try:
            await until_done(ticket)
        except BaseException:
            limit.hand_back(ticket)
            raise


async def until_done(future: Future[T]) -> T:
    """Wait for something that happens on a thread, or on another event loop."""
    event, token = anyio.Event(), current_token()
    future.add_done_callback(lambda _: _soon(token, event.set))
    await event.wait()
    return future.result()


def _soon(token: EventLoopToken, function: Callable[[], object]) -> None:
    """Have a function called on an event loop, and do not wait for it, as anyio's doors would."""
    loop: Any = token.native_token
    soon = loop.run_sync_soon if hasattr(loop, "run_sync_soon") else loop.call_soon_threadsafe
    with contextlib.suppress(RuntimeError):  # the loop has ended: this comes too late
        soon(function)


# -- a loop of our own ----------------------------------------------------------------------------


def run(main: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function on an event loop of our own.

    Where one is already running (a notebook's, or trio's), on a thread and of the same kind.
    """
    backend = running_backend()
    if backend is not None:
        return _run_on_thread(main, backend)
    return context_without_loop().run(_run_here, main, "asyncio")


@contextlib.contextmanager
def calling() -> Iterator[Callable[..., Any]]:
    """A function that calls coroutine functions, all of them on one event loop of our own."""
    backend = running_backend() or "asyncio"
    with start_blocking_portal(backend, _options(backend)) as portal:

        def call(function: Callable[..., Awaitable[T]], *arguments: Any) -> T | None:
            value, error = portal.call(_caught, function, *arguments)
            if error is not None:
                raise error
            return value

        yield call


def _options(backend: str) -> dict[str, Any]:
    # With a factory, asyncio leaves the loop alone that others get from it.
    return {"loop_factory": asyncio.new_event_loop} if backend == "asyncio" else {}


def _run_here(main: Callable[[], Awaitable[T]], backend: str) -> T:
    return anyio.run(main, backend=backend, backend_options=_options(backend))


def _run_on_thread(main: Callable[[], Awaitable[T]], backend: str) -> T:
    """Run it on a thread; who is interrupted cancels it, and does not wait for it."""
    result: Future[T | None] = Future()
    cancel: Future[Callable[[], None]] = Future()

    async def cancellable() -> T | None:
        with anyio.CancelScope() as scope:
            token = current_token()
            cancel.set_result(lambda: _soon(token, scope.cancel))
            return await main()
        return None

    def work() -> None:
        try:
            answer = _run_here(cancellable, backend)
        except BaseException as error:
            result.set_exception(error)
        else:
            result.set_result(answer)

    context, name = context_without_loop(), "greedymiser-loop"
    threading.Thread(target=context.run, args=(work,), daemon=True, name=name).start()
    try:
        wait([result])
    except BaseException:  # Ctrl-C
        cancel.add_done_callback(lambda ready: ready.result()())
        raise
    return result.result()  # type: ignore[return-value]
