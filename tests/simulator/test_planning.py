"""Plans against brute force over ``predict``, limits, ties, and the error that names the way out."""

import json
import math
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from profiles.errors import InfeasibleError, InvalidInputError
from profiles.files import SHIPPED
from profiles.machines import parse_machine
from profiles.prices import energy
from profiles.schema import Measurement, Price, Recipe
from profiles.store import load_workload, read_profile
from simulator import Case, Run, plan, predict
from simulator.calibrated import UNSEEN_VALUE_SD_LOG
from simulator.components import COMPONENTS, Choice, component_seconds
from simulator.coverage import coverage
from simulator.outlook import sizes_of
from simulator.rates import datasheet_profile
from simulator.space import enumerate_space
from simulator.steptime import covariance, gradient, log_factors, predictive_sd, step_times
from simulator.ties import sd_log_of_ratio

PRICE = Price(gpu="any", provider="p", rent_usd_per_gpu_h=3.0, basis="b", source="s", date="2026-01-01")
FIXED = {"attention": "sdpa", "compile": "off"}
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


@cache
def workload(name):
    found = load_workload(name)
    assert found is not None
    return found


@cache
def h200():
    return read_profile(SHIPPED / "fitted" / "1xH200.json")


def case(model="pythia-410m", profile=None, fixed=FIXED, **run):
    run = {"tokens": 3e9, "seq": 2048, "global_batch": 128} | run
    profile = profile or datasheet_profile(parse_machine("1xA100-40GB"))
    return Case(workload=workload(model), profile=profile, run=Run(**run), price=PRICE, energy=energy(), fixed=fixed)


def brute_force(own):
    """Every recipe of the small fixed space, asked one by one."""
    recipes = [
        Recipe(micro_batch=b, grad_accum=128 // b, seq=2048, precision=p, checkpointing=c)
        for p, c in product(("fp32", "tf32", "fp16", "bf16"), ("none", "full", "every_2", "every_3", "every_4"))
        for b in BATCHES
    ]
    return [predict(own, recipe) for recipe in recipes]


@cache
def everything():
    return brute_force(case())


def key(found):
    return found.recipe


def test_a_plan_is_what_brute_force_finds():
    own, found = case(), everything()
    answer = plan(own, top=10_000)
    fitting = sorted((p for p in found if p.fits), key=lambda p: p.step_s)
    assert answer.space_size == len(found)
    assert answer.feasible == len(fitting) == len(answer.recipes)
    assert answer.oom == len(found) - len(fitting) == answer.infeasible["memory"]
    assert answer.oom > 0
    assert [p.step_s for p in answer.recipes] == pytest.approx([p.step_s for p in fitting], rel=1e-9)
    assert {key(p) for p in answer.recipes} == {key(p) for p in fitting}
    assert answer.best == answer.recipes[0]
    assert answer.worst.step_s == pytest.approx(fitting[-1].step_s)
    assert answer.median.step_s == pytest.approx(fitting[len(fitting) // 2].step_s)
    assert answer.over_budget == 0
    by_recipe = {key(p): p for p in found}
    assert all(by_recipe[key(p)] == p for p in answer.recipes[:5]), "plan and predict give the same answer"


def test_top_cuts_the_list_only():
    long, short, none = plan(case(), top=20), plan(case(), top=3), plan(case(), top=0)
    assert short.recipes == long.recipes[:3]
    assert none.recipes == ()
    assert short.best == none.best == long.best
    assert (short.worst, short.median, short.feasible) == (long.worst, long.median, long.feasible)


@pytest.mark.parametrize("name", ["days", "usd", "kwh"])
@pytest.mark.parametrize("quantile", [0.0, 0.3, 0.9])
def test_a_limit_keeps_exactly_what_is_within_it(name, quantile):
    fitting = sorted((p for p in everything() if p.fits), key=lambda p: getattr(p, name))
    limit = getattr(fitting[int(quantile * (len(fitting) - 1))], name) * (1 + 1e-9)
    kept = {key(p) for p in fitting if getattr(p, name) <= limit}
    answer = plan(case(**{f"max_{name}": limit}), top=10_000)
    assert {key(p) for p in answer.recipes} == kept
    assert answer.feasible == len(kept)
    assert answer.over_budget == len(fitting) - len(kept)
    exceeding = sum(getattr(p, name) > limit for p in everything())
    assert answer.infeasible[f"max_{name}"] == exceeding


def test_all_limits_hold_together():
    fitting = [p for p in everything() if p.fits]
    limits = {n: sorted(getattr(p, n) for p in fitting)[len(fitting) // 2] for n in ("days", "usd", "kwh")}
    limits["usd"] *= 0.7
    answer = plan(case(**{f"max_{n}": v for n, v in limits.items()}), top=10_000)
    expected = {key(p) for p in fitting if all(getattr(p, n) <= v for n, v in limits.items())}
    assert {key(p) for p in answer.recipes} == expected


@pytest.mark.parametrize("name", ["days", "usd", "kwh"])
def test_a_limit_that_nothing_keeps_names_itself_and_the_way_out(name):
    fastest = min((p for p in everything() if p.fits), key=lambda p: p.step_s)
    with pytest.raises(InfeasibleError) as caught:
        plan(case(**{f"max_{name}": getattr(fastest, name) * 0.9}))
    text = str(caught.value)
    assert caught.value.exit_code == 3
    assert f"max_{name}" in text
    assert "Cheapest way out" in text
    assert f"{fastest.days:.1f} days" in text
    assert f"micro_batch={fastest.recipe.micro_batch}" in text


def test_a_model_that_does_not_fit_names_memory_and_a_card_that_is_large_enough():
    own = case("llama-2-7b", datasheet_profile(parse_machine("1xT4")), fixed={}, global_batch=16)
    with pytest.raises(InfeasibleError) as caught:
        plan(own)
    text = str(caught.value)
    assert caught.value.exit_code == 3
    assert "llama-2-7b" in text
    assert "1xT4" in text
    assert "Cheapest way out: a GPU with at least" in text
    enough_gib = float(text.split("at least ")[1].split(" GiB", maxsplit=1)[0])
    gpu = replace(own.machine.gpu, memory_bytes=int(enough_gib * 2**30))
    roomy = replace(own, profile=replace(own.profile, machine=replace(own.machine, gpu=gpu)))
    assert plan(roomy, top=1).feasible >= 1, "the way out that is named works"


def test_limits_need_a_length_and_a_price():
    with pytest.raises(InvalidInputError) as caught:
        plan(replace(case(max_usd=10.0, tokens=None), price=None))
    assert caught.value.exit_code == 2
    assert len(caught.value.problems) == 2
    assert any("--tokens" in p for p in caught.value.problems)
    assert any("--price" in p for p in caught.value.problems)


def test_an_energy_limit_without_energy_figures_is_refused_and_never_ignored():
    with pytest.raises(InvalidInputError, match="max_kwh"):
        plan(replace(case(max_kwh=1e-9), energy=None))


def record(prediction, step_s):
    return Measurement(
        model="pythia-410m",
        config_hash=workload("pythia-410m").config_hash,
        machine="1xA100-40GB",
        recipe=prediction.recipe,
        status="ok",
        step_s=step_s,
    )


def test_a_verified_recipe_comes_first_among_ties_and_not_beyond_them():
    own = case()
    own = replace(own, profile=replace(own.profile, fit=replace(own.profile.fit, noise_sd_log=0.1)))
    plain = plan(own, top=10_000)
    tied, spared = [[p for p, t in zip(plain.recipes, plain.tied, strict=True) if t is kind] for kind in (True, False)]
    assert plain.ties == sum(plain.tied) == len(tied)
    assert 3 <= len(tied) < plain.feasible
    last, beyond = tied[-1], spared[0]
    seen = replace(own, profile=replace(own.profile, verified=(record(last, 9.0), record(beyond, 1.0))))
    answer = plan(seen, top=10_000)
    assert answer.best.recipe == last.recipe
    assert answer.best.measured_step_s == 9.0
    assert [p.recipe for p in answer.recipes[1:]] == [p.recipe for p in plain.recipes if p.recipe != last.recipe]
    assert answer.ties == plain.ties
    still = {p.recipe for p, tie in zip(answer.recipes, answer.tied, strict=True) if tie}
    assert still == {p.recipe for p in tied}


def test_ties_are_those_that_random_errors_common_to_all_recipes_reorder():
    """Monte Carlo: log factors drawn together, noise drawn apart; a tie's log ratio lies within 90 % of its draws."""
    own = case(profile=h200(), fixed={"compile": "off"})
    answer = plan(own, top=10_000)
    fit, rates = own.profile.fit, own.profile.rates
    random = np.random.default_rng(5)
    near = [p for p in answer.recipes if p.step_s < 1.3 * answer.best.step_s]
    factors = log_factors(fit) + random.multivariate_normal(np.zeros(len(COMPONENTS)), covariance(fit, rates), 4000)
    ranked = sorted(near, key=lambda p: p.step_s)
    logs = []
    for found in ranked:
        recipe = found.recipe
        sizes = sizes_of(own, recipe, np.array([recipe.micro_batch]))
        seconds = component_seconds(own.workload, rates, Choice.of(recipe), sizes)
        repeats = np.array([float(recipe.grad_accum)])
        drawn = [float(step_times(seconds, repeats, f).step_s[0]) for f in factors]
        shares = gradient(seconds, repeats, log_factors(fit))
        variance = predictive_sd(seconds, repeats, fit, rates) ** 2 - shares @ covariance(fit, rates) @ shares[0]
        logs.append(np.log(drawn) + random.normal(0.0, math.sqrt(variance[0]), len(drawn)))
    told = {p.recipe: tie for p, tie in zip(answer.recipes, answer.tied, strict=True)}
    clear = []
    for found, own_logs in zip(ranked[1:], logs[1:], strict=True):
        sd = float(np.std(own_logs - logs[0]))
        behind = math.log(found.step_s / ranked[0].step_s) / (fit.interval_scale * sd)
        if abs(behind - 1) > 0.06:
            clear.append(behind < 1)
            assert told[found.recipe] == (behind < 1), (found.recipe, behind)
    assert len(clear) > 0.8 * len(ranked)
    assert {True, False} <= set(clear)


def test_errors_that_recipes_share_do_not_make_them_ties():
    """A rate that is behind every recipe alike widens all intervals and leaves their order as sure as it was."""
    own = case(fixed=FIXED | {"precision": "bf16", "checkpointing": "none", "micro_batch": 8, "grad_accum": 16})
    space = enumerate_space(own)
    rows = np.zeros(2, dtype=np.intp)
    assert sd_log_of_ratio(own, space, rows)[1] == pytest.approx(0.0, abs=1e-6)
    wide = predict(own, space.recipe(0))
    assert wide.step_s_high / wide.step_s > 1.1


def test_a_recipe_beyond_the_calibrated_range_is_less_surely_slower():
    own = case(profile=h200(), fixed={"attention": "sdpa", "compile": "off", "precision": "bf16"})
    space = enumerate_space(own)
    rows = np.arange(len(space), dtype=np.intp)
    narrow = replace(own.profile.fit, calibrated=own.profile.fit.calibrated | {"checkpointing": ("none",)})
    beyond = replace(own, profile=replace(own.profile, fit=narrow))
    before, now = sd_log_of_ratio(own, space, rows), sd_log_of_ratio(beyond, space, rows)
    for row in rows[1:]:
        strange = space.recipe(int(row)).checkpointing != "none"
        assert now[row] == pytest.approx(math.hypot(before[row], UNSEEN_VALUE_SD_LOG if strange else 0.0))


def test_the_coverage_of_a_plan_is_of_its_best_recipes():
    answer = plan(case(profile=h200()), top=2)
    assert answer.coverage == coverage(
        case(profile=h200()), [p.recipe for p in plan(case(profile=h200()), top=2).recipes]
    )


def test_what_ran_out_of_memory_is_never_proposed_again_nor_anything_larger():
    own = case()
    plain = plan(own, top=5)
    lost = plain.recipes[1]
    failed = replace(record(lost, 1.0), status="oom", step_s=None)
    learned = replace(own, profile=replace(own.profile, verified=(failed,)))
    answer = plan(learned, top=10_000)

    def alike(recipe):
        return replace(recipe, micro_batch=1, grad_accum=1) == replace(lost.recipe, micro_batch=1, grad_accum=1)

    gone = [p for p in everything() if p.fits and alike(p.recipe) and p.recipe.micro_batch >= lost.recipe.micro_batch]
    assert gone
    assert answer.feasible == plain.feasible - len(gone)
    assert all(not alike(p.recipe) or p.recipe.micro_batch < lost.recipe.micro_batch for p in answer.recipes)
    told = predict(learned, lost.recipe)
    assert not told.fits
    assert any("ran out of memory" in warning for warning in told.warnings)


def test_a_run_on_another_machine_is_no_verification_of_this_one():
    own = case()
    elsewhere = replace(record(plan(own).best, 1.0), machine="8xA100-40GB", status="oom", step_s=None)
    learned = replace(own, profile=replace(own.profile, verified=(elsewhere,)))
    assert plan(learned) == plan(own)


def test_naive_is_the_default_recipe_at_the_largest_power_of_two_that_fits():
    answer = plan(case())
    defaults = [p for p in everything() if p.recipe.precision == "bf16" and p.recipe.checkpointing == "none" and p.fits]
    assert answer.naive is not None
    assert answer.naive == max(defaults, key=lambda p: p.recipe.micro_batch)
    assert answer.naive.step_s >= answer.best.step_s


def test_naive_is_a_power_of_two_where_other_sizes_fit_too():
    own = case(global_batch=180, fixed=FIXED | {"precision": "bf16"})
    answer = plan(own)
    sizes = [b for b in range(1, 181) if 180 % b == 0]
    fits = [b for b in sizes if predict(own, Recipe(micro_batch=b, grad_accum=180 // b, seq=2048)).fits]
    assert answer.naive is not None
    assert answer.naive.recipe.micro_batch == max(b for b in fits if b & (b - 1) == 0)
    assert max(fits) > answer.naive.recipe.micro_batch


def test_there_is_no_naive_recipe_where_its_knobs_are_fixed_away():
    answer = plan(case(fixed=FIXED | {"micro_batch": 3, "grad_accum": 1}, global_batch=None))
    assert answer.naive is None
    assert answer.space_size == 20


def test_fixed_knobs_may_be_text_and_neutral_ones_of_several_gpus():
    answer = plan(case(fixed={"sharding": "none", "micro_batch": "8", "attention": "sdpa", "compile": "off"}), top=3)
    assert {p.recipe.micro_batch for p in answer.recipes} == {8}
    assert answer.naive is not None
    assert answer.naive.recipe.micro_batch == 8


def test_a_tolerated_global_batch_is_compared_by_the_sample():
    own = case(global_batch_tolerance=0.02, fixed=FIXED | {"precision": "bf16", "checkpointing": "none"})
    answer = plan(own, top=10_000)
    assert {p.global_batch for p in answer.recipes} > {128}
    per_sample = [p.step_s / p.global_batch for p in answer.recipes]
    assert per_sample == sorted(per_sample)
    assert all(abs(p.global_batch - 128) <= 0.02 * 128 for p in answer.recipes)


def test_reasons_name_where_time_goes_and_what_memory_forbids():
    answer = plan(case("pythia-1b", fixed={"compile": "off", "precision": "bf16", "checkpointing": "none"}))
    largest = max(answer.best.time_breakdown_s, key=lambda k: answer.best.time_breakdown_s[k])
    assert answer.reasons[0].startswith(f"time goes to {largest} ")
    assert any("GiB" in reason and "faster" in reason for reason in answer.reasons[1:]) or answer.oom == 0


def test_refusals_are_counted_by_rule():
    answer = plan(case(profile=datasheet_profile(parse_machine("1xV100-32GB")), fixed=FIXED))
    capable = Counter(p.recipe.precision for p in answer.recipes)
    assert set(capable) <= {"fp32", "fp16"}
    assert answer.refused["precision_needs_capability_8"] == 2 * 5 * 128, (
        "two precisions, every checkpointing and batch"
    )


def test_predict_refuses_with_every_broken_rule_and_what_to_do():
    own = case(profile=datasheet_profile(parse_machine("1xV100-16GB")))
    with pytest.raises(InvalidInputError) as caught:
        predict(own, Recipe(micro_batch=7, grad_accum=3, precision="bf16", checkpointing="every_99"))
    text = "\n".join(caught.value.problems)
    assert len(caught.value.problems) == 3
    for part in ("compute capability", "precision=fp16", "global batch", "every_99", "every_24"):
        assert part in text


QUESTION = """
import json, sys
from calibration.question import build_case
from simulator import Run, plan
answer = plan(build_case("pythia-1b", "1xH200", Run(tokens=300e9, seq=2048, global_batch=1024), {}))
heavy = sorted({"torch", "transformers", "sklearn", "scipy"} & set(sys.modules))
best = answer.best.recipe
print(json.dumps([heavy, best.micro_batch, best.precision, best.compile, answer.best.measured_step_s]))
"""


def test_the_plan_of_the_shipped_profile_is_led_by_a_verified_recipe_without_torch(tmp_path):
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "PACELINE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", QUESTION], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    heavy, micro_batch, precision, compile_, measured_step_s = json.loads(done.stdout)
    assert heavy == []
    verified = {
        (r.recipe.micro_batch, r.recipe.precision, r.recipe.compile): r.step_s
        for r in h200().verified
        if r.model == "pythia-1b"
    }
    assert verified[micro_batch, precision, compile_] == measured_step_s


def test_the_shipped_best_recipe_is_predicted_as_it_was_measured():
    own = Case(workload=workload("pythia-1b"), profile=h200(), run=Run(tokens=300e9, seq=2048, global_batch=1024))
    best = plan(own, top=1).best
    assert best.step_s_low <= best.measured_step_s <= best.step_s_high
    assert best.step_s == pytest.approx(best.measured_step_s, rel=0.05)
