"""From models to files."""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer
from numpy.typing import NDArray

from greedymiser._core.files import check_place, write_file
from greedymiser.cli.errors import InputError, Writes
from greedymiser.cli.printing import escaped

# To predict needs none of those that train, and to be helped none of those that predict: they are
# imported by the commands that do.
if TYPE_CHECKING:
    from greedymiser.cli.training import Model
    from greedymiser.curve.curve import TradeoffCurve
    from greedymiser.curve.summary import FrontStep
    from greedymiser.model.predictor import Predictor

# By custom, the name of a model file ends like this.
MODEL_SUFFIX = ".miser"

# The files of a curve, and what they are.
CURVE_FILES = {
    "report.html": "the report, for a browser",
    "curve.csv": "the curve as a table",
    "curve.png": "score against cost",
    "features.png": "which model buys what",
}

WRITES_CURVE = Writes(
    (
        *CURVE_FILES,
        f"models/model-*{MODEL_SUFFIX}",
        "checkpoint/checkpoint.json",
        "checkpoint/*.npz",
    )
)


def make_folder(path: Path) -> Path:
    """Make a folder, and see that it can be written to: before the work, not after it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise InputError(f"cannot write to the folder {str(path)!r}: {error.strerror}") from None
    return path


def new_file(path: Path) -> Path:
    """See that a file can be written here, and make its folder."""
    if path.is_dir():
        raise InputError(f"cannot write the file {str(path)!r}: there is a folder of that name")
    make_folder(path.parent)
    return path


def new_model(path: Path) -> Path:
    """See that a model can be saved here: before it is trained, not after."""
    check_place(new_file(path))
    return path


def new_curve(out: Path, force: bool = True) -> Path:
    """See that a curve can be written to this folder, and may if there is one already."""
    if not force and any((out / name).is_file() for name in CURVE_FILES):
        _ask_to_replace(out)
    make_folder(out)
    make_folder(out / "models")
    for name in CURVE_FILES:
        check_place(out / name, "a curve")
    return out


def _ask_to_replace(out: Path) -> None:
    there = f"{str(out)!r} has the files of another run"
    if not (sys.stdin and sys.stdin.isatty()):
        raise InputError(f"{there}; --force replaces them")
    if not typer.confirm(f"{escaped(there)}: replace them?", err=True):
        raise typer.Abort


def save_model(model: Model, out: Path, unit: str | None, details: Mapping[str, str]) -> None:
    """Save a model, with what ``inspect`` shows of it beyond how it was trained."""
    from greedymiser.files import save
    from greedymiser.files.writing import about
    from greedymiser.model.predictor import as_predictor

    saved = replace(as_predictor(model), about={**about(model), **details})
    save(saved, out, cost_unit=unit)


def write_table(table: Any, out: Path, what: str) -> None:
    """Write a CSV file, all of it or none."""
    write_file(out, table.to_csv(index=False).encode("utf-8", "backslashreplace"), what)


def rows_differ(model: Predictor) -> bool:
    """Whether rows differ in what they pay."""
    return len(model.stages) > 1 or model.charge == "row"


def predictions(
    model: Predictor, X: Any, queries: NDArray[Any] | None = None, with_costs: bool = False
) -> tuple[Any, NDArray[np.float64]]:
    """A table with the prediction of each row, and what each row has paid.

    Costs are a column of it where rows differ in them, and where they are asked for.
    """
    import pandas as pd

    from greedymiser.model.links import gives_probabilities

    table = model.table(X)
    raw, left = model.run(table, queries)
    columns = {"prediction": model.respond(raw)}
    if model.classes is not None and gives_probabilities(model.loss):
        probabilities = model.probabilities(raw).T
        for label, column in zip(model.classes.tolist(), probabilities, strict=True):
            columns[f"probability_{label}"] = column
    bills = model.bills(table, left)
    if with_costs or rows_differ(model):
        columns["cost"] = bills
    return pd.DataFrame(columns), bills


def write_predictions(
    model: Predictor, rows: Any, out: Path, with_costs: bool = False, keep: Sequence[str] = ()
) -> tuple[int, float]:
    """Write the predictions of a Dask data frame to a new folder, a Parquet file for each part.

    Returns how many there are, and what they cost on average. All of the folder is there, or none.
    """
    from dask import delayed
    from dask.dataframe.dispatch import make_meta, meta_nonempty

    if out.exists():
        raise InputError(f"{str(out)!r} exists already; predictions of parts need a new folder")
    make_folder(out.parent)
    sample = meta_nonempty(make_meta(rows))
    features = sample.drop(columns=list(keep)) if model.feature_names is None else sample
    model = model.served_for(features if model.feature_names else features.to_numpy())
    like = _predicted_part(sample, model, None, with_costs, keep)[:0]
    table = rows.map_partitions(
        _predicted_part, delayed(model, pure=True), like, with_costs, tuple(keep), meta=like
    )
    unfinished = out.with_name(f".{out.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        table.to_parquet(str(unfinished), write_index=False)
        n_rows, cost = _rows_and_cost(model, unfinished)
        unfinished.rename(out)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return n_rows, cost


def _predicted_part(
    rows: Any, model: Predictor, like: Any, with_costs: bool, keep: Sequence[str]
) -> Any:
    if len(rows) == 0:
        return like
    X = rows if model.feature_names else rows.drop(columns=list(keep)).to_numpy()
    return with_kept(predictions(model, X, with_costs=with_costs)[0], rows[list(keep)])


def with_kept(table: Any, columns: Any) -> Any:
    """Predictions, with some columns of the data before them."""
    import pandas as pd

    if columns is None or columns.shape[1] == 0:
        return table
    both = [name for name in columns.columns if name in table.columns]
    if both:
        raise InputError(f"--keep {both[0]!r}: the predictions have a column of that name")
    return pd.concat([columns.reset_index(drop=True), table], axis=1)


def _rows_and_cost(model: Predictor, folder: Path) -> tuple[int, float]:
    """How many predictions are in a folder, and what they cost on average."""
    from pyarrow import parquet

    files = sorted(folder.glob("*.parquet"))
    n_rows = sum(parquet.read_metadata(file).num_rows for file in files)
    if not rows_differ(model) or n_rows == 0:
        return n_rows, model.cost_
    costs = (parquet.read_table(file, columns=["cost"])["cost"].to_numpy() for file in files)
    return n_rows, sum(float(part.sum()) for part in costs) / n_rows


def write_curve(
    trained: TradeoffCurve,
    steps: Sequence[FrontStep],
    out: Path,
    X: Any = None,
    baselines: Mapping[str, Any] | None = None,
    **report: Any,
) -> list[tuple[Path, str]]:
    """Write all there is to a curve; tell the files and what they are.

    The report has the protocols of models that charge by row, counted over X; ``report`` has what
    else is told there.
    """
    from greedymiser.curve.summary import model_at
    from greedymiser.files import save

    models = [model_at(trained, step.position, step.n_iter) for step in steps]

    folder = make_folder(out / "models")
    written = [folder / f"model-{number}{MODEL_SUFFIX}" for number, _ in enumerate(models, 1)]
    for model, path in zip(models, written, strict=True):
        save(model, path, cost_unit=trained.cost_unit)
    write_table(_curve_table(trained, steps), out / "curve.csv", "a curve")
    for name, picture in _pictures(trained, baselines).items():
        write_file(out / name, picture, "a picture")
    trained.report(out / "report.html", X=X, baselines=baselines, **report)
    for model_file in folder.glob(f"model-*{MODEL_SUFFIX}"):
        if model_file not in written:  # of an earlier, longer curve
            model_file.unlink()
    files = [(out / name, what) for name, what in CURVE_FILES.items()]
    return [*files, (folder, f"the {len(models)} models")]


def _curve_table(trained: TradeoffCurve, steps: Sequence[FrontStep]) -> Any:
    """The models, counted from 1 as the files and the table on the terminal do."""
    import pandas as pd

    rows = []
    for number, step in enumerate(steps, 1):
        trace = trained.trace(step.position)
        row = trace[trace["n_iter"] == step.n_iter].iloc[0].drop("model", errors="ignore")
        own = {"model": number, "adds": step.change(99)}
        rows.append({**own, **row.to_dict(), "score_error": step.error})
    return pd.DataFrame(rows)


def _pictures(trained: TradeoffCurve, baselines: Mapping[str, Any] | None) -> dict[str, bytes]:
    with _without_complaints_of_fonts():
        axes = {
            "curve.png": trained.plot(baselines=baselines),
            "features.png": trained.plot_features(),
        }
        return {name: _drawn(ax) for name, ax in axes.items()}


def _drawn(ax: Any) -> bytes:
    picture = io.BytesIO()
    ax.figure.savefig(picture, format="png", dpi=150)
    return picture.getvalue()


def write_picture(ax: Any, out: Path) -> None:
    """Write the figure of some axes, all of it or nothing."""
    with _without_complaints_of_fonts():
        write_file(out, _drawn(ax), "a picture")


@contextmanager
def _without_complaints_of_fonts() -> Iterator[None]:
    """Say nothing of letters that the font lacks: the picture shows where."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        yield
