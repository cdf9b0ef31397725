"""Physical rates of a machine, named once, with what to assume of each where nobody measured it.

A data-sheet rate is the peak × a typical efficiency. The efficiencies are what eager PyTorch training reaches on
data-centre GPUs; their spread (``sd_log``, on the natural log) is chosen so that a prediction from the data sheet
alone is no wider than × / ÷ 1.6 at 90 %.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from profiles.schema import Gpu, Machine, Profile, Rate

HEAD_SIZES = (64, 128, 256)
ATTENTION_LENGTH = 1024
"""Length that attention rates are of (the geometric middle of those probed)."""
MATRIX_SD_LOG = 0.22
DATE = "2026-11-30"


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSpec:
    """One rate: its name, its value from the data sheet (``None``: the device has none), and how unsure that is."""

    name: str
    of: Callable[[Gpu], float | None]
    sd_log: float
    basis: str


def _peak(attribute: str, efficiency: float) -> Callable[[Gpu], float | None]:
    def rate(gpu: Gpu) -> float | None:
        peak: float | None = getattr(gpu, attribute)
        return None if peak is None else peak * efficiency

    return rate


def _best_16(efficiency: float) -> Callable[[Gpu], float | None]:
    """Of bf16, else of fp16 (V100, T4), else of fp32."""
    return lambda gpu: (gpu.bf16_flops_per_s or gpu.fp16_flops_per_s or gpu.fp32_flops_per_s) * efficiency


def _bytes(efficiency: float) -> Callable[[Gpu], float | None]:
    return lambda gpu: gpu.memory_bytes_per_s * efficiency


def _constant(on_gpu: float, on_cpu: float) -> Callable[[Gpu], float | None]:
    return lambda gpu: on_cpu if gpu.kind == "cpu" else on_gpu


def _matrix_specs() -> list[RateSpec]:
    efficiency = {"bf16": 0.72, "fp16": 0.72, "tf32": 0.72, "fp32": 0.80}
    specs = [
        RateSpec(
            name=f"matmul_{p}_flops_per_s",
            of=_peak(f"{p}_flops_per_s", e),
            sd_log=MATRIX_SD_LOG,
            basis=f"{p} dense peak × {e}",
        )
        for p, e in efficiency.items()
    ]
    shapes = [("matmul_half_k", 100.0, 10.0), ("matmul_half_tiles", 30.0, 0.5)]
    shapes += [("matmul32_half_k", 50.0, 10.0), ("matmul32_half_tiles", 20.0, 0.5)]
    specs += [RateSpec(name=n, of=_constant(g, c), sd_log=0.5, basis="typical") for n, g, c in shapes]
    factors = (
        ("odd_factor_16", 4.0, 1.1),
        ("even_factor_16", 1.8, 1.05),
        ("odd_factor_32", 1.05, 1.1),
        ("even_factor_32", 1.02, 1.05),
        ("odd_factor_tf32", 2.8, 1.1),
        ("even_factor_tf32", 2.0, 1.05),
    )
    specs += [RateSpec(name=f"matmul_{n}", of=_constant(g, c), sd_log=0.3, basis="typical") for n, g, c in factors]
    specs += [
        RateSpec(name="conv_16_flops_per_s", of=_best_16(0.3), sd_log=0.35, basis="dense peak × 0.3"),
        RateSpec(name="conv_32_flops_per_s", of=_peak("fp32_flops_per_s", 0.5), sd_log=0.35, basis="fp32 peak × 0.5"),
    ]
    return specs


def _attention_specs() -> list[RateSpec]:
    """Causal FLOPs per second of the fused kernels at length 1024; 16 bit is flash, 32 bit the memory-efficient kernel.

    A *tail* is how many keys a causal query computes beyond half: blocks on the diagonal are done in full. From an
    H200's probes at length 1024: causal against full attention, 338 to 434 TFLOP/s forward, 253 to 375 backward in
    bf16; 31.4 to 35.0 and 30.5 to 35.0 in fp32.
    """
    table = {("16", "forward"): 0.42, ("16", "backward"): 0.33, ("32", "forward"): 0.30, ("32", "backward"): 0.22}
    wider = {64: 0.9, 128: 1.0, 256: 0.85}
    tails = {("16", "forward"): 290.0, ("16", "backward"): 490.0, ("32", "forward"): 117.0, ("32", "backward"): 150.0}
    return [
        RateSpec(name=f"attention_{bits}_{phase}_tail", of=_constant(tail, 64.0), sd_log=0.3, basis="as on an H200")
        for (bits, phase), tail in tails.items()
    ] + [
        RateSpec(
            name=f"attention_{bits}_{phase}_hd{size}_flops_per_s",
            of=_best_16(e * wider[size]) if bits == "16" else _peak("fp32_flops_per_s", e * wider[size]),
            sd_log=0.3,
            basis=f"{'16-bit' if bits == '16' else 'fp32'} peak × {e * wider[size]:.2f}",
        )
        for (bits, phase), e in table.items()
        for size in HEAD_SIZES
    ]


def _bandwidth_specs() -> list[RateSpec]:
    table = {
        "elementwise": 0.82,
        "strided": 0.6,
        "concat": 0.6,
        "softmax": 0.65,
        "norm": 0.55,
        "reduce": 0.6,
        "embedding": 0.3,
        "dropout": 0.7,
        "fill": 0.8,
        "optimizer_adamw_fused": 0.75,
        "clip": 0.7,
    }
    return [
        RateSpec(name=f"{n}_bytes_per_s", of=_bytes(e), sd_log=0.25, basis=f"memory bandwidth × {e}")
        for n, e in table.items()
    ]


def _overhead_specs() -> list[RateSpec]:
    table = (
        ("kernel_floor_s", 1.6e-6, 1e-6, 0.35),
        ("kernel_ramp_s", 3.5e-6, 0.1e-6, 0.4),
        ("dispatch_forward_s", 16e-6, 6e-6, 0.28),
        ("dispatch_backward_s", 16e-6, 6e-6, 0.28),
        ("dispatch_recompute_s", 28e-6, 10e-6, 0.28),
        ("dispatch_optimizer_s", 6e-6, 4e-6, 0.3),
        ("compile_bytes_factor", 0.75, 0.75, 0.15),
        ("compile_floor_factor", 0.3, 0.3, 0.3),
        ("compile_host_factor", 0.15, 0.15, 0.28),
        ("compile_s", 40.0, 60.0, 0.4),
    )
    return [RateSpec(name=n, of=_constant(g, c), sd_log=s, basis="typical of eager PyTorch") for n, g, c, s in table]


def _link_specs() -> list[RateSpec]:
    return [
        RateSpec(name="h2d_bytes_per_s", of=lambda gpu: gpu.host_bytes_per_s * 0.8, sd_log=0.25, basis="link × 0.8"),
        RateSpec(name="d2h_bytes_per_s", of=lambda gpu: gpu.host_bytes_per_s * 0.8, sd_log=0.25, basis="link × 0.8"),
        RateSpec(
            name="all_reduce_bytes_per_s",
            of=lambda gpu: gpu.link_bytes_per_s * 0.7,
            sd_log=0.3,
            basis="link, one direction × 0.7",
        ),
    ]


RATES: tuple[RateSpec, ...] = (
    *_matrix_specs(),
    *_attention_specs(),
    *_bandwidth_specs(),
    *_overhead_specs(),
    *_link_specs(),
)


def datasheet_rates(gpu: Gpu) -> dict[str, Rate]:
    """Every rate that the data sheet implies; a rate the device cannot have is absent."""
    rates = {}
    for spec in RATES:
        value = spec.of(gpu)
        if value is not None:
            rates[spec.name] = Rate(
                value=value, sd_log=spec.sd_log, basis="datasheet", source=f"{spec.basis} ({gpu.source})", date=DATE
            )
    return rates


def datasheet_profile(machine: Machine) -> Profile:
    """What is assumed of a machine that nobody has measured."""
    return Profile(
        machine=machine,
        provenance="datasheet",
        rates=datasheet_rates(machine.gpu),
        created_at=DATE,
        note="no measurement of this machine; calibrate on it to narrow the intervals",
    )


def rate_value(rates: dict[str, Rate], name: str) -> float:
    """The rate's value; a rate that a device lacks is infinitely slow, so that nothing built on it looks fast."""
    rate = rates.get(name)
    return rate.value if rate else 1e-100
