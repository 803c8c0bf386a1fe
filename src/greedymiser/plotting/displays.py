"""A protocol's picture as an object, in the manner of scikit-learn's displays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from greedymiser.model.predictor import as_predictor
from greedymiser.plotting.protocols import axes_for, plot_protocol
from greedymiser.plotting.style import figure_of

if TYPE_CHECKING:
    from greedymiser.model.protocols import Protocol


class ProtocolDisplay:
    """Which rows are asked for what, in which order, at what cost; see ``plotting.plot_protocol``.

    Parameters
    ----------
    protocol : Protocol
        From ``model.protocol(X)``.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure

    Examples
    --------
    >>> import numpy as np
    >>> from greedymiser import MiserRegressor, ProtocolDisplay
    >>> X = np.random.default_rng(0).integers(0, 10, (1000, 2))
    >>> y = np.where(X[:, 0] == 9, X[:, 1], 0.0)
    >>> model = MiserRegressor(costs=[1.0, 5.0], charge="row", max_depth=2, max_iter=3)
    >>> display = ProtocolDisplay.from_estimator(model.fit(X, y), X)
    >>> display.figure_ is display.ax_.figure
    True
    """

    ax_: Axes
    figure_: Figure

    def __init__(self, protocol: Protocol):
        self.protocol = protocol

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        *,
        qid: ArrayLike | None = None,
        min_share: float = 0.01,
        ax: Axes | None = None,
    ) -> Self:
        """Draw what a fitted model with ``charge="row"`` asks of some rows.

        Parameters
        ----------
        estimator : fitted estimator, early exit, cascade, or Predictor
        X : array, sparse matrix or data frame of shape (n, n_features)
        qid : array-like of shape (n,), optional
            The query of each row, for models that compare the rows of a query.
        min_share : float
            Questions to a smaller share of the rows are left out.
        ax : matplotlib Axes, optional
        """
        protocol = as_predictor(estimator).protocol(X, qid, min_share=min_share)
        return cls(protocol).plot(ax)

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw into ``ax``, or into a new figure of pyplot.

        Parameters
        ----------
        ax : matplotlib Axes, optional

        Returns
        -------
        The display itself, with ``ax_`` and ``figure_``.
        """
        if ax is None:
            import matplotlib.pyplot as plt  # which looks for a screen

            ax = axes_for(self.protocol, plt.figure)
        self.ax_ = plot_protocol(self.protocol, ax)
        self.figure_ = figure_of(self.ax_)
        return self
