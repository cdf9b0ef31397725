"""What the peak is made of in time and in single tensors: peak by phase, the largest buffers, and loading."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from profiles.schema import Op, Poly, Recipe, Term, Workload
from simulator.case import Case, variant_of
from simulator.components import Choice, evaluate, variant_for
from simulator.memory import memory, moments_of, parts_at, weight_bytes
from simulator.outlook import memory_limit_bytes, sizes_of
from simulator.techniques.attention import ATTENTIONS
from simulator.techniques.precision import PRECISIONS
from simulator.units import MIB

FloatArray = NDArray[np.float64]
PHASES = (
    "forward",
    "end_of_forward",
    "backward_at_the_head",
    "backward_in_the_blocks",
    "backward",
    "optimizer_step",
)
UNTIED_IN_ENCODER_DECODERS = 3
BufferName = Literal["logits", "attention_scores", "block_product", "head_product", "parameter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """One tensor by itself, as large as the largest of its name; its copies are not in ``bytes``.

    ``logits`` are as wide as the loss takes them (fp32, where the model casts them); ``attention_scores`` as wide as
    their softmax; ``block_product``, ``head_product`` are other products' results inside and outside of the repeated
    blocks; ``parameter`` is the largest one, and its gradient and each of its optimizer states are as large. A copy
    that a block casts to fp32 is not seen: Mixtral's experts under autocast have one, 1.8 times the logits.
    """

    name: BufferName
    bytes: int

    @property
    def mib(self) -> float:
        """Size in MiB."""
        return self.bytes / MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPhases:
    """Where in a step one recipe peaks, and on which tensors; bytes per GPU.

    ``phases_bytes``: per phase the most that is allocated in it, as in ``peak_bytes``, which is the largest of them.
    The trace keeps the moments that are the peak at some size: a phase that never is one is left out, and one that is
    not the peak here may hold a little more than its figure, never more than the peak.

    ``load_peak_bytes``: the most that is allocated while the model is created on the device, to a thousandth: weights,
    and embeddings that are as large as the largest tensor until they are tied (the head's; an encoder-decoder's three).

    ``attention_bytes``: the device total (``peak_device_bytes``) under each attention that the model can have.
    """

    phases_bytes: dict[str, int]
    peak_phase: str
    buffers: tuple[Buffer, ...]
    load_peak_bytes: int
    attention_bytes: dict[str, int]

    @property
    def largest_buffer(self) -> Buffer:
        """The largest single tensor."""
        return self.buffers[0]

    @property
    def logits(self) -> Buffer | None:
        """One copy of the logits; ``None`` where no product outside of the blocks feeds the loss."""
        return next((buffer for buffer in self.buffers if buffer.name == "logits"), None)


def memory_phases(case: Case, recipe: Recipe) -> MemoryPhases:
    """Peak by phase, largest buffers and load peak of one legal recipe."""
    workload, choice = case.workload, Choice.of(recipe)
    size = sizes_of(case, recipe, np.array([recipe.micro_batch]))
    accumulates = np.array([recipe.grad_accum > 1])
    phases, peak_phase = _by_phase(case, choice, size, accumulates)
    return MemoryPhases(
        phases_bytes=phases,
        peak_phase=peak_phase,
        buffers=_buffers(workload, choice, size),
        load_peak_bytes=_load_peak_bytes(workload, choice),
        attention_bytes=_by_attention(case, choice, size, accumulates),
    )


def _load_peak_bytes(workload: Workload, choice: Choice) -> int:
    untied = 1 if workload.decoder_seq is None else UNTIED_IN_ENCODER_DECODERS
    largest = workload.largest_parameter * PRECISIONS[choice.precision].weight_bytes
    return weight_bytes(workload, choice) + untied * largest


def _by_attention(case: Case, choice: Choice, size: FloatArray, accumulates: NDArray[np.bool_]) -> dict[str, int]:
    workload, numerics = case.workload, PRECISIONS[choice.precision].numerics
    checkpointed = choice.checkpointing != "none"
    found: dict[str, int] = {}
    for attention in ATTENTIONS:
        if variant_of(workload, numerics, attention, checkpointed):
            other = replace(choice, attention=attention)
            limit = memory_limit_bytes(case)
            total = memory(workload, other, size, accumulates, case.profile.fit, limit, case.ranks)
            found[attention] = round(float(total.peak_device_bytes[0]))
    return found


def _by_phase(
    case: Case, choice: Choice, size: FloatArray, accumulates: NDArray[np.bool_]
) -> tuple[dict[str, int], str]:
    """Allocated bytes at the largest moment of every phase, and which phase has the largest moment of all."""
    workload = case.workload
    moving: dict[str, FloatArray] = {}
    for moment in moments_of(workload, choice, size, accumulates):
        phase = _phase(moment.phase, workload)
        if phase not in moving or moment.moving.sum() > moving[phase].sum():
            moving[phase] = moment.moving
    peak_phase = max(moving, key=lambda phase: float(moving[phase].sum()))
    totals = {p: round(parts_at(workload, choice, m, case.profile.fit, case.ranks).sum()) for p, m in moving.items()}
    # The moment is chosen before the fit's factor, so one within that factor of it could come out above it.
    capped = {phase: min(total, totals[peak_phase]) for phase, total in totals.items()}
    return {phase: capped[phase] for phase in PHASES if phase in capped}, peak_phase


def _phase(label: str, workload: Workload) -> str:
    """A moment's phase; without repeated blocks the head cannot be told from the rest."""
    if not workload.stacks and label.startswith("backward"):
        return "backward"
    return label.replace(" ", "_")


def _buffers(workload: Workload, choice: Choice, size: FloatArray) -> tuple[Buffer, ...]:
    """The largest tensor of each name, the largest first."""
    largest: dict[BufferName, float] = {
        "parameter": float(workload.largest_parameter * PRECISIONS[choice.precision].weight_bytes)
    }
    for name, size_bytes in _products(workload, choice, size):
        largest[name] = max(largest.get(name, 0.0), size_bytes)
    ranked = sorted(largest.items(), key=lambda item: -item[1])
    return tuple(Buffer(name=name, bytes=round(size_bytes)) for name, size_bytes in ranked)


def _products(workload: Workload, choice: Choice, size: FloatArray) -> Iterator[tuple[BufferName, float]]:
    """Name and bytes of the result of every product in the forward pass."""
    ops = [op for op in variant_for(workload, choice).ops if op.phase == "forward"]
    head, loss_bits = head_of(ops)
    softmax = {op.stack: op.bits for op in ops if op.kind == "softmax" and op.stack >= 0}
    for op in ops:
        if op.dims is None or op.kind not in {"matmul", "bmm"}:
            continue
        batch, rows, columns, _ = (float(np.asarray(evaluate(poly, size)).max()) for poly in op.dims)
        name: BufferName = "block_product" if op.stack >= 0 else "head_product"
        bits: int = op.bits
        if op is head:
            name, bits = "logits", op.bits if choice.compile == "on" else loss_bits
        elif op.kind == "bmm" and op.stack >= 0:
            name, bits = "attention_scores", max(op.bits, softmax.get(op.stack, op.bits))
        yield name, batch * rows * columns * bits / 8


def head_of(ops: Sequence[Op]) -> tuple[Op | None, int]:
    """The product that makes the logits, and the width in bits at which the loss takes them; ``None`` without one.

    The head is the largest product outside of the blocks of whose result the loss reads at least one whole copy.
    """
    losses = [op for op in ops if op.kind == "softmax" and op.stack < 0]
    head, most, width = None, 0.0, 0
    for product in (op for op in ops if op.kind == "matmul" and op.stack < 0 and op.dims is not None):
        logits = _numbers(product)
        widths = [loss.bits for loss in losses if _coefficient(loss.bytes, logits) >= loss.bits / 8 * logits[0]]
        if widths and logits[0] > most:
            head, most, width = product, logits[0], max(widths)
    return head, width


def _numbers(product: Op) -> Term:
    """Numbers in a product's result, as one term."""
    assert product.dims is not None
    coefficient, i, j, k = 1.0, 0, 0, 0
    for poly in product.dims[:3]:
        factor = poly[0]
        coefficient, i, j, k = coefficient * factor[0], i + factor[1], j + factor[2], k + factor[3]
    return coefficient, i, j, k


def _coefficient(poly: Poly, like: Term) -> float:
    """Of the term with the same exponents as ``like``."""
    return sum(term[0] for term in poly if term[1:] == like[1:])
