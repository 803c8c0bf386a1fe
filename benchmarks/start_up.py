"""What do importing the package and the first fit of a process cost?"""

from __future__ import annotations

import subprocess
import sys

from benchmarks._common import machine

IMPORT = """
import time
start = time.perf_counter()
import numba, sklearn
peers = time.perf_counter()
import greedymiser
print(time.perf_counter() - peers)
"""

FIRST_FIT = """
import time
import numpy as np
from greedymiser import {name}
X = np.random.default_rng(0).standard_normal((2000, 20))
y = (X[:, 0] > 0) + (X[:, 1] > 0)
seconds = []
for _ in range(2):
    start = time.perf_counter()
    {name}(max_iter=20).fit(X, y).predict(X)
    seconds.append(time.perf_counter() - start)
print(seconds[0] - seconds[1])
"""


def best(code: str, repeats: int = 5) -> float:
    """Least of what several fresh processes print."""
    return min(
        float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
        for _ in range(repeats)
    )


def main() -> None:
    print(machine())
    print(f"import greedymiser adds {best(IMPORT):.2f} s to importing numba and scikit-learn")
    for name in ("MiserRegressor", "MiserClassifier"):
        best(FIRST_FIT.format(name=name), 1)  # fills the cache of compiled code
        seconds = best(FIRST_FIT.format(name=name))
        print(f"first fit and predict of a process, {name}: {seconds:.2f} s to load compiled code")


if __name__ == "__main__":
    main()
