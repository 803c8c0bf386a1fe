"""One tree, split by split, against trees that are known by hand."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import naive
from greedymiser._core.threads import Threads
from greedymiser.costs.cost_model import CostModel, Ledger
from greedymiser.data.binning import BinMapper, Thresholds
from greedymiser.data.tables import ArrayTable
from greedymiser.engines.cpu.engine import CpuEngine
from greedymiser.engines.grid import PACKED_TWO, Grid
from greedymiser.engines.interface import CANDIDATE_DTYPE, Root, Sample, SplitRules, SplitTable
from greedymiser.engines.sampling import Round
from greedymiser.losses import SquaredError
from greedymiser.model.trees import CATEGORY_WORDS
from greedymiser.training.accounts import ModelAccount
from greedymiser.training.grower import Grower, GrowerParams
from random_examples import examples

NO = -math.inf


class CannedEngine:
    """Rows that answer from a table of raw gains; nodes are known by their path, "LR"...

    Unless told otherwise, a node at depth k has 2^(20 - k) rows and the value 0. What is told of
    two children holds for their parent, which is the sum of them.
    """

    grid = Grid(PACKED_TWO, 21, 2.0**-20, 1.0, 0)
    n_rows = 2**20

    def __init__(self, gains, *, impurity=None, counts=None, values=None, n_categorical=0):
        self.gains = gains
        self.d = len(gains[""])
        self.impurity = impurity or {}
        self.counts = counts or {}
        self.values = values or {}
        self.n_categorical = n_categorical
        # What the grower asked for: (paths, columns, last), and the nodes as they were.
        self.questions = []
        self.open_nodes = {}
        self.splits = []
        self.sets = []

    def begin_tree(self, output, rules, step, lot):
        self.path = {0: ""}
        self.l2 = rules.l2_regularization
        return Root(self.gradient(""), self.hessian(""), self.count(""), self.energy(""))

    def of_children(self, told, path):
        return [side for side in (path + "L", path + "R") if side in told]

    def count(self, path):
        if self.of_children(self.counts, path):
            return self.count(path + "L") + self.count(path + "R")
        return self.counts.get(path, 2 ** (20 - len(path)))

    def hessian(self, path):
        return 2 ** (10 - len(path))

    def gradient(self, path):
        """In units of the grid."""
        if self.of_children(self.values, path):
            return self.gradient(path + "L") + self.gradient(path + "R")
        return round(-self.values.get(path, 0.0) * self.hessian(path) * 2**20)

    def energy(self, path):
        """So that no split gains more than is said to be possible."""
        most = max(self.gains.get(path, [0.0]))
        twice = self.impurity.get(path, 2 * max(most, 0.0))
        g = self.gradient(path) * 2.0**-20
        # A little less, since the grower takes rounding into account.
        return (twice + g * g / (self.hessian(path) + self.l2)) * (1 - 4e-9)

    def split_table(self, nodes, columns, last):
        assert columns.shape == (1, self.d)
        paths = [self.path[node] for node in nodes["node"].tolist()]
        self.questions.append((paths, np.flatnonzero(columns[0]).tolist(), last))
        self.open_nodes |= dict(zip(paths, nodes, strict=True))
        for path, node in zip(paths, nodes, strict=True):
            assert node["count"] == self.count(path)
            assert node["gradient"] == self.gradient(path)
            assert node["hessian"] == self.hessian(path)
        candidates = np.zeros((len(nodes), self.d), dtype=CANDIDATE_DTYPE)
        gains = np.array([self.gains.get(path, [NO] * self.d) for path in paths], dtype=float)
        candidates["gain"] = np.where(columns, gains, NO)
        candidates["bin"] = 10 + np.arange(self.d)
        candidates["missing_left"] = np.arange(self.d) % 2 == 1
        for row, path in zip(candidates, paths, strict=True):
            row["count"], row["hessian"] = self.count(path + "L"), self.hessian(path + "L")
            row["gradient"] = self.gradient(path + "L")
        shape = (len(nodes), self.n_categorical, CATEGORY_WORDS)
        return SplitTable(candidates, np.arange(math.prod(shape), dtype=np.uint64).reshape(shape))

    def partition(self, splits, category_sets, last):
        energies = []
        for split, words in zip(splits, category_sets, strict=True):
            assert split["node"] in self.path
            assert split["count"] == self.count(self.path[split["node"]] + "L")
            self.splits.append(split)
            self.sets.append(words)
            paths = [self.path[split["node"]] + side for side in "LR"]
            self.path |= {split["left"]: paths[0], split["left"] + 1: paths[1]}
            energies.append([self.energy(path) for path in paths])
        return np.empty(0) if last else np.array(energies)


def grower_of(engine, ledger, *, rules=None, categorical=(), budget=None, **params):
    params = {"tradeoff": 1.0, "max_depth": 2, "learning_rate": 1.0} | params
    ledger = ledger if isinstance(ledger, Ledger) else Ledger(CostModel(ledger))
    return Grower(
        engine,
        ModelAccount(ledger, budget),
        Thresholds(np.arange(100.0 * engine.d), 100 * np.arange(engine.d + 1)),
        np.array(categorical, dtype=np.intp),
        GrowerParams(rules or SplitRules(min_samples_leaf=1), **params),
    )


def grow(engine, ledger, n_trees=1, **params):
    return grower_of(engine, ledger, **params).grow(0, n_trees)


def splits_of(growth, engine):
    """Feature by path."""
    nodes = growth.tree.nodes
    return {engine.path[i]: int(n["feature"]) for i, n in enumerate(nodes) if n["left"] >= 0}


def bought_in(growth):
    return [(line.feature, line.price) for line in growth.bought]


# -- (a) best first, and re-pricing ---------------------------------------------------------------


def test_a_purchase_makes_a_sibling_switch_to_the_feature():
    # Feature 1 costs 5. Left takes it at 18 - 5. Right would take the free feature 2 at 4.5 over
    # 8 - 5, but by the time it is settled feature 1 is free and worth 8.
    engine = CannedEngine({"": [400, 25, 2], "L": [NO, 18, 0], "R": [NO, 8, 4.5]})
    growth = grow(engine, [0.0, 5.0, 0.0])
    assert splits_of(growth, engine) == {"": 0, "L": 1, "R": 1}
    assert bought_in(growth) == [(0, 0.0), (1, 5.0)]


def test_a_sibling_that_is_settled_first_keeps_its_choice():
    # As above, but the free feature is worth more to the right than feature 1 to the left.
    engine = CannedEngine({"": [400, 25, 2], "L": [NO, 18, 0], "R": [NO, 18, 14]})
    growth = grow(engine, [0.0, 5.0, 0.0])
    assert splits_of(growth, engine) == {"": 0, "L": 1, "R": 2}


def test_a_purchase_opens_a_node_that_could_not_pay():
    engine = CannedEngine({"": [400, 0], "L": [NO, 18], "R": [NO, 3]})
    growth = grow(engine, [0.0, 5.0])
    assert splits_of(growth, engine) == {"": 0, "L": 1, "R": 1}
    engine = CannedEngine({"": [400, 0], "L": [NO, 4], "R": [NO, 3]})
    growth = grow(engine, [0.0, 5.0])
    assert splits_of(growth, engine) == {"": 0}


def test_what_the_root_bought_is_free_below():
    engine = CannedEngine({"": [100, 0], "L": [1.5, 6], "R": [1, 7]})
    growth = grow(engine, [50.0, 5.0])
    # Right buys feature 1 at 7 - 5; then left prefers it, at 6 for nothing.
    assert splits_of(growth, engine) == {"": 0, "L": 1, "R": 1}
    assert bought_in(growth) == [(0, 50.0), (1, 5.0)]
    assert [line.depth for line in growth.bought] == [0, 1]
    assert [line.spent for line in growth.bought] == [50.0, 55.0]
    assert [line.gain for line in growth.bought] == [100.0, 7.0]


def test_what_one_tree_bought_is_free_for_the_next():
    gains = {"": [100, 99]}
    ledger = Ledger(CostModel([10.0, 1.0]))
    engine = CannedEngine(gains)
    grower = grower_of(engine, ledger, max_depth=1)
    first = grower.grow(0, 1)
    assert bought_in(first) == [(1, 1.0)]  # 98 > 90
    second = grower.grow(0, 2)
    assert splits_of(second, engine) == {"": 1}  # 99 > 90
    assert second.bought == []


def test_gains_are_drops_in_mean_loss():
    # W = 10: a raw gain of 20 is worth 2, less than the price.
    engine = CannedEngine({"": [20.0, 9.0]})
    growth = grow(engine, [3.0, 0.0], total_weight=10.0)
    assert splits_of(growth, engine) == {"": 1}
    assert growth.tree.nodes["gain"][0] == pytest.approx(0.9)
    growth = grow(engine, [3.0, 0.0], total_weight=10.0, tradeoff=0.1)
    assert splits_of(growth, engine) == {"": 0}
    assert growth.tree.nodes["gain"][0] == pytest.approx(2.0)  # before the price


# -- (b) columns that come into play inside a level -----------------------------------------------

# Features 1 and 2 share an entry price.
GROUP = CostModel([0, 1, 13], groups=[None, "g", "g"], group_costs={"g": 6.0})


def widening_case():
    # No gain below the root can exceed 18, and feature 2 costs 19: out of play, it seems. But left
    # buys feature 1 and with it the entry, and then feature 2 costs 13 and pays for the right.
    return CannedEngine(
        {"": [400, 0, 0], "L": [NO, 18, 0], "R": [NO, 2, 15.5]},
        impurity={"": 900.0, "L": 36.0, "R": 35.0},
    )


def test_a_price_that_falls_within_the_level_brings_a_feature_into_play():
    engine = widening_case()
    growth = grow(engine, Ledger(GROUP))
    assert splits_of(growth, engine) == {"": 0, "L": 1, "R": 2}
    assert engine.questions[1] == (["L", "R"], [0, 1, 2], True)
    assert bought_in(growth)[-2:] == [(1, 7.0), (2, 13.0)]


def test_without_widening_the_feature_would_be_lost(monkeypatch):
    monkeypatch.setattr(Ledger, "prices_if", lambda self, marked: self.prices.copy())
    engine = widening_case()
    growth = grow(engine, Ledger(GROUP))
    assert engine.questions[1] == (["L", "R"], [0, 1], True)
    assert splits_of(growth, engine) == {"": 0, "L": 1, "R": 1}


def test_widening_goes_on_while_it_brings_anything():
    # A chain: 0 pays for a, which makes 1 (a + b) payable, which makes 2 (b + c) payable.
    costs = CostModel.from_resources(
        {"a": 8.0, "b": 7.0, "c": 9.0}, [["a"], ["a", "b"], ["b", "c"], []]
    )
    gains = {"": [NO, NO, NO, 99], "L": [NO, NO, NO, 50], "R": [NO, NO, NO, 50]}
    gains |= {"LL": [9.9, 0, 0, NO], "LR": [0, 9.8, 0, NO], "RL": [0, 0, 9.7, NO]}
    engine = CannedEngine(gains)
    growth = grow(engine, Ledger(costs), max_depth=3)
    assert splits_of(growth, engine) == {"": 3, "L": 3, "R": 3, "LL": 0, "LR": 1, "RL": 2}
    assert bought_in(growth) == [(0, 8.0), (1, 7.0), (2, 9.0)]


def test_a_column_is_skipped_only_if_no_node_can_pay():
    gains = {"": [50, 0, 0], "L": [NO, 4, 3], "R": [NO, 1, 1]}
    engine = CannedEngine(gains)
    grow(engine, [0.0, 3.9, 4.1])
    assert engine.questions[0][1] == [0, 1, 2]
    assert engine.questions[1][1] == [0, 1]  # 4 is the most that any split can bring
    engine = CannedEngine(gains)
    grow(engine, [0.0, 4.1, 4.1])
    assert engine.questions[1][1] == [0]


def test_no_question_is_asked_where_nothing_can_pay():
    engine = CannedEngine({"": [5.0, 7.0]})
    growth = grow(engine, [7.0, 8.0])
    assert growth.tree.is_leaf
    assert engine.questions == []


def test_one_node_alone_cannot_make_its_own_features_cheaper():
    # At the root only one split is made, so 13 + 6 stays too dear however cheap 1 + 6 is.
    engine = CannedEngine({"": [0, 10, 18]})
    grow(engine, Ledger(GROUP))
    assert engine.questions[0][1] == [0, 1]


@st.composite
def levels(draw):
    """Raw gains of a level with shared prices in the same range, so that every price matters."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_nodes, d, r = draw(st.sampled_from([2, 4])), draw(st.integers(1, 6)), draw(st.integers(1, 5))
    gains = rng.integers(-2, 13, (n_nodes, d)) + rng.choice([0.0, 0.25], (n_nodes, d))
    gains[gains < 0] = NO
    costs = rng.integers(0, 9, r).astype(float)
    sizes = rng.integers(0, r + 1, d)
    needs = [sorted(rng.choice(r, size, replace=False).tolist()) for size in sizes]
    return gains.tolist(), costs.tolist(), needs


@examples(400)
@given(
    levels(),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from([None, None, 5.0, 12.0]),
    st.sampled_from([None, None, 3, 5]),
)
def test_levels_are_settled_as_a_plain_loop_would(level, tradeoff, budget, max_leaf_nodes):
    gains, costs, needs = level
    names = [f"r{i}" for i in range(len(costs))]
    model = CostModel.from_resources(
        dict(zip(names, costs, strict=True)), [[], *([names[r] for r in w] for w in needs)]
    )
    # Feature 0 is free, splits the nodes above the level, and is good for nothing below.
    paths = ["".join(sides) for sides in itertools.product("LR", repeat=int(math.log2(len(gains))))]
    canned = {path[:k]: [1000.0] + [NO] * len(needs) for path in paths for k in range(len(path))}
    canned |= {path: [NO, *row] for path, row in zip(paths, gains, strict=True)}
    engine = CannedEngine(canned)
    depth = len(paths[0])
    growth = grow(
        engine,
        Ledger(model),
        tradeoff=tradeoff,
        budget=budget,
        max_depth=depth + 1,
        max_leaf_nodes=max_leaf_nodes and max_leaf_nodes + len(paths) - 2,
    )
    room = math.inf if max_leaf_nodes is None else max_leaf_nodes - 2
    shop = naive.Shop(costs, needs)
    chosen, bought = naive.settle(gains, shop, tradeoff, budget, room=room)
    found = splits_of(growth, engine)
    assert {path: f for path, f in found.items() if len(path) == depth} == {
        paths[v]: f + 1 for v, f in chosen.items()
    }
    assert bought_in(growth) == [(f + 1, price) for f, price in bought]
    assert growth.bought == [] or growth.bought[-1].spent == math.fsum(costs[r] for r in shop.owned)


# -- (c) ties -------------------------------------------------------------------------------------


def test_ties_go_to_the_lower_feature():
    engine = CannedEngine({"": [5.0, 7.0, 7.0]})
    assert splits_of(grow(engine, [0.0, 0.0, 0.0]), engine) == {"": 1}
    # Equal after the price is equal.
    assert splits_of(grow(engine, [0.0, 2.0, 2.0]), engine) == {"": 0}
    assert splits_of(grow(engine, [0.0, 4.0, 2.0]), engine) == {"": 0}


def test_ties_go_to_the_lower_node():
    # Either node could buy either feature; the left one is first and takes the lower feature.
    gains = {"": [99, 0, 0], "L": [NO, 8, 8], "R": [NO, 8, 8]}
    engine = CannedEngine(gains)
    growth = grow(engine, [0.0, 3.0, 3.0], max_leaf_nodes=3)
    assert splits_of(growth, engine) == {"": 0, "L": 1}
    # The lower node goes before the lower feature.
    engine = CannedEngine({"": [99, 0, 0], "L": [NO, 1, 8], "R": [NO, 8, 1]})
    growth = grow(engine, [0.0, 3.0, 3.0], max_leaf_nodes=3)
    assert splits_of(growth, engine) == {"": 0, "L": 2}


# -- (d) what does not pay is not done ------------------------------------------------------------


def test_a_split_must_bring_more_than_its_price():
    for gain, splits in [(5.0, {}), (np.nextafter(5.0, 6.0), {"": 0}), (4.0, {}), (NO, {})]:
        # A generous bound: the split must be refused by its gain, not skipped by its impurity.
        engine = CannedEngine({"": [gain]}, impurity={"": 100.0})
        growth = grow(engine, [5.0])
        assert splits_of(growth, engine) == splits
        assert len(growth.bought) == len(splits)


def test_nothing_is_bought_for_nothing():
    engine = CannedEngine({"": [0.0, NO]}, impurity={"": 10.0})
    growth = grow(engine, [0.0, 0.0])
    assert growth.tree.is_leaf
    assert growth.tree.features == set()
    assert growth.leaves.tolist() == [0]
    assert growth.bounds.tolist() == [[-math.inf, math.inf]]


def test_growth_stops_where_nothing_pays():
    gains = {"": [9, 0], "L": [4, 8], "R": [0, 1], "LL": [3, 1], "LLR": [2, 0]}
    engine = CannedEngine(gains, impurity=dict.fromkeys(["R", "LR", "LLL"], 20.0))
    growth = grow(engine, [1.0, 6.0], max_depth=None)
    # Left: 4 for a feature that is paid for beats 8 - 6.
    assert splits_of(growth, engine) == {"": 0, "L": 0, "LL": 0, "LLR": 0}
    assert [paths for paths, _, _ in engine.questions] == [
        [""], ["L", "R"], ["LL", "LR"], ["LLL", "LLR"],
    ]  # fmt: skip
    assert growth.tree.nodes["left"].tolist() == [1, 3, -1, 5, -1, -1, 7, -1, -1]
    assert growth.tree.nodes["depth"].tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert sorted(growth.leaves) == [2, 4, 5, 7, 8]


# -- (e) the budget -------------------------------------------------------------------------------


def test_the_budget_rules_out_what_it_cannot_pay():
    engine = CannedEngine({"": [50, 30, 10], "L": [9, 8, 7], "R": [6, 5, 4]})
    growth = grow(engine, [10.0, 4.0, 2.0], budget=6.0, tradeoff=0.0)
    # Feature 0 is too dear; 1 is bought; then 2 just fits, but is never the best.
    assert splits_of(growth, engine) == {"": 1, "L": 1, "R": 1}
    growth = grow(engine, [10.0, 4.0, 2.0], budget=3.0, tradeoff=0.0)
    assert splits_of(growth, engine) == {"": 2, "L": 2, "R": 2}
    growth = grow(engine, [10.0, 4.0, 2.0], budget=1.0, tradeoff=0.0)
    assert splits_of(growth, engine) == {}
    growth = grow(engine, [10.0, 4.0, 2.0], budget=10.0, tradeoff=0.0)
    assert splits_of(growth, engine) == {"": 0, "L": 0, "R": 0}


def test_one_purchase_may_leave_no_budget_for_another():
    engine = CannedEngine({"": [99, 0, 0], "L": [NO, 8, 7], "R": [NO, 3, 6]})
    growth = grow(engine, [0.0, 4.0, 4.0], budget=7.0, tradeoff=0.0)
    assert splits_of(growth, engine) == {"": 0, "L": 1, "R": 1}
    growth = grow(engine, [0.0, 4.0, 4.0], budget=8.0, tradeoff=0.0)
    assert splits_of(growth, engine) == {"": 0, "L": 1, "R": 2}


def test_what_is_ruled_out_is_not_asked_for_again():
    engine = CannedEngine({"": [50, 30], "L": [9, 8], "R": [6, 5]})
    grower = grower_of(engine, [10.0, 4.0], budget=6.0, tradeoff=0.0)
    grower.grow(0, 1)
    assert [columns for _, columns, _ in engine.questions] == [[0, 1], [1]]
    assert grower.account.is_held_back
    grower.grow(0, 2)
    assert [columns for _, columns, _ in engine.questions][2:] == [[1], [1]]


def test_trees_count_against_the_budget():
    costs = CostModel([4.0, 1.0], tree_cost=0.5)
    for n_trees, feature in [(4, 0), (5, 1), (10, 1)]:
        engine = CannedEngine({"": [9, 8]})
        growth = grow(engine, Ledger(costs), n_trees, budget=6.0, max_depth=1, tradeoff=0.0)
        assert splits_of(growth, engine) == {"": feature}
    growth = grow(CannedEngine({"": [9, 8]}), Ledger(costs), 11, budget=6.0, tradeoff=0.0)
    assert growth.tree.is_leaf


def test_a_feature_that_is_paid_for_is_within_any_budget():
    ledger = Ledger(CostModel([4.0, 1.0]), [0])
    engine = CannedEngine({"": [9, 20]})
    growth = grow(engine, ledger, budget=4.0, tradeoff=0.0, max_depth=1)
    assert splits_of(growth, engine) == {"": 0}


# -- (f) what LightGBM gets wrong -----------------------------------------------------------------


def test_nothing_is_refunded_that_was_never_paid():
    """Section 4 of the design: LightGBM records the 405 as 405 + 5000 and takes it."""
    engine = CannedEngine({"": [0, 50_000], "L": [10_000, NO], "R": [405, 4036]})
    growth = grow(engine, [5000.0, 0.0])
    # Left buys feature 0, which makes it free for the right: worth 405, not 5405.
    assert splits_of(growth, engine) == {"": 1, "L": 0, "R": 1}
    assert bought_in(growth)[-1] == (0, 5000.0)
    assert growth.tree.nodes["gain"].tolist() == [50_000, 10_000, 4036, 0, 0, 0, 0]


def test_nothing_is_refunded_to_a_node_of_the_next_level():
    engine = CannedEngine(
        {"": [0, 90_000], "L": [8000, 10], "R": [0, 10], "LL": [405, 4036], "RR": [4036, 405]}
    )
    growth = grow(engine, [5000.0, 0.0], max_depth=3)
    assert splits_of(growth, engine) == {"": 1, "L": 0, "R": 1, "LL": 1, "RR": 0}


# -- the shape of trees ---------------------------------------------------------------------------


def test_leaves_are_spent_best_first():
    gains = {"": [9], "L": [3], "R": [5], "RL": [2], "RR": [4]}
    expected = {
        2: {""},
        3: {"", "R"},
        4: {"", "R", "L"},
        5: {"", "R", "L", "RR"},
        6: {"", "R", "L", "RR", "RL"},
    }
    for max_leaf_nodes, paths in expected.items():
        engine = CannedEngine(gains)
        growth = grow(engine, [0.0], max_depth=None, max_leaf_nodes=max_leaf_nodes)
        assert set(splits_of(growth, engine)) == paths
        assert len(growth.leaves) == max_leaf_nodes


def test_children_are_numbered_in_the_order_of_their_parents():
    # Right is settled first, but its children come last.
    engine = CannedEngine({"": [9], "L": [3], "R": [5]})
    growth = grow(engine, [0.0])
    assert growth.tree.nodes["left"].tolist() == [1, 3, 5, -1, -1, -1, -1]
    numbers = [(split["node"], split["left"]) for split in engine.splits]
    assert numbers == [(0, 1), (1, 3), (2, 5)]


def test_small_nodes_are_not_asked_for():
    engine = CannedEngine({"": [9], "L": [3], "R": [5]}, counts={"L": 9, "R": 10})
    growth = grow(engine, [0.0], rules=SplitRules(min_samples_leaf=5))
    assert [paths for paths, _, _ in engine.questions] == [[""], ["R"]]
    assert splits_of(growth, engine) == {"": 0, "R": 0}
    engine = CannedEngine({"": [9]}, counts={"": 9})
    assert grow(engine, [0.0], rules=SplitRules(min_samples_leaf=5)).tree.is_leaf
    assert engine.questions == []


def test_only_the_last_level_is_the_last():
    gains = {"": [9], "L": [5], "LL": [4], "LLL": [3]}
    for max_depth, lasts in [(1, [True]), (2, [False, True]), (3, [False, False, True])]:
        engine = CannedEngine(gains)
        growth = grow(engine, [0.0], max_depth=max_depth)
        assert [last for _, _, last in engine.questions] == lasts
        assert growth.tree.nodes["depth"].max() == max_depth
    engine = CannedEngine(gains)
    grow(engine, [0.0], max_depth=None)
    assert not any(last for _, _, last in engine.questions)


def test_nodes_are_what_the_engine_said():
    engine = CannedEngine(
        {"": [1, 9]}, counts={"": 30, "L": 10, "R": 20}, values={"": 1.0, "L": -2.0, "R": 4.0}
    )
    rules = SplitRules(min_samples_leaf=1, l2_regularization=512.0)
    growth = grow(engine, [0.0, 0.0], learning_rate=0.1, rules=rules)
    nodes = growth.tree.nodes
    assert nodes["count"].tolist() == [30, 10, 20]
    assert nodes["hessian"].tolist() == [1024.0, 512.0, 512.0]
    # -G / (H + l2), times the learning rate.
    shrunk = [1024 / (1024 + 512), -2 * 512 / (512 + 512), 4 * 512 / (512 + 512)]
    np.testing.assert_allclose(nodes["value"], 0.1 * np.array(shrunk))
    assert (nodes[0]["feature"], nodes[0]["bin"], nodes[0]["threshold"]) == (1, 11, 111.0)
    assert nodes[0]["missing_left"]
    assert nodes["category_set"].tolist() == [-1, -1, -1]
    assert nodes["feature"].tolist() == [1, -1, -1]


def test_categorical_splits_bring_their_set():
    gains = {"": [1, 2, 9], "L": [1, 8, 0], "R": [7, 1, 0]}
    engine = CannedEngine(gains, n_categorical=2)
    growth = grow(engine, [0.0, 0.0, 0.0], categorical=[0, 2])
    nodes, sets = growth.tree.nodes, growth.tree.category_sets
    assert nodes["feature"].tolist()[:3] == [2, 1, 0]
    assert nodes["category_set"].tolist()[:3] == [0, -1, 1]
    assert nodes["bin"].tolist()[:3] == [-1, 11, -1]
    # Set of the second categorical feature at the root, of the first at the right node.
    assert sets.tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]]
    assert [split["bin"] for split in engine.splits] == [-1, 11, -1]
    assert [words.tolist() for words in engine.sets] == [[4, 5, 6, 7], [0] * 4, [8, 9, 10, 11]]


@pytest.mark.parametrize("direction", [1, -1])
def test_monotone_splits_bound_what_is_below(direction):
    # L is the mean of LL and LR, -2.
    values = {"R": 4.0 * direction, "LL": 9.0 * direction, "LR": -13.0 * direction}
    values["L"] = -2.0 * direction
    gains = {"": [9, 0], "L": [0, 9], "R": [0, NO], "LL": [0, 1], "LR": [0, 1]}
    rules = SplitRules(min_samples_leaf=1, monotonic_cst=(direction, 0))
    engine = CannedEngine(gains, values=values, impurity=dict.fromkeys(["", "L", "R"], math.inf))
    growth = grow(engine, [0.0, 0.0], rules=rules, max_depth=3)
    middle = 1.0 * direction  # between -2 and 4
    low, high = ("L", "R") if direction > 0 else ("R", "L")

    def bounds_of(path):
        return engine.open_nodes[path]["lower"], engine.open_nodes[path]["upper"]

    assert bounds_of(low) == (-math.inf, middle)
    assert bounds_of(high) == (middle, math.inf)
    # Bounds are handed down, and hold values back: LL would like 9.
    assert bounds_of("LL") == bounds_of("LR") == bounds_of("L")
    by_path = {engine.path[i]: node["value"] for i, node in enumerate(growth.tree.nodes)}
    assert by_path["LL"] == middle
    leaves = [engine.path[leaf] for leaf in growth.leaves.tolist()]
    assert tuple(growth.bounds[leaves.index("R")]) == bounds_of("R")


def test_root_gains_are_per_unit_of_weight_and_buy_nothing():
    engine = CannedEngine({"": [20.0, NO, 5.0]})
    grower = grower_of(engine, [100.0, 1.0, 1.0], total_weight=10.0)
    assert grower.root_gains(0).tolist() == [2.0, NO, 0.5]
    assert grower.account.spent == 0.0
    assert engine.questions == [([""], [0, 1, 2], True)]


# -- the same on data -----------------------------------------------------------------------------

# All eight corners of a cube; s1 and s2 are -1 and 1.
CUBE = np.array(list(itertools.product([0.0, 1.0], repeat=3)))
S1, S2 = 2 * CUBE[:, 1] - 1, 2 * CUBE[:, 2] - 1
RIGHT = CUBE[:, 0] == 1.0


def grow_on_cube(y, costs, budget=None, **params):
    """A tree on real data, with W = 1 so that gains are those of the comments."""
    threads = Threads(1)
    mapper = BinMapper()
    rules = SplitRules(min_samples_leaf=1)
    binned = mapper.fit_transform(ArrayTable(CUBE), None, None, threads)
    rows = CpuEngine(threads).place(Sample(binned, y, None, SquaredError()))
    rows.start(np.zeros(1))
    params = GrowerParams(rules, **{"tradeoff": 1.0, "max_depth": 2, "learning_rate": 1.0} | params)
    nothing = np.zeros(0, dtype=np.intp)
    grower = Grower(
        rows, ModelAccount(Ledger(costs), budget), mapper.cuts.thresholds, nothing, params
    )
    return grower.grow(0, 1)


def test_a_purchase_makes_a_sibling_switch_on_data():
    # Amplitudes 3, 2 and 1.5 on four rows each: gains 4 * 9 / 2 = 18, 8 and 4.5, as above.
    y = np.where(RIGHT, 10 + 2 * S1 + 1.5 * S2, -10 + 3 * S1)
    growth = grow_on_cube(y, CostModel([0.0, 5.0, 0.0]))
    nodes = growth.tree.nodes
    assert nodes["feature"].tolist() == [0, 1, 1, -1, -1, -1, -1]
    np.testing.assert_allclose(nodes["gain"][:3], [400.0, 18.0, 8.0])
    np.testing.assert_allclose(nodes["value"], [0, -10, 10, -13, -7, 8, 12], atol=1e-6)
    assert nodes["threshold"][:3].tolist() == [0.5, 0.5, 0.5]
    assert nodes["count"].tolist() == [8, 4, 4, 2, 2, 2, 2]
    # Were the left node alone worth less than the free feature, the right would not switch.
    y = np.where(RIGHT, 10 + 2 * S1 + 1.5 * S2, -10 + 2 * S1)
    growth = grow_on_cube(y, CostModel([0.0, 5.0, 0.0]))
    assert growth.tree.nodes["feature"].tolist()[:3] == [0, 1, 2]


def test_a_feature_that_comes_into_play_on_data(monkeypatch):
    # Left gains 18 on feature 1, the most there is; right 2 on feature 1, 15.68 on feature 2.
    y = np.where(RIGHT, 10 + S1 + 2.8 * S2, -10 + 3 * S1)
    growth = grow_on_cube(y, GROUP)
    assert growth.tree.nodes["feature"].tolist()[:3] == [0, 1, 2]
    assert [(line.feature, line.price) for line in growth.bought][-2:] == [(1, 7.0), (2, 13.0)]
    monkeypatch.setattr(Ledger, "prices_if", lambda self, marked: self.prices.copy())
    growth = grow_on_cube(y, GROUP)
    assert growth.tree.nodes["feature"].tolist()[:3] == [0, 1, 1]


def test_a_cube_that_cannot_pay_stays_whole():
    y = np.where(RIGHT, 10.0, -10.0)
    assert grow_on_cube(y, CostModel([400.0, 0.0, 0.0])).tree.is_leaf
    assert grow_on_cube(y, CostModel([399.0, 0.0, 0.0])).tree.nodes["feature"].tolist() == [
        0, -1, -1,
    ]  # fmt: skip
    assert grow_on_cube(y, CostModel([399.0, 0.0, 0.0]), budget=398.0).tree.is_leaf


# -- what a round may look at ---------------------------------------------------------------------


def test_between_shopping_days_only_what_is_owned_is_asked_for():
    gains = {"": [100, 90, 80, 500], "L": [9, 8, 7, 60], "R": [9, 8, 7, 60]}
    ledger = Ledger(CostModel([1.0, 0.0, 2.0, 3.0]))
    ledger.buy(0)
    engine = CannedEngine(gains)
    grower = grower_of(engine, ledger)
    growth = grower.grow(0, 1, Round(shops=False))
    assert [columns for _, columns, _ in engine.questions] == [[0, 1], [0, 1]]
    assert splits_of(growth, engine) == {"": 0, "L": 0, "R": 0}
    assert growth.bought == []
    growth = grower.grow(0, 1)
    assert splits_of(growth, engine) == {"": 3, "L": 3, "R": 3}


def test_with_nothing_owned_there_is_nothing_between_shopping_days():
    engine = CannedEngine({"": [100, 90]})
    growth = grower_of(engine, [1.0, 2.0]).grow(0, 1, Round(shops=False))
    assert growth.tree.is_leaf
    assert engine.questions == []
