"""Work that moves data without computing: strided and casting copies, broadcasts, concatenation, filling."""

from __future__ import annotations

from functools import partial

from calibration.probes.base import Case
from calibration.probes.device import dtype_of, random_tensor, sixteen_bit
from calibration.probes.traffic import TrafficProbe, both_widths
from calibration.timing import Call

_HEADS, _HEAD, _LENGTH = 16, 64, 512
_WIDTH = _HEADS * _HEAD


class StridedProbe(TrafficProbe):
    """Bytes per second of permuting copies, casts and broadcasts between dtypes."""

    name = "strided"
    share = 0.03

    def cases(self, device: str, elements: int) -> list[Case]:
        """A permuting copy in two dtypes, a cast from fp32 to 16 bits, an addition of a 16-bit row to fp32."""
        samples = max(1, elements // (_LENGTH * _WIDTH))
        count, narrow = samples * _LENGTH * _WIDTH, sixteen_bit(device)
        calls = [
            (f"permuting clone {precision}", 2.0 * size, partial(_permute, precision, samples, device))
            for precision, size in both_widths(device)
        ]
        calls.append((f"cast fp32 to {narrow}", 6.0, partial(_cast, narrow, count, device)))
        calls.append((f"fp32 plus {narrow} row", 8.0, partial(_broadcast, narrow, count, device)))
        return [self.case(f"{what} of {count}", count, each * count, build, device) for what, each, build in calls]


class ConcatProbe(TrafficProbe):
    """Bytes per second of concatenating two halves along the last dimension, as rotary embeddings do."""

    name = "concat"
    share = 0.02

    def cases(self, device: str, elements: int) -> list[Case]:
        """Reads the two halves out of one tensor and writes them swapped, in two dtypes."""
        rows = max(1, elements // _HEAD)
        count = rows * _HEAD
        return [
            self.case(
                f"swap halves {precision} of {rows}x{_HEAD}",
                count,
                2.0 * size * count,
                partial(_swap_halves, precision, rows, device),
                device,
            )
            for precision, size in both_widths(device)
        ]


class FillProbe(TrafficProbe):
    """Bytes per second written by filling with zeros."""

    name = "fill"
    share = 0.01

    def cases(self, device: str, elements: int) -> list[Case]:
        """Writes every byte of an fp32 tensor once."""
        return [
            self.case(f"zeros fp32 of {elements}", elements, 4.0 * elements, partial(_fill, elements, device), device)
        ]


def _permute(precision: str, samples: int, device: str) -> Call:
    import torch

    x = random_tensor((samples, _LENGTH, _HEADS, _HEAD), precision, device)
    return lambda: x.permute(0, 2, 1, 3).clone(memory_format=torch.contiguous_format)


def _cast(narrow: str, count: int, device: str) -> Call:
    x, dtype = random_tensor((count,), "fp32", device), dtype_of(narrow)
    return lambda: x.to(dtype)


def _broadcast(narrow: str, count: int, device: str) -> Call:
    x, row = random_tensor((count // _WIDTH, _WIDTH), "fp32", device), random_tensor((_WIDTH,), narrow, device)
    return lambda: x + row


def _swap_halves(precision: str, rows: int, device: str) -> Call:
    import torch

    x = random_tensor((rows, _HEAD), precision, device)
    return lambda: torch.cat((x[:, _HEAD // 2 :], x[:, : _HEAD // 2]), dim=-1)


def _fill(elements: int, device: str) -> Call:
    return random_tensor((elements,), "fp32", device).zero_
