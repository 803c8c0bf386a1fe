"""Progress bars, in a terminal or a notebook."""

from __future__ import annotations

import sys
from typing import Any, TextIO


def somebody_looks() -> bool:
    """Whether stderr is a terminal, or the program runs in a notebook."""
    shell = sys.modules.get("IPython")
    kernel = None if shell is None else shell.get_ipython()
    if kernel is not None and type(kernel).__name__ == "ZMQInteractiveShell":
        return True
    return bool(sys.stderr is not None and sys.stderr.isatty())


class Bar:
    """A progress bar, or nothing where none is wanted. It is drawn when something has happened.

    Parameters
    ----------
    total : int or None
        Steps that there will be; None if nobody knows.
    unit : str
        What a step is called.
    is_shown : bool
    delay : float
        Seconds before it is drawn: quick work needs no bar.
    file : stream, optional
        stderr by default.
    """

    def __init__(
        self,
        total: int | None,
        unit: str,
        *,
        is_shown: bool = True,
        delay: float = 0.0,
        file: TextIO | None = None,
    ):
        self._shown = is_shown
        self._delay = delay
        self._total = total
        self._unit = unit
        self._file = file
        self._bar: Any = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def advance(self, n: int = 1) -> None:
        """So many more steps are done."""
        if self._shown:
            self._drawn().update(n)

    def move_to(self, done: int, note: str = "") -> None:
        """So many steps are done in all; the note stands behind the bar."""
        if self._shown:
            bar = self._drawn()
            bar.set_postfix_str(note, refresh=False)
            bar.update(done - bar.n)

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        if self._shown:
            self._drawn().write(line, file=self._stream())

    def close(self) -> None:
        """End the bar, as it stands."""
        if self._bar is not None:
            if not self._delay:
                self._bar.refresh()
            self._bar.close()
            self._bar = None

    def _stream(self) -> TextIO:
        return sys.stderr if self._file is None else self._file

    def _drawn(self) -> Any:
        if self._bar is None:
            from tqdm.auto import tqdm  # takes a moment to import, and few look

            self._bar = tqdm(
                total=self._total, unit=f" {self._unit}", file=self._stream(), delay=self._delay
            )
        return self._bar
