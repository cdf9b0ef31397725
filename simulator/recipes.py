"""Recipes as people write them: parsing, defaults, rules, and the text form."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from profiles.errors import InvalidInputError, UnknownNameError
from profiles.schema import Recipe
from simulator.case import Case
from simulator.techniques import TECHNIQUES, Refusal, Technique, Value

ALWAYS_SHOWN = ("micro_batch", "precision", "attention")
"""Knobs whose default depends on the case; hidden, they would not parse back to themselves."""
BY_KNOB: dict[str, Technique] = {technique.knob: technique for technique in TECHNIQUES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmodelled:
    """A knob that this version does not model: accepted at its neutral value, and ``known`` values are recognised."""

    neutral: str
    known: tuple[str, ...]


UNMODELLED: dict[str, Unmodelled] = {
    "sharding": Unmodelled(neutral="none", known=("zero1", "zero2", "zero3", "fsdp_grad", "fsdp_full", "hybrid")),
    "offload": Unmodelled(neutral="none", known=("optimizer", "all")),
    "tp": Unmodelled(neutral="1", known=("a degree",)),
    "pp": Unmodelled(neutral="1", known=("a degree",)),
    "schedule": Unmodelled(neutral="none", known=("gpipe", "1f1b", "interleaved", "zero_bubble")),
    "method": Unmodelled(neutral="plain", known=("layer_stacking", "layer_dropping", "selective_backprop", "rho_loss")),
}
UNMODELLED_VALUES: dict[str, tuple[str, ...]] = {
    "precision": ("bf16_master", "fp16_master"),
    "optimizer": ("sophia", "adamw_8bit"),
}


def parse_recipe(source: str | Mapping[str, object]) -> dict[str, Value]:
    """The knobs that ``micro_batch=16,precision=bf16``, a JSON object or a mapping names, with their values.

    A JSON null for a knob that may be unset means not named.

    Raises:
        InvalidInputError: with all problems at once: unknown knobs with the nearest ones, values with what is
            allowed, knobs named twice, knobs that this version does not model.
    """
    problems: list[str] = []
    values: dict[str, Value] = {}
    seen: set[str] = set()
    for knob, value in _pairs(source):
        if knob in seen:
            problems.append(f"{knob} is named twice; name it once")
            continue
        seen.add(knob)
        try:
            values.update(_parse_knob(knob, value))
        except ValueError as problem:
            problems.append(str(problem))
    if problems:
        raise InvalidInputError("recipe", problems)
    return values


def _pairs(source: str | Mapping[str, object]) -> list[tuple[str, object]]:
    if isinstance(source, Mapping):
        return list(source.items())
    if source.lstrip().startswith("{"):
        return _json_pairs(source)
    parts = [part.partition("=") for part in source.split(",")] if source.strip() else []
    broken = [knob + sign for knob, sign, value in parts if not (knob.strip() and sign and value.strip())]
    if broken:
        problems = [f"{part.strip()!r} is not knob=value; write micro_batch=16,precision=bf16" for part in broken]
        raise InvalidInputError("recipe", problems)
    return [(knob.strip(), value.strip()) for knob, _, value in parts]


def _json_pairs(text: str) -> list[tuple[str, object]]:
    try:
        pairs = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError) as error:  # a number may have too many digits to be read
        reason = str(error).partition(";")[0]
        raise InvalidInputError("recipe", [f"not a JSON object that can be used: {reason}"]) from None
    return [(str(knob), value) for knob, value in pairs]


def _parse_knob(knob: str, value: object) -> dict[str, Value]:
    """The parsed value under its knob; empty for a neutral or unset one."""
    technique = BY_KNOB.get(knob)
    if technique is None and knob not in UNMODELLED:
        raise ValueError(UnknownNameError("knob", knob, [*BY_KNOB, *UNMODELLED]).problems[0])
    if value is None and (technique is None or getattr(Recipe(), knob) is None):
        return {}
    if not isinstance(value, str | int) or isinstance(value, bool):
        allowed = technique.allowed if technique else UNMODELLED[knob].neutral
        raise ValueError(f"{knob}={json.dumps(value, default=str)} is not allowed; allowed: {allowed}")
    if technique is None:
        return _neutral(knob, str(value))
    if value in UNMODELLED_VALUES.get(knob, ()):
        raise ValueError(f"{knob}={value} is not modelled by this version; allowed: {technique.allowed}")
    return {knob: technique.parse(str(value))}


def _neutral(knob: str, value: str) -> dict[str, Value]:
    unmodelled = UNMODELLED[knob]
    if value == unmodelled.neutral:
        return {}
    known = value in unmodelled.known or (unmodelled.neutral.isdigit() and value.isdigit())
    problem = "is not modelled by this version" if known else "is not a known value"
    raise ValueError(f"{knob}={value} {problem}; allowed: {unmodelled.neutral}")


def recipe_of(values: Mapping[str, object]) -> Recipe:
    """The recipe with these knobs and the stored defaults elsewhere."""
    typed: dict[str, Any] = dict(values)
    return Recipe(**typed)


def complete(fixed: Mapping[str, object], case: Case) -> Recipe:
    """The recipe that ``predict`` uses: the fixed knobs, and each other one at its default for the case.

    It may still be illegal; see ``check``.
    """
    wanted = replace(case, fixed={**case.fixed, **fixed})
    defaults = {knob: technique.default(wanted) for knob, technique in BY_KNOB.items() if knob not in wanted.fixed}
    return recipe_of({**defaults, **wanted.fixed})


def check(recipe: Recipe, case: Case) -> list[Refusal]:
    """Every rule that the recipe breaks, in the order of ``TECHNIQUES``; empty if it is legal.

    Values outside a knob's domain are reported alone, since no other rule can be asked about them.
    """
    foreign = [refusal for technique in TECHNIQUES if (refusal := _foreign(technique, recipe))]
    return foreign or broken_rules(recipe, case, TECHNIQUES)


def broken_rules(recipe: Recipe, case: Case, techniques: Iterable[Technique]) -> list[Refusal]:
    """The refusals of these techniques for a recipe whose values are all of their knobs' domains."""
    return [refusal for technique in techniques if (refusal := technique.refuse(recipe, case))]


def _foreign(technique: Technique, recipe: Recipe) -> Refusal | None:
    value = getattr(recipe, technique.knob)
    if value is None:
        return None
    try:
        technique.parse(str(value))
    except ValueError as problem:
        return Refusal(knob=technique.knob, rule="value", reason=str(problem))
    return None


def format_recipe(recipe: Recipe, defaults_hidden: bool = True) -> str:
    """Text that parses back to the same recipe; knobs at their stored default are left out where every case has it."""
    named = {field.name: (getattr(recipe, field.name), field.default) for field in fields(recipe)}
    shown = {
        knob: value
        for knob, (value, default) in named.items()
        if value is not None and (knob in ALWAYS_SHOWN or not defaults_hidden or value != default)
    }
    return ",".join(f"{knob}={value}" for knob, value in shown.items())
