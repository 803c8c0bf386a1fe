"""Every loss against its own values, and LambdaMART pair by pair."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import naive
from greedymiser._core.arithmetic import SUM_TABLE, new_sums, rounded
from greedymiser._core.threads import Threads
from greedymiser.engines.cpu.kernels import rows
from greedymiser.engines.cpu.kernels.rows import CHUNK
from greedymiser.losses import (
    REGRESSION_LOSSES,
    AbsoluteError,
    BinaryLogLoss,
    Gamma,
    Huber,
    LambdaMART,
    Loss,
    MultinomialLogLoss,
    Poisson,
    Quantile,
    SquaredError,
    as_loss,
    exact_mean,
    weighted_quantile,
)

KINKED = [AbsoluteError(), Quantile(0.1), Quantile(0.5), Huber(1.0), Huber(0.3)]
SMOOTH = [SquaredError(), Poisson(), Gamma(), BinaryLogLoss()]


def named(losses):
    return pytest.mark.parametrize("loss", losses, ids=lambda loss: type(loss).__name__)


def targets(loss, rng, n):
    """Targets that the loss is made for."""
    if isinstance(loss, MultinomialLogLoss):
        return rng.integers(0, loss.n_outputs, n).astype(float)
    if isinstance(loss, BinaryLogLoss):
        return rng.integers(0, 2, n).astype(float)
    if isinstance(loss, Poisson):
        return rng.poisson(1.5, n).astype(float)
    if isinstance(loss, Gamma):
        return rng.gamma(2.0, size=n)
    return rng.standard_normal(n)


# -- derivatives ----------------------------------------------------------------------------------


@named([*SMOOTH, *KINKED])
def test_gradients_are_slopes_of_the_values(loss):
    rng = np.random.default_rng(0)
    y, raw = targets(loss, rng, 200), rng.standard_normal(200)
    if loss in KINKED:  # away from where the slope jumps
        kink = getattr(loss, "delta", 0.0)
        away = np.abs(np.abs(y - raw) - kink) > 1e-3
        y, raw = y[away], raw[away]
    step = 1e-5
    slope = (loss.values(y, raw + step) - loss.values(y, raw - step)) / (2 * step)
    gradient, _ = loss.gradients(y, raw)
    np.testing.assert_allclose(gradient, slope, rtol=1e-6, atol=1e-8)


@named(SMOOTH)
def test_hessians_are_slopes_of_the_gradients(loss):
    rng = np.random.default_rng(1)
    y, raw = targets(loss, rng, 200), rng.standard_normal(200)
    step = 1e-5
    slope = (loss.gradients(y, raw + step)[0] - loss.gradients(y, raw - step)[0]) / (2 * step)
    hessian = loss.gradients(y, raw)[1]
    np.testing.assert_allclose(np.ones(200) if hessian is None else hessian, slope, rtol=1e-6)


@named(KINKED)
def test_kinked_losses_leave_the_hessian_to_be_one(loss):
    assert loss.gradients(np.zeros(3), np.ones(3))[1] is None


def test_gradients_at_the_kink_are_between_those_beside_it():
    y = np.zeros(1)
    for loss in KINKED:
        below, at, above = (loss.gradients(y, np.array([r]))[0][0] for r in (-1e-9, 0.0, 1e-9))
        assert below <= at <= above


def test_multinomial_derivatives_are_finite_differences():
    loss = MultinomialLogLoss(3)
    rng = np.random.default_rng(2)
    y, raw = targets(loss, rng, 50), rng.standard_normal((3, 50))
    gradient, hessian = loss.gradients(y, raw)
    step = 1e-5
    for k in range(3):
        up, down = raw.copy(), raw.copy()
        up[k] += step
        down[k] -= step
        slope = (loss.values(y, up) - loss.values(y, down)) / (2 * step)
        np.testing.assert_allclose(gradient[k], slope, atol=1e-8)
        curve = (loss.gradients(y, up)[0][k] - loss.gradients(y, down)[0][k]) / (2 * step)
        # Friedman's factor K / (K - 1): K outputs share a step that K - 1 could make.
        np.testing.assert_allclose(hessian[k], curve * 3 / 2, atol=1e-8)
    np.testing.assert_allclose(gradient.sum(axis=0), 0.0, atol=1e-15)


@pytest.mark.parametrize("n_outputs", [3, 10])
def test_rows_of_several_classes_do_not_depend_on_where_they_stand(n_outputs):
    """Kernels take many rows at once, in blocks of which the last is shorter."""
    loss, n = MultinomialLogLoss(n_outputs), 2 * CHUNK + 77
    rng = np.random.default_rng(4)
    y, raw = rng.integers(0, n_outputs, n).astype(float), 3 * rng.standard_normal((n_outputs, n))
    raw[:, 5] = [700.0, *[-700.0] * (n_outputs - 1)]
    gradient, hessian = loss.gradients(y, raw)
    values = loss.values(y, raw)
    for i in (0, 5, CHUNK - 1, CHUNK, 2 * CHUNK + 76):
        alone = loss.gradients(y[i : i + 1], raw[:, i : i + 1])
        assert np.array_equal(alone[0][:, 0], gradient[:, i])
        assert np.array_equal(alone[1][:, 0], hessian[:, i])
        assert loss.values(y[i : i + 1], raw[:, i : i + 1])[0] == values[i]
    with Threads(2) as threads:
        found, written = np.empty((n_outputs, 3, 3)), np.empty((2, n_outputs, n))
        rows.derive(threads.team(), loss.formula, y, raw, np.empty(0), *written, found)
        assert np.array_equal(written, [gradient, hessian])
        totals, tables = new_sums(2), np.zeros((2, SUM_TABLE), dtype=np.int64)
        rows.sum_loss(threads.team(), loss.formula, y, raw, np.empty(0), totals, tables)
        assert rounded(totals[0]) == math.fsum(values)


@named([*SMOOTH, *KINKED])
def test_derivatives_do_not_touch_their_arguments(loss):
    rng = np.random.default_rng(3)
    y, raw = targets(loss, rng, 20), rng.standard_normal(20)
    before = y.copy(), raw.copy()
    gradient, hessian = loss.gradients(y, raw)
    gradient += 1.0
    if hessian is not None:
        hessian += 1.0
    loss.values(y, raw)
    np.testing.assert_array_equal(y, before[0])
    np.testing.assert_array_equal(raw, before[1])


def test_values_by_hand():
    y, raw = np.array([1.0, 4.0]), np.array([3.0, 3.0])
    assert SquaredError().values(y, raw).tolist() == [2.0, 0.5]
    assert AbsoluteError().values(y, raw).tolist() == [2.0, 1.0]
    assert Quantile(0.25).values(y, raw).tolist() == [1.5, 0.25]
    assert Huber(1.5).values(y, raw).tolist() == [1.5 * (2 - 0.75), 0.5]
    np.testing.assert_allclose(Poisson().values(y, np.log(y)), 0.0, atol=1e-15)
    np.testing.assert_allclose(Gamma().values(y, np.log(y)), 0.0, atol=1e-15)
    np.testing.assert_allclose(Poisson().values(np.zeros(1), np.zeros(1)), 1.0)
    np.testing.assert_allclose(BinaryLogLoss().values(np.array([0.0, 1.0]), 0.0), math.log(2))
    zero = np.zeros((4, 2))
    np.testing.assert_allclose(MultinomialLogLoss(4).values(y - 1, zero), math.log(4))


def test_log_losses_survive_large_raw_predictions():
    y, raw = np.array([0.0, 1.0, 0.0, 1.0]), np.array([-800.0, 800.0, 800.0, -800.0])
    loss = BinaryLogLoss()
    assert loss.values(y, raw).tolist() == [0.0, 0.0, 800.0, 800.0]
    assert loss.gradients(y, raw)[0].tolist() == [0.0, 0.0, 1.0, -1.0]
    several = MultinomialLogLoss(2)
    both = np.stack([np.zeros(4), raw])
    assert several.values(y, both).tolist() == [0.0, 0.0, 800.0, 800.0]


@named([*SMOOTH, *KINKED])
@pytest.mark.parametrize("weighted", [False, True])
def test_value_is_the_weighted_mean(loss, weighted):
    rng = np.random.default_rng(4)
    y, raw = targets(loss, rng, 30), rng.standard_normal(30)
    weight = rng.uniform(0, 2, 30) if weighted else None
    w = np.ones(30) if weight is None else weight
    expected = math.fsum(w * loss.values(y, raw)) / math.fsum(w)
    assert loss.value(y, raw, weight) == pytest.approx(expected)


# -- priors ---------------------------------------------------------------------------------------

# Huber starts from the median, which is robust but not quite the minimum.
EXACT_PRIORS = [loss for loss in [*SMOOTH, *KINKED] if not isinstance(loss, Huber)]


@named(EXACT_PRIORS)
@pytest.mark.parametrize("weighted", [False, True])
def test_prior_minimises_the_mean_loss(loss, weighted):
    rng = np.random.default_rng(5)
    y = targets(loss, rng, 101)
    weight = rng.uniform(0.1, 2, 101) if weighted else None
    prior = loss.prior(y, weight)
    assert prior.shape == (1,)
    least = loss.value(y, np.full(101, prior[0]), weight)
    for shift in (-0.5, -0.01, -1e-4, 1e-4, 0.01, 0.5):
        assert loss.value(y, np.full(101, prior[0] + shift), weight) >= least


@pytest.mark.parametrize("weighted", [False, True])
def test_multinomial_prior_minimises_the_mean_loss(weighted):
    loss = MultinomialLogLoss(3)
    rng = np.random.default_rng(6)
    y = targets(loss, rng, 60)
    weight = rng.uniform(0.1, 2, 60) if weighted else None
    prior = loss.prior(y, weight)
    assert prior.shape == (3,)
    raw = np.repeat(prior[:, None], 60, axis=1)
    w = np.ones(60) if weight is None else weight
    np.testing.assert_allclose((loss.gradients(y, raw)[0] * w).sum(axis=1), 0.0, atol=1e-12)


def test_huber_prior_is_the_median():
    assert Huber().prior(np.array([0.0, 1.0, 50.0]), None).tolist() == [1.0]


def test_priors_by_hand():
    y = np.array([1.0, 2.0, 6.0])
    weight = np.array([3.0, 0.0, 1.0])
    assert SquaredError().prior(y, None).tolist() == [3.0]
    assert SquaredError().prior(y, weight).tolist() == [2.25]
    assert AbsoluteError().prior(y, None).tolist() == [2.0]
    assert AbsoluteError().prior(y, weight).tolist() == [1.0]
    assert Poisson().prior(y, None).tolist() == [math.log(3.0)]
    assert Gamma().prior(y, None).tolist() == [math.log(3.0)]
    assert BinaryLogLoss().prior(np.array([0.0, 1.0, 1.0, 1.0]), None)[0] == pytest.approx(
        math.log(3.0)
    )


@named(EXACT_PRIORS)
def test_prior_does_not_depend_on_the_order_of_rows(loss):
    rng = np.random.default_rng(7)
    y, weight = targets(loss, rng, 300), rng.uniform(0.1, 2, 300)
    prior = loss.prior(y, weight)
    for _ in range(5):
        order = rng.permutation(300)
        assert loss.prior(y[order], weight[order]).tolist() == prior.tolist()


# -- links and targets ----------------------------------------------------------------------------


def test_responses_are_on_the_scale_of_the_target():
    raw = np.array([-1.0, 0.0, 2.0])
    for loss in (SquaredError(), AbsoluteError(), Quantile(0.2), Huber()):
        assert loss.response(raw).tolist() == raw.tolist()
    for loss in (Poisson(), Gamma()):
        np.testing.assert_allclose(loss.response(raw), np.exp(raw))
    p = BinaryLogLoss().response(raw)
    assert p.shape == (2, 3)
    np.testing.assert_allclose(p[1], 1 / (1 + np.exp(-raw)))
    np.testing.assert_allclose(p.sum(axis=0), 1.0)
    several = MultinomialLogLoss(3).response(np.array([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]]))
    np.testing.assert_allclose(several[:, 0], 1 / 3)
    np.testing.assert_allclose(several[:, 1], np.exp([0, 1, 2]) / np.exp([0, 1, 2]).sum())


@named([Poisson(), Gamma(), BinaryLogLoss()])
def test_response_at_the_prior_is_the_mean(loss):
    y = targets(loss, np.random.default_rng(8), 100)
    response = loss.response(loss.prior(y, None))
    assert response.ravel()[-1] == pytest.approx(y.mean())


def test_targets_out_of_range_are_refused():
    with pytest.raises(ValueError, match=r"'poisson' needs y >= 0, got -1"):
        Poisson().check_target(np.array([0.0, -1.0]))
    with pytest.raises(ValueError, match="all of y is 0"):
        Poisson().check_target(np.zeros(3))
    with pytest.raises(ValueError, match=r"'gamma' needs y > 0, got 0"):
        Gamma().check_target(np.array([1.0, 0.0]))
    with pytest.raises(ValueError, match=r"must not be negative, got -0\.5"):
        LambdaMART().check_target(np.array([1.0, -0.5]))
    with pytest.raises(ValueError, match=r"above 30 overflow .* got 31"):
        LambdaMART().check_target(np.array([1.0, 31.0]))


def test_targets_in_range_are_accepted():
    Poisson().check_target(np.array([0.0, 3.0]))
    Gamma().check_target(np.array([1e-9, 3.0]))
    LambdaMART().check_target(np.array([0.0, 30.0]))
    for loss in (SquaredError(), AbsoluteError(), Huber(), BinaryLogLoss()):
        loss.check_target(np.array([-5.0, 5.0]))


def test_parameters_out_of_range_are_refused():
    for quantile in (0.0, 1.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match="quantile must lie between 0 and 1"):
            Quantile(quantile)
    for delta in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="delta must be positive"):
            Huber(delta)
    with pytest.raises(ValueError, match="truncation must be at least 1, got 0"):
        LambdaMART(truncation=0)
    with pytest.raises(ValueError, match="sigma must be positive"):
        LambdaMART(sigma=0.0)


def test_losses_by_name():
    for name, kind in REGRESSION_LOSSES.items():
        loss = kind()
        assert isinstance(loss, Loss), name
        assert loss.n_outputs == 1
        assert loss.renews_leaves == isinstance(loss, Quantile)


# -- exact sums and quantiles ---------------------------------------------------------------------


@given(st.lists(st.floats(-1e15, 1e15), min_size=1), st.randoms(use_true_random=False))
def test_exact_mean_does_not_depend_on_the_order(values, random):
    y = np.array(values)
    weight = np.array([random.uniform(0.1, 3.0) for _ in values])
    order = list(range(len(values)))
    random.shuffle(order)
    assert exact_mean(y, None) == exact_mean(y[order], None) == math.fsum(values) / len(values)
    assert exact_mean(y, weight) == exact_mean(y[order], weight[order])


weights = st.one_of(st.just(1.0), st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0]))


@given(
    st.lists(st.tuples(st.integers(-3, 3).map(float), weights), min_size=1, max_size=12),
    st.sampled_from([0.1, 0.25, 1 / 3, 0.5, 0.9]),
)
def test_weighted_quantile_is_the_middle_of_all_minimisers(pairs, quantile):
    values, weight = np.array(pairs).T
    assume(weight.sum() > 0)
    # Values that weigh nothing are not there.
    present = weight > 0
    expected = naive.weighted_quantile(values[present], weight[present], quantile)
    assert weighted_quantile(values, weight, quantile) == pytest.approx(expected)
    unweighted = naive.weighted_quantile(values, np.ones(len(values)), quantile)
    assert weighted_quantile(values, None, quantile) == pytest.approx(unweighted)


def test_weighted_quantile_by_hand():
    values = np.array([4.0, 1.0, 3.0, 2.0])
    assert weighted_quantile(values, None, 0.5) == 2.5
    assert weighted_quantile(values, None, 0.25) == 1.5
    assert weighted_quantile(values, None, 0.3) == 2.0
    assert weighted_quantile(values, np.array([1.0, 7.0, 1.0, 1.0]), 0.5) == 1.0
    assert weighted_quantile(values[:1], None, 0.99) == 4.0


def test_leaves_of_quantile_losses_take_the_quantile_of_the_residuals():
    residuals = np.array([-1.0, 0.0, 5.0])
    assert AbsoluteError().leaf_value(residuals, None) == 0.0
    assert AbsoluteError().leaf_value(residuals, np.array([0.0, 1.0, 5.0])) == 5.0
    assert Quantile(0.9).leaf_value(residuals, None) == 5.0
    with pytest.raises(NotImplementedError):
        SquaredError().leaf_value(residuals, None)


# -- LambdaMART -----------------------------------------------------------------------------------


def test_lambdas_of_one_pair_by_hand():
    # Equal scores: the relevant document is taken to be second, so a swap gains 1 - 1/log2(3).
    loss = LambdaMART()
    gradient, hessian = loss.gradients(np.array([1.0, 0.0]), np.zeros(2))
    swing = 1 - 1 / math.log2(3)
    np.testing.assert_allclose(gradient, [-swing / 2, swing / 2])
    np.testing.assert_allclose(hessian, [swing / 4, swing / 4])
    # The relevant document already leads by 2, with sigma = 3: p = 1 / (1 + e^6).
    gradient, hessian = LambdaMART(sigma=3.0).gradients(np.array([1.0, 0.0]), np.array([2.0, 0.0]))
    p = 1 / (1 + math.exp(6))
    np.testing.assert_allclose(gradient, [-3 * swing * p, 3 * swing * p])
    np.testing.assert_allclose(hessian, [9 * swing * p * (1 - p)] * 2)


def test_pairs_below_the_truncation_do_not_count():
    y, raw = np.array([0.0, 1.0, 0.0]), np.array([3.0, 2.0, 1.0])
    gradient, _ = LambdaMART(truncation=1).gradients(y, raw)
    assert gradient[2] == 0.0  # its only pair is with the second place
    assert gradient[0] == -gradient[1] > 0.0
    assert LambdaMART(truncation=2).gradients(y, raw)[0][2] > 0.0


@st.composite
def rankings(draw):
    """Queries with ties in scores, in labels and in both."""
    sizes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=4))
    n = sum(sizes)
    labels = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    scores = draw(st.lists(st.sampled_from([-1.0, 0.0, 0.25, 1.7]), min_size=n, max_size=n))
    starts = np.cumsum([0, *sizes]).astype(np.intp)
    return np.array(labels, dtype=float), np.array(scores), starts


@given(rankings(), st.integers(1, 9), st.sampled_from([0.5, 1.0, 2.0]))
def test_lambdas_are_those_of_all_pairs(ranking, truncation, sigma):
    y, raw, starts = ranking
    gradient, hessian = LambdaMART(truncation, sigma).over(starts).gradients(y, raw)
    for first, last in itertools.pairwise(starts):
        query = slice(first, last)
        g, h = naive.lambdas(y[query].tolist(), raw[query].tolist(), truncation, sigma)
        np.testing.assert_allclose(gradient[query], g, rtol=1e-9, atol=1e-13)
        np.testing.assert_allclose(hessian[query], h, rtol=1e-9, atol=1e-13)
        # What one document of a pair gains, the other loses.
        assert abs(gradient[query].sum()) <= 1e-13 * (1 + np.abs(gradient[query]).sum())
        assert (hessian[query] >= 0).all()


@given(rankings(), st.integers(1, 9), st.randoms(use_true_random=False))
def test_lambdas_do_not_depend_on_the_order_of_rows(ranking, truncation, random):
    y, raw, starts = ranking
    order = []
    for first, last in itertools.pairwise(starts):
        rows = list(range(first, last))
        random.shuffle(rows)
        order += rows
    loss = LambdaMART(truncation).over(starts)
    gradient, hessian = loss.gradients(y, raw)
    shuffled_gradient, shuffled_hessian = loss.gradients(y[order], raw[order])
    assert shuffled_gradient.tobytes() == gradient[order].tobytes()
    assert shuffled_hessian.tobytes() == hessian[order].tobytes()


def test_lambdas_of_scores_that_are_no_numbers_are_none():
    y, raw = np.array([0.0, 1.0, 2.0, 1.0]), np.array([0.1, np.nan, 0.3, np.nan])
    gradient, _ = LambdaMART().gradients(y, raw)
    assert np.isnan(gradient[[1, 3]]).all()


def test_queries_without_two_labels_have_no_lambdas():
    loss = LambdaMART().over(np.array([0, 2, 3, 5]))
    gradient, hessian = loss.gradients(np.array([0.0, 0.0, 3.0, 2.0, 2.0]), np.arange(5.0))
    assert not gradient.any()
    assert not hessian.any()


def test_lambdamart_value_is_one_minus_the_ndcg():
    y, raw = np.array([2.0, 0.0, 1.0, 0.0, 1.0]), np.array([0.1, 0.4, 0.3, 0.9, 0.2])
    starts = np.array([0, 3, 5])
    expected = [
        naive.ndcg(y[:3].tolist(), raw[:3].tolist(), 2),
        naive.ndcg(y[3:].tolist(), raw[3:].tolist(), 2),
    ]
    loss = LambdaMART(truncation=2)
    assert loss.over(starts).value(y, raw) == pytest.approx(1 - sum(expected) / 2)
    # Without queries all rows are one.
    assert loss.value(y, raw) == pytest.approx(1 - naive.ndcg(y.tolist(), raw.tolist(), 2))


def test_over_leaves_the_loss_as_it_was():
    loss = LambdaMART(truncation=7, sigma=2.0)
    bound = loss.over(np.array([0, 2]))
    assert loss.starts is None
    assert (bound.truncation, bound.sigma) == (7, 2.0)


# -- losses of users ------------------------------------------------------------------------------


class Plain:
    """A user's loss with only what is needed."""

    def values(self, y, raw):
        return (raw - y) ** 4

    def gradients(self, y, raw):
        return 4 * (raw - y) ** 3, 12 * (raw - y) ** 2


class Complete(Plain):
    def prior(self, y, weight):
        return 5.0

    def response(self, raw):
        return 10 * raw


def test_as_loss_gives_a_users_object_the_other_methods():
    loss = as_loss(Plain())
    y, raw = np.array([0.0, 1.0]), np.array([2.0, 2.0])
    assert isinstance(loss, Loss)
    assert loss.values(y, raw).tolist() == [16.0, 1.0]
    assert loss.gradients(y, raw)[0].tolist() == [32.0, 4.0]
    assert loss.gradients(y, raw)[1].tolist() == [48.0, 12.0]
    assert loss.value(y, raw) == 8.5
    assert loss.prior(y, None).tolist() == [0.0]
    assert loss.response(raw).tolist() == [2.0, 2.0]
    assert loss.n_outputs == 1
    assert not loss.renews_leaves
    loss.check_target(y)


def test_as_loss_keeps_what_a_users_object_brings():
    loss = as_loss(Complete())
    assert loss.prior(np.zeros(2), None).tolist() == [5.0]
    assert loss.response(np.ones(2)).tolist() == [10.0, 10.0]


def test_as_loss_returns_losses_as_they_are():
    loss = Huber()
    assert as_loss(loss) is loss


def test_as_loss_says_what_is_lacking():
    class Half:
        values = Plain.values

    for bad in (Half(), "hinge"):
        with pytest.raises(TypeError, match="must have the methods gradients and values"):
            as_loss(bad)


def test_a_loss_must_say_its_values_and_gradients():
    with pytest.raises(NotImplementedError):
        Loss().values(np.zeros(1), np.zeros(1))
    with pytest.raises(NotImplementedError):
        Loss().gradients(np.zeros(1), np.zeros(1))


def test_equal_weights_do_not_change_the_value_of_lambdamart():
    loss = LambdaMART().over(np.array([0, 3, 5]))
    y, raw = np.array([1.0, 0, 0, 1, 0]), np.array([0.1, 0.2, 0.3, 0.9, 0.1])
    assert loss.value(y, raw, np.full(5, 7.0)) == pytest.approx(loss.value(y, raw))


def test_an_adapted_loss_keeps_all_that_it_says():
    class Plain:
        n_outputs = 3
        renews_leaves = True

        def values(self, y, raw):
            return raw.sum(axis=0)

        def gradients(self, y, raw):
            return raw, None

        def leaf_value(self, residuals, weight):
            return 7.0

    loss = as_loss(Plain())
    assert (loss.n_outputs, loss.renews_leaves, loss.leaf_value(None, None)) == (3, True, 7.0)
    assert loss.prior(None, None).tolist() == [0.0, 0.0, 0.0]


class OwnAbsoluteError(AbsoluteError):
    """Derived by a user: its leaves may take anything."""


def test_leaves_of_a_derived_loss_are_not_taken_for_quantiles():
    assert AbsoluteError().leaf_quantile == 0.5
    assert Quantile(0.2).leaf_quantile == 0.2
    assert OwnAbsoluteError().leaf_quantile is None
