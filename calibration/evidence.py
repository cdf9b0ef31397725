"""What the accuracy page says, computed from the records that ship with the project."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibration.evaluate import (
    Split,
    evaluate,
    fit_of,
    leave_one_model_out,
    score_split,
    split_records,
    starting_profile,
)
from calibration.policies import table_of
from calibration.repeats import repeat_class, repeats_of
from calibration.replay import COUNTS, replay_table
from calibration.rows import time_rows
from calibration.scores import host_bound, predict_rows
from profiles.files import SHIPPED
from profiles.records import measurement_identity, read_measurements
from profiles.schema import Measurement, Profile, Workload

FOLDER = SHIPPED / "measured" / "1xH200"
TRUTH, REPEATS = FOLDER / "truth.jsonl", FOLDER / "truth_repeats.jsonl"
EARLIER_FITTED = (FOLDER / "calibration.jsonl", FOLDER / "host_check.jsonl")
EARLIER = {"held out before": FOLDER / "held_out.jsonl", "development before": FOLDER / "development.jsonl"}
MACHINE = "1xH200"
RUNS = 30
POLICIES = ("adaptive", "random", "d_optimal")
SEEDS = 10
LEVELS = (0.5, 0.68, 0.8, 0.9, 0.95)
GAUSSIAN = {0.5: 0.674, 0.68: 0.994, 0.8: 1.282, 0.9: 1.645, 0.95: 1.960}
Scores = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowError:
    """One scored row: seconds a step, measured and predicted.

    ``half_width`` is half the log width of its interval; ``in_cell`` says whether it is one of the exhaustive cell.
    """

    model: str
    measured_s: float
    predicted_s: float
    half_width: float
    host_bound: bool
    in_cell: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a policy of choosing reaches with so many runs: mean over seeds (and models), spread over seeds."""

    policy: str
    scope: str
    runs: int
    mape: float
    spread: float
    p95: float
    coverage90: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything the page and its plots show.

    ``pooled``: one calibration of 30 runs for all models; ``alone``: one for each model. ``before`` are tables of
    earlier sessions, fitted on their own calibration. ``levels``: nominal against observed coverage, by what bounds.
    ``beyond``: fits to a part of the records, scored beyond it. ``repeats_gpu_bound``: repeated recipes that are called
    GPU-bound, and how many of them repeat within 3 %.
    """

    pooled: Scores
    alone: Mapping[str, Scores]
    left_out: Mapping[str, Scores]
    uncalibrated: Mapping[str, Scores]
    before: Mapping[str, Scores]
    rows: tuple[RowError, ...]
    costs: tuple[Cost, ...]
    levels: tuple[tuple[str, float, float], ...]
    beyond: Mapping[str, Scores]
    repeats_gpu_bound: tuple[int, int]
    calibration_s: float
    compiled: int


def gather() -> Evidence:
    """Fit, predict and score everything; about two minutes on one core."""
    records = read_measurements(TRUTH)
    workloads = _workloads(records)
    profile = starting_profile(MACHINE, "probes")
    split = split_records(records, workloads, profile, RUNS, choose="adaptive")
    rows = tuple(_rows(split))
    return Evidence(
        pooled=score_split(split, again=read_measurements(REPEATS), baselines=True, ablate=True),
        alone={m: _alone(m, records, workloads, profile) for m in sorted(workloads)},
        left_out=leave_one_model_out(
            Split(fitted=tuple(records), scored=tuple(records), workloads=workloads, profile=profile)
        ),
        uncalibrated={prior: evaluate(TRUTH, prior=prior) for prior in ("datasheet", "probes")},
        before={name: evaluate(path, calibrate_on=EARLIER_FITTED, prior="probes") for name, path in EARLIER.items()},
        rows=rows,
        costs=tuple(_costs(records, workloads, profile)),
        levels=tuple(_levels(rows)),
        beyond={name: score_split(one) for name, one in _beyond(records, workloads, profile)},
        repeats_gpu_bound=_repeats_gpu_bound(records, read_measurements(REPEATS), split),
        calibration_s=_seconds(split),
        compiled=sum(r.recipe.compile == "on" for r in split.fitted),
    )


def _workloads(records: Sequence[Measurement]) -> dict[str, Workload]:
    from calibration.question import load_or_trace

    return {name: load_or_trace(name) for name in sorted({r.model for r in records})}


def _beyond(
    records: Sequence[Measurement], workloads: Mapping[str, Workload], profile: Profile
) -> Iterator[tuple[str, Split]]:
    """Fits to small sizes, scored on larger ones."""

    def seq(record: Measurement) -> int:
        return record.recipe.seq or workloads[record.model].seq

    def split(fitted: Callable[[Measurement], bool], scored: Callable[[Measurement], bool]) -> Split:
        kept = (tuple(r for r in records if test(r)) for test in (fitted, scored))
        return Split(fitted=next(kept), scored=next(kept), workloads=workloads, profile=profile)

    yield "length: to 1,024, scored above", split(lambda r: seq(r) <= 1024, lambda r: seq(r) > 1024)
    yield (
        "micro-batch: to 8, scored above",
        split(lambda r: r.recipe.micro_batch <= 8, lambda r: r.recipe.micro_batch > 8),
    )
    yield (
        "depth and width: Pythia-160M, scored on 410M (twice as deep, a third wider)",
        split(lambda r: r.model == "pythia-160m", lambda r: r.model == "pythia-410m"),
    )


def _repeats_gpu_bound(records: Sequence[Measurement], again: Sequence[Measurement], split: Split) -> tuple[int, int]:
    """How many repeated recipes the model calls GPU-bound, and how many of those repeat."""
    known = repeats_of([*records, *again])
    first = {name: r for r in records if r.status == "ok" and (name := measurement_identity(r)) in known}
    rows = time_rows(list(first.values()), split.workloads, split.profile.rates)
    calm = [r for r, host in zip(rows.measurements, host_bound(rows, fit_of(split)), strict=True) if not host]
    return len(calm), sum(repeat_class(r, known) == "repeatable" for r in calm)


def _alone(
    model: str, records: Sequence[Measurement], workloads: Mapping[str, Workload], profile: Profile
) -> dict[str, object]:
    """Scores of a calibration of one model; half of its records where there are fewer than twice the runs."""
    own = [r for r in records if r.model == model]
    runs = min(RUNS, len(own) // 2)
    return score_split(split_records(own, {model: workloads[model]}, profile, runs, choose="adaptive"))


def _rows(split: Split) -> Iterator[RowError]:
    fit = fit_of(split)
    rows = time_rows(split.scored, split.workloads, split.profile.rates)
    predicted, sd = predict_rows(rows, fit, split.profile, split.workloads)
    bound = host_bound(rows, fit)
    for i, record in enumerate(rows.measurements):
        yield RowError(
            model=record.model,
            measured_s=float(np.exp(rows.log_step[i])),
            predicted_s=float(predicted[i]),
            half_width=float(fit.interval_scale * sd[i]),
            host_bound=bool(bound[i]),
            in_cell=_in_cell(record),
        )


def _in_cell(record: Measurement) -> bool:
    """Pythia-410M at length 2048 and global batch 48 with fused AdamW."""
    recipe = record.recipe
    batch = recipe.micro_batch * recipe.grad_accum
    return (record.model, recipe.seq, batch, recipe.optimizer) == ("pythia-410m", 2048, 48, "adamw_fused")


def _levels(rows: Sequence[RowError]) -> Iterator[tuple[str, float, float]]:
    """Observed coverage of intervals scaled, as a normal distribution would be, to other nominal levels."""
    groups = {
        "all rows": rows,
        "GPU-bound": [r for r in rows if not r.host_bound],
        "host-bound": [r for r in rows if r.host_bound],
    }
    for group, some in groups.items():
        error = np.array([abs(np.log(r.predicted_s / r.measured_s)) for r in some])
        half = np.array([r.half_width for r in some])
        for level in LEVELS:
            yield group, level, float(np.mean(error <= half * GAUSSIAN[level] / GAUSSIAN[0.9]))


def _costs(records: Sequence[Measurement], workloads: Mapping[str, Workload], profile: Profile) -> Iterator[Cost]:
    """Every policy at every count, all models pooled and each alone, over seeds where the policy has chance in it."""
    alone = [[r for r in records if r.model == m] for m in workloads]
    pools: dict[str, list[Sequence[Measurement]]] = {"pooled": [records], "each model alone": [*alone]}
    for scope, members in pools.items():
        tables = [table_of(own, workloads, profile) for own in members]
        for policy in POLICIES:
            seeds = range(SEEDS if policy == "random" else 1)
            found = [[one for t in tables for one in replay_table(policy, t, COUNTS, seed)] for seed in seeds]
            for runs in COUNTS:
                at = [[one for one in scores if one.count == runs] for scores in found]
                means = [float(np.mean([one.mape for one in scores])) for scores in at if scores]
                flat = [one for scores in at for one in scores]
                if flat:
                    yield Cost(
                        policy=policy,
                        scope=scope,
                        runs=runs,
                        mape=float(np.mean(means)),
                        spread=float(np.std(means)),
                        p95=float(np.mean([one.p95 for one in flat])),
                        coverage90=float(np.mean([one.coverage90 for one in flat])),
                        seconds=float(np.mean([one.seconds for one in flat])),
                    )


def _seconds(split: Split) -> float:
    """Wall seconds of the chosen runs, start-up and compiling included, without probes."""
    return sum(r.trial_s or 0.0 for r in split.fitted)
