"""Data: CSV, Parquet, LETOR. What is read must also do for the command line."""

from __future__ import annotations

import datetime
import decimal
import io
import tempfile
import unicodedata
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from typer.main import get_command

from fuzz.mutations import ON_BYTES, ON_TEXT, Kind, Random, pick, refused
from greedymiser.cli import app
from greedymiser.datasets import is_svmlight, read_table

COMMANDS = get_command(app)

# More columns are not trained on here: one who pastes much makes many.
MOST_COLUMNS = 200


def use(path: Path) -> str:
    """See that a table which is read is one, and that every command does with it or complains."""
    try:
        frame = read_table(path)
    except ValueError as error:
        return refused(path, error)
    assert len(frame) > 0
    assert len(set(frame.columns)) == frame.shape[1]
    assert all(type(name) is str for name in frame.columns)
    if frame.shape[1] > MOST_COLUMNS:
        return "read"
    with tempfile.TemporaryDirectory() as folder:
        return _try_commands(path, frame, Path(folder))


def _try_commands(path: Path, frame: Any, folder: Path) -> str:
    costs, model, out = folder / "costs.toml", folder / "m.miser", folder / "p.csv"
    target = [] if is_svmlight(path) else ["--target", frame.columns[-1]]
    if fails("costs-template", path, *target, "--out", costs):
        return "read"
    if fails("fit", path, *target, "--costs", costs, "--out", model, "--tradeoff", "0",
              "--max-iter", "2", "--jobs", "1"):  # fmt: skip
        return "read"
    assert not fails("predict", model, path, "--out", out), "cannot predict what it learned from"
    assert len(pd.read_csv(out)) == len(frame)
    return "trained"


def fails(*arguments: object) -> bool:
    """Run a command; it may complain, but only in one sentence and of what the user can mend."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        try:
            COMMANDS.main([str(argument) for argument in arguments], prog_name="greedymiser")
        except SystemExit as end:
            code = end.code
    shown, said = (stream.buffer.getvalue().decode() for stream in (out, err) if not stream.flush())
    for sign in set(shown + said) - {"\n"}:
        assert unicodedata.category(sign) not in ("Cc", "Cs", "Zl", "Zp"), f"shows {sign!r}"
    if code == 2:  # wrong usage, as of a target that begins with a dash
        return True
    lines = [line for line in said.splitlines() if not line.startswith("Note: ")]
    assert code in (0, 1), code
    assert "unexpected" not in said, said
    assert len(lines) == code, said
    return code == 1


# -- CSV ----------------------------------------------------------------------------------------


def csv_seeds() -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": rng.integers(1, 90, 40),
            "x.y": rng.standard_normal(40).round(3),
            "colour": rng.choice(["red", "green", "blau, grün"], 40),
            "ok": rng.choice([True, False], 40),
            "y": rng.choice(["yes", "no", "None"], 40),
        }
    )
    frame.loc[::5, "x.y"] = np.nan
    numbers = frame[["age", "x.y"]].assign(price=frame["age"] * 0.5)
    quoted = 'a,"b\nc",y\n' + "".join(f'{i % 7},"x\n{i % 3}",{i}\n' for i in range(30))
    words = "a,b,y\n" + "".join(
        f"{i % 5},{['NA', 'null', 'x'][i % 3]},{i % 2}\n" for i in range(30)
    )
    texts = {
        "mixed.csv": frame.to_csv(index=False),
        "numbers.csv": numbers.to_csv(index=False),
        "tabs.tsv": numbers.to_csv(index=False, sep="\t"),
        "quoted.csv": quoted,
        "words.csv": words,
    }
    return {name: text.encode() for name, text in texts.items()}


CSV = Kind("csv", csv_seeds, [*ON_BYTES, *ON_TEXT], use, is_text=True, most_bytes=2**30)


# -- LETOR --------------------------------------------------------------------------------------


def letor_seeds() -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    lines = [
        f"{rng.integers(3)} qid:{i // 5} "
        + " ".join(f"{f}:{rng.standard_normal():.3f}" for f in range(1, 5) if rng.random() < 0.8)
        + f" #docid = D{i}"
        for i in range(40)
    ]
    plain = [line.replace(" qid", " #qid") for line in lines]
    unnamed = [f"{i % 2} " + " ".join(f"{f}:{(i * f) % 7}" for f in (0, 2, 9)) for i in range(20)]
    texts = {"letor.txt": lines, "plain.svm": plain, "zero.libsvm": unnamed}
    return {name: "\n".join(text).encode() for name, text in texts.items()}


LETOR = Kind("letor", letor_seeds, [*ON_BYTES, *ON_TEXT], use, is_text=True, most_bytes=2**30)


# -- Parquet ------------------------------------------------------------------------------------


def _as_parquet(frame: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    frame.to_parquet(buffer, **options)
    return buffer.getvalue()


def parquet_seeds() -> dict[str, bytes]:
    frame = pd.read_csv(io.BytesIO(csv_seeds()["mixed.csv"]))
    return {
        "mixed.parquet": _as_parquet(frame),
        "plain.parquet": _as_parquet(frame, compression=None, index=True),
        "category.pq": _as_parquet(frame.astype({"colour": "category", "age": "Int64"})),
    }


COLUMNS: list[Any] = [
    [1, 2, 3], [1.5, None, 3], [True, False, None], ["a", None, "b"], [None, None, None],
    [b"a", b"\xff", b""], [[1], [2, 3], []], [{"a": 1}, {"a": 2}, None], ["", "\x1b[31m", "\u202e"],
    [decimal.Decimal("1.5"), decimal.Decimal(2), None], [2**63 - 1, -(2**63), 0],
    [datetime.date(2020, 1, 1), None, datetime.date(1, 1, 1)],
    [datetime.datetime(2020, 1, 1), None, datetime.datetime(1969, 1, 1)],
    [datetime.timedelta(1), None, datetime.timedelta(0)], [np.inf, -np.inf, np.nan],
    [datetime.time(1), None, datetime.time(2)],
]  # fmt: skip
NAMES = ["a", "b", "", " ", "label", "qid", "y", "a.b", "\x1b[31m", "größe", "0", "\n", "self"]


def odd_frame(data: bytes, rng: Random, others: list[bytes]) -> bytes:
    """A file that is as it should be, of types that nobody expects."""
    n = int(rng.integers(1, 5))
    names = [pick(rng, NAMES) for _ in range(n)]
    repeat = int(pick(rng, [1, 1, 10, 20]))
    columns = {name: pick(rng, COLUMNS) * repeat for name in names}
    frame = pd.DataFrame({name: pd.Series(values) for name, values in columns.items()})
    if rng.random() < 0.1:
        return _twice(frame, rng)
    if rng.random() < 0.1:
        frame = frame.iloc[:0]
    if rng.random() < 0.2:
        frame = frame.set_index(frame.columns[0])
    if rng.random() < 0.3:
        name = pick(rng, list(frame.columns) or ["none"])
        kind = pick(rng, ["category", "string", "Int64", "Float64", "boolean", "float32", "uint8"])
        try:
            frame = frame.astype({name: kind})
        except (TypeError, ValueError, KeyError, OverflowError):
            return data
    return _as_parquet(frame)


def _twice(frame: Any, rng: Random) -> bytes:
    """Two columns of one name, which pandas would not write."""
    table = pa.Table.from_pandas(frame)
    name = pick(rng, table.column_names)
    buffer = io.BytesIO()
    pq.write_table(table.append_column(name, table[name]), buffer)
    return buffer.getvalue()


PARQUET = Kind(
    "parquet",
    parquet_seeds,
    [*ON_BYTES, *ON_BYTES, odd_frame, odd_frame],
    use,
    is_text=False,
    most_bytes=2**30,
)
