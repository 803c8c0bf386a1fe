"""How much memory does a fit take above its input? Target: 1.3 bytes per cell + 200 MB."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks._common import COLUMNS, ROWS, machine, regression_data
from greedymiser import MiserRegressor


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def status(key: str) -> int:
    """A line of the kernel's account of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(key)).split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--columns", type=int, default=COLUMNS)
    args = parser.parse_args()
    print(machine())
    X, y = regression_data(args.rows, args.columns)
    MiserRegressor(max_iter=2).fit(X[:2000], y[:2000])  # compile first
    limit = 1.3 * X.size + 200e6
    for early_stopping in (False, True):
        model = MiserRegressor(max_iter=5, early_stopping=early_stopping, random_state=0)
        reset_peak()
        before = status("VmRSS")
        model.fit(X, y)
        above = status("VmHWM") - before
        print(f"{args.rows} x {args.columns}, early_stopping={early_stopping}: ", end="")
        print(f"peak {above / 1e6:.0f} MB above the input (limit {limit / 1e6:.0f} MB)")


if __name__ == "__main__":
    main()
