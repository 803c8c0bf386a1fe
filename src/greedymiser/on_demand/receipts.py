"""What predictions from raw objects took."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from greedymiser._core.text_tables import aligned, html_table
from greedymiser.on_demand.measuring import pretty_seconds
from greedymiser.on_demand.sources import AcquisitionError


@dataclass(frozen=True)
class Question:
    """Something that the path of an object asked for.

    Examples
    --------
    >>> print(Question("TSH", "laboratory", 4.25, since=("age > 60",)))
    TSH: 4.25
    """

    # The column that was asked for, and the source that makes it.
    feature: str
    source: str
    # What it was: a number or a label; None where it is missing.
    answer: Any
    # The splits on the way to the question; none where everyone is asked.
    since: tuple[str, ...]
    # What it added to the cost: the price of resources that no question before it had needed.
    cost: float = 0.0

    def __str__(self) -> str:
        answer = f"{self.answer:.6g}" if isinstance(self.answer, float) else self.answer
        said = "missing" if self.answer is None else answer
        return f"{self.feature}: {said}"


@dataclass(frozen=True)
class ObjectReceipt:
    """What the prediction for one object took.

    The cost is the price of the object's path through the model, so that the sum over objects is
    that of ``prediction_costs``. It includes resources of sources that failed, and of those in
    ``not_called``, for which nobody will have to be paid.

    Examples
    --------
    >>> receipt = ObjectReceipt(
    ...     0, 1.5, {"report": 1.5}, 10, 0.0, {"report": 0.02}, {}, (), (), "after all 10 trees")
    >>> receipt.fetched, receipt.total_seconds
    (('report',), 0.02)
    """

    # Position of the object among those that were given.
    index: int
    # What it cost by the model's prices: the resources and the trees below.
    cost: float
    # Prices of the resources of the cost model that are on its path.
    resources: dict[str, float]
    # Trees that the object met, and what they cost together.
    n_trees: int
    tree_cost: float
    # Measured wall time of every source and intermediate that was called, in order.
    seconds: dict[str, float]
    # What failed, and the columns that the model therefore took as missing.
    failures: dict[str, AcquisitionError]
    missing: tuple[str, ...]
    # Sources and intermediates on its path that were never called: something that they need
    # failed, or too many earlier calls still hang.
    not_called: tuple[str, ...]
    # Why there were no more trees.
    stopped: str
    # For charge="row": all columns that were asked for, in order. Each question follows from the
    # answers before it.
    questions: tuple[Question, ...] = ()
    # What was in a cache (it is in the cost as if it had been called), and what was fetched ahead
    # and not needed (it is not).
    cached: tuple[str, ...] = ()
    in_vain: tuple[str, ...] = ()
    # Which of the fallbacks answered, from 0, and why; None where the model itself did.
    fallback: int | None = None
    why_fallback: str = ""

    @property
    def fetched(self) -> tuple[str, ...]:
        """Sources and intermediates that were called."""
        return tuple(self.seconds)

    @property
    def total_seconds(self) -> float:
        """Measured wall time of all calls; some may have run side by side."""
        return math.fsum(self.seconds.values())

    def protocol(self) -> str:
        """What was asked, what the answer was, and what was therefore asked next.

        Behind each answer is its cost, 0 where all was paid before; with the trees, they add up to
        the cost of the object. Only models with ``charge="row"`` ask each object for itself.

        Examples
        --------
        >>> asked = Question("TSH", "laboratory", 4.25, since=(), cost=22.5)
        >>> receipt = ObjectReceipt(0, 23.0, {"laboratory": 22.5}, 10, 0.5, {}, {}, (), (),
        ...     "it has met all trees", (asked,))
        >>> print(receipt.protocol())
        object 0: 23
          asked TSH: 4.25 (22.5)
          then it has met all trees (trees: 0.5)
        """
        lines = [f"object {self.index}: {self.cost:.6g}"]
        if self.fallback is not None:
            lines.append(f"  fallback {self.fallback}, since {self.why_fallback}")
        for question in self.questions:
            hence = f"since {' and '.join(question.since)}, asked" if question.since else "asked"
            lines.append(f"  {hence} {question} ({question.cost:.6g})")
        trees = f" (trees: {self.tree_cost:.6g})" if self.tree_cost else ""
        return "\n".join([*lines, f"  then {self.stopped}{trees}"])


class Receipts(Sequence[ObjectReceipt]):
    """A receipt per object. Prints as a table; ``to_frame()`` for pandas.

    Examples
    --------
    >>> paid = ObjectReceipt(0, 1.5, {"report": 1.5}, 10, 0.0, {}, {}, (), (), "after all 10 trees")
    >>> free = ObjectReceipt(1, 0.0, {}, 10, 0.0, {}, {}, (), (), "after all 10 trees")
    >>> Receipts([paid, free]).costs.tolist()
    [1.5, 0.0]
    """

    def __init__(self, receipts: Iterable[ObjectReceipt]):
        self._receipts = tuple(receipts)

    def __getitem__(self, index: Any) -> Any:
        chosen = self._receipts[index]
        return Receipts(chosen) if isinstance(index, slice) else chosen

    def __len__(self) -> int:
        return len(self._receipts)

    @property
    def costs(self) -> NDArray[np.float64]:
        """What each prediction cost, as ``prediction_costs`` says."""
        return np.array([receipt.cost for receipt in self._receipts], dtype=np.float64)

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Measured seconds of each object's calls."""
        return np.array([receipt.total_seconds for receipt in self._receipts], dtype=np.float64)

    def to_frame(self) -> Any:
        """Return a pandas DataFrame, one row per object."""
        import pandas as pd

        rows = [
            (
                receipt.index,
                receipt.cost,
                receipt.n_trees,
                receipt.tree_cost,
                receipt.total_seconds,
                receipt.fetched,
                tuple(receipt.failures),
                receipt.missing,
                receipt.not_called,
                receipt.stopped,
                receipt.fallback,
            )
            for receipt in self._receipts
        ]
        names = ["index", "cost", "n_trees", "tree_cost", "seconds", "fetched", "failed"]
        return pd.DataFrame(rows, columns=[*names, "missing", "not_called", "stopped", "fallback"])

    def __repr__(self) -> str:
        costs = f", {self.costs.mean():g} each on average" if len(self) else ""
        return f"<Receipts of {len(self)} predictions{costs}>"

    def __str__(self) -> str:
        rows = self._rows(self._receipts[:20])
        more = len(self) - len(rows)
        table = aligned([self._heads, *rows], left={4, 5})
        return f"{table}\n... and {more} more" if more else table

    def _repr_html_(self) -> str:
        rows = self._rows(self._receipts)
        return html_table(repr(self).strip("<>"), self._heads, rows, left={4, 5})

    _heads = ("object", "cost", "trees", "measured", "fetched", "stopped")

    def _rows(self, receipts: Sequence[ObjectReceipt]) -> list[tuple[str, ...]]:
        return [
            (
                str(receipt.index),
                f"{receipt.cost:.6g}",
                str(receipt.n_trees),
                pretty_seconds(receipt.total_seconds),
                ", ".join(
                    f"{name} (failed)" if name in receipt.failures else name
                    for name in receipt.fetched
                ),
                receipt.stopped,
            )
            for receipt in receipts
        ]
