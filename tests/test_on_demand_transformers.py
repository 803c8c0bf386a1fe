"""Fitted scikit-learn transformers as sources."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from greedymiser import MiserRegressor
from greedymiser.on_demand import (
    AcquisitionError,
    OnDemandPredictor,
    Sources,
    build_matrix,
    measure_costs,
)


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": rng.integers(20, 80, 60).astype(float),
            "income": np.where(rng.random(60) < 0.1, np.nan, rng.normal(50, 10, 60)),
            "city": rng.choice(["Ulm", "Bonn", "Jena"], 60),
            "shoe": rng.normal(42, 2, 60),
        }
    )


def column_transformer():
    return ColumnTransformer(
        [
            ("scaled", make_pipeline(SimpleImputer(), StandardScaler()), ["age", "income"]),
            ("city", OneHotEncoder(), ["city"]),
            ("gone", StandardScaler(), []),
            ("left", "drop", ["shoe"]),
        ],
        remainder="passthrough",
        transformer_weights={"scaled": 2.0},
    )


def test_column_transformer(frame):
    fitted = column_transformer().fit(frame)
    sources = Sources.from_transformer(fitted)
    assert sources.column_names == list(fitted.get_feature_names_out())
    assert [source.name for source in sources] == ["row", "scaled", "city"]
    X = build_matrix(sources, frame)
    np.testing.assert_allclose(X.to_numpy(), _dense(fitted.transform(frame)), rtol=1e-12)


def test_only_the_named_parts_that_are_needed_run(frame):
    fitted = column_transformer().fit(frame)
    sources = Sources.from_transformer(fitted)
    X = build_matrix(sources, frame)
    model = MiserRegressor(max_iter=10, n_jobs=1).fit(X, X["scaled__age"])
    served = OnDemandPredictor(model, sources)
    predictions, receipts = served.predict(frame, return_receipts=True)
    assert np.array_equal(predictions, model.predict(X))
    assert {receipt.fetched for receipt in receipts} == {("row", "scaled")}


def test_a_model_that_was_trained_on_the_whole_table_is_served_row_by_row(frame):
    fitted = column_transformer().fit(frame)
    X = pd.DataFrame(_dense(fitted.transform(frame)), columns=fitted.get_feature_names_out())
    model = MiserRegressor(max_iter=10, n_jobs=1).fit(X, X["scaled__age"])
    served = OnDemandPredictor(model, Sources.from_transformer(fitted))
    np.testing.assert_allclose(served.predict(frame), model.predict(X))


def test_rows_in_many_forms(frame):
    fitted = column_transformer().fit(frame)
    sources = Sources.from_transformer(fitted)
    expected = build_matrix(sources, frame)
    forms = {
        "mappings": frame.to_dict("records"),
        "series": [row for _, row in frame.iterrows()],
        "frames": [frame[i : i + 1] for i in range(len(frame))],
    }
    for objects in forms.values():
        np.testing.assert_array_equal(build_matrix(sources, objects), expected)


@pytest.mark.parametrize("kind", [list, tuple])
def test_numbers_next_to_strings_stay_numbers(frame, kind):
    rows = frame[["age", "city"]].to_numpy(dtype=object)
    fitted = ColumnTransformer(
        [
            ("age", OneHotEncoder(handle_unknown="ignore"), [0]),
            ("city", OneHotEncoder(handle_unknown="ignore"), [1]),
        ]
    ).fit(rows)
    made = build_matrix(Sources.from_transformer(fitted), [kind(row) for row in rows])
    np.testing.assert_array_equal(made, _dense(fitted.transform(rows)))


@pytest.mark.parametrize("as_pipeline", [False, True])
def test_mappings_in_another_order_and_with_more_keys(frame, as_pipeline):
    numbers = frame[["age", "shoe"]]
    fitted = make_pipeline(StandardScaler(), PCA(1)) if as_pipeline else StandardScaler()
    fitted.fit(numbers)
    sources = Sources.from_transformer(fitted)
    turned = frame[["shoe", "city", "income", "age"]]
    for objects in (turned.to_dict("records"), [row for _, row in turned.iterrows()]):
        np.testing.assert_allclose(
            build_matrix(sources, objects), fitted.transform(numbers), rtol=1e-9, atol=1e-12
        )


def test_a_mapping_without_a_column(frame):
    fitted = StandardScaler().fit(frame[["age", "shoe"]])
    with pytest.raises(AcquisitionError, match="shoe"):
        build_matrix(Sources.from_transformer(fitted), [{"age": 3.0}])


def test_remainder_and_passthrough():
    X = np.random.default_rng(0).standard_normal((30, 4))
    fitted = ColumnTransformer(
        [("one", StandardScaler(), [0]), ("same", "passthrough", slice(1, 3))],
        remainder=StandardScaler(),
    ).fit(X)
    sources = Sources.from_transformer(fitted)
    np.testing.assert_allclose(
        build_matrix(sources, X, as_frame=False), fitted.transform(X), rtol=1e-12
    )
    assert [source.name for source in sources] == ["row", "one", "same", "remainder"]
    np.testing.assert_allclose(
        build_matrix(sources, X.tolist(), as_frame=False), fitted.transform(X), rtol=1e-12
    )


def test_feature_union_in_a_pipeline():
    X = np.random.default_rng(0).standard_normal((50, 4))
    pipeline = Pipeline(
        [
            ("scale", StandardScaler()),
            ("nothing", "passthrough"),
            (
                "both",
                FeatureUnion(
                    [("pca", PCA(2)), ("same", "passthrough"), ("off", "drop")],
                    transformer_weights={"pca": 0.5},
                ),
            ),
        ]
    ).fit(X)
    sources = Sources.from_transformer(pipeline)
    assert sources.column_names == list(pipeline.get_feature_names_out())
    assert [source.name for source in sources] == ["row", "scale", "pca", "same"]
    assert sources.needs()[sources.column_names[0]] == ["row", "scale", "pca"]
    made = build_matrix(sources, X, as_frame=False)
    np.testing.assert_allclose(made, pipeline.transform(X), rtol=1e-9, atol=1e-12)
    model = MiserRegressor(max_iter=10, n_jobs=1).fit(made, X[:, 0])
    served = OnDemandPredictor(model, sources)
    assert np.array_equal(served.predict(X), model.predict(made))


def test_texts():
    texts = ["to be or not to be", "that is the question", "whether tis nobler"] * 10
    union = FeatureUnion([("count", CountVectorizer()), ("tfidf", TfidfVectorizer())]).fit(texts)
    sources = Sources.from_transformer(union)
    np.testing.assert_allclose(
        build_matrix(sources, texts, as_frame=False), union.transform(texts).toarray(), rtol=1e-12
    )


def test_a_plain_transformer_is_one_source(frame):
    numbers = frame[["age", "shoe"]]
    fitted = StandardScaler().set_output(transform="pandas").fit(numbers)
    sources = Sources.from_transformer(fitted)
    assert [source.name for source in sources] == ["row", "standardscaler"]
    np.testing.assert_allclose(build_matrix(sources, numbers), fitted.transform(numbers))


def test_polars_frames():
    numbers = pl.DataFrame({"a": [1.0, 2.0, 4.0], "b": [0.0, 1.0, 0.0]})
    fitted = ColumnTransformer([("s", StandardScaler(), ["a"]), ("b", "passthrough", ["b"])])
    fitted.fit(numbers)
    made = build_matrix(Sources.from_transformer(fitted), numbers)
    np.testing.assert_allclose(made, fitted.transform(numbers))


def test_they_are_measured_like_others(frame):
    sources = Sources.from_transformer(column_transformer().fit(frame))
    costs, table = measure_costs(sources, frame[:3], repeats=1)
    assert [timing.name for timing in table] == ["row", "scaled", "city"]
    assert costs.feature_names == sources.column_names


def test_they_can_be_sent_to_other_processes(frame):
    sources = Sources.from_transformer(column_transformer().fit(frame))
    again = pickle.loads(pickle.dumps(sources))
    pd.testing.assert_frame_equal(build_matrix(again, frame), build_matrix(sources, frame))


def test_a_transformer_that_is_called_row():
    X = np.arange(6.0).reshape(3, 2)
    fitted = FeatureUnion([("row", StandardScaler()), ("raw_", PCA(1))]).fit(X)
    sources = Sources.from_transformer(fitted)
    np.testing.assert_allclose(
        build_matrix(sources, X, as_frame=False), fitted.transform(X), atol=1e-12
    )


def test_parts_with_the_name_of_a_step_or_of_the_object():
    X = np.random.default_rng(0).standard_normal((30, 3))
    parts = [("scale", StandardScaler()), ("raw", "passthrough"), ("pca", PCA(1))]
    pipeline = Pipeline([("scale", StandardScaler()), ("u", FeatureUnion(parts))]).fit(X)
    sources = Sources.from_transformer(pipeline)
    assert [source.name for source in sources] == ["row", "scale", "u__scale", "u__raw", "pca"]
    assert sources.needs()[sources.column_names[0]] == ["row", "scale", "u__scale"]
    made = build_matrix(sources, X, as_frame=False)
    np.testing.assert_allclose(made, pipeline.transform(X), rtol=1e-9, atol=1e-12)
    alone = Sources.from_transformer(FeatureUnion(parts).fit(X))
    assert [source.name for source in alone] == ["row", "scale", "featureunion__raw", "pca"]
    steps = Pipeline([("raw", StandardScaler()), ("pca", PCA(1))]).fit(X)
    sources = Sources.from_transformer(steps)
    assert [source.name for source in sources] == ["row", "pipeline__raw", "pca"]


def test_mistakes(frame):
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        Sources.from_transformer(StandardScaler())
    pipeline = make_pipeline(StandardScaler(), LinearRegression())
    pipeline.fit(frame[["age", "shoe"]], frame["age"])
    with pytest.raises(TypeError, match=r"does not transform; .* pipeline\[:-1\]"):
        Sources.from_transformer(pipeline)
    Sources.from_transformer(pipeline[:-1])
    nameless = FunctionTransformer(np.log1p).fit(frame[["age"]])
    with pytest.raises(AttributeError, match="get_feature_names_out"):
        Sources.from_transformer(nameless)


def _dense(matrix):
    return matrix.toarray() if hasattr(matrix, "toarray") else matrix
