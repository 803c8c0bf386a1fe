"""The pictures as objects, in the manner of scikit-learn's displays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from greedymiser.model.predictor import as_predictor
from greedymiser.plotting.axes import SIZE
from greedymiser.plotting.curves import compare_curves, plot_curve
from greedymiser.plotting.features import plot_features
from greedymiser.plotting.looks import figure_of
from greedymiser.plotting.protocols import axes_for, plot_protocol
from greedymiser.plotting.receipts import plot_receipt

if TYPE_CHECKING:
    from greedymiser.curve.curve import TradeoffCurve
    from greedymiser.model.protocols import Protocol


class Display:
    """What all displays share.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Where it was drawn last.
    figure_ : matplotlib Figure
        The figure that the Axes is in.
    """

    ax_: Axes
    figure_: Figure

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw into ``ax``, or into a new figure of pyplot.

        Parameters
        ----------
        ax : matplotlib Axes, optional

        Returns
        -------
        The display itself, with ``ax_`` and ``figure_``.
        """
        self.ax_ = self._draw(self._new_axes() if ax is None else ax)
        self.figure_ = figure_of(self.ax_)
        return self

    def _new_axes(self) -> Axes:
        import matplotlib.pyplot as plt  # which looks for a screen

        _, ax = plt.subplots(figsize=SIZE, layout="constrained")
        return ax

    def _draw(self, ax: Axes) -> Axes:
        raise NotImplementedError


class _CurveDisplay(Display):
    """A picture of a curve."""

    def __init__(self, curve: TradeoffCurve):
        self.curve = curve

    @classmethod
    def from_curve(cls, curve: TradeoffCurve, *, ax: Axes | None = None) -> Self:
        """Draw a curve."""
        return cls(curve).plot(ax)


class TradeoffCurveDisplay(_CurveDisplay):
    """The score that each cost buys: see ``plot_curve``.

    Parameters
    ----------
    curve : TradeoffCurve

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from greedymiser import MiserRegressor, tradeoff_curve
    >>> from greedymiser.plotting import TradeoffCurveDisplay
    >>> X, y = load_diabetes(return_X_y=True)
    >>> curve = tradeoff_curve(MiserRegressor(max_iter=20), X[:300], y[:300], X_val=X[300:],
    ...                        y_val=y[300:], tradeoffs=3, search="path")
    >>> display = TradeoffCurveDisplay.from_curve(curve)
    >>> display.ax_.get_xlabel()
    'cost of one prediction'
    """

    def _draw(self, ax: Axes) -> Axes:
        return plot_curve(self.curve, ax)


class FeatureSharesDisplay(_CurveDisplay):
    """Which share of the features of each price is bought: see ``plot_features``.

    Parameters
    ----------
    curve : TradeoffCurve
    """

    def _draw(self, ax: Axes) -> Axes:
        return plot_features(self.curve, ax)


class ReceiptDisplay(Display):
    """What a model bought, when, at what price: see ``plot_receipt``.

    Parameters
    ----------
    estimator : fitted estimator
    scores : TradeoffCurve or array-like of shape (n_iter + 1,), optional
        Scores by round; by default ``estimator.validation_score_``.
    """

    def __init__(self, estimator: Any, scores: TradeoffCurve | ArrayLike | None = None):
        self.estimator = estimator
        self.scores = scores

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        scores: TradeoffCurve | ArrayLike | None = None,
        *,
        ax: Axes | None = None,
    ) -> Self:
        """Draw the receipt of a fitted estimator."""
        return cls(estimator, scores).plot(ax)

    def _draw(self, ax: Axes) -> Axes:
        return plot_receipt(self.estimator, self.scores, ax)


class CurveComparisonDisplay(Display):
    """The curves of several methods, measured with one meter: see ``compare_curves``.

    Parameters
    ----------
    curves : mapping from name to TradeoffCurve, or to DataFrame with columns cost and score
    """

    def __init__(self, curves: Mapping[str, Any]):
        self.curves = curves

    @classmethod
    def from_curves(cls, curves: Mapping[str, Any], *, ax: Axes | None = None) -> Self:
        """Draw several curves."""
        return cls(curves).plot(ax)

    def _draw(self, ax: Axes) -> Axes:
        return compare_curves(self.curves, ax)


class ProtocolDisplay(Display):
    """Who is asked what, after what, and at which cost: see ``plotting.plot_protocol``.

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

    def _new_axes(self) -> Axes:
        import matplotlib.pyplot as plt

        return axes_for(self.protocol, plt.figure)

    def _draw(self, ax: Axes) -> Axes:
        return plot_protocol(self.protocol, ax)
