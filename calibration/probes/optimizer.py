"""Optimizer passes: bytes per second of whole steps and of gradient clipping."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from calibration.probes.base import Case, ProbeResult, call_seconds, fold_rates
from calibration.probes.device import random_tensor, rough_bytes_per_s
from calibration.timing import Call

if TYPE_CHECKING:
    import torch

BYTES_PER_PARAM = {"adamw_fused": 28.0, "adamw_foreach": 28.0, "sgd": 20.0, "clip": 12.0}
"""Ideal traffic of fp32 parameters: AdamW reads p, g, m, v and writes p, m, v; SGD with momentum reads p, g, m and
writes p, m; clipping reads the gradients for the norm, then reads and writes them."""
_MOST_PARAMS = {"cpu": 10_000_000, "cuda": 100_000_000}
_LEAST_PARAMS = 500_000
_VOCABULARY_PER_HIDDEN = 24


class OptimizerProbe:
    """Bytes per second of an optimizer's step and of clipping, on fp32 tensors shaped like a transformer's."""

    name = "optimizer"
    share = 0.08

    def promises(self) -> tuple[str, ...]:
        """A rate for each optimizer and one for clipping."""
        return tuple(map(_rate, BYTES_PER_PARAM))

    def run(self, device: str, budget_s: float) -> ProbeResult:
        """Times whole calls with gradients in place, at the ideal number of bytes per parameter."""
        call_s = call_seconds(budget_s, len(BYTES_PER_PARAM))
        # The slowest pass, for each tensor by itself, moves memory at about a third of the copy rate.
        fitting = int(rough_bytes_per_s(device) * call_s / 3 / BYTES_PER_PARAM["adamw_fused"])
        params = max(_LEAST_PARAMS, min(_MOST_PARAMS[device.split(":", maxsplit=1)[0]], fitting))
        shapes = transformer_shapes(params)
        total = sum(rows * columns for rows, columns in shapes)
        cases = [
            Case(
                rate=_rate(kind),
                label=f"{kind} on {total} parameters in {len(shapes)} tensors",
                amount=each * total,
                build=partial(_passes, kind, shapes, device),
                facts={"params": total, "tensors": len(shapes)},
            )
            for kind, each in BYTES_PER_PARAM.items()
        ]
        return fold_rates(self.name, cases, device, budget_s)


def transformer_shapes(params: int) -> list[tuple[int, int]]:
    """Tensor shapes of a transformer with about ``params`` parameters: a vocabulary, then whole blocks."""
    hidden = max(64, round(math.sqrt(params / 150) / 64) * 64)
    shapes = [(_VOCABULARY_PER_HIDDEN * hidden, hidden)]
    block = [
        (3 * hidden, hidden), (1, 3 * hidden), (hidden, hidden), (1, hidden), (4 * hidden, hidden), (1, 4 * hidden),
        (hidden, 4 * hidden), (1, hidden), (1, hidden), (1, hidden), (1, hidden), (1, hidden),
    ]  # fmt: skip
    block_params = sum(rows * columns for rows, columns in block)
    blocks = max(1, round((params - shapes[0][0] * hidden) / block_params))
    return shapes + block * blocks


def _rate(kind: str) -> str:
    return "clip_bytes_per_s" if kind == "clip" else f"optimizer_{kind}_bytes_per_s"


def make_optimizer(kind: str, params: Sequence[torch.Tensor]) -> torch.optim.Optimizer:
    """A torch optimizer over ``params``: ``adamw_fused``, ``adamw_foreach``, ``adamw_forloop`` or ``sgd``."""
    import torch

    if kind == "sgd":
        return torch.optim.SGD(params, lr=1e-6, momentum=0.9)
    return torch.optim.AdamW(params, lr=1e-6, fused=kind == "adamw_fused", foreach=kind == "adamw_foreach")


def with_gradients(shapes: Sequence[tuple[int, int]], device: str) -> list[torch.Tensor]:
    """Random fp32 parameters of these shapes, each with a random gradient."""
    params = [random_tensor(shape, "fp32", device).requires_grad_() for shape in shapes]
    for param in params:
        param.grad = random_tensor(param.shape, "fp32", device)
    return params


def _passes(kind: str, shapes: Sequence[tuple[int, int]], device: str) -> list[Call]:
    import torch

    params = with_gradients(shapes, device)
    if kind == "clip":
        return [lambda: torch.nn.utils.clip_grad_norm_(params, 1.0)]
    return [make_optimizer(kind, params).step]
