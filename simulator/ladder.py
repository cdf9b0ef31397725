"""A ladder: one recipe at many values of one axis, all evaluated at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from profiles.schema import Recipe
from simulator.case import Case
from simulator.components import Choice
from simulator.memory import UPPER_Z
from simulator.outlook import Outlook, memory_limit_bytes, outlook, sizes_of
from simulator.steptime import StepTimes, log_factors, step_times
from simulator.techniques.batch import legal_batches

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Axis = Literal["micro_batch", "seq", "depth", "width"]
AXES: tuple[Axis, ...] = get_args(Axis)
RESIZED: tuple[Axis, ...] = ("depth", "width")
"""Axes along which the model itself changes, so that every value is a case of its own."""
Family = Mapping[int, Case]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """Rows follow ``values``. ``samples`` and ``positions`` (tokens) are per optimizer step, over all ranks.

    ``needed_bytes_high`` is what a device must have for the recipe to fit with 99 %, whatever its size.
    """

    values: IntArray
    seconds: FloatArray
    grad_accum: FloatArray
    samples: FloatArray
    positions: FloatArray
    needed_bytes_high: FloatArray
    fits: NDArray[np.bool_]

    def times(self, factors: FloatArray) -> StepTimes:
        """Times under these log factors."""
        return step_times(self.seconds, self.grad_accum, factors)

    def pick(self, rows: NDArray[np.intp]) -> Ladder:
        """Some of the rows."""
        return Ladder(
            values=self.values[rows],
            seconds=self.seconds[rows],
            grad_accum=self.grad_accum[rows],
            samples=self.samples[rows],
            positions=self.positions[rows],
            needed_bytes_high=self.needed_bytes_high[rows],
            fits=self.fits[rows],
        )


def open_case(case: Case, axis: Axis) -> Case:
    """The case with the axis' own knob left open; a micro-batch takes the accumulation along if a batch is asked."""
    free = {axis, "grad_accum"} if axis == "micro_batch" and case.run.global_batch else {axis}
    return replace(case, fixed={knob: value for knob, value in case.fixed.items() if knob not in free})


def ladder(case: Case, axis: Axis, recipe: Recipe, values: IntArray, family: Family | None = None) -> Ladder:
    """The recipe at these values. ``family`` holds the case at each value of an axis that changes the model."""
    values = np.asarray(values, dtype=np.int64)
    if axis in RESIZED:
        rungs = [_rungs((family or {})[int(value)], recipe, axis, np.array([value])) for value in values]
        return Ladder(**{name: np.concatenate([getattr(r, name) for r in rungs]) for name in Ladder.__slots__})
    return _rungs(case, recipe, axis, values)


def _rungs(case: Case, recipe: Recipe, axis: Axis, values: IntArray) -> Ladder:
    micro_batch = values if axis == "micro_batch" else np.full(len(values), recipe.micro_batch)
    grad_accum = accumulations(case, recipe, axis, micro_batch)
    sizes = _sizes(case, recipe, axis, values, micro_batch)
    view = outlook(case, Choice.of(recipe), sizes, grad_accum)
    samples = micro_batch * grad_accum * case.ranks
    per_sample = sizes[:, 1:].sum(axis=1) if axis == "seq" else float(case.positions(recipe))
    return Ladder(
        values=values,
        seconds=view.seconds,
        grad_accum=grad_accum,
        samples=samples,
        positions=samples * per_sample,
        needed_bytes_high=_needed_high(view),
        fits=np.asarray(view.memory.peak_bytes_high <= memory_limit_bytes(case)),
    )


def _needed_high(view: Outlook) -> FloatArray:
    return view.memory.needed_bytes + UPPER_Z * view.memory.sd_bytes


def accumulations(case: Case, recipe: Recipe, axis: Axis, micro_batch: IntArray) -> FloatArray:
    """Micro-batches per step: what makes the global batch along the micro-batch, else the recipe's own."""
    if axis != "micro_batch" or case.run.global_batch is None:
        return np.full(len(micro_batch), float(recipe.grad_accum))
    legal = legal_batches(open_case(case, axis))
    by_size = dict(zip(legal.micro_batch.tolist(), legal.grad_accum.tolist(), strict=True))
    return np.array([float(by_size[int(size)]) for size in micro_batch])


def _sizes(case: Case, recipe: Recipe, axis: Axis, values: IntArray, micro_batch: IntArray) -> FloatArray:
    sizes = sizes_of(case, recipe, micro_batch)
    if axis == "seq":
        sizes[:, 1] = values
        if case.workload.decoder_seq is not None and not _own_decoder(case):
            sizes[:, 2] = values
    return sizes


def _own_decoder(case: Case) -> bool:
    """Whether the decoder's length was asked for; else it follows the encoder's."""
    return case.run.decoder_seq is not None or case.fixed.get("decoder_seq") is not None


def at_value(case: Case, axis: Axis, recipe: Recipe, value: int) -> Recipe:
    """The recipe at one value of the axis; along depth and width it stays as it is."""
    if axis == "micro_batch":
        (grad_accum,) = accumulations(case, recipe, axis, np.array([value]))
        return replace(recipe, micro_batch=value, grad_accum=int(grad_accum))
    if axis == "seq":
        follows = case.workload.decoder_seq is not None and not _own_decoder(case)
        return replace(recipe, seq=value, decoder_seq=value if follows else recipe.decoder_seq)
    return recipe


def default_values(case: Case, axis: Axis, recipe: Recipe) -> list[int]:
    """Values worth showing: spread by ratio, the recipe's own among them, ending where the model or memory ends."""
    return sorted(set(_default_values(case, axis, recipe)))


MOST_POINTS = 16
SHORTEST_SEQ = 128


def _default_values(case: Case, axis: Axis, recipe: Recipe) -> Iterator[int]:
    if axis == "micro_batch":
        legal = legal_batches(open_case(case, axis)).micro_batch
        fits = ladder(case, axis, recipe, legal).fits
        shown = min(len(legal), int(np.flatnonzero(fits).max(initial=0)) + 2)
        yield from legal[np.unique(np.geomspace(1, shown, MOST_POINTS).round().astype(int)) - 1].tolist()
        return
    own = case.seq(recipe) if axis == "seq" else max((s.depth for s in case.workload.stacks), default=1)
    least = SHORTEST_SEQ if axis == "seq" else 4
    most = min(4 * own, case.workload.max_seq or 4 * own) if axis == "seq" else 2 * own
    yield own
    for power in range(40):
        for value in (least << power, 3 * (least << power) // 2):
            if value <= most and (axis == "seq" or all(s.depth * value % own == 0 for s in case.workload.stacks)):
                yield value


def point_factors(case: Case) -> FloatArray:
    """The fit's own log factors."""
    return log_factors(case.profile.fit)
