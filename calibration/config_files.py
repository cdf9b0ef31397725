"""Reading a transformers ``config.json``: facts in, code never run, all problems at once."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiles.errors import InvalidInputError, UnknownNameError
from profiles.files import read_text
from profiles.schema import Config, Task

MAPPINGS: dict[Task, tuple[tuple[str, str], ...]] = {
    "causal_lm": (
        ("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"),
        ("AutoModelForImageTextToText", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES"),
    ),
    "masked_lm": (("AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING_NAMES"),),
    "seq2seq_lm": (
        ("AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"),
        ("AutoModelForSpeechSeq2Seq", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES"),
    ),
    "contrastive": (("AutoModel", "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES"),),
    "image_classification": (("AutoModelForImageClassification", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES"),),
}
"""Per task, the auto classes that build it, each with transformers' table of the types it knows; best first."""

NOISE = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version")
"""Keys of a published config that say nothing about the architecture."""
REMOTE_CODE = ("auto_map", "trust_remote_code")
"""Keys by which a config asks for code of its own. Such a config is refused: its code is never run, and transformers'
class of that name may be another model.
"""

DEPTH_FIELDS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "num_decoder_layers",
    "num_encoder_layers",
    "encoder_layers",
    "decoder_layers",
    "encoder_num_layers",
    "decoder_num_layers",
    "depth",
)
"""What transformers' classes call the number of blocks of a stack."""

_POSITIVE = (
    *DEPTH_FIELDS,
    "vocab_size",
    "hidden_size",
    "d_model",
    "n_embd",
    "n_embed",
    "dim",
    "hidden_dim",
    "intermediate_size",
    "d_ff",
    "d_kv",
    "ffn_dim",
    "head_dim",
    "num_attention_heads",
    "num_heads",
    "n_head",
    "n_heads",
    "num_key_value_heads",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "max_position_embeddings",
    "n_positions",
    "image_size",
    "patch_size",
    "num_channels",
    "hidden_sizes",
    "depths",
    "state_size",
    "num_local_experts",
    "num_experts_per_tok",
)
_REQUIRED = {
    "hidden_size": re.compile(r"dim|emb|hidden|width|model|channels|size"),
    "num_hidden_layers": re.compile(r"layer|block|depth"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """What one config file says: its facts and the task that the model is trained on."""

    config: Config
    task: Task


def read(path: Path) -> ConfigFile:
    """The facts and the task of a ``config.json``.

    Raises:
        InvalidInputError: not JSON, not an object, a field missing or impossible, or code of its own asked for.
        UnknownNameError: a ``model_type`` that the installed transformers does not have.
    """
    raw, subject = _load(path), f"model config {path}"
    check(raw, subject)
    task = _task(raw, raw["model_type"], subject)
    return ConfigFile(config={key: value for key, value in raw.items() if key not in NOISE}, task=task)


def check(config: Config, subject: str) -> None:
    """Nothing, for a config that names a native type and possible sizes; raises like ``read`` for any other."""
    model_type = config.get("model_type")
    problems = [*_remote_code(config), *_size_problems(config)]
    if not isinstance(model_type, str):
        problems.insert(0, _no_model_type(config))
    elif model_type in native_types():
        problems += _missing(config, model_type)
    elif problems:
        problems.insert(0, UnknownNameError("model_type", model_type, native_types()).problems[0])
    if problems:
        raise InvalidInputError(subject, problems)
    require_native(config, subject)


def require_native(config: Config, subject: str) -> None:
    """Nothing, for a type that transformers itself defines; code that a config brings along is never run.

    Raises:
        InvalidInputError: no type, or code of its own asked for.
        UnknownNameError: a foreign type.
    """
    model_type, known = config.get("model_type"), native_types()
    if not isinstance(model_type, str):
        raise InvalidInputError(subject, [_no_model_type(config)])
    problems = list(_remote_code(config))
    if problems:
        raise InvalidInputError(subject, problems)
    if model_type not in known:
        raise UnknownNameError("model_type", model_type, known)


def class_table(name: str) -> Mapping[str, str | tuple[str, ...]]:
    """Transformers' table of model type → class name (or names) called ``name``."""
    from transformers.models.auto import modeling_auto

    table: Mapping[str, str | tuple[str, ...]] = getattr(modeling_auto, name)
    return table


def native_types() -> tuple[str, ...]:
    """Every ``model_type`` that the installed transformers defines."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return tuple(CONFIG_MAPPING.keys())


def _load(path: Path) -> Config:
    subject = f"model config {path}"
    try:
        raw = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(subject, [f"is not JSON: {error}"]) from error
    if not isinstance(raw, dict):
        kind = type(raw).__name__
        raise InvalidInputError(subject, [f"holds a JSON {kind}; a transformers config is an object with a model_type"])
    return raw


def _remote_code(raw: Config, prefix: str = "") -> Iterator[str]:
    for key, value in raw.items():
        if isinstance(value, dict) and key not in REMOTE_CODE:
            yield from _remote_code(value, f"{prefix}{key}.")
    asked = ", ".join(f"{prefix}{key}" for key in REMOTE_CODE if raw.get(key))
    if asked:
        yield (
            f"asks for code of its own ({asked}), which is never executed; remove {asked} to use transformers' own "
            "class of that model_type if that is what you want"
        )


def _no_model_type(raw: Config) -> str:
    if "model_type" in raw:
        return f'model_type is {raw["model_type"]!r}; allowed: the name that transformers has for it, such as "llama"'
    found = raw.get("architectures") or ", ".join(sorted(raw)[:12]) or "nothing"
    return (
        f'model_type is missing; add the type transformers knows it by, such as "model_type": "llama" (found: {found})'
    )


def left_out(config: Config, standard_names: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    """Fields of the type's class that a config leaves to their defaults, as (the class's name for it, default)."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = CONFIG_MAPPING[config["model_type"]]
    for standard in standard_names:
        real, *aliases = _names_of(kind, standard)
        field = getattr(kind, "__dataclass_fields__", {}).get(real)
        if field is not None and not any(name in config for name in (real, *aliases)):
            yield real, field.default


def _names_of(kind: Any, standard: str) -> list[str]:  # noqa: ANN401
    """The class's own name for a field, then the other names that it accepts."""
    aliases: Mapping[str, str] = kind.attribute_map
    real = aliases.get(standard, standard)
    return [real, *(alias for alias, target in aliases.items() if target == real)]


def _missing(raw: Config, model_type: str) -> Iterator[str]:
    """Width or depth that the class takes at top level and the file leaves out: its default would pass for a fact."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = CONFIG_MAPPING[model_type]
    for standard, pattern in _REQUIRED.items():
        for real, _ in left_out(raw, (standard,)):
            if standard != "hidden_size" and real not in DEPTH_FIELDS:
                continue
            aliases = _names_of(kind, standard)[1:]
            also = f" (also accepted: {', '.join(aliases)})" if aliases else ""
            unknown = {key: value for key, value in raw.items() if key not in kind.__dataclass_fields__}
            near = [f"{k} = {v}" for k, v in unknown.items() if type(v) is int and pattern.search(k.lower())]
            seen = f"; {model_type} has no field {', '.join(near)}: is that it?" if near else ""
            yield f"{real} is missing{also}{seen}"


def _size_problems(raw: Config, prefix: str = "") -> Iterator[str]:
    for key, value in raw.items():
        if isinstance(value, dict):
            yield from _size_problems(value, f"{prefix}{key}.")
        elif key in _POSITIVE:
            sizes = value if isinstance(value, list) else [value]
            if not all(_is_size(size) for size in sizes):
                yield f"{prefix}{key} is {value!r}; allowed: a number from 1"


def _is_size(size: object) -> bool:
    """Whether it may be a size; ``None`` leaves it to the class."""
    return size is None or (isinstance(size, int | float) and 0 < size < math.inf)


def _task(raw: Config, model_type: str, subject: str) -> Task:
    asked = _named_task(raw.get("architectures"), model_type)
    able = [task for task, tables in MAPPINGS.items() if any(model_type in class_table(name) for _, name in tables)]
    if not able:
        raise InvalidInputError(
            subject, [f"transformers has no class to pre-train {model_type!r} with; allowed: {', '.join(MAPPINGS)}"]
        )
    return asked or _usual_task(raw, model_type, able)


def _named_task(architectures: object, model_type: str) -> Task | None:
    wanted = set(architectures) if isinstance(architectures, list) else set()
    for task, tables in MAPPINGS.items():
        for _, name in tables:
            classes = class_table(name).get(model_type, ())
            if wanted & {classes, *(classes if isinstance(classes, tuple) else ())}:
                return task
    return None


def _usual_task(raw: Config, model_type: str, able: list[Task]) -> Task:
    """What the type is usually trained on: encoders that can also decode are masked models unless told otherwise."""
    if "seq2seq_lm" in able and raw.get("is_encoder_decoder", _default(model_type, "is_encoder_decoder")):
        return "seq2seq_lm"
    if "masked_lm" in able and not raw.get("is_decoder", _default(model_type, "is_decoder")):
        return "masked_lm"
    return able[0]


def _default(model_type: str, field: str) -> Any:  # noqa: ANN401
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return getattr(CONFIG_MAPPING[model_type], field, False)
