from __future__ import annotations

import bz2
import gzip
import sys

import numpy as np
import pandas as pd
import pytest
from pandas._libs import parsers

from greedymiser.datasets import MISSING_WORDS, is_svmlight, load_letor, read_table

LETOR = """\
2 qid:10 1:0.5 3:0.25 #docid = A1 inc = 1
0 qid:10 2:-1.5
1 qid:8 1:1e-3 2:2 3:3
"""


@pytest.fixture
def file(tmp_path):
    def write(name: str, content: str | bytes):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


# CSV


def test_csv(file):
    frame = read_table(
        file("t.csv", "age,colour,ok,when\n1,red,True,\n,green,False,\n3.5,,True,\n")
    )
    assert list(frame.columns) == ["age", "colour", "ok", "when"]
    np.testing.assert_array_equal(frame["age"], [1, np.nan, 3.5])
    assert isinstance(frame["colour"].dtype, pd.CategoricalDtype)
    assert frame["colour"].cat.categories.tolist() == ["green", "red"]
    assert frame["ok"].tolist() == [True, False, True]
    assert frame["when"].isna().all()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "a,b\r\n1,2\r\n"),
        ("t.csv", "a,b\r1,2\r"),
        ("t.CSV", "\ufeffa, b\n1, 2"),
        ("t.csv", '\n"a","b"\n"1","2"\n\n'),
        ("t.tsv", "a\tb\n1\t2\n"),
    ],
)
def test_csv_as_people_write_it(file, name, text):
    frame = read_table(str(file(name, text)))
    assert list(frame.columns) == ["a", "b"]
    assert frame.to_numpy().tolist() == [[1, 2]]


def test_numbers_are_read_to_the_last_bit(file):
    """Once pandas was content with nearly all of them."""
    numbers = np.random.default_rng(0).random(500)
    cells = "\n".join(map(repr, numbers.tolist()))
    assert read_table(file("t.csv", f"x\n{cells}\n"))["x"].tolist() == numbers.tolist()


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress)])
def test_compressed(file, suffix, pack):
    frame = read_table(file(f"t.csv.{suffix}", pack(b"a,b\n1,2\n")))
    assert frame.to_numpy().tolist() == [[1, 2]]
    frame = read_table(file(f"t.txt.{suffix}", pack(LETOR.encode())))
    assert frame["3"].tolist() == [0.25, 0, 3]


def test_columns_to_read_as_text(file):
    path = file("t.csv", "code,n\n01,1\n2,2\n")
    assert read_table(path)["code"].tolist() == [1, 2]
    assert read_table(path, text=["code", "absent"])["code"].tolist() == ["01", "2"]


def test_words_for_what_is_missing(file):
    path = file("t.csv", "age,colour,kind\n1,None,None\nNA,red,NA\n2.5,null,\n")
    noted = []
    frame = read_table(path, literal=["kind"], on_missing_words=noted.append)
    np.testing.assert_array_equal(frame["age"], [1, np.nan, 2.5])
    assert frame["age"].dtype == np.float64
    assert frame["colour"].isna().tolist() == [True, False, True]
    assert frame["kind"].isna().tolist() == [False, False, True]
    assert frame["kind"].tolist()[:2] == ["None", "NA"]
    assert noted == [{"age": ["NA"], "colour": ["None", "null"]}]


def test_every_word_of_pandas_is_known(file):
    words = sorted(parsers.STR_NA_VALUES - {""})
    assert sorted(MISSING_WORDS) == words
    noted = []
    frame = read_table(file("t.csv", "\n".join(["x", "1", *words])), on_missing_words=noted.append)
    assert frame["x"].isna().tolist() == [False] + [True] * len(words)
    assert noted == [{"x": words}]


def test_words_in_columns_of_text(file):
    path = file("t.csv", "code,kind\n7,1\nNA,nan\n,2\n")
    frame = read_table(path, text=["code", "kind"], literal=["kind"])
    assert frame["code"].isna().tolist() == [False, True, True]
    assert frame["kind"].tolist() == ["1", "nan", "2"]


def test_nothing_is_noted_where_cells_are_only_empty(file):
    read_table(
        file("t.csv", "a,b\n1,\n,x\n"), on_missing_words=lambda words: pytest.fail(str(words))
    )


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "1" + "0" * 30], [1.0, 1e30]),
        (["1", "", "9" * 400], [1.0, np.nan, np.inf]),
        (["18446744073709551615", "-1"], [2.0**64, -1.0]),  # pandas makes text of them
        (["NA", "18446744073709551615", "-1"], [np.nan, 2.0**64, -1.0]),
    ],
)
def test_integers_that_are_too_wide_are_numbers_all_the_same(file, cells, expected):
    lines = [f"{cell},x" for cell in cells]
    frame = read_table(file("t.csv", "\n".join(["self,b", *lines])))
    assert frame["self"].dtype == np.float64
    np.testing.assert_array_equal(frame["self"], expected)


def test_unnamed_columns_get_a_name(file):
    frame = read_table(file("t.csv", ",a,\n0,5,6\n"))
    assert list(frame.columns) == ["column 1", "a", "column 3"]


PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"", "is empty"),
        ("t.csv", b"\n \n", "is empty"),
        ("t.csv", b"a,b\n", "has no rows"),
        ("t.csv", PNG, "is not a CSV file: it is not text"),
        ("t.csv", "a,b\n1,é\n".encode("latin-1"), "is not a CSV file in UTF-8"),
        ("t.csv", "é,b\n1,2\n".encode("latin-1"), "is not a CSV file in UTF-8"),
        ("t.csv", b"a,b\n1,2\n1,2,3\n", "cannot read .* as CSV: Expected 2 fields in line 3"),
        ("t.csv", b"a,b\n1,2,3\n1,2,3\n", "cannot read .* as CSV"),
        ("t.csv", b'a,b\n"1,2\n', "cannot read .* as CSV"),
        ("t.csv", b"a,b,a\n1,2,3\n", "has two columns named 'a'"),
        ("t.csv", b"a;b\n1;2\n", "has one column, 'a;b'; are its cells separated by ';' instead"),
        ("t.csv.gz", b"a,b\n1,2\n", r"is not a \.gz file"),
        ("t.csv.bz2", b"a,b\n1,2\n", r"is not a \.bz2 file"),
        ("t.parquet", b"", "is empty"),
        ("t.parquet", b"a,b\n1,2\n", "is not a Parquet file"),
        ("t.parquet", b"PAR1 and then nothing", "cannot read .* as Parquet"),
        ("t.txt", b"", "is empty"),
        ("t.txt", b"# a comment\n", "has no rows"),
        ("t.txt", PNG, "is not an SVMlight file: it is not text"),
        ("t.txt", b"a,b\n1,2\n", "cannot read .* as an SVMlight file"),
        ("t.svm", b"1 3:1 2:1\n", "cannot read .* as an SVMlight file"),
        ("t.txt", b"1 qid:1 1:0.5\n0 2:1\n", "only 1 of the 2 lines of .* have a qid:"),
        ("t.json", b"{}", r"does not end in one of \.csv"),
        ("table", b"a,b\n1,2\n", r"does not end in one of \.csv"),
        ("t.gz", b"a,b\n1,2\n", r"does not end in one of \.csv"),
    ],
)
def test_unreadable(file, name, content, message):
    path = file(name, content)
    with pytest.raises(ValueError, match=message) as caught:
        read_table(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file at '.*nowhere\.csv'"):
        read_table(tmp_path / "nowhere.csv")


def test_without_pandas(file, monkeypatch):
    path = file("t.csv", "a\n1\n")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"needs pandas.*greedymiser\[frames\]"):
        read_table(path)


# Parquet


def test_parquet(tmp_path):
    kept = pd.DataFrame(
        {"a": [1.5, np.nan], 2: [1, 2], "c": ["x", None], "d": pd.Categorical(["u", "v"])},
        index=[7, 8],
    )
    kept.columns = kept.columns.map(str)
    kept.to_parquet(tmp_path / "t.parquet")
    frame = read_table(tmp_path / "t.parquet")
    assert list(frame.columns) == ["a", "2", "c", "d"]
    assert frame.index.tolist() == [0, 1]
    np.testing.assert_array_equal(frame["a"], [1.5, np.nan])
    assert frame["c"].cat.categories.tolist() == ["x"]
    assert frame["d"].tolist() == ["u", "v"]


# SVMlight


@pytest.mark.parametrize("name", ["t.txt", "t.letor", "t.svm", "t.svmlight", "t.libsvm"])
def test_svmlight(file, name):
    frame = read_table(file(name, LETOR))
    assert list(frame.columns) == ["label", "qid", "1", "2", "3"]
    assert frame["label"].tolist() == [2, 0, 1]
    assert frame["label"].dtype == np.int64
    assert frame["qid"].tolist() == [10, 10, 8]
    assert frame[["1", "2", "3"]].to_numpy().tolist() == [
        [0.5, 0, 0.25],
        [0, -1.5, 0],
        [1e-3, 2, 3],
    ]


def test_svmlight_without_queries_from_zero(file):
    frame = read_table(file("t.svm", "1.5 0:2 1:1\n-1 1:3\n"))
    assert list(frame.columns) == ["label", "0", "1"]
    assert frame["label"].tolist() == [1.5, -1]
    assert frame["0"].tolist() == [2, 0]


def test_svmlight_with_features_that_it_leaves_out(file):
    frame = read_table(file("t.txt", LETOR), features=["5", "1", "name", "0", "01"])
    assert list(frame.columns) == ["label", "qid", "0", "1", "2", "3", "5"]
    assert not frame[["0", "5"]].to_numpy().any()


def test_svmlight_without_features(file):
    assert list(read_table(file("t.txt", "1 qid:1\n0 qid:1\n")).columns) == ["label", "qid"]


@pytest.mark.parametrize("label", ["1e999", "nan", "1e300", "-1.5"])
def test_labels_that_are_no_integers(file, label):
    frame = read_table(file("t.txt", f"{label} 1:1\n2 1:1\n"))
    np.testing.assert_array_equal(frame["label"], [float(label), 2.0])


@pytest.mark.parametrize("read", [read_table, load_letor])
def test_gaps_that_would_fill_memory_are_refused(file, read):
    path = file("t.txt", "1 qid:1 99999999:1\n" * 9)
    with pytest.raises(ValueError, match=r"9 values, .* make \d+ columns, a table of 6\.7 GiB"):
        read(path)
    path = file("t.txt", f"1 qid:1 {2**20 + 1}:1\n")
    with pytest.raises(ValueError, match="without gaps"):
        read(path)
    path = file("t.txt", f"1 qid:1 {2**63}:1\n")
    with pytest.raises(ValueError, match="cannot read"):
        read(path)


def test_is_svmlight():
    assert is_svmlight("S1.txt")
    assert is_svmlight("a/b.LETOR.gz")
    assert not is_svmlight("a.csv")
    assert not is_svmlight("a.parquet")
