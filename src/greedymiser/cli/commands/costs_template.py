"""``greedymiser costs-template``: a cost file to fill in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from greedymiser.cli.app import DataFile, Drop, Qid, TargetOption
from greedymiser.cli.guarding import InputError, Writes
from greedymiser.cli.inputs import check_column
from greedymiser.cli.outputs import new_file
from greedymiser.cli.printing import complain, emit, quoted, say
from greedymiser.costs.files import template, write_template
from greedymiser.datasets import LABEL, QID, is_svmlight, read_table


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
    _write(features, out, force)
    if target is None and not is_svmlight(data):
        left_out = [name for name in frame.columns if name in others]
        but = f" but {quoted(left_out)}" if left_out else ""
        complain(f"Note: no --target is given: all columns{but} are taken for features")


def _write(features: Sequence[str], out: Path | None, force: bool) -> None:
    if out is None:
        emit(template(features))
        return
    if out.exists() and not force:
        raise InputError(f"{str(out)!r} exists already; --force overwrites it")
    write_template(new_file(out), features)
    say(f"{len(features)} features, each at a cost of 1: fill in {out}")
