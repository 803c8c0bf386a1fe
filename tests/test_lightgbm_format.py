"""What is written in LightGBM's format predicts what we predict, whoever reads it."""

import math
import re
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import lightgbm
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.cronus import Cronus
from greedymiser import (
    CostModel,
    EarlyExitClassifier,
    MiserClassifier,
    MiserRanker,
    MiserRegressor,
    Predictor,
    load,
    save,
)
from greedymiser._core.threads import Threads
from greedymiser.data.tables import ArrayTable
from greedymiser.datasets import load_thyroid
from greedymiser.files.lightgbm_format import encode_for_lightgbm, to_lightgbm
from greedymiser.losses import (
    BinaryLogLoss,
    Huber,
    Loss,
    MultinomialLogLoss,
    Poisson,
    Quantile,
    SquaredError,
)
from greedymiser.model.predictor import Stage, as_predictor
from greedymiser.model.trees import CATEGORY_WORDS, NODE_DTYPE, Ensemble, Tree
from random_examples import examples

INF = math.inf
patient = examples(60)


def booster_of(model, **options):
    return lightgbm.Booster(model_str=to_lightgbm(model, **options))


def assert_same(answer, expected):
    np.testing.assert_allclose(answer, expected, rtol=1e-9, atol=1e-9)


def messy_data(n=600, seed=0):
    """Numbers with gaps and infinities, a column that is only there or not, and categories."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 6))
    X[:, 1] = np.sign(X[:, 1])  # splits at exactly 0
    X[:, 2] = 3.0 * rng.integers(0, 40, n)  # categories whose codes are not their values
    X[:, 3] = 5.0  # with gaps, splits at +inf
    signal = X[:, 0] + X[:, 1] + (X[:, 2] % 2) + 0.1 * rng.standard_normal(n)
    X[:, 4][rng.random(n) < 0.05] = INF
    X[:, 4][rng.random(n) < 0.05] = -INF
    gaps = rng.random(X.shape) < 0.15
    X[gaps] = np.nan
    return X, signal + 2.0 * gaps[:, 3] + gaps[:, 2] + np.isinf(X[:, 4])


MESSY = {"categorical_features": [2], "max_iter": 25, "early_stopping": False, "n_jobs": 1}


class LogCosh(Loss):
    """A loss of one's own that predicts what it adds up."""

    def values(self, y, raw):
        return np.logaddexp(raw - y, y - raw) - np.log(2.0)

    def gradients(self, y, raw):
        slope = np.tanh(raw - y)
        return slope, 1.0 - slope**2


class Squares(Loss):
    """A loss of one's own with a link of its own: predictions are squares."""

    def values(self, y, raw):
        return 0.5 * (raw - np.sqrt(y)) ** 2

    def gradients(self, y, raw):
        return raw - np.sqrt(y), None

    def response(self, raw):
        return raw**2


class Focal(BinaryLogLoss):
    """A loss of one's own with the link of one that LightGBM knows."""

    def gradients(self, y, raw):
        gradient, hessian = super().gradients(y, raw)
        return 0.5 * gradient, 0.5 * hessian


class Lodger(Loss):
    """A loss that only borrows its link."""

    response = Poisson.response

    def gradients(self, y, raw):
        return np.exp(raw) - y, np.exp(raw)

    def values(self, y, raw):
        return np.exp(raw) - y * raw


class Stranger:
    """A loss that does not derive from ours."""

    def values(self, y, raw):
        return 0.5 * (raw - y) ** 2

    def gradients(self, y, raw):
        return raw - y, None


# -- every task and loss ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "objective"),
    [
        ("squared_error", "regression"),
        ("absolute_error", "regression_l1"),
        ("huber", "huber"),
        ("quantile", "quantile"),
        ("poisson", "poisson"),
        ("gamma", "gamma"),
        (Huber(delta=0.5), "huber"),
        (Quantile(0.8), "quantile"),
        (LogCosh(), "regression"),
        (Stranger(), "regression"),
        (Lodger(), "poisson"),
    ],
)
def test_regressor(loss, objective):
    X, y = messy_data()
    model = MiserRegressor(loss=loss, **MESSY).fit(X, np.abs(y) + 0.1)
    booster = booster_of(model)
    assert booster.params["objective"] == objective
    codes = encode_for_lightgbm(model, X)
    assert_same(booster.predict(codes), model.predict(X))
    np.testing.assert_array_equal(booster.predict(codes, raw_score=True), model._raw_predict(X)[0])


def test_objective_lines_are_those_that_lightgbm_writes():
    X, y = messy_data(200)
    y = np.abs(y) + 0.1
    labels = {"binary": (y > 1).astype(int), "multiclass": np.arange(len(y)) % 3}
    models = {
        loss: MiserRegressor(loss=loss, max_iter=2).fit(X, y)
        for loss in ("squared_error", "absolute_error", "huber", "quantile", "poisson", "gamma")
    }
    models |= {name: MiserClassifier(max_iter=2).fit(X, y) for name, y in labels.items()}
    models["ranker"] = MiserRanker(max_iter=2).fit(X, labels["binary"])
    for model in models.values():
        ours = re.search("^objective=(.*)$", to_lightgbm(model), re.MULTILINE)[1]
        name = ours.split()[0]
        target = labels.get("binary" if name == "lambdarank" else name, y)
        theirs = lightgbm.train(
            {
                "objective": name,
                "num_class": 3 if name == "multiclass" else 1,
                "num_threads": 1,
                "verbose": -1,
            },
            lightgbm.Dataset(X, target, group=[200] if name == "lambdarank" else None),
            num_boost_round=1,
        ).model_to_string()
        assert f"\nobjective={ours}\n" in theirs


def test_own_link_predicts_raw_scores():
    X, y = messy_data()
    model = MiserRegressor(loss=Squares(), **MESSY).fit(X, np.abs(y))
    raw = model._raw_predict(X)[0]
    assert "\nobjective=custom\n" in to_lightgbm(model)
    assert_same(booster_of(model).predict(encode_for_lightgbm(model, X)), raw)
    assert_same(model.predict(X), raw**2)


@pytest.mark.parametrize("loss", ["log_loss", Focal()])
def test_two_classes(loss):
    X, y = messy_data()
    model = MiserClassifier(loss=loss, **MESSY).fit(X, np.where(y > 1, "yes", "no"))
    booster, codes = booster_of(model), encode_for_lightgbm(model, X)
    assert_same(booster.predict(codes), model.predict_proba(X)[:, 1])
    np.testing.assert_array_equal(
        booster.predict(codes, raw_score=True), model.decision_function(X)
    )


def test_many_classes():
    X, y = messy_data()
    model = MiserClassifier(**MESSY).fit(X, np.digitize(y, [0.0, 1.0, 2.0]))
    booster, codes = booster_of(model), encode_for_lightgbm(model, X)
    assert booster.num_model_per_iteration() == 4
    assert booster.num_trees() == model.ensemble_.n_trees
    assert_same(booster.predict(codes), model.predict_proba(X))
    np.testing.assert_array_equal(
        booster.predict(codes, raw_score=True), model.decision_function(X)
    )


class Tempered(MultinomialLogLoss):
    """Many classes with a link of one's own."""

    def response(self, raw):
        return super().response(0.5 * raw)


class Plain(MultinomialLogLoss):
    """Many outputs that are predicted as they are."""

    response = Loss.response


@pytest.mark.parametrize("loss", [Tempered(3), Plain(3)])
def test_many_classes_with_a_loss_of_ones_own(loss):
    X, y = messy_data()
    model = MiserClassifier(loss=loss, **MESSY).fit(X, np.digitize(y, [0.0, 1.0]))
    booster = booster_of(model)
    assert_same(booster.predict(encode_for_lightgbm(model, X)), model.decision_function(X))


@pytest.mark.parametrize("loss", ["lambdamart", "squared_error", Poisson(), LogCosh()])
def test_ranker(loss):
    X, y = messy_data()
    labels, qid = np.clip(np.round(y), 0, 4), np.arange(len(y)) // 20
    model = MiserRanker(loss=loss, **MESSY).fit(X, labels, qid=qid)
    assert_same(booster_of(model).predict(encode_for_lightgbm(model, X)), model.predict(X))


def test_thyroid():
    data = load_thyroid()
    model = MiserClassifier(costs=data.costs, tradeoff=1e-4, max_iter=40, n_jobs=1)
    model.fit(data.X_train, data.y_train)
    assert_same(booster_of(model).predict(data.X_test), model.predict_proba(data.X_test))


# -- kinds of models and of X -----------------------------------------------------------------


def test_float32():
    X, y = messy_data()
    model = MiserRegressor(max_iter=20, n_jobs=1).fit(X.astype(np.float32), y)
    X = X.astype(np.float32)
    for options in ({}, {"dtype": "float32"}):
        assert_same(booster_of(model, **options).predict(X), model.predict(X))


def test_frame_with_categories():
    """LightGBM encodes the categories of a data frame by itself, also those that are new."""
    rng = np.random.default_rng(0)
    colours = rng.choice(["red", "green", "blue", "black"], 400)
    sizes = rng.choice([10, 20, 30], 400)
    X = pd.DataFrame(
        {
            "weight": rng.standard_normal(400),
            "colour": pd.Categorical(colours),
            "size": pd.Categorical(sizes),
        }
    )
    y = X["weight"].to_numpy() + (colours == "red") + 0.1 * sizes
    X.loc[::7, "colour"] = None
    X.loc[::5, "size"] = None
    model = MiserRegressor(max_iter=20, min_samples_leaf=5, n_jobs=1).fit(X, y)
    booster = booster_of(model)
    assert booster.feature_name() == ["weight", "colour", "size"]
    assert_same(booster.predict(encode_for_lightgbm(model, X)), model.predict(X))
    assert_same(booster.predict(X), model.predict(X))
    new = pd.DataFrame(
        {
            "weight": [0.0, 1.0, np.nan, 2.0],
            "colour": pd.Categorical(["mauve", "red", None, "black"]),
            "size": pd.Categorical([30, 40, 20, None]),
        }
    )
    assert_same(booster.predict(new), model.predict(new))
    assert_same(booster.predict(encode_for_lightgbm(model, new)), model.predict(new))
    # Of a frame, the columns that the model uses are enough, in any order.
    cut = model.truncate(1)
    used = new[cut.features_used_[::-1]]
    assert_same(booster_of(cut).predict(encode_for_lightgbm(cut, used)), cut.predict(new))


@pytest.mark.parametrize("unit", ["s", "ns"])
def test_categories_that_cannot_be_written_are_refused_by_lightgbm(unit):
    days = pd.date_range("2020-01-01", periods=4).as_unit(unit)
    X = pd.DataFrame({"day": pd.Categorical(np.repeat(days, 50)), "x": np.arange(200.0)})
    model = MiserRegressor(max_iter=5).fit(X, np.repeat([0.0, 3.0, 1.0, 2.0], 50))
    booster = booster_of(model)
    with pytest.raises(ValueError, match="categorical_feature do not match"):
        booster.predict(X)
    assert_same(booster.predict(encode_for_lightgbm(model, X)), model.predict(X))


def test_codes_beyond_the_known_ones_count_as_unknown():
    X, y = messy_data()
    model = MiserRegressor(**MESSY).fit(X, y)
    codes = encode_for_lightgbm(model, X)
    unknown = codes.copy()
    unknown[:, 2] = np.nan
    expected = booster_of(model).predict(unknown)
    for code in (-1.0, 40.0, 63.0, 64.0, 1000.0):
        unknown[:, 2] = code
        np.testing.assert_array_equal(booster_of(model).predict(unknown), expected)


@pytest.mark.parametrize("n_iter", [0, 1, 7])
def test_truncated(n_iter):
    X, y = messy_data()
    for model in (
        MiserRegressor(loss="poisson", **MESSY).fit(X, np.abs(y)),
        MiserClassifier(**MESSY).fit(X, np.digitize(y, [0.0, 1.0])),
    ):
        short = model.truncate(n_iter)
        booster, codes = booster_of(short), encode_for_lightgbm(short, X)
        expected = short.predict_proba(X) if hasattr(short, "classes_") else short.predict(X)
        assert_same(booster.predict(codes), expected)
        assert booster.num_trees() == max(1, n_iter) * short.ensemble_.n_outputs


def test_deep_trees():
    X, y = messy_data(2000)
    model = MiserRegressor(
        max_iter=3, max_depth=None, max_leaf_nodes=600, min_samples_leaf=1, n_jobs=1
    ).fit(X, y)
    assert np.diff(model.ensemble_.tree_starts).max() > 400
    np.testing.assert_array_equal(booster_of(model).predict(X), model.predict(X))


def test_a_tree_as_deep_as_it_is_large():
    """Every split has a leaf on its left, 300 times."""
    nodes = np.zeros(601, dtype=NODE_DTYPE)
    nodes["category_set"], nodes["feature"], nodes["left"] = -1, -1, -1
    parents = np.arange(0, 600, 2)
    nodes["left"][parents], nodes["feature"][parents] = parents + 1, 0
    nodes["threshold"][parents] = np.arange(300.0)
    nodes["depth"] = (np.arange(601) + 1) // 2
    nodes["value"], nodes["count"] = np.arange(601.0), 601 - np.arange(601)
    nodes["count"][1::2] = 1
    ensemble = Ensemble.empty(np.array([0.5]), 1)
    ensemble = ensemble.extended([Tree(nodes, np.zeros((0, CATEGORY_WORDS), dtype=np.uint64))])
    X = np.append(np.arange(-1.0, 301.0, 0.5), np.nan)[:, None]
    expected = raw_predictions(ensemble, X)
    assert len(np.unique(expected)) == 301
    answer = booster_of(served(ensemble)).predict(X, raw_score=True)
    np.testing.assert_array_equal(answer, expected[0])


def test_predictor_of_one_stage():
    X, y = messy_data()
    model = MiserRegressor(**MESSY).fit(X, y)
    predictor = as_predictor(model)
    codes = encode_for_lightgbm(predictor, X)
    np.testing.assert_array_equal(booster_of(predictor).predict(codes), model.predict(X))
    part = Predictor(
        kind="regressor",
        stages=(Stage(model.ensemble_, 0, 5, 5),),
        rule=None,
        costs=predictor.costs,
        loss=predictor.loss,
        n_features=6,
        categories=predictor.categories,
    )
    assert_same(booster_of(part).predict(codes), part.predict(X))


def test_early_exits_are_refused_and_the_model_inside_is_not():
    X, y = messy_data()
    model = MiserClassifier(max_iter=20, n_jobs=1).fit(X, y > 1)
    early = EarlyExitClassifier(model, threshold=0.9, every=5).fit(X, y > 1)
    for several in (early, as_predictor(early)):
        with pytest.raises(ValueError, match=r"4 stages .* no early exits; export the model"):
            to_lightgbm(several)
    assert_same(booster_of(early.estimator_).predict(X), model.predict_proba(X)[:, 1])


def test_cascades_are_refused(tmp_path):
    X, y = messy_data()
    base = MiserRegressor(CostModel(np.ones(2), tree_cost=0.01), max_iter=40, n_jobs=1)
    cascade = Cronus(base, n_stages=3, tradeoff=1e-4).fit(X[:, :2], y)
    save(cascade, tmp_path / "m.miser")
    for several in (cascade, as_predictor(cascade), load(tmp_path / "m.miser")):
        with pytest.raises(ValueError, match=r"\d stages .* no early exits; export the model"):
            to_lightgbm(several)


def labelled_data():
    X, y = messy_data()
    X = pd.DataFrame(X, columns=["a", "b", "c", "d", "e", "f g"])
    return X.assign(c=pd.Categorical(X["c"].map("{:.0f}".format))), y


@pytest.mark.filterwarnings("ignore:LightGBM cannot read these feature names")
@pytest.mark.parametrize(
    "fit",
    [
        lambda X, y: MiserRegressor(max_iter=9, learning_rate=0.3, n_jobs=1).fit(X, y),
        lambda X, y: MiserRegressor(max_iter=9, learning_rate=1, loss="poisson").fit(X, np.abs(y)),
        lambda X, y: MiserRegressor(max_iter=9, loss=LogCosh()).fit(X, y).truncate(4),
        lambda X, y: MiserClassifier(max_iter=9).fit(X, np.where(y > 1, "yes", "no")),
        lambda X, y: MiserClassifier(max_iter=9).fit(X, np.digitize(y, [0, 1])),
        lambda X, y: MiserRanker(max_iter=9).fit(X, np.round(np.abs(y)), qid=np.arange(600) // 10),
        lambda X, y: EarlyExitClassifier(
            MiserClassifier(max_iter=5, learning_rate=0.3), threshold=0.9
        ).fit(X, y > 1),
    ],
    ids=["regressor", "poisson", "truncated", "two classes", "classes", "ranker", "one stage"],
)
def test_a_file_is_exported_as_its_model_is(tmp_path, fit):
    X, y = labelled_data()
    model = fit(X, y)
    save(model, tmp_path / "m.miser")
    served = load(tmp_path / "m.miser")
    assert to_lightgbm(served) == to_lightgbm(model)
    assert to_lightgbm(served, dtype="float32") == to_lightgbm(model, dtype="float32")
    np.testing.assert_array_equal(encode_for_lightgbm(served, X), encode_for_lightgbm(model, X))


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"parameters": None},
        {"parameters": {"learning_rate": "inf"}},
        {"parameters": {"learning_rate": True}},
        {"parameters": {"learning_rate": -0.5}},
        {"parameters": {"learning_rate": 10**400}},
        {"parameters": {"learning_rate": 0.5}, "base": []},
    ],
    ids=range(7),
)
def test_a_learning_rate_that_a_file_makes_up_is_not_believed(about):
    X, y = messy_data(200)
    predictor = as_predictor(MiserRegressor(max_iter=2, n_jobs=1).fit(X, y))
    assert "[learning_rate: 1.0]" in to_lightgbm(replace(predictor, about=about))


@pytest.mark.parametrize("model", [MiserRegressor(), "model.txt", None])
def test_only_fitted_models(model):
    with pytest.raises(TypeError, match="is not a fitted model"):
        to_lightgbm(model)


def test_unknown_dtype():
    X, y = messy_data(100)
    with pytest.raises(ValueError, match="dtype must be 'float64' or 'float32', got 'float16'"):
        to_lightgbm(MiserRegressor(max_iter=1).fit(X, y), dtype="float16")


# -- the text itself --------------------------------------------------------------------------


def test_names_are_cleaned_and_it_says_so():
    names = ["a b", "a_b", "c:d", "e=f", "x", "ü", "[]", ""]
    X, y = messy_data(200)
    X = pd.DataFrame(np.hstack([X, X[:, :2]]), columns=names)
    model = MiserRegressor(max_iter=3).fit(X, y)
    with pytest.warns(UserWarning, match="'a b' is 'a_b_2', 'c:d' is 'c_d', 'e=f' is 'e_f'"):
        booster = booster_of(model)
    assert booster.feature_name() == ["a_b_2", "a_b", "c_d", "e_f", "x", "ü", "_", "Column_7"]
    assert_same(booster.predict(X), model.predict(X))


def test_many_names_that_change_are_told_in_a_few_lines():
    names = tuple("{" * (i + 1) for i in range(1000))
    model = as_predictor(MiserRegressor(max_iter=1).fit(np.zeros((60, 1000)), np.zeros(60)))
    with pytest.warns(UserWarning, match="'{' is '_', '{{' is '__2', .* and 980 more") as caught:
        text = to_lightgbm(replace(model, feature_names=names))
    assert len(str(caught[0].message)) < 2000
    (line,) = [line for line in text.splitlines() if line.startswith("feature_names=")]
    assert len(set(line.partition("=")[2].split(" "))) == 1000


@pytest.mark.parametrize(
    ("name", "clean"),
    [("a\0z", "a_z"), ("a\nz", "a_z"), ("a\tz", "a_z"), ("a\x7f\x1bz", "a_z"), ("a\x85z", "a_z"),
     ("a\\nz", "a_nz"), ("a\ud800z", "a_z"), ("\r", "_")],
)  # fmt: skip
def test_characters_that_nobody_can_read_are_cleaned(name, clean):
    X, y = messy_data(200)
    model = MiserRegressor(max_iter=3, n_jobs=1).fit(X, y)
    named = replace(as_predictor(model), feature_names=(name, *"bcdef"))
    with pytest.warns(UserWarning, match=f"these feature names: .* is '{clean}'"):
        booster = booster_of(named)
    assert booster.feature_name() == [clean, *"bcdef"]
    assert booster.dump_model()["feature_names"] == [clean, *"bcdef"]
    assert_same(booster.predict(X), model.predict(X))


@pytest.mark.parametrize(
    ("scale", "warns"), [(1e-36, True), (-1e-36, True), (1e-310, True), (1e-30, False)]
)
@pytest.mark.parametrize("named", [True, False])
def test_splits_that_lightgbm_takes_for_zero(scale, warns, named):
    X, y = messy_data(400)
    X = pd.DataFrame({"tiny": scale * np.arange(1.0, 401), "plain": X[:, 0]})
    y = 3.0 * (np.arange(400) > 3) + np.nan_to_num(X["plain"])
    model = MiserRegressor(max_iter=3, min_samples_leaf=1, n_jobs=1)
    model.fit(X if named else X.to_numpy(), y)
    cuts = model.ensemble_.nodes["threshold"][model.ensemble_.nodes["feature"] == 0]
    assert (np.abs(cuts) < 1e-35).any() == warns
    for dtype in ("float64", "float32"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            to_lightgbm(model, dtype=dtype)
        said = [str(warning.message) for warning in caught]
        assert len(said) == int(warns)
        if warns:
            feature = "'tiny'" if named else "feature 0"
            assert f"tells such values of {feature} apart" in said[0]
            assert caught[0].filename == __file__


def test_zero_itself_is_no_reason_to_warn():
    X, y = messy_data()
    model = MiserRegressor(**MESSY).fit(X, y)
    assert (model.ensemble_.nodes["threshold"][model.ensemble_.nodes["feature"] == 1] == 0).any()
    to_lightgbm(model)  # where a warning would be an error


def test_names_of_the_costs_serve_where_columns_have_none():
    X, y = messy_data(200)
    costs = CostModel({name: 1.0 for name in "abcdef"})
    assert booster_of(MiserRegressor(costs, max_iter=3).fit(X, y)).feature_name() == list("abcdef")
    assert booster_of(MiserRegressor(max_iter=3).fit(X, y)).feature_name()[5] == "Column_5"


def test_lightgbm_writes_the_same_trees_again():
    """Node by node, what LightGBM says of the model is what we know of it."""
    X, y = messy_data()
    model = MiserRegressor(**MESSY).fit(X, y)
    booster, codes = booster_of(model), encode_for_lightgbm(model, X)
    again = lightgbm.Booster(model_str=booster.model_to_string())
    np.testing.assert_array_equal(again.predict(codes), model.predict(X))

    told = booster.trees_to_dataframe()
    leaves = told[told["left_child"].isna()]
    nodes = model.ensemble_.nodes
    inner = nodes["left"] >= 0
    assert len(told) == len(nodes)
    assert sorted(leaves["count"]) == sorted(nodes["count"][~inner])
    np.testing.assert_allclose(np.sort(leaves["weight"]), np.sort(nodes["hessian"][~inner]))
    np.testing.assert_allclose(
        np.sort(told["split_gain"].dropna()), np.sort(nodes["gain"][inner]), rtol=1e-5
    )
    np.testing.assert_allclose(
        booster.feature_importance("gain"), model.ensemble_.importances(), rtol=1e-5
    )
    # The sizes of the trees are exact: LightGBM would otherwise fail to find the next tree.
    text = to_lightgbm(model)
    sizes = [int(size) for size in re.search("tree_sizes=(.*)", text)[1].split()]
    begin = text.index("Tree=0")
    for i, size in enumerate(sizes):
        assert text[begin:].startswith(f"Tree={i}\n")
        begin += size
    assert text[begin:].startswith("end of trees")


def test_refit_keeps_the_learning_rate():
    X, y = messy_data()
    model = MiserRegressor(max_iter=5, learning_rate=0.25, n_jobs=1).fit(X, y)
    told = booster_of(model).dump_model()["tree_info"]
    assert [tree["shrinkage"] for tree in told] == [1, 0.25, 0.25, 0.25, 0.25]


# -- random ensembles -------------------------------------------------------------------------

NUMBERS = st.sampled_from([0.0, -0.0, 1e-30, -1.5, 0.1, 7.0, 1e300, -1e300, INF]) | st.floats(
    -1e6, 1e6, allow_subnormal=False
).map(lambda x: 0.0 if abs(x) < 1e-30 else x)
KNOWN = {2: 3, 3: 70}  # number of categories by feature


def leaf(draw):
    node = np.zeros((), dtype=NODE_DTYPE)
    node["value"] = draw(st.floats(-1e3, 1e3))
    node["feature"], node["left"], node["category_set"], node["count"] = -1, -1, -1, 1
    return node


@st.composite
def trees(draw):
    """A tree of some splits; children lie behind their parents, siblings together."""
    nodes, sets = [leaf(draw)], []
    for _ in range(draw(st.integers(0, 7))):
        at = draw(st.sampled_from([i for i, node in enumerate(nodes) if node["left"] < 0]))
        node = nodes[at]
        node["feature"], node["left"] = draw(st.integers(0, 3)), len(nodes)
        node["missing_left"], node["gain"] = draw(st.booleans()), draw(st.floats(0, 1e40))
        if int(node["feature"]) in KNOWN:
            node["category_set"] = len(sets)
            known = 2 ** KNOWN[int(node["feature"])] - 1
            chosen = draw(st.integers(0, known) | st.sampled_from([0, known]))
            sets.append([(chosen >> (64 * word)) & (2**64 - 1) for word in range(CATEGORY_WORDS)])
        else:
            node["threshold"] = draw(NUMBERS)
        nodes += [leaf(draw), leaf(draw)]
        nodes[-1]["depth"] = nodes[-2]["depth"] = node["depth"] + 1
    array = np.array(nodes, dtype=NODE_DTYPE)
    for i in range(len(array) - 1, -1, -1):
        if array["left"][i] >= 0:
            array["count"][i] = array["count"][array["left"][i] + np.arange(2)].sum()
    return Tree(array, np.array(sets, dtype=np.uint64).reshape(-1, CATEGORY_WORDS))


@st.composite
def ensembles(draw):
    k = draw(st.sampled_from([1, 1, 3]))
    baseline = draw(st.lists(st.floats(-10, 10), min_size=k, max_size=k))
    grown = draw(st.lists(trees(), max_size=4))
    grown = grown[: len(grown) // k * k]
    return Ensemble.empty(np.array(baseline), 4).extended(grown)


def rows_for(ensemble, draw):
    """Rows at, just beside and far from the thresholds, with gaps and every category."""
    cuts = ensemble.nodes["threshold"][ensemble.nodes["category_set"] < 0]
    # LightGBM reads values within 1e-35 of 0 as 0.
    beside = np.concatenate([np.nextafter(cuts, -INF), np.nextafter(cuts, INF)])
    pool = np.concatenate([cuts, beside[np.abs(beside) > 1e-35], [0.0, INF, -INF, np.nan]])
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    X = rng.choice(pool, (60, 4))
    for feature, n_known in KNOWN.items():
        X[:, feature] = rng.choice(np.append(np.arange(n_known), np.nan), 60)
    return X


def served(ensemble):
    k = ensemble.n_outputs
    return Predictor(
        kind="regressor" if k == 1 else "classifier",
        stages=(Stage(ensemble, 0, ensemble.n_iter, ensemble.n_trees),),
        rule=None,
        costs=CostModel.uniform(ensemble.n_features),
        loss=SquaredError() if k == 1 else MultinomialLogLoss(k),
        n_features=ensemble.n_features,
        categories={f: np.arange(n) for f, n in KNOWN.items() if f < ensemble.n_features},
    )


def raw_predictions(ensemble, X):
    with Threads(1) as threads:
        return ensemble.raw_predict(ArrayTable(X), threads)


def assert_exact(answer, expected):
    """Equal, but for leaf values that are too small to be written."""
    np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-300)


@patient
@given(ensembles(), st.data())
def test_random_ensembles_in_lightgbm(ensemble, data):
    X = rows_for(ensemble, data.draw)
    expected = raw_predictions(ensemble, X)
    booster = booster_of(served(ensemble))
    answer = booster.predict(X, raw_score=True).reshape(len(X), -1).T
    assert_exact(answer, expected)
    # Shapley values add up to the raw prediction.
    parts = booster.predict(X, pred_contrib=True).reshape(len(X), -1, 5).sum(axis=2).T
    np.testing.assert_allclose(parts, expected, rtol=1e-9, atol=1e-7)


@patient
@given(ensembles(), st.data())
def test_random_ensembles_for_float32(ensemble, data):
    """For a float32 X, rounded thresholds send every row the same way."""
    with np.errstate(over="ignore"):
        X = rows_for(ensemble, data.draw).astype(np.float32)
    X[np.abs(X) < 1e-35] = 0.0
    booster = booster_of(served(ensemble), dtype="float32")
    answer = booster.predict(X, raw_score=True).reshape(len(X), -1).T
    assert_exact(answer, raw_predictions(ensemble, X))
    for tree in booster.dump_model()["tree_info"]:
        for cut in numeric_thresholds(tree["tree_structure"]):
            assert abs(cut) >= 1e300 or np.float32(cut) == cut


def numeric_thresholds(node):
    if "left_child" not in node:
        return []
    own = [node["threshold"]] if node["decision_type"] == "<=" else []
    below = (numeric_thresholds(node[side]) for side in ("left_child", "right_child"))
    return own + [cut for cuts in below for cut in cuts]


# -- other readers ----------------------------------------------------------------------------


def in_treelite(model):
    """The model as treelite reads it from our text."""
    treelite = pytest.importorskip("treelite")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.txt"
        path.write_text(to_lightgbm(model), encoding="utf-8")
        return treelite.frontend.load_lightgbm_model(path)


def treelite_answers(model, X, raw=False):
    from treelite import gtil

    answers = gtil.predict(in_treelite(model), X, pred_margin=raw)
    return answers.reshape(len(X), -1)


@patient
@given(ensembles(), st.data())
def test_random_ensembles_in_treelite(ensemble, data):
    pytest.importorskip("treelite")
    X = rows_for(ensemble, data.draw)
    answer = treelite_answers(served(ensemble), X, raw=True)
    assert_same(answer.T, raw_predictions(ensemble, X))


def test_treelite_applies_the_link():
    pytest.importorskip("treelite")
    X, y = messy_data()
    for model in (
        MiserRegressor(**MESSY).fit(X, y),
        MiserRegressor(loss="gamma", **MESSY).fit(X, np.abs(y) + 0.1),
        MiserRanker(**MESSY).fit(X, np.clip(np.round(y), 0, 4)),
    ):
        answer = treelite_answers(model, encode_for_lightgbm(model, X))
        assert_same(answer[:, 0], model.predict(X))
    model = MiserClassifier(**MESSY).fit(X, np.digitize(y, [0.0, 1.0]))
    answer = treelite_answers(model, encode_for_lightgbm(model, X))
    # Treelite's softmax is made of float32.
    np.testing.assert_allclose(answer, model.predict_proba(X), rtol=1e-6)


def test_tl2cgen_compiles(tmp_path):
    tl2cgen = pytest.importorskip("tl2cgen")
    X, y = messy_data()
    model = MiserRegressor(**MESSY).fit(X, y)
    library = tmp_path / "model.so"
    tl2cgen.export_lib(in_treelite(model), toolchain="gcc", libpath=library)
    rows = tl2cgen.DMatrix(encode_for_lightgbm(model, X), dtype="float64")
    assert_same(tl2cgen.Predictor(library, nthread=1).predict(rows).ravel(), model.predict(X))


def onnx_session(booster, n_features):
    onnxruntime = pytest.importorskip("onnxruntime")
    onnxmltools = pytest.importorskip("onnxmltools")
    from onnxmltools.convert.common.data_types import FloatTensorType

    kind = [("X", FloatTensorType([None, n_features]))]
    converted = onnxmltools.convert_lightgbm(booster, initial_types=kind, zipmap=False)
    return onnxruntime.InferenceSession(converted.SerializeToString())


@pytest.mark.parametrize("loss", ["squared_error", "absolute_error", "huber", "poisson", LogCosh()])
def test_onnx_regressor(loss):
    X, y = messy_data()
    X = X.astype(np.float32)
    model = MiserRegressor(loss=loss, **MESSY).fit(X, np.abs(y) + 0.1)
    session = onnx_session(booster_of(model, dtype="float32"), 6)
    codes = encode_for_lightgbm(model, X).astype(np.float32)
    (answer,) = session.run(None, {"X": codes})
    np.testing.assert_allclose(answer[:, 0], model.predict(X), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cuts", [[1.0], [0.0, 1.0]])
def test_onnx_classifier(cuts):
    X, y = messy_data()
    X = X.astype(np.float32)
    model = MiserClassifier(**MESSY).fit(X, np.digitize(y, cuts))
    session = onnx_session(booster_of(model, dtype="float32"), 6)
    codes = encode_for_lightgbm(model, X).astype(np.float32)
    labels, answer = session.run(None, {"X": codes})
    np.testing.assert_allclose(answer, model.predict_proba(X), rtol=1e-5, atol=1e-5)
    assert np.mean(labels == model.predict(X)) > 0.99


def test_onnx_needs_thresholds_for_float32():
    """Between neighbouring float32 there is none: the nearest one may be on the wrong side."""
    steps = np.float32(1.0) + np.arange(40, dtype=np.float32) * np.spacing(np.float32(1.0))
    X, y = np.repeat(steps, 30)[:, None], np.repeat(np.arange(40) % 2, 30).astype(np.float64)
    model = MiserRegressor(max_iter=40, max_depth=8, max_leaf_nodes=64, n_jobs=1).fit(X, y)
    expected = model.predict(X)
    (rounded,) = onnx_session(booster_of(model, dtype="float32"), 1).run(None, {"X": X})
    np.testing.assert_allclose(rounded[:, 0], expected, atol=1e-5)
    (nearest,) = onnx_session(booster_of(model), 1).run(None, {"X": X})
    assert np.abs(nearest[:, 0] - expected).max() > 0.1


@pytest.mark.parametrize("classes", [None, 2, 3])
def test_shap(classes):
    shap = pytest.importorskip("shap")
    X, y = messy_data(300)
    if classes is None:
        model = MiserRegressor(**MESSY).fit(X, y)
        raw = model.predict(X)
    else:
        model = MiserClassifier(**MESSY).fit(X, np.digitize(y, [0.0, 1.0][: classes - 1]))
        raw = model.decision_function(X)
    explained = shap.TreeExplainer(booster_of(model))(encode_for_lightgbm(model, X))
    assert_same(explained.values.sum(axis=1) + explained.base_values, raw)
    # What no tree looks at explains nothing.
    assert explained.values.shape[1] == 6
    unused = sorted(set(range(6)) - set(model.features_used_))
    assert not explained.values[:, unused].any()


def test_models_that_charge_by_row_export_what_they_predict():
    data = load_thyroid()
    model = MiserClassifier(costs=data.costs, tradeoff=0.009, max_iter=5, charge="row")
    model.fit(data.X_train, data.y_train)
    flat = replace(model.predictor_, charge="model", mean_cost=None)
    assert to_lightgbm(model.predictor_) == to_lightgbm(flat)
    booster = lightgbm.Booster(model_str=to_lightgbm(model))
    raw = booster.predict(data.X_test, raw_score=True)
    np.testing.assert_array_equal(raw, model.decision_function(data.X_test))
