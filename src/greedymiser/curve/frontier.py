"""For every budget the best set of things to buy: a local search along the whole frontier.

Algorithm 1 buys greedily, one split at a time: it never finds out that one dear feature does what
several cheap ones cannot. Here whole *sets* of resources are compared. Each gets a model of its
own, trained without prices on the features that the set pays for, and its validation score. Sets
that no other beats (none is as cheap and scores as well) are the frontier, and every one of them is
*expanded* once: what could be bought in addition, what could be left out, what could be exchanged.
When nothing new comes onto the frontier, or the allowance of work is spent, the search ends.

Everything is deterministic: work is counted in cells of histograms, not in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from greedymiser.costs.cost_model import CostModel
from greedymiser.curve.candidates import Neighbourhood, ResourceBits, Shop
from greedymiser.curve.checkpoints import Trainer, TrainingCrew
from greedymiser.data.binning import LANES
from greedymiser.engines import Floats
from greedymiser.training.parameters import Parameters
from greedymiser.training.train import Model, make_grower, root_gains

# What a round costs beside counting, in cells of histograms.
ROUND_CELLS = 400_000
# What a search may cost, in fits of everything, and the models that it ends with; or so many cells
# if that is more: small data can be searched thoroughly in seconds.
FULL_FITS, FINAL_FITS, LEAST_CELLS = 0.75, 0.5, 1e10
# Rounds without improvement after which a fit of the search ends.
PATIENCE, LONG_PATIENCE = 10, 50
# The search takes steps of this length, three times the usual, and so a third of the rounds.
HURRY = 0.3
# Most fits of a search.
MOST_FITS = 400
# Most sets that get a place on the curve.
MOST_CHOSEN = 20
# Where training rows are few, sets are compared again by cross-fitting in so many folds: those of
# the frontier and of the frontiers behind it.
FOLDS, LAYERS, FOLDED_ROWS = 5, 3, 20_000
# Fits that are begun together. The same on any number of threads: what is tried next depends on it.
FITS_TOGETHER = 16


@dataclass
class Candidate:
    """A set of resources, and what became of a model that may use all of it."""

    resources: ResourceBits
    # Of the round with the best validation score.
    cost: float
    score: float
    # Resources that the model uses, and how much each feature gave.
    used: ResourceBits
    gains: Floats
    # Kept while the candidate is on the frontier.
    model: Model | None
    # Work that it took.
    cells: float
    is_expanded: bool = False


@dataclass
class Allowance:
    """Work that may still be done."""

    cells: float
    fits: int

    def __post_init__(self) -> None:
        self._all = self.cells, self.fits

    @property
    def is_spent(self) -> bool:
        return self.cells <= 0 or self.fits <= 0

    @property
    def share_spent(self) -> float:
        """How much of it is spent, from 0 to 1."""
        left = min(self.cells / self._all[0], self.fits / self._all[1])
        return 1.0 - max(left, 0.0)


class FrontierSearch:
    """An archive of sets of resources, and the search that fills it.

    Parameters
    ----------
    crew : TrainingCrew
        Trains models, several at a time, on data with validation rows.
    shop : Shop
        What can be bought.
    params : Parameters
        Of the estimator; its trade-off counts for nothing here.
    effort : float
        More than 1 for a longer search, less for a shorter one.
    tell : callable, optional
        Called after every fit with the share of the allowance that is spent.
    """

    def __init__(
        self,
        crew: TrainingCrew,
        shop: Shop,
        params: Parameters,
        effort: float = 1.0,
        tell: Callable[[float], object] | None = None,
    ):
        trainer, costs = crew.trainer, shop.costs
        self.shop = shop
        self.archive: dict[ResourceBits, Candidate] = {}
        self._trainer = trainer
        self._crew = crew
        self._final_params = replace(params, tradeoff=0.0, n_iter_no_change=LONG_PATIENCE)
        self._params = _in_a_hurry(self._final_params, costs)
        self._around = Neighbourhood(shop, effort)
        self._starts: dict[ResourceBits, None] = {}
        # Whether rows that the search has not seen were asked as well.
        self._is_honest = False
        # Where rows are many, luck plays no part in the choice.
        self._n_folds = FOLDS if trainer.prepared.rows.n_rows < FOLDED_ROWS else 0
        self._tell = tell
        self._block_of = np.argsort(np.argsort(costs.prices(), kind="stable")) // LANES
        full = self._cells(params.max_iter, np.ones(costs.n_features, dtype=bool))
        self._allowed_cells = effort * max(FULL_FITS * full, LEAST_CELLS)
        self.allowance = Allowance(self._allowed_cells, max(1, round(MOST_FITS * effort)))
        self._final_cells = effort * max(FINAL_FITS * full, LEAST_CELLS)

    # -- the search -------------------------------------------------------------------------------

    def run(self, starts: Iterable[ResourceBits]) -> None:
        """Search from some sets until nothing new comes, or the allowance is spent."""
        self.evaluate([0])
        gains = self._gains(self.archive[0])
        self.evaluate(self._around.singles(gains))
        self._starts = dict.fromkeys(starts)
        self.evaluate(self._starts)
        self.evaluate(self._around.pairs())
        while not self.allowance.is_spent:
            waiting = [found for found in self.frontier() if not found.is_expanded]
            if not waiting:
                return
            for candidate in waiting:
                if not self.allowance.is_spent and candidate.model is not None:
                    gains = self._gains(candidate)
                    around = self._around.neighbours(candidate.used, candidate.gains, gains)
                    self.evaluate(around)
                    candidate.is_expanded = True

    def chosen(self) -> list[Model]:
        """Models of the sets on the frontier, trained as the user wants them, the cheapest first.

        Where dear sets would cost more work than is left, they are left out: the path has them.
        """
        candidates = [found for found in self.judged() if found.resources]
        models = []
        for i in evenly_spaced([found.cost for found in candidates], MOST_CHOSEN):
            if self._final_cells > 0:
                models.append(self._finished(candidates[i]))
        return _without_luck(models) if self._is_honest else models

    def judged(self) -> list[Candidate]:
        """The frontier, by scores that do not flatter.

        Many sets were compared on the same validation rows, and the best of many is best by luck
        as well. The sets that are on the frontier or close to it are compared again on rows that
        have nothing to do with that choice: on training rows, by models that have not seen them.
        From the dearest to the cheapest, the best of those remains whose validation score does
        not say the opposite.
        """
        candidates = self._layers(LAYERS) if self._n_folds else []
        honest = self._cross_fitted(candidates) if candidates else []
        self._is_honest = len(honest) > 0
        if not self._is_honest:
            return self.frontier()
        order = sorted(range(len(candidates)), key=lambda i: (-honest[i], candidates[i].cost))
        kept: list[Candidate] = []
        for found in (candidates[i] for i in order):
            if not kept or (found.cost < kept[-1].cost and found.score < kept[-1].score):
                kept.append(found)
        return kept[::-1]

    def _layers(self, n: int) -> list[Candidate]:
        """The frontier, what the search began with, the frontier without both, and so on.

        As many of them as can be compared again with no more work than the search may cost.
        """
        left = dict(self.archive)
        found: list[Candidate] = []
        work = 0.0
        for number in range(n + 1):
            layer = pareto(left.values())
            if number == 1:
                layer = [left[resources] for resources in self._starts if resources in left]
            work += self._n_folds * sum(candidate.cells for candidate in layer)
            if work > self._allowed_cells:
                break
            found += layer
            for candidate in layer:
                del left[candidate.resources]
        return found

    def _cross_fitted(self, candidates: Sequence[Candidate]) -> list[float]:
        """Mean score of the training rows, by models that have not seen them.

        Nothing where the rows cannot be divided, or have no score.
        """
        allowed = [self.shop.features(found.resources) for found in candidates]

        def fold_scores(trainer: Trainer) -> tuple[list[Floats], int]:
            models = [trainer.train(self._params, may, is_patient=True) for may in allowed]
            assert trainer.prepared.validation is not None
            n_rows = len(trainer.prepared.validation.cases.y)
            return [model.validation_score for model in models], n_rows

        folds = self._crew.run_folds(fold_scores, self._n_folds, self._params)
        if not folds:
            return []
        traces, sizes = zip(*folds, strict=True)
        honest = [_best_mean(mine, sizes) for mine in zip(*traces, strict=True)]
        return honest if np.isfinite(honest).any() else []

    def _finished(self, candidate: Candidate) -> Model:
        allowed = self.shop.features(candidate.resources)
        model = self._trainer.train(self._final_params, allowed, is_patient=True)
        self._final_cells -= self._cells(model.n_iter, allowed)
        return model

    def frontier(self) -> list[Candidate]:
        """Candidates that no other beats, the cheapest first."""
        return pareto(self.archive.values())

    def evaluate(self, sets: Iterable[ResourceBits]) -> None:
        """Train a model for each set that is new and can be paid for."""
        new = [s for s in dict.fromkeys(sets) if s not in self.archive and self._is_affordable(s)]
        for start in range(0, len(new), FITS_TOGETHER):
            if self.allowance.is_spent:
                break
            some = [(resources,) for resources in new[start : start + FITS_TOGETHER]]
            for found in self._crew.run(self._fit, some):
                self.archive[found.resources] = found
                self.allowance.cells -= found.cells
                self.allowance.fits -= 1
            if self._tell is not None:
                self._tell(self.allowance.share_spent)
        kept = set(map(id, self.frontier()))
        for candidate in self.archive.values():
            if id(candidate) not in kept:
                candidate.model = None

    def _is_affordable(self, resources: ResourceBits) -> bool:
        budget = self._params.budget
        return budget is None or self.shop.price(resources) <= budget

    def _fit(self, trainer: Trainer, resources: ResourceBits) -> Candidate:
        allowed = self.shop.features(resources)
        model = trainer.train(self._params, allowed, is_patient=True)
        score = model.validation_score[model.best_iter]
        best = model.truncated(model.best_iter)
        ensemble, costs = best.ensemble, self.shop.costs
        return Candidate(
            resources,
            costs.total(ensemble.features, ensemble.n_trees),
            -math.inf if math.isnan(score) else float(score),
            self.shop.owned(ensemble.features),
            ensemble.importances(),
            best,
            self._cells(model.n_iter, allowed),
        )

    def _cells(self, n_rounds: int, allowed: NDArray[np.bool_]) -> float:
        """Work of a fit: cells of histograms, and something for every round."""
        lanes = LANES * len(np.unique(self._block_of[allowed]))
        per_tree = self._trainer.prepared.rows.n_rows * lanes * 2.0
        return n_rounds * self._trainer.start.ensemble.n_outputs * (per_tree + ROUND_CELLS)

    def _gains(self, candidate: Candidate) -> Floats:
        """What each feature could bring at the root of one more tree."""
        assert candidate.model is not None
        prepared = self._trainer.prepared
        gains = root_gains(prepared, make_grower(prepared, self._params, candidate.model))
        self.allowance.cells -= prepared.rows.n_rows * len(gains)
        return np.nan_to_num(gains, neginf=0.0)


def front(costs: Sequence[float], scores: Sequence[float]) -> list[int]:
    """Positions of those that no other beats (as cheap, and better), the cheapest first."""
    found: list[int] = []
    for i in sorted(range(len(costs)), key=lambda i: (costs[i], -scores[i])):
        if not found or scores[i] > scores[found[-1]]:
            found.append(i)
    return found


def pareto(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Those that no other beats, the cheapest first."""
    some = list(candidates)
    return [some[i] for i in front([c.cost for c in some], [c.score for c in some])]


def _in_a_hurry(params: Parameters, costs: CostModel) -> Parameters:
    """Fewer and longer steps, to compare sets by; not where every tree has its price."""
    params = replace(params, n_iter_no_change=PATIENCE)
    if costs.tree_cost > 0 or params.learning_rate >= HURRY:
        return params
    n_iter = math.ceil(params.max_iter * params.learning_rate / HURRY)
    return replace(params, learning_rate=HURRY, max_iter=max(n_iter, min(params.max_iter, 30)))


def _without_luck(models: Sequence[Model]) -> list[Model]:
    """Leave models out that validate better than a dearer one, which is known to be better."""
    kept: list[Model] = []
    for model in reversed(models):
        score = model.validation_score[model.best_iter]
        if not kept or score < kept[-1].validation_score[kept[-1].best_iter]:
            kept.append(model)
    return kept[::-1]


def _best_mean(traces: Sequence[Floats], sizes: Sequence[int]) -> float:
    """The best round of the mean of some traces; one that ended early stays where it was."""
    n = max(map(len, traces))
    longer = [np.append(trace, np.full(n - len(trace), trace[-1])) for trace in traces]
    return float(np.max(np.nan_to_num(np.average(longer, axis=0, weights=sizes), nan=-np.inf)))


def evenly_spaced(costs: Sequence[float], most: int) -> list[int]:
    """At most so many of some ascending costs, evenly spaced in their logarithm."""
    if len(costs) <= most:
        return list(range(len(costs)))
    place = np.log(np.maximum(costs, max(1e-3 * max(costs), 1e-300)))
    wanted = np.linspace(place[0], place[-1], most)
    return sorted({int(np.argmin(np.abs(place - w))) for w in wanted})
