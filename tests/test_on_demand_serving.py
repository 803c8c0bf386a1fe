"""In production: fallbacks, deadlines, retries, breakers, caches, batches, observers."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import threading
import time
from collections import Counter
from dataclasses import replace
from functools import partial

import anyio
import numpy as np
import pandas as pd
import pytest

from greedymiser import (
    CostModel,
    EarlyExitClassifier,
    MiserClassifier,
    MiserRegressor,
    as_predictor,
)
from greedymiser.model.gating import Gate, Gates
from greedymiser.on_demand import (
    AcquisitionError,
    AcquisitionWarning,
    Observer,
    OnDemandPredictor,
    SourcePolicy,
    Sources,
    SourceTimeoutError,
)
from greedymiser.on_demand.policies import Deadline, Health
from greedymiser.on_demand.request import Outcome
from test_on_demand import PATIENCE, gathered, on_every_backend, told_of_failures
from test_on_demand_rows import columns_asked

NAMES = ["age", "bureau", "fraud", "income"]
PRICES = {"age": 0.0, "bureau": 5.0, "fraud": 2.0, "income": 1.0}

# Stands for a call of a source, where it does not matter which.
CALL = object()
quietly = pytest.mark.filterwarnings("ignore::greedymiser.on_demand.AcquisitionWarning")


@pytest.fixture(scope="module", name="X")
def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame(rng.standard_normal((200, 4)), columns=NAMES)


@pytest.fixture(scope="module")
def objects(X):
    return X.to_dict("records")


def classifier(X, names, **options):
    y = X["age"] + 2 * X["bureau"] + X["fraud"] + X["income"] > 0
    given = {"max_iter": 8, "min_samples_leaf": 5, "learning_rate": 0.4, **options}
    costs = {name: PRICES[name] for name in names}
    model = as_predictor(MiserClassifier(costs=costs, **given).fit(X[list(names)], y))
    assert {model.names[f] for f in model.features} == set(names)
    return model


@pytest.fixture(scope="module")
def model(X):
    return classifier(X, NAMES)


@pytest.fixture(scope="module")
def others(X):
    """The best first."""
    sets = [["bureau", "age"], ["fraud", "income", "age"], ["income", "age"], ["age"]]
    return [classifier(X, names) for names in sets]


class Service:
    """Sources of the columns; some of them fail, hang or are slow."""

    def __init__(self, failing=(), hanging=(), is_async=False, seconds=None):
        self.failing, self.hanging = set(failing), set(hanging)
        self.seconds = seconds or {}
        self.calls = Counter()
        self.lock = threading.Lock()
        self.sources = Sources(raw="customer")
        for name in NAMES:
            function = self.later(name) if is_async else self.now(name)
            self.sources.add(function, [name], name=name, needs=["customer"])

    def answer(self, name, customer):
        with self.lock:
            self.calls[name] += 1
        if name in self.failing:
            raise OSError(f"{name} is down")
        return customer[name]

    def now(self, name):
        def fetch(customer):
            return self.answer(name, customer)

        return fetch

    def later(self, name):
        async def fetch(customer):
            if name in self.hanging:
                self.calls[name] += 1
                await anyio.sleep_forever()
            await anyio.sleep(self.seconds.get(name, 0.0))
            return self.answer(name, customer)

        return fetch


def sources_with(bureau, *, batch=False):
    """Coroutines, one of which is given."""
    sources = Service(is_async=True).sources
    sources._sources["bureau"] = replace(sources["bureau"], function=bureau, is_batch=batch)
    return sources


def subsets():
    return [set(s) for n in range(5) for s in itertools.combinations(NAMES, n)]


# Fallbacks


@quietly
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("charge", ["model", "row"])
@pytest.mark.parametrize("failing", subsets(), ids=lambda s: "+".join(sorted(s)) or "none")
def test_the_best_model_answers_that_needs_nothing_that_failed(
    X, objects, model, others, failing, charge, is_async
):
    main = replace(model, charge=charge)
    service = Service(failing, is_async=is_async)
    served = OnDemandPredictor(main, service.sources, fallbacks=others)
    can = [i for i, m in enumerate(others) if failing.isdisjoint(m.names[f] for f in m.features)]
    if failing and not can:
        with pytest.raises(AcquisitionError, match="is down"):
            served.predict_proba(objects[:40])
        served.close()
        return
    found, receipts = served.predict_proba(objects[:40], return_receipts=True)
    expected = main.predict_proba(X[:40])
    for i, receipt in enumerate(receipts):
        asked = set(NAMES) if charge == "model" else columns_asked(main, X.to_numpy()[i], 0)
        if failing.isdisjoint(asked):
            assert receipt.fallback is None
            assert np.array_equal(found[i], expected[i])
            continue
        assert receipt.fallback == can[0]
        assert "is down" in receipt.why_fallback
        best = others[can[0]]
        assert np.array_equal(found[i], best.predict_proba(X[i : i + 1])[0])
        assert receipt.missing == ()
        needed = {best.names[f] for f in best.features}
        assert needed <= set(receipt.fetched)
        # All that was called is paid for, the failures too.
        assert receipt.resources == {name: PRICES[name] for name in receipt.fetched}
        assert receipt.cost == math.fsum([*receipt.resources.values(), receipt.tree_cost])
    assert max(service.calls.values()) <= 40  # nothing is called twice for an object
    served.close()


@quietly
def test_what_was_fetched_for_the_model_is_used_and_paid_once(X, objects, model, others):
    service = Service(["bureau"])
    served = OnDemandPredictor(model, service.sources, fallbacks=others)
    _, receipts = served.predict(objects[:1], return_receipts=True)
    assert service.calls == dict.fromkeys(NAMES, 1)
    assert receipts[0].resources == PRICES
    assert receipts[0].in_vain == ()
    assert "fallback 1, since source 'bureau' failed on object 0: OSError" in (
        receipts[0].protocol()
    )
    assert receipts.to_frame()["fallback"].tolist() == [1]


@quietly
def test_stages_that_some_objects_leave_for_a_fallback(X, objects, others):
    """Those that leave early need no bureau, and are answered by the model."""
    y = X["age"] + 2 * X["bureau"] + X["fraud"] + X["income"] > 0
    grown = MiserClassifier(costs=PRICES, learning_rate=0.4, min_samples_leaf=5, warm_start=True)
    for tradeoff, rounds in [(0.05, 6), (0.0, 16)]:
        grown.set_params(tradeoff=tradeoff, max_iter=rounds).fit(X, y)
    hasty = as_predictor(EarlyExitClassifier(grown, threshold=0.75, every=3).fit(X, y))
    first = next(k for k in range(9) if 1 in hasty.stage_features(k))
    left = hasty.leaving_stages(X)
    assert 0 < (left < first).sum() < len(X)
    for charge in ("model", "row"):
        staged = replace(hasty, charge=charge)
        served = OnDemandPredictor(staged, Service(["bureau"]).sources, fallbacks=others)
        found, receipts = served.predict_proba(objects, return_receipts=True)
        fell = np.array([receipt.fallback is not None for receipt in receipts])
        assert not fell[left < first].any()
        if charge == "model":
            assert fell[left >= first].all()
        assert fell.any()
        assert np.array_equal(found[~fell], staged.predict_proba(X)[~fell])
        assert np.array_equal(found[fell], others[1].predict_proba(X)[fell])
        assert {receipts[i].fallback for i in np.flatnonzero(fell)} == {1}


@quietly
def test_if_no_model_can_answer_the_columns_are_missing(X, objects, model, others):
    service = Service(["bureau", "age"])
    served = OnDemandPredictor(model, service.sources, fallbacks=others, on_error="missing")
    found, receipts = served.predict_proba(objects[:5], return_receipts=True)
    blank = X[:5].assign(bureau=math.nan, age=math.nan)
    assert np.array_equal(found, model.predict_proba(blank))
    assert receipts[0].fallback is None
    assert set(receipts[0].missing) == {"bureau", "age"}
    # Rows are asked one by one: the bureau fails first, and a fallback is tried that needs the age.
    by_row = replace(model, charge="row")
    served = OnDemandPredictor(by_row, service.sources, fallbacks=others, on_error="missing")
    found, receipts = served.predict_proba(objects[:5], return_receipts=True)
    for i, receipt in enumerate(receipts):
        answers = by_row if receipt.fallback is None else others[receipt.fallback]
        assert np.array_equal(found[i], answers.predict_proba(blank[i : i + 1])[0])
        assert receipt.missing


@quietly
def test_fallbacks_of_fallbacks(X, objects, model, others):
    """The one that is chosen first needs what fails only later."""
    service = Service(["bureau"])
    sources = Sources(raw="customer")
    for source in service.sources:
        sources.add(source.function, source.columns, name=source.name, needs=["customer"])

    @sources.columns("late")
    def late(customer):
        raise KeyError("late")

    frame = X[["age"]].assign(late=np.random.default_rng(1).standard_normal(len(X)))
    y = frame["age"] + frame["late"] > 0
    shaky = as_predictor(MiserClassifier(max_iter=30, min_samples_leaf=5).fit(frame, y))
    assert len(shaky.features) == 2
    served = OnDemandPredictor(model, sources, fallbacks=[shaky, others[-1]])
    found, receipts = served.predict_proba(objects[:3], return_receipts=True)
    assert np.array_equal(found, others[-1].predict_proba(X[:3]))
    assert receipts[0].fallback == 1
    assert list(receipts[0].failures) == ["bureau", "late"]


STATES = (["age"], ["age", "income"], ["age", "fraud", "income"], NAMES)


@pytest.fixture(scope="module", name="gated")
def gated_and_states(X):
    return gated_cascade(X)


def gated_cascade(X):
    """A cascade of four states, and their models: who is old enough and unsure goes on."""
    costs = CostModel(PRICES)
    y = X["age"] + 2 * X["bureau"] + X["fraud"] + X["income"] > 0
    models, stages, gates, n_trees = [], [], [], 0
    for names in STATES:
        seen = X * X.columns.isin(names)
        given = {"max_iter": 6, "min_samples_leaf": 5, "learning_rate": 0.4, "costs": costs}
        model = as_predictor(MiserClassifier(**given).fit(seen, y))
        assert model.features_used_ == names
        n_trees += model.stages[0].n_trees
        models.append(model)
        stages.append(replace(model.stages[0], n_trees=n_trees))
        if names is not STATES[-1]:
            risk = model.predict_proba(X)[:, 1]
            extended = np.column_stack([seen, risk])
            goes_on = np.where((np.abs(risk - 0.5) < 0.3) & (X["age"] > -1), 1.0, -1.0)
            tree = MiserRegressor(max_iter=3, learning_rate=1.0, min_samples_leaf=5)
            ensemble = as_predictor(tree.fit(extended, goes_on)).stages[0].ensemble
            gates.append(Gate(ensemble, 0.0))
    rule = Gates(tuple(gates), 4, models[-1].loss)
    return replace(models[-1], stages=tuple(stages), rule=rule), models


def reached(cascade, X, failing):
    """The state in which each row ends if it cannot go to one that needs what fails."""
    found = np.zeros(len(X), dtype=int)
    is_going = np.ones(len(X), dtype=bool)
    for k in range(len(STATES) - 1):
        needed = {name for names in STATES[: k + 2] for name in names}
        raw = np.zeros((1, len(X)))
        cascade.advance(k, X.to_numpy(), raw)
        is_going &= cascade.stays(k, raw, None, X.to_numpy()) & needed.isdisjoint(failing)
        found[is_going] = k + 1
    return found


@quietly
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("failing", subsets(), ids=lambda s: "+".join(sorted(s)) or "none")
def test_a_gated_cascade_answers_in_the_best_state_that_can_be_reached(
    X, objects, gated, failing, is_async
):
    cascade, states = gated
    plain = classifier(X, ["income"])
    service = Service(failing, is_async=is_async)
    served = OnDemandPredictor(cascade, service.sources, fallbacks=[plain], batch_size=64)
    if failing >= {"age", "income"}:
        with pytest.raises(AcquisitionError, match="age is down"):
            served.predict_proba(objects)
        return
    found, receipts = served.predict_proba(objects, return_receipts=True)
    if "age" in failing:  # the first state needs it
        assert np.array_equal(found, plain.predict_proba(X))
        assert {receipt.fallback for receipt in receipts} == {0}
        return
    state = reached(cascade, X, failing)
    wanted = reached(cascade, X, set())
    assert set(wanted) == {0, 1, 2, 3}
    expected = np.array([model.predict_proba(X) for model in states])
    assert np.array_equal(found, expected[state, np.arange(len(X))])
    for i, receipt in enumerate(receipts):
        assert receipt.fallback is None
        assert bool(receipt.why_fallback) == (state[i] < wanted[i])
        assert receipt.missing == ()
        assert receipt.in_vain == ()
        assert receipt.cost == sum(PRICES[name] for name in receipt.fetched)
        if receipt.why_fallback:
            new = set(STATES[state[i] + 1]).difference(STATES[state[i]])
            assert receipt.why_fallback.split("'")[1] in new & failing
            assert set(receipt.fetched) == {*STATES[state[i]], *new}
            assert receipt.stopped.endswith("more is not to be had")
            assert receipt.n_trees == cascade.stages[state[i]].n_trees
        else:
            assert set(receipt.fetched) == set(STATES[state[i]])


@quietly
def test_a_gated_cascade_as_a_fallback(X, objects, model, gated):
    """It answers in the states that can be reached, too."""
    cascade, states = gated
    service = Service(["fraud"], is_async=True)
    served = OnDemandPredictor(model, service.sources, fallbacks=[cascade])
    found, receipts = served.predict_proba(objects, return_receipts=True)
    expected = np.array([state.predict_proba(X) for state in states])
    assert np.array_equal(found, expected[reached(cascade, X, {"fraud"}), np.arange(len(X))])
    assert {receipt.fallback for receipt in receipts} == {0}
    assert all(receipt.cost == sum(PRICES.values()) for receipt in receipts)
    assert all("fraud is down" in receipt.why_fallback for receipt in receipts)


@quietly
@on_every_backend
@pytest.mark.slow
def test_states_answer_before_the_deadline(X, objects, gated, backend):
    cascade, states = gated
    service = Service(hanging=["income"], is_async=True)
    served = OnDemandPredictor(cascade, service.sources, fallbacks="states", deadline=2.0)

    async def main():
        return await served.apredict_proba(objects[:20])

    found = anyio.run(main, backend=backend)
    assert np.array_equal(found, states[0].predict_proba(X[:20]))


@quietly
def test_without_a_first_state_columns_are_missing(X, objects, gated):
    """If that is what is wanted: no model can answer."""
    served = OnDemandPredictor(
        gated[0], Service(["age"]).sources, fallbacks="states", on_error="missing"
    )
    found, receipts = served.predict_proba(objects[:40], return_receipts=True)
    assert np.array_equal(found, gated[0].predict_proba(X[:40].assign(age=np.nan)))
    assert all(receipt.missing == ("age",) for receipt in receipts)
    assert not any(receipt.why_fallback for receipt in receipts)


@quietly
@pytest.mark.parametrize("failing", ["income", "bureau"])
def test_what_was_prefetched_for_a_state_that_is_not_reached(X, objects, gated, failing):
    cascade, states = gated
    served = OnDemandPredictor(
        cascade, Service([failing]).sources, fallbacks="states", prefetch=0.01, sample=X
    )
    found, receipts = served.predict_proba(objects, return_receipts=True)
    expected = np.array([state.predict_proba(X) for state in states])
    assert np.array_equal(found, expected[reached(cascade, X, {failing}), np.arange(len(X))])
    assert all(set(receipt.fetched) == set(NAMES) for receipt in receipts)
    for receipt in receipts:
        paid = [name for name in NAMES if name not in receipt.in_vain]
        assert receipt.cost == sum(PRICES[name] for name in paid)


def test_states_that_cannot_be(X, model, gated):
    sources = Service().sources
    with pytest.raises(ValueError, match="fallbacks='states' is for gated cascades"):
        OnDemandPredictor(model, sources, fallbacks="states")
    with pytest.raises(ValueError, match="fallbacks must be models or 'states', got 'gates'"):
        OnDemandPredictor(gated[0], sources, fallbacks="gates")
    with pytest.raises(ValueError, match="fallback 0 needs all that the first state of the model"):
        OnDemandPredictor(gated[0], sources, fallbacks=[model])


def test_a_curve_is_a_list_of_fallbacks(X, objects):
    from greedymiser import tradeoff_curve

    y = X["age"] + 2 * X["bureau"] + X["fraud"] > 0
    base = MiserClassifier(costs=PRICES, max_iter=10, min_samples_leaf=5, n_jobs=1)
    curve = tradeoff_curve(
        base, X[:120], y[:120], X_val=X[120:], y_val=y[120:], tradeoffs=4, search="path"
    )
    best = curve.best()
    service = Service(["bureau"])
    served = OnDemandPredictor(best, service.sources, fallbacks=curve)
    assert served.fallbacks
    with told_of_failures("'bureau' failed on 5 of 5 objects, and a fallback answers"):
        found, receipts = served.predict_proba(objects[:5], return_receipts=True)
    without = [p for p in served.fallbacks if "bureau" not in p.features_used_]
    assert np.array_equal(found, without[0].predict_proba(X[:5]))
    costs = [predictor.cost_ for predictor in served.fallbacks]
    assert costs == sorted(costs, reverse=True)
    assert served.fallbacks[receipts[0].fallback] is without[0]


def test_fallbacks_that_cannot_be(X, model, others):
    sources = Service().sources
    with pytest.raises(ValueError, match="fallback 0 needs all that the model needs"):
        OnDemandPredictor(model, sources, fallbacks=[model])
    regressor = MiserRegressor(max_iter=2).fit(X[["age"]], X["income"])
    with pytest.raises(ValueError, match="fallback 1 is a regressor, but the model is a class"):
        OnDemandPredictor(model, sources, fallbacks=[others[0], regressor])
    three = MiserClassifier(max_iter=2).fit(X[["age"]], np.arange(len(X)) % 3)
    with pytest.raises(ValueError, match="fallback 0 knows other classes"):
        OnDemandPredictor(model, sources, fallbacks=[three])
    with pytest.raises(TypeError, match="fallbacks must be a curve, a family of models or a list"):
        OnDemandPredictor(model, sources, fallbacks=7)
    foreign = MiserClassifier(max_iter=2).fit(
        X.rename(columns={"age": "shoe"})[["shoe"]], X.age > 0
    )
    with pytest.raises(ValueError, match="no source makes column 'shoe'"):
        OnDemandPredictor(model, sources, fallbacks=[foreign])


def test_a_fallback_must_have_the_link_and_the_error_costs_of_the_model(X):
    sources = Service().sources
    y = np.exp(X["age"] + X["income"])
    fit = {"max_iter": 3, "min_samples_leaf": 5}
    main = MiserRegressor(loss="poisson", **fit).fit(X, y)
    squared = MiserRegressor(**fit).fit(X[["age"]], y)
    with pytest.raises(ValueError, match="fallback 0 has another link than the model"):
        OnDemandPredictor(main, sources, fallbacks=[squared])
    gamma = MiserRegressor(loss="gamma", **fit).fit(X[["age"]], y)
    OnDemandPredictor(main, sources, fallbacks=[gamma]).close()
    costs = {True: {False: 5.0}, False: {True: 1.0}}
    main = MiserClassifier(error_costs=costs, **fit).fit(X, y > 1)
    alike = MiserClassifier(error_costs=costs, **fit).fit(X[["age"]], y > 1)
    OnDemandPredictor(main, sources, fallbacks=[alike]).close()
    dearer = {True: {False: 9.0}, False: {True: 1.0}}
    for other in (None, dearer):
        unlike = MiserClassifier(error_costs=other, **fit).fit(X[["age"]], y > 1)
        with pytest.raises(ValueError, match="fallback 0 has other error_costs"):
            OnDemandPredictor(main, sources, fallbacks=[unlike])


# Deadlines


@quietly
@on_every_backend
@pytest.mark.parametrize("charge", ["model", "row"])
@pytest.mark.slow
def test_a_fallback_answers_before_the_deadline(X, objects, model, others, charge, backend):
    service = Service(hanging=["bureau"], is_async=True)
    main = replace(model, charge=charge)
    served = OnDemandPredictor(main, service.sources, fallbacks=others, deadline=2.0)
    index = next(i for i in range(len(X)) if "bureau" in columns_asked(main, X.to_numpy()[i], 0))

    async def ask():
        with anyio.fail_after(PATIENCE):
            return await served.apredict_proba([objects[index]], return_receipts=True)

    found, receipts = anyio.run(ask, backend=backend)
    # By row, the bureau is asked first, and given up so early that others can still be asked.
    assert receipts[0].fallback == 1
    assert np.array_equal(found, others[1].predict_proba(X[index : index + 1]))
    assert "bureau' failed on object 0: it did not answer within" in receipts[0].why_fallback
    assert isinstance(receipts[0].failures["bureau"], SourceTimeoutError)


@quietly
@pytest.mark.slow
def test_a_deadline_holds_for_functions_and_plain_calls(X, objects, model, others):
    release = threading.Event()
    service = Service()
    sources = Sources(raw="customer")
    for source in service.sources:
        sources.add(source.function, source.columns, name=source.name, needs=["customer"])
    slow = Sources(raw="customer")
    for source in sources:
        function = source.function
        if source.name == "bureau":

            def function(customer):
                release.wait(2 * PATIENCE)
                return customer["bureau"]

        slow.add(function, source.columns, name=source.name, needs=["customer"])
    with OnDemandPredictor(model, slow, fallbacks=others, n_jobs=4) as served:
        found = served.predict_proba(objects[:1], deadline=2.0)
        assert np.array_equal(found, others[1].predict_proba(X[:1]))
        release.set()
        found = served.predict_proba(objects[:1], deadline=PATIENCE)
        assert np.array_equal(found, model.predict_proba(X[:1]))


@quietly
def test_what_cannot_come_in_time_is_not_begun(X, objects, model, others, monkeypatch):
    monkeypatch.setattr("greedymiser.on_demand.policies.PROBE_INTERVAL", 1e6)
    service = Service(is_async=True, seconds={"bureau": 0.15})

    async def main():
        served = OnDemandPredictor(model, service.sources, fallbacks=others)
        await served.apredict(objects[:1], deadline=PATIENCE)
        assert service.calls["bureau"] == 1
        return await served.apredict_proba(objects[1:2], deadline=0.1, return_receipts=True)

    found, receipts = anyio.run(main)
    assert service.calls["bureau"] == 1
    assert np.array_equal(found, others[1].predict_proba(X[1:2]))
    assert receipts[0].not_called == ("bureau",)
    assert "of late it took at least" in receipts[0].why_fallback


def test_a_deadline_without_fallbacks(X, objects, model):
    service = Service(hanging=["bureau"], is_async=True)
    served = OnDemandPredictor(model, service.sources, deadline=0.05)
    with pytest.raises(SourceTimeoutError, match="'bureau' failed on object 0: it did not answer"):
        served.predict(objects[:1])
    served = OnDemandPredictor(model, service.sources, on_error="missing")
    with pytest.warns(AcquisitionWarning):
        found = served.predict_proba(objects[:1], deadline=0.05)
    assert np.array_equal(found, model.predict_proba(X[:1].assign(bureau=math.nan)))
    for bad in (0, -1.0, math.inf, 10**400):
        with pytest.raises(ValueError, match="deadline must be positive and finite"):
            served.predict(objects[:1], deadline=bad)
    with pytest.raises(TypeError, match="deadline must be a number of seconds"):
        OnDemandPredictor(model, service.sources, deadline="soon")


def test_a_slow_source_is_tried_again_after_a_while(monkeypatch):
    now = 0.0
    monkeypatch.setattr("greedymiser.on_demand.policies.time.perf_counter", lambda: now)
    health = Health(SourcePolicy())
    health.note(CALL, Outcome(1.0, None, 0.5))
    assert health.refusal(Deadline(0.2)).given_up
    assert health.refusal(Deadline(2.0)) is None
    now = 1.5
    assert health.refusal(Deadline(0.2)) is None
    assert health.refusal(Deadline(0.2), CALL) is None
    assert health.refusal(Deadline(0.2)).given_up  # one finds out
    health.note(CALL, Outcome(1.0, None, 0.1))
    assert health.refusal(Deadline(0.2)) is None
    health = Health(SourcePolicy())
    health.note(CALL, Outcome(1.0, None, 0.5))
    health.refusal(None, CALL)
    now = 61.0
    assert health.refusal(Deadline(0.2)) is None  # it is forgotten


# Retries, breakers, caches, batches, limits


def test_retries_within_the_deadline(X, objects, model):
    n_calls = Counter()

    async def bureau(customer):
        n_calls["bureau"] += 1
        if n_calls["bureau"] < 3:
            raise OSError("busy")
        return customer["bureau"]

    sources = sources_with(bureau)
    policies = {"bureau": SourcePolicy(retries=2, retry_wait=0.001)}
    served = OnDemandPredictor(model, sources, policies=policies)
    assert np.array_equal(served.predict_proba(objects[:1]), model.predict_proba(X[:1]))
    assert n_calls["bureau"] == 3
    n_calls.clear()
    impatient = {"bureau": SourcePolicy(retries=2, retry_wait=1e6)}
    served = OnDemandPredictor(model, sources, policies=impatient)
    with pytest.raises(AcquisitionError, match="busy"):
        served.predict(objects[:1], deadline=0.5)
    assert n_calls["bureau"] == 1


def test_an_open_breaker_is_not_waited_for(objects, model, monkeypatch):
    """What failed is told, at once: further attempts would not be made."""
    waits = []

    def no_wait(policy, attempt):
        waits.append(attempt)
        return 0.0

    monkeypatch.setattr("greedymiser.on_demand.event_loop.retry_wait", no_wait)
    service = Service(["bureau"], is_async=True)
    policies = {"bureau": SourcePolicy(retries=5, breaker=2, breaker_reset=1e6)}
    served = OnDemandPredictor(model, service.sources, policies=policies)
    with pytest.raises(AcquisitionError, match="bureau is down"):
        served.predict(objects[:1])
    with pytest.raises(SourceTimeoutError, match="its last 2 calls failed"):
        served.predict(objects[:1])
    assert service.calls["bureau"] == 2
    assert waits == [0]


@quietly
def test_a_breaker_opens_and_closes(X, objects, model, others, monkeypatch):
    service = Service(["bureau"], is_async=True)
    policies = {"bureau": SourcePolicy(breaker=3, breaker_reset=50.0)}
    served = OnDemandPredictor(model, service.sources, policies=policies, fallbacks=others)
    for i in range(6):
        found, receipts = served.predict_proba(objects[i : i + 1], return_receipts=True)
        assert np.array_equal(found, others[1].predict_proba(X[i : i + 1]))
    assert service.calls["bureau"] == 3
    assert receipts[0].not_called == ("bureau",)
    assert "its last 3 calls failed" in receipts[0].why_fallback
    assert "bureau" not in receipts[0].resources
    real = time.perf_counter
    monkeypatch.setattr("greedymiser.on_demand.policies.time.perf_counter", lambda: real() + 60.0)
    served.predict(objects[:1])  # the trial fails
    assert service.calls["bureau"] == 4
    served.predict(objects[:1])
    assert service.calls["bureau"] == 4
    monkeypatch.setattr("greedymiser.on_demand.policies.time.perf_counter", lambda: real() + 120.0)
    service.failing.clear()
    for _ in range(2):
        assert np.array_equal(served.predict_proba(objects[:1]), model.predict_proba(X[:1]))
    assert service.calls["bureau"] == 6


@quietly
@pytest.mark.parametrize("has_timeout", [False, True])
@pytest.mark.slow
def test_a_breaker_counts_time_outs_and_not_the_deadlines_of_callers(
    X, objects, others, has_timeout
):
    """The bureau hangs. Its own time-out is its failure; that a caller has no time is not."""
    service = Service(hanging=["bureau"], is_async=True)
    policy = SourcePolicy(breaker=1, breaker_reset=1e6, timeout=0.01 if has_timeout else None)
    model, plain = others[0], others[3]
    policies = {"bureau": policy}
    served = OnDemandPredictor(model, service.sources, policies=policies, fallbacks=[plain])
    deadline = PATIENCE if has_timeout else 1.0
    for _ in range(3):
        found = served.predict_proba(objects[:1], deadline=deadline)
        assert np.array_equal(found, plain.predict_proba(X[:1]))
    assert service.calls["bureau"] == (1 if has_timeout else 3)


def test_a_trial_that_is_not_made_is_given_back(monkeypatch):
    now = 0.0
    monkeypatch.setattr("greedymiser.on_demand.policies.time.perf_counter", lambda: now)
    health = Health(SourcePolicy(breaker=1, breaker_reset=10.0))
    health.note(CALL, Outcome(None, OSError(), 0.5))
    assert "its last 1 calls failed" in health.refusal(None, CALL).given_up
    soon = Deadline(1.0)
    now = 20.0
    assert "have passed" in health.refusal(soon, CALL).given_up  # takes no trial along
    assert health.refusal(None, CALL) is None
    assert health.refusal(None, CALL) is not None  # there is one
    health.release(CALL)  # its caller has gone
    assert health.refusal(None, CALL) is None
    health.note(CALL, Outcome(1.0, None, 0.1))
    assert health.refusal(None, CALL) is health.refusal(None, CALL) is None


def test_only_the_trial_itself_ends_the_trial(monkeypatch):
    """Calls that began before the breaker opened end whenever they like."""
    now = 0.0
    monkeypatch.setattr("greedymiser.on_demand.policies.time.perf_counter", lambda: now)
    earlier, gone, trial, next_trial = object(), object(), object(), object()
    health = Health(SourcePolicy(breaker=1, breaker_reset=10.0))
    assert health.refusal(None, earlier) is health.refusal(None, gone) is None
    health.note(CALL, Outcome(None, OSError(), 0.5))
    now = 20.0
    assert health.refusal(None, trial) is None
    health.release(gone)
    assert health.refusal(None, next_trial) is not None
    health.note(earlier, Outcome(None, OSError(), 20.0))
    assert health.refusal(None, next_trial) is not None
    now = 31.0  # the trial hangs, so another call is tried
    assert health.refusal(None, next_trial) is None
    health.note(trial, Outcome(None, OSError(), 11.0))
    now = 40.0
    assert health.refusal(None, CALL) is not None
    health.note(next_trial, Outcome(1.0, None, 9.0))
    assert health.refusal(None, CALL) is health.refusal(None, CALL) is None


def test_calls_that_fail_late_put_no_trial_off(monkeypatch):
    now = 0.0
    monkeypatch.setattr("greedymiser.on_demand.policies.time.perf_counter", lambda: now)
    health = Health(SourcePolicy(breaker=1, breaker_reset=10.0))
    health.note(CALL, Outcome(None, OSError(), 0.5))
    now = 9.0
    health.note(object(), Outcome(None, OSError(), 9.0))
    now = 10.0
    assert health.refusal(None, CALL) is None


@on_every_backend
def test_a_trial_whose_caller_goes_is_followed_by_another(objects, model, backend, monkeypatch):
    service = Service(["bureau"], is_async=True)
    policies = {"bureau": SourcePolicy(breaker=1, breaker_reset=50.0)}
    served = OnDemandPredictor(model, service.sources, policies=policies)
    with pytest.raises(AcquisitionError):
        served.predict(objects[:1])
    service.failing.clear()
    service.hanging.add("bureau")
    real = time.perf_counter
    monkeypatch.setattr("greedymiser.on_demand.policies.time.perf_counter", lambda: real() + 60.0)

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(served.apredict, objects[:1])
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        service.hanging.clear()
        return await served.apredict(objects[:1])

    assert len(anyio.run(main, backend=backend)) == 1


class RedisLike:
    """A cache whose methods are coroutines; it knows texts."""

    def __init__(self):
        self.kept = {}

    async def get(self, key):
        await anyio.sleep(0)
        return self.kept.get(key)

    async def set(self, key, value):
        await anyio.sleep(0)
        self.kept[key] = value


@pytest.mark.parametrize("make", [dict, RedisLike])
@pytest.mark.parametrize("is_async", [False, True])
def test_caches_across_requests(X, objects, model, make, is_async):
    service, cache = Service(is_async=is_async), make()
    numbered = [dict(customer, number=i) for i, customer in enumerate(objects)]

    def key(customer):
        return customer["number"] if customer["number"] else None  # the first is never kept

    # Two sources in one cache do not mix.
    policy = SourcePolicy(cache=cache, cache_key=key)
    policies = {"bureau": policy, "fraud": policy}
    served = OnDemandPredictor(model, service.sources, policies=policies)
    expected = model.predict_proba(X[:3])
    for _ in range(2):
        found, receipts = served.predict_proba(numbered[:3], return_receipts=True)
        assert np.array_equal(found, expected)
    assert service.calls["bureau"] == service.calls["fraud"] == 4
    assert service.calls["age"] == 6
    assert [sorted(receipt.cached) for receipt in receipts] == [[], *[["bureau", "fraud"]] * 2]
    assert np.array_equal(receipts.costs, model.prediction_costs(X[:3]))
    assert "bureau" not in receipts[1].fetched


@quietly
@pytest.mark.parametrize("on_error", ["raise", "missing"])
def test_what_cannot_be_read_is_not_kept_in_a_cache(X, objects, model, on_error):
    """Else a source that has answered nonsense once would fail as long as its answer is kept."""
    answers = iter(["a page that says sorry"])

    async def bureau(customer):
        return next(answers, customer["bureau"])

    policies = {"bureau": SourcePolicy(cache={}, cache_key=lambda customer: 1)}
    sources = sources_with(bureau)
    served = OnDemandPredictor(model, sources, policies=policies, on_error=on_error)
    with pytest.raises(AcquisitionError) if on_error == "raise" else contextlib.nullcontext():
        served.predict(objects[:1])
    for was_kept in (False, True):
        found, receipts = served.predict_proba(objects[:1], return_receipts=True)
        assert np.array_equal(found, model.predict_proba(X[:1]))
        assert ("bureau" in receipts[0].cached) == was_kept


def test_a_cache_that_fails_is_as_good_as_none(X, objects, model, caplog):
    class Broken:
        def get(self, key):
            raise ConnectionError("no cache")

        def set(self, key, value):
            raise ConnectionError("no cache")

    policies = {"bureau": SourcePolicy(cache=Broken(), cache_key=id)}
    served = OnDemandPredictor(model, Service().sources, policies=policies)
    assert np.array_equal(served.predict_proba(objects[:3]), model.predict_proba(X[:3]))
    assert len([m for m in caplog.messages if "the cache of source 'bureau' failed" in m]) == 1


def batch_service(sizes):
    async def bureau(customer):
        sizes.append(len(customer))
        await anyio.sleep(0.001)
        return [one["bureau"] for one in customer]

    return sources_with(bureau, batch=True)


@on_every_backend
def test_requests_that_come_together_share_a_call(X, objects, model, backend):
    sizes = []
    policies = {"bureau": SourcePolicy(max_batch=8, max_wait=0.5)}
    served = OnDemandPredictor(model, batch_service(sizes), policies=policies)

    async def main():
        asks = [partial(served.apredict_proba, objects[i : i + 1]) for i in range(20)]
        return await gathered(*asks)

    found = anyio.run(main, backend=backend)
    assert np.array_equal(np.concatenate(found), model.predict_proba(X[:20]))
    assert sorted(sizes) == [4, 8, 8]


@on_every_backend
def test_no_call_has_more_objects_than_max_batch(X, objects, model, backend):
    sizes = []
    policies = {"bureau": SourcePolicy(max_batch=8, max_wait=0.5)}
    served = OnDemandPredictor(model, batch_service(sizes), policies=policies)

    async def main():
        cuts = [0, 20, 25, 30, 32]
        asks = [partial(served.apredict_proba, objects[a:b]) for a, b in itertools.pairwise(cuts)]
        return await gathered(*asks)

    found = anyio.run(main, backend=backend)
    assert np.array_equal(np.concatenate(found), model.predict_proba(X[:32]))
    assert sum(sizes) == 32
    assert max(sizes) <= 8
    assert len(sizes) <= 6  # 4 and 5, 5 and 2 may share


@on_every_backend
@pytest.mark.parametrize("hasty", [0, 1])
def test_those_who_share_a_call_keep_their_own_deadlines(X, objects, model, backend, hasty):
    """One gives up before the answer comes, whether it came first or second; the other gets it."""
    n_calls = 0

    async def main():
        answers = {}
        gone = anyio.Event()

        async def bureau(customer):
            nonlocal n_calls
            n_calls += 1
            assert len(customer) == 2
            await gone.wait()
            return [one["bureau"] for one in customer]

        sources = sources_with(bureau, batch=True)
        policies = {"bureau": SourcePolicy(max_batch=2, max_wait=PATIENCE)}
        served = OnDemandPredictor(model, sources, policies=policies)

        async def ask(i):
            try:
                deadline = 0.3 if i == hasty else None
                answers[i] = await served.apredict_proba(objects[i : i + 1], deadline=deadline)
            except SourceTimeoutError as error:
                answers[i] = error
                gone.set()

        async with anyio.create_task_group() as group:
            for i in range(2):
                group.start_soon(ask, i)
                await anyio.wait_all_tasks_blocked()
        return answers

    answers = anyio.run(main, backend=backend)
    assert answers[hasty].source == "bureau"
    patient = 1 - hasty
    assert np.array_equal(answers[patient], model.predict_proba(X[patient : patient + 1]))
    assert n_calls == 1


@on_every_backend
def test_a_shared_call_is_cancelled_when_nobody_waits(objects, model, backend):
    events = []

    async def bureau(customer):
        try:
            await anyio.sleep_forever()
        finally:
            events.append("cancelled")

    sources = sources_with(bureau, batch=True)
    policies = {"bureau": SourcePolicy(max_batch=2, max_wait=0.001)}
    served = OnDemandPredictor(model, sources, policies=policies)

    async def main():
        with pytest.raises(SourceTimeoutError):
            await served.apredict(objects[:1], deadline=0.05)
        await anyio.wait_all_tasks_blocked()
        return list(events)

    assert anyio.run(main, backend=backend) == ["cancelled"]


@on_every_backend
def test_who_leaves_a_shared_call_does_not_take_it_along(X, objects, model, backend):
    """The one that was to make the call for all is cancelled while it waits for others."""
    sizes = []
    policies = {"bureau": SourcePolicy(max_batch=3, max_wait=PATIENCE)}
    served = OnDemandPredictor(model, batch_service(sizes), policies=policies)

    async def main():
        answers = {}

        async def ask(i):
            answers[i] = await served.apredict_proba(objects[i : i + 1])

        async with anyio.create_task_group() as group:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as first:
                    first.start_soon(ask, 0)
                    await anyio.wait_all_tasks_blocked()
                    group.start_soon(ask, 1)
                    await anyio.wait_all_tasks_blocked()
                    scope.cancel()
            await anyio.wait_all_tasks_blocked()
            group.start_soon(ask, 2)
            group.start_soon(ask, 3)
        return answers

    answers = anyio.run(main, backend=backend)
    assert sorted(answers) == [1, 2, 3]
    for i, answer in answers.items():
        assert np.array_equal(answer, model.predict_proba(X[i : i + 1]))
    assert sizes == [3]


@on_every_backend
def test_limits_of_single_sources_tell_who_waits(X, objects, model, backend):
    now = most = 0

    async def bureau(customer):
        nonlocal now, most
        now += 1
        most = max(most, now)
        await anyio.sleep(0.001)
        now -= 1
        return customer["bureau"]

    class Waits(Observer):
        def __init__(self):
            self.waits = []

        def source_waited(self, source, seconds, queue_length):
            self.waits.append((source, seconds, queue_length))

    sources, waits = sources_with(bureau), Waits()
    policies = {"bureau": SourcePolicy(limit=2)}
    served = OnDemandPredictor(model, sources, policies=policies, observers=[waits])

    async def main():
        return await gathered(
            *[partial(served.apredict_proba, objects[i : i + 1]) for i in range(10)]
        )

    found = anyio.run(main, backend=backend)
    assert np.array_equal(np.concatenate(found), model.predict_proba(X[:10]))
    assert most == 2
    assert len(waits.waits) == 8
    assert {source for source, _, _ in waits.waits} == {"bureau"}
    assert max(length for _, _, length in waits.waits) == 7


def test_nothing_waits_by_default(objects, model):
    """Two hundred clients, and each of them is being served."""
    now = most = 0

    async def bureau(customer):
        nonlocal now, most
        now += 1
        most = max(most, now)
        await all_here.wait()
        return customer["bureau"]

    sources = sources_with(bureau)
    served = OnDemandPredictor(model, sources)

    async def main():
        nonlocal all_here
        all_here = anyio.Event()
        async with anyio.create_task_group() as group:
            for i in range(200):
                group.start_soon(served.apredict, objects[i : i + 1])
            await anyio.wait_all_tasks_blocked()
            all_here.set()

    all_here = None
    anyio.run(main)
    assert most == 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"retries": -1}, "retries must be an integer of at least 0, got -1"),
        ({"limit": 0}, "limit must be an integer of at least 1, got 0"),
        ({"breaker": True}, "breaker must be an integer of at least 1, got True"),
        ({"timeout": -1.0}, "timeout must be positive and finite"),
        ({"cache": {}}, "cache and cache_key go together"),
        ({"cache_key": id}, "cache and cache_key go together"),
        ({"cache": 3, "cache_key": id}, "cache must be a mapping or have get and set, got int"),
    ],
)
def test_policies_that_cannot_be(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        SourcePolicy(**arguments)


def test_policies_of_nobody(model):
    sources = Service().sources
    with pytest.raises(ValueError, match="policies names 'shoe', which is not a source"):
        OnDemandPredictor(model, sources, policies={"shoe": SourcePolicy(retries=1)})
    with pytest.raises(TypeError, match="policy of 'age' must be a SourcePolicy, got 3"):
        OnDemandPredictor(model, sources, policies={"age": 3})
    with pytest.raises(ValueError, match="'age' has max_batch, but the source has not batch=True"):
        OnDemandPredictor(model, sources, policies={"age": SourcePolicy(max_batch=3)})
    cached = SourcePolicy(cache={}, cache_key=str)
    with pytest.raises(ValueError, match="'bureau' has a cache, but the source has batch=True"):
        OnDemandPredictor(model, batch_service([]), policies={"bureau": cached})


# Prefetch


def test_prefetch_by_expected_need(X, objects):
    by_row = replace(classifier(X, NAMES, max_iter=4, max_depth=2), charge="row")
    service = Service()
    lazy = OnDemandPredictor(by_row, service.sources, sample=X)
    _, receipts = lazy.predict(objects, return_receipts=True)
    for name, share in lazy.asked_shares.items():
        assert share == np.mean([name in receipt.fetched for receipt in receipts])
    shares = sorted(lazy.asked_shares.values())
    assert shares[0] < 1.0
    for share in (*shares, 1.0):
        likely = {name for name, s in lazy.asked_shares.items() if s >= share}
        eager = OnDemandPredictor(by_row, service.sources, sample=X, prefetch=share)
        found, ahead = eager.predict_proba(objects, return_receipts=True)
        assert np.array_equal(found, by_row.predict_proba(X))
        assert np.array_equal(ahead.costs, receipts.costs)
        for before, after in zip(receipts, ahead, strict=True):
            assert set(after.fetched) == likely | set(before.fetched)
            assert set(after.in_vain) == likely - set(before.fetched)


@quietly
def test_what_is_prefetched_may_fail(X, objects, model, others):
    """Only those fall back that need it."""
    by_row = replace(model, charge="row")
    served = OnDemandPredictor(
        by_row, Service(["bureau"]).sources, sample=X, prefetch=0.01, fallbacks=others
    )
    found, receipts = served.predict_proba(objects, return_receipts=True)
    for i, receipt in enumerate(receipts):
        needs_it = "bureau" in columns_asked(by_row, X.to_numpy()[i], 0)
        assert receipt.fallback == (1 if needs_it else None)
        chosen = others[1] if needs_it else by_row
        assert np.array_equal(found[i], chosen.predict_proba(X[i : i + 1])[0])


def test_prefetch_that_cannot_be(X, model):
    sources = Service().sources
    with pytest.raises(ValueError, match="prefetch needs sample=X"):
        OnDemandPredictor(model, sources, prefetch=0.5)
    for bad in (0, 1.5, True):
        with pytest.raises(ValueError, match="prefetch must be a share between 0 and 1"):
            OnDemandPredictor(model, sources, prefetch=bad, sample=X)
    with pytest.raises(ValueError, match="sample must have at least one row"):
        OnDemandPredictor(model, sources, prefetch=0.5, sample=X[:0])


# Observers


class Notes(Observer):
    def __init__(self):
        self.notes = []

    def source_called(self, source, n_objects):
        self.notes.append(("called", source, n_objects))

    def source_answered(self, source, n_objects, seconds):
        assert seconds >= 0
        self.notes.append(("answered", source, n_objects))

    def source_failed(self, source, n_objects, seconds, error, was_called):
        self.notes.append(("failed", source, str(error), was_called))

    def object_answered(self, answered):
        self.notes.append(("object", answered.model, answered.cost))

    def request_answered(self, n_objects, seconds):
        self.notes.append(("request", n_objects))


@quietly
@pytest.mark.parametrize("is_async", [False, True])
def test_observers_are_told(X, objects, model, others, is_async):
    notes = Notes()
    service = Service(["fraud"], is_async=is_async)
    served = OnDemandPredictor(model, service.sources, fallbacks=others, observers=[notes])
    _, receipts = served.predict(objects[:2], return_receipts=True)
    told = Counter(note[:2] for note in notes.notes)
    assert told == {
        **{("called", name): 2 for name in NAMES},
        **{("answered", name): 2 for name in NAMES if name != "fraud"},
        ("failed", "fraud"): 2,
        ("object", "fallback 0"): 2,
        ("request", 2): 1,
    }
    costs = [note[2] for note in notes.notes if note[0] == "object"]
    assert costs == receipts.costs.tolist()


def test_a_broken_observer_does_no_harm(X, objects, model, caplog):
    class Broken:
        def source_called(self, *arguments):
            raise RuntimeError("observer")

        def object_answered(self, *arguments):
            raise RuntimeError("observer")

    notes = Notes()
    served = OnDemandPredictor(model, Service().sources, observers=[Broken(), object(), notes])
    assert np.array_equal(served.predict_proba(objects[:9]), model.predict_proba(X[:9]))
    broken = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert len(broken) == 2
    assert ("called", "age", 1) in notes.notes
