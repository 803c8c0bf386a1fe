"""The scene experiment, from an archive of images to its tables and its figure."""

from __future__ import annotations

import io
import itertools
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cv2", reason="the experiments need OpenCV: greedymiser[experiments]")
pytest.importorskip("skimage", reason="the experiments need scikit-image: greedymiser[experiments]")
pytest.importorskip("pandas", reason="the experiments need pandas: greedymiser[frames]")

import cv2
import pandas as pd

from experiments.scenes import costs as scene_costs
from experiments.scenes import images as scene_images
from experiments.scenes import methods as scene_methods
from experiments.scenes import scene15
from experiments.scenes.descriptors import catalogue
from experiments.workspace import Workspace
from greedymiser.costs.cost_model import CostModel
from greedymiser.estimators import MiserClassifier

DESCRIPTORS = ("tiny8", "intensity", "orientation", "census_level0", "sift16_level1")
SMALL = {
    "descriptors": DESCRIPTORS,
    "n_words": 12,
    "codebook_images": 12,
    "timing_images": 6,
    "n_splits": 2,
    "train_per_class": 20,
    "val_per_class": 6,
    "support_share": 0.4,
    "max_iter": 25,
    "max_depth": 2,
    "min_samples_leaf": 3,
    "tradeoffs": (0.0, 1e-3, 1e-2, 1e3),
    "l1_columns": 20,
}
CLASSES = ("blobs", "bricks", "stripes", "waves")
PER_CLASS = 40


def texture(kind: str, rng: np.random.Generator) -> np.ndarray:
    """An image of 48 x 64 noisy pixels that shows one of four textures."""
    y, x = np.mgrid[:48, :64] + rng.uniform(0, 8, (2, 1, 1))
    period = rng.uniform(7, 9)
    shape = {
        "stripes": np.sin(2 * np.pi * x / period),
        "waves": np.sin(2 * np.pi * y / period),
        "bricks": np.sign(np.sin(2 * np.pi * x / period) * np.sin(2 * np.pi * y / period)),
        "blobs": cv2.GaussianBlur(rng.standard_normal((48, 64)), (0, 0), 3) * 10,
    }[kind]
    noisy = 120 + 40 * shape + rng.normal(0, 25, shape.shape)
    return np.clip(noisy, 0, 255).astype(np.uint8)


def encoded(image: np.ndarray) -> bytes:
    return cv2.imencode(".jpg", image)[1].tobytes()


def write_archive(folder: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(folder / scene_images.IMAGES, "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Four classes of textures in train/ and test/, one image twice."""
    folder = tmp_path_factory.mktemp("textures")
    rng = np.random.default_rng(0)
    files = {
        f"{'train' if i % 2 else 'test'}/{kind}/image_{i:04d}.jpg": encoded(texture(kind, rng))
        for kind in CLASSES
        for i in range(PER_CLASS)
    }
    files["train/waves/image_0099.jpg"] = files["test/waves/image_0000.jpg"]
    write_archive(folder, files)
    return folder


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    said: list[tuple[str, int, int]] = []
    workspace = Workspace(out, {}, lambda *words: said.append(words))
    return scene15.run(data, workspace, **SMALL), out, said


# The images


def test_all_images_are_read_and_duplicates_are_not(data):
    images = scene_images.read_images(data)
    assert images.classes == list(CLASSES)
    assert np.bincount(images.labels).tolist() == [PER_CLASS] * 4
    assert "test/waves/image_0000.jpg" in images.names
    assert "train/waves/image_0099.jpg" not in images.names


def test_a_folder_without_images_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"images\.tar"):
        scene_images.read_images(tmp_path)
    with pytest.raises(ValueError, match="needs data"):
        scene15.run(None, Workspace(tmp_path, {}))


def test_one_class_is_no_task(tmp_path):
    write_archive(tmp_path, {"a/1.jpg": b"x", "a/2.jpg": b"y"})
    with pytest.raises(ValueError, match="1 classes"):
        scene_images.read_images(tmp_path)


def test_what_is_no_image_of_a_class_is_left_out(tmp_path):
    files = {
        "a/1.jpg": b"x",
        "b/1.png": b"y",
        "cover.jpg": b"z",
        "a/._1.jpg": b"u",
        "a/t.txt": b"v",
    }
    write_archive(tmp_path, files)
    assert scene_images.read_images(tmp_path).names == ["a/1.jpg", "b/1.png"]


def test_damaged_archives_and_images_are_named(data, tmp_path):
    whole = (data / scene_images.IMAGES).read_bytes()
    (tmp_path / scene_images.IMAGES).write_bytes(whole[:5000])
    with pytest.raises(ValueError, match="not a whole tar archive"):
        scene_images.read_images(tmp_path)
    (tmp_path / scene_images.IMAGES).write_bytes(b"no archive")
    with pytest.raises(ValueError, match="not a whole tar archive"):
        scene_images.read_images(tmp_path)
    for content in (b"", b"no picture"):
        images = scene_images.Images(["a/1.jpg"], [content], np.zeros(1, dtype=np.intp), ["a"])
        with pytest.raises(ValueError, match=r"'a/1\.jpg' of images\.tar: cannot decode"):
            scene_images.check_readable(images)


# Splits


@pytest.fixture
def scale():
    return {"seed": 0, "train_per_class": 10, "val_per_class": 3, "support_share": 0.3}


def test_a_split_uses_every_image_once(scale):
    labels = np.repeat(np.arange(3), [20, 14, 31])
    split = scene_methods.draw_split(labels, 0, scale)
    parts = [split.support, split.train, split.valid, split.test]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(65))
    assert [np.bincount(labels[part]).tolist() for part in parts] == [
        [3, 3, 3], [7, 7, 7], [3, 3, 3], [7, 1, 18],
    ]  # fmt: skip
    assert np.array_equal(split.known, np.sort(np.concatenate(parts[:2])))


def test_splits_differ_and_come_back(scale):
    labels = np.repeat(np.arange(3), 20)
    first, again, other = (scene_methods.draw_split(labels, n, scale) for n in (0, 0, 1))
    assert np.array_equal(first.test, again.test)
    assert not np.array_equal(first.test, other.test)


def test_too_few_images_of_a_class_are_an_error(scale):
    images = scene_images.Images([], [], np.repeat([0, 1], [20, 13]), ["street", "tall building"])
    with pytest.raises(ValueError, match="class 'tall building' has 13 images"):
        scene_methods.check_sizes(images, scale)


# Comparing images


def test_distances_are_those_of_the_points():
    rng = np.random.default_rng(0)
    rows, known = rng.random((5, 7)), rng.random((4, 7))
    wanted = ((rows[:, None] - known[None]) ** 2).sum(axis=2)
    found = scene_images.squared_distances(rows, known, (known**2).sum(axis=1))
    np.testing.assert_allclose(found, wanted, atol=1e-12)
    among = ((rows[:, None] - rows[None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(scene_images.all_squared_distances(rows), among, atol=1e-12)


def test_a_kernel_is_one_at_home_and_survives_equal_points():
    rng = np.random.default_rng(0)
    distances = scene_images.all_squared_distances(rng.random((6, 3)).astype(np.float32))
    known = np.array([1, 4])
    rows = scene_images.likeness(distances, known)
    assert rows.shape == (6, 2)
    np.testing.assert_allclose(rows[known].diagonal(), 1, atol=1e-5)
    assert ((rows > 0) & (rows <= 1 + 1e-6)).all()
    assert np.log(rows[known].mean()) > -1  # the mean distance gives 1/e, and exp is convex
    assert np.array_equal(scene_images.likeness(np.zeros((3, 3)), np.array([0])), np.ones((3, 1)))


def test_embeddings_do_not_let_one_column_rule():
    sample = np.array([[0.0, 1.0, 5.0], [2.0, 1.0, 5.0]], dtype=np.float32)
    vector = scene_images.Embedding.of("vector", sample)
    np.testing.assert_allclose(vector(np.array([[2.0, 3.0, 1e9]])), [[1.0, 2.0, 5.0]])
    histogram = scene_images.Embedding.of("histogram", sample)
    np.testing.assert_allclose(histogram(np.array([0.25, 0.0])), [0.5, 0.0])


def test_machines_are_those_of_scikit_learn():
    from sklearn.svm import SVC

    rng = np.random.default_rng(0)
    labels = np.tile([0, 1, 2], 10)
    points = rng.standard_normal((30, 4)) + labels[:, None]
    rows = scene_images.likeness(scene_images.all_squared_distances(points), np.arange(30))
    decisions = scene_methods.Machines(rows, labels).decisions(rows)
    for k in range(3):
        twin = SVC(C=scene_methods.SVM_C, kernel="precomputed").fit(rows, labels == k)
        np.testing.assert_allclose(decisions[:, k], twin.decision_function(rows), atol=1e-4)


# Prices


@pytest.fixture
def prices():
    pieces, names = catalogue(), ["sift16_level0", "sift16_level2", "tiny8"]
    cost = {name: 2.0**i for i, name in enumerate(pieces.required(names))}
    cost |= {f"{name}: kernel": 0.25 for name in names}
    cost |= {f"{name}: wide kernel": 0.5 for name in names}
    cost |= {"svm": 0.01, "wide svm": 0.1, "linear": 0.2, "tree": 0.001}
    timed = pd.DataFrame({"resource": list(cost), "milliseconds": list(cost.values())})
    return scene_costs.Prices.of(timed, pieces, names, ["coast", "street"]), cost


def test_what_descriptors_share_is_charged_once(prices):
    costs, cost = prices[0].miser, prices[1]
    shared = ("decode", "image", "gradients", "oriented", "sift16", "sift16_words")
    below = sum(cost[name] for name in shared)
    first = costs.total(["sift16_level0: coast"])
    assert first == pytest.approx(below + cost["sift16_level0"] + 0.25 + 0.01)
    # The second class of the same descriptor costs one evaluation, as in the paper.
    assert costs.total(["sift16_level0: coast", "sift16_level0: street"]) - first == pytest.approx(
        0.01
    )
    # A pyramid on the same words costs its histogram, its kernel row and its evaluation.
    more = costs.total(["sift16_level0: coast", "sift16_level2: coast"]) - first
    assert more == pytest.approx(cost["sift16_level2"] + 0.25 + 0.01)
    assert costs.tree_cost == 0.001


def test_the_averaged_kernel_pays_for_all_and_evaluates_once(prices):
    costs, cost = prices[0].svm, prices[1]
    pieces = catalogue().required(costs.feature_names)
    everything = sum(cost[name] for name in pieces)
    assert costs.total(costs.feature_names) == pytest.approx(everything + 3 * 0.5 + 0.1)
    assert prices[0].linear.total(costs.feature_names) == pytest.approx(everything + 0.2)


def test_cheap_sets_grow_to_all(prices):
    sets = scene_costs.cheap_sets(prices[0])
    assert sets[-1] == ["sift16_level0", "sift16_level2", "tiny8"]
    assert all(set(a) < set(b) for a, b in itertools.pairwise(sets))


# The whole path


METHODS = {
    "stage-wise", "miser", "miser + early exit", "early exit", "early exit, every 10 rounds",
    "SVM, all descriptors", "SVM, cheap descriptors", "l1",
}  # fmt: skip


def test_every_method_has_points_in_every_split(finished):
    results, out, _ = finished
    curves = pd.read_csv(out / "curves.csv")
    pd.testing.assert_frame_equal(curves, results.tables["curves"], check_dtype=False)
    assert set(curves["method"]) == METHODS
    assert curves.groupby("method")["split"].nunique().eq(2).all()
    assert {"method", "split", "parameter", "cost", "score", "n_trees", "n_features"} <= set(curves)
    assert curves["score"].between(0, 1).all()
    assert np.isfinite(curves.drop(columns="method").to_numpy(float)).all()


def test_textures_are_told_apart(finished):
    curves = finished[0].tables["curves"]
    best = curves.groupby("method")["score"].max()
    assert (best > 0.8).all(), best


def test_a_stingy_miser_is_cheap_and_a_mad_one_buys_nothing(finished):
    curves = finished[0].tables["curves"]
    miser = curves[(curves["method"] == "miser") & (curves["split"] == 0)].set_index("parameter")
    stagewise = curves[(curves["method"] == "stage-wise") & (curves["split"] == 0)].iloc[0]
    assert miser.loc[0.0, "cost"] == stagewise["cost"]
    assert miser.loc[0.01, "cost"] < stagewise["cost"]
    assert miser.loc[1000.0, "cost"] == 0
    assert miser.loc[1000.0, "n_descriptors"] == 0


def test_exits_only_save(finished):
    curves = finished[0].tables["curves"]
    whole = curves[curves["method"] == "stage-wise"].set_index("split")["cost"]
    early, rarer = (
        curves[curves["method"] == method].set_index(["split", "parameter"], drop=False)
        for method in ("early exit", "early exit, every 10 rounds")
    )
    assert (early["cost"] <= rarer["cost"]).all()
    assert (early["cost"] <= early["split"].map(whole) * (1 + 1e-12)).all()
    np.testing.assert_allclose(early[early["parameter"] == 1]["cost"], whole)


def test_exits_leave_before_dear_features_are_bought():
    rng = np.random.default_rng(0)
    y = np.tile([0, 1, 2], 100)
    X = rng.standard_normal((300, 2))
    X[:, 0] += 4 * y  # tells most rows apart, and costs next to nothing
    X[:, 1] += 1.5 * y
    costs = CostModel({"a: x": 1.0, "b: x": 100.0})
    # Stumps take the dear feature only when the cheap one has told what it can.
    model = MiserClassifier(costs, max_iter=40, max_depth=1, n_jobs=1).fit(X, y)
    assert model.cost_ == 101
    part = scene_methods.LabelledImages(X, y)
    exits = scene_methods._exits(model, part, part, every=1)
    spent = [exit_["cost"] for exit_ in exits]
    assert spent == sorted(spent)
    assert spent[0] < 50
    assert spent[-1] == pytest.approx(101)
    assert exits[-1]["score"] == part.accuracy(model)


def test_the_free_exit_is_the_cheapest_that_loses_nothing():
    exits = [scene_methods._exit(s, 10 * s, v, 0.0, 0.0) for s, v in [(1, 0.7), (2, 0.9), (3, 0.8)]]
    assert scene_methods._free_exit(exits)["parameter"] == 2
    assert scene_methods._free_exit(exits[:1])["parameter"] == 1


def test_the_meter_agrees_with_the_prices(finished, data):
    results, *_ = finished
    timed = results.tables["timings"]
    pieces = catalogue(SMALL["n_words"])
    prices = scene_costs.Prices.of(timed, pieces, DESCRIPTORS, CLASSES)
    curves = results.tables["curves"]
    svm = curves[curves["method"] == "SVM, all descriptors"]
    model = scene_methods.AveragedKernelSVM(DESCRIPTORS, prices.svm)
    assert svm["cost"].to_numpy() == pytest.approx(model.prediction_costs(np.ones((2, 3))))
    pieces_of_all = timed[timed["resource"].isin(pieces.required(DESCRIPTORS))]
    assert len(pieces_of_all) == len(pieces.required(DESCRIPTORS))
    assert (pieces_of_all["milliseconds"] > 0).all()


def test_the_comparison_tells_who_gets_there(finished):
    table = finished[0].tables["comparison"].set_index("method")
    assert set(table.index) == METHODS
    assert table.loc["stage-wise", "of_stagewise"] == pytest.approx(1)
    assert table.loc["SVM, all descriptors", "n_splits"] == 2
    assert table.loc["miser", "splits_reached"] == 2
    assert table.loc["miser", "of_stagewise"] <= 1


def test_descriptors_are_priced_and_scored_alone(finished):
    table = finished[0].tables["descriptors"]
    assert set(table["descriptor"]) == set(DESCRIPTORS)
    assert table["cost"].is_monotonic_increasing
    assert table.set_index("descriptor").loc["sift16_level1", "score"] > 0.7
    assert table["score"].between(0, 1).all()


def test_comparison_by_hand():
    curves = pd.DataFrame(
        [
            ("stage-wise", 0, 0.0, 100.0, 0.80), ("stage-wise", 1, 0.0, 50.0, 0.90),
            ("SVM, all descriptors", 0, 3.0, 200.0, 0.85),
            ("SVM, all descriptors", 1, 3.0, 200.0, 0.7),
            ("miser", 0, 0.1, 20.0, 0.70), ("miser", 0, 0.01, 40.0, 0.80),
            ("miser", 1, 0.1, 10.0, 0.90), ("miser", 1, 0.01, 30.0, 0.95),
        ],
        columns=["method", "split", "parameter", "cost", "score"],
    )  # fmt: skip
    curves = curves.assign(
        valid_score=curves["score"], valid_cost=curves["cost"], n_trees=1, n_features=1,
        n_descriptors=1,
    )  # fmt: skip
    table = scene15.comparison(curves).set_index("method")
    assert table.loc["miser", "of_stagewise"] == pytest.approx((0.4 + 0.2) / 2)
    assert table.loc["miser", "of_stagewise_sd"] == pytest.approx(0.1)
    assert table.loc["miser", "of_svm"] == pytest.approx((0.2 + 0.05) / 2)
    assert table.loc["miser", "on_mean_curve"] == 35
    assert table.loc["SVM, all descriptors", "splits_reached"] == 1


def test_the_figure_and_the_tables_are_there(finished):
    results, out, said = finished
    assert results.figures["figure3"] == out / "figure3.png"
    assert (out / "figure3.png").read_bytes().startswith(b"\x89PNG")
    for name in ("curves", "mean_curves", "timings", "descriptors", "comparison"):
        assert (out / f"{name}.csv").is_file()
    assert ("splits", 2, 2) in said
    assert any(what == "images described" for what, *_ in said)


def test_a_second_run_computes_nothing(finished, data, monkeypatch):
    results, out, _ = finished

    def refuse(*_, **__):
        raise AssertionError("computed again")

    for step in ("learn_codebooks", "_describe_images", "all_squared_distances"):
        monkeypatch.setattr(scene_images, step, refuse)
    for step in ("timings", "machine_features", "miser_curves", "svm_table", "l1_table"):
        monkeypatch.setattr(scene15, step, refuse)
    again = scene15.run(data, Workspace(out, {}), **SMALL)
    pd.testing.assert_frame_equal(again.tables["curves"], results.tables["curves"])


def test_new_timings_train_only_the_misers_again(finished, data, monkeypatch):
    _, out, _ = finished
    timed = pd.read_csv(out / "cache" / "timings.csv")
    dearer = timed.assign(milliseconds=timed["milliseconds"] * 1.5)
    (out / "cache" / "timings.csv").unlink()
    monkeypatch.setattr(scene15, "timings", lambda *_: dearer)
    monkeypatch.setattr(scene_costs, "PRICE_LIMITS", ())
    monkeypatch.setattr(scene15, "machine_features", None)
    monkeypatch.setattr(scene15, "l1_table", None)
    results = scene15.run(data, Workspace(out, {}), **SMALL)
    curves = results.tables["curves"]
    svm = curves[curves["method"] == "SVM, all descriptors"]["cost"]
    before = finished[0].tables["curves"]
    was = before[before["method"] == "SVM, all descriptors"]["cost"]
    np.testing.assert_allclose(svm.to_numpy(), 1.5 * was.to_numpy())


def test_the_small_version_is_a_version(data, tmp_path):
    results = scene15.run(
        data, Workspace(tmp_path, {}), True, train_per_class=20, val_per_class=6, timing_images=3
    )
    assert len(results.tables["descriptors"]) == len(scene15.SMALL["descriptors"])
    assert results.tables["curves"]["split"].nunique() == 1
    assert (tmp_path / "figure3.png").is_file()


def test_several_processes_see_the_same(data, tmp_path):
    images = scene_images.read_images(data)
    pieces, names = catalogue(), ["tiny8", "census_level0"]
    settings = dict.fromkeys(scene_images.EXTRACTION, 0)
    one, two = (
        scene_images.extract(images, pieces, names, Workspace(tmp_path / str(n), settings), n)
        for n in (1, 2)
    )
    for name in names:
        assert len(one[name]) == 4 * PER_CLASS
        assert np.array_equal(one[name], two[name])


# The real images


def test_the_real_images_are_read():
    folder = os.environ.get("GREEDYMISER_DATA")
    if not folder or not (Path(folder) / "scene15" / scene_images.IMAGES).is_file():
        pytest.skip("needs external data: set GREEDYMISER_DATA to a folder with scene15/images.tar")
    images = scene_images.read_images(Path(folder) / "scene15")
    assert len(images.files) == 4467  # 4485 less the second of 18 pairs
    assert len(images.classes) == 15
    assert np.bincount(images.labels).min() >= 200
