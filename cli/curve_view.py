"""A curve as JSON, and as a table with its crossovers in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from cli import human

if TYPE_CHECKING:
    from profiles.schema import Recipe
    from simulator import Case
    from simulator.crossovers import BreakEven, Crossover
    from simulator.curves import Curve, Point


def curve_json(case: Case, recipe: Recipe, curve: Curve) -> dict[str, object]:
    """The curve in the shape of the command's JSON."""
    from cli.contract import recipe_json

    return {
        "axis": curve.axis,
        "recipe": recipe_json(case, recipe),
        "calibrated": curve.calibrated,
        "points": [
            {
                "value": point.value,
                "calibrated": point.calibrated,
                "bound": point.bound,
                "gpu_s": point.gpu_s,
                "host_s": point.host_s,
                **asdict(point.prediction),
                "recipe": recipe_json(case, point.prediction.recipe),
                "verdict": point.prediction.verdict,
            }
            for point in curve.points
        ],
        "crossovers": curve.crossovers,
        "every_value": curve.every_value,
        "compile_s": curve.compile_s,
        "break_even": curve.break_even,
    }


def show(case: Case, curve: Curve) -> None:
    """The points as a table, the crossovers in words."""
    from cli import render
    from cli.contract import recipe_json
    from cli.recipes import knobs_text

    knobs = {k: v for k, v in recipe_json(case, curve.recipe).items() if k != curve.axis}
    render.show_lines([*render.header(case), f"recipe: {knobs_text(knobs)}", _range_line(curve), ""])
    rows = [_row(point) for point in curve.points]
    columns = (curve.axis, "step", "90 % interval", "tokens/s", "MFU", "GiB ≤", "bound", "basis")
    render.show_rows(columns, rows, right=columns[:6], folds=["basis"])
    render.show_lines(["", *(_sentence(curve, one) for one in curve.crossovers), *_break_even_lines(curve)])


def _range_line(curve: Curve) -> str:
    if curve.calibrated is None:
        return f"{curve.axis}: no calibrated range"
    low, high = curve.calibrated
    return f"{curve.axis}: calibrated from {low:g} to {high:g}; ~ marks what lies beyond"


def _row(point: Point) -> tuple[str, ...]:
    one = point.prediction
    return (
        f"{'~' if point.calibrated is False else ''}{point.value:,}",
        human.seconds(one.step_s),
        human.seconds_range(one.step_s_low, one.step_s_high),
        human.digits(one.tokens_per_s),
        human.percent(one.mfu),
        human.gib(one.peak_bytes_high),
        point.bound,
        one.provenance if one.fits else f"{one.provenance}, oom",
    )


_WHAT = {"gpu_bound": "GPU-bound", "compile": "compile pays"}


def _sentence(curve: Curve, one: Crossover) -> str:
    """A crossover in words."""
    what = _WHAT.get(one.name, f"{one.name} pays")
    over = "device memory" if one.axis == "memory_bytes" else one.axis
    if one.state in ("never", "always"):
        return f"{what}: {one.state} over {over} (in {one.share:.0%} of draws somewhere)"
    first = f"from {_edge(one, one.first, one.first_low, one.first_high)}"
    last = f"until {_edge(one, one.last, one.last_low, one.last_high)}"
    told = {"from": first, "until": last}.get(one.state, f"{first} {last}")
    gaps = ", with gaps" if one.state == "scattered" else ""
    return f"{what}: {told}{gaps}{'' if curve.every_value else ' (of the values shown)'}"


def _edge(one: Crossover, value: float | None, low: float | None, high: float | None) -> str:
    def text(number: float | None) -> str:
        if number is None:
            return "any"
        return f"{human.gib(number)} GiB" if one.axis == "memory_bytes" else f"{number:,.0f}"

    axis = "" if one.axis == "memory_bytes" else f"{one.axis} "
    return f"{axis}{text(value)} ({text(low)}–{text(high)})"


def _break_even_lines(curve: Curve) -> Iterator[str]:
    if not curve.break_even or curve.compile_s is None:
        return
    yield f"compile costs {human.seconds(curve.compile_s)} a shape; it is won back after"
    rows = curve.break_even
    for one in dict.fromkeys([rows[0], rows[len(rows) // 2], rows[-1]]):
        yield f"  {_won_back(one)} at {curve.axis} {one.value:,}"


def _won_back(one: BreakEven) -> str:
    if one.saved_s_per_step <= 0:
        return "no number of steps"
    return f"{one.steps:,.0f} steps ({one.steps_low:,.0f}–{one.steps_high:,.0f}), {human.digits(one.hours)} h"
