"""What CONTRIBUTING.md says of the package: functions that exist, and one name for one thing."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "src" / "greedymiser").rglob("*.py"))

WALKS = re.search(
    r"### One row through `fit`\n(.*?)\n## ", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL
)
NAMES = sorted(set(re.findall(r"`([a-z_]+(?:\.\w+)+)`", WALKS[1] if WALKS else "")))


def resolved(name: str) -> object:
    """What a dotted name inside the package stands for; private attributes are found, too."""
    parts = name.split(".")
    for n_modules in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(["greedymiser", *parts[:n_modules]]))
        except ModuleNotFoundError:
            continue
        for part in parts[n_modules:]:
            found = getattr(found, part)
        return found
    raise AttributeError(name)


def test_the_walk_was_found():
    assert len(NAMES) > 20


@pytest.mark.parametrize("name", NAMES)
def test_what_the_walk_passes_exists(name):
    assert callable(resolved(name))


@pytest.mark.parametrize("name", ["training.grower.Grower.shrink", "attic.open", "data.tables"])
def test_what_does_not_exist_is_noticed(name):
    with pytest.raises((AttributeError, AssertionError)):
        assert callable(resolved(name))


# The same thing on two devices.
TWINS = {"Histograms"}


def is_protocol(node: ast.ClassDef) -> bool:
    """Whether a class only says what a package below may expect of one of a package above."""
    return any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases)


def test_a_class_has_a_name_of_its_own():
    """Whoever looks a name up finds one idea, with or without an underscore before it."""
    places: dict[str, list[str]] = {}
    for module in MODULES:
        for node in ast.parse(module.read_text()).body:
            if isinstance(node, ast.ClassDef) and not is_protocol(node):
                places.setdefault(node.name.lstrip("_"), []).append(module.stem)
    assert len(places) > 100
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert twice.keys() == TWINS, twice
