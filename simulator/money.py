"""What a run costs: whole steps, days, GPU-hours, dollars, energy and carbon, from seconds per step.

The functions take floats or arrays of recipes alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from profiles.errors import InvalidInputError
from profiles.schema import Energy, Recipe
from simulator.case import Case, Run
from simulator.units import DAY_S, HOUR_S, WH_PER_KWH

FloatArray = NDArray[np.float64]
Number = TypeVar("Number", float, FloatArray)

POWER_FRACTION = 0.82
"""Mean draw of a GPU in training ÷ its rated power, where nobody measured it.

Source: an 8×H100 node that trained Llama-2-13B drew at most 8.4 kW of its rated 10.2 kW (Latif et al., "Empirical
Measurements of AI Training Power Demand on a GPU-Accelerated Node", 2024). A host-bound run draws less.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Totals of a whole run. ``None`` is unknown: no price, no energy figures."""

    steps: int
    days: float
    gpu_h: float
    usd: float | None
    kwh: float | None
    electricity_usd: float | None
    co2e_kg: float | None


def total_steps(run: Run, global_batch: Number, positions: Number | float) -> Number | None:
    """Whole optimizer steps of the run, or ``None`` if the run has no length.

    ``global_batch`` is samples per step over all ranks, ``positions`` the tokens of one sample. The last step is a
    whole one, so up to one batch more than asked is trained.

    Raises:
        InvalidInputError: more than one of tokens, samples and steps is given.
    """
    if sum(length is not None for length in (run.tokens, run.samples, run.steps)) > 1:
        raise InvalidInputError("the run's length", ["give one of tokens, samples and steps, not several"])
    if run.steps is not None:
        return global_batch * 0 + float(run.steps)
    if run.samples is not None:
        return _ceil(run.samples / global_batch)
    return None if run.tokens is None else _ceil(run.tokens / (global_batch * positions))


def _ceil(value: Number) -> Number:
    rounded: Number = np.ceil(value)
    return rounded


def run_days(steps: Number, step_s: Number) -> Number:
    """Days of training: steps × seconds per step. Start-up, evaluation and checkpoints are not in it."""
    return steps * step_s / DAY_S


def gpu_hours(days: Number, ranks: int) -> Number:
    """GPU-hours: wall hours × GPUs held."""
    return days * (DAY_S / HOUR_S) * ranks


def rent_usd(gpu_h: Number, rent_usd_per_gpu_h: float) -> Number:
    """USD of rent: GPU-hours × price."""
    return gpu_h * rent_usd_per_gpu_h


def energy_kwh(gpu_h: Number, gpu_power_w: float, energy: Energy) -> Number:
    """KWh at the meter: GPU-hours × (GPU power + its share of the host) × PUE.

    ``gpu_power_w`` is the mean draw of one GPU while training. Switches and storage outside the hosts are left out
    (a few per cent on a cluster).
    """
    return gpu_h * ((gpu_power_w + energy.host_w_per_gpu) * energy.pue / WH_PER_KWH)


def co2e_kg(kwh: Number, energy: Energy) -> Number:
    """Kilograms of CO2 equivalent of the electricity; making the hardware is left out."""
    return kwh * (energy.grid_g_co2e_per_kwh / 1000)


def gpu_power_w(case: Case) -> float:
    """Watts that one GPU draws while training: as measured with the profile, else rated power × typical fraction."""
    device = case.profile.device
    if device is not None and device.power_w is not None:
        return device.power_w
    return case.machine.gpu.power_w * POWER_FRACTION


def global_batch(case: Case, recipe: Recipe) -> int:
    """Samples per optimizer step over all ranks."""
    return recipe.micro_batch * recipe.grad_accum * case.ranks


def run_cost(case: Case, recipe: Recipe, step_s: float) -> Cost | None:
    """Totals of the case's run under one recipe that takes ``step_s`` seconds a step; ``None`` without a length."""
    steps = total_steps(case.run, float(global_batch(case, recipe)), case.positions(recipe))
    if steps is None:
        return None
    days = run_days(steps, step_s)
    gpu_h = gpu_hours(days, case.ranks)
    rent = case.price.rent_usd_per_gpu_h if case.price else None
    energy = case.energy
    kwh = energy_kwh(gpu_h, gpu_power_w(case), energy) if energy else None
    return Cost(
        steps=int(steps),
        days=days,
        gpu_h=gpu_h,
        usd=None if rent is None else rent_usd(gpu_h, rent),
        kwh=kwh,
        electricity_usd=kwh * energy.electricity_usd_per_kwh if energy and kwh is not None else None,
        co2e_kg=co2e_kg(kwh, energy) if energy and kwh is not None else None,
    )
