"""Copies between pinned host memory and the device."""

from __future__ import annotations

from functools import partial

from calibration.probes.base import Case, ProbeResult, fold_rates
from calibration.probes.device import random_tensor
from calibration.timing import Call

_ELEMENTS = 2**26
_RATES = ("h2d_bytes_per_s", "d2h_bytes_per_s")


class TransferProbe:
    """Bytes per second, one direction, of large copies from and to pinned host memory."""

    name = "transfer"
    share = 0.02

    def promises(self) -> tuple[str, ...]:
        """A rate each way."""
        return _RATES

    def run(self, device: str, budget_s: float) -> ProbeResult:
        """Times a copy of 256 MiB each way."""
        if not device.startswith("cuda"):
            return ProbeResult(rates={}, skipped=dict.fromkeys(_RATES, "a CPU has no device memory to copy to"))
        cases = [
            Case(
                rate=rate,
                label=f"{rate[:3]} of {4 * _ELEMENTS} pinned bytes",
                amount=4.0 * _ELEMENTS,
                build=partial(_copies, rate, device),
                facts={"bytes": 4.0 * _ELEMENTS},
            )
            for rate in _RATES
        ]
        return fold_rates(self.name, cases, device, budget_s)


def _copies(rate: str, device: str) -> list[Call]:
    host = random_tensor((_ELEMENTS,), "fp32", "cpu").pin_memory()
    other = random_tensor((_ELEMENTS,), "fp32", device)
    target, source = (other, host) if rate == "h2d_bytes_per_s" else (host, other)
    return [lambda: target.copy_(source, non_blocking=True)]
