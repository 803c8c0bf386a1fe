"""The kernels of the CPU engine, each beside its plain twin; ``conformance`` asks them together."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import naive
from conformance.cases import case_by_chance
from greedymiser._core.arithmetic import SUM_TABLE, new_sums, rounded
from greedymiser._core.threads import Threads
from greedymiser.data.binning import LANES
from greedymiser.engines.cpu.kernels import counting, marking, rows
from greedymiser.engines.cpu.partition import ALL_ROWS
from greedymiser.engines.cpu.state import Data, TreeState
from greedymiser.engines.grid import Extremes, GridRule
from greedymiser.engines.interface import SPLIT_DTYPE
from greedymiser.engines.scanning import BINS, SCALE_DTYPE, describe_features
from greedymiser.losses import Huber, MultinomialLogLoss, Poisson, Quantile, SquaredError
from greedymiser.model.trees import CATEGORY_WORDS
from random_examples import examples
from test_trees import random_tree

seeds = st.integers(0, 2**32 - 1)
patient = examples(25)
NONE = np.empty(0)
NO_SETS = np.empty((0, CATEGORY_WORDS), dtype=np.uint64)


@pytest.fixture(scope="module", params=[1, 3])
def team(request):
    with Threads(request.param) as threads:
        yield threads.team()


def data_of(case):
    binned = case.binned()
    is_half = binned.lane_feature.reshape(-1, LANES)[:, LANES // 2 :].max(axis=1) < 0
    features = describe_features(binned)
    return Data(binned.codes, binned.lane_feature, binned.feature_lane, features, is_half)


def planted(team, case, is_whole=True):
    """A tree that is only a root, of all rows; its sums and energy."""
    g, h = case.gradients, case.hessians
    largest = Extremes(float(np.abs(g).max()), 1.0 if h is None else float(h.max()), h is None)
    grid = case.grids.choose(case.n, largest)
    state = TreeState(
        nodes=np.zeros(31, dtype=counting.NODE_DTYPE),
        rows=np.zeros((2, case.n), dtype=np.uint32),
        words=np.zeros((2, case.n, grid.row_words), dtype=np.int64),
        scale=np.zeros(1, dtype=SCALE_DTYPE),
        run=grid.run,
        is_whole=is_whole,
    )
    found = rows.quantise(team, g, NONE if h is None else h, tuple(grid), True, tuple(state))
    return grid, state, found


def random_splits(rng, case, n_nodes):
    """A split of each of the first nodes, by number or by category, and its set."""
    splits = np.zeros(n_nodes, dtype=SPLIT_DTYPE)
    sets = rng.integers(0, 2**64, (n_nodes, CATEGORY_WORDS), dtype=np.uint64)
    for s in range(n_nodes):
        f = int(rng.integers(case.d))
        by_category = rng.random() < 0.4
        splits[s]["node"], splits[s]["left"], splits[s]["feature"] = s, n_nodes + 2 * s, f
        splits[s]["bin"] = -1 if by_category else rng.integers(case.n_bins[f])
        splits[s]["missing_left"] = rng.random() < 0.5
    return splits, sets


def goes_left(case, split, words, row):
    f = int(split["feature"])
    code = case.codes[row][f]
    if code == case.n_bins[f]:
        return bool(split["missing_left"])
    return naive.in_set(words, code) if split["bin"] < 0 else code <= split["bin"]


# -- derivatives ----------------------------------------------------------------------------------


@patient
@given(seed=seeds, n=st.sampled_from([1, 7, rows.CHUNK, rows.CHUNK + 1]), weighted=st.booleans())
def test_derivatives_are_weighted_and_measured(team, seed, n, weighted):
    rng = np.random.default_rng(seed)
    g, h = rng.standard_normal((2, n)), rng.uniform(-0.01, 1.0, (2, n)) + 0.01
    h[1] -= rng.random() < 0.5
    weight = rng.uniform(0.0, 2.0, n) if weighted else NONE
    expected = [g * weight, h * weight] if weighted else [g.copy(), h.copy()]
    found = np.empty((2, -(-n // rows.CHUNK), 3))
    rows.weigh_derivatives(team, weight, g, h, found)
    np.testing.assert_array_equal(g, expected[0])
    np.testing.assert_array_equal(h, expected[1])
    for k in range(2):
        assert tuple(found[k, 0]) == naive.extremes(g[k].tolist(), h[k].tolist())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, rows.CHUNK + 3])
def test_what_is_not_finite_comes_through(team, bad, at):
    for which in range(2):
        g, h = np.ones((1, rows.CHUNK + 9)), np.ones((1, rows.CHUNK + 9))
        (g, h)[which][0, at] = bad
        found = np.empty((1, 2, 3))
        rows.weigh_derivatives(team, NONE, g, h, found)
        assert not math.isfinite(found[0, 0, which])
        assert found[0, 0, 1 - which] == 1.0


@pytest.mark.parametrize(
    "loss",
    [SquaredError(), Quantile(0.3), Huber(0.7), Poisson(), MultinomialLogLoss(3)],
    ids=lambda loss: type(loss).__name__,
)
@pytest.mark.parametrize("weighted", [False, True])
def test_derivatives_and_sums_of_a_formula(team, loss, weighted):
    """Beside the loss itself, whose slopes ``test_losses`` compares with differences."""
    rng = np.random.default_rng(3)
    n, k = 2 * rows.CHUNK + 17, loss.n_outputs
    y = rng.integers(0, 3, n).astype(float)
    raw = rng.standard_normal((k, n))
    weight = rng.uniform(0.5, 2.0, n) if weighted else NONE
    g, h = np.empty((k, n)), np.empty((0 if loss.formula.is_flat else k, n))
    rows.derive(team, loss.formula, y, raw, weight, g, h, np.empty((k, 3, 3)))
    seen = raw if k > 1 else raw[0]
    slopes, bends = loss.gradients(y, seen)
    factor = weight if weighted else 1.0
    np.testing.assert_array_equal(g, np.reshape(slopes * factor, g.shape))
    if bends is not None:
        np.testing.assert_array_equal(h, np.reshape(bends * factor, h.shape))
    totals, tables = new_sums(3), np.zeros((3, SUM_TABLE), dtype=np.int64)
    rows.sum_loss(team, loss.formula, y, raw, weight, totals, tables)
    assert rounded(totals[0]) == math.fsum(loss.values(y, seen) * factor)
    assert not tables.any()


# -- lots and words -------------------------------------------------------------------------------


@patient
@given(
    seed=seeds,
    n=st.sampled_from([1, 50, rows.CHUNK - 1, 2 * rows.CHUNK + 5]),
    share=st.sampled_from([0.0, 0.1, 0.7, 1.0]),
    by_query=st.booleans(),
    flat=st.booleans(),
)
def test_lots_fall_on_rows_in_their_order(team, seed, n, share, by_query, flat):
    rng = np.random.default_rng(seed)
    g, h = rng.standard_normal(n), NONE if flat else rng.random(n)
    units = np.sort(rng.integers(0, 20, n)) if by_query else ALL_ROWS
    limit, first_row = int(share * 2**53), int(rng.integers(1000))
    buffers, drawn = np.empty((2, n), dtype=np.uint32), np.empty((2, n))
    lot = (np.uint64(seed), np.uint64(limit), units, first_row)
    n_drawn = rows.draw_lots(team, lot, g, h, buffers, drawn)
    names = units.tolist() if by_query else range(first_row, first_row + n)
    expected = [i for i, unit in enumerate(names) if naive.lot_falls_on(unit, seed, limit)]
    assert buffers[0, :n_drawn].tolist() == expected
    np.testing.assert_array_equal(drawn[0, :n_drawn], g[expected])
    if not flat:
        np.testing.assert_array_equal(drawn[1, :n_drawn], h[expected])


@patient
@given(seed=seeds, packed=st.booleans())
def test_words_hold_integers_of_the_grid(team, seed, packed):
    case = case_by_chance(seed, False, 4)
    case.grids = GridRule() if packed else GridRule(packed_rows=1, run=8)
    grid, state, (sum_g, sum_h, energy) = planted(team, case)
    plain = case.plain()
    if case.gradients.any():  # nothing but zeros has no step of its own
        assert (grid.gradient, grid.hessian) == (plain.g_step, plain.h_step)
    words = state.words[0]
    if case.hessians is None:
        assert (words[:, 0] >> grid.shift).tolist() == plain.g
    else:
        assert words[:, 0].tolist() == plain.g
        assert (words[:, 1] >> grid.shift).tolist() == plain.h
    assert (words[:, -1] & ((1 << grid.shift) - 1)).tolist() == [1] * case.n
    assert (sum_g, sum_h) == (sum(plain.g), sum(plain.h))
    assert state.rows[0].tolist() == list(range(case.n))
    steepness = [h * plain.h_step for h in plain.h]
    if all(h > 0 for g, h in zip(plain.g, steepness, strict=True) if g):
        expected = naive.energy([g * plain.g_step for g in plain.g], steepness)
        assert energy == pytest.approx(expected, rel=1e-12)
    else:
        assert energy >= rows.HUGE


# -- histograms, children and leaves --------------------------------------------------------------


@patient
@given(seed=seeds, layout=st.sampled_from(["packed", "wide", "wide in short runs"]))
def test_rows_are_counted_and_divided(team, seed, layout):
    """Two levels: all rows, and then lists of them, in one piece and in several."""
    rng = np.random.default_rng(seed)
    case = case_by_chance(seed, False, 10)
    if layout != "packed":
        case.grids = GridRule(packed_rows=1, run=2**15 if layout == "wide" else 4)
    data, plain = data_of(case), case.plain()
    grid, state, _ = planted(team, case)
    mine = {0: list(range(case.n))}
    energies = np.empty((1, 2))
    flags = np.empty(case.n, dtype=np.bool_)
    for first, n_nodes in ((0, 1), (1, 2)):
        splits, sets = random_splits(rng, case, n_nodes)
        splits["node"] += first
        splits["left"] = 1 + 2 * (first + np.arange(n_nodes))
        assert_counted(team, case, plain, data, state, grid, mine, splits["node"].copy())
        energies = np.empty((n_nodes, 2))
        given = tuple(data), tuple(state), splits, sets
        rows.divide_rows(team, *given, int(rng.choice([1, 3, 100])), flags, True, energies)
        for split, words, found in zip(splits, sets, energies, strict=True):
            left = [goes_left(case, split, words, i) for i in mine[int(split["node"])]]
            for side in range(2):
                at = int(split["left"]) + side
                pairs = zip(mine[int(split["node"])], left, strict=True)
                mine[at] = [i for i, is_left in pairs if is_left == (side == 0)]
                assert rows_of(state, at) == mine[at]
                assert_energy(plain, mine[at], found[side])
    nodes = np.arange(3, 7)
    assert_counted(team, case, plain, data, state, grid, mine, nodes)
    raw = np.zeros(case.n)
    values = rng.standard_normal(4)
    no_splits = np.empty(0, dtype=SPLIT_DTYPE)
    rows.add_leaves(team, tuple(data), tuple(state), nodes, values, no_splits, NO_SETS, 3, raw)
    for node, value in zip(nodes.tolist(), values, strict=True):
        assert (raw[mine[node]] == value).all()


def rows_of(state, node):
    record = state.nodes[node]
    return state.rows[record["side"], record["start"] : record["stop"]].tolist()


def assert_energy(plain, mine, found):
    g, h = ([values[i] for i in mine] for values in (plain.g, plain.h))
    if all(b > 0 for a, b in zip(g, h, strict=True) if a):
        scaled = [a * plain.g_step for a in g], [b * plain.h_step for b in h]
        assert found == pytest.approx(naive.energy(*scaled), rel=1e-12)
    else:
        assert found >= rows.HUGE


def assert_counted(team, case, plain, data, state, grid, mine, nodes):
    blocks = np.arange(len(data.codes))
    shape = (len(nodes), len(blocks), LANES * BINS * grid.bin_words)
    found = np.empty(shape, dtype=np.int64)
    counting.count_nodes(team, tuple(data), tuple(state), nodes, blocks, found)
    lanes = found.reshape(len(nodes), len(blocks) * LANES, BINS, grid.bin_words)
    for i, node in enumerate(nodes.tolist()):
        for f in range(case.d):
            column = [row[f] for row in case.codes]
            expected = naive.histogram(column, mine[node], plain.g, plain.h)
            bins = lanes[i, data.feature_lane[f]]
            assert [unpacked(bin_, grid) for bin_ in bins.tolist()] == expected


def unpacked(words, grid):
    """Gradient, Hessian and count of a bin, as the layouts in ``engines.grid`` are drawn."""
    count = words[-1] & ((1 << grid.shift) - 1)
    high = words[-1] >> grid.shift
    if grid.layout == 0:
        return high, count, count
    if grid.layout == 1:
        return words[0], high, count
    return words[0], words[1], words[-1]


@patient
@given(seed=seeds)
def test_the_last_splits_are_only_noted(team, seed):
    """Rows find out by their codes which of two leaves is theirs."""
    rng = np.random.default_rng(seed)
    case = case_by_chance(seed, False, 6)
    data = data_of(case)
    _, state, _ = planted(team, case)
    splits, sets = random_splits(rng, case, 1)
    splits["left"] = 1
    raw, values = np.zeros(case.n), np.array([2.0, -3.0])
    given = tuple(data), tuple(state), np.array([1, 2]), values
    rows.add_leaves(team, *given, splits, sets, int(rng.choice([1, 4, 100])), raw)
    left = [goes_left(case, splits[0], sets[0], i) for i in range(case.n)]
    assert raw.tolist() == [2.0 if is_left else -3.0 for is_left in left]


@patient
@given(seed=seeds, depth=st.integers(0, 4))
def test_finished_trees_are_walked_by_codes(team, seed, depth):
    rng = np.random.default_rng(seed)
    case = case_by_chance(seed, False, 6)
    edges = [list(range(b - 1)) for b in case.n_bins]
    tree = random_tree(rng, case.d, depth, case.categorical, edges)
    data, raw = data_of(case), rng.standard_normal(case.n)
    masks = rng.integers(0, 2**64, (len(tree.nodes), 2), dtype=np.uint64)
    bits = np.zeros((2, case.n), dtype=np.uint64)
    before = raw.copy()
    rows.add_tree(team, tuple(data), tree.nodes, tree.category_sets, raw)
    given = tuple(data), tree.nodes, tree.category_sets, masks
    marking.mark_walking(team, *given, bits)
    for i, codes in enumerate(case.codes):
        path = naive.path_of_codes(tree.nodes, tree.category_sets, codes, case.n_bins)
        assert raw[i] == before[i] + tree.nodes[path[-1]]["value"]
        left = [int(np.bitwise_or.reduce(masks[path[:-1], w], initial=0)) for w in range(2)]
        assert bits[:, i].tolist() == left


# -- marks ----------------------------------------------------------------------------------------

# Counters of five planes are emptied after 31 groups of eight rows.
MANY = 8 * marking.GROUPS


@patient
@given(
    seed=seeds,
    n=st.sampled_from([1, 7, 8, 9, MANY - 1, MANY, 2 * MANY + 11, rows.CHUNK + 3]),
    density=st.sampled_from([0.0, 0.2, 0.9, 1.0]),
    weighted=st.booleans(),
)
def test_bits_are_counted(team, seed, n, density, weighted):
    rng = np.random.default_rng(seed)
    has = rng.random((64, n)) < density
    bits = np.zeros((1, n), dtype=np.uint64)
    for b in range(64):
        bits[0] |= has[b].astype(np.uint64) << np.uint64(b)
    weights = rng.integers(1, 10, n) if weighted else np.empty(0, dtype=np.int64)
    found = np.empty(65, dtype=np.int64)
    marking.weigh_all(team, np.empty(0, dtype=np.uint32), weights, bits, found)
    plain = weights.tolist() if weighted else [1] * n
    assert found.tolist() == naive.weights_by_bit(bits[0], plain, range(n))


@patient
@given(seed=seeds, weighted=st.booleans())
def test_nodes_are_marked_and_weighed(team, seed, weighted):
    rng = np.random.default_rng(seed)
    case = case_by_chance(seed, False, 4)
    _, state, _ = planted(team, case)
    splits, sets = random_splits(rng, case, 1)
    splits["left"] = 1
    given = tuple(data_of(case)), tuple(state), splits, sets
    rows.divide_rows(team, *given, 5, np.empty(case.n, np.bool_), True, np.empty((0, 2)))
    children = np.zeros(2, dtype=SPLIT_DTYPE)
    children["node"] = 1, 2
    masks = np.array([[1, 6], [5, 0]], dtype=np.uint64)
    bits = np.full((2, case.n), 8, dtype=np.uint64)
    marking.mark(team, tuple(state), children, masks, 3, bits)
    for k in range(2):
        for i in rows_of(state, 1 + k):
            assert bits[:, i].tolist() == [8 | int(masks[k, 0]), 8 | int(masks[k, 1])]
    weights = rng.integers(1, 10, case.n) if weighted else np.empty(0, dtype=np.int64)
    found = np.empty((2, 129), dtype=np.int64)
    marking.weigh(team, tuple(state), children, weights, 3, bits, found)
    plain = weights.tolist() if weighted else [1] * case.n
    for k in range(2):
        mine = rows_of(state, 1 + k)
        words = [naive.weights_by_bit(bits[w], plain, mine) for w in range(2)]
        assert found[k].tolist() == [*words[0], *words[1][1:]]
