"""``calibrate``, ``verify`` and ``import`` in front of a scripted calibration."""

from pathlib import Path
from types import SimpleNamespace

import pytest

import calibration
import calibration.machine
from cli import measuring
from cli.quickstart import setting, verdict
from profiles import parse_machine
from profiles.schema import Measurement, Recipe
from simulator import plan
from simulator.rates import datasheet_profile


def record(step_s=None, status="ok", reason=None):
    peak = 2**30 if step_s else None
    return Measurement(
        model="pythia-14m", machine="cpu", recipe=Recipe(), status=status, reason=reason, step_s=step_s,
        step_s_low=step_s and step_s * 0.99, step_s_high=step_s and step_s * 1.01, peak_bytes=peak,
    )  # fmt: skip


@pytest.fixture
def asked(monkeypatch):
    """What the commands asked of calibration, which answers from a script."""
    calls = {}

    def calibrate(models, **options):
        options.pop("on_progress")("probing", 0.5)
        calls["calibrate"] = (list(models), options)
        profile = datasheet_profile(parse_machine("cpu"))
        runs = (record(0.1), record(status="oom", reason="out of memory: 3 of 2 GiB"))
        return SimpleNamespace(profile=profile, profile_path=Path("cpu.json"), measurements=runs, seconds=61.0)

    def verify(case, *, top, extra_random, on_progress):
        on_progress("running", 0.2)
        calls["verify"] = (case.machine.name, top, extra_random)
        best = plan(case, top=2)
        good, bad = best.recipes
        verified = (
            SimpleNamespace(
                recipe=good.recipe, predicted=good, measured=record(good.step_s / 1.1), error=0.1, drawn=False
            ),
            SimpleNamespace(
                recipe=bad.recipe,
                predicted=bad,
                measured=record(status="oom", reason="no space"),
                error=None,
                drawn=True,
            ),
        )
        return SimpleNamespace(verified=verified, best=good, profile_path=Path("cpu.json"))

    def import_table(table, *, machine):
        calls["import"] = (table, machine)
        return SimpleNamespace(profile_path=Path("p.json"), imported=4, problems=("row 5: no step time",))

    for name, fake in {
        "calibrate": calibrate,
        "verify": verify,
        "import_table": import_table,
    }.items():
        monkeypatch.setattr(calibration, name, fake, raising=False)
    monkeypatch.setattr(calibration.machine, "this_machine", lambda: parse_machine("cpu"))
    monkeypatch.setattr(calibration.machine, "this_device", lambda: "cpu")
    return calls


def test_calibrate_takes_models_budget_machine_and_seed(paceline, asked):
    ended = paceline(
        "calibrate", "pythia-14m", "gpt2", "--budget", "1m30s", "--machine", "cpu", "--seed", "7", "--json"
    )
    assert asked["calibrate"] == (["pythia-14m", "gpt2"], {"budget_s": 90.0, "machine": "cpu", "seed": 7})
    answer = ended.json
    assert (answer["profile"], answer["seconds"]) == ("cpu.json", 61.0)
    assert [one["status"] for one in answer["measurements"]] == ["ok", "oom"]
    assert "probing" in ended.err
    assert "probing" not in ended.out


def test_calibrate_without_a_model_takes_a_small_one(paceline, asked):
    ended = paceline("calibrate")
    assert asked["calibrate"][0] == ["pythia-14m"]
    assert "2 real runs (1 ok, 1 oom) and probes in 1.02 min" in ended.out
    assert "cpu.json" in ended.out


def test_verify_is_for_this_machine_and_shows_predicted_beside_measured(paceline, asked):
    arguments = ("verify", "pythia-14m", "--seq", "128", "--global-batch", "8", "--random", "3")
    answer = paceline(*arguments, "--json").json
    assert asked["verify"] == ("cpu", 3, 3)
    first, second = answer["verified"]
    assert first["predicted_step_s"] == pytest.approx(1.1 * first["measured_step_s"])
    assert first["error"] == 0.1
    assert (second["measured_step_s"], second["error"], second["reason"]) == (None, None, "no space")
    assert answer["best"]["recipe"]["seq"] == 128
    shown = paceline(*arguments).out
    assert "+10.0%" in shown
    assert shown.count("(random)") == 1
    assert "oom: no space" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_import_says_what_was_skipped(paceline, asked):
    assert paceline("import", "t.csv", "--machine", "1xH200", "--json").json["imported"] == 4
    assert asked["import"] == (Path("t.csv"), "1xH200")
    assert "row 5: no step time" in paceline("import", "t.csv").out


@pytest.mark.parametrize(
    "arguments", [("calibrate",), ("verify", "pythia-14m", "--seq", "128", "--global-batch", "8"), ("import", "t.csv")]
)
def test_damaged_lines_of_the_journals_are_told(paceline, asked, tmp_path, arguments):
    folder = tmp_path / "home" / "measured"
    folder.mkdir(parents=True)
    (folder / "cpu--torch2.jsonl").write_text("garbage\n" * 12)
    ended = paceline(*arguments, "--json")
    assert ended.json
    assert "cpu--torch2.jsonl, line 1: skipped" in ended.err
    assert "line 11" not in ended.err
    assert "2 more lines skipped" in ended.err


def test_small_models_are_presets():
    import profiles

    assert set(measuring.SMALL_MODEL.values()) <= set(profiles.preset_names())
    assert {setting(device).model for device in ("cpu", "cuda")} == set(measuring.SMALL_MODEL.values())


@pytest.mark.parametrize(
    ("errors", "median", "good"),
    [((0.1, -0.2, 0.3, 0.05, -0.05, None), "10.0%", True), ((0.1, 0.3, -0.3, 0.5, 0.6), "30.0%", False)],
)
def test_quickstart_says_plainly_when_it_is_wrong(errors, median, good):
    lines = verdict(
        SimpleNamespace(verified=tuple(SimpleNamespace(error=error, drawn=i > 2) for i, error in enumerate(errors)))
    )
    assert f"median error {median}" in lines[0]
    assert any("NOT GOOD" in line for line in lines) is not good


def test_quickstart_does_not_hide_that_nothing_ran():
    (line,) = verdict(SimpleNamespace(verified=(SimpleNamespace(error=None, drawn=False),)))
    assert "NO RUN SUCCEEDED" in line
