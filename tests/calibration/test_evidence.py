"""The accuracy page: its parts on made-up rows, and the shipped page against the records it is made from."""

import re
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from calibration import evidence, report
from calibration.evaluate import Split, split_records
from calibration.evidence import LEVELS, SEEDS, RowError, gather
from calibration.policies import table_of
from calibration.replay import replay_table
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


@cache
def told():
    """Everything that the page says, computed once: most of a minute."""
    return gather()


def workload_of(record):
    found = load_workload(record.model)
    assert found is not None
    return found


def row(ratio, half_width=0.2, host=False):
    return RowError(model="m", measured_s=1.0, predicted_s=ratio, half_width=half_width, host_bound=host, in_cell=False)


def test_levels_scale_the_half_width_as_a_normal_distribution_does():
    """By hand: at 50 % the interval is 0.674/1.645 of the nominal one."""
    rows = [row(np.exp(0.05)), row(np.exp(0.1)), row(np.exp(0.15), host=True), row(np.exp(0.3), host=True)]
    told = {(group, level): share for group, level, share in evidence._levels(rows)}
    assert len(told) == 3 * len(LEVELS)
    assert told["all rows", 0.9] == 0.75
    assert told["all rows", 0.5] == 0.25
    assert (told["GPU-bound", 0.9], told["host-bound", 0.9]) == (1.0, 0.5)
    assert told["GPU-bound", 0.68] == 1.0


def test_the_chosen_rows_are_not_scored():
    own = [r for r in truth() if r.model == "vit-l16"]
    profile = evidence.starting_profile(evidence.MACHINE, "probes")
    split = split_records(own, {"vit-l16": workload_of(own[0])}, profile, 8, choose="adaptive")
    assert split.own == split.fitted
    assert len(split.fitted) == 8
    assert len(split.scored) == len(own) - 8
    assert not {r.recipe for r in split.fitted} & {r.recipe for r in split.scored}
    assert [len(drawn) for drawn in split.alternatives] == [8] * 5


def test_repeats_count_where_the_gpu_decides_and_when_they_are_within_three_per_cent():
    """By hand: of four records with repeats one is decided by the host, of the others one is 4 % off."""
    ran = [r for r in truth() if r.status == "ok" and r.model == "pythia-410m" and r.recipe.compile == "off"]
    large = [r for r in ran if r.recipe.micro_batch >= 24 and r.recipe.seq == 2048][:4]
    small = next(r for r in ran if r.recipe.micro_batch == 1 and r.recipe.checkpointing == "none")
    assert len({r.recipe for r in (*large, small)}) == 5
    stranger = replace(large[0], recipe=replace(large[0].recipe, micro_batch=77))
    again = [replace(r, step_s=r.step_s * f) for r, f in zip((*large[:3], small), (1.02, 0.98, 1.04, 1.0), strict=True)]
    again += [stranger, replace(large[3], status="oom", step_s=None)]
    split = Split(fitted=(), scored=(), workloads={"pythia-410m": workload_of(large[0])}, profile=shipped())
    assert evidence._repeats_gpu_bound([*large, small], again, split) == (3, 2)


def test_what_is_scored_beyond_is_larger_than_everything_fitted():
    splits = dict(evidence._beyond(truth(), {r.model: workload_of(r) for r in truth()}, shipped()))
    length, batch, size = splits.values()
    lengths = [[r.recipe.seq or 197 for r in part] for part in (length.fitted, length.scored)]
    assert max(lengths[0]) == 1024 < min(lengths[1]) == 2048
    batches = [[r.recipe.micro_batch for r in part] for part in (batch.fitted, batch.scored)]
    assert max(batches[0]) == 8 < min(batches[1])
    for split in (length, batch):
        assert len(split.fitted) + len(split.scored) == len(truth())
    assert {r.model for r in size.fitted} == {"pythia-160m"}
    assert {r.model for r in size.scored} == {"pythia-410m"}


def test_a_cost_for_every_policy_and_scope_at_every_count_that_leaves_rows_to_score():
    ran = [r for r in truth() if r.status == "ok" and r.recipe.compile == "off"]
    some = [r for model in ("vit-l16", "bert-large") for r in [one for one in ran if one.model == model][:12]]
    workloads = {r.model: workload_of(r) for r in some}
    profile = evidence.starting_profile(evidence.MACHINE, "probes")
    costs = list(evidence._costs(some, workloads, profile))
    shape = [(one.scope, one.policy, one.runs) for one in costs]
    assert shape == [
        *(("pooled", policy, runs) for policy in evidence.POLICIES for runs in (6, 10, 20)),
        *(("each model alone", policy, runs) for policy in evidence.POLICIES for runs in (6, 10)),
    ]
    assert all((one.spread > 0) == (one.policy == "random") for one in costs)
    table = table_of(some, workloads, profile)
    by_hand = [replay_table("random", table, (10,), seed)[0] for seed in range(SEEDS)]
    random = costs[shape.index(("pooled", "random", 10))]
    assert random.mape == pytest.approx(np.mean([one.mape for one in by_hand]))
    assert random.spread == pytest.approx(np.std([one.mape for one in by_hand]))
    assert random.seconds == pytest.approx(np.mean([one.seconds for one in by_hand]))
    alone = costs[shape.index(("each model alone", "adaptive", 6))]
    each = [
        replay_table("adaptive", table_of(some[at], workloads, profile), (6,), 0)[0]
        for at in (slice(0, 12), slice(12, 24))
    ]
    assert alone.mape == pytest.approx(np.mean([one.mape for one in each]))
    assert alone.p95 == pytest.approx(np.mean([one.p95 for one in each]))


@pytest.mark.parametrize(
    "record",
    [r for r in truth() if r.status == "ok" and r.recipe.checkpointing == "none" and r.recipe.compile == "off"],
    ids=lambda r: f"{r.model}-{r.recipe.micro_batch}-{r.recipe.seq}-{r.recipe.precision}-{r.recipe.attention}",
)
def test_memory_of_every_plain_run_is_what_the_gpu_said(record):
    """Oracle: the allocator's own peak on the GPU; T5 with ``sdpa`` and its trained bias among them."""
    told = float(memory_of(record, workload_of(record), shipped().fit).peak_bytes[0])
    assert told == pytest.approx(record.peak_bytes, rel=0.015)


def test_memory_with_a_trained_bias_is_that_of_torchs_math_kernel():
    """T5 with ``sdpa``: were its attention traced as a fused kernel, the peak would be a third too low."""
    plain = [r for r in truth() if r.model == "t5-base" and r.recipe.attention == "sdpa" and r.status == "ok"]
    plain = [r for r in plain if r.recipe.checkpointing == "none" and r.recipe.compile == "off"]
    assert len(plain) >= 5
    peaks = [float(memory_of(r, workload_of(r), shipped().fit).peak_bytes[0]) for r in plain]
    assert peaks == pytest.approx([r.peak_bytes for r in plain], rel=0.005)


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


def test_the_parts_of_the_evidence_agree():
    """What is said twice, by ways of their own, is the same: of one calibration of 30 runs for all models."""
    pooled, rows = told().pooled, told().rows
    error = np.array([r.predicted_s / r.measured_s - 1 for r in rows])
    host = np.array([r.host_bound for r in rows])
    for name, mask in (("step_time", host | ~host), ("step_time_gpu_bound", ~host), ("step_time_host_bound", host)):
        assert pooled[name]["n"] == mask.sum() > 100
        assert pooled[name]["mape"] == pytest.approx(np.abs(error[mask]).mean())
    levels = {group: seen for group, level, seen in told().levels if level == 0.9}
    assert levels["all rows"] == pytest.approx(pooled["step_time"]["coverage90"])
    replayed = next(c for c in told().costs if (c.policy, c.scope, c.runs) == ("adaptive", "pooled", 30))
    assert replayed.mape == pytest.approx(pooled["step_time"]["mape"], rel=1e-6)
    assert replayed.seconds == pytest.approx(told().calibration_s + 60 + 10), "probes and the worker's start"
    ran = [r for r in truth() if r.status == "ok"]
    assert {m: one["n"] for m, one in told().left_out.items()} == Counter(r.model for r in ran)
    assert pooled["oom"]["n_oom"] == sum(r.status == "oom" for r in truth())
    assert pooled["fitted"] + pooled["scored"] == len(truth())


def test_the_shipped_page_is_what_the_records_say():
    """Words are equal and numbers near, since linear algebra differs in the last digits between machines."""
    stored = (ROOT / "docs/accuracy.md").read_text(encoding="utf-8")
    made = report.page(told(), report.curves_of())
    assert NUMBER.sub("#", made) == NUMBER.sub("#", stored)
    pairs = zip(NUMBER.findall(made), NUMBER.findall(stored), strict=True)
    assert not [(new, old) for new, old in pairs if abs(_number(new) - _number(old)) > _near(old)]


def test_every_plot_that_is_shipped_is_on_the_page_and_the_other_way_round():
    stored = (ROOT / "docs/accuracy.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[[^]]+\]\(plots/(\w+\.svg)\)", stored)
    assert sorted(shown) == sorted(path.name for path in (ROOT / "docs/plots").iterdir())


def _near(shown):
    """How far a number may be from the one shown: 2 %, or three units of its last digit."""
    digits = len(shown.partition(".")[2])
    return max(3.01 * 10.0**-digits, 0.02 * abs(_number(shown)))


def _number(text):
    return float(text.replace(",", ""))


def test_the_upper_value_of_device_memory_is_one():
    """Oracle: what the driver counted while the ground truth ran; the upper value is a bound of 99 %."""
    from calibration.rows import memory_within
    from calibration.verdicts import limit_bytes

    limit = limit_bytes(shipped())
    ran = [r for r in truth() if r.status == "ok"]
    above = [
        r.recipe
        for r in ran
        if r.peak_device_bytes > float(memory_within(r, workload_of(r), shipped().fit, limit).peak_bytes_high[0]) + 1
    ]
    assert len(above) <= 0.01 * len(ran), above
