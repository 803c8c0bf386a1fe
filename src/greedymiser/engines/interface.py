"""Where rows live and the loops over them run. Engines know no money.

An engine *places* rows: their codes, targets, weights, raw predictions and the loss over them.
Placed rows are asked, tree by tree and level by level, and answer in integers, which are sums over
rows and so the same however the rows are cut into pieces. The conversation of one tree:

    begin_tree   gradients go onto an integer grid; what all rows sum up to
    split_table  the best split of some nodes on some features, prices aside
    partition    rows go to the children
    ...          level by level
    add_leaves   raw predictions += the values of the leaves

Nodes are numbered in the order in which they come into being: 0 is the root, and the children of
a split have two numbers in a row, the left one odd.

A tree may grow on some of the rows, which are drawn by lot (``RowLot``): then only these are in its
root, and all others are as if they were not there until the tree is finished. The grid is that of
all rows. Such a tree ends with ``add_tree`` in place of ``add_leaves``: all rows walk down it.

Where a model is started with ``Marks``, a split leaves those of its feature on all rows of its
node when it is carried out, and so does every node of a finished tree on the rows that come by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from greedymiser.data.binning import BinnedMatrix
from greedymiser.engines.grid import Extremes, Grid, GridRule
from greedymiser.engines.marks import Marks
from greedymiser.engines.sampling import RowLot
from greedymiser.losses import Loss
from greedymiser.model.trees import CATEGORY_WORDS, Tree

Floats = NDArray[np.float64]
Columns = NDArray[np.bool_]
"""Features in play, (1, n_features) or one row per node."""

# A node that may be split.
OPEN_DTYPE = np.dtype(
    [
        ("node", np.int64),
        # What its rows sum up to, in units of the grid.
        ("gradient", np.int64),
        ("hessian", np.int64),
        ("count", np.int64),
        # Bounds of the node's value, from monotone ancestors.
        ("lower", np.float64),
        ("upper", np.float64),
    ],
    align=True,
)

# One cell of a split table: the best split of one node on one feature.
CANDIDATE_DTYPE = np.dtype(
    [
        # Drop of the loss' quadratic model, before W and prices; -inf where no split is allowed.
        ("gain", np.float64),
        # What the rows that go left sum up to, in units of the grid.
        ("gradient", np.int64),
        ("hessian", np.int64),
        ("count", np.int64),
        # Largest bin that goes left (numeric); -1 where categories are split.
        ("bin", np.int32),
        # Whether missing values go left. Where the node has none, they follow the larger child.
        ("missing_left", np.bool_),
    ],
    align=True,
)

# A split that the grower has decided on. The right child is ``left + 1``.
SPLIT_DTYPE = np.dtype(
    [
        ("node", np.int64),
        ("left", np.int64),
        ("feature", np.int64),
        # Largest bin that goes left; -1 where categories are split.
        ("bin", np.int64),
        # How many rows go left.
        ("count", np.int64),
        ("missing_left", np.bool_),
    ],
    align=True,
)


@dataclass(frozen=True)
class SplitRules:
    """What makes a split admissible, whatever it costs."""

    min_samples_leaf: int = 20
    # Least sum of Hessians in a child; keeps Newton steps finite.
    min_hessian: float = 0.0
    l2_regularization: float = 0.0
    # Whether energies are asked for.
    bound_gains: bool = True
    # Per feature: 1 if predictions must not fall as it grows, -1 if they must not rise, else 0.
    monotonic_cst: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Sample:
    """Rows as an engine takes them."""

    binned: BinnedMatrix
    # Targets in the loss' terms.
    y: Floats
    # None for weights of 1.
    weight: Floats | None
    # Told where the queries are, if it asks.
    loss: Loss
    grids: GridRule = field(default_factory=GridRule)
    # What lots fall on: the number, in the whole data set, of each row's query; None for rows,
    # whose numbers begin with ``first_row`` where these are only some of all rows.
    units: NDArray[np.int64] | None = None
    first_row: int = 0
    # What rows weigh where marks are counted; None for 1 each. They are rounded to multiples of a
    # unit (``marks.share_unit``), so that sums are exact in any order.
    shares: Floats | None = None
    share_unit: float = 1.0

    def whole_shares(self) -> NDArray[np.int64]:
        """Shares as integers; empty for 1 each."""
        if self.shares is None:
            return np.empty(0, dtype=np.int64)
        return np.rint(self.shares / self.share_unit).astype(np.int64)


class Root(NamedTuple):
    """What all rows of a tree sum up to, in units of the grid."""

    gradient: int
    hessian: int
    n_rows: int
    # Sum of g^2/h, in units of the loss; infinite if nobody asked.
    energy: float


class SplitTable(NamedTuple):
    """The best split of every open node (rows) on every feature (columns)."""

    # CANDIDATE_DTYPE, shape (n_nodes, n_features).
    candidates: NDArray[np.void]
    # (n_nodes, n_categorical, 4): categories that go left, for each categorical feature in turn.
    category_sets: NDArray[np.uint64]


def blank_table(n_nodes: int, n_features: int, n_categorical: int) -> SplitTable:
    """A table without splits."""
    candidates = np.empty((n_nodes, n_features), dtype=CANDIDATE_DTYPE)
    candidates["gain"] = -np.inf
    # Never empty: kernels take the address of a set before they know whether they need it.
    sets = np.zeros((n_nodes, n_categorical or 1, CATEGORY_WORDS), dtype=np.uint64)
    return SplitTable(candidates, sets)


class Shard(Protocol):
    """Some rows and all that belongs to them. What shards say of the same nodes adds up."""

    n_rows: int

    def start(
        self, raw: Floats, marks: Marks | None = None, had: NDArray[np.bool_] | None = None
    ) -> None:
        """Begin a model whose raw predictions are these: (n_outputs,), or (n_outputs, n_rows).

        Without ``marks`` there are none. ``had`` (n_rows, n_marks) are those that rows have.
        """

    def derive(self, step: str) -> None:
        """Begin a round: derivatives of the loss at the raw predictions, for all outputs."""

    def extremes(self, output: int) -> Extremes:
        """What must be known before a grid can be chosen."""

    def begin(self, output: int, grid: Grid, rules: SplitRules, lot: RowLot | None = None) -> Root:
        """Begin a tree: put the derivatives of one output onto the grid, of rows that are in."""

    def count(self, nodes: NDArray[np.int64], blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Histograms (n_nodes, n_blocks, lanes x bins x words) of some nodes on some blocks."""

    def partition(
        self, splits: NDArray[np.void], category_sets: NDArray[np.uint64], last: bool
    ) -> Floats:
        """Move rows into children; see ``PlacedRows.partition``."""

    def marked(self, nodes: NDArray[np.int64] | None, marks: Sequence[int]) -> NDArray[np.int64]:
        """Weight of each of some nodes, and of its rows that have each of some marks.

        Shape (n_nodes, 1 + n_marks). None stands for all rows, as if they were one node.
        """

    def patterns(self, node: int | None) -> NDArray[np.bool_]:
        """The different sets of marks that rows of a node have, (n_sets, n_marks); None for all."""

    def residuals(self, leaf: int) -> tuple[Floats, Floats | None]:
        """Targets minus raw predictions of the rows of a leaf, and their weights."""

    def add_leaves(self, leaves: NDArray[np.int64], values: Floats) -> None:
        """Add each leaf's value to the raw predictions of its rows. Ends the tree."""

    def add_tree(self, tree: Tree, output: int) -> None:
        """Let rows walk down a finished tree that was grown on rows with the same bins."""

    def loss_sum(self) -> NDArray[np.int64]:
        """Exact sum of the weighted loss (see ``arithmetic``); LambdaMART: of queries' NDCG."""

    def raw(self) -> Floats:
        """Raw predictions (n_outputs, n_rows)."""


class PlacedRows(Protocol):
    """Rows where they live. One tree grows at a time."""

    n_rows: int
    # The grid of the tree that is growing.
    grid: Grid

    def start(
        self, raw: Floats, marks: Marks | None = None, had: NDArray[np.bool_] | None = None
    ) -> None:
        """Begin a model whose raw predictions are these: (n_outputs,), or (n_outputs, n_rows).

        Without ``marks`` there are none. ``had`` (n_rows, n_marks) are those that rows have.
        """

    def begin_tree(
        self, output: int, rules: SplitRules, step: str = "newton", lot: RowLot | None = None
    ) -> Root:
        """Begin a tree for one output. Trees of a round come in the order of their outputs.

        The tree grows on the rows that ``lot`` falls on, None for all.
        """

    def split_table(self, nodes: NDArray[np.void], columns: Columns, last: bool) -> SplitTable:
        """Best split of each open node on each of the features that are in play for it.

        ``last`` promises that the children of these nodes will not be asked for.
        """

    def partition(
        self, splits: NDArray[np.void], category_sets: NDArray[np.uint64], last: bool
    ) -> Floats:
        """Move rows into children; return the energies of these, (n_splits, 2).

        ``category_sets`` (n_splits, 4) are the categories that go left, where those are split.
        There are no energies where the rules do not ask for them, nor for the last level.
        """

    def marked(self, nodes: NDArray[np.int64] | None, marks: Sequence[int]) -> NDArray[np.int64]:
        """Weight of each of some nodes, and of its rows that have each of some marks.

        Shape (n_nodes, 1 + n_marks). None stands for all rows, as if they were one node.
        """

    def patterns(self, node: int | None) -> NDArray[np.bool_]:
        """The different sets of marks that rows of a node have, (n_sets, n_marks); None for all."""

    def best_constants(self, leaves: NDArray[np.int64]) -> Floats:
        """The loss' own best value for each of some leaves (``Loss.leaf_value``)."""

    def add_leaves(self, leaves: NDArray[np.int64], values: Floats) -> None:
        """Add each leaf's value to the raw predictions of its rows. Ends the tree."""

    def add_tree(self, tree: Tree, output: int) -> None:
        """Let rows walk down a finished tree that was grown on rows with the same bins."""

    def loss(self) -> float:
        """Mean loss of the raw predictions; exact, so that no order of rows shows."""

    def raw(self) -> Floats:
        """Raw predictions (n_outputs, n_rows), for those who only want to look."""


class EngineLostError(RuntimeError):
    """There is no place left to train: all workers of a cluster are gone."""


class Engine(Protocol):
    """A place to train."""

    def place(self, sample: Sample) -> PlacedRows:
        """Put rows where they live, once: models that differ in their rules share them."""
