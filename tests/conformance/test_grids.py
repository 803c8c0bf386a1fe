"""The integer grids: no sum may overflow, and nobody may notice that there is a grid."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conformance.cases import (
    Canned,
    Case,
    OpenNode,
    Split,
    ask,
    by_chance,
    cases,
    check_root,
    check_table,
    pack,
    seeds,
    tell,
    walk,
)
from greedymiser.costs.cost_model import CostModel, Ledger
from greedymiser.data.binning import Thresholds
from greedymiser.engines.grid import (
    PACKED_ONE,
    PACKED_TWO,
    WIDE_ONE,
    WIDE_TWO,
    Extremes,
    GridRule,
)
from greedymiser.engines.interface import OPEN_DTYPE, Sample, SplitRules
from greedymiser.training.accounts import ModelAccount
from greedymiser.training.grower import Grower, GrowerParams

# Just below a power of two, a gradient is rounded up to the very end of its grid.
LARGE = [1.0, np.nextafter(2.0, 0.0), 0.7, 3e30]

slowly = by_chance(40)

# Words with room for all rows, and words that must be unpacked after every few rows.
PACKED, WIDE = GridRule(), GridRule(packed_rows=0, run=4)


def extreme(kind, largest, n):
    return {
        "all up": np.full(n, largest),
        "all down": np.full(n, -largest),
        "half and half": np.where(np.arange(n) < n // 2, largest, -largest),
        "in turns": np.where(np.arange(n) % 2 == 0, largest, -largest),
    }[kind]


KINDS = ["all up", "all down", "half and half", "in turns"]

layouts = pytest.mark.parametrize("grids", [PACKED, WIDE], ids=["packed", "wide"])
words = pytest.mark.parametrize("two_words", [False, True], ids=["one word", "two words"])


@pytest.mark.parametrize("n", [1, 3, 4, 31, 32])
@pytest.mark.parametrize("kind", KINDS)
@words
@layouts
def test_full_grids_do_not_overflow(engine, n, kind, two_words, grids):
    """With as many bits as the rows allow, gradients and Hessians at the end of their grids."""
    codes = [[i % 3, int(i < n // 2)] for i in range(n)]
    for largest in LARGE:
        gradients = extreme(kind, largest, n)
        hessians = np.full(n, largest) if two_words else None
        full = replace(grids, most_bits=63 if grids is PACKED else 57)
        case = Case(codes, [3, 2], [], [1, 0], gradients, hessians, SplitRules(1), full)
        plain, rows = case.plain(), case.placed(engine)
        check_root(rows.begin_tree(0, case.rules), plain)
        columns = np.ones(2, dtype=bool)
        table = ask(rows, plain, [OpenNode(0)], columns)
        check_table(table, case, plain, [OpenNode(0)], columns)
        left_rows = [i for i in range(n) if codes[i][1] == 0]
        tell(rows, plain, [Split(0, 1, 1, 0, True)], [left_rows])
        nodes = [OpenNode(1), OpenNode(2)]
        nodes = [node for node in nodes if plain.rows[node.id]]
        check_table(ask(rows, plain, nodes, columns), case, plain, nodes, columns)


@pytest.mark.parametrize("n", [2**16 - 1, 2**16, 2**17 - 1])
@words
@pytest.mark.parametrize("grids", [PACKED, GridRule(packed_rows=0)], ids=["packed", "wide"])
def test_many_rows_do_not_overflow(engine, n, two_words, grids):
    """From 2^16 rows on the word is full with the bits that every engine uses."""
    half = n // 2
    codes = (np.arange(n) >= half).astype(np.uint64)[None]
    binned = replace(pack([[0]], [2]), codes=codes)
    weight = 2.0 if two_words else 1.0
    for kind in ("all up", "all down", "half and half"):
        largest = float(np.nextafter(2.0, 0.0))
        gradients = extreme(kind, largest, n)
        hessians = np.full(n, largest) if two_words else None
        rows = engine.place(Sample(binned, np.zeros(n), None, Canned(gradients, hessians), grids))
        rows.start(np.zeros(1))
        root = rows.begin_tree(0, SplitRules(1))
        # At the end of the grid, so rounded to 2.
        signs = np.sign(gradients)
        assert root.gradient * rows.grid.gradient == 2.0 * signs.sum()
        assert root.hessian * rows.grid.hessian == weight * n
        node = np.zeros(1, dtype=OPEN_DTYPE)
        node["gradient"], node["hessian"], node["count"] = root[:3]
        node["lower"], node["upper"] = -np.inf, np.inf
        cell = rows.split_table(node, np.ones((1, 1), dtype=bool), last=False).candidates[0, 0]
        if kind == "half and half":
            g = [2.0 * half, -2.0 * (n - half)]
            h = [weight * half, weight * (n - half)]
            gain = 0.5 * (g[0] ** 2 / h[0] + g[1] ** 2 / h[1] - sum(g) ** 2 / sum(h))
            assert cell["gain"] == pytest.approx(gain, rel=1e-12)
            assert cell["gradient"] * rows.grid.gradient == 2.0 * signs[:half].sum()
            assert cell["hessian"] * rows.grid.hessian == weight * half
            assert cell["count"] == half
        else:
            assert cell["gain"] == -np.inf


@slowly
@given(case=cases(), seed=seeds)
def test_full_grids_give_the_right_tables(engine, case, seed):
    case.grids = GridRule(most_bits=63)
    walk(engine, case, seed, depth=3)


@slowly
@given(case=cases(), seed=seeds, bits=st.integers(3, 8))
def test_coarse_grids_give_the_right_tables(engine, case, seed, bits):
    """Rounding happens once; from there on everything is exact."""
    case.grids = GridRule(most_bits=bits)
    walk(engine, case, seed, depth=3)


@slowly
@given(case=cases(), seed=seeds, run=st.integers(1, 9), bits=st.sampled_from([30, 40]))
def test_wide_histograms_give_the_right_tables(engine, case, seed, run, bits):
    """Words are unpacked after every few rows."""
    case.grids = GridRule(most_bits=bits, packed_rows=0, run=run)
    walk(engine, case, seed, depth=3)


def grown(engine, case, **params):
    starts = 256 * np.arange(case.d + 1)
    grower = Grower(
        case.placed(engine),
        ModelAccount(Ledger(CostModel(np.zeros(case.d)))),
        Thresholds(np.tile(np.arange(256.0), case.d), starts),
        np.array(sorted(case.categorical), dtype=np.intp),
        GrowerParams(case.rules, **params),
    )
    return grower.grow(0, n_trees=1).tree


@slowly
@given(case=cases(), run=st.integers(1, 9))
def test_wide_histograms_grow_the_tree_of_packed_ones(engine, case, run):
    """With the same bits it must be the same tree."""
    one = grown(engine, case, max_depth=5)
    case.grids = GridRule(packed_rows=0, run=run)
    other = grown(engine, case, max_depth=5)
    assert one.nodes.tobytes() == other.nodes.tobytes()
    assert one.category_sets.tobytes() == other.category_sets.tobytes()


@slowly
@given(case=cases(), power=st.integers(-40, 40))
def test_a_power_of_two_does_not_matter(engine, case, power):
    """The grid moves with the gradients, so the same tree grows."""
    one = grown(engine, case, max_depth=4)
    case.gradients = np.ldexp(case.gradients, power)
    other = grown(engine, case, max_depth=4)
    for name in ("feature", "bin", "left", "count", "missing_left"):
        assert one.nodes[name].tolist() == other.nodes[name].tolist()
    assert other.nodes["value"].tolist() == np.ldexp(one.nodes["value"], power).tolist()


@pytest.mark.parametrize("hessians", [None, np.full(4, 0.25)], ids=["one word", "two words"])
def test_zero_gradients_are_a_leaf(engine, hessians):
    codes = [[0], [1], [0], [1]]
    case = Case(codes, [2], [], [0], np.zeros(4), hessians, SplitRules(1))
    rows = case.placed(engine)
    root = rows.begin_tree(0, case.rules)
    assert (root.gradient, root.n_rows, root.energy) == (0, 4, 0.0)
    table = ask(rows, case.plain(), [OpenNode(0)], [True], last=True)
    assert table.candidates["gain"][0, 0] == -np.inf


def test_gradients_below_the_smallest_normal_number(engine):
    case = Case([[0], [1]], [2], [], [0], np.array([5e-324, 0.0]), None, SplitRules(1))
    root = case.placed(engine).begin_tree(0, case.rules)
    assert (root.gradient, root.n_rows) == (0, 2)


# -- how grids are chosen -------------------------------------------------------------------------


def test_layouts_by_the_number_of_rows():
    def layout(n, is_flat):
        return GridRule().choose(n, Extremes(1.0, 1.0, is_flat)).layout

    assert [layout(n, True) for n in (1, 2**20 - 1, 2**20, 2**31)] == [
        PACKED_ONE, PACKED_ONE, WIDE_ONE, WIDE_ONE,
    ]  # fmt: skip
    assert [layout(n, False) for n in (1, 2**20 - 1, 2**20, 2**31)] == [
        PACKED_TWO, PACKED_TWO, WIDE_TWO, WIDE_TWO,
    ]  # fmt: skip
    with pytest.raises(ValueError, match="4294967296 rows"):
        layout(2**32, True)


@given(st.integers(1, 2**32 - 1), st.booleans())
@example(2**20 - 1, True)
@example(2**20, True)
@example(2**27 - 1, False)
def test_the_step_is_small_beside_the_standard_error_of_the_mean(n, is_flat):
    """What the module promises: half a step against 1 / sqrt(n), for the heaviest of tails."""
    # One row of size 1 and n - 1 zeros: the root mean square is as small as it can be.
    root_mean_square = 1.0 / math.sqrt(n)
    grid = GridRule().choose(n, Extremes(1.0, 1.0, is_flat))
    error = 0.5 * grid.gradient / root_mean_square
    assert error <= (2.0 if n >= 2**27 else 1 / 16) / math.sqrt(n) * 2.0  # 1.0 rounds up to 2^1


@given(st.integers(1, 2**32 - 1), st.booleans(), st.floats(1e-100, 1e100))
def test_sums_of_all_rows_fit(n, is_flat, largest):
    grid = GridRule().choose(n, Extremes(largest, largest, is_flat))
    together = n if grid.layout in (PACKED_ONE, PACKED_TWO) else min(n, grid.run)
    at_end = round(largest / grid.gradient)
    count = together if grid.row_words == 1 else 0
    beside = grid.shift if grid.row_words == 1 else 0
    assert (at_end * together << beside) + count < 2**63
    assert at_end * n < 2**63
    if not is_flat:
        assert (round(largest / grid.hessian) * together << grid.shift) + together < 2**63
    assert together < 2**grid.shift


@st.composite
def heavy_tails(draw):
    """Gradients that span many orders of magnitude, and leaves to put them into."""
    rng = np.random.default_rng(draw(seeds))
    n = draw(st.integers(2, 400))
    kind = draw(st.sampled_from(["lognormal", "cauchy", "one giant", "pareto"]))
    gradients = {
        "lognormal": lambda: np.exp(2.5 * rng.standard_normal(n)) * rng.choice([-1, 1], n),
        "cauchy": lambda: rng.standard_cauchy(n),
        "one giant": lambda: np.append(rng.standard_normal(n - 1), 1e6),
        "pareto": lambda: rng.pareto(0.7, n),
    }[kind]()
    return gradients, rng.integers(0, 4, n)


@slowly
@given(tails=heavy_tails(), two_words=st.booleans(), bits=st.sampled_from([13, 17, 23, 30]))
@layouts
def test_means_of_leaves_are_as_exact_as_promised(engine, tails, two_words, bits, grids):
    """The error of a leaf's mean is at most half a step: 2^-(bits + 1) of the largest gradient."""
    gradients, leaf = tails
    n = len(gradients)
    rule = replace(grids, most_bits=bits)
    hessians = np.ones(n) if two_words else None
    case = Case(leaf[:, None].tolist(), [4], [0], [0], gradients, hessians, SplitRules(1), rule)
    rows, plain = case.placed(engine), case.plain()
    rows.begin_tree(0, case.rules)
    largest = np.abs(gradients).max()
    rms = math.sqrt(math.fsum(gradients**2) / n)
    step = rows.grid.gradient
    assert step <= 2.0 * largest * 2.0**-bits
    assert step <= 2.0 * math.sqrt(n) * rms * 2.0**-bits
    for k in range(4):
        mine = np.flatnonzero(leaf == k)
        if len(mine) == 0:
            continue
        # Leave the others out by a split on one category.
        mean = math.fsum(gradients[mine]) / len(mine)
        found = plain.sums(mine.tolist())[0] * step / len(mine)
        assert abs(found - mean) <= 0.5 * step * (1 + 1e-12) + 1e-15 * abs(mean)
    check_table(ask(rows, plain, [OpenNode(0)], [True]), case, plain, [OpenNode(0)], [True])
