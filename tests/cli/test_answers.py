"""Answers as JSON: the keys of the contract, sums that must add up, and agreement with the Python interface."""

import json
from dataclasses import fields

import pytest

import profiles
from calibration.question import build_case
from cli.contract import plain
from simulator import Run, plan
from simulator.recipes import parse_recipe, recipe_of

RECIPE_KEYS = {
    "recipe", "step_s", "step_s_low", "step_s_high", "tokens_per_s", "days", "usd", "kwh", "mfu", "peak_bytes",
    "peak_reserved_bytes", "peak_device_bytes", "peak_bytes_high", "fit_probability", "provenance", "verdict",
    "time_breakdown_s", "memory_breakdown_bytes",
}  # fmt: skip
KNOBS = {field.name for field in fields(profiles.schema.Recipe)}
PLAN = ("plan", "pythia-14m", "--machine", "1xA100-80GB", "--tokens", "1B", "--global-batch", "64", "--seq", "512")


@pytest.fixture
def planned(paceline):
    ended = paceline(*PLAN, "--top", "7", "--json")
    assert ended.code == 0, ended.err
    return ended.json


def test_plan_has_every_key_of_the_contract(planned):
    assert {"best", "median", "worst", "naive", "recipes", "infeasible", "space_size", "ties", "reasons"} <= set(
        planned
    )
    assert len(planned["recipes"]) == 7
    for one in [planned["best"], planned["median"], planned["worst"], planned["naive"], *planned["recipes"]]:
        assert set(one) >= RECIPE_KEYS
        assert set(one["recipe"]) == KNOBS
        assert one["recipe"]["seq"] == 512
        assert one["step_s_low"] <= one["step_s"] <= one["step_s_high"]
        assert 0 <= one["mfu"] < 1


def test_plan_is_the_answer_of_the_python_interface(planned):
    answer = plan(build_case("pythia-14m", "1xA100-80GB", Run(tokens=1e9, global_batch=64, seq=512), {}), top=7)
    assert planned["best"]["step_s"] == answer.best.step_s
    assert planned["space_size"] == answer.space_size
    assert [one["step_s"] for one in planned["recipes"]] == [one.step_s for one in answer.recipes]


def test_the_published_run_needs_no_options(paceline):
    ended = paceline("plan", "pythia-14m", "-m", "1xH200", "--json")
    best = ended.json["best"]
    assert best["steps"] == 143_000
    assert best["global_batch"] == best["recipe"]["micro_batch"] * best["recipe"]["grad_accum"] == 1024


def test_predict_gives_breakdowns_that_add_up(paceline):
    ended = paceline(*("predict", *PLAN[1:]), "--recipe", "micro_batch=4,precision=bf16,checkpointing=full", "--json")
    answer = ended.json
    assert set(answer) >= RECIPE_KEYS
    assert sum(answer["time_breakdown_s"].values()) == pytest.approx(answer["step_s"], rel=1e-9)
    assert sum(answer["memory_breakdown_bytes"].values()) == answer["peak_device_bytes"]
    assert answer["recipe"] | {"micro_batch": 4, "precision": "bf16", "checkpointing": "full"} == answer["recipe"]
    assert answer["recipe"]["grad_accum"] == 16
    assert answer["days"] * 86400 == pytest.approx(answer["steps"] * answer["step_s"])


def test_a_recipe_that_does_not_fit_is_an_answer(paceline):
    large = ("--recipe", "micro_batch=4096,precision=fp32", "--steps", "1", "--global-batch", "4096")
    ended = paceline("predict", "pythia-14m", "-m", "1xT4", *large, "--json")
    assert (ended.code, ended.json["verdict"]) == (0, "oom")
    assert ended.json["fit_probability"] < 0.01


def test_the_recipe_object_can_be_asked_again(paceline, planned):
    best = planned["best"]["recipe"]
    assert recipe_of(parse_recipe(json.dumps(best))) == recipe_of(best)
    again = paceline(*("predict", *PLAN[1:]), "--recipe", json.dumps(best), "--json")
    assert again.json["step_s"] == planned["best"]["step_s"]


def test_price_and_limits_reach_the_answer(paceline):
    dear = paceline(*PLAN, "--price", "10", "--json").json["best"]
    cheap = paceline(*PLAN, "--price", "1", "--json").json["best"]
    assert dear["usd"] == pytest.approx(10 * cheap["usd"])
    assert dear["usd"] == pytest.approx(dear["days"] * 24 * 10)


def test_a_batch_with_a_tolerance(paceline):
    ended = paceline("plan", "pythia-14m", "-m", "1xH200", "--tokens", "1B", "--global-batch", "1000±3%", "--json")
    assert 970 <= ended.json["best"]["global_batch"] <= 1030


def test_a_batch_that_may_be_missed_is_shown_as_it_is(paceline):
    asked = ("plan", "pythia-14m", "-m", "1xH200", "--tokens", "1B", "--top", "2")
    best = paceline(*asked, "--global-batch", "1000±3%", "--json").json["best"]["global_batch"]
    shown = paceline(*asked, "--global-batch", "1000±3%").out
    assert "global batch 1,000 ± 3.0%" in shown
    assert f"batch {best:,}" in " ".join(shown.replace("global batch", "").split())
    assert "batch" not in paceline(*asked, "--global-batch", "1000").out.replace("global batch", "").replace(
        "_batch", ""
    )


def test_predict_says_whether_each_limit_is_kept(paceline):
    asked = ("predict", *PLAN[1:], "--recipe", "micro_batch=4", "--price", "2")
    free = paceline(*asked, "--json").json
    assert free["within_limits"] == {}
    limits = ("--max-days", str(free["days"] * 1.01), "--max-usd", str(free["usd"] * 0.99))
    limited = paceline(*asked, *limits, "--json").json
    assert limited["within_limits"] == {"max_days": True, "max_usd": False}
    shown = paceline(*asked, *limits).out
    assert ": kept" in next(line for line in shown.splitlines() if line.startswith("max_days"))
    assert ": NOT kept" in next(line for line in shown.splitlines() if line.startswith("max_usd"))
    assert "max_kwh" not in shown


def test_a_limit_on_what_is_unknown_is_neither_kept_nor_broken(paceline, tmp_path):
    ended = paceline("predict", "mixtral-8x7b", "-m", "1xB200", "-r", "optimizer=sgd", "--max-days", "3", "--json")
    assert ended.json["days"] is None
    assert ended.json["within_limits"] == {"max_days": None}


def test_models_machines_and_prices(paceline):
    one = paceline("models", "pythia-14m", "--json").json
    assert (one["params"], one["active_params"], one["layers"]) == (14_067_712, 14_067_712, 6)
    linear = 6 * (14_067_712 - 50_304 * 128)
    assert linear < one["flops_per_token"] < 1.2 * linear + 6 * 2048 * 128 * 6
    names = {row["name"] for row in paceline("models", "--json").json["models"]}
    assert {"pythia-1b", "bert-base"} <= names
    machine = paceline("machines", "4xA100-80GB", "--json").json
    assert (machine["gpus_per_node"], machine["gpu"]["name"], machine["profile"]["provenance"]) == (
        4,
        "A100-80GB",
        "datasheet",
    )
    assert {gpu["name"] for gpu in paceline("machines", "--json").json["gpus"]} >= {"H200", "cpu"}
    assert all(price["source"] and price["date"] for price in paceline("prices", "--json").json["prices"])


def test_what_is_not_a_number_is_unknown():
    assert plain({"a": float("nan"), "b": (float("inf"), 1.5), "c": None}) == {"a": None, "b": [None, 1.5], "c": None}
