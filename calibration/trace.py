"""A model's workload, traced on fake tensors with the transformers class itself: no weights, no GPU, seconds.

``python -m calibration.trace`` traces every preset into ``profiles/traces``.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from calibration import counts
from calibration.building import build_config
from calibration.depth import with_depth
from calibration.lengths import attention_heads, fixed_seq, max_positions
from calibration.lengthwise import join_lengths
from calibration.microbatch import build, record_micro_batch
from calibration.models import warnings_for
from calibration.monomials import Point, pick_primes, value
from calibration.recorder import Recording, merge_in_place_sums
from calibration.timeline import Timeline, block_saved, collect_ops, memory_points
from profiles.errors import InvalidInputError
from profiles.schema import Numerics, Preset, Stack, Variant, Workload

TRACED_DEPTH = 3
MAX_REASON = 200
Array = NDArray[np.float64]
_ATTENTION = ("eager", "sdpa")
_COMMON_SIZES = (8.0, 512.0, 512.0)
_LENGTH_TOLERANCE = 0.01
_FAR_SEQ, _FAR_SHARE = 1031, 0.95
"""A length of several chunks, of 64 to 256 positions each; the share of its bytes that passes without a warning."""


class UntraceableError(InvalidInputError):
    """A model that cannot be traced; refused by name, never counted as something else."""


def trace(
    preset: Preset,
    *,
    numerics: tuple[Numerics, ...] = get_args(Numerics),
    attentions: tuple[str, ...] = _ATTENTION,
    checkpointing: tuple[bool, ...] = (False, True),
) -> Workload:
    """The workload of a model: per variant its operations and memory as polynomials in micro-batch and lengths.

    Three blocks a stack are traced, the middle one stands for all the others. A stack whose blocks differ is traced at
    full depth.

    Raises:
        UntraceableError: with the first error's text, when no variant of the model can be traced.
    """
    config = build_config(preset)
    shallow = with_depth(preset, TRACED_DEPTH)
    stacks = tuple(Stack(name=n, depth=d) for n, d in shallow[1]) if shallow else ()
    traced = shallow[0] if shallow else preset
    try:
        variants, unavailable = _trace_variants(traced, preset, stacks, (attentions, checkpointing, numerics))
    except Exception as error:
        variants, unavailable = [], {"fp32": f"{type(error).__name__}: {' '.join(str(error).split())[:MAX_REASON]}"}
    if not variants:
        reason = next(iter(unavailable.values()), "no variant traced")
        raise UntraceableError(
            f"model {preset.name}", [f"{preset.config.get('model_type')} cannot be traced: {reason}"]
        )
    warnings = _loop_warnings(variants) or _far_warnings(traced, preset, stacks)
    return _workload(preset, config, stacks, variants, unavailable, warnings)


def _trace_variants(
    traced: Preset,
    preset: Preset,
    stacks: tuple[Stack, ...],
    choices: tuple[tuple[str, ...], tuple[bool, ...], tuple[Numerics, ...]],
) -> tuple[list[Variant], dict[str, str]]:
    grid, points = _grid(preset, build_config(traced)), _needed_points(traced, preset, stacks)
    variants: list[Variant] = []
    failed: dict[tuple[str, bool, str], str] = {}
    for attention, checkpointed, numeric in itertools.product(*choices):
        try:
            variants.append(trace_variant(traced, grid, points, stacks, numeric, attention, checkpointed))
        except Exception as error:
            text = " ".join(str(error).split()).split(". ")[0]
            failed[attention, checkpointed, numeric] = f"{type(error).__name__}: {text[:MAX_REASON]}"
    return variants, _unavailable(failed, choices)


def _unavailable(
    failed: dict[tuple[str, bool, str], str],
    choices: tuple[tuple[str, ...], tuple[bool, ...], tuple[Numerics, ...]],
) -> dict[str, str]:
    """Reasons by what is missing altogether: an attention, an attention with checkpointing, or a numerics."""
    attentions, checkpointing, numerics = choices
    reasons: dict[str, str] = {}
    for (attention, checkpointed, numeric), reason in failed.items():
        if all((a, checkpointing[0], numeric) in failed for a in attentions):
            reasons.setdefault(numeric, reason)
        if all((attention, checkpointed, n) in failed for n in numerics):
            reasons.setdefault(f"{attention}, checkpointing" if checkpointed else attention, reason)
    return reasons


def trace_variant(
    traced: Preset,
    grid: Array,
    points: tuple[Point, ...],
    stacks: tuple[Stack, ...],
    numerics: Numerics,
    attention: str,
    checkpointed: bool,
) -> Variant:
    """One variant, from micro-batches of ``traced`` (the shallow model) at ``points``.

    One trace is enough where the program does not depend on the length. Where it loops over positions (a recurrence
    without its fused kernel), three lengths give its sizes as quadratics in the length.
    """

    def at(point: Point) -> Variant:
        recording = record_micro_batch(traced, stacks, numerics, attention, checkpointed, point)
        timeline = Timeline(recording, merge_in_place_sums(recording.allocations), stacks)
        return Variant(
            numerics=numerics,
            attention="sdpa" if attention == "sdpa" else "eager",
            checkpointed=checkpointed,
            ops=collect_ops(recording.ops, stacks),
            memory=memory_points(timeline, grid, every_label=len(points) > 1),
            block_saved=block_saved(timeline),
        )

    return at(points[0]) if len(points) == 1 else join_lengths([(point.seq, at(point)) for point in points])


def _needed_points(traced: Preset, preset: Preset, stacks: tuple[Stack, ...]) -> tuple[Point, ...]:
    """One point where the program is the same at every length, else three.

    Raises:
        ValueError: the same program, but sizes that are no multiples of the length: chunks, a prompt put before it.
    """
    points = choose_points(preset, build_config(traced))
    if len(points) == 1:
        return points
    seen = [record_micro_batch(traced, stacks, "fp32", "eager", False, point) for point in (points[0], points[-1])]
    if seen[0].count != seen[1].count:
        return points
    work = [np.array(_work(recording)) for recording in seen]
    if np.any(np.abs(work[0] - work[1]) > _LENGTH_TOLERANCE * work[1]):
        raise ValueError("its work does not grow with the length itself, but in chunks or with something added to it")
    return points[-1:]


def _work(recording: Recording) -> tuple[float, float]:
    """FLOPs and bytes of everything, at sizes that are common in practice."""
    flops = sum(value(op.flops, *_COMMON_SIZES) for op in recording.ops)
    return flops, sum(value(op.bytes, *_COMMON_SIZES) for op in recording.ops)


def choose_points(preset: Preset, config: Any) -> tuple[Point, ...]:
    """Primes for micro-batch and lengths that no size of the model contains: three lengths, or one if it is fixed.

    The last point is the one to trace at; the shorter ones tell whether the program depends on the length.
    """
    sizes = _sizes_of(preset.config) | _sizes_of(config.to_dict())
    if fixed_seq(config) is not None:
        (batch,) = pick_primes(sizes, None, 1)
        return (Point(micro_batch=batch, seq=1),)
    limit = max_positions(config)
    lengths = pick_primes(sizes, limit, 3, 29 if limit is None or limit > 100 else 5)
    (decoder_seq,) = pick_primes([*sizes, *lengths], limit, 1, lengths[-1] + 2)
    (batch,) = pick_primes([*sizes, *lengths, decoder_seq], None, 1, decoder_seq + 50)
    return tuple(
        Point(micro_batch=batch, seq=seq, decoder_seq=decoder_seq if preset.decoder_seq else 1) for seq in lengths
    )


def _sizes_of(tree: object) -> set[int]:
    """Every integer in a config, with the sums and products of sizes that layers are made of left to the caller."""
    if isinstance(tree, bool):
        return set()
    if isinstance(tree, int):
        return {abs(tree)}
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return set().union(*(_sizes_of(child) for child in children), set())


def _grid(preset: Preset, config: Any) -> Array:
    """Sizes at which memory moments compete: micro-batches 1 to 1024, lengths 128 to 32k or the model's own."""
    batches = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 256.0, 1024.0)
    if fixed_seq(config) is not None:
        return np.array([(b, 1.0, 1.0) for b in batches])
    limit = max_positions(config) or 32768
    lengths = [float(s) for s in (128, 256, 512, 1024, 2048, 4096, 8192, 32768) if s <= limit] or [float(limit)]
    decoder = [0.25, 1.0] if preset.decoder_seq else [0.0]
    return np.array([(b, s, max(1.0, d * s)) for b in batches for s in lengths for d in decoder])


def _workload(
    preset: Preset,
    config: Any,
    stacks: tuple[Stack, ...],
    variants: list[Variant],
    unavailable: dict[str, str],
    warnings: tuple[str, ...],
) -> Workload:
    import torch
    import transformers

    model, _ = build(preset, variants[0].attention, "fp32")
    count = counts.count(model, config)
    fixed = fixed_seq(config)
    return Workload(
        name=preset.name,
        task=preset.task,
        model_type=preset.config["model_type"],
        config=preset.config,
        config_hash=config_hash(preset),
        params=count.params,
        active_params=count.active_params,
        embedding_params=count.embedding_params,
        parameter_tensors=count.parameter_tensors,
        largest_parameter=count.largest_parameter,
        buffer_bytes=count.buffer_bytes,
        layers=sum(s.depth for s in stacks) or _layers(config),
        heads=attention_heads(config),
        seq=fixed or preset.seq,
        decoder_seq=preset.decoder_seq,
        fixed_seq=fixed is not None,
        max_seq=max_positions(config),
        stacks=stacks,
        variants=tuple(variants),
        unavailable=unavailable,
        warnings=(*warnings_for(preset), *warnings),
        transformers_version=transformers.__version__,
        torch_version=torch.__version__.split("+")[0],
    )


def _loop_warnings(variants: list[Variant]) -> tuple[str, ...]:
    """A model that steps through its positions one by one, as transformers does where a fused kernel is missing."""
    if any(j for variant in variants for op in variant.ops for _, _, j, _ in op.launches):
        return (
            "loops over positions, as transformers does without the model's fused kernels; with them it is far faster",
        )
    return ()


def _far_warnings(traced: Preset, preset: Preset, stacks: tuple[Stack, ...]) -> tuple[str, ...]:
    """A model whose bytes at a length far beyond the traced one are more than its trace says.

    Chunks longer than the traced length make one chunk of it whatever it is, and what is added to the length counts as
    a constant: neither shows at short lengths. Compared are bytes moved in one fp32 micro-batch with eager attention.
    """
    points = choose_points(preset, build_config(traced))
    if len(points) == 1:
        return ()
    far = _far(points[-1], preset)
    try:
        short, long = (record_micro_batch(traced, stacks, "fp32", "eager", False, p) for p in (points[-1], far))
    except Exception as error:
        return (
            f"its trace could not be checked at {far.seq:,} positions: {' '.join(str(error).split())[:MAX_REASON]}",
        )
    sizes = (float(far.micro_batch), float(far.seq), float(far.decoder_seq))
    told, real = (sum(value(op.bytes, *sizes) for op in recording.ops) for recording in (short, long))
    if told >= _FAR_SHARE * real:
        return ()
    return (
        f"at {far.seq:,} positions it moves {real / told:.1f} times the bytes that its trace says: time and memory are "
        "under-predicted at real lengths, and what fits has to be tried",
    )


def _far(point: Point, preset: Preset) -> Point:
    """The point at a length of several chunks, as far as the model's positions go."""
    config = build_config(preset)
    limit = max_positions(config)
    least = _FAR_SEQ if limit is None or limit > 2 * _FAR_SEQ else limit // 2
    sizes = _sizes_of(preset.config) | _sizes_of(config.to_dict()) | {point.micro_batch, point.decoder_seq}
    (seq,) = pick_primes(sizes, limit, 1, max(least, point.seq + 1))
    return replace(point, seq=seq)


def _layers(config: Any) -> int:
    text = config.get_text_config()
    depths = getattr(config, "depths", None)
    return int(sum(depths)) if depths else int(getattr(text, "num_hidden_layers", 0) or 0)


def config_hash(preset: Preset) -> str:
    """Twelve hex digits of the task and the config's facts; names and sources do not enter."""
    text = json.dumps([preset.task, preset.config], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def main() -> None:
    """Trace every preset named on the command line, or all, into the shipped traces."""
    import sys
    import time

    from profiles.files import SHIPPED
    from profiles.store import load_preset, preset_names, save_workload

    for name in sys.argv[1:] or preset_names():
        begun = time.perf_counter()
        path = save_workload(trace(load_preset(name)), SHIPPED / "traces")
        sys.stderr.write(f"{name}: {time.perf_counter() - begun:.1f} s, {path.stat().st_size / 1000:.0f} kB\n")


if __name__ == "__main__":
    main()
