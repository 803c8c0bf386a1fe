"""The commands."""

from __future__ import annotations

import enum
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from typer.core import TyperGroup

from greedymiser._version import __version__
from greedymiser.cli.clusters import cluster, is_pattern
from greedymiser.cli.guarding import (
    InputError,
    Reads,
    Writes,
    guarded,
    interruption,
    options,
)
from greedymiser.cli.inputs import (
    LabelledRows,
    Task,
    TrainingData,
    check_column,
    held_out,
    load_model,
    parts_for,
    read_inputs,
    read_inputs_in_parts,
    rows_for,
)
from greedymiser.cli.outputs import (
    WRITES_CURVE,
    new_curve,
    new_file,
    new_model,
    predictions,
    rows_differ,
    save_model,
    write_curve,
    write_picture,
    write_predictions,
    write_table,
)
from greedymiser.cli.printing import (
    as_number,
    emit,
    escaped,
    quoted,
    say,
)
from greedymiser.cli.showing import (
    cost_unit,
    features_of,
    show_features,
    show_files,
    show_points,
    show_protocol,
    show_receipt,
    show_settings,
    show_stages,
    show_summary,
)
from greedymiser.cli.training import (
    best_for,
    chosen_models,
    fit_model,
    make_estimator,
    trained_curve,
)
from greedymiser.costfiles import CostFile, template, write_costs, write_template
from greedymiser.datasets import LABEL, QID, is_svmlight, load_thyroid, read_table
from greedymiser.persistence import load

# To predict needs none of those that train: they are imported by the commands that do.
if TYPE_CHECKING:
    from greedymiser.cli.training import Model
    from greedymiser.serving import Predictor

# What the demo writes below its folder.
WRITES_DEMO = Writes((*WRITES_CURVE.below, "thyroid_*.csv", "thyroid_costs.toml", "protocol.*"))

# Rounds of the demo: no model of it is at its best after more than 60.
DEMO_ROUNDS = 100

# Dollars per patient for the protocol at the end of the demo, and how many trade-offs it tries.
DEMO_BUDGET, DEMO_TRADEOFFS = 25.5, 4


class _Commands(TyperGroup):
    """Commands whose complaints about usage may quote anything that was typed, or globbed."""

    def invoke(self, ctx: Any) -> Any:
        with _harmless_complaints():
            return super().invoke(ctx)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _harmless_complaints():
            return super().make_context(*args, **kwargs)


@contextmanager
def _harmless_complaints() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if isinstance(getattr(error, "message", None), str):  # as all errors of usage have it
            error.message = escaped(error.message, keep="\n")  # type: ignore[attr-defined]
        raise


app = typer.Typer(
    name="greedymiser",
    cls=_Commands,
    help="Boosted trees that pay for their features: what accuracy does each budget buy?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


DataFile = Annotated[
    Path, typer.Argument(help="CSV, Parquet or SVMlight/LETOR file, told by its suffix."), Reads()
]
ModelFile = Annotated[Path, typer.Argument(help="A model that fit or curve has written."), Reads()]
TargetOption = Annotated[
    str | None, typer.Option(help="Column to predict. SVMlight files have their own.")
]
Costs = Annotated[
    Path, typer.Option(help="TOML or CSV file with the costs; see costs-template."), Reads()
]
Valid = Annotated[
    Path | None,
    typer.Option(help="Rows to validate with; by default, 25% of DATA are held out."),
    Reads(),
]
TaskOption = Annotated[Task | None, typer.Option(help="What the target is; guessed by default.")]
Qid = Annotated[str | None, typer.Option(help="Column with the query of each row, for ranking.")]
Drop = Annotated[
    list[str] | None, typer.Option(help="Column that is not a feature. May be repeated.")
]
MaxIter = Annotated[int, typer.Option(min=1, help="Most rounds of boosting.")]
MaxDepth = Annotated[int, typer.Option(min=1, help="Depth of the trees.")]
LearningRate = Annotated[float, typer.Option(help="Step of each round.")]
Scoring = Annotated[
    str | None,
    typer.Option(help="Validation score: a scikit-learn scorer, or ndcg@5 and the like."),
]
Jobs = Annotated[int | None, typer.Option(help="Threads; all cores by default.")]
PartsFile = Annotated[
    Path,
    typer.Argument(
        help="CSV, Parquet or SVMlight/LETOR file, told by its suffix; "
        "or a pattern such as 'data/*.parquet', read in parts."
    ),
    Reads(),
]
Scheduler = Annotated[
    str | None, typer.Option(help="Address of a Dask scheduler, whose workers read the data.")
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Start so many Dask workers on this machine.")
]


class Charging(enum.StrEnum):
    """Who pays."""

    model = "model"
    row = "row"


ChargeOption = Annotated[
    Charging, typer.Option(help="Who pays: the model once, or each row for what its paths ask.")
]


class Search(enum.StrEnum):
    """How a curve looks for models."""

    frontier = "frontier"
    path = "path"


WRITES_CHECKPOINT = Writes(("checkpoint.json", "*.npz"))


def _parse_tradeoffs(text: str) -> int | list[float]:
    """A number of trade-offs, or the trade-offs themselves with commas between them."""
    try:
        count = int(text)
    except ValueError:
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
            ) from None
        return values
    if count < 1:
        raise typer.BadParameter("there must be at least one", param_hint="--tradeoffs")
    return count


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"greedymiser {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    options.debug = debug


@app.command()
@guarded
def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the pictures, report and data."), WRITES_DEMO
    ] = Path("demo-output"),
) -> None:
    """Show what each dollar of medical tests buys, on embedded thyroid data with real prices."""
    from greedymiser.estimators import MiserClassifier

    start = time.perf_counter()
    new_curve(out)
    data = load_thyroid()
    X, X_test = data.as_frame()
    say(
        f"Thyroid disease: {len(X)} patients to learn from, {len(X_test)} to test.",
        "The first model compiles the kernels, which takes a few seconds; later runs reuse them.",
    )
    everyone = LabelledRows(X, data.y_train, None)
    held = held_out(everyone, Task.classification)
    job = TrainingData(
        Task.classification,
        CostFile(data.costs, "dollars"),
        everyone.take(~held),
        everyone.take(held),
        LabelledRows(X_test, data.y_test, None),
    )
    trained = trained_curve(
        job, MiserClassifier(max_iter=DEMO_ROUNDS), 8, "balanced_accuracy", None
    )
    models = chosen_models(trained)
    files = write_curve(trained, models, out)
    for name, frame, y in (("train", X, data.y_train), ("test", X_test, data.y_test)):
        path = out / f"thyroid_{name}.csv"
        write_table(frame.assign(diagnosis=y), path, "data")
        files.append((path, f"the data, to {name}"))
    write_costs(out / "thyroid_costs.toml", data.costs, unit="dollars")
    files.append((out / "thyroid_costs.toml", "the prices"))
    show_points(trained, models, "dollars", "tests ordered", _tests_ordered)
    if not interruption.happened:
        files += _demo_protocol(job, out)
    show_files(files)
    say(f"Done in {time.perf_counter() - start:.0f} s. Open {out / 'report.html'} in a browser.")
    _tell_of_half_a_curve(models, out)


def _demo_protocol(job: TrainingData, out: Path) -> list[tuple[Path, str]]:
    """Train a model that orders more tests only where the first ones ask for it; its protocol."""
    from sklearn.metrics import balanced_accuracy_score

    from greedymiser.estimators import MiserClassifier

    say("", "Now each patient pays for the tests that are ordered for this patient alone.")
    estimator = MiserClassifier(max_iter=DEMO_ROUNDS, charge="row")
    trained = trained_curve(job, estimator, DEMO_TRADEOFFS, "balanced_accuracy", None)
    best = trained.best(DEMO_BUDGET, train=False)
    assert job.test is not None
    protocol = best.protocol(job.test.X)
    show_protocol(protocol)
    score = balanced_accuracy_score(job.test.y, best.predict(job.test.X))
    say(f"Its balanced accuracy on these patients is {score:.4f}.", "")
    save_model(best, out / "protocol.miser", "dollars", {})
    write_picture(protocol.plot(), out / "protocol.png")
    return [
        (out / "protocol.png", "who is asked for which tests"),
        (out / "protocol.miser", "the model behind it"),
    ]


@app.command()
@guarded
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
    charge: ChargeOption = Charging.model,
) -> None:
    """For every budget the best model that it can buy: train them, and write what each costs."""
    path = _parse_tradeoffs(tradeoffs)
    if not 0 < effort < np.inf:
        raise typer.BadParameter(f"{effort} is not positive and finite", param_hint="--effort")
    job = read_inputs(
        data, costs, target=target, task=task, qid=qid, drop=drop or (), valid=valid, test=test
    )
    new_curve(out)
    estimator = make_estimator(job.task, max_iter, max_depth, learning_rate, jobs, charge.value)
    if resume and checkpoint is None:
        checkpoint = out / "checkpoint"
    trained = trained_curve(
        job, estimator, path, scoring, jobs,
        search=search.value, effort=effort, checkpoint=checkpoint,
    )  # fmt: skip
    models = chosen_models(trained)
    # Written before anything is shown: whatever happens to the terminal, the work is kept.
    files = write_curve(trained, models, out, None if job.valid is None else job.valid.X)
    show_points(trained, models, job.costs.unit, "uses", features_of)
    show_files(files)
    _tell_of_half_a_curve(models, out)


@app.command()
@guarded
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
        float | None, typer.Option(min=0, help="What one prediction may cost at most.")
    ] = None,
    max_iter: MaxIter = 300,
    max_depth: MaxDepth = 4,
    learning_rate: LearningRate = 0.1,
    scoring: Scoring = None,
    jobs: Jobs = None,
    scheduler: Scheduler = None,
    workers: Workers = None,
    charge: ChargeOption = Charging.model,
    row_budget: Annotated[
        float | None,
        typer.Option(min=0, help="What any training row may cost at most, with --charge row."),
    ] = None,
) -> None:
    """Train one model. With a budget and no trade-off, find the best model that it affords."""
    if row_budget is not None and charge is not Charging.row:
        raise typer.BadParameter("needs --charge row", param_hint="--row-budget")
    in_parts = scheduler is not None or workers is not None
    if is_pattern(data) and not in_parts:
        raise InputError(
            f"{str(data)!r} stands for several files: --workers N reads them in parts on this "
            "machine, and --scheduler ADDRESS on a cluster"
        )
    searched = budget is not None and tradeoff is None
    if searched and in_parts and valid is None:
        raise InputError(
            "a search for the best model of a budget needs --valid where data is read in parts; "
            "or give a --tradeoff"
        )
    given: dict[str, Any] = {
        "target": target, "task": task, "qid": qid, "drop": drop or (), "valid": valid
    }  # fmt: skip
    with cluster(scheduler, workers, jobs) if in_parts else nullcontext():
        if in_parts:
            job = read_inputs_in_parts(data, costs, **given, out=out)
        else:
            job = read_inputs(data, costs, **given)
        new_model(out)
        model = make_estimator(job.task, max_iter, max_depth, learning_rate, jobs, charge.value)
        model.set_params(row_budget=row_budget)
        if budget is not None and tradeoff is None:
            model = best_for(budget, job, model, scoring, jobs)
        else:
            model.set_params(
                costs=job.costs.costs, tradeoff=tradeoff or 0.0, budget=budget,
                scoring=scoring or "loss",
            )  # fmt: skip
            fit_model(model, job)
    told = {"search": "interrupted"} if searched and interruption.happened else {}
    save_model(model, out, job.costs.unit, told)
    written = load(out)
    show_summary(written)
    show_receipt(written)
    say(f"Model: {out}")
    if interruption.happened:
        what = "the best model that the unfinished search had found"
        rounds = f"the best of the rounds that were finished: {model.n_iter_}"
        interruption.keep(f"{str(out)!r} has {what if searched else rounds}")


@app.command()
@guarded
def predict(
    model: ModelFile,
    data: PartsFile,
    out: Annotated[
        Path | None,
        typer.Option(
            help="CSV file for the predictions; shown if there is none. "
            "Of a pattern, a new folder of Parquet files."
        ),
        Writes(),
    ] = None,
    qid: Qid = None,
    drop: Drop = None,
    scheduler: Scheduler = None,
    workers: Workers = None,
) -> None:
    """Predict, from the columns that the model has bought; it does not miss the others."""
    trained = load_model(model)
    if is_pattern(data) or scheduler is not None or workers is not None:
        _predict_parts(trained, data, out, qid, drop or (), scheduler, workers)
        return
    X, queries = rows_for(trained, data, qid, drop or ())
    table, bills = predictions(trained, X, queries)
    if out is None:
        emit(table.to_csv(index=False))
        return
    write_table(table, new_file(out), "predictions")
    _tell_of_predictions(trained, len(table), float(np.mean(bills)), out)


def _predict_parts(
    trained: Predictor, data: Path, out: Path | None, qid: str | None, drop: Sequence[str],
    scheduler: str | None, workers: int | None,
) -> None:  # fmt: skip
    """Predict part by part, each into a file of its own."""
    if out is None:
        raise InputError("predictions of data in parts go to a folder: name it with --out")
    in_cluster = scheduler is not None or workers is not None
    with cluster(scheduler, workers, 1) if in_cluster else nullcontext():
        rows = parts_for(trained, data, out, qid, drop)
        n_rows, cost = write_predictions(trained, rows, out)
    _tell_of_predictions(trained, n_rows, cost, out)


def _tell_of_predictions(trained: Predictor, n_rows: int, cost: float, out: Path) -> None:
    paid = "a mean cost" if rows_differ(trained) else "a cost"
    bill = f"{as_number(cost)} {cost_unit(trained) or ''}".rstrip()
    say(
        f"{n_rows} predictions at {paid} of {bill} each, "
        f"from {len(trained.features_used_)} of {trained.n_features} features: {out}"
    )


@app.command()
@guarded
def protocol(
    model: ModelFile,
    data: DataFile,
    out: Annotated[
        Path | None, typer.Option(help="PNG file for a picture of it."), Writes()
    ] = None,
    min_share: Annotated[
        float, typer.Option(min=0, max=1, help="Questions to fewer rows are left out.")
    ] = 0.01,
    qid: Qid = None,
    drop: Drop = None,
) -> None:
    """Show what a model trained with --charge row asks of which rows, and in which order."""
    trained = load_model(model)
    if trained.charge != "row":
        raise InputError(
            f"{str(model)!r} asks every row for the same; a protocol needs a model that was "
            "trained with --charge row"
        )
    X, queries = rows_for(trained, data, qid, drop or ())
    told = trained.protocol(X, queries, min_share=min_share)
    if out is not None:
        write_picture(told.plot(), new_file(out))
    show_protocol(told)
    if out is not None:
        say(f"A picture of it: {out}")


@app.command()
@guarded
def inspect(model: ModelFile) -> None:
    """Show what a model costs, what it has bought and when, and how it was trained."""
    trained = load_model(model)
    show_summary(trained)
    show_stages(trained)
    show_receipt(trained)
    show_features(trained)
    show_settings(trained)


@app.command()
@guarded
def costs_template(
    data: DataFile,
    target: TargetOption = None,
    qid: Qid = None,
    drop: Drop = None,
    out: Annotated[
        Path | None,
        typer.Option(help="TOML or CSV file to write; shown if there is none."),
        Writes(),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that exists.")] = False,
) -> None:
    """Write a cost file for a table in which every feature costs 1, to be filled in."""
    frame = read_table(data)
    others = [target, qid, *(drop or ())]
    if is_svmlight(data):
        others += [LABEL, *([QID] if QID in frame.columns else [])]
    for name in others:
        if name is not None:
            check_column(frame, data, name)
    features = [name for name in frame.columns if name not in others]
    if not features:
        raise InputError(f"{str(data)!r} has no features, only {quoted(frame.columns)}")
    if out is None:
        emit(template(features))
        return
    if out.exists() and not force:
        raise InputError(f"{str(out)!r} exists already; --force overwrites it")
    write_template(new_file(out), features)
    say(f"{len(features)} features, each at a cost of 1: fill in {out}")


def _tell_of_half_a_curve(models: Sequence[Model], out: Path) -> None:
    if interruption.happened:
        interruption.keep(f"{str(out)!r} has the {len(models)} models that were finished")


def _tests_ordered(model: Model) -> str:
    """Name the blood tests of the thyroid data, and count the questions."""
    blood = ("TSH", "T3", "TT4", "T4U", "FTI")
    tests = [str(name) for name in model.features_used_ if name in blood]
    questions = len(model.features_used_) - len(tests)
    asked = [f"{questions} question{'s' if questions > 1 else ''}"] if questions else []
    return ", ".join([*tests, *asked]) or "nothing"
