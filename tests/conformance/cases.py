"""Small problems for engines, and the questions that a grower would ask."""

import os
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import HealthCheck
from hypothesis import strategies as st

import naive
from greedymiser.data.binning import LANES, BinnedMatrix
from greedymiser.engines.grid import GridRule
from greedymiser.engines.interface import OPEN_DTYPE, SPLIT_DTYPE, Sample, SplitRules
from greedymiser.engines.marks import share_unit
from greedymiser.engines.sampling import RowLot
from greedymiser.losses import Loss
from greedymiser.model.trees import CATEGORY_WORDS
from random_examples import examples

# In Numba's simulator of a GPU an example takes seconds, and on a cluster every question takes
# milliseconds.
IS_SLOW = bool(
    os.environ.get("NUMBA_ENABLE_CUDASIM") or os.environ.get("GREEDYMISER_TEST_ENGINE") == "dask"
)


def by_chance(n):
    """Settings for so many examples."""
    n = 1 + n // 150 if IS_SLOW else (n + 1) // 2
    return examples(n, suppress_health_check=list(HealthCheck))


class Canned(Loss):
    """A loss whose derivatives are known beforehand; one output."""

    def __init__(self, gradients, hessians=None):
        self.derivatives = gradients, hessians

    def gradients(self, y, raw):
        return self.derivatives

    def values(self, y, raw):
        return (y - raw) ** 2


@dataclass
class OpenNode:
    """A node that is asked for, and the bounds of its value."""

    id: int
    lower: float = -np.inf
    upper: float = np.inf


@dataclass
class Split:
    """A split; the right child is ``left + 1``."""

    node: int
    left: int
    feature: int
    bin: int
    missing_left: bool
    # Categories that go left; None for a numeric split.
    categories: np.ndarray | None = None


@dataclass
class Case:
    # codes[i][f] is a bin; n_bins[f] is missing.
    codes: list
    n_bins: list
    categorical: list
    order: list
    gradients: np.ndarray
    hessians: np.ndarray | None
    rules: SplitRules
    grids: GridRule = field(default_factory=GridRule)
    # Rows are drawn, perhaps by query; None for all.
    lot: RowLot | None = None
    units: np.ndarray | None = None
    # What rows weigh where marks are counted; None for 1 each.
    shares: np.ndarray | None = None

    @property
    def n(self):
        return len(self.codes)

    @property
    def d(self):
        return len(self.n_bins)

    def binned(self):
        return pack(self.codes, self.n_bins, self.categorical, self.order)

    def plain(self):
        engine = naive.PlainEngine(
            self.codes, self.n_bins, self.rules, self.categorical, self.grids
        )
        engine.begin(self.gradients, self.hessians)
        if self.lot is not None:
            units = range(self.n) if self.units is None else self.units.tolist()
            engine.rows[0] = [i for i in range(self.n) if naive.lot_falls_on(units[i], *self.lot)]
        return engine

    def sample(self):
        loss = Canned(self.gradients, self.hessians)
        sample = Sample(self.binned(), np.zeros(self.n), None, loss, self.grids, self.units)
        if self.shares is None:
            return sample
        unit = share_unit(self.n, self.shares.max())
        return replace(sample, shares=self.shares, share_unit=unit)

    def placed(self, engine, marks=None):
        rows = engine.place(self.sample())
        rows.start(np.zeros(1), marks)
        return rows


def pack(codes, n_bins, categorical=(), order=None):
    """Codes as an engine wants them: eight lanes to a word."""
    n, d = len(codes), len(n_bins)
    order = list(range(d)) if order is None else order
    n_blocks = -(-d // LANES)
    words = [[0] * n for _ in range(n_blocks)]
    for lane, f in enumerate(order):
        for i in range(n):
            words[lane // LANES][i] |= int(codes[i][f]) << (8 * (lane % LANES))
    return BinnedMatrix(
        codes=np.array(words, dtype=np.uint64).reshape(n_blocks, n),
        lane_feature=np.array([*order, *[-1] * (n_blocks * LANES - d)], dtype=np.int32),
        feature_lane=np.array([order.index(f) for f in range(d)], dtype=np.int32),
        n_bins=np.array(n_bins, dtype=np.int32),
        has_missing=np.array([any(row[f] == n_bins[f] for row in codes) for f in range(d)]),
        is_categorical=np.array([f in categorical for f in range(d)]),
    )


def gradients_of(kind, rng, n):
    return {
        "few values": lambda: rng.integers(-2, 3, n).astype(float),
        "normal": lambda: rng.standard_normal(n),
        "wide": lambda: rng.standard_normal(n) * 10.0 ** rng.integers(-6, 7, n),
        "equal": lambda: np.full(n, -0.7),
    }[kind]()


def hessians_of(kind, rng, n):
    hessians = {
        "none": lambda: None,
        "weights": lambda: rng.integers(1, 4, n).astype(float),
        "probabilities": lambda: rng.uniform(0.01, 0.25, n),
        "some zero": lambda: np.where(rng.random(n) < 0.3, 0.0, rng.uniform(0.0, 1.0, n)),
    }[kind]()
    if hessians is not None and not hessians.any():
        hessians[0] = 1.0
    return hessians


seeds = st.integers(0, 2**32 - 1)


def cases(*, monotone=False, most_features=18):
    """Ties, missing values, categories, full bytes, any layout, any rule."""
    return st.builds(case_by_chance, seeds, st.just(monotone), st.just(most_features))


def case_by_chance(seed, monotone, most_features):
    rng = np.random.default_rng(seed)
    n = int(rng.choice([1, 2, 5, 12, 25, 40], p=[0.04, 0.04, 0.08, 0.14, 0.3, 0.4]))
    d = int(rng.integers(1, most_features + 1))
    n_bins = [int(b) for b in rng.choice([1, 2, 3, 5, 9], d)]
    if rng.random() < 0.3:
        n_bins[0] = 255
    codes = rng.integers(0, n_bins, (n, d))
    if rng.random() < 0.5:
        codes = np.where(rng.random((n, d)) < 0.3, n_bins, codes)
    categorical = [] if monotone else [f for f in range(d) if rng.random() < 0.25]
    kind_g = rng.choice(["few values", "normal", "wide", "equal"], p=[0.35, 0.35, 0.2, 0.1])
    kind_h = rng.choice(["none", "weights", "probabilities", "some zero"], p=[0.4, 0.2, 0.2, 0.2])
    return Case(
        codes=codes.tolist(),
        n_bins=n_bins,
        categorical=categorical,
        order=rng.permutation(d).tolist(),
        gradients=gradients_of(kind_g, rng, n),
        hessians=hessians_of(kind_h, rng, n),
        rules=SplitRules(
            min_samples_leaf=int(rng.choice([1, 2, 5], p=[0.6, 0.2, 0.2])),
            min_hessian=float(rng.choice([0.0, 0.3, 2.5], p=[0.6, 0.3, 0.1])),
            l2_regularization=float(rng.choice([0.0, 1.5])),
            monotonic_cst=tuple(rng.integers(-1, 2, d).tolist()) if monotone else None,
        ),
    )


def numbers(words):
    """The categories in a set."""
    return {c for c in range(64 * CATEGORY_WORDS) if naive.in_set(words, c)}


def as_words(codes):
    words = np.zeros(CATEGORY_WORDS, dtype=np.uint64)
    for c in codes:
        words[c // 64] |= np.uint64(1) << np.uint64(c % 64)
    return words


def check_root(root, plain):
    """Sums of integers: equal, not only close."""
    rows = plain.rows[0]
    assert (root.gradient, root.hessian, root.n_rows) == (*plain.sums(rows), len(rows))


def open_nodes(plain, nodes):
    """What a grower would tell of some nodes."""
    told = np.zeros(len(nodes), dtype=OPEN_DTYPE)
    for row, node in zip(told, nodes, strict=True):
        rows = plain.rows[node.id]
        row["node"], row["count"] = node.id, len(rows)
        row["gradient"], row["hessian"] = plain.sums(rows)
        row["lower"], row["upper"] = node.lower, node.upper
    return told


def ask(rows, plain, nodes, columns, last=False):
    columns = np.asarray(columns)
    return rows.split_table(open_nodes(plain, nodes), np.atleast_2d(columns), last)


def tell(rows, plain, splits, moves, last=False):
    """Divide nodes on both sides; ``moves`` are the rows that go left."""
    told = np.zeros(len(splits), dtype=SPLIT_DTYPE)
    sets = np.zeros((len(splits), CATEGORY_WORDS), dtype=np.uint64)
    for i, (split, left_rows) in enumerate(zip(splits, moves, strict=True)):
        told[i]["node"], told[i]["left"], told[i]["feature"] = split.node, split.left, split.feature
        told[i]["bin"] = split.bin if split.categories is None else -1
        told[i]["count"], told[i]["missing_left"] = len(left_rows), split.missing_left
        if split.categories is not None:
            sets[i] = split.categories
        plain.divide(split.node, split.left, left_rows)
    return rows.partition(told, sets, last)


def check_table(table, case, plain, nodes, columns):
    """Every cell of a table against all splits there are."""
    columns = np.broadcast_to(np.atleast_2d(columns), (len(nodes), case.d))
    assert table.candidates.shape == (len(nodes), case.d)
    for row, node in enumerate(nodes):
        scale = sum(plain.g[i] ** 2 for i in plain.rows[node.id]) * plain.g_step**2
        for f in range(case.d):
            cell = table.candidates[row, f]
            in_play = columns[row, f]
            found = plain.best(node.id, f, node.lower, node.upper) if in_play else None
            if found is None:
                assert cell["gain"] == -np.inf, (node, f)
                continue
            gain, left_rows, _, cut, codes, missing_left = found
            assert abs(cell["gain"] - gain) <= 1e-12 * max(gain, scale), (node, f)
            assert cell["missing_left"] == missing_left, (node, f)
            # Sums of integers: equal, not only close.
            sums = int(cell["gradient"]), int(cell["hessian"]), int(cell["count"])
            assert sums == (*plain.sums(left_rows), len(left_rows)), (node, f)
            if codes is None:
                assert cell["bin"] == cut, (node, f)
            else:
                position = sorted(case.categorical).index(f)
                assert numbers(table.category_sets[row, position]) == codes, (node, f)


def split_of(plain, node, left, f):
    """The plain engine's best split as the fast one wants it, and the rows that go left."""
    _, left_rows, _, cut, codes, missing_left = plain.best(node.id, f, node.lower, node.upper)
    categories = None if codes is None else as_words(codes)
    bin = -1 if cut is None else cut
    return Split(node.id, left, f, bin, missing_left, categories), left_rows


def walk(engine, case, seed, *, depth=4, bounds=False, rows=None):
    """Grow a tree by chance, as a grower might, and check every answer on the way.

    Some nodes are not asked for, some columns are out of play on some levels, for some nodes or for
    all. At the end every row gets the value of its leaf.
    """
    rng = np.random.default_rng(seed)
    plain = case.plain()
    rows = case.placed(engine) if rows is None else rows
    root = rows.begin_tree(0, case.rules, lot=case.lot)
    check_root(root, plain)
    energies, parents = {0: root.energy}, {}
    level, n_nodes = [0], 1
    for d in range(depth):
        asked = [id for id in level if id == 0 or rng.random() < 0.85]
        nodes = [OpenNode(id, *(bounds_by_chance(rng) if bounds else ())) for id in asked]
        if not nodes:
            break
        n_masks = 1 if rng.random() < 0.5 else len(nodes)
        columns = rng.random((n_masks, case.d)) < rng.choice([0.2, 0.8, 1.0])
        last = d == depth - 1
        table = ask(rows, plain, nodes, columns, last)
        check_table(table, case, plain, nodes, columns)
        if case.rules.bound_gains and not bounds:
            check_bounds(table, nodes, case, plain, energies, parents)
        splits, moves = [], []
        for row, node in enumerate(nodes):
            options = np.flatnonzero(table.candidates["gain"][row] > -np.inf).tolist()
            if options:
                f = int(rng.choice(options))
                split, left_rows = split_of(plain, node, n_nodes + 2 * len(splits), f)
                splits.append(split)
                moves.append(left_rows)
        if not splits:
            break
        found = tell(rows, plain, splits, moves, last)
        assert found.size == (0 if last or not case.rules.bound_gains else 2 * len(splits))
        level = []
        for i, split in enumerate(splits):
            for side, child in enumerate((split.left, split.left + 1)):
                parents[child] = split.node
                if found.size:
                    energies[child] = found[i, side]
                level.append(child)
        n_nodes += 2 * len(splits)
    check_leaves(rows, plain, parents, rng)
    return plain


def check_leaves(rows, plain, parents, rng):
    """Rows get the values of their leaves, whichever they are."""
    before = rows.raw().copy()
    leaves = np.array(sorted(set(plain.rows) - set(parents.values())))
    values = rng.standard_normal(len(leaves))
    expected = before[0].copy()
    for leaf, value in zip(leaves.tolist(), values, strict=True):
        for i in plain.rows[leaf]:
            expected[i] += value
    rows.add_leaves(leaves, values)
    assert rows.raw().shape == (1, len(expected))
    assert rows.raw().tobytes() == expected.tobytes()


def bounds_by_chance(rng):
    """Bounds that monotone ancestors might have put on a node."""
    low, high = rng.choice([-np.inf, -1.0, -0.1, 0.5]), rng.choice([0.6, 2.0, np.inf])
    return (low, high) if rng.random() < 0.5 else (-high, -low)


def check_bounds(table, nodes, case, plain, energies, parents):
    """No gain is above what a node's energy allows, nor what any ancestor's does."""
    for row, node in enumerate(nodes):
        at = node.id
        while at is not None:
            g, h = plain.sums(plain.rows[at])
            g, h = g * plain.g_step, h * plain.h_step + case.rules.l2_regularization
            bound = energies[at] * (1 + 1e-9) - (g * g / h if h > 0 else 0.0)
            assert (2 * table.candidates["gain"][row] <= bound).all()
            at = parents.get(at)
