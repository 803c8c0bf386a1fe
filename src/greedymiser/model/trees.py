"""Trees as flat arrays: every dtype, the ensemble, and prediction.

A tree is grown level by level (``training.grower``) and served from the arrays here; ``Ensemble``
is the only converter. Siblings lie side by side, so a node stores only where its left child is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.compiling import inner, njit
from greedymiser._core.intrinsics import first_bit
from greedymiser._core.threads import Threads
from greedymiser.data.tables import ArrayTable, Table

NODE_DTYPE = np.dtype(
    [
        # What a leaf adds to the raw prediction, learning rate included. Inner nodes keep the
        # value that they would have had as a leaf.
        ("value", np.float64),
        # Rows with x <= threshold go left. +inf sends every value left, and NaN right.
        ("threshold", np.float64),
        # Drop in mean loss that the split promised: raw gain / W, before the price.
        ("gain", np.float64),
        # Sum of weights times Hessians of the training rows in the node.
        ("hessian", np.float64),
        # Number of training rows in the node.
        ("count", np.int64),
        # Feature that the node splits on; -1 in a leaf.
        ("feature", np.int32),
        # Left child, counted from the tree's first node; the right child follows it. -1 in a leaf.
        ("left", np.int32),
        # Row of ``Ensemble.category_sets`` for a categorical split; -1 for a numeric one.
        ("category_set", np.int32),
        # Largest bin that goes left; with it, training data can walk the tree without its values.
        ("bin", np.int32),
        # Whether missing values go left.
        ("missing_left", np.bool_),
        # Distance from the root.
        ("depth", np.uint16),
    ]
)

# A set of categories as 256 bits: code c is in the set if bit c % 64 of word c // 64 is set.
CATEGORY_WORDS = 4

# Rows that are asked together. What they need of X stays in the second-level cache.
ROW_BLOCK = 64
# Rows that are turned into numbers together; fewer where there are very many columns.
ROWS_AT_A_TIME = 4096
CELLS_AT_A_TIME = 2**22


@dataclass(frozen=True, repr=False)
class Tree:
    """One grown tree."""

    nodes: NDArray[np.void]
    category_sets: NDArray[np.uint64]

    @property
    def is_leaf(self) -> bool:
        """Whether the tree never split."""
        return len(self.nodes) == 1

    @property
    def features(self) -> set[int]:
        """Features that the tree splits on."""
        return set(self.nodes["feature"][self.nodes["feature"] >= 0].tolist())

    def __repr__(self) -> str:
        return f"<Tree of {len(self.nodes)} nodes, {len(self.features)} features>"


@dataclass(frozen=True, repr=False)
class Ensemble:
    """Boosted trees as flat arrays. Tree t adds to output ``t % n_outputs``."""

    # Nodes of all trees, one tree after the other.
    nodes: NDArray[np.void]
    # First node of each tree, and one entry for the end.
    tree_starts: NDArray[np.int64]
    # (n_sets, 4) uint64: the categories that go left, one row per categorical split.
    category_sets: NDArray[np.uint64]
    # Raw prediction before the first tree, one per output.
    baseline: NDArray[np.float64]
    n_features: int

    @classmethod
    def empty(cls, baseline: NDArray[np.float64], n_features: int) -> Ensemble:
        """No trees yet."""
        return cls(
            nodes=np.zeros(0, dtype=NODE_DTYPE),
            tree_starts=np.zeros(1, dtype=np.int64),
            category_sets=np.zeros((0, CATEGORY_WORDS), dtype=np.uint64),
            baseline=np.asarray(baseline, dtype=np.float64),
            n_features=n_features,
        )

    def extended(self, trees: Sequence[Tree]) -> Ensemble:
        """Return an ensemble with more trees at the end."""
        if not trees:
            return self
        starts = self.tree_starts[-1] + np.cumsum([0, *(len(tree.nodes) for tree in trees)])
        # Filled piece by piece: NumPy takes its time to concatenate records.
        nodes = np.empty(starts[-1], dtype=NODE_DTYPE)
        nodes[: starts[0]] = self.nodes
        n_sets = len(self.category_sets)
        for tree, start in zip(trees, starts.tolist(), strict=False):
            mine = nodes[start : start + len(tree.nodes)]
            mine[:] = tree.nodes
            if len(tree.category_sets):
                mine["category_set"][mine["category_set"] >= 0] += n_sets
                n_sets += len(tree.category_sets)
        return replace(
            self,
            nodes=nodes,
            tree_starts=np.append(self.tree_starts, starts[1:]).astype(np.int64),
            category_sets=np.concatenate(
                [self.category_sets, *(tree.category_sets for tree in trees)]
            ),
        )

    @property
    def n_outputs(self) -> int:
        return len(self.baseline)

    @property
    def n_trees(self) -> int:
        return len(self.tree_starts) - 1

    @property
    def n_iter(self) -> int:
        return self.n_trees // self.n_outputs

    def tree(self, index: int) -> Tree:
        """Return one tree; its category sets are those of the whole ensemble."""
        start, stop = self.tree_starts[index : index + 2]
        return Tree(self.nodes[start:stop], self.category_sets)

    def truncated(self, n_iter: int) -> Ensemble:
        """Keep only the first rounds."""
        n_trees = n_iter * self.n_outputs
        nodes = self.nodes[: self.tree_starts[n_trees]]
        # Sets of categories lie in the order of the trees that ask for them.
        n_sets = nodes["category_set"].max(initial=-1) + 1
        return replace(
            self,
            nodes=nodes,
            tree_starts=self.tree_starts[: n_trees + 1],
            category_sets=self.category_sets[:n_sets],
        )

    @cached_property
    def features(self) -> list[int]:
        """Features that any tree splits on."""
        used = self.nodes["feature"]
        return np.unique(used[used >= 0]).tolist()

    def first_uses(self) -> dict[int, int]:
        """Round in which each feature is first used."""
        tree = np.repeat(np.arange(self.n_trees), np.diff(self.tree_starts))
        inner = self.nodes["feature"] >= 0
        used, first = np.unique(self.nodes["feature"][inner], return_index=True)
        rounds = tree[inner][first] // self.n_outputs
        return dict(zip(used.tolist(), rounds.tolist(), strict=True))

    def importances(self) -> NDArray[np.float64]:
        """Total raw gain of each feature's splits."""
        inner = self.nodes[self.nodes["feature"] >= 0]
        total = np.bincount(inner["feature"], weights=inner["gain"], minlength=self.n_features)
        return total.astype(np.float64)  # bincount counts in integers where there is nothing

    def raw_predict(
        self, table: Table, threads: Threads, first: int = 0, last: int | None = None
    ) -> NDArray[np.float64]:
        """Baseline plus rounds ``first:last``, shape (n_outputs, n)."""
        out = np.empty((self.n_outputs, table.n_rows))
        out[:] = self.baseline[:, None]
        self.add_rounds(table, threads, out, first, self.n_iter if last is None else last)
        return out

    def staged_raw_predict(
        self, table: Table, threads: Threads, stops: Sequence[int] | None = None
    ) -> Iterator[NDArray[np.float64]]:
        """Raw predictions after so many rounds each, ascending; without ``stops``, after each."""
        if stops is None:
            stops = range(1, self.n_iter + 1)
        trees, rows = self._at_hand(table, threads)
        out = trees.raw_predict(rows, threads, last=0)
        for first, last in itertools.pairwise([0, *stops]):
            trees.add_rounds(rows, threads, out, first, last)
            yield out.copy()

    def _at_hand(self, table: Table, threads: Threads) -> tuple[Ensemble, Table]:
        """The trees, and rows that need not be turned into numbers again each time they are asked.

        Only the columns that the trees look at are kept.
        """
        if isinstance(table, ArrayTable) and table.is_plain:
            return self, table
        wanted = self.features
        numbers = np.empty((table.n_rows, len(wanted)))

        def fill(start: int, stop: int) -> None:
            numbers[start:stop] = table.rows(start, stop, wanted)[:, wanted]

        threads.run(fill, row_blocks(table.n_rows, self.n_features))
        nodes = self.nodes.copy()
        inner = nodes["feature"] >= 0
        nodes["feature"][inner] = np.searchsorted(wanted, nodes["feature"][inner])
        return replace(self, nodes=nodes, n_features=len(wanted)), ArrayTable(numbers)

    def add_rounds(
        self, table: Table, threads: Threads, out: NDArray[np.float64], first: int, last: int
    ) -> None:
        """Add what rounds ``first:last`` say about each row to ``out``."""
        if first == last:
            return
        serving = self.serving
        trees = first * self.n_outputs, last * self.n_outputs

        def add(start: int, stop: int) -> None:
            # Tables that are not plain arrays are turned into numbers a few rows at a time.
            for begin, end in row_blocks(stop, self.n_features, start):
                rows = table.rows(begin, end, self.features)
                serving.add(rows, out[:, begin:end], *trees)

        if table.n_rows <= ROW_BLOCK:
            add(0, table.n_rows)
        else:
            threads.run(add, threads.slices(table.n_rows, 4 * ROW_BLOCK, per_thread=4))

    def __repr__(self) -> str:
        return (
            f"<Ensemble of {self.n_trees} trees, {self.n_outputs} "
            f"output{'s' if self.n_outputs != 1 else ''}, {len(self.features)} of "
            f"{self.n_features} features>"
        )

    def __getstate__(self) -> dict[str, object]:
        """Leave what is only cached out of copies and pickles."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def serving(self) -> Serving:
        """The arrays that the prediction kernels read."""
        return Serving.of(self)


def row_blocks(stop: int, n_features: int, start: int = 0) -> list[tuple[int, int]]:
    """Rows ``start:stop``, in parts that are turned into numbers together."""
    step = max(ROW_BLOCK, min(ROWS_AT_A_TIME, CELLS_AT_A_TIME // max(1, n_features)))
    return [(begin, min(begin + step, stop)) for begin in range(start, stop, step)]


@dataclass(frozen=True, eq=False)
class Stage:
    """Trees that a row meets before it may leave: rounds ``first:last`` of an ensemble.

    They add to what earlier stages said; a stage that begins with round 0 scores the row anew.
    """

    ensemble: Ensemble
    first: int
    last: int
    # Distinct trees that a row has met, and pays for, at the end of this stage.
    n_trees: int

    @cached_property
    def features(self) -> list[int]:
        """Features that the trees of this stage split on."""
        starts, k = self.ensemble.tree_starts, self.ensemble.n_outputs
        used = self.ensemble.nodes["feature"][starts[self.first * k] : starts[self.last * k]]
        return np.unique(used[used >= 0]).tolist()

    def add(self, rows: NDArray[np.floating], raw: NDArray[np.float64]) -> None:
        """Add what the trees say about each row to ``raw`` (n_outputs, n)."""
        if self.first == 0:
            raw[:] = self.ensemble.baseline[:, None]
        k = self.ensemble.n_outputs
        self.ensemble.serving.add(rows, raw, self.first * k, self.last * k)


def stages_every(ensemble: Ensemble, every: int) -> tuple[Stage, ...]:
    """Cut an ensemble into stages of ``every`` rounds."""
    n_iter, k = ensemble.n_iter, ensemble.n_outputs
    edges: Sequence[int] = [*range(0, n_iter, every), n_iter] if n_iter else [0, 0]
    return tuple(
        Stage(ensemble, first, last, last * k) for first, last in itertools.pairwise(edges)
    )


class GrowingEnsemble:
    """An ensemble to which trees are added one by one, at a price that does not grow with it."""

    def __init__(self, ensemble: Ensemble):
        self._start = ensemble
        self._nodes = _Growing(ensemble.nodes)
        self._starts = _Growing(ensemble.tree_starts)
        self._sets = _Growing(ensemble.category_sets)

    def add(self, tree: Tree) -> None:
        """Add a tree at the end."""
        mine = self._nodes.add(tree.nodes)
        asks = mine["category_set"] >= 0
        sets = tree.category_sets[mine["category_set"][asks]]  # those of all trees may be there
        mine["category_set"][asks] = len(self._sets.so_far) + np.arange(len(sets))
        self._sets.add(sets)
        self._starts.add(np.array([len(self._nodes.so_far)]))

    def ensemble(self) -> Ensemble:
        """The ensemble so far, uncopied; trees that are added later do not show in it."""
        return replace(
            self._start,
            nodes=self._nodes.so_far,
            tree_starts=self._starts.so_far,
            category_sets=self._sets.so_far,
        )


class _Growing:
    """An array with room behind it: what is added is copied a few times at most, however much."""

    def __init__(self, start: NDArray[Any]):
        self.so_far = self._room = start

    def add(self, more: NDArray[Any]) -> NDArray[Any]:
        """Add to the end; returns what was added, where it lies."""
        begin, end = len(self.so_far), len(self.so_far) + len(more)
        if end > len(self._room):
            self._room = np.empty((2 * end, *more.shape[1:]), dtype=self.so_far.dtype)
            self._room[:begin] = self.so_far
        self._room[begin:end] = more
        self.so_far = self._room[:end]
        return self._room[begin:end]


# A node for rows that walk one by one. A leaf is its own left child and has threshold +inf, so
# that every row may take the same number of steps through a tree.
STEP_DTYPE = np.dtype(
    [
        ("threshold", np.float64),
        ("feature", np.uint32),
        ("left", np.uint32),
        ("category_set", np.int32),
        ("missing_right", np.bool_),
    ]
)

# Trees with more leaves than a word has bits are walked.
MOST_LEAVES = 64


class Steps(NamedTuple):
    """An ensemble for rows that walk one by one."""

    # STEP_DTYPE: nodes of all trees.
    nodes: NDArray[np.void]
    value: NDArray[np.float64]
    # Per tree: first node, and the number of steps to the deepest leaf.
    root: NDArray[np.uint32]
    depth: NDArray[np.uint32]
    category_sets: NDArray[np.uint64]


class SplitQuestions(NamedTuple):
    """The inner nodes of an ensemble, for rows that are asked all questions of a tree at once."""

    threshold: NDArray[np.float64]
    # The leaves that are still possible for a row that goes right, one bit each, from left to
    # right: all but those below the left child.
    right_leaves: NDArray[np.uint64]
    # Position among ``features``, the features that the ensemble uses.
    column: NDArray[np.uint32]
    category_set: NDArray[np.int32]
    missing_right: NDArray[np.bool_]
    features: NDArray[np.uint32]
    # Leaf values of each tree from left to right.
    leaf_values: NDArray[np.float64]
    # First question and first leaf of each tree, and one entry for the end.
    question_starts: NDArray[np.uint32]
    leaf_starts: NDArray[np.uint32]


@dataclass(frozen=True)
class Serving:
    """An ensemble in the order and the widths that make prediction fast."""

    steps: Steps
    questions: SplitQuestions
    # One more than the last feature that any tree asks for.
    n_columns: int

    @classmethod
    def of(cls, ensemble: Ensemble) -> Serving:
        n_columns = max(ensemble.features, default=-1) + 1
        return cls(_steps(ensemble), _questions(ensemble), n_columns)

    def add(
        self, rows: NDArray[np.floating], out: NDArray[np.float64], first: int, last: int
    ) -> None:
        """Add tree t of ``first:last`` to row ``t % len(out)`` of ``out``, in their order."""
        # Checked here: the kernels read whatever lies where a column should be.
        if rows.shape[1] < self.n_columns:
            raise ValueError(
                f"the rows have {rows.shape[1]} columns, but the trees ask for {self.n_columns}"
            )
        if len(out) == 0 or out.shape[1] != len(rows):
            raise ValueError(f"out has shape {out.shape}, but there are {len(rows)} rows")
        # Rows must be laid side by side to be asked, which does not pay for few rows or trees.
        if len(rows) < 8 or last - first < 8:
            add_walking(rows, self.steps, first, last, out)
        else:
            add_asking(rows, self.questions, self.steps, first, last, out)


def _steps(ensemble: Ensemble) -> Steps:
    nodes, starts = ensemble.nodes, ensemble.tree_starts
    leaf = nodes["left"] < 0
    steps = np.zeros(len(nodes), dtype=STEP_DTYPE)
    steps["threshold"] = np.where(leaf, np.inf, nodes["threshold"])
    steps["feature"] = np.where(leaf, 0, nodes["feature"])
    offset = np.repeat(starts[:-1], np.diff(starts))
    steps["left"] = np.where(leaf, np.arange(len(nodes)), nodes["left"] + offset)
    steps["category_set"] = nodes["category_set"]
    steps["missing_right"] = ~leaf & ~nodes["missing_left"]
    depth = np.maximum.reduceat(nodes["depth"], starts[:-1]) if len(starts) > 1 else starts[:0]
    return Steps(
        nodes=steps,
        value=nodes["value"].copy(),
        root=starts[:-1].astype(np.uint32),
        depth=depth.astype(np.uint32),
        category_sets=ensemble.category_sets,
    )


def _questions(ensemble: Ensemble) -> SplitQuestions:
    nodes, starts = ensemble.nodes, ensemble.tree_starts
    inner = nodes[nodes["left"] >= 0]
    features = np.array(ensemble.features, dtype=np.uint32)
    right_leaves = np.zeros(len(nodes), dtype=np.uint64)
    leaf_values = np.empty(len(nodes) - len(inner))
    order_leaves(nodes["left"].copy(), starts, nodes["value"].copy(), right_leaves, leaf_values)
    # A tree of 2 k + 1 nodes has k questions and k + 1 leaves.
    n_questions = (starts - np.arange(len(starts))) // 2
    return SplitQuestions(
        threshold=inner["threshold"].copy(),
        right_leaves=right_leaves[nodes["left"] >= 0],
        column=np.searchsorted(features, inner["feature"]).astype(np.uint32),
        category_set=inner["category_set"].copy(),
        missing_right=~inner["missing_left"],
        features=features,
        leaf_values=leaf_values,
        question_starts=n_questions.astype(np.uint32),
        leaf_starts=(starts - n_questions).astype(np.uint32),
    )


@njit
def order_leaves(left, starts, value, right_leaves, leaf_values):  # type: ignore[no-untyped-def]
    """Number the leaves of each tree from left to right; see ``SplitQuestions.right_leaves``."""
    for t in range(starts.size - 1):
        start, size = starts[t], starts[t + 1] - starts[t]
        n_leaves = np.empty(size, dtype=np.int64)
        for i in range(size - 1, -1, -1):  # children come after their parents
            child = left[start + i]
            n_leaves[i] = n_leaves[child] + n_leaves[child + 1] if child >= 0 else 1
        first_leaf = np.empty(size, dtype=np.int64)
        first_leaf[0] = 0
        for i in range(size):
            child = left[start + i]
            if child < 0:
                # A tree of size nodes has (size + 1) / 2 leaves.
                leaf_values[(start + t) // 2 + first_leaf[i]] = value[start + i]
                continue
            first_leaf[child] = first_leaf[i]
            first_leaf[child + 1] = first_leaf[i] + n_leaves[child]
            below = np.uint64(0)
            for leaf in range(first_leaf[i], min(first_leaf[i] + n_leaves[child], MOST_LEAVES)):
                below |= np.uint64(1) << np.uint64(leaf)
            right_leaves[start + i] = ~below


@njit
def add_walking(rows, steps, first, last, out):  # type: ignore[no-untyped-def]
    """Walk each row down each tree; add the leaf's value to the tree's output."""
    for i in range(np.uint64(rows.shape[0])):
        for t in range(np.uint64(first), np.uint64(last)):
            out[t % np.uint64(out.shape[0]), i] += steps.value[walk(rows, i, steps, t)]


@inner
def walk(rows, i, steps, t):  # type: ignore[no-untyped-def]
    """Leaf of one row in one tree."""
    node = np.uint64(steps.root[t])
    for _ in range(steps.depth[t]):
        node = next_node(rows, i, steps, node)
    return node


@inner
def next_node(rows, i, steps, node):  # type: ignore[no-untyped-def]
    """The child that a row goes to; a leaf keeps it."""
    step = steps.nodes[node]
    x = rows[i, np.uint64(step.feature)]
    if step.category_set >= 0:
        right = goes_right(x, step.missing_right, steps.category_sets, step.category_set)
    else:
        right = (x > step.threshold) | (step.missing_right & (x != x))
    return np.uint64(step.left) + np.uint64(right)


@njit
def add_asking(rows, questions, steps, first, last, out):  # type: ignore[no-untyped-def]
    """Add the trees' values, asking a block of rows all questions of a tree at once.

    Each row keeps a set of leaves that it may still reach; every question that sends it right
    takes the leaves of the left child away. The leftmost leaf that remains is the row's (Lucchese
    et al., "QuickScorer", 2015). No question waits for another: the loops over rows are vectors.
    """
    block, one = np.uint64(ROW_BLOCK), np.uint64(1)
    n = np.uint64(rows.shape[0])
    x = np.empty(questions.features.size * ROW_BLOCK)
    for i in range(np.uint64(x.size)):  # what lies behind the last row is asked, too
        x[i] = 0.0
    possible = np.empty(ROW_BLOCK, dtype=np.uint64)
    begin = np.uint64(0)
    while begin < n:
        size = min(block, n - begin)
        turn_block(rows, begin, size, questions.features, x)
        for t in range(np.uint64(first), np.uint64(last)):
            k = t % np.uint64(out.shape[0])
            leaf = np.uint64(questions.leaf_starts[t])
            if np.uint64(questions.leaf_starts[t + one]) - leaf > np.uint64(MOST_LEAVES):
                for i in range(size):
                    out[k, begin + i] += steps.value[walk(rows, begin + i, steps, t)]
                continue
            for i in range(block):
                possible[i] = ~np.uint64(0)
            for j in range(
                np.uint64(questions.question_starts[t]),
                np.uint64(questions.question_starts[t + one]),
            ):
                at = np.uint64(questions.column[j]) * block
                if questions.category_set[j] >= 0:
                    ask_categories(questions, j, at, x, steps.category_sets, possible)
                elif questions.missing_right[j]:
                    ask_not_left(questions.threshold[j], questions.right_leaves[j], at, x, possible)
                else:
                    ask_right(questions.threshold[j], questions.right_leaves[j], at, x, possible)
            for i in range(size):
                out[k, begin + i] += questions.leaf_values[leaf + first_bit(possible[i])]
        begin += block


@inner
def turn_block(rows, begin, size, features, x):  # type: ignore[no-untyped-def]
    """Copy a block of rows to ``x``, column after column, eight rows (a cache line) at a time."""
    first = np.uint64(0)
    while first < size:
        last = min(first + np.uint64(8), size)
        for j in range(np.uint64(features.size)):
            for i in range(first, last):
                x[j * np.uint64(ROW_BLOCK) + i] = rows[begin + i, np.uint64(features[j])]
        first = last


@inner
def ask_right(threshold, right_leaves, at, x, possible):  # type: ignore[no-untyped-def]
    """Take the left leaves away from the rows of a block that go right; NaN goes left."""
    for i in range(np.uint64(ROW_BLOCK)):
        possible[i] &= right_leaves if x[at + i] > threshold else ~np.uint64(0)


@inner
def ask_not_left(threshold, right_leaves, at, x, possible):  # type: ignore[no-untyped-def]
    """Take the left leaves away from the rows of a block that do not go left; NaN goes right."""
    for i in range(np.uint64(ROW_BLOCK)):
        possible[i] &= ~np.uint64(0) if x[at + i] <= threshold else right_leaves


@inner
def ask_categories(questions, j, at, x, category_sets, possible):  # type: ignore[no-untyped-def]
    """Take the left leaves away from the rows of a block whose category goes right."""
    for i in range(np.uint64(ROW_BLOCK)):
        if goes_right(
            x[at + i], questions.missing_right[j], category_sets, questions.category_set[j]
        ):
            possible[i] &= questions.right_leaves[j]


@inner
def goes_right(x, missing_right, category_sets, row):  # type: ignore[no-untyped-def]
    """Whether a category, or its absence, goes right."""
    if x != x:
        return missing_right
    return not in_set(category_sets, row, np.uint64(x))


@inner
def in_set(sets, row, code):  # type: ignore[no-untyped-def]
    """Whether a category's code is in one of the sets."""
    word = sets[np.uint64(row), code >> np.uint64(6)]
    return (word >> (code & np.uint64(63))) & np.uint64(1) == np.uint64(1)


def stack_trees(rounds: Iterable[Sequence[Tree]]) -> list[Tree]:
    """Flatten rounds of trees into the order of an ensemble."""
    return [tree for trees in rounds for tree in trees]
