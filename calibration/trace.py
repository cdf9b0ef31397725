"""A model's workload, traced on fake tensors with the transformers class itself: no weights, no GPU, seconds.

``python -m calibration.trace`` traces every preset into ``profiles/traces``.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
from collections.abc import Iterator
from typing import Any, get_args

import numpy as np

from calibration import counts, models
from calibration.cuda_view import as_if_not_tracing, function_mode
from calibration.inputs import make_inputs
from calibration.monomials import Point, pick_primes
from calibration.recorder import Recorder, merge_in_place_sums
from calibration.timeline import Timeline, block_saved, collect_ops, memory_points
from profiles.errors import InvalidInputError
from profiles.schema import Numerics, Preset, Stack, Variant, Workload

TRACED_DEPTH = 3
_ATTENTION = ("eager", "sdpa")


class UntraceableError(InvalidInputError):
    """A model that cannot be traced; refused by name, never counted as something else."""


def trace(preset: Preset, *, numerics: tuple[Numerics, ...] = get_args(Numerics)) -> Workload:
    """The workload of a model: per variant its operations and memory as polynomials in micro-batch and lengths.

    Three blocks a stack are traced, the middle one stands for all the others. A stack whose blocks differ is traced at
    full depth.

    Raises:
        UntraceableError: with the first error's text, when no variant of the model can be traced.
    """
    config = models.build_config(preset)
    shallow = models.with_depth(preset, TRACED_DEPTH)
    stacks = tuple(Stack(name=n, depth=d) for n, d in shallow[1]) if shallow else ()
    if any(stack.depth < TRACED_DEPTH for stack in stacks):
        shallow, stacks = None, ()
    traced = shallow[0] if shallow else preset
    variants, unavailable = _trace_variants(traced, preset, stacks, numerics)
    if not variants:
        reason = next(iter(unavailable.values()), "no variant traced")
        raise UntraceableError(f"model {preset.name}", [f"{preset.config.get('model_type')} cannot be traced: {reason}"])
    return _workload(preset, config, stacks, variants, unavailable)


def _trace_variants(
    traced: Preset, preset: Preset, stacks: tuple[Stack, ...], numerics: tuple[Numerics, ...]
) -> tuple[list[Variant], dict[str, str]]:
    variants: list[Variant] = []
    unavailable: dict[str, str] = {}
    for attention, checkpointed in itertools.product(_ATTENTION, (False, True)):
        name = f"{attention}, checkpointing" if checkpointed else attention
        if attention in unavailable:
            continue
        try:
            variants += [trace_variant(traced, preset, stacks, n, attention, checkpointed) for n in numerics]
        except Exception as error:  # noqa: BLE001 - a class that cannot run a variant says so in its own way
            unavailable[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    return variants, unavailable


def trace_variant(
    traced: Preset, preset: Preset, stacks: tuple[Stack, ...], numerics: Numerics, attention: str, checkpointed: bool
) -> Variant:
    """One variant, from one micro-batch of ``traced`` (the shallow model)."""
    import torch

    model, config = build(traced, attention, "bf16" if numerics == "pure" else "fp32")
    point = choose_point(preset, config)
    with _fake(model) as fake_model:
        recorder = Recorder(point, _vocab(config), [*fake_model.parameters(), *fake_model.buffers()])
        view = function_mode(autocast=numerics == "amp")
        if checkpointed:
            _checkpoint(fake_model, recorder, view)
        _hook(fake_model, recorder, _block_lists(fake_model, stacks))
        inputs = make_inputs(traced, config, point.micro_batch, point.seq, point.decoder_seq, "cpu")
        if numerics == "pure":
            inputs = {k: v.to(torch.bfloat16) if _floating(v) else v for k, v in inputs.items()}
        with as_if_not_tracing(), recorder.mode(), view:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=numerics == "amp"):
                loss = fake_model(**inputs).loss
            recorder.recording.forward_end = recorder.recording.count
            recorder.phase, recorder.block = "backward", None
            torch.autograd.backward(loss)
        recording = recorder.recording
    ops = collect_ops(recording.ops, stacks)
    timeline = Timeline(recording, merge_in_place_sums(recording.allocations), stacks)
    grid = _grid(preset, config)
    return Variant(
        numerics=numerics, attention=attention, checkpointed=checkpointed, ops=ops,  # type: ignore[arg-type]
        memory=memory_points(timeline, grid), block_saved=block_saved(timeline),
    )  # fmt: skip


def build(preset: Preset, attention: str, dtype: str) -> tuple[Any, Any]:
    """The model on the meta device, in training mode, and its config."""
    import torch

    config = models.build_config(preset)
    kind = models.model_class(preset)
    extra = {"experts_implementation": "grouped_mm"} if _experts(config) else {}
    with torch.device("meta"):
        model = kind.from_config(
            config, attn_implementation=attention, dtype=torch.bfloat16 if dtype == "bf16" else torch.float32, **extra
        )
    return model.train(), config


def choose_point(preset: Preset, config: Any) -> Point:  # noqa: ANN401
    """Primes for micro-batch and lengths that no size of the model contains."""
    sizes = _sizes_of(preset.config) | _sizes_of(config.to_dict())
    if models.fixed_seq(config) is not None:
        (batch,) = pick_primes(sizes, None, 1)
        return Point(micro_batch=batch, seq=1)
    limit = models.max_positions(config)
    start = 101 if limit is None or limit > 400 else max(5, limit // 4)
    seq, decoder_seq = pick_primes(sizes, limit, 2, start)
    (batch,) = pick_primes([*sizes, seq, decoder_seq], None, 1, start + 50)
    return Point(micro_batch=batch, seq=seq, decoder_seq=decoder_seq if preset.decoder_seq else 1)


def _sizes_of(tree: object) -> set[int]:
    """Every integer in a config, with the sums and products of sizes that layers are made of left to the caller."""
    if isinstance(tree, bool):
        return set()
    if isinstance(tree, int):
        return {abs(tree)}
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return set().union(*(_sizes_of(child) for child in children), set())


def _floating(value: object) -> bool:
    return bool(getattr(value, "is_floating_point", lambda: False)())


def _experts(config: Any) -> bool:  # noqa: ANN401
    text = config.get_text_config()
    return any(getattr(text, name, None) for name in ("num_local_experts", "num_experts", "n_routed_experts"))


def _vocab(config: Any) -> int | None:  # noqa: ANN401
    return getattr(config.get_text_config(), "vocab_size", None)


@contextlib.contextmanager
def _fake(model: Any) -> Iterator[Any]:  # noqa: ANN401
    """The meta model with its parameters and buffers replaced by fake CPU tensors, ties kept, inside fake mode."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        made: dict[int, Any] = {}

        def fake(tensor: Any) -> Any:  # noqa: ANN401
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


def _block_lists(model: Any, stacks: tuple[Stack, ...]) -> list[Any]:  # noqa: ANN401
    """The module lists of the stacks, in the order of ``stacks``."""
    import torch

    if not stacks:
        return []
    lists = [
        (name, module) for name, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == TRACED_DEPTH and _is_block_list(module)
    ]  # fmt: skip
    outer = [(n, m) for n, m in lists if not any(n != o and n.startswith(f"{o}.") for o, _ in lists)]
    if len(outer) != len(stacks):
        raise ValueError(f"expected {len(stacks)} stacks of blocks, found {[n for n, _ in outer]}")
    return [module for _, module in _in_stack_order(outer, stacks)]


def _in_stack_order(outer: list[tuple[str, Any]], stacks: tuple[Stack, ...]) -> list[tuple[str, Any]]:
    def rank(item: tuple[str, Any]) -> int:
        hits = [i for i, stack in enumerate(stacks) if stack.name.split("_")[0] in item[0]]
        return hits[0] if len(hits) == 1 else 0

    return sorted(outer, key=rank)


def _is_block_list(module: Any) -> bool:  # noqa: ANN401
    kinds = {type(child) for child in module}
    return len(kinds) == 1 and next(module.parameters(), None) is not None


def _hook(model: Any, recorder: Recorder, lists: list[Any]) -> None:  # noqa: ANN401
    """Tell the recorder which block runs, forward and backward, and when a gradient is complete."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda p: recorder.accumulated(p.grad))
    for stack, blocks in enumerate(lists):
        for index, block in enumerate(blocks):
            block.register_forward_pre_hook(_enter(recorder, (stack, index)), with_kwargs=True)
            block.register_forward_hook(_leave(recorder, (stack, index)))


def _enter(recorder: Recorder, block: tuple[int, int]) -> Any:  # noqa: ANN401
    def hook(_module: Any, args: Any, kwargs: Any) -> None:  # noqa: ANN401
        if recorder.phase != "forward":
            return
        recorder.block = block
        recorder.recording.entered[block] = recorder.recording.count
        inputs = [t for t in [*args, *kwargs.values()] if _floating(t) and t.requires_grad]
        if block[1] == 0 and inputs:
            inputs[0].register_hook(_outside(recorder))

    return hook


def _outside(recorder: Recorder) -> Any:  # noqa: ANN401
    def hook(_grad: Any) -> None:  # noqa: ANN401
        recorder.block = None

    return hook


def _leave(recorder: Recorder, block: tuple[int, int]) -> Any:  # noqa: ANN401
    def backward_begins(_grad: Any) -> None:  # noqa: ANN401
        recorder.block = block
        recorder.recording.backed.setdefault(block, recorder.recording.count)

    def hook(_module: Any, _args: Any, out: Any) -> None:  # noqa: ANN401
        if recorder.phase != "forward":
            return
        recorder.block = None
        tensor = out[0] if isinstance(out, tuple) else out
        if tensor.requires_grad:
            tensor.register_hook(backward_begins)

    return hook


def _checkpoint(model: Any, recorder: Recorder, view: Any) -> None:  # noqa: ANN401
    """Full checkpointing; what a block recomputes in the backward pass is recorded as recomputed."""

    class Recompute(contextlib.AbstractContextManager[None]):
        def __enter__(self) -> None:
            recorder.phase = "recompute"
            view.__enter__()

        def __exit__(self, *_: object) -> None:
            view.__exit__(None, None, None)
            recorder.phase = "backward"

    model.gradient_checkpointing_enable(
        gradient_checkpointing_kwargs={
            "use_reentrant": False,
            "preserve_rng_state": False,
            "context_fn": lambda: (contextlib.nullcontext(), Recompute()),
        }
    )


def _grid(preset: Preset, config: Any) -> Any:  # noqa: ANN401
    """Sizes at which memory moments compete: micro-batches 1 to 1024, lengths 128 to 32k or the model's own."""
    batches = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 256.0, 1024.0)
    if models.fixed_seq(config) is not None:
        return np.array([(b, 1.0, 1.0) for b in batches])
    limit = models.max_positions(config) or 32768
    lengths = [float(s) for s in (128, 256, 512, 1024, 2048, 4096, 8192, 32768) if s <= limit] or [float(limit)]
    decoder = [0.25, 1.0] if preset.decoder_seq else [0.0]
    return np.array([(b, s, max(1.0, d * s)) for b in batches for s in lengths for d in decoder])


def _workload(
    preset: Preset, config: Any, stacks: tuple[Stack, ...], variants: list[Variant], unavailable: dict[str, str]  # noqa: ANN401
) -> Workload:
    import torch
    import transformers

    model, _ = build(preset, variants[0].attention, "fp32")
    count = counts.count(model, config)
    fixed = models.fixed_seq(config)
    return Workload(
        name=preset.name, task=preset.task, model_type=preset.config["model_type"], config=preset.config,
        config_hash=config_hash(preset), params=count.params, active_params=count.active_params,
        embedding_params=count.embedding_params, parameter_tensors=count.parameter_tensors,
        largest_parameter=count.largest_parameter, buffer_bytes=count.buffer_bytes,
        layers=sum(s.depth for s in stacks) or _layers(config), heads=models.attention_heads(config),
        seq=fixed or preset.seq, decoder_seq=preset.decoder_seq, fixed_seq=fixed is not None,
        max_seq=models.max_positions(config), stacks=stacks, variants=tuple(variants), unavailable=unavailable,
        warnings=tuple(models.warnings_for(config)), transformers_version=transformers.__version__,
        torch_version=torch.__version__.split("+")[0],
    )  # fmt: skip


def _layers(config: Any) -> int:  # noqa: ANN401
    text = config.get_text_config()
    depths = getattr(config, "depths", None)
    return int(sum(depths)) if depths else int(getattr(text, "num_hidden_layers", 0) or 0)


def config_hash(preset: Preset) -> str:
    """Twelve hex digits of the task and the config's facts; names and sources do not enter."""
    text = json.dumps([preset.task, preset.config], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def is_integral(number: float) -> bool:
    """Whether a coefficient is a whole number, as all sizes are."""
    return math.isclose(number, round(number))
