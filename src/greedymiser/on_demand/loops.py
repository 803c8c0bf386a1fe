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
from concurrent.futures import Future
from contextvars import Context
from functools import partial
from typing import Any, TypeVar, cast

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import EventLoopToken, current_token

from greedymiser.on_demand.calls import Outcome, context_for, running_backend
from greedymiser.on_demand.limits import Limit
from greedymiser.on_demand.sources import Source

T = TypeVar("T")

# What ends a program. An event loop would fall over it, so it is carried around the loop.
LEAVING = (SystemExit, KeyboardInterrupt)


# -- waiting --------------------------------------------------------------------------------------


async def await_call(source: Source, arguments: Sequence[Any]) -> Outcome:
    """Call a coroutine function; what it raises is caught, but for a cancellation from outside."""
    start = time.perf_counter()
    value: Any = None
    error: BaseException | None = None
    try:
        value = await source.call(arguments)
    except (Exception, *LEAVING) as raised:
        error = raised
    except CancelledError as raised:
        # Has someone cancelled this task, or something that the source waited for?
        if anyio.get_current_task().has_pending_cancellation():
            raise
        error = raised
    return Outcome(value, error, time.perf_counter() - start)


async def enter(limit: Limit) -> Any:
    """Wait for a place; who got it has to ``leave`` with what is returned."""
    loop = current_token().native_token
    ticket = limit.ask(loop)
    if ticket is not None:
        try:
            await until_done(ticket)
        except BaseException:
            limit.hand_back(ticket, loop)
            raise
    return loop


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

    Where one is already running (a notebook's, or trio's), on a thread.
    """
    if running_backend() is None:
        return context_for(None).run(_run, main, "asyncio")
    with calling() as call:
        return cast(T, call(main))


@contextlib.contextmanager
def calling() -> Iterator[Callable[..., Any]]:
    """A function that calls coroutine functions, all of them on one event loop on a thread.

    It is of the kind that runs here, if one does. Who is interrupted cancels what is called, and
    does not wait for it, nor for the thread.
    """
    backend = running_backend() or "asyncio"
    begun: Future[tuple[EventLoopToken, TaskGroup]] = Future()

    async def serve() -> None:
        async with anyio.create_task_group() as group:
            begun.set_result((current_token(), group))
            await anyio.sleep_forever()

    def work() -> None:
        try:
            _run(serve, backend)
        except BaseException as error:
            if not begun.done():  # else it is an answer, or nobody waits any more
                begun.set_exception(error)

    def call(function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        answer: Future[T] = Future()

        async def task() -> None:
            try:
                answer.set_result(await function(*arguments))
            except BaseException as error:
                answer.set_exception(error)

        token, group = begun.result()
        _soon(token, partial(context_for(backend).run, group.start_soon, task))
        return answer.result()

    def end(ready: Future[tuple[EventLoopToken, TaskGroup]]) -> None:
        if ready.exception() is None:
            token, group = ready.result()
            _soon(token, group.cancel_scope.cancel)

    name = "greedymiser-loop"
    thread = threading.Thread(target=Context().run, args=(work,), daemon=True, name=name)
    try:
        thread.start()
        yield call
    finally:
        begun.add_done_callback(end)
    thread.join()


def _run(main: Callable[[], Awaitable[T]], backend: str) -> T:
    # With a factory, asyncio leaves the loop alone that others get from it.
    options = {"loop_factory": asyncio.new_event_loop} if backend == "asyncio" else {}
    return anyio.run(main, backend=backend, backend_options=options)
