"""Run the snippets of pages that show what they print, and write down what they print today.

Usage: python tools/refresh_pages.py [docs/start.md ...]

A page is changed where a ``text`` block follows a ``python`` block. Without names, all such pages
are run; ``tests/test_docs.py`` fails as long as one of them shows something else.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SNIPPET = re.compile(r"```python\n(.*?)```(\n\n```text\n)?(?(2)(.*?)```)", re.DOTALL)
# Pages that are one tour: each snippet goes on where the last one ended.
TOURS = {"protocol.md", "start.md"}


def refreshed(page: Path) -> str:
    """The text of a page with what its snippets print."""
    names: dict[str, object] = {"__name__": "snippet"}

    def run(found: re.Match[str]) -> str:
        nonlocal names
        if page.name not in TOURS:
            if not found[2]:
                return found[0]
            names = {"__name__": "snippet"}
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(found[1], page.name, "exec"), names)
        if not found[2]:
            return found[0]
        # A page may show the end of what is printed only.
        n_lines = found[3].count("\n")
        lines = printed.getvalue().splitlines(keepends=True)
        promised = re.search(r"^print\(.*\)\s+# \d", found[1], re.MULTILINE)
        shown = lines[-n_lines:] if promised else lines
        return f"```python\n{found[1]}```{found[2]}{''.join(shown)}```"

    return SNIPPET.sub(run, page.read_text())


if __name__ == "__main__":
    given = [Path(name).resolve() for name in sys.argv[1:]]
    pages = given or [
        page
        for page in sorted((ROOT / "docs").glob("*.md"))
        if any(found[2] for found in SNIPPET.finditer(page.read_text()))
    ]
    for page in pages:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            text = refreshed(page)
            os.chdir(ROOT)
        is_new = text != page.read_text()
        page.write_text(text)
        print(page.name, "is new" if is_new else "is as it was")
