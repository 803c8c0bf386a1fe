"""Which leaf of a finished tree each row is in, by the codes of its bins.

A block of rows is asked all questions of a tree at once, as in prediction (``model.trees``): each
row keeps a set of leaves that it may still reach, and every question that sends it right takes the
leaves of the left child away. No question waits for another, and the loops over rows are vectors.
"""

from __future__ import annotations

import numpy as np

from greedymiser._core.compiling import inner
from greedymiser._core.intrinsics import first_bit
from greedymiser.data.binning import LANES
from greedymiser.model.trees import MOST_LEAVES, in_set

# Rows that are asked together.
BLOCK = 64

# One inner node of a tree, as rows are asked it.
QUESTION_DTYPE = np.dtype(
    [
        # Leaves that remain for a row that goes right, one bit each, from left to right.
        ("right_leaves", np.uint64),
        # Where the feature's codes are: the block of lanes, and the lowest bit in its words.
        ("block", np.uint64),
        ("move", np.uint64),
        # Largest code that goes left, where numbers are split.
        ("bin", np.uint64),
        # Code of missing values, and the code behind ``bin`` that goes left all the same: this one,
        # or one that no row has.
        ("missing", np.uint64),
        ("also_left", np.uint64),
        # Row of the sets of categories, -1 where numbers are split.
        ("category_set", np.int64),
    ]
)

# No row has it: codes have eight bits.
NO_CODE = np.uint64(256)


@inner
def questions_of(data, nodes):
    """The questions of a tree, and the nodes that are its leaves, from left to right.

    No questions where the leaves are too many for the bits of a word.
    """
    n = nodes.size
    n_leaves = np.empty(n, dtype=np.int64)
    for i in range(n - 1, -1, -1):  # children come after their parents
        child = nodes[i].left
        n_leaves[i] = n_leaves[child] + n_leaves[child + 1] if child >= 0 else 1
    leaves = np.empty(n_leaves[0], dtype=np.int64)
    questions = np.empty(n // 2 if n_leaves[0] <= MOST_LEAVES else 0, dtype=QUESTION_DTYPE)
    # The first leaf below each node.
    first = np.empty(n, dtype=np.int64)
    first[0] = 0
    k = 0
    for i in range(n):
        node = nodes[i]
        if node.left < 0:
            leaves[first[i]] = i
            continue
        first[node.left] = first[i]
        first[node.left + 1] = first[i] + n_leaves[node.left]
        if questions.size > 0:
            ask_node(data, node, first[i], first[node.left + 1], questions[k])
            k += 1
    return questions, leaves


@inner
def ask_node(data, node, first, stop, question):
    """Write the question of a node whose left child has leaves ``first:stop``."""
    below = np.uint64(0)
    for leaf in range(first, stop):
        below |= np.uint64(1) << np.uint64(leaf)
    lane = data.feature_lane[node.feature]
    question.right_leaves = ~below
    question.block, question.move = lane // LANES, 8 * (lane % LANES)
    question.bin = np.uint64(node.bin)
    question.missing = data.features[node.feature].n_bins
    question.also_left = question.missing if node.missing_left else NO_CODE
    question.category_set = node.category_set


@inner
def find_leaves(data, nodes, category_sets, questions, leaves, start, size, possible, found):
    """Write the leaf of each of rows ``start:start + size`` to ``found``, at most a block."""
    start, size = np.uint64(start), np.uint64(size)
    if questions.size == 0:
        for i in range(size):
            at = np.uint64(0)
            while nodes[at].left >= 0:
                at = child_of(data, nodes, category_sets, at, start + i)
            found[i] = at
        return
    for i in range(size):
        possible[i] = ~np.uint64(0)
    for k in range(np.uint64(questions.size)):
        question = questions[k]
        words, move = data.codes[question.block], question.move
        right_leaves = question.right_leaves
        if question.category_set >= 0:
            for i in range(size):
                code = (words[start + i] >> move) & np.uint64(255)
                if code == question.missing:
                    left = question.also_left == code
                else:
                    left = in_set(category_sets, question.category_set, code)
                if not left:
                    possible[i] &= right_leaves
            continue
        largest, also_left = question.bin, question.also_left
        for i in range(size):
            code = (words[start + i] >> move) & np.uint64(255)
            left = (code <= largest) | (code == also_left)
            possible[i] &= ~np.uint64(0) if left else right_leaves
    for i in range(size):
        found[i] = leaves[np.uint64(first_bit(possible[i]))]


@inner
def child_of(data, nodes, category_sets, at, i):
    """Where row i goes from an inner node of a finished tree."""
    node = nodes[at]
    f = np.uint64(node.feature)
    lane = np.uint64(data.feature_lane[f])
    word = data.codes[lane // np.uint64(LANES), i]
    code = (word >> (np.uint64(8) * (lane % np.uint64(LANES)))) & np.uint64(255)
    if code == np.uint64(data.features[f].n_bins):
        left = node.missing_left
    elif node.category_set >= 0:
        left = in_set(category_sets, node.category_set, code)
    else:
        left = code <= np.uint64(node.bin)
    return np.uint64(node.left) + (np.uint64(0) if left else np.uint64(1))
