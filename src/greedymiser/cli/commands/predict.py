"""``greedymiser predict``: what a model makes of a table. Imports nothing that trains."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from greedymiser._core.amounts import money
from greedymiser.cli.app import Drop, ModelFile, PartsFile, Qid, Scheduler, Workers
from greedymiser.cli.clusters import cluster, is_pattern
from greedymiser.cli.errors import InputError, Writes
from greedymiser.cli.inputs import load_model, parts_for, rows_for
from greedymiser.cli.outputs import (
    new_file,
    predictions,
    rows_differ,
    with_kept,
    write_predictions,
    write_table,
)
from greedymiser.cli.printing import emit, say
from greedymiser.cli.tables import cost_unit

if TYPE_CHECKING:
    from greedymiser.model.predictor import Predictor


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
    with_costs: Annotated[
        bool,
        typer.Option(
            "--with-costs",
            help="Add the column cost, which is there anyway where predictions differ in it.",
        ),
    ] = False,
    keep: Annotated[
        list[str] | None,
        typer.Option(help="Column of DATA to write beside the predictions. May be repeated."),
    ] = None,
    qid: Qid = None,
    drop: Drop = None,
    scheduler: Scheduler = None,
    workers: Workers = None,
) -> None:
    """Predict, from the columns that the model has bought; it does not miss the others."""
    trained = load_model(model)
    in_cluster = scheduler is not None or workers is not None
    if is_pattern(data) or in_cluster:
        if out is None:
            raise InputError("predictions of data in parts go to a folder: name it with --out")
        with cluster(scheduler, workers, 1) if in_cluster else nullcontext():
            rows = parts_for(trained, data, out, qid, drop or (), keep or ())
            n_rows, cost = write_predictions(trained, rows, out, with_costs, keep or ())
        _tell(trained, n_rows, cost, out)
        return
    X, queries, columns = rows_for(trained, data, qid, drop or (), keep or ())
    table, bills = predictions(trained, X, queries, with_costs)
    table = with_kept(table, columns)
    if out is None:
        emit(table.to_csv(index=False))
        return
    write_table(table, new_file(out), "predictions")
    _tell(trained, len(table), float(np.mean(bills)), out)


def _tell(trained: Predictor, n_rows: int, cost: float, out: Path) -> None:
    paid = "a mean cost" if rows_differ(trained) else "a cost"
    say(
        f"{n_rows:,} prediction{'s' * (n_rows != 1)} at {paid} of "
        f"{money(cost, cost_unit(trained))} each, "
        f"from {len(trained.features_used_)} of {trained.n_features} features: {out}"
    )
