"""A timer for the device: how many seconds one call keeps it busy.

On CUDA the region lies between two events and is queued behind a sleeping kernel, so that the host has launched all of
it before the device starts: short kernels are timed back to back, as in a device-bound step, and never as their launch.
If a call synchronises by itself, queueing is impossible; the timing then says ``events`` instead of ``queued``.
On a CPU the region is timed with the host's clock.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Call = Callable[[], object]

SAMPLE_S = 2e-3
"""One sample repeats a short call until it lasts about this long."""
MAX_CALLS_PER_SAMPLE = 64
"""More launches than the driver's queue holds would stall the host; 64 calls of up to a dozen kernels fit."""
MIN_SAMPLES = 3
MAX_SAMPLES = 40
NARROW = 0.01
"""Stop once the 95 % interval of the median is within this fraction of it."""

_QUEUE_ATTEMPTS = 3
_MAX_SLEEP_S = 0.2
_CYCLES_PER_S = 2e9
_CPU_CACHE_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Repeated timings of one call; every sample is seconds per call, averaged over ``calls_per_sample`` calls."""

    samples_s: tuple[float, ...]
    calls_per_sample: int
    method: str

    @property
    def median_s(self) -> float:
        """Median seconds of one call."""
        return statistics.median(self.samples_s)

    @property
    def sd_log(self) -> float:
        """Spread of the samples: a robust standard deviation of their natural logarithms (1.4826 × MAD)."""
        logs = [math.log(sample_s) for sample_s in self.samples_s]
        middle = statistics.median(logs)
        return 1.4826 * statistics.median(abs(log - middle) for log in logs)


class Stopwatch(Protocol):
    """What ``time_call`` needs of a device: a clock for the budget, and the seconds of one window of calls."""

    method: str

    def now_s(self) -> float:
        """Seconds of a monotonic clock."""
        ...

    def window_s(self, calls: Sequence[Call]) -> float:
        """Seconds that the device spends on these calls, run one after the other."""
        ...


class HostStopwatch:
    """Times on the host's clock; right for a CPU, where a call returns when its work is done."""

    method = "host"

    def now_s(self) -> float:
        """Seconds of the performance counter."""
        return time.perf_counter()

    def window_s(self, calls: Sequence[Call]) -> float:
        """Seconds from the first call to the return of the last."""
        start_s = time.perf_counter()
        for call in calls:
            call()
        return time.perf_counter() - start_s


class CudaStopwatch:
    """Times with CUDA events, the calls queued behind a sleeping kernel; ``method`` says how the last window went."""

    def __init__(self, device: str) -> None:
        import torch

        self.method = "queued"
        self._torch: Any = torch
        self._device = torch.device(device)
        self._host_s_per_call = 100e-6

    def now_s(self) -> float:
        """Seconds of the host's performance counter, once the device is idle."""
        self._torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def window_s(self, calls: Sequence[Call]) -> float:
        """Device seconds between an event before the first call and one after the last.

        Retries with a longer sleep while the host is too slow; the last attempt counts, marked ``events``.
        """
        sleep_s = 1.5 * self._host_s_per_call * len(calls) + 100e-6
        for _ in range(_QUEUE_ATTEMPTS):
            elapsed_s, queued = self._attempt(calls, min(sleep_s, _MAX_SLEEP_S))
            if queued:
                self.method = "queued"
                return elapsed_s
            sleep_s = 2.0 * max(sleep_s, self._host_s_per_call * len(calls))
        self.method = "events"
        return elapsed_s

    def _attempt(self, calls: Sequence[Call], sleep_s: float) -> tuple[float, bool]:
        cuda = self._torch.cuda
        with cuda.device(self._device):
            first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            cuda.synchronize()
            cuda._sleep(int(sleep_s * _CYCLES_PER_S))
            first.record()
            start_s = time.perf_counter()
            for call in calls:
                call()
            self._host_s_per_call = (time.perf_counter() - start_s) / len(calls)
            queued = not first.query()
            last.record()
            cuda.synchronize()
            return first.elapsed_time(last) / 1e3, queued


def stopwatch_for(device: str) -> Stopwatch:
    """The stopwatch of a torch device name (``cpu``, ``cuda``, ``cuda:1``)."""
    return CudaStopwatch(device) if device.startswith("cuda") else HostStopwatch()


def time_call(
    calls: Sequence[Call], stopwatch: Stopwatch, *, budget_s: float, max_samples: int = MAX_SAMPLES
) -> Timing:
    """Times one call, given as equivalent calls on different buffers that are used in turn.

    Every buffer set is run once as warm-up. Samples are taken until the median is known to 1 % or ``budget_s``
    (warm-up included) is spent, but never fewer than three.
    """
    start_s = stopwatch.now_s()
    for call in calls:
        call()
    turn = itertools.cycle(calls)
    rough_s = stopwatch.window_s([next(turn)])
    per_sample = max(1, min(MAX_CALLS_PER_SAMPLE, round(SAMPLE_S / max(rough_s, 1e-9))))
    samples_s: list[float] = []
    while _wanted(samples_s, stopwatch.now_s() - start_s, budget_s, max_samples):
        samples_s.append(stopwatch.window_s(list(itertools.islice(turn, per_sample))) / per_sample)
    return Timing(samples_s=tuple(samples_s), calls_per_sample=per_sample, method=stopwatch.method)


def relative_interval(samples_s: Sequence[float]) -> float:
    """Half-width of the 95 % interval of the median as a fraction of it (1.57 × interquartile range / √n)."""
    low, middle, high = statistics.quantiles(samples_s, n=4, method="inclusive")
    return 1.57 * (high - low) / math.sqrt(len(samples_s)) / middle


def sets_beyond_cache(set_bytes: float, device: str, *, limit: int = 8) -> int:
    """How many buffer sets of ``set_bytes`` to use in turn so that together they are twice the cache."""
    return max(1, min(limit, math.ceil(2 * _cache_bytes(device) / max(set_bytes, 1))))


def _cache_bytes(device: str) -> int:
    if not device.startswith("cuda"):
        return _CPU_CACHE_BYTES
    import torch

    return int(torch.cuda.get_device_properties(device).L2_cache_size)


def _wanted(samples_s: Sequence[float], spent_s: float, budget_s: float, max_samples: int) -> bool:
    if len(samples_s) < MIN_SAMPLES:
        return True
    if spent_s >= budget_s or len(samples_s) >= max_samples:
        return False
    return len(samples_s) < MIN_SAMPLES + 2 or relative_interval(samples_s) > NARROW
