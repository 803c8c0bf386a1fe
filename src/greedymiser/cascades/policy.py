"""Who is asked for what: backward induction over sets of resources.

A *state* is a set of resources that a row has paid for, with a model that may use all of it. In
each state there is one decision: stop, buy a larger set for all rows, or for those that a gate
sends on. It is learned from the most expensive state to the cheapest: going on is worth what the
*rest of the policy* makes of a row. What a row may meet is then a chain of states.

The mechanism does not know what the value of stopping is: a loss, or money. It must be that of rows
that the state's model has not seen; less is better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from greedymiser.cascades.gates import GateInputs, ScoreCells, cross_fitted, estimates_of, fit_gate
from greedymiser.model.gating import Gate

Floats = NDArray[np.float64]

# A gate that sends fewer rows on, or holds fewer back, has learned from too few.
LEAST_ON = 5
# Larger sets that are looked at from each state: those that promise most.
MOST_FOLLOWING = 3


@dataclass(frozen=True, eq=False)
class States:
    """What is known, of rows that no model has seen, about stopping in each of some states."""

    # (n_states,): what each whole set costs.
    prices: Floats
    # (n_states, n_states): whether set i is a part of set j, which may follow it.
    within: NDArray[np.bool_]
    # (n_states, n): the value of stopping there.
    values: Floats
    # What is known of the rows in a state.
    inputs: Callable[[int], GateInputs]
    # (n,): parts of the rows; a gate that judges some of them was learned from the others.
    folds: NDArray[np.intp]
    weight: Floats | None = None
    # (n_states,): what entering a state costs beside its set, such as trees; None for nothing.
    entry: Floats | None = None
    # What ``cells`` has found, by state.
    _cells: dict[int, ScoreCells | None] = field(init=False, default_factory=dict, repr=False)

    def cells(self, state: int) -> ScoreCells | None:
        """The rows by what the model of a state says of them; None where it says nothing."""
        if state not in self._cells:
            self._cells[state] = ScoreCells.of(self.inputs(state), self.weight, self.folds)
        return self._cells[state]

    def part(self, chosen: Sequence[int]) -> States:
        """Some of the states, which are numbered anew."""
        rows = list(chosen)
        return replace(
            self,
            prices=self.prices[rows],
            within=self.within[np.ix_(rows, rows)],
            values=self.values[rows],
            inputs=lambda state: self.inputs(rows[state]),
            entry=None if self.entry is None else self.entry[rows],
        )

    def of_rows(self, rows: NDArray[np.intp]) -> States:
        """The same states, as some of the rows know them."""
        return replace(
            self,
            values=self.values[:, rows],
            inputs=lambda state: self.inputs(state).of_rows(rows),
            folds=self.folds[rows],
            weight=None if self.weight is None else self.weight[rows],
        )

    def price(self, state: int, larger: int) -> float:
        """What it costs to go from a state to one that follows it."""
        return float(self.prices[larger] - self.prices[state]) + self.entered(larger)

    def entered(self, state: int) -> float:
        """What it costs to enter a state whose set is paid."""
        return 0.0 if self.entry is None else float(self.entry[state])

    def is_usable(self, *states: int) -> bool:
        """Whether the values of all these states are numbers."""
        return bool(np.isfinite(self.values[list(states)]).all())

    @property
    def n_rows(self) -> int:
        return self.values.shape[1]

    def mean(self, values: NDArray[np.floating | np.bool_]) -> float:
        """Mean over rows."""
        return float(np.average(values, weights=self.weight))


@dataclass(frozen=True, eq=False)
class PolicyStage:
    """A state in which rows may stop, and who goes on."""

    state: int
    # None in the last state.
    gate: Gate | None = None
    # The kind of the gate.
    kind: str = ""


@dataclass(frozen=True, eq=False)
class Policy:
    """A chain of states, and what it makes of the rows that it was learned from."""

    stages: tuple[PolicyStage, ...]
    # Per row, by gates that have not seen it: the value of stopping where it stops and the price
    # paid beyond the set of the start, in terms of the value; that price, with what entering the
    # states of the chain costs, the first as well; and the state in which it stops.
    value: Floats
    price: Floats
    stopped: NDArray[np.intp]

    def stops(
        self, inputs: Callable[[int], GateInputs], rows: NDArray[np.intp]
    ) -> NDArray[np.intp]:
        """The state in which each row stops, also of rows that the policy was not learned from."""
        stopped, on = np.empty(len(rows), dtype=np.intp), np.arange(len(rows))
        for stage in self.stages:
            stopped[on] = stage.state
            if stage.gate is not None:
                on = on[estimates_of(stage.gate, inputs(stage.state), rows[on]) > 0]
        return stopped


@dataclass(frozen=True, eq=False)
class _Rest:
    """What becomes of rows that have paid for the set of a state, and not yet for entering it."""

    value: Floats
    price: Floats
    stopped: NDArray[np.intp]
    stages: tuple[PolicyStage, ...]


def induce(
    states: States,
    tradeoff: float,
    *,
    kinds: Sequence[str] = ("score", "paid", "band"),
    margin: float = 0.5,
    start: int = 0,
) -> Policy:
    """The best chain of states from a start on, learned backwards from the most expensive one.

    Parameters
    ----------
    states : States
    tradeoff : float
        What a unit of cost must bring, in terms of the value.
    kinds : sequence of str
        Kinds of gates that are tried, the simplest first; see ``gates.fit_gate``.
    margin : float
        The simpler decision stays unless the other is better by so many paired standard errors.
        Stopping is simpler than buying for all, and that simpler than a gate.
    start : int
        The state that rows begin in.

    Examples
    --------
    Half of the rows are known without paying; asking the others is worth 1 each, and costs .2:

    >>> known = np.repeat([0.0, 1.0], 50)
    >>> def inputs(state):
    ...     return GateInputs(known[:, None], (0,), n_features=1, n_columns=2)
    >>> states = States(
    ...     prices=np.array([0.0, 0.2]), within=np.array([[False, True], [False, False]]),
    ...     values=np.array([known, np.zeros(100)]), inputs=inputs, folds=np.arange(100) % 5)
    >>> policy = induce(states, 1.0, kinds=["tree"])
    >>> [stage.kind for stage in policy.stages], round(float(policy.value.mean()), 3)
    (['tree', ''], 0.1)
    """
    rest: dict[int, _Rest] = {}
    for state in _reachable(states, start):
        rest[state] = _decided(states, tradeoff, state, rest, kinds, margin)
    policy = rest[start]
    return Policy(policy.stages, policy.value, policy.price, policy.stopped)


def _reachable(states: States, start: int) -> list[int]:
    """States that can be come to, each behind all that may follow it."""
    reached, waiting = {start}, [start]
    while waiting:
        for state in np.flatnonzero(states.within[waiting.pop()]).tolist():
            if state not in reached and states.is_usable(state):
                reached.add(state)
                waiting.append(state)
    # A part of a set costs no more than it, and fewer sets are a part of it.
    size = states.within.sum(axis=0)
    order = sorted(reached, key=lambda s: (-states.prices[s], -size[s], s))
    order.remove(start)
    return [*order, start]


def _decided(
    states: States,
    tradeoff: float,
    state: int,
    rest: dict[int, _Rest],
    kinds: Sequence[str],
    margin: float,
) -> _Rest:
    """The best decision in a state, given those in all larger ones."""
    n, entered = states.n_rows, states.entered(state)
    stop = states.values[state] + tradeoff * entered
    best = _Rest(
        stop,
        np.full(n, entered),
        np.full(n, state, dtype=np.intp),
        (PolicyStage(state),),
    )
    following = [s for s in rest if states.within[state, s]]
    offers = []
    for larger in following:
        price = float(states.prices[larger] - states.prices[state])
        offers.append((larger, price, rest[larger].value + tradeoff * price))
    # For all: the best of them, if it is better than to stop. Nobody enters this state then.
    offers.sort(key=lambda offer: states.mean(offer[2]))
    for larger, price, value in offers[:1]:
        if _is_better(states, value, best.value, margin):
            beyond = rest[larger]
            best = _Rest(value, price + beyond.price, beyond.stopped, beyond.stages)
    offers = [(s, price + entered, value + tradeoff * entered) for s, price, value in offers]
    # By a gate: those first that would be worth most if one knew who gains.
    offers.sort(key=lambda offer: states.mean(np.minimum(offer[2], stop)))
    for rank, (larger, price, value) in enumerate(offers[:MOST_FOLLOWING]):
        if states.mean(np.minimum(value, stop)) >= states.mean(best.value):
            break  # not even if one knew
        # Of those that promise less, only the simplest gate is tried.
        for kind in kinds if rank == 0 else kinds[:1]:
            gated = _gated(states, state, stop, price, value, rest[larger], kind)
            if gated is not None and _is_better(states, gated.value, best.value, margin):
                best = gated
    return best


def _gated(
    states: States,
    state: int,
    stop: Floats,
    price: float,
    value: Floats,
    beyond: _Rest,
    kind: str,
) -> _Rest | None:
    """Rows go on by a gate; None where it would send nobody, or everybody."""
    inputs, target = states.inputs(state), stop - value
    on = cross_fitted(kind, inputs, target, states.weight, states.folds) > 0
    if not LEAST_ON <= np.count_nonzero(on) <= states.n_rows - LEAST_ON:
        return None
    gate = fit_gate(kind, inputs, target, states.weight)
    if gate is None or gate.ensemble.n_trees == 0:
        return None
    return _Rest(
        np.where(on, value, stop),
        np.where(on, price + beyond.price, states.entered(state)),
        np.where(on, beyond.stopped, state),
        (PolicyStage(state, gate, kind), *beyond.stages),
    )


def _is_better(states: States, value: Floats, than: Floats, margin: float) -> bool:
    """Whether the mean is lower by more than so many paired standard errors."""
    gain = than - value
    mean = states.mean(gain)
    if not mean > 0:
        return False
    return mean > margin * paired_error(gain, states.weight)


def paired_error(gain: Floats, weight: Floats | None = None) -> float:
    """Standard error of a weighted mean of differences."""
    if weight is None:
        return float(np.std(gain) / np.sqrt(len(gain)))
    share = weight / weight.sum()
    mean = float(share @ gain)
    return float(np.sqrt(share**2 @ (gain - mean) ** 2))
