"""Precision: the numerics of the products, the weights and the gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from profiles.schema import Gpu, Numerics, Recipe
from simulator.case import Case
from simulator.techniques.base import Refusal, parse_choice

Product = Literal["fp32", "tf32", "fp16", "bf16"]
AMPERE = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """What one precision means: traced numerics, rate of matrix products, width of their operands, stored bytes.

    ``weight_bytes`` and ``gradient_bytes`` are per parameter; optimizer state has the weights' width, since torch's
    optimizers allocate it like the parameter.
    """

    name: str
    numerics: Numerics
    product: Product
    bits: Literal[16, 32]
    weight_bytes: int
    gradient_bytes: int
    loss_scaler: bool = False


PRECISIONS: dict[str, Precision] = {
    precision.name: precision
    for precision in (
        Precision(name="fp32", numerics="fp32", product="fp32", bits=32, weight_bytes=4, gradient_bytes=4),
        Precision(name="tf32", numerics="fp32", product="tf32", bits=32, weight_bytes=4, gradient_bytes=4),
        Precision(
            name="fp16", numerics="amp", product="fp16", bits=16, weight_bytes=4, gradient_bytes=4, loss_scaler=True
        ),
        Precision(name="bf16", numerics="amp", product="bf16", bits=16, weight_bytes=4, gradient_bytes=4),
        Precision(name="bf16_pure", numerics="pure", product="bf16", bits=16, weight_bytes=2, gradient_bytes=2),
    )
}

_INSTEAD: dict[str, tuple[str, ...]] = {
    "bf16": ("fp16", "tf32", "fp32"),
    "bf16_pure": ("bf16", "fp16", "tf32", "fp32"),
    "fp16": ("bf16", "tf32", "fp32"),
    "tf32": ("fp32", "bf16", "fp16"),
    "fp32": ("tf32", "bf16", "fp16"),
}


def product_flops_per_s(gpu: Gpu, product: Product) -> float | None:
    """Dense peak of the GPU's matrix products in FLOP/s, or ``None`` if it has no such product."""
    peaks = {
        "fp32": gpu.fp32_flops_per_s,
        "tf32": gpu.tf32_flops_per_s,
        "fp16": gpu.fp16_flops_per_s,
        "bf16": gpu.bf16_flops_per_s,
    }
    return peaks[product]


class PrecisionTechnique:
    """bf16 where the GPU has it, fp16 below compute capability 8.0, fp32 on a CPU.

    The search tries every precision that keeps 32-bit weights, since each is ordinary training numerics.
    ``bf16_pure`` rounds the weights themselves, which can change what is learned, so it is used only when named.
    """

    knob = "precision"
    allowed = ", ".join(PRECISIONS)

    def default(self, case: Case) -> str:
        """bf16, or what the machine has instead."""
        if case.machine.gpu.kind == "cpu":
            return "fp32"
        legal = [name for name in ("bf16", *_INSTEAD["bf16"]) if _problem(name, case) is None]
        return legal[0] if legal else "bf16"

    def values(self, case: Case) -> tuple[str, ...]:
        """All precisions with 32-bit weights."""
        return tuple(name for name, precision in PRECISIONS.items() if precision.weight_bytes == 4)

    def parse(self, text: str) -> str:
        """The precision named."""
        return parse_choice(self.knob, text, PRECISIONS)

    def refuse(self, recipe: Recipe, case: Case) -> Refusal | None:
        """Numerics that the device lacks, or that the model was not traced with."""
        problem = _problem(recipe.precision, case)
        if problem is None:
            return None
        legal = [name for name in _INSTEAD[recipe.precision] if _problem(name, case) is None]
        nearest = f"{self.knob}={legal[0]}" if legal else ""
        return Refusal(knob=self.knob, rule=problem[0], reason=problem[1], nearest=nearest)


def _problem(name: str, case: Case) -> tuple[str, str] | None:
    """Rule and reason against a precision, or ``None``."""
    gpu, precision = case.machine.gpu, PRECISIONS[name]
    if gpu.kind == "cpu" and precision.product in ("fp16", "tf32"):
        return "precision_needs_gpu", f"{name} needs a GPU, and {gpu.name} is a CPU"
    capability = gpu.compute_capability
    if capability is not None and capability < AMPERE and precision.product in ("bf16", "tf32"):
        return (
            "precision_needs_capability_8",
            f"{name} needs compute capability {AMPERE} or above, and {gpu.name} has {capability}",
        )
    if product_flops_per_s(gpu, precision.product) is None:
        return "precision_without_peak", f"{name} needs {precision.product} matrix products, and {gpu.name} has none"
    if not any(variant.numerics == precision.numerics for variant in case.workload.variants):
        why = case.workload.unavailable.get(precision.numerics, "its trace has no such variant")
        return "precision_not_traced", f"{name} is unavailable for {case.workload.name}: {why}"
    return None
