"""Peak memory of this process: torch's counters on a GPU, the kernel's high-water mark on a CPU."""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path
from typing import Protocol

from calibration.measuring import Peaks

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


class Meter(Protocol):
    """Reads peak memory from a moment on."""

    def reset(self) -> None:
        """Let peaks count from here, with what is in use now."""
        ...

    def peaks(self) -> Peaks:
        """Peaks since ``reset``."""
        ...


class ResidentMeter:
    """Peak resident set of this process; what the process held when the meter was made is taken off ``allocated``."""

    def __init__(self) -> None:
        self._baseline_bytes = resident_bytes()
        self.reset()

    def reset(self) -> None:
        """Bring the kernel's high-water mark down to what is resident now, where the system can."""
        with contextlib.suppress(OSError):
            _CLEAR_REFS.write_text("5", encoding="ascii")

    def peaks(self) -> Peaks:
        """Peak resident bytes: without the baseline, and of the whole process."""
        peak = peak_resident_bytes()
        return Peaks(
            allocated_bytes=max(0, peak - self._baseline_bytes), reserved_bytes=None, device_bytes=peak, kind="resident"
        )


class CudaMeter:
    """Peaks of torch's allocator on the current GPU, and what the driver holds beside it (context, loaded kernels)."""

    def reset(self) -> None:
        """Let the allocator's peaks count from here."""
        import torch

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()

    def peaks(self) -> Peaks:
        """Peak allocated, reserved, and reserved plus what is in use outside the allocator now."""
        import torch

        free_bytes, total_bytes = torch.cuda.mem_get_info()
        outside_bytes = max(0, total_bytes - free_bytes - torch.cuda.memory_reserved())
        reserved_bytes = torch.cuda.max_memory_reserved()
        return Peaks(
            allocated_bytes=torch.cuda.max_memory_allocated(),
            reserved_bytes=reserved_bytes,
            device_bytes=reserved_bytes + outside_bytes,
            kind="allocated",
        )


def give_back() -> None:
    """Return what an earlier trial's batch and activations held to the GPU, so that peaks start as in a new process."""
    import gc

    import torch

    gc.collect()
    torch.cuda.empty_cache()


def limit_memory(device: str, limit_bytes: int) -> None:
    """Let this process take no more than ``limit_bytes`` from here on (a GPU: torch's allocator in all)."""
    if device == "cuda":
        import torch

        total_bytes = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total_bytes))
        return
    import resource

    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (_status_bytes("VmData") + limit_bytes, hard))


def lift_limit(device: str) -> None:
    """Undo ``limit_memory`` on a CPU, so that a process at its limit can still report."""
    if device == "cpu":
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def resident_bytes() -> int:
    """Bytes of this process in physical memory now."""
    return _status_bytes("VmRSS") if _STATUS.exists() else _max_rss_bytes()


def peak_resident_bytes() -> int:
    """The most bytes of this process in physical memory, since the last reset where the system can reset."""
    return _status_bytes("VmHWM") if _STATUS.exists() else _max_rss_bytes()


def _status_bytes(field: str) -> int:
    found = re.search(rf"^{field}:\s*(\d+) kB$", _STATUS.read_text(encoding="ascii"), re.MULTILINE)
    if found is None:
        raise OSError(f"{_STATUS} has no {field}")
    return int(found.group(1)) * 1024


def _max_rss_bytes() -> int:
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
