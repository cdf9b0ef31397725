"""Data-sheet rates: physical, complete, and honest about what a device lacks."""

from dataclasses import replace

import pytest

from profiles.catalogue import gpu_names, load_gpu
from profiles.machines import parse_machine
from simulator.rates import RATES, datasheet_profile, datasheet_rates, rate_value
from simulator.steptime import prior_sd

CARDS = ("H200", "A100-80GB", "V100-16GB", "T4", "RTX-4090", "MI300X", "cpu")


def test_names_are_unique_and_carry_their_unit():
    names = [spec.name for spec in RATES]
    assert len(set(names)) == len(names)
    counts = ("_factor", "_half_k", "_half_tiles", "_tail", "_factor_16", "_factor_32", "_factor_tf32")
    assert [n for n in names if not n.endswith(("_flops_per_s", "_bytes_per_s", "_s", *counts))] == []


@pytest.mark.parametrize("name", gpu_names())
def test_no_rate_is_above_what_the_data_sheet_allows(name):
    gpu = load_gpu(name)
    fastest = max(f for f in (gpu.fp32_flops_per_s, gpu.fp16_flops_per_s, gpu.bf16_flops_per_s) if f)
    for rate_name, rate in datasheet_rates(gpu).items():
        assert 0 < rate.value < float("inf")
        assert 0 < rate.sd_log <= 0.5
        assert rate.basis == "datasheet"
        assert gpu.source in rate.source
        if rate_name.startswith("attention_32") and rate_name.endswith("flops_per_s"):
            assert rate.value < gpu.fp32_flops_per_s
        elif rate_name.endswith("flops_per_s"):
            assert rate.value < fastest
        elif rate_name in {"h2d_bytes_per_s", "d2h_bytes_per_s"}:
            assert rate.value < gpu.host_bytes_per_s
        elif rate_name == "all_reduce_bytes_per_s":
            assert rate.value < gpu.link_bytes_per_s
        elif rate_name.endswith("bytes_per_s"):
            assert rate.value < gpu.memory_bytes_per_s


def test_each_matrix_rate_is_below_its_own_peak():
    gpu = load_gpu("A100-80GB")
    for product in ("fp32", "tf32", "fp16", "bf16"):
        rate = datasheet_rates(gpu)[f"matmul_{product}_flops_per_s"].value
        peak = getattr(gpu, f"{product}_flops_per_s")
        assert 0.5 * peak < rate < peak


def test_twice_the_memory_bandwidth_doubles_what_moves_bytes_and_nothing_else():
    gpu = load_gpu("A100-80GB")
    before = datasheet_rates(gpu)
    after = datasheet_rates(replace(gpu, memory_bytes_per_s=2 * gpu.memory_bytes_per_s))
    links = {"h2d_bytes_per_s", "d2h_bytes_per_s", "all_reduce_bytes_per_s"}
    doubled = {n for n in before if after[n].value == pytest.approx(2 * before[n].value)}
    assert doubled == {n for n in before if n.endswith("_bytes_per_s")} - links
    assert all(after[n].value == before[n].value for n in before if n not in doubled)


@pytest.mark.parametrize("name", ["V100-16GB", "T4"])
def test_what_a_device_lacks_is_absent_and_infinitely_slow(name):
    rates = datasheet_rates(load_gpu(name))
    assert "matmul_bf16_flops_per_s" not in rates
    assert "matmul_tf32_flops_per_s" not in rates
    assert 1.0 / rate_value(rates, "matmul_bf16_flops_per_s") > 1e99
    assert rate_value(rates, "matmul_fp16_flops_per_s") == rates["matmul_fp16_flops_per_s"].value


def test_fused_16_bit_attention_follows_the_16_bit_peak_that_there_is():
    old, new = load_gpu("V100-16GB"), load_gpu("A100-80GB")
    name = "attention_16_forward_hd128_flops_per_s"
    shares = [datasheet_rates(g)[name].value / p for g, p in ((old, old.fp16_flops_per_s), (new, new.bf16_flops_per_s))]
    assert shares[0] == pytest.approx(shares[1])


@pytest.mark.parametrize("name", CARDS)
def test_a_data_sheet_profile_says_what_it_is(name):
    machine = parse_machine("cpu" if name == "cpu" else f"1x{name}")
    profile = datasheet_profile(machine)
    assert profile.provenance == "datasheet"
    assert profile.machine == machine
    assert profile.fit.measurements == 0
    assert profile.fit.corrections == ()
    assert "calibrate" in profile.note
    assert ((prior_sd(profile.rates) > 0.01) & (prior_sd(profile.rates) <= 0.5)).all()


def test_a_prior_narrows_where_probes_are_sharper():
    rates = datasheet_rates(load_gpu("H200"))
    probed = {n: replace(r, sd_log=0.001, basis="probe") for n, r in rates.items()}
    assert (prior_sd(probed) <= prior_sd(rates)).all()
    assert prior_sd(probed).sum() < 0.8 * prior_sd(rates).sum()
    assert prior_sd(probed).min() > 0.01, "a probe is not the training step: the model's own error stays"
