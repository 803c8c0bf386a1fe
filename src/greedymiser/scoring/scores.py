"""Which scores are computed here, and for which kinds of models."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from greedymiser.losses import BinaryLogLoss, Kind, Loss, MultinomialLogLoss
from greedymiser.losses.ndcg import judge, mean_of_queries, ndcg_depth, query_weights
from greedymiser.scoring import areas, counts, probabilities, regression
from greedymiser.scoring.truth import Floats, ScoreOf, Truth, ask_scikit_learn, undefined

Prepare = Callable[[Truth], ScoreOf]
"""Does what depends on the target alone."""


def known_score(
    scoring: Any, kind: Kind, loss: Loss, classes: NDArray[Any] | None = None
) -> Score | None:
    """The score of that name if it is computed here; None where scikit-learn has to be asked.

    Here are the scores that most models are chosen by.

    Parameters
    ----------
    scoring : str or scorer
        Name of one of scikit-learn's scorers, that scorer itself, or "ndcg@5" for a ranker.
    kind : "regressor", "classifier" or "ranker"
        What predicts.
    loss : Loss
        Its ``response`` makes predictions of raw predictions.
    classes : array of shape (n_classes,), optional
        Labels of a classifier, in the order of their codes.

    Examples
    --------
    >>> from greedymiser.losses import SquaredError
    >>> score = known_score("r2", "regressor", SquaredError())
    >>> score.bind(np.array([1.0, 2.0, 3.0]), None)(np.array([[1.0, 2.0, 3.0]]))
    1.0
    """
    labels = np.empty(0) if classes is None else np.asarray(classes)
    depth = ndcg_depth(scoring) if kind == "ranker" else None
    if depth is not None:
        return Score(scoring, kind, loss, labels, partial(_ndcg, depth))
    known = _CLASSIFICATION if kind == "classifier" else _REGRESSION
    name = _scorer_name(scoring, known)
    if name is None or (kind == "classifier" and not _takes(name, labels, loss)):
        return None
    return Score(name, kind, loss, labels, known[name])


@dataclass(frozen=True, eq=False)
class Score:
    """A score that is computed here. Made by ``known_score``.

    Examples
    --------
    >>> from greedymiser.losses import SquaredError
    >>> known_score("neg_mean_absolute_error", "regressor", SquaredError()).name
    'neg_mean_absolute_error'
    """

    name: str
    kind: Kind
    loss: Loss
    # Labels of the classes; empty where there are none.
    classes: NDArray[Any]
    prepare: Prepare

    def bind(
        self, y: Floats, weight: Floats | None, starts: NDArray[np.intp] | None = None
    ) -> ScoreOf:
        """Do all that depends on the target alone.

        Parameters
        ----------
        y : array of shape (n,)
            Target in the loss's terms; the codes 0, 1, ... where there are classes.
        weight : array of shape (n,), optional
            Weights of the rows, all positive.
        starts : array of shape (n_queries + 1,), optional
            Where each query starts, and the end; None if all rows are one query.

        Returns
        -------
        callable
            From raw predictions of shape (n_outputs, n), which it leaves alone, to the score;
            higher is better.
        """
        y = np.ascontiguousarray(y, dtype=np.float64)
        if weight is not None:
            weight = np.ascontiguousarray(weight, dtype=np.float64)
            if weight.shape != y.shape:
                raise ValueError(f"weight must have shape {y.shape}, got {weight.shape}")
        rows = Truth(self.kind, self.loss, self.classes, y, weight, starts)
        with np.errstate(all="ignore"):
            fast = self.prepare(rows)
        shape = (self.loss.n_outputs, len(y))
        # What is NaN whatever is predicted, scikit-learn warns of; once is enough.
        is_known_nan = False

        def score(raw: Floats) -> float:
            nonlocal is_known_nan
            if raw.shape != shape:
                raise ValueError(f"raw must have shape {shape}, got {raw.shape}")
            # If there is something to warn of, scikit-learn will.
            with np.errstate(all="ignore"):
                value = fast(np.ascontiguousarray(raw))
            if math.isfinite(value) or is_known_nan:
                return value
            value = ask_scikit_learn(self.name, rows, raw)
            is_known_nan = fast is undefined and math.isnan(value)
            return value

        return score


def _scorer_name(scoring: Any, known: Collection[str]) -> str | None:
    """Name of a scorer that is scikit-learn's own beyond doubt; None for any other."""
    if isinstance(scoring, str):
        return scoring if scoring in known else None
    if not type(scoring).__module__.startswith("sklearn."):
        return None
    from sklearn.metrics import get_scorer

    return next((name for name in known if _is_alike(scoring, get_scorer(name))), None)


def _is_alike(a: Any, b: Any) -> bool:
    """Whether two scorers, or what they are made of, are the same."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_is_alike(a[key], b[key]) for key in a)
    if hasattr(a, "_score_func"):
        return _is_alike(vars(a), vars(b))
    return bool(a == b)


def _takes(name: str, classes: NDArray[Any], loss: Loss) -> bool:
    """Whether a score is defined for these labels; if not, scikit-learn will say why."""
    labels = classes.tolist()
    n = len(labels)
    # What a user's own loss predicts cannot be known from raw predictions alone.
    if type(loss) not in (BinaryLogLoss, MultinomialLogLoss):
        return False
    if n < 2 or loss.n_outputs != (1 if n == 2 else n):
        return False
    is_whole = classes.dtype.kind in "biuf" and all(
        abs(label) < 2**53 and label == int(label) for label in labels
    )
    if not is_whole and not all(isinstance(label, str) for label in labels):
        return False
    if any(low >= high for low, high in itertools.pairwise(labels)):
        return False
    if name == "roc_auc":
        return n == 2
    if name == "f1":
        return n == 2 and 1 in labels
    if name == "average_precision":
        return 1 in labels  # before 1.9, scikit-learn asks for it among several classes as well
    return name != "neg_brier_score" or n > 2 or is_whole


def _ndcg(k: int, rows: Truth) -> ScoreOf:
    n = len(rows.y)
    starts = np.array([0, n], dtype=np.intp) if rows.starts is None else rows.starts
    judged = judge(rows.y, starts, k)
    weight = None
    if rows.weight is not None:
        # Sorted, for sums that do not depend on the order within a query.
        query = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        weight = query_weights(rows.weight[np.lexsort((rows.weight, query))], starts)
    return lambda raw: mean_of_queries(judged.ndcg(raw[0]), weight)


_REGRESSION: dict[str, Prepare] = {
    "r2": regression.r2,
    "neg_mean_squared_error": regression.mean_squared_error,
    "neg_root_mean_squared_error": regression.root_mean_squared_error,
    "neg_mean_absolute_error": regression.mean_absolute_error,
}

_CLASSIFICATION: dict[str, Prepare] = {
    "roc_auc": areas.roc_auc,
    "roc_auc_ovr": areas.roc_auc_ovr,
    "average_precision": areas.average_precision,
    "neg_log_loss": probabilities.log_loss,
    "neg_brier_score": probabilities.brier,
    "accuracy": partial(counts.counted, counts.accuracy),
    "balanced_accuracy": partial(counts.counted, counts.balanced_accuracy),
    "f1": partial(counts.counted, counts.f1),
    "f1_macro": partial(counts.counted, counts.f1_macro),
}

KNOWN_SCORES = {
    "regressor": tuple(_REGRESSION),
    "classifier": tuple(_CLASSIFICATION),
    "ranker": tuple(_REGRESSION),
}
"""Names of scikit-learn's scorers that are computed here, for each kind; rankers also know ndcg."""
