"""Views of the image, which most descriptors share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from experiments.scenes.descriptors.grids import Floats, resized
from experiments.scenes.descriptors.libraries import opencv
from experiments.scenes.descriptors.registry import Descriptors

# Images are scaled until their longer side has this many pixels, and the shorter side at least a
# quarter of it, so that every grid has cells on any image.
LONG_SIDE = 256
SHORT_SIDE = LONG_SIDE // 4

# A side of the square on which the descriptors of the whole layout (GIST, tiny images) work.
SQUARE = 128

ORIENTATIONS = 8


def add_views(to: Descriptors) -> None:
    """Add the steps that others stand on."""
    to.add("decode", ("file",), grey_levels)
    to.add("image", ("decode",), _scaled_down)
    to.add("half", ("image",), _halved)
    to.add("square", ("decode",), _as_square)
    to.add("gradients", ("image",), gradients_of)
    to.add("gradients_half", ("half",), gradients_of)
    to.add("oriented", ("gradients",), oriented_maps)
    to.add("oriented_half", ("gradients_half",), oriented_maps)


def grey_levels(file: bytes) -> NDArray[np.uint8]:
    """The grey levels of an image file."""
    cv2 = opencv()
    pixels = None
    if file:  # OpenCV has an error of its own for nothing at all
        pixels = cv2.imdecode(np.frombuffer(file, dtype=np.uint8), cv2.IMREAD_GRAYSCALE)
    if pixels is None:
        raise ValueError(f"cannot decode an image file of {len(file)} bytes")
    return pixels


def _scaled_down(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    scale = LONG_SIDE / max(pixels.shape)
    height, width = (max(SHORT_SIDE, round(side * scale)) for side in pixels.shape)
    return resized(pixels, height, width)


def _halved(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return resized(image, image.shape[0] // 2, image.shape[1] // 2)


def _as_square(pixels: NDArray[np.uint8]) -> Floats:
    return resized(pixels, SQUARE, SQUARE).astype(np.float32) / 255


def gradients_of(image: NDArray[np.uint8]) -> Floats:
    """Derivative to the right, derivative downwards, and length."""
    cv2 = opencv()
    smooth = cv2.GaussianBlur(image.astype(np.float32) / 255, (0, 0), 0.8)
    right = cv2.Sobel(smooth, cv2.CV_32F, 1, 0, ksize=1)
    down = cv2.Sobel(smooth, cv2.CV_32F, 0, 1, ksize=1)
    # Not cv2.magnitude: where IPP computes it, the last bit depends on where memory lies.
    return np.stack([right, down, np.sqrt(right * right + down * down)])


def oriented_maps(gradients: Floats) -> Floats:
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
