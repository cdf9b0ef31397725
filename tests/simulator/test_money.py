"""Arithmetic of published runs; each right-hand side is a figure that was published or follows from one by hand."""

from dataclasses import replace

import numpy as np
import pytest

from profiles.errors import InvalidInputError
from profiles.schema import Device, Energy, Recipe
from simulator.case import Run
from simulator.money import (
    POWER_FRACTION,
    co2e_kg,
    energy_kwh,
    gpu_hours,
    gpu_power_w,
    rent_usd,
    run_cost,
    run_days,
    total_steps,
)

LLAMA = Energy(
    electricity_usd_per_kwh=0.1,
    grid_g_co2e_per_kwh=385,
    pue=1.1,
    host_w_per_gpu=0,
    basis="LLaMA paper",
    source="arXiv:2302.13971",
    date="2023-02-27",
)


def days_at(tokens, gpus, tokens_per_s_per_gpu):
    """Days of a run of 2M-token steps at a published rate."""
    step_tokens = 1024 * 2048
    steps = total_steps(Run(tokens=tokens), 1024.0, 2048)
    return run_days(steps, step_tokens / (gpus * tokens_per_s_per_gpu))


@pytest.mark.parametrize(
    ("tokens", "gpus", "rate", "days"),
    [
        pytest.param(3e12, 16, 24_000, 90.4, id="TinyLlama-1.1B-on-16-A100"),
        pytest.param(22e9, 8, 24_000, 31.8 / 24, id="TinyLlama-22B-tokens-on-8"),
        pytest.param(400e9, 768, 100.5, 60.0, id="GLM-130B"),
        pytest.param(1.4e12, 2048, 380, 20.8, id="LLaMA-65B"),
    ],
)
def test_days_follow_from_rate_and_gpus(tokens, gpus, rate, days):
    assert days_at(tokens, gpus, rate) == pytest.approx(days, rel=2e-3)


def test_tinyllama_300b_takes_3472_gpu_hours():
    assert gpu_hours(days_at(300e9, 16, 24_000), 16) == pytest.approx(3472, abs=1)


def test_llama_65b_hours_and_dollars():
    gpu_h = gpu_hours(days_at(1.4e12, 2048, 380), 2048)
    assert gpu_h == pytest.approx(1.02e6, rel=5e-3)
    assert rent_usd(gpu_h, 2.15) == pytest.approx(2.2e6, rel=5e-3)


def test_llama_65b_energy_and_carbon_as_published():
    kwh = energy_kwh(1_022_362.0, 400, LLAMA)
    assert kwh == pytest.approx(449e3, rel=3e-3)
    assert co2e_kg(kwh, LLAMA) == pytest.approx(173e3, rel=3e-3)


@pytest.mark.parametrize(("hours", "price", "usd"), [(24, 3.5, 672), (1.5, 1.7, 20.4)])
def test_gpt2_rent_on_eight_gpus(hours, price, usd):
    assert rent_usd(gpu_hours(hours / 24, 8), price) == pytest.approx(usd)


def test_pythia_steps_are_whole_and_exact():
    assert total_steps(Run(tokens=143_000 * 1024 * 2048), 1024.0, 2048) == 143_000
    assert total_steps(Run(tokens=143_000 * 1024 * 2048 + 1), 1024.0, 2048) == 143_001
    assert total_steps(Run(tokens=300e9), 1024.0, 2048) == 143_052
    assert run_days(143_000.0, 10.616) == pytest.approx(17.571, abs=1e-3)


def test_steps_from_samples_and_steps():
    assert total_steps(Run(samples=1000), 256.0, 197) == 4
    assert total_steps(Run(steps=7), 256.0, 197) == 7
    assert total_steps(Run(), 256.0, 197) is None


def test_two_lengths_are_refused():
    with pytest.raises(InvalidInputError, match="give one of tokens, samples and steps"):
        total_steps(Run(tokens=1e9, steps=3), 1.0, 1)


@pytest.mark.parametrize("run", [Run(tokens=300e9), Run(samples=1e6), Run(steps=12)])
def test_arrays_give_what_scalars_give(run):
    batches = np.array([100.0, 128.0, 999.0])
    steps = total_steps(run, batches, 512)
    assert steps.tolist() == [total_steps(run, batch, 512) for batch in batches.tolist()]


def test_run_cost_of_a_recipe(make_case):
    energy = Energy(
        electricity_usd_per_kwh=0.2,
        grid_g_co2e_per_kwh=500,
        pue=1.5,
        host_w_per_gpu=72,
        basis="made up",
        source="test",
        date="2026-01-01",
    )
    case = make_case(gpus=4, nodes=2, usd_per_gpu_h=2.0, energy=energy, tokens=2048 * 64 * 1000 - 5)
    cost = run_cost(case, Recipe(micro_batch=4, grad_accum=2), 3.6)
    assert cost.steps == 1000
    assert cost.days == pytest.approx(1 / 24)
    assert cost.gpu_h == pytest.approx(8)
    assert cost.usd == pytest.approx(16)
    assert cost.kwh == pytest.approx(8 * (400 * 0.82 + 72) * 1.5 / 1000)
    assert cost.electricity_usd == pytest.approx(cost.kwh * 0.2)
    assert cost.co2e_kg == pytest.approx(cost.kwh * 0.5)


def test_an_encoder_decoder_counts_both_lengths(make_case, make_workload):
    workload = make_workload(seq=512, decoder_seq=114)
    case = make_case(workload=workload, tokens=626 * 10)
    assert run_cost(case, Recipe(micro_batch=2), 1.0).steps == 5


def test_unknown_prices_stay_unknown(make_case):
    cost = run_cost(make_case(steps=10), Recipe(), 1.0)
    assert (cost.usd, cost.kwh, cost.electricity_usd, cost.co2e_kg) == (None, None, None, None)
    assert run_cost(make_case(), Recipe(), 1.0) is None


def test_measured_power_wins(make_case):
    case = make_case()
    assert gpu_power_w(case) == 400 * POWER_FRACTION
    measured = replace(case, profile=replace(case.profile, device=Device(name="A100", power_w=251.0)))
    assert gpu_power_w(measured) == 251.0
