"""Mutants are tried in child processes under a memory limit and a time limit.

So a crash, a hang or a huge allocation is seen too. The file that did it is kept, as small as it
can be made. A mutant is told by its kind, a seed and a number: the same three make the same file.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import functools
import importlib
import json
import math
import os
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.mutations import Kind, pick

# Where each kind is at home. Imported when it is asked for: some need the whole library.
KINDS = {"models": "models", "costs": "costs", "csv": "tables", "parquet": "tables",
         "letor": "tables"}  # fmt: skip

FINDINGS = Path(__file__).parents[2] / "tests" / "files" / "findings"
"""Past findings, a folder for each kind. ``make test`` tries them again."""

# Mutants per child process.
CHUNK = 1000

# How much of a processor's time one may take, and after how long the process is given up: the
# machine may be busy with other things.
MOST_SECONDS = 10
HANGS_AFTER = 300

# The exit code of a child that is itself to blame.
OWN_FAULT = 3

# How long a finding may be made smaller.
SHRINK_SECONDS = 20


def kind_of(name: str) -> Kind:
    """The kind of a name."""
    kind: Kind = getattr(importlib.import_module(f"fuzz.{KINDS[name]}"), name.upper())
    return kind


def mutant(kind: Kind, seed: int, number: int) -> tuple[str, str, bytes]:
    """The mutation's name, the name of the file and its content; the same for the same numbers."""
    rng = np.random.default_rng([zlib.crc32(kind.name.encode()), seed, number])
    seeds = seeds_of(kind)
    change, name = pick(rng, kind.mutations), pick(rng, sorted(seeds))
    with np.errstate(all="ignore"):
        return change.__name__, name, change(seeds[name], rng, list(seeds.values()))


@functools.cache
def seeds_of(kind: Kind) -> dict[str, bytes]:
    return kind.seeds()


# -- in the child -------------------------------------------------------------------------------


def try_mutants(kind: Kind, seed: int, first: int, last: int, seconds: float, folder: Path) -> None:
    """Try some mutants, as long as there is time; prints what became of them as JSON."""
    _limit(kind, folder)
    fates: Counter[str] = Counter()
    slowest, failures, number = 0.0, [], first
    end = time.monotonic() + seconds
    while number < last and time.monotonic() < end:
        try:
            change, name, data = mutant(kind, seed, number)
        except Exception:
            traceback.print_exc()
            sys.exit(OWN_FAULT)
        path = folder / name
        path.write_bytes(data)
        (folder / "now").write_text(f"{number} {name}")
        start = time.perf_counter()
        fate, fault = attempt(kind, path)
        slowest = max(slowest, time.perf_counter() - start)
        if fault is None:
            fates[f"{change}: {fate}"] += 1
        else:
            small = shrunk(kind, path, data, fault) if kind.is_text else data
            path.write_bytes(small)
            kept = folder / "findings" / f"{seed}-{number}{path.suffix}"
            kept.parent.mkdir(exist_ok=True)
            kept.write_bytes(small)
            failures.append([kept.name, fault])
        number += 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    told = {"fates": fates, "slowest": slowest, "peak": peak, "failures": failures, "next": number}
    print(json.dumps(told))


def _limit(kind: Kind, folder: Path) -> None:
    """Limit memory to what the process has when all kernels are compiled, and some more."""
    faulthandler.enable()
    signal.signal(signal.SIGPROF, _too_slow)
    for name, data in seeds_of(kind).items():
        (folder / name).write_bytes(data)
        _, fault = attempt(kind, folder / name)
        if fault is not None:
            print(f"{name} should be as it should be:\n{fault}", file=sys.stderr)
            sys.exit(OWN_FAULT)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    allowed = pages * resource.getpagesize() + kind.most_bytes
    resource.setrlimit(resource.RLIMIT_AS, (allowed, resource.RLIM_INFINITY))


def attempt(kind: Kind, path: Path) -> tuple[str, str | None]:
    """Use a file: what became of it, and the traceback if that should not have been."""
    with _limited_time(), warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return kind.use(path), None
        except BaseException:
            return "failed", traceback.format_exc(limit=-6)


@contextlib.contextmanager
def _limited_time() -> Iterator[None]:
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)  # where no signal is heard
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()


def _too_slow(*_: Any) -> None:
    raise TimeoutError(f"took more than {MOST_SECONDS} s of a processor")


def shrunk(kind: Kind, path: Path, data: bytes, fault: str) -> bytes:
    """Leave out all that is not needed for the same fault: lines first, then letters."""
    end = time.monotonic() + SHRINK_SECONDS
    for pieces in (data.splitlines(keepends=True), None):
        parts: list[bytes] = pieces or [bytes([byte]) for byte in data]
        size = max(1, len(parts) // 2)
        while size and time.monotonic() < end:
            at = 0
            while at < len(parts) and time.monotonic() < end:
                fewer = parts[:at] + parts[at + size :]
                path.write_bytes(b"".join(fewer))
                _, found = attempt(kind, path)
                if found is not None and _place(found) == _place(fault):
                    parts = fewer
                else:
                    at += size
            size //= 2
        data = b"".join(parts)
    return data


def _place(fault: str) -> tuple[str, str]:
    """Where a traceback ends, and with what."""
    lines = fault.strip().splitlines()
    places = [line.strip() for line in lines if line.lstrip().startswith("File ")]
    return (places[-1] if places else ""), lines[-1].partition(":")[0]


# -- in the parent ------------------------------------------------------------------------------


def run_chunk(
    kind: str, seed: int, first: int, last: int, seconds: float, keep: Path
) -> dict[str, Any]:
    """Try some mutants in a child process; a crash is a failure, and its file is kept."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        done = subprocess.run(
            [sys.executable, str(Path(__file__).parent), "--chunk", kind, str(seed),
             str(first), str(last), str(seconds), name],
            capture_output=True, text=True, check=False, env=_quiet(),
        )  # fmt: skip
        if done.returncode == 0:
            told: dict[str, Any] = json.loads(done.stdout)
        else:
            told = _crash(done, folder, seed, first)
        for finding, fault in told["failures"]:
            (keep / kind).mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / "findings" / finding, keep / kind / finding)
            (keep / kind / f"{finding}.why").write_text(fault)
        return told


def _quiet() -> dict[str, str]:
    """An environment in which libraries neither start threads nor reserve memory for them."""
    few = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    return {**os.environ, **few, "ARROW_DEFAULT_MEMORY_POOL": "system", "COLUMNS": "120"}


def _crash(
    done: subprocess.CompletedProcess[str], folder: Path, seed: int, first: int
) -> dict[str, Any]:
    said = f"the process ended with {done.returncode}\n{done.stderr[-3000:]}"
    told: dict[str, Any] = {"fates": {}, "slowest": 0.0, "peak": 0, "next": first + 1}
    if done.returncode == OWN_FAULT or not (folder / "now").exists():
        raise SystemExit(said)
    number, name = (folder / "now").read_text().split(" ", 1)
    finding = f"{seed}-{number}{Path(name).suffix}"
    (folder / "findings").mkdir(exist_ok=True)
    shutil.copy(folder / name, folder / "findings" / finding)
    return {**told, "failures": [[finding, said]], "next": int(number) + 1}


def fuzz(kind: str, seed: int, seconds: float, most: int, keep: Path) -> int:
    """Try mutants of one kind until time is up, or so many, and say what became of them."""
    fates: Counter[str] = Counter()
    slowest, peak, failures, number = 0.0, 0, 0, 0
    end = time.monotonic() + seconds
    while time.monotonic() < end and number < most:
        last = min(number + CHUNK, most)
        told = run_chunk(kind, seed, number, last, end - time.monotonic(), keep)
        fates.update(told["fates"])
        slowest, peak = max(slowest, told["slowest"]), max(peak, told["peak"])
        failures += len(told["failures"])
        for finding, fault in told["failures"]:
            print(f"{keep / kind / finding}:\n{fault}", file=sys.stderr)
        number = told["next"]
    for fate, count in sorted(fates.items()):
        print(f"{count:7d}  {fate}")
    print(
        f"{kind}: {number} files of seed {seed}, {failures} findings; "
        f"slowest {slowest:.2f} s, largest process {peak / 1024:.0f} MiB",
        flush=True,
    )
    return failures


def replay(kind: Kind, folder: Path) -> int:
    """Try past findings again, in this process."""
    failures = 0
    signal.signal(signal.SIGPROF, _too_slow)
    files = [path for path in sorted((folder / kind.name).glob("*")) if path.suffix != ".why"]
    for path in files:
        fate, fault = attempt(kind, path)
        failures += fault is not None
        print(f"{path.name}: {fate}")
        if fault is not None:
            print(f"{path}:\n{fault}", file=sys.stderr)
    print(f"{kind.name}: {len(files)} past findings, {failures} failures")
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tools/fuzz", description="Damage files, and see that reading refuses them or works."
    )
    parser.add_argument("kinds", nargs="*", help=f"of {', '.join(KINDS)}; all by default")
    parser.add_argument("--seconds", type=float, help="for all kinds together; 60 by default")
    parser.add_argument("--files", type=int, help="try so many of each kind instead")
    parser.add_argument("--seed", type=int, help="for the same files again; drawn by default")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--replay", type=Path, nargs="?", const=FINDINGS, metavar="FOLDER",
                        help="try past findings again, and nothing else")  # fmt: skip
    parser.add_argument("--chunk", nargs=6, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.chunk:
        name, seed, first, last, seconds, folder = given.chunk
        try_mutants(kind_of(name), int(seed), int(first), int(last), float(seconds), Path(folder))
        return 0
    unknown = [name for name in given.kinds if name not in KINDS]
    if unknown:
        parser.error(f"there is no kind {unknown[0]!r}; choose from {', '.join(KINDS)}")
    names = given.kinds or list(KINDS)
    if given.replay is not None:
        return int(any([replay(kind_of(name), given.replay) for name in names]))
    seed = secrets.randbelow(10**6) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    seconds = given.seconds or (60 if given.files is None else math.inf)
    most = sys.maxsize if given.files is None else given.files
    share = seconds / len(names)
    return int(any([fuzz(name, seed, share, most, given.keep) for name in names]))
