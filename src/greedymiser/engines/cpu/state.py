"""What the kernels of this engine are given: rows, and the tree that grows on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Tuning:
    """What changes time and memory, and never a model."""

    # Rows to compute something of, to count or to move, that are worth a thread.
    rows: int = 2048
    # The same for rows times features to count, and bins to scan.
    cells: int = 25_000
    # Histograms that are kept for subtraction take at most this much memory; what does not fit is
    # counted again from its rows.
    histogram_bytes: int = 128 * 2**20


class Data(NamedTuple):
    """Rows by their codes; see ``BinnedMatrix``."""

    codes: NDArray[np.uint64]
    lane_feature: NDArray[np.int32]
    feature_lane: NDArray[np.int32]
    # scanning.FEATURE_DTYPE.
    features: NDArray[np.void]
    # Blocks of which only the first four lanes are used.
    is_half: NDArray[np.bool_]


class Kept(NamedTuple):
    """Histograms (slots, blocks, bins of all lanes), and whether each of them was counted.

    Threads that work on different blocks never write to the same cache line.
    """

    slots: NDArray[np.int64]
    # (blocks, slots), with cache lines of its own for each block.
    valid: NDArray[np.bool_]
    # For each thread two histograms, a run of rows in words, and what a scan wants.
    own: NDArray[np.int64]
    runs: NDArray[np.int64]
    scratch: NDArray[np.int64]


class AskedLevel(NamedTuple):
    """The nodes that are asked for."""

    # interface.OPEN_DTYPE, and counting.PAIR_DTYPE.
    open_nodes: NDArray[np.void]
    pairs: NDArray[np.void]
    # Features in play, and blocks in which any is.
    columns: NDArray[np.bool_]
    active: NDArray[np.bool_]


class CuttingRoom(NamedTuple):
    """What is wanted where the rows of a node are counted by several threads."""

    # Histograms of pieces of rows.
    partial: NDArray[np.int64]
    # Rows that are worth a histogram of their own.
    least_rows: int


class CountingPieces(NamedTuple):
    """Rows to count, cut into pieces; histograms for those that are not the first of theirs."""

    # counting.PIECE_DTYPE.
    pieces: NDArray[np.void]
    firsts: NDArray[np.int64]
    partial: NDArray[np.int64]


class TreeState(NamedTuple):
    """The tree that is growing."""

    # counting.NODE_DTYPE.
    nodes: NDArray[np.void]
    # Two buffers between which rows move, (2, n), and their words, (2, n, words).
    rows: NDArray[np.uint32]
    words: NDArray[np.int64]
    # One record of scanning.SCALE_DTYPE.
    scale: NDArray[np.void]
    # See ``Grid.run``.
    run: int
    # Whether the root holds all rows, in their order.
    is_whole: bool
