"""Drawn orders: recipes in a file, one JSON object a line, and how they are measured.

An order names its ``model`` and ``recipe``; one that is ``alone`` gets a process of its own.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from calibration.campaign import run_campaign
from calibration.candidates import make_trial
from calibration.question import load_or_trace
from calibration.trial import Trial
from profiles.schema import Measurement, Recipe
from simulator.case import Case
from simulator.components import Choice
from simulator.outlook import memory_limit_bytes, outlook, sizes_of
from simulator.rates import datasheet_profile

SOLVED_FROM = (1, 2)
"""On one rank an accumulation of 1 takes the path of a larger one's first micro-batch, so 1 and 2 give the line."""


def expected(case: Case, recipe: Recipe) -> tuple[float, float]:
    """Predicted seconds of a micro-batch, and predicted need as a share of the memory."""
    sizes = sizes_of(case, recipe, np.array([recipe.micro_batch]))
    view = outlook(case, Choice.of(recipe), sizes, np.array([float(recipe.grad_accum)]))
    return float(view.times.micro_s[0]), float(view.memory.needed_bytes[0]) / memory_limit_bytes(case)


def measure(drawn: Path, out: Path, *, budget_s: float, measure_s: float, warm: bool = False) -> int:
    """Measure what is drawn, in its order, until the budget is spent; resumes. Returns how many records there are.

    ``warm``: the kernels of compiled shapes are on disk already, so their ``compile_s`` is left empty.
    """
    from calibration.local import LocalMeasurer

    begun, count = time.monotonic(), 0
    shared, alone = _read(drawn, measure_s)
    with LocalMeasurer() as measurer:
        for trials, share in ((shared, True), (alone, False)):
            left_s = budget_s - (time.monotonic() - begun)
            if not trials or left_s <= 0:
                continue
            records = run_campaign(
                trials,
                measurer,
                out,
                budget_s=left_s,
                share=share,
                judge=(lambda r: replace(r, compile_s=None)) if warm else (lambda r: r),
                on_progress=lambda done, total, r: _tell(time.monotonic() - begun, done, total, r),
            )
            count += len(records)
    return count


def _read(drawn: Path, measure_s: float) -> tuple[list[Trial], list[Trial]]:
    """The trials that may share a process, and those that are alone."""
    from calibration.machine import this_device, this_machine

    device, profile = this_device(), datasheet_profile(this_machine())
    found: tuple[list[Trial], list[Trial]] = ([], [])
    for line in drawn.read_text().splitlines():
        order = json.loads(line)
        workload, recipe = load_or_trace(order["model"]), Recipe(**order["recipe"])
        trial = make_trial(workload, recipe, profile, device, measure_s, 2.0 * recipe.grad_accum)
        found[bool(order.get("alone"))].append(replace(trial, solved_from=SOLVED_FROM))
    return found


def _tell(elapsed_s: float, done: int, total: int, record: Measurement) -> None:
    took = f"{elapsed_s:5.0f} s {done}/{total} {record.trial_s or 0:5.1f} s"
    sys.stderr.write(f"{took} {record.model} {record.status} {record.step_s} {(record.reason or '')[:100]}\n")
