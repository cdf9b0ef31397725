"""The worker on a real GPU: run with ``pytest -m gpu``."""

import shutil

import pytest

from calibration.local import LocalMeasurer
from calibration.trial import Trial
from profiles.schema import Recipe

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no NVIDIA GPU")]
GIB = 2**30


@pytest.fixture(scope="module")
def measure():
    with LocalMeasurer() as measurer:

        def run(limit_bytes=None, **knobs):
            recipe = Recipe(**{"micro_batch": 4, **knobs})
            order = Trial(model="pythia-160m", machine="gpu", device="cuda", recipe=recipe, limit_bytes=limit_bytes)
            return measurer.measure(order)

        yield run


def test_a_record_of_a_gpu_is_complete(measure):
    record = measure()
    assert record.status == "ok", record.reason
    assert record.memory_kind == "allocated"
    weights_gradients_and_adam = 16 * 162_322_944
    assert weights_gradients_and_adam < record.peak_bytes <= record.peak_reserved_bytes < record.peak_device_bytes
    assert record.peak_device_bytes - record.peak_reserved_bytes < 2 * GIB
    assert record.device.sm_clock_mhz > 0
    assert record.device.power_w > 0
    assert record.device.power_limit_w > 0
    assert record.software.driver
    assert "expandable_segments:True" in record.note


def test_an_accumulating_record_follows_from_two(measure):
    record = measure(grad_accum=64, micro_batch=16)
    assert record.status == "ok", record.reason
    assert record.measured_grad_accum == (2, 4)
    assert record.step_s == pytest.approx(64 * record.micro_s + record.optimizer_s, rel=0.1)


def test_a_larger_batch_takes_longer_than_the_host_needs_to_queue_it(measure):
    """Without synchronisation both would take the host's time."""
    small, large = measure(micro_batch=16), measure(micro_batch=64)
    assert 3.0 < large.step_s / small.step_s < 5.0


def test_running_out_is_a_result_and_the_next_trial_starts_clean(measure):
    record = measure(limit_bytes=4 * GIB, micro_batch=64)
    assert record.status == "oom"
    assert "OutOfMemoryError" in record.reason
    assert measure(micro_batch=2).status == "ok"


def test_a_compiled_model_really_runs_compiled(measure):
    eager, compiled = measure(), measure(compile="on")
    assert compiled.status == "ok", compiled.reason
    assert "0 graph breaks" in compiled.note
    assert compiled.compile_s > 0
    assert compiled.step_s < eager.step_s


@pytest.mark.parametrize("knobs", [
    {"precision": "tf32"}, {"precision": "fp16"}, {"precision": "bf16_pure", "optimizer": "adafactor"},
    {"checkpointing": "every_2", "optimizer": "lion"}, {"attention": "eager", "optimizer": "adamw_foreach"},
])  # fmt: skip
def test_every_kind_of_recipe_runs(measure, knobs):
    record = measure(**knobs)
    assert record.status == "ok", record.reason
