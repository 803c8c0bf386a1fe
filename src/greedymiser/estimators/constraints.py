"""What values the parameters may have, in scikit-learn's terms."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils._param_validation import HasMethods, Interval, RealNotInt, StrOptions

from greedymiser.data.binning import MAX_BINS
from greedymiser.training.train import ENGINES

CONSTRAINTS: dict[str, Any] = {
    "costs": "no_validation",
    "tradeoff": [Interval(Real, 0, None, closed="left")],
    "budget": [Interval(Real, 0, np.inf, closed="both"), None],
    "loss": [str, HasMethods(["gradients"])],
    "step": [StrOptions({"newton", "gradient"})],
    "init": [StrOptions({"prior", "zero"})],
    "learning_rate": [Interval(Real, 0, None, closed="neither")],
    "max_iter": [Interval(Integral, 1, None, closed="left")],
    "max_depth": [Interval(Integral, 1, None, closed="left"), None],
    "max_leaf_nodes": [Interval(Integral, 2, None, closed="left"), None],
    "min_samples_leaf": [Interval(Integral, 1, None, closed="left")],
    "l2_regularization": [Interval(Real, 0, None, closed="left")],
    "max_bins": [Interval(Integral, 2, MAX_BINS, closed="both")],
    "categorical_features": ["array-like", StrOptions({"from_dtype"}), None],
    "monotonic_cst": ["array-like", dict, None],
    "early_stopping": [StrOptions({"auto"}), "boolean"],
    "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
    "validation_fraction": [
        Interval(Real, 0, 1, closed="neither"),
        Interval(Integral, 1, None, closed="left"),
        None,
    ],
    "scoring": [str, callable, None],
    "warm_start": ["boolean"],
    "random_state": ["random_state"],
    "verbose": ["verbose"],
    "n_jobs": [Integral, None],
    "engine": [StrOptions(set(ENGINES))],
    "shopping_interval": [Interval(Integral, 1, None, closed="left")],
    "subsample": [Interval(Real, 0, 1, closed="right")],
    "max_features": [
        Interval(RealNotInt, 0, 1, closed="right"),
        Interval(Integral, 1, None, closed="left"),
    ],
    "charge": [StrOptions({"model", "row"})],
    "row_budget": [Interval(Real, 0, np.inf, closed="both"), None],
    "interaction_cst": [list, tuple, StrOptions({"pairwise", "no_interactions"}), None],
}
