"""Fitted estimators: scikit-learn's rules, and the finished model behind them."""

import copy
import itertools
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import validate_data

from experiments.cronus import Cronus
from greedymiser import (
    CostModel,
    EarlyExitClassifier,
    EarlyExitRanker,
    MiserClassifier,
    MiserRanker,
    MiserRegressor,
)
from greedymiser._core.threads import Threads
from greedymiser.data.tables import ArrayTable, FrameTable, SparseTable
from greedymiser.model.predictor import Predictor
from greedymiser.model.trees import Ensemble, GrowingEnsemble, Serving

RNG = np.random.default_rng(3)
X = RNG.integers(-3, 4, (300, 4)).astype(np.float64)
Y = X[:, 0] + X[:, 1] * (X[:, 2] > 0) + 0.1 * RNG.standard_normal(300)
NAMES = list("abcd")
SMALL = {"max_iter": 12, "min_samples_leaf": 5, "n_jobs": 1}

MODELS = {
    "regressor": lambda X: MiserRegressor(**SMALL).fit(X, Y),
    "poisson": lambda X: MiserRegressor(loss="poisson", **SMALL).fit(X, np.abs(Y)),
    "binary": lambda X: MiserClassifier(**SMALL).fit(X, np.where(Y > 0, "yes", "no")),
    "classes": lambda X: MiserClassifier(**SMALL).fit(X, np.digitize(Y, [-1.0, 1.0])),
    "ranker": lambda X: MiserRanker(**SMALL).fit(X, np.digitize(Y, [0.0, 1.0])),
    "by row": lambda X: MiserRegressor(charge="row", tradeoff=0.01, **SMALL).fit(X, Y),
}

ARRAYS = {
    "float64": lambda X: X,
    "float32": lambda X: X.astype(np.float32),
    "float16": lambda X: X.astype(np.float16),
    "integers": lambda X: X.astype(np.int8),
    "big-endian": lambda X: X.astype(">f8"),
    "list": lambda X: X.tolist(),
    "objects": lambda X: X.astype(object),
    "columns": np.asfortranarray,
    "csr": sparse.csr_matrix,
    "csc": sparse.csc_array,
    "coo": sparse.coo_matrix,
}

FRAMES = {
    "pandas": lambda X: pd.DataFrame(X, columns=NAMES),
    "polars": lambda X: pl.DataFrame(X, schema=NAMES),
    "pyarrow": lambda X: pa.table(dict(zip(NAMES, X.T, strict=True))),
}


def answers(model, X):
    """All that a model says of rows, in bytes."""
    methods = ["predict", "prediction_costs"]
    if getattr(model, "classes", None) is not None or isinstance(model, MiserClassifier):
        methods += ["predict_proba", "decision_function"]
    return {name: getattr(model, name)(X).tobytes() for name in methods}


@pytest.mark.parametrize("kind", MODELS)
def test_an_estimator_says_what_its_predictor_says(kind):
    plain = MODELS[kind](X)
    expected = answers(plain, X)
    for convert in ARRAYS.values():
        assert answers(plain, convert(X)) == expected
        assert answers(plain.predictor_, convert(X)) == expected
    for convert in FRAMES.values():
        named = MODELS[kind](convert(X))
        assert answers(named, convert(X)) == answers(named.predictor_, convert(X)) == expected
        for row in (0, 7):
            one = convert(X[row : row + 1])
            assert answers(named, one) == answers(named.predictor_, one)


@pytest.mark.parametrize("kind", MODELS)
def test_stages_end_with_the_prediction_whatever_holds_the_rows(kind):
    model = MODELS[kind](X)
    staged = [said.tobytes() for said in model.staged_predict(X)]
    assert len(staged) == model.n_iter_ > 1
    for n_iter in (1, 5, model.n_iter_):
        assert staged[n_iter - 1] == model.truncate(n_iter).predict(X).tobytes()
    for convert in ARRAYS.values():
        assert [said.tobytes() for said in model.staged_predict(convert(X))] == staged
    if kind == "classes":
        shares, raw = list(model.staged_predict_proba(X)), list(model.staged_decision_function(X))
        np.testing.assert_array_equal(shares[-1], model.predict_proba(X))
        np.testing.assert_array_equal(raw[-1], model.decision_function(X))
    assert list(model.truncate(0).staged_predict(X)) == []


@pytest.fixture(scope="module")
def labelled():
    frame = pd.DataFrame(X, columns=NAMES)
    colours = pd.Categorical(np.array(["red", "green", "blue", "grey"])[X[:, 1].astype(int) % 4])
    frame["b"] = colours
    return frame, MiserRegressor(**SMALL).fit(frame, Y + (frame["b"] == "red") * 3.0)


def test_categories(labelled):
    frame, model = labelled
    assert "b" in model.features_used_
    assert answers(model, frame) == answers(model.predictor_, frame)
    staged = list(model.staged_predict(frame))
    np.testing.assert_array_equal(staged[-1], model.predict(frame))
    np.testing.assert_array_equal(staged[3], model.truncate(4).predict(frame))
    other = frame.assign(b=frame["b"].cat.add_categories("pink"))
    other.loc[5, "b"] = "pink"
    np.testing.assert_array_equal(model.predict(other), model.predictor_.predict(other))


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_numbers_are_no_labels(labelled):
    """Any of them would have been taken for missing."""
    _, model = labelled
    for some in (model, model.predictor_):
        with pytest.raises(ValueError, match="'b' holds labels such as 'blue'"):
            some.predict(X)


# -- what scikit-learn demands --------------------------------------------------------------------

BAD = {
    "1-D": X[0],
    "3-D": X[None],
    "no rows": X[:0],
    "no columns": X[:, :0],
    "columns": X[:, :2],
    "columns of a list": X[:, :2].tolist(),
    "sparse columns": sparse.csr_matrix(X[:, :3]),
    "complex": X.astype(complex),
    "sparse and complex": sparse.csr_matrix(X.astype(complex)),
    "words": np.full((2, 4), "word"),
    "word": [["word", 1.0, 2.0, 3.0]],
    "series": pd.Series(X[0]),
    "number": 5.0,
    "nothing": None,
    "matrix": X.view(np.matrix),
}


@pytest.mark.parametrize("bad", BAD)
def test_what_is_wrong_is_said_in_scikit_learns_words(bad):
    model = MODELS["regressor"](X)
    with pytest.raises((TypeError, ValueError)) as expected:
        validate_data(
            model,
            X=BAD[bad],
            reset=False,
            dtype="numeric",
            accept_sparse=True,
            ensure_all_finite=False,
        )
    asked = [model.predict, model.prediction_costs, lambda X: list(model.staged_predict(X))]
    for ask in asked:
        with pytest.raises(expected.type) as caught:
            ask(BAD[bad])
        assert str(caught.value) == str(expected.value)


@pytest.mark.parametrize("kind", FRAMES)
def test_an_estimator_insists_on_the_columns_of_fit_and_a_predictor_does_not(kind):
    frame = FRAMES[kind](X)
    model = MiserRegressor(**SMALL).fit(frame, X[:, 0] + X[:, 2])
    expected = model.predict(frame)
    pick = frame.__getitem__ if kind == "pandas" else frame.select
    turned, few = pick(["d", "c", "b", "a"]), pick(["c", "a"])
    assert model.features_used_ == ["a", "c"]
    for some, words in ((turned, "must be in the same order"), (few, "yet now missing")):
        np.testing.assert_array_equal(model.predictor_.predict(some), expected)
        for ask in (model.predict, model.prediction_costs):
            with pytest.raises(ValueError, match=words):
                ask(some)


def test_protocols_are_as_strict_as_predictions():
    frame = pd.DataFrame(X, columns=NAMES)
    labels = np.where(Y > 0, "yes", "no")
    model = MiserClassifier(charge="row", tradeoff=0.01, **SMALL).fit(frame, labels)
    hasty = EarlyExitClassifier(model, every=3, threshold=0.6).fit(frame, labels)
    for some in (model, hasty):
        table = some.predictor_.table(frame)
        assert str(some.protocol(frame)) == str(some.predictor_.protocol(table))
        with pytest.raises(ValueError, match="must be in the same order"):
            some.protocol(frame[NAMES[::-1]])
        with pytest.raises(ValueError, match="3 features"), pytest.warns(match="feature names"):
            some.protocol(X[:, :3])


@pytest.mark.parametrize("wrap", [np.asarray, sparse.csr_matrix, pd.DataFrame])
def test_a_table_of_other_columns_is_refused(wrap):
    model = MODELS["regressor"](X).predictor_
    for columns in (X[:, :3], np.hstack([X, X])):
        other = MODELS["regressor"](columns).predictor_
        with pytest.raises(ValueError, match=f"{columns.shape[1]} features, but the model knows 4"):
            model.predict(other.table(wrap(columns)))


def test_without_names_columns_count_by_position_even_if_costs_have_names():
    costs = CostModel(dict.fromkeys(NAMES, 1.0))
    model = MiserRegressor(costs=costs, **SMALL).fit(X, Y)
    turned = pd.DataFrame(X, columns=NAMES[::-1])
    with pytest.warns(UserWarning, match="fitted without feature names"):
        np.testing.assert_array_equal(model.predict(turned), model.predict(X))
    by_name = model.predictor_.predict(turned)
    np.testing.assert_array_equal(by_name, model.predict(X[:, ::-1].copy()))
    # The same of rows that are put in order on their way.
    ranker = MiserRanker(costs=costs, **SMALL).fit(X, np.digitize(Y, [0.0, 1.0]))
    hasty = EarlyExitRanker(ranker, every=3, threshold=0.1).fit(X, Y)
    qid = np.arange(300) % 7
    with pytest.warns(UserWarning, match="fitted without feature names"):
        np.testing.assert_array_equal(hasty.predict(turned, qid), hasty.predict(X, qid))


def test_who_is_not_fitted_has_no_predictor():
    for blank in (MiserRegressor(), EarlyExitClassifier(MiserClassifier()), Cronus(MiserRanker())):
        assert not hasattr(blank, "predictor_")
        assert not hasattr(blank, "cost_")
        with pytest.raises(NotFittedError):
            blank.predict(X)


# -- the finished model is made once, and never stale ---------------------------------------------


def test_the_predictor_is_made_once(monkeypatch):
    model = MODELS["classes"](X)
    made = []
    check = Predictor.__post_init__
    monkeypatch.setattr(Predictor, "__post_init__", lambda self: (made.append(1), check(self)))
    before = dict(vars(model))
    first = model.predictor_
    for ask in (model.predict, model.predict_proba, model.prediction_costs):
        ask(X)
        ask(X[:1])
    list(model.staged_predict(X))
    assert (model.cost_, model.features_used_) == (first.cost_, first.features_used_)
    assert model.predictor_ is first
    assert len(made) == 1
    assert vars(model) == before  # scikit-learn's rule for whoever only answers


def test_a_new_model_has_a_new_predictor():
    model = MiserRegressor(**SMALL).fit(X, Y)
    old, said = model.predictor_, model.predict(X)
    model.fit(X, -Y)
    assert model.predictor_ is not old
    assert not np.array_equal(model.predict(X), said)
    np.testing.assert_array_equal(old.predict(X), said)
    wide = np.hstack([X, X])
    assert model.fit(wide, Y).predictor_.n_features == 8
    assert model.predict(wide).shape == (300,)


def test_continued_and_truncated_models_have_their_own():
    model = MiserRegressor(warm_start=True, **SMALL).fit(X, Y)
    twelve, said = model.predictor_, model.predict(X)
    model.set_params(max_iter=20).fit(X, Y)
    assert (twelve.stages[0].last, model.predictor_.stages[0].last) == (12, 20)
    whole = MiserRegressor(**SMALL | {"max_iter": 20}).fit(X, Y)
    np.testing.assert_array_equal(model.predict(X), whole.predict(X))
    shorter = model.truncate(12)
    assert shorter.predictor_.stages[0].last == 12
    np.testing.assert_array_equal(shorter.predict(X), said)
    np.testing.assert_array_equal(model.predict(X), whole.predict(X))
    assert model.truncate(0).cost_ == 0.0


def test_threads_are_those_of_today():
    model = MODELS["regressor"](X)
    said, other = model.predict(X), copy.copy(model)
    assert model.predictor_.n_jobs == 1
    model.set_params(n_jobs=2)
    assert (model.predictor_.n_jobs, other.predictor_.n_jobs) == (2, 1)
    np.testing.assert_array_equal(model.predict(X), said)
    model.n_jobs = 3
    assert model.predictor_.n_jobs == 3
    with pytest.raises(ValueError, match=r"n_jobs must be a number of threads .*got 0"):
        model.set_params(n_jobs=0).predict(X)


def test_threads_of_early_exits_and_cascades_are_those_of_today():
    quick = EarlyExitClassifier(MODELS["binary"](X), every=3, threshold=0.7, n_jobs=1)
    cascade = Cronus(MODELS["regressor"](X), n_stages=2, n_jobs=1)
    for model in (quick, cascade):
        assert model.set_params(n_jobs=2).n_jobs == 2  # nobody is fitted yet
        said = model.set_params(n_jobs=1).fit(X, Y > 0).predict(X)
        assert model.predictor_.n_jobs == 1
        twin = copy.copy(model)
        assert model.set_params(n_jobs=2).predictor_.n_jobs == 2
        assert twin.predictor_.n_jobs == 1
        np.testing.assert_array_equal(model.predict(X), said)
        kept = model.predictor_
        assert model.set_params(estimator__max_iter=3).predictor_ is kept


def test_copies_go_their_own_ways():
    model = MODELS["regressor"](X)
    said = model.predict(X)
    for twin in (copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(twin.predict(X), said)
        twin.fit(X, -Y)
        assert not np.array_equal(twin.predict(X), said)
        np.testing.assert_array_equal(model.predict(X), said)
    assert not hasattr(clone(model), "predictor_")


@pytest.mark.parametrize("kind", ["regressor", "by row"])
def test_pickles_do_not_grow_by_what_was_asked(kind):
    model = MODELS[kind](X)
    before, cut = len(pickle.dumps(model)), len(pickle.dumps(model.predictor_))
    model.predict(X), model.prediction_costs(X), list(model.staged_predict(X))
    model.predictor_.features_used_, model.cost_, model.receipt()
    assert len(pickle.dumps(model)) == before
    # A stage keeps the positions of its features.
    assert len(pickle.dumps(model.predictor_)) < cut + 100


# -- rows are turned into numbers once ------------------------------------------------------------


@pytest.fixture
def converted(monkeypatch):
    """Rows that tables had to turn into numbers since it was cleared."""
    seen = []
    for table in (FrameTable, SparseTable):

        def rows(self, start, stop, wanted, real=table.rows):
            seen.append(stop - start)
            return real(self, start, stop, wanted)

        monkeypatch.setattr(table, "rows", rows)
    return seen


@pytest.mark.parametrize("convert", [FRAMES["pandas"], FRAMES["polars"], sparse.csr_matrix])
def test_stages_convert_rows_once(converted, convert):
    some = convert(X)
    model = MODELS["classes"](some)
    for ask in (model.staged_predict, model.staged_predict_proba, model.staged_decision_function):
        converted.clear()
        assert len(list(ask(some))) == model.n_iter_
        assert sum(converted) == len(X)


def test_thresholds_of_early_exits_convert_rows_once(converted):
    frame = FRAMES["pandas"](X)
    for charge, passes in (("model", 1), ("row", 2)):  # and once more for what rows are asked
        model = MiserClassifier(charge=charge, **SMALL).fit(frame, Y > 0)
        hasty = EarlyExitClassifier(model, every=2).fit(frame, Y > 0)
        converted.clear()
        assert len(list(hasty.sweep(frame, thresholds=5))) > 2
        assert sum(converted) == passes * len(X)
        hasty.curve(frame, Y > 0, thresholds=5)
        assert sum(converted) == 2 * passes * len(X)


def test_a_plain_array_is_not_copied(monkeypatch):
    ensemble = MODELS["regressor"](X).ensemble_
    looked = []
    walk = Ensemble.add_rounds
    monkeypatch.setattr(
        Ensemble, "add_rounds", lambda self, table, *rest: (
            looked.append(table), walk(self, table, *rest)),
    )  # fmt: skip
    still = X.copy()
    still.flags.writeable = False  # another type for the kernels
    with Threads(1) as threads:
        for array, is_kept in ((X, True), (X.astype(np.float32), True), (still, False)):
            looked.clear()
            table = ArrayTable(array)
            list(ensemble.staged_raw_predict(table, threads, [2, 5]))
            assert {some is table for some in looked} == {is_kept}
    assert looked[0].array.shape == (300, len(ensemble.features))


# -- scores while training ------------------------------------------------------------------------


def of_raw(model, X, y):
    return -float(np.mean((model.predict(X) - y) ** 2))


def test_a_scorer_of_the_held_out_rows_needs_no_model(monkeypatch):
    """What a round costs must not grow with the number of rounds."""
    made, ensembles = [], []
    real, grown = Serving.of, GrowingEnsemble.ensemble
    monkeypatch.setattr(Serving, "of", lambda ensemble: made.append(1) or real(ensemble))
    monkeypatch.setattr(
        GrowingEnsemble, "ensemble", lambda self: ensembles.append(grown(self)) or ensembles[-1]
    )
    model = MiserRegressor(scoring=of_raw, early_stopping=False, **SMALL | {"max_iter": 100})
    codes = np.column_stack([X, np.arange(300) % 9])
    model.set_params(categorical_features=[4])
    model.fit(codes, Y + codes[:, 4] % 2, X_val=codes[:90], y_val=Y[:90])
    assert len(model.validation_score_) == len(ensembles) == 101
    assert made == []
    for part in ("nodes", "tree_starts", "category_sets"):
        arrays = [getattr(ensemble, part) for ensemble in ensembles]
        assert len(arrays[-1]) >= 50
        copies = sum(not np.shares_memory(a, b) for a, b in itertools.pairwise(arrays))
        assert copies <= 8  # each is twice as large as the last
    loss = [of_raw(model.truncate(k), codes[:90], Y[:90]) for k in (0, 7, model.n_iter_)]
    np.testing.assert_allclose(model.validation_score_[[0, 7, model.n_iter_]], loss)


@pytest.mark.parametrize("charge", ["model", "row"])
def test_a_scorer_may_ask_anything(charge):
    heard = []

    def nosy(model, held_out, y):
        known, other = model.predict(held_out), model.predict(held_out.copy())
        np.testing.assert_array_equal(known, other)
        heard.append((model.n_iter_, model.cost_max_, model.prediction_costs(held_out).mean()))
        assert len(list(model.staged_predict(held_out))) == model.n_iter_
        return of_raw(model, held_out, y)

    model = MiserRegressor(costs=[1, 2, 3, 4], scoring=nosy, charge=charge, **SMALL)
    model.fit(X, Y, X_val=X[:60], y_val=Y[:60])
    for n_iter, most, mean in heard:
        if n_iter <= model.n_iter_:
            shorter = model.truncate(n_iter)
            assert most == shorter.cost_max_
            assert mean == shorter.prediction_costs(X[:60]).mean()
    assert len({n_iter for n_iter, *_ in heard}) == 13


def test_sets_of_categories_do_not_pile_up():
    codes = np.arange(300.0)[:, None] % 7
    model = MiserRegressor(categorical_features=[0], **SMALL).fit(codes, np.sin(codes[:, 0]))
    ensemble = model.ensemble_
    growing = GrowingEnsemble(Ensemble.empty(ensemble.baseline, 1))
    for t in range(ensemble.n_trees):
        growing.add(ensemble.tree(t))  # each has the sets of all
    grown = growing.ensemble()
    assert len(grown.category_sets) == len(ensemble.category_sets) > 12
    with Threads(1) as threads:
        said = grown.raw_predict(ArrayTable(codes), threads)
    np.testing.assert_array_equal(said, model.predictor_.raw_predict(codes))
