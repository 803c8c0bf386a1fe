from __future__ import annotations

import numpy as np
import pytest

import typed_snippet


def test_what_mypy_is_shown_also_runs(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 2))
    y = (X[:, 0] > 0).astype(np.int64)
    assert 0 < typed_snippet.use_the_library(X, y, tmp_path) <= 21.68 + 5 * 0.1


def test_mistakes_are_mistakes():
    with pytest.raises(TypeError, match="dear"):
        typed_snippet.make_mistakes()
