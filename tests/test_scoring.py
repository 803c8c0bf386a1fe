"""Scores computed from raw predictions, beside scikit-learn's own scorers."""

import itertools
import math
import warnings

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import ndtr
from sklearn import metrics as skm
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

import naive
from calling import compiled
from greedymiser import MiserClassifier, MiserRegressor
from greedymiser.losses import (
    BinaryLogLoss,
    LambdaMART,
    Loss,
    MultinomialLogLoss,
    Poisson,
    SquaredError,
)
from greedymiser.losses.ndcg import ndcg_score, query_order
from greedymiser.model.links import decisions, labels, probabilities
from greedymiser.scoring import _kernels
from greedymiser.scoring.scores import KNOWN_SCORES, known_score
from random_examples import examples

REGRESSION, CLASSIFICATION = KNOWN_SCORES["regressor"], KNOWN_SCORES["classifier"]

TWO_CLASSES = {
    "01": np.array([0, 1]),
    "-1 1": np.array([-1, 1]),
    "1 first": np.array([1, 2]),
    "bool": np.array([False, True]),
    "float": np.array([0.0, 1.0]),
    "words": np.array(["ill", "well"]),
    "objects": np.array(["ill", "well"], dtype=object),
}
THREE_CLASSES = {
    "012": np.arange(3),
    "others": np.array([-1, 1, 7]),
    "words": np.array(["a", "b", "c"]),
    "objects": np.array(["a", "b", "c"], dtype=object),
}


# -- what is compared -----------------------------------------------------------------------------


class Numbers(RegressorMixin, BaseEstimator):
    """An ordinary regressor that says what it was told."""

    def __init__(self, raw=None, loss=None):
        self.raw, self.loss = raw, loss

    def predict(self, X):
        return self.loss.response(self.raw[0])


class Classes(ClassifierMixin, BaseEstimator):
    """An ordinary classifier that says what it was told, as the library's models would say it."""

    def __init__(self, raw=None, loss=None, classes=None):
        self.raw, self.loss, self.classes = raw, loss, classes
        self.classes_ = classes

    def predict(self, X):
        return labels(self.raw, self.classes, self.loss)

    def predict_proba(self, X):
        return probabilities(self.raw, self.loss, len(self.classes))

    def decision_function(self, X):
        return decisions(self.raw)


def outcome(score):
    """What came of it: the number or the error, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = float(score())
        except Exception as error:
            found = (type(error), str(error))
    return found, {(warning.category, str(warning.message)) for warning in caught}


def scikit_learn(name, loss, classes, y, raw, weight):
    """What the scorer says."""
    weights = {} if weight is None else {"sample_weight": weight}
    if classes is None:
        model, target = Numbers(raw, loss), y
    else:
        model, target = Classes(raw, loss, classes), classes[y.astype(int)]
    return outcome(lambda: skm.get_scorer(name)(model, None, target, **weights))


def ours(name, loss, classes, y, raw, weight):
    score = known_score(name, "regressor" if classes is None else "classifier", loss, classes)
    return outcome(lambda: score.bind(y, weight)(raw))


# Where a score is a difference, its rounding errors are those of what is subtracted.
DIFFERENCES = ("r2",)


def assert_same(name, found, expected):
    (value, said), (should_be, should_say) = found, expected
    assert said == should_say
    if isinstance(should_be, tuple):
        assert value == should_be
    elif math.isnan(should_be) or math.isinf(should_be):
        assert value == pytest.approx(should_be, nan_ok=True)
    else:
        slack = 1.0 if name.startswith(DIFFERENCES) else 0.0
        assert abs(value - should_be) <= 1e-13 * (slack + abs(should_be))


@pytest.fixture
def alone(monkeypatch):
    """Nobody asks scikit-learn."""

    def ask(name, rows, raw):
        raise AssertionError(f"scikit-learn was asked for {name}")

    monkeypatch.setattr("greedymiser.scoring.scores.ask_scikit_learn", ask)


# -- strategies -----------------------------------------------------------------------------------

# Few values, so that there are ties; far out, where probabilities are 0 and 1.
raw_values = st.one_of(
    st.sampled_from([-1e3, -40.0, -1.5, -0.0, 0.0, 0.25, 1.5, 40.0, 1e3]),
    st.floats(-3.0, 3.0).map(lambda x: round(x, 2)),
)
# Halves of sums of these are met exactly, or missed by far.
weight_values = st.integers(1, 64).map(lambda k: k / 16)


def arrays(values, *shape):
    return hnp.arrays(np.float64, shape, elements=values)


@st.composite
def weights(draw, n):
    return draw(st.one_of(st.none(), arrays(weight_values, n), arrays(st.floats(0.1, 9.0), n)))


@st.composite
def classified(draw, kinds):
    """Loss, labels, codes, raw predictions and weights. Classes may be missing among the codes."""
    classes = draw(st.sampled_from(list(kinds.values())))
    n, k = draw(st.integers(1, 24)), len(classes)
    y = draw(arrays(st.integers(0, k - 1).map(float), n))
    if draw(st.booleans()) and n >= k:
        y[:k] = np.arange(k)
    outputs = 1 if k == 2 else k
    raw = draw(st.one_of(arrays(raw_values, outputs, n), arrays(st.just(0.5), outputs, n)))
    loss = BinaryLogLoss() if k == 2 else MultinomialLogLoss(k)
    return loss, classes, y, raw, draw(weights(n))


@st.composite
def measured(draw):
    """Loss, no classes, targets, raw predictions and weights."""
    n = draw(st.integers(1, 24))
    values = st.one_of(
        st.sampled_from([0.0, 0.5, 1.0, 2.0, 10.0]), st.floats(-3.0, 9.0).map(lambda x: round(x, 3))
    )
    if draw(st.booleans()):
        values = values.map(lambda y: abs(y) + 0.25)  # for what needs positive targets
        loss = draw(st.sampled_from([SquaredError(), Poisson()]))
    else:
        loss = SquaredError()
    y = draw(arrays(values, n))
    raw = draw(
        st.one_of(arrays(raw_values, 1, n), arrays(values, 1, n), arrays(st.just(0.5), 1, n))
    )
    return loss, None, y, raw, draw(weights(n))


# -- beside scikit-learn --------------------------------------------------------------------------


@pytest.mark.parametrize("name", REGRESSION)
@examples(40)
@given(measured())
def test_scores_of_numbers_are_those_of_scikit_learn(name, problem):
    assert_same(name, ours(name, *problem), scikit_learn(name, *problem))


@pytest.mark.parametrize("name", CLASSIFICATION)
@examples(40)
@given(problem=classified(TWO_CLASSES))
def test_scores_of_two_classes_are_those_of_scikit_learn(name, problem):
    loss, classes, *_ = problem
    expected = scikit_learn(name, *problem)
    if known_score(name, "classifier", loss, classes) is None:
        # It is left to scikit-learn because that always has something to say.
        assert isinstance(expected[0], tuple)
    else:
        assert_same(name, ours(name, *problem), expected)


@pytest.mark.parametrize("name", CLASSIFICATION)
@examples(40)
@given(problem=classified(THREE_CLASSES))
def test_scores_of_three_classes_are_those_of_scikit_learn(name, problem):
    loss, classes, *_ = problem
    if known_score(name, "classifier", loss, classes) is None:
        assert name in ("roc_auc", "f1") or (
            name == "average_precision" and 1 not in classes.tolist()
        )
    else:
        assert_same(name, ours(name, *problem), scikit_learn(name, *problem))


NOT_FINITE = [np.nan, np.inf, -np.inf]


@pytest.mark.parametrize("value", NOT_FINITE)
@pytest.mark.parametrize("name", REGRESSION)
def test_numbers_that_are_not_finite_are_refused_in_the_same_words(name, value):
    y, raw = np.array([0.5, 1.0, 2.0, 4.0]), np.array([[1.0, 1.5, value, 3.0]])
    for weight in (None, np.array([1.0, 2.0, 0.5, 1.0])):
        problem = SquaredError(), None, y, raw, weight
        expected = scikit_learn(name, *problem)
        assert expected[0][0] is ValueError
        assert_same(name, ours(name, *problem), expected)


@pytest.mark.parametrize("value", NOT_FINITE)
@pytest.mark.parametrize("name", CLASSIFICATION)
def test_raw_predictions_of_classes_may_be_anything_that_scikit_learn_takes(name, value):
    y, two = np.array([0.0, 1.0, 1.0, 0.0]), np.array([[-1.0, 1.5, value, 3.0]])
    three = np.vstack([two, [[1.0, value, 0.0, 1.0], [2.0, 0.0, 0.5, 0.0]]])
    for raw, classes, loss in [
        (two, np.arange(2), BinaryLogLoss()),
        (three, np.arange(3), MultinomialLogLoss(3)),
    ]:
        problem = loss, classes, np.where(y > 0, np.arange(4) % 3, 0.0), raw, None
        if len(raw) == 1:
            problem = loss, classes, y, raw, None
        if known_score(name, "classifier", loss, classes) is not None:
            assert_same(name, ours(name, *problem), scikit_learn(name, *problem))


def test_errors_too_large_for_a_double_are_left_to_scikit_learn():
    problem = SquaredError(), None, np.array([1e200, -1e200]), np.zeros((1, 2)), None
    for name in ("neg_mean_squared_error", "r2"):
        assert_same(name, ours(name, *problem), scikit_learn(name, *problem))


class Probit(Loss):
    """A user's own loss of two classes."""

    def response(self, raw):
        p = ndtr(raw)
        return np.stack([1.0 - p, p])


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_what_a_loss_of_ones_own_predicts_is_left_to_scikit_learn(name):
    assert known_score(name, "classifier", Probit(), np.arange(2)) is None
    assert known_score(name, "classifier", Loss(), np.arange(2)) is None


@pytest.mark.parametrize("name", ["roc_auc", "roc_auc_ovr", "neg_log_loss", "f1", "accuracy"])
def test_a_fitted_classifier_scores_as_its_raw_predictions_do(name):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 3))
    y = (X[:, 0] + rng.standard_normal(300) > 0).astype(int)
    model = MiserClassifier(max_iter=5).fit(X, y)
    score = known_score(name, "classifier", BinaryLogLoss(), model.classes_)
    found = score.bind(y.astype(float), None)(model.decision_function(X)[None])
    assert found == pytest.approx(skm.get_scorer(name)(model, X, y), rel=1e-13)


def test_a_fitted_regressor_scores_as_its_raw_predictions_do():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 3))
    y = rng.poisson(np.exp(X[:, 0]))
    model = MiserRegressor(loss="poisson", max_iter=5).fit(X, y)
    score = known_score("neg_mean_absolute_error", "regressor", Poisson())
    found = score.bind(y.astype(float), None)(np.log(model.predict(X))[None])
    expected = skm.get_scorer("neg_mean_absolute_error")(model, X, y)
    assert found == pytest.approx(expected, rel=1e-12)


# -- by hand --------------------------------------------------------------------------------------


def test_saturated_probabilities_are_ties_where_the_scorer_asks_for_probabilities():
    # 800 and 900 are both certain, so that probabilities cannot tell these two apart.
    y, raw = np.array([0.0, 1.0]), np.array([[800.0, 900.0]])
    score = {
        name: known_score(name, "classifier", BinaryLogLoss(), np.arange(2)).bind(y, None)(raw)
        for name in ("roc_auc", "roc_auc_ovr")
    }
    assert score == {"roc_auc": 1.0, "roc_auc_ovr": 0.5}


def test_areas_by_hand():
    # Pairs (high, low): 3 of 4 in order without weights; 4 * 1 of 4 * 2 + 1 * 2 against order.
    y, raw = np.array([0.0, 1.0, 0.0, 1.0]), np.array([[0.1, 0.4, 0.5, 0.8]])
    area = known_score("roc_auc", "classifier", BinaryLogLoss(), np.arange(2))
    assert area.bind(y, None)(raw) == 0.75
    assert area.bind(y, np.array([1.0, 4.0, 1.0, 1.0]))(raw) == 0.6
    precision = known_score("average_precision", "classifier", BinaryLogLoss(), np.arange(2))
    assert precision.bind(y, None)(raw) == pytest.approx((1 + 2 / 3) / 2)


@pytest.mark.parametrize("name", ["roc_auc", "roc_auc_ovr", "average_precision"])
def test_perfect_rankings_score_exactly_one(alone, name):
    score = known_score(name, "classifier", BinaryLogLoss(), np.arange(2))
    for seed in range(50):
        rng = np.random.default_rng(seed)
        y = np.repeat([0.0, 1.0], rng.integers(1, 30, 2))
        raw = (y + rng.random(len(y)).round(1) / 2)[None]  # with ties
        assert score.bind(y, None)(raw) == 1.0
        assert score.bind(y, rng.uniform(0.1, 9.0, len(y)))(raw) == 1.0


def test_a_ranker_is_scored_by_its_scores():
    score = known_score("neg_mean_absolute_error", "ranker", Poisson())
    assert score.bind(np.array([1.0, 2.0]), None)(np.array([[1.0, 1.0]])) == -0.5


# -- the order of rows ----------------------------------------------------------------------------


def shuffled(score, y, raw, weight, order):
    return score.bind(y[order], None if weight is None else weight[order])(raw[:, order])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", REGRESSION)
def test_the_order_of_rows_does_not_matter_to_scores_of_numbers(alone, name, weighted):
    rng = np.random.default_rng(7)
    y = np.append(rng.gamma(2.0, size=500), np.repeat([0.5, 1.25], 50))
    raw = np.log(y)[None] * 0.7 + rng.normal(scale=0.3, size=600).round(2)
    weight = rng.uniform(0.1, 9.0, 600) if weighted else None
    score = known_score(name, "regressor", Poisson())
    expected = score.bind(y, weight)(raw)
    for _ in range(20):
        assert shuffled(score, y, raw, weight, rng.permutation(600)) == expected


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("name", CLASSIFICATION)
def test_the_order_of_rows_does_not_matter_to_scores_of_classes(alone, name, n_classes, weighted):
    loss = BinaryLogLoss() if n_classes == 2 else MultinomialLogLoss(n_classes)
    score = known_score(name, "classifier", loss, np.arange(n_classes))
    if score is None:
        return  # not ours to compute
    rng = np.random.default_rng(8)
    y = rng.integers(0, n_classes, 600).astype(float)
    raw = rng.standard_normal((loss.n_outputs, 600)).round(1)  # with ties
    weight = rng.uniform(0.1, 9.0, 600) if weighted else None
    expected = score.bind(y, weight)(raw)
    for _ in range(20):
        assert shuffled(score, y, raw, weight, rng.permutation(600)) == expected


# -- queries --------------------------------------------------------------------------------------


@st.composite
def ranked(draw):
    """Labels, raw predictions, weights, and the query of each row."""
    n = draw(st.integers(1, 30))
    qid = np.sort(draw(hnp.arrays(np.int64, n, elements=st.integers(0, 5))))
    labels = draw(arrays(st.sampled_from([0.0, 0.0, 1.0, 2.0, 4.0, 0.3]), n))
    return labels, draw(arrays(raw_values, 1, n)), draw(weights(n)), qid


@examples(200)
@given(ranked(), st.integers(1, 12))
def test_ndcg_is_that_of_metrics(problem, k):
    y, raw, weight, qid = problem
    score = known_score(f"ndcg@{k}", "ranker", LambdaMART())
    found = score.bind(y, weight, query_order(qid)[1])(raw)
    assert found == pytest.approx(ndcg_score(y, raw[0], qid, k=k, sample_weight=weight), rel=1e-14)


def test_without_queries_all_rows_are_one():
    y, raw = np.array([0.0, 1.0, 2.0]), np.array([[3.0, 2.0, 1.0]])
    score = known_score("ndcg@2", "ranker", LambdaMART())
    assert score.bind(y, None)(raw) == ndcg_score(y, raw[0], [0, 0, 0], k=2)


@examples(100)
@given(ranked(), st.integers(1, 12), st.randoms(use_true_random=False))
def test_the_order_of_rows_and_queries_does_not_matter_to_ndcg(problem, k, random):
    y, raw, weight, qid = problem
    score = known_score(f"ndcg@{k}", "ranker", LambdaMART())
    expected = score.bind(y, weight, query_order(qid)[1])(raw)
    # Queries in another order, and the rows of each.
    queries = sorted(set(qid.tolist()))
    place = dict(zip(queries, random.sample(queries, len(queries)), strict=True))
    order = np.array(random.sample(range(len(y)), len(y)))
    order = order[np.argsort([place[q] for q in qid[order]], kind="stable")]
    starts = query_order([place[q] for q in qid[order]])[1]
    found = score.bind(y[order], None if weight is None else weight[order], starts)(raw[:, order])
    assert found == expected


def test_the_order_of_many_weights_does_not_matter_to_ndcg():
    rng = np.random.default_rng(5)
    n, starts = 400, np.array([0, 150, 400])
    y, raw, weight = rng.integers(0, 3, n).astype(float), rng.random((1, n)), rng.random(n) + 0.1
    score = known_score("ndcg@7", "ranker", LambdaMART())
    expected = score.bind(y, weight, starts)(raw)
    for _ in range(20):
        order = np.concatenate([rng.permutation(150), 150 + rng.permutation(250)])
        assert score.bind(y[order], weight[order], starts)(raw[:, order]) == expected


def test_ndcg_needs_a_place():
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        known_score("ndcg@0", "ranker", LambdaMART()).bind(np.ones(2), None)


# -- by name --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_scorers_of_scikit_learn_are_recognised(name):
    loss, classes = BinaryLogLoss(), np.arange(2)
    assert known_score(skm.get_scorer(name), "classifier", loss, classes).name == name
    assert known_score(skm.get_scorer(name), "regressor", loss) is None


@pytest.mark.parametrize("name", REGRESSION)
def test_scorers_of_numbers_are_recognised(name):
    for kind in ("regressor", "ranker"):
        assert known_score(skm.get_scorer(name), kind, SquaredError()).name == name
    assert known_score(name, "classifier", BinaryLogLoss(), np.arange(2)) is None


def test_scorers_made_alike_are_the_same():
    def known(scoring):
        found = known_score(scoring, "classifier", BinaryLogLoss(), np.arange(2))
        return found and found.name

    assert known(skm.make_scorer(skm.f1_score, average="binary")) == "f1"
    assert known(skm.make_scorer(skm.accuracy_score)) == "accuracy"
    response = ("decision_function", "predict_proba")
    assert known(skm.make_scorer(skm.roc_auc_score, response_method=response)) == "roc_auc"
    # Anything else is not certain.
    for other in (
        skm.make_scorer(skm.f1_score, average="binary", pos_label=0),
        skm.make_scorer(skm.f1_score, average="binary", labels=np.array([0, 1])),
        skm.make_scorer(skm.f1_score, average=np.array(["binary"])),
        skm.make_scorer(skm.roc_auc_score, response_method="predict_proba"),
        skm.make_scorer(skm.roc_auc_score, response_method=response, max_fpr=0.5),
        skm.make_scorer(skm.accuracy_score, greater_is_better=False),
        skm.make_scorer(lambda y, p: skm.accuracy_score(y, p)),
        skm.make_scorer(skm.fbeta_score, beta=2),
        lambda model, X, y: 0.5,
        skm.accuracy_score,
        "loss",
        "top_k_accuracy",
        "f1_samples",
        "ndcg@5",
        None,
    ):
        assert known(other) is None


def test_a_scorer_that_asks_for_metadata_is_not_the_standard_one():
    from sklearn import config_context

    with config_context(enable_metadata_routing=True):
        scorer = skm.get_scorer("accuracy").set_score_request(sample_weight=False)
    assert known_score(scorer, "classifier", BinaryLogLoss(), np.arange(2)) is None


@pytest.mark.parametrize(
    ("name", "classes"),
    [
        ("roc_auc", [0, 1, 2]),
        ("f1", [0, 1, 2]),
        ("f1", [0, 2]),
        ("f1", ["a", "b"]),
        ("average_precision", ["a", "b"]),
        ("neg_brier_score", ["a", "b"]),
        ("accuracy", [1, 0]),
        ("accuracy", [0.5, 1.5]),
        ("accuracy", [0.0, np.nan]),
        ("accuracy", [0.0, np.inf]),
        ("accuracy", [b"a", b"b"]),
        ("accuracy", [0]),
        ("accuracy", []),
    ],
)
def test_labels_that_scikit_learn_should_see_itself(name, classes):
    loss = MultinomialLogLoss(3) if len(classes) == 3 else BinaryLogLoss()
    assert known_score(name, "classifier", loss, np.array(classes)) is None


def test_labels_must_be_of_one_sort_and_known():
    mixed = np.array([1, "b"], dtype=object)
    assert known_score("accuracy", "classifier", BinaryLogLoss(), mixed) is None
    assert known_score("accuracy", "classifier", BinaryLogLoss(), None) is None
    # A loss with one output cannot speak of three classes.
    assert known_score("accuracy", "classifier", BinaryLogLoss(), np.arange(3)) is None


def test_shapes_must_agree():
    score = known_score("accuracy", "classifier", BinaryLogLoss(), np.arange(2))
    with pytest.raises(ValueError, match=r"weight must have shape \(3,\), got \(2,\)"):
        score.bind(np.array([0.0, 1.0, 1.0]), np.ones(2))
    bound = score.bind(np.array([0.0, 1.0, 1.0]), None)
    with pytest.raises(ValueError, match=r"raw must have shape \(1, 3\), got \(1, 2\)"):
        bound(np.zeros((1, 2)))
    with pytest.raises(ValueError, match=r"raw must have shape \(1, 3\), got \(3,\)"):
        bound(np.zeros(3))


@pytest.mark.parametrize("name", ["roc_auc", "average_precision", "f1_macro", "neg_log_loss"])
def test_raw_predictions_are_only_read_and_may_lie_anywhere(name):
    rng = np.random.default_rng(3)
    y, table = np.arange(50.0) % 2, rng.standard_normal((50, 2))
    score = known_score(name, "classifier", BinaryLogLoss(), np.arange(2)).bind(y, None)
    strided = table.T[:1]
    strided.flags.writeable = False
    before = table.copy()
    assert score(strided) == score(np.ascontiguousarray(strided))
    assert (table == before).all()


# -- kernels --------------------------------------------------------------------------------------


@given(classified({**TWO_CLASSES, **THREE_CLASSES}))
def test_classes_are_counted_and_weighed(problem):
    _, classes, y, raw, weight = problem
    n = len(classes)
    correct, named = np.zeros(n), np.zeros(n)
    if weight is None:
        _kernels.count_classes(raw, y.astype(np.intp), correct, named)
        weight = np.ones(len(y))
    else:
        _kernels.weigh_classes(raw, y.astype(np.intp), weight, correct, named)
    expected = naive.weigh_classes(raw.tolist(), y.tolist(), weight.tolist(), n)
    assert correct.tolist() == [float(total) for total in expected[0]]
    assert named.tolist() == [float(total) for total in expected[1]]


@given(classified(TWO_CLASSES))
def test_areas_are_those_of_all_pairs(problem):
    _, _, y, raw, weight = problem
    known = np.ones(len(y)) if weight is None else weight
    for name, plain in [("roc_auc", naive.roc_auc), ("average_precision", naive.average_precision)]:
        if set(y) != {0.0, 1.0}:
            continue
        score = known_score(name, "classifier", BinaryLogLoss(), np.arange(2))
        expected = float(plain(y > 0, raw[0].tolist(), known.tolist()))
        assert score.bind(y, weight)(raw) == pytest.approx(expected, rel=4e-16)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
@example(2**63 - 1, 2**63 - 1)
def test_products_have_two_halves(a, b):
    upper, lower = compiled(_kernels.multiply)(np.uint64(a), np.uint64(b))
    assert (int(upper) << 64) + int(lower) == a * b


def test_a_class_is_predicted_as_numpy_would():
    values = [-1.0, 0.0, 1.0, np.nan, np.inf, -np.inf]
    for outputs in itertools.product(values, repeat=3):
        assert compiled(_kernels.likeliest)(np.array(outputs)[:, None], 0) == np.argmax(outputs)


def test_tiny_weights_beside_huge_ones_are_not_lost(alone):
    def score(name, weight):
        known = known_score(name, "classifier", BinaryLogLoss(), np.arange(2))
        return known.bind(y, np.array(weight))(raw)

    y, raw = np.array([0.0, 0.0, 1.0, 1.0]), np.array([[-0.1, 0.6, 0.4, 0.8]])
    # One class beside the other: three quarters of the second are above both rows of the first.
    of_other_class = [1e30, 1e30, 1e-30, 3e-30]
    assert score("roc_auc", of_other_class) == pytest.approx(0.875, rel=4e-16)
    assert score("balanced_accuracy", of_other_class) == 0.75
    # Rows of the same class: the one above all weighs next to nothing.
    of_same_class = [1.0, 1.0, 1.0, 1e-30]
    assert score("roc_auc", of_same_class) == 0.5
    assert score("average_precision", of_same_class) == 0.5


# -- kernels --------------------------------------------------------------------------------------


@st.composite
def two_sides(draw, most_mass=9):
    """Sorted scores of low and high rows, and their masses; none at all for 1 each."""
    sides = []
    for least in (0, 1):
        scores = st.sampled_from([-1.0, 0.0, 0.5, 0.5, 2.0, math.inf])
        values = sorted(draw(st.lists(scores, min_size=least, max_size=12)))
        masses = st.lists(st.integers(1, most_mass), min_size=len(values), max_size=len(values))
        sides.append((values, draw(st.one_of(masses, st.just([])))))
    return sides


def as_arrays(side):
    return np.array(side[0], dtype=np.float64), np.array(side[1], dtype=np.int64)


def plain_side(side):
    return side[0], side[1] or [1] * len(side[0])


@pytest.mark.parametrize("name", ["roc_auc", "average_precision"])
def test_many_rows_are_scored_as_few_are(name):
    rng = np.random.default_rng(0)
    y = (rng.random(6000) < 0.3).astype(float)
    raw = np.round(rng.standard_normal((1, len(y))) + y, 2)
    score = known_score(name, "classifier", BinaryLogLoss(), np.arange(2)).bind(y, None)(raw)
    metric = getattr(skm, f"{name}_score")
    assert score == pytest.approx(metric(y, raw[0]), rel=1e-12)


@examples(60)
@given(two_sides(most_mass=2**40))
def test_pairs_in_order_are_all_pairs(sides):
    """Masses of 40 bits: products and their sum do not fit 64."""
    low, high = sides
    upper, lower = _kernels.pairs_in_order(*as_arrays(low), *as_arrays(high))
    expected = naive.pairs_in_order(*plain_side(low), *plain_side(high))
    assert (int(upper) << 64) + int(lower) == expected


@examples(60)
@given(two_sides(), st.sampled_from([1.0, 0.25, 3.0]))
def test_precision_falls_step_by_step(sides, low_unit):
    low, high = sides
    out = np.empty(len(high[0]))
    n = _kernels.precision_steps(*as_arrays(low), low_unit, *as_arrays(high), out)
    expected = naive.precision_steps(*plain_side(low), low_unit, *plain_side(high))
    assert out[:n].tolist() == expected
