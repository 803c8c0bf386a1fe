"""Loops over rows on the device: derivatives, words, children, leaves, finished trees."""

from __future__ import annotations

import numpy as np

from greedymiser.data.binning import LANES
from greedymiser.engines.cuda.device import SIMULATED, bits_of, cuda, device, kernel, mul
from greedymiser.engines.cuda.kernels.counting import LOW
from greedymiser.engines.cuda.kernels.formulas import write_gradients, write_values
from greedymiser.engines.cuda.layout import (
    BIN,
    CHILD,
    DIVIDED,
    LANE,
    LEAF_VALUE,
    LEFT,
    LEFT_FLOAT,
    MISSING_LEFT,
    N_BINS,
    N_LEFT,
    RIGHT,
    RIGHT_FLOAT,
    SET,
    SIDE,
    START,
    STOP,
    TILE,
    TREE_NODE,
)
from greedymiser.losses.formulas import Formula

THREADS = 4 if SIMULATED else 256

# Blocks of threads that loops over rows are cut into.
MOST_BLOCKS = 2 if SIMULATED else 1056

# All bits of a float but its sign; and those of its fraction.
SIZE = np.int64(2**63 - 1)
FRACTION = np.int64((1 << 52) - 1)

# Digits of an exact sum (see ``arithmetic``), and those near the usual size of a loss, which a
# thread sums up by itself.
DIGITS, NEAR = 67, 5

# Stands for infinity where 0 times it must be 0.
HUGE = 1e300


def blocks_for(n: int) -> int:
    """How many blocks of threads loop over so many rows."""
    return max(1, min(MOST_BLOCKS, -(-n // THREADS)))


# -- the loss -------------------------------------------------------------------------------------


@kernel
def evaluate(y, raw, weight, gradients, hessians, said, kind, parameter, near):
    """Derivatives of a loss that has a formula, and the exact sum of its values.

    ``said`` begins with the digits of the sum; ``near`` is the first of those that most values
    have.
    """
    shared = cuda.shared.array((NEAR, THREADS), np.int64)
    value = cuda.local.array(1, np.float64)
    spare = cuda.local.array((2, 1), np.float64)
    tid = cuda.threadIdx.x
    # Whether the loss is flat is nothing that a formula asks for.
    formula = Formula(kind, parameter, True)
    clear_sums(shared, tid)
    i, step = cuda.grid(1), cuda.gridsize(1)
    while i < y.size:
        write_gradients(formula, y, raw, i, i + 1, gradients, hessians, spare)
        write_values(formula, y, raw, i, i + 1, value, spare)
        if weight.size > 0:
            value[0] = mul(value[0], weight[i])
        add_number(value[0], near, shared, tid, said)
        i += step
    join_sums(near, shared, tid, said)


@kernel
def sum_values(values, weight, said, near):
    """The exact sum of some numbers times their weights, as ``evaluate`` has it."""
    shared = cuda.shared.array((NEAR, THREADS), np.int64)
    tid = cuda.threadIdx.x
    clear_sums(shared, tid)
    i, step = cuda.grid(1), cuda.gridsize(1)
    while i < values.size:
        value = values[i]
        if weight.size > 0:
            value = mul(value, weight[i])
        add_number(value, near, shared, tid, said)
        i += step
    join_sums(near, shared, tid, said)


@device
def clear_sums(shared, tid):
    """Begin the exact sum of a thread's numbers."""
    for k in range(NEAR):
        shared[k, tid] = 0


@device
def join_sums(near, shared, tid, said):
    """Add the exact sums of all threads of a block to ``said``."""
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if tid < half:
            for k in range(NEAR):
                shared[k, tid] += shared[k, tid + half]
        cuda.syncthreads()
        half //= 2
    for k in range(tid, NEAR, THREADS):
        if shared[k, 0] != 0:
            cuda.atomic.add(said, near + k, shared[k, 0])


@device
def add_number(x, near, shared, tid, said):
    """Add a number to an exact sum, digit by digit (``arithmetic.add_number``)."""
    bits = bits_of(x)
    exponent = (bits >> np.int64(52)) & np.int64(0x7FF)
    mantissa = bits & FRACTION
    if exponent == np.int64(0x7FF):
        place = 2 if mantissa != 0 else (1 if bits < 0 else 0)
        cuda.atomic.add(said, DIGITS + place, np.int64(1))
        return
    if exponent > 0:
        mantissa |= np.int64(1) << np.int64(52)
        exponent -= np.int64(1)
    if mantissa == 0:
        return
    at, shift = exponent >> np.int64(5), exponent & np.int64(31)
    low = (mantissa & LOW) << shift
    high = (mantissa >> np.int64(32)) << shift
    first, second = low & LOW, (low >> np.int64(32)) + (high & LOW)
    third = high >> np.int64(32)
    if bits < 0:
        first, second, third = -first, -second, -third
    k = at - near
    if k >= 0 and k + 2 < NEAR:
        shared[k, tid] += first
        shared[k + 1, tid] += second
        shared[k + 2, tid] += third
    else:
        cuda.atomic.add(said, at, first)
        cuda.atomic.add(said, at + 1, second)
        cuda.atomic.add(said, at + 2, third)


@kernel
def measure_derivatives(gradients, hessians, weight, said, said_at):
    """Multiply derivatives by their weights; note the largest, as bits. Outputs in y."""
    largest = cuda.shared.array((2, THREADS), np.int64)
    tid, k = cuda.threadIdx.x, cuda.blockIdx.y
    most_g, most_h = np.int64(0), np.int64(0)
    i, step = cuda.blockIdx.x * THREADS + tid, cuda.gridDim.x * THREADS
    while i < gradients.shape[1]:
        g = gradients[k, i]
        if weight.size > 0:
            g = mul(g, weight[i])
            gradients[k, i] = g
        most_g = max(most_g, bits_of(g) & SIZE)
        if hessians.shape[0] > 0:
            h = hessians[k, i]
            if weight.size > 0:
                h = mul(h, weight[i])
                hessians[k, i] = h
            most_h = max(most_h, bits_of(h) & SIZE)
        i += step
    largest[0, tid], largest[1, tid] = most_g, most_h
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if tid < half:
            for j in range(2):
                largest[j, tid] = max(largest[j, tid], largest[j, tid + half])
        cuda.syncthreads()
        half //= 2
    if tid == 0:
        for j in range(2):
            cuda.atomic.max(said, said_at + 2 * k + j, largest[j, 0])


# -- words ----------------------------------------------------------------------------------------


@device
def word_of_number(number, run_bits, low_bits, with_count):
    """A word of a row (``counting.Coding``)."""
    low = number & ((np.int64(1) << np.int64(low_bits)) - np.int64(1))
    if with_count:
        low |= np.int64(1) << np.int64(low_bits + run_bits)
    return ((number >> np.int64(low_bits)) << np.int64(32)) | low


@device
def number_of_word(word, run_bits, low_bits):
    """The number in a word, without its count."""
    low = word & ((np.int64(1) << np.int64(low_bits)) - np.int64(1))
    return ((word >> np.int64(32)) << np.int64(low_bits)) + low


@device
def energy(g, h, is_flat, g_step, h_step):
    """g^2/h of one row, for a bound; huge where there is a gradient but no Hessian."""
    size = g * g_step
    if is_flat:
        return size * size / h_step
    if g == 0:
        return 0.0
    return size * size / (h * h_step) if h > 0 else HUGE


def _make_quantise(is_whole, name):
    """The kernel that puts all rows into the root, or the one for rows that are listed there."""

    def quantise(gradients, hessians, rows, words, said, said_floats, output, g_step, h_step,
                 run_bits, low_bits, alone_bits, bound_gains, n_rows):  # fmt: skip
        """Give the rows of the root their words: round derivatives onto the grid.

        ``said`` becomes the sums of gradients and Hessians, and the energy.
        """
        sums = cuda.shared.array((2, THREADS), np.int64)
        energies = cuda.shared.array(THREADS, np.float64)
        tid = cuda.threadIdx.x
        to_g, to_h = 1.0 / g_step, 1.0 / h_step
        is_flat = hessians.size == 0
        total_g, total_h, total_energy = np.int64(0), np.int64(0), 0.0
        i, step = cuda.grid(1), cuda.gridsize(1)
        while i < n_rows:
            row = i
            if is_whole:
                rows[0, i] = i
            else:
                row = np.int64(rows[0, i])
            g = np.int64(round(mul(gradients[output, row], to_g)))
            h = np.int64(1)
            if is_flat:
                words[0, i] = word_of_number(g, run_bits, low_bits, True)
            else:
                h = np.int64(round(mul(hessians[output % hessians.shape[0], row], to_h)))
                words[0, 2 * i] = word_of_number(h, run_bits, low_bits, True)
                words[0, 2 * i + 1] = word_of_number(g, run_bits, alone_bits, False)
            total_g += g
            total_h += h
            if bound_gains != 0:
                total_energy += energy(g, h, is_flat, g_step, h_step)
            i += step
        sums[0, tid], sums[1, tid], energies[tid] = total_g, total_h, total_energy
        cuda.syncthreads()
        half = THREADS // 2
        while half > 0:
            if tid < half:
                sums[0, tid] += sums[0, tid + half]
                sums[1, tid] += sums[1, tid + half]
                energies[tid] += energies[tid + half]
            cuda.syncthreads()
            half //= 2
        if tid == 0:
            cuda.atomic.add(said, 0, sums[0, 0])
            cuda.atomic.add(said, 1, sums[1, 0])
            if bound_gains != 0:
                cuda.atomic.add(said_floats, 2, energies[0])

    quantise.__name__ = name
    return kernel(quantise)


quantise_all = _make_quantise(True, "quantise_all")
quantise_listed = _make_quantise(False, "quantise_listed")


# -- children -------------------------------------------------------------------------------------


@device
def goes_left(codes, row, plan, at):
    """Whether a row goes left."""
    lane = plan[at + LANE]
    if lane < 0:
        return True
    word = codes[lane // LANES, row]
    code = np.int64((word >> np.uint64(8 * (lane % LANES))) & np.uint64(255))
    if code == plan[at + N_BINS]:
        return plan[at + MISSING_LEFT] != 0
    if plan[at + BIN] >= 0:
        return code <= plan[at + BIN]
    return (plan[at + SET + (code >> 6)] >> np.int64(code & 63)) & np.int64(1) != 0


@device
def node_of_tile(plan, first, n_nodes, tile):
    """Where the words of the node begin that a tile of rows is of."""
    at = first
    while at + DIVIDED < first + n_nodes * DIVIDED and plan[at + DIVIDED + TILE] <= tile:
        at += DIVIDED
    return at


@kernel
def divide_rows(codes, rows, words, plan, plan_floats, bits, n_nodes, n_words, g_step, h_step,
                run_bits, low_bits, alone_bits, bound_gains):  # fmt: skip
    """Move rows and their words into the children of their nodes, a tile of rows to each block.

    Tiles come in any order, and rows keep theirs within a tile: sums of integers do not show it.
    Where rows have marks, the bits that each node leaves are behind the nodes in ``plan``.
    """
    before = cuda.shared.array(THREADS, np.int64)
    base = cuda.shared.array(2, np.int64)
    energies = cuda.shared.array((2, THREADS), np.float64)
    tid, tile = cuda.threadIdx.x, cuda.blockIdx.x
    at = node_of_tile(plan, 0, n_nodes, tile)
    side = plan[at + SIDE]
    first = plan[at + START] + (tile - plan[at + TILE]) * THREADS
    i = first + tid
    is_mine = i < plan[at + STOP]
    row, left = np.int64(0), False
    if is_mine:
        row = np.int64(rows[side, i])
        left = goes_left(codes, row, plan, at)
    before[tid] = np.int64(is_mine and left)
    sum_up(before, tid)
    if tid == 0:
        n_left = before[THREADS - 1]
        n_rows = min(plan[at + STOP] - first, THREADS)
        base[0] = plan[at + START] + cuda.atomic.add(plan, at + LEFT, n_left)
        base[1] = plan[at + START] + plan[at + N_LEFT]
        base[1] += cuda.atomic.add(plan, at + RIGHT, n_rows - n_left)
    cuda.syncthreads()
    energies[0, tid], energies[1, tid] = 0.0, 0.0
    if is_mine:
        # The first of those that go left is at base[0]; before[tid] counts this row too.
        to = base[0] + before[tid] - 1 if left else base[1] + tid - before[tid]
        rows[1 - side, to] = row
        masks = n_nodes * DIVIDED + at // DIVIDED * bits.shape[0]
        for w in range(bits.shape[0]):
            bits[w, row] |= plan[masks + w]
        for k in range(n_words):
            words[1 - side, n_words * to + k] = words[side, n_words * i + k]
        if bound_gains != 0:
            if n_words == 1:
                g, h = number_of_word(words[side, i], run_bits, low_bits), np.int64(1)
            else:
                h = number_of_word(words[side, 2 * i], run_bits, low_bits)
                g = number_of_word(words[side, 2 * i + 1], run_bits, alone_bits)
            energies[0 if left else 1, tid] = energy(g, h, n_words == 1, g_step, h_step)
    if bound_gains != 0:
        add_energies(energies, tid, plan_floats, at)


@device
def sum_up(numbers, tid):
    """Make each number the sum of those up to it."""
    cuda.syncthreads()
    reach = 1
    while reach < THREADS:
        more = numbers[tid - reach] if tid >= reach else np.int64(0)
        cuda.syncthreads()
        numbers[tid] += more
        cuda.syncthreads()
        reach *= 2


@device
def add_energies(energies, tid, plan_floats, at):
    """Add the energies of a tile to those of the children; in any order, as they only bound."""
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if tid < half:
            energies[0, tid] += energies[0, tid + half]
            energies[1, tid] += energies[1, tid + half]
        cuda.syncthreads()
        half //= 2
    if tid == 0:
        cuda.atomic.add(plan_floats, at + LEFT_FLOAT, energies[0, 0])
        cuda.atomic.add(plan_floats, at + RIGHT_FLOAT, energies[1, 0])


# -- leaves ---------------------------------------------------------------------------------------


@kernel
def add_leaves(codes, rows, plan, plan_floats, raw, n_nodes, output):
    """Add to the raw predictions of the rows of some nodes, on their left and right sides."""
    tid, tile = cuda.threadIdx.x, cuda.blockIdx.x
    at = node_of_tile(plan, 0, n_nodes, tile)
    i = plan[at + START] + (tile - plan[at + TILE]) * THREADS + tid
    if i < plan[at + STOP]:
        row = np.int64(rows[plan[at + SIDE], i])
        left = goes_left(codes, row, plan, at)
        raw[output, row] += plan_floats[at + (LEFT_FLOAT if left else RIGHT_FLOAT)]


@kernel
def add_tree(codes, plan, plan_floats, raw, output):
    """Walk all rows down a finished tree; add the values of their leaves."""
    i, step = cuda.grid(1), cuda.gridsize(1)
    while i < raw.shape[1]:
        at = np.int64(0)
        while plan[at + CHILD] >= 0:
            left = goes_left(codes, i, plan, at)
            at = (plan[at + CHILD] + (0 if left else 1)) * TREE_NODE
        raw[output, i] += plan_floats[at + LEAF_VALUE]
        i += step
