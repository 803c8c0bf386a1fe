"""What does a tree ask of a GPU: launches, copies and bytes, and how often does it wait?

Counts do not depend on the device, so that Numba's simulator does where there is none. The counts
of a short fit are taken away from those of a longer one, so that what happens once per fit does not
count. Bytes depend on the shape: most of what is fetched is a split table, 40 bytes for each node
and feature.

    NUMBA_ENABLE_CUDASIM=1 python -m benchmarks.device_walk --charge row
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any
from unittest.mock import patch

import numpy as np

from greedymiser import MiserRanker, MiserRegressor
from greedymiser.engines.cuda.device import SIMULATED
from greedymiser.engines.cuda.stream import Stream

FEW, MANY = 2, 5


def counts_of_a_fit(make: Any, trees: int, n: int, d: int, **more: Any) -> Counter[str]:
    """How often a fit launches, copies and waits."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    y = X[:, 0] + X[:, 1] * X[:, 2] + X[:, 3] ** 2 + 0.5 * rng.standard_normal(n)
    counts: Counter[str] = Counter()
    launch, send, fetch, wait = Stream.launch, Stream.send, Stream.fetch, Stream.wait

    def count_launch(self: Stream, kernel: Any, *given: Any) -> None:
        function = getattr(kernel, "py_func", None) or kernel.fn
        counts[f"launch {function.__name__}"] += 1
        counts["launches"] += 1
        launch(self, kernel, *given)

    def count_copy(name: str, copy: Any) -> Any:
        def counted(self: Stream, one: Any, other: Any, n_bytes: int) -> None:
            counts[f"copies {name}"] += 1
            counts[f"bytes {name}"] += n_bytes
            copy(self, one, other, n_bytes)

        return counted

    def count_wait(self: Stream) -> None:
        counts["waits"] += 1
        wait(self)

    with (
        patch.object(Stream, "launch", count_launch),
        patch.object(Stream, "send", count_copy("to the device", send)),
        patch.object(Stream, "fetch", count_copy("back", fetch)),
        patch.object(Stream, "wait", count_wait),
    ):
        model = make(max_iter=trees, engine="cuda", min_samples_leaf=2, early_stopping=False)
        model.set_params(**more)
        if make is MiserRanker:
            model.fit(X, np.digitize(y, [0.0, 1.0]), qid=np.arange(n) // 8)
        else:
            model.fit(X, y)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--charge", choices=["model", "row"], default="model")
    parser.add_argument("--loss", choices=["squared_error", "lambdamart"], default="squared_error")
    parser.add_argument("--tradeoff", type=float, default=1e-4)
    parser.add_argument("--rows", type=int, default=64 if SIMULATED else 10_000)
    parser.add_argument("--features", type=int, default=6)
    args = parser.parse_args()
    make = MiserRanker if args.loss == "lambdamart" else MiserRegressor
    params = {
        "charge": args.charge, "loss": args.loss, "tradeoff": args.tradeoff,
        "costs": np.linspace(1, 3, args.features),
    }  # fmt: skip
    few, many = (counts_of_a_fit(make, n, args.rows, args.features, **params) for n in (FEW, MANY))
    for name in sorted(many, key=lambda name: (name.startswith("launch "), name)):
        print(f"{(many[name] - few[name]) / (MANY - FEW):9.1f}  {name}")


if __name__ == "__main__":
    main()
