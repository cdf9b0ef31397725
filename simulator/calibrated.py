"""The calibrated range: which knobs and sizes of a recipe left it, and by how much that widens the interval."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiles.schema import Fit, Recipe, Workload
from simulator.case import Case
from simulator.techniques.checkpointing import checkpointing_interval

BEYOND_SD_LOG = 0.04
"""Added to the standard deviation per factor of e by which a size leaves the calibrated range."""
UNSEEN_MODEL_SD_LOG = 0.06
"""Added for a model that was not measured: what leaving one of six models out of an H200's records adds."""
UNSEEN_VALUE_SD_LOG = 0.03
"""Added per knob whose value no run had: what the components' own priors don't say of it."""
CHOICES = ("precision", "attention", "compile", "checkpointing", "optimizer")
SIZES = ("micro_batch", "seq", "depth", "width")
_WIDTH_FIELDS = ("hidden_size", "n_embd", "d_model", "dim", "n_embed")


def beyond(case: Case, recipe: Recipe, fit: Fit | None = None) -> dict[str, tuple[float, str]]:
    """Per knob, ``model`` or size that left the calibrated range: the sd of log step time it adds, and why in words.

    Empty without any measurement: the rates' own spread is then all that is known. ``fit`` stands in for the case's.
    """
    fit = fit or case.profile.fit
    return dict(_beyond(case, recipe, fit)) if fit.measurements else {}


def beyond_sd_log(case: Case, recipe: Recipe, fit: Fit | None = None) -> float:
    """The standard deviation of log step time that everything beyond the calibrated range adds together."""
    return sum(sd for sd, _ in beyond(case, recipe, fit).values())


def _beyond(case: Case, recipe: Recipe, fit: Fit) -> Iterator[tuple[str, tuple[float, str]]]:
    for knob in CHOICES:
        value, known = str(getattr(recipe, knob)), fit.calibrated.get(knob, ())
        if known and not _covered(knob, value, known):
            yield knob, (UNSEEN_VALUE_SD_LOG, f"{knob}={value} was not calibrated (calibrated: {', '.join(known)})")
    name = case.workload.name
    if fit.models and name not in fit.models:
        yield (
            "model",
            (UNSEEN_MODEL_SD_LOG, f"{name} was not measured here (calibrated: {', '.join(fit.models)})"),
        )
    for knob, size in sizes_of_recipe(case, recipe).items():
        limits = calibrated_range(fit, knob)
        if limits and size and not limits[0] <= size <= limits[1]:
            sd = float(size_sd_log(fit, knob, np.array([size]))[0])
            yield knob, (sd, f"{knob}={size} is outside the calibrated range {limits[0]:g} to {limits[1]:g}")


def size_sd_log(fit: Fit, knob: str, sizes: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
    """What each of these values of a size adds: 0 inside the calibrated range, or where there is none."""
    low, high = calibrated_range(fit, knob) or (1.0, math.inf)
    added: NDArray[np.float64] = BEYOND_SD_LOG * np.maximum(0.0, np.log(np.maximum(low / sizes, sizes / high)))
    return added


def _covered(knob: str, value: str, known: tuple[str, ...]) -> bool:
    """Whether a value was measured, or lies between such: the more blocks are computed again, the longer it takes."""
    if knob != "checkpointing":
        return value in known
    shares = [_recomputed(one) for one in known]
    return min(shares) <= _recomputed(value) <= max(shares)


def _recomputed(checkpointing: str) -> float:
    """Share of the blocks that are computed again."""
    interval = checkpointing_interval(checkpointing)
    return 1.0 / interval if interval else 0.0


def sizes_of_recipe(case: Case, recipe: Recipe) -> dict[str, int | None]:
    """What a size is in this case: micro-batch, length, blocks, hidden size; ``None`` where it cannot be told."""
    return {
        "micro_batch": recipe.micro_batch,
        "seq": case.seq(recipe),
        "depth": depth_of(case.workload),
        "width": width_of(case.workload),
    }


def calibrated_range(fit: Fit, size: str) -> tuple[float, float] | None:
    """Lowest and highest calibrated value of a size; ``None`` where the fit does not say."""
    told = fit.calibrated.get(size)
    if not told:
        return None
    low, high = (float(value) for value in told)
    return low, high


def depth_of(workload: Workload) -> int | None:
    """Blocks of the deepest stack; without stacks, what the config calls layers."""
    return max((stack.depth for stack in workload.stacks), default=workload.layers) or None


def width_of(workload: Workload) -> int | None:
    """Hidden size by the config; of nested configs the largest. ``None`` where there is none, or one per stage."""
    return max(_widths(workload.config), default=None)


def _widths(config: Mapping[str, Any]) -> Iterator[int]:
    own = next((config[name] for name in _WIDTH_FIELDS if type(config.get(name)) is int), None)
    if own is not None:
        yield own
    for part in config.values():
        if isinstance(part, Mapping):
            yield from _widths(part)


def with_measured(fit: Fit, case: Case, recipe: Recipe) -> Fit:
    """The fit's calibrated range once this recipe has been measured too; its factors stay as they are."""
    known = dict(fit.calibrated)
    for knob in CHOICES:
        if known.get(knob):
            known[knob] = tuple(sorted({*known[knob], str(getattr(recipe, knob))}))
    for knob, size in sizes_of_recipe(case, recipe).items():
        limits = calibrated_range(fit, knob)
        if limits and size:
            known[knob] = (str(min(limits[0], size)), str(max(limits[1], size)))
    models = tuple(sorted({*fit.models, case.workload.name})) if fit.models else fit.models
    return replace(fit, calibrated=known, models=models)
