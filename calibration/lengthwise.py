"""Programs that loop over positions: three traces at three lengths become polynomials of degree two in the length."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from calibration.monomials import add, value
from calibration.timeline import likeness
from profiles.schema import MemoryPoint, Op, Poly, Variant

Sized = tuple[int, Variant]
_DEGREE = 2
_JUDGED_AT = 1024.0
"""Micro-batch at which the largest moment of a short trace is told: it makes as many tokens as a real one has, so what
grows with them decides, as it will at real lengths."""


def join_lengths(traces: Sequence[Sized]) -> Variant:
    """One variant whose launches, bytes and memory follow the length, from variants traced at several lengths.

    Memory is joined moment by moment, among those that are alike at every length.
    """
    keys = dict.fromkeys(_key(op) for _, variant in traces for op in variant.ops)
    ops = tuple(_join_op(key, traces) for key in keys)
    first = traces[0][1]
    return Variant(
        numerics=first.numerics,
        attention=first.attention,
        checkpointed=first.checkpointed,
        ops=ops,
        memory=_join_memory(traces),
        block_saved=tuple(_join([(s, v.block_saved[i]) for s, v in traces]) for i in range(len(first.block_saved))),
    )


def _key(op: Op) -> tuple[object, ...]:
    return (op.kind, op.phase, op.stack, op.bits, op.dims, op.pad, op.causal)


def _join_op(key: tuple[object, ...], traces: Sequence[Sized]) -> Op:
    found = [(seq, [op for op in variant.ops if _key(op) == key]) for seq, variant in traces]
    example = next(op for _, ops in found for op in ops)

    def joined(part: Callable[[Op], Poly]) -> Poly:
        return _join([(seq, add(*(part(op) for op in ops))) for seq, ops in found])

    return Op(
        kind=example.kind,
        phase=example.phase,
        stack=example.stack,
        bits=example.bits,
        dims=example.dims,
        pad=example.pad,
        causal=example.causal,
        launches=joined(lambda op: op.launches),
        bytes=joined(lambda op: op.bytes),
        flops=joined(lambda op: op.flops),
    )


def _join(parts: Sequence[tuple[int, Poly]]) -> Poly:
    """A polynomial through the values at every length, separately for each power of the micro-batch."""
    powers = sorted({i for _, poly in parts for _, i, _, _ in poly})
    lengths = np.array([seq for seq, _ in parts], dtype=float)
    terms = []
    for power in powers:
        values = [value(tuple(t for t in poly if t[1] == power), 1.0, seq) for seq, poly in parts]
        fitted = np.polynomial.polynomial.polyfit(lengths, values, min(_DEGREE, len(parts) - 1))
        scale = max(abs(v) for v in values) or 1.0
        terms += [(_whole(c), power, j, 0) for j, c in enumerate(fitted) if abs(c) * lengths[-1] ** j > 1e-6 * scale]
    return tuple(terms)


def _whole(coefficient: float) -> float:
    """The whole number that a coefficient is, up to rounding in the fit."""
    near = float(round(coefficient))
    return near if abs(coefficient - near) < 1e-6 * max(1.0, abs(near)) else float(coefficient)


def _join_memory(traces: Sequence[Sized]) -> tuple[MemoryPoint, ...]:
    """A moment for each likeness that every length has: the largest of that likeness."""
    shared = [dict.fromkeys(likeness(point) for point in variant.memory) for _, variant in traces]
    kinds = [kind for kind in shared[0] if all(kind in others for others in shared[1:])]
    return tuple(_join_moment([(seq, _largest(variant, kind, seq)) for seq, variant in traces]) for kind in kinds)


def _largest(variant: Variant, kind: tuple[object, ...], seq: int) -> MemoryPoint:
    return max((p for p in variant.memory if likeness(p) == kind), key=lambda point: _total(point, seq))


def _join_moment(peaks: Sequence[tuple[int, MemoryPoint]]) -> MemoryPoint:
    first = peaks[0][1]

    def joined(part: Callable[[MemoryPoint], Poly]) -> Poly:
        return _join([(seq, part(point)) for seq, point in peaks])

    return MemoryPoint(
        label=peaks[-1][1].label,
        activations=joined(lambda p: p.activations),
        logits=joined(lambda p: p.logits),
        temporary=joined(lambda p: p.temporary),
        gradients=joined(lambda p: p.gradients),
        gradients_in_flight=joined(lambda p: p.gradients_in_flight),
        block_activations=tuple(
            _join([(s, p.block_activations[i]) for s, p in peaks]) for i in range(len(first.block_activations))
        ),
        block_gradients=tuple(
            _join([(s, p.block_gradients[i]) for s, p in peaks]) for i in range(len(first.block_gradients))
        ),
    )


def _total(point: MemoryPoint, seq: int) -> float:
    parts = (point.activations, point.logits, point.temporary, point.gradients, *point.block_activations)
    return sum(value(part, _JUDGED_AT, seq) for part in parts)
