"""Host seconds per operation of an optimizer that walks over its parameters one by one."""

from __future__ import annotations

from calibration.probes.base import Case, ProbeResult, make_rate, make_row, repeats_sd_log
from calibration.probes.operations import count_operations
from calibration.probes.optimizer import make_optimizer, with_gradients
from calibration.timing import Call, HostStopwatch, time_call

_TENSORS = 24


class DispatchOptimizerProbe:
    """Seconds of host time per operation of a for-loop AdamW on tensors too small to matter."""

    name = "dispatch_optimizer"
    share = 0.02

    def promises(self) -> tuple[str, ...]:
        """The one cost."""
        return ("dispatch_optimizer_s",)

    def run(self, device: str, budget_s: float) -> ProbeResult:
        """Counts the operations of one step, then times whole steps, synchronised at their edges."""
        step = make_optimizer("adamw_forloop", with_gradients([(8, 8)] * _TENSORS, device)).step
        step()
        operations = count_operations(step)
        call = _synchronised(step, device)
        case = Case(
            rate="dispatch_optimizer_s",
            label=f"for-loop AdamW on {_TENSORS} tensors of 64",
            amount=operations,
            build=lambda: [call],
            facts={"operations": operations, "tensors": _TENSORS},
        )
        row = make_row(self.name, case, time_call(case.build(), HostStopwatch(), budget_s=min(budget_s, 0.5)))
        rate = make_rate(row.median_s / operations, repeats_sd_log([row]), [row], device)
        return ProbeResult(rates={row.rate: rate}, rows=(row,))


def _synchronised(call: Call, device: str) -> Call:
    if not device.startswith("cuda"):
        return call
    import torch

    def run() -> None:
        call()
        torch.cuda.synchronize(device)

    return run
