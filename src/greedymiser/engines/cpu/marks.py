"""Which rows have which marks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.bits import WORD_BITS
from greedymiser._core.threads import Team, Threads
from greedymiser.engines.cpu.kernels import marking
from greedymiser.engines.cpu.state import Data, TreeState, Tuning
from greedymiser.engines.interface import SPLIT_DTYPE, Sample
from greedymiser.engines.marks import MarkBits, Marks, known_features
from greedymiser.model.trees import Tree

EVERY_ROW = np.empty(0, dtype=np.uint32)


class CpuMarks:
    """A bit for every row and every mark that was left on any."""

    def __init__(
        self,
        marks: Marks,
        sample: Sample,
        threads: Threads,
        tuning: Tuning,
        had: NDArray[np.bool_] | None,
    ):
        n = sample.binned.n_rows
        self._mark_bits = MarkBits(marks)
        self._threads = threads
        self._least = 2 * tuning.rows
        self._longest = max(tuning.rows, n // (4 * threads.n_threads))
        # Empty for 1 each.
        self._weights = sample.whole_shares()
        # (n_words, n_rows).
        self._bits = np.zeros((0, n), dtype=np.uint64)
        if had is not None:
            self._begin(known_features(marks, had))
            self._bits = self._mark_bits.packed(had)

    def mark(self, state: TreeState, splits: NDArray[np.void]) -> None:
        """Leave the marks of splits on the rows of their nodes."""
        features = splits["feature"]
        self._begin(features.tolist())
        masks = self._mark_bits.masks[features]
        if masks.any():
            team = self._team(self._bits.shape[1])
            marking.mark(team, tuple(state), splits, masks, self._longest, self._bits)

    def walk(self, data: Data, tree: Tree) -> None:
        """Leave the marks of a finished tree on all rows."""
        features = tree.nodes["feature"]
        self._begin(features[features >= 0].tolist())
        masks = self._mark_bits.node_masks(features)
        if masks.any():
            team = self._team(self._bits.shape[1])
            sets = tree.category_sets
            marking.mark_walking(team, tuple(data), tree.nodes, sets, masks, self._bits)

    def weigh(
        self, state: TreeState, nodes: NDArray[np.int64], marks: Sequence[int]
    ) -> NDArray[np.int64]:
        """See ``PlacedRows.marked``."""
        records = np.zeros(len(nodes), dtype=SPLIT_DTYPE)
        records["node"] = nodes
        weights = np.empty((len(nodes), 1 + WORD_BITS * len(self._bits)), dtype=np.int64)
        team = self._team(self._bits.shape[1])
        marking.weigh(
            team, tuple(state), records, self._weights, self._longest, self._bits, weights
        )
        return self._mark_bits.chosen(weights[:, 0], weights[:, 1:], marks)

    def weigh_all(self, marks: Sequence[int]) -> NDArray[np.int64]:
        """The same for all rows."""
        weights = np.empty(1 + WORD_BITS * len(self._bits), dtype=np.int64)
        team = self._team(self._bits.shape[1])
        marking.weigh_all(team, EVERY_ROW, self._weights, self._bits, weights)
        return self._mark_bits.chosen(weights[:1], weights[None, 1:], marks)

    def patterns(self, rows: NDArray[np.uint32] | None) -> NDArray[np.bool_]:
        """The different sets of marks of some rows, None for all."""
        return self._mark_bits.patterns(self._bits if rows is None else self._bits[:, rows])

    def _begin(self, features: list[int]) -> None:
        self._mark_bits.begin(features)
        self._bits = self._mark_bits.widened(self._bits)

    def _team(self, n_rows: int) -> Team:
        return self._threads.team(n_rows, self._least)
