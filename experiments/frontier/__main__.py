"""Measure what every budget buys, and show it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from experiments.frontier.measuring import run
from experiments.frontier.problems import PROBLEMS
from experiments.frontier.rivals import METHODS


def main(arguments: list[str] | None = None) -> None:
    """Read the command line and do it."""
    parser = argparse.ArgumentParser(prog="experiments.frontier", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    measured = commands.add_parser("run", help="measure; goes on where a file ends")
    measured.add_argument("--data", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    measured.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    measured.add_argument("--splits", type=int, default=10, help="how many (MQ2008 has five)")
    measured.add_argument("--out", type=Path, required=True, help="CSV file")
    measured.add_argument("--redo", action="store_true", help="measure again what is there")
    measured.add_argument("--jobs", type=int, default=1, help="threads")
    given = os.environ.get("GREEDYMISER_DATA")
    measured.add_argument(
        "--folder", type=Path, default=given, help="of data (default: GREEDYMISER_DATA)"
    )
    shown = commands.add_parser("table", help="print Markdown tables, draw a figure")
    shown.add_argument("results", type=Path, help="CSV file")
    shown.add_argument("--figure", type=Path, help="by default beside the file, as .png")
    args = parser.parse_args(arguments)
    if args.command == "run":
        folder = None if args.folder is None else Path(args.folder)
        problems = [PROBLEMS[name](folder) for name in args.data]
        run(
            problems, args.methods, args.splits, args.out, redo=args.redo, n_jobs=args.jobs,
            tell=lambda line: print(line, flush=True),
        )  # fmt: skip
        return
    from experiments.frontier.tables import draw_panels, markdown, measured_rows

    rows = measured_rows(args.results)
    print(markdown(rows))
    draw_panels(rows, args.figure or args.results.with_suffix(".png"))


if __name__ == "__main__":
    main()
