"""Time by component: how many seconds each physical cause would take alone, for many sizes of one choice at once.

A *component* is one physical cause with one correction of its own: matrix products of one dtype and alignment, fused
attention by width and phase, each kind of bandwidth-bound work, a floor per kernel, host dispatch, the optimizer.
Columns of every matrix here follow ``COMPONENTS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from profiles.schema import Op, Poly, Rate, Recipe, Variant, Workload
from simulator.case import variant_of
from simulator.rates import ATTENTION_LENGTH, HEAD_SIZES, rate_value
from simulator.techniques import optimizer as optimizers
from simulator.techniques.checkpointing import checkpointed_blocks
from simulator.techniques.precision import PRECISIONS

FloatArray = NDArray[np.float64]
Group = Literal["gpu", "host", "step_gpu", "step_host", "sync"]

HOST_WEIGHT = {"view": 0.4, "cast": 0.5}
"""Host cost of operations that make a view or that autocast inserts, relative to one that a module calls for."""
TILE = 128
"""Rows and columns of the output tile that one multiprocessor works on in large matrix products."""
FP32_HALF_K = 0.3
"""Products off the tensor cores lose less to short contractions than tf32 ones: batched products on an H200 halve at 47
against 150."""
_BY_ELEMENT = ("strided", "concat")
"""Kinds whose kernels compute an address for every element, so that narrow ones take as long as wide ones."""
SLOWER_BY_WIDTH = {16: 1.5, 32: 0.7}
"""How much slower by bytes such kernels are at a width than the rate over both: an H200 permutes fp32 at 2.6 and bf16
at 1.5 TB/s, and much fp32 work of the kind only broadcasts."""
_BANDWIDTH = ("elementwise", "cast", "strided", "concat", "softmax", "norm", "reduce", "embedding", "dropout", "fill")


def _widths(kind: str) -> tuple[str, ...]:
    """A bandwidth-bound kind's components."""
    return (f"{kind}.16", f"{kind}.32") if kind in _BY_ELEMENT else (kind,)


def _component_table() -> dict[str, Group]:
    table: dict[str, Group] = {}
    for product in ("fp32", "tf32", "fp16", "bf16"):
        table |= {f"matmul.{product}.{pad}": "gpu" for pad in ("aligned", "even", "odd")}
    table |= {f"bmm.{kind}": "gpu" for kind in ("32", "tf32", "16")}
    table |= {f"conv.{bits}": "gpu" for bits in ("32", "16")}
    for bits in ("16", "32"):
        table |= {f"attention.{bits}.{phase}": "gpu" for phase in ("forward", "backward")}
    table |= {name: "gpu" for kind in _BANDWIDTH for name in _widths(kind)}
    table |= {"loss": "gpu", "floor": "gpu", "power": "gpu", "compiled.bytes": "gpu", "compiled.floor": "gpu"}
    table |= {f"dispatch.{phase}": "host" for phase in ("forward", "backward", "recompute")}
    table |= {"compiled.dispatch": "host"}
    table |= {f"optimizer.{name}": "step_gpu" for name in optimizers.OPTIMIZERS}
    table |= {f"optimizer_dispatch.{name}": "step_host" for name in optimizers.OPTIMIZERS}
    return table | {"clip": "step_gpu", "optimizer.floor": "step_gpu", "sync": "sync"}


COMPONENTS: dict[str, Group] = _component_table()
INDEX: dict[str, int] = {name: i for i, name in enumerate(COMPONENTS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The knobs that change what the device does, apart from sizes."""

    precision: str
    attention: str
    compile: str
    checkpointing: str
    optimizer: str

    @classmethod
    def of(cls, recipe: Recipe) -> Choice:
        """A recipe's choice."""
        return cls(
            precision=recipe.precision,
            attention=recipe.attention,
            compile=recipe.compile,
            checkpointing=recipe.checkpointing,
            optimizer=recipe.optimizer,
        )


def variant_for(workload: Workload, choice: Choice) -> Variant:
    """The traced variant behind a choice that the rules admit."""
    numerics = PRECISIONS[choice.precision].numerics
    variant = variant_of(workload, numerics, choice.attention, choice.checkpointing != "none")
    assert variant is not None, f"{workload.name} has no {choice} variant; the rules should have refused it"
    return variant


def evaluate(poly: Poly, sizes: FloatArray) -> FloatArray | float:
    """The polynomial at rows (micro-batch, seq, decoder seq) of ``sizes``."""
    total: FloatArray | float = 0.0
    for coefficient, i, j, k in poly:
        term: FloatArray | float = coefficient
        for column, exponent in enumerate((i, j, k)):
            for _ in range(exponent):
                term = term * sizes[:, column]
        total = total + term
    return total


def component_seconds(
    workload: Workload,
    rates: Mapping[str, Rate],
    choice: Choice,
    sizes: FloatArray,
    ranks: int = 1,
    network_bytes_per_s_per_gpu: float | None = None,
) -> FloatArray:
    """Seconds per component, shape (rows of ``sizes``, components), before any correction.

    ``network_bytes_per_s_per_gpu`` is each GPU's share of its node's network where there are several nodes.

    Micro-batch components are per micro-batch; optimizer and sync components per optimizer step.
    """
    clock = _Clock(rates, choice, sizes)
    variant = variant_for(workload, _executed(choice, workload))
    for op in variant.ops:
        clock.add(op, _blocks(workload, op, choice))
    clock.add_power()
    clock.add_step(workload, ranks, network_bytes_per_s_per_gpu)
    return clock.seconds


def _executed(choice: Choice, workload: Workload) -> Choice:
    """What a compiler makes of a choice: where nothing casts between them, it fuses eager attention's products.

    Two such runs on an H200 take the time of fused attention and half that of eager attention. Memory is not taken to
    follow.
    """
    numerics = PRECISIONS[choice.precision].numerics
    fuses = choice.compile == "on" and choice.attention == "eager" and numerics == "pure"
    fused = replace(choice, attention="sdpa")
    if fuses and variant_of(workload, numerics, "sdpa", choice.checkpointing != "none") is not None:
        return fused
    return choice


def _blocks(workload: Workload, op: Op, choice: Choice) -> float:
    """How many times an operation of one block runs; only checkpointed blocks run again."""
    if op.stack >= 0:
        depth = workload.stacks[op.stack].depth
        return checkpointed_blocks(choice.checkpointing, depth) if op.phase == "recompute" else depth
    if op.phase != "recompute":
        return 1.0
    layers = max(workload.layers, 1)
    return checkpointed_blocks(choice.checkpointing, layers) / layers


class _Clock:
    """Accumulates the seconds of operations."""

    def __init__(self, rates: Mapping[str, Rate], choice: Choice, sizes: FloatArray) -> None:
        self.rates, self.choice, self.sizes = dict(rates), choice, sizes
        self.precision = PRECISIONS[choice.precision]
        self.compiled = choice.compile == "on"
        self.seconds = np.zeros((len(sizes), len(COMPONENTS)))

    def rate(self, name: str) -> float:
        return rate_value(self.rates, name)

    def _put(self, component: str, seconds: FloatArray | float) -> None:
        self.seconds[:, INDEX[component]] += seconds

    def add(self, op: Op, blocks: float) -> None:
        launches = evaluate(op.launches, self.sizes) * blocks
        self._dispatch(op, launches)
        if op.kind == "view":
            return
        self._floor(launches)
        if op.kind in {"matmul", "bmm"}:
            self._matmul(op, blocks)
        elif op.kind in {"conv", "attention"}:
            self._products(op, blocks)
        else:
            self._bandwidth(op, blocks)

    def _dispatch(self, op: Op, launches: FloatArray | float) -> None:
        seconds = launches * HOST_WEIGHT.get(op.kind, 1.0) * self.rate(f"dispatch_{op.phase}_s")
        if self.compiled:
            self._put("compiled.dispatch", seconds * self.rate("compile_host_factor"))
        else:
            self._put(f"dispatch.{op.phase}", seconds)

    def _floor(self, launches: FloatArray | float) -> None:
        seconds = launches * self._kernel_s()
        if self.compiled:
            self._put("compiled.floor", seconds * self.rate("compile_floor_factor"))
        else:
            self._put("floor", seconds)

    def _kernel_s(self) -> float:
        """Seconds that any kernel takes beyond its bytes and FLOPs: start, and ramping up and down."""
        return self.rate("kernel_floor_s") + self.rate("kernel_ramp_s")

    def _matmul(self, op: Op, blocks: float) -> None:
        product = self.precision.product if op.bits == self.precision.bits else "fp32"
        component = f"matmul.{product}.{op.pad}"
        if op.kind == "bmm":
            component = f"bmm.{'16' if op.bits == 16 else 'tf32' if product == 'tf32' else '32'}"
        self._put(component, self._product_seconds(op, blocks, product))

    def _product_seconds(self, op: Op, blocks: float, product: str) -> FloatArray | float:
        """The slower of FLOPs at a rate that falls with short contractions and few output tiles, and of bytes."""
        bits = "" if product in {"fp16", "bf16"} else "32"
        assert op.dims is not None
        batch, m, n, k = (evaluate(d, self.sizes) for d in op.dims)
        tiles = batch * np.maximum(m / TILE, 1.0) * np.maximum(n / TILE, 1.0)
        half_k = self.rate(f"matmul{bits}_half_k") * (FP32_HALF_K if product == "fp32" else 1.0)
        shape = (1 + half_k / k) * (1 + self.rate(f"matmul{bits}_half_tiles") / tiles)
        flops = evaluate(op.flops, self.sizes) * blocks
        factor = self._pad_factor(op, product)
        by_flops = flops * factor * shape / self.rate(f"matmul_{product}_flops_per_s")
        by_bytes = evaluate(op.bytes, self.sizes) * blocks / self.rate("elementwise_bytes_per_s")
        slower = np.maximum if np.all(np.asarray(flops) >= 0) else np.minimum
        seconds: FloatArray | float = slower(by_flops, by_bytes)
        return seconds

    def _pad_factor(self, op: Op, product: str) -> float:
        if op.pad == "aligned":
            return 1.0
        kind = {"fp16": "16", "bf16": "16", "tf32": "tf32", "fp32": "32"}[product]
        return self.rate(f"matmul_{op.pad}_factor_{kind}")

    def _products(self, op: Op, blocks: float) -> None:
        flops = evaluate(op.flops, self.sizes) * blocks
        wide = "16" if op.bits == 16 else "32"
        if op.kind == "attention":
            phase = "backward" if op.phase == "backward" else "forward"
            self._put(
                f"attention.{wide}.{phase}",
                flops * self._computed(op, wide, phase) / self._attention_rate(op, wide, phase),
            )
            return
        self._put(f"conv.{wide}", flops / self.rate(f"conv_{wide}_flops_per_s"))

    def _computed(self, op: Op, wide: str, phase: str) -> FloatArray | float:
        """Share of all keys that is computed, on the basis of the causal rate at ``ATTENTION_LENGTH``."""
        assert op.dims is not None
        tail = self.rate(f"attention_{wide}_{phase}_tail")
        at_rate = 1 + tail / ATTENTION_LENGTH
        if not op.causal:
            return 1.0 / at_rate
        return 0.5 * (1 + tail / evaluate(op.dims[2], self.sizes)) / at_rate

    def _attention_rate(self, op: Op, wide: str, phase: str) -> float:
        assert op.dims is not None
        head_size = op.dims[3][0][0]
        rates = [self.rate(f"attention_{wide}_{phase}_hd{size}_flops_per_s") for size in HEAD_SIZES]
        known = [(size, rate) for size, rate in zip(HEAD_SIZES, rates, strict=True) if rate > 1.0]
        logs = np.interp(np.log(head_size), np.log([s for s, _ in known]), np.log([r for _, r in known]))
        return float(np.exp(logs)) * min(1.0, head_size / HEAD_SIZES[0])

    def _bandwidth(self, op: Op, blocks: float) -> None:
        kind = op.kind if op.kind in _BANDWIDTH else "elementwise"
        component: str = "loss" if kind == "softmax" and op.stack < 0 else kind
        speed = "elementwise" if kind == "cast" else kind
        seconds = evaluate(op.bytes, self.sizes) * blocks / self.rate(f"{speed}_bytes_per_s")
        if kind in _BY_ELEMENT:
            component = f"{kind}.{op.bits}"
            seconds = seconds * SLOWER_BY_WIDTH[op.bits]
        if self.compiled:
            self._put("compiled.bytes", seconds * self.rate("compile_bytes_factor"))
        else:
            self._put(component, seconds)

    def add_power(self) -> None:
        """Sustained tensor-core products draw the power limit and pull the clock down, the more the denser they are."""
        products = self.seconds[:, _TENSOR_CORE].sum(axis=1)
        total = self.seconds[:, group_mask("gpu")].sum(axis=1)
        self._put("power", POWER_DROP * products**2 / np.maximum(total, 1e-300))

    def add_step(self, workload: Workload, ranks: int, network_bytes_per_s: float | None) -> None:
        """The optimizer's pass with gradient clipping, and the all-reduce of gradients between ranks.

        Ring all-reduce sends 2 (n − 1) / n of the gradient bytes (Patarasuk and Yuan, 2009). Half is taken to hide
        under the backward pass; that share is not calibrated yet. Between nodes the network's share of a GPU may be the
        slowest link.
        """
        name, width = self.choice.optimizer, self.precision.weight_bytes
        moved = optimizers.moved_bytes(name, workload, width)
        speed = "optimizer_adamw_fused" if name == "adamw_fused" else "elementwise"
        self._put(f"optimizer.{name}", moved / self.rate(f"{speed}_bytes_per_s"))
        gradient_bytes = workload.params * self.precision.gradient_bytes
        passes = 3 + (2 if self.precision.loss_scaler else 0)
        self._put("clip", passes * gradient_bytes / self.rate("clip_bytes_per_s"))
        self._put("optimizer.floor", optimizers.launches(name, workload) * self._kernel_s())
        host = optimizers.dispatches(name, workload) + 2 * CLIP_DISPATCHES
        self._put(f"optimizer_dispatch.{name}", host * self.rate("dispatch_optimizer_s"))
        if ranks > 1:
            wire = 2 * (ranks - 1) / ranks * gradient_bytes
            slowest = min(self.rate("all_reduce_bytes_per_s"), (network_bytes_per_s or np.inf) * NETWORK_EFFICIENCY)
            self._put("sync", wire * 0.5 / slowest)


NETWORK_EFFICIENCY = 0.7
"""Share of a network's nominal rate that a large all-reduce sustains, as for links inside a node."""
CLIP_DISPATCHES = 10
"""Operations that clipping issues whatever the model: norms of lists, stack, norm, scale."""


@cache
def group_mask(group: Group) -> NDArray[np.bool_]:
    """Which columns belong to a group."""
    return np.array([g == group for g in COMPONENTS.values()])


_TENSOR_CORE = np.array([name.startswith("matmul.") and ".fp32." not in name for name in COMPONENTS])
POWER_DROP = 0.3
"""Share by which products alone would slow down under the power limit: an H200 falls from 1,980 to 1,640 MHz."""
