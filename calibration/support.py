"""Which recipes the worker can run with a model on a device, and why not the others."""

from __future__ import annotations

import re

from calibration.optimizers import OPTIMIZERS
from profiles.schema import Preset, Recipe, Task

FIXED_LENGTH: frozenset[Task] = frozenset({"image_classification", "contrastive"})
"""Tasks whose number of positions follows from the model's config alone."""
BF16_CAPABILITY = 8.0
"""Lowest compute capability with bf16 and tf32 tensor cores."""

_ALLOWED: dict[str, tuple[str, ...]] = {
    "precision": ("fp32", "tf32", "fp16", "bf16", "bf16_pure"),
    "attention": ("eager", "sdpa"),
    "compile": ("off", "on"),
    "optimizer": tuple(OPTIMIZERS),
}


class RefusedError(Exception):
    """This recipe cannot run with this model on this device; the message is the reason."""


def check(preset: Preset, recipe: Recipe, device: str) -> None:
    """RefusedError listing every knob of the recipe that this device or worker cannot run."""
    problems = [
        f"{knob} {value!r} is not one of {', '.join(allowed)}"
        for knob, allowed in _ALLOWED.items()
        if (value := getattr(recipe, knob)) not in allowed
    ]
    if checkpoint_interval(recipe.checkpointing) is None:
        problems.append(f"checkpointing {recipe.checkpointing!r} is not one of none, full, every_2, every_3, …")
    problems += [
        f"{knob} is {value}, which is not at least 1"
        for knob in ("micro_batch", "grad_accum", "seq", "decoder_seq")
        if (value := getattr(recipe, knob)) is not None and value < 1
    ]
    problems += _length_problems(preset, recipe) + _device_problems(recipe.precision, device)
    if problems:
        raise RefusedError("; ".join(problems))


def checkpoint_interval(checkpointing: str) -> int | None:
    """Every how many layers one is checkpointed; 0 for none of them, ``None`` for a name that does not exist."""
    if checkpointing in ("none", "full"):
        return 0 if checkpointing == "none" else 1
    found = re.fullmatch(r"every_([1-9]\d*)", checkpointing)
    return int(found.group(1)) if found else None


def lengths(preset: Preset, recipe: Recipe) -> tuple[int, int]:
    """Positions per sample of the encoder (or only) stack, and of the decoder (0 where there is none)."""
    seq = recipe.seq or preset.seq
    if preset.task != "seq2seq_lm":
        return seq, 0
    return seq, recipe.decoder_seq or recipe.seq or preset.decoder_seq or seq


def _length_problems(preset: Preset, recipe: Recipe) -> list[str]:
    problems = []
    if preset.task in FIXED_LENGTH and recipe.seq not in (None, preset.seq):
        problems.append(f"{preset.name} has {preset.seq} positions, fixed by its config; seq cannot be {recipe.seq}")
    if preset.task != "seq2seq_lm" and recipe.decoder_seq is not None:
        problems.append(f"{preset.name} has no decoder of its own; leave decoder_seq out")
    return problems


def _device_problems(precision: str, device: str) -> list[str]:
    import torch

    if device == "cpu":
        return ["tf32 needs a GPU of compute capability 8.0 or higher; use fp32"] if precision == "tf32" else []
    if not torch.cuda.is_available():
        return ["no CUDA device is available"]
    major, minor = torch.cuda.get_device_capability()
    capability = major + minor / 10
    if precision in ("bf16", "bf16_pure", "tf32") and torch.version.hip is None and capability < BF16_CAPABILITY:
        return [f"{precision} needs compute capability 8.0 or higher, this GPU has {capability}; use fp16 or fp32"]
    return []
