"""The curves command: its JSON beside predict's, its words, its refusals."""

import json

import pytest

MICRO_BATCH = ("curves", "pythia-160m", "-m", "1xH200", "--axis", "micro_batch")


def test_points_are_predictions_with_their_place_in_the_calibrated_range(paceline):
    found = paceline(*MICRO_BATCH, "--values", "1,8,256", "--json").json
    assert (found["axis"], found["calibrated"], found["every_value"]) == ("micro_batch", [1, 157], True)
    assert [(p["value"], p["calibrated"]) for p in found["points"]] == [(1, True), (8, True), (256, False)]
    assert [p["bound"] for p in found["points"]] == ["host", "gpu", "gpu"]
    for point in found["points"]:
        asked = json.dumps(point["recipe"])
        alone = paceline("predict", "pythia-160m", "-m", "1xH200", "--recipe", asked, "--json").json
        kept = (
            "step_s",
            "step_s_low",
            "step_s_high",
            "tokens_per_s",
            "mfu",
            "peak_bytes_high",
            "verdict",
            "provenance",
        )
        assert {k: point[k] for k in kept} == {k: alone[k] for k in kept}
    names = {(one["name"], one["axis"]) for one in found["crossovers"]}
    assert names >= {("gpu_bound", "micro_batch"), ("compile", "micro_batch"), ("checkpointing=full", "memory_bytes")}
    assert [row["value"] for row in found["break_even"]] == [1, 8, 256]
    assert paceline(*MICRO_BATCH, "--values", "1,8,256", "--json").json == found, "draws have a seed"


def test_in_words(paceline):
    shown = paceline(*MICRO_BATCH, "--values", "1,256").out
    assert "calibrated from 1 to 157" in shown
    assert "~256" in shown
    assert "~1 " not in shown
    crossovers = paceline(*MICRO_BATCH, "--values", "1,256", "--json").json["crossovers"]
    first = next(one["first"] for one in crossovers if one["name"] == "gpu_bound")
    assert f"GPU-bound: from micro_batch {first:g} (" in shown
    assert "compile costs 40.0 s a shape" in shown
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_a_length_and_a_depth(paceline):
    asked = ("curves", "pythia-14m", "-m", "1xL4", "-r", "micro_batch=2,precision=fp16")
    along = paceline(*asked, "--axis", "seq", "--values", "256,1024", "--json").json
    assert [p["recipe"]["seq"] for p in along["points"]] == [256, 1024]
    assert along["calibrated"] is None
    deep = paceline(*asked, "--axis", "depth", "--values", "3,6,12", "--json").json
    steps = [p["step_s"] for p in deep["points"]]
    assert steps[2] - steps[1] == pytest.approx(2 * (steps[1] - steps[0]), rel=0.02)
    assert not deep["every_value"]
    assert deep["points"][1]["step_s"] == pytest.approx(paceline("predict", *asked[1:], "--json").json["step_s"])


def test_a_width_is_traced(paceline):
    asked = ("curves", "pythia-14m", "-m", "1xH200", "--axis", "width", "--values", "64,128", "--json")
    found = paceline(*asked).json
    assert [p["value"] for p in found["points"]] == [64, 128]
    assert found["calibrated"] == [768, 2048]
    assert found["points"][0]["peak_bytes"] < found["points"][1]["peak_bytes"]
    assert any("width=64 is outside" in warning for warning in found["points"][0]["warnings"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--axis", "height"), "micro_batch, seq, depth, width"),
        (("--axis", "seq", "--seq", "512"), "leave it out"),
        (("--axis", "micro_batch", "-r", "micro_batch=4"), "leave it out"),
        (("--axis", "seq", "--values", "512,none,0"), "whole number"),
        (("--axis", "depth", "--values", "2"), "from 3"),
        (("--axis", "width", "--values", "65"), "multiples of"),
    ],
)
def test_what_cannot_be_asked_is_refused(paceline, arguments, told):
    ended = paceline("curves", "pythia-14m", "-m", "1xH200", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert told in " ".join(ended.err.split())


def test_predict_and_plan_name_what_would_narrow_them(paceline):
    asked = ("bert-base", "-m", "1xH200")
    one = paceline("predict", *asked, "--recipe", "micro_batch=8", "--json").json
    factors = [(extra["factor_before"], extra["factor"]) for extra in one["coverage"]]
    assert len(factors) in (2, 3)
    assert factors[0][0] == pytest.approx(one["step_s_high"] / one["step_s"])
    assert all(now < before for before, now in factors)
    assert one["coverage"][0]["closes"] == ["model"]
    plan = ("plan", *asked, "--samples", "1M", "--global-batch", "64", "--top", "4")
    many = paceline(*plan, "--json").json
    assert 2 <= len(many["coverage"]) <= 3
    assert len(many["tied"]) == 4
    assert sum(many["tied"]) <= many["ties"]
    shown = paceline(*plan).out
    assert "cannot be told from the best" in shown
    assert "would narrow" in shown
