"""Gabor energies: the GIST of a scene."""

from __future__ import annotations

from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from experiments.scenes.descriptors.grids import Floats, cell_means
from experiments.scenes.descriptors.libraries import opencv
from experiments.scenes.descriptors.registry import Descriptors
from experiments.scenes.descriptors.views import ORIENTATIONS, SQUARE

# Pixels around the square, so that filters do not see one border beside the other.
MARGIN = 16

SCALES = range(4)


def add_gist(to: Descriptors) -> None:
    """Add the energies of each scale, and their means in grids."""
    to.add("contrast", ("square",), _contrast_spectrum)
    for i in SCALES:
        to.add(f"gabor{i}", ("contrast",), partial(_gabor_energy, i))
    every = [f"gabor{i}" for i in SCALES]
    to.add("gist_global", every, partial(_gist, 1), kind="vector")
    to.add("gist_grid2", every, partial(_gist, 2), kind="vector")
    to.add("gist_grid4", every, partial(_gist, 4), kind="vector")
    to.add("gist_grid8", every, partial(_gist, 8), kind="vector")
    to.add("gist_coarse", ("gabor3",), partial(_gist, 4), kind="vector")
    to.add("gist_fine", ("gabor0",), partial(_gist, 4), kind="vector")


def _contrast_spectrum(square: Floats) -> NDArray[np.complex64]:
    """Spectrum of the image with its local contrast made even (Oliva and Torralba's prefilter)."""
    import scipy.fft

    cv2 = opencv()
    logarithm = np.log(square * 255 + 1)
    detail = logarithm - cv2.GaussianBlur(logarithm, (0, 0), 8)
    strength = np.sqrt(cv2.GaussianBlur(detail * detail, (0, 0), 8))
    even = detail / (0.2 + strength)
    padded = np.pad(even, MARGIN, mode="symmetric")
    return scipy.fft.fft2(padded).astype(np.complex64)


@cache
def _gabor_filters(scale: int) -> Floats:
    """Filters of one scale in the frequency domain, one per direction (half the plane each)."""
    side = SQUARE + 2 * MARGIN
    frequency = np.fft.fftfreq(side)
    y, x = np.meshgrid(frequency, frequency, indexing="ij")
    radius, angle = np.hypot(x, y), np.arctan2(y, x)
    centre = 0.3 / 1.85**scale
    filters = []
    for k in range(ORIENTATIONS):
        turned = np.mod(angle - np.pi * k / ORIENTATIONS + np.pi, 2 * np.pi) - np.pi
        along = np.exp(-10 * 0.35 * (radius / centre - 1) ** 2)
        across = np.exp(-2 * np.pi * turned**2 * (ORIENTATIONS / 8) ** 2)
        filters.append(along * across)
    return np.stack(filters).astype(np.float32)


def _gabor_energy(scale: int, spectrum: NDArray[np.complex64]) -> Floats:
    import scipy.fft

    inside = slice(MARGIN, MARGIN + SQUARE)
    energy = [
        np.abs(scipy.fft.ifft2(spectrum * filter_)[inside, inside])
        for filter_ in _gabor_filters(scale)
    ]
    return np.stack(energy).astype(np.float32)


def _gist(n_cells: int, *energies: Floats) -> Floats:
    maps = [map_ for energy in energies for map_ in energy]
    return np.concatenate([cell_means(map_, n_cells).ravel() for map_ in maps])
