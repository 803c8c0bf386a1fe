"""The accuracy that each budget buys: a path of trade-offs, and the choice of a model.

One call trains a model per trade-off on data that is binned once, and keeps the whole trace of
each: what it costs and how well it scores after every round. A budget then picks among all of them.
"""

from __future__ import annotations

import bisect
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone

from greedymiser._core.amounts import check_unit, money, plain_score_name, rounded_score
from greedymiser._core.progress import PATIENCE, Bar, somebody_looks
from greedymiser._core.text_tables import aligned, html_table
from greedymiser._core.threads import Threads, thread_count
from greedymiser.cascades.candidates import front
from greedymiser.curve.frontier import Frontier
from greedymiser.curve.models import CurveModels
from greedymiser.curve.path import TradeoffPath
from greedymiser.curve.summary import (
    ValidationRows,
    front_steps,
    kept_errors,
    recommendation,
    step_table,
    total_in_words,
)
from greedymiser.estimators import BudgetWarning, Miser, MiserRanker
from greedymiser.scoring import TOTAL_COST
from greedymiser.training.preparation import Inputs

if TYPE_CHECKING:
    import pandas as pd


class TradeoffCurve:
    """What each model costs and scores, after every round.

    Attributes
    ----------
    points : DataFrame
        One row per model: the round with the best validation score. Columns ``tradeoff, n_iter,
        n_trees, feature_cost, tree_cost, cost, score, n_features``, and ``test_score`` where test
        data was given. They are in the order of their trade-offs; a model that the search has
        found has a trade-off of 0, but may use only what its set of resources pays for. Where
        there was a search, ``found_by`` tells "path", "search" and "gates" (where rows pay, see
        ``GatedClassifier``) apart; ``choice_score`` is what
        ``best`` goes by where sets were compared by cross-fitting as well, and
        ``prior_correction`` the power of class frequencies that probabilities are divided by, where
        the score counts classes equally and that was better. With ``scoring="total_cost"``,
        ``errors`` is what errors cost: minus ``score``, less ``cost``.
    traces : DataFrame
        The same columns for every model and every round, from round 0, the constant model; and
        ``model``, the position in ``models``, where there was a search.
    models : list of estimators
        One per row of ``points``, with all its rounds.
    scoring : str
        Name of the score. Higher is better.
    cost_unit : str
        What costs are counted in, for labels.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from greedymiser import MiserRegressor, tradeoff_curve
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = MiserRegressor(max_iter=10)
    >>> curve = tradeoff_curve(
    ...     model, X[:300], y[:300], X_val=X[300:], y_val=y[300:], tradeoffs=[0.0, 100.0])
    >>> len(curve.points), len(curve.models)
    (2, 2)
    >>> curve.best(budget=3).cost_ <= 3
    True
    """

    def __init__(
        self, traces: pd.DataFrame, models: Sequence[Miser], scoring: str, cost_unit: str = ""
    ):
        self.scoring = scoring
        self.cost_unit = cost_unit
        # Trains more models; gone in copies that leave the process.
        self.frontier: Frontier | None = None
        # Tells how certain scores are; in such copies, what was told of the front.
        self.validation: ValidationRows | dict[tuple[int, int], float | None] | None = None
        self._take(traces, models)
        # The points between which gaps are filled: what fills one must not make another.
        best = _unbeaten(self.points)
        self._first_front = best["cost"].tolist(), best[chosen_by(best)].tolist()

    def _take(self, traces: pd.DataFrame, models: Sequence[Miser]) -> None:
        self.traces, self.models = traces, list(models)
        # Models of a path differ in their trade-offs.
        self._key = "model" if "model" in traces else "tradeoff"
        chosen = best_first(traces).drop_duplicates(self._key)
        self.points = chosen.sort_values(self._key, ignore_index=True)

    def best(self, budget: float | None = None, *, train: bool = True) -> Miser:
        """Best score among all models and all their prefixes that cost at most this.

        The score is that of the validation rows, and where sets were compared by cross-fitting,
        what both together say (``choice_score``). The answer does not depend on what was asked
        before.

        The estimator that is returned is fitted, and its ``cost_`` is within the budget; with
        ``charge="row"``, the mean cost of the validation rows is. With a budget of 0 the model uses
        only free features. Where a budget buys nothing useful the model is a constant, and a
        ``BudgetWarning`` says so, as ``fit`` does.

        Parameters
        ----------
        budget : float, optional
            Most that a prediction may cost.
        train : bool
            Where the curve has a gap around the budget, train models for it; they become part of
            the curve. That takes a moment, and needs the data, which a curve holds on to until it
            is pickled. False answers from the models at hand.
        """
        row = self.best_row(budget)
        if train and budget is not None and self.frontier is not None:
            costs, scores = self._first_front
            position = bisect.bisect_right(costs, budget) - 1
            is_between = 0 <= position < len(costs) - 1
            with Bar(100, "percent", is_shown=somebody_looks(), delay=PATIENCE) as bar:
                if is_between and self.frontier.fill(
                    costs, scores, position, lambda share: bar.move_to(int(100 * share))
                ):
                    self._take(*self.frontier.models.tables())
                    row = self.best_row(budget)
        model = self.models[self.position(row)]
        if isinstance(model, Miser):  # others have no rounds to choose from
            model = model.truncate(int(row["n_iter"]))
        if budget is not None and not model.features_used_:
            _warn_of_budget(self, budget, row)
        return model

    def position(self, row: pd.Series) -> int:
        """Position in ``models`` of the model that a row of ``traces`` or ``points`` is about."""
        return int(np.flatnonzero(self.points[self._key] == row[self._key])[0])

    def trace(self, position: int) -> pd.DataFrame:
        """The rows of ``traces`` of one of the ``models``, round by round."""
        key = self.points[self._key].iloc[position]
        return self.traces[self.traces[self._key] == key].sort_values("n_iter")

    def __getstate__(self) -> dict[str, Any]:
        """Leave the data behind."""
        return {**vars(self), "frontier": None, "validation": kept_errors(self)}

    def best_row(self, budget: float | None = None) -> pd.Series:
        """The row of ``traces`` that ``best`` returns the model of."""
        affordable = self.traces
        if budget is not None:
            if not isinstance(budget, Real):
                raise TypeError(f"budget must be a number, got {budget!r}")
            if np.isnan(budget):
                raise ValueError("budget must be an amount, or None for any; got nan")
            if budget < 0:
                raise ValueError(f"budget must not be negative, got {budget}")
            affordable = affordable[affordable["cost"] <= budget]
        if affordable.empty:
            raise ValueError(
                f"no model costs at most {budget}; the cheapest costs {self.traces['cost'].min():g}"
            )
        return best_first(affordable).iloc[0]

    def pareto(self) -> pd.DataFrame:
        """Rows of ``traces`` that no other row beats: none is as cheap and scores better."""
        return _unbeaten(self.traces)

    def to_frame(self) -> pd.DataFrame:
        """Return a copy of ``points``."""
        return self.points.copy()

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write ``points`` as CSV."""
        self.points.to_csv(path, index=False)

    def plot(
        self, ax: Any = None, *, paths: bool = False, baselines: Mapping[str, Any] | None = None
    ) -> Any:
        """Draw the best score for each budget, and what each step of it buys.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Where to draw; a new figure by default.
        paths : bool
            Draw the models of every trade-off, too, as they grow.
        baselines : mapping from name to (cost, score) or to fitted model, optional
            Other models to compare with, such as the one in use.

        Returns
        -------
        matplotlib Axes
            As ``greedymiser.plotting.plot_curve`` has it.
        """
        from greedymiser.plotting import plot_curve

        return plot_curve(self, ax, paths=paths, baselines=baselines)

    def plot_features(self, ax: Any = None) -> Any:
        """Draw which models buy what: features by resource, models by cost.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        matplotlib Axes
            As ``greedymiser.plotting.plot_features`` has it.
        """
        from greedymiser.plotting import plot_features

        return plot_features(self, ax)

    def report(
        self,
        path: str | os.PathLike[str],
        title: str | None = None,
        X: Any = None,
        *,
        baselines: Mapping[str, Any] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a page that shows the curve, and what the model for a budget buys.

        Parameters
        ----------
        path : path
            Where to write; a file of that name is replaced.
        title : str, optional
            Heading of the page; "What each budget buys" by default.
        X : array, sparse matrix or data frame, optional
            Rows over which the protocols of models are counted whose rows pay for themselves.
        baselines : mapping from name to (cost, score) or to fitted model, optional
            Other models to compare with.
        about : mapping from str to Any, optional
            Where the curve comes from: ``{"file": "loans.csv"}``.
        """
        from greedymiser.plotting.report import write_report

        write_report(self, path, title, X, baselines=baselines, about=about)

    def __repr__(self) -> str:
        front, text = self.pareto(), f"TradeoffCurve of {len(self.models)} models"
        if front.empty:
            return f"<{text}>"
        ends = front.iloc[[0, -1]]
        if self.scoring == TOTAL_COST:
            first, last = (money(-score, self.cost_unit) for score in ends["score"])
            return f"<{text}, features and errors from {first} to {last} a row>"
        first, last = (
            f"{rounded_score(score)} for {money(cost, self.cost_unit)}"
            for score, cost in zip(ends["score"], ends["cost"], strict=True)
        )
        return f"<{text}, {plain_score_name(self.scoring)} from {first} to {last}>"

    def __str__(self) -> str:
        heads, rows = step_table(self, front_steps(self), most=2)
        text = f"{self!r}\n{aligned([heads, *rows], left={len(heads) - 1})}"
        return f"{text}\n{total_in_words(self)}" if self.scoring == TOTAL_COST else text

    def _repr_html_(self) -> str:
        heads, rows = step_table(self, front_steps(self))
        rows = [[cell.replace("<- rec", "\N{LEFTWARDS ARROW} rec") for cell in row] for row in rows]
        caption = f"{repr(self).strip('<>')}: {recommendation(self)}"
        return html_table(caption, heads, rows, left={len(heads) - 1})


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
    buying greedily would find (see ``greedymiser.curve.frontier``).

    Parameters
    ----------
    estimator : MiserRegressor, MiserClassifier or MiserRanker
        Its ``tradeoff`` is ignored; everything else is kept, except that ``early_stopping="auto"``
        means that traces end when they have not improved for long, and without a search that they
        run to ``max_iter``. From a million rows × features × trees of a round on, its
        ``shopping_interval`` of 1 becomes 8 for the path. It is not fitted itself.
    X, y : array, sparse matrix or data frame, and array-like
        Training data.
    sample_weight, qid : array-like, optional
        Weights of the training rows, and for a ranker the query of each row.
    X_val, y_val : array, sparse matrix or data frame, and array-like
        Validation data, by which rounds and models are chosen.
    sample_weight_val, qid_val : array-like, optional
        Its weights and queries.
    X_test, y_test, sample_weight_test, qid_test : optional
        Test data, which is only scored.
    tradeoffs : int or sequence of float
        How many trade-offs to choose for the path: from the one at which nothing pays down to 0,
        each new one where cost (in units and in its logarithm) and score change most. Where rows
        pay, the search adds a path for everybody, and more trade-offs if they take little time. A
        sequence asks for exactly these models: nothing is searched beyond them.
    search : {"frontier", "path"}
        "path" for the path of trade-offs only.
    effort : float
        How long to search: 2 allows twice the work, 0.5 half of it. Work is counted, not timed, so
        the same data gives the same curve everywhere.
    checkpoint : path, optional
        A folder where every finished model is kept. A run that was killed and is started again
        continues from it, and ends with the same bits. A folder of other data or settings is an
        error.
    scoring : scorer name or callable, optional
        As the estimator's ``scoring``, which it replaces.
    n_jobs : int, optional
        Threads, as the estimator's ``n_jobs``, which it replaces.
    verbose : int
        1 shows a progress bar, in a terminal or a notebook, and a line for each model.
    callback : callable, optional
        Called with the number of steps that are done, and how many there will be: one for each
        model of the path, and as many again for the search.
    cost_unit : str
        What costs are counted in, for labels.

    Returns
    -------
    TradeoffCurve
        An interruption returns the models of the path that were finished. The curve keeps a
        reference to X, which must not be changed while ``best`` may train more.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from greedymiser import MiserRegressor, tradeoff_curve
    >>> X, y = load_diabetes(return_X_y=True)
    >>> curve = tradeoff_curve(
    ...     MiserRegressor(max_iter=10), X[:300], y[:300], X_val=X[300:], y_val=y[300:],
    ...     tradeoffs=3, search="path", scoring="r2")
    >>> float(curve.points["cost"].min())  # at the largest trade-off nothing pays
    0.0
    """
    require_pandas()
    check_unit(cost_unit)
    blank = configured(estimator, scoring, n_jobs)
    for queries in (qid, qid_val, qid_test):
        check_takes_queries(blank, queries)
    tradeoffs = checked_tradeoffs(tradeoffs)
    check_search(search, effort)
    steps = CurveProgress(tradeoffs, search, verbose, callback)
    with Threads(thread_count(blank.n_jobs)) as threads:
        models = CurveModels(
            blank,
            Inputs(X, y, sample_weight, qid),
            Inputs(X_val, y_val, sample_weight_val, qid_val),
            Inputs(X_test, y_test, sample_weight_test, qid_test),
            threads,
            checkpoint,
        )
        models.check_score()
        # Without a search a curve has whole traces, as in the paper.
        may_stop = True if steps.has_search and estimator.early_stopping == "auto" else None
        path = TradeoffPath(models, is_patient=may_stop)
        frontier = Frontier(path, effort) if steps.has_search else None
        try:
            for some in path.choose(tradeoffs):
                for line in path.train(*some):
                    steps.model_done(line)
            if frontier is not None:
                models.correct_priors()
                frontier.search(steps.share_done)
                steps.end()
        except KeyboardInterrupt:
            n_done = min(len(path.by_tradeoff), steps.n_models)
            if not n_done:
                raise
            done = f"interrupted: {n_done} of {steps.n_models} trade-offs done"
            unfinished = n_done == steps.n_models and steps.has_search
            warnings.warn(done + ", but not the search" * unfinished, stacklevel=2)
        finally:
            steps.close()
        curve = TradeoffCurve(*models.tables(), models.score_name, cost_unit)
        curve.frontier = frontier
        curve.validation = ValidationRows.of(blank, models.trainer.prepared)
        return curve


class CurveProgress:
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
        self._callback = callback
        # Who waits for long is told, unasked; a callback tells it elsewhere.
        unasked = not verbose and callback is None and somebody_looks()
        delay = PATIENCE if unasked else 0.0
        self._bar = Bar(self.total, "steps", is_shown=bool(verbose) or unasked, delay=delay)
        self._says_lines = bool(verbose)

    def model_done(self, line: str) -> None:
        """A model of the path is done."""
        self._tell(min(self.done + 1, self.n_models), line)

    def share_done(self, share: float) -> None:
        """So much of the search is done."""
        done = self.n_models + int(min(share, 0.999) * self.n_models)
        if done > self.done:
            self._tell(done)

    def end(self) -> None:
        """All is done."""
        self._tell(self.total, "search: done")

    def close(self) -> None:
        """Nothing more will be done."""
        self._bar.close()

    def _tell(self, done: int, line: str = "") -> None:
        self.done = done
        if line and self._says_lines:
            self._bar.say(line)
        self._bar.move_to(done)
        if self._callback is not None:
            self._callback(done, self.total)


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
    if estimator.early_stopping == "auto":  # whoever wants models to end earlier says so
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
    chosen = list(tradeoffs)
    if not chosen:
        raise ValueError("tradeoffs must name at least one trade-off, got an empty sequence")
    for value in chosen:
        if not isinstance(value, Real):
            raise TypeError(f"tradeoffs must be numbers, got {value!r}")
        if not 0 <= float(value) < np.inf:
            raise ValueError(f"tradeoffs must be finite and not negative, got {value}")
    return list(dict.fromkeys(map(float, chosen)))


def _unbeaten(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows than which none is as cheap and better, the cheapest first."""
    scored = rows[rows["score"].notna()]
    best = front(scored["cost"].tolist(), scored[chosen_by(rows)].tolist())
    return scored.iloc[best].reset_index(drop=True)


def best_first(rows: pd.DataFrame) -> pd.DataFrame:
    """Best score first; of equals the cheapest, then the shortest."""
    by = [chosen_by(rows), "cost", "n_trees"]
    return rows.sort_values(by, ascending=[False, True, True])


def chosen_by(rows: pd.DataFrame) -> str:
    """Name of the column that choices are made by."""
    return "choice_score" if "choice_score" in rows else "score"


def _warn_of_budget(curve: TradeoffCurve, budget: float, best: pd.Series) -> None:
    """If it was the budget that left nothing but a constant, say what a better model costs."""
    better = curve.traces[curve.traces["score"] > best["score"]]
    if better.empty:
        return  # nothing is better than a constant, at any price
    warnings.warn(
        f"budget={budget:g} buys no useful feature on this curve, so the model is a constant; "
        f"the cheapest better one costs {better['cost'].min():g}",
        BudgetWarning,
        stacklevel=3,
    )
