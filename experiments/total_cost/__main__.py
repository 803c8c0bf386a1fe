"""Measure what rows cost in all, and show it."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from sklearn.model_selection import StratifiedShuffleSplit

from experiments.total_cost.methods import METHODS
from experiments.total_cost.problems import LEVELS, NAMES, STREED, read_problem


def measure(
    folder: Path, name: str, level: str, n_splits: int, n_jobs: int
) -> dict[str, list[float]]:
    """Mean total per test row of every method that can be run, split by split."""
    problem = read_problem(folder, name, level)
    splitter = StratifiedShuffleSplit(10, test_size=0.2, random_state=0)
    means: dict[str, list[float]] = {}
    for learn, test in list(splitter.split(problem.X, problem.y))[:n_splits]:
        for method, run in METHODS.items():
            if method == "streed" and find_spec("pystreed") is None:
                continue
            means.setdefault(method, []).append(run(problem, learn, test, n_jobs))
    return means


def shown(name: str, level: str, means: dict[str, list[float]]) -> str:
    """A line of the table, with standard errors of paired differences to ours."""
    mine = np.array(means["ours"])
    stored = STREED[name][LEVELS.index(level)]
    cells = [f"{name:10} {level:6} ours {mine.mean():8.2f}, {mine.mean() / stored:.3f} of STreeD's"]
    for method, values in means.items():
        if method != "ours":
            gap = np.array(values) - mine
            error = gap.std(ddof=1) / np.sqrt(len(gap)) if len(gap) > 1 else np.nan
            cells.append(f"{method} {np.mean(values):.2f} ({gap.mean():+.2f} ± {error:.2f})")
    return "; ".join(cells)


def main() -> None:
    """Read what is asked for, measure it, and print a line for each set and level."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder with a folder for each set")
    parser.add_argument("--sets", nargs="*", default=NAMES, choices=NAMES)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    logs = []
    for name in asked.sets:
        for level in LEVELS:
            means = measure(asked.data, name, level, asked.splits, asked.jobs)
            logs.append(np.log(np.mean(means["ours"]) / STREED[name][LEVELS.index(level)]))
            print(shown(name, level, means), flush=True)
    print(f"geometric mean of ours to STreeD's stored figures: {np.exp(np.mean(logs)):.3f}")


if __name__ == "__main__":
    main()
