"""Which rows on the device have which marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.bits import WORD_BITS
from greedymiser.engines.cuda.device import room_for, sent
from greedymiser.engines.cuda.kernels import marking
from greedymiser.engines.cuda.kernels.rows import THREADS
from greedymiser.engines.cuda.stream import Stream
from greedymiser.engines.cuda.transfer import TransferBuffer
from greedymiser.engines.interface import Sample
from greedymiser.engines.marks import MarkBits, Marks, known_features
from greedymiser.model.trees import Tree


class CudaMarks:
    """A bit for every row and every mark that was left on any."""

    def __init__(self, marks: Marks, sample: Sample, stream: Stream, had: NDArray[np.bool_] | None):
        self._mark_bits = MarkBits(marks)
        self._stream = stream
        self._plan = TransferBuffer(stream)
        # Empty for 1 each.
        self._weights = sent(sample.whole_shares())
        # (n_words, n_rows); integers, since kernels know no other atomic sums.
        self._bits = room_for((0, sample.binned.n_rows), dtype=np.int64)
        if had is not None:
            self._mark_bits.begin(known_features(marks, had))
            self._replace(self._mark_bits.packed(had))

    def mark(self, rows: Any, nodes: NDArray[np.void], features: NDArray[np.int64]) -> None:
        """Leave the marks of features on the rows of nodes, which are in buffers of ``rows``."""
        self._begin(features.tolist())
        masks = self._mark_bits.masks[features]
        if masks.any():
            n_tiles = self._send(nodes, THREADS, masks.view(np.int64))
            arrays = rows, self._plan.there, self._bits
            self._stream.launch(marking.mark, (n_tiles, 1), THREADS, arrays, len(nodes))

    def walk(self, codes: Any, plan: Any, tree: Tree, grid: tuple[int, int]) -> None:
        """Leave the marks of a finished tree on all rows; ``plan`` is what the device knows of it.

        It must have waited for everything else that was in the buffer with the plan.
        """
        features = tree.nodes["feature"]
        self._begin(features[features >= 0].tolist())
        masks = self._mark_bits.node_masks(features)
        if masks.any():
            self._plan.room(masks.size)[: masks.size] = masks.view(np.int64).ravel()
            self._plan.send(masks.size)
            arrays = codes, plan, self._plan.there, self._bits
            self._stream.launch(marking.mark_walking, grid, THREADS, arrays)

    def weigh(self, rows: Any, nodes: NDArray[np.void], marks: Sequence[int]) -> NDArray[np.int64]:
        """See ``PlacedRows.marked``; a node in no buffer has all rows."""
        no_masks = np.empty((len(nodes), 0), dtype=np.int64)
        n_words = len(self._bits)
        width = 1 + WORD_BITS * n_words
        size, found_at = len(nodes) * width, len(nodes) * marking.MARKED
        n_tiles = self._send(nodes, marking.PER_TILE, no_masks, size)
        arrays = rows, self._plan.there, self._bits, self._weights
        grid = n_tiles, max(1, n_words)
        self._stream.launch(marking.weigh, grid, THREADS, arrays, len(nodes), found_at)
        found = self._plan.fetch(found_at + size)[found_at:].reshape(len(nodes), width)
        return self._mark_bits.chosen(found[:, 0], found[:, 1:], marks)

    def patterns(self, rows: NDArray[np.uint32] | None) -> NDArray[np.bool_]:
        """The different sets of marks of some rows, None for all."""
        bits = self._here()
        return self._mark_bits.patterns(bits if rows is None else bits[:, rows])

    def _send(
        self, nodes: NDArray[np.void], per_tile: int, masks: NDArray[np.int64], n_found: int = 0
    ) -> int:
        """Tell the device where nodes are; return how many tiles their rows have, at least one.

        Behind that there is room for what is found, so many words that are 0.
        """
        n_tiles = -(-(nodes["stop"] - nodes["start"]) // per_tile)
        width = marking.MARKED + masks.shape[1]
        size = len(nodes) * width
        here = self._plan.room(size + n_found)
        here[size : size + n_found] = 0
        plan = here[:size].reshape(-1, width)
        plan[:, marking.FIRST_ROW], plan[:, marking.LAST_ROW] = nodes["start"], nodes["stop"]
        plan[:, marking.IN_BUFFER] = nodes["side"]
        plan[:, marking.FIRST_TILE] = np.cumsum(n_tiles) - n_tiles
        plan[:, marking.MARKED :] = masks
        self._plan.send(size + n_found)
        return max(1, int(n_tiles.sum()))

    def _begin(self, features: list[int]) -> None:
        self._mark_bits.begin(features)
        if self._mark_bits.n_words > len(self._bits):
            self._replace(self._mark_bits.widened(self._here()))

    def _here(self) -> NDArray[np.uint64]:
        self._stream.wait()
        if self._bits.size == 0:
            return np.zeros(self._bits.shape, dtype=np.uint64)
        found: NDArray[np.uint64] = self._bits.copy_to_host().view(np.uint64)
        return found

    def _replace(self, bits: NDArray[np.uint64]) -> None:
        self._stream.wait()
        self._stream.forget()
        self._bits = sent(bits.view(np.int64))
