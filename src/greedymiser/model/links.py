"""From raw predictions to class labels, probabilities and decisions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from greedymiser.losses import BinaryLogLoss, Loss, MultinomialLogLoss, TiesToSecond

Floats = NDArray[np.float64]


def decisions(raw: Floats) -> Floats:
    """Raw predictions in scikit-learn's shape: (n,), or one column per class."""
    return raw[0] if len(raw) == 1 else np.ascontiguousarray(raw.T)


def probabilities(raw: Floats, loss: Loss, n_classes: int) -> Floats:
    """Class probabilities of raw predictions, shape (n, n_classes)."""
    require_probabilities(loss)
    response = np.asarray(loss.response(raw[0] if len(raw) == 1 else raw))
    n = raw.shape[1]
    if n_classes == 2 and response.shape == (n,):  # of the second class
        response = np.stack([1.0 - response, response])
    if response.shape != (n_classes, n):
        raise ValueError(
            f"the response of the loss {_loss_name(loss)} must have shape (n_classes, n), here "
            f"({n_classes}, {n}), got {response.shape}"
        )
    return np.ascontiguousarray(response.T)


def labels(raw: Floats, classes: NDArray[Any], loss: Loss) -> NDArray[Any]:
    """Most likely class of each row; of equally likely ones the first, unless the loss differs."""
    if gives_probabilities(loss) and not has_log_link(loss):
        return classes[np.argmax(probabilities(raw, loss, len(classes)), axis=1)]
    # The log-losses' probabilities rise with their raw predictions, which need not be turned into
    # them; and where a loss has no probabilities, raw predictions are all that there is.
    if len(raw) == 1:
        is_second = raw[0] >= 0 if isinstance(loss, TiesToSecond) else raw[0] > 0
        return classes[is_second.astype(np.intp)]
    return classes[np.argmax(raw, axis=0)]


def gives_probabilities(loss: Any) -> bool:
    """Whether a loss has a ``response`` that is more than the raw prediction."""
    return _link(loss) not in (None, Loss.response)


def require_probabilities(loss: Loss) -> None:
    """Raise if a loss has no class probabilities."""
    if not gives_probabilities(loss):
        raise AttributeError(
            f"the loss {_loss_name(loss)} gives no class probabilities: it has no response"
        )


def has_log_link(loss: Any) -> bool:
    """Whether probabilities come from raw predictions as those of the log-losses do."""
    return _link(loss) in (BinaryLogLoss.response, MultinomialLogLoss.response)


def largest_probability(raw: Floats) -> Floats:
    """Probability of the most likely class, by the log-losses' links."""
    if len(raw) == 1:
        return expit(np.abs(raw[0]))
    return 1.0 / np.exp(raw - raw.max(axis=0)).sum(axis=0)


def _loss_name(loss: Loss) -> str:
    return type(getattr(loss, "_loss", loss)).__name__


def _link(loss: Any) -> Any:
    response = getattr(loss, "response", None)
    return getattr(response, "__func__", response)
