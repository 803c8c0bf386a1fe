"""What scores are called on a terminal, in a plot, a report or a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from greedymiser.costs.prices import did_you_mean
from greedymiser.losses import KNOWN_LOSSES, LambdaMART

_TITLES = {known.make: known.title for known in KNOWN_LOSSES.values()}


def score_name(scoring: Any, loss: Any) -> str:
    """Name a score, of which higher is better.

    Parameters
    ----------
    scoring : str, callable or None
        As the estimators take it: the name of a scorer, or "loss" or None for the loss itself.
    loss : Loss
        The loss that was trained with.

    Examples
    --------
    >>> from greedymiser.losses import BinaryLogLoss
    >>> score_name("loss", BinaryLogLoss())
    'negative log-loss'
    >>> score_name("balanced_accuracy", BinaryLogLoss())
    'balanced_accuracy'
    """
    if isinstance(scoring, str) and scoring != "loss":
        return scoring
    if scoring is not None and scoring != "loss":
        return str(getattr(scoring, "__name__", scoring))
    if isinstance(loss, LambdaMART):  # whose value is how far the NDCG is below 1
        return f"NDCG@{loss.truncation} minus 1"
    return f"negative {_TITLES.get(type(loss), 'loss')}"


def refuse_misspelt_score(scoring: Any, ours: Sequence[str]) -> None:
    """Raise if a name is nearly that of a score. scikit-learn would list all that it has.

    Parameters
    ----------
    scoring : Any
        As a user gave it. What is no text, or not close to any name, is left to scikit-learn.
    ours : sequence of str
        Names that are known here and not to scikit-learn.
    """
    from sklearn.metrics import get_scorer_names

    known = get_scorer_names()
    if not isinstance(scoring, str) or scoring in known:
        return
    near = did_you_mean(scoring, [*known, *ours])
    if near:
        what = ", ".join([*map(repr, ours), "the name of a scorer"])
        raise ValueError(f"scoring must be {what} or a callable, got {scoring!r}{near}")
