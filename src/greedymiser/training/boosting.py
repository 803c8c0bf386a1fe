"""Algorithm 1: boosting, round by round, with callbacks, validation scores and early stopping."""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TextIO

import numpy as np

from greedymiser._core.progress import Bar
from greedymiser.costs.cost_model import Purchase
from greedymiser.engines.interface import PlacedRows
from greedymiser.engines.sampling import ALGORITHM_1, EVERYTHING, Round, RoundRule
from greedymiser.losses import Loss
from greedymiser.model.trees import Tree
from greedymiser.training.grower import Grower, Growth


class Action(enum.Enum):
    """What a callback wants to happen next.

    Examples
    --------
    >>> import numpy as np
    >>> from greedymiser import Action, MiserRegressor
    >>> def until_five(progress):
    ...     return Action.STOP if progress.n_iter == 5 else Action.CONTINUE
    >>> X = np.arange(100.0).reshape(50, 2)
    >>> MiserRegressor(min_samples_leaf=5).fit(X, X[:, 0], callbacks=[until_five]).n_iter_
    5
    """

    CONTINUE = "continue"
    STOP = "stop"


@dataclass(frozen=True)
class Progress:
    """The state of training after a round, as callbacks receive it.

    Examples
    --------
    >>> import numpy as np
    >>> from greedymiser import MiserRegressor
    >>> X = np.arange(100.0).reshape(50, 2)
    >>> model = MiserRegressor(max_iter=2, min_samples_leaf=5)
    >>> _ = model.fit(X, X[:, 0], callbacks=[lambda p: print(p.n_iter, "of", p.max_iter, p.cost)])
    1 of 2 1.0
    2 of 2 1.0
    """

    # Rounds of the model so far, the most there will be, and how many of them this fit has done.
    n_iter: int
    max_iter: int
    done: int
    train_loss: float
    # Higher is better; None without validation data.
    validation_score: float | None
    # What the model costs now (eq. 3), and how many features it uses.
    cost: float
    n_features: int
    elapsed: float


class Callback(Protocol):
    """Called after each round. All callbacks run, even when one of them says stop."""

    def __call__(self, progress: Progress) -> Action | None: ...


@dataclass(frozen=True)
class Validation:
    """Rows that the model does not learn from, and their score."""

    rows: PlacedRows
    # Score of the rows at their present raw predictions; higher is better.
    score: Callable[[], float]
    # Called with every tree before it is scored.
    hear: Callable[[Tree], None] | None = None
    # Mean cost of the rows with so many trees, where each row pays for itself.
    cost: Callable[[int], float] | None = None
    # Whether what a prediction costs is taken off the score, which is in the same unit.
    pays: bool = False

    def total(self, bill: float) -> float:
        """The score; less the mean bill of the rows, where both are amounts of money."""
        return self.score() - bill if self.pays else self.score()

    def add_tree(self, tree: Tree, output: int) -> None:
        """Let the rows meet a new tree."""
        self.rows.add_tree(tree, output)
        if self.hear is not None:
            self.hear(tree)


@dataclass
class History:
    """What boosting left behind."""

    rounds: list[list[Tree]] = field(default_factory=list)
    purchases: list[Purchase] = field(default_factory=list)
    train_loss: list[float] = field(default_factory=list)
    validation_score: list[float] = field(default_factory=list)
    # What the model costs; and its mean over the validation rows, where each row pays for itself.
    train_cost: list[float] = field(default_factory=list)
    validation_cost: list[float] = field(default_factory=list)
    # Why there are no more rounds.
    stopped: str = "max_iter"


@dataclass(frozen=True)
class Patience:
    """Stop when ``rounds`` rounds have not added ``tol`` to the score; None goes on to the end."""

    rounds: int | None = None
    tol: float = 1e-7


@dataclass(frozen=True)
class Record:
    """What is written down of every round.

    Where hundreds of models are compared, what nobody looks at is not computed: NaN is in its
    place.
    """

    train_loss: bool = True
    # Validation rows are scored from this round on.
    scored_from: int = 0


WHOLE_RECORD = Record()


def boost(
    grower: Grower,
    loss: Loss,
    validation: Validation | None,
    history: History,
    *,
    first: int,
    max_iter: int,
    patience: Patience,
    rounds: RoundRule = ALGORITHM_1,
    callbacks: Sequence[Callback] = (),
    record: Record = WHOLE_RECORD,
) -> None:
    """Greedy Miser (Algorithm 1). Appends to ``history``, whole rounds only.

    A round in which nothing pays is tried again with everything in play, and boosting ends if
    nothing pays then. An interruption leaves in ``history`` the rounds that were finished.
    """
    start = time.perf_counter()
    round_ = EVERYTHING
    for t in range(first, max_iter):
        n_trees = (t + 1) * loss.n_outputs
        if not grower.account.is_within(n_trees):
            history.stopped = "budget"
            return
        if rounds.differ:
            round_ = rounds.round(t)
        growths = _grow_round(grower, loss, n_trees, round_)
        if not growths and round_ != EVERYTHING:
            growths = _grow_round(grower, loss, n_trees, EVERYTHING)
        if not growths:
            history.stopped = "budget" if grower.account.is_held_back else "nothing pays"
            return
        if not grower.account.is_within(n_trees):  # rows that were not drawn are asked for more
            history.stopped = "budget"
            return
        _write_down(history, grower, validation, growths, t, record)
        if callbacks:
            progress = _progress(history, grower, t + 1, max_iter, time.perf_counter() - start)
            # A list, not a generator: every callback hears of every round.
            if Action.STOP in [callback(progress) for callback in callbacks]:
                history.stopped = "callback"
                return
        if _out_of_patience(history, patience):
            history.stopped = "early stopping"
            return


def _progress(
    history: History, grower: Grower, n_iter: int, max_iter: int, elapsed: float
) -> Progress:
    return Progress(
        n_iter=n_iter,
        max_iter=max_iter,
        done=len(history.rounds),
        train_loss=history.train_loss[-1],
        validation_score=history.validation_score[-1] if history.validation_score else None,
        cost=grower.account.total(n_iter * len(history.rounds[-1])),
        n_features=int(np.count_nonzero(grower.used)),
        elapsed=elapsed,
    )


def _grow_round(grower: Grower, loss: Loss, n_trees: int, round_: Round) -> list[Growth]:
    """One tree per output; none if no tree has a split, and then all is as it was before."""
    growths: list[Growth] = []
    for k in range(loss.n_outputs):
        # h_t <- CART on eq. 5; the features that it uses are paid for from here on (phi <- 0).
        growth = grower.grow(k, n_trees, round_)
        values = growth.tree.nodes["value"]
        if loss.renews_leaves:
            best = grower.rows.best_constants(growth.leaves)
            lower, upper = growth.bounds.T
            values[growth.leaves] = grower.params.learning_rate * np.clip(best, lower, upper)
        # H <- H + eta h_t.
        if not growth.is_leaf and round_.rows is None:
            grower.rows.add_leaves(growth.leaves, values[growth.leaves])
        elif not growth.is_leaf:
            grower.rows.add_tree(growth.tree, k)
        growths.append(growth)
    if all(growth.is_leaf for growth in growths):
        return []
    for k, growth in enumerate(growths):
        if growth.is_leaf:
            grower.rows.add_tree(growth.tree, k)
    grower.account.settle_round(round_.rows is None)
    return growths


def _write_down(
    history: History,
    grower: Grower,
    validation: Validation | None,
    growths: Sequence[Growth],
    iteration: int,
    record: Record,
) -> None:
    """Write a finished round down, scores first: an interruption must not leave half a round."""
    train_loss = grower.rows.loss() if record.train_loss else math.nan
    n_trees = (iteration + 1) * len(growths)
    if validation is not None:
        for k, growth in enumerate(growths):
            validation.add_tree(growth.tree, k)
        bill = grower.account.total(n_trees)
        if validation.cost is not None:
            bill = validation.cost(n_trees)
            history.validation_cost.append(bill)
        is_scored = iteration + 1 >= record.scored_from
        history.validation_score.append(validation.total(bill) if is_scored else math.nan)
    history.train_cost.append(grower.account.total(n_trees))
    history.train_loss.append(train_loss)
    names = grower.account.costs.feature_names
    for k, growth in enumerate(growths):
        for line in growth.bought:
            feature = line.feature if names is None else names[line.feature]
            terms = (line.resources, line.price, line.spent, line.gain)
            history.purchases.append(Purchase(iteration, k, line.depth, feature, *terms))
    history.rounds.append([growth.tree for growth in growths])


def _out_of_patience(history: History, patience: Patience) -> bool:
    if patience.rounds is None:
        return False
    scores = history.validation_score or [-loss for loss in history.train_loss]
    if len(scores) <= patience.rounds:
        return False
    # Relative to the score itself: the unit of y must not matter.
    enough = patience.tol * abs(scores[0])
    return max(scores[-patience.rounds :]) <= max(scores[: -patience.rounds]) + enough


class ProgressBar:
    """A callback that shows a bar, with what the model has reached and costs."""

    def __init__(self, file: TextIO | None = None):
        self._file = file
        self._bar: Bar | None = None

    def __call__(self, progress: Progress) -> Action:
        if self._bar is None:
            self._bar = Bar(progress.max_iter, "rounds", file=self._file)
        score = progress.validation_score
        self._bar.move_to(
            progress.n_iter,
            f"loss {progress.train_loss:.5g}"
            + (f", validation {score:.5g}" if score is not None else "")
            + f", cost {progress.cost:g}, features {progress.n_features}",
        )
        return Action.CONTINUE

    def close(self) -> None:
        """End the line."""
        if self._bar is not None:
            self._bar.close()
