"""Histograms lose nothing on their way."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import naive
from greedymiser.engines.dask.packed_histograms import pack, unpack_onto
from greedymiser.engines.dask.shard import counting_groups

SUMS = st.one_of(
    st.integers(-(2**46), 2**46),
    st.sampled_from([2**47 - 1, -(2**47), 2**47, -(2**47) - 1, 2**61, -(2**61)]),
)
COUNTS = st.one_of(st.integers(0, 500), st.sampled_from([2**16 - 1, 2**16, 2**31]))


@given(st.data(), st.integers(1, 3), st.integers(0, 3), st.integers(1, 3))
def test_histograms_arrive_as_they_were(data, n_words, n_nodes, n_blocks):
    n_bins, found = 2, np.empty((n_nodes, n_blocks, 2 * n_words), dtype=np.int64)
    for bin_ in found.reshape(-1, n_words):
        bin_[:] = [data.draw(SUMS) for _ in range(n_words - 1)] + [data.draw(COUNTS)]
    first = data.draw(st.integers(0, n_blocks))
    last = data.draw(st.integers(first, n_blocks))
    other = found[:1, :1]
    packed = pack([(found, first, last), (other, 0, other.shape[1])], n_words, n_bins * n_words)
    wanted = np.concatenate(
        [part.reshape(-1, 2 * n_words) for part in (found[:, first:last], other)]
    )
    words, narrow = naive.packed_histograms(wanted.tolist(), n_words)
    assert packed.words.tolist() == words
    assert packed.narrow.tolist() == narrow
    total = np.arange(wanted.size).reshape(wanted.shape)
    unpack_onto(total, packed, n_words)
    assert np.array_equal(total, np.arange(wanted.size).reshape(wanted.shape) + wanted)


def test_small_counts_share_a_word():
    found = np.array([[[-5, 2, 7, 1]]])
    assert pack([(found, 0, 1)], 2, 4).words.tolist() == [-5 * 2**16 + 2, 7 * 2**16 + 1]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 12))
def test_histograms_are_counted_in_groups_that_are_large_enough(n_counted, enough):
    order = list(range(len(n_counted)))[::-1]
    groups = list(counting_groups(order, n_counted, enough))
    assert [k for group in groups for k in group] == order
    sizes = [sum(n_counted[k] for k in group) for group in groups]
    assert min(sizes) >= min(enough, sum(n_counted))
    # None could have been divided.
    for group, size in zip(groups[:-1], sizes, strict=False):
        assert size - n_counted[group[-1]] < enough
