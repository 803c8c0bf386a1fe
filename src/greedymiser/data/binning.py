"""Columns of numbers become columns of small integers.

A feature has at most 255 bins of values and, if it was ever missing, one more bin for that. Where
a column has few distinct values each has a bin of its own, so nothing is lost; elsewhere the bins
hold about the same weight, and a value that is heavier than that keeps a bin to itself.

Where there are more than 200,000 rows, cuts are learned from 200,000 of them (``sample_rows``), as
in scikit-learn and LightGBM. They are drawn by their number in the table, with a fixed rule: every
engine takes the same rows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.arithmetic import mix
from greedymiser._core.compiling import njit
from greedymiser._core.sorting import sort_floats
from greedymiser._core.threads import Threads
from greedymiser.data.tables import Rows, Table

# Eight features of a row share one 64-bit word: one load serves eight histograms, which together
# (8 x 256 words of 64 bits) fit into the first-level cache.
LANES = 8
MAX_BINS = 255

# Cuts are learned from so many rows at most.
MOST_ROWS = 200_000
# With fewer rows than this, a kernel that sorts faster saves less than its compilation takes.
MANY_ROWS = 50_000


@dataclass(frozen=True)
class BinnedMatrix:
    """The training data as an engine sees it."""

    # (n_blocks, n_rows) uint64: byte k of word (b, i) is the bin of row i in lane 8 b + k.
    codes: NDArray[np.uint64]
    # Feature of each lane, -1 for the padding of the last block. Features are laid out in an order
    # that the caller chooses, so that those that are skipped together lie together.
    lane_feature: NDArray[np.int32]
    # Lane of each feature, -1 for those that are left out.
    feature_lane: NDArray[np.int32]
    # Per feature: number of bins of values; code n_bins[f] means missing.
    n_bins: NDArray[np.int32]
    has_missing: NDArray[np.bool_]
    is_categorical: NDArray[np.bool_]

    @property
    def n_rows(self) -> int:
        return self.codes.shape[1]

    @property
    def n_features(self) -> int:
        return len(self.n_bins)

    def only(self, features: NDArray[np.bool_]) -> BinnedMatrix:
        """The same rows without the codes of other features: fewer blocks, where few are left."""
        order = self.lane_feature[self.lane_feature >= 0]
        layout = _Layout(self.n_features, order[features[order]].tolist())
        codes = np.zeros((layout.n_blocks, self.n_rows), dtype=np.uint64)
        for block in range(layout.n_blocks):
            lanes = _lanes_of(codes[block])
            for lane, feature in enumerate(layout.features(block)):
                before = int(self.feature_lane[feature])
                lanes[:, lane] = _lanes_of(self.codes[before // LANES])[:, before % LANES]
        return replace(
            self, codes=codes, lane_feature=layout.lane_feature, feature_lane=layout.feature_lane
        )


def _lanes_of(block: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """The codes of a block, one column per lane."""
    return block.view(np.uint8).reshape(len(block), LANES)


class Summary(NamedTuple):
    """All that the cuts of a column depend on."""

    # Distinct values, ascending, and the weight of each, on an integer grid.
    distinct: NDArray[np.float64]
    mass: NDArray[np.int64]


class Thresholds(NamedTuple):
    """Values behind the bins of all features, for kernels."""

    # Bin b of feature f ends at values[starts[f] + b]; the last one never ends.
    values: NDArray[np.float64]
    starts: NDArray[np.int64]


@dataclass(frozen=True)
class Cuts:
    """Where the columns of a table are cut."""

    # Per feature, ascending: a value is in the bin whose number is that of the edges below it.
    edges: list[NDArray[np.float64]]
    has_missing: NDArray[np.bool_]
    is_categorical: NDArray[np.bool_]

    def threshold(self, feature: int, bin: int) -> float:
        """Value that separates a bin from the next; +inf behind the last."""
        edges = self.edges[feature]
        return float(edges[bin]) if bin < len(edges) else float("inf")

    @cached_property
    def thresholds(self) -> Thresholds:
        sizes = [len(edges) + 1 for edges in self.edges]
        values = np.concatenate([np.append(edges, np.inf) for edges in self.edges])
        return Thresholds(values, np.append(0, np.cumsum(sizes)).astype(np.int64))

    @property
    def n_bins(self) -> NDArray[np.int32]:
        return np.array([len(edges) + 1 for edges in self.edges], dtype=np.int32)


class PartedTable(ABC):
    """A table whose rows lie in parts, elsewhere: they are binned where they are."""

    n_rows: int
    n_columns: int

    @abstractmethod
    def sample(self, rows: Rows, sampled: Rows) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Some rows, brought here; and which columns have missing values in any chosen row.

        ``sampled`` are some of the chosen ``rows``, ascending; None for all rows of the table. The
        array has the shape (columns, rows).
        """

    @abstractmethod
    def bin(self, mapper: BinMapper, rows: Rows) -> BinnedMatrix:
        """The chosen rows, binned; they stay where they are."""

    @abstractmethod
    def of_parts(self, function: Callable[[Table], Any]) -> list[Any]:
        """What a function says of each part that has rows; it is called where the part is."""


class BinMapper:
    """Learns where to cut each column, and cuts.

    Parameters
    ----------
    max_bins : int
        Most bins of values per feature, up to 255. Missing values have one more.
    categorical : sequence of int, or mapping from column to number of categories
        Columns whose values are codes 0, 1, ... of categories. Without their number, there are as
        many as the rows that cuts are learned from show.
    order : sequence of int, optional
        Order in which the features are laid out in memory.
    """

    cuts: Cuts

    def __init__(
        self,
        max_bins: int = MAX_BINS,
        categorical: Sequence[int] | Mapping[int, int] = (),
        order: Sequence[int] | None = None,
    ):
        self.max_bins = max_bins
        if not isinstance(categorical, Mapping):
            categorical = dict.fromkeys(categorical, 0)
        self.categorical = dict(categorical)
        self.order = order

    def fit_transform(
        self, table: Table, rows: Rows, weight: NDArray[np.float64] | None, threads: Threads
    ) -> BinnedMatrix:
        """Learn the cuts from the chosen rows of a table, and bin those rows."""
        d = table.n_columns
        is_categorical = np.zeros(d, dtype=bool)
        is_categorical[list(self.categorical)] = True
        self.cuts = Cuts([np.empty(0)] * d, np.zeros(d, dtype=bool), is_categorical)
        sampled = sample_rows(table.n_rows, rows)
        if weight is not None and sampled is not None:
            weight = weight[sampled]
        shares = None if weight is None else integer_weights(weight)
        if isinstance(table, PartedTable):
            self._learn_from_parts(table, rows, sampled, shares, threads)
            return table.bin(self, rows)

        def learn(feature: int, values: NDArray[np.float64]) -> None:
            # Of all rows: what is missing in one of them needs a bin.
            self.cuts.has_missing[feature] = np.isnan(values).any()
            summary = summarise(values if sampled is None else values[sampled], shares)
            self.cuts.edges[feature] = self.place(feature, summary)

        return pack(table, rows, self.cuts, self.order, threads, learn)

    def _learn_from_parts(
        self,
        table: PartedTable,
        rows: Rows,
        sampled: NDArray[np.intp] | None,
        shares: NDArray[np.int64] | None,
        threads: Threads,
    ) -> None:
        wanted = rows
        if sampled is not None:
            wanted = sampled if rows is None else rows[sampled]
        if wanted is not None:  # parts are read from the first row to the last
            order = np.argsort(wanted, kind="stable")
            wanted, shares = wanted[order], None if shares is None else shares[order]
        values, has_missing = table.sample(rows, wanted)
        self.cuts.has_missing[:] = has_missing

        def learn(feature: int) -> None:
            self.cuts.edges[feature] = self.place(feature, summarise(values[feature], shares))

        threads.run(learn, [(feature,) for feature in range(len(values))])

    def transform(self, table: Table, rows: Rows, threads: Threads) -> BinnedMatrix:
        """Bin the chosen rows of another table with the cuts that were learned.

        A value that is missing where none was missing before gets the missing code all the same.
        """
        if isinstance(table, PartedTable):
            return table.bin(self, rows)
        return pack(table, rows, self.cuts, self.order, threads)

    def without_rows(self) -> BinnedMatrix:
        """What is common to all rows that are binned with these cuts."""
        layout = _Layout(len(self.cuts.edges), self.order)
        return layout.matrix(np.empty((layout.n_blocks, 0), dtype=np.uint64), self.cuts)

    def place(self, feature: int, summary: Summary) -> NDArray[np.float64]:
        """Choose the edges of a feature."""
        distinct, mass = summary
        if feature in self.categorical:  # codes already: one bin each
            seen = int(distinct[-1]) + 1 if len(distinct) else 1
            return np.arange((self.categorical[feature] or seen) - 1, dtype=np.float64) + 0.5
        if len(distinct) == 0:
            return np.empty(0)
        lower, upper = np.empty(self.max_bins - 1), np.empty(self.max_bins - 1)
        n_edges = place_edges(distinct, mass, self.max_bins, lower, upper)
        return midpoints(lower[:n_edges], upper[:n_edges])


def pack(
    table: Table,
    rows: Rows,
    cuts: Cuts,
    order: Sequence[int] | None,
    threads: Threads,
    learn: Callable[[int, NDArray[np.float64]], None] | None = None,
) -> BinnedMatrix:
    """Bin the chosen rows of a table: with cuts that were learned elsewhere, or are learned here.

    The table is read a block of columns at a time. ``order`` is that of the features in memory,
    which all parts of some data share. ``learn`` may set the cuts of a feature, given its values.
    """
    layout = _Layout(table.n_columns, order)
    n = table.n_rows if rows is None else len(rows)
    codes = np.zeros((layout.n_blocks, n), dtype=np.uint64)

    def read(block: int) -> NDArray[np.float64]:
        return table.columns(layout.features(block), rows)

    def write(block: int, lane: int, values: NDArray[np.float64]) -> None:
        feature = layout.features(block)[lane]
        if learn is not None:
            learn(feature, values)
        edges = np.full(MAX_BINS, np.inf)
        edges[: len(cuts.edges[feature])] = cuts.edges[feature]
        lanes = _lanes_of(codes[block])
        write_bins(values, edges, len(cuts.edges[feature]) + 1, lanes[:, lane])

    def bin_block(block: int) -> None:
        for lane, values in enumerate(read(block)):
            write(block, lane, values)

    blocks = [(block,) for block in range(layout.n_blocks)]
    if layout.n_blocks >= threads.n_threads:
        threads.run(bin_block, blocks)
    else:  # too few blocks for all threads: share out the columns
        parts = zip(range(layout.n_blocks), threads.run(read, blocks), strict=True)
        threads.run(write, [(b, k, part[k]) for b, part in parts for k in range(len(part))])
    return layout.matrix(codes, cuts)


class _Layout:
    """Which feature is in which lane of which block; what ``order`` leaves out is in none."""

    def __init__(self, n_features: int, order: Sequence[int] | None):
        features = np.arange(n_features) if order is None else np.asarray(order, dtype=np.intp)
        self.n_blocks = max(1, -(-len(features) // LANES))
        self.lane_feature = np.full(self.n_blocks * LANES, -1, dtype=np.int32)
        self.lane_feature[: len(features)] = features
        self.feature_lane = np.full(n_features, -1, dtype=np.int32)
        self.feature_lane[features] = np.arange(len(features), dtype=np.int32)

    def features(self, block: int) -> list[int]:
        mine = self.lane_feature[block * LANES : (block + 1) * LANES]
        return mine[mine >= 0].tolist()

    def matrix(self, codes: NDArray[np.uint64], cuts: Cuts) -> BinnedMatrix:
        return BinnedMatrix(
            codes=codes,
            lane_feature=self.lane_feature,
            feature_lane=self.feature_lane,
            n_bins=cuts.n_bins,
            has_missing=cuts.has_missing.copy(),
            is_categorical=cuts.is_categorical,
        )


def sample_rows(n_rows: int, rows: Rows) -> NDArray[np.intp] | None:
    """Which of the chosen rows cuts are learned from, by their place among them; None for all.

    Those whose numbers in the table have the least hashes: the same rows in any order, wherever
    they lie.
    """
    numbers = np.arange(n_rows) if rows is None else rows
    if len(numbers) <= MOST_ROWS:
        return None
    hashes = mix(numbers.astype(np.uint64))
    drawn: NDArray[np.intp] = np.argpartition(hashes, MOST_ROWS - 1)[:MOST_ROWS]
    return np.sort(drawn)


def summarise(values: NDArray[np.float64], shares: NDArray[np.int64] | None) -> Summary:
    """Distinct values of a column and their weights; without ``shares`` every row weighs 1."""
    present = ~np.isnan(values)
    known = values[present]
    if shares is None:
        ordered, weights = known, np.empty(0, dtype=np.int64)
        sort_floats(ordered, MANY_ROWS)
    else:
        by_value = np.argsort(known, kind="stable")
        ordered, weights = known[by_value], shares[present][by_value]
    distinct, mass = np.empty(len(ordered)), np.empty(len(ordered), dtype=np.int64)
    m = merge_equal(ordered, weights, distinct, mass)
    return Summary(distinct[:m], mass[:m])


def integer_weights(weight: NDArray[np.float64]) -> NDArray[np.int64]:
    """Weights on an integer grid, so that their sums do not depend on the order of rows."""
    bits = min(30, 54 - len(weight).bit_length())
    # A power of two as step keeps ratios: a weight of 3 is three rows of weight 1.
    scale = bits - math.frexp(float(weight.max()))[1]
    return np.maximum(1, np.rint(np.ldexp(weight, scale))).astype(np.int64)


def midpoints(lower: NDArray[np.float64], upper: NDArray[np.float64]) -> NDArray[np.float64]:
    """A finite threshold t with lower <= t < upper for each pair, half-way where that exists."""
    with np.errstate(invalid="ignore", over="ignore"):
        middle = lower + (upper - lower) / 2
    usable = np.isfinite(middle) & (middle < upper)
    return np.maximum(np.where(usable, middle, lower), np.finfo(np.float64).min)


@njit
def merge_equal(ordered, shares, distinct, mass):  # type: ignore[no-untyped-def]
    """Write the distinct values of a sorted array and their weights; return how many there are.

    Without ``shares`` (length 0) every entry weighs 1.
    """
    m = 0
    for i in range(ordered.size):
        share = shares[i] if shares.size else 1
        if m > 0 and distinct[m - 1] == ordered[i]:
            mass[m - 1] += share
        else:
            distinct[m] = ordered[i] + 0.0  # -0.0 is 0.0, whichever comes first
            mass[m] = share
            m += 1
    return m


@njit
def place_edges(distinct, mass, max_bins, lower, upper):  # type: ignore[no-untyped-def]
    """Choose at most ``max_bins - 1`` cuts; write the values on either side; return the number.

    A value that outweighs a fair bin gets its own; the rest shares the bins that are left, evenly.
    """
    m = distinct.size
    if m <= max_bins:
        for i in range(m - 1):
            lower[i] = distinct[i]
            upper[i] = distinct[i + 1]
        return max(0, m - 1)

    # Taking the heavy values out lowers the fair share of the others, which may make more of
    # them heavy: repeat until nothing changes.
    heavy = np.empty(m, dtype=np.bool_)
    weight, bins = 0, max_bins
    for i in range(m):
        heavy[i] = False
        weight += mass[i]
    changed = True
    while changed and bins > 1:
        changed = False
        left_weight, left_bins = weight, bins
        for i in range(m):
            if not heavy[i] and mass[i] * bins >= weight and left_bins > 1:
                heavy[i] = True
                left_weight -= mass[i]
                left_bins -= 1
                changed = True
        weight, bins = left_weight, left_bins

    last_light = m - 1
    while heavy[last_light]:
        last_light -= 1
    n_edges = 0
    filled = 0  # weight in the bin of light values that is being filled
    for i in range(m - 1):
        close = heavy[i]
        if not heavy[i]:
            filled += mass[i]
            # The last bin of light values is kept for the last of them.
            is_full = filled * bins >= weight or heavy[i + 1]
            close = (bins > 1 and is_full) or i == last_light
        if close:
            if filled > 0 and not heavy[i]:
                weight -= filled
                bins -= 1
            filled = 0
            lower[n_edges] = distinct[i]
            upper[n_edges] = distinct[i + 1]
            n_edges += 1
    return n_edges


@njit
def write_bins(values, edges, missing, out):  # type: ignore[no-untyped-def]
    """Bin of a value: the number of edges below it; ``missing`` for NaN.

    A binary search over exactly 255 edges (padded with +inf) whose steps are sums, not branches:
    which way it goes cannot be predicted.
    """
    one = np.uint64(1)
    for i in range(np.uint64(values.size)):
        x = values[i]
        p = np.uint64(edges[np.uint64(127)] < x) << np.uint64(7)
        p += np.uint64(edges[p + np.uint64(63)] < x) << np.uint64(6)
        p += np.uint64(edges[p + np.uint64(31)] < x) << np.uint64(5)
        p += np.uint64(edges[p + np.uint64(15)] < x) << np.uint64(4)
        p += np.uint64(edges[p + np.uint64(7)] < x) << np.uint64(3)
        p += np.uint64(edges[p + np.uint64(3)] < x) << np.uint64(2)
        p += np.uint64(edges[p + one] < x) << one
        p += np.uint64(edges[p] < x)
        out[i] = missing if x != x else p
