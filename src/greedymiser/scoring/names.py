"""What scores are called on a terminal, in a plot, a report or a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from greedymiser.costs.prices import did_you_mean
from greedymiser.losses import KNOWN_LOSSES, LambdaMART
from greedymiser.losses.ndcg import ndcg_depth

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
    """Raise if a name is no score, and say which may be meant; scikit-learn would list them all.

    Parameters
    ----------
    scoring : Any
        As a user gave it. What is no text is left to scikit-learn.
    ours : sequence of str
        Names that are known here and not to scikit-learn.
    """
    from sklearn.metrics import get_scorer_names

    known = get_scorer_names()
    if not isinstance(scoring, str) or scoring in known or scoring in ours:
        return
    near = did_you_mean(scoring, [*known, *ours]) or _with_that_word(scoring, [*COMMON, *known])
    what = ", ".join([*map(repr, ours), "the name of a scorer"])
    if ndcg_depth(scoring) is not None:
        near = "; this one is for rankers"
    hint = near or f"; names are for example {', '.join(map(repr, COMMON))}"
    raise ValueError(f"scoring must be {what} or a callable, got {scoring!r}{hint}")


# Scores that people choose by.
COMMON = (
    "roc_auc", "average_precision", "neg_log_loss", "accuracy", "balanced_accuracy", "f1", "r2",
    "neg_mean_squared_error", "neg_mean_absolute_error",
)  # fmt: skip


def _with_that_word(scoring: str, known: Sequence[str]) -> str:
    """The first name that has what was given among its words, or begins with it."""
    word = scoring.lower().replace("-", "_").replace(" ", "_")
    for name in known:
        if word and (word in name.split("_") or name.startswith(word)):
            return f"; did you mean {name!r}?"
    return ""
