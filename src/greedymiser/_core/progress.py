"""Progress bars, in a terminal or a notebook, and how far work is that has phases."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO

# Seconds of work after which a terminal or a notebook is shown a bar, also where nobody asked.
PATIENCE = 3.0


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


class Phases:
    """How much is done of some work that has phases, none of which knows what the others take.

    Any thread may do a step; the one that has begun the work tells of it.

    Examples
    --------
    >>> phases = Phases()
    >>> phases.tell = print
    >>> phases.begin(0.5, n_steps=2)
    >>> phases.step()
    0.25
    >>> phases.begin(0.5)
    >>> phases.reached(1.0)
    0.75
    """

    def __init__(self) -> None:
        # Called with the share of all work that is done, which never falls.
        self.tell: Callable[[float], object] | None = None
        self._lock = threading.Lock()
        self.restart()

    def restart(self) -> None:
        """Nothing is done; this thread tells from now on."""
        self._thread = threading.get_ident()
        self._low = self._high = self._reserved = 0.0
        self._limit = 1.0
        self._n_steps, self._n_done = 0, 0

    def reserve(self, share: float) -> None:
        """Give what is begun from here to the next call so much of all that is left, together.

        Examples
        --------
        >>> phases = Phases()
        >>> phases.tell = print
        >>> phases.reserve(0.5)
        >>> phases.begin(0.5)
        >>> phases.reached(1.0)
        0.25
        >>> phases.reserve(1.0)
        >>> phases.begin(0.5)
        >>> phases.reached(1.0)
        0.75
        """
        self._low = self._high = self._reserved
        self._limit = self._reserved = self._low + share * (1.0 - self._low)

    def begin(self, share: float, n_steps: int = 0) -> None:
        """Begin a phase that takes so much of what is left; without steps, it says itself how far.

        More steps than were expected count for nothing.
        """
        self._low = self._high
        self._high += share * (self._limit - self._low)
        self._n_steps, self._n_done = n_steps, 0

    def step(self) -> None:
        """Do one step of the phase."""
        with self._lock:
            self._n_done += 1
        if self._n_steps:
            self.reached(self._n_done / self._n_steps)

    def reached(self, share: float) -> None:
        """Have done so much of the phase."""
        if self.tell is not None and threading.get_ident() == self._thread:
            self.tell(self._low + min(share, 1.0) * (self._high - self._low))
