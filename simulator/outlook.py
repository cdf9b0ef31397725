"""From arrays to answers: one recipe's prediction with intervals, provenance, breakdowns and warnings."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from profiles.errors import InvalidInputError
from profiles.schema import Fit, Machine, Measurement, Provenance, Recipe, Workload
from simulator import money
from simulator.calibrated import beyond
from simulator.case import Case
from simulator.components import COMPONENTS, Choice, component_seconds, evaluate
from simulator.memory import PARTS, Memory, memory
from simulator.rates import rate_value
from simulator.results import Prediction
from simulator.steptime import StepTimes, log_factors, predictive_sd, step_times
from simulator.techniques.precision import PRECISIONS, product_flops_per_s

FloatArray = NDArray[np.float64]
UNCALIBRATED_RANKS_SD_LOG = 0.08
"""Added where several GPUs work together: their exchange, stragglers and overlap were never measured."""
MAX_BELIEVABLE_MFU = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Time and memory of many sizes of one choice."""

    seconds: FloatArray
    grad_accum: FloatArray
    times: StepTimes
    memory: Memory


def outlook(case: Case, choice: Choice, sizes: FloatArray, grad_accum: FloatArray) -> Outlook:
    """Time and memory at rows (micro-batch, seq, decoder seq) of ``sizes``."""
    seconds = seconds_of(case, choice, sizes)
    fit = case.profile.fit
    return Outlook(
        seconds=seconds,
        grad_accum=grad_accum,
        times=step_times(seconds, grad_accum, log_factors(fit)),
        memory=memory(case.workload, choice, sizes, grad_accum > 1, fit, memory_limit_bytes(case), case.ranks),
    )


def seconds_of(case: Case, choice: Choice, sizes: FloatArray) -> FloatArray:
    """Seconds per component at rows of ``sizes``, before any correction; see ``component_seconds``."""
    return component_seconds(case.workload, case.profile.rates, choice, sizes, case.ranks, _network(case))


def _network(case: Case) -> float | None:
    """Each GPU's share of its node's network in bytes/s; ``None`` on one node."""
    machine = case.machine
    if machine.nodes == 1 or machine.network_bytes_per_s_per_node is None:
        return None
    return machine.network_bytes_per_s_per_node / machine.gpus_per_node


def sizes_of(case: Case, recipe: Recipe, micro_batch: NDArray[np.int64]) -> FloatArray:
    """Rows (micro-batch, seq, decoder seq); a fixed-length model is traced per sample, so its lengths are 1."""
    seq, decoder_seq = (1, 1) if case.workload.fixed_seq else (case.seq(recipe), case.decoder_seq(recipe))
    return np.column_stack(
        [micro_batch, np.full(len(micro_batch), seq), np.full(len(micro_batch), decoder_seq)]
    ).astype(float)


def model_flops_per_sample(case: Case, recipe: Recipe) -> float:
    """FLOPs of one sample, forward and backward: 3 × forward products, causal attention at half, no look-ups.

    Recomputation is not counted. The fused-attention trace tells causal from full attention; where a model has none,
    attention counts in full.
    """
    return model_flops(case.workload, case.seq(recipe), case.decoder_seq(recipe))


def model_flops(workload: Workload, seq: int, decoder_seq: int = 0, *, causal_half: bool = True) -> float:
    """FLOPs of one sample, forward and backward, at these lengths; see ``model_flops_per_sample``."""
    plain = [v for v in workload.variants if not v.checkpointed]
    variant = next((v for v in plain if v.attention == "sdpa"), plain[0])
    row = np.array([[1.0, 1.0, 1.0]]) if workload.fixed_seq else np.array([[1.0, seq, decoder_seq or 1.0]])
    total = 0.0
    for op in variant.ops:
        if op.phase == "forward" and op.flops:
            half = 0.5 if causal_half and op.causal else 1.0
            blocks = workload.stacks[op.stack].depth if op.stack >= 0 else 1
            total += 3.0 * half * blocks * float(np.asarray(evaluate(op.flops, row)).sum())
    return total


def prediction(case: Case, recipe: Recipe) -> Prediction:
    """Everything about one legal recipe."""
    sizes = sizes_of(case, recipe, np.array([recipe.micro_batch]))
    view = outlook(case, Choice.of(recipe), sizes, np.array([float(recipe.grad_accum)]))
    step_s = float(view.times.step_s[0])
    warnings = [*case.warnings, *case.workload.warnings]
    spread = _spread(case, recipe, view, warnings)
    batch = money.global_batch(case, recipe)
    cost = money.run_cost(case, recipe, step_s)
    peaks = view.memory
    limit = memory_limit_bytes(case)
    device = float(peaks.peak_device_bytes[0])
    mfu = _mfu(case, recipe, batch, step_s)
    _require_believable(case, recipe, mfu)
    return Prediction(
        recipe=recipe,
        step_s=step_s,
        step_s_low=step_s / spread,
        step_s_high=step_s * spread,
        micro_s=float(view.times.micro_s[0]),
        optimizer_s=float(view.times.optimizer_s[0]),
        sync_s=float(view.times.sync_s[0]),
        tokens_per_s=batch * case.positions(recipe) / step_s,
        global_batch=batch,
        steps=cost.steps if cost else None,
        days=cost.days if cost else None,
        days_low=cost.days / spread if cost else None,
        days_high=cost.days * spread if cost else None,
        usd=cost.usd if cost else None,
        kwh=cost.kwh if cost else None,
        mfu=mfu,
        peak_bytes=round(peaks.peak_bytes[0]),
        peak_reserved_bytes=round(peaks.peak_reserved_bytes[0]),
        peak_device_bytes=round(device),
        peak_bytes_high=round(peaks.peak_bytes_high[0]),
        memory_limit_bytes=limit,
        fit_probability=_normal_cdf((limit - float(peaks.needed_bytes[0])) / max(float(peaks.sd_bytes[0]), 1.0)),
        fits=bool(peaks.peak_bytes_high[0] <= limit) and not _known_oom(case, recipe, warnings),
        provenance=provenance(case),
        time_breakdown_s=_time_breakdown(case.profile.fit, view),
        memory_breakdown_bytes=_memory_breakdown(peaks),
        measured_step_s=_measured_step_s(case, recipe),
        compile_s=rate_value(case.profile.rates, "compile_s") if recipe.compile == "on" else 0.0,
        warnings=tuple(warnings),
    )


def _known_oom(case: Case, recipe: Recipe, warnings: list[str]) -> bool:
    smallest = ran_out(case, recipe)
    if smallest is None or recipe.micro_batch < smallest:
        return False
    warnings.append(f"a real run of this recipe ran out of memory at micro_batch={smallest}")
    return True


def _require_believable(case: Case, recipe: Recipe, mfu: float | None) -> None:
    """Nothing, unless the prediction is faster than the machine can be: then the profile is wrong, and says so.

    Raises:
        InvalidInputError: with the share of the dense peak that the prediction would need.
    """
    if mfu is not None and mfu > MAX_BELIEVABLE_MFU and case.machine.gpu.kind != "cpu":
        share = f"{mfu:.0%} of the dense {PRECISIONS[recipe.precision].product} peak"
        raise InvalidInputError(f"profile of {case.machine.name}", [f"its prediction needs {share}; calibrate again"])


def memory_limit_bytes(case: Case) -> int:
    """What one process may use on the case's device, see ``device_limit_bytes``."""
    return device_limit_bytes(case.machine)


def device_limit_bytes(machine: Machine) -> int:
    """What one process may use on a machine's device: its whole memory; on a CPU, the host's."""
    if machine.gpu.kind == "cpu" and machine.host_memory_bytes:
        return machine.host_memory_bytes
    return machine.gpu.memory_bytes


def provenance(case: Case) -> Provenance:
    """``predicted`` from a fit of this machine, else the profile's own word."""
    return "predicted" if case.profile.provenance == "measured" else case.profile.provenance


def _spread(case: Case, recipe: Recipe, view: Outlook, warnings: list[str]) -> float:
    """Factor from the point to either end of the 90 % interval; says in ``warnings`` what left the calibrated range."""
    fit = case.profile.fit
    sd = float(predictive_sd(view.seconds, view.grad_accum, fit, case.profile.rates)[0])
    left = beyond(case, recipe)
    warnings += [why for _, why in left.values()]
    extra = sum(sd_log for sd_log, _ in left.values())
    if case.ranks > 1:
        extra = math.hypot(extra, UNCALIBRATED_RANKS_SD_LOG)
    return math.exp(fit.interval_scale * math.hypot(sd, extra))


def _mfu(case: Case, recipe: Recipe, batch: int, step_s: float) -> float | None:
    peak = product_flops_per_s(case.machine.gpu, PRECISIONS[recipe.precision].product)
    if peak is None:
        return None
    return model_flops_per_sample(case, recipe) * batch / (step_s * peak * case.ranks)


def _normal_cdf(z: float) -> float:
    return 0.5 * (1.0 + math.erf(z / math.sqrt(2.0)))


def _measured_step_s(case: Case, recipe: Recipe) -> float | None:
    """The verified step time of exactly this recipe, if the profile holds one."""
    for record in case.profile.verified:
        if same_recipe(case, record, recipe):
            return record.step_s
    return None


def same_recipe(case: Case, record: Measurement, recipe: Recipe) -> bool:
    """Whether a record ran this model on this machine with this recipe, defaults filled in."""
    return record.status == "ok" and _of_case(case, record) and _filled(case, record.recipe) == _filled(case, recipe)


def ran_out(case: Case, recipe: Recipe) -> int | None:
    """The smallest micro-batch at which a verified run of this recipe ran out of memory; ``None`` if none did."""
    alike = replace(recipe, micro_batch=1, grad_accum=1)
    failed = [
        r.recipe.micro_batch
        for r in case.profile.verified
        if r.status == "oom"
        and _of_case(case, r)
        and _filled(case, replace(r.recipe, micro_batch=1, grad_accum=1)) == _filled(case, alike)
    ]
    return min(failed, default=None)


def _of_case(case: Case, record: Measurement) -> bool:
    return record.config_hash == case.workload.config_hash and record.machine == case.machine.name


def _filled(case: Case, recipe: Recipe) -> tuple[object, ...]:
    return (
        recipe.micro_batch,
        recipe.grad_accum,
        case.seq(recipe),
        case.decoder_seq(recipe),
        recipe.precision,
        recipe.attention,
        recipe.compile,
        recipe.checkpointing,
        recipe.optimizer,
    )


def _time_breakdown(fit: Fit, view: Outlook) -> dict[str, float]:
    """Seconds per optimizer step by component; time hidden under other work is a negative ``overlap``. Adds up."""
    corrected = (view.seconds * np.exp(log_factors(fit)))[0]
    repeats = float(view.grad_accum[0])
    parts: dict[str, float] = {}
    for (name, group), value in zip(COMPONENTS.items(), corrected, strict=True):
        if value:
            parts[name] = float(value) * (repeats if group in {"gpu", "host"} else 1.0)
    parts["overlap"] = float(view.times.step_s[0]) - sum(parts.values())
    return parts


def _memory_breakdown(peaks: Memory) -> dict[str, int]:
    """Bytes by part; adds up to the device peak."""
    row = dict(zip(PARTS, (round(float(x)) for x in peaks.parts[0]), strict=True))
    row["framework"] += round(float(peaks.peak_device_bytes[0])) - sum(row.values())
    return row
