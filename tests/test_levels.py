"""Whole trees in compiled code, beside the same trees grown level by level."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from greedymiser import CostModel, MiserRegressor
from greedymiser.training import grower
from random_examples import examples

seeds = st.integers(0, 2**32 - 1)


def data_by_chance(rng, d=5):
    X = rng.standard_normal((int(rng.integers(30, 300)), d))
    X[:, 1] = rng.integers(6, size=len(X))
    X[rng.random(X.shape) < 0.1] = np.nan
    Z = np.nan_to_num(X)
    return X, Z[:, 0] + (Z[:, 1] % 2) * Z[:, 2] + 0.3 * rng.standard_normal(len(X))


def settings_by_chance(rng, d=5):
    """Of what a tree that is grown at once can meet."""
    own, costs = rng.uniform(0, 2, d).tolist(), None
    if rng.random() < 0.5:  # a purchase may make others cheaper
        groups = ["group", *(None if rng.random() < 0.5 else "group" for _ in range(d - 1))]
        costs = CostModel(own, groups=groups, group_costs={"group": 1.0})
    return {
        "costs": costs or CostModel(own),
        "tradeoff": float(rng.choice([0.0, 0.01, 0.1])),
        "budget": float(rng.uniform(1.0, 8.0)) if rng.random() < 0.5 else None,
        "categorical_features": [1] if rng.random() < 0.5 else [],
        "monotonic_cst": [1, 0, 0, 0, -1] if rng.random() < 0.3 else None,
        "max_depth": int(rng.integers(1, 7)),
        "max_leaf_nodes": int(rng.integers(2, 9)) if rng.random() < 0.5 else None,
        "loss": str(rng.choice(["squared_error", "absolute_error"])),
        "min_samples_leaf": int(rng.integers(1, 20)),
        "shopping_interval": int(rng.integers(1, 3)),
        "n_jobs": int(rng.choice([1, 3])),
    }


# Some budgets buy nothing.
@pytest.mark.filterwarnings("ignore:budget:greedymiser.BudgetWarning")
@examples(25)
@given(seed=seeds)
def test_a_tree_at_once_is_the_tree_that_grows_level_by_level(seed):
    rng = np.random.default_rng(seed)
    X, y = data_by_chance(rng)
    model = MiserRegressor(max_iter=4, early_stopping=False, **settings_by_chance(rng))
    at_once = model.fit(X, y)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grower, "DEEPEST", 0)
        by_level = MiserRegressor(**model.get_params()).fit(X, y)
    one, other = at_once.ensemble_, by_level.ensemble_
    assert one.nodes.tobytes() == other.nodes.tobytes()
    np.testing.assert_array_equal(one.category_sets, other.category_sets)
    assert str(at_once.receipt()) == str(by_level.receipt())
