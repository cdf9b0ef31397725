"""Curves against single predictions, crossovers against brute force and against what was put in."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from profiles.errors import InvalidInputError
from profiles.files import SHIPPED
from profiles.machines import parse_machine
from profiles.schema import Recipe
from profiles.store import load_workload, read_profile
from simulator import Case, Run, predict
from simulator.components import Choice
from simulator.crossovers import crossing, draw_factors, thinned
from simulator.curves import curve
from simulator.ladder import ladder
from simulator.outlook import outlook, sizes_of
from simulator.rates import datasheet_profile
from simulator.recipes import complete
from simulator.steptime import covariance, log_factors, step_times


@cache
def case(model="pythia-160m", machine=None, **run):
    workload = load_workload(model)
    assert workload is not None
    profile = datasheet_profile(parse_machine(machine)) if machine else read_profile(SHIPPED / "fitted" / "1xH200.json")
    return Case(workload=workload, profile=profile, run=Run(**run))


def default(own):
    return complete({}, own)


def named(found, name, axis=None):
    return next(x for x in found.crossovers if x.name == name and (axis is None or x.axis == axis))


def view(own, recipe):
    sizes = sizes_of(own, recipe, np.array([recipe.micro_batch]))
    return outlook(own, Choice.of(recipe), sizes, np.array([float(recipe.grad_accum)]))


@pytest.mark.parametrize(("axis", "values"), [("micro_batch", [1, 7, 200]), ("seq", [100, 2048, 4000])])
def test_every_point_is_what_predict_says(axis, values):
    own = case()
    recipe = default(own)
    found = curve(own, axis, recipe, values=values)
    assert [p.value for p in found.points] == values
    for point in found.points:
        alone = replace(recipe, **{axis: point.value})
        assert point.prediction == predict(own, alone)
        times = view(own, alone).times
        assert (point.gpu_s, point.host_s) == pytest.approx((times.gpu_s[0], times.host_s[0]))
        assert point.bound == ("gpu" if times.gpu_s[0] >= times.host_s[0] else "host")


def test_the_calibrated_range_is_marked():
    found = curve(case(), "micro_batch", default(case()), values=[1, 157, 158])
    assert found.calibrated == (1.0, 157.0)
    assert [p.calibrated for p in found.points] == [True, True, False]
    sheet = curve(case(machine="1xA100-40GB"), "micro_batch", default(case()), values=[1])
    assert sheet.calibrated is None
    assert sheet.points[0].calibrated is None


@pytest.mark.parametrize("machine", [None, "1xA100-80GB", "1xL4"])
@pytest.mark.parametrize("model", ["pythia-160m", "pythia-14m"])
def test_the_gpu_takes_over_where_brute_force_says(model, machine):
    own = case(model, machine)
    found = named(curve(own, "micro_batch", default(own), values=[1, 2]), "gpu_bound")
    first = None
    for size in range(1, 200):
        times = view(own, replace(default(own), micro_batch=size)).times
        if times.gpu_s[0] >= times.host_s[0]:
            first = size
            break
    assert found.first == first
    assert found.state == ("always" if first == 1 else "from")
    assert found.first_low <= first <= found.first_high


def test_the_range_of_the_crossover_is_that_of_all_draws_at_every_value():
    own = case()
    found = named(curve(own, "micro_batch", default(own), values=[1], seed=3), "gpu_bound")
    firsts = []
    rungs = ladder(own, "micro_batch", default(own), np.arange(1, 60))
    for factors in draw_factors(own, seed=3):
        times = step_times(rungs.seconds, rungs.grad_accum, factors)
        firsts.append(1 + int(np.flatnonzero(times.gpu_s >= times.host_s)[0]))
    low, high = np.quantile(firsts, (0.05, 0.95), method="nearest")
    assert (found.first_low, found.first_high) == (low, high)
    assert low < high


def test_along_the_length_the_gpu_takes_over_where_bisection_says():
    own, recipe = case(), replace(default(case()), micro_batch=2)
    found = named(curve(own, "seq", recipe, values=[128, 8192]), "gpu_bound")

    def behind(seq):
        times = view(own, replace(recipe, seq=seq)).times
        return bool(times.gpu_s[0] < times.host_s[0])

    low, high = 128, 8192
    assert behind(low)
    assert not behind(high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if behind(middle) else (low, middle)
    assert found.first == high
    assert found.state == "from"


def test_draws_have_the_covariance_of_the_fit_stretched_as_the_intervals_are():
    own = case()
    fit = own.profile.fit
    drawn = draw_factors(own, 40_000, seed=1)
    wanted = covariance(fit, own.profile.rates) * (fit.interval_scale / 1.645) ** 2
    spread = np.sqrt(np.diag(wanted))
    assert np.abs(drawn.mean(axis=0) - log_factors(fit)) == pytest.approx(0, abs=float(0.03 * spread.max()))
    assert np.cov(drawn.T) / np.outer(spread, spread) == pytest.approx(wanted / np.outer(spread, spread), abs=0.04)
    assert (draw_factors(own, 5, seed=1) == draw_factors(own, 5, seed=1)).all()
    assert (draw_factors(own, 5, seed=1) != draw_factors(own, 5, seed=2)).any()


@pytest.mark.parametrize("steps", [None, 100, 4000, 20_000])
def test_compile_pays_where_the_run_is_over_sooner(steps):
    own = case(steps=steps)
    recipe = default(own)
    found = curve(own, "micro_batch", recipe, values=[1, 8, 64])
    pays = []
    for size in range(1, 300):
        off, on = (predict(own, replace(recipe, micro_batch=size, compile=c)) for c in ("off", "on"))
        if not (off.fits or on.fits):
            break
        saved = off.step_s - on.step_s
        sooner = saved > 0 if steps is None else steps * saved > on.compile_s
        pays.append(on.fits and (sooner or not off.fits))
    where = [size for size, one in enumerate(pays, start=1) if one]
    crossover = named(found, "compile")
    assert (crossover.first, crossover.last) == ((where[0], where[-1]) if where else (None, None))
    whole = where and len(where) == len(pays)
    assert (crossover.state == "always") == bool(whole)
    assert (crossover.state == "never") == (not where)


def test_compile_breaks_even_after_whole_steps_that_save_what_it_cost():
    own = case()
    found = curve(own, "micro_batch", default(own), values=[1, 8])
    for one in found.break_even:
        off, on = (predict(own, replace(default(own), micro_batch=one.value, compile=c)) for c in ("off", "on"))
        assert found.compile_s == on.compile_s
        assert one.saved_s_per_step == pytest.approx(off.step_s - on.step_s)
        assert one.steps * one.saved_s_per_step >= found.compile_s > (one.steps - 1) * one.saved_s_per_step
        assert one.hours == pytest.approx(one.steps * off.step_s / 3600)
        assert one.steps_low < one.steps < one.steps_high


@pytest.mark.parametrize(
    ("model", "machine", "batch"),
    [("pythia-160m", None, 60), ("pythia-1b", "1xRTX-3090", 60), ("pythia-410m", "1xRTX-4090", 64)],
)
def test_checkpointing_pays_from_where_it_beats_all_that_fits_without(model, machine, batch):
    """Brute force over every micro-batch, on this device and on devices of every size."""
    own = case(model, machine, global_batch=batch)
    recipe = complete({"optimizer": "adamw_fused"}, own)
    found = curve(own, "micro_batch", recipe, values=[1])
    sizes = [b for b in range(1, batch + 1) if batch % b == 0]

    def one(size, checkpointing):
        return predict(own, replace(recipe, micro_batch=size, grad_accum=batch // size, checkpointing=checkpointing))

    def need(size, checkpointing):
        """Bytes of the smallest device that holds it, by bisection over devices."""
        low, high = 0, 2**43
        while high - low > 1024:
            middle = (low + high) // 2
            gpu = replace(own.machine.gpu, memory_bytes=middle)
            there = replace(own, profile=replace(own.profile, machine=replace(own.machine, gpu=gpu)))
            asked = replace(recipe, micro_batch=size, grad_accum=batch // size, checkpointing=checkpointing)
            low, high = (low, middle) if predict(there, asked).fits else (middle, high)
        return high

    plain, full = ({b: one(b, c) for b in sizes} for c in ("none", "full"))
    best = min((p.step_s for p in plain.values() if p.fits), default=math.inf)
    wins = [b for b, p in full.items() if p.fits and p.step_s < best]
    crossover = named(found, "checkpointing=full", "micro_batch")
    assert (crossover.first, crossover.last) == ((wins[0], wins[-1]) if wins else (None, None))
    needs = {c: {b: need(b, c) for b in sizes} for c in ("none", "full")}
    limits = sorted({*needs["none"].values(), *needs["full"].values()})
    holds = []
    for limit in limits:
        fastest = [
            min((told[b].step_s for b in sizes if needs[c][b] <= limit), default=math.inf)
            for c, told in (("none", plain), ("full", full))
        ]
        holds.append(fastest[1] < fastest[0])
    over_memory = named(found, "checkpointing=full", "memory_bytes")
    last = max(i for i, won in enumerate(holds) if won)
    assert over_memory.first == pytest.approx(limits[holds.index(True)], rel=1e-6)
    assert over_memory.last == pytest.approx(limits[last + 1], rel=1e-6)
    assert over_memory.last_low <= over_memory.last_high


def test_a_global_batch_leaves_only_micro_batches_that_make_it():
    own = case(global_batch=48)
    found = curve(own, "micro_batch", default(own))
    assert {p.value for p in found.points} <= {b for b in range(1, 49) if 48 % b == 0}
    assert all(p.prediction.global_batch == 48 for p in found.points)
    with pytest.raises(InvalidInputError) as caught:
        curve(own, "micro_batch", default(own), values=[5, 8, 7])
    assert len(caught.value.problems) == 2


def test_default_points_spread_and_end_where_memory_does():
    own = case()
    found = curve(own, "micro_batch", default(own)).points
    assert found[0].value == 1
    assert [p.prediction.fits for p in found] == [True] * (len(found) - 1) + [False]
    assert predict(own, replace(default(own), micro_batch=found[-1].value - 1)).fits
    lengths = [p.value for p in curve(case("gpt2"), "seq", default(case("gpt2"))).points]
    assert (lengths[0], lengths[-1]) == (128, 1024), "the position table ends there"
    assert 1024 in lengths


def test_a_decoder_grows_with_the_encoder_unless_its_length_was_asked_for():
    own = case("t5-base")
    both = curve(own, "seq", default(own), values=[128, 256]).points
    assert [p.prediction.recipe.decoder_seq for p in both] == [128, 256]
    assert both[1].prediction == predict(own, Recipe(**{**_facts(default(own)), "seq": 256, "decoder_seq": 256}))
    asked = case("t5-base", decoder_seq=64)
    fixed = curve(asked, "seq", default(asked), values=[128, 256])
    assert [p.prediction.recipe.decoder_seq for p in fixed.points] == [64, 64]
    alone = view(asked, replace(default(asked), seq=256)).times
    assert fixed.points[1].gpu_s == pytest.approx(alone.gpu_s[0])


def _facts(recipe):
    return {name: getattr(recipe, name) for name in Recipe.__slots__}


def test_illegal_values_are_refused_together():
    own = case("gpt2")
    with pytest.raises(InvalidInputError) as caught:
        curve(own, "seq", default(own), values=[512, 2048, 4096])
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("holds", "state", "first", "last"),
    [
        ("....", "never", None, None),
        ("####", "always", 1, 8),
        ("..##", "from", 4, 8),
        ("##..", "until", 1, 2),
        (".##.", "between", 2, 4),
        ("#.#.", "scattered", 1, 4),
    ],
)
def test_where_something_holds_has_a_name(holds, state, first, last):
    values = np.array([1.0, 2.0, 4.0, 8.0])
    mask = np.array([letter == "#" for letter in holds])
    shifted = (values * 2, mask)
    found = crossing("x", "micro_batch", values, mask, [(values, mask)] * 19 + [shifted])
    assert (found.state, found.first, found.last) == (state, first, last)
    assert found.share == (0.0 if state == "never" else 1.0)
    if first is not None:
        assert (found.first_low, found.last_low) == (first, last)
        assert found.last_high in (last, 2 * last)


def test_a_stretch_without_end_has_no_last():
    values = np.array([1.0, 2.0])
    holds = np.array([False, True])
    found = crossing("x", "memory_bytes", values, holds, [(values, holds)], ends=np.array([2.0, math.inf]))
    assert (found.first, found.last, found.last_high) == (2.0, None, None)


def test_thinned_rows_hold_both_ends_and_what_is_asked():
    rows = thinned(5000, [777])
    assert {0, 777, 4999} <= set(rows.tolist())
    assert len(rows) < 300
    assert thinned(3).tolist() == [0, 1, 2]
