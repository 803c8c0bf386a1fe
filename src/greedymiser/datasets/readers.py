"""Read a file into a data frame: CSV, Parquet, or SVMlight as LETOR has it."""

from __future__ import annotations

import bz2
import csv
import functools
import gzip
import io
import os
import re
import warnings
import zlib
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np

from greedymiser.costs.prices import first_repeated

# How a frame calls the two columns of an SVMlight file that are not features.
LABEL = "label"
QID = "qid"

# What separates the cells of text files, by their suffix; and the suffixes of Parquet files.
TEXT_SEPARATORS = {".csv": ",", ".tsv": "\t"}
PARQUET_SUFFIXES = (".parquet", ".pq")
_SVMLIGHT = (".txt", ".letor", ".svm", ".svmlight", ".libsvm")
_COMPRESSED = (".gz", ".bz2")

# Words that are taken for a missing value, beside the empty cell: those of pandas.
MISSING_WORDS = (
    "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>",
    "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip

# SVMlight files become tables. So many columns are too many, and a table that is larger than this
# may have so many gaps for each value that is written.
MOST_COLUMNS = 2**20
MOST_SPARSE_BYTES = 2**30
MOST_GAPS = 1000

# So many bytes tell whether a file is text.
_PROBE = 4096


def read_table(
    path: str | os.PathLike[str],
    *,
    features: Iterable[str] = (),
    text: Collection[str] = (),
    literal: Collection[str] = (),
    on_missing_words: Callable[[dict[str, list[str]]], object] | None = None,
) -> Any:
    r"""Read a CSV, Parquet or SVMlight (LETOR) file, by its suffix, into a pandas DataFrame.

    Columns of text become categorical, and what is missing is missing. The features of an SVMlight
    file are named by their number, "1", "2" and so on; its labels are the column "label" and its
    queries, if it has them, the column "qid".

    Parameters
    ----------
    path : path
        ``.csv``, ``.tsv`` (CSV with tabs), ``.parquet``, ``.pq``, or for SVMlight ``.txt``,
        ``.letor``, ``.svm``, ``.svmlight``, ``.libsvm``. CSV and SVMlight may be compressed, with a
        further ``.gz`` or ``.bz2``.
    features : iterable of str
        Features that an SVMlight file may leave out, because they are 0 on all of its lines.
    text : collection of str
        Columns to read as text even where they look like numbers.
    literal : collection of str
        Columns of a CSV file in which nothing but an empty cell is missing: in a target, None may
        be the name of a class. In all others, ``MISSING_WORDS`` are missing too.
    on_missing_words : callable, optional
        Is called with the words of a CSV file that were taken for missing values: a list for each
        column that has any.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is not what its suffix says, or has no rows.

    Examples
    --------
    >>> path = Path("people.csv")
    >>> _ = path.write_text("age,town\n41,Lund\n,Ulm")
    >>> read_table(path)["age"].tolist()
    [41.0, nan]
    """
    path = Path(path)
    suffix = _suffix(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file at {str(path)!r}")
    try:
        import pandas  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "reading a table needs pandas, which is not installed; "
            "the extra greedymiser[frames] brings it"
        ) from error
    if path.stat().st_size == 0:
        raise ValueError(f"{str(path)!r} is empty")
    if suffix in TEXT_SEPARATORS:
        frame, words = _read_csv(path, TEXT_SEPARATORS[suffix], text, literal)
        if words and on_missing_words is not None:
            on_missing_words(words)
    elif suffix in PARQUET_SUFFIXES:
        frame = _read_parquet(path)
    else:
        frame = _read_svmlight(path, features)
    if frame.shape[1] == 0:
        raise ValueError(f"{str(path)!r} has no columns")
    if len(frame) == 0:
        raise ValueError(f"{str(path)!r} has no rows")
    return frame if suffix in _SVMLIGHT else _with_categories(frame)


def is_svmlight(path: str | os.PathLike[str]) -> bool:
    """Whether the suffix of a path says that it is an SVMlight (LETOR) file.

    Examples
    --------
    >>> is_svmlight("train.txt"), is_svmlight("train.csv")
    (True, False)
    """
    return _suffix(Path(path)) in _SVMLIGHT


def _suffix(path: Path) -> str:
    """The suffix that tells the format."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    suffix = suffixes[-1] if suffixes else ""
    if suffix not in (*TEXT_SEPARATORS, *PARQUET_SUFFIXES, *_SVMLIGHT):
        raise ValueError(
            f"{str(path)!r} does not end in one of .csv, .tsv, .parquet, or for SVMlight files "
            ".txt, .letor, .svm, .svmlight, .libsvm"
        )
    return suffix


def _open(path: Path) -> IO[bytes]:
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    if path.suffix.lower() == ".bz2":
        return bz2.open(path, "rb")
    return path.open("rb")


def _check_text(path: Path, what: str) -> None:
    """Refuse a file that is not text, before a parser stumbles over it."""
    try:
        with _open(path) as file:
            start = file.read(_PROBE)
    except (gzip.BadGzipFile, EOFError, zlib.error, OSError) as error:
        if path.suffix.lower() not in _COMPRESSED or isinstance(error, PermissionError):
            raise
        raise ValueError(f"{str(path)!r} is not a {path.suffix.lower()} file") from None
    # A NUL is no text, and neither are control characters at the very start (PNG, pickles).
    if b"\0" in start or re.match(rb"[\x80-\xbf\x00-\x08\x0e-\x1f]", start):
        raise ValueError(f"{str(path)!r} is not {what} file: it is not text")
    if not start.strip():
        raise ValueError(f"{str(path)!r} is empty")


def _read_csv(
    path: Path, separator: str, text: Collection[str], literal: Collection[str]
) -> tuple[Any, dict[str, list[str]]]:
    """The table, and the words in it that were taken for missing values, by column."""
    import pandas as pd

    _check_text(path, "a CSV")
    try:
        names = _csv_header(path, separator)
        read = functools.partial(
            pd.read_csv,
            path,
            sep=separator,
            header=0,
            names=names,
            index_col=False,
            skipinitialspace=True,
            low_memory=False,
            encoding="utf-8-sig",
            dtype={name: str for name in text if name in names},
            keep_default_na=False,
            **exact_numbers(),
        )
        with warnings.catch_warnings():
            # More cells in the rows than in the header.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = read(na_values=[""])
            words = _missing_words(frame, literal)
            if words:  # without them, a column may turn out to be one of numbers
                again = read(na_values=["", *MISSING_WORDS], usecols=list(words))
                # pandas forgets them where integers are too wide for their type.
                frame[list(words)] = again.mask(again.isin(MISSING_WORDS))
    except UnicodeDecodeError:
        raise ValueError(f"{str(path)!r} is not a CSV file in UTF-8") from None
    except (pd.errors.ParserError, pd.errors.ParserWarning, csv.Error) as error:
        reason = str(error).rpartition("C error: ")[2].strip()
        raise ValueError(f"cannot read {str(path)!r} as CSV: {reason[:200]}") from None
    return _with_wide_numbers(frame, text), words


def exact_numbers() -> dict[str, str]:
    """What makes pandas read numbers to the last bit, as later versions do by themselves."""
    import pandas as pd

    is_old = tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1)
    return {"float_precision": "round_trip"} if is_old else {}


def _missing_words(frame: Any, literal: Collection[str]) -> dict[str, list[str]]:
    """Which of ``MISSING_WORDS`` each column has, if any; in a column of numbers there is none."""
    import pandas as pd

    words_of = {}
    for name in frame.columns:
        column = frame[name]
        if name in literal or pd.api.types.is_numeric_dtype(column.dtype):
            continue
        words = column[column.isin(MISSING_WORDS)].unique().tolist()
        if words:
            words_of[name] = sorted(words)
    return words_of


def _with_wide_numbers(frame: Any, text: Collection[str]) -> Any:
    """The frame with integers that no integer type holds as floats, not as objects or text."""
    import pandas as pd

    for name in frame.columns:
        column = frame[name]
        if name in text or pd.api.types.is_numeric_dtype(column.dtype):
            continue
        values = column.dropna()
        if len(values) and all(map(_is_integer, values)):
            frame[name] = [float(str(value)) for value in column]
    return frame


def _is_integer(value: Any) -> bool:
    if isinstance(value, str):
        return re.fullmatch(r"[+-]?\d+", value, re.ASCII) is not None
    return isinstance(value, int) and not isinstance(value, bool)


def _csv_header(path: Path, separator: str) -> list[str]:
    """Names of the columns; an unnamed one is called by its position, from 1."""
    # Whatever ends lines: newlines inside of quotes stay as they are.
    with _open(path) as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as lines:
        # Lines until the quotes are closed: a name may contain a line break.
        filled = (line for line in lines if line.strip())
        row = next(csv.reader(filled, delimiter=separator, skipinitialspace=True))
    names = [name.strip() or f"column {i}" for i, name in enumerate(row, start=1)]
    _check_distinct(path, names)
    if len(names) == 1:
        for other in ";\t|,":
            if other in names[0]:
                raise ValueError(
                    f"{str(path)!r} has one column, {shortened(names[0])}; are its cells separated "
                    f"by {other!r} instead of {separator!r}?"
                )
    return names


def _check_distinct(path: Path, names: Iterable[str]) -> None:
    twice = first_repeated(names)
    if twice is not None:
        raise ValueError(f"{str(path)!r} has two columns named {shortened(twice)}")


def _read_parquet(path: Path) -> Any:
    import pandas as pd

    with path.open("rb") as file:
        if file.read(4) != b"PAR1":
            raise ValueError(f"{str(path)!r} is not a Parquet file")
    try:
        frame = pd.read_parquet(path)
    except ImportError:
        raise ImportError(
            "reading Parquet needs pyarrow, which is not installed; "
            "the extra greedymiser[frames] brings it"
        ) from None
    except PermissionError:
        raise
    except Exception as error:  # pyarrow and pandas raise all sorts of things for a damaged file
        reason = " ".join(str(error).split())
        raise ValueError(f"cannot read {str(path)!r} as Parquet: {shortened(reason)}") from None
    frame.columns = [str(name) for name in frame.columns]
    _check_distinct(path, frame.columns)
    return frame.reset_index(drop=True)


def _read_svmlight(path: Path, features: Iterable[str]) -> Any:
    import pandas as pd

    # Imported here because it is only needed here.
    from sklearn.datasets import load_svmlight_file

    _check_text(path, "an SVMlight")
    try:
        X, y, qid = load_svmlight_file(str(path), dtype=np.float64, zero_based=True, query_id=True)
    except (ValueError, OverflowError) as error:
        reason = str(error)[:200]
        raise ValueError(f"cannot read {str(path)!r} as an SVMlight file: {reason}") from None
    if len(qid) not in (0, len(y)):
        raise ValueError(f"only {len(qid)} of the {len(y)} lines of {str(path)!r} have a qid:")
    check_density(path, X)
    # A column keeps the number that the file gives it; hardly any file counts from 0.
    first = 0 if X.shape[1] and X[:, 0].nnz else 1
    numbers = list(range(first, X.shape[1]))
    extra = {int(name) for name in features if re.fullmatch(r"0|[1-9]\d{0,8}", name)}
    absent = sorted(extra.difference(numbers))
    whole = (np.abs(y) <= 2**53).all() and not (y % 1).any()  # not so if one is infinite or NaN
    columns = {LABEL: y.astype(np.int64) if whole else y}
    if len(qid):
        columns[QID] = qid
    values = pd.DataFrame(X[:, first:].toarray(), columns=[str(n) for n in numbers])
    zeros = pd.DataFrame(
        np.zeros((len(y), len(absent))), columns=[str(number) for number in absent]
    )
    both = pd.concat([values, zeros], axis=1)[[str(n) for n in sorted([*numbers, *absent])]]
    return pd.concat([pd.DataFrame(columns), both], axis=1)


def check_density(path: Path, X: Any) -> None:
    """Refuse a file whose feature numbers have such gaps that as a table it would fill memory."""
    n_bytes = X.shape[0] * X.shape[1] * X.dtype.itemsize
    sparse = n_bytes > MOST_SPARSE_BYTES and n_bytes > MOST_GAPS * X.data.nbytes
    if sparse or X.shape[1] > MOST_COLUMNS:
        raise ValueError(
            f"{str(path)!r} has {X.nnz} values, but its feature numbers make {X.shape[1]} columns, "
            f"a table of {n_bytes / 2**30:.1f} GiB; number its features without gaps"
        )


def _with_categories(frame: Any) -> Any:
    """The frame with its columns of text made categorical, which the estimators understand."""
    import pandas as pd

    kinds = {}
    for name in frame.columns:
        column = frame[name]
        if isinstance(column.dtype, pd.CategoricalDtype):
            continue
        if pd.api.types.infer_dtype(column, skipna=True) == "string":
            kinds[name] = "category"
    return frame.astype(kinds)


def shortened(text: str, most: int = 60) -> str:
    """A text in quotes, as much of it as can be read."""
    return repr(text if len(text) <= most else text[:most] + "...")
