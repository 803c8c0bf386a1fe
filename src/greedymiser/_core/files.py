"""Files that are never half written."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path


def check_place(path: str | os.PathLike[str], what: str = "a model") -> Path:
    """Where a file will be written; raises OSError if it cannot be there."""
    name = os.fspath(path)
    place = Path(os.path.realpath(name))  # a link goes on pointing to the file
    cannot = f"cannot save {what} as {name!r}"
    if place.is_symlink():  # what is left of a path when all links are followed
        raise OSError(f"{cannot}: it is a link that leads back to itself")
    if place.is_dir():
        raise IsADirectoryError(f"{cannot}: it is a folder")
    if name.endswith((os.sep, os.altsep or os.sep)):
        raise IsADirectoryError(f"{cannot}: that is the name of a folder")
    if not place.parent.is_dir():
        folder = str(Path(name).parent)
        raise FileNotFoundError(f"there is no folder {folder!r} to save {what} in")
    if place.exists() and not place.is_file():
        raise FileExistsError(f"{cannot}: it is not a regular file")
    return place


@contextlib.contextmanager
def drafted(place: Path, draft: Path | None = None) -> Iterator[Path]:
    """Where to write what then takes a place at once: whoever interrupts finds the old, or none.

    A draft in the same folder may be named where nobody else writes to the place: what a killed
    process leaves of it is overwritten by the next.
    """
    if draft is None:
        draft = _draft_for(place)
    try:
        yield draft
        if place.exists():  # a file that was there keeps its permissions
            os.chmod(draft, stat.S_IMODE(place.stat().st_mode))
        os.replace(draft, place)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            _name(error, place)  # nobody has heard of the draft
        raise
    _sync_folder(place.parent)


def write_atomically(place: Path, data: bytes) -> None:
    """Write a file all at once."""
    with drafted(place) as draft:
        _write(draft, data)


def write_new(place: Path, data: bytes) -> bool:
    """Write a file all at once, unless there is one; returns whether there was none."""
    draft = _draft_for(place)
    try:
        _write(draft, data)
        try:
            os.link(draft, place)  # which, unlike a renaming, never replaces anything
        except FileExistsError:
            raise
        except OSError:  # there are no links here
            _write(place, data)
    except FileExistsError:
        return False
    except OSError as error:
        _name(error, place)  # nobody has heard of the draft
        raise
    finally:
        draft.unlink(missing_ok=True)
    _sync_folder(place.parent)
    return True


def _draft_for(place: Path) -> Path:
    return place.parent / f".greedymiser-{secrets.token_hex(8)}.tmp"


def _write(place: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    # The umask says who may read a new file.
    with os.fdopen(os.open(place, flags, 0o666), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_file(path: str | os.PathLike[str], data: bytes, what: str) -> None:
    """Write a file at once, or into a pipe or a device, whose place must not be taken."""
    place = Path(path)
    if not place.exists() or place.is_file() or place.is_dir():
        write_atomically(check_place(path, what), data)
        return
    try:
        place.write_bytes(data)
    except OSError as error:
        _name(error, place)
        raise


def _name(error: OSError, place: Path) -> None:
    """Let an error name the file that could not be written."""
    error.filename, error.filename2 = str(place), None


def _sync_folder(folder: Path) -> None:
    """See that the new name survives a power cut, where a folder can be asked to."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
