"""The layout of the whole image."""

from __future__ import annotations

from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from experiments.scenes.descriptors.grids import Floats, cell_means, resized
from experiments.scenes.descriptors.libraries import opencv
from experiments.scenes.descriptors.registry import Descriptors
from experiments.scenes.descriptors.views import SQUARE


def add_layouts(to: Descriptors) -> None:
    """Add tiny images, spectra and the like."""
    to.add("tiny8", ("square",), partial(_tiny, 8), kind="vector")
    to.add("tiny16", ("square",), partial(_tiny, 16), kind="vector")
    to.add("tiny32", ("square",), partial(_tiny, 32), kind="vector")
    to.add("cosine16", ("square",), _cosine_transform, kind="vector")
    to.add("spectrum", ("square",), _spectrum, kind="vector")
    to.add("local_spectrum", ("square",), _local_spectrum, kind="vector")
    to.add("laplacian", ("square",), _laplacian_statistics, kind="vector")
    to.add("corners", ("image",), _corners, kind="vector")


def _tiny(side: int, square: Floats) -> Floats:
    small = resized(square, side, side)
    small = small - small.mean()
    return (small / max(float(np.linalg.norm(small)), 1e-3)).ravel()


def _cosine_transform(square: Floats) -> Floats:
    """Low frequencies of the cosine transform, without the brightness."""
    return opencv().dct(square)[:16, :16].ravel()[1:].copy()


@cache
def _polar_bins(side: int, n_rings: int, n_angles: int) -> NDArray[np.intp]:
    """Ring and direction of each frequency; the last bin holds what is in no ring."""
    frequency = np.fft.fftfreq(side)
    y, x = np.meshgrid(frequency, frequency, indexing="ij")
    radius = np.hypot(x, y)
    edges = np.geomspace(1 / side, 0.5, n_rings + 1)
    ring = np.clip(np.searchsorted(edges, radius, side="right") - 1, -1, n_rings - 1)
    direction = np.floor(np.mod(np.arctan2(y, x), np.pi) / np.pi * n_angles).astype(np.intp)
    bins = ring * n_angles + np.minimum(direction, n_angles - 1)
    return np.where((ring < 0) | (radius > 0.5), n_rings * n_angles, bins).ravel()


def _log_power(window: Floats, n_rings: int, n_angles: int) -> Floats:
    """Mean power per ring and direction of frequencies, as logarithm."""
    side = len(window)
    taper = np.hanning(side).astype(np.float32)
    power = np.abs(np.fft.fft2((window - window.mean()) * np.outer(taper, taper))) ** 2
    bins, n = _polar_bins(side, n_rings, n_angles), n_rings * n_angles
    counts = np.maximum(np.bincount(bins, minlength=n + 1)[:n], 1)
    sums = np.bincount(bins, weights=power.ravel(), minlength=n + 1)[:n]
    return np.log(sums / counts + 1e-4).astype(np.float32)


def _spectrum(square: Floats) -> Floats:
    return _log_power(square, 8, 12)


def _local_spectrum(square: Floats) -> Floats:
    side = SQUARE // 4
    corners = [(y, x) for y in range(0, SQUARE, side) for x in range(0, SQUARE, side)]
    return np.concatenate(
        [_log_power(square[y : y + side, x : x + side], 4, 6) for y, x in corners]
    )


def _laplacian_statistics(square: Floats) -> Floats:
    """Mean strength of each level of a Laplacian pyramid, in 4 x 4 cells."""
    cv2 = opencv()
    levels = []
    image = square
    for _ in range(5):
        smaller = cv2.pyrDown(image)
        detail = image - cv2.pyrUp(smaller, dstsize=image.shape[::-1])
        levels.append(np.log(cell_means(np.abs(detail), 4) + 1e-4).ravel())
        image = smaller
    return np.concatenate(levels).astype(np.float32)


def _corners(image: NDArray[np.uint8]) -> Floats:
    strength = opencv().cornerMinEigenVal(image, 3)
    return np.log(cell_means(strength, 4).ravel() + 1e-6).astype(np.float32)
