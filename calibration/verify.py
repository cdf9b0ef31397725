"""Verify: real runs of the top predictions, predicted against measured, and what they show goes back into the fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from calibration.calibrate import MEASURE_S, finished, journal_path, refit
from calibration.campaign import Journal, Measurer, measure_trial, raise_if_all_failed
from calibration.candidates import make_trial
from calibration.gate import gated
from calibration.question import load_or_trace
from profiles import store
from profiles.errors import CampaignError, PacelineError
from profiles.schema import Measurement, Profile, Recipe, Workload
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
    device = _here(case)
    journal = Journal(journal_path(case.machine.name))
    chosen = [(p.recipe, False) for p in plan(case, top).recipes]
    chosen += [(recipe, True) for recipe in draw(case, extra_random, seed, _known_records(journal.path))]
    runner = measurer or _local()
    verified: list[Verified] = []
    try:
        for index, (recipe, drawn) in enumerate(chosen):
            if on_progress:
                on_progress(f"run {index + 1} of {len(chosen)}", index / len(chosen))
            verified.append(_run(case, recipe, drawn, device, runner, journal))
    finally:
        runner.close()
    raise_if_all_failed([v.measured for v in verified])
    profile = learn(case, [v.measured for v in verified], journal.path)
    path = store.save_profile(profile)
    return Verification(verified=tuple(verified), best=plan(replace(case, profile=profile), 1).best, profile_path=path)


def _here(case: Case) -> str:
    from calibration.machine import this_device, this_machine

    here = this_machine()
    if case.machine.gpu.name != here.gpu.name or case.ranks != 1:
        raise CampaignError(f"this machine is {here.name}; {case.machine.name} can only be verified where it is")
    return this_device()


def _local() -> Measurer:
    from calibration.local import LocalMeasurer

    return LocalMeasurer()


def _run(case: Case, recipe: Recipe, drawn: bool, device: str, measurer: Measurer, journal: Journal) -> Verified:
    """Always a fresh run: verification never trusts an old record."""
    predicted = predict(case, recipe)
    trial = make_trial(case.workload, recipe, case.profile, device, VERIFY_FACTOR * MEASURE_S[device], predicted.step_s)
    measured = measure_trial(trial, measurer, journal, lambda r: gated(r, case.workload, case.profile))
    error = None
    if measured.status == "ok" and measured.step_s:
        error = (predicted.step_s - measured.step_s) / measured.step_s
    return Verified(recipe=recipe, predicted=predicted, measured=measured, error=error, drawn=drawn)


def draw(case: Case, count: int, seed: int, known: Sequence[Measurement]) -> list[Recipe]:
    """``count`` recipes drawn at random from those that fit, none of them measured before."""
    if not count:
        return []
    space = enumerate_space(case)
    fitting = np.flatnonzero(score(case, space).fits)
    seen = {(r.model, replace(r.recipe, grad_accum=1)) for r in known}
    order = np.random.default_rng(seed).permutation(fitting)
    drawn: list[Recipe] = []
    for index in order:
        recipe = space.recipe(int(index))
        if (case.workload.name, replace(recipe, grad_accum=1)) not in seen:
            drawn.append(recipe)
        if len(drawn) == count:
            break
    return drawn


def learn(case: Case, fresh: Sequence[Measurement], journal: Path) -> Profile:
    """The case's profile fitted to the journal's records and the fresh ones, which it keeps as verified."""
    records = list(_known_records(journal))
    profile = refit(case.profile, records, _workloads(records, case.workload))
    profile = finished(profile, records or list(fresh), journal, None)
    verified = [r for r in (*case.profile.verified, *fresh) if r.status == "ok"]
    return replace(profile, verified=tuple(verified[-50:]))


def _known_records(path: Path) -> Sequence[Measurement]:
    from profiles.records import read_measurements

    return read_measurements(path) if path.exists() else ()


def _workloads(records: Sequence[Measurement], own: Workload) -> dict[str, Workload]:
    """The workload of every recorded model that can still be found."""
    known = {own.name: own}
    for name in {r.model for r in records} - {own.name}:
        try:
            known[name] = load_or_trace(name)
        except PacelineError:
            continue
    return known
