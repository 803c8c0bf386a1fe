"""Rules by which rows leave a model before its last tree, and the ranking of rows that left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from greedymiser._core.compiling import njit
from greedymiser.model.links import Floats, largest_probability

Mask = NDArray[np.bool_]
Starts = NDArray[np.intp] | None
"""Where each query starts, and the end; None where there are no queries."""


class ExitRule(Protocol):
    """Says who goes on after a stage."""

    # Whether rows are compared with those of the same query.
    compares_rows: bool

    def stays(self, raw: Floats, stage: int, starts: Starts) -> Mask:
        """Rows that go on after ``stage``, given their raw predictions (n_outputs, n)."""

    def because(self, stage: int) -> str:
        """Say why a row left after ``stage``."""


@dataclass(frozen=True)
class Confident:
    """A row leaves when its most likely class is likelier than ``threshold``."""

    threshold: float
    compares_rows = False

    def stays(self, raw: Floats, stage: int, starts: Starts) -> Mask:
        return largest_probability(raw) <= self.threshold

    def because(self, stage: int) -> str:
        return f"its class is likelier than {self.threshold:g}"


@dataclass(frozen=True)
class Proximity:
    """A document leaves when it is too far below the best of its query (Cambazoglu et al. 2010).

    At the i-th of ``n_exits`` exits, too far is ``(n_exits - i) / (n_exits - 1) * slack`` or more
    below the document in place ``place``. The best ``place`` documents never leave.
    """

    slack: float
    n_exits: int
    place: int = 5
    compares_rows = True

    def stays(self, raw: Floats, stage: int, starts: Starts) -> Mask:
        scores = raw[0]
        if starts is None:
            starts = np.array([0, len(scores)], dtype=np.intp)
        bar = np.empty(len(scores))
        place_scores(scores, starts, self.place, bar)
        return (scores > bar - self.margin(stage)) | (scores >= bar)

    def margin(self, stage: int) -> float:
        """How far below the document in place ``place`` is too far."""
        if self.n_exits <= 1:
            return self.slack
        return (self.n_exits - 1 - stage) / (self.n_exits - 1) * self.slack

    def because(self, stage: int) -> str:
        return f"it scores {self.margin(stage):g} or more below number {self.place} of its query"


@dataclass(frozen=True)
class Above:
    """A row goes on while its score is above the threshold of the stage (Cronus)."""

    thresholds: tuple[float, ...]
    compares_rows = False

    def stays(self, raw: Floats, stage: int, starts: Starts) -> Mask:
        return raw[0] > self.thresholds[stage]

    def because(self, stage: int) -> str:
        return f"its score is not above {self.thresholds[stage]:g}"


@dataclass(frozen=True)
class FirstOfQuery:
    """The first documents of each query go on: ``places[stage]`` of those that are still there.

    They are ordered by the model of the stage; of equal scores, what comes first in the data is
    first. So a query never pays for more than ``places[stage]`` documents.
    """

    places: tuple[int, ...]
    # Whether those that go on stay ahead of the others; if not, all are compared by their scores.
    stay_ahead: bool = True
    compares_rows = True

    def stays(self, raw: Floats, stage: int, starts: Starts) -> Mask:
        return places_of(raw[0], starts) <= self.places[stage]

    def because(self, stage: int) -> str:
        return f"it is not among the first {self.places[stage]} of its query"


def places_of(scores: Floats, starts: Starts) -> NDArray[np.intp]:
    """The place of each document in its query, from 1 on; equal scores in the order of the rows."""
    if starts is None:
        starts = np.array([0, len(scores)], dtype=np.intp)
    sizes = np.diff(starts)
    order = np.lexsort((-scores, np.repeat(np.arange(len(sizes)), sizes)))
    places = np.empty(len(scores), dtype=np.intp)
    places[order] = np.arange(1, len(scores) + 1) - np.repeat(starts[:-1], sizes)
    return places


@njit(cache=True, nogil=True)
def place_scores(scores, starts, place, out):  # type: ignore[no-untyped-def]
    """Score of the document in place ``place`` of each document's query; -inf if there is none."""
    best = np.empty(place)
    for q in range(starts.size - 1):
        best[:] = -np.inf
        for i in range(starts[q], starts[q + 1]):
            # ``best`` is sorted, the highest first; the last one falls out.
            j = place - 1
            if scores[i] <= best[j]:
                continue
            while j > 0 and scores[i] > best[j - 1]:
                best[j] = best[j - 1]
                j -= 1
            best[j] = scores[i]
        out[starts[q] : starts[q + 1]] = best[place - 1]


@njit(cache=True, nogil=True)
def rank_leavers(scores, left, starts, n_stages):  # type: ignore[no-untyped-def]
    """Move documents that left after an earlier stage below all of their query that stayed longer.

    Those that left together keep their distances.
    """
    lowest, highest = np.empty(n_stages), np.empty(n_stages)
    for q in range(starts.size - 1):
        lowest[:], highest[:] = np.inf, -np.inf
        for i in range(starts[q], starts[q + 1]):
            lowest[left[i]] = min(lowest[left[i]], scores[i])
            highest[left[i]] = max(highest[left[i]], scores[i])
        floor = np.inf
        for k in range(n_stages - 1, -1, -1):
            if highest[k] == -np.inf:
                continue  # nobody left here
            if highest[k] >= floor:
                shift = highest[k] - np.nextafter(floor, -np.inf)
                for i in range(starts[q], starts[q + 1]):
                    if left[i] == k:
                        # The subtraction rounds, perhaps back up to the floor.
                        scores[i] = min(scores[i] - shift, np.nextafter(floor, -np.inf))
                lowest[k] = min(lowest[k] - shift, np.nextafter(floor, -np.inf))
            floor = min(floor, lowest[k])


def check_queries(qid: ArrayLike | None, n: int) -> None:
    """Raise if there is not a query for each of n rows."""
    if qid is None:
        return
    shape = np.shape(np.asarray(qid))
    if len(shape) != 1:
        raise ValueError(f"qid must have one dimension, got shape {shape}")
    if shape[0] != n:
        raise ValueError(f"qid has {shape[0]} entries, but X has {n} rows")


def query_starts(query: NDArray[np.intp]) -> NDArray[np.intp]:
    """Where each query starts, and the end, given the sorted queries of rows."""
    changes = np.flatnonzero(np.diff(query)) + 1
    return np.concatenate([[0], changes, [len(query)]]).astype(np.intp)
