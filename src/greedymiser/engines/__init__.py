"""Engines own the data and answer in batches. They know no money."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from greedymiser.binning import BinnedMatrix

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SplitRules:
    """What makes a split admissible, whatever it costs."""

    min_samples_leaf: int = 20
    # Least sum of Hessians in a child; keeps Newton steps finite.
    min_hessian: float = 0.0
    l2_regularization: float = 0.0
    # Whether ``NodeStats.twice_impurity`` is asked for; it is infinite if not.
    bound_gains: bool = True
    # Per feature: 1 if predictions must not fall as it grows, -1 if they must not rise, else 0.
    monotonic_cst: tuple[int, ...] | None = None


@dataclass(frozen=True)
class NodeStats:
    """What the grower knows of a node's rows."""

    gradient: float
    hessian: float
    count: int
    # An upper bound of 2 x the raw gain that any split of the node, and of its descendants, can
    # have: sum of g^2/h minus G^2/(H + l2), by Cauchy and Schwarz.
    twice_impurity: float


@dataclass(frozen=True)
class OpenNode:
    """A node that may be split, with the bounds that monotone ancestors put on its value."""

    id: int
    lower: float = -np.inf
    upper: float = np.inf


@dataclass(frozen=True)
class SplitTable:
    """The best split of every open node (rows) on every feature (columns)."""

    # CANDIDATE_DTYPE, shape (n_nodes, n_features).
    candidates: NDArray[np.void]
    # (n_nodes, n_categorical, 4): categories that go left, for each categorical feature in turn.
    category_sets: NDArray[np.uint64]


@dataclass(frozen=True)
class Split:
    """A split that the grower has decided on. The right child is ``left + 1``."""

    node: int
    left: int
    feature: int
    bin: int
    missing_left: bool
    # Categories that go left; None for a numeric split.
    categories: NDArray[np.uint64] | None = None


class Engine(Protocol):
    """Where the data lives and the loops run."""

    def place(self, binned: BinnedMatrix, rules: SplitRules) -> None:
        """Put the data where it lives, once."""

    def begin(self, gradients: Floats, hessians: Floats | None) -> NodeStats:
        """Quantise, start a tree; the root is node 0. No Hessians means 1 for every row."""

    def split_table(
        self, nodes: Sequence[OpenNode], columns: NDArray[np.bool_], last: bool
    ) -> SplitTable:
        """Best raw gain of each node on each of the marked columns.

        ``last`` promises that the children of these nodes will not be asked for.
        """

    def partition(self, splits: Sequence[Split]) -> list[tuple[NodeStats, NodeStats]]:
        """Move rows into children; what the two children of each split hold."""

    def leaf_rows(self, node: int) -> NDArray[np.uint32]:
        """Rows of a node, in ascending order."""

    def add_leaves(self, raw: Floats, values: dict[int, float]) -> None:
        """Add each leaf's value to the raw predictions of its rows."""
