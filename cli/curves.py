"""``paceline curves``: what is asked of a curve, and the resized models that depth and width need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import Asked, Seed, asks

if TYPE_CHECKING:
    from profiles.schema import Recipe
    from simulator import Case
    from simulator.curves import Curve
    from simulator.ladder import Axis


@asks()
def curves(
    asked: Asked,
    *,
    axis: Annotated[str, typer.Option("--axis", "-a", metavar="A", help="micro_batch, seq, depth or width.")],
    values: Annotated[
        str | None, typer.Option("--values", metavar="N,…", help="Values of the axis; default: some worth showing.")
    ] = None,
    seed: Seed = 0,
) -> None:
    """Step time and memory along micro-batch, length, depth or width.

    Says where measurements were made, where the GPU takes over from the host, and from where compile and checkpointing
    pay. A depth follows from the traced model; a width is traced first, some seconds each.
    """
    from cli import curve_view

    case, recipe, found = answer(asked, axis, values, seed)
    if asked.json:
        from cli import contract

        return contract.show({**contract.question_json(case), **curve_view.curve_json(case, recipe, found)})
    curve_view.show(case, found)


def answer(asked: Asked, axis: str, values: str | None, seed: int) -> tuple[Case, Recipe, Curve]:
    """The case, the recipe and its curve.

    Raises:
        InvalidInputError: an axis that does not exist, one that the recipe fixes, values that cannot be made.
    """
    from cli import question
    from simulator.curves import curve
    from simulator.recipes import complete

    chosen, numbers = _axis(asked, axis), _values(values)
    case = question.read(asked, published_batch=False).case
    recipe = complete(case.fixed, case)
    family = _family(case, asked.model, chosen, recipe, numbers)
    return case, recipe, curve(case, chosen, recipe, values=numbers, family=family, seed=seed)


def _axis(asked: Asked, axis: str) -> Axis:
    from profiles.errors import InvalidInputError
    from simulator.ladder import AXES

    known = {name: name for name in AXES}
    if axis not in known:
        raise InvalidInputError("--axis", [f"{axis!r} is not an axis; allowed: {', '.join(AXES)}"])
    if axis in _knobs(asked.recipe) or (axis == "seq" and asked.seq is not None):
        raise InvalidInputError("--axis", [f"{axis} is the axis of the curve; leave it out of --recipe and options"])
    return known[axis]


def _knobs(recipe: str | None) -> Mapping[str, object]:
    from simulator.recipes import parse_recipe

    return parse_recipe(recipe) if recipe else {}


def _values(text: str | None) -> list[int]:
    from profiles.errors import InvalidInputError
    from simulator.techniques.base import parse_whole

    numbers, problems = [], []
    for part in text.split(",") if text is not None else ():
        try:
            numbers.append(parse_whole("--values", part))
        except ValueError as problem:
            problems.append(str(problem))
    if problems:
        raise InvalidInputError("--values", problems)
    return numbers


def _family(case: Case, model: str, axis: Axis, recipe: Recipe, values: list[int]) -> dict[int, Case] | None:
    """The case of the resized model at each value of depth or width; ``None`` along other axes."""
    if axis not in ("depth", "width"):
        return None
    from calibration import sizes
    from calibration.models import resolve
    from simulator.ladder import default_values

    preset = resolve(model)
    if axis == "depth":
        made = sizes.at_depths(preset, case.workload, values or default_values(case, axis, recipe))
    else:
        made = sizes.at_widths(preset, case.workload, values or sizes.default_widths(preset), recipe)
    return {value: replace(case, workload=workload) for value, workload in made.items()}
