"""How long does a path of 8 trade-offs take, beside 8 fits of ours and 8 of LightGBM's CEGB?

200,000 x 512 floats with Yahoo's costs, depth 4, a validation set that scores every round.
LightGBM is timed both as 8 separate runs, and with one Dataset for all of them.
"""

from __future__ import annotations

import argparse

import lightgbm
import numpy as np

from benchmarks._common import COLUMNS, ROWS, lightgbm_params, machine, regression_data, seconds
from greedymiser import MiserRegressor, tradeoff_curve
from greedymiser.datasets import load_yahoo_costs

TRADEOFFS = [0.0, 1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--columns", type=int, default=COLUMNS)
    parser.add_argument("--trees", type=int, default=50)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    print(machine())
    X, y = regression_data(args.rows + 20_000, args.columns)
    X, X_val, y, y_val = X[: args.rows], X[args.rows :], y[: args.rows], y[args.rows :]
    costs = np.resize(load_yahoo_costs(), args.columns)
    model = MiserRegressor(
        costs=costs, max_iter=args.trees, early_stopping=False, n_jobs=args.threads
    )
    valid = {"X_val": X_val, "y_val": y_val}
    tradeoff_curve(model, X[:2000], y[:2000], tradeoffs=[0.0, 1e-4], **valid)  # compile first

    def separate_fits() -> None:
        for tradeoff in TRADEOFFS:
            MiserRegressor(**{**model.get_params(), "tradeoff": tradeoff}).fit(X, y, **valid)

    construction = 0.0

    def lightgbm_runs() -> None:
        nonlocal construction
        for tradeoff in TRADEOFFS:
            params = lightgbm_params(
                args.threads,
                force_col_wise=True,
                cegb_tradeoff=2.0 * args.rows * tradeoff,
                cegb_penalty_feature_coupled=costs.tolist(),
            )
            data = lightgbm.Dataset(X, y, params=params)
            held_out = lightgbm.Dataset(X_val, y_val, reference=data)
            construction += seconds(data.construct) + seconds(held_out.construct)
            lightgbm.train(params, data, num_boost_round=args.trees, valid_sets=[held_out])

    path = seconds(lambda: tradeoff_curve(model, X, y, tradeoffs=TRADEOFFS, **valid))
    alone = seconds(separate_fits)
    rival = seconds(lightgbm_runs)
    reused = rival - construction * (1 - 1 / len(TRADEOFFS))
    shape = f"{args.rows} x {args.columns}"
    print(f"8 trade-offs of {args.trees} trees, {shape}, {args.threads} threads")
    print(f"  path on shared bins       {path:6.1f} s")
    print(f"  8 separate fits           {alone:6.1f} s   the path takes {path / alone:.2f} of it")
    print(f"  8 LightGBM runs           {rival:6.1f} s   {rival / path:.1f} x the path")
    print(f"  (with one Dataset: about  {reused:6.1f} s,  {reused / path:.1f} x the path)")


if __name__ == "__main__":
    main()
