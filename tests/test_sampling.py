"""What a round may look at: rows and features by lot, shopping days, features that may meet."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.ensemble import HistGradientBoostingRegressor

import naive
from greedymiser import MiserClassifier, MiserRanker, MiserRegressor
from greedymiser.engines.sampling import EVERYTHING, FeatureLot, Round, RoundRule, RowLot, mixed

numbers = st.integers(0, 2**63 - 1)
RNG = np.random.default_rng(0)
X = RNG.integers(0, 20, size=(400, 6)).astype(float)
Y = np.sin(X[:, 0]) + 0.1 * X[:, 1] * (X[:, 2] > 8) + 0.05 * X[:, 3] + RNG.normal(0, 0.1, 400)
LABELS = np.digitize(Y, [0.0, 1.0])
QID = np.arange(400) // 8
COSTS = [1.0, 2.0, 3.0, 1.0, 0.0, 5.0]
EVERY_OPTION = {"shopping_interval": 3, "subsample": 0.6, "max_features": 2}


def regressor(**params):
    return MiserRegressor(**({"costs": COSTS, "tradeoff": 1e-4, "max_iter": 12} | params))


def bits(model):
    return model.ensemble_.nodes.tobytes()


def paths(tree, node=0, above=frozenset()):
    """Features on the way to each leaf."""
    record = tree.nodes[node]
    if record["left"] < 0:
        yield above
        return
    for child in (record["left"], record["left"] + 1):
        yield from paths(tree, child, above | {int(record["feature"])})


def all_paths(model):
    trees = (model.ensemble_.tree(i) for i in range(model.ensemble_.n_trees))
    return list(itertools.chain.from_iterable(map(paths, trees)))


# -- lots -----------------------------------------------------------------------------------------


@given(st.lists(numbers, min_size=1, max_size=4))
def test_numbers_are_mixed_as_in_plain_arithmetic(given):
    assert mixed(*given) == naive.scrambled(*given)


@given(seed=st.integers(0, 2**64 - 1), limit=st.integers(0, 2**53), first=numbers)
def test_a_lot_falls_on_rows_as_in_plain_arithmetic(seed, limit, first):
    units = first + np.arange(20) if first < 2**62 else np.arange(20)
    found = RowLot(seed, limit).falls_on(units)
    assert found.tolist() == [naive.lot_falls_on(int(unit), seed, limit) for unit in units]


def test_rows_are_drawn_evenly_and_anew():
    """Within four standard deviations, for each round, each row, and pairs of rounds."""
    rule, rows = RoundRule(seed=5, subsample=0.3), np.arange(4000)
    drawn = np.array([rule.round(t).rows.falls_on(rows) for t in range(400)])
    for axis in (0, 1):
        n = drawn.shape[axis]
        assert abs(drawn.mean(axis=axis) - 0.3).max() < 4.6 * np.sqrt(0.21 / n)
    both = (drawn[:-1] & drawn[1:]).mean()
    assert abs(both - 0.09) < 4.6 * np.sqrt(0.09 * 0.91 / drawn.size)


@pytest.mark.parametrize(("most", "n"), [(3, 3), (99, 8), (0.5, 4), (0.01, 1), (0.3, 2)])
def test_so_many_features_are_drawn_and_all_have_the_same_chance(most, n):
    among = np.array([True] * 4 + [False] * 2 + [True] * 4)
    drawn = np.array([FeatureLot(11, most).falls_on(among, 0, node) for node in range(2000)])
    assert (drawn.sum(axis=1) == n).all()
    assert not drawn[:, ~among].any()
    assert abs(drawn[:, among].mean(axis=0) - n / 8).max() < 4.6 * np.sqrt(0.25 / 2000)


def test_nothing_is_drawn_of_nothing():
    assert not FeatureLot(1, 0.5).falls_on(np.zeros(3, dtype=bool), 0, 0).any()


def test_algorithm_1_has_everything_in_play():
    assert RoundRule(seed=3).round(7) == EVERYTHING == Round(True, None, None)
    days = [RoundRule(shopping_interval=3).round(t).shops for t in range(7)]
    assert days == [True, False, False, True, False, False, True]
    # One feature is not all features.
    assert RoundRule(max_features=1).round(0).features is not None
    assert RoundRule(max_features=1).differ
    assert not RoundRule(max_features=1.0).differ


# -- models ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"shopping_interval": 3},
        {"subsample": 0.5},
        {"max_features": 0.4},
        EVERY_OPTION | {"loss": "absolute_error"},
        EVERY_OPTION | {"early_stopping": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", [int, np.random.RandomState])
def test_a_continued_fit_is_one_longer_fit(changes, seed):
    model = regressor(**changes, max_iter=5, warm_start=True, random_state=seed(3)).fit(X, Y)
    longer = regressor(**changes, max_iter=12, random_state=seed(3)).fit(X, Y)
    model.set_params(max_iter=12, random_state=99).fit(X, Y)
    assert bits(model) == bits(longer)
    assert model.receipt() == longer.receipt()
    again = model.truncate(4).fit(X, Y)
    assert bits(again) == bits(longer)


@pytest.mark.parametrize("kind", [MiserRegressor, MiserClassifier, MiserRanker])
def test_seeds_decide_and_threads_do_not(kind):
    given = (X, Y) if kind is MiserRegressor else (X, LABELS)
    queries = {"qid": QID} if kind is MiserRanker else {}
    for option in ({"subsample": 0.5}, {"max_features": 0.4}, EVERY_OPTION):

        def fitted(seed, n_jobs=1, option=option):
            model = kind(max_iter=6, random_state=seed, n_jobs=n_jobs, **option)
            return bits(model.fit(*given, **queries))

        assert fitted(0) == fitted(0, n_jobs=3)
        assert fitted(0) != fitted(1)


@pytest.mark.parametrize("kind", [MiserRegressor, MiserClassifier])
def test_rows_outside_the_sample_walk_down_the_tree(kind):
    """Raw predictions of all rows are those of the model: the next gradients depend on them."""
    model = kind(max_iter=6, subsample=0.3, random_state=0, early_stopping=False)
    y = Y if kind is MiserRegressor else LABELS
    model.fit(X, y)
    raw = model._raw_predict(X)
    expected = -model.schema_.loss.value(
        model.schema_.target.encode(y), raw if len(raw) > 1 else raw[0], None
    )
    assert model.train_score_[-1] == pytest.approx(expected, rel=1e-9)


def test_classes_of_a_round_see_the_same_rows():
    model = MiserClassifier(max_iter=4, subsample=0.5, random_state=0).fit(X, LABELS)
    counts = model.ensemble_.nodes["count"][model.ensemble_.nodes["depth"] == 0].reshape(4, 3)
    assert (counts == counts[:, :1]).all()
    assert len(set(counts[:, 0])) > 1
    assert (counts < 400).all()


def test_queries_are_drawn_whole():
    sizes = np.tile([1, 1000], 20)  # so that the number of rows tells the number of queries
    rows = np.random.default_rng(0).standard_normal((sizes.sum(), 2))
    qid = np.repeat(np.arange(40), sizes)
    labels = (rows[:, 0] > 0).astype(int)
    model = MiserRanker(max_iter=3, subsample=0.5, random_state=0, early_stopping=False)
    model.fit(rows, labels, qid=qid)
    for t in range(3):
        lot = RoundRule(seed=model.schema_.seed, subsample=0.5).round(t).rows
        expected = sizes[lot.falls_on(np.arange(40))].sum()
        assert model.ensemble_.tree(t).nodes["count"][0] == expected


def test_a_price_means_the_same_for_fewer_rows():
    """A feature that pays on all rows pays on half of them; gains are means."""
    x = np.arange(400.0)[:, None] % 2
    gains = []
    for subsample in (1.0, 0.5):
        model = MiserRegressor(costs=[1.0], tradeoff=0.1, max_iter=1, subsample=subsample)
        gains.append(model.set_params(random_state=0).fit(x, x[:, 0]).receipt()[0].gain)
    assert gains[0] == pytest.approx(0.125)
    assert gains[1] == pytest.approx(0.125, rel=0.02)


def test_features_are_bought_on_shopping_days():
    often = regressor(max_iter=30, tradeoff=1e-2).fit(X, Y)
    assert {line.iteration % 4 for line in often.receipt() if line.price > 0} > {0}
    seldom = regressor(max_iter=30, tradeoff=1e-2, shopping_interval=4).fit(X, Y)
    days = [line.iteration for line in seldom.receipt() if line.price > 0]
    assert {day % 4 for day in days} == {0}
    assert len(set(days)) > 1


def test_a_round_in_which_nothing_pays_has_another_look_at_everything():
    # One step takes all there is of column 0; column 1 is bought in the next round, shopping day
    # or not.
    x = np.array([[a, b] for a in (0, 1) for b in (0, 1)] * 50, dtype=float)
    y = 10 * x[:, 0] + x[:, 1]
    params = {"learning_rate": 1.0, "max_depth": 1, "max_iter": 9, "tradeoff": 1e-3}
    model = MiserRegressor(**params, shopping_interval=5).fit(x, y)
    assert [(line.iteration, line.feature) for line in model.receipt()] == [(0, 0), (1, 1)]
    assert (model.n_iter_, model.stopped_) == (2, "nothing pays")
    model = MiserRegressor(**params, subsample=0.01, random_state=0).fit(x, y)
    assert (model.n_iter_, model.stopped_) == (2, "nothing pays")


def test_owned_features_are_always_in_play():
    """With one feature to choose from, a tree still splits on several that are owned."""
    model = regressor(tradeoff=0.0, costs=None, max_features=1, max_iter=40, random_state=0)
    model.fit(X, Y)
    assert len(model.features_used_) == 6
    first, last = model.ensemble_.tree(0), model.ensemble_.tree(39)
    free = MiserRegressor(costs=[0.0] * 6, max_features=1, max_iter=12).fit(X, Y)
    assert bits(free) == bits(MiserRegressor(costs=[0.0] * 6, max_iter=12).fit(X, Y))
    assert set(first.nodes["feature"]) != set(last.nodes["feature"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "constraint", ["pairwise", "no_interactions", [{0, 1}], [[0, 3], (1, 2, 3)]], ids=str
)
def test_features_meet_as_in_hist_gradient_boosting(constraint):
    settings = {"max_iter": 20, "max_depth": 3, "min_samples_leaf": 5, "early_stopping": False}
    ours = MiserRegressor(**settings, interaction_cst=constraint).fit(X, Y)
    theirs = HistGradientBoostingRegressor(
        **settings, interaction_cst=constraint, max_leaf_nodes=None
    ).fit(X, Y)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=1e-4, atol=1e-4)
    sizes = {len(path) for path in all_paths(ours)}
    free = MiserRegressor(**settings).fit(X, Y)
    assert max(len(path) for path in all_paths(free)) == 3
    if isinstance(constraint, str):
        assert max(sizes) == {"pairwise": 2, "no_interactions": 1}[constraint]


def test_sets_of_names():
    frame = pd.DataFrame(X, columns=list("abcdef"))
    named = regressor(interaction_cst=[{"a", "b"}, ["c", "d", "e", "f"]]).fit(frame, Y)
    assert bits(named) == bits(regressor(interaction_cst=[{0, 1}]).fit(X, Y))


def test_a_continued_fit_keeps_its_constraints_and_may_change_its_lots():
    model = regressor(interaction_cst="pairwise", warm_start=True, max_iter=3).fit(X, Y)
    model.set_params(max_iter=6, subsample=0.5, max_features=0.5, shopping_interval=2).fit(X, Y)
    assert model.n_iter_ == 6
    with pytest.raises(ValueError, match="interaction_cst has changed"):
        model.set_params(max_iter=7, interaction_cst=None).fit(X, Y)


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        ([{0, 6}], "interaction_cst has 6, but X has 6 features"),
        ([{0, -1}], "interaction_cst has -1, but X has 6 features"),
        ([{0.5}], "interaction_cst has 0.5, but X has 6 features"),
        ([[True, False]], "interaction_cst has True, but X has 6 features"),
        ([{"a"}], "interaction_cst names 'a', which is not a column of X"),
        ([0, 1], r"interaction_cst must hold sets of features, got 0 in \[0, 1\]"),
        (["ab"], r"interaction_cst must hold sets of features, got 'ab' in \['ab'\]"),
    ],
    ids=str,
)
def test_sets_of_features_that_are_none(constraint, message):
    with pytest.raises(ValueError, match=message):
        regressor(interaction_cst=constraint).fit(X, Y)
