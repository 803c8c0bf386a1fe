"""The engine for a GPU where there is none: in Numba's simulator, and what users are told.

On a GPU, ``make test-gpu`` runs tests/conformance and tests/on_device.py without the simulator.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from greedymiser.engines.cuda import engine

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
