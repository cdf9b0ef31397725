"""Fused attention: torch's scaled_dot_product_attention, forward and backward, by head size and width."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from calibration.probes.base import Case, ProbeResult, call_seconds, fold_rates
from calibration.probes.device import random_tensor, rough_flops_per_s, sixteen_bit
from calibration.timing import Call

HEADS = (64, 128, 256)
LENGTHS = (1024, 2048, 512)
BACKWARD_FLOPS = 2.5
"""FLOPs of the backward pass over those of the forward pass: five products instead of two."""
_TOKENS = 16384
_WIDTH = 2048


class AttentionProbe:
    """FLOP/s of causal fused attention, counting the causal half of the products; fp32 without TF32.

    The fused kernel is whichever torch picks by default; the unfused one is not accepted in its place.
    """

    name = "attention"
    share = 0.14

    def promises(self) -> tuple[str, ...]:
        """A forward and a backward rate for each operand width and head size."""
        return tuple(_rate(w, phase, h) for w in ("16", "32") for h in HEADS for phase in ("forward", "backward"))

    def run(self, device: str, budget_s: float) -> ProbeResult:
        """Times each head size at several lengths, and one length without the causal mask as a check (a row only)."""
        widths = {"16": sixteen_bit(device), "32": "fp32"}
        shapes = [(w, p, head, length) for w, p in widths.items() for head in HEADS for length in LENGTHS]
        call_s = call_seconds(budget_s, 2 * len(shapes) + 4)
        cases = [
            _case(device, phase, *shape, call_s, causal=True) for shape in shapes for phase in ("forward", "backward")
        ]
        checks = [
            _case(device, phase, w, p, HEADS[0], LENGTHS[0], call_s, causal=False)
            for w, p in widths.items()
            for phase in ("forward", "backward")
        ]
        result = fold_rates(self.name, [*cases, *checks], device, budget_s)
        named = set(self.promises())
        return ProbeResult(
            rates={name: rate for name, rate in result.rates.items() if name in named},
            rows=result.rows,
            skipped=result.skipped,
            left_out=result.left_out,
        )


def causal_flops(batch: int, heads: int, length: int, head: int, phase: str) -> float:
    """FLOPs of causal attention: half of 4 · batch · heads · length² · head forward, 2.5 times that backward."""
    forward = 2.0 * batch * heads * length**2 * head
    return forward if phase == "forward" else BACKWARD_FLOPS * forward


def _rate(width: str, phase: str, head: int) -> str:
    return f"attention_{width}_{phase}_hd{head}_flops_per_s"


def _case(
    device: str, phase: str, width: str, precision: str, head: int, length: int, call_s: float, *, causal: bool
) -> Case:
    heads = _WIDTH // head
    sample = causal_flops(1, 1, length, head, phase) * (1 if causal else 2)
    # Fused attention reaches about half the rate of a large product, less on the backward pass.
    fitting = int(rough_flops_per_s(device, precision) * call_s / 2 / sample)
    batch, heads = (max(1, min(_TOKENS // length, fitting // heads)), heads if fitting >= heads else max(1, fitting))
    mask = "causal" if causal else "full"
    return Case(
        rate=_rate(width, phase, head) if causal else f"full_{_rate(width, phase, head)}",
        label=f"{phase} {batch}x{heads} heads of {head}, length {length}, {mask} {precision}",
        amount=batch * heads * sample,
        build=lambda: [_attention(device, precision, (batch, heads, length, head), phase, causal=causal)],
        facts={"batch": batch, "heads": heads, "length": length, "head": head, "causal": float(causal)},
    )


def _attention(device: str, precision: str, shape: tuple[int, ...], phase: str, *, causal: bool) -> Call:
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    query, key, value = (random_tensor(shape, precision, device).requires_grad_() for _ in range(3))

    def forward() -> torch.Tensor:
        with _fused_only():
            return scaled_dot_product_attention(query, key, value, is_causal=causal)

    if phase == "forward":
        return forward
    out, grad = forward(), random_tensor(shape, precision, device)
    return lambda: torch.autograd.grad(out, (query, key, value), grad, retain_graph=True)


@contextmanager
def _fused_only() -> Iterator[None]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    fused = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]
    with sdpa_kernel(fused):
        yield
