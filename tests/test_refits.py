"""One estimator through many fits: what fails leaves no trace, what continues keeps its meaning."""

import copy
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from scipy import sparse

from greedymiser import CostModel, MiserClassifier, MiserRegressor, load, save
from greedymiser._core.threads import Threads
from greedymiser.data.binning import BinMapper
from greedymiser.data.tables import ArrayTable
from greedymiser.engines.cpu.engine import CpuEngine
from greedymiser.engines.interface import Sample
from greedymiser.losses import Huber, Loss, SquaredError
from greedymiser.model.row_costs import MeteredTrees
from greedymiser.model.trees import Ensemble
from random_examples import examples

rng = np.random.default_rng(0)
X = rng.standard_normal((120, 6))
Y = X[:, 0] - X[:, 1] + 0.3 * rng.standard_normal(120)


def answers(model, rows=X):
    """Everything that a model says."""
    return (
        model.predict(rows[:, : model.n_features_in_]).tobytes(),
        model.cost_,
        str(model.receipt()),
        model.n_iter_,
        model.features_used_,
        model.train_score_.tobytes(),
        model.stopped_,
    )


# -- a fit that goes on ---------------------------------------------------------------------------


@pytest.fixture
def walked(monkeypatch):
    """How many rows walk down trees by their values, call by call."""
    walked = []

    def counted(walk):
        return lambda trees, table, *rest: walked.append(table.n_rows) or walk(trees, table, *rest)

    for trees, name in ((Ensemble, "raw_predict"), (MeteredTrees, "rounds")):
        monkeypatch.setattr(trees, name, counted(getattr(trees, name)))
    return walked


@pytest.mark.parametrize("charge", ["model", "row"])
@pytest.mark.parametrize("convert", [np.asarray, sparse.csc_matrix, pd.DataFrame])
def test_a_continued_fit_begins_with_the_bins_of_its_rows(walked, charge, convert):
    """Rows that are set aside have bins as well: none is asked for its values again."""
    some = convert(np.round(X, 1))
    some = some.rename(columns=str) if isinstance(some, pd.DataFrame) else some
    params = {"early_stopping": True, "n_iter_no_change": 50, "random_state": 0, "charge": charge}
    whole = MiserRegressor(max_iter=9, min_samples_leaf=5, **params).fit(some, Y)
    model = MiserRegressor(max_iter=6, min_samples_leaf=5, warm_start=True, **params).fit(some, Y)
    model = model.truncate(6)
    walked.clear()
    model.set_params(max_iter=9).fit(some, Y)
    assert walked == []
    np.testing.assert_array_equal(model.validation_score_, whole.validation_score_)
    assert model.predict(some).tobytes() == whole.predict(some).tobytes()
    assert model.cost_ == whole.cost_


@pytest.mark.parametrize("charge", ["model", "row"])
def test_a_fit_that_goes_on_with_other_bins_begins_with_the_values_of_its_rows(walked, charge):
    params = {"early_stopping": True, "random_state": 0, "min_samples_leaf": 5, "charge": charge}
    model = MiserRegressor(max_iter=6, warm_start=True, **params).fit(X, Y)
    other = X + 0.01
    before = model.prediction_costs(other)
    walked.clear()
    model.set_params(max_iter=model.n_iter_).fit(other, Y)
    assert sorted(walked) == ([12, 12, 108, 108] if charge == "row" else [12, 108])
    assert model.prediction_costs(other).tobytes() == before.tobytes()


def test_rows_are_copied_a_few_at_a_time(monkeypatch):
    params = {"early_stopping": True, "random_state": 0, "min_samples_leaf": 5}
    model = MiserRegressor(max_iter=6, warm_start=True, **params).fit(X, Y)
    twin = copy.deepcopy(model).set_params(max_iter=9).fit(X + 0.01, Y)
    monkeypatch.setattr("greedymiser.training.train.ROWS_COPIED", 7)
    assert answers(model.set_params(max_iter=9).fit(X + 0.01, Y)) == answers(twin)


# -- a fit that fails -----------------------------------------------------------------------------


class GivesUp(Loss):
    """Stops working after some rounds."""

    def __init__(self, after):
        self.after = after

    def values(self, y, raw):
        return (raw - y) ** 2

    def gradients(self, y, raw):
        self.after -= 1
        if self.after < 0:
            raise RuntimeError("the loss gives up")
        return raw - y, None


def failing_fits(model):
    """Fits that raise, early and late."""
    bad = Y.copy()
    bad[3] = np.nan
    yield lambda: model.fit(X[:, :1], bad)
    yield lambda: model.fit(X[:, :1].tolist(), Y[:5])
    yield lambda: model.set_params(max_bins=3).fit(X[:, ::-1], bad)
    yield lambda: model.set_params(loss=GivesUp(0)).fit(X[:, :2], Y)
    yield lambda: model.set_params(loss=GivesUp(3)).fit(X[:, :2], Y)
    yield lambda: model.set_params(costs=[1.0, 2.0]).fit(X, Y)
    yield lambda: model.fit(X[:, :3], Y, callbacks=[lambda progress: 1 / 0])
    yield lambda: model.fit(X, Y, X_val=X[:5, :4], y_val=Y[:5])
    yield lambda: model.set_params(scoring="roc_auc").fit(X, Y, X_val=X, y_val=Y)


@pytest.mark.parametrize("which", range(9))
@pytest.mark.parametrize("warm", [False, True])
def test_a_fit_that_fails_leaves_the_estimator_as_it_was(which, warm):
    model = MiserRegressor(max_iter=4, min_samples_leaf=5).fit(X, Y)
    before, state = answers(model), dict(model.__dict__)
    model.set_params(warm_start=warm, max_iter=8)
    params = model.get_params()
    fit = list(failing_fits(model))[which]
    with pytest.raises((ValueError, RuntimeError, ZeroDivisionError, TypeError, AttributeError)):
        fit()
    assert answers(model) == before
    fitted = {name for name in model.__dict__ if name not in params}
    assert fitted == {name for name in state if name not in params}
    for name in fitted:
        assert model.__dict__[name] is state[name], name


def test_prediction_after_a_failed_refit_reads_its_own_columns():
    """The case of the report: 50 columns, then one."""
    many = rng.standard_normal((200, 50))
    y = many[:, 49] + many[:, 48]
    model = MiserRegressor(max_iter=5).fit(many, y)
    expected = model.predict(many)
    y_bad = y.copy()
    y_bad[0] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        model.fit(many[:, :1], y_bad)
    with pytest.raises(ValueError, match="50 features"):
        model.predict(many[:, :1])
    np.testing.assert_array_equal(model.predict(many), expected)


def test_no_kernel_sees_fewer_columns_than_its_trees_ask_for():
    model = MiserRegressor(max_iter=5, min_samples_leaf=5).fit(X, X[:, 5])
    ensemble = model.ensemble_
    for n in (1, 100):
        with pytest.raises(ValueError, match="ask for 6"):
            ensemble.raw_predict(ArrayTable(X[:n, :1]), Threads(1))
    with pytest.raises(ValueError, match="shape"):
        ensemble.serving.add(X[:3], np.zeros((1, 2)), 0, 5)
    threads = Threads(1)
    binned = BinMapper().fit_transform(ArrayTable(X[:, :2]), None, None, threads)
    rows = CpuEngine(threads).place(Sample(binned, Y, None, SquaredError()))
    rows.start(np.zeros(1))
    with pytest.raises(ValueError, match="asks for 6 features"):
        rows.add_tree(ensemble.tree(0), 0)


def test_names_do_not_outlive_the_fit_they_came_from():
    pd = pytest.importorskip("pandas")
    model = MiserRegressor(max_iter=2).fit(pd.DataFrame(X, columns=list("abcdef")), Y)
    assert model.features_used_[0] in "abcdef"
    model.fit(X, Y)
    assert not hasattr(model, "feature_names_in_")
    assert all(isinstance(feature, int) for feature in model.features_used_)


def test_an_interruption_keeps_the_finished_rounds():
    def interrupt(progress):
        if progress.n_iter == 3:
            raise KeyboardInterrupt

    model = MiserRegressor(max_iter=9)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y, callbacks=[interrupt])
    assert (model.n_iter_, model.stopped_) == (3, "interrupted")
    whole = MiserRegressor(max_iter=3).fit(X, Y)
    np.testing.assert_array_equal(model.predict(X), whole.predict(X))


# -- continued fits -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("costs", [2.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("costs", CostModel.from_resources({"all": 1.0}, [["all"]] * 6)),
        ("costs", CostModel(np.ones(6), tree_cost=0.5)),
        ("loss", "absolute_error"),
        ("loss", Huber(2.0)),
        ("categorical_features", [2]),
        ("monotonic_cst", [1, 0, 0, 0, 0, 0]),
    ],
)
def test_what_changes_the_meaning_of_a_model_is_refused(parameter, value):
    codes = X.copy()
    codes[:, 2] = np.arange(120) % 3
    model = MiserRegressor(max_iter=3, warm_start=True, costs=np.ones(6)).fit(codes, Y)
    before = answers(model, codes)
    model.set_params(**{parameter: value}, max_iter=6)
    with pytest.raises(ValueError, match=f"{parameter} has changed"):
        model.fit(codes, Y)
    assert answers(model, codes) == before
    # What does not change it is welcome.
    model.set_params(**{parameter: {"costs": [1.0] * 6, "loss": "squared_error"}.get(parameter)})
    model.set_params(learning_rate=0.3, max_depth=2, tradeoff=1e-3, step="gradient").fit(codes, Y)
    assert model.n_iter_ == 6
    assert model.receipt().total == model.cost_


def test_a_loss_that_learned_from_its_data_is_the_same_loss():
    model = MiserRegressor(loss="huber", max_iter=3, warm_start=True).fit(X, Y)
    delta = model.schema_.loss.delta
    model.set_params(max_iter=5).fit(X, 100 * Y)
    assert model.schema_.loss.delta == delta
    model.set_params(loss=Huber(delta), max_iter=6).fit(X, Y)
    with pytest.raises(ValueError, match="loss has changed"):
        model.set_params(loss=Huber(2 * delta), max_iter=7).fit(X, Y)


def test_huber_learns_from_targets_of_any_size():
    """With a delta of 1 it would move by at most 0.1 a round."""
    for scale in (1.0, 1e4, 1e-4):
        small, large = (MiserRegressor(loss="huber", max_iter=50).fit(X, y) for y in (Y, scale * Y))
        assert large.score(X, scale * Y) > 0.7
        np.testing.assert_allclose(large.predict(X), scale * small.predict(X), rtol=1e-6)


# -- any order ------------------------------------------------------------------------------------

PROBLEMS = {
    "numbers": (MiserRegressor, X, Y),
    "fewer columns": (MiserRegressor, X[:, :3], Y),
    "other columns": (MiserRegressor, X[:, ::-1].copy(), 10 * Y),
    "two classes": (MiserClassifier, X, Y > 0),
    "three classes": (MiserClassifier, X[:, :4], np.digitize(Y, [-1, 1])),
    "named classes": (MiserClassifier, X, np.where(Y > 0, "yes", "no")),
}


class Life(RuleBasedStateMachine):
    """Fits, fails, refits, warm-starts, truncates, copies, pickles, saves and loads, in any order.

    Every answer is compared with that of a model that was fitted afresh with the same history.
    """

    models = Bundle("models")

    @initialize(kind=st.sampled_from([MiserRegressor, MiserClassifier]))
    def begin(self, kind):
        self.model = kind(max_iter=3, max_depth=2, min_samples_leaf=5, n_jobs=1, tradeoff=1e-4)
        # How to make the model anew: a problem, and the rounds of each fit since.
        self.problem, self.rounds = None, []

    def problems(self):
        return [name for name, (kind, *_) in PROBLEMS.items() if isinstance(self.model, kind)]

    def anew(self):
        kind, rows, y = PROBLEMS[self.problem]
        fresh = kind(max_depth=2, min_samples_leaf=5, n_jobs=1, tradeoff=1e-4, warm_start=True)
        for n in self.rounds:
            if n < 0:
                fresh = fresh.truncate(-n - 1)
            else:
                fresh.set_params(max_iter=n).fit(rows, y)
        return fresh

    @rule(data=st.data(), n=st.integers(1, 5))
    def fit(self, data, n):
        name = data.draw(st.sampled_from(self.problems()))
        _, rows, y = PROBLEMS[name]
        self.model.set_params(warm_start=False, max_iter=n).fit(rows, y)
        self.problem, self.rounds = name, [n]

    @precondition(lambda self: self.problem is not None)
    @rule(more=st.integers(0, 3))
    def go_on(self, more):
        _, rows, y = PROBLEMS[self.problem]
        n = self.model.n_iter_ + more
        if n > 0:
            self.model.set_params(warm_start=True, max_iter=n).fit(rows, y)
            self.rounds.append(n)

    @rule(data=st.data(), warm=st.booleans())
    def fail(self, data, warm):
        _, rows, y = PROBLEMS[data.draw(st.sampled_from(self.problems()))]
        params = self.model.get_params()
        bad = [
            lambda: self.model.fit(rows[:, :1], np.full(len(y), np.nan)),
            lambda: self.model.fit(rows, y[:3]),
            lambda: self.model.set_params(costs=[-1.0] * rows.shape[1]).fit(rows, y),
            lambda: self.model.fit(rows, y, callbacks=[lambda progress: 1 / 0]),
        ]
        self.model.set_params(warm_start=warm, max_iter=9)
        with pytest.raises((ValueError, ZeroDivisionError)):
            bad[data.draw(st.integers(0, 3))]()
        self.model.set_params(**params)

    @precondition(lambda self: self.problem is not None)
    @rule(data=st.data())
    def truncate(self, data):
        n = data.draw(st.integers(0, self.model.n_iter_))
        self.model = self.model.truncate(n)
        self.rounds.append(-n - 1)

    @rule(how=st.sampled_from([copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]))
    def copied(self, how):
        self.model = how(self.model)

    @precondition(lambda self: self.problem is not None)
    @rule()
    def save_and_load(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.miser"
            save(self.model, path)
            loaded = load(path)
        _, rows, _ = PROBLEMS[self.problem]
        np.testing.assert_array_equal(loaded.predict(rows), self.model.predict(rows))
        assert loaded.cost_ == self.model.cost_
        assert loaded.receipt() == self.model.receipt()

    @invariant()
    def says_what_a_fresh_model_says(self):
        if getattr(self, "problem", None) is None:
            return
        _, rows, _ = PROBLEMS[self.problem]
        fresh = self.anew()
        assert answers(self.model, rows) == answers(fresh, rows)
        assert self.model.receipt().total == pytest.approx(self.model.cost_)
        if hasattr(fresh, "classes_"):
            assert self.model.classes_.tolist() == fresh.classes_.tolist()


def test_any_order():
    run_state_machine_as_test(
        Life,
        settings=examples(25, stateful_step_count=12, suppress_health_check=list(HealthCheck)),
    )


def test_an_ensemble_that_grows_is_the_one_that_was_extended():
    from greedymiser.model.trees import GrowingEnsemble

    codes = X.copy()
    codes[:, 2] = np.arange(120) % 7
    model = MiserRegressor(max_iter=12, min_samples_leaf=3, categorical_features=[2])
    ensemble = model.fit(codes, Y + (codes[:, 2] > 3)).ensemble_
    start = ensemble.truncated(4)
    growing = GrowingEnsemble(Ensemble.empty(ensemble.baseline, 6))
    seen = []
    for t in range(ensemble.n_trees):
        whole = ensemble.tree(t)
        mine = whole.nodes.copy()
        used = mine["category_set"][mine["category_set"] >= 0]
        sets = ensemble.category_sets[used]
        mine["category_set"][mine["category_set"] >= 0] = np.arange(len(used))
        growing.add(type(whole)(mine, sets))
        seen.append(growing.ensemble())
    assert seen[-1].nodes.tobytes() == ensemble.nodes.tobytes()
    assert seen[-1].category_sets.tobytes() == ensemble.category_sets.tobytes()
    assert seen[3].nodes.tobytes() == start.nodes.tobytes()
    assert seen[3].tree_starts.tolist() == start.tree_starts.tolist()
