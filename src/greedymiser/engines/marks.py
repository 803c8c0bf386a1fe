"""What rows keep of the splits that they have met: a bit per row and mark.

A split leaves marks on all rows of its node, those of its feature, in every tree and for good. An
engine does not know what they stand for. It tells how much of a node's weight has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.bits import WORD_BITS, packed, unpacked
from greedymiser.engines.grid import step

# Weights are integers of at most so many bits: sums of less than 2^32 of them have 62.
MOST_BITS = 30


class Marks(NamedTuple):
    """Which marks a split leaves, by its feature."""

    n_marks: int
    # Marks of each feature, in ascending order.
    of_feature: tuple[tuple[int, ...], ...]


def share_unit(n_rows: int, largest: float) -> float:
    """What one unit of integer weights means; of all rows, wherever they are."""
    return step(largest, min(MOST_BITS, 62 - n_rows.bit_length()))


class MarkBits:
    """Which bit stands for which mark: marks get bits when they are first left on any row."""

    def __init__(self, marks: Marks):
        self.marks = marks
        # The mark of each bit, and the bit of each mark: -1 for those that no row has yet.
        self._begun: list[int] = []
        self.bit_of = np.full(marks.n_marks, -1, dtype=np.int64)
        # Features that leave each mark.
        self._users: list[list[int]] = [[] for _ in range(marks.n_marks)]
        for feature, some in enumerate(marks.of_feature):
            for mark in some:
                self._users[mark].append(feature)
        # (n_features, n_words): bits that a split on each feature leaves.
        self.masks = np.zeros((len(marks.of_feature), 0), dtype=np.uint64)

    @property
    def n_bits(self) -> int:
        return len(self._begun)

    @property
    def n_words(self) -> int:
        return self.masks.shape[1]

    def begin(self, features: Iterable[int]) -> None:
        """Give bits to the marks of some features."""
        wanted = {mark for f in features for mark in self.marks.of_feature[f]}
        new = sorted(mark for mark in wanted if self.bit_of[mark] < 0)
        if not new:
            return
        self.bit_of[new] = np.arange(self.n_bits, self.n_bits + len(new))
        self._begun += new
        n_words = -(-self.n_bits // WORD_BITS)
        if n_words > self.n_words:
            more = np.zeros((len(self.masks), n_words - self.n_words), dtype=np.uint64)
            self.masks = np.concatenate([self.masks, more], axis=1)
        for mark in new:
            bit = int(self.bit_of[mark])
            self.masks[self._users[mark], bit // WORD_BITS] |= np.uint64(1 << (bit % WORD_BITS))

    def widened(self, bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The bits of rows, (n_words, n_rows), with room for all bits."""
        missing = self.n_words - len(bits)
        if missing <= 0:
            return bits
        return np.concatenate([bits, np.zeros((missing, bits.shape[1]), dtype=np.uint64)])

    def packed(self, had: NDArray[np.bool_]) -> NDArray[np.uint64]:
        """The bits (n_words, n_rows) of rows that have some marks, (n_rows, n_marks)."""
        return np.ascontiguousarray(packed(had[:, self._begun], self.n_words).T)

    def unpacked(self, bits: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """The opposite of ``packed``."""
        had = np.zeros((bits.shape[1], self.marks.n_marks), dtype=bool)
        had[:, self._begun] = unpacked(bits.T, self.n_bits)
        return had

    def node_masks(self, features: NDArray[np.int64]) -> NDArray[np.uint64]:
        """The bits (n_nodes, n_words) that the nodes of a tree leave; leaves have feature -1."""
        masks = np.zeros((len(features), self.n_words), dtype=np.uint64)
        inner = np.flatnonzero(features >= 0)
        masks[inner] = self.masks[features[inner]]
        return masks

    def patterns(self, bits: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """The different sets of marks (n_sets, n_marks) of rows with these bits."""
        if len(bits) == 0:
            bits = bits[:, :1]  # nobody has any
        elif len(bits) == 1:
            bits = np.unique(bits[0])[None]
        else:
            bits = np.unique(bits, axis=1)
        return distinct_patterns(self.unpacked(bits))

    def chosen(
        self, totals: NDArray[np.int64], by_bit: NDArray[np.int64], marks: Sequence[int]
    ) -> NDArray[np.int64]:
        """An answer of ``PlacedRows.marked`` from the weights of nodes, and by bit."""
        weights = np.zeros((len(totals), 1 + len(marks)), dtype=np.int64)
        weights[:, 0] = totals
        bits = self.bit_of[np.asarray(marks, dtype=np.int64)]
        there = np.flatnonzero(bits >= 0)
        weights[:, 1 + there] = by_bit[:, bits[there]]
        return weights


def known_features(marks: Marks, had: NDArray[np.bool_]) -> list[int]:
    """Features all of whose marks some rows have; ``had`` is (n_rows, n_marks)."""
    met: NDArray[np.bool_] = np.any(had, axis=0)
    return [f for f, some in enumerate(marks.of_feature) if met[list(some)].all()]


def distinct_patterns(patterns: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Each of some sets of marks once."""
    return np.unique(patterns, axis=0) if len(patterns) > 1 else patterns
