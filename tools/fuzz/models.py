"""Model files: taken to pieces, changed, and put together again.

A file that loads must predict, for few rows and for many, survive another round trip, and be shown
by ``greedymiser inspect`` without a word that the terminal would obey.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.mutations import ON_BYTES, Kind, Mutation, Random, edit_text, pick, refused
from fuzz.tables import fails
from greedymiser import ModelFileError, load
from greedymiser.files.container import (
    METADATA_KEY,
    TENSOR_DTYPES,
    from_safetensors,
    to_safetensors,
)
from greedymiser.files.reading import decode
from greedymiser.files.writing import encode
from greedymiser.model.links import gives_probabilities

FOLDER = Path(__file__).parents[2] / "tests" / "files"

NASTY_JSON: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 255, 256, 2**31 - 1, 2**31, 2**53 + 1, 2**63, 2**64, 10**99,
    10**400, 0.0, -0.0, 0.5, 1e-308, 1.7e308, -1.5, "", "inf", "-inf", "nan", "x", "\ud800", "0",
    "object", "<U3", "<U99999999", "<U0", "<U-1", "int64", "float64", "bool", "S5", "O", "identity",
    "softmax", "two_classes", "own", "huber", "above", "confident", "proximity", "ranker",
    "classifier", "regressor", [], {}, [[]], [0], [""], {"": 0}, {"float": "inf"}, {"float": "nan"},
    [[[[[[[[[[]]]]]]]]]], ["a", "a"], [1, "a", 2.5, True], "a" * 1000, list(range(300)),
]  # fmt: skip

DTYPES = ["BOOL", "U8", "I8", "U16", "I16", "I32", "U32", "F16", "BF16", "F32", "I64", "U64", "F64",
          "C64", "F8_E4M3", "F4", "", "V8"]  # fmt: skip


# -- from a file to its parts and back ----------------------------------------------------------


class Parts:
    """A model file, taken to pieces."""

    def __init__(self, data: bytes):
        tensors, self.text = from_safetensors(data)
        self.arrays = {
            name: tensor.array(name, _dtype(tensor.dtype), tuple(tensor.shape))
            for name, tensor in sorted(tensors.items())
        }
        size = int.from_bytes(data[:8], "little")
        self.header = json.loads(data[8 : 8 + size])
        self.body = data[8 + size :]

    def packed(self) -> bytes:
        return to_safetensors(self.arrays, self.text)

    def with_header(self, text: str | None = None) -> bytes:
        header = (json.dumps(self.header) if text is None else text).encode("utf-8", "replace")
        header += b" " * (-len(header) % 8)
        return len(header).to_bytes(8, "little") + header + self.body


def _dtype(name: str) -> np.dtype[Any]:
    return TENSOR_DTYPES[name]


# -- mutations ----------------------------------------------------------------------------------


def change_length(data: bytes, rng: Random, others: list[bytes]) -> bytes:
    size = int.from_bytes(data[:8], "little")
    wrong = [0, 1, 2, size - 1, size + 1, size + 8, len(data), 2**32, 10**8, 2**63, 2**64 - 1]
    return pick(rng, wrong).to_bytes(8, "little") + data[8:]


def edit_header(data: bytes, rng: Random, others: list[bytes]) -> bytes:
    parts = Parts(data)
    names = [name for name in parts.header if name != "__metadata__"]
    name, other = pick(rng, names), pick(rng, names)
    entry = parts.header[name]
    kind = rng.integers(8)
    if kind == 0:
        entry["dtype"] = pick(rng, DTYPES)
    elif kind == 1:
        nasty = [[], [0], [1], [-1], [2**62, 4], [2**64], [0, 2**62], [1] * 40, None, "x", [0.5]]
        entry["shape"] = pick(rng, [*nasty, entry["shape"][::-1], [*entry["shape"], 1]])
    elif kind == 2:
        entry["data_offsets"] = pick(rng, [[0, 0], [8, 0], [0, 2**63], [-1, 0], [0], None])
    elif kind == 3:  # the two change places
        parts.header[name], parts.header[other] = parts.header[other], parts.header[name]
    elif kind == 4:  # both have the same bytes
        entry["data_offsets"] = list(parts.header[other]["data_offsets"])
    elif kind == 5:
        parts.header[pick(rng, ["x", "", "ensemble.7.baseline", "ünï", name.upper()])] = (
            parts.header.pop(name)
        )
    elif kind == 6:
        parts.header["__metadata__"] = pick(
            rng, [None, {}, [], {METADATA_KEY: ""}, {METADATA_KEY: "[]"}, {"x": "y"}, 5,
                  {METADATA_KEY: None}, {METADATA_KEY: "{}"}, {METADATA_KEY: '{"format":1}'}]
        )  # fmt: skip
    else:
        return parts.with_header(edit_text(json.dumps(parts.header), rng))
    return parts.with_header()


def edit_metadata_text(data: bytes, rng: Random, others: list[bytes]) -> bytes:
    parts = Parts(data)
    text = parts.text
    if rng.random() < 0.3:  # an entry twice
        repeated = pick(rng, ['"format":1,', '"kind":"ranker",', '"about":{},', '"classes":null,'])
        text = text[0] + repeated + text[1:]
    else:
        text = edit_text(text, rng)
    parts.header["__metadata__"] = {METADATA_KEY: text}
    return parts.with_header()


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to everything inside a JSON value."""
    if not isinstance(value, dict | list):
        return [path]
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    found = [path] if path else []
    for key, entry in inside:
        found += places(entry, (*path, key))
    return found


def edit_metadata(data: bytes, rng: Random, others: list[bytes]) -> bytes:
    parts = Parts(data)
    model = json.loads(parts.text)
    for _ in range(rng.integers(1, 3)):
        # What is only told is edited as often as all the rest.
        told = {name: model[name] for name in ("about",) if name in model}
        path = pick(rng, places(pick(rng, [model, told])) or places(model))
        holder = model
        for key in path[:-1]:
            holder = holder[key]
        _edit_entry(holder, path[-1], rng, others)
    parts.header["__metadata__"] = {METADATA_KEY: json.dumps(model)}
    return parts.with_header()


def _edit_entry(holder: Any, key: Any, rng: Random, others: list[bytes]) -> None:
    value = holder[key]
    kind = rng.integers(6)
    if kind == 0 and len(holder) > 1:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(key, pick(rng, [value, *NASTY_JSON]))
    elif kind == 1:
        holder["extra"] = value
    elif kind == 2 and isinstance(value, int | float) and not isinstance(value, bool):
        holder[key] = value + pick(rng, [1, -1, 0.5, 1e-9, 10**6, -value, -2 * value])
    elif kind == 3 and isinstance(value, list):
        holder[key] = pick(rng, [value[:-1], value[::-1], value * 2, value[:1] * len(value)])
    elif kind == 4:
        other = json.loads(Parts(pick(rng, others)).text)
        holder[key] = other.get(key, other["kind"])
    else:
        holder[key] = pick(rng, NASTY_JSON)


def edit_values(data: bytes, rng: Random, others: list[bytes]) -> bytes:
    parts = Parts(data)
    for _ in range(rng.integers(1, 4)):
        name = pick(rng, list(parts.arrays))
        array = parts.arrays[name] = parts.arrays[name].copy()
        if array.size == 0:
            continue
        flat = array.reshape(-1)
        for _ in range(rng.integers(1, 4)):
            at = rng.integers(len(flat))
            flat[at] = _nasty_number(flat, at, rng)
    return parts.packed()


def _nasty_number(flat: np.ndarray[Any, Any], at: int, rng: Random) -> Any:
    """A value for one entry of an array: next to what is there, another's, or extreme."""
    if flat.dtype.kind == "b":
        return not flat[at]
    if flat.dtype.kind == "f":
        extreme = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e308, -1e308, 5e-324, -1.0]
        return pick(rng, [*extreme, flat[at] + 1, -flat[at], flat[rng.integers(len(flat))]])
    limits = np.iinfo(flat.dtype)
    near = [int(flat[at]) + step for step in (-2, -1, 1, 2, 8, 64, 256)]
    choices = [*near, limits.min, limits.max, 0, 1, -1, int(flat[rng.integers(len(flat))])]
    return np.uint64(int(pick(rng, choices)) % 2**64).astype(flat.dtype)  # wraps around


def edit_arrays(data: bytes, rng: Random, others: list[bytes]) -> bytes:
    parts = Parts(data)
    name, other = pick(rng, list(parts.arrays)), pick(rng, list(parts.arrays))
    array, kind = parts.arrays[name], rng.integers(9)
    if kind == 0:
        parts.arrays[name], parts.arrays[other] = parts.arrays[other], array
    elif kind == 1:
        del parts.arrays[name]
    elif kind == 2:
        parts.arrays[pick(rng, ["x", "categories.0", "classes", "rule.thresholds"])] = array
    elif kind == 3:
        parts.arrays[name] = array[: rng.integers(len(array) + 1)]
    elif kind == 4:
        parts.arrays[name] = np.concatenate([array, array[: rng.integers(len(array) + 1)]])
    elif kind == 5:
        parts.arrays[name] = rng.permutation(array)
    elif kind == 6:
        parts.arrays[name] = array.astype(pick(rng, ["f8", "f4", "i8", "i4", "u8", "u1", "?"]))
    elif kind == 7:
        parts.arrays[name] = array.reshape(pick(rng, [(-1, 1), (1, -1), (-1,)]))
    else:  # that of another model
        parts.arrays[name] = Parts(pick(rng, others)).arrays.get(name, array)
    return parts.packed()


def edit_labels(data: bytes, rng: Random, others: list[bytes]) -> bytes:
    """Give text labels of very different lengths to the classes, or to a feature."""
    parts = Parts(data)
    model = json.loads(parts.text)
    n, length = pick(rng, [0, 1, 2, 3, 257, 5000, 5000]), pick(rng, [0, 5, 300, 10**5, 10**5])
    values = [*(f"{i:05d}" for i in range(n - 1)), "z" * length][:n]
    longest = max(map(len, values), default=0)
    width = pick(rng, [longest, longest, longest, 256, 10 * longest, longest - 1])
    entry = {"dtype": pick(rng, [*[f"<U{width}"] * 3, "object"]), "values": values}
    if rng.random() < 0.3:
        model["categories"].append({"feature": int(rng.integers(3)), **entry})
    else:
        parts.arrays.pop("classes", None)
        model |= {"kind": "classifier", "classes": entry}
        if rng.random() < 0.8:
            _without_trees(parts, model, 1 if n == 2 else max(n, 1))
    parts.text = json.dumps(model)
    return parts.packed()


def _without_trees(parts: Parts, model: dict[str, Any], n_outputs: int) -> None:
    """Leave nothing of a model but its baseline, so that it may have any number of outputs."""
    response = "two_classes" if n_outputs == 1 else "softmax"
    model |= {"loss": {"name": "own", "response": response}, "rule": None, "purchases": []}
    parts.arrays.pop("rule.thresholds", None)
    for name in [name for name in parts.arrays if name.startswith("ensemble.")]:
        if not name.startswith("ensemble.0."):
            del parts.arrays[name]
        elif ".nodes." in name:
            parts.arrays[name] = parts.arrays[name][:0]
    parts.arrays["ensemble.0.baseline"] = np.zeros(n_outputs)
    parts.arrays["ensemble.0.tree_starts"] = np.zeros(1, dtype=np.int64)
    parts.arrays["stages"] = np.zeros((1, 4), dtype=np.int64)


MUTATIONS: list[Mutation] = [
    *ON_BYTES, change_length, edit_header, edit_metadata_text, edit_metadata, edit_metadata,
    edit_values, edit_values, edit_values, edit_arrays, edit_labels,
]  # fmt: skip


# -- using them ---------------------------------------------------------------------------------

# To show what is longer takes more time than it tells.
LONGEST_SHOWN = 100_000


def rows_for(model: Any, n: int) -> Any:
    """Numbers of all kinds; a frame with known and unknown labels where labels are not numbers."""
    rng = np.random.default_rng(n)
    X = rng.standard_normal((n, model.n_features)) * 3
    X[rng.random(X.shape) < 0.2] = np.nan
    X[rng.random(X.shape) < 0.05] = np.inf
    X[rng.random(X.shape) < 0.05] = -1e300
    for feature, known in model.categories.items():
        if known.dtype != object and len(known):
            X[::2, feature] = rng.choice(known, len(X[::2]))
    labelled = any(known.dtype == object for known in model.categories.values())
    if not model.categories or (model.feature_names is None and not labelled):
        return X
    import pandas as pd

    names = list(model.names or map(str, range(model.n_features)))
    frame = pd.DataFrame(X, columns=names)
    for feature, known in model.categories.items():
        labels = np.array([*known.tolist(), "unknown", None], dtype=object)
        frame[names[feature]] = pd.Series(labels[rng.integers(len(labels), size=n)], dtype=object)
    return frame


def use(path: Path) -> str:
    """Load a file and do all that a served model does."""
    try:
        model = load(path, n_jobs=1)
    except ModelFileError as error:
        if isinstance(error.__cause__, MemoryError):
            raise  # refused, but much too late
        return refused(path, error)
    with np.errstate(all="ignore"):  # it may well predict nonsense
        for n in (1, 9, 70):
            X = rows_for(model, n)
            assert len(model.predict(X)) == n
            assert model.prediction_costs(X).shape == (n,)
            if model.kind == "classifier" and gives_probabilities(model.loss):
                model.predict_proba(X)
    for member in getattr(model, "models", ()):
        member.predict(X), member.prediction_costs(X)
    model.receipt()
    assert len(model.features_used_) <= model.n_features
    assert len(model.resources_used_) <= len(model.costs.resource_names)
    assert np.isfinite(model.stage_costs).all()
    again = encode(model, model.about)
    assert encode(decode(again), model.about) == again
    if len(again) < LONGEST_SHOWN:
        assert not fails("inspect", path), "cannot be shown"
    return "loaded"


def seeds() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(FOLDER.glob("*.miser"))}


MODELS = Kind("models", seeds, MUTATIONS, use, is_text=False)
