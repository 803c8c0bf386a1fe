"""Tables of splits that are asked for before the grower does, so that nobody waits for them.

Which features are in play hardly changes from a tree to the next, nor from a level to the next. So
the table of a root comes with its sums, and that of a level with the energies of its nodes, for the
features that were in play before: one round trip where there would be two. What the grower wants is
a part of it, or else it is asked for once more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from greedymiser.engines.interface import OPEN_DTYPE, Columns, SplitRules, SplitTable

# Of the features that were asked for ahead, the tenths that must be wanted for it to pay.
TENTHS = 9

Features = NDArray[np.bool_]
"""Whether each feature is in play for any node."""


@dataclass(frozen=True)
class KnownTable:
    """A split table, and what was asked for."""

    # interface.OPEN_DTYPE, by their numbers in ascending order.
    nodes: NDArray[np.void]
    features: Features
    table: SplitTable

    def of(self, nodes: NDArray[np.void], columns: Columns) -> SplitTable | None:
        """What it says of some nodes on some features; None if that was not asked for."""
        at = np.searchsorted(self.nodes["node"], nodes["node"])
        known = self.nodes[np.minimum(at, len(self.nodes) - 1)]
        if not np.array_equal(known, nodes) or (columns & ~self.features).any():
            return None
        candidates = self.table.candidates[at]
        candidates["gain"][~np.broadcast_to(columns, candidates.shape)] = -np.inf
        return SplitTable(candidates, self.table.category_sets[at])


class Guesses:
    """Which features will be in play for the next table: those of the root before, or the level."""

    def __init__(self) -> None:
        # By depth, as they were wanted last.
        self._wanted: dict[int, Features] = {}
        # Whether a guess would have been right the last time.
        self._holds: dict[int, bool] = {}
        # The deepest level that trees have had.
        self._last: int | None = None

    def plant(self) -> None:
        """A tree begins."""
        self._depth = 0

    def columns(self) -> Features | None:
        """Features in play for the next table, where they can be foreseen."""
        return self._before() if self._holds.get(self._depth, True) else None

    def _before(self) -> Features | None:
        return self._wanted.get(max(0, self._depth - 1))

    def keeps(self) -> bool:
        """Whether there will be a level below the next one."""
        return self._depth != self._last

    def compare(self, wanted: Features, last: bool) -> None:
        """Learn what is really wanted of a table, and go on to the next level."""
        before = self._before()
        if before is not None:
            is_part = not (wanted & ~before).any()
            enough = 10 * np.count_nonzero(wanted) >= TENTHS * np.count_nonzero(before)
            self._holds[self._depth] = bool(is_part and enough)
        if last:
            self._last = self._depth
        self._wanted[self._depth] = wanted
        self._depth += 1


def children_of(
    nodes: NDArray[np.void], table: SplitTable, splits: NDArray[np.void], rules: SplitRules
) -> NDArray[np.void]:
    """The nodes that will be open after some splits of a level; none where that is not known.

    Bounds of monotone ancestors are the grower's business.
    """
    if rules.monotonic_cst is not None or not np.isin(splits["node"], nodes["node"]).all():
        return np.empty(0, dtype=OPEN_DTYPE)
    at = np.searchsorted(nodes["node"], splits["node"])
    left, parent = table.candidates[at, splits["feature"]], nodes[at]
    children = np.empty((len(splits), 2), dtype=OPEN_DTYPE)
    children["node"] = splits["left"][:, None] + [0, 1]
    children["lower"], children["upper"] = -np.inf, np.inf
    for name in ("gradient", "hessian", "count"):
        children[name][:, 0] = left[name]
        children[name][:, 1] = parent[name] - left[name]
    return children.ravel()[children["count"].ravel() >= 2 * rules.min_samples_leaf]
