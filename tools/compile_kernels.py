"""Compile the kernels for processors beforehand, as far as all of a kind have it in common.

    make kernels

What ``greedymiser.warm`` compiles goes into the archive, and what only a fit on a GPU asks of the
processor, by way of Numba's simulator.
"""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import llvmlite.binding as llvm
import numba
import numpy as np
from numba.core.codegen import JITCodeLibrary
from numba.core.registry import cpu_target

from greedymiser._core import compiling, precompiled
from greedymiser._core.archives import write_archive

# Folders of this machine that locations in code begin with.
PLACES = [f"{Path(file).parents[n]}/" for file, n in ((compiling.__file__, 2), (numba.__file__, 1))]

# What LLVM was given, by library.
GIVEN: dict[int, tuple[JITCodeLibrary, bytes]] = {}


def keep_what_llvm_is_given() -> None:
    """Note the code of all kernels before it is optimised; and compile all of them anew."""
    optimise = JITCodeLibrary._optimize_final_module

    def noted(library: JITCodeLibrary) -> None:
        if type(library) is JITCodeLibrary:
            GIVEN[id(library)] = library, library._final_module.as_bitcode()
        optimise(library)

    JITCodeLibrary._optimize_final_module = noted
    compiling.KernelCache.load_overload = lambda *arguments: None


def compiled() -> dict[str, tuple[bytes, str]]:
    """All kernels that were compiled since, and digests of what they were made from, by key."""
    found = {}
    for kernel in compiling.KERNELS:
        if not isinstance(kernel._cache, compiling.KernelCache):
            continue  # only other kernels call it
        function = kernel.py_func
        for signature, result in kernel.overloads.items():
            code = precompiled.stored(result, without_places(GIVEN[id(result.library)][1]))
            if any(str(place).encode() in code for place in PLACES):
                raise ValueError(f"{function.__qualname__} names a folder of this machine")
            key = precompiled.kernel_key(function, signature)
            found[key] = code, precompiled.ARCHIVE.digest(function)
    return found


def without_places(code: bytes) -> bytes:
    """Code of LLVM's that does not say where it was compiled, as exceptions do; nor for what.

    What stands for a folder is as long: how long a text is stands elsewhere.
    """
    text = str(llvm.parse_bitcode(code))
    for place in PLACES:
        text = text.replace(place, "/" * len(place))
    wide = [int(n) for n in re.findall(r"<(\d+) x ", text) if int(n) > 2]
    if wide:
        raise ValueError(f"there are vectors of {wide}: other processors have other ones")
    return llvm.parse_assembly(text).as_bitcode()


def train_in_the_simulator() -> None:
    """Small fits on what Numba takes for a GPU: what they ask of the processor is compiled."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    import simulated  # noqa: F401
    from greedymiser import MiserClassifier, MiserRanker, MiserRegressor

    rng = np.random.default_rng(0)
    X = np.c_[rng.standard_normal((60, 2)), rng.integers(3, size=60)]
    y, qid = X[:, 0] + (X[:, 2] > 1), np.arange(60) // 6
    few = dict(engine="cuda", max_iter=2, max_depth=2, min_samples_leaf=5, early_stopping=False)
    for more in ({}, dict(tradeoff=1e-6), dict(tradeoff=1e-6, charge="row")):
        for categorical in (None, [2]):
            settings = {
                **few,
                **more,
                "costs": [1.0, 2.0, 3.0],
                "categorical_features": categorical,
            }
            MiserClassifier(**settings).fit(X, y > 0.5)
            MiserRegressor(**settings).fit(X, y)
    MiserRegressor(**few, monotonic_cst=[1, 0, 0]).fit(X, y)
    MiserRegressor(**few, subsample=0.5, max_features=0.5).fit(X, y)
    MiserRanker(**few).fit(X, y > 0.5, qid=qid)


def main() -> None:
    keep_what_llvm_is_given()
    if "--simulator" in sys.argv:
        train_in_the_simulator()
        Path(sys.argv[-1]).write_bytes(pickle.dumps(compiled()))
        return
    from greedymiser import warm

    warm.warm_up()
    found = compiled()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernels"
        command = [sys.executable, __file__, "--simulator", str(file)]
        subprocess.run(command, check=True, env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"})
        found = pickle.loads(file.read_bytes()) | found
    about = precompiled.made_with(cpu_target.target_context)
    path = Path(str(precompiled.ARCHIVE.file))
    contents = {key: code for key, (code, _) in found.items()}
    write_archive(path, contents, {key: digest for key, (_, digest) in found.items()}, about)
    print(f"{len(found)} kernels, {path.stat().st_size} bytes in {path}")


if __name__ == "__main__":
    main()
