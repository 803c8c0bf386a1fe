"""A shard on a worker, and the histograms that the worker adds up for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.quantiles import Tallies, Tally
from greedymiser._core.threads import Threads
from greedymiser.data.binning import LANES
from greedymiser.engines.cpu.shard import CpuShard
from greedymiser.engines.cpu.state import Tuning
from greedymiser.engines.dask.messages import (
    Command,
    CountedBlocks,
    LevelRequest,
    Residuals,
    RowPlaces,
    ScannedColumns,
)
from greedymiser.engines.dask.packed_histograms import pack, unpack_onto
from greedymiser.engines.grid import Extremes, Grid
from greedymiser.engines.interface import Columns, Sample, SplitRules
from greedymiser.engines.sampling import RowLot
from greedymiser.engines.scanning import describe_features, describe_scale, scan_table
from greedymiser.engines.sharded import sibling

HistogramWords = NDArray[np.int64]

# With so many histograms to count at a time, all threads are busy.
HISTOGRAMS_PER_THREAD = 4


class _BlockTables(NamedTuple):
    """Histograms of all rows, of the blocks that are added up here."""

    # (n_nodes, n_blocks, lanes x bins x words).
    words: HistogramWords
    # By node.
    row: dict[int, int]
    blocks: NDArray[np.int64]


NOTHING_KEPT = _BlockTables(np.empty((0, 0, 0), dtype=np.int64), {}, np.empty(0, dtype=np.int64))


class DaskShard:
    """Rows on a worker, with their numbers; carries out lists of commands."""

    def __init__(self, sample: Sample, places: Sequence[RowPlaces], threads: Threads):
        self._shard = CpuShard(sample, threads, Tuning())
        self._n_threads = threads.n_threads
        self._places = places
        binned = sample.binned
        self._lane_feature = binned.lane_feature.reshape(-1, LANES)
        self._features = describe_features(binned)
        # The larger children of these nodes need not be counted.
        self._kept = NOTHING_KEPT
        # What was counted here of the blocks that are added up here, one histogram per row; and
        # the sums of the rows here, where a tree has just begun.
        self._total: HistogramWords | None = None
        self._root: tuple[int, ...] = ()

    def obey(self, commands: Sequence[Command]) -> Any:
        """Carry out some commands; the answer to the last one."""
        answer = None
        for name, *args in commands:
            own = getattr(self, name, None)
            answer = (getattr(self._shard, name) if own is None else own)(*args)
        return answer

    # -- commands that are not those of every shard -----------------------------------------------

    def extremes(self) -> list[Extremes]:
        """Of all outputs."""
        return [self._shard.extremes(k) for k in range(self._shard.sample.loss.n_outputs)]

    def begin(self, output: int, grid: Grid, rules: SplitRules, lot: RowLot | None) -> Any:
        sample = self._shard.sample
        if lot is not None and sample.units is None:
            self._shard.sample = replace(sample, units=sample.first_row + self._numbers())
        if rules.monotonic_cst is not None:
            self._features["monotone"] = rules.monotonic_cst
        self._scale = describe_scale(grid, rules)
        self._kept = NOTHING_KEPT
        return self._shard.begin(output, grid, rules, lot)

    def loss_and_extremes(self, step: str) -> tuple[NDArray[np.int64], list[Extremes]]:
        """The loss, and what the next tree begins with."""
        loss = self._shard.loss_sum()
        self._shard.derive(step)
        return loss, self.extremes()

    def residuals(self, leaves: NDArray[np.int64]) -> list[Residuals]:
        """Of the rows of some leaves."""
        numbers, residuals = self._numbers(), []
        for leaf in leaves.tolist():
            values, weight = self._shard.residuals(leaf)
            residuals.append(Residuals(values, weight, numbers[self._shard.leaf_rows(leaf)]))
        return residuals

    def tallies(self, question: Tallies, leaves: NDArray[np.int64]) -> list[Tally]:
        """Where the residuals of some leaves lie."""
        return question.answer([self._shard.residuals(leaf) for leaf in leaves.tolist()])

    def _numbers(self) -> NDArray[np.int64]:
        """The number of each row among all rows."""
        parts = [
            np.arange(part.start, part.stop) if isinstance(part, slice) else part
            for part in self._places
        ]
        return np.concatenate(parts)

    # -- histograms -------------------------------------------------------------------------------

    def count(
        self,
        commands: Sequence[Command],
        level: LevelRequest,
        me: str,
        give: Callable[[str, CountedBlocks], object],
    ) -> Any:
        """Carry out some commands, and count; returns what the last command answers.

        Small nodes are counted on all blocks, large ones on fresh blocks. What other workers add up
        is counted first, and given to them one by one: it travels while the rest is counted.
        """
        last = self.obey(commands)
        self._root = tuple(map(int, last[:3])) if level.is_new else ()
        blocks, fresh = level.owned(level.blocks), level.owned(level.fresh)
        own, n_words = level.peers.index(me), self._shard.grid.bin_words
        # Everybody begins elsewhere.
        order = [*range(own + 1, len(blocks)), *range(own + 1)]
        n_counted = [len(b) * len(level.small) + len(f) * len(level.large)
                     for b, f in zip(blocks, fresh, strict=True)]  # fmt: skip
        for group in counting_groups(order, n_counted, HISTOGRAMS_PER_THREAD * self._n_threads):
            small = self._shard.count(level.small, np.concatenate([blocks[k] for k in group]))
            large = self._shard.count(level.large, np.concatenate([fresh[k] for k in group]))
            size, ends = small.shape[2], (0, 0)
            for k in group:
                begins, ends = ends, (ends[0] + len(blocks[k]), ends[1] + len(fresh[k]))
                if k == own:
                    mine = [small[:, begins[0] : ends[0]], large[:, begins[1] : ends[1]]]
                    rows = [np.ascontiguousarray(p).reshape(-1, size) for p in mine if p.size]
                    total = np.concatenate(rows) if len(rows) > 1 else rows[0] if rows else None
                    self._total = total
                elif len(blocks[k]):
                    parts = [(small, begins[0], ends[0]), (large, begins[1], ends[1])]
                    give(level.peers[k], CountedBlocks(pack(parts, n_words, size), self._root))
        return last

    def scan(self, level: LevelRequest, me: str, others: Sequence[CountedBlocks]) -> ScannedColumns:
        """Add up the histograms of one's own blocks, and find the best splits."""
        at = level.peers.index(me)
        mine, fresh = level.owned(level.blocks)[at], level.owned(level.fresh)[at]
        total = self._total
        assert total is not None
        for part in others:
            unpack_onto(total, part.histograms, self._shard.grid.bin_words)
        n_small, n_large, size = len(level.small), len(level.large), total.shape[1]
        # Small nodes first, then large ones.
        found = total[: n_small * len(mine)].reshape(n_small, len(mine), size)
        row = {node: i for i, node in enumerate([*level.small.tolist(), *level.large.tolist()])}
        if n_large:
            again = total[n_small * len(mine) :].reshape(n_large, len(fresh), size)
            siblings = [row[sibling(node)] for node in level.large.tolist()]
            larger = self._larger(level.parents, found[siblings], mine, fresh, again)
            found = np.concatenate([found, larger])
        self._kept = _BlockTables(found, row, mine) if level.keeps else NOTHING_KEPT
        nodes = level.nodes
        if level.is_new:
            roots = [self._root, *(part.root for part in others)]
            nodes["gradient"], nodes["hessian"], nodes["count"] = np.sum(roots, axis=0)
        wanted = np.array([row[node] for node in nodes["node"].tolist()])
        return self._scanned(level.columns, nodes, mine, found, wanted)

    def _larger(
        self,
        parents: NDArray[np.int64],
        smaller: HistogramWords,
        mine: NDArray[np.int64],
        fresh: NDArray[np.int64],
        again: HistogramWords,
    ) -> HistogramWords:
        """Histograms of larger nodes: of fresh blocks as they were counted, else by subtraction."""
        if len(fresh) == len(mine):
            return again
        found, kept, is_fresh = np.empty_like(smaller), self._kept, np.isin(mine, fresh)
        found[:, is_fresh] = again
        rows = np.array([kept.row[parent] for parent in parents.tolist()])
        places = np.searchsorted(kept.blocks, mine[~is_fresh])
        whole = kept.words[rows[:, None], places]
        found[:, ~is_fresh] = whole - smaller[:, ~is_fresh]
        return found

    def _scanned(
        self,
        columns: Columns,
        nodes: NDArray[np.void],
        mine: NDArray[np.int64],
        found: HistogramWords,
        wanted: NDArray[np.int64],
    ) -> ScannedColumns:
        """The best splits of some nodes, whose histograms are these ``wanted`` ones."""
        order = np.argsort(wanted)
        if len(wanted) < len(found):
            found = found[wanted[order]]
        columns = columns if len(columns) == 1 else columns[order]
        lanes = self._lane_feature[mine]
        table = scan_table(found, lanes, self._features, nodes[order], columns, self._scale)
        features = np.sort(lanes[lanes >= 0]).astype(np.int64)
        categorical = self._features["categorical"][features]
        categorical = categorical[categorical >= 0].astype(np.int64)
        back = np.argsort(order)[:, None]
        return ScannedColumns(
            features,
            table.candidates[back, features],
            categorical,
            table.category_sets[back, categorical],
        )


def counting_groups(
    order: Sequence[int], n_counted: Sequence[int], enough: int
) -> Iterator[list[int]]:
    """Neighbours in some order who have enough to count together; the last take what is left."""
    group: list[int] = []
    n, left = 0, sum(n_counted)
    for k in order:
        group.append(k)
        n, left = n + n_counted[k], left - n_counted[k]
        if n >= enough and left >= enough:
            yield group
            group, n = [], 0
    yield group
