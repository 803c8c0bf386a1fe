"""What a client and its workers tell each other."""

from __future__ import annotations

import copyreg
import io
import pickle
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from distributed.protocol import Serialize, to_serialize
from distributed.protocol.pickle import dumps, loads
from numpy.typing import NDArray

from greedymiser.engines.dask.packed_histograms import PackedHistograms
from greedymiser.engines.interface import (
    CANDIDATE_DTYPE,
    OPEN_DTYPE,
    SPLIT_DTYPE,
    Columns,
    Floats,
    Sample,
)

# The operations of Dask's own protocol that all messages are: questions, and histograms on their
# way to those who add them up, which nobody answers.
OPERATION = "greedymiser"
HISTOGRAMS = "greedymiser-histograms"

# Arrays of so many bytes travel without a copy; that takes Dask a tenth of a millisecond.
LARGE = 2**16

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
    # interface.OPEN_DTYPE. Where the tree begins with this question, nobody knows yet what the rows
    # of its root sum up to.
    nodes: NDArray[np.void]
    is_new: bool
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

    def owned(self, blocks: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """The blocks that each worker adds up: the same ones at every level."""
        owner = blocks % len(self.peers)
        return [blocks[owner == k] for k in range(len(self.peers))]


class CountedBlocks(NamedTuple):
    """What a worker has counted of the blocks that one of them adds up."""

    # Of small nodes on all of these blocks, then of large ones on fresh blocks.
    histograms: PackedHistograms
    # Gradient, Hessian and count of the rows there where the tree has just begun, else nothing.
    root: tuple[int, ...]


class ScannedColumns(NamedTuple):
    """The columns of a split table that one worker has scanned."""

    features: NDArray[np.int64]
    candidates: NDArray[np.void]
    # Places of the categorical ones among all that are categorical, and their sets.
    categorical: NDArray[np.int64]
    category_sets: NDArray[np.uint64]


class LevelAnswer(NamedTuple):
    """What a worker says to a ``LevelRequest``."""

    # To the last command that came with it.
    last: Any
    # None where it scans nothing.
    scanned: ScannedColumns | None


class Residuals(NamedTuple):
    """Targets minus raw predictions of the rows of a leaf, their weights and their numbers."""

    values: Floats
    weight: Floats | None
    places: NDArray[np.int64]


def packed(content: Any) -> Any:
    """Bytes of anything; a large array travels as it is, without a copy."""
    if isinstance(content, np.ndarray) and content.nbytes >= LARGE:
        return to_serialize(content)
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, 5).dump(content)
    except (AttributeError, TypeError, pickle.PicklingError):
        return dumps(content)
    made = buffer.getvalue()
    # What a user's script defines is not known by name elsewhere.
    return dumps(content) if b"__main__" in made else made


def unpacked(content: Any) -> Any:
    """The inverse of ``packed``."""
    if isinstance(content, Serialize):  # a cluster in this process passes messages as they are
        return content.data
    return loads(content) if isinstance(content, bytes | bytearray | memoryview) else content


# Records that travel, which are told by their number.
_RECORDS = (OPEN_DTYPE, CANDIDATE_DTYPE, SPLIT_DTYPE)


def _reduced(array: NDArray[Any]) -> Any:
    """An array as its bytes: NumPy's own way takes several times as long for a few numbers."""
    dtype = array.dtype
    if dtype.hasobject or (dtype.names is not None and dtype not in _RECORDS):
        return array.__reduce_ex__(4)
    kind = dtype.str if dtype.names is None else _RECORDS.index(dtype)
    return _array, (kind, array.shape, array.tobytes())


def _array(kind: str | int, shape: tuple[int, ...], content: bytes) -> NDArray[Any]:
    dtype = np.dtype(kind) if isinstance(kind, str) else _RECORDS[kind]
    return np.ndarray(shape, dtype, bytearray(content))  # which may be written to


class _Pickler(pickle.Pickler):
    dispatch_table = {**copyreg.dispatch_table, np.ndarray: _reduced}  # noqa: RUF012 - as pickle wants it


async def ask_worker(connection: Any, session: str, name: str, args: Any) -> Any:
    """Ask a worker for something, by a connection of Dask's; the arguments are packed."""
    message = {"session": session, "name": name, "args": args}
    return unpacked(await getattr(connection, OPERATION)(**message))
