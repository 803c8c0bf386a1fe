"""Kernels that were compiled beforehand: PTX, of which the driver makes code for its GPU.

Numba needs six seconds for those of a fit, in every process; the driver needs one for all of them,
and keeps what it makes. ``tools/compile_ptx.py`` writes the archive. A kernel that has changed
since, or is called with other types, is compiled by Numba.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from greedymiser._core.archives import Archive

ARCHIVE = Archive(resources.files("greedymiser.engines.cuda") / "ptx.zip")

# What kernels are called in the archive, whatever Numba makes of their names.
ENTRY = "kernel"


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


def ptx_of(kernel: Any, key: str) -> bytes | None:
    """PTX of a kernel for some types; None if it has to be compiled."""
    return ARCHIVE.current(key, kernel.py_func)
