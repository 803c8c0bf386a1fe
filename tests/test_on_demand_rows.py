"""Serving models whose rows pay for themselves: what a path asks for is fetched, no more."""

from __future__ import annotations

import math
import threading
from dataclasses import replace

import anyio
import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import naive
from experiments.cronus import Cronus
from greedymiser import (
    CostModel,
    EarlyExitClassifier,
    EarlyExitRanker,
    MiserClassifier,
    MiserRanker,
    MiserRegressor,
    as_predictor,
)
from greedymiser.costs.cost_model import sum_of_prices
from greedymiser.model.exit_rules import Confident, Proximity
from greedymiser.model.predictor import Stage
from greedymiser.on_demand import (
    AcquisitionError,
    OnDemandPredictor,
    Sources,
    build_matrix,
)
from random_examples import examples
from test_on_demand import COSTS, PATIENCE, Counting, on_every_backend, told_of_failures
from test_trees import plain_trees

SMALL = {"costs": COSTS, "max_iter": 10, "max_depth": 3, "min_samples_leaf": 5, "n_jobs": 1}


@pytest.fixture(scope="module")
def rows():
    """Raw objects: their number, then the six columns of ``Counting``."""
    rng = np.random.default_rng(1)
    return np.column_stack([np.arange(300), rng.standard_normal((300, 6))])


@pytest.fixture(scope="module", name="X")
def matrix(rows):
    return build_matrix(Counting().sources, rows)


@pytest.fixture(scope="module")
def y(rows):
    return np.where(rows[:, 1] > 0.5, 3.0 * rows[:, 2] + rows[:, 4], 0.0) + rows[:, 1]


def by_row(model):
    return replace(as_predictor(model), charge="row")


@pytest.fixture(scope="module")
def regressor(X, y):
    return by_row(MiserRegressor(**SMALL).fit(X, y))


KINDS = ["regressor", "classifier", "exits", "ranker", "ranking exits", "cascade"]


@pytest.fixture(scope="module")
def models(X, y):
    three = np.digitize(y, [-0.5, 0.5])
    qid = np.arange(len(y)) // 10
    regressor = MiserRegressor(**SMALL).fit(X, y)
    classifier = MiserClassifier(**SMALL).fit(X, three)
    ranker = MiserRanker(**SMALL).fit(X, three, qid=qid)
    exits = EarlyExitClassifier(classifier, threshold=0.6, every=2).fit(X, three)
    ranking_exits = EarlyExitRanker(ranker, threshold=0.3, every=3).fit(X, three)
    cascade = Cronus(regressor, n_stages=3, tradeoff=0.05, max_sweeps=2).fit(X, y)
    made = (regressor, classifier, exits, ranker, ranking_exits, cascade)
    return {kind: by_row(model) for kind, model in zip(KINDS, made, strict=True)}


def columns_asked(predictor, row, left):
    """Columns that the path of a row asks for; by single steps."""
    names = set()
    for stage in predictor.stages[: left + 1]:
        k = stage.ensemble.n_outputs
        for tree in plain_trees(stage.ensemble)[stage.first * k : stage.last * k]:
            names |= {predictor.names[f] for f in naive.features_asked(*tree, row)}
    return names


def makers_asked(predictor, row, left, sources):
    """Sources of what the path of a row asks for, with all that they need."""
    return {source.name for source in sources.plan(columns_asked(predictor, row, left))}


def check_receipts(predictor, X, receipts, qid=None):
    """Receipts add up to what the meter says, with their resources and trees."""
    np.testing.assert_array_equal(receipts.costs, predictor.prediction_costs(X, qid))
    for i, receipt in enumerate(receipts):
        assert receipt.index == i
        assert receipt.cost == sum_of_prices([*receipt.resources.values(), receipt.tree_cost])
        check_questions(receipt, list(X.columns))


def check_questions(receipt, names):
    """Questions add up to the cost, and nothing is a reason that was not asked before."""
    prices = [question.cost for question in receipt.questions]
    assert math.fsum([*prices, receipt.tree_cost]) == pytest.approx(receipt.cost, rel=1e-12)
    asked = set()
    for question in receipt.questions:
        assert {name for said in question.since for name in said.split()} & {*names} <= asked
        assert question.feature not in asked
        asked.add(question.feature)


@pytest.mark.parametrize("options", [{}, {"n_jobs": 3}, {"batch_size": 1}, {"batch_size": 64}])
@pytest.mark.parametrize("kind", KINDS)
def test_only_what_the_path_asks_for_is_fetched(models, rows, X, kind, options):
    counting, predictor = Counting(), models[kind]
    qid = np.arange(len(rows)) // 10 if predictor.kind == "ranker" else None
    with OnDemandPredictor(predictor, counting.sources, **options) as served:
        answer, receipts = served.predict(rows, qid=qid, return_receipts=True)
    np.testing.assert_array_equal(answer, predictor.predict(X, qid))
    check_receipts(predictor, X, receipts, qid)
    left = predictor.leaving_stages(X, qid)
    for i, row in enumerate(X.to_numpy()):
        expected = makers_asked(predictor, row, left[i], counting.sources)
        assert counting.called(i) == expected
        assert set(receipts[i].fetched) == expected
        asked = {question.feature for question in receipts[i].questions}
        assert asked == columns_asked(predictor, row, left[i])
    assert set(counting.calls.values()) == {1}


@on_every_backend
def test_coroutines_walk_too(regressor, rows, X, backend):
    sources = Sources()

    def fetch(place):
        async def column(raw):
            await anyio.sleep(0)
            return float(raw[place])

        return column

    for place, name in enumerate(X, start=1):
        sources.add(fetch(place), [name], name=name)
    served = OnDemandPredictor(regressor, sources)
    answer, receipts = served.predict(rows, return_receipts=True)
    np.testing.assert_array_equal(answer, regressor.predict(X))
    check_receipts(regressor, X, receipts)
    again = anyio.run(served.apredict, rows, backend=backend)
    np.testing.assert_array_equal(again, answer)


def test_nobody_waits_for_a_slow_object(rows, X, regressor):
    """The first object's first call returns only when all others have come to their end."""
    others_done, seen = threading.Event(), []
    sources = Sources()

    def slow(raw):
        if raw[0] == 0:
            assert others_done.wait(PATIENCE)
        return raw[1]

    def counted(place):
        def call(raw):
            seen.append(int(raw[0]))
            if set(range(1, 20)) <= set(seen):
                others_done.set()
            return raw[place]

        return call

    sources.add(slow, ["cheap"], name="cheap")
    for place, name in enumerate(X.columns[1:], start=2):
        sources.add(counted(place), [name], name=name)
    with OnDemandPredictor(regressor, sources, n_jobs=2) as served:
        served.predict(rows[:20])


def test_a_receipt_reads_as_a_protocol(regressor, rows, X):
    served = OnDemandPredictor(regressor, Counting().sources)
    _, receipts = served.predict(rows, return_receipts=True)
    names = list(X.columns)
    for receipt, row in zip(receipts, X.to_numpy(), strict=True):
        sources = {question.source for question in receipt.questions}
        assert sources == set(receipt.fetched) - {"decoded"}
        for question in receipt.questions:
            assert question.answer == row[names.index(question.feature)]
    some = next(receipt for receipt in receipts if len(receipt.questions) > 1)
    first, *others = some.questions
    text = some.protocol().splitlines()
    assert text[0] == f"object {some.index}: {some.cost:.6g}"
    assert text[1] == f"  asked {first.feature}: {first.answer:.6g} ({first.cost:.6g})"
    assert text[-1] == f"  then it has met all trees (trees: {some.tree_cost:.6g})"
    for line, question in zip(text[2:-1], others, strict=True):
        told = f"{question.feature}: {question.answer:.6g} ({question.cost:.6g})"
        assert line.endswith(f"asked {told}")
        assert line.startswith("  since " if question.since else "  asked")


def test_a_protocol_tells_what_came_along_with_another_column():
    """One call makes both columns, but the second has a price of its own; a third is free then."""
    rng = np.random.default_rng(0)
    names = ["score", "late", "limit"]
    frame = pd.DataFrame(rng.standard_normal((400, 3)), columns=names)
    y = np.where(frame["score"] > 0, 5.0 + 2.0 * (frame["late"] > 0) + (frame["limit"] > 0), 0.0)
    prices = {"bureau": 1.5, "extra": 0.1}
    needs = {"score": ["bureau"], "late": ["bureau", "extra"], "limit": ["bureau"]}
    costs = CostModel.from_resources(prices, needs)
    options = {"max_iter": 3, "learning_rate": 1.0, "tradeoff": 0.001}
    model = MiserRegressor(costs=costs, charge="row", **options).fit(frame, y)
    sources = Sources()
    sources.add(lambda raw: raw, names, name="bureau", needs=["raw"])
    objects = frame.to_dict("records")
    _, receipts = OnDemandPredictor(model, sources).predict(objects, return_receipts=True)
    check_receipts(as_predictor(model), frame, receipts)
    for receipt, score in zip(receipts, frame["score"], strict=True):
        asked = [(question.feature, question.cost) for question in receipt.questions]
        assert asked == [("score", 1.5), ("late", 0.1), ("limit", 0.0)][: 3 if score > 0 else 1]
    dear = next(receipt for receipt in receipts if receipt.cost > 1.5)
    told = dear.protocol().splitlines()
    assert [line.rsplit(" ", 1)[1] for line in told[:-1]] == ["1.6", "(1.5)", "(0.1)", "(0)"]
    assert told[-1] == "  then it has met all trees"


def test_failures_are_paid_for_and_taken_as_missing(regressor, rows, X):
    sources = Sources()

    def broken(raw):
        if raw[0] % 2:
            raise OSError("gone")
        return raw[2]

    for place, name in enumerate(X, start=1):
        function = broken if name == "low" else (lambda raw, place=place: raw[place])
        sources.add(function, [name], name=name, needs=["raw"])
    damaged = X.copy()
    damaged.loc[1::2, "low"] = math.nan
    served = OnDemandPredictor(regressor, sources, on_error="missing")
    with told_of_failures("'low' failed on "):
        answer, receipts = served.predict(rows, return_receipts=True)
    np.testing.assert_array_equal(answer, regressor.predict(damaged))
    check_receipts(regressor, damaged, receipts)
    failed = [receipt for receipt in receipts if receipt.failures]
    assert failed
    for receipt in failed:
        assert receipt.missing == ("low",)
        assert next(q for q in receipt.questions if q.feature == "low").answer is None
        assert "asked low: missing" in receipt.protocol()
    since = [
        said for receipt in failed for question in receipt.questions for said in question.since
    ]
    assert {said for said in since if "low" in said} == {"low missing"}


def test_labels_and_resources_of_their_own():
    """Answers are labels; the costs know other resources than the sources."""
    rng = np.random.default_rng(0)
    colour = rng.choice(["red", "green", "blue"], 400)
    size, weight = rng.standard_normal((2, 400))
    frame = pd.DataFrame({"colour": pd.Categorical(colour), "size": size, "weight": weight})
    y = np.where(colour == "red", size + weight, (colour == "blue") * 2.0)
    costs = CostModel({"colour": 1.0, "size": 2.0, "weight": 4.0})
    model = by_row(MiserRegressor(costs=costs, max_iter=10).fit(frame, y))
    sources, calls = Sources(), []

    @sources.columns("colour", categorical=True)
    def look(raw):
        return raw["colour"]

    @sources.columns("size", "weight")
    def measure(raw):
        calls.append(raw)
        return raw["size"], raw["weight"]

    objects = frame.to_dict("records")
    answer, receipts = OnDemandPredictor(model, sources).predict(objects, return_receipts=True)
    np.testing.assert_array_equal(answer, model.predict(frame))
    check_receipts(model, frame, receipts)
    assert 0 < len(calls) < len(objects)
    for receipt, label in zip(receipts, colour, strict=True):
        assert receipt.questions[0].answer == label
        if len(receipt.questions) > 1:
            assert receipt.questions[1].source == "measure"
            assert receipt.questions[1].since[0].startswith("colour ")


def test_constants_ask_for_nothing(X, y, rows):
    constant = by_row(MiserRegressor(**SMALL, budget=0.0).fit(X, y * 0.0))
    counting = Counting()
    served = OnDemandPredictor(constant, counting.sources)
    answer, receipts = served.predict(rows[:5], return_receipts=True)
    assert not counting.calls
    np.testing.assert_array_equal(answer, constant.predict(X[:5]))
    assert receipts.costs.tolist() == [0.0] * 5
    assert served.predict([]).shape == (0,)


# -- sources that take many objects at once -------------------------------------------------------


class Batches:
    """The sources of ``Counting``, where ``decoded`` and ``dear`` take many objects at once."""

    def __init__(self, is_async=False):
        self.batches = []  # name, and the numbers of the objects
        self.sources = Sources()
        many = self.coroutine if is_async else self.function
        self.sources.add(lambda raw: raw[1], ["cheap"], name="cheap")
        self.sources.add(many("decoded", lambda x: x), name="decoded", needs=["raw"], batch=True)
        self.sources.add(lambda x: (x[2], x[3]), ["low", "high"], name="pair", needs=["decoded"])
        self.sources.add(
            many("dear", lambda x: x[4]), ["dear"], name="dear", needs=["decoded"], batch=True
        )
        for place, name in ((5, "unused"), (6, "noise")):
            one = many(name, lambda x, place=place: x[place])
            self.sources.add(one, [name], name=name, needs=["raw"], batch=True)

    def function(self, name, one):
        def call(objects):
            self.batches.append((name, [int(x[0]) for x in objects]))
            return [one(x) for x in objects]

        return call

    def coroutine(self, name, one):
        call = self.function(name, one)

        async def acall(objects):
            await anyio.sleep(0)
            return call(objects)

        return acall


@pytest.mark.parametrize("options", [{}, {"n_jobs": 3}, {"is_async": True}, {"batch_size": 64}])
@pytest.mark.parametrize("kind", KINDS)
def test_sources_that_take_many_objects(models, rows, X, kind, options):
    options = dict(options)
    made, predictor = Batches(options.pop("is_async", False)), models[kind]
    qid = np.arange(len(rows)) // 10 if predictor.kind == "ranker" else None
    with OnDemandPredictor(predictor, made.sources, **{"batch_size": 300, **options}) as served:
        answer, receipts = served.predict(rows, qid=qid, return_receipts=True)
    np.testing.assert_array_equal(answer, predictor.predict(X, qid))
    check_receipts(predictor, X, receipts, qid)
    left = predictor.leaving_stages(X, qid)
    called = [set() for _ in rows]
    for name, objects in made.batches:
        for i in objects:
            assert name not in called[i]
            called[i].add(name)
    singles = {"cheap", "pair"}
    for i, row in enumerate(X.to_numpy()):
        expected = makers_asked(predictor, row, left[i], made.sources)
        assert called[i] == expected - singles
        assert set(receipts[i].fetched) == expected
    assert len(made.batches) < sum(map(len, called)) / 4, "calls must be shared"


@pytest.mark.parametrize("as_what", [np.array, pd.DataFrame, list, tuple])
def test_what_sources_of_many_objects_return(as_what, rows, X):
    sources = Sources()

    @sources.columns("cheap", "low", batch=True)
    def both(raw):
        return as_what(pd.DataFrame({"cheap": [x[1] for x in raw], "low": [x[2] for x in raw]})
                       if as_what is pd.DataFrame else [(x[1], x[2]) for x in raw])  # fmt: skip

    matrix = build_matrix(sources, rows)
    pd.testing.assert_frame_equal(matrix, X[["cheap", "low"]])
    assert sources["both"].call([rows[0]]) is not None


def test_batches_that_fail(rows, X, regressor):
    made = Batches()
    made.sources._sources["decoded"] = replace(
        made.sources["decoded"], function=lambda raw: raw[:-1]
    )
    served = OnDemandPredictor(regressor, made.sources, on_error="missing")
    with told_of_failures(r"ValueError: it returned \d+ results for \d+"):
        _, receipts = served.predict(rows, return_receipts=True)
    broken = X.copy()
    broken[["low", "high", "dear"]] = math.nan
    check_receipts(regressor, broken, receipts)
    with pytest.raises(AcquisitionError, match="source 'decoded' failed on object"):
        OnDemandPredictor(regressor, made.sources).predict(rows)
    made.sources._sources["decoded"] = replace(made.sources["decoded"], function=lambda raw: 7)
    with pytest.raises(AcquisitionError, match="must return a sequence with a result per object"):
        OnDemandPredictor(regressor, made.sources, n_jobs=2).predict(rows)


def test_batches_in_stages_of_models_that_charge_alike(rows, X, y):
    model, made = MiserRegressor(**SMALL).fit(X, y), Batches()
    answer = OnDemandPredictor(model, made.sources, batch_size=100).predict(rows)
    np.testing.assert_array_equal(answer, model.predict(X))
    assert {len(objects) for _, objects in made.batches} == {100}


# Any stages, any sources


def sources_of_kind(kind, is_shared):
    """A source per column of ``Counting``, of one kind; perhaps all of them need ``decoded``."""
    need = "decoded" if is_shared else "raw"
    made = Sources()
    if is_shared:
        made.add(lambda raw: raw, name="decoded")
    for i, name in enumerate(COSTS.feature_names, start=1):
        is_batch = kind in ("batches", "coroutines of batches") or (kind == "mixed" and i % 3 == 0)

        def read(values, i=i, is_batch=is_batch):
            return [row[i] for row in values] if is_batch else values[i]

        async def read_later(values, read=read):
            await anyio.sleep(0)
            return read(values)

        is_async = kind in ("coroutines", "coroutines of batches") or (kind == "mixed" and i % 2)
        function = read_later if is_async else read
        made.add(function, [name], name=name, needs=[need], batch=is_batch)
    return made


def stages_of(ensemble, steps):
    """Stages of so many rounds, which go on with the trees of the one before, or score anew."""
    found, n_trees, last = [], 0, 0
    for n_rounds, is_anew in steps:
        first = 0 if is_anew else last
        last = min(first + n_rounds, ensemble.n_iter)
        n_trees += (last - first) * ensemble.n_outputs
        found.append(Stage(ensemble, first, last, n_trees))
    return tuple(found)


@pytest.fixture(scope="module")
def quick_learners(rows, X):
    """Models that ask each object for something else, and that objects leave after any stage."""
    y = rows[:, 1] + rows[:, 2] * rows[:, 3] + 0.5 * rows[:, 6]
    fast = {"max_iter": 12, "max_depth": 2, "learning_rate": 0.5, "min_samples_leaf": 5}
    qid = np.arange(len(y)) // 10
    return {
        "binary": as_predictor(MiserClassifier(**fast).fit(X, y > 0)),
        "three": as_predictor(MiserClassifier(**fast).fit(X, np.digitize(y, [-0.5, 0.5]))),
        "ranker": as_predictor(MiserRanker(**fast).fit(X, np.digitize(y, [0]), qid=qid)),
    }


SOURCE_KINDS = ["functions", "coroutines", "batches", "coroutines of batches", "mixed"]
STEPS = st.tuples(st.integers(0, 4), st.sampled_from([False, False, False, True]))


@examples(60)
@example("binary", [(2, False)] * 6, 0.8, "row", "functions", False, 300, 1, 256)
@example("three", [(1, False)] * 9, 0.7, "row", "batches", True, 300, 2, 256)
@given(
    task=st.sampled_from(["binary", "three", "ranker"]),
    steps=st.lists(STEPS, min_size=1, max_size=6),
    threshold=st.sampled_from([0.5, 0.7, 0.8, 0.9]),
    charge=st.sampled_from(["model", "row"]),
    kind=st.sampled_from(SOURCE_KINDS),
    is_shared=st.booleans(),
    # Those that get to the ends of different stages together were once mixed up.
    n=st.sampled_from([1, 60, 300, 300]),
    n_jobs=st.sampled_from([1, 1, 3]),
    batch_size=st.sampled_from([1, 7, 256, 256]),
)
@pytest.mark.slow
def test_on_demand_is_the_matrix_whatever_the_stages(
    quick_learners, rows, X, task, steps, threshold, charge, kind, is_shared, n, n_jobs, batch_size
):
    """Stages, charge, sources and batches of all kinds: the same bits, and the same bills."""
    model, is_ranker = quick_learners[task], task == "ranker"
    cut = stages_of(model.stages[0].ensemble, steps)
    rule = Proximity(threshold, len(cut), place=2) if is_ranker else Confident(threshold)
    model = replace(model, stages=cut, rule=rule, charge=charge)
    qid = np.arange(n) % 4 if is_ranker else None
    sources = sources_of_kind(kind, is_shared)
    with OnDemandPredictor(model, sources, n_jobs=n_jobs, batch_size=batch_size) as served:
        found, receipts = served.predict(rows[:n], qid=qid, return_receipts=True)
        raw = found if is_ranker else served.predict_proba(rows[:n])
    np.testing.assert_array_equal(found, model.predict(X[:n], qid))
    np.testing.assert_array_equal(raw, found if is_ranker else model.predict_proba(X[:n]))
    np.testing.assert_array_equal(receipts.costs, model.prediction_costs(X[:n], qid))
