import pytest

from calibration.telemetry import (
    Monitor,
    NvmlSensor,
    Reading,
    cpu_count,
    is_throttled,
    software,
    thread_count,
    throttle_reasons,
)
from profiles.schema import Device


class Sensor:
    def __init__(self, *readings):
        self.readings, self.reads = readings, 0

    def read(self):
        self.reads += 1
        reading = self.readings[min(self.reads, len(self.readings)) - 1]
        if isinstance(reading, Exception):
            raise reading
        return reading


def reading(clock, *reasons):
    return Reading(sm_clock_mhz=clock, memory_clock_mhz=3200.0, power_w=500.0, temperature_c=70.0, reasons=reasons)


def test_bits_have_names():
    assert throttle_reasons(0x0) == ()
    assert throttle_reasons(0x1) == ()  # idle
    assert throttle_reasons(0x4 | 0x40) == ("sw_power_cap", "hw_thermal")


@pytest.mark.parametrize(
    ("reasons", "unreliable"),
    [((), False), (("sw_power_cap",), False), (("sw_power_cap", "hw_thermal"), True), (("hw_power_brake",), True)],
)
def test_heat_and_brakes_make_a_timing_unreliable_and_a_power_cap_does_not(reasons, unreliable):
    assert is_throttled(reasons) is unreliable


def test_a_monitor_reads_at_least_once_and_reports_medians_and_every_reason():
    monitor = Monitor(Sensor(reading(1000.0, "hw_thermal"), reading(1980.0), reading(1960.0)), period_s=0.001)
    while len(monitor.readings) < 5:
        with monitor.running():
            pass
    device = monitor.describe(Device(name="gpu"))
    assert device.sm_clock_mhz == 1960.0
    assert device.throttle_reasons == ("hw_thermal",)
    assert device.power_w == 500.0


def test_without_a_sensor_the_device_stays_as_it_was():
    monitor = Monitor(None)
    with monitor.running():
        pass
    assert monitor.describe(Device(name="cpu")) == Device(name="cpu")


def test_what_nvml_does_not_tell_is_unknown_and_the_rest_is_in_si(monkeypatch):
    import pynvml

    def refuse(*_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    clocks = {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 3201}
    monkeypatch.setattr(pynvml, "nvmlDeviceGetClockInfo", lambda handle, kind: clocks[kind])
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", lambda handle: 412_500)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTemperature", refuse)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksThrottleReasons", lambda handle: 0x80)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetEnforcedPowerLimit", lambda handle: 700_000)
    sensor = NvmlSensor("handle")
    assert sensor.power_limit_w == pytest.approx(700.0)
    seen = sensor.read()
    assert (seen.sm_clock_mhz, seen.memory_clock_mhz, seen.temperature_c) == (1980.0, 3201.0, None)
    assert seen.power_w == pytest.approx(412.5)
    assert seen.reasons == ("hw_power_brake",)
    monitor = Monitor(sensor, period_s=0.001)
    with monitor.running():
        pass
    assert monitor.describe(Device(name="gpu")).temperature_c is None


def test_a_failing_sensor_costs_the_clocks_only():
    monitor = Monitor(Sensor(OSError("gone")), period_s=0.001)
    with monitor.running():
        pass
    assert "gone" in monitor.problem
    assert monitor.readings == []


def test_threads_are_positive_and_within_what_is_allowed(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert 1 <= thread_count() <= cpu_count()
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert thread_count() == 3


def test_software_names_the_versions_that_take_part():
    import torch
    import transformers

    versions = software("cpu")
    assert versions.torch == torch.__version__
    assert versions.transformers == transformers.__version__
    assert versions.cuda is None
    assert versions.driver is None
