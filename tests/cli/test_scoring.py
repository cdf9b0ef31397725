"""``evaluate`` in front of scripted scores and on shipped records."""

from pathlib import Path

import pytest

import calibration
from cli.scoring import show_scores
from profiles.files import SHIPPED

RECORDS = SHIPPED / "measured" / "1xH200"
ERRORS = {"n": 3, "mape": 0.0625, "median": 0.05, "p95": 0.125, "bias": -0.03, "coverage90": None}
REGRET = {"cells": 2, "top1": 0.9987, "top1_worst": 0.5, "top3": 1.0, "top3_worst": 1.0, "cells_detail": []}
SCORES = {
    "table": "runs.csv",
    "prior": "probes",
    "fitted": 20,
    "scored": 4,
    "step_time": ERRORS,
    "step_time_host_bound": None,
    "oom": {"n_oom": 1, "n_ran": 3, "recall": 1.0, "false_alarm": None, "near_limit": {"n_oom": 0, "n_ran": 7}},
    "regret": REGRET,
    "by": {"precision": {"bf16": {"n": 3, "mape": 0.0625, "bias": -0.03}}},
    "baselines": {"constant_mfu": {**ERRORS, "mape": 0.5, "regret": {**REGRET, "top1": 0.25}}},
    "choice_baselines": {"researcher": {**REGRET, "top1": 0.75}},
    "memory_baselines": {"closed_form": {"memory": None, "oom": {"n_oom": 1, "n_ran": 3, "recall": 0.0}}},
    "ablations": {"no_launch": {**ERRORS, "mape": 0.2}, "no_adaptive_choice": None},
    "problems": ["ablation no_adaptive_choice skipped: for a reason"],
}


@pytest.fixture
def asked(monkeypatch):
    calls = []

    def evaluate(table, **options):
        calls.append((table, options))
        return SCORES

    monkeypatch.setattr(calibration, "evaluate", evaluate)
    return calls


def test_options_arrive_and_fractions_stay_fractions(paceline, asked):
    ended = paceline(
        "evaluate", "runs.csv", "--calibrate", "20", "--seed", "3", "--prior", "probes", "--baselines", "--ablate",
        "--choose", "adaptive", "--repeats", "a.jsonl", "--repeats", "b.jsonl", "--json",
    )  # fmt: skip
    (call,) = asked
    assert call == (
        Path("runs.csv"),
        {
            "calibrate_on": [], "calibrate": 20, "seed": 3, "choose": "adaptive", "prior": "probes",
            "baselines": True, "ablate": True, "repeats": [Path("a.jsonl"), Path("b.jsonl")],
        },
    )  # fmt: skip
    assert ended.json == SCORES


def test_nothing_more_is_asked_than_what_was_typed(paceline, asked):
    paceline("evaluate", "runs.csv", "--calibrate-on", "x.jsonl")
    assert asked[0][1] == {
        "calibrate_on": [Path("x.jsonl")], "calibrate": 0, "seed": 0, "choose": "random", "prior": "profile",
        "baselines": False, "ablate": False, "repeats": [],
    }  # fmt: skip


def line(shown, start):
    """The cells of the one line that starts so."""
    (found,) = [one for one in shown.splitlines() if one.startswith(start + " ")]
    return found.removeprefix(start).split()


def test_every_score_stands_under_its_name(paceline, asked):
    shown = paceline("evaluate", "runs.csv").out
    assert "runs.csv: 20 records fitted, 4 scored" in shown
    assert line(shown, "all rows") == ["3", "6.2%", "5.0%", "12.5%", "-3.0%", "?", "?"]
    assert "host-bound" not in shown, "what there is nothing of has no line"
    assert line(shown, "overall") == ["1", "100.0%", "3", "?"]
    assert line(shown, "near limit") == ["0", "?", "7", "?"]
    assert line(shown, "paceline") == ["2", "99.87%", "50.00%", "100.00%", "100.00%"]
    assert line(shown, "researcher") == ["2", "75.00%", "50.00%", "100.00%", "100.00%"]
    assert [one.split()[2:4] for one in shown.splitlines() if one.startswith("constant mfu")] == [
        ["2", "25.00%"], ["3", "50.0%"]
    ]  # fmt: skip
    assert line(shown, "closed form") == ["1", "0.0%", "3", "?"]
    assert line(shown, "launch")[:2] == ["3", "20.0%"]
    assert line(shown, "adaptive choice") == ["?"] * 7
    assert line(shown, "precision=bf16") == ["3", "6.2%", "-3.0%", "?"]
    assert shown.rstrip().endswith("ablation no_adaptive_choice skipped: for a reason")
    assert max(map(len, shown.splitlines())) <= 80


def test_scores_without_some_parts_can_be_shown(capsys):
    show_scores({"step_time": ERRORS})
    shown = capsys.readouterr().out
    assert "all rows" in shown
    assert "regret" not in shown


def test_shipped_records_are_scored(paceline):
    table = str(RECORDS / "verified.jsonl")
    found = paceline("evaluate", table, "--json").json
    (cell,) = found["regret"]["cells_detail"]
    assert cell["global_batch"] == 1024
    assert found["regret"]["top1"] == pytest.approx(cell["optimum"]["step_s"] / cell["pick"]["step_s"])
    shown = paceline("evaluate", table, "--baselines").out
    assert line(shown, "random")[0] == "1"
    assert max(map(len, shown.splitlines())) <= 80


def test_bad_options_are_told_together(paceline):
    ended = paceline("evaluate", "t.csv", "--calibrate", "3", "--calibrate-on", "x.csv", "--prior", "guess")
    assert ended.code == 2
    assert "exclude each other" in ended.err
    assert "profile, probes, datasheet" in ended.err
    assert "Traceback" not in ended.err
