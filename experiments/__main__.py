"""Run an experiment of the paper: its tables and figures. An interrupted run can be resumed."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tqdm.auto import tqdm

from experiments.workspace import Results, Told, Workspace

EXPERIMENTS = {
    "yahoo": "experiments.ranking.yahoo",
    "mq2008": "experiments.ranking.mq2008",
    "scene15": "experiments.scenes.scene15",
    "scene15-machines": "experiments.scenes.machines",
}

# Results with more rows than this are left to their files.
LONGEST_TABLE = 20

# As the shell has it for a program that Ctrl-C has ended.
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and do it; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    parser.add_argument("name", choices=EXPERIMENTS)
    parser.add_argument(
        "--data", type=Path, help="folder with the original data; yahoo can do without"
    )
    parser.add_argument(
        "--out", type=Path, help="folder for results and finished steps (default: results/NAME)"
    )
    parser.add_argument(
        "--small", action="store_true", help="a quick version, to see that everything works"
    )
    parser.add_argument("--jobs", type=int, help="threads or processes; as many as cores")
    parser.add_argument(
        "--only",
        help="mq2008: one of our later methods again, such as 'rows pay'; --out has the rest",
    )
    args = parser.parse_args(arguments)
    folder: Path = args.out or Path("results") / args.name
    # Imported here, because each experiment asks for libraries of its own.
    experiment = importlib.import_module(EXPERIMENTS[args.name])
    try:
        check_apart(folder, args.data)
        with shown_steps() as told:
            chosen = {} if args.only is None else {"only": args.only}
            results = experiment.run(
                args.data, Workspace(folder, {}, told), args.small, n_jobs=args.jobs, **chosen
            )
    except KeyboardInterrupt:
        print("Finished steps are kept: the same command goes on from there.", file=sys.stderr)
        return INTERRUPTED
    except (ValueError, OSError, ImportError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    show(results, folder)
    return 0


def check_apart(out: Path, data: Path | None) -> None:
    """Refuse to write results into the folder of the data."""
    if data is not None and Path(os.path.realpath(out)).is_relative_to(os.path.realpath(data)):
        raise ValueError(f"--out {str(out)!r} is in the folder of the data, {str(data)!r}")


@contextmanager
def shown_steps() -> Iterator[Told]:
    """Show the step that is being done: a bar on a terminal, elsewhere a line when one begins."""
    begun: set[str] = set()

    with tqdm(disable=not sys.stderr.isatty(), leave=False) as bar:

        def tell(what: str, done: int, total: int) -> None:
            if what not in begun:
                begun.add(what)
                bar.write(what, file=sys.stderr)
            bar.set_description(what, refresh=False)
            bar.total, bar.n = total, done
            bar.refresh()

        yield tell


def show(results: Results, folder: Path) -> None:
    """Print the short tables, and where everything is."""
    for title, table in results.tables.items():
        if len(table) <= LONGEST_TABLE:
            print(title, table.to_string(index=False, float_format="{:.4g}".format), "", sep="\n")
    print(f"Data: {results.data}")
    for title in results.tables:
        print(f"  {folder / f'{title}.csv'}")
    for path in results.figures.values():
        print(f"  {path}")


if __name__ == "__main__":
    sys.exit(main())
