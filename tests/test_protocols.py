"""What is asked of which rows, counted and told."""

import math
from collections import Counter
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

import naive
from experiments.cronus import Cronus
from greedymiser import (
    CostModel,
    EarlyExitClassifier,
    MiserClassifier,
    MiserRegressor,
    Predictor,
    Protocol,
    ProtocolDisplay,
)
from greedymiser.losses import SquaredError
from greedymiser.model.predictor import Stage
from random_examples import examples
from test_row_costs import random_costs, staged_model
from test_trees import ensemble_of, plain_trees, random_rows, random_tree


def plain_questions(predictor, row, left):
    """What a row is asked for, in order: the resources that are new with each question."""
    owned, asked = set(), []
    for stage in predictor.stages[: left + 1]:
        k = stage.ensemble.n_outputs
        for tree in plain_trees(stage.ensemble)[stage.first * k : stage.last * k]:
            for feature in naive.features_asked(*tree, row):
                new = tuple(r for r in predictor.costs.needs[feature] if r not in owned)
                owned.update(new)
                if new:
                    asked.append(tuple(predictor.costs.resource_names[r] for r in new))
    return asked


def check_protocol(protocol, predictor, X, left):
    """Compare with counts of single rows."""
    asked = [plain_questions(predictor, row, k) for row, k in zip(X, left, strict=True)]
    prefixes = Counter(tuple(each[:q]) for each in asked for q in range(len(each) + 1))
    ends = Counter(tuple(each) for each in asked)

    def visit(step, prefix):
        assert step.n_rows == prefixes[prefix]
        assert step.n_done == ends[prefix]
        assert step.n_rows == step.n_done + step.n_rare + sum(s.n_rows for s in step.steps)
        assert sum(reason.n_rows for reason in step.reasons) == (step.n_rows if prefix else 0)
        seen.add(prefix)
        for child in step.steps:
            visit(child, (*prefix, child.resources))

    seen = set()
    visit(protocol.start, ())
    common = {p for p, n in prefixes.items() if n >= protocol.min_share * len(X)}
    assert seen == common | {()}
    places = {}
    for each in asked:
        for q, new in enumerate(each, start=1):
            for resource in new:
                places.setdefault(resource, []).append(q)
    for line in protocol.lines:
        found = places.get(line.resource, [])
        assert line.share == len(found) / len(X)
        assert line.mean_cost == line.price * line.share
        if found:
            assert line.order == pytest.approx(np.mean(found))
    bills = predictor.prediction_costs(X)
    assert protocol.mean_cost == pytest.approx(bills.mean())
    assert protocol.max_cost == bills.max()
    parts = math.fsum(line.mean_cost for line in protocol.lines) + protocol.tree_cost
    assert parts == pytest.approx(protocol.mean_cost)


def random_predictor(rng, n_resources):
    ensemble = ensemble_of([random_tree(rng, 6, 3, (3,)) for _ in range(4)], [0.0], 6)
    return Predictor(
        kind="regressor",
        stages=(Stage(ensemble, 0, 4, 4),),
        rule=None,
        costs=random_costs(rng, 6, n_resources, 0.25),
        loss=SquaredError(),
        n_features=6,
        categories={3: np.arange(256)},
        charge="row",
    )


@examples(25)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_resources=st.sampled_from([0, 1, 4, 70]),
    min_share=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_rows_are_counted_one_by_one(seed, n_resources, min_share):
    rng = np.random.default_rng(seed)
    predictor = random_predictor(rng, n_resources)
    X = random_rows(rng, 40, 6, (3,))
    protocol = predictor.protocol(X, min_share=min_share)
    check_protocol(protocol, predictor, X, np.zeros(40, dtype=int))
    assert str(protocol).startswith("40 rows at a mean cost of ")
    # In a notebook, a row for each question below the head.
    page = protocol._repr_html_()
    assert page.count("<tr>") == 1 + sum(1 for depth, _ in protocol.start.each() if depth)
    assert "40 rows at a mean cost of " in page


def check_paid(protocol, predictor, X):
    """Compare what costs something with the questions of single rows, the free ones left out."""
    prices = dict(
        zip(predictor.costs.resource_names, predictor.costs.resource_costs.tolist(), strict=True)
    )
    asked = [
        [
            paid
            for new in plain_questions(predictor, row, 0)
            if (paid := tuple(name for name in new if prices[name] > 0))
        ]
        for row in X
    ]
    prefixes = Counter(tuple(each[:q]) for each in asked for q in range(len(each) + 1))
    ends = Counter(tuple(each) for each in asked)
    seen = set()

    def visit(step, prefix):
        assert prefix not in seen
        seen.add(prefix)
        assert (step.n_rows, step.n_done) == (prefixes[prefix], ends[prefix])
        assert sum(reason.n_rows for reason in step.reasons) == (step.n_rows if prefix else 0)
        assert step.price == pytest.approx(sum(map(prices.get, step.resources)))
        sizes = [child.n_rows for child in step.steps]
        assert sizes == sorted(sizes, reverse=True)
        for child in step.steps:
            visit(child, (*prefix, child.resources))

    visit(protocol.start, ())
    assert seen == set(prefixes)
    assert all(line.price > 0 for line in protocol.lines)


@examples(40)
@given(seed=st.integers(0, 2**32 - 1), n_resources=st.sampled_from([0, 1, 4, 9]))
def test_free_questions_are_passed_over(seed, n_resources):
    rng = np.random.default_rng(seed)
    predictor = random_predictor(rng, n_resources)
    X = random_rows(rng, 40, 6, (3,))
    protocol = predictor.protocol(X, min_share=0.0)
    paid = protocol.without_free()
    check_paid(paid, predictor, X)
    assert (paid.mean_cost, paid.max_cost) == (protocol.mean_cost, protocol.max_cost)
    assert paid.without_free() == paid


def test_where_all_is_free_nothing_that_costs_is_asked(patients):
    X, y = rows_of_patients(400)
    model = MiserClassifier(costs=[0.0] * 3, charge="row", max_iter=3).fit(X, y)
    protocol = model.protocol(X)
    assert "TSH (0)" in str(protocol)
    paid = protocol.without_free()
    assert str(paid).splitlines()[1:] == ["  100% are asked for nothing that costs"]
    said = "no row is asked for anything that costs"
    assert any(text.get_text() == said for text in paid.plot().texts)


@pytest.mark.parametrize("kind", [EarlyExitClassifier, Cronus])
def test_models_in_stages(kind):
    from test_row_costs import training_rows

    model = staged_model(kind)
    X, _ = training_rows(200)
    predictor = model.predictor_
    protocol = model.protocol(X, min_share=0.0)
    check_protocol(protocol, predictor, X, predictor.leaving_stages(X))
    assert protocol.max_cost <= model.cost_max_ == predictor.cost_max_


def rows_of_patients(n=2000):
    """TSH decides; for the tenth that is high, FTI does."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"TSH": rng.uniform(0, 10, n), "FTI": rng.uniform(0, 1, n), "age": 0.0})
    ill = (X["TSH"] > 9) & (X["FTI"] < 0.5)
    return X, np.where(ill, "ill", "well")


@pytest.fixture(scope="module")
def patients():
    X, y = rows_of_patients()
    costs = CostModel({"TSH": 20.0, "FTI": 10.0, "age": 1.0}, groups={"draw": ["TSH", "FTI"]},
                      group_costs={"draw": 2.5})  # fmt: skip
    model = MiserClassifier(costs=costs, max_depth=2, max_iter=5, charge="row", tradeoff=1e-5)
    return model.fit(X, y), X


def test_a_protocol_reads_like_one(patients):
    model, X = patients
    protocol = model.protocol(X)
    high = (X["TSH"] > 9).mean()
    assert protocol.mean_cost == pytest.approx(22.5 + 10.0 * high, rel=0.01)
    first, second = str(protocol).splitlines()[1:3]
    share = f"{100 * protocol.lines[-1].share:.3g}%"
    rest = f"{100 * (1 - protocol.lines[-1].share):.3g}%"
    assert first == f"  first, of all: TSH with draw (22.5); {rest} end here"
    assert second.startswith(f"    then, of the {share} with TSH > 8.9") or second.startswith(
        f"    then, of the {share} with TSH > 9"
    )
    assert second.endswith(": FTI (10)")
    table = protocol.table
    assert table["resource"].tolist() == ["TSH", "draw", "FTI"]
    assert table["order"].tolist() == [1.0, 1.0, 2.0]
    assert repr(protocol) == (
        f"<Protocol of 2000 rows: 3 resources, mean cost {protocol.mean_cost:.4g}>"
    )
    assert isinstance(protocol, Protocol)


def test_what_is_rare_is_left_out_and_said(patients):
    model, X = patients
    protocol = model.protocol(X, min_share=0.5)
    text = str(protocol)
    assert "FTI" not in text
    share = f"{100 * protocol.lines[-1].share:.3g}%"
    assert text.endswith(
        f"left out: rarer questions, each to less than 50% of the rows, to {share} of them in all"
    )


def test_missing_values_are_told_where_rows_have_some():
    rng = np.random.default_rng(0)
    c, d = rng.choice(["a", "b", None], 600), rng.standard_normal(600)
    X = pd.DataFrame({"c": pd.Categorical(c), "d": d})
    kind = {"costs": [1.0, 5.0], "charge": "row", "max_depth": 2, "max_iter": 2, "tradeoff": 1e-4}
    model = MiserRegressor(**kind).fit(X, np.where(X["c"] == "b", 10.0, d))
    for rows, condition in [(X, "c = a (or missing)"), (X[X["c"] == "a"], "c = a")]:
        assert f" with {condition}: d (5)" in str(model.protocol(rows))


def test_questions_that_are_not_followed_are_said(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 4))
    model = MiserRegressor(charge="row", max_depth=1, max_iter=30).fit(X, X @ [4.0, 3.0, 2.0, 1.0])
    assert model.protocol(X).mean_cost > 2.0
    monkeypatch.setattr("greedymiser.model.protocols.MOST_QUESTIONS", 2)
    protocol = model.protocol(X)
    *_, (depth, last) = protocol.start.each()
    assert (depth, last.n_rows, last.n_done, last.n_far) == (2, 500, 0, 500)
    note = "  left out: all questions after the first 2, to 100% of the rows"
    assert str(protocol).endswith(note)
    assert any("left out: those after the first" in text for text in words(protocol.plot()))


def test_constants_ask_for_nothing():
    X, y = rows_of_patients(200)
    model = MiserRegressor(charge="row", max_iter=3).fit(X, np.zeros(len(y)))
    protocol = model.protocol(X)
    assert str(protocol) == "200 rows at a mean cost of 0, at most 0\n  100% are asked for nothing"
    assert len(protocol.table) == 0
    assert any(t.get_text() == "no row is asked for anything" for t in protocol.plot().texts)


def test_bad_input(patients):
    model, X = patients
    with pytest.raises(ValueError, match=r"min_share must lie between 0 and 1, got 1\.5"):
        model.protocol(X, min_share=1.5)
    with pytest.raises(ValueError, match="at least one row"):
        model.protocol(X[:0])
    flat = replace(model.predictor_, charge="model")
    with pytest.raises(ValueError, match="a protocol is for models with charge='row'"):
        flat.protocol(X)
    with pytest.raises(ValueError, match="column 'FTI'"):
        model.predictor_.protocol(X[["TSH", "age"]])


# -- pictures -------------------------------------------------------------------------------------


def words(ax):
    return [text.get_text() for text in ax.texts]


def test_the_picture_tells_the_protocol(patients):
    model, X = patients
    open_before = plt.get_fignums()
    ax = model.protocol(X).plot()
    said = words(ax)
    assert "TSH with draw  (22.5)" in said
    assert "FTI  (10)" in said
    assert any(text.startswith("with TSH > ") for text in said)
    assert ax.get_title(loc="left").startswith("2000 rows: mean cost 23.")
    assert plt.get_fignums() == open_before  # what is only written to a file stays open nowhere


def test_displays_are_as_scikit_learn_has_them(patients):
    model, X = patients
    drawn = model.protocol(X).plot()
    try:
        display = ProtocolDisplay.from_estimator(model, X)
        assert display.figure_ is display.ax_.figure is plt.gcf()
        assert words(display.ax_) == words(drawn)
        size = drawn.figure.get_size_inches()
        np.testing.assert_allclose(display.figure_.get_size_inches(), size)
        figure, ax = plt.subplots()
        again = display.plot(ax)
        assert again is display
        assert (again.ax_, again.figure_) == (ax, figure)
        with_few = ProtocolDisplay.from_estimator(model, X, min_share=0.9)
        assert "FTI  (10)" not in words(with_few.ax_)
    finally:
        plt.close("all")


def test_small_axes_hold_what_fits(patients):
    model, X = patients
    ax = Figure(figsize=(3.0, 1.3)).add_subplot()
    model.protocol(X).plot(ax)
    said = words(ax)
    assert "left out: 1 question" in said
    assert not any(text.startswith("FTI") for text in said)


def test_bars_are_as_long_as_shares(patients):
    model, X = patients
    protocol = model.protocol(X)
    bars = [bar for group in protocol.plot().containers for bar in group]
    asked = protocol.lines[-1].share
    lengths = np.array([bar.get_width() for bar in bars])
    np.testing.assert_allclose(lengths / lengths[0], [1.0, 1.0 - asked, asked, asked])
