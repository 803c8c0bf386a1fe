"""The methods: each offers candidates, validation chooses among those that a budget buys.

All have the same depth, rate, rounds and smallest leaf, and one meter: the cost model, applied to
the features that the trees use. Nobody sees test rows before the choice is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray

from experiments.frontier.problems import Problem, ProblemRows, ProblemSplit
from greedymiser import CostModel, MiserClassifier, MiserRanker, tradeoff_curve

Floats = NDArray[np.float64]

DEPTH = 4
RATE = 0.1
N_TRADEOFFS = 12
# Never wider than this: a wider grid is a coarser one, and a model without penalty is there anyway.
GRID_SPAN = 1e4
# Enough to see what a trade-off buys.
GRID_ROUNDS = 15

# Forward search: rounds of the fits that purchases are compared by, how many of the purchases that
# looked best before are tried again at a step, and after how many steps without gain it gives up.
SCREEN_ROUNDS = 30
BREADTH = 16
PATIENCE = 2


@dataclass(frozen=True, eq=False)
class Contender:
    """A model that could be served."""

    cost: float
    valid_score: float
    n_features: int
    # Raw predictions for some rows.
    predict: Callable[[Floats], Floats]


def choose(candidates: Iterable[Contender], budget: float) -> Contender:
    """The best validation score that the budget buys; of equals the cheapest, then the first."""
    affordable = (one for one in candidates if one.cost <= budget)
    return max(affordable, key=lambda one: (one.valid_score, -one.cost))


def free(problem: Problem, split: ProblemSplit) -> Contender:
    """The model that uses nothing."""
    predict = partial(problem.constant, split.train)
    return Contender(0.0, problem.score(split.valid, predict(split.valid.X)), 0, predict)


# -- LightGBM ------------------------------------------------------------------------------------


class Lightgbm:
    """LightGBM on some columns of a split; every prefix of a model is a candidate."""

    def __init__(
        self,
        problem: Problem,
        split: ProblemSplit,
        columns: Sequence[int] | None = None,
        n_jobs: int = 1,
    ):
        n_features = problem.costs.n_features
        self.problem, self.split = problem, split
        self.columns = np.arange(n_features) if columns is None else np.array(sorted(columns))
        self._settings = {
            **_lightgbm_objective(problem.n_classes),
            "max_depth": DEPTH,
            "num_leaves": 2**DEPTH,
            "learning_rate": RATE,
            "min_data_in_leaf": problem.min_samples_leaf,
            "max_bin": problem.max_bins,
            "num_threads": n_jobs,
            "verbose": -1,
            "deterministic": True,
            "force_col_wise": True,
        }
        X, y = split.train.X[:, self.columns], split.train.y
        self._data = lightgbm.Dataset(X, y, params=self._settings, free_raw_data=False)

    def fit(self, rounds: int, **penalty: Any) -> lightgbm.Booster:
        """Train with some more parameters."""
        return lightgbm.train({**self._settings, **penalty}, self._data, num_boost_round=rounds)

    def used(self, booster: lightgbm.Booster, rounds: int) -> NDArray[np.intp]:
        """The features that the first rounds split by."""
        splits = booster.feature_importance("split", iteration=rounds)
        return self.columns[splits > 0] if rounds else self.columns[:0]

    def cost(self, booster: lightgbm.Booster, rounds: int) -> float:
        """What the first rounds cost."""
        return self.problem.costs.total(self.used(booster, rounds).tolist())

    def part(self, booster: lightgbm.Booster, X: Floats, first: int, n: int) -> Floats:
        """What some rounds add to the raw predictions; X has the columns of the model only."""
        # Threads for a few hundred rows take longer than the rows.
        return booster.predict(
            X, start_iteration=first, num_iteration=n, raw_score=True, num_threads=1
        )

    def scores(self, booster: lightgbm.Booster) -> list[float]:
        """Validation score after every round."""
        valid = self.split.valid
        X = np.ascontiguousarray(valid.X[:, self.columns])
        raw: Any = 0.0
        scores = []
        for i in range(booster.current_iteration()):
            raw = raw + self.part(booster, X, i, 1)
            scores.append(self.problem.score(valid, raw))
        return scores

    def candidates(self, booster: lightgbm.Booster) -> Iterator[Contender]:
        """The best prefix of each set of features that the model passes through."""
        best: dict[int, tuple[float, int]] = {}
        for i, score in enumerate(self.scores(booster), start=1):
            n_used = len(self.used(booster, i))  # features are only ever added
            if n_used not in best or score > best[n_used][0]:
                best[n_used] = (score, i)
        for n_used, (score, i) in best.items():
            predict = partial(_predict, booster, self.columns, i)
            yield Contender(self.cost(booster, i), score, n_used, predict)


def _predict(
    booster: lightgbm.Booster, columns: NDArray[np.intp], rounds: int, X: Floats
) -> Floats:
    return booster.predict(X[:, columns], num_iteration=rounds, raw_score=True)


def _lightgbm_objective(n_classes: int) -> dict[str, Any]:
    if n_classes == 0:
        return {"objective": "regression"}
    if n_classes == 2:
        return {"objective": "binary"}
    return {"objective": "multiclass", "num_class": n_classes}


def full_prices(costs: CostModel) -> Floats:
    """Every feature at its price as if it were bought alone."""
    return costs.prices()


def divided_prices(costs: CostModel) -> Floats:
    """Every resource shared out among the features that need it."""
    users = np.bincount([r for wanted in costs.needs for r in wanted], minlength=1)
    return np.array([sum(costs.resource_costs[r] / users[r] for r in w) for w in costs.needs])


def cegb(
    prices_of: Callable[[CostModel], Floats], problem: Problem, split: ProblemSplit, n_jobs: int = 1
) -> list[Contender]:
    """LightGBM's coupled penalty, at trade-offs from where nothing is bought to everything."""
    learner = Lightgbm(problem, split, n_jobs=n_jobs)
    prices = prices_of(problem.costs).tolist()

    def fit(tradeoff: float, rounds: int = problem.rounds) -> lightgbm.Booster:
        return learner.fit(rounds, cegb_tradeoff=tradeoff, cegb_penalty_feature_coupled=prices)

    unpenalised = learner.fit(problem.rounds)
    found = [free(problem, split), *learner.candidates(unpenalised)]
    for tradeoff in penalty_grid(learner, fit, unpenalised):
        found.extend(learner.candidates(fit(tradeoff)))
    return found


def penalty_grid(
    learner: Lightgbm,
    fit: Callable[..., lightgbm.Booster],
    unpenalised: lightgbm.Booster,
    n_tradeoffs: int = N_TRADEOFFS,
) -> Floats:
    """Trade-offs, from one that buys nearly what no penalty buys to one that buys nothing."""
    high = 1.0
    while learner.cost(fit(high, 1), 1) > 0:
        high *= 2.0
    while high > 1e-12 and learner.cost(fit(high / 2, 1), 1) == 0:
        high /= 2.0
    rounds = min(GRID_ROUNDS, learner.problem.rounds)
    nearly_whole = 0.95 * learner.cost(unpenalised, rounds)
    low = high / 10.0
    while low > high / GRID_SPAN and learner.cost(fit(low, rounds), rounds) < nearly_whole:
        low /= 2.0
    return np.geomspace(low, high, n_tradeoffs)


# -- subsets -------------------------------------------------------------------------------------


ResourceSet = frozenset[int]


class Subsets:
    """Models on the columns that a set of resources opens, each trained once."""

    def __init__(self, problem: Problem, split: ProblemSplit, n_jobs: int = 1):
        self.problem, self.split, self._n_jobs = problem, split, n_jobs
        self.needs = [frozenset(wanted) for wanted in problem.costs.needs]
        # What can be bought: the resources of one feature. Many features may open with the same.
        self.purchases = sorted({wanted for wanted in self.needs if wanted}, key=sorted)
        self._screened: dict[ResourceSet, float] = {}
        self._fitted: dict[ResourceSet, list[Contender]] = {}

    def cost(self, owned: ResourceSet) -> float:
        """What a set of resources costs."""
        costs = self.problem.costs
        marked = np.zeros(len(costs.resource_names), dtype=bool)
        marked[list(owned)] = True
        return costs.bill(marked, 0)

    def columns(self, owned: ResourceSet) -> list[int]:
        """The features that need nothing else."""
        return [feature for feature, wanted in enumerate(self.needs) if wanted <= owned]

    def screen(self, owned: ResourceSet) -> float:
        """Validation score of a short fit, at its best of some rounds."""
        if owned not in self._screened:
            self._screened[owned] = self._screen(owned)
        return self._screened[owned]

    def _screen(self, owned: ResourceSet) -> float:
        problem, valid = self.problem, self.split.valid
        columns = self.columns(owned)
        if not columns:
            return free(problem, self.split).valid_score
        learner = Lightgbm(problem, self.split, columns, self._n_jobs)
        booster = learner.fit(min(SCREEN_ROUNDS, problem.rounds))
        X = np.ascontiguousarray(valid.X[:, learner.columns])
        third = -(-booster.current_iteration() // 3)
        raw, best = np.array(0.0), -np.inf
        for i in range(0, booster.current_iteration(), third):
            raw = raw + learner.part(booster, X, i, third)
            best = max(best, problem.score(valid, raw))
        return best

    def candidates(self, owned: ResourceSet) -> list[Contender]:
        """The prefixes of a model with all rounds."""
        if owned not in self._fitted:
            columns = self.columns(owned)
            fitted = []
            if columns:
                learner = Lightgbm(self.problem, self.split, columns, self._n_jobs)
                fitted = list(learner.candidates(learner.fit(self.problem.rounds)))
            self._fitted[owned] = fitted
        return self._fitted[owned]


def forward(problem: Problem, split: ProblemSplit, n_jobs: int = 1) -> list[Contender]:
    """Forward search under each budget, by gain and by gain per cost; all sets on the way."""
    subsets = Subsets(problem, split, n_jobs)
    found = [free(problem, split)]
    visited: set[ResourceSet] = set()
    for budget in problem.budgets:
        for per_cost in (False, True):
            visited.update(chain(subsets, budget, per_cost))
    for owned in sorted(visited, key=sorted):
        found.extend(subsets.candidates(owned))
    return found


def chain(subsets: Subsets, budget: float, per_cost: bool) -> Iterator[ResourceSet]:
    """Buy what raises the validation score most (per cost) while it is affordable.

    The first step tries every purchase. Later ones try those that looked best when they were last
    tried, since most of what brought little brings little again.
    """
    owned: ResourceSet = frozenset()
    yield owned
    merit = dict.fromkeys(subsets.purchases, np.inf)
    best, failures = subsets.screen(owned), 0
    while failures < PATIENCE:
        at_hand = [
            one
            for one in subsets.purchases
            if not one <= owned and subsets.cost(owned | one) <= budget
        ]
        if not at_hand:
            return
        likely: list[ResourceSet] = sorted(at_hand, key=lambda one: -merit[one])
        first_time = merit[likely[-1]] == np.inf
        here, spent = subsets.screen(owned), subsets.cost(owned)
        for one in likely if first_time else likely[:BREADTH]:
            gain = subsets.screen(owned | one) - here
            price = subsets.cost(owned | one) - spent
            # What loses is no better for being dear.
            merit[one] = gain / price if per_cost and gain > 0 and price > 0 else gain
        likeliest: ResourceSet = max(likely, key=merit.__getitem__)
        owned = owned | likeliest
        yield owned
        failures = 0 if subsets.screen(owned) > best else failures + 1
        best = max(best, subsets.screen(owned))


def coai(problem: Problem, split: ProblemSplit, n_jobs: int = 1) -> list[Contender]:
    """CoAI's way (Erion et al., 2022): SHAP values are worths, and a knapsack buys most of them.

    A model on everything tells what each feature is worth; for every budget the features with the
    largest sum are bought, shared resources once, and a model is trained on them.
    """
    everything = Lightgbm(problem, split, n_jobs=n_jobs)
    booster = everything.fit(problem.rounds)
    told = np.abs(np.asarray(booster.predict(split.train.X, pred_contrib=True)))
    n_features = problem.costs.n_features
    worth = told.reshape(len(told), -1, n_features + 1).sum(axis=1).mean(axis=0)[:-1]
    subsets, found = Subsets(problem, split, n_jobs), [free(problem, split)]
    for budget in problem.budgets:
        found.extend(subsets.candidates(knapsack(problem.costs, worth, budget)))
    return found


def knapsack(costs: CostModel, worth: Floats, budget: float) -> ResourceSet:
    """Resources within a budget whose features are worth most together."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    n, m = costs.n_features, len(costs.resource_names)
    pairs = [(feature, need) for feature, needs in enumerate(costs.needs) for need in needs]
    # One line for the budget; one for each need: a feature is there only if the resource is.
    lines = np.zeros((1 + len(pairs), n + m))
    lines[0, n:] = costs.resource_costs
    for line, (feature, need) in zip(lines[1:], pairs, strict=True):
        line[feature], line[n + need] = 1.0, -1.0
    limits = np.append(budget, np.zeros(len(pairs)))
    solved = milp(
        np.append(-worth, np.full(m, 1e-12)),  # what nobody needs is not bought
        integrality=np.ones(n + m),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(lines, ub=limits),
    )
    if solved.x is None:
        raise RuntimeError(f"no knapsack for {budget}: {solved.message}")
    return frozenset(np.flatnonzero(solved.x[n:] > 0.5).tolist())


def exhaustive_blood(problem: Problem, split: ProblemSplit, n_jobs: int = 1) -> list[Contender]:
    """Thyroid: the 16 sets of blood tests, each with all questions."""
    names = problem.costs.resource_names
    tests = [names.index(name) for name in ("TSH", "T3", "TT4", "T4U")]
    draw = names.index("blood_draw")
    questions = frozenset(range(len(names))) - {draw, *tests}
    subsets = Subsets(problem, split, n_jobs)
    found = [free(problem, split)]
    for size in range(len(tests) + 1):
        for bought in combinations(tests, size):
            drawn = {draw} if bought else set()
            found.extend(subsets.candidates(questions | drawn | set(bought)))
    return found


# -- ours ----------------------------------------------------------------------------------------


def curve_of(
    problem: Problem,
    split: ProblemSplit,
    search: str,
    n_jobs: int = 1,
    *,
    charge: str = "model",
    tradeoffs: int = N_TRADEOFFS,
) -> Any:
    """Our curve, by the path alone or by the search of the frontier."""
    common: dict[str, Any] = {
        "costs": problem.costs,
        "charge": charge,
        "max_iter": problem.rounds,
        "max_depth": DEPTH,
        "learning_rate": RATE,
        "min_samples_leaf": problem.min_samples_leaf,
        "max_bins": problem.max_bins,
    }
    train, valid = split.train, split.valid
    given: dict[str, Any] = {"X_val": valid.X, "y_val": valid.y}
    if problem.n_classes == 0:
        estimator: Any = MiserRanker(loss="squared_error", **common)
        given |= {"qid": train.qid, "qid_val": valid.qid}
    else:
        estimator = MiserClassifier(**common)
    return tradeoff_curve(
        estimator, train.X, train.y, tradeoffs=tradeoffs, scoring=problem.scoring,
        search=search, n_jobs=n_jobs, **given,
    )  # fmt: skip


def ours(search: str, problem: Problem, split: ProblemSplit, n_jobs: int = 1) -> list[Contender]:
    """The models that our curve names for the budgets of the problem."""
    curve = curve_of(problem, split, search, n_jobs)
    found = []
    for budget in problem.budgets:
        model = curve.best(budget=budget)
        if model.cost_ > budget:
            raise AssertionError(f"best(budget={budget}) costs {model.cost_}")
        predict = partial(raw_predictions, problem, model)
        score = problem.score(split.valid, predict(split.valid.X))
        n_features = len(model.features_used_)
        # For this budget alone, whatever it cost: the curve has made its choice.
        found.append(Contender(float(model.cost_), score, n_features, predict))
    return found


def raw_predictions(problem: Problem, model: Any, X: Floats) -> Floats:
    """Numbers that ``Problem.score`` understands."""
    if problem.n_classes == 0:
        return np.asarray(model.predict(X))
    probabilities = model.predict_proba(X)
    return probabilities[:, 1] if problem.n_classes == 2 else probabilities


METHODS: dict[str, Callable[..., list[Contender]]] = {
    "cegb-full": partial(cegb, full_prices),
    "cegb-divided": partial(cegb, divided_prices),
    "forward": forward,
    "coai": coai,
    "path": partial(ours, "path"),
    "frontier": partial(ours, "frontier"),
    "exhaustive": exhaustive_blood,
}


# The methods of this library, which choose for a budget themselves.
OURS = ("path", "frontier")


def applies(method: str, problem: Problem) -> bool:
    """Whether there is anything to measure; where nothing is shared, both penalties are one."""
    if method == "exhaustive":
        return problem.name == "thyroid"
    if method == "cegb-divided":
        return not np.allclose(full_prices(problem.costs), divided_prices(problem.costs))
    return True


def chosen(
    method: str, problem: Problem, split: ProblemSplit, n_jobs: int = 1
) -> list[tuple[float, Contender]]:
    """What a method serves for each budget."""
    found = METHODS[method](problem, split, n_jobs)
    if method in OURS:
        return list(zip(problem.budgets, found, strict=True))
    return [(budget, choose(found, budget)) for budget in problem.budgets]


def tested(problem: Problem, test: ProblemRows, candidate: Contender) -> float:
    """What is reported of a choice."""
    return problem.score(test, candidate.predict(test.X))
