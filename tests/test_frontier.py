"""The search along the frontier: what greed does not find, every budget kept, safe from kills."""

from __future__ import annotations

import math
import os
import random
import re
import signal
import time
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.metrics import balanced_accuracy_score

from experiments.frontier.traps import TRAPS
from greedymiser import (
    CostModel,
    MiserClassifier,
    MiserRanker,
    MiserRegressor,
    MiserSearchCV,
    load,
    save,
    tradeoff_curve,
)
from greedymiser.curve.candidates import ResourceSets
from greedymiser.curve.checkpoints import ABOUT, CheckpointError
from greedymiser.curve.curve import chosen_by
from greedymiser.curve.frontier import Candidate, Frontier, FrontierSearch, at_pace, by_area
from greedymiser.curve.trainer import GivingUp, Rival
from greedymiser.losses import SquaredError
from greedymiser.training.boosting import Action, Progress, Record
from greedymiser.training.parameters import Parameters
from random_examples import examples

COSTS = CostModel(
    [4.0, 1.0, 2.0, 0.5, 8.0, 1.0], groups={"shared": [1, 2]}, group_costs={"shared": 3.0}
)


def data(n=300, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 6))
    y = X[:, 0] + 0.7 * X[:, 1] + 0.5 * X[:, 2] + 0.3 * X[:, 3] + 0.2 * rng.standard_normal(n)
    return X, y


def searched(estimator=None, **options):
    (X, y), (X_val, y_val) = data(), data(200, 1)
    if estimator is None:
        estimator = MiserRegressor(costs=COSTS, max_iter=15, n_jobs=1)
    given = {"tradeoffs": 4, "effort": 0.1, **options}
    return tradeoff_curve(estimator, X, y, X_val=X_val, y_val=y_val, **given)


def bits(curve):
    """Everything that a curve is made of."""
    return [model.ensemble_.nodes.tobytes() for model in curve.models], curve.traces.to_csv()


# -- what greed does not find -----------------------------------------------------------------


@pytest.mark.parametrize("name", TRAPS)
@pytest.mark.slow
def test_the_search_walks_out_of_traps_that_the_path_walks_into(name):
    trap = TRAPS[name](n=1400)
    (X, y), (X_val, y_val) = trap.split()
    estimator = MiserRegressor(costs=trap.costs, max_iter=50)
    found = {}
    for search in ("path", "frontier"):
        curve = tradeoff_curve(
            estimator, X, y, X_val=X_val, y_val=y_val, tradeoffs=4, scoring="r2", search=search,
            effort=0.5,
        )  # fmt: skip
        model = curve.best(trap.budget, train=False)
        found[search] = set(model.ensemble_.features), curve.best_row(trap.budget)["score"]
    assert not trap.right & found["path"][0]
    missing = trap.right - found["frontier"][0]
    assert len(missing) <= len(trap.right) // 4  # of fifteen weak ones, some are left out
    assert found["frontier"][1] > found["path"][1] + 0.2


def test_points_tell_who_found_them():
    curve = searched()
    assert set(curve.points["found_by"]) == {"path", "search"}
    assert curve.points["tradeoff"].is_monotonic_increasing
    assert (curve.points["tradeoff"][curve.points["found_by"] == "search"] == 0).all()
    for position, model in enumerate(curve.models):
        trace = curve.trace(position)
        assert len(trace) == model.n_iter_ + 1
        last = trace.iloc[-1]
        assert last["cost"] == model.cost_
        assert curve.position(last) == position
    assert len(searched(search="path").points) == 4
    assert "found_by" not in searched(search="path").points


def test_a_list_of_tradeoffs_asks_for_nothing_else():
    curve = searched(tradeoffs=[0.0, 0.1])
    assert curve.points["tradeoff"].tolist() == [0.0, 0.1]


def test_same_curve_on_any_number_of_threads():
    estimators = [MiserRegressor(costs=COSTS, max_iter=20, n_jobs=n) for n in (1, 5)]
    one, five = (bits(searched(estimator)) for estimator in estimators)
    assert one == five


@examples(8)
@given(
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0, 7.5]), min_size=5, max_size=5),
    st.lists(st.sets(st.integers(0, 4), max_size=3), min_size=6, max_size=6),
    st.sampled_from([0.0, 0.02]),
    st.sampled_from([None, 6.0]),
    st.randoms(use_true_random=False),
)
def test_every_budget_is_kept_and_a_larger_one_is_never_worse(prices, needs, tree_cost, most, rng):
    names = [f"r{i}" for i in range(5)]
    costs = CostModel.from_resources(
        dict(zip(names, prices, strict=True)),
        {f"f{j}": [names[r] for r in sorted(need)] for j, need in enumerate(needs)},
        tree_cost=tree_cost,
    )
    estimator = MiserRegressor(costs=costs, budget=most, max_iter=8, n_jobs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of these budgets buy nothing
        curve = searched(estimator, tradeoffs=3, effort=0.05)
        budgets = sorted(rng.uniform(0.0, 20.0) for _ in range(5))
        scores = []
        for budget in budgets:
            model = curve.best(budget)
            assert model.cost_ <= min(budget, most or budget)
            assert model.cost_ == model.receipt().total + tree_cost * model.ensemble_.n_trees
            row = curve.best_row(budget)
            scores.append(row[chosen_by(curve.traces)])
    assert scores == sorted(scores)


def test_a_gap_is_filled_when_somebody_asks():
    # A short search leaves gaps.
    curve = searched(tradeoffs=2, effort=1e-9)
    total = COSTS.total(range(6))
    gaps = [b for b in np.linspace(0.5, total, 12) if curve.best_row(b)["cost"] < 0.8 * b][-3:]
    before = {b: curve.best_row(b)["score"] for b in gaps}
    for budget in gaps:
        unchanged = curve.best(budget, train=False)
        assert unchanged.cost_ == curve.best_row(budget)["cost"]
    n_models = len(curve.models)
    for budget in gaps:
        assert curve.best(budget).cost_ <= budget
    assert len(curve.models) > n_models
    assert any(curve.best_row(b)["score"] > before[b] for b in gaps)
    assert all(curve.best_row(b)["score"] >= before[b] for b in gaps)


def test_the_budget_of_the_estimator_holds_for_the_search():
    curve = searched(MiserRegressor(costs=COSTS, budget=5.0, max_iter=20, n_jobs=1))
    assert curve.traces["cost"].max() <= 5.0
    assert (curve.points["found_by"] == "search").any()


@pytest.mark.slow
def test_the_search_by_cross_validation_finds_sets():
    trap = TRAPS["dear_against_decoys"](n=600)
    search = MiserSearchCV(
        MiserRegressor(costs=trap.costs, max_iter=40), budget=trap.budget, tradeoffs=2, cv=2,
        scoring="r2", random_state=0, effort=0.5,
    ).fit(trap.X, trap.y)  # fmt: skip
    assert search.cost_ <= trap.budget
    assert "0" in search.best_params_["resources"]
    assert 0 in search.features_used_
    found = search.cv_results_
    assert found["score"].max() == search.best_score_
    assert (found["resources"] != "").any()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"search": "best"}, ValueError, "search must be 'frontier' or 'path', got 'best'"),
        ({"effort": 0}, ValueError, "effort must be positive and finite, got 0"),
        ({"effort": float("nan")}, ValueError, "effort must be positive and finite, got nan"),
        ({"effort": "much"}, TypeError, "effort must be a number, got 'much'"),
    ],
)
def test_what_is_no_search_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        searched(**options)


class ConfusedError(SquaredError):
    """A loss that two fits at once would confuse."""

    formula = None

    def gradients(self, y, raw):
        self.difference = raw - y
        return self.difference, None


def test_losses_and_scores_of_the_users_own_are_called_by_one_fit_at_a_time():
    def score(model, X, y):
        score.asked = -np.mean((model.predict(X) - y) ** 2)
        return score.asked

    curves = [
        searched(
            MiserRegressor(costs=COSTS, max_iter=6, loss=ConfusedError(), n_jobs=n), scoring=score
        )
        for n in (1, 3)
    ]
    assert bits(curves[0]) == bits(curves[1])


@pytest.mark.filterwarnings("ignore::greedymiser.BudgetWarning")
@pytest.mark.parametrize(
    ("estimator", "y", "more"),
    [
        (MiserRanker(), [0, 1, 2, 0] * 9, {"qid": [0] * 20 + [1] * 16}),
        (MiserClassifier(), [0] * 35 + [1], {}),
        (MiserClassifier(), ["a"] * 20 + ["b"] * 15 + ["c"], {}),
        (MiserRegressor(loss="poisson"), [0] * 35 + [3], {}),
        (MiserRegressor(), np.arange(36.0), {}),
        (MiserRegressor(), [1.0, 2.0, 3.0, 5.0], {}),
    ],
)
def test_rows_that_cannot_be_divided_are_searched_all_the_same(estimator, y, more):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((len(y), 3))
    estimator = clone(estimator).set_params(max_iter=3, min_samples_leaf=1)
    given = {**more, **{f"{name}_val": value for name, value in more.items()}}
    curve = tradeoff_curve(estimator, X, y, X_val=X, y_val=y, tradeoffs=3, effort=0.05, **given)
    assert curve.best(1.0).cost_ <= 1.0
    # What is chosen for a budget is the best that the curve has within it.
    for budget in (0.0, 1.0, 3.0):
        within = curve.traces[curve.traces["cost"] <= budget]
        by = "choice_score" if "choice_score" in within else "score"
        assert curve.best_row(budget)[by] == within[by].max()


def test_names_of_resources_may_hold_anything():
    X, _ = data(60)
    frame = pd.DataFrame(X[:, :3], columns=["Age, years", "a", "['a']"])
    target = np.sign(X[:, 0] * X[:, 1])
    search = MiserSearchCV(
        MiserRegressor(costs=[1.0] * 3, max_iter=20, min_samples_leaf=3), budget=2.0, tradeoffs=2,
        cv=2, effort=0.3, random_state=0,
    ).fit(frame, target)  # fmt: skip
    assert set(search.best_params_.get("resources", [])) <= set(frame.columns)
    assert set(search.cv_results_["resources"]) > {""}


# -- fits that only compare sets -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "ends_after"),
    [
        ([0.55] * 8, 3),
        ([math.nan] * 8, 3),
        ([0.6, 0.7, 0.75, 0.78, 0.79, 0.8, 0.8, 0.8], None),  # as good
        ([0.6, 0.7, 0.75, 0.775, 0.785, 0.792, 0.792, 0.792], None),  # behind by luck, perhaps
        ([0.52, 0.56, 0.6, 0.64, 0.68, 0.72, 0.75, 0.79], None),  # slow, but it rises
        ([0.6, 0.7, 0.75, 0.76, 0.76, 0.76, 0.76, 0.76], 6),
    ],
)
def test_a_fit_is_given_up_when_it_will_not_come_up_to_its_rival(scores, ends_after):
    best = np.array([0.5, 0.6, 0.7, 0.75, 0.78, 0.79, 0.8])
    heard = GivingUp(Rival(best, margin=0.01))
    told = [
        heard(Progress(n, 50, n, math.nan, score, 0.0, 1, 0.0))
        for n, score in enumerate(scores, start=1)
    ]
    ends = [n for n, action in enumerate(told, start=1) if action is Action.STOP]
    assert (ends[0] if ends else None) == ends_after


def test_what_is_not_written_down_changes_no_tree():
    trainer = searched(tradeoffs=2, effort=1e-9).frontier.models.trainer
    params = replace(Parameters.of(MiserRegressor(costs=COSTS)), max_iter=8)
    whole = trainer.train(params)
    short = trainer.train(params, record=Record(train_loss=False, scored_from=8))
    assert whole.ensemble.nodes.tobytes() == short.ensemble.nodes.tobytes()
    assert np.isnan(short.train_score[1:]).all()
    # The constant and the last round have their scores.
    assert np.isfinite(short.validation_score).tolist() == [True, *[False] * 7, True]
    assert short.validation_score[-1] == whole.validation_score[-1]


def test_leaving_out_codes_of_other_features_changes_no_model():
    trainer = searched(tradeoffs=2, effort=1e-9).frontier.models.trainer
    params = replace(Parameters.of(MiserRegressor(costs=COSTS)), max_iter=8, charge="row")
    allowed = np.array([False, True, False, True, True, False])
    few = trainer.train(params, allowed)
    # Where something of the user's is called, rows stay as they are.
    whole = replace(trainer, in_kernels=False).train(params, allowed)
    assert few.ensemble.features == whole.ensemble.features == [1, 3, 4]
    assert few.ensemble.nodes.tobytes() == whole.ensemble.nodes.tobytes()
    for trace in ("train_score", "validation_score", "train_cost", "validation_cost"):
        assert getattr(few, trace).tolist() == getattr(whole, trace).tolist()


# -- what is found is not lost ------------------------------------------------------------------


def dear_and_cheap(n=5000, n_cheap=8):
    """A dear column that decides much, and cheap ones that decide less and less."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 1 + n_cheap))
    logit = 2.5 * X[:, 0] + X[:, 1:] @ 0.85 ** np.arange(n_cheap) - 1
    y = (rng.random(n) < 1 / (1 + np.exp(-logit))).astype(int)
    return X, y, [60.0] + [1.0] * n_cheap


@pytest.mark.slow
def test_every_step_at_the_dear_end_has_its_model():
    X, y, costs = dear_and_cheap()
    half = len(y) // 2
    rows = {"X_val": X[half:], "y_val": y[half:], "scoring": "roc_auc"}
    estimator = MiserClassifier(costs=costs, max_iter=40, n_jobs=1)
    curve = tradeoff_curve(estimator, X[:half], y[:half], **rows, tradeoffs=4)
    for n_cheap in (2, 4, 6):
        columns = list(range(1 + n_cheap))
        known = MiserClassifier(max_iter=40, scoring="roc_auc", n_jobs=1).fit(
            X[:half, columns], y[:half], X_val=X[half:, columns], y_val=y[half:]
        )
        row = curve.best_row(60.0 + n_cheap)
        assert row["score"] > max(known.validation_score_) - 0.004
        assert row["cost"] > 60.0


def found_and_resumed(above, below):
    curve = searched(effort=0.03)
    search = curve.frontier._search
    before = {key: (found.score, found.is_expanded) for key, found in search.archive.items()}
    resumed = search.resumed(above, below, 0.03)
    resumed.go_on()
    unchanged = {key: (found.score, found.is_expanded) for key, found in search.archive.items()}
    assert unchanged == before
    return search, resumed


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_fill_that_was_not_finished_is_done_when_it_is_asked_for_again(monkeypatch, error):
    curve, whole = (searched(tradeoffs=2, effort=1e-9) for _ in range(2))
    n_models = len(curve.models)

    def stop(*given, **more):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(FrontierSearch, "finished", stop)
        with pytest.raises(error):
            curve.best(11.0)
    assert curve.best(11.0).cost_ == whole.best(11.0).cost_
    assert len(curve.models) == len(whole.models) > n_models
    assert bits(curve) == bits(whole)


@pytest.mark.parametrize(("above", "below"), [(0.0, 6.0), (6.0, 12.0), (-1.0, 1e9)])
def test_a_fill_goes_on_from_what_is_known(above, below):
    search, resumed = found_and_resumed(above, below)
    assert search.archive.keys() <= resumed.archive.keys()
    for found in search.frontier():
        as_cheap = [one for one in resumed.frontier() if one.cost <= found.cost]
        assert max(one.score for one in as_cheap) >= found.score
    new = resumed.archive.keys() - search.archive.keys()
    assert all(above < search.sets.price(some) < below for some in new)


@pytest.mark.slow
def test_answers_do_not_depend_on_the_order_of_questions():
    budgets = [0.7, 3.0, 5.0, 7.5, 11.0, 16.0]
    told = []
    for order in (budgets, budgets[::-1], [7.5, 16.0, 0.7, 11.0, 5.0, 3.0]):
        curve = searched(tradeoffs=2, effort=0.01)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answers = {b: curve.best(b).ensemble_.nodes.tobytes() for b in order}
            again = {b: curve.best(b).ensemble_.nodes.tobytes() for b in order}
        assert answers == again
        told.append(answers)
    assert told[0] == told[1] == told[2]


@pytest.fixture(scope="module")
def many_classes():
    """Eight classes, sixteen neighbours behind an entry, and a second, dearer group."""
    rng = np.random.default_rng(0)
    n, p = 900, 16
    y = rng.integers(8, size=n)
    smooth = np.exp(-((np.arange(p)[:, None] - np.arange(p)) ** 2) / 4.0) + 1e-6 * np.eye(p)
    root = np.linalg.cholesky(smooth)
    pixels = (rng.standard_normal((8, p)) @ root.T)[y] + 0.7 * rng.standard_normal((n, p)) @ root.T
    others = pixels @ rng.standard_normal((p, 40)) / 4 + rng.standard_normal((n, 40))
    prices = {"entry": 10.0, "other": 40.0}
    prices |= {f"p{i}": 0.5 for i in range(p)} | {f"o{i}": 0.5 for i in range(40)}
    needs = [["entry", f"p{i}"] for i in range(p)] + [["other", f"o{i}"] for i in range(40)]
    X, costs = np.hstack([pixels, others]), CostModel.from_resources(prices, needs)
    estimator = MiserClassifier(costs=costs, max_iter=20, min_samples_leaf=5, n_jobs=1)
    rows = {"X_val": X[600:], "y_val": y[600:], "scoring": "accuracy"}
    return tradeoff_curve(estimator, X[:600], y[:600], **rows, tradeoffs=2, effort=0.2)


@pytest.mark.slow
def test_packages_are_reduced_step_by_step(many_classes):
    search = many_classes.frontier._search
    assert search.allowance.is_spent
    cheap, dear = search.sets.packages
    for package, least in ((cheap, 4), (dear, 4)):
        sizes = [part.bit_count() for part in search._around.chains[package]]
        assert len(sizes) >= least
        assert sizes == sorted(set(sizes), reverse=True)
        assert all(part & ~package == 0 for part in search._around.chains[package])


@pytest.mark.slow
def test_a_search_that_goes_on_leaves_the_parts_of_packages_as_they_were(many_classes):
    search = many_classes.frontier._search
    before = {package: list(parts) for package, parts in search._around.chains.items()}
    assert before
    for parts in search.resumed(0.0, 1e9, 0.02)._around.chains.values():
        parts.append(0)
    assert search._around.chains == before


def test_sets_are_expanded_and_cross_fitted_however_many_classes_there_are(many_classes):
    archive = many_classes.frontier._search.archive.values()
    assert any(found.is_expanded and found.resources for found in archive)
    assert sum(found.fold_scores is not None for found in archive) > 1
    assert "choice_score" in many_classes.points


def test_a_dearer_set_has_to_be_better_than_noise():
    search = searched(tradeoffs=2, effort=1e-9).frontier._search

    def candidate(score, *fold_scores):
        folds = np.array(fold_scores)
        shift = search.weighed(float(folds.mean()) - score)
        return Candidate(1, 1.0, score, 1, np.zeros(1), None, 1.0, fold_scores=folds, shift=shift)

    def is_preferred(dearer, cheaper):
        return search.is_preferred(dearer, cheaper, search.choice_score(cheaper))

    cheap = candidate(0.82, 0.80, 0.82, 0.84)
    assert not is_preferred(candidate(0.82, 0.80, 0.82, 0.84), cheap)
    # + .003 ± .049 in the folds, and no more on the validation rows.
    assert not is_preferred(candidate(0.825, 0.90, 0.74, 0.83), cheap)
    assert is_preferred(candidate(0.83, 0.81, 0.83, 0.86), cheap)
    # What the folds leave open, the validation rows may decide.
    assert is_preferred(candidate(0.99, 0.90, 0.74, 0.83), cheap)

    # What includes the cheaper one may be behind it by a standard error, here of .0033.
    part = replace(cheap, used=0b01)
    whole = replace(candidate(0.82, 0.80, 0.81, 0.84), used=0b11)
    worse = replace(candidate(0.81, 0.79, 0.82, 0.83), used=0b11)
    assert is_preferred(whole, part)
    assert not is_preferred(worse, part)
    assert not is_preferred(whole, replace(cheap, used=0b100))
    assert not is_preferred(whole, replace(cheap, used=0))
    # Where costs count in the score, more is not as good as less.
    search._counts_costs = True
    assert not is_preferred(whole, part)


def test_rounds_of_long_steps_are_met_by_three_short_ones():
    trace = np.array([0.0, 3.0, 6.0, 9.0])
    assert at_pace(trace, 8, 0.3 / 0.1) == pytest.approx([0, 1, 2, 3, 4, 5, 6, 7])
    assert at_pace(trace, 5, 0.3 / 0.05) == pytest.approx([0, 0.5, 1, 1.5, 2])
    assert at_pace(trace, 5, 0.3 / 0.2) == pytest.approx([0, 2, 4, 6, 8])
    assert at_pace(trace, 3, 0.5) == pytest.approx([0, 6, 9])  # stays where it ended


def test_a_score_that_a_constant_has_none_of_is_cross_fitted():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 4))
    y = X[:, 0] + X[:, 1] + 0.5 * rng.standard_normal(300)

    def correlation(model, X, y):
        said = model.predict(X)
        return float(np.corrcoef(said, y)[0, 1]) if np.ptp(said) > 0 else np.nan

    model = MiserRegressor(costs=[1.0, 2.0, 3.0, 4.0], max_iter=20, min_samples_leaf=5)
    curve = tradeoff_curve(
        model, X[:200], y[:200], X_val=X[200:], y_val=y[200:], tradeoffs=2, scoring=correlation
    )
    assert "choice_score" in curve.points
    assert curve.best().n_iter_ > 0


# -- scores that count classes equally ---------------------------------------------------------


def rare_classes(scoring):
    rng = np.random.default_rng(0)
    y = rng.choice(3, 2400, p=[0.04, 0.08, 0.88])
    X = rng.standard_normal((2400, 5))
    X[:, 0] = np.array([3.0, 1.6, 0.0])[y] + 0.7 * X[:, 0]
    estimator = MiserClassifier(costs=[20.0] + [1.0] * 4, max_iter=25, n_jobs=1)
    labels = np.array(["a", "b", "c"])[y]
    rows = {"X_val": X[800:1600], "y_val": labels[800:1600]}
    test = {"X_test": X[1600:], "y_test": labels[1600:]}
    options = {"scoring": scoring, "tradeoffs": 3, "effort": 0.05, **rows, **test}
    plain = clone(estimator).set_params(early_stopping=False).fit(X[:800], labels[:800])
    return tradeoff_curve(estimator, X[:800], labels[:800], **options), plain, test


def test_rare_classes_are_named_where_the_score_counts_them_equally(tmp_path):
    curve, plain, test = rare_classes("balanced_accuracy")
    assert (curve.points["prior_correction"] > 0).all()
    model = curve.best(21.0)
    X, y = test["X_test"], test["y_test"]
    row = curve.best_row(21.0)
    assert balanced_accuracy_score(y, model.predict(X)) == pytest.approx(row["test_score"])
    assert row["test_score"] > balanced_accuracy_score(y, plain.predict(X)) + 0.05
    save(model, tmp_path / "model.miser")
    assert (load(tmp_path / "model.miser").predict(X) == model.predict(X)).all()
    # The trees are those of a model that knows nothing of it: only the constants are shifted.
    free = curve.models[0]
    assert free.tradeoff == 0.0
    assert not np.array_equal(free.ensemble_.baseline, plain.ensemble_.baseline)


@pytest.mark.slow
@pytest.mark.parametrize("scoring", ["neg_log_loss", "accuracy", "loss", "roc_auc_ovr"])
def test_other_scores_leave_models_as_they_were_trained(scoring):
    curve, plain, _ = rare_classes(scoring)
    assert "prior_correction" not in curve.points
    np.testing.assert_array_equal(curve.models[0].ensemble_.baseline, plain.ensemble_.baseline)


# -- where rows pay ----------------------------------------------------------------------------


def test_models_begin_with_what_is_used_and_not_with_what_was_allowed(monkeypatch):
    frontier: Frontier = searched(tradeoffs=2, search="frontier", effort=1e-9).frontier
    given = {"gains": np.zeros(6), "model": None, "cells": 1.0}
    candidates = [
        Candidate(0b1, 0.0, 0.1, used=0, **given),  # allowed to buy, has bought nothing
        Candidate(0b111, 1.0, 0.2, used=0b10, **given),
        Candidate(0b1100, 5.0, 0.3, used=0b100, **given),
    ]
    begun = []

    def run(function, tasks):
        begun.extend(task[3].resources.tolist() for task in tasks)
        return [None] * len(tasks)

    monkeypatch.setattr(frontier.models.pool, "run", run)
    frontier._beyond(candidates)
    sets = {sum(1 << r for r, flag in enumerate(flags) if flag) for flags in begun}
    assert sets == {0b10, 0b100}


# -- what can be bought -----------------------------------------------------------------------


def test_bundles_and_packages():
    costs = CostModel.from_resources(
        {"a": 1.0, "b": 2.0, "entry": 5.0, "free": 0.0},
        {"x": ["a"], "y": ["b", "entry"], "z": ["a", "entry"], "w": ["free"]},
    )
    sets = ResourceSets(costs)
    assert [sets.price(bundle) for bundle in sets.bundles] == [1.0, 6.0, 7.0]
    # Together, what needs the entry; a alone is a bundle, and so its users are a package as well.
    assert sorted(sets.price(package) for package in sets.packages) == [8.0]
    assert sets.features(0).tolist() == [False, False, False, True]
    everything = sets.owned(range(4))
    assert sets.names(everything) == ["a", "b", "entry"]
    assert sets.features(everything).all()


def lost_area(costs, scores, kept):
    """Area between a step curve and what is left of it, in the logarithm of costs."""
    place = np.log(costs)
    lost = 0.0
    for i in range(len(costs) - 1):
        below = [scores[j] for j in kept if j <= i]
        lost += (scores[i] - max(below, default=scores[0])) * (place[i + 1] - place[i])
    return lost


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=9),
    st.integers(0, 9),
)
def test_what_is_thinned_first_costs_least(steps, most):
    costs = np.cumsum([cost for cost, _ in steps]).astype(float).tolist()
    scores = np.cumsum([score for _, score in steps]).astype(float).tolist()
    order = by_area(costs, scores)
    assert sorted(order) == list(range(len(steps)))
    assert {0, len(steps) - 1} == set(order[:2])
    if len(order) > 2:
        without_last = lost_area(costs, scores, order[:-1])
        for i in range(1, len(steps) - 1):
            others = [j for j in range(len(steps)) if j != i]
            assert without_last <= lost_area(costs, scores, others) + 1e-9


def test_sets_close_in_cost_are_not_thinned_before_steps_without_gain():
    # 60 and 64 are neighbours in the logarithm of costs, 2 and 8 are far apart: but there a step
    # of .0001 is all that is lost.
    costs, scores = [1.0, 2.0, 8.0, 60.0, 64.0, 72.0], [0.5, 0.7, 0.7001, 0.8, 0.89, 0.9]
    assert by_area(costs, scores)[-1] == 2


# -- finished models are safe -----------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_with_the_same_bits(tmp_path):
    whole = bits(searched())
    rng = random.Random(0)
    for attempt in range(2):
        folder = tmp_path / str(attempt)
        child = os.fork()
        if child == 0:
            searched(checkpoint=folder)
            os._exit(0)
        time.sleep(rng.uniform(0.02, 0.8))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert bits(searched(checkpoint=folder)) == whole
        # And a run that has nothing left to do.
        assert bits(searched(checkpoint=folder)) == whole


def test_a_damaged_file_is_trained_again(tmp_path):
    whole = bits(searched(checkpoint=tmp_path))
    files = sorted(tmp_path.glob("*.npz"))
    files[0].write_bytes(files[0].read_bytes()[:100])
    files[1].write_bytes(b"")
    assert bits(searched(checkpoint=tmp_path)) == whole
    assert files[1].stat().st_size > 100


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"estimator": MiserRegressor(costs=COSTS, max_iter=15, max_depth=3)}, "max_depth"),
        ({"estimator": MiserRegressor(costs=[1.0] * 6, max_iter=15)}, "costs"),
        ({"scoring": "r2"}, "scoring"),
    ],
)
def test_a_folder_of_other_settings_is_refused_by_name(tmp_path, change, name):
    searched(tradeoffs=2, search="path", checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match=f"another run: .*{name}.* differ"):
        searched(tradeoffs=2, search="path", checkpoint=tmp_path, **change)


def test_a_folder_of_other_data_is_refused_by_name(tmp_path):
    (X, y), (X_val, y_val) = data(), data(200, 1)
    estimator = MiserRegressor(costs=COSTS, max_iter=3)
    options = {"tradeoffs": 2, "search": "path", "checkpoint": tmp_path / "kept"}
    tradeoff_curve(estimator, X, y, X_val=X_val, y_val=y_val, **options)
    with pytest.raises(CheckpointError, match="another run: training data differ"):
        tradeoff_curve(estimator, X, y + 1, X_val=X_val, y_val=y_val, **options)
    with pytest.raises(CheckpointError, match="another run: validation data differ"):
        tradeoff_curve(estimator, X, y, X_val=X_val + 1, y_val=y_val, **options)
    (tmp_path / "kept" / ABOUT).write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        tradeoff_curve(estimator, X, y, X_val=X_val, y_val=y_val, **options)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    with pytest.raises(CheckpointError, match=r"no folder of checkpoints.*'thesis\.txt'"):
        searched(checkpoint=tmp_path / "mine")


def test_threads_and_words_make_no_other_run(tmp_path):
    one = searched(MiserRegressor(costs=COSTS, max_iter=5, n_jobs=1), checkpoint=tmp_path)
    n_files = len(list(tmp_path.iterdir()))
    two = searched(MiserRegressor(costs=COSTS, max_iter=5, n_jobs=2), checkpoint=tmp_path)
    assert bits(one) == bits(two)
    assert len(list(tmp_path.iterdir())) == n_files


def test_an_interrupted_search_keeps_the_path():
    def interrupt(done, total):
        if done > total // 2:
            raise KeyboardInterrupt

    (X, y), (X_val, y_val) = data(), data(200, 1)
    with pytest.warns(UserWarning, match="4 of 4 trade-offs done, but not the search"):
        curve = tradeoff_curve(
            MiserClassifier(costs=COSTS, max_iter=10), X, y > 0, X_val=X_val, y_val=y_val > 0,
            tradeoffs=4, effort=0.05, callback=interrupt,
        )  # fmt: skip
    assert len(curve.models) == 4


@pytest.mark.slow
@pytest.mark.parametrize("charge", ["model", "row"])
def test_progress_moves_to_the_end(charge):
    heard = []
    curve = searched(
        MiserRegressor(costs=COSTS, max_iter=10, charge=charge),
        callback=lambda done, total: heard.append(done / total), tradeoffs=40,
    )  # fmt: skip
    assert heard == sorted(heard)
    # Half is for the path, a quarter for the search, and it goes on while sets are compared again
    # and trained as the user wants them.
    assert sum(0.75 < share < 1 for share in heard) >= 3
    assert sum(0.9 < share < 1 for share in heard) >= 1
    if charge == "model":
        shares = []
        costs, scores = curve._first_front
        for position in range(len(costs) - 1):
            curve.frontier.fill(costs, scores, position, shares.append)
        assert any(0 < share <= 1 for share in shares)


def test_progress_tells_steps_and_the_time_left(capsys):
    heard = []
    searched(verbose=1, callback=lambda done, total: heard.append((done, total)))
    assert heard[-1] == (8, 8)
    assert [done for done, _ in heard] == sorted({done for done, _ in heard})
    lines = [line.strip() for line in re.split(r"[\r\n]", capsys.readouterr().err)]
    # A line for each of the four models, and a bar below them.
    assert sum(line.startswith("tradeoff") for line in lines) == 4
    assert "search: done" in lines
    assert "8/8" in [line for line in lines if line][-1]
