"""Gates: who is asked for more, by what is known of a row so far.

A gate looks at the *extended row*: the features (those that are not paid yet are never looked at),
and behind them what the model of the row's state says of it. It is a small ensemble of trees, so
that it is stored, served and put into words as every other one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from greedymiser.losses import Loss
from greedymiser.model.exit_rules import Mask
from greedymiser.model.links import Floats, gives_probabilities
from greedymiser.model.trees import Ensemble


@dataclass(frozen=True, eq=False)
class Gate:
    """A row goes on where the trees say more than ``threshold``.

    What they say is how much the row is expected to gain if it goes on, in terms of the loss or of
    money; a gate that is a plain band of scores says 1 inside it and -1 outside.
    """

    # Over the extended row.
    ensemble: Ensemble
    threshold: float

    def estimates(self, extended: NDArray[np.floating]) -> Floats:
        """What the trees say of each extended row."""
        raw = np.empty((1, len(extended)))
        raw[:] = self.ensemble.baseline[:, None]
        self.ensemble.serving.add(np.ascontiguousarray(extended), raw, 0, self.ensemble.n_trees)
        return raw[0]

    def features(self, n_features: int) -> list[int]:
        """Features of the row itself that the gate looks at."""
        return [feature for feature in self.ensemble.features if feature < n_features]


@dataclass(frozen=True, eq=False)
class Gates:
    """A gate between every two stages of a cascade."""

    gates: tuple[Gate, ...]
    n_features: int
    # Says what raw predictions mean.
    loss: Loss
    compares_rows = False

    def goes_on(self, raw: Floats, stage: int, rows: NDArray[np.floating] | None) -> Mask:
        """Rows that go on after ``stage``, by what is known of them and said of them."""
        if rows is None:
            raise ValueError("gates look at what is known of rows, not only at predictions")
        gate = self.gates[stage]
        return gate.estimates(self.extended(raw, rows)) > gate.threshold

    def extended(self, raw: Floats, rows: NDArray[np.floating]) -> Floats:
        """Rows, and behind them what their model says: (n, n_features + n_output_features)."""
        outputs = output_features(raw, self.loss)
        out = np.empty((raw.shape[1], self.n_features + len(outputs)))
        out[:, : self.n_features] = rows
        out[:, self.n_features :] = outputs.T
        return out

    def features(self, stage: int) -> list[int]:
        """Features that the gate after ``stage`` looks at."""
        return self._features[stage] if stage < len(self._features) else []

    @cached_property
    def _features(self) -> list[list[int]]:
        return [gate.features(self.n_features) for gate in self.gates]

    def because(self, stage: int) -> str:
        """Say why a row left after ``stage``."""
        return "more would not be worth its price"


def n_output_features(n_outputs: int) -> int:
    """How many columns ``output_features`` makes."""
    return 1 if n_outputs == 1 else n_outputs + 1


def output_features(raw: Floats, loss: Loss) -> Floats:
    """What a model says of rows, as gates read it: (n_output_features, n).

    Of two classes the probability of the second; of more, that of each, and the largest of them; of
    numbers the prediction. A loss without probabilities has its raw predictions instead.
    """
    if len(raw) == 1:
        if not gives_probabilities(loss):
            return raw
        response = np.asarray(loss.response(raw[0]))
        return response[None] if response.ndim == 1 else response[-1:]
    columns = np.asarray(loss.response(raw)) if gives_probabilities(loss) else raw
    return np.concatenate([columns, columns.max(axis=0)[None]])


def output_feature_names(n_outputs: int, classes: NDArray[np.generic] | None) -> list[str]:
    """Names of the columns of ``output_features``."""
    if classes is None:
        return ["prediction"]
    labels = [str(label) for label in classes.tolist()]
    if n_outputs == 1:
        return [f"probability of {labels[-1]}"]
    return [*(f"probability of {label}" for label in labels), "largest probability"]
