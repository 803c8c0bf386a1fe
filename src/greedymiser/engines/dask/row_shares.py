"""Who gets which rows."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser.engines.dask.messages import Piece, RowPlaces, Share
from greedymiser.engines.dask.stores import Store
from greedymiser.engines.interface import Sample
from greedymiser.losses import Loss


class _Cut(NamedTuple):
    """Rows of the sample that are in one chunk of a store."""

    chunk: int
    # By their number in the sample, ascending where that is known.
    places: RowPlaces
    # By their number in the chunk; None for all of them.
    rows: NDArray[np.int64] | None


def shares_of(store: Store, sample: Sample, chosen: NDArray[np.intp] | None) -> dict[str, Share]:
    """The share of each worker that has any: rows stay where their codes are.

    Where a loss looks at whole queries, those of a query come together where its first row is.
    """
    cuts = _cuts(store, chosen)
    if hasattr(sample.loss, "over"):
        return _shares_by_query(store, sample, cuts)
    by_worker: dict[str, list[_Cut]] = {}
    for cut in cuts:
        by_worker.setdefault(store.where[cut.chunk], []).append(cut)
    shares = {}
    for worker in sorted(by_worker):
        mine = by_worker[worker]
        pieces = tuple(Piece(worker, cut.chunk, cut.rows) for cut in mine)
        places = tuple(cut.places for cut in mine)
        shares[worker] = Share(store.name, pieces, _sample_of(store, sample, places), places)
    return shares


def _cuts(store: Store, chosen: NDArray[np.intp] | None) -> list[_Cut]:
    """Rows by chunk; chunks without any are left out."""
    offsets = store.offsets
    if chosen is None:
        whole = enumerate(pairwise(offsets.tolist()))
        return [_Cut(c, slice(a, b), None) for c, (a, b) in whole if a < b]
    order = np.argsort(chosen, kind="stable")
    ordered = chosen[order]
    edges = enumerate(pairwise(np.searchsorted(ordered, offsets).tolist()))
    return [_Cut(c, order[a:b], ordered[a:b] - offsets[c]) for c, (a, b) in edges if a < b]


def _shares_by_query(store: Store, sample: Sample, cuts: list[_Cut]) -> dict[str, Share]:
    workers = sorted({store.where[cut.chunk] for cut in cuts})
    n = len(sample.y)
    query = np.zeros(n, dtype=np.int64) if sample.units is None else sample.units
    row_of, cut_of = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    for i, cut in enumerate(cuts):
        cut_of[cut.places] = i
        row_of[cut.places] = (
            _row_numbers(cut.places) - _first(cut) if cut.rows is None else cut.rows
        )
    at = np.array([workers.index(store.where[cut.chunk]) for cut in cuts])[cut_of]
    _, firsts, number = np.unique(query, return_index=True, return_inverse=True)
    owner = at[firsts][number]
    shares = {}
    for k, worker in enumerate(workers):
        mine = np.flatnonzero(owner == k)
        if len(mine) == 0:
            continue
        pieces = []
        for i in np.unique(cut_of[mine]).tolist():
            target = np.flatnonzero(cut_of[mine] == i)
            chunk = cuts[i].chunk
            pieces.append(Piece(store.where[chunk], chunk, row_of[mine[target]], target))
        own = _sample_of(store, sample, (mine,))
        starts = np.flatnonzero(np.append(True, np.diff(query[mine]) != 0))
        told = _told(sample, np.append(starts, len(mine)))
        shares[worker] = Share(store.name, tuple(pieces), replace(own, loss=told), (mine,))
    return shares


def _told(sample: Sample, starts: NDArray[np.intp]) -> Loss:
    """The loss for some of the queries, which score as they would among all of them."""
    loss: Any = sample.loss
    # A user's loss need not know how to speak of a part.
    return loss.over_part(starts, sample.y) if hasattr(loss, "over_part") else loss.over(starts)


def _sample_of(store: Store, sample: Sample, places: tuple[RowPlaces, ...]) -> Sample:
    def taken(values: Any) -> Any:
        return None if values is None else np.concatenate([values[part] for part in places])

    return replace(
        sample,
        binned=store.head,
        y=taken(sample.y),
        weight=taken(sample.weight),
        units=taken(sample.units),
        shares=taken(sample.shares),
    )


def _row_numbers(places: RowPlaces) -> NDArray[np.int64]:
    return np.arange(places.start, places.stop) if isinstance(places, slice) else places


def _first(cut: _Cut) -> int:
    assert isinstance(cut.places, slice)
    return cut.places.start
