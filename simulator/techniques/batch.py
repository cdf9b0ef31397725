"""Batch: samples per micro-batch, micro-batches per step, and the global batch that they must make."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from profiles.schema import Recipe
from simulator.case import Case
from simulator.techniques.base import Refusal, parse_whole

IntArray = NDArray[np.int64]

CAP_WITHOUT_GLOBAL_BATCH = 4096
LARGEST_MICRO_BATCH = 65_536
"""The search stops here: kernels whose grid has a sample per row end at 65,535."""

RULE = "global_batch"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batches:
    """Legal pairs of micro-batch and accumulation, by micro-batch, and how many micro-batches each rule refused."""

    micro_batch: IntArray
    grad_accum: IntArray
    candidates: int
    refused: dict[str, int] = field(default_factory=dict)


def legal_batches(case: Case) -> Batches:
    """Every micro-batch with the accumulation that makes the global batch, or comes nearest within its tolerance.

    Without a global batch the accumulation is the fixed one, else 1, and micro-batches end at 4096.
    """
    micro_batch = _candidates(case)
    grad_accum = _accumulations(micro_batch, case)
    legal = np.ones(len(micro_batch), dtype=bool)
    wanted = case.run.global_batch
    if wanted is not None:
        legal = np.abs(micro_batch * grad_accum * case.ranks - wanted) <= _slack(case)
    missed = int(len(legal) - legal.sum())
    return Batches(
        micro_batch=micro_batch[legal],
        grad_accum=grad_accum[legal],
        candidates=len(micro_batch),
        refused={RULE: missed} if missed else {},
    )


def _candidates(case: Case) -> IntArray:
    fixed = case.fixed.get("micro_batch")
    if isinstance(fixed, int):
        return np.array([fixed], dtype=np.int64)
    cap = CAP_WITHOUT_GLOBAL_BATCH
    if case.run.global_batch is not None:
        most = int((case.run.global_batch + _slack(case)) // case.ranks)
        cap = min(most, LARGEST_MICRO_BATCH)
    return np.arange(1, max(cap, 1) + 1, dtype=np.int64)


def _accumulations(micro_batch: IntArray, case: Case) -> IntArray:
    """Per micro-batch the fixed accumulation, else the one whose global batch is nearest, the smaller of two."""
    fixed = case.fixed.get("grad_accum")
    if isinstance(fixed, int):
        return np.full_like(micro_batch, fixed)
    wanted = case.run.global_batch
    if wanted is None:
        return np.ones_like(micro_batch)
    per_accumulation = micro_batch * case.ranks
    below = wanted // per_accumulation
    nearer_above = (below + 1) * per_accumulation - wanted < wanted - below * per_accumulation
    nearest: IntArray = np.maximum(below + nearer_above, 1)
    return nearest


def _slack(case: Case) -> float:
    """Samples by which the global batch may be missed."""
    return (case.run.global_batch or 0) * case.run.global_batch_tolerance * (1 + 1e-12)


class MicroBatchTechnique:
    """1 unless named, or what the global batch leaves when only the accumulation is named."""

    knob = "micro_batch"
    allowed = "a whole number of samples per GPU from 1"

    def default(self, case: Case) -> int:
        """1, or global batch ÷ (ranks × the named accumulation)."""
        accumulation, wanted = case.fixed.get("grad_accum"), case.run.global_batch
        if wanted is None or not isinstance(accumulation, int):
            return 1
        return max(1, wanted // (case.ranks * accumulation))

    def values(self, case: Case) -> tuple[int, ...]:
        """Every integer that makes the global batch, not only powers of two."""
        return tuple(legal_batches(case).micro_batch.tolist())

    def parse(self, text: str) -> int:
        """A number from 1."""
        return parse_whole(self.knob, text)

    def refuse(self, recipe: Recipe, case: Case) -> Refusal | None:
        """Nothing by itself: what does not make the global batch is refused with the accumulation."""
        return None


class GradAccumTechnique:
    """Global batch ÷ (data-parallel ranks × micro-batch), exact or within the tolerance; 1 without a global batch."""

    knob = "grad_accum"
    allowed = "a whole number of micro-batches per step from 1"

    def default(self, case: Case) -> int:
        """The accumulation that makes the global batch, or comes nearest to it."""
        fixed = case.fixed.get("micro_batch")
        micro_batch = fixed if isinstance(fixed, int) else MicroBatchTechnique().default(case)
        return int(_accumulations(np.array([micro_batch], dtype=np.int64), case)[0])

    def values(self, case: Case) -> tuple[int, ...]:
        """Every accumulation that makes the global batch with some micro-batch."""
        return tuple(np.unique(legal_batches(case).grad_accum).tolist())

    def parse(self, text: str) -> int:
        """A number from 1."""
        return parse_whole(self.knob, text)

    def refuse(self, recipe: Recipe, case: Case) -> Refusal | None:
        """A global batch that is missed by more than its tolerance."""
        wanted = case.run.global_batch
        actual = recipe.micro_batch * recipe.grad_accum * case.ranks
        if wanted is None or abs(actual - wanted) <= _slack(case):
            return None
        reason = (
            f"micro_batch {recipe.micro_batch} × grad_accum {recipe.grad_accum} × {case.ranks} ranks = {actual} "
            f"samples, not the global batch {wanted}{_tolerance_text(case)}"
        )
        return Refusal(knob=self.knob, rule=RULE, reason=reason, nearest=_nearest(recipe, case))


def _tolerance_text(case: Case) -> str:
    tolerance = case.run.global_batch_tolerance
    return f" ± {tolerance * 100:g} %" if tolerance else ""


def _nearest(recipe: Recipe, case: Case) -> str:
    """The legal pair with the closest micro-batch, or, if the ranks cannot make the global batch, those they can."""
    batches = legal_batches(replace(case, fixed={}))
    if len(batches.micro_batch):
        index = int(np.argmin(np.abs(batches.micro_batch - recipe.micro_batch)))
        return f"micro_batch={batches.micro_batch[index]},grad_accum={batches.grad_accum[index]}"
    below = (case.run.global_batch or 0) // case.ranks * case.ranks
    return f"a global batch of {below} or {below + case.ranks}" if below else f"a global batch of {case.ranks}"
