"""The noise floor from repeats, and the rows it divides."""

import math
from dataclasses import replace

import pytest

from calibration import evaluate
from calibration.repeats import repeat_class, repeat_noise, repeats_of
from profiles.files import SHIPPED
from profiles.records import append_measurement, read_measurements
from profiles.schema import Measurement, Recipe

RECORDS = SHIPPED / "measured" / "1xH200"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))


def run(micro_batch, step_s, **facts):
    recipe = Recipe(micro_batch=micro_batch)
    return Measurement(
        model="gpt2", machine="1xH200", recipe=recipe, status="ok" if step_s else "oom", step_s=step_s, **facts
    )


RUNS = [run(1, 1.0), run(1, 1.02), run(2, 1.0), run(2, 1.1), run(2, 1.3), run(4, 2.0), run(8, None), run(8, None)]


def test_only_recipes_run_twice_have_repeats():
    found = repeats_of(RUNS)
    assert sorted(len(own) for own in found.values()) == [2, 3]
    assert repeats_of(RUNS[5:]) == {}
    assert repeats_of([RUNS[0], RUNS[0]]) == {}, "one record met twice is one run"


def test_noise_is_the_distance_from_the_recipes_median():
    noise = repeat_noise(repeats_of(RUNS))
    pair = [abs(math.log(x / 1.01)) for x in (1.0, 1.02)]
    three = [abs(math.log(x / 1.1)) for x in (1.0, 1.1, 1.3)]
    assert (noise["recipes"], noise["runs"]) == (2, 5)
    assert noise["median"] == pytest.approx(sorted(pair + three)[2])
    assert noise["mean"] == pytest.approx(sum(pair + three) / 5)
    assert noise["repeatable"]["mean"] == pytest.approx(sum(pair) / 2)
    assert noise["noisy"]["median"] == pytest.approx(sorted(three)[1])
    assert repeat_noise({}) is None
    assert repeat_noise(repeats_of(RUNS[:2]))["noisy"] == {
        "recipes": 0, "runs": 0, "mean": None, "median": None, "p95": None
    }  # fmt: skip


def test_a_recipe_repeats_when_its_runs_are_within_three_per_cent():
    found = repeats_of([*RUNS, run(16, 1.0), run(16, 1.03), run(32, 1.0), run(32, 1.031)])
    classes = {r.recipe.micro_batch: repeat_class(r, found) for r in [*RUNS, run(16, 1.0), run(32, 1.0)]}
    assert classes == {
        1: "repeatable", 2: "noisy", 4: "unrepeated", 8: "unrepeated", 16: "repeatable", 32: "noisy"
    }  # fmt: skip


def test_a_file_of_repeats_divides_the_rows(tmp_path):
    held = [r for r in read_measurements(RECORDS / "held_out.jsonl") if r.status == "ok"][:9]
    table, again = tmp_path / "t.jsonl", tmp_path / "again.jsonl"
    for one in held:
        append_measurement(table, one)
    for place, one in enumerate(held[:6]):
        factor = 1.01 if place < 4 else 1.2
        append_measurement(again, replace(one, step_s=one.step_s * factor, step_s_low=None, step_s_high=None))
    alone, found = evaluate(table), evaluate(table, repeats=[again])
    assert alone["repeat_noise"] is None
    assert alone["step_time"] == found["step_time"], "repeats are not scored"
    counts = [found[f"step_time_{name}"]["n"] for name in ("repeatable", "noisy", "unrepeated")]
    assert counts == [4, 2, 3]
    assert found["repeat_noise"]["recipes"] == 6
    assert found["repeat_noise"]["repeatable"]["mean"] == pytest.approx(math.log(1.01) / 2, rel=1e-2)
