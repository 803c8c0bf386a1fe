"""Compile the kernels for GPUs beforehand: PTX that the driver of any of them can read.

    make ptx

Needs numba-cuda and NVVM, but no GPU.
"""

from __future__ import annotations

import inspect
import re
import types
from pathlib import Path
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda import dispatcher

from greedymiser._core.archives import write_archive

# The oldest GPUs that CUDA 13 knows, and the version of PTX that drivers of CUDA 12.0 know. NVVM
# writes its own version, but nothing that is newer than this.
CAPABILITY, VERSION = (7, 5), "8.0"

# Types of arrays by the names of parameters; all other parameters are integers, or floats.
ARRAYS = {
    "bits": "int64 2d",
    "codes": "uint64 2d",
    "columns": "uint8 2d",
    "constants": "float64 1d",
    "discounts": "float64 1d",
    "features": "int64 2d",
    "found": "int64 3d",
    "found_floats": "float64 3d",
    "gains": "float64 1d",
    "gradients": "float64 2d",
    "groups": "float64 2d",
    "hessians": "float64 2d",
    "ideals": "float64 1d",
    "labels": "float64 1d",
    "masks": "int64 1d",
    "order": "int64 1d",
    "places": "int64 1d",
    "plan": "int64 1d",
    "plan_floats": "float64 1d",
    "raw": "float64 2d",
    "rows": "uint32 2d",
    "said": "int64 1d",
    "said_floats": "float64 1d",
    "sets": "uint64 3d",
    "slots": "int64 2d",
    "starts": "int64 1d",
    "terms": "float64 1d",
    "values": "float64 1d",
    "weight": "float64 1d",
    "weights": "int64 1d",
    "words": "int64 2d",
    "y": "float64 1d",
}
FLOATS = {"parameter", "g_step", "h_step", "sigma"}

# Kernels that have other arrays by the same names.
GAINS_OF_NDCG = {"gains": "int64 1d"}
PREDICTED = {"nodes": "int64 2d", "values": "float64 1d", "trees": "int64 2d", "sets": "uint64 2d",
             "out": "float64 2d", "wanted": "int64 1d"}  # fmt: skip


def main() -> None:
    # Device functions ask what they are compiled for.
    device = types.SimpleNamespace(compute_capability=CAPABILITY)
    dispatcher.get_current_device = lambda: device
    from greedymiser.engines.cuda import precompiled, prediction
    from greedymiser.engines.cuda.kernels import counting, marking, ranking, rows, scanning

    wanted: list[tuple[Any, dict[str, str]]] = []
    for module in (counting, marking, ranking, rows, scanning):
        wanted += [(kernel, ARRAYS) for kernel in kernels_of(module)]
    wanted = [
        (kernel, ARRAYS | GAINS_OF_NDCG if name_of(kernel) == "score_queries" else arrays)
        for kernel, arrays in wanted
    ]
    for kind in ("float32", "float64"):
        read = {"rows": f"{kind} 2d", "columns": f"{kind} 2d"}
        wanted += [(kernel, PREDICTED | read) for kernel in kernels_of(prediction)]
    texts, digests = {}, {}
    for kernel, arrays in wanted:
        parameters = inspect.signature(kernel.py_func).parameters
        kinds = [arrays.get(name, "float" if name in FLOATS else "int") for name in parameters]
        key = precompiled.key_of(name_of(kernel), *examples(kinds))
        texts[key] = compiled(kernel, kinds, precompiled.ENTRY)
        digests[key] = precompiled.ARCHIVE.digest(kernel.py_func)
        print(f"{len(texts[key]):8d} bytes  {key}")
    path = Path(str(precompiled.ARCHIVE.file))
    contents = {key: text.encode() for key, text in texts.items()}
    write_archive(path, contents, digests, {})
    print(f"{path.stat().st_size} bytes in {path}")


def kernels_of(module: types.ModuleType) -> list[Any]:
    """The kernels that a module makes."""
    return [
        value
        for value in vars(module).values()
        if isinstance(value, dispatcher.CUDADispatcher)
        and not value.targetoptions.get("device")
        and value.py_func.__module__ == module.__name__
    ]


def name_of(kernel: Any) -> str:
    return str(kernel.py_func.__name__)


def examples(kinds: list[str]) -> tuple[tuple[Any, ...], tuple[int | float, ...]]:
    """Arrays and numbers of some types."""
    arrays = [kind.split() for kind in kinds if " " in kind]
    shapes = [(np.dtype(dtype), int(shape[0])) for dtype, shape in arrays]
    numbers = [1.0 if kind == "float" else 1 for kind in kinds if " " not in kind]
    return tuple(np.empty((1,) * n, dtype) for dtype, n in shapes), tuple(numbers)


def compiled(kernel: Any, kinds: list[str], entry: str) -> str:
    """PTX of a kernel, which is called ``entry`` there."""
    named = {"int": "int64", "float": "float64"}
    for kind in kinds:
        if " " in kind:
            dtype, shape = kind.split()
            named[kind] = f"{dtype}[{':,' * (int(shape[0]) - 1)}::1]"
    signature = f"void({', '.join(named[kind] for kind in kinds)})"
    ptx, _ = cuda.compile(
        kernel.py_func, signature, device=False, abi="numba", cc=CAPABILITY, output="ptx"
    )
    (mangled,) = re.findall(r"\.visible \.entry (\w+)\(", ptx)
    ptx = re.sub(r"^\.version .*$", f".version {VERSION}", ptx, flags=re.MULTILINE)
    # Comments name the version of the compiler, and lines are indented. Nothing uses the globals
    # that Numba adds for every function. Shared arrays come in any order.
    is_idle = re.compile(r"//|\.common \.global .* _ZN08NumbaEnv")
    is_shared = re.compile(r"\.visible \.shared .* _cudapy_smem_(\d+)\[")
    shared, lines = {}, []
    for line in map(str.strip, ptx.replace(mangled, entry).splitlines()):
        if declared := is_shared.match(line):
            shared[int(declared[1])] = line
        elif line and not is_idle.match(line):
            lines.append(line)
    code = next(i for i, line in enumerate(lines) if line.startswith(".visible .entry"))
    return "\n".join([*lines[:code], *(shared[n] for n in sorted(shared)), *lines[code:]])


if __name__ == "__main__":
    main()
