"""Activation checkpointing: which blocks keep only their input and are computed again in the backward pass."""

from __future__ import annotations

import re

from profiles.schema import Recipe
from simulator.case import Case, variant_of
from simulator.techniques.base import Refusal
from simulator.techniques.precision import PRECISIONS

_EVERY = re.compile(r"every_([1-9][0-9]{0,5})")


def checkpointed_blocks(value: str, depth: int) -> int:
    """How many of ``depth`` blocks are computed again: blocks 0, k, 2k … under ``every_k``, so ceil(depth / k)."""
    interval = checkpointing_interval(value)
    return -(-depth // interval) if interval else 0


def checkpointing_interval(value: str) -> int:
    """K of ``every_k``; 1 for ``full`` and 0 for ``none``."""
    if value == "none":
        return 0
    match = _EVERY.fullmatch(value)
    return int(match[1]) if match else 1


class CheckpointingTechnique:
    """Off unless named; the search tries none, full and every second, third and fourth block."""

    knob = "checkpointing"
    allowed = "none, full, every_2, every_3, … (every_k: every k-th block, k from 2)"

    def default(self, case: Case) -> str:
        """None."""
        return "none"

    def values(self, case: Case) -> tuple[str, ...]:
        """The usual five, from no recomputation to all, then sparser."""
        return ("none", "full", "every_2", "every_3", "every_4")

    def parse(self, text: str) -> str:
        """The value named; ``every_1`` is called ``full``."""
        name = text.strip()
        match = _EVERY.fullmatch(name)
        if name in ("none", "full") or (match and int(match[1]) >= 2):
            return name
        raise ValueError(f"{self.knob}={text} is not allowed; allowed: {self.allowed}")

    def refuse(self, recipe: Recipe, case: Case) -> Refusal | None:
        """Models without blocks, blocks that cannot be computed again, and intervals longer than the model."""
        if recipe.checkpointing == "none":
            return None
        workload = case.workload
        numerics = PRECISIONS[recipe.precision].numerics
        if not workload.stacks:
            return self._refusal("checkpointing_needs_blocks", f"{workload.name} has no repeated blocks", "none")
        if not variant_of(workload, numerics, recipe.attention, True):
            untraced = f"its {numerics} {recipe.attention} trace has no such variant"
            why = workload.unavailable.get(f"{recipe.attention}, checkpointing", untraced)
            reason = f"checkpointing is unavailable for {workload.name}: {why}"
            return self._refusal("checkpointing_not_traced", reason, "none")
        depth = max(stack.depth for stack in workload.stacks)
        if checkpointing_interval(recipe.checkpointing) <= depth:
            return None
        reason = f"{recipe.checkpointing} needs as many blocks, and {workload.name} has {depth}"
        return self._refusal("checkpointing_interval", reason, f"every_{depth}" if depth > 1 else "full")

    def _refusal(self, rule: str, reason: str, nearest: str) -> Refusal:
        return Refusal(knob=self.knob, rule=rule, reason=reason, nearest=f"{self.knob}={nearest}")
