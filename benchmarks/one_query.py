"""How does LambdaMART's time grow with the documents of a single query?

1,000 to 32,000 rows without qid x 10 floats, 5 labels, 5 rounds. All scores are equal at first, so
that every document is tied with the top.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks._common import clock, machine
from greedymiser import MiserRanker

SIZES = (1_000, 2_000, 4_000, 8_000, 16_000, 32_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    print(machine())
    rng = np.random.default_rng(0)
    for n in args.sizes:
        X = rng.standard_normal((n, 10))
        y = np.clip(np.round(X[:, 0] + rng.standard_normal(n) + 1), 0, 4)
        model = MiserRanker(max_iter=5, early_stopping=False)
        times = clock(lambda model=model, X=X, y=y: model.fit(X, y), args.repeats)
        print(f"{n:6d} documents, 5 rounds: {min(times):7.3f} s", flush=True)


if __name__ == "__main__":
    main()
