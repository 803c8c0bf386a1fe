"""Sets as bits of words."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from greedymiser._core.bits import packed, set_of, unpacked


@given(npst.arrays(bool, st.tuples(st.integers(0, 5), st.integers(0, 130))), st.integers(0, 2))
def test_words_have_the_bits_of_their_members(is_member, n_spare):
    n_words = -(-is_member.shape[1] // 64) + n_spare
    sets = packed(is_member, n_words)
    expected = [sum(1 << j for j in np.flatnonzero(row).tolist()) for row in is_member]
    assert [sum(int(word) << 64 * k for k, word in enumerate(row)) for row in sets] == expected
    assert np.array_equal(unpacked(sets, is_member.shape[1]), is_member)


def test_a_set_of_some_members():
    assert set_of([0, 64, 65], 3).tolist() == [1, 3, 0]
