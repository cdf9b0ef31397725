"""GPUs and model presets: one TOML file each, found by name or alias; the user's files override the shipped ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from profiles.errors import InvalidInputError, UnknownNameError
from profiles.files import folders, list_files, parse_plain, read_toml
from profiles.schema import Gpu, Preset

_MAKERS = re.compile(r"^(?:nvidia|amd|instinct|geforce|tesla)+(?=.)")
_NULLABLE = ("compute_capability", "tf32_flops_per_s", "fp16_flops_per_s", "bf16_flops_per_s")
_UNCHECKED = ("compute_capability", "peer_to_peer")


def normalise(name: str) -> str:
    """A name without case, spaces, ``-`` and ``_``."""
    return re.sub(r"[\s_-]+", "", name).lower()


def normalise_gpu(name: str) -> str:
    """Like ``normalise``, and without the maker: ``NVIDIA GeForce RTX 3090`` is ``rtx3090``."""
    return _MAKERS.sub("", normalise(name))


def gpu_names() -> tuple[str, ...]:
    """Names of every known GPU, shipped and the user's own."""
    return _names("gpus", normalise_gpu)


def load_gpu(name: str) -> Gpu:
    """The GPU of that name or alias; torch's device names are aliases too.

    Raises:
        UnknownNameError: no GPU is called so.
        InvalidInputError: its file cannot be used.
    """
    path = _find("GPU", "gpus", name, normalise_gpu)
    plain = read_toml(path)
    told = {key: None if key in _NULLABLE and value == "none" else value for key, value in plain.items()}
    gpu = parse_plain(Gpu, told, str(path))
    problems = [*_name_problems(gpu.name, path, normalise_gpu), *_number_problems(gpu)]
    if problems:
        raise InvalidInputError(str(path), problems)
    return gpu


def preset_names() -> tuple[str, ...]:
    """Names of every known model preset, shipped and the user's own."""
    return _names("models", normalise)


def load_preset(name: str) -> Preset:
    """The model preset of that name or alias.

    Raises:
        UnknownNameError: no preset is called so.
        InvalidInputError: its file cannot be used.
    """
    path = _find("model", "models", name, normalise)
    preset = parse_plain(Preset, read_toml(path), str(path))
    problems = _name_problems(preset.name, path, normalise)
    if problems:
        raise InvalidInputError(str(path), problems)
    return preset


def _files(kind: str, key: Callable[[str], str]) -> dict[str, Path]:
    user, shipped = folders(kind)
    return {key(path.stem): path for folder in (shipped, user) for path in list_files(folder, (".toml",))}


def _names(kind: str, key: Callable[[str], str]) -> tuple[str, ...]:
    return tuple(sorted((path.stem for path in _files(kind, key).values()), key=str.lower))


def _find(word: str, kind: str, name: str, key: Callable[[str], str]) -> Path:
    files = _files(kind, key)
    wanted = key(name)
    if wanted in files:
        return files[wanted]
    for path in reversed(files.values()):
        if wanted in {key(alias) for alias in _aliases(path)}:
            return path
    family = [path.stem for stem, path in files.items() if wanted and stem.startswith(wanted)]
    raise UnknownNameError(word, name, family or [path.stem for path in files.values()])


def _aliases(path: Path) -> list[str]:
    aliases: Any = read_toml(path).get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise InvalidInputError(str(path), ["aliases: must be a list of names"])
    return aliases


def _name_problems(name: str, path: Path, key: Callable[[str], str]) -> list[str]:
    if key(name) == key(path.stem):
        return []
    return [f"name: must be the file's own name, {path.stem!r}, got {name!r}"]


def _number_problems(gpu: Gpu) -> list[str]:
    values = {field.name: getattr(gpu, field.name) for field in fields(gpu) if field.name not in _UNCHECKED}
    numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
    return [f"{name}: must be above zero, got {value}" for name, value in numbers.items() if value <= 0]
