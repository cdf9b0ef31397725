"""Calibration against a scripted machine: its budget, its journal, its failures, and what it learns."""

from dataclasses import replace
from functools import cache
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest

import calibration.candidates
import calibration.machine
from calibration.calibrate import calibrate, finished, journal_path, refit
from calibration.testing import FakeMachine
from profiles import store
from profiles.errors import CampaignError, InvalidInputError
from profiles.files import SHIPPED
from profiles.machines import parse_machine
from profiles.records import append_measurement, read_measurements
from profiles.schema import Device, Fit, Measurement, Recipe
from profiles.store import load_workload, read_profile
from simulator import Case, Run, predict
from simulator.components import COMPONENTS, INDEX, Choice, component_seconds
from simulator.memory import memory
from simulator.steptime import log_factors, step_times

MODULE = import_module("calibration.calibrate")
"""The package's own ``calibrate`` is the function."""
MODEL = "pythia-160m"
START_S = 8.0
"""What the scripted machine takes for starting a trial."""
GIB = 2**30


@cache
def workload():
    found = load_workload(MODEL)
    assert found is not None
    return found


@cache
def rates():
    return read_profile(SHIPPED / "fitted" / "1xH200.json").rates


def truth():
    factors = np.zeros(len(COMPONENTS))
    factors[INDEX["matmul.bf16.aligned"]] = 0.3
    factors[INDEX["elementwise"]] = -0.25
    factors[INDEX["dispatch.forward"]] = 0.3
    return factors


def sizes(recipe):
    return np.array([[float(recipe.micro_batch), float(recipe.seq or workload().seq), 0.0]])


def true_step_s(recipe):
    seconds = component_seconds(workload(), rates(), Choice.of(recipe), sizes(recipe))
    return float(step_times(seconds, np.array([float(recipe.grad_accum)]), truth()).step_s[0])


def true_peak_bytes(recipe):
    accumulates = np.array([recipe.grad_accum > 1])
    found = memory(workload(), Choice.of(recipe), sizes(recipe), accumulates, Fit(), float("inf"))
    return round(float(found.peak_bytes[0]))


def scripted(**options):
    return FakeMachine(**({"step_s": true_step_s, "peak_bytes": true_peak_bytes, "noise": 0.002} | options))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """We are on an H200 whose probes take ten seconds and whose clock is the scripted machine's."""
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(calibration.machine, "this_machine", lambda: parse_machine("1xH200"))
    monkeypatch.setattr(calibration.machine, "this_device", lambda: "cuda")
    state = SimpleNamespace(machine=scripted(), probed_s=0.0, probes=0)

    def probe_rates(_machine, _device, budget_s):
        state.probes += 1
        state.probed_s += budget_s
        return dict(rates())

    def monotonic():
        return 1000.0 + state.probed_s + state.machine.now_s + START_S * len(state.machine.trials)

    monkeypatch.setattr(MODULE, "probe_rates", probe_rates)
    monkeypatch.setattr(calibration.candidates, "MICRO_BATCHES", (1, 4, 16, 64, 128))
    monkeypatch.setattr(MODULE, "time", SimpleNamespace(monotonic=monotonic))
    return state


def run(here, budget_s=150.0, **options):
    return calibrate([MODEL], budget_s=budget_s, seqs=(2048,), measurer=here.machine, **options)


def test_a_calibration_learns_the_machine_and_keeps_its_budget(here):
    told = []
    done = run(here, on_progress=lambda text, share: told.append((text, share)))
    assert 100.0 < done.seconds <= 150.0 * 1.15
    assert done.profile.calibration_s == pytest.approx(done.seconds, abs=1.0)
    assert len(done.measurements) == len(here.machine.trials) >= 10
    assert here.machine.closed
    case = Case(workload=workload(), profile=done.profile, run=Run(seq=2048))
    unseen = [Recipe(micro_batch=b, seq=2048, attention=a) for b in (5, 10, 20, 40) for a in ("sdpa", "eager")]
    error = [predict(case, r).step_s / true_step_s(r) - 1 for r in unseen]
    before = replace(case, profile=replace(done.profile, fit=Fit()))
    naive = [predict(before, r).step_s / true_step_s(r) - 1 for r in unseen]
    assert np.abs(error).mean() < 0.03
    assert np.abs(error).mean() < 0.3 * np.abs(naive).mean()
    assert [share for _, share in told] == sorted(share for _, share in told)
    assert told[0] == ("probes", 0.0)
    assert MODEL in told[1][0]
    assert told[-1][1] <= 1.0


def test_the_profile_is_stored_and_found_again(here):
    done = run(here)
    assert done.profile_path.is_relative_to(store.home())
    assert store.load_profile("1xH200") == done.profile == read_profile(done.profile_path)
    assert done.profile.provenance == "measured"
    assert done.profile.fit.models == (MODEL,)
    assert done.profile.fit.measurements == len(done.measurements)
    assert done.profile.rates == rates()
    journal = store.home() / "measured" / done.profile.measurement_files[0]
    assert journal == journal_path("1xH200")
    assert read_measurements(journal) == done.measurements


def test_it_measures_both_ends_first_and_never_the_same_twice(here):
    done = run(here)
    recipes = [m.recipe for m in done.measurements]
    assert len(set(recipes)) == len(recipes)
    small, large = sorted(recipes[:2], key=lambda r: r.micro_batch)
    assert small.micro_batch == 1
    assert large.micro_batch > 16
    assert large == replace(small, micro_batch=large.micro_batch)
    assert len({(r.precision, r.attention) for r in recipes}) >= 4


class Compiles(FakeMachine):
    """Takes 40 s more for every compiled shape."""

    def measure(self, trial):
        record = super().measure(trial)
        extra_s = 40.0 if trial.recipe.compile == "on" else 0.0
        self.now_s += extra_s
        return replace(record, trial_s=record.trial_s + extra_s)


def test_compiled_shapes_are_rationed(here):
    here.machine = Compiles(step_s=true_step_s, peak_bytes=true_peak_bytes)
    done = run(here, budget_s=360.0)
    compiled = [m for m in done.measurements if m.recipe.compile == "on"]
    assert 1 <= len(compiled) <= 3
    assert sum(m.trial_s for m in compiled) <= 0.35 * 360.0
    assert len(done.measurements) >= 3 * len(compiled)


def test_a_resumed_calibration_asks_only_for_what_is_missing(here):
    first = run(here)
    here.machine = scripted()
    here.probed_s = 0.0
    second = run(here)
    again = {m.recipe for m in first.measurements}
    asked = [t.recipe for t in here.machine.trials]
    assert not again & set(asked)
    assert second.measurements[: len(first.measurements)] == first.measurements
    assert len(second.measurements) > len(first.measurements), "records that are there cost no time"
    journal = read_measurements(journal_path("1xH200"))
    assert len(journal) == len(set(m.recipe for m in journal)) == len(again) + len(asked)


def test_a_killed_calibration_leaves_its_records_and_closes_the_measurer(here):
    class Stops(FakeMachine):
        def measure(self, trial):
            if len(self.trials) == 3:
                raise KeyboardInterrupt
            return super().measure(trial)

    here.machine = Stops(step_s=true_step_s, peak_bytes=true_peak_bytes)
    with pytest.raises(KeyboardInterrupt):
        run(here)
    assert here.machine.closed
    assert len(read_measurements(journal_path("1xH200"))) == 3
    assert not (store.home() / "fitted").exists()


def test_out_of_memory_crashes_and_hangs_are_records_and_do_not_end_it(here):
    here.machine = scripted(
        memory_bytes=20 * GIB,
        crash=lambda r: "kernel image is missing" if r.attention == "eager" and r.precision == "fp32" else None,
        hangs=lambda r: r.checkpointing == "every_2" and r.precision == "tf32",
    )
    done = run(here, budget_s=300.0)
    statuses = [m.status for m in done.measurements]
    assert {"ok", "oom"} <= set(statuses)
    assert statuses.count("ok") >= 5
    assert all(m.reason for m in done.measurements if m.status != "ok")
    assert done.profile.fit.measurements == statuses.count("ok") + statuses.count("oom")
    assert read_measurements(journal_path("1xH200")) == done.measurements


def test_if_every_run_fails_it_says_the_first_ones_reason(here):
    here.machine = scripted(crash=lambda _: "no kernel image is available")
    with pytest.raises(CampaignError, match="no kernel image is available") as caught:
        run(here)
    assert caught.value.exit_code == 4
    assert here.machine.closed
    assert not (store.home() / "fitted").exists(), "nothing was learned"
    assert read_measurements(journal_path("1xH200"))


def test_probes_that_eat_the_budget_end_in_a_message(here, monkeypatch):
    def slow(_machine, _device, _budget_s):
        here.probed_s += 500.0
        return dict(rates())

    monkeypatch.setattr(MODULE, "probe_rates", slow)
    with pytest.raises(CampaignError, match="budget"):
        run(here)
    assert here.machine.trials == []


def test_a_machine_too_small_for_the_model_is_told(here, monkeypatch):
    tiny = parse_machine("1xH200")
    tiny = replace(tiny, gpu=replace(tiny.gpu, memory_bytes=GIB))
    monkeypatch.setattr(calibration.machine, "this_machine", lambda: tiny)
    with pytest.raises(CampaignError, match="fit") as caught:
        run(here)
    assert caught.value.exit_code == 4


def test_all_bad_input_is_told_at_once(here):
    with pytest.raises(InvalidInputError) as caught:
        calibrate(["pythia-161m", "gpt9"], budget_s=59.9, machine="1xT4", measurer=here.machine)
    text = "\n".join(caught.value.problems)
    assert caught.value.exit_code == 2
    for part in ("59.9 s", "60 s and more", "1xH200", "1xT4", "'pythia-161m'", "pythia-160m", "'gpt9'"):
        assert part in text
    assert here.probes == 0
    assert here.machine.trials == []


@pytest.mark.parametrize("budget_s", [-5.0, 0.0, 59.0, float("nan")])
def test_a_budget_below_a_minute_is_refused(here, budget_s):
    with pytest.raises(InvalidInputError, match="60 s and more"):
        calibrate([MODEL], budget_s=budget_s, measurer=here.machine)


def test_no_model_is_refused(here):
    with pytest.raises(InvalidInputError, match="at least one model"):
        calibrate([], budget_s=60.0, measurer=here.machine)


@pytest.mark.parametrize("name", ["1xH200", "H200"])
def test_the_machine_may_be_named_if_it_is_the_one(here, name):
    assert run(here, budget_s=60.0, machine=name).measurements


def measured(**facts):
    recipe = facts.pop("recipe", Recipe(micro_batch=8, seq=2048))
    facts = {"status": "ok", "step_s": 1.0, "config_hash": workload().config_hash} | facts
    return Measurement(model=MODEL, machine="1xH200", recipe=recipe, **facts)


def test_finished_takes_the_median_power_of_what_ran(here):
    powers = [300.0, 600.0, 500.0, None]
    some = [measured(device=Device(name="H200", power_w=p)) for p in powers]
    failed = measured(status="oom", step_s=None, device=Device(name="H200", power_w=9.0))
    profile = finished(read_profile(SHIPPED / "fitted" / "1xH200.json"), [*some, failed], journal_path("1xH200"), 12.0)
    assert profile.device is not None
    assert profile.device.power_w == 500.0
    assert profile.calibration_s == 12.0


def test_refit_leaves_out_what_is_not_modelled_and_keeps_the_fit_without_records(here):
    profile = read_profile(SHIPPED / "fitted" / "1xH200.json")
    foreign = measured(config_hash="another model of that name")
    assert refit(profile, [foreign], {MODEL: workload()}) == profile
    slow = [measured(step_s=2 * true_step_s(Recipe(micro_batch=8, seq=2048)))]
    assert log_factors(refit(profile, [*slow, foreign], {MODEL: workload()}).fit).sum() > 0


def test_records_of_another_torch_are_in_another_file(here, monkeypatch):
    own = journal_path("1xH200")
    monkeypatch.setattr("importlib.metadata.version", lambda _: "1.13.1+cu117")
    other = journal_path("1xH200")
    assert other.name == "1xH200--torch1.13.jsonl"
    assert other != own


def test_a_record_of_an_earlier_calibration_is_used_and_not_taken_again(here):
    first = run(here, budget_s=80.0)
    known = first.measurements[0]
    here.machine = scripted()
    here.probed_s = 0.0
    append_measurement(journal_path("1xH200"), replace(known, step_s=known.step_s * 1.01))
    second = run(here, budget_s=80.0)
    assert second.measurements[0].step_s == known.step_s * 1.01, "the newest record of a recipe counts"


def test_a_second_model_joins_the_first_and_verified_runs_stay(here):
    first = run(here)
    checked = replace(first.profile, verified=first.measurements[:1])
    store.save_profile(checked)
    second = calibrate(["pythia-410m"], budget_s=300.0, seqs=(2048,), measurer=here.machine)
    assert second.profile.fit.models == ("pythia-160m", "pythia-410m")
    counted = [m for m in (*first.measurements, *second.measurements) if m.status in {"ok", "oom"}]
    assert second.profile.fit.measurements == len(counted)
    assert second.profile.verified == first.measurements[:1]
