"""A curve in words: its front, what each step adds, how certain scores are, which model to take."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score

pytest.importorskip("pandas")

from curves import searched_curve, thyroid_curve, wide_curve
from greedymiser import CostModel, MiserRanker, MiserRegressor, TradeoffCurve, tradeoff_curve
from greedymiser._core.amounts import money, plain_score_name, rounded_score
from greedymiser.curve.summary import (
    FrontStep,
    asked_more,
    front_steps,
    goes_by_choice,
    named_purchases,
    recommendation,
    recommended,
    resource_groups,
    step_table,
)
from greedymiser.plotting import plot_curve


def step(cost, score, error=None):
    return FrontStep(0, 1, cost, score, error, None, 1, 1)


def regression_curve(n_val=200, **options):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400 + n_val, 3))
    y = X @ [3.0, 1.0, 0.2] + rng.standard_normal(len(X))
    model = MiserRegressor(costs=[1.0, 2.0, 4.0], max_iter=15, n_jobs=1)
    given = {"tradeoffs": [0.0, 0.05, 0.5], "scoring": "r2", **options}
    return tradeoff_curve(model, X[:400], y[:400], X_val=X[400:], y_val=y[400:], **given)


def test_steps_rise_and_are_what_a_budget_buys():
    curve = searched_curve()
    steps = front_steps(curve)
    assert [s.cost for s in steps] == sorted(s.cost for s in steps)
    assert [s.score for s in steps] == sorted(s.score for s in steps)
    for s in steps:
        assert curve.best_row(s.cost)["score"] == s.score
        model = curve.models[s.position].truncate(s.n_iter)
        assert sorted(s.resources) == sorted(model.resources_used_)


def test_what_is_added_and_dropped_leads_from_step_to_step():
    owned: set[str] = set()
    for s in front_steps(thyroid_curve()):
        assert not set(s.adds) & owned
        assert set(s.drops) <= owned
        owned = set(s.resources)


def test_of_many_steps_a_dozen_remain_with_both_ends():
    curve = wide_curve(n_tradeoffs=30)
    every = front_steps(curve, most=None)
    few = front_steps(curve, most=6)
    assert len(every) > 12 == len(front_steps(curve))
    assert len(few) == 6
    assert (few[0].cost, few[-1].cost) == (every[0].cost, every[-1].cost)
    assert {s.cost for s in few} < {s.cost for s in every}


def test_shared_things_are_called_by_what_most_of_the_price_is():
    needs = {"score": ["report"], "history": ["report", "history"], "age": ["age"]}
    costs = CostModel.from_resources({"report": 2.0, "history": 0.1, "age": 1.0}, needs)
    assert named_purchases(costs, ["report", "history", "age"]) == ("report", "age")
    costs = CostModel.from_resources({"report": 0.1, "history": 2.0, "age": 1.0}, needs)
    assert named_purchases(costs, ["report", "history", "age"]) == ("history", "age")


def test_groups_hold_every_resource_once():
    curve = thyroid_curve()
    costs = curve.models[0].costs_
    groups = resource_groups(costs, costs.resource_names)
    names = [line.name for group in groups for line in group.lines]
    assert sorted(names) == sorted(costs.resource_names)
    draw = groups[0]
    assert draw.lines[0].name == "blood_draw"
    assert all(line.is_part for line in draw.lines[1:])


def test_the_cheapest_within_a_standard_error_is_recommended():
    steps = [step(0, 0.5), step(1, 0.7), step(2, 0.78), step(5, 0.8, 0.03)]
    assert recommended(steps) == 2
    assert recommended([*steps[:3], step(5, 0.8, 0.001)]) == 3
    # Without an error: 99% of what can be gained.
    assert recommended([step(0, 0.5), step(1, 0.7), step(2, 0.798), step(5, 0.8)]) == 2


def test_recommendations_are_sentences():
    curve = thyroid_curve()
    steps = [step(0, 0.5), step(2.3, 0.792), step(3, 0.8)]
    assert recommendation(curve, steps[:1]) == "the best score costs $0"
    steps[-1] = step(3, 0.8, 0.02)
    assert recommendation(curve, steps) == "$2.30 buys 99% of the best score, which costs $3"
    negative = [step(0, -1.0), step(1, -0.102), step(4, -0.1)]
    assert recommendation(curve, negative) == (
        "$1 buys 99.7% of the gain of the best score, which costs $4"
    )


def test_errors_are_those_of_the_jackknife():
    """For a mean, leaving groups out gives the standard error that everybody knows."""
    curve = regression_curve(scoring="neg_mean_squared_error", n_val=2000)
    last = front_steps(curve)[-1]
    assert last.error is not None
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2400, 3))
    y = X @ [3.0, 1.0, 0.2] + rng.standard_normal(len(X))
    model = curve.models[last.position].truncate(last.n_iter)
    errors = (model.predict(X[400:]) - y[400:]) ** 2
    assert np.isclose(-errors.mean(), last.score)
    # Twenty groups know it to within a sixth or so; they are dealt by target, which helps.
    assert 0.4 < last.error / (errors.std() / np.sqrt(2000)) < 1.5


def test_errors_of_classes_queries_and_losses_are_known():
    assert all(s.error is not None for s in front_steps(regression_curve(scoring=None)))
    rng = np.random.default_rng(0)
    X = rng.standard_normal((600, 2))
    y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 1)
    qid = np.repeat(np.arange(60), 10)
    ranker = MiserRanker(costs=[1.0, 2.0], max_iter=5, n_jobs=1)
    for scoring in (None, "ndcg@5"):
        curve = tradeoff_curve(
            ranker, X, y, qid=qid, X_val=X, y_val=y, qid_val=qid, tradeoffs=[0.0], scoring=scoring
        )
        assert front_steps(curve)[-1].error is not None


def test_where_errors_cannot_be_known_there_are_none():
    few = regression_curve(n_val=20)
    assert {s.error for s in front_steps(few)} == {None}

    def own(model, X, y):
        return -float(np.mean(np.abs(model.predict(X) - y)))

    assert {s.error for s in front_steps(regression_curve(scoring=own))} == {None}


def test_errors_outlive_the_rows():
    curve = regression_curve()
    there = pickle.loads(pickle.dumps(curve))
    assert [s.error for s in front_steps(there)] == [s.error for s in front_steps(curve)]


def test_balanced_accuracy_has_an_error_where_classes_are_few():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 2))
    y = (X[:, 0] > 1.5).astype(int)
    from greedymiser import MiserClassifier

    model = MiserClassifier(costs=[1.0, 2.0], max_iter=5, n_jobs=1)
    curve = tradeoff_curve(
        model, X, y, X_val=X, y_val=y, tradeoffs=[0.0], scoring="balanced_accuracy"
    )
    last = front_steps(curve)[-1]
    predicted = curve.models[last.position].truncate(last.n_iter).predict(X)
    assert last.score == pytest.approx(balanced_accuracy_score(y, predicted))
    assert last.error is not None


def test_numbers_are_said_as_people_say_them():
    assert money(2.3, "euros") == "€2.30"
    assert money(0.004, "dollars") == "$0.004"
    assert money(1234.5, "") == "1,234"
    assert rounded_score(0.86213, 0.013) == "0.86"
    assert plain_score_name("a name of my own_making") == "a name of my own_making"


def unknown(model, X, y):
    return np.nan


def test_a_curve_without_any_score_is_printed_and_pickled():
    curve = regression_curve(scoring=unknown)
    assert front_steps(curve) == []
    assert recommendation(curve) == "no model has a score"
    assert "cost" in str(curve)
    assert "no model has a score" in curve._repr_html_()
    assert len(pickle.loads(pickle.dumps(curve)).models) == 3
    with pytest.raises(ValueError, match="no model of the curve has a score"):
        curve.plot()


def test_what_is_recommended_goes_by_what_is_chosen_by():
    given = [(0, 0.5, 0.5), (1, 0.9, 0.7), (2, 0.7, 0.78), (5, 0.75, 0.8)]
    steps = [replace(step(cost, score), choice_score=choice) for cost, score, choice in given]
    assert recommended(steps) == 3
    steps[-1] = replace(steps[-1], error=0.03)
    assert recommended(steps) == 2
    assert recommendation(thyroid_curve(), steps) == (
        "$2 buys 97% of the best score, which costs $5"
    )
    nowhere = [step(0, -np.inf), step(1, -1.0), step(4, -0.9, 0.2)]
    assert recommendation(thyroid_curve(), nowhere) == (
        "$1 buys nearly the best score, which costs $4"
    )


def test_tables_show_what_models_are_chosen_by():
    curve = searched_curve()
    heads, _ = step_table(curve, front_steps(curve))
    assert "chosen by" not in heads
    # By their cost, say: then scores need not rise.
    traces = curve.traces.assign(choice_score=curve.traces["cost"])
    heads, rows = step_table(
        other := TradeoffCurve(traces, curve.models, curve.scoring), front_steps(other)
    )
    at = heads.index("chosen by")
    assert [row[at] for row in rows] == [rounded_score(step.cost) for step in front_steps(other)]


def test_of_totals_one_model_is_recommended_everywhere():
    """The chosen model has neither the least total of these rows, nor is it the cheapest close one.

    Cross-fitting has a say: the second is best by ``choice_score``, the third by ``score``.
    """
    import pandas as pd

    traces = pd.DataFrame(
        {
            "tradeoff": 0.0, "model": [0, 1, 2], "n_iter": [0, 3, 5], "n_trees": [0, 3, 5],
            "cost": [0.0, 2.0, 4.0], "errors": [9.2, 4.7, 2.6], "score": [-9.2, -6.7, -6.6],
            "choice_score": [-9.2, -6.5, -6.8], "n_features": [0, 1, 2],
        }
    )  # fmt: skip
    curve = TradeoffCurve(traces, [], "total_cost", "dollars")
    best = curve.best_row()
    assert best["n_iter"] == 3
    steps = front_steps(curve)
    assert [step.n_iter for step in steps] == [0, 3]
    assert recommended(steps) == 1
    assert steps[1].errors == pytest.approx(4.7)
    heads, rows = step_table(curve, steps)
    assert heads == ["bill", "errors", "together", "what it adds"]
    assert rows[1][:3] == ["$2", "$4.70", "$6.70"]
    assert "<- recommended" in rows[1][-1]
    assert recommendation(curve) == (
        "$6.70 a row in all, $2 for features and $4.70 for errors; buying nothing costs $9.20; the "
        "model with the largest bill costs $6.60"
    )
    bars = plot_curve(curve).containers
    assert [len(some) for some in bars] == [3, 3, 1]
    assert bars[2][0].get_height() == pytest.approx(6.7)
    assert bars[2][0].get_x() == bars[0][1].get_x()


def test_a_step_that_asks_more_rows_says_of_how_many():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (600, 2))
    y = np.where(X[:, 0] > 7, X[:, 1], 0.0) + np.where(X[:, 0] > 4, 0.3 * X[:, 1], 0.0)
    models = [
        MiserRegressor(costs=[1.0, 9.0], charge="row", max_depth=2, max_iter=n).fit(X, y)
        for n in (1, 20)
    ]
    shares = [model.protocol(X).table.set_index("resource")["share"]["1"] for model in models]
    assert 0 < shares[0] < shares[1]
    said = asked_more(*(model.protocol(X) for model in models))
    assert said == f"1: {100 * shares[0]:.0f}% \N{RIGHTWARDS ARROW} {100 * shares[1]:.0f}% of rows"
    assert asked_more(models[0].protocol(X), models[0].protocol(X)) == ""
    assert asked_more(None, models[0].protocol(X)) == ""


def test_what_models_are_chosen_by_is_told_where_scores_do_not_explain_it():
    def steps(*given):
        return [replace(step(cost, score), choice_score=by) for cost, score, by in given]

    assert not goes_by_choice(steps((0.0, 0.5, None), (1.0, 0.9, None), (2.0, 0.9, None)))
    assert not goes_by_choice(steps((0.0, 0.5, 0.5), (1.0, 0.9, 0.9), (2.0, 0.901, 0.901)))
    # The second looks as good as the third, and is not.
    assert goes_by_choice(steps((0.0, 0.5, 0.5), (1.0, 0.9, 0.8), (2.0, 0.901, 0.901)))
    assert goes_by_choice(steps((0.0, 0.5, 0.5), (1.0, 0.9, 0.8), (2.0, 0.8, 0.901)))
