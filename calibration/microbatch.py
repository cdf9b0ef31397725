"""One micro-batch of a model on fake tensors, forward and backward, seen by a recorder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from calibration.building import build_config, model_class, parts, quiet
from calibration.cuda_view import as_if_not_tracing, function_mode
from calibration.inputs import make_inputs
from calibration.monomials import Point
from calibration.recorder import Recorder, Recording
from profiles.schema import Numerics, Preset, Stack

_LAYER_DROP = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")


def record_micro_batch(
    traced: Preset, stacks: tuple[Stack, ...], numerics: Numerics, attention: str, checkpointed: bool, point: Point
) -> Recording:
    """What one micro-batch at ``point`` dispatches."""
    import torch

    model, config = build(traced, attention, "bf16" if numerics == "pure" else "fp32")
    with _fake(model) as fake_model:
        recorder = Recorder(point, _vocab(config), [*fake_model.parameters(), *fake_model.buffers()])
        view = function_mode(autocast=numerics == "amp")
        if checkpointed:
            _checkpoint(fake_model, recorder, view)
        _hook(fake_model, recorder, _block_lists(fake_model, stacks))
        inputs = make_inputs(traced, config, point.micro_batch, point.seq, point.decoder_seq, "cpu")
        if numerics == "pure":
            inputs = {k: v.to(torch.bfloat16) if _floating(v) else v for k, v in inputs.items()}
        with quiet(), as_if_not_tracing(), recorder.mode(), view:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=numerics == "amp"):
                loss = fake_model(**inputs).loss
            recorder.recording.forward_end = recorder.recording.count
            recorder.phase, recorder.block = "backward", None
            torch.autograd.backward(loss)
        _require_all_parts(fake_model)
        _require_blocks(recorder.recording, stacks)
        return recorder.recording


def _require_blocks(recording: Recording, stacks: tuple[Stack, ...]) -> None:
    """Nothing, if the blocks of every stack ran as modules, so that their work could be told apart.

    Raises:
        ValueError: a class that runs its blocks in a way of its own.
    """
    for index, stack in enumerate(stacks):
        if (index, 1) not in recording.entered:
            raise ValueError(f"the blocks of {stack.name} are not called as modules, so depth cannot be told")


def _require_all_parts(model: Any) -> None:
    """Nothing, if every stack of blocks takes part, and more than half of all parameters.

    Raises:
        ValueError: part of the model, such as a vision tower, does nothing in a step on this task's inputs.
    """
    import torch

    def idle(module: Any) -> list[int]:
        return [p.numel() for p in module.parameters() if p.requires_grad and p.grad is None]

    for name, module in model.named_modules():
        unused = idle(module) if isinstance(module, torch.nn.ModuleList) else []
        if unused and len(unused) == len(list(module.parameters())):
            raise ValueError(f"{name} takes no part in a step on these inputs alone")
    if sum(idle(model)) > 0.5 * sum(p.numel() for p in model.parameters()):
        raise ValueError("less than half of its parameters take part in a step on these inputs alone")


def build(preset: Preset, attention: str, dtype: str) -> tuple[Any, Any]:
    """The model on the meta device, in training mode, and its config. No layer is dropped at random."""
    import torch

    precision = torch.bfloat16 if dtype == "bf16" else torch.float32
    experts = [{"experts_implementation": "grouped_mm"}] if _experts(build_config(preset)) else []
    for extra in [*experts, {}]:
        config = _steady_config(preset)
        with quiet(), torch.device("meta"), contextlib.suppress(_NoSuchExpertsError):
            model = _from_config(model_class(preset), config, attn_implementation=attention, dtype=precision, **extra)
            return model.train(), config
    raise AssertionError("the last attempt names no experts implementation")


class _NoSuchExpertsError(Exception):
    """The class has experts, but only one way to run them."""


def _from_config(kind: Any, config: Any, **choices: Any) -> Any:
    try:
        return kind.from_config(config, **choices)
    except ValueError as error:
        if "experts_implementation" in choices and "experts implementation" in str(error):
            raise _NoSuchExpertsError from error
        raise


def _steady_config(preset: Preset) -> Any:
    """The config with no layer dropped at random."""
    config = build_config(preset)
    for part in parts(config):
        for name in _LAYER_DROP:
            if getattr(part, name, 0.0):
                setattr(part, name, 0.0)
    return config


def _floating(value: object) -> bool:
    return bool(getattr(value, "is_floating_point", lambda: False)())


def _experts(config: Any) -> bool:
    text = config.get_text_config()
    return any(getattr(text, name, None) for name in ("num_local_experts", "num_experts", "n_routed_experts"))


def _vocab(config: Any) -> int | None:
    return getattr(config.get_text_config(), "vocab_size", None)


@contextlib.contextmanager
def _fake(model: Any) -> Iterator[Any]:
    """The meta model with its parameters and buffers replaced by fake CPU tensors, ties kept, inside fake mode."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        made: dict[int, Any] = {}

        def fake(tensor: Any) -> Any:
            if id(tensor) not in made:
                empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
                made[id(tensor)] = (
                    torch.nn.Parameter(empty, requires_grad=tensor.requires_grad)
                    if isinstance(tensor, torch.nn.Parameter)
                    else empty
                )
            return made[id(tensor)]

        for module in model.modules():
            for name, parameter in list(module._parameters.items()):
                if parameter is not None:
                    module._parameters[name] = fake(parameter)
            for name, buffer in list(module._buffers.items()):
                if buffer is not None:
                    module._buffers[name] = fake(buffer)
        yield model


def _block_lists(model: Any, stacks: tuple[Stack, ...]) -> list[Any]:
    """The module lists of the stacks, in the order of ``stacks``."""
    return [model.get_submodule(stack.name) for stack in stacks]


def _hook(model: Any, recorder: Recorder, lists: list[Any]) -> None:
    """Tell the recorder which block runs, forward and backward, and when a gradient is complete."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda p: recorder.accumulated(p.grad))
    for stack, blocks in enumerate(lists):
        for index, block in enumerate(blocks):
            block.register_forward_pre_hook(_enter(recorder, (stack, index)), with_kwargs=True)
            block.register_forward_hook(_leave(recorder, (stack, index)))


def _enter(recorder: Recorder, block: tuple[int, int]) -> Any:
    def hook(_module: Any, args: Any, kwargs: Any) -> None:
        if recorder.phase != "forward":
            return
        recorder.block = block
        recorder.recording.entered[block] = recorder.recording.count
        inputs = [t for t in [*args, *kwargs.values()] if _floating(t) and t.requires_grad]
        if block[1] == 0 and inputs:
            inputs[0].register_hook(_outside(recorder))

    return hook


def _outside(recorder: Recorder) -> Any:
    def hook(_grad: Any) -> None:
        recorder.block = None

    return hook


def _leave(recorder: Recorder, block: tuple[int, int]) -> Any:
    def backward_begins(_grad: Any) -> None:
        recorder.block = block
        recorder.recording.backed.setdefault(block, recorder.recording.count)

    def hook(_module: Any, _args: Any, out: Any) -> None:
        if recorder.phase != "forward":
            return
        recorder.block = None
        tensor = out[0] if isinstance(out, tuple | list) else out
        if tensor.requires_grad:
            tensor.register_hook(backward_begins)

    return hook


def _checkpoint(model: Any, recorder: Recorder, view: Any) -> None:
    """Full checkpointing; what a block recomputes in the backward pass is recorded as recomputed."""

    class Recompute(contextlib.AbstractContextManager[None]):
        def __enter__(self) -> None:
            recorder.phase = "recompute"
            view.__enter__()

        def __exit__(self, *_: object) -> None:
            view.__exit__(None, None, None)
            recorder.phase = "backward"

    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable(
        {
            "use_reentrant": False,
            "preserve_rng_state": False,
            "context_fn": lambda: (contextlib.nullcontext(), Recompute()),
        }
    )
