"""The physics gate: a published step time that no GPU can reach is refused, a believable one is not."""

from dataclasses import replace

import pytest

from calibration.gate import gated
from profiles.machines import parse_machine
from profiles.schema import Measurement, Rate, Recipe
from profiles.store import load_workload
from simulator.rates import datasheet_profile

A100 = datasheet_profile(parse_machine("1xA100-40GB"))


def record(step_s, **knobs):
    recipe = Recipe(**{"micro_batch": 16, "grad_accum": 16, "seq": 2048, **knobs})
    return Measurement(model="pythia-1b", machine="1xA100-40GB", recipe=recipe, status="ok", step_s=step_s)


@pytest.fixture(scope="module")
def pythia():
    return load_workload("pythia-1b")


def test_an_unsynchronised_step_time_is_refused_with_the_arithmetic(pythia):
    """10.616 s for 16 x 16 samples a GPU: 49,385 tokens/s, 86 to 99 % of 312 TFLOP/s by any convention."""
    judged = gated(record(10.616), pythia, A100)
    assert judged.status == "invalid"
    tokens_per_s = 16 * 16 * 2048 / 10.616
    # 6 FLOPs per parameter outside the input embedding, and causal attention: 6 x layers x width x length a token.
    per_token = 6 * (pythia.params - 50304 * 2048) + 6 * 16 * 2048 * 2048
    told = float(judged.reason.split("= ")[1].split()[0]) * 1e12
    assert told == pytest.approx(tokens_per_s * per_token, rel=0.005)
    assert "249.6" in judged.reason


def test_a_believable_step_time_passes(pythia):
    slow = record(25.0)
    assert gated(slow, pythia, A100) is slow


def test_failures_are_left_as_they_are(pythia):
    oom = replace(record(None), status="oom", reason="out of memory")
    assert gated(oom, pythia, A100) is oom


def test_a_cpu_is_judged_by_its_probes_alone(pythia):
    cpu = datasheet_profile(parse_machine("cpu"))
    fast = record(1.0, micro_batch=1, grad_accum=1, precision="fp32")
    assert gated(fast, pythia, cpu) is fast
    probed = Rate(value=1e11, sd_log=0.1, basis="probe", source="test", date="2026-01-01")
    known = replace(cpu, rates={**cpu.rates, "matmul_fp32_flops_per_s": probed})
    assert gated(fast, pythia, known).status == "invalid"
