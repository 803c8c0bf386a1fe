"""What XGBoost makes of an exported model: the same branch for every row, the same answers."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from greedymiser import (
    CostModel,
    EarlyExitClassifier,
    MiserClassifier,
    MiserRanker,
    MiserRegressor,
    baseline,
    encode_for_lightgbm,
    load,
    save,
    to_xgboost,
)
from greedymiser._core.threads import Threads
from greedymiser.data.tables import ArrayTable
from greedymiser.losses import Huber, Quantile
from naive import leaf_of
from test_lightgbm_format import (
    KNOWN,
    MESSY,
    Focal,
    Lodger,
    LogCosh,
    Squares,
    Tempered,
    ensembles,
    messy_data,
    patient,
    served,
)

xgboost = pytest.importorskip("xgboost")

INF = math.inf


def booster_of(model):
    return xgboost.Booster(model_file=bytearray(to_xgboost(model), "utf-8"))


def table(booster, X):
    """X as XGBoost takes it; its own reader refuses infinities."""
    return xgboost.DMatrix(
        np.asarray(X, dtype=np.float32),
        feature_names=booster.feature_names,
        feature_types=booster.feature_types,
        enable_categorical=True,
    )


def assert_same(answer, expected):
    np.testing.assert_allclose(answer, expected, rtol=2e-6, atol=2e-6)


def finite(X):
    return np.where(np.isinf(X), np.sign(X) * 1e6, X).astype(np.float32)


@pytest.mark.parametrize(
    ("loss", "objective"),
    [
        ("squared_error", "reg:squarederror"),
        ("absolute_error", "reg:absoluteerror"),
        (Huber(0.3), "reg:pseudohubererror"),
        (Quantile(0.8), "reg:quantileerror"),
        ("poisson", "count:poisson"),
        ("gamma", "reg:gamma"),
        (LogCosh(), "reg:squarederror"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_regressor(loss, objective):
    X, y = messy_data()
    X, y = finite(X), np.exp(y / 3)
    model = MiserRegressor(loss=loss, **MESSY).fit(X, y)
    booster = booster_of(model)
    assert json.loads(booster.save_config())["learner"]["objective"]["name"] == objective
    codes = encode_for_lightgbm(model, X)
    assert_same(booster.predict(table(booster, codes)), model.predict(X))
    # What XGBoost writes again is read again.
    again = xgboost.Booster(model_file=booster.save_raw("json"))
    assert_same(again.predict(table(again, codes)), model.predict(X))


@pytest.mark.parametrize("cuts", [[0.5], [0.0, 1.0], [-0.5, 0.3, 1.1]])
def test_classes(cuts):
    X, y = messy_data()
    X = finite(X)
    model = MiserClassifier(**MESSY).fit(X, np.digitize(y, cuts))
    booster = booster_of(model)
    answer = booster.predict(table(booster, encode_for_lightgbm(model, X)))
    expected = model.predict_proba(X)
    assert_same(answer, expected[:, 1] if len(cuts) == 1 else expected)


@pytest.mark.parametrize("loss", ["lambdamart", "squared_error"])
def test_ranker(loss):
    X, y = messy_data()
    X = finite(X)
    qid = np.repeat(np.arange(60), 10)
    model = MiserRanker(loss=loss, **MESSY).fit(X, np.clip(y.round(), 0, 4), qid=qid)
    booster = booster_of(model)
    answer = booster.predict(table(booster, encode_for_lightgbm(model, X)))
    assert_same(answer, model.predict(X))


@pytest.mark.parametrize("n_classes", [0, 2, 3])
def test_models_without_trees(n_classes):
    X, y = np.arange(40.0)[:, None], np.arange(40.0)
    make = MiserClassifier if n_classes else MiserRegressor
    model = make(tradeoff=1e9, max_iter=3).fit(X, y % n_classes if n_classes else y)
    assert model.features_used_ == []
    booster = booster_of(model)
    expected = model.predict_proba(X) if n_classes else model.predict(X)
    answer = booster.predict(table(booster, X))
    assert_same(answer, expected[:, 1] if n_classes == 2 else expected)


def test_values_at_the_thresholds():
    """XGBoost asks x < t, we x <= t: on the threshold itself, and one float32 beside it."""
    rng = np.random.default_rng(0)
    X = np.round(rng.standard_normal((500, 3)), 1).astype(np.float32)
    y = X.sum(axis=1) + (X[:, 0] > 0.3)
    model = MiserRegressor(max_iter=20, max_depth=4, n_jobs=1).fit(X, y)
    nodes = model.ensemble_.nodes
    cuts = nodes["threshold"][nodes["feature"] >= 0]
    # The largest float32 that is on the left of each threshold, and the next one.
    at = np.where(cuts.astype(np.float32) > cuts, np.nextafter(cuts.astype(np.float32),
                  np.float32(-INF)), cuts.astype(np.float32))  # fmt: skip
    values = np.concatenate([at, np.nextafter(at, np.float32(INF)), X[:, 0]])
    rows = rng.choice(values, (3000, 3)).astype(np.float32)
    assert_same_leaves(model, rows)
    # Also where the values of training were float32 and a threshold is one of them.
    exact = MiserRegressor(max_iter=5, max_bins=8, n_jobs=1).fit(
        np.float32([[0], [1]] * 30), y[:60]
    )
    assert_same_leaves(exact, np.float32([[0], [0.5], [1], [np.nan]]))


def assert_same_leaves(model, rows):
    booster = booster_of(model)
    theirs = booster.predict(table(booster, rows), pred_leaf=True).reshape(len(rows), -1)
    ensemble = model.ensemble_
    for t in range(ensemble.n_trees):
        tree = ensemble.tree(t)
        ours = [leaf_of(tree.nodes, tree.category_sets, row.astype(np.float64)) for row in rows]
        assert theirs[:, t].tolist() == ours


@patient
@given(ensembles(), st.data())
def test_random_ensembles(ensemble, data):
    """Every row at, just beside and far from the thresholds ends in the same leaf of each tree."""
    cuts = ensemble.nodes["threshold"][ensemble.nodes["category_set"] < 0]
    with np.errstate(over="ignore"):
        single = cuts.astype(np.float32)
    beside = [np.nextafter(single, np.float32(side)) for side in (-INF, INF)]
    pool = np.concatenate([single, *beside, [np.float32(0)]])
    pool = np.append(pool[np.isfinite(pool)], np.float32(np.nan))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    X = rng.choice(pool, (60, 4))
    for feature, n_known in KNOWN.items():
        X[:, feature] = rng.choice(np.append(np.arange(n_known), np.nan), 60)
    predictor = served(ensemble)
    booster = booster_of(predictor)
    theirs = booster.predict(table(booster, X), pred_leaf=True).reshape(60, -1)
    for t in range(ensemble.n_trees):
        tree = ensemble.tree(t)
        ours = [leaf_of(tree.nodes, tree.category_sets, row.astype(np.float64)) for row in X]
        assert theirs[:, t].tolist() == ours
    raw = booster.predict(table(booster, X), output_margin=True).reshape(60, -1)
    with Threads(1) as threads:
        expected = ensemble.raw_predict(ArrayTable(X.astype(np.float64)), threads).T
    scale = 1.0 + np.abs(ensemble.nodes["value"]).max(initial=0.0)
    np.testing.assert_allclose(raw, expected, rtol=1e-5, atol=1e-5 * scale)


# Frames


def labelled_frame():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({
        "weight": rng.standard_normal(400).astype(np.float32),
        "colour": pd.Categorical(rng.choice(["red", "grün", "", "black"], 400)),
        "size": pd.Categorical(rng.choice([10, 20, 30], 400)),
    })  # fmt: skip
    y = X["weight"] + (X["colour"] == "red") + 0.1 * X["size"].astype(float)
    X.loc[::7, "colour"] = None
    return X, y.to_numpy()


def test_frames_with_categories():
    X, y = labelled_frame()
    model = MiserRegressor(max_iter=20, min_samples_leaf=5, n_jobs=1).fit(X, y)
    booster = booster_of(model)
    assert booster.feature_names == ["weight", "colour", "size"]
    assert booster.feature_types == ["float", "c", "c"]
    assert_same(booster.predict(table(booster, encode_for_lightgbm(model, X))), model.predict(X))
    assert_same(booster.predict(xgboost.DMatrix(X, enable_categorical=True)), model.predict(X))
    # Codes of another frame are others, and XGBoost finds the right ones.
    new = pd.DataFrame({
        "weight": np.float32([0, 1, np.nan]),
        "colour": pd.Categorical(["red", "black", None]),
        "size": pd.Categorical([30, 20, 30]),
    })  # fmt: skip
    assert_same(booster.predict(xgboost.DMatrix(new, enable_categorical=True)), model.predict(new))


def test_codes_of_categories_that_xgboost_cannot_name():
    X, y = labelled_frame()
    X["size"] = pd.Categorical(X["size"].astype(float) / 4)
    model = MiserRegressor(max_iter=20, min_samples_leaf=5, n_jobs=1).fit(X, y)
    booster = booster_of(model)
    assert_same(booster.predict(table(booster, encode_for_lightgbm(model, X))), model.predict(X))


def test_names_that_xgboost_cannot_read():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.standard_normal((200, 3)), columns=["a[0]", "a_0_", "b c<d"])
    model = MiserRegressor(max_iter=3, n_jobs=1).fit(X, X.sum(axis=1))
    with pytest.warns(UserWarning, match=r"XGBoost cannot read these feature names: 'a\[0\]' is"):
        booster = booster_of(model)
    assert booster.feature_names == ["a_0__2", "a_0_", "b c_d"]
    assert_same(booster.predict(table(booster, X)), model.predict(X.astype(np.float32)))


# What is refused, and what is not


def test_models_that_xgboost_has_no_place_for():
    X, y = messy_data()
    model = MiserClassifier(**MESSY).fit(X, y > 1)
    exits = EarlyExitClassifier(model, threshold=0.8).fit(X, y > 1)
    with pytest.raises(ValueError, match="XGBoost's format has no early exits; export the model"):
        to_xgboost(exits)
    assert to_xgboost(exits.estimator_) == to_xgboost(model)
    own = MiserRegressor(loss=Squares(), max_iter=2).fit(X, np.exp(y / 4))
    with pytest.raises(ValueError, match="the loss Squares has a response of its own, and none"):
        to_xgboost(own)
    tempered = MiserClassifier(loss=Tempered(3), **MESSY).fit(X, np.digitize(y, [0.0, 1.0]))
    with pytest.raises(ValueError, match="the loss Tempered has a response of its own"):
        to_xgboost(tempered)
    with pytest.raises(TypeError, match="is not a fitted model"):
        to_xgboost(MiserRegressor())


@pytest.mark.parametrize("loss", [Focal(), Lodger()])
def test_losses_of_ones_own_keep_the_link_that_they_inherit(loss):
    X, y = messy_data()
    X = finite(X)
    model = MiserClassifier(loss=loss, **MESSY) if isinstance(loss, Focal) else None
    model = model or MiserRegressor(loss=loss, **MESSY)
    model.fit(X, (y > 1) * 1.0)
    booster = booster_of(model)
    answer = booster.predict(table(booster, encode_for_lightgbm(model, X)))
    expected = model.predict_proba(X)[:, 1] if isinstance(loss, Focal) else model.predict(X)
    assert_same(answer, expected)


def test_a_file_is_exported_as_its_model_is(tmp_path):
    X, y = labelled_frame()
    model = MiserRegressor(max_iter=10, n_jobs=1).fit(X, y)
    save(model, tmp_path / "m.miser")
    assert to_xgboost(load(tmp_path / "m.miser")) == to_xgboost(model)


# And back


@pytest.mark.parametrize("n_classes", [0, 2, 3])
def test_an_exported_model_is_read_back_as_a_baseline(n_classes):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 4)).astype(np.float32)
    X[rng.random(X.shape) < 0.1] = np.nan
    y = np.nan_to_num(X).sum(axis=1)
    costs = CostModel([1.0, 2.0, 3.0, 4.0])
    if n_classes:
        y = np.digitize(y, [0.0] if n_classes == 2 else [-1.0, 1.0])
    make = MiserClassifier if n_classes else MiserRegressor
    model = make(costs, tradeoff=1e-4, max_iter=15, n_jobs=1).fit(X, y)
    read = baseline(booster_of(model), costs=costs)
    assert_same(read.predictor_.raw_predict(X), model.predictor_.raw_predict(X))
    assert (read.cost_, read.features_used_) == (model.cost_, model.features_used_)
    assert read.prediction_costs(X).tolist() == model.prediction_costs(X).tolist()


def test_categories_are_read_back():
    X, y = labelled_frame()
    model = MiserRegressor(max_iter=15, min_samples_leaf=5, n_jobs=1).fit(X, y)
    read = baseline(booster_of(model))
    assert_same(read.predict(X), model.predict(X))
    assert read.features_used_ == model.features_used_
