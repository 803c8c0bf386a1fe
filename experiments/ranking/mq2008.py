"""The ranking experiment on LETOR's MQ2008: real queries, real labels, derived costs.

784 queries with 15,211 documents, 46 features, labels 0 to 2, in the five folds of its readme. Its
features have no measured costs: those in ``features.csv`` are *derived* from a published cost table
of another collection (MSLR), feature by feature of the same kind.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.methods import Documents, Fold
from experiments.ranking.study import SMALL, Experiment, RankingScale, run_ranking
from experiments.workspace import Results, Workspace, digests
from greedymiser.costs.cost_model import CostModel
from greedymiser.datasets import load_letor

NAME = "mq2008"
TITLE = "MQ2008, five folds; costs derived from MSLR's table, not measured"

N_PARTS = 5
COST_COLUMN = "derived_cost_from_mslr_table"

# The mean price of a feature is 32.6 here and 32.7 in Yahoo's table, where a tree costs 1.
TREE_COST = 1.0

FULL = RankingScale(
    max_iter=300,
    tradeoffs=(
        3e-7,
        6e-7,
        1e-6,
        2e-6,
        3e-6,
        6e-6,
        1e-5,
        2e-5,
        3e-5,
        6e-5,
        1e-4,
        3e-4,
    ),
    highest_prices=(1.0, 10.0, 20.0, 50.0, 100.0),
    cascaded=(2e-6, 1e-5, 3e-5, 1e-4),
    cronus_tradeoffs=(1e-6, 5e-6, 1e-5, 2e-5, 3e-5, 6e-5, 1e-4, 2e-4),
    cronus_l1=(0.5, 2.0, 8.0),
    staged_first=(2e-4, 3e-4, 5e-4),
    staged_then=(3e-6, 1e-5, 3e-5, 6e-5, 1e-4),
)


def run(
    data: Path | None,
    workspace: Workspace,
    small: bool = False,
    *,
    n_jobs: int | None = None,
    only: str | None = None,
) -> Results:
    """Run the experiment on the files of a folder; the small version on two folds."""
    experiment = read_experiment(data)
    if small:
        experiment = replace(experiment, folds=experiment.folds[:2])
    scale = replace(SMALL if small else FULL, n_jobs=n_jobs)
    return run_ranking(experiment, scale, workspace, only)


def read_experiment(data: Path | None) -> Experiment:
    """All five folds.

    Parameters
    ----------
    data : Path
        Folder with ``S1.txt`` to ``S5.txt`` and ``features.csv``, or one that holds it as
        ``mq2008``.
    """
    if data is None:
        raise ValueError("mq2008 needs data: the folder with S1.txt to S5.txt and features.csv")
    folder = find_folder(Path(data))
    prices = read_derived_costs(folder / "features.csv")
    files = [folder / f"S{i}.txt" for i in range(1, N_PARTS + 1)]
    parts = [read_part(file, len(prices)) for file in files]
    return Experiment(
        title=TITLE,
        cost_unit="derived units",
        folds=make_folds(parts, CostModel(prices, tree_cost=TREE_COST)),
        data={
            "name": NAME,
            "files": digests(files),
            "prices": prices.tolist(),
            "tree_cost": TREE_COST,
        },
    )


def find_folder(data: Path) -> Path:
    """The folder itself, or its subfolder ``mq2008``."""
    for folder in (data, data / NAME):
        if (folder / "S1.txt").is_file():
            return folder
    raise FileNotFoundError(f"there is no S1.txt in {str(data)!r}, nor in its subfolder {NAME!r}")


def read_derived_costs(path: Path) -> NDArray[np.float64]:
    """Derived cost of each feature, in the order of the features."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no table of costs at {str(path)!r}")
    with path.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    if not rows or COST_COLUMN not in rows[0] or "index" not in rows[0]:
        raise ValueError(f"{str(path)!r} has no columns 'index' and {COST_COLUMN!r}")
    try:
        prices = np.array([float(row[COST_COLUMN]) for row in rows])
        indices = [int(row["index"]) for row in rows]
    except (TypeError, ValueError) as error:
        raise ValueError(f"cannot read the costs in {str(path)!r}: {error}") from None
    if indices != list(range(1, len(rows) + 1)):
        raise ValueError(f"the index of {str(path)!r} does not count from 1 to {len(rows)}")
    return prices


def read_part(path: Path, n_features: int) -> Documents:
    """One of the five parts."""
    X, y, qid = load_letor(path, n_features=n_features)
    return Documents(X, y, qid)


def make_folds(parts: list[Documents], costs: CostModel) -> list[Fold]:
    """Fold i learns from parts i to i + 2, chooses with part i + 3 and reports on part i + 4."""
    folds = []
    for i in range(len(parts)):
        turned = parts[i:] + parts[:i]
        folds.append(Fold(str(i + 1), joined(turned[:3]), turned[3], turned[4], costs))
    return folds


def joined(parts: list[Documents]) -> Documents:
    """Several parts as one; no query is in two of them."""
    return Documents(
        np.concatenate([part.X for part in parts]),
        np.concatenate([part.y for part in parts]),
        np.concatenate([part.qid for part in parts]),
    )
