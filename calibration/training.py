"""The smallest honest training loop of a recipe: whole optimizer steps of a real model on synthetic inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from calibration.inputs import make_inputs
from calibration.optimizers import OPTIMIZERS
from calibration.support import RefusedError, check, checkpoint_interval, lengths
from profiles.schema import Preset, Recipe

if TYPE_CHECKING:
    import torch

MAX_GRAD_NORM = 1.0


class Trainee:
    """A model with its optimizer and one micro-batch, ready to step."""

    def __init__(self, model: Any, optimizer: torch.optim.Optimizer, batch: dict[str, Any], recipe: Recipe) -> None:  # noqa: ANN401
        import torch

        self.model, self.optimizer, self.batch = model, optimizer, batch
        self.checkpointing = recipe.checkpointing
        self.device = next(model.parameters()).device.type
        self._parameters = list(model.parameters())
        self._half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(recipe.precision)
        self._scaler = torch.amp.GradScaler(self.device) if recipe.precision == "fp16" else None

    def step(self, grad_accum: int) -> None:
        """One whole optimizer step: every micro-batch forward and backward, clipping, update, gradients freed."""
        for _ in range(grad_accum):
            with self._autocast():
                loss = self.model(**self.batch).loss / grad_accum
            (self._scaler.scale(loss) if self._scaler else loss).backward()
        self._update()
        self.optimizer.zero_grad(set_to_none=True)

    def synchronize(self) -> None:
        """Wait until the device has done all that it was given."""
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        import torch

        if self._half is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device, dtype=self._half)

    def _update(self) -> None:
        from torch.nn.utils import clip_grad_norm_

        if self._scaler is None:
            clip_grad_norm_(self._parameters, MAX_GRAD_NORM)
            self.optimizer.step()
            return
        self._scaler.unscale_(self.optimizer)
        clip_grad_norm_(self._parameters, MAX_GRAD_NORM)
        self._scaler.step(self.optimizer)
        self._scaler.update()


def build(preset: Preset, recipe: Recipe, device: str) -> Trainee:
    """The training loop of ``recipe`` on ``device`` (``cpu`` or ``cuda``); RefusedError with every reason it cannot be.

    Sets the process's matrix precision, so build one trainee per process.
    """
    check(preset, recipe, device)
    set_precision(recipe.precision)
    model = _model(preset, recipe, device)
    _checkpoint(model, recipe.checkpointing)
    if recipe.compile == "on":
        model.compile(dynamic=False)
    optimizer = OPTIMIZERS[recipe.optimizer](model.parameters())
    return Trainee(model, optimizer, _batch(preset, model.config, recipe, device), recipe)


def retarget(trainee: Trainee, preset: Preset, recipe: Recipe) -> None:
    """Give a trainee other sizes and other checkpointing; every other knob of ``recipe`` must be the one it has.

    RefusedError as from ``build``.
    """
    check(preset, recipe, trainee.device)
    _check_positions(trainee.model.config, recipe)
    if recipe.checkpointing != trainee.checkpointing:
        disable = getattr(trainee.model, "activation_checkpointing_disable", None)
        (disable or trainee.model.gradient_checkpointing_disable)()
        _checkpoint(trainee.model, recipe.checkpointing)
        trainee.checkpointing = recipe.checkpointing
    trainee.batch = {}
    trainee.batch = _batch(preset, trainee.model.config, recipe, trainee.device)


def _batch(preset: Preset, config: Any, recipe: Recipe, device: str) -> dict[str, Any]:  # noqa: ANN401
    """One micro-batch on the device, its pixels as wide as the model's weights."""
    import torch

    seq, decoder_seq = lengths(preset, recipe)
    batch = make_inputs(preset, config, recipe.micro_batch, seq, decoder_seq, device)
    if recipe.precision == "bf16_pure" and "pixel_values" in batch:
        batch["pixel_values"] = batch["pixel_values"].to(torch.bfloat16)
    return batch


def set_precision(precision: str) -> None:
    """Let matrix products and convolutions of this process use tf32 exactly where ``precision`` says so."""
    import torch

    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def _model(preset: Preset, recipe: Recipe, device: str) -> Any:  # noqa: ANN401
    import torch

    from calibration.models import build_config, model_class

    config = build_config(preset)
    _check_positions(config, recipe)
    dtype = torch.bfloat16 if recipe.precision == "bf16_pure" else torch.float32
    torch.manual_seed(0)
    with torch.device(device), _refusing_attention(recipe.attention):
        build_model: Any = model_class(preset).from_config
        model = build_model(config, attn_implementation=recipe.attention, dtype=dtype)
    used = model.config._attn_implementation
    if used != recipe.attention:
        raise RefusedError(f"attention {recipe.attention!r} was asked for, but the model runs {used!r}")
    return model.train()


def _check_positions(config: Any, recipe: Recipe) -> None:  # noqa: ANN401
    """Refuse a length beyond the table of absolute positions, which a GPU would answer by losing its context."""
    from calibration.lengths import max_positions

    asked = max(recipe.seq or 0, recipe.decoder_seq or 0)
    longest = max_positions(config) if asked else None
    if longest is not None and asked > longest:
        raise RefusedError(f"the model has {longest} positions; seq and decoder_seq cannot be {asked}")


@contextlib.contextmanager
def _refusing_attention(attention: str) -> Iterator[None]:
    """Turn transformers' complaint about an attention that the model lacks into a refusal."""
    try:
        yield
    except (ValueError, ImportError) as error:
        if "attn_implementation" in str(error) or "attention implementation" in str(error):
            raise RefusedError(f"attention {attention!r}: {str(error).split(' Please ')[0]}") from error
        raise


def _checkpoint(model: Any, checkpointing: str) -> None:  # noqa: ANN401
    interval = checkpoint_interval(checkpointing)
    if not interval:
        return
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    try:
        enable({"use_reentrant": False})
    except ValueError as error:
        raise RefusedError(f"checkpointing {checkpointing!r}: {error}") from error
    layers = _checkpointed_layers(model)
    if not layers:
        raise RefusedError(f"checkpointing {checkpointing!r}: {type(model).__name__} has no layer that checkpoints")
    for index, layer in layers:
        layer.gradient_checkpointing = index % interval == 0


def _checkpointed_layers(model: Any) -> list[tuple[int, Any]]:  # noqa: ANN401
    """The layers that checkpoint, each with its index in the list that holds it."""
    import torch
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [
        (index, layer)
        for stack in model.modules()
        if isinstance(stack, torch.nn.ModuleList)
        for index, layer in enumerate(stack)
        if isinstance(layer, GradientCheckpointingLayer)
    ]
