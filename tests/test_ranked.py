"""Cascades for ranking: who goes on within a query, and what estimators promise of it."""

import itertools
import pickle
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.utils.estimator_checks import estimator_checks_generator

from greedymiser import (
    BudgetWarning,
    CostModel,
    GatedRanker,
    MiserClassifier,
    MiserRanker,
    load,
    save,
    tradeoff_curve,
)
from greedymiser.model.exit_rules import FirstOfQuery, places_of
from greedymiser.on_demand import OnDemandPredictor, Sources
from random_examples import examples

QUICK = {"max_iter": 20, "learning_rate": 0.3, "n_jobs": 1}
COSTS = [1.0, 10.0, 5.0]


def queries_of(n_queries=60, seed=0, size=12):
    """Two features that matter, of which the second is expensive; the third does not matter."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, size + 1, n_queries)
    qid = np.repeat(np.arange(n_queries), sizes)
    X = rng.standard_normal((len(qid), 3))
    y = np.clip(np.round(X[:, 0] + X[:, 1]), 0, 4)
    return X, y, qid


def ranker(**params):
    return MiserRanker(costs=COSTS, **{**QUICK, **params})


@pytest.fixture(scope="module")
def learned():
    X, y, qid = queries_of(120)
    return GatedRanker(ranker(), budget=6.0).fit(X, y, qid=qid), X, y, qid


# -- who goes on ----------------------------------------------------------------------------------


def test_places_are_counted_in_each_query():
    scores = np.array([0.1, 0.9, 0.5, 3.0, 3.0, 2.0, 7.0])
    starts = np.array([0, 3, 6, 7])
    assert places_of(scores, starts).tolist() == [3, 1, 2, 1, 2, 3, 1]
    assert places_of(scores, None).tolist() == [7, 5, 6, 2, 3, 4, 1]
    assert places_of(np.empty(0), np.array([0])).tolist() == []


def test_what_is_no_number_comes_last():
    assert places_of(np.array([np.nan, 1.0, -np.inf, 2.0]), None).tolist() == [4, 2, 3, 1]


def test_the_first_of_each_query_go_on():
    rule = FirstOfQuery((2, 1))
    raw, starts = np.array([[1.0, 3.0, 2.0, 5.0, 5.0, 5.0]]), np.array([0, 3, 6])
    assert rule.stays(raw, 0, starts).tolist() == [False, True, True, True, True, False]
    assert rule.stays(raw, 1, starts).tolist() == [False, True, False, True, False, False]
    assert rule.because(1) == "it is not among the first 1 of its query"


@given(st.lists(st.lists(st.integers(-3, 3), max_size=8), min_size=1, max_size=8), st.data())
@examples(200)
def test_a_query_pays_for_its_first_documents_and_no_others(queries, data):
    scores = np.array([score for query in queries for score in query], dtype=np.float64)
    starts = np.append(0, np.cumsum([len(query) for query in queries])).astype(np.intp)
    few = data.draw(st.integers(1, 8))
    more = data.draw(st.integers(few, 9))
    first, further = (FirstOfQuery((k,)).stays(scores[None], 0, starts) for k in (few, more))
    assert (first <= further).all()  # whoever is among the first few is among more of them
    for a, b in itertools.pairwise(starts.tolist()):
        best = sorted(range(a, b), key=lambda i: (-scores[i], i))[:few]
        assert np.flatnonzero(first[a:b]).tolist() == sorted(i - a for i in best)


# -- the estimator --------------------------------------------------------------------------------


def test_so_many_documents_of_each_query_pay(learned):
    model, X, _, qid = learned
    (places,) = model.places_
    costs = pd.Series(model.prediction_costs(X, qid))
    assert set(costs) == {1.0, 11.0}
    paid = (costs > 1.0).groupby(qid).sum()
    size = pd.Series(qid).groupby(qid).size()
    assert (paid == np.minimum(size, places)).all()
    assert costs.mean() <= 6.5
    assert model.cost_ == pytest.approx(costs.mean(), rel=0.1)
    assert model.cost_max_ == 11.0


def test_those_that_go_on_have_the_score_of_the_larger_set(learned):
    model, X, _, qid = learned
    small, large = (stage.ensemble for stage in model.predictor_.stages)
    assert small.features == [0]
    assert large.features == [0, 1]
    first, last = model.truncate(1).predict(X), model.estimator_.predict(X)
    on = model.prediction_costs(X, qid) > 1.0
    scores = np.where(on, last, first)
    among, ahead = (
        replace(model.predictor_, rule=FirstOfQuery(model.places_, stay_ahead)).predict(X, qid)
        for stay_ahead in (False, True)
    )
    assert np.array_equal(among, scores)
    for query in np.unique(qid):
        there, gone = (qid == query) & on, (qid == query) & ~on
        assert np.array_equal(ahead[there], scores[there])
        if gone.any():
            assert first[there].min() >= first[gone].max()
            assert ahead[there].min() > ahead[gone].max()
            assert np.ptp(ahead[gone] - scores[gone]) < 1e-9  # they are moved as one
    chosen = ahead if model.predictor_.rule.stay_ahead else among
    assert np.array_equal(model.predict(X, qid), chosen)


def test_it_is_better_than_the_small_set_and_cheaper_than_the_large(learned):
    model = learned[0]
    new, y_new, qid_new = queries_of(80, seed=1)
    small = model.truncate(1)
    assert small.n_iter_ == 1
    assert small.places_ == ()
    assert model.score(new, y_new, qid=qid_new) > small.score(new, y_new, qid=qid_new) + 0.05
    assert model.prediction_costs(new, qid_new).mean() < model.estimator_.cost_
    with pytest.raises(ValueError, match="n_iter must lie between 1 and 2, got 3"):
        model.truncate(3)


def test_queries_may_lie_anywhere(learned):
    model, X, _, qid = learned
    # The documents of a query keep their order, by which equal scores are told apart.
    shuffled, order = np.random.default_rng(0).permutation(qid), np.empty(len(qid), dtype=np.intp)
    for query in np.unique(qid):
        order[shuffled == query] = np.flatnonzero(qid == query)
    assert np.array_equal(model.predict(X[order], qid[order]), model.predict(X, qid)[order])
    left = model.predictor_.leaving_stages(X, qid)
    assert np.array_equal(model.predictor_.leaving_stages(X[order], qid[order]), left[order])


def test_without_queries_all_rows_are_one(learned):
    model, X, _, _ = learned
    assert np.count_nonzero(model.prediction_costs(X) > 1.0) == model.places_[0]
    with pytest.raises(ValueError, match="qid has 3 entries, but X has"):
        model.predict(X, [1, 2, 3])


def test_a_protocol_and_a_receipt_tell_of_it(learned):
    model, X, _, qid = learned
    protocol = model.protocol(X, qid)
    assert f"with a place among the first {model.places_[0]} of the query: feature 1" in str(
        protocol
    )
    assert protocol.mean_cost == pytest.approx(model.prediction_costs(X, qid).mean())
    assert [line.price for line in model.receipt()] == [1.0, 10.0]
    assert model.kinds_ == ("place",)
    assert model.notes_ == ()


@pytest.fixture(scope="module")
def family():
    """A fitted model, and the cascades that it chose from."""
    kept = {}

    class Keeping(GatedRanker):
        def _chosen(self, family, schema):
            kept["given"] = family, schema
            return super()._chosen(family, schema)

    X, y, qid = queries_of(100)
    return Keeping(ranker()).fit(X, y, qid=qid), *kept["given"]


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=5))
@examples(60)
def test_a_larger_tradeoff_never_asks_for_more(family, tradeoffs):
    model, cascades, schema = family
    costs = []
    for tradeoff in sorted(tradeoffs):
        chain = clone(model).set_params(tradeoff=tradeoff)._chosen(cascades, schema)
        costs.append(chain.predictor(1).cost_)
    assert costs == sorted(costs, reverse=True)


def test_an_immense_tradeoff_buys_nothing_and_none_buys_what_is_best(family):
    model, cascades, schema = family
    costs = {}
    for tradeoff in (0.0, 1e9):
        chain = clone(model).set_params(tradeoff=tradeoff)._chosen(cascades, schema)
        costs[tradeoff] = chain.predictor(1).cost_
    assert costs[1e9] == 0.0
    assert costs[0.0] >= 11.0


@pytest.mark.parametrize("limit", [0.5, 5.0, 11.0])
def test_no_document_ever_pays_more_than_the_row_budget(limit):
    X, y, qid = queries_of(80)
    model = GatedRanker(ranker(), row_budget=limit)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BudgetWarning)
        model.fit(X, y, qid=qid)
    new, _, qid_new = queries_of(80, seed=1)
    assert model.prediction_costs(new, qid_new).max() <= limit
    assert model.cost_max_ <= limit


def test_trees_are_paid_in_every_state():
    X, y, qid = queries_of(100)
    base = MiserRanker(costs=CostModel(COSTS, tree_cost=0.01), **QUICK)
    model = GatedRanker(base, budget=6.0).fit(X, y, qid=qid)
    trees = [stage.n_trees for stage in model.predictor_.stages]
    assert len(trees) == 2
    costs = model.prediction_costs(X, qid)
    assert set(costs.round(9)) == {round(1 + 0.01 * trees[0], 9), round(11 + 0.01 * trees[1], 9)}
    assert model.cost_ <= 6.0


@pytest.mark.parametrize("loss", ["lambdamart", "squared_error"])
@pytest.mark.parametrize("scoring", [None, "ndcg@3"])
def test_losses_and_scores(loss, scoring):
    X, y, qid = queries_of(80)
    weight = np.random.default_rng(0).uniform(0.5, 2.0, len(y))
    X[::7, 0] = np.nan
    model = GatedRanker(ranker(loss=loss, scoring=scoring), budget=6.0)
    model.fit(X[:400], y[:400], weight[:400], qid=qid[:400], X_val=X[400:], y_val=y[400:],
              sample_weight_val=weight[400:], qid_val=qid[400:])  # fmt: skip
    assert model.prediction_costs(X[400:], qid[400:]).mean() <= 6.0
    assert np.isfinite(model.predict(X, qid)).all()


def test_data_frames_and_names():
    X, y, qid = queries_of(80)
    frame = pd.DataFrame(X, columns=["click", "crawl", "spare"])
    base = MiserRanker(costs={"click": 1.0, "crawl": 10.0, "spare": 5.0}, **QUICK)
    model = GatedRanker(base, budget=6.0).fit(frame, y, qid=qid)
    assert model.features_used_ == ["click", "crawl"]
    assert list(model.feature_names_in_) == ["click", "crawl", "spare"]
    assert "of the query: crawl (10)" in str(model.protocol(frame, qid))


@pytest.mark.parametrize(
    ("n_queries", "size", "note"),
    [
        (1, 12, "gates need at least 100 rows, got"),
        (4, 120, "there are too few queries to be divided"),
    ],
)
def test_too_little_to_learn_from_is_told(n_queries, size, note):
    X, y, qid = queries_of(n_queries, size=size)
    model = GatedRanker(ranker(min_samples_leaf=2)).fit(X, y, qid=qid)
    assert note in model.notes_[0]
    assert model.places_ == ()
    assert np.isfinite(model.predict(X, qid)).all()


def test_one_query_is_told():
    X, y, _ = queries_of(40)
    model = GatedRanker(ranker()).fit(X, y)
    assert model.notes_ == ("no rows can be set aside to choose by: queries are too few",)


def test_a_score_that_is_not_of_the_order_is_told():
    X, y, qid = queries_of(60)
    model = GatedRanker(ranker(loss="squared_error", scoring="r2")).fit(X, y, qid=qid)
    assert 'such as scoring="ndcg@5"' in model.notes_[0]


def test_labels_that_are_all_alike_are_no_error():
    X, _, qid = queries_of(60)
    model = GatedRanker(ranker()).fit(X, np.ones(len(X)), qid=qid)
    assert model.cost_ == 0.0


def test_mistakes_are_named():
    X, y, qid = queries_of(30)
    with pytest.raises(TypeError, match="GatedRanker needs a MiserRanker"):
        GatedRanker(MiserClassifier()).fit(X, y, qid=qid)
    with pytest.raises(ValueError, match="given together, but y_val is missing"):
        GatedRanker(ranker()).fit(X, y, qid=qid, X_val=X)
    with pytest.raises(ValueError, match="qid"):
        GatedRanker(ranker()).fit(X, y, qid=qid[:-1])
    assert "gate" not in GatedRanker().get_params()


CHECKS = [
    pytest.param(estimator, check, id=getattr(check, "func", check).__name__)
    for estimator, check in estimator_checks_generator(GatedRanker(MiserRanker(max_iter=5)))
]


@pytest.mark.slow
@pytest.mark.parametrize(("estimator", "check"), CHECKS)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


# -- files and services ---------------------------------------------------------------------------


def test_files_and_pickles_hold_it(learned, tmp_path):
    model, X, _, qid = learned
    save(model, tmp_path / "ranker.miser")
    for again in (load(tmp_path / "ranker.miser"), pickle.loads(pickle.dumps(model))):
        assert np.array_equal(again.predict(X, qid), model.predict(X, qid))
        assert np.array_equal(again.prediction_costs(X, qid), model.prediction_costs(X, qid))
        assert again.cost_ == model.cost_
        assert str(again.protocol(X, qid)) == str(model.protocol(X, qid))


def test_a_query_is_served_on_demand(learned):
    model, X, _, qid = learned
    asked = []

    def dear(raw):
        asked.append(raw)
        return X[raw, 1]

    sources = Sources()
    sources.add(lambda raw: X[raw, 0], ["cheap"], name="cheap")
    sources.add(dear, ["dear"], name="dear")
    sources.add(lambda raw: 0.0, ["spare"], name="spare")
    served = OnDemandPredictor(model, sources)
    few = np.flatnonzero(qid < 5)
    said, receipts = served.predict(few.tolist(), qid=qid[few], return_receipts=True)
    assert np.array_equal(said, model.predict(X[few], qid[few]))
    assert [r.cost for r in receipts] == model.prediction_costs(X[few], qid[few]).tolist()
    on = model.prediction_costs(X[few], qid[few]) > 1.0
    assert sorted(asked) == few[on].tolist()
    # One request is one query unless something else is said.
    one = np.flatnonzero(qid == 3)
    assert np.array_equal(served.predict(one.tolist()), model.predict(X[one]))


# -- on the curve ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def curve():
    X, y, qid = queries_of(140)
    learn = qid < 90
    given = {"X_val": X[~learn], "y_val": y[~learn], "qid_val": qid[~learn], "qid": qid[learn]}
    model = ranker(charge="row")
    found = tradeoff_curve(model, X[learn], y[learn], tradeoffs=4, scoring="ndcg@5", **given)
    return found, X[~learn], y[~learn], qid[~learn]


def test_cascades_are_candidates_of_the_row_curve(curve):
    found, X, y, qid = curve
    points = found.points
    positions = np.flatnonzero(points["found_by"] == "gates").tolist()
    assert positions
    for i in positions:
        model, point = found.models[i], points.iloc[i]
        assert isinstance(model, GatedRanker)
        assert model.prediction_costs(X, qid).mean() == pytest.approx(point["cost"])
        assert model.score(X, y, qid=qid) == pytest.approx(point["score"])
    best = found.best(6.0, train=False)
    assert isinstance(best, GatedRanker)
    assert best.prediction_costs(X, qid).mean() <= 6.0


def test_a_curve_of_rankers_is_saved_with_its_cascades(curve, tmp_path):
    found, X, _, qid = curve
    save(found, tmp_path / "curve.miser")
    family = load(tmp_path / "curve.miser")
    best = found.best(6.0, train=False)
    assert np.array_equal(family.best(6.0).predict(X, qid), best.predict(X, qid))
