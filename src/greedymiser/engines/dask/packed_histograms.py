"""Histograms as they travel: where counts are small, a word less per bin.

Of a bin with several words the last is its count, and the word before that a sum. On one worker a
count is often below 2^16 and the sum has 47 bits, so that one word has room for both.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.compiling import inner, njit

# Bits of a count that shares a word.
COUNT_BITS = 16


class PackedHistograms(NamedTuple):
    """Some histograms, one after the other."""

    words: NDArray[np.int64]
    # Which of them have a word less per bin.
    narrow: NDArray[np.bool_]


def pack(
    parts: list[tuple[NDArray[np.int64], int, int]], n_words: int, size: int
) -> PackedHistograms:
    """Pack histograms for their way.

    Parameters
    ----------
    parts : list of (array of shape (n_nodes, n_blocks, size), int, int)
        Histograms, and the first and last (exclusive) of the blocks that are wanted.
    n_words, size : int
        Words of a bin, and of a histogram.
    """
    n = sum(len(found) * (last - first) for found, first, last in parts)
    words, narrow = np.empty(n * size, dtype=np.int64), np.empty(n, dtype=np.bool_)
    used = done = 0
    for found, first, last in parts:
        used, done = write_packed(found, first, last, n_words, words, used, narrow, done)
    return PackedHistograms(words[:used], narrow)


def unpack_onto(total: NDArray[np.int64], packed: PackedHistograms, n_words: int) -> None:
    """Add histograms that have travelled to those of the same nodes and blocks, one per row."""
    add_packed(read_only(packed.words), read_only(packed.narrow), n_words, total)


def read_only(values: NDArray[Any]) -> NDArray[Any]:
    """A view that nobody may write to, as arrays are that have travelled: one kernel for all."""
    view = values.view()
    view.flags.writeable = False
    return view


@njit
def write_packed(found, first, last, n_words, words, used, narrow, done):  # type: ignore[no-untyped-def]
    """Write histograms behind those that are there; return how many words and histograms are."""
    for i in range(found.shape[0]):
        for j in range(first, last):
            hist = found[i, j]
            fits = n_words > 1 and has_room(hist, n_words)
            narrow[done] = fits
            done += 1
            if fits:
                used = write_narrow(hist, n_words, words, used)
            else:
                for k in range(hist.size):
                    words[used + k] = hist[k]
                used += hist.size
    return used, done


@inner
def has_room(hist, n_words):  # type: ignore[no-untyped-def]
    """Whether the last two words of every bin have room in one."""
    beyond = np.int64(0)
    for b in range(n_words, hist.size + 1, n_words):
        total = hist[b - 2]
        # Bits beyond those that there is room for; 0 where a negative sum repeats its sign there.
        beyond |= (total ^ (total >> 63)) >> (63 - COUNT_BITS)
        beyond |= hist[b - 1] >> COUNT_BITS
    return beyond == 0


@inner
def write_narrow(hist, n_words, words, used):  # type: ignore[no-untyped-def]
    """Write a histogram with a word less per bin; return the end of what is written."""
    for b in range(0, hist.size, n_words):
        for k in range(n_words - 2):
            words[used] = hist[b + k]
            used += 1
        words[used] = (hist[b + n_words - 2] << COUNT_BITS) | hist[b + n_words - 1]
        used += 1
    return used


@njit
def add_packed(words, narrow, n_words, total):  # type: ignore[no-untyped-def]
    """Add packed histograms to others, one per row."""
    mask, at = (np.int64(1) << COUNT_BITS) - np.int64(1), 0
    for i in range(narrow.size):
        hist = total[i]
        if narrow[i]:
            for b in range(0, hist.size, n_words):
                for k in range(n_words - 2):
                    hist[b + k] += words[at]
                    at += 1
                hist[b + n_words - 2] += words[at] >> COUNT_BITS
                hist[b + n_words - 1] += words[at] & mask
                at += 1
        else:
            for k in range(hist.size):
                hist[k] += words[at + k]
            at += hist.size
