"""NDCG over many queries."""

import itertools
import math

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st

import naive
from experiments.cronus import Cronus
from greedymiser import EarlyExitRanker, MiserRanker
from greedymiser.losses.ndcg import FEW_PLACES, judge, ndcg_per_query, ndcg_score, query_order

# Few distinct scores, so that there are ties; labels as in LETOR.
documents = st.lists(st.tuples(st.integers(0, 4), st.sampled_from([-1.5, -0.0, 0.0, 0.3, 2.0])))


def test_ndcg_by_hand():
    # Gains 3, 0, 1 in this order; ideally 3, 1, 0.
    found = 3 / math.log2(2) + 1 / math.log2(4)
    ideal = 3 / math.log2(2) + 1 / math.log2(3)
    labels, scores = [2, 0, 1], [0.9, 0.5, 0.1]
    assert ndcg_score(labels, scores, [7, 7, 7]) == pytest.approx(found / ideal)
    assert ndcg_score(labels, scores, [7, 7, 7], k=1) == 1.0
    assert ndcg_score(labels, scores, [7, 7, 7], k=2) == pytest.approx(3 / ideal)


def test_ties_share_their_places():
    # One relevant document among three equal ones is first, second or third.
    expected = (1 + 1 / math.log2(3) + 1 / 2) / 3
    for labels in ([1, 0, 0], [0, 1, 0], [0, 0, 1]):
        assert ndcg_score(labels, [0.0, 0.0, 0.0], [1, 1, 1]) == pytest.approx(expected)
    # At k = 2 the third place counts for nothing.
    expected = (1 + 1 / math.log2(3)) / 3
    assert ndcg_score([0, 1, 0], [5.0, 5.0, 5.0], [1, 1, 1], k=2) == pytest.approx(expected)


@given(
    st.lists(documents.filter(lambda query: 1 <= len(query) <= 5), min_size=1, max_size=4),
    st.integers(1, 7),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_ndcg_is_expected_over_the_orders_of_ties(queries, k, no_relevant):
    plain = [
        naive.ndcg([label for label, _ in query], [score for _, score in query], k, no_relevant)
        for query in queries
    ]
    labels, scores = np.array([pair for query in queries for pair in query], dtype=float).T
    qid = np.repeat(np.arange(len(queries)), [len(query) for query in queries])
    starts = np.cumsum([0, *(len(query) for query in queries)])
    found = ndcg_per_query(labels, scores, starts, k, no_relevant)
    np.testing.assert_allclose(found, plain, rtol=1e-12)
    mean = ndcg_score(labels, scores, qid, k=k, no_relevant=no_relevant)
    assert mean == pytest.approx(sum(plain) / len(plain), rel=1e-12)


@given(
    st.lists(st.integers(1, 2 * FEW_PLACES), min_size=1, max_size=3),
    st.integers(1, 2 * FEW_PLACES),
    st.integers(1, 200),
    st.sampled_from([1.0, 0.37]),
    st.integers(0, 2**32 - 1),
)
def test_ndcg_of_long_queries(sizes, k, levels, unit, seed):
    # Many places are filled by sorting; fractions of labels have gains that are not whole.
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    labels, scores = unit * rng.integers(0, 5, n), rng.integers(0, levels, n) / 8
    starts = np.cumsum([0, *sizes])
    found = ndcg_per_query(labels, scores, starts, k)
    for q, (start, stop) in enumerate(itertools.pairwise(starts)):
        query = labels[start:stop].tolist(), scores[start:stop].tolist()
        assert found[q] == pytest.approx(naive.ndcg_with_shared_places(*query, k), rel=1e-12)


@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_ndcg_does_not_depend_on_the_order_of_rows(seed, k):
    rng = np.random.default_rng(seed)
    labels, scores = 0.3 * rng.integers(0, 9, 60), rng.integers(0, 6, 60) / 2
    starts = np.array([0, 25, 26, 60])
    order = np.concatenate(
        [rng.permutation(np.arange(*ends)) for ends in itertools.pairwise(starts)]
    )
    found = ndcg_per_query(labels[order], scores[order], starts, k)
    assert found.tolist() == ndcg_per_query(labels, scores, starts, k).tolist()


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_mean_ndcg_does_not_depend_on_the_order_of_queries(seed, weighted):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 8, 30)
    labels, scores = rng.integers(0, 3, sizes.sum()), rng.standard_normal(sizes.sum())
    qid = np.repeat(np.arange(30), sizes)
    weight = rng.uniform(1, 2, len(qid)) if weighted else None
    found = ndcg_score(labels, scores, rng.permutation(30)[qid], k=3, sample_weight=weight)
    assert found == ndcg_score(labels, scores, qid, k=3, sample_weight=weight)


def test_labels_are_judged_once():
    labels, starts = np.array([2.0, 0.0, 1.0, 0.0, 0.0]), np.array([0, 3, 5])
    judged = judge(labels, starts, 2)
    # Gains 3 and 1 in the best order, in units of a power of two.
    unit = judged.gain[0] / 3
    assert judged.ideal[0] / unit == pytest.approx(3 + 1 / math.log2(3))
    assert judged.ideal[1] == 0.0
    for scores in ([1.0, 2.0, 3.0, 4.0, 5.0], [5.0, 1.0, 1.0, 1.0, 2.0]):
        found = judged.ndcg(np.array(scores), no_relevant=0.25)
        assert found.tolist() == ndcg_per_query(labels, np.array(scores), starts, 2, 0.25).tolist()
    assert judged.ndcg(np.array([5.0, 1.0, 2.0, 0.0, 0.0])).tolist() == [1.0, 1.0]


def test_scores_that_are_not_numbers_come_last():
    labels, starts = np.array([1.0, 0.0, 0.0]), np.array([0, 3])
    found = ndcg_per_query(labels, np.array([np.nan, -5.0, 2.0]), starts, 3)
    assert found[0] == pytest.approx(1 / math.log2(4))


def test_empty_queries_have_no_relevant_documents():
    labels = np.array([1.0, 2.0])
    found = ndcg_per_query(labels, labels, np.array([0, 0, 2, 2]), 5, no_relevant=0.5)
    assert found.tolist() == [0.5, 1.0, 0.5]


def test_what_cannot_be_judged_is_an_error():
    two = np.array([1.0, 0.0])
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        judge(two, np.array([0, 2]), 0)
    for starts in ([0, 1], [0, 3], [1, 2], [0, 2, 1, 2]):
        with pytest.raises(ValueError, match="starts must rise from 0 to 2, got"):
            judge(two, np.array(starts), 1)
    for label in (np.nan, np.inf, 1024.0):
        with pytest.raises(ValueError, match=f"must be finite and below 1024, got {label:g}"):
            judge(np.array([1.0, label]), np.array([0, 2]), 1)
    with pytest.raises(ValueError, match=r"score must have shape \(2,\), got \(3,\)"):
        judge(two, np.array([0, 2]), 1).ndcg(np.zeros(3))


def test_large_labels_do_not_overflow():
    labels = np.array([1000.0, 999.0, 0.0])
    found = ndcg_per_query(labels, np.array([1.0, 2.0, 3.0]), np.array([0, 3]), 3)
    assert found[0] == pytest.approx(
        (1 / math.log2(4) + 0.5 / math.log2(3)) / (1 + 0.5 / math.log2(3))
    )


@given(documents.filter(lambda query: len(query) >= 2), st.integers(1, 10))
def test_ndcg_agrees_with_scikit_learn_on_one_query(query, k):
    labels, scores = np.array(query, dtype=float).T
    if not labels.any():
        labels[0] = 1.0
    # scikit-learn takes its gains as they are; ours are 2^label - 1.
    expected = sklearn.metrics.ndcg_score([2**labels - 1], [scores], k=k)
    assert ndcg_score(labels, scores, np.zeros(len(query)), k=k) == pytest.approx(expected)


def test_queries_without_relevant_documents():
    labels, scores, qid = [0, 0, 1, 0], [0.2, 0.1, 0.9, 0.8], [1, 1, 2, 2]
    assert ndcg_score(labels, scores, qid) == 1.0
    assert ndcg_score(labels, scores, qid, no_relevant=0.0) == 0.5
    assert ndcg_score([0, 0], [0.2, 0.1], [1, 1], no_relevant=0.25) == 0.25


def test_queries_of_one_size_count_by_their_weight():
    # The first query is perfect, the second has its only relevant document in second place.
    labels, scores, qid = [1, 0, 1, 0], [0.9, 0.1, 0.1, 0.9], [0, 0, 1, 1]
    second = 1 / math.log2(3)
    assert ndcg_score(labels, scores, qid) == pytest.approx((1 + second) / 2)
    for weight in ([3, 3, 1, 1], [4, 2, 2, 0], [30, 30, 10, 10]):
        found = ndcg_score(labels, scores, qid, sample_weight=weight)
        assert found == pytest.approx((3 + second) / 4)
    assert ndcg_score(labels, scores, qid, sample_weight=[1, 1, 0, 0]) == 1.0


@given(st.randoms(use_true_random=False), st.booleans())
def test_rows_of_a_query_need_not_be_adjacent(random, weighted):
    rng = np.random.default_rng(0)
    qid = np.repeat([5, 2, 9], [4, 3, 5])
    labels, scores = rng.integers(0, 3, 12), rng.integers(0, 4, 12) / 2
    weight = rng.uniform(1, 2, 12) if weighted else None
    order = list(range(12))
    random.shuffle(order)
    shuffled = ndcg_score(
        labels[order],
        scores[order],
        qid[order],
        sample_weight=None if weight is None else weight[order],
    )
    together = ndcg_score(labels, scores, qid, sample_weight=weight)
    assert shuffled == pytest.approx(together, rel=1e-14)


def test_query_order_brings_queries_together_and_keeps_their_rows_in_order():
    order, starts = query_order(["b", "a", "b", "c", "a", "b"])
    assert order.tolist() == [1, 4, 0, 2, 5, 3]
    assert starts.tolist() == [0, 2, 5, 6]


def test_query_order_of_queries_that_lie_together_changes_nothing():
    order, starts = query_order([1, 1, 3, 8, 8])
    assert order.tolist() == [0, 1, 2, 3, 4]
    assert starts.tolist() == [0, 2, 3, 5]


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        ndcg_score([1, 0], [0.5, 0.2], [1, 1, 1])


@pytest.mark.parametrize("scale", [1.0, 7.0])
def test_equal_weights_are_no_weights(scale):
    labels, scores, qid = [1, 0, 0, 1, 0], [0.1, 0.2, 0.3, 0.9, 0.1], [0, 0, 0, 1, 1]
    weighted = ndcg_score(labels, scores, qid, sample_weight=np.full(5, scale))
    assert weighted == pytest.approx(ndcg_score(labels, scores, qid))


def test_tied_infinities_share_their_places():
    ties = [np.inf, np.inf]
    assert ndcg_score([1, 0], ties, [0, 0]) == ndcg_score([0, 1], ties, [0, 0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_true": [1, -2]}, "y_true must be between 0 and 1000, got -2 in row 1"),
        ({"y_true": [np.nan, 0]}, "y_true must be between 0 and 1000, got nan in row 0"),
        ({"y_true": [2000, 0]}, "y_true must be between 0 and 1000, got 2000 in row 0"),
        ({"y_score": [0.1, np.nan]}, "y_score must be a number, got nan in row 1"),
        ({"qid": [0.0, np.nan]}, "qid must not be NaN"),
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"k": np.nan}, "k must be at least 1, got nan"),
        ({"sample_weight": [1, -1]}, "sample_weight must be between 0 and .*, got -1 in row 1"),
        ({"sample_weight": [1, np.inf]}, "sample_weight must be between .*, got inf in row 1"),
        ({"sample_weight": [0, 0]}, "sample_weight must not be 0 for every row"),
        ({"y_true": [], "y_score": [], "qid": []}, "y_true must have at least one row"),
    ],
)
def test_what_is_no_score_is_refused(changes, message):
    given = {"y_true": [1, 0], "y_score": [0.2, 0.1], "qid": [0, 0]}
    with pytest.raises(ValueError, match=message):
        ndcg_score(**{**given, **changes})


def test_a_ranker_says_what_queries_without_relevant_documents_count():
    X = np.arange(8.0).reshape(-1, 1)
    y, qid = np.array([0, 0, 0, 0, 0, 1, 0, 2]), np.repeat([0, 1], 4)
    model = MiserRanker(max_iter=2, min_samples_leaf=1).fit(X, y, qid=qid)
    exits = EarlyExitRanker(model).fit(X, y, qid=qid)
    cronus = Cronus(MiserRanker(loss="squared_error", max_iter=2, min_samples_leaf=1)).fit(
        X, y, qid=qid
    )
    for ranker in (model, exits, cronus):
        scores = [ranker.score(X, y, qid=qid, no_relevant=value) for value in (0.0, 0.5, 1.0)]
        np.testing.assert_allclose(np.diff(scores), 0.25)
        assert ranker.score(X, y, qid=qid) == scores[-1]


@pytest.mark.parametrize("qid", [[1, None], [1, "a"]])
def test_queries_that_have_no_order(qid):
    with pytest.raises(TypeError, match=r"qid mixes values that have no order: \['"):
        ndcg_score([1, 0], [0.2, 0.1], np.array(qid, dtype=object))
    with pytest.raises(TypeError, match=r"qid mixes values that have no order: \['"):
        MiserRanker().fit([[1.0], [2.0]], [1, 0], qid=np.array(qid, dtype=object))
