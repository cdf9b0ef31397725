"""Step time from components: derivatives by finite differences, bounds, monotony, and the covariance's fallback."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from profiles.catalogue import load_gpu
from profiles.schema import Correction, Fit
from simulator.components import COMPONENTS, INDEX, group_mask
from simulator.rates import datasheet_rates
from simulator.steptime import (
    COMPILED_SD_LOG,
    HOST_COLUMNS,
    covariance,
    form_sd,
    gradient,
    host_share,
    log_factors,
    predictive_sd,
    prior_sd,
    smooth_max,
    step_times,
)

COUNT = len(COMPONENTS)
RATES = datasheet_rates(load_gpu("A100-80GB"))
GROUPS = ("gpu", "host", "step_gpu", "step_host", "sync")


def one_row(gpu_s, host_s):
    table = np.zeros((1, COUNT))
    table[0, INDEX["matmul.bf16.aligned"]] = gpu_s
    table[0, INDEX["dispatch.forward"]] = host_s
    return table


times = st.floats(0.0, 10.0, allow_subnormal=False).map(lambda x: 0.0 if x < 1e-9 else x)
seconds = arrays(np.float64, (3, COUNT), elements=times).filter(
    lambda a: (a[:, group_mask("gpu")].sum(axis=1) > 0).all()
)
factors = arrays(np.float64, COUNT, elements=st.floats(-1.5, 1.5))
accumulations = arrays(np.float64, 3, elements=st.integers(1, 64).map(float))
quick = settings(max_examples=40, deadline=None)


@quick
@given(seconds, accumulations, factors, st.data())
def test_the_gradient_is_the_numeric_derivative_of_log_step_time(table, grad_accum, at, data):
    exact = gradient(table, grad_accum, at)
    h = 1e-5
    for column in data.draw(st.lists(st.integers(0, COUNT - 1), min_size=5, max_size=10, unique=True)):
        nudge = np.zeros(COUNT)
        nudge[column] = h
        up, down = (np.log(step_times(table, grad_accum, at + s * nudge).step_s) for s in (1, -1))
        assert exact[:, column] == pytest.approx((up - down) / (2 * h), abs=1e-6)


@quick
@given(seconds, accumulations, factors)
def test_shares_add_up_to_one_since_time_is_homogeneous(table, grad_accum, at):
    shares = gradient(table, grad_accum, at)
    assert (shares >= 0).all()
    assert shares.sum(axis=1) == pytest.approx(np.ones(3))


@quick
@given(seconds, accumulations, factors, st.integers(0, COUNT - 1), st.floats(0.0, 5.0))
def test_more_time_anywhere_never_makes_the_step_shorter(table, grad_accum, at, column, extra):
    longer = table.copy()
    longer[:, column] += extra
    before, after = step_times(table, grad_accum, at), step_times(longer, grad_accum, at)
    assert (after.step_s >= before.step_s * (1 - 1e-12)).all()


@quick
@given(seconds, accumulations, factors)
def test_the_step_is_between_full_overlap_and_none(table, grad_accum, at):
    sums = {g: (table * np.exp(at))[:, group_mask(g)].sum(axis=1) for g in GROUPS}
    found = step_times(table, grad_accum, at)
    hidden = grad_accum * np.maximum(sums["gpu"], sums["host"]) + np.maximum(sums["step_gpu"], sums["step_host"])
    none = grad_accum * (sums["gpu"] + sums["host"]) + sums["step_gpu"] + sums["step_host"]
    assert (found.step_s >= (hidden + sums["sync"]) * (1 - 1e-12)).all()
    assert (found.step_s <= (none + sums["sync"]) * (1 + 1e-12)).all()
    assert found.step_s == pytest.approx(grad_accum * found.micro_s + found.optimizer_s + found.sync_s)


@quick
@given(arrays(np.float64, 5, elements=times), arrays(np.float64, 5, elements=times))
def test_smooth_max_is_symmetric_and_between_the_larger_and_an_eighth_more(left, right):
    joined = smooth_max(left, right)
    larger = np.maximum(left, right)
    assert joined == pytest.approx(smooth_max(right, left))
    assert (joined >= larger * (1 - 1e-12)).all()
    assert (joined <= larger * 1.125 + 1e-299).all()


def test_smooth_max_survives_zero_and_hides_what_is_far_smaller():
    zero, one, tenth = np.zeros(1), np.ones(1), np.full(1, 0.1)
    assert smooth_max(zero, zero)[0] == pytest.approx(0.0, abs=1e-290)
    assert smooth_max(one, zero)[0] == 1.0
    assert smooth_max(one, tenth)[0] == pytest.approx(1.0, abs=1e-6)
    assert smooth_max(one, one)[0] == pytest.approx(2 ** (1 / 6))


def correction(component, value=0.1):
    return Correction(component=component, log_factor=value, identified=True)


def test_factors_land_in_their_column_and_unknown_ones_are_ignored():
    fit = Fit(corrections=(correction("softmax", 0.3), correction("long.gone", 9.0), correction("clip", -0.2)))
    found = log_factors(fit)
    assert found[INDEX["softmax"]] == 0.3
    assert found[INDEX["clip"]] == -0.2
    assert np.count_nonzero(found) == 2


def test_the_covariance_is_the_fits_block_inside_the_prior():
    fit = Fit(
        corrections=(correction("softmax"), correction("matmul.bf16.aligned")),
        covariance=((0.04, -0.01), (-0.01, 0.09)),
    )
    matrix = covariance(fit, RATES)
    first, second = INDEX["softmax"], INDEX["matmul.bf16.aligned"]
    assert matrix[first, first] == 0.04
    assert matrix[second, second] == 0.09
    assert matrix[first, second] == matrix[second, first] == -0.01
    rest = [i for i in range(COUNT) if i not in (first, second)]
    assert matrix[np.ix_(rest, rest)] == pytest.approx(covariance(Fit(), RATES)[np.ix_(rest, rest)])
    assert not matrix[np.ix_(rest, [first, second])].any()


@pytest.mark.parametrize(
    "fit",
    [
        Fit(),
        Fit(corrections=(correction("softmax"),)),
        Fit(corrections=(correction("long.gone"),), covariance=((5.0,),)),
    ],
)
def test_without_a_usable_covariance_the_prior_holds(fit):
    matrix = covariance(fit, RATES)
    assert np.diag(matrix) == pytest.approx(prior_sd(RATES) ** 2)
    assert (matrix == covariance(Fit(), RATES)).all()


def test_in_the_prior_only_the_hosts_costs_hang_together():
    matrix = covariance(Fit(), RATES)
    host = group_mask("host")
    sd = prior_sd(RATES)
    correlation = matrix / np.outer(sd, sd)
    assert (correlation[np.ix_(host, host)] > 0.5).all()
    assert (correlation <= 1 + 1e-12).all()
    assert matrix[~host] == pytest.approx(np.diag(sd**2)[~host])
    assert np.linalg.eigvalsh(matrix).min() > 0


def test_a_fit_of_some_host_costs_leaves_a_covariance_that_can_be():
    """Only one phase of dispatch was seen, and sharply: the others' prior must not drag variances below zero."""
    fit = Fit(corrections=(correction("dispatch.forward"),), covariance=((1e-6,),))
    matrix = covariance(fit, RATES)
    assert np.linalg.eigvalsh(matrix).min() > 0
    table = one_row(1e-3, 1.0)
    assert predictive_sd(table, np.ones(1), fit, RATES)[0] == pytest.approx(1e-3, rel=0.01)


def test_one_component_alone_has_the_prior_of_that_component():
    sd = predictive_sd(one_row(1.0, 0.0), np.ones(1), Fit(), RATES)
    assert sd[0] == pytest.approx(prior_sd(RATES)[INDEX["matmul.bf16.aligned"]])


def test_noise_adds_in_quadrature_and_the_crossover_only_where_the_host_counts():
    fit = Fit(noise_sd_log=0.3, host_sd_log=0.4)
    own = prior_sd(RATES)[INDEX["matmul.bf16.aligned"]]
    calm = predictive_sd(one_row(1.0, 0.001), np.ones(1), fit, RATES)[0]
    assert calm == pytest.approx(np.hypot(own, 0.3), rel=1e-6)
    rough = predictive_sd(one_row(0.001, 1.0), np.ones(1), fit, RATES)[0]
    host = prior_sd(RATES)[INDEX["dispatch.forward"]]
    assert rough == pytest.approx(np.sqrt(host**2 + 0.3**2 + 0.4**2), rel=1e-6)


def test_the_interval_from_the_data_sheet_is_the_spread_of_its_rates():
    """Monte Carlo over the prior: log step time strays as far as the linear formula says."""
    random = np.random.default_rng(5)
    table = np.abs(random.normal(1.0, 0.5, (1, COUNT)))
    table[:, INDEX["compiled.floor"]] = 0.0
    draws = random.normal(0.0, 1.0, (20_000, COUNT)) * prior_sd(RATES)
    logs = np.concatenate([np.log(step_times(table, np.ones(1), d).step_s) for d in draws[:4000]])
    said = predictive_sd(table, np.ones(1), Fit(), RATES)[0]
    assert logs.std() == pytest.approx(said, rel=0.1)


def test_what_the_host_decides_is_its_share_by_finite_differences():
    random = np.random.default_rng(3)
    table, accum, nudge = np.abs(random.normal(1.0, 0.7, (6, COUNT))), np.ones(6), 1e-5
    moved = np.where(HOST_COLUMNS, nudge, 0.0)
    up, down = (np.log(step_times(table, accum, f).step_s) for f in (moved, -moved))
    assert host_share(gradient(table, accum, np.zeros(COUNT))) == pytest.approx((up - down) / (2 * nudge), rel=1e-5)


def test_compiled_steps_are_less_certain():
    table = np.abs(np.random.default_rng(4).normal(1.0, 0.5, (1, COUNT)))
    plain, compiled = table.copy(), table.copy()
    plain[:, INDEX["compiled.floor"]] = 0.0
    compiled[:, INDEX["compiled.floor"]] = 1e-12
    sds = [predictive_sd(t, np.ones(1), Fit(), RATES)[0] for t in (plain, compiled)]
    assert sds[1] == pytest.approx(np.hypot(sds[0], COMPILED_SD_LOG), rel=1e-6)


def test_the_hosts_wandering_reaches_the_step_as_far_as_the_host_decides():
    """Monte Carlo: all host time of a step scaled by one log-normal factor, over steps that it decides more or less."""
    wandering = 0.02
    fit = Fit(noise_sd_log=0.0, host_sd_log=wandering)
    draws = np.exp(np.random.default_rng(6).normal(0.0, wandering, 20_000))
    for host_s in (0.6, 0.8, 1.0, 1.3, 4.0):
        table = one_row(1.0, host_s)
        many = np.repeat(table, len(draws), axis=0)
        many[:, HOST_COLUMNS] *= draws[:, None]
        strayed = np.log(step_times(many, np.ones(len(draws)), np.zeros(COUNT)).step_s).std()
        known = [predictive_sd(table, np.ones(1), replace(fit, host_sd_log=s), RATES)[0] for s in (wandering, 0.0)]
        assert np.sqrt(known[0] ** 2 - known[1] ** 2) == pytest.approx(strayed, rel=0.02)


def test_the_form_is_open_in_the_rows_that_are_compiled_and_in_no_others():
    table = np.ones((3, COUNT))
    table[1, INDEX["compiled.floor"]] = 0.0
    assert form_sd(table).tolist() == [COMPILED_SD_LOG, 0.0, COMPILED_SD_LOG]


def test_the_host_decides_between_nothing_and_everything():
    table = np.concatenate([one_row(1.0, 0.0), one_row(1.0, 1.0), one_row(1e-6, 1.0)])
    share = host_share(gradient(table, np.ones(3), np.zeros(COUNT)))
    assert share == pytest.approx([0.0, 0.5, 1.0])
