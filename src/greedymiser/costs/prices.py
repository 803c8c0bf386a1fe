"""Prices as users write them: numbers, mappings, groups, and tables with a row per feature."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray

from greedymiser._core.amounts import shortlist
from greedymiser.data.tables import is_missing


@dataclass
class PriceList:
    """What a table says."""

    prices: dict[str, float] = field(default_factory=dict)
    # Groups of each feature that is in any.
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # What groups cost, as far as the table tells.
    group_prices: dict[str, float] = field(default_factory=dict)


def read_price_list(
    frame: Any, feature: str, price: str, group: str, group_price: str
) -> PriceList:
    """Read a data frame by the names of its columns; those of groups may be missing."""
    rows = _columns_of_frame(frame, [feature, price], [group, group_price])
    listed = PriceList()
    for row in range(len(rows[feature])):
        name = rows[feature][row]
        if not isinstance(name, str) or not name:
            raise ValueError(f"{feature!r} in row {row} must be a name, got {name!r}")
        if name in listed.prices:
            raise ValueError(f"feature {name!r} is in the table twice, again in row {row}")
        listed.prices[name] = _cell_price(f"{price!r} of {name!r} in row {row}", rows[price][row])
        groups = _groups(f"{group!r} of {name!r} in row {row}", rows[group][row])
        if groups:
            listed.groups[name] = groups
        _note_group_price(listed, groups, f"{group_price!r} in row {row}", rows[group_price][row])
    if not listed.prices:
        raise ValueError("the table has no rows, and so no features")
    return listed


def _columns_of_frame(frame: Any, needed: list[str], others: list[str]) -> dict[str, list[Any]]:
    try:
        table = nw.from_native(frame, eager_only=True)
    except TypeError:
        raise TypeError(
            f"frame must be a data frame of pandas, polars or pyarrow, got {type(frame).__name__}"
        ) from None
    missing = [name for name in needed if name not in table.columns]
    if missing:
        raise ValueError(f"the table has no column {missing[0]!r}; it has {table.columns}")
    return {
        name: table[name].to_list() if name in table.columns else [None] * len(table)
        for name in (*needed, *others)
    }


def _cell_price(what: str, value: Any) -> float:
    if is_missing(value):
        raise ValueError(f"{what} is missing; what is free costs 0")
    return checked_price(what, value)


def _groups(what: str, cell: Any) -> tuple[str, ...]:
    """The groups in a cell: none, a name, or a sequence of names."""
    if isinstance(cell, str):
        return (cell,) if cell else ()
    if hasattr(cell, "tolist"):
        cell = cell.tolist()
    if isinstance(cell, list | tuple):
        if all(isinstance(name, str) and name for name in cell):
            return tuple(dict.fromkeys(cell))
    elif is_missing(cell):
        return ()
    raise TypeError(f"{what} must be a name, some names, or empty, got {cell!r}")


def _note_group_price(listed: PriceList, groups: tuple[str, ...], what: str, cell: Any) -> None:
    if is_missing(cell):
        return
    if len(groups) != 1:
        raise ValueError(f"{what} is {cell!r}, but the row names {len(groups)} groups")
    price = _cell_price(what, cell)
    if listed.group_prices.setdefault(groups[0], price) != price:
        raise ValueError(
            f"{what} is {price:g}, but group {groups[0]!r} cost {listed.group_prices[groups[0]]:g} "
            "above"
        )


def merged_group_prices(
    listed: PriceList, group_costs: Mapping[str, float] | None
) -> dict[str, float]:
    """Prices of all groups, from the table or ``group_costs``; raise if there is none, or two."""
    prices = dict(listed.group_prices)
    for group, cost in (group_costs or {}).items():
        price = checked_price(f"the cost of group {group!r} in group_costs", cost)
        if prices.setdefault(group, price) != price:
            raise ValueError(
                f"group {group!r} costs {price:g} in group_costs, but {prices[group]:g} in the "
                "table"
            )
    named = {group for groups in listed.groups.values() for group in groups}
    for group in sorted(named.difference(prices)):
        near = _near_group(group, [other for other in prices if other not in named])
        raise ValueError(
            f"group {group!r} has no price: give it in the table, or in group_costs{near}"
        )
    for group in prices:
        if group not in named:
            raise ValueError(
                f"group_costs names group {group!r}, which the table does not have"
                f"{did_you_mean(group, named)}"
            )
    return prices


# -- numbers, mappings and groups -----------------------------------------------------------------


def positions(names: Iterable[str]) -> dict[str, int]:
    """Position of each name: one look at all of them, instead of one at each look-up."""
    return {name: i for i, name in enumerate(names)}


def first_repeated(names: Iterable[Any]) -> Any | None:
    """The first name that is there twice; None if there is none."""
    return next((name for name, times in Counter(names).items() if times > 1), None)


def labels_of(names: Sequence[str] | None, n: int) -> list[str]:
    """Names of features, or their numbers as text."""
    return list(names) if names is not None else [str(i) for i in range(n)]


def own_resources(labels: Sequence[str], groups: Collection[str]) -> list[str]:
    """What a feature pays for by itself, named like it, or "X itself" where a group has its name.

    No two are named alike, and none like a group.
    """
    taken = {*labels, *groups}
    names = []
    for label in labels:
        name = label
        if label in groups:
            while name in taken:
                name += " itself"
            taken.add(name)
        names.append(name)
    return names


def did_you_mean(name: Any, known: Iterable[Any]) -> str:
    """A question that ends an error about a wrong name; empty where no known name is close."""
    import difflib  # only for what is wrong anyway

    words = {other.lower(): other for other in known if isinstance(other, str)}
    if not isinstance(name, str):
        return ""
    # 0.72: "logloss" finds "neg_log_loss", but "acc" does not find "jaccard".
    near = difflib.get_close_matches(name.lower(), list(words), n=1, cutoff=0.72)
    return f"; did you mean {words[near[0]]!r}?" if near else ""


def checked_price(what: str, cost: Any) -> float:
    """A cost as a number; raises if it is no number, negative or not finite."""
    try:
        if getattr(cost, "ndim", 0) > 0:  # of one number, float would take it
            raise TypeError
        value = float(cost)
    except (TypeError, ValueError):
        raise TypeError(f"{what} must be a number, got {cost!r}") from None
    if not math.isfinite(value):
        raise ValueError(f"{what} must be finite, got {value}")
    if value < 0:
        raise ValueError(f"{what} must not be negative, got {value:g}")
    return value


def read_feature_costs(
    feature_costs: Any,
) -> tuple[list[str] | None, NDArray[np.float64]]:
    """Names, where there are names, and what features cost by themselves."""
    if isinstance(feature_costs, str | bytes | os.PathLike):
        raise TypeError(
            f"feature_costs must be numbers, got {feature_costs!r}; read_costs reads a file of them"
        )
    if getattr(feature_costs, "ndim", 1) != 1:  # a data frame, or a table of numbers
        raise ValueError(
            f"feature_costs must have one dimension, got shape {np.shape(feature_costs)}"
        )
    if hasattr(feature_costs, "to_dict") and not isinstance(feature_costs, Mapping):
        feature_costs = _read_series(feature_costs)
    if isinstance(feature_costs, Mapping):
        not_names = [key for key in feature_costs if not isinstance(key, str)]
        if not_names:
            raise TypeError(
                f"feature_costs must be keyed by column name, got {not_names[0]!r}; where columns "
                "have no names that are text, pass costs as a list, in the order of the columns"
            )
        names = list(feature_costs)
        values = [
            checked_price(f"the cost of feature {name!r}", cost)
            for name, cost in feature_costs.items()
        ]
        return names, np.array(values, dtype=np.float64)
    array = np.asarray(feature_costs)
    if array.ndim == 0:
        raise TypeError(f"feature_costs must have a number for each feature, got {feature_costs!r}")
    if array.ndim != 1:
        raise ValueError(f"feature_costs must have one dimension, got shape {array.shape}")
    values = [
        checked_price(f"the cost of feature {i}", cost) for i, cost in enumerate(array.tolist())
    ]
    return None, np.array(values, dtype=np.float64)


def _read_series(series: Any) -> Any:
    """A pandas Series: by name, or by position where its index is 0, 1, 2, ..."""
    index = list(series.index)
    if len(set(index)) != len(index):
        again = first_repeated(index)
        raise ValueError(f"feature_costs has two entries for {again!r}")
    if all(isinstance(key, int | np.integer) for key in index):
        if index != list(range(len(index))):
            raise ValueError(
                "feature_costs must be indexed by column name, or by 0, 1, 2, ... in order, "
                f"got {index[:3]} ..."
            )
        return list(series)
    return series.to_dict()


def read_groups(groups: Any, names: list[str] | None, n: int) -> list[Hashable | None]:
    """One group (or None) per feature."""
    if groups is None:
        return [None] * n
    if not isinstance(groups, Mapping):
        labels = list(groups)
        if len(labels) != n:
            raise ValueError(f"groups has {len(labels)} entries, but there are {n} features")
        return labels
    group_of: list[Hashable | None] = [None] * n
    position_of = positions(names or ())
    for group, members in groups.items():
        if isinstance(members, str):
            raise TypeError(
                f"groups[{group!r}] must be a sequence of features, got the string {members!r}"
            )
        for member in members:
            if isinstance(member, str):
                if member not in position_of:
                    raise ValueError(f"group {group!r} has an unknown feature {member!r}")
                position = position_of[member]
            else:
                position = int(member)
                if not 0 <= position < n:
                    raise ValueError(f"group {group!r} has an unknown feature {member!r}")
            if group_of[position] is not None:
                raise ValueError(
                    f"feature {member!r} is in two groups, {group_of[position]!r} and {group!r}; "
                    "use CostModel.from_resources for features that share more than one thing"
                )
            group_of[position] = group
    return group_of


def read_group_costs(group_costs: Any, group_of: list[Hashable | None]) -> dict[Hashable, float]:
    """Entry prices of the groups that have members."""
    used = dict.fromkeys(group for group in group_of if group is not None)
    prices = dict(group_costs or {})
    for group in used:
        if group not in prices:
            near = _near_group(group, [other for other in prices if other not in used])
            raise ValueError(f"group {group!r} has no entry in group_costs{near}")
    for group in prices:
        if group not in used:
            raise ValueError(
                f"group_costs names group {group!r}, which has no features"
                f"{did_you_mean(group, used)}"
            )
    return {group: checked_price(f"the cost of group {group!r}", prices[group]) for group in used}


def _near_group(group: Hashable, unknown: Sequence[Any]) -> str:
    """What to say of names in group_costs that no group has: one may be the misspelt group."""
    if not unknown:
        return ""
    near = next(filter(None, (did_you_mean(name, [group]) for name in unknown)), "")
    return f", which names {shortlist([repr(name) for name in unknown], 5)} instead{near}"
