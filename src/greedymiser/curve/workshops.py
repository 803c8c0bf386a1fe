"""Models that a path of trade-offs leaves out: those of the frontier's search."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from greedymiser.curve.candidates import ResourceBits, Shop
from greedymiser.curve.checkpoints import Base, Trainer
from greedymiser.curve.frontier import Candidate, FrontierSearch, evenly_spaced, front
from greedymiser.curve.path import TradeoffPath, best_cost
from greedymiser.estimators import Miser
from greedymiser.training.parameters import Parameters
from greedymiser.training.train import Model

if TYPE_CHECKING:
    import pandas as pd

# Sets of the path that the search starts from, and rounds of the fits under hard budgets that
# suggest more of them.
MOST_STARTS, BUDGETED, BUDGETED_ROUNDS = 16, 6, 12

# Where rows pay: sets of the frontier that count as paid, and trade-offs beyond each of them, in
# terms of the one at which nothing pays at the first root.
MOST_BASES, BEYOND = 12, (4.0, 1.0, 0.25, 0.0625)

# What filling a gap may take of the effort of a search.
FILL_EFFORT = 0.25


class Workshop:
    """Trains what the path leaves out."""

    def __init__(self, path: TradeoffPath, effort: float):
        self.path = path
        self.shop = Shop(path.trainer.prepared.schema.costs)
        self._effort = effort
        self._filled: set[float] = set()
        self._lock = threading.Lock()

    def search(self, tell: Callable[[float], object] | None = None) -> None:
        """Search the frontier, and add what it is made of to the path's models."""
        for model, tradeoff in self._found(self.path.params, self._effort, tell):
            self.path.add(model, tradeoff)

    def find(self) -> list[Candidate]:
        """Search the frontier, and tell what it is made of."""
        return self._searched(self.path.params, self._effort).frontier()

    def _found(
        self,
        params: Parameters,
        effort: float,
        tell: Callable[[float], object] | None = None,
    ) -> list[tuple[Model, float]]:
        """Models that the path leaves out, and their trade-offs."""
        search = self._searched(params, effort, tell)
        if params.charge != "row":
            return [(model, 0.0) for model in search.chosen()]
        return self._beyond(search, params)

    def _searched(
        self,
        params: Parameters,
        effort: float,
        tell: Callable[[float], object] | None = None,
    ) -> FrontierSearch:
        # Sets are compared as if everybody bought them.
        flat = replace(params, charge="model", row_budget=None)
        search = FrontierSearch(self.path.crew, self.shop, flat, effort, tell)
        search.run(self._starts())
        return search

    def _beyond(self, search: FrontierSearch, params: Parameters) -> list[tuple[Model, float]]:
        """What rows pay beyond the sets that are worth it for everybody.

        A path of trade-offs buys greedily: for everybody what promises most for its price at the
        root, and then more. Here a set of the frontier is the beginning: some rounds make do with
        it, and have done with the rows for which it is enough. Then more is bought, for the others;
        the set itself counts as paid. Each set is also tried by itself.
        """
        bases = [found.resources for found in search.judged() if found.resources]
        bases = [
            bases[i] for i in evenly_spaced([self.shop.price(base) for base in bases], MOST_BASES)
        ]
        if self.shop.features(0).any():
            # What is free is a beginning, too: at any trade-off of the path some rows may buy more.
            bases = [0, *bases]
        highest = self.path.highest()
        n_iter = math.ceil(1.0 / params.learning_rate)
        tasks: list[tuple[Any, ...]] = []
        for base in bases:
            features = self.shop.features(base)
            opening = Base(self.shop.marked(base), features, n_iter)
            for factor in BEYOND:
                tasks.append((replace(params, tradeoff=factor * highest), None, None, opening))
            tasks.append((replace(params, tradeoff=0.0), features, None, None))
        models = self.path.crew.run(Trainer.train, tasks)
        return [(model, task[0].tradeoff) for model, task in zip(models, tasks, strict=True)]

    def _starts(self) -> list[ResourceBits]:
        """Sets that the models of the path pass through, and some under hard budgets."""
        shop = self.shop
        sets, prices, scores = [], [], []
        for model in self.path.models.values():
            bought: ResourceBits = 0
            uses = model.ensemble_.first_uses()
            for round_ in sorted(set(uses.values())):
                bought |= shop.owned(f for f, first in uses.items() if first == round_)
                score = np.nanmax(model.validation_score_[round_ + 1 :], initial=-np.inf)
                sets.append(bought)
                prices.append(shop.price(bought))
                scores.append(float(score))
        best = front(prices, scores)
        kept = evenly_spaced([prices[i] for i in best], MOST_STARTS)
        return [*(sets[best[i]] for i in kept), *self._budgeted()]

    def _budgeted(self) -> list[ResourceBits]:
        """What short fits under hard budgets would buy."""
        path, shop = self.path, self.shop
        most = shop.price(shop.owned(range(len(shop.needs))))
        if path.params.budget is not None:
            most = min(most, path.params.budget)
        if not shop.bundles or most < shop.price(shop.bundles[0]):
            return []
        costs = {tradeoff: best_cost(model) for tradeoff, model in path.models.items()}
        found = []
        for budget in np.geomspace(shop.price(shop.bundles[0]), most, BUDGETED + 1)[:-1].tolist():
            # A trade-off at which the path would go on buying.
            tradeoff = max((t for t, cost in costs.items() if cost > budget), default=0.0)
            params = replace(
                path.params,
                charge="model",
                row_budget=None,
                tradeoff=tradeoff,
                budget=budget,
                max_iter=min(path.params.max_iter, BUDGETED_ROUNDS),
            )
            model = path.trainer.train(params, is_patient=False)
            found.append(shop.owned(model.ensemble.features))
        return found

    def fill(self, budget: float) -> tuple[pd.DataFrame, list[Miser]] | None:
        """Train what is missing below a budget; all models then, None if nothing was found."""
        with self._lock:
            if budget in self._filled:
                return None
            path = self.path
            limit = budget if path.params.budget is None else min(budget, path.params.budget)
            params = replace(path.params, budget=limit)
            with path.threads:
                models = self._found(params, max(self._effort, 1.0) * FILL_EFFORT)
            for model, tradeoff in models:
                path.add(model, tradeoff)
            self._filled.add(budget)
            return path.all_models() if models else None
