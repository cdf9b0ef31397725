"""From a recording to what the simulator keeps: operations per block, and the few moments at which memory can peak."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from calibration import monomials
from calibration.opkinds import Dims, Pad
from calibration.recorder import NEVER, Allocation, OpRecord, Recording
from profiles.schema import MemoryPoint, Op, OpKind, Phase, Poly, Stack, Term

Array = npt.NDArray[np.float64]
_SHAPED = {"matmul", "bmm", "attention"}
_GRANULE = 512  # CUDA's caching allocator rounds every request up to 512 bytes
CATEGORIES = ("activations", "logits", "temporary", "gradients")


# ------------------------------------------------------------------------------------------------- operations


class _Kind(NamedTuple):
    """What operations must share to be stored as one entry."""

    kind: OpKind
    phase: Phase
    stack: int
    bits: Literal[16, 32]
    dims: Dims | None
    pad: Pad
    flops: Poly
    causal: bool


def collect_ops(ops: Iterable[OpRecord], stacks: tuple[Stack, ...]) -> tuple[Op, ...]:
    """Operations of one middle block per stack, and of the outside: everything less three middle blocks."""
    launches: dict[_Kind, float] = {}
    moved: dict[_Kind, list[Poly]] = {}
    for op in ops:
        places = [(-1, 1.0)]
        if op.block is not None and op.block[1] == 1:
            places = [(op.block[0], 1.0), (-1, -2.0)]
        for stack, factor in places:
            kind = _kind(op, stack)
            launches[kind] = launches.get(kind, 0.0) + factor
            moved.setdefault(kind, []).append(monomials.scale(op.bytes, factor))
    return tuple(_op(kind, count, monomials.add(*moved[kind])) for kind, count in launches.items() if count)


def _kind(op: OpRecord, stack: int) -> _Kind:
    shaped = op.kind in _SHAPED
    return _Kind(
        kind=op.kind,
        phase=op.phase,
        stack=stack,
        bits=op.bits,
        dims=op.dims if shaped else None,
        pad=op.pad if shaped else "aligned",
        flops=op.flops if shaped or op.kind == "conv" else (),
        causal=op.causal and shaped,
    )


def _op(key: _Kind, launches: float, moved: Poly) -> Op:
    return Op(
        kind=key.kind,
        phase=key.phase,
        stack=key.stack,
        bits=key.bits,
        launches=((launches, 0, 0, 0),),
        bytes=moved,
        flops=monomials.scale(key.flops, launches),
        dims=None if key.dims is None else ((key.dims[0],), (key.dims[1],), (key.dims[2],), (key.dims[3],)),
        pad=key.pad,
        causal=key.causal,
    )


# ----------------------------------------------------------------------------------------------------- memory


class Timeline:
    """Live bytes during every operation, split by category, as coefficients over the recording's monomials."""

    def __init__(self, recording: Recording, allocations: list[Allocation], stacks: tuple[Stack, ...]) -> None:
        self.recording, self.stacks = recording, stacks
        self.basis = sorted({a.size[1:] for a in allocations})
        self.count = recording.count
        self.category = [_category(a, recording) for a in allocations]
        self.allocations = allocations
        self.live = {c: self._curve(lambda a, k, c=c: k == c) for c in CATEGORIES}
        self.in_flight = self._curve(lambda a, k: k == "gradients", accumulating=True)
        self.middle = [self._middle(i, "activations") for i in range(len(stacks))]
        self.middle_gradients = [self._middle(i, "gradients") for i in range(len(stacks))]

    def _curve(self, keep, accumulating: bool = False) -> Array:  # type: ignore[no-untyped-def]  # noqa: ANN001
        steps = np.zeros((self.count + 2, len(self.basis)))
        for made, category in zip(self.allocations, self.category, strict=True):
            if keep(made, category):
                death = min(made.death, made.accumulated) if accumulating else made.death
                column = self.basis.index(made.size[1:])
                steps[made.birth, column] += rounded(made)
                if death < self.count:
                    steps[death + 1, column] -= rounded(made)
        return np.cumsum(steps, axis=0)[: self.count + 1]

    def _middle(self, stack: int, category: str) -> Array:
        return self._curve(lambda a, k: a.block == (stack, 1) and (k == "gradients") == (category == "gradients"))

    def poly(self, row: Array) -> Poly:
        """A row of coefficients as a polynomial."""
        return tuple((float(c), *exponents) for c, exponents in zip(row, self.basis, strict=True) if abs(c) > 0.5)


def rounded(made: Allocation) -> float:
    """The size's coefficient; a constant is rounded up as the caching allocator does."""
    coefficient, *exponents = made.size
    return coefficient if any(exponents) else float(-(-int(coefficient) // _GRANULE) * _GRANULE)


def _category(made: Allocation, recording: Recording) -> str:
    if made.gradient:
        return "gradients"
    if made.logits:
        return "logits"
    return "activations" if made.phase == "forward" and made.death >= recording.forward_end else "temporary"


def memory_points(timeline: Timeline, grid: Array, *, every_label: bool = False) -> tuple[MemoryPoint, ...]:
    """The moments that are the peak for some size in ``grid`` (rows: micro-batch, seq, decoder seq).

    Sizes in between peak at one of them too, or within a fraction of a per cent: live bytes are smooth in the sizes.
    ``every_label`` gives every moment of every label instead, each with its places in the program: of a program that
    loops over positions, one length alone cannot tell which moment is the peak at another.
    """
    if every_label:
        return _placed_points(timeline)
    moments = [m for n in range(1, timeline.count + 1) for m in _moments(timeline, n)]
    powers = np.array(timeline.basis, dtype=float)
    values = np.prod(grid[:, None, :] ** powers[None, :, :], axis=2)
    total = np.stack([m.total(timeline) for m in moments])
    accumulating = np.stack([m.total(timeline, accumulating=True) for m in moments])
    chosen: Counter[int] = Counter()
    for rows in (total, accumulating):
        chosen.update(np.argmax(values @ rows.T, axis=1).tolist())
    return tuple(moments[i].point(timeline) for i in sorted(chosen))


class Place(NamedTuple):
    """A moment's place in the program that is the same at every length.

    A stretch lies between two landmarks that the program passes once whatever the length: a block begins, the logits
    are made. In it, moments are told by what the operation ``makes``, counted from the stretch's begin or its end;
    ``state`` is which of their states the other blocks are in.
    """

    stretch: int
    makes: tuple[object, ...]
    from_end: bool
    nth: int
    state: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPoint(MemoryPoint):
    """A moment with its places; ``step`` is the number of its operation."""

    step: int
    places: tuple[Place, ...]


def _placed_points(timeline: Timeline) -> tuple[MemoryPoint, ...]:
    """Moments of all operations that make something; during any other one, no more is held than before it."""
    marks, made = _landmarks(timeline), _made(timeline)
    steps = [n for n in range(1, timeline.count + 1) if n in made or n - 1 in marks]
    kinds = {n: (bisect.bisect_left(marks, n), tuple(sorted(made.get(n, ())))) for n in steps}
    totals, seen, points = Counter(kinds.values()), Counter[object](), []
    for n, kind in kinds.items():
        before, after = seen[kind], totals[kind] - seen[kind] - 1
        seen[kind] += 1
        for state, moment in enumerate(_moments(timeline, n)):
            ends = [Place(*kind, from_end=False, nth=before, state=state)] if before <= after + 1 else []
            ends += [Place(*kind, from_end=True, nth=after, state=state)] if after <= before + 1 else []
            points.append(PlacedPoint(step=n, places=tuple(ends), **_parts_of(moment.point(timeline))))
    return tuple(points)


def _made(timeline: Timeline) -> dict[int, list[tuple[Term, str]]]:
    """What every operation allocates: sizes and categories."""
    made: dict[int, list[tuple[Term, str]]] = {}
    for allocation, category in zip(timeline.allocations, timeline.category, strict=True):
        made.setdefault(allocation.birth, []).append((allocation.size, category))
    return made


def _parts_of(point: MemoryPoint) -> dict[str, Any]:
    return {part.name: getattr(point, part.name) for part in fields(point)}


def _landmarks(timeline: Timeline) -> list[int]:
    """Numbers of operations seen at the landmarks, in order; the same landmarks at every length."""
    recording = timeline.recording
    recomputed: dict[object, list[int]] = {}
    logits = []
    for made in recording.allocations:
        if made.phase == "recompute":
            recomputed.setdefault(made.block, []).append(made.birth)
        if made.logits:
            logits.append(made.birth)
    spans = [edge for births in recomputed.values() for edge in (min(births) - 1, max(births))]
    edges = [*recording.entered.values(), recording.forward_end, *recording.backed.values(), *spans, *logits]
    return sorted([0, *edges, timeline.count])


class _Moment:
    """Operation n, with every stack's other blocks in a definite state (rows of ``middle`` to add per block)."""

    def __init__(self, n: int, states: tuple[int, ...]) -> None:
        self.n, self.states = n, states

    def _extra(self, curves: list[Array]) -> list[Array]:
        return [curve[state] for curve, state in zip(curves, self.states, strict=True)]

    def total(self, timeline: Timeline, accumulating: bool = False) -> Array:
        """Coefficients of all live bytes at the real depth; without the full gradients when ``accumulating``."""
        held = ("activations", "logits", "temporary") if accumulating else CATEGORIES
        row = sum((timeline.live[c][self.n] for c in held), np.zeros(len(timeline.basis)))
        row = row + timeline.in_flight[self.n] if accumulating else row
        for i, stack in enumerate(timeline.stacks):
            more = self._extra(timeline.middle)[i]
            if not accumulating:
                more = more + self._extra(timeline.middle_gradients)[i]
            row = row + (stack.depth - 3) * more
        return np.asarray(row)

    def point(self, timeline: Timeline) -> MemoryPoint:
        """The moment as stored."""
        live = {c: timeline.poly(timeline.live[c][self.n]) for c in CATEGORIES}
        return MemoryPoint(
            label=_label(timeline.recording, self.n),
            **live,
            gradients_in_flight=timeline.poly(timeline.in_flight[self.n]),
            block_activations=tuple(timeline.poly(row) for row in self._extra(timeline.middle)),
            block_gradients=tuple(timeline.poly(row) for row in self._extra(timeline.middle_gradients)),
        )


def _moments(timeline: Timeline, n: int) -> list[_Moment]:
    """Inside a middle block its siblings may be all before or all after; elsewhere they are on one side of it."""
    choices: list[tuple[int, ...]] = [()]
    for i in range(len(timeline.stacks)):
        choices = [(*c, s) for c in choices for s in _states(timeline.recording, i, n)]
    return [_Moment(n, c) for c in choices]


def _states(recording: Recording, stack: int, n: int) -> tuple[int, ...]:
    """The operations at which the middle block holds what its siblings hold during operation n.

    What it hands to its neighbour is alive a little longer than it runs, once, not once per block. So siblings that ran
    are seen at the end of the forward pass, siblings that wait for their backward pass just after it, and siblings
    walked back at the very end.
    """
    begin, end, back, done = _span(recording, stack)
    saved = min(recording.forward_end + 1, recording.count)
    if n <= begin:
        return (begin,)
    if n <= recording.forward_end:
        return (begin, recording.forward_end) if n <= end else (recording.forward_end,)
    if back == NEVER:
        return (n,)
    if n <= back:
        return (saved,)
    return (saved, recording.count) if n <= done else (recording.count,)


def _span(recording: Recording, stack: int) -> tuple[int, int, int, int]:
    """Operations seen when the middle block's forward began and ended, and its backward began and ended."""
    return (
        recording.entered[stack, 1],
        recording.entered[stack, 2],
        recording.backed.get((stack, 1), NEVER),
        recording.backed.get((stack, 0), NEVER),
    )


def _label(recording: Recording, n: int) -> str:
    if n <= recording.forward_end:
        last = max((e for e in recording.entered.values()), default=0)
        return "forward" if n <= last else "end of forward"
    first = min((b for b in recording.backed.values()), default=recording.count)
    return "backward at the head" if n <= first else "backward in the blocks"


def block_saved(timeline: Timeline) -> tuple[Poly, ...]:
    """Bytes each middle block keeps for its backward pass, seen when the backward pass begins."""
    after = min(timeline.recording.forward_end + 1, timeline.count)
    return tuple(timeline.poly(curve[after]) for curve in timeline.middle)
