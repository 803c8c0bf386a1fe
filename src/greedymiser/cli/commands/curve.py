"""``greedymiser curve``: what each budget buys."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from greedymiser.cli.app import (
    ChargeOption,
    Charging,
    Costs,
    DataFile,
    Drop,
    EngineName,
    EngineOption,
    Jobs,
    LearningRate,
    MaxDepth,
    MaxIter,
    Qid,
    Scoring,
    SetOption,
    TargetOption,
    TaskOption,
    Valid,
)
from greedymiser.cli.commands.baseline import cost_and_score
from greedymiser.cli.errors import Reads, Writes
from greedymiser.cli.inputs import read_inputs
from greedymiser.cli.outputs import WRITES_CURVE, new_curve, write_curve
from greedymiser.cli.tables import show_baselines, show_files, show_steps, tell_of_half_a_curve
from greedymiser.cli.training import check_engine, make_estimator, trained_curve

WRITES_CHECKPOINT = Writes(("checkpoint.json", "*.npz"))


class Search(enum.StrEnum):
    """How a curve looks for models."""

    frontier = "frontier"
    path = "path"


def curve(
    data: DataFile,
    costs: Costs,
    out: Annotated[
        Path, typer.Option(help="Folder for the curve, pictures, report and models."), WRITES_CURVE
    ],
    target: TargetOption = None,
    valid: Valid = None,
    test: Annotated[
        Path | None,
        typer.Option(help="Rows to report test scores on; nothing is chosen by them."),
        Reads(),
    ] = None,
    task: TaskOption = None,
    qid: Qid = None,
    drop: Drop = None,
    tradeoffs: Annotated[
        str, typer.Option(help="How many trade-offs to train, or a list: 0,1e-4,1e-3.")
    ] = "8",
    search: Annotated[
        Search, typer.Option(help="Search sets of features as well, or train the path alone.")
    ] = Search.frontier,
    effort: Annotated[float, typer.Option(help="How long to search: 2 for twice the work.")] = 1.0,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Folder that keeps every finished model; a killed run goes on from it."),
        WRITES_CHECKPOINT,
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep finished models in OUT/checkpoint, and go on.")
    ] = False,
    max_iter: MaxIter = 300,
    max_depth: MaxDepth = 4,
    learning_rate: LearningRate = 0.1,
    scoring: Scoring = None,
    jobs: Jobs = None,
    engine: EngineOption = EngineName.auto,
    charge: ChargeOption = Charging.model,
    more: SetOption = None,
    baseline: Annotated[
        Path | None,
        typer.Option(help="Model of LightGBM (.txt) or XGBoost (.json, .ubj) to compare with."),
        Reads(),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Keep and show models that others beat, too.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the files of another run in OUT.")
    ] = False,
) -> None:
    """For every budget the best model that it can buy: train them, and write what each costs."""
    from greedymiser.curve.summary import all_steps, front_steps

    path = _parse_tradeoffs(tradeoffs)
    if not 0 < effort < np.inf:
        raise typer.BadParameter(f"{effort} is not positive and finite", param_hint="--effort")
    check_engine(engine.value)
    job = read_inputs(
        data, costs, target=target, task=task, qid=qid, drop=drop or (), valid=valid, test=test
    )
    new_curve(out, force or resume)
    estimator = make_estimator(
        job.task, max_iter, max_depth, learning_rate, jobs, charge.value, engine.value, more or ()
    )
    if resume and checkpoint is None:
        checkpoint = out / "checkpoint"
    trained = trained_curve(
        job, estimator, path, scoring, jobs,
        search=search.value, effort=effort, checkpoint=checkpoint,
    )  # fmt: skip
    steps = all_steps(trained) if every else front_steps(trained)
    # Written before anything is shown: whatever happens to the terminal, the work is kept.
    about = {"data": data.name, "training rows": f"{len(job.train.y):,}", "costs": costs.name}
    rows = None if job.valid is None else job.valid.X
    others = {} if baseline is None else {baseline.name: cost_and_score(baseline, job, trained)}
    files = write_curve(trained, steps, out, rows, baselines=others, about=about)
    show_steps(trained, steps)
    show_baselines(trained, others)
    show_files(files)
    tell_of_half_a_curve(len(steps), out)


def _parse_tradeoffs(text: str) -> int | list[float]:
    """A number of trade-offs, or the trade-offs themselves with commas between them."""
    try:
        count = int(text)
    except ValueError:
        return _list_of_tradeoffs(text)
    if count < 1:
        raise typer.BadParameter("there must be at least one", param_hint="--tradeoffs")
    return count


def _list_of_tradeoffs(text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither a number of trade-offs nor a list such as 0,1e-4,1e-3",
            param_hint="--tradeoffs",
        ) from None
    if not all(0 <= value < np.inf for value in values):
        raise typer.BadParameter(
            f"{text!r} has a trade-off that is negative or not finite", param_hint="--tradeoffs"
        )
    return values
