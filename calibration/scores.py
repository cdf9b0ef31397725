"""Scores of predictions against measurements: errors of time and memory, coverage of intervals, by part and by knob.

Errors are (predicted − measured) / measured, as fractions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from calibration.fit import in_session
from calibration.rows import TimeRows, memory_of, memory_within, noise_log, seconds_of
from profiles.schema import Fit, Measurement, Profile, Workload
from simulator.calibrated import beyond_sd_log
from simulator.case import Case
from simulator.steptime import StepTimes, log_factors, predictive_sd, step_times

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Score = dict[str, float | int]
HOST_BOUND = 0.8
"""Host time above this share of GPU time makes a row host-bound."""
KNOBS = ("model", "seq", "precision", "attention", "compile", "checkpointing", "optimizer")


def predict_rows(
    rows: TimeRows, fit: Fit, profile: Profile, workloads: Mapping[str, Workload]
) -> tuple[FloatArray, FloatArray]:
    """Predicted seconds per step and the standard deviation of their log, as ``predict`` says it.

    Host time is as in each row's session; what left the calibrated range widens the deviation.
    """
    seconds = _in_own_session(rows.seconds, rows.sessions, fit)
    step = step_times(seconds, rows.grad_accum, log_factors(fit)).step_s
    cases = {name: Case(workload=workload, profile=profile) for name, workload in workloads.items()}
    beyond = np.array([beyond_sd_log(cases[r.model], r.recipe, fit) for r in rows.measurements])
    return step, np.hypot(predictive_sd(seconds, rows.grad_accum, fit, profile.rates), beyond)


def predict_steps(records: Sequence[Measurement], workloads: Mapping[str, Workload], profile: Profile) -> FloatArray:
    """Predicted seconds per step of any records, out-of-memory ones too; host time as in each record's session."""
    if not records:
        return np.zeros(0)
    plain = np.array([seconds_of(workloads[r.model], profile.rates, r) for r in records])
    seconds = _in_own_session(plain, [r.session or "" for r in records], profile.fit)
    grad_accum = np.array([float(r.recipe.grad_accum) for r in records])
    return step_times(seconds, grad_accum, log_factors(profile.fit)).step_s


def host_bound(rows: TimeRows, fit: Fit) -> BoolArray:
    """Rows in which the host takes more than ``HOST_BOUND`` of the GPU's time."""
    times = _times(rows, fit)
    return np.asarray(times.host_s > HOST_BOUND * times.gpu_s)


def _times(rows: TimeRows, fit: Fit) -> StepTimes:
    return step_times(_in_own_session(rows.seconds, rows.sessions, fit), rows.grad_accum, log_factors(fit))


def _in_own_session(seconds: FloatArray, sessions: Sequence[str], fit: Fit) -> FloatArray:
    return in_session(seconds, [fit.host_sessions.get(session, 0.0) for session in sessions])


# --------------------------------------------------------------------------------------------------- errors


def errors(predicted: FloatArray, measured: FloatArray) -> Score:
    """Count, mean absolute error (``mape``), median and 95th percentile of the absolute errors, and mean error."""
    error = predicted / measured - 1.0
    absolute = np.abs(error)
    return {
        "n": len(error),
        "mape": float(absolute.mean()),
        "median": float(np.median(absolute)),
        "p95": float(np.quantile(absolute, 0.95)),
        "bias": float(error.mean()),
    }


def time_scores(
    rows: TimeRows, predicted: FloatArray, sd: FloatArray, fit: Fit, mask: BoolArray | None = None
) -> Score:
    """Errors of step time, what the 90 % interval covers and how wide it is, and the rows' own noise.

    ``mask`` picks rows, at least one; by default all are scored. ``interval_width`` is the mean of (high − low) ÷
    predicted, ``interval_factor`` the median factor from the prediction to either end.
    """
    index = np.arange(len(rows)) if mask is None else np.flatnonzero(mask)
    measured, said = np.exp(rows.log_step[index]), predicted[index]
    half = fit.interval_scale * sd[index]
    return {
        **errors(said, measured),
        "coverage90": float(np.mean(np.abs(np.log(said / measured)) <= half)),
        "interval_factor": float(np.exp(np.median(half))),
        "interval_width": float(np.mean(np.exp(half) - np.exp(-half))),
        "noise": float(np.median([noise_log(rows.measurements[i]) for i in index])),
    }


def part(rows: TimeRows, predicted: FloatArray, sd: FloatArray, fit: Fit, mask: BoolArray) -> Score | None:
    """``time_scores`` of the rows in ``mask``; ``None`` if there are none."""
    return time_scores(rows, predicted, sd, fit, mask) if mask.any() else None


def by_knob(
    rows: TimeRows, workloads: Mapping[str, Workload], predicted: FloatArray, sd: FloatArray, fit: Fit
) -> dict[str, dict[str, Score]]:
    """Per knob and value: how many rows, their mean absolute and mean error, and the interval's coverage."""
    told: dict[str, dict[str, Score]] = {}
    for knob in KNOBS:
        values = np.array([knob_value(r, knob, workloads) for r in rows.measurements])
        told[knob] = {
            name: _brief(time_scores(rows, predicted, sd, fit, values == name))
            for name in sorted(set(values.tolist()), key=lambda v: (not v.isdigit(), v.zfill(9) if v.isdigit() else v))
        }
    return told


def knob_value(record: Measurement, knob: str, workloads: Mapping[str, Workload]) -> str:
    """One of ``KNOBS`` of a record as text; a length that the recipe leaves open is the model's own."""
    if knob == "model":
        return record.model
    if knob == "seq":
        return str(record.recipe.seq or workloads[record.model].seq)
    return str(getattr(record.recipe, knob))


def _brief(score: Score) -> Score:
    return {name: score[name] for name in ("n", "mape", "bias", "coverage90")}


# --------------------------------------------------------------------------------------------------- memory


def with_peak(records: Sequence[Measurement]) -> list[Measurement]:
    """The records that ran and say what torch's peak allocation was."""
    return [r for r in records if r.status == "ok" and r.peak_bytes and r.memory_kind != "unknown"]


def memory_scores(records: Sequence[Measurement], workloads: Mapping[str, Workload], fit: Fit) -> Score | None:
    """Errors of peak allocated memory; ``None`` where no record holds a peak."""
    known = with_peak(records)
    predicted = np.array([float(memory_of(r, workloads[r.model], fit).peak_bytes[0]) for r in known])
    return peak_scores(predicted, [r.peak_bytes for r in known])


def reserved_scores(
    records: Sequence[Measurement], workloads: Mapping[str, Workload], fit: Fit, limit_bytes: float
) -> Score | None:
    """Errors of peak reserved memory on a device of ``limit_bytes``; ``None`` where no record holds it."""
    known = [r for r in with_peak(records) if r.peak_reserved_bytes]
    memories = [memory_within(r, workloads[r.model], fit, limit_bytes) for r in known]
    predicted = np.array([float(memory.peak_reserved_bytes[0]) for memory in memories])
    return peak_scores(predicted, [r.peak_reserved_bytes for r in known])


def peak_scores(predicted_bytes: FloatArray, measured_bytes: Sequence[int | None]) -> Score | None:
    """Errors of peaks, with the largest; ``None`` without any. What was measured must be known."""
    if not measured_bytes:
        return None
    measured = np.array(measured_bytes, dtype=float)
    return {**errors(predicted_bytes, measured), "max": float(np.abs(predicted_bytes / measured - 1.0).max())}
