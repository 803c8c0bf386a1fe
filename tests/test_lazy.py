"""Answers about Dask collections are Dask collections, and the same numbers."""

import subprocess
import sys

import dask
import dask.array as da
import dask.bag
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError

from experiments.cronus import Cronus
from greedymiser import (
    EarlyExitClassifier,
    EarlyExitRanker,
    MiserClassifier,
    MiserRanker,
    MiserRegressor,
    as_predictor,
    baseline,
    load,
    save,
)
from greedymiser.data.tables import is_lazy

METHODS = ["predict", "predict_proba", "decision_function", "prediction_costs"]


@pytest.fixture(autouse=True)
def here():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.standard_normal((300, 3)), columns=["a", "b", "c"])
    frame.loc[rng.random(300) < 0.1, "b"] = np.nan
    frame["d"] = pd.Categorical(rng.choice(["x", "y", "z"], 300))
    frame.index = pd.RangeIndex(1000, 1300)
    return frame


def labels_of(frame, n_classes):
    total = frame["a"] + (frame["d"] == "y") + frame["b"].fillna(0.5)
    return np.array(["low", "middle", "up"])[np.digitize(total, [0.0, 1.0][: n_classes - 1])]


@pytest.fixture(scope="module", params=[2, 3])
def classifier(frame, request):
    return MiserClassifier(max_iter=4).fit(frame, labels_of(frame, request.param))


@pytest.fixture(scope="module")
def regressor(frame):
    return MiserRegressor(max_iter=4, loss="poisson").fit(frame[["a", "b", "c"]], frame["a"] ** 2)


def parts(frame):
    """The frame in partitions of 0, 1 and many rows."""
    pieces = [frame[:0], frame[:1], frame[1:200], frame[200:]]
    return dd.from_map(lambda i: pieces[i], [0, 1, 2, 3], meta=frame[:0])


# -- data frames ----------------------------------------------------------------------------------


@pytest.mark.parametrize("served", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_frames(classifier, frame, method, served):
    model = as_predictor(classifier) if served else classifier
    expected = getattr(classifier, method)(frame)
    found = getattr(model, method)(parts(frame))
    assert found.npartitions == 4
    computed = found.compute()
    assert computed.index.tolist() == frame.index.tolist()
    assert np.array_equal(computed.to_numpy(), expected)
    if expected.ndim == 2:
        assert list(found.columns) == list(computed.columns) == classifier.classes_.tolist()
        assert found.dtypes.tolist() == computed.dtypes.tolist()
    else:
        assert found.dtype == computed.dtype
    empty = found.partitions[0].compute()
    assert len(empty) == 0
    assert type(empty) is type(computed)


def test_a_prediction_becomes_a_column(regressor, frame):
    rows = parts(frame)
    rows["guess"] = regressor.predict(rows[["a", "b", "c"]])
    computed = rows.compute()
    assert np.array_equal(computed["guess"], regressor.predict(frame[["a", "b", "c"]]))


def test_nothing_is_computed_before_it_is_asked_for(regressor):
    def fail(i):
        raise RuntimeError("computed")

    meta = pd.DataFrame({"a": [0.0], "b": [0.0], "c": [0.0]})[:0]
    found = regressor.predict(dd.from_map(fail, [0], meta=meta))
    with pytest.raises(RuntimeError, match="computed"):
        found.compute()


# -- arrays ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("served", [False, True])
def test_arrays_keep_their_chunks(regressor, frame, served):
    X = frame[["a", "b", "c"]].to_numpy()
    plain = MiserRegressor(max_iter=4).fit(X, frame["a"])
    model = as_predictor(plain) if served else plain
    rows = da.from_array(X, chunks=((100, 0, 150, 50), (2, 1)))
    for method in ("predict", "prediction_costs"):
        found = getattr(model, method)(rows)
        assert found.chunks == ((100, 0, 150, 50),)
        assert found.dtype == np.float64
        assert np.array_equal(found.compute(), getattr(plain, method)(X))
    assert np.array_equal(model.predict(X=rows).compute(), plain.predict(X))


@pytest.mark.parametrize("n_classes", [2, 3])
def test_arrays_of_classes(frame, n_classes):
    X, y = frame[["a", "b", "c"]].to_numpy(), labels_of(frame, n_classes)
    model = MiserClassifier(max_iter=4).fit(X, y)
    rows = da.from_array(X, chunks=(130, 3))
    for method in METHODS:
        expected, found = getattr(model, method)(X), getattr(model, method)(rows)
        assert found.chunks[0] == (130, 130, 40)
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        assert np.array_equal(found.compute(), expected)
        assert found._meta.ndim == expected.ndim


def test_chunks_may_be_unknown(frame):
    X = frame[["a", "b", "c"]].to_numpy()
    model = MiserClassifier(max_iter=2).fit(X, frame["a"] > 0)
    rows = dd.from_pandas(frame[["a", "b", "c"]], npartitions=3).values
    assert np.isnan(rows.shape[0])
    found = model.predict_proba(rows)
    assert np.isnan(found.shape[0])
    assert found.shape[1] == 2
    assert np.array_equal(found.compute(), model.predict_proba(X))
    kept = rows[rows[:, 0] > 1e9]  # every chunk is empty
    assert model.predict(kept).compute().shape == (0,)


def test_threads_may_share_a_model(regressor, frame):
    X = frame[["a", "b", "c"]]
    found = regressor.predict(dd.from_pandas(X, npartitions=20))
    assert np.array_equal(found.compute(scheduler="threads", num_workers=4), regressor.predict(X))


# -- other models ---------------------------------------------------------------------------------


def test_rankers_score_rows_and_exits_of_rankers_are_refused(frame):
    X = frame[["a", "b", "c"]]
    qid = np.arange(300) // 10
    ranker = MiserRanker(max_iter=4).fit(X, frame["a"] > 0, qid=qid)
    rows = dd.from_pandas(X, npartitions=2)
    assert np.array_equal(ranker.predict(rows).compute(), ranker.predict(X))
    early = EarlyExitRanker(ranker, threshold=0.1, every=2).fit(X, frame["a"] > 0, qid=qid)
    for model in (early, as_predictor(early)):
        for method in ("predict", "prediction_costs"):
            with pytest.raises(ValueError, match="compares the rows of a query"):
                getattr(model, method)(rows)


def assert_lazy(model, methods, X):
    for method in methods:
        found = getattr(model, method)(dd.from_pandas(X, npartitions=2))
        assert is_lazy(found), method
        assert np.array_equal(found.compute(), getattr(model, method)(X))


def test_early_exits_of_classifiers(frame):
    X, y = frame[["a", "b", "c"]], labels_of(frame, 2)
    model = MiserClassifier(max_iter=6).fit(X, y)
    early = EarlyExitClassifier(model, threshold=0.6, every=2).fit(X, y)
    assert len(np.unique(early.prediction_costs(X))) > 1
    assert_lazy(early, METHODS, X)
    assert_lazy(as_predictor(early), METHODS, X)
    with pytest.raises(ValueError, match="feature names"):
        early.predict(dd.from_pandas(X[["a", "b"]], npartitions=2))
    with pytest.raises(NotFittedError):
        EarlyExitClassifier(model).predict(dd.from_pandas(X, npartitions=2))


def test_thresholds_for_a_budget_are_chosen_from_collections(frame):
    X, y, qid = frame[["a", "b", "c"]], frame["a"].to_numpy() > 0, np.arange(300) // 10
    rows = da.from_array(X.to_numpy(), chunks=(130, 3))
    ranker = MiserRanker(max_iter=6).fit(X.to_numpy(), y, qid=qid)
    early = EarlyExitRanker(ranker, budget=ranker.cost_, every=2, scoring="r2")
    found, expected = [early.fit(data, y, qid=qid).threshold_ for data in (rows, X.to_numpy())]
    assert found == expected
    assert early.score(rows, y, qid=qid) == early.score(X.to_numpy(), y, qid=qid)


def test_cascades(frame):
    X = frame[["a", "b", "c"]]
    y = 10.0 + X["a"] + X["c"] * (X["a"] > 0)
    cascade = Cronus(MiserRegressor(max_iter=40).fit(X, y), tradeoff=0.1).fit(X, y)
    assert cascade.n_stages_ > 1
    assert_lazy(cascade, ["predict", "prediction_costs"], X)
    ranker = MiserRanker(max_iter=40, loss="squared_error").fit(X, y)
    cascade = Cronus(ranker, tradeoff=0.1).fit(X, y)
    assert cascade.n_stages_ > 1
    for method in ("predict", "prediction_costs"):
        with pytest.raises(ValueError, match="compares the rows of a query"):
            getattr(cascade, method)(dd.from_pandas(X, npartitions=2))


@pytest.mark.parametrize("charge", ["model", "row"])
def test_baselines(frame, charge):
    X, y = frame[["a", "c"]], labels_of(frame, 2)
    forest = RandomForestClassifier(3, max_depth=3, random_state=0).fit(X, y)
    assert_lazy(baseline(forest, charge=charge), METHODS, X)


# -- what is wrong is said at once ----------------------------------------------------------------


def test_errors_come_before_anything_is_computed(regressor, frame):
    rows = parts(frame)
    with pytest.raises(ValueError, match="feature names"):
        regressor.predict(rows[["a", "b"]])
    with pytest.raises(ValueError, match="no column 'a'"):
        as_predictor(regressor).predict(rows[["b", "c"]])
    with pytest.raises(ValueError, match="2 features"):
        as_predictor(regressor).predict(da.zeros((4, 2)))
    with pytest.raises(ValueError, match=r"two dimensions.*\(4,\)"):
        as_predictor(regressor).predict(da.zeros(4))
    with pytest.raises(TypeError, match="Dask array or data frame, got a Dask Bag"):
        as_predictor(regressor).predict(dask.bag.from_sequence([1]))
    with pytest.raises(AttributeError, match="no class probabilities"):
        as_predictor(regressor).predict_proba(rows)


def test_what_is_lazy(frame):
    assert is_lazy(da.zeros(3))
    assert is_lazy(dd.from_pandas(frame, npartitions=1))
    assert not any(map(is_lazy, [np.zeros(3), frame, [1], None]))


# -- files ----------------------------------------------------------------------------------------

SERVE = """
import sys
import numpy as np, pandas as pd
from greedymiser import load
model = load(sys.argv[1])
assert "dask" not in sys.modules
import dask, dask.dataframe as dd
frame = pd.read_json(sys.argv[2])
with dask.config.set(scheduler="synchronous"):
    rows = dd.from_pandas(frame, npartitions=2)
    lazy = model.predict(rows).compute()
    mapped = rows.map_partitions(model.predict, meta=np.empty(0)).compute()
assert np.array_equal(lazy, model.predict(frame)) and np.array_equal(mapped, lazy)
trained = [name for name in sys.modules if name.startswith(("greedymiser.engines", "sklearn"))]
print(trained)
"""


@pytest.mark.subprocess
def test_a_file_predicts_without_training_code(regressor, frame, tmp_path):
    save(regressor, tmp_path / "model.miser")
    rows = frame[["a", "b", "c"]].reset_index(drop=True)
    rows.to_json(tmp_path / "rows.json")
    expected = load(tmp_path / "model.miser").predict(dd.from_pandas(rows, npartitions=2))
    assert np.array_equal(expected.compute(), regressor.predict(rows))
    given = [str(tmp_path / "model.miser"), str(tmp_path / "rows.json")]
    done = subprocess.run(
        [sys.executable, "-c", SERVE, *given], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
