"""Folders of finished models: believed only where nothing has changed."""

from __future__ import annotations

import contextlib
import random
import threading
import types

import numpy as np
import pytest

from greedymiser import MiserRegressor, tradeoff_curve
from greedymiser._core.files import write_new
from greedymiser.curve.checkpoints import ABOUT, SUFFIX, Checkpoint, CheckpointError
from greedymiser.losses import SquaredError


def data(n=200, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 3))
    return X, X[:, 0] + 0.5 * X[:, 1] + 0.1 * rng.standard_normal(n)


def curve(folder, **params):
    (X, y), (X_val, y_val) = data(), data(100, 1)
    estimator = MiserRegressor(
        **{"costs": [1.0, 2.0, 4.0], "max_iter": 4, "max_depth": 2, "n_jobs": 1, **params}
    )
    return tradeoff_curve(
        estimator, X, y, X_val=X_val, y_val=y_val, tradeoffs=2, search="path", checkpoint=folder
    )


def edited(source):
    """What a source defines as ``setting``, in a module of its own."""
    module = types.ModuleType("edited")
    exec(source, vars(module))
    return module.setting


SCORER = """
def setting(model, X, y):
    return ((model.predict(X) > {}) == (y > {})).mean()
"""
LOSS = """
import numpy as np
from greedymiser.losses import Loss
class Own(Loss):
    def values(self, y, raw): return {} * (raw - y) ** 2
    def gradients(self, y, raw): return {} * (raw - y), np.full(len(y), 2.0)
setting = Own()
"""


@pytest.mark.parametrize(("name", "source"), [("scoring", SCORER), ("loss", LOSS)])
def test_what_was_edited_is_not_taken_for_the_same(tmp_path, name, source):
    setting = edited(source.format(0.5, 0.5))
    first = curve(tmp_path, **{name: setting})
    assert curve(tmp_path, **{name: setting}).traces.equals(first.traces)
    again = curve(tmp_path, **{name: edited(source.format(0.5, 0.5))})
    assert again.traces.equals(first.traces)
    with pytest.raises(CheckpointError, match=f"another run: {name} differ"):
        curve(tmp_path, **{name: edited(source.format(0.15, 0.15))})


ESTIMATOR = """
from greedymiser import MiserRegressor
class setting(MiserRegressor):
    def predict(self, X): return {} * super().predict(X)
"""


def test_an_estimator_of_ones_own_that_was_edited_is_another(tmp_path):
    (X, y), (X_val, y_val) = data(), data(100, 1)
    options = {"X_val": X_val, "y_val": y_val, "tradeoffs": 2, "search": "path"}
    for factor, said in [(1, None), (1, None), (2, "another run: estimator differ")]:
        estimator = edited(ESTIMATOR.format(factor))(max_iter=2, n_jobs=1)
        with pytest.raises(CheckpointError, match=said) if said else contextlib.nullcontext():
            tradeoff_curve(estimator, X, y, checkpoint=tmp_path, **options)


@pytest.mark.parametrize("name", ["scoring", "loss"])
def test_what_cannot_be_described_is_refused_before_the_first_model(tmp_path, name):
    lock = threading.Lock()

    class LockedError(SquaredError):
        def gradients(self, y, raw):
            with lock:
                return super().gradients(y, raw)

    def score(model, X, y):
        with lock:
            return model.score(X, y)

    with pytest.raises(
        CheckpointError,
        match=f"cannot be used with this {name}: a lock does not show its state, and a later run",
    ):
        curve(tmp_path / "kept", **{name: {"scoring": score, "loss": LockedError()}[name]})
    assert not (tmp_path / "kept").exists()
    # Without a folder it may be anything.
    assert len(curve(None, **{name: {"scoring": score, "loss": LockedError()}[name]}).models) == 2


def test_runs_that_start_together_share_no_models(tmp_path):
    """All of them pass the door together; one gets the folder, and the others are told."""
    for attempt in range(20):
        folder, start, outcome = tmp_path / str(attempt), threading.Barrier(4), {}
        refused = []

        def run(i, folder=folder, start=start, outcome=outcome, refused=refused):
            start.wait()
            try:
                outcome[i] = Checkpoint(folder, {"max_depth": str(i)})
            except CheckpointError as error:
                refused.append(str(error))

        threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(outcome) == 1
        assert ["max_depth differ" in said for said in refused] == [True] * 3
        assert [path.name for path in folder.iterdir()] == [ABOUT]


def test_a_model_of_other_settings_is_never_found(tmp_path):
    """Even where somebody has mixed two folders by hand."""
    for depth in (1, 2):
        curve(tmp_path / str(depth), max_depth=depth)
    names = [{path.name for path in (tmp_path / str(depth)).glob("*.npz")} for depth in (1, 2)]
    assert names[0]
    assert not names[0] & names[1]


def test_a_new_file_never_replaces_another(tmp_path, monkeypatch):
    assert write_new(tmp_path / "a", b"first")
    assert not write_new(tmp_path / "a", b"second")

    def no_links(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", no_links)
    assert not write_new(tmp_path / "a", b"third")
    assert write_new(tmp_path / "b", b"first")
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == [b"first", b"first"]
    with pytest.raises(FileNotFoundError, match=r"'.*nowhere.a'"):
        write_new(tmp_path / "nowhere" / "a", b"")


def test_any_bit_that_flips_is_noticed(tmp_path):
    curve(tmp_path)
    about = Checkpoint.__new__(Checkpoint)
    path = min(tmp_path.glob("*.npz"))
    key, _, about._run = path.name.removesuffix(SUFFIX).rpartition("-")
    about.folder = tmp_path
    whole = path.read_bytes()
    assert about.find(key) is not None
    rng = random.Random(0)
    # The ends of a file, where the names and the sizes are, and a sample of the rest.
    ends = [*range(8 * 40), *range(8 * (len(whole) - 60), 8 * len(whole))]
    for bit in [*ends, *rng.sample(range(8 * len(whole)), 500)]:
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        assert about.find(key) is None, bit
    for length in (0, 1, 15, 16, 17, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert about.find(key) is None


def test_a_damaged_description_is_refused(tmp_path):
    Checkpoint(tmp_path, {"max_depth": "2"})
    whole = (tmp_path / ABOUT).read_bytes()
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        (tmp_path / ABOUT).write_bytes(damaged)
        try:
            Checkpoint(tmp_path, {"max_depth": "2"})
        except CheckpointError:
            continue
        assert bytes(damaged).split() == whole.split() or damaged == whole, bit
    for text in ("5", "[1]", "null", '"abc"'):
        (tmp_path / ABOUT).write_text(text)
        with pytest.raises(CheckpointError, match="cannot be read"):
            Checkpoint(tmp_path, {"max_depth": "2"})
