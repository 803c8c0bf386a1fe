"""Registering sources, and reading what they return."""

from __future__ import annotations

import functools
import math
import pickle
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from greedymiser import CostModel
from greedymiser.on_demand import Sources
from greedymiser.on_demand.sources import read_values


def image_sources() -> Sources:
    sources = Sources()

    @sources.intermediate
    def pixels(raw):
        return np.asarray(raw, dtype=float)

    @sources.intermediate()
    def edges(pixels):
        return np.diff(pixels)

    @sources.columns("mean", "std")
    def brightness(pixels):
        return pixels.mean(), pixels.std()

    @sources.columns
    def sharpness(edges, pixels):
        return np.abs(edges).max() / pixels.max()

    return sources


# Registering


def test_decorators_return_the_function_itself():
    sources = Sources()

    def size(raw):
        return len(raw)

    def twice(raw):
        return 2 * len(raw)

    def parts(raw):
        return raw.split()

    assert sources.columns(size) is size
    assert sources.columns("double")(twice) is twice
    assert sources.intermediate(parts) is parts
    assert sources.column_names == ["size", "double"]
    assert [source.kind for source in sources] == ["source", "source", "intermediate"]


def test_columns_come_in_the_order_of_registration():
    sources = image_sources()
    assert sources.column_names == ["mean", "std", "sharpness"]
    assert len(sources) == 4
    assert "pixels" in sources
    assert sources["brightness"].columns == ("mean", "std")
    assert sources.maker("std").name == "brightness"
    assert repr(sources) == "<Sources of 3 columns: 2 sources, 2 intermediates>"


def test_a_plan_has_what_is_needed_and_nothing_else():
    sources = image_sources()
    names = [[source.name for source in sources.plan(columns)] for columns in (["std"], None)]
    assert names == [["pixels", "brightness"], ["pixels", "brightness", "edges", "sharpness"]]
    assert sources.plan([]) == []


def test_needs_are_those_of_a_cost_model():
    needs = image_sources().needs()
    assert needs == {
        "mean": ["pixels", "brightness"],
        "std": ["pixels", "brightness"],
        "sharpness": ["pixels", "edges", "sharpness"],
    }
    prices = {"pixels": 5.0, "edges": 2.0, "brightness": 1.0, "sharpness": 0.5}
    assert CostModel.from_resources(prices, needs).total(["std", "sharpness"]) == 8.5


def test_sources_may_need_other_sources_and_come_in_any_order():
    sources = Sources(raw="blood")

    @sources.columns
    def FTI(TT4, T4U):  # noqa: N802
        return TT4 / T4U

    sources.add(lambda blood: blood["TT4"], ["TT4"], name="TT4")
    sources.add(lambda blood: blood["T4U"], ["T4U"], name="T4U")
    sources.check()
    assert [source.name for source in sources.plan(["FTI"])] == ["TT4", "T4U", "FTI"]


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(*[st.sets(st.integers(0, n))] * n)))
def test_any_plan_puts_needs_first_and_is_complete(graph):
    """Source i needs those of its set that are smaller than i; number 0 is the object."""
    sources = Sources()
    closure: dict[int, set[int]] = {0: set()}
    for i, wanted in enumerate(graph, start=1):
        before = sorted(j for j in wanted if j < i)
        closure[i] = {i}.union(*(closure[j] for j in before))
        needs = ["raw" if j == 0 else f"s{j}" for j in before]
        sources.add(lambda *_: 0.0, [f"c{i}"], name=f"s{i}", needs=needs)
    for i in range(1, len(graph) + 1):
        names = [source.name for source in sources.plan([f"c{i}"])]
        assert set(names) == {f"s{j}" for j in closure[i]}
        assert len(names) == len(set(names))
        for source in sources.plan([f"c{i}"]):
            for need in source.needs:
                assert need == "raw" or names.index(need) < names.index(source.name)


def test_defaults_are_left_alone_and_keywords_are_passed_by_keyword():
    sources = Sources()

    def zoned(raw, /, cells=4, *, scale, pad=0):
        return raw * cells * scale + pad

    sources.add(zoned, ["zoned"])
    sources.add(lambda raw: 10, name="scale")
    source = sources["zoned"]
    assert source.needs == ("raw", "scale")
    assert source.call([2, 10]) == 80


def test_functions_without_a_name_or_with_other_parameters():
    sources = Sources()
    sources.add(len, ["length"], needs=["raw"])
    sources.add(functools.partial(max, 3), ["most"], name="most", needs=["len"])
    assert [source.name for source in sources.plan(["most"])] == ["len", "most"]
    with pytest.raises(ValueError, match=r"no name of its own; pass name="):
        sources.add(functools.partial(max, 3), ["x"], needs=["raw"])
    with pytest.raises(ValueError, match="no name of its own"):
        sources.add(lambda raw: 1, ["x"])


class AsyncCallable:
    async def __call__(self, raw):
        return 1.0


def test_coroutines_are_known_as_such():
    async def fetch(raw, url="x"):
        return 1.0

    sources = Sources()
    sources.add(fetch, ["a"])
    sources.add(functools.partial(fetch, url="y"), ["b"], name="partial", needs=["raw"])
    sources.add(AsyncCallable(), ["c"], name="callable")
    sources.add(lambda raw: 1.0, ["d"], name="plain")
    assert [source.is_coroutine for source in sources] == [True, True, True, False]


def length(raw):
    return len(raw)


def test_sources_can_be_pickled():
    sources = Sources()
    sources.add(length, ["length"])
    again = pickle.loads(pickle.dumps(sources))
    assert again.column_names == ["length"]
    assert again["length"].function is length


# Mistakes


@pytest.mark.parametrize(
    ("register", "message"),
    [
        (lambda s: s.columns(), "at least one column"),
        (lambda s: s.columns("a", "a")(length), r"'length' names column 'a' twice"),
        (lambda s: s.columns("old")(length), r"'old' is made by two sources, 'other' and 'length'"),
        (
            lambda s: s.add(length, ["a"], name="other"),
            "two sources or intermediates named 'other'",
        ),
        (lambda s: s.add(length, ["a"], name="raw"), "'raw' is the object itself"),
        (lambda s: s.add(length, ["a"], categorical=["b"]), "'b', which source 'length' does not"),
        (lambda s: s.add(type, ["a"]), "parameters of 'type' cannot be read; pass needs="),
        (lambda s: s.maker("nothing"), "no source makes column 'nothing'"),
        (lambda s: s.plan(["nothing"]), "no source makes column 'nothing'"),
        (lambda s: Sources().check(), "make no columns"),
    ],
)
def test_bad_values_are_errors(register, message):
    sources = Sources()
    sources.add(lambda raw: 1, ["old"], name="other")
    with pytest.raises(ValueError, match=message):
        register(sources)


@pytest.mark.parametrize(
    ("register", "message"),
    [
        (lambda s: s.add(3, ["a"]), "must be a function, got 3"),
        (lambda s: s.add(length, "a"), "got the string 'a'"),
        (lambda s: s.add(length, [3]), "a column that is no name: 3"),
        (lambda s: s.add(length, [""]), "a column that is no name: ''"),
        (lambda s: s.add(length, ["a"], needs="raw"), "a sequence of names, got 'raw'"),
        (lambda s: s.add(length, ["a"], categorical="a"), "got 'a'"),
        (lambda s: s.add(length, ["a"], name=5), "name must be a string, got 5"),
    ],
)
def test_bad_types_are_errors(register, message):
    with pytest.raises(TypeError, match=message):
        register(Sources())


def test_a_failed_registration_leaves_nothing_behind():
    sources = Sources()
    with pytest.raises(ValueError, match="twice"):
        sources.add(length, ["a", "a"])
    assert len(sources) == 0
    assert sources.column_names == []


def test_circles_are_found():
    sources = Sources()
    sources.add(lambda c: 1, ["a"], name="a")
    sources.add(lambda a: 1, name="b")
    sources.add(lambda b: 1, name="c")
    with pytest.raises(ValueError, match=r"in a circle: a -> c -> b -> a"):
        sources.check()
    lonely = Sources()
    lonely.add(lambda me: 1, ["x"], name="me")
    with pytest.raises(ValueError, match=r"in a circle: me -> me"):
        lonely.plan()


def test_unknown_names_are_found():
    sources = Sources(raw="page")
    sources.add(lambda raw: 1, ["a"], name="a")
    message = r"source 'a' needs 'raw', which is neither an intermediate nor the object.*'page'"
    with pytest.raises(ValueError, match=message):
        sources.check()


# What sources return


def made(*columns: str, categorical=()):
    sources = Sources()
    sources.add(length, columns, categorical=categorical)
    return sources["length"], frozenset(categorical)


@pytest.mark.parametrize(
    "returned",
    [
        (1, 2.5),
        [1, 2.5],
        np.array([1, 2.5]),
        np.array([1, 2.5], dtype=np.float32),
        np.array([1, 2.5], dtype=object),
        {"b": 2.5, "a": 1},
        pd.Series({"b": 2.5, "a": 1}),
        (True, Fraction(5, 2)),
        (np.int8(1), Decimal("2.5")),
        (np.array(1), np.float16(2.5)),
    ],
    ids=lambda returned: type(returned).__name__,
)
def test_two_values_in_many_forms(returned):
    source, labelled = made("a", "b")
    values = read_values(source, returned, labelled)
    assert values.dtype == np.float64
    assert values.tolist() == [1.0, 2.5]


@pytest.mark.parametrize("returned", [3, 3.0, np.float32(3), np.array(3), [3], np.array([3])])
def test_one_value_in_many_forms(returned):
    source, labelled = made("a")
    assert list(read_values(source, returned, labelled)) == [3.0]


@pytest.mark.parametrize("missing", [None, math.nan, pd.NA, pd.NaT, np.float64("nan")])
def test_missing_values_within(missing):
    source, labelled = made("a", "b")
    values = read_values(source, [missing, 1], labelled)
    assert math.isnan(values[0])
    assert values[1] == 1


@pytest.mark.parametrize("missing", [None, math.nan, pd.NA, [None]])
def test_a_source_of_one_column_may_return_nothing(missing):
    source, labelled = made("a")
    assert np.isnan(read_values(source, missing, labelled)).tolist() == [True]


def test_infinite_values_are_values():
    source, labelled = made("a", "b")
    assert read_values(source, [math.inf, -math.inf], labelled).tolist() == [math.inf, -math.inf]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "returned None for 2 columns; one None is needed for each"),
        ([1], r"returned 1 values for 2 column"),
        ([1, 2, 3], r"returned 3 values for 2 column"),
        ([], r"returned 0 values"),
        (5.0, "a single value of type float for 2 columns"),
        (np.zeros((1, 2)), r"array of shape \(1, 2\) for 2 column"),
        (np.zeros(10_000_000, dtype=np.int8), r"array of shape \(10000000,\) for 2"),
        ("ab", "a single value of type str for 2 columns"),
        (b"ab", "a single value of type bytes for 2 columns"),
        ({1, 2}, "a single value of type set for 2 columns"),
        ((x for x in (1, 2)), "a single value of type generator for 2 columns"),
        ({"a": 1}, "a mapping without column 'b'"),
        ({"a": 1, "b": 2, "c": 3}, "a mapping with 'c', which is not its column"),
        (["1", 2], "column 'a' must be a number, got '1'"),
        ([1, 2j], "column 'b' must be a number, got 2j"),
        (np.array([1, 2j]), "column 'a' must be a number"),
        (np.array(["1", "2"]), "column 'a' must be a number"),
        (np.array(["2020-01-01", "2020-01-02"], dtype="M8[D]"), "column 'a' must be a number"),
        ([[1], [2]], r"column 'a' must be a number, got \[1\]"),
        (["x" * 10_000, 1], r"must be a number, got 'x{1,40}\.\.\.x{1,40}'$"),
        ([10**400, 1], "too large"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_wrong_values_are_errors(returned, message):
    source, labelled = made("a", "b")
    with pytest.raises((TypeError, ValueError, OverflowError), match=message):
        read_values(source, returned, labelled)


@pytest.mark.parametrize(
    "take",
    [
        lambda row: row["a"],
        lambda row: row[["a"]],
        lambda row: [row["a"]],
        lambda row: {"a": row["a"]},
    ],
    ids=["series", "frame", "in a list", "in a mapping"],
)
@pytest.mark.parametrize("categorical", [[], ["a"]], ids=["number", "label"])
def test_rows_of_a_frame_where_dicts_are_expected(take, categorical):
    source, labelled = made("a", categorical=categorical)
    row = pd.DataFrame({"a": [48], "b": [1]}, index=[2695])
    with pytest.raises((TypeError, ValueError), match=r"frame\.to_dict\(\"records\"\)$"):
        read_values(source, take(row), labelled)


def test_other_values_are_not_told_of_frames():
    source, labelled = made("a", "b")
    for wrong in ([[1], 2], pd.Series({"a": 1}, index=["a", "c"]), {"a": 1}):
        with pytest.raises((TypeError, ValueError)) as caught:
            read_values(source, wrong, labelled)
        assert "frame" not in str(caught.value)


def test_labels():
    source, labelled = made("colour", "size", categorical=["colour"])
    assert read_values(source, ["red", 3], labelled) == ["red", 3.0]
    assert read_values(source, {"size": 1, "colour": None}, labelled) == [None, 1.0]
    assert read_values(source, [np.str_("blue"), np.nan], labelled)[0] == "blue"
    assert read_values(source, np.array([7, 3]), labelled) == [7, 3]
    assert read_values(source, [math.nan, 3], labelled) == [None, 3.0]
    assert read_values(*made("colour", categorical=["colour"])[:1], None, labelled) == [None]
    with pytest.raises(TypeError, match=r"'colour' must be a label or a number, got \['red'\]"):
        read_values(source, [["red"], 3], labelled)
    with pytest.raises(TypeError, match="'size' must be a number, got 'big'"):
        read_values(source, ["red", "big"], labelled)


def test_names_of_labelled_columns():
    sources = Sources()
    sources.columns("a", "b", categorical=True)(length)
    sources.add(lambda raw: (1, 2), ["c", "d"], categorical=["d"], name="more")
    assert sources.categorical_names == ["a", "b", "d"]
