"""The runs that a calibration may choose from, and the recipes whose predictions it is for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from calibration.campaign import estimate_trial_s
from calibration.trial import Trial
from profiles.schema import Profile, Recipe, Workload
from simulator.case import Case, Run
from simulator.components import Choice
from simulator.outlook import Outlook, memory_limit_bytes, outlook, sizes_of
from simulator.recipes import check, complete
from simulator.steptime import gradient, log_factors
from simulator.techniques.optimizer import OPTIMIZERS

FloatArray = NDArray[np.float64]
MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
EDGE = 0.97
"""Candidates are predicted to stay below this share of the device's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Candidate trials with their component seconds; rows and trials in the same order."""

    trials: tuple[Trial, ...]
    seconds: FloatArray
    grad_accum: FloatArray
    fixed_cost_s: FloatArray
    needed_bytes: FloatArray

    def shares(self, profile: Profile) -> FloatArray:
        """∂ log step time / ∂ log factor under the profile's present fit."""
        return gradient(self.seconds, self.grad_accum, log_factors(profile.fit))


def recipes_of(case: Case, seqs: Sequence[int], compiles: bool) -> list[Recipe]:
    """Legal recipes on a coarse grid: every technique's values, micro-batches and lengths spread out."""
    base = complete({"micro_batch": 1, "grad_accum": 1}, case)
    precisions = ("bf16", "fp16", "tf32", "fp32", "bf16_pure")
    axes = product(precisions, ("sdpa", "eager"), ("none", "full", "every_2"), ("off", "on") if compiles else ("off",))
    combinations = [replace(base, precision=p, attention=a, checkpointing=c, compile=k) for p, a, c, k in axes] + [
        replace(base, optimizer=o) for o in OPTIMIZERS if o != base.optimizer
    ]
    sized = [replace(r, seq=s) for r in combinations if not check(r, case) for s in seqs]
    legal = [r for r in sized if not check(r, case)]
    return [replace(r, micro_batch=b) for r in legal for b in MICRO_BATCHES]


def lengths(workload: Workload, seqs: Sequence[int]) -> tuple[int, ...]:
    """Lengths to measure at: those asked for, else the model's own and shorter ones."""
    if workload.fixed_seq:
        return (workload.seq,)
    return tuple(seqs) or tuple(s for s in (workload.seq, workload.seq // 2, workload.seq // 4) if s >= 16)


def build_pool(
    workloads: Mapping[str, Workload],
    profile: Profile,
    *,
    device: str,
    seqs: Sequence[int],
    measure_s: float,
    max_trial_s: float,
) -> Pool:
    """Every candidate that is predicted to fit and to take at most ``max_trial_s``."""
    trials: list[Trial] = []
    rows: list[FloatArray] = []
    costs: list[float] = []
    needed: list[float] = []
    for workload in workloads.values():
        case = Case(workload=workload, profile=profile, run=Run())
        for recipe, view in _views(case, recipes_of(case, lengths(workload, seqs), compiles=device == "cuda")):
            trial = make_trial(workload, recipe, profile, device, measure_s, float(view.times.step_s[0]))
            cost_s = estimate_trial_s(trial, float(view.times.step_s[0]))
            if cost_s <= max_trial_s and view.memory.peak_bytes_high[0] <= EDGE * memory_limit_bytes(case):
                trials.append(trial)
                rows.append(view.seconds[0])
                costs.append(cost_s)
                needed.append(float(view.memory.needed_bytes[0]))
    return Pool(
        trials=tuple(trials),
        seconds=np.array(rows),
        fixed_cost_s=np.array(costs),
        needed_bytes=np.array(needed),
        grad_accum=np.array([float(t.recipe.grad_accum) for t in trials]),
    )


def _views(case: Case, recipes: Iterable[Recipe]) -> Iterable[tuple[Recipe, Outlook]]:
    for recipe in recipes:
        sizes = sizes_of(case, recipe, np.array([recipe.micro_batch]))
        yield recipe, outlook(case, Choice.of(recipe), sizes, np.array([float(recipe.grad_accum)]))


def make_trial(
    workload: Workload,
    recipe: Recipe,
    profile: Profile,
    device: str,
    measure_s: float,
    step_s: float,
    model: str | None = None,
) -> Trial:
    """The order to measure one recipe; it may take 20 times as long as predicted before it is given up."""
    compile_s = 240.0 if recipe.compile == "on" else 0.0
    return Trial(
        model=model or workload.name,
        recipe=recipe,
        machine=profile.machine.name,
        device="cuda" if device == "cuda" else "cpu",
        measure_s=measure_s,
        config_hash=workload.config_hash,
        timeout_s=60.0 + compile_s + 20.0 * (step_s / recipe.grad_accum * 8 + measure_s),
    )
