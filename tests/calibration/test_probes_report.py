"""Running probes together: budgets, failures, progress, the report file and the command."""

from __future__ import annotations

import json
import time

import pytest

from calibration.probes import __main__ as command
from calibration.probes import read_report, run_probes, write_report
from calibration.probes.base import ProbeResult
from calibration.probes.report import run_all
from profiles.errors import InvalidInputError, UnknownNameError
from profiles.schema import Rate

RATE = Rate(value=2.0, sd_log=0.1, basis="probe", source="made", date="2026-01-02")


class FakeProbe:
    def __init__(self, name, share=0.5, error=None, takes_s=0.0):
        self.name, self.share, self.error, self.takes_s = name, share, error, takes_s
        self.budget_s = None

    def promises(self):
        return (f"{self.name}_s",)

    def run(self, device, budget_s):
        self.budget_s = budget_s
        time.sleep(self.takes_s)
        if self.error:
            raise self.error
        return ProbeResult(rates={f"{self.name}_s": RATE}, left_out=1)


def test_a_failing_probe_is_skipped_with_its_reason_and_the_rest_goes_on():
    probes = [
        FakeProbe("a", error=ValueError("first line\nsecond")),
        FakeProbe("b", error=MemoryError()),
        FakeProbe("c"),
    ]
    report = run_all(probes, "cpu", 1.0, None, None)
    assert report["rates"] == {"c_s": RATE}
    assert report["skipped"] == {"a_s": "ValueError: first line", "b_s": "MemoryError"}
    assert report["left_out"] == {"c": 1}
    assert set(report["probe_s"]) == {"a", "b", "c"}


def test_time_a_probe_does_not_need_goes_to_the_later_ones():
    probes = [FakeProbe("quick", share=0.5), FakeProbe("last", share=0.5)]
    run_all(probes, "cpu", 8.0, None, None)
    assert probes[0].budget_s == pytest.approx(4.0, rel=0.1)
    assert probes[1].budget_s > 4.5


def test_an_overrun_leaves_the_later_ones_nothing_but_they_still_run():
    probes = [FakeProbe("slow", takes_s=0.1), FakeProbe("last")]
    report = run_all(probes, "cpu", 0.05, None, None)
    assert probes[1].budget_s == 0.0
    assert set(report["rates"]) == {"slow_s", "last_s"}
    assert report["seconds"] >= 0.1


def test_only_the_named_probes_run_and_progress_is_told_before_each():
    seen = []
    probes = [FakeProbe("a"), FakeProbe("b"), FakeProbe("c")]
    run_all(probes, "cpu", 1.0, lambda *event: seen.append(event), ["c", "a"])
    assert seen == [("a", 0, 2), ("c", 1, 2)]
    assert probes[1].budget_s is None


def test_an_unknown_probe_is_refused_with_the_nearest_name():
    with pytest.raises(UnknownNameError, match="matmul"):
        run_probes("cpu", 1.0, names=["matmull"])


@pytest.mark.parametrize(
    ("device", "budget_s", "problems"),
    [("cpu", -1.0, 1), ("cpu", float("nan"), 1), ("tpu", 0.0, 2), ("cuda:99", 1.0, 1), ("cuda:x", 1.0, 1)],
)
def test_every_problem_of_device_and_budget_is_named_at_once(device, budget_s, problems):
    with pytest.raises(InvalidInputError) as caught:
        run_probes(device, budget_s)
    assert len(caught.value.problems) == problems


def test_a_report_comes_back_from_its_file_as_it_was(tmp_path):
    report = run_probes("cpu", 0.1, names=["kernel_floor", "transfer", "fill"])
    path = tmp_path / "probes.json"
    write_report(report, path)
    assert read_report(path) == report
    assert [entry.name for entry in tmp_path.iterdir()] == ["probes.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rates": {"x": {"value": 1}}, "rows": []}'])
def test_a_file_that_is_no_report_is_one_clear_message(tmp_path, text):
    path = tmp_path / "probes.json"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match=r"probes\.json"):
        read_report(path)


def test_a_missing_report_is_one_clear_message(tmp_path):
    with pytest.raises(InvalidInputError, match="cannot be read"):
        read_report(tmp_path / "none.json")


def test_the_command_prints_one_json_object_and_progress_elsewhere(capsys):
    assert command.main(["--budget", "0.05", "--names", "kernel_floor"]) == 0
    out, err = capsys.readouterr()
    assert set(json.loads(out)["rates"]) == {"kernel_floor_s"}
    assert "kernel_floor" in err


def test_the_command_writes_the_file_asked_for(tmp_path, capsys):
    path = tmp_path / "out.json"
    assert command.main(["--budget", "0.05", "--names", "fill", "--out", str(path)]) == 0
    assert capsys.readouterr().out == ""
    assert set(read_report(path)["rates"]) == {"fill_bytes_per_s"}


def test_the_command_refuses_bad_input_with_code_two(capsys):
    assert command.main(["--budget", "0", "--device", "tpu"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "must be positive" in err
    assert "allowed are cpu, cuda" in err
