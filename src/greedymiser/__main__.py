"""The door for ``greedymiser`` and ``python -m greedymiser``: says what is missing, then knocks."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from greedymiser.cli import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich", "click"):
            raise
        sys.exit(
            "The command line needs typer and rich, which are not installed; "
            'run: pip install "greedymiser[cli]"'
        )
    app(prog_name="greedymiser")


if __name__ == "__main__":
    main()
