"""The accuracy that each budget buys: a path of trade-offs, and the choice of a model.

One call trains a model per trade-off on data that is binned once, and keeps the whole trace of
each: what it costs and how well it scores after every round. A budget then picks among all of them.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from greedymiser.checkpoints import Checkpoint, Crew, Trainer, fingerprints
from greedymiser.costs import CostModel, Ledger
from greedymiser.estimators import (
    Miser,
    MiserRanker,
    fitted_like,
    warn_of_budget,
    watch_with,
    works_in_kernels,
)
from greedymiser.frontier import Candidate, FrontierSearch, Resources, Shop, front, spread
from greedymiser.parameters import Parameters
from greedymiser.preparation import (
    Given,
    check_same_queries,
    encode_held_out,
    read_costs,
)
from greedymiser.score_names import score_name
from greedymiser.threads import Threads, thread_count
from greedymiser.training import Model, blank_model, make_grower, root_gains
from greedymiser.trees import Ensemble

if TYPE_CHECKING:
    import pandas as pd

# Between the smallest positive trade-off and 0 there is always room; this is how far to jump.
STEP_TOWARDS_ZERO = 10.0

# Neighbours whose ratio is below this have nothing worth a model between them.
CLOSE = 1.2

# Rows times features from which on the models of a path go shopping only so often: measured, it
# costs nothing in score (docs/rounds.md).
LARGE, SHOPPING_INTERVAL = 10_000_000, 8

# Models of a path that are trained together.
TOGETHER = 2

# Sets of the path that the search starts from, and rounds of the fits under hard budgets that
# suggest more of them.
MOST_STARTS, BUDGETED, BUDGETED_ROUNDS = 16, 6, 12

# A budget is in a gap if its best model costs less than this share of it. Filling it is a short
# search.
GAP, FILL_EFFORT = 0.8, 0.25


class TradeoffCurve:
    """What each model costs and scores, after every round.

    Attributes
    ----------
    points : DataFrame
        One row per model: the round with the best validation score. Columns ``tradeoff, n_iter,
        n_trees, feature_cost, tree_cost, cost, score, n_features``, and ``test_score`` where test
        data was given. They are in the order of their trade-offs; a model that the search has
        found has a trade-off of 0, but may use only what its set of resources pays for. Where
        there was a search, ``found_by`` tells "path" and "search" apart.
    traces : DataFrame
        The same columns for every model and every round, from round 0, the constant model; and
        ``model``, the position in ``models``, where there was a search.
    models : list of estimators
        One per row of ``points``, with all its rounds.
    scoring : str
        Name of the score. Higher is better.
    cost_unit : str
        What costs are counted in, for labels.
    """

    def __init__(
        self, traces: pd.DataFrame, models: Sequence[Miser], scoring: str, cost_unit: str = ""
    ):
        self.scoring = scoring
        self.cost_unit = cost_unit
        # Trains more models; gone in copies that leave the process.
        self.workshop: Workshop | None = None
        self._take(traces, models)

    def _take(self, traces: pd.DataFrame, models: Sequence[Miser]) -> None:
        self.traces, self.models = traces, list(models)
        # Models of a path differ in their trade-offs.
        self._key = "model" if "model" in traces else "tradeoff"
        chosen = best_first(traces).drop_duplicates(self._key)
        self.points = chosen.sort_values(self._key, ignore_index=True)

    def best(self, budget: float | None = None, *, train: bool = True) -> Miser:
        """Best validation score among all models and all their prefixes that cost at most this.

        The estimator that is returned is fitted, and its ``cost_`` is within the budget.

        Parameters
        ----------
        budget : float, optional
            Most that a prediction may cost.
        train : bool
            Where the curve has a gap below the budget, train models for it; they become part of
            the curve. That takes a moment, and needs the data, which a curve holds on to until it
            is pickled. False answers from the models at hand.
        """
        if train and budget is not None and self.workshop is not None:
            self.best_row(budget)  # is it a budget?
            more = self.workshop.fill(self, float(budget))
            if more is not None:
                self._take(*more)
        row = self.best_row(budget)
        return self.models[self.position(row)].truncate(int(row["n_iter"]))

    def position(self, row: pd.Series) -> int:
        """Position in ``models`` of the model that a row of ``traces`` or ``points`` is about."""
        return int(np.flatnonzero(self.points[self._key] == row[self._key])[0])

    def trace(self, position: int) -> pd.DataFrame:
        """The rows of ``traces`` of one of the ``models``, round by round."""
        key = self.points[self._key].iloc[position]
        return self.traces[self.traces[self._key] == key].sort_values("n_iter")

    def __getstate__(self) -> dict[str, Any]:
        """Leave the data behind."""
        return {**vars(self), "workshop": None}

    def best_row(self, budget: float | None = None) -> pd.Series:
        """The row of ``traces`` that ``best`` returns the model of."""
        affordable = self.traces
        if budget is not None:
            if not isinstance(budget, Real):
                raise TypeError(f"budget must be a number, got {budget!r}")
            if not budget >= 0:
                raise ValueError(f"budget must not be negative, got {budget}")
            affordable = affordable[affordable["cost"] <= budget]
        if affordable.empty:
            raise ValueError(
                f"no model costs at most {budget}; the cheapest costs {self.traces['cost'].min():g}"
            )
        return best_first(affordable).iloc[0]

    def pareto(self) -> pd.DataFrame:
        """Rows of ``traces`` that no other row beats: none is as cheap and scores better."""
        scored = self.traces[self.traces["score"].notna()]
        best = front(scored["cost"].tolist(), scored["score"].tolist())
        return scored.iloc[best].reset_index(drop=True)

    def to_frame(self) -> pd.DataFrame:
        """Return a copy of ``points``."""
        return self.points.copy()

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write ``points`` as CSV."""
        self.points.to_csv(path, index=False)

    def plot(self, ax: Any = None) -> Any:
        """Draw score against cost: a trace per trade-off, the chosen rounds circled (Figure 1)."""
        from greedymiser.plotting import plot_curve

        return plot_curve(self, ax)

    def plot_features(self, ax: Any = None) -> Any:
        """Draw the share of features bought, by price, against the trade-off (Figure 2)."""
        from greedymiser.plotting import plot_features

        return plot_features(self, ax)

    def report(self, path: str | os.PathLike[str], title: str | None = None) -> None:
        """Write a page that shows the curve, and the model that a budget buys."""
        from greedymiser.report import write_report

        write_report(self, path, title)

    def __repr__(self) -> str:
        return f"<TradeoffCurve of {len(self.models)} models>\n{self.points}"


def tradeoff_curve(
    estimator: Miser,
    X: Any,
    y: ArrayLike,
    *,
    X_val: Any,
    y_val: ArrayLike,
    sample_weight: ArrayLike | None = None,
    sample_weight_val: ArrayLike | None = None,
    qid: ArrayLike | None = None,
    qid_val: ArrayLike | None = None,
    X_test: Any = None,
    y_test: ArrayLike | None = None,
    sample_weight_test: ArrayLike | None = None,
    qid_test: ArrayLike | None = None,
    tradeoffs: int | Sequence[float] = 8,
    search: str = "frontier",
    effort: float = 1.0,
    checkpoint: str | os.PathLike[str] | None = None,
    scoring: Any = None,
    n_jobs: int | None = None,
    verbose: int = 0,
    callback: Callable[[int, int], object] | None = None,
    cost_unit: str = "",
) -> TradeoffCurve:
    """For every budget the best model that it can buy; what each costs and scores, round by round.

    A path of trade-offs is trained first. Then a search compares sets of resources, beyond what
    buying greedily would find (see ``greedymiser.frontier``).

    Parameters
    ----------
    estimator : MiserRegressor, MiserClassifier or MiserRanker
        Its ``tradeoff`` is ignored; everything else is kept, but that early stopping is off unless
        it is True: the traces of the path run to ``max_iter``, those of the search end when they
        have not improved for long. On large data its ``shopping_interval`` of 1 becomes 8 for the
        path. It is not fitted itself.
    X, y, sample_weight, qid
        Training data.
    X_val, y_val, sample_weight_val, qid_val
        Validation data, which rounds and models are chosen by.
    X_test, y_test, sample_weight_test, qid_test : optional
        Test data, which is only scored.
    tradeoffs : int or sequence of float
        How many trade-offs to choose for the path: from the one at which nothing pays down to 0,
        each new one where cost (in its logarithm) and score change most. A sequence asks for
        exactly these models: nothing is searched beyond them.
    search : {"frontier", "path"}
        "path" for the path of trade-offs alone.
    effort : float
        How long to search: 2 allows twice the work, 0.5 half of it. Work is counted, not timed, so
        the same data gives the same curve everywhere.
    checkpoint : path, optional
        A folder where every finished model is kept. A run that was killed goes on from it, and ends
        with the same bits. A folder of other data or settings is refused.
    scoring : scorer name or callable, optional
        As the estimator's ``scoring``, which it replaces.
    n_jobs : int, optional
        Threads, as the estimator's ``n_jobs``, which it replaces.
    verbose : int
        1 says after each model how far things are, and about how long the rest will take.
    callback : callable, optional
        Called with the number of steps that are done, and how many there will be: one for each
        model of the path, and as many again for the search.
    cost_unit : str
        What costs are counted in, for labels.

    Returns
    -------
    TradeoffCurve
        An interruption returns the models of the path that were finished. The curve holds on to
        X, which must not be changed while ``best`` may train more.
    """
    require_pandas()
    blank = configured(estimator, scoring, n_jobs)
    for queries in (qid, qid_val, qid_test):
        check_takes_queries(blank, queries)
    tradeoffs = checked_tradeoffs(tradeoffs)
    check_search(search, effort)
    steps = Steps(tradeoffs, search, verbose, callback)
    with Threads(thread_count(blank.n_jobs)) as threads:
        path = Path(
            blank,
            Given(X, y, sample_weight, qid),
            Given(X_val, y_val, sample_weight_val, qid_val),
            Given(X_test, y_test, sample_weight_test, qid_test),
            threads,
            checkpoint,
        )
        workshop = Workshop(path, effort) if steps.has_search else None
        try:
            for some in path.choose(tradeoffs):
                for line in path.train(*some):
                    steps.model_done(line)
            if workshop is not None:
                workshop.search(steps.share_done)
                steps.end()
        except KeyboardInterrupt:
            if not path.models:
                raise
            done = f"interrupted: {len(path.models)} of {steps.n_models} trade-offs done"
            unfinished = len(path.models) == steps.n_models and steps.has_search
            warnings.warn(done + ", but not the search" * unfinished, stacklevel=2)
        return path.curve(cost_unit, workshop)


class Steps:
    """Tells how far a curve is."""

    def __init__(
        self,
        tradeoffs: int | Sequence[float],
        search: str,
        verbose: int,
        callback: Callable[[int, int], object] | None,
    ):
        if callback is not None and not callable(callback):
            raise TypeError(f"callback must be callable, got {callback!r}")
        self.n_models = tradeoffs if isinstance(tradeoffs, int) else len(tradeoffs)
        self.has_search = search == "frontier" and isinstance(tradeoffs, int)
        self.total = self.n_models * (1 + self.has_search)
        self.done = 0
        self._verbose = verbose
        self._callback = callback
        self._start = time.monotonic()

    def model_done(self, line: str) -> None:
        """A model of the path is done."""
        self._tell(min(self.done + 1, self.n_models), line)

    def share_done(self, share: float) -> None:
        """So much of the search is done."""
        done = self.n_models + int(min(share, 0.999) * self.n_models)
        if done > self.done:
            self._tell(done, "search")

    def end(self) -> None:
        """All is done."""
        self._tell(self.total, "search: done")

    def _tell(self, done: int, line: str) -> None:
        self.done = done
        if self._verbose:
            left = (time.monotonic() - self._start) / done * (self.total - done)
            rest = f", about {left:.0f} s left" if done < self.total else ""
            sys.stderr.write(f"{line}  ({done}/{self.total}{rest})\n")
        if self._callback is not None:
            self._callback(done, self.total)


class Path:
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
        given_test = estimator.check_features(given_test, reset=False, part="test")
        cases = encode_held_out(prepared.schema, given_test, "test")
        self._test = None if cases is None else prepared.hold_out(cases)

    @cached_property
    def crew(self) -> Crew:
        """Those who train; called together when the first model is wanted."""
        return Crew(self.trainer)

    def choose(self, tradeoffs: int | Sequence[float]) -> Iterator[list[float]]:
        """Yield the trade-offs that are asked for, or find good ones as the models come in.

        Several at a time, always the same on any number of threads.
        """
        if not isinstance(tradeoffs, int):
            for start in range(0, len(tradeoffs), TOGETHER):
                yield list(tradeoffs[start : start + TOGETHER])
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
        prepared = self.trainer.prepared
        grower = make_grower(prepared, self._params(0.0), self.trainer.start)
        gains = root_gains(prepared, grower)
        prices = grower.ledger.prices
        dear = (prices > 0) & (gains > 0)
        highest = np.max(gains[dear] / prices[dear], initial=0.0)
        return float(np.nextafter(highest, np.inf)) if highest > 0 else 0.0

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
        model = self.models[tradeoff]
        return model.truncate(model.model_.best_iter).cost_

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
            read_costs(params, schema.n_features, schema.columns)  # does the trade-off overflow?
        for (params,), model in zip(tasks, self.crew.run(Trainer.train, tasks), strict=True):
            if model.n_iter == 0:
                warn_of_budget(self.trainer.prepared, params, self.trainer.start)
            self.models[params.tradeoff] = self._fitted(model, params)
            yield self._last_line()

    def trace_of(self, allowed: NDArray[np.bool_]) -> pd.DataFrame:
        """The trace of a model that pays no prices, but may use only some features."""
        model = self.trainer.train(self._params(0.0), allowed)
        return _trace(fitted_like(self.blank, self.trainer.prepared.schema, model))

    def add(self, model: Model) -> None:
        """Take in a model that the search has found."""
        self.found.append(self._fitted(model, self._params(0.0)))

    def _fitted(self, model: Model, params: Parameters) -> Miser:
        fitted = fitted_like(self.blank, self.trainer.prepared.schema, model)
        fitted.tradeoff = params.tradeoff
        fitted.shopping_interval = params.shopping_interval
        trace = _trace(fitted)
        if self._test is not None:
            trace["test_score"] = self._test_scores(model.ensemble)
        self._traces[id(fitted)] = trace
        return fitted

    def _test_scores(self, ensemble: Ensemble) -> list[float]:
        """Score of the test rows after every round."""
        assert self._test is not None
        self._test.rows.start(ensemble.baseline)
        validation = self.trainer.watch(self._test)
        scores = [validation.score()]
        for round_ in range(ensemble.n_iter):
            for k in range(ensemble.n_outputs):
                validation.add_tree(ensemble.tree(round_ * ensemble.n_outputs + k), k)
            scores.append(validation.score())
        return scores

    def _last_line(self) -> str:
        """How the last model came out, in a line."""
        tradeoff = list(self.models)[-1]
        score = self._score(tradeoff)
        return f"tradeoff {tradeoff:.3g}: cost {self._cost(tradeoff):g}, score {score:.5g}"

    def curve(self, cost_unit: str, workshop: Workshop | None = None) -> TradeoffCurve:
        """The curve of all models so far; a workshop can train more for it."""
        name = score_name(self.blank.scoring, self.trainer.prepared.schema.loss)
        curve = TradeoffCurve(*self.all_models(), name, cost_unit)
        curve.workshop = workshop
        return curve

    def all_models(self) -> tuple[pd.DataFrame, list[Miser]]:
        """All traces and models, by trade-off; those of the search have none, the dearest first."""
        import pandas as pd

        found = [(0.0, -_best_cost(model), model, "search") for model in self.found]
        path = [(t, -_best_cost(model), model, "path") for t, model in self.models.items()]
        ordered = sorted([*path, *found], key=lambda line: line[:2])
        traces = []
        for position, (_, _, model, found_by) in enumerate(ordered):
            trace = self._traces[id(model)]
            if found:
                trace = trace.assign(found_by=found_by, model=position)
            traces.append(trace)
        return pd.concat(traces, ignore_index=True), [line[2] for line in ordered]


def _best_cost(model: Miser) -> float:
    return model.truncate(model.model_.best_iter).cost_


class Workshop:
    """Trains what the path leaves out."""

    def __init__(self, path: Path, effort: float):
        self.path = path
        self.shop = Shop(path.trainer.prepared.schema.costs)
        self._effort = effort
        self._filled: set[float] = set()
        self._lock = threading.Lock()

    def search(self, tell: Callable[[float], object] | None = None) -> None:
        """Search the frontier, and add what it is made of to the path's models."""
        for model in self._searched(self.path.params, self._effort, tell).chosen():
            self.path.add(model)

    def find(self) -> list[Candidate]:
        """Search the frontier, and tell what it is made of."""
        return self._searched(self.path.params, self._effort).frontier()

    def _searched(
        self,
        params: Parameters,
        effort: float,
        tell: Callable[[float], object] | None = None,
    ) -> FrontierSearch:
        search = FrontierSearch(self.path.crew, self.shop, params, effort, tell)
        search.run(self._starts())
        return search

    def _starts(self) -> list[Resources]:
        """Sets that the models of the path pass through, and some under hard budgets."""
        shop = self.shop
        sets, prices, scores = [], [], []
        for model in self.path.models.values():
            bought: Resources = 0
            uses = model.ensemble_.first_uses()
            for round_ in sorted(set(uses.values())):
                bought |= shop.owned(f for f, first in uses.items() if first == round_)
                score = np.nanmax(model.validation_score_[round_ + 1 :], initial=-np.inf)
                sets.append(bought)
                prices.append(shop.price(bought))
                scores.append(float(score))
        best = front(prices, scores)
        kept = spread([prices[i] for i in best], MOST_STARTS)
        return [*(sets[best[i]] for i in kept), *self._budgeted()]

    def _budgeted(self) -> list[Resources]:
        """What short fits under hard budgets would buy."""
        path, shop = self.path, self.shop
        most = shop.price(shop.owned(range(len(shop.needs))))
        if path.params.budget is not None:
            most = min(most, path.params.budget)
        if not shop.bundles or most < shop.price(shop.bundles[0]):
            return []
        costs = {tradeoff: _best_cost(model) for tradeoff, model in path.models.items()}
        found = []
        for budget in np.geomspace(shop.price(shop.bundles[0]), most, BUDGETED + 1)[:-1].tolist():
            # A trade-off at which the path would go on buying.
            tradeoff = max((t for t, cost in costs.items() if cost > budget), default=0.0)
            params = replace(
                path.params,
                tradeoff=tradeoff,
                budget=budget,
                max_iter=min(path.params.max_iter, BUDGETED_ROUNDS),
            )
            model = path.trainer.train(params, is_patient=False)
            found.append(shop.owned(model.ensemble.features))
        return found

    def fill(self, curve: TradeoffCurve, budget: float) -> tuple[pd.DataFrame, list[Miser]] | None:
        """Train what is missing for a budget; all models then, None if nothing was missing."""
        with self._lock:
            if budget in self._filled or not _has_gap(curve, budget):
                return None
            path = self.path
            limit = budget if path.params.budget is None else min(budget, path.params.budget)
            params = replace(path.params, budget=limit)
            with path.threads:
                models = self._searched(params, max(self._effort, 1.0) * FILL_EFFORT).chosen()
            for model in models:
                path.add(model)
            self._filled.add(budget)
            return path.all_models() if models else None


def _has_gap(curve: TradeoffCurve, budget: float) -> bool:
    """Whether a budget lies far above what its best model costs, and dearer ones are better."""
    best = curve.best_row(budget)
    dearer = curve.points[curve.points["cost"] > budget]
    is_better = bool((dearer["score"] > best["score"]).any())
    return is_better and best["cost"] < GAP * budget


def check_search(search: Any, effort: Any) -> None:
    """Raise if it is not one of the searches, or not an effort."""
    if search not in ("frontier", "path"):
        raise ValueError(f"search must be 'frontier' or 'path', got {search!r}")
    if not isinstance(effort, Real) or isinstance(effort, bool):
        raise TypeError(f"effort must be a number, got {effort!r}")
    if not 0 < float(effort) < np.inf:
        raise ValueError(f"effort must be positive and finite, got {effort}")


def require_pandas() -> None:
    """Say what is missing before anything is trained."""
    try:
        import pandas  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "a trade-off curve is a table and needs pandas, which is not installed; "
            "the extra greedymiser[frames] brings it"
        ) from error


def configured(estimator: Miser, scoring: Any, n_jobs: int | None) -> Miser:
    """A copy to work with; the user's estimator stays as it is."""
    if not isinstance(estimator, Miser):
        raise TypeError(f"estimator must be one of the Miser estimators, got {estimator!r}")
    changes: dict[str, Any] = {"warm_start": False, "verbose": 0}
    if estimator.early_stopping == "auto":  # a curve wants whole traces, as in the paper
        changes["early_stopping"] = False
    if estimator.random_state is None:  # same data, same curve
        changes["random_state"] = 0
    if scoring is not None:
        changes["scoring"] = scoring
    if n_jobs is not None:
        changes["n_jobs"] = n_jobs
    return clone(estimator).set_params(**changes)


def check_takes_queries(estimator: Miser, qid: Any) -> None:
    """Raise where queries are given to what has no use for them."""
    if qid is not None and not isinstance(estimator, MiserRanker):
        raise TypeError(f"qid is for rankers, but the estimator is a {type(estimator).__name__}")


def checked_tradeoffs(tradeoffs: Any) -> int | list[float]:
    """How many trade-offs to choose, or which ones to train, each once."""
    if isinstance(tradeoffs, Integral):
        if tradeoffs < 1:
            raise ValueError(f"tradeoffs must be at least 1, got {tradeoffs}")
        return int(tradeoffs)
    if isinstance(tradeoffs, str | bytes) or not isinstance(tradeoffs, Iterable):
        raise TypeError(
            f"tradeoffs must be a number of them, or a sequence of numbers, got {tradeoffs!r}"
        )
    given = list(tradeoffs)
    if not given:
        raise ValueError("tradeoffs must name at least one trade-off, got an empty sequence")
    for value in given:
        if not isinstance(value, Real):
            raise TypeError(f"tradeoffs must be numbers, got {value!r}")
        if not 0 <= float(value) < np.inf:
            raise ValueError(f"tradeoffs must be finite and not negative, got {value}")
    return list(dict.fromkeys(map(float, given)))


def _trace(model: Miser) -> pd.DataFrame:
    """What a model costs and scores after every round, from the constant on."""
    import pandas as pd

    rounds = np.arange(model.n_iter_ + 1)
    n_trees = rounds * model.ensemble_.n_outputs
    first_use = model.ensemble_.first_uses()
    bills = _bills(model.costs_, first_use, len(rounds))
    per_tree = model.costs_.tree_cost
    return pd.DataFrame(
        {
            "tradeoff": model.tradeoff,
            "n_iter": rounds,
            "n_trees": n_trees,
            "feature_cost": bills,
            "tree_cost": per_tree * n_trees,
            # The same rounding as cost_: one sum of all resources and all trees.
            "cost": _bills(model.costs_, first_use, len(rounds), n_trees),
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


def best_first(rows: pd.DataFrame) -> pd.DataFrame:
    """Best score first; of equals the cheapest, then the shortest."""
    return rows.sort_values(["score", "cost", "n_trees"], ascending=[False, True, True])
