"""The tree with the least total: the best of all small trees, not one that was grown greedily.

A tree asks one question after the other, and what it asks next depends on the answers. Its total is
what rows pay on their way and what errors cost in its leaves. Of some rows, the best tree of depth
two needs only sums over pairs of questions, which are a product of matrices (Demirović et al.,
"MurTree", 2022; van der Linden et al., "STreeD", 2023); every question is tried before that. So
trees of depth three are exact. Deeper ones have the first question of such a tree, and behind each
answer the best tree of depth three again.

How large a tree may be is chosen by folds: its depth, and a penalty that each split must save.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from greedymiser.cascades.gates import BinnedColumns, GateInputs
from greedymiser.costs.cost_model import CostModel
from greedymiser.model.trees import CATEGORY_WORDS, NODE_DTYPE, Ensemble, Tree

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

# Trees are exact down to the first of these depths.
DEPTHS = (3, 4)
# Rows of mean weight that a leaf has at least.
LEAST_ROWS = 3
# What a split must save, in worst errors: all rows of a node together.
PENALTIES = (8.0, 4.0, 2.0, 1.0, 0.5, 0.25, 0.0)
# Questions of a column at least, and the work of all of them: rows (and what is to be done however
# few there are) by answers by the cube of their number.
FEWEST_OF_COLUMN, WORK, OVERHEAD = 3, 2e8, 200
# Share of a class, at least, in what is said of a leaf.
LEAST_SHARE = 1e-9
# Differences of sums that are smaller, in relation to the sum, are rounding.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Split:
    """A question, and what is asked next of rows that say yes, and no; None where nothing is."""

    question: int
    yes: Split | None = None
    no: Split | None = None


@dataclass(frozen=True, eq=False)
class Questions:
    """What trees may ask: whether a value is at most so large, or whether it is one category."""

    inputs: GateInputs
    # Column of the inputs, and its code, of each question.
    column: Rows
    code: Rows

    @classmethod
    def of(cls, inputs: GateInputs, stakes: Floats, weight: Floats) -> Questions:
        """Questions about all columns: those that stakes differ most by, where they are many."""
        binned, n = inputs.binned, len(stakes)
        room = max(8, int((WORK / ((n + OVERHEAD) * stakes.shape[1])) ** (1 / 3)))
        each = max(FEWEST_OF_COLUMN, room // max(1, len(binned.codes)))
        column, code = [], []
        for j, edges in enumerate(binned.edges):
            last = len(edges) + int(binned.is_set[j])
            chosen = np.unique(np.linspace(0, last - 1, min(each, last)).round().astype(int))
            if not binned.is_set[j] and len(chosen) < last:
                # About as many rows between two of them.
                known = np.sort(binned.codes[j][binned.codes[j] < binned.n_bins - 1])
                ranks = np.linspace(0, len(known), len(chosen) + 2)[1:-1].astype(int)
                chosen = np.unique(np.minimum(known[ranks], last - 1))
            column += [j] * len(chosen)
            code += chosen.tolist()
        found = cls(inputs, np.array(column, dtype=np.intp), np.array(code, dtype=np.intp))
        if len(column) <= room:
            return found
        best = np.sort(np.argsort(-_differences(found.holds, stakes, weight), kind="stable")[:room])
        return cls(inputs, found.column[best], found.code[best])

    @property
    def holds(self) -> NDArray[np.bool_]:
        """Who says yes, (n, n_questions); nobody whose value is missing."""
        codes = self.inputs.binned.codes[self.column].T
        is_set = self.inputs.binned.is_set[self.column]
        return np.where(is_set, codes == self.code, codes <= self.code)

    def features(self) -> list[int]:
        """The feature that each question is about."""
        return [self.inputs.positions[column] for column in self.column.tolist()]

    def describe(self, record: NDArray[np.void], question: int, yes_is_larger: bool) -> int | None:
        """Write a question into a node; the category that goes left, where it asks for one."""
        column, code = int(self.column[question]), int(self.code[question])
        binned: BinnedColumns = self.inputs.binned
        record["feature"] = self.inputs.positions[column]
        was_missing = bool((binned.codes[column] == binned.n_bins - 1).any())
        # What was never missing goes with most of the others.
        record["missing_left"] = False if was_missing else yes_is_larger
        if binned.is_set[column]:
            return code
        record["bin"], record["threshold"] = code, binned.edges[column][code]
        return None


def _differences(holds: NDArray[np.bool_], stakes: Floats, weight: Floats) -> Floats:
    """How much stakes differ between those who say yes and no: a sum of squares."""
    weighed = stakes * weight[:, None]
    total, n = weighed.sum(axis=0), weight.sum()
    yes, n_yes = holds.T @ weighed, holds.T @ weight
    found = np.zeros(holds.shape[1])
    for part, size in ((yes, n_yes), (total - yes, n - n_yes)):
        found += (part**2).sum(axis=1) / np.where(size > 0, size, np.inf)
    return found


class TreeSearch:
    """Looks for the best trees of some rows.

    Parameters
    ----------
    holds : array of shape (n, n_questions)
        Who says yes to what.
    needs : array of shape (n_questions, n_resources)
        What must be paid for each question.
    prices : array of shape (n_resources,)
    stakes : array of shape (n, n_answers)
        What each answer costs each row.
    weight : array of shape (n,)

    Examples
    --------
    The second question decides, but only of those who say yes to the first:

    >>> holds = np.array([[0, 0], [0, 1], [1, 0], [1, 1]] * 5, dtype=bool)
    >>> wrong = 9.0 * np.array([[0, 1], [0, 1], [0, 1], [1, 0]] * 5)
    >>> search = TreeSearch(holds, np.eye(2, dtype=bool), np.array([1.0, 2.0]), wrong, np.ones(20))
    >>> costs, trees = search.found(np.arange(20), np.array([0.0, 99.0]))
    >>> costs.tolist(), trees
    ([40.0, 45.0], [Split(question=0, yes=Split(question=1, yes=None, no=None), no=None), None])
    """

    def __init__(
        self,
        holds: NDArray[np.bool_],
        needs: NDArray[np.bool_],
        prices: Floats,
        stakes: Floats,
        weight: Floats,
    ):
        self._holds, self._answers = holds, holds.astype(np.float64)
        self._needs, self._resource_prices = needs, prices
        self.stakes, self.weight = stakes, _on_grid(weight)
        self._weighed = _on_grid(stakes * weight[:, None])
        self._floor = self._weighed.min(axis=1)
        self._least = LEAST_ROWS * float(weight.mean())

    def found(
        self,
        rows: Rows,
        penalties: Floats,
        owned: NDArray[np.bool_] | None = None,
        depth: int = DEPTHS[0],
    ) -> tuple[Floats, list[Split | None]]:
        """The least sum over rows, and the tree that has it, for each penalty."""
        if owned is None:
            owned = np.zeros(len(self._resource_prices), dtype=bool)
        cost, trees = self._two_deep(rows, penalties, owned)
        if depth == 2:
            return cost, trees
        size = self.weight[rows].sum()
        first, _ = self._prices(owned)
        for question in np.argsort(first, kind="stable").tolist():
            says_yes = self._holds[rows, question]
            yes, no = rows[says_yes], rows[~says_yes]
            if min(self.weight[yes].sum(), self.weight[no].sum()) < self._least:
                continue
            here = first[question] * size + penalties
            if (here + self._floor[rows].sum() >= cost).all():
                continue
            paid = owned | self._needs[question]
            a, yes_trees = self.found(yes, penalties, paid, depth - 1)
            if (here + a + self._floor[no].sum() >= cost).all():
                continue
            b, no_trees = self.found(no, penalties, paid, depth - 1)
            for i in np.flatnonzero(_is_less(here + a + b, cost)).tolist():
                cost[i] = here[i] + a[i] + b[i]
                trees[i] = Split(question, yes_trees[i], no_trees[i])
        return cost, trees

    def grown(
        self,
        rows: Rows,
        penalties: Floats,
        depth: int,
        owned: NDArray[np.bool_] | None = None,
    ) -> list[Split | None]:
        """Trees of a depth for each penalty: what follows each answer is searched for anew."""
        if owned is None:
            owned = np.zeros(len(self._resource_prices), dtype=bool)
        _, trees = self.found(rows, penalties, owned)
        if depth == DEPTHS[0]:
            return trees
        for question in {tree.question for tree in trees if tree is not None}:
            says_yes, paid = self._holds[rows, question], owned | self._needs[question]
            yes = self.grown(rows[says_yes], penalties, depth - 1, paid)
            no = self.grown(rows[~says_yes], penalties, depth - 1, paid)
            for i, tree in enumerate(trees):
                if tree is not None and tree.question == question:
                    trees[i] = Split(question, yes[i], no[i])
        return trees

    def _prices(self, owned: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Price of each question, and of each (column) after each (row)."""
        left = np.where(owned, 0.0, self._resource_prices)
        needs = self._needs.astype(np.float64)
        return needs @ left, ((1.0 - needs) * left) @ needs.T

    def _two_deep(
        self, rows: Rows, penalties: Floats, owned: NDArray[np.bool_]
    ) -> tuple[Floats, list[Split | None]]:
        """``found`` with trees of depth two."""
        says, weighed, weight = self._answers[rows], self._weighed[rows], self.weight[rows]
        total, size = weighed.sum(axis=0), weight.sum()
        cost = np.full(len(penalties), total.min())
        trees: list[Split | None] = [None] * len(penalties)
        yes = weight @ says
        first, second = self._prices(owned)
        is_split = (yes >= self._least) & (size - yes >= self._least)
        if not is_split.any():
            return cost, trees
        # Yes to the first (row) and the second (column); yes and no; no and yes; no to both.
        sizes = _quarters(says.T @ (weight[:, None] * says), yes, size)
        least = np.full((4, len(yes), len(yes)), np.inf)
        hits = says.T @ weighed
        for k, column in enumerate(weighed.T):
            pairs = says.T @ (column[:, None] * says)
            np.minimum(least, _quarters(pairs, hits[:, k], total[k]), out=least)
        fits = sizes >= self._least
        leaves = np.array([hits.min(axis=1), (total - hits).min(axis=1)])
        sides = np.empty((2, len(yes), len(yes)))
        for side, n in enumerate((yes, size - yes)):
            asked = least[2 * side] + least[2 * side + 1] + second * n[:, None]
            sides[side] = np.where(fits[2 * side] & fits[2 * side + 1], asked, np.inf)
        following = sides.argmin(axis=2)
        split = sides.min(axis=2)
        for i, penalty in enumerate(penalties.tolist()):
            goes_on = _is_less(split + penalty, leaves)
            both = np.where(goes_on, split + penalty, leaves).sum(axis=0)
            sums = np.where(is_split, both + first * size + penalty, np.inf)
            best = int(sums.argmin())
            if _is_less(sums[best], cost[i]):
                cost[i] = sums[best]
                nexts = [
                    Split(int(following[side, best])) if goes_on[side, best] else None
                    for side in (0, 1)
                ]
                trees[i] = Split(best, *nexts)
        return cost, trees

    def applied(self, tree: Split | None, learn: Rows, check: Rows) -> tuple[Floats, Rows]:
        """What a tree asks rows to check with to pay, and what it says of them.

        Its answers are those that cost the rows least that it has learned from.
        """
        paid, said = np.empty(len(check)), np.empty(len(check), dtype=np.intp)

        def follow(node: Split | None, mine: Rows, places: Rows, owned: NDArray[np.bool_]) -> None:
            if node is None:
                paid[places] = self._resource_prices[owned].sum()
                said[places] = self._weighed[mine].sum(axis=0).argmin()
                return
            bought = owned | self._needs[node.question]
            yes = self._holds[mine, node.question]
            theirs = self._holds[check[places], node.question]
            follow(node.yes, mine[yes], places[theirs], bought)
            follow(node.no, mine[~yes], places[~theirs], bought)

        nothing = np.zeros(len(self._resource_prices), dtype=bool)
        follow(tree, learn, np.arange(len(check)), nothing)
        return paid, said


def _on_grid(values: Floats) -> Floats:
    """Values rounded so that their sums are exact, in whichever order they are added up."""
    most = float(np.abs(values).sum())
    if most == 0 or not np.isfinite(most):
        return values
    unit = 2.0 ** (np.ceil(np.log2(most)) - 50)
    return np.round(values / unit) * unit


def _is_less(some: Floats, than: Floats) -> NDArray[np.bool_]:
    return np.asarray(some < than - ROUNDING * np.abs(than))


def _quarters(both: Floats, yes: Floats, total: float) -> Floats:
    """Sums over rows that say yes and yes, yes and no, no and yes, no and no to two questions."""
    first, second = yes[:, None], yes[None, :]
    return np.stack([both, first - both, second - both, total - first - second + both])


@dataclass(frozen=True, eq=False)
class ExactTree:
    """A tree, and what it makes of rows that it has not seen."""

    tree: Split | None
    # (n_repeats, n): what rows pay, and what is said of them, out of fold.
    paid: Floats
    said: Rows

    def splits(self) -> Iterator[tuple[int, int]]:
        """Depth and question of every split, from the root downwards."""
        level = [self.tree]
        for depth in range(DEPTHS[-1]):
            splits = [node for node in level if node is not None]
            yield from ((depth, node.question) for node in splits)
            level = [child for node in splits for child in (node.yes, node.no)]


def chosen_tree(search: TreeSearch, repeats: Sequence[Rows], worst_error: float) -> ExactTree:
    """The best tree of all rows, as large as it has paid out of fold.

    Parameters
    ----------
    search : TreeSearch
    repeats : sequence of arrays of shape (n,)
        The fold of each row, once or several times.
    worst_error : float
        The unit of penalties.
    """
    weight, stakes = search.weight, search.stakes
    penalties = np.array(PENALTIES) * worst_error * float(weight.mean())
    n, sizes = len(weight), len(DEPTHS) * len(penalties)
    paid = np.empty((len(repeats), sizes, n))
    said = np.empty(paid.shape, dtype=np.intp)
    for r, fold_of in enumerate(repeats):
        for fold in np.unique(fold_of):
            learn, check = np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)
            trees = [tree for depth in DEPTHS for tree in search.grown(learn, penalties, depth)]
            for size, tree in enumerate(trees):
                paid[r, size, check], said[r, size, check] = search.applied(tree, learn, check)
    # Of equals the first: shallow trees, and of those the ones of large penalties.
    best = int(np.argmin((paid + stakes[np.arange(n), said]).mean(axis=0) @ weight))
    depth, i = divmod(best, len(penalties))
    (tree,) = search.grown(np.arange(n), penalties[i : i + 1], DEPTHS[depth])
    return ExactTree(tree, paid[:, best], said[:, best])


def ensemble_of(
    tree: Split | None, questions: Questions, classes: Floats, weight: Floats
) -> Ensemble:
    """A tree as a model serves it: its leaves have the log-odds of the classes of their rows.

    Parameters
    ----------
    tree : Split or None
    questions : Questions
    classes : array of shape (n, n_classes)
        The classes of the rows, as far as each of them counts.
    weight : array of shape (n,)
    """
    holds, n_features = questions.holds, questions.inputs.n_features
    nodes, sets = list[NDArray[np.void]](), list[NDArray[np.uint64]]()
    sums = list[Floats]()
    waiting: list[tuple[Split | None, Rows, int]] = [(tree, np.arange(len(weight)), 0)]
    while waiting:  # level by level: siblings lie side by side
        split, rows, depth = waiting.pop(0)
        record = np.zeros(1, dtype=NODE_DTYPE)
        record["hessian"], record["count"], record["depth"] = weight[rows].sum(), len(rows), depth
        record["feature"] = record["left"] = record["category_set"] = record["bin"] = -1
        sums.append(weight[rows] @ classes[rows])
        nodes.append(record)
        if split is None:
            continue
        yes = holds[rows, split.question]
        category = questions.describe(record, split.question, bool(yes.mean() >= 0.5))
        if category is not None:
            words = np.zeros(CATEGORY_WORDS, dtype=np.uint64)
            words[category // 64] = np.uint64(1) << np.uint64(category % 64)
            record["category_set"] = len(sets)
            sets.append(words)
        record["left"] = len(nodes) + len(waiting)
        waiting += [(split.yes, rows[yes], depth + 1), (split.no, rows[~yes], depth + 1)]
    stacked = np.array(sets, dtype=np.uint64).reshape(-1, CATEGORY_WORDS)
    counted = np.array(sums)
    said = _log_odds(counted)
    empty = Ensemble.empty(said[0], n_features)
    if tree is None:
        return empty
    records, trees = np.concatenate(nodes), []
    inner, losses = np.flatnonzero(records["left"] >= 0), _log_losses(counted)
    left = records["left"][inner]
    records["gain"][inner] = (losses[inner] - losses[left] - losses[left + 1]) / weight.sum()
    for values in (said - said[0]).T:
        mine = records.copy()
        mine["value"] = values
        trees.append(Tree(mine, stacked))
    return empty.extended(trees)


def _log_odds(sums: Floats) -> Floats:
    """Raw predictions by sums of classes, (n_nodes, n_classes): of two classes, one column."""
    shares = np.log(np.maximum(sums / sums.sum(axis=1, keepdims=True), LEAST_SHARE))
    return shares[:, 1:] - shares[:, :1] if sums.shape[1] == 2 else shares


def _log_losses(sums: Floats) -> Floats:
    """Log-loss of the rows of each node that are told their shares."""
    shares = np.maximum(sums / sums.sum(axis=1, keepdims=True), LEAST_SHARE)
    return -(sums * np.log(shares)).sum(axis=1)


def needs_of(costs: CostModel, features: Sequence[int]) -> NDArray[np.bool_]:
    """Resources that each of some features needs, (n_features, n_resources)."""
    needs = np.zeros((len(features), len(costs.resource_costs)), dtype=bool)
    for i, feature in enumerate(features):
        needs[i, list(costs.needs[feature])] = True
    return needs
