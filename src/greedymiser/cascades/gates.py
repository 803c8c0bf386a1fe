"""Gates are learned: from what is known of rows to what they would gain if they went on.

Rows are few and gains are noisy, so gates are small: one tree on what the state's model says, a few
trees on all that is paid, one tree that can be read, or a plain band of scores. What a gate would
do to rows is judged by gates that have not seen them (``cross_fitted``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from greedymiser.model.gating import Gate
from greedymiser.model.trees import CATEGORY_WORDS, NODE_DTYPE, Ensemble, Tree

Floats = NDArray[np.float64]
Codes = NDArray[np.intp]

# Bins of a column; the share of rows, and the number of them, that a leaf has at least.
MOST_BINS = 32
LEAST_SHARE, LEAST_ROWS = 0.01, 10


@dataclass(frozen=True)
class GateKind:
    """What a kind of gate looks at, and how large it is."""

    n_trees: int
    depth: int
    rate: float
    # Whether it sees the features that are paid, and what the model says.
    sees_features: bool
    sees_said: bool


KINDS = {
    "score": GateKind(1, 2, 1.0, sees_features=False, sees_said=True),
    "paid": GateKind(8, 3, 0.3, sees_features=True, sees_said=True),
    "tree": GateKind(1, 3, 1.0, sees_features=True, sees_said=False),
}
BAND = "band"


@dataclass(frozen=True, eq=False)
class GateInputs:
    """What is known of some rows in a state.

    Examples
    --------
    >>> inputs = GateInputs(np.array([[0.2], [0.6], [0.9]]), (3,), n_features=3, n_columns=4)
    >>> inputs.said.tolist()
    [0]
    """

    # (n, m): features that are paid, NaN where missing and codes where they are categories; and
    # what the state's model says.
    columns: Floats
    # The place of each in the extended row: features first, then what the model says.
    positions: tuple[int, ...]
    n_features: int
    # Width of the extended row.
    n_columns: int
    # Number of categories of those columns that hold codes.
    categorical: Mapping[int, int] = field(default_factory=dict)

    @property
    def said(self) -> NDArray[np.intp]:
        """Columns that hold what the model says."""
        return np.flatnonzero(np.array(self.positions) >= self.n_features)

    def seen_by(self, kind: GateKind) -> NDArray[np.intp]:
        """Columns that a kind of gate looks at."""
        is_said = np.array(self.positions, dtype=np.intp) >= self.n_features
        return np.flatnonzero(np.where(is_said, kind.sees_said, kind.sees_features))

    @cached_property
    def binned(self) -> BinnedColumns:
        """The columns as small integers."""
        return BinnedColumns.of(self)


@dataclass(frozen=True, eq=False)
class BinnedColumns:
    """Columns as small integers; the code ``len(edges[j])`` + 1 of a column is that of missing."""

    # (m, n).
    codes: Codes
    # Per column: rows with code c have a value in (edges[c - 1], edges[c]].
    edges: list[Floats]
    # Per column: number of bins, without that of missing ones.
    n_bins: list[int]

    @classmethod
    def of(cls, inputs: GateInputs) -> BinnedColumns:
        codes = np.empty(inputs.columns.shape[::-1], dtype=np.intp)
        edges, n_bins = [], []
        for j, column in enumerate(inputs.columns.T):
            known = column[~np.isnan(column)]
            if j in inputs.categorical:
                n = inputs.categorical[j]
                here = np.arange(n - 1, dtype=np.float64)
            else:
                here = _edges(known)
                n = len(here) + 1
            found = np.searchsorted(here, column)  # NaN is behind everything
            codes[j] = np.where(np.isnan(column), n, np.minimum(found, n - 1))
            edges.append(here)
            n_bins.append(n)
        return cls(codes, edges, n_bins)


def _edges(known: Floats) -> Floats:
    """Values between which bins change: middles of neighbours, about as many rows in each bin."""
    distinct = np.unique(known)
    if len(distinct) > MOST_BINS:
        ranks = np.quantile(known, np.linspace(0, 1, MOST_BINS + 1)[1:-1], method="lower")
        lower = np.unique(ranks)
        lower = lower[lower < distinct[-1]]
        upper = distinct[np.searchsorted(distinct, lower) + 1]
    else:
        lower, upper = distinct[:-1], distinct[1:]
    middle = lower + (upper - lower) / 2
    # Of neighbouring floats, or infinities, there is no middle.
    return np.where((middle < upper) & (middle >= lower), middle, lower)


def fit_gate(
    kind: str, inputs: GateInputs, target: Floats, weight: Floats | None = None
) -> Gate | None:
    """A gate that says who gains, learned from what each row would gain if it went on.

    Parameters
    ----------
    kind : {"score", "paid", "tree", "band"}
    inputs : GateInputs
        What is known of the rows.
    target : array of shape (n,)
        What each row gains that goes on: its value here, less its value and its price there.
    weight : array of shape (n,), optional

    Returns
    -------
    Gate or None
        It says how much a row gains; of a band, 1 or -1. None where there is nothing to learn from.
    """
    if kind == BAND:
        return _fit_band(inputs, target, weight)
    wanted = KINDS[kind]
    seen = inputs.seen_by(wanted)
    weights = np.ones(len(target)) if weight is None else weight
    total = float(weights.sum())
    if not len(seen) or not total > 0:
        return None
    baseline = float(weights @ target) / total
    said = np.full(len(target), baseline)
    trees = []
    for _ in range(wanted.n_trees):
        tree, leaf = _grow(inputs, seen, target - said, weights, wanted)
        if tree.is_leaf:
            break
        said += tree.nodes["value"][leaf]
        trees.append(tree)
    empty = Ensemble.empty(np.array([baseline]), inputs.n_columns)
    return Gate(empty.extended(trees), 0.0)


def cross_fitted(
    kind: str,
    inputs: GateInputs,
    target: Floats,
    weight: Floats | None,
    folds: NDArray[np.intp],
) -> Floats:
    """What gates say of rows that have not seen them."""
    said = np.empty(len(target))
    for fold in np.unique(folds):
        learn, check = folds != fold, folds == fold
        part = _taken(inputs, learn)
        gate = fit_gate(kind, part, target[learn], None if weight is None else weight[learn])
        said[check] = -np.inf if gate is None else estimates_of(gate, inputs, check)
    return said


def _taken(inputs: GateInputs, rows: NDArray[np.bool_]) -> GateInputs:
    """Some of the rows; the bins are those of all of them."""
    part = replace(inputs, columns=inputs.columns[rows])
    binned = inputs.binned
    part.__dict__["binned"] = replace(binned, codes=binned.codes[:, rows])
    return part


def estimates_of(
    gate: Gate, inputs: GateInputs, rows: NDArray[np.bool_] | slice = slice(None)
) -> Floats:
    """What a gate says of rows, less its threshold."""
    columns = inputs.columns[rows]
    extended = np.full((len(columns), inputs.n_columns), np.nan)
    extended[:, list(inputs.positions)] = columns
    return gate.estimates(extended) - gate.threshold


# -- a tree ---------------------------------------------------------------------------------------


@dataclass
class _Split:
    """The best split of a node."""

    gain: float
    column: int
    # Codes that go left; the last is that of missing values.
    left: NDArray[np.bool_]
    # Where codes are numbers, the last of those that go left; -1 for sets.
    last: int


def _grow(
    inputs: GateInputs,
    seen: NDArray[np.intp],
    target: Floats,
    weight: Floats,
    kind: GateKind,
) -> tuple[Tree, NDArray[np.intp]]:
    """A regression tree by least squares, and the node that each row ends in."""
    binned, n = inputs.binned, len(target)
    least = max(LEAST_ROWS, int(LEAST_SHARE * n))
    node_of = np.zeros(n, dtype=np.intp)
    nodes = [_node(target, weight, 0)]
    sets: list[NDArray[np.uint64]] = []
    level = [0]
    for depth in range(kind.depth):
        found = _best_splits(
            binned, inputs.categorical, seen, target, weight, node_of, level, least
        )
        following = []
        for node, split in found.items():
            here = np.flatnonzero(node_of == node)
            goes_left = split.left[binned.codes[split.column, here]]
            record, left = nodes[node], len(nodes)
            _describe(record, inputs, split, sets, int(goes_left.sum()) * 2 >= len(here))
            record["left"] = left
            for child, rows in ((left, here[goes_left]), (left + 1, here[~goes_left])):
                nodes.append(_node(target[rows], weight[rows], depth + 1))
                node_of[rows] = child
                following.append(child)
        level = following
        if not level:
            break
    records = np.concatenate(nodes)
    records["value"] *= kind.rate
    stacked = np.array(sets, dtype=np.uint64).reshape(-1, CATEGORY_WORDS)
    return Tree(records, stacked), node_of


def _node(target: Floats, weight: Floats, depth: int) -> NDArray[np.void]:
    record = np.zeros(1, dtype=NODE_DTYPE)
    total = float(weight.sum())
    record["value"] = float(weight @ target) / total if total > 0 else 0.0
    record["hessian"], record["count"], record["depth"] = total, len(target), depth
    record["feature"] = record["left"] = record["category_set"] = record["bin"] = -1
    return record


def _describe(
    record: NDArray[np.void],
    inputs: GateInputs,
    split: _Split,
    sets: list[NDArray[np.uint64]],
    left_is_larger: bool,
) -> None:
    """Write a split into a node; what was never missing goes with most of the others."""
    n_bins = inputs.binned.n_bins[split.column]
    was_missing = bool((inputs.binned.codes[split.column] == n_bins).any())
    record["feature"], record["gain"] = inputs.positions[split.column], split.gain
    record["missing_left"] = split.left[n_bins] if was_missing else left_is_larger
    if split.last >= 0:
        edges = inputs.binned.edges[split.column]
        record["bin"] = split.last
        record["threshold"] = edges[split.last] if split.last < len(edges) else np.inf
        return
    words = np.zeros(CATEGORY_WORDS, dtype=np.uint64)
    for code in np.flatnonzero(split.left[:n_bins]).tolist():
        words[code // 64] |= np.uint64(1) << np.uint64(code % 64)
    record["category_set"] = len(sets)
    sets.append(words)


def _best_splits(
    binned: BinnedColumns,
    categorical: Mapping[int, int],
    seen: NDArray[np.intp],
    target: Floats,
    weight: Floats,
    node_of: NDArray[np.intp],
    level: list[int],
    least: int,
) -> dict[int, _Split]:
    """The best split of every node of a level that has one."""
    place = np.full(node_of.max() + 1, -1, dtype=np.intp)
    place[level] = np.arange(len(level))
    at = place[node_of]
    here = np.flatnonzero(at >= 0)
    at, target, weight = at[here], target[here], weight[here]
    product = weight * target
    found: dict[int, _Split] = {}
    for j in seen.tolist():
        width = binned.n_bins[j] + 1
        cell = at * width + binned.codes[j, here]
        size = len(level) * width
        sums = np.bincount(cell, product, size).reshape(-1, width)
        weights = np.bincount(cell, weight, size).reshape(-1, width)
        counts = np.bincount(cell, minlength=size).reshape(-1, width)
        for k, node in enumerate(level):
            split = _scan(sums[k], weights[k], counts[k], j in categorical, least)
            if split is not None and (node not in found or split.gain > found[node].gain):
                split.column = j
                found[node] = split
    return found


def _scan(
    sums: Floats, weights: Floats, counts: NDArray[np.intp], is_set: bool, least: int
) -> _Split | None:
    """The best way to divide the bins of a node; the last bin is that of missing values."""
    n = len(sums) - 1
    order = np.arange(n)
    if is_set:
        means = sums[:n] / np.maximum(weights[:n], 1e-300)
        order = np.argsort(means, kind="stable")
    has_missing = counts[n] > 0
    total_sum, total_weight, total_count = sums.sum(), weights.sum(), counts.sum()
    best: _Split | None = None
    for missing_left in (False, True) if has_missing else (False,):
        extra = np.array([sums[n], weights[n], counts[n]]) if missing_left else np.zeros(3)
        left_sum = np.cumsum(sums[order]) + extra[0]
        left_weight = np.cumsum(weights[order]) + extra[1]
        left_count = np.cumsum(counts[order]) + extra[2]
        right_weight = total_weight - left_weight
        fits = (left_count >= least) & (total_count - left_count >= least)
        fits &= (left_weight > 0) & (right_weight > 0)
        if not fits.any():
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            gains = left_sum**2 / left_weight + (total_sum - left_sum) ** 2 / right_weight
        gains = np.where(fits, gains - total_sum**2 / total_weight, -np.inf)
        last = int(np.argmax(gains))
        gain = float(gains[last])
        if gain > 1e-12 * abs(total_weight) and (best is None or gain > best.gain):
            left = np.zeros(n + 1, dtype=bool)
            left[order[: last + 1]] = True
            left[n] = missing_left
            best = _Split(gain, -1, left, -1 if is_set else last)
    return best


# -- a band ---------------------------------------------------------------------------------------


def _fit_band(inputs: GateInputs, target: Floats, weight: Floats | None) -> Gate | None:
    """The band of scores whose rows gain most if they go on: the heaviest stretch of a sequence."""
    said = inputs.said
    if not len(said):
        return None
    column = int(said[-1])  # of several classes, the largest probability
    scores = inputs.columns[:, column]
    gains = target if weight is None else target * weight
    order = np.argsort(scores, kind="stable")
    # Between rows of equal scores a band cannot end.
    ends = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True)) + 1
    sums = np.append(0.0, np.cumsum(gains[order]))[np.append(0, ends)]
    lowest = np.minimum.accumulate(sums)[:-1]
    rises = sums[1:] - lowest
    last = int(np.argmax(rises))
    if not rises[last] > 0:
        return None
    first = int(np.argmin(sums[: last + 1]))
    distinct = scores[order][ends - 1]
    low = -np.inf if first == 0 else _between(distinct[first - 1], distinct[first])
    is_open = last == len(distinct) - 1
    high = np.inf if is_open else _between(distinct[last], distinct[last + 1])
    return Gate(_band(inputs, inputs.positions[column], low, high), 0.0)


def _between(lower: float, upper: float) -> float:
    middle = lower + (upper - lower) / 2
    return float(middle) if lower <= middle < upper else float(lower)


def _band(inputs: GateInputs, position: int, low: float, high: float) -> Ensemble:
    """Trees that say 1 of rows with low < score <= high, and -1 of others."""
    empty = Ensemble.empty(np.zeros(1), inputs.n_columns)
    nodes = np.zeros(5, dtype=NODE_DTYPE)
    nodes["feature"] = nodes["left"] = nodes["category_set"] = nodes["bin"] = -1
    nodes["value"] = (0.0, 0.0, -1.0, -1.0, 1.0)
    nodes["depth"] = (0, 1, 1, 2, 2)
    nodes["feature"][:2], nodes["left"][:2] = position, (1, 3)
    nodes["threshold"][:2] = high, low
    nodes["missing_left"] = False
    return empty.extended([Tree(nodes, np.zeros((0, CATEGORY_WORDS), dtype=np.uint64))])
