"""Peak memory per GPU by component, for many sizes of one choice at once.

Static parts (weights, gradients, optimizer state) are exact. What moves is replayed from the trace: the peak is the
largest of a few moments, each a polynomial in the sizes. Three totals, never mixed: allocated, reserved (allocator
slack on top), device (context on top).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from profiles.schema import Fit, MemoryPoint, Variant, Workload
from simulator.case import variant_of
from simulator.components import Choice, evaluate, variant_for
from simulator.techniques import optimizer as optimizers
from simulator.techniques.checkpointing import checkpointed_blocks
from simulator.techniques.precision import PRECISIONS

FloatArray = NDArray[np.float64]
PARTS = (
    "weights",
    "optimizer_state",
    "gradients",
    "activations",
    "logits_and_loss",
    "temporary",
    "buckets",
    "workspace",
    "allocator_slack",
    "framework",
)
OPTIMIZER_STEP = "optimizer step"
TRACED_BLOCKS = 3
COMPILED_LOGITS = 0.5
"""Share of 16-bit logits' buffers that stays when compiled: the fp32 copy is fused away (6 of 12 bytes a logit)."""
COMPILED_SD_LOG = 0.06
"""How far what moves strays when compiled: of 15 compiled shapes on an H200 all but one lay within twice that."""
GRANULE_BYTES = 512
"""The allocator rounds every tensor up to this. Parameters nearly fill theirs: over all presets but the smallest, what
they lose is below 3 kB, 0.0025 % of the peak at most. A fused optimizer's step counter, 4 bytes a parameter tensor on
the device, takes a whole one."""
COUNTS_ON_DEVICE = frozenset({"adamw_fused"})
UPPER_Z = 2.33
"""Standard deviations from the point to the upper value: 99 %."""
FRAGMENTATION = 0.003
"""Share of the allocated bytes that the allocator cannot give back. Near the limit it returns all other slack before it
fails: out-of-memory errors on an H200 with expandable segments report 0.04 to 0.3 % reserved but unallocated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes per GPU, one row a size. ``parts`` has a column for each of ``PARTS`` and adds up to the device total.

    ``needed_bytes`` is what the device must hold: allocator slack that it can return is not in it.
    """

    parts: FloatArray
    peak_bytes: FloatArray
    peak_reserved_bytes: FloatArray
    peak_device_bytes: FloatArray
    peak_bytes_high: FloatArray
    needed_bytes: FloatArray
    sd_bytes: FloatArray


def memory(
    workload: Workload,
    choice: Choice,
    sizes: FloatArray,
    accumulates: NDArray[np.bool_],
    fit: Fit,
    limit_bytes: float,
    ranks: int = 1,
) -> Memory:
    """Peak memory at rows (micro-batch, seq, decoder seq) of ``sizes``; ``accumulates`` where grad_accum > 1.

    ``limit_bytes`` is the device's memory: slack never makes the total exceed it, only need does.
    """
    stacked = np.stack([moment.moving for moment in moments_of(workload, choice, sizes, accumulates)])
    chosen = np.argmax(stacked.sum(axis=2), axis=0)
    moving = stacked[chosen, np.arange(len(sizes))]
    return _totals(parts_at(workload, choice, moving, fit, ranks), fit, choice, limit_bytes)


def parts_at(workload: Workload, choice: Choice, moving: FloatArray, fit: Fit, ranks: int = 1) -> FloatArray:
    """Bytes of each of ``PARTS`` at one moment per row of ``moving``; slack and framework are left at 0."""
    precision = PRECISIONS[choice.precision]
    parts = np.zeros((len(moving), len(PARTS)))
    counters = workload.parameter_tensors * GRANULE_BYTES if choice.optimizer in COUNTS_ON_DEVICE else 0
    parts[:, 0] = weight_bytes(workload, choice)
    parts[:, 1] = optimizers.state_bytes(choice.optimizer, workload, precision.weight_bytes) + counters
    parts[:, 2:6] = moving * np.array([1.0, fit.memory_factor, fit.memory_factor, fit.memory_factor])
    parts[:, 6] = workload.params * precision.gradient_bytes if ranks > 1 else 0.0
    parts[:, 7] = fit.workspace_bytes
    return parts


def weight_bytes(workload: Workload, choice: Choice) -> int:
    """Bytes of parameters and buffers on the device."""
    return workload.params * PRECISIONS[choice.precision].weight_bytes + workload.buffer_bytes


def slack(fit: Fit, checkpointing: str) -> tuple[float, float]:
    """Reserved ÷ allocated bytes, and the standard deviation of its log.

    Where every block is computed again, the allocator's segments fit less well: an H200 reserves 11 to 13 % more than
    is allocated, elsewhere 4 %.
    """
    if checkpointing == "full":
        return fit.full_reserved_factor, fit.full_reserved_sd_log
    return fit.reserved_factor, fit.reserved_sd_log


def _totals(parts: FloatArray, fit: Fit, choice: Choice, limit_bytes: float) -> Memory:
    reserved_factor, reserved_sd_log = slack(fit, choice.checkpointing)
    moving_sd_log = COMPILED_SD_LOG if choice.compile == "on" else fit.memory_sd_log
    peak = parts.sum(axis=1)
    overhead = fit.device_overhead_bytes
    needed = peak * (1 + FRAGMENTATION) + overhead
    sd = np.hypot(parts[:, 3:6].sum(axis=1) * moving_sd_log, fit.device_overhead_sd_bytes)
    needed_high = needed + UPPER_Z * sd
    room = np.maximum(limit_bytes, needed)
    device = np.minimum(peak * reserved_factor + overhead, room)
    with_slack = device + UPPER_Z * np.hypot(sd, device * reserved_sd_log)
    high = np.where(
        needed_high <= limit_bytes,
        np.minimum(np.maximum(with_slack, needed_high), limit_bytes),
        np.maximum(with_slack, needed_high),
    )
    parts[:, 8] = device - overhead - peak
    parts[:, 9] = overhead
    return Memory(
        parts=parts,
        peak_bytes=peak,
        peak_reserved_bytes=device - overhead,
        peak_device_bytes=device,
        peak_bytes_high=high,
        needed_bytes=needed,
        sd_bytes=sd,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One moment of a step at which memory may peak.

    ``moving``: one row a size; columns are bytes of gradients, activations, logits and temporaries.
    """

    phase: str
    moving: FloatArray


def moments_of(workload: Workload, choice: Choice, sizes: FloatArray, accumulates: NDArray[np.bool_]) -> list[Moment]:
    """Every moment of every variant that the choice mixes, then the optimizer's step."""
    gradient_bytes = float(workload.params * PRECISIONS[choice.precision].gradient_bytes)
    variant = variant_for(workload, choice)
    mixed = [variant]
    partly = choice.checkpointing not in {"none", "full"}
    if partly:
        plain = variant_of(workload, variant.numerics, variant.attention, False)
        mixed += [plain] if plain else []
    moments = [
        Moment(
            phase=point.label,
            moving=_moving(
                workload,
                choice,
                one,
                point,
                mixed[1 - i] if partly and len(mixed) == 2 else None,
                sizes,
                accumulates,
                gradient_bytes,
            ),
        )
        for i, one in enumerate(mixed)
        for point in one.memory
    ]
    at_the_end = _optimizer_moving(workload, choice, len(sizes), gradient_bytes)
    return [*moments, Moment(phase=OPTIMIZER_STEP, moving=at_the_end)]


def _moving(
    workload: Workload,
    choice: Choice,
    variant: Variant,
    point: MemoryPoint,
    other: Variant | None,
    sizes: FloatArray,
    accumulates: NDArray[np.bool_],
    gradient_bytes: float,
) -> FloatArray:
    columns = np.zeros((len(sizes), 4))
    columns[:, 1] = evaluate(point.activations, sizes)
    columns[:, 2] = evaluate(point.logits, sizes)
    columns[:, 3] = evaluate(point.temporary, sizes)
    gradients = evaluate(point.gradients, sizes)
    for i, stack in enumerate(workload.stacks):
        more = stack.depth - TRACED_BLOCKS
        own, foreign = _split(choice, variant, stack.depth, more)
        if point.block_activations[i]:
            columns[:, 1] += own * evaluate(point.block_activations[i], sizes)
            if other is not None:
                columns[:, 1] += foreign * evaluate(other.block_saved[i], sizes)
        gradients = gradients + more * evaluate(point.block_gradients[i], sizes)
    if choice.compile == "on" and PRECISIONS[choice.precision].bits == 16:
        columns[:, 2] *= COMPILED_LOGITS
    in_flight = gradient_bytes + evaluate(point.gradients_in_flight, sizes)
    columns[:, 0] = np.where(accumulates, in_flight, gradients)
    return columns


def _split(choice: Choice, variant: Variant, depth: int, more: int) -> tuple[int, int]:
    """Of the blocks beyond the traced ones, how many are of the variant's own kind and how many of the other."""
    checkpointed = checkpointed_blocks(choice.checkpointing, depth)
    if choice.checkpointing in {"none", "full"}:
        return more, 0
    foreign = depth - checkpointed if variant.checkpointed else checkpointed
    return more - foreign, foreign


def _optimizer_moving(workload: Workload, choice: Choice, rows: int, gradient_bytes: float) -> FloatArray:
    width = PRECISIONS[choice.precision].weight_bytes
    temporary = optimizers.temporary_bytes(choice.optimizer, workload, width)
    return np.tile(np.array([gradient_bytes, 0.0, 0.0, float(temporary)]), (rows, 1))
