"""Bad input is a clear error that names the culprit, odd input has a defined result."""

import math
import re

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from greedymiser import (
    BudgetWarning,
    CostModel,
    MiserClassifier,
    MiserRanker,
    MiserRegressor,
    MiserSearchCV,
    tradeoff_curve,
)
from greedymiser.losses import MultinomialLogLoss, SquaredError

N = 60
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, 3))
Y = X[:, 0] + 0.1 * RNG.standard_normal(N)
CLASSES = (Y > 0).astype(int)
DAYS = np.datetime64("2020-01-01", "s") + np.arange(N) * np.timedelta64(1, "D")
FRAME = pd.DataFrame(X, columns=["a", "b", "c"])
QID = np.repeat(np.arange(6), 10)

KINDS = [MiserRegressor, MiserClassifier, MiserRanker]


def regressor(**params):
    return MiserRegressor(**{"max_iter": 3, "min_samples_leaf": 1} | params)


def classifier(**params):
    return MiserClassifier(**{"max_iter": 3, "min_samples_leaf": 1} | params)


def ranker(**params):
    return MiserRanker(**{"max_iter": 3, "min_samples_leaf": 1} | params)


def with_entry(array, value):
    array = np.array(array)
    array[7] = value
    return array


def error(message, kind=ValueError):
    return pytest.raises(kind, match=message)


# -- X --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (X[:, 0], "Expected 2D array, got 1D array"),
        (X[None], "Found array with dim 3"),
        (X[:0], r"0 sample\(s\)"),
        (X[:, :0], r"0 feature\(s\)"),
        (FRAME[:0], r"at least one row and one column, got \(0, 3\)"),
        (FRAME[[]], r"at least one row and one column, got \(60, 0\)"),
        (FRAME["a"], "Expected a 2-dimensional container"),
        (X.astype(complex), "Complex data not supported"),
        (np.full((N, 3), "word"), "dtype='numeric' is not compatible"),
        (5.0, "Expected 2D array, got scalar array"),
        (None, "Expected 2D array, got scalar array"),
        ({"a": Y}, "Expected 2D array, got scalar array"),
    ],
    ids=str,
)
def test_bad_x(kind, bad, message):
    with error(message):
        kind().fit(bad, CLASSES)


@pytest.mark.parametrize("kind", KINDS)
def test_x_and_y_of_different_lengths(kind):
    with error(r"inconsistent numbers of samples: \[60, 59\]"):
        kind().fit(X, CLASSES[:-1])


def test_one_row():
    model = regressor().fit(X[:1], Y[:1])
    assert model.n_iter_ == 0
    assert model.predict(X).tolist() == [Y[0]] * N
    assert ranker().fit(X[:1], [2.0]).predict(X).tolist() == [0.0] * N
    with error("only one class: 1"):
        classifier().fit(X[:1], [1])


@pytest.mark.parametrize("column", [np.nan, 1.0, -np.inf, np.inf])
def test_column_that_says_nothing(column):
    odd = X.copy()
    odd[:, 1] = column
    model = regressor().fit(odd, Y)
    assert model.features_used_ == [0, 2]
    assert model.feature_importances_[1] == 0.0
    # What the column holds later does not matter either.
    np.testing.assert_array_equal(model.predict(odd), model.predict(X))


@pytest.mark.parametrize("value", [np.nan, 7.0, np.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_all_columns_constant(kind, value):
    model = kind(min_samples_leaf=1).fit(np.full((N, 2), value), CLASSES)
    assert model.stopped_ == "nothing pays"
    assert (model.n_iter_, model.cost_, model.features_used_) == (0, 0.0, [])
    assert len(set(model.predict(X[:, :2]).tolist())) == 1
    if kind is MiserClassifier:
        expected = [1 - CLASSES.mean(), CLASSES.mean()]
        assert model.predict_proba(X[:1, :2])[0] == pytest.approx(expected)


def test_infinity_is_a_value_like_others():
    odd = X.copy()
    odd[:20, 0], odd[20:40, 0] = np.inf, -np.inf
    y = np.repeat([5.0, 1.0, 3.0], 20)
    model = regressor(max_iter=100, max_depth=2).fit(odd, y)
    assert model.predict(odd) == pytest.approx(y, abs=0.01)
    assert np.isfinite(model.ensemble_.nodes["threshold"]).all()
    ordered = model.predict([[-np.inf, 0, 0], [0.0, 0, 0], [np.inf, 0, 0]])
    assert ordered == pytest.approx([1.0, 3.0, 5.0], abs=0.01)


def test_infinity_is_told_from_missing():
    odd = np.repeat([[np.inf], [-np.inf], [np.nan], [0.0]], 10, axis=0)
    y = np.repeat([1.0, 2.0, 3.0, 4.0], 10)
    model = regressor(max_iter=200).fit(odd, y)
    assert model.predict(odd) == pytest.approx(y, abs=0.01)


@pytest.mark.parametrize("scale", [1e300, 1e-300, 1e-310])
def test_huge_and_tiny_values(scale):
    """Thresholds lie between the values, at any scale."""
    model = regressor().fit(scale * X, Y)
    np.testing.assert_array_equal(model.predict(scale * X), regressor().fit(X, Y).predict(X))


def test_extremes_of_float64():
    most = np.finfo(np.float64).max
    odd = np.repeat([[-most], [most], [0.0]], 10, axis=0)
    y = np.repeat([1.0, 2.0, 3.0], 10)
    model = regressor(max_iter=100).fit(odd, y)
    assert model.predict(odd) == pytest.approx(y, abs=0.01)


# -- y --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (None, "requires y to be passed, but the target y is None"),
        (with_entry(Y, np.nan), "Input y contains NaN"),
        (with_entry(Y, np.inf), "Input y contains infinity"),
        (np.full(N, "word"), "MiserRegressor needs a numeric y, got 'word'"),
        (np.full(N, "1"), "MiserRegressor needs a numeric y, got '1'"),
        (np.full(N, "word", dtype=object), "MiserRegressor needs a numeric y, got 'word'"),
        (np.full(N, None), "Input y contains NaN"),
        (Y + 0j, "Complex data not supported"),
        (np.c_[Y, Y], r"y should be a 1d array, got an array of shape \(60, 2\)"),
        (1e300 * Y, r"the loss of the first model is inf; y reaches 2.\d+e\+300"),
        (DAYS, "MiserRegressor needs a numeric y, got '2020-01-01T00:00:00'"),
        (DAYS - DAYS[0], "MiserRegressor needs a numeric y, got '0 seconds'"),
        (with_entry(DAYS, "NaT"), "Input y contains NaN: y has 1 missing value"),
        (np.ma.masked_less(Y, np.median(Y)), "y is a masked array, 30 of whose values are masked"),
    ],
    ids=[
        "None", "NaN", "inf", "words", "digits", "objects", "Nones", "complex", "2-D", "huge",
        "dates", "durations", "NaT", "masked",
    ],
)  # fmt: skip
def test_bad_y_of_a_regressor(bad, message):
    with error(message):
        regressor().fit(X, bad)


@pytest.mark.parametrize("loss", ["squared_error", "huber", "poisson"])
@pytest.mark.parametrize(
    ("scale", "weight", "what"),
    [
        (1e-170, None, "vanish"),
        (1e-310, None, "vanish"),
        (1e-80, 1e-90, "vanish"),
        (1e153, None, "overflow"),
        (1e60, 1e99, "overflow"),
    ],
)
def test_y_whose_squares_are_no_numbers(loss, scale, weight, what):
    """Every gain would be 0, or infinite: the model would be a constant, or any trees at all."""
    weights = None if weight is None else np.full(N, weight)
    with error(f"(y reaches .* squares would {what}; rescale y|loss of the first model is inf)"):
        regressor(loss=loss).fit(X, scale * np.abs(Y), weights)


@pytest.mark.parametrize("loss", ["absolute_error", "gamma"])
@pytest.mark.parametrize("scale", [1e-300, 1e-170, 1e170])
def test_losses_that_square_nothing_take_y_of_any_size(loss, scale):
    model, plain = (regressor(loss=loss).fit(X, s * (np.abs(Y) + 1)) for s in (scale, 1.0))
    np.testing.assert_allclose(model.predict(X) / scale, plain.predict(X))


def test_a_constant_y_is_no_y_whose_squares_vanish():
    assert regressor().fit(X, np.zeros(N)).predict(X[:1]) == 0.0
    assert regressor().fit(X, np.full(N, 1e-200)).predict(X[:1]) == 1e-200


@pytest.mark.parametrize("scale", [1e150, 1e-150])
def test_large_and_small_y(scale):
    np.testing.assert_allclose(
        regressor().fit(X, scale * Y).predict(X), scale * regressor().fit(X, Y).predict(X)
    )


@pytest.mark.parametrize(
    ("loss", "y", "message"),
    [
        ("poisson", Y, "loss='poisson' needs y >= 0, got -2"),
        ("poisson", 0 * Y, "loss='poisson' needs a positive y somewhere"),
        ("gamma", np.abs(Y) * CLASSES, "loss='gamma' needs y > 0, got 0"),
    ],
)
def test_y_that_the_loss_does_not_take(loss, y, message):
    with error(message):
        regressor(loss=loss).fit(X, y)
    with error(message) as caught:
        regressor(loss=loss).fit(X, np.abs(Y) + 1, X_val=X, y_val=y)
    assert "validation data" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("bad", "message", "kind"),
    [
        (None, "requires y to be passed, but the target y is None", ValueError),
        (np.ones(N), "at least two classes, but y has only one class: 1.0", ValueError),
        (np.full(N, "a"), "at least two classes, but y has only one class: 'a'", ValueError),
        (Y, "Unknown label type: continuous", ValueError),
        (with_entry(CLASSES.astype(float), np.nan), "Input y contains NaN", ValueError),
        (with_entry(CLASSES.astype(float), np.inf), "Input y contains infinity", ValueError),
        (np.array([1, "a"] * 30, dtype=object), r"y mixes labels.*\['int', 'str'\]", TypeError),
        (np.array([None, "a"] * 30, dtype=object), "y mixes labels|contains NaN", Exception),
        (np.c_[CLASSES, CLASSES], r"got an array of shape \(60, 2\)", ValueError),
    ],
    ids=["None", "one", "one word", "numbers", "NaN", "inf", "mixed", "Nones", "2-D"],
)
def test_bad_y_of_a_classifier(bad, message, kind):
    with error(message, kind):
        classifier().fit(X, bad)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (-CLASSES, "relevance labels must not be negative, got -1"),
        (40 * CLASSES, "relevance labels above 30 overflow"),
        (with_entry(Y, np.nan), "Input y contains NaN"),
        (np.full(N, "word"), "MiserRanker needs a numeric y, got 'word'"),
    ],
    ids=["negative", "huge", "NaN", "words"],
)
def test_bad_y_of_a_ranker(bad, message):
    with error(message):
        ranker().fit(X, bad, qid=QID)
    with error(message) as caught:
        ranker().fit(X, CLASSES, qid=QID, X_val=X, y_val=bad, qid_val=QID)
    assert "validation data" in caught.value.__notes__[0]


def test_queries_in_which_all_are_alike():
    model = ranker().fit(X, np.zeros(N), qid=QID)
    assert (model.n_iter_, model.stopped_) == (0, "nothing pays")
    model = ranker().fit(X, CLASSES, qid=np.arange(N))
    assert (model.n_iter_, model.stopped_) == (0, "nothing pays")


# -- weights and queries --------------------------------------------------------------------------

ONES = np.ones(N)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (with_entry(ONES, -1.0), "sample_weight must not be negative, got -1"),
        (with_entry(ONES, np.nan), "Input sample_weight contains NaN"),
        (with_entry(ONES, np.inf), "Input sample_weight contains infinity"),
        (0 * ONES, "(?i)sample.weights? must"),
        (ONES[:-1], r"sample_weight.shape == \(59,\), expected \(60,\)"),
        (np.ones((N, 2)), "Sample weights must be 1D"),
        (np.full(N, "heavy"), "could not convert string to float"),
    ],
    ids=["negative", "NaN", "inf", "zero", "short", "2-D", "words"],
)
def test_bad_weights(kind, bad, message):
    with error(message):
        kind().fit(X, CLASSES, bad)
    with error(message) as caught:
        kind().fit(X, CLASSES, X_val=X, y_val=CLASSES, sample_weight_val=bad)
    assert "validation data" in caught.value.__notes__[0]


@pytest.mark.parametrize("scale", [1e99, 1e-99])
def test_large_and_small_weights(scale):
    np.testing.assert_allclose(
        regressor().fit(X, Y, np.full(N, scale)).predict(X), regressor().fit(X, Y).predict(X)
    )


@pytest.mark.parametrize("scale", [1e300, 1e-300])
def test_huge_and_tiny_weights(scale):
    message = f"the largest weight is {scale:g}, and must lie".replace("+", r"\+")
    with error(message):
        regressor().fit(X, Y, np.full(N, scale))
    with error(message):
        classifier(class_weight={0: scale, 1: scale}).fit(X, CLASSES)


def test_weights_of_very_different_sizes():
    weight = np.where(CLASSES == 1, 1e90, 1e-200)
    heavy = regressor().fit(X[CLASSES == 1], Y[CLASSES == 1])
    model = regressor().fit(X, Y, weight)
    assert model.truncate(0).predict(X[:1]) == pytest.approx(heavy.truncate(0).predict(X[:1]))
    assert np.isfinite(model.predict(X)).all()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (QID[:-1], r"qid has shape \(59,\), but X has 60 rows"),
        (np.c_[QID, QID], r"qid has shape \(60, 2\), but X has 60 rows"),
        (with_entry(QID.astype(float), np.nan), "Input qid contains NaN"),
    ],
    ids=["short", "2-D", "NaN"],
)
def test_bad_queries(bad, message):
    with error(message):
        ranker().fit(X, CLASSES, qid=bad)
    with error(message) as caught:
        ranker().fit(X, CLASSES, qid=QID, X_val=X, y_val=CLASSES, qid_val=bad)
    assert "validation data" in caught.value.__notes__[0]


def test_rows_of_a_query_need_not_be_adjacent():
    order = RNG.permutation(N)
    mixed = ranker().fit(X[order], CLASSES[order], qid=QID[order])
    tidy = ranker().fit(X, CLASSES, qid=QID)
    np.testing.assert_array_equal(mixed.predict(X), tidy.predict(X))


@pytest.mark.parametrize(
    ("class_weight", "message"),
    [
        ("heavy", "The 'class_weight' parameter.*Got 'heavy'"),
        ({0: 0.0, 1: 1.0}, r"class_weight must be positive, got \{0: 0.0"),
        ({0: -1.0, 1: 1.0}, r"class_weight must be positive, got \{0: -1.0"),
        ({0: math.nan, 1: 1.0}, "class_weight must be positive, got"),
        ({0: 1.0, 7: 1.0}, r"The classes, \[.*1.*\], are not in class_weight"),
    ],
)
def test_bad_class_weights(class_weight, message):
    with error(message):
        classifier(class_weight=class_weight).fit(X, CLASSES)


# -- parameters -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ([1, 2], "costs has 2 entries, but X has 3 features"),
        ([1, 2, -1], "cost of feature 2 must not be negative, got -1"),
        ([1, 2, math.nan], "cost of feature 2 must be finite, got nan"),
        ([1, 2, math.inf], "cost of feature 2 must be finite, got inf"),
        (["x", 1, 2], "cost of feature 0 must be a number, got 'x'"),
        (np.ones((3, 1)), r"must have one dimension, got shape \(3, 1\)"),
        (3.0, "must have a number for each feature, got 3.0"),
        ("costs.toml", "must be numbers, got 'costs.toml'; read_costs reads a file"),
        ({"a": 1, "b": 1}, "costs has no entry for feature 'c'"),
        ({"a": 1, "b": 1, "z": 1}, "costs has no entry for feature 'c'"),
        ({"a": 1, "b": 1, "c": 1, "z": 1}, "costs names a feature that X does not have: 'z'"),
        ({"a": 1, "b": -1, "c": 1}, "cost of feature 'b' must not be negative, got -1"),
        ({"a": 1, 1: 2, "c": 1}, "keyed by column name, got 1"),
        ([1.7e308] * 3, "costs add up to more than a float can hold"),
    ],
    ids=str,
)
def test_bad_costs(costs, message):
    with error(message, (ValueError, TypeError)):
        regressor(costs=costs).fit(FRAME, Y)


@pytest.mark.parametrize(
    ("parameter", "values"),
    [
        ("tradeoff", [-1, math.nan, math.inf, None, "x"]),
        ("budget", [-1, math.nan, "x"]),
        ("max_bins", [256, 1, 2.5]),
        ("learning_rate", [0, -1, math.nan, math.inf]),
        ("max_iter", [0, -1, 2.5]),
        ("max_depth", [0]),
        ("max_leaf_nodes", [1]),
        ("min_samples_leaf", [0]),
        ("l2_regularization", [-1, math.inf]),
        ("step", ["secant"]),
        ("init", ["random"]),
        ("loss", [3, None]),
        ("n_jobs", [1.5]),
        ("engine", ["gpu"]),
        ("early_stopping", ["yes"]),
        ("validation_fraction", [0, 1.5, 1.0]),
        ("scoring", [3]),
        ("verbose", [-1]),
        ("n_iter_no_change", [0]),
        ("random_state", ["x"]),
        ("warm_start", ["x"]),
        ("monotonic_cst", [3]),
        ("categorical_features", ["a", 3]),
        ("shopping_interval", [0, -1, 1.5, None, math.nan, "x"]),
        ("subsample", [0, 0.0, -0.5, 1.5, 2, math.nan, None, "x"]),
        ("max_features", [0, 0.0, -1, -0.5, 1.5, math.nan, None, "sqrt"]),
        ("interaction_cst", ["triples", 3, {"a": 1}]),
    ],
)
def test_bad_parameters(parameter, values):
    for value in values:
        with error(f"The '{parameter}' parameter of MiserRegressor.*Got {value!r} instead"):
            regressor(**{parameter: value}).fit(FRAME, Y)


def test_no_threads():
    with error("n_jobs must be a number of threads .*got 0"):
        regressor(n_jobs=0).fit(X, Y)


@pytest.mark.parametrize(
    ("make", "known"),
    [(regressor, "squared_error"), (classifier, "log_loss"), (ranker, "lambdamart")],
)
def test_unknown_loss(make, known):
    with error(f"loss='hinge' is unknown; choose from .*{known}"):
        make(loss="hinge").fit(X, CLASSES)


@pytest.mark.parametrize("make", [regressor, ranker])
def test_unknown_scoring(make):
    """Also where nothing would be scored."""
    with error("'scoring' parameter of check_scoring must be.*Got 'nonsense'|nonsense"):
        make(scoring="nonsense").fit(X, CLASSES)
    with error("ndcg"):
        regressor(scoring="ndcg@5").fit(X, Y)


def test_rows_without_weight_do_not_count():
    with error("only one class: 0") as caught:
        classifier().fit(X, CLASSES, sample_weight=CLASSES == 0)
    assert caught.value.__notes__ == ["Rows whose sample_weight is 0 do not count."]


def test_scores_that_cannot_be_computed_are_named():
    held_out = {"X_val": X, "tradeoffs": 2, "search": "path"}
    three = np.digitize(Y, [-0.5, 0.5])
    for make, y, name, kind in (
        (regressor, Y, "roc_auc", AttributeError),
        (classifier, three, "roc_auc", ValueError),
        (classifier, np.where(CLASSES == 1, "yes", "no"), "f1", ValueError),
    ):
        with pytest.raises(kind) as caught:
            tradeoff_curve(make(), X, y, y_val=y, scoring=name, **held_out)
        assert f"scoring={name!r} of a Miser" in caught.value.__notes__[0]
    with error("scoring='roc_auc' is nan for the 60 validation rows, whose y is 1"):
        tradeoff_curve(classifier(), X, CLASSES, y_val=np.ones(N), scoring="roc_auc", **held_out)
    with error("'ndcg@5'; this one is for rankers"):
        classifier(scoring="ndcg@5").fit(X, CLASSES)


@pytest.mark.parametrize("kind", [float, object, "Float64", "Int64"])
@pytest.mark.parametrize("make", [regressor, classifier, ranker])
def test_missing_targets_are_counted(make, kind):
    y = pd.Series(CLASSES.astype(float))
    y[[3, 5, 8]] = np.nan
    with error(r"^Input y contains NaN: y has 3 missing values in 60 rows; remove these rows$"):
        make().fit(X, y.astype(kind))
    y[[5, 8]] = 0.0
    with error(r"y has 1 missing value in 60 rows; remove this row") as caught:
        make().fit(X, CLASSES, X_val=X, y_val=y.astype(kind))
    assert "validation data" in caught.value.__notes__[0]


@pytest.mark.parametrize("kind", [object, "string", "category"])
def test_missing_class_labels_are_counted(kind):
    words = pd.Series(np.where(CLASSES == 1, "yes", "no"), dtype=object)
    words[[3, 5]] = None
    with error("y has 2 missing values in 60 rows"):
        classifier().fit(X, words.astype(kind))


@pytest.mark.parametrize(
    ("make", "misspelt", "meant"),
    [
        (classifier, "rocauc", "roc_auc"),
        (classifier, "Accuracy", "accuracy"),
        (regressor, "mean_squared_error", "neg_mean_squared_error"),
        (regressor, "losss", "loss"),
        (ranker, "ndcg", "ndcg@5"),
    ],
)
def test_misspelt_scoring(make, misspelt, meant):
    with error(f"^scoring must be .*, got '{misspelt}'; did you mean '{meant}'\\?$"):
        make(scoring=misspelt).fit(X, CLASSES)


def test_misspelt_scoring_of_curves_and_searches():
    with error("got 'R_2'; did you mean 'r2'"):
        tradeoff_curve(regressor(), X, Y, X_val=X, y_val=Y, scoring="R_2")
    with error("got 'R_2'; did you mean 'r2'"):
        MiserSearchCV(regressor(), scoring="R_2").fit(X, Y)


def test_loss_object_without_gradients():
    class Half:
        def values(self, y, raw):
            return raw

    with error("The 'loss' parameter.*implementing 'gradients'"):
        regressor(loss=Half()).fit(X, Y)


@pytest.mark.parametrize(
    ("cst", "message"),
    [
        ([1, 0], r"monotonic_cst has shape \(2,\), but X has 3 features"),
        ([[1, 0, 0]], r"monotonic_cst has shape \(1, 3\), but X has 3 features"),
        ([2, 0, 0], "monotonic_cst must hold only -1, 0 and 1, got 2"),
        ([math.nan, 0, 0], "monotonic_cst must hold only -1, 0 and 1, got nan"),
        (["up", 0, 0], "monotonic_cst must hold only -1, 0 and 1, got 'up'"),
        ({"a": "up"}, "monotonic_cst must hold only -1, 0 and 1, got 'up'"),
        ({"z": 1}, "monotonic_cst names 'z', which is not a column of X"),
        ({5: 1}, "monotonic_cst has 5, but X has 3 features"),
        ({-1: 1}, "monotonic_cst has -1, but X has 3 features"),
    ],
    ids=str,
)
def test_bad_monotonic_constraints(cst, message):
    with error(message):
        regressor(monotonic_cst=cst).fit(FRAME, Y)


def test_constraints_that_make_no_sense():
    with error("monotonic_cst has 1 for 'a', which is a categorical feature"):
        regressor(monotonic_cst={"a": 1}, categorical_features=["a"]).fit(FRAME.round(), Y)
    with error("monotonic_cst is not supported for more than two classes"):
        classifier(monotonic_cst=[1, 0, 0]).fit(X, np.digitize(Y, [-1, 1]))
    classifier(monotonic_cst=[0, 0, 0]).fit(X, np.digitize(Y, [-1, 1]))


@pytest.mark.parametrize(
    ("categorical", "message"),
    [
        ([5], "categorical_features has 5, but X has 3 features"),
        ([-1], "categorical_features has -1, but X has 3 features"),
        ([1.5], "categorical_features has 1.5, but X has 3 features"),
        (["z"], "categorical_features names 'z', which is not a column of X"),
        ([True], r"categorical_features has shape \(1,\), but X has 3 features"),
        ([[0]], r"categorical_features has shape \(1, 1\), but X has 3 features"),
    ],
    ids=str,
)
def test_bad_categorical_features(categorical, message):
    with error(message):
        regressor(categorical_features=categorical).fit(FRAME, Y)


def test_names_for_columns_that_have_none():
    with error("categorical_features names 'a', which is not a column of X"):
        regressor(categorical_features=["a"]).fit(X, Y)
    with error("monotonic_cst names 'a', which is not a column of X"):
        regressor(monotonic_cst={"a": 1}).fit(X, Y)


def test_no_categorical_features():
    for none in ([], [False, False, False], None):
        model = regressor(categorical_features=none).fit(X, Y)
        assert model.categories_ == {}


def test_too_many_categories():
    many = np.arange(300.0)[:, None]
    with error("categorical feature 0 has 300 categories, but max_bins=255 allows at most 255"):
        regressor(categorical_features=[0]).fit(many, many[:, 0])
    frame = pd.DataFrame({"id": pd.Categorical([f"{i}" for i in range(60)])})
    with error("categorical feature 'id' has 60 categories, but max_bins=50 allows at most 50"):
        regressor(max_bins=50).fit(frame, Y)
    # As many as there may be.
    model = regressor(categorical_features=[0], max_iter=50, max_depth=None).fit(
        many[:255], np.arange(255.0) % 7
    )
    assert model.score(many[:255], np.arange(255.0) % 7) > 0.9


# -- callbacks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        (print, r"sequence of callables, got <built-in function print>; .* pass callbacks=\[f\]"),
        (5, "callbacks must be a sequence of callables, got 5$"),
        ([print, "stop"], "callbacks must be callables, got 'stop'"),
        ("ab", "callbacks must be callables, got 'a'"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_bad_callbacks(kind, callbacks, message):
    with pytest.raises(TypeError, match=message):
        kind().fit(X, CLASSES, callbacks=callbacks)


@pytest.mark.parametrize("wrap", [list, tuple, iter])
def test_callbacks_may_come_in_any_row(wrap):
    heard = []
    regressor().fit(X, Y, callbacks=wrap([heard.append]))
    without = regressor().fit(X, Y, callbacks=None)
    assert [progress.n_iter for progress in heard] == list(range(1, without.n_iter_ + 1))


# -- validation data ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("val", "message"),
    [
        ({"X_val": X}, "X_val and y_val must be given together, but y_val is missing"),
        ({"y_val": CLASSES}, "X_val and y_val must be given together, but X_val is missing"),
        ({"sample_weight_val": ONES}, "sample_weight_val and qid_val need X_val and y_val"),
        ({"X_val": X[:, :2], "y_val": CLASSES}, "X has 2 features, but .* is expecting 3"),
        ({"X_val": X[:, 0], "y_val": CLASSES}, "Expected 2D array, got 1D array"),
        ({"X_val": X, "y_val": CLASSES[:9]}, r"inconsistent numbers of samples: \[60, 9\]"),
        ({"X_val": X[:0], "y_val": CLASSES[:0]}, r"0 sample\(s\)"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_bad_validation_data(kind, val, message):
    with error(message):
        kind().fit(X, CLASSES, **val)


def test_validation_columns_in_another_order():
    with error("must be in the same order") as caught:
        regressor().fit(FRAME, Y, X_val=FRAME[["c", "b", "a"]], y_val=Y)
    assert "validation data" in caught.value.__notes__[0]


@pytest.mark.parametrize("label", [2, -1, "a", 0.5])
def test_unknown_class_in_validation_data(label):
    y_val = np.array([0, 1, label] * 20, dtype=object)
    with error(f"class that the model does not know: {label} is not one of") as caught:
        classifier().fit(X, CLASSES, X_val=X, y_val=y_val)
    assert "validation data" in caught.value.__notes__[0]


def test_queries_for_no_validation_data():
    with error("sample_weight_val and qid_val need X_val and y_val"):
        ranker().fit(X, CLASSES, qid=QID, qid_val=QID)


@pytest.mark.parametrize(
    ("fit", "message"),
    [
        (lambda m: regressor(**m).fit(X[:1], Y[:1]), "set 1 of 1 rows aside.*only 0 can be spared"),
        (
            lambda m: regressor(**m | {"validation_fraction": 99}).fit(X, Y),
            "validation_fraction=99 asks to set 99 of 60 rows aside.*only 59 can be spared",
        ),
        (
            lambda m: classifier(**m | {"validation_fraction": 0.99}).fit(X, CLASSES),
            "validation_fraction=0.99 asks to set 60 of 60 rows aside.*only 58 can be spared",
        ),
        (
            lambda m: ranker(**m).fit(X, CLASSES, qid=0 * QID),
            "set 1 of 1 queries aside.*only 0 can be spared",
        ),
    ],
    ids=["one row", "too many", "a row per class", "one query"],
)
def test_too_little_to_set_aside(fit, message):
    with error(message):
        fit({"early_stopping": True})


# -- losses that go wrong -------------------------------------------------------------------------


class Loss:
    """Squared error, or whatever ``derivatives`` makes of it."""

    def __init__(self, derivatives, n_outputs=1):
        self.gradients = derivatives

    def values(self, y, raw):
        return 0.5 * (raw - y) ** 2


@pytest.mark.parametrize(
    ("derivatives", "message"),
    [
        (lambda y, raw: (raw[1:] - y[1:], None), r"gradients of shape \(59,\), expected \(60,\)"),
        (lambda y, raw: ((raw - y)[:, None], None), r"gradients of shape \(60, 1\), expected"),
        (lambda y, raw: (raw - y, np.ones(3)), r"hessians of shape \(3,\), expected \(60,\)"),
        (lambda y, raw: (math.nan * y, None), "gradients that are not finite"),
        (lambda y, raw: (math.inf * y, None), "gradients that are not finite"),
        (lambda y, raw: (raw - y, math.nan * y), "hessians that are not finite"),
        (lambda y, raw: (raw - y, -np.ones(N)), "negative hessian: -1"),
    ],
    ids=["short", "2-D", "short hessian", "NaN", "inf", "NaN hessian", "negative hessian"],
)
def test_bad_derivatives(derivatives, message):
    with error(f"the loss returned (a )?{message}"):
        regressor(loss=Loss(derivatives)).fit(X, Y)


@pytest.mark.parametrize("at", [0, -1])
def test_one_gradient_among_many_is_not_a_number(at):
    """Rows are looked at in parts; what is found in the first must not be lost in the others."""

    def derivatives(y, raw):
        gradients = raw - y
        gradients[at] = math.nan
        return gradients, None

    with error("the loss returned gradients that are not finite"):
        regressor(loss=Loss(derivatives)).fit(np.zeros((10_000, 1)), np.arange(10_000.0))


def test_derivatives_of_several_outputs_the_wrong_way_round():
    from greedymiser.losses import MultinomialLogLoss

    class Transposed(MultinomialLogLoss):
        def gradients(self, y, raw):
            gradient, hessian = super().gradients(y, raw)
            return gradient.T, hessian.T

    with error(r"gradients of shape \(60, 3\), expected \(3, 60\)"):
        classifier(loss=Transposed(3)).fit(X, np.digitize(Y, [-1, 1]))


def test_flat_loss_learns_nothing():
    for derivatives in (
        lambda y, raw: (0 * y, None),
        lambda y, raw: (raw - y, 0 * y),
        lambda y, raw: (np.broadcast_to(1.0, y.shape), None),
    ):
        model = regressor(loss=Loss(derivatives)).fit(X, Y)
        assert (model.n_iter_, model.stopped_) == (0, "nothing pays")


def test_derivatives_of_other_types():
    exact = regressor(loss=Loss(lambda y, raw: (raw - y, None))).fit(X, Y)
    short = regressor(loss=Loss(lambda y, raw: ((raw - y).astype(np.float32), None))).fit(X, Y)
    lists = regressor(loss=Loss(lambda y, raw: ((raw - y).tolist(), None))).fit(X, Y)
    assert short.predict(X) == pytest.approx(exact.predict(X), rel=1e-5)
    np.testing.assert_array_equal(lists.predict(X), exact.predict(X))


# -- prices at the edge ---------------------------------------------------------------------------


def test_huge_and_tiny_costs():
    model = regressor(costs=[1e300] * 3).fit(X, Y)
    assert model.cost_ == pytest.approx(3e300)
    assert regressor(costs=[1e300] * 3, tradeoff=1e-3).fit(X, Y).cost_ == 0.0
    model = regressor(costs=[1e-300] * 3, tradeoff=1e-300).fit(X, Y)
    assert model.cost_ == pytest.approx(3e-300)
    # A trade-off that is too small to matter.
    assert regressor(costs=[1e300] * 3, tradeoff=1e-310).fit(X, Y).cost_ > 0
    with error(r"tradeoff=1e\+200 times a price of 1e\+200 overflows"):
        regressor(costs=[1e200] * 3, tradeoff=1e200).fit(X, Y)


def test_free_features():
    model = regressor(costs=[0.0] * 3, tradeoff=1e9, budget=0.0).fit(X, Y)
    assert model.cost_ == 0.0
    assert model.n_iter_ == 3


def test_huge_budget():
    for budget in (1e308, math.inf):
        model = regressor(budget=budget).fit(X, Y)
        np.testing.assert_array_equal(model.predict(X), regressor().fit(X, Y).predict(X))


def test_budget_of_nothing():
    with pytest.warns(BudgetWarning, match="budget=0 buys no useful feature"):
        assert regressor(budget=0).fit(X, Y).cost_ == 0.0
    costs = CostModel([0.0, 1.0, 1.0], tree_cost=5.0)
    with pytest.warns(BudgetWarning, match=r"costs 0 \(with its trees, 5\)"):
        assert regressor(costs=costs, budget=4.0).fit(X, Y).cost_ == 0.0


# -- prediction -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_not_fitted(kind):
    methods = ["predict", "prediction_costs", "predict_proba", "decision_function"]
    for method in methods:
        if hasattr(kind, method):
            with error(f"This {kind.__name__} instance is not fitted yet", NotFittedError):
                getattr(kind(), method)(X)
    for staged in ("staged_predict", "staged_predict_proba", "staged_decision_function"):
        if hasattr(kind, staged):
            with error("not fitted", NotFittedError):
                list(getattr(kind(), staged)(X))
    with error("not fitted", NotFittedError):
        kind().receipt()
    with error("not fitted", NotFittedError):
        kind().truncate(1)
    for attribute in ("cost_", "n_iter_", "features_used_", "feature_importances_"):
        assert not hasattr(kind(), attribute)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (X[:, :2], "X has 2 features, but MiserRegressor is expecting 3"),
        (X[0], "Expected 2D array, got 1D array"),
        (X[:0], r"0 sample\(s\)"),
        (X.astype(complex), "Complex data not supported"),
        (np.full((2, 3), "word"), "dtype='numeric' is not compatible"),
    ],
    ids=["columns", "1-D", "empty", "complex", "words"],
)
def test_bad_x_for_prediction(bad, message):
    model = regressor().fit(X, Y)
    for method in (model.predict, model.prediction_costs):
        with error(message):
            method(bad)


def test_bad_frames_for_prediction():
    model = regressor().fit(FRAME, Y)
    with error("yet now missing"):
        model.predict(FRAME[["a", "b"]])
    with error("must be in the same order"):
        model.predict(FRAME[["b", "a", "c"]])
    with error("unseen at fit time"):
        model.predict(FRAME.rename(columns={"a": "z"}))
    with error("one row and one column"):
        model.predict(FRAME[:0])
    with error(r"column 'a' has type String.*not numeric"):
        model.predict(FRAME.assign(a="word"))
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        model.predict(X)
    with pytest.warns(UserWarning, match="fitted without feature names"):
        regressor().fit(X, Y).predict(FRAME)


def test_prediction_on_odd_values():
    model = regressor().fit(X, Y)
    odd = np.array([[np.nan] * 3, [np.inf] * 3, [-np.inf] * 3, [1e300] * 3, [-0.0] * 3])
    assert np.isfinite(model.predict(odd)).all()
    np.testing.assert_array_equal(model.predict(odd[1:2]), model.predict(odd[3:4]))
    np.testing.assert_array_equal(model.predict(odd[4:]), model.predict([[0.0] * 3]))


def test_messages_name_what_the_user_typed():
    """A sample of errors, read as a user would."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        regressor(tradeoff=-0.5).fit(X, Y)
    assert re.search(r"'tradeoff'.*\[0.0, inf\).*-0.5", str(caught.value))


def test_queries_on_one_side_only():
    rng = np.random.default_rng(0)
    X, y, qid = rng.standard_normal((40, 2)), rng.integers(0, 3, 40), np.repeat(np.arange(4), 10)
    with pytest.raises(ValueError, match="both sides need queries"):
        MiserRanker(max_iter=2).fit(X, y, qid=qid, X_val=X, y_val=y)
    with pytest.raises(ValueError, match="both sides need queries"):
        MiserRanker(max_iter=2).fit(X, y, X_val=X, y_val=y, qid_val=qid)


@pytest.mark.parametrize("params", [{"monotonic_cst": [5, 0]}, {"costs": [1.0]}])
def test_a_fit_that_fails_leaves_no_model(params):
    X = np.random.default_rng(0).standard_normal((40, 2))
    model = MiserRegressor(**params)
    with pytest.raises(ValueError, match=r"monotonic_cst|costs"):
        model.fit(X, X[:, 0])
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_a_loss_with_the_wrong_number_of_outputs():
    X = np.random.default_rng(0).standard_normal((60, 2))
    with pytest.raises(ValueError, match="3 classes need a loss with n_outputs=3, got 1"):
        MiserClassifier(loss=SquaredError()).fit(X, np.arange(60) % 3)
    with pytest.raises(ValueError, match="needs a loss with one output, got 3"):
        MiserRegressor(loss=MultinomialLogLoss(3)).fit(X, X[:, 0])
