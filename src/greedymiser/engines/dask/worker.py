"""What lives on a worker: codes, shards, and histograms on their way to those who add them up.

A client asks all workers at once, and directly: nothing of this is a task. The heavy work runs in
a thread of its own, so that the worker's event loop stays free to answer the other workers.
"""

from __future__ import annotations

import asyncio
import math
import pickle
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from distributed import Status, Worker
from numpy.typing import NDArray

from greedymiser._core.threads import Threads
from greedymiser.engines.dask.chunks import Chunk
from greedymiser.engines.dask.messages import (
    HISTOGRAMS,
    OPERATION,
    Command,
    CountedBlocks,
    LevelAnswer,
    LevelRequest,
    OwnWorkError,
    PeerLostError,
    SessionLostError,
    Share,
    ask_worker,
    packed,
    unpacked,
)
from greedymiser.engines.dask.packed_histograms import PackedHistograms
from greedymiser.engines.dask.shard import DaskShard

# Seconds after which a session without a client is let go.
AGE_OF_ORPHANS = 60.0

# So many histograms are scanned in less time than it takes to begin it in another thread.
FEW_HISTOGRAMS = 32

# By session and worker: a cluster for tests has several workers in one process.
_WORKERS: dict[tuple[str, str], WorkerState] = {}


def sweep(clients: Collection[str] | None = None) -> None:
    """Let go of what belongs to closed workers, or to clients that are gone."""
    for (session, address), state in list(_WORKERS.items()):
        is_orphan = clients is not None and session.partition("/")[0] not in clients
        # Not the newest: their clients may have come after this one was told of all clients.
        is_orphan = is_orphan and time.monotonic() - state.begun > AGE_OF_ORPHANS
        if is_orphan or state.is_abandoned:
            _WORKERS.pop((session, address)).close()


def open_session(session: str, dask_worker: Worker) -> WorkerState:
    """What a session keeps on a worker; made where there is nothing yet."""
    key = session, dask_worker.address
    if key not in _WORKERS:
        _WORKERS[key] = WorkerState(session, dask_worker)
        dask_worker.handlers[OPERATION] = _handler(dask_worker)
        dask_worker.handlers[HISTOGRAMS] = _taker(dask_worker)
    return _WORKERS[key]


def close_session(session: str, dask_worker: Worker) -> None:
    """Let everything go."""
    state = _WORKERS.pop((session, dask_worker.address), None)
    if state is not None:
        state.close()


def busy_seconds() -> float:
    """How long the shards of this process have worked; the rest is talk, or waiting for others."""
    return sum(state.busy for state in _WORKERS.values())


def _handler(worker: Worker) -> Callable[..., Awaitable[Any]]:
    """How a worker answers what it is asked by clients and other workers."""

    async def answer(session: str, name: str, args: Any) -> Any:
        state = _WORKERS.get((session, worker.address))
        if state is None:
            raise SessionLostError(f"{worker.address} does not know session {session}")
        return packed(await getattr(state, name)(*unpacked(args)))

    return answer


def _taker(worker: Worker) -> Callable[..., Awaitable[Any]]:
    """How a worker takes histograms that another one has counted."""

    async def take(about: bytes, words: Any) -> None:
        session, placed, step, narrow, root = pickle.loads(about)
        state = _WORKERS.get((session, worker.address))
        if state is not None:
            words, narrow = np.frombuffer(words, np.int64), np.frombuffer(narrow, np.bool_)
            state.take(placed, step, CountedBlocks(PackedHistograms(words, narrow), root))

    return take


class WorkerState:
    """What one session keeps on a worker. Its coroutines are what clients and workers may ask."""

    def __init__(self, session: str, worker: Worker):
        self._session = session
        self._worker = worker
        self._threads = Threads(worker.state.nthreads)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="greedymiser")
        self._chunks: dict[tuple[str, int], Chunk] = {}
        self._shards: dict[str, DaskShard] = {}
        # Histograms that others have counted, by rows and step.
        self._arriving: dict[tuple[str, int], Arrivals] = {}
        self._pulls: set[asyncio.Future[Any]] = set()
        self.begun = time.monotonic()
        # Seconds that were spent working.
        self.busy = 0.0

    @property
    def is_abandoned(self) -> bool:
        """Whether the worker is closed."""
        return self._worker.status in (Status.closed, Status.failed)

    def close(self) -> None:
        """Let everything go; what still runs ends by itself."""
        self._executor.submit(self._threads.__exit__, None, None, None)
        self._executor.shutdown(wait=False)
        self._chunks.clear()
        self._shards.clear()

    async def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._work, function, *args)

    def _work(self, function: Callable[..., Any], *args: Any) -> Any:
        begun = time.perf_counter()
        try:
            return function(*args)
        except OSError as error:
            raise OwnWorkError(error) from error
        finally:
            self.busy += time.perf_counter() - begun

    # -- codes ------------------------------------------------------------------------------------

    def put(self, store: str, chunk: int, codes: NDArray[np.uint64]) -> None:
        """Keep the codes of a chunk of rows."""
        self._chunks[store, chunk] = Chunk(codes)

    async def keep(self, store: str, codes: Mapping[int, NDArray[np.uint64]]) -> None:
        """Keep the codes of some chunks, from the client."""
        for chunk, part in codes.items():
            self.put(store, chunk, part)

    async def held(self, store: str) -> list[int]:
        """Chunks that are here."""
        return [chunk for name, chunk in self._chunks if name == store]

    async def codes_of(self, store: str, chunk: int, rows: NDArray[np.int64] | None) -> Any:
        """Codes of some rows, for another worker."""
        return await self._run(self._chunk(store, chunk).take, rows)

    def _chunk(self, store: str, chunk: int) -> Chunk:
        if (store, chunk) not in self._chunks:
            raise SessionLostError(f"{self._worker.address} does not have chunk {chunk}")
        return self._chunks[store, chunk]

    async def forget(self, names: Sequence[str]) -> None:
        """Let go of stores and shards that are no longer needed."""
        for key in [key for key in self._chunks if key[0] in names]:
            del self._chunks[key]
        for name in names:
            self._shards.pop(name, None)
            self._let_go(name)

    # -- shards -----------------------------------------------------------------------------------

    async def place(self, placed: str, share: Share) -> None:
        """Make a shard of codes that are here, and of those that others have."""
        away = [piece for piece in share.pieces if piece.worker != self._worker.address]
        calls = [
            self._ask(piece.worker, "codes_of", share.store, piece.chunk, piece.rows)
            for piece in away
        ]
        pulled = {
            piece.chunk: part for piece, part in zip(away, await self._pull(calls), strict=True)
        }
        try:
            self._shards[placed] = await self._run(self._make_shard, share, pulled)
        except MemoryError as error:
            raise MemoryError(
                f"{share.n_rows} rows x {share.sample.binned.n_features} features, binned, and "
                f"their predictions did not fit into the memory of {self._worker.address}: {error}"
            ) from error

    def _make_shard(self, share: Share, pulled: dict[int, NDArray[np.uint64]]) -> DaskShard:
        binned = share.sample.binned
        codes = np.empty((len(binned.codes), share.n_rows), dtype=np.uint64)
        first = 0
        for piece in share.pieces:
            part, is_here = pulled.pop(piece.chunk, None), piece.worker == self._worker.address
            if part is None:
                part = self._chunk(share.store, piece.chunk).take(piece.rows)
            last, target = first + part.shape[1], piece.target
            codes[:, slice(first, last) if target is None else target] = part
            if is_here:
                columns = first if target is None else target.astype(np.uint32)
                self._chunk(share.store, piece.chunk).move(piece.rows, codes, columns)
            first = last
        sample = replace(share.sample, binned=replace(binned, codes=codes))
        return DaskShard(sample, share.places, self._threads)

    async def obey(self, placed: str, commands: Sequence[Command]) -> Any:
        """Tell a shard what to do; what it answers to the last command."""
        return await self._run(self._shard(placed).obey, commands)

    def _shard(self, placed: str) -> DaskShard:
        if placed not in self._shards:
            raise SessionLostError(f"{self._worker.address} does not have rows {placed}")
        return self._shards[placed]

    # -- levels -----------------------------------------------------------------------------------

    async def table(self, placed: str, commands: Sequence[Command], level: LevelRequest) -> Any:
        """Count the rows here; add up and scan the blocks that are this worker's."""
        shard, me = self._shard(placed), self._worker.address
        arriving = self._arrivals(placed, level.step)
        last = await self._count(shard, placed, commands, level)
        n_mine = len(level.owned(level.blocks)[level.peers.index(me)])
        if n_mine == 0:
            return LevelAnswer(last, None)
        await self._wait(arriving.expect(len(level.peers) - 1))
        self._arriving.pop((placed, level.step), None)
        scan = shard.scan, level, me, arriving.parts
        if len(level.nodes) * n_mine <= FEW_HISTOGRAMS:
            return LevelAnswer(last, self._work(*scan))
        return LevelAnswer(last, await self._run(*scan))

    async def _count(
        self, shard: DaskShard, placed: str, commands: Sequence[Command], level: LevelRequest
    ) -> Any:
        """Count, and send histograms to the workers that add them up; nobody answers."""
        loop, sent = asyncio.get_running_loop(), list[asyncio.Future[None]]()
        is_over = False

        def send(peer: str, counts: CountedBlocks) -> None:
            if not is_over:  # the thread goes on counting where nobody waits for it any more
                sent.append(asyncio.ensure_future(self._send(peer, placed, level.step, counts)))

        def give(peer: str, counts: CountedBlocks) -> None:
            loop.call_soon_threadsafe(send, peer, counts)

        try:
            last = await self._run(shard.count, commands, level, self._worker.address, give)
        except BaseException:
            is_over = True
            for one in sent:
                one.cancel()
            await asyncio.gather(*sent, return_exceptions=True)
            raise
        await self._pull(sent)
        return last

    async def _send(self, peer: str, placed: str, step: int, counts: CountedBlocks) -> None:
        (words, narrow), root = counts
        about = pickle.dumps((self._session, placed, step, narrow.tobytes(), root))
        call = getattr(self._worker.rpc(peer), HISTOGRAMS)
        await call(about=about, words=words.data.cast("B"), reply=False)

    def take(self, placed: str, step: int, counts: CountedBlocks) -> None:
        """Keep what another worker has counted, until it is asked for."""
        if placed in self._shards:  # and has not been forgotten in the meantime
            self._arrivals(placed, step).take(counts)

    def _arrivals(self, placed: str, step: int) -> Arrivals:
        """What comes from others for one level."""
        self._let_go(placed, step)
        return self._arriving.setdefault((placed, step), Arrivals())

    def _let_go(self, placed: str, step: float = math.inf) -> None:
        """Wait no more for what comes for earlier levels."""
        for key in [key for key in self._arriving if key[0] == placed and key[1] < step]:
            self._arriving.pop(key).give_up()

    async def abort(self) -> None:
        """Wait for nobody any more."""
        for pull in self._pulls:
            pull.cancel()
        for arriving in self._arriving.values():
            arriving.give_up()

    async def _ask(self, peer: str, name: str, *args: Any) -> Any:
        return await ask_worker(self._worker.rpc(peer), self._session, name, packed(args))

    async def _pull(self, calls: Sequence[Awaitable[Any]]) -> list[Any]:
        """Wait for what other workers have."""
        return await self._wait(asyncio.gather(*calls)) if calls else []

    async def _wait(self, pull: asyncio.Future[Any]) -> Any:
        self._pulls.add(pull)
        try:
            return await pull
        except (OSError, asyncio.CancelledError) as error:
            raise PeerLostError(f"another worker did not answer: {error!r}") from error
        finally:
            self._pulls.discard(pull)


class Arrivals:
    """What other workers have counted of the blocks that this one adds up."""

    def __init__(self) -> None:
        self.parts: list[CountedBlocks] = []
        self._expected = -1
        self._complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(self, counts: CountedBlocks) -> None:
        """One more of them."""
        self.parts.append(counts)
        self._look()

    def expect(self, n: int) -> asyncio.Future[None]:
        """Done when there are so many."""
        self._expected = n
        self._look()
        return self._complete

    def _look(self) -> None:
        if len(self.parts) == self._expected and not self._complete.done():
            self._complete.set_result(None)

    def give_up(self) -> None:
        """Whoever waits for them need not."""
        self._complete.cancel()
