"""Every kind of X gives the same numbers, and therefore the same model, bit for bit."""

import datetime as dt
import re
import tracemalloc

import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy import sparse

from greedymiser import MiserClassifier, MiserRegressor, as_predictor
from greedymiser.data.tables import (
    ArrayTable,
    FrameTable,
    SparseTable,
    as_table,
    categorical_columns,
    codes_of_labels,
    is_frame,
    learn_categories,
)

N = 200
NAMES = ["a", "b", "c", "d"]
RNG = np.random.default_rng(0)

# Small whole numbers, which every type can hold.
WHOLE = RNG.integers(0, 20, (N, 4)).astype(np.float64)
Y = WHOLE[:, 0] * (WHOLE[:, 1] > 8) + WHOLE[:, 2] % 3 + RNG.standard_normal(N)
HOLES = np.where(RNG.random(WHOLE.shape) < 0.1, np.nan, WHOLE)
FLAGS = WHOLE > 8


def fit(X, y=Y, **params):
    return MiserRegressor(max_iter=5, min_samples_leaf=5, **params).fit(X, y)


def bits(model):
    return model.ensemble_.nodes.tobytes(), model.ensemble_.category_sets.tobytes()


def nullable(X, kind):
    """Columns of lists with None where a number is missing."""
    return {
        name: [None if v != v else kind(v) for v in column]
        for name, column in zip(NAMES, X.T, strict=True)
    }


def as_memmap(X, tmp_path):
    np.save(tmp_path / "X.npy", X)
    return np.load(tmp_path / "X.npy", mmap_mode="r")


def read_only(X):
    X = X.copy()
    X.flags.writeable = False
    return X


# -- the same numbers in other clothes ------------------------------------------------------------

ARRAYS = {
    "C order": np.ascontiguousarray,
    "Fortran order": np.asfortranarray,
    "float32": lambda X: X.astype(np.float32),
    "float32 Fortran": lambda X: np.asfortranarray(X.astype(np.float32)),
    "float16": lambda X: X.astype(np.float16),
    "long double": lambda X: X.astype(np.longdouble),
    "big endian": lambda X: X.astype(">f8"),
    "strided": lambda X: np.repeat(X, 2, axis=1)[:, ::2],
    "reversed": lambda X: X[::-1, ::-1].copy()[::-1, ::-1],
    "read-only": read_only,
    "objects": lambda X: X.astype(object),
    "lists": lambda X: X.tolist(),
    "csr": sparse.csr_array,
    "csc": sparse.csc_array,
    "csr matrix": sparse.csr_matrix,
    "csr float32": lambda X: sparse.csr_array(X.astype(np.float32)),
    "coo": sparse.coo_array,
    "pandas": lambda X: pd.DataFrame(X, columns=NAMES),
    "pandas without names": pd.DataFrame,
    "pandas float32": lambda X: pd.DataFrame(X, columns=NAMES, dtype=np.float32),
    "pandas objects": lambda X: pd.DataFrame(X, columns=NAMES).astype(object),
    "pandas objects with NA": lambda X: (
        pd.DataFrame(X, columns=NAMES).astype(object).where(X == X, pd.NA)
    ),
    "pandas Float64": lambda X: pd.DataFrame(X, columns=NAMES).astype("Float64"),
    "pandas Int64": lambda X: pd.DataFrame(X, columns=NAMES).astype("Int64"),
    "pandas mixed": lambda X: pd.DataFrame(X, columns=NAMES).astype(
        {"a": "Int64", "b": "Float64", "c": "float32", "d": "UInt8"}
    ),
    "pandas on pyarrow": lambda X: pd.DataFrame(X, columns=NAMES).convert_dtypes(
        dtype_backend="pyarrow"
    ),
    "pandas sparse": lambda X: pd.DataFrame(X, columns=NAMES).astype(pd.SparseDtype(float, 0.0)),
    "polars": lambda X: pl.DataFrame(X, schema=NAMES),
    "polars decimal": lambda X: pl.DataFrame(nullable(X, int)).cast(pl.Decimal(10, 2)),
    "polars null": lambda X: pl.DataFrame(nullable(X, int)),
    "polars float null": lambda X: pl.DataFrame(nullable(X, float)),
    "pyarrow": lambda X: pa.table(nullable(X, int)),
    "pyarrow chunks": lambda X: pa.concat_tables(
        [pa.table(nullable(X[:70], float)), pa.table(nullable(X[70:], float))]
    ),
}

WHOLE_ONLY = {
    "int64": lambda X: X.astype(np.int64),
    "uint8": lambda X: X.astype(np.uint8),
    "int Fortran": lambda X: np.asfortranarray(X.astype(np.int16)),
    "csr of int": lambda X: sparse.csr_array(X.astype(np.int32)),
    "pandas int": lambda X: pd.DataFrame(X.astype(np.int32), columns=NAMES),
    "polars int": lambda X: pl.DataFrame(X.astype(np.int32), schema=NAMES),
}

BOOLEANS = {
    "numpy": lambda X: X,
    "pandas": lambda X: pd.DataFrame(X, columns=NAMES),
    "pandas boolean": lambda X: pd.DataFrame(X, columns=NAMES).astype("boolean"),
    "polars": lambda X: pl.DataFrame(X, schema=NAMES),
    "pyarrow": lambda X: pa.table(nullable(X, bool)),
    "csr": sparse.csr_array,
}


@pytest.fixture(scope="module")
def references():
    return {"whole": fit(WHOLE), "holes": fit(HOLES), "flags": fit(FLAGS.astype(float))}


def check_alike(reference, plain, X):
    model = fit(X)
    assert bits(model) == bits(reference)
    np.testing.assert_array_equal(model.predict(X), reference.predict(plain))


@pytest.mark.parametrize("kind", ARRAYS)
def test_kind_with_missing_values(references, kind):
    check_alike(references["holes"], HOLES, ARRAYS[kind](HOLES))


@pytest.mark.parametrize("kind", ARRAYS | WHOLE_ONLY)
def test_kind_without_missing_values(references, kind):
    check_alike(references["whole"], WHOLE, (ARRAYS | WHOLE_ONLY)[kind](WHOLE))


@pytest.mark.parametrize("kind", BOOLEANS)
def test_booleans(references, kind):
    check_alike(references["flags"], FLAGS.astype(float), BOOLEANS[kind](FLAGS))


def test_missing_booleans():
    frame = pd.DataFrame(FLAGS, columns=NAMES).astype("boolean")
    frame.iloc[3:30, 0] = pd.NA
    plain = FLAGS.astype(float)
    plain[3:30, 0] = np.nan
    assert bits(fit(frame)) == bits(fit(plain))
    assert bits(fit(pl.from_pandas(frame))) == bits(fit(plain))


def test_memory_map(references, tmp_path):
    check_alike(references["holes"], HOLES, as_memmap(HOLES, tmp_path))


def test_infinity_and_explicit_zeros_in_sparse():
    X = np.where(WHOLE > 15, np.inf, np.where(WHOLE < 10, 0.0, HOLES))
    matrix = sparse.csr_array(X)
    matrix.data[::5] = 0.0
    assert bits(fit(matrix)) == bits(fit(matrix.toarray()))


def test_float32_is_cut_where_float64_would_be():
    X = RNG.standard_normal((N, 4)).astype(np.float32)
    a, b = fit(X), fit(X.astype(np.float64))
    assert bits(a) == bits(b)
    np.testing.assert_array_equal(a.predict(X), b.predict(X.astype(np.float64)))
    np.testing.assert_array_equal(a.predict(X), a.predict(X.astype(np.float64)))


@pytest.mark.parametrize(
    "kind", [np.asarray, pd.Series, pl.Series, pa.array, list, pd.Series.to_numpy]
)
def test_kinds_of_y_and_weights(kind, references):
    weight = np.ones(N)
    if kind is pd.Series.to_numpy:
        model = MiserRegressor(max_iter=5, min_samples_leaf=5)
        model.fit(HOLES, pd.Series(Y, dtype="Float64"), pd.Series(weight, dtype="Float64"))
    else:
        model = MiserRegressor(max_iter=5, min_samples_leaf=5).fit(HOLES, kind(Y), kind(weight))
    assert np.array_equal(
        model.ensemble_.nodes["threshold"], references["holes"].ensemble_.nodes["threshold"]
    )


# -- categories -----------------------------------------------------------------------------------

WORDS = np.array(["ant", "bee", "cat", "dog", "eel"])
CODE = RNG.integers(0, 5, N)
GONE = RNG.random(N) < 0.1
NUMBER = RNG.standard_normal(N)
CAT_Y = np.array([3.0, 0.0, 1.0, 4.0, 2.0])[CODE] + 0.1 * RNG.standard_normal(N)
CODES = np.where(GONE, np.nan, CODE)
LABELS = [None if gone else str(word) for word, gone in zip(WORDS[CODE], GONE, strict=True)]

CATEGORIES = {
    "index": (lambda: np.column_stack([CODES, NUMBER]), [0]),
    "mask": (lambda: np.column_stack([CODES, NUMBER]), [True, False]),
    "array mask": (lambda: np.column_stack([CODES, NUMBER]), np.array([True, False])),
    "any numbers": (lambda: np.column_stack([CODES * 1e9 - 7.5, NUMBER]), [0]),
    "sparse": (lambda: sparse.csr_array(np.column_stack([CODES, NUMBER])), [0]),
    "pandas": (lambda: pd.DataFrame({"k": pd.Categorical(LABELS), "x": NUMBER}), "from_dtype"),
    "pandas in another order": (
        lambda: pd.DataFrame(
            {"k": pd.Categorical(LABELS, categories=WORDS[::-1], ordered=True), "x": NUMBER}
        ),
        "from_dtype",
    ),
    "pandas with unused": (
        lambda: pd.DataFrame(
            {"k": pd.Categorical(LABELS, categories=["aa", *WORDS, "zz"]), "x": NUMBER}
        ),
        "from_dtype",
    ),
    "pandas of int": (
        lambda: pd.DataFrame(
            {"k": pd.Series(CODES).astype("Int64").astype("category"), "x": NUMBER}
        ),
        "from_dtype",
    ),
    "pandas by name": (lambda: pd.DataFrame({"k": LABELS, "x": NUMBER}), ["k"]),
    "pandas by index": (lambda: pd.DataFrame({"k": LABELS, "x": NUMBER}), [0]),
    "pandas by mask": (lambda: pd.DataFrame({"k": LABELS, "x": NUMBER}), [True, False]),
    "pandas Int64": (
        lambda: pd.DataFrame({"k": pd.Series(CODES, dtype="Int64"), "x": NUMBER}),
        ["k"],
    ),
    "pandas string": (
        lambda: pd.DataFrame({"k": pd.Series(LABELS, dtype="string"), "x": NUMBER}),
        ["k"],
    ),
    "pandas objects": (
        lambda: pd.DataFrame({"k": pd.Series(LABELS, dtype=object), "x": NUMBER}),
        ["k"],
    ),
    "pandas float": (lambda: pd.DataFrame({"k": CODES, "x": NUMBER}), ["k"]),
    "polars": (
        lambda: pl.DataFrame({"k": pl.Series(LABELS, dtype=pl.Categorical), "x": NUMBER}),
        "from_dtype",
    ),
    "polars enum": (
        lambda: pl.DataFrame({"k": pl.Series(LABELS, dtype=pl.Enum(WORDS[::-1])), "x": NUMBER}),
        "from_dtype",
    ),
    "polars string": (lambda: pl.DataFrame({"k": LABELS, "x": NUMBER}), ["k"]),
    "pyarrow": (
        lambda: pa.table({"k": pa.array(LABELS).dictionary_encode(), "x": NUMBER}),
        "from_dtype",
    ),
    "pyarrow chunks": (
        lambda: pa.concat_tables(
            [
                pa.table({"k": pa.array(LABELS[part]).dictionary_encode(), "x": NUMBER[part]})
                for part in (slice(0, 50), slice(50, N))
            ]
        ),
        "from_dtype",
    ),
    "pyarrow of int": (
        lambda: pa.table(
            {
                "k": pa.array([None if c != c else int(c) for c in CODES]).dictionary_encode(),
                "x": NUMBER,
            }
        ),
        "from_dtype",
    ),
}


@pytest.mark.parametrize("kind", CATEGORIES)
def test_categories(kind):
    plain = np.column_stack([CODES, NUMBER])
    reference = fit(plain, CAT_Y, categorical_features=[0])
    assert (reference.ensemble_.nodes["category_set"] >= 0).any()
    make, which = CATEGORIES[kind]
    model = fit(make(), CAT_Y, categorical_features=which)
    assert bits(model) == bits(reference)
    np.testing.assert_array_equal(model.predict(make()), reference.predict(plain))


def test_no_categories_when_asked_for_none():
    frame = pd.DataFrame({"k": pd.Series(CODES).astype("category"), "x": NUMBER})
    with pytest.raises(ValueError, match="column 'k' has type Categorical, which is not numeric"):
        fit(frame, CAT_Y, categorical_features=None)


def test_unknown_category_is_a_missing_one():
    frame = pd.DataFrame({"k": pd.Categorical(LABELS), "x": NUMBER})
    model = fit(frame, CAT_Y)
    strange = frame.assign(k=pd.Categorical(["yak"] * N))
    missing = frame.assign(k=pd.Categorical([None] * N, categories=WORDS))
    np.testing.assert_array_equal(model.predict(strange), model.predict(missing))
    assert len(np.unique(model.predict(frame))) > len(np.unique(model.predict(missing)))

    plain = np.column_stack([CODES, NUMBER])
    model = fit(plain, CAT_Y, categorical_features=[0])
    for code in (-1.0, 0.5, 5.0, 1e300, np.inf, -np.inf):
        strange = np.column_stack([np.full(N, code), NUMBER])
        missing = np.column_stack([np.full(N, np.nan), NUMBER])
        np.testing.assert_array_equal(model.predict(strange), model.predict(missing))


def test_category_that_only_weightless_rows_have_is_unknown():
    words = np.array(LABELS, dtype=object)
    frame = pd.DataFrame({"k": pd.Categorical(words), "x": NUMBER})
    counts = (words != "cat").astype(float)
    model = MiserRegressor(max_iter=3).fit(frame, CAT_Y, counts)
    assert model.categories_[0].tolist() == ["ant", "bee", "dog", "eel"]
    np.testing.assert_array_equal(
        model.predict(frame[words == "cat"]),
        model.predict(
            frame[words == "cat"].assign(k=pd.Categorical([None] * (words == "cat").sum()))
        ),
    )


def test_categories_of_the_user_are_left_alone():
    plain = np.column_stack([CODES + 10, NUMBER])
    before = plain.copy()
    model = fit(plain, CAT_Y, categorical_features=[0])
    model.predict(plain)
    np.testing.assert_array_equal(plain, before)


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame(
            {"c": pd.Categorical(["x"]), "o": pd.Categorical([1], ordered=True), "n": [1]}
        ),
        pl.DataFrame(
            {
                "c": pl.Series(["x"], dtype=pl.Categorical),
                "o": pl.Series(["x"], dtype=pl.Enum(["x"])),
                "n": [1],
            }
        ),
        pa.table(
            {
                "c": pa.array(["x"]).dictionary_encode(),
                "o": pa.array([1]).dictionary_encode(),
                "n": [1],
            }
        ),
    ],
    ids=["pandas", "polars", "pyarrow"],
)
def test_categorical_columns(frame):
    assert categorical_columns(frame) == [0, 1]


def test_mixed_labels_have_some_order():
    frame = pd.DataFrame({"k": pd.Series(["b", 2, "a", 1, None, 2], dtype=object)})
    known = learn_categories(frame, [0], None, 255)
    assert known[0].tolist() == [1, 2, "a", "b"]
    np.testing.assert_array_equal(
        FrameTable(frame, known).columns([0], None)[0], [3, 1, 2, 0, np.nan, 1]
    )


def test_chosen_rows_alone_are_learned():
    known = learn_categories(np.array([[5.0], [3.0], [9.0], [np.nan]]), [0], np.array([0, 1, 3]), 2)
    assert known[0].tolist() == [3.0, 5.0]


@pytest.mark.parametrize("X", [np.arange(4.0)[:, None], pd.DataFrame({"k": list("abcd")})])
def test_too_many_categories(X):
    name = "'k'" if is_frame(X) else "0"
    assert len(learn_categories(X, [0], None, 4)[0]) == 4
    with pytest.raises(ValueError, match=f"feature {name} has 4 categories.*max_bins=3"):
        learn_categories(X, [0], None, 3)


LARGE = 2**53


@pytest.mark.parametrize(
    "make",
    [
        lambda labels: pd.DataFrame({"a": pd.Categorical(labels)}),
        lambda labels: pd.DataFrame({"a": pd.array(labels, dtype="Int64")}),
        lambda labels: pl.DataFrame({"a": labels}, schema={"a": pl.Int64}),
        lambda labels: pa.table({"a": pa.array(labels, pa.int64())}),
    ],
    ids=["pandas categorical", "pandas nullable", "polars", "pyarrow"],
)
def test_large_integers_with_missing_ones_are_not_rounded(make):
    """As floats, the first two would be one category."""
    labels = [LARGE, LARGE + 1, None, -LARGE - 1, LARGE + 2]
    known = learn_categories(make(labels), [0], None, 10)
    assert known[0].tolist() == [-LARGE - 1, LARGE, LARGE + 1, LARGE + 2]
    for rows in (labels, labels[:2], labels[3:]):
        codes = FrameTable(make(rows), known).columns([0], None)[0]
        expected = [np.nan if label is None else known[0].tolist().index(label) for label in rows]
        np.testing.assert_array_equal(codes, expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda numbers: pa.table({"a": pa.array(numbers)}),
        lambda numbers: pd.DataFrame({"a": pd.Series(pd.arrays.ArrowExtensionArray(
            pa.array(numbers)))}),
        lambda numbers: pd.DataFrame({"a": pd.array(numbers, dtype="Int64")}),
        lambda numbers: pl.DataFrame({"a": numbers}),
    ],
    ids=["pyarrow", "pandas on pyarrow", "pandas nullable", "polars"],
)  # fmt: skip
@pytest.mark.parametrize("large", [LARGE + 1, -LARGE - 1, 2**63 - 1])
def test_large_integers_with_missing_ones_become_the_nearest_floats(make, large):
    table = FrameTable(make([large, None, 5]))
    np.testing.assert_array_equal(table.columns([0], None)[0], [float(large), np.nan, 5.0])
    np.testing.assert_array_equal(table.rows(0, 3, [0])[:, 0], [float(large), np.nan, 5.0])


# -- labels of another type than those of training ------------------------------------------------

FRAMES = {
    "pandas": lambda labels: pd.DataFrame({"k": labels}),
    "pandas categorical": lambda labels: pd.DataFrame({"k": pd.Categorical(labels)}),
    "pandas objects": lambda labels: pd.DataFrame({"k": pd.Series(labels, dtype=object)}),
    "polars": lambda labels: pl.DataFrame({"k": labels}),
    "pyarrow": lambda labels: pa.table({"k": labels}),
}


@pytest.mark.parametrize("make", FRAMES.values(), ids=FRAMES)
@pytest.mark.parametrize(
    ("learned", "labels", "held", "known"),
    [
        (["01", "2", "x"], [1, 2], "numbers", "text, such as '01'"),
        (["01", "2", "x"], [1.0, None], "numbers", "text, such as '01'"),
        (["no", "yes"], [False, True], "truth values", "text, such as 'no'"),
        ([1, 2], ["01", "2"], "text", "numbers, such as 1"),
        ([5, 7], [True, False], "truth values", "numbers, such as 5"),
    ],
)
def test_a_column_whose_labels_can_match_no_category_is_refused(make, learned, labels, held, known):
    """A file whose labels happen to be digits is read as numbers: all would be unknown."""
    categories = learn_categories(FRAMES["pandas categorical"](learned), [0], None, 255)
    table = FrameTable(make(labels), categories)
    for read in (lambda: table.columns([0], None), lambda: table.rows(0, 1, [0])):
        with pytest.raises(ValueError, match=f"column 'k' .* holds {held}, but .* {known}"):
            read()


@pytest.mark.parametrize(
    ("learned", "labels", "codes"),
    [
        (["01", "2"], ["2", "new", None], [1, np.nan, np.nan]),
        (["01", "2"], [None, None], [np.nan, np.nan]),
        ([1, 2], [2.0, None], [1, np.nan]),
        ([0, 1, 2], [True, False], [1, 0]),
        ([False, True], [1, 0, 7], [1, 0, np.nan]),
        ([1, "x"], [1, 2], [0, np.nan]),
    ],
)
def test_labels_of_a_type_that_can_match_are_matched(learned, labels, codes):
    categories = learn_categories(FRAMES["pandas categorical"](learned), [0], None, 255)
    for name in ("pandas categorical", "pandas objects", "polars", "pyarrow"):
        found = FrameTable(FRAMES[name](labels), categories).columns([0], None)[0]
        np.testing.assert_array_equal(found, codes, err_msg=name)


@pytest.mark.parametrize("kinds", [(np.int64, np.float64), (np.float64, np.int64)])
def test_large_numbers_of_different_types_are_compared_exactly(kinds):
    odd = LARGE + 1 if kinds[0] is np.int64 else LARGE
    labels = np.array([1, odd], dtype=kinds[0])
    known = np.array([1, 2 * LARGE + 1 - odd], dtype=kinds[1])
    np.testing.assert_array_equal(codes_of_labels(labels, known), [0.0, np.nan])
    same = np.array([1, LARGE], dtype=kinds[0]), np.array([1, LARGE], dtype=kinds[1])
    np.testing.assert_array_equal(codes_of_labels(*same), [0.0, 1.0])


def test_encode():
    known = np.array([2.0, 5.0, 7.0])
    np.testing.assert_array_equal(
        codes_of_labels(np.array([7.0, 2.0, np.nan, 6.0, 99.0]), known),
        [2, 0, np.nan, np.nan, np.nan],
    )
    np.testing.assert_array_equal(codes_of_labels(np.array([7, 2, 6]), known), [2, 0, np.nan])
    np.testing.assert_array_equal(
        codes_of_labels(np.array([7, "x"], dtype=object), known), [2, np.nan]
    )
    np.testing.assert_array_equal(codes_of_labels(np.array([1.0]), np.empty(0)), [np.nan])


# -- the tables themselves ------------------------------------------------------------------------

TABLES = {
    "array": ArrayTable(HOLES),
    "Fortran": ArrayTable(np.asfortranarray(HOLES)),
    "csr": SparseTable(sparse.csr_array(HOLES)),
    "csc": SparseTable(sparse.csc_array(HOLES)),
    "pandas": FrameTable(ARRAYS["pandas"](HOLES)),
    "pandas mixed": FrameTable(ARRAYS["pandas mixed"](HOLES)),
    "pandas on pyarrow": FrameTable(ARRAYS["pandas on pyarrow"](HOLES)),
    "polars": FrameTable(ARRAYS["polars null"](HOLES)),
    "pyarrow": FrameTable(ARRAYS["pyarrow chunks"](HOLES)),
}


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("rows", [None, np.array([3, 0, 199])], ids=["all rows", "some rows"])
@pytest.mark.parametrize("wanted", [[0, 1, 2, 3], [1, 2], [2], [3, 0], [0, 2, 3]])
def test_columns(kind, rows, wanted):
    block = TABLES[kind].columns(wanted, rows)
    assert block.dtype == np.float64
    assert block.flags.c_contiguous
    np.testing.assert_array_equal(
        block, HOLES[:, wanted].T if rows is None else HOLES[rows][:, wanted].T
    )


@pytest.mark.parametrize("kind", TABLES)
def test_rows(kind):
    table = TABLES[kind]
    assert (table.n_rows, table.n_columns) == HOLES.shape
    for start, stop in [(10, 11), (10, 30), (10, 110), (0, N)]:
        block = table.rows(start, stop, [0, 2])
        assert block.shape == (stop - start, 4)
        assert block.dtype == np.float64
        assert block.flags.c_contiguous
        assert block.flags.writeable  # the kernels are compiled for such alone
        np.testing.assert_array_equal(block[:, [0, 2]], HOLES[start:stop, [0, 2]])


def test_few_rows_of_a_frame_with_columns_of_any_kind():
    frame = pd.DataFrame({"a": [1, 2], "b": [True, False], "c": ["x", "y"], "d": [None, 2.5]})
    np.testing.assert_array_equal(
        FrameTable(frame).rows(0, 2, [0, 1, 3]), [[1, 1, np.nan, np.nan], [2, 0, np.nan, 2.5]]
    )
    known = {2: np.array(["w", "y"], dtype=object)}
    np.testing.assert_array_equal(
        FrameTable(frame, known).rows(0, 2, [0, 2]),
        [[1, np.nan, np.nan, np.nan], [2, np.nan, 1, np.nan]],
    )


@pytest.mark.parametrize("kind", TABLES)
def test_take(kind):
    rows = np.array([5, 2, 150])
    taken = TABLES[kind].take(rows)
    np.testing.assert_array_equal(as_table(taken).columns([0, 1, 2, 3], None), HOLES[rows].T)
    whole = TABLES[kind].take(None)
    np.testing.assert_array_equal(as_table(whole).columns([0, 1, 2, 3], None), HOLES.T)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame, pa.table])
def test_take_keeps_the_kind_of_a_frame(frame):
    X = frame({"k": pd.Series(LABELS).fillna("?").tolist(), "x": NUMBER})
    taken = as_table(X).take(np.array([7, 3]))
    assert type(taken) is type(X)
    assert list(taken["x"]) == [NUMBER[7], NUMBER[3]] or taken["x"].to_pylist() == [
        NUMBER[7],
        NUMBER[3],
    ]


def test_what_is_a_frame():
    assert is_frame(pd.DataFrame({"a": [1]}))
    assert is_frame(pl.DataFrame({"a": [1]}))
    assert is_frame(pa.table({"a": [1]}))
    assert not is_frame(np.ones((1, 1)))
    assert not is_frame({"a": [1]})
    assert not is_frame([[1]])
    assert not is_frame(pd.Series([1]))
    assert not is_frame(pl.LazyFrame({"a": [1]}))
    assert not is_frame(sparse.csr_array(np.ones((1, 1))))


# -- columns have names ---------------------------------------------------------------------------


def test_reordered_columns_are_refused():
    frame = pd.DataFrame(WHOLE, columns=NAMES)
    model = fit(frame)
    with pytest.raises(ValueError, match="must be in the same order"):
        model.predict(frame[["b", "a", "c", "d"]])
    with pytest.raises(ValueError, match=r"(?s)unseen at fit time:.*z"):
        model.predict(frame.rename(columns={"a": "z"}))


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow"])
def test_names_are_kept(kind):
    model = fit(ARRAYS[kind](WHOLE))
    assert model.feature_names_in_.tolist() == NAMES
    assert set(model.features_used_) <= set(NAMES)
    assert {line.feature for line in model.receipt()} == set(model.features_used_)
    assert model.resources_used_ == model.features_used_


def test_a_model_of_one_frame_reads_another():
    model = fit(ARRAYS["pandas"](HOLES))
    expected = model.predict(ARRAYS["pandas"](HOLES))
    for kind in ("polars", "pyarrow", "pandas Int64"):
        np.testing.assert_array_equal(model.predict(ARRAYS[kind](HOLES)), expected)


def test_columns_without_names_are_counted():
    model = fit(pd.DataFrame(WHOLE))
    assert not hasattr(model, "feature_names_in_")
    assert set(model.features_used_) <= {0, 1, 2, 3}


def test_columns_that_are_not_needed_are_not_read():
    frame = pd.DataFrame(WHOLE, columns=NAMES)
    model = fit(frame, costs={"a": 1.0, "b": 1.0, "c": 1e6, "d": 1e6}, tradeoff=0.1)
    assert model.features_used_ == ["a", "b"]
    np.testing.assert_array_equal(
        model.predict(frame.assign(c="words", d=None)), model.predict(frame)
    )


# -- many columns ---------------------------------------------------------------------------------

WIDE_FRAMES = {
    "pandas": lambda X, names: pd.DataFrame(X, columns=names),
    "polars": lambda X, names: pl.DataFrame(X, schema=names),
    "pyarrow": lambda X, names: pa.table(dict(zip(names, X.T, strict=True))),
}

# What takes a frame the longer the more columns it has.
LONG_LOOKS = ["columns", "schema", "__getitem__", "select", "iter_columns", "shape", "clone"]


@pytest.fixture
def looks(monkeypatch):
    """Counts the calls that look at all columns of a frame, and those that look at one."""
    counts = dict.fromkeys([*LONG_LOOKS, "get_column"], 0)

    def count(name):
        plain = vars(nw.DataFrame)[name]
        function = plain.fget if isinstance(plain, property) else plain

        def counted(self, *args, **kwargs):
            counts[name] += 1
            return function(self, *args, **kwargs)

        is_property = isinstance(plain, property)
        monkeypatch.setattr(nw.DataFrame, name, property(counted) if is_property else counted)

    for name in counts:
        count(name)
    return counts


@pytest.mark.parametrize("kind", WIDE_FRAMES)
def test_the_work_grows_with_the_columns_and_not_with_their_square(kind, looks):
    rng = np.random.default_rng(0)
    seen = []
    for d in (30, 300):
        names = [f"column {i}" for i in range(d)]
        # Three categories each, and as many rows as are not turned into an array at once.
        X = WIDE_FRAMES[kind](rng.integers(0, 3, (N, d)).astype(np.float64), names)
        looks.update(dict.fromkeys(looks, 0))
        model = fit(
            X, costs=dict.fromkeys(reversed(names), 1.0), categorical_features=names[::2],
            monotonic_cst=dict.fromkeys(names[1::2], 1), max_depth=6,
        )  # fmt: skip
        model.predict(X)
        as_predictor(model).predict(X)
        assert len(model.features_used_) > 10
        assert looks["get_column"] <= 4 * d
        seen.append({name: looks[name] for name in LONG_LOOKS})
    assert seen[0] == seen[1]
    assert sum(seen[0].values()) > 0


def test_names_are_looked_up_in_a_table(monkeypatch):
    comparisons = 0

    class Counted(str):
        __hash__ = str.__hash__

        def __eq__(self, other):
            nonlocal comparisons
            comparisons += 1
            return str.__eq__(self, other)

    names = [f"column {i}" for i in range(300)]
    X = pd.DataFrame(np.random.default_rng(0).integers(0, 3, (N, 300)), columns=names)
    given = [Counted(name) for name in names]
    fit(X, categorical_features=given[:150], monotonic_cst=dict.fromkeys(given[150:], 1))
    assert 0 < comparisons < 20 * len(names)


def test_a_sparse_matrix_is_turned_by_column_once(monkeypatch):
    turns = 0
    plain = sparse.csr_matrix.tocsc

    def tocsc(self, *args, **kwargs):
        nonlocal turns
        turns += 1
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(sparse.csr_matrix, "tocsc", tocsc)
    X = sparse.csr_matrix(np.random.default_rng(0).integers(0, 3, (50, 40)).astype(float))
    assert len(learn_categories(X, range(40), None, 255)) == 40
    assert turns == 1


def test_columns_may_have_any_names():
    X = WHOLE
    expected = bits(fit(X))
    for names in ([3, 1, 0, 2], [True, False, 2, 3], [("a", 1), ("a", 2), ("b", 1), ("c", 1)]):
        frame = pd.DataFrame(X, columns=pd.Index(names, tupleize_cols=False))
        assert bits(fit(frame)) == expected
        np.testing.assert_array_equal(fit(frame).predict(frame), fit(X).predict(X))


@pytest.mark.parametrize("make", [pd.DataFrame, pa.table], ids=["pandas", "pyarrow"])
def test_two_columns_of_one_name(make):
    def frame(names):
        if make is pd.DataFrame:
            return pd.DataFrame(WHOLE, columns=names)
        return pa.table(list(WHOLE.T), names=names)

    model, twice = fit(frame(NAMES)), frame(["a", "b", "a", "d"])
    for some in (fit, model.predict, as_predictor(model).predict):
        with pytest.raises(ValueError, match=r"^X has the column 'a' twice; rename or drop one"):
            some(twice)
    with pytest.raises(ValueError, match="X has the column 'b' 3 times"):
        fit(frame(["a", "b", "b", "b"]))


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_words_in_an_array_ask_for_a_frame():
    frame = pd.DataFrame({"a": NUMBER, "k": pd.Categorical(WORDS[CODE])})
    model = fit(frame)
    for words in (frame.to_numpy(), frame.to_numpy().astype(str), frame.to_numpy().tolist()):
        with pytest.raises(
            ValueError, match=r"string.*; give a data frame with the columns of fit"
        ):
            model.predict(words)
        with pytest.raises(ValueError, match=r"X must be numeric: .*; pass X as a data frame"):
            as_predictor(model).predict(words)
    # Of a model that never saw a frame, nobody knows the columns.
    with pytest.raises(ValueError, match=r"could not convert string to float: '[^']*'$"):
        fit(WHOLE).predict(np.full((2, 4), "word", dtype=object))


def test_columns_that_are_not_numbers():
    frame = pd.DataFrame(WHOLE, columns=NAMES)
    for column, kind in [
        (["word"] * N, "String"),
        ([pd.Timestamp("2020-01-01")] * N, "Datetime"),
        ([1j] * N, "Unknown"),
        ([[1, 2]] * N, "Object"),
    ]:
        with pytest.raises(ValueError, match=f"column 'c' has type {kind}.*not numeric"):
            fit(frame.assign(c=column))
    with pytest.raises(ValueError, match=r"column 'b' has type String.*not numeric"):
        fit(pl.DataFrame({"a": NUMBER, "b": WORDS[CODE]}))


@pytest.mark.parametrize(
    ("make", "nothing"),
    [
        (pd.DataFrame, lambda n: pd.Series([None] * n)),
        (pd.DataFrame, lambda n: pd.Series([None] * n, dtype="string")),
        (pd.DataFrame, lambda n: pd.Series([pd.NA] * n, dtype="Int64")),
        (pl.DataFrame, lambda n: pl.Series([None] * n)),
        (pl.DataFrame, lambda n: pl.Series([None] * n, dtype=pl.String)),
        (pa.table, pa.nulls),
    ],
    ids=["objects", "string", "Int64", "polars", "polars string", "pyarrow"],
)
def test_a_column_of_nothing_has_any_type(make, nothing):
    """The only row of a request may say None where the training data had numbers."""
    X = {name: WHOLE[:, i] for i, name in enumerate(NAMES)}
    empty = fit(make(X | {"b": nothing(N)}))
    assert empty.features_used_ == ["a", "c", "d"]
    model = fit(make(X))
    request = make({"a": [3.0], "b": nothing(1), "c": [1.0], "d": [2.0]})
    plain = fit(WHOLE).predict([[3.0, np.nan, 1.0, 2.0]])
    np.testing.assert_array_equal(model.predict(request), plain)


def test_what_a_mask_hides_is_missing():
    hidden = WHOLE > 15
    masked = np.ma.masked_array(WHOLE, hidden)
    expected = fit(np.where(hidden, np.nan, WHOLE))
    model = fit(masked)
    assert bits(model) == bits(expected)
    for some in (model, as_predictor(model)):
        np.testing.assert_array_equal(
            some.predict(masked), expected.predict(np.where(hidden, np.nan, WHOLE))
        )


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (dt.datetime(2020, 1, 1), "days since a date"),
        (dt.date(2020, 1, 1), "days since a date"),
        (dt.timedelta(days=3), "its length in days"),
        (dt.time(12, 30), "hours since midnight"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_columns_of_dates_are_to_be_numbers(make, value, advice):
    frame = make({"a": NUMBER, "d": [None] + [value] * (N - 1)})
    with pytest.raises(ValueError, match=f"not numeric; turn it into a number, such as {advice}"):
        fit(frame)


@pytest.mark.parametrize("kind", ["datetime64[s]", "timedelta64[ms]"])
def test_dates_are_not_numbers(kind):
    dates = WHOLE.astype(np.int64).astype(kind)
    model = fit(WHOLE)
    for some in (fit, model.predict, as_predictor(model).predict):
        with pytest.raises(ValueError, match=rf"X holds {re.escape(kind)}, which is not numeric"):
            some(dates)


DAYS = np.array(["2020-01-01", "2020-01-02", "NaT", "2020-01-03"] * 10, "M8[D]")
DATES = [None if day is None else day for day in DAYS.tolist()]


@pytest.mark.parametrize(
    "columns",
    [
        [pd.Categorical(DAYS.astype(f"M8[{unit}]")) for unit in ("s", "us", "ns")],
        [pd.Series(DATES, dtype=object), pl.Series(DATES), pd.arrays.ArrowExtensionArray(
            pa.array(DATES)), pd.Categorical(DATES)],
    ],
    ids=["times", "days"],
)  # fmt: skip
def test_categories_that_are_dates_match_in_any_unit_and_library(columns):
    frames = [
        pl.DataFrame({"day": column}) if isinstance(column, pl.Series)
        else pd.DataFrame({"day": column}) for column in columns
    ]  # fmt: skip
    y = np.arange(float(len(DAYS))) % 4
    settings = {"max_iter": 3, "min_samples_leaf": 2, "categorical_features": [0]}
    models = [MiserRegressor(**settings).fit(frame, y) for frame in frames]
    expected = models[0].predict(frames[0])
    assert len(set(expected)) == 4
    for model in models:
        for frame in frames:
            assert np.array_equal(model.predict(frame), expected)


def test_dates_that_differ_by_nanoseconds_are_other_categories():
    times = np.datetime64("2020-01-01", "ns") + np.arange(40) % 4
    frame = pd.DataFrame({"time": pd.Categorical(times)})
    model = MiserRegressor(max_iter=3, min_samples_leaf=2).fit(frame, np.arange(40.0) % 4)
    assert len(set(model.predict(frame))) == 4


def test_lazy_frames_must_be_collected():
    with pytest.raises(TypeError, match="lazy LazyFrame; call its collect"):
        fit(pl.LazyFrame(WHOLE, schema=NAMES))
    with pytest.raises(TypeError, match="lazy LazyFrame; call its collect"):
        as_predictor(fit(WHOLE)).predict(pl.LazyFrame(WHOLE, schema=NAMES))


# -- memory ---------------------------------------------------------------------------------------


def peak_of_fit(make, n_rows):
    """Bytes that a fit needs on top of its data; small trees, so that binning dominates."""
    X = make(np.random.default_rng(0).standard_normal((n_rows, 64)))
    y = np.arange(float(n_rows))
    model = MiserRegressor(max_iter=2, max_depth=2, early_stopping=False, n_jobs=2)
    model.fit(X, y)  # compiles; few rows do not need all kernels
    tracemalloc.start()
    try:
        model.fit(X, y)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "make",
    [
        np.ascontiguousarray,
        np.asfortranarray,
        lambda X: X.astype(np.float32),
        lambda X: pd.DataFrame(X, columns=[f"c{i}" for i in range(64)]),
        lambda X: pl.DataFrame(X),
    ],
    ids=["C order", "Fortran order", "float32", "pandas", "polars"],
)
def test_fit_does_not_copy_x(make):
    n = 20_000
    # Binned data takes an eighth of float64, and two threads hold eight columns each.
    assert peak_of_fit(make, n) < 0.7 * n * 64 * 8


def test_prediction_does_not_copy_x():
    X = np.random.default_rng(0).standard_normal((20_000, 64))
    model = MiserClassifier(max_iter=2).fit(X[:500], X[:500, 0] > 0)
    model.predict(X[:10])
    tracemalloc.start()
    try:
        model.predict(X)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 0.2 * X.nbytes
