"""Kernels are compiled wherever the package is installed, and kept where that is possible."""

import ctypes
import errno
import importlib.util
import inspect
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core.runtime import _nrt_python, rtsys

from greedymiser import MiserRegressor, save
from greedymiser._core import compiling
from greedymiser._core.compiling import KERNELS, CacheWarning, inner, njit
from greedymiser._core.digests import words_of

SOURCE = Path(compiling.__file__).parents[1]

# -- an installation that can only be read --------------------------------------------------------

NOBODY = 65534

# prctl's number for taking a capability away for good, and root's capabilities to ignore the
# permissions of files.
PR_CAPBSET_DROP, CAPABILITIES = 24, (1, 2)


def heed_permissions() -> None:
    """Make a child of root's as bound to the permissions of files as others are."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in CAPABILITIES:
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "cannot give up a capability")


def as_somebody_else(code: str, **variables: str) -> subprocess.CompletedProcess:
    """Run code as a user who owns nothing: nobody, where nobody may run this interpreter."""
    command = [sys.executable, "-c", code]
    how = dict(env={"PATH": os.environ["PATH"], **variables}, capture_output=True, text=True)
    if os.getuid() != 0:
        return subprocess.run(command, **how)
    nobody = dict(user=NOBODY, group=NOBODY, extra_groups=[])
    try:
        subprocess.run([sys.executable, "-c", "import numba"], check=True, **nobody, **how)
    except (OSError, subprocess.CalledProcessError):  # an interpreter in root's own home
        return subprocess.run(command, preexec_fn=heed_permissions, **how)
    return subprocess.run(command, **nobody, **how)


def close(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)


def reopen(folder: Path) -> None:
    folder.chmod(0o755)
    for path in folder.iterdir():
        if path.is_dir():
            reopen(path)


permissions = pytest.mark.skipif(os.name != "posix", reason="files have other permissions here")


@pytest.fixture(scope="module")
def image():
    """A copy of the package beside a model, in a folder that everybody may read."""
    folder = Path(tempfile.mkdtemp())
    shutil.copytree(
        SOURCE, folder / "site" / SOURCE.name, ignore=shutil.ignore_patterns("__pycache__")
    )
    (folder / "home").mkdir()
    X = np.random.default_rng(0).standard_normal((200, 3))
    save(MiserRegressor(max_iter=10).fit(X, X[:, 0]), folder / "model.miser")
    yield folder
    reopen(folder)
    shutil.rmtree(folder)


SERVE = """if True:
    import os, sys, warnings
    home = os.environ["HOME"]
    for folder in (home, "site/greedymiser", "site/greedymiser/__pycache__"):
        try:
            open(os.path.join(folder, "probe"), "w")
        except OSError:
            pass
        else:
            sys.exit(f"{folder} can be written to")
    import numpy as np
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from greedymiser import load
        assert not caught
        model = load("model.miser")
        for n in (1, 100):
            print(len(model.predict(np.zeros((n, 3)))))
    for warning in caught:
        print(warning.category.__name__)
"""


@pytest.mark.subprocess
@permissions
def test_the_package_serves_where_nothing_can_be_written(image):
    close(image)
    code = f"import os; os.chdir({str(image)!r})\n{SERVE}"
    variables = {"PYTHONPATH": str(image / "site"), "HOME": str(image / "home")}
    done = as_somebody_else(code, **variables)
    assert done.returncode == 0, done.stderr
    # However many kernels are compiled, there is one warning.
    assert done.stdout.split() == ["1", "100", "CacheWarning"]


@pytest.mark.subprocess
@permissions
def test_code_that_was_compiled_beforehand_is_read(image):
    """Beside the source; that NUMBA_CACHE_DIR is another place is seen below."""
    reopen(image)
    code = f"import os; os.chdir({str(image)!r})\n{SERVE}"
    variables = {"PYTHONPATH": str(image / "site"), "HOME": str(image / "home")}
    done = subprocess.run(
        [sys.executable, "-m", "greedymiser.warm", "--serving"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert str(image / "site/greedymiser") in done.stdout
    close(image)
    done = as_somebody_else(code, **variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "100"]


# -- a cache that is no good ----------------------------------------------------------------------


@pytest.fixture
def doubled(tmp_path, monkeypatch):
    """A function in a file, and an empty folder for its compiled code."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "compiled"))
    monkeypatch.setattr(compiling, "_has_warned", False)
    monkeypatch.setattr(compiling, "KERNELS", [])
    file = tmp_path / "functions.py"
    file.write_text("def doubled(x):\n    return 2 * x\n")
    spec = importlib.util.spec_from_file_location("functions", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.doubled


def kept(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "compiled").rglob("*") if path.is_file()]


def test_compiled_code_is_kept_and_found_again(doubled, tmp_path):
    assert njit(doubled)(2) == 4
    assert len(kept(tmp_path)) == 2  # an index and the code
    again = njit(doubled)
    assert again(3) == 6
    assert sum(again.stats.cache_hits.values()) == 1


KERNEL_TEXT = """
from greedymiser._core.compiling import inner, njit

STEP = {step}

@inner
def part(x):
    return x + {added}

@njit
def whole(x):
    return part(x) + STEP
{between}
@njit
def other(x):
    return 3 * x
"""


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")
@pytest.mark.parametrize(
    ("changes", "whole", "other"),
    [
        ({}, True, True),
        ({"between": "\n\n# A comment moves what comes after it.\n"}, True, True),
        ({"added": 2}, False, True),
        ({"step": 7}, False, True),
    ],
    ids=["nothing", "comment", "part", "constant"],
)
def test_an_edit_leaves_the_code_of_other_kernels_current(
    changes, whole, other, tmp_path, monkeypatch
):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "compiled"))
    monkeypatch.setattr(compiling, "KERNELS", [])
    monkeypatch.setattr("greedymiser._core.digests.OURS", "kernels")
    file = tmp_path / "kernels.py"

    def hits(**said):
        file.write_text(KERNEL_TEXT.format(**{"step": 5, "added": 1, "between": "", **said}))
        spec = importlib.util.spec_from_file_location("kernels", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        expected = 10 + said.get("added", 1) + said.get("step", 5)
        assert (module.whole(10), module.other(10)) == (expected, 30)
        return [sum(k.stats.cache_hits.values()) == 1 for k in (module.whole, module.other)]

    assert hits() == [False, False]
    assert hits(**changes) == [whole, other]


def test_a_digest_of_text_sees_words_lines_and_blocks_and_nothing_else():
    def one(x):
        if x:
            x = x + 1.5
            x = -x
        return x

    def same(x):
        """What is said of it does not matter."""
        if x:
            x = x + 1.5  # nor here
            x = -x

        return x

    def other_number(x):
        if x:
            x = x + 1.25
            x = -x
        return x

    def other_block(x):
        if x:
            x = x + 1.5
        x = -x
        return x

    digests = []
    for function in (one, same, other_number, other_block):
        text = inspect.getsource(function).replace(function.__name__, "one", 1)
        words = words_of(text)
        digests.append(" ".join(words))
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
    assert words_of("y = x\n-y\n") != words_of("y = x -y\n")
    assert words_of("x == 'a'\n") != words_of("x == 'b'\n")


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")
def test_what_only_kernels_call_has_no_code_of_its_own_and_raises_through_them():
    @inner
    def checked(x):
        if x < 0:
            raise ValueError("below 0")
        return 2 * x

    @njit(cache=False)
    def kernel(x):
        return checked(x) + 1

    try:
        assert kernel(2) == 5
        with pytest.raises(ValueError, match="below 0"):
            kernel(-1)
        with pytest.raises(TypeError, match="checked can only be called by compiled code"):
            checked(2)
        assert kernel(0.5) == 2.0
    finally:
        KERNELS.remove(kernel)
        KERNELS.remove(checked)


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")
def test_functions_borrow_their_arguments_and_own_what_they_return():
    @inner
    def swapped_sum(pair, n):
        one, other = pair
        for i in range(n):
            row = one[i]  # a row of what is borrowed
            one, other = other, np.empty_like(other)  # of the two, one is the function's own
            other[:] = row
        return one[0, 0] + other[0, 0]

    @inner
    def first_of(pair):
        return pair[0]

    @njit(cache=False)
    def kernel(one, other, n):
        total = 0.0
        for _ in range(n):
            total += swapped_sum((one, other), 2) + first_of((one[1:], other))[0, 0]
        return total

    @njit(cache=False)
    def handed_back(pair):
        return pair[1], pair[0][:1]

    def code_that_counts(function):
        (code,) = (function.inspect_llvm(s) for s in function.signatures)
        return "NRT_incref" in code

    @njit(cache=False)
    def alone(array):
        return array[1].sum() + array[:1].sum()

    @njit(cache=False)
    def keep(kept, array):
        kept.append(array[1:2])

    one, other = np.arange(6.0).reshape(3, 2), 10 + np.arange(6.0).reshape(3, 2)
    try:
        kernel(one, other, 3)  # Numba keeps something of its first call
        owners = sys.getrefcount(one), sys.getrefcount(other)
        _nrt_python.memsys_enable_stats()
        before = rtsys.get_allocation_stats()
        assert kernel(one, other, 3) == 3 * (10.0 + 2.0 + 2.0)
        back = handed_back((one, other))
        assert alone(one) == 2 + 3 + 0 + 1
        np.testing.assert_array_equal(back[0], other)
        np.testing.assert_array_equal(back[1], one[:1])
        del back
        after = rtsys.get_allocation_stats()
        # Nothing is freed too early, and nothing is kept.
        assert after.alloc - before.alloc == after.free - before.free > 0
        assert (sys.getrefcount(one), sys.getrefcount(other)) == owners
        assert not code_that_counts(alone)
        assert code_that_counts(handed_back)
        kept = numba.typed.List([one[:1]])
        keep(kept, one + 1)  # which nobody else owns
        np.testing.assert_array_equal(kept[1], [[3.0, 4.0]])
        assert code_that_counts(keep)
    finally:
        _nrt_python.memsys_disable_stats()
        for function in (swapped_sum, first_of, kernel, handed_back, alone, keep):
            KERNELS.remove(function)


def test_options_are_those_of_numba(doubled, tmp_path):
    kernel = njit(cache=False, fastmath=True)(doubled)
    assert kernel(2.0) == 4.0
    assert kernel.targetoptions["nogil"]
    assert kernel.targetoptions["fastmath"]
    assert kept(tmp_path) == []
    assert kernel in compiling.KERNELS


def test_a_damaged_cache_is_no_reason_not_to_compile_and_is_mended(doubled, tmp_path):
    njit(doubled)(2)
    for path in kept(tmp_path):
        path.write_bytes(b"damaged")
    assert njit(doubled)(2) == 4
    again = njit(doubled)
    assert again(3) == 6
    assert sum(again.stats.cache_hits.values()) == 1


@pytest.fixture
def full_disk(monkeypatch):
    def save(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(numba.core.caching.IndexDataCacheFile, "save", save)


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_is_no_reason_not_to_compile(doubled):
    kernel = njit(doubled)
    with pytest.warns(CacheWarning, match=r"OSError in .*compiled.* No space left"):
        assert kernel(2) == 4
    assert kernel(2.5) == 5.0  # said once


@pytest.mark.usefixtures("full_disk")
def test_the_warning_can_be_silenced(doubled):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=CacheWarning)
        assert njit(doubled)(2) == 4


def test_the_kernels_of_the_package_are_known():
    assert {"add_asking", "write_bins", "find_splits"} <= {k.__name__ for k in KERNELS}
    assert all(kernel.targetoptions["nogil"] for kernel in KERNELS)


# -- being told -----------------------------------------------------------------------------------


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")
def test_somebody_is_told_when_a_kernel_is_compiled_and_only_then():
    def twice(x):
        return x + x

    kernel, told = njit(twice, cache=False), []
    try:
        with compiling.when_compiling(lambda: told.append("compiling")):
            assert told == []
            assert (kernel(2), kernel(2.5)) == (4, 5.0)  # two types, and one line
        assert told == ["compiling"]
        with compiling.when_compiling(lambda: told.append("again")):
            kernel(3)
        assert told == ["compiling"]
    finally:
        KERNELS.remove(kernel)
