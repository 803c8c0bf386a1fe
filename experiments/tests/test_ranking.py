"""The ranking experiments: the meter, the choice, the data, and small runs from end to end."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.methods import (
    CANDIDATES,
    EARLY_EXIT,
    METHODS,
    MISER,
    ROWS,
    STAGED_EXIT,
    STAGEWISE,
    Documents,
    Fold,
    affordable,
    at_budgets,
    best_of_each,
    choices_by_budget,
    comparison,
    cost_to_reach,
    curves,
    mean_front,
    read_meter,
    reading,
    references,
    whole_curve,
)
from experiments.ranking import mq2008, study, yahoo
from experiments.ranking.figures import draw_features, draw_methods, save_figure
from experiments.workspace import Workspace
from greedymiser.cascades import EarlyExitRanker
from greedymiser.costs.cost_model import CostModel
from greedymiser.datasets import load_yahoo_costs
from greedymiser.estimators import MiserRanker, MiserRegressor
from greedymiser.losses.ndcg import ndcg_score

PRICES = [1.0, 1.0, 5.0, 5.0, 20.0, 100.0]


def make_part(
    rng: np.random.Generator, n_queries: int, first: int = 0, copies: float = 1.0
) -> Documents:
    """Queries of 6 to 12 documents, where the dear features tell more than the cheap ones."""
    qid = np.repeat(first + np.arange(n_queries), rng.integers(6, 13, n_queries))
    relevance = rng.standard_normal(len(qid))
    noise = rng.standard_normal((len(qid), len(PRICES)))
    X = relevance[:, None] + noise * np.array([3.0, 3.0, 1.5, 1.5, 0.8, 0.3])
    y = np.clip(np.round(relevance + 0.5), 0, 2)
    return Documents(X, y, qid, copies)


@pytest.fixture(scope="module")
def fold() -> Fold:
    rng = np.random.default_rng(0)
    parts = [make_part(rng, n, first, 10.0) for n, first in ((60, 0), (25, 100), (30, 200))]
    return Fold("1", *parts, CostModel(PRICES, tree_cost=0.5))


@pytest.fixture(scope="module")
def model(fold) -> MiserRanker:
    ranker = MiserRanker(
        costs=fold.costs, loss="squared_error", max_iter=15, tradeoff=1e-3, early_stopping=False
    )
    train = fold.train
    return ranker.fit(train.X, train.y, train.copies, qid=train.qid)


# The meter


def naive_exits(model: MiserRanker, part: Documents, costs: CostModel, slack: float, every: int):
    """Cost and exit of each document, recounted query by query as the paper writes it."""
    scores = list(model.staged_predict(part.X))
    exits = [*range(every, model.n_iter_, every), model.n_iter_]
    cost, left = np.zeros(len(part.y)), np.zeros(len(part.y), dtype=int)
    for query in np.unique(part.qid):
        inside = list(np.flatnonzero(part.qid == query))
        for i, rounds in enumerate(exits, start=1):
            used = model.truncate(rounds).features_used_
            bill = sum(PRICES[f] for f in used) + costs.tree_cost * rounds
            for document in inside:
                cost[document], left[document] = bill, i
            ranked = sorted((scores[rounds - 1][d] for d in inside), reverse=True)
            margin = (len(exits) - i) / (len(exits) - 1) * slack
            bar = ranked[4] if len(ranked) >= 5 else -np.inf
            inside = [
                d
                for d in inside
                if scores[rounds - 1][d] >= bar or scores[rounds - 1][d] > bar - margin
            ]
    return cost, left


@pytest.mark.parametrize("slack", [0.0, 0.05, 0.3, 5.0])
def test_the_meter_of_early_exits_is_a_naive_recount(fold, model, slack):
    part = fold.test
    hasty = EarlyExitRanker(model, threshold=slack, every=4).fit(part.X, part.y, qid=part.qid)
    cost, left = naive_exits(model, part, fold.costs, slack, every=4)
    found = read_meter(hasty, part)
    copies = [10 if label == 0 else 1 for label in part.y]
    replicated = np.repeat(cost, copies)
    assert found.cost == pytest.approx(replicated.mean(), rel=1e-12)
    assert hasty.predictor_.leaving_stages(part.X, part.qid).tolist() == (left - 1).tolist()
    # Who left earlier is ranked below; those who left together, by their scores.
    staged = list(model.staged_predict(part.X))
    exits = [4, 8, 12, 15]
    final = np.array([staged[exits[i - 1] - 1][d] for d, i in enumerate(left)])
    order = sorted(set(zip(left.tolist(), final.tolist(), strict=True)))
    ranks = [order.index(pair) for pair in zip(left.tolist(), final.tolist(), strict=True)]
    assert found.score == pytest.approx(ndcg_score(part.y, ranks, part.qid, k=5), abs=1e-12)


def test_the_meter_of_a_plain_model_is_its_cost(fold, model):
    found = read_meter(model, fold.test)
    bill = sum(PRICES[f] for f in model.features_used_) + 0.5 * model.n_iter_
    assert found.cost == pytest.approx(bill)
    assert found.score == model.score(fold.test.X, fold.test.y, qid=fold.test.qid)


def test_a_document_that_stands_for_ten_is_paid_for_ten_times_and_ranked_once():
    part = Documents(np.zeros((3, 1)), np.array([0.0, 2.0, 1.0]), np.zeros(3, dtype=np.int64), 10.0)
    found = reading(np.array([6.0, 60.0, 120.0]), np.array([0.1, 0.9, 0.5]), part)
    assert found.cost == pytest.approx((10 * 6 + 60 + 120) / 12)
    assert found.score == 1.0


def test_a_part_without_copies_weighs_nothing():
    part = Documents(np.zeros((2, 1)), np.array([0.0, 2.0]), np.zeros(2, dtype=np.int64))
    assert part.copies is None
    assert reading(np.array([1.0, 3.0]), np.array([0.0, 1.0]), part).cost == 2.0


def test_first_rows_takes_whole_queries():
    qid = np.repeat(np.arange(4), [3, 2, 4, 1])
    part = Documents(np.arange(10.0)[:, None], np.zeros(10), qid, 10.0)
    for most, kept in ((10, 10), (9, 9), (8, 5), (5, 5), (4, 3), (1, 3)):
        short = part.first_rows(most)
        assert (len(short.X), len(short.y), len(short.qid)) == (kept, kept, kept)
    assert part.first_rows(5).irrelevant_copies == 10.0


def test_feature_subsets_keep_what_is_cheap(fold):
    kept = affordable(fold.costs, 5.0)
    assert kept.tolist() == [0, 1, 2, 3]
    cheap = fold.columns(kept)
    assert np.array_equal(cheap.test.X, fold.test.X[:, :4])
    assert cheap.test.irrelevant_copies == 10.0
    assert cheap.costs.total(range(4), n_trees=2) == 1 + 1 + 5 + 5 + 2 * 0.5


# The choice


def candidates(*rows, method=MISER, fold="1") -> pd.DataFrame:
    """Hand-made candidates: valid_cost, valid_score, cost, score."""
    table = pd.DataFrame(rows, columns=["valid_cost", "valid_score", "cost", "score"])
    others = {"tradeoff": 0.0, "parameter": 0.0, "n_trees": 1, "n_features": 1}
    return table.assign(method=method, fold=fold, **others)[CANDIDATES]


def test_a_front_has_a_row_for_every_change_of_mind():
    table = candidates(
        (5.0, 0.6, 5.5, 0.50),
        (0.0, 0.1, 0.0, 0.10),
        (3.0, 0.6, 3.5, 0.55),  # as good as the first, and cheaper
        (4.0, 0.5, 4.5, 0.99),  # great on test data, but validation does not know
        (9.0, 0.9, 9.5, 0.70),
        (9.0, 0.8, 9.0, 0.99),
        (1.0, np.nan, 1.0, 0.99),
    )
    chosen = choices_by_budget(table)
    assert chosen["budget"].tolist() == [0.0, 3.0, 9.0]
    assert chosen["cost"].tolist() == [0.0, 3.5, 9.5]
    assert chosen["score"].tolist() == [0.10, 0.55, 0.70]


def test_cost_to_reach_first_and_to_stay():
    curve = choices_by_budget(
        candidates(
            (1.0, 0.1, 1.1, 0.30), (2.0, 0.2, 2.1, 0.80), (3.0, 0.3, 3.1, 0.60),
            (4.0, 0.4, 4.1, 0.75), (5.0, 0.5, 5.1, 0.90),
        )
    )  # fmt: skip
    assert cost_to_reach(curve, 0.7) == 4.1
    assert cost_to_reach(curve, 0.7, to_stay=False) == 2.1
    assert cost_to_reach(curve, 0.2) == 1.1
    assert np.isnan(cost_to_reach(curve, 0.95))
    assert np.isnan(cost_to_reach(curve, 0.95, to_stay=False))
    # What falls below the target at the end does not stay.
    assert np.isnan(cost_to_reach(curve.iloc[:3], 0.7))
    assert cost_to_reach(curve.iloc[:3], 0.7, to_stay=False) == 2.1


def two_folds() -> pd.DataFrame:
    return pd.concat(
        [
            candidates((10.0, 0.5, 10.0, 0.8), (5.0, 0.4, 5.0, 0.5), method=STAGEWISE, fold="1"),
            candidates((20.0, 0.5, 20.0, 0.6), (15.0, 0.6, 15.0, 0.5), method=STAGEWISE, fold="2"),
            candidates((1.0, 0.2, 1.0, 0.1), (2.0, 0.4, 2.0, 0.8), method=MISER, fold="1"),
            candidates((3.0, 0.4, 3.0, 0.4), (6.0, 0.6, 9.0, 0.6), method=MISER, fold="2"),
        ],
        ignore_index=True,
    )


def test_stagewise_is_taken_at_its_best_validation_round():
    assert references(two_folds()) == {"1": (10.0, 0.8), "2": (15.0, 0.5)}


def test_comparison_counts_folds_and_shares():
    rows = comparison(two_folds()).set_index("method")
    assert rows.index.tolist() == [STAGEWISE, MISER]
    assert rows.loc[STAGEWISE, "cost"] == pytest.approx(1.0)
    assert rows.loc[STAGEWISE, ["folds", "first_folds", "n_folds"]].tolist() == [2, 2, 2]
    assert rows.loc[MISER, "cost"] == pytest.approx(np.mean([2 / 10, 9 / 15]))
    assert rows.loc[MISER, "cost_sd"] == pytest.approx(np.std([2 / 10, 9 / 15]))
    assert rows.loc[MISER, "best"] == pytest.approx(np.mean([1.0, 0.6 / 0.5]))
    assert rows.loc[MISER, "paper"] == 0.1
    # Mean over folds at budgets 0.2 and 0.4: 0.6 of 0.65 and 0.7.
    assert rows.loc[MISER, "mean_curve_cost"] == pytest.approx(np.mean([0.2, 0.6]))


def test_comparison_says_who_never_gets_there():
    table = two_folds()
    table.loc[(table["method"] == MISER) & (table["fold"] == "2"), "score"] = 0.1
    rows = comparison(table).set_index("method")
    assert rows.loc[MISER, "folds"] == 1
    assert rows.loc[MISER, "cost"] == pytest.approx(0.2)
    assert np.isnan(rows.loc[MISER, "mean_curve_cost"])


def test_mean_front_is_the_naive_mean():
    table, whole = two_folds(), references(two_folds())
    rows = table[table["method"] == MISER]
    curve = mean_front(rows, whole)
    assert curve["budget"].tolist() == pytest.approx([0.2, 0.4])
    for _, row in curve.iterrows():
        picks = []
        for name, of_fold in rows.groupby("fold"):
            within = of_fold[of_fold["valid_cost"] <= row["budget"] * whole[name].cost + 1e-9]
            picks.append(within.sort_values("valid_score").iloc[-1])
        assert row["score"] == pytest.approx(np.mean([pick["score"] for pick in picks]))
        gains = [pick["score"] - whole[pick["fold"]].score for pick in picks]
        assert row["gain"] == pytest.approx(np.mean(gains))
        assert row["gain_sd"] == pytest.approx(np.std(gains))


def test_curves_are_the_fronts_of_all_methods():
    rows = curves(two_folds())
    assert rows["method"].tolist() == [STAGEWISE] * 3 + [MISER] * 4
    assert rows["fold"].tolist() == ["1", "1", "2", "1", "1", "2", "2"]
    assert rows["cost"].tolist() == [5.0, 10.0, 15.0, 1.0, 2.0, 3.0, 9.0]


def test_at_budgets_has_no_row_where_nothing_can_be_had():
    rows = at_budgets(two_folds(), (0.1, 0.2, 1.0))
    assert rows[rows["method"] == MISER]["budget"].tolist() == [0.2, 1.0]
    assert rows[rows["method"] == STAGEWISE]["budget"].tolist() == [1.0]
    assert rows[rows["method"] == STAGEWISE]["gain"].tolist() == [0.0]


def test_best_of_each_takes_the_cheaper_of_equals():
    table = candidates((2.0, 0.5, 2.0, 0.1), (1.0, 0.5, 1.0, 0.2), (0.5, 0.4, 0.5, 0.9))
    assert best_of_each(table, ["method", "fold"])["score"].tolist() == [0.2]


# The figures


def test_the_methods_are_drawn_by_their_test_cost_and_score():
    budgets = at_budgets(two_folds(), (0.1, 0.2, 0.4, 1.0))
    ax = draw_methods(budgets)
    drawn = {line.get_label(): line.get_xydata().tolist() for line in ax.get_lines()}
    rows = budgets[budgets["method"] == MISER].drop_duplicates(["cost", "score"])
    assert drawn[MISER] == rows[["cost", "score"]].to_numpy().tolist()
    assert drawn[STAGEWISE] == [[1.0, pytest.approx(0.65)]]
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == [STAGEWISE, MISER]
    (target,) = [line for line in ax.get_lines() if line.get_linestyle() == ":"]
    assert target.get_ydata()[0] == pytest.approx(0.99 * 0.65)
    assert "stage-wise" in ax.get_xlabel()


def test_shares_bought_are_drawn_as_means_over_folds():
    rows = [
        {"price": price, "tradeoff": t, "fold": f, "n_features": n, "share": share}
        for price, n, shares in ((1.0, 4, (1.0, 0.5)), (20.0, 2, (0.5, 0.0)))
        for f, shift in (("1", 0.0), ("2", 0.25))
        for t, share in zip((0.0, 1e-5), np.array(shares) - shift, strict=True)
    ]
    ax = draw_features(pd.DataFrame(rows))
    drawn = {line.get_label(): line.get_ydata().tolist() for line in ax.get_lines()}
    assert drawn == {"1 (4)": [0.875, 0.375], "20 (2)": [0.375, -0.125]}
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "1e-05"]


def test_a_saved_figure_says_what_the_data_is(tmp_path):
    ax = draw_methods(at_budgets(two_folds(), (0.2, 1.0)))
    path = save_figure(ax, "SYNTHETIC data", Workspace(tmp_path, {}), "methods")
    assert path == tmp_path / "methods.png"
    assert ax.get_title(loc="left") == "SYNTHETIC data"


# MQ2008


def write_letor(path: Path, part: Documents) -> None:
    lines = [
        f"{int(label)} qid:{query} "
        + " ".join(f"{i}:{value:.6f}" for i, value in enumerate(row, start=1))
        + " #docid = GX000-00-0000000 inc = 1 prob = 0.1"
        for row, label, query in zip(part.X, part.y, part.qid, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n")


def write_costs(path: Path, prices=PRICES, column=mq2008.COST_COLUMN) -> None:
    rows = [f"{i},tf:{i},body,{price:g}" for i, price in enumerate(prices, start=1)]
    path.write_text("\n".join([f"index,name,group,{column}", *rows]) + "\n")


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    """A folder like LETOR's, with data of our own; not to be changed."""
    rng = np.random.default_rng(1)
    folder = tmp_path_factory.mktemp("data") / "mq2008"
    folder.mkdir()
    for i in range(1, 6):
        write_letor(folder / f"S{i}.txt", make_part(rng, 20, 1000 * i))
    write_costs(folder / "features.csv")
    return folder


@pytest.fixture
def letor(original, tmp_path) -> Path:
    """A copy of it that a test may damage."""
    return shutil.copytree(original, tmp_path / "mq2008")


@pytest.fixture(scope="module")
def finished(original, tmp_path_factory):
    """A small run that was not disturbed: its folder, its results, and what it told."""
    told: list[tuple[str, int, int]] = []
    out = tmp_path_factory.mktemp("finished")
    workspace = Workspace(out, {}, lambda *what: told.append(what))
    return out, mq2008.run(original.parent, workspace, small=True), told


def check_results(results, out: Path) -> None:
    """What any run leaves behind."""
    assert set(results.tables) == {"points", "curves", "comparison", "budgets", "features"}
    for name in results.tables:
        written = pd.read_csv(out / f"{name}.csv")
        assert len(written) == len(results.tables[name])
        assert written["data"].notna().all()
    assert set(results.figures) == {"traces", "methods", "features"}
    for path in results.figures.values():
        assert path.read_bytes().startswith(b"\x89PNG")
    for rows in (results.tables["points"], results.tables["curves"]):
        assert list(rows.columns) == CANDIDATES
        assert rows["score"].between(0, 1).all()
        assert (rows["cost"] >= 0).all()
    assert set(results.tables["curves"]["method"]) == set(METHODS)
    compared = results.tables["comparison"]
    assert compared["method"].tolist() == [*METHODS, *METHODS]
    assert compared["share"].tolist() == [0.99] * len(METHODS) + [0.95] * len(METHODS)
    shares = results.tables["features"]
    assert shares["share"].between(0, 1).all()
    # Without prices all groups are open; the dearest shrink as λ grows.
    first, last = shares["tradeoff"].min(), shares["tradeoff"].max()
    dearest = shares[shares["price"] == shares["price"].max()].groupby("tradeoff")["share"].mean()
    assert dearest[first] >= dearest[last]


def test_mq2008_small_from_end_to_end(finished):
    out, results, told = finished
    check_results(results, out)
    assert set(results.tables["points"]["fold"].astype(str)) == {"1", "2"}
    assert [line[1] for line in told] == list(range(len(told)))
    assert told[-1][1] == told[-1][2] == len(told) - 1


def never(*_, **__):
    raise AssertionError("made anew")


def test_a_second_run_makes_nothing_anew(finished, letor, tmp_path, monkeypatch):
    out, first, _ = finished
    shutil.copytree(out, tmp_path / "out")
    monkeypatch.setattr(study, "_curve", never)
    monkeypatch.setattr(study.FoldRun, "_make_exits", never)
    monkeypatch.setattr(study.FoldRun, "_make_cronus", never)
    second = mq2008.run(letor, Workspace(tmp_path / "out", {}), small=True)
    for name in first.tables:
        pd.testing.assert_frame_equal(first.tables[name], second.tables[name])
    # Other data is other work.
    write_costs(letor / "features.csv", [2.0, *PRICES[1:]])
    with pytest.raises(AssertionError, match="made anew"):
        mq2008.run(letor, Workspace(tmp_path / "out", {}), small=True)


def test_one_method_alone_is_run_beside_the_tables_that_are_there(
    finished, original, tmp_path, monkeypatch
):
    out, whole, _ = finished
    shutil.copytree(out, tmp_path / "out", ignore=shutil.ignore_patterns("cache"))
    monkeypatch.setattr(study.FoldRun, "_make_exits", never)
    monkeypatch.setattr(study.FoldRun, "_trained", never)
    space = Workspace(tmp_path / "out", {})
    again = mq2008.run(original, space, small=True, only=ROWS)
    for name, table in again.tables.items():
        told, first = (
            frame.astype({"fold": str}) if "fold" in frame else frame
            for frame in (table, whole.tables[name])
        )
        order = [column for column in ("method", "fold", "share", "budget") if column in told]
        told, first = (
            frame.sort_values([*order, "cost"], ignore_index=True) for frame in (told, first)
        )
        pd.testing.assert_frame_equal(told, first)
    assert set(again.figures) == {"methods"}
    with pytest.raises(ValueError, match=r"only must be one of .* got 'miser'"):
        mq2008.run(original, space, small=True, only=MISER)


def test_a_killed_run_goes_on_where_it_was(finished, original, tmp_path, monkeypatch):
    out, whole, _ = finished
    # As if it had been killed while it wrote its third step of early exits.
    shutil.copytree(out, tmp_path / "out")
    steps = sorted((tmp_path / "out" / "cache" / "fold-2").glob("exits-*.csv"))
    steps[-1].write_bytes(steps[-1].read_bytes()[:40])
    made: list[float] = []
    make = study.FoldRun._make_exits

    def count(self, tradeoff):
        made.append(tradeoff)
        return make(self, tradeoff)

    monkeypatch.setattr(study.FoldRun, "_make_exits", count)
    monkeypatch.setattr(study.FoldRun, "_make_cronus", never)
    resumed = mq2008.run(original, Workspace(tmp_path / "out", {}), small=True)
    assert len(made) == 1
    for name in whole.tables:
        pd.testing.assert_frame_equal(whole.tables[name], resumed.tables[name])


def test_traces_and_sweeps_agree_with_the_meter(fold, tmp_path):
    scale = replace(mq2008.SMALL, max_iter=25, tradeoffs=(1e-3,), cascaded=(), cronus_tradeoffs=())
    run = study.FoldRun(fold, scale, Workspace(tmp_path, {**fold_settings(scale)}))
    for tradeoff in run.tradeoffs:
        chosen = best_of_each(run.plain(tradeoff), ["method"]).iloc[-1]
        model = run.model(tradeoff)
        for part, prefix in ((fold.valid, "valid_"), (fold.test, "")):
            found = read_meter(model, part)
            assert chosen[f"{prefix}cost"] == pytest.approx(found.cost)
            assert chosen[f"{prefix}score"] == pytest.approx(found.score)
        assert run.features_used(tradeoff).nonzero()[0].tolist() == model.features_used_
        assert chosen["n_features"] == len(model.features_used_)
        rows = run.exits(tradeoff)
        swept = rows[rows["n_trees"] == model.n_iter_].drop_duplicates("parameter")
        for _, row in swept.iterrows():
            hasty = EarlyExitRanker(model, threshold=row["parameter"], every=study.EVERY)
            hasty.fit(fold.valid.X, fold.valid.y, qid=fold.valid.qid)
            assert read_meter(hasty, fold.test) == pytest.approx((row["cost"], row["score"]))
            assert read_meter(hasty, fold.valid) == pytest.approx(
                (row["valid_cost"], row["valid_score"])
            )


def test_staged_misers_buy_little_before_the_first_exit(fold, tmp_path):
    scale = replace(mq2008.SMALL, staged_first=(1e-3,), staged_then=(0.0,), staged_lengths=(5, 10))
    run = study.FoldRun(fold, scale, Workspace(tmp_path, {**fold_settings(scale)}))
    model = run._staged_miser(1e-3, 0.0)
    first = model.truncate(study.EVERY)
    assert 0 < first.cost_ < model.cost_
    rows = run.staged()
    assert set(rows["method"]) == {STAGED_EXIT}
    assert set(rows["n_trees"]) == {study.EVERY + 5, study.EVERY + 10}
    # Nobody pays less than the first rounds, nor more than all of them.
    assert rows["cost"].between(first.cost_, model.cost_).all()
    assert rows["cost"].min() < rows["cost"].max()


def fold_settings(scale) -> dict:
    names = (
        "staged_first",
        "staged_then",
        "staged_lengths",
        "max_iter",
        "n_slacks",
        "cronus_tradeoffs",
        "cronus_rows",
    )
    told = {name: getattr(scale, name) for name in names}
    return {"version": "0", "data": {}} | study.FIXED | told


def test_what_is_made_over_stagewise_counts_for_both(fold, tmp_path):
    scale = replace(mq2008.SMALL, tradeoffs=(1e-3,), cascaded=())
    run = study.FoldRun(fold, scale, Workspace(tmp_path, fold_settings(scale)))
    assert set(run.plain(0.0)["method"]) == {STAGEWISE, MISER}
    assert set(run.plain(1e-3)["method"]) == {MISER}
    assert set(run.exits(0.0)["method"]) == {EARLY_EXIT, "miser + early exit"}
    assert set(run.subset(5.0)["method"]) == {"feature subsets"}
    assert run.subset(5.0)["n_features"].max() <= 4


def test_folds_turn_as_the_readme_says():
    rng = np.random.default_rng(2)
    parts = [make_part(rng, 3, 100 * i) for i in range(5)]
    folds = mq2008.make_folds(parts, CostModel(PRICES))
    hundreds = [
        [sorted({int(q) // 100 + 1 for q in part.qid}) for part in (f.train, f.valid, f.test)]
        for f in folds
    ]
    assert hundreds == [
        [[1, 2, 3], [4], [5]],
        [[2, 3, 4], [5], [1]],
        [[3, 4, 5], [1], [2]],
        [[1, 4, 5], [2], [3]],
        [[1, 2, 5], [3], [4]],
    ]


def test_mq2008_says_what_is_missing(letor, tmp_path):
    workspace = Workspace(tmp_path / "out", {})
    with pytest.raises(ValueError, match="mq2008 needs data"):
        mq2008.run(None, workspace)
    with pytest.raises(FileNotFoundError, match=r"no S1\.txt in"):
        mq2008.run(tmp_path / "nowhere", workspace)
    (letor / "S4.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"S4\.txt"):
        mq2008.run(letor, workspace, small=True)
    (letor / "features.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"features\.csv"):
        mq2008.run(letor, workspace, small=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no columns"),
        ("index,name,cost\n1,tf,3\n", "has no columns"),
        (f"index,name,{mq2008.COST_COLUMN}\n1,tf,cheap\n", "cannot read the costs"),
        (f"index,name,{mq2008.COST_COLUMN}\n1,tf,1\n3,idf,1\n", "does not count from 1 to 2"),
    ],
)
def test_bad_cost_tables_are_refused(letor, tmp_path, text, words):
    (letor / "features.csv").write_text(text)
    with pytest.raises(ValueError, match=words):
        mq2008.run(letor, Workspace(tmp_path / "out", {}), small=True)


def test_corrupt_letor_files_are_refused(letor, tmp_path):
    (letor / "S2.txt").write_text("0 qid:1 1:0.5 2:oops\n")
    with pytest.raises(ValueError, match=r"S2\.txt"):
        mq2008.run(letor, Workspace(tmp_path / "out", {}), small=True)
    write_costs(letor / "features.csv", PRICES[:3])  # fewer costs than features
    with pytest.raises(ValueError, match=r"S1\.txt"):
        mq2008.run(letor, Workspace(tmp_path / "out", {}), small=True)


def test_real_mq2008(tmp_path, monkeypatch):
    data = os.environ.get("GREEDYMISER_DATA")
    if not data:
        pytest.skip("needs external data: set GREEDYMISER_DATA to its folder")
    if not (Path(data) / "mq2008" / "S1.txt").is_file():
        pytest.skip("needs mq2008/S1.txt in the folder GREEDYMISER_DATA")
    costs = mq2008.read_derived_costs(Path(data) / "mq2008" / "features.csv")
    assert (len(costs), costs.sum()) == (46, 1501)
    results = mq2008.run(Path(data), Workspace(tmp_path, {}), small=True)
    check_results(results, tmp_path)
    whole = results.tables["points"].query("method == @STAGEWISE")
    assert whole["score"].between(0.6, 0.9).all()


# Yahoo


def test_the_stand_in_has_the_shape_of_the_set():
    fold = yahoo.StandIn(sizes=(6000, 2000, 3000)).make()
    prices = fold.costs.prices()
    counts = {1: 123, 5: 31, 20: 191, 50: 125, 100: 16, 150: 32, 200: 1}
    assert {int(p): int((prices == p).sum()) for p in np.unique(prices)} == counts
    assert np.array_equal(prices, load_yahoo_costs())
    assert fold.costs.tree_cost == 1.0
    for part, size in ((fold.train, 6000), (fold.valid, 2000), (fold.test, 3000)):
        assert part.X.shape[1] == 519
        assert abs(len(part.y) - size) < 34
        assert part.X.min() >= 0
        assert part.X.max() <= 1
        assert part.irrelevant_copies == 10.0
        _, documents = np.unique(part.qid, return_counts=True)
        assert 22 < documents.mean() < 26
        assert documents.max() <= 33
    everyone = np.concatenate([fold.train.y, fold.valid.y, fold.test.y])
    assert np.bincount(everyone.astype(int)) / len(everyone) == pytest.approx(
        yahoo.LABEL_SHARES, abs=1e-3
    )
    queries = [set(part.qid.tolist()) for part in (fold.train, fold.valid, fold.test)]
    assert not queries[0] & queries[1]
    assert not queries[1] & queries[2]


def test_the_stand_in_is_always_the_same():
    recipe = yahoo.StandIn(sizes=(300, 100, 100))
    one, two, other = recipe.make(), recipe.make(), replace(recipe, seed=1).make()
    assert np.array_equal(one.train.X, two.train.X)
    assert np.array_equal(one.test.y, two.test.y)
    assert not np.array_equal(one.train.X[:50], other.train.X[:50])


def test_what_costs_more_tells_more_in_the_stand_in():
    fold = yahoo.StandIn(sizes=(4000, 500, 500)).make()
    prices, y = fold.costs.prices(), fold.train.y
    told = np.array([abs(np.corrcoef(column, y)[0, 1]) for column in fold.train.X.T])
    best = {price: told[prices == price].max() for price in (1, 20, 150, 200)}
    assert best[1] < best[20] < best[150] < best[200]
    assert (told < 0.04).mean() > 0.2  # some show nothing
    assert np.corrcoef(fold.train.X[:, prices == 200].ravel(), y)[0, 1] > 0.4


def test_yahoo_small_stand_in_from_end_to_end(tmp_path):
    results = yahoo.run(None, Workspace(tmp_path, {}), small=True)
    check_results(results, tmp_path)
    for name in results.tables:
        assert pd.read_csv(tmp_path / f"{name}.csv")["data"].str.contains("SYNTHETIC").all()


def write_yahoo(folder: Path) -> None:
    """Files like Set 1: 700 features, of which 519 are there."""
    absent = np.isnan(load_yahoo_costs(keep_absent=True))
    fold = yahoo.StandIn(sizes=(500, 200, 200)).make()
    for file, part in zip(yahoo.FILES, (fold.train, fold.valid, fold.test), strict=True):
        X = np.zeros((len(part.y), 700))
        X[:, ~absent] = part.X
        write_letor(folder / file, Documents(X, part.y, part.qid))


def test_the_original_files_are_read_where_they_are(tmp_path):
    write_yahoo(tmp_path)
    fold = yahoo.read_fold(tmp_path)
    made = yahoo.StandIn(sizes=(500, 200, 200)).make()
    assert fold.train.X.dtype == np.float32
    assert np.allclose(fold.train.X, made.train.X, atol=1e-5)
    assert np.array_equal(fold.test.y, made.test.y)
    assert np.array_equal(fold.valid.qid, made.valid.qid)
    assert fold.train.irrelevant_copies == 10.0
    results = yahoo.run(tmp_path, Workspace(tmp_path / "out", {}), small=True)
    check_results(results, tmp_path / "out")
    written = pd.read_csv(tmp_path / "out" / "points.csv")["data"]
    assert not written.str.contains("SYNTHETIC").any()


def test_yahoo_says_what_is_missing(tmp_path):
    (tmp_path / "set1.train.txt").write_text("1 qid:1 1:0.5\n")
    with pytest.raises(FileNotFoundError, match=r"set1\.valid\.txt"):
        yahoo.run(tmp_path, Workspace(tmp_path / "out", {}))
    for file in yahoo.FILES:
        (tmp_path / file).write_text("1 1:0.5\n")
    with pytest.raises(ValueError, match="needs a qid"):
        yahoo.run(tmp_path, Workspace(tmp_path / "out", {}), small=True)


def test_full_scales_follow_the_paper():
    assert yahoo.REAL.max_iter == 3000
    assert yahoo.REAL.highest_prices == (1.0, 20.0, 100.0, 200.0)
    assert (study.LEARNING_RATE, study.DEPTH, study.EVERY) == (0.1, 4, 10)
    assert yahoo.STAND_IN.tradeoffs == yahoo.REAL.tradeoffs


# Interruptions


def test_half_a_curve_is_no_finished_step():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))

    def interrupt(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    def curve(callback=None):
        return whole_curve(
            MiserRegressor([1, 2], max_iter=2, n_jobs=1), X, X[:, 0], X_val=X, y_val=X[:, 0],
            tradeoffs=[0.0, 1e-3, 1e-2], callback=callback,
        )  # fmt: skip

    assert len(curve().models) == 3
    with pytest.raises(KeyboardInterrupt, match="2 of 3 trade-offs done"):
        curve(interrupt)
