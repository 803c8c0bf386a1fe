"""The integer grids: no sum may overflow, whatever the gradients and however many the rows."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.cases import Case, cases, check_stats, check_table, pack, seeds, walk
from greedymiser.costs import CostModel, Ledger
from greedymiser.engines import OpenNode, Split, SplitRules, cpu
from greedymiser.growing import Grower, GrowerParams

# Just below a power of two, a gradient is rounded up to the very end of its grid.
LARGE = [1.0, np.nextafter(2.0, 0.0), 0.7, 3e30]

slowly = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def extreme(kind, largest, n):
    return {
        "all up": np.full(n, largest),
        "all down": np.full(n, -largest),
        "half and half": np.where(np.arange(n) < n // 2, largest, -largest),
        "in turns": np.where(np.arange(n) % 2 == 0, largest, -largest),
    }[kind]


KINDS = ["all up", "all down", "half and half", "in turns"]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8, 31, 32])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("two_words", [False, True], ids=["one word", "two words"])
def test_full_grids_do_not_overflow(engine, n, kind, two_words):
    """With as many bits as the rows allow, gradients and Hessians at the end of their grids."""
    codes = [[i % 3, int(i < n // 2)] for i in range(n)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "MOST_BITS", 63)
        for largest in LARGE:
            gradients = extreme(kind, largest, n)
            hessians = np.full(n, largest) if two_words else None
            case = Case(codes, [3, 2], [], [1, 0], gradients, hessians, SplitRules(1))
            plain = case.plain(most_bits=63)
            engine.place(case.binned(), case.rules)
            stats = engine.begin(gradients, hessians)
            check_stats(stats, plain, 0)
            columns = np.ones(2, dtype=bool)
            table = engine.split_table([OpenNode(0)], columns, last=False)
            check_table(table, case, plain, [OpenNode(0)], columns)
            children = engine.partition([Split(0, 1, 1, 0, True)])[0]
            plain.divide(0, 1, [i for i in range(n) if codes[i][1] == 0])
            check_stats(children[0], plain, 1)
            check_stats(children[1], plain, 2)


@pytest.mark.parametrize("n", [2**16 - 1, 2**16, 2**17 - 1])
@pytest.mark.parametrize("two_words", [False, True], ids=["one word", "two words"])
def test_many_rows_do_not_overflow(engine, n, two_words):
    """From 2^16 rows on the word is full with the bits that every engine uses."""
    half = n // 2
    codes = (np.arange(n) >= half).astype(np.uint64)[None]
    binned = pack([[0]], [2])
    binned = type(binned)(**{**vars(binned), "codes": codes})
    engine.place(binned, SplitRules(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "ROWS_PER_TASK", 8192)
        for kind in ("all up", "all down", "half and half"):
            largest = float(np.nextafter(2.0, 0.0))
            gradients = extreme(kind, largest, n)
            hessians = np.full(n, largest) if two_words else None
            stats = engine.begin(gradients, hessians)
            # At the end of the grid, so rounded to 2.
            weight = 2.0 if two_words else 1.0
            signs = np.sign(gradients)
            assert stats.gradient == 2.0 * signs.sum()
            assert stats.hessian == weight * n
            table = engine.split_table([OpenNode(0)], np.ones(1, dtype=bool), last=False)
            if kind == "half and half":
                g = [2.0 * half, -2.0 * (n - half)]
                h = [weight * half, weight * (n - half)]
                gain = 0.5 * (g[0] ** 2 / h[0] + g[1] ** 2 / h[1] - sum(g) ** 2 / sum(h))
                assert table.candidates["gain"][0, 0] == pytest.approx(gain, rel=1e-12)
            else:
                assert table.candidates["gain"][0, 0] == -np.inf
            left, right = engine.partition([Split(0, 1, 0, 0, True)])[0]
            assert left.gradient == 2.0 * signs[:half].sum()
            assert right.gradient == 2.0 * signs[half:].sum()
            assert (left.hessian, right.hessian) == (weight * half, weight * (n - half))
            assert (left.count, right.count) == (half, n - half)


@slowly
@given(case=cases(), seed=seeds)
def test_full_grids_give_the_right_tables(engine, case, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "MOST_BITS", 63)
        walk(engine, case, seed, depth=3, plain=case.plain(most_bits=63))


@slowly
@given(case=cases(), seed=seeds, bits=st.integers(3, 8))
def test_coarse_grids_give_the_right_tables(engine, case, seed, bits):
    """Rounding happens once; from there on everything is exact."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "MOST_BITS", bits)
        walk(engine, case, seed, depth=3, plain=case.plain(most_bits=bits))


@slowly
@given(case=cases(), seed=seeds)
def test_two_words_where_one_has_no_room(engine, case, seed):
    """When n leaves too few bits for a gradient, it gets a word to itself: the same tables."""
    case.hessians = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "FEWEST_BITS", 64)
        walk(engine, case, seed, depth=3)


def grown(engine, case, **params):
    ledger = Ledger(CostModel(np.zeros(case.d)))
    grower = Grower(
        engine,
        ledger,
        lambda f, b: float(b),
        np.array(sorted(case.categorical), dtype=np.intp),
        GrowerParams(case.rules, **params),
    )
    engine.place(case.binned(), case.rules)
    return grower.grow(case.gradients, case.hessians, n_trees=1).tree


@slowly
@given(case=cases())
def test_two_words_grow_the_tree_of_one(engine, case):
    case.hessians = None
    one = grown(engine, case, max_depth=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "FEWEST_BITS", 64)
        two = grown(engine, case, max_depth=5)
    assert one.nodes.tobytes() == two.nodes.tobytes()
    assert one.category_sets.tobytes() == two.category_sets.tobytes()


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
    engine.place(pack([[0], [1], [0], [1]], [2]), SplitRules(1))
    stats = engine.begin(np.zeros(4), hessians)
    assert (stats.gradient, stats.count, stats.twice_impurity) == (0.0, 4, 0.0)
    table = engine.split_table([OpenNode(0)], np.ones(1, dtype=bool), last=True)
    assert table.candidates["gain"][0, 0] == -np.inf


def test_gradients_below_the_smallest_normal_number(engine):
    engine.place(pack([[0], [1]], [2]), SplitRules(1))
    assert engine.begin(np.array([5e-324, 0.0]), None).count == 2
