"""Local features: what is seen around each point of a grid."""

from __future__ import annotations

from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from experiments.scenes.descriptors.grids import Floats
from experiments.scenes.descriptors.libraries import opencv, skimage_feature
from experiments.scenes.descriptors.registry import Descriptors
from experiments.scenes.descriptors.views import ORIENTATIONS

# Patches of less contrast than this are flat: scaling their noise up would tell nothing.
FLAT = 0.05

# Blocks of HOG along a side of a template's window.
WINDOW = 6

# How far, in pixels, a patch is compared with those around it.
REACH = 12


def add_patches(to: Descriptors) -> None:
    """Add the local features of all bags of words."""
    to.add("hog8", ("image",), hog_blocks)
    to.add("similarity", ("half",), self_similarity)
    to.add("similarity_full", ("image",), self_similarity)
    to.add("daisy", ("half",), daisy)
    to.add("daisy_full", ("image",), daisy)
    to.add("textons", ("image",), filter_bank)
    to.add("sift16", ("oriented",), partial(dense_sift, 16, 6))
    to.add("sift16_dense", ("oriented",), partial(dense_sift, 16, 3))
    to.add("sift24", ("oriented",), partial(dense_sift, 24, 8))
    to.add("sift32", ("oriented",), partial(dense_sift, 32, 8))
    to.add("sift16_half", ("oriented_half",), partial(dense_sift, 16, 4))
    to.add("windows", ("hog8",), windows_of)


def _normalised(patches: Floats) -> Floats:
    """Patches of unit length, but flat ones shorter; no entry above 0.2 (Lowe 2004)."""
    length = np.linalg.norm(patches, axis=-1, keepdims=True)
    patches = patches / np.maximum(length, FLAT)
    np.minimum(patches, 0.2, out=patches)
    length = np.linalg.norm(patches, axis=-1, keepdims=True)
    return patches / np.maximum(length, 0.5)


def dense_sift(patch: int, step: int, maps: Floats) -> Floats:
    """SIFT of square patches on a grid: 4 x 4 cells of 8 directions each, shape (y, x, 128)."""
    cv2 = opencv()
    cell = patch // 4
    rise = np.arange(1, cell + 1, dtype=np.float32)
    triangle = np.concatenate([rise, rise[-2::-1]]) / cell**2
    height, width = maps.shape[1:]
    top = np.arange(cell // 2, height - patch + cell // 2 + 1, step)
    left = np.arange(cell // 2, width - patch + cell // 2 + 1, step)
    rows = top[:, None] + cell * np.arange(4)
    columns = left[:, None] + cell * np.arange(4)
    patches = np.empty((len(top), len(left), 4, 4, ORIENTATIONS), dtype=np.float32)
    for k, map_ in enumerate(maps):
        pooled = cv2.sepFilter2D(map_, cv2.CV_32F, triangle, triangle)
        patches[..., k] = pooled[rows[:, None, :, None], columns[None, :, None, :]]
    return _normalised(patches.reshape(len(top), len(left), -1))


def hog_blocks(image: NDArray[np.uint8]) -> Floats:
    """HOG of 2 x 2 cells of 8 x 8 pixels, one block per cell, shape (y, x, 36)."""
    blocks = skimage_feature().hog(
        image, orientations=9, pixels_per_cell=(8, 8), cells_per_block=(2, 2), feature_vector=False
    )
    return blocks.reshape(*blocks.shape[:2], -1).astype(np.float32)


def daisy(half: NDArray[np.uint8]) -> Floats:
    """DAISY of points on a grid, shape (y, x, 104)."""
    feature = skimage_feature()
    return feature.daisy(half, step=4, radius=12, rings=2, histograms=6, orientations=8).astype(
        np.float32
    )


def windows_of(blocks: Floats) -> Floats:
    """Every window of HOG blocks, about 48 pixels wide, with zero mean and unit length."""
    # Each cell is in four blocks; every second block holds all of a window's cells.
    views = np.lib.stride_tricks.sliding_window_view(blocks, (WINDOW, WINDOW), axis=(0, 1))
    flat = views[..., ::2, ::2].reshape(*views.shape[:2], -1)
    flat = flat - flat.mean(axis=-1, keepdims=True)
    return flat / np.maximum(np.linalg.norm(flat, axis=-1, keepdims=True), FLAT)


@cache
def _similarity_bins() -> list[list[tuple[int, int]]]:
    """Shifts in each of 3 rings x 10 directions around a point."""
    bins: list[list[tuple[int, int]]] = [[] for _ in range(30)]
    for y in range(-REACH, REACH + 1, 2):
        for x in range(-REACH, REACH + 1, 2):
            radius = np.hypot(x, y)
            if 1 < radius <= REACH:
                ring = int(np.searchsorted([4.5, 8.0], radius))
                direction = int(np.mod(np.arctan2(y, x), 2 * np.pi) / (2 * np.pi) * 10) % 10
                bins[ring * 10 + direction].append((y, x))
    return [shifts for shifts in bins if shifts]


def self_similarity(half: NDArray[np.uint8]) -> Floats:
    """How alike a patch is to those around it, in a log-polar grid (Shechtman and Irani 2007)."""
    cv2 = opencv()
    image = half.astype(np.float32) / 255
    height, width = image.shape
    padded = np.pad(image, REACH, mode="edge")
    stride = 4
    # Differences that noise and the patch's own texture explain.
    noise = cv2.boxFilter(image * image, -1, (5, 5)) - cv2.boxFilter(image, -1, (5, 5)) ** 2
    scale = np.maximum(noise, 0.002)[::stride, ::stride]
    likeness = []
    for shifts in _similarity_bins():
        least = np.full(scale.shape, np.inf, dtype=np.float32)
        for y, x in shifts:
            moved = padded[REACH + y : REACH + y + height, REACH + x : REACH + x + width]
            distance = cv2.boxFilter(cv2.absdiff(image, moved) ** 2, -1, (5, 5))
            np.minimum(least, distance[::stride, ::stride], out=least)
        likeness.append(np.exp(-least / scale))
    values = np.stack(likeness, axis=-1)
    low, high = values.min(axis=-1, keepdims=True), values.max(axis=-1, keepdims=True)
    return ((values - low) / np.maximum(high - low, 1e-3)).astype(np.float32)


@cache
def _bank() -> list[tuple[Floats, Floats]]:
    """Edge and bar filters, six directions of two scales (after Varma and Zisserman's MR8)."""
    filters = []
    for sigma in (1.0, 2.0):
        reach = round(6 * sigma)
        y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1].astype(np.float64)
        for angle in np.pi * np.arange(6) / 6:
            along = np.cos(angle) * x + np.sin(angle) * y
            across = np.cos(angle) * y - np.sin(angle) * x
            bell = np.exp(-0.5 * (across / sigma) ** 2 - 0.5 * (along / (3 * sigma)) ** 2)
            edge = across * bell
            bar = (across**2 / sigma**2 - 1) * bell
            edge, bar = edge - edge.mean(), bar - bar.mean()
            filters.append(tuple((f / np.abs(f).sum()).astype(np.float32) for f in (edge, bar)))
    return filters


def filter_bank(image: NDArray[np.uint8]) -> Floats:
    """Responses at every second pixel: the strongest direction of each filter, and two round ones.

    Responses are scaled by Weber's law, as Varma and Zisserman (2005) do.
    """
    cv2 = opencv()
    grey = image.astype(np.float32) / 255
    grey = (grey - grey.mean()) / max(float(grey.std()), 1e-3)
    responses = []
    for scale in range(2):
        pairs = _bank()[6 * scale : 6 * scale + 6]
        for kind in range(2):
            turned = [
                np.abs(cv2.filter2D(grey, cv2.CV_32F, pair[kind]))[::2, ::2] for pair in pairs
            ]
            responses += [np.max(turned, axis=0), np.mean(turned, axis=0)]
    blurred = cv2.GaussianBlur(grey, (0, 0), 3)
    responses += [blurred[::2, ::2], (cv2.GaussianBlur(grey, (0, 0), 1.5) - blurred)[::2, ::2]]
    stack = np.stack(responses, axis=-1)
    length = np.linalg.norm(stack, axis=-1, keepdims=True)
    return (stack * np.log1p(length / 0.03) / np.maximum(length, 1e-6)).astype(np.float32)
