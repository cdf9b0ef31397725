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


class Cards:
    """The GPUs that one table names; each name is looked up once."""

    def __init__(self, aliases: Aliases) -> None:
        self._aliases = aliases
        self._known: dict[str, Gpu | UnknownNameError] = {}

    def find(self, cells: Cells, name: str, problems: list[str], notes: list[str]) -> Gpu | None:
        """The GPU of a row; ``None`` if it is unknown, or its memory contradicts it, with the reason in ``problems``.

        A name that exists in several sizes needs ``gpu_mem_gib``, unless the row is about time alone: then the
        aliases' usual size is taken and said in ``notes``.
        """
        memory_gib = cells.number("gpu_mem_gib")
        if not name:
            problems.append("gpu is blank; allowed: a GPU's name, such as A100-80GB")
            return None
        if memory_gib is not None:
            return self._of_size(name, memory_gib, problems)
        usual = self._aliases.meaning("gpu_without_memory", name)
        if usual is not None and self._look_up(name) is None and _time_alone(cells):
            notes.append(f"gpu {name} without gpu_mem_gib taken as {usual}")
            name = usual
        return self._look_up(name, problems)

    def _of_size(self, name: str, memory_gib: float, problems: list[str]) -> Gpu | None:
        found = [gpu for text in (name, f"{name}-{round(memory_gib)}GB") if (gpu := self._look_up(text))]
        fitting = [gpu for gpu in found if abs(to_gib(gpu.memory_bytes) / memory_gib - 1) <= _SAME_SIZE]
        if fitting:
            return fitting[0]
        if not found:
            return self._look_up(name, problems)
        size_gib = to_gib(found[0].memory_bytes)
        problems.append(f"gpu_mem_gib is {memory_gib:g}, and {found[0].name} has {size_gib:.1f} GiB")
        return None

    def _look_up(self, name: str, problems: list[str] | None = None) -> Gpu | None:
        if name not in self._known:
            try:
                self._known[name] = load_gpu(name)
            except UnknownNameError as error:
                self._known[name] = error
        found = self._known[name]
        if isinstance(found, Gpu):
            return found
        if problems is not None:
            problems.append(f"gpu {found.problems[0]}")
        return None


def card_bytes(cells: Cells, gpu: Gpu) -> float:
    """What the card holds, by the data sheet or the table's rounder figure, whichever is more."""
    return max(gpu.memory_bytes, (cells.number("gpu_mem_gib") or 0.0) * GIB)


def _time_alone(cells: Cells) -> bool:
    measured = cells.numbers.keys()
    return any(name in measured for name in _TIME) and not any(name in measured for name in _MEMORY)
