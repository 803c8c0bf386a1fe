"""Trees as flat arrays: every dtype, the ensemble, and prediction.

A tree is grown as a list of nodes (see growing.py) and served from the arrays here; ``Ensemble``
is the only converter. Siblings lie side by side, so a node stores only where its left child is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numba import njit
from numpy.typing import NDArray

from greedymiser.tables import Table
from greedymiser.threads import Threads

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

# One cell of the table that an engine returns: the best split of one node on one feature.
CANDIDATE_DTYPE = np.dtype(
    [
        # Drop of the loss' quadratic model, before W and prices; -inf where no split is allowed.
        ("gain", np.float64),
        # Largest bin that goes left (numeric); unused where categories are split.
        ("bin", np.int32),
        # Whether missing values go left. Where the node has none, they follow the larger child.
        ("missing_left", np.bool_),
    ]
)

# A set of categories as 256 bits: code c is in the set if bit c % 64 of word c // 64 is set.
CATEGORY_WORDS = 4

# Rows that one kernel call predicts together: they stay in the second-level cache.
ROW_BLOCK = 64


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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
        parts = [self.nodes]
        n_sets = len(self.category_sets)
        for tree in trees:
            nodes = tree.nodes.copy()
            nodes["category_set"][nodes["category_set"] >= 0] += n_sets
            n_sets += len(tree.category_sets)
            parts.append(nodes)
        ends = self.tree_starts[-1] + np.cumsum([len(tree.nodes) for tree in trees])
        return replace(
            self,
            nodes=np.concatenate(parts),
            tree_starts=np.append(self.tree_starts, ends).astype(np.int64),
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
        return replace(
            self,
            nodes=self.nodes[: self.tree_starts[n_trees]],
            tree_starts=self.tree_starts[: n_trees + 1],
        )

    @property
    def features(self) -> list[int]:
        """Features that any tree splits on."""
        used = self.nodes["feature"]
        return np.unique(used[used >= 0]).tolist()

    def importances(self) -> NDArray[np.float64]:
        """Total raw gain of each feature's splits."""
        inner = self.nodes[self.nodes["feature"] >= 0]
        return np.bincount(inner["feature"], weights=inner["gain"], minlength=self.n_features)

    def raw_predict(
        self, table: Table, threads: Threads, first: int = 0, last: int | None = None
    ) -> NDArray[np.float64]:
        """Raw predictions, shape (n_outputs, n), of rounds ``first:last`` on top of the baseline."""
        out = np.empty((self.n_outputs, table.n_rows))
        out[:] = self.baseline[:, None]
        self.add_rounds(table, threads, out, first, self.n_iter if last is None else last)
        return out

    def staged_raw_predict(self, table: Table, threads: Threads) -> Iterator[NDArray[np.float64]]:
        """Raw predictions after each round."""
        out = self.raw_predict(table, threads, last=0)
        for i in range(self.n_iter):
            self.add_rounds(table, threads, out, i, i + 1)
            yield out.copy()

    def add_rounds(
        self, table: Table, threads: Threads, out: NDArray[np.float64], first: int, last: int
    ) -> None:
        """Add what rounds ``first:last`` say about each row to ``out``."""
        trees = (np.uint64(first * self.n_outputs), np.uint64(last * self.n_outputs))
        if trees[0] == trees[1]:
            return
        wanted = self.features

        def add(start: int, stop: int) -> None:
            # Tables that are not plain arrays are turned into numbers a few rows at a time.
            for begin in range(start, stop, 4096):
                end = min(begin + 4096, stop)
                rows = table.rows(begin, end, wanted)
                self.serving.add(rows, out[:, begin:end], *trees)

        threads.run(add, threads.slices(table.n_rows, 4 * ROW_BLOCK, per_thread=4))

    @cached_property
    def serving(self) -> Serving:
        """The arrays that the prediction kernels read."""
        return Serving.of(self)


@dataclass(frozen=True)
class Serving:
    """An ensemble in the order and the widths that make prediction fast.

    A leaf points to itself with threshold +inf, so every row takes the same number of steps
    through a tree and the kernel has no branch that depends on the data.
    """

    threshold: NDArray[np.float64]
    feature: NDArray[np.uint32]
    left: NDArray[np.uint32]
    missing_right: NDArray[np.uint8]
    category_set: NDArray[np.int32]
    value: NDArray[np.float64]
    # Per tree: first node, and the number of steps to the deepest leaf.
    root: NDArray[np.uint32]
    steps: NDArray[np.uint32]
    category_sets: NDArray[np.uint64]

    @classmethod
    def of(cls, ensemble: Ensemble) -> Serving:
        nodes, starts = ensemble.nodes, ensemble.tree_starts
        sizes = np.diff(starts)
        offset = np.repeat(starts[:-1], sizes)
        leaf = nodes["left"] < 0
        itself = np.arange(len(nodes))
        depths = np.maximum.reduceat(nodes["depth"], starts[:-1]) if len(sizes) else sizes
        return cls(
            threshold=np.where(leaf, np.inf, nodes["threshold"]),
            feature=np.where(leaf, 0, nodes["feature"]).astype(np.uint32),
            left=np.where(leaf, itself, nodes["left"] + offset).astype(np.uint32),
            missing_right=(~leaf & ~nodes["missing_left"]).astype(np.uint8),
            category_set=nodes["category_set"].copy(),
            value=nodes["value"].copy(),
            root=starts[:-1].astype(np.uint32),
            steps=depths.astype(np.uint32),
            category_sets=ensemble.category_sets,
        )

    @cached_property
    def has_categories(self) -> bool:
        return bool((self.category_set >= 0).any())

    def add(
        self,
        rows: NDArray[np.floating],
        out: NDArray[np.float64],
        first: np.uint64,
        last: np.uint64,
    ) -> None:
        """Add trees ``first:last`` to ``out`` (n_outputs, n), in the order of the trees."""
        arrays = (self.threshold, self.feature, self.left, self.missing_right, self.value)
        if self.has_categories:
            sets = (self.category_set, self.category_sets)
            add_trees_with_categories(rows, *arrays, *sets, self.root, self.steps, first, last, out)
        else:
            add_trees(rows, *arrays, self.root, self.steps, first, last, out)


@njit(cache=True, nogil=True)
def add_trees(  # type: ignore[no-untyped-def]
    rows, threshold, feature, left, missing_right, value, root, steps, first, last, out
):
    """Walk every row down every tree; add the leaf's value to the tree's output.

    Four rows walk at a time, so that the processor has other loads to wait for.
    """
    n = np.uint64(rows.shape[0])
    n_outputs = np.uint64(out.shape[0])
    one, four = np.uint64(1), np.uint64(4)
    block = np.uint64(ROW_BLOCK)
    begin = np.uint64(0)
    while begin < n:
        end = min(begin + block, n)
        for t in range(first, last):
            k = t % n_outputs
            depth = steps[t]
            i = begin
            while i + four <= end:
                a = b = c = d = np.uint64(root[t])
                for _ in range(depth):
                    xa = rows[i, np.uint64(feature[a])]
                    xb = rows[i + one, np.uint64(feature[b])]
                    xc = rows[i + one + one, np.uint64(feature[c])]
                    xd = rows[i + one + one + one, np.uint64(feature[d])]
                    a = left[a] + np.uint64(
                        (xa > threshold[a]) | ((missing_right[a] != 0) & (xa != xa))
                    )
                    b = left[b] + np.uint64(
                        (xb > threshold[b]) | ((missing_right[b] != 0) & (xb != xb))
                    )
                    c = left[c] + np.uint64(
                        (xc > threshold[c]) | ((missing_right[c] != 0) & (xc != xc))
                    )
                    d = left[d] + np.uint64(
                        (xd > threshold[d]) | ((missing_right[d] != 0) & (xd != xd))
                    )
                out[k, i] += value[a]
                out[k, i + one] += value[b]
                out[k, i + one + one] += value[c]
                out[k, i + one + one + one] += value[d]
                i += four
            while i < end:
                a = np.uint64(root[t])
                for _ in range(depth):
                    xa = rows[i, np.uint64(feature[a])]
                    a = left[a] + np.uint64(
                        (xa > threshold[a]) | ((missing_right[a] != 0) & (xa != xa))
                    )
                out[k, i] += value[a]
                i += one
        begin = end


@njit(cache=True, nogil=True)
def add_trees_with_categories(  # type: ignore[no-untyped-def]
    rows,
    threshold,
    feature,
    left,
    missing_right,
    value,
    category_set,
    category_sets,
    root,
    steps,
    first,
    last,
    out,
):
    """Do as ``add_trees`` does, where some splits send a set of categories left."""
    n_outputs = np.uint64(out.shape[0])
    for i in range(np.uint64(rows.shape[0])):
        for t in range(first, last):
            node = np.uint64(root[t])
            for _ in range(steps[t]):
                x = rows[i, np.uint64(feature[node])]
                if x != x:
                    right = missing_right[node] != 0
                elif category_set[node] >= 0:
                    right = not in_set(category_sets, category_set[node], np.uint64(x))
                else:
                    right = x > threshold[node]
                node = left[node] + np.uint64(right)
            out[t % n_outputs, i] += value[node]


@njit(cache=True, nogil=True)
def in_set(sets, row, code):  # type: ignore[no-untyped-def]
    """Whether a category's code is in one of the sets."""
    word = sets[np.uint64(row), code >> np.uint64(6)]
    return (word >> (code & np.uint64(63))) & np.uint64(1) == np.uint64(1)


def walk_binned(
    tree: Tree,
    codes: NDArray[np.uint64],
    feature_lane: NDArray[np.int32],
    n_bins: NDArray[np.int32],
    out: NDArray[np.float64],
) -> None:
    """Add a tree's values to ``out`` for rows that are known by their bins."""
    nodes = tree.nodes
    add_tree_binned(
        codes,
        feature_lane,
        n_bins,
        nodes["feature"].copy(),
        nodes["bin"].copy(),
        nodes["left"].copy(),
        nodes["missing_left"].copy(),
        nodes["category_set"].copy(),
        tree.category_sets,
        nodes["value"].copy(),
        out,
    )


@njit(cache=True, nogil=True)
def add_tree_binned(  # type: ignore[no-untyped-def]
    codes, feature_lane, n_bins, feature, cut, left, missing_left, category_set, sets, value, out
):
    """Walk binned rows down one tree; add the leaf's value."""
    for i in range(np.uint64(codes.shape[1])):
        node = np.uint64(0)
        while left[node] >= 0:
            f = np.uint64(feature[node])
            lane = np.uint64(feature_lane[f])
            word = codes[lane >> np.uint64(3), i]
            code = (word >> ((lane & np.uint64(7)) << np.uint64(3))) & np.uint64(255)
            if code == np.uint64(n_bins[f]):
                go_left = missing_left[node]
            elif category_set[node] >= 0:
                go_left = in_set(sets, category_set[node], code)
            else:
                go_left = code <= np.uint64(cut[node])
            node = np.uint64(left[node]) + (np.uint64(0) if go_left else np.uint64(1))
        out[i] += value[node]


def stack_trees(rounds: Iterable[Sequence[Tree]]) -> list[Tree]:
    """Flatten rounds of trees into the order of an ensemble."""
    return [tree for trees in rounds for tree in trees]
