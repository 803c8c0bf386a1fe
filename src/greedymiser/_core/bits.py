"""Sets as bits of 64-bit words: member j is bit j % 64 of word j // 64."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

WORD_BITS = 64


def packed(is_member: NDArray[np.bool_], n_words: int) -> NDArray[np.uint64]:
    """Sets (..., n_words) from a truth value for each member that they might have, (..., n)."""
    filled = np.packbits(is_member, axis=-1, bitorder="little")
    room = np.zeros((*is_member.shape[:-1], n_words * WORD_BITS // 8), dtype=np.uint8)
    room[..., : filled.shape[-1]] = filled
    return room.view("<u8").astype(np.uint64, copy=False)


def unpacked(sets: NDArray[np.uint64], n: int) -> NDArray[np.bool_]:
    """The opposite of ``packed``, for the first n members."""
    filled = np.ascontiguousarray(sets, dtype="<u8").view(np.uint8)
    return np.unpackbits(filled, axis=-1, count=n, bitorder="little").view(np.bool_)


def set_of(members: Iterable[int], n_words: int) -> NDArray[np.uint64]:
    """The set (n_words,) of some members."""
    is_member = np.zeros(n_words * WORD_BITS, dtype=bool)
    is_member[list(members)] = True
    return packed(is_member, n_words)
