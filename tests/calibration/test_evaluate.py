"""Scores on the shipped records within golden bounds, and on scripted rows against the definitions."""

import inspect
import json
import math
from functools import cache

import numpy as np
import pytest

from calibration import evaluate
from calibration.baselines import BASELINES
from calibration.evaluate import time_scores
from calibration.rows import memory_within, time_rows
from profiles.errors import InvalidInputError
from profiles.files import SHIPPED
from profiles.records import append_measurement, read_measurements
from profiles.schema import Fit, Measurement, Recipe
from profiles.store import load_workload, read_profile

RECORDS = SHIPPED / "measured" / "1xH200"
CALIBRATED_ON = [RECORDS / "calibration.jsonl", RECORDS / "host_check.jsonl"]
MODELS = ["pythia-160m", "pythia-1b", "pythia-410m"]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))


@cache
def golden():
    """The headline evaluation: rows that no fit saw, from probes and the runs of one calibration."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_HOME", "/nonexistent/paceline")
        return evaluate(RECORDS / "held_out.jsonl", calibrate_on=CALIBRATED_ON, prior="probes", baselines=True)


def test_held_out_step_times_are_within_six_per_cent():
    scores = golden()["step_time"]
    assert scores["n"] >= 50
    assert scores["mape"] <= 0.06
    assert scores["median"] <= 0.04
    assert abs(scores["bias"]) <= 0.02
    assert 0.85 <= scores["coverage90"] <= 1.0
    assert golden()["step_time_gpu_bound"]["mape"] <= 0.04


def test_held_out_memory_is_within_three_per_cent_and_no_fit_is_false():
    assert golden()["memory"]["median"] <= 0.03
    assert golden()["memory"]["p95"] <= 0.03
    oom = golden()["oom"]
    assert oom["n_oom"] >= 5
    assert oom["false_fits"] == 0
    assert oom["recall"] == 1.0


def test_what_ran_below_97_per_cent_of_the_limit_is_called_a_fit():
    fit = read_profile(SHIPPED / "fitted" / "1xH200.json").fit
    limit = read_profile(SHIPPED / "fitted" / "1xH200.json").machine.gpu.memory_bytes
    called = []
    for name in ("held_out", "development"):
        for record in read_measurements(RECORDS / f"{name}.jsonl"):
            if record.status == "ok" and record.peak_device_bytes < 0.97 * limit:
                workload = load_workload(record.model)
                called.append(memory_within(record, workload, fit, limit).peak_bytes_high[0] <= limit)
    assert len(called) >= 80
    assert np.mean(called) >= 0.97
    assert golden()["oom"]["false_alarm_away_from_limit"] <= 0.03


def test_the_headline_scores_what_it_did_not_fit():
    held = read_measurements(RECORDS / "held_out.jsonl")
    seen = [r for path in CALIBRATED_ON for r in read_measurements(path)]
    assert not {(r.started_at, r.model, r.recipe) for r in held} & {(r.started_at, r.model, r.recipe) for r in seen}
    assert golden()["fitted"] == len(seen)
    assert golden()["scored"] == len(held)


def test_each_model_is_also_scored_by_a_fit_that_never_saw_it():
    scores = golden()["leave_one_model_out"]
    assert sorted(scores) == MODELS
    assert sum(s["n"] for s in scores.values()) == golden()["step_time"]["n"]
    assert all(s["mape"] <= 0.12 for s in scores.values())
    unseen = sum(s["n"] * s["mape"] for s in scores.values()) / golden()["step_time"]["n"]
    assert unseen > golden()["step_time"]["mape"], "a model that was measured is known better"


def test_every_baseline_is_beaten():
    scores = golden()["baselines"]
    assert set(scores) == set(BASELINES)
    for name, one in scores.items():
        assert one["n"] == golden()["step_time"]["n"]
        assert one["mape"] > 2 * golden()["step_time"]["mape"], name
        assert one["median"] <= one["p95"]


def test_the_keys_of_the_answer_are_the_contract_and_plain_json():
    found = json.loads(json.dumps(golden()))
    assert {"step_time", "memory", "oom", "regret", "baselines"} <= set(found)
    assert {"n", "mape", "median", "p95", "bias", "coverage90"} <= set(found["step_time"])
    assert {"recall", "false_alarm"} <= set(found["oom"])
    assert {"top1", "top3"} <= set(found["regret"])
    parts = [found[f"step_time_{part}_bound"]["n"] for part in ("gpu", "host")]
    assert sum(parts) == found["step_time"]["n"]
    assert {"memory_reserved", "repeat_noise", "by", "ablations"} <= set(found)
    assert found["step_time_unrepeated"] == found["step_time"], "no recipe was run twice"


def test_errors_by_knob_add_up_to_all_rows():
    held = [r for r in read_measurements(RECORDS / "held_out.jsonl") if r.status == "ok"]
    whole = golden()["step_time"]
    for knob, scores in golden()["by"].items():
        assert sum(s["n"] for s in scores.values()) == whole["n"]
        for score in ("mape", "bias", "coverage90"):
            assert sum(s["n"] * s[score] for s in scores.values()) == pytest.approx(whole["n"] * whole[score]), knob
    assert golden()["by"]["precision"]["tf32"]["n"] == sum(r.recipe.precision == "tf32" for r in held)
    assert list(golden()["by"]["seq"]) == ["512", "1024", "2048"]


def test_the_parts_cover_what_the_whole_covers():
    parts = [golden()[f"step_time_{part}_bound"] for part in ("gpu", "host")]
    covered = sum(p["n"] * p["coverage90"] for p in parts)
    assert covered == pytest.approx(golden()["step_time"]["n"] * golden()["step_time"]["coverage90"])
    assert parts[0]["interval_width"] < parts[1]["interval_width"], "steps that the host decides scatter more"


def test_a_fitted_profile_beats_what_no_run_has_told():
    table = RECORDS / "held_out.jsonl"
    profile, probes, sheet = (evaluate(table, prior=p)["step_time"]["mape"] for p in ("profile", "probes", "datasheet"))
    assert profile <= 0.06
    assert 2 * profile < probes <= 0.2
    assert 2 * profile < sheet <= 0.2
    assert evaluate(table)["step_time"]["mape"] == profile, "the profile is the default"
    assert inspect.signature(evaluate).parameters["prior"].default == "profile"


def test_a_seed_draws_the_same_rows_again_and_others_with_another():
    def scored(seed):
        return evaluate(RECORDS / "development.jsonl", calibrate=12, seed=seed, prior="probes")

    one, again, other = scored(1), scored(1), scored(2)
    assert one == again
    assert one["step_time"] != other["step_time"]
    assert one["fitted"] == 12
    assert one["fitted"] + one["scored"] == len(read_measurements(RECORDS / "development.jsonl"))
    assert one["baselines"] is None


def test_a_few_rows_help_and_more_help_more():
    table = RECORDS / "held_out.jsonl"
    none = evaluate(table, prior="datasheet")["step_time"]["mape"]
    few, many = (
        np.mean([evaluate(table, calibrate=n, seed=s, prior="datasheet")["step_time"]["mape"] for s in range(3)])
        for n in (6, 25)
    )
    assert many < few < none


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"prior": "guess"}, ["prior=guess", "profile, probes, datasheet"]),
        ({"calibrate": -1}, ["calibrate=-1", "0 and more"]),
        ({"calibrate": 10_000}, ["left to score"]),
        ({"calibrate": 2, "choose": "luck"}, ["choose=luck", "adaptive", "random"]),
        ({"prior": "guess", "calibrate": -1}, ["prior=guess", "calibrate=-1"]),
    ],
)
def test_bad_options_are_refused(options, parts):
    with pytest.raises(InvalidInputError) as caught:
        evaluate(RECORDS / "verified.jsonl", **options)
    for part in parts:
        assert part in str(caught.value)


def test_a_table_that_is_not_there_or_holds_nothing_is_told(tmp_path):
    with pytest.raises(InvalidInputError, match="no such file"):
        evaluate(tmp_path / "nothing.jsonl")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    with pytest.raises(InvalidInputError, match="empty"):
        evaluate(empty)


def record(micro_batch, step_s, **facts):
    recipe = facts.pop("recipe", Recipe(micro_batch=micro_batch, grad_accum=64 // micro_batch, seq=2048))
    return Measurement(
        model="pythia-410m",
        config_hash=load_workload("pythia-410m").config_hash,
        machine="1xH200",
        recipe=recipe,
        status="ok" if step_s else "oom",
        step_s=step_s,
        **facts,
    )


def rows_of(records):
    profile = read_profile(SHIPPED / "fitted" / "1xH200.json")
    return time_rows(records, {"pythia-410m": load_workload("pythia-410m")}, profile.rates)


def test_errors_are_relative_to_what_was_measured():
    rows = rows_of([record(1, 1.0), record(2, 2.0), record(4, 4.0), record(8, 0.5)])
    predicted, sd, fit = np.array([1.1, 1.6, 4.0, 0.5]), np.array([0.1, 0.1, 0.0, 1.0]), Fit(interval_scale=1.0)
    scores = time_scores(rows, predicted, sd, fit)
    assert scores["n"] == 4
    assert scores["mape"] == pytest.approx((0.1 + 0.2) / 4)
    assert scores["bias"] == pytest.approx((0.1 - 0.2) / 4)
    assert scores["median"] == pytest.approx(0.05)
    assert scores["coverage90"] == pytest.approx(0.75), "log 1.1 is inside 0.1, log 0.8 is not"
    assert scores["interval_width"] == pytest.approx((4 * math.sinh(0.1) + 2 * math.sinh(1.0)) / 4)
    some = time_scores(rows, predicted, sd, fit, np.array([False, True, True, False]))
    assert (some["n"], some["mape"], some["coverage90"]) == (2, pytest.approx(0.1), 0.5)


def test_out_of_memory_rows_count_toward_calibrate(tmp_path):
    table = tmp_path / "t.jsonl"
    for one in (record(300, None, recipe=Recipe(micro_batch=300)), record(1, 2.5), record(2, 2.4), record(4, 2.3)):
        append_measurement(table, one)
    fitted = [evaluate(table, calibrate=2, seed=s, prior="probes") for s in range(6)]
    assert {f["fitted"] for f in fitted} == {2}
    assert {f["scored"] for f in fitted} == {2}
    assert {f["step_time"]["n"] for f in fitted} == {1, 2}
    assert all(math.isfinite(f["step_time"]["mape"]) for f in fitted)


def test_lines_that_cannot_be_read_are_reported(tmp_path):
    table = tmp_path / "t.jsonl"
    append_measurement(table, record(1, 2.5))
    with table.open("a") as file:
        file.write("not json\n")
    found = evaluate(table)
    assert found["step_time"]["n"] == 1
    assert any("line 2" in problem for problem in found["problems"])


def test_recipes_that_were_fitted_are_not_scored(tmp_path):
    fitted, table = tmp_path / "fitted.jsonl", tmp_path / "t.jsonl"
    append_measurement(fitted, record(1, 2.5))
    for one in (record(1, 2.6), record(2, 2.4), record(4, 2.3)):
        append_measurement(table, one)
    found = evaluate(table, calibrate_on=fitted, prior="probes")
    assert (found["fitted"], found["scored"], found["step_time"]["n"]) == (1, 2, 2)
    assert any(problem.startswith("1 rows are of recipes that were fitted") for problem in found["problems"])


def test_chosen_rows_are_those_of_the_policy():
    table = RECORDS / "held_out.jsonl"
    chosen, again = (evaluate(table, calibrate=8, choose="adaptive", prior="probes") for _ in range(2))
    assert chosen == again
    assert (chosen["fitted"], chosen["scored"]) == (8, len(read_measurements(table)) - 8)
    assert chosen["step_time"] != evaluate(table, calibrate=8, prior="probes")["step_time"]


def test_a_profile_scored_on_its_own_records_says_so():
    """All of the ground truth is in the shipped fit; from probes nothing is."""
    table = SHIPPED / "measured/1xH200/truth.jsonl"
    told = evaluate(table)["problems"]
    assert any("400 of 400 scored rows are records that the profile of 1xH200 was fitted to" in line for line in told)
    assert not any("was fitted to" in line for line in evaluate(table, prior="probes")["problems"])


def test_what_the_physics_gate_refuses_is_told(tmp_path):
    """A step of Pythia-410M in a microsecond."""
    lines = (SHIPPED / "measured/1xH200/held_out.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    fast = next(r for r in records if r["status"] == "ok")
    fast |= {"step_s": 1e-6, "step_s_low": 1e-6, "step_s_high": 1e-6, "samples_s": []}
    table = tmp_path / "fast.jsonl"
    table.write_text("".join(json.dumps(r) + "\n" for r in records))
    told = evaluate(table, prior="probes")
    assert told["step_time"]["n"] == sum(r["status"] == "ok" for r in records) - 1
    assert any("FLOP/s" in line for line in told["problems"])
