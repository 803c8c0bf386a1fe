"""What a client and its workers tell each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from distributed.protocol import Serialize, to_serialize
from distributed.protocol.pickle import dumps, loads
from numpy.typing import NDArray

from greedymiser.engines.interface import Columns, Floats, Sample

# The operation of Dask's own protocol that all messages are.
OPERATION = "greedymiser"

Command = tuple[Any, ...]
"""The name of a shard's method, and its arguments."""

RowPlaces = slice | NDArray[np.int64]
"""Rows by their number among all rows that are placed together."""


class SessionLostError(RuntimeError):
    """A worker does not know what it is asked for: it was restarted."""


class PeerLostError(RuntimeError):
    """A worker could not reach another one."""


class OwnWorkError(RuntimeError):
    """An OSError of what a worker computes, a user's loss, say: no connection is lost."""

    def __init__(self, cause: OSError):
        super().__init__(cause)
        self.cause = cause


@dataclass(frozen=True)
class Piece:
    """Some rows of a chunk, and where they go."""

    # The worker that has the chunk.
    worker: str
    chunk: int
    # None for all of them.
    rows: NDArray[np.int64] | None
    # Which rows of the shard they become; None for the next ones in order.
    target: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Share:
    """The rows that a worker is given."""

    store: str
    pieces: tuple[Piece, ...]
    # Without codes.
    sample: Sample
    # The number of each row of the shard.
    places: tuple[RowPlaces, ...]

    @property
    def n_rows(self) -> int:
        return len(self.sample.y)


@dataclass(frozen=True)
class LevelRequest:
    """Nodes whose best splits are asked for, and who adds up what."""

    step: int
    # interface.OPEN_DTYPE.
    nodes: NDArray[np.void]
    columns: Columns
    # Nodes to count; larger siblings, which are what is left of their parents.
    small: NDArray[np.int64]
    large: NDArray[np.int64]
    parents: NDArray[np.int64]
    # Blocks in play, and those of them for which parents are not known.
    blocks: NDArray[np.int64]
    fresh: NDArray[np.int64]
    # All workers, in the same order at every level.
    peers: tuple[str, ...]
    # Whether children may be asked for.
    keeps: bool

    def owned(self, blocks: NDArray[np.int64], peer: str) -> NDArray[np.bool_]:
        """Which blocks a worker adds up: the same ones at every level."""
        owned: NDArray[np.bool_] = blocks % len(self.peers) == self.peers.index(peer)
        return owned


class ScannedColumns(NamedTuple):
    """The columns of a split table that one worker has scanned."""

    features: NDArray[np.int64]
    candidates: NDArray[np.void]
    # Places of the categorical ones among all that are categorical, and their sets.
    categorical: NDArray[np.int64]
    category_sets: NDArray[np.uint64]


class Residuals(NamedTuple):
    """Targets minus raw predictions of the rows of a leaf, their weights and their numbers."""

    values: Floats
    weight: Floats | None
    places: NDArray[np.int64]


def packed(content: Any) -> Any:
    """Bytes of anything; an array travels as it is, without a copy."""
    return to_serialize(content) if isinstance(content, np.ndarray) else dumps(content)


def unpacked(content: Any) -> Any:
    """The inverse of ``packed``."""
    if isinstance(content, Serialize):  # a cluster in this process passes messages as they are
        return content.data
    return loads(content) if isinstance(content, bytes | bytearray | memoryview) else content


async def ask_worker(connection: Any, session: str, name: str, *args: Any) -> Any:
    """Ask a worker for something, by a connection of Dask's."""
    message = {"session": session, "name": name, "args": packed(args)}
    return unpacked(await getattr(connection, OPERATION)(**message))
