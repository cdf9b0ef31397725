"""Compile: whether torch.compile fuses the model's kernels."""

from __future__ import annotations

from profiles.schema import Recipe
from simulator.case import Case
from simulator.techniques.base import Refusal, parse_choice

SWITCH = ("off", "on")


class CompileTechnique:
    """Off unless named; the search tries both on a GPU.

    On a CPU it is accepted but not searched: compiling takes a minute or more a shape there, longer than the short
    runs that a CPU is used for.
    """

    knob = "compile"
    allowed = ", ".join(SWITCH)

    def default(self, case: Case) -> str:
        """Off."""
        return "off"

    def values(self, case: Case) -> tuple[str, ...]:
        """Both on a GPU, off on a CPU."""
        return ("off",) if case.machine.gpu.kind == "cpu" else SWITCH

    def parse(self, text: str) -> str:
        """The switch named."""
        return parse_choice(self.knob, text, SWITCH)

    def refuse(self, recipe: Recipe, case: Case) -> Refusal | None:
        """Nothing forbids either."""
        return None
