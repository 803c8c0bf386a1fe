"""What must hold on a GPU; in Numba's simulator where there is none (see tests/test_cuda.py)."""

import os
import threading
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.cases import pack
from greedymiser import MiserClassifier, MiserRanker, MiserRegressor, as_predictor
from greedymiser._core.threads import Threads
from greedymiser.datasets import load_letor, load_thyroid
from greedymiser.engines.cpu.derivatives import derivatives_of
from greedymiser.engines.cpu.engine import CpuEngine
from greedymiser.engines.cpu.kernels.counting import NODE_DTYPE
from greedymiser.engines.cuda import device, engine, histograms, prediction, queries, stream
from greedymiser.engines.cuda.device import SIMULATED
from greedymiser.engines.cuda.kernels.counting import Coding
from greedymiser.engines.cuda.marks import CudaMarks
from greedymiser.engines.cuda.rows import bytes_needed
from greedymiser.engines.grid import Extremes, GridRule
from greedymiser.engines.interface import Sample, SplitRules
from greedymiser.engines.marks import Marks
from greedymiser.losses import LambdaMART, Loss, SquaredError

if SIMULATED:
    import simulated  # noqa: F401

N, ROUNDS, DEPTH = (40, 1, 2) if SIMULATED else (3000, 12, 4)


class Cubed(Loss):
    """A loss that only Python knows."""

    def values(self, y, raw):
        return np.abs(raw - y) ** 3

    def gradients(self, y, raw):
        return 3 * (raw - y) * np.abs(raw - y), 6 * np.abs(raw - y) + 0.1


def data():
    """Missing values, categories, ties, and a target with all kinds of values."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((N, 5)).round(1)
    X[:, 3] = rng.integers(0, 6, N)
    X[rng.random((N, 5)) < 0.1] = np.nan
    y = np.nan_to_num(X[:, 0] ** 2 - X[:, 1] + (X[:, 3] == 2)) + 0.1 * rng.standard_normal(N)
    return X, np.abs(y) + 0.1


def classes(y):
    return np.digitize(y, np.quantile(y, [0.4, 0.7]))


WEIGHT = 1.0 + np.arange(N) % 3
QUERIES = dict(qid=np.arange(N) // 7)
# A round more than others have: rows are drawn anew.
DRAWN = dict(subsample=0.6, random_state=0, max_iter=ROUNDS + 1)
BY_ROW = dict(charge="row", costs=[1.0, 2.0, 3.0, 1.0, 9.0], tradeoff=1e-3)
CASES = {
    "squared error": (MiserRegressor, {}, {}),
    "costs": (MiserRegressor, dict(tradeoff=1e-2, costs=[1.0, 2.0, 3.0, 1.0, 9.0]), {}),
    "categories, weights": (
        MiserRegressor, dict(categorical_features=[3]), dict(sample_weight=WEIGHT),
    ),
    "monotone": (MiserRegressor, dict(monotonic_cst=[1, -1, 0, 0, 0]), {}),
    "gradient step": (
        MiserRegressor, dict(step="gradient", loss="poisson"), dict(sample_weight=WEIGHT),
    ),
    "absolute error": (MiserRegressor, dict(loss="absolute_error"), {}),
    "gamma": (MiserRegressor, dict(loss="gamma"), {}),
    "a user's loss": (MiserRegressor, dict(loss=Cubed()), {}),
    "two classes": (MiserClassifier, {}, {}),
    "three classes, early stopping": (
        MiserClassifier, dict(early_stopping=True, random_state=0), dict(sample_weight=WEIGHT),
    ),
    "ranking": (MiserRanker, {}, QUERIES),
    "ranking, weights, validation": (
        MiserRanker, dict(early_stopping=True, random_state=0),
        dict(QUERIES, sample_weight=WEIGHT),
    ),
    "ranking, very long queries": (
        MiserRanker, dict(step="gradient"), dict(qid=np.zeros(N)),
    ),
    "drawn rows": (MiserRegressor, dict(DRAWN, costs=[1.0, 2.0, 3.0, 1.0, 9.0], tradeoff=1e-3), {}),
    "drawn rows, three classes": (
        MiserClassifier, dict(DRAWN, max_features=2), dict(sample_weight=WEIGHT),
    ),
    "drawn rows, absolute error": (MiserRegressor, dict(DRAWN, loss="absolute_error"), {}),
    "drawn queries": (MiserRanker, DRAWN, QUERIES),
    "rows pay": (MiserRegressor, dict(BY_ROW, row_budget=6.0), dict(sample_weight=WEIGHT)),
    "rows pay, drawn rows, three classes": (MiserClassifier, dict(DRAWN, **BY_ROW), {}),
}  # fmt: skip


def target(kind, name, y):
    if kind is MiserClassifier:
        return classes(y) > 0 if name == "two classes" else classes(y)
    return classes(y) if kind is MiserRanker else y


@pytest.mark.parametrize("name", CASES)
def test_the_model_is_that_of_the_cpu(name):
    kind, params, more = CASES[name]
    X, y = data()
    y = target(kind, name, y)
    params = dict(max_iter=ROUNDS, max_depth=DEPTH, min_samples_leaf=2) | params
    cpu = kind(**params).fit(X, y, **more)
    gpu = kind(**params, engine="cuda").fit(X, y, **more)
    assert len(cpu.train_score_) > 1
    assert gpu.ensemble_.nodes.tobytes() == cpu.ensemble_.nodes.tobytes()
    assert gpu.ensemble_.category_sets.tobytes() == cpu.ensemble_.category_sets.tobytes()
    assert gpu.train_score_.tobytes() == cpu.train_score_.tobytes()
    assert gpu.validation_score_.tobytes() == cpu.validation_score_.tobytes()


def placed_queries(engine, y, raw, starts, loss, weight):
    """Rows whose loss is LambdaMART; their only feature says nothing."""
    binned = pack([[0]] * len(y), [1])
    rows = engine.place(Sample(binned, y, weight, loss.over(starts)))
    rows.start(raw[None])
    return rows


def check_queries(y, raw, starts, loss, weight=None):
    """Compare derivatives, their extremes and the NDCG with the CPU's, bit by bit."""
    y, raw, starts = np.asarray(y, float), np.asarray(raw, float), np.asarray(starts)
    given = y, raw, starts, loss, None if weight is None else np.asarray(weight, float)
    with Threads(1) as threads:
        cpu = placed_queries(CpuEngine(threads), *given)
        gpu = placed_queries(engine.CudaEngine(threads), *given)
        assert gpu.loss() == cpu.loss()  # as rows that only validate are asked
        expected = derivatives_of(cpu.sample)
        expected.derive(raw[None], "newton", threads.team())
        gpu.begin_tree(0, SplitRules())
        extremes, gradients, hessians, at = gpu._extremes(0)
        assert gpu.loss() == cpu.loss()
        # Queries that are too long are computed here; no test is to be of those unawares.
        assert gpu._queries is not None
    found = gradients.copy_to_host()[at], hessians.copy_to_host()[at]
    for mine, its in zip(expected.of_output(0), found, strict=True):
        assert mine.tobytes() == its.tobytes()
    assert extremes == expected.extremes(0)


ODD_QUERIES = {
    "equal scores": ([0, 2, 1, 2, 0], [0.5] * 5, [0, 5]),
    "ties in scores and labels": ([1, 0, 1, 2, 0, 1], [0.5, 0.5, 0.5, -1, -1, 2], [0, 6]),
    "single documents": ([1, 0, 3], [0.1, 0.2, 0.3], [0, 1, 2, 3]),
    "equal labels": ([2, 2, 2, 0, 0], [0.3, 0.1, 0.2, 5, 4], [0, 3, 5]),
    "far apart": ([0, 1, 2, 1], [900.0, -900.0, 1e-300, 0.0], [0, 4]),
    "infinite": ([0, 1, 2, 1, 0], [np.inf, -np.inf, 0.0, -np.inf, np.inf], [0, 5]),
    "minus zero": ([1, 0, 1], [0.0, -0.0, 0.0], [0, 3]),
    "labels that are hardly different": ([0.0, 1e-20, 30.0, 29.5], [1, 2, 3, 4], [0, 4]),
    "more than a block has threads": (np.arange(15) % 4, np.arange(15) % 7 / 7, [0, 13, 15]),
}


@pytest.mark.parametrize("name", ODD_QUERIES)
def test_lambdas_of_odd_queries_are_those_of_the_cpu(name):
    check_queries(*ODD_QUERIES[name], LambdaMART(truncation=3))


@st.composite
def some_queries(draw):
    """Queries with ties in scores, in labels and in both."""
    most = 6 if SIMULATED else 200
    sizes = draw(st.lists(st.integers(1, most), min_size=1, max_size=2 if SIMULATED else 20))
    n, rng = sum(sizes), np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    y = rng.integers(0, draw(st.integers(1, 5)), n)
    raw = rng.standard_normal(n) * 10.0 ** draw(st.integers(-3, 2))
    raw = raw.round(draw(st.sampled_from([0, 1, 15])))
    weight = rng.integers(1, 5, n) / 3 if draw(st.booleans()) else None
    return y, raw, np.append(0, np.cumsum(sizes)), weight


@settings(max_examples=8 if SIMULATED else 200, deadline=None, database=None)
@given(some_queries(), st.integers(1, 9), st.sampled_from([0.5, 1.0, 2.0]))
def test_lambdas_are_those_of_the_cpu(ranked, truncation, sigma):
    y, raw, starts, weight = ranked
    check_queries(y, raw, starts, LambdaMART(truncation, sigma), weight)


@pytest.mark.skipif(SIMULATED, reason="too slow")
def test_lambdas_of_the_longest_queries_are_those_of_the_cpu():
    rng = np.random.default_rng(0)
    starts = np.cumsum([0, 7, queries.LONGEST, 1, queries.LONGEST - 1, 65, 64])
    y, raw = rng.integers(0, 5, starts[-1]), rng.standard_normal(starts[-1]).round(2)
    for truncation in (30, 10_000):
        check_queries(y, raw, starts, LambdaMART(truncation))


def test_scores_that_are_no_numbers_are_refused():
    y, raw = np.array([0.0, 1.0, 2.0, 1.0]), np.array([0.1, np.nan, 0.3, np.nan])
    for make in (CpuEngine, engine.CudaEngine):
        with Threads(1) as threads:
            rows = placed_queries(make(threads), y, raw, np.array([0, 4]), LambdaMART(), None)
            with pytest.raises(ValueError, match="gradients that are not finite"):
                rows.begin_tree(0, SplitRules())


def test_what_queries_take_of_the_device_is_counted():
    y, starts = np.arange(12.0) % 3, np.array([0, 5, 12])
    binned = pack([[0]] * 12, [1])
    plain = bytes_needed(Sample(binned, y, None, SquaredError()), 2.0**30)
    ranked = bytes_needed(Sample(binned, y, None, LambdaMART().over(starts)), 2.0**30)
    with Threads(1) as threads:
        given = y, np.arange(12.0), starts, LambdaMART(), np.ones(12)
        rows = placed_queries(engine.CudaEngine(threads), *given)
        rows.begin_tree(0, SplitRules())
    there = vars(rows._queries).values()
    kept = [a for one in there for a in (one if isinstance(one, tuple) else [one])]
    # Discounts are as many as the longest query has documents.
    sizes = sum(a.size * a.dtype.itemsize for a in kept if hasattr(a, "copy_to_host"))
    assert sizes - 2 * 8 * 7 - 8 <= ranked - plain <= sizes


@pytest.mark.parametrize("n_marks", [1, 64, 65])
def test_marks_are_weighed_also_where_all_bits_are_set(n_marks):
    rng = np.random.default_rng(n_marks)
    n = 21 if SIMULATED else 5000
    had, shares = rng.random((n, n_marks)) < 0.5, rng.integers(1, 50, n).astype(float)
    had[::3] = True
    sample = Sample(pack([[0]] * n, [1]), np.zeros(n), None, SquaredError(), shares=shares)
    marks = Marks(n_marks, tuple((mark,) for mark in range(n_marks)))
    weighed = CudaMarks(marks, sample, stream.Stream(), had)
    ids = np.stack([rng.permutation(n), rng.permutation(n)]).astype(np.uint32)
    nodes = np.zeros(3, dtype=NODE_DTYPE)
    nodes["start"], nodes["stop"], nodes["side"] = [0, 5, 5], [5, 5, n], [0, 1, 1]
    asked = rng.permutation(n_marks)[:9].tolist()
    found = weighed.weigh(device.sent(ids), nodes, asked)
    for node, its in zip(nodes, found, strict=True):
        mine = ids[node["side"], node["start"] : node["stop"]]
        assert its.tolist() == [shares[mine].sum(), *(shares[mine] @ had[mine][:, asked])]


def test_more_nodes_than_histograms(monkeypatch):
    """Deep trees whose levels have more nodes than the device keeps histograms."""

    monkeypatch.setattr(histograms, "MOST_SLOTS", 4)
    X, y = data()
    params = dict(max_iter=1, max_depth=4, min_samples_leaf=1)
    gpu = MiserRegressor(**params, engine="cuda").fit(X, y)
    cpu = MiserRegressor(**params).fit(X, y)
    assert gpu.ensemble_.nodes.tobytes() == cpu.ensemble_.nodes.tobytes()
    assert len(cpu.ensemble_.nodes) > 2 * 4 + 1


def test_a_fit_goes_on_where_another_engine_stopped():
    X, y = data()
    one = MiserRegressor(max_iter=1, warm_start=True, max_depth=2).fit(X, y)
    one.set_params(max_iter=2, engine="cuda").fit(X, y)
    other = MiserRegressor(max_iter=1, warm_start=True, max_depth=2, engine="cuda").fit(X, y)
    other.set_params(max_iter=2, engine="cpu").fit(X, y)
    assert one.ensemble_.nodes.tobytes() == other.ensemble_.nodes.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_predictions_are_those_of_the_cpu(dtype, monkeypatch):
    X, y = data()
    model = MiserClassifier(max_iter=4, max_depth=3, categorical_features=[3], min_samples_leaf=2)
    model.fit(X, classes(y))
    # More rows than the CPU takes the short way for, in more than one journey.
    many = np.tile(X, (1 + 150 // N, 1)).astype(dtype)
    monkeypatch.setattr(prediction, "BATCH_BYTES", 8 * 5 * 40)
    gpu, cpu = as_predictor(model, engine="cuda"), as_predictor(model)
    assert gpu.raw_predict(many).tobytes() == cpu.raw_predict(many).tobytes()
    assert np.array_equal(gpu.predict(many[:3]), cpu.predict(many[:3]))


def test_data_that_does_not_fit_is_refused_before_it_is_moved(monkeypatch):
    X, y = data()
    model = MiserRegressor(max_iter=2, max_depth=2).fit(X, y)
    before = dict(model.__dict__)
    model.set_params(engine="cuda")

    class Full:
        def get_memory_info(self):
            return 2.0**20, 2.0**33

    monkeypatch.setattr(engine, "context", Full)
    with pytest.raises(MemoryError, match=r"needs .* GiB .* of which 0.00 GiB of 8.00 are free"):
        model.fit(X, y)
    assert {**model.__dict__, "engine": "auto"} == before


def test_a_device_that_is_full_is_named(monkeypatch):
    X, y = data()

    def full(shape, dtype):
        raise RuntimeError("Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY")

    monkeypatch.setattr(device.cuda, "device_array", full)
    model = MiserRegressor(max_iter=1, engine="cuda")
    with pytest.raises(MemoryError, match=r"no room for [\d.]+ MiB more"):
        model.fit(X, y)
    assert not hasattr(model, "model_")


def test_a_device_that_fails_leaves_the_model_as_it_was(monkeypatch):
    X, y = data()
    model = MiserRegressor(max_iter=2, max_depth=2).fit(X, y)
    before = dict(model.__dict__)
    launched, launch = [], stream.Stream.launch

    def fail(self, *args):
        launched.append(args)
        if len(launched) > 9:
            raise stream.DeviceError("the GPU failed")
        launch(self, *args)

    monkeypatch.setattr(stream.Stream, "launch", fail)
    with pytest.raises(stream.DeviceError):
        model.set_params(engine="cuda").fit(X, y)
    assert {**model.__dict__, "engine": "auto"} == before


def test_the_halves_of_words_have_room():
    """Sums of 2^r of the largest and smallest numbers, with their counts, fit into 32 bits."""
    for n in [1, 3, 1000, 2**16, 2**19, 2**20 - 1, 2**20, 2**31]:
        for largest in [1.0, np.nextafter(2.0, 0.0), 3e30]:
            for is_flat in (True, False):
                for bits in (3, 30, 63 if n < 2**20 else 57):
                    extremes = Extremes(largest, largest, is_flat)
                    check_halves(GridRule(most_bits=bits).choose(n, extremes), extremes)


def check_halves(grid, extremes):
    from greedymiser.engines.cuda.rows import coding_of

    r, low, alone = coding = coding_of(grid, extremes)
    assert isinstance(coding, Coding)
    assert r >= 0
    first = extremes.gradient / grid.gradient if grid.row_words == 1 else None
    for number in [extremes.hessian / grid.hessian] if first is None else [first, -first]:
        whole = round(number)
        assert 2**r * ((1 << (low + r)) + (2**low - 1)) < 2**32
        assert 2**r * (2**low - 1) < 1 << (low + r)
        assert -(2**31) <= 2**r * (whole >> low) < 2**31
    if first is None:
        for whole in (round(extremes.gradient / grid.gradient),):
            assert 2**r * (2**alone - 1) < 2**32
            assert max(2**r * (whole >> alone), -(2**r) * (-whole >> alone)) < 2**31


@pytest.mark.skipif(SIMULATED, reason="the simulator has one thread at a time")
def test_two_fits_at_once():
    X, y = data()
    expected = MiserRegressor(max_iter=ROUNDS).fit(X, y).ensemble_.nodes.tobytes()
    found = []

    def fit():
        model = MiserRegressor(max_iter=ROUNDS, engine="cuda").fit(X, y)
        found.append(model.ensemble_.nodes.tobytes() == expected)

    fits = [threading.Thread(target=fit) for _ in range(3)]
    for one in fits:
        one.start()
    for one in fits:
        one.join()
    assert found == [True] * 3


def check_same(make, *data, **more):
    cpu, gpu = (make(engine=engine).fit(*data, **more) for engine in ("cpu", "cuda"))
    assert cpu.n_iter_ > 0
    assert cpu.ensemble_.nodes.tobytes() == gpu.ensemble_.nodes.tobytes()
    assert cpu.train_score_.tobytes() == gpu.train_score_.tobytes()


def folder_of(name):
    folder = Path(os.environ.get("GREEDYMISER_DATA", "")) / name
    if "GREEDYMISER_DATA" not in os.environ or not folder.is_dir():
        pytest.skip(f"needs {name} in the folder GREEDYMISER_DATA")
    return folder


@pytest.mark.skipif(SIMULATED, reason="too slow")
@pytest.mark.parametrize("tradeoff", [0.0, 1e-3])
def test_thyroid(tradeoff):
    thyroid = load_thyroid()
    params = dict(costs=thyroid.costs, tradeoff=tradeoff, max_iter=40, random_state=0)
    check_same(partial(MiserClassifier, **params), thyroid.X_train, thyroid.y_train)


@pytest.mark.skipif(SIMULATED, reason="too slow")
@pytest.mark.parametrize("loss", ["lambdamart", "squared_error"])
def test_mq2008(loss):
    X, y, qid = load_letor(folder_of("mq2008") / "S1.txt")
    params = dict(costs=1.0 + np.arange(X.shape[1]) % 7, tradeoff=1e-5, max_iter=40)
    check_same(partial(MiserRanker, loss=loss, **params), X, y, qid=qid)


@pytest.mark.skipif(SIMULATED, reason="too slow")
def test_mfeat():
    """Ten classes."""
    table = np.loadtxt(folder_of("mfeat") / "mfeat-zer.csv", delimiter=",", skiprows=1)
    params = dict(max_iter=10, costs=np.ones(table.shape[1] - 1), tradeoff=1e-3)
    check_same(partial(MiserClassifier, **params), table[:, :-1], table[:, -1].astype(int))


def test_a_kernel_that_could_not_be_loaded_is_loaded_when_it_is_launched(monkeypatch):
    read = Mock(side_effect=[OSError("the disk failed"), None])
    monkeypatch.setattr(stream, "ptx_of", read)
    monkeypatch.setattr(stream, "_functions", {})
    with pytest.raises(OSError, match="the disk failed"):
        stream._function(0, "scan", None)
    assert stream._function(0, "scan", None) is None  # Numba compiles it
    assert stream._function(0, "scan", None) is None
    assert read.call_count == 2


@pytest.mark.skipif(SIMULATED, reason="nothing is compiled")
def test_nothing_is_compiled_on_a_gpu():
    """All kernels come as PTX, which the driver of this device takes."""
    from greedymiser.engines.cuda.kernels import counting, marking, ranking, rows, scanning

    X, y = data()
    MiserClassifier(max_iter=1, engine="cuda").fit(X, classes(y))
    MiserRegressor(charge="row", tradeoff=1e-3, max_iter=1, engine="cuda").fit(X, y)
    model = MiserRanker(max_iter=1, engine="cuda").fit(X, classes(y), **QUERIES)
    as_predictor(model, engine="cuda").predict(X)
    for module in (counting, marking, ranking, rows, scanning, prediction):
        for kernel in vars(module).values():
            is_kernel = isinstance(kernel, type(rows.evaluate))
            assert not is_kernel or kernel.targetoptions.get("device") or not kernel.overloads


@pytest.mark.skipif(SIMULATED or not hasattr(os, "fork"), reason="nothing to inherit")
def test_a_forked_child_is_told_why_not():
    X, y = data()
    MiserRegressor(max_iter=1, engine="cuda").fit(X, y)
    child = os.fork()
    if child == 0:
        try:
            MiserRegressor(max_iter=1, engine="cuda", n_jobs=1).fit(X, y)
        except engine.CudaUnavailableError as error:
            os._exit(7 if "fork" in str(error) else 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
