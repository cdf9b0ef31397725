"""Work along rows: softmax, layer norm, and column sums."""

from __future__ import annotations

from functools import partial

from calibration.probes.base import Case
from calibration.probes.device import random_tensor
from calibration.probes.traffic import TrafficProbe, both_widths
from calibration.timing import Call

_SCORES, _VOCABULARY = 2048, 50304
_WIDTHS = (1024, 2048)


class SoftmaxProbe(TrafficProbe):
    """Bytes per second of softmax over attention scores and log-softmax over a vocabulary, with their gradients.

    Forward reads and writes once; backward reads the gradient and the output, and writes once.
    """

    name = "softmax"
    share = 0.05

    def cases(self, device: str, elements: int) -> list[Case]:
        """Both functions, both directions, in two dtypes."""
        return [
            self._one(kind, width, backward, precision, size, elements, device)
            for precision, size in both_widths(device)
            for kind, width in (("softmax", _SCORES), ("log_softmax", _VOCABULARY))
            for backward in (False, True)
        ]

    def _one(
        self, kind: str, width: int, backward: bool, precision: str, size: int, elements: int, device: str
    ) -> Case:
        rows = max(4, elements // width)
        amount = float(size * rows * width * (3 if backward else 2))
        label = f"{kind}{' backward' if backward else ''} {precision} of {rows}x{width}"
        return self.case(
            label, rows * width, amount, lambda: _softmax(kind, backward, (rows, width), precision, device), device
        )


class NormProbe(TrafficProbe):
    """Bytes per second of layer norm.

    Forward reads and writes once; backward reads the gradient once and its input twice, and writes once.
    """

    name = "norm"
    share = 0.03

    def cases(self, device: str, elements: int) -> list[Case]:
        """Both directions at two widths in two dtypes."""
        return [
            self._one(width, backward, precision, size, elements, device)
            for precision, size in both_widths(device)
            for width in _WIDTHS
            for backward in (False, True)
        ]

    def _one(self, width: int, backward: bool, precision: str, size: int, elements: int, device: str) -> Case:
        rows = max(4, elements // width)
        amount = float(size * rows * width * (4 if backward else 2))
        label = f"layer norm{' backward' if backward else ''} {precision} of {rows}x{width}"
        return self.case(label, rows * width, amount, lambda: _norm(backward, (rows, width), precision, device), device)


class ReduceProbe(TrafficProbe):
    """Bytes per second of column sums of a tall matrix, as a bias gradient is: every element read once."""

    name = "reduce"
    share = 0.02

    def cases(self, device: str, elements: int) -> list[Case]:
        """Two widths in two dtypes."""
        return [
            self.case(
                f"column sums {p} of {elements // width}x{width}", elements // width * width,
                float(size * (elements // width) * width),
                partial(_column_sums, (elements // width, width), p, device), device,
            )
            for p, size in both_widths(device)
            for width in _WIDTHS
        ]  # fmt: skip


def _softmax(kind: str, backward: bool, shape: tuple[int, int], precision: str, device: str) -> Call:
    import torch

    x = random_tensor(shape, precision, device)
    function = getattr(torch, kind)
    if not backward:
        return lambda: function(x, -1)
    out, grad = function(x, -1), random_tensor(shape, precision, device)
    gradient = getattr(torch.ops.aten, f"_{kind}_backward_data")
    return lambda: gradient(grad, out, -1, x.dtype)


def _norm(backward: bool, shape: tuple[int, int], precision: str, device: str) -> Call:
    import torch

    x, weight, bias = (random_tensor(size, precision, device) for size in (shape, shape[1:], shape[1:]))
    width = list(shape[1:])
    if not backward:
        return lambda: torch.native_layer_norm(x, width, weight, bias, 1e-5)
    _, mean, scale = torch.native_layer_norm(x, width, weight, bias, 1e-5)
    grad = random_tensor(shape, precision, device)
    gradient = torch.ops.aten.native_layer_norm_backward
    return lambda: gradient(grad, x, width, mean, scale, weight, bias, [True, True, True])


def _column_sums(shape: tuple[int, int], precision: str, device: str) -> Call:
    x = random_tensor(shape, precision, device)
    return lambda: x.sum(0)
