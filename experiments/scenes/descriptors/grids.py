"""Maps and grids of cells, which many descriptors share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.scenes.descriptors.libraries import opencv

Floats = NDArray[np.floating]


def resized(image: NDArray[Any], height: int, width: int) -> NDArray[Any]:
    """An image of another size: averaged where it shrinks, interpolated where it grows."""
    cv2 = opencv()
    shrinks = height < image.shape[0] and width < image.shape[1]
    how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return cv2.resize(image, (width, height), interpolation=how)


def cell_means(map_: Floats, n_cells: int) -> Floats:
    """Means in n_cells x n_cells cells that cover a map."""
    rows, columns = (borders(side, n_cells)[:-1] for side in map_.shape)
    sums = np.add.reduceat(np.add.reduceat(map_, rows, axis=0), columns, axis=1)
    heights, widths = (np.diff(borders(side, n_cells)) for side in map_.shape)
    return sums / np.outer(heights, widths).astype(np.float32)


def borders(side: int, n_cells: int) -> NDArray[np.intp]:
    """Where the cells of a side begin, and where the last one ends."""
    if side < n_cells:
        raise ValueError(f"a map with a side of {side} has no {n_cells} cells")
    return np.arange(n_cells + 1) * side // n_cells


def shares(counts: NDArray[Any]) -> Floats:
    """Counts as shares of their sum; nothing counted gives zeros."""
    return (counts / max(float(counts.sum()), 1e-12)).astype(np.float32)
