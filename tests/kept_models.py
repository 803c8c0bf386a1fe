"""Problems whose models are kept: a change of the code must not change a bit of them.

``python tests/kept_models.py`` writes the models of problems that are not kept yet to
tests/files/models-0.1.npz. What is there is written again only where the definition of a model
changes on purpose, and CHANGELOG says so: the last time when categories began to borrow a share of
the node's weight instead of ten rows.
"""

from pathlib import Path

import numpy as np

from greedymiser import CostModel, MiserClassifier, MiserRanker, MiserRegressor
from greedymiser.losses import Huber, Quantile

FILE = Path(__file__).parent / "files" / "models-0.1.npz"

ROWS = 1500


def table(rng):
    """Continuous, few-valued, missing and categorical columns (the last one holds codes)."""
    X = rng.standard_normal((ROWS, 11))
    X[:, 1] = X[:, 1].round(1)
    X[:, 2] = rng.integers(0, 3, ROWS)
    X[rng.random(ROWS) < 0.2, 3] = np.nan
    X[:, 10] = rng.integers(0, 12, ROWS)
    return X


def costs():
    names = [f"r{i}" for i in range(8)]
    needs = [[], ["r0"], ["r1"], ["r1", "r2"], ["r3"], ["r3", "r4"], ["r5"], ["r0", "r5"]]
    needs += [["r6"], ["r7"], ["r2", "r7"]]
    prices = dict(zip(names, [1.0, 2.0, 0.5, 4.0, 1.0, 0.0, 8.0, 3.0], strict=True))
    return CostModel.from_resources(prices, needs, tree_cost=0.01)


def problems():
    """Name and a function that fits, for every kept model."""
    rng = np.random.default_rng(7)
    X = table(rng)
    noise = rng.standard_normal(ROWS)
    signal = X[:, 0] + 0.5 * X[:, 1] * (X[:, 2] > 0) + np.nan_to_num(X[:, 3], nan=1.0)
    y = signal + np.sin(X[:, 10]) + 0.3 * noise
    weight = rng.uniform(0.5, 3.0, ROWS)
    three = np.digitize(y, [-0.5, 1.0])
    stars = np.clip(np.round(y + 1), 0, 4)
    qid = np.repeat(np.arange(ROWS // 15), 15)
    counts = rng.poisson(np.exp(0.4 * y))
    small = {"max_iter": 12, "n_jobs": 2, "categorical_features": [10]}
    paid = {**small, "costs": costs()}

    def regressor(**params):
        return MiserRegressor(**{**small, **params})

    yield "squared error", lambda: regressor().fit(X, y)
    yield "weights", lambda: regressor(l2_regularization=1.5).fit(X, y, weight)
    yield "costs", lambda: MiserRegressor(**paid, tradeoff=0.004).fit(X, y)
    yield "budget", lambda: MiserRegressor(**paid, tradeoff=0.0005, budget=6.0).fit(X, y)
    yield "order", lambda: regressor(monotonic_cst=[1, 1, *[0] * 9], max_depth=5).fit(X, y)
    yield "few leaves", lambda: regressor(max_depth=None, max_leaf_nodes=9).fit(X, y, weight)
    yield "absolute error", lambda: regressor(loss="absolute_error").fit(X, y)
    yield "quantile", lambda: regressor(loss=Quantile(0.9)).fit(X, y, weight)
    yield "huber", lambda: regressor(loss=Huber(0.7)).fit(X, y)
    yield "poisson", lambda: regressor(loss="poisson").fit(X, counts)
    yield "gamma", lambda: regressor(loss="gamma").fit(X, np.exp(y))
    yield "log-loss", lambda: MiserClassifier(**paid, tradeoff=1e-4).fit(X, y > 0.5)
    yield "classes", lambda: MiserClassifier(**paid, tradeoff=1e-4).fit(X, three, weight)
    yield "gradient step", lambda: MiserClassifier(**small, step="gradient").fit(X, y > 0.5)
    yield "ranking", lambda: MiserRanker(**paid, tradeoff=1e-5).fit(X, stars, qid=qid)


def main():
    kept = dict(np.load(FILE)) if FILE.exists() else {}
    for name, fit in problems():
        if f"{name}/nodes" not in kept:
            ensemble = fit().ensemble_
            kept[f"{name}/nodes"] = ensemble.nodes
            kept[f"{name}/category_sets"] = ensemble.category_sets
            kept[f"{name}/baseline"] = ensemble.baseline
    np.savez_compressed(FILE, **kept)


if __name__ == "__main__":
    main()
