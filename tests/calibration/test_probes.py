"""The probes' contract, on this CPU with tiny budgets, and their counts of work against independent counters."""

from __future__ import annotations

import math
import time
from datetime import date

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from calibration.probes import PROBES
from calibration.probes.attention import causal_flops
from calibration.probes.base import Case, Row, fold_rate, fold_rates, measure
from calibration.probes.bmm import _case as bmm_case
from calibration.probes.conv import _patchify, conv_flops
from calibration.probes.device import matmul_precision, random_tensor, traffic_elements, unsupported
from calibration.probes.matmul import LAYOUTS, MatmulProbe, product_case, product_shape, spread_evenly
from calibration.probes.matmul_fit import PRIOR_HALF_K, Efficiency, fit_efficiency, output_tiles
from calibration.probes.operations import VIEW_WEIGHT, count_operations
from calibration.probes.optimizer import transformer_shapes
from calibration.probes.report import run_one
from calibration.probes.traffic import TrafficProbe
from calibration.timing import HostStopwatch, time_call

NOT_ON_A_CPU = {
    "matmul_tf32_flops_per_s", "bmm_tf32_flops_per_s", "matmul_odd_factor_tf32", "matmul_even_factor_tf32",
    "h2d_bytes_per_s", "d2h_bytes_per_s",
}  # fmt: skip
PASSES = ("forward", "backward")
CONTRACT = {
    *(f"matmul_{p}_flops_per_s" for p in ("bf16", "fp16", "tf32", "fp32")),
    "matmul_half_k", "matmul_half_tiles", "matmul32_half_k", "matmul32_half_tiles",
    "matmul_odd_factor_16", "matmul_even_factor_16", "matmul_odd_factor_32", "matmul_even_factor_32",
    "bmm_16_flops_per_s", "bmm_32_flops_per_s", "bmm_tf32_flops_per_s", "conv_16_flops_per_s", "conv_32_flops_per_s",
    *(f"attention_{w}_{d}_hd{h}_flops_per_s" for w in (16, 32) for d in PASSES for h in (64, 128, 256)),
    *(f"{kind}_bytes_per_s" for kind in ("elementwise", "strided", "concat", "softmax", "norm", "reduce", "embedding")),
    "dropout_bytes_per_s", "fill_bytes_per_s", "h2d_bytes_per_s", "d2h_bytes_per_s", "kernel_floor_s",
    *(f"dispatch_{phase}_s" for phase in ("forward", "backward", "recompute", "optimizer")),
    *(f"optimizer_{kind}_bytes_per_s" for kind in ("adamw_fused", "adamw_foreach", "sgd")), "clip_bytes_per_s",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """One thread: figures do not matter here, and busy neighbours stall a second one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def promised():
    return [name for probe in PROBES for name in probe.promises()]


def test_every_rate_of_the_contract_is_promised_once():
    assert set(promised()) >= CONTRACT
    assert len(promised()) == len(set(promised()))


def test_probe_names_are_unique_and_shares_add_up_to_about_one():
    assert len({probe.name for probe in PROBES}) == len(PROBES)
    assert sum(probe.share for probe in PROBES) == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_a_probe_gives_every_rate_it_promises_or_says_why_not(probe):
    result = run_one(probe, "cpu", 0.02)
    assert set(result.rates) | {name for name in result.skipped if ":" not in name} == set(probe.promises())
    assert set(result.skipped) <= NOT_ON_A_CPU
    for rate in result.rates.values():
        assert math.isfinite(rate.value)
        assert rate.value > 0
        assert rate.sd_log >= 0.02
        assert rate.basis == "probe"
        assert probe.name in rate.source
        assert torch.__version__ in rate.source
        date.fromisoformat(rate.date)
    assert all(row.probe == probe.name and len(row.samples_s) >= 3 and row.median_s > 0 for row in result.rows)
    assert bool(result.rows) == bool(result.rates)
    assert all(rate.value >= 1 for name, rate in result.rates.items() if "_factor_" in name)


def test_fitted_products_agree_with_an_independent_timing():
    ratios = []
    for _ in range(3):  # a busy neighbour may spoil one attempt
        rates = MatmulProbe().run("cpu", 0.6).rates
        a, b = torch.randn(384, 384), torch.randn(384, 384)
        torch.mm(a, b)
        start_s = time.perf_counter()
        for _ in range(20):
            torch.mm(a, b)
        measured = 20 * 2 * 384**3 / (time.perf_counter() - start_s)
        half_k, half_tiles = rates["matmul32_half_k"].value, rates["matmul32_half_tiles"].value
        predicted = rates["matmul_fp32_flops_per_s"].value * 384 / (384 + half_k) * 9 / (9 + half_tiles)
        ratios.append(predicted / measured)
        if 0.5 < ratios[-1] < 2.0:
            break
    assert 0.5 < ratios[-1] < 2.0, ratios


def product_row(precision, m, n, k, flops_per_s):
    flops = 2.0 * m * n * k
    return Row(
        probe="matmul", rate=precision, label=f"{m}x{n}x{k}", amount=flops, median_s=flops / flops_per_s,
        samples_s=(flops / flops_per_s,) * 3, calls_per_sample=1, method="made", facts={"m": m, "n": n, "k": k},
    )  # fmt: skip


TRUTH = Efficiency(
    peaks_flops_per_s={"bf16": 8e14, "fp16": 7e14},
    residual_sd_log={}, half_k=250.0, half_k_sd_log=0, half_tiles=40.0, half_tiles_sd_log=0,
)  # fmt: skip


def test_the_fit_recovers_peaks_and_half_sizes():
    sizes = (512, 1024, 4096, 16384)
    rows = {
        p: [product_row(p, m, n, k, TRUTH.rate_flops_per_s(p, m, n, k)) for m in sizes for n in sizes for k in sizes]
        for p in TRUTH.peaks_flops_per_s
    }
    fitted = fit_efficiency(rows)
    assert fitted.peaks_flops_per_s == pytest.approx(TRUTH.peaks_flops_per_s, rel=0.01)
    assert (fitted.half_k, fitted.half_tiles) == (pytest.approx(250, rel=0.02), pytest.approx(40, rel=0.02))
    assert max(fitted.residual_sd_log.values()) < 0.01


def test_a_size_that_the_grid_does_not_vary_stays_at_its_prior_and_says_so():
    rows = {"bf16": [product_row("bf16", m, m, 1024, 1e12) for m in (1024, 4096, 16384)]}
    fitted = fit_efficiency(rows)
    assert fitted.half_k == pytest.approx(PRIOR_HALF_K, rel=0.5)
    assert fitted.half_k_sd_log > 1.0


def test_tiles_round_up():
    assert output_tiles(128, 128) == 1
    assert output_tiles(129, 257) == 6


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_products_have_the_work_and_shape_they_say(layout, precision):
    case = product_case("cpu", precision, 48, (40, 24), layout)
    with FlopCounterMode(display=False) as counter:
        out = case.build()[0]()
    assert counter.get_total_flops() == case.amount == 2 * 48 * 40 * 24
    assert tuple(out.shape) == product_shape(48, (40, 24), layout)[:2]


def test_the_six_products_of_attention_have_the_work_they_say():
    case = bmm_case("cpu", "32", "fp32", 64, 512, 1e-4)
    with FlopCounterMode(display=False) as counter:
        case.build()[0]()
    assert counter.get_total_flops() == case.amount


def test_the_patch_convolution_has_the_work_it_says():
    call = _patchify("cpu", "fp32", 2)
    with FlopCounterMode(display=False) as counter:
        call()
    assert counter.get_total_flops() == conv_flops(2)


def test_causal_attention_counts_half_of_its_products():
    query, key, value = (torch.randn(6, 32, 16) for _ in range(3))
    with FlopCounterMode(display=False) as counter:
        torch.bmm(torch.bmm(query, key.mT), value)
    assert causal_flops(2, 3, 32, 16, "forward") == counter.get_total_flops() / 2
    assert causal_flops(2, 3, 32, 16, "backward") == 2.5 * counter.get_total_flops() / 2


class ByteCounter(TorchDispatchMode):
    """Bytes of every operation's tensors, in plus out; one written in place or broadcast counts as stored."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            inputs = [item for arg in args for item in (arg if isinstance(arg, (list, tuple)) else (arg,))]
            outputs = out if isinstance(out, (list, tuple)) else (out,)
            distinct = {id(item): item for item in (*inputs, *outputs) if isinstance(item, torch.Tensor)}
            self.bytes += sum(tensor.nbytes for tensor in distinct.values())
        return out


def read_beyond_the_tensors(label, elements):
    """Bytes that an operation reads again (positive) or does not touch (negative)."""
    if "layer norm backward" in label:
        return elements * (4 if "fp32" in label else 2)
    if "tokens of" in label:
        return -4 * elements + 4 * elements // 2  # a look-up reads half as many rows as the table has, not the table
    return 0


@pytest.mark.parametrize("probe", [p for p in PROBES if isinstance(p, TrafficProbe)], ids=lambda probe: probe.name)
def test_bandwidth_cases_move_the_bytes_they_say(probe):
    for case in probe.cases("cpu", 2**20):
        call = case.build()[0]
        with ByteCounter() as counter:
            call()
        expected = counter.bytes + read_beyond_the_tensors(case.label, case.facts["elements"])
        assert case.amount == pytest.approx(expected, rel=0.02), case.label


def test_operations_are_counted_with_views_at_less():
    a, b = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    assert count_operations(lambda: (a @ b + 1).view(16)) == 2 + VIEW_WEIGHT
    loss = (a @ b).sum()
    backward = count_operations(loss.backward)
    assert backward == pytest.approx(2 + 3 * VIEW_WEIGHT, abs=2)  # ones, expand, t, mm, detach
    assert a.grad is not None
    assert count_operations(lambda: torch.empty(3)) == VIEW_WEIGHT


def make_case(rate, label, call, amount=1.0):
    return Case(rate=rate, label=label, amount=amount, build=lambda: [call])


def fail():
    raise RuntimeError("no kernel\nfor this")


def test_a_spent_budget_still_measures_one_case_of_every_rate():
    cases = [make_case(rate, f"{rate}{i}", lambda: None) for rate in ("x", "y") for i in range(3)]
    measured = measure("p", cases, "cpu", 0.0)
    assert [row.label for row in measured.rows] == ["x0", "y0"]
    assert measured.left_out == 4


def test_a_case_that_fails_costs_only_itself():
    cases = [make_case("x", "bad", fail), make_case("x", "good", lambda: None), make_case("y", "worse", fail)]
    result = fold_rates("p", cases, "cpu", 0.1, {"z": "refused"})
    assert set(result.rates) == {"x"}
    assert result.skipped == {
        "x: bad": "RuntimeError: no kernel",
        "y": "RuntimeError: no kernel",
        "z": "refused",
    }


def test_a_rate_is_the_geometric_mean_with_the_spread_of_its_cases():
    rows = [product_row("r", 1, 1, 1, per_s) for per_s in (1e9, 4e9)]
    rate = fold_rate(rows, "cpu")
    assert rate.value == pytest.approx(2e9)
    assert rate.sd_log == pytest.approx(math.log(2))
    assert fold_rate(rows[:1], "cpu").sd_log == 0.02


def test_the_matmul_precision_is_put_back():
    before = torch.get_float32_matmul_precision()
    with matmul_precision("tf32"):
        assert torch.get_float32_matmul_precision() == "high"
    with matmul_precision("fp32"):
        assert torch.get_float32_matmul_precision() == "highest"
    with pytest.raises(RuntimeError), matmul_precision("tf32"):
        fail()
    assert torch.get_float32_matmul_precision() == before


def test_a_cpu_refuses_tf32_only():
    assert [p for p in ("bf16", "fp16", "tf32", "fp32") if unsupported("cpu", p)] == ["tf32"]


def test_random_tensors_are_not_zeros_and_have_the_shape_asked_for():
    tensor = random_tensor((3, 2**18), "bf16", "cpu")
    assert (tensor.shape, tensor.dtype) == ((3, 2**18), torch.bfloat16)
    assert tensor.float().std().item() == pytest.approx(1.0, abs=0.05)
    assert torch.count_nonzero(tensor).item() > 0.99 * tensor.numel()


def test_sizes_grow_with_the_time_they_may_take_within_bounds():
    assert traffic_elements("cpu", 1e-9) == 2**20
    assert traffic_elements("cpu", 1e3) == 2**22


def test_even_spreading_keeps_both_ends():
    assert spread_evenly(range(100), 4) == [0, 33, 66, 99]
    assert spread_evenly([1, 2], 4) == [1, 2]


@pytest.mark.parametrize("params", [500_000, 10_000_000, 100_000_000])
def test_optimizer_tensors_add_up_to_about_the_parameters_asked_for(params):
    shapes = transformer_shapes(params)
    assert sum(rows * columns for rows, columns in shapes) == pytest.approx(params, rel=0.1)


def test_timing_on_this_host_orders_small_and_large_work():
    small, large = torch.randn(2**10), torch.randn(2**22)
    seconds = [time_call([x.exp], HostStopwatch(), budget_s=0.05).median_s for x in (small, large)]
    assert seconds[0] < seconds[1]
