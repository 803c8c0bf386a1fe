"""Plots say what the curve says, and their words do not run into each other."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("matplotlib")

import matplotlib
import matplotlib.pyplot as plt
import matplotlib.style
from matplotlib.figure import Figure

from curves import (
    TRADEOFFS,
    constant_curve,
    keep,
    searched_curve,
    thyroid_curve,
    total_curve,
    wide_curve,
    with_test_scores,
)
from greedymiser._core.amounts import money
from greedymiser.curve.curve import TradeoffCurve
from greedymiser.curve.summary import front_steps, recommended
from greedymiser.plotting import (
    compare_curves,
    features,
    plot_curve,
    plot_features,
    plot_receipt,
)
from greedymiser.plotting.axes import cost_axis
from greedymiser.plotting.curves import reference_models, step_labels


def legend_of(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def drawn(ax):
    """The Axes, once it is drawn and everything has its place."""
    ax.get_figure(root=True).draw_without_rendering()
    return ax


def boxes(texts):
    return [text.get_window_extent() for text in texts]


def overlap(one, other):
    return min(one.x1, other.x1) > max(one.x0, other.x0) and min(one.y1, other.y1) > max(
        one.y0, other.y0
    )


def assert_apart(found):
    assert not [
        (one, other) for i, one in enumerate(found) for other in found[:i] if overlap(one, other)
    ]


def assert_legend_is_clear_of_data(ax):
    legend = drawn(ax).get_legend().get_window_extent()
    assert not overlap(legend, ax.get_window_extent())
    figure = ax.get_figure(root=True).bbox
    assert legend.x0 >= figure.x0 - 1
    assert legend.x1 <= figure.x1 + 1
    assert legend.y0 >= figure.y0 - 1
    labels = [ax.xaxis.label, ax.yaxis.label, *ax.get_xticklabels()]
    assert not any(overlap(legend, box) for box in boxes(labels))


def dashed(ax):
    return [line for line in ax.lines if line.is_dashed() and len(line.get_xdata()) > 1]


# The curve


def steps_of(ax):
    """The line of what each budget buys: the thickest of those that are steps."""
    lines = [line for line in ax.lines if line.get_drawstyle() == "steps-post"]
    return max(lines, key=lambda line: line.get_linewidth())


def labels_of(ax):
    return [text for text in ax.texts if text.get_text().startswith(("+", "\N{MINUS SIGN}"))]


def words_of(text):
    """The box of a label without the line to its point."""
    return matplotlib.text.Text.get_window_extent(text)


def test_the_curve_is_a_line_of_steps_that_never_goes_down():
    curve = with_test_scores(searched_curve())
    ax = drawn(plot_curve(curve))
    costs, scores = steps_of(ax).get_xdata(), steps_of(ax).get_ydata()
    assert (np.diff(scores) >= 0).all()
    for budget in (0.0, 20.0, 36.19, 46.49, 46.5, 60.0):
        last = np.flatnonzero(costs[:-1] <= budget)[-1]
        assert scores[last] == curve.best_row(budget)["score"]
    assert legend_of(ax)[:1] == ["best for each budget (validation rows)"]
    # Nor where models are chosen by something else as well: here, by what they cost.
    by_cost = curve.traces.assign(choice_score=curve.traces["cost"])
    other = TradeoffCurve(by_cost, curve.models, curve.scoring)
    assert not other.pareto()["score"].is_monotonic_increasing
    assert (np.diff(steps_of(plot_curve(other)).get_ydata()) >= 0).all()
    assert_legend_is_clear_of_data(ax)


def test_test_scores_are_points_of_the_same_models():
    curve = with_test_scores(thyroid_curve())
    ax = plot_curve(curve)
    (points,) = [line for line in ax.lines if line.get_marker() == "D"]
    front = curve.pareto()
    drawn_scores = dict(zip(points.get_xdata(), points.get_ydata(), strict=True))
    for row in front.itertuples():
        if row.cost in drawn_scores:
            assert drawn_scores[row.cost] == row.test_score
    assert "the same models, test rows" in legend_of(ax)
    assert "the same models, test rows" not in legend_of(plot_curve(thyroid_curve()))


def test_curve_is_labelled():
    ax = plot_curve(thyroid_curve())
    assert ax.get_xlabel() == "cost of one prediction"
    assert "$20" in [label.get_text() for label in ax.get_xticklabels()]
    assert ax.get_ylabel() == "validation negative log-loss"
    title = ax.get_title(loc="left")
    assert title == "$46.50 buys 99.2% of the gain of the best score, which costs $58.81"
    assert not any("λ" in entry for entry in legend_of(ax))


def test_steps_say_what_they_add():
    curve = thyroid_curve()
    said = {text.get_text() for text in labels_of(plot_curve(curve))}
    assert "+ TSH" in {words.partition(",")[0] for words in said}
    steps = front_steps(curve)
    labels = step_labels(curve, steps)
    # The last two gain less than a hundredth of all that can be gained.
    assert [bool(phrases) for phrases in labels] == [
        False,
        *[True] * (len(steps) - 3),
        False,
        False,
    ]
    assert len(said) >= sum(map(bool, labels)) - 2  # of two that are close, one may be left out


def test_a_ring_marks_the_recommended_model():
    curve = thyroid_curve()
    steps = front_steps(curve)
    (ring,) = [line for line in plot_curve(curve).lines if line.get_markersize() == 13]
    chosen = steps[recommended(steps)]
    assert (ring.get_xdata()[0], ring.get_ydata()[0]) == (chosen.cost, chosen.score)


@pytest.mark.parametrize("size", [(4, 3.4), (7.5, 4.5), (12, 7)])
@pytest.mark.parametrize("make", [thyroid_curve, wide_curve, searched_curve])
def test_labels_cover_nothing(make, size):
    ax = Figure(figsize=size, layout="constrained").add_subplot()
    curve = with_test_scores(make())
    drawn(plot_curve(curve, ax, baselines={"the model in use": (20.0, curve.points.score.min())}))
    words = [words_of(text) for text in ax.texts]
    assert_apart(words)
    room = ax.get_window_extent()
    for box in words:
        assert room.x0 - 1 <= box.x0
        assert box.x1 <= room.x1 + 1
        assert room.y0 - 1 <= box.y0
        assert box.y1 <= room.y1 + 1
    points = ax.transData.transform(
        [(step.cost, step.score) for step in front_steps(curve) if np.isfinite(step.score)]
    )
    assert not [1 for box in words for x, y in points if box.contains(x, y)]


def test_paths_are_for_those_who_ask():
    curve = thyroid_curve()
    assert dashed(plot_curve(curve)) == []
    ax = plot_curve(curve, paths=True)
    assert legend_of(ax)[:2] == ["λ = 0", "λ = 0.0001"]
    lines = [line for line in ax.lines if line.is_dashed() and line.get_marker() != "X"]
    assert len(lines) == len(TRADEOFFS)
    for line, tradeoff in zip(lines, TRADEOFFS, strict=True):
        rows = curve.traces[curve.traces.tradeoff == tradeoff]
        assert line.get_xdata().tolist() == rows.cost.tolist()
        assert line.get_ydata().tolist() == rows.score.tolist()
        assert line.get_drawstyle() == "steps-post"
    looks = {
        (line.get_marker(), line._unscaled_dash_pattern[1])
        for line in ax.get_legend().get_lines()[: len(TRADEOFFS)]
    }
    assert len(looks) == len(TRADEOFFS)


def test_baselines_are_marked_and_named():
    curve = thyroid_curve()
    ax = plot_curve(curve, baselines={"in use": (30.0, -0.1)})
    (mark,) = [line for line in ax.lines if line.get_xdata()[0] == 30.0]
    assert mark.get_ydata()[0] == -0.1
    assert "in use: -0.100 for $30" in legend_of(ax)
    far = plot_curve(curve, baselines={"in use": (3000.0, -0.1)})
    assert far.get_xlim()[1] < 100
    assert "in use: -0.100 for $3,000" in legend_of(far)
    with pytest.raises(ValueError, match="baselines\\['a'\\] must be a pair of cost and score"):
        plot_curve(curve, baselines={"a": 3.0})


def test_errors_are_a_band():
    curve = keep(thyroid_curve(), list(range(len(TRADEOFFS))))
    assert len(plot_curve(curve).collections) == 0
    steps = front_steps(curve)
    curve.validation = {(step.position, step.n_iter): 0.01 for step in steps}
    ax = plot_curve(curve)
    assert len(ax.collections) == 1
    assert "± 1 standard error" in legend_of(ax)


def test_a_constant_that_is_far_below_is_told():
    curve = keep(thyroid_curve(), [0, 1, 2])
    points = curve.pareto()
    curve.traces.loc[curve.traces["n_iter"] == 0, "score"] = -9.0
    ax = drawn(plot_curve(curve))
    low, high = ax.get_ylim()
    assert -9.0 < low < points["score"].iloc[1] <= curve.points["score"].max() < high
    (note,) = [text for text in ax.texts if text.get_text().startswith("a constant")]
    assert note.get_text() == "a constant scores -9.000, below the picture"


def test_a_constant_that_is_near_is_shown():
    curve = keep(thyroid_curve(), [0, 1, 2])
    curve.traces.loc[curve.traces["n_iter"] == 0, "score"] = -0.1
    ax = plot_curve(curve)
    assert ax.get_ylim()[0] < -0.1
    assert not any(text.get_text().startswith("a constant") for text in ax.texts)


def test_cost_axis_is_linear_where_steps_can_be_told_apart():
    assert plot_curve(thyroid_curve()).get_xscale() == "linear"


def test_one_cheap_feature_does_not_ruin_the_axis():
    ax = Figure().add_subplot()
    cost_axis(ax, [[0.0, 0.01, 20.0, 30.0, 41.0, 52.0]], "euros")
    assert ax.get_xscale() == "linear"
    assert [label.get_text() for label in ax.get_xticklabels()][:2] == ["€0", "€10"]


def test_costs_of_several_decades_all_have_their_room():
    curve = wide_curve(n_tradeoffs=30)
    ax = drawn(plot_curve(curve))
    assert ax.get_xscale() == "function"
    steps = front_steps(curve)
    costs = np.array([step.cost for step in steps])
    places = ax.transData.transform(np.column_stack([costs, 0.0 * costs]))[:, 0]
    apart = np.diff(places) / ax.get_window_extent().width
    assert np.sum(apart > 0.02) >= 2 * np.sum(np.diff(costs) / costs.max() > 0.02)


@pytest.mark.parametrize("decades", [1.1, 3, 6, 9])
@pytest.mark.parametrize("least", [0.0, 1.0])
def test_no_mark_is_cut_off_at_the_sides(least, decades):
    """A ring is 13 points wide, and its edge more than one."""
    ax = Figure(figsize=(7.5, 4.5)).add_subplot()
    costs = np.array([least, 1.0, *np.geomspace(1.0, 10.0**decades, 9)])
    cost_axis(ax, [costs], "")
    places = ax.transData.transform(np.column_stack([costs, costs * 0.0]))[:, 0]
    radius = (13 + 1.6) / 2 * ax.figure.dpi / 72
    assert ax.get_window_extent().x0 + radius <= places.min()
    assert places.max() <= ax.get_window_extent().x1 - radius


def test_ticks_are_few_and_apart():
    curve = wide_curve(n_tradeoffs=30)
    for ax in (plot_curve(curve, small_axes()), plot_curve(curve), plot_curve(wide_curve())):
        assert_apart(boxes(label for label in drawn(ax).get_xticklabels() if label.get_text()))


def test_constant_model():
    curve = constant_curve()
    ax = drawn(plot_curve(curve))
    assert steps_of(ax).get_xdata()[0] == 0.0
    assert ax.get_title(loc="left") == "The best score costs $0"
    assert_legend_is_clear_of_data(ax)
    matrix = drawn(plot_features(curve))
    assert [text.get_text() for text in matrix.texts] == ["nothing is bought"]
    receipt = drawn(plot_receipt(curve.models[0], curve))
    assert [text.get_text() for text in receipt.texts] == ["nothing bought"]


def test_thirty_tradeoffs():
    ax = plot_curve(wide_curve(n_tradeoffs=30), paths=True)
    assert len([line for line in ax.lines if line.is_dashed()]) == 30
    named = [entry for entry in legend_of(ax) if entry.startswith("λ")]
    assert len(named) == 8
    assert (named[0], named[-1]) == ("λ = 0", "λ = 0.5")
    assert_legend_is_clear_of_data(ax)


def test_scores_that_are_not_numbers():
    curve = keep(thyroid_curve(), [0, 1])
    curve.traces.loc[curve.traces.n_iter == 3, "score"] = np.nan
    ax = drawn(plot_curve(curve))
    assert np.isfinite(steps_of(ax).get_ydata()).all()
    low, high = ax.get_ylim()
    assert low < curve.points.score[1] < high


# Legends and layout


def small_axes(**options):
    return Figure(figsize=(4, 3.4), **options).add_subplot()


@pytest.mark.parametrize("layout", [None, "constrained", "tight"])
@pytest.mark.parametrize("size", [(4, 3.4), (9, 5)])
def test_legend_is_clear_of_data(size, layout):
    ax = Figure(figsize=size, layout=layout).add_subplot()
    assert plot_curve(thyroid_curve(), ax) is ax
    assert_legend_is_clear_of_data(ax)


def test_neighbours_keep_their_room():
    figure = Figure(figsize=(14, 5))
    left, right = figure.subplots(1, 2)
    plot_curve(thyroid_curve(), left)
    assert not overlap(drawn(left).get_legend().get_window_extent(), right.get_window_extent())


def test_pyplot_knows_nothing():
    before = plt.get_fignums(), dict(matplotlib.rcParams)
    curve = thyroid_curve()
    plot_curve(curve)
    plot_features(curve)
    plot_receipt(curve.models[0])
    compare_curves({"a": curve})
    assert (plt.get_fignums(), dict(matplotlib.rcParams)) == before


def test_dark_backgrounds():
    with matplotlib.style.context("dark_background"):
        ax = plot_curve(thyroid_curve())
        colours = [line.get_color() for line in ax.lines if line.get_linestyle() != "None"]
        brightness = [np.mean(matplotlib.colors.to_rgb(colour)) for colour in colours]
    assert min(brightness) > 0.25


# Features


def filled(ax, n_lines):
    """Which lines and columns of the matrix are filled."""
    boxes_ = [patch for patch in ax.patches if patch.get_fill()]
    return {(round(box.get_y() - 0.08), round(box.get_x() - 0.06)) for box in boxes_}


def test_a_model_that_ignores_prices_is_marked_unless_the_line_has_it():
    front = pd.DataFrame({"cost": [0.0, 1.0, 2.0], "score": [0.5, 0.7, 0.9]})

    def references(cost, score):
        points = pd.DataFrame({"tradeoff": [0.0], "cost": [cost], "score": [score]})
        return reference_models(SimpleNamespace(points=points, pareto=lambda: front), {})

    assert references(2.0, 0.9) == references(2.0, 0.895) == {}
    assert references(2.0, 0.8) == {"prices ignored": (2.0, 0.8)}
    assert references(3.0, 0.9) == {"prices ignored": (3.0, 0.9)}


def test_the_matrix_shows_who_buys_what():
    curve = thyroid_curve()
    ax = plot_features(curve)
    steps = [step for step in front_steps(curve) if step.resources]
    names = [label.get_text().lstrip("└ ").split("  ")[0] for label in ax.get_yticklabels()]
    assert names[0] == "blood_draw"
    assert filled(ax, len(names)) == {
        (y, x)
        for x, step in enumerate(steps)
        for y, name in enumerate(names)
        if name in step.resources
    }
    costs = [label.get_text() for label in ax.get_xticklabels()]
    assert costs == [money(step.cost, "dollars") for step in steps]
    assert ax.get_xlabel() == "cost of the model (framed: recommended)"


def test_a_long_matrix_tells_what_it_leaves_out(monkeypatch):
    curve = wide_curve()
    bought = {name for step in front_steps(curve) for name in step.resources}
    monkeypatch.setattr(features, "MOST_LINES", 5)
    ax = drawn(plot_features(curve))
    assert len(ax.get_yticklabels()) == 5
    assert f"; {len(bought) - 5} more that few models buy" in ax.get_xlabel()
    assert_apart(boxes(ax.get_yticklabels()))


# The receipt


def test_receipt_is_a_staircase():
    model = thyroid_curve().models[0]
    ax = plot_receipt(model)
    lines = list(model.receipt())
    stairs = ax.lines[0]
    assert stairs.get_drawstyle() == "steps-post"
    assert stairs.get_xdata().tolist() == [0, *(p.iteration + 1 for p in lines), model.n_iter_]
    assert stairs.get_ydata().tolist() == [0, *(p.spent for p in lines), lines[-1].spent]
    labels = {text.get_text() for text in ax.texts}
    assert {"FTI  +23.82", "TSH  +20.68", "age  +1"} <= labels
    assert len(labels) == len(lines)


def test_receipt_shows_the_score_below():
    curve = thyroid_curve()
    model = curve.models[1].truncate(10)
    ax = plot_receipt(model)
    _, panel = ax.figure.axes
    assert panel.lines[0].get_ydata().tolist() == model.validation_score_[:11].tolist()
    assert panel.get_ylabel() == "validation\nnegative log-loss"
    assert panel.get_xlabel() == "rounds"
    _, panel = plot_receipt(model, with_test_scores(curve)).figure.axes
    assert panel.get_ylabel() == "test\nnegative log-loss"
    _, panel = plot_receipt(model, np.arange(11) / 10).figure.axes
    assert panel.lines[0].get_ydata().tolist() == (np.arange(11) / 10).tolist()


def test_a_receipt_begins_with_nothing_spent():
    ax = drawn(plot_receipt(thyroid_curve().models[0]))
    assert ax.get_ylim()[0] < 0 == ax.lines[0].get_ydata()[0]


@pytest.mark.parametrize("size", [(7.5, 4.5), (6, 4)])
def test_long_names_of_scores_stay_in_their_panel(size):
    model = wide_curve().models[0]
    figure = Figure(figsize=size, layout="constrained")
    ax = drawn(plot_receipt(model, ax=figure.add_subplot()))
    _, panel = figure.axes
    assert panel.get_ylabel() == "validation\nnegative half the\nsquared error"
    label, other = boxes([panel.yaxis.label, ax.yaxis.label])
    assert not overlap(label, other)
    assert label.y0 >= figure.bbox.y0
    assert label.y1 <= ax.get_window_extent().y1


def test_receipt_without_scores_has_one_panel():
    curve = thyroid_curve()
    ax = plot_receipt(curve.models[0], [])
    assert ax.figure.axes == [ax]
    assert ax.get_xlabel() == "rounds"


def test_receipt_knows_the_cost_of_trees():
    model = thyroid_curve(names=False, tree_cost=0.05).models[0]
    ax = plot_receipt(model)
    whole = ax.lines[2]
    assert whole.get_ydata()[-1] == pytest.approx(model.cost_)
    assert legend_of(ax) == ["features", "features and trees"]
    assert "20  +23.82" in {text.get_text() for text in ax.texts}


def test_receipt_of_a_stranger_is_an_error():
    curve = thyroid_curve()
    with pytest.raises(ValueError, match=r"no model with tradeoff=0\.03"):
        plot_receipt(curve.models[-1], keep(curve, [0, 1]))


@pytest.mark.parametrize("layout", [None, "constrained"])
@pytest.mark.parametrize("size", [(4, 3), (7.5, 4.5)])
@pytest.mark.parametrize("make", [thyroid_curve, wide_curve])
def test_labels_of_purchases_do_not_overlap(make, size, layout):
    model = make().models[0]
    ax = Figure(figsize=size, layout=layout).add_subplot()
    drawn(plot_receipt(model, ax=ax))
    assert 1 <= len(ax.texts) <= 15
    # A label's box includes its line to the staircase; the words alone must be apart.
    found = [matplotlib.text.Text.get_window_extent(text) for text in ax.texts]
    assert_apart(found)
    assert max(box.x1 for box in found) <= ax.figure.bbox.x1 + 1
    assert min(box.x0 for box in found) >= ax.get_window_extent().x1


def test_the_most_expensive_purchases_are_named():
    model = wide_curve().models[0]
    ax = drawn(plot_receipt(model))
    prices = sorted((line.price for line in model.receipt()), reverse=True)
    named = sorted((float(text.get_text().split("+")[1]) for text in ax.texts), reverse=True)
    assert named == pytest.approx(prices[: len(named)], rel=1e-3)


def test_receipt_fits_axes_without_a_grid():
    figure = Figure(figsize=(7, 5))
    ax = figure.add_axes((0.1, 0.1, 0.8, 0.8))
    drawn(plot_receipt(thyroid_curve().models[0], ax=ax))
    upper, lower = (axes.get_window_extent() for axes in figure.axes)
    assert not overlap(upper, lower)


# Comparison


def test_comparison_on_one_meter():
    curve = thyroid_curve()
    other = pd.DataFrame({"cost": [50.0, 20.0], "score": [-0.1, -0.2]})
    ax = compare_curves({"greedymiser": curve, "a $5 and $6 rival": other})
    assert legend_of(ax) == ["greedymiser", "a $5 and $6 rival"]
    assert not any(text.get_parse_math() for text in ax.get_legend().get_texts())
    assert ax.lines[1].get_xdata().tolist() == [20.0, 50.0]
    assert ax.lines[1].get_ydata().tolist() == [-0.2, -0.1]
    assert ax.get_ylabel() == "negative log-loss"
    assert ax.get_xlabel() == "cost of one prediction"
    assert len({line.get_marker() for line in ax.lines}) == 2
    assert_legend_is_clear_of_data(ax)


def test_comparison_uses_test_scores_only_if_all_have_them():
    curve = thyroid_curve()
    tested = with_test_scores(curve)
    assert compare_curves({"a": tested}).get_ylabel() == "test negative log-loss"
    mixed = compare_curves({"a": tested, "b": curve})
    assert sorted(mixed.lines[0].get_ydata()) == sorted(curve.points.score)


def test_comparison_of_bad_input():
    with pytest.raises(ValueError, match="at least one"):
        compare_curves({})
    with pytest.raises(ValueError, match="curve 'a' has no column 'score'"):
        compare_curves({"a": pd.DataFrame({"cost": [1.0]})})


# Errors that have a price


def test_totals_are_bars_with_the_recommended_one_framed():
    curve = total_curve()
    ax = curve.plot()
    features, errors, frame = ([bar.get_height() for bar in bars] for bars in ax.containers)
    assert len(features) == len(errors) > 1
    assert features == sorted(features)
    assert errors == sorted(errors, reverse=True)
    best = curve.best_row()
    assert frame == [-best["score"]]
    assert min(np.add(features, errors)) == pytest.approx(-best["score"])
    assert [text.get_text() for text in ax.texts if text.get_fontweight() == "bold"] == [
        money(-best["score"], "dollars")
    ]
    assert "recommended" in [text.get_text() for text in ax.get_legend().get_texts()]
    assert ax.get_title(loc="left").startswith(f"{money(-best['score'], 'dollars')} a row in all, ")
