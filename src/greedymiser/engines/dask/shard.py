"""A shard on a worker, and the histograms that the worker adds up for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.quantiles import Tallies, Tally
from greedymiser._core.threads import Threads
from greedymiser.data.binning import LANES
from greedymiser.engines.cpu.shard import CpuShard
from greedymiser.engines.cpu.state import Tuning
from greedymiser.engines.dask.messages import (
    Command,
    LevelRequest,
    Residuals,
    RowPlaces,
    ScannedColumns,
)
from greedymiser.engines.grid import Extremes, Grid
from greedymiser.engines.interface import Sample, SplitRules
from greedymiser.engines.sampling import RowLot
from greedymiser.engines.scanning import describe_features, describe_scale, scan_table
from greedymiser.engines.sharded import sibling

HistogramWords = NDArray[np.int64]


class DaskShard:
    """Rows on a worker, with their numbers; carries out lists of commands."""

    def __init__(self, sample: Sample, places: Sequence[RowPlaces], threads: Threads):
        self._shard = CpuShard(sample, threads, Tuning())
        self._places = places
        binned = sample.binned
        self._lane_feature = binned.lane_feature.reshape(-1, LANES)
        self._features = describe_features(binned)
        # Histograms (blocks that are added up here) of all rows, by node, and which blocks those
        # are: the larger children of these nodes need not be counted.
        self._kept: dict[int, HistogramWords] = {}
        self._kept_blocks = np.empty(0, dtype=np.int64)

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
        self._kept = {}
        return self._shard.begin(output, grid, rules, lot)

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

    def count(self, level: LevelRequest) -> tuple[HistogramWords, HistogramWords]:
        """Histograms of the rows here: small nodes on all blocks, large ones on fresh blocks."""
        return self._shard.count(level.small, level.blocks), self._shard.count(
            level.large, level.fresh
        )

    def scan(self, level: LevelRequest, me: str, parts: Sequence[HistogramWords]) -> ScannedColumns:
        """Add up the histograms of one's own blocks, and find the best splits."""
        mine = level.blocks[level.owned(level.blocks, me)]
        fresh = level.fresh[level.owned(level.fresh, me)]
        total = np.sum(parts, axis=0)
        n_counted = len(level.small) * len(mine)
        by_node = dict(
            zip(
                level.small.tolist(),
                _by_node_and_block(total[:n_counted], level.small),
                strict=True,
            )
        )
        again = _by_node_and_block(total[n_counted:], level.large)
        is_fresh, places = np.isin(mine, fresh), np.searchsorted(self._kept_blocks, mine)
        for i, (node, parent) in enumerate(
            zip(level.large.tolist(), level.parents.tolist(), strict=True)
        ):
            rest = np.empty((len(mine), total.shape[-1]), dtype=np.int64)
            rest[is_fresh] = again[i]
            if not is_fresh.all():
                whole = self._kept[parent][places[~is_fresh]]
                rest[~is_fresh] = whole - by_node[sibling(node)][~is_fresh]
            by_node[node] = rest
        found = np.stack([by_node[node] for node in level.nodes["node"].tolist()])
        self._kept, self._kept_blocks = (by_node if level.keeps else {}), mine
        return self._scanned(level, mine, found)

    def _scanned(
        self, level: LevelRequest, mine: NDArray[np.int64], found: HistogramWords
    ) -> ScannedColumns:
        lanes = self._lane_feature[mine]
        table = scan_table(found, lanes, self._features, level.nodes, level.columns, self._scale)
        features = np.sort(lanes[lanes >= 0]).astype(np.int64)
        categorical = self._features["categorical"][features]
        categorical = categorical[categorical >= 0].astype(np.int64)
        return ScannedColumns(
            features,
            table.candidates[:, features],
            categorical,
            table.category_sets[:, categorical],
        )


def _by_node_and_block(rows: HistogramWords, nodes: NDArray[np.int64]) -> HistogramWords:
    """Histograms by node and block."""
    n_blocks = len(rows) // len(nodes) if len(nodes) else 0
    return rows.reshape(len(nodes), n_blocks, rows.shape[-1])


def owned_part(
    level: LevelRequest, counts: tuple[HistogramWords, HistogramWords], peer: str
) -> HistogramWords:
    """What a worker needs of another one's counts, one histogram per row: a single message."""
    small, large = counts
    small = small[:, level.owned(level.blocks, peer)]
    large = large[:, level.owned(level.fresh, peer)]
    size = small.shape[2]
    return np.concatenate([small.reshape(-1, size), large.reshape(-1, size)])
