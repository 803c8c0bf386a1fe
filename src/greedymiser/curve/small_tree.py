"""The best small tree: what it asks next depends on the answers, and its leaves may have models.

A tree asks one question after the other. In a leaf it gives one answer; or the rest of a set of
resources is bought, and a model of that set decides. The tree's total is what rows pay on their way
and what errors cost in its leaves. What errors of a model cost is known from rows that it has not
seen, so few rows of a leaf do not flatter it.

Of some rows, the best tree of depth one needs only sums over the rows that say yes to a question,
which are a product of matrices (as in Demirović et al., "MurTree", 2022; van der Linden et al.,
"STreeD", 2023); every question is tried before that. A larger tree has the first question of such a
tree of depth two, and behind each answer what is found in the same way.

How large a tree may be is chosen by folds: by a penalty that each split must save.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from greedymiser.cascades.gates import BinnedColumns, GateInputs
from greedymiser.costs.cost_model import CostModel
from greedymiser.model.trees import CATEGORY_WORDS, NODE_DTYPE, Ensemble, Tree

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

# Questions that are asked of a row, at most, and how many of them are looked at together.
DEPTH, AHEAD = 6, 2
# Rows of mean weight that a leaf has at least.
LEAST_ROWS = 3
# What a split must save, in worst errors: all rows of a node together.
PENALTIES = (8.0, 4.0, 2.0, 1.0, 0.5, 0.25, 0.0)
# Questions of a column at least, and the work of all of them: rows (and what is to be done however
# few there are) by answers and models by the square of their number.
FEWEST_OF_COLUMN, WORK, OVERHEAD = 3, 1e9, 200
# Share of a class, at least, in what is said of a leaf.
LEAST_SHARE = 1e-9
# Differences of sums that are smaller, in relation to the sum, are rounding.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Leaf:
    """The end of questions: the model that decides, or None where there is one answer."""

    model: int | None = None


@dataclass(frozen=True)
class Split:
    """A question, and what follows for rows that say yes, and no."""

    question: int
    yes: Split | Leaf = Leaf()
    no: Split | Leaf = Leaf()


@dataclass(frozen=True, eq=False)
class Stops:
    """What models make of rows that they have not seen."""

    # (n_models, n_resources): what must be paid for each of them.
    needs: NDArray[np.bool_]
    # (n_models, n): what their errors cost, by soft classes; and by the classes of the rows.
    values: Floats
    errors: Floats


@dataclass(frozen=True, eq=False)
class Questions:
    """What trees may ask: whether a value is at most so large, or whether it is one category."""

    inputs: GateInputs
    # Column of the inputs, and its code, of each question.
    column: Rows
    code: Rows

    @classmethod
    def of(
        cls, inputs: GateInputs, stakes: Floats, weight: Floats, share: float = 1.0
    ) -> Questions:
        """Questions about all columns: those that stakes differ most by, where they are many.

        ``share`` is that of the work which is to be done for each answer.
        """
        binned, n = inputs.binned, len(stakes)
        room = max(8, int((share * WORK / ((n + OVERHEAD) * stakes.shape[1])) ** 0.5))
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
    stops : Stops, optional
        Models that leaves may have.

    Examples
    --------
    The second question decides, but only of those who say yes to the first:

    >>> holds = np.array([[0, 0], [0, 1], [1, 0], [1, 1]] * 5, dtype=bool)
    >>> wrong = 9.0 * np.array([[0, 1], [0, 1], [0, 1], [1, 0]] * 5)
    >>> search = TreeSearch(holds, np.eye(2, dtype=bool), np.array([1.0, 2.0]), wrong, np.ones(20))
    >>> tree, constant = search.grown(np.arange(20), np.array([0.0, 99.0]))
    >>> tree.question, tree.yes.question, tree.no, constant
    (0, 1, Leaf(model=None), Leaf(model=None))
    """

    def __init__(
        self,
        holds: NDArray[np.bool_],
        needs: NDArray[np.bool_],
        prices: Floats,
        stakes: Floats,
        weight: Floats,
        stops: Stops | None = None,
    ):
        if stops is None:
            none = np.empty((0, len(holds)))
            stops = Stops(np.empty((0, len(prices)), dtype=bool), none, none)
        self._holds, self._answers = holds, holds.astype(np.float64)
        self._needs, self._prices = needs, _on_grid(prices)
        self._needed, self._stops_need = needs.astype(np.float64), stops.needs.astype(np.float64)
        self.stakes, self.weight, self.stops = stakes, _on_grid(weight), stops
        # (n_answers, n) and (n_models, n).
        self._said = _on_grid((stakes * weight[:, None]).T)
        self._stopped = _on_grid(stops.values * weight)
        self._least = LEAST_ROWS * float(weight.mean())

    def grown(
        self,
        rows: Rows,
        penalties: Floats,
        depth: int = DEPTH,
        owned: NDArray[np.bool_] | None = None,
    ) -> list[Split | Leaf]:
        """The tree for each penalty: what follows each answer is searched for anew."""
        if owned is None:
            owned = np.zeros(len(self._prices), dtype=bool)
        _, questions = self.found(rows, penalties, owned, min(depth, AHEAD))
        trees: list[Split | Leaf] = [self._leaf(rows, owned)[1]] * len(penalties)
        for question in np.unique(questions[questions >= 0]).tolist():
            says_yes, paid = self._holds[rows, question], owned | self._needs[question]
            chosen = np.flatnonzero(questions == question)
            yes = self.grown(rows[says_yes], penalties[chosen], depth - 1, paid)
            no = self.grown(rows[~says_yes], penalties[chosen], depth - 1, paid)
            for i, a, b in zip(chosen.tolist(), yes, no, strict=True):
                trees[i] = Split(question, a, b)
        return trees

    def found(
        self, rows: Rows, penalties: Floats, owned: NDArray[np.bool_], depth: int = AHEAD
    ) -> tuple[Floats, Rows]:
        """The least sum of trees of a depth, and their first question, -1 for a leaf."""
        cost = np.full(len(penalties), self._leaf(rows, owned)[0])
        questions = np.full(len(penalties), -1, dtype=np.intp)
        if depth == 0 or not self._holds.shape[1]:
            return cost, questions
        sums, size = self._one_deep(rows, owned), self.weight[rows].sum()
        best = int(sums.argmin())
        is_better = _is_less(sums[best] + penalties, cost)
        cost[is_better], questions[is_better] = sums[best] + penalties[is_better], best
        if depth == 1:
            return cost, questions
        first = self._needed @ np.where(owned, 0.0, self._prices)
        floor = np.minimum(
            self._said[:, rows].min(axis=0), self._stopped[:, rows].min(axis=0, initial=np.inf)
        )
        for question in np.flatnonzero(np.isfinite(sums)).tolist():
            says_yes = self._holds[rows, question]
            here = first[question] * size + penalties
            if (here + floor.sum() >= cost).all():
                continue
            paid = owned | self._needs[question]
            yes, _ = self.found(rows[says_yes], penalties, paid, depth - 1)
            if (here + yes + floor[~says_yes].sum() >= cost).all():
                continue
            no, _ = self.found(rows[~says_yes], penalties, paid, depth - 1)
            is_better = _is_less(here + yes + no, cost)
            cost = np.where(is_better, here + yes + no, cost)
            questions[is_better] = question
        return cost, questions

    def _leaf(self, rows: Rows, owned: NDArray[np.bool_]) -> tuple[float, Leaf]:
        """The least sum without further questions."""
        said = float(self._said[:, rows].sum(axis=1).min())
        if len(self._stopped):
            left = self._stops_need @ np.where(owned, 0.0, self._prices)
            sums = self._stopped[:, rows].sum(axis=1) + left * self.weight[rows].sum()
            best = int(sums.argmin())
            if sums[best] < said - ROUNDING * abs(said):
                return float(sums[best]), Leaf(best)
        return said, Leaf()

    def _one_deep(self, rows: Rows, owned: NDArray[np.bool_]) -> Floats:
        """The least sum with one question, for each question; infinite where it divides nothing."""
        says, weight = self._answers[rows], self.weight[rows]
        yes, size = weight @ says, weight.sum()
        fits = (yes >= self._least) & (size - yes >= self._least)
        sums = np.full(len(yes), np.inf)
        if not fits.any():
            return sums
        says, yes = says[:, fits], yes[fits]
        left, needed = np.where(owned, 0.0, self._prices), self._needed[fits]
        first, total = needed @ left, 0.0
        sides = [(yes, says), (size - yes, 1.0 - says)]
        said, stopped = self._said[:, rows], self._stopped[:, rows]
        # What each model costs after each question.
        models = (self._stops_need @ left)[:, None] - (self._stops_need * left) @ needed.T
        for n, side in sides:
            least = (said @ side).min(axis=0)
            if len(stopped):
                least = np.minimum(least, (stopped @ side + models * n).min(axis=0))
            total = total + least
        sums[fits] = total + first * size
        return sums

    def applied(
        self, tree: Split | Leaf, learn: Rows, check: Rows
    ) -> tuple[Floats, Floats, Rows, Rows]:
        """What a tree makes of rows to check with.

        What they pay, what their errors cost by soft classes, the model of their leaf, and its
        answer where there is none, which is the one that costs the rows least that it has learned
        from; -1 otherwise.
        """
        paid, value = np.empty(len(check)), np.empty(len(check))
        model, said = np.full((2, len(check)), -1, dtype=np.intp)

        def follow(node: Split | Leaf, mine: Rows, places: Rows, owned: NDArray[np.bool_]) -> None:
            if isinstance(node, Split):
                bought = owned | self._needs[node.question]
                yes = self._holds[mine, node.question]
                theirs = self._holds[check[places], node.question]
                follow(node.yes, mine[yes], places[theirs], bought)
                follow(node.no, mine[~yes], places[~theirs], bought)
            elif node.model is None:
                paid[places] = self._prices[owned].sum()
                said[places] = answer = int(self._said[:, mine].sum(axis=1).argmin())
                value[places] = self.stakes[check[places], answer]
            else:
                paid[places] = self._prices[owned | self.stops.needs[node.model]].sum()
                model[places] = node.model
                value[places] = self.stops.values[node.model, check[places]]

        nothing = np.zeros(len(self._prices), dtype=bool)
        follow(tree, learn, np.arange(len(check)), nothing)
        return paid, value, model, said


def _on_grid(values: Floats) -> Floats:
    """Values rounded so that their sums are exact, in whichever order they are added up."""
    most = float(np.abs(values).sum())
    if most == 0 or not np.isfinite(most):
        return values
    unit = 2.0 ** (np.ceil(np.log2(most)) - 50)
    return np.round(values / unit) * unit


def _is_less(some: Floats, than: Floats) -> NDArray[np.bool_]:
    return np.asarray(some < than - ROUNDING * np.abs(than))


@dataclass(frozen=True, eq=False)
class SmallTree:
    """A tree, and what it makes of rows that it has not seen."""

    tree: Split | Leaf
    # (n_repeats, n): what rows pay, and what their errors cost by soft classes, out of fold; and
    # the model that decides, or the answer, -1 for none.
    paid: Floats
    value: Floats
    model: Rows
    said: Rows


def walk(tree: Split | Leaf) -> Iterator[tuple[int, Split | Leaf]]:
    """All nodes with their depths, from the root downwards."""
    level, depth = [tree], 0
    while level:
        yield from ((depth, node) for node in level)
        splits = [node for node in level if isinstance(node, Split)]
        level, depth = [child for node in splits for child in (node.yes, node.no)], depth + 1


def chosen_tree(
    searches: Sequence[TreeSearch], repeats: Sequence[Rows], worst_error: float
) -> SmallTree:
    """The best tree of all rows, of the kind and the size that has paid out of fold.

    Parameters
    ----------
    searches : sequence of TreeSearch
        Of the same rows; of kinds that are equally good, the first is taken.
    repeats : sequence of arrays of shape (n,)
        The fold of each row, once or several times.
    worst_error : float
        The unit of penalties.
    """
    weight = searches[0].weight
    penalties = np.array(PENALTIES) * worst_error * float(weight.mean())
    shape = (len(repeats), len(searches) * len(penalties), len(weight))
    paid, value = np.empty(shape), np.empty(shape)
    model, said = np.empty(shape, dtype=np.intp), np.empty(shape, dtype=np.intp)
    for r, fold_of in enumerate(repeats):
        for fold in np.unique(fold_of):
            learn, check = np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)
            found = [(some, tree) for some in searches for tree in some.grown(learn, penalties)]
            for i, (search, tree) in enumerate(found):
                place = r, i, check
                paid[place], value[place], model[place], said[place] = search.applied(
                    tree, learn, check
                )
    # Of equals the first: the tree of the largest penalty.
    best = int(np.argmin((paid + value).mean(axis=0) @ weight))
    kind, size = divmod(best, len(penalties))
    (tree,) = searches[kind].grown(np.arange(len(weight)), penalties[size : size + 1])
    return SmallTree(tree, paid[:, best], value[:, best], model[:, best], said[:, best])


def ensemble_of(
    tree: Split | Leaf,
    questions: Questions,
    classes: Floats,
    weight: Floats,
    models: Mapping[int, Ensemble] | None = None,
) -> Ensemble:
    """A tree as a model serves it.

    A leaf with one answer has the log-odds of the classes of its rows. Where it has a model, the
    trees of the model follow: each of them below the questions of this tree.

    Parameters
    ----------
    tree : Split or Leaf
    questions : Questions
    classes : array of shape (n, n_classes)
        The classes of the rows, as far as each of them counts.
    weight : array of shape (n,)
    models : mapping of int to Ensemble, optional
        Those that the leaves have.
    """
    holds, n_features = questions.holds, questions.inputs.n_features
    nodes, sets = list[NDArray[np.void]](), list[NDArray[np.uint64]]()
    sums, leaves = list[Floats](), dict[int, Ensemble | None]()
    waiting: list[tuple[Split | Leaf, Rows, int]] = [(tree, np.arange(len(weight)), 0)]
    while waiting:  # level by level: siblings lie side by side
        node, rows, depth = waiting.pop(0)
        record = np.zeros(1, dtype=NODE_DTYPE)
        record["hessian"], record["count"], record["depth"] = weight[rows].sum(), len(rows), depth
        record["feature"] = record["left"] = record["category_set"] = record["bin"] = -1
        sums.append(weight[rows] @ classes[rows])
        nodes.append(record)
        if isinstance(node, Leaf):
            leaves[len(nodes) - 1] = None if node.model is None else (models or {})[node.model]
            continue
        yes = holds[rows, node.question]
        category = questions.describe(record, node.question, bool(yes.mean() >= 0.5))
        if category is not None:
            words = np.zeros(CATEGORY_WORDS, dtype=np.uint64)
            words[category // 64] = np.uint64(1) << np.uint64(category % 64)
            record["category_set"] = len(sets)
            sets.append(words)
        record["left"] = len(nodes) + len(waiting)
        waiting += [(node.yes, rows[yes], depth + 1), (node.no, rows[~yes], depth + 1)]
    counted, records = np.array(sums), np.concatenate(nodes)
    said = _log_odds(counted)
    for place, model in leaves.items():
        if model is not None:
            said[place] = model.baseline
    empty = Ensemble.empty(said[0], n_features)
    n_iter = max((model.n_iter for model in leaves.values() if model is not None), default=0)
    inner, losses = np.flatnonzero(records["left"] >= 0), _log_losses(counted)
    if len(inner) == 0 and n_iter == 0:
        return empty
    left = records["left"][inner]
    records["gain"][inner] = (losses[inner] - losses[left] - losses[left + 1]) / weight.sum()
    stacked = np.array(sets, dtype=np.uint64).reshape(-1, CATEGORY_WORDS)
    trees = []
    for iteration in range(max(n_iter, 1)):
        for output, values in enumerate((said - said[0]).T):
            mine = records.copy()
            # The first tree has what the leaves differ by, and the gains of the questions.
            mine["value"] = values if iteration == 0 else 0.0
            if iteration:
                mine["gain"] = 0.0
            behind = {
                place: model.tree(iteration * model.n_outputs + output)
                for place, model in leaves.items()
                if model is not None and iteration < model.n_iter
            }
            trees.append(_grafted(Tree(mine, stacked), behind))
    return empty.extended(trees)


def _grafted(tree: Tree, behind: Mapping[int, Tree]) -> Tree:
    """A tree in which other trees follow some of the leaves."""
    parts, sets = [tree.nodes], [tree.category_sets]
    n_nodes, n_sets = len(tree.nodes), len(tree.category_sets)
    for place, other in behind.items():
        leaf, mine = tree.nodes[place], other.nodes.copy()
        mine["value"] += leaf["value"]
        mine["depth"] += leaf["depth"]
        # As far as these rows are a part of those that it has learned from.
        share = leaf["hessian"] / tree.nodes["hessian"][0]
        for name in ("gain", "hessian"):
            mine[name] *= share
        used = mine["category_set"] >= 0
        if used.any():
            sets.append(other.category_sets[mine["category_set"][used]])
            mine["category_set"][used] = n_sets + np.arange(np.count_nonzero(used))
            n_sets += len(sets[-1])
        # Its root takes the place of the leaf; all others follow what is there.
        mine["left"][mine["left"] >= 0] += n_nodes - 1
        tree.nodes[place] = mine[0]
        parts.append(mine[1:])
        n_nodes += len(mine) - 1
    return Tree(np.concatenate(parts), np.concatenate(sets))


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
