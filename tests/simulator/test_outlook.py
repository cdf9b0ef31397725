"""One recipe's answer: breakdowns that add up, the MFU's convention, intervals, warnings, and what was verified."""

import math
from dataclasses import replace
from functools import cache

import pytest

from profiles.catalogue import load_gpu
from profiles.files import SHIPPED
from profiles.machines import parse_machine
from profiles.prices import energy
from profiles.schema import Device, Fit, Price, Recipe
from profiles.store import load_workload, read_profile
from simulator import Case, Run, predict
from simulator.calibrated import BEYOND_SD_LOG, UNSEEN_VALUE_SD_LOG
from simulator.outlook import model_flops, provenance, same_recipe
from simulator.rates import datasheet_profile

RECIPES = [
    Recipe(micro_batch=b, grad_accum=g, seq=s, precision=p, attention=a, compile=k, checkpointing=c)
    for b, g, s in ((1, 1, 2048), (16, 8, 1024), (300, 2, 2048))
    for p in ("fp32", "tf32", "fp16", "bf16", "bf16_pure")
    for a in ("sdpa", "eager")
    for k, c in (("off", "none"), ("on", "full"), ("off", "every_2"))
]
DATA_SHEETS = ("A100-80GB", "V100-16GB", "RTX-4090", "H100-80GB")
WIDEST = 1.6


@cache
def workload(name):
    found = load_workload(name)
    assert found is not None
    return found


@cache
def h200():
    return read_profile(SHIPPED / "fitted" / "1xH200.json")


def case(model="pythia-410m", profile=None, **run):
    return Case(workload=workload(model), profile=profile or h200(), run=Run(**run), energy=energy())


def sheet(machine):
    return datasheet_profile(parse_machine(machine))


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_breakdowns_add_up(recipe):
    found = predict(case(), recipe)
    assert sum(found.time_breakdown_s.values()) == pytest.approx(found.step_s, rel=1e-9)
    assert sum(found.memory_breakdown_bytes.values()) == found.peak_device_bytes
    negative = {k for k, v in found.time_breakdown_s.items() if v < 0}
    assert negative <= {"overlap"}
    assert found.time_breakdown_s["overlap"] < 0, "host and device always run side by side"
    assert min(found.memory_breakdown_bytes.values()) >= 0
    assert found.step_s == pytest.approx(recipe.grad_accum * found.micro_s + found.optimizer_s + found.sync_s)
    assert found.step_s_low < found.step_s < found.step_s_high
    assert found.step_s**2 == pytest.approx(found.step_s_low * found.step_s_high)
    assert found.fits == (found.peak_bytes_high <= found.memory_limit_bytes)
    assert found.verdict == ("fits" if found.fits else "oom")
    certain = 0.5 * (1 + math.erf(2.33 / math.sqrt(2)))
    assert found.fits == (found.fit_probability >= certain)


def test_a_recipe_that_does_not_fit_is_an_answer():
    found = predict(case(), Recipe(micro_batch=300, seq=2048))
    assert found.verdict == "oom"
    assert found.fit_probability < 1e-6
    assert found.peak_device_bytes > found.memory_limit_bytes


def test_mfu_counts_products_and_half_of_causal_attention_and_no_look_up():
    """6 FLOPs a parameter that multiplies (the head does, the look-up doesn't), 6 · L · seq · width for attention."""
    layers, width, vocabulary, seq = 24, 1024, 50304, 2048
    per_token = 6 * (12 * layers * width**2 + width * vocabulary) + 6 * layers * seq * width
    own = case()
    assert model_flops(own.workload, seq) == pytest.approx(per_token * seq, rel=1e-6)
    found = predict(own, Recipe(micro_batch=8, grad_accum=4, seq=seq, checkpointing="full"))
    peak = load_gpu("H200").bf16_flops_per_s
    assert found.mfu == pytest.approx(per_token * seq * 32 / (found.step_s * peak), rel=1e-6)
    assert 0.05 < found.mfu < 0.8
    full = model_flops(own.workload, seq, causal_half=False) - model_flops(own.workload, seq)
    assert full == pytest.approx(6 * layers * seq * width * seq, rel=1e-6)


def test_mfu_is_against_the_peak_of_the_precision_that_runs():
    gpu = load_gpu("H200")
    for precision, peak in (("fp32", gpu.fp32_flops_per_s), ("tf32", gpu.tf32_flops_per_s)):
        found = predict(case(), Recipe(micro_batch=8, seq=2048, precision=precision))
        assert found.mfu == pytest.approx(model_flops(workload("pythia-410m"), 2048) * 8 / (found.step_s * peak))


def test_a_whole_run_follows_from_the_step():
    price = Price(gpu="H200", provider="p", rent_usd_per_gpu_h=2.5, basis="b", source="s", date="2026-01-01")
    own = replace(case(tokens=1e9, seq=2048, global_batch=64), price=price)
    found = predict(own, Recipe(micro_batch=16, grad_accum=4, seq=2048))
    assert found.steps == math.ceil(1e9 / (64 * 2048))
    assert found.days == pytest.approx(found.steps * found.step_s / 86400)
    assert found.usd == pytest.approx(found.days * 24 * 2.5)
    assert found.days_low / found.days == pytest.approx(found.step_s_low / found.step_s)
    assert found.days_high / found.days == pytest.approx(found.step_s_high / found.step_s)
    assert found.tokens_per_s == pytest.approx(64 * 2048 / found.step_s)
    assert found.global_batch == 64
    measured = replace(h200(), device=Device(name="H200", power_w=500.0))
    watts = (500.0 + energy().host_w_per_gpu) * energy().pue
    kwh = predict(replace(own, profile=measured), found.recipe).kwh
    assert kwh == pytest.approx(found.days * 24 * watts / 1000)


def test_what_is_not_known_is_none():
    found = predict(replace(case(), energy=None), Recipe(micro_batch=1))
    assert (found.steps, found.days, found.days_low, found.days_high, found.usd, found.kwh) == (None,) * 6
    assert found.measured_step_s is None


@pytest.mark.parametrize("gpu", [*DATA_SHEETS, "H200"])
@pytest.mark.parametrize("model", ["pythia-160m", "pythia-410m", "pythia-1b"])
def test_data_sheet_intervals_are_wide_and_no_wider_than_promised(gpu, model):
    own = case(model, sheet(f"1x{gpu}"))
    factors = []
    for precision in ("fp32", "tf32", "fp16", "bf16", "bf16_pure"):
        if load_gpu(gpu).compute_capability < 8 and precision not in {"fp32", "fp16"}:
            continue
        for batch, attention, compile_ in ((1, "sdpa", "off"), (8, "eager", "off"), (32, "sdpa", "on")):
            recipe = Recipe(micro_batch=batch, precision=precision, attention=attention, compile=compile_)
            found = predict(own, recipe)
            assert found.provenance == "datasheet"
            assert found.measured_step_s is None
            factors.append(found.step_s_high / found.step_s)
    assert max(factors) <= WIDEST
    assert min(factors) >= 1.15, "nobody measured this machine"


def test_a_calibrated_machine_has_narrower_intervals_than_its_data_sheet():
    recipe = Recipe(micro_batch=16, seq=2048)
    fitted, sheet_ = predict(case(), recipe), predict(case(profile=sheet("1xH200")), recipe)
    assert fitted.provenance == "predicted"
    assert math.log(fitted.step_s_high / fitted.step_s) < 0.7 * math.log(sheet_.step_s_high / sheet_.step_s)


def test_provenance_of_a_transferred_profile_stays():
    moved = replace(h200(), provenance="transferred")
    assert provenance(case(profile=moved)) == "transferred"


def test_a_calibrated_recipe_has_no_warning_and_leaving_the_range_widens_and_says_so():
    inside = predict(case(), Recipe(micro_batch=16, seq=2048))
    assert inside.warnings == ()
    beyond = predict(case(), Recipe(micro_batch=16, seq=8192 if workload("pythia-410m").max_seq is None else 16))
    assert any(w.startswith("seq=") and "outside the calibrated range" in w for w in beyond.warnings)
    assert beyond.step_s_high / beyond.step_s > inside.step_s_high / inside.step_s


def test_a_model_never_measured_here_is_named_and_gets_a_wider_interval():
    fit = replace(h200().fit, models=("pythia-160m", "pythia-1b"))
    known = predict(case(), Recipe(micro_batch=16, seq=2048))
    unknown = predict(case(profile=replace(h200(), fit=fit)), Recipe(micro_batch=16, seq=2048))
    assert any("pythia-410m was not measured here" in w and "pythia-160m, pythia-1b" in w for w in unknown.warnings)
    assert unknown.step_s == known.step_s
    assert unknown.step_s_high > known.step_s_high


def test_a_choice_that_no_run_calibrated_is_named():
    fit = replace(h200().fit, calibrated=h200().fit.calibrated | {"attention": ("eager",)})
    found = predict(case(profile=replace(h200(), fit=fit)), Recipe(micro_batch=16, seq=2048))
    assert "attention=sdpa was not calibrated (calibrated: eager)" in found.warnings


@pytest.mark.parametrize(
    ("knob", "known", "value"),
    [
        ("precision", "tf32", "bf16"),
        ("attention", "eager", "sdpa"),
        ("compile", "off", "on"),
        ("checkpointing", "none", "every_3"),
        ("optimizer", "sgd", "adamw_fused"),
    ],
)
def test_a_knob_outside_the_calibrated_range_is_named_and_widens_the_interval(knob, known, value):
    recipe = replace(Recipe(micro_batch=16, seq=2048), **{knob: value})
    inside = predict(case(), recipe)
    fit = replace(h200().fit, calibrated=h200().fit.calibrated | {knob: (known,)})
    found = predict(case(profile=replace(h200(), fit=fit)), recipe)
    assert f"{knob}={value} was not calibrated (calibrated: {known})" in found.warnings
    assert not any(w.startswith(f"{knob}=") for w in inside.warnings)
    assert found.step_s == inside.step_s
    logs = [math.log(p.step_s_high / p.step_s) / fit.interval_scale for p in (inside, found)]
    assert logs[1] ** 2 == pytest.approx(logs[0] ** 2 + UNSEEN_VALUE_SD_LOG**2)


def test_checkpointing_between_calibrated_intervals_is_inside_and_sparser_than_any_is_not():
    fit = replace(h200().fit, calibrated=h200().fit.calibrated | {"checkpointing": ("every_4", "full")})
    own = case(profile=replace(h200(), fit=fit))
    assert not predict(own, Recipe(micro_batch=16, seq=2048, checkpointing="every_3")).warnings
    for value in ("none", "every_5"):
        assert predict(own, Recipe(micro_batch=16, seq=2048, checkpointing=value)).warnings


@pytest.mark.parametrize(("size", "own"), [("depth", 24), ("width", 1024)])
def test_depth_and_width_beyond_the_calibrated_models_widen_by_the_distance(size, own):
    def found(low, high):
        fit = replace(h200().fit, calibrated=h200().fit.calibrated | {size: (str(low), str(high))})
        one = predict(case(profile=replace(h200(), fit=fit)), Recipe(micro_batch=16, seq=2048))
        return one.warnings, math.log(one.step_s_high / one.step_s) / fit.interval_scale

    inside, narrow = found(own, 2 * own)
    below, wide = found(2 * own, 4 * own)
    assert not inside
    assert below == (f"{size}={own} is outside the calibrated range {2 * own} to {4 * own}",)
    assert wide**2 == pytest.approx(narrow**2 + (BEYOND_SD_LOG * math.log(2)) ** 2)
    assert found(own / 4, own / 2)[1] == pytest.approx(wide)


def test_a_verified_recipe_shows_what_was_measured_with_defaults_filled_in():
    record = h200().verified[0]
    own = case("pythia-1b")
    assert predict(own, record.recipe).measured_step_s == record.step_s
    bare = replace(record, recipe=replace(record.recipe, seq=None))
    assert same_recipe(own, bare, record.recipe), "the model's own length is the default"
    assert not same_recipe(own, record, replace(record.recipe, micro_batch=record.recipe.micro_batch + 1))
    assert not same_recipe(own, replace(record, status="oom"), record.recipe)
    assert not same_recipe(case("pythia-410m"), record, record.recipe), "another model's record"


def test_without_a_fit_nothing_is_outside_any_range():
    found = predict(case(profile=replace(h200(), fit=Fit())), Recipe(micro_batch=500, seq=16))
    assert found.warnings == ()


def test_on_a_cpu_the_limit_is_the_hosts_memory():
    machine = replace(parse_machine("cpu"), host_memory_bytes=3 * 2**30)
    found = predict(case("pythia-14m", datasheet_profile(machine)), Recipe(precision="fp32"))
    assert found.memory_limit_bytes == 3 * 2**30
