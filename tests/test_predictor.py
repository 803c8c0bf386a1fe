"""Prediction from a finished model."""

import math
import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.model_selection import cross_val_score

import naive
from greedymiser import (
    CostModel,
    EarlyExitRanker,
    MiserClassifier,
    MiserRanker,
    MiserRegressor,
    as_predictor,
    load,
    save,
)
from greedymiser.losses import BinaryLogLoss, Loss, MultinomialLogLoss
from greedymiser.model.exit_rules import Above, Confident, Proximity, place_scores, rank_leavers
from greedymiser.model.links import labels, largest_probability
from greedymiser.model.predictor import _blocks
from greedymiser.model.trees import stages_every
from random_examples import examples

patient = examples(60)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((900, 6))
    X[rng.random(X.shape) < 0.1] = np.nan
    y = np.nan_to_num(X[:, 0]) + np.nan_to_num(X[:, 1]) ** 2
    return X, y


MODELS = {
    "regressor": lambda X, y: MiserRegressor(max_iter=25).fit(X, y),
    "poisson": lambda X, y: MiserRegressor(loss="poisson", max_iter=25).fit(X, np.abs(y)),
    "binary": lambda X, y: MiserClassifier(max_iter=25).fit(X, np.where(y > 1, "b", "a")),
    "classes": lambda X, y: MiserClassifier(max_iter=15).fit(X, np.digitize(y, [0.0, 1.0]) + 5),
    "ranker": lambda X, y: MiserRanker(max_iter=25).fit(
        X, np.digitize(y, [0.0, 1.0]), qid=np.arange(len(y)) // 20
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request, rows):
    return MODELS[request.param](*rows)


def test_predictions_are_those_of_the_estimator(model, rows):
    X, _ = rows
    served = as_predictor(model)
    assert as_predictor(served) is served
    for some in (X, X[:1], X[:0], X.astype(np.float32), np.asfortranarray(X), X.tolist()):
        mine = np.asarray(some)
        whole = mine if len(mine) else X[:1]  # estimators refuse to predict for nobody
        assert np.array_equal(served.predict(some), model.predict(whole)[: len(mine)])
    assert served.cost_ == model.cost_
    assert np.array_equal(served.prediction_costs(X), model.prediction_costs(X))
    assert served.features_used_ == model.features_used_
    assert served.resources_used_ == model.resources_used_
    assert served.receipt() == model.receipt()
    assert served.stage_features(0) == model.ensemble_.features
    assert served.leaving_stages(X).tolist() == [0] * len(X)
    if served.kind == "classifier":
        assert np.array_equal(served.predict_proba(X), model.predict_proba(X))
        assert np.array_equal(served.decision_function(X), model.decision_function(X))
    else:
        with pytest.raises(AttributeError, match="has no classes"):
            served.predict_proba(X)


def test_zero_rounds(rows):
    X, y = rows
    served = as_predictor(MiserRegressor(max_iter=5).fit(X, y).truncate(0))
    assert np.array_equal(served.predict(X[:3]), np.repeat(served.begin(1)[0], 3))
    assert served.cost_ == 0


def test_sparse_matrices(rows):
    X, y = np.nan_to_num(rows[0]).round(), rows[1]
    model = MiserRegressor(max_iter=10).fit(X, y)
    for kind in (sparse.csr_matrix, sparse.csc_matrix, sparse.coo_array):
        assert np.array_equal(as_predictor(model).predict(kind(X)), model.predict(X))


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_frames_need_only_the_columns_in_use(rows, frame):
    X, y = rows
    names = ["a", "b", "c", "d", "e", "f"]
    model = MiserRegressor(max_iter=10, tradeoff=0.01).fit(pd.DataFrame(X, columns=names), y)
    served = as_predictor(model)
    used = served.features_used_
    assert 0 < len(used) < 6
    expected = model.predict(pd.DataFrame(X, columns=names))
    table = frame({name: X[:, names.index(name)] for name in [*reversed(used), "stranger"][:-1]})
    assert np.array_equal(served.predict(table), expected)
    assert np.array_equal(served.predict(table[:3]), expected[:3])
    assert np.array_equal(served.predict(X), expected)  # by position
    with pytest.raises(ValueError, match=f"no column '{used[0]}'"):
        served.predict(frame({name: X[:, 0] for name in names if name != used[0]}))


def test_categories_in_frames():
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "colour": pd.Categorical(rng.choice(["red", "green", "blue"], 400)),
            "size": rng.standard_normal(400),
        }
    )
    y = (frame["colour"] == "red") + 0.1 * frame["size"]
    model = MiserRegressor(max_iter=20).fit(frame, y)
    served = as_predictor(model)
    expected = model.predict(frame)
    assert np.array_equal(served.predict(frame[["size", "colour"]]), expected)
    assert np.array_equal(served.predict(frame[["size", "colour"]][:5]), expected[:5])


def test_labels_need_a_frame():
    frame = pd.DataFrame({"colour": pd.Categorical(["red", "blue"] * 50), "x": np.arange(100.0)})
    model = MiserRegressor(max_iter=5).fit(frame, np.arange(100) % 2)
    with pytest.raises(ValueError, match="'colour' holds labels such as 'blue'"):
        as_predictor(model).predict(np.zeros((1, 2)))


def test_frames_are_read_by_the_names_of_the_costs(rows):
    X, y = rows
    names = ["a", "b", "c", "d", "e", "f"]
    costs = CostModel(dict.fromkeys(names, 1.0))
    model = MiserRegressor(costs=costs, max_iter=10).fit(X, y)
    served = as_predictor(model)
    expected = model.predict(X)
    named = pd.DataFrame(X, columns=names)
    assert np.array_equal(served.predict(named[names[::-1]]), expected)
    assert np.array_equal(served.predict(pd.DataFrame(X, columns=list("uvwxyz"))), expected)


def test_wrong_queries_of_a_plain_ranker(rows):
    served = as_predictor(MODELS["ranker"](*rows))
    with pytest.raises(ValueError, match="qid has 1 entries, but X has 3 rows"):
        served.predict(rows[0][:3], qid=[1])


def test_wide_rows_come_in_small_blocks():
    assert len(_blocks(1000, None, 10)) == 1
    assert len(_blocks(1000, None, 1_000_000)) == 16
    starts = np.array([0, 300, 1000, 2100, 2200], dtype=np.intp)
    assert _blocks(2200, starts, 10) == [(0, 2100), (2100, 2200)]
    assert _blocks(0, None, 10) == []


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.ones((2, 5)), "5 features, but the model knows 6"),
        (np.ones(6), r"two dimensions, got shape \(6,\)"),
        (np.ones((2, 2, 6)), "two dimensions"),
        ([["a"] * 6], "X must be numeric"),
        (np.ones((1, 6), dtype=complex), "complex"),
        (np.full((1, 6), "1.5"), "X must be numeric"),
        (sparse.csr_matrix(np.ones((2, 6), dtype=complex)), "complex"),
        (None, "X must"),
        (sparse.csr_matrix(np.ones((2, 7))), "7 features"),
        (pd.DataFrame(np.ones((2, 7))), "7 features"),
    ],
)
def test_bad_input(rows, X, message):
    served = as_predictor(MiserRegressor(max_iter=3).fit(*rows))
    with pytest.raises(ValueError, match=message):
        served.predict(X)


def test_not_a_model():
    with pytest.raises(TypeError, match="str is not a fitted model"):
        as_predictor("model")
    with pytest.raises(TypeError, match="MiserRegressor is not a fitted model"):
        as_predictor(MiserRegressor())


@pytest.mark.subprocess
def test_serving_needs_no_training_code(tmp_path):
    code = """if True:
        import sys
        import numpy as np
        from greedymiser.costs.cost_model import CostModel
        from greedymiser.losses import SquaredError
        from greedymiser.model.predictor import Predictor, Stage
        from greedymiser.model.trees import Ensemble
        ensemble = Ensemble.empty(np.zeros(1), 2)
        stage = Stage(ensemble, 0, 0, 0)
        Predictor("regressor", (stage,), None, CostModel([1, 2]), SquaredError(), 2).predict(
            np.ones((3, 2)))
        heavy = {"sklearn", "matplotlib", "pandas", "greedymiser.estimators", "greedymiser.engines"}
        print(sorted(heavy & set(sys.modules)))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- who leaves -----------------------------------------------------------------------------------

scores_of_queries = st.lists(
    st.lists(st.sampled_from([-2.0, -1.0, 0.0, 0.25, 1.0, 1.5, 7.0]), max_size=12), max_size=5
)


def flat(queries):
    scores = np.array([score for query in queries for score in query], dtype=np.float64)
    starts = np.append(0, np.cumsum([len(query) for query in queries])).astype(np.intp)
    return scores, starts


@patient
@given(scores_of_queries, st.integers(1, 6))
def test_place_scores(queries, place):
    scores, starts = flat(queries)
    out = np.empty(len(scores))
    place_scores(scores, starts, place, out)
    assert out.tolist() == [naive.place_score(query, place) for query in queries for _ in query]


@patient
@given(scores_of_queries, st.integers(1, 8), st.sampled_from([0.0, 0.5, 3.0, math.inf]))
def test_proximity(queries, i, slack):
    scores, starts = flat(queries)
    stays = Proximity(slack, n_exits=9).stays(scores[None], i - 1, starts)
    leaves = [gone for query in queries for gone in naive.too_far_below(query, i, 9, slack)]
    assert (~stays).tolist() == leaves


@patient
@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([-1.0, 0.0, 0.5, 2.0, 1e9])), min_size=1)
)
def test_those_who_stay_are_ranked_first(documents):
    left = np.array([stage for stage, _ in documents], dtype=np.intp)
    before = np.array([score for _, score in documents])
    after = before.copy()
    rank_leavers(after, left, np.array([0, len(left)], dtype=np.intp), 4)
    last = left.max()
    assert np.array_equal(after[left == last], before[left == last])
    for i in range(len(left)):
        for j in range(len(left)):
            if left[i] < left[j]:
                assert after[i] < after[j]
            elif left[i] == left[j] and before[i] < before[j]:
                assert after[i] <= after[j]


def test_queries_do_not_mix():
    scores = np.array([5.0, 1.0, 9.0, 2.0])
    rank_leavers(scores, np.array([0, 1, 0, 0]), np.array([0, 2, 4]), 2)
    assert scores[0] < scores[1] == 1.0
    assert scores[2:].tolist() == [9.0, 2.0]


def test_confidence_is_a_probability():
    one = np.array([[-3.0, 0.0, 0.5, 800.0]])
    assert np.allclose(largest_probability(one), [1 / (1 + np.exp(-3)), 0.5, 0.62246, 1.0])
    three = np.array([[0.0, 1000.0], [0.0, 0.0], [0.0, -1000.0]])
    assert np.allclose(largest_probability(three), [1 / 3, 1.0])
    assert Confident(1.0).stays(one, 0, None).all()
    assert Confident(0.5).stays(one, 0, None).tolist() == [False, True, False, False]


def test_rules_say_why():
    assert "0.9" in Confident(0.9).because(0)
    assert "number 5" in Proximity(2.0, 10).because(0)
    assert "not above 0.5" in Above((0.1, 0.5)).because(1)


# -- stages ---------------------------------------------------------------------------------------


def test_stages_cover_all_rounds(rows):
    ensemble = MiserRegressor(max_iter=25).fit(*rows).ensemble_
    stages = stages_every(ensemble, 10)
    assert [(s.first, s.last, s.n_trees) for s in stages] == [
        (0, 10, 10),
        (10, 20, 20),
        (20, 25, 25),
    ]
    assert len(stages_every(ensemble, 100)) == 1
    assert [(s.first, s.last) for s in stages_every(ensemble.truncated(0), 10)] == [(0, 0)]


def test_stage_costs_count_what_is_new(rows):
    X, y = rows
    costs = CostModel(np.arange(1.0, 7.0), tree_cost=0.5)
    model = MiserRanker(costs=costs, max_iter=30).fit(X, np.clip(y.round(), 0, 4))
    served = EarlyExitRanker(model, every=7).fit(X, y).predictor_
    assert len(served.stages) == 5
    for k, cost in enumerate(served.stage_costs):
        assert cost == model.truncate(min(7 * (k + 1), 30)).cost_
    news = [served.stage_features(k) for k in range(5)]
    assert sorted(f for new in news for f in new) == model.ensemble_.features
    assert all(not set(a) & set(b) for i, a in enumerate(news) for b in news[:i])


# -- losses of a user, and the classes that they make likely ---------------------------------------


class LogLog(Loss):
    """Log-loss with the complementary log-log link: raw predictions of 0 mean 1 - 1/e, not 1/2."""

    def values(self, y, raw):
        p = self.second(raw)
        return -np.log(np.where(y == 1, p, 1.0 - p))

    def gradients(self, y, raw):
        p, rate = self.second(raw), np.exp(np.clip(raw, -20.0, 3.0))
        return np.where(y == 1, -rate * (1.0 - p) / p, rate), rate

    def second(self, raw):
        return np.clip(-np.expm1(-np.exp(np.clip(raw, -20.0, 3.0))), 1e-9, 1.0 - 1e-9)

    def response(self, raw):
        return np.stack([1.0 - self.second(raw), self.second(raw)])


class OneColumn(LogLog):
    """The same, told as many would: the probability of the second class alone."""

    def response(self, raw):
        return self.second(raw)


class Reversed(MultinomialLogLoss):
    """Each class is the likelier the lower its raw prediction is."""

    def response(self, raw):
        return super().response(-raw)


class Hinge(Loss):
    """Has no probabilities."""

    def values(self, y, raw):
        return np.maximum(0.0, 1.0 - (2.0 * y - 1.0) * raw)

    def gradients(self, y, raw):
        sign = 2.0 * y - 1.0
        return np.where(sign * raw < 1.0, -sign, 0.0), None


def three_ways(model):
    """The model itself, served, and from a pickle."""
    return [model, as_predictor(model), pickle.loads(pickle.dumps(model))]


@pytest.mark.parametrize("loss", [LogLog(), OneColumn(), Reversed(3)], ids=["2", "1", "3"])
def test_the_label_is_the_likeliest_class_whatever_the_loss(rows, loss):
    X, y = rows
    words = np.array(["low", "middle", "top"])
    cuts = [1.0] if loss.n_outputs == 1 else [0.0, 1.0]
    model = MiserClassifier(loss=loss, max_iter=10).fit(X, words[np.digitize(y, cuts)])
    for some in three_ways(model):
        likeliest = np.argmax(some.predict_proba(X), axis=1)
        assert some.predict(X).tolist() == model.classes_[likeliest].tolist()
        assert some.predict(X[:1]).tolist() == model.classes_[likeliest[:1]].tolist()
        np.testing.assert_allclose(some.predict_proba(X).sum(axis=1), 1.0)
        assert some.predict_proba(X).shape == (len(X), len(model.classes_))
    stages = zip(model.staged_predict(X), model.staged_predict_proba(X), strict=True)
    for said, shares in stages:
        assert said.tolist() == model.classes_[np.argmax(shares, axis=1)].tolist()
    # Otherwise this would be the same as the sign, or the largest raw prediction.
    raw = as_predictor(model).raw_predict(X)
    by_raw = raw[0] > 0 if len(raw) == 1 else np.argmax(raw, axis=0)
    assert np.mean(by_raw != likeliest) > 0.05


def test_the_log_losses_need_no_probabilities_for_labels(rows, monkeypatch):
    X, y = rows
    model = MiserClassifier(max_iter=5).fit(X, y > 1)
    several = MiserClassifier(max_iter=5).fit(X, np.digitize(y, [0.0, 1.0]))
    expected = model.predict(X), several.predict(X)
    monkeypatch.setattr("greedymiser.model.predictor.probabilities", None)
    assert (model.predict(X) == expected[0]).all()
    assert (as_predictor(several).predict(X) == expected[1]).all()


def test_of_equally_likely_classes_the_first_is_predicted():
    classes = np.array(["a", "b", "c"])
    for loss in (BinaryLogLoss(), OneColumn(), Hinge()):
        tie = np.log(np.log(2.0)) if isinstance(loss, OneColumn) else 0.0
        assert labels(np.array([[tie]]), classes[:2], loss).tolist() == ["a"]
    for loss in (MultinomialLogLoss(3), Reversed(3)):
        assert labels(np.zeros((3, 1)), classes, loss).tolist() == ["a"]


def test_a_loss_without_probabilities(rows, tmp_path):
    X, y = rows
    model = MiserClassifier(loss=Hinge(), max_iter=10).fit(X, y > 1)
    assert not hasattr(model, "predict_proba")
    assert not hasattr(MiserClassifier(loss=Hinge()), "predict_proba")
    assert not hasattr(model, "staged_predict_proba")
    assert hasattr(MiserClassifier(), "predict_proba")
    save(model, tmp_path / "hinge.miser")
    for some in (*three_ways(model), load(tmp_path / "hinge.miser")):
        assert (some.predict(X) == (some.decision_function(X) > 0)).all()
    with pytest.raises(AttributeError, match="the loss Hinge gives no class probabilities"):
        as_predictor(model).predict_proba(X)
    # What scikit-learn does with classifiers that have no probabilities.
    assert cross_val_score(model, X, y > 1, cv=2, scoring="roc_auc").min() > 0.8


def test_probabilities_of_the_wrong_shape_are_refused_before_training(rows):
    X, y = rows

    class Flat(LogLog):
        def response(self, raw):
            return np.stack([raw, raw, raw])

    with pytest.raises(ValueError, match=r"Flat must have shape .* here \(2, 1\), got \(3, 1\)"):
        MiserClassifier(loss=Flat(), max_iter=10).fit(X, y > 1)


def test_files_answer_as_losses_of_a_user_did(rows, tmp_path):
    X, y = rows

    class Sigmoid(OneColumn):
        gradients, values = BinaryLogLoss().gradients, BinaryLogLoss().values

        def response(self, raw):
            return 1.0 / (1.0 + np.exp(-raw))

    model = MiserClassifier(loss=Sigmoid(), max_iter=10).fit(X, y > 1)
    save(model, tmp_path / "m.miser", response="sigmoid")
    loaded = load(tmp_path / "m.miser")
    assert (loaded.predict(X) == model.predict(X)).all()
    np.testing.assert_allclose(loaded.predict_proba(X), model.predict_proba(X))
    with pytest.raises(ValueError, match="LogLog has a response of its own"):
        save(MiserClassifier(loss=LogLog(), max_iter=2).fit(X, y > 1), tmp_path / "m.miser")


@pytest.mark.parametrize(
    ("qid", "message"),
    [
        (5, r"qid must have one dimension, got shape \(\)"),
        ([[1, 2]], r"qid must have one dimension, got shape \(1, 2\)"),
        ([1], "qid has 1 entries, but X has 2 rows"),
    ],
)
def test_queries_of_the_wrong_shape(rows, qid, message):
    X, y = rows
    model = MiserRanker(max_iter=3).fit(X, np.digitize(y, [0.0, 1.0]))
    with pytest.raises(ValueError, match=message):
        as_predictor(model).predict(X[:2], qid)
