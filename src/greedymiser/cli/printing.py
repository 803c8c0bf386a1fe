"""Text for the terminal: no control characters, and nothing that it cannot show.

Names come from files that anybody may have written. Whatever is printed goes through ``escaped``,
and through rich as ``Text``, in which brackets are not markup.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressDisplay
from rich.table import Table
from rich.text import Text

from greedymiser._core.amounts import currency, money

# Columns of a terminal that there is none of: when output goes to a file or a pipe.
PLAIN_WIDTH = 120

# What a terminal obeys instead of showing it (C0, DEL, C1), what breaks lines or turns their
# direction, what cannot be seen at all, and halves of characters, which cannot be encoded.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)

# Said when it is so: the first run waits, and nobody would know what for.
COMPILING = "Compiling the kernels, which takes a while; later runs reuse them."

# Why nothing more can be printed on stdout; None as long as something can.
_stdout = SimpleNamespace(lost=None)


def escaped(text: str, keep: str = "") -> str:
    """Spell out the characters that a terminal would obey, but for those to keep."""

    def spelled(match: re.Match[str]) -> str:
        sign = match[0]
        return sign if sign in keep else sign.encode("unicode_escape").decode("ascii")

    return _UNSAFE.sub(spelled, text)


# -- streams ------------------------------------------------------------------------------------


def open_streams() -> None:
    """Let no stream fail on what it cannot encode, and give a closed one a place to go."""
    _stdout.lost = None
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def lost_output() -> OSError | None:
    """Why stdout did not take all that was printed; None if it did.

    A closed pipe or a full disk behind stdout must not stop the work: its results are in files.
    """
    return _stdout.lost


def _print(write: Callable[[], object]) -> None:
    if _stdout.lost is not None:
        return
    try:
        write()
        sys.stdout.flush()
    except OSError as error:
        _stdout.lost = error
        # What is left in the buffer must not fail again when Python ends.
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)


class _Console(Console):
    """A console that leaves closed pipes to us."""

    def on_broken_pipe(self) -> None:
        raise


def _console() -> Console:
    return _Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False)


# -- lines --------------------------------------------------------------------------------------


def complain(text: str, keep: str = "") -> None:
    """Print a line on stderr."""
    with contextlib.suppress(OSError):  # there is nobody left to tell
        typer.echo(_wrapped(escaped(text, keep), sys.stderr), err=True)


def on_one_line(text: str) -> str:
    """A message without its line breaks."""
    return re.sub(r"\s*[\r\n]\s*", " ", text.strip())


def warn(text: str) -> None:
    """Say on stderr what may not be as it was meant."""
    complain(f"Warning: {on_one_line(text)}")


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Show a warning as ``warnings.showwarning`` is asked to."""
    warn(str(message))


def say(*lines: str) -> None:
    """Print lines on stdout."""
    text = Text(_wrapped("\n".join(escaped(line) for line in lines), sys.stdout))
    _print(lambda: _console().print(text, soft_wrap=True))


def _wrapped(text: str, stream: Any) -> str:
    """Lines that end between words where a terminal would break them anywhere."""
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(
        line if len(line) <= width else _folded(line, width) for line in text.split("\n")
    )


def _folded(line: str, width: int) -> str:
    indent = " " * (len(line) - len(line.lstrip(" ")) + 2)
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def emit(data: str) -> None:
    """Print data on stdout: into a file or a pipe as they are, in UTF-8 as our files are."""
    if sys.stdout.isatty():
        _print(lambda: typer.echo(escaped(data, keep="\n\t"), nl=False))
        return

    def write() -> None:
        sys.stdout.flush()
        sys.stdout.buffer.write(data.encode("utf-8", "backslashreplace"))
        sys.stdout.buffer.flush()

    _print(write)


# -- tables and bars ----------------------------------------------------------------------------


def show_table(
    title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], left: str = ""
) -> None:
    """Print a table; columns are flush right, but for those named in ``left``."""
    table = Table(
        box=SIMPLE_HEAD,
        title=Text(escaped(title)) if title else None,
        title_justify="left",
        title_style="bold",
        show_header=any(head.strip() for head in heads),
        pad_edge=False,
    )
    for head in heads:
        at_left = head in left.split(",")
        table.add_column(
            Text(escaped(head)),
            justify="left" if at_left else "right",
            overflow="fold",
            no_wrap=not at_left,
        )
    for row in rows:
        table.add_row(*(Text(escaped(cell)) for cell in row))
    _print(lambda: _console().print(table))


@contextmanager
def shown_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on a terminal, and nothing elsewhere; give what tells it (done, total).

    A bar that does not move at first is explained, if it is for want of compiled kernels.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, total: None
        return
    from greedymiser._core.compiling import when_compiling  # and with it all of Numba

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with (
        ProgressDisplay(*columns, console=console, transient=True) as bar,
        when_compiling(lambda: console.print(COMPILING, highlight=False)),
    ):
        task = bar.add_task(escaped(what), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def price_of(value: float, unit: str | None = None) -> str:
    """A cost in the currency that it is counted in; other units are named in heads of columns."""
    return money(value, unit) if currency(unit) else f"{value:.6g}"


def in_unit(head: str, unit: str | None) -> str:
    """Head of a column of costs, with their unit where the costs do not show it."""
    return f"{head} ({unit})" if unit and not currency(unit) else head
