"""Which files does a round of boosting run in, and how often does it enter compiled code?

Python's profiler sees every call. The calls of a fit of ten rounds are taken away from those of
thirty, so that what happens once per fit does not count; nor does what is made of the finished
trees (``AFTERWARDS``). What a kernel calls is compiled into it, and no entry.

    python -m benchmarks.round_walk --charge row --tradeoff 0.001
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

import numpy as np

import greedymiser
from greedymiser import MiserClassifier
from greedymiser._core.compiling import KERNELS

HOME = Path(greedymiser.__file__).parent

# What makes a model of the trees: once per fit, in a loop over them.
AFTERWARDS = {"model/trees.py", "training/train.py"}

FEW, MANY = 10, 30


def place(code: CodeType) -> str | None:
    """The file of some code, from the package on; None if it is not ours."""
    path = Path(code.co_filename)
    return path.relative_to(HOME).as_posix() if path.is_relative_to(HOME) else None


def calls_of_a_fit(rounds: int, **params: object) -> Counter[tuple[str, str]]:
    """How often each function of ours is called, by file and name."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1000, 10))
    y = X[:, 0] + X[:, 1] * X[:, 2] + 0.5 * rng.standard_normal(len(X)) > 0
    model = MiserClassifier(max_iter=rounds, n_jobs=1, early_stopping=False, **params)
    calls: Counter[tuple[str, str]] = Counter()

    def note(frame: FrameType, event: str, argument: object) -> None:
        file = place(frame.f_code)
        if event == "call" and file is not None:
            calls[file, frame.f_code.co_name] += 1

    sys.setprofile(note)
    try:
        model.fit(X, y)
    finally:
        sys.setprofile(None)
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--charge", choices=["model", "row"], default="model")
    parser.add_argument("--tradeoff", type=float, default=0.0)
    parser.add_argument("--functions", action="store_true", help="list functions, not only files")
    args = parser.parse_args()
    params = {"charge": args.charge, "tradeoff": args.tradeoff, "costs": np.linspace(1, 3, 10)}
    calls_of_a_fit(FEW, **params)  # compile first
    few, many = calls_of_a_fit(FEW, **params), calls_of_a_fit(MANY, **params)
    found = {name: (many[name] - few[name]) / (MANY - FEW) for name in many}
    found = {name: n for name, n in found.items() if n > 0 and name[0] not in AFTERWARDS}
    files = sorted({file for file, _ in found})
    codes = [kernel.py_func.__code__ for kernel in KERNELS]
    kernels = {(place(code), code.co_name) for code in codes}
    entries = sum(n for name, n in found.items() if name in kernels)
    print(f"{len(files)} files, {sum(found.values()):.0f} calls, {entries:.0f} of them of kernels")
    for file in files:
        print(f"  {file}")
        for (where, name), n in sorted(found.items()):
            if args.functions and where == file:
                print(f"    {n:6.2f}  {name}")


if __name__ == "__main__":
    main()
