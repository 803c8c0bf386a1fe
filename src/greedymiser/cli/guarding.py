"""How a command fails: with one sentence, and an exit code."""

from __future__ import annotations

import functools
import traceback
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, ParamSpec

import typer

from greedymiser.cli.printing import show_warning

# To predict needs none of those that train: they are imported by the commands that do.
if TYPE_CHECKING:
    pass


P = ParamSpec("P")

options = SimpleNamespace(debug=False)


class InputError(Exception):
    """Something that the user can put right; its message is one sentence."""


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """Make a command answer bad input with one sentence and exit code 1."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with warnings.catch_warnings():
            warnings.showwarning = show_warning
            try:
                command(*args, **kwargs)
            except (typer.Exit, typer.Abort, typer.BadParameter):
                raise
            except KeyboardInterrupt:
                typer.echo("Interrupted.", err=True)
                raise typer.Exit(130) from None
            except Exception as error:
                if options.debug:
                    traceback.print_exc()
                else:
                    typer.echo(f"Error: {_sentence(error)}", err=True)
                raise typer.Exit(1) from None

    return run


def _sentence(error: Exception) -> str:
    """What went wrong, on one line."""
    if isinstance(error, OSError) and error.strerror:
        what = error.strerror[:1].lower() + error.strerror[1:]
        said = f"{what}: {str(error.filename)!r}" if error.filename else what
    elif isinstance(error, InputError | ValueError | TypeError | OSError | ImportError | Warning):
        said = str(error)
    else:
        said = f"unexpected {type(error).__name__}: {error}; `greedymiser --debug ...` shows where"
    notes = "".join(f" ({note.rstrip('.')})" for note in getattr(error, "__notes__", []))
    return " ".join(f"{said}{notes}".split())
