"""Cross-fitted machines, and what budgets buy of them."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cv2", reason="the experiments need OpenCV: greedymiser[experiments]")
pytest.importorskip("skimage", reason="the experiments need scikit-image: greedymiser[experiments]")
pytest.importorskip("pandas", reason="the experiments need pandas: greedymiser[frames]")

import pandas as pd

from experiments.scenes import gated_machines, machines, stacking
from experiments.scenes.crossfit import CrossFitted, bought_sets, fold_of, leads, opinions
from experiments.scenes.methods import COLUMNS, ImageSplit
from experiments.tests.test_scene15 import CLASSES, PER_CLASS, encoded, texture, write_archive
from experiments.workspace import Workspace
from greedymiser.costs.cost_model import CostModel

SMALL = {
    "descriptors": ("tiny8", "intensity", "orientation", "census_level0"),
    "n_words": 12,
    "codebook_images": 12,
    "timing_images": 6,
    "n_splits": 1,
    "train_per_class": 20,
    "val_per_class": 6,
    "max_iter": 5,
    "max_depth": 2,
    "min_samples_leaf": 3,
    "tradeoffs": (0.0, 1e-2),
    "l1_columns": 20,
    "budgets": (0.5, 1.0, 2.0, 4.0, 50.0),
    "effort": 0.02,
}


@pytest.fixture(scope="module")
def kernel():
    """A kernel between points of three classes, and the classes."""
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    points = rng.normal(size=(60, 4))
    points[:, 0] += labels
    distances = ((points[:, None] - points[None]) ** 2).sum(axis=2)
    return np.exp(-distances / distances.mean()), labels


def test_folds_have_as_many_of_each_class():
    labels = np.repeat([0, 1, 2], [10, 20, 7])
    folds = fold_of(labels)
    for label in range(3):
        counts = np.bincount(folds[labels == label], minlength=5)
        assert counts.max() - counts.min() <= 1


def test_outputs_out_of_fold_are_those_of_machines_without_the_fold(kernel):
    gram, labels = kernel
    folds = fold_of(labels)
    machine = CrossFitted.of(gram, labels, folds, ridge=0.2)
    targets = (labels[:, None] == np.arange(3)) - 1 / 3
    whole = np.linalg.solve(gram + 0.2 * np.eye(60), targets)
    assert np.allclose(machine.duals, whole)
    mean = np.zeros_like(targets)
    for fold in range(5):
        learn, out = folds != fold, folds == fold
        inner = gram[np.ix_(learn, learn)] + 0.2 * np.eye(learn.sum())
        alone = np.linalg.solve(inner, targets[learn])
        assert np.allclose(machine.unseen[out], gram[np.ix_(out, learn)] @ alone)
        mean[learn] += alone / 5
    assert np.allclose(machine.mean_duals, mean)


def test_a_kernel_without_inverse_is_refused():
    with pytest.raises(ValueError, match="ridge"):
        CrossFitted.of(np.ones((4, 4)), np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1]), ridge=-2.0)


def test_leads_tell_the_winner_and_by_how_much():
    found = leads(np.array([[1.0, 3.0, 2.0], [5.0, 5.0, 0.0]]))
    assert found.tolist() == [[-2.0, 1.0, -1.0], [0.0, 0.0, -5.0]]


def test_training_images_are_judged_without_them(kernel):
    gram, labels = kernel
    known = np.arange(45)
    split = ImageSplit(0, known[:20], known[20:], np.arange(45, 52), np.arange(52, 60))
    said = opinions(gram[:, known], labels, split)
    machine = CrossFitted.of(gram[:45, :45], labels[:45], fold_of(labels[:45]))
    assert np.allclose(said[:45], leads(machine.unseen))
    assert np.allclose(said[45:], leads(gram[45:, :45] @ machine.duals))
    averaged = opinions(gram[:, known], labels, split, mean_of_folds=True)
    assert np.allclose(averaged[45:], leads(gram[45:, :45] @ machine.mean_duals))


def test_sets_grow_with_smaller_tradeoffs_and_begin_with_what_pays():
    rng = np.random.default_rng(0)
    labels = np.arange(300) % 3
    truth = (labels[:, None] == np.arange(3)).astype(float)
    noise = [1.5, 0.7, 0.2]  # the dearer the better
    X = np.concatenate([truth + s * rng.normal(size=truth.shape) for s in noise], axis=1)
    names = ["cheap", "middle", "dear"]
    costs = CostModel.from_resources(
        {"cheap": 0.5, "middle": 5.0, "dear": 50.0},
        {f"{name}: {k}": [name] for name in names for k in range(3)},
    )
    everything = np.arange(300)
    split = ImageSplit(0, everything[:100], everything[100:], everything, everything)
    scale = {"max_depth": 2, "min_samples_leaf": 5, "max_bins": 31}
    sets = bought_sets(X, labels, split, costs, names, scale)
    assert sets[0] == ["cheap"]
    assert "dear" in sets[-1]
    assert all(set(a) < set(b) for a, b in itertools.pairwise(sets))


def test_the_cheapest_descriptors_fill_a_budget():
    costs = CostModel.from_resources(
        {"file": 1.0, "a": 3.0, "b": 0.5, "c": 1.0},
        {"a": ["file", "a"], "b": ["file", "b"], "c": ["file", "c"]},
    )
    found = machines.affordable_sets(costs, (0.5, 1.5, 2.0, 2.5, 99.0))
    assert found == {1.5: ["b"], 2.5: ["b", "c"], 99.0: ["b", "c", "a"]}


# Gates between machines


@pytest.fixture(scope="module")
def states():
    """A cheap machine that is sure of half the images, and a dear one that knows all."""
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 2
    truth = np.where(labels[:, None] == np.arange(2), 1.0, -1.0)
    is_easy = rng.random(400) < 0.5
    cheap = np.where(is_easy[:, None], truth, 0.01 * truth * rng.choice([-1, 1], (400, 1)))
    X = np.concatenate([cheap, truth], axis=1)
    costs = CostModel.from_resources(
        {"a": 1.0, "b": 9.0, "set 0: machine": 0.01, "set 1: machine": 0.01},
        {
            f"set {i}: {k}": [*"ab"[: i + 1], f"set {i}: machine"]
            for i in range(2)
            for k in range(2)
        },
    )
    rows = np.arange(200)
    split = ImageSplit(0, rows[:100], rows[100:], np.arange(200, 300), np.arange(300, 400))
    seen = stacking.Opinions.of(X, labels, split, costs, {})
    return gated_machines.MachineStates(seen, [["a"], ["a", "b"]]), is_easy


def test_a_machine_for_everybody_costs_its_set(states):
    machine, _ = states
    outcome = machine.run(gated_machines.Leaving((1,), ()), machine.opinions.test.X)
    assert outcome.paid == pytest.approx(np.full(100, 10.01))
    assert outcome.accuracy(machine.opinions.test.y) == 1.0


def test_only_unsure_images_go_on_and_pay_for_both_machines(states):
    machine, is_easy = states
    rule = gated_machines.partial(gated_machines.is_unsure, 0.8)
    outcome = machine.run(gated_machines.Leaving((0, 1), (rule,)), machine.opinions.test.X)
    assert outcome.paid == pytest.approx(np.where(is_easy[300:], 1.01, 10.02))
    assert outcome.accuracy(machine.opinions.test.y) == 1.0


@pytest.mark.parametrize("kind", ["policies", "exits"])
def test_gates_and_exits_find_who_has_to_go_on(states, kind):
    machine, is_easy = states
    offers = getattr(machine, kind)()
    rows = gated_machines.chosen_for_budgets(machine, kind, offers, (0.5, 2.0, 6.5, 20.0))
    assert [row["parameter"] for row in rows] == [2.0, 6.5, 20.0]  # 0.5 buys nothing
    assert rows[1]["score"] == 1.0
    assert rows[1]["cost"] == pytest.approx(1.01 + 9.01 * np.mean(~is_easy[300:]))
    assert [row["n_descriptors"] for row in rows[1:]] == [2, 2]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("textures")
    rng = np.random.default_rng(0)
    files = {
        f"{kind}/image_{i:04d}.jpg": encoded(texture(kind, rng))
        for kind in CLASSES
        for i in range(PER_CLASS)
    }
    write_archive(folder, files)
    return folder


def test_a_small_run_from_end_to_end(data, tmp_path):
    results = machines.run(data, Workspace(tmp_path, {}), **SMALL)
    curves = results.tables["curves"]
    assert list(curves.columns) == COLUMNS
    assert {
        machines.JOINT, f"{machines.JOINT}, mean of folds", machines.SVM_SUBSETS,
        gated_machines.GATED_MACHINES, gated_machines.EXITS, stacking.GATES,
        stacking.FRONTIER, stacking.CROSS_MISER,
    } == set(curves["method"])  # fmt: skip
    assert curves["score"].between(0, 1).all()
    # A budget is kept by validation images.
    limited = curves[curves["method"].isin([stacking.GATES, stacking.FRONTIER])]
    assert (limited["valid_cost"] <= limited["parameter"] + 1e-9).all()
    # Textures are easy: whoever may look at everything sees them.
    best = curves.groupby("method")["score"].max()
    assert best[machines.JOINT] > 0.8
    assert best[gated_machines.GATED_MACHINES] > 0.8
    assert results.figures["machines"].read_bytes().startswith(b"\x89PNG")
    pd.testing.assert_frame_equal(
        machines.run(data, Workspace(tmp_path, {}), **SMALL).tables["curves"], curves
    )


def test_it_needs_images(tmp_path):
    with pytest.raises(ValueError, match="needs data"):
        machines.run(None, Workspace(tmp_path, {}))
