"""How a data set is told of, in the words of those who pay for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Wording:
    """The words for a data set: what its rows are, what is bought for them, and in which unit.

    The defaults suit any data.

    Examples
    --------
    >>> from greedymiser.datasets import load_thyroid
    >>> wording = load_thyroid().wording
    >>> wording.rows, wording.unit
    ('patients', 'dollars')
    >>> wording.list_purchases(["TSH", "age", "sex"])
    'TSH, 2 questions'
    """

    # For the names of files.
    name: str = "data"
    # For headlines.
    title: str = "Data"
    # One row, and many.
    row: str = "row"
    rows: str = "rows"
    # Name of the column to predict.
    target: str = "target"
    # What the costs are counted in; None if nobody knows.
    unit: str | None = None
    # What is bought, and how: tests are ordered.
    purchases: str = "features"
    bought: str = "bought"
    # The features that everybody knows by name.
    named: tuple[str, ...] = ()
    # One of the other features, which are many and alike; an s makes it many.
    other: str = "feature"
    # What a row may cost on average where each row pays for itself: an amount that shows how.
    budget: float | None = None

    def list_purchases(self, features: Iterable[object]) -> str:
        """Name what is known by name, and count the rest."""
        features = list(features)
        told = [str(name) for name in features if name in self.named]
        others = len(features) - len(told)
        if others:
            told.append(f"{others} {self.other}{'s' if others > 1 else ''}")
        return ", ".join(told) or "nothing"
