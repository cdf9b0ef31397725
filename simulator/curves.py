"""Curves of time and memory over micro-batch, length, depth and width, with the calibrated range and the crossovers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from profiles.errors import InvalidInputError
from profiles.schema import Recipe
from simulator import crossovers, money
from simulator.calibrated import calibrated_range
from simulator.case import Case
from simulator.crossovers import BreakEven, Compiling, Crossover, Recomputing
from simulator.ladder import (
    RESIZED,
    Axis,
    Family,
    FloatArray,
    IntArray,
    Ladder,
    at_value,
    default_values,
    ladder,
    open_case,
    point_factors,
)
from simulator.outlook import prediction
from simulator.rates import rate_value
from simulator.recipes import BY_KNOB, check, format_recipe
from simulator.results import Prediction
from simulator.techniques.batch import legal_batches

MOST_LOOKED_AT = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value of the axis. ``gpu_s`` and ``host_s`` are seconds per micro-batch of either alone.

    ``calibrated`` says whether the value lies where measurements were made; ``None`` without any.
    """

    value: int
    prediction: Prediction
    gpu_s: float
    host_s: float
    calibrated: bool | None

    @property
    def bound(self) -> str:
        """``gpu`` or ``host``: which of them decides the time of a micro-batch."""
        return "gpu" if self.gpu_s >= self.host_s else "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Points by rising value, the calibrated range of the axis, and the crossovers along it.

    ``every_value``: whether crossovers looked at every whole value of the range, else only at the points.
    ``compile_s`` are the seconds that compiling one shape takes; ``break_even`` has a row per point.
    """

    axis: Axis
    recipe: Recipe
    points: tuple[Point, ...]
    calibrated: tuple[float, float] | None
    crossovers: tuple[Crossover, ...]
    every_value: bool
    compile_s: float | None = None
    break_even: tuple[BreakEven, ...] = ()


def curve(
    case: Case, axis: Axis, recipe: Recipe, *, values: Sequence[int] = (), family: Family | None = None, seed: int = 0
) -> Curve:
    """The recipe along the axis, at ``values`` or at some that are worth showing.

    ``family`` holds, for depth and width, the case of the resized model at each value. ``seed`` is that of the draws
    behind the crossovers' ranges.

    Raises:
        InvalidInputError: values at which the recipe is illegal; all of them, each with its rule.
    """
    case = open_case(case, axis)
    shown = sorted(set(values)) or sorted(family or ()) or default_values(case, axis, recipe)
    _require_legal(case, axis, recipe, shown, family)
    at_points = ladder(case, axis, recipe, np.array(shown), family)
    dense = ladder(case, axis, recipe, _looked_at(case, axis, shown), family)
    draws = crossovers.draw_factors(case, seed=seed)
    found = [crossovers.gpu_bound(case, axis, dense, draws)]
    both = _compiling(case, axis, recipe, dense.values, family)
    broken: tuple[BreakEven, ...] = ()
    if both is not None:
        found.append(crossovers.compile_pays(case, axis, both, draws, seed))
        rows = np.searchsorted(dense.values, shown)
        broken = crossovers.break_even(case, both.pick(rows), draws, seed)
    found += _checkpointing(case, axis, recipe, dense.values, draws)
    return Curve(
        axis=axis,
        recipe=recipe,
        points=tuple(_points(case, axis, recipe, at_points, family)),
        calibrated=calibrated_range(case.profile.fit, axis) if case.profile.fit.measurements else None,
        crossovers=tuple(found),
        every_value=axis not in RESIZED,
        compile_s=both.compile_s if both else None,
        break_even=broken,
    )


def _require_legal(case: Case, axis: Axis, recipe: Recipe, values: Sequence[int], family: Family | None) -> None:
    problems = []
    if axis == "micro_batch" and case.run.global_batch is not None:
        legal = set(legal_batches(case).micro_batch.tolist())
        wrong = [value for value in values if value not in legal]
        problems += [f"micro_batch={v} does not make the global batch {case.run.global_batch}" for v in wrong]
        values = [value for value in values if value in legal]
    for value in values:
        own = family[value] if family else case
        told = check(at_value(own, axis, recipe, value), own)
        problems += [f"{axis}={value}: {refusal}" for refusal in told]
    if problems:
        raise InvalidInputError(f"recipe {format_recipe(recipe)}", list(dict.fromkeys(problems)))


def _looked_at(case: Case, axis: Axis, shown: Sequence[int]) -> IntArray:
    """Every legal value from the first to the last point, and every legal micro-batch; else the points themselves."""
    if axis == "micro_batch":
        legal = legal_batches(case).micro_batch
        return np.union1d(legal, shown)
    if axis == "seq" and shown[-1] - shown[0] < MOST_LOOKED_AT:
        return np.arange(shown[0], shown[-1] + 1)
    return np.array(shown, dtype=np.int64)


def _points(case: Case, axis: Axis, recipe: Recipe, rungs: Ladder, family: Family | None) -> Iterator[Point]:
    times = rungs.times(point_factors(case))
    for row, value in enumerate(rungs.values.tolist()):
        own = family[value] if family else case
        asked = at_value(own, axis, recipe, value)
        limits = calibrated_range(own.profile.fit, axis) if own.profile.fit.measurements else None
        yield Point(
            value=value,
            prediction=prediction(own, asked),
            gpu_s=float(times.gpu_s[row]),
            host_s=float(times.host_s[row]),
            calibrated=limits and limits[0] <= value <= limits[1],
        )


def _compiling(case: Case, axis: Axis, recipe: Recipe, values: IntArray, family: Family | None) -> Compiling | None:
    """The recipe without and with compile; ``None`` where compile is not worth trying on this machine."""
    if "on" not in BY_KNOB["compile"].values(case) and recipe.compile != "on":
        return None
    off, on = (ladder(case, axis, replace(recipe, compile=switch), values, family) for switch in ("off", "on"))
    steps = money.total_steps(case.run, off.samples, off.positions / off.samples)
    rate = case.profile.rates.get("compile_s")
    return Compiling(
        off=off,
        on=on,
        compile_s=rate_value(case.profile.rates, "compile_s"),
        compile_sd_log=rate.sd_log if rate else 0.0,
        steps=steps,
    )


def _checkpointing(case: Case, axis: Axis, recipe: Recipe, values: IntArray, draws: FloatArray) -> Iterator[Crossover]:
    """Along micro-batches, for full checkpointing, every second block, and the recipe's own if it is another one."""
    if axis != "micro_batch":
        return
    for value in dict.fromkeys(["full", "every_2", recipe.checkpointing]):
        again = replace(recipe, checkpointing=value)
        if value == "none" or check(replace(again, micro_batch=1, grad_accum=1), _without_batch(case)):
            continue
        plain = ladder(case, axis, replace(recipe, checkpointing="none"), values)
        both = Recomputing(value=value, plain=plain, again=ladder(case, axis, again, values))
        yield from crossovers.checkpointing_pays(case, both, draws)


def _without_batch(case: Case) -> Case:
    return replace(case, run=replace(case.run, global_batch=None))
