"""The shortest time a kernel can take on the device, without its launch."""

from __future__ import annotations

from functools import partial

from calibration.probes.base import Case, ProbeResult, make_rate, measure, repeats_sd_log
from calibration.probes.device import random_tensor
from calibration.timing import Call

_ELEMENTS = 16
_LEAST_S = 1e-7


class KernelFloorProbe:
    """Seconds from one kernel to the next when each has next to nothing to do, queued so that no launch is waited for.

    On a CPU, device and host are one and a kernel's time cannot be told from its dispatch: the value is then what a
    tiny addition takes beyond an operation that computes nothing (a view), and at least 0.1 µs.
    """

    name = "kernel_floor"
    share = 0.02

    def promises(self) -> tuple[str, ...]:
        """The floor."""
        return ("kernel_floor_s",)

    def run(self, device: str, budget_s: float) -> ProbeResult:
        """Times an in-place addition on sixteen elements, and on a CPU a view of them."""
        kinds = ("addition",) if device.startswith("cuda") else ("addition", "view")
        measured = measure(self.name, [_case(kind, device) for kind in kinds], device, budget_s)
        seconds = {row.label.split()[0]: row.median_s for row in measured.rows}
        rates = {}
        if "addition" in seconds:
            floor_s = max(_LEAST_S, seconds["addition"] - seconds.get("view", 0.0))
            rates["kernel_floor_s"] = make_rate(floor_s, repeats_sd_log(measured.rows), measured.rows, device)
        return ProbeResult(rates=rates, rows=tuple(measured.rows), skipped=measured.skipped(self.promises()))


def _case(kind: str, device: str) -> Case:
    return Case(
        rate="kernel_floor_s",
        label=f"{kind} on {_ELEMENTS} elements",
        amount=1.0,
        build=partial(_calls, kind, device),
    )


def _calls(kind: str, device: str) -> list[Call]:
    x = random_tensor((_ELEMENTS,), "fp32", device)
    return [partial(x.add_, 1.0) if kind == "addition" else partial(x.view, -1)]
