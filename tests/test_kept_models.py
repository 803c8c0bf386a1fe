"""Models of earlier versions, bit for bit."""

import numpy as np
import pytest

from kept_models import FILE, problems

KEPT = dict(np.load(FILE))
PROBLEMS = dict(problems())


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_same_data_gives_the_same_model_as_it_did(name):
    ensemble = PROBLEMS[name]().ensemble_
    kept = KEPT[f"{name}/nodes"]
    assert len(ensemble.nodes) == len(kept)
    for field in kept.dtype.names:
        assert np.array_equal(ensemble.nodes[field], kept[field]), field
    assert np.array_equal(ensemble.category_sets, KEPT[f"{name}/category_sets"])
    assert np.array_equal(ensemble.baseline, KEPT[f"{name}/baseline"])
