"""The largest micro-batch that really runs on this machine: the memory model and at most three real runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from calibration.bisect import MOST_RUNS, Largest, Memories, Ran, largest_that_runs
from calibration.calibrate import journal_path
from calibration.campaign import Journal, Measurer, raise_if_all_failed
from calibration.verify import Verified, device_here, learn, local_measurer, run_fresh
from profiles import store
from profiles.errors import InvalidInputError
from profiles.schema import Measurement, Recipe
from simulator.case import Case
from simulator.components import Choice
from simulator.memory import FRAGMENTATION, PARTS
from simulator.outlook import memory_limit_bytes, outlook, sizes_of
from simulator.recipes import check, complete, format_recipe, parse_recipe
from simulator.techniques.batch import legal_batches

_MOVING = [PARTS.index(name) for name in ("activations", "logits_and_loss", "temporary")]


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestFound:
    """What the search proved, and its real runs in order.

    ``profile_path`` is ``None`` where no run gave a step time, so that there was nothing to learn.
    """

    largest: Largest
    recipe: Recipe
    verified: tuple[Verified, ...]
    profile_path: Path | None


def verify_largest(
    case: Case, *, on_progress: Callable[[str, float], None] | None = None, measurer: Measurer | None = None
) -> LargestFound:
    """Find the largest micro-batch that runs with the case's fixed knobs, by at most three real runs.

    Knobs that are not fixed are at their defaults. With a global batch, only micro-batches that make it are tried. Not
    even the smallest running is an answer too. Records go to the journal and into the fit, as those of ``verify`` do.

    Raises:
        InvalidInputError: the fixed knobs break rules, or no micro-batch makes the global batch.
        CampaignError: this is not the machine of the case, or no run told anything of memory.
    """
    device = device_here(case)
    recipes = sized_recipes(case)
    journal, runner = Journal(journal_path(case.machine.name)), measurer or local_measurer()
    verified: list[Verified] = []

    def run(micro_batch: int) -> Ran:
        if on_progress:
            on_progress(f"run {len(verified) + 1} of at most {MOST_RUNS}: {micro_batch=}", len(verified) / MOST_RUNS)
        limit = _guard_bytes(case, device)
        verified.append(run_fresh(case, recipes[micro_batch], False, device, runner, journal, limit))
        return ran(verified[-1].measured)

    try:
        found = largest_that_runs(memories(case, recipes), run)
    finally:
        runner.close()
    measured = [one.measured for one in verified]
    if not any(record.status == "oom" for record in measured):
        raise_if_all_failed(measured)
    path = None
    if any(record.status == "ok" for record in measured):
        path = store.save_profile(learn(case, measured, journal.path))
    recipe = recipes.get(found.micro_batch, next(iter(recipes.values())))
    return LargestFound(largest=found, recipe=recipe, verified=tuple(verified), profile_path=path)


def sized_recipes(case: Case) -> dict[int, Recipe]:
    """The case's recipe at every legal micro-batch, ascending.

    Raises:
        InvalidInputError: the fixed knobs break rules, or no micro-batch makes the global batch.
    """
    decided = {"micro_batch", "grad_accum"} if case.run.global_batch is not None else {"micro_batch"}
    fixed = {knob: value for knob, value in parse_recipe(case.fixed).items() if knob not in decided}
    batches = legal_batches(replace(case, fixed=fixed))
    pairs = list(zip(batches.micro_batch.tolist(), batches.grad_accum.tolist(), strict=True))
    if not pairs:
        raise InvalidInputError("--global-batch", [f"no micro-batch makes {case.run.global_batch} samples"])
    base = complete({**fixed, "micro_batch": pairs[0][0], "grad_accum": pairs[0][1]}, case)
    refusals = check(base, case)
    if refusals:
        raise InvalidInputError(f"recipe {format_recipe(base)}", [str(refusal) for refusal in refusals])
    return {size: replace(base, micro_batch=size, grad_accum=repeats) for size, repeats in pairs}


def memories(case: Case, recipes: Mapping[int, Recipe]) -> Memories:
    """What the memory model says of every recipe; they differ by batch alone."""
    base, fit = next(iter(recipes.values())), case.profile.fit
    grad_accum = np.array([float(recipe.grad_accum) for recipe in recipes.values()])
    peaks = outlook(case, Choice.of(base), sizes_of(case, base, np.array(list(recipes))), grad_accum).memory
    moving = peaks.parts[:, _MOVING].sum(axis=1)
    return Memories(
        micro_batches=tuple(recipes),
        fixed_bytes=peaks.peak_bytes - moving,
        moving_bytes=moving,
        scale_sd_log=fit.memory_sd_log,
        outside_bytes=float(fit.device_overhead_bytes),
        outside_sd_bytes=float(fit.device_overhead_sd_bytes),
        lost=FRAGMENTATION,
        limit_bytes=float(memory_limit_bytes(case)),
    )


def ran(record: Measurement) -> Ran:
    """What a record says of memory: one that failed for another reason says nothing."""
    if record.status != "ok":
        return Ran(fits=False if record.status == "oom" else None)
    device, reserved = record.peak_device_bytes, record.peak_reserved_bytes
    outside = None if device is None or reserved is None else max(0, device - reserved)
    return Ran(fits=True, peak_bytes=record.peak_bytes, outside_bytes=outside)


def _guard_bytes(case: Case, device: str) -> int | None:
    """What a run may take. A GPU refuses by itself; a host would start to end processes, so there it is capped."""
    if device != "cpu":
        return None
    return max(1, memory_limit_bytes(case) - case.profile.fit.device_overhead_bytes)
