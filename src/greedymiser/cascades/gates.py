"""Gates are learned: from what is known of rows to what they would gain if they went on.

Rows are few and gains are noisy, so gates are small: one tree on what the state's model says, a few
trees on all that is paid, one tree that can be read, or a plain band of scores. What a gate would
do to rows is judged by gates that have not seen them (``cross_fitted``).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.compiling import njit
from greedymiser.data.binning import midpoints
from greedymiser.model.gating import Gate
from greedymiser.model.trees import CATEGORY_WORDS, NODE_DTYPE, Ensemble, Tree

Floats = NDArray[np.float64]
Codes = NDArray[np.uint16]

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
    "paid": GateKind(4, 3, 0.5, sees_features=True, sees_said=True),
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
    """Columns as small integers: all have the same number of bins, and the last is for missing."""

    # (m, n): rows with code c have a value in (edges[c - 1], edges[c]].
    codes: Codes
    edges: list[Floats]
    # Number of bins, with that of missing values.
    n_bins: int
    # (m,): whether codes are categories.
    is_set: NDArray[np.bool_]

    @classmethod
    def of(cls, inputs: GateInputs) -> BinnedColumns:
        edges = []
        for j, column in enumerate(inputs.columns.T):
            if j in inputs.categorical:
                edges.append(np.arange(inputs.categorical[j] - 1, dtype=np.float64))
            else:
                edges.append(_edges(column[~np.isnan(column)]))
        n_bins = max(map(len, edges), default=0) + 2
        codes = np.empty(inputs.columns.shape[::-1], dtype=np.uint16)
        for j, column in enumerate(inputs.columns.T):
            known = np.minimum(np.searchsorted(edges[j], column), len(edges[j]))
            codes[j] = np.where(np.isnan(column), n_bins - 1, known)
        is_set = np.array([j in inputs.categorical for j in range(len(edges))], dtype=bool)
        return cls(codes, edges, n_bins, is_set)


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
    return midpoints(lower, upper)


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
        It says how much a row gains; of a band, 1 or -1. One without trees says the same of all
        rows. None where there is nothing to learn from.
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


class _GateSplits(NamedTuple):
    """The best split of each node of a level."""

    # (n_level,): what it brings, -inf where there is none; the column; the bins that go left, in
    # order or in the order of ``ranked``; and whether missing values go left.
    gain: Floats
    column: NDArray[np.intp]
    last: NDArray[np.intp]
    missing_left: NDArray[np.bool_]
    # (n_level, m, n_bins - 1): bins in the order in which they are divided.
    ranked: NDArray[np.intp]


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
    level = np.zeros(1, dtype=np.intp)
    for depth in range(kind.depth):
        place = np.full(len(nodes), -1, dtype=np.intp)
        place[level] = np.arange(len(level))
        splits = _best_splits(binned, seen, target, weight, place[node_of], len(level), least)
        following = []
        for k, node in enumerate(level.tolist()):
            if not splits.gain[k] > 0:
                continue
            column = int(seen[splits.column[k]])
            left = np.zeros(binned.n_bins, dtype=bool)
            left[splits.ranked[k, splits.column[k], : splits.last[k] + 1]] = True
            left[-1] = splits.missing_left[k]
            here = np.flatnonzero(node_of == node)
            goes_left = left[binned.codes[column, here]]
            first = len(nodes)
            _describe(nodes[node], inputs, column, left, sets, np.mean(goes_left) >= 0.5)
            nodes[node]["gain"], nodes[node]["left"] = splits.gain[k], first
            for child, rows in ((first, here[goes_left]), (first + 1, here[~goes_left])):
                nodes.append(_node(target[rows], weight[rows], depth + 1))
                node_of[rows] = child
                following.append(child)
        if not following:
            break
        level = np.array(following)
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
    column: int,
    left: NDArray[np.bool_],
    sets: list[NDArray[np.uint64]],
    left_is_larger: bool,
) -> None:
    """Write a split into a node; what was never missing goes with most of the others."""
    binned = inputs.binned
    was_missing = bool((binned.codes[column] == binned.n_bins - 1).any())
    record["feature"] = inputs.positions[column]
    record["missing_left"] = left[-1] if was_missing else left_is_larger
    chosen = np.flatnonzero(left[:-1])
    if not binned.is_set[column]:
        edges, last = binned.edges[column], int(chosen[-1])
        record["bin"] = last
        record["threshold"] = edges[last] if last < len(edges) else np.inf
        return
    words = np.zeros(CATEGORY_WORDS, dtype=np.uint64)
    for code in chosen.tolist():
        words[code // 64] |= np.uint64(1) << np.uint64(code % 64)
    record["category_set"] = len(sets)
    sets.append(words)


def _best_splits(
    binned: BinnedColumns,
    seen: NDArray[np.intp],
    target: Floats,
    weight: Floats,
    at: NDArray[np.intp],
    n_level: int,
    least: int,
) -> _GateSplits:
    """The best split of every node of a level, over all columns that are seen."""
    cells = np.zeros((3, n_level, len(seen), binned.n_bins))
    count_cells(binned.codes, seen, at, weight * target, weight, cells)
    known, missing = cells[..., :-1], cells[..., -1:]
    ranked = np.broadcast_to(np.arange(binned.n_bins - 1), known.shape[1:]).copy()
    if (is_set := binned.is_set[seen]).any():
        means = known[0][:, is_set] / np.maximum(known[1][:, is_set], 1e-300)
        ranked[:, is_set] = np.argsort(means, axis=2, kind="stable")
        known = np.take_along_axis(known, ranked[None], axis=3)
    total = cells.sum(axis=3)[..., None]
    left = np.cumsum(known, axis=3)
    gains = np.stack([_gains(left, total, least), _gains(left + missing, total, least)])
    gains[1][~np.broadcast_to(missing[2] > 0, gains[1].shape)] = -np.inf
    # (node, with or without missing ones, column, bin): the first of the best.
    flat = gains.swapaxes(0, 1).reshape(n_level, -1)
    best = np.argmax(flat, axis=1)
    gain = flat[np.arange(n_level), best]
    way, column, last = np.unravel_index(best, (2, len(seen), binned.n_bins - 1))
    # What is gained by rounding is nothing.
    floor = 1e-12 * np.maximum(total[1, :, 0, 0], 0.0)
    return _GateSplits(np.where(gain > floor, gain, -np.inf), column, last, way == 1, ranked)


def _gains(left: Floats, total: Floats, least: int) -> Floats:
    """By how much each division lowers the sum of squares; -inf where a side is too small."""
    right = total - left
    fits = (left[2] >= least) & (right[2] >= least) & (left[1] > 0) & (right[1] > 0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        parts = left[0] ** 2 / left[1] + right[0] ** 2 / right[1] - total[0] ** 2 / total[1]
    return np.where(fits & np.isfinite(parts), parts, -np.inf)


@njit(cache=True, nogil=True)
def count_cells(codes, seen, at, product, weight, cells):  # type: ignore[no-untyped-def]
    """Add up the rows of each node, column and bin: products, weights and their number."""
    for j in range(seen.size):
        column = codes[seen[j]]
        for i in range(at.size):
            node = at[i]
            if node >= 0:
                bin_ = column[i]
                cells[0, node, j, bin_] += product[i]
                cells[1, node, j, bin_] += weight[i]
                cells[2, node, j, bin_] += 1.0


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
        return _same_for_all(inputs, -1.0)
    if sums[-1] >= rises[last]:
        return _same_for_all(inputs, 1.0)
    first = int(np.argmin(sums[: last + 1]))
    distinct = scores[order][ends - 1]
    low = -np.inf if first == 0 else _between(distinct[first - 1], distinct[first])
    is_open = last == len(distinct) - 1
    high = np.inf if is_open else _between(distinct[last], distinct[last + 1])
    return Gate(_band(inputs, inputs.positions[column], low, high), 0.0)


def bands_of_shares(
    inputs: GateInputs,
    target: Floats,
    weight: Floats | None,
    folds: NDArray[np.intp],
    shares: Sequence[float],
) -> list[tuple[Gate, NDArray[np.bool_]]]:
    """For some shares of the rows, given ascending, the band of that width whose rows gain most.

    A band has at most its share of the rows, and more than the share before. Each comes with the
    rows that go on by bands of the same width that were made without them.
    """
    said = inputs.said
    if not len(said) or not len(inputs.binned.edges[said[-1]]):
        return []
    column = int(said[-1])
    codes, edges = inputs.binned.codes[column].astype(np.intp), inputs.binned.edges[column]
    weights = np.ones(len(target)) if weight is None else weight
    n, parts = len(edges) + 1, np.unique(folds)
    # Rows and gains of every stretch of bins from ``first`` up to ``last``, in each fold.
    first, last = np.triu_indices(n)
    cells = np.zeros((2, len(parts), n + 1))
    for k, fold in enumerate(parts):
        here = folds == fold
        for cell, of_row in zip(cells[:, k], (weights, weights * target), strict=True):
            cell[1:] = np.cumsum(np.bincount(codes[here], of_row[here], n))
    rows, gains = cells[:, :, last + 1] - cells[:, :, first]
    found: dict[tuple[int, int], NDArray[np.bool_]] = {}
    share = rows.sum(axis=0) / rows.sum(axis=0).max()  # the longest stretch is the whole
    for low, high in itertools.pairwise((0.0, *shares)):
        best = _best_of(gains.sum(axis=0), (share > low) & (share <= high + 1e-9))
        if best is None:
            continue
        as_wide = last - first == last[best] - first[best]
        on = np.zeros(len(target), dtype=bool)
        for k, fold in enumerate(parts):
            others = np.arange(len(parts)) != k
            honest = int(np.argmax(np.where(as_wide, gains[others].sum(axis=0), -np.inf)))
            inside = (codes >= first[honest]) & (codes <= last[honest])
            on |= inside & (folds == fold)
        found[int(first[best]), int(last[best])] = on
    bands = []
    for (start, end), on in found.items():
        above = -np.inf if start == 0 else float(edges[start - 1])
        up_to = np.inf if end == n - 1 else float(edges[end])
        bands.append((Gate(_band(inputs, inputs.positions[column], above, up_to), 0.0), on))
    return bands


def bands_between(inputs: GateInputs, n_parts: int) -> list[tuple[Gate, NDArray[np.bool_]]]:
    """All bands between scores that divide the rows into about equal parts, and who is in them."""
    said = inputs.said
    if not len(said) or not len(inputs.binned.edges[said[-1]]):
        return []
    column = int(said[-1])
    codes, edges = inputs.binned.codes[column], inputs.binned.edges[column]
    below = np.cumsum(np.bincount(codes, minlength=len(edges) + 1)) / len(codes)
    cuts = np.unique(np.searchsorted(below, np.arange(1, n_parts) / n_parts))
    cuts = cuts[cuts < len(edges)]
    bands = []
    for start, end in itertools.combinations((-1, *cuts.tolist(), len(edges)), 2):
        if start == -1 and end == len(edges):
            continue
        above = -np.inf if start == -1 else float(edges[start])
        up_to = np.inf if end == len(edges) else float(edges[end])
        gate = Gate(_band(inputs, inputs.positions[column], above, up_to), 0.0)
        bands.append((gate, (codes > start) & (codes <= end)))
    return bands


def _best_of(gains: Floats, fits: NDArray[np.bool_]) -> int | None:
    """The place of the largest gain among some of them; None if there is none."""
    fits = fits & (gains > 0)
    return int(np.argmax(np.where(fits, gains, -np.inf))) if fits.any() else None


def _same_for_all(inputs: GateInputs, said: float) -> Gate:
    """A gate without trees, which lets everybody on or nobody."""
    return Gate(Ensemble.empty(np.array([said]), inputs.n_columns), 0.0)


def _between(lower: float, upper: float) -> float:
    return float(midpoints(np.array([lower]), np.array([upper]))[0])


def _band(inputs: GateInputs, position: int, low: float, high: float) -> Ensemble:
    """A tree that says 1 of rows with low < score <= high, and -1 of others."""
    empty = Ensemble.empty(np.zeros(1), inputs.n_columns)
    is_open = np.isinf(low) or np.isinf(high)
    nodes = np.zeros(3 if is_open else 5, dtype=NODE_DTYPE)
    nodes["feature"] = nodes["left"] = nodes["category_set"] = nodes["bin"] = -1
    nodes["feature"][0], nodes["left"][0] = position, 1
    nodes["depth"][1:] = 1
    if is_open:
        nodes["threshold"][0] = low if np.isinf(high) else high
        nodes["value"][1:] = (-1.0, 1.0) if np.isinf(high) else (1.0, -1.0)
    else:
        nodes["threshold"][:2] = high, low
        nodes["value"] = (0.0, 0.0, -1.0, -1.0, 1.0)
        nodes["feature"][1], nodes["left"][1], nodes["depth"][3:] = position, 3, 2
    return empty.extended([Tree(nodes, np.zeros((0, CATEGORY_WORDS), dtype=np.uint64))])
