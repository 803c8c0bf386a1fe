"""Pictures: a curve, the features behind it, a receipt, a comparison, a protocol.

The only room that imports matplotlib. Every function draws into ``ax``, or into a figure of its own
that pyplot does not know of, and returns the Axes: ``plot_curve(curve).figure.savefig(path)``. What
a colour says is also said by a marker and a line style, and the colours suit light and dark
backgrounds.
"""

from greedymiser.plotting.curves import compare_curves, plot_curve
from greedymiser.plotting.displays import ProtocolDisplay
from greedymiser.plotting.features import plot_features
from greedymiser.plotting.protocols import plot_protocol
from greedymiser.plotting.receipts import plot_receipt

__all__ = [
    "ProtocolDisplay",
    "compare_curves",
    "plot_curve",
    "plot_features",
    "plot_protocol",
    "plot_receipt",
]
