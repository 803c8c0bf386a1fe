"""The command line, from real files to real files."""

from __future__ import annotations

import io
import operator
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import tomllib
import unicodedata
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import get_args, get_type_hints

import joblib
import numpy as np
import pandas as pd
import pytest
from numba.core import event
from sklearn.metrics import median_absolute_error, r2_score, roc_auc_score
from typer.main import get_command
from typer.testing import CliRunner

from greedymiser import (
    CostModel,
    EarlyExitClassifier,
    EarlyExitRanker,
    GatedClassifier,
    MiserClassifier,
    MiserRanker,
    __version__,
    load,
    save,
)
from greedymiser._core.amounts import money, rounded_score
from greedymiser.cli import Task, app
from greedymiser.cli.commands.demo import WRITES_DEMO
from greedymiser.cli.errors import Reads, Writes, marked_paths
from greedymiser.cli.outputs import WRITES_CURVE
from greedymiser.cli.printing import COMPILING, emit, escaped, say, shown_progress
from greedymiser.costs.files import read_costs, template
from greedymiser.datasets import load_thyroid
from greedymiser.engines.cuda.engine import CudaUnavailableError
from greedymiser.training.train import ENGINES

DOCS = Path(__file__).parents[1] / "docs" / "cli.md"
FAST = ["--max-iter", "12", "--jobs", "1"]
REGRESSION = ["regression.csv", "--target", "price", "--costs", "costs.csv"]
COMMAND = get_command(app)


def greedymiser(*arguments: object):
    """Run a command; what it does with bad input is for the caller to see."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def _made_once(monkeypatch):
    """Typer's runner would read the signatures of all commands again at each of its calls."""
    monkeypatch.setattr("typer.testing._get_command", lambda app: COMMAND)


@pytest.fixture
def drawn():
    """For tests that look at the pictures of curves."""


@pytest.fixture(autouse=True)
def _undrawn(request, monkeypatch):
    """All other curves have empty pictures: to draw takes longer than to train."""
    if "drawn" not in request.fixturenames:
        blank = dict.fromkeys(["curve.png", "features.png"], b"")
        monkeypatch.setattr("greedymiser.cli.outputs._pictures", lambda *_: blank)


def succeed(*arguments: object) -> str:
    result = greedymiser(*arguments)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def complain(*arguments: object) -> str:
    """Run a command that must fail with one sentence, and return it."""
    result = greedymiser(*arguments)
    assert result.exit_code == 1, result.output
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("Error: ")
    assert "Traceback" not in result.output
    return lines[0].removeprefix("Error: ")


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """Features of several kinds, and a target for each task."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.standard_normal((400, 3)).round(3), columns=["age", "x.y", "dear"])
    frame["colour"] = rng.choice(["red", "green", "blue"], 400)
    frame.loc[::17, "age"] = np.nan
    signal = frame["age"].fillna(0) + 0.5 * frame["dear"] + (frame["colour"] == "red")
    frame["price"] = signal
    frame["kind"] = np.where(signal > 0.5, "good", "bad")
    frame["query"] = np.repeat(np.arange(40), 10)
    frame["stars"] = np.clip(np.round(signal + 1), 0, 3).astype(int)
    return frame


TARGETS = {Task.regression: "price", Task.classification: "kind", Task.ranking: "stars"}
FEATURES = ["age", "x.y", "dear", "colour"]


@pytest.fixture
def here(tmp_path, monkeypatch, table):
    """An empty folder to work in, with data in several forms and their costs."""
    monkeypatch.chdir(tmp_path)
    for task, target in TARGETS.items():
        columns = [*FEATURES, target, *(["query"] if task is Task.ranking else [])]
        table[columns].to_csv(f"{task}.csv", index=False)
        table[columns].to_parquet(f"{task}.parquet")
    numbers = table[["age", "x.y", "dear"]].fillna(0)
    lines = [
        f"{stars} qid:{query} " + " ".join(f"{i}:{v}" for i, v in enumerate(row, 1) if v)
        for stars, query, row in zip(table["stars"], table["query"], numbers.values, strict=True)
    ]
    Path("ranking.txt").write_text("\n".join(lines) + "\n")
    Path("costs.toml").write_text(
        'unit = "euros"\n[features]\nage = 1\n"x.y" = 1\ndear = 10\ncolour = 2\n'
        '[groups.file]\ncost = 0.5\nfeatures = ["age", "colour"]\n'
    )
    Path("costs.csv").write_text("feature,cost\nage,1\nx.y,1\ndear,10\ncolour,2\n")
    Path("letor.csv").write_text("feature,cost\n1,1\n2,1\n3,10\n")
    return tmp_path


@pytest.fixture
def model(here):
    succeed("fit", "regression.csv", "--target", "price", "--costs", "costs.csv",
            "--tradeoff", "0.001", "--out", "m.miser", *FAST)  # fmt: skip
    return Path("m.miser")


# Asking for help


def test_version():
    assert succeed("--version") == f"greedymiser {__version__}\n"


def test_help_names_every_command():
    told = succeed("--help")
    commands = ("demo", "curve", "fit", "predict", "score", "protocol", "inspect", "baseline")
    for command in (*commands, "costs-template"):
        assert command in told
        assert "Usage" in succeed(command, "--help")


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["fit", "regression.csv"],
        ["fit", "regression.csv", "--costs", "costs.csv", "--out", "m", "--budget", "-1"],
        ["fit", "regression.csv", "--costs", "costs.csv", "--out", "m", "--task", "guessing"],
        ["curve", "regression.csv", "--costs", "costs.csv", "--out", "o", "--tradeoffs", "0"],
        ["curve", "regression.csv", "--costs", "costs.csv", "--out", "o", "--tradeoffs", "many"],
        ["curve", "regression.csv", "--costs", "costs.csv", "--out", "o", "--tradeoffs", "0,-1"],
        ["curve", "regression.csv", "--costs", "costs.csv", "--out", "o", "--max-iter", "0"],
        ["predict"],
    ],
)
def test_wrong_usage(here, arguments):
    before = sorted(here.iterdir())
    result = greedymiser(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert sorted(here.iterdir()) == before


# Each command, each format


@pytest.mark.parametrize("task", list(Task))
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_fit_inspect_predict(here, table, task, suffix):
    data = f"{task}.{suffix}"
    queries = ["--qid", "query"] if task is Task.ranking else []
    guessed = succeed("fit", data, "--target", TARGETS[task], *queries, "--costs", "costs.toml",
                      "--tradeoff", "1e-4", "--out", "deep/er/m.miser", *FAST)  # fmt: skip
    source = "query" if task is Task.ranking else TARGETS[task]
    assert f"Task: {task} (guessed from '{source}'" in guessed
    # A quarter of each class is held out, rounded down.
    sizes = (301, 99) if task is Task.classification else (300, 100)
    assert "{} rows to learn from, {} to validate with; 4 features".format(*sizes) in guessed
    assert "€" in guessed

    told = succeed("inspect", "deep/er/m.miser")
    model = load("deep/er/m.miser")
    kinds = {
        Task.regression: ("regressor", "MiserRegressor"),
        Task.classification: ("classifier", "MiserClassifier"),
        Task.ranking: ("ranker", "MiserRanker"),
    }
    assert (model.kind, model.about["estimator"]) == kinds[task]
    assert model.about["estimator"] in told
    assert re.search(r"stopped by +max_iter", told)
    score = model.about["validation_score"]
    name = {
        Task.regression: "negative half the squared error",
        Task.classification: "negative log-loss",
        Task.ranking: "NDCG@30 minus 1",
    }[task]
    assert re.search(rf"validation {name} +{rounded_score(score)}", told)
    assert re.search(rf"cost of a prediction +{money(model.cost_, 'euros')}", told)
    for line in model.receipt():
        row = rf"{line.iteration} +{re.escape(line.feature)} +.*"
        row += rf"{money(line.price, 'euros')} +{money(line.spent, 'euros')} "
        assert re.search(row, told)
    assert re.search(r"tradeoff +0\.0001", told)
    assert re.search(r"max_iter +12", told)

    told = succeed("predict", "deep/er/m.miser", data, "--out", "p.csv")
    assert "400 predictions at a cost of" in told
    predictions = pd.read_csv("p.csv")
    X = table[FEATURES].astype({"colour": "category"})
    expected = model.predict(X)
    if task is Task.classification:
        assert list(predictions.columns) == ["prediction", "probability_bad", "probability_good"]
        np.testing.assert_allclose(predictions.iloc[:, 1:], model.predict_proba(X))
        assert predictions["prediction"].tolist() == expected.tolist()
    else:
        assert list(predictions.columns) == ["prediction"]
        np.testing.assert_allclose(predictions["prediction"], expected)


def test_formats_give_the_same_model(here):
    for suffix in ("csv", "parquet"):
        succeed("fit", f"classification.{suffix}", "--target", "kind", "--costs", "costs.toml",
                "--tradeoff", "1e-4", "--out", f"{suffix}.miser", *FAST)  # fmt: skip
    assert Path("csv.miser").read_bytes() == Path("parquet.miser").read_bytes()


def test_letor(here):
    told = succeed("fit", "ranking.txt", "--costs", "letor.csv", "--tradeoff", "0",
                   "--scoring", "ndcg@3", "--out", "m.miser", *FAST)  # fmt: skip
    assert "Task: ranking" in told
    assert load("m.miser").feature_names == ("1", "2", "3")
    assert succeed("predict", "m.miser", "ranking.txt").count("\n") == 401
    # A file may leave out what is 0 on all of its lines.
    Path("short.txt").write_text("0 qid:1 1:0.5\n")
    assert succeed("predict", "m.miser", "short.txt").count("\n") == 2


def test_letor_may_lack_a_feature_that_has_a_price(here):
    Path("more.csv").write_text(Path("letor.csv").read_text() + "5,2\n")
    told = succeed("fit", "ranking.txt", "--costs", "more.csv", "--tradeoff", "0",
                   "--out", "m.miser", *FAST)  # fmt: skip
    assert "4 features" in told


def test_svmlight_without_queries(here):
    lines = Path("ranking.txt").read_text()
    Path("plain.svm").write_text(re.sub(r" qid:\d+", "", lines))
    told = succeed("fit", "plain.svm", "--costs", "letor.csv", "--tradeoff", "0",
                   "--out", "m.miser", *FAST)  # fmt: skip
    assert "Task: classification" in told


def test_validation_data_of_its_own(here, table):
    table[["price", "colour", "dear", "x.y", "age"]][:50].to_csv("valid.csv", index=False)
    told = succeed("fit", "regression.csv", "--valid", "valid.csv", "--target", "price",
                   "--costs", "costs.csv", "--tradeoff", "0", "--out", "m.miser",
                   *FAST)  # fmt: skip
    assert "400 rows to learn from, 50 to validate with" in told


def test_predict_needs_only_what_the_model_uses(here, model, table):
    used = load(model).features_used_
    assert "x.y" not in used
    table[used].to_csv("used.csv", index=False)
    assert succeed("predict", model, "used.csv") == succeed("predict", model, "regression.csv")


def test_predictions_with_their_costs(here, model):
    """A column with the same number in each row, for those who want it."""
    shown = pd.read_csv(io.StringIO(succeed("predict", model, "regression.csv", "--with-costs")))
    assert list(shown.columns) == ["prediction", "cost"]
    assert shown["cost"].tolist() == [load(model).cost_] * 400
    told = succeed("predict", model, "regression.csv", "--with-costs", "--out", "p.csv")
    assert f"400 predictions at a cost of {money(load(model).cost_)} each" in told
    pd.testing.assert_frame_equal(pd.read_csv("p.csv"), shown)


def test_predict_keeps_identifiers(here, model, table):
    frame = table[FEATURES].assign(ID=[f"{i:05}" for i in range(400)])
    frame.to_csv("numbered.csv", index=False)
    succeed("predict", model, "numbered.csv", "--keep", "ID", "--keep", "age", "--out", "p.csv")
    kept = pd.read_csv("p.csv", dtype={"ID": str})
    assert kept.columns.tolist() == ["ID", "age", "prediction"]
    assert kept["ID"].tolist() == frame["ID"].tolist()
    assert "no column 'id'; did you mean 'ID'?" in complain(
        "predict", model, "numbered.csv", "--keep", "id"
    )


@pytest.mark.parametrize("task", list(Task))
def test_score_says_what_python_says(here, table, task):
    target = TARGETS[task]
    query = ["--qid", "query"] if task is Task.ranking else []
    succeed("fit", f"{task}.csv", "--target", target, "--costs", "costs.toml", "--tradeoff", "0",
            "--out", "m.miser", *query, *FAST)  # fmt: skip
    told = succeed("score", "m.miser", f"{task}.csv", "--target", target, *query)
    model = load("m.miser")
    assert money(model.cost_, "euros") in told
    X = pd.read_csv(f"{task}.csv")
    if task is Task.classification:
        share = np.mean(model.predict(X) == X[target])
        assert re.search(rf"accuracy +{share:.3f}", told)
        assert "does not know the class 'fair'" in complain_after(X, target, "fair")
        said = complain("score", "m.miser", "classification.csv", "--target", target,
                        "--scoring", "f1")  # fmt: skip
        assert said == (
            "'f1' does not suit this classifier: it needs the classes 0 and 1, and these are "
            "'bad', 'good'; f1_macro takes any"
        )
    if task is Task.regression:
        assert re.search(rf"R² +{r2_score(X[target], model.predict(X)):.3f}", told)
        asked = ["score", "m.miser", "regression.csv", "--target", "price", "--scoring"]
        assert "names are for example" in complain(*asked, "r3")
        assert "did you mean 'r2'?" in complain(*asked, "R2")
        rare = median_absolute_error(X[target], model.predict(X))  # scikit-learn is asked for it
        told = succeed(*asked, "neg_median_absolute_error")
        assert re.search(rf"negative median absolute error +-{rare:.3f}", told)
    if task is Task.ranking:
        assert "NDCG@5" in told


def complain_after(frame, target, word):
    frame.assign(**{target: word}).to_csv("other.csv", index=False)
    return complain("score", "m.miser", "other.csv", "--target", target)


def test_baseline_tells_what_the_present_model_costs(here, table):
    lightgbm = pytest.importorskip("lightgbm")
    X = table[["age", "x.y", "dear"]]
    present = lightgbm.LGBMRegressor(n_estimators=5, verbose=-1, n_jobs=1)
    present.fit(X, table["price"]).booster_.save_model("present.txt")
    Path("three.csv").write_text("feature,cost\nage,1\nx.y,1\ndear,10\n")
    told = succeed("baseline", "present.txt", "regression.csv", "--costs", "three.csv", "--target",
                   "price")  # fmt: skip
    assert "A prediction costs 1" in told
    found = r2_score(table["price"], present.predict(X))
    assert re.search(rf"R² +{found:.3f}", told)
    assert "there is no model at" in complain("baseline", "none.txt", "--costs", "three.csv")
    Path("broken.txt").write_text("tree\n")
    assert "lightgbm cannot read" in complain("baseline", "broken.txt", "--costs", "three.csv")


def test_a_curve_beside_the_present_model(here, table):
    lightgbm = pytest.importorskip("lightgbm")
    X, y = table[["age", "x.y", "dear"]], table["kind"]
    present = lightgbm.LGBMClassifier(n_estimators=5, verbose=-1, n_jobs=1)
    present.fit(X, (y == "good").astype(int)).booster_.save_model("present.txt")
    Path("three.csv").write_text("feature,cost\nage,1\nx.y,1\ndear,10\n")
    X.assign(kind=y).to_csv("three_columns.csv", index=False)
    # Its classes are numbers, in the order of their names.
    result = greedymiser("baseline", "present.txt", "three_columns.csv", "--costs", "three.csv",
                         "--target", "kind")  # fmt: skip
    assert result.stderr == "Note: the classes bad, good are taken for 0, 1\n"
    score = roc_auc_score(y == "good", present.predict_proba(X)[:, 1])
    assert re.search(rf"ROC AUC +{score:.3f}", result.stdout)
    result = greedymiser("curve", "three_columns.csv", "--valid", "three_columns.csv", "--target",
                         "kind", "--costs", "three.csv", "--baseline", "present.txt", "--scoring",
                         "roc_auc", "--tradeoffs", "0,0.01", "--out", "out", *FAST)  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert f"present.txt: score {score:.3f} for " in result.stdout
    assert "present.txt" in Path("out/report.html").read_text(encoding="utf-8")


def test_fit_by_cross_validation(here):
    fit = ["fit", "classification.csv", "--target", "kind", "--costs", "costs.toml", "--out",
           "m.miser", "--set", "max_bins=16", *FAST]  # fmt: skip
    told = succeed(*fit, "--budget", "3", "--cv", "3", "--scoring", "roc_auc")
    assert "400 rows to learn from; 4 features" in told  # nothing is held out
    assert re.search(r"cross-validation in 3 folds: mean ROC AUC 0\.\d{3}", told)
    assert load("m.miser").cost_ <= 3
    for more in (["--valid", "classification.csv"], ["--tradeoff", "0.1"], ["--workers", "1"]):
        result = greedymiser(*fit, "--cv", "3", *more)
        assert result.exit_code == 2
        assert "--cv" in result.stderr


def test_help_shows_brackets():
    help_of_scoring = greedymiser("curve", "--help").stdout
    assert "[errors]" in help_of_scoring


def test_predict_keeps_text_that_looks_like_numbers(here):
    rng = np.random.default_rng(0)
    code = rng.choice(["7", "8", "x"], 200)
    frame = pd.DataFrame({"code": code, "y": np.where(code == "7", 5.0, 1.0)})
    frame.to_csv("codes.csv", index=False)
    frame[frame["code"] == "7"].to_csv("sevens.csv", index=False)
    Path("code.csv").write_text("feature,cost\ncode,1\n")
    succeed("fit", "codes.csv", "--target", "y", "--task", "regression", "--costs", "code.csv",
            "--tradeoff", "0", "--out", "m.miser", *FAST)  # fmt: skip
    lines = succeed("predict", "m.miser", "sevens.csv").split()
    assert float(lines[1]) > 3


def test_predict_with_a_model_that_has_no_names(here):
    data = load_thyroid()
    model = MiserClassifier(max_iter=3, n_jobs=1).fit(data.X_train, data.y_train)
    save(model, "m.miser")
    pd.DataFrame(data.X_test[:5]).assign(y=1).to_csv("t.csv", index=False)
    assert succeed("predict", "m.miser", "t.csv", "--drop", "y").count("\n") == 6
    assert "21 features by position" in complain("predict", "m.miser", "t.csv")
    said = complain("predict", "m.miser", "t.csv", "--drop", "y", "--drop", "z")
    assert said.startswith("'t.csv' has no column 'z'; ")
    assert "21 features" in succeed("inspect", "m.miser")


def test_a_constant_model(here):
    data = load_thyroid()
    model = MiserClassifier(costs=data.costs, tradeoff=1e3, max_iter=3, n_jobs=1)
    save(model.fit(data.X_train, data.y_train), "m.miser")
    assert "bought nothing" in succeed("inspect", "m.miser")
    succeed("fit", "regression.csv", "--target", "price", "--costs", "costs.csv", "--tradeoff",
            "1e6", "--out", "m.miser", *FAST)  # fmt: skip
    Path("bare.csv").write_text("shoe\n1\n2\n")
    shown = succeed("predict", "m.miser", "bare.csv").split()
    assert shown[0] == "prediction"
    assert shown[1] == shown[2]


def test_early_exits_of_a_classifier(here, table):
    X = table[FEATURES].astype({"colour": "category"})
    costs = CostModel(dict.fromkeys(FEATURES, 1.0), tree_cost=0.1)
    base = MiserClassifier(costs, max_iter=12, n_jobs=1).fit(X, table["kind"])
    exits = EarlyExitClassifier(base, threshold=0.8, every=3).fit(X, table["kind"])
    save(exits, "m.miser")
    told = succeed("inspect", "m.miser")
    assert "EarlyExitClassifier" in told
    assert re.search(r"threshold +0\.8", told)
    assert re.search(r"max_iter +12", told)
    assert re.search(r"stopped by +max_iter", told)
    for k, cost in enumerate(exits.predictor_.stage_costs):
        assert re.search(rf"{k} +{3 * (k + 1)} +{cost:g} +it", told)
    costs = exits.prediction_costs(X)
    assert len(set(costs.tolist())) > 1
    told = succeed("predict", "m.miser", "classification.csv", "--out", "p.csv")
    assert f"400 predictions at a mean cost of {money(costs.mean())} each" in told
    predictions = pd.read_csv("p.csv")
    assert predictions["prediction"].tolist() == exits.predict(X).tolist()
    np.testing.assert_allclose(predictions["probability_good"], exits.predict_proba(X)[:, 1])
    np.testing.assert_allclose(predictions["cost"], costs)


@pytest.mark.parametrize("named", [True, False])
def test_early_exits_of_a_ranker(here, table, named):
    X, qid = table[["age", "x.y", "dear"]].fillna(0), table["query"]
    X = X.set_axis(["1", "2", "3"], axis=1) if named else X.to_numpy()
    base = MiserRanker(max_iter=12, n_jobs=1).fit(X, table["stars"], qid=qid)
    exits = EarlyExitRanker(base, threshold=0.2, every=3).fit(X, table["stars"], qid=qid)
    save(exits, "m.miser")
    expected = exits.predict(X, qid)
    assert expected.tolist() != exits.predict(X).tolist()  # queries matter
    succeed("predict", "m.miser", "ranking.txt", "--out", "p.csv")
    np.testing.assert_allclose(pd.read_csv("p.csv")["prediction"], expected)
    pd.DataFrame(X, columns=["1", "2", "3"]).assign(q=qid).to_csv("q.csv", index=False)
    succeed("predict", "m.miser", "q.csv", "--qid", "q", "--out", "p.csv")
    np.testing.assert_allclose(pd.read_csv("p.csv")["prediction"], expected)
    assert "no column 'query'" in complain("predict", "m.miser", "q.csv", "--qid", "query")


def test_a_ranker_that_compares_rows_warns_without_queries(here, table):
    X, qid = table[["age", "x.y", "dear"]], table["query"]
    base = MiserRanker(max_iter=12, n_jobs=1).fit(X, table["stars"], qid=qid)
    exits = EarlyExitRanker(base, threshold=0.2, every=3).fit(X, table["stars"], qid=qid)
    save(exits, "exits.miser")
    result = greedymiser("predict", "exits.miser", "ranking.csv", "--out", "p.csv")
    assert result.exit_code == 0
    assert result.stderr == (
        "Warning: no column tells the query of each row (--qid names one): "
        "all rows are taken for one query, and ranked against each other\n"
    )
    np.testing.assert_allclose(pd.read_csv("p.csv")["prediction"], exits.predict(X))
    succeed("predict", "exits.miser", "ranking.csv", "--qid", "query")
    # One that looks at each row by itself needs no queries, and takes them.
    save(base, "base.miser")
    shown = succeed("predict", "base.miser", "ranking.csv")
    assert succeed("predict", "base.miser", "ranking.csv", "--qid", "query") == shown


def test_only_a_ranker_has_queries(here, model, table):
    table.to_csv("all.csv", index=False)
    assert complain("predict", model, "all.csv", "--qid", "query") == (
        "--qid is for models that rank, and this one is a regressor"
    )
    # In an SVMlight file they may be there.
    named = table[["age", "x.y", "dear"]].set_axis(["1", "2", "3"], axis=1)
    save(MiserClassifier(max_iter=3, n_jobs=1).fit(named, table["kind"]), "c.miser")
    assert succeed("predict", "c.miser", "ranking.txt").count("\n") == 401


def test_costs_template(here):
    told = succeed("costs-template", "regression.csv", "--target", "price")
    Path("shown.toml").write_text(told)
    for name in ("made.toml", "made.csv"):
        assert "4 features" in succeed("costs-template", "regression.parquet", "--target", "price",
                                       "--out", name)  # fmt: skip
    for name in ("shown.toml", "made.toml", "made.csv"):
        assert read_costs(name).costs.feature_names == FEATURES
    Path("made.csv").write_text("precious")
    assert "--force overwrites" in complain("costs-template", "ranking.txt", "--out", "made.csv")
    assert Path("made.csv").read_text() == "precious"
    succeed("costs-template", "ranking.txt", "--out", "made.csv", "--force")
    assert read_costs("made.csv").costs.feature_names == ["1", "2", "3"]


def test_costs_template_leaves_identifiers_and_free_text_out(here, table):
    frame = table[FEATURES].assign(
        customer_id=np.arange(400) * 7 + 1,
        row=np.arange(400),
        remark=[f"called {i}, will call again" for i in range(400)],
        since=[f"20{10 + i % 15}-03-{1 + i % 28:02d}" for i in range(400)],
        income=np.random.default_rng(0).permutation(4000)[:400],
        price=table["price"],
    )
    frame.to_csv("loans.csv", index=False)
    result = greedymiser("costs-template", "loans.csv", "--target", "price")
    assert result.exit_code == 0
    Path("shown.toml").write_text(result.stdout)
    assert read_costs("shown.toml").costs.feature_names == [*FEATURES, "income"]
    assert '    "customer_id",  # looks like an identifier' in result.stdout
    assert "'since' holds dates: turn them into numbers" in result.stderr
    left_out = ("customer_id", "row", "remark", "since")
    assert read_costs("shown.toml").not_features == left_out
    # What the file leaves out need not be dropped once more.
    options = ["--target", "price", "--costs", "shown.toml", "--max-iter", "2", "--tradeoff", "1"]
    assert "5 features" in succeed("fit", "loans.csv", *options, "--out", "m.miser")
    named = [option for name in left_out for option in ("--drop", name)]
    assert "5 features" in succeed("fit", "loans.csv", *options, *named, "--out", "m.miser")
    result = greedymiser("costs-template", "loans.csv", "--target", "price", "--out", "c.csv")
    assert "say --drop customer_id --drop row --drop remark --drop since to" in result.stderr


def test_what_is_dropped_from_a_template_stays_dropped(here):
    out = ["--target", "price", "--drop", "dear", "--out", "made.toml"]
    succeed("costs-template", "regression.csv", *out)
    assert read_costs("made.toml").not_features == ("dear",)
    options = ["--target", "price", "--costs", "made.toml", "--max-iter", "2", "--tradeoff", "1"]
    assert "3 features" in succeed("fit", "regression.csv", *options, "--out", "m.miser")


def test_costs_template_tells_that_it_knows_no_target(here):
    note = "Note: no --target is given: all columns{} are taken for features\n"
    assert greedymiser("costs-template", "regression.csv").stderr == note.format("")
    result = greedymiser("costs-template", "regression.csv", "--drop", "dear")
    assert result.exit_code == 0
    assert result.stderr == note.format(" but 'dear'")
    Path("shown.toml").write_text(result.stdout)
    assert read_costs("shown.toml").costs.feature_names == ["age", "x.y", "colour", "price"]


def test_brackets_in_names_are_not_markup(here):
    Path("data [red].csv").write_text(Path("regression.csv").read_text())
    told = succeed("fit", "data [red].csv", "--target", "price", "--costs", "costs.csv",
                   "--tradeoff", "0", "--out", "m [bold].miser", *FAST)  # fmt: skip
    assert "m [bold].miser" in told


# The curve

CURVE_FILES = ["curve.csv", "curve.png", "features.png", "models", "report.html"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["regression.csv", "--target", "price", "--costs", "costs.toml"],
        ["classification.parquet", "--target", "kind", "--costs", "costs.csv", "--scoring",
         "accuracy", "--test", "classification.csv"],
        ["ranking.txt", "--valid", "ranking.txt", "--test", "ranking.txt", "--costs", "letor.csv",
         "--scoring", "ndcg@5"],
    ],
)  # fmt: skip
def test_curve(here, drawn, arguments):
    told = succeed("curve", *arguments, "--tradeoffs", "0,1e-3,1e-2", "--out", "deep/out", *FAST)
    out = here / "deep" / "out"
    assert sorted(path.name for path in out.iterdir()) == CURVE_FILES
    assert unforeseen(out, WRITES_CURVE) == []
    points = pd.read_csv(out / "curve.csv")
    assert points["cost"].is_monotonic_increasing
    assert points["score"].is_monotonic_increasing
    assert ("test_score" in points) == ("test score" in told) == ("--test" in arguments)
    assert bool(re.search(r"^ +\d+ +€\d+", told, re.MULTILINE)) == ("costs.toml" in arguments)
    assert "(recommended)" in told
    assert len(list((out / "models").iterdir())) == len(points) <= 12
    for number, point in enumerate(points.to_dict("records"), 1):
        path = out / "models" / f"model-{number}.miser"
        model = load(path)
        assert model.about["parameters"]["tradeoff"] == point["tradeoff"]
        assert model.stages[0].last == point["n_iter"]
        assert model.cost_ == pytest.approx(point["cost"])
        assert "Receipt" in succeed("inspect", path) or not model.features_used_
    assert (out / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert "<html" in (out / "report.html").read_text(encoding="utf-8")
    for name in CURVE_FILES:
        assert str(Path("deep/out") / name) in told


def test_a_curve_counts_its_models_alike_everywhere(here):
    told = succeed("curve", *REGRESSION, "--tradeoffs", "2", "--effort", "0.2", "--out", "out",
                   *FAST)  # fmt: skip
    points = pd.read_csv("out/curve.csv")
    assert points["model"].tolist() == list(range(1, len(points) + 1))
    for point in points.to_dict("records"):
        found = load(f"out/models/model-{point['model']}.miser")
        assert found.cost_ == pytest.approx(point["cost"])
        assert found.stages[0].last == point["n_iter"]
        assert re.search(rf"^ +{point['model']} +{found.cost_:.3g} ", told, re.MULTILINE)


def test_a_curve_may_show_all_its_models(here):
    arguments = ["curve", *REGRESSION, "--tradeoffs", "0,1e-3,1e-2,1", *FAST]
    succeed(*arguments, "--all", "--out", "all")
    every = pd.read_csv("all/curve.csv")
    assert sorted(every["tradeoff"]) == [0, 1e-3, 1e-2, 1]
    assert every["cost"].is_monotonic_increasing


def test_the_table_of_a_curve_fits_into_80_columns(here, monkeypatch):
    monkeypatch.setattr("greedymiser.cli.printing.PLAIN_WIDTH", 80)
    told = succeed("curve", *REGRESSION, "--tradeoffs", "4", "--effort", "0.2", "--out", "out",
                   *FAST)  # fmt: skip
    rows = [line for line in told.splitlines() if re.match(r"^ +\d+ ", line)]
    assert 2 <= len(rows) <= 12
    assert max(map(len, rows)) <= 80
    for row in rows[1:]:
        assert re.search(r"  [+\N{MINUS SIGN}] \w|more trees", row)


def test_a_curve_replaces_another_only_if_told(here, monkeypatch):
    arguments = ["curve", *REGRESSION, "--tradeoffs", "0.0", "--out", "out", *FAST]
    succeed(*arguments)
    before = everything()
    assert complain(*arguments) == "'out' has the files of another run; --force replaces them"
    assert everything() == before
    succeed(*arguments, "--force")


def test_other_parameters_can_be_set(here):
    fit_one = ["fit", *REGRESSION, "--tradeoff", "0", "--out", "m.miser", *FAST]
    succeed(*fit_one, "--set", "max_leaf_nodes=3", "--set", "min_samples_leaf=7")
    parameters = load("m.miser").about["parameters"]
    assert (parameters["max_leaf_nodes"], parameters["min_samples_leaf"]) == (3, 7)
    said = complain(*fit_one, "--set", "max_leaf_node=3")
    assert said.endswith("has no parameter 'max_leaf_node' to set; did you mean 'max_leaf_nodes'?")
    assert "--set takes NAME=VALUE" in complain(*fit_one, "--set", "max_leaf_nodes")
    assert "min_samples_leaf" in complain(*fit_one, "--set", "min_samples_leaf=few")


def test_fit_for_a_budget_searches_the_curve(here):
    told = succeed("fit", "regression.csv", "--target", "price", "--costs", "costs.csv", "--budget",
                   "3.5", "--out", "m.miser", *FAST)  # fmt: skip
    model = load("m.miser")
    assert 0 < model.cost_ <= 3.5
    assert "dear" not in model.features_used_
    # How it was found is told in plain words, then and later.
    for shown in (told, succeed("inspect", "m.miser")):
        words = " ".join(shown.split())
        assert re.search(
            r"search \d trade-offs and the \d+ best sets of features were tried", words
        )
        assert re.search(r"this model has the best [a-z -]*score[a-z -]*\. It is ", words)
        chosen = model.about["parameters"]["tradeoff"]
        assert f"with trade-off {chosen:.3g}" in model.about["search"]


@pytest.mark.parametrize(
    ("share", "why"),
    [
        (0.3, "max_iter: all 12 rounds were trained"),
        (0.0, "early stopping: more rounds did not help on the validation rows"),
    ],
)
def test_where_the_rounds_were_cut_is_told(here, table, share, why):
    """The fewer rounds, the better for rows whose target varies by less."""
    table[FEATURES].assign(price=share * table["price"]).to_csv("valid.csv", index=False)
    told = succeed("fit", *REGRESSION, "--valid", "valid.csv", "--tradeoff", "0", "--out",
                   "m.miser", *FAST)  # fmt: skip
    kept = load("m.miser").stages[0].last
    assert kept < 12
    cut = f"{why}; kept are the first {kept}, after which the validation score is best"
    assert cut in " ".join(told.split())


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--tradeoff", "1e6"], "nothing pays: no split is worth its price any more"),
        (["--tradeoff", "0"], "max_iter: all 12 rounds were trained"),
    ],
)
def test_why_training_ended_is_told_in_plain_words(here, more, why):
    told = succeed("fit", *REGRESSION, *more, "--out", "m.miser", *FAST)
    assert re.search(rf"stopped by +{why}", told)


def test_a_tradeoff_and_a_budget(here):
    succeed("fit", "regression.csv", "--target", "price", "--costs", "costs.csv", "--budget", "1.5",
            "--tradeoff", "0", "--out", "m.miser", *FAST)  # fmt: skip
    assert load("m.miser").cost_ == 1


def test_rows_that_pay_for_themselves(here):
    given = ("fit", "regression.csv", "--target", "price", "--costs", "costs.csv", *FAST)
    succeed(*given, "--charge", "row", "--tradeoff", "0", "--row-budget", "3", "--out", "m.miser")
    model = load("m.miser")
    assert model.charge == "row"
    assert model.cost_ <= 3
    succeed("predict", "m.miser", "regression.csv", "--out", "p.csv")
    assert pd.read_csv("p.csv")["cost"].max() <= model.cost_max_
    wrong = greedymiser(*given, "--row-budget", "3", "--out", "n.miser")
    assert wrong.exit_code == 2
    assert "needs --charge row" in wrong.stderr


def test_a_protocol_may_hide_what_is_free(here):
    Path("costs.csv").write_text("feature,cost\nage,0\nx.y,1\ndear,10\ncolour,2\n")
    succeed("fit", *REGRESSION, "--charge", "row", "--tradeoff", "0", "--out", "m.miser", *FAST)
    told = succeed("protocol", "m.miser", "regression.csv", "--out", "all.png")
    assert "age (0)" in told
    told = succeed("protocol", "m.miser", "regression.csv", "--hide-free", "--out", "paid.png")
    assert "(0)" not in told
    assert "dear (10)" in told
    assert not re.search("^ age ", told, re.MULTILINE)
    assert Path("all.png").read_bytes() != Path("paid.png").read_bytes()


def test_a_picture_is_named_for_what_it_is(here):
    succeed("fit", *REGRESSION, "--charge", "row", "--tradeoff", "0", "--out", "m.miser", *FAST)
    for wrong in ("proto.pdf", "proto.svg", "png.jpeg"):
        said = complain("protocol", "m.miser", "regression.csv", "--out", wrong)
        assert said == f"the picture is a PNG file, and {wrong!r} does not end in .png"
        assert not Path(wrong).exists()
    for fine in ("proto", "proto.PNG"):
        succeed("protocol", "m.miser", "regression.csv", "--out", fine)
        assert Path(fine).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("command", ["fit", "curve"])
def test_the_engine_is_passed_on(here, monkeypatch, command):
    opened = []

    def gpu(threads):
        opened.append("cuda")
        return ENGINES["cpu"](threads)

    monkeypatch.setitem(ENGINES, "cuda", gpu)
    monkeypatch.setattr("greedymiser.engines.cuda.engine.check_available", lambda: None)
    more = {"fit": ["--tradeoff", "0"], "curve": ["--tradeoffs", "0.0"]}[command]
    for engine, expected in (("cpu", []), ("auto", []), ("cuda", ["cuda"])):
        succeed(command, *REGRESSION, *more, "--engine", engine, "--out", engine, *FAST)
        assert opened == expected


@pytest.mark.parametrize("command", ["fit", "curve"])
def test_a_gpu_that_is_not_there(here, monkeypatch, command):
    def complaint() -> None:
        raise CudaUnavailableError("engine='cuda' needs an NVIDIA GPU; here is none")

    monkeypatch.setattr("greedymiser.engines.cuda.engine.check_available", complaint)
    # It is known before anything is read.
    said = complain(command, "no.csv", "--costs", "no.toml", "--engine", "cuda", "--out", "o")
    assert said == "engine='cuda' needs an NVIDIA GPU; here is none"
    assert greedymiser(command, *REGRESSION, "--engine", "abacus", "--out", "o").exit_code == 2


def test_workers_have_their_own_engines(here):
    said = complain("fit", *REGRESSION, "--engine", "cpu", "--workers", "2", "--out", "o")
    assert said.startswith("--engine cpu is for data on this machine")


# What can be wrong with the input


def fit(*arguments: object) -> str:
    """Complaint about a fit, in which later arguments replace earlier ones."""
    before = sorted(Path().iterdir())
    said = complain("fit", "--target", "price", "--costs", "costs.csv", "--tradeoff", "0", "--out",
                    "m.miser", *FAST, *arguments)  # fmt: skip
    assert sorted(Path().iterdir()) == before
    return said


def test_wrong_target(here):
    assert "'regression.csv' has no column 'prize'; did you mean 'price'?" in fit(
        "regression.csv", "--target", "prize"
    )
    assert "no column 'PRICE'; did you mean 'price'?" in fit("regression.csv", "--target", "PRICE")
    assert "no column 'zzz'; the columns of 'regression.csv' are 'age', 'x.y'" in fit(
        "regression.csv", "--target", "zzz"
    )


def test_no_target(here):
    said = complain("fit", "regression.csv", "--costs", "costs.csv", "--out", "m.miser")
    assert said.startswith("name the target with --target; the columns of 'regression.csv' are")


def test_target_that_is_missing_in_places(here):
    said = fit("regression.csv", "--target", "age", "--drop", "price")
    assert said == "column 'age' of 'regression.csv' is missing in 24 of 400 rows"


def test_a_column_of_free_text(here, table):
    notes = [f"patient {i} says that all is well" for i in range(len(table))]
    table[FEATURES].assign(colour=notes, price=table["price"]).to_csv("notes.csv", index=False)
    assert fit("notes.csv") == (
        "categorical feature 'colour' has 300 categories, but max_bins=255 allows at most 255; "
        "leave the column out (--drop does on the command line), or turn it into numbers or into "
        "fewer categories"
    )


def test_unknown_and_missing_costs(here):
    Path("costs.csv").write_text("feature,cost\nage,1\nx.y,1\ndear,10\ncolour,2\nshoe,1\n")
    assert "has a cost for 'shoe', which is not a column of 'regression.csv'" in fit(
        "regression.csv"
    )
    Path("costs.csv").write_text("feature,cost\nage,1\ndear,10\n")
    assert (
        "'costs.csv' has no cost for 'x.y', 'colour', which 'regression.csv' has; add them, or "
        "leave the columns out with --drop"
    ) in fit("regression.csv")
    Path("costs.csv").write_text("feature,cost\nage,1\nx.y,1\ndear,10\n")
    assert "add it, or leave the column out with --drop" in fit("regression.csv")
    Path("costs.csv").write_text("feature,cost\nage,1\nx.z,1\ndear,10\ncolour,2\n")
    assert "no cost for 'x.y', which 'regression.csv' has (it has one for 'x.z'" in fit(
        "regression.csv"
    )
    Path("costs.csv").write_text("feature,cost\nage,1\nx.y,1\ndear,10\ncolour,2\nprice,1\n")
    assert "a cost for 'price', which is not a feature of 'regression.csv'" in fit("regression.csv")


def test_negative_cost(here):
    Path("costs.csv").write_text("feature,cost\nage,1\nx.y,-2\n")
    assert fit("regression.csv") == (
        "'costs.csv': line 3: the cost of feature 'x.y' must not be negative, got -2"
    )


def test_costs_that_are_not_there(here):
    assert fit("regression.csv", "--costs", "no.toml") == "there is no cost file at 'no.toml'"


def test_files_that_are_not_what_their_suffix_says(here):
    Path("picture.csv").write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR")
    assert fit("picture.csv") == "'picture.csv' is not a CSV file: it is not text"
    Path("text.parquet").write_text("age,price\n1,2\n")
    assert fit("text.parquet") == "'text.parquet' is not a Parquet file"
    Path("table.txt").write_text("age,price\n1,2\n")
    assert "cannot read 'table.txt' as an SVMlight file" in fit("table.txt")
    Path("empty.csv").write_text("")
    assert fit("empty.csv") == "'empty.csv' is empty"
    assert fit("nowhere.csv") == "there is no file at 'nowhere.csv'"
    assert "does not end in one of" in fit("m.xlsx")


def test_validation_data_that_does_not_match(here, table):
    table[["age", "dear", "colour", "price"]].to_csv("valid.csv", index=False)
    assert "'valid.csv' has no column 'x.y'" in fit("regression.csv", "--valid", "valid.csv")
    table[[*FEATURES]].to_csv("valid.csv", index=False)
    assert "'valid.csv' has no column 'price'" in fit("regression.csv", "--valid", "valid.csv")
    table[[*FEATURES]].assign(kind="strange").to_csv("valid.csv", index=False)
    said = fit("classification.csv", "--target", "kind", "--valid", "valid.csv")
    assert "strange" in said
    assert "validation data" in said


def test_too_few_rows_to_hold_some_out(here):
    Path("few.csv").write_text("age,price\n1,1\n2,2.5\n")
    Path("costs.csv").write_text("feature,cost\nage,1\n")
    assert "too few rows to hold some out for validation; give a file with --valid" in fit(
        "few.csv"
    )


def test_a_target_that_tells_rows_apart(here, table):
    names = [f"A{i:05}" for i in range(len(table))]
    table[FEATURES].assign(price=names).to_csv("named.csv", index=False)
    said = "the target 'price' has 400 classes, most of them with a single row: is it the right "
    assert fit("named.csv").startswith(said)
    table[FEATURES].assign(price=range(len(table))).to_csv("counted.csv", index=False)
    told = fit("counted.csv", "--task", "classification")
    assert told.startswith(said)
    assert "--task regression" in told
    # Twenty classes and no more may just have too few rows.
    table[FEATURES][:20].assign(price=names[:20]).to_csv("few.csv", index=False)
    assert "'few.csv' has too few rows" in fit("few.csv")


def test_nothing_but_a_target(here):
    Path("bare.csv").write_text("price\n1\n2\n")
    assert fit("bare.csv") == "'bare.csv' has no features beside 'price'"


def test_text_as_target_of_a_regression(here):
    said = fit("classification.csv", "--target", "kind", "--task", "regression")
    assert "needs a numeric y" in said


def test_ranking_without_queries(here):
    said = fit("ranking.csv", "--target", "stars", "--drop", "query", "--task", "ranking")
    assert said == "ranking needs the query of each row: name its column with --qid"
    Path("plain.txt").write_text("1 1:2 2:3 3:4\n" * 9)
    said = complain("fit", "plain.txt", "--costs", "letor.csv", "--task", "ranking", "--out",
                    "m.miser")  # fmt: skip
    assert said == "ranking needs the query of each row, but 'plain.txt' has no qid:"
    assert "both the target and the query" in fit("ranking.csv", "--target", "stars", "--qid",
                                                  "stars")  # fmt: skip


@pytest.mark.parametrize("budget", ["0", "0.5"])
def test_a_budget_that_buys_nothing_gives_a_constant_and_says_so(here, budget):
    """As fit and the curve's best do in Python."""
    said = {
        "searched": f"a budget of {budget} buys no useful feature, so the model is a constant; "
        "the cheapest feature that it does not afford is 'age' and costs 1",
        "fitted": f"budget={budget} buys no useful feature, so the model is a constant; "
        "the cheapest useful feature is 'age' and costs 1",
    }
    for how, more in {"searched": [], "fitted": ["--tradeoff", "0"]}.items():
        result = greedymiser("fit", *REGRESSION, "--budget", budget, *more, "--out", "m.miser",
                             *FAST)  # fmt: skip
        assert (result.exit_code, result.stderr) == (0, f"Warning: {said[how]}\n")
        assert "predicts the same for every row" in result.stdout
        assert load("m.miser").cost_ == 0


@pytest.mark.parametrize(
    ("budget", "more"),
    [
        ("1", "; the cheapest feature that it does not afford is 'colour' and costs 2"),
        ("99", ""),
    ],
)
def test_what_a_budget_affords_is_not_what_it_lacks(here, budget, more):
    Path("costs.csv").write_text("feature,cost\nage,0\nx.y,1\ndear,10\ncolour,2\n")
    frame = pd.read_csv("regression.csv")
    frame.assign(price=1.0).to_csv("regression.csv", index=False)
    result = greedymiser("fit", *REGRESSION, "--task", "regression", "--budget", budget,
                         "--out", "m.miser", *FAST)  # fmt: skip
    said = f"a budget of {budget} buys no useful feature, so the model is a constant{more}"
    assert (result.exit_code, result.stderr) == (0, f"Warning: {said}\n")


def test_a_budget_of_nothing_buys_what_is_free(here):
    Path("costs.csv").write_text("feature,cost\nage,0\nx.y,1\ndear,10\ncolour,2\n")
    for more in ([], ["--tradeoff", "0"]):
        succeed("fit", *REGRESSION, "--budget", "0", *more, "--out", "m.miser", *FAST)
        assert load("m.miser").features_used_ == ["age"]


def test_unknown_scoring(here):
    said = fit("regression.csv", "--scoring", "applause")
    assert "got 'applause'; names are for example 'roc_auc'" in said
    assert len(said) < 300
    assert fit("regression.csv", "--scoring", "auc").endswith("; did you mean 'roc_auc'?")


def test_folders_that_cannot_be_written(here):
    Path("taken").write_text("a file")
    arguments = ["--target", "price", "--costs", "costs.csv"]
    for out in ("taken", "taken/below"):
        said = complain("curve", "regression.csv", *arguments, "--out", out)
        assert f"cannot write to the folder '{out}'" in said
    said = complain("fit", "regression.csv", *arguments, "--out", "taken/m.miser")
    assert "cannot write to the folder 'taken'" in said
    Path("folder").mkdir()
    said = complain("fit", "regression.csv", *arguments, "--out", "folder")
    assert "there is a folder of that name" in said
    assert "cannot write to the folder 'taken'" in complain("demo", "--out", "taken")
    assert Path("taken").read_text() == "a file"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
def test_a_folder_without_permission(here):
    Path("locked").mkdir(mode=0o500)
    said = complain("curve", "regression.csv", "--target", "price", "--costs", "costs.csv",
                    "--out", "locked")  # fmt: skip
    assert said == "cannot write to the folder 'locked': Permission denied"


def test_predict_with_missing_columns(here, model, table):
    table[["x.y", "dear", "colour"]].to_csv("part.csv", index=False)
    assert complain("predict", model, "part.csv") == (
        "'part.csv' has no column 'age', which the model uses"
    )


def test_predict_drops_only_what_is_there_and_not_needed(here, model):
    shown = succeed("predict", model, "regression.csv")
    assert succeed("predict", model, "regression.csv", "--drop", "price", "--drop", "x.y") == shown
    assert complain("predict", model, "regression.csv", "--drop", "prize") == (
        "'regression.csv' has no column 'prize'; did you mean 'price'?"
    )
    assert complain("predict", model, "regression.csv", "--drop", "age") == (
        "the model uses 'age', which --drop leaves out"
    )


def test_predict_does_not_write_over_what_it_reads(here, model):
    before = Path("regression.csv").read_bytes(), model.read_bytes()
    Path("link.csv").symlink_to("regression.csv")
    Path("hard.csv").hardlink_to("regression.csv")
    Path("folder").mkdir()
    for out in ("regression.csv", "folder/../regression.csv", "link.csv", "hard.csv"):
        said = complain("predict", model, "regression.csv", "--out", out)
        assert said == f"--out '{out}' is the data file itself: 'regression.csv'"
    said = complain("predict", model, "link.csv", "--out", "regression.csv")
    assert said == "--out 'regression.csv' is the data file itself: 'link.csv'"
    said = complain("predict", model, "regression.csv", "--out", model)
    assert said == "--out 'm.miser' is the model file itself: 'm.miser'"
    assert (Path("regression.csv").read_bytes(), model.read_bytes()) == before


def test_predictions_are_written_at_once_or_not_at_all(here, model, monkeypatch):
    Path("p.csv").write_text("precious")
    Path("link.csv").symlink_to("p.csv")
    files = sorted(here.iterdir())

    def fail(*_: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        assert complain("predict", model, "regression.csv", "--out", "p.csv") == "disk full"
    assert Path("p.csv").read_text() == "precious"
    succeed("predict", model, "regression.csv", "--out", "link.csv")
    assert Path("link.csv").is_symlink()
    assert Path("p.csv").read_text() == succeed("predict", model, "regression.csv")
    assert sorted(here.iterdir()) == files
    Path("loop.csv").symlink_to("loop.csv")
    said = complain("predict", model, "regression.csv", "--out", "loop.csv")
    assert said == "cannot save predictions as 'loop.csv': it is a link that leads back to itself"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_predictions_go_into_a_pipe(here, model):
    os.mkfifo("pipe.csv")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(Path("pipe.csv").read_bytes()))
    reader.start()
    succeed("predict", model, "regression.csv", "--out", "pipe.csv")
    reader.join(timeout=60)
    assert read[0].decode() == succeed("predict", model, "regression.csv")
    assert Path("pipe.csv").is_fifo()


def test_files_that_are_not_models(here, model):
    Path("text.miser").write_text("hello")
    Path("empty.miser").write_bytes(b"")
    Path("half.miser").write_bytes(model.read_bytes()[:-7])
    for name in ("text.miser", "empty.miser", "half.miser", "costs.csv"):
        assert complain("inspect", name).startswith(f"'{name}' is not a model of greedymiser: ")
        assert "is not a model" in complain("predict", name, "regression.csv")
    assert complain("inspect", "no.miser") == "there is no model at 'no.miser'"
    Path("folder.miser").mkdir()
    assert complain("inspect", "folder.miser") == "there is no model at 'folder.miser'"


@pytest.mark.parametrize("compress", [0, 3, ("gzip", 3), ("bz2", 3), ("xz", 3)])
def test_a_pickle_is_not_opened(here, compress):
    joblib.dump(Bomb(), "m.joblib", compress=compress)
    for arguments in (["inspect", "m.joblib"], ["predict", "m.joblib", "regression.csv"]):
        said = complain(*arguments)
        assert said.startswith("'m.joblib' is not a model of greedymiser: it looks like a pickle")
        assert "greedymiser.save" in said
    with pytest.raises(ZeroDivisionError):
        joblib.load("m.joblib")


class Bomb:
    """Goes off when it is unpickled."""

    def __reduce__(self):
        return operator.truediv, (1, 0)


def test_debug_shows_the_traceback(here):
    result = greedymiser("--debug", "inspect", "no.miser")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "there is no model at 'no.miser'" in result.stderr
    assert "Traceback" not in greedymiser("inspect", "no.miser").stderr


def test_what_nobody_expected_is_one_sentence_too(here, monkeypatch):
    def fail(*_: object) -> None:
        raise KeyError("gone\nastray")

    monkeypatch.setattr("greedymiser.cli.commands.costs_template.read_table", fail)
    said = complain("costs-template", "regression.csv")
    assert "unexpected KeyError" in said
    assert "--debug" in said


def test_interruption(here, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("greedymiser.cli.commands.costs_template.read_table", interrupt)
    result = greedymiser("costs-template", "regression.csv")
    assert (result.exit_code, result.stderr) == (130, "Interrupted.\n")


# What is read is never written over

COMMANDS = {command.name: command for command in COMMAND.commands.values()}
MARKS = {
    info.name or info.callback.__name__.replace("_", "-"): marked_paths(info.callback)
    for info in app.registered_commands
}

# Something to read for each parameter of that name; a new one has to be given its own.
EXAMPLES = {
    "data": "regression.csv", "costs": "costs.csv", "valid": "valid.csv", "test": "test.csv",
    "model": "m.miser", "baseline": "present.txt",
}  # fmt: skip
VALUES = {"target": "price", "max_iter": 2, "jobs": 1, "tradeoffs": "0.0"}


def arguments_of(command: str, **given: object) -> list[object]:
    """A call of a command, with all its flags, and examples for what is not given."""
    words: list[object] = [command]
    for parameter in COMMANDS[command].params:
        name = parameter.name
        if name == "help":
            continue
        if getattr(parameter, "is_flag", False):
            words.append(parameter.opts[0])
            continue
        value = given.get(name, VALUES.get(name))
        if value is None and isinstance(MARKS[command].get(name), Reads):
            value = Path(EXAMPLES[name])
        if value is None and parameter.required and isinstance(MARKS[command].get(name), Writes):
            value = "elsewhere"
        if value is not None:
            words += (
                [value] if parameter.param_type_name == "argument" else [parameter.opts[0], value]
            )
    return words


def everything() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(Path().rglob("*")) if path.is_file()}


def other_names(path: Path) -> list[Path]:
    """The same file, called otherwise."""
    Path("link").symlink_to(path.resolve())
    Path("hard").hardlink_to(path)
    return [path, path.resolve(), Path("folder") / ".." / path, Path("link"), Path("hard")]


@pytest.fixture
def all_inputs(tmp_path, monkeypatch):
    """Something precious under every name."""
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    for name in EXAMPLES.values():
        Path(name).write_text(f"precious {name}")


def test_every_path_of_every_command_is_marked():
    """So that the tests below, and the guard, know of all of them."""
    for info in app.registered_commands:
        hints = get_type_hints(info.callback)
        paths = {name for name, hint in hints.items() if Path in (hint, *get_args(hint))}
        name = info.name or info.callback.__name__
        assert paths == set(marked_paths(info.callback)), name
        assert info.callback.__wrapped__, f"{name} is not guarded"


OVER_FILES = [
    (command, out, read)
    for command, marks in MARKS.items()
    for out, written in marks.items()
    for read, mark in marks.items()
    if isinstance(written, Writes) and isinstance(mark, Reads)
]


def test_there_are_commands_that_write():
    assert {command for command, *_ in OVER_FILES} == {
        "fit", "curve", "predict", "protocol", "costs-template"
    }  # fmt: skip


@pytest.mark.parametrize(("command", "out", "read"), OVER_FILES)
def test_no_command_writes_over_what_it_reads(all_inputs, command, out, read):
    before = everything()
    example = Path(EXAMPLES[read])
    names = other_names(example)
    for name in names:
        for first, second in ((example, name), (name, example)):
            said = complain(*arguments_of(command, **{read: first, out: second}))
            assert f"--{out} '{second}' is the {read} " in said
    for name in names[3:]:
        name.unlink()
    assert everything() == before


OVER_FOLDERS = [
    (command, out, read, pattern, how)
    for command, out, read in OVER_FILES
    for pattern in MARKS[command][out].below
    for how in ("itself", "symlink", "hard link")
]


@pytest.mark.parametrize(("command", "out", "read", "pattern", "how"), OVER_FOLDERS)
def test_no_command_writes_over_what_it_reads_in_its_folder(
    all_inputs, command, out, read, pattern, how
):
    place, path = Path("out") / pattern.replace("*", "1"), Path(EXAMPLES[read])
    place.parent.mkdir(parents=True)
    if how == "itself":
        path = path.rename(place)
    elif how == "symlink":
        place.symlink_to(path.resolve())
    else:
        place.hardlink_to(path)
    before = everything()
    said = complain(*arguments_of(command, **{read: path, out: "out"}))
    assert said.startswith(f"--{out} 'out' would write over '{place}', and that is the {read} ")
    assert everything() == before


def test_a_folder_where_a_file_should_be(all_inputs):
    """It is no reason to think that results go into it."""
    for arguments in (["--costs", "."], ["--valid", "."]):
        said = complain(*arguments_of("fit", out="m.miser"), *arguments)
        assert "--out" not in said


def test_a_tilde_is_home(here, monkeypatch):
    """The shell leaves --out=~/... to us; what is checked is what is written."""
    monkeypatch.setenv("HOME", str(here))
    said = complain("fit", "regression.csv", "--target", "price", "--costs", "costs.csv",
                    "--out=~/regression.csv")  # fmt: skip
    assert "is the data file itself: 'regression.csv'" in said
    succeed("fit", "~/regression.csv", "--target", "price", "--costs", "~/costs.csv",
            "--tradeoff", "0", "--out=~/m.miser", *FAST)  # fmt: skip
    assert Path("m.miser").exists()
    assert not Path("~").exists()


def test_a_curve_beside_its_data(here):
    """To keep results and data in one folder is fine, as long as nothing is lost."""
    before = everything()
    succeed("curve", "regression.csv", "--target", "price", "--costs", "costs.csv", "--tradeoffs",
            "0,0.01", "--out", ".", *FAST)  # fmt: skip
    after = everything()
    assert {path: after[path] for path in before} == before


def unforeseen(folder: Path, mark: Writes) -> list[Path]:
    """What was written that the mark does not tell."""
    told = [place for pattern in mark.below for place in folder.glob(pattern)]
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(path.is_relative_to(place) for place in told)
    ]


def test_a_shorter_curve_leaves_no_models_of_the_longer_one(here):
    arguments = ["curve", "regression.csv", "--target", "price", "--costs", "costs.csv", "--out",
                 "out", *FAST]  # fmt: skip
    lengths = []
    for tradeoffs in ("0,0.01", "100.0"):
        succeed(*arguments, "--force", "--tradeoffs", tradeoffs)
        names = sorted(path.stem for path in Path("out/models").iterdir())
        lengths.append(len(names))
        assert len(pd.read_csv("out/curve.csv")) == len(names)
    assert lengths[1] == 1 < lengths[0]


# Ctrl-C


@pytest.fixture
def interrupted(monkeypatch):
    """Let Ctrl-C be pressed as soon as so much is done."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)

    def at(when: int) -> None:
        @contextmanager
        def shown_progress(what: str):
            yield lambda done, total: signal.raise_signal(signal.SIGINT) if done == when else None

        monkeypatch.setattr("greedymiser.cli.training.shown_progress", shown_progress)

    yield at
    signal.signal(signal.SIGINT, usual)


def interrupt(*arguments: object) -> str:
    """Run a command that is interrupted and keeps something; return what it says about that."""
    result = greedymiser(*arguments)
    assert result.exit_code == 130, result.output
    last = result.stderr.splitlines()[-1]
    assert last.startswith("Interrupted: ")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return last.removeprefix("Interrupted: ")


def test_an_interrupted_fit_keeps_its_rounds(here, interrupted):
    interrupted(5)
    said = interrupt("fit", *REGRESSION, "--tradeoff", "0", "--out", "m.miser", *FAST)
    assert said == "'m.miser' has the best of the rounds that were finished: 5"
    model = load("m.miser")
    assert model.stages[0].last == 5
    assert re.search("stopped by +interrupted", succeed("inspect", "m.miser"))


def test_a_fit_that_is_interrupted_before_its_first_round_leaves_nothing(here, monkeypatch):
    def fit(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("greedymiser.estimators.MiserRegressor.fit", fit)
    result = greedymiser("fit", *REGRESSION, "--tradeoff", "0", "--out", "m.miser", *FAST)
    assert (result.exit_code, result.stderr) == (130, "Interrupted.\n")
    assert not Path("m.miser").exists()


def test_an_interrupted_search_is_no_finished_one(here, interrupted):
    interrupted(1)
    said = interrupt("fit", *REGRESSION, "--budget", "3.5", "--out", "m.miser", *FAST)
    assert said == "'m.miser' has the best model that the unfinished search had found"
    assert load("m.miser").cost_ <= 3.5
    assert re.search("search +interrupted", succeed("inspect", "m.miser"))


def test_a_search_that_found_nothing_yet_does_not_blame_the_budget(here, interrupted):
    interrupted(1)
    result = greedymiser("fit", *REGRESSION, "--budget", "0.5", "--out", "m.miser", *FAST)
    assert result.exit_code == 130
    assert result.stderr.endswith("Interrupted.\n")
    assert "buys no useful feature" not in result.stderr
    assert not Path("m.miser").exists()


def test_an_interrupted_curve_has_what_is_finished(here, interrupted):
    interrupted(2)
    said = interrupt("curve", *REGRESSION, "--tradeoffs", "0,1e-3,1e-2", "--out", "out", *FAST)
    assert said == "'out' has the best 3 of the models that were finished"
    assert set(pd.read_csv("out/curve.csv")["tradeoff"]) == {0, 1e-3}
    assert sorted(path.name for path in Path("out").iterdir()) == CURVE_FILES
    assert len(list(Path("out/models").iterdir())) == 3


def test_an_interrupted_demo(here, interrupted, monkeypatch):
    monkeypatch.setattr("greedymiser.cli.commands.demo.ROUNDS", 2)
    interrupted(1)
    said = interrupt("demo", "--out", "demo")
    assert said == "'demo' has the best 2 of the models that were finished"
    assert len(pd.read_csv("demo/curve.csv")) == 2


def test_an_interruption_that_somebody_swallowed_is_no_success(
    here, model, interrupted, monkeypatch
):
    def emit(text: str) -> None:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("greedymiser.cli.commands.predict.emit", emit)
    said = interrupt("predict", model, "regression.csv")
    assert said == "not all was done that was asked for."


def test_an_interrupted_prediction_leaves_nothing(here, model, monkeypatch):
    def run(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("greedymiser.model.predictor.Predictor.run", run)
    result = greedymiser("predict", model, "regression.csv", "--out", "p.csv")
    assert (result.exit_code, result.stderr) == (130, "Interrupted.\n")
    assert not Path("p.csv").exists()


def test_whoever_ignores_ctrl_c_goes_on(here, interrupted):
    """As nohup has it."""
    interrupted(5)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    succeed("fit", *REGRESSION, "--tradeoff", "0", "--out", "m.miser", *FAST)
    assert load("m.miser").about["stopped"] == "max_iter"


# What is missing


def test_classes_may_be_called_as_what_is_missing(here, table):
    names = np.array(["None", "NA", "nan"])
    frame = table[FEATURES].assign(kind=names[np.arange(400) % 3])
    frame["age"] = np.arange(400) % 3
    frame.to_csv("words.csv", index=False)
    for command in ("fit", "curve"):
        out = {"fit": "m.miser", "curve": "out"}[command]
        succeed(command, "words.csv", "--target", "kind", "--costs", "costs.csv", "--valid",
                "words.csv", "--out", out, *FAST)  # fmt: skip
    assert load("m.miser").classes.tolist() == ["NA", "None", "nan"]
    shown = succeed("predict", "m.miser", "words.csv").splitlines()
    assert shown[0] == "prediction,probability_NA,probability_None,probability_nan"
    assert [line.partition(",")[0] for line in shown[1:4]] == ["None", "NA", "nan"]


def test_queries_may_be_called_as_what_is_missing(here, table):
    frame = table[[*FEATURES, "stars"]].assign(query=["NA", *map(str, range(39))] * 10)
    frame.to_csv("words.csv", index=False)
    told = succeed("fit", "words.csv", "--target", "stars", "--qid", "query", "--costs",
                   "costs.csv", "--out", "m.miser", *FAST)  # fmt: skip
    assert "300 rows to learn from, 100 to validate with" in told


def test_an_empty_target_is_missing(here):
    Path("few.csv").write_text("age,kind\n1,None\n2,\n3,x\n")
    Path("costs.csv").write_text("feature,cost\nage,1\n")
    assert fit("few.csv", "--target", "kind") == (
        "column 'kind' of 'few.csv' is missing in 1 of 3 rows"
    )


def test_a_word_among_numbers_is_not_a_class_by_itself(here, table):
    frame = table[FEATURES].assign(price=table["price"].astype(object))
    frame.loc[[3, 5], "price"] = "NA"
    frame.to_csv("words.csv", index=False)
    for arguments in ([], ["--task", "regression"]):
        assert fit("words.csv", *arguments) == (
            "column 'price' of 'words.csv' has numbers, and 2 of 400 rows say 'NA': leave these "
            "rows out, or say --task classification if that is a class"
        )
    frame["price"] = np.where(np.arange(400) % 2, "NA", "0")
    frame.to_csv("words.csv", index=False)
    succeed("fit", "words.csv", "--target", "price", "--task", "classification", "--costs",
            "costs.csv", "--out", "m.miser", *FAST)  # fmt: skip
    assert load("m.miser").classes.tolist() == ["0", "NA"]


def test_what_was_read_as_missing_is_told_once(here, table):
    frame = table[[*FEATURES, "price"]].assign(dear=table["dear"].astype(object), spare="NA")
    frame.loc[::9, "dear"] = "NA"
    frame.loc[::11, "colour"] = "None"
    frame.to_csv("words.csv", index=False)
    result = greedymiser("fit", "words.csv", "--valid", "words.csv", "--target", "price", "--drop",
                         "spare", "--costs", "costs.csv", "--tradeoff", "0", "--out", "m.miser",
                         *FAST)  # fmt: skip
    assert result.exit_code == 0
    note = "Note: read as missing, like empty cells: 'NA' in 'dear'; 'None' in 'colour'\n"
    assert result.stderr == note
    assert {"dear", "colour"} <= set(load("m.miser").features_used_)
    assert greedymiser("predict", "m.miser", "words.csv").stderr == note
    # Where they are only empty, everybody knows.
    succeed("predict", "m.miser", "regression.csv")


def with_words(table: pd.DataFrame, words: list[str], path: str) -> None:
    """A CSV file in which the first ages are these words."""
    frame = table[[*FEATURES, "price"]].assign(age=table["age"].round(1).astype(object))
    frame.loc[1 : len(words), "age"] = words
    frame.to_csv(path, index=False)


@pytest.mark.parametrize("command", ["fit", "curve"])
def test_a_word_that_makes_categories_of_numbers_is_told(here, table, command):
    with_words(table, ["unknown"], "words.csv")
    more = ["--tradeoff", "0"] if command == "fit" else ["--tradeoffs", "0.0"]
    result = greedymiser(command, "words.csv", "--target", "price", "--costs", "costs.csv", *more,
                         "--out", "out", *FAST)  # fmt: skip
    assert result.exit_code == 0
    assert result.stderr == (
        "Note: 'age' is taken for categories: 1 of 376 cells is no number ('unknown')\n"
    )


def test_categories_that_are_categories_are_not_told(here, table):
    few = [f"word {i}" for i in range(37)]
    notes = []
    for words in (few, [*few, "one more"]):
        with_words(table, words, "words.csv")
        result = greedymiser("fit", "words.csv", "--target", "price", "--costs", "costs.csv",
                             "--tradeoff", "0", "--out", "m.miser", *FAST)  # fmt: skip
        assert result.exit_code == 0
        notes.append(result.stderr)
    told, silent = notes
    assert "37 of 378 cells are no number ('word 0', 'word 1', 'word 2' and 34 more)" in told
    assert silent == ""
    # Whoever writes Parquet has said what is text.
    with_words(table, ["unknown"], "words.csv")
    pd.read_csv("words.csv").to_parquet("words.parquet")
    succeed("fit", "words.parquet", "--target", "price", "--costs", "costs.csv", "--tradeoff", "0",
            "--out", "m.miser", *FAST)  # fmt: skip


def test_a_word_where_a_model_has_numbers_is_named(here, model, table):
    with_words(table, ["12", "unknown", "none at all"], "words.csv")
    said = "column 'age' of 'words.csv' has 'unknown' in row 3, but for "
    assert complain("predict", model, "words.csv").startswith(f"{said}the model it is a column of ")
    assert fit("regression.csv", "--valid", "words.csv").startswith(f"{said}the rows to learn from")
    # What the model does not use may be anything.
    frame = pd.read_csv("regression.csv").assign(spare="unknown")
    frame.to_csv("spare.csv", index=False)
    succeed("predict", model, "spare.csv")


# What names can do to a terminal

NASTY = {
    "plain": "plain",
    "\x1b[31mred": r"\x1b[31mred", "a\u202eb": r"a\u202eb", "c1\x9b": r"c1\x9b", "d\x7f": r"d\x7f",
    "line\u2028break": r"line\u2028break", "tab\t\r\n\x07": r"tab\t\r\n\x07",
    "[bold]x[/bold]": "[bold]x[/bold]", "half\ud800": r"half\ud800", "größe": "größe",
}  # fmt: skip


def check_harmless(text: str) -> None:
    for sign in set(text) - {"\n"}:
        assert unicodedata.category(sign) not in ("Cc", "Cs", "Zl", "Zp"), repr(sign)
        assert unicodedata.bidirectional(sign) not in ("RLO", "LRO", "RLE", "LRE", "PDF", "RLI",
                                                       "LRI", "FSI", "PDI"), repr(sign)  # fmt: skip


@pytest.fixture
def nasty_model(here, table):
    """A model of which nothing is called as it should be."""
    names = [name for name in NASTY if name != "half\ud800"]
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.standard_normal((300, len(names))), columns=names)
    y = np.array(["\x1b[2Jno", "[red]yes"])[(X.sum(axis=1) > 0).astype(int)]
    costs = CostModel(dict.fromkeys(names, 1.0))
    model = MiserClassifier(costs, max_iter=12, n_jobs=1).fit(X, y)
    save(model, "nasty.miser", cost_unit="\x1b]0;owned\x07")
    X.to_csv("nasty.csv", index=False)
    return names


def test_names_in_a_model_do_not_command_the_terminal(nasty_model):
    told = succeed("inspect", "nasty.miser")
    check_harmless(told)
    for name in nasty_model:
        assert NASTY[name] in told
    assert r"\x1b[2Jno, [red]yes" in told
    assert r"price (\x1b]0;owned\x07)" in told


def test_names_in_data_costs_and_complaints_do_not_either(nasty_model, drawn, table):
    Path("c.toml").write_text(template(nasty_model), encoding="utf-8")
    target = table["price"][:300].to_numpy()
    pd.read_csv("nasty.csv").assign(y=target).to_csv("nasty.csv", index=False)
    names = pd.read_csv("nasty.csv").columns[:-1]
    Path("c.toml").write_text(template([name.strip() for name in names]), encoding="utf-8")
    out, data = "\x1b[31mout\n", ["nasty.csv", "--target", "y", "--costs", "c.toml"]
    for arguments in (
        ["fit", *data, "--tradeoff", "0", "--out", f"{out}.miser", *FAST],
        ["curve", *data, "--tradeoffs", "0.0", "--out", out, *FAST],
        ["predict", "nasty.miser", "nasty.csv", "--out", f"{out}.csv"],
        ["costs-template", "nasty.csv", "--target", "y", "--out", f"{out}.toml"],
    ):
        check_harmless(succeed(*arguments))
    noted = greedymiser("costs-template", "nasty.csv", "--drop", names[1])
    assert noted.stderr.startswith("Note: no --target is given")
    check_harmless(noted.stderr)
    for arguments in (
        ["fit", *data, "--target", "\x1b[31m", "--out", "x"],
        ["fit", *data, "--costs", "costs.csv", "--out", "x"],
        ["predict", "nasty.miser", "regression.csv"],
        ["inspect", "\x1b[31m"],
    ):
        check_harmless(complain(*arguments))
    for arguments in (
        ["--debug", "inspect", "\x1b[31m"],
        ["\x1b[31m"],
        ["fit", "--\x1b[31m"],
        ["fit", "a", "\x1b[31m\x9b"],
        ["curve", *data, "--out", "o", "--tradeoffs", "\x1b"],
        ["fit", "a", "--task", "\x1b[31m"],
    ):
        result = greedymiser(*arguments)
        assert result.exit_code in (1, 2)
        check_harmless(result.output)


def test_a_terminal_gets_data_without_commands_and_a_pipe_as_they_are(nasty_model, monkeypatch):
    shown = succeed("predict", "nasty.miser", "nasty.csv")
    assert "\x1b[2Jno" in shown
    succeed("predict", "nasty.miser", "nasty.csv", "--out", "p.csv")
    assert shown == Path("p.csv").read_text(encoding="utf-8")
    terminal = Terminal(io.BytesIO(), encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        emit(shown)
    assert terminal.buffer.getvalue().decode() == shown.replace("\x1b", "\\x1b")


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def test_lines_end_between_words_on_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    line = "  of the rows with a_rather_long_name > 3 some are asked for another_rather_long_name"
    for is_terminal, most in ((True, 40), (False, len(line))):
        stream = (Terminal if is_terminal else io.TextIOWrapper)(io.BytesIO(), encoding="utf-8")
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            say(line)
        printed = stream.buffer.getvalue().decode()
        assert printed.split() == line.split()
        assert max(map(len, printed.splitlines())) <= most
        assert printed.startswith("  of the rows")


def test_a_terminal_is_told_once_that_kernels_are_compiled(capsys, monkeypatch):
    """The bar stands still for so long; what is read from the cache is not spoken of."""
    for terminal, times in (("1", 1), ("", 0)):
        monkeypatch.setenv("FORCE_COLOR", terminal)
        with shown_progress("steps") as told:
            told(0, 2)
            assert COMPILING not in capsys.readouterr().err
            for _ in range(3):
                with event.trigger_event("numba:compile"):
                    pass
            assert capsys.readouterr().err.count(COMPILING) == times
        with event.trigger_event("numba:compile"):
            assert COMPILING not in capsys.readouterr().err  # the listener is gone


def test_what_is_escaped():
    for name, shown in NASTY.items():
        assert escaped(name) == shown
    assert escaped("a\n\tb\x1b", keep="\n\t") == "a\n\tb\\x1b"
    assert escaped("naïve 日本 🎉 e\u0301 \u200d") == "naïve 日本 🎉 e\u0301 \u200d"


# The unit


def test_the_unit_of_the_costs_is_remembered(here):
    succeed("fit", "regression.csv", "--target", "price", "--costs", "costs.toml", "--tradeoff",
            "0", "--out", "m.miser", *FAST)  # fmt: skip
    assert load("m.miser").about["cost_unit"] == "euros"
    told = succeed("inspect", "m.miser")
    cost = money(load("m.miser").cost_, "euros")
    assert re.search(rf"cost of a prediction +{cost}", told)
    assert f" {cost} " in told[told.index("Receipt") :]
    told = succeed("predict", "m.miser", "regression.csv", "--out", "p.csv")
    assert f"at a cost of {cost} each" in told
    save(load("m.miser"), "again.miser")
    assert Path("again.miser").read_bytes() == Path("m.miser").read_bytes()
    succeed("curve", "regression.csv", "--target", "price", "--costs", "costs.toml", "--tradeoffs",
            "0.0", "--out", "out", *FAST)  # fmt: skip
    assert "€" in succeed("inspect", "out/models/model-2.miser")


def test_a_protocol_has_the_unit_of_the_costs(here):
    for costs, known in (("costs.toml", True), ("costs.csv", False)):
        succeed("fit", "regression.csv", "--target", "price", "--costs", costs, "--charge", "row",
                "--tradeoff", "0", "--out", "m.miser", *FAST)  # fmt: skip
        told = succeed("protocol", "m.miser", "regression.csv")
        first = "; all costs in euros" if known else ""
        assert re.match(rf"400 rows at a mean cost of [\d.]+, at most [\d.]+{first}\n", told)
        assert ("€" in told) == known


def test_a_cascade_has_a_protocol(here):
    X = np.random.default_rng(0).integers(0, 5, (1000, 2))
    y = np.where(X[:, 0] == 4, X[:, 1] > 1, X[:, 0] > 1)
    base = MiserClassifier(costs=[1.0, 10.0], max_iter=10, learning_rate=0.3, n_jobs=1)
    save(GatedClassifier(base, tradeoff=1e-3, gate="tree").fit(X, y), "m.miser", cost_unit="euros")
    pd.DataFrame(X).to_csv("X.csv", index=False)
    told = succeed("protocol", "m.miser", "X.csv", "--out", "p.png")
    assert "first, of all: feature 0 (1)" in told
    assert "€10" in told
    assert Path("p.png").exists()


def test_a_model_without_a_unit(model):
    told = succeed("inspect", model)
    assert re.search("cost of a prediction  ", told)
    assert "price alone" in told


# As a program


def program(*arguments: str):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.subprocess
def test_as_a_program(here):
    done = program(
        "-m",
        "greedymiser",
        "costs-template",
        "regression.csv",
        "--target",
        "price",
        "--out",
        "c.toml",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert Path("c.toml").exists()
    done = program("-m", "greedymiser", "inspect", "c.toml")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: 'c.toml' is not a model of greedymiser: ")


@pytest.mark.subprocess
def test_a_terminal_that_knows_no_umlauts_loses_nothing(here, table, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    table[["age", "dear"]].set_axis(["größe", "日本"], axis=1).assign(preis=table["price"]).to_csv(
        "data.csv", index=False
    )
    Path("c.csv").write_text("feature,cost\ngröße,1\n日本,2\n", encoding="utf-8")
    done = program("-m", "greedymiser", "curve", "data.csv", "--target", "preis", "--costs",
                   "c.csv", "--tradeoffs", "0.0", "--out", "übersicht", *FAST)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in Path("übersicht").iterdir()) == CURVE_FILES
    assert r"gr\xf6\xdfe" in done.stdout
    assert r"\u65e5\u672c" in done.stdout
    assert r"\xfcbersicht/curve.csv" in done.stdout
    # What is read again is in UTF-8, wherever it goes.
    done = subprocess.run(
        [sys.executable, "-m", "greedymiser", "costs-template", "data.csv"],
        capture_output=True,
        check=True,
    )
    Path("shown.toml").write_bytes(done.stdout)
    assert read_costs("shown.toml").costs.feature_names == ["größe", "日本", "preis"]


@pytest.mark.subprocess
def test_a_reader_who_has_seen_enough(here):
    """As head: nothing is said, and the work is done all the same."""
    reader, writer = os.pipe()
    os.close(reader)
    arguments = ["fit", *REGRESSION, "--tradeoff", "0", "--out", "m.miser", *FAST]
    with os.fdopen(writer, "w") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "greedymiser", *arguments],
            stdout=stdout, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (141, "")
    assert load("m.miser").features_used_


@pytest.mark.subprocess
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["inspect", "m.miser"], ["--help"]])
def test_a_full_disk_behind_stdout(model, arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "greedymiser", *arguments],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    said = "Error: cannot write to the standard output: no space left on device\n"
    assert done.stderr.lower() == said.lower()


@pytest.mark.subprocess
@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
def test_closed_streams(model):
    for streams in (">&-", ">&- 2>&-", "<&- >&- 2>&-"):
        command = shlex.join([sys.executable, "-m", "greedymiser", "inspect", str(model)])
        done = subprocess.run(
            ["sh", "-c", f"{command} {streams}"], capture_output=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_files_that_cannot_be_written(here, model):
    for arguments in (["predict", model, "regression.csv"], ["costs-template", "regression.csv"]):
        Path("full.csv").unlink(missing_ok=True)
        Path("full.csv").symlink_to("/dev/full")
        said = complain(
            *arguments, "--out", "full.csv", *(["--force"] if len(arguments) < 3 else [])
        )
        assert said == "no space left on device: 'full.csv'"
    # That a model cannot be written is known before it is trained.
    said = complain("fit", *REGRESSION, "--out", "/dev/full", "--max-iter", "1000000")
    assert said == "cannot save a model as '/dev/full': it is not a regular file"
    Path("out/report.html").mkdir(parents=True)
    said = complain("curve", *REGRESSION, "--out", "out", "--max-iter", "1000000")
    assert said == "cannot save a curve as 'out/report.html': it is a folder"


WATCH = """
import sys
from greedymiser.__main__ import main
try:
    main()
finally:
    print([name for name in sys.modules if name.partition(".")[0] in ("sklearn", "matplotlib")])
"""


@pytest.mark.subprocess
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_to_predict_nothing_of_training_is_imported(here, model, suffix):
    done = program("-c", WATCH, "predict", str(model), f"regression.{suffix}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("[]\n")
    assert done.stdout.count("\n") == 402
    assert program("-c", WATCH, "inspect", str(model)).stdout.endswith("[]\n")


@pytest.mark.subprocess
def test_to_be_helped_nothing_that_runs_models_is_imported(here):
    watch = WATCH.replace('"sklearn", "matplotlib"', '"numba", "scipy", "pandas", "sklearn"')
    for arguments in (["--version"], ["--help"], ["fit", "--help"], ["fit", "--no-such-option"]):
        assert program("-c", watch, *arguments).stdout.endswith("[]\n")
    assert "numba" in program("-c", watch, "inspect", "no.miser").stdout


@pytest.mark.subprocess
def test_without_the_extra():
    hidden = "import sys; sys.modules['typer'] = None"
    done = program("-c", f"{hidden}; from greedymiser.__main__ import main; main()")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert 'pip install "greedymiser[cli]"' in done.stderr


def test_the_program_is_registered():
    project = tomllib.loads((DOCS.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["scripts"] == {"greedymiser": "greedymiser.__main__:main"}


# The page about it


@pytest.mark.slow
def test_the_commands_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("greedymiser.cli.commands.demo.ROUNDS", 25)
    monkeypatch.setattr(
        "greedymiser.curve.frontier.MOST_FITS", (20, 20)
    )  # the page searches as long as users do
    blocks = re.findall(r"```sh\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    commands = "".join(blocks).replace("\\\n", " ").splitlines()
    told = {}
    for command in commands:
        name, *arguments = shlex.split(command)
        assert name == "greedymiser"
        result = greedymiser(*arguments)
        assert result.exit_code == 0, result.stderr
        told[arguments[0]] = result.stdout
    assert set(told) == {
        "demo",
        "costs-template",
        "curve",
        "fit",
        "inspect",
        "predict",
        "protocol",
        "score",
    }
    assert "first, of all: " in told["demo"]
    assert "asked of" in told["protocol"]
    assert "(recommended)" in told["demo"]
    assert "TSH" in told["demo"]
    assert unforeseen(Path("demo"), WRITES_DEMO) == []
    for folder in ("demo", "curve"):
        assert {*CURVE_FILES} <= {path.name for path in Path(folder).iterdir()}
    assert load("model.miser").cost_ <= 30
    assert len(pd.read_csv("predictions.csv")) == 3428


def test_the_cost_files_of_the_page(tmp_path):
    blocks = re.findall(r"```toml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        path = tmp_path / "costs.toml"
        path.write_text(block)
        assert read_costs(path).costs.n_features == 3


# -- what errors cost -----------------------------------------------------------------------------

ERRORS = "\n[errors.good]\nbad = 40\n[errors.bad]\ngood = 5\n"


def test_a_table_of_errors_makes_models_decide_by_it(here):
    Path("errors.toml").write_text(Path("costs.toml").read_text() + ERRORS)
    about = ["classification.csv", "--target", "kind", "--costs", "errors.toml"]
    succeed("fit", *about, "--out", "careful.miser", *FAST)
    model = load("careful.miser")
    assert model.error_costs.matrix.tolist() == [[0.0, 5.0], [40.0, 0.0]]
    assert model.about["score"] == "total_cost"
    assert "a row in all" in model.about["search"]
    # Not all that helps is worth its price: the least total buys less than the least loss.
    succeed("fit", *about, "--out", "loss.miser", "--scoring", "neg_log_loss", *FAST)
    assert model.cost_ < load("loss.miser").cost_
    told = succeed("score", "careful.miser", "classification.csv", "--target", "kind")
    assert "mean cost of its errors" in told
    assert "both together" in told
    only = ["classification.csv", "--target", "kind", "--scoring", "total_cost"]
    assert "accuracy" not in succeed("score", "careful.miser", *only)
    succeed("fit", *about[:3], "--costs", "costs.toml", "--out", "plain.miser", *FAST)
    assert "without a table [errors]" in complain("score", "plain.miser", *only)
    succeed("curve", *about, "--out", "curve", "--tradeoffs", "0,1e-2", *FAST)
    points = pd.read_csv(Path("curve") / "curve.csv")
    assert (points["score"] < 0).all()


def test_a_table_of_errors_has_to_be_about_the_classes(here):
    Path("errors.toml").write_text(
        Path("costs.toml").read_text() + ERRORS.replace("good]", "fine]")
    )
    about = ["classification.csv", "--target", "kind", "--costs", "errors.toml"]
    assert "a row for 'fine', which is no class of y" in complain("fit", *about, "--out", "m.miser")
    Path("errors.toml").write_text(Path("costs.toml").read_text() + ERRORS)
    about = ["regression.csv", "--target", "price", "--costs", "errors.toml"]
    assert "which is about classes" in complain("fit", *about, "--out", "m.miser")
