"""Models of another size: a preset with more or fewer blocks, or with another hidden size, as workloads.

Depth follows from the stored trace, which holds one block of each stack; only parameters are counted anew, on the meta
device. A hidden size changes every shape and has to be traced; what was traced is kept like any other model's trace.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from profiles import store
from profiles.errors import InvalidInputError
from profiles.schema import Config, Numerics, Preset, Recipe, Stack, Variant, Workload
from simulator.calibrated import depth_of, width_of
from simulator.techniques.precision import PRECISIONS

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

WIDTHS = ("hidden_size", "n_embd", "d_model", "dim", "n_embed")
INNER = ("intermediate_size", "hidden_dim", "d_ff", "ffn_dim", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim")
HEADS = (
    "num_attention_heads",
    "num_heads",
    "n_head",
    "n_heads",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "num_key_value_heads",
)
LEAST_DEPTH = 3
"""The trace holds a first, a middle and a last block of each stack."""
DEFAULT_RATIOS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)


# ------------------------------------------------------------------------------------------------------ depth


def at_depths(preset: Preset, workload: Workload, depths: Sequence[int]) -> dict[int, Workload]:
    """The workload with its deepest stack at each of these depths; other stacks keep their ratio to it.

    Operations and memory are exact: one block's share is added or taken away. So are the counts.

    Raises:
        InvalidInputError: a model without repeated blocks, or depths that cannot be made; all of them.
    """
    real = depth_of(workload) or 0
    if not workload.stacks:
        raise InvalidInputError(f"model {preset.name}", ["it has no repeated blocks, so that its depth is fixed"])
    stacks = {depth: _stacks(workload, depth, real) for depth in depths}
    problems = [
        f"depth={depth} is not allowed; allowed: whole numbers from {LEAST_DEPTH}{_ratio_text(workload)}"
        for depth, made in stacks.items()
        if made is None
    ]
    if problems:
        raise InvalidInputError(f"model {preset.name}", problems)
    block = _block_counts(preset, workload) if set(depths) - {real} else ()
    return {depth: workload if depth == real else _at(workload, made or (), block) for depth, made in stacks.items()}


def _stacks(workload: Workload, depth: int, real: int) -> tuple[Stack, ...] | None:
    scaled = [Fraction(stack.depth * depth, real) for stack in workload.stacks]
    if any(one.denominator != 1 or one < LEAST_DEPTH for one in scaled):
        return None
    return tuple(dataclasses.replace(s, depth=int(d)) for s, d in zip(workload.stacks, scaled, strict=True))


def _ratio_text(workload: Workload) -> str:
    depths = {stack.depth for stack in workload.stacks}
    return "" if len(depths) == 1 else f" that keep the stacks' ratio {':'.join(str(s.depth) for s in workload.stacks)}"


_COUNTS = ("params", "active_params", "embedding_params", "parameter_tensors", "buffer_bytes")


def _block_counts(preset: Preset, workload: Workload) -> tuple[dict[str, int], ...]:
    """Per stack, what one middle block holds: built on the meta device, one block shorter than three blocks a stack."""
    from calibration.building import build_config, build_on_meta
    from calibration.counts import count
    from calibration.depth import with_depth

    cut = with_depth(preset, LEAST_DEPTH)
    assert cut is not None, f"{preset.name} was traced by blocks, so it can be cut"
    model, config = build_on_meta(cut[0]), build_config(cut[0])
    whole = count(model, config)
    blocks = []
    for stack in workload.stacks:
        middle = model.get_submodule(stack.name)[1]  # type: ignore[index]  # stacks are module lists
        own = count(middle, config)
        blocks.append({name: getattr(own, name) for name in _COUNTS})
    expected = whole.params + sum(
        (s.depth - LEAST_DEPTH) * b["params"] for s, b in zip(workload.stacks, blocks, strict=True)
    )
    assert expected == workload.params, f"{preset.name}: blocks do not account for its parameters"
    return tuple(blocks)


def _at(workload: Workload, stacks: tuple[Stack, ...], blocks: tuple[dict[str, int], ...]) -> Workload:
    more = [made.depth - stack.depth for made, stack in zip(stacks, workload.stacks, strict=True)]
    counts = {
        name: getattr(workload, name) + sum(m * b[name] for m, b in zip(more, blocks, strict=True)) for name in _COUNTS
    }
    name = f"{workload.name}@depth={max(stack.depth for stack in stacks)}"
    return dataclasses.replace(
        workload,
        name=name,
        config_hash=hashlib.sha256(f"{workload.config_hash} {name}".encode()).hexdigest()[:12],
        layers=workload.layers + sum(more),
        stacks=stacks,
        **counts,
    )


# ------------------------------------------------------------------------------------------------------ width


def with_width(preset: Preset, width: int) -> Preset:
    """The preset with another hidden size: heads of the same size, as many more of them, and feed-forward in ratio.

    Of nested configs the widest gets ``width`` and the others keep their ratio to it.

    Raises:
        InvalidInputError: a model without one hidden size, or a width that does not divide into its heads.
    """
    from calibration.building import build_config

    config = build_config(preset)
    real = _config_width(config)
    if real is None:
        raise InvalidInputError(f"model {preset.name}", ["it has no single hidden size that could be scaled"])
    facts, ratio = copy.deepcopy(preset.config), Fraction(width, real)
    step = _width_step(config, real)
    if width < 1 or width % step:
        raise InvalidInputError(f"model {preset.name}", [f"width={width} is not allowed; allowed: multiples of {step}"])
    _scale(facts, config, ratio)
    scaled = dataclasses.replace(preset, name=f"{preset.name}@width={width}", config=facts, aliases=(), run=None)
    return dataclasses.replace(scaled, params=_params(scaled))


def _params(preset: Preset) -> int:
    from calibration.building import build_config, build_on_meta
    from calibration.counts import count

    return count(build_on_meta(preset), build_config(preset)).params


def _config_width(config: PreTrainedConfig) -> int | None:
    from calibration.building import parts

    return max((value for part in parts(config) for value in _fields(part, WIDTHS).values()), default=None)


def _fields(part: PreTrainedConfig, names: Sequence[str]) -> dict[str, int]:
    return {name: value for name, value in vars(part).items() if name in names and type(value) is int}


def _width_step(config: PreTrainedConfig, real: int) -> int:
    """The smallest change of width at which every scaled field stays whole."""
    from math import lcm

    from calibration.building import parts

    fields = [v for part in parts(config) for v in _fields(part, (*WIDTHS, *INNER, *HEADS)).values()]
    return lcm(*(Fraction(value, real).denominator for value in fields))


def _scale(facts: Config, config: PreTrainedConfig, ratio: Fraction) -> None:
    aliases = type(config).attribute_map
    fields = _fields(config, (*WIDTHS, *INNER, *HEADS))
    for name in [key for key in facts if aliases.get(key) in fields]:
        del facts[name]
    facts.update({name: int(value * ratio) for name, value in fields.items()})
    for name, part in vars(config).items():
        if hasattr(part, "to_dict") and hasattr(part, "model_type"):
            _scale(facts.setdefault(name, part.to_dict()), part, ratio)


def default_widths(preset: Preset) -> list[int]:
    """Widths from a quarter to twice the model's own that it can have."""
    from calibration.building import build_config

    config = build_config(preset)
    real = _config_width(config)
    if real is None:
        return []
    step = _width_step(config, real)
    return sorted({max(step, round(ratio * real / step) * step) for ratio in DEFAULT_RATIOS})


def at_widths(preset: Preset, workload: Workload, widths: Sequence[int], recipe: Recipe) -> dict[int, Workload]:
    """The workload at each of these widths, traced as far as ``recipe`` needs, and kept.

    Raises:
        InvalidInputError: widths that cannot be made, all of them; or a model that cannot be traced.
    """
    own = width_of(workload)
    problems: list[str] = []
    scaled: dict[int, Preset | None] = {}
    for width in widths:
        try:
            scaled[width] = None if width == own else with_width(preset, width)
        except InvalidInputError as error:
            problems += error.problems
    if problems:
        raise InvalidInputError(f"model {preset.name}", list(dict.fromkeys(problems)))
    return {width: workload if one is None else _traced(one, recipe) for width, one in scaled.items()}


def _traced(preset: Preset, recipe: Recipe) -> Workload:
    """The stored trace, with the variants that the recipe needs added to it."""
    from calibration.trace import config_hash, trace

    known = store.load_workload(preset.name)
    if known is not None and known.config_hash != config_hash(preset):
        known = None
    if known is not None and not set(_needed(recipe)) - {_key(v) for v in known.variants}:
        return known
    numerics: Numerics = PRECISIONS[recipe.precision].numerics
    made = trace(
        preset,
        numerics=(numerics,),
        attentions=tuple(dict.fromkeys(["sdpa", recipe.attention])),
        checkpointing=(False,) if recipe.checkpointing == "none" else (False, True),
    )
    if known is not None:
        fresh = {_key(variant) for variant in made.variants}
        made = dataclasses.replace(
            made, variants=(*(v for v in known.variants if _key(v) not in fresh), *made.variants)
        )
    store.save_workload(made)
    return made


def _needed(recipe: Recipe) -> Iterator[tuple[str, str, bool]]:
    numerics = PRECISIONS[recipe.precision].numerics
    yield numerics, recipe.attention, False
    if recipe.checkpointing != "none":
        yield numerics, recipe.attention, True


def _key(variant: Variant) -> tuple[str, str, bool]:
    return variant.numerics, variant.attention, variant.checkpointed
