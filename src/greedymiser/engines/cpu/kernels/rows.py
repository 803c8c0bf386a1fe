"""Loops over rows: derivatives, words, children, leaves."""

from __future__ import annotations

import numpy as np

from greedymiser._core.arithmetic import add_with_table, mix
from greedymiser._core.compiling import inner, njit
from greedymiser._core.intrinsics import bits_of, from_bits, prefetch
from greedymiser._core.threads import share
from greedymiser.data.binning import LANES
from greedymiser.engines.cpu.kernels.counting import AHEAD, filled, size
from greedymiser.engines.cpu.kernels.walking import BLOCK, find_leaves, questions_of
from greedymiser.engines.cpu.state import Data, TreeState
from greedymiser.engines.grid import Grid
from greedymiser.engines.sampling import LOT_BITS
from greedymiser.engines.scanning import BINS
from greedymiser.losses.formulas import MULTINOMIAL, write_gradients, write_values
from greedymiser.losses.ranking import add_lambdas

# Rows that a thread takes at a time where there is little to do for each of them.
CHUNK = 1024

# Stands for infinity where 0 times it must be 0.
HUGE = 1e300

# All bits of a float but its sign.
SIZE = np.int64(2**63 - 1)


# -- derivatives ----------------------------------------------------------------------------------


@njit
def derive(team, formula, y, raw, weight, gradients, hessians, found):
    """Derivatives of a loss that has a formula, with their weights and extremes.

    See ``measure_derivatives``.
    """
    arguments = (formula, y, raw, weight, gradients, hessians, found)
    share(team, derive_chunks, arguments, found.shape[1], 1)
    join_extremes(found)


@inner
def derive_chunks(worker, first, last, formula, y, raw, weight, gradients, hessians, found):
    """Derive chunks first:last of the rows."""
    spare = np.empty((2, CHUNK if formula.kind == MULTINOMIAL else 0))
    for chunk in range(first, last):
        start, stop = chunk * CHUNK, min((chunk + 1) * CHUNK, y.size)
        write_gradients(formula, y, raw, start, stop, gradients, hessians, spare)
        measure_derivatives(start, stop, weight, gradients, hessians, found[:, chunk])


@njit
def derive_lambdas(team, queries, raw, sigma, weight, gradients, hessians, found):
    """LambdaMART's gradients, with their weights and extremes."""
    arguments = (queries, raw[0], sigma, gradients[0], hessians[0])
    share(team, add_lambdas, arguments, queries.starts.size - 1, 8)
    share(team, measure_chunks, (weight, gradients, hessians, found), found.shape[1], 1)
    join_extremes(found)


@njit
def weigh_derivatives(team, weight, gradients, hessians, found):
    """Weights and extremes of derivatives that Python has computed."""
    share(team, measure_chunks, (weight, gradients, hessians, found), found.shape[1], 1)
    join_extremes(found)


@inner
def measure_chunks(worker, first, last, weight, gradients, hessians, found):
    """Measure chunks first:last of the rows."""
    n = gradients.shape[1]
    for chunk in range(first, last):
        start, stop = chunk * CHUNK, min((chunk + 1) * CHUNK, n)
        measure_derivatives(start, stop, weight, gradients, hessians, found[:, chunk])


@inner
def measure_derivatives(start, stop, weight, gradients, hessians, found):
    """Multiply rows by their weights; note the largest gradient and the extreme Hessians.

    ``found[k]`` becomes the largest size of a gradient, the largest and the least Hessian of
    output k; NaN and infinity come through.
    """
    for k in range(gradients.shape[0]):
        g = gradients[k, start:stop]
        if weight.size > 0:
            w = weight[start:stop]
            for i in range(np.uint64(g.size)):
                g[i] *= w[i]
        found[k, 0] = from_bits(largest_bits(g) & SIZE)
        if hessians.shape[0] == 0:
            continue
        h = hessians[k, start:stop]
        if weight.size > 0:
            w = weight[start:stop]
            for i in range(np.uint64(h.size)):
                h[i] *= w[i]
        bits = largest_bits(h)
        found[k, 1], found[k, 2] = from_bits(bits & SIZE), 0.0
        if bits < 0:  # some are negative
            for i in range(np.uint64(h.size)):
                found[k, 2] = min(found[k, 2], h[i])


@inner
def largest_bits(values):
    """The largest size of some floats, as bits; with a sign if any of them has one.

    Bits of sizes are ordered as the sizes are, NaN above all, and LLVM makes vectors of integers.
    """
    most, signs = np.int64(0), np.int64(0)
    for i in range(np.uint64(values.size)):
        bits = bits_of(values[i])
        most = max(most, bits & SIZE)
        # Minus zero is no negative number.
        signs |= bits if values[i] < 0.0 else np.int64(0)
    return most | (signs & ~SIZE)


@inner
def join_extremes(found):
    """Bring the extremes of all chunks together in the first; NaN must win."""
    for k in range(found.shape[0]):
        first = found[k, 0]
        for chunk in range(1, found.shape[1]):
            other = found[k, chunk]
            for i in range(2):
                if first[i] == first[i] and not other[i] <= first[i]:
                    first[i] = other[i]
            if first[2] == first[2] and not other[2] >= first[2]:
                first[2] = other[2]


# -- lots -----------------------------------------------------------------------------------------


@njit
def draw_lots(team, lot, gradients, hessians, rows, drawn):
    """Draw rows by lot into ``rows[0]``, in ascending order, and their derivatives into ``drawn``.

    ``lot`` is a seed, a limit, what lots fall on (see ``Sample.units``) and the first row. Returns
    how many rows are drawn.
    """
    n_chunks = -(-gradients.size // CHUNK)
    starts = filled(n_chunks + 1, 0)
    share(team, draw_chunks, (lot, gradients.size, rows[1], starts), n_chunks, 1)
    for chunk in range(n_chunks):
        starts[chunk + 1] += starts[chunk]
    arguments = (gradients, hessians, starts, rows, drawn)
    share(team, close_ranks, arguments, n_chunks, 1)
    return starts[n_chunks]


@inner
def draw_chunks(worker, first, last, lot, n_rows, rows, starts):
    """Write the rows of chunks first:last that are drawn to the beginning of their chunks."""
    seed, limit, units, first_row = lot
    for chunk in range(first, last):
        at = np.uint64(chunk * CHUNK)
        for i in range(at, np.uint64(min((chunk + 1) * CHUNK, n_rows))):
            unit = np.uint64(units[i]) if units.size > 0 else np.uint64(first_row) + i
            is_in = mix(seed + unit) >> np.uint64(64 - LOT_BITS) < limit
            rows[at] = i
            at += np.uint64(is_in)
        starts[chunk + 1] = np.int64(at) - chunk * CHUNK


@inner
def close_ranks(worker, first, last, gradients, hessians, starts, rows, drawn):
    """Move what chunks first:last have drawn to where it belongs among all rows that are drawn."""
    for chunk in range(first, last):
        move = np.uint64(starts[chunk] - chunk * CHUNK)  # wraps around, and back again
        start = np.uint64(chunk * CHUNK)
        for i in range(start, start + np.uint64(starts[chunk + 1] - starts[chunk])):
            row = rows[1, i]
            rows[0, i + move] = row
            drawn[0, i + move] = gradients[np.uint64(row)]
            if hessians.size > 0:
                drawn[1, i + move] = hessians[np.uint64(row)]


# -- words ----------------------------------------------------------------------------------------


@njit
def quantise(team, gradients, hessians, grid, bound_gains, tree):
    """Give the rows of the root their words: derivatives rounded onto the grid, one or two.

    If the root holds all rows, they are put there. Returns the sums of gradients and Hessians, and
    the energy.
    """
    tree, grid = TreeState(*tree), Grid(*grid)
    scale = tree.scale
    scale[0].layout, scale[0].shift = grid.layout, grid.shift
    scale[0].gradient, scale[0].hessian = grid.gradient, grid.hessian
    n_chunks = max(1, -(-gradients.size // CHUNK))
    sums, energies = np.empty((n_chunks, 2), dtype=np.int64), np.empty(n_chunks)
    words, rows = tree.words[0], tree.rows[0, : gradients.size if tree.is_whole else 0]
    arguments = (gradients, hessians, scale, bound_gains, words, rows, sums, energies)
    share(team, quantise_chunks, arguments, n_chunks, 1)
    for chunk in range(1, n_chunks):
        sums[0, 0] += sums[chunk, 0]
        sums[0, 1] += sums[chunk, 1]
        energies[0] += energies[chunk]
    root = tree.nodes[0]
    root.start, root.stop, root.side, root.parent, root.slot = 0, gradients.size, 0, -1, -1
    return sums[0, 0], sums[0, 1], energies[0]


@inner
def flat(words):
    """The words of all rows with one index: so LLVM knows how far they lie apart.

    It makes vectors of loops over them, which it does not for a distance that it does not know.
    """
    return words.reshape(words.size)


@inner
def quantise_chunks(
    worker, first, last, gradients, hessians, scale, bound_gains, words, rows, sums, energies
):
    """Round chunks first:last of the rows; write what each sums up to."""
    to_g, to_h = 1.0 / scale[0].gradient, 1.0 / scale[0].hessian
    shift = scale[0].shift
    for chunk in range(first, last):
        start, stop = np.uint64(chunk * CHUNK), np.uint64(min((chunk + 1) * CHUNK, gradients.size))
        if rows.size > 0:
            for i in range(start, stop):
                rows[i] = i
        total_g, total_h = np.int64(0), np.int64(0)
        one, numbers = np.uint64(1), flat(words)
        if words.shape[1] == 1:
            for i in range(start, stop):
                g = np.int64(np.rint(gradients[i] * to_g))
                numbers[i] = (g << shift) + np.int64(1)
                total_g += g
            total_h = np.int64(stop - start)
        else:
            for i in range(start, stop):
                g = np.int64(np.rint(gradients[i] * to_g))
                h = np.int64(np.rint(hessians[i] * to_h))
                numbers[i << one] = g
                numbers[(i << one) + one] = (h << shift) + np.int64(1)
                total_g += g
                total_h += h
        sums[chunk, 0], sums[chunk, 1] = total_g, total_h
        energies[chunk] = np.inf
        if bound_gains:
            energies[chunk] = energy(words, scale[0], start, stop)


# Energies are bounds with some slack, and no part of a model: they may be added in any order, and
# so as vectors.
ANY_ORDER = {"reassoc"}


@inner(fastmath=ANY_ORDER)
def energy(words, scale, start, stop):
    """Sum of g^2/h over some rows; huge where a row has a gradient but no Hessian."""
    total, one, numbers = 0.0, np.uint64(1), flat(words)
    if words.shape[1] == 1:
        for i in range(np.uint64(start), np.uint64(stop)):
            total += energy_of_row(numbers[i] >> scale.shift, np.int64(1), scale)
    else:
        for i in range(np.uint64(start), np.uint64(stop)):
            hessian = numbers[(i << one) + one] >> scale.shift
            total += energy_of_row(numbers[i << one], hessian, scale)
    return total


@inner(forceinline=True, fastmath=ANY_ORDER)
def energy_of_row(gradient, hessian, scale):
    """g^2/h of one row, of numbers of the grid. No branches: it becomes a vector."""
    g, h = float(gradient) * scale.gradient, float(hessian) * scale.hessian
    known = g * g / h if h > 0.0 else HUGE
    return known if gradient != 0 else 0.0


# -- children -------------------------------------------------------------------------------------

# A part of the rows of a node that is divided.
CUT_DTYPE = np.dtype(
    [
        ("split", np.int64),
        ("start", np.int64),
        ("stop", np.int64),
        # Rows that go left, and where those that go left and right begin in their node.
        ("n_left", np.int64),
        ("left_at", np.int64),
        ("right_at", np.int64),
        ("left_energy", np.float64),
        ("right_energy", np.float64),
    ],
    align=True,
)


@inner
def plan_cuts(splits, nodes, longest):
    """Cut the rows of the nodes to divide into pieces of at most ``longest``."""
    n = 0
    for s in range(splits.size):
        n += max(1, -(-size(nodes[splits[s].node]) // longest))
    cuts = np.empty(n, dtype=CUT_DTYPE)
    n = 0
    for s in range(splits.size):
        start, stop = nodes[splits[s].node].start, nodes[splits[s].node].stop
        parts = max(1, -(-(stop - start) // longest))
        for part in range(parts):
            cuts[n].split = s
            cuts[n].start = start + (stop - start) * part // parts
            cuts[n].stop = start + (stop - start) * (part + 1) // parts
            n += 1
    return cuts


@inner
def sides_of(splits, category_sets, features):
    """For each split and each of the 256 codes of its feature, whether it goes left."""
    goes_left = np.empty((splits.size, BINS), dtype=np.bool_)
    for s in range(splits.size):
        split = splits[s]
        for code in range(BINS):
            if split.bin >= 0:
                goes_left[s, code] = code <= split.bin
            else:
                word = category_sets[s, code >> 6]
                goes_left[s, code] = (word >> np.uint64(code & 63)) & np.uint64(1) == np.uint64(1)
        goes_left[s, features[split.feature].n_bins] = split.missing_left
    return goes_left


@njit
def divide_rows(team, data, tree, splits, category_sets, longest, flags, with_words, energies):
    """Move rows (and their words) into the children of their nodes; see ``divide_level``."""
    data, tree = Data(*data), TreeState(*tree)
    divide_level(
        team, data, tree, splits, category_sets, longest, flags, with_words, energies
    )  # fmt: skip


@inner
def divide_level(team, data, tree, splits, category_sets, longest, flags, with_words, energies):
    """Move rows (and their words) into the children of their nodes, in order.

    All nodes of a level are cut into pieces. First every piece finds out who goes left; then it is
    known where each piece's rows go, and they move. ``energies`` are written if there is room.
    """
    sides = sides_of(splits, category_sets, data.features)
    cuts = plan_cuts(splits, tree.nodes, longest)
    share(team, mark_cuts, (data, tree, splits, sides, cuts, flags), cuts.size, 1)
    place_cuts(splits, cuts, tree.nodes)
    is_bounded = energies.size > 0
    share(team, move_cuts, (tree, splits, cuts, flags, with_words, is_bounded), cuts.size, 1)
    if is_bounded:
        energies[:] = 0.0
        for i in range(cuts.size):
            energies[cuts[i].split, 0] += cuts[i].left_energy
            energies[cuts[i].split, 1] += cuts[i].right_energy


@inner
def mark_cuts(worker, first, last, data, tree, splits, sides, cuts, flags):
    """Look up for each row whether its code goes left; count those that do."""
    for c in range(first, last):
        cut = cuts[c]
        node = tree.nodes[splits[cut.split].node]
        lane = data.feature_lane[splits[cut.split].feature]
        codes, rows, left_codes = data.codes[lane // LANES], tree.rows[node.side], sides[cut.split]
        move, byte = np.uint64(8 * (lane % LANES)), np.uint64(255)
        ahead, end = np.uint64(AHEAD), np.uint64(rows.size - 1)
        start, stop = np.uint64(cut.start), np.uint64(cut.stop)
        count = np.int64(0)
        if node.parent < 0 and tree.is_whole:  # all rows, in their order
            for i in range(start, stop):
                left = left_codes[(codes[i] >> move) & byte]
                flags[i] = left
                count += left
        else:
            for i in range(start, stop):
                prefetch(codes, np.uint64(rows[min(i + ahead, end)]))
                left = left_codes[(codes[np.uint64(rows[i])] >> move) & byte]
                flags[i] = left
                count += left
        cut.n_left = count


@inner
def place_cuts(splits, cuts, nodes):
    """Where the rows of each piece begin in their children: running counts."""
    c = 0
    for s in range(splits.size):
        parent = nodes[splits[s].node]
        first, n_left = c, np.int64(0)
        while c < cuts.size and cuts[c].split == s:
            n_left += cuts[c].n_left
            c += 1
        left_at, right_at = parent.start, parent.start + n_left
        for i in range(first, c):
            cuts[i].left_at, cuts[i].right_at = left_at, right_at
            left_at += cuts[i].n_left
            right_at += cuts[i].stop - cuts[i].start - cuts[i].n_left
        middle = parent.start + n_left
        for side in range(2):
            child = nodes[splits[s].left + side]
            child.start = middle if side else parent.start
            child.stop = parent.stop if side else middle
            child.side, child.parent, child.slot = 1 - parent.side, splits[s].node, -1


@inner
def move_cuts(worker, first, last, tree, splits, cuts, flags, with_words, is_bounded):
    """Copy rows to their side of the node in the other buffer.

    rows         |a b c d e f g|      flags   |1 0 0 1 1 0 1|
    other rows   |a d e g b c f|
                  ^left_at ^right_at
    """
    for c in range(first, last):
        cut = cuts[c]
        side = tree.nodes[splits[cut.split].node].side
        if is_bounded:
            add_energies(flags, tree.words[side], tree.scale[0], cut)
        if not with_words:
            scatter(flags, tree.rows[side], cut, tree.rows[1 - side])
        else:
            rows, words = tree.rows[1 - side], tree.words[1 - side]
            scatter_with_words(flags, tree.rows[side], tree.words[side], cut, rows, words)


@inner(fastmath=ANY_ORDER)
def add_energies(flags, words, scale, cut):
    """Sums of g^2/h over the rows of a piece that go left, and over those that go right.

    Choices instead of branches: which way a row goes cannot be predicted.
    """
    left, right, one, numbers = 0.0, 0.0, np.uint64(1), flat(words)
    start, stop, shift = np.uint64(cut.start), np.uint64(cut.stop), scale.shift
    if words.shape[1] == 1:
        for i in range(start, stop):
            part = energy_of_row(numbers[i] >> shift, np.int64(1), scale)
            left += part if flags[i] else 0.0
            right += 0.0 if flags[i] else part
    else:
        for i in range(start, stop):
            part = energy_of_row(numbers[i << one], numbers[(i << one) + one] >> shift, scale)
            left += part if flags[i] else 0.0
            right += 0.0 if flags[i] else part
    cut.left_energy, cut.right_energy = left, right


@inner
def scatter(flags, rows, cut, out):
    """Copy the rows of a piece to their side of the node."""
    left, right = np.uint64(cut.left_at), np.uint64(cut.right_at)
    one = np.uint64(1)
    for i in range(np.uint64(cut.start), np.uint64(cut.stop)):
        go = np.uint64(flags[i])
        out[left if flags[i] else right] = rows[i]
        left += go
        right += one - go


@inner
def scatter_with_words(flags, rows, words, cut, rows_out, words_out):
    """Do as ``scatter`` does with the words of the rows beside them."""
    left, right = np.uint64(cut.left_at), np.uint64(cut.right_at)
    zero, one = np.uint64(0), np.uint64(1)
    if words.shape[1] == 1:
        for i in range(np.uint64(cut.start), np.uint64(cut.stop)):
            go = np.uint64(flags[i])
            at = left if flags[i] else right
            rows_out[at] = rows[i]
            words_out[at, zero] = words[i, zero]
            left += go
            right += one - go
    else:
        for i in range(np.uint64(cut.start), np.uint64(cut.stop)):
            go = np.uint64(flags[i])
            at = left if flags[i] else right
            rows_out[at] = rows[i]
            words_out[at, zero] = words[i, zero]
            words_out[at, one] = words[i, one]
            left += go
            right += one - go


# -- leaves ---------------------------------------------------------------------------------------


@njit
def add_leaves(team, data, tree, leaves, values, splits, category_sets, longest, raw):
    """Add the values of leaves to the raw predictions of their rows.

    The last splits (``splits``) were only noted: their rows find out here which of two values is
    theirs. The rows of all other leaves were moved.
    """
    data, tree = Data(*data), TreeState(*tree)
    sides = sides_of(splits, category_sets, data.features)
    cuts = plan_cuts(splits, tree.nodes, longest)
    # Splits that were only noted have children behind the last of ``tree.nodes``.
    last = np.int64(0)
    for k in range(leaves.size):
        last = max(last, leaves[k])
    side_of = filled(last + 2, -1)
    for s in range(splits.size):
        side_of[splits[s].left] = 2 * s
        side_of[splits[s].left + 1] = 2 * s + 1
    side_values = np.empty(2 * splits.size)
    moved = np.empty(leaves.size, dtype=np.int64)
    n_moved = 0
    for k in range(leaves.size):
        if side_of[leaves[k]] >= 0:
            side_values[side_of[leaves[k]]] = values[k]
        else:
            moved[n_moved] = k
            n_moved += 1
    share(team, add_to_leaves, (tree, leaves, values, moved, raw), n_moved, 1)
    share(team, add_to_sides, (data, tree, splits, sides, side_values, cuts, raw), cuts.size, 1)


@inner
def add_to_leaves(worker, first, last, tree, leaves, values, moved, raw):
    """Add to the rows of leaves ``moved[first:last]``."""
    for k in range(first, last):
        node, value = tree.nodes[leaves[moved[k]]], values[moved[k]]
        rows = tree.rows[node.side]
        for i in range(np.uint64(node.start), np.uint64(node.stop)):
            raw[np.uint64(rows[i])] += value


@inner
def add_to_sides(worker, first, last, data, tree, splits, sides, side_values, cuts, raw):
    """Add to the rows of pieces first:last of the nodes whose splits were only noted."""
    for c in range(first, last):
        cut = cuts[c]
        node = tree.nodes[splits[cut.split].node]
        lane = data.feature_lane[splits[cut.split].feature]
        codes, rows, left_codes = data.codes[lane // LANES], tree.rows[node.side], sides[cut.split]
        move = np.uint64(8 * (lane % LANES))
        left_value, right_value = side_values[2 * cut.split], side_values[2 * cut.split + 1]
        ahead, end = np.uint64(AHEAD), np.uint64(rows.size - 1)
        for i in range(np.uint64(cut.start), np.uint64(cut.stop)):
            row = np.uint64(rows[i])
            prefetch(codes, np.uint64(rows[min(i + ahead, end)]))
            left = left_codes[(codes[row] >> move) & np.uint64(255)]
            raw[row] += left_value if left else right_value


# -- finished trees -------------------------------------------------------------------------------


@njit
def add_tree(team, data, nodes, category_sets, raw):
    """Let all rows walk down a finished tree; add the values of their leaves."""
    data = Data(*data)
    questions, leaves = questions_of(data, nodes)
    n_chunks = -(-raw.size // CHUNK)
    share(team, add_found, (data, nodes, category_sets, questions, leaves, raw), n_chunks, 1)


@inner
def add_found(worker, first, last, data, nodes, category_sets, questions, leaves, raw):
    """Add to chunks first:last of the rows."""
    possible, found = np.empty(BLOCK, dtype=np.uint64), np.empty(BLOCK, dtype=np.int64)
    tree = (data, nodes, category_sets, questions, leaves)
    stop = min(last * CHUNK, raw.size)
    for start in range(first * CHUNK, stop, BLOCK):
        n = min(BLOCK, stop - start)
        find_leaves(*tree, start, n, possible, found)
        for i in range(np.uint64(n)):
            raw[np.uint64(start) + i] += nodes[np.uint64(found[i])].value


# -- the loss -------------------------------------------------------------------------------------


@njit
def sum_loss(team, formula, y, raw, weight, totals, tables):
    """Exact sum of the loss of all rows.

    Every thread has a row in ``totals`` and one in ``tables``, which are 0 before; the latter also
    after.
    """
    arguments = (formula, y, raw, weight, totals, tables)
    share(team, sum_chunks, arguments, -(-y.size // CHUNK), 1)
    for k in range(1, totals.shape[0]):
        for i in range(totals.shape[1]):
            totals[0, i] += totals[k, i]


@inner
def sum_chunks(worker, first, last, formula, y, raw, weight, totals, tables):
    """Add chunks first:last of the rows."""
    values = np.empty(CHUNK)
    spare = np.empty((2, CHUNK if formula.kind == MULTINOMIAL else 0))
    for chunk in range(first, last):
        start, stop = chunk * CHUNK, min((chunk + 1) * CHUNK, y.size)
        write_values(formula, y, raw, start, stop, values, spare)
        if weight.size > 0:
            for i in range(np.uint64(stop - start)):
                values[i] *= weight[np.uint64(start) + i]
        add_with_table(totals[worker], values[: stop - start], tables[worker])
