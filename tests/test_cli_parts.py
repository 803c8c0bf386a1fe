"""The command line with data in many files."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from distributed import LocalCluster

from greedymiser import (
    EarlyExitClassifier,
    EarlyExitRanker,
    MiserClassifier,
    MiserRanker,
    MiserRegressor,
    load,
    save,
)
from greedymiser._core.amounts import money
from greedymiser.cli import clusters
from test_cli import complain, greedymiser, succeed


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.standard_normal((600, 3)).round(3), columns=["age", "x", "dear"])
    frame.loc[::17, "age"] = np.nan
    frame["colour"] = rng.choice(["red", "green", "blue"], 600)
    signal = frame["age"].fillna(0) + 0.5 * frame["dear"] + (frame["colour"] == "red")
    frame["price"] = signal
    frame["kind"] = np.where(signal > 0.5, "good", "bad")
    frame["query"] = np.repeat(np.arange(60), 10)
    return frame


@pytest.fixture
def here(tmp_path, monkeypatch, table):
    """A folder with the rows in one file, and in parts; the first part has no rows."""
    monkeypatch.chdir(tmp_path)
    Path("costs.csv").write_text("feature,cost\nage,1\nx,1\ndear,10\ncolour,2\n")
    Path("parts").mkdir()
    for name in ("price", "kind"):
        rows = table[["age", "x", "dear", "colour", name]]
        rows.to_parquet(f"{name}.parquet")
        for i, part in enumerate([rows[:0], rows[:1], rows[1:250], rows[250:]]):
            part.to_parquet(f"parts/{name}-{i}.parquet")
        rows[300:].to_csv(f"parts/{name}-1.csv", index=False)
        rows[:300].to_csv(f"parts/{name}-0.csv", index=False)
    return tmp_path


FIT = ["--costs", "costs.csv", "--max-iter", "6", "--tradeoff", "0.001", "--jobs", "1"]


@pytest.fixture
def model(here):
    succeed("fit", "kind.parquet", "--target", "kind", *FIT, "--out", "m.miser")
    return Path("m.miser")


# -- predict --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_predictions_of_parts_are_those_of_the_whole(model, kind):
    succeed("predict", model, "kind.parquet", "--out", "all.csv")
    told = succeed("predict", model, f"parts/kind-*.{kind}", "--out", "all")
    assert told.startswith("600 predictions at a cost of ")
    found = pd.concat([pd.read_parquet(file) for file in sorted(Path("all").glob("*.parquet"))])
    pd.testing.assert_frame_equal(
        found.reset_index(drop=True), pd.read_csv("all.csv"), check_dtype=False
    )


def test_rows_that_leave_early_pay_less(here, table):
    X, y = table[["age", "x", "dear"]], table["kind"]
    inner = MiserClassifier(costs={"age": 1.0, "x": 1.0, "dear": 10.0}, max_iter=10).fit(X, y)
    early = EarlyExitClassifier(inner, threshold=0.6, every=2).fit(X, y)
    save(early, "m.miser")
    told = succeed("predict", "m.miser", "parts/kind-*.parquet", "--out", "all")
    mean = load("m.miser").prediction_costs(X).mean()
    assert f"a mean cost of {money(mean)} each" in told


def test_the_mean_cost_of_rows_that_pay_for_themselves_is_that_of_these_rows(here, table):
    arguments = ["--target", "price", *FIT, "--charge", "row", "--out", "m.miser"]
    succeed("fit", "price.parquet", *arguments)
    table.assign(age=9.0).to_parquet("old-1.parquet")
    told = succeed("predict", "m.miser", "old-*.parquet", "--out", "all")
    costs = pd.read_parquet("all")["cost"]
    assert costs.mean() != pytest.approx(load("m.miser").cost_)
    assert f"a mean cost of {money(costs.mean())} each" in told


def test_parts_with_costs(model):
    succeed("predict", model, "parts/kind-*.parquet", "--with-costs", "--out", "all")
    assert pd.read_parquet("all")["cost"].tolist() == [load(model).cost_] * 600


def test_models_without_names_read_by_position(here, table):
    model = MiserClassifier(max_iter=3).fit(table[["age", "x", "dear"]].to_numpy(), table["kind"])
    save(model, "m.miser")
    dropped = ["--drop", "colour", "--drop", "kind"]
    succeed("predict", "m.miser", "parts/kind-*.parquet", *dropped, "--out", "all")
    found = pd.read_parquet("all")["prediction"]
    assert found.tolist() == model.predict(table[["age", "x", "dear"]].to_numpy()).tolist()
    said = complain("predict", "m.miser", "parts/kind-*.parquet", "--out", "more")
    assert "3 features by position, but 'parts/kind-*.parquet' has 5 columns" in said


def test_complaints_about_predictions(model, here, table):
    pattern = "parts/kind-*.parquet"
    assert "name it with --out" in complain("predict", model, pattern)
    assert "no file matches 'nothing/*.csv'" in complain(
        "predict", model, "nothing/*.csv", "--out", "all"
    )
    assert "several kinds: '.csv', '.parquet'" in complain(
        "predict", model, "parts/kind-*", "--out", "all"
    )
    assert "has no column 'colour'" in complain(
        "predict", model, pattern, "--drop", "colour", "--out", "all"
    )
    assert "--qid is for models that compare" in complain(
        "predict", model, pattern, "--qid", "kind", "--out", "all"
    )
    Path("all").mkdir()
    assert "'all' exists already" in complain("predict", model, pattern, "--out", "all")
    Path("parts/kind-9.parquet").write_bytes(b"PAR1 and nothing else")
    said = complain("predict", model, pattern, "--out", "new")
    assert not Path("new").exists()
    assert list(Path().glob(".new*")) == []
    assert said == "'parts/kind-9.parquet' is not a whole Parquet file"


def test_rankers_with_exits_need_whole_queries(here, table):
    X, y, qid = table[["age", "x", "dear"]], table["kind"] == "good", table["query"]
    ranker = MiserRanker(max_iter=4).fit(X, y, qid=qid)
    save(EarlyExitRanker(ranker, threshold=0.1, every=2).fit(X, y, qid=qid), "m.miser")
    said = complain("predict", "m.miser", "parts/kind-*.parquet", "--out", "all")
    assert "compare the rows of a query" in said


# -- fit ------------------------------------------------------------------------------------------


@pytest.mark.cluster
def test_fit_on_workers_is_fit_on_one_machine(here, table):
    """One cluster for all that is to be seen: starting one takes seconds."""
    arguments = ["--target", "kind", *FIT, "--valid", "kind.parquet"]
    succeed("fit", "kind.parquet", *arguments, "--out", "one.miser")
    result = greedymiser(
        "fit", "parts/kind-*.parquet", *arguments, "--workers", 1, "--out", "many.miser"
    )
    assert result.exit_code == 0, result.stderr
    assert "600 rows in 4 parts to learn from, 600 to validate with; 4 features" in result.stdout
    one, many = load("one.miser"), load("many.miser")
    X = table[["age", "x", "dear", "colour"]]
    assert np.array_equal(one.decision_function(X), many.decision_function(X))
    assert one.cost_ == many.cost_


def test_complaints_about_clusters(here, monkeypatch):
    arguments = ["fit", "parts/price-*.parquet", "--target", "price", *FIT, "--out", "m.miser"]
    said = complain(*arguments)
    assert "'parts/price-*.parquet' stands for several files: --workers N" in said
    said = complain(*arguments, "--workers", 1, "--scheduler", "tcp://127.0.0.1:9")
    assert "give one of them" in said
    monkeypatch.setattr(clusters, "PATIENCE", 0.2)
    said = complain(*arguments, "--scheduler", "tcp://127.0.0.1:9")
    assert "no scheduler answers at 'tcp://127.0.0.1:9' within 0.2 seconds" in said
    assert greedymiser(*arguments, "--workers", 0).exit_code == 2
    searched = [a for a in arguments if a not in ("--tradeoff", "0.001")]
    said = complain(*searched, "--budget", 5, "--workers", 1)
    assert "needs --valid" in said


@pytest.fixture
def scheduler():
    """A cluster in this process, which takes no time to start, and its address."""
    options = {"processes": False, "dashboard_address": None, "protocol": "tcp"}
    with LocalCluster(n_workers=1, threads_per_worker=1, **options) as cluster:
        yield cluster


@pytest.mark.cluster
def test_fit_on_a_cluster_that_runs(here, table, scheduler):
    """From CSV, and with rows to validate with that the estimator sets aside."""
    arguments = ["--target", "price", *FIT, "--scheduler", scheduler.scheduler_address]
    told = succeed("fit", "parts/price-*.csv", *arguments, "--out", "many.miser")
    assert "Task: regression (guessed from 'price'" in told
    assert "600 rows in 2 parts; 4 features" in told
    X = table[["age", "x", "dear", "colour"]].assign(colour=table["colour"].astype("category"))
    alone = MiserRegressor(
        costs=pd.read_csv("costs.csv").set_index("feature")["cost"].to_dict(), max_iter=6,
        tradeoff=0.001, early_stopping=True, validation_fraction=0.25, random_state=0, n_jobs=1,
    ).fit(X, table["price"])  # fmt: skip
    assert np.array_equal(load("many.miser").predict(X), alone.predict(X))
    said = complain("fit", "parts/price-*.csv", *arguments, "--out", "parts/price-0.csv")
    assert "is the data file itself" in said
    scheduler.scale(0)
    scheduler.sync(scheduler._correct_state)
    said = complain("fit", "parts/price-*.csv", *arguments, "--out", "none.miser")
    assert said.endswith("has no workers")
