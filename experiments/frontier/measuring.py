"""Run methods on problems, a row per budget; what is in the file already is not measured again."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from experiments.frontier.problems import Problem
from experiments.frontier.rivals import OURS, applies, chosen, tested
from greedymiser._core.files import write_atomically
from greedymiser._core.version import __version__

COLUMNS = (
    "data", "scoring", "split", "method", "budget", "cost", "n_features", "valid_score",
    "test_score", "seconds", "version",
)  # fmt: skip

Key = tuple[str, str, str]


def key_of(row: dict[str, str]) -> Key:
    """What is measured in one go."""
    return row["data"], row["split"], row["method"]


def read_measured(path: Path, columns: Sequence[str] = COLUMNS) -> list[dict[str, str]]:
    """The rows of a file; none if there is none."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    if rows and tuple(rows[0]) != tuple(columns):
        raise ValueError(f"{str(path)!r} has other columns than {', '.join(columns)}")
    return rows


def write_measured(
    path: Path, rows: Sequence[dict[str, str]], columns: Sequence[str] = COLUMNS
) -> None:
    """Write all rows; the file is there whole, or as it was."""
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.getvalue().encode())


def measure(problem: Problem, i: int, method: str, n_jobs: int = 1) -> list[dict[str, str]]:
    """What a method serves for every budget on one split, as rows of the file."""
    split = problem.split(i)
    if method in OURS:  # what is compiled on first use is not part of the method's time
        chosen(method, replace(problem, rounds=2), split, n_jobs)
    start = time.perf_counter()
    choices = chosen(method, problem, split, n_jobs)
    seconds = time.perf_counter() - start
    return [
        {
            "data": problem.name,
            "scoring": problem.scoring,
            "split": split.name,
            "method": method,
            "budget": f"{budget:g}",
            "cost": f"{one.cost:.6g}",
            "n_features": str(one.n_features),
            "valid_score": f"{one.valid_score:.6f}",
            "test_score": f"{tested(problem, split.test, one):.6f}",
            "seconds": f"{seconds:.2f}",
            "version": __version__,
        }
        for budget, one in choices
    ]


def run(
    problems: Sequence[Problem],
    methods: Sequence[str],
    n_splits: int,
    path: Path,
    *,
    redo: bool = False,
    n_jobs: int = 1,
    tell: Callable[[str], object] = print,
) -> None:
    """Measure what the file does not have yet; with ``redo``, what it has as well."""
    wanted = [
        (problem, i, method)
        for problem in problems
        for i in range(min(n_splits, problem.max_splits))
        for method in methods
        if applies(method, problem)
    ]
    rows = read_measured(path)
    if redo:
        again = {(problem.name, str(i), method) for problem, i, method in wanted}
        rows = [row for row in rows if key_of(row) not in again]
    done = {key_of(row) for row in rows}
    for step, (problem, i, method) in enumerate(wanted, start=1):
        what = f"[{step}/{len(wanted)}] {problem.name}, split {i}, {method}"
        if (problem.name, str(i), method) in done:
            tell(f"{what}: already there")
            continue
        measured = measure(problem, i, method, n_jobs)
        rows += measured
        write_measured(path, rows)
        scores = " ".join(f"{float(row['test_score']):.3f}" for row in measured)
        tell(f"{what}: {float(measured[0]['seconds']):.1f} s, test {scores}")
