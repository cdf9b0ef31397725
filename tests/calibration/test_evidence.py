"""The accuracy page: its parts on made-up rows, and the shipped page against the records it is made from."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from calibration import evidence, report
from calibration.evidence import LEVELS, RowError, gather
from calibration.rows import memory_of, time_rows
from calibration.scores import predict_rows
from profiles.records import read_measurements
from profiles.store import load_workload, read_profile
from simulator import Run, predict

ROOT = Path(__file__).resolve().parents[2]
NUMBER = re.compile(r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?")


@cache
def truth():
    return read_measurements(evidence.TRUTH)


@cache
def shipped():
    return read_profile(ROOT / "profiles/fitted/1xH200.json")


def workload_of(record):
    found = load_workload(record.model)
    assert found is not None
    return found


def row(ratio, half_width=0.2, host=False):
    return RowError(model="m", measured_s=1.0, predicted_s=ratio, half_width=half_width, host_bound=host)


def test_levels_scale_the_half_width_as_a_normal_distribution_does():
    """By hand: at 50 % the interval is 0.674/1.645 of the nominal one."""
    rows = [row(np.exp(0.05)), row(np.exp(0.1)), row(np.exp(0.15), host=True), row(np.exp(0.3), host=True)]
    told = {(group, level): share for group, level, share in evidence._levels(rows)}
    assert len(told) == 3 * len(LEVELS)
    assert told["all rows", 0.9] == 0.75
    assert told["all rows", 0.5] == 0.25
    assert (told["GPU-bound", 0.9], told["host-bound", 0.9]) == (1.0, 0.5)
    assert told["GPU-bound", 0.68] == 1.0


def test_tables_and_shares():
    assert report.table(("a", "b"), [("x", "1")]) == ["| a | b |", "|---|--:|", "| x | 1 |", ""]
    assert report.percent(0.0123) == "1.2%"
    assert report.percent(0.0123, signed=True) == "+1.2%"
    assert report.percent(None) == "–"
    left_out = {
        "a": {"gpu_bound": {"mape": 0.1, "n": 3}},
        "b": {"gpu_bound": {"mape": 0.5, "n": 1}},
        "c": {"gpu_bound": None},
    }
    assert report._mean_of(left_out, "gpu_bound") == pytest.approx(0.2)


def test_the_chosen_rows_are_not_scored():
    own = [r for r in truth() if r.model == "vit-l16"]
    profile = evidence.starting_profile(evidence.MACHINE, "probes")
    split = evidence.chosen_split(own, {"vit-l16": workload_of(own[0])}, profile, 8)
    assert len(split.fitted) == 8
    assert len(split.scored) == len(own) - 8
    assert not {r.recipe for r in split.fitted} & {r.recipe for r in split.scored}
    assert [len(drawn) for drawn in split.alternatives] == [8] * 5


@pytest.mark.parametrize(
    "record",
    [r for r in truth() if r.status == "ok" and r.recipe.checkpointing == "none" and r.recipe.compile == "off"],
    ids=lambda r: f"{r.model}-{r.recipe.micro_batch}-{r.recipe.seq}-{r.recipe.precision}-{r.recipe.attention}",
)
def test_memory_of_every_plain_run_is_what_the_gpu_said(record):
    """Oracle: the allocator's own peak on the GPU; T5 with ``sdpa`` and its trained bias among them."""
    told = float(memory_of(record, workload_of(record), shipped().fit).peak_bytes[0])
    assert told == pytest.approx(record.peak_bytes, rel=0.015)


def test_no_run_that_died_is_called_fitting():
    """Oracle: the runs of the ground truth that ran out of memory, all with the shipped profile."""
    from calibration.verdicts import decided, verdicts_of

    records = decided([r for r in truth() if r.status == "oom"])
    workloads = {r.model: workload_of(r) for r in records}
    assert len(records) >= 30
    assert not any(verdicts_of(records, workloads, shipped()).fits)


def test_scored_intervals_are_those_that_predict_gives():
    from calibration.question import build_case

    record = replace(next(r for r in truth() if r.model == "bert-large" and r.status == "ok"), session=None)
    workloads, profile = {"bert-large": workload_of(record)}, shipped()
    rows = time_rows([record], workloads, profile.rates)
    step_s, sd = predict_rows(rows, profile.fit, profile, workloads)
    case = build_case("bert-large", "1xH200", Run(), {}, published_batch=False)
    said = predict(case, record.recipe)
    assert said.step_s_high / said.step_s == pytest.approx(np.exp(profile.fit.interval_scale * sd[0]), rel=1e-6)
    assert step_s[0] == pytest.approx(said.step_s, rel=1e-9)


def test_the_shipped_page_is_what_the_records_say():
    """Words are equal and numbers near, since linear algebra differs in the last digits between machines."""
    stored = (ROOT / "docs/accuracy.md").read_text(encoding="utf-8")
    made = report.page(gather(), report.curves_of())
    assert NUMBER.sub("#", made) == NUMBER.sub("#", stored)
    far = [
        (new, old)
        for new, old in zip(NUMBER.findall(made), NUMBER.findall(stored), strict=True)
        if abs(_number(new) - _number(old)) > max(0.35, 0.03 * abs(_number(old)))
    ]
    assert len(far) <= 0.01 * len(NUMBER.findall(stored)), far
    for name in re.findall(r"\]\((plots/\w+\.svg)\)", stored):
        assert (ROOT / "docs" / name).exists()


def _number(text):
    return float(text.replace(",", ""))
