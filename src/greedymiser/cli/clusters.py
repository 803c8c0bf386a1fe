"""Data in many files, read part by part by the workers of a Dask cluster.

Dask is imported where it is asked for: by --scheduler, by --workers, or by a pattern of files.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from greedymiser._core.amounts import quoted
from greedymiser.cli.errors import InputError, Writes, check_not_read
from greedymiser.datasets import PARQUET_SUFFIXES, TEXT_SEPARATORS
from greedymiser.datasets.readers import exact_numbers

# Seconds that a scheduler has to answer.
PATIENCE = 10

# Text files are cut into parts of so many bytes.
PART_BYTES = 64 * 2**20


def is_pattern(path: Path) -> bool:
    """Whether a path stands for several files."""
    return glob.has_magic(str(path)) and not path.exists()


@contextmanager
def cluster(scheduler: str | None, workers: int | None, jobs: int | None) -> Iterator[None]:
    """Be the client of a cluster while a command runs; leave nothing behind."""
    if scheduler is not None and workers is not None:
        raise InputError(
            "--scheduler names a cluster and --workers starts one on this machine: give one of them"
        )
    distributed = _library("distributed")
    if scheduler is not None:
        with _client_of(distributed, scheduler):
            yield
        return
    assert workers is not None
    threads = jobs or max(1, (os.cpu_count() or 1) // workers)
    # Nobody looks at a dashboard of a command, and its port may be taken.
    with (
        distributed.LocalCluster(
            n_workers=workers, threads_per_worker=threads, dashboard_address=None
        ) as here,
        distributed.Client(here),
    ):
        yield


@contextmanager
def _client_of(distributed: Any, scheduler: str) -> Iterator[None]:
    try:
        client = distributed.Client(scheduler, timeout=PATIENCE)
    except (OSError, ValueError) as error:
        reason = "" if isinstance(error, TimeoutError) else f": {error}"
        raise InputError(
            f"no scheduler answers at {scheduler!r} within {PATIENCE} seconds{reason}"
        ) from None
    with client:
        if not client.scheduler_info()["workers"]:
            raise InputError(f"the scheduler at {scheduler!r} has no workers")
        yield


def files_of(pattern: Path, out: Path | None) -> list[str]:
    """The files that a pattern stands for, in their order; ``out`` must not be one of them."""
    files = sorted(glob.glob(str(pattern), recursive=True))
    if not files:
        raise InputError(f"no file matches {str(pattern)!r}")
    for file in files:
        check_not_read("out", out, Writes(), "data", Path(file))
    return files


def read_parts(pattern: Path, out: Path | None) -> Any:
    """A Dask data frame of all files of a pattern; nothing but their columns is looked at."""
    files = files_of(pattern, out)
    suffixes = sorted({Path(file).suffix.lower() for file in files})
    if len(suffixes) > 1:
        raise InputError(f"{str(pattern)!r} mixes files of several kinds: {quoted(suffixes)}")
    dataframe = _library("dask.dataframe")
    try:
        if suffixes[0] in PARQUET_SUFFIXES:
            _check_whole(files)
            frame = dataframe.read_parquet(files)
        elif suffixes[0] in TEXT_SEPARATORS:
            # A column of whole numbers may have gaps in another file.
            frame = dataframe.read_csv(
                files,
                sep=TEXT_SEPARATORS[suffixes[0]],
                blocksize=PART_BYTES,
                assume_missing=True,
                skipinitialspace=True,
                **exact_numbers(),
            )
        else:
            raise InputError(
                f"{str(pattern)!r} must stand for files that end in .parquet, .csv or .tsv"
            )
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"cannot read {str(pattern)!r}: {reason}") from None
    return as_categories(frame.rename(columns=str))


def _check_whole(files: list[str]) -> None:
    """Complain of a Parquet file that is none, or cut short, by its name."""
    for name in files:
        with open(name, "rb") as file:
            first = file.read(4)
            file.seek(-min(4, os.path.getsize(name)), os.SEEK_END)
            if not first == file.read(4) == b"PAR1":
                raise InputError(f"{name!r} is not a whole Parquet file")


def as_categories(frame: Any) -> Any:
    """The frame, of pandas or of Dask, with its columns of text made categorical."""
    text = [name for name, kind in frame.dtypes.items() if str(kind) in ("object", "str", "string")]
    return frame.astype(dict.fromkeys(text, "category"))


def _library(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"data in parts needs Dask, and {error.name} is not installed; "
            "the extra greedymiser[dask] brings it"
        ) from error
