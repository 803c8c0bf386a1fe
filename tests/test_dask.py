"""Training on a real cluster of two processes: the model of one machine, to the last bit."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from greedymiser import (
    CostModel,
    MiserClassifier,
    MiserRanker,
    MiserRegressor,
    MiserSearchCV,
    tradeoff_curve,
)
from greedymiser.data import binning
from greedymiser.engines.dask import session
from greedymiser.engines.dask.chunks import Chunk
from greedymiser.engines.dask.engine import DaskUnavailableError
from greedymiser.engines.interface import EngineLostError
from greedymiser.losses import Loss
from on_cluster import two_workers

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[1]
N = 600


@pytest.fixture(scope="module")
def client():
    before = set(threading.enumerate())
    with two_workers() as client:
        yield client
    left = [thread for thread in threading.enumerate() if thread not in before]
    assert [thread for thread in left if "greedymiser" in thread.name] == []


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request):
    """On workers: no sessions, and no threads."""

    def leftovers():  # in here, so that it travels without this module
        import sys
        import threading

        module = sys.modules.get("greedymiser.engines.dask.worker")
        ours = [thread.name for thread in threading.enumerate() if "greedymiser" in thread.name]
        return 0 if module is None else len(module._WORKERS), ours

    yield
    if "client" in request.fixturenames:
        client = request.getfixturevalue("client")
        end = time.monotonic() + 60.0  # a thread may be about to end
        while time.monotonic() < end:
            found = client.run(leftovers, on_error="ignore")
            if all(left == (0, []) for left in found.values()):
                return
            time.sleep(0.05)
        raise AssertionError(found)


# -- data -----------------------------------------------------------------------------------------


def problem(seed=0, n=N):
    """Missing values, equal values, and a column that is missing in the first rows."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 10))
    X[:, 1] = np.round(X[:, 1], 1)
    y = X[:, 0] + np.sin(3 * X[:, 1]) + X[:, 2] * X[:, 3] + 0.1 * rng.standard_normal(n)
    X[rng.random(X.shape) < 0.05] = np.nan
    X[: n // 3, 4] = np.nan
    return X, y


def weights(n=N):
    return np.random.default_rng(5).uniform(0.1, 3.0, n) * (np.arange(n) % 7 > 0)


CUTS = (0, 0, 200, 201, 450, N)


def parts(values, cuts=CUTS):
    """A Dask array with these edges between its chunks; some are empty, one has one row."""
    pieces = [values[a:b] for a, b in zip(cuts, [*cuts[1:], len(values)], strict=True)]
    return da.concatenate([da.from_array(piece, chunks=-1) for piece in pieces])


def frames(n=N):
    X, y = problem()
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(X[:n, :3], columns=["a", "b", "c"])
    frame["kind"] = pd.Categorical(rng.choice(["oak", "elm", "ash"], n))
    frame["size"] = rng.integers(0, 4, n)
    frame.loc[: n // 2, "kind"] = "oak"  # some partitions do not know the others
    return frame, pd.Series(y[:n])


def assert_same(cluster, here):
    """Equal in every bit."""
    one, other = cluster.ensemble_, here.ensemble_
    assert one.nodes.tobytes() == other.nodes.tobytes()
    assert one.category_sets.tobytes() == other.category_sets.tobytes()
    assert one.baseline.tobytes() == other.baseline.tobytes()
    assert cluster.train_score_.tobytes() == here.train_score_.tobytes()
    assert cluster.validation_score_.tobytes() == here.validation_score_.tobytes()
    assert cluster.stopped_ == here.stopped_
    assert cluster.model_.purchases == here.model_.purchases


QUICK = {"max_iter": 4, "random_state": 0, "min_samples_leaf": 5}
COSTS = CostModel([4.0, 1.0, 2.0, 0.5, 8.0, 1.0, 1.0, 1.0, 1.0, 1.0])


def test_without_a_client():
    """First of all, while there is none."""
    X, y = problem()
    with pytest.raises(DaskUnavailableError, match=r"two lines make one:\n.*import Client"):
        MiserRegressor().fit(parts(X), y)


# -- the same model -------------------------------------------------------------------------------


class LogCosh(Loss):
    """A user's own."""

    def values(self, y, raw):
        return np.logaddexp(raw - y, y - raw) - np.log(2.0)

    def gradients(self, y, raw):
        slope = np.tanh(raw - y)
        return slope, 1.0 - slope**2


@pytest.mark.parametrize(
    "loss", ["squared_error", "absolute_error", "huber", "quantile", "poisson", "gamma", LogCosh()]
)
def test_every_loss(client, loss):
    X, y = problem()
    if loss in ("poisson", "gamma"):
        y = np.exp(y)
    weight = weights() if loss != "absolute_error" else None
    model = MiserRegressor(**QUICK, loss=loss, tradeoff=1e-3)
    here = model.fit(X, y, weight)
    there = MiserRegressor(**QUICK, loss=loss, tradeoff=1e-3).fit(
        parts(X), parts(y), None if weight is None else parts(weight)
    )
    assert_same(there, here)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_classes(client, n_classes):
    X, y = problem()
    labels = np.array(["ash", "elm", "oak"])[np.digitize(y, [-0.5, 1.0])]
    labels = np.where(labels == "ash", "elm", labels) if n_classes == 2 else labels
    settings = {**QUICK, "class_weight": "balanced", "early_stopping": True}
    here = MiserClassifier(**settings).fit(X, labels)
    there = MiserClassifier(**settings).fit(parts(X), parts(labels))
    assert there.classes_.tolist() == here.classes_.tolist()
    assert_same(there, here)


@pytest.mark.parametrize("is_scattered", [False, True])
def test_queries(client, is_scattered):
    """Also where the rows of a query lie in several partitions; and what they are scored with."""
    X, y = problem()
    rng = np.random.default_rng(1)
    qid = np.sort(rng.integers(0, 25, N))
    qid = rng.permutation(qid) if is_scattered else qid
    labels = np.digitize(y, [-0.5, 0.5, 1.5]) / 2  # halves, so that gains are not whole
    model = MiserRanker(**QUICK, early_stopping=True, subsample=0.7)
    here = model.fit(X, labels, weights(), qid=qid)
    there = MiserRanker(**QUICK, early_stopping=True, subsample=0.7)
    there.fit(parts(X), parts(labels), parts(weights()), qid=parts(qid))
    assert_same(there, here)


def test_queries_score_as_they_do_among_all_others(client):
    """Also where one worker alone has the highest label, by which all gains are rounded."""
    X, _ = problem()
    labels, qid = np.random.default_rng(2).random(N), np.arange(N) // 12
    labels[-1] = 30.0
    held_out = {"X_val": X, "y_val": labels, "qid_val": qid}
    here = MiserRanker(**QUICK).fit(X, labels, qid=qid, **held_out)
    held_out = {name: parts(values) for name, values in held_out.items()}
    there = MiserRanker(**QUICK).fit(parts(X), parts(labels), qid=parts(qid), **held_out)
    assert len(here.validation_score_) > 0
    assert_same(there, here)


def test_frames_and_categories(client):
    frame, y = frames()
    settings = {**QUICK, "categorical_features": ["kind", "size"], "subsample": 0.6}
    val, y_val = frame[:100], y[:100]
    here = MiserRegressor(**settings, scoring="r2").fit(frame, y, X_val=val, y_val=y_val)
    lazy = dd.from_pandas(frame, npartitions=4), dd.from_pandas(y, npartitions=4)
    there = MiserRegressor(**settings, scoring="r2")
    there.fit(*lazy, X_val=dd.from_pandas(val, npartitions=2), y_val=y_val)
    assert there.feature_names_in_.tolist() == list(frame)
    assert there.categories_.keys() == here.categories_.keys()
    assert_same(there, here)
    by_type = MiserRegressor(**QUICK).fit(*lazy)
    assert_same(by_type, MiserRegressor(**QUICK).fit(frame, y))


def test_columns_of_partitions_go_by_name(client):
    frame, y = frames()
    shuffled = frame[["size", "c", "kind", "a", "b"]]
    made = [frame[:150], shuffled[150:400], frame[400:]]
    lazy = dd.from_map(lambda part: part, made, meta=frame[:0])
    model = MiserRegressor(**QUICK, early_stopping=True, validation_fraction=0.3)
    there = MiserRegressor(**model.get_params()).fit(lazy, y)
    assert_same(there, model.fit(frame, y))
    assert np.array_equal(there.predict(lazy).compute(), model.predict(frame))
    lacking = [frame[:300], frame[300:].rename(columns={"c": "d"})]
    lazy = dd.from_map(lambda part: part, lacking, meta=frame[:0])
    with pytest.raises(ValueError, match="partition 1 of X lacks the column 'c'"):
        MiserRegressor(**QUICK).fit(lazy, y)


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.integers(0, N), max_size=6).map(sorted),
    st.lists(st.integers(0, N), max_size=3).map(sorted),
    st.booleans(),
)
def test_any_partitions(client, cuts, y_cuts, is_lazy):
    X, y = problem()
    unknown = parts(X, (0, *cuts))
    if is_lazy:  # nobody knows how long partitions are
        unknown = unknown[da.from_array(np.ones(N, dtype=bool), chunks=unknown.chunks[0])]
    model = MiserRegressor(**QUICK, max_features=0.5, shopping_interval=2, monotonic_cst=MONOTONE)
    there = MiserRegressor(**model.get_params()).fit(unknown, parts(y, (0, *y_cuts)))
    assert_same(there, model.fit(X, y))


@pytest.mark.parametrize("weighted", [False, True])
def test_cuts_of_a_sample(client, monkeypatch, weighted):
    """More rows than cuts are learned from: the same ones are drawn."""
    monkeypatch.setattr(binning, "MOST_ROWS", 150)
    X, y = problem()
    weight = weights() if weighted else None
    model = MiserRegressor(**QUICK, early_stopping=True, max_bins=20)
    there = MiserRegressor(**model.get_params()).fit(
        parts(X), parts(y), None if weight is None else parts(weight)
    )
    assert_same(there, model.fit(X, y, weight))


MONOTONE = [1, 0, 0, 0, 0, 0, 0, 0, 0, -1]


def test_arrays_of_this_machine_are_sent(client):
    X, y = problem()
    here = MiserRegressor(**QUICK, early_stopping=True).fit(X, y)
    there = MiserRegressor(**QUICK, early_stopping=True, engine="dask").fit(X, y)
    assert_same(there, here)


def test_a_fit_goes_on_where_it_was(client):
    X, y = problem()
    model = MiserRegressor(**QUICK, warm_start=True).fit(parts(X), parts(y))
    model.set_params(max_iter=7).fit(parts(X), parts(y))
    here = MiserRegressor(**QUICK, warm_start=True).fit(X, y)
    assert_same(model, here.set_params(max_iter=7).fit(X, y))


def test_rows_that_pay_for_themselves(client):
    X, y = problem()
    settings = {**QUICK, "costs": COSTS, "tradeoff": 1e-3, "charge": "row", "warm_start": True}
    here, there = MiserRegressor(**settings), MiserRegressor(**settings)
    for max_iter in (4, 6):
        here.set_params(max_iter=max_iter).fit(X, y, weights())
        there.set_params(max_iter=max_iter).fit(parts(X), parts(y), parts(weights()))
        assert_same(there, here)


def test_curves(client):
    X, y = problem()
    val, y_val = problem(1, 200)
    model = MiserRegressor(costs=COSTS, max_iter=4)
    options = {"tradeoffs": 3, "search": "path"}
    here = tradeoff_curve(model, X, y, X_val=val, y_val=y_val, X_test=val, y_test=y_val, **options)
    there = tradeoff_curve(
        model, parts(X), parts(y), X_val=parts(val, (0, 90)), y_val=parts(y_val, (0, 90)),
        X_test=parts(val, (0, 90)), y_test=y_val, **options,
    )  # fmt: skip
    pd.testing.assert_frame_equal(there.points, here.points, check_exact=True)


def test_searches(client):
    X, y = problem()
    search = MiserSearchCV(
        MiserRegressor(costs=COSTS, max_iter=3), cv=2, tradeoffs=[0.0, 1e-2], random_state=0
    )
    here = search.fit(X, y, weights()).cv_results_
    there = search.fit(parts(X), parts(y), parts(weights()))
    pd.testing.assert_frame_equal(there.cv_results_, here, check_exact=True)


@given(st.data())
def test_codes_of_a_chunk_are_there_once(data):
    """Whoever takes rows away, everybody can still read them; what shards have is not kept."""
    n = data.draw(st.integers(1, 12))
    codes = np.arange(2 * n, dtype=np.uint64).reshape(2, n)
    chunk = Chunk(codes.copy())
    for _ in range(data.draw(st.integers(0, 4))):
        rows = np.array(data.draw(st.lists(st.integers(0, n - 1), unique=True)), dtype=np.int64)
        columns = np.random.default_rng(n).permutation(len(rows)).astype(np.uint32)
        shard = np.empty((2, len(rows)), dtype=np.uint64)
        shard[:, columns] = chunk.take(rows)
        assert (shard[:, columns] == codes[:, rows]).all()
        chunk.move(rows, shard, columns)
        assert (chunk.take(None) == codes).all()
    chunk.move(None, np.pad(chunk.take(None), ((0, 0), (3, 0))), 3)
    assert not any(place.is_own for place in chunk._places)
    assert (chunk.take(None) == codes).all()


@pytest.mark.parametrize("tradeoff", [0.0, 1e-6])
def test_questions_of_a_tree(client, monkeypatch, tradeoff):
    """One for each level, and one for the loss and what the next tree begins with."""
    X, y = problem()
    ask, asked, by_round = session.Session.ask, [], []

    def counted(self, name, args):
        asked.append(name)
        return ask(self, name, args)

    monkeypatch.setattr(session.Session, "ask", counted)
    settings = {**QUICK, "max_iter": 8, "max_depth": 3, "costs": COSTS, "tradeoff": tradeoff}
    model = MiserRegressor(**settings).fit(
        parts(X), parts(y), callbacks=[lambda _: by_round.append(len(asked))]
    )
    assert_same(model, MiserRegressor(**settings).fit(X, y))
    assert np.diff(by_round).tolist() == [4] * 7


# -- conformance ----------------------------------------------------------------------------------


def test_conformance_through_the_door():
    # What depends on grids alone is the same code as on one machine; and a loss that changes its
    # mind here is not heard of there.
    some = (
        "not full_grids and not many_rows and not wide_histograms and not power_of_two"
        " and not change_their_kind"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", some]
    done = subprocess.run(
        [*command, "tests/conformance"],
        env={**os.environ, "GREEDYMISER_TEST_ENGINE": "dask"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout


# -- faults ---------------------------------------------------------------------------------------


def pids(client):
    return sorted(client.run(os.getpid, on_error="ignore").values())


def killing(monkeypatch, client, at):
    """Kill a worker shortly after the at-th question."""
    ask, asked, chance = session.Session.ask, [0], random.Random(at)

    def ask_and_kill(self, name, args):
        asked[0] += 1
        if asked[0] == at:
            victim = chance.choice(pids(client))
            timer = threading.Timer(chance.uniform(0.0, 0.004), os.kill, (victim, signal.SIGKILL))
            timer.start()
        return ask(self, name, args)

    monkeypatch.setattr(session.Session, "ask", ask_and_kill)
    return asked


@pytest.mark.parametrize("seed", [11, 12])
def test_a_worker_that_is_killed(client, monkeypatch, seed):
    X, y = problem()
    labels = np.digitize(y, [-0.5, 1.0])
    settings = {**QUICK, "early_stopping": True, "tradeoff": 1e-4}
    here = MiserClassifier(**settings).fit(X, labels)
    at = random.Random(seed).randrange(3, 50)
    asked = killing(monkeypatch, client, at)
    there = MiserClassifier(**settings).fit(parts(X), parts(labels))
    assert asked[0] > at
    assert_same(there, here)
    monkeypatch.undo()
    client.wait_for_workers(2)


def test_an_interruption_keeps_what_is_finished(client, monkeypatch):
    X, y = problem()
    ask, asked = session.Session.ask, [0]

    def interrupted(self, name, args):
        asked[0] += name == "table"
        if asked[0] == 10:
            raise KeyboardInterrupt
        return ask(self, name, args)

    monkeypatch.setattr(session.Session, "ask", interrupted)
    model = MiserRegressor(**QUICK)
    with pytest.raises(KeyboardInterrupt):
        model.fit(parts(X), parts(y))
    assert model.stopped_ == "interrupted"
    assert model.n_iter_ == 2  # four levels a tree


def test_all_workers_gone(monkeypatch):
    monkeypatch.setattr(session, "PATIENCE", 0.2)
    X, y = problem()
    options = {"n_workers": 1, "processes": False, "dashboard_address": ":0"}
    with LocalCluster(**options) as cluster, Client(cluster):

        def leave(progress):
            if progress.n_iter == 2:
                cluster.scale(0)
                while cluster.scheduler.workers:
                    time.sleep(0.01)

        model = MiserRegressor(**QUICK)
        with pytest.raises(EngineLostError, match="all workers were lost in round 2"):
            model.fit(parts(X), parts(y), callbacks=[leave])
    assert model.stopped_ == "cluster lost"
    here = MiserRegressor(**{**QUICK, "max_iter": 2}).fit(X, y)
    assert model.ensemble_.nodes.tobytes() == here.ensemble_.nodes.tobytes()


# -- what users are told --------------------------------------------------------------------------


def test_clear_errors(client):
    X, y = problem()
    with pytest.raises(ValueError, match="engine='cpu' cannot learn from Dask collections"):
        MiserRegressor(engine="cpu").fit(parts(X), y)
    with pytest.raises(ValueError, match=r"inconsistent numbers of samples: \[600, 599\]"):
        MiserRegressor().fit(parts(X), y[1:])
    with pytest.raises(ValueError, match="could not convert string to float"):
        MiserRegressor().fit(parts(np.full((N, 2), "a")), y)
    with pytest.raises(ValueError, match="X must have two dimensions"):
        MiserRegressor().fit(parts(X)[:, 0], y)


@pytest.mark.parametrize("kind", [ValueError, FileNotFoundError, TimeoutError])
def test_an_error_of_a_loss_is_not_the_loss_of_a_worker(client, kind):
    X, y = problem()
    with pytest.raises(kind, match="a loss of nothing"):
        MiserRegressor(loss=Failing(kind)).fit(parts(X), y)


class Failing(LogCosh):
    def __init__(self, kind):
        self.kind = kind

    def gradients(self, y, raw):
        raise self.kind("a loss of nothing")
