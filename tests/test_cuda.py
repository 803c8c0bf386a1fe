"""The engine for a GPU where there is none: in Numba's simulator, and what users are told.

On a GPU, ``make test-gpu`` runs tests/conformance and tests/on_device.py without the simulator.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from greedymiser.engines.cpu.kernels.counting import NODE_DTYPE
from greedymiser.engines.cuda import engine, precompiled
from greedymiser.engines.cuda.kernels.planning import plan_weighing
from greedymiser.engines.cuda.layout import SIDE, START, STOP, TILE, WEIGHED

ROOT = Path(__file__).parents[1]

WITHOUT = """if True:
    import sys
    import numpy as np
    from greedymiser import MiserRegressor, as_predictor

    X = np.random.default_rng(0).random((200, 3))
    model = MiserRegressor(max_iter=2).fit(X, X[:, 0])
    assert not [name for name in sys.modules if "cuda" in name], "CUDA was imported"
    before = dict(model.__dict__)
    try:
        model.set_params(engine="cuda").fit(X, X[:, 0])
    except RuntimeError as error:
        print(type(error).__name__, error)
    assert {**model.__dict__, "engine": "auto"} == before
    try:
        as_predictor(model, engine="cuda").predict(X)
    except RuntimeError as error:
        print(type(error).__name__, error)
"""


def run(*arguments, **environment):
    # A device that is here is hidden: this is about machines without one.
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment}
    return subprocess.run(
        [sys.executable, *arguments], env=env, cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.subprocess
def test_without_a_gpu_users_are_told_what_is_missing():
    done = run("-c", WITHOUT, NUMBA_ENABLE_CUDASIM="0")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == second
    assert first.startswith("CudaUnavailableError engine='cuda' needs an NVIDIA GPU, its driver")
    assert "greedymiser[cuda]" in first


STALE = """if True:
    from greedymiser.engines.cuda import prediction
    from greedymiser.engines.cuda.kernels import counting, marking, ranking, rows, scanning
    from greedymiser.engines.cuda.precompiled import ARCHIVE

    kernels = {}
    for module in (counting, marking, ranking, rows, scanning, prediction):
        for value in vars(module).values():
            if hasattr(value, "py_func") and not value.targetoptions.get("device"):
                kernels[value.py_func.__name__] = ARCHIVE.digest(value.py_func)
    print(len(ARCHIVE.digests), "kernels")
    for key, digest in ARCHIVE.digests.items():
        if kernels.get(key.split("-")[0]) != digest:
            print(key, "has changed: make ptx")
    for name in kernels.keys() - {key.split("-")[0] for key in ARCHIVE.digests}:
        print(name, "is not there: make ptx")
"""


@pytest.mark.subprocess
def test_kernels_that_were_compiled_beforehand_are_current():
    done = run("-c", STALE, NUMBA_ENABLE_CUDASIM="0")
    assert done.returncode == 0, done.stderr
    first, *stale = done.stdout.splitlines()
    assert int(first.split()[0]) > 15
    assert stale == []


TWINS = """if True:
    import inspect
    from greedymiser._core.digests import digest_of
    from greedymiser.engines.cuda.kernels import formulas

    names = "exp log sigmoid softplus _find_largest _softmax_values write_gradients gain_of_best"
    twins = {name.lstrip("_"): getattr(formulas, name).py_func for name in names.split()}
    for name, twin in twins.items():
        assert inspect.getsource(twin).startswith(f"def {name}("), name
    assert len({digest_of(twin, of_text=True) for twin in twins.values()}) == len(twins)
"""


@pytest.mark.subprocess
def test_the_text_of_twins_is_found():
    """Else an edit of what both the CPU and the GPU compute with would go unnoticed."""
    done = run("-c", TWINS, NUMBA_ENABLE_CUDASIM="0")
    assert done.returncode == 0, done.stderr


def test_kernels_are_found_by_what_they_are_called_with():
    array = np.zeros((4, 6))
    assert precompiled.key_of("scan", (array, array[0]), (1, 2.0)) == (
        "scan-float64_2d-float64_1d-i-f"
    )
    same = [array[:2], array[:, :0], array[1:2, ::6], array[:0, ::2], array[:, 2:3].T[:1, :1]]
    assert len({precompiled.key_of("scan", (other,), ()) for other in (array, *same)}) == 1
    for other in (array.T, array[:, ::2], array[::2], array[:, 1:]):
        assert precompiled.key_of("scan", (other,), ()) == "scan-float64_2d_strided"


def test_rows_to_weigh_are_in_tiles_of_one_node_each():
    nodes = np.zeros(4, dtype=NODE_DTYPE)
    nodes["start"], nodes["stop"] = [0, 5, 5, 30], [5, 5, 30, 31]
    nodes["side"] = [1, 0, 1, -1]
    plan = np.full(4 * WEIGHED + 9, -7, dtype=np.int64)
    assert plan_weighing(nodes, 8, 7, plan) == 1 + 0 + 4 + 1
    planned = plan[: 4 * WEIGHED].reshape(4, WEIGHED)
    for word, name in ((START, "start"), (STOP, "stop"), (SIDE, "side")):
        assert np.array_equal(planned[:, word], nodes[name])
    assert planned[:, TILE].tolist() == [0, 1, 1, 5]
    assert plan[4 * WEIGHED :].tolist() == [0] * 7 + [-7] * 2
    assert plan_weighing(nodes[1:2], 8, 0, plan) == 1  # no grid is empty


def test_no_product_is_fused():
    """The compiler would make one rounding of two; a twin forbids it."""
    exact = {"evaluate", "sum_values", "measure_derivatives", "scan", "write_lambdas"}
    exact |= {"score_queries"}
    keys = precompiled.ARCHIVE.digests.keys()
    assert exact < {key.partition("-")[0] for key in keys}
    for key in keys:
        ptx = precompiled.ARCHIVE.content(key)
        assert key.partition("-")[0] not in exact or b"fma.rn.f64" not in ptx


@pytest.mark.simulator
def test_the_engine_in_the_simulator():
    """The engine's conformance and whole models, in small shapes."""
    few = (
        "not many_rows and not full_grids_do_not and not wide_histograms_grow"
        " and not power_of_two and not more_rows_than and not 20000"
    )
    # Simulated integers and floats are NumPy's, which warns where a GPU does not.
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore::RuntimeWarning", "-k", few]
    done = run(
        "-m", "pytest", *options, "tests/conformance", "tests/on_device.py",
        NUMBA_ENABLE_CUDASIM="1", GREEDYMISER_TEST_ENGINE="cuda",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout


def test_what_does_not_fit_is_refused_with_its_size():
    engine.check_room(2**30, free=2**30, total=2**31)
    with pytest.raises(MemoryError, match=r"needs 3\.00 GiB .* 1\.00 GiB of 2\.00 are free"):
        engine.check_room(3 * 2**30, free=2**30, total=2**31)


def test_a_forked_child_is_told_why_not(monkeypatch):
    monkeypatch.setattr(engine, "_owner", os.getpid() + 1)
    with pytest.raises(engine.CudaUnavailableError, match="does not survive a fork"):
        engine.check_available()
