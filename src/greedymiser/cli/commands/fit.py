"""``greedymiser fit``: one model."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from greedymiser.cli.app import (
    ChargeOption,
    Charging,
    Costs,
    Drop,
    EngineName,
    EngineOption,
    Jobs,
    LearningRate,
    MaxDepth,
    MaxIter,
    PartsFile,
    Qid,
    Scheduler,
    Scoring,
    SetOption,
    TargetOption,
    TaskOption,
    Valid,
    Workers,
)
from greedymiser.cli.clusters import cluster, is_pattern
from greedymiser.cli.errors import InputError, Writes, interruption
from greedymiser.cli.inputs import load_model, read_inputs, read_inputs_in_parts
from greedymiser.cli.outputs import new_model, save_model
from greedymiser.cli.printing import say
from greedymiser.cli.tables import show_receipt, show_summary
from greedymiser.cli.training import (
    best_by_cv,
    best_for,
    check_engine,
    fit_model,
    make_estimator,
    with_costs,
)
from greedymiser.scoring import TOTAL_COST


def fit(
    data: PartsFile,
    costs: Costs,
    out: Annotated[Path, typer.Option(help="File for the model."), Writes()],
    target: TargetOption = None,
    valid: Valid = None,
    task: TaskOption = None,
    qid: Qid = None,
    drop: Drop = None,
    tradeoff: Annotated[
        float | None, typer.Option(min=0, help="Drop in mean loss demanded per unit of cost.")
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            min=0, help="What one prediction may cost at most; with --charge row, on average."
        ),
    ] = None,
    cv: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Choose by cross-validation in so many folds, and train on all of DATA, instead "
            "of holding rows out.",
        ),
    ] = None,
    max_iter: MaxIter = 300,
    max_depth: MaxDepth = 4,
    learning_rate: LearningRate = 0.1,
    scoring: Scoring = None,
    jobs: Jobs = None,
    engine: EngineOption = EngineName.auto,
    scheduler: Scheduler = None,
    workers: Workers = None,
    charge: ChargeOption = Charging.model,
    row_budget: Annotated[
        float | None,
        typer.Option(min=0, help="What any training row may cost at most, with --charge row."),
    ] = None,
    more: SetOption = None,
) -> None:
    r"""Train one model; with a budget and no trade-off, the best that it affords.

    Where the cost file has \[errors], and there is no budget: the one whose bill and errors
    together cost least.
    """
    if row_budget is not None and charge is not Charging.row:
        raise typer.BadParameter("needs --charge row", param_hint="--row-budget")
    in_parts = scheduler is not None or workers is not None
    if cv is not None and (valid is not None or tradeoff is not None or in_parts):
        raise typer.BadParameter(
            "goes without --valid, --tradeoff, --workers and --scheduler", param_hint="--cv"
        )
    searched = cv is not None or (budget is not None and tradeoff is None)
    check_engine(engine.value, in_parts)
    _check_parts(data, in_parts, searched and valid is None)
    settings: dict[str, Any] = {
        "target": target, "task": task, "qid": qid, "drop": drop or (), "valid": valid
    }  # fmt: skip
    with cluster(scheduler, workers, jobs) if in_parts else nullcontext():
        if in_parts:
            job = read_inputs_in_parts(data, costs, **settings, out=out)
        else:
            job = read_inputs(data, costs, **settings, holds_out=cv is None)
        if budget is None and tradeoff is None and cv is None and job.costs.errors is not None:
            searched = scoring in (None, TOTAL_COST)
            _check_parts(data, in_parts, searched and valid is None)
        new_model(out)
        model = make_estimator(
            job.task, max_iter, max_depth, learning_rate, jobs, charge.value, engine.value,
            more or (),
        )  # fmt: skip
        model.set_params(row_budget=row_budget)
        details = {}
        if cv is not None:
            model, details["search"] = best_by_cv(cv, budget, job, model, scoring)
        elif searched:
            model, details["search"] = best_for(budget, job, model, scoring, jobs)
        else:
            scoring = with_costs(model, job, scoring)
            model.set_params(tradeoff=tradeoff or 0.0, budget=budget, scoring=scoring or "loss")
            fit_model(model, job)
    if searched and interruption.happened:
        details["search"] = f"interrupted: {details['search']}"
    save_model(model, out, job.costs.unit, details)
    _show(out, searched, getattr(model, "n_iter_", 0))


def _check_parts(data: Path, in_parts: bool, needs_valid: bool) -> None:
    """See that data in parts comes with what reads it, and with rows that a search scores."""
    if is_pattern(data) and not in_parts:
        raise InputError(
            f"{str(data)!r} stands for several files: --workers N reads them in parts on this "
            "machine, and --scheduler ADDRESS on a cluster"
        )
    if in_parts and needs_valid:
        raise InputError(
            "a search for the best model needs --valid where data is read in parts; or give a "
            "--tradeoff"
        )


def _show(out: Path, searched: bool, n_rounds: int) -> None:
    """Show the model as it was written, and what is missing if it was interrupted."""
    written = load_model(out)
    show_summary(written)
    show_receipt(written)
    say(f"Model: {out}")
    if interruption.happened:
        what = "the best model that the unfinished search had found"
        rounds = f"the best of the rounds that were finished: {n_rounds}"
        interruption.keep(f"{str(out)!r} has {what if searched else rounds}")
