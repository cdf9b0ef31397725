"""The card that a row of a table means by its name and memory."""

from __future__ import annotations

from calibration.table_aliases import Aliases
from calibration.table_columns import Cells
from profiles.catalogue import load_gpu
from profiles.errors import UnknownNameError
from profiles.schema import Gpu
from simulator.units import GIB, to_gib

_SAME_SIZE = 0.10
"""Names say 80, drivers 79.1 GiB and adverts GB: sizes this near are one card's."""
_TIME = ("step_time_s", "tokens_per_s_per_gpu", "t_micro_s")
_MEMORY = ("peak_mem_gib", "peak_reserved_gib")


def gpu_of(cells: Cells, name: str, aliases: Aliases, problems: list[str], notes: list[str]) -> Gpu | None:
    """The GPU of a row; ``None`` if it is unknown, or its memory contradicts it, with the reason in ``problems``.

    A name that exists in several sizes needs ``gpu_mem_gib``, unless the row is about time alone: then the aliases'
    usual size is taken and said in ``notes``.
    """
    memory_gib = cells.number("gpu_mem_gib")
    if not name:
        problems.append("gpu is blank; allowed: a GPU's name, such as A100-80GB")
        return None
    if memory_gib is not None:
        return _of_size(name, memory_gib, problems)
    usual = aliases.meaning("gpu_without_memory", name)
    if _known(name) is None and usual is not None and _time_alone(cells):
        notes.append(f"gpu {name} without gpu_mem_gib taken as {usual}")
        name = usual
    return _found(name, problems)


def card_bytes(cells: Cells, gpu: Gpu) -> float:
    """What the card holds, by the data sheet or the table's rounder figure, whichever is more."""
    return max(gpu.memory_bytes, (cells.number("gpu_mem_gib") or 0.0) * GIB)


def _time_alone(cells: Cells) -> bool:
    measured = cells.numbers.keys()
    return any(name in measured for name in _TIME) and not any(name in measured for name in _MEMORY)


def _of_size(name: str, memory_gib: float, problems: list[str]) -> Gpu | None:
    found = [gpu for text in (name, f"{name}-{round(memory_gib)}GB") if (gpu := _known(text))]
    fitting = [gpu for gpu in found if abs(to_gib(gpu.memory_bytes) / memory_gib - 1) <= _SAME_SIZE]
    if fitting:
        return fitting[0]
    if not found:
        return _found(name, problems)
    problems.append(f"gpu_mem_gib is {memory_gib:g}, and {found[0].name} has {to_gib(found[0].memory_bytes):.1f} GiB")
    return None


def _known(name: str) -> Gpu | None:
    try:
        return load_gpu(name)
    except UnknownNameError:
        return None


def _found(name: str, problems: list[str]) -> Gpu | None:
    try:
        return load_gpu(name)
    except UnknownNameError as error:
        problems.append(f"gpu {error.problems[0]}")
        return None
