"""Words of local features: codebooks, bags and spatial pyramids, templates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.scenes.descriptors.grids import Floats, borders
from experiments.scenes.descriptors.registry import Descriptors

# Local features with the levels of the pyramids in which their words are counted.
BAGS = {
    "hog8": (0, 1, 2),
    "similarity": (0, 2),
    "daisy": (0, 1, 2),
    "textons": (0, 1, 2),
    "sift16": (0, 1, 2),
    "sift24": (0, 2),
    "sift32": (0, 1, 2),
    "sift16_half": (0, 2),
    "similarity_full": (0, 2),
    "daisy_full": (0, 2),
}
LARGE_BAGS = {"sift16_dense": (0, 2)}

# Templates of a bank.
TEMPLATES = 24


def add_bags(to: Descriptors, n_words: int, n_words_large: int) -> None:
    """Add words of local features, and their histograms."""
    for bags, size in ((BAGS, n_words), (LARGE_BAGS, n_words_large)):
        for source, levels in bags.items():
            words = f"{source}_words"
            to.add(words, (source,), nearest, n_words=size)
            for level in levels:
                add_pyramid(to, source, words, level, size)


def add_pyramid(to: Descriptors, name: str, codes: str, level: int, n_codes: int) -> None:
    """Add histograms of codes up to a level of a spatial pyramid."""
    compute = partial(spatial_pyramid, level, n_codes)
    to.add(f"{name}_level{level}", (codes,), compute, kind="histogram")


def add_templates(to: Descriptors, n_banks: int) -> None:
    """Add banks of templates, each a descriptor of its own, as the detectors of Object Bank are."""
    for i in range(n_banks):
        to.add(f"templates{i}", ("windows",), responses, kind="vector", n_words=TEMPLATES)


def learn_codebooks(
    pieces: Descriptors, files: Sequence[bytes], names: Iterable[str], seed: int = 0,
    patches_per_image: int = 200,
) -> dict[str, Floats]:  # fmt: skip
    """Words of all codebooks that these descriptors need: k-means of patches, no labels used."""
    booked = [source for source in pieces.sources.upstream(names) if source.name in pieces.n_words]
    locals_ = sorted({source.needs[0] for source in booked})
    rng = np.random.default_rng(seed)
    samples: dict[str, list[Floats]] = {name: [] for name in locals_}
    for file in files:
        values = pieces.compute(file, locals_)
        for name in locals_:
            patches = values[name].reshape(-1, values[name].shape[-1])
            chosen = rng.permutation(len(patches))[:patches_per_image]
            samples[name].append(patches[chosen])
    # Seeds differ, so that codebooks of the same patches do.
    return {
        source.name: _centres(
            np.concatenate(samples[source.needs[0]]), pieces.n_words[source.name], seed + i
        )
        for i, source in enumerate(booked)
    }


def _centres(patches: Floats, n_words: int, seed: int) -> Floats:
    from sklearn.cluster import MiniBatchKMeans

    n = min(n_words, len(np.unique(patches, axis=0)))
    means = MiniBatchKMeans(n, random_state=seed, n_init=1, batch_size=4096, max_iter=30)
    centres = means.fit(patches).cluster_centers_
    return np.ascontiguousarray(centres, dtype=np.float32)


def nearest(patches: Floats, words: Floats) -> NDArray[np.uint16]:
    """The closest word of each patch, on the grid of the patches."""
    flat = patches.reshape(-1, patches.shape[-1])
    closeness = flat @ words.T - 0.5 * np.einsum("ij,ij->i", words, words)
    return closeness.argmax(axis=1).astype(np.uint16).reshape(patches.shape[:2])


def spatial_pyramid(level: int, n_codes: int, codes: NDArray[Any]) -> Floats:
    """Histograms of codes over grids of 1, 4, ... 4^level cells (Lazebnik et al. 2006).

    The finest level weighs a half, the one before a quarter, and so on; the coarsest weighs as
    much as the one above it. All weights add up to 1.
    """
    finest = 2**level
    rows = np.arange(codes.shape[0]) * finest // codes.shape[0]
    columns = np.arange(codes.shape[1]) * finest // codes.shape[1]
    cell = rows[:, None] * finest + columns[None, :]
    keys = cell * n_codes + codes.astype(np.intp)
    counts = np.bincount(keys.ravel(), minlength=finest**2 * n_codes) / codes.size
    counts = counts.reshape(finest, finest, n_codes)
    parts = []
    for depth in range(level, -1, -1):
        parts.append((0.5 ** (level - max(depth, 1) + 1) if level else 1.0) * counts.ravel())
        if depth:
            side = 2 ** (depth - 1)
            counts = counts.reshape(side, 2, side, 2, n_codes).sum(axis=(1, 3))
    return np.concatenate(parts).astype(np.float32)


def responses(windows: Floats, words: Floats) -> Floats:
    """The best match of each template in the whole image, in its quarters and its sixteenths."""
    matches = windows @ words.T
    parts = []
    for n_cells in (4, 2, 1):
        rows, columns = (borders(max(side, n_cells), n_cells)[:-1] for side in matches.shape[:2])
        rows, columns = (
            np.minimum(rows, len(matches) - 1),
            np.minimum(columns, matches.shape[1] - 1),
        )
        best = np.maximum.reduceat(np.maximum.reduceat(matches, rows, axis=0), columns, axis=1)
        parts.append(best.ravel())
    return np.concatenate(parts)
