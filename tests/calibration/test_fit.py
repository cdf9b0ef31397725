"""The fit on records made from factors that are known: recovered where they show, left at the prior where not."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from calibration import fit as fit_module
from calibration.fit import (
    HOST_REPEAT_LOG,
    _linearised,
    _noise_at,
    fit_memory,
    fit_profile,
    fit_time,
    in_session,
    solve,
)
from calibration.rows import REPEAT_FLOOR_LOG, memory_of, noise_log, time_rows, usable
from profiles.files import SHIPPED
from profiles.machines import parse_machine
from profiles.schema import Fit, Measurement, Recipe
from profiles.store import load_workload, read_profile
from simulator.components import COMPONENTS, INDEX, group_mask
from simulator.rates import datasheet_profile, datasheet_rates
from simulator.steptime import (
    COMPILED_SD_LOG,
    gradient,
    host_share,
    log_factors,
    predictive_sd,
    prior_sd,
    step_times,
)

MODELS = ("pythia-160m", "pythia-410m")
NOISE = 0.01
TRUE = {
    "matmul.bf16.aligned": 0.15,
    "matmul.fp32.aligned": -0.10,
    "attention.16.backward": 0.25,
    "elementwise": -0.20,
    "dispatch.forward": 0.30,
    "optimizer.adamw_fused": 0.10,
}


@cache
def workloads():
    found = {name: load_workload(name) for name in MODELS}
    assert all(found.values())
    return found


@cache
def rates():
    return read_profile(SHIPPED / "fitted" / "1xH200.json").rates


def truth(**changes):
    factors = np.zeros(len(COMPONENTS))
    for name, value in (TRUE | changes).items():
        factors[INDEX[name]] = value
    return factors


def recipes(count, seed):
    random = np.random.default_rng(seed)
    return [
        Recipe(
            micro_batch=int(random.choice([1, 2, 4, 8, 16, 32, 64])),
            grad_accum=int(random.choice([1, 2, 8])),
            seq=int(random.choice([512, 1024, 2048])),
            precision=str(random.choice(["bf16", "fp32", "tf32"])),
            attention=str(random.choice(["sdpa", "eager"])),
            checkpointing=str(random.choice(["none", "full"])),
        )
        for _ in range(count)
    ]


def records(recipes_, factors=None, noise=NOISE, seed=0, host=0.0, **facts):
    """Records whose step times follow exactly from factors, a session's host effect, and log-normal noise."""
    random = np.random.default_rng(seed)
    models = [MODELS[i % len(MODELS)] for i in range(len(recipes_))]
    bare = [
        Measurement(
            model=m,
            config_hash=workloads()[m].config_hash,
            machine="1xH200",
            recipe=r,
            status="ok",
            step_s=1.0,
            **({"session": "s1", "started_at": "2026-01-01T00:00:00"} | facts),
        )
        for m, r in zip(models, recipes_, strict=True)
    ]
    rows = time_rows(bare, workloads(), rates())
    seconds = in_session(rows.seconds, [host] * len(rows))
    exact = step_times(seconds, rows.grad_accum, truth() if factors is None else factors).step_s
    step = exact * np.exp(random.normal(0.0, noise, len(rows)))
    return [
        replace(r, step_s=float(s), step_s_low=float(s) * 0.99, step_s_high=float(s) * 1.01)
        for r, s in zip(bare, step, strict=True)
    ]


def factor_of(fit, name):
    return log_factors(fit)[INDEX[name]]


def corrections(fit):
    return {c.component: c for c in fit.corrections}


def test_factors_are_recovered_where_records_show_them():
    rows = time_rows(records(recipes(150, seed=1)), workloads(), rates())
    solution = solve(rows, prior_sd(rates()))
    sd = np.sqrt(np.diag(solution.covariance))
    for name, value in TRUE.items():
        assert abs(solution.factors[INDEX[name]] - value) <= 3.5 * sd[INDEX[name]], name
    assert solution.factors[INDEX["matmul.bf16.aligned"]] == pytest.approx(0.15, abs=0.05)
    fit = fit_time(rows, rates())
    fresh = time_rows(records(recipes(80, seed=2), noise=0.0), workloads(), rates())
    error = np.log(step_times(fresh.seconds, fresh.grad_accum, log_factors(fit)).step_s) - fresh.log_step
    assert np.abs(error).mean() < 0.5 * NOISE
    prior = np.log(step_times(fresh.seconds, fresh.grad_accum, log_factors(Fit())).step_s) - fresh.log_step
    assert np.abs(error).mean() < 0.1 * np.abs(prior).mean()


def test_what_no_record_shows_stays_at_the_prior_and_is_not_called_identified():
    plain = [replace(r, precision="bf16", attention="sdpa", checkpointing="none") for r in recipes(20, seed=3)]
    fit = fit_time(time_rows(records(plain), workloads(), rates()), rates())
    seen = corrections(fit)
    for absent in ("matmul.fp16.aligned", "bmm.16", "dispatch.recompute", "compiled.bytes", "sync", "optimizer.lion"):
        assert absent not in seen
        assert factor_of(fit, absent) == 0.0
    assert seen["matmul.bf16.aligned"].identified
    hidden = "reduce"
    assert hidden in seen, "it runs, but takes too little of any step to show"
    assert not seen[hidden].identified
    assert abs(seen[hidden].log_factor) < 0.5 * prior_sd(rates())[INDEX[hidden]]


def test_the_posterior_is_never_wider_than_the_prior_without_excess_noise():
    rows = time_rows(records(recipes(40, seed=4), noise=0.0), workloads(), rates())
    solution = solve(rows, prior_sd(rates()))
    variance = np.diag(solution.covariance)
    assert (variance <= prior_sd(rates()) ** 2 * (1 + 1e-9)).all()
    eigenvalues = np.linalg.eigvalsh(solution.covariance)
    assert eigenvalues.min() > -1e-12


def test_a_component_that_takes_no_time_changes_nothing():
    rows = time_rows(records(recipes(30, seed=5)), workloads(), rates())
    before = solve(rows, prior_sd(rates()))
    added = rows.seconds.copy()
    column = INDEX["conv.16"]
    assert not added[:, column].any()
    added[:, column] = 1e-15
    after = solve(replace(rows, seconds=added), prior_sd(rates()))
    assert after.active[column]
    assert not before.active[column]
    assert after.factors[column] == pytest.approx(0.0, abs=1e-9)
    assert np.delete(after.factors, column) == pytest.approx(np.delete(before.factors, column), abs=1e-6)
    others = np.delete(np.arange(len(COMPONENTS)), column)
    assert np.diag(after.covariance)[others] == pytest.approx(np.diag(before.covariance)[others], rel=1e-4)


def test_factors_are_positive_however_wild_the_record():
    wild = records(recipes(12, seed=6))
    wild[0] = replace(wild[0], step_s=wild[0].step_s * 1000, step_s_low=None, step_s_high=None)
    wild[1] = replace(wild[1], step_s=wild[1].step_s / 1000, step_s_low=None, step_s_high=None)
    fit = fit_time(time_rows(wild, workloads(), rates()), rates())
    assert np.isfinite(log_factors(fit)).all()
    assert (np.exp(log_factors(fit)) > 0).all()


def test_one_wild_record_among_many_hardly_moves_the_fit():
    calm = records(recipes(60, seed=7))
    wild = [replace(calm[0], step_s=calm[0].step_s * 3), *calm[1:]]
    fits = [fit_time(time_rows(some, workloads(), rates()), rates()) for some in (calm, wild)]
    fresh = time_rows(records(recipes(40, seed=8), noise=0.0), workloads(), rates())
    logs = [np.log(step_times(fresh.seconds, fresh.grad_accum, log_factors(f)).step_s) for f in fits]
    assert np.abs(logs[1] - logs[0]).mean() < 0.02
    assert np.abs(logs[1] - fresh.log_step).mean() < 0.02


def pick(rows, index):
    return replace(
        rows,
        seconds=rows.seconds[index],
        grad_accum=rows.grad_accum[index],
        log_step=rows.log_step[index],
        noise=rows.noise[index],
        sessions=tuple(rows.sessions[i] for i in index),
        measurements=tuple(rows.measurements[i] for i in index),
    )


def test_leave_one_out_errors_are_those_of_refits():
    rows = time_rows(records(recipes(60, seed=9), truth(), noise=0.005), workloads(), rates())
    solution = solve(rows, prior_sd(rates()))
    brute = []
    for left in range(len(rows)):
        others = solve(pick(rows, np.delete(np.arange(len(rows)), left)), prior_sd(rates()))
        own = pick(rows, np.array([left]))
        brute.append(float(own.log_step[0] - np.log(step_times(own.seconds, own.grad_accum, others.factors).step_s[0])))
    brute = np.array(brute)
    assert np.corrcoef(brute, solution.left_out)[0, 1] > 0.995
    assert np.abs(brute - solution.left_out).mean() < 0.05 * np.abs(brute).mean()
    inside = rows.log_step - np.log(step_times(rows.seconds, rows.grad_accum, solution.factors).step_s)
    assert (np.abs(solution.left_out) >= np.abs(inside) * (1 - 1e-9)).all(), "a fit flatters its own rows"


def test_intervals_cover_nine_in_ten_of_fresh_records():
    inside = []
    for seed in range(12):
        factors = np.random.default_rng(seed).normal(0.0, 1.0, len(COMPONENTS)) * prior_sd(rates())
        known = time_rows(records(recipes(30, seed=100 + seed), factors, noise=0.02, seed=seed), workloads(), rates())
        fit = fit_time(known, rates())
        fresh = records(recipes(60, seed=200 + seed), factors, noise=0.02, seed=300 + seed)
        rows = time_rows(fresh, workloads(), rates())
        error = np.log(step_times(rows.seconds, rows.grad_accum, log_factors(fit)).step_s) - rows.log_step
        sd = predictive_sd(rows.seconds, rows.grad_accum, fit, rates())
        inside.append(np.abs(error) <= fit.interval_scale * sd)
    coverage = float(np.mean(inside))
    assert 0.86 <= coverage <= 0.97, coverage


def host_bound(count, seed):
    return [replace(r, micro_batch=1, seq=512, precision="bf16") for r in recipes(count, seed)]


@pytest.mark.parametrize("effect", [0.25, -0.2])
def test_a_sessions_host_speed_is_found_and_the_factors_are_of_the_newest(effect):
    old = records(recipes(25, 10) + host_bound(10, 11), host=effect, session="old", started_at="2026-01-01T00:00:00")
    new = records(recipes(25, 12) + host_bound(10, 13), session="new", started_at="2026-02-01T00:00:00")
    fit = fit_time(time_rows(old + new, workloads(), rates()), rates())
    assert set(fit.host_sessions) == {"old"}
    assert fit.host_sessions["old"] == pytest.approx(effect, abs=0.03)
    probe = time_rows(records(host_bound(20, 14), noise=0.0), workloads(), rates())
    error = np.log(step_times(probe.seconds, probe.grad_accum, log_factors(fit)).step_s) - probe.log_step
    assert np.abs(error).max() < 0.04, "a new prediction is for the host as it is now"
    swapped = [replace(r, started_at="2025-01-01T00:00:00") for r in new]
    mirrored = fit_time(time_rows(old + swapped, workloads(), rates()), rates())
    assert mirrored.host_sessions["new"] == pytest.approx(-effect, abs=0.05)


def test_a_session_scales_host_time_alone():
    rows = time_rows(records(recipes(6, 15)), workloads(), rates())
    scaled = in_session(rows.seconds, [0.0, 0.1, 0.2, -0.3, 0.4, 1.0])
    host = group_mask("host") | group_mask("step_host")
    assert scaled[:, ~host] == pytest.approx(rows.seconds[:, ~host])
    assert scaled[4, host] == pytest.approx(rows.seconds[4, host] * math.exp(0.4))
    assert (scaled[0] == rows.seconds[0]).all()


@pytest.mark.parametrize("count", [1, 2, 9])
def test_a_few_records_help_and_do_not_crash(count):
    some = records([Recipe(micro_batch=32, seq=2048)] * count, truth(**{"matmul.bf16.aligned": 0.1}))
    fit = fit_profile(some, workloads(), rates())
    assert fit.measurements == count
    assert fit.interval_scale > 1.645, "few records are trusted less"
    assert fit.noise_sd_log >= REPEAT_FLOOR_LOG / 2
    fresh = time_rows(some, workloads(), rates())
    before, after = (
        np.abs(np.log(step_times(fresh.seconds, fresh.grad_accum, log_factors(f)).step_s) - fresh.log_step).mean()
        for f in (Fit(), fit)
    )
    assert after < 0.5 * before


def test_the_same_record_many_times_does_not_crash_or_claim_certainty():
    some = records([Recipe(micro_batch=32, seq=2048)] * 40, noise=0.0)[::2]
    fit = fit_profile(some, workloads(), rates())
    sd = np.sqrt(np.diag(np.array(fit.covariance)))
    assert np.isfinite(sd).all()
    names = [c.component for c in fit.corrections]
    assert sd[names.index("matmul.bf16.aligned")] > 0.005
    assert fit.noise_sd_log >= REPEAT_FLOOR_LOG / 2


def test_without_any_record_that_ran_the_prior_stands():
    oom = replace(records(recipes(1, 16))[0], status="oom", step_s=None, reason="out of memory")
    for some in ([], [oom]):
        fit = fit_profile(some, workloads(), rates())
        assert fit.corrections == ()
        assert fit.measurements == len(some)
        assert fit.models == ()
        assert replace(fit, measurements=0, calibrated={}) == Fit()


def test_failures_count_as_measurements_and_change_no_factor():
    ran = records(recipes(12, 17))
    failed = [replace(r, status=s, step_s=None, reason="x") for r, s in zip(ran, ("oom", "crash"), strict=False)]
    fit, more = fit_profile(ran, workloads(), rates()), fit_profile([*ran, *failed], workloads(), rates())
    assert more.corrections == fit.corrections
    assert more.measurements == fit.measurements + 1, "running out of memory is a measurement, a crash is none"


def test_the_fit_says_what_it_covered():
    some = records([Recipe(micro_batch=b, seq=s) for b, s in ((2, 512), (64, 1024), (8, None))])
    fit = fit_profile(some, workloads(), rates())
    assert fit.models == MODELS
    assert fit.calibrated["micro_batch"] == ("2", "64")
    assert fit.calibrated["seq"] == ("512", "2048"), "a record without a length has the model's own"
    assert fit.calibrated["precision"] == ("bf16",)


def test_a_records_noise_grows_with_its_own_spread():
    calm = replace(records(recipes(1, 18))[0], step_s=1.0, step_s_low=1.0, step_s_high=1.0)
    assert noise_log(calm) == pytest.approx(REPEAT_FLOOR_LOG)
    assert noise_log(replace(calm, step_s_low=None, step_s_high=None)) == pytest.approx(REPEAT_FLOOR_LOG)
    spread = replace(calm, step_s_low=0.9, step_s_high=1.1)
    assert noise_log(spread) == pytest.approx(math.hypot(REPEAT_FLOOR_LOG, 0.4 * 0.2))


def test_usable_records_have_a_known_model_and_a_recipe_that_is_modelled():
    profile = datasheet_profile(parse_machine("1xV100-16GB"))
    good = replace(records([Recipe(precision="fp16")])[0], machine="1xV100-16GB")
    assert usable(good, workloads(), profile)
    assert not usable(replace(good, model="nobody"), workloads(), profile)
    assert not usable(replace(good, config_hash="another"), workloads(), profile)
    assert usable(replace(good, config_hash=None), workloads(), profile)
    assert not usable(replace(good, recipe=Recipe(precision="bf16")), workloads(), profile)


# ------------------------------------------------------------------------------------------------ memory

MEMORY = Fit(
    memory_factor=1.02, workspace_bytes=90_000_000, reserved_factor=1.07, device_overhead_bytes=800_000_000
)  # fmt: skip


def remembered(count, seed, noise=0.0, fit=MEMORY):
    random = np.random.default_rng(seed)
    made = []
    for record in records(recipes(count, seed)):
        peak = float(memory_of(record, workloads()[record.model], fit).peak_bytes[0]) * math.exp(
            random.normal(0, noise)
        )
        reserved = peak * fit.reserved_factor * math.exp(random.normal(0, noise))
        device = reserved + fit.device_overhead_bytes
        made.append(
            replace(
                record, peak_bytes=round(peak), peak_reserved_bytes=round(reserved), peak_device_bytes=round(device)
            )
        )
    return made


def test_memory_finds_factor_workspace_slack_and_overhead():
    fit = fit_memory(Fit(), remembered(40, 20), workloads())
    assert fit.memory_factor == pytest.approx(1.02, abs=0.002)
    assert fit.workspace_bytes == pytest.approx(90e6, abs=8e6)
    assert fit.reserved_factor == pytest.approx(1.07, abs=1e-6)
    assert fit.device_overhead_bytes == pytest.approx(800e6, abs=2)
    fresh = remembered(30, 21)
    error = [
        float(memory_of(r, workloads()[r.model], fit).peak_bytes[0]) / r.peak_bytes - 1 for r in fresh if r.peak_bytes
    ]
    assert np.abs(error).max() < 0.005


def test_scattered_memory_widens_the_spread():
    calm, rough = (fit_memory(Fit(), remembered(60, 22, noise), workloads()) for noise in (0.0, 0.03))
    assert calm.memory_sd_log == pytest.approx(0.004)
    assert 0.02 < rough.memory_sd_log < 0.12
    assert rough.memory_factor == pytest.approx(1.02, abs=0.02)
    assert rough.reserved_sd_log == pytest.approx(0.03, rel=0.3)


@pytest.mark.parametrize("count", [1, 2])
def test_memory_of_very_few_records_stays_near_the_usual(count):
    fit = fit_memory(Fit(), remembered(count, 23), workloads())
    assert fit.memory_factor == pytest.approx(1.0, abs=0.06)
    assert 0 <= fit.workspace_bytes < 500_000_000


def test_without_memory_records_the_defaults_stand():
    assert fit_memory(Fit(), records(recipes(5, 24)), workloads()) == Fit()
    assert fit_memory(Fit(), [], workloads()) == Fit()


def test_a_record_with_the_allocated_peak_alone_claims_no_slack_and_keeps_the_overhead():
    bare = [replace(r, peak_reserved_bytes=None, peak_device_bytes=None) for r in remembered(10, 25)]
    fit = fit_memory(Fit(), bare, workloads())
    assert fit.reserved_factor == 1.0
    assert fit.device_overhead_bytes == Fit().device_overhead_bytes


def test_nonsense_bytes_do_not_crash():
    fit = fit_memory(Fit(), [replace(r, peak_bytes=1) for r in remembered(6, 26)], workloads())
    assert math.isfinite(fit.memory_factor)
    assert fit.workspace_bytes >= 0


def test_a_data_sheet_prior_learns_faster_than_it_forgets():
    """From a wide prior the same records move the prediction all the way."""
    wide = datasheet_rates(parse_machine("1xH200").gpu)
    fit = fit_profile(records(recipes(60, 27)), workloads(), wide)
    fresh = records(recipes(40, 28), noise=0.0)
    rows = time_rows(fresh, workloads(), wide)
    before, after = (
        np.abs(np.log(step_times(rows.seconds, rows.grad_accum, log_factors(f)).step_s) - rows.log_step).mean()
        for f in (Fit(), fit)
    )
    assert after < 0.03
    assert after < 0.25 * before


def test_the_jacobian_of_the_fit_is_numeric_differentiation_sessions_included():
    rows = time_rows(
        records(recipes(4, 29), session="old", started_at="2025-01-01") + records(host_bound(4, 30)),
        workloads(),
        rates(),
    )
    values = np.concatenate([truth(), [0.2]])
    jacobian, residual = _linearised(rows, values, ["old"])
    h = 1e-5
    for column in (*(INDEX[name] for name in TRUE), len(COMPONENTS)):
        nudge = h * np.eye(len(values))[column]
        up, down = (_linearised(rows, values + s * nudge, ["old"])[1] for s in (1, -1))
        assert jacobian[:, column] == pytest.approx(-(up - down) / (2 * h), abs=1e-6)
    assert (jacobian[:4, -1] > 0).all()
    assert not jacobian[4:, -1].any()
    assert residual[4:] == pytest.approx(np.zeros(4), abs=0.05)


def moved_by_a_wrong_row(calm, place):
    """How far a row that is 30 % too slow moves any GPU component's factor."""
    wrong = [replace(r, step_s=r.step_s * 1.3) if i == place else r for i, r in enumerate(calm)]
    before, after = (log_factors(fit_profile(some, workloads(), rates())) for some in (calm, wrong))
    return float(np.abs((after - before)[group_mask("gpu")]).max())


def test_a_wrong_row_moves_the_gpus_factors_less_where_the_host_decides():
    gpu = [Recipe(micro_batch=b, seq=2048) for b in (16, 24, 32, 48, 64, 64)]
    calm = records([*gpu, *host_bound(6, 40)], truth(), noise=0.0)
    rows = time_rows(calm, workloads(), rates())
    shares = host_share(gradient(rows.seconds, rows.grad_accum, truth()))
    assert (shares[:6] < 0.05).all()
    assert (shares[6:] > 0.95).all()
    assert max(moved_by_a_wrong_row(calm, i) for i in range(6)) > 0.003
    for place in range(6, 12):
        assert moved_by_a_wrong_row(calm, place) < 0.2 * min(moved_by_a_wrong_row(calm, i) for i in range(6))


def test_a_wrong_row_that_both_decide_counts_less_for_the_hosts_wandering(monkeypatch):
    """Against the same fit in which the host is thought never to wander."""
    mixed = [Recipe(micro_batch=b, seq=512, attention="sdpa") for b in (14, 16, 18, 20, 22, 24, 26, 28)]
    calm = records(mixed, truth(), noise=0.0)
    rows = time_rows(calm, workloads(), rates())
    shares = host_share(gradient(rows.seconds, rows.grad_accum, truth()))
    place = int(np.argmin(np.abs(shares - 0.5)))
    assert 0.3 < shares[place] < 0.7
    told = moved_by_a_wrong_row(calm, place)
    monkeypatch.setattr(fit_module, "HOST_REPEAT_LOG", 0.0)
    assert told < 0.9 * moved_by_a_wrong_row(calm, place)


def test_a_rows_noise_holds_the_hosts_wandering_as_far_as_the_host_decides():
    """By hand, with no spread of the record's own: the repeat floor joined with 6 % of the host's share."""
    still = {"step_s_low": None, "step_s_high": None}
    made = records([Recipe(micro_batch=64, seq=2048), *host_bound(1, 41)], noise=0.0)
    some = [replace(r, **still) for r in made]
    rows = time_rows(some, workloads(), rates())
    shares = gradient(rows.seconds, rows.grad_accum, truth())
    gpu, host = _noise_at(rows, shares)
    assert gpu == pytest.approx(REPEAT_FLOOR_LOG, rel=0.05)
    assert host == pytest.approx(math.hypot(REPEAT_FLOOR_LOG, HOST_REPEAT_LOG), rel=0.05)
    compiled = replace(some[0], recipe=replace(some[0].recipe, compile="on"))
    rows = time_rows([compiled], workloads(), rates())
    (open_,) = _noise_at(rows, gradient(rows.seconds, rows.grad_accum, truth()))
    assert open_ >= math.hypot(REPEAT_FLOOR_LOG, COMPILED_SD_LOG)
