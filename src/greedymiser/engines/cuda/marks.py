"""Which rows on the device have which marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.bits import WORD_BITS
from greedymiser.engines.cuda.device import room_for, sent
from greedymiser.engines.cuda.kernels import marking, planning
from greedymiser.engines.cuda.kernels.rows import THREADS
from greedymiser.engines.cuda.layout import WEIGHED
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
        self._buffer = TransferBuffer(stream)
        # Empty for 1 each.
        self._weights = sent(sample.whole_shares())
        # (n_words, n_rows); integers, since kernels know no other atomic sums.
        self.bits = room_for((0, sample.binned.n_rows), dtype=np.int64)
        if had is not None:
            self._mark_bits.begin(known_features(marks, had))
            self._replace(self._mark_bits.packed(had))

    def masks_of(self, features: NDArray[np.int64]) -> NDArray[np.int64]:
        """The bits (n_nodes, n_words) that splits of nodes on some features leave on their rows."""
        self._begin(features.tolist())
        return self._mark_bits.masks[features].view(np.int64)

    def walk(self, codes: Any, plan: Any, tree: Tree, grid: tuple[int, int]) -> None:
        """Leave the marks of a finished tree on all rows; ``plan`` is what the device knows of it.

        It must have waited for everything else that was in the buffer with the plan.
        """
        features = tree.nodes["feature"]
        self._begin(features[features >= 0].tolist())
        masks = self._mark_bits.node_masks(features)
        if masks.any():
            self._buffer.room(masks.size)[: masks.size] = masks.view(np.int64).ravel()
            self._buffer.send(masks.size)
            arrays = codes, plan, self._buffer.there, self.bits
            self._stream.launch(marking.mark_walking, grid, THREADS, arrays)

    def weigh(self, rows: Any, nodes: NDArray[np.void], marks: Sequence[int]) -> NDArray[np.int64]:
        """See ``PlacedRows.marked``; the rows of nodes are in buffers, on side -1 all rows are."""
        n_words = self.words_to_weigh(len(nodes))
        n_tiles = self.plan(nodes, self._buffer.room(n_words))
        self._buffer.send(n_words)
        self.launch(rows, self._buffer, 0, len(nodes), n_tiles)
        return self.chosen(self._buffer.fetch(n_words), marks)

    def words_to_weigh(self, n_nodes: int) -> int:
        """Words of a table in which nodes are weighed."""
        return n_nodes * (WEIGHED + self._found_width)

    def plan(self, nodes: NDArray[np.void], table: NDArray[np.int64]) -> int:
        """Write down which nodes are weighed; return in how many tiles of rows."""
        n_found = len(nodes) * self._found_width
        return planning.plan_weighing(nodes, marking.PER_TILE, n_found, table)

    def launch(self, rows: Any, table: TransferBuffer, at: int, n_nodes: int, n_tiles: int) -> None:
        """Weigh nodes that were planned and sent from word ``at`` of a table on."""
        arrays = rows, table.there, self.bits, self._weights
        grid = n_tiles, max(1, len(self.bits))
        self._stream.launch(marking.weigh, grid, THREADS, arrays, at, n_nodes)

    def chosen(self, table: NDArray[np.int64], marks: Sequence[int]) -> NDArray[np.int64]:
        """What a table says that came back: weights of nodes, and of their rows with each mark."""
        n_nodes = len(table) // (WEIGHED + self._found_width)
        found = table[n_nodes * WEIGHED :].reshape(n_nodes, self._found_width)
        return self._mark_bits.chosen(found[:, 0], found[:, 1:], marks)

    @property
    def _found_width(self) -> int:
        return 1 + WORD_BITS * len(self.bits)

    def patterns(self, rows: NDArray[np.uint32] | None) -> NDArray[np.bool_]:
        """The different sets of marks of some rows, None for all."""
        bits = self._here()
        return self._mark_bits.patterns(bits if rows is None else bits[:, rows])

    def _begin(self, features: list[int]) -> None:
        self._mark_bits.begin(features)
        if self._mark_bits.n_words > len(self.bits):
            self._replace(self._mark_bits.widened(self._here()))

    def _here(self) -> NDArray[np.uint64]:
        self._stream.wait()
        if self.bits.size == 0:
            return np.zeros(self.bits.shape, dtype=np.uint64)
        found: NDArray[np.uint64] = self.bits.copy_to_host().view(np.uint64)
        return found

    def _replace(self, bits: NDArray[np.uint64]) -> None:
        self._stream.wait()
        self._stream.forget()
        self.bits = sent(bits.view(np.int64))
