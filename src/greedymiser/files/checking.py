"""Readers that check: a JSON object, and the arrays beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from greedymiser.files.container import ContentError, Tensor

# Everything that is counted is counted in 32 bits.
MOST = 2**31 - 1


def parse(text: str) -> Any:
    """Read JSON as the standard has it, without entries that are there twice."""
    try:
        return json.loads(
            text,
            object_pairs_hook=_distinct_entries,
            parse_constant=_no_constant,
            parse_float=_real,
        )
    except RecursionError:
        raise ContentError("its description is nested too deeply") from None
    except ValueError as error:
        raise ContentError(f"its description is not JSON ({error})") from None


def _distinct_entries(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ContentError("its description has an entry twice")
    return entries


def _no_constant(name: str) -> Any:
    raise ContentError(f"its description has {name}, which is not a number")


def _real(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ContentError(f"its description has {digits[:20]}, which no float can hold")
    return value


class Entries:
    """A JSON object whose entries are checked as they are read."""

    def __init__(self, values: Any, what: str):
        if not isinstance(values, dict):
            raise ContentError(f"{what} is not a JSON object")
        self.values: dict[str, Any] = values
        self.what = what

    def only(self, names: set[str]) -> None:
        """Refuse entries that nobody knows, and missing ones."""
        unknown = sorted(self.values.keys() - names)
        if unknown:
            raise ContentError(f"{self.what} has an unknown entry {brief(unknown[0])}")
        for name in sorted(names):
            self.any(name)

    def any(self, name: str) -> Any:
        if name not in self.values:
            raise ContentError(f"{self.what} has no {name!r}")
        return self.values[name]

    def text(self, name: str) -> str:
        return self._of_type(name, str, "a string")

    def flag(self, name: str) -> bool:
        return self._of_type(name, bool, "true or false")

    def listed(self, name: str) -> list[Any]:
        return self._of_type(name, list, "a list")

    def entries(self, name: str) -> Entries:
        return Entries(self.any(name), f"{name!r} of {self.what}")

    def _of_type(self, name: str, kind: type, called: str) -> Any:
        value = self.any(name)
        if type(value) is not kind:
            raise ContentError(f"{name!r} of {self.what} is not {called}: {brief(value)}")
        return value

    def integer(self, name: str, least: int, most: int = MOST) -> int:
        return integer(self.any(name), f"{name!r} of {self.what}", least, most)

    def number(self, name: str) -> float:
        return unbounded_number(self.any(name), f"{name!r} of {self.what}")

    def names(self, name: str) -> list[str]:
        """Read a list of strings."""
        return strings(self.listed(name), f"{name!r} of {self.what}")


def integer(value: Any, what: str, least: int, most: int = MOST) -> int:
    """Read a whole number within bounds; true and false are no numbers."""
    if type(value) is not int or not least <= value <= most:
        raise ContentError(f"{what} is {brief(value)}, not a whole number from {least} to {most}")
    return value


def unbounded_number(value: Any, what: str) -> float:
    """Read a number that may be infinite, which JSON cannot say, but not NaN."""
    if type(value) is str and value in ("inf", "-inf"):
        return float(value)
    if type(value) is int and abs(value) <= 2**53:
        value = float(value)
    if type(value) is not float:
        raise ContentError(f"{what} is {brief(value)}, not a number")
    return value


def strings(values: Any, what: str) -> list[str]:
    """Read a list of strings."""
    if type(values) is not list:
        raise ContentError(f"{what} is not a list")
    for value in values:
        if type(value) is not str:
            raise ContentError(f"{what} has {brief(value)}, which is not a string")
    return values


def distinct_names(values: list[str], what: str, n: int) -> list[str]:
    """Check that there are n names, none of them twice."""
    if len(values) != n:
        raise ContentError(f"{what} has {len(values)} entries, not {n}")
    if len(set(values)) < n:
        raise ContentError(f"{what} has a name twice")
    return values


def brief(value: Any) -> str:
    """Name a value in an error, however large it is."""
    if isinstance(value, dict | list):
        return f"a JSON {'object' if isinstance(value, dict) else 'list'}"
    if isinstance(value, int) and abs(value) >= 2**64:
        return "a huge number"
    return ascii(value if not isinstance(value, str) else value[:40])


class Arrays:
    """The tensors of a file; each must be asked for once."""

    def __init__(self, tensors: Mapping[str, Tensor]):
        self._left = dict(tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def take(self, name: str, dtype: np.dtype[Any], shape: tuple[int | None, ...]) -> NDArray[Any]:
        tensor = self._left.pop(name, None)
        if tensor is None:
            raise ContentError(f"it has no array {name!r}")
        return tensor.array(f"the array {name!r}", dtype, shape)

    def inside(self, prefix: str) -> Arrays:
        """Take all whose names begin with a prefix out, under the rest of their names."""
        names = [name for name in self._left if name.startswith(prefix)]
        return Arrays({name.removeprefix(prefix): self._left.pop(name) for name in names})

    def check_all_used(self) -> None:
        if self._left:
            raise ContentError(f"it has an unknown array {brief(min(self._left))}")


def require(condition: bool | np.bool_, what: str) -> None:
    """Refuse a file, and say why, unless a condition holds."""
    if not condition:
        raise ContentError(what)


def is_ascending(starts: NDArray[np.int64], end: int, strictly: bool) -> bool:
    """Whether ``starts`` goes from 0 to ``end``; the range comes first, or diff could overflow."""
    if len(starts) == 0 or starts[0] != 0 or starts[-1] != end:
        return False
    if starts.min() < 0 or starts.max() > end:
        return False
    return bool((np.diff(starts) >= (1 if strictly else 0)).all())
