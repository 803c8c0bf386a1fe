"""Totals over all rows: exact sums, extremes and numbers of rows.

A part is a pair: an array with an entry per row, and the weights of the rows or None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.arithmetic import add_exactly, new_sums, rounded
from greedymiser._core.inquiries import Inquiry

Floats = NDArray[np.float64]
ValuesPart = tuple[Floats, Floats | None]
Terms = Callable[[Floats], Sequence[Floats]]
"""From the entries of rows to numbers that are to be multiplied with weights and summed."""


@dataclass(frozen=True)
class Sums:
    """Asks for weighted sums. ``terms`` is pickled: a function of a module, or a bound method."""

    terms: Terms

    def answer(self, part: ValuesPart) -> NDArray[np.int64]:
        """The sum of each term, and behind them that of the weights, in words that add up."""
        values, weight = part
        terms = [*self.terms(values), np.ones(len(values))]
        total = new_sums(len(terms))
        for words, term in zip(total, terms, strict=True):
            term = np.asarray(term, dtype=np.float64)
            add_exactly(words, np.ascontiguousarray(term if weight is None else term * weight))
        return total

    def merge(self, one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
        return one + other


def ask_sums(terms: Terms) -> Inquiry[tuple[list[float], float]]:
    """Weighted sums and the total weight, each rounded once; without weights a row weighs 1."""
    total = yield Sums(terms)
    *sums, weight = (float(rounded(words)) for words in total)
    return sums, weight


@dataclass(frozen=True)
class Extent:
    """How many rows there are, and between which bounds their entries and weights lie.

    Without rows, the lowest is +inf and the highest -inf; without weights, both are 1.
    """

    n_rows: int = 0
    lowest: float = np.inf
    highest: float = -np.inf
    least_weight: float = np.inf
    most_weight: float = -np.inf


class ExtentQuestion:
    """Asks for the extent of all rows."""

    def answer(self, part: ValuesPart) -> Extent:
        values, weight = part
        if len(values) == 0:
            return Extent()
        weight = np.ones(1) if weight is None else weight
        bounds = values.min(), values.max(), weight.min(), weight.max()
        return Extent(len(values), *map(float, bounds))

    def merge(self, one: Extent, other: Extent) -> Extent:
        return Extent(
            one.n_rows + other.n_rows,
            min(one.lowest, other.lowest),
            max(one.highest, other.highest),
            min(one.least_weight, other.least_weight),
            max(one.most_weight, other.most_weight),
        )


def ask_extent() -> Inquiry[Extent]:
    """Number of rows, and bounds of entries and weights."""
    found: Extent = yield ExtentQuestion()
    return found


class Together:
    """Asks for all rows themselves: for code that knows nothing of parts."""

    def answer(self, part: ValuesPart) -> list[ValuesPart]:
        return [part]

    def merge(self, one: list[ValuesPart], other: list[ValuesPart]) -> list[ValuesPart]:
        return one + other


def ask_rows() -> Inquiry[tuple[Any, Floats | None]]:
    """All entries and weights, brought together in the order in which parts are merged."""
    parts: list[ValuesPart] = yield Together()
    weights = [weight for _, weight in parts if weight is not None]
    values = np.concatenate([values for values, _ in parts])
    return values, np.concatenate(weights) if weights else None
