"""From files to rows, what they mean, and what their columns cost."""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.amounts import quoted, shortlist
from greedymiser.cli.clusters import read_parts
from greedymiser.cli.errors import InputError
from greedymiser.cli.printing import complain, say, warn
from greedymiser.costs.files import CostFile, read_costs
from greedymiser.costs.prices import did_you_mean
from greedymiser.datasets import (
    LABEL,
    MISSING_WORDS,
    QID,
    TEXT_SEPARATORS,
    is_svmlight,
    read_table,
)
from greedymiser.datasets.readers import shortened

# Whatever runs models takes most of a second to import, which --help and --version need not wait.
if TYPE_CHECKING:
    from greedymiser.model.predictor import Predictor

# Without --valid, one row (or query) in so many is held out, always the same ones.
HOLD_OUT = 4
SEED = 0

# A target of integers with more distinct values than this is taken for a quantity, not for classes.
MOST_CLASSES = 20

# Text of which so much reads as numbers was probably meant to be numbers.
NEARLY_ALL = 0.9

# So much of a cell is quoted.
LONGEST_CELL = 40


class Task(enum.StrEnum):
    """What the target means."""

    regression = "regression"
    classification = "classification"
    ranking = "ranking"


@dataclass(frozen=True)
class Roles:
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


class Spelled:
    """The words that were taken for missing values, in all files that a command reads."""

    def __init__(self) -> None:
        self._columns: dict[str, dict[str, None]] = {}

    def note(self, words: dict[str, list[str]]) -> None:
        for column, spellings in words.items():
            for word in spellings:
                self._columns.setdefault(word, {})[column] = None

    def tell(self, features: Collection[Any]) -> None:
        """Say it, once, of the columns that are features."""
        notes = []
        for word in sorted(self._columns):
            columns = [name for name in self._columns[word] if name in set(features)]
            if columns:
                notes.append(f"{word!r} in {quoted(columns)}")
        if notes:
            complain(f"Note: read as missing, like empty cells: {'; '.join(notes)}")


@dataclass(frozen=True)
class LabelledRows:
    """Rows to train, validate or test with."""

    X: Any
    y: NDArray[Any]
    qid: NDArray[Any] | None

    def take(self, rows: NDArray[np.bool_]) -> LabelledRows:
        return LabelledRows(
            self.X[rows], self.y[rows], None if self.qid is None else self.qid[rows]
        )


@dataclass(frozen=True)
class TrainingData:
    """All that a model is trained from."""

    task: Task
    costs: CostFile
    train: LabelledRows
    # None if the estimator is to hold rows out itself.
    valid: LabelledRows | None
    test: LabelledRows | None = None


def read_inputs(
    data: Path,
    costs: Path,
    *,
    target: str | None,
    task: Task | None,
    qid: str | None,
    drop: Sequence[str],
    valid: Path | None,
    test: Path | None = None,
    holds_out: bool = True,
) -> TrainingData:
    """Read all files, check them against each other, and say what was understood.

    Without ``valid``, some rows are held out to validate with, if anybody asks for them.
    """
    prices = read_costs(costs)
    spelled = Spelled()
    # In SVMlight, what is 0 in all rows is not written, but it has a price all the same.
    frame = read_table(
        data,
        features=prices.costs.feature_names or (),
        literal=[name for name in (target, qid) if name],
        on_missing_words=spelled.note,
    )
    columns = _columns(frame, data, target, qid, [*drop, *_left_out(prices, frame, target, qid)])
    train = _part(frame, data, columns)
    _check_costs(prices, costs, train.X.columns.tolist(), data, columns)
    task = _known_task(task, train, data, columns)
    checked = None if valid is None else _part_like(train, valid, columns, spelled)
    tested = None if test is None else _part_like(train, test, columns, spelled)
    spelled.tell(train.X.columns)
    _tell_of_stray_words(train.X, data)
    if checked is None and holds_out:
        held = held_out(train, task)
        if not held.any():
            _check_classes_recur(train, task, columns)
            raise InputError(
                f"{str(data)!r} has too few {'queries' if task is Task.ranking else 'rows'} to "
                "hold some out for validation; give a file with --valid"
            )
        train, checked = train.take(~held), train.take(held)
    sizes = [f"{len(train.y)} rows to learn from"]
    sizes += [] if checked is None else [f"{len(checked.y)} to validate with"]
    sizes += [] if tested is None else [f"{len(tested.y)} to test with"]
    say(f"{', '.join(sizes)}; {train.X.shape[1]} features")
    return TrainingData(task, prices, train, checked, tested)


def read_inputs_in_parts(
    data: Path,
    costs: Path,
    *,
    target: str | None,
    task: Task | None,
    qid: str | None,
    drop: Sequence[str],
    valid: Path | None,
    out: Path,
) -> TrainingData:
    """Do as ``read_inputs`` does, with files that are read in parts: targets and queries come here.

    Without ``valid``, rows to validate with are left to the estimator.
    """
    prices = read_costs(costs)
    frame = read_parts(data, out)
    columns = _columns(frame, data, target, qid, [*drop, *_left_out(prices, frame, target, qid)])
    train = _part_of_parts(frame, data, columns)
    _check_costs(prices, costs, train.X.columns.tolist(), data, columns)
    task = _known_task(task, train, data, columns)
    checked = None
    sizes = f"{len(train.y)} rows in {train.X.npartitions} parts"
    if valid is not None:
        others = read_parts(valid, out)
        for name in train.X.columns:
            check_column(others, valid, name)
        checked = _part_of_parts(others, valid, columns)
        checked = LabelledRows(checked.X[train.X.columns], checked.y, checked.qid)
        sizes += f" to learn from, {len(checked.y)} to validate with"
    say(f"{sizes}; {train.X.shape[1]} features")
    return TrainingData(task, prices, train, checked)


def _part_of_parts(frame: Any, path: Path, columns: Roles) -> LabelledRows:
    """Rows of a Dask data frame: targets and queries are read, features are not."""
    named = [name for name in (columns.target, columns.qid) if name is not None]
    for name in named:
        check_column(frame, path, name)
    own = frame[named].compute()
    if len(own) == 0:
        raise InputError(f"{str(path)!r} has no rows")
    _check_given(own, path, columns)
    qid = None if columns.qid is None else own[columns.qid].to_numpy()
    return LabelledRows(_features(frame, path, columns), own[columns.target].to_numpy(), qid)


def _known_task(task: Task | None, train: LabelledRows, data: Path, columns: Roles) -> Task:
    """What the target means, as somebody says or as it looks."""
    if task is not Task.classification:
        _check_no_words_among_numbers(train, data, columns)
    if task is None:
        task = _guess(train)
        source = columns.qid or columns.target
        say(f"Task: {task} (guessed from {source!r}; --task says otherwise)")
    if task is Task.ranking and train.qid is None:
        raise InputError(
            f"ranking needs the query of each row, but {str(data)!r} has no qid:"
            if is_svmlight(data)
            else "ranking needs the query of each row: name its column with --qid"
        )
    return task


def _columns(
    frame: Any, path: Path, target: str | None, qid: str | None, drop: Sequence[str]
) -> Roles:
    if is_svmlight(path):
        target = target or LABEL
        qid = qid or (QID if QID in frame.columns else None)
    if target is None:
        raise InputError(f"name the target with --target; {_has(frame, path)}")
    for name in (target, qid, *drop):
        if name is not None:
            check_column(frame, path, name)
    if qid == target:
        raise InputError(f"{target!r} cannot be both the target and the query")
    return Roles(target, qid, tuple(drop))


def _left_out(prices: CostFile, frame: Any, target: str | None, qid: str | None) -> list[str]:
    """Columns that a cost file says are no features; another file of rows may lack them."""
    others = {target, qid}
    return [name for name in prices.not_features if name in frame.columns and name not in others]


def _has(frame: Any, path: Path) -> str:
    return f"the columns of {str(path)!r} are {quoted(frame.columns, most=12)}"


def check_column(frame: Any, path: Path, name: str) -> None:
    """Complain if a table lacks a column, and say which one may be meant."""
    if name not in frame.columns:
        hint = did_you_mean(name, frame.columns) or f"; {_has(frame, path)}"
        raise InputError(f"{str(path)!r} has no column {name!r}{hint}")


def _part(frame: Any, path: Path, columns: Roles) -> LabelledRows:
    _check_given(frame, path, columns)
    qid = None if columns.qid is None else frame[columns.qid].to_numpy()
    return LabelledRows(_features(frame, path, columns), frame[columns.target].to_numpy(), qid)


def _check_given(frame: Any, path: Path, columns: Roles) -> None:
    """Complain of targets and queries that are missing, or not finite."""
    import pandas as pd

    for name in (columns.target, columns.qid):
        if name is None:
            continue
        check_column(frame, path, name)
        missing = int(frame[name].isna().sum())
        if missing:
            raise InputError(
                f"column {name!r} of {str(path)!r} is missing in {missing} of {len(frame)} rows"
            )
        if pd.api.types.is_float_dtype(frame[name].dtype) and np.isinf(frame[name]).any():
            raise InputError(f"column {name!r} of {str(path)!r} has a number that is infinite")


def _features(frame: Any, path: Path, columns: Roles) -> Any:
    X = frame.drop(columns=[name for name in columns.others if name in frame.columns])
    if X.shape[1] == 0:
        raise InputError(f"{str(path)!r} has no features beside {quoted(columns.others)}")
    return X


def _part_like(train: LabelledRows, path: Path, columns: Roles, spelled: Spelled) -> LabelledRows:
    """Read rows for the same features, in the same order."""
    text = train.X.select_dtypes("category").columns.tolist()
    if train.y.dtype == object:
        text.append(columns.target)
    frame = read_table(
        path,
        features=train.X.columns,
        text=text,
        literal=[name for name in (columns.target, columns.qid) if name],
        on_missing_words=spelled.note,
    )
    for name in train.X.columns:
        check_column(frame, path, name)
    numbers = [name for name in train.X.select_dtypes("number").columns if name not in text]
    _check_numbers(frame, path, numbers, "for the rows to learn from")
    part = _part(frame, path, columns)
    return LabelledRows(part.X[train.X.columns], part.y, part.qid)


def _check_costs(
    prices: CostFile, path: Path, features: Sequence[str], data: Path, columns: Roles
) -> None:
    names = prices.costs.feature_names or []
    missing = [name for name in features if name not in set(names)]
    unknown = [name for name in names if name not in set(features)]
    if missing:
        beside = (
            f" (it has one for {quoted(unknown)}, which is no feature there)" if unknown else ""
        )
        them, columns_of = ("it", "column") if len(missing) == 1 else ("them", "columns")
        raise InputError(
            f"{str(path)!r} has no cost for {quoted(missing)}, which {str(data)!r} has{beside}; "
            f"add {them}, or leave the {columns_of} out with --drop"
        )
    if unknown:
        why = "is not a feature" if unknown[0] in columns.others else "is not a column"
        raise InputError(
            f"{str(path)!r} has a cost for {quoted(unknown)}, which {why} of {str(data)!r}; take "
            f"{'it' if len(unknown) == 1 else 'them'} out of the cost file, or add to not_features"
        )


def _check_no_words_among_numbers(train: LabelledRows, data: Path, columns: Roles) -> None:
    """In a target None may be a class, but not among numbers: there it is one that is missing."""
    if train.y.dtype != object:
        return
    words = np.isin(train.y, MISSING_WORDS)
    if words.any() and not words.all() and all(map(_is_number, train.y[~words])):
        raise InputError(
            f"column {columns.target!r} of {str(data)!r} has numbers, and {words.sum()} of "
            f"{len(words)} rows say {quoted(sorted(set(train.y[words])))}: leave these rows out, "
            "or say --task classification if that is a class"
        )


def _is_no_number(column: Any) -> NDArray[np.bool_] | None:
    """Which cells of a column of text are filled, and with no number; None for other columns."""
    import pandas as pd

    if (
        not isinstance(column.dtype, pd.CategoricalDtype)
        or column.cat.categories.dtype.kind in "iufb"
    ):
        return None
    words = pd.to_numeric(pd.Series(column.cat.categories), errors="coerce").isna().to_numpy()
    # What is missing has the code -1, and so the last place.
    return np.append(words, False)[column.cat.codes.to_numpy()]


def _tell_of_stray_words(X: Any, path: Path) -> None:
    """Say which columns of a CSV file are categories because of a few cells among numbers."""
    if TEXT_SEPARATORS.keys().isdisjoint(suffix.lower() for suffix in path.suffixes):
        return  # elsewhere, whoever wrote the file has said what is text
    for name in X.columns:
        strays = _is_no_number(X[name])
        n_cells = int(X[name].notna().sum())
        if strays is None or not 0 < strays.sum() <= (1 - NEARLY_ALL) * n_cells:
            continue
        are = "cells is" if strays.sum() == 1 else "cells are"
        words = [shortened(str(word), LONGEST_CELL) for word in X[name][strays].unique()]
        complain(
            f"Note: {name!r} is taken for categories: {strays.sum()} of {n_cells} {are} no number "
            f"({shortlist(words, 3)})"
        )


def _check_numbers(frame: Any, path: Path, names: Sequence[Any], whose: str) -> None:
    """Complain of the first cell that is no number, in columns that are numbers elsewhere."""
    for name in names:
        strays = _is_no_number(frame[name])
        if strays is not None and strays.any():
            first = int(strays.argmax())
            cell = shortened(str(frame[name].iloc[first]), LONGEST_CELL)
            raise InputError(
                f"column {name!r} of {str(path)!r} has {cell} in row {first + 1}, "
                f"but {whose} it is a column of numbers; a value that is missing is an empty cell"
            )


def _is_number(text: Any) -> bool:
    try:
        float(text)
    except (TypeError, ValueError):
        return False
    return True


def _guess(train: LabelledRows) -> Task:
    if train.qid is not None:
        return Task.ranking
    if train.y.dtype.kind == "f" and ((train.y % 1).any() or np.abs(train.y).max() > 2**53):
        return Task.regression
    is_number = train.y.dtype.kind in "iuf"
    many = is_number and len(np.unique(train.y)) > MOST_CLASSES
    return Task.regression if many else Task.classification


def held_out(train: LabelledRows, task: Task) -> NDArray[np.bool_]:
    """Mark one row in four: of each class, or all rows of one query in four."""
    if task is Task.ranking:
        assert train.qid is not None
        queries, query_of = np.unique(train.qid, return_inverse=True)
        return _one_in_four(np.zeros(len(queries), dtype=np.intp))[query_of]
    if task is Task.classification:
        return _one_in_four(np.unique(train.y, return_inverse=True)[1])
    return _one_in_four(np.zeros(len(train.y), dtype=np.intp))


def _check_classes_recur(train: LabelledRows, task: Task, columns: Roles) -> None:
    """Complain of a target that tells rows apart, as a number of applications does."""
    if task is not Task.classification:
        return
    n_rows = np.unique(train.y, return_counts=True)[1]
    if len(n_rows) > MOST_CLASSES and np.mean(n_rows == 1) > 0.5:
        raise InputError(
            f"the target {columns.target!r} has {len(n_rows)} classes, most of them with a single "
            "row: is it the right column? (for a quantity, say --task regression)"
        )


def _one_in_four(stratum: NDArray[np.intp]) -> NDArray[np.bool_]:
    shuffled = np.random.RandomState(SEED).permutation(len(stratum))
    order = shuffled[np.argsort(stratum[shuffled], kind="stable")]
    starts = np.searchsorted(stratum[order], stratum[order])
    marked = np.zeros(len(stratum), dtype=bool)
    marked[order] = (np.arange(len(order)) - starts) % HOLD_OUT == HOLD_OUT - 1
    return marked


def load_model(path: Path) -> Predictor:
    """Read a model file."""
    from greedymiser.files import load

    try:
        return load(path)
    except (FileNotFoundError, IsADirectoryError):
        raise InputError(f"there is no model at {str(path)!r}") from None


def rows_for(
    model: Predictor,
    path: Path,
    qid: str | None,
    drop: Sequence[str],
    others: Sequence[str] = (),
) -> tuple[Any, NDArray[Any] | None, Any]:
    """The table that a model predicts from, and the queries of its rows where it asks for them.

    ``others`` are columns that are read as they are written; the third table has them.
    """
    if qid is not None and model.kind != "ranker":
        raise InputError(f"--qid is for models that rank, and this one is a {model.kind}")
    names, spelled = model.feature_names, Spelled()
    literal = [*others, *([qid] if qid else [])]
    # What is not a feature is kept letter by letter: 007 is not 7.
    text = [name for name in others if name not in (names or ())]
    if names is None:
        frame = read_table(path, text=text, literal=literal, on_missing_words=spelled.note)
    else:
        text += [names[f] for f, labels in model.categories.items() if labels.dtype == object]
        frame = read_table(
            path, features=names, text=text, literal=literal, on_missing_words=spelled.note
        )
    if qid is None and is_svmlight(path) and QID in frame.columns:
        qid = QID
    for name in (*drop, *others, *([qid] if qid else [])):
        check_column(frame, path, name)
    columns = frame[list(others)]
    queries = None if qid is None else frame[qid].to_numpy()
    if queries is None and model.compares_rows:
        warn(
            "no column tells the query of each row (--qid names one): "
            "all rows are taken for one query, and ranked against each other"
        )
    if names is None:
        unused = [*drop, *others, *([LABEL] if is_svmlight(path) else []), *([qid] if qid else [])]
        spelled.tell([name for name in frame.columns if name not in unused])
        return _by_position(model, frame, path, unused), queries, columns
    unread = [name for name in model.features_used_ if name in drop]
    if unread:
        raise InputError(f"the model uses {quoted(unread)}, which --drop leaves out")
    missing = [name for name in model.features_used_ if name not in frame.columns]
    if missing:
        raise InputError(f"{str(path)!r} has no column {quoted(missing)}, which the model uses")
    spelled.tell(model.features_used_)
    used = zip(model.features, model.features_used_, strict=True)
    numbers = [name for f, name in used if f not in model.categories]
    _check_numbers(frame, path, numbers, "for the model")
    return frame, queries, columns


def parts_for(
    model: Predictor,
    data: Path,
    out: Path,
    qid: str | None,
    drop: Sequence[str],
    keep: Sequence[str] = (),
) -> Any:
    """The Dask data frame that a model predicts from; only what it uses or is kept is read."""
    if qid is not None or model.compares_rows:
        raise InputError(
            "--qid is for models that compare the rows of a query, which parts of data may divide: "
            "predict each file by itself"
        )
    frame = read_parts(data, out)
    for name in (*drop, *keep):
        check_column(frame, data, name)
    columns = [name for name in frame.columns if name not in (*drop, *keep)]
    if model.feature_names is None:
        _check_width(model, len(columns), data)
        return frame[[*columns, *keep]]
    missing = [name for name in model.features_used_ if name not in (*columns, *keep)]
    if missing:
        raise InputError(f"{str(data)!r} has no column {quoted(missing)}, which the model uses")
    return frame[list(dict.fromkeys([*(model.features_used_ or columns[:1]), *keep]))]


def _by_position(model: Predictor, frame: Any, path: Path, others: Sequence[str]) -> NDArray[Any]:
    frame = frame[[name for name in frame.columns if name not in others]]
    _check_width(model, frame.shape[1], path)
    return frame.to_numpy()


def _check_width(model: Predictor, n_columns: int, path: Path) -> None:
    if n_columns != model.n_features:
        raise InputError(
            f"the model knows its {model.n_features} features by position, but {str(path)!r} "
            f"has {n_columns} columns"
        )
