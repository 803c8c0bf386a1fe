"""Cuts from parts are the cuts of all rows together, to the last bit."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import naive
from greedymiser._core.inquiries import ask_here, conduct
from greedymiser._core.threads import Threads
from greedymiser.data.binning import BinMapper, pack, place_edges, weight_scale
from greedymiser.data.cutting import (
    ColumnPart,
    ColumnPieces,
    Limits,
    ask_cuts,
    mark_inside,
    simulate_edges,
)
from greedymiser.data.tables import ArrayTable

patient = settings(deadline=None)

INF = np.inf
values = st.one_of(
    st.integers(-20, 20).map(float),
    st.sampled_from([INF, -INF, -0.0, 5e-324, 1e308, -1e308, np.nan]),
    st.floats(-1.0, 1.0),
)


@pytest.fixture(scope="module")
def threads():
    with Threads(1) as team:
        yield team


def cuts_of_parts(X, weight, place, threads, limits, **options):
    """Cuts found by questions that travel, and how many those were."""
    scale = None if weight is None else weight_scale(len(X), float(weight.max()))
    parts = [
        ColumnPart(ArrayTable(X[mine]), None, None if weight is None else weight[mine], threads)
        for mine in (np.flatnonzero(place == k) for k in range(place.max() + 2))
    ]
    ask, asked = ask_here(parts), []

    def send(question):
        asked.append(question)
        answer = ask(pickle.loads(pickle.dumps(question)))
        return pickle.loads(pickle.dumps(answer))

    mapper = BinMapper(**options)
    cuts = conduct(ask_cuts(mapper, X.shape[1], scale, limits), send)
    assert mapper.cuts is cuts
    return cuts, asked


def assert_same_cuts(X, weight, place, threads, limits, **options):
    here = BinMapper(**options)
    here.fit_transform(ArrayTable(X), None, weight, threads)
    cuts, asked = cuts_of_parts(X, weight, place, threads, limits, **options)
    for one, other in zip(here.cuts.edges, cuts.edges, strict=True):
        assert one.tobytes() == other.tobytes()
    assert here.cuts.has_missing.tolist() == cuts.has_missing.tolist()
    assert here.cuts.is_categorical.tolist() == cuts.is_categorical.tolist()
    return asked


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_random_columns_in_random_parts(threads, data):
    n = data.draw(st.integers(1, 40))
    column = st.lists(values, min_size=n, max_size=n)
    X = np.array([data.draw(column), data.draw(column)]).T
    weight = None
    if data.draw(st.booleans()):
        one = st.one_of(st.integers(1, 4).map(float), st.floats(1e-3, 1e3))
        weight = np.array(data.draw(st.lists(one, min_size=n, max_size=n)))
    place = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    max_bins = data.draw(st.integers(2, 6))
    few = data.draw(st.integers(max_bins, 12))
    limits = Limits(few, data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5)))
    assert_same_cuts(X, weight, place, threads, limits, max_bins=max_bins)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_many_kinds_of_columns(threads, weighted, seed):
    rng = np.random.default_rng(seed)
    n = 3000
    heavy = np.where(rng.random(n) < 0.6, rng.integers(9, size=n), rng.standard_normal(n))
    X = np.column_stack(
        [
            rng.standard_normal(n),
            np.floor(rng.lognormal(3.0, 1.0, n)),  # many light ties, and heavier ones
            heavy,
            rng.zipf(1.5, n).astype(float),
            np.where(rng.random(n) < 0.9, np.nan, rng.random(n)),
            np.full(n, np.nan),
            rng.integers(3, size=n).astype(float),
        ]
    )
    weight = rng.lognormal(0.0, 2.0, n) if weighted else None
    place = np.sort(rng.integers(5, size=n)) if seed % 2 else rng.integers(40, size=n)
    limits = Limits(few=64, samples=40, boundaries=120)
    max_bins = (5, 16, 60)[seed % 3]
    assert_same_cuts(X, weight, place, threads, limits, max_bins=max_bins, categorical={6: 4})


def test_passes_and_bytes_are_few(threads):
    rng = np.random.default_rng(0)
    n = 300_000
    X = np.column_stack([rng.standard_normal(n), rng.integers(1000, size=n).astype(float)])
    place = rng.integers(3, size=n)
    asked = assert_same_cuts(X, None, place, threads, Limits(16384, 4096, 4096))
    assert [sorted(question.asked) for question in asked[:2]] == [[0, 1], [0]]
    assert len(asked) <= 5
    part = ColumnPart(ArrayTable(X[place == 0]), None, None, threads)
    assert max(len(pickle.dumps(question.answer(part))) for question in asked) < 400_000


def test_parts_are_packed_with_cuts_that_were_learned_elsewhere(threads):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((500, 11))
    X[rng.random(X.shape) < 0.1] = np.nan
    order = rng.permutation(11).tolist()
    place = rng.integers(3, size=len(X))
    whole = BinMapper(9, order=order).fit_transform(ArrayTable(X), None, None, threads)
    cuts, _ = cuts_of_parts(X, None, place, threads, Limits(16, 8, 32), max_bins=9)
    for k in range(3):
        rows = np.flatnonzero(place == k)
        packed = pack(ArrayTable(X), rows, cuts, order, threads)
        assert np.array_equal(packed.codes, whole.codes[:, rows])
        assert packed.lane_feature.tolist() == whole.lane_feature.tolist()
        assert packed.has_missing.tolist() == whole.has_missing.tolist()


@patient
@given(st.data())
def test_known_edges_are_those_of_place_edges(data):
    """Pieces that hide some values either give the same edges, or ask."""
    mass = np.array(data.draw(st.lists(st.integers(1, 12), min_size=8, max_size=40)))
    max_bins = data.draw(st.integers(2, 7))
    distinct = np.arange(len(mass), dtype=float)
    # Cut the values into runs: each is a piece.
    ends = data.draw(st.lists(st.booleans(), min_size=len(mass), max_size=len(mass)))
    runs = np.split(np.arange(len(mass)), np.flatnonzero(ends[:-1]) + 1)
    pieces = ColumnPieces(
        np.array([distinct[run[0]] for run in runs]),
        np.array([distinct[run[-1]] for run in runs]),
        np.array([mass[run].sum() for run in runs]),
        np.array([mass[run].max() for run in runs]),
        np.array([len(run) for run in runs]),
    )
    lower, upper = np.empty(max_bins - 1), np.empty(max_bins - 1)
    n = place_edges(distinct, mass, max_bins, lower, upper)
    found_lower, found_upper, asked = simulate_edges(pieces, max_bins)
    assert not pieces.is_single[asked].any()
    if len(asked) == 0:
        assert found_lower.tolist() == lower[:n].tolist()
        assert found_upper.tolist() == upper[:n].tolist()


def test_too_small_limits_are_refused():
    with pytest.raises(ValueError, match="few must be at least max_bins=255, got 7"):
        next(ask_cuts(BinMapper(), 1, limits=Limits(7, 7, 7)))


def test_answers_about_all_columns_stay_small():
    assert Limits.of(1).boundaries == 32768
    assert Limits.of(100).boundaries * 100 * 80 <= 2**26
    assert Limits.of(10**6).boundaries == 2048


@patient
@given(st.data())
def test_values_inside_of_intervals_are_marked(data):
    ends = sorted(data.draw(st.sets(st.integers(-9, 9), max_size=8)))
    ends = ends[: len(ends) // 2 * 2]
    intervals = list(zip(ends[::2], ends[1::2], strict=True))
    singles = data.draw(st.booleans())
    if singles:  # a value by itself is an interval, too
        intervals = [(low, low) for low, _ in intervals]
    values = data.draw(st.lists(st.one_of(st.integers(-10, 10), st.floats(-10, 10)), max_size=30))
    out = np.empty(len(values), dtype=np.bool_)
    lows, highs = (np.array([pair[k] for pair in intervals], dtype=float) for k in range(2))
    mark_inside(np.array(values, dtype=float), lows, highs, out)
    assert out.tolist() == naive.inside(values, intervals)
