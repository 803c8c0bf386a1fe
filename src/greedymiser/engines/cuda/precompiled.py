"""Kernels that were compiled beforehand: PTX, of which the driver makes code for its GPU.

Numba needs six seconds for those of a fit, in every process; the driver needs one for all of them,
and keeps what it makes. ``tools/compile_ptx.py`` writes the archive. A kernel that has changed
since, or is called with other types, is compiled by Numba.
"""

from __future__ import annotations

import json
import zipfile
from functools import cache
from importlib import resources
from tokenize import TokenError
from typing import Any, NamedTuple

from greedymiser._core.compiling import digest_of

ARCHIVE = resources.files("greedymiser.engines.cuda") / "ptx.zip"

# What kernels are called in the archive, whatever Numba makes of their names.
ENTRY = "kernel"


class Compiled(NamedTuple):
    """PTX of a kernel, and a digest of what it was made from."""

    ptx: bytes
    digest: str


def key_of(name: str, arrays: tuple[Any, ...], scalars: tuple[int | float, ...]) -> str:
    """What a kernel is found by: its name, and the types of what it is called with."""
    kinds = [f"{array.dtype.name}_{array.ndim}d{_gaps(array)}" for array in arrays]
    return "-".join([name, *kinds, *("f" if type(one) is float else "i" for one in scalars)])


def _gaps(array: Any) -> str:
    """Nothing for arrays without gaps, in C order: kernels of the archive know no others."""
    expected = array.dtype.itemsize
    for size, stride in zip(reversed(array.shape), reversed(array.strides), strict=True):
        if size > 1 and stride != expected and array.size > 0:
            return "_strided"
        expected *= size
    return ""


@cache
def archive() -> dict[str, Compiled]:
    """All kernels by their keys; none if there is no archive that can be read."""
    try:
        with ARCHIVE.open("rb") as file, zipfile.ZipFile(file) as zipped:
            digests = json.loads(zipped.read("digests.json"))
            return {key: Compiled(zipped.read(f"{key}.ptx"), digests[key]) for key in digests}
    except Exception:  # a damaged file may raise anything, and Numba can do without it
        return {}


def ptx_of(kernel: Any, key: str) -> bytes | None:
    """PTX of a kernel for some types; None if it has to be compiled."""
    compiled = archive().get(key)
    if compiled is None:
        return None
    try:
        is_current = compiled.digest == digest_of(kernel.py_func, of_text=True)
    except (OSError, TypeError, SyntaxError, TokenError):  # there is no source to compare with
        return None
    return compiled.ptx if is_current else None
