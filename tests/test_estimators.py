"""What the estimators promise: which round is kept, what is paid, what does not matter."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.metrics import accuracy_score, make_scorer, mean_squared_error, r2_score

from greedymiser import (
    Action,
    BudgetWarning,
    CostModel,
    MiserClassifier,
    MiserRanker,
    MiserRegressor,
    ndcg_score,
)
from greedymiser._core.threads import Threads
from greedymiser.costs.cost_model import Purchase
from greedymiser.engines.cpu.state import Tuning
from greedymiser.losses import (
    REGRESSION_LOSSES,
    BinaryLogLoss,
    LambdaMART,
    MultinomialLogLoss,
    SquaredError,
)
from random_examples import examples

COSTS = [1.0, 2.0, 4.0, 8.0, 16.0]


def make_data(n=300, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 5))
    y = X[:, 0] + 2 * (X[:, 1] > 0) + X[:, 2] * X[:, 3] + 0.3 * rng.standard_normal(n)
    return X, y


def classes_of(y):
    return np.digitize(y, [0.0, 1.0, 2.0])


def make_queries(n_queries=25, size=8, seed=0):
    X, y = make_data(n_queries * size, seed)
    return X, classes_of(y).astype(float), np.repeat(np.arange(n_queries), size)


def regressor(**params):
    return MiserRegressor(**({"max_iter": 10, "min_samples_leaf": 5} | params))


def classifier(**params):
    return MiserClassifier(**({"max_iter": 10, "min_samples_leaf": 5} | params))


def ranker(**params):
    return MiserRanker(**({"max_iter": 10, "min_samples_leaf": 5} | params))


def bits(model):
    ensemble = model.ensemble_
    return tuple(
        part.tobytes()
        for part in (
            ensemble.nodes,
            ensemble.tree_starts,
            ensemble.category_sets,
            ensemble.baseline,
        )
    )


def positions(rows, X):
    """Where in X each of the rows is."""
    return np.array([np.flatnonzero((X == row).all(axis=1))[0] for row in rows])  # noqa: SIM300


def without(model, *fields):
    """Nodes of a model, but for the fields that count rows."""
    nodes = model.ensemble_.nodes
    return nodes[[name for name in nodes.dtype.names if name not in fields]].tolist()


def check_accounts(model):
    """Whatever happened, the books balance."""
    used = sorted({f for f in model.ensemble_.nodes["feature"].tolist() if f >= 0})
    names = getattr(model, "feature_names_in_", None)
    names = names if names is not None else model.costs_.feature_names
    assert model.features_used_ == [f if names is None else names[f] for f in used]
    assert model.n_iter_ == model.ensemble_.n_trees / model.ensemble_.n_outputs
    tree_cost = model.costs_.tree_cost * model.ensemble_.n_trees
    assert model.cost_ == pytest.approx(model.costs_.total(used) + tree_cost)
    receipt = model.receipt()
    assert receipt.total == pytest.approx(model.costs_.total(used))
    assert receipt.total == pytest.approx(sum(line.price for line in receipt))
    bought = [resource for line in receipt for resource in line.resources]
    assert len(bought) == len(set(bought))  # nothing is charged twice
    assert sorted(bought) == sorted(model.resources_used_)
    assert all(line.iteration < model.n_iter_ for line in receipt)


# -- which round is kept --------------------------------------------------------------------------


@pytest.fixture
def overfit():
    """Few rows and deep trees: after some rounds the validation score gets worse."""
    X, y = make_data(80)
    X_val, y_val = make_data(200, seed=1)
    return dict(X=X, y=y + np.random.default_rng(2).standard_normal(80), X_val=X_val, y_val=y_val)


def best_by_hand(params, data, score):
    """Fit without validation data, look at every round."""
    model = regressor(**params).fit(data["X"], data["y"])
    scores = [score(model.truncate(i)) for i in range(model.n_iter_ + 1)]
    return model.truncate(int(np.argmax(scores))), np.array(scores)


def negative_loss(data):
    return lambda model: -0.5 * mean_squared_error(data["y_val"], model.predict(data["X_val"]))


def test_the_best_round_is_kept_and_all_are_run(overfit):
    params = {"max_iter": 60, "learning_rate": 0.3, "max_depth": 6}
    expected, scores = best_by_hand(params, overfit, negative_loss(overfit))
    model = regressor(**params, early_stopping=False).fit(**overfit)
    assert bits(model) == bits(expected)
    assert 0 < model.n_iter_ < 60
    assert model.stopped_ == "max_iter"
    np.testing.assert_allclose(model.validation_score_, scores)
    assert len(model.train_score_) == 61
    assert model.train_score_[0] == pytest.approx(-0.5 * overfit["y"].var())
    check_accounts(model)


@pytest.mark.parametrize("early_stopping", ["auto", True])
def test_early_stopping_stops(overfit, early_stopping):
    params = {"max_iter": 60, "learning_rate": 0.3, "max_depth": 6}
    everything = regressor(**params, early_stopping=False).fit(**overfit)
    model = regressor(**params, early_stopping=early_stopping, n_iter_no_change=5).fit(**overfit)
    tried = len(model.validation_score_) - 1
    assert model.stopped_ == "early stopping"
    assert tried == model.n_iter_ + 5
    np.testing.assert_array_equal(
        model.validation_score_, everything.validation_score_[: tried + 1]
    )
    check_accounts(model)


def test_noise_is_not_worth_a_round():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((60, 3)), rng.standard_normal(60)
    model = regressor().fit(X, y, X_val=X, y_val=-y)
    assert model.n_iter_ == 0
    assert model.cost_ == 0.0
    assert len(model.receipt()) == 0
    assert len(model.validation_score_) > 1
    assert model.predict(X) == pytest.approx(np.full(60, y.mean()))


def test_rows_are_set_aside():
    X, y = make_data(400)
    seen = []
    model = regressor(early_stopping=True, validation_fraction=0.25, random_state=0)
    model.set_params(
        scoring=lambda model, X, y: seen.append((X, y)) or r2_score(y, model.predict(X))
    )
    model.fit(X, y)
    X_val, y_val = seen[0]
    assert X_val.shape == (100, 5)
    where = positions(X_val, X)
    np.testing.assert_array_equal(y_val, y[where])
    rest = np.setdiff1d(np.arange(400), where)
    direct = regressor(scoring="r2").fit(X[rest], y[rest], X_val=X_val, y_val=y_val)
    assert bits(model) == bits(direct)


def test_number_of_rows_set_aside():
    X, y = make_data(400)
    sizes = []
    scoring = lambda model, X, y: sizes.append(len(X)) or 0.0  # noqa: E731
    regressor(early_stopping=True, validation_fraction=7, scoring=scoring).fit(X, y)
    assert set(sizes) == {7}


def test_classes_are_set_aside_in_proportion():
    rng = np.random.default_rng(0)
    y = rng.permutation(np.repeat(["a", "b", "c", "d"], [600, 300, 99, 1]))
    X = rng.standard_normal((1000, 2))
    seen = []
    scoring = lambda model, X, y: seen.append(y) or 0.0  # noqa: E731
    model = classifier(max_iter=1, early_stopping=True, random_state=0, scoring=scoring).fit(X, y)
    labels, counts = np.unique(seen[0], return_counts=True)
    # The only "d" is left to learn from.
    assert labels.tolist() == ["a", "b", "c"]
    assert np.abs(counts - [60, 30, 10]).max() <= 1
    assert np.isfinite(model.predict_proba(X)).all()


def test_queries_are_set_aside_whole():
    X, y, qid = make_queries()
    seen = []
    model = ranker(early_stopping=True, validation_fraction=0.2, random_state=0)
    model.set_params(scoring=lambda model, X, y: seen.append(X) or 0.0).fit(X, y, qid=qid)
    where = positions(seen[0], X)
    assert len(where) == 40
    assert set(np.unique(qid[where], return_counts=True)[1]) == {8}


def test_auto_sets_aside_only_from_many_rows():
    X, y = make_data(10_001)
    params = {"max_iter": 2, "random_state": 0}
    assert len(regressor(**params).fit(X, y).validation_score_) == 3
    assert len(regressor(**params).fit(X[:-1], y[:-1]).validation_score_) == 0
    assert len(regressor(**params, early_stopping=False).fit(X, y).validation_score_) == 0


def test_training_loss_can_stop_too():
    X = np.repeat([[0.0], [1.0]], 20, axis=0)
    y = X[:, 0]
    model = regressor(
        max_iter=500, early_stopping=True, validation_fraction=None, n_iter_no_change=3
    ).fit(X, y)
    assert model.stopped_ == "early stopping"
    assert len(model.validation_score_) == 0
    assert model.n_iter_ == len(model.train_score_) - 1 < 500


def test_seed_decides_what_is_set_aside():
    X, y = make_data(400)
    fits = [bits(regressor(early_stopping=True, random_state=seed).fit(X, y)) for seed in (0, 0, 1)]
    assert fits[0] == fits[1] != fits[2]


# -- scoring --------------------------------------------------------------------------------------

SCORINGS = {
    "name": "neg_mean_squared_error",
    "scorer": make_scorer(mean_squared_error, greater_is_better=False),
    "callable": lambda model, X, y: -mean_squared_error(y, model.predict(X)),
    "callable with weights": lambda model, X, y, sample_weight=None: (
        -mean_squared_error(y, model.predict(X), sample_weight=sample_weight)
    ),
    "loss": "loss",
    "None": None,
}


@pytest.mark.parametrize("scoring", SCORINGS)
def test_scoring(overfit, scoring):
    factor = 1.0 if scoring in ("loss", "None") else 2.0  # half the squared error
    _, scores = best_by_hand({"max_iter": 20}, overfit, negative_loss(overfit))
    model = regressor(max_iter=20, scoring=SCORINGS[scoring], early_stopping=False).fit(**overfit)
    np.testing.assert_allclose(model.validation_score_, factor * scores)
    assert model.n_iter_ == np.argmax(scores)


@pytest.mark.parametrize("scoring", SCORINGS)
def test_scoring_with_weights(overfit, scoring):
    weight = np.linspace(0, 3, 200)  # one row counts for nothing
    model = regressor(max_iter=4, scoring=SCORINGS[scoring])
    model.fit(**overfit, sample_weight_val=weight)
    kept = weight > 0
    errors = (overfit["y_val"] - overfit["y"].mean())[kept] ** 2
    # A callable that does not ask for weights does not get them.
    expected = errors.mean() if scoring == "callable" else np.average(errors, weights=weight[kept])
    if scoring in ("loss", "None"):
        expected /= 2
    assert model.validation_score_[0] == pytest.approx(-expected)


def test_scorer_of_probabilities():
    X, y = make_data(400)
    y = np.array(["no", "yes"])[(y > 1).astype(int)]
    model = classifier(scoring="roc_auc").fit(X[:200], y[:200], X_val=X[200:], y_val=y[200:])
    assert model.validation_score_[0] == 0.5
    assert model.validation_score_.max() > 0.9
    model = classifier(scoring="accuracy").fit(X[:200], y[:200], X_val=X[200:], y_val=y[200:])
    assert model.validation_score_.max() == accuracy_score(y[200:], model.predict(X[200:]))


def test_scorer_meets_the_model_as_it_is():
    """Costs, other rows, other methods: the model so far answers everything."""
    X, y = make_data(300)
    seen = []

    def score(model, X_val, y_val):
        by_heart = model.predict(X_val)
        np.testing.assert_array_equal(model.predict(X_val.copy()), by_heart)
        np.testing.assert_array_equal(model.predict(X_val[:3]), by_heart[:3])
        seen.append((model.n_iter_, model.cost_))
        return r2_score(y_val, by_heart) - 0.01 * model.cost_

    model = regressor(costs=COSTS, scoring=score, early_stopping=False)
    model.fit(X[:200], y[:200], X_val=X[200:], y_val=y[200:])
    assert [n for n, _ in seen] == list(range(11))
    plain = regressor(costs=COSTS).fit(X[:200], y[:200])
    assert [cost for _, cost in seen] == [plain.truncate(i).cost_ for i in range(11)]


def test_score_that_is_not_a_number_is_not_the_best(overfit):
    scores = iter([math.nan, 0.1, math.nan, 0.3, math.nan, 0.2])
    model = regressor(max_iter=5, scoring=lambda *_: next(scores), early_stopping=False)
    assert model.fit(**overfit).n_iter_ == 3


def test_ndcg_scoring():
    X, y, qid = make_queries()
    X_val, y_val, qid_val = make_queries(seed=1)
    rng = np.random.default_rng(0)
    shuffled = rng.permutation(len(qid_val))
    model = ranker(scoring="ndcg@3", early_stopping=False)
    model.fit(
        X,
        y,
        qid=qid,
        X_val=X_val[shuffled],
        y_val=y_val[shuffled],
        qid_val=qid_val[shuffled],
    )
    assert model.validation_score_.max() == pytest.approx(
        ndcg_score(y_val, model.predict(X_val), qid_val, k=3)
    )
    assert model.n_iter_ == np.argmax(model.validation_score_)
    assert model.score(X_val, y_val, qid=qid_val, k=3) == pytest.approx(
        model.validation_score_.max()
    )


# -- warm start -----------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [*REGRESSION_LOSSES, "classes", "ranks"])
def test_warm_start_is_one_longer_fit(loss):
    X, y = make_data()
    X[::7, 1] = np.nan
    weight = np.linspace(0.5, 2, len(y))
    params = {"costs": COSTS, "tradeoff": 1e-3}
    if loss == "classes":
        model, y = classifier(**params), classes_of(y)
    elif loss == "ranks":
        model, y = ranker(**params), classes_of(y)
    else:
        model, y = regressor(**params, loss=loss), np.exp(y / 4)
    longer = type(model)(**model.get_params()).set_params(max_iter=12).fit(X, y, weight)
    model.set_params(max_iter=5, warm_start=True).fit(X, y, weight)
    assert model.n_iter_ == 5
    model.set_params(max_iter=12).fit(X, y, weight)
    assert bits(model) == bits(longer)
    assert model.receipt() == longer.receipt()
    np.testing.assert_allclose(model.train_score_, longer.train_score_, rtol=1e-12)
    check_accounts(model)


def test_warm_start_does_not_charge_twice():
    X, y = make_data()
    costs = CostModel(COSTS, groups=[None, "g", "g", None, None], group_costs={"g": 3.0})
    model = regressor(costs=costs, tradeoff=1e-3, max_iter=2, warm_start=True)
    for max_iter in range(2, 12, 3):
        model.set_params(max_iter=max_iter).fit(X, y)
        check_accounts(model)
    # What is bought is free: at a price that nothing new can pay, trees go on with the old.
    before = model.features_used_
    model.set_params(max_iter=20, tradeoff=1e6).fit(X, y)
    assert model.n_iter_ == 20
    assert model.features_used_ == before
    check_accounts(model)


def test_warm_start_with_the_same_number_changes_nothing():
    X, y = make_data()
    model = regressor(warm_start=True).fit(X, y)
    before = bits(model)
    assert bits(model.fit(X, y)) == before


def test_warm_start_backwards_is_an_error():
    X, y = make_data()
    model = regressor(warm_start=True).fit(X, y)
    with pytest.raises(ValueError, match="max_iter=9 must not be less than n_iter_=10"):
        model.set_params(max_iter=9).fit(X, y)
    assert model.n_iter_ == 10


def test_warm_start_keeps_the_classes():
    X, y = make_data()
    y = classes_of(y)
    model = classifier(warm_start=True).fit(X, y)
    with pytest.raises(ValueError, match=r"class that the model does not know: 9 is not one of"):
        model.set_params(max_iter=12).fit(X, np.where(y == 0, 9, y))
    # A class may be absent from later data.
    model.fit(X[y > 0], y[y > 0])
    assert model.classes_.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ([0, 1], [False, True]),
        ([False, True], [0.0, 1.0]),
        ([1.0, 2.0], [1, 2]),
        (["a", "b"], np.array(["a", "b"], dtype=object)),
        (np.array(["a", "longer"], dtype=object), ["a", "longer"]),
        ([2**53, 2**53 + 1], np.array([2**53, 2**53 + 1], dtype=np.uint64)),
        (np.array([3, 5], dtype="M8[s]"), np.array([3, 5], dtype="M8[s]")),
    ],
)
def test_labels_are_the_same_whatever_their_type(first, then):
    X, y = make_data()
    picks = (y > 0).astype(np.intp)
    model = classifier(warm_start=True).fit(X, np.asarray(first)[picks])
    other = clone(model).fit(X, np.asarray(first)[picks])
    model.set_params(max_iter=12).fit(X, np.asarray(then)[picks])
    other.set_params(max_iter=12).fit(X, np.asarray(first)[picks])
    np.testing.assert_array_equal(model.predict(X), other.predict(X))
    np.testing.assert_array_equal(model.train_score_, other.train_score_)


@pytest.mark.parametrize(
    ("first", "then", "unknown"),
    [
        (["1", "2"], [1, 2], "2"),
        ([1, 2], ["1", "2"], "2"),
        ([1, 2], [1, 2.5], "2.5"),
        ([2**53, 2**53 + 2], [2**53, 2**53 + 1], str(2**53 + 1)),
        (["a", "b"], ["a", "c"], "c"),
    ],
)
def test_labels_that_only_look_alike_are_unknown(first, then, unknown):
    X, y = make_data()
    picks = (y > 0).astype(np.intp)
    model = classifier(warm_start=True).fit(X, np.asarray(first)[picks])
    with pytest.raises(ValueError, match=f"does not know: {unknown} is not one of"):
        model.set_params(max_iter=12).fit(X, np.asarray(then)[picks])


def test_warm_start_keeps_class_weights():
    X, y = make_data()
    y = classes_of(y)
    params = {"class_weight": {0: 5.0, 1: 1.0, 2: 1.0, 3: 0.5}}
    model = classifier(**params, max_iter=4, warm_start=True).fit(X, y)
    assert bits(model.set_params(max_iter=10).fit(X, y)) == bits(classifier(**params).fit(X, y))


def test_warm_start_with_other_outputs_is_an_error():
    X, y = make_data()
    model = classifier(warm_start=True).fit(X, y > 0)
    with pytest.raises(ValueError, match="2 classes need a loss with n_outputs=1, got 3"):
        model.set_params(loss=MultinomialLogLoss(3), max_iter=12).fit(X, y > 0)


def test_warm_start_sets_the_same_rows_aside():
    X, y = make_data()
    seen = []
    model = regressor(max_iter=2, warm_start=True, early_stopping=True)
    model.set_params(scoring=lambda model, X, y: seen.append(y.tobytes()) or model.n_iter_)
    for max_iter in (2, 4):
        model.set_params(max_iter=max_iter).fit(X, y)
    assert len(seen) == 6
    assert len(set(seen)) == 1


def test_warm_start_keeps_what_was_best(overfit):
    params = {"learning_rate": 0.5, "max_depth": 6, "early_stopping": False}
    model = regressor(**params, max_iter=40, warm_start=True).fit(**overfit)
    best, score = model.n_iter_, model.validation_score_.max()
    assert best < 40
    model.fit(**overfit)
    assert model.n_iter_ == best
    assert model.validation_score_.max() == pytest.approx(score)
    assert len(model.validation_score_) == 41
    # Scores of rounds that had no validation data are not known.
    model = regressor(max_iter=2, warm_start=True).fit(overfit["X"], overfit["y"])
    model.set_params(max_iter=4).fit(**overfit)
    assert np.isnan(model.validation_score_).tolist() == [True, True, False, False, False]
    check_accounts(model)


def test_without_warm_start_a_fit_starts_over():
    X, y = make_data()
    model = regressor().fit(X[:, :3], y)
    assert bits(model.fit(X, -y)) == bits(regressor().fit(X, -y))
    assert model.n_features_in_ == 5


# -- callbacks, progress, interruption ------------------------------------------------------------


def test_callbacks_hear_of_every_round():
    X, y = make_data()
    first, second = [], []
    model = regressor(costs=CostModel(COSTS, tree_cost=0.5), max_iter=6)
    model.fit(X, y, X_val=X, y_val=y, callbacks=[first.append, second.append])
    assert first == second
    assert [progress.n_iter for progress in first] == [1, 2, 3, 4, 5, 6]
    assert [progress.done for progress in first] == [1, 2, 3, 4, 5, 6]
    assert {progress.max_iter for progress in first} == {6}
    elapsed = [progress.elapsed for progress in first]
    assert elapsed == sorted(elapsed)
    for progress in first:
        shorter = model.truncate(progress.n_iter)
        assert progress.cost == shorter.cost_
        assert progress.n_features == len(shorter.features_used_)
        error = 0.5 * mean_squared_error(y, shorter.predict(X))
        assert progress.train_loss == pytest.approx(error)
        assert progress.validation_score == pytest.approx(-error)
    with pytest.raises(AttributeError):
        first[0].n_iter = 7


def test_progress_of_a_continued_fit():
    X, y = make_data()
    seen = []
    model = regressor(max_iter=3, warm_start=True).fit(X, y)
    model.set_params(max_iter=5).fit(X, y, callbacks=[seen.append])
    assert [(p.n_iter, p.done, p.max_iter) for p in seen] == [(4, 1, 5), (5, 2, 5)]
    assert seen[-1].n_features == len(model.features_used_)
    assert seen[-1].cost == model.cost_
    assert seen[-1].validation_score is None


def test_callback_may_stop():
    X, y = make_data()
    heard = []
    stop = lambda progress: Action.STOP if progress.n_iter == 3 else None  # noqa: E731
    carry_on = lambda progress: heard.append(progress.n_iter) or Action.CONTINUE  # noqa: E731
    model = regressor().fit(X, y, callbacks=[stop, carry_on])
    assert model.n_iter_ == 3
    assert model.stopped_ == "callback"
    assert heard == [1, 2, 3]  # also of the last round, though the other had said stop
    assert bits(model) == bits(regressor(max_iter=3).fit(X, y))


def test_verbose_shows_progress_on_one_line(capsys):
    X, y = make_data()
    regressor(verbose=1).fit(X, y, X_val=X, y_val=y)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.endswith("\n")
    last = err.split("\r")[-1]
    assert "10/10" in last
    assert "cost 5" in last
    assert "features 5" in last
    assert "validation" in last
    regressor().fit(X, y)
    assert capsys.readouterr() == ("", "")


class Interrupting(SquaredError):  # noqa: N818
    """A loss during whose k-th question the user presses Ctrl-C."""

    def __init__(self, k):
        self.left = k

    def gradients(self, y, raw):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return super().gradients(y, raw)


@pytest.mark.parametrize("verbose", [0, 1])
def test_interruption_keeps_finished_rounds(capsys, verbose):
    X, y = make_data()

    def press_ctrl_c(progress):
        if progress.n_iter == 4:
            raise KeyboardInterrupt

    model = regressor(costs=COSTS, verbose=verbose, warm_start=True)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y, callbacks=[press_ctrl_c])
    assert model.n_iter_ == 4
    assert model.stopped_ == "interrupted"
    assert bits(model) == bits(regressor(costs=COSTS, max_iter=4).fit(X, y))
    assert len(model.train_score_) == 5
    check_accounts(model)
    assert capsys.readouterr().err.endswith("\n" if verbose else "")
    # The fit can be taken up again.
    assert bits(model.fit(X, y)) == bits(regressor(costs=COSTS).fit(X, y))


def test_interruption_within_a_round():
    X, y = make_data()
    model = regressor(costs=COSTS, loss=Interrupting(4))
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert bits(model) == bits(regressor(costs=COSTS, max_iter=3).fit(X, y))
    assert len(model.train_score_) == 4
    check_accounts(model)


def test_interruption_within_a_score(overfit):
    def press_ctrl_c(model, X, y):
        if model.n_iter_ == 3:
            raise KeyboardInterrupt
        return model.n_iter_

    model = regressor(scoring=press_ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        model.fit(**overfit)
    assert model.n_iter_ == 2
    assert len(model.validation_score_) == len(model.train_score_) == 3
    check_accounts(model)


def test_interruption_while_a_round_is_written_down(monkeypatch):
    X, y = make_data()
    written = []

    def press_ctrl_c(*line):
        written.append(line)
        if len(written) == 2:  # the first round buys more than one feature
            raise KeyboardInterrupt
        return Purchase(*line)

    monkeypatch.setattr("greedymiser.training.boosting.Purchase", press_ctrl_c)
    model = regressor(costs=COSTS)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert model.n_iter_ == 0
    assert len(model.train_score_) == 1
    check_accounts(model)


def test_interruption_before_the_first_round():
    X, y = make_data()
    model = regressor(loss=Interrupting(1))
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert model.n_iter_ == 0
    assert model.predict(X) == pytest.approx(np.full(300, y.mean()))
    check_accounts(model)


# -- weights --------------------------------------------------------------------------------------

FITS = {
    "regressor": lambda X, y, *w, **p: regressor(**p).fit(X, y, *w),
    "two classes": lambda X, y, *w, **p: classifier(**p).fit(X, y > 0.5, *w),
    "classes": lambda X, y, *w, **p: classifier(**p).fit(X, classes_of(y), *w),
    "absolute error": lambda X, y, *w, **p: regressor(loss="absolute_error", **p).fit(X, y, *w),
    "poisson": lambda X, y, *w, **p: regressor(loss="poisson", **p).fit(X, classes_of(y), *w),
}


@pytest.mark.parametrize("kind", FITS)
@pytest.mark.parametrize("factor", [8.0, 2.0**-40])
def test_scale_of_the_weights_does_not_matter(kind, factor):
    X, y = make_data()
    weight = np.random.default_rng(0).uniform(0.5, 2, len(y))
    a = FITS[kind](X, y, weight, costs=COSTS, tradeoff=1e-3)
    b = FITS[kind](X, y, factor * weight, costs=COSTS, tradeoff=1e-3)
    assert without(a, "hessian") == without(b, "hessian")
    assert a.ensemble_.baseline.tobytes() == b.ensemble_.baseline.tobytes()


@pytest.mark.parametrize("kind", FITS)
def test_weights_of_one_are_no_weights(kind):
    X, y = make_data()
    a, b = FITS[kind](X, y), FITS[kind](X, y, np.ones(len(y)))
    assert bits(a) == bits(b)
    # Other weights take another way through the engine, and come to the same.
    b = FITS[kind](X, y, np.full(len(y), 3.0))
    np.testing.assert_allclose(a.predict(X), b.predict(X), rtol=1e-6)
    assert without(a, "value", "gain", "hessian") == without(b, "value", "gain", "hessian")


@pytest.mark.parametrize("kind", FITS)
def test_weight_is_the_number_of_rows(kind):
    X, y = make_data()
    X = X.round(1)
    counts = np.random.default_rng(0).integers(0, 4, len(y))
    params = {"min_samples_leaf": 1, "max_depth": 2, "costs": COSTS, "tradeoff": 1e-3}
    a = FITS[kind](X, y, counts.astype(float), **params)
    b = FITS[kind](np.repeat(X, counts, axis=0), np.repeat(y, counts), **params)
    # What was never seen missing goes where more rows go, and those are not as many.
    not_compared = ("value", "gain", "hessian", "count", "missing_left")
    assert without(a, *not_compared) == without(b, *not_compared)
    np.testing.assert_allclose(
        a.ensemble_.nodes["value"], b.ensemble_.nodes["value"], rtol=1e-5, atol=1e-8
    )
    assert a.receipt().total == b.receipt().total


@pytest.mark.parametrize("kind", FITS)
def test_row_of_no_weight_is_no_row(kind):
    X, y = make_data()
    weight = np.random.default_rng(0).integers(0, 3, len(y)).astype(float)
    X[weight == 0] = 1e9  # would be seen by the bins
    kept = weight > 0
    a = FITS[kind](X, y, weight)
    b = FITS[kind](X[kept], y[kept], weight[kept])
    assert bits(a) == bits(b)


def test_class_without_weight_is_no_class():
    X, y = make_data()
    y = classes_of(y)
    model = classifier().fit(X, y, (y != 2).astype(float))
    assert model.classes_.tolist() == [0, 1, 3]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_classes", [2, 4])
def test_class_weights_are_sample_weights(n_classes, weighted):
    X, y = make_data()
    y = np.minimum(classes_of(y), n_classes - 1)
    names = np.array(["a", "b", "c", "d"])[y]
    given = np.random.default_rng(0).integers(0, 3, len(y)) if weighted else np.ones(len(y))
    by_class = np.array([1.0, 2.0, 0.5, 4.0])
    a = classifier(class_weight=dict(zip("abcd"[:n_classes], by_class, strict=False)))
    a.fit(X, names, given if weighted else None)
    assert bits(a) == bits(classifier().fit(X, names, given * by_class[y]))

    # Balanced: all classes weigh the same, and together as much as before.
    mass = np.bincount(y, weights=given)
    balance = given.sum() / (n_classes * mass)
    a = classifier(class_weight="balanced").fit(X, names, given if weighted else None)
    b = classifier().fit(X, names, given * balance[y])
    assert a.predict_proba(X) == pytest.approx(b.predict_proba(X))
    assert a.ensemble_.nodes["hessian"] == pytest.approx(b.ensemble_.nodes["hessian"])
    prior = a.truncate(0).predict_proba(X[:1])[0]
    assert prior == pytest.approx(np.full(n_classes, 1 / n_classes))


def test_balance_counts_weights_not_rows():
    X, y = make_data()
    counts = np.random.default_rng(0).integers(0, 4, len(y))
    params = {"min_samples_leaf": 1, "max_depth": 2, "class_weight": "balanced"}
    a = classifier(**params).fit(X.round(1), y > 0, counts)
    repeated = np.repeat(X.round(1), counts, axis=0)
    b = classifier(**params).fit(repeated, np.repeat(y > 0, counts))
    np.testing.assert_allclose(a.predict_proba(X), b.predict_proba(X), rtol=1e-6)


# -- stages and accounts --------------------------------------------------------------------------


@pytest.fixture(params=["regressor", "two classes", "classes", "ranker"])
def fitted(request):
    X, y = make_data()
    params = {"costs": CostModel(COSTS, tree_cost=0.25), "tradeoff": 1e-3}
    if request.param == "ranker":
        return ranker(**params).fit(X, classes_of(y), qid=np.arange(300) // 10), X
    return FITS[request.param](X, y, **params), X


def test_stages(fitted):
    model, X = fitted
    methods = [m for m in ("predict", "predict_proba", "decision_function") if hasattr(model, m)]
    for method in methods:
        stages = list(getattr(model, f"staged_{method}")(X))
        assert len(stages) == model.n_iter_ == 10
        for i, stage in enumerate(stages, start=1):
            np.testing.assert_array_equal(stage, getattr(model.truncate(i), method)(X))
        np.testing.assert_array_equal(stages[-1], getattr(model, method)(X))
        assert stages[0] is not stages[1]


def test_truncated_models(fitted):
    model, X = fitted
    before, cost, receipt = bits(model), model.cost_, model.receipt()
    costs = []
    for i in range(model.n_iter_ + 1):
        shorter = model.truncate(i)
        assert shorter.n_iter_ == i
        check_accounts(shorter)
        costs.append(shorter.cost_)
        np.testing.assert_array_equal(shorter.prediction_costs(X[:7]), np.full(7, shorter.cost_))
    assert costs == sorted(costs)
    assert costs[0] == 0.0
    assert (bits(model), model.cost_, model.receipt()) == (before, cost, receipt)
    # Going on with a short copy leaves the original alone.
    model.truncate(2).set_params(warm_start=True, max_iter=5)
    assert model.receipt() == receipt
    for bad in (-1, model.n_iter_ + 1):
        with pytest.raises(ValueError, match=f"between 0 and 10, got {bad}"):
            model.truncate(bad)
    with pytest.raises(TypeError):
        model.truncate(2.5)


def test_going_on_with_a_short_copy():
    X, y = make_data()
    model = regressor(costs=COSTS, tradeoff=1e-3).fit(X, y)
    receipt = model.receipt()
    shorter = model.truncate(2).set_params(warm_start=True, max_iter=10).fit(X, y)
    assert bits(shorter) == bits(model)
    assert shorter.receipt() == receipt == model.receipt()


def test_accounts(fitted):
    model, _ = fitted
    check_accounts(model)
    assert model.feature_importances_.shape == (5,)
    assert model.feature_importances_.sum() == pytest.approx(1.0)
    assert set(np.flatnonzero(model.feature_importances_)) == set(model.features_used_)
    gains = model.ensemble_.nodes["gain"]
    strongest = model.ensemble_.nodes["feature"][np.argmax(gains)]
    assert strongest in np.argsort(model.feature_importances_)[-2:]


def test_receipt_reads_like_one():
    pd = pytest.importorskip("pandas")
    X, y = make_data()
    frame = pd.DataFrame(X, columns=["age", "sex", "bp", "s1", "s2"])
    costs = dict(zip(frame.columns[::-1], COSTS, strict=True))
    model = regressor(costs=costs, tradeoff=1e-3).fit(frame, y)
    table = model.receipt().to_frame()
    assert table["price"].sum() == pytest.approx(model.cost_)
    assert table["spent"].tolist() == pytest.approx(table["price"].cumsum().tolist())
    assert set(table["feature"]) == set(model.features_used_)
    assert (table["price"] == table["feature"].map(costs)).all()
    assert table["iteration"].is_monotonic_increasing
    for line in str(model.receipt()).splitlines()[1:]:
        assert line.split()[1] in costs


@pytest.mark.parametrize(
    "costs", [None, COSTS, CostModel(COSTS), dict(zip("edcba", COSTS, strict=True))]
)
def test_features_go_by_name_where_there_are_names(costs):
    pd = pytest.importorskip("pandas")
    X, y = make_data()
    model = regressor(costs=costs, max_iter=3).fit(pd.DataFrame(X, columns=list("abcde")), y)
    check_accounts(model)
    assert {line.feature for line in model.receipt()} == set(model.features_used_) <= set("abcde")
    # An array has no names, but a cost model may have.
    if isinstance(costs, dict):
        costs = CostModel(costs)
    model = regressor(costs=costs, max_iter=3).fit(X, y)
    check_accounts(model)
    assert {line.feature for line in model.receipt()} == set(model.features_used_)


def test_a_constant_model_needs_nothing():
    X, y = make_data()
    model = regressor(costs=COSTS, tradeoff=1e9).fit(X, y)
    assert model.stopped_ == "nothing pays"
    assert (model.n_iter_, model.cost_, model.features_used_) == (0, 0.0, [])
    assert model.feature_importances_.tolist() == [0.0] * 5
    assert list(model.staged_predict(X)) == []
    assert model.predict(X[:2]) == pytest.approx([y.mean()] * 2)
    assert model.receipt().total == 0.0
    assert len(model.receipt().to_frame()) == 0


def test_init_zero():
    X, y = make_data()
    model = regressor(init="zero", max_iter=1, learning_rate=0.5).fit(X, y + 10)
    assert model.truncate(0).predict(X[:1]) == [0.0]
    prior = regressor(max_iter=1, learning_rate=0.5).fit(X, y + 10)
    assert prior.truncate(0).predict(X[:1]) == pytest.approx([(y + 10).mean()])


def test_steps_are_the_same_for_squared_error_only():
    X, y = make_data()
    assert bits(regressor(step="gradient").fit(X, y)) == bits(regressor().fit(X, y))
    params = {"learning_rate": 0.5}
    newton, gradient = (
        classifier(step=step, **params).fit(X, y > 0) for step in ("newton", "gradient")
    )
    assert bits(newton) != bits(gradient)
    assert gradient.score(X, y > 0) > 0.8


# -- classes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "labels",
    [
        np.array([0, 1]),
        np.array([-5, 7]),
        np.array([False, True]),
        np.array(["no", "yes"]),
        np.array(["no", "yes"], dtype=object),
        np.array([1.0, 2.0]),
    ],
    ids=["int", "other int", "bool", "str", "object", "float"],
)
def test_two_classes(labels):
    X, y = make_data()
    model = classifier().fit(X, labels[(y > 0).astype(int)])
    reference = classifier().fit(X, (y > 0).astype(int))
    assert bits(model) == bits(reference)
    assert model.classes_.dtype == labels.dtype
    np.testing.assert_array_equal(model.classes_, labels)
    np.testing.assert_array_equal(model.predict(X), labels[reference.predict(X)])
    raw, proba = model.decision_function(X), model.predict_proba(X)
    assert raw.shape == (300,)
    assert proba.shape == (300, 2)
    np.testing.assert_allclose(proba[:, 1], 1 / (1 + np.exp(-raw)))
    np.testing.assert_allclose(proba.sum(axis=1), 1.0)
    np.testing.assert_array_equal(model.predict(X), labels[(raw > 0).astype(int)])
    np.testing.assert_array_equal(model.predict(X), labels[proba.argmax(axis=1)])


def test_several_classes():
    X, y = make_data()
    labels = np.array(["d", "b", "c", "a"])
    model = classifier().fit(X, labels[classes_of(y)])
    assert model.classes_.tolist() == ["a", "b", "c", "d"]
    raw, proba = model.decision_function(X), model.predict_proba(X)
    assert raw.shape == proba.shape == (300, 4)
    expected = np.exp(raw) / np.exp(raw).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(proba, expected)
    np.testing.assert_array_equal(model.predict(X), model.classes_[raw.argmax(axis=1)])
    assert model.score(X, labels[classes_of(y)]) > 0.6
    assert model.ensemble_.n_trees == 4 * model.n_iter_


def test_prior_of_the_classes():
    X, y = make_data()
    y = classes_of(y)
    prior = classifier().fit(X, y).truncate(0).predict_proba(X[:1])[0]
    assert prior == pytest.approx(np.bincount(y) / len(y))


def test_purchases_are_shared_between_classes():
    """One informative feature: the first class to split on it pays, for all of them."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 4, 400)
    X = np.column_stack([rng.standard_normal(400), x])
    model = classifier(costs=[50.0, 10.0], tradeoff=1e-3, max_iter=3).fit(X, np.floor(x))
    splits = model.ensemble_.nodes["feature"] >= 0
    trees = np.repeat(np.arange(12), np.diff(model.ensemble_.tree_starts))
    assert len(set(trees[splits] % 4)) == 4  # every class splits
    assert len(model.receipt()) == 1
    assert model.cost_ == 10.0


# -- monotone -------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("loss", ["squared_error", "absolute_error", "poisson", "log_loss"])
@pytest.mark.parametrize("by_name", [False, True])
def test_monotone(direction, loss, by_name):
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.uniform(-1, 1, (400, 3)), columns=list("abc"))
    # Rises and falls along b, so that the constraint hurts.
    y = X["a"] + np.sin(5 * X["b"]) + 0.3 * rng.standard_normal(400)
    cst = {"b": direction} if by_name else [0, direction, 0]
    params = {"max_iter": 30, "learning_rate": 0.3, "monotonic_cst": cst}
    if loss == "log_loss":
        model, free = classifier(**params), classifier(**params | {"monotonic_cst": None})
        y = y > 0
    else:
        model = regressor(**params, loss=loss)
        free = regressor(**params | {"monotonic_cst": None}, loss=loss)
        y = np.exp(y) if loss == "poisson" else y

    def steepest(model):
        """Smallest and largest step along b, from a grid of places."""
        predict = getattr(model, "decision_function", model.predict)
        steps = []
        for a, c in itertools.product(np.linspace(-1, 1, 4), repeat=2):
            line = pd.DataFrame({"a": a, "b": np.linspace(-1, 1, 60), "c": c})
            steps.append(np.diff(predict(line)))
        return np.min(steps), np.max(steps)

    low, high = steepest(model.fit(X, y))
    assert (low >= 0) if direction > 0 else (high <= 0)
    low, high = steepest(free.fit(X, y))
    assert low < 0 < high
    if direction > 0:
        assert "b" in model.features_used_


# -- sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_leaf_nodes", [2, 3, 7])
def test_max_leaf_nodes(max_leaf_nodes):
    X, y = make_data()
    model = regressor(max_leaf_nodes=max_leaf_nodes, max_depth=None).fit(X, y)
    trees = [model.ensemble_.tree(t).nodes for t in range(model.ensemble_.n_trees)]
    leaves = [(nodes["left"] < 0).sum() for nodes in trees]
    assert set(leaves) == {max_leaf_nodes}


@pytest.mark.parametrize("max_depth", [1, 3])
def test_max_depth_and_min_samples_leaf(max_depth):
    X, y = make_data()
    model = regressor(max_depth=max_depth, min_samples_leaf=11).fit(X, y)
    assert model.ensemble_.nodes["depth"].max() == max_depth
    assert model.ensemble_.nodes["count"].min() >= 11


def test_max_bins():
    X, y = make_data()
    model = regressor(max_bins=2).fit(X, y)
    inner = model.ensemble_.nodes[model.ensemble_.nodes["feature"] >= 0]
    for feature in range(5):
        assert len(set(inner["threshold"][inner["feature"] == feature])) <= 1


def test_l2_shrinks():
    X, y = make_data()
    loose, tight = (regressor(l2_regularization=l2).fit(X, y) for l2 in (0.0, 100.0))
    assert np.ptp(tight.predict(X)) < np.ptp(loose.predict(X))


# -- budget ---------------------------------------------------------------------------------------


@examples(40)
@given(
    budget=st.floats(0, 40),
    tree_cost=st.sampled_from([0.0, 0.1, 1.0, 3.0]),
    n_classes=st.sampled_from([1, 2, 3]),
    shared=st.booleans(),
    validated=st.booleans(),
)
@pytest.mark.filterwarnings("ignore::greedymiser.BudgetWarning")
def test_budget_is_hard(budget, tree_cost, n_classes, shared, validated):
    X, y = make_data(120)
    groups = {"groups": ["g", "g", None, "h", "h"], "group_costs": {"g": 5.0, "h": 0.5}}
    costs = CostModel(COSTS, **(groups if shared else {}), tree_cost=tree_cost)
    params = {"costs": costs, "budget": budget, "max_iter": 6, "max_depth": 3}
    val = {"X_val": X, "y_val": y}
    if n_classes > 1:
        y = np.minimum(classes_of(y), n_classes - 1)
        val = {"X_val": X, "y_val": y}
        model = classifier(**params)
    else:
        model = regressor(**params)
    model.fit(X, y, **(val if validated else {}))
    assert model.cost_ <= budget
    check_accounts(model)
    # The budget is used: with nothing to buy but the cheapest, it is bought.
    n_outputs = model.ensemble_.n_outputs
    cheapest = min(costs.total([f], n_outputs) for f in (0, 1, 2))
    if budget >= cheapest:
        assert model.n_iter_ > 0


@pytest.mark.parametrize(("limit", "charge"), [("budget", "model"), ("row_budget", "row")])
@pytest.mark.parametrize(
    ("price", "tree_cost", "budget", "paid"),
    [(0.1, 0.0, 0.3, 0.3), (0.7, 0.0, 2.1, 2.1), (0.1, 0.1, 1.3, 1.3), (0.1, 0.0, 0.2999, 0.2)],
)
def test_a_budget_is_compared_with_prices_as_they_were_written(
    limit, charge, price, tree_cost, budget, paid
):
    """Three times 0.1 is 0.3, though not so in floats."""
    X = np.random.default_rng(0).standard_normal((300, 3))
    model = MiserRegressor(
        costs=CostModel([price] * 3, tree_cost=tree_cost), max_iter=10, early_stopping=False,
        charge=charge, **{limit: budget},
    ).fit(X, X @ [3.0, 2.0, 1.0])  # fmt: skip
    assert max(model.prediction_costs(X)) == paid <= budget
    assert model.cost_ <= budget


def test_budget_buys_the_most_useful_that_fits():
    X, y = make_data()
    free = regressor(costs=[5.0] * 5).fit(X, y)
    model = regressor(costs=[5.0] * 5, budget=12.0).fit(X, y)
    assert model.cost_ == 10.0
    assert [line.feature for line in model.receipt()] == [
        line.feature for line in free.receipt()[:2]
    ]


def test_budget_ends_boosting_when_trees_cost():
    X, y = make_data()
    model = regressor(costs=CostModel([1.0] * 5, tree_cost=2.0), budget=13.0).fit(X, y)
    assert model.stopped_ == "budget"
    assert model.n_iter_ == 4  # 4 trees of 2, and all 5 features
    assert model.cost_ == 13.0


def test_budget_in_continued_fits():
    X, y = make_data()
    costs = CostModel(COSTS, tree_cost=0.5)
    model = regressor(costs=costs, budget=12.0, max_iter=2, warm_start=True).fit(X, y)
    model.set_params(max_iter=10).fit(X, y)
    assert bits(model) == bits(regressor(costs=costs, budget=12.0).fit(X, y))
    assert model.cost_ <= 12.0


def test_budget_that_buys_nothing():
    pd = pytest.importorskip("pandas")
    X, y = make_data()
    frame = pd.DataFrame(X, columns=["age", "sex", "bp", "s1", "s2"])
    frame["free"] = 0.0  # costs nothing, tells nothing
    costs = {"age": 3.0, "sex": 2.5, "bp": 7.0, "s1": 8.0, "s2": 9.0, "free": 0.0}
    message = r"budget=2 buys no useful feature.*cheapest useful feature is 'sex' and costs 2.5$"
    with pytest.warns(BudgetWarning, match=message) as caught:
        model = regressor(costs=costs, budget=2.0).fit(frame, y)
    assert caught[0].filename == __file__
    assert model.n_iter_ == 0
    assert model.predict(frame[:1]) == pytest.approx([y.mean()])
    with pytest.warns(BudgetWarning, match=r"'sex' and costs 2.5 \(with its trees, 3\)"):
        regressor(costs=CostModel(costs, tree_cost=0.5), budget=2.5).fit(frame, y)
    with pytest.warns(BudgetWarning, match=r"0 and costs 1 \(with its trees, 13\)"):
        classifier(costs=CostModel([1.0], tree_cost=4.0), budget=9.0).fit(
            X[:, :1], np.digitize(X[:, 0], [0, 1])
        )


def test_no_warning_where_the_budget_is_not_to_blame():
    X, y = make_data()
    regressor(costs=COSTS, budget=1.0, tradeoff=1e9).fit(X, y)  # nothing pays at any budget
    regressor(costs=COSTS, budget=1.0).fit(np.ones_like(X), y)
    model = regressor(costs=COSTS, budget=1.0, scoring=lambda model, X, y: -model.n_iter_)
    assert model.fit(X, y, X_val=X, y_val=y).n_iter_ == 0


def test_warning_looks_at_weights():
    """Without its weights, the first feature would look useful."""
    X = np.repeat([[0.0], [1.0]], 20, axis=0)
    y = X[:, 0]
    model = regressor(costs=[2.0], budget=1.0, tradeoff=0.01)
    model.fit(X, y, np.repeat([1e-6, 1.0], 20))
    with pytest.warns(BudgetWarning, match="is 0 and costs 2"):
        model.fit(X, y)


# -- what does not matter -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many():
    """Rows enough for several slices per thread, with missing values and categories."""
    rng = np.random.default_rng(0)
    n = 45_000
    X = np.column_stack(
        [
            rng.standard_normal((n, 4)),
            rng.integers(0, 30, n),
            rng.integers(0, 6, n),
        ]
    )
    y = X[:, 0] + np.sin(3 * X[:, 1]) + 0.5 * (X[:, 4] % 7) + rng.standard_normal(n)
    X[rng.random((n, 6)) < 0.05] = np.nan
    return X, y, rng.uniform(0.5, 2.0, n)


@pytest.mark.parametrize("kind", ["regressor", "weights", "classes", "step", "validation"])
def test_threads_do_not_matter(many, kind):
    X, y, weight = many
    params = {
        "max_iter": 3,
        "max_depth": 5,
        "min_samples_leaf": 20,
        "early_stopping": kind == "validation",
        "random_state": 0,
        "categorical_features": [4, 5],
        "costs": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        "tradeoff": 1e-4,
    }

    assert len(Threads(4).slices(len(y), Tuning().rows)) == 4

    def fit(n_jobs):
        if kind == "classes":
            return classifier(**params, n_jobs=n_jobs).fit(X, classes_of(y), weight)
        if kind == "step":
            return classifier(**params, n_jobs=n_jobs, step="gradient").fit(X, y > 0)
        return regressor(**params, n_jobs=n_jobs).fit(X, y, weight if kind == "weights" else None)

    one, two, four = fit(1), fit(2), fit(4)
    assert bits(one) == bits(two) == bits(four)
    assert one.receipt() == two.receipt() == four.receipt()
    np.testing.assert_array_equal(one.predict(X), two.predict(X))
    np.testing.assert_array_equal(one.predict(X), four.predict(X))
    assert (one.ensemble_.nodes["category_set"] >= 0).any()


def test_threads_do_not_matter_to_a_ranker(many):
    X, y, _ = many
    X, y = X[:40_000, :4], classes_of(y[:40_000])
    qid = np.arange(40_000) // 20
    one, two = (
        ranker(max_iter=2, n_jobs=n, early_stopping=False).fit(X, y, qid=qid) for n in (1, 2)
    )
    assert bits(one) == bits(two)


@pytest.mark.parametrize("kind", FITS)
@pytest.mark.parametrize("weighted", [False, True])
def test_order_of_rows_does_not_matter(kind, weighted):
    X, y = make_data()
    X[::7, 1] = np.nan
    weight = np.random.default_rng(0).uniform(0.5, 2, len(y)) if weighted else None
    order = np.random.default_rng(1).permutation(len(y))
    a = FITS[kind](X, y, weight, costs=COSTS, tradeoff=1e-3)
    b = FITS[kind](
        X[order], y[order], None if weight is None else weight[order], costs=COSTS, tradeoff=1e-3
    )
    assert bits(a) == bits(b)
    assert a.receipt() == b.receipt()


def test_order_of_rows_does_not_matter_to_a_balance():
    X, y = make_data()
    y = classes_of(y)
    order = np.random.default_rng(1).permutation(len(y))
    a = classifier(class_weight="balanced").fit(X, y)
    b = classifier(class_weight="balanced").fit(X[order], y[order])
    assert bits(a) == bits(b)


@pytest.mark.parametrize("loss", ["lambdamart", "squared_error"])
def test_order_of_rows_does_not_matter_to_a_ranker(loss):
    X, y, qid = make_queries()
    weight = np.random.default_rng(0).uniform(0.5, 2, len(y))
    order = np.random.default_rng(1).permutation(len(y))
    a = ranker(loss=loss).fit(X, y, weight, qid=qid)
    b = ranker(loss=loss).fit(X[order], y[order], weight[order], qid=qid[order])
    assert bits(a) == bits(b)
    # Nor does what the queries are called.
    names = np.array([f"query {q}" for q in np.random.default_rng(2).permutation(25)])
    c = ranker(loss=loss).fit(X, y, weight, qid=names[qid])
    assert bits(a) == bits(c)


@pytest.mark.parametrize("kind", FITS)
def test_repeating_every_row_does_not_matter(kind):
    """LightGBM's penalty changes its meaning here; ours must not."""
    X, y = make_data()
    params = {"min_samples_leaf": 1, "max_depth": 3, "costs": COSTS, "tradeoff": 2e-3}
    a = FITS[kind](X, y, **params)
    b = FITS[kind](np.repeat(X, 4, axis=0), np.repeat(y, 4), **params)
    assert without(a, "count", "hessian") == without(b, "count", "hessian")
    assert a.receipt() == b.receipt()
    np.testing.assert_array_equal(a.predict(X), b.predict(X))


@pytest.mark.parametrize("kind", FITS)
@pytest.mark.parametrize("k", [2, 4])
def test_unit_of_costs_does_not_matter(kind, k):
    X, y = make_data()
    a = FITS[kind](X, y, costs=COSTS, tradeoff=2e-3)
    b = FITS[kind](X, y, costs=[k * cost for cost in COSTS], tradeoff=2e-3 / k)
    assert bits(a) == bits(b)
    assert b.cost_ == k * a.cost_ > 0


def test_tradeoff_makes_models_cheaper():
    X, y = make_data()
    models = [regressor(costs=COSTS, tradeoff=t).fit(X, y) for t in (0.0, 0.003, 0.01, 0.3, 10.0)]
    costs = [model.cost_ for model in models]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] == sum(COSTS)
    assert costs[-1] == 0.0
    assert len(set(costs)) >= 4


# -- ranker ---------------------------------------------------------------------------------------


def test_ranker_ranks():
    X, y, qid = make_queries()
    X_new, y_new, qid_new = make_queries(seed=1)
    model = ranker(max_iter=30).fit(X, y, qid=qid)
    by_chance = ndcg_score(y_new, np.zeros(len(y_new)), qid_new, k=5)
    assert model.score(X_new, y_new, qid=qid_new) > by_chance + 0.1
    assert model.score(X_new, y_new, qid=qid_new) == ndcg_score(
        y_new, model.predict(X_new), qid_new, k=5
    )
    weight = np.linspace(0, 1, len(y_new))
    assert model.score(X_new, y_new, weight, qid=qid_new, k=2) == ndcg_score(
        y_new, model.predict(X_new), qid_new, k=2, sample_weight=weight
    )


def test_without_queries_all_rows_are_one():
    X, y, _ = make_queries()
    a, b = ranker().fit(X, y), ranker().fit(X, y, qid=np.full(len(y), 7))
    assert bits(a) == bits(b)
    assert a.score(X, y) == b.score(X, y, qid=np.zeros(len(y)))
    a = ranker(scoring="ndcg@5").fit(X, y, X_val=X, y_val=y)
    assert a.validation_score_.max() == pytest.approx(a.score(X, y))


def test_queries_of_the_validation_data():
    X, y, qid = make_queries()
    model = ranker().fit(X, y, qid=qid, X_val=X, y_val=y, qid_val=qid)
    assert model.validation_score_ == pytest.approx(model.train_score_)


def test_ranker_with_a_loss_object():
    X, y, qid = make_queries()
    model = ranker(loss=LambdaMART(truncation=1)).fit(X, y, qid=qid)
    assert bits(model) != bits(ranker().fit(X, y, qid=qid))
    assert bits(ranker(loss=LambdaMART()).fit(X, y, qid=qid)) == bits(ranker().fit(X, y, qid=qid))
    assert bits(ranker(loss="squared_error").fit(X, y, qid=qid)) == bits(regressor().fit(X, y))


# -- losses of one's own --------------------------------------------------------------------------


class Duck:
    """All that a loss needs to have."""

    def values(self, y, raw):
        return 0.5 * (raw - y) ** 2

    def gradients(self, y, raw):
        return raw - y, None


class DuckWithPrior(Duck):
    def prior(self, y, weight):
        return math.fsum(y) / len(y)


def test_loss_that_is_like_a_loss():
    X, y = make_data()
    model = regressor(loss=Duck()).fit(X, y)
    assert bits(model) == bits(regressor(init="zero").fit(X, y))
    assert bits(regressor(loss=DuckWithPrior()).fit(X, y)) == bits(regressor().fit(X, y))


def test_loss_objects_and_names():
    X, y = make_data()
    for name, loss in REGRESSION_LOSSES.items():
        by_name = regressor(loss=name, max_iter=3).fit(X, np.exp(y / 4))
        assert bits(by_name) == bits(regressor(loss=loss(), max_iter=3).fit(X, np.exp(y / 4)))
    a, b = classifier(loss=BinaryLogLoss()), classifier(loss="log_loss")
    assert bits(a.fit(X, y > 0)) == bits(b.fit(X, y > 0))
    np.testing.assert_array_equal(a.predict_proba(X), b.predict_proba(X))


def test_predictions_are_on_the_scale_of_y():
    X, y = make_data()
    y = np.exp(y / 4)
    for loss in ("poisson", "gamma"):
        model = regressor(loss=loss, max_iter=50).fit(X, y)
        assert model.predict(X).min() > 0
        assert model.score(X, y) > 0.5
        assert model.truncate(0).predict(X[:1]) == pytest.approx([y.mean()])


def test_warm_start_does_not_continue_beyond_a_smaller_budget():
    X, y = make_data()
    model = regressor(max_iter=3, warm_start=True).fit(X, y)
    with pytest.raises(ValueError, match=r"budget=0\.5 is less than the"):
        model.set_params(budget=0.5, max_iter=6).fit(X, y)


def test_patience_does_not_depend_on_the_unit_of_y():
    X, y = make_data()
    rounds = []
    for unit in (1.0, 2.0**-20):
        model = regressor(max_iter=60, early_stopping=True, validation_fraction=None)
        rounds.append(model.fit(X, y * unit).n_iter_)
    assert rounds[0] == rounds[1] > 11


def test_categories_that_only_rows_set_aside_have_are_scored_as_they_are_predicted():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 12, size=(300, 1)).astype(float)  # some categories are rare
    X[X[:, 0] > 5] = 3.0
    X[:9, 0] = np.arange(6, 15)  # and nine have one row each
    y = np.where(X[:, 0] == 1, 3.0, 0.0) + 0.1 * rng.standard_normal(300)
    gaps = []

    def score(model, X, y):
        predicted = model.predict(X)  # what the bins say
        gaps.append(np.abs(predicted - model.predict(X.copy())).max())  # what the values say
        return -float(np.mean((predicted - y) ** 2))

    model = MiserRegressor(
        categorical_features=[0], max_iter=5, min_samples_leaf=5, early_stopping=True,
        validation_fraction=0.5, random_state=0, scoring=score,
    )  # fmt: skip
    model.fit(X, y)
    assert len(gaps) > 3
    assert max(gaps) < 1e-12
