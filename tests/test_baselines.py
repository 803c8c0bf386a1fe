"""Models of other libraries on our meter: the same predictions, and a bill."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.ensemble import (
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from threadpoolctl import threadpool_limits

from experiments.cronus import Cronus
from greedymiser import (
    CostModel,
    EarlyExitClassifier,
    EarlyExitRanker,
    UnreadableModelError,
    as_predictor,
    baseline,
    load,
    save,
)
from greedymiser.estimators.baselines import BaselineRegressor
from greedymiser.estimators.baselines.foreign_models import below_in_single

lightgbm = pytest.importorskip("lightgbm", reason="needs LightGBM: greedymiser[export]")
xgboost = pytest.importorskip("xgboost", reason="needs XGBoost: greedymiser[test]")

N, P = 400, 5
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, P))
X[:, 3] = np.round(X[:, 3])
SIGNAL = X[:, 0] + (X[:, 1] > 0) * X[:, 3]
TWO = np.where(SIGNAL > 0.3, "yes", "no")
THREE = np.digitize(SIGNAL, [-0.5, 0.8]) + 4
GAPPED = np.where(RNG.random(X.shape) < 0.15, np.nan, X)
PRICES = [1.0, 2.0, 4.0, 8.0, 16.0]
COSTS = CostModel(PRICES, groups={"shared": [0, 1]}, group_costs={"shared": 32.0}, tree_cost=0.5)


@pytest.fixture(autouse=True)
def few_threads():
    """Threads of OpenMP that wait for each other take seconds on a busy machine."""
    with threadpool_limits(1):
        yield


def lgb(kind, **params):
    return kind(n_estimators=12, num_leaves=7, verbose=-1, n_jobs=1, **params)


def xgb(kind, **params):
    return kind(n_estimators=12, max_depth=3, n_jobs=1, **params)


# Newer versions drop trees with any booster, and warn of the name.
DART = {"rate_drop": 0.5}
if tuple(map(int, xgboost.__version__.split(".")[:2])) < (3, 4):
    DART["booster"] = "dart"

REGRESSORS = {
    "lightgbm": lgb(lightgbm.LGBMRegressor),
    "lightgbm l1": lgb(lightgbm.LGBMRegressor, objective="mae"),
    "lightgbm forest": lgb(
        lightgbm.LGBMRegressor, boosting_type="rf", subsample=0.5, subsample_freq=1
    ),
    "lightgbm dart": lgb(lightgbm.LGBMRegressor, boosting_type="dart"),
    "xgboost": xgb(xgboost.XGBRegressor),
    "xgboost dart": xgb(xgboost.XGBRegressor, **DART),
    "histogram": HistGradientBoostingRegressor(max_iter=12),
}
NO_GAPS = {
    "gradient boosting": GradientBoostingRegressor(n_estimators=12),
    "from zero": GradientBoostingRegressor(n_estimators=12, init="zero"),
    "forest": RandomForestRegressor(10, random_state=0, n_jobs=1),
    "extra trees": ExtraTreesRegressor(10, random_state=0, n_jobs=1),
}
POSITIVE = {
    "lightgbm": lgb(lightgbm.LGBMRegressor, objective="poisson"),
    "lightgbm tweedie": lgb(lightgbm.LGBMRegressor, objective="tweedie"),
    "xgboost": xgb(xgboost.XGBRegressor, objective="count:poisson"),
    "xgboost gamma": xgb(xgboost.XGBRegressor, objective="reg:gamma"),
    "histogram": HistGradientBoostingRegressor(loss="poisson", max_iter=12),
}
CLASSIFIERS = {
    "lightgbm": lgb(lightgbm.LGBMClassifier),
    "lightgbm sigmoid": lgb(lightgbm.LGBMClassifier, sigmoid=2.0),
    "xgboost": xgb(xgboost.XGBClassifier),
    "xgboost several trees": xgb(xgboost.XGBClassifier, num_parallel_tree=2),
    "histogram": HistGradientBoostingClassifier(max_iter=12),
}


def near(expected):
    return pytest.approx(np.asarray(expected, dtype=np.float64), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("name", REGRESSORS)
@pytest.mark.parametrize("data", [X, GAPPED], ids=["whole", "gaps"])
def test_regressors_predict_as_before(name, data):
    model = clone(REGRESSORS[name]).fit(data, SIGNAL)
    metered = baseline(model, COSTS)
    assert metered.predict(GAPPED) == near(model.predict(GAPPED))
    if name in ("lightgbm", "histogram"):
        assert np.array_equal(metered.predict(GAPPED), model.predict(GAPPED))


@pytest.mark.parametrize("name", NO_GAPS)
def test_trees_of_float32_predict_as_before(name):
    # Numbers that are thresholds themselves once they are rounded to float32.
    ties = np.round(X, 1)
    model = NO_GAPS[name].fit(ties, SIGNAL)
    assert baseline(model, COSTS).predict(ties) == near(model.predict(ties))


@pytest.mark.parametrize("name", POSITIVE)
def test_positive_regressors_predict_as_before(name):
    model = clone(POSITIVE[name]).fit(GAPPED, np.exp(SIGNAL))
    assert baseline(model, COSTS).predict(GAPPED) == near(model.predict(GAPPED))


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("y", [TWO, THREE], ids=["two", "three"])
def test_classifiers_predict_as_before(name, y):
    if "sigmoid" in name and y is THREE:
        pytest.skip("LightGBM's sigmoid is for two classes")
    if "xgboost" in name:
        y = np.unique(y, return_inverse=True)[1]
    model = clone(CLASSIFIERS[name]).fit(GAPPED, y)
    metered = baseline(model, COSTS)
    assert metered.predict_proba(GAPPED) == near(model.predict_proba(GAPPED))
    assert np.array_equal(metered.predict(GAPPED), model.predict(GAPPED))
    assert metered.classes_.tolist() == model.classes_.tolist()


@pytest.mark.parametrize("y", [TWO, THREE], ids=["two", "three"])
@pytest.mark.parametrize(
    "model",
    [
        GradientBoostingClassifier(n_estimators=12),
        GradientBoostingClassifier(n_estimators=12, loss="exponential"),
        RandomForestClassifier(10, random_state=0, n_jobs=1),
    ],
    ids=["log loss", "exponential", "forest"],
)
def test_classifiers_of_decision_trees_predict_as_before(model, y):
    if getattr(model, "loss", "") == "exponential" and y is THREE:
        pytest.skip("the exponential loss is for two classes")
    model = model.fit(X, y)
    metered = baseline(model, COSTS)
    assert metered.predict_proba(X) == near(model.predict_proba(X))
    assert np.array_equal(metered.predict(X), model.predict(X))
    # A tree of a forest is paid for once, however many classes it has.
    n_trees = model.estimators_.size if hasattr(model, "loss") else len(model.estimators_)
    assert metered.cost_ == COSTS.total(metered.features_used_, n_trees)


@pytest.mark.parametrize("loss", ["log_loss", "exponential"])
def test_of_equally_likely_classes_gradient_boosting_says_the_second(loss, tmp_path):
    """Everybody else says the first."""
    rows = np.array([[0.0], [0.0], [1.0], [1.0]])
    labels = np.array(["no", "yes", "no", "yes"])
    model = GradientBoostingClassifier(n_estimators=2, loss=loss).fit(rows, labels)
    assert model.decision_function(rows).tolist() == [0.0] * 4
    metered = baseline(model)
    save(metered, tmp_path / "model.miser")
    for told in (metered, as_predictor(metered), load(tmp_path / "model.miser")):
        assert told.predict(rows).tolist() == model.predict(rows).tolist() == ["yes"] * 4
        assert told.predict_proba(rows).tolist() == model.predict_proba(rows).tolist()
    for stage in metered.staged_predict(rows):
        assert stage.tolist() == ["yes"] * 4
    other = HistGradientBoostingClassifier(max_iter=2).fit(rows, labels)
    assert baseline(other).predict(rows).tolist() == other.predict(rows).tolist() == ["no"] * 4


def test_rankers_predict_as_before():
    query = np.repeat(np.arange(20), 20)
    stars = np.clip(np.round(SIGNAL) + 1, 0, 3).astype(int)
    for model in (lgb(lightgbm.LGBMRanker), xgb(xgboost.XGBRanker)):
        groups = {"qid": query} if "xgboost" in type(model).__module__ else {"group": [20] * 20}
        metered = baseline(model.fit(GAPPED, stars, **groups), COSTS)
        assert metered.predict(GAPPED) == near(model.predict(GAPPED))
        assert metered.score(GAPPED, stars, qid=query) > 0.5
        hasty = EarlyExitRanker(metered, threshold=0.2, every=3).fit(GAPPED, stars, qid=query)
        assert hasty.prediction_costs(GAPPED, qid=query).mean() < metered.cost_


def test_plain_boosters():
    rows = lightgbm.Dataset(GAPPED, (SIGNAL > 0).astype(int))
    one = lightgbm.train({"objective": "binary", "verbose": -1, "num_threads": 1}, rows, 5)
    assert baseline(one).predict_proba(GAPPED)[:, 1] == near(one.predict(GAPPED))
    assert baseline(one).classes_.tolist() == [0, 1]
    table = xgboost.DMatrix(GAPPED, SIGNAL)
    other = xgboost.train({"objective": "reg:squarederror", "nthread": 1}, table, 5)
    assert baseline(other).predict(GAPPED) == near(other.predict(table))


# LightGBM 4.7 has new names for these arguments, which 4.6 does not know.
@pytest.mark.filterwarnings("ignore:The argument 'eval_set' is deprecated")
def test_only_the_best_rounds_count():
    halves = (X[::2], SIGNAL[::2] + RNG.standard_normal(N // 2)), (X[1::2], SIGNAL[1::2])
    stop = lightgbm.early_stopping(2, verbose=False)
    model = lightgbm.LGBMRegressor(n_estimators=200, learning_rate=0.5, verbose=-1, n_jobs=1)
    model.fit(*halves[0], eval_set=[halves[1]], callbacks=[stop])
    metered = baseline(model)
    assert metered.n_iter_ == model.best_iteration_ < 200
    assert np.array_equal(metered.predict(X), model.predict(X))
    model = xgboost.XGBRegressor(n_estimators=200, early_stopping_rounds=2, n_jobs=1)
    model.fit(*halves[0], eval_set=[halves[1]], verbose=False)
    metered = baseline(model)
    assert metered.n_iter_ == model.best_iteration + 1 < 200
    assert metered.predict(X) == near(model.predict(X))


# Forests: means, not sums

FEW = {"n_estimators": 6, "random_state": 0, "n_jobs": 1}
BAGGED = {"boosting_type": "rf", "subsample": 0.5, "subsample_freq": 1, "verbose": -1}
# What XGBRFRegressor is, which newer versions warn of.
AT_ONCE = {
    "n_estimators": 1, "num_parallel_tree": FEW["n_estimators"], "random_state": 0, "n_jobs": 1,
    "learning_rate": 1.0, "subsample": 0.8, "colsample_bynode": 0.8, "base_score": 3.0,
}  # fmt: skip
FORESTS = {
    "forest": (RandomForestClassifier(**FEW), TWO),
    "forest of three": (RandomForestClassifier(**FEW), THREE),
    "regression": (RandomForestRegressor(**FEW), SIGNAL),
    "lightgbm": (lightgbm.LGBMClassifier(**FEW, **BAGGED), TWO),
    "xgboost": (xgboost.XGBRegressor(**AT_ONCE), SIGNAL),
}


def by_first_trees(model, n):
    """What the library itself makes of the first trees: probabilities, or numbers."""
    if isinstance(model, lightgbm.LGBMClassifier):
        return model.predict_proba(X, num_iteration=n)
    if isinstance(model, xgboost.XGBRegressor):
        leaves = model.get_booster().trees_to_dataframe().query("Feature == 'Leaf'")
        value = leaves.set_index(["Tree", "Node"])["Gain"]
        found = [[value[t, node] for t, node in enumerate(row[:n])] for row in model.apply(X)]
        return 3.0 + np.mean(found, axis=1) * FEW["n_estimators"]
    said = [getattr(tree, "predict_proba", tree.predict)(X) for tree in model.estimators_[:n]]
    return np.mean(said, axis=0)


@pytest.mark.parametrize("name", FORESTS)
def test_the_first_trees_of_a_forest_are_a_forest(name):
    kind, y = FORESTS[name]
    model = clone(kind).fit(X, y)
    metered = baseline(model, COSTS)
    probable = hasattr(metered, "predict_proba")
    answer = "predict_proba" if probable else "predict"
    staged = getattr(metered, "staged_" + answer)(X)
    for n, said in enumerate(staged, start=1):
        expected = near(by_first_trees(model, n))
        assert said == expected
        assert getattr(metered.truncate(n), answer)(X) == expected
    assert getattr(metered.truncate(4).truncate(2), answer)(X) == near(by_first_trees(model, 2))
    with pytest.raises(ValueError, match="n_iter must be at least 1"):
        metered.truncate(0)
    if probable:
        with pytest.raises(ValueError, match=r"is a forest, .*truncate\(n\)"):
            EarlyExitClassifier(metered, threshold=0.6).fit(X, y)


# Categories


@pytest.fixture(scope="module")
def frame():
    labels = np.array(["red", "green", "blue", "grey"])[RNG.integers(0, 4, N)]
    numbers = RNG.integers(10, 14, N)
    return pd.DataFrame(
        {
            "how hot": X[:, 0],
            "colour": pd.Categorical(np.where(RNG.random(N) < 0.1, None, labels)),
            "size": pd.Categorical(numbers, categories=[13, 10, 12, 11]),
        }
    )


def categorical_signal(frame):
    codes = frame["colour"].cat.codes.to_numpy() + 2 * (frame["size"].to_numpy() == 12)
    return codes + 0.3 * frame["how hot"].to_numpy()


PRICE_OF = {"how hot": 1.0, "colour": 2.0, "size": 4.0}


def test_categories_of_data_frames(frame):
    y = categorical_signal(frame)
    model = lgb(lightgbm.LGBMRegressor, min_child_samples=5).fit(frame, y)
    metered = baseline(model, PRICE_OF)
    # LightGBM calls the first column how_hot.
    assert metered.features_used_ == ["how hot", "colour", "size"]
    assert np.array_equal(metered.predict(frame), model.predict(frame))
    strange = frame.assign(colour=pd.Categorical(["purple"] * N))
    assert np.array_equal(metered.predict(strange), model.predict(strange))
    model = HistGradientBoostingRegressor(max_iter=12, categorical_features="from_dtype")
    model.fit(frame, y)
    metered = baseline(model, PRICE_OF)
    assert np.array_equal(metered.predict(frame), model.predict(frame))


def test_categories_of_arrays():
    numbers = X.copy()
    numbers[:, 3] = RNG.integers(0, 40, N)
    y = np.sin(7 * numbers[:, 3]) + numbers[:, 0]
    model = lgb(lightgbm.LGBMRegressor, min_child_samples=5)
    model.fit(numbers, y, categorical_feature=[3])
    assert np.array_equal(baseline(model).predict(numbers), model.predict(numbers))
    model = HistGradientBoostingRegressor(max_iter=12, categorical_features=[3]).fit(numbers, y)
    assert np.array_equal(baseline(model).predict(numbers), model.predict(numbers))


# The bill


def test_the_bill_by_hand():
    rows = np.array([[0.0, 5.0, 0.0], [1.0, 5.0, 0.0]] * 30)
    model = lightgbm.LGBMRegressor(n_estimators=3, verbose=-1, n_jobs=1).fit(rows, rows[:, 0])
    costs = CostModel([3.0, 5.0, 7.0], tree_cost=0.25)
    metered = baseline(model, costs)
    assert metered.features_used_ == [0]
    assert metered.cost_ == 3.0 + 3 * 0.25
    assert metered.prediction_costs(rows).tolist() == [3.75] * 60
    assert metered.truncate(1).cost_ == 3.25
    line = metered.receipt()[0]
    assert (line.iteration, line.feature, line.price, line.spent) == (0, 0, 3.0, 3.0)
    assert len(metered.receipt()) == 1


def test_receipts_pay_for_everything_once():
    model = xgb(xgboost.XGBClassifier).fit(GAPPED, THREE - 4)
    metered = baseline(model, COSTS)
    receipt = metered.receipt()
    assert receipt.total == COSTS.total(metered.features_used_)
    assert sorted(name for line in receipt for name in line.resources) == sorted(
        metered.resources_used_
    )
    assert receipt.total + 0.5 * 36 == metered.cost_


def test_rows_may_pay_for_themselves():
    model = HistGradientBoostingRegressor(max_iter=3, max_leaf_nodes=4).fit(X, SIGNAL)
    metered = baseline(model, COSTS, charge="row")
    bills = metered.prediction_costs(X)
    nodes, starts = metered.ensemble_.nodes, metered.ensemble_.tree_starts
    for row, bill in zip(X[:20], bills[:20], strict=True):
        asked = set()
        for start in starts[:-1]:
            node = nodes[start]
            while node["feature"] >= 0:
                asked.add(int(node["feature"]))
                right = row[node["feature"]] > node["threshold"]
                node = nodes[start + node["left"] + right]
        assert bill == COSTS.total(asked, 3)
    assert bills.max() <= metered.cost_ == baseline(model, COSTS).cost_
    voting = RandomForestClassifier(3, max_depth=2, random_state=0).fit(X, THREE)
    free = CostModel([0.0] * P, tree_cost=1.0)
    assert baseline(voting, free, charge="row").prediction_costs(X).tolist() == [3.0] * N
    with pytest.raises(ValueError, match="charge"):
        baseline(model, COSTS, charge="nobody")


def test_early_exits_over_a_baseline():
    model = lgb(lightgbm.LGBMClassifier).fit(GAPPED, TWO)
    metered = baseline(model, COSTS)
    hasty = EarlyExitClassifier(metered, threshold=0.6, every=2).fit(GAPPED, TWO)
    assert hasty.prediction_costs(GAPPED).mean() < metered.cost_
    never = EarlyExitClassifier(metered, threshold=1.0, every=2).fit(GAPPED, TWO)
    assert np.array_equal(never.predict_proba(GAPPED), metered.predict_proba(GAPPED))
    curve = hasty.curve(GAPPED, TWO, thresholds=4)
    assert curve["cost"].iloc[-1] == metered.cost_


def test_a_cascade_over_a_baseline():
    metered = baseline(lgb(lightgbm.LGBMRegressor).fit(X, SIGNAL), COSTS)
    cascade = Cronus(metered, tradeoff=1e-4, n_stages=2).fit(X, SIGNAL)
    assert cascade.score(X, SIGNAL) > 0.3
    # Rows that leave after the first stage pay less, and nobody pays for more than there is.
    paid = cascade.prediction_costs(X)
    assert set(paid) <= set(cascade.predictor_.stage_costs.tolist())
    assert paid.max() <= metered.cost_
    assert set(cascade.features_used_) <= set(metered.features_used_)


def test_baselines_are_saved_pickled_and_cloned(tmp_path):
    model = lgb(lightgbm.LGBMClassifier).fit(GAPPED, THREE)
    metered = baseline(model, COSTS)
    save(metered, tmp_path / "m.miser")
    kept = load(tmp_path / "m.miser")
    assert np.array_equal(kept.predict_proba(GAPPED), metered.predict_proba(GAPPED))
    assert kept.cost_ == metered.cost_
    again = clone(metered).fit(GAPPED, THREE)
    assert np.array_equal(again.predict(GAPPED), metered.predict(GAPPED))
    copied = pickle.loads(pickle.dumps(metered))
    assert np.array_equal(copied.predict(GAPPED), metered.predict(GAPPED))


def test_a_pickle_from_before_models_knew_of_copies():
    forest = RandomForestClassifier(3, max_depth=2, random_state=0).fit(X, THREE)
    metered = baseline(forest, CostModel([1.0] * X.shape[1], tree_cost=0.5))
    bare = replace(metered.model_, has_copies=False)
    older = type(metered).__new__(type(metered))
    older.__setstate__({**metered.__getstate__(), "model_": bare, "has_copies_": True})
    assert older.cost_ == metered.cost_ == len(metered.features_used_) + 3 * 0.5
    assert vars(older).keys() == vars(metered).keys()


def test_what_a_search_has_found():
    search = GridSearchCV(HistGradientBoostingRegressor(max_iter=5), {"max_depth": [2]}, cv=2)
    search.fit(X, SIGNAL)
    assert np.array_equal(baseline(search, COSTS).predict(X), search.predict(X))


# What is refused


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinearRegression().fit(X, SIGNAL), "LinearRegression is not one of"),
        (lambda: object(), "got object"),
        (
            lambda: lgb(lightgbm.LGBMRegressor, linear_tree=True).fit(X, SIGNAL),
            "linear_tree",
        ),
        (
            lambda: lgb(lightgbm.LGBMRegressor, zero_as_missing=True).fit(
                np.where(RNG.random(X.shape) < 0.3, 0.0, X), SIGNAL
            ),
            "zero_as_missing",
        ),
        (lambda: lgb(lightgbm.LGBMRegressor, reg_sqrt=True).fit(X, SIGNAL), "sqrt"),
        (
            lambda: lgb(lightgbm.LGBMClassifier, objective="multiclassova").fit(X, THREE),
            "multiclassova",
        ),
        (lambda: xgb(xgboost.XGBRegressor, booster="gblinear").fit(X, SIGNAL), "gblinear"),
        (
            lambda: xgb(xgboost.XGBRegressor, objective="reg:logistic").fit(X, SIGNAL > 0),
            "reg:logistic",
        ),
        (
            lambda: xgb(xgboost.XGBRegressor).fit(X, np.stack([SIGNAL, SIGNAL], axis=1)),
            "several targets",
        ),
        (
            lambda: GradientBoostingRegressor(n_estimators=2, init=LinearRegression()).fit(
                X, SIGNAL
            ),
            "starts from another model",
        ),
        (
            lambda: RandomForestRegressor(2).fit(X, np.stack([SIGNAL, SIGNAL], axis=1)),
            "2 targets",
        ),
        (lambda: xgb(xgboost.XGBRegressor, missing=-999.0).fit(X, SIGNAL), "missing=-999"),
        (
            lambda: xgb(xgboost.XGBClassifier, objective="binary:logitraw").fit(X, SIGNAL > 0),
            "objective 'binary:logitraw' are none of ours",
        ),
        (lambda: RandomForestClassifier(3).fit(X, np.zeros(N)), r"one class only, \[0.0\]"),
        (lambda: lgb(lightgbm.LGBMClassifier).fit(X, np.ones(N)), r"one class only, \[1.0\]"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_our_trees_cannot_say_is_refused(make, message):
    with pytest.raises(UnreadableModelError, match=message):
        baseline(make(), COSTS)


@pytest.mark.parametrize(
    "model",
    [lightgbm.LGBMClassifier(), xgboost.XGBClassifier(), RandomForestClassifier()],
    ids=["lightgbm", "xgboost", "forest"],
)
def test_a_model_must_be_fitted(model):
    with pytest.raises(NotFittedError):
        baseline(model)


@pytest.mark.parametrize("most_one_hot", [1, 100])
def test_xgboosts_categories(frame, most_one_hot):
    y = categorical_signal(frame)
    model = xgb(xgboost.XGBRegressor, enable_categorical=True, max_cat_to_onehot=most_one_hot)
    read = baseline(model.fit(frame, y))
    np.testing.assert_allclose(read.predict(frame), model.predict(frame), rtol=1e-5, atol=1e-5)
    # Without a frame nobody knows which categories there are.
    codes = frame.assign(**{name: frame[name].cat.codes for name in ("colour", "size")})
    types = ["float", "c", "c"]
    model = xgb(xgboost.XGBRegressor, enable_categorical=True, feature_types=types)
    model.fit(codes.replace(-1, np.nan).to_numpy(dtype=float), y)
    with pytest.raises(UnreadableModelError, match="splits by category, and its file does not"):
        baseline(model)


def test_costs_must_fit():
    model = HistGradientBoostingRegressor(max_iter=2).fit(X, SIGNAL)
    with pytest.raises(ValueError, match="costs has 2 entries, but X has 5 features"):
        baseline(model, [1.0, 2.0])
    with pytest.raises(TypeError, match="needs a regressor"):
        BaselineRegressor(HistGradientBoostingClassifier(max_iter=2).fit(X, TWO)).fit()


def test_a_misread_model_is_noticed(monkeypatch):
    model = lgb(lightgbm.LGBMRegressor).fit(X, SIGNAL)
    monkeypatch.setattr(model.booster_, "predict", lambda rows, **_: np.zeros(len(rows)))
    with pytest.raises(UnreadableModelError, match="not read as that library"):
        baseline(model)


@given(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.floats(allow_nan=False, allow_infinity=False, min_value=-1e30, max_value=1e30),
    st.booleans(),
)
def test_questions_about_float32(single, double, strictly):
    """The bound splits float64 as rounding to float32 and comparing does."""
    threshold = single if strictly else double
    bound = float(below_in_single(np.array([threshold]), strictly=strictly)[0])
    around = [bound, np.nextafter(bound, np.inf), np.nextafter(bound, -np.inf), threshold]
    with np.errstate(over="ignore"):
        for value in around:
            rounded = np.float32(value)
            goes_left = rounded < threshold if strictly else float(rounded) <= threshold
            assert goes_left == (value <= bound)
