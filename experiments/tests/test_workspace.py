from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pandas", reason="steps are tables: greedymiser[frames]")

import pandas as pd

from experiments.workspace import Workspace

FRAME = {"method": ["miser", "l1"], "cost": [0.1 + 0.2, 1e-300], "n": [3, 4]}


class Counted:
    """Makes a step, and counts how often."""

    def __init__(self, value):
        self.value = value
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return self.value


@pytest.fixture
def workspace(tmp_path):
    return Workspace(tmp_path, {"seed": 0, "sizes": (1, 2)})


@pytest.fixture
def table():
    return Counted(pd.DataFrame(FRAME))


@pytest.fixture
def arrays():
    return Counted({"x": np.arange(6.0).reshape(2, 3), "names": np.array(["a", "bc"])})


# Steps that are finished


def test_a_table_is_made_once(workspace, table):
    first, again = (workspace.table("curves/split-0", table) for _ in range(2))
    assert table.calls == 1
    pd.testing.assert_frame_equal(first, again, check_exact=True)
    pd.testing.assert_frame_equal(first, table.value)
    assert (workspace.out / "cache" / "curves" / "split-0.csv").is_file()


def test_arrays_are_made_once(workspace, arrays):
    first, again = (workspace.arrays("features", arrays) for _ in range(2))
    assert arrays.calls == 1
    for name, array in arrays.value.items():
        for stored in (first[name], again[name]):
            assert stored.dtype == array.dtype
            assert np.array_equal(stored, array)


def test_another_run_finds_what_is_finished(workspace, table, arrays):
    workspace.table("a", table)
    workspace.arrays("a", arrays)
    # Tuples and lists are the same in a file.
    later = Workspace(workspace.out, {"sizes": [1, 2], "seed": 0})
    later.table("a", table)
    later.arrays("a", arrays)
    assert (table.calls, arrays.calls) == (1, 1)


def test_an_error_in_a_step_leaves_the_steps_before(workspace, table):
    workspace.table("first", table)
    with pytest.raises(ZeroDivisionError):
        workspace.table("second", lambda: 1 / 0)
    assert workspace.is_finished("first", ".csv")
    assert not workspace.is_finished("second", ".csv")
    workspace.table("second", table)
    assert table.calls == 2


# Settings


def test_other_settings_make_a_step_again(workspace, table):
    workspace.table("a", table)
    other = workspace.using(seed=1)
    assert other.settings == {"seed": 1, "sizes": [1, 2]}
    other.table("a", table)
    assert table.calls == 2
    workspace.table("a", table)  # what is there is of the other settings now
    assert table.calls == 3


def test_a_step_may_depend_on_some_settings_only(workspace, table):
    workspace.table("a", table, depends_on=["sizes"])
    workspace.using(seed=5).table("a", table, depends_on=["sizes"])
    assert table.calls == 1
    workspace.using(sizes=(1,)).table("a", table, depends_on=["sizes"])
    assert table.calls == 2


def test_unknown_settings_are_named(workspace, table):
    with pytest.raises(ValueError, match="'depth'"):
        workspace.table("a", table, depends_on=["depth"])
    assert table.calls == 0


@pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}])
def test_settings_that_no_file_can_hold_are_an_error(tmp_path, value):
    with pytest.raises(TypeError, match="settings"):
        Workspace(tmp_path, {"x": value})


@pytest.mark.parametrize("key", ["", "../up", "/root", "a//b", "a/", ".hidden", "a b"])
def test_keys_are_plain_names(workspace, table, key):
    with pytest.raises(ValueError, match="key"):
        workspace.table(key, table)
    assert table.calls == 0


# Damage


@pytest.mark.parametrize("kind", ["table", "arrays"])
@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "empty", "no seal", "bad seal"])
def test_a_damaged_step_is_made_again(workspace, table, arrays, kind, damage):
    make = {"table": table, "arrays": arrays}[kind]
    step = getattr(workspace, kind)
    step("a", make)
    path = workspace.out / "cache" / ("a.csv" if kind == "table" else "a.npz")
    seal = path.with_name(f"{path.name}.json")
    content = path.read_bytes()
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "changed":
        path.write_bytes(content[:-3] + b"9" + content[-2:])
    elif damage == "gone":
        path.unlink()
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "no seal":
        seal.unlink()
    else:
        seal.write_text("{")
    step("a", make)
    assert make.calls == 2
    step("a", make)
    assert make.calls == 2
    assert path.read_bytes() == content or kind == "arrays"  # archives hold the time of writing


def test_a_seal_tells_settings_and_digest(workspace, table):
    workspace.table("a", table)
    seal = json.loads((workspace.out / "cache" / "a.csv.json").read_text())
    assert seal["settings"] == {"seed": 0, "sizes": [1, 2]}
    assert len(seal["digest"]) == 64


def test_a_failed_write_leaves_the_old_file_or_none(workspace):
    def half(path: Path) -> None:
        path.write_text("half a fig")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        workspace.write("figure.svg", half)
    assert list(workspace.out.iterdir()) == []
    workspace.write("figure.svg", lambda path: path.write_text("whole"))
    with pytest.raises(OSError, match="disk full"):
        workspace.write("figure.svg", half)
    assert (workspace.out / "figure.svg").read_text() == "whole"
    assert len(list(workspace.out.iterdir())) == 1


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from experiments import workspace as room

def save_and_die(path, arrays):
    path.write_bytes(b"PK half of an archive")
    os.kill(os.getpid(), signal.SIGKILL)

workspace = room.Workspace(Path(sys.argv[1]), {"seed": 0})
workspace.arrays("first", lambda: {"x": np.ones(3)})
room._save_arrays = save_and_die
workspace.arrays("second", lambda: {"x": np.ones(3)})
"""


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_killed_run_loses_only_its_step(tmp_path, arrays):
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "cache" / "second.npz").exists()
    workspace = Workspace(tmp_path, {"seed": 0})
    workspace.arrays("first", arrays)
    assert arrays.calls == 0
    workspace.arrays("second", arrays)
    assert arrays.calls == 1
    left = sorted(path.name for path in (tmp_path / "cache").iterdir())
    assert left == ["first.npz", "first.npz.json", "second.npz", "second.npz.json"]


def test_pickles_are_refused(workspace):
    with pytest.raises(TypeError, match="'x'"):
        workspace.arrays("a", lambda: {"x": np.array([{}], dtype=object)})
    assert not workspace.is_finished("a")


# Results and progress


def test_results_lie_in_the_folder_itself(workspace, table):
    path = workspace.write_table("curves", table.value)
    assert path == workspace.out / "curves.csv"
    pd.testing.assert_frame_equal(pd.read_csv(path), table.value)


def test_progress_is_passed_on(tmp_path):
    said = []
    workspace = Workspace(tmp_path, {}, lambda *words: said.append(words))
    workspace.told("images", 1, 3)
    workspace.using(seed=1).told("images", 2, 3)
    assert said == [("images", 1, 3), ("images", 2, 3)]
    Workspace(tmp_path, {}).told("nobody listens", 0, 1)
