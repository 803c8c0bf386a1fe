"""Columns of numbers become columns of small integers."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import naive
from greedymiser._core.threads import Threads
from greedymiser.data import binning
from greedymiser.data.binning import (
    LANES,
    MAX_BINS,
    BinMapper,
    integer_weights,
    merge_equal,
    midpoints,
    place_edges,
    sample_rows,
    write_bins,
)
from greedymiser.data.tables import ArrayTable
from random_examples import examples

INF = math.inf
LARGEST = np.finfo(np.float64).max

# Values that meet each other often, and the odd ones among the floats.
values = st.one_of(
    st.integers(-3, 3).map(float),
    st.sampled_from([INF, -INF, -0.0, 5e-324, -5e-324, LARGEST, -1e308, 1e308, 0.1, 0.3]),
    st.floats(allow_nan=False),
)


def binned(X, rows=None, weight=None, n_threads=1, **options):
    """A fitted mapper and the codes as an array like X."""
    mapper = BinMapper(**options)
    with Threads(n_threads) as threads:
        matrix = mapper.fit_transform(ArrayTable(X), rows, weight, threads)
    return mapper, matrix, codes_of(matrix)


def codes_of(matrix):
    return np.array(
        [
            [naive.code(matrix.codes, matrix.feature_lane, i, f) for f in range(matrix.n_features)]
            for i in range(matrix.n_rows)
        ]
    )


def edges_of(column, weight=None, **options):
    return binned(np.asarray(column, dtype=float)[:, None], weight=weight, **options)[0].cuts.edges[
        0
    ]


def placed(distinct, mass, max_bins):
    lower, upper = np.empty(max_bins - 1), np.empty(max_bins - 1)
    distinct, mass = np.array(distinct, dtype=float), np.array(mass, dtype=np.int64)
    n = place_edges(distinct, mass, max_bins, lower, upper)
    return list(zip(lower[:n].tolist(), upper[:n].tolist(), strict=True))


# -- the kernels and their twins ------------------------------------------------------------------


@given(st.lists(values, min_size=1).map(sorted), st.data())
def test_merge_equal_is_its_twin(ordered, data):
    n = len(ordered)
    shares = data.draw(st.lists(st.integers(1, 2**40), min_size=n, max_size=n))
    for given_shares, used in ((shares, shares), ([], [1] * n)):
        distinct, mass = np.empty(n), np.empty(n, dtype=np.int64)
        m = merge_equal(np.array(ordered), np.array(given_shares, dtype=np.int64), distinct, mass)
        plain = naive.merge_equal(ordered, used)
        assert distinct[:m].tolist() == plain[0]
        assert mass[:m].tolist() == plain[1]


@given(
    # Heavy values may be anywhere, several of them in a row.
    st.lists(st.one_of(st.just(1), st.integers(1, 5), st.integers(20, 500)), min_size=1),
    st.integers(2, 12),
)
def test_place_edges_is_its_twin(mass, max_bins):
    distinct = [float(i) for i in range(len(mass))]
    assert placed(distinct, mass, max_bins) == naive.place_edges(distinct, mass, max_bins)


@examples(10)
@given(st.integers(0, 2**32 - 1), st.sampled_from([200, 255]))
def test_place_edges_is_its_twin_for_many_bins(seed, max_bins):
    rng = np.random.default_rng(seed)
    mass = rng.integers(1, 4, 400) * np.where(rng.random(400) < 0.05, 300, 1)
    distinct = np.sort(rng.standard_normal(400)).tolist()
    pairs = placed(distinct, mass, max_bins)
    assert pairs == naive.place_edges(distinct, mass.tolist(), max_bins)
    assert len(pairs) < max_bins


def test_place_edges_does_not_overflow():
    # As much weight as ``integer_weights`` may hand out, in 255 bins.
    mass = [2**54 // 300] * 300
    assert placed(range(300), mass, 255) == placed(range(300), [1] * 300, 255)


@given(
    st.lists(st.one_of(values, st.just(math.nan)), min_size=1),
    st.lists(values.filter(math.isfinite), max_size=254, unique=True).map(sorted),
)
def test_write_bins_is_its_twin(column, edges):
    column = [*column, *edges]  # a value that equals an edge stays below it
    padded = np.full(MAX_BINS, INF)
    padded[: len(edges)] = edges
    out = np.empty(len(column), dtype=np.uint8)
    write_bins(np.array(column), padded, len(edges) + 1, out)
    assert out.tolist() == [naive.bin_of(x, edges) for x in column]


@pytest.mark.parametrize("n_edges", [0, 1, 2, 127, 128, 253, 254])
def test_write_bins_with_every_number_of_edges(n_edges):
    edges = np.arange(n_edges, dtype=float)
    padded = np.full(MAX_BINS, INF)
    padded[:n_edges] = edges
    column = np.array([-INF, -1.0, *edges, *(edges + 0.5), 1e9, INF, math.nan])
    out = np.empty(len(column), dtype=np.uint8)
    write_bins(column, padded, n_edges + 1, out)
    inside = list(range(n_edges))
    assert out.tolist() == [0, 0, *inside, *(i + 1 for i in inside), n_edges, n_edges, n_edges + 1]


@given(st.lists(values, min_size=2, unique=True))
def test_midpoints_are_finite_and_separate(distinct):
    distinct = sorted({*distinct, *(math.nextafter(x, INF) for x in distinct)})
    # Between -inf and the lowest float there is no room for a finite threshold.
    distinct = [x for x in distinct if x != -LARGEST]
    lower, upper = np.array(distinct[:-1]), np.array(distinct[1:])
    middle = midpoints(lower, upper)
    assert np.isfinite(middle).all()
    assert (lower <= middle).all()
    assert (middle < upper).all()


def test_midpoints_by_hand():
    lower = np.array([0.0, -INF, 1.0, -INF, LARGEST, -0.0])
    upper = np.array([3.0, 5.0, INF, INF, INF, 5e-324])
    assert midpoints(lower, upper).tolist() == [1.5, -LARGEST, 1.0, -LARGEST, LARGEST, 0.0]
    # Between neighbours half-way is rounded to one of them, and the upper one would not separate.
    neighbours = 1.0 + np.arange(4) * np.finfo(np.float64).eps
    assert midpoints(neighbours[:-1], neighbours[1:]).tolist() == neighbours[:-1].tolist()


def test_integer_weights_are_a_grid():
    assert integer_weights(np.array([1.0, 2.0, 4.0])).tolist() == [2**27, 2**28, 2**29]
    assert integer_weights(np.array([0.0, 1.0])).tolist() == [1, 2**29]
    assert integer_weights(np.array([1e-300, 1e300])).min() == 1


# -- edges ----------------------------------------------------------------------------------------


@given(st.lists(st.one_of(values, st.just(math.nan)), min_size=1), st.integers(2, 9))
def test_few_distinct_values_are_kept_apart(column, max_bins):
    distinct = sorted({x for x in column if not math.isnan(x)})
    assume(len(distinct) <= max_bins)
    assume(-LARGEST not in distinct)
    edges = edges_of(column, max_bins=max_bins)
    assert len(edges) == max(0, len(distinct) - 1)
    for edge, (lower, upper) in zip(edges, itertools.pairwise(distinct), strict=True):
        assert lower <= edge < upper


@given(st.lists(st.one_of(values, st.just(math.nan)), min_size=1), st.integers(2, 9))
def test_bins_are_few_ordered_and_finite(column, max_bins):
    mapper, matrix, codes = binned(np.array(column)[:, None], max_bins=max_bins)
    edges = mapper.cuts.edges[0].tolist()
    assert len(edges) + 1 == matrix.n_bins[0] <= max_bins
    assert all(math.isfinite(edge) for edge in edges)
    assert all(a < b for a, b in itertools.pairwise(edges))
    assert codes[:, 0].tolist() == [naive.bin_of(x, edges) for x in column]
    assert matrix.has_missing[0] == any(math.isnan(x) for x in column)


def test_255_bins_and_missing_fill_a_byte():
    column = np.append(np.arange(1000.0), math.nan)[:, None]
    _, matrix, codes = binned(column)
    assert matrix.n_bins.tolist() == [255]
    assert sorted(set(codes[:, 0])) == list(range(256))
    assert codes[-1, 0] == 255
    # Even shares: 1000 values in 255 bins.
    assert set(np.bincount(codes[:1000, 0])) == {3, 4}


def test_constant_and_empty_columns_have_one_bin():
    X = np.array([[3.0, math.nan, INF], [3.0, math.nan, INF]])
    mapper, matrix, codes = binned(X)
    assert [len(edges) for edges in mapper.cuts.edges] == [0, 0, 0]
    assert matrix.n_bins.tolist() == [1, 1, 1]
    assert matrix.has_missing.tolist() == [False, True, False]
    assert codes.tolist() == [[0, 1, 0], [0, 1, 0]]


def test_signed_zeros_share_a_bin():
    edges = edges_of([-0.0, 0.0, 1.0, -1.0])
    assert edges.tolist() == [-0.5, 0.5]


def test_infinities_have_bins_of_their_own():
    column = [-INF, -2.0, 2.0, INF]
    assert edges_of(column).tolist() == [-LARGEST, 0.0, 2.0]
    _, _, codes = binned(np.array(column)[:, None])
    assert codes[:, 0].tolist() == [0, 1, 2, 3]


def test_two_bins_cut_in_the_middle():
    assert edges_of(np.arange(10.0), max_bins=2).tolist() == [4.5]
    assert edges_of([0.0] * 7 + [1.0, 2.0, 3.0], max_bins=2).tolist() == [0.5]


def test_thresholds_are_the_edges_and_infinity_behind_the_last():
    mapper, _, _ = binned(np.array([[0.0], [2.0], [4.0]]))
    assert [mapper.cuts.threshold(0, b) for b in range(3)] == [1.0, 3.0, INF]


@pytest.mark.parametrize("end", ["low", "high", "middle"])
@pytest.mark.parametrize("weighted", [False, True])
def test_one_heavy_value_leaves_the_bins_to_the_others(end, weighted):
    # 90 % zeros: with plain quantiles nine bins of ten would be lost on them.
    rng = np.random.default_rng(0)
    others = {"low": rng.uniform(1, 2, 1000), "high": rng.uniform(-2, -1, 1000)}
    others["middle"] = np.where(rng.random(1000) < 0.5, others["low"], others["high"])
    if weighted:
        column = np.append(others[end], 0.0)
        weight = np.append(np.ones(1000), 9000.0)
    else:
        column, weight = np.append(others[end], np.zeros(9000)), None
    _, matrix, codes = binned(column[:, None], weight=weight, max_bins=64)
    per_bin = np.bincount(codes[column != 0.0, 0], minlength=matrix.n_bins[0])
    used = per_bin[per_bin > 0]
    assert len(used) >= 62
    assert used.max() <= 2 * 1000 / 63


def test_many_heavy_values_keep_bins_of_their_own():
    rng = np.random.default_rng(1)
    heavy = np.repeat([0.0, 0.2, 0.7, 1.0], 500)
    column = np.append(heavy, rng.random(500))
    _, _, codes = binned(column[:, None], max_bins=32)
    for value in (0.0, 0.2, 0.7):
        mine = codes[column == value, 0][0]
        assert (codes[column != value, 0] != mine).all()


# -- what must not matter -------------------------------------------------------------------------


def columns(rng, n, d):
    """Columns of different kinds, in turns."""
    kinds = [
        lambda: rng.standard_normal(n),
        lambda: rng.integers(0, 5, n).astype(float),
        lambda: np.where(rng.random(n) < 0.8, 0.0, rng.standard_normal(n)),
        lambda: np.where(rng.random(n) < 0.2, math.nan, rng.integers(0, 300, n)),
    ]
    return np.column_stack([kinds[f % 4]() for f in range(d)])


@pytest.mark.parametrize("max_bins", [2, 7, 16, 255])
def test_weights_are_repeated_rows(max_bins):
    rng = np.random.default_rng(2)
    X = columns(rng, 300, 8)
    weight = rng.choice([1.0, 2.0, 4.0], 300)
    weighted, _, codes = binned(X, weight=weight, max_bins=max_bins)
    repeats = weight.astype(int)
    repeated, _, repeated_codes = binned(np.repeat(X, repeats, axis=0), max_bins=max_bins)
    for one, other in zip(weighted.cuts.edges, repeated.cuts.edges, strict=True):
        assert one.tolist() == other.tolist()
    assert np.repeat(codes, repeats, axis=0).tolist() == repeated_codes.tolist()


@pytest.mark.parametrize("factor", [2.0**-20, 4.0, 1024.0])
def test_the_scale_of_weights_does_not_matter(factor):
    rng = np.random.default_rng(3)
    X, weight = columns(rng, 300, 4), rng.uniform(0.1, 3.0, 300)
    one, _, _ = binned(X, weight=weight, max_bins=20)
    other, _, _ = binned(X, weight=factor * weight, max_bins=20)
    assert [e.tolist() for e in one.cuts.edges] == [e.tolist() for e in other.cuts.edges]


def test_equal_weights_are_no_weights():
    X = columns(np.random.default_rng(4), 300, 4)
    plain, _, _ = binned(X, max_bins=20)
    weighted, _, _ = binned(X, weight=np.full(300, 0.3), max_bins=20)
    assert [e.tolist() for e in plain.cuts.edges] == [e.tolist() for e in weighted.cuts.edges]


def test_repeating_every_row_does_not_matter():
    X = columns(np.random.default_rng(5), 300, 4)
    once, _, codes = binned(X, max_bins=20)
    often, _, often_codes = binned(np.repeat(X, 4, axis=0), max_bins=20)
    assert [e.tolist() for e in once.cuts.edges] == [e.tolist() for e in often.cuts.edges]
    assert np.repeat(codes, 4, axis=0).tolist() == often_codes.tolist()


@pytest.mark.parametrize("weighted", [False, True])
def test_the_order_of_rows_does_not_matter(weighted):
    rng = np.random.default_rng(6)
    X = columns(rng, 300, 4)
    weight = rng.uniform(0.1, 3.0, 300) if weighted else None
    one, _, codes = binned(X, weight=weight, max_bins=20)
    order = rng.permutation(300)
    shuffled = None if weight is None else weight[order]
    other, _, other_codes = binned(X[order], weight=shuffled, max_bins=20)
    assert [e.tolist() for e in one.cuts.edges] == [e.tolist() for e in other.cuts.edges]
    assert codes[order].tolist() == other_codes.tolist()


def test_threads_do_not_matter():
    X = columns(np.random.default_rng(7), 200, 35)
    _, one, _ = binned(X)
    _, many, _ = binned(X, n_threads=3)
    assert one.codes.tobytes() == many.codes.tobytes()


# -- the matrix -----------------------------------------------------------------------------------


def test_transform_repeats_fit_transform():
    X = columns(np.random.default_rng(8), 100, 11)
    mapper, matrix, _ = binned(X, max_bins=13)
    again = mapper.transform(ArrayTable(X), None, Threads(1))
    assert again.codes.tobytes() == matrix.codes.tobytes()
    assert again.n_bins.tolist() == matrix.n_bins.tolist()
    assert again.has_missing.tolist() == matrix.has_missing.tolist()


def test_transform_of_other_rows_uses_the_cuts_that_were_learned():
    mapper, _, _ = binned(np.array([[0.0], [2.0], [4.0]]))
    other = np.array([[-9.0], [1.0], [1.1], [99.0], [math.nan], [INF], [-INF]])
    matrix = mapper.transform(ArrayTable(other), None, Threads(1))
    # Nothing was missing in training, but missing has its code all the same.
    assert codes_of(matrix)[:, 0].tolist() == [0, 0, 1, 2, 3, 2, 0]
    assert matrix.n_bins.tolist() == [3]
    assert matrix.has_missing.tolist() == [False]


def test_chosen_rows_are_all_that_is_seen():
    X = columns(np.random.default_rng(9), 60, 5)
    rows = np.array([50, 3, 3, 17, 40, 8, 21])
    chosen, matrix, codes = binned(X, rows=rows, max_bins=4)
    plain, _, plain_codes = binned(X[rows], max_bins=4)
    assert [e.tolist() for e in chosen.cuts.edges] == [e.tolist() for e in plain.cuts.edges]
    assert codes.tolist() == plain_codes.tolist()
    assert matrix.n_rows == len(rows)


@pytest.mark.parametrize("d", [1, 7, 8, 9, 20])
def test_eight_features_share_a_word(d):
    X = columns(np.random.default_rng(10), 30, d)
    mapper, matrix, codes = binned(X)
    n_blocks = math.ceil(d / LANES)
    assert matrix.codes.shape == (n_blocks, 30)
    assert matrix.codes.dtype == np.uint64
    assert matrix.lane_feature.tolist() == [*range(d), *[-1] * (n_blocks * LANES - d)]
    assert (matrix.n_rows, matrix.n_features) == (30, d)
    expected = [[naive.bin_of(x, mapper.cuts.edges[f]) for f, x in enumerate(row)] for row in X]
    assert codes.tolist() == expected
    # Padding lanes are zero.
    for lane in range(d, n_blocks * LANES):
        bytes_of_lane = matrix.codes[lane // LANES] >> np.uint64(8 * (lane % LANES))
        assert not (bytes_of_lane & np.uint64(255)).any()


@pytest.mark.parametrize("kept", [[], [4], [1, 9, 18], list(range(3, 20))])
def test_features_that_are_left_out_take_no_blocks(kept):
    _, matrix, codes = binned(columns(np.random.default_rng(11), 30, 20))
    few = matrix.only(np.isin(np.arange(20), kept))
    assert few.codes.shape == (max(1, math.ceil(len(kept) / LANES)), 30)
    assert few.lane_feature[: len(kept)].tolist() == kept
    assert set(few.lane_feature[len(kept) :].tolist()) <= {-1}
    assert [f for f in range(20) if few.feature_lane[f] >= 0] == kept
    said = [[naive.code(few.codes, few.feature_lane, i, f) for f in kept] for i in range(30)]
    assert said == codes[:, kept].tolist()


@examples(10)
@given(st.permutations(list(range(11))))
def test_the_layout_only_permutes_lanes(order):
    X = columns(np.random.default_rng(11), 40, 11)
    plain, matrix, codes = binned(X, categorical=[1], max_bins=9)
    moved, other, other_codes = binned(X, categorical=[1], max_bins=9, order=order)
    assert other.lane_feature[:11].tolist() == order
    assert [other.lane_feature[lane] for lane in other.feature_lane] == list(range(11))
    assert other_codes.tolist() == codes.tolist()
    assert other.n_bins.tolist() == matrix.n_bins.tolist()
    assert other.has_missing.tolist() == matrix.has_missing.tolist()
    assert other.is_categorical.tolist() == matrix.is_categorical.tolist()
    assert [e.tolist() for e in moved.cuts.edges] == [e.tolist() for e in plain.cuts.edges]


def test_categories_are_their_own_codes():
    # Codes come from the table; those that nobody has still count as categories.
    X = np.array([[4.0, 1.0], [0.0, 2.0], [math.nan, 2.0], [4.0, 3.0]])
    _, matrix, codes = binned(X, categorical=[0], max_bins=2)
    assert codes[:, 0].tolist() == [4, 0, 5, 4]
    assert matrix.n_bins[0] == 5
    assert matrix.is_categorical.tolist() == [True, False]
    assert matrix.has_missing.tolist() == [True, False]
    assert matrix.n_bins[1] == 2  # max_bins is for the numeric columns


def test_255_categories_and_missing_fill_a_byte():
    column = np.append(np.arange(255.0), math.nan)[:, None]
    _, matrix, codes = binned(column, categorical=[0])
    assert matrix.n_bins.tolist() == [255]
    assert codes[:, 0].tolist() == list(range(256))


def test_a_heavy_value_at_the_top_keeps_a_bin_to_itself():
    assert edges_of([1, 2, 3, 4, 5, 6] + [9] * 60, max_bins=4).tolist() == [2.5, 4.5, 7.5]


def test_weights_of_three_are_three_rows():
    weight = np.array([3.0, 1, 1, 3, 3, 2, 1, 3, 2, 1])
    column = np.arange(10.0)
    repeated = edges_of(np.repeat(column, weight.astype(int)), max_bins=4)
    np.testing.assert_array_equal(edges_of(column, weight, max_bins=4), repeated)


# -- more rows than cuts are learned from ---------------------------------------------------------


@pytest.fixture
def few_rows(monkeypatch):
    """Cuts are learned from 100 rows at most."""
    monkeypatch.setattr(binning, "MOST_ROWS", 100)


def test_rows_are_drawn_by_the_hash_of_their_number(few_rows):
    assert sample_rows(100, None) is None
    assert sample_rows(5000, np.arange(7, 107)) is None
    drawn = sorted(range(700), key=lambda number: naive.scrambled(number))[:100]
    assert sample_rows(700, None).tolist() == sorted(drawn)
    numbers = np.random.default_rng(0).permutation(5000)[:700]
    drawn = sorted(numbers.tolist(), key=lambda number: naive.scrambled(number))[:100]
    assert sorted(numbers[sample_rows(5000, numbers)].tolist()) == sorted(drawn)


def test_200_000_rows_are_drawn():
    assert sample_rows(200_000, None) is None
    drawn = sample_rows(200_001, None)
    assert len(np.unique(drawn)) == 200_000


@pytest.mark.parametrize("weighted", [False, True])
def test_cuts_are_those_of_the_sample(few_rows, weighted):
    rng = np.random.default_rng(0)
    X, weight = rng.standard_normal((700, 3)), rng.random(700) if weighted else None
    rows = rng.permutation(700)[:600]
    mine = None if weight is None else weight[rows]
    mapper, matrix, codes = binned(X, rows, mine, max_bins=12)
    drawn = rows[sample_rows(700, rows)]
    alone, _, _ = binned(X, drawn, None if weight is None else weight[drawn], max_bins=12)
    for one, other in zip(mapper.cuts.edges, alone.cuts.edges, strict=True):
        assert len(one) == 11
        assert one.tobytes() == other.tobytes()
    assert matrix.n_rows == 600
    expected = [np.searchsorted(mapper.cuts.edges[f], X[rows, f]) for f in range(3)]
    assert codes.T.tolist() == np.array(expected).tolist()


def test_what_only_other_rows_show_has_a_bin(few_rows):
    """A missing value, and a category."""
    X = np.zeros((700, 3))
    other = np.setdiff1d(np.arange(700), sample_rows(700, None))
    X[other[0], 0] = np.nan
    X[other[1], 1] = 2.0
    X[:, 2] = np.nan
    X[other[2], 2] = 1.0
    _, matrix, codes = binned(X, categorical={1: 3, 2: 2})
    assert matrix.has_missing.tolist() == [True, False, True]
    assert matrix.n_bins.tolist() == [1, 3, 2]
    assert codes[other[:3]].tolist() == [[1, 0, 2], [0, 2, 2], [0, 0, 1]]
