"""Kernels that were compiled beforehand are those that Numba would compile."""

import importlib
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import llvmlite.binding as llvm
import numba
import numpy as np
import pytest
from numba.core.registry import cpu_target

import greedymiser
from greedymiser import MiserClassifier
from greedymiser._core import precompiled
from greedymiser._core.compiling import KERNELS, KernelCache, njit

HOME = Path(greedymiser.__file__).parent

suits = pytest.mark.skipif(
    numba.config.DISABLE_JIT or not precompiled.suits(cpu_target.target_context),
    reason="the archive is for other processors, or was tried with other versions",
)


def test_kernels_that_were_compiled_beforehand_are_current():
    """Where this fails: make kernels."""
    archive = precompiled.ARCHIVE
    assert len(archive.digests) > 90
    for key, digest in archive.digests.items():
        module, _, name = key.rpartition("-")[0].rpartition(".")
        kernel = getattr(importlib.import_module(module), name)
        function = getattr(kernel, "py_func", kernel)
        assert archive.digest(function) == digest, f"{name} has changed: make kernels"


FIT = """if True:
    import numpy as np
    from numba.core import event
    from greedymiser import MiserClassifier

    class Compiled(event.Listener):
        def on_start(self, event):
            print("compiled", event.data["dispatcher"])

        def on_end(self, event):
            pass

    event.register("numba:compile", Compiled())
    X = np.random.default_rng(0).standard_normal((500, 9))
    model = MiserClassifier(costs=np.linspace(1, 2, 9), tradeoff=1e-4, max_iter=15, n_jobs=1)
    print(model.fit(X, X[:, 0] * X[:, 1] > 0).predict_proba(X).tobytes().hex())
"""


def test_no_kernel_of_the_archive_says_where_it_was_compiled_or_for_what():
    archive = precompiled.ARCHIVE
    for key in archive.digests:
        code = str(llvm.parse_bitcode(pickle.loads(archive.content(key))[1]))
        assert ".py" not in code or "/greedymiser/" in code or "/numba/" in code
        assert not re.search(r"[a-z]/+(greedymiser|numba)/", code), key
        assert {int(n) for n in re.findall(r"<(\d+) x ", code)} <= {2}


class Pair(NamedTuple):
    one: int
    other: int


class Turned(NamedTuple):
    other: int
    one: int


class Odd(Pair):
    KIND = 1


class Even(Pair):
    KIND = 2


def test_types_are_told_apart_by_all_that_kernels_know_of_them():
    def named(kind):
        return numba.types.NamedUniTuple(numba.int64, 2, kind)

    kinds = [named(kind) for kind in (Pair, Turned, Odd, Even)]
    kinds += [numba.types.Tuple([kind, numba.int64]) for kind in kinds]
    kinds += [numba.int64, numba.int64[::1], numba.int64[:]]
    assert len({precompiled.described([kind]) for kind in kinds}) == len(kinds)
    assert precompiled.described(kinds) == precompiled.described(list(kinds))


@suits
@pytest.mark.subprocess
def test_a_fresh_installation_compiles_nothing_for_a_first_fit(tmp_path):
    copy = tmp_path / "site" / "greedymiser"
    shutil.copytree(HOME, copy, ignore=shutil.ignore_patterns("__pycache__"))
    variables = {"PYTHONPATH": str(copy.parent), "NUMBA_CACHE_DIR": str(tmp_path / "kept")}
    run = dict(env={**os.environ, **variables}, capture_output=True, text=True)
    first = subprocess.run([sys.executable, "-c", FIT], **run)
    assert first.returncode == 0, first.stderr
    X = np.random.default_rng(0).standard_normal((500, 9))
    model = MiserClassifier(costs=np.linspace(1, 2, 9), tradeoff=1e-4, max_iter=15)
    chances = model.fit(X, X[:, 0] * X[:, 1] > 0).predict_proba(X)
    assert first.stdout.split() == [chances.tobytes().hex()]
    # What came out of it is kept, as Numba keeps what it has compiled.
    (copy / "_core" / "kernels.zip").unlink()
    second = subprocess.run([sys.executable, "-c", FIT], **run)
    assert second.stdout == first.stdout, second.stderr


@suits
def test_a_kernel_is_found_by_its_name_and_types_and_works(monkeypatch):
    (kernel,) = (kernel for kernel in KERNELS if kernel.__name__ == "add_exactly")
    signature = (numba.int64[::1], numba.float64[::1])
    loaded = precompiled.load_kernel(kernel.py_func, signature, cpu_target.target_context)
    total, expected = np.zeros(100, dtype=np.int64), np.zeros(100, dtype=np.int64)
    values = np.random.default_rng(0).standard_normal(50)
    n = len(greedymiser._core.arithmetic.new_sums(1)[0])
    loaded.entry_point(total[:n], values)
    kernel(expected[:n], values)
    assert np.array_equal(total, expected)
    assert expected.any()
    others = (numba.int64[::1], numba.float32[::1])
    context = cpu_target.target_context
    assert precompiled.load_kernel(kernel.py_func, others, context) is None
    for owner, name, other in (
        (precompiled, "NUMBAS", {"0.1"}),
        (precompiled, "PYTHONS", {(2, 7)}),
        (precompiled, "NUMPYS", {"1.26"}),
        (precompiled, "made_with", lambda context: {}),
        (numba.config, "BOUNDSCHECK", 1),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(owner, name, other)
            assert precompiled.load_kernel(kernel.py_func, signature, context) is None


@suits
def test_what_cannot_be_revived_is_compiled(monkeypatch, tmp_path):
    def content(key, function):
        return b"no pickle"

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    about = precompiled.ARCHIVE.about
    monkeypatch.setattr(precompiled, "ARCHIVE", SimpleNamespace(current=content, about=about))

    def doubled(x):
        return 2 * x

    kernel = njit(doubled)
    try:
        assert isinstance(kernel._cache, KernelCache)
        assert kernel(2) == 4
    finally:
        KERNELS.remove(kernel)
