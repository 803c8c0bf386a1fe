"""Archives of what was made of functions beforehand: a zip file with a digest for each of them.

Nothing that is wrong with an archive is a reason not to go on: what is not in it is made anew.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from greedymiser._core.digests import digest_of

# What archives say of themselves.
DIGESTS, ABOUT = "digests.json", "about.json"


class Archive:
    """What was made of functions, by a key for each function and each of its types."""

    def __init__(self, file: Traversable, compiler: Callable[[], bytes] = lambda: b""):
        self.file = file
        # How functions were compiled; see ``digest_of``.
        self._compiler = compiler

    @cached_property
    def digests(self) -> dict[str, str]:
        """Digests of the functions, by key; none where there is no archive that can be read."""
        return self._json(DIGESTS)

    @cached_property
    def about(self) -> dict[str, Any]:
        """With what the archive was made."""
        return self._json(ABOUT)

    def digest(self, function: Callable[..., Any]) -> str:
        """The digest that a function has now."""
        return digest_of(function, of_text=True, compiler=self._compiler())

    def current(self, key: str, function: Callable[..., Any]) -> bytes | None:
        """What was made of a function; None if it is not here, or has changed since."""
        if key not in self.digests:
            return None
        try:
            is_current = self.digests[key] == self.digest(function)
        except Exception:  # there is no source to compare with, or none that Python can read
            return None
        return self.content(key) if is_current else None

    def content(self, key: str) -> bytes | None:
        """What is kept by a key; None if it cannot be read."""
        try:
            with self.file.open("rb") as file, zipfile.ZipFile(file) as zipped:
                return zipped.read(key)
        except Exception:  # a damaged file may raise anything
            return None

    def _json(self, name: str) -> dict[str, Any]:
        try:
            content: dict[str, Any] = dict(json.loads(self.content(name) or b"{}"))
        except (ValueError, TypeError):
            return {}
        return content


def write_archive(
    path: Path, contents: Mapping[str, bytes], digests: Mapping[str, str], about: Mapping[str, Any]
) -> None:
    """Write an archive, always the same for the same contents."""
    files = dict(contents)
    files[DIGESTS] = json.dumps(digests, indent=1, sort_keys=True).encode()
    files[ABOUT] = json.dumps(about, indent=1, sort_keys=True).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as zipped:
        for name in sorted(files):
            zipped.writestr(zipfile.ZipInfo(name), files[name], zipfile.ZIP_DEFLATED, 9)
