"""Base of the probes for work that memory bandwidth limits: cases that say how many bytes they read and write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from calibration.probes.base import Case, ProbeResult, call_seconds, fold_rates
from calibration.probes.device import ELEMENT_BYTES, sixteen_bit, traffic_elements
from calibration.timing import Call, sets_beyond_cache


class TrafficProbe(ABC):
    """One class of bandwidth-bound work; its rate is bytes read plus written per second."""

    name: str
    share: float

    @property
    def rate(self) -> str:
        """Name of the rate."""
        return f"{self.name}_bytes_per_s"

    def promises(self) -> tuple[str, ...]:
        """The one rate."""
        return (self.rate,)

    def run(self, device: str, budget_s: float) -> ProbeResult:
        """Times every case at a size that fills the device and fits the budget."""
        count = len(self.cases(device, 2**18))
        elements = traffic_elements(device, call_seconds(budget_s, count))
        return fold_rates(self.name, self.cases(device, elements), device, budget_s)

    @abstractmethod
    def cases(self, device: str, elements: int) -> list[Case]:
        """The cases, on tensors of about ``elements`` elements."""

    def case(self, label: str, elements: int, amount_bytes: float, build: Callable[[], Call], device: str) -> Case:
        """A case whose call is built anew for every buffer set."""
        sets = sets_beyond_cache(amount_bytes, device)
        return Case(
            rate=self.rate,
            label=label,
            amount=amount_bytes,
            build=lambda: _repeat(build, sets),
            facts={"elements": elements},
        )


def both_widths(device: str) -> tuple[tuple[str, int], ...]:
    """(precision, bytes per element) of fp32 and of the device's 16-bit type."""
    return tuple((precision, ELEMENT_BYTES[precision]) for precision in ("fp32", sixteen_bit(device)))


def _repeat(build: Callable[[], Call], sets: int) -> Sequence[Call]:
    return [build() for _ in range(sets)]
