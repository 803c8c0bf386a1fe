"""What things cost, and what is bought."""

import math
import pickle
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import naive
from greedymiser.costs.cost_model import (
    CostModel,
    Ledger,
    Purchase,
    Receipt,
    as_cost_model,
    sum_of_prices,
)
from greedymiser.costs.files import write_costs
from greedymiser.model.row_costs import Meter
from greedymiser.training.accounts import mean_bill


def blood():
    """The example of the docstring: two blood tests share the price of drawing the blood."""
    return CostModel(
        {"age": 1.0, "TSH": 20.0, "T3": 9.0},
        groups={"draw": ["TSH", "T3"]},
        group_costs={"draw": 2.0},
        tree_cost=0.5,
    )


def images():
    """Shared intermediates: everything needs the decoded image, two features need HOG as well."""
    return CostModel.from_resources(
        {"decode": 3.0, "hog": 2.0, "lbp": 1.0},
        {"hog_0": ["decode", "hog"], "hog_1": ["hog", "decode"], "lbp": ["decode", "lbp"]},
    )


# -- reading costs --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [list, tuple, np.array, pd.Series, lambda x: np.array(x, int)])
def test_costs_by_position(kind):
    costs = CostModel(kind([1, 5, 20]))
    assert costs.n_features == 3
    assert costs.feature_names is None
    assert costs.prices().tolist() == [1.0, 5.0, 20.0]
    assert costs.total([0, 2]) == 21.0


@pytest.mark.parametrize("kind", [dict, pd.Series])
def test_costs_by_name(kind):
    costs = CostModel(kind({"b": 5.0, "a": 1.0}))
    assert costs.feature_names == ["b", "a"]
    assert costs.prices().tolist() == [5.0, 1.0]
    assert costs.total(["a"]) == costs.total([1]) == 1.0
    assert costs.position("a") == costs.position(np.int64(1)) == 1


def test_zero_costs_are_allowed():
    costs = CostModel([0, 0.0], groups=["g", None], group_costs={"g": 0}, tree_cost=0)
    assert costs.total([0, 1], n_trees=100) == 0.0
    assert CostModel.from_resources({"r": 0.0}, [["r"]]).prices().tolist() == [0.0]


def test_uniform_costs_count_features():
    costs = CostModel.uniform(3)
    assert costs.total([0, 2]) == 2.0
    assert costs == CostModel([1, 1, 1])


@pytest.mark.parametrize(
    "groups",
    [
        {"g": [0, 2], "h": [3]},
        {"h": (3,), "g": np.array([2, 0])},
        ["g", None, "g", "h"],
        ("g", None, "g", "h"),
    ],
)
def test_groups_as_mapping_or_sequence(groups):
    costs = CostModel([1, 1, 1, 1], groups=groups, group_costs={"g": 10.0, "h": 100.0})
    assert costs.prices().tolist() == [11.0, 1.0, 11.0, 101.0]
    assert costs.prices(bought=[0]).tolist() == [0.0, 1.0, 1.0, 101.0]
    assert costs.total([0, 2]) == 12.0
    assert costs.total(range(4)) == 114.0


def test_groups_by_name():
    costs = blood()
    assert costs.prices().tolist() == [1.0, 22.0, 11.0]
    assert costs.prices(bought=["T3"]).tolist() == [1.0, 20.0, 0.0]
    assert costs.total(["TSH", "T3"]) == 31.0


def test_resources_may_be_shared():
    costs = images()
    assert costs.prices().tolist() == [5.0, 5.0, 4.0]
    assert costs.prices(bought=["lbp"]).tolist() == [2.0, 2.0, 0.0]
    assert costs.prices(bought=["hog_1"]).tolist() == [0.0, 0.0, 1.0]
    assert costs.total(["hog_0", "hog_1"]) == 5.0
    assert costs.total(["hog_0", "lbp"]) == 6.0


def test_resources_without_names_or_without_any_need():
    costs = CostModel.from_resources({"a": 1.0, "b": 2.0}, [["a", "b", "a"], [], ["b"]])
    assert costs.feature_names is None
    assert costs.prices().tolist() == [3.0, 0.0, 2.0]  # a resource that is named twice counts once
    assert costs.total([0, 1, 2]) == 3.0


def test_total_is_equation_3():
    costs = blood()
    assert costs.total([], n_trees=0) == 0.0
    assert costs.total([], n_trees=6) == 3.0
    assert costs.total(["age", "T3"], n_trees=6) == 15.0
    assert costs.total(["T3", "T3"]) == 11.0


def test_total_does_not_depend_on_the_order():
    costs = CostModel([0.1, 0.2, 0.3, 1e16, 0.4])
    forward = costs.total([0, 1, 2, 3, 4], n_trees=3)
    assert costs.total([3, 4, 0, 2, 1], n_trees=3) == forward
    assert forward == naive.sum_of_prices([0.1, 0.2, 0.3, 1e16, 0.4]) == 1e16


def test_prices_are_a_copy():
    costs = CostModel([1.0, 2.0])
    costs.prices()[:] = -5.0
    assert costs.prices().tolist() == [1.0, 2.0]


# -- errors name the culprit ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cost", "complaint"),
    [
        (-1.0, "must not be negative, got -1"),
        (float("nan"), "must be finite, got nan"),
        (float("inf"), "must be finite, got inf"),
        (-float("inf"), "must be finite, got -inf"),
    ],
)
def test_bad_costs_name_the_feature(cost, complaint):
    with pytest.raises(ValueError, match=f"feature 1 {complaint}"):
        CostModel([1.0, cost])
    with pytest.raises(ValueError, match=f"feature 'TSH' {complaint}"):
        CostModel({"age": 1.0, "TSH": cost})
    with pytest.raises(ValueError, match=f"feature 'TSH' {complaint}"):
        CostModel(pd.Series({"age": 1.0, "TSH": cost}))
    with pytest.raises(ValueError, match=f"group 'draw' {complaint}"):
        CostModel([1.0], groups=["draw"], group_costs={"draw": cost})
    with pytest.raises(ValueError, match=f"resource 'hog' {complaint}"):
        CostModel.from_resources({"hog": cost}, [["hog"]])
    with pytest.raises(ValueError, match=f"tree_cost {complaint}"):
        CostModel([1.0], tree_cost=cost)
    with pytest.raises(ValueError, match=f"tree_cost {complaint}"):
        CostModel.from_resources({"hog": 1.0}, [["hog"]], tree_cost=cost)


@pytest.mark.parametrize("cost", ["dear", None, [1.0]])
def test_a_cost_must_be_a_number(cost):
    with pytest.raises(TypeError, match="feature 'TSH' must be a number"):
        CostModel({"age": 1.0, "TSH": cost})


def test_costs_must_add_up_to_a_number():
    with pytest.raises(ValueError, match="add up to more than a float can hold"):
        CostModel([1e308, 1e308])


def test_costs_must_be_one_row_of_numbers():
    with pytest.raises(ValueError, match=r"one dimension, got shape \(1, 2\)"):
        CostModel([[1.0, 2.0]])
    with pytest.raises(ValueError, match=r"one dimension, got shape \(2, 1\)"):
        CostModel(pd.DataFrame({"a": [1.0, 2.0]}))
    with pytest.raises(TypeError, match=r"a number for each feature, got 3\.0"):
        CostModel(3.0)
    with pytest.raises(TypeError, match="must be a sequence of features, got 'ab'"):
        CostModel({"a": 1.0, "b": 2.0}).total("ab")
    with pytest.raises(ValueError, match=r"^tree_cost must not be negative, got -1$"):
        CostModel([1.0], tree_cost=-1)
    with pytest.raises(TypeError, match="keyed by column name, got 7"):
        CostModel({"a": 1.0, 7: 2.0})


def test_bad_groups_name_the_group_and_the_feature():
    def build(groups, group_costs, costs=None):
        return CostModel(costs or {"a": 1.0, "b": 1.0}, groups=groups, group_costs=group_costs)

    with pytest.raises(ValueError, match="'b' is in two groups, 'g' and 'h'"):
        build({"g": ["a", "b"], "h": ["b"]}, {"g": 1.0, "h": 1.0})
    with pytest.raises(ValueError, match="group 'g' has an unknown feature 'c'"):
        build({"g": ["a", "c"]}, {"g": 1.0})
    with pytest.raises(ValueError, match="group 'g' has an unknown feature 'a'"):
        build({"g": ["a"]}, {"g": 1.0}, costs=[1.0, 1.0])
    with pytest.raises(ValueError, match="group 'g' has an unknown feature 2"):
        build({"g": [0, 2]}, {"g": 1.0})
    with pytest.raises(ValueError, match="group 'g' has an unknown feature -1"):
        build({"g": [-1]}, {"g": 1.0})
    with pytest.raises(ValueError, match="group 'h' has no entry in group_costs"):
        build({"g": ["a"], "h": ["b"]}, {"g": 1.0})
    with pytest.raises(ValueError, match="group 'g' has no entry in group_costs"):
        build({"g": ["a"]}, None)
    with pytest.raises(ValueError, match="names group 'h', which has no features"):
        build({"g": ["a"]}, {"g": 1.0, "h": 1.0})
    with pytest.raises(ValueError, match="names group 'h', which has no features"):
        build(None, {"h": 1.0})
    with pytest.raises(ValueError, match=r"'report' has no.*names 'reprot'.*mean 'report'\?$"):
        build({"report": ["a"]}, {"reprot": 1.0})
    with pytest.raises(
        ValueError, match="group 1 has no entry in group_costs, which names 10 inst"
    ):
        build({1: ["a"]}, {10: 1.0})
    with pytest.raises(ValueError, match="'reprot', which has no features; did you mean 'report'"):
        build({"report": ["a"]}, {"report": 1.0, "reprot": 1.0})
    with pytest.raises(TypeError, match=r"groups\['g'\] must be a sequence of features.*'ab'"):
        build({"g": "ab"}, {"g": 1.0})
    with pytest.raises(ValueError, match="groups has 3 entries, but there are 2 features"):
        build(["g", "g", None], {"g": 1.0})


def test_bad_needs_name_the_feature_and_the_resource():
    with pytest.raises(ValueError, match="feature 'lbp' needs resource 'gpu', which has no cost"):
        CostModel.from_resources({"decode": 1.0}, {"lbp": ["decode", "gpu"]})
    with pytest.raises(ValueError, match="feature '1' needs resource 'gpu', which has no cost"):
        CostModel.from_resources({"decode": 1.0}, [["decode"], ["gpu"]])
    with pytest.raises(TypeError, match=r"needs\['lbp'\] must be a sequence .* string 'decode'"):
        CostModel.from_resources({"decode": 1.0}, {"lbp": "decode"})


def test_unknown_features_are_named():
    with pytest.raises(ValueError, match="feature 'weight' is unknown to these costs"):
        blood().total(["age", "weight"])
    with pytest.raises(ValueError, match="feature 3 is out of range: there are 3"):
        blood().prices(bought=[3])
    with pytest.raises(ValueError, match="feature -1 is out of range"):
        blood().position(-1)
    with pytest.raises(ValueError, match="feature 'age' is unknown: these costs have no names"):
        CostModel([1.0, 2.0]).position("age")


# -- alignment with a table -----------------------------------------------------------------------


def test_align_reorders_by_name():
    aligned = blood().align(3, ["T3", "age", "TSH"])
    assert aligned.feature_names == ["T3", "age", "TSH"]
    assert aligned.prices().tolist() == [11.0, 1.0, 22.0]
    assert aligned.prices(bought=["T3"]).tolist() == [0.0, 1.0, 20.0]
    assert aligned.total(["T3", "TSH"], n_trees=2) == 32.0


@given(st.permutations(["hog_0", "hog_1", "lbp"]))
def test_align_keeps_every_total(columns):
    costs, aligned = images(), images().align(3, columns)
    assert aligned.align(3, costs.feature_names) == costs
    for feature in columns:
        assert aligned.total([feature]) == costs.total([feature])
        assert aligned.prices([feature]).sum() == costs.prices([feature]).sum()


def test_align_by_position_takes_the_columns_as_they_come():
    costs = CostModel([1.0, 2.0], groups=["g", None], group_costs={"g": 3.0})
    assert costs.align(2) is costs
    named = costs.align(2, ["a", "b"])
    assert named.feature_names == ["a", "b"]  # so that a receipt tells names
    assert named.prices(bought=["b"]).tolist() == [4.0, 0.0]
    assert costs.feature_names is None
    assert blood().align(3) == blood()  # names, but a table without any


def test_align_names_what_does_not_match():
    with pytest.raises(ValueError, match="no entry for feature 'weight'"):
        blood().align(4, ["age", "TSH", "T3", "weight"])
    with pytest.raises(ValueError, match="names a feature that X does not have: 'TSH', 'T3'"):
        blood().align(1, ["age"])
    with pytest.raises(ValueError, match=r"no entry for feature 'c0', .*, 'c4' and 2 more"):
        blood().align(7, [f"c{i}" for i in range(7)])
    with pytest.raises(ValueError, match="costs has 2 entries, but X has 3 features"):
        CostModel([1.0, 2.0]).align(3)
    with pytest.raises(ValueError, match="names 3 features, but X has 2 columns without names"):
        blood().align(2)


def test_as_cost_model_reads_what_an_estimator_is_given():
    assert as_cost_model(None, 2, None) == CostModel([1.0, 1.0])
    assert as_cost_model(None, 2, ["a", "b"]) == CostModel({"a": 1.0, "b": 1.0})
    assert as_cost_model([1.0, 2.0], 2, None) == CostModel([1.0, 2.0])
    assert as_cost_model([1.0, 2.0], 2, ["a", "b"]) == CostModel({"a": 1.0, "b": 2.0})
    assert as_cost_model({"b": 2.0, "a": 1.0}, 2, ["a", "b"]).prices().tolist() == [1.0, 2.0]
    assert as_cost_model(blood(), 3, ["T3", "age", "TSH"]).prices().tolist() == [11.0, 1.0, 22.0]
    with pytest.raises(ValueError, match="costs has 1 entries, but X has 2 features"):
        as_cost_model([1.0], 2, None)


# -- equality and printing ------------------------------------------------------------------------


def test_equality():
    assert blood() == blood()
    assert images() == images()
    different = [
        images(),
        CostModel([1.0, 20.0, 9.0]),
        CostModel({"age": 1.0, "TSH": 20.0, "T3": 9.0}, tree_cost=0.5),
        blood().align(3, ["T3", "age", "TSH"]),
    ]
    for other in different:
        assert blood() != other
    assert CostModel([1.0]) != CostModel([2.0])
    assert CostModel([1.0]) != CostModel([1.0], tree_cost=1.0)
    assert CostModel([1.0]) != [1.0]


def test_cost_models_are_not_hashable():
    with pytest.raises(TypeError, match="unhashable"):
        hash(blood())


def test_repr_sums_the_model_up():
    expected = "<CostModel of 3 features, 4 resources, total 32, tree_cost 0.5>"
    assert repr(blood()) == expected


# -- the ledger -----------------------------------------------------------------------------------


@st.composite
def shops(draw):
    """Costs of resources (some awkward in binary, some zero) and what features need."""
    costs = draw(st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.7, 1.0, 3.3, 1e9]), max_size=6))
    resources = list(range(len(costs)))
    wanted = st.lists(st.sampled_from(resources), unique=True) if resources else st.just([])
    needs = draw(st.lists(wanted, min_size=1, max_size=8))
    return costs, needs


def model_of(costs, needs, tree_cost=0.0):
    names = [f"r{i}" for i in range(len(costs))]
    return CostModel.from_resources(
        dict(zip(names, costs, strict=True)),
        [[names[r] for r in wanted] for wanted in needs],
        tree_cost=tree_cost,
    )


@given(shops(), st.data())
def test_ledger_is_a_recount_after_every_purchase(shop, data):
    costs, needs = shop
    ledger = Ledger(model_of(costs, needs))
    features = st.integers(0, len(needs) - 1)
    bought = []
    assert ledger.prices.tolist() == naive.prices(costs, needs, [])
    for feature in data.draw(st.lists(features, max_size=8)):
        before = ledger.prices.copy()
        owned = set(ledger.resources)
        new = ledger.buy(feature)
        bought.append(feature)
        assert ledger.prices.tolist() == naive.prices(costs, needs, bought)
        assert ledger.spent == naive.total(costs, needs, bought)
        assert (ledger.prices <= before).all()
        assert ledger.prices[bought].tolist() == [0.0] * len(bought)  # exactly
        assert set(new) == set(ledger.resources) - owned
        assert ledger.buy(feature) == ()


@given(shops(), st.data())
def test_any_order_of_purchases_ends_the_same(shop, data):
    costs, needs = shop
    model = model_of(costs, needs)
    bought = data.draw(st.lists(st.integers(0, len(needs) - 1)))
    one = Ledger(model, bought)
    other = Ledger(model)
    for feature in data.draw(st.permutations(bought)):
        other.buy(feature)
    assert one.spent == other.spent == model.total(bought)
    assert one.prices.tolist() == other.prices.tolist() == model.prices(bought).tolist()
    assert one.resources == other.resources


@given(shops(), st.data())
def test_prices_if_is_what_buying_would_do(shop, data):
    costs, needs = shop
    flags = st.lists(st.booleans(), min_size=len(needs), max_size=len(needs))
    ledger = Ledger(model_of(costs, needs))
    for feature in np.flatnonzero(data.draw(flags)):
        ledger.buy(feature)
    before = ledger.prices.copy(), ledger.spent
    marked = np.array(data.draw(flags))
    promised = ledger.prices_if(marked)
    assert ledger.prices.tolist() == before[0].tolist()
    assert ledger.spent == before[1]
    for feature in np.flatnonzero(marked):
        ledger.buy(feature)
    np.testing.assert_allclose(promised, ledger.prices, rtol=1e-14)
    assert (promised[ledger.prices == 0.0] == 0.0).all()


@given(shops(), st.data(), st.sampled_from([0.0, 0.1, 2.5]), st.integers(0, 1000))
def test_total_with_one_more_feature_is_the_total_after_buying_it(shop, data, tree_cost, n_trees):
    costs, needs = shop
    features = st.integers(0, len(needs) - 1)
    bought, wanted = data.draw(st.lists(features, max_size=5)), data.draw(features)
    ledger = Ledger(model_of(costs, needs, tree_cost), bought)
    now, then = ledger.total(n_trees), ledger.total(n_trees, with_feature=wanted)
    trees = naive.cost_of_trees(tree_cost, n_trees)
    assert now == naive.total(costs, needs, bought, trees)
    assert then == naive.total(costs, needs, [*bought, wanted], trees)
    assert then >= now
    assert ledger.total(n_trees) == now  # asking buys nothing
    ledger.buy(wanted)
    assert ledger.total(n_trees) == then


def cents(n):
    return float(f"{n // 100}.{n % 100:02d}")


@given(
    prices=st.lists(st.integers(0, 10**6), min_size=1, max_size=40),
    tree=st.integers(0, 500),
    n_trees=st.integers(0, 300),
    data=st.data(),
)
def test_sums_are_those_of_the_decimals_that_were_written(prices, tree, n_trees, data):
    """In cents: the sum is the float that a person would have written for it."""
    costs = CostModel([cents(price) for price in prices], tree_cost=cents(tree))
    some = data.draw(st.lists(st.sampled_from(range(len(prices))), unique=True))
    expected = cents(sum(prices[f] for f in some) + tree * n_trees)
    assert costs.total(some, n_trees) == expected
    ledger = Ledger(costs)
    for feature in some:
        ledger.buy(feature)
    assert ledger.total(n_trees) == expected
    meter = Meter.of(costs, range(len(prices)))
    assert meter.bills(meter.owning([some]), n_trees).tolist() == [expected]
    owners = np.zeros(len(prices), dtype=np.int64)
    owners[some] = 7
    assert mean_bill(costs, owners, 7, n_trees) == expected


def test_numbers_that_were_computed_count_as_they_are():
    third = 1 / 3  # of sixteen digits, which nobody has written
    assert CostModel([third] * 3).total([0, 1, 2]) == math.fsum([third] * 3)
    assert sum_of_prices([third, third]) == 2 / 3
    assert CostModel([0.1] * 3).total([0, 1, 2]) == 0.3 != math.fsum([0.1] * 3)


def test_what_sums_are_made_of_is_not_part_of_a_copy():
    costs = CostModel([0.1, 0.2])
    before = pickle.dumps(costs)
    costs.total([0, 1])
    assert pickle.dumps(costs) == before


def test_budget_arithmetic_is_rounded_once():
    # 0.1 + 0.2 + 0.3 is 0.6000000000000001 from left to right, and 0.6 if rounded once.
    ledger = Ledger(CostModel([0.1, 0.2, 0.3]), [0, 1])
    assert ledger.total(with_feature=2) == 0.6
    # Ten trees at 0.1 leave room for exactly one feature in a budget of 2.
    ledger = Ledger(CostModel([1.0, 1.0], tree_cost=0.1))
    assert ledger.total(10, with_feature=0) == 2.0
    ledger.buy(0)
    assert ledger.total(10, with_feature=0) == 2.0
    assert ledger.total(10, with_feature=1) == 3.0


def test_ledger_starts_with_names_or_positions():
    assert Ledger(blood(), ["TSH"]).resources == ["TSH", "draw"]
    assert Ledger(blood(), [1]).prices.tolist() == [1.0, 0.0, 9.0]
    assert Ledger(blood()).resources == []
    assert Ledger(blood()).spent == 0.0


def test_buying_reports_what_is_new():
    ledger = Ledger(blood())
    assert set(ledger.buy(1)) == {"draw", "TSH"}
    assert ledger.buy(2) == ("T3",)
    assert ledger.buy(1) == ()
    assert ledger.spent == 31.0


# -- the receipt ----------------------------------------------------------------------------------


def purchases():
    return [
        Purchase(0, 0, 1, "TSH", ("draw", "TSH"), 22.0, 22.0, 0.25),
        Purchase(12, 0, 0, "T3", ("T3",), 9.0, 31.0, 0.001234),
        Purchase(12, 1, 2, "age", ("age",), 1.0, 32.0, 1e-5),
    ]


def test_receipt_prints_as_a_table():
    assert repr(Receipt(purchases())) == "<Receipt of 3 purchases, 32 in all>"
    assert str(Receipt(purchases())).splitlines() == [
        "round  feature  pays for   price  spent     gain",
        "    0  TSH      draw, TSH     22     22     0.25",
        "   12  T3       T3             9     31  0.00123",
        "   12  age      age            1     32    1e-05",
    ]
    assert repr(Receipt([])) == "<Receipt of 0 purchases, 0 in all>"
    assert str(Receipt([])) == "round  feature  pays for  price  spent  gain"


def test_receipt_is_a_sequence():
    receipt = Receipt(purchases())
    assert len(receipt) == 3
    assert receipt[0].feature == "TSH"
    assert receipt[-1] == purchases()[-1]
    assert [line.price for line in receipt] == [22.0, 9.0, 1.0]
    assert receipt.total == 32.0
    assert Receipt([]).total == 0.0


def test_a_slice_of_a_receipt_is_a_receipt():
    start = Receipt(purchases())[:2]
    assert isinstance(start, Receipt)
    assert start == Receipt(purchases()[:2])
    assert start.total == 31.0
    assert start != Receipt(purchases())
    assert start != purchases()[:2]


def test_receipt_to_frame():
    frame = Receipt(purchases()).to_frame()
    assert list(frame.columns) == list(Receipt.columns)
    assert frame["feature"].tolist() == ["TSH", "T3", "age"]
    assert frame["resources"].tolist() == [("draw", "TSH"), ("T3",), ("age",)]
    assert frame["spent"].tolist() == [22.0, 31.0, 32.0]
    assert frame["output"].tolist() == [0, 0, 1]
    empty = Receipt([]).to_frame()
    assert empty.shape == (0, len(Receipt.columns))


def test_a_series_by_position_must_be_in_order():
    with pytest.raises(ValueError, match="in order"):
        CostModel(pd.Series([3.0, 1.0, 2.0]).sort_values())


def test_a_series_names_each_feature_once():
    with pytest.raises(ValueError, match="two entries for 'a'"):
        CostModel(pd.Series([3.0, 1.0], index=["a", "a"]))


def test_costs_by_name_need_named_columns():
    with pytest.raises(ValueError, match="X has no column names"):
        as_cost_model({"a": 1.0, "b": 2.0}, 2, None)
    # A cost model's features are in order, so it may meet an array.
    assert as_cost_model(CostModel({"a": 1.0, "b": 2.0}), 2, None).prices().tolist() == [1.0, 2.0]


def test_a_misspelt_name_is_told_beside_the_missing_one():
    with pytest.raises(ValueError, match="no entry for feature 'TSH'; it names 'TSHH'"):
        as_cost_model({"TSHH": 1.0}, 1, ["TSH"])


# -- many names -----------------------------------------------------------------------------------


class Counted(str):
    """A name that counts how often it is compared."""

    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        Counted.comparisons += 1
        return str.__eq__(self, other)


@pytest.fixture
def names(monkeypatch):
    monkeypatch.setattr(Counted, "comparisons", 0)
    return [Counted(f"column {i}") for i in range(400)]


def again(names):
    """Equal names that are not the same objects, which would be found without a comparison."""
    return [Counted(name) for name in names]


NAMED = {
    "from resources": lambda names: CostModel.from_resources(
        dict.fromkeys(names, 1.0), {name: [name] for name in again(names)}
    ),
    "by name": lambda names: CostModel(dict.fromkeys(names, 1.0)),
    "series": lambda names: CostModel(pd.Series(1.0, index=pd.Index(names, dtype=object))),
    "groups": lambda names: CostModel(
        dict.fromkeys(names, 1.0),
        groups={name: [name] for name in again(names)},
        group_costs=dict.fromkeys(again(names), 2.0),
    ),
}


@pytest.mark.parametrize("kind", NAMED)
def test_the_work_grows_with_the_names_and_not_with_their_square(kind, names):
    costs = NAMED[kind](names)
    aligned = costs.align(len(names), again(reversed(names)))
    assert aligned.total(again(names)) == costs.total(names)
    assert aligned.prices(bought=again(names)).max() == 0.0
    assert [aligned.position(name) for name in again(names)] == list(reversed(range(400)))
    # A look at all names for each of them would be 80,000 comparisons, at least.
    assert 0 < Counted.comparisons < 20 * len(names)


def test_names_that_do_not_match_are_found_at_one_look(names):
    costs = CostModel(dict.fromkeys(names, 1.0))
    with pytest.raises(ValueError, match="no entry for feature 'x'; it names 'column 0'"):
        costs.align(400, [*again(names[1:]), "x"])
    assert Counted.comparisons < 20 * len(names)


def test_costs_with_many_names_are_written_at_one_look(names, tmp_path):
    write_costs(tmp_path / "costs.toml", CostModel(dict.fromkeys(names, 1.0)))
    assert Counted.comparisons < 20 * len(names)


def test_where_names_are_is_not_part_of_a_copy():
    costs = blood()
    before = len(pickle.dumps(costs))
    assert costs.position("T3") == 2
    assert len(pickle.dumps(costs)) == before
    renamed = CostModel([1.0, 2.0]).align(2, ["a", "b"])
    assert renamed.position("b") == 1
    assert renamed.align(2, ["b", "a"]).position("b") == 0


# From a table


TABLE = {
    "feature": ["age", "TSH", "T3"],
    "price": [1.0, 20.68, 9.31],
    "group": [None, "blood", "blood"],
}
BLOOD = CostModel(
    {"age": 1.0, "TSH": 20.68, "T3": 9.31},
    groups={"blood": ["TSH", "T3"]},
    group_costs={"blood": 2.10},
)


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_costs_from_a_frame(library):
    module = pytest.importorskip(library)
    make = module.table if library == "pyarrow" else module.DataFrame
    assert CostModel.from_frame(make(TABLE), group_costs={"blood": 2.10}) == BLOOD
    priced = make(TABLE | {"group_price": [None, 2.10, None]})
    assert CostModel.from_frame(priced) == BLOOD
    plain = make({"name": ["a", "b"], "cost": [1, 0]})
    found = CostModel.from_frame(plain, feature="name", price="cost", tree_cost=0.5)
    assert found == CostModel({"a": 1.0, "b": 0.0}, tree_cost=0.5)


def test_a_feature_of_a_frame_may_have_several_groups():
    polars = pytest.importorskip("polars")
    table = polars.DataFrame(
        {"feature": ["hog", "lbp"], "price": [1.0, 2.0], "group": [["decode", "grey"], ["decode"]]}
    )
    costs = CostModel.from_frame(table, group_costs={"decode": 10.0, "grey": 20.0})
    assert costs.total(["hog"]) == 31.0
    assert costs.prices(bought=["hog"]).tolist() == [0.0, 2.0]


def test_a_feature_may_be_named_like_its_group():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"feature": ["a", "b"], "price": [1.0, 2.0], "group": ["a", "a"]})
    costs = CostModel.from_frame(table, group_costs={"a": 4.0})
    assert costs.prices().tolist() == [5.0, 6.0]


@pytest.mark.parametrize(
    ("features", "groups", "prices"),
    [
        (["a", "a itself"], ["a", None], [3.0, 7.0]),
        (["a", "b"], ["a", "a itself"], [3.0, 27.0]),
        (["a", "a itself"], ["a", "a itself"], [3.0, 27.0]),
    ],
)
def test_no_name_that_is_made_up_is_a_name_already(features, groups, prices):
    pandas = pytest.importorskip("pandas")
    cost_of = {"a": 2.0, "a itself": 20.0}
    used = {group: cost_of[group] for group in groups if group is not None}
    table = pandas.DataFrame({"feature": features, "price": [1.0, 7.0], "group": groups})
    costs = CostModel.from_frame(table, group_costs=used)
    assert costs.prices().tolist() == prices
    assert costs == CostModel(
        dict(zip(features, [1.0, 7.0], strict=True)), groups=groups, group_costs=used
    )
    assert len(set(costs.resource_names)) == len(costs.resource_names)


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ({"price": None}, {}, "no column 'price'; it has"),
        ({"feature": ["age", "TSH", "age"]}, {}, "'age' is in the table twice, again in row 2"),
        ({"feature": ["age", None, "T3"]}, {}, "'feature' in row 1 must be a name"),
        ({"price": [1.0, -2.0, 3.0]}, {}, "'TSH' in row 1 must not be negative, got -2"),
        ({"price": [1.0, float("inf"), 3.0]}, {}, "'TSH' in row 1 must be finite, got inf"),
        ({"price": [1.0, None, 3.0]}, {}, "'price' of 'TSH' in row 1 is missing"),
        ({"price": ["1", "dear", "2"]}, {}, "'price' of 'TSH' in row 1 must be a number"),
        ({"price": [1.0, np.ones(2), 2.0]}, {}, "'TSH' in row 1 must be a number, got array"),
        ({"price": [1.0, np.ones(1), 2.0]}, {}, "'TSH' in row 1 must be a number, got array"),
        ({"group_price": [None, None, np.ones(2)]}, {}, "'group_price' in row 2 must be a number"),
        ({}, {}, "group 'blood' has no price"),
        (
            {},
            {"group_costs": {"blod": 2.0}},
            "no price.*names 'blod' instead; did you mean 'blood'",
        ),
        (
            {"group_price": [None, 1.0, 1.0]},
            {"group_costs": {"blood": 2.0}},
            "group 'blood' costs 2 in group_costs, but 1 in the table",
        ),
        ({}, {"group_costs": {"blood": -1.0}}, "group 'blood' in group_costs must not be negative"),
        ({}, {"group_costs": {"blood": 1.0, "x": 1.0}}, "names group 'x'"),
        ({"group_price": [None, 1.0, 2.0]}, {}, "is 2, but group 'blood' cost 1 above"),
        ({"group_price": [1.0, 1.0, 1.0]}, {}, "in row 0 is 1.0, but the row names 0 groups"),
        ({"feature": [], "price": [], "group": []}, {}, "no rows"),
    ],
)
def test_tables_that_are_no_price_lists(change, arguments, message):
    pandas = pytest.importorskip("pandas")
    columns = {name: cells for name, cells in (TABLE | change).items() if cells is not None}
    with pytest.raises((ValueError, TypeError), match=message):
        CostModel.from_frame(pandas.DataFrame(columns), **arguments)


def test_what_is_no_frame():
    with pytest.raises(TypeError, match="must be a data frame of pandas, polars or pyarrow, got"):
        CostModel.from_frame([("age", 1.0)])


# Views


class Cells(HTMLParser):
    """The text of all cells, row by row."""

    def __init__(self, page):
        super().__init__()
        self.rows, self._cell = [], None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        self._cell = tag in ("td", "th")

    def handle_endtag(self, tag):
        self._cell = False

    def handle_data(self, data):
        if self._cell:
            self.rows[-1].append(data)


def test_notebooks_show_prices_and_what_they_are_made_of():
    page = BLOOD._repr_html_()
    assert Cells(page).rows == [
        ["feature", "price at first", "needs"],
        ["age", "1", "age 1"],
        ["TSH", "22.78", "TSH 20.68 + blood 2.1"],
        ["T3", "11.41", "T3 9.31 + blood 2.1"],
    ]
    assert "CostModel of 3 features" in page


def test_notebooks_show_receipts():
    rows = Cells(Receipt(purchases())._repr_html_()).rows
    assert rows[0] == ["round", "feature", "pays for", "price", "spent", "gain"]
    assert rows[1] == ["0", "TSH", "draw, TSH", "22", "22", "0.25"]
    assert len(rows) == 4


def test_names_are_no_markup():
    page = CostModel({"<b>a</b>": 1.0})._repr_html_()
    assert "<b>" not in page
    assert Cells(page).rows[1][0] == "<b>a</b>"


def test_long_tables_are_cut_in_the_middle():
    rows = Cells(CostModel(np.arange(1000.0))._repr_html_()).rows
    assert len(rows) == 1 + 40 + 1
    assert rows[21] == ["\u2026 960 more"]
    assert [rows[1][0], rows[20][0], rows[22][0], rows[-1][0]] == ["0", "19", "980", "999"]
