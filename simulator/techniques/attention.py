"""Attention: written out in products and a softmax (eager), or one fused kernel (sdpa)."""

from __future__ import annotations

from profiles.schema import Recipe
from simulator.case import Case, variant_of
from simulator.techniques.base import Refusal, parse_choice
from simulator.techniques.precision import PRECISIONS

ATTENTIONS = ("eager", "sdpa")


class AttentionTechnique:
    """sdpa where the model has it, else eager; the search tries both."""

    knob = "attention"
    allowed = ", ".join(ATTENTIONS)

    def default(self, case: Case) -> str:
        """The fused kernel if the model was traced with it."""
        traced = any(variant.attention == "sdpa" for variant in case.workload.variants)
        return "sdpa" if traced else "eager"

    def values(self, case: Case) -> tuple[str, ...]:
        """Both."""
        return ATTENTIONS

    def parse(self, text: str) -> str:
        """The attention named."""
        return parse_choice(self.knob, text, ATTENTIONS)

    def refuse(self, recipe: Recipe, case: Case) -> Refusal | None:
        """An attention that the model's class lacks in these numerics."""
        numerics = PRECISIONS[recipe.precision].numerics
        if variant_of(case.workload, numerics, recipe.attention, False):
            return None
        why = case.workload.unavailable.get(recipe.attention, f"its {numerics} trace has no such variant")
        others = [other for other in ATTENTIONS if variant_of(case.workload, numerics, other, False)]
        return Refusal(
            knob=self.knob,
            rule="attention_not_traced",
            reason=f"attention {recipe.attention} is unavailable for {case.workload.name}: {why}",
            nearest=f"{self.knob}={others[0]}" if others else "",
        )
