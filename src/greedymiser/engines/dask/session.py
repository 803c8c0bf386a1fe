"""A client's conversation with the workers that hold its rows."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from distributed import Client

from greedymiser.engines.dask.messages import (
    OPERATION,
    OwnWorkError,
    PeerLostError,
    SessionLostError,
    ask_worker,
    packed,
    unpacked,
)
from greedymiser.engines.dask.worker import close_session, open_session, sweep
from greedymiser.engines.interface import EngineLostError

# Seconds after which one looks whether a worker that has not answered is still there.
GLANCE = 0.5
# Seconds that a cluster without workers is given to get one.
PATIENCE = 30.0


class WorkersLostError(RuntimeError):
    """Some workers are gone, or have forgotten; what they held must be made anew."""


class Session:
    """What one fit keeps on a cluster, and the calls to its workers."""

    def __init__(self, client: Client):
        self.client = client
        self.id = f"{client.id}/{uuid.uuid4().hex[:12]}"
        # Names of rows and codes that nobody here needs any more.
        self.discarded: deque[str] = deque()
        self._is_direct: bool | None = None

    def open(self) -> list[str]:
        """The workers there are; they know the session from now on."""
        end = time.monotonic() + PATIENCE
        while True:
            addresses = sorted(self._alive())
            clients = self.client.run_on_scheduler(_known_clients)
            answers = self._run_everywhere(_begin_session, addresses, clients)
            begun = [address for address in addresses if answers.get(address) is True]
            if begun:
                self._forget(begun)
                return begun
            if time.monotonic() > end:
                raise EngineLostError(
                    f"no worker of {self.client.scheduler.address} has answered for "
                    f"{PATIENCE:g} seconds: the cluster has no workers any more"
                )
            time.sleep(GLANCE)

    def _forget(self, workers: list[str]) -> None:
        names = [self.discarded.popleft() for _ in range(len(self.discarded))]
        if names:
            with contextlib.suppress(WorkersLostError):
                self.ask("forget", {worker: (names,) for worker in workers})

    def n_workers(self) -> int:
        """How many there are now; 1 while one waits for the first."""
        return max(1, len(self._alive()))

    def close(self) -> None:
        """Leave nothing behind on the workers."""
        # Where nobody is left, nobody has to be told.
        with contextlib.suppress(EngineLostError, OSError, RuntimeError, TimeoutError):
            self._run_everywhere(close_session, sorted(self._alive()))
        sweep()

    def _run_everywhere(self, function: Any, addresses: list[str], *args: Any) -> dict[str, Any]:
        """Call a function on workers that may not know the session yet; errors are answers."""
        answers: dict[str, Any] = self.client.sync(self._run_all, function, addresses, *args)
        return answers

    async def _run_all(self, function: Any, addresses: list[str], *args: Any) -> dict[str, Any]:
        async def run(address: str) -> Any:
            answers = await self.client.run(function, self.id, *args, workers=[address])
            return answers[address]

        return await self._answers({address: run(address) for address in addresses})

    def ask(self, name: str, args: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        """Ask each of some workers for something, all at once."""
        answers: dict[str, Any] = self.client.sync(self._ask_all, name, args)
        errors = [answer for answer in answers.values() if isinstance(answer, BaseException)]
        # An error of the loss, say, is the same wherever it happens, and does not go away.
        for error in errors:
            if isinstance(error, OwnWorkError):
                raise error.cause from error
            if not _is_loss_of_worker(error):
                raise error
        if errors:
            raise WorkersLostError(str(errors[0])) from errors[0]
        return answers

    async def _ask_all(self, name: str, args: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        # What is the same for all is packed once.
        made = {id(argument): packed(argument) for argument in args.values()}
        return await self._answers(
            {to: self._send(to, name, made[id(argument)]) for to, argument in args.items()},
            if_one_fails=lambda to: self._send(to, "abort", packed(())),
        )

    async def _answers(
        self,
        calls: Mapping[str, Coroutine[Any, Any, Any]],
        if_one_fails: Callable[[str], Coroutine[Any, Any, Any]] | None = None,
    ) -> dict[str, Any]:
        """What workers answer, errors too.

        Those that the scheduler no longer knows are given up: Dask would try for half a minute to
        reach them. Where one has failed the others are told, who may wait for it.
        """
        tasks = {to: asyncio.ensure_future(call) for to, call in calls.items()}
        waiting, gone = set(tasks.values()), set[str]()
        try:
            while waiting:
                done, waiting = await asyncio.wait(
                    waiting, timeout=GLANCE, return_when=asyncio.FIRST_EXCEPTION
                )
                late = {to for to, task in tasks.items() if task in waiting}
                if late and not done:
                    gone |= late.difference(await self._known_workers())
                    for to in gone & late:
                        tasks[to].cancel()
                if if_one_fails and (gone or any(map(_has_failed, tasks.values()))):
                    aborts = [if_one_fails(to) for to in late - gone]
                    await asyncio.gather(*aborts, return_exceptions=True)
        finally:
            for task in tasks.values():
                task.cancel()
        answers = await asyncio.gather(*tasks.values(), return_exceptions=True)
        said = dict(zip(tasks, answers, strict=True))
        return said | {to: SessionLostError(f"{to} is gone") for to in gone}

    async def _known_workers(self) -> set[str]:
        try:
            return set(await self.client.scheduler.ncores())
        except OSError:  # there is no scheduler any more
            return set()

    async def _send(self, address: str, name: str, args: Any) -> Any:
        if self._is_direct is None:
            self._is_direct = await self._reaches(address)
        if self._is_direct:
            return await ask_worker(self.client.rpc(address), self.id, name, args)
        message = {"op": OPERATION, "session": self.id, "name": name, "args": args}
        return unpacked(await self.client.scheduler.proxy(worker=address, msg=message))

    async def _reaches(self, address: str) -> bool:
        """Whether workers can be spoken to without going by way of the scheduler."""
        try:
            await asyncio.wait_for(self.client.rpc(address).identity(), 2.0)
        except (OSError, TimeoutError):
            return False
        return True

    def _alive(self) -> set[str]:
        try:
            return set(self.client.sync(self.client.scheduler.ncores))
        except OSError as error:
            raise EngineLostError(f"the scheduler does not answer: {error}") from error


def _has_failed(task: asyncio.Future[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None


def _known_clients(dask_scheduler: Any) -> list[str]:
    return list(dask_scheduler.clients)


def _begin_session(session: str, clients: list[str], dask_worker: Any) -> bool:
    """Begin a session on a worker, and end those whose clients are gone."""
    sweep(clients)
    open_session(session, dask_worker)
    return True


def _is_loss_of_worker(error: BaseException) -> bool:
    lost = OSError | SessionLostError | PeerLostError | asyncio.CancelledError
    return isinstance(error, lost)
