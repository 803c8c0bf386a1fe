"""The least total: what to ask of whom where errors have a price, too.

With ``error_costs`` no budget is needed: a row is asked for more as long as the expected saving
exceeds the price. Sets of resources that cost less than the worst error are states; each has a
boosted model, and its out-of-fold posteriors say what stopping there would cost. Backward induction
(``cascades.policy``) then decides in every state whether to stop, to buy more for all, or to buy
more for those that a gate sends on, and a chain of states is what is left.

Rows are few where errors are dear, so what is compared must not be noisy:

* Costs of errors are those of soft classes: a row counts partly by its own class, partly by the
  posterior of a model that has seen all features, and neither the row nor its fold. One row with a
  rare class would otherwise decide what all rows are asked for.
* There are few sets: those that look best beforehand.
* A departure from stopping must be better by half of its standard error.

Beside the chain there is one candidate of another kind: the best small tree (``small_tree``), whose
next question depends on the answers so far, and whose leaves may have the model of a state. Both
are learned again without the rows of each fold, which then compare them: what a chain makes of the
rows that have chosen its sets and gates flatters it.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from greedymiser._core.threads import Threads
from greedymiser.cascades.gated import GatedClassifier, gated_classifier, judged_candidate
from greedymiser.cascades.gates import GateInputs
from greedymiser.cascades.policy import Policy, States, induce, paired_error
from greedymiser.costs.cost_model import CostModel, Ledger, Purchase
from greedymiser.costs.errors import ErrorCosts
from greedymiser.curve.models import CurveModels, FittedCandidate
from greedymiser.curve.small_tree import (
    PENALTIES,
    Leaf,
    Questions,
    SmallTree,
    Split,
    Stops,
    TreeSearch,
    chosen_tree,
    ensemble_of,
    needs_of,
    walk,
)
from greedymiser.engines.cpu.engine import CpuEngine
from greedymiser.estimators import MiserClassifier, fitted_like, validation_of
from greedymiser.model.gating import output_features
from greedymiser.model.links import probabilities
from greedymiser.model.trees import Ensemble
from greedymiser.training.parameters import Parameters
from greedymiser.training.preparation import NO_INPUTS, Inputs, Prepared
from greedymiser.training.train import Model, Watch, blank_model, train

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Bits = int
"""A set of resources: bit r is set where resource r is in it."""
Folds = Sequence[tuple[NDArray[Any], NDArray[Any]]]
"""Rows to learn from and rows to check with, by position, fold by fold."""

# What models are like where the user has left a parameter as it is: few rows need small leaves, and
# many small sets need few rounds.
USUAL = {
    "learning_rate": (0.1, 0.2),
    "max_iter": (300, 30),
    "min_samples_leaf": (20, 3),
    "l2_regularization": (0.0, 1.0),
}
# The model of all features that soft classes come from: shallow trees, short steps.
TEACHER: dict[str, Any] = {"learning_rate": 0.1, "max_iter": 80, "max_depth": 2}
# How much of a row's class is that model's posterior.
SOFT = 0.5
# States at least and at most, and the work of all of them together (rows by outputs, and what a
# model costs however few there are).
FEWEST, MOST, WORK, OVERHEAD = 40, 100, 250_000, 300
# States that are tried together, where what comes next depends on them.
AT_A_TIME = 4
# How often small trees may ask for states that their leaves would like to have, and how many of
# them, as a share of those that there are.
ROUNDS, WANTED = 2, 0.15
# Folds of a curve's training rows, and who has found the model there.
FOLDS, FOUND_BY = 5, "total cost"
# How often rows are divided to choose between chain and tree, and its size, where there are so few.
REPEATS, FEW_ROWS = 3, 1000
# So few rows that the tree must be better than the simpler chain by a standard error: among trees
# there is more to choose from, and out-of-fold totals promise more than trees keep.
VERY_FEW_ROWS = 300
# Standard errors by which a decision of a chain must be better than a simpler one.
MARGIN = 0.5


@dataclass(frozen=True, eq=False)
class State:
    """A set of resources, and what its model says of rows that it has not seen."""

    resources: Bits
    price: float
    # Raw predictions (n_outputs, n), the mean over repeated folds, and the number of rounds that
    # they were best with.
    raw: Floats
    n_iter: int
    # What its trees cost.
    entry: float
    # (n,): what errors cost if rows stop here, by soft classes; and by their own.
    value: Floats
    errors: Floats


@dataclass(frozen=True, eq=False)
class LeastTotal:
    """The chain of states with the least total, or the tree; and all states that there were."""

    # Those of the chain; of the tree one, and then there is no policy.
    models: tuple[Model, ...]
    policy: Policy | None
    states: tuple[State, ...]
    # What is bought one after another.
    bought: tuple[Bits, ...]
    # The estimator of the models, and all rows as it has prepared them.
    estimator: MiserClassifier
    prepared: Prepared
    # Of the training rows, out of fold.
    mean_cost: float
    mean_error: float
    # Weights of the rows; None where all count alike.
    weight: Floats | None = None

    def classifier(self) -> GatedClassifier | MiserClassifier:
        """The chain, or the tree, as an estimator."""
        if self.policy is None:
            blank = copy.copy(self.estimator).set_params(charge="row")
            return fitted_like(blank, self.prepared.schema, self.models[0])
        gated = [stage for stage in self.policy.stages if stage.gate is not None]
        return gated_classifier(
            self.estimator,
            self.prepared.schema,
            self.models,
            [stage.gate for stage in gated if stage.gate is not None],
            [stage.kind for stage in gated],
            mean_cost=self.mean_cost,
            tradeoff=1.0,
        )

    def table(self, names: Sequence[str]) -> pd.DataFrame:
        """What each set costs if all rows buy it, and what its errors cost then."""
        import pandas as pd

        rows = []
        for state in self.states:
            cost = state.price + state.entry
            errors = float(np.average(state.errors, weights=self.weight))
            rows.append(
                {
                    "resources": repr([names[r] for r in members(state.resources)]),
                    "n_iter": state.n_iter,
                    "cost": cost,
                    "errors": errors,
                    "score": -(cost + errors),
                    "std_score": paired_error(state.errors, self.weight),
                }
            )
        return pd.DataFrame(rows)


class SetPrices:
    """Sets of resources in the bundles that features need them in, and what they cost.

    Trees are not billed here: sets do not have any, their models do.
    """

    def __init__(self, costs: CostModel):
        self.costs = costs
        free = costs.resource_costs == 0
        self._needs = [sum(1 << r for r in wanted if not free[r]) for wanted in costs.needs]
        self.bundles = sorted({need for need in self._needs if need}, key=self.price)

    def price(self, resources: Bits) -> float:
        """What a set costs."""
        return self.costs.bill(members(resources), 0)

    def need(self, feature: int) -> Bits:
        """What a feature needs, without what is free."""
        return self._needs[feature]

    def features(self, resources: Bits) -> NDArray[np.bool_]:
        """Features that a set pays for."""
        return np.array([need & ~resources == 0 for need in self._needs])


def members(resources: Bits) -> list[int]:
    """Resources of a set, by position."""
    return [r for r in range(resources.bit_length()) if resources >> r & 1]


def union(bundles: Iterable[Bits], without: Bits | None = None) -> Bits:
    """All resources of some bundles, of which one may be left out."""
    found = 0
    for bundle in bundles:
        if bundle != without:
            found |= bundle
    return found


def least_total(
    base: MiserClassifier,
    inputs: Inputs,
    folds: Folds,
    threads: Threads,
    more_folds: Folds = (),
) -> LeastTotal:
    """Learn whom to ask for what.

    Parameters
    ----------
    base : MiserClassifier
        With ``error_costs``; not fitted.
    inputs : Inputs
        The rows to learn from.
    folds : pairs of arrays
        Rows to learn from, and rows to check with, by position: every row is checked
        once, and learned from in all other folds. They may be repeated, one repetition
        after the other.
    threads : Threads
    more_folds : pairs of arrays
        Repetitions for what takes little time: the size of the best small tree, and the choice
        between it and the chain.
    """
    estimator = _usual(base)
    prepared = estimator.prepare(inputs, NO_INPUTS, threads)
    n = len(prepared.train.y)
    return _learned(estimator, prepared, _repeats_of(folds, n), _repeats_of(more_folds, n))


def _repeats_of(folds: Folds, n: int) -> list[NDArray[np.intp]]:
    """The fold that checks each row, once for each repetition."""
    found, fold_of = list[NDArray[np.intp]](), np.full(n, -1, dtype=np.intp)
    for learn, check in folds:
        uses = np.bincount(np.arange(n)[check], minlength=n)
        uses += np.bincount(np.arange(n)[learn], minlength=n)
        if (uses != 1).any() or (fold_of[check] >= 0).any():
            break
        fold_of[check] = fold_of.max() + 1
        if (fold_of >= 0).all():
            found.append(fold_of)
            fold_of = np.full(n, -1, dtype=np.intp)
    else:
        if (fold_of < 0).all():
            return found
    raise ValueError(
        'scoring="total_cost" with charge="row" needs a cv with folds in which every row is '
        "checked once and learned from otherwise, such as StratifiedKFold, or repetitions of that"
    )


def total_cost_candidate(models: CurveModels) -> FittedCandidate:
    """The least total of a curve's training rows, judged by its other rows."""
    estimator, prepared = _usual(models.blank), models.trainer.prepared
    estimator.__dict__.update(
        {name: value for name, value in vars(models.blank).items() if name.endswith("_in_")}
    )
    y = prepared.train.y
    rng = np.random.default_rng(prepared.schema.seed)
    repeats = []
    for _ in range(REPEATS):
        repeats.append(np.empty(len(y), dtype=np.intp))
        repeats[-1][np.lexsort((rng.permutation(len(y)), y))] = np.arange(len(y)) % FOLDS
    found = _learned(estimator, prepared, repeats[:1], repeats[1:])
    return judged_candidate(models, found.classifier(), FOUND_BY)


def _learned(
    estimator: MiserClassifier,
    prepared: Prepared,
    repeats: Sequence[NDArray[np.intp]],
    more_repeats: Sequence[NDArray[np.intp]],
) -> LeastTotal:
    if len(prepared.train.y) > FEW_ROWS:
        more_repeats = ()
    learner = _Learner(estimator, prepared, repeats)
    states = learner.explore()
    repeats = [*repeats, *more_repeats]
    tree, tree_totals = learner.tree(states, repeats)
    chain, chain_totals = learner.chain(states, repeats)
    # Of equals, and of constants, the chain is simpler.
    is_better = _tree_is_better(chain_totals, tree_totals, learner.weight, learner.errors.worst)
    return tree if is_better and tree.models[0].n_iter else chain


def _tree_is_better(chain: Floats, tree: Floats, weight: Floats | None, worst: float) -> bool:
    """Whether trees cost rows less than chains; with few rows, by more than a standard error."""
    saved, margin = chain - tree, 1e-12 * worst  # equals may differ by rounding
    if len(saved) <= VERY_FEW_ROWS:
        margin += paired_error(saved, weight)
    return float(np.average(saved, weights=weight)) > margin


class _Learner:
    """Trains models of sets of resources, on all rows and on folds of them."""

    def __init__(
        self, estimator: MiserClassifier, plain: Prepared, repeats: Sequence[NDArray[np.intp]]
    ):
        self._threads = plain.threads
        self.estimator, self.repeats = estimator, repeats
        errors = plain.schema.error_costs
        assert errors is not None
        self.errors: ErrorCosts = errors
        self.codes = plain.train.y.astype(np.intp)
        self.weight = plain.train.weight
        # Rows weigh what is at stake for them: models are then most exact where decisions are made.
        # Their sum stays what it was, and so does the meaning of l2_regularization.
        stake = errors.class_weights
        factor = stake[self.codes] / np.average(stake[self.codes], weights=self.weight)
        weight = factor if self.weight is None else factor * self.weight
        weighed = replace(plain.train, weight=weight)
        self.whole = plain.with_rows(weighed)
        self._shift = np.log(stake) if len(stake) > 2 else np.log(stake[1:] / stake[:1])
        self._folds = [self.whole.divided(folds, int(folds.max()) + 1) for folds in repeats]
        self.sets = SetPrices(plain.schema.costs)
        self.params = Parameters.of(self.estimator)
        # (n, n_said): what each answer costs a row, by its soft class.
        self._classes = self._softened()
        self._stakes = self._classes @ errors.matrix
        self._prior = plain.schema.loss.prior(plain.train.y, plain.train.weight)

    def mean(self, values: Floats) -> float:
        """Mean over rows."""
        return float(np.average(values, weights=self.weight))

    # -- models -----------------------------------------------------------------------------------

    def _watch(self) -> Watch:
        return validation_of(clone(self.estimator).set_params(scoring="loss"), self.whole.schema)

    def cross_fitted(
        self, allowed: NDArray[np.bool_], params: Parameters, threads: Threads | None = None
    ) -> tuple[list[Floats], int, float]:
        """Raw predictions by models that have not seen the rows; rounds, and the loss after them.

        There are as many raw predictions of a row as repetitions. The number of rounds is the best
        for all folds together.
        """
        # Of all rows: a fold may be without a class.
        watch, blank = self._watch(), blank_model(self.whole, params)
        learned: list[list[tuple[Prepared, Model]]] = []
        losses = np.zeros(params.max_iter + 1)
        for folds in self._folds:
            learned.append([])
            for part in folds:
                if threads is not None:
                    part = part.twin(CpuEngine(threads), threads)
                model = train(part, params, blank, watch, allowed=allowed)
                model.raise_if_cut_short()
                learned[-1].append((part, model))
                scores = model.validation_score
                scores = np.append(scores, np.full(len(losses) - len(scores), scores[-1]))
                assert part.validation is not None
                losses -= scores * part.validation.cases.total_weight
        best = int(np.argmin(losses))
        found = []
        for fold_of, models in zip(self.repeats, learned, strict=True):
            raw = np.empty((self.whole.schema.loss.n_outputs, len(fold_of)))
            for k, (part, model) in enumerate(models):
                raw[:, fold_of == k] = _raw_after(part, model, best)
            found.append(self._unweighted(raw))
        return found, best, float(losses[best])

    def _unweighted(self, raw: Floats) -> Floats:
        """What models would say that had been trained without the weights of classes."""
        return raw - self._shift[:, None]

    def final(self, state: State) -> Model:
        """The model of a state, trained on all rows."""
        params = replace(self.params, max_iter=max(state.n_iter, 1))
        blank = blank_model(self.whole, params)
        model = blank
        if state.n_iter:
            allowed = self.sets.features(state.resources)
            model = train(self.whole, params, blank, self._watch(), allowed=allowed)
            model.raise_if_cut_short()
        ensemble = replace(model.ensemble, baseline=model.ensemble.baseline - self._shift)
        return replace(model, ensemble=ensemble)

    # -- states -----------------------------------------------------------------------------------

    def _softened(self) -> Floats:
        """Classes of rows, (n, n_classes), as far as they count: their own, and what is likely."""
        own = np.eye(len(self.errors.matrix))[self.codes]
        everything = np.ones(self.whole.schema.n_features, dtype=bool)
        # Shallow trees where classes blur, deep ones where features must be seen together.
        teachers = (replace(self.params, **TEACHER), self.params)
        tried = [self.cross_fitted(everything, params) for params in teachers]
        raws, _, _ = min(tried, key=lambda found: found[2])
        loss = self.whole.schema.loss
        likely = np.mean([probabilities(raw, loss, own.shape[1]) for raw in raws], axis=0)
        return (1.0 - SOFT) * own + SOFT * likely

    def state(self, resources: Bits, threads: Threads | None = None) -> State:
        """The state of a set of resources."""
        raws, n_iter, _ = self.cross_fitted(self.sets.features(resources), self.params, threads)
        value, errors = np.mean([self._paid_for(raw) for raw in raws], axis=0)
        return State(
            resources,
            self.sets.price(resources),
            np.mean(raws, axis=0),
            n_iter,
            entry=math.fsum(self.sets.costs.trees_bill(n_iter * len(raws[0]))),
            value=value,
            errors=errors,
        )

    def _paid_for(self, raw: Floats) -> tuple[Floats, Floats]:
        """What the errors of raw predictions cost each row: by its soft class, and by its own."""
        p = probabilities(raw, self.whole.schema.loss, len(self.errors.matrix))
        said = np.argmin(self.errors.expected(p), axis=1)
        return self._stakes[np.arange(len(said)), said], self.errors.matrix[self.codes, said]

    def explore(self) -> list[State]:
        """States: sets that look best beforehand, and those that are left by giving up the rest.

        A set that is worth its price only as a whole is not found from smaller ones, each of which
        is worth nothing; it is found from larger ones (``_given_up``). The others are found from
        single bundles on: what a bundle would add to a set is guessed as if it were independent of
        the set within classes, and what looks best is tried next.
        """
        n, k = len(self.codes), self.whole.schema.loss.n_outputs
        most = int(np.clip(WORK // ((n + OVERHEAD) * k), FEWEST, MOST))
        bundles = self._promising(most)
        sets = dict.fromkeys([0, *bundles, *self._given_up(bundles, most // 2)])
        found = {state.resources: state for state in self._states(list(sets)[:most])}
        singles = [found[bundle] for bundle in bundles if bundle in found]
        waiting: dict[Bits, float] = {}
        new = singles
        while len(found) < most:
            for state in new:
                for single in singles:
                    both = state.resources | single.resources
                    if both not in found and self.sets.price(both) < self.errors.worst:
                        # The total, if half of the rows had to buy it.
                        total = 0.5 * self.sets.price(both) + self._guessed(state, single)
                        waiting[both] = min(total, waiting.get(both, np.inf))
            best = sorted(waiting, key=lambda some: (waiting[some], some))
            new = self._states(best[: min(AT_A_TIME, most - len(found))])
            if not new:
                break
            for state in new:
                found[state.resources] = state
                del waiting[state.resources]
        return list(found.values())

    def _guessed(self, state: State, single: State) -> float:
        """Mean cost of errors with two sets, if they were independent within each class."""
        # log p(y | a, b) = log p(y | a) + log p(y | b) - log p(y), up to a constant.
        raw = state.raw + single.raw - self._prior[:, None]
        return self.mean(self._paid_for(raw)[0])

    def _given_up(self, bundles: Sequence[Bits], most: int) -> list[Bits]:
        """Sets that are left when one bundle after the other is given up, all of them at first.

        It is always the one whose features a model of what is left has least from, for the price.
        The smallest sets of these are returned.
        """
        free = self.sets.features(0)
        left, found = list(bundles), list[Bits]()
        while len(left) > 1:
            whole = union(left)
            if self.sets.price(whole) < self.errors.worst:
                found.append(whole)
            gains = np.where(free, 0.0, self._gains(self.params, self.sets.features(whole)))
            worth: dict[Bits, float] = {}
            for bundle in left:
                price = self.sets.price(whole) - self.sets.price(union(left, without=bundle))
                # A bundle that others pay for is given up last.
                gain = float(gains[self.sets.features(bundle)].sum())
                worth[bundle] = gain / price if price > 0 else np.inf
            left.remove(min(left, key=lambda bundle: worth[bundle]))
        return found[::-1][:most]

    def _gains(self, params: Parameters, allowed: NDArray[np.bool_] | None) -> Floats:
        """What a model of all rows has from each feature."""
        blank = blank_model(self.whole, params)
        model = train(self.whole, params, blank, self._watch(), allowed=allowed)
        model.raise_if_cut_short()
        return model.ensemble.importances()

    def _states(self, sets: Sequence[Bits]) -> list[State]:
        if self._threads.n_threads == 1 or len(sets) < 2:
            return [self.state(some) for some in sets]
        tasks = [(some, Threads(1)) for some in sets]
        return list(self._threads.run(self.state, tasks))

    @property
    def _affordable(self) -> list[Bits]:
        """Bundles that cost less than the worst error."""
        return [b for b in self.sets.bundles if self.sets.price(b) < self.errors.worst]

    def _promising(self, most: int) -> list[Bits]:
        """Bundles to choose from: all, or those that a model of all features has most from."""
        bundles = self._affordable
        room = max(8, most // 3)
        if len(bundles) <= room:
            return bundles
        gains = self._gains(replace(self.params, **TEACHER), None)
        worth = {b: float(gains[self.sets.features(b)].sum()) for b in bundles}
        return sorted(bundles, key=lambda b: (-worth[b], self.sets.price(b)))[:room]

    # -- the policy -------------------------------------------------------------------------------

    def chain(
        self, states: Sequence[State], repeats: Sequence[NDArray[np.intp]]
    ) -> tuple[LeastTotal, Floats]:
        """The best chain of states, and what chains cost rows that they have not learned from.

        Errors of the latter are those of the rows' soft classes.
        """
        sets = [state.resources for state in states]
        known = States(
            prices=np.array([state.price for state in states]),
            # A larger set may follow a smaller one, however much is bought at once.
            within=np.array([[a != b and not a & ~b for b in sets] for a in sets], dtype=bool),
            values=np.array([state.value for state in states]),
            inputs=functools.cache(lambda i: self._inputs(states[i].resources, states[i].raw)),
            folds=self.repeats[0],
            weight=self.weight,
            entry=np.array([state.entry for state in states]),
        )
        errors = np.array([state.errors for state in states])
        totals, paid, wrong = np.zeros((3, len(self.codes)))
        for fold_of in repeats:
            for fold in np.unique(fold_of):
                learn, check = np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)
                policy = _induced(replace(known, folds=fold_of).of_rows(learn))
                stopped = policy.stops(known.inputs, check)
                bills = _bills(states, policy)[stopped]
                totals[check] += bills + known.values[stopped, check]
                paid[check] += bills
                wrong[check] += errors[stopped, check]
        policy = _induced(known)
        chain = [states[stage.state] for stage in policy.stages]
        before = [0, *(state.resources for state in chain)]
        least = LeastTotal(
            models=tuple(self.final(state) for state in chain),
            policy=policy,
            states=tuple(states),
            bought=tuple(state.resources & ~b for state, b in zip(chain, before, strict=False)),
            estimator=self.estimator,
            prepared=self.whole,
            mean_cost=self.mean(paid) / len(repeats),
            mean_error=self.mean(wrong) / len(repeats),
            weight=self.weight,
        )
        return least, totals / len(repeats)

    def _inputs(self, resources: Bits, raw: Floats | None = None) -> GateInputs:
        """What is known of rows that have paid for a set: features, and what a model says."""
        schema, cases = self.whole.schema, self.whole.train
        columns = np.flatnonzero(self.sets.features(resources)).tolist()
        known = np.empty((0, len(self.codes)))
        if columns:
            known = cases.table.columns(columns, cases.rows)
        said = known[:0] if raw is None else output_features(raw, schema.loss)
        n = schema.n_features
        return GateInputs(
            np.concatenate([known, said]).T,
            (*columns, *range(n, n + len(said))),
            n_features=n,
            n_columns=n + len(said),
            categorical={
                j: len(schema.categories[column])
                for j, column in enumerate(columns)
                if column in schema.categories
            },
        )

    # -- the best small tree ----------------------------------------------------------------------

    def tree(
        self, states: list[State], repeats: Sequence[NDArray[np.intp]]
    ) -> tuple[LeastTotal, Floats]:
        """The best small tree, and what trees cost rows that they have not learned from.

        Errors of the latter are those of the rows' soft classes. States that the leaves of a tree
        would like to have are added to the others.
        """
        costs, rows = self.sets.costs, np.arange(len(self.codes))
        weight = np.ones(len(self.codes)) if self.weight is None else self.weight
        # There are models beside the answers, and all is done once for each repetition.
        n_answers = self._stakes.shape[1]
        share = n_answers / (n_answers + len(states)) / len(repeats)
        inputs = self._inputs(union(self._affordable))
        questions = Questions.of(inputs, self._stakes, weight, share)
        needs = needs_of(costs, questions.features())
        holds = questions.holds
        penalties = np.array(PENALTIES) * self.errors.worst * float(weight.mean())
        search = self._tree_search(states, holds, needs, weight)
        for _ in range(ROUNDS):
            wanted = self._wanted(search.grown(rows, penalties), questions, states)
            if not wanted:
                break
            states += self._states(wanted)
            search = self._tree_search(states, holds, needs, weight)
        plain = TreeSearch(holds, needs, costs.resource_costs, self._stakes, weight)
        found = chosen_tree([plain, search], repeats, self.errors.worst)
        models = {
            node.model: self.final(states[node.model])
            for _, node in walk(found.tree)
            if isinstance(node, Leaf) and node.model is not None
        }
        ensemble = ensemble_of(
            found.tree,
            questions,
            self._classes,
            weight,
            {state: model.ensemble for state, model in models.items()},
        )
        has_copies = not models
        n_trees = ensemble.n_iter if has_copies else ensemble.n_trees
        paid = found.paid.mean(axis=0) + math.fsum(costs.trees_bill(n_trees))
        purchases, bought = _purchases(self.sets, questions, found, ensemble, states)
        model = Model(
            ensemble,
            purchases=purchases,
            charge="row",
            train_cost=np.full(ensemble.n_iter + 1, self.mean(paid)),
            has_copies=has_copies,
        )
        errors = np.where(
            found.model >= 0,
            search.stops.errors[found.model, rows],
            self.errors.matrix[self.codes, found.said],
        )
        least = LeastTotal(
            models=(model,),
            policy=None,
            states=tuple(states),
            bought=bought,
            estimator=self.estimator,
            prepared=self.whole,
            mean_cost=self.mean(paid),
            mean_error=self.mean(errors.mean(axis=0)),
            weight=self.weight,
        )
        return least, paid + found.value.mean(axis=0)

    def _tree_search(
        self,
        states: Sequence[State],
        holds: NDArray[np.bool_],
        needs: NDArray[np.bool_],
        weight: Floats,
    ) -> TreeSearch:
        prices = self.sets.costs.resource_costs
        stops = Stops(
            np.array(
                [[state.resources >> r & 1 for r in range(len(prices))] for state in states],
                dtype=bool,
            ),
            np.array([state.value for state in states]),
            np.array([state.errors for state in states]),
        )
        return TreeSearch(holds, needs, prices, self._stakes, weight, stops)

    def _wanted(
        self, trees: Iterable[Split | Leaf], questions: Questions, states: Sequence[State]
    ) -> list[Bits]:
        """Sets that rows have paid for in the leaves of some trees, and that are no states yet."""
        known, wanted = {state.resources for state in states}, dict[Bits, None]()
        features = questions.features()
        needs = [self.sets.need(feature) for feature in features]

        def visit(node: Split | Leaf, owned: Bits) -> None:
            if isinstance(node, Split):
                owned |= needs[node.question]
                visit(node.yes, owned)
                visit(node.no, owned)
                return
            if node.model is not None:
                owned |= states[node.model].resources
            if owned not in known and self.sets.price(owned) < self.errors.worst:
                wanted[owned] = None

        for tree in trees:
            visit(tree, 0)
        return list(wanted)[: int(WANTED * len(states))]


def _induced(states: States) -> Policy:
    return induce(states, 1.0, kinds=("tree",), margin=MARGIN)


def _bills(states: Sequence[State], policy: Policy) -> Floats:
    """What stopping in each state costs: its set, and the trees of all stages up to there."""
    bills, trees = np.zeros(len(states)), 0.0
    for stage in policy.stages:
        state = states[stage.state]
        trees += state.entry
        bills[stage.state] = state.price + trees
    return bills


def _purchases(
    sets: SetPrices,
    questions: Questions,
    found: SmallTree,
    ensemble: Ensemble,
    states: Sequence[State],
) -> tuple[tuple[Purchase, ...], tuple[Bits, ...]]:
    """What a tree buys, from its root downwards; and the resources, depth by depth."""
    costs, features, lines = sets.costs, questions.features(), list[Purchase]()
    ledger = Ledger(costs)
    gains = ensemble.importances()
    bought = dict[int, Bits]()
    for depth, node in walk(found.tree):
        wanted = list[int]()
        if isinstance(node, Split):
            wanted = [features[node.question]]
        elif node.model is not None:
            mine = sets.features(states[node.model].resources)
            wanted = [feature for feature in ensemble.features if mine[feature]]
        for feature in wanted:
            price = float(ledger.prices[feature])
            if not costs.needs[feature] or ledger.owned_features[feature]:
                continue
            names = ledger.buy(feature)
            told = feature if costs.feature_names is None else costs.feature_names[feature]
            gain = float(gains[feature])
            lines.append(Purchase(0, 0, depth, told, names, price, ledger.spent, gain))
            for name in names:
                r = costs.resource_names.index(name)
                if costs.resource_costs[r] > 0:
                    bought[depth] = bought.get(depth, 0) | 1 << r
    return tuple(lines), tuple(bought.values()) or (0,)


def _raw_after(part: Prepared, model: Model, n_iter: int) -> Floats:
    """What some rounds of a model say of the rows that are held out."""
    assert part.validation is not None
    rows, ensemble = part.validation.rows, model.ensemble
    rows.start(ensemble.baseline)
    for tree in range(min(n_iter, ensemble.n_iter) * ensemble.n_outputs):
        rows.add_tree(ensemble.tree(tree), tree % ensemble.n_outputs)
    return np.array(rows.raw())


def _usual(base: MiserClassifier) -> MiserClassifier:
    """The estimator for the model of a set: what the user has left as it is suits few rows."""
    changes = {
        name: better for name, (default, better) in USUAL.items() if getattr(base, name) == default
    }
    return clone(base).set_params(
        **changes, charge="model", row_budget=None, budget=None, tradeoff=0.0, early_stopping=False
    )
