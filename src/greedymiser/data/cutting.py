"""The cuts of all rows, where the rows lie in parts: those of ``BinMapper``, to the last bit.

No place has to hold all values of a column. A column with few distinct values is known after one
question. Of others, parts first send samples at equal steps of weight. The samples are
boundaries: at each of them and between each two, weights are then added up exactly. Now it is
known between which boundaries a bin ends, though not where; only there the same is done again,
until the values that are left are few enough to be sent. Choosing the edges (``place_edges``) is
simulated with what is known, and says by itself where it has to know more.

Every question is one pass over the data. Two passes with S samples leave about B / S of the values
in question, for B bins, until they are few enough. 3 million normal values in 100 parts take 3
passes where up to 100 columns share 64 MB, and 7 where 500 do; weights may take two more, as they
make it harder to guess where the next bins end.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Generator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.compiling import njit
from greedymiser._core.inquiries import Inquiry
from greedymiser._core.threads import Threads
from greedymiser.data.binning import BinMapper, Cuts, Summary, integer_weights, midpoints, summarise
from greedymiser.data.tables import Rows, Table

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Columns that are read at a time.
_BLOCK = 8
# What an answer says of a boundary: five numbers of the value itself, five of what is behind it.
_BYTES = 80


class Limits(NamedTuple):
    """How much of a column travels."""

    # So many distinct values are sent as they are, at least the number of bins; and so many
    # samples are kept of more.
    few: int
    # Samples that a part sends.
    samples: int
    # Boundaries that are chosen among the samples of all parts.
    boundaries: int

    @classmethod
    def of(cls, n_columns: int) -> Limits:
        """Answers about all columns together take 64 MB, unless there are more than 400."""
        boundaries = min(max(2048, 2**26 // (_BYTES * n_columns)), 32768)
        return cls(4 * boundaries, boundaries, boundaries)


class ColumnPart(NamedTuple):
    """A part of a table, and what is needed to read it."""

    table: Table
    rows: Rows
    # None if no row of any part has a weight.
    weight: Floats | None
    threads: Threads


class Regions(NamedTuple):
    """Values in question: disjoint closed intervals, ascending."""

    lows: Floats
    highs: Floats

    @property
    def is_everything(self) -> bool:
        return bool(self.lows[0] == -np.inf and self.highs[0] == np.inf)

    def choose(self, values: Floats, shares: Integers | None) -> tuple[Floats, Integers | None]:
        """The values that are in question, and their weights."""
        chosen = np.empty(len(values), dtype=np.bool_)
        mark_inside(values, self.lows, self.highs, chosen)
        return values[chosen], None if shares is None else shares[chosen]


EVERYTHING = Regions(np.array([-np.inf]), np.array([np.inf]))


class Sketch(NamedTuple):
    """Some values of a column, ascending, and the weight that each stands for."""

    values: Floats
    mass: Integers
    # Whether these are all the distinct values.
    is_complete: bool
    has_missing: bool
    # Rows with a value that were looked at; distinct values of all parts, one after the other;
    # those of the part that has most.
    n_rows: int
    n_entries: int
    most_entries: int

    @property
    def repeats(self) -> float:
        """About how many parts have the same value: the distinct ones of all of them are fewer.

        If a value is in a part with Poisson's probability for a mean of m rows, those that are
        there have m / (1 - e^-m) rows on average.
        """
        rows_per_entry = self.n_rows / max(self.n_entries, 1)
        low, high = 1e-9, max(rows_per_entry, 1e-9)
        for _ in range(50):
            middle = (low + high) / 2.0
            is_low = middle < rows_per_entry * -math.expm1(-middle)
            low, high = (middle, high) if is_low else (low, middle)
        return max(1.0, self.n_entries * -math.expm1(-low) / max(self.most_entries, 1))


class ColumnPieces(NamedTuple):
    """A column from its lowest value to its highest: single values, and what lies between."""

    # Lowest and highest value; equal for a single one.
    low: Floats
    high: Floats
    mass: Integers
    # No value in it weighs more.
    most: Integers
    # As many values or more are in it: distinct ones of different parts may be equal.
    entries: Integers

    @property
    def is_single(self) -> NDArray[np.bool_]:
        return self.low == self.high


# -- questions about one column -------------------------------------------------------------------


@dataclass(frozen=True)
class SketchColumn:
    """Asks for samples of the values in some regions, or for all of them where they are few."""

    regions: Regions
    limits: Limits

    def answer(self, found: Summary, n_rows: int) -> Sketch:
        distinct, mass, has_missing = found
        few = len(distinct) <= self.limits.few
        sketch = Sketch(distinct, mass, few, has_missing, n_rows, len(distinct), len(distinct))
        return sketch if few else _thinned(sketch, self.limits.samples)

    def merge(self, one: Sketch, other: Sketch) -> Sketch:
        values, inverse = np.unique(np.concatenate([one.values, other.values]), return_inverse=True)
        mass = np.zeros(len(values), dtype=np.int64)
        np.add.at(mass, inverse, np.concatenate([one.mass, other.mass]))
        few = one.is_complete and other.is_complete and len(values) <= self.limits.few
        merged = Sketch(
            values,
            mass,
            few,
            one.has_missing or other.has_missing,
            one.n_rows + other.n_rows,
            one.n_entries + other.n_entries,
            max(one.most_entries, other.most_entries),
        )
        # Less often is faster, and keeps more.
        is_long = len(values) > 2 * self.limits.few
        return merged if few or not is_long else _thinned(merged, self.limits.few)


def _thinned(sketch: Sketch, n: int) -> Sketch:
    """At most ``n`` of the values, at equal steps of weight: heavy ones are among them.

    A value stands for as much weight below it as above, so that merging is right on average.
    """
    sums = np.cumsum(sketch.mass)
    step = float(sums[-1]) / n
    at = np.searchsorted(sums, (np.arange(n) + 0.5) * step).clip(max=len(sums) - 1)
    kept, times = np.unique(at, return_counts=True)
    mass = np.diff(np.rint(np.cumsum(times) * step).astype(np.int64), prepend=0)
    return sketch._replace(values=sketch.values[kept], mass=mass, is_complete=False)


@dataclass(frozen=True)
class MeasureColumn:
    """Asks for the weight at boundaries, and between them.

    A region with the boundaries b and c has the pieces (low, b), [b, b], (b, c), [c, c], (c, high).
    """

    regions: Regions
    # Ascending; each lies in one of the regions.
    boundaries: Floats

    def _ends(self) -> tuple[Floats, NDArray[np.bool_], Integers]:
        """Values where pieces begin or end; before them or behind; with which a piece begins."""
        lows, highs = self.regions
        n, k = len(lows), len(self.boundaries)
        regions, of_region = np.arange(n), np.searchsorted(highs, self.boundaries)
        number = np.concatenate([regions, of_region, of_region, regions])
        ends = np.concatenate([lows, self.boundaries, self.boundaries, highs])
        # At the same value: the beginning of a region, before, behind, its end.
        turn = np.repeat([0, 1, 2, 3], [n, k, k, n])
        order = np.lexsort((turn, ends, number))
        turn, number = turn[order], number[order]
        return ends[order], turn >= 2, np.flatnonzero(number[:-1] == number[1:])

    def answer(self, found: Summary, n_rows: int) -> ColumnPieces:
        distinct, mass, _ = found
        ends, is_behind, starts = self._ends()
        before = np.searchsorted(distinct, ends, side="left")
        behind = np.searchsorted(distinct, ends, side="right")
        places = np.where(is_behind, behind, before)
        first, last = places[starts], places[starts + 1]
        is_empty = first == last
        sums = np.append(0, np.cumsum(mass))
        padded = np.append(mass, 0)
        most = np.maximum.reduceat(padded, np.column_stack([first, last]).ravel())[::2]
        values = np.append(distinct, np.nan)
        return ColumnPieces(
            np.where(is_empty, np.inf, values[first]),
            np.where(is_empty, -np.inf, values[last - 1]),
            sums[last] - sums[first],
            np.where(is_empty, 0, most),
            last - first,
        )

    def merge(self, one: ColumnPieces, other: ColumnPieces) -> ColumnPieces:
        return ColumnPieces(
            np.minimum(one.low, other.low),
            np.maximum(one.high, other.high),
            one.mass + other.mass,
            one.most + other.most,
            one.entries + other.entries,
        )


ColumnQuestion = SketchColumn | MeasureColumn


# -- questions about a table ----------------------------------------------------------------------


@dataclass(frozen=True)
class TableQuestion:
    """Asks something about each of some columns. A part is a ``ColumnPart``."""

    asked: dict[int, ColumnQuestion]
    # The grid of weights; None without weights.
    scale: int | None

    def answer(self, part: ColumnPart) -> dict[int, Sketch | ColumnPieces]:
        shares = None
        if self.scale is not None and part.weight is not None:
            shares = integer_weights(part.weight, self.scale)

        def look(features: list[int]) -> list[Sketch | ColumnPieces]:
            columns = part.table.columns(features, part.rows)
            pairs = zip(features, columns, strict=True)
            return [self._of_column(self.asked[f], values, shares) for f, values in pairs]

        features = list(self.asked)
        blocks = [features[i : i + _BLOCK] for i in range(0, len(features), _BLOCK)]
        found = part.threads.run(look, [(block,) for block in blocks])
        return dict(zip(features, (answer for block in found for answer in block), strict=True))

    @staticmethod
    def _of_column(
        question: ColumnQuestion, values: Floats, shares: Integers | None
    ) -> Sketch | ColumnPieces:
        if not question.regions.is_everything:
            values, shares = question.regions.choose(values, shares)
        n_known = len(values) - int(np.count_nonzero(np.isnan(values)))
        return question.answer(summarise(values, shares), n_known)

    def merge(
        self, one: dict[int, Sketch | ColumnPieces], other: dict[int, Sketch | ColumnPieces]
    ) -> dict[int, Sketch | ColumnPieces]:
        return {f: self.asked[f].merge(one[f], other[f]) for f in self.asked}  # type: ignore[arg-type]


def ask_cuts(
    mapper: BinMapper, n_columns: int, scale: int | None = None, limits: Limits | None = None
) -> Inquiry[Cuts]:
    """The cuts that ``mapper.fit_transform`` would find in all rows together.

    A part is a ``ColumnPart``. ``scale`` is the ``weight_scale`` of all rows (whose number and
    largest weight ``inquiries.sums.ask_extent`` finds), None if they have no weights. The cuts
    are also set in the mapper, which can then ``transform`` any part.
    """
    limits = Limits.of(max(n_columns, 1)) if limits is None else limits
    if limits.few < mapper.max_bins:
        raise ValueError(f"few must be at least max_bins={mapper.max_bins}, got {limits.few}")
    is_categorical = np.zeros(n_columns, dtype=bool)
    is_categorical[list(mapper.categorical)] = True
    cuts = Cuts([np.empty(0)] * n_columns, np.zeros(n_columns, dtype=bool), is_categorical)
    inquiries = {f: _ask_column(mapper, f, limits) for f in range(n_columns)}
    asked = {f: next(inquiry) for f, inquiry in inquiries.items()}
    while asked:
        answers = yield TableQuestion(asked, scale)
        asked = {}
        for f, answer in answers.items():
            try:
                asked[f] = inquiries[f].send(answer)
            except StopIteration as end:
                cuts.edges[f], cuts.has_missing[f] = end.value
    mapper.cuts = cuts
    return cuts


def _ask_column(
    mapper: BinMapper, feature: int, limits: Limits
) -> Generator[ColumnQuestion, Sketch | ColumnPieces, tuple[Floats, bool]]:
    """The edges of one column, and whether values are missing."""
    sketch = yield SketchColumn(EVERYTHING, limits)
    assert isinstance(sketch, Sketch)
    has_missing = sketch.has_missing
    if sketch.is_complete or feature in mapper.categorical:
        summary = Summary(sketch.values, sketch.mass, has_missing)
        return mapper.place(feature, summary), has_missing
    repeats = sketch.repeats
    regions, pieces = EVERYTHING, ColumnPieces(*(np.empty(0, dtype) for dtype in "ddqqq"))
    while True:
        if sketch.is_complete:
            one = np.ones_like(sketch.mass)
            found = ColumnPieces(sketch.values, sketch.values, sketch.mass, sketch.mass, one)
        else:
            chosen = likely_boundaries(pieces, regions, sketch, mapper.max_bins, repeats, limits)
            measured = yield MeasureColumn(regions, chosen)
            assert isinstance(measured, ColumnPieces)
            found = measured
        pieces = _with_found(pieces, regions, found)
        lower, upper, asked = simulate_edges(pieces, mapper.max_bins, repeats, limits.few)
        if len(asked) == 0:
            return midpoints(lower, upper), has_missing
        regions = Regions(pieces.low[asked], pieces.high[asked])
        answer = yield SketchColumn(regions, limits)
        assert isinstance(answer, Sketch)
        sketch = answer


def _with_found(pieces: ColumnPieces, regions: Regions, found: ColumnPieces) -> ColumnPieces:
    """What was found in regions takes the place of what was known of them."""
    outside = ~np.isin(pieces.low, regions.lows)
    filled = found.mass > 0
    both = (np.concatenate([a[outside], b[filled]]) for a, b in zip(pieces, found, strict=True))
    low, *rest = both
    order = np.argsort(low, kind="stable")
    spliced = ColumnPieces(low[order], *(field[order] for field in rest))
    # A single value may lie in several parts.
    most = np.where(spliced.is_single, spliced.mass, np.minimum(spliced.mass, spliced.most))
    return spliced._replace(most=most)


def likely_boundaries(
    pieces: ColumnPieces,
    regions: Regions,
    sketch: Sketch,
    max_bins: int,
    repeats: float,
    limits: Limits,
) -> Floats:
    """Samples on either side of the places where, by all samples, bins seem to end."""
    values, mass = sketch.values, sketch.mass
    if len(values) <= limits.boundaries:
        return values
    # A sample stands for what lies between the one before and itself; a heavy one for itself.
    heavy = mass > 1.5 * np.median(mass)
    low = np.append(regions.lows[0], values[:-1])
    low = np.maximum(low, regions.lows[np.searchsorted(regions.highs, values)])
    entries = np.full(len(mass), max(1, sketch.n_entries // len(mass)))
    guess = ColumnPieces(
        np.where(heavy, values, low), values, mass, np.where(heavy, mass, 0), entries
    )
    guess = _with_found(pieces, regions, guess)
    is_heavy, bins, _ = _heavy_values(guess._replace(most=guess.most * guess.is_single), max_bins)
    walk = _BinFiller(guess, is_heavy, bins, repeats, 3.0)
    ends = guess.high[sorted({*walk.edges, *walk.asked})]
    at = np.searchsorted(values, ends)
    # One half of the boundaries goes there; the other half is everywhere, where guesses are wrong.
    around = max(1, limits.boundaries // (4 * len(at) + 1))
    steps = np.zeros(len(values) + 1, dtype=np.int64)
    np.add.at(steps, np.maximum(at - around, 0), 1)
    np.add.at(steps, np.minimum(at + around, len(values)), -1)
    chosen = (np.cumsum(steps[:-1]) > 0) | heavy
    chosen[:: -(-2 * len(values) // limits.boundaries)] = True
    return values[chosen]


# -- choosing edges -------------------------------------------------------------------------------


def simulate_edges(
    pieces: ColumnPieces, max_bins: int, repeats: float = 1.0, few: int = 0
) -> tuple[Floats, Floats, Integers]:
    """Do as ``place_edges`` does, without looking into pieces; there are more values than bins.

    Returns the values on either side of each edge, and the pieces which have to be looked into;
    edges are complete if there are none of those. It guesses better which those are if it
    is known how many parts have the same values. If no more than ``few`` have to be looked at,
    their neighbours may as well be.
    """
    heavy, bins, suspects = _heavy_values(pieces, max_bins)
    if len(suspects):
        return np.empty(0), np.empty(0), suspects
    walk = _BinFiller(pieces, heavy, bins, repeats, 3.0)
    for deviations in (6.0, 12.0, 24.0, 48.0):
        wider = _BinFiller(pieces, heavy, bins, repeats, deviations)
        if not walk.asked or pieces.entries[list(wider.asked)].sum() > repeats * few:
            break
        walk = wider
    edges = np.array(walk.edges, dtype=np.int64)
    return pieces.high[edges], pieces.low[edges + 1], np.array(sorted(walk.asked), dtype=np.int64)


def _heavy_values(pieces: ColumnPieces, max_bins: int) -> tuple[NDArray[np.bool_], int, Integers]:
    """Which values have a bin of their own, how many bins that leaves, and what may hide more."""
    is_single = pieces.is_single
    heavy = np.zeros(len(is_single), dtype=bool)
    weight, bins = int(pieces.mass.sum()), max_bins
    while bins > 1:
        suspects = np.flatnonzero(~is_single & (pieces.most * bins >= weight))
        if len(suspects):
            return heavy, bins, suspects
        fair = is_single & ~heavy & (pieces.mass * bins >= weight)
        new = np.flatnonzero(fair)[: bins - 1]
        if len(new) == 0:
            break
        heavy[new] = True
        weight -= int(pieces.mass[new].sum())
        bins -= len(new)
    return heavy, bins, np.empty(0, dtype=np.int64)


class _BinFiller:
    """Fills bins with light values, from the lowest up.

    Sums of weights count light values only. With b bins left for the weight W, a bin that begins
    behind the sum c is full at the first sum s with

        (s - c) b >= W - c,   that is   b s >= W + (b - 1) c.

    Where that is inside a piece, the piece has to be asked. What follows is guesswork then, but
    good guesswork, so that most other pieces with an end of a bin can be asked at the same time.
    """

    def __init__(
        self,
        pieces: ColumnPieces,
        heavy: NDArray[np.bool_],
        bins: int,
        repeats: float,
        deviations: float,
    ):
        self.pieces, self.bins = pieces, bins
        self.repeats, self.deviations = repeats, deviations
        self.is_single = pieces.is_single.tolist()
        # Sum up to the end of each piece.
        self.sums: list[int] = np.cumsum(np.where(heavy, 0, pieces.mass)).tolist()
        # Pieces behind which there is an edge, and pieces inside of which there may be one.
        self.edges: list[int] = []
        self.asked: set[int] = set()
        # Sum where the last bin ended, and the variance of that: 0 where it is known.
        self.begin, self.variance = 0, 0.0
        last, start = len(self.sums) - 1, 0
        for stop in [*np.flatnonzero(heavy).tolist(), last + 1]:
            if stop > start:
                self._fill(start, stop - 1)
            if stop < last:
                self.edges.append(stop)
            start = stop + 1

    def _fill(self, first: int, last: int) -> None:
        """Go through light pieces up to the last one before a heavy value, or the end of all."""
        end = self.sums[last]
        while self.begin < end:
            if self.bins == 1:
                if end == self.sums[-1]:
                    self._close(last)  # the last bin of light values ends with them
                return
            full = -(-(self.sums[-1] + (self.bins - 1) * self.begin) // self.bins)
            # A heavy value that follows ends the bin.
            self._end_bin(first, last, min(full, end))
            self.bins -= 1

    def _end_bin(self, first: int, last: int, full: int) -> None:
        """End a bin at the first value up to which the sum is full, or about there."""
        at = bisect_left(self.sums, full, first, last + 1)
        end = self.sums[at]
        if self.variance:
            error = round(self.deviations * self.variance**0.5)
            a = bisect_left(self.sums, full - error, first, last + 1)
            z = bisect_left(self.sums, full + error, first, last)
            self.asked.update(k for k in range(a, z + 1) if not self.is_single[k])
        if self.is_single[at] or full == end:
            self.begin = end
            self._close(at)
            return
        self.asked.add(at)
        # By what a sum is exceeded when it is reached: by nothing if every value weighs 1, else by
        # about half of a value's weight, give or take as much. A few equal values do not show.
        typical = self.repeats * int(self.pieces.mass[at]) / int(self.pieces.entries[at])
        excess = (typical - 1.0) / 2.0
        self.begin = min(end, full + round(excess))
        self.variance = self.variance * (1.0 - 1.0 / self.bins) ** 2 + excess**2 + 0.01

    def _close(self, piece: int) -> None:
        if piece < len(self.sums) - 1:
            self.edges.append(piece)


@njit
def mark_inside(values, lows, highs, out):  # type: ignore[no-untyped-def]
    """Whether each value lies in one of some intervals, which are disjoint and ascending."""
    for i in range(values.size):
        x = values[i]
        at, length = 0, highs.size
        while length > 0:  # how many intervals end below x
            half = length >> 1
            is_below = highs[at + half] < x
            at = at + half + 1 if is_below else at
            length = length - half - 1 if is_below else half
        out[i] = at < highs.size and lows[at] <= x
