"""Data with real prices to try things on, and readers of common formats.

The embedded files are described, with their licences, in ``data/README.md`` beside this module.
"""

from __future__ import annotations

import gzip
import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from greedymiser.costs.cost_model import CostModel
from greedymiser.datasets.readers import (
    LABEL,
    MISSING_WORDS,
    PARQUET_SUFFIXES,
    QID,
    TEXT_SEPARATORS,
    check_density,
    is_svmlight,
    read_table,
)

__all__ = [
    "LABEL",
    "MISSING_WORDS",
    "PARQUET_SUFFIXES",
    "QID",
    "TEXT_SEPARATORS",
    "CostedData",
    "is_svmlight",
    "load_letor",
    "load_thyroid",
    "load_yahoo_costs",
    "read_table",
]

_DATA = files(__name__) / "data"

# Turney's prices in dollars, without the blood draw that the tests share.
_BLOOD_DRAW = 2.10
_BLOOD_TESTS = {"TSH": 20.68, "T3": 9.31, "TT4": 12.41, "T4U": 9.31}
_QUESTION = 1.00

# How Yahoo's cost file marks a feature that Set 1 does not have.
_ABSENT = 10_000


@dataclass(frozen=True, eq=False)
class CostedData:
    """A data set, split into training and test rows, with the prices of its features.

    Examples
    --------
    >>> data = load_thyroid()
    >>> data.target_names, data.costs.n_features
    (['hypothyroid', 'subnormal', 'normal'], 21)
    """

    X_train: NDArray[np.float64]
    y_train: NDArray[np.int64]
    X_test: NDArray[np.float64]
    y_test: NDArray[np.int64]
    # One name per column of X.
    feature_names: list[str]
    # One name per class, in the order of the sorted labels.
    target_names: list[str]
    # Knows the features by these names, in this order.
    costs: CostModel
    description: str

    def as_frame(self) -> tuple[Any, Any]:
        """Return ``X_train`` and ``X_test`` as pandas DataFrames with named columns."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError(
                "as_frame needs pandas, which is not installed; "
                "the extra greedymiser[frames] brings it"
            ) from error
        return (
            pd.DataFrame(self.X_train, columns=self.feature_names),
            pd.DataFrame(self.X_test, columns=self.feature_names),
        )


def load_thyroid() -> CostedData:
    """Load the UCI ann-thyroid data with the prices of its medical tests.

    3772 training and 3428 test patients, 21 features, 3 classes (3 is normal, 92.5% of the rows).
    The 16 history questions cost 1 dollar each. TSH, T3, TT4 and T4U are blood tests: the first of
    them also pays for the blood draw. FTI is computed from TT4 and T4U, so it needs both and costs
    nothing beyond them.

    Returns
    -------
    CostedData

    Examples
    --------
    >>> data = load_thyroid()
    >>> data.X_train.shape
    (3772, 21)
    >>> data.costs.total(["TSH"]), data.costs.total(["TSH", "T3"])
    (22.78, 32.09)
    """
    feature_names, X_train, y_train = _read_thyroid("thyroid_train.csv.gz")
    _, X_test, y_test = _read_thyroid("thyroid_test.csv.gz")
    return CostedData(
        X_train=X_train,
        y_train=y_train,
        X_test=X_test,
        y_test=y_test,
        feature_names=feature_names,
        target_names=["hypothyroid", "subnormal", "normal"],
        costs=_thyroid_costs(feature_names),
        description=(
            "UCI ann-thyroid: is a patient hypothyroid (class 1), subnormal (2) or normal (3)? "
            "Prices in dollars by Turney. Licence: CC BY 4.0."
        ),
    )


def _read_thyroid(file: str) -> tuple[list[str], NDArray[np.float64], NDArray[np.int64]]:
    with (_DATA / file).open("rb") as stored, gzip.open(stored, "rt", encoding="ascii") as text:
        header = text.readline().strip().split(",")
        table = np.loadtxt(text, delimiter=",", dtype=np.float64)
    return header[:-1], np.ascontiguousarray(table[:, :-1]), table[:, -1].astype(np.int64)


def _thyroid_costs(feature_names: list[str]) -> CostModel:
    questions = [name for name in feature_names if name not in _BLOOD_TESTS and name != "FTI"]
    resources = dict.fromkeys(questions, _QUESTION) | {"blood_draw": _BLOOD_DRAW} | _BLOOD_TESTS
    needs = {name: [name] for name in questions}
    needs |= {name: ["blood_draw", name] for name in _BLOOD_TESTS}
    needs |= {"FTI": ["blood_draw", "TT4", "T4U"]}
    return CostModel.from_resources(resources, {name: needs[name] for name in feature_names})


def load_yahoo_costs(*, keep_absent: bool = False) -> NDArray[np.float64]:
    """Load the costs of the features of the Yahoo! Learning to Rank Challenge, Set 1.

    Parameters
    ----------
    keep_absent : bool
        Return all 700 entries, with NaN for the 181 features that Set 1 does not have. Entry
        ``i`` is then the cost of feature ``i + 1`` of the original files.

    Returns
    -------
    array of shape (519,), or (700,) with ``keep_absent``

    Examples
    --------
    >>> costs = load_yahoo_costs()
    >>> len(costs), float(costs.sum())
    (519, 16948.0)
    """
    with (_DATA / "yahoo_set1_costs.txt").open("r", encoding="ascii") as text:
        costs = np.loadtxt(text, dtype=np.float64)
    absent = costs == _ABSENT
    if keep_absent:
        return np.where(absent, np.nan, costs)
    return costs[~absent]


def load_letor(
    path: str | os.PathLike[str], *, n_features: int | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    r"""Read a ranking file in LETOR's SVMlight form: ``label qid:7 1:0.5 3:0.25 # comment``.

    Feature indices start at 1, features that a line leaves out are 0, comments are ignored.

    Parameters
    ----------
    path : path
        The file, which may be compressed (``.gz`` or ``.bz2``).
    n_features : int, optional
        Number of columns, by default the highest index in the file. Give it when the parts of a
        data set are read one by one and a part might lack the last features.

    Returns
    -------
    X : array of shape (n, n_features)
    y : array of shape (n,)
        Relevance labels.
    qid : array of shape (n,)
        The query of each row.

    Examples
    --------
    >>> path = Path("train.txt")
    >>> _ = path.write_text("2 qid:1 1:0.5 3:0.25\n0 qid:1 2:1.0")
    >>> X, y, qid = load_letor(path)
    >>> X.tolist(), y.tolist(), qid.tolist()
    ([[0.5, 0.0, 0.25], [0.0, 1.0, 0.0]], [2.0, 0.0], [1, 1])
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no LETOR file at {str(path)!r}")
    # Imported here because it is only needed here.
    from sklearn.datasets import load_svmlight_file

    try:
        X, y, qid = load_svmlight_file(
            str(path), n_features=n_features, dtype=np.float64, zero_based=False, query_id=True
        )
    except (ValueError, OverflowError) as error:
        raise ValueError(f"cannot read {str(path)!r} as a LETOR file: {error}") from error
    if len(y) == 0:
        raise ValueError(f"{str(path)!r} has no rows")
    if len(qid) != len(y):
        raise ValueError(
            f"every line of a LETOR file needs a qid:, but {len(y) - len(qid)} of the {len(y)} "
            f"lines of {str(path)!r} have none"
        )
    check_density(path, X)
    return X.toarray(), np.asarray(y, dtype=np.float64), np.asarray(qid, dtype=np.int64)
