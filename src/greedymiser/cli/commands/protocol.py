"""``greedymiser protocol``: which questions a model asks, of which rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from greedymiser.cli.app import DataFile, Drop, ModelFile, Qid
from greedymiser.cli.errors import InputError, Writes
from greedymiser.cli.inputs import load_model, rows_for
from greedymiser.cli.outputs import new_file, write_picture
from greedymiser.cli.printing import say
from greedymiser.cli.tables import cost_unit, show_protocol


def protocol(
    model: ModelFile,
    data: DataFile,
    out: Annotated[
        Path | None, typer.Option(help="PNG file for a picture of it."), Writes()
    ] = None,
    min_share: Annotated[
        float, typer.Option(min=0, max=1, help="Questions to fewer rows are left out.")
    ] = 0.01,
    hide_free: Annotated[
        bool, typer.Option("--hide-free", help="Pass over questions that cost nothing.")
    ] = False,
    qid: Qid = None,
    drop: Drop = None,
) -> None:
    """Show what a model trained with --charge row asks of which rows, and in which order."""
    if out is not None and out.suffix.lower() not in ("", ".png"):
        raise InputError(f"the picture is a PNG file, and {str(out)!r} does not end in .png")
    trained = load_model(model)
    if not trained.has_protocol:
        raise InputError(
            f"{str(model)!r} asks every row for the same; a protocol needs a model that was "
            "trained with --charge row"
        )
    X, queries, _ = rows_for(trained, data, qid, drop or ())
    steps = trained.protocol(X, queries, min_share=min_share)
    if hide_free:
        steps = steps.without_free()
    if out is not None:
        write_picture(steps.plot(), new_file(out))
    show_protocol(steps, cost_unit(trained))
    if out is not None:
        say(f"A picture of it: {out}")
