"""Policies: what is decided in each state."""

from __future__ import annotations

import numpy as np
import pytest

from greedymiser.cascades.gates import GateInputs
from greedymiser.cascades.policy import States, induce, paired_error

N = 200
KNOWN = np.repeat([0.0, 1.0], N // 2)


def states_of(prices, values, within=None, **more):
    """States in which the same single column is known."""
    n = len(prices)
    if within is None:
        within = np.triu(np.ones((n, n), dtype=bool), 1)

    def inputs(state):
        return GateInputs(KNOWN[:, None], (0,), n_features=1, n_columns=2)

    return States(
        prices=np.array(prices, dtype=np.float64),
        within=np.array(within),
        values=np.array(values, dtype=np.float64),
        inputs=inputs,
        folds=np.arange(N) % 5,
        **more,
    )


def test_what_is_not_worth_its_price_is_not_bought():
    policy = induce(states_of([0, 2], [np.full(N, 1.0), np.zeros(N)]), 1.0)
    assert [stage.state for stage in policy.stages] == [0]
    assert policy.value.tolist() == [1.0] * N
    assert policy.price.tolist() == [0.0] * N


def test_what_all_gain_from_is_bought_for_all():
    policy = induce(states_of([0, 2], [np.full(N, 1.0), np.zeros(N)]), 0.25)
    assert [(stage.state, stage.gate) for stage in policy.stages] == [(1, None)]
    assert policy.value.tolist() == [0.5] * N
    assert policy.price.tolist() == [2.0] * N


def test_what_some_gain_from_is_bought_by_a_gate():
    policy = induce(states_of([0, 2], [KNOWN, np.zeros(N)]), 0.25, kinds=["tree"])
    assert [stage.state for stage in policy.stages] == [0, 1]
    assert policy.stopped.tolist() == KNOWN.astype(int).tolist()
    assert policy.price.tolist() == (2.0 * KNOWN).tolist()
    assert policy.value.tolist() == (0.5 * KNOWN).tolist()


def test_what_comes_later_counts_at_the_first_gate():
    """The second state is worth nothing by itself; it leads to the third."""
    values = [KNOWN, KNOWN, np.zeros(N)]
    within = [[False, True, False], [False, False, True], [False, False, False]]
    policy = induce(states_of([0, 1, 2], values, within), 0.25, kinds=["tree"])
    assert set(policy.stopped[KNOWN == 1]) == {2}
    assert set(policy.stopped[KNOWN == 0]) == {0}
    assert policy.price.tolist() == (2.0 * KNOWN).tolist()


def test_a_gain_within_the_noise_changes_nothing():
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(N)
    better = noise - noise.mean() - 0.01
    states = states_of([0, 0], [np.zeros(N), better])
    assert [stage.state for stage in induce(states, 1.0, kinds=[]).stages] == [0]
    assert [stage.state for stage in induce(states, 1.0, kinds=[], margin=0.0).stages] == [1]


def test_a_state_whose_value_is_no_number_is_left_out():
    policy = induce(states_of([0, 1, 2], [np.ones(N), np.full(N, np.nan), np.zeros(N)]), 0.1)
    assert [stage.state for stage in policy.stages] == [2]


def test_entering_a_state_may_have_a_price():
    states = states_of([0, 2], [np.ones(N), np.zeros(N)], entry=np.array([0.0, 3.0]))
    assert states.price(0, 1) == 5.0
    assert [stage.state for stage in induce(states, 0.25).stages] == [0]
    assert [stage.state for stage in induce(states, 0.15).stages] == [1]


def test_only_states_of_the_chain_are_entered():
    """What is skipped for all has no trees to pay for, neither at the start nor in between."""
    entry = np.array([4.0, 3.0, 1.0])
    values = [np.full(N, 9.0), np.full(N, 8.0), np.zeros(N)]
    policy = induce(states_of([0, 1, 2], values, entry=entry), 0.1)
    assert [stage.state for stage in policy.stages] == [2]
    assert policy.price.tolist() == [3.0] * N
    chain = [[False, True, False], [False, False, True], [False, False, False]]
    values = [9.0 * KNOWN, 8.0 * KNOWN + 1.0, np.zeros(N)]
    entry = np.array([1.0, 3.0, 1.0])
    policy = induce(states_of([0, 1, 4], values, chain, entry=entry), 0.1, kinds=["tree"])
    assert [stage.state for stage in policy.stages] == [0, 2]
    assert policy.price.tolist() == (1.0 + 5.0 * KNOWN).tolist()


def test_rows_that_a_policy_has_not_seen_walk_through_it():
    """The second state is for those of 1 or 2, the third for those of 2."""
    column = np.arange(N) % 3.0

    def inputs(state):
        return GateInputs(column[:, None], (0,), n_features=1, n_columns=2)

    values = [column, np.maximum(column - 1.0, 0.0), np.zeros(N)]
    folds = np.arange(N) // 3 % 5
    states = States(
        prices=np.array([0.0, 0.2, 0.4]),
        within=np.triu(np.ones((3, 3), dtype=bool), 1),
        values=np.array(values),
        inputs=inputs,
        folds=folds,
        weight=np.where(folds == 0, 9.0, 1.0),
    )
    learn, check = np.flatnonzero(folds != 0), np.flatnonzero(folds == 0)[::-1]
    some = states.of_rows(learn)
    assert (some.values == states.values[:, learn]).all()
    assert (some.inputs(0).columns[:, 0] == column[learn]).all()
    assert (some.folds == folds[learn]).all()
    assert (some.weight == 1).all()
    policy = induce(some, 1.0, kinds=["tree"])
    assert policy.stops(inputs, learn).tolist() == policy.stopped.tolist()
    assert policy.stops(inputs, check).tolist() == column[check].astype(int).tolist()


def test_weights_decide():
    values = [KNOWN, np.full(N, 0.5)]
    ones = induce(states_of([0, 1], values, weight=np.where(KNOWN, 1.0, 9.0)), 0.0, kinds=[])
    others = induce(states_of([0, 1], values, weight=np.where(KNOWN, 9.0, 1.0)), 0.0, kinds=[])
    assert [stage.state for stage in ones.stages] == [0]
    assert [stage.state for stage in others.stages] == [1]


def test_paired_errors_by_hand():
    assert paired_error(np.array([1.0, 3.0])) == pytest.approx(np.sqrt(0.5))
    assert paired_error(np.array([1.0, 3.0]), np.array([2.0, 2.0])) == pytest.approx(np.sqrt(0.5))
