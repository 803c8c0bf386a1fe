"""The estimators are scikit-learn estimators: its own checks, and its tools around them."""

import functools
import inspect
import io
import os
import pickle
import re
import subprocess
import sys
from dataclasses import fields

import joblib
import numpy as np
import pytest
import sklearn
from sklearn import config_context
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    cross_val_score,
    cross_validate,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder, StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator
from sklearn.utils.fixes import parse_version

from greedymiser import (
    CostModel,
    MiserClassifier,
    MiserRanker,
    MiserRegressor,
    MiserSearchCV,
    ndcg_score,
)
from greedymiser.losses import Quantile
from greedymiser.training.parameters import Parameters

ESTIMATORS = [MiserRegressor, MiserClassifier, MiserRanker]


def name_of(check):
    return (check.func if isinstance(check, functools.partial) else check).__name__


def needs_array_api(check):
    return name_of(check).startswith("check_array_api")


# Every check that scikit-learn has for such an estimator, as it is: none is expected to fail. Those
# of the array API skip themselves unless SciPy is told of it before it is imported: see below.
CHECKS = [
    pytest.param(estimator, check, id=f"{kind.__name__}-{name_of(check)}")
    for kind in ESTIMATORS
    for estimator, check in estimator_checks_generator(kind())
    if not needs_array_api(check)
]


@pytest.mark.slow
@pytest.mark.parametrize(("estimator", "check"), CHECKS)
def test_estimator_check(estimator, check):
    check(estimator)


# A query in which a document is there twice has another NDCG than one in which it weighs twice.
NOT_FOR_RANKERS = "check_sample_weight_equivalence"

SEARCH_CHECKS = [
    pytest.param(search, check, id=f"{kind.__name__}-{name_of(check)}")
    for kind in ESTIMATORS
    for search, check in estimator_checks_generator(
        MiserSearchCV(
            kind(max_iter=12, learning_rate=0.4, min_samples_leaf=3),
            tradeoffs=[0.0],
            cv=2,
            random_state=0,
        )
    )
    if not needs_array_api(check)
    and not (kind is MiserRanker and name_of(check).startswith(NOT_FOR_RANKERS))
]


@pytest.mark.slow
@pytest.mark.parametrize(("search", "check"), SEARCH_CHECKS)
def test_search_check(search, check):
    check(search)


@pytest.mark.subprocess
def test_array_api_checks():
    code = f"""if True:
        import sys
        sys.path[:0] = {sys.path!r}
        from test_sklearn import ESTIMATORS, estimator_checks_generator, needs_array_api
        for kind in ESTIMATORS:
            for estimator, check in estimator_checks_generator(kind()):
                if needs_array_api(check):
                    check(estimator)
                    print(kind.__name__)
    """
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "SCIPY_ARRAY_API": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    # scikit-learn has had these checks since 1.8.
    assert set(done.stdout.split()) in ({kind.__name__ for kind in ESTIMATORS}, set())


# -- tools around the estimators ------------------------------------------------------------------


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((240, 4))
    y = X[:, 0] + (X[:, 1] > 0) + 0.1 * rng.standard_normal(240)
    return X, y


@pytest.fixture
def queries():
    """Thirty queries of eight documents, whose rows lie anywhere."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((240, 4))
    y = np.clip(np.round(X[:, 0] + 0.5 * X[:, 2] + 1), 0, 4)
    return X, y, rng.permutation(np.repeat(np.arange(30), 8))


def small(kind, **params):
    return kind(max_iter=8, min_samples_leaf=5, **params)


def labels(y):
    return np.array(["low", "mid", "high"])[np.digitize(y, [0.0, 1.0])]


def same_trees(a, b):
    return a.ensemble_.nodes.tobytes() == b.ensemble_.nodes.tobytes()


def test_kinds():
    assert is_regressor(MiserRegressor())
    assert is_classifier(MiserClassifier())
    assert not is_regressor(MiserRanker())
    assert not is_classifier(MiserRanker())


def test_pipeline_scales_away(data):
    X, y = data
    pipeline = make_pipeline(StandardScaler(), small(MiserRegressor)).fit(X, y)
    assert pipeline.score(X, y) > 0.5
    assert pipeline[-1].n_features_in_ == 4


def test_pipeline_transforms_validation_data(data):
    X, y = data
    with config_context(enable_metadata_routing=True):
        model = small(MiserRegressor).set_fit_request(X_val=True, y_val=True)
        pipeline = make_pipeline(StandardScaler(), model, transform_input=["X_val"])
        pipeline.fit(100 * X[:120], y[:120], X_val=100 * X[120:], y_val=y[120:])
    scaler = StandardScaler().fit(100 * X[:120])
    direct = small(MiserRegressor).fit(
        scaler.transform(100 * X[:120]),
        y[:120],
        X_val=scaler.transform(100 * X[120:]),
        y_val=y[120:],
    )
    assert same_trees(pipeline[-1], direct)


@pytest.mark.parametrize("frames", ["pandas", "polars"])
def test_names_survive_a_transformer_that_gives_frames(data, frames):
    pd = pytest.importorskip("pandas")
    X, y = data
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    prices = {"d": 9.0, "c": 9.0, "b": 1.0, "a": 1.0}
    pipeline = make_pipeline(StandardScaler(), small(MiserRegressor, costs=prices, tradeoff=1e-3))
    pipeline.set_output(transform=frames).fit(frame, y)
    assert pipeline[-1].feature_names_in_.tolist() == ["a", "b", "c", "d"]
    assert pipeline[-1].features_used_ == ["a", "b"]
    assert [line.feature for line in pipeline[-1].receipt()] == ["a", "b"]


def test_column_transformer_with_categories(data):
    pd = pytest.importorskip("pandas")
    X, y = data
    frame = pd.DataFrame({"word": labels(y), "x": X[:, 3]})
    encode = make_column_transformer((OrdinalEncoder(), ["word"]), remainder="passthrough")
    model = make_pipeline(encode, small(MiserRegressor, categorical_features=[0])).fit(frame, y)
    direct = small(MiserRegressor).fit(frame.astype({"word": "category"}), y)
    assert same_trees(model[-1], direct)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_clone_has_the_parameters_and_nothing_else(data, kind):
    X, y = data
    costs = CostModel([1.0, 2.0, 3.0, 4.0], tree_cost=0.5)
    model = small(kind, costs=costs, tradeoff=0.01).fit(X, np.digitize(y, [0.0, 1.0]))
    twin = clone(model)
    assert twin.get_params().keys() == model.get_params().keys()
    assert twin.costs == costs
    assert not [name for name in vars(twin) if name.endswith("_")]
    assert same_trees(twin.fit(X, np.digitize(y, [0.0, 1.0])), model)


def test_cross_val_score(data):
    X, y = data
    assert cross_val_score(small(MiserRegressor), X, y, cv=3).min() > 0.4
    assert cross_val_score(small(MiserClassifier), X, labels(y), cv=3).min() > 0.6


def test_grid_search_over_the_tradeoff(data):
    X, y = data
    grid = {"tradeoff": [0.0, 10.0], "costs": [None, [1.0, 1.0, 5.0, 5.0]]}
    search = GridSearchCV(small(MiserRegressor), grid, cv=2).fit(X, y)
    assert search.best_params_["tradeoff"] == 0.0
    assert search.best_estimator_.cost_ > 0
    # Nothing pays at the other price, so those models are constants.
    by_tradeoff = dict(
        zip(
            search.cv_results_["param_tradeoff"], search.cv_results_["mean_test_score"], strict=True
        )
    )
    assert by_tradeoff[10.0] == pytest.approx(0.0, abs=0.1)


@pytest.mark.slow
def test_processes_of_joblib(data):
    X, y = data
    scores = cross_val_score(small(MiserRegressor), X, y, cv=2, n_jobs=2)
    assert scores == pytest.approx(cross_val_score(small(MiserRegressor), X, y, cv=2), abs=0)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_pickle_and_joblib(data, kind, tmp_path):
    X, y = data
    y = np.digitize(y, [0.0, 1.0])
    model = small(kind, costs=[1.0, 2.0, 3.0, 4.0]).fit(X, y)
    before = model.predict(X)
    joblib.dump(model, tmp_path / "model.joblib")
    for copied in (pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "model.joblib")):
        assert same_trees(copied, model)
        np.testing.assert_array_equal(copied.predict(X), before)
        assert copied.cost_ == model.cost_
        assert copied.receipt() == model.receipt()
        np.testing.assert_array_equal(copied.truncate(3).predict(X), model.truncate(3).predict(X))
        # A loaded model can go on.
        copied.set_params(warm_start=True, max_iter=10).fit(X, y)
        assert same_trees(copied, clone(model).set_params(max_iter=10).fit(X, y))


def test_fit_leaves_nothing_behind_that_cannot_be_pickled(data):
    """Scorers, callbacks and validation data belong to a fit, not to a model."""
    X, y = data
    model = small(MiserRegressor, scoring="r2", verbose=0)
    model.fit(X, y, X_val=X, y_val=y, callbacks=[lambda progress: None])
    size = len(pickle.dumps(model))
    assert size < len(pickle.dumps(model.ensemble_)) + 10_000


# -- metadata -------------------------------------------------------------------------------------


@pytest.fixture
def routing():
    with config_context(enable_metadata_routing=True):
        yield


@pytest.mark.usefixtures("routing")
def test_weights_are_routed(data):
    X, y = data
    weight = np.where(np.arange(240) % 2, 1.0, 0.0)
    model = small(MiserRegressor).set_fit_request(sample_weight=True)
    model.set_score_request(sample_weight=True)
    grid = {"max_depth": [1, 3]}
    search = GridSearchCV(model, grid, cv=2).fit(X, y, sample_weight=weight)
    # The best model has seen the odd rows alone.
    alone = clone(model).set_params(**search.best_params_).fit(X[1::2], y[1::2])
    assert same_trees(search.best_estimator_, alone)


@pytest.mark.usefixtures("routing")
def test_queries_are_routed(queries):
    X, y, qid = queries
    model = small(MiserRanker).set_fit_request(qid=True).set_score_request(qid=True)
    results = cross_validate(
        model, X, y, cv=GroupKFold(3), params={"qid": qid, "groups": qid}, return_estimator=True
    )
    splits = GroupKFold(3).split(X, y, groups=qid)
    for (train, test), fitted, score in zip(
        splits, results["estimator"], results["test_score"], strict=True
    ):
        direct = small(MiserRanker).fit(X[train], y[train], qid=qid[train])
        assert same_trees(fitted, direct)
        assert score == ndcg_score(y[test], direct.predict(X[test]), qid[test], k=5)
        assert score == direct.score(X[test], y[test], qid=qid[test])


@pytest.mark.usefixtures("routing")
def test_grid_search_over_a_ranker(queries):
    X, y, qid = queries
    model = small(MiserRanker).set_fit_request(qid=True, sample_weight=True)
    model.set_score_request(qid=True, sample_weight=False)
    search = GridSearchCV(model, {"tradeoff": [0.0, 100.0]}, cv=GroupKFold(3))
    search.fit(X, y, qid=qid, groups=qid, sample_weight=np.ones(240))
    assert search.best_params_ == {"tradeoff": 0.0}
    assert search.best_score_ > 0.8
    assert same_trees(search.best_estimator_, small(MiserRanker).fit(X, y, qid=qid))


def small_search(**params):
    return MiserSearchCV(small(MiserRanker), tradeoffs=[0.0, 1e-4], cv=GroupKFold(2), **params)


@pytest.mark.usefixtures("routing")
def test_queries_are_routed_to_a_search(queries):
    """Told to the search, or to the ranker inside, as scikit-learn's own searches have it."""
    X, y, qid = queries
    outside = small_search().set_fit_request(qid=True).set_score_request(qid=True)
    inside = small_search()
    inside.estimator.set_fit_request(qid=True).set_score_request(qid=True)
    # Before 1.8, scikit-learn's scorer does not ask an estimator what it wants to be told.
    told = (
        [outside]
        if parse_version(sklearn.__version__) < parse_version("1.8")
        else [outside, inside]
    )
    for search in (*told, clone(told[-1])):
        results = cross_validate(
            search,
            X,
            y,
            cv=GroupKFold(3),
            params={"qid": qid, "groups": qid},
            return_estimator=True,
        )
        splits = GroupKFold(3).split(X, y, groups=qid)
        for (train, test), fitted, score in zip(
            splits, results["estimator"], results["test_score"], strict=True
        ):
            direct = small_search().fit(X[train], y[train], qid=qid[train])
            assert same_trees(fitted.best_estimator_, direct.best_estimator_)
            assert score == ndcg_score(y[test], direct.predict(X[test]), qid[test], k=5)


@pytest.mark.usefixtures("routing")
def test_queries_that_nobody_has_asked_for_are_not_dropped_in_silence(queries):
    X, y, qid = queries
    search = small_search().set_fit_request(qid=True)
    with pytest.raises(
        UnsetMetadataPassedError, match=r"\[qid\] are passed but are not explicitly"
    ):
        cross_validate(search, X, y, cv=GroupKFold(3), params={"qid": qid, "groups": qid})


@pytest.mark.usefixtures("routing")
@pytest.mark.parametrize(
    ("cv", "wanted"), [(2, True), (None, True), (GroupKFold(2), True), (KFold(2), False)]
)
def test_a_search_asks_for_groups_if_its_splitter_does(cv, wanted):
    search = MiserSearchCV(MiserRegressor(), cv=cv)
    assert search.get_metadata_routing().fit.requests["groups"] is wanted
    search.set_fit_request(groups=not wanted)
    assert search.get_metadata_routing().fit.requests["groups"] is not wanted


@pytest.mark.usefixtures("routing")
def test_weights_reach_a_search_in_a_pipeline(data):
    X, y = data
    weight = np.where(np.arange(240) % 2, 1.0, 0.0)
    search = MiserSearchCV(small(MiserRegressor), tradeoffs=[0.0], cv=2, random_state=0)
    search.set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
    scaler = StandardScaler().set_fit_request(sample_weight=False)
    pipeline = make_pipeline(scaler, search).fit(X, y, sample_weight=weight)
    scaled = StandardScaler().fit_transform(X)
    direct = clone(search).fit(scaled, y, weight)
    assert same_trees(pipeline[-1].best_estimator_, direct.best_estimator_)
    score = pipeline.score(X, y, sample_weight=weight)
    assert score == direct.best_estimator_.score(scaled, y, weight)


def test_repr_shows_what_is_not_default():
    assert repr(MiserRegressor(tradeoff=0.5)) == "MiserRegressor(tradeoff=0.5)"
    stream = io.StringIO()
    print(MiserClassifier(costs=[1.0, 2.0]), file=stream)
    assert stream.getvalue() == "MiserClassifier(costs=[1.0, 2.0])\n"


# -- in place of HistGradientBoosting -------------------------------------------------------------

SWAPPED = {
    MiserRegressor: HistGradientBoostingRegressor,
    MiserClassifier: HistGradientBoostingClassifier,
}


def rows(n):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 3))
    return X, X[:, 0] + rng.standard_normal(n)


def parameters_of(kind):
    return set(inspect.signature(kind).parameters)


@pytest.mark.parametrize(("ours", "theirs"), SWAPPED.items(), ids=["regressor", "classifier"])
def test_every_parameter_and_attribute_of_histogram_boosting_is_here(ours, theirs):
    assert parameters_of(theirs) <= parameters_of(ours)
    rng = np.random.default_rng(0)
    X = np.c_[rng.standard_normal((100, 2)), rng.integers(0, 3, 100)]
    y = (X[:, 0] > 0).astype(int)
    settings = {"categorical_features": [2], "early_stopping": True, "max_iter": 5, "tol": 1e-3}
    one, other = (kind(**settings, random_state=0).fit(X, y) for kind in (ours, theirs))
    public = {name for name in dir(other) if name.endswith("_") and not name.startswith("_")}
    assert public <= {*dir(one), *vars(one)}
    assert one.is_categorical_.tolist() == other.is_categorical_.tolist() == [False, False, True]
    assert one.n_trees_per_iteration_ == other.n_trees_per_iteration_ == 1
    assert one.do_early_stopping_ is True
    plain = [kind(max_iter=2).fit(X, y) for kind in (ours, theirs)]
    assert [model.is_categorical_ for model in plain] == [None, None]
    assert [bool(model.do_early_stopping_) for model in plain] == [False, False]


def test_rounds_that_add_less_than_the_tolerance_do_not_count():
    X, y = rows(400)
    patience = {"early_stopping": True, "n_iter_no_change": 3, "validation_fraction": None}
    lengths = [
        MiserRegressor(**patience, tol=tol, max_iter=60).fit(X, y).n_iter_
        for tol in (0.0, 1e-7, 0.05, 10.0)
    ]
    assert lengths[0] >= lengths[1] > lengths[2] > lengths[3] == 4


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
def test_the_quantile_of_the_quantile_loss(quantile):
    X, y = rows(400)
    by_name = MiserRegressor(loss="quantile", quantile=quantile, max_iter=20).fit(X, y)
    by_loss = MiserRegressor(loss=Quantile(quantile), max_iter=20).fit(X, y)
    assert (by_name.predict(X) == by_loss.predict(X)).all()
    assert np.mean(y <= by_name.predict(X)) == pytest.approx(quantile, abs=0.05)


def test_a_continued_fit_keeps_its_quantile():
    X, y = rows(200)
    model = MiserRegressor(loss="quantile", quantile=0.9, max_iter=5, warm_start=True).fit(X, y)
    longer = model.set_params(max_iter=10).fit(X, y)
    assert longer.n_iter_ == 10
    with pytest.raises(ValueError, match="loss has changed since the model was begun"):
        model.set_params(max_iter=15, quantile=0.1).fit(X, y)


@pytest.mark.parametrize("bad", [0.0, 1.0, -0.5, "half"])
def test_bad_quantiles(bad):
    with pytest.raises(ValueError, match="The 'quantile' parameter of MiserRegressor must be"):
        MiserRegressor(loss="quantile", quantile=bad).fit(*rows(50))


@pytest.mark.parametrize("kind", ESTIMATORS, ids=lambda kind: kind.__name__)
def test_every_parameter_is_checked_and_documented(kind):
    names = parameters_of(kind)
    assert set(kind()._parameter_constraints) == names
    documented = kind.__doc__
    for name in names:
        assert re.search(rf"^    {name} :|^    [a-z0-9_, ]*\b{name}\b[a-z0-9_, ]* :|``{name}``",
                         documented, re.MULTILINE), name  # fmt: skip


def test_parameters_that_training_reads_have_the_defaults_of_the_estimators():
    for kind in ESTIMATORS:
        plain = kind().get_params()
        taken = Parameters.of(kind())
        assert {f.name for f in fields(taken)} - set(plain) <= {
            "class_weight",
            "error_costs",
            "quantile",
        }
        assert all(plain.get(f.name, f.default) == f.default for f in fields(taken))
