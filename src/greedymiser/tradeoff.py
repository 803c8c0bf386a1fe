"""The accuracy that each budget buys: a path of trade-offs, and the choice of a model.

One call trains a model per trade-off on data that is binned once, and keeps the whole trace of
each: what it costs and how well it scores after every round. A budget then picks among all of them.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from greedymiser.costs import CostModel, Ledger
from greedymiser.estimators import (
    Miser,
    MiserRanker,
    fitted_like,
    warn_of_budget,
    watch_with,
)
from greedymiser.parameters import Parameters
from greedymiser.preparation import (
    Given,
    check_same_queries,
    encode_held_out,
    read_costs,
)
from greedymiser.score_names import score_name
from greedymiser.threads import Threads, thread_count
from greedymiser.training import blank_model, make_grower, root_gains, train
from greedymiser.trees import Ensemble

if TYPE_CHECKING:
    import pandas as pd

# Between the smallest positive trade-off and 0 there is always room; this is how far to jump.
STEP_TOWARDS_ZERO = 10.0

# Neighbours whose ratio is below this have nothing worth a model between them.
CLOSE = 1.2


class TradeoffCurve:
    """What each trade-off costs and scores, after every round.

    Attributes
    ----------
    points : DataFrame
        One row per trade-off, ascending: the round with the best validation score. Columns
        ``tradeoff, n_iter, n_trees, feature_cost, tree_cost, cost, score, n_features``, and
        ``test_score`` where test data was given.
    traces : DataFrame
        The same columns for every trade-off and every round, from round 0, the constant model.
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
        self.traces = traces
        self.models = list(models)
        self.scoring = scoring
        self.cost_unit = cost_unit
        chosen = best_first(traces).drop_duplicates("tradeoff")
        self.points = chosen.sort_values("tradeoff", ignore_index=True)

    def best(self, budget: float | None = None) -> Miser:
        """Best validation score among all models and all their prefixes that cost at most this.

        The estimator that is returned is fitted, and its ``cost_`` is within the budget.
        """
        row = self.best_row(budget)
        model = self.models[int(np.flatnonzero(self.points["tradeoff"] == row["tradeoff"])[0])]
        return model.truncate(int(row["n_iter"]))

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
        ordered = scored.sort_values(["cost", "score"], ascending=[True, False])
        record = ordered["score"].cummax()
        is_new = record > record.shift(fill_value=-np.inf)
        return ordered[is_new].reset_index(drop=True)

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
        return f"<TradeoffCurve of {len(self.models)} trade-offs>\n{self.points}"


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
    scoring: Any = None,
    n_jobs: int | None = None,
    verbose: int = 0,
    callback: Callable[[int, int], object] | None = None,
    cost_unit: str = "",
) -> TradeoffCurve:
    """Train a model per trade-off and keep what each costs and scores after every round.

    Parameters
    ----------
    estimator : MiserRegressor, MiserClassifier or MiserRanker
        Its ``tradeoff`` is ignored; everything else is kept, but that early stopping is off unless
        it is True: the traces run to ``max_iter``. It is not fitted itself.
    X, y, sample_weight, qid
        Training data.
    X_val, y_val, sample_weight_val, qid_val
        Validation data, which rounds and models are chosen by.
    X_test, y_test, sample_weight_test, qid_test : optional
        Test data, which is only scored.
    tradeoffs : int or sequence of float
        Trade-offs to train, or how many to choose: from the one at which nothing pays down to 0,
        each new one where the curve has its widest gap in cost.
    scoring : scorer name or callable, optional
        As the estimator's ``scoring``, which it replaces.
    n_jobs : int, optional
        Threads, as the estimator's ``n_jobs``, which it replaces.
    verbose : int
        1 says after each model how far things are.
    callback : callable, optional
        Called with the number of models that are done, and how many there will be.
    cost_unit : str
        What costs are counted in, for labels.

    Returns
    -------
    TradeoffCurve
        An interruption returns the models that were finished.
    """
    require_pandas()
    blank = configured(estimator, scoring, n_jobs)
    for queries in (qid, qid_val, qid_test):
        check_takes_queries(blank, queries)
    tradeoffs = checked_tradeoffs(tradeoffs)
    total = tradeoffs if isinstance(tradeoffs, int) else len(tradeoffs)
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable, got {callback!r}")
    with Threads(thread_count(blank.n_jobs)) as threads:
        path = Path(
            blank,
            Given(X, y, sample_weight, qid),
            Given(X_val, y_val, sample_weight_val, qid_val),
            Given(X_test, y_test, sample_weight_test, qid_test),
            threads,
        )
        try:
            for tradeoff in path.choose(tradeoffs):
                path.train(tradeoff)
                if verbose:
                    sys.stderr.write(f"{path.last_line()}  ({len(path.models)}/{total})\n")
                if callback is not None:
                    callback(len(path.models), total)
        except KeyboardInterrupt:
            if not path.models:
                raise
            done = len(path.models)
            warnings.warn(f"interrupted: {done} of {total} trade-offs done", stacklevel=2)
        return path.curve(cost_unit)


class Path:
    """Models for one trade-off after the other, on data that is placed once."""

    def __init__(
        self, estimator: Miser, given: Given, given_val: Given, given_test: Given, threads: Threads
    ):
        if given_val.X is None or given_val.y is None:
            raise ValueError("tradeoff_curve needs X_val and y_val: rounds are chosen by them")
        self.models: dict[float, Miser] = {}
        self._traces: list[pd.DataFrame] = []
        self._blank = estimator
        self._prepared = estimator.prepare(given, given_val, threads)
        schema = self._prepared.schema
        self._start = blank_model(self._prepared, Parameters.of(estimator))
        self._watch = watch_with(estimator, schema)
        check_same_queries(given, given_test, "test")
        given_test = estimator.check_features(given_test, reset=False, part="test")
        cases = encode_held_out(schema, given_test, "test")
        self._test = None if cases is None else self._prepared.hold_out(cases)

    def choose(self, tradeoffs: int | Sequence[float]) -> Iterator[float]:
        """Yield the trade-offs that are asked for, or find good ones as the models come in."""
        if not isinstance(tradeoffs, int):
            yield from tradeoffs
            return
        yield 0.0
        highest = self.highest()
        if tradeoffs > 1 and highest > 0:
            yield highest
        while 1 < len(self.models) < tradeoffs:
            following = self._widest_gap()
            if following is None:
                return
            yield following

    def highest(self) -> float:
        """Least trade-off at which no feature that costs anything pays at the first root."""
        grower = make_grower(self._prepared, self._params(0.0), self._start)
        gains = root_gains(self._prepared, grower)
        prices = grower.ledger.prices
        dear = (prices > 0) & (gains > 0)
        highest = np.max(gains[dear] / prices[dear], initial=0.0)
        return float(np.nextafter(highest, np.inf)) if highest > 0 else 0.0

    def _widest_gap(self) -> float | None:
        """A trade-off between the two neighbours whose costs differ most; None if none differ."""
        known = sorted(self.models)
        costs = [self._cost(tradeoff) for tradeoff in known]
        gaps = np.abs(np.diff(costs))
        # Some gaps cannot be filled: what is sold in one piece has no price in between.
        low, high = np.array(known[:-1]), np.array(known[1:])
        gaps[(low > 0) & (high < low * CLOSE)] = 0.0
        if not gaps.max() > 0:
            return None
        i = int(np.argmax(gaps))
        return (
            high[i] / STEP_TOWARDS_ZERO
            if low[i] == 0
            else float(np.sqrt(low[i]) * np.sqrt(high[i]))
        )

    def _cost(self, tradeoff: float) -> float:
        model = self.models[tradeoff]
        return model.truncate(model.model_.best_iter).cost_

    def _params(self, tradeoff: float) -> Parameters:
        return replace(Parameters.of(self._blank), tradeoff=tradeoff)

    def train(self, tradeoff: float) -> None:
        """Train one model and write its trace down."""
        params, schema = self._params(tradeoff), self._prepared.schema
        read_costs(params, schema.n_features, schema.columns)  # does the trade-off overflow?
        model = train(self._prepared, params, self._start, self._watch)
        if model.stopped == "interrupted":
            raise KeyboardInterrupt
        if model.n_iter == 0:
            warn_of_budget(self._prepared, params, self._start)
        fitted = fitted_like(self._blank, schema, model)
        fitted.tradeoff = tradeoff
        trace = _trace(fitted)
        if self._test is not None:
            trace["test_score"] = self._test_scores(model.ensemble)
        self.models[tradeoff] = fitted
        self._traces.append(trace)

    def _test_scores(self, ensemble: Ensemble) -> list[float]:
        """Score of the test rows after every round."""
        assert self._test is not None
        self._test.rows.start(ensemble.baseline)
        validation = self._watch(self._test)
        scores = [validation.score()]
        for round_ in range(ensemble.n_iter):
            for k in range(ensemble.n_outputs):
                validation.add_tree(ensemble.tree(round_ * ensemble.n_outputs + k), k)
            scores.append(validation.score())
        return scores

    def last_line(self) -> str:
        """How the last model came out, in a line."""
        tradeoff, model = list(self.models.items())[-1]
        score = model.validation_score_[model.model_.best_iter]
        return f"tradeoff {tradeoff:.3g}: cost {self._cost(tradeoff):g}, score {score:.5g}"

    def curve(self, cost_unit: str) -> TradeoffCurve:
        import pandas as pd

        traces = pd.concat(self._traces, ignore_index=True)
        traces = traces.sort_values(["tradeoff", "n_iter"], ignore_index=True)
        models = [self.models[tradeoff] for tradeoff in sorted(self.models)]
        name = score_name(self._blank.scoring, self._prepared.schema.loss)
        return TradeoffCurve(traces, models, name, cost_unit)


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
            "score": model.validation_score_,
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
