"""
Images on demand
================

From feature extractors to a served model that computes only the features it uses. A dozen image
descriptors share intermediate results. Their cost is measured as CPU time, models are trained for
several trade-offs between accuracy and cost, and two of them, one without and one with a budget,
are served from raw images.

Without ``--data`` the images are scikit-learn's handwritten digits (8 x 8 scans). With it they are
the photographs of Scene-15: a folder with ``images.tar``, which holds ``train/`` and ``test/`` with
one folder of JPEGs per class. That needs Pillow::

    python examples/images_on_demand.py
    python examples/images_on_demand.py --data path/to/scene15 --images 2000 --n-jobs 4
"""

from __future__ import annotations

import argparse
import io
import sys
import tarfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from greedymiser import MiserClassifier, tradeoff_curve
from greedymiser.on_demand import OnDemandPredictor, Sources, build_matrix, measure_costs

sources = Sources()


def grid(image: np.ndarray, n_rows: int, n_columns: int) -> np.ndarray:
    """Means over the cells of a grid, row by row; cells of small images may share pixels."""
    rows, columns = (
        np.linspace(0, size, n + 1)
        for size, n in zip(image.shape, (n_rows, n_columns), strict=True)
    )
    # Sums over all rectangles from the corner: a cell is a combination of four of them.
    corner = np.zeros((image.shape[0] + 1, image.shape[1] + 1))
    corner[1:, 1:] = image.cumsum(axis=0).cumsum(axis=1)
    top, bottom = np.floor(rows[:-1]).astype(int), np.ceil(rows[1:]).astype(int)
    left, right = np.floor(columns[:-1]).astype(int), np.ceil(columns[1:]).astype(int)
    sums = (
        corner[np.ix_(bottom, right)]
        - corner[np.ix_(top, right)]
        - corner[np.ix_(bottom, left)]
        + corner[np.ix_(top, left)]
    )
    return (sums / np.outer(bottom - top, right - left)).ravel()


def names(prefix: str, n: int) -> list[str]:
    """Names of n columns."""
    return [f"{prefix}_{i}" for i in range(n)]


# %%
# What several descriptors share
# ------------------------------
# Intermediates are computed at most once per image, and only if a descriptor that the model uses
# needs them. The name of a parameter says which intermediate a function is given.


@sources.intermediate
def pixels(raw):
    """Grey values between 0 and 1, of a JPEG's bytes or of a scan with 17 levels."""
    if isinstance(raw, bytes):
        from PIL import Image

        return np.asarray(Image.open(io.BytesIO(raw)).convert("L"), dtype=np.float64) / 255.0
    return raw / 16.0


@sources.intermediate
def gradients(pixels):
    """Strength of each pixel's edge, and which of eight directions it has."""
    down, right = np.gradient(pixels)
    direction = np.arctan2(down, right) * (8 / (2 * np.pi))
    return np.hypot(down, right), np.floor(direction).astype(np.int64) % 8


@sources.intermediate
def transform(pixels):
    """Fourier transform of a window of the image, low frequencies in the middle."""
    window = np.outer(*(np.hanning(size + 2)[1:-1] for size in pixels.shape))
    return np.fft.fftshift(np.fft.fft2((pixels - pixels.mean()) * window))


@sources.intermediate
def frequencies(transform):
    """Distance from the middle, between 0 and 1, and direction of each frequency."""
    vertical, horizontal = (np.fft.fftshift(np.fft.fftfreq(size)) for size in transform.shape)
    vertical = vertical[:, None]
    return 2 * np.hypot(vertical, horizontal), np.arctan2(vertical, horizontal) % np.pi


@sources.intermediate
def binary_patterns(pixels):
    """Local binary patterns, of ten kinds: 0 to 8 bright neighbours in a row, or not in a row."""
    padded = np.pad(pixels, 1, mode="edge")
    height, width = pixels.shape
    around = [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (2, 1), (2, 0), (1, 0)]
    bright = np.stack([padded[i : i + height, j : j + width] >= pixels for i, j in around])
    changes = (bright != np.roll(bright, 1, axis=0)).sum(axis=0)
    return np.where(changes <= 2, bright.sum(axis=0), 9)


# %%
# Descriptors, roughly from cheap to expensive
# --------------------------------------------
# Each computes some columns, together 314.


@sources.columns("mean", "std", "darkest", "brightest")
def brightness(pixels):
    """Grey values as a whole."""
    return pixels.mean(), pixels.std(), pixels.min(), pixels.max()


@sources.columns(*names("zone", 16))
def zones(pixels):
    """Mean grey values of 4 x 4 cells."""
    return grid(pixels, 4, 4)


@sources.columns(*names("row", 8), *names("column", 8))
def profiles(pixels):
    """Mean grey values of horizontal and of vertical stripes."""
    return np.concatenate([grid(pixels, 8, 1), grid(pixels, 1, 8)])


@sources.columns("left_right", "up_down", "half_turn")
def symmetry(pixels):
    """How much the image differs from its mirror images."""
    return [
        np.abs(pixels - turned).mean()
        for turned in (pixels[:, ::-1], pixels[::-1], pixels[::-1, ::-1])
    ]


@sources.columns(*names("hu", 7))
def moments(pixels):
    """Hu's moments, which do not change when the image is moved, scaled or turned."""
    i, j = np.indices(pixels.shape)
    mass = pixels.sum() + 1e-9
    i, j = i - (pixels * i).sum() / mass, j - (pixels * j).sum() / mass

    def eta(p, q):
        return (pixels * j**p * i**q).sum() / mass ** (1 + (p + q) / 2)

    n20, n02, n11 = eta(2, 0), eta(0, 2), eta(1, 1)
    n30, n03, n21, n12 = eta(3, 0), eta(0, 3), eta(2, 1), eta(1, 2)
    a, b = n30 + n12, n21 + n03
    c, d = n30 - 3 * n12, 3 * n21 - n03
    return (
        n20 + n02,
        (n20 - n02) ** 2 + 4 * n11**2,
        c**2 + d**2,
        a**2 + b**2,
        c * a * (a**2 - 3 * b**2) + d * b * (3 * a**2 - b**2),
        (n20 - n02) * (a**2 - b**2) + 4 * n11 * a * b,
        d * a * (a**2 - 3 * b**2) - c * b * (3 * a**2 - b**2),
    )


@sources.columns(*names("edge", 16))
def edges(gradients):
    """Strength of the edges in 4 x 4 cells."""
    return grid(gradients[0], 4, 4)


@sources.columns(*names("direction", 8))
def directions(gradients):
    """Share of the edges in each direction."""
    strength, direction = gradients
    return np.bincount(direction.ravel(), strength.ravel(), 8) / (strength.sum() + 1e-9)


@sources.columns(*names("hog", 128))
def hog(gradients):
    """Histograms of directions in 4 x 4 cells, each direction by its strength."""
    strength, direction = gradients
    cells = [grid(np.where(direction == k, strength, 0.0), 4, 4) for k in range(8)]
    histograms = np.stack(cells, axis=1)
    return (histograms / (np.linalg.norm(histograms, axis=1, keepdims=True) + 1e-3)).ravel()


@sources.columns(*names("lbp", 40))
def lbp(binary_patterns):
    """How often each local binary pattern occurs in each quarter."""
    return np.concatenate([grid(binary_patterns == kind, 2, 2) for kind in range(10)])


@sources.columns(*names("ring", 6))
def rings(transform, frequencies):
    """Energy by frequency."""
    ring = np.minimum(frequencies[0] * 6, 5).astype(np.int64)
    return np.log(np.bincount(ring.ravel(), np.abs(transform).ravel() ** 2, 6) + 1e-9)


@sources.columns(*names("wedge", 6))
def wedges(transform, frequencies):
    """Share of the energy by direction."""
    wedge = np.minimum(frequencies[1] * (6 / np.pi), 5).astype(np.int64)
    energy = np.bincount(wedge.ravel(), np.abs(transform).ravel() ** 2, 6)
    return energy / (energy.sum() + 1e-9)


@sources.columns(*names("gist", 64))
def gist(transform, frequencies):
    """Strength of four Gabor filters at each of four scales, in quarters (Oliva, Torralba 2001)."""
    distance, angle = frequencies
    answers = []
    for scale in (0.8, 0.5, 0.3, 0.15):
        band = np.exp(-8 * np.log(np.maximum(distance, 1e-6) / scale) ** 2)
        for direction in range(4):
            turn = np.abs(angle - direction * np.pi / 4)
            along = np.exp(-4 * np.minimum(turn, np.pi - turn) ** 2)
            answer = np.abs(np.fft.ifft2(np.fft.ifftshift(transform * band * along)))
            answers.append(grid(answer, 2, 2))
    return np.concatenate(answers)


# %%
# Data
# ----


def read_digits(most: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Scans of handwritten digits, and which digits they are."""
    digits = load_digits()
    return list(digits.images[:most]), digits.target[:most]


def read_scenes(folder: Path, most: int) -> tuple[list[bytes], np.ndarray]:
    """Encoded photographs and their classes; of identical files only the first is taken."""
    twins = (folder / "duplicates.txt").read_text().splitlines()
    dropped = {name for line in twins for name in line.split()[1:]}
    with tarfile.open(folder / "images.tar") as archive:
        members = [m for m in archive if m.name.endswith(".jpg") and m.name not in dropped]
        chosen = np.random.default_rng(0).permutation(len(members))[:most]
        photographs = [archive.extractfile(members[i]).read() for i in sorted(chosen)]
        scenes = [Path(members[i].name).parent.name for i in sorted(chosen)]
    return photographs, np.array(scenes)


# %%
# From extractors to a served model
# ---------------------------------
# Four steps: measure costs, build the training matrix, train, serve.


class Served(NamedTuple):
    """How a model did on raw images, on average."""

    accuracy: float
    # Seconds by the measured costs, which the model was trained with.
    price: float
    # Seconds by the clocks, all included: extraction, trees and the accounts.
    cpu: float
    wall: float
    # Extractors and intermediates that were called.
    calls: float


def main(arguments: list[str] | None = None) -> dict[str, Served]:
    """Run the example; returns what it prints about each model."""
    options = parse(arguments)
    if options.data is None:
        objects, y = read_digits(options.images)
    else:
        objects, y = read_scenes(options.data, options.images)
    rest, test, y_rest, y_test = train_test_split(
        objects, y, test_size=0.3, stratify=y, random_state=0
    )
    train, valid, y_train, y_valid = train_test_split(
        rest, y_rest, test_size=0.3, stratify=y_rest, random_state=0
    )
    print(f"{len(objects)} images of {len(set(y))} classes, {sources!r}\n")

    # 1. What does each extractor cost?
    costs, table = measure_costs(sources, train[:20], repeats=3)
    print(table, "\n")

    # 2. All columns of the training and validation images, once.
    how = {"n_jobs": options.n_jobs, "prefer": "processes", "verbose": sys.stderr.isatty()}
    X, X_valid = (build_matrix(sources, images, **how) for images in (train, valid))

    # 3. A model that ignores costs, and then one that keeps to a budget.
    model = MiserClassifier(costs=costs, max_iter=options.max_iter, max_depth=3, min_samples_leaf=5)
    checked = {"X_val": X_valid, "y_val": y_valid, "scoring": "accuracy"}
    full = tradeoff_curve(model, X, y_train, tradeoffs=[0.0], **checked).best()
    budget = options.budget * full.cost_
    model.set_params(budget=budget)
    thrifty = tradeoff_curve(model, X, y_train, tradeoffs=8, **checked).best()
    print(f"\nThe budget is {1e3 * budget:.3g} ms. The thrifty model buys\n{thrifty.receipt()}\n")

    # 4. From raw images, side by side.
    served = serve({"full": full, "thrifty": thrifty}, test, y_test)
    for name, result in served.items():
        print(
            f"{name:8}  accuracy {result.accuracy:.3f}  price {1e3 * result.price:8.3f} ms  "
            f"measured {1e3 * result.cpu:8.3f} ms of CPU, {1e3 * result.wall:8.3f} ms in all, "
            f"{served['full'].cpu / result.cpu:.1f}x as fast, {result.calls:.0f} calls"
        )
    return served


def serve(models: dict[str, Any], images: list[Any], y: np.ndarray) -> dict[str, Served]:
    """Serve raw images one at a time, as they come; the models take turns."""
    served = {name: OnDemandPredictor(model, sources) for name, model in models.items()}
    results = {}
    for name, predictor in served.items():  # which also warms up
        labels, receipts = predictor.predict(images, return_receipts=True)
        calls = np.mean([len(receipt.fetched) for receipt in receipts])
        accuracy, price = (labels == y).mean(), receipts.costs.mean()
        results[name] = Served(accuracy, price, cpu=np.inf, wall=np.inf, calls=calls)
    for _ in range(3):
        for name, predictor in served.items():
            cpu, wall = seconds_per_image(predictor, images[:50])
            best = results[name]
            results[name] = best._replace(cpu=min(cpu, best.cpu), wall=min(wall, best.wall))
    return results


def seconds_per_image(predictor: OnDemandPredictor, images: list[Any]) -> tuple[float, float]:
    """CPU and wall time of a prediction from a raw image."""
    cpu, wall = time.process_time(), time.perf_counter()
    for image in images:
        predictor.predict([image])
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return cpu / len(images), wall / len(images)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Images on demand.")
    parser.add_argument("--data", type=Path, help="folder with images.tar of Scene-15")
    parser.add_argument("--images", type=int, default=1500, help="use at most so many images")
    parser.add_argument("--max-iter", type=int, default=60, help="rounds of boosting")
    parser.add_argument(
        "--budget", type=float, default=0.25, help="share of the full model's cost to spend"
    )
    parser.add_argument("--n-jobs", type=int, default=1, help="processes that extract")
    # A notebook has arguments of its own, which are not for us.
    return parser.parse_known_args(arguments)[0]


# %%
# Run it
# ------
# The model for a quarter of the cost is less accurate and much faster, also by the clock.


def draw(served: dict[str, Served]) -> None:
    """Milliseconds of each model, by the prices and by the clock."""
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(6, 4))
    labels = [f"{name},\naccuracy {result.accuracy:.3f}" for name, result in served.items()]
    places = np.arange(len(served))
    prices = [1e3 * result.price for result in served.values()]
    measured = [1e3 * result.cpu for result in served.values()]
    ax.barh(places - 0.2, prices, 0.38, label="by the prices", color="#0072B2")
    ax.barh(places + 0.2, measured, 0.38, label="measured in service", color="#E69F00")
    ax.set(yticks=places, yticklabels=labels, xlabel="milliseconds of CPU per image")
    ax.set_title("What each model costs per image")
    ax.invert_yaxis()
    ax.legend()
    figure.tight_layout()
    plt.show()


if __name__ == "__main__":
    draw(main())
