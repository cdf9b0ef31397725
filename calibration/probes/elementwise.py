"""Contiguous elementwise work: additions, products, activations and an activation's gradient."""

from __future__ import annotations

from calibration.probes.base import Case
from calibration.probes.device import random_tensor
from calibration.probes.traffic import TrafficProbe, both_widths
from calibration.timing import Call

_READS = {"add": 2, "mul": 2, "gelu": 1, "silu": 1, "tanh": 1, "gelu_backward": 2}
_KINDS = {"fp32": ("add", "mul", "gelu"), "16": ("mul", "add", "gelu", "silu", "gelu_backward", "tanh")}


class ElementwiseProbe(TrafficProbe):
    """Bytes per second of one-kernel elementwise operations on contiguous tensors of one dtype."""

    name = "elementwise"
    share = 0.05

    def cases(self, device: str, elements: int) -> list[Case]:
        """Each operation reads its operands once and writes as many elements."""
        return [
            self._kind(kind, elements, precision, size, device)
            for precision, size in both_widths(device)
            for kind in _KINDS["fp32" if precision == "fp32" else "16"]
        ]

    def _kind(self, kind: str, elements: int, precision: str, size: int, device: str) -> Case:
        amount = float(size * elements * (_READS[kind] + 1))
        label = f"{kind} {precision} of {elements}"
        return self.case(label, elements, amount, lambda: _call(kind, elements, precision, device), device)


def _call(kind: str, elements: int, precision: str, device: str) -> Call:
    import torch

    operator = getattr(torch.ops.aten, kind)
    operands = [random_tensor((elements,), precision, device) for _ in range(_READS[kind])]
    return lambda: operator(*operands)
