"""Plots say what the curve says, and their words do not run into each other."""

from __future__ import annotations

from itertools import pairwise

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
    wide_curve,
    with_test_scores,
)
from greedymiser.curve.curve import TradeoffCurve
from greedymiser.plotting import (
    CurveComparisonDisplay,
    FeatureSharesDisplay,
    ReceiptDisplay,
    TradeoffCurveDisplay,
    compare_curves,
    features,
    plot_curve,
    plot_features,
    plot_receipt,
)
from greedymiser.plotting.axes import cost_axis


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


def circled(ax):
    (line,) = [line for line in ax.lines if str(line.get_markerfacecolor()) == "none"]
    return line


# The curve


def test_curve_has_a_trace_per_tradeoff_and_joins_the_chosen_rounds():
    curve = thyroid_curve()
    ax = plot_curve(curve)
    # The last model buys nothing, so its trace is a point.
    lines = [line for line in ax.lines if line.is_dashed()]
    assert len(lines) == len(TRADEOFFS)
    for line, tradeoff in zip(lines, TRADEOFFS, strict=True):
        rows = curve.traces[curve.traces.tradeoff == tradeoff]
        assert line.get_xdata().tolist() == rows.cost.tolist()
        assert line.get_ydata().tolist() == rows.score.tolist()
    assert circled(ax).get_linestyle() == "-"
    assert circled(ax).get_xdata().tolist() == curve.points.cost.tolist()
    assert circled(ax).get_ydata().tolist() == curve.points.score.tolist()


def test_curve_is_labelled():
    ax = plot_curve(thyroid_curve())
    assert ax.get_xlabel() == "cost of one prediction (dollars)"
    assert ax.get_ylabel() == "validation neg_log_loss"
    assert ax.get_legend().get_title().get_text() == "tradeoff λ"
    assert legend_of(ax) == ["0", "0.0001", "0.001", "0.005", "0.01", "0.03", "best iteration"]
    assert plot_curve(wide_curve()).get_xlabel() == "cost of one prediction"


def test_curve_draws_test_scores_where_there_are_some():
    curve = with_test_scores(thyroid_curve())
    ax = plot_curve(curve)
    assert ax.get_ylabel() == "test neg_log_loss"
    assert circled(ax).get_ydata().tolist() == curve.points.test_score.tolist()


def test_what_a_search_has_found_are_stars_and_steps_lead_from_budget_to_budget():
    curve = with_test_scores(searched_curve())
    ax = drawn(plot_curve(curve))
    found = curve.points[curve.points.found_by == "search"]
    (stars,) = [line for line in ax.lines if line.get_marker() == "*"]
    assert stars.get_xdata().tolist() == found.cost.tolist()
    assert stars.get_ydata().tolist() == found.test_score.tolist()
    assert circled(ax).get_linestyle() == "None"
    assert len(circled(ax).get_xdata()) == len(TRADEOFFS) - 2
    (steps,) = [line for line in ax.lines if line.get_drawstyle() == "steps-post"]
    # The last step goes on to the dearest model.
    costs, scores = steps.get_xdata()[:-1], steps.get_ydata()
    assert steps.get_xdata()[-1] == curve.traces.cost.max()
    for budget in (0.0, 20.0, 36.19, 46.49, 46.5, 60.0):
        last = np.flatnonzero(costs <= budget)[-1]
        assert scores[last] == curve.best_row(budget)["test_score"]
    assert legend_of(ax)[-3:] == ["best iteration", "found by search", "best for each budget"]
    assert_legend_is_clear_of_data(ax)
    assert_legend_is_clear_of_data(drawn(plot_curve(curve, small_axes())))


def test_traces_differ_without_colour():
    looks = {
        (line.get_marker(), line._unscaled_dash_pattern[1])
        for line in plot_curve(thyroid_curve()).get_legend().get_lines()[:-1]
    }
    assert len(looks) == len(TRADEOFFS)


def test_a_constant_that_is_far_below_is_told():
    curve = keep(thyroid_curve(), [0, 1, 2])
    constant = curve.traces.loc[curve.traces["n_iter"] == 0, "score"].min()
    ax = drawn(plot_curve(curve))
    low, high = ax.get_ylim()
    assert constant < low < curve.points["score"].min() <= curve.points["score"].max() < high
    (note,) = ax.texts
    assert note.get_text() == f"a constant is below, at {constant:.4g}"
    box, axes = note.get_window_extent(), ax.get_window_extent()
    assert axes.x0 < box.x0 < box.x1 < axes.x1
    assert axes.y0 < box.y0 < box.y1 < axes.y1


def test_a_constant_that_is_near_is_shown():
    curve = thyroid_curve()
    ax = plot_curve(curve)
    assert ax.get_ylim()[0] < curve.traces["score"].min()
    assert len(ax.texts) == 0


def test_cost_axis_is_linear_within_a_decade():
    assert plot_curve(thyroid_curve()).get_xscale() == "linear"


def test_cost_axis_is_logarithmic_beyond_a_decade():
    curve = wide_curve()
    ax = drawn(plot_curve(curve))
    # Traces start with the constant model, which costs nothing and has a place of its own.
    assert ax.get_xscale() == "symlog"
    assert ax.get_xlim()[0] < 0
    places = ax.transData.transform([(cost, 0) for cost in (0, 1, 1e3, 1e6)])[:, 0]
    assert (np.diff(places) > 10).all()
    assert np.diff(places)[1] == pytest.approx(np.diff(places)[2])
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert labels[:3] == ["0", "1", "100"] or labels[:3] == ["0", "1", "10"]

    bought = curve.traces[curve.traces.cost > 0]
    dear = plot_curve(TradeoffCurve(bought, curve.models, curve.scoring))
    assert dear.get_xscale() == "log"


@pytest.mark.parametrize("decades", [1.1, 3, 6, 9])
@pytest.mark.parametrize("least", [0.0, 1.0])
def test_no_mark_is_cut_off_at_the_sides(least, decades):
    """A circle is 9.5 points wide, and its edge more than one."""
    ax = Figure(figsize=(7.5, 4.5)).add_subplot()
    costs = np.array([least, 1.0, 10.0**decades])
    cost_axis(ax, [costs], "")
    places = ax.transData.transform(np.column_stack([costs, costs * 0.0]))[:, 0]
    radius = (9.5 + 1.2) / 2 * ax.figure.dpi / 72
    assert ax.get_window_extent().x0 + radius <= places.min()
    assert places.max() <= ax.get_window_extent().x1 - radius


def test_ticks_are_few_and_apart():
    for ax in (plot_curve(wide_curve(), small_axes()), plot_curve(wide_curve())):
        assert_apart(boxes(label for label in drawn(ax).get_xticklabels() if label.get_text()))


def test_one_point():
    curve = keep(thyroid_curve(), [2])
    ax = drawn(plot_curve(curve))
    assert circled(ax).get_xdata().tolist() == [46.5]
    assert legend_of(ax) == ["0.001", "best iteration"]


def test_constant_model():
    curve = constant_curve()
    ax = drawn(plot_curve(curve))
    assert circled(ax).get_xdata().tolist() == [0.0]
    assert ax.get_xscale() == "linear"
    assert_legend_is_clear_of_data(ax)
    shares = drawn(plot_features(curve))
    assert {share for line in shares.lines for share in line.get_ydata()} == {0.0}
    receipt = drawn(plot_receipt(curve.models[0], curve))
    assert [text.get_text() for text in receipt.texts] == ["nothing bought"]


def test_thirty_tradeoffs():
    ax = plot_curve(wide_curve(n_tradeoffs=30))
    assert len(dashed(ax)) == 30
    assert len(legend_of(ax)) == 11
    assert ax.get_legend().get_title().get_text() == "tradeoff λ (10 of 30)"
    assert legend_of(ax)[0] == "0"
    assert legend_of(ax)[-2] == "0.5"
    assert_legend_is_clear_of_data(ax)


def test_scores_that_are_not_numbers():
    curve = keep(thyroid_curve(), [0, 1])
    curve.traces.loc[curve.traces.n_iter == 3, "score"] = np.nan
    curve.points.loc[0, "score"] = np.nan
    ax = drawn(plot_curve(curve))
    # A gap in each trace, one circle less, and limits from what is left.
    for line in dashed(ax):
        assert np.flatnonzero(np.isnan(line.get_ydata())).tolist() == [3]
    assert np.isnan(circled(ax).get_ydata()).tolist() == [True, False]
    low, high = ax.get_ylim()
    assert low < curve.points.score[1] < high


# Legends and layout


def small_axes(**options):
    return Figure(figsize=(4, 3.4), **options).add_subplot()


@pytest.mark.parametrize("layout", [None, "constrained", "tight"])
@pytest.mark.parametrize("size", [(4, 3.4), (9, 5)])
@pytest.mark.parametrize("draw", [plot_curve, plot_features], ids=["curve", "features"])
def test_legend_is_clear_of_data(draw, size, layout):
    ax = Figure(figsize=size, layout=layout).add_subplot()
    assert draw(thyroid_curve(), ax) is ax
    assert_legend_is_clear_of_data(ax)


@pytest.mark.parametrize("draw", [plot_curve, plot_features], ids=["curve", "features"])
def test_neighbours_keep_their_room(draw):
    figure = Figure(figsize=(14, 5))
    left, right = figure.subplots(1, 2)
    draw(thyroid_curve(), left)
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
        brightness = [np.mean(matplotlib.colors.to_rgb(line.get_color())) for line in ax.lines]
    assert min(brightness) > 0.25


# Features


def test_features_by_price():
    curve = thyroid_curve()
    ax = plot_features(curve)
    # 16 questions; T3 and T4U; TT4; TSH; FTI, each with what it needs.
    assert legend_of(ax) == ["1 (16)", "11.41 (2)", "14.51 (1)", "22.78 (1)", "23.82 (1)"]
    assert ax.get_legend().get_title().get_text() == "price in dollars"
    questions = [
        len([f for f in model.truncate(n).ensemble_.features if f < 16]) / 16
        for model, n in zip(curve.models, curve.points.n_iter, strict=True)
    ]
    assert ax.lines[0].get_ydata().tolist() == questions
    assert [label.get_text() for label in ax.get_xticklabels()] == [
        "0", "0.0001", "0.001", "0.005", "0.01", "0.03",
    ]  # fmt: skip
    assert ax.get_xlabel() == "tradeoff λ"


def test_many_prices_share_groups():
    ax = plot_features(wide_curve())
    assert len(ax.lines) == 8
    assert [label.partition("(")[2] for label in legend_of(ax)] == ["5)"] * 8
    assert legend_of(ax)[0] == "1–5.062 (5)"  # noqa: RUF001


def test_price_groups_hold_every_feature_once():
    for prices in (np.zeros(4), np.r_[np.zeros(90), np.arange(1.0, 11)], np.arange(9.0)):
        groups = features._price_groups(prices)
        members = sorted(member for group in groups.values() for member in group)
        assert members == list(range(len(prices)))
        assert len(groups) <= features.MOST_COST_GROUPS
        ends = [max(prices[list(group)]) for group in groups.values()]
        assert all(low < high for low, high in pairwise(ends))


def test_features_at_many_tradeoffs():
    ax = drawn(plot_features(wide_curve(n_tradeoffs=30)))
    assert len(ax.lines[0].get_xdata()) == 30
    assert len(ax.get_xticks()) == 8


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
    assert panel.get_ylabel() == "test\nneg_log_loss"
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


def test_the_dearest_purchases_are_named():
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
    assert ax.get_ylabel() == "neg_log_loss"
    assert ax.get_xlabel() == "cost of one prediction (dollars)"
    assert len({line.get_marker() for line in ax.lines}) == 2
    assert_legend_is_clear_of_data(ax)


def test_comparison_uses_test_scores_only_if_all_have_them():
    curve = thyroid_curve()
    tested = with_test_scores(curve)
    assert compare_curves({"a": tested}).get_ylabel() == "test neg_log_loss"
    mixed = compare_curves({"a": tested, "b": curve})
    assert sorted(mixed.lines[0].get_ydata()) == sorted(curve.points.score)


def test_comparison_of_bad_input():
    with pytest.raises(ValueError, match="at least one"):
        compare_curves({})
    with pytest.raises(ValueError, match="curve 'a' has no column 'score'"):
        compare_curves({"a": pd.DataFrame({"cost": [1.0]})})


# Displays

DISPLAYS = {
    "curve": (TradeoffCurveDisplay.from_curve, plot_curve, thyroid_curve),
    "shares": (FeatureSharesDisplay.from_curve, plot_features, thyroid_curve),
    "receipt": (ReceiptDisplay.from_estimator, plot_receipt, lambda: thyroid_curve().best()),
    "comparison": (
        CurveComparisonDisplay.from_curves,
        compare_curves,
        lambda: {"one": thyroid_curve(), "other": thyroid_curve().points},
    ),
}


@pytest.mark.parametrize("name", DISPLAYS)
def test_displays_are_the_pictures(name):
    make, draw, subject = DISPLAYS[name]
    given = subject()
    figure = Figure(layout="constrained")
    ax = figure.add_subplot()
    display = make(given, ax=ax)
    assert display.ax_ is ax
    assert display.figure_ is figure
    plain = draw(given)
    assert len(ax.lines) == len(plain.lines) > 0
    for ours, theirs in zip(ax.lines, plain.lines, strict=True):
        np.testing.assert_array_equal(ours.get_xydata(), theirs.get_xydata())
    assert (ax.get_xlabel(), ax.get_ylabel()) == (plain.get_xlabel(), plain.get_ylabel())


@pytest.mark.parametrize("name", DISPLAYS)
def test_displays_ask_pyplot_for_a_figure(name):
    make, _, subject = DISPLAYS[name]
    display = make(subject())
    try:
        assert plt.gcf() is display.figure_
        first = display.figure_
        assert display.plot() is display
        assert display.figure_ is not first
    finally:
        plt.close("all")
