"""Arrays and a text as bytes, and the bytes of a file that may be a model."""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save as serialize

# The entry of the safetensors metadata that holds our JSON, and the one with a checksum of
# everything else in the file. The first files had none.
METADATA_KEY, CHECKSUM_KEY = "greedymiser", "sha256"

# Safetensors refuses longer headers.
LONGEST_HEADER = 100_000_000

# What safetensors calls the types of the arrays that a model file may hold.
TENSOR_DTYPES = {
    "BOOL": np.dtype(np.bool_),
    "I8": np.dtype(np.int8),
    "I16": np.dtype(np.int16),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
    "U8": np.dtype(np.uint8),
    "U16": np.dtype(np.uint16),
    "U32": np.dtype(np.uint32),
    "U64": np.dtype(np.uint64),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
}

# How pickles, and what joblib and others compress them with, begin.
PICKLE_STARTS = (b"\x80", b"x\x01", b"x\x5e", b"x\x9c", b"x\xda", b"\x1f\x8b", b"BZh", b"\xfd7zXZ")

PICKLE = (
    "it looks like a pickle, as joblib writes it, which could run any code; "
    "if you trust it, load it with joblib and save the model with greedymiser.save"
)
SOMETHING_ELSE = "it is a safetensors file that holds something else"


class ModelFileError(ValueError):
    """A file is not a model file, or something in it is wrong."""


class ContentError(Exception):
    """What is wrong with the content of a model; the caller knows which model that is."""


@dataclass(frozen=True)
class Tensor:
    """An array as the container holds it: nothing is checked yet but that its bytes are there."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | bytearray

    def array(self, what: str, dtype: np.dtype[Any], shape: tuple[int | None, ...]) -> NDArray[Any]:
        """Return the array, if it has this type and shape; None stands for any length."""
        if TENSOR_DTYPES.get(self.dtype) != dtype:
            raise ContentError(f"{what} has type {self.dtype}, not {dtype}")
        fits = len(self.shape) == len(shape) and all(
            wanted in (None, length) for wanted, length in zip(shape, self.shape, strict=True)
        )
        if not fits or math.prod(self.shape) * dtype.itemsize != len(self.data):
            raise ContentError(f"{what} has shape {list(self.shape)}, not {_shape_text(shape)}")
        # A byte that is neither 0 nor 1 is no bool, and compiled code may do anything with it.
        if dtype.kind == "b" and np.frombuffer(self.data, dtype=np.uint8).max(initial=0) > 1:
            raise ContentError(f"{what} has entries that are neither true nor false")
        # Stored with the small end first; the copy is aligned, and ours.
        stored = np.frombuffer(self.data, dtype=dtype.newbyteorder("<"))
        return stored.astype(dtype).reshape(self.shape)


def _shape_text(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join('n' if length is None else str(length) for length in shape)}]"


def to_safetensors(arrays: Mapping[str, NDArray[Any]], text: str) -> bytes:
    """Write arrays and a text as safetensors: the same ones always give the same bytes."""
    plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    data = serialize(plain, {METADATA_KEY: text})
    header, body = _parts(data)
    # Not by safetensors, which does not promise to keep several entries in order.
    header["__metadata__"][CHECKSUM_KEY] = _checksum(header, body)
    written = json.dumps(header, separators=(",", ":")).encode()
    written += b" " * (-len(written) % 8)  # arrays begin at a multiple of eight
    return len(written).to_bytes(8, "little") + written + body


def from_safetensors(data: bytes) -> tuple[dict[str, Tensor], str]:
    """Take arrays and a text out of safetensors."""
    try:
        entries = deserialize(data)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        message = str(error)
        raise ContentError(message.partition("deserializing: ")[2] or message) from None
    tensors = {
        name: Tensor(str(entry["dtype"]), tuple(entry["shape"]), entry["data"])
        for name, entry in entries
    }
    # Safetensors has parsed this header and found it good; ``deserialize`` leaves the metadata out.
    header, body = _parts(data)
    text = _text_of(header)
    if header["__metadata__"].pop(CHECKSUM_KEY, None) not in (None, _checksum(header, body)):
        raise ContentError("its checksum is wrong: it was damaged, or changed by another program")
    return tensors, text


def _parts(data: bytes) -> tuple[dict[str, Any], memoryview]:
    """The header of a file, and the bytes of its arrays."""
    start = 8 + int.from_bytes(data[:8], "little")
    return _parsed(data[8:start]), memoryview(data)[start:]


def _checksum(header: Mapping[str, Any], body: memoryview) -> str:
    """A digest of the arrays and of what the header says of them, however it is spelled."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    digest.update(body)
    return digest.hexdigest()


def _parsed(header: bytes) -> dict[str, Any]:
    try:
        entries = json.loads(header)
    except (ValueError, RecursionError):
        entries = None
    if not isinstance(entries, dict):
        raise ContentError("its header is not JSON")
    return entries


def _text_of(header: Mapping[str, Any]) -> str:
    metadata = header.get("__metadata__")
    text = metadata.get(METADATA_KEY) if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        raise ContentError(SOMETHING_ELSE)
    return text


def read_bytes(path: Path) -> bytes:
    """The content of a file that begins as a model file does.

    What begins otherwise is not read, however large it is. A device or a pipe could go on for ever.
    """
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ContentError("it is not a regular file")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        _check_beginning(file, size)
        file.seek(0)
        return file.read(size)


def _check_beginning(file: BinaryIO, size: int) -> None:
    """Read the header: it must be ours, and the rest of the file as long as it says."""
    start = file.read(8)
    length = int.from_bytes(start, "little")
    fault = None
    if len(start) < 8 or length < 2:
        fault = "its header is too small"
    elif length > LONGEST_HEADER:
        fault = "it does not begin with the size of a header"
    elif length > size - 8:
        fault = "it ends within its header: it may be cut off"
    elif file.read(1) != b"{":
        fault = "its header is not JSON"
    if fault is not None:
        raise ContentError(PICKLE if start.startswith(PICKLE_STARTS) else fault)
    header = b"{" + file.read(length - 1)
    if METADATA_KEY.encode() not in header:
        raise ContentError(SOMETHING_ELSE)
    n_bytes = size - 8 - length
    end = _end_of_arrays(_parsed(header))
    if n_bytes != end:
        cut = ": it may be cut off" if n_bytes < end else ""
        raise ContentError(f"it has {n_bytes} bytes of arrays, and its header says {end}{cut}")


def _end_of_arrays(header: Mapping[str, Any]) -> int:
    """Where the last array ends; entries that are wrong are left to safetensors."""
    entries = [entry for name, entry in header.items() if name != "__metadata__"]
    offsets = [entry.get("data_offsets") for entry in entries if isinstance(entry, dict)]
    ends = [pair[1] for pair in offsets if isinstance(pair, list) and len(pair) == 2]
    return max((end for end in ends if type(end) is int), default=0)
