"""Which values of a source go where in a row of X."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from greedymiser.data.tables import Categories
from greedymiser.on_demand.sources import Source, Values


class Filling(NamedTuple):
    """Where the values of a source go in a row of X."""

    source: str
    # Positions among the source's columns, and the features that they are.
    taken: NDArray[np.intp]
    features: NDArray[np.intp]
    # Codes of labels, by feature; None where a feature is a number.
    codes: tuple[dict[Any, float] | None, ...]

    @classmethod
    def of(cls, source: Source, names: Mapping[int, str], categories: Categories) -> Filling:
        """For the features that a model looks at, by the names of their columns."""
        position = {column: i for i, column in enumerate(source.columns)}
        features = [feature for feature, name in names.items() if name in position]
        known = [categories.get(feature) for feature in features]
        taken = [position[names[feature]] for feature in features]
        return cls(
            source.name,
            np.array(taken, dtype=np.intp),
            np.array(features, dtype=np.intp),
            tuple(None if labels is None else _codes(labels) for labels in known),
        )

    def fill(self, row: NDArray[np.float64], values: Values) -> None:
        """Put a source's values into a row."""
        if isinstance(values, np.ndarray):
            row[self.features] = values[self.taken]
            return
        for i, feature, codes in zip(self.taken, self.features, self.codes, strict=True):
            value = values[i]
            # An unknown label is missing, as in a matrix.
            row[feature] = value if codes is None else codes.get(value, math.nan)


def _codes(labels: NDArray[Any]) -> dict[Any, float]:
    return {label: float(i) for i, label in enumerate(labels.tolist())}
