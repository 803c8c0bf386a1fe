"""What things cost, in a file: TOML or CSV, read and written.

TOML says everything that a ``CostModel`` can hold. Either features with groups,

    unit = "dollars"
    tree_cost = 0.01

    [features]
    age = 1.0
    TSH = 20.68

    [groups.blood]
    cost = 2.10
    features = ["TSH"]

or resources with the features that need them,

    [resources]
    blood = 2.10
    TSH = 20.68

    [needs]
    TSH = ["blood", "TSH"]

Both may say what errors cost, by the true class and by what is said of it (0 where nothing is):

    [errors.ill]
    well = 50.0

    [errors.well]
    ill = 10.0

and which columns of a table are no features, and left out without a question:

    not_features = ["patient_id"]

CSV has the columns ``feature``, ``cost`` and perhaps ``group``. A line with a group and without a
feature tells the entry price of the group.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import tomllib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from greedymiser._core.files import write_file
from greedymiser.costs.cost_model import CostModel
from greedymiser.costs.prices import first_repeated

PathLike = str | os.PathLike[str]

_TOML_KEYS = (
    "unit", "tree_cost", "features", "groups", "resources", "needs", "errors", "not_features"
)  # fmt: skip
_GROUP_KEYS = ("cost", "features")
_CSV_COLUMNS = ("feature", "cost", "group")

# Names and values of a file are quoted, and somebody may have pasted a book.
LONGEST_COMPLAINT = 500

_TEMPLATE_HEAD = """\
# What each feature costs. Replace the numbers; 0 is allowed, a negative cost is not.

# What the costs are counted in, for tables and plots, and the cost of evaluating one tree.
unit = ""
tree_cost = 0.0

"""

_TEMPLATE_NO_FEATURES = """\
# Columns that are left out. To use one as a feature, move it to the features, with a cost.
not_features = [
{lines}]

"""

_TEMPLATE_TAIL = """
# Features that share an entry price, paid once, with the first of them:
#
# [groups.blood]
# cost = 2.10
# features = ["TSH", "T3"]
#
# Where features share more than one thing, write two other tables instead of the two above, what
# there is to buy and which of it each feature needs:
#
# [resources]
# fetch = 30.0
# decode = 5.0
#
# [needs]
# width = ["fetch"]
# colour = ["fetch", "decode"]
#
# What errors cost, in the same unit: a table for each true class, with the cost of what else is
# said of it. Models are then chosen by what rows cost in all.
#
# [errors.ill]
# well = 50.0
#
# [errors.well]
# ill = 10.0
"""


class CostFileError(ValueError):
    """A cost file that cannot be understood: which file, where in it, and what stands there."""


@dataclass(frozen=True)
class CostFile:
    """What a cost file says.

    Examples
    --------
    >>> file = CostFile(CostModel({"age": 1.0}), unit="dollars")
    >>> file.costs.total(["age"]), file.unit
    (1.0, 'dollars')
    """

    # Knows the features by name, in the order of the file.
    costs: CostModel
    # What the costs are counted in, such as "dollars"; None if the file does not say.
    unit: str | None = None
    # What errors cost: by the true class, and by what is said; None if the file does not say.
    errors: dict[str, dict[str, float]] | None = None
    # Columns of a table that are no features.
    not_features: tuple[str, ...] = ()


def read_costs(path: PathLike) -> CostFile:
    r"""Read a cost file, TOML or CSV by its suffix.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    CostFileError
        If it cannot be understood; the message names the file, the line or key, and the value.

    Examples
    --------
    >>> path = Path("costs.toml")
    >>> _ = path.write_text("[features]\nage = 1.0\nTSH = 20.68")
    >>> read_costs(path).costs.total(["age", "TSH"])
    21.68
    """
    path = Path(path)
    parse = {".toml": _parse_toml, ".csv": _parse_csv}[_suffix_of(path)]
    if not path.is_file():
        raise FileNotFoundError(f"there is no cost file at {str(path)!r}")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise CostFileError(f"{str(path)!r} is not a text file") from None
    if not text.strip():
        raise CostFileError(f"{str(path)!r} is empty")
    try:
        return parse(text)
    except CostFileError:
        raise
    except (ValueError, TypeError) as error:
        raise CostFileError(f"{str(path)!r}: {_readable_complaint(str(error))}") from None


def _readable_complaint(text: str) -> str:
    """A complaint that can be read, whatever it quotes."""
    return text if len(text) <= LONGEST_COMPLAINT else f"{text[:300]} ... {text[-100:]}"


def template(
    features: Sequence[str], suffix: str = ".toml", left_out: Mapping[str, str] | None = None
) -> str:
    """Text of a cost file in which every feature costs 1, to be filled in by hand.

    ``left_out`` has columns that are no features, with the reason or "": a list in TOML. CSV has
    no place for them.

    Examples
    --------
    >>> print(template(["age", "TSH"], ".csv"))
    feature,cost,group
    age,1.0,
    TSH,1.0,
    <BLANKLINE>
    """
    if suffix == ".csv":
        return _csv_text([_CSV_COLUMNS, *([name, "1.0", ""] for name in features)])
    if suffix == ".toml":
        head = _TEMPLATE_HEAD
        if left_out:
            others = [
                f"    {_toml_string(name)},{f'  # {reason}' if reason else ''}\n"
                for name, reason in left_out.items()
            ]
            head += _TEMPLATE_NO_FEATURES.format(lines="".join(others))
        lines = [f"{_toml_key(name)} = 1.0\n" for name in features]
        return f"{head}[features]\n{''.join(lines)}{_TEMPLATE_TAIL}"
    raise ValueError(f"there are templates for .toml and .csv, not for {suffix!r}")


def write_template(
    path: PathLike, features: Sequence[str], left_out: Mapping[str, str] | None = None
) -> None:
    """Write a cost file in which every feature costs 1, TOML or CSV by the suffix of the path.

    Examples
    --------
    >>> path = Path("costs.csv")
    >>> write_template(path, ["age", "TSH"])
    >>> read_costs(path).costs.total(["age", "TSH"])
    2.0
    """
    path = Path(path)
    write_file(path, template(features, _suffix_of(path), left_out).encode(), "costs")


def write_costs(
    path: PathLike,
    costs: CostModel,
    *,
    unit: str | None = None,
    errors: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Write costs as TOML, in terms of resources; ``read_costs`` gives them back.

    The features must have names, and no two resources the same one. ``errors`` are what errors
    cost, by the true class and by what is said.

    Examples
    --------
    >>> path = Path("costs.toml")
    >>> write_costs(path, CostModel({"age": 1.0, "TSH": 20.68}), unit="dollars")
    >>> read_costs(path).unit
    'dollars'
    """
    path = Path(path)
    if _suffix_of(path) != ".toml":
        raise ValueError(f"costs are written as TOML, but {path.name!r} ends in {path.suffix!r}")
    if costs.feature_names is None:
        raise ValueError("only costs whose features have names can be written")
    names = costs.resource_names
    twice = first_repeated(names)
    if twice is not None:
        raise ValueError(
            f"two resources are named {twice!r}, and the file could not tell them apart"
        )
    lines = [] if unit is None else [f"unit = {_toml_string(unit)}"]
    lines += [f"tree_cost = {costs.tree_cost!r}", "", "[resources]"]
    for name, cost in zip(names, costs.resource_costs.tolist(), strict=True):
        lines.append(f"{_toml_key(name)} = {cost!r}")
    lines += ["", "[needs]"]
    for name, wanted in zip(costs.feature_names, costs.needs, strict=True):
        listing = ", ".join(_toml_string(names[resource]) for resource in wanted)
        lines.append(f"{_toml_key(name)} = [{listing}]")
    for true, answers in (errors or {}).items():
        lines += ["", f"[errors.{_toml_key(true)}]"]
        lines += [f"{_toml_key(said)} = {float(cost)!r}" for said, cost in answers.items()]
    write_file(path, ("\n".join(lines) + "\n").encode(), "costs")


def _suffix_of(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in (".toml", ".csv"):
        raise CostFileError(
            f"a cost file ends in .toml or .csv, but {str(path)!r} ends in {suffix or 'neither'}"
        )
    return suffix


# -- TOML ---------------------------------------------------------------------------------------


def _parse_toml(text: str) -> CostFile:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"not valid TOML: {_uncapitalised(str(error))}") from None
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None
    for key in data:
        if key not in _TOML_KEYS:
            raise ValueError(f"unknown key {key!r}; known are {', '.join(_TOML_KEYS)}")
    unit = data.get("unit")
    if unit is not None and not isinstance(unit, str):
        raise TypeError(f"unit must be a string, got {unit!r}")
    tree_cost = _cost("tree_cost", data.get("tree_cost", 0.0))
    by_resource = "resources" in data or "needs" in data
    if by_resource and ("features" in data or "groups" in data):
        raise ValueError(
            "there are features or groups beside resources or needs; write one pair or the other"
        )
    read = _costs_by_resource if by_resource else _costs_by_group
    costs = read(data, tree_cost)
    others = _list_of_names("not_features", data.get("not_features", []))
    for name in others:
        if name in (costs.feature_names or ()):
            raise ValueError(f"not_features names {name!r}, which has a cost as a feature")
    return CostFile(costs, unit or None, _errors(data), tuple(others))


def _errors(data: Mapping[str, Any]) -> dict[str, dict[str, float]] | None:
    if "errors" not in data:
        return None
    errors: dict[str, dict[str, float]] = {}
    for true, answers in _table(data, "errors").items():
        place = f"errors.{_toml_key(true)}"
        if not isinstance(answers, dict):
            raise TypeError(
                f"{place} must be a table from what is said to its cost, got {answers!r}"
            )
        errors[true] = {
            answer: _number(f"{place}.{_toml_key(answer)}", cost)
            for answer, cost in answers.items()
        }
    return errors


def _costs_by_group(data: Mapping[str, Any], tree_cost: float) -> CostModel:
    features = _table(data, "features")
    own = {name: _cost(f"features.{_toml_key(name)}", cost) for name, cost in features.items()}
    groups: dict[Hashable, list[str]] = {}
    prices: dict[Hashable, float] = {}
    member_of: dict[str, str] = {}
    for group, entry in _table(data, "groups", needed=False).items():
        place = f"groups.{_toml_key(group)}"
        if not isinstance(entry, dict):
            raise TypeError(f"{place} must be a table with cost and features, got {entry!r}")
        for key in entry:
            if key not in _GROUP_KEYS:
                raise ValueError(f"{place} has an unknown key {key!r}; known are cost, features")
        for key in _GROUP_KEYS:
            if key not in entry:
                raise ValueError(f"{place} has no {key}")
        prices[group] = _cost(f"{place}.cost", entry["cost"])
        groups[group] = _list_of_names(f"{place}.features", entry["features"])
        if not groups[group]:
            raise ValueError(f"{place}.features is empty")
        for name in groups[group]:
            if name not in own:
                raise ValueError(f"{place}.features names {name!r}, which has no cost in features")
            if name in member_of:
                raise ValueError(
                    f"{place}.features names {name!r}, which is in group {member_of[name]!r} "
                    "already; write resources and needs for features that share several things"
                )
            member_of[name] = group
    return CostModel(own, groups=groups or None, group_costs=prices or None, tree_cost=tree_cost)


def _costs_by_resource(data: Mapping[str, Any], tree_cost: float) -> CostModel:
    resources = {
        name: _cost(f"resources.{_toml_key(name)}", cost)
        for name, cost in _table(data, "resources").items()
    }
    needs = {}
    for feature, wanted in _table(data, "needs").items():
        place = f"needs.{_toml_key(feature)}"
        needs[feature] = _list_of_names(place, wanted)
        for name in needs[feature]:
            if name not in resources:
                raise ValueError(f"{place} names {name!r}, which has no cost in resources")
    return CostModel.from_resources(resources, needs, tree_cost=tree_cost)


def _table(data: Mapping[str, Any], key: str, needed: bool = True) -> dict[str, Any]:
    if key not in data and not needed:
        return {}
    if key not in data:
        raise ValueError(f"there is no table [{key}]")
    table = data[key]
    if not isinstance(table, dict):
        raise TypeError(f"{key} must be a table, got {table!r}")
    if needed and not table:
        raise ValueError(f"the table [{key}] is empty")
    return table


def _list_of_names(place: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise TypeError(f"{place} must be a list of names, got {value!r}")
    return value


def _toml_key(name: str) -> str:
    """A name as a key of TOML, quoted where it has to be."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml_string(name)


def _toml_string(text: str) -> str:
    # The strings of JSON are strings of TOML, but for one character that has to be escaped there.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


# -- CSV ----------------------------------------------------------------------------------------


def _parse_csv(text: str) -> CostFile:
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True)
    own: dict[str, float] = {}
    groups: dict[Hashable, list[str]] = {}
    prices: dict[Hashable, float] = {}
    # Where a feature or group was named first.
    line_of: dict[tuple[str, Hashable], int] = {}

    def note(kind: str, name: str) -> None:
        seen = line_of.setdefault((kind, name), reader.line_num)
        if seen != reader.line_num:
            raise ValueError(
                f"line {reader.line_num} gives a cost for {kind} {name!r} again, after line {seen}"
            )

    try:
        header = _cost_columns(next(reader))
        for row in reader:
            place = f"line {reader.line_num}"
            if not any(cell.strip() for cell in row):
                continue
            if len(row) != len(header):
                raise ValueError(f"{place} has {len(row)} cells, but the header has {len(header)}")
            cell = dict(zip(header, (value.strip() for value in row), strict=True))
            feature, group = cell["feature"], cell.get("group", "")
            if not feature and not group:
                raise ValueError(f"{place} names no feature")
            kind, name = ("feature", feature) if feature else ("group", group)
            note(kind, name)
            if not cell["cost"]:
                raise ValueError(f"{place} gives no cost for {kind} {name!r}")
            cost = _cost(f"{place}: the cost of {kind} {name!r}", _number_if_any(cell["cost"]))
            if feature:
                own[feature] = cost
                if group:
                    groups.setdefault(group, []).append(feature)
            else:
                prices[group] = cost
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num} is not valid CSV: {error}") from None
    if not own:
        raise ValueError("there is a header, but no feature below it")
    for shared, members in groups.items():
        if shared not in prices:
            raise ValueError(
                f"line {line_of['feature', members[0]]} puts {members[0]!r} in group {shared!r}, "
                "but no line without a feature tells what that group costs"
            )
    for shared in prices:
        if shared not in groups:
            raise ValueError(
                f"line {line_of['group', shared]} prices group {shared!r}, which has no feature"
            )
    return CostFile(CostModel(own, groups=groups or None, group_costs=prices or None))


def _cost_columns(row: list[str]) -> list[str]:
    header = [cell.strip().lower() for cell in row]
    for column in header:
        if column not in _CSV_COLUMNS:
            raise ValueError(
                f"line 1 must name the columns feature, cost and perhaps group, got {column!r}"
            )
    for column in ("feature", "cost"):
        if column not in header:
            raise ValueError(f"line 1 must name the columns feature and cost, but has no {column}")
    if len(set(header)) < len(header):
        raise ValueError("line 1 names a column twice")
    return header


def _csv_text(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _number_if_any(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text  # to be shown in the error


def _cost(place: str, value: Any) -> float:
    cost = _number(place, value)
    if cost < 0:
        raise ValueError(f"{place} must not be negative, got {cost:g}")
    return cost


def _number(place: str, value: Any) -> float:
    if isinstance(value, dict):
        inner = next(iter(value), "")
        raise TypeError(
            f"{place} must be a number, but is a table with the key {inner!r}; "
            "put names that contain a dot into quotes"
        )
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{place} must be a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:  # an integer of hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{place} must be finite, got {number}")
    return number


def _uncapitalised(text: str) -> str:
    return text[:1].lower() + text[1:]
