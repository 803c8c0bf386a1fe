"""The examples run, in small form, and say what is true."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import numpy as np
import pytest

from greedymiser.on_demand import build_matrix

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name: str):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def images():
    return load("images_on_demand")


def check(served, printed, budget):
    """The thrifty model keeps to its budget and is served for less than the full one."""
    full, thrifty = served["full"], served["thrifty"]
    assert 0 < thrifty.price <= budget * full.price
    assert thrifty.calls < full.calls
    assert thrifty.accuracy > 1 / 15
    assert thrifty.cpu > 0
    assert full.cpu > 0
    # Measured times are printed, not asserted.
    assert len(re.findall(r"^(?:full|thrifty) +accuracy .* calls$", printed, re.MULTILINE)) == 2


def test_images_on_demand(images, capsys):
    arguments = ["--images", "300", "--max-iter", "4", "--budget", "0.3"]
    served = images.main(arguments)
    check(served, capsys.readouterr().out, budget=0.3)


def test_extractors_on_images_of_any_size(images):
    """Finite numbers, also of an image of one colour; the columns of a grid are its means."""
    rng = np.random.default_rng(0)
    objects = [rng.integers(0, 17, shape) for shape in ((8, 8), (31, 40), (5, 9))]
    objects += [np.zeros((8, 8)), np.full((8, 8), 16.0)]
    X = build_matrix(images.sources, objects)
    assert np.isfinite(X.to_numpy()).all()
    zones = X.loc[0, [f"zone_{i}" for i in range(16)]].to_numpy()
    expected = (objects[0] / 16).reshape(4, 2, 4, 2).mean(axis=(1, 3)).ravel()
    np.testing.assert_allclose(zones, expected)


def test_images_on_demand_with_photographs(images, capsys):
    folder = os.environ.get("GREEDYMISER_DATA")
    if not folder:
        pytest.skip("needs external data: set GREEDYMISER_DATA to its folder")
    scenes = Path(folder) / "scene15"
    if not (scenes / "images.tar").is_file():
        pytest.skip("needs scene15/images.tar in the folder GREEDYMISER_DATA")
    pytest.importorskip("PIL", reason="needs Pillow to decode photographs")
    arguments = ["--data", str(scenes), "--images", "200", "--max-iter", "2", "--budget", "0.3"]
    served = images.main(arguments)
    check(served, capsys.readouterr().out, budget=0.3)
