"""The app, and the options that several commands share."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from greedymiser._core.version import __version__
from greedymiser.cli.errors import Reads, options
from greedymiser.cli.inputs import Task
from greedymiser.cli.printing import escaped


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


# -- what is read -------------------------------------------------------------------------------

DataFile = Annotated[
    Path, typer.Argument(help="CSV, Parquet or SVMlight/LETOR file, told by its suffix."), Reads()
]
PartsFile = Annotated[
    Path,
    typer.Argument(
        help="CSV, Parquet or SVMlight/LETOR file, told by its suffix; "
        "or a pattern such as 'data/*.parquet', read in parts."
    ),
    Reads(),
]
ModelFile = Annotated[Path, typer.Argument(help="A model that fit or curve has written."), Reads()]
Costs = Annotated[
    Path, typer.Option(help="TOML or CSV file with the costs; see costs-template."), Reads()
]
Valid = Annotated[
    Path | None,
    typer.Option(help="Rows to validate with; by default, 25% of DATA are held out."),
    Reads(),
]

# -- what the columns mean ----------------------------------------------------------------------

TargetOption = Annotated[
    str | None, typer.Option(help="Column to predict. SVMlight files have their own.")
]
TaskOption = Annotated[Task | None, typer.Option(help="What the target is; guessed by default.")]
Qid = Annotated[str | None, typer.Option(help="Column with the query of each row, for ranking.")]
Drop = Annotated[
    list[str] | None, typer.Option(help="Column that is not a feature. May be repeated.")
]

# -- how a model is trained ---------------------------------------------------------------------


class Charging(enum.StrEnum):
    """Who pays."""

    model = "model"
    row = "row"


class EngineName(enum.StrEnum):
    """What trains."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


MaxIter = Annotated[int, typer.Option(min=1, help="Most rounds of boosting.")]
MaxDepth = Annotated[int, typer.Option(min=1, help="Depth of the trees.")]
LearningRate = Annotated[float, typer.Option(help="Step of each round.")]
Scoring = Annotated[
    str | None,
    typer.Option(
        help="Validation score: a scikit-learn scorer, ndcg@5 and the like, or total_cost where "
        r"the cost file has \[errors]."
    ),
]
ChargeOption = Annotated[
    Charging, typer.Option(help="Who pays: the model once, or each row for what its paths ask.")
]

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any other parameter of the estimator: --set max_leaf_nodes=31. May be repeated.",
    ),
]

# -- where it happens ---------------------------------------------------------------------------

EngineOption = Annotated[
    EngineName,
    typer.Option(help="What trains: cpu, or cuda for a GPU; auto is the CPU, or workers."),
]
Jobs = Annotated[int | None, typer.Option(help="Threads; all cores by default.")]
Scheduler = Annotated[
    str | None, typer.Option(help="Address of a Dask scheduler, whose workers read the data.")
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Start so many Dask workers on this machine.")
]
