"""Build the wheel, check it, and try it in empty environments, one for each Python that there is.

    python tools/try_wheel.py [--pythons python3.12 python3.13]

Needs build and twine (the extra ``package``), and a package index for the dependencies.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
KNOWN = ("python3.11", "python3.12", "python3.13", "python3.14")

# What must not be in the wheel, and what must.
OUTSIDE = ("experiments/", "tests/", "benchmarks/", "docs/")
INSIDE = ("greedymiser/py.typed", "greedymiser/datasets/data/thyroid_train.csv.gz")

TRIAL = """
import sys
import numpy as np
import greedymiser
from greedymiser import MiserClassifier, load, save
from greedymiser.datasets import load_thyroid

data = load_thyroid()
model = MiserClassifier(costs=data.costs, budget=40.0, tradeoff=1e-4, max_iter=20)
model.fit(data.X_train, data.y_train)
save(model, "m.miser")
served = load("m.miser")
assert np.array_equal(served.predict(data.X_test), model.predict(data.X_test))
assert served.cost_ <= 40.0 and model.score(data.X_test, data.y_test) > 0.9
print(f"greedymiser {greedymiser.__version__} on Python {sys.version.split()[0]}:",
      f"cost {served.cost_:g}, accuracy {model.score(data.X_test, data.y_test):.4f}")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pythons", nargs="+", help="interpreters; all that run by default")
    pythons = parser.parse_args().pythons or [name for name in KNOWN if runs(name)]
    with tempfile.TemporaryDirectory() as folder:
        wheel = built(Path(folder) / "dist")
        check_contents(wheel)
        for python in pythons:
            tried(python, wheel, Path(folder) / Path(python).name)


def runs(python: str) -> bool:
    """Whether an interpreter is there and works: a version manager may have only its name."""
    found = shutil.which(python)
    command = [found or "", "-c", "import venv, ensurepip"]
    return found is not None and subprocess.run(command, capture_output=True).returncode == 0


def built(dist: Path) -> Path:
    """The wheel, made from the source archive, both checked."""
    run(sys.executable, "-m", "build", "--outdir", dist, ROOT)
    run(sys.executable, "-m", "twine", "check", "--strict", *sorted(dist.iterdir()))
    (wheel,) = dist.glob("*.whl")
    print(f"{wheel.name}: {wheel.stat().st_size / 1000:.0f} kB", flush=True)
    return wheel


def check_contents(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    stray = [name for name in names if name.startswith(OUTSIDE)]
    missing = [name for name in INSIDE if name not in names]
    if stray or missing:
        sys.exit(f"the wheel has {stray[:3]} and lacks {missing}")


def tried(python: str, wheel: Path, folder: Path) -> None:
    """Install the wheel where nothing else is, and use it there."""
    start = time.monotonic()
    run(python, "-m", "venv", folder)
    inside = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    run(inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    # From a folder where the checkout is not found.
    run(inside, "-I", "-c", TRIAL, cwd=folder)
    print(f"tried in {time.monotonic() - start:.0f} s", flush=True)


def run(*command: object, cwd: Path | None = None) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=env)
    if done.returncode:
        sys.exit(f"failed: {' '.join(str(word) for word in command)[:200]}")


if __name__ == "__main__":
    main()
