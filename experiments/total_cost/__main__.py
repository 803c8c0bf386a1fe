"""Measure what rows cost in all, and show it."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.model_selection import StratifiedShuffleSplit

from experiments.total_cost.methods import METHODS
from experiments.total_cost.problems import LEVELS, NAMES, read_problem

COLUMNS = ["set", "level", "split", "method", "total"]


def measure(
    data: Path, results: Path, names: list[str], methods: list[str], n_splits: int, n_jobs: int
) -> pd.DataFrame:
    """Mean total per test row, split by split; what ``results`` has is not measured again."""
    known = pd.read_csv(results) if results.exists() else pd.DataFrame(columns=COLUMNS)
    done = set(known[COLUMNS[:4]].itertuples(index=False, name=None))
    splitter = StratifiedShuffleSplit(10, test_size=0.2, random_state=0)
    for split in range(n_splits):
        for method in methods:
            for name in names:
                for level in LEVELS:
                    if (name, level, split, method) in done:
                        continue
                    problem = read_problem(data, name, level)
                    learn, test = list(splitter.split(problem.X, problem.y))[split]
                    total = METHODS[method](problem, learn, test, n_jobs)
                    line = pd.DataFrame([(name, level, split, method, total)], columns=COLUMNS)
                    line.to_csv(results, mode="a", index=False, header=not results.exists())
                    print(*line.iloc[0], flush=True)
    return pd.read_csv(results)


def shown(totals: pd.DataFrame, n_splits: int) -> str:
    """A table: means, and what others cost beyond ours with standard errors of the differences."""
    by_split = totals[totals["split"] < n_splits].pivot_table(
        index=["set", "level", "split"], columns="method", values="total"
    )
    lines, logs = [], []
    for name in NAMES:
        for level in LEVELS:
            if (name, level) not in by_split.index:
                continue
            rows = by_split.loc[(name, level)]
            rows = rows[rows["ours"].notna()]
            mine = rows["ours"]
            cells = [f"{name:10} {level:6} {len(rows):2} splits, ours {mine.mean():7.2f}"]
            for method in rows.columns.drop("ours"):
                gap = (rows[method] - mine).dropna()
                error = gap.std(ddof=1) / np.sqrt(len(gap)) if len(gap) > 1 else np.nan
                mean = rows[method].mean()
                cells.append(f"{method} {mean:7.2f} ({gap.mean():+.2f} ± {error:.2f})")
                if method == "streed":
                    logs.append(np.log(mine[gap.index].mean() / mean))
                    cells.append(f"{np.exp(logs[-1]):.3f}")
            lines.append("; ".join(cells))
    if logs:
        lines.append(f"geometric mean of ours to STreeD's: {np.exp(np.mean(logs)):.3f}")
    return "\n".join(lines)


def main() -> None:
    """Read what is asked for, measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder with a folder for each set")
    parser.add_argument("--sets", nargs="*", default=list(NAMES), choices=NAMES)
    parser.add_argument("--methods", nargs="*", choices=list(METHODS))
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--results", type=Path, default=Path("total_cost.csv"))
    asked = parser.parse_args()
    can_run = [name for name in METHODS if name != "streed" or find_spec("pystreed")]
    methods = asked.methods or can_run
    totals = measure(asked.data, asked.results, asked.sets, methods, asked.splits, asked.jobs)
    print(shown(totals, asked.splits))


if __name__ == "__main__":
    main()
