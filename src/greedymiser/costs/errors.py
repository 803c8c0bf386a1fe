"""What errors cost: a matrix of true class against what is said, in the unit of the prices.

What a user pays for a row is its bill and the cost of the error that is made on it. With class
probabilities p and costs M the best that can be said of a row is the class k with the least
expected cost, sum over c of p[c] * M[c, k].
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from greedymiser.costs.prices import did_you_mean

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ErrorCosts:
    """What each answer costs for a row of each class. Made by ``as_error_costs``.

    Examples
    --------
    >>> errors = as_error_costs({"ill": {"well": 50}, "well": {"ill": 10}}, ["ill", "well"])
    >>> errors.expected(np.array([[0.1, 0.9]]))
    array([[9., 5.]])
    >>> errors.answers(np.array([[0.1, 0.9], [0.3, 0.7]]))
    array(['well', 'ill'], dtype='<U4')
    """

    # Row: the true class, in the order of the classes; column: what is said.
    matrix: Floats
    # What may be said, a label for each column; the first are the classes, in their order, unless
    # the matrix leaves some of them out.
    said: NDArray[Any]

    def expected(self, probabilities: Floats) -> Floats:
        """Expected cost of each answer, shape (n, n_said), by probabilities (n, n_classes)."""
        return probabilities @ self.matrix

    def answers(self, probabilities: Floats) -> NDArray[Any]:
        """The answer of the least expected cost for each row; of equals the first."""
        return self.said[np.argmin(self.expected(probabilities), axis=1)]

    def realised(self, codes: NDArray[np.intp], probabilities: Floats) -> Floats:
        """What the answers cost to rows of these true classes."""
        return self.matrix[codes, np.argmin(self.expected(probabilities), axis=1)]

    @property
    def worst(self) -> float:
        """The most that can be lost on a row by saying one thing and not another."""
        return float(np.max(self.matrix.max(axis=1) - self.matrix.min(axis=1)))

    @property
    def class_weights(self) -> Floats:
        """What is at stake for a row of each class: the worst answer against the best.

        With two classes and two answers, probabilities that are learned with these weights are as
        exact near the threshold of the decision as plain ones are near one half.
        """
        return self.matrix.max(axis=1) - self.matrix.min(axis=1)


def as_error_costs(error_costs: Any, classes: Sequence[Any] | NDArray[Any]) -> ErrorCosts:
    """Read ``error_costs`` as a user gives them.

    Parameters
    ----------
    error_costs : array-like, data frame, mapping or ErrorCosts
        A matrix in the order of ``classes`` (rows: the true class, columns: what is said); a
        frame with the true classes as index and what is said as columns; or
        ``{true: {said: cost}}``, 0 where no cost of a class is written. What is said need not be a
        class, but must then be written for every true class. Negative costs are gains.
    classes : sequence
        Labels of the true classes, in their order.

    Examples
    --------
    >>> as_error_costs([[0, 10], [50, 0]], [0, 1]).matrix
    array([[ 0., 10.],
           [50.,  0.]])
    >>> errors = as_error_costs({1: {0: 50, "refer": 5}, 0: {1: 10, "refer": 5}}, [0, 1])
    >>> errors.said
    array([0, 1, 'refer'], dtype=object)
    """
    classes = np.asarray(classes)
    if isinstance(error_costs, ErrorCosts):
        error_costs = dict(zip(classes.tolist(), _rows_of(error_costs, len(classes)), strict=True))
    if isinstance(error_costs, Mapping):
        matrix, said = _from_mapping(error_costs, classes)
    elif hasattr(error_costs, "columns") and hasattr(error_costs, "index"):
        matrix, said = _from_frame(error_costs, classes)
    else:
        matrix, said = _from_array(error_costs, classes)
    _check_finite(matrix, classes, said)
    _check_useful(matrix, classes, said)
    return ErrorCosts(matrix, said)


def by_text(
    table: Mapping[str, Mapping[str, float]], classes: Sequence[Any] | NDArray[Any]
) -> dict[Any, dict[Any, float]]:
    """Error costs whose classes are written as text, as in a file: in terms of the classes.

    Examples
    --------
    >>> by_text({"1": {"0": 5.0, "refer": 1.0}, "0": {"1": 2.0, "refer": 1.0}}, [0, 1])
    {1: {0: 5.0, 'refer': 1.0}, 0: {1: 2.0, 'refer': 1.0}}
    """
    spelled = {str(label): label for label in np.asarray(classes).tolist()}
    # A whole number may be a float in the data, and 1.0 there.
    spelled |= {
        str(int(label)): label
        for label in np.asarray(classes).tolist()
        if isinstance(label, float) and label.is_integer()
    }
    return {
        spelled.get(true, true): {spelled.get(said, said): cost for said, cost in costs.items()}
        for true, costs in table.items()
    }


def _rows_of(errors: ErrorCosts, n_classes: int) -> list[dict[Any, float]]:
    if len(errors.matrix) != n_classes:
        raise ValueError(
            f"error_costs have {len(errors.matrix)} rows, but y has {n_classes} classes"
        )
    said = errors.said.tolist()
    return [dict(zip(said, row, strict=True)) for row in errors.matrix.tolist()]


def _from_mapping(table: Mapping[Any, Any], classes: NDArray[Any]) -> tuple[Floats, NDArray[Any]]:
    labels = classes.tolist()
    places = {label: i for i, label in enumerate(labels)}
    said: dict[Any, int] = dict(places)
    if not table:
        raise ValueError(
            "error_costs must have a row {true class: {said class: cost}} for each of the classes "
            f"{labels}, got {table!r}"
        )
    for true, costs in table.items():
        _check_class(true, labels)
        if not isinstance(costs, Mapping):
            raise TypeError(
                f"error_costs[{true!r}] must map what is said to its cost, got {costs!r}"
            )
        for answer in costs:
            said.setdefault(answer, len(said))
    _check_rows(table, labels)
    for answer in list(said)[len(labels) :]:
        # A free answer to rows of one class is more likely a misspelt class than meant.
        silent = [true for true in labels if answer not in table[true]]
        if silent:
            raise ValueError(
                f"error_costs have a cost of saying {answer!r}, which is no class of y, but none "
                f"for the true class {silent[0]!r}{did_you_mean(answer, labels)}"
            )
    matrix = np.zeros((len(labels), len(said)))
    for true, costs in table.items():
        for answer, cost in costs.items():
            matrix[places[true], said[answer]] = _number(cost, f"error_costs[{true!r}][{answer!r}]")
    return matrix, _labels(list(said), classes)


def _from_frame(frame: Any, classes: NDArray[Any]) -> tuple[Floats, NDArray[Any]]:
    labels, rows, columns = classes.tolist(), list(frame.index), list(frame.columns)
    for what, named in (("index", rows), ("columns", columns)):
        if len(set(named)) < len(named):
            twice = next(label for label in named if named.count(label) > 1)
            raise ValueError(f"the {what} of error_costs have {twice!r} twice")
    for label in rows:
        _check_class(label, labels)
    _check_rows(rows, labels)
    # Classes first, in their order, so that ties fall as they do without error costs.
    answers = [label for label in labels if label in columns]
    answers += [label for label in columns if label not in labels]
    values = [
        [
            _number(frame.iloc[rows.index(true), columns.index(answer)],
                    f"error_costs.loc[{true!r}, {answer!r}]")
            for answer in answers
        ]
        for true in labels
    ]  # fmt: skip
    return np.array(values, dtype=np.float64), _labels(answers, classes)


def _from_array(array: Any, classes: NDArray[Any]) -> tuple[Floats, NDArray[Any]]:
    labels, n = classes.tolist(), len(classes)
    try:
        matrix = np.array(array, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(
            "error_costs must be a matrix, a data frame or {true class: {said class: cost}}, got "
            f"{array!r}"
        ) from None
    if matrix.shape != (n, n):
        raise ValueError(
            f"error_costs must have shape {(n, n)} for the classes {labels}, got {matrix.shape}; "
            "give a data frame or a mapping if something else than a class may be said"
        )
    return matrix, classes


def _check_class(label: Any, labels: list[Any]) -> None:
    if label not in labels:
        raise ValueError(
            f"error_costs have a row for {label!r}, which is no class of y; the classes are "
            f"{labels}{did_you_mean(label, labels)}"
        )


def _check_rows(rows: Collection[Any], labels: list[Any]) -> None:
    for label in labels:
        if label not in rows:
            raise ValueError(
                f"error_costs have no row for the class {label!r}: say what it costs to take it "
                "for another"
            )


def _number(value: Any, place: str) -> float:
    if isinstance(value, bool | str | bytes) or np.ndim(value) != 0:
        raise TypeError(f"{place} must be a number, got {value!r}")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{place} must be a number, got {value!r}") from None


def _labels(said: list[Any], classes: NDArray[Any]) -> NDArray[Any]:
    """Labels of answers: as the classes are kept, if all answers are of their kind."""
    if all(label in classes.tolist() for label in said):
        return np.array(said, dtype=classes.dtype)
    if classes.dtype.kind == "U" and all(isinstance(label, str) for label in said):
        return np.array(said)
    mixed = np.empty(len(said), dtype=object)
    mixed[:] = said
    return mixed


def _place(classes: NDArray[Any], said: NDArray[Any], row: int, column: int) -> str:
    return f"of class {classes.tolist()[row]!r} when {said.tolist()[column]!r} is said"


def _check_finite(matrix: Floats, classes: NDArray[Any], said: NDArray[Any]) -> None:
    wrong = np.argwhere(~np.isfinite(matrix))
    if len(wrong):
        row, column = wrong[0]
        raise ValueError(
            f"error_costs must be finite, but the cost {_place(classes, said, row, column)} is "
            f"{matrix[row, column]}"
        )


def _check_useful(matrix: Floats, classes: NDArray[Any], said: NDArray[Any]) -> None:
    constant = np.flatnonzero(matrix.max(axis=1) == matrix.min(axis=1))
    if len(constant):
        row = int(constant[0])
        raise ValueError(
            f"error_costs of class {classes.tolist()[row]!r} are {matrix[row, 0]:g} whatever is "
            "said: nothing that is said of it could be an error"
        )
