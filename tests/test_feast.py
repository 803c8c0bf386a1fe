"""Sources from a Feast feature store, with its own SQLite online store."""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import pytest

from greedymiser import CostModel, MiserClassifier, OnDemandPredictor, Sources, build_matrix

feast = pytest.importorskip("feast", reason="the extra feast is not part of dev")

# Feast warns of deprecations in what it uses.
pytestmark = pytest.mark.filterwarnings("default")

N = 200


@pytest.fixture(scope="module")
def people() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({
        "person": np.arange(N),
        "age": rng.integers(18, 90, N).astype(float),
        "job": rng.choice(["clerk", "smith", "none"], N),
        "debts": rng.gamma(2.0, 2.0, N).astype(np.float32),
        "late": rng.integers(0, 5, N),
        "rooms": rng.integers(1, 6, N),
    })  # fmt: skip
    frame.loc[::9, "age"] = np.nan
    return frame


@pytest.fixture(scope="module")
def store(people, tmp_path_factory):
    from feast.types import Array, Float32, Int64, String

    folder = tmp_path_factory.mktemp("feast")
    now = pd.Timestamp.now(tz="UTC").floor("s")
    person = feast.Entity(name="person", join_keys=["person"], value_type=feast.ValueType.INT64)

    def view(name, **types):
        path = folder / f"{name}.parquet"
        columns = [column for column in types if column in people]
        table = people[["person", *columns]].assign(event_timestamp=now - pd.Timedelta("1h"))
        table.to_parquet(path)
        return feast.FeatureView(
            name=name,
            entities=[person],
            ttl=datetime.timedelta(days=1),
            schema=[feast.Field(name=field, dtype=dtype) for field, dtype in types.items()],
            source=feast.FileSource(path=str(path), timestamp_field="event_timestamp"),
        )

    views = [
        view("profile", age=Float32, job=String),
        view("bureau", debts=Float32, late=Int64),
        view("home", rooms=Int64),
    ]
    odd = view("odd", history=Array(Float32))
    service = feast.FeatureService(name="credit", features=[views[0], views[1][["debts"]]])
    made = feast.FeatureStore(config=feast.RepoConfig(
        project="loans",
        provider="local",
        registry=str(folder / "registry.db"),
        online_store={"type": "sqlite", "path": str(folder / "online.db")},
        offline_store={"type": "file"},
        entity_key_serialization_version=3,
    ))  # fmt: skip
    made.apply([person, *views, odd, service])
    made.materialize_incremental(
        end_date=datetime.datetime.now(datetime.UTC), feature_views=["profile", "bureau", "home"]
    )
    return made


ALL = ["profile:age", "profile:job", "bureau:debts", "bureau:late", "home:rooms"]


class Counting:
    """A store that notes which views are read, for how many entities."""

    def __init__(self, store):
        self._store = store
        self.reads = []

    def get_online_features(self, features, entity_rows, full_feature_names):
        self.reads.append(({name.partition(":")[0] for name in features}, len(entity_rows)))
        return self._store.get_online_features(
            features=features, entity_rows=entity_rows, full_feature_names=full_feature_names
        )

    def __getattr__(self, name):
        return getattr(self._store, name)


def entities(n):
    return [{"person": i, "asked_by": "somebody"} for i in range(n)]


def test_a_matrix_of_features(store, people):
    sources = Sources.from_feast(store, ALL)
    assert sources.column_names == ["age", "job", "debts", "late", "rooms"]
    assert sources.categorical_names == ["job"]
    matrix = build_matrix(sources, entities(N))
    frame = pd.DataFrame(matrix) if not isinstance(matrix, pd.DataFrame) else matrix
    for name in ("age", "debts", "late", "rooms"):
        np.testing.assert_allclose(frame[name].astype(float), people[name].astype(np.float32))
    assert frame["job"].astype(str).tolist() == people["job"].tolist()


def test_views_that_the_model_does_not_need_are_not_read(store, people):
    watched = Counting(store)
    sources = Sources.from_feast(watched, ALL)
    costs = CostModel.from_resources(
        {"profile": 50.0, "bureau": 20.0, "home": 500.0},
        {"age": ["profile"], "job": ["profile"], "debts": ["bureau"], "late": ["bureau"],
         "rooms": ["home"]},
    )  # fmt: skip
    X = build_matrix(sources, entities(N))
    y = (people["debts"] + people["late"] > 5).to_numpy()
    model = MiserClassifier(costs, tradeoff=1e-3, max_iter=20, n_jobs=1).fit(X, y)
    assert model.resources_used_ == ["bureau"]
    watched.reads.clear()
    served = OnDemandPredictor(model, sources)
    answers = served.predict(entities(50))
    assert answers.tolist() == model.predict(X[:50]).tolist()
    # One view, both of whose columns are used, in one read for all.
    assert watched.reads == [({"bureau"}, 50)]


def test_entities_that_the_store_does_not_know_have_missing_values(store):
    sources = Sources.from_feast(store, ["profile:age", "home:rooms"])
    matrix = build_matrix(sources, [{"person": 10**6}, {"person": 1}])
    ages = np.asarray(pd.DataFrame(matrix)).astype(float)
    assert np.isnan(ages[0]).all()
    assert not np.isnan(ages[1]).any()


def test_feature_services_and_full_names(store):
    for service in ("credit", store.get_feature_service("credit")):
        assert Sources.from_feast(store, service).column_names == ["age", "job", "debts"]
    full = Sources.from_feast(store, ALL, full_feature_names=True)
    assert full.column_names[:3] == ["profile__age", "profile__job", "bureau__debts"]
    assert full.categorical_names == ["profile__job"]
    assert np.shape(build_matrix(full, entities(2))) == (2, 5)


def test_what_cannot_be_a_source(store):
    with pytest.raises(ValueError, match="named 'view:feature', got 'age'"):
        Sources.from_feast(store, ["age"])
    with pytest.raises(ValueError, match="feature view 'profile' has no feature 'name'"):
        Sources.from_feast(store, ["profile:name"])
    with pytest.raises(ValueError, match=r"'odd:history' has type Array\(Float32\), which is"):
        Sources.from_feast(store, ["odd:history"])
    with pytest.raises(TypeError, match="features must be names such as 'view:feature'"):
        Sources.from_feast(store, 5)
    with pytest.raises(Exception, match="nowhere"):
        Sources.from_feast(store, ["nowhere:age"])
    sources = Sources.from_feast(store, ["profile:age"])
    with pytest.raises(Exception, match="the object has no 'person', by which Feast finds it"):
        build_matrix(sources, [{"customer": 1}])
