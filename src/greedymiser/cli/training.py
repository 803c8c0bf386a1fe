"""From rows to models."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from greedymiser._core.amounts import plain_score_name, rounded_score, shortlist
from greedymiser.cli.errors import InputError, interruption
from greedymiser.cli.inputs import HOLD_OUT, SEED, Task, TrainingData
from greedymiser.cli.printing import price_of, shown_progress, warn
from greedymiser.costs.prices import did_you_mean

# To predict needs none of those that train: they are imported by the commands that do.
if TYPE_CHECKING:
    from greedymiser.curve.curve import TradeoffCurve
    from greedymiser.estimators import MiserClassifier, MiserRanker, MiserRegressor
    from greedymiser.training.boosting import Progress

    Model = MiserRegressor | MiserClassifier | MiserRanker


def make_estimator(
    task: Task,
    max_iter: int,
    max_depth: int,
    learning_rate: float,
    jobs: int | None,
    charge: str = "model",
    engine: str = "auto",
    settings: Sequence[str] = (),
) -> Model:
    """The estimator of a task; ``settings`` are more of its parameters, as NAME=VALUE."""
    from greedymiser.estimators import MiserClassifier, MiserRanker, MiserRegressor

    kinds: dict[Task, type[Model]] = {
        Task.regression: MiserRegressor,
        Task.classification: MiserClassifier,
        Task.ranking: MiserRanker,
    }
    estimator = kinds[task](
        max_iter=max_iter,
        max_depth=max_depth,
        learning_rate=learning_rate,
        n_jobs=jobs,
        charge=charge,
        engine=engine,
    )
    return estimator.set_params(**_read_settings(settings, estimator))


# Parameters that have an option of their own, or come from files.
OWN_OPTIONS = ("costs", "n_jobs", "tradeoff", "budget", "scoring", "warm_start", "verbose")


def _read_settings(settings: Sequence[str], estimator: Model) -> dict[str, Any]:
    """Parameters that --set gives, with the values that Python would read."""
    names = [name for name in estimator.get_params(deep=False) if name not in OWN_OPTIONS]
    settings_of_file: dict[str, Any] = {}
    for setting in settings:
        name, sign, value = setting.partition("=")
        name = name.strip()
        if not sign:
            raise InputError(f"--set takes NAME=VALUE, such as max_leaf_nodes=31, got {setting!r}")
        if name not in names:
            what = f"{type(estimator).__name__} has no parameter {name!r} to set"
            raise InputError(
                f"{what}{did_you_mean(name, names) or f'; it has {shortlist(names, 40)}'}"
            )
        try:
            settings_of_file[name] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            settings_of_file[name] = value.strip()
    return settings_of_file


def with_costs(model: Model, job: TrainingData, scoring: str | None) -> str | None:
    """Tell a model what features and errors cost; which score to use, if nobody has said."""
    model.set_params(costs=job.costs.costs)
    errors = job.costs.errors
    if errors is None:
        return scoring
    if job.task is not Task.classification:
        raise InputError(
            f"the cost file has a table [errors], which is about classes, but this is a "
            f"{job.task.value}"
        )
    from greedymiser.costs.errors import as_error_costs, by_text

    classes = np.unique(np.asarray(job.train.y))
    try:
        table = by_text(errors, classes)
        as_error_costs(table, classes)
    except (ValueError, TypeError) as error:
        raise InputError(f"the table [errors] of the cost file: {error}") from None
    model.set_params(error_costs=table)
    return scoring or "total_cost"


def check_engine(engine: str, in_parts: bool = False) -> None:
    """Complain of an engine that cannot be used here: before the work, not after it."""
    if in_parts and engine != "auto":
        raise InputError(
            f"--engine {engine} is for data on this machine: with --workers or --scheduler the "
            "workers train"
        )
    if engine == "cuda":
        from greedymiser.engines.cuda.engine import CudaUnavailableError, check_available

        try:
            check_available()
        except CudaUnavailableError as error:
            raise InputError(str(error)) from None


def fit_model(model: Model, job: TrainingData) -> None:
    """Train one model; an interruption keeps the rounds that are finished."""
    from greedymiser.estimators import BudgetWarning

    train, valid = job.train, job.valid
    options: dict[str, Any] = {"qid": train.qid} if job.task is Task.ranking else {}
    if valid is not None:
        options |= {"X_val": valid.X, "y_val": valid.y}
        options |= {"qid_val": valid.qid} if job.task is Task.ranking else {}
    else:
        model.set_params(early_stopping=True, validation_fraction=1 / HOLD_OUT, random_state=SEED)
    with shown_progress("rounds") as report_progress, warnings.catch_warnings():
        warnings.simplefilter("always", BudgetWarning)  # the model is a constant: do say it

        def watch(progress: Progress) -> None:
            report_progress(progress.n_iter, progress.max_iter)

        try:
            model.fit(train.X, train.y, callbacks=[watch], **options)
        except KeyboardInterrupt:
            if not getattr(model, "n_iter_", 0):
                raise  # there is nothing to keep
            interruption.happened = True


def trained_curve(
    job: TrainingData, estimator: Model, tradeoffs: int | Sequence[float], scoring: str | None,
    jobs: int | None, **more: Any,
) -> TradeoffCurve:  # fmt: skip
    """Train the models of a curve; an interruption keeps those that are finished."""
    from greedymiser.curve.curve import tradeoff_curve

    assert job.valid is not None
    queries: dict[str, Any] = {}
    if job.task is Task.ranking:
        queries = {"qid": job.train.qid, "qid_val": job.valid.qid}
    tests: dict[str, Any] = {}
    if job.test is not None:
        tests = {"X_test": job.test.X, "y_test": job.test.y}
        if job.task is Task.ranking:
            queries["qid_test"] = job.test.qid
    scoring = with_costs(estimator, job, scoring)
    with shown_progress("steps") as report_progress, warnings.catch_warnings():
        # The command says itself what an interruption has left.
        warnings.filterwarnings("ignore", "interrupted: ")
        trained = tradeoff_curve(
            estimator, job.train.X, job.train.y, X_val=job.valid.X, y_val=job.valid.y,
            tradeoffs=tradeoffs, scoring=scoring, n_jobs=jobs, callback=report_progress,
            cost_unit=job.costs.unit or "", **queries, **tests, **more,
        )  # fmt: skip
    return trained


def best_for(
    budget: float | None, job: TrainingData, estimator: Model, scoring: str | None, jobs: int | None
) -> tuple[Model, str]:
    """Search the best model that a budget affords; tell how it was found, too.

    Without a budget: that of the least total, where the cost file says what errors cost.
    """
    from greedymiser.estimators import BudgetWarning

    # Under the budget already when trees grow: models may then spend all of it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BudgetWarning)
        trained = trained_curve(job, estimator.set_params(budget=budget), 8, scoring, jobs)
    best = trained.best(budget=budget, train=False)
    if not best.features_used_ and interruption.happened:
        raise KeyboardInterrupt  # nothing useful was found so far
    if budget is None:
        from greedymiser.curve.summary import recommendation

        return best, recommendation(trained)
    if not best.features_used_:
        _warn_of_constant(budget, job)
    return best, _how_found(trained, budget)


def best_by_cv(
    n_folds: int, budget: float | None, job: TrainingData, estimator: Model, scoring: str | None
) -> tuple[Any, str]:
    """Search the best model by cross-validation, trained on all rows; tell how it was found."""
    from greedymiser.curve.search import MiserSearchCV
    from greedymiser.scoring.names import score_name

    scoring = with_costs(estimator, job, scoring)
    search = MiserSearchCV(estimator, budget=budget, cv=n_folds, scoring=scoring, random_state=SEED)
    queries: dict[str, Any] = {"qid": job.train.qid} if job.task is Task.ranking else {}
    search.fit(job.train.X, job.train.y, **queries)
    best = search.best_estimator_
    if budget is not None and not best.features_used_:
        _warn_of_constant(budget, job)
    name = plain_score_name(score_name(scoring or "loss", best.predictor_.loss))
    summary = (
        f"cross-validation in {n_folds} folds: mean {name} {rounded_score(search.best_score_)}"
    )
    return best, summary


def _how_found(trained: TradeoffCurve, budget: float) -> str:
    """Where on a curve the best model for a budget was."""
    points = trained.points
    best = points.iloc[trained.position(trained.best_row(budget))]
    is_searched = (
        points["found_by"] != "path" if "found_by" in points else np.zeros(len(points), bool)
    )
    n_sets, n_tradeoffs = int(np.sum(is_searched)), int(np.sum(~is_searched))
    tried = "1 trade-off" if n_tradeoffs == 1 else f"{n_tradeoffs} trade-offs"
    if n_sets:
        tried += " and the best set" if n_sets == 1 else f" and the {n_sets} best sets"
        tried += " of features"
    were = "was" if n_tradeoffs + n_sets == 1 else "were"
    score = "validation score"
    if "choice_score" in points:
        score = "score of the validation rows and of cross-fitting together"
    summary = f"{tried} {were} tried within the budget; this model has the best {score}."
    if best.get("found_by") == "gates":
        return f"{summary} It is a cascade of {best['n_iter']:g} sets, with gates between them"
    if best.get("found_by") == "search":
        why = ": all features of the set may be used" if best["tradeoff"] == 0 else ""
        return (
            f"{summary} It is one of the sets, trained with trade-off {best['tradeoff']:.3g}{why}"
        )
    return f"{summary} It is the one with trade-off {best['tradeoff']:.3g}"


def _warn_of_constant(budget: float, job: TrainingData) -> None:
    """Say that a budget has bought nothing, and what the next feature costs that it lacks."""
    unit = job.costs.unit
    warning = (
        f"a budget of {price_of(budget, unit)} buys no useful feature, so the model is a constant"
    )
    prices = job.costs.costs.prices()
    if prices.max() > budget:
        # What it affords, free columns above all, is of no use.
        cheapest = int(np.argmin(np.where(prices > budget, prices, np.inf)))
        name = (job.costs.costs.feature_names or [])[cheapest]
        price = price_of(prices[cheapest], unit)
        warning += f"; the cheapest feature that it does not afford is {name!r} and costs {price}"
    warn(warning)
