"""Scores of predicted numbers."""

from __future__ import annotations

import math

import numpy as np

from greedymiser.scoring.truth import Floats, ScoreOf, Truth, undefined


def mean_squared_error(rows: Truth) -> ScoreOf:
    """Mean of the squared errors, as a score."""
    return lambda raw: -rows.mean(_squares(rows, raw))


def root_mean_squared_error(rows: Truth) -> ScoreOf:
    """Its root."""
    return lambda raw: -math.sqrt(rows.mean(_squares(rows, raw)))


def mean_absolute_error(rows: Truth) -> ScoreOf:
    """Mean of the absolute errors, as a score."""
    return lambda raw: -rows.mean(np.abs(rows.predictions(raw) - rows.y))


def r2(rows: Truth) -> ScoreOf:
    """Share of the squares about the mean that predictions explain."""
    spread = rows.total((rows.y - rows.mean(rows.y)) ** 2)
    if rows.is_constant or not spread > 0.0:
        return undefined
    return lambda raw: 1.0 - rows.total(_squares(rows, raw)) / spread


def _squares(rows: Truth, raw: Floats) -> Floats:
    return (rows.y - rows.predictions(raw)) ** 2
