"""Where columns are cut whose rows lie in partitions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from greedymiser.binning import BinMapper, Cuts, Summary, merge_equal, summarise
from greedymiser.tables import Rows, Table

# Values that are brought together at a time.
CELLS = 2**25


def cuts_of(table: Any, mapper: BinMapper, rows: Rows, shares: NDArray[np.int64] | None) -> Cuts:
    """The cuts that one machine would make of all rows."""
    n, d = table.parts.shape
    is_categorical = np.zeros(d, dtype=bool)
    is_categorical[list(mapper.categorical)] = True
    cuts = Cuts([np.empty(0)] * d, np.zeros(d, dtype=bool), is_categorical)
    chosen = table.parts.chosen(rows)
    each = list(zip(chosen, _spread(table, rows, shares, chosen), strict=True))
    step = max(1, CELLS // max(n, 1))
    for first in range(0, d, step):
        columns = list(range(first, min(first + step, d)))
        parts = table.map(_summaries, columns, each=each)
        for i, column in enumerate(columns):
            merged = reduce(merged_summaries, (part[i] for part in parts))
            cuts.has_missing[column] = merged.has_missing
            cuts.edges[column] = mapper.place(column, merged)
    return cuts


def _spread(
    table: Any, rows: Rows, shares: NDArray[np.int64] | None, chosen: Sequence[Any]
) -> list[NDArray[np.int64] | None]:
    """Shares by partition, in the order of ``Parts.chosen``."""
    if shares is None:
        return [None] * len(chosen)
    ordered = shares if rows is None else shares[np.argsort(rows, kind="stable")]
    sizes = table.parts.lengths if rows is None else [len(part) for part in chosen]
    return np.split(ordered, np.cumsum(sizes)[:-1])


def _summaries(table: Table, columns: list[int], own: Any, number: int) -> list[Summary]:
    rows, shares = own
    return [summarise(values, shares) for values in table.columns(columns, rows)]


def merged_summaries(one: Summary, other: Summary) -> Summary:
    """What two parts of a column say together."""
    values = np.concatenate([one.distinct, other.distinct])
    order = np.argsort(values, kind="stable")
    ordered, weights = values[order], np.concatenate([one.mass, other.mass])[order]
    distinct, mass = np.empty(len(ordered)), np.empty(len(ordered), dtype=np.int64)
    m = merge_equal(ordered, weights, distinct, mass) if len(ordered) else 0
    return Summary(distinct[:m], mass[:m], one.has_missing or other.has_missing)
