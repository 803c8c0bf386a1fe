"""Gradients and Hessians of the rows of this machine, by formula, by query, or by a user's loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from greedymiser._core.threads import Team
from greedymiser.engines.cpu.kernels import rows
from greedymiser.engines.grid import Extremes
from greedymiser.engines.interface import Floats, Sample
from greedymiser.losses import LambdaMART
from greedymiser.losses.ranking import Queries

NOTHING = np.empty(0)


class Derivatives:
    """First and second derivatives of the loss at the raw predictions, times the weights.

    They are computed for all outputs when a round begins, since one output's trees change what
    the loss says of the others.
    """

    def __init__(self, sample: Sample, empty: Callable[[tuple[int, int]], Floats]):
        self.sample = sample
        self._formula = sample.loss.formula
        n, k = len(sample.y), sample.loss.n_outputs
        self._weight = NOTHING if sample.weight is None else sample.weight
        self._gradients = empty((k, n))
        self._hessians = empty((k, n))
        self._found = np.empty((k, -(-n // rows.CHUNK), 3))
        # Of all chunks together, by output: the largest gradient, and the extreme Hessians.
        self._extremes: list[tuple[float, float, float]] = []
        self._heaviest = 1.0 if sample.weight is None else float(sample.weight.max())
        self._is_flat = True

    def derive(self, raw: Floats, step: str, team: Team) -> None:
        """Bring the derivatives up to date."""
        self._is_flat = self._compute(raw, team) or step == "gradient"
        self._extremes = self._found[:, 0].tolist()
        for most_gradient, most_hessian, least_hessian in self._extremes:
            if not math.isfinite(most_gradient):
                raise ValueError("the loss returned gradients that are not finite")
            if self._is_flat:
                continue
            if not math.isfinite(most_hessian) or math.isnan(least_hessian):
                raise ValueError("the loss returned hessians that are not finite")
            if least_hessian < 0:
                raise ValueError(f"the loss returned a negative hessian: {least_hessian:g}")

    def extremes(self, output: int) -> Extremes:
        """The largest gradient and Hessian."""
        gradient, hessian, _ = self._extremes[output]
        if not self._is_flat:
            return Extremes(gradient, hessian, False)
        return Extremes(gradient, self._heaviest, self.sample.weight is None)

    def of_output(self, output: int) -> tuple[Floats, Floats]:
        """Gradients and Hessians; no Hessians where all are 1."""
        if not self._is_flat:
            return self._gradients[output], self._hessians[output]
        # Plain means of the negative gradient, as eq. 5 has it: a row counts with its weight.
        return self._gradients[output], self._weight

    def _compute(self, raw: Floats, team: Team) -> bool:
        """Write derivatives and extremes; return whether all Hessians of the loss are 1."""
        formula = self._formula
        assert formula is not None
        hessians = self._hessians[:0] if formula.is_flat else self._hessians
        rows.derive(
            team, formula, self.sample.y, raw, self._weight, self._gradients, hessians, self._found
        )
        return formula.is_flat


class _ByQuery(Derivatives):
    """LambdaMART."""

    def __init__(self, sample: Sample, empty: Callable[[tuple[int, int]], Floats]):
        super().__init__(sample, empty)
        loss = sample.loss
        assert isinstance(loss, LambdaMART)
        self._queries = Queries.of(sample.y, loss.query_starts(sample.y), loss.truncation)
        self._sigma = float(loss.sigma)

    def _compute(self, raw: Floats, team: Team) -> bool:
        rows.derive_lambdas(
            team, self._queries, raw, self._sigma, self._weight, self._gradients, self._hessians,
            self._found,
        )  # fmt: skip
        return False


class _InPython(Derivatives):
    """A loss of the user's own."""

    def _compute(self, raw: Floats, team: Team) -> bool:
        loss = self.sample.loss
        derivatives = loss.gradients(self.sample.y, raw if loss.n_outputs > 1 else raw[0])
        if not isinstance(derivatives, tuple) or len(derivatives) != 2:
            raise TypeError("the loss must return gradients and hessians (or None), as a pair")
        self._gradients[:] = _shaped("gradients", derivatives[0], raw.shape)
        hessians = self._hessians[:0]
        if derivatives[1] is not None:
            hessians = self._hessians
            hessians[:] = _shaped("hessians", derivatives[1], raw.shape)
        rows.weigh_derivatives(team, self._weight, self._gradients, hessians, self._found)
        return derivatives[1] is None


def derivatives_of(
    sample: Sample, empty: Callable[[tuple[int, int]], Floats] = np.empty
) -> Derivatives:
    """The derivatives of a sample's loss, computed in the way that suits it.

    ``empty`` makes the arrays that they are written to.
    """
    if sample.loss.formula is not None:
        return Derivatives(sample, empty)
    kind = _ByQuery if type(sample.loss) is LambdaMART else _InPython
    return kind(sample, empty)


def _shaped(what: str, values: Any, shape: tuple[int, ...]) -> Floats:
    values = np.asarray(values, dtype=np.float64)
    expected = shape if shape[0] > 1 else shape[1:]
    if values.shape not in (shape, expected):
        raise ValueError(f"the loss returned {what} of shape {values.shape}, expected {expected}")
    return values.reshape(shape)
