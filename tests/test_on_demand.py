"""Serving from raw objects: only what is needed, once, and the same bits."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import gc
import io
import itertools
import logging
import math
import pickle
import re
import subprocess
import sys
import textwrap
import threading
import time
import warnings
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import anyio
import numpy as np
import pandas as pd
import pytest
import sniffio
from anyio.from_thread import run_sync
from anyio.lowlevel import current_token
from hypothesis import given
from hypothesis import strategies as st

from greedymiser import (
    CostModel,
    EarlyExitClassifier,
    EarlyExitRanker,
    MiserClassifier,
    MiserRanker,
    MiserRegressor,
    as_predictor,
    load,
    save,
)
from greedymiser.costs.cost_model import sum_of_prices
from greedymiser.model.exit_rules import Above
from greedymiser.model.predictor import Stage
from greedymiser.on_demand import (
    AcquisitionError,
    AcquisitionWarning,
    OnDemandPredictor,
    Sources,
    SourceTimeoutError,
    build_matrix,
    fetcher,
    measure_costs,
)
from greedymiser.on_demand.request import Request
from random_examples import examples

# Long enough for any machine; whoever waits so long has failed.
PATIENCE = 20.0
COLUMNS = ["cheap", "low", "high", "dear", "unused", "noise"]

on_every_backend = pytest.mark.parametrize("backend", ["asyncio", "trio"])


async def gathered(*functions):
    """What coroutine functions return that run side by side."""
    found = [None] * len(functions)

    async def keep(i):
        found[i] = await functions[i]()

    async with anyio.create_task_group() as group:
        for i in range(len(functions)):
            group.start_soon(keep, i)
    return found


@contextmanager
def told_of_failures(match):
    """Failures are warned of, source by source, and logged with what ``match`` says."""
    lines, logger = [], logging.getLogger("greedymiser.on_demand")
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    try:
        with pytest.warns(AcquisitionWarning) as caught:
            yield caught
    finally:
        logger.removeHandler(handler)
    assert re.search(match, "\n".join(lines)), lines


def n_running():
    return len(anyio.get_running_tasks())


class Counting:
    """Sources over rows of numbers that count who is called on which object.

    ``decoded`` is shared by low, high and dear; ``pair`` makes two columns at once.
    """

    def __init__(self):
        self.calls = Counter()
        self.lock = threading.Lock()
        self.sources = Sources()
        self.sources.add(self.counted("cheap", lambda raw: raw[1]), ["cheap"], name="cheap")
        self.sources.add(self.counted("decoded", np.array), name="decoded", needs=["raw"])
        self.sources.add(
            self.counted("pair", lambda x: {"high": x[3], "low": x[2]}),
            ["low", "high"],
            name="pair",
            needs=["decoded"],
        )
        self.sources.add(
            self.counted("dear", lambda x: x[4]), ["dear"], name="dear", needs=["decoded"]
        )
        self.sources.add(self.counted("unused", lambda raw: raw[5]), ["unused"], name="unused")
        self.sources.add(self.counted("noise", lambda raw: raw[6]), ["noise"], name="noise")

    def counted(self, name, function):
        def call(raw):
            with self.lock:
                self.calls[name, int(raw[0])] += 1
            return function(raw)

        return call

    def called(self, index):
        return {name for name, i in self.calls if i == index}


COSTS = CostModel.from_resources(
    {"cheap": 0.1, "decoded": 3.0, "pair": 1.0, "dear": 10.0, "unused": 1.0, "noise": 1.0},
    {
        "cheap": ["cheap"],
        "low": ["decoded", "pair"],
        "high": ["decoded", "pair"],
        "dear": ["decoded", "dear"],
        "unused": ["unused"],
        "noise": ["noise"],
    },
    tree_cost=0.01,
)


@pytest.fixture(scope="module")
def rows():
    """Raw objects: their number, then the six columns."""
    rng = np.random.default_rng(0)
    rows = np.column_stack([np.arange(400), rng.standard_normal((400, 6))])
    rows[:, [3, 5]] = 0.0  # of no use to anyone
    return rows


@pytest.fixture(scope="module", name="X")
def matrix(rows):
    return build_matrix(Counting().sources, rows)


@pytest.fixture(scope="module")
def y(rows):
    return 3.0 * rows[:, 1] + rows[:, 2] * (rows[:, 1] > 0) + rows[:, 4]


@pytest.fixture(scope="module")
def regressor(X, y):
    """Looks at cheap, low and dear."""
    model = MiserRegressor(costs=COSTS, tradeoff=2e-3, max_iter=25, min_samples_leaf=5, n_jobs=1)
    model.fit(X, y)
    assert set(model.features_used_) == {"cheap", "low", "dear"}
    return model


@pytest.fixture(scope="module")
def classifier(X, y):
    labels = np.array(["no", "perhaps", "yes"])[np.digitize(y, [-1, 1])]
    model = MiserClassifier(costs=COSTS, min_samples_leaf=5, n_jobs=1, warm_start=True)
    # Stingy first, so that the dear columns come late.
    for tradeoff, max_iter in [(0.02, 9), (1e-3, 40)]:
        model.set_params(tradeoff=tradeoff, max_iter=max_iter).fit(X, labels)
    assert model.ensemble_.first_uses() == {0: 0, 1: 9, 3: 9, 5: 19}
    return model


@pytest.fixture(scope="module")
def hasty(classifier, X):
    """Early exits; many rows leave before anyone asks for the dear column."""
    return EarlyExitClassifier(classifier, threshold=0.7, every=3, n_jobs=1).fit(
        X, classifier.predict(X)
    )


# What is fetched


def test_nothing_is_fetched_that_is_not_needed_and_nothing_twice(regressor, rows, X):
    counting = Counting()
    served = OnDemandPredictor(regressor, counting.sources)
    assert served.fetches == ["cheap", "decoded", "pair", "dear"]
    predictions, receipts = served.predict(rows, return_receipts=True)
    assert np.array_equal(predictions, regressor.predict(X))
    assert set(counting.calls.values()) == {1}
    assert {name for name, _ in counting.calls} == {"cheap", "decoded", "pair", "dear"}
    assert len(counting.calls) == 4 * len(rows)
    assert receipts[7].fetched == ("cheap", "decoded", "pair", "dear")


def test_a_constant_model_fetches_nothing(X, y, rows):
    model = MiserRegressor(costs=COSTS, max_iter=5).fit(X, y).truncate(0)
    counting = Counting()
    predictions, receipts = OnDemandPredictor(model, counting.sources).predict(
        rows[:3], return_receipts=True
    )
    assert np.array_equal(predictions, model.predict(X[:3]))
    assert not counting.calls
    assert receipts.costs.tolist() == [0.0, 0.0, 0.0]
    assert receipts[0].fetched == ()


@pytest.mark.parametrize("n_jobs", [1, 3])
def test_who_leaves_early_fetches_only_what_was_met(hasty, rows, X, n_jobs):
    counting = Counting()
    with OnDemandPredictor(hasty, counting.sources, n_jobs=n_jobs, batch_size=64) as served:
        proba, receipts = served.predict_proba(rows, return_receipts=True)
    assert np.array_equal(proba, hasty.predict_proba(X))
    assert set(counting.calls.values()) == {1}
    left = hasty.predictor_.leaving_stages(X)
    maker = {name: counting.sources.maker(name).name for name in COLUMNS}
    for i, k in enumerate(left):
        met = {f for stage in hasty.predictor_.stages[: k + 1] for f in stage.features}
        makers = {maker[COLUMNS[f]] for f in met}
        shared = {"decoded"} if makers & {"pair", "dear"} else set()
        assert counting.called(i) == makers | shared
        assert set(receipts[i].fetched) == makers | shared
    fetched = Counter(len(receipt.fetched) for receipt in receipts)
    assert min(fetched[n] for n in (1, 4, 5)) > 20, "objects must leave at different times"


def test_objects_that_left_are_let_go(hasty):
    """Raw objects and intermediates of finished objects do not pile up."""

    class Picture:
        pass

    alive = weakref.WeakSet()
    most = 0
    sources = Sources()

    @sources.intermediate
    def decoded(raw):
        nonlocal most
        picture = Picture()
        alive.add(picture)
        most = max(most, len(alive))
        return picture

    sources.add(lambda raw, decoded: raw[1:], COLUMNS, name="all", needs=["raw", "decoded"])
    served = OnDemandPredictor(hasty, sources, batch_size=8)
    served.predict(np.zeros(7) for _ in range(100))
    gc.collect()
    assert len(alive) == 0
    assert most <= 16


@pytest.mark.parametrize("with_receipts", [False, True])
@pytest.mark.slow
def test_no_more_than_a_batch_is_looked_after(hasty, with_receipts):
    most = 0

    def read(raw):
        nonlocal most
        if raw[0] % 20 == 0:
            most = max(most, sum(isinstance(thing, Request) for thing in gc.get_objects()))
        return raw[1:]

    sources = Sources()
    sources.add(read, COLUMNS)
    served = OnDemandPredictor(hasty, sources, batch_size=8)
    gc.collect()
    served.predict((np.full(7, float(i)) for i in range(100)), return_receipts=with_receipts)
    assert 8 <= most <= 16


# The same bits


def test_predictions_are_those_of_the_matrix(regressor, classifier, rows, X):
    counting = Counting()
    for served in (
        OnDemandPredictor(classifier, counting.sources),
        OnDemandPredictor(classifier, counting.sources, batch_size=1),
        OnDemandPredictor(classifier, counting.sources, n_jobs=4, batch_size=50),
        OnDemandPredictor(as_predictor(classifier), counting.sources, timeout=PATIENCE),
        pickle.loads(pickle.dumps(OnDemandPredictor(classifier, ROW_SOURCES))),
    ):
        assert np.array_equal(served.predict(rows), classifier.predict(X))
        assert np.array_equal(served.predict_proba(rows), classifier.predict_proba(X))
        assert np.array_equal(served.decision_function(rows), classifier.decision_function(X))
        served.close()


def whole_row(raw):
    return raw[1:]


ROW_SOURCES = Sources()
ROW_SOURCES.add(whole_row, COLUMNS)


@examples(25)
@given(
    st.lists(st.lists(st.floats(width=32), min_size=6, max_size=6), min_size=1, max_size=12),
    st.integers(1, 5),
)
def test_any_numbers_give_the_same_bits(hasty, numbers, batch_size):
    rows = [np.array([0.0, *row]) for row in numbers]
    X = build_matrix(ROW_SOURCES, rows)
    served = OnDemandPredictor(hasty, ROW_SOURCES, batch_size=batch_size)
    proba, receipts = served.predict_proba(rows, return_receipts=True)
    assert np.array_equal(proba, hasty.predict_proba(X))
    assert np.array_equal(receipts.costs, hasty.prediction_costs(X))


def test_binary_classifier(X, y, rows):
    model = MiserClassifier(costs=COSTS, max_iter=20, n_jobs=1).fit(X, y > 0)
    served = OnDemandPredictor(EarlyExitClassifier(model, threshold=0.8).fit(X, y > 0), ROW_SOURCES)
    assert served.predict(rows).dtype == bool
    expected = served.predictor.predict_proba(X)
    assert np.array_equal(served.predict_proba(rows), expected)


def test_a_cascade_that_scores_anew(X, y, rows):
    """Stages with ensembles of their own, as Cronus has them."""
    small = MiserRegressor(costs=COSTS, tradeoff=0.05, max_iter=8, n_jobs=1).fit(X, y)
    large = MiserRegressor(costs=COSTS, max_iter=20, n_jobs=1).fit(X, y)
    first, second = small.ensemble_, large.ensemble_
    cascade = dataclasses.replace(
        large.predictor_,
        stages=(
            Stage(first, 0, first.n_iter, first.n_trees),
            Stage(second, 0, second.n_iter, first.n_trees + second.n_trees),
        ),
        rule=Above((0.5,)),
    )
    counting = Counting()
    served = OnDemandPredictor(cascade, counting.sources)
    predictions, receipts = served.predict(rows, return_receipts=True)
    assert np.array_equal(predictions, cascade.predict(X))
    assert np.array_equal(receipts.costs, cascade.prediction_costs(X))
    assert set(counting.calls.values()) == {1}
    reasons = {receipt.stopped for receipt in receipts}
    assert reasons == {
        "it has met all trees",
        f"after {first.n_trees} trees: its score is not above 0.5",
    }


@pytest.fixture(scope="module")
def ranker(X, y):
    qid = np.repeat(np.arange(20), 20)
    model = MiserRanker(costs=COSTS, tradeoff=1e-3, max_iter=30, min_samples_leaf=5, n_jobs=1)
    model.fit(X, np.clip(np.round(y), 0, 4), qid=qid)
    return EarlyExitRanker(model, threshold=2.0, every=3, n_jobs=1).fit(X, y, qid=qid)


@pytest.mark.parametrize("batch_size", [1, 33, 1000])
def test_queries_are_seen_whole(ranker, rows, X, batch_size):
    qid = np.random.default_rng(1).integers(0, 15, len(rows))
    counting = Counting()
    served = OnDemandPredictor(ranker, counting.sources, batch_size=batch_size)
    scores, receipts = served.predict(rows, qid=qid, return_receipts=True)
    assert np.array_equal(scores, ranker.predict(X, qid))
    assert np.array_equal(receipts.costs, ranker.prediction_costs(X, qid))
    assert len(set(receipts.costs)) > 1
    assert [receipt.index for receipt in receipts] == list(range(len(rows)))
    assert np.array_equal(served.predict(iter(rows)), ranker.predict(X))
    plain = OnDemandPredictor(ranker.estimator_, counting.sources, batch_size=batch_size)
    assert np.array_equal(plain.predict(rows, qid=qid), ranker.estimator_.predict(X))


@pytest.mark.parametrize("batch_size", [33, 1000])
def test_a_cascade_of_rankers_compares_all_objects_without_queries(ranker, rows, X, batch_size):
    """Its rule compares nobody, but those that leave are moved below those that stay."""
    cascade = dataclasses.replace(
        ranker.predictor_, rule=Above((0.0,) * (len(ranker.predictor_.stages) - 1))
    )
    served = OnDemandPredictor(cascade, ROW_SOURCES, batch_size=batch_size)
    assert np.array_equal(served.predict(rows), cascade.predict(X))
    qid = np.repeat(np.arange(40), 10)
    assert np.array_equal(served.predict(rows, qid=qid), cascade.predict(X, qid))


def test_queries_that_do_not_fit(ranker, regressor, rows):
    served = OnDemandPredictor(ranker, ROW_SOURCES)
    with pytest.raises(ValueError, match=r"qid has shape \(3,\), but there are 4 objects"):
        served.predict(rows[:4], qid=[1, 1, 2])
    with pytest.raises(ValueError, match="qid is for rankers, and this model is a regressor"):
        OnDemandPredictor(regressor, ROW_SOURCES).predict(rows[:2], qid=[1, 1])
    assert served.predict([], qid=[]).shape == (0,)


# Categories


def label_sources():
    sources = Sources()
    sources.add(lambda raw: raw["colour"], ["colour"], categorical=True, name="colour")
    sources.add(lambda raw: (raw["size"], raw["code"]), ["size", "code"], name="rest")
    return sources


def test_labels_are_coded_as_in_a_frame():
    rng = np.random.default_rng(0)
    colours = np.array(["red", "green", "blue", None], dtype=object)
    objects = [
        {"colour": colours[rng.integers(4)], "size": rng.normal(), "code": int(rng.integers(3))}
        for _ in range(300)
    ]
    y = [(o["colour"] == "red") + o["size"] + (o["code"] == 1) for o in objects]
    sources = label_sources()
    X = build_matrix(sources, objects)
    assert X["colour"].dtype == "category"
    model = MiserRegressor(
        categorical_features=["colour", "code"], max_iter=20, min_samples_leaf=5, n_jobs=1
    ).fit(X, y)
    assert "colour" in model.features_used_
    assert "code" in model.features_used_
    more = [
        {"colour": "violet", "size": 1.0, "code": 1},
        {"colour": math.nan, "size": math.nan, "code": 9},
        {"colour": np.str_("red"), "size": 0.0, "code": np.int64(2)},
        {"colour": "red", "size": 0.0, "code": math.nan},
    ]
    served = OnDemandPredictor(model, sources)
    everything = objects + more
    assert np.array_equal(
        served.predict(everything), model.predict(build_matrix(sources, everything))
    )


def test_the_model_says_as_well_which_columns_hold_labels():
    """Strings of a source that declares none: of use to such a model, but not to a matrix."""
    objects = [{"colour": colour, "size": i % 7} for i, colour in enumerate(["red", "blue"] * 40)]
    X = pd.DataFrame(objects).astype({"colour": "category"})
    y = (X["colour"] == "red") + 0.1 * X["size"]
    model = MiserRegressor(max_iter=5, min_samples_leaf=5, n_jobs=1).fit(X, y)
    sources = Sources()
    sources.add(lambda raw: raw["colour"], ["colour"], name="colour")
    sources.add(lambda raw: raw["size"], ["size"], name="size")
    served = OnDemandPredictor(model, sources)
    assert np.array_equal(served.predict(objects), model.predict(X))
    with pytest.raises(AcquisitionError, match="'colour' must be a number, got 'red'"):
        build_matrix(sources, objects)
    with pytest.raises(AcquisitionError, match="'colour' must be a number, got 'red'"):
        measure_costs(sources, objects[:2])
    with pytest.raises(AcquisitionError, match="'size' must be a number, got 'x'"):
        served.predict([{"colour": "red", "size": "x"}])


def test_objects_of_a_frame_are_frames_where_dicts_are_expected():
    frame = pd.DataFrame({"colour": ["red", "blue"] * 40, "size": np.arange(80.0), "code": 0.0})
    model = MiserRegressor(max_iter=2, n_jobs=1).fit(frame[["size", "code"]], frame["size"])
    served = OnDemandPredictor(model, label_sources())
    with pytest.raises(
        AcquisitionError, match=r"frame of one row: .* frame\.to_dict\(\"records\"\)"
    ):
        served.predict(frame)
    found = served.predict(frame.to_dict("records"))
    assert np.array_equal(found, model.predict(frame[["size", "code"]]))


def test_labels_for_a_model_that_takes_numbers():
    sources = label_sources()
    frame = pd.DataFrame({"colour": [0.0, 1.0] * 40, "size": 0.0, "code": 0.0})
    model = MiserRegressor(max_iter=2).fit(frame, frame["colour"])
    with pytest.raises(ValueError, match=r"'colour' holds labels by its source 'colour', but num"):
        OnDemandPredictor(model, sources)


@pytest.mark.parametrize("large", [2**53, 2**63, -(2**53) - 9])
@pytest.mark.parametrize("others", [[], [None], [None, 0.5]])
def test_large_integers_are_labels_of_their_own(tmp_path, large, others):
    """Some of them are equal as floats."""
    sources = Sources()
    sources.add(lambda raw: raw, ["id"], categorical=True, name="id")
    labels = [large, large + 1, large + 2, large + 3, *others]
    objects = labels * 40
    y = np.tile(np.arange(len(labels), dtype=float), 40)
    X = build_matrix(sources, objects)
    model = MiserRegressor(max_iter=30, min_samples_leaf=5, learning_rate=0.3, n_jobs=1).fit(X, y)
    assert len(model.predictor_.categories[0]) == len([x for x in labels if x is not None])
    served = OnDemandPredictor(model, sources)
    expected = served.predict(labels)
    assert len(set(expected)) == len(labels)
    assert np.array_equal(expected, model.predict(X[: len(labels)]))
    for objects in (labels[:1], [*labels[:2], None], [1, 0.25, None], [float(large)]):
        assert np.array_equal(
            served.predict(objects), model.predict(build_matrix(sources, objects))
        )
    save(model, tmp_path / "model.miser")
    loaded = OnDemandPredictor(load(tmp_path / "model.miser"), sources)
    assert np.array_equal(loaded.predict(labels), expected)


# Matching columns


def test_columns_are_found_by_name_in_any_order(regressor, rows, X):
    sources = Sources()
    order = [5, 3, 1, 0, 2]
    sources.add(lambda raw: raw[1:][order], [COLUMNS[i] for i in order], name="all")
    served = OnDemandPredictor(regressor, sources)
    assert np.array_equal(served.predict(rows), regressor.predict(X))


def test_a_needed_column_without_a_source_is_an_error_at_once(regressor, X, y):
    sources = Sources()
    sources.add(lambda raw: raw[1:3], ["cheap", "low"], name="some")
    with pytest.raises(ValueError, match=r"no source makes column 'dear', which the model looks"):
        OnDemandPredictor(regressor, sources)
    with pytest.raises(ValueError, match=r"no source makes column 'cheap' and \d more"):
        OnDemandPredictor(regressor, label_sources())


def test_models_without_names(X, y, rows):
    plain = MiserRegressor(max_iter=5, n_jobs=1).fit(X.to_numpy(), y)
    assert np.array_equal(
        OnDemandPredictor(plain, ROW_SOURCES).predict(rows), plain.predict(X.to_numpy())
    )
    with pytest.raises(ValueError, match=r"6 features without names, but the sources make 3"):
        OnDemandPredictor(plain, label_sources())
    # The costs know better than the order of the sources.
    named = MiserRegressor(costs=COSTS, max_iter=5, n_jobs=1).fit(X.to_numpy(), y)
    turned = Sources()
    turned.add(lambda raw: raw[1:][::-1], COLUMNS[::-1], name="turned")
    assert np.array_equal(
        OnDemandPredictor(named, turned).predict(rows), named.predict(X.to_numpy())
    )


# Receipts


def test_receipts_add_up(regressor, hasty, rows, X):
    for model in (regressor, hasty):
        _, receipts = OnDemandPredictor(model, Counting().sources).predict(
            rows, return_receipts=True
        )
        assert np.array_equal(receipts.costs, model.prediction_costs(X))
        for receipt in receipts:
            paid = sum_of_prices([*receipt.resources.values(), receipt.tree_cost])
            assert receipt.cost == paid
            assert receipt.tree_cost == COSTS.tree_cost * receipt.n_trees
            # These costs and these sources speak of the same things.
            assert set(receipt.resources) == set(receipt.fetched)
            assert not receipt.failures
            assert not receipt.missing
            assert receipt.total_seconds == math.fsum(receipt.seconds.values())


def test_receipts_say_why_objects_stopped(hasty, rows, X):
    _, receipts = OnDemandPredictor(hasty, ROW_SOURCES).predict(rows, return_receipts=True)
    for receipt, k in zip(receipts, hasty.predictor_.leaving_stages(X), strict=True):
        early = f"after {9 * (k + 1)} trees: its class is likelier than 0.7"
        assert receipt.stopped == (early if receipt.n_trees < 120 else "it has met all trees")
    assert {receipt.n_trees for receipt in receipts} >= {18, 27, 120}
    frame = receipts.to_frame()
    assert frame["cost"].tolist() == receipts.costs.tolist()
    assert len(frame) == len(rows)
    shown = str(receipts).splitlines()
    assert shown[0].split() == ["object", "cost", "trees", "measured", "fetched", "stopped"]
    assert shown[-1] == "... and 380 more"
    assert "whole_row" in shown[1]
    assert str(receipts[:1]).count("\n") == 1
    assert repr(receipts).startswith("<Receipts of 400 predictions, ")
    assert "<th>cost</th>" in receipts._repr_html_()
    assert receipts.seconds.shape == (len(rows),)


def test_prices_of_other_resources_than_the_sources(X, y, rows):
    """Receipts price by the model's costs, whatever the functions are called."""
    model = MiserRegressor(costs={name: 2.0 for name in COLUMNS}, max_iter=5, n_jobs=1).fit(X, y)
    _, receipts = OnDemandPredictor(model, ROW_SOURCES).predict(rows[:2], return_receipts=True)
    assert receipts[0].fetched == ("whole_row",)
    assert receipts[0].resources == {name: 2.0 for name in model.features_used_}
    assert receipts[0].cost == model.cost_
    grouped = CostModel(
        dict.fromkeys(COLUMNS, 0.1),
        groups={"lab": ["low", "dear"], "desk": ["cheap"]},
        group_costs={"lab": 0.7, "desk": 0.2},
        tree_cost=0.3,
    )
    model = MiserRegressor(costs=grouped, tradeoff=1e-3, max_iter=7, n_jobs=1).fit(X, y)
    _, receipts = OnDemandPredictor(model, ROW_SOURCES).predict(rows, return_receipts=True)
    assert np.array_equal(receipts.costs, model.prediction_costs(X))
    assert {"lab", "desk"} <= set(receipts[0].resources)
    assert receipts[0].cost == sum_of_prices([*receipts[0].resources.values(), 2.1])


# Failures


class Fussy:
    """Returns or raises what an object carries for ``low``."""

    def __init__(self):
        self.sources = Sources()
        self.sources.add(lambda raw: dict(raw), name="decoded")
        self.sources.add(lambda decoded: decoded["cheap"], ["cheap"], name="cheap")
        self.sources.add(self.low, ["low"], name="low")
        self.sources.add(lambda decoded: decoded["dear"], ["dear"], name="dear")

    def low(self, decoded):
        value = decoded["low"]
        if isinstance(value, BaseException):
            raise value
        return value


FAULTS = [
    ValueError("broken"),
    StopIteration("out"),
    ZeroDivisionError(),
    TimeoutError(),
    "text",
    [1.0, 2.0],
    [],
    np.zeros((3, 3)),
    np.zeros(1_000_000),
    {"low": 1.0, "other": 2.0},
    {},
    1j,
    object(),
]


def good_object(low=0.5):
    return {"cheap": 1.0, "low": low, "dear": -1.0}


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_a_fault_is_raised_with_its_place(regressor, fault, n_jobs):
    objects = [good_object(), good_object(), good_object(fault), good_object()]
    served = OnDemandPredictor(regressor, Fussy().sources, n_jobs=n_jobs)
    with pytest.raises(AcquisitionError, match=r"source 'low' failed on object 2: ") as caught:
        served.predict(objects)
    assert caught.value.source == "low"
    assert caught.value.index == 2
    assert not isinstance(caught.value, SourceTimeoutError)
    if isinstance(fault, Exception):
        assert caught.value.__cause__ is fault
    else:
        assert isinstance(caught.value.__cause__, TypeError | ValueError)
    assert len(str(caught.value)) < 500
    served.predict(objects[:2])  # and it goes on working
    served.close()


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_a_fault_counts_as_missing_and_no_other_object_is_lost(regressor, fault, n_jobs):
    objects = [good_object(), good_object(fault), good_object(math.nan), good_object(2.0)]
    served = OnDemandPredictor(regressor, Fussy().sources, n_jobs=n_jobs, on_error="missing")
    with told_of_failures(r"'low' failed on 1 of 4 objects, .* \(first on object 1:"):
        predictions, receipts = served.predict(objects, return_receipts=True)
    frame = pd.DataFrame([good_object(low) for low in (0.5, math.nan, math.nan, 2.0)])
    frame = frame.reindex(columns=COLUMNS)
    assert np.array_equal(predictions, regressor.predict(frame))
    assert receipts.costs.tolist() == [regressor.cost_] * 4  # failures are paid for
    assert [bool(receipt.failures) for receipt in receipts] == [False, True, False, False]
    assert receipts[1].missing == ("low",)
    assert isinstance(receipts[1].failures["low"].__cause__, Exception)
    assert set(receipts[1].fetched) == {"decoded", "cheap", "low", "dear"}
    assert "low (failed)" in str(receipts)
    assert receipts[2].missing == ()  # NaN is an answer
    served.close()


def test_none_is_an_answer_as_nan_is(regressor):
    with OnDemandPredictor(regressor, Fussy().sources) as served:
        predictions, receipts = served.predict([good_object(None)], return_receipts=True)
    frame = pd.DataFrame([good_object(math.nan)]).reindex(columns=COLUMNS)
    assert np.array_equal(predictions, regressor.predict(frame))
    assert receipts[0].missing == ()
    assert not receipts[0].failures


def test_what_needs_a_failed_intermediate_is_not_called(regressor, rows):
    counting = Counting()

    def decoded(raw):
        if raw[0] == 1:
            raise OSError("torn")
        return np.array(raw)

    sources = Sources()
    for source in counting.sources:
        function = decoded if source.name == "decoded" else source.function
        sources.add(function, source.columns, name=source.name, needs=source.needs)
    served = OnDemandPredictor(regressor, sources, on_error="missing")
    with told_of_failures(r"'decoded' failed on 1 of 3 objects"):
        _, receipts = served.predict(rows[:3], return_receipts=True)
    assert receipts[1].fetched == ("cheap", "decoded")
    assert list(receipts[1].failures) == ["decoded"]
    assert receipts[1].missing == ("low", "dear")
    assert receipts[1].not_called == ("pair", "dear")
    assert receipts[0].not_called == ()
    assert receipts.to_frame()["not_called"].tolist() == [(), ("pair", "dear"), ()]
    # The price is that of the path, as ``prediction_costs`` has it.
    assert receipts.costs.tolist() == [regressor.cost_] * 3
    assert counting.called(1) == {"cheap"}
    assert counting.called(2) == {"cheap", "pair", "dear"}


def test_one_warning_per_source_however_often_it_fails(regressor, rows, caplog):
    """Python keeps the text of every warning: what a source says is logged, not warned of."""
    n_calls = 0

    def broken(raw):
        nonlocal n_calls
        n_calls += 1
        raise ValueError(f"number {n_calls} " + "x" * 10_000)

    sources = Sources()
    sources.add(broken, COLUMNS)
    served = OnDemandPredictor(regressor, sources, on_error="missing")
    with pytest.warns(AcquisitionWarning) as caught:
        predictions = served.predict(rows)
    for i in range(50):
        served.predict(rows[i : i + 1])  # a warning would be an error
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert "'broken' failed" in str(caught[0].message)
    assert "number" not in str(caught[0].message)
    assert len(caplog.records) == 51
    assert {record.name for record in caplog.records} == {"greedymiser.on_demand"}
    assert "failed on 400 of 400 objects" in caplog.messages[0]
    assert "(first on object 0: ValueError: number 450 x" in caplog.messages[-1]
    assert max(map(len, caplog.messages)) < 1000
    missing = pd.DataFrame(np.full((1, 6), math.nan), columns=COLUMNS)
    assert np.array_equal(predictions, np.repeat(regressor.predict(missing), len(rows)))
    # Another predictor warns again, with a text that is known: the registry does not grow.
    another = OnDemandPredictor(regressor, sources, on_error="missing")
    with warnings.catch_warnings(record=True) as again:
        warnings.simplefilter("default")
        another.predict(rows[:1])
        another = OnDemandPredictor(regressor, sources, on_error="missing")
        another.predict(rows[:1])
    assert {str(w.message) for w in again} == {str(caught[0].message)}


def test_the_warning_is_about_the_first_object(ranker, rows):
    """Also where others were asked before it, since queries are kept together."""

    def broken(raw):
        raise ValueError(f"no {raw[0]:g}")

    sources = Sources()
    sources.add(broken, COLUMNS)
    served = OnDemandPredictor(ranker, sources, on_error="missing", batch_size=1)
    with told_of_failures("on 4 of 4 objects.* .first on object 0: .* no 0"):
        served.predict(rows[:4], qid=[3, 2, 1, 0])


def test_an_object_that_failed_is_not_asked_again_in_the_next_stage(hasty, rows, X):
    calls = Counter()

    def broken(raw):
        calls[int(raw[0])] += 1
        raise ValueError("no")

    sources = Sources()
    sources.add(broken, COLUMNS)
    served = OnDemandPredictor(hasty, sources, on_error="missing")
    with pytest.warns(AcquisitionWarning):
        proba = served.predict_proba(rows[:5])
    nothing = pd.DataFrame(np.full((5, 6), math.nan), columns=COLUMNS)
    assert np.array_equal(proba, hasty.predict_proba(nothing))
    assert set(calls.values()) == {1}


def test_arrays_cannot_be_changed_by_a_source(regressor):
    """Else predictions would depend on who is called first."""
    sources = Sources()

    @sources.intermediate
    def pixels(raw):
        return raw[1:]

    @sources.columns("cheap")
    def scaled(pixels):
        pixels *= 2.0
        return pixels[0]

    sources.add(lambda pixels: pixels[1:], COLUMNS[1:], name="rest")
    rows = np.ones((2, 7))
    with pytest.raises(AcquisitionError, match=r"'scaled' failed on object 0: .*read-only"):
        OnDemandPredictor(regressor, sources).predict(rows)
    assert (rows == 1).all()
    sources = Sources()
    sources.add(lambda raw: raw.sort(), COLUMNS, name="sorter")
    with pytest.raises(AcquisitionError, match="read-only"):
        OnDemandPredictor(regressor, sources).predict(rows)
    assert rows.flags.writeable


def test_a_function_that_returns_a_coroutine(regressor):
    async def later():
        return 1.0

    sources = Sources()
    sources.add(lambda raw: later(), COLUMNS, name="lazy")
    with pytest.raises(AcquisitionError, match=r"returned a coroutine; make it .* async def"):
        OnDemandPredictor(regressor, sources).predict([1])
    gc.collect()  # a coroutine that nobody awaited would warn here


async def generate_later(raw):
    for x in raw:
        yield x


@pytest.mark.parametrize(
    "make",
    [
        lambda raw: (x for x in raw),
        lambda raw: map(float, raw),
        lambda raw: iter(raw),
        generate_later,
    ],
    ids=["generator", "map", "iterator", "async generator"],
)
def test_an_iterator_cannot_be_shared(regressor, rows, make):
    """The second source would find it empty."""
    sources = Sources()
    sources.add(make, name="tokens", needs=["raw"])
    sources.add(lambda tokens: [*tokens][1], ["cheap"], name="first")
    sources.add(lambda tokens: [*tokens][2:], COLUMNS[1:], name="second")
    with pytest.raises(
        AcquisitionError, match=r"'tokens' .* returned an iterator, .*return a list"
    ):
        OnDemandPredictor(regressor, sources).predict(rows[:1])
    with pytest.raises(AcquisitionError, match=r"'tokens' .* returned an iterator"):
        build_matrix(sources, rows[:1])


def test_what_can_be_rewound_may_be_shared(regressor, rows, X):
    sources = Sources()
    sources.add(lambda raw: io.BytesIO(raw[1:].tobytes()), name="file")

    def numbers(file):
        file.seek(0)
        return np.frombuffer(file.read())

    sources.add(lambda file: numbers(file)[0], ["cheap"], name="first")
    sources.add(lambda file: numbers(file)[1:], COLUMNS[1:], name="second")
    served = OnDemandPredictor(regressor, sources)
    assert np.array_equal(served.predict(rows[:3]), regressor.predict(X[:3]))


@pytest.mark.parametrize("policy", ["raise", "missing"])
@pytest.mark.parametrize("way", ["plain", "threads", "coroutine"])
def test_a_cancellation_that_a_source_raises_is_a_failure(
    regressor, rows, monkeypatch, way, policy
):
    clock = itertools.count()
    monkeypatch.setattr(fetcher.time, "perf_counter", lambda: next(clock))

    def low(raw):
        raise asyncio.CancelledError("inner")

    async def low_later(raw):
        low(raw)

    sources = async_sources(low=low_later if way == "coroutine" else low)
    n_jobs = 2 if way == "threads" else 1
    served = OnDemandPredictor(regressor, sources, n_jobs=n_jobs, on_error=policy)
    if policy == "raise":
        with pytest.raises(AcquisitionError, match="'low' failed on object 0: CancelledError: inn"):
            served.predict(rows[:1])
    else:
        with told_of_failures("CancelledError: inner"):
            _, receipts = served.predict(rows[:1], return_receipts=True)
        assert receipts[0].seconds["low"] >= 1  # readings of the clock
    served.close()


@pytest.mark.parametrize("way", ["plain", "threads", "coroutine"])
@pytest.mark.parametrize("leaving", [SystemExit, KeyboardInterrupt])
def test_leaving_the_program_is_not_a_failure(regressor, way, leaving):
    def leave(raw):
        raise leaving(3)

    async def leave_later(raw):
        raise leaving(3)

    sources = Sources()
    sources.add(leave_later if way == "coroutine" else leave, COLUMNS, name="leave")
    n_jobs = 2 if way == "threads" else 1
    served = OnDemandPredictor(regressor, sources, n_jobs=n_jobs, on_error="missing")
    with pytest.raises(leaving):
        served.predict([1, 2, 3])
    for backend in ("asyncio", "trio"):
        with pytest.raises(leaving):
            anyio.run(served.apredict, [1, 2, 3], backend=backend)


# Threads


def test_objects_and_independent_sources_run_side_by_side(regressor, rows, X):
    """Four calls meet at a barrier: two sources of each of two objects."""
    barrier = threading.Barrier(4)

    def meet(value):
        barrier.wait(PATIENCE)
        return value

    sources = Sources()
    sources.add(lambda raw: meet(raw[1]), ["cheap"], name="cheap")
    sources.add(lambda raw: meet(raw[2:]), COLUMNS[1:], name="rest")
    with OnDemandPredictor(regressor, sources, n_jobs=4) as served:
        assert np.array_equal(served.predict(rows[:4]), regressor.predict(X[:4]))


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_several_threads_share_a_predictor(hasty, rows, X, n_jobs):
    expected = hasty.predict_proba(X)
    with OnDemandPredictor(hasty, Counting().sources, n_jobs=n_jobs, batch_size=16) as served:

        def work(i):
            chosen = slice(i * 40, i * 40 + 40)
            return np.array_equal(served.predict_proba(rows[chosen]), expected[chosen])

        with ThreadPoolExecutor(6) as pool:
            assert all(pool.map(work, range(10)))


def test_threads_end_with_the_context_and_come_back(regressor, rows):
    others = set(threading.enumerate())

    def alive():
        return [t for t in threading.enumerate() if t not in others]

    def wait_until(condition):
        end = time.monotonic() + PATIENCE
        while not condition() and time.monotonic() < end:
            time.sleep(0.001)
        return condition()

    with OnDemandPredictor(regressor, ROW_SOURCES, n_jobs=2) as served:
        served.predict(rows)
        assert alive()
    assert wait_until(lambda: not alive())
    served.predict(rows)
    served.close()
    served.close()
    assert wait_until(lambda: not alive())
    forgotten = OnDemandPredictor(regressor, ROW_SOURCES, n_jobs=2)
    forgotten.predict(rows)
    del forgotten
    gc.collect()
    assert wait_until(lambda: not alive())


def test_threads_and_limits_are_made_anew_after_a_fork(regressor, rows):
    with OnDemandPredictor(regressor, ROW_SOURCES, n_jobs=2) as served:
        served.predict(rows[:8])
        fetcher = served._fetcher
        before = fetcher._workplace
        before._process = -1  # as a child process sees it
        served.predict(rows[:8])
        assert fetcher._workplace.pool is not before.pool
        assert fetcher._workplace._portals["asyncio"] is not before._portals["asyncio"]


class Crowd:
    """Counts how many are in at once, and lets each stay until others had time to come."""

    def __init__(self):
        self.lock = threading.Lock()
        self.now = self.most = 0

    def __enter__(self):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_):
        with self.lock:
            self.now -= 1

    def function(self, raw):
        with self:
            time.sleep(0.002)
            return raw[2]

    async def coroutine(self, raw):
        with self:
            await anyio.sleep(0.002)
            return raw[2]


@pytest.mark.parametrize("kind", ["function", "coroutine"])
@pytest.mark.parametrize(
    ("callers", "backends"),
    [
        ("tasks", ["asyncio"]),
        ("tasks", ["trio"]),
        ("threads", []),
    ],
)
def test_limits_hold_for_all_callers_together(regressor, rows, X, kind, callers, backends):
    """For those on one event loop, and for plain calls, which share one."""
    crowd = Crowd()
    sources = async_sources(low=getattr(crowd, kind))
    served = OnDemandPredictor(regressor, sources, n_jobs=2, concurrency=2)
    expected = regressor.predict(X)

    async def both(i):
        halves = rows[i : i + 2], rows[i + 2 : i + 4]
        return np.concatenate(await gathered(*[partial(served.apredict, half) for half in halves]))

    async def all_tasks():
        return await gathered(*[partial(both, i) for i in range(0, 40, 4)])

    def thread(i):
        return served.predict(rows[i : i + 4])

    if callers == "tasks":
        found = anyio.run(all_tasks, backend=backends[0])
    else:
        with ThreadPoolExecutor(10) as pool:
            found = list(pool.map(thread, range(0, 40, 4)))
    assert np.array_equal(np.concatenate(found), expected[:40])
    assert crowd.most == 2
    served.close()


@on_every_backend
def test_who_does_not_wait_any_longer_takes_no_place(regressor, rows, X, backend):
    async def main():
        hold, held, answers, scopes = anyio.Event(), anyio.Event(), {}, {}

        async def low(raw):
            held.set()
            await hold.wait()
            return raw[2]

        served = OnDemandPredictor(regressor, async_sources(low=low), concurrency=1)

        async def ask(i):
            with anyio.CancelScope() as scopes[i]:
                answers[i] = await served.apredict(rows[i : i + 1])

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(ask, 0)
                await held.wait()
                for i in range(1, 6):
                    group.start_soon(ask, i)
                await anyio.wait_all_tasks_blocked()
                for i in range(1, 5):
                    scopes[i].cancel()
                hold.set()
        assert {i for i in scopes if scopes[i].cancelled_caught} == {1, 2, 3, 4}
        return np.concatenate([answers[0], answers[5]])

    assert np.array_equal(anyio.run(main, backend=backend), regressor.predict(X)[[0, 5]])


@on_every_backend
@pytest.mark.parametrize("kind", ["plain", "threads", "coroutine"])
def test_a_source_may_use_the_predictor_that_called_it(regressor, rows, X, kind, backend):
    """It does not wait for the place that it holds itself."""

    def low(raw):
        return raw[2] if raw[0] else float(served.predict(rows[1:2])[0])

    async def low_later(raw):
        return raw[2] if raw[0] else float((await served.apredict(rows[1:2]))[0])

    served = OnDemandPredictor(
        regressor,
        async_sources(low=low_later if kind == "coroutine" else low),
        timeout={"dear": PATIENCE} if kind == "threads" else None,
        concurrency=1,
    )
    nested = X[:1].copy()
    nested["low"] = regressor.predict(X[1:2])
    assert np.array_equal(served.predict(rows[:1]), regressor.predict(nested))
    awaited = anyio.run(served.apredict, rows[:1], backend=backend)
    assert np.array_equal(awaited, regressor.predict(nested))
    served.close()


@on_every_backend
@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_a_plain_call_in_a_coroutine_does_not_wait_for_its_own_event_loop(
    regressor, rows, X, kind, backend
):
    async def main():
        started, found = threading.Event(), []

        def low(raw):
            started.set()
            return raw[2]

        async def low_later(raw):
            started.set()
            await anyio.sleep(0.001)
            return raw[2]

        async def ask():
            found.append(await served.apredict(rows[:3]))

        sources = async_sources(low=low_later if kind == "coroutine" else low)
        served = OnDemandPredictor(regressor, sources, concurrency=1)
        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            while not started.is_set():
                await anyio.sleep(0.0001)
            found.append(served.predict(rows[:3]))
        return found

    found = anyio.run(main, backend=backend)
    assert len(found) == 2
    for predictions in found:
        assert np.array_equal(predictions, regressor.predict(X[:3]))


@on_every_backend
def test_context_variables_reach_the_threads(regressor, rows, backend):
    tenant = contextvars.ContextVar("tenant", default="nobody")
    seen = set()

    def read(raw):
        seen.add(tenant.get())
        return raw[1:]

    sources = Sources()
    sources.add(read, COLUMNS)
    tenant.set("us")
    with OnDemandPredictor(regressor, sources, n_jobs=2) as served:
        served.predict(rows[:4])
        assert seen == {"us"}
        tenant.set("them")
        seen.clear()
        anyio.run(served.apredict, rows[:4], backend=backend)
    assert seen == {"them"}


@on_every_backend
def test_context_variables_that_a_coroutine_sets_are_its_own(regressor, rows, backend):
    """As if each call were a task of its own."""
    tenant = contextvars.ContextVar("tenant", default="nobody")
    seen = Counter()

    async def fetch(raw):
        seen[tenant.get()] += 1
        tenant.set("mine")
        await anyio.sleep(0)
        return raw[2]

    sources = async_sources(cheap=fetch, low=fetch, dear=fetch)
    served = OnDemandPredictor(regressor, sources, concurrency=2)
    anyio.run(served.apredict, rows[:20], backend=backend)
    served.predict(rows[:20])
    assert seen == {"nobody": 3 * 2 * 20}


@on_every_backend
def test_functions_may_run_event_loops_of_their_own(regressor, rows, X, backend):
    """On a thread no other loop is in the way, whatever is noted in its context."""

    async def later(value):
        await anyio.sleep(0)
        return value

    def low(raw):
        return anyio.run(later, raw[2], backend=backend)

    def dear(raw):
        return asyncio.run(later(raw[4]))

    served = OnDemandPredictor(regressor, async_sources(low=low, dear=dear), n_jobs=2)
    expected = regressor.predict(X[:3])
    assert np.array_equal(served.predict(rows[:3]), expected)
    assert np.array_equal(anyio.run(served.apredict, rows[:3], backend=backend), expected)

    async def main():
        return await asyncio.to_thread(served.predict, rows[:3])

    # A thread of asyncio inherits what anyio noted.
    assert np.array_equal(anyio.run(main), expected)
    served.close()


# Coroutines


def async_sources(**functions):
    """Coroutines by name of their column; the others come from the row."""
    sources = Sources()
    for name, function in functions.items():
        sources.add(function, [name], name=name, needs=["raw"])
    for i, name in enumerate(COLUMNS, start=1):
        if name not in functions:
            sources.add(lambda raw, i=i: raw[i], [name], name=name, needs=["raw"])
    return sources


@on_every_backend
def test_coroutines_of_all_objects_run_side_by_side(regressor, rows, X, backend):
    async def main():
        n_waiting, all_are_here = 0, anyio.Event()

        def meeting(i):
            async def fetch(raw):
                nonlocal n_waiting
                n_waiting += 1
                if n_waiting == 2 * 5:  # two sources of five objects
                    all_are_here.set()
                with anyio.fail_after(PATIENCE):
                    await all_are_here.wait()
                return raw[i]

            return fetch

        served = OnDemandPredictor(regressor, async_sources(low=meeting(2), dear=meeting(4)))
        return await served.apredict(rows[:5])

    assert np.array_equal(anyio.run(main, backend=backend), regressor.predict(X[:5]))


@on_every_backend
def test_a_coroutine_that_needs_another_waits_for_it_only(regressor, rows, backend):
    async def main():
        order = []
        sources = Sources()

        @sources.intermediate
        async def page(raw):
            order.append("page")
            await anyio.sleep(0)
            return raw

        @sources.columns("low", "dear")
        async def parsed(page):
            order.append("parsed")
            return page[2], page[4]

        @sources.columns
        def cheap(raw):
            order.append("cheap")
            return raw[1]

        await OnDemandPredictor(regressor, sources).apredict(rows[:1])
        return order

    order = anyio.run(main, backend=backend)
    assert sorted(order) == ["cheap", "page", "parsed"]
    assert order.index("page") < order.index("parsed")


@on_every_backend
def test_coroutines_that_do_not_wait_do_not_hold_the_event_loop_up(regressor, rows, backend):
    async def main():
        n_calls, seen = 0, []

        async def low(raw):
            nonlocal n_calls
            n_calls += 1
            return raw[2]

        async def watch():
            while n_calls < 1100:
                seen.append(n_calls)
                await anyio.sleep(0)

        served = OnDemandPredictor(regressor, async_sources(low=low, cheap=low, dear=low))
        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            group.start_soon(served.apredict, rows)
        return seen

    assert len(set(anyio.run(main, backend=backend))) > 2


@on_every_backend
def test_functions_do_not_hold_the_event_loop_up(regressor, rows, X, backend):
    """A function waits for something that only the event loop can do."""

    async def main():
        token = current_token()

        def cheap(raw):
            return run_sync(lambda: raw[1], token=token)

        served = OnDemandPredictor(regressor, async_sources(cheap=cheap))
        with anyio.fail_after(PATIENCE):
            return await served.apredict(rows[:2])

    assert np.array_equal(anyio.run(main, backend=backend), regressor.predict(X[:2]))


@on_every_backend
def test_coroutines_also_serve_plain_calls(hasty, rows, X, backend):
    backends = set()

    async def low(raw):
        backends.add(sniffio.current_async_library())
        await anyio.sleep(0)
        return raw[2]

    served = OnDemandPredictor(hasty, async_sources(low=low))
    assert np.array_equal(served.predict_proba(rows), hasty.predict_proba(X))
    assert backends == {"asyncio"}

    async def notebook():
        backends.clear()
        return served.predict_proba(rows)  # where a loop is already running

    assert np.array_equal(anyio.run(notebook, backend=backend), hasty.predict_proba(X))
    assert backends == {backend}


def test_an_event_loop_that_cannot_be_had(regressor, rows, monkeypatch):
    def run(*_, **__):
        raise OSError("too many open files")

    async def low(raw):
        return raw[2]

    async def notebook():
        OnDemandPredictor(regressor, async_sources(low=low)).predict(rows[:1])

    monkeypatch.setattr(anyio, "run", run)
    with pytest.raises(OSError, match="too many open files"):
        asyncio.run(notebook())


def test_the_event_loop_of_others_is_left_alone(regressor, rows):
    async def low(raw):
        return raw[2]

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        OnDemandPredictor(regressor, async_sources(low=low)).predict(rows[:1])
        build_matrix(async_sources(low=low), rows[:1])
        assert asyncio.get_event_loop() is loop
    finally:
        asyncio.set_event_loop(None)
        loop.close()


@pytest.mark.subprocess
@on_every_backend
@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent to a thread")
def test_ctrl_c_in_a_notebook(tmp_path, backend):
    """A plain call where an event loop runs; the coroutine waits for something that never comes."""
    script = tmp_path / "notebook.py"
    script.write_text(
        textwrap.dedent(
            """
            import signal, sys, threading
            import anyio
            from greedymiser.on_demand import Sources, build_matrix

            waiting, cancelled = threading.Event(), threading.Event()

            async def slow(raw):
                waiting.set()
                try:
                    await anyio.sleep_forever()
                finally:
                    cancelled.set()

            def interrupt():
                waiting.wait()
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

            async def cell():
                sources = Sources()
                sources.add(slow, ["x"])
                try:
                    build_matrix(sources, [1])
                except KeyboardInterrupt:
                    print("interrupted", cancelled.wait(20))

            def own_handler(*_):  # as notebooks have: it is not the event loop that is told
                raise KeyboardInterrupt

            signal.signal(signal.SIGINT, own_handler)
            threading.Thread(target=interrupt).start()
            anyio.run(cell, backend=sys.argv[1])
            """
        )
    )
    done = subprocess.run(
        [sys.executable, script, backend], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "interrupted True\n"
    assert done.stderr == ""


@pytest.mark.subprocess
@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent to a thread")
@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_ctrl_c_in_a_script(tmp_path, kind):
    """Those that hang are left behind, or cancelled."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, signal, sys, threading
            import anyio
            from greedymiser.on_demand import Sources, build_matrix

            def interrupt(raw):
                if raw == 1:
                    os.kill(os.getpid(), signal.SIGINT)

            def hang(raw):
                interrupt(raw)
                threading.Event().wait()

            async def hang_later(raw):
                interrupt(raw)
                await anyio.sleep_forever()

            # In the background a shell may have us ignore it.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sources = Sources()
            sources.add(hang if sys.argv[1] == "function" else hang_later, ["x"])
            try:
                build_matrix(sources, [1, 2], n_jobs=2, concurrency=1, on_error="missing")
            except KeyboardInterrupt:
                print("interrupted")
            """
        )
    )
    done = subprocess.run(
        [sys.executable, script, kind], capture_output=True, text=True, timeout=120, check=True
    )
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


def test_stages_share_one_event_loop(hasty, rows):
    """What one stage opened (a session, a connection) is still alive in the next."""
    loops = {}

    async def watch(raw):
        loops.setdefault(int(raw[0]), set()).add(id(asyncio.get_running_loop()))
        return 0.0

    served = OnDemandPredictor(hasty, async_sources(cheap=watch, low=watch, dear=watch))
    served.predict(rows[:20])
    assert all(len(seen) == 1 for seen in loops.values())


@on_every_backend
def test_apredict_knows_queries_and_receipts(ranker, rows, X, backend):
    qid = np.repeat(np.arange(40), 10)
    served = OnDemandPredictor(ranker, ROW_SOURCES)
    ask = partial(served.apredict, rows, qid=qid, return_receipts=True)
    scores, receipts = anyio.run(ask, backend=backend)
    assert np.array_equal(scores, ranker.predict(X, qid))
    assert np.array_equal(receipts.costs, ranker.prediction_costs(X, qid))
    served.close()


@on_every_backend
def test_every_answer_can_be_awaited(classifier, rows, X, backend):
    served = OnDemandPredictor(classifier, ROW_SOURCES)

    async def main():
        decisions, receipts = await served.adecision_function(rows, return_receipts=True)
        assert np.array_equal(receipts.costs, classifier.prediction_costs(X))
        return await served.apredict(rows), await served.apredict_proba(rows), decisions

    labels, proba, decisions = anyio.run(main, backend=backend)
    assert np.array_equal(labels, classifier.predict(X))
    assert np.array_equal(proba, classifier.predict_proba(X))
    assert np.array_equal(decisions, classifier.decision_function(X))
    served.close()


@on_every_backend
def test_a_failure_cancels_the_others(regressor, rows, backend):
    async def main():
        cancelled = []
        waiting = anyio.Event()

        async def low(raw):
            waiting.set()
            try:
                await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                cancelled.append(int(raw[0]))
                raise

        async def dear(raw):
            await waiting.wait()
            raise LookupError("gone")

        served = OnDemandPredictor(regressor, async_sources(low=low, dear=dear))
        before = n_running()
        with pytest.raises(AcquisitionError, match="source 'dear' failed on object 0: Lookup") as e:
            await served.apredict(rows[:1])
        assert isinstance(e.value.__cause__, LookupError)
        assert n_running() == before
        return cancelled

    assert anyio.run(main, backend=backend) == [0]


def test_a_task_that_is_cancelled(regressor, rows):
    """In the way of asyncio, without anyio's scopes."""

    async def main():
        seen = asyncio.Event()

        async def low(raw):
            seen.set()
            await asyncio.Event().wait()

        served = OnDemandPredictor(regressor, async_sources(low=low), on_error="missing")
        task = asyncio.create_task(served.apredict(rows[:3]))
        await seen.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


@on_every_backend
def test_a_cancelled_scope_leaves_functions_behind(regressor, rows, X, never, backend):
    async def main():
        hang, seen = True, anyio.Event()
        token = current_token()

        def low(raw):
            if hang:
                run_sync(seen.set, token=token)
                never.wait(2 * PATIENCE)
            return raw[2]

        served = OnDemandPredictor(regressor, async_sources(low=low), on_error="missing")
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(served.apredict, rows[:3])
                await seen.wait()
                group.cancel_scope.cancel()
        hang = False
        return await served.apredict(rows[:3])

    assert np.array_equal(anyio.run(main, backend=backend), regressor.predict(X[:3]))


@on_every_backend
def test_a_failure_beside_a_cancellation_is_told(regressor, rows, backend):
    async def low(raw):
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            if raw[0] == 4:
                raise KeyError("not cleaned up") from None
            raise

    async def main():
        served = OnDemandPredictor(regressor, async_sources(low=low))
        with anyio.move_on_after(0.05):
            await served.apredict(rows[:9])

    with pytest.raises(AcquisitionError, match=r"'low' failed on object 4: .*not cleaned up"):
        anyio.run(main, backend=backend)


@on_every_backend
def test_cancellation_is_clean(regressor, rows, X, backend):
    async def main():
        hold, seen, cancelled = True, anyio.Event(), []

        async def low(raw):
            if hold:
                seen.set()
                try:
                    await anyio.sleep_forever()
                finally:
                    cancelled.append(int(raw[0]))
            return raw[2]

        served = OnDemandPredictor(regressor, async_sources(low=low), on_error="missing")
        before = n_running()
        async with anyio.create_task_group() as group:
            group.start_soon(served.apredict, rows[:3])
            await seen.wait()
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        assert sorted(cancelled) == [0, 1, 2]
        assert n_running() == before
        hold = False
        return await served.apredict(rows[:3])

    assert np.array_equal(anyio.run(main, backend=backend), regressor.predict(X[:3]))


@pytest.mark.parametrize("policy", ["raise", "missing"])
@pytest.mark.parametrize("what", ["something", "itself"])
def test_a_source_that_was_cancelled_from_within(regressor, rows, policy, what):
    """It waited for something that somebody else cancelled: that is a failure like others."""

    async def low(raw):
        if what == "itself":
            asyncio.current_task().cancel()
            await asyncio.sleep(0)
        inner = asyncio.ensure_future(asyncio.Event().wait())
        asyncio.get_running_loop().call_soon(inner.cancel)
        await inner

    served = OnDemandPredictor(regressor, async_sources(low=low), on_error=policy)
    if policy == "raise":
        with pytest.raises(AcquisitionError, match="'low' failed on object 0: CancelledError"):
            served.predict(rows[:1])
    else:
        with told_of_failures("CancelledError"):
            served.predict(rows[:1])


# Time-outs


@pytest.fixture
def never():
    """An event that is set when the test is over, so that no thread stays behind."""
    event = threading.Event()
    yield event
    event.set()


@on_every_backend
@pytest.mark.parametrize("n_jobs", [1, 3])
@pytest.mark.slow
def test_a_function_that_hangs_is_left_behind(regressor, rows, X, never, n_jobs, backend):
    def low(raw):
        if raw[0] in (1, 2):
            never.wait(2 * PATIENCE)
        return raw[2]

    sources = async_sources(low=low)
    limits = {"low": 0.5}
    served = OnDemandPredictor(
        regressor, sources, n_jobs=n_jobs, timeout=limits, on_error="missing"
    )
    ask = partial(served.apredict, rows[:5], return_receipts=True)
    with told_of_failures(r"'low' failed on 2 of 5 .*not answer within 0.5 s"):
        predictions, receipts = anyio.run(ask, backend=backend)
    without = X[:5].copy()
    without.loc[[1, 2], "low"] = math.nan
    assert np.array_equal(predictions, regressor.predict(without))
    assert isinstance(receipts[2].failures["low"], SourceTimeoutError)
    assert isinstance(receipts[2].failures["low"], TimeoutError)
    strict = OnDemandPredictor(regressor, sources, n_jobs=n_jobs, timeout=limits)
    with pytest.raises(SourceTimeoutError, match=r"'low' failed on object 1: it did not answer"):
        strict.predict(rows[:2])


@on_every_backend
def test_a_coroutine_that_hangs_is_cancelled(regressor, rows, X, backend):
    cancelled = []

    async def low(raw):
        if raw[0] == 1:
            try:
                await anyio.sleep_forever()
            finally:
                cancelled.append(1)
        return raw[2]

    served = OnDemandPredictor(regressor, async_sources(low=low), timeout=0.5, on_error="missing")
    with told_of_failures("not answer within 0.5 s"):
        predictions = anyio.run(served.apredict, rows[:3], backend=backend)
    assert cancelled == [1]
    assert np.array_equal(predictions[[0, 2]], regressor.predict(X[:3])[[0, 2]])


@on_every_backend
@pytest.mark.parametrize("way", ["instead", "beside"])
def test_a_coroutine_that_turns_its_cancellation_into_something_else(regressor, rows, way, backend):
    async def hang():
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            raise KeyError("cleaned up") from None

    async def low(raw):
        if way == "instead":
            await hang()
        async with anyio.create_task_group() as group:
            group.start_soon(hang)
            group.start_soon(anyio.sleep_forever)

    served = OnDemandPredictor(regressor, async_sources(low=low), timeout={"low": 0.02})
    with pytest.raises(SourceTimeoutError, match=r"did not answer within 0\.02 s") as caught:
        anyio.run(served.apredict, rows[:1], backend=backend)
    assert "cleaned up" in repr(caught.value.__cause__)


@pytest.mark.parametrize("n_jobs", [1, 3])
def test_calls_that_hang_do_not_pile_up(regressor, rows, X, never, n_jobs):
    calls, hang = Counter(), True

    def low(raw):
        calls[int(raw[0])] += 1
        if hang:
            never.wait(2 * PATIENCE)
        return raw[2]

    served = OnDemandPredictor(
        regressor,
        async_sources(low=low),
        n_jobs=n_jobs,
        timeout={"low": 0.01},
        on_error="missing",
        batch_size=400,
    )
    with told_of_failures("'low' failed on 400 of 400 objects"):
        predictions, receipts = served.predict(rows, return_receipts=True)
    assert np.array_equal(predictions, regressor.predict(X.assign(low=math.nan)))
    most = 4 * n_jobs + n_jobs - 1  # some may have begun before the last one was given up
    assert 4 * n_jobs <= len(calls) <= most
    refused = [receipt for receipt in receipts if "low" not in receipt.fetched]
    assert len(refused) == 400 - len(calls)
    for receipt in refused:
        assert receipt.not_called == ("low",)
        assert receipt.missing == ("low",)
        failure = receipt.failures["low"]
        assert isinstance(failure, SourceTimeoutError)
        assert re.search(r"it was not called, since \d+ earlier calls still hang", str(failure))
    served.close()  # which must not make room for more
    _, receipts = served.predict(rows[:1], return_receipts=True)
    assert "earlier calls still hang" in str(receipts[0].failures["low"])
    hang = False
    never.set()
    end = time.monotonic() + PATIENCE
    while served._fetcher._workplace.pool._abandoned["low"] and time.monotonic() < end:
        time.sleep(0.001)
    policy = served._fetcher._workplace.policies["low"]
    served._fetcher._workplace.policies["low"] = dataclasses.replace(policy, timeout=PATIENCE)
    assert np.array_equal(served.predict(rows[:1]), regressor.predict(X[:1]))


@on_every_backend
def test_an_answer_that_is_there_wins_over_a_time_out_that_has_passed(regressor, rows, X, backend):
    """The event loop is blocked, and notices the answer and the end of the time-out together."""

    async def main():
        waits, came = anyio.Event(), anyio.Event()

        async def low(raw):
            waits.set()
            await came.wait()
            return raw[2]

        async def cheap(raw):
            await waits.wait()
            await anyio.sleep(0.01)
            came.set()
            time.sleep(0.4)
            return raw[1]

        sources = async_sources(cheap=cheap, low=low)
        served = OnDemandPredictor(regressor, sources, timeout={"low": 0.2}, on_error="missing")
        return await served.apredict(rows[:1], return_receipts=True)

    found, receipts = anyio.run(main, backend=backend)
    assert np.array_equal(found, regressor.predict(X[:1]))
    assert not receipts[0].failures


@on_every_backend
def test_a_coroutine_that_blocks_the_event_loop_has_answered(regressor, rows, X, backend):
    async def low(raw):
        time.sleep(0.1)
        return raw[2]

    served = OnDemandPredictor(regressor, async_sources(low=low), timeout={"low": 0.02})
    ask = partial(served.apredict, rows[:1], return_receipts=True)
    predictions, receipts = anyio.run(ask, backend=backend)
    assert np.array_equal(predictions, regressor.predict(X[:1]))
    assert receipts[0].seconds["low"] >= 0.1


@pytest.mark.parametrize("extra", [0.0, 0.7])
@on_every_backend
@pytest.mark.slow
def test_a_function_has_answered_although_the_event_loop_was_blocked(
    regressor, rows, X, backend, extra
):
    """A coroutine blocks the event loop, which hears of the function's answer too late."""
    began, blocked = threading.Event(), threading.Event()

    def low(raw):
        began.set()
        assert blocked.wait(PATIENCE)
        time.sleep(extra)
        return raw[2]

    async def cheap(raw):
        while not began.is_set():
            await anyio.sleep(0)
        blocked.set()
        time.sleep(1.2)
        return raw[1]

    sources = async_sources(cheap=cheap, low=low)
    served = OnDemandPredictor(regressor, sources, timeout={"low": 0.5})
    found = anyio.run(served.apredict, rows[:1], backend=backend)
    assert np.array_equal(found, regressor.predict(X[:1]))
    served.close()


@on_every_backend
@pytest.mark.slow
def test_waiting_for_a_thread_is_not_the_fault_of_a_source(regressor, rows, X, backend):
    def slow(raw):
        time.sleep(1.2)
        return raw[1]

    served = OnDemandPredictor(
        regressor, async_sources(cheap=slow), timeout={"low": 0.8, "dear": 0.8}
    )
    found = anyio.run(served.apredict, rows[:1], backend=backend)
    assert np.array_equal(found, regressor.predict(X[:1]))
    served.close()


def test_a_time_out_of_its_own_is_the_error_of_a_source(regressor, rows):
    def low(raw):
        raise TimeoutError("the server is slow")

    served = OnDemandPredictor(regressor, async_sources(low=low), timeout=PATIENCE)
    with pytest.raises(AcquisitionError, match="TimeoutError: the server is slow") as caught:
        served.predict(rows[:1])
    assert not isinstance(caught.value, SourceTimeoutError)


@pytest.mark.subprocess
def test_a_function_that_hangs_does_not_keep_the_program_from_ending(tmp_path):
    script = tmp_path / "hang.py"
    script.write_text(
        textwrap.dedent(
            """
            import threading
            from greedymiser.on_demand import Sources, build_matrix

            sources = Sources()
            sources.add(lambda raw: threading.Event().wait(), ["x"], name="hangs")
            try:
                build_matrix(sources, [1, 2], timeout=0.05)
            except TimeoutError as error:
                print(error)
            """
        )
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=120, check=True
    )
    assert "source 'hangs' failed on object 0: it did not answer within 0.05 s" in done.stdout
    assert done.stderr == ""


# Input


def test_no_objects(regressor, classifier, ranker):
    for objects in ([], (), iter(()), np.empty((0, 7))):
        predictions, receipts = OnDemandPredictor(regressor, ROW_SOURCES).predict(
            objects, return_receipts=True
        )
        assert predictions.shape == (0,)
        assert len(receipts) == 0
    served = OnDemandPredictor(classifier, ROW_SOURCES, n_jobs=2)
    assert served.predict([]).dtype == classifier.classes_.dtype
    assert served.predict_proba([]).shape == (0, 3)
    assert asyncio.run(served.apredict_proba([])).shape == (0, 3)
    assert OnDemandPredictor(ranker, ROW_SOURCES).predict([]).shape == (0,)
    served.close()


def test_generators_are_read_a_batch_at_a_time(regressor, rows, X):
    ahead = 0
    most = 0

    def stream():
        nonlocal ahead, most
        for row in rows:
            ahead += 1
            most = max(most, ahead)
            yield row

    def read(raw):
        nonlocal ahead
        ahead -= 1
        return raw[1:]

    sources = Sources()
    sources.add(read, COLUMNS)
    served = OnDemandPredictor(regressor, sources, batch_size=10)
    assert np.array_equal(served.predict(stream()), regressor.predict(X))
    assert most == 10


@pytest.mark.parametrize("objects", ["text", b"bytes", {"a": 1}, 3, None])
def test_a_single_object_is_not_a_batch(regressor, objects):
    with pytest.raises(TypeError, match="put a single object into a list"):
        OnDemandPredictor(regressor, ROW_SOURCES).predict(objects)


def test_rows_of_a_frame_are_objects(regressor, X):
    sources = Sources(raw="row")
    sources.add(lambda row: row.iloc[0], COLUMNS, name="row_")
    served = OnDemandPredictor(regressor, sources)
    assert np.array_equal(served.predict(X), regressor.predict(X))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"on_error": "ignore"}, ValueError, r"on_error must be one of .* got 'ignore'"),
        ({"timeout": -1}, ValueError, "timeout of 'whole_row' must be positive and finite, got -1"),
        ({"timeout": math.nan}, ValueError, "must be positive and finite"),
        ({"timeout": {"whole_row": "1"}}, TypeError, "a number of seconds, got '1'"),
        ({"timeout": {"other": 1}}, ValueError, "timeout names 'other', which is not a source"),
        ({"n_jobs": 0}, ValueError, "n_jobs"),
        ({"concurrency": 0}, ValueError, "concurrency must be an integer of at least 1, got 0"),
        ({"batch_size": 0}, ValueError, "batch_size must be an integer of at least 1, got 0"),
        ({"batch_size": 1.5}, ValueError, "batch_size must be an integer of at least 1, got 1.5"),
    ],
)
def test_bad_arguments(regressor, arguments, error, message):
    with pytest.raises(error, match=message):
        OnDemandPredictor(regressor, ROW_SOURCES, **arguments)


def test_models_that_are_none(rows):
    with pytest.raises(TypeError, match="not a fitted model"):
        OnDemandPredictor("model", ROW_SOURCES)
    with pytest.raises((TypeError, AttributeError)):
        OnDemandPredictor(MiserRegressor(), ROW_SOURCES)


def test_probabilities_are_for_classifiers(regressor, rows):
    counting = Counting()
    served = OnDemandPredictor(regressor, counting.sources)
    with pytest.raises(AttributeError, match="a regressor has no class probabilities"):
        served.predict_proba(rows)
    with pytest.raises(AttributeError, match="a regressor has no class probabilities"):
        asyncio.run(served.apredict_proba(rows))
    assert not counting.calls


def test_what_is_registered_later_is_not_seen(regressor, rows, X):
    sources = Sources()
    sources.add(whole_row, COLUMNS)
    served = OnDemandPredictor(regressor, sources)
    sources.add(lambda raw: 1 / 0, ["more"], name="more")
    assert np.array_equal(served.predict(rows), regressor.predict(X))
    assert repr(served) == (
        "<OnDemandPredictor of a regressor, 3 columns from 1 sources and intermediates>"
    )
