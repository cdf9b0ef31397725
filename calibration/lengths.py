"""Heads and positions that a config implies: what bounds the sequence length, and where the config fixes it."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calibration.building import quiet, size_of
from calibration.config_files import MAPPINGS, class_table
from profiles.errors import InvalidInputError

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedConfig

_TABLE = re.compile(r"(^|\.)(wpe|positions?_embed(dings?)?|embed_positions?|pos_emb(ed)?)$")
_VISION = re.compile(r"vision|visual|image")
_PREFIX_TOKENS = ("cls_token", "class_embedding", "distillation_token", "register_tokens")
_DEFAULT_SEQ = 2048
_LONGEST_DEFAULT_SEQ = 4096


@dataclass(frozen=True, slots=True)
class _Positions:
    """Usable entries of the smallest absolute table, and tokens that precede a vision model's patches."""

    table: int | None
    prefix_tokens: int


def attention_heads(config: PreTrainedConfig) -> int | None:
    """Attention heads of the (text) stack; ``None`` where there is no attention."""
    return size_of(config.get_text_config(), "num_attention_heads")


def max_positions(config: PreTrainedConfig) -> int | None:
    """Usable entries of the table of absolute positions; ``None`` without one (rotary, relative, Mamba).

    Positions that a class reserves at the start of its table, as RoBERTa and OPT do, are not usable. MPT's biases are
    made for ``max_seq_len``.
    """
    if config.model_type == "mpt":
        return int(config.max_seq_len)
    return _positions(config).table


def fixed_seq(config: PreTrainedConfig) -> int | None:
    """Positions per sample where the config fixes them, else ``None``.

    Vision: patches plus class and register tokens; two towers: text plus vision positions. A convolutional network
    without a patch size counts each image as one position.
    """
    if _registered(config, "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES"):
        text = size_of(config.text_config, "max_position_embeddings") or 0
        return text + _patches(config.vision_config) + _positions(config).prefix_tokens
    if _registered(config, "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES"):
        return _patches(config) + _positions(config).prefix_tokens
    return None


def usual_lengths(config: PreTrainedConfig, *, seq2seq: bool) -> tuple[int, int | None]:
    """A default (sequence, decoder sequence) for a config that comes without a training run.

    What the config fixes or its tables hold, else the length it was made for, at most 4096.
    """
    fixed = fixed_seq(config)
    if fixed is not None:
        return fixed, None
    if hasattr(config, "max_source_positions") and hasattr(config, "max_target_positions"):
        return int(config.max_source_positions), int(config.max_target_positions)
    text = config.get_text_config()
    made_for = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None) or _DEFAULT_SEQ
    seq = min(max_positions(config) or _LONGEST_DEFAULT_SEQ, int(made_for), _LONGEST_DEFAULT_SEQ)
    return seq, seq if seq2seq else None


def _registered(config: PreTrainedConfig, table: str) -> bool:
    return config.model_type in class_table(table)


def _patches(config: PreTrainedConfig) -> int:
    image, patch = getattr(config, "image_size", None), getattr(config, "patch_size", None)
    if image is None or patch is None:
        return size_of(config, "num_patches") or 1
    (height, width), (rows, columns) = _pair(image), _pair(patch)
    return (height // rows) * (width // columns)


def _pair(size: int | list[int] | tuple[int, ...]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[-2], size[-1])


_seen: dict[str, _Positions] = {}


def _positions(config: PreTrainedConfig) -> _Positions:
    key = config.to_json_string(use_diff=False)
    if key not in _seen:
        model = _bare(config)
        tables = [(name, size) for name, size in _tables(model) if not _VISION.search(name)]
        first = [size for name, size in tables if "decoder" not in name] or [size for _, size in tables]
        _seen[key] = _Positions(table=min(first, default=None), prefix_tokens=_prefix_tokens(model))
    return _seen[key]


def _tables(model: nn.Module) -> Iterator[tuple[str, int]]:
    for name, module in model.named_modules():
        if _TABLE.search(name) and hasattr(module, "num_embeddings"):
            yield name, _usable(module)
    for name, buffer in model.named_buffers():
        if _TABLE.search(name) and buffer.dim() == 2:
            yield name, len(buffer)


def _usable(module: nn.Module) -> int:
    offset, padding = getattr(module, "offset", None), getattr(module, "padding_idx", None)
    reserved = offset if isinstance(offset, int) else padding + 1 if isinstance(padding, int) else 0
    entries = module.num_embeddings
    assert isinstance(entries, int)
    return entries - reserved


def _prefix_tokens(model: nn.Module) -> int:
    named: list[tuple[str, torch.nn.Parameter]] = list(model.named_parameters())
    return sum(math.prod(p.shape[:-1]) for name, p in named if name.rsplit(".", 1)[-1] in _PREFIX_TOKENS)


def _bare(config: PreTrainedConfig) -> nn.Module:
    """The model on the meta device, by the first of transformers' auto classes that can build it."""
    import torch
    import transformers

    tables = [("AutoModel", "MODEL_MAPPING_NAMES"), *(entry for entries in MAPPINGS.values() for entry in entries)]
    problem: Exception | None = None
    for auto in [auto for auto, table in tables if _registered(config, table)]:
        try:
            with quiet(), torch.device("meta"):
                model: nn.Module = getattr(transformers, auto).from_config(copy.deepcopy(config))
                return model
        except Exception as error:
            problem = error
    raise InvalidInputError(f"model type {config.model_type}", [f"cannot be built: {problem}"])
