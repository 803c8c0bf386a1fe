"""What do importing the package, the first fit and the first prediction cost?

Of a process, and of an installation that has compiled nothing yet. With ``--engine cuda``, only the
first fit on a GPU.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import joblib
import numpy as np

import greedymiser
from benchmarks._common import machine
from greedymiser import MiserClassifier, save
from greedymiser.datasets import load_thyroid

IMPORT = """
import time
start = time.perf_counter()
import numba, sklearn
peers = time.perf_counter()
from greedymiser import MiserClassifier, tradeoff_curve
print(time.perf_counter() - peers)
"""

# From nothing to a prediction, as a job that is started for one does it.
SERVE = """
import time
start = time.perf_counter()
import numpy as np
{read}
model.predict(np.zeros((1, 21)))
print(time.perf_counter() - start)
"""
READERS = {
    "a model file": "from greedymiser import load; model = load({path!r})",
    "a pickle": "import joblib; model = joblib.load({path!r})",
}

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


# Seconds, and CPU seconds, which other programs on the machine disturb least.
FRESH = """
import time
import numpy as np
from greedymiser import MiserClassifier
from greedymiser._core.compiling import KERNELS
X = np.random.default_rng(0).standard_normal((2000, 20))
y = X[:, 0] > 0
model = MiserClassifier(costs=np.linspace(1, 2, 20), max_iter=20, n_jobs=1, engine={engine!r})
seconds = []
for step in (model.fit, model.predict, model.predict):
    start = time.process_time(), time.perf_counter()
    step(X, *([y] if step == model.fit else []))
    seconds.append((time.process_time() - start[0], time.perf_counter() - start[1]))
n_compiled = sum(len(kernel.signatures) for kernel in KERNELS)
print(*seconds[0], seconds[1][0] - seconds[2][0], n_compiled)
"""


def fresh_installation(engine: str, repeats: int = 2) -> None:
    """Copy the package, without compiled code, to where nothing was ever compiled."""
    first, second = [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "site" / "greedymiser"
            compiled = shutil.ignore_patterns("__pycache__")
            shutil.copytree(Path(greedymiser.__file__).parent, copy, ignore=compiled)
            variables = {
                "PYTHONPATH": str(copy.parent),
                "NUMBA_CACHE_DIR": f"{folder}/code",
                "CUDA_CACHE_PATH": f"{folder}/driver",
            }
            for found in (first, second):
                done = subprocess.run(
                    [sys.executable, "-c", FRESH.format(engine=engine)],
                    env={**os.environ, **variables},
                    check=True,
                    capture_output=True,
                )
                found.append([float(number) for number in done.stdout.split()])
    cpu, wall, predict, n_compiled = np.min(first, axis=0)
    print(
        f"first fit of a fresh installation (classifier with costs, {engine}): {cpu:.1f} s of CPU, "
        f"{wall:.1f} s, {n_compiled:.0f} functions compiled; first prediction: {predict:.1f} s"
    )
    print(f"first fit of the next process: {np.min(second, axis=0)[1]:.2f} s")


def best(code: str, repeats: int = 5) -> float:
    """Least of what several fresh processes print."""
    return min(
        float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
        for _ in range(repeats)
    )


def serve() -> None:
    data = load_thyroid()
    model = MiserClassifier(costs=data.costs, max_iter=60).fit(data.X_train, data.y_train)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model")
        for kind, write in {"a model file": save, "a pickle": joblib.dump}.items():
            write(model, path)
            code = SERVE.format(read=READERS[kind].format(path=path))
            best(code, 1)  # fills the cache of compiled code
            print(f"import, load and predict one row, from {kind}: {best(code):.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["cpu", "cuda"], default="cpu")
    args = parser.parse_args()
    print(machine())
    fresh_installation(args.engine)
    if args.engine == "cuda":
        return
    print(f"importing estimators adds {best(IMPORT):.2f} s to importing numba and scikit-learn")
    serve()
    for name in ("MiserRegressor", "MiserClassifier"):
        best(FIRST_FIT.format(name=name), 1)  # fills the cache of compiled code
        seconds = best(FIRST_FIT.format(name=name))
        print(f"first fit and predict of a process, {name}: {seconds:.2f} s to load compiled code")


if __name__ == "__main__":
    main()
