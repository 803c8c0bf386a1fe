"""A shard on a worker, and the histograms that the worker adds up for all of them."""

from __future__ import annotations

from collections.abc import Sequence
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
    Counts,
    LevelRequest,
    Residuals,
    RowPlaces,
    ScannedColumns,
)
from greedymiser.engines.grid import Extremes, Grid
from greedymiser.engines.interface import Columns, Sample, SplitRules
from greedymiser.engines.sampling import RowLot
from greedymiser.engines.scanning import describe_features, describe_scale, scan_table
from greedymiser.engines.sharded import sibling

HistogramWords = NDArray[np.int64]


class _Kept(NamedTuple):
    """Histograms of all rows, of the blocks that are added up here."""

    # (n_nodes, n_blocks, lanes x bins x words).
    words: HistogramWords
    # By node.
    row: dict[int, int]
    blocks: NDArray[np.int64]


NOTHING_KEPT = _Kept(np.empty((0, 0, 0), dtype=np.int64), {}, np.empty(0, dtype=np.int64))


class DaskShard:
    """Rows on a worker, with their numbers; carries out lists of commands."""

    def __init__(self, sample: Sample, places: Sequence[RowPlaces], threads: Threads):
        self._shard = CpuShard(sample, threads, Tuning())
        self._places = places
        binned = sample.binned
        self._lane_feature = binned.lane_feature.reshape(-1, LANES)
        self._features = describe_features(binned)
        # The larger children of these nodes need not be counted.
        self._kept = NOTHING_KEPT

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
        self, commands: Sequence[Command], level: LevelRequest
    ) -> tuple[Any, dict[str, Counts]]:
        """Carry out some commands, and count; the answer to the last one, and what each owner gets.

        Small nodes are counted on all blocks, large ones on fresh blocks.
        """
        last = self.obey(commands)
        root = tuple(map(int, last[:3])) if level.is_new else ()
        small = self._counted(level.small, [level.owned(level.blocks, p) for p in level.peers])
        large = self._counted(level.large, [level.owned(level.fresh, p) for p in level.peers])
        parts = zip(level.peers, small, large, strict=True)
        return last, {
            peer: Counts(np.concatenate([one, other]) if len(other) else one, root)
            for peer, one, other in parts
        }

    def _counted(
        self, nodes: NDArray[np.int64], owned: Sequence[NDArray[np.int64]]
    ) -> list[HistogramWords]:
        """Histograms of some nodes on the blocks of each owner, one per row."""
        found = self._shard.count(nodes, np.concatenate(owned))
        parts = np.split(found, np.cumsum([len(blocks) for blocks in owned])[:-1], axis=1)
        return [np.ascontiguousarray(part).reshape(-1, found.shape[2]) for part in parts]

    def scan(self, level: LevelRequest, me: str, parts: Sequence[Counts]) -> ScannedColumns:
        """Add up the histograms of one's own blocks, and find the best splits."""
        mine, fresh = level.owned(level.blocks, me), level.owned(level.fresh, me)
        total = parts[0].words
        for part in parts[1:]:
            total += part.words.reshape(total.shape)
        n_small, n_large, size = len(level.small), len(level.large), total.shape[1]
        # Small nodes first, then large ones.
        found = total[: n_small * len(mine)].reshape(n_small, len(mine), size)
        row = {node: i for i, node in enumerate([*level.small.tolist(), *level.large.tolist()])}
        if n_large:
            again = total[n_small * len(mine) :].reshape(n_large, len(fresh), size)
            siblings = [row[sibling(node)] for node in level.large.tolist()]
            larger = self._larger(level.parents, found[siblings], mine, fresh, again)
            found = np.concatenate([found, larger])
        self._kept = _Kept(found, row, mine) if level.keeps else NOTHING_KEPT
        nodes = level.nodes
        if level.is_new:
            sums = np.sum([part.root for part in parts], axis=0)
            nodes["gradient"], nodes["hessian"], nodes["count"] = sums
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
