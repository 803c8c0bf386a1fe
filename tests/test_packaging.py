"""What the project says about itself is true in all places."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from greedymiser import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_versions_agree():
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_pythons_that_are_declared_are_tried():
    declared = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    known = re.search(r"^KNOWN = \((.*)\)$", (ROOT / "tools/try_wheel.py").read_text(), re.M)[1]
    assert {f"python{version}" for version in declared} <= set(re.findall(r'"(.*?)"', known))
    assert f">={declared[0]}" == PROJECT["project"]["requires-python"]


WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_only_call_the_makefile(path):
    yaml = pytest.importorskip("yaml", reason="comes with Dask")
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert len(commands) >= len(jobs)
    for command in commands:
        make, target, *variables = command.split(maxsplit=2)
        assert make == "make"
        assert target in targets
        assert all("=" in variable for variable in variables)


def test_workflows_test_the_pythons_that_are_declared():
    yaml = pytest.importorskip("yaml", reason="comes with Dask")
    jobs = yaml.safe_load((ROOT / ".github/workflows/checks.yml").read_text())["jobs"]
    declared = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    assert jobs["test"]["strategy"]["matrix"]["python"] == declared
    assert all(f"python{version}" in jobs["wheel"]["steps"][2]["run"] for version in declared)


def test_the_wheel_is_the_product():
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"] == {
        "packages": ["src/greedymiser"]
    }
    assert (ROOT / "src/greedymiser/py.typed").exists()
    assert not (ROOT / "src/greedymiser/experiments").exists()


@pytest.mark.parametrize("name", ["CITATION.cff", "SECURITY.md", "LICENSE", "CONTRIBUTING.md"])
def test_the_source_archive_has_the_papers(name):
    included = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert (ROOT / name).stat().st_size > 0
    assert any(Path(f"/{name}").match(pattern) for pattern in included) or name == "LICENSE"
