"""What a measurement was taken with: software, host, device, and the GPU's clocks and throttling while timing."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import statistics
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from profiles.schema import Device, Software

SAMPLE_PERIOD_S = 0.2

REASONS: dict[int, str] = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
}
"""NVML's clock event bits that slow a busy GPU down (nvml.h, nvmlClocksEventReasons)."""
SERIOUS = frozenset({"hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake"})
"""Reasons that make a timing unreliable. A power cap is how a busy GPU normally lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One look at a GPU's sensors; ``None`` where it has no such sensor."""

    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    reasons: tuple[str, ...]


class Sensor(Protocol):
    """Where readings come from."""

    def read(self) -> Reading:
        """The sensors now."""


def throttle_reasons(bits: int) -> tuple[str, ...]:
    """Names of the clock event bits that slow a GPU down."""
    return tuple(name for bit, name in REASONS.items() if bits & bit)


def is_throttled(reasons: Iterable[str]) -> bool:
    """Whether a timing taken under these reasons is unreliable: heat, hardware slowdown or a power brake."""
    return not SERIOUS.isdisjoint(reasons)


class Monitor:
    """Reads a sensor in the background between ``start`` and ``stop``; without a sensor it does nothing."""

    def __init__(self, sensor: Sensor | None, period_s: float = SAMPLE_PERIOD_S) -> None:
        self.readings: list[Reading] = []
        self.problem = ""
        self._sensor = sensor
        self._period_s = period_s

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Sample for as long as the block runs, at least once."""
        if self._sensor is None:
            yield
            return
        done = threading.Event()
        thread = threading.Thread(target=self._sample, args=(self._sensor, done), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _sample(self, sensor: Sensor, done: threading.Event) -> None:
        stop = False
        while not stop:
            stop = done.wait(self._period_s)
            try:
                self.readings.append(sensor.read())
            except Exception as error:  # a sensor that fails costs the clocks, not the measurement
                self.problem = f"clocks and power end early: {error}"
                return

    def describe(self, device: Device) -> Device:
        """The device with the medians of what was read and every throttle reason seen."""
        if not self.readings:
            return device
        return replace(
            device,
            sm_clock_mhz=_median(reading.sm_clock_mhz for reading in self.readings),
            memory_clock_mhz=_median(reading.memory_clock_mhz for reading in self.readings),
            power_w=_median(reading.power_w for reading in self.readings),
            temperature_c=_median(reading.temperature_c for reading in self.readings),
            throttle_reasons=_seen(self.readings),
        )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _seen(readings: Sequence[Reading]) -> tuple[str, ...]:
    return tuple(sorted({reason for reading in readings for reason in reading.reasons}))


class NvmlSensor:
    """The sensors of one NVIDIA GPU through NVML."""

    def __init__(self, handle: Any) -> None:  # noqa: ANN401
        self._handle = handle

    @property
    def power_limit_w(self) -> float | None:
        """The enforced power limit, in watts."""
        return _scaled(self._ask("nvmlDeviceGetEnforcedPowerLimit"), 1e-3)

    def read(self) -> Reading:
        """Clocks, power, temperature and throttle reasons now."""
        import pynvml

        return Reading(
            sm_clock_mhz=_scaled(self._ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM)),
            memory_clock_mhz=_scaled(self._ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM)),
            power_w=_scaled(self._ask("nvmlDeviceGetPowerUsage"), 1e-3),
            temperature_c=_scaled(self._ask("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU)),
            reasons=throttle_reasons(self._ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0),
        )

    def _ask(self, question: str, *arguments: int) -> int | None:
        """What NVML answers; ``None`` for what this GPU or container does not tell."""
        import pynvml

        try:
            return int(getattr(pynvml, question)(self._handle, *arguments))
        except pynvml.NVMLError:
            return None


def _scaled(value: int | None, factor: float = 1.0) -> float | None:
    return None if value is None else value * factor


def nvml_sensor(uuid: str) -> tuple[NvmlSensor | None, str]:
    """The sensor of the GPU with this UUID, or ``None`` and why there is none."""
    try:
        import pynvml
    except ImportError:
        return None, "no clocks or power: nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
        return NvmlSensor(pynvml.nvmlDeviceGetHandleByUUID(uuid)), ""
    except pynvml.NVMLError as error:
        return None, f"no clocks or power: {error}"


def software(device: str) -> Software:
    """Versions of what takes part in a measurement on ``device`` (``cpu`` or ``cuda``)."""
    import torch

    return Software(
        paceline=_version("paceline"),
        python=platform.python_version(),
        torch=str(torch.__version__),
        cuda=torch.version.cuda if device == "cuda" else None,
        transformers=_version("transformers"),
        driver=_driver() if device == "cuda" else None,
    )


def cpu_device(threads: int) -> Device:
    """This host's processor as the device that trains."""
    name = cpu_name()
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Device(name=name, memory_bytes=memory_bytes, host=f"{name} × {cpu_count()}", threads=threads)


def cuda_device(threads: int, sensor: NvmlSensor | None) -> Device:
    """The first visible GPU; clocks come later, from a ``Monitor``."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    return Device(
        name=properties.name,
        memory_bytes=properties.total_memory,
        power_limit_w=sensor.power_limit_w if sensor else None,
        host=f"{cpu_name()} × {cpu_count()}",
        threads=threads,
    )


@cache
def cpu_name() -> str:
    """The processor's marketing name, or the architecture where the system does not tell."""
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return found.group(1).strip()
    return platform.processor() or platform.machine()


def cpu_count() -> int:
    """Processors that this process may use: its affinity, cut to the control group's quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
        return max(1, min(allowed, int(quota) // int(period)))
    return allowed


def thread_count() -> int:
    """Threads for torch: ``OMP_NUM_THREADS`` where set, else physical cores that this process may use."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    return min(cpu_count(), _physical_cores() or cpu_count())


def _physical_cores() -> int | None:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return None
    sockets = re.findall(r"^physical id\s*:\s*(\d+)$", text, re.MULTILINE)
    cores = re.findall(r"^core id\s*:\s*(\d+)$", text, re.MULTILINE)
    return len(set(zip(sockets, cores, strict=False))) or None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _driver() -> str | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # no NVML, no driver, or a driver that does not say: unknown is None
        return None


def boot_id() -> str | None:
    """Eight hex digits that name this uptime of this host; ``None`` where the kernel does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:8]
    except OSError:
        return None
