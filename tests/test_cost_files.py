from __future__ import annotations

import os
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from greedymiser.costs.cost_model import CostModel
from greedymiser.costs.files import (
    CostFileError,
    read_costs,
    template,
    write_costs,
    write_template,
)
from greedymiser.datasets import load_thyroid

BY_GROUP = """
unit = "dollars"
tree_cost = 0.5

[features]
age = 1
TSH = 20.68
T3 = 9.31

[groups."blood draw"]
cost = 2.10
features = ["TSH", "T3"]
"""

BY_RESOURCE = """
[resources]
decode = 3.0
hog = 2.0

[needs]
hog_0 = ["decode", "hog"]
size = []
width = ["decode"]
"""

CSV = """\
feature,cost,group
age,1,
TSH,20.68,blood draw
,2.10,blood draw
T3,9.31,blood draw
"""

NAMES = ["age", "size [cm]", "x.y", 'say "hi"', "a,b", "τ", "1", "back\\slash", "#no comment", "="]


@pytest.fixture
def cost_file(tmp_path):
    def write(content: str | bytes, name: str = "costs.toml"):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


# What is read


def test_features_and_groups(cost_file):
    read = read_costs(cost_file(BY_GROUP))
    assert read.unit == "dollars"
    assert read.costs == CostModel(
        {"age": 1.0, "TSH": 20.68, "T3": 9.31},
        groups={"blood draw": ["TSH", "T3"]},
        group_costs={"blood draw": 2.10},
        tree_cost=0.5,
    )


def test_resources_and_needs(cost_file):
    read = read_costs(cost_file(BY_RESOURCE))
    assert read.unit is None
    assert read.costs.feature_names == ["hog_0", "size", "width"]
    assert read.costs.prices().tolist() == [5, 0, 3]
    assert read.costs.prices(bought=["width"]).tolist() == [2, 0, 0]
    assert read.costs.tree_cost == 0


def test_csv(cost_file):
    read = read_costs(str(cost_file(CSV, "costs.csv")))
    assert read.unit is None
    assert read.costs.prices().tolist() == pytest.approx([1, 22.78, 11.41])
    assert read.costs.prices(bought=["T3"]).tolist() == pytest.approx([1, 20.68, 0])


@pytest.mark.parametrize(
    "text",
    [
        "feature,cost\na,1\nb,2\n",
        "cost,feature\n1,a\n2,b",
        "Feature , COST\r\na, 1\r\n\r\nb ,2\r\n",
        "\ufefffeature,cost\na,1\n,\nb,2e0\n",
        '"feature","cost"\n"a","1"\n"b","2"\n',
        "feature,cost,group\na,1,\nb,2,\n",
    ],
)
def test_csv_as_people_write_it(cost_file, text):
    assert read_costs(cost_file(text, "costs.CSV")).costs == CostModel({"a": 1, "b": 2})


def test_toml_with_a_byte_order_mark(cost_file):
    assert read_costs(cost_file("\ufeff" + BY_GROUP)).unit == "dollars"


# Round trips


@pytest.mark.parametrize("suffix", [".toml", ".csv"])
def test_templates_are_cost_files(tmp_path, suffix):
    path = tmp_path / f"costs{suffix}"
    write_template(path, NAMES)
    read = read_costs(path)
    assert read.costs == CostModel(dict.fromkeys(NAMES, 1.0))
    assert read.unit is None
    assert path.read_bytes().decode() == template(NAMES, suffix)


@given(st.lists(st.text(min_size=1), min_size=1, max_size=4, unique=True))
def test_toml_templates_hold_any_name(tmp_path_factory, names):
    # Encoded as UTF-8, so without halves of a pair; tmp_path would be shared between examples.
    names = [name for name in names if name.isprintable() or "\x7f" in name or "\n" in name]
    if not names or any("\ud800" <= letter <= "\udfff" for letter in "".join(names)):
        return
    path = tmp_path_factory.mktemp("names") / "costs.toml"
    write_template(path, names)
    assert read_costs(path).costs.feature_names == names


def test_what_the_template_advises_is_read(cost_file):
    """The comments of the template, with their signs removed, make sense."""
    groups, resources = template(["TSH", "T3"]).split("# Where features share")
    by_group = groups.replace("# [groups", "[groups").replace("# cost", "cost")
    by_group = by_group.replace("# features =", "features =")
    assert read_costs(cost_file(by_group)).costs.prices().tolist() == [3.1, 3.1]
    lines = re.findall(r"^# (\[.*|\w+ = .*)$", resources, re.MULTILINE)
    read = read_costs(cost_file("\n".join(lines)))
    assert read.costs.prices().tolist() == [30, 35]
    assert read.errors == {"ill": {"well": 50.0}, "well": {"ill": 10.0}}


def test_columns_that_are_no_features(cost_file):
    assert read_costs(cost_file(BY_GROUP)).not_features == ()
    left_out = {name: f"because of {name}" for name in NAMES[3:]}
    path = cost_file(template(NAMES[:3], left_out={**left_out, "dropped": ""}))
    read = read_costs(path)
    assert read.costs.feature_names == NAMES[:3]
    assert read.not_features == (*left_out, "dropped")


def test_what_errors_cost_is_read_and_written(cost_file, tmp_path):
    errors = {"ill": {"well": 50.0, "call the doctor": -0.5}, "not ill": {"ill": 10.0}}
    text = "[features]\na = 1\n[errors.ill]\nwell = 50\n'call the doctor' = -0.5\n"
    read = read_costs(cost_file(text + "[errors.'not ill']\nill = 10"))
    assert read.errors == errors
    write_costs(tmp_path / "again.toml", read.costs, errors=errors)
    assert read_costs(tmp_path / "again.toml").errors == errors
    assert read_costs(cost_file("[features]\na = 1")).errors is None


@pytest.mark.parametrize(
    ("costs", "unit"),
    [
        (load_thyroid().costs, "dollars"),
        (CostModel(dict(zip(NAMES, np.geomspace(1e-300, 1e300, 10), strict=True))), None),
        (CostModel({"a": 1.0}, groups={"a": ["a"]}, group_costs={"a": 0.1}, tree_cost=0.3), "€"),
        (CostModel.from_resources({"unused": 4.0}, {"free": []}), 'a "unit"'),
    ],
)
def test_written_costs_are_read_back(tmp_path, costs, unit):
    write_costs(tmp_path / "costs.toml", costs, unit=unit)
    read = read_costs(tmp_path / "costs.toml")
    for kept in (costs, read.costs):
        kept.needs = [tuple(sorted(wanted)) for wanted in kept.needs]  # their order says nothing
    assert (read.costs, read.unit) == (costs, unit)


def test_costs_that_cannot_be_written(tmp_path):
    with pytest.raises(ValueError, match="only costs whose features have names"):
        write_costs(tmp_path / "costs.toml", CostModel([1.0, 2.0]))
    with pytest.raises(ValueError, match=r"written as TOML, but 'costs\.csv' ends in '\.csv'"):
        write_costs(tmp_path / "costs.csv", CostModel({"a": 1.0}))
    twins = CostModel({"a": 1.0, "b": 1.0})
    twins.resource_names = ["a", "a"]
    with pytest.raises(ValueError, match="two resources are named 'a'"):
        write_costs(tmp_path / "costs.toml", twins)
    assert list(tmp_path.iterdir()) == []


# Errors


@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_template(path, ["age"]),
        lambda path: write_costs(path, CostModel({"age": 1})),
    ],
    ids=["template", "costs"],
)
def test_files_are_written_at_once_or_not_at_all(tmp_path, monkeypatch, write):
    path = tmp_path / "costs.toml"
    path.write_text("precious")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="No space left") as caught:
            write(path)
    assert caught.value.filename == str(path)
    assert path.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no cost file at '.*nowhere\.toml'"):
        read_costs(tmp_path / "nowhere.toml")


@pytest.mark.parametrize("name", ["costs.json", "costs"])
def test_other_suffixes(tmp_path, name):
    with pytest.raises(CostFileError, match=rf"ends in \.toml or \.csv, but '.*{name}' ends in"):
        read_costs(tmp_path / name)
    with pytest.raises(ValueError, match="ends in"):
        write_template(tmp_path / name, ["a"])
    with pytest.raises(ValueError, match="templates for"):
        template(["a"], ".json")


@pytest.mark.parametrize("name", ["costs.toml", "costs.csv"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "is not a text file"),
    ],
)
def test_neither_toml_nor_csv(cost_file, name, content, message):
    with pytest.raises(CostFileError, match=message) as caught:
        read_costs(cost_file(content, name))
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[features]\na = ", "not valid TOML: invalid value (at end of document)"),
        ("[features]\na = 1\na = 2\n", "not valid TOML: cannot overwrite a value (at line 3"),
        ("feature,cost\na,1\n", "not valid TOML: expected '=' after a key"),
        ("a = 1", "unknown key 'a'; known are unit, tree_cost, features"),
        ("[feature]\na = 1", "unknown key 'feature'"),
        ("unit = 1\n[features]\na = 1", "unit must be a string, got 1"),
        ("tree_cost = -1\n[features]\na = 1", "tree_cost must not be negative, got -1"),
        ("tree_cost = '1'\n[features]\na = 1", "tree_cost must be a number, got '1'"),
        ("unit = 'dollars'", "there is no table [features]"),
        ("not_features = 'a'\n[features]\nb = 1", "not_features must be a list of names, got 'a'"),
        ("not_features = ['b']\n[features]\nb = 1", "not_features names 'b', which has a cost"),
        ("[features]", "the table [features] is empty"),
        ("features = 3", "features must be a table, got 3"),
        ("[features]\na = -0.5", "features.a must not be negative, got -0.5"),
        ("[features]\n'b c' = 'x'", "features.\"b c\" must be a number, got 'x'"),
        ("[features]\na = true", "features.a must be a number, got True"),
        ("[features]\na = nan", "features.a must be finite, got nan"),
        ("[features]\na = inf", "features.a must be finite, got inf"),
        (f"[features]\na = 1{'0' * 400}", "features.a must be finite, got inf"),
        ("[features]\na.b = 1", "a table with the key 'b'; put names that contain a dot into"),
        ("[features]\na = 1\n[groups]\ng = 1", "groups.g must be a table with cost and features"),
        ("[features]\na = 1\n[groups.g]\ncost = 1", "groups.g has no features"),
        ("[features]\na = 1\n[groups.g]\nfeatures = ['a']", "groups.g has no cost"),
        ("[features]\na = 1\n[groups.g]\nprice = 1", "groups.g has an unknown key 'price'"),
        (
            "[features]\na = 1\n[groups.g]\ncost = 1\nfeatures = 'a'",
            "groups.g.features must be a list of names, got 'a'",
        ),
        (
            "[features]\na = 1\n[groups.g]\ncost = -1\nfeatures = ['a']",
            "groups.g.cost must not be negative, got -1",
        ),
        (
            "[features]\na = 1\n[groups.g]\ncost = 1\nfeatures = []",
            "groups.g.features is empty",
        ),
        (
            "[features]\na = 1\n[groups.g]\ncost = 1\nfeatures = ['b']",
            "groups.g.features names 'b', which has no cost in features",
        ),
        (
            "[features]\na = 1\n[groups]\ng = {cost = 1, features = ['a']}\n"
            "h = {cost = 1, features = ['a']}",
            "groups.h.features names 'a', which is in group 'g' already",
        ),
        ("[features]\na = 1\n[needs]\na = []", "write one pair or the other"),
        ("[resources]\nr = 1", "there is no table [needs]"),
        ("[needs]\na = ['r']", "there is no table [resources]"),
        ("[resources]\nr = -1\n[needs]\na = ['r']", "resources.r must not be negative, got -1"),
        ("[resources]\nr = 1\n[needs]\na = 'r'", "needs.a must be a list of names, got 'r'"),
        ("[resources]\nr = 1\n[needs]\na = [1]", "needs.a must be a list of names, got [1]"),
        (
            "[resources]\nr = 1\n[needs]\na = ['r', 's']",
            "needs.a names 's', which has no cost in resources",
        ),
        ("errors = 3\n[features]\na = 1", "errors must be a table, got 3"),
        ("[features]\na = 1\n[errors]", "the table [errors] is empty"),
        ("[features]\na = 1\n[errors]\nill = 5", "errors.ill must be a table from what is said"),
        (
            "[features]\na = 1\n[errors.ill]\nwell = 'x'",
            "errors.ill.well must be a number, got 'x'",
        ),
        ("[features]\na = 1\n[errors.ill]\nwell = nan", "errors.ill.well must be finite, got nan"),
        (
            f"[features]\na = 1\n[errors.ill]\nwell = 1{'0' * 400}",
            "errors.ill.well must be finite, got inf",
        ),
        ("[features]\na = 1.7e308\nb = 1.7e308", "add up to more than a float can hold"),
    ],
)
def test_toml_errors(cost_file, text, message):
    path = cost_file(text)
    with pytest.raises(CostFileError) as caught:
        read_costs(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{str(path)!r}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("feature\na\n", "line 1 must name the columns feature and cost, but has no cost"),
        ("cost\n1\n", "but has no feature"),
        ("name,cost\na,1\n", "line 1 must name the columns feature, cost and perhaps group, got"),
        ("feature;cost\na;1\n", "got 'feature;cost'"),
        ("feature,cost,cost\na,1,1\n", "line 1 names a column twice"),
        ("feature,cost\n", "a header, but no feature"),
        ("feature,cost\na,1\nb\n", "line 3 has 1 cells, but the header has 2"),
        ("feature,cost\na,1\nb,\n", "line 3 gives no cost for feature 'b'"),
        ("feature,cost\na,1\n,2\n", "line 3 names no feature"),
        ("feature,cost\na,1\nb,-2\n", "line 3: the cost of feature 'b' must not be negative, got"),
        ("feature,cost\na,one\n", "line 2: the cost of feature 'a' must be a number, got 'one'"),
        ("feature,cost\na,nan\n", "line 2: the cost of feature 'a' must be finite, got nan"),
        ("feature,cost\na,1\nb,2\n\na,3\n", "line 5 gives a cost for feature 'a' again, after lin"),
        ("feature,cost,group\na,1,g\n", "line 2 puts 'a' in group 'g', but no line without a"),
        ("feature,cost,group\na,1,\n,2,g\n", "line 3 prices group 'g', which has no feature"),
        ("feature,cost,group\n,2,g\na,1,g\n,2,g\n", "line 4 gives a cost for group 'g' again"),
        ("feature,cost,group\n,-2,g\na,1,g\n", "line 2: the cost of group 'g' must not be negati"),
        ('feature,cost\n"a,1\n', "not valid CSV"),
    ],
)
def test_csv_errors(cost_file, text, message):
    path = cost_file(text, "costs.csv")
    with pytest.raises(CostFileError) as caught:
        read_costs(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{str(path)!r}: ")
    assert "\n" not in str(caught.value)
