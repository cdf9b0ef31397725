"""Coverage: the extra runs are those that brute force finds, and their narrowing is what Bayes says."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from profiles.files import SHIPPED
from profiles.machines import parse_machine
from profiles.schema import Recipe
from profiles.store import load_workload, read_profile
from simulator import Case, Run, predict
from simulator.calibrated import beyond, beyond_sd_log, size_sd_log, with_measured
from simulator.components import Choice, component_seconds
from simulator.coverage import REPEAT_SD_LOG, SCALES, coverage
from simulator.outlook import sizes_of
from simulator.rates import datasheet_profile
from simulator.steptime import covariance, gradient, log_factors, predictive_sd

RECIPE = Recipe(micro_batch=16, seq=2048, compile="on")


@cache
def case(model="pythia-410m", machine=None):
    workload = load_workload(model)
    assert workload is not None
    profile = datasheet_profile(parse_machine(machine)) if machine else read_profile(SHIPPED / "fitted" / "1xH200.json")
    return Case(workload=workload, profile=profile, run=Run())


def row(own, recipe):
    """Gradient and own noise of one recipe."""
    fit, rates = own.profile.fit, own.profile.rates
    sizes = sizes_of(own, recipe, np.array([recipe.micro_batch]))
    seconds = component_seconds(own.workload, rates, Choice.of(recipe), sizes)
    shares = gradient(seconds, np.ones(1), log_factors(fit))[0]
    whole = predictive_sd(seconds, np.ones(1), fit, rates)[0] ** 2
    return shares, math.sqrt(max(whole - shares @ covariance(fit, rates) @ shares, REPEAT_SD_LOG**2))


def posterior(prior, runs):
    """The textbook's update, in a basis in which the prior is regular."""
    shares = np.array([x for x, _ in runs])
    noise = np.diag([n**2 for _, n in runs])
    reach = prior @ shares.T
    return prior - reach @ np.linalg.inv(shares @ reach + noise) @ reach.T


@pytest.mark.parametrize("machine", [None, "1xA100-80GB"])
def test_factors_are_those_of_the_posterior_after_each_run(machine):
    own = case(machine=machine)
    fit, prior = own.profile.fit, covariance(own.profile.fit, own.profile.rates)
    shares, noise = row(own, RECIPE)
    found = coverage(own, [RECIPE])
    assert len(found) == 3
    runs = []
    before = math.exp(fit.interval_scale * math.sqrt(shares @ prior @ shares + noise**2))
    for extra in found:
        assert extra.factor_before == pytest.approx(before)
        runs.append(row(own, extra.recipe))
        left = posterior(prior, runs)
        before = math.exp(fit.interval_scale * math.sqrt(shares @ left @ shares + noise**2))
        assert extra.factor == pytest.approx(before)
        assert extra.factor < extra.factor_before


def test_the_first_run_is_the_best_of_all_that_were_possible():
    own = case(machine="1xA100-80GB")
    prior = covariance(own.profile.fit, own.profile.rates)
    shares, _ = row(own, RECIPE)
    kinds = [RECIPE, replace(RECIPE, compile="off")]
    candidates = [replace(k, micro_batch=max(1, round(s * 16))) for k in kinds for s in SCALES]
    left = [shares @ posterior(prior, [row(own, one)]) @ shares for one in candidates if predict(own, one).fits]
    found = coverage(own, [RECIPE], count=1)[0]
    assert shares @ posterior(prior, [row(own, found.recipe)]) @ shares == pytest.approx(min(left))


def test_a_run_of_a_model_never_measured_closes_that_gap_first():
    own = case("bert-base")
    recipe = Recipe(micro_batch=256, seq=512)
    assert set(beyond(own, recipe)) == {"model", "micro_batch"}
    first = coverage(own, [recipe])[0]
    assert "model" in first.closes
    measured = with_measured(own.profile.fit, own, first.recipe)
    assert "model" not in beyond(own, recipe, measured)
    assert beyond_sd_log(own, recipe, measured) < beyond_sd_log(own, recipe)
    given = math.log(predict(own, recipe).step_s_high / predict(own, recipe).step_s)
    assert math.log(first.factor_before) == pytest.approx(given), "the answer's own interval is where it starts"


def test_what_is_proposed_fits_and_is_legal_and_different():
    own = case("pythia-1b")
    found = [extra.recipe for extra in coverage(own, [Recipe(micro_batch=64, seq=2048, checkpointing="full")])]
    assert len(set(found)) == 3
    assert all(predict(own, recipe).fits and recipe.grad_accum == 1 for recipe in found)


def test_nothing_is_proposed_where_nothing_fits():
    own = case("llama-2-7b", "1xT4")
    assert coverage(own, [Recipe(micro_batch=8, precision="fp16")]) == ()


def test_sizes_add_by_the_ratio_they_leave_the_range_by():
    fit = replace(case().profile.fit, calibrated={"micro_batch": ("4", "16")})
    assert size_sd_log(fit, "micro_batch", np.array([2, 4, 10, 16, 64])) == pytest.approx(
        [0.04 * math.log(2), 0, 0, 0, 0.04 * math.log(4)]
    )
    assert not size_sd_log(fit, "depth", np.array([1, 1000])).any(), "nothing is said of depth"
