"""What the ranking experiments share: the methods of Figure 1 on some folds, and the pictures.

Squared loss on the labels, depth 4, rate 0.1, rounds chosen by validation NDCG@5, as in section 6
of the paper. Every (fold, method, setting) is a step: a run that was killed goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from experiments.cronus import Cronus
from experiments.methods import (
    CANDIDATES,
    CRONUS,
    EARLY_EXIT,
    FRONTIER,
    MEASURED,
    MISER,
    MISER_CRONUS,
    MISER_EXIT,
    ROWS,
    STAGED_EXIT,
    STAGEWISE,
    SUBSETS,
    Fold,
    MeterReading,
    affordable,
    at_budgets,
    best_of_each,
    comparison,
    curves,
    read_meter,
    reading,
    whole_curve,
)
from experiments.ranking.figures import (
    draw_features,
    draw_methods,
    draw_traces,
    save_figure,
)
from experiments.workspace import Results, Workspace
from greedymiser._core.version import __version__
from greedymiser.cascades.early_exit import EarlyExitRanker
from greedymiser.curve.curve import TradeoffCurve
from greedymiser.estimators import MiserRanker

if TYPE_CHECKING:
    import pandas as pd

# Section 6: "the algorithm is not particularly sensitive to the exact step-size".
LEARNING_RATE = 0.1
DEPTH = 4
# An early exit every ten trees.
EVERY = 10
# Early exits are tried over the whole model, and over its first half and quarter.
SHORTER = (1, 2, 4)
# Cronus chooses among trees, so it is given some even where validation likes a shorter model.
LEAST_TREES = 50
SCORING = "ndcg@5"

# What is the same at every scale, for the settings of the steps.
FIXED = {
    "learning_rate": LEARNING_RATE,
    "depth": DEPTH,
    "exit_every": EVERY,
    "shorter": list(SHORTER),
    "least_trees": LEAST_TREES,
    "scoring": SCORING,
}

# Shares of stage-wise's score to reach.
SHARES = (0.99, 0.95)
# Budgets, as shares of what stage-wise regression costs, that methods are compared at.
BUDGETS = (0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
# Those of the picture, where more can be told.
FINE_BUDGETS = (*np.geomspace(0.01, 0.5, 25).tolist(), *np.linspace(0.55, 1.0, 10).tolist())


@dataclass(frozen=True)
class RankingScale:
    """How much is tried."""

    # Most trees of a model.
    max_iter: int
    # The λ of the misers; 0 is stage-wise regression and always among them.
    tradeoffs: tuple[float, ...]
    # Feature subsets: only features that cost at most this.
    highest_prices: tuple[float, ...]
    # The λ of the misers that Cronus is combined with; early exits are combined with all.
    cascaded: tuple[float, ...]
    # Cronus' own trade-offs, and how strongly it holds its weights down.
    cronus_tradeoffs: tuple[float, ...]
    cronus_l1: tuple[float, ...] = (0.1, 0.5, 2.0)
    # How many slacks s of early exits are tried per model.
    n_slacks: int = 25
    # Most training rows that Cronus is given: it keeps what every tree says about every row.
    cronus_rows: int = 141_397
    # The λ of the first rounds of staged misers, and of all that follow.
    staged_first: tuple[float, ...] = (1e-4,)
    staged_then: tuple[float, ...] = (1e-6, 3e-6, 1e-5)
    # How many rounds follow.
    staged_lengths: tuple[int, ...] = (10, 20, 40, 60)
    # Trade-offs that the searches begin with, and how long they search.
    n_searched: int = 8
    effort: float = 1.0
    n_jobs: int | None = None


# What there is to do, in words, and how: it gives a table of candidates.
Step: TypeAlias = "tuple[str, Callable[[], pd.DataFrame]]"

# A run of a few seconds, which shows nothing but that things work.
SMALL = RankingScale(
    max_iter=12,
    tradeoffs=(1e-5, 1e-4),
    highest_prices=(1.0, 100.0),
    cascaded=(1e-5,),
    cronus_tradeoffs=(1e-6, 1e-5),
    cronus_l1=(0.5,),
    n_slacks=5,
    staged_first=(1e-3,),
    staged_then=(1e-5,),
    n_searched=3,
    effort=0.05,
)


@dataclass(frozen=True)
class Experiment:
    """Folds to run on, and how to speak of them."""

    # One line for every figure: what the data is.
    title: str
    cost_unit: str
    folds: Sequence[Fold]
    # What tells this data from other data, for the settings of the steps.
    data: Mapping[str, Any]
    # What one of the folds is called.
    called: str = "fold"


def run_ranking(
    experiment: Experiment, scale: RankingScale, workspace: Workspace, only: str | None = None
) -> Results:
    """Run all methods on all folds; write the tables and figures.

    Parameters
    ----------
    experiment : Experiment
    scale : RankingScale
        How much is tried. Results do not depend on its ``n_jobs``.
    workspace : Workspace
        Where results are written, and finished steps kept.
    only : str, optional
        One of our later methods, which alone is run again; what the others have chosen is read
        from the tables that are there.
    """
    settings = {"version": __version__, "data": dict(experiment.data), **FIXED, **asdict(scale)}
    space = Workspace(workspace.out, settings, workspace.told)
    runs = [FoldRun(fold, scale, space) for fold in experiment.folds]
    if only is not None:
        return _run_again(experiment, runs, space, only)
    candidates = _all_done([step for run in runs for step in run.steps()], space)
    found = _tables(candidates, runs)
    for name, table in found.items():
        space.write_table(name, table.assign(data=experiment.title))
    drawn = {
        "traces": draw_traces(runs[0].path(experiment.cost_unit)),
        "methods": draw_methods(at_budgets(candidates, FINE_BUDGETS)),
        "features": draw_features(found["features"]),
    }
    # Only traces cannot be averaged over folds.
    of_one = f"; {experiment.called} {runs[0].fold.name}" if len(runs) > 1 else ""
    titles = {"traces": experiment.title + of_one}
    figures = {
        name: save_figure(ax, titles.get(name, experiment.title), space, name)
        for name, ax in drawn.items()
    }
    return Results(experiment.title, found, figures)


def _run_again(
    experiment: Experiment, runs: Sequence[FoldRun], space: Workspace, only: str
) -> Results:
    """Run one method, and tell of it beside what is told of the others already."""
    import pandas as pd

    if only not in (known := list(runs[0].ours)):
        raise ValueError(f"only must be one of {known}, got {only!r}")
    steps = [(f"fold {run.fold.name}: {only}", run.ours[only]) for run in runs]
    again = _all_done(steps, space)
    kept = {}
    for name in ("curves", "points"):
        told = pd.read_csv(space.out / f"{name}.csv", dtype={"fold": str})
        kept[name] = told.loc[told["method"] != only, CANDIDATES]
    # A method's choices for growing budgets are all that the other tables are made of.
    whole = _compared(pd.concat([kept["curves"], again], ignore_index=True))
    points = pd.concat([kept["points"], _points(again)], ignore_index=True)
    found = {"points": points, **whole}
    for name, table in found.items():
        space.write_table(name, table.assign(data=experiment.title))
    drawn = draw_methods(at_budgets(whole["curves"], FINE_BUDGETS))
    figures = {"methods": save_figure(drawn, experiment.title, space, "methods")}
    return Results(experiment.title, found, figures)


def _all_done(steps: Sequence[Step], space: Workspace) -> pd.DataFrame:
    """The candidates of all steps."""
    import pandas as pd

    tables = []
    for done, (what, make) in enumerate(steps):
        space.told(what, done, len(steps))
        tables.append(make())
    space.told("tables and figures", len(steps), len(steps))
    return pd.concat([table for table in tables if len(table)], ignore_index=True)


def _tables(candidates: pd.DataFrame, runs: Sequence[FoldRun]) -> dict[str, pd.DataFrame]:
    """What is told of all candidates."""
    import pandas as pd

    return {
        "points": _points(candidates),
        **_compared(candidates),
        "features": pd.concat([run.shares_bought() for run in runs], ignore_index=True),
    }


def _points(candidates: pd.DataFrame) -> pd.DataFrame:
    """The best round of each setting."""
    # Slacks of early exits are too many to tell; the curves have those that matter.
    told = candidates[~candidates["method"].isin([EARLY_EXIT, MISER_EXIT, STAGED_EXIT])]
    return best_of_each(told, ["method", "fold", "tradeoff", "parameter"])


def _compared(candidates: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """What is told of methods beside each other."""
    import pandas as pd

    reached = [comparison(candidates, share) for share in SHARES]
    return {
        "curves": curves(candidates),
        "comparison": pd.concat(reached, ignore_index=True),
        "budgets": at_budgets(candidates, BUDGETS),
    }


class FoldRun:
    """The methods on one fold, step by step."""

    # What the steps depend on beside their names. The number of threads changes nothing.
    TREES = ("version", "data", "max_iter", *FIXED)
    EXITS = (*TREES, "n_slacks")
    SEARCH = (*TREES, "n_searched", "effort")
    STAGED = (
        "version",
        "data",
        *FIXED,
        "n_slacks",
        "staged_first",
        "staged_then",
        "staged_lengths",
    )
    CASCADES = (*TREES, "cronus_tradeoffs", "cronus_l1", "cronus_rows")

    def __init__(self, fold: Fold, scale: RankingScale, workspace: Workspace):
        self.fold = fold
        self.scale = scale
        self.workspace = workspace
        # Models that were trained in this run, with all their rounds.
        self._models: dict[float, MiserRanker] = {}

    def steps(self) -> Iterator[Step]:
        """What there is to do, in words, and how: each gives a table of candidates."""
        name = f"fold {self.fold.name}"
        for tradeoff in self.tradeoffs:
            yield f"{name}: miser, λ {tradeoff:g}", partial(self.plain, tradeoff)
        for price in self.scale.highest_prices:
            yield f"{name}: features up to {price:g}", partial(self.subset, price)
        for tradeoff in self.tradeoffs:
            yield f"{name}: early exit over λ {tradeoff:g}", partial(self.exits, tradeoff)
        for method, make in self.ours.items():
            yield f"{name}: {method}", make
        for tradeoff in (0.0, *self.scale.cascaded):
            yield f"{name}: Cronus over λ {tradeoff:g}", partial(self.cronus, tradeoff)

    @property
    def ours(self) -> dict[str, Callable[[], pd.DataFrame]]:
        """What the paper does not have: methods, and how their candidates are made."""
        return {FRONTIER: self.frontier, ROWS: self.rows, STAGED_EXIT: self.staged}

    @cached_property
    def tradeoffs(self) -> list[float]:
        """Every λ, 0 first."""
        return sorted({0.0, *self.scale.tradeoffs, *self.scale.cascaded})

    # -- plain models: stage-wise regression, misers, feature subsets ---------------------------

    def plain(self, tradeoff: float) -> pd.DataFrame:
        """Candidates of a miser: each of its rounds."""
        trace = self.trace(tradeoff)
        return self._named(self._rounds(trace, tradeoff), STAGEWISE, MISER, tradeoff)

    def subset(self, price: float) -> pd.DataFrame:
        """Candidates of stage-wise regression on the features that cost at most this."""
        kept = affordable(self.fold.costs, price)

        def make() -> pd.DataFrame:
            if len(kept) == self.fold.costs.n_features:
                return self.trace(0.0)
            return _trained_in_full(self.fold.columns(kept), 0.0, self.scale).traces

        trace = self.workspace.table(self._key("subset", price), make, self.TREES)
        return self._named(self._rounds(trace, price), SUBSETS, SUBSETS, 0.0)

    def trace(self, tradeoff: float) -> pd.DataFrame:
        """What a miser costs and scores after every round."""
        import pandas as pd

        arrays = self._trained(tradeoff)
        return pd.DataFrame({name: arrays[name] for name in arrays if name != "first_use"})

    def features_used(self, tradeoff: float) -> NDArray[np.bool_]:
        """Which features a miser uses at its best validation round."""
        first = self._trained(tradeoff)["first_use"]
        return (first >= 0) & (first < self._best_round(tradeoff))

    def model(self, tradeoff: float, least: int = 0) -> MiserRanker:
        """The miser at its best validation round, or a later one if it has so many.

        Trained anew if an earlier run wrote its trace.
        """
        if tradeoff not in self._models:
            self._models[tradeoff] = _trained_in_full(self.fold, tradeoff, self.scale).models[0]
        whole = self._models[tradeoff]
        return whole.truncate(min(max(least, self._best_round(tradeoff)), whole.n_iter_))

    def _trained(self, tradeoff: float) -> dict[str, NDArray[Any]]:
        """The columns of a miser's trace, and the round in which each feature is first used."""

        def make() -> dict[str, NDArray[Any]]:
            curve = _trained_in_full(self.fold, tradeoff, self.scale)
            model = self._models[tradeoff] = curve.models[0]
            first_use = np.full(self.fold.costs.n_features, -1)
            for feature, round_ in model.ensemble_.first_uses().items():
                first_use[feature] = round_
            columns = {str(name): column.to_numpy() for name, column in curve.traces.items()}
            return columns | {"first_use": first_use}

        return self.workspace.arrays(self._key("miser", tradeoff), make, self.TREES)

    def _best_round(self, tradeoff: float) -> int:
        points = TradeoffCurve(self.trace(tradeoff), [], SCORING).points
        return int(points["n_iter"].iloc[0])

    def _rounds(self, trace: pd.DataFrame, parameter: float) -> pd.DataFrame:
        """Every round of a trace; all documents cost the same, so one cost serves both parts."""
        table = trace.rename(columns={"score": "valid_score", "test_score": "score"})
        return table.assign(parameter=parameter, valid_cost=table["cost"])

    def _named(
        self, table: pd.DataFrame, over_stagewise: str, over_miser: str, tradeoff: float
    ) -> pd.DataFrame:
        """Candidates with their names.

        Stage-wise regression is the miser with λ = 0, so what was made with it counts for both.
        """
        import pandas as pd

        methods = [over_stagewise, over_miser] if tradeoff == 0 else [over_miser]
        told = table.assign(fold=self.fold.name, tradeoff=tradeoff)
        copies = [told.assign(method=method) for method in dict.fromkeys(methods)]
        return pd.concat(copies, ignore_index=True).reindex(columns=CANDIDATES)

    # -- beyond Algorithm 1: sets that are searched for, documents that pay for themselves ---------

    def frontier(self) -> pd.DataFrame:
        """Candidates of the search for sets of features: each round of each of its models."""

        def make() -> pd.DataFrame:
            return _searched(self.fold, "model", self.scale).traces

        trace = self.workspace.table(f"fold-{self.fold.name}/frontier", make, self.SEARCH)
        return self._named(self._rounds(trace, np.nan), FRONTIER, FRONTIER, np.nan)

    def rows(self) -> pd.DataFrame:
        """Candidates of models whose documents pay for what their own paths ask."""
        key = f"fold-{self.fold.name}/rows"
        table = self.workspace.table(key, self._make_rows, self.SEARCH)
        return self._named(table, ROWS, ROWS, np.nan)

    def _make_rows(self) -> pd.DataFrame:
        """What the curve names for growing budgets; documents cost what the meter says.

        The score to choose by is the curve's own, which has training queries in it that no model
        has seen.
        """
        import pandas as pd

        curve, rows = _searched(self.fold, "row", self.scale), []
        for _, point in curve.pareto().iterrows():
            model = curve.models[curve.position(point)]
            if isinstance(model, MiserRanker):  # others have no rounds to choose from
                model = model.truncate(int(point["n_iter"]))
            by = MeterReading(point["cost"], point.get("choice_score", point["score"]))
            told = (point["tradeoff"], int(point["n_trees"]), int(point["n_features"]))
            rows.append(_candidate_row(*told, by, read_meter(model, self.fold.test)))
        return pd.DataFrame(rows, columns=MEASURED)

    def staged(self) -> pd.DataFrame:
        """Candidates of early exits over misers whose first rounds buy next to nothing."""
        key = f"fold-{self.fold.name}/staged"
        table = self.workspace.table(key, self._make_staged, self.STAGED)
        return self._named(table, STAGED_EXIT, STAGED_EXIT, np.nan)

    def _make_staged(self) -> pd.DataFrame:
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for first, then in product(self.scale.staged_first, self.scale.staged_then):
            whole = self._staged_miser(first, then)
            for length in self.scale.staged_lengths:
                model = whole.truncate(min(EVERY + length, whole.n_iter_))
                rows += self._swept(EarlyExitRanker(model, every=EVERY, n_jobs=self.scale.n_jobs))
        return pd.DataFrame(rows, columns=MEASURED)

    def _staged_miser(self, first: float, then: float) -> MiserRanker:
        """Rounds up to the first exit at one λ, the others at a smaller one.

        Documents that leave at the first exit have then paid for what is cheap alone.
        """
        train = self.fold.train
        model = MiserRanker(
            costs=self.fold.costs, loss="squared_error", learning_rate=LEARNING_RATE,
            max_depth=DEPTH, n_jobs=self.scale.n_jobs, warm_start=True,
        )  # fmt: skip
        for tradeoff, n_rounds in ((first, EVERY), (then, EVERY + max(self.scale.staged_lengths))):
            model.set_params(tradeoff=tradeoff, max_iter=n_rounds)
            model.fit(train.X, train.y, train.copies, qid=train.qid)
        return model

    # -- early exits and cascades, over any of the models ----------------------------------------

    def exits(self, tradeoff: float) -> pd.DataFrame:
        """Candidates of early exits over a miser: every slack."""
        key, make = self._key("exits", tradeoff), partial(self._make_exits, tradeoff)
        table = self.workspace.table(key, make, self.EXITS)
        return self._named(table, EARLY_EXIT, MISER_EXIT, tradeoff)

    def _make_exits(self, tradeoff: float) -> pd.DataFrame:
        import pandas as pd

        whole = self.model(tradeoff)
        rows: list[dict[str, Any]] = []
        # Plain models may stop after any round, so there are early exits over shorter ones, too.
        for n_iter in sorted({whole.n_iter_ // part for part in SHORTER}):
            model = EarlyExitRanker(whole.truncate(n_iter), every=EVERY, n_jobs=self.scale.n_jobs)
            rows += self._swept(model)
        return pd.DataFrame(rows, columns=MEASURED)

    def _swept(self, unfitted: EarlyExitRanker) -> Iterator[dict[str, Any]]:
        """What each slack costs and scores; slacks are proposed by the validation data."""
        valid, test = self.fold.valid, self.fold.test
        model = unfitted.fit(valid.X, valid.y, qid=valid.qid)
        on_valid = list(model.sweep(valid.X, qid=valid.qid, thresholds=self.scale.n_slacks))
        slacks = [exits.threshold for exits in on_valid]
        on_test = model.sweep(test.X, qid=test.qid, thresholds=slacks)
        for before, after in zip(on_valid, on_test, strict=True):
            yield _candidate_row(
                before.threshold,
                model.estimator_.n_iter_,
                len(model.features_used_),
                reading(before.costs, before.raw[0], valid),
                reading(after.costs, after.raw[0], test),
            )

    def cronus(self, tradeoff: float) -> pd.DataFrame:
        """Candidates of Cronus over the trees of a miser: each of its own trade-offs."""
        key, make = self._key("cronus", tradeoff), partial(self._make_cronus, tradeoff)
        table = self.workspace.table(key, make, self.CASCADES)
        return self._named(table, CRONUS, MISER_CRONUS, tradeoff)

    def _make_cronus(self, tradeoff: float) -> pd.DataFrame:
        import pandas as pd

        base = self.model(tradeoff, LEAST_TREES)
        grid = product(self.scale.cronus_tradeoffs, self.scale.cronus_l1)
        rows = [self._cascade(base, *setting) for setting in grid] if base.n_iter_ else []
        return pd.DataFrame(rows, columns=MEASURED)

    def _cascade(self, base: MiserRanker, tradeoff: float, l1: float) -> dict[str, Any]:
        """Learn a cascade from the training rows; its thresholds come from validation."""
        valid, test = self.fold.valid, self.fold.test
        train = self.fold.train.first_rows(self.scale.cronus_rows)
        model = Cronus(base, tradeoff=tradeoff, l1=l1, n_jobs=self.scale.n_jobs)
        model.fit(
            train.X, train.y, train.copies, qid=train.qid, X_val=valid.X, y_val=valid.y,
            sample_weight_val=valid.copies, qid_val=valid.qid,
        )  # fmt: skip
        n_trees = model.predictor_.stages[-1].n_trees
        used = len(model.features_used_)
        return _candidate_row(
            tradeoff, n_trees, used, read_meter(model, valid), read_meter(model, test)
        )

    def _key(self, what: str, setting: float) -> str:
        return f"fold-{self.fold.name}/{what}-{setting!r}"

    # -- what is drawn --------------------------------------------------------------------------

    def path(self, cost_unit: str) -> TradeoffCurve:
        """All traces, for Figure 1 (left)."""
        import pandas as pd

        traces = pd.concat([self.trace(t) for t in self.tradeoffs], ignore_index=True)
        return TradeoffCurve(traces, [], SCORING, cost_unit)

    def shares_bought(self) -> pd.DataFrame:
        """Share of the features of each price that each λ buys, at its best round (Figure 2)."""
        import pandas as pd

        prices = self.fold.costs.prices()
        tables = []
        for tradeoff in self.tradeoffs:
            bought = (
                pd.Series(self.features_used(tradeoff))
                .groupby(prices)
                .agg(["sum", "size"])
                .reset_index()
            )
            bought.columns = ["price", "bought", "n_features"]
            tables.append(bought.assign(tradeoff=tradeoff, fold=self.fold.name))
        table = pd.concat(tables, ignore_index=True)
        return table.assign(share=table["bought"] / table["n_features"])


def _candidate_row(
    parameter: float, n_trees: int, n_features: int, on_valid: MeterReading, on_test: MeterReading
) -> dict[str, Any]:
    """A candidate, as far as it is measured."""
    values = (parameter, n_trees, n_features, *on_valid, *on_test)
    return dict(zip(MEASURED, values, strict=True))


def _trained_in_full(fold: Fold, tradeoff: float, scale: RankingScale) -> TradeoffCurve:
    """One miser with all its rounds, and what it costs and scores after each."""
    return _curve(fold, scale, tradeoffs=[tradeoff])


def _searched(fold: Fold, charge: str, scale: RankingScale) -> TradeoffCurve:
    """The frontier, of features that are bought for all documents or of documents that pay."""
    return _curve(fold, scale, charge, tradeoffs=scale.n_searched, effort=scale.effort)


def _curve(fold: Fold, scale: RankingScale, charge: str = "model", **asked: Any) -> TradeoffCurve:
    train, valid, test = fold.train, fold.valid, fold.test
    model = MiserRanker(
        costs=fold.costs, loss="squared_error", learning_rate=LEARNING_RATE, charge=charge,
        max_iter=scale.max_iter, max_depth=DEPTH, n_jobs=scale.n_jobs,
    )  # fmt: skip
    return whole_curve(
        model, train.X, train.y, sample_weight=train.copies, qid=train.qid,
        X_val=valid.X, y_val=valid.y, qid_val=valid.qid,
        X_test=test.X, y_test=test.y, qid_test=test.qid,
        scoring=SCORING, **asked,
    )  # fmt: skip
