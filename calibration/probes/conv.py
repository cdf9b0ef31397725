"""The patch convolution of a vision transformer: forward and weight gradient."""

from __future__ import annotations

from calibration.probes.base import Case, ProbeResult, call_seconds, fold_rates
from calibration.probes.device import random_tensor, rough_flops_per_s, sixteen_bit
from calibration.timing import Call

_WIDTH, _CHANNELS, _PATCH, _IMAGE = 768, 3, 16, 224
_MOST_IMAGES = 256


class ConvProbe:
    """FLOP/s of cutting 224² images into patches of 16² by a strided convolution.

    fp32 runs under torch's own default for convolutions, which allows TF32 where the device has it.
    """

    name = "conv"
    share = 0.03

    def promises(self) -> tuple[str, ...]:
        """One rate for 16-bit operands, one for fp32."""
        return ("conv_16_flops_per_s", "conv_32_flops_per_s")

    def run(self, device: str, budget_s: float) -> ProbeResult:
        """Times the forward pass and the weight gradient together; images need no gradient."""
        precisions = {"16": sixteen_bit(device), "32": "fp32"}
        call_s = call_seconds(budget_s, len(precisions))
        cases = [_case(device, width, precision, call_s) for width, precision in precisions.items()]
        return fold_rates(self.name, cases, device, budget_s)


def conv_flops(images: int) -> float:
    """FLOPs of forward and weight gradient: two multiply-adds per weight, patch and image each way."""
    patches = (_IMAGE // _PATCH) ** 2
    return 2 * 2.0 * images * patches * _WIDTH * _CHANNELS * _PATCH**2


def _case(device: str, width: str, precision: str, call_s: float) -> Case:
    # Convolutions reach about a quarter of the rate of a large product.
    images = max(1, min(_MOST_IMAGES, int(rough_flops_per_s(device, precision) * call_s / 4 / conv_flops(1))))
    return Case(
        rate=f"conv_{width}_flops_per_s",
        label=f"{images} images {precision}",
        amount=conv_flops(images),
        build=lambda: [_patchify(device, precision, images)],
        facts={"images": images},
    )


def _patchify(device: str, precision: str, images: int) -> Call:
    import torch
    from torch.nn.functional import conv2d

    x = random_tensor((images, _CHANNELS, _IMAGE, _IMAGE), precision, device)
    weight = random_tensor((_WIDTH, _CHANNELS, _PATCH, _PATCH), precision, device).requires_grad_()
    side = _IMAGE // _PATCH
    grad = random_tensor((images, _WIDTH, side, side), precision, device)
    return lambda: torch.autograd.grad(conv2d(x, weight, stride=_PATCH), weight, grad)
