"""What errors cost: read, decided by, scored by."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier

from greedymiser import (
    EarlyExitClassifier,
    MiserClassifier,
    MiserRegressor,
    MiserSearchCV,
    TotalCost,
    baseline,
    load,
    save,
    to_lightgbm,
    to_xgboost,
    total_cost,
    tradeoff_curve,
)
from greedymiser.costs.errors import as_error_costs

ERRORS = {"ill": {"well": 50.0}, "well": {"ill": 10.0}}
WITH_REFERRAL = {"ill": {"well": 50.0, "refer": 4.0}, "well": {"ill": 10.0, "refer": 4.0}}


@pytest.fixture(scope="module")
def patients():
    """Two columns that tell something, one that tells nothing; the second costs much."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(800, 3))
    y = np.where(X[:, 0] + X[:, 1] + rng.normal(size=800) > 1.2, "ill", "well")
    return X, y


# -- reading --------------------------------------------------------------------------------------


def test_a_matrix_a_frame_and_a_mapping_say_the_same():
    classes = ["ill", "well"]
    frame = pd.DataFrame([[10.0, 0.0], [0.0, 50.0]], index=["well", "ill"], columns=classes)
    for said in ([[0, 50], [10, 0]], frame, ERRORS):
        errors = as_error_costs(said, classes)
        assert errors.matrix.tolist() == [[0, 50], [10, 0]]
        assert errors.said.tolist() == classes


def test_an_answer_may_be_no_class_and_a_cost_may_be_a_gain():
    errors = as_error_costs({1: {0: 5, "refer": 1}, 0: {0: -3, "refer": 1}}, [0, 1])
    assert errors.said.tolist() == [0, 1, "refer"]
    assert errors.matrix.tolist() == [[-3, 0, 1], [5, 0, 1]]
    assert errors.worst == 5
    assert as_error_costs(errors, [0, 1]).matrix.tolist() == errors.matrix.tolist()


def test_a_frame_may_leave_out_a_class_that_is_never_to_be_said():
    frame = pd.DataFrame({"b": [1.0, 0.0], "ask": [0.5, 0.5]}, index=["a", "b"])
    errors = as_error_costs(frame, ["a", "b"])
    assert errors.said.tolist() == ["b", "ask"]
    assert errors.answers(np.array([[0.9, 0.1], [0.1, 0.9]])).tolist() == ["ask", "b"]


@pytest.mark.parametrize(
    ("given_costs", "kind", "words"),
    [
        ([[0, 1, 2], [1, 0, 2]], ValueError, r"shape \(2, 2\) for the classes \['a', 'b'\]"),
        ([[0, 1], [2, 2]], ValueError, "of class 'b' are 2 whatever is said"),
        ([[0, np.nan], [1, 0]], ValueError, "of class 'a' when 'b' is said is nan"),
        ([[0, 1], [-np.inf, 0]], ValueError, "of class 'b' when 'a' is said is -inf"),
        ({"a": {"b": 1}, "c": {"a": 1}}, ValueError, "a row for 'c', which is no class of y"),
        ({"a": {"b": 1}}, ValueError, "no row for the class 'b'"),
        ({"a": {"b": 1}, "b": {}}, ValueError, "of class 'b' are 0 whatever is said"),
        ({}, ValueError, r"a row .* for each of the classes \['a', 'b'\], got {}"),
        ({"a": {"b": "much"}, "b": {"a": 1}}, TypeError, r"\['a'\]\['b'\] must be a number"),
        ({"a": 3.0, "b": {"a": 1}}, TypeError, r"\['a'\] must map what is said"),
        ("expensive", TypeError, "a matrix, a data frame or"),
        (pd.DataFrame({"a": [0, 1]}, index=["a", "x"]), ValueError, "'x', which is no class"),
        (pd.DataFrame({"a": [1.0], "b": [0]}, index=["a"]), ValueError, "no row for the class 'b'"),
        (pd.DataFrame(np.eye(2), ["a", "b"], ["a", "a"]), ValueError, "columns .* 'a' twice"),
    ],
)
def test_what_is_wrong_is_named(given_costs, kind, words):
    with pytest.raises(kind, match=words):
        as_error_costs(given_costs, ["a", "b"])


def test_a_misspelt_answer_is_no_new_answer():
    classes = ["ill", "well"]
    words = "saying 'wel', which is no class of y, but none .* 'well'; did you mean 'well'"
    with pytest.raises(ValueError, match=words):
        as_error_costs({"ill": {"wel": 50}, "well": {"ill": 10}}, classes)
    with pytest.raises(ValueError, match=r"'wel', which is no class .* did you mean 'well'"):
        as_error_costs({"ill": {"well": 50}, "wel": {"ill": 10}}, classes)


@given(st.integers(2, 5), st.integers(0, 2), st.integers(0, 2**32 - 1))
def test_answers_are_those_of_a_loop_over_rows(n_classes, more, seed):
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(n_classes, n_classes + more))
    labels = [*range(n_classes), *(f"other {i}" for i in range(more))]
    frame = pd.DataFrame(matrix, index=range(n_classes), columns=labels)
    probabilities = rng.dirichlet(np.ones(n_classes), size=7)
    errors = as_error_costs(frame, list(range(n_classes)))
    for row, answer in zip(probabilities, errors.answers(probabilities).tolist(), strict=True):
        expected = [sum(p * m for p, m in zip(row, column, strict=True)) for column in matrix.T]
        assert answer == labels[int(np.argmin(expected))]


# -- deciding -------------------------------------------------------------------------------------


def test_predict_is_the_answer_of_the_least_expected_cost(patients):
    X, y = patients
    plain = MiserClassifier(max_iter=30).fit(X, y)
    careful = clone(plain).set_params(error_costs=ERRORS).fit(X, y)
    p = plain.predict_proba(X)
    assert (careful.predict_proba(X) == p).all()
    assert np.allclose(careful.expected_costs(X), p @ [[0, 50], [10, 0]])
    # Ill from a probability of 10 / 60 on.
    assert (careful.predict(X) == np.where(p[:, 0] >= 1 / 6, "ill", "well")).all()
    assert not hasattr(plain, "expected_costs")


def test_a_referral_is_an_answer_of_its_own(patients):
    X, y = patients
    model = MiserClassifier(max_iter=30, error_costs=WITH_REFERRAL).fit(X, y)
    assert model.classes_.tolist() == ["ill", "well"]
    assert model.said_.tolist() == ["ill", "well", "refer"]
    assert set(model.predict(X)) == {"ill", "well", "refer"}
    assert (
        total_cost(model, X, y).errors
        < total_cost(
            model,
            X,
            y,
            error_costs=ERRORS | {kind: costs | {"refer": 40.0} for kind, costs in ERRORS.items()},
        ).errors
    )


def test_what_wraps_a_model_decides_as_it_does(patients, tmp_path):
    X, y = patients
    model = MiserClassifier(max_iter=30, error_costs=ERRORS).fit(X, y)
    exits = EarlyExitClassifier(model, threshold=1.0).fit(X, y)
    assert (exits.predict(X) == model.predict(X)).all()
    assert np.allclose(exits.expected_costs(X), model.expected_costs(X))
    again = pickle.loads(pickle.dumps(model))
    assert (again.predict(X) == model.predict(X)).all()


def test_a_baseline_takes_error_costs_too(patients):
    X, y = patients
    forest = HistGradientBoostingClassifier(max_iter=10).fit(X, y)
    metered = clone(baseline(forest, [1, 2, 3], error_costs=ERRORS)).fit()
    ill = forest.predict_proba(X)[:, 0] >= 1 / 6
    assert (metered.predict(X) == np.where(ill, "ill", "well")).all()


def test_error_costs_are_for_classifiers_with_probabilities(patients):
    X, y = patients
    from sklearn.ensemble import HistGradientBoostingRegressor

    number = HistGradientBoostingRegressor(max_iter=2).fit(X, X[:, 0])
    with pytest.raises(ValueError, match="error_costs are for classifiers"):
        baseline(number, error_costs=ERRORS)
    with pytest.raises(ValueError, match="needs a classifier with error_costs"):
        MiserRegressor(scoring="total_cost").fit(X, X[:, 0])
    with pytest.raises(ValueError, match="needs a classifier with error_costs"):
        MiserClassifier(scoring="total_cost").fit(X, y)


def test_a_continued_model_may_decide_anew(patients):
    X, y = patients
    model = MiserClassifier(max_iter=5, warm_start=True).fit(X, y)
    model.set_params(error_costs=ERRORS, max_iter=10).fit(X, y)
    assert (model.predict(X) == "ill").sum() > (model.predict_proba(X)[:, 0] > 0.5).sum()


# -- scoring --------------------------------------------------------------------------------------


@pytest.mark.parametrize("charge", ["model", "row"])
def test_the_score_is_minus_bills_and_errors(patients, charge):
    X, y = patients
    model = MiserClassifier(
        costs=[0.5, 2.0, 1.0], tradeoff=0.01, max_iter=8, charge=charge, error_costs=ERRORS,
        scoring="total_cost", early_stopping=False,
    )  # fmt: skip
    model.fit(X[:500], y[:500], X_val=X[500:], y_val=y[500:])
    cost = total_cost(model, X[500:], y[500:])
    assert model.validation_score_[model.n_iter_] == pytest.approx(-cost.total)
    constant = total_cost(model.truncate(0), X[500:], y[500:])
    assert model.validation_score_[0] == pytest.approx(-constant.total)
    assert constant.bill == 0


def test_total_cost_by_hand():
    X, y = np.arange(40.0)[:, None], np.repeat([0, 1], 20)
    model = MiserClassifier(costs=[3.0], error_costs=[[0, 7], [1, 0]], min_samples_leaf=5)
    model.fit(X, y)
    assert total_cost(model, X, y) == TotalCost(3.0, 0.0)
    wrong = total_cost(model, X[:4], [1, 1, 0, 0])
    assert wrong == TotalCost(3.0, 0.5)
    assert str(wrong) == "asks for 3, errs for 0.5, together 3.5 a row"
    assert total_cost(model, X[:2], [1, 0], sample_weight=[3, 1]).errors == 0.75
    with pytest.raises(ValueError, match="y has 5"):
        total_cost(model, X[:1], [5])
    with pytest.raises(ValueError, match="must be given"):
        total_cost(MiserClassifier().fit(X, y), X, y)


@pytest.mark.parametrize("charge", ["model", "row"])
@pytest.mark.slow
def test_the_best_of_a_curve_costs_least_in_all(patients, charge):
    X, y = patients
    model = MiserClassifier(costs=[0.2, 3.0, 1.0], max_iter=10, charge=charge, error_costs=ERRORS)
    curve = tradeoff_curve(
        model, X[:400], y[:400], X_val=X[400:600], y_val=y[400:600], X_test=X[600:],
        y_test=y[600:], tradeoffs=4, scoring="total_cost",
    )  # fmt: skip
    best = curve.best()
    cost = total_cost(best, X[400:600], y[400:600])
    assert -curve.traces["score"].max() == pytest.approx(cost.total)
    row = curve.best_row()
    if "test_score" in row:
        assert row["test_score"] == pytest.approx(-total_cost(best, X[600:], y[600:]).total)


def test_a_search_scores_by_its_scoring(patients):
    X, y = patients
    model = MiserClassifier(costs=[0.2, 3.0, 1.0], max_iter=5, error_costs=ERRORS)
    search = MiserSearchCV(model, tradeoffs=[0.01], cv=2, scoring="total_cost").fit(X, y)
    assert search.score(X, y) == -total_cost(search, X, y).total
    weight = np.where(y == "ill", 3.0, 1.0)
    assert search.score(X, y, weight) == -total_cost(search, X, y, sample_weight=weight).total
    search.set_params(scoring="balanced_accuracy")
    right = [np.mean(search.predict(X)[y == kind] == kind) for kind in ("ill", "well")]
    assert search.score(X, y) == pytest.approx(np.mean(right))
    search.set_params(scoring=None)
    assert search.score(X, y) == np.mean(search.predict(X) == y)


def test_early_exits_are_chosen_by_the_total(patients):
    X, y = patients
    model = MiserClassifier(costs=[0.2, 6.0, 6.0], max_iter=30, tradeoff=0.01, error_costs=ERRORS)
    model.fit(X[:400], y[:400])
    exits = EarlyExitClassifier(model, every=2, scoring="total_cost").fit(X[400:], y[400:])
    totals = {
        threshold: total_cost(
            EarlyExitClassifier(model, every=2, threshold=threshold).fit(X, y), X[400:], y[400:]
        ).total
        for threshold in (0.0, 0.7, 0.9, 1.0)
    }
    found = total_cost(exits, X[400:], y[400:]).total
    assert found <= min(totals.values())
    assert found < totals[1.0]
    curve = exits.curve(X[400:], y[400:], thresholds=[0.7])
    assert curve["score"].tolist() == pytest.approx([-totals[0.7]])
    plain = MiserClassifier(max_iter=2).fit(X, y)
    with pytest.raises(ValueError, match="error_costs must be given"):
        EarlyExitClassifier(plain, scoring="total_cost").fit(X, y)


@pytest.mark.parametrize("errors", [ERRORS, WITH_REFERRAL])
def test_a_saved_model_decides_as_before(patients, tmp_path, errors):
    X, y = patients
    model = MiserClassifier(max_iter=5, error_costs=errors).fit(X, y)
    save(model, tmp_path / "model.miser")
    again = load(tmp_path / "model.miser")
    assert again.predict(X).tolist() == model.predict(X).tolist()
    assert (again.expected_costs(X) == model.expected_costs(X)).all()
    assert again.error_costs.said.tolist() == model.said_.tolist()


def test_answers_of_two_kinds_are_saved_too(patients, tmp_path):
    X, y = patients
    errors = {0: {1: 10.0, "refer": 4.0}, 1: {0: 50.0, "refer": 4.0}}
    model = MiserClassifier(max_iter=30, error_costs=errors).fit(X, (y == "ill").astype(int))
    save(model, tmp_path / "model.miser")
    assert load(tmp_path / "model.miser").predict(X).tolist() == model.predict(X).tolist()
    assert set(model.predict(X).tolist()) == {0, 1, "refer"}


def test_a_curve_with_error_costs_is_saved_as_a_family(patients, tmp_path):
    X, y = patients
    model = MiserClassifier(costs=[0.2, 3.0, 1.0], max_iter=5, error_costs=ERRORS)
    curve = tradeoff_curve(
        model, X[:400], y[:400], X_val=X[400:], y_val=y[400:], tradeoffs=3, search="path",
        scoring="total_cost",
    )  # fmt: skip
    save(curve, tmp_path / "curve.miser")
    again = load(tmp_path / "curve.miser")
    assert (again.predict(X) == curve.best().predict(X)).all()


def test_exports_say_what_they_drop(patients):
    X, y = patients
    model = MiserClassifier(max_iter=3, error_costs=ERRORS).fit(X, y)
    for export in (to_lightgbm, to_xgboost):
        with pytest.warns(UserWarning, match="error_costs are left out"):
            export(model)


def test_a_search_forwards_expected_costs(patients):
    X, y = patients
    model = MiserClassifier(costs=[0.2, 3.0, 1.0], max_iter=5, error_costs=ERRORS)
    search = MiserSearchCV(model, tradeoffs=2, search="path", cv=2, scoring="total_cost").fit(X, y)
    assert search.expected_costs(X[:3]).shape == (3, 2)
