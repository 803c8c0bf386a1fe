from __future__ import annotations

import gzip
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from greedymiser.costs.cost_model import CostModel
from greedymiser.datasets import load_letor, load_thyroid, load_yahoo_costs


@pytest.fixture(scope="module")
def thyroid():
    return load_thyroid()


def external(*parts: str) -> Path:
    """A file of the data folder that a user may have; skip the test where it is absent."""
    folder = os.environ.get("GREEDYMISER_DATA")
    if not folder:
        pytest.skip("needs external data: set GREEDYMISER_DATA to its folder")
    path = Path(folder).joinpath(*parts)
    if not path.is_file():
        pytest.skip(f"needs {'/'.join(parts)} in the folder GREEDYMISER_DATA")
    return path


# Thyroid


def test_thyroid_shapes_and_types(thyroid):
    assert thyroid.X_train.shape == (3772, 21)
    assert thyroid.X_test.shape == (3428, 21)
    assert thyroid.y_train.shape == (3772,)
    assert thyroid.y_test.shape == (3428,)
    for X in (thyroid.X_train, thyroid.X_test):
        assert X.dtype == np.float64
        assert X.flags.c_contiguous
        assert np.isfinite(X).all()
    assert thyroid.y_train.dtype == thyroid.y_test.dtype == np.int64


def test_thyroid_classes(thyroid):
    assert np.unique(thyroid.y_train, return_counts=True)[1].tolist() == [93, 191, 3488]
    assert np.unique(thyroid.y_test, return_counts=True)[1].tolist() == [73, 177, 3178]
    assert thyroid.target_names == ["hypothyroid", "subnormal", "normal"]


def test_thyroid_first_row_is_that_of_the_source(thyroid):
    history = [0.73, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]
    assert thyroid.X_train[0].tolist() == [*history, 0.0006, 0.015, 0.12, 0.082, 0.146]
    assert thyroid.y_train[0] == 3


def test_thyroid_class_names_fit_the_laboratory_values(thyroid):
    TSH, TT4 = (thyroid.X_train[:, thyroid.feature_names.index(name)] for name in ("TSH", "TT4"))
    hypothyroid, subnormal, normal = (thyroid.y_train == label for label in (1, 2, 3))
    # Without thyroxine (TT4) the pituitary calls for more (TSH); while it is heard, TT4 is normal.
    assert np.median(TSH[hypothyroid]) > 3 * np.median(TSH[subnormal])
    assert np.median(TSH[subnormal]) > 3 * np.median(TSH[normal])
    assert np.median(TT4[hypothyroid]) < np.median(TT4[normal]) / 3
    assert np.median(TT4[subnormal]) > np.median(TT4[normal]) / 1.5


def test_thyroid_costs_know_the_features_by_name_and_position(thyroid):
    assert isinstance(thyroid.costs, CostModel)
    assert thyroid.costs.feature_names == thyroid.feature_names
    assert thyroid.feature_names[0] == "age"
    assert thyroid.feature_names[16:] == ["TSH", "T3", "TT4", "T4U", "FTI"]


@pytest.mark.parametrize(
    ("bought", "feature", "price"),
    [
        ([], "age", 1.00),
        ([], "psych", 1.00),
        (["age"], "age", 0.00),
        (["age"], "sex", 1.00),
        # Turney's list prices, which contain the blood draw of 2.10 ...
        ([], "TSH", 22.78),
        ([], "T3", 11.41),
        ([], "TT4", 14.51),
        ([], "T4U", 11.41),
        # ... and those after the blood is drawn.
        (["T3"], "TSH", 20.68),
        (["TSH"], "T3", 9.31),
        (["TSH"], "TT4", 12.41),
        (["TSH"], "T4U", 9.31),
        # FTI is computed from TT4 and T4U.
        ([], "FTI", 2.10 + 12.41 + 9.31),
        (["TSH"], "FTI", 12.41 + 9.31),
        (["TT4"], "FTI", 9.31),
        (["TT4", "T4U"], "FTI", 0.00),
        (["FTI"], "TT4", 0.00),
        (["FTI"], "T4U", 0.00),
        (["FTI"], "T3", 9.31),
    ],
)
def test_thyroid_prices(thyroid, bought, feature, price):
    prices = thyroid.costs.prices(bought=bought)
    assert prices[thyroid.feature_names.index(feature)] == pytest.approx(price, abs=1e-12)


def test_thyroid_total(thyroid):
    everything = 16 * 1.00 + 2.10 + 20.68 + 9.31 + 12.41 + 9.31
    assert thyroid.costs.total(range(21)) == pytest.approx(everything)
    assert thyroid.costs.total(["TT4", "T4U", "FTI"]) == pytest.approx(2.10 + 12.41 + 9.31)
    assert thyroid.costs.tree_cost == 0


def test_thyroid_as_frame(thyroid):
    pytest.importorskip("pandas")
    train, test = thyroid.as_frame()
    assert list(train.columns) == list(test.columns) == thyroid.feature_names
    np.testing.assert_array_equal(train.to_numpy(), thyroid.X_train)
    np.testing.assert_array_equal(test.to_numpy(), thyroid.X_test)


def test_thyroid_as_frame_without_pandas(thyroid, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"needs pandas.*greedymiser\[frames\]"):
        thyroid.as_frame()


def test_thyroid_is_loaded_anew_each_time(thyroid):
    other = load_thyroid()
    other.X_train[:] = 0
    assert thyroid.X_train.any()


@pytest.mark.parametrize("part", ["train", "test"])
def test_thyroid_equals_the_source(thyroid, part):
    table = np.loadtxt(external("thyroid", f"ann-{part}.data"))
    np.testing.assert_array_equal(getattr(thyroid, f"X_{part}"), table[:, :-1])
    np.testing.assert_array_equal(getattr(thyroid, f"y_{part}"), table[:, -1])


# Yahoo


def test_yahoo_costs():
    costs = load_yahoo_costs()
    assert costs.shape == (519,)
    assert costs.dtype == np.float64
    values, counts = np.unique(costs, return_counts=True)
    assert dict(zip(values.tolist(), counts.tolist(), strict=True)) == {
        1: 123,
        5: 31,
        20: 191,
        50: 125,
        100: 16,
        150: 32,
        200: 1,
    }


def test_yahoo_costs_with_the_absent_features():
    costs = load_yahoo_costs(keep_absent=True)
    assert costs.shape == (700,)
    assert np.isnan(costs).sum() == 181
    # The file begins 100, 20, 10000.
    np.testing.assert_array_equal(costs[:3], [100, 20, np.nan])
    np.testing.assert_array_equal(costs[~np.isnan(costs)], load_yahoo_costs())


# LETOR

LETOR = """\
2 qid:10 1:0.5 3:0.25 #docid = A1 inc = 1
0 qid:10 2:-1.5
1 qid:8 1:1e-3 2:2 3:3
"""
X_LETOR = [[0.5, 0, 0.25], [0, -1.5, 0], [1e-3, 2, 3]]


def write(folder: Path, text: str) -> Path:
    path = folder / "rows.txt"
    path.write_text(text)
    return path


@pytest.mark.parametrize("kind", [str, Path])
def test_letor(tmp_path, kind):
    X, y, qid = load_letor(kind(write(tmp_path, LETOR)))
    assert isinstance(X, np.ndarray)
    assert X.dtype == y.dtype == np.float64
    assert qid.dtype == np.int64
    assert X.tolist() == X_LETOR
    assert y.tolist() == [2, 0, 1]
    assert qid.tolist() == [10, 10, 8]


def test_letor_compressed(tmp_path):
    path = tmp_path / "rows.txt.gz"
    path.write_bytes(gzip.compress(LETOR.encode()))
    assert load_letor(path)[0].tolist() == X_LETOR


def test_letor_with_more_features_than_the_file_shows(tmp_path):
    X, _, _ = load_letor(write(tmp_path, LETOR), n_features=5)
    assert X.tolist() == [[*row, 0, 0] for row in X_LETOR]


def test_letor_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no LETOR file at .*nowhere\.txt"):
        load_letor(tmp_path / "nowhere.txt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 1:0.5\n0 2:1\n", "2 of the 2 lines of .* have none"),
        ("1 qid:1 1:0.5\n0 2:1\n", "1 of the 2 lines of .* have none"),
        ("# nothing but a comment\n", "has no rows"),
        ("", "has no rows"),
        ("1 qid:1 0:0.5 1:2\n", "cannot read .* as a LETOR file"),
        ("age,sex\n1,0\n", "cannot read .* as a LETOR file"),
    ],
)
def test_letor_unreadable(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        load_letor(write(tmp_path, text))


def test_letor_with_fewer_features_than_the_file_shows(tmp_path):
    with pytest.raises(ValueError, match="cannot read"):
        load_letor(write(tmp_path, LETOR), n_features=2)


def test_letor_reads_mq2008():
    X, y, qid = load_letor(external("mq2008", "S1.txt"))
    assert X.shape == (2933, 46)
    assert len(np.unique(qid)) == 157
    assert set(y) == {0, 1, 2}
    assert X[0, 0] == 0.007477
