"""From component seconds to seconds per step, with the fit's corrections and an interval.

micro_s = smooth max of Σ GPU components and Σ host components      (the GPU can only lag behind the host)
step_s  = grad_accum · micro_s + smooth max of the optimizer's + sync
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from profiles.schema import Fit, Rate
from simulator.components import COMPONENTS, INDEX, Group, group_mask

FloatArray = NDArray[np.float64]
HOST_CORRELATION = 0.9
SHARPNESS = 6.0
"""Exponent of the p-norm that joins GPU and host time: 2^(1/6), 12 % above either, where they tie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds, one row a recipe: a micro-batch and its GPU and host parts; optimizer, sync and the whole a step."""

    micro_s: FloatArray
    optimizer_s: FloatArray
    sync_s: FloatArray
    step_s: FloatArray
    gpu_s: FloatArray
    host_s: FloatArray


def smooth_max(left: FloatArray, right: FloatArray) -> FloatArray:
    """P-norm of two non-negative times."""
    larger = np.maximum(np.maximum(left, right), 1e-300)
    total: FloatArray = larger * ((left / larger) ** SHARPNESS + (right / larger) ** SHARPNESS) ** (1 / SHARPNESS)
    return total


def log_factors(fit: Fit) -> FloatArray:
    """The fit's log factors in the order of ``COMPONENTS``; 0 where it has none."""
    factors = np.zeros(len(COMPONENTS))
    for correction in fit.corrections:
        if correction.component in INDEX:
            factors[INDEX[correction.component]] = correction.log_factor
    return factors


def step_times(seconds: FloatArray, grad_accum: FloatArray, factors: FloatArray) -> StepTimes:
    """Seconds per step from component seconds (rows × components) under log factors."""
    corrected = seconds * np.exp(factors)
    gpu = np.maximum(corrected[:, group_mask("gpu")].sum(axis=1), 0.0)
    host = np.maximum(corrected[:, group_mask("host")].sum(axis=1), 0.0)
    micro = smooth_max(gpu, host)
    optimizer = smooth_max(
        corrected[:, group_mask("step_gpu")].sum(axis=1), corrected[:, group_mask("step_host")].sum(axis=1)
    )
    sync = corrected[:, group_mask("sync")].sum(axis=1)
    step = grad_accum * micro + optimizer + sync
    return StepTimes(micro_s=micro, optimizer_s=optimizer, sync_s=sync, step_s=step, gpu_s=gpu, host_s=host)


def gradient(seconds: FloatArray, grad_accum: FloatArray, factors: FloatArray) -> FloatArray:
    """∂ log step_s / ∂ log factor, shape (rows, components): each component's share of the step, exactly."""
    times = step_times(seconds, grad_accum, factors)
    corrected = seconds * np.exp(factors)
    shares = np.zeros_like(corrected)
    once = np.ones_like(grad_accum)
    parts: tuple[tuple[tuple[Group, Group], FloatArray, FloatArray], ...] = (
        (("gpu", "host"), times.micro_s, grad_accum),
        (("step_gpu", "step_host"), times.optimizer_s, once),
    )
    for groups, combined, repeats in parts:
        for group in groups:
            mask = group_mask(group)
            total = np.maximum(corrected[:, mask].sum(axis=1), 0.0)
            weight = (total / np.maximum(combined, 1e-300)) ** (SHARPNESS - 1) * repeats / times.step_s
            shares[:, mask] = corrected[:, mask] * weight[:, None]
    mask = group_mask("sync")
    shares[:, mask] = corrected[:, mask] / times.step_s[:, None]
    return shares


def prior_sd(rates: dict[str, Rate]) -> FloatArray:
    """Prior standard deviation of each component's log factor, from the rates it is made of."""
    return np.array([max(own, *(rates[n].sd_log for n in names), 0.0) for own, names in _sources(tuple(rates))])


@cache
def _sources(rates: tuple[str, ...]) -> tuple[tuple[float, tuple[str, ...]], ...]:
    """Per component the model's own deviation, and the names of the rates that it is made of."""
    return tuple(_source(component, rates) for component in COMPONENTS)


def _source(component: str, rates: tuple[str, ...]) -> tuple[float, tuple[str, ...]]:
    for start, stems in _RATE_OF.items():
        if component.startswith(start):
            found = tuple(name for name in rates if name.startswith(stems(component)))
            if found:
                return MODEL_SD_LOG.get(start, 0.05), found
    own = [sd for start, sd in MODEL_SD_LOG.items() if component.startswith(start)]
    return (own[0] if own else UNKNOWN_SD_LOG), ()


UNKNOWN_SD_LOG = 0.25
MODEL_SD_LOG = {
    "matmul": 0.06,
    "bmm": 0.3,
    "attention": 0.15,
    "conv": 0.25,
    "floor": 0.4,
    "power": 0.5,
    "loss": 0.2,
    "dispatch": 0.20,
    "compiled.bytes": 0.20,
    "compiled.floor": 0.28,
    "compiled.dispatch": 0.28,
    "optimizer_dispatch": 0.3,
    "optimizer": 0.15,
    "clip": 0.15,
    "sync": 0.4,
    "elementwise": 0.15,
    "cast": 0.15,
    "strided": 0.2,
    "concat": 0.25,
    "softmax": 0.2,
    "norm": 0.2,
    "reduce": 0.3,
    "embedding": 0.3,
    "dropout": 0.25,
    "fill": 0.2,
}
"""How far a component's real time strays from its probe, on the natural log: the model's own error."""

_RATE_OF: dict[str, Callable[[str], tuple[str, ...]]] = {
    "matmul": lambda c: (f"matmul_{c.split('.')[1]}_flops",),
    "attention": lambda c: ("attention_{1}_{2}_hd".format(*c.split(".")),),
    "conv": lambda c: (f"conv_{c.split('.')[1]}_",),
    "floor": lambda _: ("kernel_ramp",),
    "power": lambda _: (),
    "loss": lambda _: ("softmax",),
    "dispatch": lambda c: (f"dispatch_{c.split('.')[1]}",),
    "compiled.bytes": lambda _: ("compile_bytes",),
    "compiled.floor": lambda _: ("compile_floor",),
    "compiled.dispatch": lambda _: ("compile_host",),
    "optimizer.adamw_fused": lambda _: ("optimizer_adamw_fused",),
    "optimizer_dispatch": lambda _: ("dispatch_optimizer",),
    "optimizer.floor": lambda _: ("kernel_floor",),
    "optimizer": lambda _: ("elementwise",),
    "clip": lambda _: ("clip",),
    "sync": lambda _: ("all_reduce",),
    "elementwise": lambda _: ("elementwise",),
    "cast": lambda _: ("elementwise",),
    "strided": lambda _: ("strided",),
    "concat": lambda _: ("concat",),
    "softmax": lambda _: ("softmax",),
    "norm": lambda _: ("norm",),
    "reduce": lambda _: ("reduce",),
    "embedding": lambda _: ("embedding",),
    "dropout": lambda _: ("dropout",),
    "fill": lambda _: ("fill",),
}


def covariance(fit: Fit, rates: dict[str, Rate]) -> FloatArray:
    """Covariance of the log factors in the order of ``COMPONENTS``: the fit's where it has one, else the prior's.

    In the prior the host's costs hang together: a slow host is slow at everything. What the fit knows hangs together
    with nothing that it has not seen.
    """
    sd = prior_sd(rates)
    matrix = np.diag(sd**2)
    host = np.flatnonzero(group_mask("host"))
    together = HOST_CORRELATION + (1 - HOST_CORRELATION) * np.eye(len(host))
    matrix[np.ix_(host, host)] = np.outer(sd[host], sd[host]) * together
    index = [INDEX[c.component] for c in fit.corrections if c.component in INDEX]
    if fit.covariance and len(index) == len(fit.corrections):
        matrix[index, :] = matrix[:, index] = 0.0
        matrix[np.ix_(index, index)] = np.array(fit.covariance)
    return matrix


COMPILED_SD_LOG = 0.07
"""How far compiled steps stray from the model, on the log: seven shapes of five models on an H200."""
HOST_COLUMNS = group_mask("host") | group_mask("step_host")


def host_share(shares: FloatArray) -> FloatArray:
    """Between 0 and 1: by how much of its own change the host's speed changes each row's step; from its shares."""
    share: FloatArray = shares[:, HOST_COLUMNS].sum(axis=1)
    return share


def form_sd(seconds: FloatArray) -> FloatArray:
    """What the model's form leaves open, by row: three factors say less of what a compiler does than of eager work."""
    return np.where(seconds[:, INDEX["compiled.floor"]] > 0.0, COMPILED_SD_LOG, 0.0)


def predictive_sd(seconds: FloatArray, grad_accum: FloatArray, fit: Fit, rates: dict[str, Rate]) -> FloatArray:
    """Standard deviation of log step time: parameters, noise, and the host's wandering as far as the host decides."""
    shares = gradient(seconds, grad_accum, log_factors(fit))
    parameters = np.einsum("ij,jk,ik->i", shares, covariance(fit, rates), shares)
    variance: FloatArray = parameters + fit.noise_sd_log**2 + (fit.host_sd_log * host_share(shares)) ** 2
    return np.hypot(np.sqrt(variance), form_sd(seconds))
