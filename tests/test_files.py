"""Model files: what is saved comes back bit for bit, and nothing else does."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from scipy import sparse
from scipy.special import expit
from sklearn.pipeline import make_pipeline

from experiments.cronus import Cronus
from greedymiser import (
    CostModel,
    EarlyExitClassifier,
    EarlyExitRanker,
    MiserClassifier,
    MiserRanker,
    MiserRegressor,
    ModelFamily,
    ModelFileError,
    Predictor,
    as_predictor,
    load,
    save,
    tradeoff_curve,
)
from greedymiser.costs.errors import as_error_costs
from greedymiser.files.container import TENSOR_DTYPES, from_safetensors, to_safetensors
from greedymiser.files.model_format import FORMAT
from greedymiser.losses import Huber, LambdaMART, Loss, Poisson, Quantile
from greedymiser.model.exit_rules import Above
from greedymiser.model.predictor import Stage

FILES = Path(__file__).parent / "files"
KEPT = sorted(FILES.glob("format-*.miser"))
SMALL = {"max_iter": 12, "max_depth": 3, "n_jobs": 1}


# Data


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.standard_normal((300, 3)), columns=["age", "größe", "x y"])
    frame.loc[::7, "age"] = np.nan
    frame.loc[::50, "x y"] = np.inf
    frame["colour"] = pd.Categorical(rng.choice(["rot", "", "grün", "日本", "a" * 99], 300))
    frame["code"] = pd.Categorical(rng.choice([7, 11, 13], 300))
    frame["grade"] = pd.Categorical(rng.choice([0.5, -0.0, np.inf], 300))
    frame["known"] = pd.Categorical(rng.choice([True, False], 300))
    mixture = np.array(["yes", 3, 2.5, True, 10**30, -np.inf], dtype=object)
    frame["answer"] = pd.Categorical(mixture[rng.integers(6, size=300)])
    return frame


@pytest.fixture(scope="module")
def target(frame) -> np.ndarray:
    y = frame["age"].fillna(1.0) + frame["größe"] + (frame["colour"] == "rot")
    y += (frame["code"] == 11) + 0.5 * (frame["grade"] == 0.5) + 0.5 * (frame["answer"] == "yes")
    return y.to_numpy()


@pytest.fixture(scope="module")
def numbers(frame) -> np.ndarray:
    return frame[["age", "größe", "x y"]].to_numpy()


QID = np.repeat(np.arange(30), 10)


def shared_costs(names: list[str]) -> CostModel:
    """Every feature needs something of its own, and all but the first share a visit."""
    needs = {name: [name, *(["visit"] if i else [])] for i, name in enumerate(names)}
    prices = {name: 0.1 * i for i, name in enumerate(names)} | {"visit": 1 / 3}
    return CostModel.from_resources(prices, needs, tree_cost=0.01)


def assert_same(model: Any, path: Path, X: Any, qid: Any = None) -> Predictor:
    """Save and load a model, and compare all that it can be asked, bit for bit."""
    save(model, path)
    mine, loaded = as_predictor(model), load(path)
    queries = {} if qid is None else {"qid": qid}
    for method in ("predict", "raw_predict", "prediction_costs", "leaving_stages"):
        expected = getattr(mine, method)(X, **queries)
        got = getattr(loaded, method)(X, **queries)
        assert got.dtype == expected.dtype
        assert got.tobytes() == expected.tobytes() or got.tolist() == expected.tolist()
    assert loaded.predict(X, **queries).tolist() == model.predict(X, **queries).tolist()
    if mine.kind == "classifier":
        assert loaded.predict_proba(X).tobytes() == mine.predict_proba(X).tobytes()
        assert loaded.classes.dtype == mine.classes.dtype
        assert [type(c) for c in loaded.classes.tolist()] == [
            type(c) for c in mine.classes.tolist()
        ]
    assert loaded.receipt() == mine.receipt()
    assert str(loaded.receipt()) == str(mine.receipt())
    assert loaded.costs == mine.costs
    assert loaded.feature_names == mine.feature_names
    for attribute in ("kind", "rule", "n_features", "cost_", "features_used_", "resources_used_"):
        assert getattr(loaded, attribute) == getattr(mine, attribute)
    assert loaded.stage_costs.tolist() == mine.stage_costs.tolist()
    again = path.with_name("again.miser")
    save(loaded, again)
    assert again.read_bytes() == path.read_bytes()
    return loaded


# Round trips


@pytest.mark.parametrize(
    "loss",
    ["squared_error", "absolute_error", "huber", "quantile", "poisson", "gamma", Huber(0.3),
     Quantile(0.9), Huber(np.float32(2))],
    ids=lambda loss: loss if isinstance(loss, str) else type(loss).__name__,
)  # fmt: skip
def test_regressors(frame, target, tmp_path, loss):
    y = np.exp(target) if loss in ("poisson", "gamma") else target
    costs = shared_costs(list(frame.columns))
    model = MiserRegressor(costs, tradeoff=1e-5, loss=loss, **SMALL).fit(frame, y)
    assert set(model.features_used_) >= {"colour", "code"}
    loaded = assert_same(model, tmp_path / "m.miser", frame)
    assert type(loaded.loss) is type(model.predictor_.loss)
    assert vars(loaded.loss) == vars(model.predictor_.loss)
    for known, mine in zip(loaded.categories.values(), model.categories_.values(), strict=True):
        assert known.dtype == mine.dtype
        assert list(map(repr, known.tolist())) == list(map(repr, mine.tolist()))


@pytest.mark.parametrize(
    "labels",
    [
        np.array([3, 7], dtype=np.int8),
        np.array([False, True]),
        np.array(["no", "yes"], dtype="<U9"),
        np.array(["no", "a long answer"], dtype=object),
        np.array([-1, 2**40, 5]),
        np.array([0.0, 1.0, 2.0], dtype=np.float32),
        np.array(["", "ja", "日本\udc80", "ô"]),
        np.array(["b", "a", "c" * 300], dtype="<U999"),
        np.array([1, 2, 3], dtype=">u2"),
    ],
    ids=lambda labels: f"{labels.dtype}-{len(labels)}",
)
def test_classifiers(frame, target, numbers, tmp_path, labels):
    edges = np.quantile(target, np.arange(1, len(labels)) / len(labels))
    y = labels[np.digitize(target, edges)]
    for X in (frame, numbers):
        model = MiserClassifier(tradeoff=1e-4, **SMALL).fit(X, y)
        loaded = as_predictor(model)
        known = {">": labels.dtype.newbyteorder("=")}.get(labels.dtype.byteorder, labels.dtype)
        if labels.dtype.str == "<U999":
            known = "<U300"  # as wide as it must be
        target = replace(model.schema_.target, labels=model.classes_.astype(known))
        model.schema_ = replace(model.schema_, target=target)
        loaded = assert_same(model, tmp_path / "m.miser", X)
        assert loaded.predict(X).tolist() == model.predict(X).tolist()


@pytest.mark.parametrize("loss", ["lambdamart", "squared_error", LambdaMART(5, sigma=2.0)])
def test_rankers(numbers, target, tmp_path, loss):
    y = np.clip(np.round(target), 0, 4)
    model = MiserRanker(loss=loss, tradeoff=1e-4, **SMALL).fit(numbers, y, qid=QID)
    loaded = assert_same(model, tmp_path / "m.miser", numbers)
    if not isinstance(loss, str):
        assert (loaded.loss.truncation, loaded.loss.sigma) == (5, 2.0)
    exits = EarlyExitRanker(model, threshold=0.3, every=3).fit(numbers, y, qid=QID)
    loaded = assert_same(exits, tmp_path / "m.miser", numbers, QID)
    assert len({id(stage.ensemble) for stage in loaded.stages}) == 1
    assert len(set(loaded.leaving_stages(numbers, QID).tolist())) > 1


@pytest.mark.parametrize("threshold", [0.7, None])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_early_exits(frame, target, tmp_path, n_classes, threshold):
    y = np.digitize(target, np.quantile(target, np.arange(1, n_classes) / n_classes))
    model = MiserClassifier(shared_costs(list(frame.columns)), **SMALL).fit(frame, y)
    exits = EarlyExitClassifier(model, threshold=threshold, every=5).fit(frame, y)
    loaded = assert_same(exits, tmp_path / "m.miser", frame)
    assert [stage.last for stage in loaded.stages] == [5, 10, 12]
    assert loaded.about["base"]["estimator"] == "MiserClassifier"
    assert loaded.about["threshold"] == exits.threshold_ or threshold is None


@pytest.mark.parametrize("thresholds", [(0.5, -np.inf), (np.inf, 0.0), (0.25, 0.5, 9.0)])
def test_cascades(frame, target, tmp_path, thresholds):
    model = MiserRegressor(shared_costs(list(frame.columns)), **SMALL).fit(frame, target)
    whole = model.ensemble_
    stages = (
        Stage(model.truncate(3).ensemble_, 0, 3, 3),
        Stage(whole, 0, 7, 7),
        Stage(whole, 7, whole.n_iter, whole.n_trees),
    )
    cascade = replace(as_predictor(model), stages=stages, rule=Above(thresholds))
    loaded = assert_same(cascade, tmp_path / "m.miser", frame)
    assert loaded.stages[1].ensemble is loaded.stages[2].ensemble
    assert loaded.stages[0].ensemble is not loaded.stages[1].ensemble
    assert loaded.about == {}


def test_cronus(numbers, target, tmp_path):
    base = MiserRegressor(CostModel(np.ones(2), tree_cost=0.01), **SMALL | {"max_iter": 40})
    model = Cronus(base, n_stages=3, tradeoff=1e-4).fit(numbers[:, :2], target)
    loaded = assert_same(model, tmp_path / "m.miser", numbers[:, :2])
    assert len(loaded.stages) > 1
    assert loaded.about["estimator"] == "Cronus"
    assert loaded.about["base"]["estimator"] == "MiserRegressor"


def test_models_without_trees(numbers, target, tmp_path):
    model = MiserRegressor(tradeoff=1e9, **SMALL).fit(numbers, target)
    assert model.n_iter_ == 0
    assert_same(model, tmp_path / "m.miser", numbers)
    three = MiserClassifier(tradeoff=1e9, **SMALL).fit(numbers, np.digitize(target, [0, 1]))
    assert_same(three, tmp_path / "m.miser", numbers)
    exits = EarlyExitClassifier(three, threshold=0.5).fit(numbers, three.predict(numbers))
    assert_same(exits, tmp_path / "m.miser", numbers)


def test_truncated_models(frame, target, tmp_path):
    model = MiserRegressor(**SMALL).fit(frame, target)
    for n_iter in (0, 1, 5, model.n_iter_):
        short = model.truncate(n_iter)
        loaded = assert_same(short, tmp_path / "m.miser", frame)
        # The sets of the trees that are gone are gone too.
        last = short.ensemble_.nodes["category_set"].max(initial=-1)
        assert len(loaded.stages[0].ensemble.category_sets) == last + 1


@pytest.mark.parametrize(
    "costs",
    [
        None,
        [5.0, 0.0, 1e-3],
        CostModel([1, 2, 3], groups=["a", "a", None], group_costs={"a": 0.1}, tree_cost=0.5),
        CostModel({"p": 1.0, "q": 2.0, "r": 0.1}),
        CostModel.from_resources({"one": 1.0, "unused": 7.0}, [["one"], [], ["one"]]),
    ],
    ids=["none", "list", "groups", "names for nameless columns", "resources"],
)
def test_costs(numbers, target, tmp_path, costs):
    model = MiserRegressor(costs, tradeoff=1e-6, **SMALL).fit(numbers, target)
    assert_same(model, tmp_path / "m.miser", numbers)


def test_every_kind_of_table(frame, target, numbers, tmp_path):
    model = MiserRegressor(**SMALL).fit(frame.drop(columns="answer"), target)
    loaded = assert_same(model, tmp_path / "m.miser", frame.drop(columns="answer"))
    expected = model.predict(frame.drop(columns="answer")).tolist()
    # Other columns, other order, other library.
    assert loaded.predict(frame[reversed(frame.columns)]).tolist() == expected
    named = MiserRegressor(**SMALL).fit(frame[["age", "größe"]], target)
    save(named, tmp_path / "m.miser")
    polar = pl.DataFrame({"größe": frame["größe"].to_numpy(), "age": frame["age"].to_numpy()})
    wanted = named.predict(frame[["age", "größe"]]).tolist()
    assert load(tmp_path / "m.miser").predict(polar).tolist() == wanted
    plain = MiserRegressor(categorical_features=[1], **SMALL)
    X = np.column_stack([numbers[:, 0], np.arange(300) % 5])
    plain.fit(X, target)
    assert_same(plain, tmp_path / "m.miser", X)
    assert_same(plain, tmp_path / "m.miser", X.astype(np.float32))
    assert_same(plain, tmp_path / "m.miser", sparse.csr_array(np.nan_to_num(X)))


def test_equal_models_make_equal_files(frame, target, tmp_path):
    for name, n_jobs in (("a", 1), ("b", 2)):
        model = MiserRegressor(**SMALL | {"n_jobs": n_jobs}).fit(frame, target)
        save(model, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


LABEL = st.one_of(
    st.text(alphabet=st.characters(exclude_categories=[])),
    st.booleans(),
    st.integers(-(10**99), 10**99),
    st.floats(allow_nan=False),
)


@given(st.lists(LABEL, unique=True, max_size=20))
def test_any_labels_of_categories(labels):
    known = np.empty(len(labels), dtype=object)
    known[:] = labels
    predictor = replace(load(FILES / "format-1-constant.miser"), categories={1: known})
    data = encoded(predictor)
    [(feature, got)] = decoded(data).categories.items()
    assert feature == 1
    assert got.dtype == object
    assert list(map(repr, got.tolist())) == list(map(repr, labels))
    assert encoded(decoded(data)) == data


def encoded(predictor: Predictor) -> bytes:
    from greedymiser.files.writing import about, encode

    return encode(predictor, about(predictor))


def decoded(data: bytes) -> Predictor:
    from greedymiser.files.reading import decode

    return decode(data)


# Information


def test_what_a_file_tells_about_training(numbers, target, tmp_path):
    def careful(model: Any, X: Any, y: Any) -> float:
        return -float(np.abs(model.predict(X) - y).max())

    model = MiserRegressor(
        tradeoff=1e-4, budget=np.float64(9), scoring=careful, loss=Huber(0.5),
        monotonic_cst=np.array([1, 0, 0]), random_state=np.random.RandomState(0), **SMALL,
    )  # fmt: skip
    model.fit(numbers, target, X_val=numbers, y_val=target)
    save(model, tmp_path / "m.miser")
    about = load(tmp_path / "m.miser").about
    assert about["estimator"] == "MiserRegressor"
    assert about["stopped"] == model.stopped_
    assert about["validation_score"] == model.validation_score_[model.n_iter_]
    told = about["parameters"]
    assert (told["tradeoff"], told["budget"], told["max_iter"]) == (1e-4, 9.0, 12)
    assert (told["loss"], told["random_state"]) == ("Huber", "RandomState")
    assert told["scoring"].endswith("careful")
    assert told["monotonic_cst"] == [1, 0, 0]
    assert "n_jobs" not in told
    assert set(about["changed"]) == {
        "tradeoff", "budget", "scoring", "loss", "monotonic_cst", "random_state", "max_iter",
        "max_depth",
    }  # fmt: skip


def test_one_flipped_bit_is_noticed(frame, target, tmp_path):
    """Wherever it is: the file is refused, or it is the same model (spaces, the checksum's key)."""
    path, flipped = tmp_path / "m.miser", tmp_path / "flipped.miser"
    save(MiserRegressor(max_iter=2, max_depth=2, n_jobs=1).fit(frame, target), path)
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    body = 8 + int.from_bytes(data[:8], "little")
    positions = [*rng.integers(body, size=300), *rng.integers(body, len(data), size=300)]
    kept = 0
    for position in positions:
        damaged = bytearray(data)
        damaged[position] ^= 1 << rng.integers(8)
        flipped.write_bytes(damaged)
        try:
            loaded = load(flipped)
        except ModelFileError:
            continue
        assert position < body
        assert encoded(loaded) == data
        kept += 1
    assert kept < 10


def test_a_changed_number_is_told_apart_from_what_was_saved(numbers, target, tmp_path):
    path = tmp_path / "m.miser"
    model = MiserRegressor(**SMALL).fit(numbers, target)
    save(model, path)
    data, value = path.read_bytes(), model.ensemble_.nodes["value"][1:2].tobytes()
    assert data.count(value) == 1
    path.write_bytes(data.replace(value, np.array([0.5]).tobytes()))
    with pytest.raises(ModelFileError, match="its checksum is wrong: it was damaged, or changed"):
        load(path)


def test_number_of_threads():
    assert load(KEPT[0]).n_jobs is None
    assert load(KEPT[0], n_jobs=1).n_jobs == 1


def test_the_container_is_plain_safetensors(numbers, target, tmp_path):
    model = MiserRegressor(**SMALL).fit(numbers, target)
    save(model, tmp_path / "m.miser")
    with safe_open(tmp_path / "m.miser", framework="numpy") as file:
        assert json.loads(file.metadata()["greedymiser"])["format"] == 1
        values = file.get_tensor("ensemble.0.nodes.value")
    np.testing.assert_array_equal(values, model.ensemble_.nodes["value"])


# Losses of a user


class LogCosh(Loss):
    def values(self, y, raw):
        return np.logaddexp(raw - y, y - raw) - np.log(2.0)

    def gradients(self, y, raw):
        slope = np.tanh(raw - y)
        return slope, 1.0 - slope**2


class Shouted(LogCosh):
    def response(self, raw):
        return 2 * raw


class Share(Loss):
    """Log-loss of a share between 0 and 1."""

    def values(self, y, raw):
        return np.logaddexp(0.0, raw) - y * raw

    def gradients(self, y, raw):
        p = expit(raw)
        return p - y, p * (1.0 - p)

    def response(self, raw):
        return 1 / (1 + np.exp(-raw))


class Duck:
    """A loss that does not derive from Loss."""

    def values(self, y, raw):
        return (raw - y) ** 2

    def gradients(self, y, raw):
        return 2 * (raw - y), np.full(len(y), 2.0)


@pytest.mark.parametrize("loss", [LogCosh(), Duck()], ids=["LogCosh", "Duck"])
def test_own_loss_that_answers_as_it_is(numbers, target, tmp_path, loss):
    model = MiserRegressor(loss=loss, **SMALL).fit(numbers, target)
    loaded = assert_same(model, tmp_path / "m.miser", numbers)
    assert loaded.loss.n_outputs == 1
    assert loaded.about["parameters"]["loss"] == type(loss).__name__


def test_own_loss_that_answers_as_a_known_one(numbers, target, tmp_path):
    class Rare(Poisson):
        pass

    model = MiserRegressor(loss=Rare(), **SMALL).fit(numbers, np.exp(target))
    assert_same(model, tmp_path / "m.miser", numbers)


def test_own_loss_with_a_response_of_its_own(numbers, target, tmp_path):
    path = tmp_path / "m.miser"
    model = MiserRegressor(loss=Share(), **SMALL).fit(numbers, expit(target))
    with pytest.raises(
        ValueError, match=r"loss Share has a response of its own, .*response=\.\.\."
    ):
        save(model, path)
    with pytest.raises(ValueError, match="'exp' is not how the loss Share answers"):
        save(model, path, response="exp")
    with pytest.raises(ValueError, match="response='logit' is unknown; choose from"):
        save(model, path, response="logit")
    assert not path.exists()
    save(model, path, response="sigmoid")
    loaded = load(path)
    np.testing.assert_allclose(loaded.predict(numbers), model.predict(numbers))
    save(loaded, tmp_path / "again.miser")
    assert (tmp_path / "again.miser").read_bytes() == path.read_bytes()
    # A ranker never asks its loss for a response.
    ranker = MiserRanker(loss=Shouted(), **SMALL).fit(numbers, target - target.min(), qid=QID)
    assert_same(ranker, path, numbers)


def test_own_loss_of_a_classifier(numbers, target, tmp_path):
    class Logistic(Share):
        def response(self, raw):
            return np.stack([1.0 - expit(raw), expit(raw)])

    model = MiserClassifier(loss=Logistic(), **SMALL).fit(numbers, target > 0)
    with pytest.raises(ValueError, match="'sigmoid' is not how"):
        save(model, tmp_path / "m.miser", response="sigmoid")
    save(model, tmp_path / "m.miser", response="two_classes")
    loaded = load(tmp_path / "m.miser")
    np.testing.assert_array_equal(loaded.predict_proba(numbers), model.predict_proba(numbers))


# What cannot be saved


def test_models_that_cannot_be_saved(numbers, target, tmp_path):
    path = tmp_path / "m.miser"
    with pytest.raises(TypeError, match="MiserRegressor is not a fitted model"):
        save(MiserRegressor(), path)
    with pytest.raises(TypeError, match="Pipeline is not a fitted model"):
        save(make_pipeline(MiserRegressor()), path)

    model = as_predictor(MiserRegressor(**SMALL).fit(numbers, target))

    class Never:
        compares_rows = False

    with pytest.raises(ValueError, match="its exit rule Never is not one of this library"):
        save(replace(model, rule=Never()), path)
    with pytest.raises(ValueError, match="the classes have type complex128"):
        save(replace(model, classes=np.array([1j, 2j])), path)
    with pytest.raises(ValueError, match="it has the name 5, which is not a string"):
        save(replace(model, feature_names=("a", 5, "b")), path)
    broken = replace(model.stages[0].ensemble, baseline=np.array([np.nan]))
    stages = (replace(model.stages[0], ensemble=broken),)
    with pytest.raises(ValueError, match="cannot save the model: its baseline is not a number"):
        save(replace(model, stages=stages), path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "labels",
    [
        pd.cut(np.arange(300), 3),
        pd.Categorical(np.array(["2020-01-01", "2021-01-01", "2022-01-01"] * 100, "M8[us]")),
        pd.Categorical(np.array(["2020-01-01", "2021-01-01", "2022-01-01"] * 100, "M8[ns]")),
        pd.Categorical([(1, 2), (3, 4), (5, 6)] * 100),
    ],
    ids=["intervals", "dates", "nanoseconds", "tuples"],
)
def test_categories_that_have_no_place_in_a_file(target, tmp_path, labels):
    X = pd.DataFrame({"a": np.arange(300.0), "odd": labels})
    model = MiserRegressor(**SMALL).fit(X, target)
    with pytest.raises(
        ValueError, match=r"the categories of feature 'odd' have .*of type .*strings"
    ):
        save(model, tmp_path / "m.miser")


# Where files go


@pytest.fixture
def model(numbers, target):
    return MiserRegressor(**SMALL).fit(numbers, target)


def test_names_of_files(model, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    save(model, "~/home.miser")
    assert load("~/home.miser").cost_ == model.cost_
    save(model, str(tmp_path / ("n" * 250)))
    monkeypatch.chdir(tmp_path)
    save(model, "~nobody.miser")  # no user's home, but a name
    Path("~nobody.miser").unlink()
    save(model, "here")
    save(model, Path("here"))
    assert load("here").cost_ == model.cost_
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "home.miser", "n" * 250]


def test_places_that_are_no_places(model, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder '.*gone' to save a model in"):
        save(model, tmp_path / "gone" / "m.miser")
    with pytest.raises(IsADirectoryError, match="it is a folder"):
        save(model, tmp_path)
    for name in (f"{tmp_path}/new/", f"{tmp_path}/new/m.miser/"):
        with pytest.raises(IsADirectoryError, match="/': that is the name of a folder"):
            save(model, name)
    for name in ("loop", "other"):
        (tmp_path / name).symlink_to({"loop": "other", "other": "loop"}[name])
    with pytest.raises(OSError, match=r"as '.*loop': it is a link that leads back to itself"):
        save(model, tmp_path / "loop")
    assert (tmp_path / "loop").is_symlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileExistsError, match="not a regular file"):
        save(model, tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="not a regular file"):
        load(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.miser")
    with pytest.raises(IsADirectoryError):
        load(tmp_path)


def test_a_link_goes_on_pointing(model, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/m.miser")
    save(model, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert load(tmp_path / "folder" / "m.miser").cost_ == model.cost_


def test_permissions(model, tmp_path):
    before = os.umask(0o027)
    try:
        save(model, tmp_path / "m.miser")
        assert stat.S_IMODE((tmp_path / "m.miser").stat().st_mode) == 0o640
        (tmp_path / "m.miser").chmod(0o604)
        save(model, tmp_path / "m.miser")
        assert stat.S_IMODE((tmp_path / "m.miser").stat().st_mode) == 0o604
    finally:
        os.umask(before)


def test_the_unit_of_costs_is_told(model, tmp_path):
    path = tmp_path / "m.miser"
    save(model, path, cost_unit="dollars")
    served = load(path)
    assert served.about["cost_unit"] == "dollars"
    save(served, path)
    assert load(path).about["cost_unit"] == "dollars"
    save(served, path, cost_unit="euros")
    assert load(path).about["cost_unit"] == "euros"
    for nothing in (None, ""):
        save(model, path, cost_unit=nothing)
        assert "cost_unit" not in load(path).about
    with pytest.raises(TypeError, match="cost_unit must be a string, got 5"):
        save(model, path, cost_unit=5)


@pytest.mark.parametrize("where", ["fsync", "replace", "chmod"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()], ids=repr)
def test_an_interruption_leaves_the_old_file(model, tmp_path, monkeypatch, where, error):
    path = tmp_path / "m.miser"
    save(model, path)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, where, fail)
        with pytest.raises(type(error)):
            save(model.truncate(2), path)
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == ["m.miser"]


# Families


@pytest.fixture(scope="module")
def curves(frame, target) -> dict[str, Any]:
    """Curves of all kinds; trees cost something, so that rounds of one model are many models."""
    costs = shared_costs(list(frame.columns))
    three = np.digitize(target, [0.5, 1.5])
    stars = np.clip(np.round(target), 0, 4)
    data = {"X": frame[:200], "X_val": frame[200:], "tradeoffs": [0.0, 0.01, 0.1]}

    def curve(estimator: Any, y: np.ndarray, **more: Any) -> Any:
        return tradeoff_curve(estimator, y=y[:200], y_val=y[200:], **data, **more)

    queries = {"qid": QID[:200], "qid_val": QID[200:]}
    return {
        "regressor": curve(MiserRegressor(costs, **SMALL), target, cost_unit="euros"),
        "classes": curve(MiserClassifier(costs, **SMALL), three),
        "row": curve(MiserClassifier(costs, charge="row", **SMALL), three > 0),
        "ranker": curve(MiserRanker(costs, **SMALL), stars, **queries),
    }


@pytest.mark.parametrize("kind", ["regressor", "classes", "row", "ranker"])
def test_the_front_of_a_curve_comes_back(curves, kind, frame, tmp_path):
    curve, path = curves[kind], tmp_path / "family.miser"
    front = curve.pareto()
    assert len(front) > 4
    save(curve, path)
    family = load(path, n_jobs=1)
    assert isinstance(family, ModelFamily)
    assert (family.model_costs, family.scores) == (tuple(front["cost"]), tuple(front["score"]))
    assert family.scoring == curve.scoring
    assert all(model.n_jobs == 1 for model in (family, *family.models))
    for model, cost in zip(family.models, family.model_costs, strict=True):
        with contextlib.suppress(UserWarning):
            expected = curve.best(cost, train=False)
            assert family.best(cost) is model
            assert model.raw_predict(frame).tobytes() == (
                expected.predictor_.raw_predict(frame).tobytes()
            )
            assert model.prediction_costs(frame).tolist() == (
                expected.prediction_costs(frame).tolist()
            )
            assert model.receipt() == expected.receipt()
            assert model.about["estimator"] == type(expected).__name__
    # It predicts as its best model does.
    assert family.best() is family.models[-1]
    assert family.predict(frame).tolist() == family.models[-1].predict(frame).tolist()
    unit = {"cost_unit": "euros"} if kind == "regressor" else {}
    assert family.about == {**family.models[-1].about, **unit}
    again = tmp_path / "again.miser"
    save(family, again)
    assert again.read_bytes() == path.read_bytes()
    save(family.models[1], again)
    assert not isinstance(load(again), ModelFamily)


def test_trees_that_models_share_are_kept_once(curves, tmp_path):
    save(curves["regressor"], tmp_path / "family.miser")
    tensors, _ = from_safetensors((tmp_path / "family.miser").read_bytes())
    n_models = sum(name.endswith(".stages") for name in tensors)
    n_ensembles = sum(name.endswith(".baseline") for name in tensors)
    assert n_ensembles <= 3 < n_models
    family = load(tmp_path / "family.miser")
    n_trees = [model.stages[0].ensemble.n_trees for model in family.models]
    assert n_trees == [model.stages[-1].n_trees for model in family.models]


def test_early_exits_in_a_family(frame, target, tmp_path):
    """Two ensembles of one model stay two, also where one begins as the other does."""
    model = MiserRegressor(**SMALL).fit(frame, target)
    short, whole = model.truncate(4).ensemble_, model.ensemble_
    stages = (Stage(short, 0, 4, 4), Stage(whole, 0, 2, 4), Stage(whole, 2, 12, 12))
    cascade = replace(as_predictor(model), stages=stages, rule=Above((0.5, 1.0)))
    family = ModelFamily.of([model.truncate(2).predictor_, cascade], [1, 2], [0.1, 0.2], "r2")
    save(family, tmp_path / "family.miser")
    loaded = load(tmp_path / "family.miser")
    assert loaded.raw_predict(frame).tobytes() == cascade.raw_predict(frame).tobytes()
    assert loaded.leaving_stages(frame).tolist() == cascade.leaving_stages(frame).tolist()
    assert loaded.prediction_costs(frame).tolist() == cascade.prediction_costs(frame).tolist()


def test_gated_cascades_in_a_family(tmp_path):
    gated = load(FILES / "format-3-gates.miser")
    first = replace(gated, stages=gated.stages[:1], rule=None, mean_cost=None)
    save(ModelFamily.of([first, gated], [1, 2], [0.1, 0.2], "log_loss"), tmp_path / "f.miser")
    rows = json.loads((FILES / "format-3-gates.json").read_text(encoding="utf-8"))
    X = pd.DataFrame(rows["rows"]).astype(dict.fromkeys(rows["categorical"], "category"))
    for mine, expected in zip(load(tmp_path / "f.miser").models, (first, gated), strict=True):
        assert mine.raw_predict(X).tobytes() == expected.raw_predict(X).tobytes()
        assert mine.prediction_costs(X).tolist() == expected.prediction_costs(X).tolist()
        assert mine.cost_ == expected.cost_


def test_a_budget_chooses_in_a_family(curves, tmp_path):
    save(curves["classes"], tmp_path / "family.miser")
    family = load(tmp_path / "family.miser")
    costs = family.model_costs
    assert family.best(costs[2]) is family.models[2]
    assert family.best((costs[2] + costs[3]) / 2) is family.models[2]
    assert family.best(np.inf) is family.models[-1]
    with pytest.raises(TypeError, match="budget must be a number, got 'all'"):
        family.best("all")
    with pytest.raises(ValueError, match="budget must not be negative, got -1"):
        family.best(-1)
    dear = replace(family, models=family.models[1:], model_costs=costs[1:])
    with pytest.raises(ValueError, match="no model costs at most 0; the cheapest costs"):
        dear.best(0)
    assert repr(family).startswith(f"<ModelFamily of {len(costs)} classifiers, cost 0 to ")
    with pytest.raises(AttributeError, match="of a saved curve, has no 'pareto'"):
        family.pareto()
    assert not hasattr(family, "points")
    assert not hasattr(family, "paretto")


def test_models_of_a_family_must_be_alike(numbers, target, frame):
    one = as_predictor(MiserRegressor(**SMALL).fit(numbers, target))
    two = as_predictor(MiserClassifier(**SMALL).fit(numbers, target > 0))
    dear = replace(two, error_costs=as_error_costs([[0, 1], [5, 0]], two.classes))
    with pytest.raises(ValueError, match="classes, categories and error costs"):
        ModelFamily.of([two, dear], [0, 1], [0, 1], "log_loss")
    others = [
        MiserRegressor(**SMALL).fit(numbers[:, :2], target),
        MiserRegressor(costs=[1, 2, 3], **SMALL).fit(numbers, target),
        MiserClassifier(**SMALL).fit(numbers, target > 0),
    ]
    for other in others:
        with pytest.raises(ValueError, match="must have the same features, costs, classes"):
            ModelFamily.of([one, as_predictor(other)], [0, 1], [0, 1], "r2")
    with pytest.raises(ValueError, match="at least one model, got none"):
        ModelFamily.of([], [], [], "r2")


# Kept files


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_kept_files_load_for_ever(path):
    kept = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    X = pd.DataFrame(kept["rows"]).astype(dict.fromkeys(kept["categorical"], "category"))
    if not kept["named"]:
        X = X.to_numpy(dtype=np.float64)
    model, answers = load(path), kept["answers"]
    qid = kept["qid"]
    # Sums of tree values are the same everywhere; an exponential may differ in its last digit.
    assert model.raw_predict(X, qid).tolist() == answers["raw"]
    # Older versions added up prices as floats, and not as the decimals that were written.
    costs = model.prediction_costs(X, qid)
    np.testing.assert_allclose(costs, answers["prediction_costs"], rtol=4e-16)
    assert model.leaving_stages(X, qid).tolist() == answers["leaving_stages"]
    if model.kind == "classifier":
        assert model.predict(X).tolist() == answers["predict"]
        np.testing.assert_allclose(model.predict_proba(X), answers["predict_proba"], rtol=1e-12)
    else:
        np.testing.assert_allclose(model.predict(X, qid), answers["predict"], rtol=1e-12)
    assert str(model.receipt()) == answers["receipt"]
    assert model.features_used_ == answers["features_used"]
    assert model.resources_used_ == answers["resources_used"]
    for member, expected in zip(
        getattr(model, "models", ()), answers.get("models", ()), strict=True
    ):
        assert member.raw_predict(X).tolist() == expected["raw"]


# Kinds of models that only the present format has.
LATER = {"family", "gates", "first-of-query", "error-costs"}


def test_every_format_has_kept_files():
    kinds = {"regressor", "classes", "early-exit", "ranker", "cascade", "constant"}
    for number, kept in {1: kinds, 2: kinds, FORMAT: LATER}.items():
        for kind in kept:
            path = FILES / f"format-{number}-{kind}.miser"
            assert path in KEPT
            assert load(path).charge == ("row" if number == 2 else "model")


# Files that are wrong


class Opened:
    """A model file, to be changed and closed again."""

    def __init__(self, kind: str):
        number = 2 if kind.startswith("row ") else FORMAT if kind in LATER else 1
        kind = kind.removeprefix("row ")
        tensors, text = from_safetensors((FILES / f"format-{number}-{kind}.miser").read_bytes())
        self.model = json.loads(text)
        self.arrays = {
            name: tensor.array(name, TENSOR_DTYPES[tensor.dtype], tensor.shape)
            for name, tensor in tensors.items()
        }

    def nodes(self, field: str) -> np.ndarray:
        return self.arrays[f"ensemble.0.nodes.{field}"]

    def first(self, condition: np.ndarray) -> int:
        return int(np.flatnonzero(condition)[0])

    @property
    def inner(self) -> int:
        """A node that splits by a number, below a root."""
        numeric = (self.nodes("feature") >= 0) & (self.nodes("category_set") < 0)
        return self.first(numeric & (self.nodes("depth") > 0))

    @property
    def leaf(self) -> int:
        return self.first(self.nodes("feature") < 0)

    @property
    def categorical(self) -> int:
        return self.first(self.nodes("category_set") >= 0)


def put(name: str, where: str | int, value: Any) -> Callable[[Opened], None]:
    """Change one entry of an array."""

    def change(file: Opened) -> None:
        place = getattr(file, where) if isinstance(where, str) else where
        name_of = name if name in file.arrays else f"ensemble.0.nodes.{name}"
        file.arrays[name_of][place] = value

    return change


def tell(*path_and_value: Any) -> Callable[[Opened], None]:
    """Change one entry of the description."""

    def change(file: Opened) -> None:
        *path, last, value = path_and_value
        holder = file.model
        for key in path:
            holder = holder[key]
        holder[last] = value

    return change


def share_a_child(file: Opened) -> None:
    """Two nodes of the first tree get the same children, and two nodes none."""
    left = file.nodes("left")
    file.nodes("left")[2] = left[1]


def leave_out(name: str) -> Callable[[Opened], None]:
    return lambda file: file.arrays.__delitem__(name)


def replace_array(
    name: str, change: Callable[[np.ndarray], np.ndarray]
) -> Callable[[Opened], None]:
    def replaced(file: Opened) -> None:
        file.arrays[name] = change(file.arrays[name])

    return replaced


def put_another_output(file: Opened) -> None:
    """The second ensemble predicts two things at once."""
    file.arrays["ensemble.1.baseline"] = np.zeros(2)
    file.arrays["stages"][1, 2] //= 2


def let_the_first_go_on(file: Opened) -> None:
    """Between parts of one model."""
    file.model["rule"] = {"name": "first_of_query", "stay_ahead": True}
    file.arrays["rule.places"] = np.ones(len(file.arrays["stages"]) - 1, dtype=np.int64)


def put_two_outputs(file: Opened) -> None:
    file.arrays["ensemble.0.baseline"] = np.zeros(2)
    file.model["loss"] = {"name": "own", "response": "identity"}


def long_label(n_short: int, length: int) -> Callable[[Opened], None]:
    """Put a long label behind many short ones: NumPy's fields are all as wide as the longest."""
    values = [*(f"{i:05d}" for i in range(n_short)), "z" * length]
    return tell("classes", {"dtype": f"<U{length}", "values": values})


E0 = "ensemble.0"
BAD = [
    # trees
    ("regressor", put("left", "inner", 0), "a child outside of its tree"),
    ("regressor", put("left", "inner", -2), "a child outside of its tree"),
    ("regressor", put("left", "inner", 10**6), "a child outside of its tree"),
    ("regressor", put("left", "inner", 2**31 - 1), "a child outside of its tree"),
    ("regressor", put("left", "inner", -1), "the child of no other node"),
    ("regressor", put("left", 0, 3), "the child of no other node, or of several"),
    ("regressor", put("left", "leaf", 1), "a child outside of its tree"),
    ("regressor", share_a_child, "the child of no other node, or of several"),
    ("regressor", put("feature", "inner", 5), "an unknown feature"),
    ("regressor", put("feature", "inner", -1), "an unknown feature"),
    ("regressor", put("feature", "leaf", 0), "a leaf splits on a feature"),
    ("regressor", put("category_set", "leaf", 0), "a leaf splits on a feature"),
    ("regressor", put("category_set", "categorical", 99), "an unknown set of categories"),
    ("regressor", put("category_set", "inner", -2), "an unknown set of categories"),
    ("regressor", put("category_set", "inner", 0), "treats numbers as categories"),
    ("regressor", put("category_set", "categorical", -1), "or categories as numbers"),
    ("regressor", put("depth", "inner", 9), "one deeper than its parent"),
    ("regressor", put("depth", 0, 1), "a root has a depth other than 0"),
    ("regressor", put("threshold", "inner", np.nan), "the threshold of a node is not a number"),
    ("regressor", put("threshold", "inner", -np.inf), "the threshold of a node is not a number"),
    ("regressor", put("value", "leaf", np.inf), "the value of a node is not a number"),
    ("regressor", put("gain", "inner", np.nan), "the gain of a node is not a number"),
    ("regressor", put("hessian", "inner", -1.0), "the hessian of a node is negative"),
    ("regressor", put("count", "inner", -1), "the count of a node is negative"),
    ("regressor", put("bin", "inner", 256), "a node has an unknown bin"),
    ("regressor", put(f"{E0}.baseline", 0, np.nan), "its baseline is not a number"),
    ("regressor", put(f"{E0}.tree_starts", 1, 0), "its trees do not follow each other"),
    ("regressor", put(f"{E0}.tree_starts", 1, -(2**63)), "its trees do not follow each other"),
    ("regressor", put(f"{E0}.tree_starts", -1, 2**40), "its trees do not follow each other"),
    ("regressor", put(f"{E0}.tree_starts", 0, 1), "its trees do not follow each other"),
    ("classes", replace_array(f"{E0}.baseline", lambda a: np.append(a, [0.0, 0.0])), "round lacks"),
    ("regressor", leave_out(f"{E0}.nodes.bin"), "no array 'ensemble.0.nodes.bin'"),
    ("regressor", replace_array(f"{E0}.nodes.bin", lambda a: a[:-1]), "has shape"),
    ("regressor", replace_array(f"{E0}.nodes.bin", lambda a: a.astype(np.int64)), "type I64, not"),
    ("regressor", replace_array(f"{E0}.category_sets", lambda a: a[:, :2]), "has shape"),
    ("regressor", replace_array(f"{E0}.category_sets", lambda a: a[:1]), "an unknown set of categ"),
    # stages
    ("early-exit", replace_array("stages", lambda a: a[:0]), "it has no stages"),
    ("early-exit", replace_array("stages", lambda a: a[1:]), "does not begin where its ensemble"),
    ("early-exit", replace_array("stages", lambda a: a[[0, 2, 1]]), "not begin where one ends"),
    ("early-exit", replace_array("stages", lambda a: a[[0, 0, 1, 2]]), "not begin where one ends"),
    ("early-exit", put("stages", (2, 2), 99), "more rounds than its ensemble"),
    ("early-exit", put("stages", (2, 3), 99), "counts more trees than it has"),
    ("early-exit", put("stages", (2, 3), 1), "fewer than the last"),
    ("early-exit", put("stages", (0, 1), -1), "a number that is out of range"),
    ("cascade", put("stages", (1, 0), 2), "out of order"),
    ("cascade", put("stages", (0, 0), 1), "out of order"),
    ("regressor", tell("rule", {"name": "above"}), "no array 'rule.thresholds'"),
    ("early-exit", tell("rule", None), "several stages, but no rule"),
    ("early-exit", tell("rule", "name", "random"), "exit rule 'random' is unknown"),
    ("early-exit", tell("rule", "threshold", -0.5), "of the model is negative"),
    ("early-exit", tell("rule", "threshold", "nan"), "is 'nan', not a number"),
    ("early-exit", tell("rule", "place", 5), "an unknown entry 'place'"),
    ("cascade", put("rule.thresholds", 0, np.nan), "an exit threshold is not a number"),
    ("cascade", replace_array("rule.thresholds", lambda a: a[:0]), "it has 0 exit thresholds for"),
    ("ranker", tell("rule", "place", 0), "not a whole number from 1"),
    ("ranker", tell("rule", "place", 2**30), "not a whole number from 1"),
    ("ranker", tell("rule", {"name": "confident", "threshold": 0.5}), "ranker has no classes"),
    ("ranker", tell("kind", "regressor"), "regressor has no queries"),
    # losses
    ("regressor", tell("loss", "name", "hinge"), "the loss 'hinge' is unknown"),
    ("regressor", tell("loss", "delta", 0.0), "its loss 'huber' is wrong: delta must be positive"),
    ("regressor", tell("loss", {"name": "huber"}), "has no 'delta'"),
    ("regressor", tell("loss", {"name": "own", "response": "os.system"}), "response 'os.system'"),
    ("regressor", tell("loss", {"name": "binary_log_loss"}), "answers with classes"),
    ("classes", tell("loss", "n_outputs", 2), "its loss has 2 outputs, not 3"),
    ("classes", tell("loss", {"name": "huber", "delta": 1.0}), "its loss has 1 outputs, not 3"),
    # costs
    ("regressor", put("costs.resource_costs", 0, -1.0), "a cost is negative"),
    ("regressor", put("costs.resource_costs", 0, np.nan), "a cost is negative, or not a number"),
    ("regressor", put("costs.resource_costs", slice(0, 2), 1e308), "more than a float can hold"),
    ("regressor", tell("costs", "tree_cost", 1e308), "more than a float can hold"),
    ("regressor", tell("costs", "tree_cost", -1), "tree_cost must not be negative"),
    ("regressor", put("costs.needs", 0, 4), "needs an unknown resource"),
    ("regressor", put("costs.needs", 0, -1), "needs an unknown resource"),
    ("regressor", put("costs.needs", slice(1, 3), 0), "needs a resource twice"),
    ("regressor", put("costs.need_starts", 1, 9), "'costs.need_starts' is not in order"),
    ("regressor", replace_array("costs.need_starts", lambda a: a[:0]), "it has no features"),
    ("regressor", replace_array("costs.need_starts", lambda a: a[:1]), "it has no features"),
    ("regressor", tell("costs", "resource_names", 0, 5), "which is not a string"),
    ("regressor", tell("costs", "resource_names", []), "and their costs differ in number"),
    ("regressor", tell("costs", "feature_names", 0, "code"), "has a name twice"),
    ("regressor", tell("feature_names", 0, "code"), "has a name twice"),
    ("regressor", tell("feature_names", ["a"]), "has 1 entries, not 5"),
    # purchases
    ("regressor", tell("purchases", 0, []), "not a list of eight entries"),
    ("regressor", tell("purchases", 0, 0, -1), "the round of a purchase"),
    ("regressor", tell("purchases", 0, 1, 1), "the output of a purchase"),
    ("regressor", tell("purchases", 0, 2, 2**16), "the depth of a purchase"),
    ("regressor", tell("purchases", 0, 3, "shoe"), "unknown feature 'shoe'"),
    ("regressor", tell("purchases", 0, 3, 0), "unknown feature 0"),
    ("ranker", tell("purchases", 0, 3, 2), "the feature of a purchase"),
    ("regressor", tell("purchases", 0, 4, ["shoe"]), "that its feature does not need"),
    ("regressor", lambda file: file.model["purchases"].append(file.model["purchases"][0]), "twice"),
    ("regressor", tell("purchases", 0, 5, -1.0), "a negative amount"),
    ("regressor", tell("purchases", 0, 6, "inf"), "a negative amount"),
    ("regressor", tell("purchases", 0, 4, "shoe"), "the resources of a purchase is not a list"),
    # classes
    ("cascade", put_another_output, "differ in their number of outputs"),
    ("constant", put_two_outputs, "a regressor has one output, not 2"),
    ("early-exit", replace_array("classes", lambda a: a[:1]), "fewer than two classes"),
    ("classes", tell("classes", "values", ["a", "b"]), "2 classes need 1 outputs, not 3"),
    ("classes", tell("classes", "values", ["b", "a", "c"]), "classes are not in order"),
    ("classes", tell("classes", "values", ["a", "a", "c"]), "classes are not in order"),
    ("classes", tell("classes", "values", ["a", "b\0", "c"]), "ends in a zero byte"),
    ("classes", tell("classes", "dtype", "<U2"), "labels of 4 letters have type <U2"),
    ("classes", tell("classes", "dtype", "<U900000000"), "labels of 4 letters have type"),
    ("classes", tell("classes", "dtype", "|S4"), "unknown type '|S4'"),
    ("classes", long_label(6000, 10**6), "6001 classes need 6001 outputs, not 3"),
    ("classes", tell("classes", {"dtype": "object", "values": [1, "a", 2]}), "not in order"),
    ("classes", tell("classes", {"dtype": "object", "values": [None, 1, 2]}), "a label is None"),
    ("classes", tell("classes", None), "is not a JSON object"),
    ("early-exit", put("classes", 1, 0), "classes are not in order"),
    ("early-exit", tell("classes", "dtype", "int64"), "has type I32, not int64"),
    ("regressor", tell("classes", {"dtype": "int64"}), "a regressor has no classes"),
    ("regressor", tell("kind", "clusterer"), "'kind' of the model is 'clusterer'"),
    ("classes", tell("kind", "regressor"), "a regressor has no classes"),
    # categories
    ("regressor", tell("categories", 0, "feature", 5), "not a whole number from 0 to 4"),
    ("regressor", tell("categories", 1, "feature", 2), "has its categories twice"),
    ("regressor", tell("categories", 0, "values", ["a", "a"]), "are not distinct"),
    ("regressor", tell("categories", 0, "values", [*map(str, range(257))]), "too many categories"),
    ("regressor", put("categories.3", 0, 99), "or not in order"),
    ("regressor", tell("categories", []), "treats numbers as categories"),
    ("regressor", tell("categories", 0, "values", 0, {"float": "nan"}), "a label is not a number"),
    ("regressor", tell("categories", 0, "values", 0, 10**100), "too many digits"),
    # everything else
    ("regressor", tell("format", 0), "'format' of the model is 0"),
    ("regressor", tell("format", True), "'format' of the model is True"),
    ("regressor", tell("version", 1), "'version' of the model is not a string"),
    ("regressor", tell("surprise", 1), "an unknown entry 'surprise'"),
    ("regressor", lambda file: file.model.pop("loss") and None, "the model has no 'loss'"),
    ("regressor", lambda file: file.arrays.update(x=np.zeros(1)), "an unknown array 'x'"),
    ("regressor", tell("charge", {"by": "row", "mean_cost": None}), "an unknown entry 'charge'"),
    ("regressor", tell("format", 2), "the model has no 'charge'"),
    ("row regressor", tell("format", 1), "an unknown entry 'charge'"),
    ("row regressor", tell("charge", "row"), "'charge' of the model is not a JSON object"),
    ("row regressor", tell("charge", "by", "model"), "'by' of 'charge' of the model is not 'row'"),
    ("row regressor", tell("charge", "mean_cost", -1), "is negative, or infinite"),
    ("row regressor", tell("charge", "mean_cost", "inf"), "is negative, or infinite"),
    ("row regressor", tell("charge", "mean_cost", "2"), "is '2', not a number"),
    ("row regressor", tell("charge", "max", 2), "an unknown entry 'max'"),
    # gates
    ("gates", leave_out("gate.0.baseline"), "it has no array 'gate.0.baseline'"),
    ("gates", put("gate.0.nodes.feature", 0, 99), "a node splits on an unknown feature"),
    ("gates", put("gate.0.nodes.left", 0, 99), "a child outside of its tree"),
    ("gates", put("rule.thresholds", 0, np.nan), "the threshold of a gate is not a number"),
    ("gates", replace_array("rule.thresholds", lambda array: np.append(array, 0.0)), "has shape"),
    ("gates", tell("kind", "ranker"), "a ranker has no classes"),
    ("first-of-query", put("rule.places", 0, 0), "fewer than one document of a query goes on"),
    ("first-of-query", replace_array("rule.places", lambda a: np.append(a, 1)), "has shape"),
    ("first-of-query", replace_array("rule.places", lambda a: a * 1.0), "not int64"),
    ("first-of-query", leave_out("rule.places"), "it has no array 'rule.places'"),
    ("first-of-query", tell("rule", "stay_ahead", 1), "is not true or false"),
    ("first-of-query", tell("kind", "regressor"), "regressor has no queries"),
    ("ranker", let_the_first_go_on, "leads into the middle of a model"),
    ("gates", tell("charge", "by", "both"), "is neither 'row' nor 'model'"),
    # families
    ("family", tell("models", []), "it is a family without models"),
    ("family", tell("models", 0, 5), "model 0 is not a JSON object"),
    ("family", tell("models", 1, "cost", 1e9), "its models are not in the order of their costs"),
    ("family", tell("models", 0, "cost", -1), "'cost' of model 0 is negative"),
    ("family", tell("models", 0, "score", "nan"), "'score' of model 0 is 'nan', not a number"),
    ("family", tell("models", 0, "kind", "ranker"), "model 0 has an unknown entry 'kind'"),
    ("family", tell("rule", None), "the model has an unknown entry 'rule'"),
    ("family", tell("scoring", 1), "'scoring' of the model is not a string"),
    ("family", tell("format", 2), "the model has an unknown entry 'models'"),
    ("family", leave_out("models.1.stages"), "it has no array 'stages'"),
    ("family", put("models.1.stages", (0, 0), 99), "a stage is of an unknown ensemble"),
    ("family", put("models.1.stages", (0, 2), 99), "a stage has more rounds than its ensemble"),
    ("family", lambda file: file.arrays.update({"models.99.stages": np.zeros((1, 4), int)}),
     "it has an unknown array 'models.99.stages'"),
    ("family", lambda file: file.arrays.update({"models.0.x": np.zeros(1)}),
     "it has an unknown array 'x'"),
    ("regressor", tell("about", [1]), "'about' of the model is not a JSON object"),
    ("regressor", tell("about", "a", [[[[[[[[[[[[1]]]]]]]]]]]]), "nested too deeply"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "damage", "said"), BAD)
def test_wrong_content_is_named(tmp_path, kind, damage, said):
    file = Opened(kind)
    damage(file)
    path = tmp_path / "bad.miser"
    path.write_bytes(to_safetensors(file.arrays, json.dumps(file.model)))
    with pytest.raises(ModelFileError) as caught:
        load(path)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{str(path)!r} is not a model of greedymiser: ")


def labelled(file: Opened, values: list[str], width: int) -> bytes:
    """Make a file a model without trees for these classes."""
    n = len(values)
    file.model |= {
        "classes": {"dtype": f"<U{width}", "values": values},
        "loss": {"name": "multinomial_log_loss", "n_outputs": n},
        "purchases": [],
    }
    for name, array in file.arrays.items():
        if name.startswith(f"{E0}.nodes"):
            file.arrays[name] = array[:0]
    file.arrays[f"{E0}.baseline"] = np.zeros(n)
    file.arrays[f"{E0}.tree_starts"] = np.zeros(1, dtype=np.int64)
    file.arrays["stages"] = np.zeros((1, 4), dtype=np.int64)
    return to_safetensors(file.arrays, json.dumps(file.model))


def test_one_long_label_does_not_widen_many_short_ones(tmp_path):
    """A megabyte of file, or two, must not become 20 GB of memory."""
    path, n = tmp_path / "m.miser", 5000
    short = [f"{i:05d}" for i in range(n)]
    path.write_bytes(labelled(Opened("classes"), [*short, "z" * 10**6], 10**6))
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match="5001 labels have type <U1000000, and most"):
            load(path)
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()
    # What is as long as the rest, or not that much longer, is kept in its width.
    for values in ([*short, "z" * 300], [label * 100 for label in short], ["a", "b", "z" * 10**5]):
        width = max(map(len, values))
        path.write_bytes(labelled(Opened("classes"), values, width))
        classes = load(path).classes
        assert classes.dtype == f"<U{width}"
        assert classes.tolist() == values
        save(load(path), path)


def test_labels_that_would_make_such_a_file_are_not_saved(tmp_path):
    predictor = decoded(labelled(Opened("classes"), [f"{i:05d}" for i in range(5000)], 5))
    classes = np.array([*predictor.classes.tolist()[:-1], "z" * 10**4])
    with pytest.raises(ValueError, match="cannot save the model: 5000 labels have type <U10000"):
        save(replace(predictor, classes=classes), tmp_path / "m.miser")
    assert list(tmp_path.iterdir()) == []
    # Among Python's own strings, a long one takes room for itself only.
    save(replace(predictor, classes=classes.astype(object)), tmp_path / "m.miser")
    assert load(tmp_path / "m.miser").classes.tolist() == classes.tolist()


def test_files_that_are_opened_and_closed_load(tmp_path):
    for kind in ("regressor", "classes", "early-exit", "ranker", "cascade", "constant"):
        file = Opened(kind)
        (tmp_path / "m.miser").write_bytes(to_safetensors(file.arrays, json.dumps(file.model)))
        loaded = load(tmp_path / "m.miser")
        assert loaded.kind == file.model["kind"]
        assert len(loaded.stages) == len(file.arrays["stages"])
        # What was only taken apart and put together again is saved as it was.
        save(loaded, tmp_path / "again.miser")
        again = from_safetensors((tmp_path / "again.miser").read_bytes())[0]
        assert again.keys() == file.arrays.keys()
        for name, tensor in again.items():
            assert tensor.data == file.arrays[name].tobytes(), name


def test_a_newer_format_says_who_can_read_it(tmp_path):
    file = Opened("constant")
    file.model = {"format": FORMAT + 1, "version": "7.1", "new": "things"}
    (tmp_path / "m.miser").write_bytes(to_safetensors({"odd": np.zeros(2)}, json.dumps(file.model)))
    with pytest.raises(
        ModelFileError, match=f"has format {FORMAT + 1}, written by greedymiser '7.1'"
    ):
        load(tmp_path / "m.miser")


def with_header(header: bytes, body: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + body


DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "header is too small"),
        (b"\0" * 100, "header is too small"),
        (b"hello, world", "does not begin with the size of a header"),
        (b"\x80\x04\x95", "looks like a pickle"),
        ((2**62).to_bytes(8, "little") + b"{}", "does not begin with the size of a header"),
        ((10**8).to_bytes(8, "little") + b"{}", "within its header: it may be cut off"),
        (with_header(b" {}"), "header is not JSON"),
        (with_header(b'{"greedymiser":'), "header is not JSON"),
        (with_header(b"{}"), "holds something else"),
        (with_header(b'{"__metadata__":{"x":"y"}}'), "holds something else"),
        (with_header(b'{"__metadata__":{"greedymiser":""}}'), "is not JSON"),
        (with_header(b'{"__metadata__":{"greedymiser":"[]"}}'), "not a JSON object"),
        (with_header(b'{"__metadata__":{"greedymiser":"' + DEEP + b'"}}'), "nested too deeply"),
        (with_header(b'{"a":{"greedymiser":' + DEEP + b"}}"), "header is not JSON"),
        (with_header(b'{"greedymiser":[0,{"data_offsets":1}]}'), "header"),
        (with_header(b'{"__metadata__":{"greedymiser":"{}"}}', b"more"), "4 bytes of arrays, and"),
        (with_header(b'{"__metadata__":{"greedymiser":"' + b"9" * 9999 + b'"}}'), "is not JSON"),
        (with_header(b'{"__metadata__":{"greedymiser":"{\\"a\\":NaN}"}}'), "has NaN"),
        (with_header(b'{"__metadata__":{"greedymiser":"{\\"a\\":1e999}"}}'), "has 1e999"),
        (with_header(b'{"__metadata__":{"greedymiser":"{\\"a\\":1,\\"a\\":1}"}}'), "entry twice"),
    ],
    ids=range(20),
)
def test_files_that_are_something_else(tmp_path, data, said):
    path = tmp_path / "m.miser"
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=said):
        load(path)


@pytest.mark.skipif(sys.platform != "linux", reason="makes files with holes as Linux does")
@pytest.mark.parametrize(
    ("beginning", "said"),
    [
        (b"", "header is too small"),
        (b"\x80\x04\x95", "looks like a pickle"),
        ((10**8 + 1).to_bytes(8, "little"), "does not begin with the size of a header"),
        ((10**7).to_bytes(8, "little") + b"{", "holds something else"),
        (with_header(b'{"__metadata__":{"format":"pt"}}'), "holds something else"),
        (KEPT[0].read_bytes(), r"it has \d+ bytes of arrays, and its header says \d+$"),
    ],
    ids=range(6),
)
def test_a_huge_file_is_refused_by_its_beginning(tmp_path, beginning, said):
    path = tmp_path / "huge.miser"
    with open(path, "wb") as file:
        file.write(beginning)
        file.truncate(10 * 2**30)
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match=said):
            load(path)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()
        path.unlink()


def test_memory_that_is_not_there(monkeypatch):
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("greedymiser.files.reading.from_safetensors", fail)
    with pytest.raises(ModelFileError, match=r"\.miser' needs more memory than there is"):
        load(KEPT[0])


def test_a_bool_is_0_or_1(tmp_path):
    file = Opened("regressor")
    file.arrays[f"{E0}.nodes.missing_left"] = np.full(
        len(file.nodes("missing_left")), 2, dtype=np.uint8
    )
    data = to_safetensors(file.arrays, json.dumps(file.model))
    header_end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:header_end])
    header[f"{E0}.nodes.missing_left"]["dtype"] = "BOOL"
    del header["__metadata__"]["sha256"]  # as in the first files
    (tmp_path / "m.miser").write_bytes(with_header(json.dumps(header).encode(), data[header_end:]))
    with pytest.raises(ModelFileError, match="neither true nor false"):
        load(tmp_path / "m.miser")


# Light


LIGHT = """
import sys
import numpy as np
from greedymiser import load

model = load(sys.argv[1])
X = np.zeros((100, model.n_features))
if model.kind == "classifier":
    model.predict_proba(X)
model.predict(X[:1]), model.prediction_costs(X), model.receipt()
heavy = {name.partition(".")[0] for name in sys.modules} & {"sklearn", "pandas", "matplotlib"}
print(sorted(heavy), "greedymiser.estimators" in sys.modules)
"""


@pytest.mark.subprocess
@pytest.mark.parametrize("kind", ["classes", "ranker"])
def test_to_serve_nothing_of_training_is_imported(kind):
    done = subprocess.run(
        [sys.executable, "-c", LIGHT, str(FILES / f"format-1-{kind}.miser")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("[] False\n", "")
