"""What host and device tell each other: tables of 64-bit words, floats by their bits.

Positions of words in the records of such tables.
"""

from __future__ import annotations

# A node that is counted: its rows, the buffer they are in (-1: all rows, in their order), its
# histogram, and the first of its pieces.
START, STOP, SIDE, SLOT, PIECE, COUNTED = range(6)

# An open node: its histogram (SLOT), the one to subtract from it (-1: none), and what
# interface.OPEN_DTYPE says of it.
MINUS, GRADIENT, HESSIAN, COUNT, LOWER, UPPER, OPEN = 0, 1, 2, 4, 5, 6, 7

# A feature: its lane, number of bins, position among the categorical ones or -1, whether any value
# is missing, and 1, 0 or -1 where it is monotone.
F_LANE, F_N_BINS, F_CATEGORICAL, F_HAS_MISSING, F_MONOTONE, FEATURE = range(6)

# A node that is divided: its rows (START, STOP, SIDE), the first of its tiles; how many go left;
# the lane and the number of bins of the feature (lane -1: no feature, all go left), the last bin
# that goes left (-1: a set of categories, in four words) and whether missing values do. Then what
# is written: rows that have gone left and right, and their energies; or, for leaves, values.
TILE, N_LEFT, LANE, N_BINS, BIN, MISSING_LEFT, SET = 3, 4, 5, 6, 7, 8, 9
LEFT, RIGHT, LEFT_FLOAT, RIGHT_FLOAT, DIVIDED = 13, 14, 15, 16, 17

# A node of a finished tree: its left child (-1: a leaf), its value, and its split as above.
CHILD, LEAF_VALUE, TREE_NODE = 0, 1, 13

# A feature's column at a level: in play; in a block that is counted.
IN_PLAY, IN_BLOCK = 1, 2

# A node whose rows are weighed: its rows (START, STOP, SIDE; side -1: all rows) and the first of
# its tiles (TILE).
WEIGHED = 4
