"""What the probes need to know of a device beforehand: its precisions, and how fast it roughly is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from calibration.timing import Call, stopwatch_for, time_call

if TYPE_CHECKING:
    import torch

PRECISIONS = ("bf16", "fp16", "tf32", "fp32")
ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4}
_BLOCK = 2**18


def dtype_of(precision: str) -> torch.dtype:
    """The torch dtype of operands in this precision."""
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32, "fp32": torch.float32}[precision]


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Lets fp32 products use TF32 inside the block for ``tf32``, and forbids it for everything else."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def unsupported(device: str, precision: str) -> str | None:
    """Why the device cannot compute products in this precision, or ``None`` if it can."""
    if not device.startswith("cuda"):
        return "a CPU has no TF32 products" if precision == "tf32" else None
    import torch

    capability = torch.cuda.get_device_capability(device)
    if precision in ("bf16", "tf32") and capability < (8, 0):
        return f"{precision} needs compute capability 8.0, this device has {capability[0]}.{capability[1]}"
    return None


def sixteen_bit(device: str) -> str:
    """The 16-bit precision to probe where both share one rate: bf16, or fp16 where the device lacks bf16."""
    return "fp16" if unsupported(device, "bf16") else "bf16"


def random_tensor(shape: Sequence[int], precision: str, device: str) -> torch.Tensor:
    """A tensor of normal random values (on a CPU a repeated block of them: generating is slow there)."""
    import torch

    count, dtype = math.prod(shape), dtype_of(precision)
    if device.startswith("cuda"):
        return torch.randn(tuple(shape), device=device, dtype=dtype)
    block = torch.randn(min(count, _BLOCK)).to(dtype)
    return block.repeat(math.ceil(count / block.numel()))[:count].reshape(tuple(shape)).clone()


@lru_cache(maxsize=32)
def rough_flops_per_s(device: str, precision: str) -> float:
    """A quick estimate of the rate of products, to choose shapes by: a growing square product up to 10 ms."""
    import torch

    size, rate = 128, 0.0
    with matmul_precision(precision):
        while size <= (8192 if device.startswith("cuda") else 2048):
            left, right = (random_tensor((size, size), precision, device) for _ in range(2))
            timing = _quick(partial(torch.mm, left, right), device)
            rate = max(rate, 2.0 * size**3 / timing)
            if timing > 2e-3:
                break
            size *= 4 if timing < 2e-4 else 2
    return rate


@lru_cache(maxsize=8)
def rough_bytes_per_s(device: str) -> float:
    """A quick estimate of memory bandwidth, to choose sizes by: an fp32 addition, bytes read plus written."""
    import torch

    count = 2**26 if device.startswith("cuda") else 2**22
    left, right = (random_tensor((count,), "fp32", device) for _ in range(2))
    return 12.0 * count / _quick(lambda: torch.add(left, right), device)


def traffic_elements(device: str, call_s: float, *, bytes_per_element: float = 12.0) -> int:
    """How many elements a bandwidth case should have so that one call takes about ``call_s`` (a multiple of 65536)."""
    wanted = rough_bytes_per_s(device) * call_s / bytes_per_element
    largest = 2**27 if device.startswith("cuda") else 2**22
    return max(2**20, min(largest, int(wanted) // 65536 * 65536))


def _quick(call: Call, device: str) -> float:
    return min(time_call([call], stopwatch_for(device), budget_s=0.01, max_samples=3).samples_s)
