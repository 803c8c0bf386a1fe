"""Numbers in their order."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import naive
from greedymiser._core.sorting import MANY, sort_digits, sort_floats
from random_examples import examples


@examples(60)
@given(st.lists(st.floats(allow_nan=False), max_size=60), st.integers(0, 3))
def test_numbers_are_sorted_by_their_digits(values, n_nan):
    given = np.array([*values, *[math.nan] * n_nan])
    np.random.default_rng(0).shuffle(given)
    sort_digits(given)
    # Those that are no numbers come last.
    assert np.isnan(given[len(values) :]).all()
    assert given[: len(values)].tolist() == naive.sort_floats(values)


@pytest.mark.parametrize("n", [0, 1, MANY - 1, MANY, 5 * MANY])
def test_few_and_many_numbers_are_sorted_alike(n):
    values = np.random.default_rng(n).standard_normal(n)
    expected = np.sort(values)
    sort_floats(values)
    assert values.tolist() == expected.tolist()
