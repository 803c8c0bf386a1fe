"""The command line: curves, models and predictions from files. The only room that prints."""

from __future__ import annotations

import difflib
import enum
import functools
import importlib
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import numpy as np
import typer
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressDisplay
from rich.table import Table
from rich.text import Text

from greedymiser._version import __version__
from greedymiser.costfiles import CostFile, read_costs, template, write_costs, write_template
from greedymiser.datasets import LABEL, QID, is_svmlight, load_thyroid, read_table
from greedymiser.persistence import load, save
from greedymiser._files import check_place, write_atomically
from greedymiser.serving import Predictor

# To predict needs none of those that train: they are imported by the commands that do.
if TYPE_CHECKING:
    from greedymiser.boosting import Progress
    from greedymiser.estimators import MiserClassifier, MiserRanker, MiserRegressor
    from greedymiser.tradeoff import TradeoffCurve

    Model = MiserRegressor | MiserClassifier | MiserRanker

P = ParamSpec("P")

# By custom, the name of a model file ends like this.
SUFFIX = ".miser"

# Without --valid, one row (or query) in so many is held out, always the same ones.
HOLD_OUT = 4
SEED = 0

# A target of integers with more distinct values than this is taken for a quantity, not for classes.
MOST_CLASSES = 20

# Columns of a terminal that there is none of: when output goes to a file or a pipe.
PLAIN_WIDTH = 120

# Results with more rows than this are left to their files.
LONGEST_TABLE = 20

# Rounds of the demo: no model of it is at its best after more than 60.
DEMO_ROUNDS = 100

app = typer.Typer(
    name="greedymiser",
    help="Boosted trees that pay for their features: what accuracy does each budget buy?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

options = SimpleNamespace(debug=False)


class Task(enum.StrEnum):
    """What the target means."""

    regression = "regression"
    classification = "classification"
    ranking = "ranking"


class Experiment(enum.StrEnum):
    """An experiment of the paper."""

    yahoo = "yahoo"
    mq2008 = "mq2008"
    scene15 = "scene15"


class InputError(Exception):
    """Something that the user can put right; its message is one sentence."""


# -- errors -------------------------------------------------------------------------------------


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """Make a command answer bad input with one sentence and exit code 1."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            try:
                command(*args, **kwargs)
            except (typer.Exit, typer.Abort, typer.BadParameter):
                raise
            except KeyboardInterrupt:
                typer.echo("Interrupted.", err=True)
                raise typer.Exit(130) from None
            except Exception as error:
                if options.debug:
                    traceback.print_exc()
                else:
                    typer.echo(f"Error: {_sentence(error)}", err=True)
                raise typer.Exit(1) from None

    return run


def _sentence(error: Exception) -> str:
    """What went wrong, on one line."""
    if isinstance(error, OSError) and error.strerror:
        what = error.strerror[:1].lower() + error.strerror[1:]
        said = f"{what}: {str(error.filename)!r}" if error.filename else what
    elif isinstance(error, InputError | ValueError | TypeError | OSError | ImportError | Warning):
        said = str(error)
    else:
        said = f"unexpected {type(error).__name__}: {error}; `greedymiser --debug ...` shows where"
    notes = "".join(f" ({note.rstrip('.')})" for note in getattr(error, "__notes__", []))
    return " ".join(f"{said}{notes}".split())


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    _warn(str(message))


def _warn(text: str) -> None:
    typer.echo(f"Warning: {' '.join(text.split())}", err=True)


# -- output -------------------------------------------------------------------------------------


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False)


def _say(text: str) -> None:
    # A Text, so that brackets in the name of a file are not taken for markup.
    _console().print(Text(text), soft_wrap=True)


def _show(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], left: str = "") -> None:
    """Print a table; columns are flush right, but for those named in ``left``."""
    table = Table(
        box=SIMPLE_HEAD,
        title=title or None,
        title_justify="left",
        title_style="bold",
        show_header=any(head.strip() for head in heads),
        pad_edge=False,
    )
    for head in heads:
        at_left = head in left.split(",")
        table.add_column(
            Text(head), justify="left" if at_left else "right", overflow="fold", no_wrap=not at_left
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    _console().print(table)


@contextmanager
def _bar() -> Iterator[Callable[[str, int, int], None] | None]:
    """Show a bar on a terminal; give what tells it (what, done, total), or None elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    )  # fmt: skip
    with ProgressDisplay(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(
            task, description=what, completed=done, total=total
        )


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show how far one thing is, on a terminal; give what tells it (done, total)."""
    with _bar() as told:
        yield (lambda done, total: None) if told is None else functools.partial(told, what)


@contextmanager
def _steps() -> Iterator[Callable[[str, int, int], None]]:
    """Show the step that is being done: a bar on a terminal, elsewhere a line when one begins."""
    begun: set[str] = set()

    def say(what: str, done: int, total: int) -> None:
        if what not in begun:
            begun.add(what)
            typer.echo(what, err=True)

    with _bar() as told:
        yield told or say


def _show_frame(title: str, frame: Any) -> None:
    """Print as many of the first columns of a data frame as there is room for."""
    columns = {name: [_cell(value) for value in frame[name]] for name in frame.columns}
    widths = [max(map(len, [name, *cells])) + 3 for name, cells in columns.items()]
    shown = [name for name, end in zip(columns, np.cumsum(widths), strict=True)
             if end <= _console().width]  # fmt: skip
    rows = list(zip(*(columns[name] for name in shown), strict=True))
    _show(title, shown, rows, left="method")


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    return f"{value:.6g}"


def _score(value: float) -> str:
    return f"{value:.4f}" if 0.01 <= abs(value) < 1000 or value == 0 else f"{value:.4g}"


def _listing(names: Sequence[Any], most: int = 6) -> str:
    shown = ", ".join(str(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _quoted(names: Sequence[Any], most: int = 5) -> str:
    return _listing([repr(str(name)) for name in names], most)


def _in_unit(head: str, unit: str | None) -> str:
    return f"{head} ({unit})" if unit else head


def _folder(path: Path) -> Path:
    """Make a folder, and see that it can be written to: before the work, not after it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise InputError(f"cannot write to the folder {str(path)!r}: {error.strerror}") from None
    return path


def _new_file(path: Path) -> Path:
    if path.is_dir():
        raise InputError(f"cannot write the file {str(path)!r}: there is a folder of that name")
    _folder(path.parent)
    return path


def _check_not_read(out: Path, **read: Path) -> None:
    """Refuse to write over what is read, under whatever name."""
    for what, path in read.items():
        if out.exists() and path.exists() and os.path.samefile(out, path):
            raise InputError(f"--out {str(out)!r} is the {what} file itself: {str(path)!r}")


def _write_table(table: Any, out: Path) -> None:
    """Write a CSV file, all of it or none."""
    text = table.to_csv(index=False).encode()
    if out.exists() and not out.is_file():  # a pipe or a device, whose place must not be taken
        out.write_bytes(text)
    else:
        write_atomically(check_place(out, "predictions"), text)


# -- input --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Columns:
    """What the columns of the files mean."""

    target: str
    # None if rows do not belong to queries.
    qid: str | None
    # Columns that are neither features nor anything else.
    dropped: tuple[str, ...] = ()

    @property
    def others(self) -> tuple[str, ...]:
        """Columns that are not features."""
        return (self.target, *([self.qid] if self.qid else []), *self.dropped)


@dataclass(frozen=True)
class Part:
    """Rows to train, validate or test with."""

    X: Any
    y: NDArray[Any]
    qid: NDArray[Any] | None

    def take(self, rows: NDArray[np.bool_]) -> Part:
        return Part(self.X[rows], self.y[rows], None if self.qid is None else self.qid[rows])


@dataclass(frozen=True)
class Job:
    """All that a model is trained from."""

    task: Task
    costs: CostFile
    train: Part
    valid: Part
    test: Part | None


def _prepare(
    data: Path,
    costs: Path,
    *,
    target: str | None,
    task: Task | None,
    qid: str | None,
    drop: Sequence[str],
    valid: Path | None,
    test: Path | None = None,
) -> Job:
    """Read all files, check them against each other, and say what was understood."""
    prices = read_costs(costs)
    # In SVMlight, what is 0 in all rows is not written, but it has a price all the same.
    frame = read_table(data, features=prices.costs.feature_names or ())
    columns = _columns(frame, data, target, qid, drop)
    train = _part(frame, data, columns)
    _check_costs(prices, costs, train.X.columns.tolist(), data, columns)
    if task is None:
        task = _guess(train)
        source = columns.qid or columns.target
        _say(f"Task: {task} (guessed from {source!r}; --task says otherwise)")
    if task is Task.ranking and train.qid is None:
        raise InputError(
            f"ranking needs the query of each row, but {str(data)!r} has no qid:"
            if is_svmlight(data)
            else "ranking needs the query of each row: name its column with --qid"
        )
    checked = None if valid is None else _part_like(train, valid, columns)
    tested = None if test is None else _part_like(train, test, columns)
    if checked is None:
        held = _held_out(train, task)
        if not held.any():
            raise InputError(
                f"{str(data)!r} has too few {'queries' if task is Task.ranking else 'rows'} to "
                "hold some out for validation; give a file with --valid"
            )
        train, checked = train.take(~held), train.take(held)
    sizes = [f"{len(train.y)} rows to learn from", f"{len(checked.y)} to validate with"]
    sizes += [] if tested is None else [f"{len(tested.y)} to test with"]
    _say(f"{', '.join(sizes)}; {train.X.shape[1]} features")
    return Job(task, prices, train, checked, tested)


def _columns(
    frame: Any, path: Path, target: str | None, qid: str | None, drop: Sequence[str]
) -> Columns:
    if is_svmlight(path):
        target = target or LABEL
        qid = qid or (QID if QID in frame.columns else None)
    if target is None:
        raise InputError(f"name the target with --target; {_has(frame, path)}")
    for name in (target, qid, *drop):
        if name is not None:
            _check_column(frame, path, name)
    if qid == target:
        raise InputError(f"{target!r} cannot be both the target and the query")
    return Columns(target, qid, tuple(drop))


def _has(frame: Any, path: Path) -> str:
    return f"the columns of {str(path)!r} are {_quoted(frame.columns, most=12)}"


def _check_column(frame: Any, path: Path, name: str) -> None:
    if name not in frame.columns:
        near = difflib.get_close_matches(name, list(frame.columns), n=1)
        hint = f"did you mean {near[0]!r}?" if near else _has(frame, path)
        raise InputError(f"{str(path)!r} has no column {name!r}; {hint}")


def _part(frame: Any, path: Path, columns: Columns) -> Part:
    for name in (columns.target, columns.qid):
        if name is None:
            continue
        _check_column(frame, path, name)
        missing = int(frame[name].isna().sum())
        if missing:
            raise InputError(
                f"column {name!r} of {str(path)!r} is missing in {missing} of {len(frame)} rows"
            )
    X = frame.drop(columns=[name for name in columns.others if name in frame.columns])
    if X.shape[1] == 0:
        raise InputError(f"{str(path)!r} has no features beside {_quoted(columns.others)}")
    qid = None if columns.qid is None else frame[columns.qid].to_numpy()
    return Part(X, frame[columns.target].to_numpy(), qid)


def _part_like(train: Part, path: Path, columns: Columns) -> Part:
    """Read rows for the same features, in the same order."""
    text = train.X.select_dtypes("category").columns.tolist()
    if train.y.dtype == object:
        text.append(columns.target)
    frame = read_table(path, features=train.X.columns, text=text)
    for name in train.X.columns:
        _check_column(frame, path, name)
    part = _part(frame, path, columns)
    return Part(part.X[train.X.columns], part.y, part.qid)


def _check_costs(
    prices: CostFile, path: Path, features: Sequence[str], data: Path, columns: Columns
) -> None:
    known = prices.costs.feature_names or []
    missing = [name for name in features if name not in set(known)]
    if missing:
        raise InputError(
            f"{str(path)!r} has no cost for {_quoted(missing)}, which {str(data)!r} has; "
            "add it, or leave the column out with --drop"
        )
    unknown = [name for name in known if name not in set(features)]
    if unknown:
        why = "is not a feature" if unknown[0] in columns.others else "is not a column"
        raise InputError(
            f"{str(path)!r} has a cost for {_quoted(unknown)}, which {why} of {str(data)!r}"
        )


def _guess(train: Part) -> Task:
    if train.qid is not None:
        return Task.ranking
    if train.y.dtype.kind in "fc" and (train.y % 1).any():
        return Task.regression
    is_number = train.y.dtype.kind in "iuf"
    many = is_number and len(np.unique(train.y)) > MOST_CLASSES
    return Task.regression if many else Task.classification


def _held_out(train: Part, task: Task) -> NDArray[np.bool_]:
    """Mark one row in four: of each class, or all rows of one query in four."""
    if task is Task.ranking:
        assert train.qid is not None
        queries, query_of = np.unique(train.qid, return_inverse=True)
        return _one_in_four(np.zeros(len(queries), dtype=np.intp))[query_of]
    if task is Task.classification:
        return _one_in_four(np.unique(train.y, return_inverse=True)[1])
    return _one_in_four(np.zeros(len(train.y), dtype=np.intp))


def _one_in_four(stratum: NDArray[np.intp]) -> NDArray[np.bool_]:
    shuffled = np.random.RandomState(SEED).permutation(len(stratum))
    order = shuffled[np.argsort(stratum[shuffled], kind="stable")]
    starts = np.searchsorted(stratum[order], stratum[order])
    marked = np.zeros(len(stratum), dtype=bool)
    marked[order] = (np.arange(len(order)) - starts) % HOLD_OUT == HOLD_OUT - 1
    return marked


def _load_model(path: Path) -> Predictor:
    try:
        return load(path)
    except (FileNotFoundError, IsADirectoryError):
        raise InputError(f"there is no model at {str(path)!r}") from None


# -- options that several commands take ---------------------------------------------------------

DataFile = Annotated[
    Path, typer.Argument(help="CSV, Parquet or SVMlight/LETOR file, told by its suffix.")
]
ModelFile = Annotated[Path, typer.Argument(help="A model that fit or curve has written.")]
Target = Annotated[
    str | None, typer.Option(help="Column to predict. SVMlight files have their own.")
]
Costs = Annotated[Path, typer.Option(help="TOML or CSV file with the costs; see costs-template.")]
Valid = Annotated[
    Path | None, typer.Option(help="Rows to validate with; by default, 25% of DATA are held out.")
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


# -- commands -----------------------------------------------------------------------------------


@app.command()
@guarded
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the pictures, report and data.")] = Path(
        "demo-output"
    ),
) -> None:
    """Show what each dollar of medical tests buys, on embedded thyroid data with real prices."""
    from greedymiser.estimators import MiserClassifier

    start = time.perf_counter()
    _folder(out)
    data = load_thyroid()
    X, X_test = data.as_frame()
    _say(
        f"Thyroid disease: {len(X)} patients to learn from, {len(X_test)} to test.\n"
        "The first model compiles the kernels, which takes a few seconds; later runs reuse them."
    )
    everyone = Part(X, data.y_train, None)
    held = _held_out(everyone, Task.classification)
    job = Job(
        Task.classification,
        CostFile(data.costs, "dollars"),
        everyone.take(~held),
        everyone.take(held),
        Part(X_test, data.y_test, None),
    )
    trained = _trained_curve(
        job, MiserClassifier(max_iter=DEMO_ROUNDS), 8, "balanced_accuracy", None
    )
    models = _chosen(trained)
    _show_points(trained, models, "dollars", "tests ordered", _tests_ordered)
    files = _write_curve(trained, models, out)
    for name, frame, y in (("train", X, data.y_train), ("test", X_test, data.y_test)):
        path = out / f"thyroid_{name}.csv"
        frame.assign(diagnosis=y).to_csv(path, index=False)
        files.append((path, f"the data, to {name}"))
    write_costs(out / "thyroid_costs.toml", data.costs, unit="dollars")
    files.append((out / "thyroid_costs.toml", "the prices"))
    _show_files(files)
    _say(f"Done in {time.perf_counter() - start:.0f} s. Open {out / 'report.html'} in a browser.")


@app.command()
@guarded
def curve(
    data: DataFile,
    costs: Costs,
    out: Annotated[Path, typer.Option(help="Folder for the curve, pictures, report and models.")],
    target: Target = None,
    valid: Valid = None,
    test: Annotated[
        Path | None, typer.Option(help="Rows to report test scores on; nothing is chosen by them.")
    ] = None,
    task: TaskOption = None,
    qid: Qid = None,
    drop: Drop = None,
    tradeoffs: Annotated[
        str, typer.Option(help="How many trade-offs to train, or a list: 0,1e-4,1e-3.")
    ] = "8",
    max_iter: MaxIter = 300,
    max_depth: MaxDepth = 4,
    learning_rate: LearningRate = 0.1,
    scoring: Scoring = None,
    jobs: Jobs = None,
) -> None:
    """Train models from dear to cheap, and write what accuracy each cost buys."""
    path = _parse_tradeoffs(tradeoffs)
    job = _prepare(
        data, costs, target=target, task=task, qid=qid, drop=drop or (), valid=valid, test=test
    )
    _folder(out)
    estimator = _estimator(job.task, max_iter, max_depth, learning_rate, jobs)
    trained = _trained_curve(job, estimator, path, scoring, jobs)
    models = _chosen(trained)
    _show_points(trained, models, job.costs.unit, "uses", _features_of)
    _show_files(_write_curve(trained, models, out))


@app.command()
@guarded
def fit(
    data: DataFile,
    costs: Costs,
    out: Annotated[Path, typer.Option(help="File for the model.")],
    target: Target = None,
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
) -> None:
    """Train one model. With a budget and no trade-off, find the best model that it affords."""
    job = _prepare(data, costs, target=target, task=task, qid=qid, drop=drop or (), valid=valid)
    _new_file(out)
    model = _estimator(job.task, max_iter, max_depth, learning_rate, jobs)
    if budget is not None and tradeoff is None:
        model = _best_for(budget, job, model, scoring, jobs)
    else:
        model.set_params(
            costs=job.costs.costs, tradeoff=tradeoff or 0.0, budget=budget,
            scoring=scoring or "loss",
        )  # fmt: skip
        _fit(model, job)
    save(model, out)
    written = load(out)
    _show_summary(written, job.costs.unit)
    _show_receipt(written, job.costs.unit)
    _say(f"Model: {out}")


@app.command()
@guarded
def predict(
    model: ModelFile,
    data: DataFile,
    out: Annotated[
        Path | None, typer.Option(help="CSV file for the predictions; shown if there is none.")
    ] = None,
    qid: Qid = None,
    drop: Drop = None,
) -> None:
    """Predict, from the columns that the model has bought; it does not miss the others."""
    import pandas as pd

    if out is not None:
        _check_not_read(out, data=data, model=model)
    trained = _load_model(model)
    X, queries = _rows_for(trained, data, qid, drop or ())
    raw, left = trained.run(trained.table(X), queries)
    columns = {"prediction": trained.respond(raw)}
    if trained.classes is not None:
        probabilities = trained.probabilities(raw).T
        for label, column in zip(trained.classes.tolist(), probabilities, strict=True):
            columns[f"probability_{label}"] = column
    bills = trained.stage_costs[left]
    if len(trained.stages) > 1:  # rows differ in what they pay
        columns["cost"] = bills
    table = pd.DataFrame(columns)
    if out is None:
        typer.echo(table.to_csv(index=False), nl=False)
        return
    _write_table(table, _new_file(out))
    paid = "a cost" if len(trained.stages) == 1 else "a mean cost"
    _say(
        f"{len(table)} predictions at {paid} of {_number(float(np.mean(bills)))} each, "
        f"from {len(trained.features_used_)} of {trained.n_features} features: {out}"
    )


@app.command()
@guarded
def inspect(model: ModelFile) -> None:
    """Show what a model costs, what it has bought and when, and how it was trained."""
    trained = _load_model(model)
    _show_summary(trained, None)
    _show_stages(trained)
    _show_receipt(trained, None)
    _show_features(trained)
    _show_settings(trained)


@app.command()
@guarded
def costs_template(
    data: DataFile,
    target: Target = None,
    qid: Qid = None,
    drop: Drop = None,
    out: Annotated[
        Path | None, typer.Option(help="TOML or CSV file to write; shown if there is none.")
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
            _check_column(frame, data, name)
    features = [name for name in frame.columns if name not in others]
    if out is None:
        typer.echo(template(features), nl=False)
        return
    if out.exists() and not force:
        raise InputError(f"{str(out)!r} exists already; --force overwrites it")
    write_template(_new_file(out), features)
    _say(f"{len(features)} features, each at a cost of 1: fill in {out}")


@app.command()
@guarded
def reproduce(
    name: Annotated[Experiment, typer.Argument(help="Experiment of the paper.")],
    data: Annotated[
        Path | None, typer.Option(help="Folder with the original data; yahoo can do without.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for results and finished steps; results/NAME by default."),
    ] = None,
    small: Annotated[
        bool, typer.Option("--small", help="A quick version, to see that everything works.")
    ] = False,
    jobs: Jobs = None,
) -> None:
    """Run an experiment of the paper: its tables and figures. An interrupted run can be resumed."""
    # Imported here, because each experiment asks for libraries of its own.
    experiment = importlib.import_module(f"greedymiser.experiments.{name}")
    from greedymiser.experiments.workspace import Workspace

    folder = _folder(out or Path("results") / name)
    with _steps() as told:
        try:
            results = experiment.run(data, Workspace(folder, {}, told), small, n_jobs=jobs)
        except KeyboardInterrupt:
            typer.echo("Finished steps are kept: the same command goes on from there.", err=True)
            raise
    for title, table in results.tables.items():
        if len(table) <= LONGEST_TABLE:
            _show_frame(title, table)
    _say(f"Data: {results.data}\n")
    _show_files(
        [(folder / f"{title}.csv", "table") for title in results.tables]
        + [(path, "figure") for path in results.figures.values()]
    )


# -- training -----------------------------------------------------------------------------------


def _estimator(
    task: Task, max_iter: int, max_depth: int, learning_rate: float, jobs: int | None
) -> Model:
    from greedymiser.estimators import MiserClassifier, MiserRanker, MiserRegressor

    kinds: dict[Task, type[Model]] = {
        Task.regression: MiserRegressor,
        Task.classification: MiserClassifier,
        Task.ranking: MiserRanker,
    }
    return kinds[task](
        max_iter=max_iter, max_depth=max_depth, learning_rate=learning_rate, n_jobs=jobs
    )


def _fit(model: Model, job: Job) -> None:
    from greedymiser.estimators import BudgetWarning

    queries = {}
    if job.task is Task.ranking:
        queries = {"qid": job.train.qid, "qid_val": job.valid.qid}
    with _progress("rounds") as told, warnings.catch_warnings():
        # A model that can afford nothing is not what anybody asks for.
        warnings.simplefilter("error", BudgetWarning)

        def watch(progress: Progress) -> None:
            told(progress.n_iter, progress.max_iter)

        train, valid = job.train, job.valid
        model.fit(train.X, train.y, X_val=valid.X, y_val=valid.y, callbacks=[watch], **queries)


def _trained_curve(
    job: Job, estimator: Model, tradeoffs: int | Sequence[float], scoring: str | None,
    jobs: int | None,
) -> TradeoffCurve:  # fmt: skip
    from greedymiser.tradeoff import tradeoff_curve

    queries: dict[str, Any] = {}
    if job.task is Task.ranking:
        queries = {"qid": job.train.qid, "qid_val": job.valid.qid}
    tests: dict[str, Any] = {}
    if job.test is not None:
        tests = {"X_test": job.test.X, "y_test": job.test.y}
        if job.task is Task.ranking:
            queries["qid_test"] = job.test.qid
    estimator.set_params(costs=job.costs.costs)
    with _progress("trade-offs") as told:
        trained = tradeoff_curve(
            estimator, job.train.X, job.train.y, X_val=job.valid.X, y_val=job.valid.y,
            tradeoffs=tradeoffs, scoring=scoring, n_jobs=jobs, callback=told,
            cost_unit=job.costs.unit or "", **queries, **tests,
        )  # fmt: skip
    return trained


def _best_for(
    budget: float, job: Job, estimator: Model, scoring: str | None, jobs: int | None
) -> Model:
    from greedymiser.estimators import BudgetWarning

    # Under the budget already when trees grow: models may then spend all of it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BudgetWarning)
        trained = _trained_curve(job, estimator.set_params(budget=budget), 8, scoring, jobs)
    best = trained.best(budget=budget)
    if not best.features_used_:
        prices = job.costs.costs.prices()
        cheapest = int(np.argmin(prices))
        name = (job.costs.costs.feature_names or [])[cheapest]
        raise InputError(
            f"a budget of {_number(budget)} buys no useful feature; "
            f"the cheapest of all is {name!r} and costs {_number(prices[cheapest])}"
        )
    return best


def _chosen(trained: TradeoffCurve) -> list[Model]:
    """The model of each point: as many rounds of its trade-off as validated best."""
    rounds = trained.points["n_iter"]
    return [model.truncate(int(n)) for model, n in zip(trained.models, rounds, strict=True)]


def _rows_for(
    model: Predictor, path: Path, qid: str | None, drop: Sequence[str]
) -> tuple[Any, NDArray[Any] | None]:
    """The table that a model predicts from, and the queries of its rows where it asks for them."""
    if qid is not None and model.kind != "ranker":
        raise InputError(f"--qid is for models that rank, and this one is a {model.kind}")
    names = model.feature_names
    if names is None:
        frame = read_table(path)
    else:
        text = [names[f] for f, known in model.categories.items() if known.dtype == object]
        frame = read_table(path, features=names, text=text)
    if qid is None and is_svmlight(path) and QID in frame.columns:
        qid = QID
    for name in (*drop, *([qid] if qid else [])):
        _check_column(frame, path, name)
    queries = None if qid is None else frame[qid].to_numpy()
    if queries is None and model.compares_rows:
        _warn(
            "no column tells the query of each row (--qid names one): "
            "all rows are taken for one query, and ranked against each other"
        )
    if names is None:
        others = [*drop, *([LABEL] if is_svmlight(path) else []), *([qid] if qid else [])]
        return _by_position(model, frame, path, others), queries
    unread = [name for name in model.features_used_ if name in drop]
    if unread:
        raise InputError(f"the model uses {_quoted(unread)}, which --drop leaves out")
    missing = [name for name in model.features_used_ if name not in frame.columns]
    if missing:
        raise InputError(f"{str(path)!r} has no column {_quoted(missing)}, which the model uses")
    return frame, queries


def _by_position(model: Predictor, frame: Any, path: Path, others: Sequence[str]) -> NDArray[Any]:
    frame = frame[[name for name in frame.columns if name not in others]]
    if frame.shape[1] != model.n_features:
        raise InputError(
            f"the model knows its {model.n_features} features by position, but {str(path)!r} "
            f"has {frame.shape[1]} columns"
        )
    return frame.to_numpy()


# -- what is shown and written ------------------------------------------------------------------


def _features_of(model: Model) -> str:
    return _listing(model.features_used_) or "nothing"


def _tests_ordered(model: Model) -> str:
    """Name the blood tests of the thyroid data, and count the questions."""
    blood = ("TSH", "T3", "TT4", "T4U", "FTI")
    tests = [str(name) for name in model.features_used_ if name in blood]
    questions = len(model.features_used_) - len(tests)
    asked = [f"{questions} question{'s' if questions > 1 else ''}"] if questions else []
    return ", ".join([*tests, *asked]) or "nothing"


def _show_points(
    trained: TradeoffCurve, models: Sequence[Model], unit: str | None, buys: str,
    describe: Callable[[Model], str],
) -> None:  # fmt: skip
    points = trained.points
    has_test = "test_score" in points.columns
    heads = ["model", "trade-off", _in_unit("cost", unit), "score"]
    heads += [*(["test score"] if has_test else []), "trees", "features", buys]
    rows = []
    for number, (point, model) in enumerate(zip(points.to_dict("records"), models, strict=True), 1):
        cost = f"{point['cost']:.2f}" if unit == "dollars" else _number(point["cost"])
        row = [str(number), f"{point['tradeoff']:.3g}", cost, _score(point["score"])]
        row += [_score(point["test_score"])] if has_test else []
        row += [str(int(point["n_trees"])), str(int(point["n_features"])), describe(model)]
        rows.append(row)
    _show("", heads, rows, left=buys)
    _say(f"Score: {trained.scoring}; higher is better.")


def _write_curve(
    trained: TradeoffCurve, models: Sequence[Model], out: Path
) -> list[tuple[Path, str]]:
    """Write all there is to a curve; tell the files and what they are."""
    # Imported here, because to predict needs no matplotlib.
    from greedymiser.plotting import plot_receipt

    folder = _folder(out / "models")
    for left_over in folder.glob(f"model-*{SUFFIX}"):  # of an earlier, longer curve
        left_over.unlink()
    for number, model in enumerate(models, 1):
        save(model, folder / f"model-{number}{SUFFIX}")
    trained.to_csv(out / "curve.csv")
    _save(trained.plot(), out / "curve.png")
    _save(trained.plot_features(), out / "features.png")
    _save(plot_receipt(trained.best(), trained), out / "receipt.png")
    trained.report(out / "report.html")
    return [
        (out / "report.html", "the report, for a browser"),
        (out / "curve.csv", "the curve as a table"),
        (out / "curve.png", "score against cost"),
        (out / "features.png", "what is bought at each trade-off"),
        (out / "receipt.png", "what the best model bought, and when"),
        (folder, f"the {len(models)} models"),
    ]


def _save(ax: Any, path: Path) -> None:
    ax.figure.savefig(path, dpi=150)


def _show_files(files: Sequence[tuple[Path, str]]) -> None:
    width = max(len(str(path)) for path, _ in files)
    _say("\n".join(f"{str(path).ljust(width)}  {what}" for path, what in files))


def _show_summary(model: Predictor, unit: str | None) -> None:
    told = _told(model)
    last = model.stages[-1]
    rows = [
        ("kind", _text(model.about.get("estimator", model.kind))),
        (_in_unit("cost of a prediction", unit), _cost_range(model)),
        ("features", f"{len(model.features_used_)} of {model.n_features}"),
        ("rounds, trees", f"{_rounds(model)}, {last.n_trees}"),
        ("trade-off", _text(_parameters(told).get("tradeoff", "unknown"))),
        ("budget", _text(_parameters(told).get("budget", "unknown"))),
        ("stopped by", _text(told.get("stopped", "unknown"))),
    ]
    if model.classes is not None:
        rows.insert(1, ("classes", _listing(model.classes.tolist())))
    if "validation_score" in told:
        by_loss = _parameters(told).get("scoring") in (None, "loss")
        what = "validation -loss" if by_loss else "validation score"
        rows.append((what, _text(told["validation_score"])))
    _show("Model", ["", " "], rows, left=", ")


def _told(model: Predictor) -> dict[str, Any]:
    """What a file tells about the training of the trees, below the exits between them."""
    told = dict(model.about)
    while isinstance(told.get("base"), dict):
        told = told["base"]
    return told


def _parameters(told: dict[str, Any]) -> dict[str, Any]:
    found = told.get("parameters")
    return found if isinstance(found, dict) else {}


def _text(value: Any) -> str:
    """Show a parameter, which a file may hold in any form."""
    if value is None:
        return "none"
    return _number(value) if isinstance(value, float) else str(value)


def _rounds(model: Predictor) -> int:
    return sum(stage.last - stage.first for stage in model.stages)


def _cost_range(model: Predictor) -> str:
    least, most = _number(model.stage_costs[0]), _number(model.cost_)
    return most if len(model.stages) == 1 else f"{least} to {most}"


def _show_stages(model: Predictor) -> None:
    if len(model.stages) == 1:
        return
    rows = [
        (str(k), str(stage.n_trees), _number(cost), model.why_stopped(k))
        for k, (stage, cost) in enumerate(zip(model.stages, model.stage_costs, strict=True))
    ]
    heads = ["stage", "trees so far", "cost so far", "a row leaves when"]
    _show("Stages", heads, rows, left="a row leaves when")


def _show_receipt(model: Predictor, unit: str | None) -> None:
    receipt = model.receipt()
    if not receipt:
        _say("The model has bought nothing: it predicts the same for every row.\n")
        return
    rows = [
        (
            str(line.iteration),
            str(line.feature),
            ", ".join(line.resources),
            _number(line.price),
            _number(line.spent),
            f"{line.gain:.3g}",
        )
        for line in receipt
    ]
    price = _in_unit("price", unit)
    heads = ["round", "feature", "pays for", price, "spent", "gain"]
    _show("Receipt", heads, rows, left="feature,pays for")


def _show_features(model: Predictor) -> None:
    ensembles = {id(stage.ensemble): stage.ensemble for stage in model.stages}
    gains = np.sum([ensemble.importances() for ensemble in ensembles.values()], axis=0)
    shares = gains / max(gains.sum(), np.finfo(np.float64).tiny)
    prices = model.costs.prices()
    named = zip(model.features, model.features_used_, strict=True)
    used = sorted(named, key=lambda pair: -shares[pair[0]])
    rows = [(str(name), _number(prices[f]), f"{100 * shares[f]:.1f}%") for f, name in used]
    if rows:
        _show("Features", ["feature", "price alone", "share of gain"], rows, left="feature")


def _show_settings(model: Predictor) -> None:
    rows = []
    told: Any = model.about
    while isinstance(told, dict):
        parameters, changed = _parameters(told), told.get("changed")
        names = [str(name) for name in changed] if isinstance(changed, list) else []
        rows += [(name, _text(parameters[name])) for name in names if name in parameters]
        told = told.get("base")
    rows.append(("costs", str(model.costs).strip("<>")))
    _show("Settings that are not the default", ["name", "value"], rows, left="name,value")
