"""A folder of finished steps: what an experiment has computed once, it never computes again.

A step is a table (CSV) or some arrays (NPZ) under ``cache/``. Beside it lies a *seal*: the settings
that it was made with, and a digest of its bytes. A step counts as finished only if both fit, so a
run that was killed, a file that was damaged and a changed setting all lead to the same thing:
the step is made again, and only that step.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.files import drafted
from greedymiser.datasets.readers import exact_numbers

if TYPE_CHECKING:
    import pandas as pd

Told = Callable[[str, int, int], object]
"""Is told what is being done, how many parts of it are done, and how many there are."""

KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")


@dataclass(frozen=True)
class Results:
    """What an experiment found."""

    # What it was run on, in a few words.
    data: str
    # The tables by name; each is also written to the workspace's folder as <name>.csv.
    tables: dict[str, pd.DataFrame]
    # Where the figures are, by name.
    figures: dict[str, Path] = field(default_factory=dict)


class Workspace:
    """A folder of finished steps, and of the results that come out of them.

    Parameters
    ----------
    out : Path
        The folder. Results lie in it, steps in ``cache/`` below. One process at a time writes to
        it.
    settings : mapping
        All that steps depend on: sizes, seeds, parameters. Must be JSON: numbers, strings, lists.
    told : callable, optional
        Is told of progress: what, done, total.

    Examples
    --------
    >>> import tempfile
    >>> workspace = Workspace(Path(tempfile.mkdtemp()), {"seed": 0})
    >>> made = workspace.arrays("squares", lambda: {"x": np.arange(4) ** 2})
    >>> again = workspace.arrays("squares", lambda: 1 / 0)  # finished: not made again
    >>> again["x"].tolist()
    [0, 1, 4, 9]
    """

    def __init__(self, out: Path, settings: Mapping[str, Any], told: Told | None = None):
        self.out = Path(out)
        self.settings = _as_read_back(settings)
        self._told = told

    def using(self, **settings: Any) -> Workspace:
        """The same folder with more settings, or others."""
        return Workspace(self.out, {**self.settings, **settings}, self._told)

    def told(self, what: str, done: int, total: int) -> None:
        """Pass on how far things are."""
        if self._told is not None:
            self._told(what, done, total)

    def table(
        self,
        key: str,
        make: Callable[[], pd.DataFrame],
        depends_on: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """The table of a step: read if the step is finished, else made and written.

        Parameters
        ----------
        key : str
            Name of the step, such as ``"curves/split-3"``; the file is ``cache/<key>.csv``.
        make : callable
            Makes the table. Its index is not kept.
        depends_on : sequence of str, optional
            The settings that this step depends on; all of them by default.
        """
        import pandas as pd

        path = self._finished(
            key, ".csv", depends_on, lambda part: make().to_csv(part, index=False)
        )
        # Always what the file says: a resumed run sees the very numbers of the first one.
        return pd.read_csv(path, **exact_numbers())

    def arrays(
        self,
        key: str,
        make: Callable[[], Mapping[str, NDArray[Any]]],
        depends_on: Sequence[str] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """The arrays of a step, as ``table``; the file is ``cache/<key>.npz`` without pickles."""
        path = self._finished(key, ".npz", depends_on, lambda part: _save_arrays(part, make()))
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}

    def is_finished(
        self, key: str, suffix: str = ".npz", depends_on: Sequence[str] | None = None
    ) -> bool:
        """Whether a step is there, undamaged, and made with these settings."""
        path = self._path(key, suffix)
        try:
            seal = json.loads(_seal_of(path).read_text(encoding="utf-8"))
            return bool(
                seal == {"settings": self._subset(depends_on), "digest": _digest_of_file(path)}
            )
        except (OSError, ValueError):  # no seal, no file, or a seal that is not JSON
            return False

    def write_table(self, name: str, table: pd.DataFrame) -> Path:
        """Write a result as ``<name>.csv`` into the folder itself."""
        return self.write(f"{name}.csv", lambda part: table.to_csv(part, index=False))

    def write(self, name: str, save: Callable[[Path], object]) -> Path:
        """Write any result, such as a figure: ``save`` gets the path to write to."""
        return _write_whole(self.out / name, save)

    def _finished(
        self,
        key: str,
        suffix: str,
        depends_on: Sequence[str] | None,
        save: Callable[[Path], object],
    ) -> Path:
        path = self._path(key, suffix)
        if not self.is_finished(key, suffix, depends_on):
            seal: dict[str, Any] = {"settings": self._subset(depends_on)}
            # The old seal goes first, the new one comes last: in between, the step is not finished.
            _seal_of(path).unlink(missing_ok=True)
            _write_whole(path, save)
            seal["digest"] = _digest_of_file(path)
            text = json.dumps(seal, indent=1, sort_keys=True)
            _write_whole(_seal_of(path), lambda part: part.write_text(text, encoding="utf-8"))
        return path

    def _path(self, key: str, suffix: str) -> Path:
        if not KEY.fullmatch(key):
            raise ValueError(f"key must be a plain name, or some with / between, got {key!r}")
        return self.out / "cache" / f"{key}{suffix}"

    def _subset(self, depends_on: Sequence[str] | None) -> dict[str, Any]:
        if depends_on is None:
            return self.settings
        unknown = [name for name in depends_on if name not in self.settings]
        if unknown:
            raise ValueError(
                f"depends_on names {unknown[0]!r}, but the settings are {sorted(self.settings)}"
            )
        return {name: self.settings[name] for name in depends_on}


def _seal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _write_whole(path: Path, save: Callable[[Path], object]) -> Path:
    """Write a file that is there whole, or not at all; ``save`` gets the path to write to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The suffix stays, since savefig and others read the format from it.
    with drafted(path, path.with_name(f".part-{path.name}")) as draft:
        save(draft)
    return path


def _save_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    plain: dict[str, Any] = {name: np.asarray(array) for name, array in arrays.items()}
    for name, array in plain.items():
        if array.dtype.hasobject:  # would be pickled, and could not be read back
            raise TypeError(f"array {name!r} has dtype {array.dtype}; steps hold plain arrays only")
    with path.open("wb") as file:
        np.savez(file, **plain)


def digests(paths: Iterable[Path]) -> list[str]:
    """Tells files from any others, for settings."""
    return [_digest_of_file(path) for path in paths]


def _digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _as_read_back(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as they will be read back, tuples as lists."""
    try:
        return dict(json.loads(json.dumps(dict(settings), allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise TypeError(f"settings must be numbers, strings, lists or mappings: {error}") from error
