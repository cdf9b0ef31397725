"""The space: every legal recipe of a case, as columns of numpy arrays.

Rules are asked once per combination of the categorical knobs, never per recipe; the batch knobs are one table of
legal pairs, and the space is the product of both.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from profiles.errors import InvalidInputError
from profiles.schema import Recipe
from simulator.case import Case
from simulator.recipes import broken_rules, check, complete, parse_recipe, recipe_of
from simulator.techniques import BATCH_KNOBS, TECHNIQUES, Refusal, Technique, Value
from simulator.techniques.batch import Batches, IntArray, legal_batches

AXES: tuple[Technique, ...] = tuple(technique for technique in TECHNIQUES if technique.knob not in BATCH_KNOBS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Space:
    """Legal recipes: combination by combination, and within one by rising micro-batch.

    ``combinations`` are recipes of which only the batch knobs are left open; ``combination`` says which one each
    recipe has, and ``codes[knob]`` is the index into ``values[knob]``. ``refused`` counts recipes per rule, each under
    the first rule that it breaks.
    """

    micro_batch: IntArray
    grad_accum: IntArray
    combination: IntArray
    combinations: tuple[Recipe, ...]
    codes: dict[str, NDArray[np.int16]]
    values: dict[str, tuple[Value, ...]]
    refused: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        """How many recipes."""
        return len(self.micro_batch)

    def recipe(self, index: int) -> Recipe:
        """One recipe."""
        return replace(
            self.combinations[int(self.combination[index])],
            micro_batch=int(self.micro_batch[index]),
            grad_accum=int(self.grad_accum[index]),
        )

    def block(self, combination: int) -> slice:
        """Where the recipes of one combination stand."""
        count = len(self) // len(self.combinations)
        return slice(combination * count, (combination + 1) * count)


def enumerate_space(case: Case) -> Space:
    """Every legal recipe of the case; knobs in ``case.fixed`` keep their value.

    Raises:
        InvalidInputError: a fixed value does not exist, or nothing is legal because of fixed values or a global batch
            that the ranks cannot make; each with its rule and the nearest legal alternative.
    """
    case = replace(case, fixed=parse_recipe(case.fixed))
    values = {axis.knob: _axis_values(axis, case) for axis in AXES}
    combinations = [recipe_of(dict(zip(values, choice, strict=True))) for choice in itertools.product(*values.values())]
    refusals = [broken_rules(combination, case, AXES) for combination in combinations]
    legal = tuple(recipe for recipe, broken in zip(combinations, refusals, strict=True) if not broken)
    batches = legal_batches(case)
    if not legal or not len(batches.micro_batch):
        raise InvalidInputError("no legal recipe", _blockers(refusals, batches, case))
    refused = _refused(refusals, len(legal), batches)
    return _product(legal, batches, values, refused)


def _axis_values(axis: Technique, case: Case) -> tuple[Value, ...]:
    fixed = case.fixed.get(axis.knob)
    return (fixed,) if isinstance(fixed, str | int) else axis.values(case)


def _refused(refusals: Iterable[list[Refusal]], legal: int, batches: Batches) -> dict[str, int]:
    counts = Counter(broken[0].rule for broken in refusals if broken)
    refused = {rule: count * batches.candidates for rule, count in counts.items()}
    return refused | {rule: count * legal for rule, count in batches.refused.items()}


def _product(
    legal: tuple[Recipe, ...], batches: Batches, values: dict[str, tuple[Value, ...]], refused: dict[str, int]
) -> Space:
    """All combinations × all legal batches."""
    count = len(batches.micro_batch)
    codes = {
        knob: np.repeat(np.array([known.index(getattr(one, knob)) for one in legal], dtype=np.int16), count)
        for knob, known in values.items()
    }
    return Space(
        micro_batch=np.tile(batches.micro_batch, len(legal)),
        grad_accum=np.tile(batches.grad_accum, len(legal)),
        combination=np.repeat(np.arange(len(legal), dtype=np.int64), count),
        combinations=legal,
        codes=codes,
        values=values,
        refused=refused,
    )


def _blockers(refusals: list[list[Refusal]], batches: Batches, case: Case) -> list[str]:
    """Why nothing is legal: what refuses every combination, else everything that refuses some; and the batch."""
    texts = [[str(refusal) for refusal in broken] for broken in refusals]
    problems: list[str] = []
    if all(texts):
        everywhere = [text for text in texts[0] if all(text in others for others in texts)]
        problems = everywhere or sorted({text for others in texts for text in others})
    if not len(batches.micro_batch):
        problems += [str(refusal) for refusal in check(complete({}, case), case) if refusal.knob in BATCH_KNOBS]
    return problems
