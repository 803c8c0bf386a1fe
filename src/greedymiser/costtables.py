"""Prices from a table: one row per feature."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import narwhals.stable.v2 as nw


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
    rows = _columns(frame, [feature, price], [group, group_price])
    found = PriceList()
    for row in range(len(rows[feature])):
        name = rows[feature][row]
        if not isinstance(name, str) or not name:
            raise ValueError(f"{feature!r} in row {row} must be a name, got {name!r}")
        if name in found.prices:
            raise ValueError(f"feature {name!r} is in the table twice, again in row {row}")
        found.prices[name] = _price(f"{price!r} of {name!r} in row {row}", rows[price][row])
        groups = _groups(f"{group!r} of {name!r} in row {row}", rows[group][row])
        if groups:
            found.groups[name] = groups
        _note_group_price(found, groups, f"{group_price!r} in row {row}", rows[group_price][row])
    if not found.prices:
        raise ValueError("the table has no rows, and so no features")
    return found


def _columns(frame: Any, needed: list[str], others: list[str]) -> dict[str, list[Any]]:
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


def _is_missing(value: Any) -> bool:
    """None, NaN, and pandas' NA, which does not say whether it differs from itself."""
    return value is None or type(value).__name__ == "NAType" or value != value


def _price(what: str, value: Any) -> float:
    if _is_missing(value):
        raise ValueError(f"{what} is missing; what is free costs 0")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{what} must be a number, got {value!r}") from None
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{what} must be finite and not negative, got {value!r}")
    return number


def _groups(what: str, cell: Any) -> tuple[str, ...]:
    """The groups in a cell: none, a name, or a sequence of names."""
    if isinstance(cell, str):
        return (cell,) if cell else ()
    if hasattr(cell, "tolist"):
        cell = cell.tolist()
    if isinstance(cell, list | tuple):
        if all(isinstance(name, str) and name for name in cell):
            return tuple(dict.fromkeys(cell))
    elif _is_missing(cell):
        return ()
    raise TypeError(f"{what} must be a name, some names, or empty, got {cell!r}")


def _note_group_price(found: PriceList, groups: tuple[str, ...], what: str, cell: Any) -> None:
    if _is_missing(cell):
        return
    if len(groups) != 1:
        raise ValueError(f"{what} is {cell!r}, but the row names {len(groups)} groups")
    price = _price(what, cell)
    if found.group_prices.setdefault(groups[0], price) != price:
        raise ValueError(
            f"{what} is {price:g}, but group {groups[0]!r} cost {found.group_prices[groups[0]]:g} "
            "above"
        )


def merged_group_prices(found: PriceList, given: Mapping[str, float] | None) -> dict[str, float]:
    """Prices of all groups, from the table or from ``given``; raise where there is none."""
    prices = found.group_prices | dict(given or {})
    named = {group for groups in found.groups.values() for group in groups}
    for group in sorted(named.difference(prices)):
        raise ValueError(f"group {group!r} has no price: give it in the table, or in group_costs")
    for group in prices:
        if group not in named:
            raise ValueError(f"group_costs names group {group!r}, which the table does not have")
    return prices
