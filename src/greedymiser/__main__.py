"""Starts the command line; where its libraries are not installed, says which ones."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line."""
    _take_closed_descriptors()
    try:
        from greedymiser.cli import app
        from greedymiser.cli.printing import open_streams
    except KeyboardInterrupt:  # the libraries below take a second to import
        sys.exit(130)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich", "click"):
            raise
        sys.exit(
            "The command line needs typer and rich, which are not installed; "
            'run: pip install "greedymiser[cli]"'
        )
    open_streams()
    try:
        app(prog_name="greedymiser")
    except OSError as error:  # commands say it themselves; --help and --version do not
        sys.exit(f"Error: cannot write to the standard output: {error.strerror or error}")


def _take_closed_descriptors() -> None:
    """See that no file of ours is ever opened as stdin, stdout or stderr, if those are closed."""
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor <= 2:
        descriptor = os.dup(descriptor)
    os.close(descriptor)


if __name__ == "__main__":
    main()
