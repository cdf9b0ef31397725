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
TRACED_BLOCKS = 3
COMPILED_LOGITS = 0.5
"""Share of the logits' buffers that stays when compiled: the fp32 copy is fused away (6 of 12 bytes a logit)."""
ROUNDING_BYTES = 256
"""Mean loss per tensor to the allocator's 512-byte granule."""
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
    precision = PRECISIONS[choice.precision]
    gradient_bytes = float(workload.params * precision.gradient_bytes)
    moments = _moments(workload, choice, sizes, accumulates, gradient_bytes)
    moments.append(_optimizer_moment(workload, choice, len(sizes), gradient_bytes))
    stacked = np.stack(moments)
    chosen = np.argmax(stacked.sum(axis=2), axis=0)
    moving = stacked[chosen, np.arange(len(sizes))]
    parts = np.zeros((len(sizes), len(PARTS)))
    rounding = workload.parameter_tensors * ROUNDING_BYTES
    parts[:, 0] = workload.params * precision.weight_bytes + workload.buffer_bytes + rounding
    parts[:, 1] = optimizers.state_bytes(choice.optimizer, workload, precision.weight_bytes) + rounding
    parts[:, 2:6] = moving * np.array([1.0, fit.memory_factor, fit.memory_factor, fit.memory_factor])
    parts[:, 6] = gradient_bytes if ranks > 1 else 0.0
    parts[:, 7] = fit.workspace_bytes
    return _totals(parts, fit, limit_bytes)


def _totals(parts: FloatArray, fit: Fit, limit_bytes: float) -> Memory:
    peak = parts.sum(axis=1)
    overhead = fit.device_overhead_bytes
    needed = peak * (1 + FRAGMENTATION) + overhead
    sd = np.hypot(parts[:, 3:6].sum(axis=1) * fit.memory_sd_log, fit.device_overhead_sd_bytes)
    needed_high = needed + UPPER_Z * sd
    room = np.maximum(limit_bytes, needed)
    device = np.minimum(peak * fit.reserved_factor + overhead, room)
    with_slack = device + UPPER_Z * np.hypot(sd, device * fit.reserved_sd_log)
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


def _moments(
    workload: Workload, choice: Choice, sizes: FloatArray, accumulates: NDArray[np.bool_], gradient_bytes: float
) -> list[FloatArray]:
    """(gradients, activations, logits, temporary) at every moment of every variant that the choice mixes."""
    variant = variant_for(workload, choice)
    mixed = [variant]
    partly = choice.checkpointing not in {"none", "full"}
    if partly:
        plain = variant_of(workload, variant.numerics, variant.attention, False)
        mixed += [plain] if plain else []
    return [
        _moment(
            workload,
            choice,
            one,
            point,
            mixed[1 - i] if partly and len(mixed) == 2 else None,
            sizes,
            accumulates,
            gradient_bytes,
        )
        for i, one in enumerate(mixed)
        for point in one.memory
    ]


def _moment(
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
    if choice.compile == "on":
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


def _optimizer_moment(workload: Workload, choice: Choice, rows: int, gradient_bytes: float) -> FloatArray:
    width = PRECISIONS[choice.precision].weight_bytes
    temporary = optimizers.temporary_bytes(choice.optimizer, workload, width)
    return np.tile(np.array([gradient_bytes, 0.0, 0.0, float(temporary)]), (rows, 1))
