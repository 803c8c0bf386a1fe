"""The problems that methods are compared on: data, prices, splits, a score and budgets.

Thyroid is embedded; the others are read from a folder. Prices of thyroid, heart and NHANES are
real. Those of MQ2008 are derived from the table of another collection, those of mfeat, lambdarank
and spam are made: a family of mfeat costs as much as it has columns, and is sold whole; a feature
of lambdarank has the price of one of Yahoo's, drawn at random; one of spam costs one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn.model_selection import train_test_split

from experiments.ranking import mq2008
from greedymiser import CostModel, ndcg_score
from greedymiser.costs.cost_model import Feature
from greedymiser.datasets import load_thyroid, load_yahoo_costs
from greedymiser.datasets.readers import exact_numbers

N_BUDGETS = 6
# Features per row, as GDFS's paper counts them.
SPAM_BUDGETS = (1, 2, 3, 4, 5, 7, 10, 15, 25)
THYROID_BUDGETS = (16, 20, 24, 28, 32, 36, 40, 45, 50, 60)

# Turney's: what the first test of a group costs beyond the others is paid once.
HEART_ENTRY: dict[Hashable, float] = {"A": 2.10, "B": 101.90, "C": 86.30}
HEART_PRICES = {
    "age": 1.00, "sex": 1.00, "cp": 1.00, "trestbps": 1.00, "chol": 5.17, "fbs": 3.10,
    "restecg": 15.50, "thalach": 1.00, "exang": 1.00, "oldpeak": 1.00, "slope": 1.00,
    "ca": 100.90, "thal": 1.00,
}  # fmt: skip
HEART_GROUPS: dict[Hashable, list[Feature]] = {
    "A": ["chol", "fbs"],
    "B": ["thalach", "thal"],
    "C": ["exang", "oldpeak", "slope"],
}

NHANES_YEARS = 10.0

MFEAT_FAMILIES = ("fou", "fac", "kar", "pix", "zer", "mor")


@dataclass(frozen=True, eq=False)
class ProblemRows:
    """Some rows of a problem. Classes are 0, 1, …; ``qid`` is None unless rows are ranked."""

    X: NDArray[Any]
    y: NDArray[Any]
    qid: NDArray[Any] | None = None

    def take(self, rows: NDArray[np.intp]) -> ProblemRows:
        """Some of these rows."""
        return ProblemRows(self.X[rows], self.y[rows], None if self.qid is None else self.qid[rows])


@dataclass(frozen=True, eq=False)
class ProblemSplit:
    """Rows to learn from, to choose with and to report on."""

    name: str
    train: ProblemRows
    valid: ProblemRows
    test: ProblemRows


@dataclass(frozen=True, eq=False)
class Problem:
    """Data with prices, and how methods are judged on it."""

    name: str
    costs: CostModel
    # Number of classes; 0 where documents are ranked (by squared error on their labels).
    n_classes: int
    # Both what choices are made by and what is reported; higher is better.
    scoring: str
    budgets: tuple[float, ...]
    # Makes split i; any number of them, but for MQ2008, which has five folds.
    split: Callable[[int], ProblemSplit]
    max_splits: int = 10
    # The same for all methods.
    rounds: int = 100
    min_samples_leaf: int = 20
    max_bins: int = 255

    def score(self, rows: ProblemRows, raw: NDArray[np.float64]) -> float:
        """Score of raw predictions: one column per class if there are more than two."""
        if rows.qid is not None:
            return float(ndcg_score(rows.y, raw, rows.qid, k=5))
        if self.scoring == "roc_auc":
            return area_under_roc(rows.y, raw)
        right = rows.y[raw.argmax(axis=1) == rows.y]
        if self.scoring == "accuracy":
            return len(right) / len(rows.y)
        named = np.bincount(right, minlength=self.n_classes)
        return float(np.mean(named / np.bincount(rows.y, minlength=self.n_classes)))

    def constant(self, train: ProblemRows, X: NDArray[np.float64]) -> NDArray[np.float64]:
        """What is predicted without any feature: the commonest class, or no order."""
        if self.n_classes > 2:
            counts = np.bincount(train.y, minlength=self.n_classes)
            return np.tile(counts.astype(np.float64), (len(X), 1))
        return np.zeros(len(X))


def area_under_roc(y: NDArray[np.int64], raw: NDArray[np.float64]) -> float:
    """The share of pairs in order; scikit-learn's checks take longer than its arithmetic."""
    positive = y == 1
    n, m = int(positive.sum()), int((~positive).sum())
    return float((rankdata(raw)[positive].sum() - n * (n + 1) / 2) / (n * m))


def geometric_budgets(costs: CostModel) -> tuple[float, ...]:
    """From the cheapest purchase to everything, each the same multiple of the one before."""
    prices = costs.prices()
    everything = costs.total(range(costs.n_features))
    budgets = np.geomspace(prices[prices > 0].min(), everything, N_BUDGETS)
    # Rounded up: the first must buy the cheapest feature, the last everything.
    return (*(float(np.ceil(100 * budget - 1e-6) / 100) for budget in budgets[:-1]), everything)


def thirds(whole: ProblemRows, stratify: bool, i: int) -> ProblemSplit:
    """Half of the rows to learn from, a quarter each to choose with and to report on."""
    train, rest = _halves(np.arange(len(whole.y)), whole, stratify, 0.5, i)
    valid, test = _halves(rest, whole, stratify, 0.5, i)
    return ProblemSplit(str(i), whole.take(train), whole.take(valid), whole.take(test))


def _halves(
    rows: NDArray[np.intp], whole: ProblemRows, stratify: bool, share: float, i: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Two parts of some rows; a query is in one of them."""
    if whole.qid is None:
        labels = whole.y[rows] if stratify else None
        first, second = train_test_split(rows, test_size=share, stratify=labels, random_state=i)
        return first, second
    queries = np.unique(whole.qid[rows])
    first, _ = train_test_split(queries, test_size=share, random_state=i)
    in_first = np.isin(whole.qid[rows], first)
    return rows[in_first], rows[~in_first]


def thyroid(folder: Path | None = None) -> Problem:
    """Three classes, $69.81 for everything; the test rows are those of the repository."""
    data = load_thyroid()
    test = ProblemRows(data.X_test, data.y_test - 1)

    def split(i: int) -> ProblemSplit:
        X, X_val, y, y_val = train_test_split(
            data.X_train, data.y_train - 1, test_size=0.25, stratify=data.y_train, random_state=i
        )
        return ProblemSplit(str(i), ProblemRows(X, y), ProblemRows(X_val, y_val), test)

    return Problem("thyroid", data.costs, 3, "balanced_accuracy", THYROID_BUDGETS, split)


def heart(folder: Path | None) -> Problem:
    """Is there heart disease? 303 patients, Turney's prices."""
    path = _folder_inside(folder, "heart") / "processed.cleveland.data"
    table = np.genfromtxt(path, delimiter=",", missing_values="?")
    whole = ProblemRows(table[:, :-1], (table[:, -1] > 0).astype(np.int64))
    costs = CostModel(HEART_PRICES, groups=HEART_GROUPS, group_costs=HEART_ENTRY)
    return Problem(
        "heart", costs, 2, "roc_auc", geometric_budgets(costs), partial(thirds, whole, True),
        rounds=60, min_samples_leaf=10,
    )  # fmt: skip


def nhanes(folder: Path | None) -> Problem:
    """Does a person die within ten years of the examination? Blood tests have prices."""
    import pandas as pd

    place = _folder_inside(folder, "nhanes")
    read = partial(pd.read_csv, **exact_numbers())
    prices = read(place / "costs.csv")
    X = read(place / "X.csv", index_col=0)[prices["feature"]].to_numpy(np.float64)
    years = read(place / "y.csv", index_col=0)["y"].to_numpy(np.float64)
    died = (years > 0) & (years <= NHANES_YEARS)
    known = died | (np.abs(years) > NHANES_YEARS)
    whole = ProblemRows(X[known], died[known].astype(np.int64))
    needs = {
        row.feature: [] if row.price == 0 else [row.feature, row.entry]
        for row in prices.itertuples()
    }
    resources = {row.feature: row.price for row in prices.itertuples() if row.price > 0}
    costs = CostModel.from_resources({**resources, "blood draw": 2.10}, needs)
    return Problem(
        "nhanes", costs, 2, "roc_auc", geometric_budgets(costs), partial(thirds, whole, True)
    )


def mfeat(folder: Path | None) -> Problem:
    """Ten digits, six families of descriptors that are computed whole (made prices)."""
    place = _folder_inside(folder, "mfeat")
    tables = [
        np.loadtxt(place / f"mfeat-{name}.csv", delimiter=",", skiprows=1)
        for name in MFEAT_FAMILIES
    ]
    X = np.concatenate([table[:, :-1] for table in tables], axis=1)
    whole = ProblemRows(X, tables[0][:, -1].astype(np.int64))
    widths = {name: table.shape[1] - 1 for name, table in zip(MFEAT_FAMILIES, tables, strict=True)}
    costs = CostModel.from_resources(
        {name: float(width) for name, width in widths.items()},
        [[name] for name, width in widths.items() for _ in range(width)],
    )
    return Problem(
        "mfeat", costs, 10, "accuracy", geometric_budgets(costs), partial(thirds, whole, True),
        rounds=30, max_bins=63,
    )  # fmt: skip


def letor(folder: Path | None) -> Problem:
    """MQ2008, the five folds of its readme, derived costs."""
    place = _folder_inside(folder, "mq2008")
    prices = mq2008.read_derived_costs(place / "features.csv")
    costs = CostModel(prices)
    names = [f"S{i}.txt" for i in range(1, mq2008.N_PARTS + 1)]
    folds = mq2008.make_folds([mq2008.read_part(place / n, len(prices)) for n in names], costs)

    def split(i: int) -> ProblemSplit:
        parts = (folds[i].train, folds[i].valid, folds[i].test)
        return ProblemSplit(str(i), *(ProblemRows(part.X, part.y, part.qid) for part in parts))

    return Problem("mq2008", costs, 0, "ndcg@5", geometric_budgets(costs), split, max_splits=5)


def lambdarank(folder: Path | None) -> Problem:
    """LightGBM's ranking example; prices drawn from Yahoo's (made)."""
    place = _folder_inside(folder, "lambdarank")
    parts = [_read_lambdarank(place / f"rank.{name}") for name in ("train", "test")]
    sizes = np.concatenate([np.loadtxt(place / f"rank.{n}.query", int) for n in ("train", "test")])
    X, y = (np.concatenate(pair) for pair in zip(*parts, strict=True))
    whole = ProblemRows(X, y, np.repeat(np.arange(len(sizes)), sizes))
    prices = np.random.default_rng(0).choice(load_yahoo_costs(), X.shape[1])
    costs = CostModel(prices)
    return Problem(
        "lambdarank", costs, 0, "ndcg@5", geometric_budgets(costs), partial(thirds, whole, False)
    )


def _read_lambdarank(path: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    from sklearn.datasets import load_svmlight_file

    X, y = load_svmlight_file(str(path), n_features=300, zero_based=False)
    return X.toarray(), y


def spam(folder: Path | None) -> Problem:
    """Spambase, every feature for one; split 0 is that of GDFS (Covert et al., 2023)."""
    table = np.loadtxt(_folder_inside(folder, "spam") / "spam.csv", delimiter=",", skiprows=1)
    whole = ProblemRows(table[:, :-1], table[:, -1].astype(np.int64))

    def split(i: int) -> ProblemSplit:
        order = np.arange(len(whole.y))
        np.random.default_rng(i).shuffle(order)
        part = int(0.2 * len(order))
        parts = (order[2 * part :], order[part : 2 * part], order[:part])
        return ProblemSplit(str(i), *(whole.take(rows) for rows in parts))

    costs = CostModel(np.ones(whole.X.shape[1]))
    return Problem("spam", costs, 2, "roc_auc", SPAM_BUDGETS, split)


PROBLEMS: dict[str, Callable[[Path | None], Problem]] = {
    "thyroid": thyroid,
    "heart": heart,
    "nhanes": nhanes,
    "mfeat": mfeat,
    "mq2008": letor,
    "lambdarank": lambdarank,
    "spam": spam,
}


def _folder_inside(folder: Path | None, name: str) -> Path:
    if folder is None or not (folder / name).is_dir():
        raise FileNotFoundError(
            f"{name} is read from a folder of data: name it with --folder or GREEDYMISER_DATA"
        )
    return folder / name
