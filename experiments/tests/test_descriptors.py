from __future__ import annotations

import builtins
import itertools
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("cv2", reason="needs OpenCV: greedymiser[experiments]")
pytest.importorskip("skimage", reason="needs scikit-image: greedymiser[experiments]")

import cv2

from experiments.scenes.descriptors import (
    Descriptors,
    catalogue,
    gist,
    histograms,
    learn_codebooks,
    libraries,
)
from experiments.scenes.descriptors.grids import cell_means
from experiments.scenes.descriptors.patches import dense_sift
from experiments.scenes.descriptors.views import SQUARE, gradients_of, oriented_maps
from experiments.scenes.descriptors.words import nearest, responses, spatial_pyramid


def encoded(image: np.ndarray) -> bytes:
    return cv2.imencode(".png", image)[1].tobytes()


def scene(height: int, width: int, seed: int = 0) -> bytes:
    """Something like a scene: smooth shapes, an edge and noise."""
    rng = np.random.default_rng(seed)
    image = cv2.GaussianBlur(rng.standard_normal((height, width)), (0, 0), 2) * 150 + 110
    image[height // 3 :] += 50
    image += rng.normal(0, 4, image.shape)
    return encoded(np.clip(image, 0, 255).astype(np.uint8))


SIZES = {"n_words": 10, "n_words_large": 16, "n_banks": 2}


@pytest.fixture(scope="module")
def unlearned():
    return catalogue(**SIZES)


@pytest.fixture(scope="module")
def codebooks(unlearned):
    files = [scene(90, 120, seed) for seed in range(3)]
    return learn_codebooks(unlearned, files, unlearned.names)


@pytest.fixture(scope="module")
def pieces(codebooks):
    return catalogue(**SIZES, codebooks=codebooks)


def described(pieces, file):
    values = pieces.compute(file, pieces.names)
    return {name: values[name] for name in pieces.names}


# The catalogue


def test_there_are_more_than_thirty_descriptors():
    assert len(catalogue().names) > 60
    assert set(catalogue().kinds.values()) == {"histogram", "vector"}


def test_pieces_come_after_their_needs(pieces):
    order = pieces.required(pieces.names)
    assert len(order) == len(set(order))
    for position, name in enumerate(order):
        assert set(pieces.sources[name].needs) <= {"file", *order[:position]}


def test_every_piece_serves_a_descriptor(pieces):
    assert set(pieces.required(pieces.names)) == {source.name for source in pieces.sources}


def test_what_two_descriptors_share_is_computed_once():
    calls = []

    def work(name, *values):
        calls.append(name)
        return np.ones(2)

    shared = Descriptors()
    for name, *needs in (["a", "file"], ["b", "a"], ["c", "a", "b"]):
        shared.add(name, needs, partial(work, name), kind="vector")
    values = shared.compute(b"", ["b", "c"])
    assert calls == ["a", "b", "c"]
    assert set(values) == {"a", "b", "c"}
    spent = shared.time(b"", ["c"])
    assert list(spent) == ["a", "b", "c"]
    assert min(spent.values()) >= 0


def test_unknown_names_are_told(pieces):
    with pytest.raises(ValueError, match="no source or intermediate named 'sift17'"):
        pieces.required(["sift17"])


def test_words_need_a_codebook(unlearned):
    with pytest.raises(ValueError, match="'sift16_words' needs a codebook"):
        unlearned.compute(scene(64, 64), ["sift16_level0"])


# All descriptors, on all kinds of images

SHAPES = [(240, 320), (320, 240), (256, 256), (9, 7), (1, 1), (40, 400), (400, 30), (700, 500)]


@pytest.mark.parametrize("shape", SHAPES)
def test_descriptors_have_one_shape_for_all_images(pieces, shape):
    usual = described(pieces, scene(90, 120))
    for name, value in described(pieces, scene(*shape)).items():
        assert value.ndim == 1
        assert value.shape == usual[name].shape, name
        assert value.dtype == np.float32, name
        assert np.isfinite(value).all(), name


@pytest.mark.parametrize("level", [0, 128, 255])
def test_a_constant_image_gives_numbers(pieces, level):
    image = encoded(np.full((60, 80), level, dtype=np.uint8))
    for name, value in described(pieces, image).items():
        assert np.isfinite(value).all(), name
        # A flat patch has a word too, but it must not be blown up to something large.
        assert np.abs(value).max() < 100, name


def test_histograms_are_shares(pieces):
    values = described(pieces, scene(120, 90))
    for name, value in values.items():
        if pieces.kinds[name] == "histogram":
            assert value.min() >= 0, name
            assert value.sum() == pytest.approx(1, abs=1e-4), name


def test_descriptors_are_deterministic(pieces):
    first, again = (described(pieces, scene(90, 120)) for _ in range(2))
    for name in first:
        assert np.array_equal(first[name], again[name]), name


def test_descriptors_tell_images_apart(pieces):
    first, other = (described(pieces, scene(90, 120, seed)) for seed in (0, 7))
    same = [name for name in first if np.allclose(first[name], other[name], atol=1e-6)]
    assert not same


def test_codebooks_are_deterministic_and_differ(unlearned, codebooks):
    files = [scene(90, 120, seed) for seed in range(3)]
    again = learn_codebooks(unlearned, files, unlearned.names)
    for name, words in codebooks.items():
        assert words.dtype == np.float32
        assert len(words) == unlearned.n_words[name]
        assert np.array_equal(words, again[name])
    assert not np.allclose(codebooks["templates0"], codebooks["templates1"])


def test_fewer_patches_than_words_are_enough(unlearned):
    flat = encoded(np.full((64, 64), 9, dtype=np.uint8))
    words = learn_codebooks(unlearned, [flat], ["sift16_level0"])
    assert len(words["sift16_words"]) == 1
    learned = catalogue(**SIZES, codebooks=words)
    value = learned.compute(scene(64, 64), ["sift16_level0"])["sift16_level0"]
    assert value.tolist() == [1.0] + [0.0] * 9


def test_a_file_that_is_no_image_is_an_error(pieces):
    with pytest.raises(ValueError, match="cannot decode an image file of 9 bytes"):
        pieces.compute(b"no image!", ["tiny8"])


# Single descriptors


def test_gradients_do_not_depend_on_where_memory_lies():
    rng = np.random.default_rng(0)
    kept = []  # what is kept pushes the next result to another address
    for width in range(100, 140):
        image = rng.integers(100, 140, (90, width), dtype=np.uint8)
        for size in range(16, 80, 16):
            kept += [bytearray(size), gradients_of(image)]
            assert np.array_equal(kept[-1], gradients_of(image))


def test_gradients_of_a_ramp_point_along_it():
    ramp = np.tile(np.arange(0, 250, dtype=np.uint8), (100, 1))
    right, down, length = gradients_of(ramp)[:, 20:-20, 20:-20]
    np.testing.assert_allclose(right, 2 / 255, atol=1e-5)
    np.testing.assert_allclose(down, 0, atol=1e-6)
    np.testing.assert_allclose(length, right, atol=1e-6)
    maps = oriented_maps(gradients_of(ramp))
    assert maps.mean(axis=(1, 2)).argmax() == 0


def test_sift_of_a_vertical_edge_points_across():
    image = np.zeros((64, 64), dtype=np.uint8)
    image[:, 32:] = 255
    maps = oriented_maps(gradients_of(image))
    patches = dense_sift(16, 8, maps)
    assert patches.shape == (7, 7, 128)
    # The patch in the middle spans the edge, those at the rim are flat.
    middle = patches[3, 3].reshape(4, 4, 8)
    assert middle.sum(axis=(0, 1)).argmax() == 0
    np.testing.assert_allclose(np.linalg.norm(patches[3, 3]), 1, atol=1e-5)
    assert np.abs(patches[3, 0]).max() == 0


def test_sift_does_not_care_for_contrast():
    image = cv2.imdecode(np.frombuffer(scene(64, 64), np.uint8), cv2.IMREAD_GRAYSCALE)
    bright, dim = (
        dense_sift(16, 8, oriented_maps(gradients_of(shade)))
        for shade in (image, (image // 2).astype(np.uint8))
    )
    assert np.sum(bright * dim, axis=-1).mean() > 0.95


def test_census_by_hand():
    image = np.array([[5, 1, 9], [5, 5, 5], [9, 9, 2]], dtype=np.uint8)
    # Neighbours row by row, the first is the lowest bit: not brighter are 5, 1, 5, 5 and 2.
    assert histograms.census(image).tolist() == [[0b10011011]]


@given(
    st.integers(0, 3), st.integers(1, 12), st.integers(8, 20), st.integers(8, 20), st.integers(0, 9)
)
def test_spatial_pyramid_counts_cell_by_cell(level, n_codes, height, width, seed):
    codes = np.random.default_rng(seed).integers(0, n_codes, (height, width)).astype(np.uint16)
    parts = []
    for depth in range(level, -1, -1):
        n = 2**depth
        weight = 0.5**level if depth == 0 else 0.5 ** (level - depth + 1)
        counts = np.zeros((n, n, n_codes))
        # A cell is four cells of the finest grid put together, however the pixels fall.
        for y, x in itertools.product(range(height), range(width)):
            fine_y, fine_x = y * 2**level // height, x * 2**level // width
            shift = level - depth
            counts[fine_y >> shift, fine_x >> shift, codes[y, x]] += 1
        parts.append(weight * counts.ravel() / codes.size)
    np.testing.assert_allclose(
        spatial_pyramid(level, n_codes, codes), np.concatenate(parts), atol=1e-6
    )


def test_cell_means_are_means():
    map_ = np.arange(35, dtype=np.float32).reshape(5, 7)
    wanted = [
        [map_[:2, :3].mean(), map_[:2, 3:].mean()],
        [map_[2:, :3].mean(), map_[2:, 3:].mean()],
    ]
    np.testing.assert_allclose(cell_means(map_, 2), wanted, rtol=1e-6)
    with pytest.raises(ValueError, match="side of 5 has no 6 cells"):
        cell_means(map_, 6)


def test_gabor_energy_is_largest_along_the_grating():
    x = np.arange(SQUARE)
    period = 1 / (0.3 / 1.85)  # the middle frequency of the second scale
    grating = np.tile(0.5 + 0.4 * np.sin(2 * np.pi * x / period), (len(x), 1)).astype(np.float32)
    spectrum = gist._contrast_spectrum(grating)
    energy = np.stack([gist._gabor_energy(i, spectrum).mean(axis=(1, 2)) for i in range(4)])
    assert np.unravel_index(energy.argmax(), energy.shape) == (1, 0)


def test_lines_find_a_line():
    edges = np.zeros((100, 100), dtype=np.uint8)
    edges[50, 10:90] = 255
    found = histograms._line_lengths(edges).reshape(3, 4, 12)
    assert found[1, 2, 0] == pytest.approx(1)
    assert histograms._line_lengths(np.zeros_like(edges)).sum() == 0


def test_templates_respond_to_themselves(pieces):
    windows = pieces.compute(scene(200, 256), ["windows"])["windows"]
    wanted = windows[3, 5]
    best = responses(windows, wanted[None])
    assert best[-1] == pytest.approx(1, abs=1e-4)  # the last cell is the whole image
    assert best.shape == (21,)


def test_the_nearest_word_is_the_nearest():
    rng = np.random.default_rng(0)
    patches, words = rng.random((3, 4, 5)), rng.random((6, 5))
    distances = ((patches[:, :, None] - words) ** 2).sum(axis=-1)
    assert np.array_equal(nearest(patches, words), distances.argmin(axis=-1))


# Without the libraries


@pytest.mark.parametrize(
    ("library", "helper", "name"),
    [("cv2", "opencv", "OpenCV"), ("skimage", "skimage_feature", "scikit-image")],
)
def test_a_missing_library_is_named(monkeypatch, library, helper, name):
    real = builtins.__import__

    def absent(module, *args, **kwargs):
        if module.split(".")[0] == library:
            raise ImportError(f"No module named {module!r}")
        return real(module, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ImportError, match=rf"{name}.*greedymiser\[experiments\]"):
        getattr(libraries, helper).__wrapped__()
