"""What holds for every command: how it fails, what it may write over, and what Ctrl-C means.

A command fails with one sentence on stderr and an exit code. It never writes over what it reads:
its parameters say which paths are read and which are written. And an interruption is never taken
for success, whoever has caught the exception.
"""

from __future__ import annotations

import functools
import inspect
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, ParamSpec, get_args, get_type_hints

import typer

from greedymiser.cli.printing import (
    complain,
    lost_output,
    on_one_line,
    open_streams,
    show_warning,
)

P = ParamSpec("P")

# As the shell has it for a program that a signal has ended: 128 and the number of the signal.
INTERRUPTED = 130
BROKEN_PIPE = 141

# Errors quote names, and a name may be a book.
LONGEST_SENTENCE = 1000

options = SimpleNamespace(debug=False)


class InputError(Exception):
    """Something that the user can put right; its message is one sentence."""


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """Make a command answer bad input with one sentence and exit code 1."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        open_streams()
        with warnings.catch_warnings(), _noting_interruptions():
            warnings.showwarning = show_warning
            code = _exit_code(command, inspect.signature(command).bind(*args, **kwargs))
        if code:
            raise typer.Exit(code)

    return run


def _exit_code(command: Callable[..., None], bound: inspect.BoundArguments) -> int:
    """Run a command, and say what went wrong if something did."""
    try:
        bound.apply_defaults()
        _check_paths(command, bound.arguments)
        command(*bound.args, **bound.kwargs)
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except KeyboardInterrupt:
        complain("Interrupted.")
        return INTERRUPTED
    except Exception as error:
        if options.debug:
            complain(traceback.format_exc().rstrip(), keep="\n")
        else:
            complain(f"Error: {_sentence(error)}")
        return 1
    if interruption.happened:
        if not interruption.told:
            complain("Interrupted: not all was done that was asked for.")
        return INTERRUPTED
    lost = lost_output()
    if lost is None:
        return 0
    if isinstance(lost, BrokenPipeError):  # as of head, which has seen enough
        return BROKEN_PIPE
    complain(f"Error: cannot write to the standard output: {_reason(lost)}")
    return 1


def _sentence(error: Exception) -> str:
    """What went wrong, on one line."""
    if isinstance(error, OSError) and error.strerror:
        reason = _reason(error)
        reason = f"{reason}: {str(error.filename)!r}" if error.filename else reason
    elif isinstance(error, InputError | ValueError | TypeError | OSError | ImportError | Warning):
        reason = str(error)
    elif isinstance(error, MemoryError):
        reason = "this needs more memory than there is"
    else:
        reason = (
            f"unexpected {type(error).__name__}: {error}; `greedymiser --debug ...` shows where"
        )
    notes = "".join(f" ({note.rstrip('.')})" for note in getattr(error, "__notes__", []))
    return _cut(on_one_line(f"{reason}{notes}"))


def _cut(text: str) -> str:
    """A sentence that can be read, whatever it quotes."""
    return text if len(text) <= LONGEST_SENTENCE else f"{text[:700]} ... {text[-200:]}"


def _reason(error: OSError) -> str:
    reason = error.strerror or str(error)
    return reason[:1].lower() + reason[1:]


# -- interruptions ------------------------------------------------------------------------------


class Interruption:
    """Whether Ctrl-C was pressed while a command ran, and whether the user has had a message.

    Training keeps what it has finished and may go on as if nothing had happened; a command that
    goes on, too, asks here.
    """

    def __init__(self) -> None:
        self.happened = False
        self.told = False

    def keep(self, what: str) -> None:
        """Say what is kept of work that was not finished."""
        self.happened = self.told = True
        complain(f"Interrupted: {what}")


interruption = Interruption()


@contextmanager
def _noting_interruptions() -> Iterator[None]:
    interruption.happened = interruption.told = False

    def note(number: int, frame: FrameType | None) -> None:
        interruption.happened = True
        signal.default_int_handler(number, frame)

    usual = signal.getsignal(signal.SIGINT)
    # Who has it ignored, as nohup has, or has a handler of his own, keeps it.
    ours = usual is signal.default_int_handler
    if ours and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, usual)
    else:
        yield


# -- what is read and what is written -----------------------------------------------------------


@dataclass(frozen=True)
class Reads:
    """Marks a parameter of a command: the path of a file that is read."""


@dataclass(frozen=True)
class Writes:
    """Marks a parameter of a command: the path of a file that is written, or of a folder."""

    # For a folder: patterns of all that may be written or removed below it.
    below: tuple[str, ...] = ()


def marked_paths(command: Callable[..., None]) -> dict[str, Reads | Writes]:
    """The parameters of a command that are paths, by name."""
    marked: dict[str, Reads | Writes] = {}
    for name, hint in get_type_hints(inspect.unwrap(command), include_extras=True).items():
        for mark in get_args(hint):
            if isinstance(mark, Reads | Writes):
                marked[name] = mark
    return marked


def _check_paths(command: Callable[..., None], arguments: dict[str, Any]) -> None:
    marks = marked_paths(command)
    for name in marks:  # shells leave --out=~/m.miser to us
        if arguments[name] is not None:
            arguments[name] = Path(os.path.expanduser(arguments[name]))
    for out, written in marks.items():
        for name, mark in marks.items():
            if isinstance(written, Writes) and isinstance(mark, Reads):
                check_not_read(out, arguments[out], written, name, arguments[name])


def check_not_read(
    option: str, out: Path | None, written: Writes, what: str, path: Path | None
) -> None:
    """Refuse to write to an option's ``out`` over what is read from ``path``, by whatever name."""
    if out is None or path is None or not path.exists():
        return
    if _is_same(out, path):
        raise InputError(f"--{option} {str(out)!r} is the {what} file itself: {str(path)!r}")
    for place in (place for pattern in written.below for place in out.glob(pattern)):
        if _is_same(place, path) or _is_within(path, place):
            raise InputError(
                f"--{option} {str(out)!r} would write over {str(place)!r}, and that is the {what} "
                f"file itself: {str(path)!r}"
            )


def _is_same(place: Path, path: Path) -> bool:
    try:
        return os.path.samefile(place, path)
    except OSError:  # one of them is not there
        return False


def _is_within(path: Path, folder: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
