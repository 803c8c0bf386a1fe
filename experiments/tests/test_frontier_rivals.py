"""The comparison at budgets: the meter, the choice, the rivals, the traps, and what is written."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from greedymiser import CostModel, MiserRegressor, tradeoff_curve

pytest.importorskip("pandas", reason="tables need pandas: greedymiser[frames]")
pytest.importorskip("lightgbm", reason="the rivals need LightGBM: greedymiser[export]")

from experiments.frontier import measuring, rivals, tables
from experiments.frontier.problems import (
    PROBLEMS,
    Problem,
    ProblemRows,
    ProblemSplit,
    geometric_budgets,
    thirds,
    thyroid,
)
from experiments.frontier.rivals import Contender, Lightgbm, Subsets, chain, choose
from experiments.frontier.traps import TRAPS

# A blood draw for two tests, and a question.
COSTS = CostModel([1.0, 4.0, 7.0], groups={"draw": [1, 2]}, group_costs={"draw": 2.0})


@pytest.fixture
def problem():
    """Two classes: feature 2 tells them, feature 0 half, feature 1 nothing."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 600)
    X = rng.standard_normal((600, 3))
    X[:, 0] += y
    X[:, 2] += 3 * y
    whole = ProblemRows(X, y)
    return Problem(
        "made", COSTS, 2, "roc_auc", (1.0, 8.0, 14.0), lambda i: thirds(whole, True, i),
        rounds=10, max_splits=2,
    )  # fmt: skip


def test_a_knapsack_pays_for_what_is_shared_once():
    def bought(worth, budget):
        owned = rivals.knapsack(COSTS, np.array(worth), budget)
        return {feature for feature, needs in enumerate(COSTS.needs) if set(needs) <= owned}

    assert bought([1.0, 0.1, 3.0], 8.0) == {0, 1}
    assert bought([1.0, 0.1, 3.0], 9.0) == {2}
    assert bought([1.0, 0.1, 3.0], 10.0) == {0, 2}
    assert bought([1.0, 0.1, 3.0], 14.0) == {0, 1, 2}
    assert bought([1.0, 0.1, 3.0], 0.5) == set()


def test_coai_trains_on_what_its_knapsacks_hold(problem):
    found = rivals.coai(problem, problem.split(0))
    best = choose(found, 10.0)
    assert best.valid_score > 0.95
    assert best.cost <= 10.0


# -- problems ------------------------------------------------------------------------------------


def test_budgets_go_from_the_cheapest_purchase_to_everything():
    budgets = geometric_budgets(COSTS)
    assert len(budgets) == 6
    assert (budgets[0], budgets[-1]) == (1.0, 14.0)
    np.testing.assert_allclose(np.divide(budgets[1:], budgets[:-1]), 14 ** (1 / 5), atol=0.01)


@pytest.mark.parametrize(
    ("scoring", "n_classes", "theirs"),
    [
        ("roc_auc", 2, roc_auc_score),
        ("balanced_accuracy", 3, lambda y, raw: balanced_accuracy_score(y, raw.argmax(axis=1))),
        ("accuracy", 3, lambda y, raw: np.mean(y == raw.argmax(axis=1))),
    ],
)
def test_scores_are_those_of_scikit_learn(problem, scoring, n_classes, theirs):
    rng = np.random.default_rng(1)
    y = rng.integers(0, n_classes, 90)
    raw = rng.integers(0, 5, (90,) if n_classes == 2 else (90, n_classes)).astype(float)
    judged = replace(problem, scoring=scoring, n_classes=n_classes)
    assert judged.score(ProblemRows(np.empty((90, 0)), y), raw) == pytest.approx(theirs(y, raw))


def test_no_query_is_in_two_parts():
    qid = np.repeat(np.arange(40), 3)
    whole = ProblemRows(np.arange(120.0)[:, None], np.zeros(120), qid)
    split = thirds(whole, False, 0)
    parts = [set(part.qid) for part in (split.train, split.valid, split.test)]
    assert [len(part) for part in parts] == [20, 10, 10]
    assert set.union(*parts) == set(range(40))


def test_thyroid_keeps_its_test_rows_apart():
    problem = thyroid()
    a, b = problem.split(0), problem.split(1)
    assert (len(a.train.y), len(a.valid.y), len(a.test.y)) == (2829, 943, 3428)
    assert a.test is b.test
    assert not np.array_equal(a.train.X, b.train.X)


@pytest.mark.parametrize(
    ("name", "total", "cheapest", "rows"),
    [
        ("heart", 323.97, 1.0, 303),
        ("nhanes", 40.08, 5.1, 9535),
        ("mfeat", 649.0, 6.0, 2000),
        ("mq2008", 1501.0, 1.0, 15211),
        ("lambdarank", 10109.0, 1.0, 3773),
    ],
)
def test_problems_that_are_read(name, total, cheapest, rows):
    folder = os.environ.get("GREEDYMISER_DATA")
    if folder is None or not (Path(folder) / name).is_dir():
        pytest.skip(f"needs external data: set GREEDYMISER_DATA to a folder with {name}")
    problem = PROBLEMS[name](Path(folder))
    split = problem.split(0)
    assert (problem.budgets[0], problem.budgets[-1]) == (cheapest, pytest.approx(total))
    assert sum(len(part.y) for part in (split.train, split.valid, split.test)) == rows


# -- the choice and the meter --------------------------------------------------------------------


def test_the_best_affordable_score_is_chosen_and_of_equals_the_cheapest():
    offers = [Contender(cost, score, 1, np.asarray) for cost, score in
              [(0, 0.5), (3, 0.8), (2, 0.8), (9, 0.9)]]  # fmt: skip
    assert [choose(offers, budget).cost for budget in (1, 3, 8.9, 9)] == [0, 2, 2, 9]


def test_a_prefix_costs_what_its_trees_use(problem):
    learner = Lightgbm(problem, problem.split(0))
    booster = learner.fit(10, cegb_tradeoff=0.5, cegb_penalty_feature_coupled=[1.0, 6.0, 9.0])
    trees = booster.trees_to_dataframe()
    for rounds in (1, 4, 10):
        names = trees[trees["tree_index"] < rounds]["split_feature"].dropna()
        used = {int(name.removeprefix("Column_")) for name in names}
        assert learner.cost(booster, rounds) == COSTS.total(used)
    best = max(learner.candidates(booster), key=lambda one: one.valid_score)
    valid = learner.split.valid
    assert problem.score(valid, best.predict(valid.X)) == pytest.approx(best.valid_score)


def test_shared_costs_are_told_in_two_ways():
    assert rivals.full_prices(COSTS).tolist() == [1.0, 6.0, 9.0]
    assert rivals.divided_prices(COSTS).tolist() == [1.0, 5.0, 8.0]


def test_the_grid_goes_from_nothing_to_nearly_everything(problem):
    learner = Lightgbm(problem, problem.split(0))

    def fit(tradeoff, rounds=10):
        return learner.fit(
            rounds, cegb_tradeoff=tradeoff, cegb_penalty_feature_coupled=[1.0, 6.0, 9.0]
        )

    whole = learner.fit(10)
    grid = rivals.penalty_grid(learner, fit, whole)
    assert len(grid) == 12
    assert learner.cost(fit(grid[-1]), 10) == 0.0
    assert learner.cost(fit(grid[-1] / 2), 10) > 0.0
    assert learner.cost(fit(grid[0]), 10) >= 0.95 * learner.cost(whole, 10)


@pytest.mark.parametrize("method", ["cegb-full", "cegb-divided", "forward", "path"])
def test_every_method_stays_within_the_budget_and_finds_what_is_there(problem, method):
    split = problem.split(0)
    served = rivals.chosen(method, problem, split)
    assert [budget for budget, _ in served] == [1.0, 8.0, 14.0]
    assert all(one.cost <= budget for budget, one in served)
    scores = [rivals.tested(problem, split.test, one) for _, one in served]
    assert scores[-1] > 0.95  # by feature 2, which 8 does not buy
    assert max(scores[:2]) < 0.85


# -- forward search ------------------------------------------------------------------------------


class ByHand(Subsets):
    """Sets whose scores are written down: A for 1 tells little, B for 6 much, C for 3 nothing."""

    scores: dict[str, float] = {  # noqa: RUF012
        "": 0.5, "A": 0.6, "B": 0.8, "C": 0.5, "AB": 0.82, "AC": 0.6, "BC": 0.8, "ABC": 0.82,
    }  # fmt: skip

    def __init__(self):
        rows = ProblemRows(np.empty((0, 3)), np.empty(0))
        costs = CostModel([1.0, 6.0, 3.0])
        problem = Problem(
            "made", costs, 2, "roc_auc", (), lambda i: ProblemSplit("0", rows, rows, rows)
        )
        super().__init__(problem, problem.split(0))

    def _screen(self, owned):
        return self.scores["".join("ABC"[i] for i in sorted(owned))]


def words(sets):
    return ["".join("ABC"[i] for i in sorted(owned)) for owned in sets]


def test_a_chain_buys_what_gains_most_or_most_per_cost():
    assert words(chain(ByHand(), 100.0, per_cost=False)) == ["", "B", "AB", "ABC"]
    assert words(chain(ByHand(), 100.0, per_cost=True)) == ["", "A", "AB", "ABC"]


def test_a_chain_buys_only_what_it_can_afford():
    assert words(chain(ByHand(), 6.0, per_cost=False)) == ["", "B"]
    assert words(chain(ByHand(), 6.0, per_cost=True)) == ["", "A", "AC"]


def test_owning_resources_opens_all_features_that_need_no_others(problem):
    subsets = Subsets(replace(problem, costs=thyroid().costs), problem.split(0))
    names = subsets.problem.costs.resource_names
    owned = frozenset(names.index(name) for name in ("blood_draw", "TT4", "T4U"))
    opened = [subsets.problem.costs.feature_names[i] for i in subsets.columns(owned)]
    assert opened == ["TT4", "T4U", "FTI"]
    assert subsets.cost(owned) == pytest.approx(23.82)


# -- traps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRAPS)
def test_greed_falls_for_the_trap_and_the_right_set_is_far_better(name):
    trap = TRAPS[name](n=3000)
    (X, y), (X_val, y_val) = trap.split(0.6, 0.4)
    right = sorted(trap.right)
    assert trap.costs.total(right) <= trap.budget
    best = MiserRegressor(max_iter=40).fit(X[:, right], y).score(X_val[:, right], y_val)
    # Greed by the first gain, with and without prices: the path, and the hard budget alone.
    curve = tradeoff_curve(
        MiserRegressor(costs=trap.costs, max_iter=40), X, y, X_val=X_val, y_val=y_val,
        tradeoffs=6, scoring="r2", search="path",
    )  # fmt: skip
    budgeted = MiserRegressor(costs=trap.costs, max_iter=40, budget=trap.budget).fit(X, y)
    for greedy in (curve.best(budget=trap.budget), budgeted):
        assert greedy.cost_ <= trap.budget
        assert best > greedy.score(X_val, y_val) + 0.2


# -- the file and the tables ---------------------------------------------------------------------


def test_a_run_goes_on_where_the_file_ends(problem, tmp_path, monkeypatch):
    asked = []

    def constant(problem, split, n_jobs):
        asked.append(split.name)
        return [rivals.free(problem, split)]

    monkeypatch.setitem(rivals.METHODS, "forward", constant)
    path = tmp_path / "deep" / "results.csv"
    measuring.run([problem], ["forward"], 1, path, tell=str)
    assert asked == ["0"]
    measuring.run([problem], ["forward"], 5, path, tell=str)  # there are two splits
    assert asked == ["0", "1"]
    rows = measuring.read_measured(path)
    assert [(row["split"], row["budget"]) for row in rows[2:4]] == [("0", "14"), ("1", "1")]
    assert {row["test_score"] for row in rows} == {"0.500000"}
    measuring.run([problem], ["forward"], 1, path, redo=True, tell=str)
    assert asked == ["0", "1", "0"]
    assert len(measuring.read_measured(path)) == 6


def test_the_table_pairs_splits_and_shows_the_better_penalty(tmp_path):
    scores = {
        "path": [(0.5, 0.9), (0.7, 0.9)],
        "cegb-full": [(0.4, 0.6), (0.4, 0.6)],
        "cegb-divided": [(0.4, 0.8), (0.5, 0.8)],
    }
    rows = [
        dict.fromkeys(measuring.COLUMNS, "1")
        | {"data": "made", "scoring": "roc_auc", "method": method, "split": str(split)}
        | {"budget": str(budget), "test_score": str(score)}
        for method, by_split in scores.items()
        for split, by_budget in enumerate(by_split)
        for budget, score in zip((2, 10), by_budget, strict=True)
    ]
    path = tmp_path / "results.csv"
    measuring.write_measured(path, rows)
    loaded = tables.measured_rows(path)
    lines = tables.markdown(loaded).splitlines()
    assert lines[2] == "| budget | path | CEGB (divided prices) | path - CEGB |"
    # Differences 0.1 and 0.2: mean 0.15, standard error 0.05.
    assert lines[4] == "| 2 | 0.600 ± 0.100 | 0.450 ± 0.050 | +0.150 (+3.0 SE) |"
    assert lines[5] == "| 10 | 0.900 ± 0.000 | 0.800 ± 0.000 | +0.100 |"
    assert lines[6].startswith("| average | 0.750 ± 0.050 | 0.625 ± 0.025 |")
    tables.draw_panels(loaded, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000
