"""Methods that spend less, compared with one meter.

Every method leaves a table of *candidates*: models that it could serve, each with what it costs and
scores on validation and on test data. The choice for a budget is made by validation alone, and what
was chosen is then reported by its test cost and test score.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser.cascades.candidates import front
from greedymiser.costs.cost_model import CostModel
from greedymiser.curve.curve import TradeoffCurve, tradeoff_curve
from greedymiser.losses.ndcg import ndcg_score
from greedymiser.model.predictor import as_predictor

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]

# How the methods are called in tables and figures.
STAGEWISE = "stage-wise"
SUBSETS = "feature subsets"
EARLY_EXIT = "early exit"
CRONUS = "Cronus"
MISER = "miser"
MISER_EXIT = "miser + early exit"
MISER_CRONUS = "miser + Cronus"
FRONTIER = "frontier"
ROWS = "rows pay"
STAGED_EXIT = "staged misers + early exit"
METHODS = (
    STAGEWISE, SUBSETS, EARLY_EXIT, CRONUS, MISER, MISER_EXIT, MISER_CRONUS, FRONTIER, ROWS,
    STAGED_EXIT,
)  # fmt: skip

# Shares of stage-wise's cost at which the paper's methods come close to its score (section 6).
PAPER_CLAIMS = {EARLY_EXIT: 1 / 2, CRONUS: 1 / 4, MISER: 1 / 10}

# Columns of a table of candidates. ``tradeoff`` is the λ that the trees were grown with, and
# ``parameter`` what the method itself varies: λ, the highest price, the slack s, Cronus' tradeoff.
CANDIDATES = [
    "method", "fold", "tradeoff", "parameter", "n_trees", "n_features",
    "valid_cost", "valid_score", "cost", "score",
]  # fmt: skip
# Those that are not known before a model is there.
MEASURED = CANDIDATES[3:]


def whole_curve(*args: Any, **kwargs: Any) -> TradeoffCurve:
    """``tradeoff_curve`` that raises when it is interrupted: half a curve is no finished step."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "interrupted: ", UserWarning)
        try:
            return tradeoff_curve(*args, **kwargs)
        except UserWarning as warning:
            raise KeyboardInterrupt(str(warning)) from None


@dataclass(frozen=True, eq=False)
class Documents:
    """Documents of some queries, with their labels."""

    X: NDArray[np.floating]
    y: Floats
    qid: NDArray[np.int64]
    # How many real documents an irrelevant one (label 0) stands for.
    irrelevant_copies: float = 1.0

    @property
    def copies(self) -> Floats | None:
        """How many documents each row stands for; None where that is 1 for all."""
        if self.irrelevant_copies == 1:
            return None
        return np.where(self.y == 0, self.irrelevant_copies, 1.0)

    def columns(self, kept: NDArray[np.intp]) -> Documents:
        """The same documents with some of their features."""
        X = np.ascontiguousarray(self.X[:, kept])
        return Documents(X, self.y, self.qid, self.irrelevant_copies)

    def first_rows(self, most: int) -> Documents:
        """The first queries, whole, that have at most so many rows (but at least one query)."""
        if len(self.y) <= most:
            return self
        starts = np.flatnonzero(np.append(True, np.diff(self.qid) != 0))
        ends = np.append(starts[1:], len(self.qid))
        n = int(ends[max(0, int(np.searchsorted(ends, most, side="right")) - 1)])
        return Documents(self.X[:n], self.y[:n], self.qid[:n], self.irrelevant_copies)


@dataclass(frozen=True, eq=False)
class Fold:
    """Data to learn from, to choose with and to report on, and what its features cost."""

    name: str
    train: Documents
    valid: Documents
    test: Documents
    costs: CostModel

    def columns(self, kept: NDArray[np.intp]) -> Fold:
        """The same fold with some of its features (which must not share costs)."""
        costs = CostModel(self.costs.prices()[kept], tree_cost=self.costs.tree_cost)
        train, valid, test = (part.columns(kept) for part in (self.train, self.valid, self.test))
        return Fold(self.name, train, valid, test, costs)


class MeterReading(NamedTuple):
    """What the meter says of a model on some data."""

    cost: float
    score: float


def read_meter(model: Any, part: Documents) -> MeterReading:
    """The one meter: what a model's predictions of some documents cost, and their NDCG@5."""
    predictor = as_predictor(model)
    costs = predictor.prediction_costs(part.X, part.qid)
    return reading(costs, predictor.predict(part.X, part.qid), part)


def reading(costs: Floats, scores: Floats, part: Documents) -> MeterReading:
    """Mean cost of a document, and NDCG@5.

    A document that stands for several is paid for as often, but ranked once: its copies would tie
    with it, and a single irrelevant document at the top would fill all five places.
    """
    mean = float(np.average(costs, weights=part.copies))
    return MeterReading(mean, ndcg_score(part.y, scores, part.qid, k=5))


def affordable(costs: CostModel, highest_price: float) -> NDArray[np.intp]:
    """Features that cost at most this: the paper's feature subsets."""
    return np.flatnonzero(costs.prices() <= highest_price)


# -- choosing ------------------------------------------------------------------------------------


def choices_by_budget(candidates: pd.DataFrame) -> pd.DataFrame:
    """What validation chooses as the budget grows: one row per change of mind.

    ``budget`` is the least budget (mean cost on validation data) at which the row is chosen: the
    best validation score among all candidates within the budget; the cheaper one of equals.
    """
    scored = candidates[candidates["valid_score"].notna()]
    ordered = scored.sort_values("n_trees", kind="stable")  # of equals, the one with fewer trees
    best = front(ordered["valid_cost"].tolist(), ordered["valid_score"].tolist())
    chosen = ordered.iloc[best].reset_index(drop=True)
    return chosen.assign(budget=chosen["valid_cost"])


def cost_to_reach(curve: pd.DataFrame, target: float, *, to_stay: bool = True) -> float:
    """Test cost of the first choice of a front that scores at least the target on test data.

    With ``to_stay``, all choices for larger budgets must as well: a front rises by validation
    scores, and its test scores may fall again. NaN if there is none.
    """
    good = (curve["score"] >= target).to_numpy()
    if to_stay:
        good = np.logical_and.accumulate(good[::-1])[::-1]
    return float(curve["cost"].iloc[int(np.argmax(good))]) if good.any() else float("nan")


def best_of_each(candidates: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """The candidate with the best validation score of each setting, as the paper draws curves."""
    ordered = candidates.sort_values(
        ["valid_score", "valid_cost", "n_trees"], ascending=[False, True, True], kind="stable"
    )
    return ordered.drop_duplicates(list(by)).sort_index().reset_index(drop=True)


# -- comparing -----------------------------------------------------------------------------------


def curves(candidates: pd.DataFrame) -> pd.DataFrame:
    """The fronts of all methods and folds, one after the other."""
    import pandas as pd

    fronts = [
        choices_by_budget(of_fold)[CANDIDATES]
        for _, of_method in by_method(candidates)
        for _, of_fold in of_method.groupby("fold", sort=False)
    ]
    return pd.concat(fronts, ignore_index=True)


def references(candidates: pd.DataFrame) -> dict[Any, MeterReading]:
    """Per fold, what stage-wise regression costs and scores at its best validation round."""
    whole = best_of_each(candidates[candidates["method"] == STAGEWISE], ["fold"])
    return {row.fold: MeterReading(row.cost, row.score) for row in whole.itertuples()}


def by_method(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of each method that there is, in the order of ``METHODS``."""
    for method in METHODS:
        rows = table[table["method"] == method]
        if len(rows):
            yield method, rows


def comparison(candidates: pd.DataFrame, share: float = 0.99) -> pd.DataFrame:
    """Cost from which on each method has this share of stage-wise's test score.

    Costs are shares of what stage-wise regression costs in the same fold. ``mean_curve_cost`` is
    where the mean curve over folds gets there and stays. ``cost`` is where each fold's own curve
    does, ``first_cost`` where it gets there first; means and standard deviations are over the folds
    that do (``folds``, ``first_folds``). ``best`` is the test score of what validation picks
    without a budget, over stage-wise's.
    """
    import pandas as pd

    whole = references(candidates)
    target = share * float(np.mean([full.score for full in whole.values()]))
    rows = []
    for method, of_method in by_method(candidates):
        stays, first, best = [], [], []
        for fold, of_fold in of_method.groupby("fold", sort=False):
            curve, full = choices_by_budget(of_fold), whole[fold]
            stays.append(cost_to_reach(curve, share * full.score) / full.cost)
            reached = cost_to_reach(curve, share * full.score, to_stay=False)
            first.append(reached / full.cost)
            best.append(curve["score"].iloc[-1] / full.score)
        rows.append(
            {"share": share, "method": method, "n_folds": len(best)}
            | {"mean_curve_cost": cost_to_reach(mean_front(of_method, whole), target)}
            | _spread_over_folds("cost", stays)
            | _spread_over_folds("first_cost", first)
            | {"best": float(np.mean(best)), "best_sd": float(np.std(best))}
            | {"paper": PAPER_CLAIMS.get(method, np.nan)}
        )
    return pd.DataFrame(rows)


def _spread_over_folds(name: str, values: Iterable[float]) -> dict[str, float]:
    found = np.array([value for value in values if np.isfinite(value)])
    mean, deviation = (found.mean(), found.std()) if len(found) else (np.nan, np.nan)
    counted = name.replace("cost", "folds")
    return {name: float(mean), f"{name}_sd": float(deviation), counted: len(found)}


def mean_front(of_method: pd.DataFrame, whole: Mapping[Any, MeterReading]) -> pd.DataFrame:
    """What a method's choices for growing budgets cost and score on test data, mean over folds.

    One row for every budget at which a choice changes, from the first at which every fold has one.
    Budgets and costs are shares of stage-wise's cost. ``gain`` is the score minus that of
    stage-wise regression without a budget; its deviation is that of the paired differences.
    """
    import pandas as pd

    fronts = {fold: choices_by_budget(rows) for fold, rows in of_method.groupby("fold", sort=False)}
    own = {fold: (curve["budget"] / whole[fold].cost).to_numpy() for fold, curve in fronts.items()}
    budgets = np.unique(np.concatenate(list(own.values())))
    budgets = budgets[budgets >= max(shares[0] for shares in own.values())]
    chosen = {
        fold: curve.iloc[np.searchsorted(own[fold], budgets, side="right") - 1]
        for fold, curve in fronts.items()
    }
    gains = [rows["score"].to_numpy() - whole[fold].score for fold, rows in chosen.items()]
    costs = [rows["cost"].to_numpy() / whole[fold].cost for fold, rows in chosen.items()]
    return pd.DataFrame(
        {
            "budget": budgets,
            "cost": np.mean(costs, axis=0),
            "score": np.mean([rows["score"] for rows in chosen.values()], axis=0),
            "gain": np.mean(gains, axis=0),
            "gain_sd": np.std(gains, axis=0),
            "n_features": np.mean([rows["n_features"] for rows in chosen.values()], axis=0),
        }
    )


def at_budgets(candidates: pd.DataFrame, shares: Sequence[float]) -> pd.DataFrame:
    """The mean fronts of all methods, at some budgets; no row where there is nothing to choose."""
    import pandas as pd

    whole = references(candidates)
    tables = []
    for method, of_method in by_method(candidates):
        curve = mean_front(of_method, whole)
        # Costs are sums of floats, and a budget is a share of one of them.
        at = np.searchsorted(curve["budget"] * (1 - 1e-9), shares, side="right") - 1
        rows = curve.iloc[at[at >= 0]].assign(budget=np.asarray(shares)[at >= 0])
        tables.append(rows.assign(method=method))
    return pd.concat(tables, ignore_index=True)
