"""What can be done to any bytes, and to any text. The same random numbers do the same."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Random = np.random.Generator

Mutation = Callable[[bytes, Random, list[bytes]], bytes]
"""Takes a file, random numbers, and all files that there are to begin with."""


@dataclass(frozen=True, eq=False)
class Kind:
    """One kind of files: what to begin with, what to do to it, and what must hold for the rest."""

    name: str
    # Files that are as they should be, by name; the suffix says how each is read.
    seeds: Callable[[], dict[str, bytes]]
    mutations: Sequence[Mutation]
    # Reads and uses a file. Gives a word for what became of it; whatever it raises is a finding.
    use: Callable[[Path], str]
    # Whether a finding may be made smaller by leaving parts of it out.
    is_text: bool
    # Memory that a file may take, beyond what the process has when it has read all seeds.
    most_bytes: int = 512 * 2**20


LONGEST_COMPLAINT = 1000

# Pasted into text as they are.
NASTY_TEXT = ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "[" * 3000 + "]" * 3000, "}", "",
              '{"a":' * 2000 + "1" + "}" * 2000, "\\ud800", '"\\ud800"', "\x00", "tru", "0x10",
              "-0", "1E5", '"a":1,"a":2', "1.", ".5", "\ufeff", "é", "None", "NA", '"', '""', "'",
              "\n", "\r", "\r\n", "\t", ",", ",,", ";", "=", "#", ":", "[", "]", "\x1b[31m",
              "\u202e", "\u2028", "1_000", "+1", "1e5", "0b1", "inf", "nan", "true", "1979-05-27",
              "\x1a", "qid:", "1:1", "-1:1", "99999999:1", "18446744073709551616"]  # fmt: skip


def pick(rng: Random, choices: Any) -> Any:
    return choices[rng.integers(len(choices))]


def refused(path: Path, error: Exception) -> str:
    """See that a complaint is one that somebody can read."""
    said = str(error)
    if str(path) not in said:
        raise AssertionError(f"the complaint does not name the file: {said}")
    if len(said) > LONGEST_COMPLAINT:
        raise AssertionError(f"the complaint has {len(said)} letters")
    return "refused"


# -- bytes --------------------------------------------------------------------------------------


def flip_bits(data: bytes, rng: Random, others: list[bytes]) -> bytes:
    mutant = bytearray(data)
    # Files tell at their beginning, or at their end, what they are.
    part = pick(rng, [slice(None), slice(0, 64), slice(-512, None)])
    places = range(len(mutant))[part]
    for _ in range(rng.integers(1, 9) if places else 0):
        mutant[pick(rng, places)] ^= 1 << rng.integers(8)
    return bytes(mutant)


def truncate(data: bytes, rng: Random, others: list[bytes]) -> bytes:
    if rng.random() < 0.2:
        return data + rng.bytes(rng.integers(1, 100))
    return data[: rng.integers(len(data) + 1)]


def splice(data: bytes, rng: Random, others: list[bytes]) -> bytes:
    other = pick(rng, others)
    a, b = sorted(rng.integers(len(data) + 1, size=2))
    c = rng.integers(len(other) + 1)
    filler = [other[c : c + (b - a)], bytes(b - a), rng.bytes(b - a), b""]
    return data[:a] + pick(rng, filler) + data[b:]


ON_BYTES: list[Mutation] = [flip_bits, truncate, splice]


# -- text ---------------------------------------------------------------------------------------


def edit_text(text: str, rng: Random) -> str:
    """Paste, cut or repeat somewhere in a text."""
    at, size = rng.integers(len(text) + 1), rng.integers(1, 30)
    return pick(
        rng,
        [
            text[:at] + pick(rng, NASTY_TEXT) + text[at + size :],
            text[:at] + pick(rng, NASTY_TEXT) + text[at:],
            text[:at] + text[at + size :],
            text[:at] + text[at : at + size] + text[at:],
        ],
    )


def paste(data: bytes, rng: Random, others: list[bytes]) -> bytes:
    text = data.decode("utf-8", "replace")
    for _ in range(rng.integers(1, 4)):
        text = edit_text(text, rng)
    return text.encode("utf-8", "replace")


def edit_lines(data: bytes, rng: Random, others: list[bytes]) -> bytes:
    """Leave lines out, repeat them, mix them up, or take some of another file."""
    lines = data.splitlines(keepends=True) or [b""]
    at = rng.integers(len(lines))
    kind = rng.integers(6)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(at, lines[rng.integers(len(lines))])
    elif kind == 2:
        lines = [lines[i] for i in rng.permutation(len(lines))]
    elif kind == 3:
        lines[at:at] = pick(rng, others).splitlines(keepends=True)
    elif kind == 4:
        lines = lines[: rng.integers(3)]
    else:
        lines[at] = pick(rng, [b"\n", b"   \n", b"#\n", b",\n", b'"\n', lines[at].rstrip()])
    return b"".join(lines)


def edit_words(data: bytes, rng: Random, others: list[bytes]) -> bytes:
    """Put something nasty into the place of a word, a number or a cell."""
    text = data.decode("utf-8", "replace")
    words = [word for line in text.splitlines() for word in _words(line)]
    if not words:
        return data
    old = pick(rng, words)
    new = pick(rng, [*NASTY_TEXT, pick(rng, words)])
    return text.replace(old, new, int(pick(rng, [1, 1, -1]))).encode("utf-8", "replace")


def _words(line: str) -> list[str]:
    for sign in ",=:\t[]\"'#":
        line = line.replace(sign, " ")
    return line.split()


def recode(data: bytes, rng: Random, others: list[bytes]) -> bytes:
    """Write the same text as other programs would."""
    text = data.decode("utf-8", "replace")
    kind = rng.integers(7)
    if kind < 3:
        return text.encode(["utf-16", "utf-8-sig", "latin-1"][kind], "replace")
    if kind == 3:
        return data.replace(b"\n", b"\r\n")
    if kind == 4:
        return data.replace(b"\n", b"\r")
    if kind == 5:
        return gzip.compress(data)
    return "ÿ".join(text).encode("latin-1", "replace")


ON_TEXT: list[Mutation] = [paste, paste, edit_lines, edit_lines, edit_words, edit_words, recode]
