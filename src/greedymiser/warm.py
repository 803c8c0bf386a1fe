"""Compile everything beforehand: ``python -m greedymiser.warm``, while an image is built.

Kernels are compiled when they are first called, and again for other types of what they are given.
So tiny models are served, and trained, in all the ways that there are.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.compiling import KERNELS, CacheWarning
from greedymiser.costs.cost_model import CostModel
from greedymiser.files.reading import decode
from greedymiser.files.writing import encode
from greedymiser.losses import (
    REGRESSION_LOSSES,
    BinaryLogLoss,
    Huber,
    Kind,
    LambdaMART,
    Loss,
    MultinomialLogLoss,
    SquaredError,
)
from greedymiser.model.exit_rules import Above, Confident, ExitRule, Proximity
from greedymiser.model.predictor import Predictor
from greedymiser.model.trees import CATEGORY_WORDS, NODE_DTYPE, Ensemble, Tree, stages_every

# So many rows are walked one by one, asked together, and divided between threads.
FEW, SOME, MANY = 1, 40, 3000

# Enough trees for rows to be asked together in every stage.
ROUNDS_PER_STAGE = 10


def warm_up(*, training: bool = True) -> list[str]:
    """Compile, or read from the cache, what serving needs and what training needs.

    Parameters
    ----------
    training : bool
        False leaves out what only training needs, and scikit-learn with it.

    Returns
    -------
    list of str
        Folders in which compiled code is kept; empty if there is none that can be written to.

    Examples
    --------
    >>> folders = warm_up(training=False)
    """
    _serve_all()
    if training:
        _train_all()
    folders = {kernel.stats.cache_path for kernel in KERNELS}
    return sorted(folder for folder in folders if folder is not None)


# -- serving --------------------------------------------------------------------------------------


def _serve_all() -> None:
    for predictor in _predictors():
        # Arrays of a file are compiled for anew where they cannot be written to.
        models = (predictor, decode(encode(predictor, {})))
        for model, n, n_jobs in itertools.product(models, (FEW, SOME, MANY), (1, 2)):
            for dtype in (np.float64, np.float32):
                rows = np.zeros((n, model.n_features), dtype=dtype)
                replace(model, n_jobs=n_jobs).predict(rows)
        for model, width in itertools.product(models, (np.float64, np.float32)):
            _charge_rows(
                replace(model, charge="row"), np.zeros((FEW, model.n_features), dtype=width)
            )


def _charge_rows(model: Predictor, rows: NDArray[Any]) -> None:
    """Let rows pay for themselves: those of a table, and objects that fetch what they are asked."""
    model.prediction_costs(rows)
    model.protocol(rows)
    known = np.ones(rows.shape, dtype=np.uint8)
    way = model.accounts.meter.start_positions(len(rows), model.n_features)
    raw, index = model.begin(len(rows)), np.arange(len(rows))
    model.accounts.walk(0).on(index, rows.astype(np.float64), known, way, raw, 1)


def _predictors() -> Iterator[Predictor]:
    """One of each kind, with every kind of split and every rule by which rows leave."""
    kinds: list[tuple[Kind, Loss, ExitRule]] = [
        ("regressor", SquaredError(), Above((-1.0,))),
        ("ranker", LambdaMART(), Proximity(1.0, n_exits=2)),
        ("classifier", BinaryLogLoss(), Confident(0.9)),
        ("classifier", MultinomialLogLoss(3), Confident(0.9)),
    ]
    for (kind, loss, rule), n_features in itertools.product(kinds, (1, 2)):
        ensemble = Ensemble.empty(np.zeros(loss.n_outputs), n_features)
        stumps = [_one_split(feature) for feature in range(n_features)]
        ensemble = ensemble.extended(stumps * (2 * loss.n_outputs * ROUNDS_PER_STAGE))
        whole = Predictor(
            kind=kind,
            stages=stages_every(ensemble, ensemble.n_iter),
            rule=None,
            costs=CostModel.uniform(n_features),
            loss=loss,
            n_features=n_features,
            classes=np.arange(max(2, loss.n_outputs)) if kind == "classifier" else None,
            categories={feature: np.arange(3) for feature in range(1, n_features)},
        )
        yield whole
        yield replace(whole, stages=stages_every(ensemble.truncated(1), 1))  # too short to be asked
        yield replace(whole, stages=stages_every(ensemble, ensemble.n_iter // 2), rule=rule)


def _one_split(feature: int) -> Tree:
    """One split: of numbers on feature 0, of categories on feature 1."""
    nodes = np.zeros(3, dtype=NODE_DTYPE)
    for field in ("feature", "left", "category_set", "bin"):
        nodes[field] = -1
    nodes["value"], nodes["depth"], nodes["count"] = [0.0, 0.1, -0.1], [0, 1, 1], [2, 1, 1]
    nodes["feature"][0], nodes["left"][0] = feature, 1
    nodes["category_set"][0] = feature - 1
    sets = np.ones((feature, CATEGORY_WORDS), dtype=np.uint64)
    return Tree(nodes, sets)


# -- training -------------------------------------------------------------------------------------


def _train_all() -> None:
    # Here, because serving needs none of these packages.
    from greedymiser.cascades import EarlyExitClassifier, EarlyExitRanker
    from greedymiser.estimators import MiserClassifier, MiserRanker, MiserRegressor

    X, y, weight = _made_rows()
    more: dict[str, Any] = {
        "min_samples_leaf": 2,
        "max_iter": ROUNDS_PER_STAGE,
        "categorical_features": [3],
    }
    labels = np.digitize(y, [-1.0, 0.0, 1.0])
    qid = np.arange(len(y)) // 10
    # With and without missing values, weights, validation data and limits on the leaves.
    for values in (X, X.astype(np.float32), np.nan_to_num(X)):
        for weights in (None, weight):
            regressor = MiserRegressor(**more, tradeoff=1e-6)
            regressor.fit(values, y, weights, X_val=values, y_val=y)
    MiserRegressor(**more, monotonic_cst=[1, 0, 0, 0], max_leaf_nodes=5).fit(X, y)
    _use_all_losses(X, y)
    for weights in (None, weight):
        rows = MiserRegressor(**more, tradeoff=1e-6, charge="row", subsample=0.5)
        rows.fit(X, y, weights, X_val=X, y_val=y)
    MiserRegressor(**more, subsample=0.5, max_features=0.5).fit(X, y)
    MiserRegressor(**more, loss=_PythonLoss()).fit(X, y, weight)
    # Few bits are left for a heavy tail, which takes two words where others take one.
    MiserRegressor(**more, loss="poisson").fit(X, np.exp(5.0 * y))
    classifier = MiserClassifier(**more).fit(X, labels, weight)
    EarlyExitClassifier(classifier, threshold=0.5, every=5).fit(X, labels).predict(X)
    MiserClassifier(**more).fit(X, labels > 1, X_val=X, y_val=labels > 1)
    ranker = MiserRanker(**more).fit(X, labels, qid=qid, X_val=X, y_val=labels, qid_val=qid)
    exits = EarlyExitRanker(ranker, budget=ranker.cost_, every=5).fit(X, labels, qid=qid)
    exits.predict(X, qid)
    _learn_gates(X, y, weight)
    for categorical in ([], [3]):
        _train_on_threads({**more, "categorical_features": categorical})
    _score_all()
    _train_in_pieces()


def _use_all_losses(X: NDArray[np.float64], y: NDArray[np.float64]) -> None:
    """Train with each loss, on numbers alone, and ask it for its values and gradients."""
    from greedymiser.estimators import MiserClassifier, MiserRegressor

    for loss in REGRESSION_LOSSES:
        MiserRegressor(loss=loss, max_iter=2, min_samples_leaf=2).fit(X, np.exp(y))
    MiserClassifier(max_iter=2, min_samples_leaf=2).fit(X, y > 0)
    known = [make(1.0) if make is Huber else make() for make in REGRESSION_LOSSES.values()]
    for each in (*known, BinaryLogLoss(), MultinomialLogLoss(3)):
        target, raw = np.ones(2), np.zeros((each.n_outputs, 2))
        each.values(target, raw)
        each.gradients(target, raw)


def _learn_gates(
    X: NDArray[np.float64], y: NDArray[np.float64], weight: NDArray[np.float64]
) -> None:
    from greedymiser.cascades.gates import GateInputs, cross_fitted

    inputs = GateInputs(X, (0, 1, 2, 3), n_features=3, n_columns=4, categorical={})
    for weights in (None, weight):
        cross_fitted("paid", inputs, y, weights, np.arange(len(y)) % 2)


class _PythonLoss(Loss):
    """A loss that only Python knows."""

    def values(self, y: Any, raw: NDArray[np.float64]) -> NDArray[np.float64]:
        return (raw - y) ** 2

    def gradients(self, y: Any, raw: NDArray[np.float64]) -> Any:
        return 2.0 * (raw - y), np.full_like(raw, 2.0)


def _train_on_threads(more: dict[str, Any]) -> None:
    """So many rows that two threads share them."""
    from greedymiser._core.threads import Threads, is_open
    from greedymiser.estimators import MiserClassifier, MiserRegressor

    with Threads(2) as threads:
        is_open(threads.team(), 0)  # helpers ask before they fall asleep, which takes a second
    X, y, _ = _made_rows(20_000)
    many = {**more, "max_iter": 2, "n_jobs": 2, "early_stopping": False}
    for tradeoff in (0.0, 1e-6):
        MiserRegressor(**many, tradeoff=tradeoff).fit(X, y)
    MiserClassifier(**many).fit(X, y > 0)
    # Where rows pay, trees grow level by level.
    for n in (200, len(X)):
        MiserRegressor(**many, tradeoff=1e-6, charge="row").fit(X[:n], y[:n])


def _score_all() -> None:
    """All scores that are computed beside the data."""
    from greedymiser.scoring.scores import KNOWN_SCORES, known_score

    X, y, weight = _made_rows()
    raw = np.nan_to_num(X[:, :1].T).copy()
    kinds: list[tuple[Kind, Loss, NDArray[np.float64], NDArray[Any] | None]] = [
        ("regressor", SquaredError(), y, None),
        ("classifier", BinaryLogLoss(), (y > 0).astype(np.float64), np.arange(2)),
    ]
    for kind, loss, target, classes in kinds:
        for scoring, weights in itertools.product(KNOWN_SCORES[kind], (None, weight)):
            score = known_score(scoring, kind, loss, classes)
            if score is not None:
                score.bind(target, weights)(raw)
    # Many rows are sorted in another way than few.
    many = known_score("roc_auc", "classifier", BinaryLogLoss(), np.arange(2))
    assert many is not None
    many.bind(np.arange(4000.0) % 2, None)(np.zeros((1, 4000)))
    ranked = known_score("ndcg@5", "ranker", LambdaMART())
    assert ranked is not None
    ranked.bind(np.floor(np.abs(y)), None)(raw)


def _train_in_pieces() -> None:
    """What engines need whose rows are in several places."""
    from greedymiser._core.quantiles import quantiles_of_parts
    from greedymiser._core.threads import Threads
    from greedymiser.data.binning import BinMapper
    from greedymiser.data.tables import ArrayTable
    from greedymiser.engines.cpu.shard import CpuShard
    from greedymiser.engines.cpu.state import Tuning
    from greedymiser.engines.dask.packed_histograms import pack, unpack_onto
    from greedymiser.engines.interface import OPEN_DTYPE, Sample, SplitRules
    from greedymiser.engines.sharded import ShardedRows

    X, y, _ = _made_rows()
    with Threads(1) as threads:
        binned = BinMapper().fit_transform(ArrayTable(X), None, None, threads)
        sample = Sample(binned, y, None, SquaredError())
        rows = ShardedRows([CpuShard(sample, threads, Tuning())], sample, float(len(y)))
        rows.start(np.zeros(1))
        root = rows.begin_tree(0, SplitRules())
        node = np.zeros(1, dtype=OPEN_DTYPE)
        node["gradient"], node["hessian"], node["count"] = root[:3]
        rows.split_table(node, np.ones((1, X.shape[1]), dtype=bool), last=True)
    found = np.zeros((1, 1, 4), dtype=np.int64)
    unpack_onto(found[0], pack([(found, 0, 1)], 2, 4), 2)
    one = [(y, np.ones(len(y)))]
    quantiles_of_parts(0.5, [len(y)], lambda question: question.answer(one))


def _made_rows(
    n: int = 200,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 4))
    X[:, 3] = rng.integers(5, size=len(X))
    y = X[:, 0] + (X[:, 1] > 0) + (X[:, 3] > 2) + 0.1 * rng.standard_normal(len(X))
    weight = rng.uniform(1.0, 2.0, len(X))
    X[rng.random(X.shape) < 0.05] = np.nan
    return X, y, weight


def main() -> None:
    """Compile, and say where compiled code is kept."""
    parser = argparse.ArgumentParser(prog="python -m greedymiser.warm", description=__doc__)
    parser.add_argument("--serving", action="store_true", help="leave out what only training needs")
    arguments = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)  # said below
        folders = warm_up(training=not arguments.serving)
    if not folders:
        sys.exit(
            "No folder for compiled code can be written to: let NUMBA_CACHE_DIR name one, "
            "and name it again when the model is served"
        )
    compiled = sum(bool(kernel.signatures) for kernel in KERNELS)
    sys.stdout.write(f"{compiled} kernels are compiled, in:\n")
    sys.stdout.writelines(f"  {folder}\n" for folder in folders)


if __name__ == "__main__":
    main()
