"""Gates: what they learn from what rows would gain."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import naive
from greedymiser.cascades.gates import (
    GateInputs,
    ScoreCells,
    band_gate,
    bands_between,
    bands_of_shares,
    cross_fitted,
    estimates_of,
    fit_gate,
    grow_tree,
)
from greedymiser.losses import BinaryLogLoss, MultinomialLogLoss, SquaredError
from greedymiser.model.gated_protocols import leaves_of
from greedymiser.model.gating import (
    Gate,
    Gates,
    n_output_features,
    output_feature_names,
    output_features,
)
from random_examples import examples


def inputs_of(columns, said=0, **more):
    """Columns of which the last ``said`` are what a model says."""
    n = columns.shape[1]
    return GateInputs(
        np.asarray(columns, dtype=np.float64),
        tuple(range(n)),
        n_features=n - said,
        n_columns=n,
        **more,
    )


@given(st.integers(1, 30), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**32 - 1))
@examples(60)
def test_a_tree_is_that_of_plain_loops(n, m, depth, seed):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 5, (m, n)).astype(np.uint16)
    is_set, learn = rng.random(m) < 0.4, rng.random(n) < 0.7
    seen = np.flatnonzero(rng.random(m) < 0.8)
    product, weight = rng.integers(-9, 9, n) / 4, rng.integers(1, 9, n) / 4
    most = 2 ** (depth + 1) - 1
    node_of = np.empty(n, dtype=np.intp)
    sums, gains = np.zeros((3, most)), np.zeros(most)
    links, left = np.full((most, 2), -1, dtype=np.intp), np.zeros((most, 5), dtype=bool)
    rows = (codes, is_set, seen, product, weight, learn)
    n_nodes = grow_tree(*rows, depth, 2, node_of, sums, gains, links, left)
    splits, ends = naive.gate_tree(*(part.tolist() for part in rows), depth, 2, 5)
    found = [
        (column, set(np.flatnonzero(bins).tolist())) if column >= 0 else None
        for (column, _), bins in zip(links[:n_nodes].tolist(), left, strict=False)
    ]
    assert found == splits
    assert node_of.tolist() == ends
    for node in range(n_nodes):
        if links[node, 0] < 0:  # a leaf
            rows_in = learn & (node_of == node)
            expected = [product[rows_in].sum(), weight[rows_in].sum(), rows_in.sum()]
            assert sums[:, node].tolist() == expected


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(-4, 4)), min_size=2, max_size=25))
@examples(100)
def test_a_band_is_the_best_of_all_bands(rows):
    scores, gains = (np.array(part, dtype=np.float64) for part in zip(*rows, strict=True))
    inputs = inputs_of(scores[:, None], said=1)
    gate = fit_gate("band", inputs, gains)
    best = naive.best_band(scores.tolist(), gains.tolist())
    on = estimates_of(gate, inputs) > 0
    assert gains[on].sum() == max(best, 0.0)
    if gate.ensemble.n_trees:
        assert best > gains.sum()
        inside = scores[on]
        assert on.tolist() == ((scores >= inside.min()) & (scores <= inside.max())).tolist()


@pytest.mark.parametrize("all_gain", [False, True])
def test_a_band_tells_everybody_from_nobody(all_gain):
    inputs = inputs_of(np.arange(50.0)[:, None], said=1)
    gains = np.full(50, 1.0 if all_gain else -1.0)
    gate = fit_gate("band", inputs, gains)
    assert gate.ensemble.n_trees == 0
    for said in (estimates_of(gate, inputs), judged_by("band", inputs, gains)):
        assert ((said > 0) == all_gain).all()


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(-4, 4)), min_size=2, max_size=25),
    st.sampled_from([0.1, 0.3, 0.5, 0.9]),
)
def test_a_band_of_a_share_is_the_best_that_is_no_wider(rows, share):
    scores, gains = (np.array(part, dtype=np.float64) for part in zip(*rows, strict=True))
    inputs = inputs_of(scores[:, None], said=1)
    cells = ScoreCells.of(inputs, None, np.arange(len(rows)) % 2)
    found = [] if cells is None else bands_of_shares(cells, cells.sums(gains), [share])
    inside = [(scores >= a) & (scores <= b) for a in range(7) for b in range(a, 7)]
    best = max((gains[on].sum() for on in inside if on.mean() <= share), default=0.0)
    if len(set(scores.tolist())) == 1 or best <= 0:
        assert found == []
    else:
        on = estimates_of(band_gate(inputs, found[0][0]), inputs) > 0
        assert gains[on].sum() == best
        assert on.mean() <= share


def test_bands_of_shares_are_judged_by_rows_that_did_not_make_them():
    rng = np.random.default_rng(5)
    scores, folds = rng.random(600), np.arange(600) % 5
    gains = np.where((scores > 0.4) & (scores < 0.6), 1.0, -1.0)
    inputs = inputs_of(scores[:, None], said=1)
    cells = ScoreCells.of(inputs, None, folds)
    bands = bands_of_shares(cells, cells.sums(gains), [0.1, 0.25])
    for (limits, inside), share in zip(bands, (0.1, 0.25), strict=True):
        on = inside.ravel()[cells.of_row]
        assert gains[on].mean() > 0.5
        assert gains[estimates_of(band_gate(inputs, limits), inputs) > 0].mean() > 0.5
        assert on.mean() == pytest.approx(min(share, 0.2), abs=0.06)
    seen = honest = 0.0
    for chance in rng.standard_normal((20, 600)):
        (limits, inside), *_ = bands_of_shares(cells, cells.sums(chance), [0.1])
        seen += chance[estimates_of(band_gate(inputs, limits), inputs) > 0].sum()
        honest += chance[inside.ravel()[cells.of_row]].sum()
    assert seen > 2 * honest


def test_bands_are_tried_everywhere():
    scores = np.arange(120.0)
    inputs = inputs_of(scores[:, None], said=1)
    cells = ScoreCells.of(inputs, None, np.arange(120) % 3)
    found = [(limits, inside.ravel()[cells.of_row]) for limits, inside in bands_between(cells, 4)]
    assert len(found) == 9  # ten stretches of four parts, without the whole
    for limits, on in found:
        assert np.array_equal(estimates_of(band_gate(inputs, limits), inputs) > 0, on)
        assert np.array_equal(np.diff(np.flatnonzero(on)), np.ones(on.sum() - 1))
    assert {round(on.mean() * 4) for _, on in found} == {1, 2, 3}
    for nothing_said in (inputs_of(np.ones((50, 1)), said=1), inputs_of(np.empty((50, 0)))):
        assert ScoreCells.of(nothing_said, None, np.arange(50) % 3) is None


def test_cells_of_scores_add_up():
    rng = np.random.default_rng(2)
    scores, folds, weight = rng.integers(0, 9, 300) / 8, rng.integers(0, 4, 300), rng.random(300)
    cells = ScoreCells.of(inputs_of(scores[:, None], said=1), weight, folds)
    gains = rng.standard_normal(300)
    for fold in range(4):
        for k, score in enumerate(np.unique(scores)):
            here = (folds == fold) & (scores == score)
            assert cells.weight[fold, k] == pytest.approx(weight[here].sum())
            assert cells.sums(gains)[fold, k] == pytest.approx(gains[here].sum())
    assert cells.limits(0, 8) == (-np.inf, np.inf)
    assert cells.limits(2, 3) == (3 / 16, 7 / 16)


def judged_by(kind, inputs, gains):
    return cross_fitted(kind, inputs, gains, None, np.arange(len(gains)) % 5)


def test_a_band_that_judges_a_row_has_not_seen_it():
    """Gains are chance: a band is worth something to the rows that it was made for alone."""
    rng = np.random.default_rng(4)
    inputs, gains = inputs_of(rng.random((500, 1)), said=1), rng.standard_normal(500)
    seen = estimates_of(fit_gate("band", inputs, gains), inputs) > 0
    honest = judged_by("band", inputs, gains) > 0
    assert gains[seen].sum() > 10.0 > gains[honest].sum()


def test_a_tree_finds_who_gains():
    x = np.arange(400.0)
    gains = np.where((x > 99.5) & (x <= 199.5), 1.0, -1.0)
    inputs = inputs_of(x[:, None])
    gate = fit_gate("tree", inputs, gains)
    assert np.mean((estimates_of(gate, inputs) > 0) == (gains > 0)) > 0.95


def test_splits_are_between_values_that_are_there():
    x = np.repeat([1.0, 2.0, 7.0], 100)
    gate = fit_gate("tree", inputs_of(x[:, None]), np.where(x == 7.0, 1.0, 0.0))
    assert gate.ensemble.nodes["threshold"][0] == 4.5
    assert gate.estimates(np.array([[4.4], [4.6]])) == pytest.approx([0.0, 1.0])


def test_no_edge_is_infinite():
    """Files could not hold it."""
    x = np.repeat([-np.inf, 1.0, np.inf], 100)
    for gains, on in ((x == -np.inf, [1, 0, 0]), (x == np.inf, [0, 0, 1])):
        gate = fit_gate("tree", inputs_of(x[:, None]), gains * 1.0)
        nodes = gate.ensemble.nodes
        assert np.isfinite(nodes["threshold"][nodes["left"] >= 0]).all()
        assert gate.estimates(np.array([[-np.inf], [1.0], [np.inf]])) == pytest.approx(on)


def test_missing_values_have_a_side_of_their_own():
    x = np.repeat([1.0, 2.0, np.nan], 100)
    gate = fit_gate("tree", inputs_of(x[:, None]), np.where(np.isnan(x), 1.0, 0.0))
    assert gate.estimates(np.array([[1.0], [2.0], [9.0], [np.nan]])) == pytest.approx([0, 0, 0, 1])


def test_what_was_never_missing_goes_with_most_rows():
    x = np.repeat([1.0, 2.0], [100, 300])
    gate = fit_gate("tree", inputs_of(x[:, None]), x)
    assert gate.estimates(np.array([[np.nan]])) == pytest.approx([2.0])


def test_categories_are_sets():
    codes = np.tile([0.0, 1.0, 2.0, 3.0], 100)
    gains = np.isin(codes, [0, 3]) * 2.0 - 1.0
    inputs = inputs_of(codes[:, None], categorical={0: 4})
    gate = fit_gate("tree", inputs, gains)
    assert gate.ensemble.n_trees == 1
    assert len(gate.ensemble.category_sets) == 1
    assert estimates_of(gate, inputs) == pytest.approx(gains)


def test_kinds_look_at_what_they_may():
    rng = np.random.default_rng(0)
    columns = rng.random((500, 3))
    gains = columns.sum(axis=1) - 1.5
    inputs = inputs_of(columns, said=1)
    assert fit_gate("score", inputs, gains).ensemble.features == [2]
    assert fit_gate("tree", inputs, gains).ensemble.features == [0, 1]
    assert fit_gate("paid", inputs, gains).ensemble.features == [0, 1, 2]
    assert fit_gate("band", inputs, gains).ensemble.features == [2]


def test_weights_are_repetitions():
    rng = np.random.default_rng(1)
    columns, gains = rng.integers(0, 5, (300, 2)), rng.integers(-3, 4, 300) / 1.0
    weight = np.full(300, 2.0)
    for kind in ("tree", "paid", "score", "band"):
        once = fit_gate(kind, inputs_of(columns, said=1), gains, weight)
        twice = fit_gate(kind, inputs_of(np.repeat(columns, 2, axis=0), said=1), gains.repeat(2))
        rows = columns.astype(np.float64)
        assert once.estimates(rows) == pytest.approx(twice.estimates(rows))


def test_nothing_to_look_at_is_no_gate():
    inputs = inputs_of(np.empty((50, 0)))
    assert fit_gate("tree", inputs, np.ones(50)) is None
    assert fit_gate("band", inputs, np.ones(50)) is None
    assert cross_fitted("tree", inputs, np.ones(50), None, np.arange(50) % 2).tolist() == (
        [-np.inf] * 50
    )


def test_a_gate_that_judges_a_row_has_not_seen_it():
    rng = np.random.default_rng(2)
    inputs, gains = inputs_of(rng.random((600, 6))), rng.standard_normal(600)
    folds = np.arange(600) % 5
    honest = cross_fitted("paid", inputs, gains, None, folds)
    seen = estimates_of(fit_gate("paid", inputs, gains), inputs)
    assert np.corrcoef(seen, gains)[0, 1] > 0.2 > np.corrcoef(honest, gains)[0, 1]


@pytest.mark.parametrize(
    ("loss", "raw", "expected"),
    [
        (SquaredError(), [[1.0, 2.0]], [[1.0, 2.0]]),
        (BinaryLogLoss(), [[0.0]], [[0.5]]),
        (MultinomialLogLoss(2), [[0.0], [np.log(3.0)]], [[0.25], [0.75], [0.75]]),
    ],
)
def test_what_a_model_says(loss, raw, expected):
    outputs = output_features(np.array(raw), loss)
    assert outputs == pytest.approx(np.array(expected))
    names = output_feature_names(len(raw), np.arange(max(2, len(raw))))
    assert len(outputs) == n_output_features(len(raw)) == len(names)


def test_gates_need_rows():
    gate = fit_gate("tree", inputs_of(np.repeat([[0.0], [1.0]], 50, axis=0)), np.repeat([0, 1], 50))
    gates = Gates((Gate(gate.ensemble, 0.5),), 1, SquaredError())
    with pytest.raises(ValueError, match="what is known of rows"):
        gates.goes_on(np.zeros((1, 2)), 0, None)


def test_leaves_are_those_that_predict():
    rng = np.random.default_rng(3)
    columns = rng.integers(0, 6, (500, 3)).astype(np.float64)
    columns[rng.random(columns.shape) < 0.1] = np.nan
    gains = np.nan_to_num(columns[:, 0]) * np.isin(columns[:, 2], [1, 4])
    inputs = inputs_of(columns, categorical={2: 6})
    gate = fit_gate("tree", inputs, gains)
    leaf = leaves_of(gate.ensemble, columns)
    values = gate.ensemble.nodes["value"][leaf] + gate.ensemble.baseline[0]
    assert values == pytest.approx(gate.estimates(columns))
