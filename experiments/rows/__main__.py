"""Measure what a mean cost per row buys, and show it."""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from experiments.frontier.measuring import key_of, read_measured, write_measured
from experiments.frontier.problems import PROBLEMS, Problem
from experiments.rows.methods import METHODS

COLUMNS = (
    "data", "scoring", "split", "method", "budget", "valid_cost", "valid_score", "test_cost",
    "test_score", "seconds",
)  # fmt: skip

# Splits of each problem, and budgets: the smaller ones, where asking some rows more than others
# can pay. Those of thyroid are around the price of TSH for everybody.
SPLITS = {"thyroid": 3, "heart": 5, "mq2008": 5, "nhanes": 2, "mfeat": 1, "spam": 1}
THYROID_BUDGETS = (16.0, 20.0, 23.0, 24.0, 25.0, 26.5, 30.0, 36.0, 46.5)
# A mean may be less than the price of anything.
N_BUDGETS, CHEAPEST = 8, 0.3


def problem_of(name: str, folder: Path | None) -> Problem:
    """A problem with budgets for mean costs: finer than those that buy for everybody."""
    problem = PROBLEMS[name](folder)
    if name == "thyroid":
        return replace(problem, budgets=THYROID_BUDGETS)
    if name == "spam":
        return problem
    prices = problem.costs.prices()
    everything = problem.costs.total(range(problem.costs.n_features))
    least = CHEAPEST * prices[prices > 0].min()
    budgets = np.geomspace(least, everything, N_BUDGETS + 2)[:-2]
    return replace(problem, budgets=tuple(float(f"{budget:.3g}") for budget in budgets))


def measure(problem: Problem, i: int, method: str, n_jobs: int) -> list[dict[str, str]]:
    """What a method serves for every budget on one split."""
    split = problem.split(i)
    start = time.perf_counter()
    found = METHODS[method](problem, split, n_jobs)
    seconds = time.perf_counter() - start
    rows = []
    for budget, offer in found.items():
        paid = float(offer.bills(split.test).mean())
        score = problem.score(split.test, offer.predict(split.test))
        cells = (
            problem.name, problem.scoring, split.name, method, f"{budget:g}", f"{offer.cost:.4f}",
            f"{offer.score:.6f}", f"{paid:.4f}", f"{score:.6f}", f"{seconds:.1f}",
        )  # fmt: skip
        rows.append(dict(zip(COLUMNS, cells, strict=True)))
    return rows


def run(args: argparse.Namespace) -> None:
    """Measure what the file does not have yet."""
    rows = read_measured(args.out, COLUMNS)
    done = {key_of(row) for row in rows}
    folder = None if args.folder is None else Path(args.folder)
    for name in args.data:
        problem = problem_of(name, folder)
        for i in range(args.splits or SPLITS[name]):
            for method in args.methods:
                if (name, str(i), method) in done:
                    continue
                rows += measure(problem, i, method, args.jobs)
                print(name, i, method, rows[-1]["seconds"], "s", flush=True)
                write_measured(args.out, rows, COLUMNS)


def show(path: Path) -> None:
    """Print a Markdown table per problem: mean test score and mean test cost, by budget."""
    import pandas as pd

    rows = pd.read_csv(path)
    for name, of_data in rows.groupby("data", sort=False):
        mean = of_data.groupby(["budget", "method"])[["test_score", "test_cost"]].mean()
        n_splits = of_data["split"].nunique()
        print(f"\n{name}: {of_data['scoring'].iloc[0]} on test rows, {n_splits} splits\n")
        print("| budget |", " | ".join(METHODS), "|")
        print("|---|" + "---|" * len(METHODS))
        for budget in sorted(of_data["budget"].unique()):
            found = mean.loc[budget]
            cells = [
                f"{found.loc[m, 'test_score']:.4f} at {found.loc[m, 'test_cost']:.2f}"
                if m in found.index
                else ""
                for m in METHODS
            ]
            print(f"| {budget:g} | {' | '.join(cells)} |")


def protocol(args: argparse.Namespace) -> None:
    """Print what was learned on thyroid for a budget: who is asked what, chosen by validation."""
    problem = replace(problem_of("thyroid", None), budgets=(args.budget,))
    split = problem.split(0)
    offer = METHODS["row"](problem, split, args.jobs)[args.budget]
    paid = offer.bills(split.test)
    score = problem.score(split.test, offer.predict(split.test))
    print(f"budget {args.budget:g}: {score:.4f} at a mean of {paid.mean():.2f} on test rows\n")
    print(offer.model.protocol(split.test.X))


def main(arguments: list[str] | None = None) -> None:
    """Read the command line and do it."""
    parser = argparse.ArgumentParser(prog="experiments.rows", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    results = Path(__file__).parent / "results" / "results.csv"
    measured = commands.add_parser("run", help="measure; goes on where a file ends")
    measured.add_argument("--data", nargs="+", choices=SPLITS, default=list(SPLITS))
    measured.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    measured.add_argument("--splits", type=int, help="how many; by default as in the results")
    measured.add_argument("--out", type=Path, default=results, help="CSV file")
    measured.add_argument("--jobs", type=int, default=1, help="threads")
    given = os.environ.get("GREEDYMISER_DATA")
    measured.add_argument("--folder", type=Path, default=given, help="(GREEDYMISER_DATA)")
    shown = commands.add_parser("table", help="print Markdown tables")
    shown.add_argument("results", type=Path, nargs="?", default=results)
    learned = commands.add_parser("protocol", help="print what was learned on thyroid")
    learned.add_argument("--budget", type=float, default=26.5)
    learned.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args(arguments)
    if args.command == "run":
        run(args)
    elif args.command == "table":
        show(args.results)
    else:
        protocol(args)


if __name__ == "__main__":
    main()
