"""Placed rows whose shards are on the workers of a cluster."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.quantiles import quantiles_of_parts
from greedymiser.data.binning import LANES
from greedymiser.engines.dask.foresight import Guesses, KnownTable, children_of
from greedymiser.engines.dask.messages import (
    Command,
    LevelAnswer,
    LevelRequest,
    Residuals,
    ScannedColumns,
    Share,
)
from greedymiser.engines.dask.replay import Replay
from greedymiser.engines.dask.row_shares import shares_of
from greedymiser.engines.dask.session import WorkersLostError
from greedymiser.engines.dask.stores import Store
from greedymiser.engines.grid import Extremes, Grid
from greedymiser.engines.interface import (
    OPEN_DTYPE,
    Columns,
    EngineLostError,
    Floats,
    Root,
    Sample,
    SplitRules,
    SplitTable,
    blank_table,
)
from greedymiser.engines.marks import Marks, distinct_patterns
from greedymiser.engines.sampling import RowLot
from greedymiser.engines.sharded import Family, blocks_in_play, mean_loss, total_of
from greedymiser.model.trees import Tree

# How often rows are placed anew for one answer before one gives up.
ATTEMPTS = 20

NO_BLOCKS = np.empty(0, dtype=np.int64)

_NUMBERS = itertools.count()


class DaskRows:
    """Rows on the workers of a cluster.

    What changes the rows is written down (``Replay``), and told to the workers with the next
    question. If a worker is lost, its rows are made anew elsewhere, all workers are told
    everything again, and the question is asked again: the answer is the same.

    Parameters
    ----------
    store : Store
        Where the codes are.
    sample : Sample
        All rows, without their codes.
    chosen : array of int or None
        Rows of the store that these are, in the sample's order; None for all of them.
    """

    grid: Grid

    def __init__(self, store: Store, sample: Sample, chosen: NDArray[np.intp] | None):
        self.n_rows = len(sample.y)
        self._store = store
        self._session = store.session
        self._sample = sample
        self._chosen = chosen
        self._total = total_of(sample.loss, sample.y, sample.weight)
        self._lane_feature = store.head.lane_feature.reshape(-1, LANES)
        self._n_features = store.head.n_features
        self._n_categorical = int(np.count_nonzero(store.head.is_categorical))
        self._replay = Replay()
        # What workers have not been told yet.
        self._pending: list[Command] = []
        self._name, self._step = "", 0
        self._discard: Callable[[], object] = lambda: None
        self._shares: dict[str, Share] = {}
        # Blocks of which workers keep the histograms of the last level.
        self._known_blocks = NO_BLOCKS
        # Nodes of the level that was asked for last, and its table; None where a tree begins.
        self._level: tuple[NDArray[np.void], SplitTable] | None = None
        # A table that was asked for before it is wanted.
        self._ahead: KnownTable | None = None
        self._place()

    # -- workers ----------------------------------------------------------------------------------

    def _place(self) -> None:
        """Give every worker its share. They know nothing of the model yet."""
        for _ in range(ATTEMPTS):
            self._discard()
            self._name = f"rows-{next(_NUMBERS)}"
            self._discard = weakref.finalize(self, self._session.discarded.append, self._name)
            self._store.ensure()
            shares = shares_of(self._store, self._sample, self._chosen)
            try:
                arguments = {worker: (self._name, share) for worker, share in shares.items()}
                self._session.ask("place", arguments)
            except WorkersLostError:
                continue
            self._shares = shares
            self._pending = self._replay.commands()
            self._known_blocks = NO_BLOCKS
            return
        gigabytes = self.n_rows * (8 * len(self._lane_feature) + 60) / 2**30
        raise EngineLostError(
            f"workers were lost {ATTEMPTS} times while {self.n_rows} rows x {self._n_features} "
            f"features were placed; codes and derivatives take about {gigabytes:.1f} GiB of the "
            "memory of all workers, which may not be there"
        )

    def _ask(self, *command: Any) -> list[Any]:
        """What all workers answer to a question; without one, to the last command."""
        return self._answers("obey", lambda: ([command],) if command else ([],))

    def _answers(self, name: str, make: Callable[[], tuple[Any, ...]]) -> list[Any]:
        for _ in range(ATTEMPTS):
            commands, *more = make()
            arguments = self._arguments(commands, more)
            try:
                answers = self._session.ask(name, arguments)
            except WorkersLostError:
                self._place()
                continue
            self._pending = []
            return list(answers.values())
        raise EngineLostError(f"workers were lost {ATTEMPTS} times over one question")

    def _arguments(self, commands: list[Command], more: list[Any]) -> dict[str, tuple[Any, ...]]:
        """What each worker is told: the same, but where a model begins."""
        if all(command[0] != "start" for command in self._pending):
            return dict.fromkeys(self._shares, (self._name, [*self._pending, *commands], *more))
        return {
            worker: (self._name, [*self._pending_for(worker), *commands], *more)
            for worker in self._shares
        }

    def _pending_for(self, worker: str) -> list[Command]:
        return [
            self._start_of(worker, *command[1:]) if command[0] == "start" else command
            for command in self._pending
        ]

    def _start_of(
        self, worker: str, raw: Floats, marks: Marks | None, had: NDArray[np.bool_] | None
    ) -> Command:
        """The command that begins a model, with what belongs to the rows of one worker."""
        mine = self._shares[worker].places
        if raw.ndim == 2:
            raw = np.concatenate([raw[:, places] for places in mine], axis=1)
        if had is not None:
            had = np.concatenate([had[places] for places in mine])
        return "start", raw, marks, had

    # -- a model ----------------------------------------------------------------------------------

    def start(
        self, raw: Floats, marks: Marks | None = None, had: NDArray[np.bool_] | None = None
    ) -> None:
        self._pending = [self._replay.start(np.array(raw), marks, had)]
        # How trees of this model step, once there is one; and how the derivatives were made that
        # workers have of the present raw predictions.
        self._way: str | None = None
        self._derived: str | None = None
        self._guesses = Guesses()

    def raw(self) -> Floats:
        raw = np.empty((self._sample.loss.n_outputs, self.n_rows))
        for share, part in zip(self._shares.values(), self._ask("raw"), strict=True):
            first = 0
            for places in share.places:
                n = places.stop - places.start if isinstance(places, slice) else len(places)
                raw[:, places] = part[:, first : first + n]
                first += n
        return raw

    def loss(self) -> float:
        loss, sample = self._sample.loss, self._sample
        if self._total is None:
            raw = self.raw()
            return float(loss.value(sample.y, raw if loss.n_outputs > 1 else raw[0], sample.weight))
        if self._way is None or self._derived is not None:
            sums = self._ask("loss_sum")
        else:  # what the next tree will ask first
            answers = self._ask("loss_and_extremes", self._way)
            self._replay.derive(self._way)
            self._note_extremes([extremes for _, extremes in answers], self._way)
            sums = [some for some, _ in answers]
        return mean_loss(loss, np.sum(sums, axis=0), self._total)

    def add_tree(self, tree: Tree, output: int) -> None:
        self._pending.append(self._replay.add_tree(tree, output))
        self._derived = None

    # -- a tree -----------------------------------------------------------------------------------

    def begin_tree(
        self, output: int, rules: SplitRules, step: str = "newton", lot: RowLot | None = None
    ) -> Root:
        self._way = step
        if output == 0 and self._derived != step:
            self._pending.append(self._replay.derive(step))
            self._note_extremes(self._ask("extremes"), step)
        self.grid = self._sample.grids.choose(self.n_rows, self._extremes[output])
        self._rules = rules
        self._pending.append(self._replay.begin(output, self.grid, rules, lot))
        self._guesses.plant()
        self._family = Family(self.n_rows)
        self._level = None
        nodes = _unknown_root()
        roots = self._ask_ahead(nodes, is_new=True) or self._ask()
        root = Root(*(sum(parts) for parts in zip(*roots, strict=True)))
        nodes["gradient"], nodes["hessian"], nodes["count"] = root[:3]
        self._family = Family(root.n_rows)
        return root

    def _note_extremes(self, by_worker: Sequence[list[Extremes]], step: str) -> None:
        self._extremes = [reduce(Extremes.joined, some) for some in zip(*by_worker, strict=True)]
        self._derived = step

    def split_table(self, nodes: NDArray[np.void], columns: Columns, last: bool) -> SplitTable:
        ahead, self._ahead = self._ahead, None
        self._guesses.compare(np.asarray(columns.any(axis=0)), last)
        table = None if ahead is None else ahead.of(nodes, columns)
        if table is None:
            if ahead is not None:  # workers keep what nobody needs
                self._known_blocks = NO_BLOCKS
            _, table = self._ask_table(nodes, columns, keeps=not last)
        self._level = nodes, table
        return table

    def _ask_ahead(self, nodes: NDArray[np.void], is_new: bool = False) -> list[Any] | None:
        """Ask for the table that will be wanted next, if that can be foreseen.

        Returns what workers answer to the last command, None where nothing was asked.
        """
        columns = self._guesses.columns()
        if columns is None or len(nodes) == 0:
            return None
        last, table = self._ask_table(nodes, columns[None], self._guesses.keeps(), is_new)
        self._ahead = KnownTable(nodes, columns, table)
        return last

    def _ask_table(
        self, nodes: NDArray[np.void], columns: Columns, keeps: bool, is_new: bool = False
    ) -> tuple[list[Any], SplitTable]:
        """What workers answer to the last command, and the table."""
        blocks = blocks_in_play(columns, self._lane_feature)
        self._ahead = None

        def request() -> tuple[list[Command], LevelRequest]:
            return [], self._request(nodes, columns, blocks, keeps, is_new)

        answers: list[LevelAnswer] = self._answers("table", request)
        self._known_blocks = blocks if keeps else NO_BLOCKS
        table = blank_table(len(nodes), self._n_features, self._n_categorical)
        for answer in answers:
            if answer.scanned is not None:
                _fill_columns(table, answer.scanned)
        return [answer.last for answer in answers], table

    def _request(
        self,
        nodes: NDArray[np.void],
        columns: Columns,
        blocks: NDArray[np.int64],
        keeps: bool,
        is_new: bool,
    ) -> LevelRequest:
        small, large = self._family.by_size(nodes["node"].tolist())
        self._step += 1
        return LevelRequest(
            step=self._step,
            nodes=nodes,
            is_new=is_new,
            columns=columns,
            small=np.array(small, dtype=np.int64),
            large=np.array(large, dtype=np.int64),
            parents=np.array([self._family.parent[node] for node in large], dtype=np.int64),
            blocks=blocks,
            fresh=np.setdiff1d(blocks, self._known_blocks),
            peers=tuple(self._shares),
            keeps=keeps,
        )

    def partition(
        self, splits: NDArray[np.void], category_sets: NDArray[np.uint64], last: bool
    ) -> Floats:
        self._family.divide(splits)
        self._pending.append(self._replay.partition(splits, category_sets, last))
        if last or not self._rules.bound_gains:
            return np.empty(0)  # nobody waits: told with the next question
        energies = None
        if self._level is not None:
            energies = self._ask_ahead(children_of(*self._level, splits, self._rules))
        total: Floats = np.sum(self._ask() if energies is None else energies, axis=0)
        return total

    def marked(self, nodes: NDArray[np.int64] | None, marks: Sequence[int]) -> NDArray[np.int64]:
        weights: NDArray[np.int64] = np.sum(self._ask("marked", nodes, marks), axis=0)
        return weights

    def patterns(self, node: int | None) -> NDArray[np.bool_]:
        return distinct_patterns(np.concatenate(self._ask("patterns", node)))

    def best_constants(self, leaves: NDArray[np.int64]) -> Floats:
        quantile = self._sample.loss.leaf_quantile
        if quantile is not None:
            return quantiles_of_parts(
                quantile,
                [self._family.count[leaf] for leaf in leaves.tolist()],
                lambda question: reduce(question.merge, self._ask("tallies", question, leaves)),
            )
        by_worker: list[list[Residuals]] = self._ask("residuals", leaves)
        return np.array([self._best(parts) for parts in zip(*by_worker, strict=True)])

    def _best(self, parts: tuple[Residuals, ...]) -> float:
        order = np.argsort(np.concatenate([part.places for part in parts]))
        values = np.concatenate([part.values for part in parts])[order]
        weights = [part.weight for part in parts if part.weight is not None]
        weight = np.concatenate(weights)[order] if weights else None
        return self._sample.loss.leaf_value(values, weight)

    def add_leaves(self, leaves: NDArray[np.int64], values: Floats) -> None:
        self._pending.append(self._replay.add_leaves(leaves, values))
        self._derived = None


def _unknown_root() -> NDArray[np.void]:
    """The root of a tree, before anybody knows what its rows sum up to."""
    nodes = np.zeros(1, dtype=OPEN_DTYPE)
    nodes["lower"], nodes["upper"] = -np.inf, np.inf
    return nodes


def _fill_columns(table: SplitTable, scanned: ScannedColumns) -> None:
    table.candidates[:, scanned.features] = scanned.candidates
    if len(scanned.categorical):
        table.category_sets[:, scanned.categorical] = scanned.category_sets
