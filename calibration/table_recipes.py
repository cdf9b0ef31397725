"""The recipe that a row of a table ran, and what of it this version does not model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from calibration.table_aliases import Aliases
from calibration.table_columns import Cells
from profiles.schema import Gpu
from simulator.recipes import BY_KNOB, UNMODELLED, UNMODELLED_VALUES, Unmodelled
from simulator.techniques.precision import PRECISIONS, product_flops_per_s

COLUMN_OF = {
    "precision": "precision",
    "attention": "attention",
    "checkpointing": "act_ckpt",
    "compile": "compile",
    "optimizer": "optimizer",
    "sharding": "zero_stage_or_sharding",
    "offload": "offload",
    "schedule": "schedule",
}
"""Knob → column that holds its value as text."""
FOREIGN: dict[str, Unmodelled] = {
    knob: unmodelled
    for knob, unmodelled in {**UNMODELLED, "cp": Unmodelled(neutral="1", known=("a degree",))}.items()
    if knob not in BY_KNOB
}
"""Knobs that a row may only have at their neutral value: one leaves this table when a technique declares it."""
FOREIGN_VALUES: dict[str, tuple[str, ...]] = {**UNMODELLED_VALUES, "checkpointing": ("selective",)}
"""Values of modelled knobs that are understood and not modelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Values of a row's knobs as text; ``blank`` names those that its cells leave out and their assumed values."""

    values: dict[str, str]
    blank: dict[str, str]

    def foreign(self) -> dict[str, str]:
        """The knobs whose values this version does not model."""
        return {knob: value for knob, value in self.values.items() if is_foreign(knob, value)}

    def modelled(self) -> dict[str, str]:
        """The values of the knobs that a recipe of this version has."""
        return {knob: value for knob, value in self.values.items() if knob in BY_KNOB}


def is_foreign(knob: str, value: str) -> bool:
    """Whether a value is understood and not modelled by this version."""
    if knob in FOREIGN:
        return value != FOREIGN[knob].neutral
    return value in FOREIGN_VALUES.get(knob, ())


def knobs_of(cells: Cells, degrees: Mapping[str, int], gpu: Gpu, aliases: Aliases, problems: list[str]) -> Knobs:
    """The knobs of a row; what cannot be mapped is added to ``problems``."""
    values, blank = _degrees(degrees), dict[str, str]()
    for knob, column in COLUMN_OF.items():
        if knob == "schedule" and values["pp"] == "1":
            continue
        text = cells.text.get(column)
        if text is not None:
            values.update(_mapped(knob, column, text, aliases, problems))
        elif (assumed := _assumed(knob, gpu, degrees, aliases)) is not None:
            values[knob] = assumed
            blank[knob] = assumed
    problems.extend(_without_product(values.get("precision", ""), gpu))
    return Knobs(values=values, blank=blank)


def _degrees(degrees: Mapping[str, int]) -> dict[str, str]:
    return {knob: str(degree) for knob, degree in degrees.items() if knob != "dp"}


def _mapped(knob: str, column: str, text: str, aliases: Aliases, problems: list[str]) -> dict[str, str]:
    value = aliases.meaning(knob, text)
    if value is None:
        value = text.lower() if _is_value(knob, text.lower()) else None
    if value is not None:
        return {knob: value}
    problems.append(f"{column} is {text!r}, which no alias maps to a recipe value; known: {aliases.known(knob)}")
    return {}


def _is_value(knob: str, text: str) -> bool:
    """Whether a text is a value of the recipe as it stands."""
    if knob in FOREIGN:
        return text == FOREIGN[knob].neutral or text in FOREIGN[knob].known
    try:
        BY_KNOB[knob].parse(text)
    except ValueError:
        return text in FOREIGN_VALUES.get(knob, ())
    return True


def _assumed(knob: str, gpu: Gpu, degrees: Mapping[str, int], aliases: Aliases) -> str | None:
    if knob == "sharding" and degrees["dp"] == 1:
        return None
    value = aliases.blank(knob)
    if knob == "precision" and value in PRECISIONS and gpu.kind == "cpu":
        return "fp32"
    if knob == "precision" and value in PRECISIONS and product_flops_per_s(gpu, PRECISIONS[value].product) is None:
        return "fp16"
    return value


def _without_product(name: str, gpu: Gpu) -> list[str]:
    precision = PRECISIONS.get(name)
    if precision is None or product_flops_per_s(gpu, precision.product) is not None:
        return []
    return [f"precision is {name}, and {gpu.name} has no {precision.product} matrix products"]
