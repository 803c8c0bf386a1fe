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
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.files import write_atomically, write_new
from greedymiser._core.fingerprint import IncompleteError, describe
from greedymiser._core.version import __version__
from greedymiser.costs.cost_model import Purchase
from greedymiser.model.trees import NODE_DTYPE, Ensemble
from greedymiser.training.preparation import Cases, Prepared
from greedymiser.training.train import Model

# The file that tells what the models of a folder were trained on and how.
ABOUT = "checkpoint.json"
SUFFIX = ".npz"

# Bytes at the end of a file that tell whether the others are as they were written.
CHECKSUM_SIZE = 16

# Parameters of an estimator that change no model, or that every model has for itself.
WITHOUT_EFFECT = {
    "costs", "tradeoff", "budget", "n_jobs", "verbose", "warm_start", "engine", "random_state",
}  # fmt: skip


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
        text = json.dumps(about, indent=1, sort_keys=True).encode()
        # In the name of every file: not even two runs that start together share models.
        self._run = hashlib.blake2b(text, digest_size=8).hexdigest()
        self.folder.mkdir(parents=True, exist_ok=True)
        place = self.folder / ABOUT
        if not place.exists():
            others = [entry.name for entry in self.folder.iterdir() if entry.name[0] != "."]
            if others and not place.exists():
                raise CheckpointError(
                    f"checkpoint={str(folder)!r} is no folder of checkpoints: it has no {ABOUT}, "
                    f"but holds {others[0]!r}; name a new folder"
                )
            write_new(place, text)  # unless another run was faster
        try:
            written = dict(json.loads(place.read_bytes()))
        except (ValueError, TypeError):
            raise CheckpointError(f"{str(place)!r} cannot be read; name a new folder") from None
        different = [name for name in {**about, **written} if about.get(name) != written.get(name)]
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
    described = {
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
        "told": np.frombuffer(json.dumps(described).encode(), dtype=np.uint8),
    }


def _model_from_arrays(arrays: Any) -> Model:
    described = json.loads(arrays["told"].tobytes())
    lines = [{**line, "resources": tuple(line["resources"])} for line in described["purchases"]]
    ensemble = Ensemble(
        nodes=arrays["nodes"].view(NODE_DTYPE),
        tree_starts=arrays["tree_starts"],
        category_sets=arrays["category_sets"],
        baseline=arrays["baseline"],
        n_features=int(described["n_features"]),
    )
    return Model(
        ensemble=ensemble,
        purchases=tuple(Purchase(**line) for line in lines),
        train_score=arrays["train_score"],
        validation_score=arrays["validation_score"],
        stopped=described["stopped"],
        best_iter=int(described["best_iter"]),
        charge=described["charge"],
        train_cost=arrays["train_cost"],
        validation_cost=arrays["validation_cost"],
    )


def fingerprints(prepared: Prepared, estimator: Any) -> dict[str, str]:
    """What the models of an estimator depend on: data, costs and settings."""
    assert prepared.validation is not None
    settings = {
        name: _described(name, value)
        for name, value in estimator.get_params(deep=False).items()
        if name not in WITHOUT_EFFECT
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
