"""Is the test error within 1% of LightGBM's at the same settings?

Synthetic regression, the embedded thyroid data and scikit-learn's digits; MQ2008 and mfeat as well
where a folder with them is given.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import lightgbm
import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss, root_mean_squared_error
from sklearn.model_selection import train_test_split

from benchmarks._common import lightgbm_params, machine, regression_data
from greedymiser import MiserClassifier, MiserRegressor
from greedymiser.datasets import load_letor, load_thyroid

TREES = 100


def regression(name, X, X_test, y, y_test):
    ours = MiserRegressor(max_iter=TREES, early_stopping=False).fit(X, y)
    theirs = lightgbm.LGBMRegressor(n_estimators=TREES, **lightgbm_params(2)).fit(X, y)
    show(
        name,
        "RMSE",
        root_mean_squared_error(y_test, ours.predict(X_test)),
        root_mean_squared_error(y_test, theirs.predict(X_test)),
    )


def classification(name, X, X_test, y, y_test, rate=0.1):
    settings = lightgbm_params(2, learning_rate=rate)
    settings.pop("objective")
    ours = MiserClassifier(max_iter=TREES, early_stopping=False, learning_rate=rate).fit(X, y)
    theirs = lightgbm.LGBMClassifier(n_estimators=TREES, **settings).fit(X, y)
    show(
        name,
        "error rate",
        1 - ours.score(X_test, y_test),
        1 - theirs.score(X_test, y_test),
    )
    show(
        name,
        "log-loss",
        log_loss(y_test, ours.predict_proba(X_test)),
        log_loss(y_test, theirs.predict_proba(X_test)),
    )


def show(name, measure, ours, theirs):
    print(
        f"{name:28s} {measure:10s} ours {ours:.5f}  LightGBM {theirs:.5f}  "
        f"({100 * (ours / theirs - 1):+.2f}%)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with mq2008 and mfeat")
    args = parser.parse_args()
    print(machine())
    X, y = regression_data(60_000, 100)
    regression("synthetic 30,000 x 100", X[:30_000], X[30_000:], y[:30_000], y[30_000:])
    data = load_thyroid()
    classification(
        "thyroid 3772 x 21", data.X_train, data.X_test, data.y_train, data.y_test, rate=0.05
    )
    X, y = load_digits(return_X_y=True)
    classification("digits 1347 x 64", *train_test_split(X, y, random_state=0))
    if args.data is None:
        return
    parts = [load_letor(args.data / "mq2008" / f"S{i}.txt") for i in range(1, 6)]
    regression(
        "MQ2008 fold 1, 46 features",
        np.concatenate([X for X, _, _ in parts[:3]]),
        parts[4][0],
        np.concatenate([y for _, y, _ in parts[:3]]),
        parts[4][1],
    )
    families = [
        np.loadtxt(args.data / "mfeat" / f"mfeat-{name}.csv", delimiter=",", skiprows=1)
        for name in ("fou", "fac", "kar", "pix", "zer", "mor")
    ]
    X = np.concatenate([family[:, :-1] for family in families], axis=1)
    classification("mfeat 1500 x 649", *train_test_split(X, families[0][:, -1], random_state=0))


if __name__ == "__main__":
    main()
