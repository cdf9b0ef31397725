"""Measurements beside what the model knows of them: the rows that the fit, the choice of runs and the scores share."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from profiles.schema import Fit, Measurement, Profile, Rate, Workload
from simulator.calibrated import depth_of, width_of
from simulator.case import Case
from simulator.components import Choice, component_seconds
from simulator.memory import Memory, memory
from simulator.outlook import sizes_of
from simulator.recipes import broken_rules
from simulator.techniques import TECHNIQUES

FloatArray = NDArray[np.float64]
_COUNTS = re.compile(r"(?:(\d+)x)?(?:(\d+)x)?")
REPEAT_FLOOR_LOG = 0.015
"""No step time is trusted beyond this: what fresh processes on one GPU differ by."""
SPREAD_WEIGHT = 0.4
"""How much of a record's own spread counts as its uncertainty: windows of one process are not independent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRows:
    """Records that ran: component seconds (rows × components), accumulations, log step times, their noise.

    ``sessions[i]`` names the uptime of the host that row i was taken in: host speed differs between sessions.
    """

    seconds: FloatArray
    grad_accum: FloatArray
    log_step: FloatArray
    noise: FloatArray
    sessions: tuple[str, ...]
    measurements: tuple[Measurement, ...]

    def __len__(self) -> int:
        """How many rows."""
        return len(self.log_step)


def usable(record: Measurement, workloads: Mapping[str, Workload], profile: Profile) -> bool:
    """Whether the model has anything to say of a record: its workload is known and no rule refuses its recipe."""
    workload = workloads.get(record.model)
    if workload is None or (record.config_hash not in {None, workload.config_hash}):
        return False
    return not broken_rules(record.recipe, Case(workload=workload, profile=profile), TECHNIQUES)


def seconds_of(workload: Workload, rates: Mapping[str, Rate], record: Measurement) -> FloatArray:
    """Component seconds of one record's recipe, shape (components,)."""
    recipe = record.recipe
    sizes = _sizes(workload, record)
    row: FloatArray = component_seconds(workload, rates, Choice.of(recipe), sizes, ranks_of(record.machine))[0]
    return row


def _sizes(workload: Workload, record: Measurement) -> FloatArray:
    case = Case(workload=workload, profile=None)  # type: ignore[arg-type]  # sizes need no profile
    return sizes_of(case, record.recipe, np.array([record.recipe.micro_batch]))


def time_rows(records: Iterable[Measurement], workloads: Mapping[str, Workload], rates: Mapping[str, Rate]) -> TimeRows:
    """The rows of all records that ran. ``workloads`` must know every model."""
    kept = tuple(r for r in records if r.status == "ok" and r.step_s)
    return TimeRows(
        sessions=tuple(r.session or "" for r in kept),
        seconds=np.array([seconds_of(workloads[r.model], rates, r) for r in kept]),
        grad_accum=np.array([float(r.recipe.grad_accum) for r in kept]),
        log_step=np.array([math.log(r.step_s or 1.0) for r in kept]),
        noise=np.array([noise_log(r) for r in kept]),
        measurements=kept,
    )


def ranks_of(machine: str) -> int:
    """Data-parallel ranks of a machine by its name: nodes × GPUs a node, 1 where none is said."""
    counts = _COUNTS.match(machine)
    return math.prod(int(count) for count in counts.groups() if count) if counts else 1


def noise_log(record: Measurement) -> float:
    """A record's own uncertainty on the log: the repeat floor and part of its spread."""
    spread = 0.0
    if record.step_s and record.step_s_low and record.step_s_high:
        spread = (record.step_s_high - record.step_s_low) / record.step_s
    return math.hypot(REPEAT_FLOOR_LOG, SPREAD_WEIGHT * spread)


def memory_of(record: Measurement, workload: Workload, fit: Fit) -> Memory:
    """The model's memory for one record's recipe on a device without limit."""
    return memory_within(record, workload, fit, math.inf)


def memory_within(record: Measurement, workload: Workload, fit: Fit, limit_bytes: float) -> Memory:
    """The model's memory for one record's recipe on a device of ``limit_bytes``."""
    recipe = record.recipe
    accumulates = np.array([recipe.grad_accum > 1])
    sizes, ranks = _sizes(workload, record), ranks_of(record.machine)
    return memory(workload, Choice.of(recipe), sizes, accumulates, fit, limit_bytes, ranks)


def calibrated_range(records: Sequence[Measurement], workloads: Mapping[str, Workload]) -> dict[str, tuple[str, ...]]:
    """Per knob the values that ran, or for sizes the lowest and the highest."""
    ran = [r for r in records if r.status == "ok"]
    ranges: dict[str, tuple[str, ...]] = {}
    for knob in ("precision", "attention", "compile", "checkpointing", "optimizer"):
        ranges[knob] = tuple(sorted({str(getattr(r.recipe, knob)) for r in ran}))
    if ran:
        batches = [r.recipe.micro_batch for r in ran]
        lengths = [r.recipe.seq or workloads[r.model].seq for r in ran]
        ranges["micro_batch"] = (str(min(batches)), str(max(batches)))
        ranges["seq"] = (str(min(lengths)), str(max(lengths)))
        models = [workloads[name] for name in {r.model for r in ran}]
        for knob, sizes in (("depth", [*map(depth_of, models)]), ("width", [*map(width_of, models)])):
            known = [size for size in sizes if size]
            if known:
                ranges[knob] = (str(min(known)), str(max(known)))
    return ranges
