"""Models from their config: a preset, a config file or a cached hub id becomes a transformers class without weights."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from calibration import config_files
from calibration.building import ATTENTION_KEYS, build_config, build_on_meta, model_class
from calibration.counts import count
from calibration.depth import with_depth
from calibration.lengths import attention_heads, fixed_seq, max_positions, usual_lengths
from profiles.catalogue import load_preset
from profiles.errors import InvalidInputError, UnknownNameError
from profiles.files import parse_plain, read_toml
from profiles.schema import Config, Preset

__all__ = [
    "UnknownModelError",
    "attention_heads",
    "build_config",
    "build_on_meta",
    "fixed_seq",
    "max_positions",
    "model_class",
    "resolve",
    "warnings_for",
    "with_depth",
]

_HINT = "a path to a transformers config.json, or a hub id whose config.json is in the local cache, works too"


class UnknownModelError(UnknownNameError):
    """A model that is no preset, no file and no cached hub id; says how to give a file instead."""

    def __init__(self, not_a_preset: UnknownNameError) -> None:
        InvalidInputError.__init__(self, not_a_preset.subject, [*not_a_preset.problems, _HINT])
        self.name, self.nearest = not_a_preset.name, not_a_preset.nearest


def resolve(model: str) -> Preset:
    """The preset that ``model`` means: a name or alias, a path, or a hub id in the local cache. Never the network.

    A path is a transformers ``config.json``, a folder with one, or a preset file of our own (``.toml``).

    Raises:
        UnknownModelError: nothing goes by that name; carries the nearest presets.
        UnknownNameError: the config's ``model_type`` is not in the installed transformers.
        InvalidInputError: a file that cannot be used, with every problem found.
    """
    if model.endswith((".json", ".toml")):
        return _from_path(Path(os.path.expanduser(model)))  # noqa: PTH111 - Path's own raises on an unknown user
    try:
        return load_preset(model)
    except UnknownNameError as error:
        path = os.path.expanduser(model)  # noqa: PTH111
        if os.path.exists(path):  # noqa: PTH110 - Path's own raises on a name that is too long
            return _from_path(Path(path))
        cached = _cached_config(model)
        if cached is None:
            raise UnknownModelError(error) from None
    return _from_config(cached, model.rsplit("/", 1)[-1], f"config.json of {model} in the local hub cache")


def warnings_for(preset: Preset) -> tuple[str, ...]:
    """What the config says and the built model does not do, or does not say and is assumed; empty when all agrees."""
    return (*_tie_warnings(preset), *_ignored(preset.config), *_assumed(preset.config))


def _from_path(path: Path) -> Preset:
    if path.suffix == ".toml":
        preset = parse_plain(Preset, read_toml(path), str(path))
        config_files.check(preset.config, f"model {path}")
        return preset
    file = path / "config.json" if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        raise InvalidInputError(f"model {path}", ["this folder holds no config.json; allowed: a folder with one"])
    stem = file.resolve().parent.name if file.name == "config.json" else file.stem
    return _from_config(file, stem, str(path))


def _from_config(path: Path, name: str, source: str) -> Preset:
    """A preset of a config file: counted, with the lengths that the config implies; no training run."""
    file = config_files.read(path)
    date = datetime.fromtimestamp(path.stat().st_mtime, UTC).date().isoformat()
    bare = Preset(name=name, task=file.task, config=file.config, params=0, seq=1, source=source, date=date)
    config = build_config(bare)
    params = count(build_on_meta(bare), config).params
    seq, decoder_seq = usual_lengths(config, seq2seq=file.task == "seq2seq_lm")
    return dataclasses.replace(bare, params=params, seq=seq, decoder_seq=decoder_seq)


def _cached_config(hub_id: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(hub_id, "config.json")
    except HFValidationError:
        return None
    return Path(found) if isinstance(found, str) else None


def _tie_warnings(preset: Preset) -> Iterator[str]:
    from transformers import __version__

    told = preset.config.get("tie_word_embeddings")
    if told is None:
        return
    model: Any = build_on_meta(preset)
    output, table = model.get_output_embeddings(), model.get_input_embeddings()
    if output is None or table is None:
        return
    head, tied = math.prod(output.weight.shape), output.weight is table.weight
    if tied != told:
        does = "ties" if tied else "does not tie"
        yield (
            f"the config says tie_word_embeddings: {str(told).lower()}, but {type(model).__name__} of transformers "
            f"{__version__} {does} them; counts, time and memory are of the model as this version builds it "
            f"(a head of its own has {head:,} parameters)"
        )


def _ignored(config: Config) -> Iterator[str]:
    for key in ATTENTION_KEYS:
        if config.get(key) == "eager":
            yield f"the config asks for {key}: eager; the recipe's attention knob decides, and sdpa needs less memory"
    if config.get("quantization_config"):
        yield "quantization_config is ignored: pre-training starts from unquantised weights"


def _assumed(config: Config) -> Iterator[str]:
    """Sizes that the file leaves to the class's defaults."""
    for field, default in config_files.left_out(config, ("vocab_size", "num_attention_heads", "intermediate_size")):
        yield f"the config does not say {field}; {config['model_type']}'s default {default} is assumed"
