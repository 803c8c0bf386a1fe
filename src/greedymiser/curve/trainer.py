"""Training the models of a curve: on the same data, several at a time, none of them twice."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.progress import Phases
from greedymiser._core.threads import Threads
from greedymiser.curve.checkpoints import Checkpoint
from greedymiser.engines.cpu.engine import CpuEngine
from greedymiser.engines.interface import Floats
from greedymiser.training.boosting import WHOLE_RECORD, Action, Progress, Record
from greedymiser.training.parameters import Parameters
from greedymiser.training.preparation import Prepared
from greedymiser.training.train import Model, Watch, blank_model, train

# A model on fewer rows has little use for a second thread.
SMALL = 20_000

# Rounds without improvement after which a model ends that may be part of a curve.
LONG_PATIENCE = 30

# A fit is not given up before, and these are its last rounds.
LEAST_ROUNDS = 3


class Opening(NamedTuple):
    """What a model begins with, where rows pay: what everybody is asked for."""

    # Resources, as flags, that count as paid; and the features for which they are enough.
    resources: NDArray[np.bool_]
    features: NDArray[np.bool_]
    # Rounds that use nothing else.
    n_iter: int


class Rival(NamedTuple):
    """A model that costs no more, and how far behind it a fit must be to be given up."""

    # Best validation score so far, after every round; entry 0 is the constant's.
    best: Floats
    margin: float


class GivingUp:
    """A callback that ends a fit which is not likely to come up to its rival any more.

    What the fit may still gain is thought to be twice what the rival gained from this round on, or
    twice what it gained itself in its last rounds.
    """

    def __init__(self, rival: Rival):
        self._rival = rival
        self._best = [float(rival.best[0])]

    def __call__(self, progress: Progress) -> Action:
        score = progress.validation_score
        if score is None or math.isnan(score):
            score = -math.inf
        self._best.append(max(score, self._best[-1]))
        n = progress.n_iter
        if n < LEAST_ROUNDS:
            return Action.CONTINUE
        best, margin = self._rival
        rest = best[-1] - best[min(n, len(best) - 1)]
        recent = self._best[n] - self._best[n - LEAST_ROUNDS]
        hope = self._best[n] + 2.0 * max(rest, recent) + margin
        return Action.STOP if hope < best[-1] else Action.CONTINUE


@dataclass(frozen=True)
class Trainer:
    """Trains models on the same data, and none of them twice where there is a folder to keep them.

    ``name`` tells data apart whose models are kept in one folder.
    """

    prepared: Prepared
    start: Model
    watch: Watch
    # Whether loss and score are computed in kernels, and nothing of the user's is called.
    in_kernels: bool
    checkpoint: Checkpoint | None = None
    name: str = "models"
    # Counts the models that are trained; the same for all copies.
    phases: Phases = field(default_factory=Phases)

    def train(
        self,
        params: Parameters,
        allowed: NDArray[np.bool_] | None = None,
        is_patient: bool | None = None,
        opening: Opening | None = None,
        record: Record = WHOLE_RECORD,
        rival: Rival | None = None,
    ) -> Model:
        """All rounds of a model; raises KeyboardInterrupt if somebody interrupts it.

        A model that has a rival ends when it is clearly behind.
        """
        prepared = self.prepared
        if is_patient is not None:
            prepared = replace(prepared, is_patient=is_patient)
        model = self._kept_or_trained(prepared, params, allowed, opening, record, rival)
        self.phases.step()
        return model

    def _kept_or_trained(self, prepared: Prepared, *arguments: Any) -> Model:
        if self.checkpoint is None:
            return self._trained(prepared, *arguments)
        key = _file_key(self.name, prepared.is_patient, *arguments)
        model = self.checkpoint.find(key)
        if model is None:
            model = self._trained(prepared, *arguments)
            self.checkpoint.keep(key, model)
        return model

    def _trained(
        self,
        prepared: Prepared,
        params: Parameters,
        allowed: NDArray[np.bool_] | None,
        opening: Opening | None,
        record: Record,
        rival: Rival | None,
    ) -> Model:
        start = replace(self.start, charge=params.charge)  # it has no trees yet
        if allowed is not None and self.in_kernels and type(prepared.engine) is CpuEngine:
            # Most sets are small: counting all that lies beside their features would take longest.
            needed = allowed if opening is None else allowed | opening.features
            prepared = prepared.only(needed)
        sunk = None
        if opening is not None:
            sunk, n_iter = opening.resources, min(opening.n_iter, params.max_iter)
            without_prices = replace(params, tradeoff=0.0, max_iter=n_iter)
            whole = replace(prepared, is_patient=False)
            start = train(whole, without_prices, start, self.watch, allowed=opening.features)
            start.raise_if_cut_short()
        model = train(
            prepared,
            params,
            start,
            self.watch,
            callbacks=() if rival is None else (GivingUp(rival),),
            allowed=allowed,
            sunk=sunk,
            record=record,
        )
        model.raise_if_cut_short()
        return model


class TrainerPool:
    """Trainers that work at the same time, where models are too small to share threads.

    Only where all is done in kernels: a loss or a score of the user's own may remember things, and
    holds the interpreter anyway.
    """

    def __init__(self, trainer: Trainer):
        prepared = trainer.prepared
        self._threads = prepared.threads
        self.trainer = trainer
        n, is_small = prepared.threads.n_threads, prepared.rows.n_rows < SMALL
        self.is_parallel = (
            n > 1 and is_small and trainer.in_kernels and type(prepared.engine) is CpuEngine
        )
        # Models that are trained at once.
        self.n_trainers = n if self.is_parallel else 1
        self._free = SimpleQueue[Trainer]()
        for _ in range(self.n_trainers):
            self._free.put(_on_one_thread(trainer) if self.is_parallel else trainer)

    def watch_by(self, watch: Watch, name: str) -> None:
        """Score held-out rows in another way from now on; ``name`` tells their models apart."""
        self.trainer = replace(self.trainer, watch=watch, name=name)
        for _ in range(self.n_trainers):
            self._free.put(replace(self._free.get(), watch=watch, name=name))

    def run(self, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call ``function(trainer, *task)`` for every task; results in the order of the tasks."""

        def work(*task: Any) -> Any:
            trainer = self._free.get()
            try:
                return function(trainer, *task)
            finally:
                self._free.put(trainer)

        if not self.is_parallel:
            return [work(*task) for task in tasks]
        return self._threads.run(work, tasks)

    def run_on(self, function: Callable[[Trainer], Any], folds: Sequence[Trainer]) -> list[Any]:
        """Call a function with each of some trainers that ``folds`` has made."""
        if not self.is_parallel:
            return [function(trainer) for trainer in folds]
        return self._threads.run(function, [(trainer,) for trainer in folds])

    def folds(self, n_folds: int, params: Parameters) -> list[Trainer]:
        """Trainers on parts of the rows, each of which validates on the rest.

        None where the rows cannot be divided.
        """
        trainers: list[Trainer] = []
        for k, part in enumerate(self.trainer.prepared.folds(n_folds)):
            try:
                with np.errstate(divide="raise", invalid="raise"):
                    start = blank_model(part, params)
            except (ArithmeticError, ValueError):
                return []  # something is so rare that a part has none of it
            name = f"{self.trainer.name}-fold-{k}"
            trainers.append(replace(self.trainer, prepared=part, start=start, name=name))
        return [_on_one_thread(trainer) for trainer in trainers] if self.is_parallel else trainers


def _on_one_thread(trainer: Trainer) -> Trainer:
    """The same trainer with rows and a thread of its own."""
    threads = Threads(1)
    return replace(trainer, prepared=trainer.prepared.twin(CpuEngine(threads), threads))


def _file_key(
    name: str,
    is_patient: bool,
    params: Parameters,
    allowed: Any,
    opening: Opening | None,
    record: Record,
    rival: Rival | None,
) -> str:
    """Name of the file of a model."""
    columns = "all" if allowed is None else np.packbits(allowed).tobytes().hex()
    begun = None
    if opening is not None:
        begun = np.packbits(opening.resources).tobytes().hex(), opening.n_iter
    rounds = (params.max_iter, params.n_iter_no_change if is_patient else None)
    budget = None if params.budget is None else float(params.budget)
    rate = float(params.learning_rate)
    pace = (rate, params.shopping_interval, *rounds)
    paid = params.charge, params.row_budget, begun
    until = None if rival is None else (rival.best.tobytes().hex(), float(rival.margin))
    written = record.train_loss, record.scored_from, until
    text = repr((float(params.tradeoff), budget, pace, columns, paid, written))
    return f"{name}-{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"
