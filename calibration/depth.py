"""Changing a model's depth: what stays exact when only three blocks of each stack are built."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from calibration.building import build_config, build_on_meta, parts
from calibration.config_files import DEPTH_FIELDS
from profiles.errors import InvalidInputError
from profiles.schema import Config, Preset

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedConfig

StackDepths = tuple[tuple[str, int], ...]
"""(path of the module list, its real depth) per stack, in the order in which the model holds them."""

_COMPARED_DEPTH = 3
_INDEX_FIELDS = ("layer_idx", "layer_id", "layer_index", "layer_number", "block_idx", "block_id", "idx")


def with_depth(preset: Preset, depth: int) -> tuple[Preset, StackDepths] | None:
    """The preset with every stack of blocks cut to ``depth``, and each stack's name and real depth.

    ``None`` when that would not be exact: no stack's depth can be set, a stack is shallower than ``depth``, or its
    middle blocks differ from each other (mixed layer types, stages, sparse layers now and then) in modules, shapes or
    switches. The first and the last block may differ from the middle ones, and are kept.
    """
    config, model = build_config(preset), build_on_meta(preset)
    short = _cut(preset, config, _COMPARED_DEPTH)
    try:
        cut_config, cut_model = build_config(short), build_on_meta(short)
    except InvalidInputError:
        return None
    stacks = [stack for stack in _stacks(model, cut_model) if len(stack[1]) in _depths(config)]
    uniform = stacks and all(_same_blocks(real, cut) for _, real, cut in stacks)
    if not uniform or not _adds_up(model, cut_model, stacks) or _mixed(config, cut_config):
        return None
    depths = tuple((name, len(real)) for name, real, _ in stacks)
    if any(real < depth for _, real in depths):
        return None
    return _cut(preset, config, depth), depths


def _cut(preset: Preset, config: PreTrainedConfig, depth: int) -> Preset:
    """The preset with each depth field of its config set, and lists by layer cut to fit."""
    facts = copy.deepcopy(preset.config)
    _cut_part(facts, config, depth)
    return dataclasses.replace(preset, config=facts)


def _depths(config: PreTrainedConfig) -> set[int]:
    return {depth for part in parts(config) for depth in _fields(part).values()}


def _fields(part: PreTrainedConfig) -> dict[str, int]:
    return {name: value for name, value in vars(part).items() if name in DEPTH_FIELDS and type(value) is int}


def _cut_part(facts: Config, config: PreTrainedConfig, depth: int) -> None:
    aliases = type(config).attribute_map
    fields = _fields(config)
    for name in [key for key in facts if aliases.get(key) in fields]:
        del facts[name]
    for key, value in facts.items():
        if isinstance(value, list) and len(value) > depth and len(value) in fields.values():
            facts[key] = [*value[: depth - 1], value[-1]]
    facts.update(dict.fromkeys(fields, depth))
    for name, part in vars(config).items():
        if hasattr(part, "to_dict") and hasattr(part, "model_type"):
            _cut_part(facts.setdefault(name, part.to_dict()), part, depth)


def _stacks(model: nn.Module, cut_model: nn.Module) -> list[tuple[str, nn.ModuleList, nn.ModuleList]]:
    """Outermost module lists whose length follows the depth fields."""
    real, cut = dict(_lists(model)), dict(_lists(cut_model))
    found = [(name, real[name], cut[name]) for name in real if name in cut and len(cut[name]) == _COMPARED_DEPTH]
    names = [name for name, _, _ in found]
    return [entry for entry in found if not any(entry[0].startswith(f"{outer}.") for outer in names)]


def _lists(model: nn.Module) -> Iterator[tuple[str, nn.ModuleList]]:
    from torch import nn

    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and next(module.parameters(), None) is not None:
            yield name, module


def _same_blocks(real: nn.ModuleList, cut: nn.ModuleList) -> bool:
    """Whether the cut stack's first, middle and last block stand for the real stack's."""
    if len(real) < _COMPARED_DEPTH:
        return False
    first, middle, last = (_signature(block) for block in cut)
    return (
        _signature(real[0]) == first
        and _signature(real[-1]) == last
        and all(_signature(block) == middle for block in list(real)[1:-1])
    )


def _signature(block: nn.Module) -> tuple[object, ...]:
    """What decides a block's work: its modules with their switches, and its parameters' shapes; not its number."""
    modules = tuple(
        (name, type(module).__qualname__, tuple(sorted(_switches(module)))) for name, module in block.named_modules()
    )
    return modules, tuple((name, tuple(parameter.shape)) for name, parameter in block.named_parameters())


def _switches(module: nn.Module) -> Iterator[tuple[str, str]]:
    for name, value in vars(module).items():
        if isinstance(value, bool | int | str | tuple | None) and name not in _INDEX_FIELDS:
            yield name, repr(value)


def _adds_up(model: nn.Module, cut_model: nn.Module, stacks: list[tuple[str, nn.ModuleList, nn.ModuleList]]) -> bool:
    """Whether middle blocks account for all the parameters that the cut model lacks."""
    extra = sum((len(real) - len(cut)) * _parameters(cut[1]) for _, real, cut in stacks)
    return _parameters(cut_model) + extra == _parameters(model)


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _mixed(config: PreTrainedConfig, cut_config: PreTrainedConfig) -> bool:
    """Whether a list by layer, given or derived, has middle entries of several kinds; all different ones are labels."""
    for part, cut in zip(parts(config), parts(cut_config), strict=True):
        for name, value in vars(part).items():
            if not isinstance(value, list | tuple) or len(value) == len(vars(cut).get(name) or ()):
                continue
            middle = [repr(entry) for entry in value[1:-1]]
            if 1 < len(set(middle)) < len(middle):
                return True
    return False
