"""Scores of predicted probabilities."""

from __future__ import annotations

import numpy as np

from greedymiser.scoring.truth import EPS, Floats, ScoreOf, Truth, undefined


def log_loss(rows: Truth) -> ScoreOf:
    """Mean log-likelihood of the true classes."""
    if not rows.has_all_classes:
        return undefined
    at = rows.codes * len(rows.y) + np.arange(len(rows.y))

    def score(raw: Floats) -> float:
        probabilities = rows.probabilities(raw)
        likelihood = np.clip(probabilities.ravel()[at], EPS, 1.0 - EPS)
        return -rows.mean(-np.log(likelihood))

    return score


def brier(rows: Truth) -> ScoreOf:
    """Mean squared error of the probabilities."""
    if not rows.has_all_classes:
        return undefined
    truth = (rows.codes == np.arange(rows.n_classes)[:, None]).astype(np.float64)
    # Of two classes, whose errors are the same, only one counts.
    share = 0.5 if rows.n_classes == 2 else 1.0

    def score(raw: Floats) -> float:
        probabilities = rows.probabilities(raw)
        return -share * rows.mean(((truth - probabilities) ** 2).sum(axis=0))

    return score
