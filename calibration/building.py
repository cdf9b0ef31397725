"""A preset's config becomes a transformers config and class, built on the meta device: shapes without weights."""

from __future__ import annotations

import contextlib
import copy
import logging
import textwrap
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from calibration.config_files import MAPPINGS, NOISE, REMOTE_CODE, class_table, left_out, require_native
from profiles.errors import InvalidInputError
from profiles.schema import Config, Preset

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedConfig

_LONGEST_COMPLAINT = 300
ATTENTION_KEYS = ("attn_implementation", "_attn_implementation")
_NOT_BUILT = frozenset({*NOISE, *REMOTE_CODE, *ATTENTION_KEYS, "quantization_config"})
"""What a config may say that the recipe decides, or that would run or convert something: left out when building."""


def build_config(preset: Preset) -> PreTrainedConfig:
    """The transformers config of a preset, nested parts included, with the key-value cache off.

    Raises:
        InvalidInputError: sizes that the class refuses, heads that don't divide, a type that only comes as code.
        UnknownNameError: a type that the installed transformers does not have.
    """
    from transformers import AutoConfig

    require_native(preset.config, f"model {preset.name}")
    facts = _facts(preset.config)
    model_type = facts.pop("model_type")
    with quiet(), refusing(preset):
        config = AutoConfig.for_model(model_type, **facts)
        config.architectures = config.architectures or []  # some auto classes look through it
        for part in parts(config):
            if hasattr(part, "use_cache"):
                part.use_cache = False
    problems = list(_head_problems(config, preset.config))
    if problems:
        raise InvalidInputError(f"model {preset.name}", problems)
    return config


def model_class(preset: Preset) -> Any:  # noqa: ANN401 - transformers' auto classes are untyped
    """The auto class that builds the preset for its task.

    Raises:
        InvalidInputError: transformers has no class of this type for this task.
    """
    import transformers

    model_type = preset.config.get("model_type")
    for auto, table in MAPPINGS[preset.task]:
        if model_type in class_table(table):
            return getattr(transformers, auto)
    able = [task for task, tables in MAPPINGS.items() if any(model_type in class_table(table) for _, table in tables)]
    problem = f"transformers has no {preset.task} class for {model_type!r}; allowed tasks: {', '.join(able) or 'none'}"
    raise InvalidInputError(f"model {preset.name}", [problem])


def build_on_meta(preset: Preset, attention: Literal["eager", "sdpa"] | None = None) -> nn.Module:
    """The preset's model with fp32 weights that have shapes but no storage; shared weights are one tensor.

    ``attention`` defaults to what transformers picks itself.

    Raises:
        InvalidInputError: the class cannot be built from this config, or lacks this attention.
    """
    import torch

    config, kind = build_config(preset), model_class(preset)
    chosen: dict[str, Any] = {} if attention is None else {"attn_implementation": attention}
    with quiet(), refusing(preset), torch.device("meta"):
        model: nn.Module = kind.from_config(config, dtype=torch.float32, **chosen)
        return model


def parts(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    """The config and the configs nested in it."""
    yield config
    for value in vars(config).values():
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            yield from parts(value)


def size_of(config: PreTrainedConfig, name: str) -> int | None:
    """A whole-number field by its standard name; ``None`` if the config has none, or one per layer."""
    try:
        value = getattr(config, name, None)
    except Exception:
        return None
    return value if isinstance(value, int) else None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No warnings and no log lines from transformers; the caller says what matters in its own words."""
    from transformers.utils import logging as their_logging

    before = their_logging.get_verbosity()
    their_logging.set_verbosity(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        their_logging.set_verbosity(before)


@contextlib.contextmanager
def refusing(preset: Preset) -> Iterator[None]:
    """Turn any complaint of a config or model class into one about this model."""
    try:
        yield
    except InvalidInputError:
        raise
    except Exception as error:
        said = f"unknown value {error}" if isinstance(error, KeyError) else str(error)
        lines = [line.strip() for line in said.splitlines() if line.strip()] or [type(error).__name__]
        said = textwrap.shorten(" ".join(lines), _LONGEST_COMPLAINT, placeholder=" …")
        problem = f"{preset.config.get('model_type')} cannot be built from this config: {said}"
        raise InvalidInputError(f"model {preset.name}", [problem]) from error


def _facts(config: Config) -> Config:
    kept = {key: value for key, value in config.items() if key not in _NOT_BUILT}
    return {key: _facts(value) if isinstance(value, dict) else copy.deepcopy(value) for key, value in kept.items()}


def _head_problems(config: PreTrainedConfig, facts: Config) -> Iterator[str]:
    for part in parts(config):
        heads, groups = size_of(part, "num_attention_heads"), size_of(part, "num_key_value_heads")
        if heads and groups and heads % groups:
            yield f"num_attention_heads {heads} is not a multiple of num_key_value_heads {groups}"
    heads, width = size_of(config, "num_attention_heads"), size_of(config, "hidden_size")
    stated = not any(left_out(facts, ("hidden_size", "num_attention_heads")))
    explicit = any(size_of(config, name) for name in ("head_dim", "d_kv", "d_head", "attention_head_size"))
    if heads and width and width % heads and stated and not explicit:
        yield f"hidden_size {width} is not a multiple of num_attention_heads {heads}, and no head_dim is given"
