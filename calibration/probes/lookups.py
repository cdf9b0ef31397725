"""Embedding look-ups with their dense gradient, and dropout with its one-byte mask."""

from __future__ import annotations

from functools import partial

from calibration.probes.base import Case
from calibration.probes.device import random_tensor
from calibration.probes.traffic import TrafficProbe, both_widths
from calibration.timing import Call

_WIDTH, _MOST_ROWS, _DROPPED = 1024, 50304, 0.1


class EmbeddingProbe(TrafficProbe):
    """Bytes per second of an embedding, forward and dense backward together.

    Forward reads and writes one row per token; backward reads the gradient's rows and writes the whole table, most
    of it zeros. Read-backs of rows that several tokens share are left out (a few per cent).
    """

    name = "embedding"
    share = 0.02

    def cases(self, device: str, elements: int) -> list[Case]:
        """An fp32 table with as many rows as fit, up to a usual vocabulary; half as many tokens."""
        rows = max(64, min(_MOST_ROWS, elements // _WIDTH))
        tokens = rows // 2
        amount = 4.0 * _WIDTH * (3 * tokens + rows)
        label = f"{tokens} tokens of {rows}x{_WIDTH} fp32"
        return [self.case(label, rows * _WIDTH, amount, partial(_embedding, rows, tokens, device), device)]


class DropoutProbe(TrafficProbe):
    """Bytes per second of dropout: reads and writes the tensor once and writes a mask of one byte an element."""

    name = "dropout"
    share = 0.02

    def cases(self, device: str, elements: int) -> list[Case]:
        """Forward in two dtypes."""
        return [
            self.case(
                f"dropout {p} of {elements}", elements, (2.0 * size + 1.0) * elements,
                partial(_dropout, p, elements, device), device,
            )
            for p, size in both_widths(device)
        ]  # fmt: skip


def _embedding(rows: int, tokens: int, device: str) -> Call:
    import torch

    table = random_tensor((rows, _WIDTH), "fp32", device)
    grad = random_tensor((tokens, _WIDTH), "fp32", device)
    index = torch.randint(rows, (tokens,), device=device)

    def run() -> None:
        torch.ops.aten.embedding(table, index)
        torch.ops.aten.embedding_dense_backward(grad, index, rows, -1, False)

    return run


def _dropout(precision: str, elements: int, device: str) -> Call:
    import torch

    x = random_tensor((elements,), precision, device)
    return lambda: torch.ops.aten.native_dropout(x, _DROPPED, True)
