"""The physics gate: a rate above what the machine can do is a mistake of the measurement, not a discovery."""

from __future__ import annotations

from dataclasses import replace

from profiles.schema import Measurement, Profile, Workload
from simulator.outlook import model_flops
from simulator.techniques.precision import PRECISIONS, product_flops_per_s

SHARE_OF_PEAK = 0.8
"""No training step sustains more of the data sheet's dense peak; the best published runs reach about 0.6."""
PROBE_MARGIN = 1.25
"""On a CPU, whose data sheet is a guess, a step may beat the probed product by this much before it is refused."""


def ceiling_flops_per_s(profile: Profile, precision: str) -> tuple[float, str] | None:
    """The highest rate that a step can sustain on one device, and in words where it is from; ``None`` if unknown."""
    product = PRECISIONS[precision].product
    probed = profile.rates.get(f"matmul_{product}_flops_per_s")
    if profile.machine.gpu.kind == "cpu":
        known = probed is not None and probed.basis == "probe"
        return (probed.value * PROBE_MARGIN, f"probed product × {PROBE_MARGIN}") if probed and known else None
    peak = product_flops_per_s(profile.machine.gpu, product)
    return None if peak is None else (peak * SHARE_OF_PEAK, f"{SHARE_OF_PEAK:.0%} of the dense {product} peak")


def gated(record: Measurement, workload: Workload, profile: Profile) -> Measurement:
    """The record, or its refusal with the arithmetic when its rate is impossible.

    Rates count causal attention at half, no input embedding and no recomputation.
    """
    ceiling = ceiling_flops_per_s(profile, record.recipe.precision)
    if record.status != "ok" or not record.step_s or ceiling is None:
        return record
    recipe = record.recipe
    sample = model_flops(workload, recipe.seq or workload.seq, recipe.decoder_seq or workload.decoder_seq or 0)
    samples = recipe.micro_batch * recipe.grad_accum
    rate = sample * samples / record.step_s
    if rate <= ceiling[0]:
        return record
    reason = (
        f"{sample:.3g} FLOPs a sample × {samples} samples ÷ {record.step_s:.4g} s = {rate / 1e12:.4g} TFLOP/s, above "
        f"{ceiling[0] / 1e12:.4g} ({ceiling[1]}); is the timer synchronised?"
    )
    return replace(record, status="invalid", reason=reason)
