"""A small workload, GPUs and cases written by hand, shared by the simulator's tests as factories."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from profiles.schema import Energy, Gpu, Machine, Price, Profile, Stack, Variant, Workload
from simulator.case import Case, Run

GPUS: dict[str, dict[str, Any]] = {
    "A100": {"compute_capability": 8.0, "tf32_flops_per_s": 156e12, "bf16_flops_per_s": 312e12, "power_w": 400.0},
    "V100": {"compute_capability": 7.0, "tf32_flops_per_s": None, "bf16_flops_per_s": None, "power_w": 300.0},
    "MI250X": {"kind": "rocm", "compute_capability": None, "tf32_flops_per_s": None, "bf16_flops_per_s": 190e12},
    "CPU": {
        "kind": "cpu",
        "compute_capability": None,
        "tf32_flops_per_s": None,
        "fp16_flops_per_s": None,
        "bf16_flops_per_s": 1e11,
    },
}
VARIANTS = [
    (numerics, attention, checkpointed)
    for numerics in ("fp32", "amp", "pure")
    for attention in ("eager", "sdpa")
    for checkpointed in (False, True)
]


def fake_gpu(name: str, **changes: Any) -> Gpu:
    facts: dict[str, Any] = {
        "name": name,
        "fp32_flops_per_s": 19.5e12,
        "fp16_flops_per_s": 312e12,
        "memory_bytes": 80 * 2**30,
        "memory_bytes_per_s": 2e12,
        "power_w": 400.0,
        "multiprocessors": 108,
        "link": "nvlink",
        "link_bytes_per_s": 300e9,
        "host_bytes_per_s": 25e9,
        "basis": "made up",
        "source": "test",
        "date": "2026-01-01",
    }
    return Gpu(**(facts | GPUS[name] | changes))


def fake_workload(
    variants: Iterable[tuple[Any, Any, bool]] = VARIANTS, depths: Iterable[int] = (6,), **changes: Any
) -> Workload:
    facts: dict[str, Any] = {
        "name": "tiny",
        "task": "causal_lm",
        "model_type": "gpt_neox",
        "config": {},
        "config_hash": "0",
        "params": 1_000_000,
        "active_params": 1_000_000,
        "embedding_params": 200_000,
        "parameter_tensors": 76,
        "largest_parameter": 200_000,
        "layers": 6,
        "heads": 8,
        "seq": 2048,
        "stacks": tuple(Stack(name=f"stack{index}", depth=depth) for index, depth in enumerate(depths)),
        "variants": tuple(
            Variant(numerics=numerics, attention=attention, checkpointed=checkpointed, ops=(), memory=())
            for numerics, attention, checkpointed in variants
        ),
        "transformers_version": "0",
        "torch_version": "0",
    }
    return Workload(**(facts | changes))


@pytest.fixture(scope="session")
def make_workload() -> Callable[..., Workload]:
    return fake_workload


@pytest.fixture(scope="session")
def make_case() -> Callable[..., Case]:
    """``make_case(gpu="A100", gpus=1, nodes=1, fixed={}, usd_per_gpu_h=None, workload=None, **run)``."""

    def build(
        *,
        gpu: str = "A100",
        gpus: int = 1,
        nodes: int = 1,
        fixed: dict[str, object] | None = None,
        usd_per_gpu_h: float | None = None,
        energy: Energy | None = None,
        workload: Workload | None = None,
        **run: Any,
    ) -> Case:
        machine = Machine(name="fake", gpu=fake_gpu(gpu), gpus_per_node=gpus, nodes=nodes)
        profile = Profile(machine=machine, provenance="datasheet", rates={}, created_at="2026-01-01")
        price = Price(
            gpu=gpu, provider="p", rent_usd_per_gpu_h=usd_per_gpu_h, basis="made up", source="test", date="2026-01-01"
        )
        return Case(
            workload=workload or fake_workload(),
            profile=profile,
            run=Run(**run),
            price=price,
            energy=energy,
            fixed=fixed or {},
        )

    return build
