"""The experiment on bills and errors: files are read, and simple methods are right."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("lightgbm")

from experiments.total_cost.__main__ import measure, shown
from experiments.total_cost.methods import everything, nothing
from experiments.total_cost.problems import read_problem

PRICES = """0 10
50 0
Attribute-name test-cost discount group binarize-begin binarize-end
age 1.0 1.0 x 0 0
TSH 22.78 20.68 a 1 2
T3 11.41 9.31 a 3 3
"""


@pytest.fixture
def problem(tmp_path):
    folder = tmp_path / "made"
    folder.mkdir()
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (120, 4))
    rows = np.column_stack([X[:, 0], X])
    np.savetxt(folder / "rows.csv", rows, fmt="%d")
    (folder / "low.csv").write_text(PRICES)
    return read_problem(tmp_path, "made", "low")


def test_an_attribute_is_paid_once_and_a_group_shares_its_entry(problem):
    assert problem.errors.tolist() == [[0, 10], [50, 0]]
    assert problem.costs.total([0]) == 1
    assert problem.costs.total([1, 2]) == pytest.approx(22.78)
    assert problem.costs.total([1, 3]) == pytest.approx(22.78 + 9.31)


def test_who_asks_nothing_pays_for_errors_alone(problem):
    learn, test = np.arange(80), np.arange(80, 120)
    # Class 1, as half of the rows are of it and its errors cost more.
    assert nothing(problem, learn, test, 1) == pytest.approx(10 * (problem.y[test] == 0).mean())


def test_who_buys_what_a_booster_looks_at_pays_for_it(problem):
    learn, test = np.arange(80), np.arange(80, 120)
    assert everything(problem, learn, test, 1) >= 1.0


def test_what_is_measured_is_kept_and_shown_with_paired_differences(problem, tmp_path):
    results = tmp_path / "results.csv"
    told = {"ours": [20.0, 22.0], "streed": [21.0, 27.0], "nothing": [30.0, 34.0]}
    lines = [f"heart,low,{i},{m},{v}" for m, both in told.items() for i, v in enumerate(both)]
    results.write_text("\n".join(["set,level,split,method,total", *lines]))
    table = shown(pd.read_csv(results), 2)
    assert "heart      low     2 splits, ours   21.00" in table
    assert "nothing   32.00 (+11.00 ± 1.00)" in table
    assert "streed   24.00 (+3.00 ± 2.00); 0.875" in table
    # Of what the file has nothing is measured again: there is no data for it.
    kept = measure(tmp_path, results, [], ["nothing"], 2, 1)
    assert len(kept) == 6
