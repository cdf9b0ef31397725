"""Picking without a cost model: what an experienced researcher would try first, and any recipe that fits.

Both know by trial which recipes fit, and neither looks at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from calibration.regret import Cell, Ranking, Regret, if_ran, regret_scores
from profiles.schema import Recipe

FloatArray = NDArray[np.float64]
HABITS: dict[str, tuple[str, ...]] = {
    "precision": ("bf16", "fp16", "bf16_pure", "tf32", "fp32"),
    "attention": ("sdpa", "eager"),
    "compile": ("on", "off"),
    "optimizer": ("adamw_fused", "adamw_foreach", "adamw_forloop"),
}
"""What the field chooses first, knob by knob; values that are not named come last."""
LADDER: tuple[Mapping[str, str], ...] = (
    {},
    {"sharding": "zero1"},
    {"checkpointing": "full"},
    {"sharding": "zero1", "checkpointing": "full"},
    {"sharding": "zero3", "checkpointing": "full"},
    {"sharding": "zero3", "checkpointing": "full", "offload": "all"},
)
"""What to give up for memory, one step at a time; knobs that a step does not name are at ``none``.

A recipe of one GPU has no sharding and no offload, so only the first and the third step are left.
"""
MEMORY_KNOBS = ("sharding", "checkpointing", "offload")


def researcher(cell: Cell) -> FloatArray:
    """Places in the order of trying: the habits, then the least given up for memory, then the largest micro-batch."""
    keys = [_key(candidate.recipe) for candidate in cell.candidates]
    places = {key: float(place) for place, key in enumerate(sorted(set(keys)), start=1)}
    return np.array([places[key] for key in keys])


def _key(recipe: Recipe) -> tuple[int, ...]:
    habits = [_place(values, getattr(recipe, knob)) for knob, values in HABITS.items()]
    given_up = {knob: str(getattr(recipe, knob, "none")) for knob in MEMORY_KNOBS}
    steps = [{knob: step.get(knob, "none") for knob in MEMORY_KNOBS} for step in LADDER]
    return (*habits, steps.index(given_up) if given_up in steps else len(steps), -recipe.micro_batch)


def _place(values: Sequence[str], value: str) -> int:
    return values.index(value) if value in values else len(values)


def any_that_fits(cell: Cell) -> FloatArray:
    """All equal: a recipe drawn uniformly from those that fit."""
    return np.ones(len(cell.candidates))


RULES: dict[str, Ranking] = {"researcher": researcher, "random": any_that_fits}


def rule_scores(cells: Sequence[Cell]) -> dict[str, Regret]:
    """Regret of every rule; of ``random`` the expectation over all draws."""
    return {name: regret_scores(cells, rule, if_ran) for name, rule in RULES.items()}
