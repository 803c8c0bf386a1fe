"""Algorithm 1, with a grower and rows that follow a script."""

import io
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from greedymiser.costs.cost_model import CostModel, Ledger
from greedymiser.losses import AbsoluteError, Loss, MultinomialLogLoss
from greedymiser.model.trees import NODE_DTYPE, Tree
from greedymiser.training.accounts import ModelAccount
from greedymiser.training.boosting import (
    Action,
    History,
    Patience,
    Progress,
    ProgressBar,
    Validation,
    boost,
)
from greedymiser.training.grower import Bought, Growth


def growth(value=1.0, is_leaf=False, bought=(), bounds=(-np.inf, np.inf)):
    """A tree with two leaves of some value, or one leaf."""
    nodes = np.zeros(1 if is_leaf else 3, dtype=NODE_DTYPE)
    nodes["left"], nodes["feature"], nodes["value"] = -1, -1, value
    if not is_leaf:
        nodes["left"][0], nodes["feature"][0] = 1, 0
    leaves = np.array([0] if is_leaf else [1, 2])
    tree = Tree(nodes, np.empty((0, 4), dtype=np.uint64))
    return Growth(tree, leaves, np.tile(bounds, (len(leaves), 1)), list(bought))


class ScriptedRows:
    """Rows that say losses one after the other and remember what they were told."""

    def __init__(self, losses=None, best=()):
        self.losses = iter(losses) if losses is not None else iter(range(1000, 0, -1))
        self.best = best
        self.told = []

    def add_leaves(self, leaves, values):
        self.told.append(values.tolist())

    def add_tree(self, tree, output):
        self.told.append((tree, output))

    def best_constants(self, leaves):
        return np.array(self.best)

    def loss(self):
        return next(self.losses)


class ScriptedGrower:
    """Grows what the script says, and two plain leaves for ever after."""

    def __init__(self, script=(), rows=None, budget=None, costs=None):
        self.script = list(script)
        self.rows = rows or ScriptedRows()
        self.params = SimpleNamespace(learning_rate=0.5)
        self.account = ModelAccount(Ledger(costs or CostModel([1.0, 2.0])), budget)
        self.used = np.array([True, False])
        self.asked = []

    def grow(self, output, n_trees, round_):
        self.asked.append((output, n_trees))
        grown = self.script.pop(0) if self.script else growth()
        if isinstance(grown, BaseException):
            raise grown
        return grown


def run(grower, loss=None, validation=None, patience=None, callbacks=(), first=0, max_iter=20):
    history = History()
    boost(
        grower,
        loss or Loss(),
        validation,
        history,
        first=first,
        max_iter=max_iter,
        patience=Patience(patience),
        callbacks=callbacks,
    )
    return history


def scoring(scores, rows=None, hear=None):
    scores = iter(scores)
    return Validation(rows or ScriptedRows(), lambda: next(scores), hear)


# -- rounds ---------------------------------------------------------------------------------------


def test_a_round_has_a_tree_for_each_output_and_the_budget_is_told_how_many_there_are():
    grower = ScriptedGrower()
    history = run(grower, MultinomialLogLoss(3), max_iter=2)
    assert grower.asked == [(0, 3), (1, 3), (2, 3), (0, 6), (1, 6), (2, 6)]
    assert [len(trees) for trees in history.rounds] == [3, 3]
    assert history.stopped == "max_iter"


def test_a_continued_model_has_the_rounds_that_it_had():
    grower = ScriptedGrower([growth(bought=[Bought(0, 1, ("b",), 2.0, 2.0, 0.5)])])
    history = run(grower, first=7, max_iter=9)
    assert grower.asked == [(0, 8), (0, 9)]
    assert len(history.rounds) == 2
    assert [line.iteration for line in history.purchases] == [7]
    assert run(ScriptedGrower(), first=9, max_iter=9).rounds == []


def test_the_trace_is_what_the_rows_say_after_each_round():
    history = run(ScriptedGrower(rows=ScriptedRows([0.5, 0.25, 0.125])), max_iter=3)
    assert history.train_loss == [0.5, 0.25, 0.125]
    assert history.validation_score == []


def test_leaves_are_added_to_the_raw_predictions():
    rows = ScriptedRows()
    run(ScriptedGrower([growth(0.25)], rows), max_iter=1)
    assert rows.told == [[0.25, 0.25]]


def test_leaves_that_the_loss_renews_are_bounded_and_shrunk():
    rows = ScriptedRows(best=[-4.0, 4.0])
    history = run(
        ScriptedGrower([growth(9.0, bounds=(-1.0, 6.0))], rows), AbsoluteError(), max_iter=1
    )
    assert rows.told == [[-0.5, 2.0]]  # half of what is left within the bounds
    assert history.rounds[0][0].nodes["value"].tolist() == [9.0, -0.5, 2.0]


def test_purchases_are_by_name_where_there_are_names():
    line = Bought(2, 1, ("blood",), 2.0, 3.0, 0.5)
    named = CostModel({"age": 1.0, "blood": 2.0})
    for costs, feature in [(None, 1), (named, "blood")]:
        history = run(ScriptedGrower([growth(bought=[line])], costs=costs), max_iter=1)
        (found,) = history.purchases
        assert (found.iteration, found.output, found.depth) == (0, 0, 2)
        assert (found.feature, found.resources) == (feature, ("blood",))
        assert (found.price, found.spent, found.gain) == (2.0, 3.0, 0.5)


# -- why there are no more ------------------------------------------------------------------------


def test_nothing_pays_when_no_output_has_a_split():
    barren = growth(is_leaf=True)
    history = run(ScriptedGrower([growth(), barren]))
    assert history.stopped == "nothing pays"
    assert len(history.rounds) == len(history.train_loss) == 1
    # One class of two that still learns something is a reason to go on.
    script = [barren, growth(), barren, barren]
    assert len(run(ScriptedGrower(script), MultinomialLogLoss(2)).rounds) == 1


def test_the_budget_is_to_blame_for_what_was_out_of_reach():
    grower = ScriptedGrower([growth(is_leaf=True)])
    grower.account.is_held_back = True
    assert run(grower).stopped == "budget"


def test_no_tree_is_grown_that_the_budget_has_no_room_for():
    costs = CostModel([0.0], tree_cost=0.25)
    grower = ScriptedGrower(budget=1.0, costs=costs)
    history = run(grower)
    assert (len(history.rounds), history.stopped) == (4, "budget")
    assert len(grower.asked) == 4


# -- patience -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "patience", "n_rounds"),
    [
        ([1, 2, 3, 3, 3, 9], 2, 5),
        ([1, 2, 3, 2, 4, 4, 4, 9], 2, 7),
        ([1, 2, 3, 2, 4, 4, 4, 9], 1, 4),
        ([5, 4, 3, 9], 3, 4),  # patience is not over before the score is better again
        ([5, 4, 3, 2, 9], 3, 4),
        ([1, 1 + 1e-8, 1 + 2e-8, 9], 2, 3),  # less than the tolerance is no improvement
        ([1e6, 1e6 + 0.01, 1e6 + 0.02, 9e6], 2, 3),  # and the tolerance is relative
        ([1, 1 + 1e-6, 1 + 2e-6, 1 + 3e-6], 1, 4),
    ],
)
def test_boosting_stops_when_the_score_has_not_improved(scores, patience, n_rounds):
    history = run(ScriptedGrower(), None, scoring(scores), patience, max_iter=len(scores))
    assert len(history.rounds) == n_rounds
    assert history.stopped == ("early stopping" if n_rounds < len(scores) else "max_iter")


def test_without_validation_data_the_training_loss_decides():
    rows = ScriptedRows([3.0, 2.0, 2.0, 2.0, 1.0])
    history = run(ScriptedGrower(rows=rows), patience=2, max_iter=5)
    assert (history.train_loss, history.stopped) == ([3.0, 2.0, 2.0, 2.0], "early stopping")


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30))
def test_without_patience_all_rounds_are_run(scores):
    history = run(ScriptedGrower(), None, scoring(scores), None, max_iter=len(scores))
    assert history.validation_score == scores
    assert history.stopped == "max_iter"


# -- validation -----------------------------------------------------------------------------------


def test_validation_rows_meet_every_tree_before_they_are_scored():
    order = []
    rows = ScriptedRows()
    rows.add_tree = lambda tree, output: order.append(("rows", output))
    watched = Validation(rows, lambda: order.append("score") or 1.0, lambda _: order.append("hear"))
    run(ScriptedGrower(), MultinomialLogLoss(2), watched, max_iter=2)
    one_round = [("rows", 0), "hear", ("rows", 1), "hear", "score"]
    assert order == one_round * 2


def test_nobody_has_to_hear():
    rows = ScriptedRows()
    history = run(ScriptedGrower(), None, scoring([1.0], rows), max_iter=1)
    assert rows.told == [(history.rounds[0][0], 0)]


# -- interruptions --------------------------------------------------------------------------------


def interrupt_at(call, function):
    """The function, interrupted when it is called for the so-many-th time."""
    calls = iter(range(call))

    def interrupted(*arguments):
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return function(*arguments)

    return interrupted


@pytest.mark.parametrize("where", ["grow", "add_leaves", "loss", "score", "add_tree", "callback"])
def test_an_interruption_leaves_whole_rounds(where):
    line = Bought(0, 0, ("a",), 1.0, 1.0, 0.5)
    grower = ScriptedGrower([growth(bought=[line]) for _ in range(9)])
    watched = scoring(range(9))
    callbacks = []
    if where == "grow":
        grower.grow = interrupt_at(2, grower.grow)
    elif where == "callback":
        callbacks.append(interrupt_at(1, lambda _: None))
    elif where == "score":
        watched = Validation(watched.rows, interrupt_at(2, watched.score))
    else:
        owner = watched.rows if where == "add_tree" else grower.rows
        setattr(owner, where, interrupt_at(2, getattr(owner, where)))
    history = History()
    with pytest.raises(KeyboardInterrupt):
        boost(
            grower, Loss(), watched, history,
            first=0, max_iter=9, patience=Patience(), callbacks=callbacks,
        )  # fmt: skip
    parts = (history.rounds, history.train_loss, history.validation_score, history.purchases)
    assert [len(part) for part in parts] == [2, 2, 2, 2]


# -- callbacks ------------------------------------------------------------------------------------


def test_callbacks_are_told_how_far_it_is():
    heard = []
    costs = CostModel([1.0, 2.0], tree_cost=0.25)
    grower = ScriptedGrower(rows=ScriptedRows([0.5, 0.25]), costs=costs)
    grower.account.ledger.buy(1)
    run(grower, None, scoring([7.0, 8.0]), callbacks=[heard.append], first=3, max_iter=5)
    assert [(p.n_iter, p.max_iter, p.done) for p in heard] == [(4, 5, 1), (5, 5, 2)]
    assert [(p.train_loss, p.validation_score) for p in heard] == [(0.5, 7.0), (0.25, 8.0)]
    assert [(p.cost, p.n_features) for p in heard] == [(3.0, 1), (3.25, 1)]
    assert 0 <= heard[0].elapsed <= heard[1].elapsed


def test_all_callbacks_hear_of_the_round_that_one_of_them_stops():
    heard = []
    stop = [lambda _: Action.STOP, heard.append, lambda _: Action.CONTINUE]
    history = run(ScriptedGrower(), callbacks=stop)
    assert (len(history.rounds), len(heard), history.stopped) == (1, 1, "callback")


def progress(n_iter, elapsed, score=None):
    return Progress(n_iter, 4, n_iter, 0.5, score, 12.5, 3, elapsed)


def test_the_bar_tells_rounds_scores_and_costs():
    stream = io.StringIO()
    bar = ProgressBar(stream)
    for n_iter in range(1, 5):
        assert bar(progress(n_iter, 0.1 * n_iter, 0.75)) is Action.CONTINUE
    bar.close()
    last = stream.getvalue().split("\r")[-1]
    assert "4/4" in last
    assert "loss 0.5, validation 0.75, cost 12.5, features 3" in last
    assert last.endswith("\n")


def test_without_validation_the_bar_is_silent_about_it():
    stream = io.StringIO()
    bar = ProgressBar(stream)
    bar(progress(1, 0.0))
    bar.close()
    assert "1/4" in stream.getvalue()
    assert "validation" not in stream.getvalue()


def test_a_bar_that_never_began_is_not_ended():
    stream = io.StringIO()
    ProgressBar(stream).close()
    assert stream.getvalue() == ""
