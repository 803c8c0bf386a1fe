"""What can be seen in an image, and what it takes to see it.

A *piece* is one step of work on one image: decode it, take its gradients, sort its SIFT patches
into words, count the words. Pieces are built from other pieces, so that each is computed, timed and
charged once, however many descriptors stand on it: a spatial pyramid of SIFT words costs only its
histogram, once the words are known. A *descriptor* is a piece whose value is a vector that
images can be compared by.

scikit-image and OpenCV do the work; both come with the extra ``experiments``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Values = Mapping[str, Any]

# Images are scaled until their longer side has this many pixels, and the shorter side at least a
# quarter of it, so that every grid below has cells on any image.
LONG_SIDE = 256
SHORT_SIDE = LONG_SIDE // 4

# A side of the square on which the descriptors of the whole layout (GIST, tiny images) work.
SQUARE = 128

# Patches of less contrast than this are flat: scaling their noise up would tell nothing.
FLAT = 0.05

ORIENTATIONS = 8


@dataclass(frozen=True)
class Piece:
    """One step of work on one image."""

    name: str
    # Pieces whose values ``compute`` takes, in this order.
    needs: tuple[str, ...]
    compute: Callable[..., Any]
    # Words to learn from the local features of the only need; 0 if it takes no codebook. The
    # codebook is then the last argument of ``compute``.
    n_words: int = 0
    # How images are compared by it: "histogram" or "vector"; "" if it is no descriptor.
    kind: str = ""


class Catalogue:
    """All pieces, in an order in which each comes after those that it needs.

    Parameters
    ----------
    pieces : iterable of Piece

    Examples
    --------
    >>> pieces = catalogue()
    >>> pieces.required(["sift16_level2"])
    ['decode', 'image', 'gradients', 'oriented', 'sift16', 'sift16_words', 'sift16_level2']
    """

    def __init__(self, pieces: Iterable[Piece]):
        self.pieces: dict[str, Piece] = {}
        for piece in pieces:
            missing = [name for name in piece.needs if name not in (*self.pieces, "file")]
            if missing:
                raise ValueError(f"piece {piece.name!r} needs {missing[0]!r}, which is not there")
            self.pieces[piece.name] = piece

    @property
    def descriptors(self) -> list[str]:
        """Names of all descriptors."""
        return [name for name, piece in self.pieces.items() if piece.kind]

    def required(self, names: Iterable[str]) -> list[str]:
        """These pieces and all that they stand on, each once, in an order to compute them in."""
        wanted: set[str] = set()
        open_names = list(names)
        while open_names:
            name = open_names.pop()
            if name not in self.pieces:
                raise ValueError(f"descriptor {name!r} is unknown; there are {self.descriptors}")
            if name not in wanted:
                wanted.add(name)
                open_names += [need for need in self.pieces[name].needs if need != "file"]
        return [name for name in self.pieces if name in wanted]

    def compute(
        self, file: bytes, names: Iterable[str], codebooks: Mapping[str, Floats]
    ) -> dict[str, Any]:
        """Values of these pieces and all that they stand on, for one image file."""
        values: dict[str, Any] = {"file": file}
        for name in self.required(names):
            values[name] = self._compute_one(self.pieces[name], values, codebooks)
        return values

    def time(
        self, file: bytes, names: Iterable[str], codebooks: Mapping[str, Floats]
    ) -> dict[str, float]:
        """Milliseconds of CPU that each piece takes by itself, its needs being there already."""
        values: dict[str, Any] = {"file": file}
        spent = {}
        for name in self.required(names):
            start = time.thread_time()
            values[name] = self._compute_one(self.pieces[name], values, codebooks)
            spent[name] = 1e3 * (time.thread_time() - start)
        return spent

    def _compute_one(self, piece: Piece, values: Values, codebooks: Mapping[str, Floats]) -> Any:
        arguments = [values[need] for need in piece.needs]
        if piece.n_words:
            arguments.append(codebooks[piece.name])
        return piece.compute(*arguments)


def catalogue(n_words: int = 200, n_words_large: int = 800, n_banks: int = 8) -> Catalogue:
    """All pieces of work, with codebooks of these sizes and so many banks of templates."""
    return Catalogue(
        [
            *_views(),
            *_layouts(),
            *_histograms(),
            *_edges(),
            *_gabor(),
            *_patterns(),
            *_bags("hog8", (0, 1, 2), n_words),
            *_bags("similarity", (0, 2), n_words),
            *_bags("daisy", (0, 1, 2), n_words),
            *_bags("textons", (0, 1, 2), n_words),
            *_bags("sift16", (0, 1, 2), n_words),
            *_bags("sift24", (0, 2), n_words),
            *_bags("sift32", (0, 1, 2), n_words),
            *_bags("sift16_half", (0, 2), n_words),
            *_bags("similarity_full", (0, 2), n_words),
            *_bags("daisy_full", (0, 2), n_words),
            *_bags("sift16_dense", (0, 2), n_words_large),
            *_templates(n_banks),
        ]
    )


def learn_codebooks(
    pieces: Catalogue, files: Sequence[bytes], names: Iterable[str], seed: int = 0,
    patches_per_image: int = 200,
) -> dict[str, Floats]:  # fmt: skip
    """Words of all codebooks that these descriptors need: k-means of patches, no labels used."""
    wanted = [pieces.pieces[name] for name in pieces.required(names)]
    booked = [piece for piece in wanted if piece.n_words]
    locals_ = sorted({piece.needs[0] for piece in booked})
    rng = np.random.default_rng(seed)
    samples: dict[str, list[Floats]] = {name: [] for name in locals_}
    for file in files:
        values = pieces.compute(file, locals_, {})
        for name in locals_:
            patches = values[name].reshape(-1, values[name].shape[-1])
            chosen = rng.permutation(len(patches))[:patches_per_image]
            samples[name].append(patches[chosen])
    # Seeds differ, so that codebooks of the same patches do.
    return {
        piece.name: _centres(np.concatenate(samples[piece.needs[0]]), piece.n_words, seed + i)
        for i, piece in enumerate(booked)
    }


def _centres(patches: Floats, n_words: int, seed: int) -> Floats:
    from sklearn.cluster import MiniBatchKMeans

    n = min(n_words, len(np.unique(patches, axis=0)))
    means = MiniBatchKMeans(n, random_state=seed, n_init=1, batch_size=4096, max_iter=30)
    centres = means.fit(patches).cluster_centers_
    return np.ascontiguousarray(centres, dtype=np.float32)


def one_thread() -> None:
    """Keep OpenCV to the calling thread: CPU time is counted there, and work is spread by image."""
    _cv2().setNumThreads(1)


@cache
def _cv2() -> Any:
    try:
        import cv2
    except ImportError as error:
        raise ImportError(
            "the descriptors need OpenCV; the extra greedymiser[experiments] brings it"
        ) from error
    return cv2


@cache
def _skimage_feature() -> Any:
    try:
        import skimage.feature
    except ImportError as error:
        raise ImportError(
            "the descriptors need scikit-image; the extra greedymiser[experiments] brings it"
        ) from error
    return skimage.feature


# -- views of the image, which most descriptors share ------------------------------------------


def _views() -> list[Piece]:
    return [
        Piece("decode", ("file",), decode),
        Piece("image", ("decode",), _scaled),
        Piece("half", ("image",), _halved),
        Piece("square", ("decode",), _squared),
        Piece("gradients", ("image",), _gradients),
        Piece("gradients_half", ("half",), _gradients),
        Piece("oriented", ("gradients",), _oriented),
        Piece("oriented_half", ("gradients_half",), _oriented),
        Piece("edges", ("image",), _canny),
        Piece("contrast", ("square",), _contrast_spectrum),
        *[Piece(f"gabor{i}", ("contrast",), partial(_gabor_energy, i)) for i in range(4)],
        Piece("census", ("image",), _census),
        Piece("census_half", ("half",), _census),
        Piece("lbp1", ("image",), partial(_lbp, 1, 8, "nri_uniform")),
        Piece("lbp2", ("image",), partial(_lbp, 2, 16, "uniform")),
        Piece("lbp3", ("image",), partial(_lbp, 3, 24, "uniform")),
        Piece("hog8", ("image",), _hog_blocks),
        Piece("similarity", ("half",), _self_similarity),
        Piece("similarity_full", ("image",), _self_similarity),
        Piece("daisy", ("half",), _daisy),
        Piece("daisy_full", ("image",), _daisy),
        Piece("textons", ("image",), _filter_bank),
        Piece("sift16", ("oriented",), partial(_dense_sift, 16, 6)),
        Piece("sift16_dense", ("oriented",), partial(_dense_sift, 16, 3)),
        Piece("sift24", ("oriented",), partial(_dense_sift, 24, 8)),
        Piece("sift32", ("oriented",), partial(_dense_sift, 32, 8)),
        Piece("sift16_half", ("oriented_half",), partial(_dense_sift, 16, 4)),
        Piece("windows", ("hog8",), _windows),
    ]


def decode(file: bytes) -> NDArray[np.uint8]:
    """The grey levels of an image file."""
    cv2 = _cv2()
    pixels = None
    if file:  # OpenCV has an error of its own for nothing at all
        pixels = cv2.imdecode(np.frombuffer(file, dtype=np.uint8), cv2.IMREAD_GRAYSCALE)
    if pixels is None:
        raise ValueError(f"cannot decode an image file of {len(file)} bytes")
    return pixels


def _scaled(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    scale = LONG_SIDE / max(pixels.shape)
    height, width = (max(SHORT_SIDE, round(side * scale)) for side in pixels.shape)
    return _resized(pixels, height, width)


def _halved(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return _resized(image, image.shape[0] // 2, image.shape[1] // 2)


def _squared(pixels: NDArray[np.uint8]) -> Floats:
    return _resized(pixels, SQUARE, SQUARE).astype(np.float32) / 255


def _resized(image: NDArray[Any], height: int, width: int) -> NDArray[Any]:
    cv2 = _cv2()
    shrinks = height < image.shape[0] and width < image.shape[1]
    how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return cv2.resize(image, (width, height), interpolation=how)


def _gradients(image: NDArray[np.uint8]) -> Floats:
    """Derivative to the right, derivative downwards, and length."""
    cv2 = _cv2()
    smooth = cv2.GaussianBlur(image.astype(np.float32) / 255, (0, 0), 0.8)
    right = cv2.Sobel(smooth, cv2.CV_32F, 1, 0, ksize=1)
    down = cv2.Sobel(smooth, cv2.CV_32F, 0, 1, ksize=1)
    # Not cv2.magnitude: where IPP computes it, the last bit depends on where memory lies.
    return np.stack([right, down, np.sqrt(right * right + down * down)])


def _oriented(gradients: Floats) -> Floats:
    """One map per direction: how much of the gradient points that way."""
    right, down, length = gradients
    inverse = 1 / np.maximum(length, 1e-6)
    maps = np.empty((ORIENTATIONS, *length.shape), dtype=np.float32)
    for k, angle in enumerate(2 * np.pi * np.arange(ORIENTATIONS) / ORIENTATIONS):
        cosine = (np.float32(np.cos(angle)) * right + np.float32(np.sin(angle)) * down) * inverse
        np.maximum(cosine, 0, out=cosine)
        # The ninth power of the cosine: a smooth bump about one direction wide.
        square = cosine * cosine
        fourth = square * square
        maps[k] = fourth * fourth * cosine * length
    return maps


# -- the layout of the whole image --------------------------------------------------------------


def _layouts() -> list[Piece]:
    return [
        Piece("tiny8", ("square",), partial(_tiny, 8), kind="vector"),
        Piece("tiny16", ("square",), partial(_tiny, 16), kind="vector"),
        Piece("tiny32", ("square",), partial(_tiny, 32), kind="vector"),
        Piece("cosine16", ("square",), _cosine_transform, kind="vector"),
        Piece("spectrum", ("square",), _spectrum, kind="vector"),
        Piece("local_spectrum", ("square",), _local_spectrum, kind="vector"),
        Piece("laplacian", ("square",), _laplacian_statistics, kind="vector"),
        Piece("corners", ("image",), _corners, kind="vector"),
    ]


def _tiny(side: int, square: Floats) -> Floats:
    small = _resized(square, side, side)
    small = small - small.mean()
    return (small / max(float(np.linalg.norm(small)), 1e-3)).ravel()


def _cosine_transform(square: Floats) -> Floats:
    """Low frequencies of the cosine transform, without the brightness."""
    return _cv2().dct(square)[:16, :16].ravel()[1:].copy()


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
    cv2 = _cv2()
    levels = []
    image = square
    for _ in range(5):
        smaller = cv2.pyrDown(image)
        detail = image - cv2.pyrUp(smaller, dstsize=image.shape[::-1])
        levels.append(np.log(cell_means(np.abs(detail), 4) + 1e-4).ravel())
        image = smaller
    return np.concatenate(levels).astype(np.float32)


def _corners(image: NDArray[np.uint8]) -> Floats:
    strength = _cv2().cornerMinEigenVal(image, 3)
    return np.log(cell_means(strength, 4).ravel() + 1e-6).astype(np.float32)


def cell_means(map_: Floats, n_cells: int) -> Floats:
    """Means in n_cells x n_cells cells that cover a map."""
    rows, columns = (_borders(side, n_cells)[:-1] for side in map_.shape)
    sums = np.add.reduceat(np.add.reduceat(map_, rows, axis=0), columns, axis=1)
    heights, widths = (np.diff(_borders(side, n_cells)) for side in map_.shape)
    return sums / np.outer(heights, widths).astype(np.float32)


def _borders(side: int, n_cells: int) -> NDArray[np.intp]:
    if side < n_cells:
        raise ValueError(f"a map with a side of {side} has no {n_cells} cells")
    return np.arange(n_cells + 1) * side // n_cells


# -- histograms of intensities and gradients ----------------------------------------------------


def _histograms() -> list[Piece]:
    orientations = partial(_orientation_pyramid, (1, 2, 4))
    fine = partial(_orientation_pyramid, (1, 2, 4, 8))
    return [
        Piece("intensity", ("decode",), _intensity, kind="histogram"),
        Piece("intensity_grid", ("square",), _intensity_grid, kind="vector"),
        Piece("orientation", ("oriented",), partial(_orientation_pyramid, (1,)), kind="histogram"),
        Piece("orientation_pyramid", ("oriented",), orientations, kind="histogram"),
        Piece("orientation_fine", ("oriented",), fine, kind="histogram"),
        Piece("gradient_length", ("gradients",), _gradient_lengths, kind="histogram"),
        Piece("cooccurrence", ("half",), _cooccurrence, kind="vector"),
        Piece("hog_grid4", ("square",), partial(_spatial_hog, 32), kind="vector"),
        Piece("hog_grid8", ("square",), partial(_spatial_hog, 16), kind="vector"),
    ]


def _intensity(pixels: NDArray[np.uint8]) -> Floats:
    return _shares(np.bincount(pixels.ravel() >> 2, minlength=64))


def _intensity_grid(square: Floats) -> Floats:
    means = cell_means(square, 8)
    squares = cell_means(square * square, 8)
    spread = np.sqrt(np.maximum(squares - means**2, 0))
    return np.concatenate([means.ravel(), spread.ravel()]).astype(np.float32)


def _orientation_pyramid(levels: Sequence[int], maps: Floats) -> Floats:
    """Histograms of gradient directions over grids of several sizes, each weighing the same."""
    parts = [np.stack([cell_means(map_, n) for map_ in maps]) / n**2 for n in levels]
    return np.concatenate([_shares(part.ravel()) / len(levels) for part in parts])


def _gradient_lengths(gradients: Floats) -> Floats:
    length = gradients[2]
    bins = np.clip((8 * np.log2(length * 256 + 1)).astype(np.intp), 0, 63)
    height = length.shape[0] // 3
    thirds = [bins[:height], bins[height : 2 * height], bins[2 * height :]]
    counts = [np.bincount(third.ravel(), minlength=64) for third in thirds]
    return _shares(np.concatenate(counts))


def _cooccurrence(half: NDArray[np.uint8]) -> Floats:
    """Haralick's statistics of grey levels side by side."""
    feature = _skimage_feature()
    angles = np.arange(4) * np.pi / 4
    matrix = feature.graycomatrix(half >> 4, [1, 2, 4], angles, 16, symmetric=True, normed=True)
    names = ("contrast", "dissimilarity", "homogeneity", "ASM", "energy", "correlation")
    return np.concatenate([feature.graycoprops(matrix, name).ravel() for name in names]).astype(
        np.float32
    )


def _spatial_hog(cell: int, square: Floats) -> Floats:
    hog = _skimage_feature().hog(
        square, orientations=9, pixels_per_cell=(cell, cell), cells_per_block=(2, 2)
    )
    return hog.astype(np.float32)


def _shares(counts: NDArray[Any]) -> Floats:
    """Counts as shares of their sum; nothing counted gives zeros."""
    return (counts / max(float(counts.sum()), 1e-12)).astype(np.float32)


# -- edges and lines ----------------------------------------------------------------------------


def _edges() -> list[Piece]:
    return [
        Piece("edge_density", ("edges",), _edge_density, kind="vector"),
        Piece("edge_directions", ("edges", "gradients"), _edge_directions, kind="histogram"),
        Piece("lines", ("edges",), _lines, kind="histogram"),
    ]


def _canny(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return _cv2().Canny(image, 60, 160)


def _edge_density(edges: NDArray[np.uint8]) -> Floats:
    return np.sqrt(cell_means(edges.astype(np.float32) / 255, 8)).ravel()


def _edge_directions(edges: NDArray[np.uint8], gradients: Floats) -> Floats:
    """Directions of the edges, without sign, in 4 x 4 cells."""
    rows, columns = np.nonzero(edges)
    angle = np.arctan2(gradients[1][rows, columns], gradients[0][rows, columns])
    direction = np.minimum((np.mod(angle, np.pi) / np.pi * 12).astype(np.intp), 11)
    cell = (rows * 4 // edges.shape[0]) * 4 + columns * 4 // edges.shape[1]
    return _shares(np.bincount(cell * 12 + direction, minlength=16 * 12))


def _lines(edges: NDArray[np.uint8]) -> Floats:
    """Total length of straight lines by direction, length and height in the image."""
    found = _cv2().HoughLinesP(edges, 1, np.pi / 90, 25, minLineLength=15, maxLineGap=2)
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
    return _shares(totals.ravel())


# -- Gabor energies: the GIST of a scene ----------------------------------------------------------


def _gabor() -> list[Piece]:
    every = tuple(f"gabor{i}" for i in range(4))
    return [
        Piece("gist_global", every, partial(_gist, 1), kind="vector"),
        Piece("gist_grid2", every, partial(_gist, 2), kind="vector"),
        Piece("gist_grid4", every, partial(_gist, 4), kind="vector"),
        Piece("gist_grid8", every, partial(_gist, 8), kind="vector"),
        Piece("gist_coarse", ("gabor3",), partial(_gist, 4), kind="vector"),
        Piece("gist_fine", ("gabor0",), partial(_gist, 4), kind="vector"),
    ]


MARGIN = 16


def _contrast_spectrum(square: Floats) -> NDArray[np.complex64]:
    """Spectrum of the image with its local contrast made even (Oliva and Torralba's prefilter)."""
    import scipy.fft

    cv2 = _cv2()
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


# -- census and local binary patterns -------------------------------------------------------------


def _patterns() -> list[Piece]:
    counted = {
        "census": (256, (0, 1, 2)),
        "census_half": (256, (0, 2)),
        "lbp1": (59, (0, 2)),
        "lbp2": (18, (0, 2)),
        "lbp3": (26, (0, 2)),
    }
    return [
        _pyramid_piece(source, source, level, n_codes)
        for source, (n_codes, levels) in counted.items()
        for level in levels
    ]


def _census(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
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
    codes = _skimage_feature().local_binary_pattern(image, points, radius, method)
    return codes.astype(np.uint8)


# -- bags of words and spatial pyramids -----------------------------------------------------------


def _bags(source: str, levels: Sequence[int], n_words: int) -> list[Piece]:
    """Words of local features, and their histograms up to some levels of a spatial pyramid."""
    words = Piece(f"{source}_words", (source,), _nearest, n_words=n_words)
    return [words, *[_pyramid_piece(source, words.name, level, n_words) for level in levels]]


def _pyramid_piece(name: str, codes: str, level: int, n_codes: int) -> Piece:
    compute = partial(spatial_pyramid, level, n_codes)
    return Piece(f"{name}_level{level}", (codes,), compute, kind="histogram")


def _nearest(patches: Floats, centres: Floats) -> NDArray[np.uint16]:
    """The closest word of each patch, on the grid of the patches."""
    flat = patches.reshape(-1, patches.shape[-1])
    closeness = flat @ centres.T - 0.5 * np.einsum("ij,ij->i", centres, centres)
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


def _normalised(patches: Floats) -> Floats:
    """Patches of unit length, but flat ones shorter; no entry above 0.2 (Lowe 2004)."""
    length = np.linalg.norm(patches, axis=-1, keepdims=True)
    patches = patches / np.maximum(length, FLAT)
    np.minimum(patches, 0.2, out=patches)
    length = np.linalg.norm(patches, axis=-1, keepdims=True)
    return patches / np.maximum(length, 0.5)


def _dense_sift(patch: int, step: int, maps: Floats) -> Floats:
    """SIFT of square patches on a grid: 4 x 4 cells of 8 directions each, shape (y, x, 128)."""
    cv2 = _cv2()
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


def _hog_blocks(image: NDArray[np.uint8]) -> Floats:
    """HOG of 2 x 2 cells of 8 x 8 pixels, one block per cell, shape (y, x, 36)."""
    blocks = _skimage_feature().hog(
        image, orientations=9, pixels_per_cell=(8, 8), cells_per_block=(2, 2), feature_vector=False
    )
    return blocks.reshape(*blocks.shape[:2], -1).astype(np.float32)


def _daisy(half: NDArray[np.uint8]) -> Floats:
    feature = _skimage_feature()
    return feature.daisy(half, step=4, radius=12, rings=2, histograms=6, orientations=8).astype(
        np.float32
    )


# -- templates: what is found where, after Object Bank --------------------------------------------

TEMPLATES = 24
WINDOW = 6


def _templates(n_banks: int) -> list[Piece]:
    """Banks of templates, each a descriptor of its own, as the detectors of Object Bank are."""
    return [
        Piece(f"templates{i}", ("windows",), _responses, n_words=TEMPLATES, kind="vector")
        for i in range(n_banks)
    ]


def _windows(blocks: Floats) -> Floats:
    """Every window of HOG blocks, about 48 pixels wide, with zero mean and unit length."""
    # Each cell is in four blocks; every second block holds all of a window's cells.
    views = np.lib.stride_tricks.sliding_window_view(blocks, (WINDOW, WINDOW), axis=(0, 1))
    flat = views[..., ::2, ::2].reshape(*views.shape[:2], -1)
    flat = flat - flat.mean(axis=-1, keepdims=True)
    return flat / np.maximum(np.linalg.norm(flat, axis=-1, keepdims=True), FLAT)


def _responses(windows: Floats, templates: Floats) -> Floats:
    """The best match of each template in the whole image, in its quarters and its sixteenths."""
    matches = windows @ templates.T
    parts = []
    for n_cells in (4, 2, 1):
        rows, columns = (_borders(max(side, n_cells), n_cells)[:-1] for side in matches.shape[:2])
        rows, columns = (
            np.minimum(rows, len(matches) - 1),
            np.minimum(columns, matches.shape[1] - 1),
        )
        best = np.maximum.reduceat(np.maximum.reduceat(matches, rows, axis=0), columns, axis=1)
        parts.append(best.ravel())
    return np.concatenate(parts)


# -- local features -----------------------------------------------------------------------------

REACH = 12


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


def _self_similarity(half: NDArray[np.uint8]) -> Floats:
    """How alike a patch is to those around it, in a log-polar grid (Shechtman and Irani 2007)."""
    cv2 = _cv2()
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


def _filter_bank(image: NDArray[np.uint8]) -> Floats:
    """Responses at every second pixel: the strongest direction of each filter, and two round ones.

    Responses are scaled by Weber's law, as Varma and Zisserman (2005) do.
    """
    cv2 = _cv2()
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
