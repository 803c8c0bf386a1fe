"""A path of trade-offs: a model for each, on data that is placed once, and its whole trace."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.threads import Threads
from greedymiser.costs.cost_model import CostModel, Ledger
from greedymiser.curve.checkpoints import Checkpoint, Trainer, TrainingCrew, fingerprints
from greedymiser.estimators import (
    Miser,
    fitted_like,
    warn_of_budget,
    watch_with,
    works_in_kernels,
)
from greedymiser.scoring.names import score_name
from greedymiser.training.parameters import Parameters
from greedymiser.training.preparation import (
    Given,
    Prepared,
    brought,
    check_same_queries,
    costs_of_columns,
    encode_held_out,
)
from greedymiser.training.train import (
    Model,
    blank_model,
    make_grower,
    mean_cost_of,
    root_gains,
    start_rows,
)

if TYPE_CHECKING:
    import pandas as pd

# Between the smallest positive trade-off and 0 there is always room; this is how far to jump.
STEP_TOWARDS_ZERO = 10.0

# Neighbours whose ratio is below this have nothing worth a model between them.
CLOSE = 1.2

# Rows times features from which on the models of a path go shopping only so often: measured, it
# costs nothing in score (docs/rounds.md).
LARGE, SHOPPING_INTERVAL = 10_000_000, 8

# Models of a path that are trained together, where what comes next depends on them.
TOGETHER = 2


class TradeoffPath:
    """Models for one trade-off after the other, and others, on data that is placed once."""

    def __init__(
        self,
        estimator: Miser,
        given: Given,
        given_val: Given,
        given_test: Given,
        threads: Threads,
        checkpoint: str | os.PathLike[str] | None = None,
        may_skip: bool = True,
    ):
        if given_val.X is None or given_val.y is None:
            raise ValueError("tradeoff_curve needs X_val and y_val: rounds are chosen by them")
        # By trade-off; and those that the search has found.
        self.models: dict[float, Miser] = {}
        self.found: list[Miser] = []
        self._traces: dict[int, pd.DataFrame] = {}
        self.blank = estimator
        self.threads = threads
        self.params = Parameters.of(estimator)
        prepared = estimator.prepare(given, given_val, threads)
        kept = None
        if checkpoint is not None:
            kept = Checkpoint(checkpoint, fingerprints(prepared, estimator))
        watch = watch_with(estimator, prepared.schema)
        start = blank_model(prepared, self.params)
        in_kernels = works_in_kernels(estimator, prepared.schema)
        self.trainer = Trainer(prepared, start, watch, in_kernels, kept)
        self._may_skip = may_skip
        check_same_queries(given, given_test, "test")
        given_test = brought(prepared.engine, given_test)
        given_test = estimator.check_features(given_test, reset=False, part="test")
        cases = encode_held_out(prepared.schema, given_test, "test")
        self._test = None if cases is None else prepared.hold_out(cases)

    @cached_property
    def crew(self) -> TrainingCrew:
        """Those who train; called together when the first model is wanted."""
        return TrainingCrew(self.trainer)

    def choose(self, tradeoffs: int | Sequence[float]) -> Iterator[list[float]]:
        """Yield the trade-offs that are asked for, or find good ones as the models come in.

        Those that are found are the same on any number of threads; those that are asked for come
        as many at a time as can be trained at once.
        """
        if not isinstance(tradeoffs, int):
            n_together = self.crew.n_members
            for start in range(0, len(tradeoffs), n_together):
                yield list(tradeoffs[start : start + n_together])
            return
        highest = self.highest()
        yield [0.0, highest] if tradeoffs > 1 and highest > 0 else [0.0]
        while 1 < len(self.models) < tradeoffs:
            following = self._widest_gaps()[: tradeoffs - len(self.models)]
            if not following:
                return
            yield following

    def highest(self) -> float:
        """Least trade-off at which no feature that costs anything pays at the first root."""
        return highest_tradeoff(self.trainer.prepared, self._params(0.0), self.trainer.start)

    def _widest_gaps(self) -> list[float]:
        """Trade-offs between the neighbours that differ most; none if none differ.

        They differ by the logarithm of their costs, so that the cheap end counts as much as the
        dear one, and by their scores: where neither changes there is nothing to find.
        """
        known = sorted(self.models)
        costs = np.array([self._cost(tradeoff) for tradeoff in known])
        scores = np.array([self._score(tradeoff) for tradeoff in known])
        least = self.trainer.prepared.schema.costs.prices()
        floor = np.min(least[least > 0], initial=max(float(costs.max()), 1e-300)) / 2
        place = np.log(np.maximum(costs, floor))
        gaps = np.abs(np.diff(place)) / max(np.ptp(place), 1e-300)
        gaps += np.abs(np.diff(scores)) / max(np.ptp(scores), 1e-300)
        gaps[np.diff(costs) == 0] = 0.0
        # Some gaps cannot be filled: what is sold in one piece has no price in between.
        low, high = np.array(known[:-1]), np.array(known[1:])
        gaps[(low > 0) & (high < low * CLOSE)] = 0.0
        widest = np.argsort(-gaps, kind="stable")[:TOGETHER]
        return [
            float(
                high[i] / STEP_TOWARDS_ZERO if low[i] == 0 else np.sqrt(low[i]) * np.sqrt(high[i])
            )
            for i in widest
            if gaps[i] > 0
        ]

    def _cost(self, tradeoff: float) -> float:
        return best_cost(self.models[tradeoff])

    def _score(self, tradeoff: float) -> float:
        model = self.models[tradeoff]
        return float(np.nan_to_num(model.validation_score_[model.model_.best_iter]))

    def _params(self, tradeoff: float) -> Parameters:
        params = replace(self.params, tradeoff=tradeoff)
        # On large data most of the time is spent on features that nobody buys.
        rows, schema = self.trainer.prepared.rows, self.trainer.prepared.schema
        is_large = rows.n_rows * schema.n_features >= LARGE
        if self._may_skip and tradeoff > 0 and is_large and params.shopping_interval == 1:
            return replace(params, shopping_interval=SHOPPING_INTERVAL)
        return params

    def train(self, *tradeoffs: float) -> Iterator[str]:
        """Train models of some trade-offs and write their traces down; tell how each came out."""
        schema = self.trainer.prepared.schema
        tasks = [(self._params(tradeoff),) for tradeoff in tradeoffs]
        for (params,) in tasks:
            costs_of_columns(
                params, schema.n_features, schema.columns
            )  # does the trade-off overflow?
        for (params,), model in zip(tasks, self.crew.run(Trainer.train, tasks), strict=True):
            if model.n_iter == 0:
                warn_of_budget(self.trainer.prepared, params, self.trainer.start)
            self.models[params.tradeoff] = self._fitted(model, params)
            yield self._last_line()

    def trace_of(self, allowed: NDArray[np.bool_]) -> pd.DataFrame:
        """The trace of a model that pays no prices, but may use only some features."""
        model = self.trainer.train(self._params(0.0), allowed)
        return _trace(fitted_like(self.blank, self.trainer.prepared.schema, model))

    def add(self, model: Model, tradeoff: float = 0.0) -> None:
        """Take in a model that the search has found."""
        self.found.append(self._fitted(model, self._params(tradeoff)))

    def _fitted(self, model: Model, params: Parameters) -> Miser:
        fitted = fitted_like(self.blank, self.trainer.prepared.schema, model)
        fitted.tradeoff = params.tradeoff
        fitted.shopping_interval = params.shopping_interval
        trace = _trace(fitted)
        if self._test is not None:
            scores, costs = self._tested(model)
            trace["test_score"] = scores
            if costs:
                trace["test_cost"] = costs
        self._traces[id(fitted)] = trace
        return fitted

    def _tested(self, model: Model) -> tuple[list[float], list[float]]:
        """Score of the test rows after every round, and their mean cost where rows pay."""
        assert self._test is not None
        prepared, ensemble = self.trainer.prepared, model.ensemble
        start_rows(prepared, self._test.rows, self._test.cases, model.truncated(0))
        validation = self.trainer.watch(self._test)
        mean_cost = mean_cost_of(prepared, self._test.rows)
        n_outputs, pays = ensemble.n_outputs, model.charge == "row"
        bills = [0.0] if pays else _trace(fitted_like(self.blank, prepared.schema, model))["cost"]
        scores, costs = [validation.total(float(bills[0]))], [0.0] * pays
        for round_ in range(ensemble.n_iter):
            for k in range(n_outputs):
                validation.add_tree(ensemble.tree(round_ * n_outputs + k), k)
            bill = mean_cost((round_ + 1) * n_outputs) if pays else float(bills[round_ + 1])
            scores.append(validation.total(bill))
            if pays:
                costs.append(bill)
        return scores, costs

    def _last_line(self) -> str:
        """How the last model came out, in a line."""
        tradeoff = list(self.models)[-1]
        score = self._score(tradeoff)
        return f"tradeoff {tradeoff:.3g}: cost {self._cost(tradeoff):g}, score {score:.5g}"

    @property
    def score_name(self) -> str:
        return score_name(self.blank.scoring, self.trainer.prepared.schema.loss)

    def all_models(self) -> tuple[pd.DataFrame, list[Miser]]:
        """All traces and models, by trade-off; those of the search have none, the dearest first."""
        import pandas as pd

        found = [(model.tradeoff, -best_cost(model), model, "search") for model in self.found]
        path = [(t, -best_cost(model), model, "path") for t, model in self.models.items()]
        ordered = sorted([*path, *found], key=lambda line: line[:2])
        traces = []
        for position, (_, _, model, found_by) in enumerate(ordered):
            trace = self._traces[id(model)]
            if found:
                trace = trace.assign(found_by=found_by, model=position)
            traces.append(trace)
        return pd.concat(traces, ignore_index=True), [line[2] for line in ordered]


def highest_tradeoff(prepared: Prepared, params: Parameters, start: Model) -> float:
    """Least trade-off at which no feature that costs anything pays at the first root."""
    grower = make_grower(prepared, params, start)
    gains = root_gains(prepared, grower)
    prices = grower.root_prices()
    dear = (prices > 0) & (gains > 0)
    highest = np.max(gains[dear] / prices[dear], initial=0.0)
    return float(np.nextafter(highest, np.inf)) if highest > 0 else 0.0


def best_cost(model: Miser) -> float:
    """What a model costs up to its best round; where rows pay, the validation rows in the mean."""
    best = model.model_.best_iter
    if model.model_.charge == "row":
        return float(model.model_.validation_cost[best])
    return model.truncate(best).cost_


def _trace(model: Miser) -> pd.DataFrame:
    """What a model costs and scores after every round, from the constant on."""
    import pandas as pd

    rounds = np.arange(model.n_iter_ + 1)
    n_trees = rounds * model.ensemble_.n_outputs
    first_use = model.ensemble_.first_uses()
    per_tree = model.costs_.tree_cost
    if model.model_.charge == "row":
        # Of the rows that nothing was learned from: they are what choices are made by.
        costs = model.model_.validation_cost[: len(rounds)]
        bills = costs - per_tree * n_trees
    else:
        # The same rounding as cost_: one sum of all resources and all trees.
        costs = np.array(_bills(model.costs_, first_use, len(rounds), n_trees))
        bills = np.array(_bills(model.costs_, first_use, len(rounds)))
    return pd.DataFrame(
        {
            "tradeoff": model.tradeoff,
            "n_iter": rounds,
            "n_trees": n_trees,
            "feature_cost": bills,
            "tree_cost": per_tree * n_trees,
            "cost": costs,
            "score": model.validation_score_[: len(rounds)],
            "n_features": np.searchsorted(sorted(first_use.values()), rounds),
        }
    )


def _bills(
    costs: CostModel, first_use: dict[int, int], n: int, n_trees: NDArray[np.intp] | None = None
) -> list[float]:
    """Bill of the features in use after each round, with the trees where those are given."""
    by_round: dict[int, list[int]] = {}
    for feature, use in first_use.items():
        by_round.setdefault(use, []).append(feature)
    ledger = Ledger(costs)
    bills = []
    for i in range(n):
        for feature in by_round.get(i - 1, []):
            ledger.buy(feature)
        bills.append(ledger.total(0 if n_trees is None else int(n_trees[i])))
    return bills
