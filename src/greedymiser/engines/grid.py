"""The integer grid that gradients and Hessians of one tree are rounded onto.

Sums of integers are exact in any order, so they may be made by any number of threads, on a GPU or
on many machines. What the grid loses, it loses once, per row:

    error of a leaf's mean gradient  <=  half a step  =  2^-(bits + 1) * max |g|
                                     <=  2^-(bits + 1) * sqrt(n) * (root mean square of all g)

since max |g|^2 is at most the sum of all squares. The bits are chosen so that this is at most a
sixteenth of the standard error of the mean of all n rows, which is 1 / sqrt(n) of that root mean
square, as long as n < 2^27; and at most twice it up to 2^32 rows, however heavy the tails. (One row
that outweighs all others together is the worst case; for a normal distribution the error is
thousands of times smaller.) The same holds for Hessians.

Layouts. A row's word holds its gradient (or Hessian) high and a count of 1 low, so that one
addition updates both. Below 2^20 rows the words have room for all rows, and a histogram is a sum of
words:

    PACKED_ONE   | gradient                      | count |        all Hessians are equal
    PACKED_TWO   | gradient                              |        Hessians differ
                 | Hessian                       | count |

With more rows, a word has room for 2^15 of them. Rows are counted in runs of that length, and
every run is then added to a histogram that has a word for each sum:

    WIDE_ONE     | gradient | count |                     rows have words as in PACKED_ONE
    WIDE_TWO     | gradient | Hessian | count |           rows have words as in PACKED_TWO
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

PACKED_ONE, PACKED_TWO, WIDE_ONE, WIDE_TWO = range(4)

# Words that a row and a bin of a histogram have in each layout.
ROW_WORDS = (1, 2, 1, 2)
BIN_WORDS = (1, 2, 2, 3)

# Gradients below this have squares that underflow: they count as 0.
SMALLEST = 1e-150


class Extremes(NamedTuple):
    """What must be known of all rows before a grid can be chosen."""

    # Largest size of a gradient, and largest Hessian.
    gradient: float
    hessian: float
    # Whether all Hessians are 1.
    is_flat: bool

    def joined(self, other: Extremes) -> Extremes:
        """What must be known of the rows of both."""
        return Extremes(
            max(self.gradient, other.gradient),
            max(self.hessian, other.hessian),
            self.is_flat and other.is_flat,
        )


@dataclass(frozen=True)
class GridRule:
    """How grids are chosen. The default is part of the definition of a model."""

    # More bits would not change a tree; and below 2^16 rows the grid depends on the largest
    # value alone, not on n.
    most_bits: int = 30
    # With fewer rows than this, words have room for all of them.
    packed_rows: int = 2**20
    # How many rows are counted before their words must be added to wider ones.
    run: int = 2**15
    # Sums of 31 bits and a sign have room for so many rows.
    most_rows: int = 2**32

    def choose(self, n_rows: int, extremes: Extremes) -> Grid:
        """The grid for a tree on so many rows."""
        if n_rows >= self.most_rows:
            raise ValueError(f"{n_rows} rows are too many: sums of 64 bits have room for 2^32")
        is_packed = n_rows < self.packed_rows
        room = n_rows.bit_length() if is_packed else self.run.bit_length()
        # Sums of m < 2^room numbers of b bits need b + room bits beside a sign; the count that
        # shares a word with them takes room bits more.
        beside_count = min(self.most_bits, 63 - 2 * room)
        alone = min(self.most_bits, 62 - room)
        if extremes.is_flat:
            layout = PACKED_ONE if is_packed else WIDE_ONE
            return Grid(layout, room, step(extremes.gradient, beside_count), 1.0, self.run)
        return Grid(
            PACKED_TWO if is_packed else WIDE_TWO,
            room,
            step(extremes.gradient, alone),
            step(extremes.hessian, beside_count),
            self.run,
        )


class Grid(NamedTuple):
    """The grid of one tree."""

    layout: int
    # Bits of the count in a word.
    shift: int
    # What one unit of the integers means.
    gradient: float
    hessian: float
    # Rows whose words may be added up before they must be unpacked; for wide layouts.
    run: int

    @property
    def row_words(self) -> int:
        return ROW_WORDS[self.layout]

    @property
    def bin_words(self) -> int:
        return BIN_WORDS[self.layout]


def step(largest: float, bits: int) -> float:
    """Power of two such that the largest value needs at most ``bits`` bits beside its sign."""
    if largest < SMALLEST:
        return 1.0  # everything rounds to 0
    _, exponent = math.frexp(largest)  # largest < 2^exponent
    return math.ldexp(1.0, exponent - bits)
