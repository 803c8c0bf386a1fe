"""How much longer does training take where rows pay, at a similar mean cost? Target: 1.3 x.

200,000 x 512 floats with Yahoo's costs, depth 4. The data is placed once; the trade-off of
``charge="row"`` is chosen by halving until its mean cost is that of ``charge="model"``, and then
both take turns. Memory is what the marks of rows take.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

from benchmarks._common import COLUMNS, ROWS, machine, regression_data, seconds
from greedymiser import MiserRegressor
from greedymiser.datasets import load_yahoo_costs
from greedymiser.estimators import watch_with
from greedymiser.parameters import Parameters
from greedymiser.preparation import Given
from greedymiser.threads import Threads
from greedymiser.training import Model, blank_model, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--columns", type=int, default=COLUMNS)
    parser.add_argument("--trees", type=int, default=50)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    print(machine())
    X, y = regression_data(args.rows, args.columns)
    costs = np.resize(load_yahoo_costs(), args.columns)
    model = MiserRegressor(costs=costs, max_iter=args.trees, early_stopping=False)
    with Threads(args.threads) as threads:
        prepared = model.prepare(Given(X, y), Given(None, None), threads)
        watch = watch_with(model, prepared.schema)

        def trained(charge: str, tradeoff: float, n_trees: int = args.trees) -> Model:
            params = replace(
                Parameters.of(model), charge=charge, tradeoff=tradeoff, max_iter=n_trees
            )
            return train(prepared, params, blank_model(prepared, params), watch)

        for charge in ("model", "row"):
            trained(charge, 1e-4, 2)  # compile first
        for tradeoff in (1e-4, 1e-5):
            flat = trained("model", tradeoff)
            cost = prepared.schema.costs.total(flat.ensemble.features)
            low, high = tradeoff / 100, 100 * tradeoff
            for _ in range(7):  # the larger the trade-off, the cheaper
                middle = float(np.sqrt(low * high))
                mean = trained("row", middle).train_cost[-1]
                low, high = (middle, high) if mean > cost else (low, middle)
            middle = float(np.sqrt(low * high))
            times: dict[str, list[float]] = {"model": [], "row": []}
            for _ in range(args.repeats):
                for charge, given in (("model", tradeoff), ("row", middle)):
                    times[charge].append(seconds(lambda c=charge, g=given: trained(c, g)))
            rows = trained("row", middle)
            one, other = (1e3 * min(times[c]) / args.trees for c in ("model", "row"))
            bits = sum(
                len({r for f in rows.ensemble.features for r in prepared.schema.costs.needs[f]})
                for _ in range(1)
            )
            words = -(-bits // 64)
            print(
                f"trade-off {tradeoff:g}: cost {cost:.0f}, {one:.1f} ms a tree; by row "
                f"{rows.train_cost[-1]:.0f} in the mean, {other:.1f} ms a tree: "
                f"{other / one:.2f} x; {bits} resources begun, "
                f"marks take {8e-6 * words * args.rows:.1f} MB"
            )


if __name__ == "__main__":
    main()
