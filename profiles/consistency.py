"""What types alone cannot say of stored values: signs, finiteness, sizes that belong together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from profiles.schema import Fit, Measurement, Profile

_TIMES = ("step_s", "step_s_low", "step_s_high", "micro_s", "compile_s", "trial_s")
_SIZES = ("peak_bytes", "peak_reserved_bytes", "peak_device_bytes")
_FIT_POSITIVE = ("interval_scale", "memory_factor", "reserved_factor", "full_reserved_factor")
_FIT_SPREADS = (
    "noise_sd_log",
    "host_sd_log",
    "memory_sd_log",
    "reserved_sd_log",
    "full_reserved_sd_log",
    "workspace_bytes",
    "device_overhead_bytes",
    "device_overhead_sd_bytes",
)
_RANGES = ("micro_batch", "seq", "depth", "width")


def measurement_problems(record: Measurement) -> list[str]:
    """Everything that cannot be true of a record; empty if it can be used.

    A run that ended well has a step time above zero, or at least a peak of memory.
    """
    problems = [p for name in (*_TIMES, *_SIZES) for p in _at_least_zero(name, getattr(record, name))]
    problems += [p for i, value in enumerate(record.samples_s) for p in _at_least_zero(f"samples_s.{i}", value)]
    if record.optimizer_s is not None and not math.isfinite(record.optimizer_s):
        problems.append(f"optimizer_s: must be finite, got {record.optimizer_s}")
    if record.status == "ok" and record.step_s == 0:
        problems.append("step_s: must be above zero where status is ok, got 0")
    if record.status == "ok" and record.step_s is None and all(getattr(record, name) is None for name in _SIZES):
        problems.append("step_s: is required where status is ok and no peak of memory is given")
    return problems


def profile_problems(profile: Profile) -> list[str]:
    """Everything in a profile that no prediction could be made with; empty if all is well."""
    problems: list[str] = []
    for name, rate in profile.rates.items():
        problems += _above_zero(f"rates.{name}.value", rate.value)
        problems += _at_least_zero(f"rates.{name}.sd_log", rate.sd_log)
    problems += _fit_problems(profile.fit)
    for index, record in enumerate(profile.verified):
        problems += [f"verified.{index}.{problem}" for problem in measurement_problems(record)]
    return problems


def _fit_problems(fit: Fit) -> Iterator[str]:
    for name in _FIT_POSITIVE:
        yield from _above_zero(f"fit.{name}", getattr(fit, name))
    for name in _FIT_SPREADS:
        yield from _at_least_zero(f"fit.{name}", getattr(fit, name))
    factors = {f"corrections.{i}.log_factor": one.log_factor for i, one in enumerate(fit.corrections)}
    factors |= {f"host_sessions.{name}": value for name, value in fit.host_sessions.items()}
    for where, value in factors.items():
        if not math.isfinite(value):
            yield f"fit.{where}: must be finite, got {value}"
    yield from _covariance_problems(fit)
    for knob in _RANGES:
        if knob in fit.calibrated and not _is_range(fit.calibrated[knob]):
            yield f"fit.calibrated.{knob}: must be two numbers above zero, lowest first, got {fit.calibrated[knob]}"


def _covariance_problems(fit: Fit) -> Iterator[str]:
    """An empty covariance means that nothing is known of it, and is allowed."""
    size = len(fit.corrections)
    if fit.covariance and {len(fit.covariance), *map(len, fit.covariance)} != {size}:
        yield f"fit.covariance: must have {size} rows of {size} numbers, one for each of fit.corrections"
        return
    if not all(math.isfinite(value) for row in fit.covariance for value in row):
        yield "fit.covariance: every number must be finite"
    elif any(row[index] < 0 for index, row in enumerate(fit.covariance)):
        yield "fit.covariance: no number on the diagonal may be below zero"


def _is_range(values: Iterable[str]) -> bool:
    try:
        low, high = (float(value) for value in values)
    except ValueError:
        return False
    return 0 < low <= high < math.inf


def _above_zero(where: str, value: float) -> Iterator[str]:
    if not 0 < value < math.inf:
        yield f"{where}: must be finite and above zero, got {value}"


def _at_least_zero(where: str, value: float | None) -> Iterator[str]:
    if value is not None and not 0 <= value < math.inf:
        yield f"{where}: must be finite and not below zero, got {value}"
