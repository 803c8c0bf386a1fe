"""Quantiles of an array, and of one that lies in parts: the same, to the last bit."""

import math
import pickle
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import naive
from greedymiser._core import quantiles
from greedymiser._core.arithmetic import SUM_WORDS, rounded
from greedymiser._core.quantiles import (
    from_places,
    places,
    quantiles_of_parts,
    tally_weights,
    weighted_quantile,
)

numbers = st.one_of(
    st.integers(-3, 3).map(float),
    st.sampled_from([-0.0, 5e-324, -5e-324, 1e200, 0.1, 0.3]),
    st.floats(-1e200, 1e200),
)
positive = st.one_of(st.integers(1, 3).map(float), st.just(0.1), st.floats(1e-9, 1e9))


@st.composite
def columns(draw, values=numbers, weighted=None):
    """An array, its weights or None, and the same in parts, some of which may be empty."""
    y = np.array(draw(st.lists(values, min_size=1, max_size=40)))
    weight = None
    if draw(st.booleans()) if weighted is None else weighted:
        size = len(y)
        weight = np.array(draw(st.lists(positive, min_size=size, max_size=size)))
    place = np.array(draw(st.lists(st.integers(0, 3), min_size=len(y), max_size=len(y))))
    parts = [(y[place == k], None if weight is None else weight[place == k]) for k in range(4)]
    return y, weight, parts


def asked(parts):
    """A way to ask parts; questions and answers travel."""

    def ask(question):
        question = pickle.loads(pickle.dumps(question))
        return pickle.loads(pickle.dumps(reduce(question.merge, map(question.answer, parts))))

    return ask


def same(one, other):
    return np.asarray(one).tobytes() == np.asarray(other).tobytes()


@given(columns(), st.sampled_from([0.01, 0.1, 0.25, 0.3, 0.5, 0.9, 0.999]))
def test_weighted_quantile_is_its_twin(case, quantile):
    y, weight, _ = case
    assert same(weighted_quantile(y, weight, quantile), naive.exact_quantile(y, weight, quantile))


@given(columns(), st.sampled_from([0.1, 0.25, 0.5, 0.9, 0.999]), st.data())
def test_quantiles_of_parts(case, quantile, data):
    y, weight, parts = case
    sizes = [len(y), data.draw(st.sampled_from([None, len(y)]))]
    # The second array is the first without its largest value, so that they need other questions.
    second = [(x[x < y.max()], None if w is None else w[x < y.max()]) for x, w in parts]
    keep = y < y.max() if (y < y.max()).any() else np.ones(len(y), dtype=bool)
    second = second if (y < y.max()).any() else parts
    few = data.draw(st.sampled_from([1, 4, quantiles.FEW]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantiles, "FEW", few)
        pairs = [list(pair) for pair in zip(parts, second, strict=True)]
        found = quantiles_of_parts(quantile, sizes, asked(pairs))
    expected = [
        weighted_quantile(y, weight, quantile),
        weighted_quantile(y[keep], None if weight is None else weight[keep], quantile),
    ]
    assert same(found, expected)


def test_order_of_rows_does_not_matter_to_weighted_quantiles():
    rng = np.random.default_rng(0)
    values, weight = rng.integers(3, size=2000).astype(float), rng.random(2000)
    # The bound lies where rounding errors of a plain running sum would decide.
    for quantile in (weight[values < 1].sum() / weight.sum(), 0.5):
        order = rng.permutation(len(values))
        one = weighted_quantile(values, weight, quantile)
        assert one == weighted_quantile(values[order], weight[order], quantile)


def test_large_arrays_take_few_questions_and_small_answers():
    rng = np.random.default_rng(1)
    y, weight = rng.lognormal(size=60_000), rng.random(60_000)
    parts = [[(y[k::3], weight[k::3])] for k in range(3)]
    answers = []

    def ask(question):
        answers.append(asked(parts)(question))
        return answers[-1]

    found = quantiles_of_parts(0.3, [len(y)], ask)
    assert found[0] == weighted_quantile(y, weight, 0.3)
    assert len(answers) <= 4
    assert max(len(pickle.dumps(answer)) for answer in answers) < 600_000


def test_sums_of_a_part_leave_room_for_those_of_others():
    weight = np.full(1000, 1.0 - 2.0**-53)
    table = np.zeros((2, 1 + SUM_WORDS), dtype=np.int64)
    tally_weights(np.arange(1000) % 2, weight, table)
    assert table[:, 0].tolist() == [500, 500]
    assert 0 <= table[:, 1:].min() <= table[:, 1:].max() < 2**32
    assert rounded(table[0, 1:]) == math.fsum(weight[::2])


@given(st.lists(st.floats(), min_size=2))
def test_places_are_the_order_of_floats(values):
    x = np.array(values)
    keys = places(x)
    back = from_places(keys)
    assert np.array_equal(back, x, equal_nan=True)
    assert not np.signbit(back[back == 0]).any()
    ordered = x[np.argsort(keys, kind="stable")]
    assert np.array_equal(ordered, np.sort(x), equal_nan=True)
