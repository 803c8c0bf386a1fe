"""Which documents belong together on the device, and what their labels say of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.arithmetic import exact_sum
from greedymiser.engines.cuda.device import SIMULATED, room_for, sent
from greedymiser.engines.cuda.kernels import ranking, rows
from greedymiser.engines.cuda.stream import Stream
from greedymiser.engines.interface import Sample
from greedymiser.losses import LambdaMART
from greedymiser.losses.ranking import Queries

# Threads of a block for a query, by its documents: up to SHORT of them or more. With so many
# threads a block has room for all its registers, whatever the compiler makes of a kernel.
SHORT, FEW, MANY = (4, 2, 3) if SIMULATED else (64, 32, 128)

# A thread compares a document with all others, and the first one of a query with all that are below
# it, one after the other. Beyond this a thread of the CPU, which sorts, is likely to be faster.
LONGEST = 16 if SIMULATED else 2048


def are_computed_here(sample: Sample) -> bool:
    """Whether the device computes the loss: LambdaMART, with queries that are not too long."""
    loss = sample.loss
    if type(loss) is not LambdaMART:
        return False
    return int(np.diff(loss.query_starts(sample.y)).max(initial=0)) <= LONGEST


def query_bytes(sample: Sample) -> float:
    """What the device keeps of queries, at most."""
    if not are_computed_here(sample):
        return 0.0
    # Gains, whole gains, terms, places and groups; and by query: starts, order, two ideals, scores
    # and weights.
    by_row, by_query = 8 * (4 + ranking.GROUP_FIELDS), 8 * 6
    assert isinstance(sample.loss, LambdaMART)
    n_queries = len(sample.loss.query_starts(sample.y)) - 1
    return float(by_row * sample.binned.n_rows + by_query * n_queries)


class CudaQueries:
    """The queries of placed rows."""

    def __init__(self, sample: Sample, stream: Stream):
        assert isinstance(sample.loss, LambdaMART)
        self._sample, self._stream, self._loss = sample, stream, sample.loss
        starts = self._loss.query_starts(sample.y)
        lengths = np.diff(starts)
        # Long ones first: nothing else is left to do for a block that begins late.
        order = np.argsort(-lengths, kind="stable")
        n_long = int(np.count_nonzero(lengths > SHORT))
        # The first query of a launch, their number, and the threads for each of them.
        parts = [(0, n_long, MANY), (n_long, len(order) - n_long, FEW)]
        self._parts = [part for part in parts if part[1] > 0]
        self._order, self._starts = sent(order.astype(np.int64)), sent(starts.astype(np.int64))
        judged, weight = self._loss.judge_labels(sample.y, sample.weight)
        n = len(order)
        # What the mean of the scores is divided by.
        self.total = float(n) if weight is None else exact_sum(weight)
        self._weight = sent(np.empty(0) if weight is None else weight)
        self._judged = sent(judged.gain), sent(judged.ideal), sent(judged.discount)
        self._terms = room_for(len(sample.y), dtype=np.float64)
        self._scores = room_for(n, dtype=np.float64)
        # What only training needs.
        self._labels: tuple[Any, ...] | None = None

    def add_scores(self, raw: Any, said: Any, near: int) -> None:
        """Add the NDCG of all queries, times their weights, to an exact sum."""
        gains, ideals, discounts = self._judged
        given = self._order, self._starts, gains, ideals, discounts, raw, self._terms, self._scores
        for first, n, threads in self._parts:
            self._stream.launch(ranking.score_queries, (n, 1), threads, given, first)
        n_blocks = rows.blocks_for(len(self._scores))
        arrays = self._scores, self._weight, said
        self._stream.launch(rows.sum_values, (n_blocks, 1), rows.THREADS, arrays, near)

    def write_lambdas(self, raw: Any, labels: Any, gradients: Any, hessians: Any) -> None:
        """Write first and second derivatives of all rows, weights aside."""
        if self._labels is None:
            self._labels = self._prepare_training()
        gains, ideals, discounts, places, groups = self._labels
        given = (self._order, self._starts, labels, gains, ideals, discounts, raw, places, groups,
                 gradients, hessians)  # fmt: skip
        for first, n, threads in self._parts:
            self._stream.launch(
                ranking.write_lambdas, (n, 1), threads, given, first, self._truncation, self._sigma
            )

    def _prepare_training(self) -> tuple[Any, ...]:
        """Gains, ideals and discounts of ``losses.ranking``, and room to compute in."""
        y, loss = self._sample.y, self._loss
        queries = Queries.of(y, loss.query_starts(y), loss.truncation)
        self._truncation = min(loss.truncation, len(queries.discounts))
        self._sigma = float(loss.sigma)
        known: list[NDArray[np.float64]] = [queries.gains, queries.ideals, queries.discounts]
        places = room_for(len(y), dtype=np.int64)
        groups = room_for((ranking.GROUP_FIELDS, len(y)), dtype=np.float64)
        return *map(sent, known), places, groups
