"""Functions whose every bit is known, and sums that are rounded once."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numba import njit

from greedymiser._core import arithmetic
from greedymiser._core.arithmetic import add_exactly, exact_sum, new_sums, rounded
from random_examples import examples


def vectorised(name):
    function = getattr(arithmetic, name)

    @njit(error_model="numpy")
    def apply(values, out):
        for i in range(values.size):
            out[i] = function(values[i])

    def call(values):
        values = np.asarray(values, dtype=float)
        out = np.empty_like(values)
        apply(values, out)
        return out

    return call


exp, log, sigmoid, softplus = map(vectorised, ("exp", "log", "sigmoid", "softplus"))

WIDE = np.longdouble


def ulps(found, exact):
    """Distance in units in the last place of the nearest double."""
    nearest = np.asarray(exact, dtype=float)
    return np.max(np.abs((found - exact) / np.spacing(np.abs(nearest))))


@pytest.mark.skipif(np.finfo(WIDE).nmant <= 52, reason="no wider float to compare with")
def test_functions_are_within_three_units_in_the_last_place():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-700, 700, 50_000), rng.standard_normal(50_000)])
    assert ulps(exp(x), np.exp(x.astype(WIDE))) < 1.5
    assert ulps(sigmoid(x), 1 / (1 + np.exp(-x.astype(WIDE)))) < 3
    assert ulps(softplus(x), np.logaddexp(0, x.astype(WIDE))) < 3
    y = np.concatenate([np.exp(x), rng.uniform(0.5, 2.0, 50_000)])
    assert ulps(log(y), np.log(y.astype(WIDE))) < 1.5


def test_ends_of_the_range():
    with np.errstate(over="ignore"):
        x = np.array([-np.inf, -1e4, -745.1, -744.0, -709.0, 0.0, 709.7, 709.79, 1e4, np.inf])
        assert exp(x).tolist() == np.exp(x).tolist()
    assert math.isnan(exp([math.nan])[0])
    assert log([1.0]).tolist() == [0.0]
    assert log([5e-324, 1e-310, 1.7e308]) == pytest.approx(np.log([5e-324, 1e-310, 1.7e308]))
    assert sigmoid([-1e4, 0.0, 1e4]).tolist() == [0.0, 0.5, 1.0]
    assert softplus([-800.0, 800.0]).tolist() == [0.0, 800.0]


def test_single_numbers_and_vectors_have_the_same_bits():
    """A loop that LLVM makes vectors of, and one that it cannot."""
    x = np.random.default_rng(1).standard_normal(1000) * 20
    for function in (exp, sigmoid, softplus):
        alone = np.array([function(x[i : i + 1])[0] for i in range(len(x))])
        assert function(x).tobytes() == alone.tobytes()


def test_bits_are_those_of_every_machine():
    x = np.array([-30.5, -2.0, -0.1, 1e-8, 0.3, 1.0, 7.25, 50.0])
    assert [v.hex() for v in exp(x)] == EXP
    assert [v.hex() for v in log(np.abs(x))] == LOG


# Plain products and sums in the same order, by hand, in Python's floats.
def exp_by_hand(x):
    shifted = x * 1.4426950408889634 + 6755399441055744.0
    k = shifted - 6755399441055744.0
    r = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10
    p = 1.0 / math.factorial(13)
    for n in range(12, -1, -1):
        p = p * r + 1.0 / math.factorial(n)
    return math.ldexp(p, int(k))


def log_by_hand(x):
    mantissa, k = math.frexp(x)
    if mantissa < math.sqrt(0.5):
        mantissa, k = 2 * mantissa, k - 1
    f = mantissa - 1.0
    s = f / (2.0 + f)
    z = s * s
    p = 1.0 / 21
    for n in range(19, 1, -2):
        p = p * z + 1.0 / n
    p = p * z
    small = s * (f - 2.0 * p)
    high, low = 6.93147180369123816490e-01, 1.90821492927058770002e-10
    return k * high + (f - (small - k * low))


EXP = [exp_by_hand(v).hex() for v in (-30.5, -2.0, -0.1, 1e-8, 0.3, 1.0, 7.25, 50.0)]
LOG = [log_by_hand(v).hex() for v in (30.5, 2.0, 0.1, 1e-8, 0.3, 1.0, 7.25, 50.0)]


# -- exact sums -----------------------------------------------------------------------------------

finite = st.floats(-1e300, 1e300, allow_subnormal=True)
numbers = st.lists(st.one_of(finite, st.floats(-2.0, 2.0), st.floats(-1e-307, 1e-307)))


@examples(300)
@given(numbers)
@example([])
@example([5e-324, -5e-324, 5e-324])
@example([1e16, 1.0, -1e16])
@example([1.0, 2.0**-53, 2.0**-106])
@example([-1.0, 2.0**-60])
def test_exact_sums_are_rounded_once(values):
    assert exact_sum(np.array(values)) == math.fsum(values)


@examples(100)
@given(numbers, numbers)
def test_sums_of_parts_are_added_by_adding_their_words(one, other):
    words = new_sums(2)
    add_exactly(words[0], np.array(one))
    add_exactly(words[1], np.array(other))
    assert rounded(words.sum(axis=0)) == math.fsum([*one, *other])


@pytest.mark.parametrize("value", [1.7e308, 2.0 - 2.0**-52, -math.pi, 5e-324])
def test_exact_sums_carry(value):
    n = 3 * 1024 + 1
    assert exact_sum(np.full(n, value * 2.0**-12)) == math.fsum([value * 2.0**-12] * n)


def test_sums_of_what_is_not_finite():
    inf, nan = math.inf, math.nan
    assert exact_sum(np.array([1.0, inf, 2.0])) == inf
    assert exact_sum(np.array([1.0, -inf, 2.0])) == -inf
    assert math.isnan(exact_sum(np.array([inf, -inf])))
    assert math.isnan(exact_sum(np.array([1.0, nan, inf])))
    assert exact_sum(np.full(4, 1.7e308)) == inf
