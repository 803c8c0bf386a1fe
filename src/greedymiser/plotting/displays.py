"""The pictures as objects, in the manner of scikit-learn's displays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from greedymiser.plotting.axes import SIZE
from greedymiser.plotting.curves import compare_curves, plot_curve
from greedymiser.plotting.features import plot_features
from greedymiser.plotting.receipts import plot_receipt

if TYPE_CHECKING:
    from greedymiser.tradeoff import TradeoffCurve


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
        if ax is None:
            import matplotlib.pyplot as plt  # which looks for a screen

            _, ax = plt.subplots(figsize=SIZE, layout="constrained")
        self.ax_ = self._draw(ax)
        self.figure_ = self.ax_.figure.figure
        return self

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
