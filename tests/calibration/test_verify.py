"""Verification against a scripted machine: fresh runs, signs, what goes back into the fit, and what is drawn."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import calibration.machine
from calibration.calibrate import journal_path, known_records
from calibration.question import build_case
from calibration.testing import FakeMachine
from calibration.verify import draw, verify
from profiles import store
from profiles.errors import CampaignError
from profiles.machines import parse_machine
from profiles.records import append_measurement, read_measurements
from profiles.schema import Measurement, Recipe
from simulator import Run, plan, predict
from simulator.rates import datasheet_profile

MODEL, SEQ, BATCH = "pythia-160m", 2048, 64
FIXED = {"precision": "bf16", "compile": "off"}


@cache
def shipped_case():
    return build_case(MODEL, "1xH200", Run(seq=SEQ, global_batch=BATCH), FIXED)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(calibration.machine, "this_machine", lambda: parse_machine("1xH200"))
    monkeypatch.setattr(calibration.machine, "this_device", lambda: "cuda")


@pytest.fixture
def case():
    return shipped_case()


def alone(case, recipe):
    """The prediction of a recipe at whatever accumulation."""
    return predict(replace(case, run=Run(seq=SEQ)), recipe)


def slower(case, factor, **options):
    """A machine on which every step takes ``factor`` times what is predicted."""
    return FakeMachine(
        **{
            "step_s": lambda r: factor * alone(case, r).step_s,
            "peak_bytes": lambda r: alone(case, r).peak_bytes,
            "noise": 1e-4,
            **options,
        }
    )


@pytest.mark.parametrize("factor", [1.25, 0.9])
def test_error_is_predicted_minus_measured_over_measured(case, factor):
    found = verify(case, top=3, measurer=slower(case, factor))
    assert len(found.verified) == 3
    for one in found.verified:
        assert one.measured.step_s == pytest.approx(factor * one.predicted.step_s, rel=1e-3)
        assert one.error == pytest.approx(1 / factor - 1, abs=2e-3)
        assert not one.drawn


def test_it_runs_the_top_of_the_plan_as_export_would_write_it(case):
    machine = slower(case, 1.0)
    found = verify(case, top=3, measurer=machine)
    expected = [p.recipe for p in plan(case, 3).recipes]
    assert [v.recipe for v in found.verified] == [t.recipe for t in machine.trials] == expected
    assert all(v.predicted == predict(case, v.recipe) for v in found.verified)
    assert all(t.machine == "1xH200" and t.device == "cuda" and t.model == MODEL for t in machine.trials)
    assert machine.closed


def test_an_old_record_is_never_trusted(case):
    best = plan(case, 1).best
    facts = {"model": MODEL, "config_hash": case.workload.config_hash, "machine": "1xH200"}
    old = Measurement(**facts, recipe=best.recipe, status="ok", step_s=99.0)
    append_measurement(journal_path("1xH200"), old)
    machine = slower(case, 1.0)
    found = verify(case, top=1, measurer=machine)
    assert len(machine.trials) == 1
    assert found.verified[0].measured.step_s == pytest.approx(best.step_s, rel=1e-3)
    assert len(read_measurements(journal_path("1xH200"))) == 2


def test_what_was_measured_moves_the_predictions_towards_it(case):
    found = verify(case, top=4, extra_random=4, measurer=slower(case, 1.15))
    later = build_case(MODEL, "1xH200", case.run, FIXED)
    for one in found.verified:
        before, measured = np.log(one.predicted.step_s), np.log(one.measured.step_s)
        after = np.log(predict(later, one.recipe).step_s)
        assert abs(after - measured) < abs(before - measured)
        assert before < after, "a machine that turned out slower is predicted slower"


def test_the_shipped_records_stay_in_the_fit(case):
    """Three runs on a calibrated machine must not replace the eighty behind its profile."""
    before = case.profile
    found = verify(case, top=3, measurer=slower(case, 1.0))
    after = store.read_profile(found.profile_path)
    assert after.fit.measurements == before.fit.measurements + 3
    assert set(before.fit.models) == set(after.fit.models)
    assert set(before.measurement_files) < set(after.measurement_files)
    others = build_case("pythia-1b", "1xH200", Run(seq=SEQ), {}, published_batch=False)
    for recipe in (Recipe(micro_batch=8, seq=SEQ, precision=p) for p in ("fp32", "tf32", "fp16")):
        moved = predict(others, recipe).step_s / predict(replace(others, profile=before), recipe).step_s
        assert moved == pytest.approx(1.0, abs=0.03), "what nobody ran again stays as it was"


def test_a_second_verification_adds_to_the_first(case):
    before = store.read_profile(verify(case, top=2, measurer=slower(case, 1.0)).profile_path)
    later = build_case(MODEL, "1xH200", case.run, FIXED)
    second = verify(later, top=2, extra_random=2, measurer=slower(case, 1.0, seed=9))
    after = store.read_profile(second.profile_path)
    assert after.fit.measurements == before.fit.measurements + 4
    assert len(known_records(after, journal_path("1xH200"))) == after.fit.measurements


def test_verified_records_are_kept_and_lead_the_plan(case):
    found = verify(case, top=3, measurer=slower(case, 1.05))
    profile = store.read_profile(found.profile_path)
    assert found.profile_path.is_relative_to(store.home())
    ours = [v.measured for v in found.verified]
    assert list(profile.verified[-3:]) == ours
    assert profile.verified[:-3] == case.profile.verified
    later = build_case(MODEL, "1xH200", case.run, FIXED)
    answer = plan(later, 1)
    assert replace(answer.best, warnings=()) == replace(found.best, warnings=())
    assert answer.best.measured_step_s in [m.step_s for m in ours]
    assert profile.provenance == "measured"


def test_the_best_after_verification_is_the_one_that_really_was_fast(case):
    top = [p.recipe for p in plan(case, 3).recipes]
    favourite = top[2]

    def step_s(recipe):
        factor = 0.75 if recipe.micro_batch == favourite.micro_batch else 1.1
        return factor * alone(case, recipe).step_s

    found = verify(case, top=3, measurer=slower(case, 1.0, step_s=step_s))
    fastest = min(found.verified, key=lambda v: v.measured.step_s)
    assert fastest.recipe == favourite
    measured = {v.recipe: v.measured.step_s for v in found.verified}
    assert found.best.recipe in measured


def test_drawn_recipes_are_new_fit_and_not_among_the_top(case):
    known = [r for r in known_records(case.profile, journal_path("1xH200")) if r.model == MODEL]
    found = verify(case, top=3, extra_random=6, seed=3, measurer=slower(case, 1.0))
    drawn = [v for v in found.verified if v.drawn]
    assert len(drawn) == 6
    assert all(v.predicted.fits for v in drawn)
    measured = {(replace(r.recipe, grad_accum=1, seq=r.recipe.seq or SEQ)) for r in known}
    assert not {replace(v.recipe, grad_accum=1) for v in drawn} & measured
    assert len({v.recipe for v in found.verified}) == 9


def test_a_record_without_a_length_is_known_at_the_models_own(case):
    fixed = replace(case, fixed={**FIXED, "attention": "sdpa", "checkpointing": "none"})
    everything = draw(fixed, 1000, 0, [])
    assert len(everything) == 7, "powers of two up to the global batch"
    known = Measurement(model=MODEL, machine="1xH200", recipe=Recipe(micro_batch=16), status="ok", step_s=1.0)
    left = draw(fixed, 1000, 0, [known])
    assert {r.micro_batch for r in everything} - {r.micro_batch for r in left} == {16}
    assert draw(fixed, 1000, 0, [replace(known, model="gpt2")]) == everything
    assert {r.micro_batch for r in draw(fixed, 1000, 0, [], left)} == {16}


def test_draws_follow_the_seed(case):
    assert draw(case, 5, 1, []) == draw(case, 5, 1, [])
    assert draw(case, 5, 1, []) != draw(case, 5, 2, [])
    assert draw(case, 0, 1, []) == []


def test_a_run_that_fails_is_an_answer_without_an_error(case):
    best = plan(case, 1).best.recipe
    machine = slower(case, 1.0, crash=lambda r: "illegal memory access" if r == best else None)
    found = verify(case, top=3, measurer=machine)
    assert [v.measured.status for v in found.verified] == ["crash", "ok", "ok"]
    assert [v.error is None for v in found.verified] == [True, False, False]
    assert found.verified[0].measured.reason == "illegal memory access"
    profile = store.read_profile(found.profile_path)
    assert len(profile.verified) == len(case.profile.verified) + 2


def test_if_every_run_fails_the_first_reason_is_told_and_nothing_is_learned(case):
    machine = slower(case, 1.0, crash=lambda _: "driver is gone")
    with pytest.raises(CampaignError, match="driver is gone") as caught:
        verify(case, top=2, measurer=machine)
    assert caught.value.exit_code == 4
    assert machine.closed
    assert not (store.home() / "fitted").exists()
    assert len(read_measurements(journal_path("1xH200"))) == 2


@pytest.mark.parametrize("machine", ["1xA100-80GB", "4xH200"])
def test_another_machine_cannot_be_verified_here(machine):
    elsewhere = build_case(MODEL, machine, Run(seq=SEQ, global_batch=BATCH), FIXED)
    fake = FakeMachine(step_s=lambda _: 1.0)
    with pytest.raises(CampaignError, match="this machine is 1xH200") as caught:
        verify(elsewhere, measurer=fake)
    assert machine in str(caught.value)
    assert fake.trials == []


def test_progress_rises_from_nothing(case):
    told = []
    verify(case, top=2, on_progress=lambda text, share: told.append((text, share)), measurer=slower(case, 1.0))
    assert told[0][0].startswith("2 runs, about ")
    assert told[1:] == [("run 1 of 2", 0.0), ("run 2 of 2", 0.5)]


def test_a_machine_known_by_its_data_sheet_becomes_a_measured_one(case):
    sheet = replace(case, profile=datasheet_profile(parse_machine("1xH200")))
    found = verify(sheet, top=3, extra_random=3, measurer=slower(case, 1.0))
    profile = store.read_profile(found.profile_path)
    assert profile.provenance == "measured"
    assert found.best.provenance == "predicted"
    assert profile.fit.measurements == 6
    learned = replace(sheet, profile=profile)
    for one in found.verified[:3]:
        before, after = (abs(predict(c, one.recipe).step_s / one.measured.step_s - 1) for c in (sheet, learned))
        assert after < before


def test_a_rate_above_the_machines_peak_is_not_believed(case):
    machine = slower(case, 0.01)
    with pytest.raises(CampaignError, match="TFLOP/s"):
        verify(case, top=2, measurer=machine)
