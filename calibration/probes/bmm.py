"""Batched products of eager attention: scores and values, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence

from calibration.probes.base import Case, ProbeResult, call_seconds, fold_rates
from calibration.probes.device import random_tensor, rough_flops_per_s, sixteen_bit, unsupported
from calibration.timing import Call

GEOMETRIES = ((64, 512), (128, 1024), (64, 2048), (128, 512), (64, 1024), (128, 2048))
"""(head size, length), the most telling first."""
_PRODUCTS = 6
_MOST_ELEMENTS = 2**28


class BmmProbe:
    """FLOP/s of the six batched products of eager attention together, at several head sizes and lengths."""

    name = "bmm"
    share = 0.08

    def promises(self) -> tuple[str, ...]:
        """One rate for 16-bit operands, one for fp32, one for fp32 with TF32 products."""
        return ("bmm_16_flops_per_s", "bmm_32_flops_per_s", "bmm_tf32_flops_per_s")

    def run(self, device: str, budget_s: float) -> ProbeResult:
        """Times QKᵀ, PV and their four gradients one after the other."""
        precisions = {"16": sixteen_bit(device), "32": "fp32", "tf32": "tf32"}
        refused = {f"bmm_{w}_flops_per_s": why for w, p in precisions.items() if (why := unsupported(device, p))}
        able = {w: p for w, p in precisions.items() if f"bmm_{w}_flops_per_s" not in refused}
        call_s = call_seconds(budget_s, len(able) * len(GEOMETRIES))
        cases = [_case(device, w, p, *shape, call_s) for w, p in able.items() for shape in GEOMETRIES]
        return fold_rates(self.name, cases, device, budget_s, refused)


def _case(device: str, width: str, precision: str, head: int, length: int, call_s: float) -> Case:
    flops_per_head = _PRODUCTS * 2.0 * length**2 * head
    fitting = int(rough_flops_per_s(device, precision) * call_s / flops_per_head)
    batch = max(1, min(128, _MOST_ELEMENTS // length**2, fitting))
    return Case(
        rate=f"bmm_{width}_flops_per_s",
        label=f"{batch} heads of {head}, length {length} {precision}",
        amount=batch * flops_per_head,
        build=lambda: [_six_products(device, precision, batch, length, head)],
        precision=precision,
        facts={"batch": batch, "length": length, "head": head},
    )


def _six_products(device: str, precision: str, batch: int, length: int, head: int) -> Call:
    import torch

    query, key, value, grad = (random_tensor((batch, length, head), precision, device) for _ in range(4))
    weights = random_tensor((batch, length, length), precision, device)
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]] = (
        (query, key.mT),
        (weights, value),
        (grad, value.mT),
        (weights.mT, grad),
        (weights, key),
        (weights.mT, query),
    )

    def run() -> None:
        for left, right in pairs:
            torch.bmm(left, right)

    return run
