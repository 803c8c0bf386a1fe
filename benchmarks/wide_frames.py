"""How much longer does a wide data frame take than the same array, and costs by name?

20,000 columns x 60 rows, 5 rounds. What grows with the square of the columns would show here.
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd

from benchmarks._common import clock, machine
from greedymiser import CostModel, MiserRegressor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--columns", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    print(machine())
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, args.columns))
    y = X[:, 0] + 0.1 * rng.standard_normal(60)
    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(args.columns)])
    by_name = CostModel(dict.fromkeys(frame.columns, 1.0))
    by_position = np.ones(args.columns)
    cases = {
        "array": (X, None),
        "array, costs by position": (X, by_position),
        "frame": (frame, None),
        "frame, costs by name": (frame, by_name),
    }
    for name, (table, costs) in cases.items():
        model = MiserRegressor(max_iter=5, costs=costs, min_samples_leaf=5)
        fit = clock(lambda model=model, table=table: model.fit(table, y), args.repeats)
        predict = clock(lambda model=model, table=table: model.predict(table), args.repeats)
        print(
            f"60 x {args.columns}, {name:25s} fit {min(fit):6.2f} s, predict {min(predict):6.3f} s"
        )


if __name__ == "__main__":
    main()
