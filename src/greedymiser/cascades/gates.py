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

from greedymiser._core.compiling import inner, njit
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

Limits = tuple[float, float]
"""A band of scores: rows are in it above the first number and up to the second."""


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

    def of_rows(self, rows: NDArray[np.intp]) -> GateInputs:
        """What is known of some of the rows."""
        return replace(self, columns=self.columns[rows])

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
            bins = np.minimum(np.searchsorted(edges[j], column), len(edges[j]))
            codes[j] = np.where(np.isnan(column), n_bins - 1, bins)
        is_set = np.array([j in inputs.categorical for j in range(len(edges))], dtype=bool)
        return cls(codes, edges, n_bins, is_set)


def _edges(values: Floats) -> Floats:
    """Values between which bins change: middles of neighbours, about as many rows in each bin."""
    distinct = np.unique(values)
    if len(distinct) > MOST_BINS:
        ranks = np.quantile(values, np.linspace(0, 1, MOST_BINS + 1)[1:-1], method="lower")
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
        limits = _band_limits(inputs, target, weight, np.ones(len(target), dtype=bool))
        return None if limits is None else band_gate(inputs, limits)
    grown = _boosted(KINDS[kind], inputs, target, weight, np.ones(len(target), dtype=bool))
    if grown is None:
        return None
    empty = Ensemble.empty(np.array([grown.baseline]), inputs.n_columns)
    trees = [_tree_of(inputs, tree, KINDS[kind].rate) for tree in grown.trees]
    return Gate(empty.extended(trees), 0.0)


def cross_fitted(
    kind: str,
    inputs: GateInputs,
    target: Floats,
    weight: Floats | None,
    folds: NDArray[np.intp],
) -> Floats:
    """What gates say of rows that have not seen them."""
    estimate = np.full(len(target), -np.inf)
    for fold in np.unique(folds):
        learn, check = folds != fold, folds == fold
        if kind == BAND:
            limits = _band_limits(inputs, target, weight, learn)
            if limits is not None:
                scores = inputs.columns[check, inputs.said[-1]]
                inside = (scores > limits[0]) & (scores <= limits[1])
                estimate[check] = np.where(inside, 1.0, -1.0)
        else:
            grown = _boosted(KINDS[kind], inputs, target, weight, learn)
            if grown is not None:
                estimate[check] = grown.said[check]
    return estimate


def estimates_of(
    gate: Gate, inputs: GateInputs, rows: NDArray[np.intp] | slice = slice(None)
) -> Floats:
    """What a gate says of rows, less its threshold."""
    columns = inputs.columns[rows]
    extended = np.full((len(columns), inputs.n_columns), np.nan)
    extended[:, list(inputs.positions)] = columns
    return gate.estimates(extended) - gate.threshold


# -- trees ----------------------------------------------------------------------------------------


class _GrownTree(NamedTuple):
    """A tree over bins; nodes are numbered level by level, the root is 0."""

    # (3, n_nodes), of the rows that it was learned from: sums of weight x target and of weights,
    # and how many they are.
    sums: Floats
    # (n_nodes,): what its split brings.
    gains: Floats
    # (n_nodes, 2): the column that is split and the left of the two children; -1 in a leaf.
    links: NDArray[np.intp]
    # (n_nodes, n_bins): bins that go left.
    left: NDArray[np.bool_]


class _Grown(NamedTuple):
    """Trees, and what they say of all rows, also of those that they were not learned from."""

    baseline: float
    trees: list[_GrownTree]
    said: Floats


def _boosted(
    kind: GateKind,
    inputs: GateInputs,
    target: Floats,
    weight: Floats | None,
    learn: NDArray[np.bool_],
) -> _Grown | None:
    """Regression trees by least squares, one on what is left of the other.

    None where there is nothing to learn from. Rows are looked up by their bins, so that what trees
    say of them needs no gate.
    """
    binned, seen = inputs.binned, inputs.seen_by(kind)
    weights = np.ones(len(target)) if weight is None else weight
    total = float(weights[learn].sum())
    if not len(seen) or not total > 0:
        return None
    baseline = float(weights[learn] @ target[learn]) / total
    estimate = np.full(len(target), baseline)
    least = max(LEAST_ROWS, int(LEAST_SHARE * np.count_nonzero(learn)))
    most = 2 ** (kind.depth + 1) - 1
    node_of = np.empty(len(target), dtype=np.intp)
    trees: list[_GrownTree] = []
    for _ in range(kind.n_trees):
        sums, gains = np.zeros((3, most)), np.zeros(most)
        links = np.full((most, 2), -1, dtype=np.intp)
        left = np.zeros((most, binned.n_bins), dtype=bool)
        rows = (binned.codes, binned.is_set, seen, weights * (target - estimate), weights, learn)
        n = grow_tree(*rows, kind.depth, least, node_of, sums, gains, links, left)
        if n == 1:
            break
        tree = _GrownTree(sums[:, :n], gains[:n], links[:n], left[:n])
        estimate += kind.rate * _values(tree)[node_of]
        trees.append(tree)
    return _Grown(baseline, trees, estimate)


def _values(tree: _GrownTree) -> Floats:
    """What each node says: the mean of its rows."""
    total = tree.sums[1]
    return np.divide(tree.sums[0], total, out=np.zeros(len(total)), where=total > 0)


def _tree_of(inputs: GateInputs, grown: _GrownTree, rate: float) -> Tree:
    """A tree over extended rows."""
    binned = inputs.binned
    nodes = np.zeros(len(grown.gains), dtype=NODE_DTYPE)
    sets: list[NDArray[np.uint64]] = []
    nodes["value"], nodes["gain"] = rate * _values(grown), grown.gains
    nodes["hessian"], nodes["count"] = grown.sums[1], grown.sums[2]
    nodes["feature"] = nodes["left"] = nodes["category_set"] = nodes["bin"] = -1
    for node, (column, first) in enumerate(grown.links.tolist()):
        if first < 0:
            continue
        record, left = nodes[node], grown.left[node]
        nodes["depth"][first : first + 2] = record["depth"] + 1
        record["feature"], record["left"] = inputs.positions[column], first
        record["missing_left"] = left[-1]
        chosen = np.flatnonzero(left[:-1])
        if not binned.is_set[column]:
            edges, last = binned.edges[column], int(chosen[-1])
            record["bin"] = last
            record["threshold"] = edges[last] if last < len(edges) else np.inf
            continue
        words = np.zeros(CATEGORY_WORDS, dtype=np.uint64)
        for code in chosen.tolist():
            words[code // 64] |= np.uint64(1) << np.uint64(code % 64)
        record["category_set"] = len(sets)
        sets.append(words)
    return Tree(nodes, np.array(sets, dtype=np.uint64).reshape(-1, CATEGORY_WORDS))


@inner
def rank_bins(cells, is_set, ranked):  # type: ignore[no-untyped-def]
    """Order in which the bins of a column are divided: as they are, or sets by their means."""
    for b in range(ranked.size):
        ranked[b] = b
        if is_set:
            mean = cells[0, b] / max(cells[1, b], 1e-300)
            place = b
            while place > 0:
                before = ranked[place - 1]
                if cells[0, before] / max(cells[1, before], 1e-300) <= mean:
                    break
                ranked[place] = before
                place -= 1
            ranked[place] = b


@inner
def split_gain(left, sums, least):  # type: ignore[no-untyped-def]
    """By how much a division lowers the sum of squares; -1 where a side is too small."""
    right_product, right_weight = sums[0] - left[0], sums[1] - left[1]
    if left[2] < least or sums[2] - left[2] < least or left[1] <= 0.0 or right_weight <= 0.0:
        return -1.0
    both = left[0] * left[0] / left[1] + right_product * right_product / right_weight
    return both - sums[0] * sums[0] / sums[1]


@njit(cache=True, nogil=True)
def grow_tree(  # type: ignore[no-untyped-def]
    codes, is_set, seen, product, weight, learn, depth, least, node_of, sums, gains, links, left
):
    """Grow a tree level by level from the rows that ``learn``; the number of its nodes.

    All rows walk down, and ``node_of`` is where each of them ends. Of equal splits the first is
    taken: missing values to the right before the left, then by column, then by bin.
    """
    n_bins = left.shape[1]
    cells = np.empty((1 << (depth - 1), seen.size, 3, n_bins))
    ranked, so_far = np.empty(n_bins - 1, dtype=np.intp), np.empty(3)
    for i in range(node_of.size):
        node_of[i] = 0
        if learn[i]:
            sums[0, 0] += product[i]
            sums[1, 0] += weight[i]
            sums[2, 0] += 1.0
    first, n_nodes = 0, 1
    for _ in range(depth):
        end = n_nodes
        for node in range(end - first):
            for j in range(seen.size):
                for k in range(3):
                    for b in range(n_bins):
                        cells[node, j, k, b] = 0.0
        for j in range(seen.size):
            column = codes[seen[j]]
            for i in range(node_of.size):
                if learn[i] and node_of[i] >= first:
                    cell = cells[node_of[i] - first, j]
                    cell[0, column[i]] += product[i]
                    cell[1, column[i]] += weight[i]
                    cell[2, column[i]] += 1.0
        for node in range(first, end):
            total = sums[:, node]
            # What is gained by rounding is nothing.
            best = 1e-12 * max(total[1], 0.0)
            for way in range(2):
                for j in range(seen.size):
                    cell = cells[node - first, j]
                    if way == 1 and cell[2, n_bins - 1] == 0.0:
                        continue
                    rank_bins(cell, is_set[seen[j]], ranked)
                    for k in range(3):
                        so_far[k] = cell[k, n_bins - 1] if way == 1 else 0.0
                    for place in range(n_bins - 1):
                        for k in range(3):
                            so_far[k] += cell[k, ranked[place]]
                        gain = split_gain(so_far, total, least)
                        if gain > best:
                            best = gain
                            gains[node] = gain
                            links[node, 0], links[node, 1] = seen[j], place
                            # What was never missing goes with most of the others.
                            is_larger = 2.0 * so_far[2] >= total[2]
                            is_missing = cell[2, n_bins - 1] > 0.0
                            left[node, n_bins - 1] = way == 1 if is_missing else is_larger
            if links[node, 0] >= 0:
                j = 0
                while seen[j] != links[node, 0]:
                    j += 1
                rank_bins(cells[node - first, j], is_set[seen[j]], ranked)
                for place in range(links[node, 1] + 1):
                    left[node, ranked[place]] = True
                links[node, 1] = n_nodes
                n_nodes += 2
        if n_nodes == end:
            break
        for i in range(node_of.size):
            node = node_of[i]
            if node >= first and links[node, 0] >= 0:
                child = links[node, 1]
                if not left[node, codes[links[node, 0], i]]:
                    child += 1
                node_of[i] = child
                if learn[i]:
                    sums[0, child] += product[i]
                    sums[1, child] += weight[i]
                    sums[2, child] += 1.0
        first = end
    return n_nodes


# -- a band ---------------------------------------------------------------------------------------


def _band_limits(
    inputs: GateInputs, target: Floats, weight: Floats | None, learn: NDArray[np.bool_]
) -> Limits | None:
    """The band of scores whose rows gain most if they go on: the heaviest stretch of a sequence.

    None without a score.
    """
    if not len(inputs.said):
        return None
    scores = inputs.columns[learn, inputs.said[-1]]  # of several classes, the largest probability
    gains = (target if weight is None else target * weight)[learn]
    order = np.argsort(scores, kind="stable")
    # Between rows of equal scores a band cannot end.
    ends = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True)) + 1
    sums = np.append(0.0, np.cumsum(gains[order]))[np.append(0, ends)]
    lowest = np.minimum.accumulate(sums)[:-1]
    rises = sums[1:] - lowest
    last = int(np.argmax(rises))
    if not rises[last] > 0:
        return np.inf, np.inf
    if sums[-1] >= rises[last]:
        return -np.inf, np.inf
    first = int(np.argmin(sums[: last + 1]))
    distinct = scores[order][ends - 1]
    low = -np.inf if first == 0 else _between(distinct[first - 1], distinct[first])
    is_open = last == len(distinct) - 1
    return low, np.inf if is_open else _between(distinct[last], distinct[last + 1])


def band_gate(inputs: GateInputs, limits: Limits) -> Gate:
    """A gate that lets rows on whose score is in a band; without trees if that is all or none."""
    low, high = limits
    if np.isinf(low) and np.isinf(high):
        sign = 1.0 if low < high else -1.0
        return Gate(Ensemble.empty(np.array([sign]), inputs.n_columns), 0.0)
    return Gate(_band(inputs, inputs.positions[inputs.said[-1]], low, high), 0.0)


@dataclass(frozen=True, eq=False)
class ScoreCells:
    """Rows by fold and by what the model says of them: a band of scores is made of such cells."""

    # (n,): the cell of each row, numbered fold by fold and bin by bin.
    of_row: NDArray[np.intp]
    # (n_folds, n_bins): weight of the rows in each cell.
    weight: Floats
    # Between the bins.
    edges: Floats

    @classmethod
    def of(
        cls, inputs: GateInputs, weight: Floats | None, folds: NDArray[np.intp]
    ) -> ScoreCells | None:
        """None where the model says the same of all rows, or nothing."""
        scores = inputs.said
        if not len(scores) or not len(inputs.binned.edges[scores[-1]]):
            return None
        column = int(scores[-1])
        codes, edges = inputs.binned.codes[column].astype(np.intp), inputs.binned.edges[column]
        n_bins, (parts, fold) = len(edges) + 1, np.unique(folds, return_inverse=True)
        of_row = fold * n_bins + codes
        cells = np.bincount(of_row, weight, len(parts) * n_bins)
        return cls(of_row, cells.reshape(-1, n_bins).astype(np.float64), edges)

    def sums(self, values: Floats) -> Floats:
        """Sum of some values in each cell."""
        sums = np.bincount(self.of_row, values, self.weight.size)
        return np.asarray(sums, dtype=np.float64).reshape(self.weight.shape)

    def limits(self, first: int, last: int) -> Limits:
        """The band of these bins and all between them."""
        above = -np.inf if first == 0 else float(self.edges[first - 1])
        return above, np.inf if last == len(self.edges) else float(self.edges[last])


class Band(NamedTuple):
    """A band of scores, and which cells of rows go on by it."""

    limits: Limits
    # (n_folds, n_bins)
    inside: NDArray[np.bool_]


def bands_of_shares(cells: ScoreCells, gains: Floats, shares: Sequence[float]) -> list[Band]:
    """For some shares of the rows, given ascending, the band of that width whose rows gain most.

    A band has at most its share of the rows, and more than the share before. Each comes with the
    cells that go on by bands of the same width that were made without their fold. ``gains`` are
    sums over cells.
    """
    n_folds, n = cells.weight.shape
    # Rows and gains of every stretch of bins from ``first`` up to ``last``, in each fold.
    first, last = np.triu_indices(n)
    up_to = np.zeros((2, n_folds, n + 1))
    np.cumsum([cells.weight, gains], axis=2, out=up_to[:, :, 1:])
    in_folds, gained_in_folds = up_to[:, :, last + 1] - up_to[:, :, first]
    rows, gained = in_folds.sum(axis=0), gained_in_folds.sum(axis=0)
    share = rows / rows.max()  # the longest stretch is the whole
    bands: dict[tuple[int, int], Band] = {}
    for low, high in itertools.pairwise((0.0, *shares)):
        fits = np.flatnonzero((share > low) & (share <= high + 1e-9) & (gained > 0))
        if not len(fits):
            continue
        best = fits[np.argmax(gained[fits])]
        start, end = int(first[best]), int(last[best])
        as_wide = np.flatnonzero(last - first == end - start)
        of_others = gained[as_wide] - gained_in_folds[:, as_wide]
        honest = as_wide[np.argmax(of_others, axis=1)]
        bins = np.arange(n)
        inside = (bins >= first[honest, None]) & (bins <= last[honest, None])
        bands[start, end] = Band(cells.limits(start, end), inside)
    return list(bands.values())


def bands_between(cells: ScoreCells, n_parts: int) -> list[Band]:
    """All bands between scores that divide the rows into about equal parts."""
    n_folds, n = cells.weight.shape
    rows = np.bincount(cells.of_row % n, minlength=n)
    below = np.cumsum(rows) / len(cells.of_row)
    cuts = np.unique(np.searchsorted(below, np.arange(1, n_parts) / n_parts)) + 1
    ends = (0, *cuts[cuts < n].tolist(), n)
    bins = np.arange(n)
    return [
        Band(
            cells.limits(start, stop - 1),
            np.tile((bins >= start) & (bins < stop), (n_folds, 1)),
        )
        for start, stop in itertools.combinations(ends, 2)
        if stop - start < n
    ]


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
