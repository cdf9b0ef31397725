"""Programs that loop over positions: three traces become quadratics in the length."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from calibration.monomials import add, scale
from calibration.timeline import Place, PlacedPoint
from profiles.schema import MemoryPoint, Op, Poly, Variant

Sized = tuple[int, Variant]
Array = NDArray[np.float64]
_BATCHES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 256.0, 1024.0)
_LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 32768)
_DECODER_SHARES = (0.25, 1.0)
_BEYOND = (0.0, 10.0, 100.0)
"""Blocks beyond the traced ones at which moments compete: shallow and deep models, all or some blocks checkpointed."""
_SHORT_BY = 0.005


def join_lengths(traces: Sequence[Sized]) -> Variant:
    """One variant whose launches, bytes and memory follow the length, from variants traced at several lengths.

    Memory is joined moment by moment, each with itself: at the same place in the program.

    Raises:
        ValueError: a traced length holds more than the joined moments do.
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
    """A polynomial through the values at every length, separately for each power of the other sizes."""
    powers = sorted({(i, k) for _, poly in parts for _, i, _, k in poly})
    lengths = [float(seq) for seq, _ in parts]
    terms = []
    for i, k in powers:
        values = [sum(c * seq**j for c, ti, j, tk in poly if (ti, tk) == (i, k)) for seq, poly in parts]
        least = 1e-6 * max(abs(v) for v in values)
        fitted = enumerate(_through(lengths, values))
        terms += [(_whole(c), i, j, k) for j, c in fitted if abs(c) * lengths[-1] ** j > least]
    return tuple(terms)


def _through(lengths: Sequence[float], values: Sequence[float]) -> list[float]:
    """Coefficients of the polynomial through all points, by divided differences: exact where they are whole."""
    differences, newton = list(values), []
    for order in range(len(lengths)):
        newton.append(differences[0])
        pairs = zip(itertools.pairwise(differences), lengths, lengths[order + 1 :], strict=False)
        differences = [(b - a) / (high - low) for (a, b), low, high in pairs]
    coefficients: list[float] = []
    for top, length in zip(reversed(newton), reversed(lengths), strict=True):
        shifted = [0.0, *coefficients]
        coefficients = [s - length * c for s, c in zip(shifted, [*coefficients, 0.0], strict=True)]
        coefficients[0] += top
    return coefficients


def _whole(coefficient: float) -> float:
    """The whole number that a coefficient is, up to rounding in the fit."""
    near = float(round(coefficient))
    return near if abs(coefficient - near) < 1e-6 * max(1.0, abs(near)) else float(coefficient)


def _join_memory(traces: Sequence[Sized]) -> tuple[MemoryPoint, ...]:
    """The moments at the same place in the program at every length: those that are the peak of their kind somewhere.

    Raises:
        ValueError: a traced length holds more than they do, as where two loops follow each other.
    """
    lengths = [seq for seq, _ in traces]
    joined = [_join_moment(list(zip(lengths, points, strict=True))) for points in _alike(traces)]
    largest = _largest(list(dict.fromkeys(joined)), lengths) if joined else ()
    if not largest or any(_falls_short(largest, variant, seq) for seq, variant in traces):
        raise ValueError("its loops over positions cannot be told apart, so neither can its memory at other lengths")
    return largest


def _alike(traces: Sequence[Sized]) -> list[list[PlacedPoint]]:
    """Moments at the same place, one a length, if that place moves evenly as the length grows; else they differ."""
    placed: list[dict[Place, PlacedPoint]] = []
    for _, variant in traces:
        points = [point for point in variant.memory if isinstance(point, PlacedPoint)]
        placed.append({place: point for point in points for place in point.places})
    alike = [[found[place] for found in placed] for place in placed[0] if all(place in found for found in placed)]
    lengths = [float(seq) for seq, _ in traces]
    return [points for points in alike if not any(_through(lengths, [float(p.step) for p in points])[2:])]


def _largest(points: Sequence[MemoryPoint], traced: Sequence[int]) -> tuple[MemoryPoint, ...]:
    """Of the moments that share a label and whether the other blocks hold anything, those largest at some size."""
    kinds: dict[object, list[int]] = {}
    for index, point in enumerate(points):
        held = (bool(poly) for poly in (*point.block_activations, *point.block_gradients))
        kinds.setdefault((point.label, *held), []).append(index)
    sizes = _sizes([*traced, *_LENGTHS])
    chosen: set[int] = set()
    for beyond, accumulating in itertools.product(_BEYOND, (False, True)):
        held_bytes = _bytes(points, sizes, beyond, accumulating)
        for members in kinds.values():
            chosen.update(members[i] for i in np.argmax(held_bytes[members], axis=0))
    return tuple(points[i] for i in sorted(chosen))


def _falls_short(joined: Sequence[MemoryPoint], variant: Variant, seq: int) -> bool:
    """Whether a trace, at its own length, holds more than the joined moments at some micro-batch and depth."""
    sizes = _sizes([seq])
    for beyond, accumulating in itertools.product(_BEYOND, (False, True)):
        told, real = (_bytes(points, sizes, beyond, accumulating).max(axis=0) for points in (joined, variant.memory))
        if np.any(told < (1 - _SHORT_BY) * real):
            return True
    return False


def _sizes(lengths: Sequence[float]) -> Array:
    return np.array([(b, s, share * s) for b in _BATCHES for s in lengths for share in _DECODER_SHARES])


def _bytes(points: Sequence[MemoryPoint], sizes: Array, beyond: float, accumulating: bool) -> Array:
    """Live bytes, a row a moment and a column a size, with ``beyond`` blocks a stack more than the traced ones."""
    totals = [_total(point, beyond, accumulating) for point in points]
    basis = sorted({term[1:] for total in totals for term in total})
    column = {powers: index for index, powers in enumerate(basis)}
    coefficients = np.zeros((len(points), len(basis)))
    for row, total in enumerate(totals):
        for (coefficient, *_), powers in ((term, term[1:]) for term in total):
            coefficients[row, column[powers]] = coefficient
    values = np.prod(sizes[:, None, :] ** np.array(basis, dtype=float)[None, :, :], axis=2)
    return np.asarray(coefficients @ values.T)


def _total(point: MemoryPoint, beyond: float, accumulating: bool) -> Poly:
    more = point.block_activations if accumulating else (*point.block_activations, *point.block_gradients)
    gradients = point.gradients_in_flight if accumulating else point.gradients
    parts = (point.activations, point.logits, point.temporary, gradients)
    return add(*parts, *(scale(poly, beyond) for poly in more))


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
