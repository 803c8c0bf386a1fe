"""The training matrix, in parallel and with failures."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import threading

import numpy as np
import pandas as pd
import pytest

from greedymiser import MiserRegressor
from greedymiser.on_demand import (
    AcquisitionError,
    OnDemandPredictor,
    Sources,
    SourceTimeoutError,
    build_matrix,
)
from test_on_demand import told_of_failures

PATIENCE = 20.0


def words(raw):
    return raw.split()


def sizes(words):
    if "bad" in words:
        raise ValueError("a bad word")
    return len(words), max(map(len, words))


def kind(raw):
    return raw[:1]


def text_sources(labels=False):
    sources = Sources()
    sources.add(words)
    sources.add(sizes, ["n_words", "longest"])
    sources.add(len, ["length"], name="length", needs=["raw"])
    if labels:
        sources.add(kind, ["kind"], categorical=True)
    return sources


TEXTS = ["to be", "or not to be", "that", "is the question"]
EXPECTED = [[2, 2, 5], [4, 3, 12], [1, 4, 4], [3, 8, 15]]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_jobs": 3},
        pytest.param({"n_jobs": 2, "prefer": "processes"}, marks=pytest.mark.subprocess),
        {"n_jobs": 1, "prefer": "processes"},
        {"timeout": PATIENCE},
    ],
    ids=str,
)
def test_all_ways_make_the_same_frame(options):
    frame = build_matrix(text_sources(labels=True), TEXTS * 30, **options)
    assert list(frame.columns) == ["n_words", "longest", "length", "kind"]
    assert frame.drop(columns="kind").to_numpy().tolist() == EXPECTED * 30
    assert (frame.dtypes.iloc[:3] == np.float64).all()
    assert frame["kind"].tolist() == ["t", "o", "t", "i"] * 30
    assert frame["kind"].cat.categories.tolist() == ["i", "o", "t"]


def test_arrays():
    array = build_matrix(text_sources(), iter(TEXTS), as_frame=False)
    assert type(array) is np.ndarray
    assert array.tolist() == EXPECTED
    with pytest.raises(ValueError, match="column 'kind' holds labels, which only a data frame can"):
        build_matrix(text_sources(labels=True), TEXTS, as_frame=False)


def test_without_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert type(build_matrix(text_sources(), TEXTS)) is np.ndarray
    with pytest.raises(ImportError, match="as_frame=True needs pandas"):
        build_matrix(text_sources(), TEXTS, as_frame=True)


def test_no_objects():
    frame = build_matrix(text_sources(labels=True), [])
    assert frame.shape == (0, 4)
    assert build_matrix(text_sources(), [], as_frame=False).shape == (0, 3)
    assert build_matrix(text_sources(), [], n_jobs=2, prefer="processes").shape == (0, 3)


def test_more_objects_than_a_batch():
    texts = [f"{'x' * (i % 7 + 1)} y" for i in range(1000)]
    frame = build_matrix(text_sources(), (text for text in texts))
    assert frame["length"].tolist() == [len(text) for text in texts]


def test_rows_of_a_frame_are_objects():
    sources = Sources(raw="row")
    sources.add(lambda row: row["a"].iloc[0] + row["b"].iloc[0], ["sum"], name="sum")
    frame = pd.DataFrame({"a": [1, 2], "b": [10, 20]}, index=["x", "y"])
    assert build_matrix(sources, frame)["sum"].tolist() == [11, 22]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_jobs": 2},
        pytest.param({"n_jobs": 2, "prefer": "processes"}, marks=pytest.mark.subprocess),
    ],
    ids=str,
)
def test_failures(options):
    texts = [*TEXTS * 5, "a bad day", *TEXTS, "bad"]
    with pytest.raises(AcquisitionError, match=r"'sizes' failed on object \d+: ValueError: a bad"):
        build_matrix(text_sources(), texts, **options)
    message = (
        r"'sizes' failed on 2 of 26 objects, .* \(first on object 20: ValueError: a bad word\)"
    )
    with told_of_failures(message) as caught:
        frame = build_matrix(text_sources(labels=True), texts, on_error="missing", **options)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert frame["n_words"].isna().to_numpy().nonzero()[0].tolist() == [20, 25]
    assert frame["length"].tolist() == [len(text) for text in texts]
    assert frame.iloc[21, :3].tolist() == EXPECTED[0]


def test_labels_that_fail_are_missing():
    sources = Sources()
    sources.add(lambda raw: {1: "one"}[raw], ["name"], categorical=True, name="named")
    with told_of_failures(r"'named' failed on 1 of 2 .*KeyError: 2"):
        frame = build_matrix(sources, [1, 2], on_error="missing")
    assert frame["name"].isna().tolist() == [False, True]


def test_the_cause_is_kept():
    with pytest.raises(AcquisitionError) as caught:
        build_matrix(text_sources(), ["bad"])
    assert isinstance(caught.value.__cause__, ValueError)
    assert (caught.value.source, caught.value.index) == ("sizes", 0)


def test_coroutines_run_side_by_side():
    sources = Sources()
    meeting = {}

    @sources.columns
    async def a(raw):
        barrier = meeting.setdefault("barrier", asyncio.Barrier(8))
        await asyncio.wait_for(barrier.wait(), PATIENCE)
        return raw

    frame = build_matrix(sources, range(16), concurrency=8)
    assert frame["a"].tolist() == list(range(16))


@pytest.mark.subprocess
def test_anyio_is_loaded_when_there_is_something_to_wait_for(tmp_path):
    """It takes as long to load as half of our own modules."""
    script = tmp_path / "plain.py"
    script.write_text(
        "import sys\n"
        "from greedymiser.on_demand import Sources, build_matrix\n"
        "sources = Sources()\n"
        "sources.add(float, ['x'], name='x', needs=['raw'])\n"
        "for n_jobs in (1, 2):\n"
        "    build_matrix(sources, [1, 2], n_jobs=n_jobs, as_frame=False)\n"
        "    print('anyio' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\nTrue\n"


def test_functions_run_side_by_side():
    barrier = threading.Barrier(4)
    sources = Sources()
    sources.add(lambda raw: barrier.wait(PATIENCE) * 0 + raw, ["a"], name="a")
    assert build_matrix(sources, range(8), n_jobs=4)["a"].tolist() == list(range(8))


@pytest.mark.slow
def test_time_outs():
    never = threading.Event()
    sources = Sources()

    def slow(raw):
        if raw == 1:
            never.wait(2 * PATIENCE)
        return raw

    sources.add(slow, ["a"])
    try:
        with told_of_failures(r"did not answer within 0\.5 s"):
            frame = build_matrix(sources, range(3), timeout=0.5, on_error="missing")
        assert frame["a"].tolist()[::2] == [0, 2]
        assert math.isnan(frame["a"][1])
        with pytest.raises(SourceTimeoutError):
            build_matrix(sources, range(3), timeout={"slow": 0.5})
    finally:
        never.set()


@pytest.mark.slow
def test_the_bar_is_shown_when_asked_for(capsys):
    build_matrix(text_sources(), TEXTS)
    assert capsys.readouterr() == ("", "")
    build_matrix(text_sources(), TEXTS, verbose=1)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "100%" in shown.err
    assert "4/4" in shown.err
    build_matrix(text_sources(), iter(TEXTS), verbose=1)
    assert "4 objects " in capsys.readouterr().err
    build_matrix(text_sources(), TEXTS * 20, n_jobs=2, prefer="processes", verbose=1)
    assert "80/80" in capsys.readouterr().err
    with pytest.raises(AcquisitionError):
        build_matrix(text_sources(), ["x", "bad", "y"], verbose=1)
    assert "1/3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefer": "magic"}, "prefer must be 'threads' or 'processes', got 'magic'"),
        ({"on_error": "skip"}, "on_error must be one of"),
        ({"timeout": {"x": 1}}, "timeout names 'x'"),
        ({"concurrency": -1}, "concurrency must be"),
        ({"n_jobs": 0}, "n_jobs"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        build_matrix(text_sources(), TEXTS, **options)


def test_bad_sources():
    sources = text_sources()
    sources.add(lambda nowhere: 1, name="stray")
    with pytest.raises(ValueError, match="intermediate 'stray' needs 'nowhere'"):
        build_matrix(sources, TEXTS)
    with pytest.raises(TypeError, match="put a single object into a list"):
        build_matrix(text_sources(), "one text")


def test_a_model_trained_on_an_array_is_served_by_order():
    texts = [" ".join("x" * (j + 1) for j in range(i % 6 + 1)) for i in range(100)]
    X = build_matrix(text_sources(), texts, as_frame=False)
    model = MiserRegressor(max_iter=5, min_samples_leaf=5, n_jobs=1).fit(X, X[:, 1])
    served = OnDemandPredictor(model, text_sources())
    assert np.array_equal(served.predict(texts), model.predict(X))
