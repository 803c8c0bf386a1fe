"""Histograms of intensities, gradients, edges and patterns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.scenes.descriptors.grids import Floats, cell_means, shares
from experiments.scenes.descriptors.libraries import opencv, skimage_feature
from experiments.scenes.descriptors.registry import Descriptors
from experiments.scenes.descriptors.words import add_pyramid


def add_histograms(to: Descriptors) -> None:
    """Add histograms of intensities and gradients."""
    one, three, four = (
        partial(_orientation_pyramid, levels) for levels in ((1,), (1, 2, 4), (1, 2, 4, 8))
    )
    to.add("intensity", ("decode",), _intensity, kind="histogram")
    to.add("intensity_grid", ("square",), _intensity_grid, kind="vector")
    to.add("orientation", ("oriented",), one, kind="histogram")
    to.add("orientation_pyramid", ("oriented",), three, kind="histogram")
    to.add("orientation_fine", ("oriented",), four, kind="histogram")
    to.add("gradient_length", ("gradients",), _gradient_lengths, kind="histogram")
    to.add("cooccurrence", ("half",), _cooccurrence, kind="vector")
    to.add("hog_grid4", ("square",), partial(_spatial_hog, 32), kind="vector")
    to.add("hog_grid8", ("square",), partial(_spatial_hog, 16), kind="vector")


def _intensity(pixels: NDArray[np.uint8]) -> Floats:
    return shares(np.bincount(pixels.ravel() >> 2, minlength=64))


def _intensity_grid(square: Floats) -> Floats:
    means = cell_means(square, 8)
    squares = cell_means(square * square, 8)
    spread = np.sqrt(np.maximum(squares - means**2, 0))
    return np.concatenate([means.ravel(), spread.ravel()]).astype(np.float32)


def _orientation_pyramid(levels: Sequence[int], maps: Floats) -> Floats:
    """Histograms of gradient directions over grids of several sizes, each weighing the same."""
    parts = [np.stack([cell_means(map_, n) for map_ in maps]) / n**2 for n in levels]
    return np.concatenate([shares(part.ravel()) / len(levels) for part in parts])


def _gradient_lengths(gradients: Floats) -> Floats:
    length = gradients[2]
    bins = np.clip((8 * np.log2(length * 256 + 1)).astype(np.intp), 0, 63)
    height = length.shape[0] // 3
    thirds = [bins[:height], bins[height : 2 * height], bins[2 * height :]]
    counts = [np.bincount(third.ravel(), minlength=64) for third in thirds]
    return shares(np.concatenate(counts))


def _cooccurrence(half: NDArray[np.uint8]) -> Floats:
    """Haralick's statistics of grey levels side by side."""
    feature = skimage_feature()
    angles = np.arange(4) * np.pi / 4
    matrix = feature.graycomatrix(half >> 4, [1, 2, 4], angles, 16, symmetric=True, normed=True)
    names = ("contrast", "dissimilarity", "homogeneity", "ASM", "energy", "correlation")
    return np.concatenate([feature.graycoprops(matrix, name).ravel() for name in names]).astype(
        np.float32
    )


def _spatial_hog(cell: int, square: Floats) -> Floats:
    hog = skimage_feature().hog(
        square, orientations=9, pixels_per_cell=(cell, cell), cells_per_block=(2, 2)
    )
    return hog.astype(np.float32)


# -- edges and lines ----------------------------------------------------------------------------


def add_edges(to: Descriptors) -> None:
    """Add edges and straight lines."""
    to.add("edges", ("image",), _canny)
    to.add("edge_density", ("edges",), _edge_density, kind="vector")
    to.add("edge_directions", ("edges", "gradients"), _edge_directions, kind="histogram")
    to.add("lines", ("edges",), _line_lengths, kind="histogram")


def _canny(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return opencv().Canny(image, 60, 160)


def _edge_density(edges: NDArray[np.uint8]) -> Floats:
    return np.sqrt(cell_means(edges.astype(np.float32) / 255, 8)).ravel()


def _edge_directions(edges: NDArray[np.uint8], gradients: Floats) -> Floats:
    """Directions of the edges, without sign, in 4 x 4 cells."""
    rows, columns = np.nonzero(edges)
    angle = np.arctan2(gradients[1][rows, columns], gradients[0][rows, columns])
    direction = np.minimum((np.mod(angle, np.pi) / np.pi * 12).astype(np.intp), 11)
    cell = (rows * 4 // edges.shape[0]) * 4 + columns * 4 // edges.shape[1]
    return shares(np.bincount(cell * 12 + direction, minlength=16 * 12))


def _line_lengths(edges: NDArray[np.uint8]) -> Floats:
    """Total length of straight lines by direction, length and height in the image."""
    found = opencv().HoughLinesP(edges, 1, np.pi / 90, 25, minLineLength=15, maxLineGap=2)
    totals = np.zeros((3, 4, 12))
    if found is not None:
        x0, y0, x1, y1 = found.reshape(-1, 4).T.astype(np.float64)
        length = np.hypot(x1 - x0, y1 - y0)
        angle = np.mod(np.arctan2(y1 - y0, x1 - x0), np.pi)
        # Shifted by half a bin, so that level and upright lines sit in the middle of theirs.
        direction = np.floor(angle / np.pi * 12 + 0.5).astype(np.intp) % 12
        size = np.clip(np.log2(length / 15), 0, 3).astype(np.intp)
        third = np.clip((y0 + y1) / 2 / edges.shape[0] * 3, 0, 2).astype(np.intp)
        np.add.at(totals, (third, size, direction), length)
    return shares(totals.ravel())


# -- census and local binary patterns -------------------------------------------------------------


def census(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Which of the eight neighbours are not brighter, as the bits of a byte (CENTRIST)."""
    height, width = image.shape
    middle = image[1:-1, 1:-1]
    codes = np.zeros(middle.shape, dtype=np.uint8)
    shifts = [(y, x) for y in range(3) for x in range(3) if (y, x) != (1, 1)]
    for bit, (y, x) in enumerate(shifts):
        neighbour = image[y : height - 2 + y, x : width - 2 + x]
        codes |= (middle >= neighbour).view(np.uint8) << np.uint8(bit)
    return codes


def _lbp(radius: int, points: int, method: str, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    codes = skimage_feature().local_binary_pattern(image, points, radius, method)
    return codes.astype(np.uint8)


# Where each pattern is seen, how it is found, how many codes it has, and levels of its pyramids.
PATTERNS: dict[str, tuple[str, Callable[..., Any], int, tuple[int, ...]]] = {
    "census": ("image", census, 256, (0, 1, 2)),
    "census_half": ("half", census, 256, (0, 2)),
    "lbp1": ("image", partial(_lbp, 1, 8, "nri_uniform"), 59, (0, 2)),
    "lbp2": ("image", partial(_lbp, 2, 16, "uniform"), 18, (0, 2)),
    "lbp3": ("image", partial(_lbp, 3, 24, "uniform"), 26, (0, 2)),
}


def add_patterns(to: Descriptors) -> None:
    """Add census and local binary patterns, counted in pyramids."""
    for name, (view, compute, n_codes, levels) in PATTERNS.items():
        to.add(name, (view,), compute)
        for level in levels:
            add_pyramid(to, name, name, level, n_codes)
