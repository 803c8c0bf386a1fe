"""The methods: each offers models, validation rows choose among those that a mean cost buys.

All have the same depth, rate, rounds and smallest leaf (``experiments.frontier``), and one meter: a
row pays for the resources that its own paths ask for. Nobody sees test rows before the choice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray

from experiments.frontier import rivals
from experiments.frontier.problems import Problem, ProblemRows, ProblemSplit
from experiments.frontier.rivals import (
    Lightgbm,
    free,
    full_prices,
    penalty_grid,
    raw_predictions,
)
from greedymiser import (
    CostModel,
    EarlyExitClassifier,
    EarlyExitRanker,
    as_predictor,
)

Floats = NDArray[np.float64]

N_TRADEOFFS = 8
# Models of the curve that are dearer than a budget and may leave early within it; rounds between
# exits.
MOST_DEARER, EVERY = 4, 1
# Models of the curve that two stages are made of, and scores at which a band may begin or end.
MOST_STAGES, N_EDGES = 14, 12
# How many documents of a query may go on.
TOPS = (3, 5, 7, 10, 15, 20, 30)
# Trade-offs of LightGBM's lazy penalty: with twelve it starves.
N_LAZY = 40


@dataclass(frozen=True, eq=False)
class Offer:
    """A model that could be served."""

    # Of the validation rows.
    cost: float
    score: float
    # Raw predictions of some rows, and what each of them pays.
    predict: Callable[[ProblemRows], Floats]
    bills: Callable[[ProblemRows], Floats]
    model: Any = None


def nothing(problem: Problem, split: ProblemSplit) -> Offer:
    """The model that asks for nothing."""
    constant = free(problem, split)
    score, predict = constant.valid_score, constant.predict
    return Offer(0.0, score, lambda rows: predict(rows.X), lambda rows: np.zeros(len(rows.y)))


def choose(offers: list[Offer], budget: float) -> Offer:
    """The best validation score that a mean cost buys; of equals the cheapest."""
    within = [offer for offer in offers if offer.cost <= budget]
    return max(within, key=lambda offer: (offer.score, -offer.cost))


# -- ours -----------------------------------------------------------------------------------------


# The curve that was trained last: two methods in a row begin with the same.
_last: dict[tuple[str, str, str, tuple[float, ...]], Any] = {}


def cached_curve(charge: str, problem: Problem, split: ProblemSplit, n_jobs: int) -> Any:
    """Our curve, search included."""
    key = (charge, problem.name, split.name, problem.budgets)
    if key not in _last:
        _last.clear()
        _last[key] = rivals.curve_of(
            problem, split, "frontier", n_jobs, charge=charge, tradeoffs=N_TRADEOFFS
        )
    return _last[key]


def offered(problem: Problem, model: Any, cost: float, score: float) -> Offer:
    """One of our models."""
    if as_predictor(model).compares_rows:
        return Offer(
            cost,
            score,
            lambda rows: np.asarray(model.predict(rows.X, rows.qid)),
            lambda rows: np.asarray(model.prediction_costs(rows.X, rows.qid)),
            model,
        )
    return Offer(
        cost,
        score,
        lambda rows: raw_predictions(problem, model, rows.X),
        lambda rows: model.prediction_costs(rows.X),
        model,
    )


def ours(charge: str, problem: Problem, split: ProblemSplit, n_jobs: int) -> dict[float, Offer]:
    """What the curve names for each budget."""
    curve = cached_curve(charge, problem, split, n_jobs)
    found = {}
    for budget in problem.budgets:
        row = curve.best_row(budget)
        model = curve.models[curve.position(row)].truncate(int(row["n_iter"]))
        found[budget] = offered(problem, model, row["cost"], row["score"])
    return found


def with_exits(problem: Problem, split: ProblemSplit, n_jobs: int) -> dict[float, Offer]:
    """Models that are bought for everybody, and rows that leave them early."""
    curve = cached_curve("model", problem, split, n_jobs)
    best = curve.pareto().sort_values("cost")
    found = {}
    for budget in problem.budgets:
        row = curve.best_row(budget)
        model = curve.models[curve.position(row)].truncate(int(row["n_iter"]))
        offers = [offered(problem, model, row["cost"], row["score"])]
        dearer = best[best["cost"] > budget].iloc[:: max(1, len(best) // MOST_DEARER)]
        for _, point in dearer.iterrows():
            whole = curve.models[curve.position(point)].truncate(int(point["n_iter"]))
            try:
                offers.append(leaving_early(problem, split, whole, budget))
            except ValueError:
                continue  # the first rounds alone are too dear
        found[budget] = choose(offers, budget)
    return found


def leaving_early(problem: Problem, split: ProblemSplit, model: Any, budget: float) -> Offer:
    """A model with exits, their threshold chosen for a mean cost on the validation rows."""
    train, valid = split.train, split.valid
    if problem.n_classes == 0:
        exits: Any = EarlyExitRanker(model, budget=budget, every=EVERY)
        exits.fit(train.X, train.y, qid=train.qid, X_val=valid.X, y_val=valid.y, qid_val=valid.qid)

        def predict(rows: ProblemRows) -> Floats:
            return np.asarray(exits.predict(rows.X, rows.qid))

        def bills(rows: ProblemRows) -> Floats:
            return np.asarray(exits.prediction_costs(rows.X, rows.qid))
    else:
        exits = EarlyExitClassifier(model, budget=budget, every=EVERY, scoring=problem.scoring)
        exits.fit(train.X, train.y, X_val=valid.X, y_val=valid.y)

        def predict(rows: ProblemRows) -> Floats:
            return raw_predictions(problem, exits, rows.X)

        def bills(rows: ProblemRows) -> Floats:
            return np.asarray(exits.prediction_costs(rows.X))

    score = problem.score(valid, predict(valid))
    return Offer(float(bills(valid).mean()), score, predict, bills, exits)


# -- two stages by hand ---------------------------------------------------------------------------


def two_stages(problem: Problem, split: ProblemSplit, n_jobs: int) -> dict[float, Offer]:
    """What a user writes in twenty lines: two models of the flat curve, a band of scores between.

    A row whose score by the first model lies in the band goes on to the second, and pays for both.
    Where documents are ranked, the first few of each query go on, and stay ahead of the others.
    """
    _said.clear()
    curve = cached_curve("model", problem, split, n_jobs)
    best = curve.pareto().sort_values("cost")
    kept = np.unique(np.linspace(0, len(best) - 1, MOST_STAGES).astype(int))
    models = []
    for _, point in best.iloc[kept].iterrows():
        models.append(curve.models[curve.position(point)].truncate(int(point["n_iter"])))
    offers = [nothing(problem, split)]
    for i, first in enumerate(models):
        offers.append(_two(problem, split, first, first, (np.inf, np.inf)))
        for second in models[i + 1 :]:
            raw = raw_predictions(problem, first, split.valid.X)
            for band in bands(confidence(problem, raw, split.valid), split.valid):
                offers.append(_two(problem, split, first, second, band))
    return {budget: choose(offers, budget) for budget in problem.budgets}


def bands(scores: Floats, rows: ProblemRows) -> list[tuple[float, float]]:
    """Bands anywhere in the score; of ranked documents, the first of each query."""
    if rows.qid is not None:
        return [(-top - 0.5, np.inf) for top in TOPS]
    edges = np.unique(np.quantile(scores, np.linspace(0, 1, N_EDGES)))
    edges[0], edges[-1] = -np.inf, np.inf
    return list(itertools.combinations(edges.tolist(), 2))


def confidence(problem: Problem, raw: Floats, rows: ProblemRows) -> Floats:
    """One number a row: the score, or of several classes the largest probability.

    Of ranked documents, minus the rank in their query, from 1 on.
    """
    if rows.qid is not None:
        order = np.lexsort((-raw, rows.qid))
        _, starts, counts = np.unique(rows.qid[order], return_index=True, return_counts=True)
        ranks = np.empty(len(raw))
        ranks[order] = np.arange(len(raw)) - np.repeat(starts, counts) + 1
        return -ranks
    return raw.max(axis=1) if problem.n_classes > 2 else raw


def _two(
    problem: Problem, split: ProblemSplit, first: Any, second: Any, band: tuple[float, float]
) -> Offer:
    def both(rows: ProblemRows) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        key = (id(first), id(second), id(rows))
        if key not in _said:
            _said[key] = tuple(raw_predictions(problem, m, rows.X) for m in (first, second))
        one, two = _said[key]
        scores = confidence(problem, one, rows)
        if rows.qid is not None:
            two = two - two.min() + one.max() + 1.0
        return one, two, (scores > band[0]) & (scores <= band[1])

    def predict(rows: ProblemRows) -> Floats:
        one, two, on = both(rows)
        return np.where(on[:, None] if one.ndim == 2 else on, two, one)

    features = [first.ensemble_.features, [*first.ensemble_.features, *second.ensemble_.features]]
    prices = [problem.costs.total(used) for used in features]

    def bills(rows: ProblemRows) -> Floats:
        return np.where(both(rows)[2], prices[1], prices[0])

    score = problem.score(split.valid, predict(split.valid))
    return Offer(float(bills(split.valid).mean()), score, predict, bills)


# What models say of rows, while they are compared.
_said: dict[tuple[int, int, int], Any] = {}


# -- LightGBM -------------------------------------------------------------------------------------


class LeafBills:
    """What the leaves of a LightGBM model have asked for: our meter over its trees."""

    def __init__(self, booster: lightgbm.Booster, costs: CostModel):
        self.booster, self.costs = booster, costs
        self.asked = [self._leaves(tree) for tree in booster.dump_model()["tree_info"]]
        self.n_trees_per_round = booster.num_model_per_iteration()

    def _leaves(self, tree: dict[str, Any]) -> NDArray[np.bool_]:
        """Resources that lie on the way to each leaf, (n_leaves, n_resources)."""
        found = np.zeros((tree["num_leaves"], len(self.costs.resource_names)), dtype=bool)

        def descend(node: dict[str, Any], asked: NDArray[np.bool_]) -> None:
            if "split_feature" not in node:
                found[node.get("leaf_index", 0)] = asked
                return
            asked = asked.copy()
            asked[list(self.costs.needs[node["split_feature"]])] = True
            descend(node["left_child"], asked)
            descend(node["right_child"], asked)

        descend(tree["tree_structure"], np.zeros(found.shape[1], dtype=bool))
        return found

    def staged(self, X: Floats, rounds: int | None = None) -> Iterator[Floats]:
        """What each row has paid after every round."""
        leaves = self.booster.predict(X, pred_leaf=True, num_iteration=rounds or -1)
        leaves = np.asarray(leaves, dtype=np.intp).reshape(len(X), -1)
        owned = np.zeros((len(X), len(self.costs.resource_names)), dtype=bool)
        for t in range(leaves.shape[1]):
            owned |= self.asked[t][leaves[:, t]]
            if (t + 1) % self.n_trees_per_round == 0:
                yield owned @ self.costs.resource_costs

    def after(self, rounds: int, rows: ProblemRows) -> Floats:
        """What rows have paid after so many rounds."""
        return list(self.staged(rows.X, rounds))[-1]


def lazy(
    problem: Problem, split: ProblemSplit, n_jobs: int, n_tradeoffs: int = N_LAZY
) -> dict[float, Offer]:
    """LightGBM's lazy penalty, at trade-offs from where nothing is bought to everything."""
    learner = Lightgbm(problem, split, n_jobs=n_jobs)
    prices = full_prices(problem.costs).tolist()

    def fit(tradeoff: float, rounds: int = problem.rounds) -> lightgbm.Booster:
        return learner.fit(rounds, cegb_tradeoff=tradeoff, cegb_penalty_feature_lazy=prices)

    unpenalised = learner.fit(problem.rounds)
    offers = [nothing(problem, split)]
    for tradeoff in (0.0, *penalty_grid(learner, fit, unpenalised, n_tradeoffs)):
        booster = unpenalised if tradeoff == 0 else fit(tradeoff)
        offers.extend(prefixes(problem, split, learner, booster))
    return {budget: choose(offers, budget) for budget in problem.budgets}


def prefixes(
    problem: Problem, split: ProblemSplit, learner: Lightgbm, booster: lightgbm.Booster
) -> Iterator[Offer]:
    """The prefixes of a model that no shorter one beats."""
    meter, best = LeafBills(booster, problem.costs), -np.inf
    bills = meter.staged(split.valid.X)
    for i, (paid, score) in enumerate(zip(bills, learner.scores(booster), strict=True), start=1):
        if score > best:
            best = score
            predict = partial(_predicted, booster, i)
            yield Offer(float(paid.mean()), score, predict, partial(meter.after, i), booster)


def _predicted(booster: lightgbm.Booster, rounds: int, rows: ProblemRows) -> Floats:
    return np.asarray(booster.predict(rows.X, num_iteration=rounds, raw_score=True))


METHODS: dict[str, Callable[[Problem, ProblemSplit, int], dict[float, Offer]]] = {
    "row": partial(ours, "row"),
    "model": partial(ours, "model"),
    "two": two_stages,
    "exits": with_exits,
    "lazy": lazy,
}
