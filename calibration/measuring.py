"""One trial, in this process: step a trainee until it has settled, and read time and memory off it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from calibration.steady import Summary, summarise
from calibration.trial import Trial, failed
from calibration.windows import Clock, Round, Series, solve_accumulation, step_estimates, time_rounds, time_window
from calibration.windows import window_steps as steps_of_a_window
from profiles.schema import Measurement

MAX_DIRECT_ACCUMULATION = 2
"""Accumulations up to this are measured as they are; larger ones follow from whole steps at two smaller ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Peak memory of a trial so far, in bytes; ``kind`` says what ``allocated`` counts."""

    allocated_bytes: int
    reserved_bytes: int | None
    device_bytes: int | None
    kind: str


class Steppable(Protocol):
    """What is measured: whole optimizer steps on a device that may run behind the host."""

    def step(self, grad_accum: int) -> None:
        """Queue one whole optimizer step."""
        ...

    def synchronize(self) -> None:
        """Return once the device is idle."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """The timing of a trial: its series, at which accumulations, and the seconds of the very first step."""

    series: Series
    accumulations: tuple[int, ...]
    first_step_s: float


def measured_accumulations(trial: Trial) -> tuple[int, ...]:
    """The accumulations at which whole steps are timed: the recipe's own, or the two it follows from."""
    grad_accum = trial.recipe.grad_accum
    if grad_accum <= MAX_DIRECT_ACCUMULATION:
        return (grad_accum,)
    return (trial.solved_from[0], min(grad_accum, trial.solved_from[1]))


def time_trainee(
    trainee: Steppable,
    accumulations: tuple[int, ...],
    measure_s: float,
    *,
    clock: Clock = time.perf_counter,
    monitor: AbstractContextManager[None] | None = None,
    warmed_up: Callable[[], None] = lambda: None,
) -> Timed:
    """Time whole steps after at least two optimizer steps, at ``accumulations`` (one or two) in turn.

    ``monitor`` is entered while windows run; ``warmed_up`` is called once before the first of them.
    """

    def timed(accumulation: int, count: int) -> float:
        return time_window(lambda: trainee.step(accumulation), count, trainee.synchronize, clock)

    first_step_s = timed(accumulations[0], 1)
    later_steps_s = [timed(accumulation, 1) for accumulation in reversed(accumulations)]
    warmed_up()
    with monitor or nullcontext():
        steps = steps_of_a_window(lambda count: timed(accumulations[0], count), later_steps_s[-1])

        def one_round() -> Round:
            return tuple(timed(accumulation, steps) for accumulation in accumulations)

        series = time_rounds(one_round, steps, measure_s, clock)
    return Timed(series=series, accumulations=accumulations, first_step_s=first_step_s)


def to_measurement(trial: Trial, timed: Timed, peaks: Peaks) -> Measurement:
    """The record of a trial that ran; ``invalid`` where the two accumulations cannot be told apart."""
    series, accumulations = timed.series, timed.accumulations
    micro_s, optimizer_s = _parts(series, accumulations)
    if micro_s is not None and micro_s <= 0.0:
        return failed(trial, "invalid", f"steps at {accumulations[-1]} micro-batches take no longer than at fewer")
    summary = summarise(step_estimates(series.settled, accumulations, trial.recipe.grad_accum))
    first_s = summarise([windows[0] for windows in series.settled]).median_s
    return Measurement(
        model=trial.model,
        config_hash=trial.config_hash,
        machine=trial.machine,
        recipe=trial.recipe,
        status="ok",
        step_s=summary.median_s,
        step_s_low=summary.low_s,
        step_s_high=summary.high_s,
        samples_s=tuple(window for windows in series.settled for window in windows),
        steps_per_sample=series.steps,
        measured_grad_accum=accumulations,
        micro_s=micro_s,
        optimizer_s=optimizer_s,
        compile_s=max(0.0, timed.first_step_s - first_s) if trial.recipe.compile == "on" else None,
        peak_bytes=peaks.allocated_bytes,
        peak_reserved_bytes=peaks.reserved_bytes,
        peak_device_bytes=peaks.device_bytes,
        memory_kind=peaks.kind,
        steady=series.steady,
        note=join_notes(_accumulation_note(accumulations, trial.recipe.grad_accum), _overhead_note(series, summary)),
    )


def join_notes(*notes: str) -> str:
    """The notes that say something, as one text."""
    return "; ".join(note for note in notes if note)


def _parts(series: Series, accumulations: tuple[int, ...]) -> tuple[float | None, float | None]:
    if len(accumulations) == 1:
        return None, None
    return solve_accumulation(series.settled, (accumulations[0], accumulations[1]))


def _accumulation_note(accumulations: tuple[int, ...], grad_accum: int) -> str:
    if len(accumulations) == 1:
        return ""
    low, high = accumulations
    samples = f"samples alternate between {low} and {high} micro-batches a step"
    if high == grad_accum:
        return samples
    return f"step_s follows from whole steps at {low} and {high} micro-batches; {samples}"


def _overhead_note(series: Series, summary: Summary) -> str:
    overhead_s = summary.overhead_s * series.steps
    return f"slow windows took {overhead_s:.3g} s more than their steps" if overhead_s > 0 else ""
