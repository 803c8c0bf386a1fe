"""Early exits over fitted ensembles."""

import functools
import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import estimator_checks_generator

import naive
from greedymiser import (
    CostModel,
    EarlyExitClassifier,
    EarlyExitRanker,
    MiserClassifier,
    MiserRanker,
    MiserRegressor,
    ndcg_score,
)
from greedymiser.datasets import load_thyroid
from greedymiser.losses import BinaryLogLoss, Loss
from random_examples import examples

COSTS = CostModel.from_resources(
    {"a": 1.0, "b": 2.0, "shared": 4.0, "c": 0.1},
    [["a"], ["b", "shared"], ["shared"], ["a", "c"], []],
    tree_cost=0.25,
)


def make(seed, n=240, n_classes=3):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 5))
    X[rng.random(X.shape) < 0.15] = np.nan
    signal = np.nan_to_num(X[:, 0] + X[:, 1] - X[:, 2] * X[:, 3]) + 0.3 * rng.standard_normal(n)
    y = np.digitize(signal, np.quantile(signal, np.arange(1, n_classes) / n_classes))
    return X, y, rng.integers(0, 12, n)


@functools.cache
def classifier(n_classes, tradeoff=0.0):
    X, y, _ = make(0, n_classes=n_classes)
    return MiserClassifier(
        costs=COSTS, max_iter=23, max_depth=3, min_samples_leaf=5, tradeoff=tradeoff
    ).fit(X, y)


@functools.cache
def ranker(tradeoff=0.0):
    X, y, qid = make(0)
    return MiserRanker(
        costs=COSTS, max_iter=33, max_depth=3, min_samples_leaf=5, tradeoff=tradeoff
    ).fit(X, y, qid=qid)


def trees_of(model):
    ensemble = model.ensemble_
    return [(ensemble.tree(t).nodes, ensemble.category_sets) for t in range(ensemble.n_trees)]


def bill(model, met):
    """Naive recount of what a row pays that met so many trees."""
    features = naive.features_of(trees_of(model)[:met])
    costs = model.costs_
    return naive.total(costs.resource_costs, costs.needs, features, costs.tree_cost * met)


# -- the meter and the rules, row by row ----------------------------------------------------------


@examples(25)
@given(
    st.sampled_from([2, 3]),
    st.integers(1, 12),
    st.floats(0.3, 1.0),
    st.sampled_from([0.0, 0.002]),
    st.integers(1, 5),
)
def test_classifier_against_a_walk(n_classes, every, threshold, tradeoff, seed):
    model = classifier(n_classes, tradeoff)
    X, y, _ = make(seed, n=40, n_classes=n_classes)
    hasty = EarlyExitClassifier(model, threshold=threshold, every=every).fit(X, y)

    def leaves(scores, _):
        return [naive.confident(row, threshold) for row in scores]

    raw, met = naive.exits(
        model.ensemble_.baseline, trees_of(model), X, [[i] for i in range(len(X))], every, leaves
    )
    expected = np.array(raw) if n_classes > 2 else np.array(raw)[:, 0]
    assert np.array_equal(hasty.decision_function(X), expected)
    assert hasty.prediction_costs(X).tolist() == [bill(model, trees) for trees in met]


@examples(25)
@given(
    st.integers(1, 15),
    st.floats(0.0, 3.0),
    st.sampled_from([0.0, 0.002]),
    st.integers(1, 5),
)
def test_ranker_against_a_walk(every, threshold, tradeoff, seed):
    model = ranker(tradeoff)
    X, y, qid = make(seed, n=90)
    hasty = EarlyExitRanker(model, threshold=threshold, every=every).fit(X, y, qid=qid)
    n_exits = len(hasty.exits_) + 1

    def leaves(scores, i):
        return naive.too_far_below([row[0] for row in scores], i, n_exits, threshold)

    queries = [np.flatnonzero(qid == q).tolist() for q in np.unique(qid)]
    raw, met = naive.exits(model.ensemble_.baseline, trees_of(model), X, queries, every, leaves)
    assert hasty.prediction_costs(X, qid).tolist() == [bill(model, trees) for trees in met]
    scores = hasty.predict(X, qid)
    for rows in queries:
        stayed = [i for i in rows if met[i] == model.ensemble_.n_trees]
        assert scores[stayed].tolist() == [raw[i][0] for i in stayed]
        for i in rows:
            for j in rows:
                if met[i] < met[j]:
                    assert scores[i] < scores[j]
                elif met[i] == met[j] and raw[i][0] < raw[j][0]:
                    assert scores[i] <= scores[j]


# -- the ends -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("threshold", [None, 1.0])
def test_nobody_leaves_a_cautious_classifier(n_classes, threshold):
    model, (X, y, _) = classifier(n_classes), make(3, n_classes=n_classes)
    cautious = EarlyExitClassifier(model, threshold=threshold).fit(X, y)
    assert np.array_equal(cautious.predict_proba(X), model.predict_proba(X))
    assert np.array_equal(cautious.predict(X), model.predict(X))
    assert np.array_equal(cautious.prediction_costs(X), model.prediction_costs(X))
    assert cautious.cost_ == model.cost_


@pytest.mark.parametrize("threshold", [None, np.inf])
def test_nobody_leaves_a_cautious_ranker(threshold):
    model, (X, y, qid) = ranker(), make(3)
    cautious = EarlyExitRanker(model, threshold=threshold).fit(X, y, qid=qid)
    assert np.array_equal(cautious.predict(X, qid), model.predict(X))
    assert np.array_equal(cautious.prediction_costs(X, qid), model.prediction_costs(X))


def test_everybody_leaves_at_threshold_zero():
    model, (X, y, qid) = classifier(3), make(3)
    hasty = EarlyExitClassifier(model, threshold=0.0).fit(X, y)
    first = model.truncate(10)
    assert np.array_equal(hasty.predict_proba(X), first.predict_proba(X))
    assert np.array_equal(hasty.prediction_costs(X), first.prediction_costs(X))
    # Of a query, the best five stay to the end.
    hasty = EarlyExitRanker(ranker(), threshold=0.0).fit(X, y, qid=qid)
    full = hasty.prediction_costs(X, qid) == ranker().cost_
    assert all(full[qid == q].sum() >= min(5, (qid == q).sum()) for q in np.unique(qid))
    assert not full.all()


def test_without_exits():
    model, (X, y, _) = classifier(3), make(3)
    whole = EarlyExitClassifier(model, threshold=0.0, every=100).fit(X, y)
    assert whole.exits_.tolist() == []
    assert np.array_equal(whole.predict_proba(X), model.predict_proba(X))
    assert len(whole.curve(X, y)) == 2  # nothing to choose from
    none = EarlyExitClassifier(model.truncate(0), threshold=0.5).fit(X, y)
    assert none.prediction_costs(X).tolist() == [0.0] * len(X)


def test_order_of_rows_and_threads_do_not_matter():
    X, y, qid = make(4)
    one = EarlyExitRanker(ranker(), threshold=0.5, n_jobs=1).fit(X, y, qid=qid)
    two = EarlyExitRanker(ranker(), threshold=0.5, n_jobs=2).fit(X, y, qid=qid)
    shuffled = np.random.default_rng(0).permutation(len(X))
    assert np.array_equal(one.predict(X, qid), two.predict(X, qid))
    assert np.array_equal(one.predict(X, qid)[shuffled], one.predict(X[shuffled], qid[shuffled]))


def test_blocks_do_not_matter(monkeypatch):
    X, y, qid = make(5)
    hasty = EarlyExitRanker(ranker(), threshold=0.5).fit(X, y, qid=qid)
    sure = EarlyExitClassifier(classifier(3), threshold=0.6).fit(X, y)
    before = hasty.predict(X, qid), sure.predict_proba(X)
    monkeypatch.setattr("greedymiser.model.predictor.ROWS_TOGETHER", 7)
    monkeypatch.setattr("greedymiser.model.predictor.SHARE_GONE", 0.9)
    assert np.array_equal(before[0], hasty.predict(X, qid))
    assert np.array_equal(before[1], sure.predict_proba(X))


# -- sweeping and choosing ------------------------------------------------------------------------


def test_sweep_says_what_each_threshold_does():
    X, y, qid = make(6)
    base = EarlyExitRanker(ranker()).fit(X, y, qid=qid)
    seen = list(base.sweep(X, qid=qid, thresholds=[1.0, 0.2, np.inf]))
    assert [exits.threshold for exits in seen] == [0.2, 1.0, np.inf]
    for exits in seen:
        one = EarlyExitRanker(ranker(), threshold=exits.threshold).fit(X, y, qid=qid)
        assert np.array_equal(exits.raw[0], one.predict(X, qid))
        assert np.array_equal(exits.costs, one.prediction_costs(X, qid))


def test_curve():
    X, y, qid = make(6)
    curve = EarlyExitClassifier(classifier(3)).fit(X, y).curve(X, y, thresholds=12)
    assert list(curve.columns) == ["threshold", "cost", "score"]
    assert 5 <= len(curve) <= 12
    assert curve["cost"].is_monotonic_increasing
    assert curve["threshold"].iloc[[0, -1]].tolist() == [0.0, 1.0]
    assert curve["cost"].iloc[-1] == pytest.approx(classifier(3).cost_)
    assert curve["score"].iloc[-1] == classifier(3).score(X, y)
    ranked = EarlyExitRanker(ranker()).fit(X, y, qid=qid).curve(X, y, qid=qid)
    assert ranked["score"].iloc[-1] == ranker().score(X, y, qid=qid)
    assert ranked["cost"].iloc[0] < ranked["cost"].iloc[-1]


def test_weights_count_in_the_curve():
    X, y, _ = make(6)
    base = EarlyExitClassifier(classifier(3)).fit(X, y)
    repeated = np.repeat(np.arange(len(X)), np.where(y == 0, 3, 1))
    weighted = base.curve(X, y, sample_weight=np.where(y == 0, 3.0, 1.0), thresholds=[0.5, 0.7])
    many = base.curve(X[repeated], y[repeated], thresholds=[0.5, 0.7])
    pd.testing.assert_frame_equal(weighted, many)


def test_threshold_for_a_budget():
    X, y, qid = make(6)
    base = EarlyExitClassifier(classifier(3)).fit(X, y).curve(X, y, thresholds=50)
    middle = float(base["cost"].iloc[[0, -1]].mean())
    chosen = EarlyExitClassifier(classifier(3), budget=middle).fit(X, y)
    assert chosen.prediction_costs(X).mean() <= middle
    within = base[base["cost"] <= middle]
    assert chosen.score(X, y) == within["score"].max()
    ranked = EarlyExitRanker(ranker(), budget=12.0).fit(X, y, qid=qid)
    assert ranked.prediction_costs(X, qid).mean() <= 12.0 < ranker().cost_


def test_budget_is_chosen_on_validation_data():
    X, y, _ = make(6)
    X_val, y_val, _ = make(7)
    chosen = EarlyExitClassifier(classifier(3), budget=20.0)
    chosen.fit(X, y, X_val=X_val, y_val=y_val)
    assert (
        chosen.threshold_
        == EarlyExitClassifier(classifier(3), budget=20.0).fit(X_val, y_val).threshold_
    )


def test_misspelt_scoring():
    X, y, _ = make(6)
    base = EarlyExitClassifier(classifier(3), scoring="acuracy").fit(X, y)
    with pytest.raises(ValueError, match="got 'acuracy'; did you mean 'accuracy'"):
        base.curve(X, y)


def test_scoring():
    X, y, qid = make(6)
    base = EarlyExitClassifier(classifier(3), scoring="balanced_accuracy").fit(X, y)
    for exits, score in zip(
        base.sweep(X, thresholds=8), base.curve(X, y, thresholds=8)["score"], strict=True
    ):
        predicted = base.classes_[exits.raw.argmax(axis=0)]
        assert score == pytest.approx(balanced_accuracy_score(y, predicted))
    base = EarlyExitRanker(ranker(), scoring="ndcg@2").fit(X, y, qid=qid)
    last = base.curve(X, y, qid=qid)["score"].iloc[-1]
    assert last == ndcg_score(y, ranker().predict(X), qid, k=2)
    own = EarlyExitClassifier(classifier(3), scoring=lambda model, X, y: model.predict(X).mean())
    assert own.fit(X, y).curve(X, y)["score"].iloc[-1] == classifier(3).predict(X).mean()


def test_on_real_data():
    data = load_thyroid()
    costs = CostModel.from_resources(
        dict(zip(data.costs.resource_names, data.costs.resource_costs, strict=True)),
        [[data.costs.resource_names[r] for r in wanted] for wanted in data.costs.needs],
        tree_cost=0.05,
    )
    model = MiserClassifier(costs=costs, max_iter=60).fit(data.X_train, data.y_train)
    hasty = EarlyExitClassifier(model, threshold=0.99).fit(data.X_test, data.y_test)
    paid = hasty.prediction_costs(data.X_test)
    assert paid.mean() < 0.95 * model.cost_
    assert paid.max() <= model.cost_
    assert hasty.score(data.X_test, data.y_test) > model.score(data.X_test, data.y_test) - 0.01


# -- an ordinary estimator ------------------------------------------------------------------------


def test_fitted_estimators_are_kept_and_others_fitted():
    X, y, qid = make(6)
    model = classifier(3)
    assert EarlyExitClassifier(model).fit(X, y).estimator_.ensemble_ is model.ensemble_
    frozen = EarlyExitClassifier(FrozenEstimator(model), threshold=0.8)
    assert clone(frozen).fit(X, y).estimator_.ensemble_ is model.ensemble_
    blank = MiserClassifier(max_iter=12)
    fitted = EarlyExitClassifier(blank, threshold=0.9).fit(X, y)
    assert not hasattr(blank, "ensemble_")
    assert np.array_equal(fitted.estimator_.predict(X), clone(blank).fit(X, y).predict(X))
    ranked = EarlyExitRanker(MiserRanker(max_iter=12)).fit(
        X, y, qid=qid, X_val=X, y_val=y, qid_val=qid
    )
    assert len(ranked.estimator_.validation_score_) > 0


def test_what_happens_to_the_estimator_later_does_not_matter():
    X, y, _ = make(6)
    model = MiserClassifier(max_iter=40, min_samples_leaf=5).fit(X, y)
    hasty = EarlyExitClassifier(model, threshold=0.8, every=5).fit(X, y)
    before = hasty.predict_proba(X), hasty.prediction_costs(X), hasty.curve(X, y, thresholds=5)
    model.set_params(max_iter=3).fit(X[:, :2], np.where(y == 0, "a", "b"))
    assert np.array_equal(hasty.predict_proba(X), before[0])
    assert np.array_equal(hasty.prediction_costs(X), before[1])
    pd.testing.assert_frame_equal(hasty.curve(X, y, thresholds=5), before[2])
    assert hasty.classes_.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="2 features"):
        hasty.predict(X[:, :2])


def test_a_scorer_sees_the_threshold_that_is_tried():
    X, y, _ = make(6)

    def thrifty(model, X, y):
        half = model.predict(X[::2])
        assert len(half) == len(X[::2])
        return -model.prediction_costs(X).mean()

    base = EarlyExitClassifier(classifier(3), scoring=thrifty).fit(X, y)
    curve = base.curve(X, y, thresholds=6)
    assert np.allclose(curve["score"], -curve["cost"])
    assert curve["cost"].nunique() > 2


def test_pickling_and_cross_validation():
    X, y, _ = make(6)
    model = EarlyExitClassifier(MiserClassifier(max_iter=12), threshold=0.7)
    scores = cross_val_score(model, X, y, cv=3)
    assert (scores > 0.4).all()
    again = pickle.loads(pickle.dumps(model.fit(X, y)))
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))


def test_names_of_columns():
    X, y, _ = make(6)
    frame = pd.DataFrame(X, columns=list("abcde"))
    model = EarlyExitClassifier(MiserClassifier(max_iter=12), threshold=0.7).fit(frame, y)
    assert model.feature_names_in_.tolist() == list("abcde")
    assert set(model.features_used_) <= set("abcde")
    assert np.array_equal(model.predict(frame), model.predictor_.predict(frame[list("edcba")]))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[list("edcba")])


CHECKS = [
    pytest.param(estimator, check, id=getattr(check, "func", check).__name__)
    for estimator, check in estimator_checks_generator(
        EarlyExitClassifier(
            MiserClassifier(max_iter=20, min_samples_leaf=1), threshold=0.9, every=3
        )
    )
    if not getattr(check, "func", check).__name__.startswith("check_array_api")
]


@pytest.mark.slow
@pytest.mark.parametrize(("estimator", "check"), CHECKS)
def test_estimator_check(estimator, check):
    check(estimator)


# -- bad input ------------------------------------------------------------------------------------


class Odd(Loss):
    def values(self, y, raw):
        return np.logaddexp(0.0, raw) - y * raw

    def gradients(self, y, raw):
        return 1 / (1 + np.exp(-raw)) - y, None


@pytest.mark.parametrize(
    ("make_model", "error", "message"),
    [
        (lambda: EarlyExitClassifier(classifier(3), threshold=1.5), ValueError, "'threshold'"),
        (lambda: EarlyExitClassifier(classifier(3), threshold=-1), ValueError, "'threshold'"),
        (lambda: EarlyExitClassifier(classifier(3), threshold="x"), ValueError, "'threshold'"),
        (lambda: EarlyExitClassifier(classifier(3), every=0), ValueError, "'every'"),
        (lambda: EarlyExitClassifier(classifier(3), budget=-1), ValueError, "'budget'"),
        (lambda: EarlyExitClassifier(classifier(3), budget=0.5), ValueError, "at least 14.6"),
        (
            lambda: EarlyExitClassifier(classifier(3), budget=5, threshold=0.5),
            ValueError,
            "threshold=0.5 and budget=5",
        ),
        (lambda: EarlyExitClassifier(None), ValueError, "'estimator'"),
        (lambda: EarlyExitClassifier(ranker()), TypeError, "type MiserClassifier"),
        (lambda: EarlyExitClassifier(MiserRegressor()), TypeError, "type MiserClassifier"),
        (lambda: EarlyExitRanker(classifier(3)), TypeError, "type MiserRanker"),
    ],
)
def test_bad_parameters(make_model, error, message):
    X, y, _ = make(6)
    with pytest.raises(error, match=message):
        make_model().fit(X, y)


def test_bad_data():
    X, y, qid = make(6)
    hasty = EarlyExitClassifier(classifier(3), threshold=0.5)
    with pytest.raises(ValueError, match="4 features"):
        hasty.fit(X[:, :4], y)
    hasty.fit(X, y)
    with pytest.raises(ValueError, match="4 features"):
        hasty.predict(X[:, :4])
    with pytest.raises(ValueError, match="thresholds must be at least 2, got 1"):
        hasty.curve(X, y, thresholds=1)
    with pytest.raises(ValueError, match="thresholds must not be negative, got -1"):
        hasty.curve(X, y, thresholds=[-1])
    with pytest.raises(ValueError, match="y_val is missing"):
        EarlyExitClassifier(classifier(3)).fit(X, y, X_val=X)
    with pytest.raises(ValueError, match="X_val is missing"):
        EarlyExitClassifier(classifier(3)).fit(X, y, y_val=y)
    with pytest.raises(ValueError, match="0 for every row"):
        hasty.curve(X, y, sample_weight=np.zeros(len(X)))
    ranked = EarlyExitRanker(ranker(), threshold=0.5).fit(X, y, qid=qid)
    with pytest.raises(ValueError, match="qid has 3 entries, but X has 240 rows"):
        ranked.predict(X, qid[:3])
    with pytest.raises(ValueError, match="qid has 3 entries, but X has 240 rows"):
        ranked.curve(X, y, qid=qid[:3])


def test_losses_without_probabilities():
    X, y, _ = make(6, n_classes=2)
    model = MiserClassifier(loss=Odd(), max_iter=12).fit(X, y)
    with pytest.raises(ValueError, match="link of the log-loss"):
        EarlyExitClassifier(model).fit(X, y)


def test_losses_that_derive_from_the_log_loss_and_have_another_link():
    class Same(BinaryLogLoss):
        pass

    class Blurred(BinaryLogLoss):
        def response(self, raw):
            return 0.5 * super().response(raw) + 0.25

    X, y, _ = make(6, n_classes=2)
    model = MiserClassifier(loss=Same(), max_iter=12).fit(X, y)
    assert EarlyExitClassifier(model, threshold=0.9).fit(X, y).predict(X).shape == y.shape
    model = MiserClassifier(loss=Blurred(), max_iter=12).fit(X, y)
    with pytest.raises(ValueError, match="link of the log-loss"):
        EarlyExitClassifier(model).fit(X, y)
