"""Slow, obvious twins of what the library does fast.

Everything here loops in plain Python over single rows. Gradients are rounded onto the same integer
grid as in the library (that is part of the definition of a model), and everything else follows
the paper and the design to the letter.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

# -- the integer grid -----------------------------------------------------------------------------


def grid_step(values, bits):
    """Power of two such that the largest value needs at most ``bits`` bits."""
    largest = max(abs(float(v)) for v in values)
    exponent = math.frexp(largest)[1]
    return math.ldexp(1.0, exponent - bits)


def on_grid(values, bits):
    """Integers and the step that they count."""
    step = grid_step(values, bits)
    return [round(float(v) / step) for v in values], step


# -- histograms that travel -----------------------------------------------------------------------


def packed_histograms(histograms, n_words):
    """Words of some histograms, one after the other; and which have one less per bin."""
    words, narrow = [], []
    for histogram in histograms:
        bins = [histogram[b : b + n_words] for b in range(0, len(histogram), n_words)]
        fits = n_words > 1 and all(
            -(2**47) <= total < 2**47 and count < 2**16 for *_, total, count in bins
        )
        narrow.append(fits)
        for b in bins:
            words += [*b[:-2], b[-2] * 2**16 + b[-1]] if fits else b
    return words, narrow


# -- sums of prices -------------------------------------------------------------------------------


def as_written(number):
    """The decimal that a person wrote for a float of at most 15 digits; others are as they are.

    As the float and, rounded to one, what is left: the decimal to 32 digits.
    """
    if isinstance(number, Fraction):
        return number
    digits = f"{number:.15g}"
    exact = Fraction(digits) if float(digits) == number else Fraction(float(number))
    return Fraction(float(number)) + Fraction(float(exact - Fraction(float(number))))


def sum_of_prices(numbers):
    """Decimals are added up as a person does it, and the sum is rounded once."""
    return float(sum(map(as_written, numbers), Fraction(0)))


def cost_of_trees(tree_cost, n):
    """So many times the cost of a tree: of a decimal exactly, of a computed number rounded."""
    product, digits = tree_cost * n, f"{tree_cost:.15g}"
    if float(digits) != tree_cost:
        return Fraction(product)
    return Fraction(product) + Fraction(float(Fraction(digits) * n - Fraction(product)))


# -- lots -----------------------------------------------------------------------------------------


def scrambled(*numbers):
    """64 bits that depend on all of some numbers."""
    z = 0
    for number in numbers:
        z = (z + number + 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        z ^= z >> 31
    return z


def lot_falls_on(unit, seed, limit):
    """Whether a row, or a query, is drawn."""
    return scrambled((unit + seed) % 2**64) >> 11 < limit


# -- binning --------------------------------------------------------------------------------------


def place_edges(distinct, mass, max_bins):
    """Pairs of neighbouring values between which a column is cut."""
    m = len(distinct)
    if m <= max_bins:
        return list(itertools.pairwise(distinct))
    heavy = set()
    while True:
        bins = max_bins - len(heavy)
        weight = sum(mass[i] for i in range(m) if i not in heavy)
        more = [i for i in range(m) if i not in heavy and mass[i] * bins >= weight][: bins - 1]
        if not more:
            break
        heavy |= set(more)
    bins = max_bins - len(heavy)
    weight = sum(mass[i] for i in range(m) if i not in heavy)
    pairs, run = [], []
    for i in range(m - 1):
        if i in heavy:
            pairs.append((distinct[i], distinct[i + 1]))
            run = []
            continue
        run.append(i)
        filled = sum(mass[j] for j in run)
        is_last = all(j in heavy for j in range(i + 1, m))
        if (bins > 1 and (filled * bins >= weight or i + 1 in heavy)) or is_last:
            pairs.append((distinct[i], distinct[i + 1]))
            weight -= filled
            bins -= 1
            run = []
    return pairs


def bin_of(x, edges):
    """Number of edges below x; one more than the bins of values for NaN."""
    if math.isnan(x):
        return len(edges) + 1
    return sum(1 for edge in edges if edge < x)


# -- one tree -------------------------------------------------------------------------------------


@dataclass
class Node:
    rows: list
    depth: int
    feature: int | None = None
    cut: int | None = None  # largest bin that goes left
    left_codes: set | None = None  # categories that go left
    missing_left: bool | None = None
    left: Node | None = None
    right: Node | None = None
    gain: float = 0.0
    value: float = 0.0
    number: int = 0  # nodes are numbered level by level, from left to right
    path: frozenset = frozenset()  # features of the splits above


@dataclass
class Shop:
    """Resources, what they cost, what features need, and what is owned."""

    resource_costs: list
    needs: list
    owned: set = field(default_factory=set)

    def price(self, f, rows=None):
        return sum_of_prices(self.resource_costs[r] for r in self.needs[f] if r not in self.owned)

    def total(self, tree_costs):
        return sum_of_prices([*(self.resource_costs[r] for r in self.owned), tree_costs])

    def total_with(self, f, tree_costs, rows=None):
        owned = self.owned | set(self.needs[f])
        return sum_of_prices([*(self.resource_costs[r] for r in owned), tree_costs])

    def can_pay(self, f, rows, settings, tree_costs):
        budget = settings.budget
        return budget is None or self.total_with(f, tree_costs, rows) <= budget

    def is_within(self, settings, tree_costs):
        return settings.budget is None or self.total(tree_costs) <= settings.budget

    def buy(self, f, rows):
        """Pay for a split; the price if anything was lacking, else None."""
        price, lacked = self.price(f), not set(self.needs[f]) <= self.owned
        self.owned |= set(self.needs[f])
        return price if lacked else None

    def plant(self, rows):
        """A tree begins that grows on these rows."""


@dataclass
class RowShop:
    """The same where every row owns what its own paths have asked for."""

    resource_costs: list
    needs: list
    weights: list  # of rows, as integers
    owned: list = None  # one set per row

    def __post_init__(self):
        self.owned = [set() for _ in self.weights]
        self.plant(range(len(self.weights)))

    def plant(self, rows):
        """Rows of the tree that begins: they stand for all."""
        self.root = max(1, sum(self.weights[i] for i in rows))
        self.estimate = None if len(rows) == len(self.weights) else self.charged()

    def lacking(self, r, rows):
        return sum(self.weights[i] for i in rows if r not in self.owned[i])

    def charged(self):
        """Weight of the rows that own each resource."""
        all_rows = range(len(self.weights))
        total = sum(self.weights)
        return [total - self.lacking(r, all_rows) for r in range(len(self.resource_costs))]

    def price(self, f, rows):
        found = 0.0
        for r in sorted(self.needs[f]):
            found += self.resource_costs[r] * (self.lacking(r, rows) / self.root)
        return found

    def mean(self, charged, tree_costs):
        total = sum(self.weights)
        shares = [w / total for w in charged]
        parts = [
            Fraction(part * share)
            for cost, share in zip(self.resource_costs, shares, strict=True)
            for part in (cost, float(as_written(cost) - Fraction(cost)))
        ]
        return sum_of_prices([*parts, tree_costs])

    def total(self, tree_costs):
        return self.mean(self.charged(), tree_costs)

    def charged_with(self, f, rows):
        total = sum(self.weights)
        charged = self.charged() if self.estimate is None else list(self.estimate)
        for r in self.needs[f]:
            new = self.lacking(r, rows)
            if self.root != total:
                new = round(new * total / self.root)
            charged[r] = min(charged[r] + new, total)
        return charged

    def can_pay(self, f, rows, settings, tree_costs):
        mean = self.mean(self.charged_with(f, rows), tree_costs)
        if settings.budget is not None and mean > settings.budget:
            return False
        if settings.row_budget is None:
            return True
        bills = [self.bill(self.owned[i] | set(self.needs[f]), tree_costs) for i in rows]
        return max(bills) <= settings.row_budget

    def bill(self, owned, tree_costs):
        return sum_of_prices([*(self.resource_costs[r] for r in owned), tree_costs])

    def is_within(self, settings, tree_costs):
        if settings.budget is not None and self.total(tree_costs) > settings.budget:
            return False
        bills = [self.bill(owned, tree_costs) for owned in self.owned]
        return settings.row_budget is None or max(bills) <= settings.row_budget

    def buy(self, f, rows):
        price, charged = self.price(f, rows), self.charged_with(f, rows)
        lacked = any(self.lacking(r, rows) > 0 for r in self.needs[f] if self.resource_costs[r] > 0)
        if self.estimate is not None:
            self.estimate = charged
        self.ask(f, rows)
        return price if lacked else None

    def ask(self, f, rows):
        for i in rows:
            self.owned[i] |= set(self.needs[f])


@dataclass
class Settings:
    tradeoff: float = 0.0
    budget: float | None = None
    row_budget: float | None = None
    max_depth: int = 3
    max_leaf_nodes: int | None = None
    min_samples_leaf: int = 1
    l2: float = 0.0
    learning_rate: float = 0.1
    categorical: frozenset = frozenset()
    shopping_interval: int = 1
    subsample: float = 1.0
    max_features: float = 1.0
    interaction_cst: object = None
    seed: int = 0

    def may_follow(self, path, f, d):
        """Whether a split on f may come below splits on the features of a path."""
        if self.interaction_cst is None:
            return True
        if self.interaction_cst == "no_interactions":
            return path <= {f}
        if self.interaction_cst == "pairwise":
            return len(path | {f}) <= 2
        named = set().union(*self.interaction_cst)
        sets = [*self.interaction_cst, set(range(d)) - named]
        return any(path | {f} <= together for together in sets)


@dataclass
class Limits:
    """What is in play in a round, for one output."""

    settings: Settings
    shop: Shop
    n: int
    d: int
    t: int | None = None  # the round; None if everything is in play
    k: int = 0

    def rows(self):
        s = self.settings
        if self.t is None or s.subsample == 1:
            return list(range(self.n))
        seed = scrambled(s.seed, 1, self.t)
        return [i for i in range(self.n) if lot_falls_on(i, seed, math.ceil(s.subsample * 2**53))]

    def features(self, node):
        s = self.settings
        free = {f for f in range(self.d) if self.shop.price(f, node.rows) == 0}
        allowed = {f for f in range(self.d) if s.may_follow(node.path, f, self.d)}
        if self.t is None:
            return allowed
        if self.t % s.shopping_interval != 0:
            return allowed & free
        dear = sorted(allowed - free)
        if isinstance(s.max_features, int):
            most = s.max_features
        else:
            most = max(1, round(s.max_features * len(dear)))
        seed = scrambled(scrambled(s.seed, 2, self.t), self.k, node.number)
        dear.sort(key=lambda f: (scrambled((seed + f) % 2**64), f))
        return allowed & free | set(dear[:most])


class NaiveTree:
    """Grows one tree on binned rows; ``codes[i][f]`` is a bin, ``n_bins[f]`` means missing."""

    def __init__(
        self, codes, n_bins, gradients, hessians, total_weight, settings, shop, tree_costs,
        limits=None,
    ):  # fmt: skip
        n = len(gradients)
        self.codes, self.n_bins, self.settings, self.shop = codes, n_bins, settings, shop
        self.limits = limits or Limits(settings, shop, n, len(n_bins))
        rows = self.limits.rows()
        self.total_weight = total_weight * (len(rows) / n)
        bits = min(30, 63 - 2 * n.bit_length())
        if hessians is None:
            self.g, self.g_step = on_grid(gradients, bits)
            self.h, self.h_step = [1] * n, 1.0
        else:
            self.g, self.g_step = on_grid(gradients, min(30, 62 - n.bit_length()))
            self.h, self.h_step = on_grid(hessians, bits)
        self.min_hessian = 1e-3 * total_weight / n
        self.tree_costs = tree_costs
        self.bought = []
        self.root = Node(rows, 0)
        shop.plant(rows)
        self.grow()

    def sums(self, rows):
        return sum(self.g[i] for i in rows), sum(self.h[i] for i in rows)

    def score(self, rows):
        g, h = self.sums(rows)
        g, h = g * self.g_step, h * self.h_step + self.settings.l2
        return g * g / h

    def gain(self, left, right):
        """Raw gain of a split, or None if it is not allowed."""
        both = self.allowed_score(left, right)
        if both is None:
            return None
        gain = 0.5 * (both - self.score(left + right))
        return gain if gain > 2.0**-40 * abs(both) else None

    def options(self, rows, f):
        """All splits of some rows on a feature: (left, right, cut, left codes, missing left)."""
        missing = [i for i in rows if self.codes[i][f] == self.n_bins[f]]
        known = [i for i in rows if self.codes[i][f] != self.n_bins[f]]
        if f in self.settings.categorical:
            yield from self.category_options(rows, f)
            return
        for cut in range(self.n_bins[f]):
            left = [i for i in known if self.codes[i][f] <= cut]
            right = [i for i in known if self.codes[i][f] > cut]
            if missing:
                yield left + missing, right, cut, None, True
                yield left, right + missing, cut, None, False
            else:
                yield left, right, cut, None, self.is_more_than_half(left, rows)

    def is_more_than_half(self, left, rows):
        """Whether the left child is the larger one, by its Hessians."""
        return 2 * self.sums(left)[1] >= self.sums(rows)[1]

    def category_options(self, rows, f):
        by_code = {}
        for i in rows:
            by_code.setdefault(self.codes[i][f], []).append(i)
        borrowed = (self.sums(rows)[1] * self.h_step) / 16

        def key(code):
            g, h = self.sums(by_code[code])
            stiffness = h * self.h_step + borrowed
            return (g * self.g_step / stiffness if stiffness > 0 else 0.0, code)

        order = sorted(by_code, key=key)
        for k in range(1, len(order)):
            left = [i for code in order[:k] for i in by_code[code]]
            right = [i for code in order[k:] for i in by_code[code]]
            many_left = self.is_more_than_half(left, rows)
            codes = {c for c in range(self.n_bins[f]) if c not in by_code and many_left}
            codes |= set(order[:k]) - {self.n_bins[f]}
            missing = self.n_bins[f]
            missing_left = missing in order[:k] if missing in by_code else many_left
            yield left, right, None, codes, missing_left

    def best_split(self, rows, f):
        best = None
        for left, right, cut, codes, missing_left in self.options(rows, f):
            if not left or not right:
                continue
            both = self.allowed_score(left, right)
            if both is not None and (best is None or both > best[0]):
                best = (both, left, right, cut, codes, missing_left)
        if best is None:
            return None
        gain = self.gain(best[1], best[2])
        return None if gain is None else (gain, *best[1:])

    def allowed_score(self, left, right):
        for side in (left, right):
            h = self.sums(side)[1]
            if len(side) < self.settings.min_samples_leaf or h <= 0:
                return None
            if h * self.h_step < self.min_hessian:
                return None
        return self.score(left) + self.score(right)

    def grow(self):
        level, n_leaves, n_nodes = [self.root], 1, 1
        while level and level[0].depth < self.settings.max_depth:
            d = len(self.n_bins)
            table = []
            for node in level:
                in_play = self.limits.features(node)
                row = [self.best_split(node.rows, f) if f in in_play else None for f in range(d)]
                table.append(row)
            open_nodes = set(range(len(level)))
            forbidden = set()
            while self.settings.max_leaf_nodes is None or n_leaves < self.settings.max_leaf_nodes:
                best = None
                for v in sorted(open_nodes):
                    for f in range(d):
                        if table[v][f] is None or (v, f) in forbidden:
                            continue
                        price = self.settings.tradeoff * self.shop.price(f, level[v].rows)
                        net = table[v][f][0] / self.total_weight - price
                        if net > 0 and (best is None or net > best[0]):
                            best = (net, v, f)
                if best is None:
                    break
                _, v, f = best
                if not self.shop.can_pay(f, level[v].rows, self.settings, self.tree_costs):
                    forbidden.add((v, f))
                    continue
                self.split(level[v], f, table[v][f])
                open_nodes.remove(v)
                n_leaves += 1
            level = [child for node in level if node.left for child in (node.left, node.right)]
            for child in level:
                child.number = n_nodes
                n_nodes += 1
        self.set_values(self.root)

    def split(self, node, f, found):
        gain, left, right, node.cut, node.left_codes, node.missing_left = found
        node.gain = gain / self.total_weight
        price = self.shop.buy(f, node.rows)
        if price is not None:
            self.bought.append((f, price))
        node.feature = f
        node.left = Node(sorted(left), node.depth + 1, path=node.path | {f})
        node.right = Node(sorted(right), node.depth + 1, path=node.path | {f})

    def set_values(self, node):
        g, h = self.sums(node.rows)
        stiffness = h * self.h_step + self.settings.l2
        best = -(g * self.g_step) / stiffness if stiffness > 0 else 0.0
        node.value = self.settings.learning_rate * best
        for child in (node.left, node.right):
            if child is not None:
                self.set_values(child)

    def leaf_of(self, codes, ask=None):
        node = self.root
        while node.left is not None:
            if ask is not None:
                ask(node.feature)
            code = codes[node.feature]
            if code == self.n_bins[node.feature]:
                go_left = node.missing_left
            elif node.left_codes is not None:
                go_left = code in node.left_codes
            else:
                go_left = code <= node.cut
            node = node.left if go_left else node.right
        return node


# -- Algorithm 1 ----------------------------------------------------------------------------------


@dataclass
class NaiveModel:
    edges: list
    baseline: list
    rounds: list = field(default_factory=list)  # one list of trees per round, one per output
    bought: list = field(default_factory=list)
    costs: list = field(default_factory=list)  # after every round, from round 0

    def raw_predict(self, X):
        out = [[b] * len(X) for b in self.baseline]
        for i, row in enumerate(X):
            codes = [bin_of(x, self.edges[f]) for f, x in enumerate(row)]
            for trees in self.rounds:
                for k, tree in enumerate(trees):
                    out[k][i] += tree.leaf_of(codes).value
        return np.array(out)


def boost(X, y, weight, edges, loss, settings, shop, max_iter, tree_cost=0.0):
    """Algorithm 1, with one tree per output and round."""
    n = len(y)
    codes = [[bin_of(x, edges[f]) for f, x in enumerate(row)] for row in X]
    n_bins = [len(e) + 1 for e in edges]
    total = float(n) if weight is None else math.fsum(weight)
    w = None if weight is None else np.asarray(weight, dtype=float)
    baseline = [float(b) for b in loss.prior(np.asarray(y, float), w)]
    model = NaiveModel(edges, baseline)
    K = len(baseline)
    raw = np.repeat(np.array(baseline)[:, None], n, axis=1)
    model.costs.append(shop.total(0.0))
    for t in range(max_iter):
        tree_costs = cost_of_trees(tree_cost, (t + 1) * K)
        if not shop.is_within(settings, tree_costs):
            break
        g, h = loss.gradients(np.asarray(y, float), raw if K > 1 else raw[0])
        g = np.reshape(g, (K, n))
        h = None if h is None else np.reshape(h, (K, n))
        if w is not None:
            g = g * w
            h = np.repeat(w[None], K, axis=0) if h is None else h * w
        for again in (False, True):  # if nothing pays, once more with everything in play
            trees = []
            for k in range(K):
                limits = Limits(settings, shop, n, len(n_bins), None if again else t, k)
                given = (codes, n_bins, g[k], None if h is None else h[k], total)
                tree = NaiveTree(*given, settings, shop, tree_costs, limits)
                if isinstance(shop, RowShop):  # also rows that were not drawn
                    for i in range(n):
                        tree.leaf_of(codes[i], lambda f, i=i: shop.ask(f, [i]))
                trees.append(tree)
            if any(tree.root.left is not None for tree in trees):
                break
        else:
            break
        if not shop.is_within(settings, tree_costs):
            break  # rows that were not drawn have been asked for more
        for k, tree in enumerate(trees):
            for i in range(n):
                raw[k, i] += tree.leaf_of(codes[i]).value
            model.bought += [(t, k, f, price) for f, price in tree.bought]
        model.rounds.append(trees)
        model.costs.append(shop.total(tree_costs))
    return model


# -- costs ----------------------------------------------------------------------------------------


def prices(resource_costs, needs, bought):
    """What each feature costs if the features in ``bought`` are paid for."""
    owned = {r for f in bought for r in needs[f]}
    return [sum_of_prices(resource_costs[r] for r in set(wanted) - owned) for wanted in needs]


def total(resource_costs, needs, features, tree_costs=0.0):
    """Equation 3."""
    owned = {r for f in features for r in needs[f]}
    return sum_of_prices([*(resource_costs[r] for r in owned), tree_costs])


# -- ranking --------------------------------------------------------------------------------------


def orders(scores):
    """All orders with the best score first: documents with equal scores in every order."""
    levels = sorted(set(scores), reverse=True)
    tied = [[i for i, s in enumerate(scores) if s == level] for level in levels]
    for choice in itertools.product(*(itertools.permutations(group) for group in tied)):
        yield [i for group in choice for i in group]


def dcg(labels, order, k):
    return sum((2 ** labels[i] - 1) / math.log2(rank + 2) for rank, i in enumerate(order[:k]))


def ndcg(labels, scores, k, no_relevant=1.0):
    """Expected NDCG@k of one query if ties are broken at random."""
    ideal = max(dcg(labels, order, k) for order in orders(labels))
    if ideal == 0:
        return no_relevant
    found = [dcg(labels, order, k) for order in orders(scores)]
    return math.fsum(found) / len(found) / ideal


def ndcg_with_shared_places(labels, scores, k):
    """The same, where each document gets the mean discount of those with its score."""
    n = len(labels)
    discount = [1 / math.log2(place + 2) if place < k else 0.0 for place in range(n)]
    found = []
    for i in range(n):
        above = sum(1 for s in scores if s > scores[i])
        equal = sum(1 for s in scores if s == scores[i])
        share = math.fsum(discount[above : above + equal]) / equal
        found.append((2 ** labels[i] - 1) * share)
    best = sorted(labels, reverse=True)
    ideal = math.fsum((2**label - 1) * d for label, d in zip(best, discount, strict=True))
    return math.fsum(found) / ideal if ideal else 1.0


def lambdas(labels, scores, truncation, sigma):
    """Gradients and Hessians of one query, pair by pair.

    Equal scores are ranked as badly as possible; documents with equal labels as well share places.
    """
    n = len(labels)
    ranked = sorted(range(n), key=lambda i: (-scores[i], labels[i]))
    places = {i: [] for i in range(n)}
    for i in range(n):
        for place, j in enumerate(ranked):
            if scores[j] == scores[i] and labels[j] == labels[i]:
                places[i].append(place)
    discount = [sum(1 / math.log2(p + 2) for p in places[i]) / len(places[i]) for i in range(n)]
    ideal = dcg(labels, sorted(range(n), key=lambda i: -labels[i]), truncation)
    g, h = [0.0] * n, [0.0] * n
    for i, j in itertools.permutations(range(n), 2):
        if labels[i] <= labels[j]:
            continue
        if min(places[i]) >= truncation and min(places[j]) >= truncation:
            continue
        swing = (2 ** labels[i] - 2 ** labels[j]) * abs(discount[i] - discount[j]) / ideal
        doubt = 1 / (1 + math.exp(sigma * (scores[i] - scores[j])))
        g[i] -= sigma * swing * doubt
        g[j] += sigma * swing * doubt
        h[i] += sigma**2 * swing * doubt * (1 - doubt)
        h[j] += sigma**2 * swing * doubt * (1 - doubt)
    return g, h


# -- scores ---------------------------------------------------------------------------------------


def predicted_class(outputs):
    """Class that is predicted of a row: the highest output, or of a single one its sign."""
    if len(outputs) == 1:
        return int(outputs[0] > 0)
    return max(range(len(outputs)), key=lambda k: (outputs[k], -k))


def weigh_classes(raw, codes, weight, n_classes):
    """Weight of the rows of which each class is predicted rightly, and of which it is predicted."""
    correct, named = [Fraction(0)] * n_classes, [Fraction(0)] * n_classes
    for i, code in enumerate(codes):
        k = predicted_class([output[i] for output in raw])
        named[k] += Fraction(weight[i])
        if k == code:
            correct[k] += Fraction(weight[i])
    return correct, named


def roc_auc(is_high, scores, weight):
    """How often a high row scores above a low one; half where they score the same."""
    won = pairs = Fraction(0)
    for i, j in itertools.product(range(len(scores)), repeat=2):
        if is_high[i] and not is_high[j]:
            pair = Fraction(weight[i]) * Fraction(weight[j])
            pairs += pair
            won += pair * Fraction((scores[i] > scores[j]) + (scores[i] >= scores[j]), 2)
    return won / pairs


def average_precision(is_high, scores, weight):
    """Mean over high rows of the share of high rows among those that score at least as much."""
    total = found = Fraction(0)
    for i in range(len(scores)):
        if is_high[i]:
            above = [j for j in range(len(scores)) if scores[j] >= scores[i]]
            right = sum(Fraction(weight[j]) for j in above if is_high[j])
            found += Fraction(weight[i]) * right / sum(Fraction(weight[j]) for j in above)
            total += Fraction(weight[i])
    return found / total


def sort_floats(values):
    """The lowest first, each as large as all before it: insertion."""
    found = []
    for value in values:
        at = sum(other <= value for other in found)
        found.insert(at, value)
    return found


def pairs_in_order(low, low_mass, high, high_mass):
    """Twice the mass of pairs with the high one above, and once where both are equal."""
    return sum(
        a * b * ((y > x) + (y >= x))
        for x, a in zip(low, low_mass, strict=True)
        for y, b in zip(high, high_mass, strict=True)
    )


def precision_steps(low, low_mass, low_unit, high, high_mass):
    """Mass of high rows at each of their values, from above, times the precision down to there."""
    steps = []
    for value in sorted(set(high), reverse=True):
        found = sum(b for y, b in zip(high, high_mass, strict=True) if y >= value)
        others = sum(a for x, a in zip(low, low_mass, strict=True) if x >= value)
        own = sum(b for y, b in zip(high, high_mass, strict=True) if y == value)
        steps.append(own * (found / (found + low_unit * others)))
    return steps


# -- losses ---------------------------------------------------------------------------------------


def pinball(values, weight, quantile, at):
    """Weighted pinball loss of a constant, times the sum of weights."""
    return math.fsum(
        w * (quantile * (v - at) if v > at else (1 - quantile) * (at - v))
        for v, w in zip(values, weight, strict=True)
    )


def weighted_quantile(values, weight, quantile):
    """Middle of all constants with the least pinball loss; some value is always among them."""
    losses = {v: pinball(values, weight, quantile, v) for v in values}
    least = min(losses.values())
    best = [v for v, loss in losses.items() if loss <= least + 1e-9 * (1 + abs(least))]
    return 0.5 * (min(best) + max(best))


# -- more binning ---------------------------------------------------------------------------------


def exact_quantile(values, weight, quantile):
    """``weighted_quantile`` from fractions that are rounded once; equal values in one step."""
    weight = [1.0] * len(values) if weight is None else weight
    mass = {}
    for x, w in zip(values, weight, strict=True):
        mass[float(x) + 0.0] = mass.get(float(x) + 0.0, 0) + Fraction(float(w))
    target = quantile * float(sum(mass.values()))
    below, share = Fraction(0), {}
    for x in sorted(mass):
        below += mass[x]
        share[x] = float(below)
    low = [x for x in share if share[x] >= target * (1 - 1e-12)] or [max(share)]
    high = [x for x in share if share[x] > target * (1 + 1e-12)] or [max(share)]
    return 0.5 * (low[0] + high[0]) + 0.0


def merge_equal(ordered, shares):
    """Distinct values of a sorted list with the sum of their shares; -0.0 is 0.0."""
    distinct = []
    for x in ordered:
        if x not in distinct:
            distinct.append(x + 0.0)
    mass = [
        sum(share for y, share in zip(ordered, shares, strict=True) if y == x) for x in distinct
    ]
    return distinct, mass


def code(words, feature_lane, row, feature):
    """Bin of one row on one feature: a byte of a word of a block of eight lanes."""
    lane = int(feature_lane[feature])
    return int(words[lane // 8][row]) >> (8 * (lane % 8)) & 255


# -- walking trees --------------------------------------------------------------------------------


def in_set(words, c):
    """Whether bit c is set in four words of 64 bits."""
    return int(words[c // 64]) >> (c % 64) & 1 == 1


def path_of(nodes, category_sets, row):
    """Nodes that a row of values passes; categories are whole numbers, NaN is missing."""
    path = [0]
    while nodes[path[-1]]["left"] >= 0:
        node = nodes[path[-1]]
        x = float(row[node["feature"]])
        if math.isnan(x):
            go_left = bool(node["missing_left"])
        elif node["category_set"] >= 0:
            go_left = in_set(category_sets[node["category_set"]], int(x))
        else:
            go_left = x <= node["threshold"]
        path.append(int(node["left"]) + (0 if go_left else 1))
    return path


def path_of_codes(nodes, category_sets, codes, n_bins):
    """Nodes that a row of bins passes; bin ``n_bins[f]`` is missing."""
    path = [0]
    while nodes[path[-1]]["left"] >= 0:
        node = nodes[path[-1]]
        f = node["feature"]
        if codes[f] == n_bins[f]:
            go_left = bool(node["missing_left"])
        elif node["category_set"] >= 0:
            go_left = in_set(category_sets[node["category_set"]], codes[f])
        else:
            go_left = codes[f] <= node["bin"]
        path.append(int(node["left"]) + (0 if go_left else 1))
    return path


def leaf_of(nodes, category_sets, row):
    """Leaf that a row of values reaches."""
    return path_of(nodes, category_sets, row)[-1]


def leaf_of_codes(nodes, category_sets, codes, n_bins):
    """Leaf that a row of bins reaches."""
    return path_of_codes(nodes, category_sets, codes, n_bins)[-1]


def raw_predict(baseline, trees, X):
    """Raw predictions (outputs, rows); tree t adds to output t modulo the number of outputs."""
    out = [[float(b)] * len(X) for b in baseline]
    for t, (nodes, category_sets) in enumerate(trees):
        for i, row in enumerate(X):
            out[t % len(baseline)][i] += float(nodes[leaf_of(nodes, category_sets, row)]["value"])
    return np.array(out).reshape(len(baseline), len(X))


def features_asked(nodes, category_sets, row):
    """Features that a row is asked for on its way down a tree, in order."""
    return [int(nodes[at]["feature"]) for at in path_of(nodes, category_sets, row)[:-1]]


def questions(trees, row, needs):
    """Trees and nodes that ask a row for resources it does not own, and what is new each time."""
    owned, found = set(), []
    for t, (nodes, category_sets) in enumerate(trees):
        for at in path_of(nodes, category_sets, row)[:-1]:
            new = set(needs[nodes[at]["feature"]]) - owned
            if new:
                found.append((t, at, new))
            owned |= new
    return found


def row_bill(trees, row, resource_costs, needs, tree_cost):
    """Resources that a row's own paths ask for, and what they and the trees cost it."""
    owned = set()
    for nodes, category_sets in trees:
        for f in features_asked(nodes, category_sets, row):
            owned |= set(needs[f])
    trees_paid = cost_of_trees(tree_cost, len(trees))
    return owned, sum_of_prices([*(resource_costs[r] for r in owned), trees_paid])


# -- an engine ------------------------------------------------------------------------------------


class PlainEngine(NaiveTree):
    """What an engine must answer, counted anew from single rows at every question."""

    def __init__(self, codes, n_bins, rules, categorical, grids):
        self.codes, self.n_bins, self.grids = codes, n_bins, grids
        self.settings = Settings(
            min_samples_leaf=rules.min_samples_leaf,
            l2=rules.l2_regularization,
            categorical=frozenset(categorical),
        )
        self.min_hessian = rules.min_hessian
        self.monotone = rules.monotonic_cst
        self.lower, self.upper, self.direction = -math.inf, math.inf, 0

    def begin(self, gradients, hessians):
        n = len(gradients)
        # Bits that a sum of all rows, or of a run of them, needs beside its terms.
        room = (n if n < self.grids.packed_rows else self.grids.run).bit_length()
        beside_count = min(self.grids.most_bits, 63 - 2 * room)
        if hessians is None:
            self.g, self.g_step = on_grid(gradients, beside_count)
            self.h, self.h_step = [1] * n, 1.0
        else:
            self.g, self.g_step = on_grid(gradients, min(self.grids.most_bits, 62 - room))
            self.h, self.h_step = on_grid(hessians, beside_count)
        self.rows = {0: list(range(n))}

    def best(self, node, f, lower=-math.inf, upper=math.inf):
        """Gain, left rows, right rows, cut, left codes and missing side; None if there is none."""
        self.lower, self.upper = lower, upper
        self.direction = 0 if self.monotone is None else self.monotone[f]
        return self.best_split(self.rows[node], f)

    def divide(self, node, left_child, left_rows):
        left = set(left_rows)
        self.rows[left_child] = [i for i in self.rows[node] if i in left]
        self.rows[left_child + 1] = [i for i in self.rows[node] if i not in left]

    def value(self, rows):
        """Best value of some rows inside the bounds."""
        g, h = self.sums(rows)
        best = -(g * self.g_step) / (h * self.h_step + self.settings.l2)
        return min(max(best, self.lower), self.upper)

    def score(self, rows):
        if self.monotone is None:
            return super().score(rows)
        g, h = self.sums(rows)
        g, h, v = g * self.g_step, h * self.h_step + self.settings.l2, self.value(rows)
        return -(2.0 * g * v + h * v * v)

    def allowed_score(self, left, right):
        both = super().allowed_score(left, right)
        if both is not None and (self.value(right) - self.value(left)) * self.direction < 0:
            return None
        return both


# -- loops over rows ------------------------------------------------------------------------------


def extremes(gradients, hessians):
    """Largest size of a gradient, largest size of a Hessian, and the least Hessian below 0."""
    return max(map(abs, gradients)), max(map(abs, hessians)), min(0.0, *hessians)


def weights_by_bit(bits, weights, rows):
    """Weight of some rows, and of those that have each of 64 bits."""
    having = [sum(weights[i] for i in rows if int(bits[i]) >> b & 1) for b in range(64)]
    return [sum(weights[i] for i in rows), *having]


def histogram(codes, rows, g, h, n_codes=256):
    """Sums of gradients and Hessians, and the number, of the rows with each code."""
    mine = [[i for i in rows if codes[i] == c] for c in range(n_codes)]
    return [(sum(g[i] for i in some), sum(h[i] for i in some), len(some)) for some in mine]


def energy(g, h):
    """Sum of g^2/h, without rows that have no gradient."""
    return math.fsum(a * a / b for a, b in zip(g, h, strict=True) if a)


# -- one level ------------------------------------------------------------------------------------


def settle(gains, shop, tradeoff, budget=None, tree_costs=0.0, room=math.inf):
    """Split the nodes of a level best first: what they split on, and what was bought in turn.

    ``gains[v][f]`` is a drop in mean loss. Every candidate is priced anew at every step.
    """
    chosen, bought, forbidden = {}, [], set()
    while len(chosen) < room:
        best = None
        for v, row in enumerate(gains):
            if v in chosen:
                continue
            for f, gain in enumerate(row):
                net = gain - tradeoff * shop.price(f)
                if f not in forbidden and net > 0 and (best is None or net > best[0]):
                    best = (net, v, f)
        if best is None:
            break
        _, v, f = best
        if budget is not None and shop.total_with(f, tree_costs) > budget:
            forbidden.add(f)
            continue
        chosen[v] = f
        if not set(shop.needs[f]) <= shop.owned:
            bought.append((f, shop.price(f)))
        shop.owned |= set(shop.needs[f])
    return chosen, bought


# -- early exits ----------------------------------------------------------------------------------


def place_score(scores, place):
    """Score of the document in this place; -inf if there are fewer."""
    ordered = sorted(scores, reverse=True)
    return ordered[place - 1] if len(ordered) >= place else -math.inf


def confident(scores, threshold):
    """Whether the most likely class of one row, given its raw scores, is likelier than this."""
    if len(scores) == 1:
        p = 1.0 / (1.0 + math.exp(-scores[0]))
        return max(p, 1.0 - p) > threshold
    weights = [math.exp(score - max(scores)) for score in scores]
    return max(weights) / sum(weights) > threshold


def too_far_below(scores, i, n_exits, slack, place=5):
    """Who leaves a query at the i-th exit (from 1): the proximity threshold, to the letter."""
    fifth = place_score(scores, place)
    margin = (n_exits - i) / (n_exits - 1) * slack
    return [score <= fifth - margin and score < fifth for score in scores]


def exits(baseline, trees, X, queries, every, leaves):
    """Walk rows through the trees and let them leave; raw scores, and the trees that each met.

    ``leaves(scores, i)`` says which rows of a query, given their raw scores, leave at exit i.
    """
    k = len(baseline)
    raw = [[float(b) for b in baseline] for _ in X]
    met = [0] * len(X)
    n_exits = -(-len(trees) // (every * k))
    for rows in queries:
        going = list(rows)
        for i in range(1, n_exits + 1):
            for t in range((i - 1) * every * k, min(i * every * k, len(trees))):
                nodes, category_sets = trees[t]
                for row in going:
                    leaf = leaf_of(nodes, category_sets, X[row])
                    raw[row][t % k] += float(nodes[leaf]["value"])
                    met[row] = t + 1
            if i < n_exits:
                gone = leaves([raw[row] for row in going], i)
                going = [row for row, out in zip(going, gone, strict=True) if not out]
    return raw, met


def features_of(trees):
    """Features that any of the trees splits on."""
    return {int(node["feature"]) for nodes, _ in trees for node in nodes if node["left"] >= 0}


# -- Cronus ---------------------------------------------------------------------------------------


def used_softly(square, power, softness):
    """Stand-in for "is it used", given the square of a norm of weights; 1 for a weight of 1."""
    at_zero = softness**power
    at_one = (1.0 + softness**2) ** (power / 2)
    return ((square + softness**2) ** (power / 2) - at_zero) / (at_one - at_zero)


def soft_bill(weights, k, tree_cost, resource_costs, tree_needs, power, softness):
    """Relaxed cost of stages 0 to k: every tree and every resource that any of them weighs."""
    bill = 0.0
    for t in range(len(weights[0])):
        square = sum(weights[j][t] ** 2 for j in range(k + 1))
        bill += tree_cost * used_softly(square, power, softness)
    for r, cost in enumerate(resource_costs):
        square = 0.0
        for t, needs in enumerate(tree_needs):
            if r in needs:
                square += sum(weights[j][t] ** 2 for j in range(k + 1))
        bill += cost * used_softly(square, power, softness)
    return bill


def soft_cascade(H, y, row_weights, weights, intercepts, thresholds, steepness, added, price, l1):
    """Cronus' objective as published: stage k adds ``added[k]`` to the cost of all that it sees."""
    n_stages = len(weights)
    loss, seen = 0.0, [0.0] * n_stages
    for h, target, row_weight in zip(H, y, row_weights, strict=True):
        reaches = 1.0
        for k in range(n_stages):
            score = intercepts[k] + sum(b * x for b, x in zip(weights[k], h, strict=True))
            seen[k] += row_weight * reaches
            passes = 0.0
            if k < n_stages - 1:
                passes = 1.0 / (1.0 + math.exp(-steepness * (score - thresholds[k])))
            loss += row_weight * reaches * (1.0 - passes) * 0.5 * (score - target) ** 2
            reaches *= passes
    cost = sum(share * bill for share, bill in zip(seen, added, strict=True))
    return loss + price * cost + l1 * sum(abs(b) for stage in weights for b in stage)


def hard_cascade(trees, X, weights, intercepts, thresholds):
    """Walk every row through every stage: its last score, its stage, and the trees that it met."""
    raw, left, met = [], [], []
    for row in X:
        outputs = [float(nodes[leaf_of(nodes, sets, row)]["value"]) for nodes, sets in trees]
        seen = set()
        for k, stage in enumerate(weights):
            seen |= {t for t, weight in enumerate(stage) if weight > 0}
            score = intercepts[k] + sum(b * h for b, h in zip(stage, outputs, strict=True))
            if k == len(weights) - 1 or not score > thresholds[k]:
                break
        raw.append(score)
        left.append(k)
        met.append(seen)
    return raw, left, met


def cascade_cost(scores, y, row_weights, bills, thresholds):
    """Mean loss and bill of rows that leave at hard thresholds, given their scores by stage."""
    total = 0.0
    for row, target, row_weight in zip(scores, y, row_weights, strict=True):
        for k, score in enumerate(row):
            if k == len(row) - 1 or not score > thresholds[k]:
                break
        total += row_weight * (0.5 * (score - target) ** 2 + bills[k])
    return total


# -- gates ----------------------------------------------------------------------------------------


def gate_tree(codes, is_set, seen, product, weight, learn, depth, least, n_bins):
    """Columns and bins that go left, by node, level by level, and the node of every row."""
    rows_of, splits = [list(range(len(product)))], [None]
    level = [0]
    for _ in range(depth):
        following = []
        for node in level:
            known = [i for i in rows_of[node] if learn[i]]
            splits[node] = best_gate_split(
                codes, is_set, seen, product, weight, known, least, n_bins
            )
            if splits[node] is not None:
                column, left = splits[node]
                following += [len(rows_of), len(rows_of) + 1]
                for side in (True, False):
                    rows = [i for i in rows_of[node] if (codes[column][i] in left) == side]
                    rows_of.append(rows)
                    splits.append(None)
        level = following
    node_of = [0] * len(product)
    for node, rows in enumerate(rows_of):  # children come later
        for i in rows:
            node_of[i] = node
    return splits, node_of


def best_gate_split(codes, is_set, seen, product, weight, rows, least, n_bins):
    """The column and the bins that go left; None where no division brings anything."""

    def sums(some):
        return sum(product[i] for i in some), sum(weight[i] for i in some), len(some)

    def square(some):
        return sums(some)[0] * sums(some)[0] / sums(some)[1]

    best, found = 1e-12 * sums(rows)[1], None
    for missing_left in (False, True):
        for column in seen:
            in_bin = [[i for i in rows if codes[column][i] == b] for b in range(n_bins)]
            if missing_left and not in_bin[-1]:
                continue
            order = list(range(n_bins - 1))
            if is_set[column]:
                order.sort(key=lambda b: sums(in_bin[b])[0] / max(sums(in_bin[b])[1], 1e-300))
            for n_left in range(1, n_bins):
                bins = [*order[:n_left], *([n_bins - 1] if missing_left else [])]
                left = [i for b in bins for i in in_bin[b]]
                right = [i for i in rows if i not in left]
                if min(len(left), len(right)) < least or min(sums(left)[1], sums(right)[1]) <= 0:
                    continue
                gain = square(left) + square(right) - square(rows)
                if gain > best:
                    if not in_bin[-1] and 2 * len(left) >= len(rows):
                        bins.append(n_bins - 1)
                    best, found = gain, (column, set(bins))
    return found


def best_band(scores, gains):
    """Largest sum of the gains of rows whose scores lie between two of the scores."""
    distinct = sorted(set(scores))
    return max(
        sum(g for s, g in zip(scores, gains, strict=True) if low <= s <= high)
        for low in distinct
        for high in distinct
        if low <= high
    )
