"""``greedymiser costs-template``: a cost file to fill in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from greedymiser._core.amounts import quoted
from greedymiser.cli.app import DataFile, Drop, Qid, TargetOption
from greedymiser.cli.errors import InputError, Writes
from greedymiser.cli.inputs import check_column
from greedymiser.cli.outputs import new_file
from greedymiser.cli.printing import complain, emit, say
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
    doubtful = {name: why for name in features if (why := _why_no_feature(name, frame[name]))}
    if len(doubtful) == len(features):
        doubtful = {}
    left_out = {**dict.fromkeys(drop or (), ""), **doubtful}
    _write([name for name in features if name not in doubtful], left_out, out, force)
    if doubtful:
        doubts = "; ".join(f"{name!r} {why}" for name, why in doubtful.items())
        complain(f"Note: not among the features: {doubts}")
    if left_out and out is not None and out.suffix.lower() == ".csv":
        drops = " ".join(f"--drop {name}" for name in left_out)
        complain(
            f"Note: CSV has no place for columns that are left out: say {drops} to curve and fit"
        )
    if target is None and not is_svmlight(data):
        present = [name for name in frame.columns if name in others]
        but = f" but {quoted(present)}" if present else ""
        complain(f"Note: no --target is given: all columns{but} are taken for features")


# Text of which so much is different from row to row is no category.
FREE_TEXT = 0.5

# So many values must differ before anybody takes them for identifiers.
MANY_VALUES = 30

# A feature may have as many categories as there are bins.
MOST_CATEGORIES = 255

# What a date begins with, in any country's order.
DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}($|[ T])")

# Words that a name has which is about identifiers.
IDENTIFIER = re.compile(r"(^|[^a-z])(id|ids|uuid|guid|key|identifier|number|nr|no|ref)($|[^a-z])")


def _why_no_feature(name: str, column: Any) -> str:
    """Why a column is probably no feature; "" where it may well be one."""
    n_rows, n_values = int(column.notna().sum()), int(column.nunique())
    if n_values < MANY_VALUES:
        return ""
    if str(column.dtype) == "category":
        if all(DATE.match(str(value)) for value in column.cat.categories):
            return "holds dates: turn them into numbers, such as days before the prediction"
        if n_values == n_rows:
            return "looks like an identifier: every row has its own"
        if n_values > FREE_TEXT * n_rows:
            return "looks like free text"
        many = n_values > MOST_CATEGORIES
        return f"has {n_values} different texts, more than models can tell apart" if many else ""
    words = re.sub(r"([a-z])([A-Z])", r"\1 \2", str(name)).lower()
    if n_values == n_rows and str(column.dtype).startswith(("int", "uint")):
        is_count = int(column.max()) - int(column.min()) == n_rows - 1
        if is_count or IDENTIFIER.search(words):
            return "looks like an identifier: every row has its own"
    return ""


def _write(
    features: Sequence[str], left_out: Mapping[str, str], out: Path | None, force: bool
) -> None:
    if out is None:
        emit(template(features, left_out=left_out))
        return
    if out.exists() and not force:
        raise InputError(f"{str(out)!r} exists already; --force overwrites it")
    write_template(new_file(out), features, left_out)
    say(f"{len(features)} features, each at a cost of 1: fill in {out}")
