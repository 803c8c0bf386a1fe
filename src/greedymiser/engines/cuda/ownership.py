"""Marks of rows that are on a device: bits are kept and counted here, where the lists of rows come.

A list is four bytes a row and a level, which is little beside what a level counts; the bits are
then those of the other engine, and so are the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from greedymiser.engines import Sample
from greedymiser.engines.cpu.ownership import Ownership
from greedymiser.engines.cpu.state import Data, TreeState, Tuning
from greedymiser.engines.cuda.device import cuda
from greedymiser.engines.cuda.line import Line
from greedymiser.engines.marks import Marks
from greedymiser.engines.scanning import SCALE_DTYPE, describe_features
from greedymiser.threads import Threads
from greedymiser.trees import Tree


class DeviceOwnership:
    """Which rows of a device have which marks."""

    def __init__(
        self,
        marks: Marks,
        sample: Sample,
        threads: Threads,
        line: Line,
        had: NDArray[np.bool_] | None,
    ):
        binned = sample.binned
        self._line = line
        self._here = Ownership(marks, sample, threads, Tuning(), had)
        is_half = np.zeros(len(binned.codes), dtype=np.bool_)
        features = describe_features(binned)
        self._data = Data(binned.codes, binned.lane_feature, binned.feature_lane, features, is_half)
        self._lists: NDArray[np.uint32] | None = None
        self._is_fresh = False

    def moved(self) -> None:
        """Rows are in other nodes now."""
        self._is_fresh = False

    def mark(self, nodes: NDArray[np.void], there: Any, splits: NDArray[np.void]) -> None:
        """Leave the marks of splits on the rows of their nodes."""
        self._here.mark(self._state(nodes, there), splits)

    def weigh(
        self,
        nodes: NDArray[np.void],
        there: Any,
        asked: NDArray[np.int64],
        marks: Sequence[int],
    ) -> NDArray[np.int64]:
        """See ``PlacedRows.marked``."""
        return self._here.weigh(self._state(nodes, there), asked, marks)

    def weigh_all(self, marks: Sequence[int]) -> NDArray[np.int64]:
        """The same for all rows."""
        return self._here.weigh_all(marks)

    def patterns(self, nodes: NDArray[np.void], there: Any, node: int) -> NDArray[np.bool_]:
        """The different sets of marks of the rows of a node."""
        record = nodes[node]
        lists = self._state(nodes, there).rows[record["side"]]
        return self._here.patterns(lists[record["start"] : record["stop"]])

    def all_patterns(self) -> NDArray[np.bool_]:
        """The same for all rows."""
        return self._here.patterns(None)

    def walk(self, tree: Tree) -> None:
        """Leave the marks of a finished tree on all rows."""
        self._here.walk(self._data, tree)

    def _state(self, nodes: NDArray[np.void], there: Any) -> TreeState:
        """The growing tree as it is on the device, as far as marks need it."""
        if self._lists is None:
            self._lists = cuda.pinned_array(tuple(there.shape), dtype=np.uint32)
        if not self._is_fresh:
            self._line.fetch(there, self._lists, self._lists.nbytes)
            self._line.wait()
            self._is_fresh = True
        words = np.empty((2, 0, 1), dtype=np.int64)
        return TreeState(nodes, self._lists, words, np.zeros(1, dtype=SCALE_DTYPE), 0, False)
