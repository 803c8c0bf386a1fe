"""The libraries that do the work; both come with the extra ``experiments``."""

from __future__ import annotations

from functools import cache
from typing import Any


def one_thread() -> None:
    """Keep OpenCV to the calling thread: CPU time is counted there, and work is spread by image."""
    opencv().setNumThreads(1)


@cache
def opencv() -> Any:
    """OpenCV; raises if it is not installed."""
    try:
        import cv2
    except ImportError as error:
        raise ImportError(
            "the descriptors need OpenCV; the extra greedymiser[experiments] brings it"
        ) from error
    return cv2


@cache
def skimage_feature() -> Any:
    """The features of scikit-image; raises if it is not installed."""
    try:
        import skimage.feature
    except ImportError as error:
        raise ImportError(
            "the descriptors need scikit-image; the extra greedymiser[experiments] brings it"
        ) from error
    return skimage.feature
