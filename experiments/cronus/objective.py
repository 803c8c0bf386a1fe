"""What Cronus minimises: the loss and the cost with which rows leave a soft cascade.

A row leaves after stage k with a probability that is smooth in the weights and the thresholds, so
that both can be learned by their gradients. ``greedymiser.cascades.cronus`` has the method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from greedymiser._core.compiling import njit
from greedymiser._core.threads import Threads
from greedymiser.costs.cost_model import CostModel
from greedymiser.data.tables import Table
from greedymiser.model.trees import Ensemble

Floats = NDArray[np.float64]

# So many bytes of tree outputs are multiplied at a time: they are still in the second-level cache
# when the gradient needs them again.
BLOCK_BYTES = 2**20

# More tree outputs than this are kept in single precision.
MOST_DOUBLES = 2**25


@dataclass(frozen=True, eq=False)
class Cascade:
    """What is learned: K stages that each weigh the same T trees."""

    # (K, T): what stage k multiplies the output of tree t with; not negative, 1 as it was boosted.
    weights: Floats
    # (K,): what a stage's score begins with.
    intercepts: Floats
    # (K - 1,): a row goes on after a stage if its score there is above.
    thresholds: Floats

    @property
    def n_stages(self) -> int:
        return len(self.weights)

    def only(self, stages: Sequence[int]) -> Cascade:
        """The same without the other stages."""
        chosen = list(stages)
        return Cascade(self.weights[chosen], self.intercepts[chosen], self.thresholds[chosen[:-1]])

    def flat(self) -> Floats:
        """All numbers in one vector."""
        return np.concatenate([self.weights.ravel(), self.intercepts, self.thresholds])

    def like(self, flat: Floats) -> Cascade:
        """A cascade of the same shape, from the numbers that ``flat`` gives."""
        weights, intercepts, thresholds = np.split(
            flat, [self.weights.size, self.weights.size + self.n_stages]
        )
        return Cascade(weights.reshape(self.weights.shape), intercepts, thresholds)


class TreeOutputs:
    """The matrix H: what every tree says about every row, shape (n, T).

    It is made and multiplied in blocks of rows that are the same for any number of threads, and
    sums over blocks are taken in their order: results do not depend on the number of threads.
    """

    def __init__(self, matrix: NDArray[np.floating], threads: Threads):
        self.matrix = matrix
        self.threads = threads
        n, n_trees = matrix.shape
        step = max(64, BLOCK_BYTES // (matrix.itemsize * max(1, n_trees)))
        self.blocks = [(start, min(start + step, n)) for start in range(0, n, step)]

    @classmethod
    def of(cls, ensemble: Ensemble, table: Table, threads: Threads) -> TreeOutputs:
        n, n_trees = table.n_rows, ensemble.n_trees
        dtype = np.float64 if n * n_trees <= MOST_DOUBLES else np.float32
        outputs = cls(np.empty((n, n_trees), dtype=dtype), threads)
        serving, features = ensemble.serving, ensemble.features

        def fill(start: int, stop: int) -> None:
            # Tree t adds to output t % n_outputs: with as many outputs as trees, each has its own.
            apart = np.zeros((n_trees, stop - start))
            serving.add(table.rows(start, stop, features), apart, 0, n_trees)
            outputs.matrix[start:stop] = apart.T

        threads.run(fill, outputs.blocks)
        return outputs

    def scores(self, cascade: Cascade) -> Floats:
        """Score of every row in every stage, shape (n, K)."""
        scores = np.empty((len(self.matrix), cascade.n_stages))
        weights = cascade.weights.T.astype(self.matrix.dtype)

        def score(start: int, stop: int) -> None:
            scores[start:stop] = self.matrix[start:stop] @ weights + cascade.intercepts

        self.threads.run(score, self.blocks)
        return scores

    def mean_squares(self, weight: Floats) -> Floats:
        """Mean square of each tree's outputs, shape (T,), with weights that sum to 1."""

        def add(start: int, stop: int) -> Floats:
            block = self.matrix[start:stop].astype(np.float64)
            return weight[start:stop] @ block**2

        return np.sum(self.threads.run(add, self.blocks), axis=0)


@dataclass(frozen=True, eq=False)
class Tolls:
    """What the trees of an ensemble cost: e per tree, c_r per resource that any of them needs."""

    tree_cost: float
    # (R,): costs of the resources. (R, T), sparse: the paper's F, 1 where tree t needs resource r.
    resource_costs: Floats
    needs: Any

    @classmethod
    def of(cls, ensemble: Ensemble, costs: CostModel) -> Tolls:
        pairs = {
            (resource, t)
            for t in range(ensemble.n_trees)
            for feature in ensemble.tree(t).features
            for resource in costs.needs[feature]
        }
        resource, tree = np.array(sorted(pairs), dtype=np.intp).reshape(-1, 2).T
        used, row = np.unique(resource, return_inverse=True)
        shape = (len(used), ensemble.n_trees)
        needs = sparse.csr_array((np.ones(len(row)), (row, tree)), shape=shape)
        return cls(costs.tree_cost, costs.resource_costs[used], needs)

    def paid(self, weights: Floats) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Trees (K, T) and resources (K, R) that a row has paid for by the end of each stage."""
        trees = np.logical_or.accumulate(weights > 0, axis=0)
        return trees, (self.needs @ trees.T.astype(np.float64)).T > 0

    def bills(self, weights: Floats) -> Floats:
        """What a row pays that leaves after each stage, shape (K,): the true cost (eq. 3)."""
        trees, resources = self.paid(weights)
        return self.tree_cost * trees.sum(axis=1) + resources @ self.resource_costs

    def free(self, weights: Floats) -> NDArray[np.bool_]:
        """(K, T): trees that a stage may use at no cost beyond what its rows have paid."""
        trees, resources = self.paid(weights)
        if self.tree_cost > 0:
            return trees
        missing = np.where(resources, 0.0, self.resource_costs)
        return missing @ self.needs == 0


@dataclass(frozen=True)
class Relaxation:
    """A smooth stand-in for "is it used at all", given the square z of a norm of weights.

        φ(z) = ((z + ε²)^(p/2) - ε^p) / ((1 + ε²)^(p/2) - ε^p),    φ(0) = 0,  φ(1) = 1

    With p = 1 and ε = 0 it is √z, the mixed norm of Cronus. The smaller p, the less it depends on
    how large the weights are: near p = 0 it counts, as eq. 3 does. It is concave in z, so that
    its tangent at any z₀ lies above it; for √z, that tangent is Cronus' z/2γ + γ/2 with γ = √z₀.
    """

    # The p above, in (0, 1].
    power: float
    # The ε above, positive: how small weights must be to look unused.
    softness: float

    def value(self, squares: Floats) -> Floats:
        """φ."""
        p, floor = self.power, self.softness**2
        return ((squares + floor) ** (p / 2) - floor ** (p / 2)) / self._unit

    def slope(self, squares: Floats) -> Floats:
        """Derivative of φ."""
        p, floor = self.power, self.softness**2
        return (p / 2) * (squares + floor) ** (p / 2 - 1) / self._unit

    @property
    def _unit(self) -> float:
        p, floor = self.power, self.softness**2
        return float((1 + floor) ** (p / 2) - floor ** (p / 2))


def relaxed_bills(weights: Floats, tolls: Tolls, relaxation: Relaxation) -> Floats:
    """What a row pays that leaves after stage k, shape (K,), if "used" is not yes or no.

        C_k = e Σ_t φ(z_kt) + Σ_r c_r φ(Σ_t F_rt z_kt)    with    z_kt = Σ_{j<=k} (β_t^j)²

    What an earlier stage uses is in the squares of all later ones, and so costs them little more.
    """
    of_trees = np.cumsum(weights**2, axis=0)
    of_resources = (tolls.needs @ of_trees.T).T
    trees = tolls.tree_cost * relaxation.value(of_trees).sum(axis=1)
    return trees + relaxation.value(of_resources) @ tolls.resource_costs


@dataclass(frozen=True, eq=False)
class Charges:
    """Bills that are quadratic in the weights: C_k = ½ Σ_t pull_kt z_kt + rest_k."""

    # (K, T) and (K,).
    pull: Floats
    rest: Floats

    @classmethod
    def touching(cls, weights: Floats, tolls: Tolls, relaxation: Relaxation) -> Charges:
        """The tangents of the relaxed bills: equal at these weights, above at all others."""
        of_trees = np.cumsum(weights**2, axis=0)
        of_resources = (tolls.needs @ of_trees.T).T
        resources = tolls.resource_costs * relaxation.slope(of_resources)
        pull = 2.0 * (tolls.tree_cost * relaxation.slope(of_trees) + resources @ tolls.needs)
        rest = relaxed_bills(weights, tolls, relaxation) - 0.5 * (pull * of_trees).sum(axis=1)
        return cls(pull, rest)

    @classmethod
    def fixed(cls, bills: Floats, n_trees: int) -> Charges:
        """Bills that do not depend on the weights."""
        return cls(np.zeros((len(bills), n_trees)), bills)

    def bills(self, weights: Floats) -> Floats:
        """C_k, shape (K,)."""
        return 0.5 * (self.pull * np.cumsum(weights**2, axis=0)).sum(axis=1) + self.rest

    def curvature(self, mass: Floats) -> Floats:
        """Second derivatives of Σ_k mass_k C_k, shape (K, T): β_t^j is in z_kt for all k >= j."""
        return np.cumsum((mass[:, None] * self.pull)[::-1], axis=0)[::-1]


@dataclass(frozen=True, eq=False)
class Expected:
    """Value and gradient of the objective, and the share of rows that leaves after each stage."""

    value: float
    gradient: Cascade
    mass: Floats


@dataclass(frozen=True, eq=False)
class Objective:
    """Mean over rows of the loss and the cost with which they leave, and an l1 penalty.

    A row passes stage k with probability σ_k = sigmoid(steepness (s_k - θ_k)), where s_k is its
    score there; it leaves after stage k with probability q_k = Π_{j<k} σ_j (1 - σ_k), and after
    the last with all that is left. Minimised is

        Σ_i w_i Σ_k q_ik (½ (s_ik - y_i)² + λ C_k) + ρ Σ_k |β^k|_1

    This is Cronus' objective. There, stage k adds C_k - C_{k-1} to the bills of the share
    d_k = Σ_i w_i Π_{j<k} σ_ij of the rows that reach it. With C_0 = 0 and d_{K+1} = 0, the sum
    telescopes into what rows have paid when they leave:

        Σ_k d_k (C_k - C_{k-1}) = Σ_k (d_k - d_{k+1}) C_k = Σ_i w_i Σ_k q_ik C_k

    No q_ik is negative, so what bounds every C_k from above bounds the objective: the roots with
    a minus sign in C_k - C_{k-1}, which a tangent would bound from the wrong side, are gone.
    """

    outputs: TreeOutputs
    y: Floats
    # Sum to 1.
    weight: Floats
    charges: Charges
    tradeoff: float
    l1: float
    steepness: float

    def __call__(self, cascade: Cascade) -> Expected:
        """Value and gradient in one pass over the tree outputs, O(n T K)."""
        matrix, n_stages = self.outputs.matrix, cascade.n_stages
        tolls = self.tradeoff * self.charges.bills(cascade.weights)
        weights = cascade.weights.T.astype(matrix.dtype)

        def walk(start: int, stop: int) -> tuple[NDArray[np.floating], Floats]:
            block = matrix[start:stop]
            scores = (block @ weights).astype(np.float64) + cascade.intercepts
            totals = np.zeros((4, n_stages))
            leave_softly(
                scores, self.y[start:stop], self.weight[start:stop], cascade.thresholds,
                self.steepness, tolls, totals,
            )  # fmt: skip
            return scores.T.astype(matrix.dtype) @ block, totals

        slopes, totals = np.zeros(cascade.weights.shape), np.zeros((4, n_stages))
        for slope, total in self.outputs.threads.run(walk, self.outputs.blocks):
            slopes += slope
            totals += total
        values, mass, of_intercepts, of_thresholds = totals
        slopes += self.tradeoff * cascade.weights * self.charges.curvature(mass) + self.l1
        value = float(values.sum() + self.l1 * cascade.weights.sum())
        return Expected(value, Cascade(slopes, of_intercepts, of_thresholds[:-1]), mass)


@njit(cache=True, nogil=True)
def leave_softly(  # type: ignore[no-untyped-def]
    scores, y, weight, thresholds, steepness, tolls, totals
):
    """Expected loss and toll of rows in a soft cascade; scores become their derivatives.

    Let a_k be what a row pays, in loss and toll, if it leaves after stage k. Once there, it has to
    expect V_k = (1 - σ_k) a_k + σ_k V_{k+1}, and V_K = a_K; its share of the objective is V_1. So
    ∂V_1/∂σ_k = Π_{j<k} σ_j (V_{k+1} - a_k), and ∂V_1/∂a_k = q_k.

    in: y, weight (n,), thresholds (K - 1,), tolls (K,)
    in and out: scores (n, K)
    out, added to: totals (4, K): in the first row the value, then the mass that leaves after each
    stage, and the derivatives with respect to intercepts and thresholds
    """
    n_stages, one = np.uint64(scores.shape[1]), np.uint64(1)
    last = n_stages - one
    # σ_k, and V_{k+1} - a_k: what going on costs more than leaving.
    passing, more = np.ones(n_stages), np.zeros(n_stages)
    for i in range(np.uint64(scores.shape[0])):
        expected = 0.5 * (scores[i, last] - y[i]) ** 2 + tolls[last]
        for back in range(last):
            j = last - one - back
            here = 0.5 * (scores[i, j] - y[i]) ** 2 + tolls[j]
            # The sigmoid, as it cannot overflow.
            passing[j] = 0.5 + 0.5 * np.tanh(0.5 * steepness * (scores[i, j] - thresholds[j]))
            more[j] = expected - here
            expected = here + passing[j] * more[j]
        totals[0, 0] += weight[i] * expected
        reaching = weight[i]
        for k in range(n_stages):
            leaving, turning = reaching, 0.0
            if k < last:
                leaving = reaching * (1.0 - passing[k])
                turning = steepness * leaving * passing[k] * more[k]
                reaching *= passing[k]
                totals[3, k] -= turning
            slope = leaving * (scores[i, k] - y[i]) + turning
            scores[i, k] = slope
            totals[1, k] += leaving
            totals[2, k] += slope
