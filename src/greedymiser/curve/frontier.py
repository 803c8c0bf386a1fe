"""For every budget the best set of things to buy: a local search along the whole frontier.

Algorithm 1 buys greedily, one split at a time: it never sees that one expensive feature does what
several cheap ones cannot. Here whole *sets* of resources are compared. Each gets a model of its
own, trained without prices on the features that the set pays for, and its validation score. Sets
that no other beats (none is as cheap and scores as well) are the frontier, and every one of them is
*expanded* once: what could be bought in addition, what could be left out, what could be exchanged.
When nothing new comes onto the frontier, or the allowance of work is spent, the search ends.

Everything is deterministic: work is counted in cells of histograms, not in seconds.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from greedymiser.cascades.candidates import FoldModels, front
from greedymiser.cascades.gated import gated_candidates
from greedymiser.curve.candidates import Neighbourhood, ResourceBits, ResourceSets
from greedymiser.curve.models import CurveModels, FittedCandidate, best_cost
from greedymiser.curve.path import TradeoffPath
from greedymiser.curve.total_cost import total_cost_candidate
from greedymiser.curve.trainer import LONG_PATIENCE, Opening, Rival, Trainer, TrainerPool
from greedymiser.data.binning import LANES
from greedymiser.engines.interface import Floats
from greedymiser.estimators import BudgetWarning
from greedymiser.scoring import TOTAL_COST
from greedymiser.training.boosting import Record
from greedymiser.training.parameters import Parameters
from greedymiser.training.train import Model, make_grower, root_gains

# Where rows pay, the part of the work that the search takes as if all paid alike.
FLAT_SHARE = 0.4

# What a round costs beside counting, in cells of histograms.
ROUND_CELLS = 400_000
# What a search may cost, in fits of everything, and the models that it ends with; or so many cells
# if that is more: small data can be searched thoroughly in seconds.
FULL_FITS, FINAL_FITS, LEAST_CELLS = 0.5, 0.5, 1e10
# Most fits of a search, rounds without improvement after which one of them ends, and folds of the
# training rows by which sets are compared again. Where rows are few, scores are uncertain, and it
# takes more to find and to tell the best; the second numbers are for so many rows and more.
ENOUGH_ROWS = 6_000
MOST_FITS, PATIENCE, FOLDS = (400, 300), (10, 6), (5, 3)
# How much of the allowance may be spent after single purchases (but not fewer than a dozen), after
# packages, after the sets of the path and after pairs: the rest is for expansion.
SINGLES_SHARE, PACKAGES_SHARE, STARTS_SHARE, PAIRS_SHARE = 0.15, 0.5, 0.6, 0.7
MOST_SINGLES, LEAST_SINGLES = 64, 12
# Rounds that a fit of the search is thought to take.
USUAL_ROUNDS = 30
# The search takes steps of this length, three times the usual, and so a third of the rounds; and
# no more trees than this where classes are many, but at least so many rounds.
FAST_RATE, FAST_TREES, LEAST_ROUNDS = 0.3, 150, 15
# Below so many training rows, sets are compared again by cross-fitting: those of the frontier and
# of the frontiers behind it, with so much of the work that the search may take.
FOLDED_ROWS, LAYERS, FOLDS_SHARE = 20_000, 3, 0.6
# Sets behind the frontier by more than so many times what cross-fitting usually changes between
# neighbours are not compared again.
MOST_CHANGES = 1.5
# A more expensive set must be better by so many standard errors of the folds' differences. One that
# includes the other must only not be worse by more than so many: its models may leave out what is
# of no use, and so it is luck if they score less.
NOISE, LUCK_OF_PARTS = 0.5, 1.0
# Of what can be gained by spending, what a step of the frontier must bring; and how many steps are
# compared again and get a model: others may fill a gap, when somebody asks for a budget in it.
LEAST_STEP, MOST_STEPS = 0.002, 24
# Of what the best set gains over a constant, what a fit must be behind to be given up; the second
# is divided by the root of the number of validation rows (of queries, where rows have some).
LEAST_LUCK, LUCK = 0.002, 0.5
# Nobody asks how well a fit of the search learned its own rows.
SHORT_RECORD = Record(train_loss=False)
# Fits that are begun together. The same on any number of threads: what is tried next depends on it.
FITS_TOGETHER = 16

_Difference = TypeVar("_Difference", float, Floats)

# Sets of the path that the search starts from, and rounds of the fits under hard budgets that
# suggest more of them.
MOST_STARTS, BUDGETED, BUDGETED_ROUNDS = 16, 6, 12

# Where rows pay and there are no gates: sets of the frontier that count as paid, and trade-offs
# beyond each of them, in terms of the one at which nothing pays at the first root.
MOST_OPENINGS, BEYOND = 12, (4.0, 1.0, 0.25, 0.0625)
# Where rows pay, more trade-offs are tried, and models that are best by their validation rows are
# cross-fitted: as many as take so much of the work of a search, and no more than this.
MORE_SHARE, MOST_TRADEOFFS, MOST_RIVALS = 0.05, 40, 40

# What filling a gap may take of the effort of a search. A gap is searched where the next model
# costs more than so many times as much, or where its share of the area of all gaps (score step ×
# log width) is larger than this.
FILL_EFFORT, WIDE_GAP, LARGE_GAP = 0.1, 1.25, 0.005


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
    # Validation scores after every round, and the best so far up to the last that improved it.
    trace: Floats = field(default_factory=lambda: np.empty(0))
    best: Floats = field(default_factory=lambda: np.empty(0))
    is_expanded: bool = False
    # Mean scores of the folds of the training rows after every round, by models that have not seen
    # them; those of each fold in the round that folds and validation rows like best; and the models
    # up to there, where somebody wants them.
    fold_trace: Floats | None = None
    fold_scores: Floats | None = None
    # What to add to ``score`` to get the score of that round that the set is chosen by.
    shift: float | None = None
    fold_models: Sequence[Model] = ()


@dataclass(frozen=True)
class FlatModel:
    """A set of the frontier with its model, trained as the user wants it, without prices."""

    resources: ResourceBits
    model: Model
    # At the best round; the cost is what everybody pays who is asked for all that the model uses.
    cost: float
    score: float
    # What to add to validation scores after every round to get those that it is chosen by.
    shifts: Floats

    @property
    def shift(self) -> float:
        """The same at the best round."""
        return float(self.shifts[self.model.best_iter])


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

    def cells_until(self, share: float) -> float:
        """Cells that are left until so much of the allowance is spent; nothing without fits."""
        if self._all[1] - self.fits >= share * self._all[1]:
            return 0.0
        return self.cells - (1.0 - share) * self._all[0]

    @property
    def share_spent(self) -> float:
        """How much of it is spent, from 0 to 1."""
        left = min(self.cells / self._all[0], self.fits / self._all[1])
        return 1.0 - max(left, 0.0)


class FrontierSearch:
    """An archive of sets of resources, and the search that fills it.

    Parameters
    ----------
    pool : TrainerPool
        Trains models, several at a time, on data with validation rows.
    sets : ResourceSets
        What can be bought.
    params : Parameters
        Of the estimator; its trade-off counts for nothing here.
    starts : iterable of sets
        Sets to begin with, beside single purchases.
    effort : float
        More than 1 for a longer search, less for a shorter one.
    counts_costs : bool
        Whether costs count in the score: then more is not as good as less.
    """

    def __init__(
        self,
        pool: TrainerPool,
        sets: ResourceSets,
        params: Parameters,
        starts: Iterable[ResourceBits] = (),
        effort: float = 1.0,
        counts_costs: bool = False,
    ):
        trainer, costs = pool.trainer, sets.costs
        self.sets = sets
        self.archive: dict[ResourceBits, Candidate] = {}
        # Sets that are tried must cost more and less than this.
        self.above, self.below = -math.inf, math.inf
        # Whether models of folds are kept: cascades are made of them.
        self.keeps_folds = False
        # Sets of the frontier that there was no work left for.
        self.left_out: list[Candidate] = []
        # What the short steps of finished models bring; None until some are finished.
        self._gain: float | None = None
        self._counts_costs = counts_costs
        self._trainer = trainer
        self._pool = pool
        self._final_params = replace(params, tradeoff=0.0, n_iter_no_change=LONG_PATIENCE)
        n_rows = trainer.prepared.rows.n_rows
        self._is_large = n_rows >= ENOUGH_ROWS
        self._n_folds = FOLDS[self._is_large] if n_rows < FOLDED_ROWS else 0
        self._params = self._faster(self._final_params)
        self._around = Neighbourhood(sets, effort)
        self._everything = sets.owned(range(sets.costs.n_features))
        self._starts = dict.fromkeys(starts)
        self._has_begun = False
        assert trainer.prepared.validation is not None
        cases = trainer.prepared.validation.cases
        n_cases = len(cases.y) if cases.starts is None else len(cases.starts) - 1
        self._luck = LEAST_LUCK + LUCK / math.sqrt(n_cases)
        self._block_of = np.argsort(np.argsort(costs.prices(), kind="stable")) // LANES
        self._full = self._cells(params.max_iter, np.ones(costs.n_features, dtype=bool))
        self._allow(effort)

    @property
    def n_more_tradeoffs(self) -> int:
        """Trade-offs for which there is time where rows pay."""
        return min(int(MORE_SHARE * self._allowed_cells / self._full), MOST_TRADEOFFS)

    @property
    def n_rivals(self) -> int:
        """Models whose rows pay that there is time to cross-fit."""
        everything = np.ones(self.sets.costs.n_features, dtype=bool)
        cells = (self._n_folds + 1) * self._cells(USUAL_ROUNDS, everything)
        return min(int(MORE_SHARE * self._allowed_cells / cells), MOST_RIVALS)

    @property
    def _tries_everything(self) -> bool:
        """Whether all resources together are compared in any case: few rows, and time enough."""
        return self._mistrusts_rounds and self.n_rivals > 0

    @property
    def _mistrusts_rounds(self) -> bool:
        """Whether validation rows are too few to choose a round, or a part of a set, by themselves.

        Where costs count in the score, a part is better for being cheaper.
        """
        return not self._is_large and not self._counts_costs

    def _allow(self, effort: float) -> None:
        self._allowed_cells = effort * max(FULL_FITS * self._full, LEAST_CELLS)
        self.allowance = Allowance(
            self._allowed_cells, max(1, round(MOST_FITS[self._is_large] * effort))
        )
        self._final_cells = effort * max(FINAL_FITS * self._full, LEAST_CELLS)

    # -- the search -------------------------------------------------------------------------------

    def run(self) -> None:
        """Search until nothing new comes, or the allowance is spent."""
        self._begin()
        self._expand(_most_for_work)

    def _begin(self) -> None:
        """Try the sets that expansion starts from."""
        self.evaluate([0])
        gains = self._gains(self.archive[0])
        self.evaluate(self._around.singles(gains, self._n_singles()))
        self._eliminate(PACKAGES_SHARE)
        self.evaluate(self._starts, STARTS_SHARE)
        if self._tries_everything:
            self.evaluate([self._everything], STARTS_SHARE, has_rivals=False)
        self.evaluate(self._around.pairs(), PAIRS_SHARE)
        self._has_begun = not self.allowance.is_spent

    def resumed(self, above: float, below: float, effort: float) -> FrontierSearch:
        """A further search from what this one has found, among sets that cost so much.

        The most expensive sets are expanded first. This search stays as it is.
        """
        search = FrontierSearch(
            self._pool, self.sets, self._final_params, self._starts, effort, self._counts_costs
        )
        search.archive = {key: replace(candidate) for key, candidate in self.archive.items()}
        search.above, search.below = above, below
        search._gain = self._gain
        search._around.chains = {of: list(parts) for of, parts in self._around.chains.items()}
        search._has_begun, search.folds = self._has_begun, self.folds
        return search

    def go_on(self) -> None:
        """Expand what is not expanded yet, the most expensive first."""
        if not self._has_begun:
            above, self.above = self.above, -math.inf
            self._begin()
            self.above = above
        self._expand(_dearest_first)

    def _n_singles(self) -> int:
        one = np.zeros(self.sets.costs.n_features, dtype=bool)
        one[:1] = True
        affordable = SINGLES_SHARE * self.allowance.cells / self._cells(USUAL_ROUNDS, one)
        return max(LEAST_SINGLES, min(int(affordable), MOST_SINGLES))

    def _eliminate(self, share: float) -> None:
        """Reduce every package step by step to what its own models make most of."""
        left = {package: package for package in self.sets.packages}
        while left and self.allowance.share_spent < share:
            # What is left of a package depends on its model, so that none is given up.
            self.evaluate(left.values(), share, has_rivals=False)
            following = {}
            for package, part in left.items():
                candidate = self.archive.get(part)
                if candidate is None:  # beyond the budget, or the allowance: a smaller part may do
                    continue
                self._around.chains.setdefault(package, []).append(candidate.used)
                following[package] = self._around.smaller(candidate.used, candidate.gains)
            # What several bundles need may be all that is left: then nothing becomes smaller.
            left = {
                package: part
                for package, part in following.items()
                if part and part != left[package]
            }

    def _expand(self, order: Callable[[list[Candidate]], list[Candidate]]) -> None:
        """Expand sets of the frontier until all are, or the allowance is spent."""
        while not self.allowance.is_spent:
            front = [candidate for candidate in self.frontier() if candidate.cost < self.below]
            waiting = [one for one in order(front) if not one.is_expanded and one.model]
            if not waiting:
                return
            candidate = waiting[0]
            gains = self._gains(candidate)
            self.evaluate(self._around.neighbours(candidate.used, candidate.gains, gains))
            candidate.is_expanded = True

    def frontier(self) -> list[Candidate]:
        """Candidates that no other beats, the cheapest first."""
        return pareto(self.archive.values())

    def evaluate(
        self, sets: Iterable[ResourceBits], share: float = 1.0, has_rivals: bool = True
    ) -> None:
        """Train a model for each set that is new and can be paid for.

        Ends when so much of the allowance is spent. Fits are given up that fall behind what is
        known and costs no more, unless they have no rivals.
        """
        new = [s for s in dict.fromkeys(sets) if s not in self.archive and self._is_affordable(s)]
        while new:
            left = self.allowance.cells_until(share)
            if left <= 0:
                break
            some = self._next(new, left, USUAL_ROUNDS)
            rivals = self.frontier() if has_rivals else []
            tasks = [(resources, self._rival(resources, rivals)) for resources in some]
            for candidate in self._pool.run(self._fit, tasks):
                self.archive[candidate.resources] = candidate
                self.allowance.cells -= candidate.cells
                self.allowance.fits -= 1
            self._trainer.phases.reached(self.allowance.share_spent)
        best = set(map(id, self.frontier()))
        for candidate in self.archive.values():
            if id(candidate) not in best:
                candidate.model = None

    def _next(self, waiting: list[ResourceBits], cells: float, n_rounds: int) -> list[ResourceBits]:
        """Take sets away from those that wait: as many as are likely to take no more work."""
        some: list[ResourceBits] = []
        while waiting and len(some) < FITS_TOGETHER and (cells > 0 or not some):
            some.append(waiting.pop(0))
            cells -= self._cells(n_rounds, self.sets.features(some[-1]))
        return some

    def _is_affordable(self, resources: ResourceBits) -> bool:
        price, budget = self.sets.price(resources), self._params.budget
        return self.above < price < self.below and (budget is None or price <= budget)

    def _rival(self, resources: ResourceBits, rivals: Sequence[Candidate]) -> Rival | None:
        """The best of a frontier that costs no more than a set; None where it has no rival."""
        price = self.sets.price(resources)
        as_cheap = [candidate for candidate in rivals if candidate.cost <= price]
        if not as_cheap or not np.isfinite(as_cheap[-1].best).all():
            return None
        # Scores that differ by less may differ by luck.
        reach = rivals[-1].score - float(rivals[-1].best[0])
        return Rival(as_cheap[-1].best, reach * self._luck)

    def _fit(
        self, trainer: Trainer, resources: ResourceBits, rival: Rival | None = None
    ) -> Candidate:
        allowed = self.sets.features(resources)
        model = trainer.train(self._params, allowed, True, record=SHORT_RECORD, rival=rival)
        score = model.validation_score[model.best_iter]
        best = model.truncated(model.best_iter)
        ensemble, costs = best.ensemble, self.sets.costs
        return Candidate(
            resources,
            costs.total(ensemble.features, ensemble.n_trees),
            -math.inf if math.isnan(score) else float(score),
            self.sets.owned(ensemble.features),
            ensemble.importances(),
            best,
            self._cells(model.n_iter, allowed),
            model.validation_score,
            np.maximum.accumulate(model.validation_score[: model.best_iter + 1]),
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

    def _faster(self, params: Parameters) -> Parameters:
        """Fewer and longer steps, to compare sets by; not where every tree has its price."""
        params = replace(params, n_iter_no_change=PATIENCE[self._is_large])
        if self.sets.costs.tree_cost > 0:
            return params
        if params.learning_rate < FAST_RATE:
            n_iter = math.ceil(params.max_iter * params.learning_rate / FAST_RATE)
            n_iter = max(n_iter, min(params.max_iter, 30))
            params = replace(params, learning_rate=FAST_RATE, max_iter=n_iter)
        most = max(FAST_TREES // self._trainer.start.ensemble.n_outputs, LEAST_ROUNDS)
        return replace(params, max_iter=min(params.max_iter, most))

    # -- the choice -------------------------------------------------------------------------------

    def judged(self) -> list[Candidate]:
        """The frontier, by scores that do not flatter, the cheapest first.

        Many sets were compared on the same validation rows, and the best of many is best by luck
        as well. The sets that are on the frontier or close to it are compared again on rows that
        have nothing to do with that choice: on training rows, by models that have not seen them.
        What comes onto the frontier by that is compared with what lacks one of its resources.
        """
        best = self._steps()
        if not self.folds or not self._cross_fit(best):
            return best
        rivals = [*best, *self._close_to(best, self._behind())]
        everything = self.archive.get(self._everything)
        if self._tries_everything and everything is not None:
            is_inside = self.above < everything.cost < self.below
            if is_inside and not any(one is everything for one in rivals):
                rivals.append(everything)
        self._cross_fit(rivals)
        known = set(map(id, best))
        smaller = self._smaller([one for one in self._best_of(rivals) if id(one) not in known])
        smaller = self._close_to(best, smaller)
        self._cross_fit(smaller)
        kept: list[Candidate] = []
        level = -math.inf
        by_cost = sorted([*rivals, *smaller], key=lambda one: (one.cost, -self.choice_score(one)))
        for candidate in by_cost:
            if not kept or self.is_preferred(candidate, kept[-1], level):
                # What includes another is as good, whatever its score is.
                level = max(level, self.choice_score(candidate))
                kept.append(candidate)
        return kept

    @cached_property
    def folds(self) -> list[Trainer]:
        """Trainers on parts of the rows; none where rows are many, or cannot be divided."""
        return self._pool.folds(self._n_folds, self._params) if self._n_folds else []

    def fold_models(self) -> FoldModels | None:
        """What was cross-fitted and kept; None if nothing was."""
        cross_fitted = [candidate for candidate in self.archive.values() if candidate.fold_models]
        if not cross_fitted:
            return None
        return FoldModels(
            self.folds, {candidate.resources: candidate.fold_models for candidate in cross_fitted}
        )

    def _steps(self) -> list[Candidate]:
        """The frontier without steps that are too small to be worth a model."""
        best = [candidate for candidate in self.frontier() if candidate.cost < self.below]
        scores = [candidate.score for candidate in best if candidate.score > -math.inf]
        least = LEAST_STEP * (scores[-1] - scores[0]) if scores else 0.0
        kept: list[Candidate] = []
        for candidate in best:
            if not kept or candidate.score - kept[-1].score >= least:
                kept.append(candidate)
        new = [candidate for candidate in kept if candidate.cost > self.above]
        important = set(map(id, _by_area(new)[:MOST_STEPS]))
        return [one for one in kept if one.cost <= self.above or id(one) in important]

    def is_preferred(self, dearer: Candidate, cheaper: Candidate, level: float) -> bool:
        """Whether whoever can pay for the one of two sets that costs more should do so.

        ``level`` is the score to choose by that the cheaper one stands for.
        """
        return self.choice_score(dearer) - level > self._least_gain(dearer, cheaper)

    def choice_score(self, candidate: Candidate) -> float:
        """The score that a set is chosen by."""
        return candidate.score + self.shift(candidate)

    def _least_gain(self, dearer: Candidate, cheaper: Candidate) -> float:
        """How much better a set must be than another, by scores to choose by."""
        if dearer.fold_scores is None or cheaper.fold_scores is None:
            return 0.0
        is_part = cheaper.used not in (0, dearer.used) and not cheaper.used & ~dearer.used
        if is_part and self._mistrusts_rounds:
            return -LUCK_OF_PARTS * standard_error(dearer.fold_scores - cheaper.fold_scores)
        return noise(dearer.fold_scores, cheaper.fold_scores)

    def shift(self, candidate: Candidate) -> float:
        """What to add to the validation score of a set to get the score that it is chosen by.

        That is the mean of its validation score and that of its folds, weighted by their rows, in
        the round where it is best; where it has no folds, the usual difference between the two.
        """
        return self.usual_shift if candidate.shift is None else candidate.shift

    def weighed(self, difference: _Difference) -> _Difference:
        """What the rows of folds and those of validation make together of their difference."""
        prepared = self._trainer.prepared
        assert prepared.validation is not None
        n_train, n_validation = len(prepared.train.y), len(prepared.validation.cases.y)
        return difference * (n_train / (n_train + n_validation) if self._n_folds else 0.0)

    @property
    def usual_shift(self) -> float:
        """The median of what cross-fitting says beside validation; 0 where it was not asked."""
        return float(np.median(self._shifts() or [0.0]))

    @property
    def cautious_shift(self) -> float:
        """What to add where folds were not asked and many are compared: the best are lucky."""
        return self.usual_shift - float(np.std(self._shifts() or [0.0]))

    def _shifts(self) -> list[float]:
        return [one.shift for one in self.archive.values() if one.shift is not None]

    def _best_of(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Those that no other beats by the score to choose by, the cheapest first."""
        usual = self.usual_shift
        scores = [one.score + (usual if one.shift is None else one.shift) for one in candidates]
        return [candidates[i] for i in front([one.cost for one in candidates], scores)]

    def _close_to(self, best: Sequence[Candidate], others: Sequence[Candidate]) -> list[Candidate]:
        """Those that may be better than a cross-fitted frontier: it may owe its place to luck.

        They are behind it by little more than cross-fitting usually changes between neighbours.
        """
        shifts = [candidate.shift for candidate in best if candidate.shift is not None]
        changes = np.abs(np.diff(shifts))
        most = MOST_CHANGES * float(np.median(changes)) if len(changes) else math.inf
        behind = {id(one): _score_for(best, one.cost) - one.score for one in others}
        close = [one for one in others if behind[id(one)] <= most]
        return sorted(close, key=lambda one: behind[id(one)])[:MOST_STEPS]

    def _behind(self) -> list[Candidate]:
        """What the search began with, the frontier without that, and the one behind it.

        Sets of which the same part is used count once.
        """
        left: dict[ResourceBits, Candidate] = {}
        for candidate in sorted(self.archive.values(), key=lambda one: -one.score):
            if self.above < candidate.cost < self.below:
                left.setdefault(candidate.used, candidate)
        for candidate in self.frontier():
            left.pop(candidate.used, None)
        behind: list[Candidate] = []
        for number in range(LAYERS):
            layer = pareto(left.values())
            if number == 0:
                layer = [candidate for used, candidate in left.items() if used in self._starts]
            behind += layer
            for candidate in layer:
                del left[candidate.used]
        return behind

    def _smaller(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """What is left of some sets without one of the resources that bring least."""
        sets = [
            some
            for candidate in candidates
            for some in self._around.drops(candidate.used, candidate.gains)
        ]
        new = [some for some in dict.fromkeys(sets) if some not in self.archive][:FITS_TOGETHER]
        for candidate in self._pool.run(self._fit, [(some,) for some in new]):
            self.archive[candidate.resources] = replace(candidate, model=None)
        tried = [self.archive[some] for some in dict.fromkeys(sets) if some in self.archive]
        return [candidate for candidate in tried if candidate.fold_scores is None]

    def _cross_fit(self, candidates: Sequence[Candidate]) -> bool:
        """Score candidates by models that have not seen the rows; whether any has such a score.

        The most important first, while there is work left. What is left over goes by its
        validation score.
        """
        first = pareto(candidates)
        known = set(map(id, first))
        some: list[Candidate] = []
        work = 0.0
        for candidate in [*_by_area(first), *(one for one in candidates if id(one) not in known)]:
            work += self._n_folds * candidate.cells
            if work > FOLDS_SHARE * self._allowed_cells and len(some) > 1:
                break
            if candidate.fold_scores is None and candidate.cost > self.above:
                some.append(candidate)
        self._trainer.phases.begin(0.5, self._n_folds * len(some))

        def fitted(trainer: Trainer) -> list[Model]:
            return [self._without_rest(trainer, candidate) for candidate in some]

        for candidate, *models in zip(some, *self._pool.run_on(fitted, self.folds), strict=True):
            self._learn(candidate, models)
        return any(candidate.fold_scores is not None for candidate in candidates)

    def _without_rest(self, trainer: Trainer, candidate: Candidate) -> Model:
        """A model without the rows that a fold leaves out.

        As many rounds as with them; where rows are many, those that validation rows want, of which
        only the last has to be scored.
        """
        n_iter = len(candidate.trace if self._mistrusts_rounds else candidate.best) - 1
        record = SHORT_RECORD if self._mistrusts_rounds else Record(False, n_iter)
        params = replace(self._params, max_iter=n_iter)
        allowed = self.sets.features(candidate.resources)
        model = trainer.train(params, allowed, False, record=record)
        if model.n_iter < record.scored_from:  # it ended before
            model = trainer.train(params, allowed, False, record=SHORT_RECORD)
        return model

    def _learn(self, candidate: Candidate, models: Sequence[Model]) -> None:
        """Choose the round by all rows, of folds and validation, and score the folds there.

        Where validation rows are few, the round that they like best is so by luck. Where there are
        many, folds are scored in that round alone.
        """
        if not self._mistrusts_rounds:
            fold_scores = np.array([model.validation_score[-1] for model in models])
            if np.isfinite(fold_scores).all():
                candidate.fold_scores = fold_scores
                candidate.shift = self.weighed(float(fold_scores.mean()) - candidate.score)
                candidate.fold_models = models if self.keeps_folds else ()
            return
        n = max(len(model.validation_score) for model in models)
        traces = np.array([held(model.validation_score, n) for model in models])
        scores = candidate.trace[:n] + self.weighed(traces.mean(axis=0) - candidate.trace[:n])
        is_known = np.isfinite(scores) & math.isfinite(candidate.score)
        if not is_known.any():
            return
        n_iter = int(np.argmax(np.where(is_known, scores, -np.inf)))
        candidate.fold_trace, candidate.fold_scores = traces.mean(axis=0), traces[:, n_iter]
        candidate.shift = float(scores[n_iter]) - candidate.score
        if self.keeps_folds:
            candidate.fold_models = [m.truncated(min(n_iter, m.n_iter)) for m in models]

    def shift_of(self, params: Parameters, opening: Opening | None) -> float:
        """The same as ``shift``, of a model whose rows pay: quick ones are compared."""
        quick = self._faster(params)
        if opening is not None:
            opening = opening._replace(n_iter=math.ceil(1.0 / quick.learning_rate))
        model = self._trainer.train(quick, None, True, opening, SHORT_RECORD)
        score, n_iter = float(model.validation_score[model.best_iter]), model.best_iter
        quick = replace(quick, max_iter=n_iter)

        def score_of_rest(trainer: Trainer) -> float:
            rest = trainer.train(quick, None, False, opening, SHORT_RECORD)
            return float(rest.validation_score[-1])

        scores = self._pool.run_on(score_of_rest, self.folds) if n_iter else []
        if not np.isfinite([score, *scores]).all() or not scores:
            return self.cautious_shift
        return self.weighed(float(np.mean(scores)) - score)

    # -- the models -------------------------------------------------------------------------------

    def finished(
        self, candidates: Sequence[Candidate], with_free: bool = False, **changes: Any
    ) -> list[FlatModel]:
        """Models of some sets, trained as the user wants them, the cheapest first.

        Where they are many, or would cost more work than is left, those are left out that matter
        least.
        ``with_free`` for the model of what costs nothing as well, and ``changes`` are parameters
        that differ from those of the search.
        """
        params = replace(self._final_params, **changes)
        models: dict[ResourceBits, Model] = {}
        waiting = [
            candidate.resources
            for candidate in _by_area(candidates)
            if candidate.used or (with_free and candidate.gains.any())
        ]
        waiting, left = waiting[:MOST_STEPS], waiting[MOST_STEPS:]
        self._trainer.phases.begin(0.7, len(waiting))
        while waiting and self._final_cells > 0:
            some = self._next(waiting, self._final_cells, params.max_iter // 2)
            tasks = [(params, self.sets.features(resources), True) for resources in some]
            trained = self._pool.run(Trainer.train, tasks)
            for resources, (_, allowed, _), model in zip(some, tasks, trained, strict=True):
                self._final_cells -= self._cells(model.n_iter, allowed)
                models[resources] = model
        self.left_out = [self.archive[resources] for resources in (*waiting, *left)]
        if self._gain is None:
            gains = [_best(model) - self.archive[s].score for s, model in models.items()]
            self._gain = float(np.median([one for one in gains if math.isfinite(one)] or [0.0]))
        flat_models = [self._flat(*one) for one in models.items()]
        done: list[FlatModel] = []
        for flat in sorted(flat_models, key=lambda flat: flat.cost):
            if flat.model.best_iter:  # a constant is there already
                done.append(self._preferred(flat, done))
        return done

    def _preferred(self, flat: FlatModel, cheaper: Sequence[FlatModel]) -> FlatModel:
        """The same; if it is behind a cheaper one only by luck, it will be chosen nevertheless."""
        if not cheaper:
            return flat
        best = max(cheaper, key=lambda one: one.score + one.shift)
        least = best.score + best.shift
        gain = flat.score + flat.shift - least
        if not self._least_gain(self.archive[flat.resources], self.archive[best.resources]) < gain:
            return flat
        shifts = flat.shifts.copy()
        more = 4.0 * np.spacing(abs(flat.score) + abs(least))  # to be seen behind the rounding
        shifts[flat.model.best_iter] = max(flat.shift, least - flat.score + more)
        return replace(flat, shifts=shifts)

    def _flat(self, resources: ResourceBits, model: Model) -> FlatModel:
        """A finished model up to the round that it is best in.

        Folds were trained with longer steps. Where they say nothing, validation rows decide.
        """
        candidate, scores = self.archive[resources], model.validation_score
        shifts = np.full(len(scores), self.shift(candidate))
        if candidate.fold_trace is not None:
            pace = self._params.learning_rate / self._final_params.learning_rate
            fold_scores = at_pace(candidate.fold_trace, len(scores), pace)
            shifts = self.weighed(fold_scores + (self._gain or 0.0) - scores)
        best_iter = int(np.argmax(np.nan_to_num(scores + shifts, nan=-np.inf)))
        model = replace(model, best_iter=best_iter)
        ensemble = model.truncated(best_iter).ensemble
        cost = self.sets.costs.total(ensemble.features, ensemble.n_trees)
        score = float(np.nan_to_num(scores[best_iter], nan=-np.inf))
        return FlatModel(resources, model, cost, score, shifts)


class Frontier:
    """Searches beyond a path of trade-offs, and hands what it finds to the models of the curve.

    Parameters
    ----------
    path : TradeoffPath
        Trained already when the search begins, which starts from its sets.
    effort : float
    """

    def __init__(self, path: TradeoffPath, effort: float):
        self.path = path
        self.models: CurveModels = path.models
        # The same where all pay alike: what a set is worth to everybody is found from there.
        self._flat_path = path
        if self.models.params.charge == "row":
            self._flat_path = TradeoffPath(self.models, charge="model", is_patient=path.is_patient)
        self.sets = ResourceSets(self.models.schema.costs)
        self._effort = effort
        self._search: FrontierSearch | None = None
        self._filled: set[float] = set()
        self._has_gates = False
        self._lock = threading.Lock()

    def search(self, tell: Callable[[float], object] | None = None) -> None:
        """Search, and add what the frontier is made of to the curve's models.

        ``tell`` hears how much of all that is done.
        """
        with self._telling(tell):
            pays_by_row = self.models.params.charge == "row"
            if pays_by_row:
                self.models.trainer.phases.reserve(FLAT_SHARE)
            self._search = self._run(keeps_folds=pays_by_row)
            if pays_by_row:
                n_tradeoffs = len(self.path.by_tradeoff) + self._search.n_more_tradeoffs
                self._train(self.path, n_tradeoffs)
            self._add(self._search, self._search.judged())

    def flat_models(self) -> list[FlatModel]:
        """Search, and train the models of the frontier, the cheapest first, as if all paid alike.

        They are not handed to the curve.
        """
        self._search = self._run(keeps_folds=True)
        return self._search.finished(self._search.judged())

    def fold_models(self) -> FoldModels | None:
        """Models of folds that ``flat_models`` has trained to compare sets by."""
        return None if self._search is None else self._search.fold_models()

    def find(self) -> list[Candidate]:
        """Search, and tell what the frontier is made of."""
        return self._run().frontier()

    def fill(
        self,
        costs: Sequence[float],
        scores: Sequence[float],
        position: int,
        tell: Callable[[float], object] | None = None,
    ) -> bool:
        """Train what is missing above one of the points of a curve; whether there was anything.

        ``costs`` and ``scores`` are those of all points that no other beats, the cheapest first.
        Only what costs more than the point and less than the next, and scores less than the latter,
        comes onto the curve: so no question changes the answer to another one.
        """
        low, high = costs[position : position + 2]
        with self._lock:
            if low in self._filled:
                return False
            n_before = len(self.models)
            with self.models.threads, self._telling(tell):
                if self._search is None:  # it was interrupted
                    self._search = self._prepared()
                effort = max(self._effort, 1.0) * FILL_EFFORT
                search = self._search.resumed(low, high, effort)
                if _is_open(costs, scores, position):
                    self.models.trainer.phases.begin(0.6)
                    search.go_on()
                    between = [one for one in search.judged() if low < one.cost < high]
                else:
                    between = [f for f in self._search.left_out if low < f.cost < high]
                self._add(search, between, (low, high, scores[position + 1]))
            self._filled.add(low)  # not before: somebody may have interrupted it
            return len(self.models) > n_before

    @contextmanager
    def _telling(self, tell: Callable[[float], object] | None) -> Iterator[None]:
        phases = self.models.trainer.phases
        phases.restart()
        phases.tell = tell
        try:
            yield
        finally:
            phases.tell = None

    def _run(self, keeps_folds: bool = False) -> FrontierSearch:
        search = self._prepared()
        search.keeps_folds = keeps_folds
        self.models.trainer.phases.begin(0.5)
        search.run()
        return search

    def _train(self, path: TradeoffPath, n_tradeoffs: int) -> None:
        """Train models of a path until there are so many."""
        self.models.trainer.phases.begin(0.1, n_tradeoffs - len(path.by_tradeoff))
        with warnings.catch_warnings():
            # What buys nothing for everybody may be enough for some.
            warnings.simplefilter("ignore", BudgetWarning)
            for some in path.choose(n_tradeoffs):
                for _ in path.train(*some):
                    pass

    def _prepared(self) -> FrontierSearch:
        if not self._flat_path.by_tradeoff:
            self._train(self._flat_path, len(self.path.by_tradeoff))
        # Sets are compared as if everybody bought them.
        flat = replace(self.models.params, charge="model", row_budget=None)
        starts = self._starts()
        counts_costs = self.models.score_name == TOTAL_COST
        return FrontierSearch(self.models.pool, self.sets, flat, starts, self._effort, counts_costs)

    def _add(
        self,
        search: FrontierSearch,
        candidates: Sequence[Candidate],
        box: tuple[float, float, float] | None = None,
    ) -> None:
        """Hand the models of some sets to the curve; ``box`` are bounds, as ``fill`` has them."""
        params = replace(self.models.params, tradeoff=0.0)
        by_row, has_total = params.charge == "row", self.models.blank.scoring == TOTAL_COST
        if box is None:
            self.models.usual_shift = search.usual_shift
        # All that takes long comes first: an interruption must not leave half of it behind. Where
        # rows pay, what is free for everybody is no model of the path.
        if not by_row or params.budget is not None or params.row_budget is not None or has_total:
            paid = {"charge": params.charge, "row_budget": params.row_budget}
            flat = search.finished(candidates, with_free=by_row, **paid)
        else:  # whoever pays, the trees are the same: it is quicker to count afterwards
            flat = [self._paying_by_row(one) for one in search.finished(candidates, with_free=True)]
        gated: list[tuple[FittedCandidate, float]] = []
        if by_row and box is None:
            # Every set again, in folds.
            self.models.trainer.phases.reserve(1.0)
            self.models.trainer.phases.begin(0.3, max(FOLDS) * len(flat))
            gated = self._gated(search, flat)
            self._has_gates = bool(gated)
        beyond: list[tuple[Model, float, Opening]] = []
        if by_row and not self._has_gates:
            beyond = self._beyond(candidates)
        for one in flat:
            self.models.add(one.model, params, "search", box, one.shifts)
        for candidate, shift in gated:
            self.models.add_fitted(candidate, shift)
        if by_row and box is None and has_total:
            least = total_cost_candidate(self.models)
            if self._is_within(least):
                self.models.add_fitted(least)
        for model, tradeoff, opening in beyond:
            how = replace(params, tradeoff=tradeoff)
            self.models.add(model, how, "search", box, opening=opening)
        if by_row:
            self._judge_rivals(search, search.n_rivals if box is None else 0)

    def _paying_by_row(self, flat: FlatModel) -> FlatModel:
        """The same model up to its best round, if every row pays for what it is asked."""
        best = flat.model.truncated(flat.model.best_iter)
        return replace(flat, model=self.models.paying_by_row(best))

    def _judge_rivals(self, search: FrontierSearch, most: int) -> None:
        """Cross-fit the models that rows pay for and that would be chosen; shift the others."""
        # The doubt is in their favour: who is left out here is not chosen.
        hoped = 2.0 * search.usual_shift - search.cautious_shift
        while most > 0 and search.folds and (rivals := self.models.rivals(hoped)[:most]):
            most -= len(rivals)
            for entry in rivals:
                assert entry.params is not None  # rows pay
                entry.shift = search.shift_of(entry.params, entry.opening)
        self.models.shift_others(search.usual_shift, search.cautious_shift)

    def _is_within(self, candidate: FittedCandidate) -> bool:
        """Whether a cascade keeps to the limits of the estimator."""
        budget, most = self.models.params.budget, self.models.params.row_budget
        cost = max(candidate.cost, candidate.model.cost_)
        return (budget is None or cost <= budget) and (
            most is None or candidate.model.cost_max_ <= most
        )

    def _gated(
        self, search: FrontierSearch, flat: Sequence[FlatModel]
    ) -> list[tuple[FittedCandidate, float]]:
        """Cascades over the flat frontier, each with the shift of its score.

        Their folds were scored by quicker models than they are served with. What that makes of the
        score of a flat model, which was compared with a quick one as well, is made up for.
        """
        more = [candidate.resources for candidate in search.frontier()]
        folds = search.fold_models()
        gated, plain = gated_candidates(self.models, self.sets, flat, more, folds)
        compared = [one for one in flat if one.resources in plain]
        shifts = [f.shift - search.weighed(plain[f.resources].mean() - f.score) for f in compared]
        best, cascades = -math.inf, []
        for one, scores in sorted(gated, key=lambda candidate: candidate[0].cost):
            shift = float(np.median(shifts or [0.0])) + search.weighed(
                float(scores.mean()) - one.score
            )
            cheaper = [f for f in compared if f.cost <= one.cost]
            if cheaper:
                plain_one = max(cheaper, key=lambda f: f.score + f.shift)
                best = max(best, plain_one.score + plain_one.shift)
                # Many were tried: the simpler stays unless a cascade is better by more than noise.
                shift -= noise(scores, plain[plain_one.resources])
            if one.score + shift > best and self._is_within(one):
                best = one.score + shift
                cascades.append((one, shift))
        return cascades

    def _beyond(self, candidates: Sequence[Candidate]) -> list[tuple[Model, float, Opening]]:
        """What rows pay beyond the sets that are worth it for everybody.

        A path of trade-offs buys greedily: for everybody what promises most for its price at the
        root, and then more. Here a set of the frontier is the beginning: some rounds make do with
        it, and have done with the rows for which it is enough. Then more is bought, for the others;
        the set itself counts as paid. Cascades do it better, where there can be any.
        """
        params = self.models.params
        # What a model does not use is no part of its set, and what uses nothing is no beginning.
        used = [candidate for candidate in _by_area(candidates) if candidate.used]
        sets = sorted({candidate.used for candidate in used[:MOST_OPENINGS]}, key=self.sets.price)
        if self.sets.features(0).any():
            # What is free is a beginning, too: at any trade-off of the path some rows may buy more.
            sets = [0, *sets]
        highest = self.path.highest()
        n_iter = math.ceil(1.0 / params.learning_rate)
        tasks: list[tuple[Any, ...]] = []
        for paid in sets:
            features = self.sets.features(paid)
            opening = Opening(self.sets.marked(paid), features, n_iter)
            for factor in BEYOND:
                patient = replace(params, tradeoff=factor * highest, n_iter_no_change=LONG_PATIENCE)
                tasks.append((patient, None, True, opening))
        self.models.trainer.phases.begin(0.5, len(tasks))
        models = self.models.pool.run(Trainer.train, tasks)
        return [
            (model, task[0].tradeoff, task[3]) for model, task in zip(models, tasks, strict=True)
        ]

    def _starts(self) -> list[ResourceBits]:
        """Sets that the models of the path pass through, and some under hard budgets."""
        sets, prices, scores = [], [], []
        for model in self._flat_path.by_tradeoff.values():
            bought: ResourceBits = 0
            uses = model.ensemble_.first_uses()
            for round_ in sorted(set(uses.values())):
                bought |= self.sets.owned(f for f, first in uses.items() if first == round_)
                score = np.nanmax(model.validation_score_[round_ + 1 :], initial=-np.inf)
                sets.append(bought)
                prices.append(self.sets.price(bought))
                scores.append(float(score))
        best = front(prices, scores)
        order = by_area([prices[i] for i in best], [scores[i] for i in best])
        kept = sorted(order[:MOST_STARTS])
        return [*(sets[best[i]] for i in kept), *self._budgeted()]

    def _budgeted(self) -> list[ResourceBits]:
        """What short fits under hard budgets would buy."""
        sets, usual = self.sets, self.models.params
        most = sets.price(sets.owned(range(len(sets.needs))))
        if usual.budget is not None:
            most = min(most, usual.budget)
        if not sets.bundles or most < sets.price(sets.bundles[0]):
            return []
        costs = {
            tradeoff: best_cost(model) for tradeoff, model in self._flat_path.by_tradeoff.items()
        }
        tasks = []
        for budget in np.geomspace(sets.price(sets.bundles[0]), most, BUDGETED + 1)[:-1].tolist():
            # A trade-off at which the path would go on buying.
            tradeoff = max((t for t, cost in costs.items() if cost > budget), default=0.0)
            params = replace(
                self._flat_path.params(tradeoff),
                budget=budget,
                max_iter=min(usual.max_iter, BUDGETED_ROUNDS),
                # Few rounds: with less than all of them to buy in, they suggest less.
                shopping_interval=usual.shopping_interval,
            )
            tasks.append((params, None, False))
        trained = self.models.pool.run(Trainer.train, tasks)
        return [sets.owned(model.ensemble.features) for model in trained]


def pareto(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Those that no other beats, the cheapest first."""
    some = list(candidates)
    return [some[i] for i in front([c.cost for c in some], [c.score for c in some])]


def held(trace: Floats, n: int) -> Floats:
    """The first so many numbers of a trace; where it has fewer, it stays as it is."""
    return trace[np.minimum(np.arange(n), len(trace) - 1)]


def at_pace(trace: Floats, n: int, pace: float) -> Floats:
    """What a trace says of n rounds that are so many times as short; then it stays as it is."""
    return np.interp(np.arange(n) / pace, np.arange(len(trace)), trace)


def _best(model: Model) -> float:
    return float(np.nan_to_num(model.validation_score[model.best_iter], nan=-np.inf))


def noise(scores: Floats, others: Floats) -> float:
    """How much better one must be in the mean than another, by the scores of the same folds."""
    return NOISE * standard_error(scores - others)


def standard_error(differences: Floats) -> float:
    """Of their mean."""
    return float(differences.std(ddof=1) / math.sqrt(len(differences)))


def by_area(costs: Sequence[float], scores: Sequence[float]) -> list[int]:
    """Positions of the points of a frontier, given the cheapest first, by what their loss costs.

    Without a point, budgets between its cost and the next have the score of the one before: score
    step × width, in the logarithm of costs. The point that loses least goes last, then the one that
    loses least without it, and so on; the cheapest and the most expensive come first.
    """
    left = list(range(len(costs)))
    place = _log_costs(costs)
    value = np.nan_to_num(np.asarray(scores, dtype=np.float64), neginf=-1e300)
    order: list[int] = []
    while len(left) > 2:
        steps = np.diff(value[left])[:-1] * np.diff(place[left])[1:]
        order.append(left.pop(1 + int(np.argmin(steps))))
    return [*left[::-1], *order[::-1]]


def _log_costs(costs: Sequence[float]) -> Floats:
    return np.log(np.maximum(costs, max(1e-3 * max(costs, default=0.0), 1e-300)))


def _is_open(costs: Sequence[float], scores: Sequence[float], position: int) -> bool:
    """Whether the gap above a point is worth a search."""
    if costs[position] * WIDE_GAP < costs[position + 1]:
        return True
    if costs[position] == 0:
        return True
    cheapest = min(cost for cost in costs if cost > 0)
    width = math.log(costs[position + 1] / costs[position]) / math.log(costs[-1] / cheapest)
    step = (scores[position + 1] - scores[position]) / (scores[-1] - scores[0])
    return width * step > LARGE_GAP


def _by_area(candidates: Sequence[Candidate]) -> list[Candidate]:
    order = by_area([one.cost for one in candidates], [one.score for one in candidates])
    return [candidates[i] for i in order]


def _most_for_work(candidates: list[Candidate]) -> list[Candidate]:
    """Those first whose loss would cost most, for the work that their neighbours may take."""
    place = _log_costs([candidate.cost for candidate in candidates])
    scores = np.nan_to_num([candidate.score for candidate in candidates], neginf=-1e300)
    steps = np.diff(scores, prepend=scores[0])
    areas = steps * np.diff(place, append=place[-1] + math.log(2.0))
    order = np.argsort(
        [
            -area / max(candidate.cells, 1.0)
            for area, candidate in zip(areas, candidates, strict=True)
        ]
    )
    return [candidates[i] for i in order]


def _dearest_first(candidates: list[Candidate]) -> list[Candidate]:
    return candidates[::-1]


def _score_for(best: Sequence[Candidate], cost: float) -> float:
    """Score that a frontier has for a cost."""
    return max((candidate.score for candidate in best if candidate.cost <= cost), default=-math.inf)
