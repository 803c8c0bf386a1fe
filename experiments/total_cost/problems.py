"""Sets with prices of tests and of errors, as they are published with STreeD."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from greedymiser import CostModel

NAMES = ("heart", "hepatitis", "diabetes", "glass", "car")
LEVELS = ("low", "middle", "high")


@dataclass(frozen=True)
class Attribute:
    """A test: it is paid once, whichever of its binary columns is asked for."""

    name: str
    price: float
    # What it costs once another of its group is paid for.
    discounted: float
    # None where it shares nothing.
    group: str | None
    columns: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class TotalCostProblem:
    """Binary columns, classes, what tests cost and what errors cost."""

    X: NDArray[np.int64]
    y: NDArray[np.int64]
    # Row: the true class, column: what is said.
    errors: NDArray[np.float64]
    attributes: tuple[Attribute, ...]
    # Where prices and costs of errors are written.
    file: Path

    @property
    def costs(self) -> CostModel:
        """The price of an attribute, and what its group shares, as resources."""
        resources: dict[str, float] = {}
        needs: list[list[str]] = [[] for _ in range(self.X.shape[1])]
        for attribute in self.attributes:
            wanted = [attribute.name]
            resources[attribute.name] = attribute.discounted
            if attribute.group is not None:
                wanted.append(f"group {attribute.group}")
                resources[wanted[1]] = attribute.price - attribute.discounted
            for column in attribute.columns:
                needs[column] = wanted
        return CostModel.from_resources(resources, needs)


def read_problem(folder: Path, name: str, level: str) -> TotalCostProblem:
    """Read a set at one level of error costs."""
    rows = np.loadtxt(folder / name / "rows.csv", dtype=np.int64)
    file = folder / name / f"{level}.csv"
    lines = file.read_text().splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("Attribute"))
    errors = [[float(cell) for cell in line.split()] for line in lines[:head] if line.strip()]
    attributes = []
    for line in lines[head + 1 :]:
        if line.strip():
            told, price, discounted, group, first, last = line.split()
            shared = None if group == "x" else group
            columns = tuple(range(int(first), int(last) + 1))
            attributes.append(Attribute(told, float(price), float(discounted), shared, columns))
    return TotalCostProblem(rows[:, 1:], rows[:, 0], np.array(errors), tuple(attributes), file)
