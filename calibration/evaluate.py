"""Evaluate: fit on a sparse part of a table, predict the rest, score; or score a profile as it is.

Errors are (predicted − measured) / measured. Regret is the throughput of the picked recipe ÷ that of the best one, mean
over cells of equal model, machine, length and global batch with at least three recipes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibration import baselines as simple
from calibration.fit import fit_profile, in_session
from calibration.gate import gated
from calibration.rows import TimeRows, memory_of, noise_log, time_rows, usable
from calibration.tables import Row, read_table
from profiles.errors import InvalidInputError
from profiles.schema import Fit, Measurement, Profile, Workload
from simulator.case import Case
from simulator.outlook import memory_limit_bytes
from simulator.rates import datasheet_profile, datasheet_rates
from simulator.steptime import log_factors, predictive_sd, step_times

FloatArray = NDArray[np.float64]
PRIORS = ("profile", "probes", "datasheet")
NEAR_LIMIT = 0.03
CELL_LEAST = 3
HOST_BOUND = 0.8
"""Host time above this share of GPU time makes a row host-bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Records to fit on and records to score, with the workloads of both and the profile the fit starts from."""

    fitted: tuple[Measurement, ...]
    scored: tuple[Measurement, ...]
    workloads: Mapping[str, Workload]
    profile: Profile
    problems: tuple[str, ...]


def evaluate(
    table: Path,
    *,
    calibrate_on: Path | Sequence[Path] | None = None,
    calibrate: int = 0,
    seed: int = 0,
    prior: str = "profile",
    baselines: bool = False,
) -> dict[str, object]:
    """The scores of a table, in the shape of the command's JSON.

    ``calibrate_on`` fits on other files, ``calibrate`` on that many rows of the table drawn with ``seed``
    (out-of-memory rows count); without either the profile is scored as it is.

    Raises:
        InvalidInputError: no such prior, a table that cannot be read, or nothing left to score.
    """
    split = _split(table, calibrate_on, calibrate, seed, prior)
    start = split.profile.fit
    fit = fit_profile(split.fitted, split.workloads, split.profile.rates, start=start) if split.fitted else start
    rows = time_rows(split.scored, split.workloads, split.profile.rates)
    if not len(rows):
        raise InvalidInputError(f"table {table}", ["no row that ran is left to score", *split.problems])
    predicted, sd = predict_rows(rows, fit, split.profile)
    scores: dict[str, object] = {
        "table": str(table.name),
        "prior": prior,
        "fitted": len(split.fitted),
        "scored": len(split.scored),
        "step_time": time_scores(rows, predicted, sd, fit),
        "step_time_gpu_bound": _part(rows, predicted, sd, fit, ~host_bound(rows, fit)),
        "step_time_host_bound": _part(rows, predicted, sd, fit, host_bound(rows, fit)),
        "memory": memory_scores(split.scored, split.workloads, fit),
        "oom": oom_scores(split, replace(split.profile, fit=fit)),
        "regret": regret(rows, predicted),
        "problems": list(split.problems),
    }
    if len({r.model for r in split.fitted}) > 1:
        scores["leave_one_model_out"] = leave_one_model_out(split)
    scores["baselines"] = simple.scores(split, rows) if baselines else None
    return scores


def _split(table: Path, calibrate_on: Path | Sequence[Path] | None, calibrate: int, seed: int, prior: str) -> Split:
    if prior not in PRIORS:
        raise InvalidInputError("evaluate", [f"prior={prior} is not allowed; allowed: {', '.join(PRIORS)}"])
    if calibrate < 0:
        raise InvalidInputError("evaluate", [f"calibrate={calibrate} is not allowed; allowed: 0 and more"])
    read = read_table(table)
    files = [calibrate_on] if isinstance(calibrate_on, Path) else list(calibrate_on or ())
    others = [read_table(path) for path in files]
    rows = list(read.rows)
    order = np.random.default_rng(seed).permutation(len(rows))
    chosen = set(order[:calibrate].tolist())
    fitted = [row for other in others for row in other.rows] + [rows[i] for i in sorted(chosen)]
    scored = [row for i, row in enumerate(rows) if i not in chosen]
    if not rows:
        raise InvalidInputError(f"table {table}", ["no row can be used", *read.problems])
    profile = starting_profile(_one_machine(table, [*fitted, *scored]), prior)
    workloads = workloads_of([*fitted, *scored])

    def keep(some: Sequence[Row]) -> tuple[Measurement, ...]:
        modelled = [r.measurement for r in some if usable(r.measurement, workloads, profile)]
        return tuple(gated(record, workloads[record.model], profile) for record in modelled)

    problems = [p for one in (read, *others) for p in one.problems]
    kept_fitted = keep(fitted)
    seen = set(kept_fitted)
    unseen = tuple(record for record in keep(scored) if record not in seen)
    repeated = len(scored) - len([r for r in scored if r.measurement not in seen])
    if repeated:
        problems.append(f"{repeated} rows are among those fitted and are not scored")
    return Split(fitted=kept_fitted, scored=unseen, workloads=workloads, profile=profile, problems=tuple(problems))


def _one_machine(table: Path, rows: Sequence[Row]) -> str:
    """The machine of the rows; of several with one GPU type, the first.

    Raises:
        InvalidInputError: several GPU types, which one profile cannot describe.
    """
    from profiles.machines import parse_machine

    names = sorted({row.measurement.machine for row in rows}, reverse=True)
    gpus = {parse_machine(name).gpu.name: name for name in names}
    if len(gpus) > 1:
        raise InvalidInputError(
            f"table {table}", [f"several GPU types: {', '.join(sorted(gpus))}; score one at a time"]
        )
    return next(iter(gpus.values()))


def starting_profile(machine: str, prior: str) -> Profile:
    """Where the fit starts: the machine's profile with its fit, its rates without the fit, or the data sheet."""
    from calibration.question import best_profile
    from profiles.machines import parse_machine

    parsed = parse_machine(machine)
    if prior == "datasheet":
        return datasheet_profile(parsed)
    profile = best_profile(parsed)
    profile = replace(profile, rates={**datasheet_rates(profile.machine.gpu), **profile.rates})
    return replace(profile, fit=Fit()) if prior == "probes" else profile


def workloads_of(rows: Sequence[Row]) -> dict[str, Workload]:
    """Every model's workload; stored ones are used, others are traced now."""
    from calibration.question import workload_of

    known: dict[str, Workload] = {}
    for row in rows:
        if row.measurement.model not in known:
            known[row.measurement.model] = workload_of(row.preset)
    return known


def predict_rows(rows: TimeRows, fit: Fit, profile: Profile) -> tuple[FloatArray, FloatArray]:
    """Predicted seconds per step and the standard deviation of their log; host time as in each row's session."""
    seconds = in_session(rows.seconds, [fit.host_sessions.get(s, 0.0) for s in rows.sessions])
    step = step_times(seconds, rows.grad_accum, log_factors(fit)).step_s
    return step, predictive_sd(seconds, rows.grad_accum, fit, profile.rates)


def host_bound(rows: TimeRows, fit: Fit) -> NDArray[np.bool_]:
    """Rows in which the host takes more than ``HOST_BOUND`` of the GPU's time."""
    seconds = in_session(rows.seconds, [fit.host_sessions.get(s, 0.0) for s in rows.sessions])
    times = step_times(seconds, rows.grad_accum, log_factors(fit))
    return np.asarray(times.host_s > HOST_BOUND * times.gpu_s)


def time_scores(rows: TimeRows, predicted: FloatArray, sd: FloatArray, fit: Fit) -> dict[str, float | int]:
    """Errors of step time as fractions, the share inside the 90 % interval, and the rows' own noise."""
    measured = np.exp(rows.log_step)
    error = predicted / measured - 1.0
    absolute = np.abs(error)
    inside = np.abs(np.log(predicted / measured)) <= fit.interval_scale * sd
    return {
        "n": len(error),
        "mape": float(absolute.mean()),
        "median": float(np.median(absolute)),
        "p95": float(np.quantile(absolute, 0.95)),
        "bias": float(error.mean()),
        "coverage90": float(inside.mean()),
        "interval_factor": float(np.exp(np.median(fit.interval_scale * sd))),
        "noise": float(np.median([noise_log(r) for r in rows.measurements])),
    }


def _part(
    rows: TimeRows, predicted: FloatArray, sd: FloatArray, fit: Fit, mask: NDArray[np.bool_]
) -> dict[str, float | int] | None:
    if not mask.any():
        return None
    index = np.flatnonzero(mask)
    part = TimeRows(
        seconds=rows.seconds[index],
        grad_accum=rows.grad_accum[index],
        log_step=rows.log_step[index],
        noise=rows.noise[index],
        sessions=tuple(rows.sessions[i] for i in index),
        measurements=tuple(rows.measurements[i] for i in index),
    )
    return time_scores(part, predicted[index], sd[index], fit)


def memory_scores(
    records: Sequence[Measurement], workloads: Mapping[str, Workload], fit: Fit
) -> dict[str, float | int] | None:
    """Errors of peak allocated memory as fractions; ``None`` where no record holds a peak."""
    errors = [
        float(memory_of(r, workloads[r.model], fit).peak_bytes[0]) / r.peak_bytes - 1.0
        for r in records
        if r.status == "ok" and r.peak_bytes and r.memory_kind != "unknown"
    ]
    if not errors:
        return None
    absolute = np.abs(errors)
    return {
        "n": len(errors),
        "mape": float(absolute.mean()),
        "median": float(np.median(absolute)),
        "p95": float(np.quantile(absolute, 0.95)),
        "max": float(absolute.max()),
        "bias": float(np.mean(errors)),
    }


def oom_scores(split: Split, profile: Profile) -> dict[str, float | int | None]:
    """Recall of out-of-memory and false alarms, overall and away from the limit; false "fits" counted.

    A false alarm is a run that worked and is called out of memory. "Away" leaves out predictions whose need is within
    3 % of the limit.
    """
    oom = missed = ran = alarms = ran_away = alarms_away = 0
    for record in split.scored:
        if record.status not in {"ok", "oom"}:
            continue
        limit, needed, fits = _verdict(split.workloads[record.model], profile, record)
        away = abs(needed / limit - 1.0) > NEAR_LIMIT
        if record.status == "oom":
            oom, missed = oom + 1, missed + fits
        else:
            ran, alarms = ran + 1, alarms + (not fits)
            ran_away, alarms_away = ran_away + away, alarms_away + (away and not fits)
    return {
        "n_oom": oom,
        "n_ran": ran,
        "recall": (oom - missed) / oom if oom else None,
        "false_fits": missed,
        "false_alarm": alarms / ran if ran else None,
        "false_alarm_away_from_limit": alarms_away / ran_away if ran_away else None,
    }


def _verdict(workload: Workload, profile: Profile, record: Measurement) -> tuple[float, float, bool]:
    """Limit, needed bytes and whether the record's recipe is called ``fits``."""
    from calibration.rows import memory_within

    case = Case(workload=workload, profile=profile)
    limit = float(memory_limit_bytes(case))
    memory = memory_within(record, workload, profile.fit, limit)
    return limit, float(memory.needed_bytes[0]), bool(memory.peak_bytes_high[0] <= limit)


def regret(rows: TimeRows, predicted: FloatArray) -> dict[str, float | int | None]:
    """Mean throughput of the pick ÷ that of the best, picking the first or the best measured of the first three."""
    cells: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for i, record in enumerate(rows.measurements):
        batch = record.recipe.micro_batch * record.recipe.grad_accum
        cells[record.model, record.machine, record.recipe.seq, record.recipe.decoder_seq, batch].append(i)
    measured = np.exp(rows.log_step)
    kept = [np.array(cell) for cell in cells.values() if len(cell) >= CELL_LEAST]
    if not kept:
        return {"cells": 0, "top1": None, "top3": None}

    def kept_share(count: int) -> float:
        picks = [cell[np.argsort(predicted[cell])[:count]] for cell in kept]
        return float(np.mean([measured[c].min() / measured[p].min() for c, p in zip(kept, picks, strict=True)]))

    return {"cells": len(kept), "top1": kept_share(1), "top3": kept_share(3)}


def leave_one_model_out(split: Split) -> dict[str, dict[str, float | int]]:
    """Per model, the step-time scores of a fit that saw every other model's records only."""
    scores = {}
    for model in sorted({r.model for r in split.scored} & {r.model for r in split.fitted}):
        others = [r for r in split.fitted if r.model != model]
        fit = fit_profile(others, split.workloads, split.profile.rates, start=split.profile.fit)
        rows = time_rows([r for r in split.scored if r.model == model], split.workloads, split.profile.rates)
        if len(rows):
            scores[model] = time_scores(rows, *predict_rows(rows, fit, split.profile), fit)
    return scores
