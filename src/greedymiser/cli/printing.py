"""What reaches the terminal."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressDisplay
from rich.table import Table
from rich.text import Text

# To predict needs none of those that train: they are imported by the commands that do.
if TYPE_CHECKING:
    pass


# Columns of a terminal that there is none of: when output goes to a file or a pipe.
PLAIN_WIDTH = 120


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Show a warning as ``warnings.showwarning`` is asked to."""
    warn(str(message))


def warn(text: str) -> None:
    """Say on stderr what may not be as it was meant."""
    typer.echo(f"Warning: {' '.join(text.split())}", err=True)


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False)


def say(text: str) -> None:
    """Print a text on stdout."""
    # A Text, so that brackets in the name of a file are not taken for markup.
    _console().print(Text(text), soft_wrap=True)


def show_table(
    title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], left: str = ""
) -> None:
    """Print a table; columns are flush right, but for those named in ``left``."""
    table = Table(
        box=SIMPLE_HEAD,
        title=title or None,
        title_justify="left",
        title_style="bold",
        show_header=any(head.strip() for head in heads),
        pad_edge=False,
    )
    for head in heads:
        at_left = head in left.split(",")
        table.add_column(
            Text(head), justify="left" if at_left else "right", overflow="fold", no_wrap=not at_left
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    _console().print(table)


@contextmanager
def _bar() -> Iterator[Callable[[str, int, int], None] | None]:
    """Show a bar on a terminal; give what tells it (what, done, total), or None elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    )  # fmt: skip
    with ProgressDisplay(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(
            task, description=what, completed=done, total=total
        )


@contextmanager
def shown_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show how far one thing is, on a terminal; give what tells it (done, total)."""
    with _bar() as told:
        yield (lambda done, total: None) if told is None else functools.partial(told, what)


@contextmanager
def shown_steps() -> Iterator[Callable[[str, int, int], None]]:
    """Show the step that is being done: a bar on a terminal, elsewhere a line when one begins."""
    begun: set[str] = set()

    def say(what: str, done: int, total: int) -> None:
        if what not in begun:
            begun.add(what)
            typer.echo(what, err=True)

    with _bar() as told:
        yield told or say


def show_frame(title: str, frame: Any) -> None:
    """Print as many of the first columns of a data frame as there is room for."""
    columns = {name: [_cell(value) for value in frame[name]] for name in frame.columns}
    widths = [max(map(len, [name, *cells])) + 3 for name, cells in columns.items()]
    shown = [name for name, end in zip(columns, np.cumsum(widths), strict=True)
             if end <= _console().width]  # fmt: skip
    rows = list(zip(*(columns[name] for name in shown), strict=True))
    show_table(title, shown, rows, left="method")


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def as_number(value: float) -> str:
    """A cost, a price."""
    return f"{value:.6g}"


def as_score(value: float) -> str:
    """A score, to four digits where they tell anything."""
    return f"{value:.4f}" if 0.01 <= abs(value) < 1000 or value == 0 else f"{value:.4g}"


def listing(names: Sequence[Any], most: int = 6) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(str(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def quoted(names: Sequence[Any], most: int = 5) -> str:
    """The first names in quotes, and how many more there are."""
    return listing([repr(str(name)) for name in names], most)


def in_unit(head: str, unit: str | None) -> str:
    """Head of a column, with the unit of what is below."""
    return f"{head} ({unit})" if unit else head
