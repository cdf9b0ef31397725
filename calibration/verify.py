"""Verify: real runs of the top predictions, predicted against measured, and what they show goes back into the fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from calibration.calibrate import MEASURE_S, finished, journal_path, known_records, known_workloads, refit
from calibration.campaign import Journal, Measurer, estimate_campaign_s, measure_trial, raise_if_all_failed
from calibration.candidates import make_trial
from calibration.gate import gated
from calibration.trial import Trial
from profiles import store
from profiles.errors import CampaignError
from profiles.schema import Measurement, Profile, Recipe
from simulator.case import Case
from simulator.planning import plan, predict, score
from simulator.results import Prediction
from simulator.space import enumerate_space

VERIFY_FACTOR = 2.0
"""Verification measures for this many times as long as calibration does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """One recipe, what was predicted before it ran, and what was measured.

    ``error`` is (predicted − measured) / measured; ``drawn`` says that it was drawn at random.
    """

    recipe: Recipe
    predicted: Prediction
    measured: Measurement
    error: float | None
    drawn: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """All runs, and the best recipe after they went into the fit."""

    verified: tuple[Verified, ...]
    best: Prediction
    profile_path: Path


def verify(
    case: Case,
    *,
    top: int = 3,
    extra_random: int = 0,
    seed: int = 0,
    on_progress: Callable[[str, float], None] | None = None,
    measurer: Measurer | None = None,
) -> Verification:
    """Run the ``top`` predictions and ``extra_random`` recipes drawn from the space that nobody measured.

    Raises:
        InfeasibleError: nothing fits or keeps the limits.
        CampaignError: this is not the machine of the case, or every run failed; carries the first error.
    """
    device = device_here(case)
    journal = Journal(journal_path(case.machine.name))
    best = [p.recipe for p in plan(case, top).recipes]
    drawn_now = draw(case, extra_random, seed, known_records(case.profile, journal.path), best)
    chosen = [(recipe, False) for recipe in best] + [(recipe, True) for recipe in drawn_now]
    runner = measurer or local_measurer()
    if on_progress:
        on_progress(f"{len(chosen)} runs, about {_estimate_s(case, [r for r, _ in chosen], device):.0f} s", 0.0)
    verified: list[Verified] = []
    try:
        for index, (recipe, drawn) in enumerate(chosen):
            if on_progress:
                on_progress(f"run {index + 1} of {len(chosen)}", index / len(chosen))
            verified.append(run_fresh(case, recipe, drawn, device, runner, journal))
    finally:
        runner.close()
    raise_if_all_failed([v.measured for v in verified])
    profile = learn(case, [v.measured for v in verified], journal.path)
    path = store.save_profile(profile)
    return Verification(verified=tuple(verified), best=plan(replace(case, profile=profile), 1).best, profile_path=path)


def _estimate_s(case: Case, recipes: Sequence[Recipe], device: str) -> float:
    """Seconds that the runs will take, from their predicted step times."""
    steps = [predict(case, recipe).step_s for recipe in recipes]
    trials = [_trial(case, recipe, device, step_s) for recipe, step_s in zip(recipes, steps, strict=True)]
    return estimate_campaign_s(trials, steps)


def _trial(case: Case, recipe: Recipe, device: str, step_s: float) -> Trial:
    return make_trial(case.workload, recipe, case.profile, device, VERIFY_FACTOR * MEASURE_S[device], step_s)


def device_here(case: Case) -> str:
    """The device of this machine, if it is the case's.

    Raises:
        CampaignError: it is another machine.
    """
    from calibration.machine import this_device, this_machine

    here = this_machine()
    if case.machine.gpu.name != here.gpu.name or case.ranks != 1:
        raise CampaignError(f"this machine is {here.name}; {case.machine.name} can only be verified where it is")
    return this_device()


def local_measurer() -> Measurer:
    """Measures on this machine."""
    from calibration.local import LocalMeasurer

    return LocalMeasurer()


def run_fresh(
    case: Case,
    recipe: Recipe,
    drawn: bool,
    device: str,
    measurer: Measurer,
    journal: Journal,
    limit_bytes: int | None = None,
) -> Verified:
    """Always a fresh run: verification never trusts an old record. ``limit_bytes`` caps what it may allocate."""
    predicted = predict(case, recipe)
    trial = replace(_trial(case, recipe, device, predicted.step_s), limit_bytes=limit_bytes)
    measured = measure_trial(trial, measurer, journal, lambda r: gated(r, case.workload, case.profile))
    error = None
    if measured.status == "ok" and measured.step_s:
        error = (predicted.step_s - measured.step_s) / measured.step_s
    return Verified(recipe=recipe, predicted=predicted, measured=measured, error=error, drawn=drawn)


def draw(case: Case, count: int, seed: int, known: Sequence[Measurement], taken: Sequence[Recipe] = ()) -> list[Recipe]:
    """``count`` recipes drawn at random from those that fit, none of them measured before or among ``taken``."""
    if not count:
        return []
    space = enumerate_space(case)
    fitting = np.flatnonzero(score(case, space).fits)
    seen = {_alike(case, r) for r in (*taken, *(k.recipe for k in known if k.model == case.workload.name))}
    drawn: list[Recipe] = []
    for index in np.random.default_rng(seed).permutation(fitting):
        recipe = space.recipe(int(index))
        if _alike(case, recipe) not in seen:
            drawn.append(recipe)
        if len(drawn) == count:
            break
    return drawn


def _alike(case: Case, recipe: Recipe) -> Recipe:
    """The recipe with its lengths filled in, whatever it accumulates."""
    return replace(recipe, grad_accum=1, seq=case.seq(recipe), decoder_seq=case.decoder_seq(recipe))


def learn(case: Case, fresh: Sequence[Measurement], journal: Path) -> Profile:
    """The case's profile fitted to its own records, the journal's and the fresh ones, which it keeps as verified.

    Running out of memory is kept too, so that no plan proposes again what has just run out of memory.
    """
    records = known_records(case.profile, journal)
    profile = refit(case.profile, records, known_workloads(records, {case.workload.name: case.workload}))
    profile = finished(profile, records or list(fresh), journal, None)
    verified = [r for r in (*case.profile.verified, *fresh) if r.status in {"ok", "oom"}]
    files = tuple(dict.fromkeys((*case.profile.measurement_files, *profile.measurement_files)))
    return replace(profile, provenance="measured", verified=tuple(verified[-50:]), measurement_files=files)
