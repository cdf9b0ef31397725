"""The fit: measurements move per-component corrections away from a prior, and say how sure they are.

Step time is a smooth function of log factors, one a component. Gauss-Newton on the log of step time, each inner
problem a ridge regression: the ridge is the Gaussian prior on the log factors, so factors stay positive, six points
help, and a component that the data don't identify stays at its prior. Residuals are weighed by each record's noise and
by a soft-L1 loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from calibration.rows import REPEAT_FLOOR_LOG, TimeRows, calibrated_range, memory_of, time_rows
from profiles.schema import Correction, Fit, Measurement, Rate, Workload
from simulator.components import COMPONENTS
from simulator.steptime import (
    HOST_COLUMNS,
    covariance,
    form_sd,
    gradient,
    host_share,
    log_factors,
    predictive_sd,
    prior_sd,
    step_times,
)

FloatArray = NDArray[np.float64]
ITERATIONS = 30
TOLERANCE = 1e-5
NOMINAL = 0.90
GAUSSIAN_90 = 1.645
IDENTIFIED_BELOW = 0.5
"""A component counts as identified once its posterior variance is below this share of the prior's."""
HOST_REPEAT_LOG = 0.06
"""How far host-bound steps stray between processes, and within one over seconds, on the log: repeats on an H200."""
SESSION_SD_LOG = 0.25
"""How far host speed strays between sessions on one machine, on the log: 11 to 23 µs an operation were seen on one."""
ROBUST_SD = 1.4826
"""Standard deviation of a normal distribution ÷ its median absolute deviation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Log factors by component, their covariance, and leave-one-out errors of log step time by row.

    ``sessions``: log factor on host time by session, relative to the newest, which the factors are of.
    """

    factors: FloatArray
    sessions: dict[str, float]
    covariance: FloatArray
    active: NDArray[np.bool_]
    left_out: FloatArray


def fit_profile(
    records: Sequence[Measurement],
    workloads: Mapping[str, Workload],
    rates: dict[str, Rate],
    start: Fit | None = None,
) -> Fit:
    """The fit of time and memory to these records; without any that ran, the prior.

    ``start`` is an earlier fit that serves as the prior; by default the rates alone do.
    """
    rows = time_rows(records, workloads, rates)
    fit = fit_time(rows, rates, start) if len(rows) else start or Fit()
    fit = fit_memory(fit, [r for r in records if r.status == "ok"], workloads)
    return replace(
        fit,
        models=tuple(sorted({r.model for r in rows.measurements})),
        measurements=sum(r.status in {"ok", "oom"} for r in records),
        calibrated=calibrated_range(records, workloads),
    )


# ------------------------------------------------------------------------------------------------------- time


def fit_time(rows: TimeRows, rates: dict[str, Rate], start: Fit | None = None) -> Fit:
    """Corrections, covariance, residual noise and the interval's scale."""
    sd = prior_sd(rates)
    mean = log_factors(start) if start else np.zeros(len(COMPONENTS))
    spread = np.sqrt(np.diag(covariance(start, rates))) if start else sd
    solution = solve(rows, spread, mean)
    kept = solution.active | (mean != 0.0)
    corrections = tuple(
        Correction(
            component=name,
            log_factor=float(solution.factors[i]),
            identified=bool(solution.covariance[i, i] < IDENTIFIED_BELOW * sd[i] ** 2),
        )
        for i, name in enumerate(COMPONENTS)
        if kept[i]
    )
    index = np.flatnonzero(kept)
    seen = np.outer(solution.active, solution.active)
    known = np.where(seen, solution.covariance, np.diag(spread**2))[np.ix_(index, index)]
    noise, host = _noise(rows, solution)
    fit = Fit(
        corrections=corrections,
        covariance=tuple(tuple(float(x) for x in row) for row in known),
        noise_sd_log=noise,
        host_sd_log=host,
        measurements=len(rows),
        host_sessions=solution.sessions,
    )
    return replace(fit, interval_scale=_interval_scale(rows, solution, fit, rates))


def solve(rows: TimeRows, sd: FloatArray, mean: FloatArray | None = None) -> Solution:
    """Maximum-posterior log factors by Gauss-Newton with ridge regression inside.

    ``mean`` and ``sd`` are the prior of each component's log factor; ``mean`` defaults to none. Beside the components'
    factors there is one on host time for each session but the newest.
    """
    from sklearn.linear_model import Ridge

    active = np.abs(rows.seconds).sum(axis=0) > 0
    sessions = _older_sessions(rows)
    scale = np.concatenate([np.where(active, sd, 0.0), np.full(len(sessions), SESSION_SD_LOG)])
    used = np.concatenate([active, np.ones(len(sessions), dtype=bool)])
    prior = np.concatenate([np.zeros(len(COMPONENTS)) if mean is None else mean, np.zeros(len(sessions))])
    values = prior.copy()
    for _ in range(ITERATIONS):
        jacobian, residual = _linearised(rows, values, sessions)
        ridge = Ridge(alpha=1.0, fit_intercept=False)
        weight = _weights(residual, _noise_at(rows, jacobian))
        ridge.fit(jacobian[:, used] * scale[used], residual + jacobian @ (values - prior), sample_weight=weight)
        new = prior.copy()
        new[used] += ridge.coef_ * scale[used]
        step = np.clip(new - values, -0.5, 0.5)
        values = values + step
        if np.max(np.abs(step)) < TOLERANCE:
            break
    return _posterior(rows, values, scale, active, sessions)


def _older_sessions(rows: TimeRows) -> list[str]:
    """Every session but the one of the newest record."""
    last = max(rows.measurements, key=lambda r: r.started_at or "").session or ""
    return sorted(set(rows.sessions) - {last})


def _linearised(rows: TimeRows, values: FloatArray, sessions: Sequence[str]) -> tuple[FloatArray, FloatArray]:
    """Jacobian of log step time (components, then sessions) and the residual, at ``values``."""
    factors, effects = values[: len(COMPONENTS)], dict(zip(sessions, values[len(COMPONENTS) :], strict=True))
    seconds = in_session(rows.seconds, [effects.get(s, 0.0) for s in rows.sessions])
    shares = gradient(seconds, rows.grad_accum, factors)
    member = np.array([[float(own == s) for s in sessions] for own in rows.sessions]).reshape(len(rows), len(sessions))
    jacobian = np.hstack([shares, member * shares[:, HOST_COLUMNS].sum(axis=1, keepdims=True)])
    return jacobian, rows.log_step - np.log(step_times(seconds, rows.grad_accum, factors).step_s)


def in_session(seconds: FloatArray, effects: Sequence[float]) -> FloatArray:
    """Component seconds with each row's host time scaled by its session's log factor."""
    scaled = seconds.copy()
    scaled[:, HOST_COLUMNS] *= np.exp(np.asarray(effects, dtype=float))[:, None]
    return scaled


def _weights(residual: FloatArray, noise: FloatArray) -> FloatArray:
    """Inverse variance, lowered where the residual is large: the weight of a soft-L1 loss."""
    scaled = residual / noise
    weights: FloatArray = 1.0 / noise**2 / np.sqrt(1.0 + scaled**2)
    return weights


def _noise_at(rows: TimeRows, jacobian: FloatArray) -> FloatArray:
    """Each row's own noise, and what the host's wandering between processes adds as far as the host decides it."""
    wandering = HOST_REPEAT_LOG * host_share(jacobian[:, : len(COMPONENTS)])
    return np.hypot(np.hypot(rows.noise, wandering), form_sd(rows.seconds))


def _posterior(
    rows: TimeRows, values: FloatArray, scale: FloatArray, active: NDArray[np.bool_], sessions: Sequence[str]
) -> Solution:
    jacobian, residual = _linearised(rows, values, sessions)
    noise = _noise_at(rows, jacobian)
    jacobian = jacobian * scale
    weight = _weights(residual, noise)
    information = jacobian.T @ (jacobian * weight[:, None]) + np.eye(len(values))
    inverse = np.linalg.inv(information)
    leverage = np.einsum("ij,jk,ik->i", jacobian, inverse, jacobian) * weight
    excess = max(1.0, float(np.sum(weight * residual**2) / len(residual)))
    posterior = inverse * np.outer(scale, scale) * excess
    count = len(COMPONENTS)
    return Solution(
        factors=values[:count],
        covariance=posterior[:count, :count],
        active=active,
        left_out=residual / np.maximum(1.0 - leverage, 0.2),
        sessions=dict(zip(sessions, (float(v) for v in values[count:]), strict=True)),
    )


def _noise(rows: TimeRows, solution: Solution) -> tuple[float, float]:
    """What is left in rows that the GPU decides, and how far the host's speed strays where it does."""
    seconds = in_session(rows.seconds, rows_effects(rows, solution))
    share = host_share(gradient(seconds, rows.grad_accum, solution.factors))
    calm = solution.left_out[share < 0.3] if (share < 0.3).sum() >= 3 else solution.left_out
    noise = max(REPEAT_FLOOR_LOG / 2, float(np.sqrt(np.mean(np.clip(calm, -0.3, 0.3) ** 2))))
    rough = share >= 0.5
    if rough.sum() < 3:
        return noise, HOST_REPEAT_LOG
    extra = np.mean(np.clip(solution.left_out[rough], -0.5, 0.5) ** 2) - noise**2
    return noise, math.sqrt(max(float(extra / np.mean(share[rough] ** 2)), 0.0))


def rows_effects(rows: TimeRows, solution: Solution) -> list[float]:
    """Each row's log factor on host time, by its session."""
    return [solution.sessions.get(s, 0.0) for s in rows.sessions]


def _interval_scale(rows: TimeRows, solution: Solution, fit: Fit, rates: dict[str, Rate]) -> float:
    """The conformal quantile of normalised leave-one-out errors, with the finite-sample correction.

    Source: split conformal prediction with normalised residuals (Lei et al., 2018), leave-one-out as in jackknife+
    (Barber et al., 2021), whose refits are replaced by the exact leave-one-out formula of the linearised fit.
    """
    normalised = np.abs(solution.left_out) / predictive_sd(rows.seconds, rows.grad_accum, fit, rates)
    count = len(normalised)
    if count < 10:
        return GAUSSIAN_90 * 1.15
    rank = min(math.ceil(NOMINAL * (count + 1)), count)
    return float(np.clip(np.sort(normalised)[rank - 1], 1.0, 3.0))


# ----------------------------------------------------------------------------------------------------- memory

MIN_MEMORY_SD_LOG = 0.004
MIN_RESERVED_SD_LOG = 0.002
MIN_OVERHEAD_SD_BYTES = 16 * 2**20
WORKSPACE_PRIOR_BYTES = 40e6


def fit_memory(fit: Fit, ran: Sequence[Measurement], workloads: Mapping[str, Workload]) -> Fit:
    """Factor on what moves, library workspace, allocator slack and device overhead, each with its spread."""
    measured = [r for r in ran if r.peak_bytes]
    if not measured:
        return fit
    fit = _fit_allocated(fit, measured, workloads)
    return _fit_totals(fit, measured)


def _fit_allocated(fit: Fit, measured: Sequence[Measurement], workloads: Mapping[str, Workload]) -> Fit:
    plain = replace(fit, memory_factor=1.0, workspace_bytes=0)
    parts = np.array([memory_of(r, workloads[r.model], plain).parts[0] for r in measured])
    peaks = np.array([float(r.peak_bytes or 0) for r in measured])
    static, moving = parts[:, :3].sum(axis=1) + parts[:, 6], parts[:, 3:6].sum(axis=1)
    factor, workspace = _two_robust(moving / peaks, 1.0 / peaks, 1.0 - static / peaks)
    predicted = static + moving * factor + workspace
    relative = (peaks - predicted) / np.maximum(moving * factor, 0.2 * peaks)
    sd = max(MIN_MEMORY_SD_LOG, float(np.sqrt(np.mean(np.clip(relative, -0.2, 0.2) ** 2))))
    return replace(fit, memory_factor=factor, workspace_bytes=max(0, round(workspace)), memory_sd_log=sd)


def _two_robust(first: FloatArray, second: FloatArray, target: FloatArray) -> tuple[float, float]:
    """``target`` ≈ a · first + c · second with a near 1 and c near the usual workspace, by reweighted ridge."""
    from sklearn.linear_model import Ridge

    columns = np.column_stack([first * 0.03, second * WORKSPACE_PRIOR_BYTES])
    goal = target - first - second * WORKSPACE_PRIOR_BYTES
    weight = np.full(len(goal), 1.0 / 0.005**2)
    for _ in range(10):
        ridge = Ridge(alpha=1.0, fit_intercept=False).fit(columns, goal, sample_weight=weight)
        left = (goal - columns @ ridge.coef_) / 0.005
        weight = 1.0 / 0.005**2 / np.sqrt(1.0 + left**2)
    a, c = ridge.coef_
    return 1.0 + 0.03 * float(a), WORKSPACE_PRIOR_BYTES * (1.0 + float(c))


def _slack(measured: Sequence[Measurement]) -> tuple[float, float] | None:
    """Median of reserved ÷ allocated bytes, and its spread on the log; ``None`` where no record holds both."""
    slack = np.array([r.peak_reserved_bytes / r.peak_bytes for r in measured if r.peak_reserved_bytes and r.peak_bytes])
    if not len(slack):
        return None
    middle = float(np.median(slack))
    spread = float(np.sqrt(np.mean(np.clip(np.log(slack / middle), -0.2, 0.2) ** 2)))
    return middle, max(MIN_RESERVED_SD_LOG, spread)


def _fit_totals(fit: Fit, measured: Sequence[Measurement]) -> Fit:
    full = [r for r in measured if r.recipe.checkpointing == "full"]
    factor, sd_log = _slack([r for r in measured if r.recipe.checkpointing != "full"]) or (1.0, MIN_RESERVED_SD_LOG)
    fit = replace(fit, reserved_factor=factor, reserved_sd_log=sd_log)
    if (of_full := _slack(full)) is not None:
        fit = replace(fit, full_reserved_factor=of_full[0], full_reserved_sd_log=of_full[1])
    outside = np.array(
        [r.peak_device_bytes - (r.peak_reserved_bytes or r.peak_bytes or 0) for r in measured if r.peak_device_bytes]
    )
    if not len(outside):
        return fit
    middle = float(np.median(outside))
    spread = ROBUST_SD * float(np.median(np.abs(outside - middle)))
    return replace(
        fit, device_overhead_bytes=round(middle), device_overhead_sd_bytes=round(max(MIN_OVERHEAD_SD_BYTES, spread))
    )
