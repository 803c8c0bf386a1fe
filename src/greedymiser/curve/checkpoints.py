"""Models that are trained once: a folder keeps them, and a run that was killed goes on from it.

A search is a sequence of fits that depends on nothing but data and settings. So nothing of its
state is written down, only every finished model: the second run asks for the same models in the
same order, finds most of them in the folder, and ends with the same bits.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.files import write_atomically, write_new
from greedymiser._core.fingerprint import IncompleteError, describe
from greedymiser._core.threads import Threads
from greedymiser._core.version import __version__
from greedymiser.costs.cost_model import Purchase
from greedymiser.engines.cpu import CpuEngine
from greedymiser.model.trees import NODE_DTYPE, Ensemble
from greedymiser.training.parameters import Parameters
from greedymiser.training.preparation import Cases, Prepared
from greedymiser.training.train import Model, Watch, blank_model, train

# The file that tells what the models of a folder were trained on and how.
ABOUT = "checkpoint.json"
SUFFIX = ".npz"

# Bytes at the end of a file that tell whether the others are as they were written.
CHECKSUM_SIZE = 16

# Parameters of an estimator that change no model, or that every model has for itself.
OF_NO_MATTER = {
    "costs", "tradeoff", "budget", "n_jobs", "verbose", "warm_start", "engine", "random_state",
}  # fmt: skip


# A model on fewer rows has little use for a second thread.
SMALL = 20_000


class CheckpointError(ValueError):
    """A folder of checkpoints belongs to other data or settings."""


class Checkpoint:
    """A folder of finished models, all of the same data and settings.

    Parameters
    ----------
    folder : path
        Made if it is not there.
    about : mapping from name to text
        What the models depend on. A folder where any of it differs is refused.
    """

    def __init__(self, folder: str | os.PathLike[str], about: Mapping[str, str]):
        self.folder = Path(folder)
        about = {"greedymiser": __version__, **about}
        told = json.dumps(about, indent=1, sort_keys=True).encode()
        # In the name of every file: not even two runs that start together share models.
        self._run = hashlib.blake2b(told, digest_size=8).hexdigest()
        self.folder.mkdir(parents=True, exist_ok=True)
        place = self.folder / ABOUT
        if not place.exists():
            others = [entry.name for entry in self.folder.iterdir() if entry.name[0] != "."]
            if others and not place.exists():
                raise CheckpointError(
                    f"checkpoint={str(folder)!r} is no folder of checkpoints: it has no {ABOUT}, "
                    f"but holds {others[0]!r}; name a new folder"
                )
            write_new(place, told)  # unless another run was faster
        try:
            found = dict(json.loads(place.read_bytes()))
        except (ValueError, TypeError):
            raise CheckpointError(f"{str(place)!r} cannot be read; name a new folder") from None
        different = [name for name in {**about, **found} if about.get(name) != found.get(name)]
        if different:
            raise CheckpointError(
                f"checkpoint={str(folder)!r} holds models of another run: "
                f"{', '.join(different)} differ; name a new folder, or remove this one"
            )

    def find(self, key: str) -> Model | None:
        """A model that was kept; None if there is none, or if its file was damaged."""
        try:
            whole = self._place(key).read_bytes()
        except OSError:
            return None
        content, checksum = whole[:-CHECKSUM_SIZE], whole[-CHECKSUM_SIZE:]
        if _checksum(content) != checksum:
            return None
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return _model_from_arrays(arrays)

    def keep(self, key: str, model: Model) -> None:
        """Write a model, whole or not at all."""
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, **_arrays(model))
        content = file.getvalue()
        write_atomically(self._place(key), content + _checksum(content))

    def _place(self, key: str) -> Path:
        return self.folder / f"{key}-{self._run}{SUFFIX}"


def _checksum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=CHECKSUM_SIZE).digest()


def _arrays(model: Model) -> dict[str, NDArray[Any]]:
    ensemble = model.ensemble
    told = {
        "purchases": [asdict(line) for line in model.purchases],
        "stopped": model.stopped,
        "best_iter": model.best_iter,
        "charge": model.charge,
        "n_features": ensemble.n_features,
    }
    return {
        "nodes": ensemble.nodes.view(np.uint8),
        "tree_starts": ensemble.tree_starts,
        "category_sets": ensemble.category_sets,
        "baseline": ensemble.baseline,
        "train_score": model.train_score,
        "validation_score": model.validation_score,
        "train_cost": model.train_cost,
        "validation_cost": model.validation_cost,
        "told": np.frombuffer(json.dumps(told).encode(), dtype=np.uint8),
    }


def _model_from_arrays(arrays: Any) -> Model:
    told = json.loads(arrays["told"].tobytes())
    lines = [{**line, "resources": tuple(line["resources"])} for line in told["purchases"]]
    ensemble = Ensemble(
        nodes=arrays["nodes"].view(NODE_DTYPE),
        tree_starts=arrays["tree_starts"],
        category_sets=arrays["category_sets"],
        baseline=arrays["baseline"],
        n_features=int(told["n_features"]),
    )
    return Model(
        ensemble=ensemble,
        purchases=tuple(Purchase(**line) for line in lines),
        train_score=arrays["train_score"],
        validation_score=arrays["validation_score"],
        stopped=told["stopped"],
        best_iter=int(told["best_iter"]),
        charge=told["charge"],
        train_cost=arrays["train_cost"],
        validation_cost=arrays["validation_cost"],
    )


class Base(NamedTuple):
    """What a model begins with, where rows pay: what everybody is asked for."""

    # Resources, as flags, that count as paid; and the features for which they are enough.
    resources: NDArray[np.bool_]
    features: NDArray[np.bool_]
    # Rounds that use nothing else.
    n_iter: int


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

    def train(
        self,
        params: Parameters,
        allowed: NDArray[np.bool_] | None = None,
        is_patient: bool | None = None,
        base: Base | None = None,
    ) -> Model:
        """All rounds of a model; raises KeyboardInterrupt if somebody interrupts it."""
        prepared = self.prepared
        if is_patient is not None:
            prepared = replace(prepared, is_patient=is_patient)
        if self.checkpoint is None:
            return self._trained(prepared, params, allowed, base)
        key = _file_key(self.name, params, allowed, prepared.is_patient, base)
        model = self.checkpoint.find(key)
        if model is None:
            model = self._trained(prepared, params, allowed, base)
            self.checkpoint.keep(key, model)
        return model

    def _trained(
        self,
        prepared: Prepared,
        params: Parameters,
        allowed: NDArray[np.bool_] | None,
        base: Base | None,
    ) -> Model:
        start = replace(self.start, charge=params.charge)  # it has no trees yet
        sunk = None
        if base is not None:
            sunk, n_iter = base.resources, min(base.n_iter, params.max_iter)
            opening = replace(params, tradeoff=0.0, max_iter=n_iter)
            whole = replace(prepared, is_patient=False)
            start = train(whole, opening, start, self.watch, allowed=base.features)
            start.raise_if_cut_short()
        model = train(prepared, params, start, self.watch, allowed=allowed, sunk=sunk)
        model.raise_if_cut_short()
        return model


class TrainingCrew:
    """Trainers that work at the same time, where models are too small to share threads.

    Only where all is done in kernels: a loss or a score of the user's own may remember things, and
    holds the interpreter anyway.
    """

    def __init__(self, trainer: Trainer):
        prepared = trainer.prepared
        self._threads = prepared.threads
        self.trainer = trainer
        n, is_small = prepared.threads.n_threads, prepared.rows.n_rows < SMALL
        self.is_team = (
            n > 1 and is_small and trainer.in_kernels and type(prepared.engine) is CpuEngine
        )
        # Models that are trained at once.
        self.n_members = n if self.is_team else 1
        self._free = SimpleQueue[Trainer]()
        for _ in range(self.n_members):
            self._free.put(_on_one_thread(trainer) if self.is_team else trainer)

    def run(self, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call ``function(trainer, *task)`` for every task; results in the order of the tasks."""

        def work(*task: Any) -> Any:
            trainer = self._free.get()
            try:
                return function(trainer, *task)
            finally:
                self._free.put(trainer)

        if not self.is_team:
            return [work(*task) for task in tasks]
        return self._threads.run(work, tasks)

    def run_folds(
        self, function: Callable[[Trainer], Any], n_folds: int, params: Parameters
    ) -> list[Any]:
        """Call a function with trainers on parts of the rows, each of which validates on the rest.

        Nothing comes back where the rows cannot be divided.
        """
        trainers = self._folds(n_folds, params)
        if not self.is_team:
            return [function(trainer) for trainer in trainers]
        return self._threads.run(function, [(_on_one_thread(trainer),) for trainer in trainers])

    def _folds(self, n_folds: int, params: Parameters) -> list[Trainer]:
        found = []
        for k, part in enumerate(self.trainer.prepared.folds(n_folds)):
            try:
                with np.errstate(divide="raise", invalid="raise"):
                    start = blank_model(part, params)
            except (ArithmeticError, ValueError):
                return []  # something is so rare that a part has none of it
            found.append(replace(self.trainer, prepared=part, start=start, name=f"fold-{k}"))
        return found


def _on_one_thread(trainer: Trainer) -> Trainer:
    """The same trainer with rows and a thread of its own."""
    threads = Threads(1)
    return replace(trainer, prepared=trainer.prepared.twin(CpuEngine(threads), threads))


def _file_key(
    name: str, params: Parameters, allowed: Any, is_patient: bool, base: Base | None
) -> str:
    """Name of the file of a model."""
    columns = "all" if allowed is None else np.packbits(allowed).tobytes().hex()
    opening = None if base is None else (np.packbits(base.resources).tobytes().hex(), base.n_iter)
    rounds = (params.max_iter, params.n_iter_no_change if is_patient else None)
    budget = None if params.budget is None else float(params.budget)
    rate = float(params.learning_rate)
    pace = (rate, params.shopping_interval, *rounds)
    paid = params.charge, params.row_budget, opening
    text = repr((float(params.tradeoff), budget, pace, columns, paid))
    return f"{name}-{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"


def fingerprints(prepared: Prepared, estimator: Any) -> dict[str, str]:
    """What the models of an estimator depend on: data, costs and settings."""
    assert prepared.validation is not None
    settings = {
        name: _described(name, value)
        for name, value in estimator.get_params(deep=False).items()
        if name not in OF_NO_MATTER
    }
    costs = prepared.schema.costs
    prices = (costs.resource_names, costs.resource_costs.tolist(), costs.needs, costs.tree_cost)
    return {
        "estimator": _described("estimator", type(estimator)),
        "training data": _digest_of_data(prepared.train),
        "validation data": _digest_of_data(prepared.validation.cases),
        "columns": repr((prepared.schema.columns, sorted(prepared.schema.categories))),
        "costs": hashlib.blake2b(repr(prices).encode(), digest_size=16).hexdigest(),
        "seed": str(prepared.schema.seed),
        **settings,
    }


def _described(name: str, value: Any) -> str:
    try:
        return describe(value)
    except IncompleteError as fault:
        raise CheckpointError(
            f"checkpoint cannot be used with this {name}: {fault}, and a later run could not tell "
            f"whether {name} is still the same; change it, or leave checkpoint out"
        ) from None


def _digest_of_data(cases: Cases) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for column in range(cases.table.n_columns):
        digest.update(cases.table.columns([column], cases.rows).tobytes())
    for part in (cases.y, cases.weight, cases.starts):
        digest.update(b"none" if part is None else np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()
